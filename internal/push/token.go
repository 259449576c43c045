package push

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/sluice-dev/sluice/internal/clock"
)

// Audience is what tokens of sidecars are made for.
const Audience = "sluice"

// Keys of a review's extra fields, which name the pod that a projected token is bound to.
const (
	extraPodName = "authentication.kubernetes.io/pod-name"
	extraPodUID  = "authentication.kubernetes.io/pod-uid"
	userPrefix   = "system:serviceaccount:"
)

const (
	maxReviews = 20_000
	// reviewFor is how long a review is believed. The pod's end is seen otherwise, in the cache of pods.
	reviewFor = time.Minute
)

// ErrToken tells that a token proves nothing.
var ErrToken = errors.New("token is not accepted")

// Reviewer authenticates tokens by TokenReview, and remembers reviews for a while, so that sidecars that all connect
// anew do not all cost a call.
type Reviewer struct {
	client  kubernetes.Interface
	clock   clock.Clock
	mu      sync.Mutex
	reviews map[[sha256.Size]byte]review
}

type review struct {
	pod     Pod
	expires time.Time
	ends    time.Time // of the stream
}

// NewReviewer returns a Reviewer.
func NewReviewer(c kubernetes.Interface, cl clock.Clock) *Reviewer {
	return &Reviewer{client: c, clock: cl, reviews: map[[sha256.Size]byte]review{}}
}

// Authenticate implements Authenticator. The stream of a token ends with the review's life and is then opened anew.
func (r *Reviewer) Authenticate(ctx context.Context, token string) (Pod, time.Time, error) {
	hash := sha256.Sum256([]byte(token))
	now := r.clock.Now()
	if known, found := r.known(hash, now); found {
		return known.pod, known.ends, nil
	}
	tr, err := r.client.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{
		Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{Audience}},
	}, metav1.CreateOptions{})
	if err != nil {
		return Pod{}, time.Time{}, fmt.Errorf("review token: %w", err)
	}
	pod, err := podOf(&tr.Status)
	if err != nil {
		return Pod{}, time.Time{}, err
	}
	ends := now.Add(lifetime(token, now))
	r.remember(hash, review{pod, now.Add(reviewFor), ends})
	return pod, ends, nil
}

// lifetime is how long the stream of a token that was found good may last. It ends with the token; but where this
// clock is wrong, the API server's, which found the token good, counts.
func lifetime(token string, now time.Time) time.Duration {
	parts := strings.Split(token, ".")
	if len(parts) != tokenParts {
		return streamFor
	}
	payload, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Expires int64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(payload, &claims) != nil || claims.Expires == 0 {
		return streamFor
	}
	return min(max(time.Unix(claims.Expires, 0).Sub(now), reviewFor), streamFor)
}

const (
	tokenParts = 3 // of a JSON Web Token
	// streamFor is how long a stream may last before its sidecar must show a fresh token; projected tokens live an hour.
	streamFor = 40 * time.Minute
)

func (r *Reviewer) known(hash [sha256.Size]byte, now time.Time) (review, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	known, found := r.reviews[hash]
	return known, found && now.Before(known.expires)
}

func (r *Reviewer) remember(hash [sha256.Size]byte, v review) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.reviews) >= maxReviews {
		clear(r.reviews)
	}
	r.reviews[hash] = v
}

func podOf(s *authenticationv1.TokenReviewStatus) (Pod, error) {
	if !s.Authenticated {
		return Pod{}, fmt.Errorf("%w: %s", ErrToken, s.Error)
	}
	namespace, _, ok := strings.Cut(strings.TrimPrefix(s.User.Username, userPrefix), ":")
	names, uids := s.User.Extra[extraPodName], s.User.Extra[extraPodUID]
	if !ok || !strings.HasPrefix(s.User.Username, userPrefix) || len(names) != 1 || len(uids) != 1 {
		return Pod{}, fmt.Errorf("%w: it is not bound to a pod", ErrToken)
	}
	return Pod{Namespace: namespace, Name: names[0], UID: types.UID(uids[0])}, nil
}

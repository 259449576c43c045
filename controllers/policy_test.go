package controllers_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/controllers"
	"github.com/sluice-dev/sluice/internal/push"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const (
	isTrue  = metav1.ConditionTrue
	isFalse = metav1.ConditionFalse
)

// requests waits for an update whose first policy admits so many.
func (s *sidecar) awaitRequests(n int64) *pushv1.Update {
	s.t.Helper()
	return s.await("the new limit", func(rules *pushv1.RuleSet, _ *pushv1.Secrets) bool {
		return len(rules.GetPolicies()) > 0 && rules.GetPolicies()[0].GetRules()[0].GetLimits()[0].GetLimits()[0].GetRequests() == n
	})
}

func TestAPolicyIsProgrammedOnceItsSidecarSaysSo(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := policy(ns, "api")
	pod := guarded(t, ns, "shop-1")
	create(t, p)
	s := connect(t, pod)
	u := s.awaitPolicies(ns + "/api")
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isFalse, v1alpha1.ReasonReconciling)
	s.ack(u, "")
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isTrue, v1alpha1.ReasonProgrammed)
	wantCondition(t, p, v1alpha1.ConditionReady, isTrue, v1alpha1.ReasonReady)
	if got := summary(t, p); got != "1/1" {
		t.Errorf("summary %q", got)
	}

	edit(t, p, func(s *v1alpha1.RateLimitPolicySpec) { s.Rules[0].Limits[0].Requests = new(int64(20)) })
	u = s.awaitRequests(20)
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isFalse, v1alpha1.ReasonReconciling)
	s.ack(u, "")
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isTrue, v1alpha1.ReasonProgrammed)

	if err := api.Delete(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	s.awaitPolicies()
}

func TestASidecarThatRefusesIsNamedWithItsReason(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := policy(ns, "api")
	create(t, p)
	good, bad := connect(t, guarded(t, ns, "shop-good")), connect(t, guarded(t, ns, "shop-bad"))
	good.serve()
	go func() {
		for u := range bad.updates {
			bad.ack(u, "no such function")
		}
	}()
	message := wantCondition(t, p, v1alpha1.ConditionProgrammed, isFalse, v1alpha1.ReasonPartiallyProgrammed)
	if !strings.Contains(message, "shop-bad: no such function") || strings.Contains(message, "shop-good") {
		t.Error(message)
	}
}

func TestATokenShowsItsOwnPodsRulesAndNoOthers(t *testing.T) {
	t.Parallel()
	a, b := namespace(t), namespace(t)
	create(t, policy(a, "secret"), policy(b, "own"))
	victim, attacker := guarded(t, a, "shop-1"), guarded(t, b, "shop-1")
	connect(t, victim)
	s := connect(t, attacker)
	s.awaitPolicies(b + "/own")

	open(t, token(t, b, nil, push.Audience)).wantEnd(codes.Unauthenticated)
	open(t, token(t, b, attacker, "https://kubernetes.default.svc")).wantEnd(codes.Unauthenticated)
	open(t, "x.y.z").wantEnd(codes.Unauthenticated)
}

func TestTheStreamEndsWithThePodAndItsTokenOpensNoOther(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	create(t, policy(ns, "api"))
	pod := guarded(t, ns, "shop-1")
	proof := token(t, ns, pod, push.Audience)
	s := connect(t, pod)
	kill(t, pod)
	s.wantEnd(codes.Aborted)
	again := open(t, proof)
	select {
	case u := <-again.updates:
		t.Errorf("the dead pod's token got %v", u)
	case err := <-again.ended:
		if code := status.Code(err); code != codes.NotFound && code != codes.Unauthenticated {
			t.Error(err)
		}
	}
}

func TestAnInvalidEditLeavesTheLastAcceptedSpecInForceOverARestart(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p, other := policy(ns, "api"), policy(ns, "other")
	create(t, p, other)
	first := connect(t, guarded(t, ns, "shop-1"))
	first.ack(first.awaitPolicies(ns+"/api", ns+"/other"), "")
	first.serve()
	wantCondition(t, p, v1alpha1.ConditionReady, isTrue, v1alpha1.ReasonReady)

	edit(t, p, func(s *v1alpha1.RateLimitPolicySpec) { s.Rules[0].When = "request.method ==" })
	message := wantCondition(t, p, v1alpha1.ConditionAccepted, isFalse, v1alpha1.ReasonInvalid)
	if !strings.Contains(message, "spec.rules[0].when") || !strings.Contains(message, "generation 1 stays in force") {
		t.Error(message)
	}
	wantCondition(t, other, v1alpha1.ConditionAccepted, isTrue, v1alpha1.ReasonAccepted)
	second := connect(t, guarded(t, ns, "shop-2"))
	second.awaitPolicies(ns+"/api", ns+"/other")

	wanted := &wants{Pusher: newServer(t), updates: map[string]*pushv1.Update{}}
	restarted := &controllers.Namespaces{
		Client: cached, Pusher: wanted, KeySets: keySets, Recorder: events.NewFakeRecorder(100), OperatorNamespace: operatorNamespace,
		CA: func() ([]byte, error) {
			var m corev1.ConfigMap
			err := api.Get(t.Context(), types.NamespacedName{Namespace: ns, Name: "sluice-ca"}, &m)
			return []byte(m.Data["ca.crt"]), err
		},
	}
	if _, err := restarted.Reconcile(t.Context(), reconcile.Request{NamespacedName: types.NamespacedName{Name: ns}}); err != nil {
		t.Fatal(err)
	}
	rules, _ := read(t, wanted.updates["shop-1"])
	if len(rules.GetPolicies()) != 2 || rules.GetPolicies()[0].GetGeneration() != 1 {
		t.Errorf("after a restart: %v", rules)
	}
}

// wants notes what a reconciler wants.
type wants struct {
	controllers.Pusher
	updates map[string]*pushv1.Update
}

func (w *wants) Want(pod push.Pod, u *pushv1.Update) {
	w.updates[pod.Name] = u
	w.Pusher.Want(pod, u)
}

func TestNewAPIKeysArePushedAndCountAsProgrammedOnceAcknowledged(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := policy(ns, "api")
	p.Spec.Identity = &v1alpha1.Identity{APIKeys: &v1alpha1.APIKeys{SecretSelector: &metav1.LabelSelector{}}}
	create(t, p)
	s := connect(t, guarded(t, ns, "shop-1"))
	s.ack(s.awaitPolicies(ns+"/api"), "")
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isTrue, v1alpha1.ReasonProgrammed)

	keys := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "alice", Labels: map[string]string{v1alpha1.LabelUse: v1alpha1.UseAPIKeys}},
		StringData: map[string]string{"key": "open sesame"},
	}
	create(t, keys)
	u := s.await("the key", func(_ *pushv1.RuleSet, secrets *pushv1.Secrets) bool { return len(secrets.GetApiKeys()) == 1 })
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isFalse, v1alpha1.ReasonReconciling)
	s.ack(u, "")
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isTrue, v1alpha1.ReasonProgrammed)
}

func TestAKeySetThatIsMissingIsSaidAndPushedWhenItComes(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := policy(ns, "api")
	p.Spec.Identity = &v1alpha1.Identity{JWT: []v1alpha1.JWT{{
		Issuer: "https://id.example.com", JWKS: v1alpha1.JWKS{ConfigMapRef: &v1alpha1.KeyRef{Name: "keys", Key: "jwks"}},
	}}}
	create(t, p)
	s := connect(t, guarded(t, ns, "shop-1"))
	message := wantCondition(t, p, v1alpha1.ConditionIdentityReady, isFalse, v1alpha1.ReasonKeysAbsent)
	if !strings.Contains(message, "ConfigMap keys") {
		t.Error(message)
	}
	create(t, &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "keys"}, Data: map[string]string{"jwks": `{"keys":[]}`}})
	s.await("the key set", func(_ *pushv1.RuleSet, secrets *pushv1.Secrets) bool { return len(secrets.GetKeySets()) == 1 })
	wantCondition(t, p, v1alpha1.ConditionIdentityReady, isTrue, v1alpha1.ReasonReady)
}

func TestPodsThatAskedAndRunWithoutASidecarAreCountedAndNamed(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := policy(ns, "api")
	create(t, p)
	bare(t, ns, "shop-bare")
	message := wantCondition(t, p, v1alpha1.ConditionProgrammed, isFalse, v1alpha1.ReasonNotInjected)
	if !strings.Contains(message, "shop-bare: runs without a sidecar") {
		t.Error(message)
	}
	connect(t, guarded(t, ns, "shop-guarded")).serve()
	message = wantCondition(t, p, v1alpha1.ConditionProgrammed, isFalse, v1alpha1.ReasonPartiallyProgrammed)
	if !strings.Contains(message, "shop-bare") || strings.Contains(message, "shop-guarded") {
		t.Error(message)
	}
	if got := summary(t, p); got != "1/2" {
		t.Errorf("summary %q", got)
	}
}

func TestATargetThatIsNotThereAndOneWithoutPods(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := policy(ns, "api")
	p.Spec.TargetRefs = []v1alpha1.TargetRef{{Group: new("apps"), Kind: "Deployment", Name: "shop"}}
	create(t, p)
	message := wantCondition(t, p, v1alpha1.ConditionAccepted, isFalse, v1alpha1.ReasonTargetNotFound)
	if !strings.Contains(message, "Deployment shop") {
		t.Error(message)
	}
	reference := deployment(t, ns, "shop")
	wantCondition(t, p, v1alpha1.ConditionProgrammed, isTrue, v1alpha1.ReasonNoSidecars)
	wantCondition(t, p, v1alpha1.ConditionReady, isTrue, v1alpha1.ReasonReady)

	connect(t, guarded(t, ns, "shop-1", reference)).awaitPolicies(ns + "/api")
	connect(t, guarded(t, ns, "stranger")).awaitPolicies()
}

func TestADefaultPolicyYieldsToOneThatSelectsThePod(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	fallback := policy(ns, "fallback")
	fallback.Spec.Default = new(true)
	create(t, fallback)
	s := connect(t, guarded(t, ns, "shop-1"))
	s.awaitPolicies(ns + "/fallback")
	own := policy(ns, "own")
	own.Spec.Selector = &metav1.LabelSelector{MatchLabels: map[string]string{"app": "shop"}}
	create(t, own)
	s.awaitPolicies(ns + "/own")
}

func newServer(t *testing.T) *push.Server {
	t.Helper()
	metrics, err := push.NewMetrics(prometheus.NewRegistry())
	if err != nil {
		t.Fatal(err)
	}
	return push.NewServer(push.Options{Metrics: metrics, Clock: clockOfTests, Changed: func(string) {}})
}

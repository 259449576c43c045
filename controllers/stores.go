package controllers

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// DefaultStore is the store of a policy that names none.
const DefaultStore = "default"

// storeError tells why a policy has no store.
type storeError struct{ reason, message string }

func (r *storeError) Error() string { return r.message }

func (n *Namespaces) lookUpStore(ctx context.Context, in *inputs, name string) (*v1alpha1.RateLimitStore, error) {
	for _, namespace := range []string{in.namespace.Name, n.OperatorNamespace} {
		store := &v1alpha1.RateLimitStore{}
		err := n.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, store)
		if apierrors.IsNotFound(err) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("get store: %w", err)
		}
		if namespace != in.namespace.Name && !allows(store.Spec.AllowedNamespaces, in.namespace) {
			return nil, &storeError{
				v1alpha1.ReasonStoreNotAllowed,
				fmt.Sprintf("store %s/%s does not allow namespace %s", namespace, name, in.namespace.Name),
			}
		}
		return store, nil
	}
	return nil, &storeError{
		v1alpha1.ReasonStoreNotFound,
		fmt.Sprintf("RateLimitStore %s is neither in namespace %s nor in %s", name, in.namespace.Name, n.OperatorNamespace),
	}
}

func allows(a *v1alpha1.AllowedNamespaces, namespace *corev1.Namespace) bool {
	switch {
	case a == nil:
		return false
	case a.Selector != nil:
		selector, err := metav1.LabelSelectorAsSelector(a.Selector)
		return err == nil && selector.Matches(labels.Set(namespace.Labels))
	default:
		return a.From == v1alpha1.NamespacesAll
	}
}

var errSecretEntry = errors.New("entry is missing")

var topologies = map[v1alpha1.Topology]pushv1.Store_Topology{
	"":                          pushv1.Store_TOPOLOGY_STANDALONE,
	v1alpha1.TopologyStandalone: pushv1.Store_TOPOLOGY_STANDALONE,
	v1alpha1.TopologySentinel:   pushv1.Store_TOPOLOGY_SENTINEL,
	v1alpha1.TopologyCluster:    pushv1.Store_TOPOLOGY_CLUSTER,
}

// describeStore tells how to reach a store, with its credentials; with an error, all that is known of it.
func describeStore(ctx context.Context, c client.Reader, s *v1alpha1.RateLimitStore) (*pushv1.Store, error) {
	out := &pushv1.Store{Name: compile.Name(s.Namespace, s.Name), Topology: pushv1.Store_TOPOLOGY_STANDALONE}
	timeout := s.Spec.Timeout
	if timeout == "" {
		timeout = "50ms"
	}
	d, err := compile.ParseDuration(timeout)
	if err != nil {
		return out, fmt.Errorf("timeout: %w", err)
	}
	out.Timeout = durationpb.New(d)
	if s.Spec.Managed != nil {
		out.Addresses = []string{managedAddress(s)}
		return out, credentials(ctx, c, s.Namespace, managedName(s), out)
	}
	e := s.Spec.External
	out.Topology, out.Addresses, out.MasterName = topologies[e.Topology], e.Addresses, e.MasterName
	if e.AuthSecretRef != nil {
		if err := credentials(ctx, c, s.Namespace, e.AuthSecretRef.Name, out); err != nil {
			return out, err
		}
	}
	if e.TLS != nil {
		return out, describeTLS(ctx, c, s.Namespace, e.TLS, out)
	}
	return out, nil
}

func storeSecret(ctx context.Context, c client.Reader, namespace, name string) (*corev1.Secret, error) {
	var s corev1.Secret
	if err := c.Get(ctx, types.NamespacedName{Namespace: namespace, Name: name}, &s); err != nil {
		return nil, fmt.Errorf("get Secret %s labelled %s=%s: %w", name, v1alpha1.LabelUse, v1alpha1.UseStore, err)
	}
	return &s, nil
}

func credentials(ctx context.Context, c client.Reader, namespace, name string, out *pushv1.Store) error {
	s, err := storeSecret(ctx, c, namespace, name)
	if err != nil {
		return err
	}
	password, found := s.Data["password"]
	if !found {
		return fmt.Errorf("read Secret %s: %w: password", name, errSecretEntry)
	}
	out.Username, out.Password = string(s.Data["username"]), string(password)
	return nil
}

func describeTLS(ctx context.Context, c client.Reader, namespace string, t *v1alpha1.StoreTLS, out *pushv1.Store) error {
	out.Tls = &pushv1.Store_TLS{InsecureSkipVerify: t.InsecureSkipVerify != nil && *t.InsecureSkipVerify}
	if t.CASecretRef != nil {
		s, err := storeSecret(ctx, c, namespace, t.CASecretRef.Name)
		if err != nil {
			return err
		}
		out.Tls.Ca = s.Data["ca.crt"]
	}
	if t.ClientSecretRef != nil {
		s, err := storeSecret(ctx, c, namespace, t.ClientSecretRef.Name)
		if err != nil {
			return err
		}
		out.Tls.Certificate, out.Tls.Key = s.Data["tls.crt"], s.Data["tls.key"]
	}
	return nil
}

// storeCondition carries a store's Ready over to the policies that use it.
func storeCondition(s *v1alpha1.RateLimitStore) metav1.Condition {
	ready := meta.FindStatusCondition(s.Status.Conditions, v1alpha1.ConditionReady)
	if ready == nil {
		return condition(v1alpha1.ConditionStoreReady, false, v1alpha1.ReasonNotReady, "The store was not probed yet")
	}
	return condition(v1alpha1.ConditionStoreReady, ready.Status == metav1.ConditionTrue, ready.Reason, ready.Message)
}

// withStore names the store in a copy, since the compiled policy is shared between passes.
func withStore(p *pushv1.Policy, name string) *pushv1.Policy {
	if p.GetStore() == name {
		return p
	}
	named, ok := proto.Clone(p).(*pushv1.Policy)
	if !ok {
		return p
	}
	named.Store = name
	return named
}

const redisPort = 6379

func managedName(s *v1alpha1.RateLimitStore) string { return "sluice-store-" + s.Name }

func managedAddress(s *v1alpha1.RateLimitStore) string {
	return managedName(s) + "." + s.Namespace + ".svc:" + strconv.Itoa(redisPort)
}

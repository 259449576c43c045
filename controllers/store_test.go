package controllers_test

import (
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/testredis"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// central is a policy that needs a store.
func central(ns, store string) *v1alpha1.RateLimitPolicy {
	p := policy(ns, "api")
	p.Spec.Mode, p.Spec.StoreRef = v1alpha1.ModeCentral, &v1alpha1.StoreRef{Name: store}
	return p
}

func external(ns, name, address string) *v1alpha1.RateLimitStore {
	s := &v1alpha1.RateLimitStore{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: name}}
	s.Spec.External = &v1alpha1.ExternalStore{Addresses: []string{address}}
	return s
}

func TestAStoreThatComesAndGoesShowsInTheStatusOfItsPolicies(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	p := central(ns, "counters")
	create(t, p)
	message := wantCondition(t, p, v1alpha1.ConditionAccepted, isFalse, v1alpha1.ReasonStoreNotFound)
	if !strings.Contains(message, "RateLimitStore counters") {
		t.Error(message)
	}
	server := testredis.Start(t)
	store := external(ns, "counters", server.Addr)
	create(t, store)
	wantCondition(t, p, v1alpha1.ConditionStoreReady, isTrue, v1alpha1.ReasonReady)
	connect(t, guarded(t, ns, "shop-1")).await("the store", func(_ *pushv1.RuleSet, s *pushv1.Secrets) bool {
		return len(s.GetStores()) == 1 && s.GetStores()[0].GetAddresses()[0] == server.Addr
	})
	var now v1alpha1.RateLimitStore
	if err := api.Get(t.Context(), client.ObjectKeyFromObject(store), &now); err != nil {
		t.Fatal(err)
	}
	if !meta.IsStatusConditionTrue(now.Status.Conditions, v1alpha1.ConditionReady) || now.Status.Version == "" || now.Status.UsedMemoryBytes == nil {
		t.Errorf("status %+v", now.Status)
	}
	server.Stop()
	wantCondition(t, p, v1alpha1.ConditionStoreReady, isFalse, v1alpha1.ReasonUnreachable)
}

func TestAStoreOfTheOperatorServesTheNamespacesThatItAllows(t *testing.T) {
	t.Parallel()
	ns := namespace(t)
	address := testredis.Start(t).Addr
	closed, shared := external(operatorNamespace, "closed-"+ns, address), external(operatorNamespace, "shared-"+ns, address)
	shared.Spec.AllowedNamespaces = &v1alpha1.AllowedNamespaces{From: v1alpha1.NamespacesAll}
	create(t, closed, shared)
	p := central(ns, closed.Name)
	create(t, p)
	wantCondition(t, p, v1alpha1.ConditionAccepted, isFalse, v1alpha1.ReasonStoreNotAllowed)
	edit(t, p, func(s *v1alpha1.RateLimitPolicySpec) { s.StoreRef.Name = shared.Name })
	wantCondition(t, p, v1alpha1.ConditionAccepted, isTrue, v1alpha1.ReasonAccepted)
	wantCondition(t, p, v1alpha1.ConditionStoreReady, isTrue, v1alpha1.ReasonReady)
}

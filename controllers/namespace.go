package controllers

import (
	"context"
	"errors"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/util/workqueue"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/event"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
	"github.com/sluice-dev/sluice/internal/push"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// FieldOwner is the operator's name in server-side apply.
const FieldOwner = client.FieldOwner("sluice")

// Pusher is where rules go and acknowledgements come from.
type Pusher interface {
	Want(pod push.Pod, u *pushv1.Update)
	Retain(namespace string, uids map[types.UID]bool)
	State(uid types.UID) push.State
}

// Namespaces reconciles the policies of a namespace with its pods.
type Namespaces struct {
	Client   client.Client
	Pusher   Pusher
	Recorder events.EventRecorder
	KeySets  *KeySets
	// OperatorNamespace is where shared stores and hash keys are.
	OperatorNamespace string
	// CA returns the PEM of the CA that signs the push server's certificate.
	CA func() ([]byte, error)
	// Changed brings the namespaces whose acknowledgements changed.
	Changed <-chan event.GenericEvent

	judged judgements
}

// Setup registers the reconciler. Every object maps to its namespace, so that the queue joins events.
func (n *Namespaces) Setup(mgr ctrl.Manager) error {
	toNamespace := handler.EnqueueRequestsFromMapFunc(func(_ context.Context, o client.Object) []reconcile.Request {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetNamespace()}}}
	})
	named := predicate.NewPredicateFuncs(func(o client.Object) bool { return o.GetNamespace() != "" })
	b := ctrl.NewControllerManagedBy(mgr).Named("namespace").
		For(&corev1.Namespace{}).
		Watches(&v1alpha1.RateLimitPolicy{}, toNamespace, builder.WithPredicates(predicate.GenerationChangedPredicate{})).
		Watches(&v1alpha1.RateLimitStore{}, handler.EnqueueRequestsFromMapFunc(n.usersOfStore), builder.WithPredicates(storeChanged)).
		Watches(&corev1.Pod{}, toNamespace).
		Watches(&corev1.Service{}, toNamespace).
		Watches(&corev1.ConfigMap{}, toNamespace).
		Watches(&corev1.Secret{}, handler.EnqueueRequestsFromMapFunc(n.usersOfSecret), builder.WithPredicates(named)).
		WatchesRawSource(source.Channel(n.Changed, afterAWhile))
	// Targets and the chains of owners matter by being there, not by how they are.
	for _, workload := range []client.Object{
		&appsv1.Deployment{}, &appsv1.StatefulSet{}, &appsv1.DaemonSet{}, &appsv1.ReplicaSet{}, &batchv1.Job{}, &batchv1.CronJob{},
	} {
		b = b.Watches(workload, toNamespace, builder.WithPredicates(comesOrGoes))
	}
	err := b.Complete(n)
	if err != nil {
		return fmt.Errorf("set up the namespace controller: %w", err)
	}
	return nil
}

// joinAcks is how long acknowledgements are collected, so that a thousand make one pass and one write of status.
const joinAcks = 100 * time.Millisecond

var afterAWhile = handler.Funcs{
	GenericFunc: func(_ context.Context, e event.GenericEvent, q workqueue.TypedRateLimitingInterface[reconcile.Request]) {
		q.AddAfter(reconcile.Request{NamespacedName: types.NamespacedName{Name: e.Object.GetNamespace()}}, joinAcks)
	},
}

var comesOrGoes = predicate.Funcs{UpdateFunc: func(event.UpdateEvent) bool { return false }}

// storeChanged leaves out probes that found the store as it was but for the memory in use.
var storeChanged = predicate.Funcs{UpdateFunc: func(e event.UpdateEvent) bool {
	before, isStore := e.ObjectOld.(*v1alpha1.RateLimitStore)
	after, areStores := e.ObjectNew.(*v1alpha1.RateLimitStore)
	return !isStore || !areStores || before.Generation != after.Generation ||
		!equality.Semantic.DeepEqual(before.Status.Conditions, after.Status.Conditions)
}}

// usersOfStore: a store of the operator's namespace may serve every namespace that has policies.
func (n *Namespaces) usersOfStore(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetNamespace() != n.OperatorNamespace {
		return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetNamespace()}}}
	}
	var policies v1alpha1.RateLimitPolicyList
	if err := n.Client.List(ctx, &policies); err != nil {
		ctrl.LoggerFrom(ctx).Error(err, "list the policies that may use a shared store")
		return nil
	}
	seen := map[string]bool{}
	var requests []reconcile.Request
	for i := range policies.Items {
		if name := policies.Items[i].Namespace; !seen[name] {
			seen[name] = true
			requests = append(requests, reconcile.Request{NamespacedName: types.NamespacedName{Name: name}})
		}
	}
	return requests
}

func (n *Namespaces) usersOfSecret(ctx context.Context, o client.Object) []reconcile.Request {
	if o.GetLabels()[v1alpha1.LabelUse] == v1alpha1.UseStore {
		return n.usersOfStore(ctx, o)
	}
	return []reconcile.Request{{NamespacedName: types.NamespacedName{Name: o.GetNamespace()}}}
}

// retryMissing is how soon something is looked at again whose absence no watch reports.
const retryMissing = 5 * time.Second

// Reconcile pushes to each pod of the namespace what it should enforce and writes what the policies' sidecars acknowledged.
func (n *Namespaces) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	in, err := n.gather(ctx, request.Name)
	if apierrors.IsNotFound(err) {
		n.Pusher.Retain(request.Name, nil)
		n.judged.replace(request.Name, nil)
		n.KeySets.Retain(request.Name, nil)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, err
	}
	if err := n.provide(ctx, in); err != nil {
		return reconcile.Result{}, err
	}
	verdicts := make([]*verdict, len(in.policies))
	judged := make(map[types.UID]judgement, len(in.policies))
	for i := range in.policies {
		if verdicts[i], err = n.judge(ctx, in, &in.policies[i]); err != nil {
			return reconcile.Result{}, err
		}
		judged[in.policies[i].UID] = verdicts[i].judgement
	}
	n.judged.replace(request.Name, judged)
	n.KeySets.Retain(request.Name, fetched(verdicts))
	if err := n.push(in, verdicts); err != nil {
		return reconcile.Result{}, err
	}
	result := reconcile.Result{}
	var failed error
	for _, v := range verdicts {
		if v.accepted.Status != metav1.ConditionTrue {
			result.RequeueAfter = retryMissing
		}
		failed = errors.Join(failed, n.report(ctx, in, v))
	}
	return result, failed
}

// fetched lists the addresses of the key sets that are in use.
func fetched(verdicts []*verdict) map[string]bool {
	uris := map[string]bool{}
	for _, v := range verdicts {
		if id := v.enforced.Spec.Identity; id != nil {
			for i := range id.JWT {
				uris[id.JWT[i].JWKS.URI] = true
			}
		}
	}
	return uris
}

// push assembles an Update for each pod that has a sidecar. Pods with equal rules share the compiled policies.
func (n *Namespaces) push(in *inputs, verdicts []*verdict) error {
	live := map[types.UID]bool{}
	n.share(in, verdicts)
	for i := range in.pods {
		p := &in.pods[i]
		if !p.injected {
			continue
		}
		live[p.UID] = true
		update, err := in.assemble(p)
		if err != nil {
			return err
		}
		p.wanted = update
		n.Pusher.Want(push.Pod{Namespace: p.Namespace, Name: p.Name, UID: p.UID}, update)
	}
	n.Pusher.Retain(in.namespace.Name, live)
	return nil
}

// share tells each policy its injected pods, in an order that only changes with them.
func (n *Namespaces) share(in *inputs, verdicts []*verdict) {
	for _, v := range verdicts {
		v.pods = nil
	}
	byName := map[string]*verdict{}
	var enforced []*v1alpha1.RateLimitPolicy
	for _, v := range verdicts {
		byName[v.policy.Name] = v
		if v.compiled != nil {
			enforced = append(enforced, v.enforced)
		}
	}
	for i := range in.pods {
		p := &in.pods[i]
		for _, policy := range compile.Applicable(enforced, p.facts) {
			v := byName[policy.Name]
			v.pods = append(v.pods, p)
			p.verdicts = append(p.verdicts, v)
		}
	}
}

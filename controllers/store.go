package controllers

import (
	"context"
	"fmt"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/events"
	ctrl "sigs.k8s.io/controller-runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// Found is what a probe saw of a store.
type Found struct {
	Version    string
	UsedMemory int64 // bytes
	MaxMemory  int64 // bytes; 0 is no limit
}

// Prober asks a store what it is.
type Prober interface {
	Probe(ctx context.Context, s *pushv1.Store) (Found, error)
}

// Stores reconciles RateLimitStores: it runs the managed ones and probes all.
type Stores struct {
	Client   client.Client
	Prober   Prober
	Recorder events.EventRecorder
	// Image is the image of managed stores that name none.
	Image string
}

const (
	probeAgain      = 3 * time.Second
	probeAgainSoon  = time.Second
	probeTimeout    = 2 * time.Second
	memoryWarnPart  = 8 // tenths of the maximum
	memoryWholePart = 10
)

// Setup registers the reconciler.
func (s *Stores) Setup(mgr ctrl.Manager) error {
	err := ctrl.NewControllerManagedBy(mgr).Named("store").
		For(&v1alpha1.RateLimitStore{}).
		Owns(&appsv1.StatefulSet{}).
		Complete(s)
	if err != nil {
		return fmt.Errorf("set up the store controller: %w", err)
	}
	return nil
}

// Reconcile applies what a managed store consists of, and probes the store.
func (s *Stores) Reconcile(ctx context.Context, request reconcile.Request) (reconcile.Result, error) {
	var store v1alpha1.RateLimitStore
	if err := s.Client.Get(ctx, request.NamespacedName, &store); err != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	if store.DeletionTimestamp != nil {
		return reconcile.Result{}, nil
	}
	if store.Spec.Managed != nil {
		if err := s.applyManaged(ctx, &store); err != nil {
			return reconcile.Result{}, err
		}
	}
	found, err := s.probe(ctx, &store)
	again := probeAgain
	if err != nil {
		again = probeAgainSoon
	}
	return reconcile.Result{RequeueAfter: again}, s.report(ctx, &store, found, err)
}

func (s *Stores) probe(ctx context.Context, store *v1alpha1.RateLimitStore) (Found, error) {
	described, err := describeStore(ctx, s.Client, store)
	if err != nil {
		return Found{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	return s.Prober.Probe(ctx, described)
}

func storeReady(generation int64, found Found, failed error) metav1.Condition {
	ready := condition(v1alpha1.ConditionReady, true, v1alpha1.ReasonReady, "The store answers")
	switch {
	case failed != nil:
		ready = condition(v1alpha1.ConditionReady, false, v1alpha1.ReasonUnreachable, failed.Error())
	case found.MaxMemory > 0 && found.UsedMemory*memoryWholePart > found.MaxMemory*memoryWarnPart:
		ready.Message = "The store answers, and its memory is nearly full: raise it, or use SlidingWindowCounter instead of SlidingWindowLog"
	}
	ready.ObservedGeneration = generation
	return ready
}

func (s *Stores) report(ctx context.Context, before *v1alpha1.RateLimitStore, found Found, failed error) error {
	store := before.DeepCopy()
	status := &store.Status
	status.ObservedGeneration = store.Generation
	status.Topology = v1alpha1.TopologyStandalone
	if e := store.Spec.External; e != nil && e.Topology != "" {
		status.Topology = e.Topology
	}
	ready := storeReady(store.Generation, found, failed)
	// Small changes of the memory in use are not worth a write.
	if summary := fmt.Sprintf("%dMi/%dMi", found.UsedMemory>>20, found.MaxMemory>>20); failed == nil && (summary != status.Summary || found.Version != status.Version) {
		status.Version, status.UsedMemoryBytes, status.MaxMemoryBytes, status.Summary = found.Version, &found.UsedMemory, &found.MaxMemory, summary
	}
	changed := meta.SetStatusCondition(&status.Conditions, ready)
	if equality.Semantic.DeepEqual(before.Status, store.Status) {
		return nil
	}
	if err := s.Client.Status().Patch(ctx, store, client.MergeFrom(before)); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("write status: %w", err)
	}
	was := meta.FindStatusCondition(before.Status.Conditions, v1alpha1.ConditionReady)
	if changed && (was == nil || was.Status != ready.Status) {
		kind := corev1.EventTypeNormal
		if failed != nil {
			kind = corev1.EventTypeWarning
		}
		s.Recorder.Eventf(store, nil, kind, ready.Reason, "Ready", "%s", ready.Message[:min(len(ready.Message), 1000)])
	}
	return nil
}

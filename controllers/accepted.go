package controllers

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"

	appsv1 "k8s.io/api/apps/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/compile"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

// LabelPolicy stands on the ControllerRevisions that keep what was accepted of a policy; its value is the policy's UID.
const LabelPolicy = "sluice.dev/policy-uid"

// accepted is a policy in the last form that was valid.
type accepted struct {
	policy   *v1alpha1.RateLimitPolicy
	compiled *pushv1.Policy
}

// judgement is what was found of one generation.
type judgement struct {
	generation int64
	form       accepted // what is enforced; empty where nothing was ever accepted
	invalid    error    // why the generation is not
}

// judgements of policies, by namespace and UID, so that each generation is compiled once.
type judgements struct {
	mu   sync.Mutex
	made map[string]map[types.UID]judgement
}

func (j *judgements) get(p *v1alpha1.RateLimitPolicy) judgement {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.made[p.Namespace][p.UID]
}

// replace forgets the namespace's policies that are gone.
func (j *judgements) replace(namespace string, made map[types.UID]judgement) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.made == nil {
		j.made = map[string]map[types.UID]judgement{}
	}
	if len(made) == 0 {
		delete(j.made, namespace)
		return
	}
	j.made[namespace] = made
}

// accept compiles a policy, once a generation. If it is not valid, its last accepted form stays in force, from before a
// restart, too.
func (n *Namespaces) accept(ctx context.Context, p *v1alpha1.RateLimitPolicy) (judgement, error) {
	last := n.judged.get(p)
	if last.generation == p.Generation {
		return last, nil
	}
	compiled, invalid := compile.Policy(p)
	if invalid != nil {
		form := last.form
		var err error
		if form.policy == nil {
			form, err = n.recall(ctx, p)
		}
		return judgement{p.Generation, form, invalid}, err
	}
	return judgement{p.Generation, accepted{p.DeepCopy(), compiled}, nil}, n.remember(ctx, p, last.form.policy)
}

func revisionName(p *v1alpha1.RateLimitPolicy) string {
	return fmt.Sprintf("sluice-%s-%d", p.UID, p.Generation)
}

// remember keeps the accepted spec in a ControllerRevision that belongs to the policy, in the place of the one before.
func (n *Namespaces) remember(ctx context.Context, p, before *v1alpha1.RateLimitPolicy) error {
	revision := &appsv1.ControllerRevision{}
	err := n.Client.Get(ctx, types.NamespacedName{Namespace: p.Namespace, Name: revisionName(p)}, revision)
	if err == nil || !apierrors.IsNotFound(err) {
		return err
	}
	data, err := json.Marshal(p.Spec)
	if err != nil {
		return fmt.Errorf("encode spec: %w", err)
	}
	revision.ObjectMeta = metav1.ObjectMeta{
		Namespace: p.Namespace, Name: revisionName(p), Labels: map[string]string{LabelPolicy: string(p.UID)},
		OwnerReferences: []metav1.OwnerReference{{
			APIVersion: v1alpha1.GroupVersion.String(), Kind: "RateLimitPolicy", Name: p.Name, UID: p.UID, Controller: new(true),
		}},
	}
	revision.Data, revision.Revision = runtime.RawExtension{Raw: data}, p.Generation
	if err := n.Client.Create(ctx, revision); err != nil && !apierrors.IsAlreadyExists(err) {
		return fmt.Errorf("keep generation %d of policy %s: %w", p.Generation, p.Name, err)
	}
	if before == nil {
		return nil
	}
	old := &appsv1.ControllerRevision{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: revisionName(before)}}
	if err := n.Client.Delete(ctx, old); client.IgnoreNotFound(err) != nil {
		return fmt.Errorf("drop generation %d of policy %s: %w", before.Generation, p.Name, err)
	}
	return nil
}

// recall finds the newest spec that was accepted; nothing where none was, or where it is no longer valid.
func (n *Namespaces) recall(ctx context.Context, p *v1alpha1.RateLimitPolicy) (accepted, error) {
	var list appsv1.ControllerRevisionList
	err := n.Client.List(ctx, &list, client.InNamespace(p.Namespace), client.MatchingLabels{LabelPolicy: string(p.UID)})
	if err != nil {
		return accepted{}, fmt.Errorf("list what was accepted of policy %s: %w", p.Name, err)
	}
	var newest *appsv1.ControllerRevision
	for i := range list.Items {
		r := &list.Items[i]
		if metav1.IsControlledBy(r, p) && (newest == nil || r.Revision > newest.Revision) {
			newest = r
		}
	}
	if newest == nil {
		return accepted{}, nil
	}
	old := p.DeepCopy()
	old.Generation, old.Spec = newest.Revision, v1alpha1.RateLimitPolicySpec{}
	if err := json.Unmarshal(newest.Data.Raw, &old.Spec); err != nil {
		return accepted{}, fmt.Errorf("read generation %d of policy %s: %w", newest.Revision, p.Name, err)
	}
	compiled, err := compile.Policy(old)
	if err != nil {
		return accepted{}, nil //nolint:nilerr // what an earlier version accepted and this one refuses can't be enforced
	}
	return accepted{old, compiled}, nil
}

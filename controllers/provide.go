package controllers

import (
	"context"
	"crypto/rand"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	corev1ac "k8s.io/client-go/applyconfigurations/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/inject"
)

const (
	hashKeySize  = 32
	hashKeyEntry = "key"
	// useHashKey labels the operator's own Secrets with hash keys. They lie in its namespace, where tenants can't read them.
	useHashKey = "hash-key"
)

// provide makes what the sidecars of a namespace need: the CA of the push server, and the hash key.
func (n *Namespaces) provide(ctx context.Context, in *inputs) error {
	needed := len(in.policies) > 0
	for i := range in.pods {
		needed = needed || in.pods[i].asked || in.pods[i].injected
	}
	if !needed {
		return nil
	}
	// Nothing can be made in a namespace that is going, but its last pods still need their rules and the hash key.
	if in.namespace.DeletionTimestamp == nil {
		if err := n.provideCA(ctx, in.namespace.Name); err != nil {
			return err
		}
	}
	var err error
	in.hashKey, err = n.provideHashKey(ctx, in.namespace.Name)
	return err
}

func (n *Namespaces) provideCA(ctx context.Context, namespace string) error {
	pem, err := n.CA()
	if err != nil {
		return fmt.Errorf("read CA: %w", err)
	}
	var have corev1.ConfigMap
	err = n.Client.Get(ctx, types.NamespacedName{Namespace: namespace, Name: inject.CAConfigMap}, &have)
	if err == nil && have.Data[inject.CAKey] == string(pem) {
		return nil
	}
	want := corev1ac.ConfigMap(inject.CAConfigMap, namespace).WithData(map[string]string{inject.CAKey: string(pem)})
	if err := n.Client.Apply(ctx, want, FieldOwner, client.ForceOwnership); err != nil {
		return fmt.Errorf("apply ConfigMap %s: %w", inject.CAConfigMap, err)
	}
	return nil
}

// provideHashKey never replaces a key: every counter would start anew.
func (n *Namespaces) provideHashKey(ctx context.Context, namespace string) ([]byte, error) {
	name := types.NamespacedName{Namespace: n.OperatorNamespace, Name: "sluice-hash-key-" + namespace}
	var have corev1.Secret
	err := n.Client.Get(ctx, name, &have)
	if err == nil {
		return have.Data[hashKeyEntry], nil
	}
	if !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("get hash key: %w", err)
	}
	key := make([]byte, hashKeySize)
	rand.Read(key)
	secret := &corev1.Secret{
		ObjectMeta: metav1.ObjectMeta{Namespace: name.Namespace, Name: name.Name, Labels: map[string]string{v1alpha1.LabelUse: useHashKey}},
		Data:       map[string][]byte{hashKeyEntry: key},
		Immutable:  new(true),
	}
	if err := n.Client.Create(ctx, secret); err != nil {
		// Another pass may have made it; the cache will know the next time.
		return nil, fmt.Errorf("create hash key: %w", err)
	}
	return key, nil
}

// Package config_test applies what users apply to a real API server.
package config_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/envtest"
)

// build is kustomize build.
func build(t *testing.T, folder string) []*unstructured.Unstructured {
	t.Helper()
	command := exec.CommandContext(t.Context(), "go", "tool", "-modfile=../tools/go.mod", "kustomize", "build", "--load-restrictor=LoadRestrictionsNone", folder)
	var stderr bytes.Buffer
	command.Stderr = &stderr
	text, err := command.Output()
	if err != nil {
		t.Fatalf("kustomize build %s: %v\n%s", folder, err, stderr.String())
	}
	var objects []*unstructured.Unstructured
	decoder := yaml.NewYAMLOrJSONDecoder(bytes.NewReader(text), len(text))
	for {
		object := &unstructured.Unstructured{}
		err := decoder.Decode(object)
		if errors.Is(err, io.EOF) {
			return objects
		}
		if err != nil {
			t.Fatal(err)
		}
		objects = append(objects, object)
	}
}

func find(t *testing.T, objects []*unstructured.Unstructured, kind, name string) *unstructured.Unstructured {
	t.Helper()
	for _, object := range objects {
		if object.GetKind() == kind && object.GetName() == name {
			return object
		}
	}
	t.Fatalf("no %s %s", kind, name)
	return nil
}

func startAPIServer(t *testing.T) client.Client {
	t.Helper()
	if os.Getenv("KUBEBUILDER_ASSETS") == "" {
		t.Fatal("KUBEBUILDER_ASSETS is not set; see CONTRIBUTING.md, or run make test")
	}
	environment := &envtest.Environment{}
	environment.ControlPlane.GetAPIServer().Configure().Set("disable-admission-plugins", "NodeRestriction")
	config, err := environment.Start()
	if err != nil {
		t.Fatalf("start the API server: %v", err)
	}
	t.Cleanup(func() {
		if err := environment.Stop(); err != nil {
			t.Errorf("stop the API server: %v", err)
		}
	})
	api, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	return api
}

// operatorPod is the pod that the operator's Deployment makes.
func operatorPod(t *testing.T, objects []*unstructured.Unstructured) *corev1.Pod {
	t.Helper()
	template, _, err := unstructured.NestedMap(find(t, objects, "Deployment", "sluice-operator").Object, "spec", "template")
	if err != nil {
		t.Fatal(err)
	}
	pod := &corev1.Pod{}
	if err := runtime.DefaultUnstructuredConverter.FromUnstructured(template, pod); err != nil {
		t.Fatal(err)
	}
	pod.Name, pod.Namespace = "sluice-operator-0", "sluice-system"
	return pod
}

func TestDefaultIsAcceptedWholeAndAgain(t *testing.T) {
	t.Parallel()
	api := startAPIServer(t)
	objects := build(t, "default")
	for range 2 {
		for _, object := range objects {
			configuration := client.ApplyConfigurationFromUnstructured(object.DeepCopy())
			if err := api.Apply(t.Context(), configuration, client.FieldOwner("kubectl"), client.ForceOwnership); err != nil {
				t.Fatalf("apply %s %s: %v", object.GetKind(), object.GetName(), err)
			}
		}
	}
	// The namespace enforces PodSecurity "restricted", so the API server says whether the operator keeps to it.
	if err := api.Create(t.Context(), operatorPod(t, objects)); err != nil {
		t.Errorf("the operator's pod: %v", err)
	}
}

func TestImagesCanBeReplaced(t *testing.T) {
	t.Parallel()
	overlay := t.TempDir()
	base, err := filepath.Abs("default")
	if err != nil {
		t.Fatal(err)
	}
	base, err = filepath.Rel(overlay, base)
	if err != nil {
		t.Fatal(err)
	}
	text := "resources: ['" + base + "']\nimages:\n" +
		"- {name: sluice-operator, newName: registry.example.com/operator, newTag: v1}\n" +
		"- {name: sluice-sidecar, newName: registry.example.com/sidecar, newTag: v2}\n"
	if err := os.WriteFile(filepath.Join(overlay, "kustomization.yaml"), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	container := operatorPod(t, build(t, overlay)).Spec.Containers[0]
	if container.Image != "registry.example.com/operator:v1" {
		t.Errorf("operator image %s", container.Image)
	}
	if !slices.ContainsFunc(container.Env, func(env corev1.EnvVar) bool {
		return env.Name == "SIDECAR_IMAGE" && env.Value == "registry.example.com/sidecar:v2"
	}) {
		t.Errorf("sidecar image in %v", container.Env)
	}
}

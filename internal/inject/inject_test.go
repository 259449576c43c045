package inject_test

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
	utilyaml "k8s.io/apimachinery/pkg/util/yaml"
	"sigs.k8s.io/yaml"

	"github.com/sluice-dev/sluice/internal/inject"
)

var update = flag.Bool("update", false, "write the golden files anew")

const (
	inSuffix  = ".in.yaml"
	outSuffix = ".out.yaml"
)

func injector() *inject.Injector {
	return inject.NewInjector("sluice-sidecar:dev", corev1.PullIfNotPresent, "sluice-operator.sluice-system.svc:15200")
}

// readFacts reads a Pod and, where they matter, its Namespace and Services.
func readFacts(t *testing.T, path string) inject.Facts {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	facts := inject.Facts{
		Namespace:         &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}},
		OperatorNamespace: "sluice-system",
	}
	reader := utilyaml.NewYAMLReader(bufio.NewReader(bytes.NewReader(text)))
	for {
		document, err := reader.Read()
		if errors.Is(err, io.EOF) {
			return facts
		}
		if err != nil {
			t.Fatal(err)
		}
		var kind metav1.TypeMeta
		decode(t, document, &kind)
		switch kind.Kind {
		case "Namespace":
			strict(t, document, facts.Namespace)
		case "Service":
			facts.Services = append(facts.Services, corev1.Service{})
			strict(t, document, &facts.Services[len(facts.Services)-1])
		case "Pod":
			facts.Pod = &corev1.Pod{}
			strict(t, document, facts.Pod)
		default:
			t.Fatalf("unexpected kind %q", kind.Kind)
		}
	}
}

func decode(t *testing.T, document []byte, into any) {
	t.Helper()
	if err := yaml.Unmarshal(document, into); err != nil {
		t.Fatal(err)
	}
}

func strict(t *testing.T, document []byte, into any) {
	t.Helper()
	if err := yaml.UnmarshalStrict(document, into); err != nil {
		t.Fatal(err)
	}
}

func injectOnce(t *testing.T, facts inject.Facts) (*corev1.Pod, inject.Verdict) {
	t.Helper()
	pod, verdict, err := injector().Inject(facts)
	if err != nil {
		t.Fatal(err)
	}
	return pod, verdict
}

func cases(t *testing.T) []string {
	t.Helper()
	paths, err := filepath.Glob(filepath.Join("testdata", "*"+inSuffix))
	if err != nil || len(paths) < 12 {
		t.Fatalf("%d cases: %v", len(paths), err)
	}
	return paths
}

func TestInjectedPodsLookAsRecorded(t *testing.T) {
	t.Parallel()
	for _, path := range cases(t) {
		t.Run(strings.TrimSuffix(filepath.Base(path), inSuffix), func(t *testing.T) {
			t.Parallel()
			pod, verdict := injectOnce(t, readFacts(t, path))
			text, err := yaml.Marshal(pod)
			if err != nil {
				t.Fatal(err)
			}
			got := fmt.Sprintf("# %s: %s\n%s", verdict.Outcome, verdict.Reason, text)
			golden := strings.TrimSuffix(path, inSuffix) + outSuffix
			if *update {
				if err := os.WriteFile(golden, []byte(got), 0o600); err != nil {
					t.Fatal(err)
				}
				return
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), got); diff != "" {
				t.Errorf("differs from %s; if that is right, run with -update (-want +got):\n%s", golden, diff)
			}
		})
	}
}

func TestEveryGoldenFileHasACase(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob(filepath.Join("testdata", "*"+outSuffix))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range paths {
		if _, err := os.Stat(strings.TrimSuffix(path, outSuffix) + inSuffix); err == nil {
			continue
		}
		if !*update {
			t.Errorf("%s has no case; run with -update", path)
		} else if err := os.Remove(path); err != nil {
			t.Error(err)
		}
	}
}

func TestInjectingTwiceChangesNothing(t *testing.T) {
	t.Parallel()
	for _, path := range cases(t) {
		facts := readFacts(t, path)
		before := facts.Pod.DeepCopy()
		once, _ := injectOnce(t, facts)
		if diff := cmp.Diff(before, facts.Pod); diff != "" {
			t.Errorf("%s: the pod passed in was changed:\n%s", path, diff)
		}
		facts.Pod = once
		twice, _ := injectOnce(t, facts)
		if diff := cmp.Diff(once, twice); diff != "" {
			t.Errorf("%s (-once +twice):\n%s", path, diff)
		}
	}
}

// otherInjector is another product: it adds a container with a guarded-port probe, an init container that it
// puts first, and takes images from a mirror.
func otherInjector(pod *corev1.Pod) *corev1.Pod {
	pod = pod.DeepCopy()
	if !slices.ContainsFunc(pod.Spec.Containers, func(c corev1.Container) bool { return c.Name == "agent" }) {
		pod.Spec.Containers = append(pod.Spec.Containers, corev1.Container{
			Name: "agent", Image: "agent:1",
			LivenessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{TCPSocket: &corev1.TCPSocketAction{Port: intstr.FromInt32(8080)}}},
		})
		pod.Spec.InitContainers = append([]corev1.Container{{Name: "agent-init", Image: "agent:1"}}, pod.Spec.InitContainers...)
	}
	for _, containers := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range containers {
			if !strings.HasPrefix(containers[i].Image, "mirror/") {
				containers[i].Image = "mirror/" + containers[i].Image
			}
		}
	}
	return pod
}

func TestOrderOfInjectorsDoesNotMatter(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"plain", "named-port", "probes"} {
		facts := readFacts(t, filepath.Join("testdata", name+inSuffix))
		original := facts.Pod

		usFirst, _ := injectOnce(t, facts)
		facts.Pod = otherInjector(usFirst)
		usFirst, _ = injectOnce(t, facts) // the API server asks again, since the other changed the pod

		facts.Pod = otherInjector(original)
		usLast, _ := injectOnce(t, facts)
		usLast = otherInjector(usLast)

		if diff := cmp.Diff(usFirst, usLast); diff != "" {
			t.Errorf("%s (-us first +us last):\n%s", name, diff)
		}
	}
}

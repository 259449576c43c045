package inject_test

import (
	"maps"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/sluice-dev/sluice/api/v1alpha1"
	"github.com/sluice-dev/sluice/internal/inject"
)

func TestSettings(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		key, value string
		want       inject.Settings
		refused    bool
	}{
		{key: v1alpha1.AnnotationInject, value: "enabled", want: inject.Settings{Inject: "enabled"}},
		{key: v1alpha1.AnnotationInject, value: "true", refused: true},
		{key: v1alpha1.AnnotationInterception, value: "named-port", want: inject.Settings{Interception: "named-port"}},
		{key: v1alpha1.AnnotationInterception, value: "", refused: true},
		{key: v1alpha1.AnnotationPorts, value: "9090, 8080", want: inject.Settings{Ports: []int32{8080, 9090}}},
		{key: v1alpha1.AnnotationPorts, value: "65535", want: inject.Settings{Ports: []int32{65535}}},
		{key: v1alpha1.AnnotationPorts, value: "0", refused: true},
		{key: v1alpha1.AnnotationPorts, value: "65536", refused: true},
		{key: v1alpha1.AnnotationPorts, value: "", refused: true},
		{key: v1alpha1.AnnotationPorts, value: "8080,", refused: true},
		{key: v1alpha1.AnnotationPorts, value: "8080,8080", refused: true},
		{key: v1alpha1.AnnotationPorts, value: "+80", refused: true},
		{key: v1alpha1.AnnotationPorts, value: strings.Repeat("1,", 80) + "1", refused: true},
		{key: v1alpha1.AnnotationLogLevel, value: "warn", want: inject.Settings{LogLevel: "warn"}},
		{key: v1alpha1.AnnotationLogLevel, value: "WARN", refused: true},
		{key: v1alpha1.AnnotationDrainTimeout, value: "1m30s", want: inject.Settings{DrainTimeout: 90 * time.Second}},
		{key: v1alpha1.AnnotationDrainTimeout, value: "1h", want: inject.Settings{DrainTimeout: time.Hour}},
		{key: v1alpha1.AnnotationDrainTimeout, value: "1h1ms", refused: true},
		{key: v1alpha1.AnnotationDrainTimeout, value: "0s", refused: true},
		{key: v1alpha1.AnnotationDrainTimeout, value: "-1s", refused: true},
		{key: v1alpha1.AnnotationDrainTimeout, value: "1.5s", refused: true},
		{key: v1alpha1.AnnotationDrainTimeout, value: "30", refused: true},
		{key: v1alpha1.AnnotationProxyProtocol, value: "true", refused: true}, // not yet
		{key: v1alpha1.AnnotationProxyProtocol, value: "false", want: inject.Settings{}},
		{key: v1alpha1.AnnotationProxyProtocol, value: "yes", refused: true},
		{key: v1alpha1.AnnotationOnMissingRules, value: "deny", want: inject.Settings{OnMissingRules: "deny"}},
		{key: v1alpha1.AnnotationOnMissingRules, value: "wait", refused: true},
		{key: v1alpha1.AnnotationSidecarResources, value: `{"limits":{"cpu":"1"}}`, want: inject.Settings{
			Resources: &corev1.ResourceRequirements{Limits: corev1.ResourceList{"cpu": resource.MustParse("1")}},
		}},
		{key: v1alpha1.AnnotationSidecarResources, value: `{"cpu":"1"}`, refused: true},
		{key: v1alpha1.AnnotationSidecarResources, value: `{"limits":{"cpu":"much"}}`, refused: true},
		{key: v1alpha1.AnnotationSidecarResources, value: `{"requests":{"cpu":"2"},"limits":{"cpu":"1"}}`, refused: true},
		{key: v1alpha1.AnnotationSidecarResources, value: `{"claims":[{"name":"gpu"}]}`, refused: true},
		{key: v1alpha1.AnnotationSidecarResources, value: `{} {}`, refused: true},
		{key: "example.com/ports", value: "none of our business", want: inject.Settings{}},
	} {
		got, errs := inject.ParseSettings(map[string]string{c.key: c.value})
		switch {
		case c.refused && (len(errs) != 1 || errs[0].Field != "metadata.annotations["+c.key+"]"):
			t.Errorf("%s: %q: want one error with the annotation's path, got %v", c.key, c.value, errs)
		case !c.refused && len(errs) > 0:
			t.Errorf("%s: %q: %v", c.key, c.value, errs)
		case !c.refused:
			if diff := cmp.Diff(c.want, got); diff != "" {
				t.Errorf("%s: %q (-want +got):\n%s", c.key, c.value, diff)
			}
		}
	}
}

func TestCarry(t *testing.T) {
	t.Parallel()
	type annotations = map[string]string
	on, off := annotations{"sluice.dev/inject": "enabled"}, annotations{"sluice.dev/inject": "disabled"}
	for _, c := range []struct {
		name                                       string
		workload, template, before, templateBefore annotations
		want                                       annotations
	}{
		{name: "nothing", want: annotations{}},
		{name: "a new workload that asks", workload: on, want: on},
		{name: "a template that asks by itself", template: on, want: on},
		{name: "a narrower no", workload: on, template: off, want: off},
		{name: "a narrower yes", workload: off, template: on, want: on},
		{name: "annotated later", workload: on, before: nil, want: on},
		{name: "annotated while nobody listened", workload: on, before: on, want: on},
		{name: "turned off", workload: off, template: on, before: on, templateBefore: on, want: off},
		{name: "turned on again", workload: on, template: off, before: off, templateBefore: off, want: on},
		{name: "taken away", template: on, before: on, templateBefore: on, want: annotations{}},
		{name: "taken away, but the template always differed", template: on, before: off, templateBefore: on, want: on},
		{name: "template edited against the workload", workload: on, template: off, before: on, templateBefore: on, want: off},
		{
			name:     "other keys",
			workload: annotations{"sluice.dev/ports": "8080", "sluice.dev/repair": "rollout", "example.com/a": "b", "sluice.dev/status": "{}"},
			template: annotations{"example.com/c": "d"},
			want:     annotations{"sluice.dev/ports": "8080", "example.com/c": "d"},
		},
	} {
		template := maps.Clone(c.template)
		got, changed := inject.Carry(c.workload, c.template, c.before, c.templateBefore)
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		if changed == maps.Equal(got, c.template) {
			t.Errorf("%s: changed is %t", c.name, changed)
		}
		if !maps.Equal(template, c.template) {
			t.Errorf("%s: the template passed in was changed", c.name)
		}
		if _, again := inject.Carry(c.workload, got, c.before, c.templateBefore); again {
			t.Errorf("%s: asked again, it changes again", c.name)
		}
	}
}

// FuzzSettings shows that no value of an annotation, nor what stands in a pod that somebody copied from another
// cluster or forged, makes the injector fail or never come to rest.
func FuzzSettings(f *testing.F) {
	f.Add("sluice.dev/ports", "8080,9090", "", "")
	f.Add("sluice.dev/interception", "named-port", `{"ports":[{"port":8080,"name":"http","listener":15101}]}`, "[]")
	f.Add("sluice.dev/sidecar-resources", "{}", `{}`, `[{"name":"a","tcp":{"port":1}}]`)
	f.Fuzz(func(t *testing.T, key, value, status, probes string) {
		pod := &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: "shop", Annotations: map[string]string{
				v1alpha1.AnnotationInject: v1alpha1.InjectEnabled, v1alpha1.AnnotationStatus: status, key: value,
			}},
			Spec: corev1.PodSpec{
				InitContainers: []corev1.Container{{Name: inject.SidecarName, Env: []corev1.EnvVar{{Name: inject.EnvProbes, Value: probes}}}},
				Containers: []corev1.Container{{
					Name: "shop", Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {ContainerPort: 9090}},
					ReadinessProbe: &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{
						Path: "/probe/0", Port: intstr.FromInt32(inject.AdminPort),
					}}},
				}},
			},
		}
		facts := inject.Facts{Pod: pod, Namespace: &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "shop"}}}
		once, verdict := injectOnce(t, facts)
		if verdict.Outcome == inject.Injected && !slices.ContainsFunc(once.Spec.InitContainers, func(c corev1.Container) bool {
			return c.Name == inject.SidecarName
		}) {
			t.Error("injected without a sidecar")
		}
		facts.Pod = once
		if twice, _ := injectOnce(t, facts); cmp.Diff(once, twice) != "" {
			t.Errorf("injecting twice differs (-once +twice):\n%s", cmp.Diff(once, twice))
		}
	})
}

package inject

import (
	"encoding/json"
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// Status is the value of the annotation sluice.dev/status on pods, as a JSON object.
type Status struct {
	Outcome      Outcome `json:"outcome"`
	Reason       Reason  `json:"reason"`
	Message      string  `json:"message,omitempty"`
	Interception string  `json:"interception,omitempty"`
	Ports        []Port  `json:"ports,omitempty"`
}

// ReadStatus returns what the injector wrote on a pod; false where it wrote nothing.
func ReadStatus(annotations map[string]string) (Status, bool) {
	var status Status
	text, present := annotations[v1alpha1.AnnotationStatus]
	if !present || json.Unmarshal([]byte(text), &status) != nil {
		return Status{}, false
	}
	return status, true
}

// writeStatus notes the verdict on the pod.
func writeStatus(pod *corev1.Pod, verdict Verdict) error {
	text, err := json.Marshal(Status{
		Outcome: verdict.Outcome, Reason: verdict.Reason, Message: verdict.Message,
		Interception: verdict.Interception, Ports: verdict.Ports,
	})
	if err != nil {
		return fmt.Errorf("write %s: %w", v1alpha1.AnnotationStatus, err)
	}
	if pod.Annotations == nil {
		pod.Annotations = make(map[string]string)
	}
	pod.Annotations[v1alpha1.AnnotationStatus] = string(text)
	return nil
}

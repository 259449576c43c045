package inject

import (
	"bytes"
	"encoding/json"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/validation/field"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// maxDrainTimeout bounds sluice.dev/drain-timeout.
const maxDrainTimeout = time.Hour

// maxPorts bounds sluice.dev/ports: one listener each must fit between 15101 and the decision API's port.
const maxPorts = int(DecisionPort - FirstNamedPort)

// Settings are what a pod's annotations ask for. The zero value is what a pod without annotations asks for.
type Settings struct {
	// Inject is "", enabled or disabled.
	Inject string
	// Interception is "" where nothing is chosen, else redirect, named-port or none.
	Interception string
	// Ports are the guarded ports, sorted; nil means the TCP ports that the containers declare.
	Ports []int32
	// Resources are the sidecar's; nil means the default.
	Resources *corev1.ResourceRequirements
	// LogLevel is "", debug, info, warn or error.
	LogLevel string
	// DrainTimeout is 0 where nothing is chosen.
	DrainTimeout time.Duration
	// OnMissingRules is "", allow or deny.
	OnMissingRules string
}

// settingParsers read one annotation each; the error text ends the sentence "<annotation> …".
func settingParsers() map[string]func(*Settings, string) error {
	return map[string]func(*Settings, string) error{
		v1alpha1.AnnotationInject: func(s *Settings, value string) (err error) {
			s.Inject, err = oneOf(value, v1alpha1.InjectEnabled, v1alpha1.InjectDisabled)
			return err
		},
		v1alpha1.AnnotationInterception: func(s *Settings, value string) (err error) {
			s.Interception, err = oneOf(value, v1alpha1.InterceptionRedirect, v1alpha1.InterceptionNamedPort, v1alpha1.InterceptionNone)
			return err
		},
		v1alpha1.AnnotationPorts: func(s *Settings, value string) (err error) {
			s.Ports, err = parsePorts(value)
			return err
		},
		v1alpha1.AnnotationSidecarResources: func(s *Settings, value string) (err error) {
			s.Resources, err = parseResources(value)
			return err
		},
		v1alpha1.AnnotationLogLevel: func(s *Settings, value string) (err error) {
			s.LogLevel, err = oneOf(value, "debug", "info", "warn", "error")
			return err
		},
		v1alpha1.AnnotationDrainTimeout: func(s *Settings, value string) (err error) {
			s.DrainTimeout, err = parseDrainTimeout(value)
			return err
		},
		v1alpha1.AnnotationProxyProtocol: func(_ *Settings, value string) error {
			text, err := oneOf(value, "true", "false")
			if text == "true" {
				return valueError("is not supported yet; leave it out, or say false")
			}
			return err
		},
		v1alpha1.AnnotationOnMissingRules: func(s *Settings, value string) (err error) {
			s.OnMissingRules, err = oneOf(value, "allow", "deny")
			return err
		},
	}
}

// carriedKeys are the annotations that mean something on a pod, sorted.
func carriedKeys() []string {
	parsers := settingParsers()
	keys := make([]string, 0, len(parsers))
	for key := range parsers {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	return keys
}

// ParseSettings reads the annotations of a pod, a pod template or a workload.
// Every bad value is an error with the annotation's path; annotations of others are not looked at.
func ParseSettings(annotations map[string]string) (Settings, field.ErrorList) {
	var (
		settings Settings
		errs     field.ErrorList
	)
	parsers := settingParsers()
	for _, key := range carriedKeys() {
		value, present := annotations[key]
		if !present {
			continue
		}
		if err := parsers[key](&settings, value); err != nil {
			errs = append(errs, field.Invalid(field.NewPath("metadata", "annotations").Key(key), value, err.Error()))
		}
	}
	return settings, errs
}

// valueError says what a good value looks like.
type valueError string

func (e valueError) Error() string { return string(e) }

func oneOf(value string, allowed ...string) (string, error) {
	if !slices.Contains(allowed, value) {
		return "", valueError("must be one of " + strings.Join(allowed, ", "))
	}
	return value, nil
}

func parsePorts(value string) ([]int32, error) {
	var ports []int32
	for text := range strings.SplitSeq(value, ",") {
		port, err := strconv.ParseUint(strings.TrimSpace(text), 10, 16)
		if err != nil || port == 0 {
			return nil, valueError(`must be port numbers from 1 to 65535 separated by commas, such as "8080,9090"`)
		}
		ports = append(ports, int32(port))
	}
	slices.Sort(ports)
	if len(slices.Compact(slices.Clone(ports))) != len(ports) {
		return nil, valueError("must not name a port twice")
	}
	if len(ports) > maxPorts {
		return nil, valueError("must name at most " + strconv.Itoa(maxPorts) + " ports")
	}
	return ports, nil
}

func parseResources(value string) (*corev1.ResourceRequirements, error) {
	decoder := json.NewDecoder(bytes.NewReader([]byte(value)))
	decoder.DisallowUnknownFields()
	var resources corev1.ResourceRequirements
	if err := decoder.Decode(&resources); err != nil || decoder.More() {
		return nil, valueError(`must be a JSON object such as {"requests":{"cpu":"50m"},"limits":{"memory":"256Mi"}}`)
	}
	if len(resources.Claims) > 0 {
		return nil, valueError("must have requests and limits only")
	}
	for name, limit := range resources.Limits {
		if request, both := resources.Requests[name]; both && request.Cmp(limit) > 0 {
			return nil, valueError("must not request more " + string(name) + " than its limit")
		}
	}
	return &resources, nil
}

var durationForm = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

func parseDrainTimeout(value string) (time.Duration, error) {
	duration, err := time.ParseDuration(value)
	if err != nil || !durationForm.MatchString(value) || duration <= 0 || duration > maxDrainTimeout {
		return 0, valueError("must be a duration up to 1h, such as 30s")
	}
	return duration, nil
}

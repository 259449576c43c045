package compile

import (
	"errors"
	"fmt"
	"regexp"
	"time"

	"github.com/sluice-dev/sluice/api/v1alpha1"
)

// ErrDuration tells that a duration has not the form of GEP-2257.
var ErrDuration = errors.New("must be a duration such as 500ms, 10s or 1h30m")

var durationForm = regexp.MustCompile(`^([0-9]{1,5}(h|m|s|ms)){1,4}$`)

// ParseDuration reads a Gateway API duration (GEP-2257).
func ParseDuration(d v1alpha1.Duration) (time.Duration, error) {
	if !durationForm.MatchString(string(d)) {
		return 0, ErrDuration
	}
	parsed, err := time.ParseDuration(string(d))
	if err != nil {
		return 0, fmt.Errorf("%w: %w", ErrDuration, err)
	}
	return parsed, nil
}

// duration is for what Validate has accepted.
func duration(d v1alpha1.Duration) time.Duration {
	parsed, err := ParseDuration(d)
	if err != nil {
		return 0
	}
	return parsed
}

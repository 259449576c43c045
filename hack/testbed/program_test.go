package testbed

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/internal/clock"
)

func TestWaitingEndsWithTheLastError(t *testing.T) {
	t.Parallel()
	c := clock.NewFake(time.Unix(0, 0))
	cause := errors.New("not there yet")
	for _, want := range []error{cause, nil} {
		_, err := Await(t.Context(), c, time.Second, func() (bool, error) {
			c.Advance(time.Minute)
			return false, want
		})
		if want == nil {
			want = ErrTooLong
		}
		if !errors.Is(err, want) {
			t.Errorf("got %v, want %v", err, want)
		}
	}
}

func TestWaitingEndsWithItsContext(t *testing.T) {
	t.Parallel()
	ctx, cancel := context.WithCancel(t.Context())
	_, err := Await(ctx, clock.NewFake(time.Unix(0, 0)), time.Second, func() (bool, error) { cancel(); return false, nil })
	if !errors.Is(err, context.Canceled) {
		t.Errorf("got %v", err)
	}
}

func TestAProgramsLinesAreShownAndItsFailureTold(t *testing.T) {
	t.Parallel()
	var lines []string
	err := Follow(t.Context(), "", func(line string) { lines = append(lines, line) }, "sh", "-c", "echo one; echo two >&2; exit 3")
	if err == nil || !strings.Contains(err.Error(), "exit status 3") || !slices.Equal(lines, []string{"one", "two"}) {
		t.Errorf("lines %q, error %v", lines, err)
	}
}

func TestTheOverlayFindsTheManifestsOfACheckoutNamedByARelativePath(t *testing.T) {
	t.Parallel()
	scratch := t.TempDir()
	way, err := relative(scratch, ".")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(scratch, way, "testbed.go")); filepath.IsAbs(way) || err != nil {
		t.Errorf("%s: %v", way, err)
	}
}

func TestAnErrorCarriesWhatTheProgramComplainedOf(t *testing.T) {
	t.Parallel()
	out, err := Output(t.Context(), "", "in", "sh", "-c", "cat; echo bad luck >&2; exit 1")
	if out != "in" || err == nil || !strings.Contains(err.Error(), "bad luck") {
		t.Errorf("out %q, error %v", out, err)
	}
}

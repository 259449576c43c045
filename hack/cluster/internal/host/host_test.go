package host

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"
)

const mountTable = `22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:27 / /a rw - tmpfs tmpfs rw
31 30 0:28 / /a/b\040c rw - tmpfs tmpfs rw
32 22 0:29 / /ab rw - tmpfs tmpfs rw
`

func TestMountPointsBelowAFolder(t *testing.T) {
	if got, want := mountPoints(mountTable, "/a"), []string{"/a", "/a/b c"}; !slices.Equal(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestStartTimeIsReadPastOddProgramNames(t *testing.T) {
	stat := "7 (odd) name) S 1 7 7 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 358789 1 1"
	if got, err := parseStartTime(stat); err != nil || got != 358789 {
		t.Errorf("got %d, %v", got, err)
	}
	if _, err := parseStartTime(strings.Replace(stat, ") S", ") Z", 1)); err == nil {
		t.Error("a process that has ended has a start time")
	}
	if _, err := parseStartTime("7 (x) S 1"); err == nil {
		t.Error("no error for half a line")
	}
}

// patientClock waits for real, but only as long as the test's context lives.
type patientClock struct{}

func (patientClock) Now() time.Time { return time.Unix(0, 0) }
func (patientClock) Sleep(ctx context.Context, d time.Duration) error {
	short, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	<-short.Done()
	return ctx.Err()
}

func TestAProcessIsStartedLoggedAndKilled(t *testing.T) {
	log := filepath.Join(t.TempDir(), "log")
	ended := make(chan error, 1)
	p, err := Start(
		Spec{Name: "sleeper", Path: Find("sh"), Args: []string{"-c", "echo hello; exec tail -f /dev/null"}, Log: log},
		func(_ Process, err error) { ended <- err },
	)
	if err != nil {
		t.Fatal(err)
	}
	if !p.Alive() {
		t.Error("it does not run")
	}
	if err := p.Kill(t.Context(), patientClock{}); err != nil {
		t.Error(err)
	}
	if err := <-ended; err == nil {
		t.Error("it ended by itself")
	}
	if p.Alive() {
		t.Error("it still runs")
	}
	if err := p.Kill(t.Context(), patientClock{}); err != nil {
		t.Errorf("killing it again: %v", err)
	}
}

func TestAnotherProcessWithTheSameIDIsLeftAlone(t *testing.T) {
	self := Process{Name: "test", PID: os.Getpid(), Start: 1}
	if self.Alive() {
		t.Error("a process that started at another time counts as the same")
	}
	if err := self.Kill(t.Context(), patientClock{}); err != nil {
		t.Error(err)
	}
}

func TestRunTellsWhatWentWrong(t *testing.T) {
	err := Run(t.Context(), "sh", "-c", "echo no such thing >&2; exit 3")
	if err == nil || err.Error() != "sh: exit status 3: no such thing" {
		t.Errorf("got %v", err)
	}
}

func TestProxySettingsDoNotReachTheCluster(t *testing.T) {
	t.Setenv("HTTPS_PROXY", "http://127.0.0.1:1")
	out, err := Output(t.Context(), nil, "env")
	if err != nil || strings.Contains(out, "PROXY") {
		t.Errorf("%v:\n%s", err, out)
	}
}

func TestTailAndCopyOfLogs(t *testing.T) {
	from, to := t.TempDir(), t.TempDir()
	name := filepath.Join(from, "pod", "0.log")
	if err := os.MkdirAll(filepath.Dir(name), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte("one\ntwo\nthree\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time over the first
		if err := CopyFiles(to, from); err != nil {
			t.Fatal(err)
		}
	}
	if got := Tail(filepath.Join(to, "pod", "0.log"), 2); got != "two\nthree" {
		t.Errorf("got %q", got)
	}
	if got := Tail(filepath.Join(to, "nothing"), 2); got != "" {
		t.Errorf("got %q of a file that is not there", got)
	}
}

func TestControlGroupsGoFromTheInnermostOutwards(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "group")
	if err := os.MkdirAll(filepath.Join(dir, "kubepods", "pod1"), 0o700); err != nil {
		t.Fatal(err)
	}
	for range 2 { // the second time there is nothing left
		if err := removeGroups(dir); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("it is still there (%v)", err)
	}
}

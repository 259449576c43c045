package host

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/clock"
)

// Spec describes a process that outlives the program that starts it.
type Spec struct {
	// Name tells the process from the cluster's others.
	Name string
	Path string
	Args []string
	// Namespace is the network namespace to run in; empty is the machine's own.
	Namespace string
	// Log is the file that gets all it prints.
	Log string
}

// Process is a started process, as recorded for the one who will end it. Its
// start time tells it from a later process that was given the same id.
type Process struct {
	Name  string `json:"name"`
	PID   int    `json:"pid"`
	Start uint64 `json:"start"`
	Log   string `json:"log"`
}

// Start starts a process in a session of its own, so that a Ctrl-C meant for the
// caller does not reach it. ended is called when it ends while the caller lives.
func Start(s Spec, ended func(Process, error)) (Process, error) {
	log, err := os.OpenFile(s.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return Process{}, fmt.Errorf("opening the log of %s: %w", s.Name, err)
	}
	defer log.Close()
	program, args := s.Path, s.Args
	if s.Namespace != "" {
		program, args = Find("nsenter"), enter(s.Namespace, s.Path, s.Args)
	}
	cmd := exec.Command(program, args...) //nolint:gosec,noctx // it has to outlive every context
	cmd.Env = environment()
	cmd.Stdout, cmd.Stderr = log, log
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := cmd.Start(); err != nil {
		return Process{}, fmt.Errorf("starting %s: %w", s.Name, err)
	}
	p := Process{Name: s.Name, PID: cmd.Process.Pid, Log: s.Log}
	p.Start, err = startTime(p.PID)
	go func() { ended(p, cmd.Wait()) }()
	if err != nil {
		return p, fmt.Errorf("%s ended at once: %w", s.Name, err)
	}
	return p, nil
}

// Alive says whether that very process still runs.
func (p Process) Alive() bool {
	start, err := startTime(p.PID)
	return err == nil && start == p.Start
}

// Kill ends the process and waits until it is gone. There is nothing in a
// cluster that is taken down that would be worth a gentler end.
func (p Process) Kill(ctx context.Context, c clock.Clock) error {
	const pace = 10 * time.Millisecond
	for p.Alive() {
		if err := syscall.Kill(p.PID, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending %s (process %d): %w", p.Name, p.PID, err)
		}
		if err := c.Sleep(ctx, pace); err != nil {
			return fmt.Errorf("%s (process %d) does not end: %w", p.Name, p.PID, err)
		}
	}
	return nil
}

// startTime reads when a process started, in the kernel's ticks since boot. A
// process that has ended and only waits to be collected counts as gone.
func startTime(pid int) (uint64, error) {
	stat, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0, err
	}
	return parseStartTime(string(stat))
}

// parseStartTime reads the start time out of a line of /proc/PID/stat. The
// program's name, in parentheses, may itself hold spaces and parentheses.
func parseStartTime(stat string) (uint64, error) {
	const stateField, startField = 0, 19
	fields := strings.Fields(stat[strings.LastIndexByte(stat, ')')+1:])
	if len(fields) <= startField {
		return 0, errors.New("unreadable process status")
	}
	if fields[stateField] == "Z" || fields[stateField] == "X" {
		return 0, os.ErrProcessDone
	}
	return strconv.ParseUint(fields[startField], 10, 64)
}

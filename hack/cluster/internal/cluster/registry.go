package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

// RegistryDir holds one file for each cluster of this machine. It is emptied by
// a reboot, as are processes and networks.
const RegistryDir = "/run/sluice-cluster"

// State is what is recorded of a cluster, from before its first process starts
// until its last trace is gone.
type State struct {
	Plan Plan `json:"plan"`
	// Ready says that up came to its end.
	Ready     bool           `json:"ready"`
	Processes []host.Process `json:"processes"`
}

// Registry keeps the states of the machine's clusters.
type Registry struct{ Dir string }

// ErrNoCluster says that there is no cluster of the name.
var ErrNoCluster = errors.New("no such cluster")

func (r Registry) file(name string) string { return filepath.Join(r.Dir, name+".json") }

// Claim records a new cluster in a slot that is free: no other cluster has it
// and its addresses are not the machine's own.
func (r Registry) Claim(p Plan) (*State, error) {
	unlock, err := r.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	others, err := r.All()
	if err != nil {
		return nil, err
	}
	slots := map[int]bool{}
	for _, other := range others {
		if other.Plan.Name == p.Name {
			return nil, other.inTheWay()
		}
		slots[other.Plan.Slot] = true
	}
	own := machineAddresses()
	for p.Slot = range Slots {
		if slots[p.Slot] || p.overlaps(own) {
			continue
		}
		if err := p.Check(); err != nil {
			return nil, err
		}
		s := &State{Plan: p}
		return s, r.Save(s)
	}
	return nil, &host.UnfitError{Part: "the network", Why: "every part of 198.18.0.0/15 is in use here"}
}

// inTheWay explains why a cluster's name cannot be claimed.
func (s State) inTheWay() error {
	if s.Ready {
		return fmt.Errorf("cluster %q is up already; export KUBECONFIG=%s to use it, or run down first", s.Plan.Name, s.Plan.Kubeconfig())
	}
	return fmt.Errorf("cluster %q is being started, or its start was broken off; run down first", s.Plan.Name)
}

// overlaps says whether the machine has an address within the plan's ranges.
func (p Plan) overlaps(own []netip.Addr) bool {
	for _, a := range own {
		if p.ClusterRange().Contains(a) || p.ServiceRange().Contains(a) {
			return true
		}
	}
	return false
}

// machineAddresses lists the addresses of the machine's own links.
func machineAddresses() []netip.Addr {
	var own []netip.Addr
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	for _, a := range addresses {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			own = append(own, prefix.Addr())
		}
	}
	return own
}

// Save writes a state whole or not at all.
func (r Registry) Save(s *State) error {
	content, err := json.MarshalIndent(s, "", "  ")
	if err != nil {
		return fmt.Errorf("recording cluster %s: %w", s.Plan.Name, err)
	}
	unfinished := filepath.Join(r.Dir, "."+s.Plan.Name+".unfinished")
	if err := os.WriteFile(unfinished, append(content, '\n'), 0o600); err != nil {
		return fmt.Errorf("recording cluster %s: %w", s.Plan.Name, err)
	}
	if err := os.Rename(unfinished, r.file(s.Plan.Name)); err != nil {
		return fmt.Errorf("recording cluster %s: %w", s.Plan.Name, err)
	}
	return nil
}

// Load reads the state of the named cluster, or returns ErrNoCluster.
func (r Registry) Load(name string) (*State, error) {
	content, err := os.ReadFile(r.file(name))
	if os.IsNotExist(err) {
		return nil, fmt.Errorf("%w: %q", ErrNoCluster, name)
	}
	if err != nil {
		return nil, fmt.Errorf("reading what is recorded of cluster %s: %w", name, err)
	}
	var s State
	if err := json.Unmarshal(content, &s); err != nil {
		return nil, fmt.Errorf("reading what is recorded of cluster %s: %w", name, err)
	}
	return &s, nil
}

// All reads the states of all clusters, by name.
func (r Registry) All() ([]State, error) {
	files, err := filepath.Glob(r.file("[a-z]*"))
	if err != nil {
		return nil, fmt.Errorf("listing clusters: %w", err)
	}
	var all []State
	for _, file := range files {
		s, err := r.Load(strings.TrimSuffix(filepath.Base(file), ".json"))
		if errors.Is(err, ErrNoCluster) {
			continue // it ended meanwhile
		}
		if err != nil {
			return nil, err
		}
		all = append(all, *s)
	}
	return all, nil
}

// Release forgets a cluster, and the registry itself with the last one.
func (r Registry) Release(name string) error {
	unlock, err := r.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := os.Remove(r.file(name)); err != nil && !os.IsNotExist(err) {
		return fmt.Errorf("forgetting cluster %s: %w", name, err)
	}
	others, err := r.All()
	if err != nil || len(others) > 0 {
		return err
	}
	return os.RemoveAll(r.Dir)
}

// lock keeps two programs from changing the list of clusters at once.
func (r Registry) lock() (unlock func(), err error) {
	for {
		file, err := r.openLocked()
		if err != nil {
			return nil, fmt.Errorf("locking the list of clusters: %w", err)
		}
		// Whoever held the lock before may have removed the registry, and then this
		// is the lock of nothing.
		if held, err := file.Stat(); err == nil {
			if current, err := os.Stat(file.Name()); err == nil && os.SameFile(held, current) {
				return func() { _ = file.Close() }, nil
			}
		}
		_ = file.Close()
	}
}

func (r Registry) openLocked() (*os.File, error) {
	if err := os.MkdirAll(r.Dir, 0o750); err != nil {
		return nil, err
	}
	file, err := os.OpenFile(filepath.Join(r.Dir, "lock"), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(file.Fd()), syscall.LOCK_EX); err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

package cluster

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

func TestClusterSlotsAreGivenOutOnceAndTakenBack(t *testing.T) {
	r := Registry{Dir: filepath.Join(t.TempDir(), "registry")}
	first := claim(t, r, "one")
	second := claim(t, r, "two")
	if first.Plan.Slot == second.Plan.Slot {
		t.Errorf("two clusters in slot %d", first.Plan.Slot)
	}
	if err := r.Release("one"); err != nil {
		t.Fatal(err)
	}
	if third := claim(t, r, "three"); third.Plan.Slot != first.Plan.Slot {
		t.Errorf("slot %d was free, but the next cluster got %d", first.Plan.Slot, third.Plan.Slot)
	}
	for _, name := range []string{"two", "three", "never"} {
		if err := r.Release(name); err != nil {
			t.Errorf("releasing %s: %v", name, err)
		}
	}
	if _, err := os.Stat(r.Dir); !os.IsNotExist(err) {
		t.Errorf("the registry outlived its last cluster (%v)", err)
	}
}

func claim(t *testing.T, r Registry, name string) *State {
	t.Helper()
	s, err := r.Claim(Plan{Name: name, Dir: "/x/" + name, Nodes: 1})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestANameCannotBeClaimedTwice(t *testing.T) {
	r := Registry{Dir: t.TempDir()}
	s := claim(t, r, "dev")
	_, err := r.Claim(s.Plan)
	if err == nil || !strings.Contains(err.Error(), "run down first") {
		t.Errorf("while it is starting: %v", err)
	}
	s.Ready = true
	if err := r.Save(s); err != nil {
		t.Fatal(err)
	}
	_, err = r.Claim(s.Plan)
	if err == nil || !strings.Contains(err.Error(), "is up already; export KUBECONFIG=/x/dev/kubeconfig") {
		t.Errorf("while it is up: %v", err)
	}
}

func TestWhenAllSlotsAreTakenTheMachineIsUnfit(t *testing.T) {
	r := Registry{Dir: t.TempDir()}
	var err error
	for i := 0; err == nil && i <= Slots; i++ {
		_, err = r.Claim(Plan{Name: "c" + string(rune('a'+i)), Dir: "/x", Nodes: 1})
	}
	if _, unfit := errors.AsType[*host.UnfitError](err); !unfit {
		t.Errorf("got %v, want an UnfitError", err)
	}
}

func TestStateSurvivesSavingAndLoading(t *testing.T) {
	r := Registry{Dir: t.TempDir()}
	s := claim(t, r, "dev")
	s.Processes = []host.Process{{Name: "etcd", PID: 7, Start: 42, Log: "/x/etcd.log"}}
	if err := r.Save(s); err != nil {
		t.Fatal(err)
	}
	got, err := r.Load("dev")
	if err != nil {
		t.Fatal(err)
	}
	if got.Plan != s.Plan || len(got.Processes) != 1 || got.Processes[0] != s.Processes[0] {
		t.Errorf("saved %+v, loaded %+v", s, got)
	}
	if _, err := r.Load("other"); !errors.Is(err, ErrNoCluster) {
		t.Errorf("loading what is not there: %v", err)
	}
}

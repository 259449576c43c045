package cluster

import (
	"net/netip"
	"slices"
	"strings"
	"testing"
)

func testPlan() Plan {
	return Plan{Name: "dev", Slot: 1, Dir: "/var/lib/x", Nodes: 2}
}

func TestAddressesOfASlot(t *testing.T) {
	p := testPlan()
	for what, got := range map[string]string{
		"198.18.63.1":              p.HostAddress().String(),
		"198.18.63.3":              p.NodeAddress(1).String(),
		"198.18.33.0/24":           p.PodRange(1).String(),
		"198.18.32.0/21":           p.PodsRange().String(),
		"198.18.32.0/19":           p.ClusterRange().String(),
		"198.19.32.0/19":           p.ServiceRange().String(),
		"198.19.32.1":              p.APIServiceAddress().String(),
		"198.19.32.10":             p.DNSAddress().String(),
		"127.18.0.2":               p.Loopback().String(),
		"https://198.18.63.1:6443": p.Server(),
	} {
		if got != what {
			t.Errorf("got %s, want %s", got, what)
		}
	}
}

func TestSlotsShareNoAddressAndStayInTheBenchmarkRange(t *testing.T) {
	benchmark := netip.MustParsePrefix("198.18.0.0/15")
	var seen []netip.Prefix
	for slot := range Slots {
		p := Plan{Name: "dev", Slot: slot, Dir: "/x", Nodes: MaxNodes}
		for _, r := range []netip.Prefix{p.ClusterRange(), p.ServiceRange()} {
			if !benchmark.Contains(r.Addr()) || r.Masked() != r {
				t.Errorf("slot %d: %s is not a range within %s", slot, r, benchmark)
			}
			if i := slices.IndexFunc(seen, r.Overlaps); i >= 0 {
				t.Errorf("slot %d: %s overlaps %s", slot, r, seen[i])
			}
			seen = append(seen, r)
		}
		for node := range MaxNodes {
			if !p.PodsRange().Contains(p.PodRange(node).Addr()) {
				t.Errorf("slot %d: the pods of node %d are outside %s", slot, node, p.PodsRange())
			}
			if p.PodsRange().Contains(p.NodeAddress(node)) || !p.ClusterRange().Contains(p.NodeAddress(node)) {
				t.Errorf("slot %d: node %d has the address %s", slot, node, p.NodeAddress(node))
			}
		}
	}
}

func TestPlansThatCannotWorkAreRefused(t *testing.T) {
	if err := testPlan().Check(); err != nil {
		t.Errorf("a good plan: %v", err)
	}
	for want, p := range map[string]Plan{
		"name":          {Name: "Dev", Dir: "/x", Nodes: 1},
		"name ":         {Name: "../x", Dir: "/x", Nodes: 1},
		"1 to 8 nodes":  {Name: "dev", Dir: "/x", Nodes: 9},
		"slot":          {Name: "dev", Dir: "/x", Nodes: 1, Slot: Slots},
		"absolute path": {Name: "dev", Dir: "x", Nodes: 1},
	} {
		if err := p.Check(); err == nil || !strings.Contains(err.Error(), strings.TrimSpace(want)) {
			t.Errorf("%+v: got %v, want an error about %s", p, err, want)
		}
	}
}

func TestLinkNamesFitTheKernel(t *testing.T) {
	const longest = 15
	p := Plan{Name: strings.Repeat("n", 16), Slot: Slots - 1, Nodes: MaxNodes}
	if name := p.HostLink(); len(name) > longest {
		t.Errorf("%s is too long for a link", name)
	}
}

func TestNodesGetNoDefaultRoute(t *testing.T) {
	p := testPlan()
	lines := slices.Concat(p.machineLinks(), p.switchLinks(), p.nodeLinks(0), p.nodeLinks(1), p.machineRoutes())
	for _, line := range lines {
		if strings.Contains(line, "default") || strings.Contains(line, "0.0.0.0") {
			t.Errorf("a way out: %s", line)
		}
	}
}

func TestNodesAndMachineReachAllPods(t *testing.T) {
	p := testPlan()
	for where, want := range map[string]string{
		"node 0":  "route add 198.18.33.0/24 via 198.18.63.3",
		"node 1":  "route add 198.18.32.0/24 via 198.18.63.2",
		"machine": "route add 198.18.33.0/24 via 198.18.63.3",
		"service": "route add 198.19.32.0/19 via 198.18.63.2",
	} {
		lines := map[string][]string{
			"node 0": p.nodeLinks(0), "node 1": p.nodeLinks(1), "machine": p.machineRoutes(), "service": p.machineRoutes(),
		}[where]
		if !slices.Contains(lines, want) {
			t.Errorf("%s: no %q in %q", where, want, lines)
		}
	}
}

// Package cluster starts, describes and ends a Kubernetes cluster on this
// machine: the control plane as plain processes, each node in a network
// namespace of its own, pods in a real container runtime.
package cluster

import (
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
)

// Limits of the address plan.
const (
	// Slots is how many clusters fit beside each other.
	Slots = 8
	// MaxNodes is how many nodes one cluster can have.
	MaxNodes = 8
)

// ClustersDir holds the folders of clusters unless they are told otherwise. It is
// on a real file system wherever Linux follows its own standard, which container
// images need.
const ClustersDir = "/var/lib/sluice-cluster"

// Plan fixes everything about a cluster that has a name or an address. It is
// computed, not discovered, so that ending a cluster needs no memory of how far
// starting it came.
//
// All addresses are from 198.18.0.0/15, the range set aside for benchmarks
// (RFC 2544), which no real network uses. Each slot owns 32 of its networks of
// 256 addresses: one a node for its pods, the last for the nodes themselves,
// and as many again, in the upper half, for Services.
type Plan struct {
	Name  string `json:"name"`
	Slot  int    `json:"slot"`
	Dir   string `json:"dir"`
	Nodes int    `json:"nodes"`
}

const (
	networksPerSlot = 32
	linkNetwork     = networksPerSlot - 1
	slotBits        = 19
	podsBits        = 21 // MaxNodes networks
	networkBits     = 24

	hostNumber      = 1
	firstNodeNumber = 2
	dnsNumber       = 10
)

var validName = regexp.MustCompile(`^[a-z][a-z0-9-]{0,15}$`)

// Check refuses plans that cannot work.
func (p Plan) Check() error {
	switch {
	case !validName.MatchString(p.Name):
		return fmt.Errorf("a cluster's name is up to 16 lower-case letters, digits and dashes, not %q", p.Name)
	case p.Nodes < 1 || p.Nodes > MaxNodes:
		return fmt.Errorf("a cluster has 1 to %d nodes, not %d", MaxNodes, p.Nodes)
	case p.Slot < 0 || p.Slot >= Slots:
		return fmt.Errorf("there are %d slots for clusters, no slot %d", Slots, p.Slot)
	case !filepath.IsAbs(p.Dir):
		return fmt.Errorf("the cluster's folder %q is not an absolute path", p.Dir)
	}
	return nil
}

// address gives the address with that number in one of the slot's networks.
func (p Plan) address(half, network, number int) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("198.%d.%d.%d", 18+half, p.Slot*networksPerSlot+network, number))
}

// HostAddress is the machine's own end of the link to the nodes, where the API
// server listens.
func (p Plan) HostAddress() netip.Addr { return p.address(0, linkNetwork, hostNumber) }

// NodeAddress is the address of a node.
func (p Plan) NodeAddress(node int) netip.Addr {
	return p.address(0, linkNetwork, firstNodeNumber+node)
}

// PodRange is where a node's pods have their addresses.
func (p Plan) PodRange(node int) netip.Prefix {
	return netip.PrefixFrom(p.address(0, node, 0), networkBits)
}

// PodsRange holds the pods of all nodes, but not the nodes themselves.
func (p Plan) PodsRange() netip.Prefix {
	return netip.PrefixFrom(p.address(0, 0, 0), podsBits)
}

// ClusterRange holds all pods and nodes.
func (p Plan) ClusterRange() netip.Prefix {
	return netip.PrefixFrom(p.address(0, 0, 0), slotBits)
}

// ServiceRange is where Services have their addresses.
func (p Plan) ServiceRange() netip.Prefix {
	return netip.PrefixFrom(p.address(1, 0, 0), slotBits)
}

// APIServiceAddress is the Service address of the API server, by rule the first.
func (p Plan) APIServiceAddress() netip.Addr { return p.address(1, 0, hostNumber) }

// DNSAddress is the Service address of the cluster's DNS.
func (p Plan) DNSAddress() netip.Addr { return p.address(1, 0, dnsNumber) }

// Loopback is the address for what only the control plane itself may reach.
func (p Plan) Loopback() netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("127.18.0.%d", 1+p.Slot))
}

// Server is the URL of the API server.
func (p Plan) Server() string { return "https://" + p.HostAddress().String() + ":6443" }

// HostLink is the machine's network link to the nodes.
func (p Plan) HostLink() string { return "sluice" + strconv.Itoa(p.Slot) }

// SwitchNamespace holds the bridge that joins the nodes and the machine. It is
// not in the machine's own namespace, where other people's packet filters are.
func (p Plan) SwitchNamespace() string { return p.prefix() + "-switch" }

// NodeNamespace is the network namespace of a node.
func (p Plan) NodeNamespace(node int) string { return p.prefix() + "-node" + strconv.Itoa(node) }

// ControlGroup is the parent of all groups of a node's pods.
func (p Plan) ControlGroup(node int) string { return p.NodeNamespace(node) }

// NodeName is a node's name in Kubernetes.
func (p Plan) NodeName(node int) string { return p.Name + "-node" + strconv.Itoa(node) }

func (p Plan) prefix() string { return "sluice-" + p.Name }

// Kubeconfig is the file that gives all rights on the cluster.
func (p Plan) Kubeconfig() string { return p.file("kubeconfig") }

// Logs is the folder of all processes' logs.
func (p Plan) Logs() string { return p.file("logs") }

// file names a file in the cluster's folder.
func (p Plan) file(parts ...string) string {
	return filepath.Join(append([]string{p.Dir}, parts...)...)
}

// nodeFile names a file in a node's folder.
func (p Plan) nodeFile(node int, parts ...string) string {
	return p.file(append([]string{"node" + strconv.Itoa(node)}, parts...)...)
}

// logFile names the log of a process.
func (p Plan) logFile(process string) string { return p.file("logs", process+".log") }

// marker is the file by which a folder is known to be a cluster's, and so safe
// to remove.
func (p Plan) marker() string { return p.file(".sluice-cluster") }

// perNode joins what lines gives for each node.
func (p Plan) perNode(lines func(node int) []string) []string {
	lists := make([][]string, p.Nodes)
	for node := range lists {
		lists[node] = lines(node)
	}
	return slices.Concat(lists...)
}

// everyNode calls do for each node, whether others fail or not.
func (p Plan) everyNode(do func(node int) error) error {
	errs := make([]error, p.Nodes)
	for node := range p.Nodes {
		errs[node] = do(node)
	}
	return errors.Join(errs...)
}

// eachNode calls do for each node in turn until one fails.
func (p Plan) eachNode(do func(node int) error) error {
	for node := range p.Nodes {
		if err := do(node); err != nil {
			return fmt.Errorf("node %d: %w", node, err)
		}
	}
	return nil
}

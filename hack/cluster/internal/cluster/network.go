package cluster

import (
	"context"
	"errors"
	"fmt"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

// buildNetwork joins the machine and its nodes: a namespace with a bridge in it,
// one link from there to the machine and one to each node.
//
// Nothing gets a default route, so no packet of a pod can leave the plan's
// ranges. The machine reaches pods directly and Services through the first
// node, where kube-proxy's rules translate them.
func (c *Cluster) buildNetwork(ctx context.Context) error {
	p := c.state.Plan
	if err := host.IP(ctx, "", p.machineLinks()); err != nil {
		return err
	}
	if err := host.IP(ctx, p.SwitchNamespace(), p.switchLinks()); err != nil {
		return err
	}
	err := p.eachNode(func(node int) error {
		if err := host.IP(ctx, p.NodeNamespace(node), p.nodeLinks(node)); err != nil {
			return err
		}
		return host.InNamespace(ctx, p.NodeNamespace(node), "sh", "-c", forwarding)
	})
	if err != nil {
		return err
	}
	return host.IP(ctx, "", p.machineRoutes())
}

// forwarding makes a node pass packets on, and shows kube-proxy's rules those
// between two pods of the node, which otherwise cross the bridge unseen.
const forwarding = "echo 1 > /proc/sys/net/ipv4/ip_forward && echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables"

// machineLinks are ip commands for the machine's own namespace.
func (p Plan) machineLinks() []string {
	return append(
		[]string{
			"netns add " + p.SwitchNamespace(),
			fmt.Sprintf("link add name %s type veth peer name machine netns %s", p.HostLink(), p.SwitchNamespace()),
			fmt.Sprintf("addr add %s/%d dev %s", p.HostAddress(), networkBits, p.HostLink()),
			fmt.Sprintf("link set %s up", p.HostLink()),
		},
		p.perNode(func(node int) []string { return []string{"netns add " + p.NodeNamespace(node)} })...)
}

// switchLinks are ip commands for the switch's namespace.
func (p Plan) switchLinks() []string {
	return append(
		[]string{
			"link add name switch type bridge",
			"link set switch up",
			"link set machine master switch up",
		},
		p.perNode(func(node int) []string {
			return []string{
				fmt.Sprintf("link add name node%d type veth peer name uplink netns %s", node, p.NodeNamespace(node)),
				fmt.Sprintf("link set node%d master switch up", node),
			}
		})...)
}

// nodeLinks are ip commands for a node's namespace. The route for Services only
// lets the node's own processes begin to call one; kube-proxy's rules then say
// where the packet really goes.
func (p Plan) nodeLinks(node int) []string {
	return append(
		[]string{
			"link set lo up",
			fmt.Sprintf("addr add %s/%d dev uplink", p.NodeAddress(node), networkBits),
			"link set uplink up",
			fmt.Sprintf("route add %s dev uplink", p.ServiceRange()),
		},
		p.perNode(func(other int) []string {
			if other == node {
				return nil
			}
			return []string{p.routeToPods(other)}
		})...)
}

// machineRoutes are ip commands for the machine's own namespace, once the nodes
// can be reached.
func (p Plan) machineRoutes() []string {
	return append(
		[]string{fmt.Sprintf("route add %s via %s", p.ServiceRange(), p.NodeAddress(0))},
		p.perNode(func(node int) []string { return []string{p.routeToPods(node)} })...)
}

func (p Plan) routeToPods(node int) string {
	return fmt.Sprintf("route add %s via %s", p.PodRange(node), p.NodeAddress(node))
}

// removeNetwork takes the namespaces away, and with them every link, route and
// rule that buildNetwork and the node's programs made.
func (p Plan) removeNetwork(ctx context.Context) error {
	return errors.Join(host.DeleteLink(ctx, p.HostLink()), p.removeNamespaces(ctx))
}

func (p Plan) removeNamespaces(ctx context.Context) error {
	return errors.Join(
		p.everyNode(func(node int) error { return host.DeleteNamespace(ctx, p.NodeNamespace(node)) }),
		host.DeleteNamespace(ctx, p.SwitchNamespace()),
	)
}

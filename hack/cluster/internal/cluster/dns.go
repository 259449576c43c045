package cluster

import (
	"context"
	"fmt"
	"net"
	"time"
)

const dnsPatience = 90 * time.Second

// startDNS gives the cluster its DNS as a Deployment like any other.
func (c *Cluster) startDNS(ctx context.Context) error {
	manifests, err := render("dns.yaml", map[string]string{
		"Image":   dnsReference,
		"Address": c.state.Plan.DNSAddress().String(),
	})
	if err != nil {
		return err
	}
	if err := c.apply(ctx, manifests); err != nil {
		return fmt.Errorf("starting DNS: %w", err)
	}
	return nil
}

// awaitDNS asks the cluster's DNS from the machine until it knows the API
// server. The way there shows that pods run and that Services can be reached
// from outside, as webhooks need it.
func (c *Cluster) awaitDNS(ctx context.Context) error {
	p := c.state.Plan
	resolver := net.Resolver{
		PreferGo: true,
		Dial: func(ctx context.Context, network, _ string) (net.Conn, error) {
			var dialer net.Dialer
			return dialer.DialContext(ctx, network, net.JoinHostPort(p.DNSAddress().String(), "53"))
		},
	}
	err := c.await(ctx, "DNS does not answer", p.logFile(p.process("kubelet", 0)), dnsPatience,
		func(ctx context.Context) error {
			const answerTime = time.Second
			ctx, cancel := context.WithTimeout(ctx, answerTime)
			defer cancel()
			_, err := resolver.LookupHost(ctx, "kubernetes.default.svc.cluster.local.")
			return err
		})
	if err != nil {
		return err
	}
	c.Log.Printf("DNS answers at %s", p.DNSAddress())
	return nil
}

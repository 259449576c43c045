// Command coredns is the DNS server of the local cluster: CoreDNS linked with
// the plugins that answer for Services and pods, and nothing that would ask a
// server outside.
package main

import (
	"github.com/coredns/coredns/core/dnsserver"
	"github.com/coredns/coredns/coremain"

	_ "github.com/coredns/coredns/plugin/cache"
	_ "github.com/coredns/coredns/plugin/errors"
	_ "github.com/coredns/coredns/plugin/health"
	_ "github.com/coredns/coredns/plugin/hosts"
	_ "github.com/coredns/coredns/plugin/kubernetes"
	_ "github.com/coredns/coredns/plugin/log"
	_ "github.com/coredns/coredns/plugin/ready"
	_ "github.com/coredns/coredns/plugin/reload"
	_ "github.com/coredns/coredns/plugin/template"
)

func main() {
	// The order in which plugins see a query, whatever the Corefile's order.
	dnsserver.Directives = []string{
		"reload", "health", "ready", "errors", "log", "cache", "hosts", "kubernetes", "template",
	}
	coremain.Run()
}

package main

import (
	"errors"
	"log/slog"
	"net"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/sluice-dev/sluice/limiter/redis"
	pushv1 "github.com/sluice-dev/sluice/proto/sluice/push/v1"
)

const (
	storeMemory       = "memory"
	minStoreTimeout   = time.Millisecond
	maxStoreTimeout   = 10 * time.Second
	maxReplicas       = 1_000_000
	interceptRedirect = "redirect"
	interceptNamed    = "named-port"
	interceptNone     = "none"
)

type options struct {
	policies                       []string
	listen, upstream, store        string
	admin, decisions, debug        string
	storeTimeout, drainTimeout     time.Duration
	replicas                       int
	hashKeyFile, logLevel          string
	pushAddress, pushCA, pushToken string
	stateDir, onMissing            string
	interception, namedPorts       string
	proxyProtocol                  bool
	upstreamURL                    *url.URL
	level                          slog.Level
	storeDescription               *pushv1.Store
	listeners                      map[string]int // listener's address → application's port
}

func (o *options) bind(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringArrayVar(&o.policies, "policy", nil, "YAML `FILE` with policies; may be given several times")
	f.StringVar(&o.listen, "listen", ":8080", "`ADDR` to listen on")
	f.StringVar(&o.upstream, "upstream", "", "`URL` of the application, such as http://127.0.0.1:9000")
	f.StringVar(&o.store, "store", storeMemory, "where counters are: memory, redis://… or rediss://…")
	f.StringVar(&o.admin, "admin", "127.0.0.1:15190", "`ADDR` of /metrics, /healthz and /readyz; \"\" is off")
	f.StringVar(&o.decisions, "decisions", "", "`ADDR` of the decision API; off by default")
	f.StringVar(&o.debug, "debug", "", "`ADDR` of /debug/rules; off by default")
	f.DurationVar(&o.storeTimeout, "store-timeout", 50*time.Millisecond, "how long a call to the store may take, 1ms to 10s")
	f.IntVar(&o.replicas, "replicas", 1, "how many sidecars share the limits that are enforced without a store")
	f.StringVar(&o.hashKeyFile, "hash-key-file", "", "`FILE` with the key that hides identities in the store; the default follows from the policy's name")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
	f.DurationVar(&o.drainTimeout, "drain-timeout", 20*time.Second, "how long requests may take to end after SIGTERM")
	f.StringVar(&o.pushAddress, "push-address", "", "in a cluster: `HOST:PORT` of the operator, which pushes the rules")
	f.StringVar(&o.pushCA, "push-ca-file", "", "in a cluster: PEM `FILE` with the operator's CA")
	f.StringVar(&o.pushToken, "push-token-file", "", "in a cluster: `FILE` with this pod's token")
	f.StringVar(&o.stateDir, "state-dir", "", "in a cluster: memory-backed `DIR` that keeps the rules over a restart")
	f.StringVar(&o.onMissing, "on-missing-rules", "allow", "in a cluster: allow or deny requests while no rules have come")
	f.StringVar(&o.interception, "interception", interceptRedirect, "in a cluster: redirect, named-port or none")
	f.StringVar(&o.namedPorts, "named-ports", "", "in a cluster: `LISTENER=APPLICATION,…` ports of interception named-port")
	f.BoolVar(&o.proxyProtocol, "proxy-protocol", false, "in a cluster: trusted proxies speak the PROXY protocol")
}

func (o *options) cluster() bool { return o.pushAddress != "" }

func (o *options) check(cmd *cobra.Command) error {
	if err := o.level.UnmarshalText([]byte(o.logLevel)); err != nil {
		return usage("--log-level %q is not debug, info, warn or error", o.logLevel)
	}
	if o.drainTimeout < 0 {
		return usage("--drain-timeout %s is negative", o.drainTimeout)
	}
	if o.cluster() {
		return o.checkCluster(cmd)
	}
	return o.checkStandalone()
}

func (o *options) checkStandalone() error {
	if len(o.policies) == 0 {
		return usage("--policy is missing: give a YAML file with a RateLimitPolicy")
	}
	if err := o.checkUpstream(); err != nil {
		return err
	}
	if err := o.checkAddresses(); err != nil {
		return err
	}
	if o.replicas < 1 || o.replicas > maxReplicas {
		return usage("--replicas %d is not 1 to %d", o.replicas, maxReplicas)
	}
	if o.storeTimeout < minStoreTimeout || o.storeTimeout > maxStoreTimeout {
		return usage("--store-timeout %s is not 1ms to 10s", o.storeTimeout)
	}
	return o.describeStore()
}

func (o *options) checkUpstream() error {
	u, err := url.Parse(o.upstream)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Hostname() == "" || !isPort(u.Port(), u.Scheme) {
		return usage("--upstream %q is not a URL such as http://127.0.0.1:9000", o.upstream)
	}
	// Paths go to the application as they came.
	if u.User != nil || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.Fragment != "" {
		return usage("--upstream %q has more than scheme, host and port", u.Redacted())
	}
	o.upstreamURL = u
	return nil
}

func (o *options) checkAddresses() error {
	if o.listen == "" {
		return usage("--listen is empty")
	}
	for _, a := range []struct{ flag, address string }{
		{"listen", o.listen}, {"admin", o.admin}, {"decisions", o.decisions}, {"debug", o.debug},
	} {
		if a.address != "" && !isHostPort(a.address) {
			return usage("--%s %q is not host:port", a.flag, a.address)
		}
	}
	return nil
}

func isHostPort(address string) bool {
	_, port, err := net.SplitHostPort(address)
	if err != nil {
		return false
	}
	return isPort(port, "")
}

// isPort takes no port, too, where a scheme stands for one.
func isPort(port, scheme string) bool {
	if port == "" {
		return scheme != ""
	}
	_, err := strconv.ParseUint(port, 10, 16)
	return err == nil
}

func (o *options) describeStore() error {
	o.storeDescription = &pushv1.Store{Name: storeMemory, Timeout: durationpb.New(o.storeTimeout)}
	if o.store == storeMemory {
		o.storeDescription.Topology = pushv1.Store_TOPOLOGY_MEMORY
		return nil
	}
	if !strings.HasPrefix(o.store, "redis://") && !strings.HasPrefix(o.store, "rediss://") {
		return usage("--store %q is not memory, redis://… or rediss://…", o.store)
	}
	address, username, password, secure, err := redis.ParseURL(o.store)
	if err != nil {
		if e, ok := errors.AsType[*url.Error](err); ok {
			err = e.Err // without the URL, which holds the password
		}
		return usage("--store is not a URL such as redis://user:password@host:6379: %s", err)
	}
	d := o.storeDescription
	d.Name = address // which has no password
	d.Topology, d.Addresses, d.Username, d.Password = pushv1.Store_TOPOLOGY_STANDALONE, []string{address}, username, password
	if secure {
		d.Tls = &pushv1.Store_TLS{}
	}
	return nil
}

func (o *options) checkCluster(cmd *cobra.Command) error {
	for _, flag := range []string{"policy", "upstream", "listen", "store", "replicas", "hash-key-file", "decisions", "debug", "admin"} {
		if cmd.Flags().Changed(flag) {
			return usage("--%s has no meaning with --push-address", flag)
		}
	}
	if !isHostPort(o.pushAddress) {
		return usage("--push-address %q is not host:port", o.pushAddress)
	}
	if o.pushCA == "" || o.pushToken == "" {
		return usage("--push-address needs --push-ca-file and --push-token-file")
	}
	if o.onMissing != "allow" && o.onMissing != "deny" {
		return usage("--on-missing-rules %q is not allow or deny", o.onMissing)
	}
	if o.proxyProtocol {
		return usage("--proxy-protocol is not supported yet")
	}
	o.admin, o.debug, o.decisions = ":15190", "127.0.0.1:15191", "127.0.0.1:15180"
	o.listeners = map[string]int{}
	switch o.interception {
	case interceptRedirect:
		o.listeners[":15100"] = 0
		return nil
	case interceptNamed:
		return o.readNamedPorts()
	case interceptNone:
		return nil
	default:
		return usage("--interception %q is not redirect, named-port or none", o.interception)
	}
}

func (o *options) readNamedPorts() error {
	for pair := range strings.SplitSeq(o.namedPorts, ",") {
		listener, application, _ := strings.Cut(pair, "=")
		from, err := strconv.ParseUint(listener, 10, 16)
		if err != nil {
			return usage("--named-ports %q is not LISTENER=APPLICATION,…", o.namedPorts)
		}
		to, err := strconv.ParseUint(application, 10, 16)
		if err != nil {
			return usage("--named-ports %q is not LISTENER=APPLICATION,…", o.namedPorts)
		}
		o.listeners[":"+strconv.FormatUint(from, 10)] = int(to)
	}
	return nil
}

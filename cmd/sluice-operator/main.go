// Command sluice-operator compiles RateLimitPolicies, pushes them to the sidecars, injects these and reports what they acknowledged.
package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	ctrl "sigs.k8s.io/controller-runtime"
)

var version = "dev"

const (
	exitStart = 1
	exitUsage = 2
)

// errUsage tells that the command line is wrong.
var errUsage = errors.New("see --help")

type options struct {
	sidecarImage, storeImage string
	pullPolicy               string
	namespace                string
	pushAddress, pushListen  string
	metrics, health          string
	certDir                  string
	webhookPort              int
	leaderElect, verifyPeer  bool
	logLevel                 string
	jwksCIDRs                []string
	jwksAllowed              []netip.Prefix
}

func (o *options) bind(f *pflag.FlagSet) {
	f.SortFlags = false
	f.StringVar(&o.sidecarImage, "sidecar-image", "", "`IMAGE` of the sidecar")
	f.StringVar(&o.pullPolicy, "sidecar-image-pull-policy", string(corev1.PullIfNotPresent), "Always, IfNotPresent or Never")
	f.StringVar(&o.storeImage, "store-image", "docker.io/library/redis:7.4", "`IMAGE` of managed stores that name none")
	f.StringVar(&o.namespace, "namespace", defaultNamespace(), "`NAMESPACE` of the operator; the default is $POD_NAMESPACE")
	f.StringVar(&o.pushAddress, "push-address", "", "`HOST:PORT` where sidecars dial; the default is sluice-operator.NAMESPACE.svc:15200")
	f.StringVar(&o.pushListen, "push-bind-address", ":15200", "`ADDR` to listen on for sidecars")
	f.IntVar(&o.webhookPort, "webhook-port", 9443, "`PORT` to listen on for the API server")
	f.StringVar(&o.metrics, "metrics-bind-address", ":8080", "`ADDR` of /metrics; 0 is off")
	f.StringVar(&o.health, "health-probe-bind-address", ":8081", "`ADDR` of /healthz and /readyz")
	f.StringVar(&o.certDir, "cert-dir", "/tmp/sluice-cert", "`DIR` where the serving certificate is kept while running")
	f.BoolVar(&o.leaderElect, "leader-elect", false, "work only while being the leader")
	f.BoolVar(&o.verifyPeer, "verify-peer-address", false, "accept a sidecar only from its pod's address")
	f.StringSliceVar(&o.jwksCIDRs, "jwks-allow-cidr", nil, "`CIDR` of addresses, besides public ones, from which key sets may be fetched; may be repeated")
	f.StringVar(&o.logLevel, "log-level", "info", "debug, info, warn or error")
}

func defaultNamespace() string {
	if n := os.Getenv("POD_NAMESPACE"); n != "" {
		return n
	}
	return "sluice-system"
}

func (o *options) check() error {
	if o.sidecarImage == "" {
		return fmt.Errorf("--sidecar-image is missing; %w", errUsage)
	}
	switch corev1.PullPolicy(o.pullPolicy) {
	case corev1.PullAlways, corev1.PullIfNotPresent, corev1.PullNever:
	default:
		return fmt.Errorf("--sidecar-image-pull-policy %q is not Always, IfNotPresent or Never; %w", o.pullPolicy, errUsage)
	}
	for _, cidr := range o.jwksCIDRs {
		prefix, err := netip.ParsePrefix(cidr)
		if err != nil {
			return fmt.Errorf("--jwks-allow-cidr %q is not a CIDR such as 10.1.0.0/16; %w", cidr, errUsage)
		}
		o.jwksAllowed = append(o.jwksAllowed, prefix.Masked())
	}
	if o.pushAddress == "" {
		o.pushAddress = "sluice-operator." + o.namespace + ".svc:15200"
	}
	return nil
}

func main() { os.Exit(run(ctrl.SetupSignalHandler(), os.Args[1:])) }

func run(ctx context.Context, args []string) int {
	var o options
	cmd := &cobra.Command{
		Use:   "sluice-operator --sidecar-image IMAGE [flags]",
		Short: "Compile rate-limit policies, push them to sidecars, and report what is enforced",
		Long: `Compile rate-limit policies, push them to sidecars, and report what is enforced.

Exit codes: 0 stopped by a signal, 1 cannot start or lost the lead, 2 wrong usage.`,
		Version: version, SilenceErrors: true, SilenceUsage: true,
		Args: cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if err := o.check(); err != nil {
				return err
			}
			return serve(ctx, &o)
		},
	}
	cmd.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return fmt.Errorf("%w; %w", err, errUsage) })
	cmd.CompletionOptions.DisableDefaultCmd = true
	o.bind(cmd.Flags())
	cmd.SetArgs(args)
	err := cmd.ExecuteContext(ctx)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "sluice-operator: "+strings.Join(strings.Fields(err.Error()), " "))
	if errors.Is(err, errUsage) {
		return exitUsage
	}
	return exitStart
}

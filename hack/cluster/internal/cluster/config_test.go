package cluster

import (
	"encoding/json"
	"os"
	"strings"
	"testing"

	"github.com/sluice-dev/sluice/hack/cluster/internal/assets"
)

// writtenFiles writes the files of one node of a plan and reads them back.
func writtenFiles(t *testing.T, nodes int) map[string]string {
	t.Helper()
	p := Plan{Name: "dev", Dir: t.TempDir(), Nodes: nodes}
	if err := os.MkdirAll(p.nodeFile(0, "cni"), 0o700); err != nil {
		t.Fatal(err)
	}
	c := &Cluster{Tools: Tools{Catalog: &assets.Catalog{}}, state: &State{Plan: p}}
	if err := c.writeNodeFiles(0); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range []string{"containerd.toml", "cni/pods.conflist", "kubelet.yaml", "kube-proxy.yaml"} {
		content, err := os.ReadFile(p.nodeFile(0, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = strings.ReplaceAll(string(content), p.Dir, "DIR")
	}
	return files
}

func TestNodeFilesHoldThePlan(t *testing.T) {
	files := writtenFiles(t, 1)
	for name, wants := range map[string][]string{
		"containerd.toml": {
			`address = "DIR/node0/containerd.sock"`, "restrict_oom_score_adj = true",
			`sandbox_image = "localhost/sluice-pause:dev"`, `bin_dir = "/usr/lib/cni"`,
		},
		"kubelet.yaml":    {`clusterDNS: ["198.19.0.10"]`, `cgroupRoot: "/sluice-dev-node0"`, "failCgroupV1: false"},
		"kube-proxy.yaml": {"mode: nftables", `hostnameOverride: "dev-node0"`},
	} {
		for _, want := range wants {
			if !strings.Contains(files[name], want) {
				t.Errorf("%s has no %s:\n%s", name, want, files[name])
			}
		}
	}
}

func TestPodsNetworkIsValid(t *testing.T) {
	var network struct {
		Name    string
		Plugins []struct {
			IPMasq bool
			IPAM   struct{ Ranges [][]struct{ Subnet string } }
		}
	}
	if err := json.Unmarshal([]byte(writtenFiles(t, 1)["cni/pods.conflist"]), &network); err != nil {
		t.Fatal(err)
	}
	if network.Name != "sluice-dev-node0" || network.Plugins[0].IPAM.Ranges[0][0].Subnet != "198.18.0.0/24" {
		t.Errorf("got %+v", network)
	}
}

func TestCallersAreHiddenOnlyAmongSeveralNodes(t *testing.T) {
	for nodes, want := range map[int]bool{1: false, 2: true} {
		if got := strings.Contains(writtenFiles(t, nodes)["kube-proxy.yaml"], `clusterCIDR: "198.18.0.0/21"`); got != want {
			t.Errorf("%d nodes: hidden %t, want %t", nodes, got, want)
		}
	}
}

func TestDNSManifestsAreFilledIn(t *testing.T) {
	content, err := render("dns.yaml", map[string]string{"Image": dnsReference, "Address": "198.19.0.10"})
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"image: localhost/sluice-coredns:dev", "clusterIP: 198.19.0.10"} {
		if !strings.Contains(string(content), want) {
			t.Errorf("no %q in\n%s", want, content)
		}
	}
}

func TestAMissingValueIsAnError(t *testing.T) {
	if _, err := render("dns.yaml", map[string]string{"Image": "x"}); err == nil {
		t.Error("no error")
	}
}

func TestControlPlaneStaysOnItsAddresses(t *testing.T) {
	p := testPlan()
	for _, args := range [][]string{etcdArgs(p), apiServerArgs(p), controllerManagerArgs(p), schedulerArgs(p)} {
		bound := false
		for _, arg := range args {
			name, value, _ := strings.Cut(arg, "=")
			if name == "--bind-address" || name == "--listen-client-urls" {
				bound = strings.Contains(value, p.Loopback().String()) || value == p.HostAddress().String()
			}
		}
		if !bound {
			t.Errorf("listens anywhere: %q", args)
		}
	}
}

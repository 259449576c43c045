package assets

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sluice-dev/sluice/hack/cluster/internal/progress"
)

// stillClock never moves and never waits.
type stillClock struct{}

func (stillClock) Now() time.Time { return time.Unix(1000, 0) }
func (stillClock) Sleep(ctx context.Context, _ time.Duration) error {
	<-ctx.Done()
	return ctx.Err()
}

// fakeBuilder writes a few bytes in place of a program, and fails at the one
// that it is told to.
type fakeBuilder struct {
	failAt string
	built  []string
}

func (f *fakeBuilder) pending(context.Context, []Binary) (map[string]int64, error) {
	return map[string]int64{"a": 10, "b": 20}, nil
}

func (f *fakeBuilder) build(_ context.Context, b Binary, out string, began func(string)) error {
	began("a")
	if err := os.WriteFile(out, []byte("half of "+b.Name), 0o600); err != nil {
		return err
	}
	if b.Name == f.failAt {
		return errors.New("interrupted")
	}
	f.built = append(f.built, b.Name)
	return nil
}

func nothingPrebuilt(context.Context, string, string) (string, error) {
	return "", errors.New("not here")
}

// newProvider sets up a provider over a small repository of its own.
func newProvider(t *testing.T, b builder) (*Provider, *strings.Builder) {
	t.Helper()
	catalog, err := Load(repository(t), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	return &Provider{
		catalog: catalog, log: progress.NewLog(&out, stillClock{}), clock: stillClock{},
		builder: b, fetch: nothingPrebuilt, every: time.Second,
	}, &out
}

func repository(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, content := range map[string]string{
		"hack/kubernetes/go.mod":     "module x\n\nrequire (\n\tgo.etcd.io/etcd/server/v3 v3.7.0\n\tk8s.io/kubernetes v1.37.2\n)\n",
		"hack/kubernetes/tools.go":   "package x\n",
		"hack/coredns/go.mod":        "module x\n\nrequire github.com/coredns/coredns v1.15.0\n",
		"hack/coredns/main.go":       "package main\n",
		"hack/cluster/pause/main.go": "package main\n",
	} {
		write(t, filepath.Join(root, name), content)
	}
	return root
}

func write(t *testing.T, name, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o750); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestEnsureBuildsEachBinaryOnce(t *testing.T) {
	fake := &fakeBuilder{}
	p, out := newProvider(t, fake)
	for range 2 {
		if err := p.Ensure(context.Background(), All); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		"etcd", "kubectl", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy",
		"coredns", "pause",
	}
	if !slices.Equal(fake.built, want) {
		t.Errorf("built %v, want %v", fake.built, want)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	if last := lines[len(lines)-1]; !strings.Contains(last, "nothing to build: all 9 binaries are in ") {
		t.Errorf("the second run said %q", last)
	}
}

func TestEnsureGoesOnWhereItWasInterrupted(t *testing.T) {
	fake := &fakeBuilder{failAt: "kube-scheduler"}
	p, _ := newProvider(t, fake)
	err := p.Ensure(context.Background(), All)
	if err == nil || !strings.Contains(err.Error(), "building kube-scheduler: interrupted") {
		t.Fatalf("got error %v", err)
	}
	if _, err := os.Stat(p.catalog.Path("kube-scheduler")); !os.IsNotExist(err) {
		t.Errorf("a half-written binary has its final name (%v)", err)
	}
	fake.failAt, fake.built = "", nil
	if err := p.Ensure(context.Background(), All); err != nil {
		t.Fatal(err)
	}
	if want := []string{"kube-scheduler", "kubelet", "kube-proxy", "coredns", "pause"}; !slices.Equal(fake.built, want) {
		t.Errorf("then built %v, want %v", fake.built, want)
	}
}

func TestEnvtestNeedsThreeBinaries(t *testing.T) {
	fake := &fakeBuilder{}
	p, out := newProvider(t, fake)
	if err := p.Ensure(context.Background(), Envtest); err != nil {
		t.Fatal(err)
	}
	if want := []string{"etcd", "kubectl", "kube-apiserver"}; !slices.Equal(fake.built, want) {
		t.Errorf("built %v, want %v", fake.built, want)
	}
	if !strings.Contains(out.String(), "no prebuilt binaries of Kubernetes v1.37.2 to be had here (not here): building them") {
		t.Errorf("said nothing of the prebuilt binaries:\n%s", out)
	}
}

func TestPrebuiltBinariesAreTakenInstead(t *testing.T) {
	fake := &fakeBuilder{}
	p, out := newProvider(t, fake)
	p.fetch = func(_ context.Context, version, into string) (string, error) {
		if version != "1.37.2" {
			t.Errorf("asked for version %q", version)
		}
		for _, name := range []string{"etcd", "kubectl", "kube-apiserver"} {
			write(t, filepath.Join(into, name), "prebuilt")
		}
		return into, nil
	}
	if err := p.Ensure(context.Background(), Envtest); err != nil {
		t.Fatal(err)
	}
	if len(fake.built) > 0 {
		t.Errorf("built %v all the same", fake.built)
	}
	info, err := os.Stat(p.catalog.Path("etcd"))
	if err != nil || info.Mode().Perm() != 0o755 {
		t.Errorf("etcd is not an executable file: %v %v", info, err)
	}
	if !strings.Contains(out.String(), "took 3 prebuilt binaries") {
		t.Errorf("said:\n%s", out)
	}
}

func TestFolderNamesFollowThePins(t *testing.T) {
	root := repository(t)
	before, err := Load(root, "/cache")
	if err != nil {
		t.Fatal(err)
	}
	if dir := before.EnvtestDir(); !strings.HasPrefix(dir, "/cache/kubernetes-v1.37.2-") {
		t.Errorf("envtest's folder is %s", dir)
	}
	write(t, filepath.Join(root, "hack/kubernetes/go.sum"), "something else\n")
	after, err := Load(root, "/cache")
	if err != nil {
		t.Fatal(err)
	}
	if before.Path("etcd") == after.Path("etcd") {
		t.Error("another go.sum, but the same folder")
	}
	if before.Path("coredns") != after.Path("coredns") {
		t.Error("the folder of coredns follows the pins of kubernetes")
	}
}

func TestCacheDir(t *testing.T) {
	for _, c := range []struct {
		env  map[string]string
		want string
	}{
		{map[string]string{"SLUICE_CACHE": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/a"},
		{map[string]string{"XDG_CACHE_HOME": "/b", "HOME": "/c"}, "/b/sluice"},
		{map[string]string{"XDG_CACHE_HOME": "relative", "HOME": "/c"}, "/c/.cache/sluice"},
	} {
		got, err := CacheDir(func(name string) string { return c.env[name] })
		if err != nil || got != c.want {
			t.Errorf("%v: got %q, %v; want %q", c.env, got, err, c.want)
		}
	}
	if _, err := CacheDir(func(string) string { return "" }); err == nil {
		t.Error("no error without any folder")
	}
}

func TestFollowTellsPackagesFromComplaints(t *testing.T) {
	var began []string
	err := follow(strings.NewReader("k8s.io/api/core/v1\n# k8s.io/x\nfile.go:1:2: undefined: y\nfmt\n"), func(p string) {
		began = append(began, p)
	})
	if want := []string{"k8s.io/api/core/v1", "fmt"}; !slices.Equal(began, want) {
		t.Errorf("packages %v, want %v", began, want)
	}
	if err == nil || !strings.Contains(err.Error(), "undefined: y") {
		t.Errorf("complaints %v", err)
	}
}

func TestGistIsTheInnermostReason(t *testing.T) {
	for complaint, want := range map[string]string{
		"go: downloading x v1\nGet \"https://x\": dial tcp: connection refused\nexit status 2\n": "connection refused",
		"no such version": "no such version",
		"":                "",
	} {
		if got := gist(complaint); got != want {
			t.Errorf("gist(%q) = %q, want %q", complaint, got, want)
		}
	}
}

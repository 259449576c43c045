// Package assets provides the programs that a local cluster consists of: it
// builds the pinned versions from their Go modules into a cache folder, once.
package assets

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
)

// Set names a part of the catalog.
type Set string

const (
	// Envtest is what controller-runtime's envtest needs.
	Envtest Set = "envtest"
	// All is what a whole cluster needs.
	All Set = "all"
)

// Binary is one program of the catalog.
type Binary struct {
	Name string
	// Package is the main package, as seen from the source folder.
	Package string
	// Envtest says that envtest needs this one.
	Envtest bool

	source *source
	path   string
}

// source is a folder of the repository whose Go files pin and name what is built.
type source struct {
	name string
	dir  string
	// pin is the required module whose version the cache folder's name shows.
	pin string
	// flags are the linker flags for that version.
	flags func(version string) string

	absolute string
	version  string
}

// Catalog lists the binaries and where each one lies once it is built.
type Catalog struct {
	binaries []Binary
	cache    string
}

// Load reads the pins of the repository at root and lays out the catalog in the
// cache folder. Each source has a folder of its own there, named by its version
// and by everything that decides what is built, so a changed pin never finds an
// old binary.
func Load(root, cache string) (*Catalog, error) {
	c := &Catalog{cache: cache}
	for _, s := range sources() {
		folder, err := s.locate(root, cache)
		if err != nil {
			return nil, err
		}
		for _, b := range binariesOf(s) {
			b.path = filepath.Join(folder, b.Name)
			c.binaries = append(c.binaries, b)
		}
	}
	return c, nil
}

func sources() []*source {
	return []*source{
		{name: "kubernetes", dir: "hack/kubernetes", pin: "k8s.io/kubernetes", flags: kubernetesFlags},
		{name: "coredns", dir: "hack/coredns", pin: "github.com/coredns/coredns", flags: plainFlags},
		{name: "pause", dir: "hack/cluster/pause", flags: plainFlags},
	}
}

// binariesOf lists a source's programs in the order in which they are wanted:
// what the test suites wait for comes first.
func binariesOf(s *source) []Binary {
	switch s.name {
	case "kubernetes":
		const kubernetes = "k8s.io/kubernetes/cmd/"
		return []Binary{
			{Name: "etcd", Package: "go.etcd.io/etcd/server/v3", Envtest: true, source: s},
			{Name: "kubectl", Package: kubernetes + "kubectl", Envtest: true, source: s},
			{Name: "kube-apiserver", Package: kubernetes + "kube-apiserver", Envtest: true, source: s},
			{Name: "kube-controller-manager", Package: kubernetes + "kube-controller-manager", source: s},
			{Name: "kube-scheduler", Package: kubernetes + "kube-scheduler", source: s},
			{Name: "kubelet", Package: kubernetes + "kubelet", source: s},
			{Name: "kube-proxy", Package: kubernetes + "kube-proxy", source: s},
		}
	default:
		return []Binary{{Name: s.name, Package: ".", source: s}}
	}
}

func plainFlags(string) string { return "-s -w" }

// kubernetesFlags gives Kubernetes its version, which it learns from the linker
// alone and shows to clients.
func kubernetesFlags(version string) string {
	const at = "k8s.io/component-base/version."
	parts := strings.SplitN(strings.TrimPrefix(version, "v"), ".", 3)
	return strings.Join([]string{
		plainFlags(version),
		"-X " + at + "gitVersion=" + version,
		"-X " + at + "gitMajor=" + parts[0],
		"-X " + at + "gitMinor=" + parts[1],
		"-X " + at + "gitTreeState=clean",
	}, " ")
}

// locate finds the source in the repository and names its folder in the cache.
func (s *source) locate(root, cache string) (string, error) {
	s.absolute = filepath.Join(root, filepath.FromSlash(s.dir))
	if s.pin != "" {
		version, err := pinnedVersion(filepath.Join(s.absolute, "go.mod"), s.pin)
		if err != nil {
			return "", err
		}
		s.version = version
	}
	digest, err := s.digest()
	if err != nil {
		return "", err
	}
	parts := slices.DeleteFunc([]string{s.name, s.version, digest}, func(p string) bool { return p == "" })
	return filepath.Join(cache, strings.Join(parts, "-")), nil
}

// pinnedVersion reads the version that a go.mod file requires of a module.
func pinnedVersion(file, module string) (string, error) {
	content, err := os.ReadFile(file) //nolint:gosec // a file of this repository
	if err != nil {
		return "", fmt.Errorf("reading the pinned versions: %w", err)
	}
	line := regexp.MustCompile(`(?m)^(?:require)?\s*` + regexp.QuoteMeta(module) + ` (v\S+)`)
	found := line.FindSubmatch(content)
	if found == nil {
		return "", fmt.Errorf("%s does not require %s", file, module)
	}
	return string(found[1]), nil
}

// digest sums up all that decides what the source builds: its pins, its own
// code, the linker's flags and the platform.
func (s *source) digest() (string, error) {
	files, err := filepath.Glob(filepath.Join(s.absolute, "*.go"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("no Go files in %s", s.absolute)
	}
	sum := sha256.New()
	fmt.Fprintln(sum, runtime.GOOS, runtime.GOARCH, s.flags(s.version))
	for _, name := range append(files, filepath.Join(s.absolute, "go.mod"), filepath.Join(s.absolute, "go.sum")) {
		content, err := os.ReadFile(name) //nolint:gosec // a file of this repository
		if os.IsNotExist(err) {
			continue
		}
		if err != nil {
			return "", fmt.Errorf("reading %s: %w", name, err)
		}
		fmt.Fprintln(sum, filepath.Base(name), len(content))
		sum.Write(content)
	}
	return hex.EncodeToString(sum.Sum(nil))[:8], nil
}

// Path is where the named binary lies, or will lie once it is built.
func (c *Catalog) Path(name string) string {
	i := slices.IndexFunc(c.binaries, func(b Binary) bool { return b.Name == name })
	return c.binaries[i].path
}

// EnvtestDir is the folder for KUBEBUILDER_ASSETS.
func (c *Catalog) EnvtestDir() string {
	return filepath.Dir(c.Path("kube-apiserver"))
}

// of lists the binaries of a set.
func (c *Catalog) of(set Set) []Binary {
	return slices.DeleteFunc(slices.Clone(c.binaries), func(b Binary) bool { return set == Envtest && !b.Envtest })
}

// Missing lists the binaries of a set that are not there yet.
func (c *Catalog) Missing(set Set) []Binary {
	return slices.DeleteFunc(c.of(set), func(b Binary) bool {
		info, err := os.Stat(b.path)
		return err == nil && info.Mode().IsRegular()
	})
}

package image

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
)

func TestReference(t *testing.T) {
	for name, want := range map[string]string{
		"shop":                "localhost/shop:dev",
		"shop:v2":             "localhost/shop:v2",
		"localhost/a/shop":    "localhost/a/shop:dev",
		"example.org:80/shop": "example.org:80/shop:dev",
		"example.org/shop:1":  "example.org/shop:1",
	} {
		if got := Reference(name); got != want {
			t.Errorf("Reference(%q) = %q, want %q", name, got, want)
		}
	}
}

func TestWriteMakesAnArchiveThatRuntimesRead(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!"), 0o700); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	err := Write(&out, Spec{
		Reference: "localhost/x:dev", Files: []File{{program, "/usr/bin/x"}},
		Entrypoint: []string{"/usr/bin/x"}, User: NonRoot, Writable: []string{"/data"},
	})
	if err != nil {
		t.Fatal(err)
	}
	parts := unpack(t, &out)
	var manifest []struct {
		Config           string
		RepoTags, Layers []string
	}
	if err := json.Unmarshal(parts["manifest.json"].content, &manifest); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(manifest[0].RepoTags, []string{"localhost/x:dev"}) {
		t.Errorf("tags %v", manifest[0].RepoTags)
	}
	layerFile := parts[manifest[0].Layers[0]].content
	var config struct {
		RootFS struct {
			DiffIDs []string `json:"diff_ids"`
		} `json:"rootfs"`
		Config struct{ User string }
	}
	if err := json.Unmarshal(parts[manifest[0].Config].content, &config); err != nil {
		t.Fatal(err)
	}
	if got, want := config.RootFS.DiffIDs, "sha256:"+name(layerFile); len(got) != 1 || got[0] != want {
		t.Errorf("layers %v, want %s", got, want)
	}
	if config.Config.User != NonRoot {
		t.Errorf("user %q", config.Config.User)
	}
	layer := unpack(t, bytes.NewReader(layerFile))
	for place, mode := range map[string]int64{"usr/": 0o755, "usr/bin/": 0o755, "usr/bin/x": 0o755, "data/": 0o1777} {
		if got, there := layer[place]; !there || got.mode != mode {
			t.Errorf("%s: there %t, mode %o, want %o", place, there, got.mode, mode)
		}
	}
}

func TestEqualFilesGiveEqualImages(t *testing.T) {
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!"), 0o700); err != nil {
		t.Fatal(err)
	}
	var first, second bytes.Buffer
	spec := Spec{Reference: "localhost/x:dev", Files: []File{{program, "/x"}}}
	for _, out := range []*bytes.Buffer{&first, &second} {
		if err := Write(out, spec); err != nil {
			t.Fatal(err)
		}
	}
	if !bytes.Equal(first.Bytes(), second.Bytes()) {
		t.Error("two archives of the same files differ")
	}
}

type part struct {
	mode    int64
	content []byte
}

func unpack(t *testing.T, in io.Reader) map[string]part {
	t.Helper()
	parts := map[string]part{}
	archive := tar.NewReader(in)
	for {
		header, err := archive.Next()
		if errors.Is(err, io.EOF) {
			return parts
		}
		if err != nil {
			t.Fatal(err)
		}
		content, err := io.ReadAll(archive)
		if err != nil {
			t.Fatal(err)
		}
		parts[header.Name] = part{header.Mode, content}
	}
}

func TestSharedLibraries(t *testing.T) {
	got := sharedLibraries("\tlinux-vdso.so.1 (0x00007ffc)\n" +
		"\tlibm.so.6 => /lib/x86_64-linux-gnu/libm.so.6 (0x00007f)\n" +
		"\t/lib64/ld-linux-x86-64.so.2 (0x00007f)\n")
	if want := []string{"/lib/x86_64-linux-gnu/libm.so.6", "/lib64/ld-linux-x86-64.so.2"}; !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestBuildNamesTheStageAndWhatReplacesOthers(t *testing.T) {
	got := Build{
		Reference: "localhost/x:dev", Dockerfile: "Dockerfile", Target: "operator", Context: "/src",
		Args: []string{"BASE=scratch"}, Contexts: []string{"bin=/src/bin"},
	}.args()
	want := []string{
		"build", "--isolation", "chroot", "--pull-never", "--quiet",
		"--file", "Dockerfile", "--target", "operator", "--tag", "localhost/x:dev",
		"--build-arg", "BASE=scratch", "--build-context", "bin=/src/bin", "/src",
	}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

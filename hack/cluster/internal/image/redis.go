package image

import (
	"context"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
)

// RedisReference names the image of this machine's Redis.
const RedisReference = "localhost/sluice-redis:dev"

// redisPrograms are the programs of the Redis image and the files of Debian's
// redis-tools they come from. The server is the same program as redis-check-rdb
// and goes by the name it is called by; taking it from there saves installing
// the redis-server package, which would start a server.
var redisPrograms = map[string]string{
	"redis-server": "redis-check-rdb",
	"redis-cli":    "redis-cli",
}

// Redis describes an image of this machine's Redis with the libraries it needs
// and nothing else: no shell, no package manager.
func Redis(ctx context.Context) (Spec, error) {
	s := Spec{
		Reference:  RedisReference,
		Entrypoint: []string{"/usr/bin/redis-server"},
		User:       NonRoot,
		Writable:   []string{"/data", "/tmp"},
		WorkDir:    "/data",
	}
	libraries := map[string]bool{}
	for name, origin := range redisPrograms {
		program, err := filepath.EvalSymlinks(host.Find(origin))
		if err != nil {
			return Spec{}, fmt.Errorf("finding %s: %w", origin, err)
		}
		s.Files = append(s.Files, File{Source: program, Path: "/usr/bin/" + name})
		out, err := host.Output(ctx, nil, "ldd", program)
		if err != nil {
			return Spec{}, fmt.Errorf("finding the libraries of %s: %w", origin, err)
		}
		for _, library := range sharedLibraries(out) {
			libraries[library] = true
		}
	}
	for library := range libraries {
		s.Files = append(s.Files, File{Source: library, Path: library})
	}
	return s.sorted(), nil
}

// sharedLibraries reads the files out of what ldd prints: the libraries after
// the arrows, and the loader, which stands alone.
func sharedLibraries(ldd string) []string {
	var files []string
	for line := range strings.Lines(ldd) {
		for field := range strings.FieldsSeq(line) {
			if strings.HasPrefix(field, "/") {
				files = append(files, field)
			}
		}
	}
	return files
}

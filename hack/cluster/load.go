package main

import (
	"context"
	"flag"
	"path"
	"path/filepath"
	"strings"

	"github.com/sluice-dev/sluice/hack/cluster/internal/cluster"
	"github.com/sluice-dev/sluice/hack/cluster/internal/host"
	"github.com/sluice-dev/sluice/hack/cluster/internal/image"
)

const loadHelp = `Makes images without a registry and puts them on every node of a cluster. Pods
use them with imagePullPolicy: Never (or IfNotPresent). A NAME such as "shop"
becomes localhost/shop:dev.

  load NAME=BINARY...
      One image for each static binary, on nothing, that runs the binary.

  load --dockerfile FILE NAME=STAGE...
      One image for each stage of the Dockerfile. Stages that compile are
      replaced by folders of binaries built before (--build-context bin=bin), and
      base images by scratch (--build-arg BASE=scratch, the default), since
      neither can be pulled here.`

// loadFlags are the flags of load.
type loadFlags struct {
	name, user, dockerfile, context string
	add, args, contexts             several
}

func runLoad(ctx context.Context, call invocation) error {
	set := call.flags("[flags] NAME=BINARY|STAGE...", loadHelp)
	flags := newLoadFlags(set)
	operands, err := call.parse(set, len(call.args))
	if err != nil {
		return err
	}
	if len(operands) == 0 {
		return wrongUsage("load: nothing to load; try load --help")
	}
	images, err := parsePairs(operands)
	if err != nil {
		return err
	}
	tools, err := call.tools()
	if err != nil {
		return err
	}
	c, err := cluster.Open(tools, flags.name)
	if err != nil {
		return err
	}
	if flags.dockerfile != "" {
		return flags.loadStages(ctx, c, images)
	}
	return flags.loadBinaries(ctx, c, images)
}

func newLoadFlags(set *flag.FlagSet) *loadFlags {
	var f loadFlags
	set.StringVar(&f.name, "name", defaultName, "the cluster's `name`")
	set.StringVar(&f.user, "user", image.NonRoot, "who the binary runs as, as `UID:GID`")
	set.Var(&f.add, "add", "put a file of this machine into the image, as `FILE:PATH`; may be given several times")
	set.StringVar(&f.dockerfile, "dockerfile", "", "build stages of this `FILE`")
	set.StringVar(&f.context, "context", "", "the `DIR` that the Dockerfile copies from; the default is the Dockerfile's own")
	set.Var(&f.args, "build-arg", "`NAME=VALUE` for the Dockerfile; may be given several times")
	set.Var(&f.contexts, "build-context", "`STAGE=DIR`: use the folder in place of that stage; may be given several times")
	return &f
}

// pair is a name and what stands for it on the command line.
type pair struct{ name, value string }

func parsePairs(operands []string) ([]pair, error) {
	var pairs []pair
	for _, operand := range operands {
		name, value, isPair := strings.Cut(operand, "=")
		if !isPair || name == "" || value == "" {
			return nil, wrongUsage("load: %q is not NAME=BINARY or NAME=STAGE; try load --help", operand)
		}
		pairs = append(pairs, pair{name, value})
	}
	return pairs, nil
}

func (f *loadFlags) loadBinaries(ctx context.Context, c *cluster.Cluster, images []pair) error {
	if len(f.args)+len(f.contexts) > 0 || f.context != "" {
		return wrongUsage("load: --build-arg, --build-context and --context go with --dockerfile")
	}
	added, err := parseAdded(f.add)
	if err != nil {
		return err
	}
	for _, i := range images {
		place := "/" + filepath.Base(i.value)
		err := c.Load(ctx, image.Spec{
			Reference:  image.Reference(i.name),
			Files:      append([]image.File{{Source: i.value, Path: place}}, added...),
			Entrypoint: []string{place},
			User:       f.user,
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func parseAdded(values []string) ([]image.File, error) {
	var files []image.File
	for _, value := range values {
		source, place, isPair := strings.Cut(value, ":")
		if !isPair || source == "" || !path.IsAbs(place) {
			return nil, wrongUsage("load: --add %q is not FILE:PATH with an absolute PATH", value)
		}
		files = append(files, image.File{Source: source, Path: place})
	}
	return files, nil
}

func (f *loadFlags) loadStages(ctx context.Context, c *cluster.Cluster, images []pair) error {
	if len(f.add) > 0 {
		return wrongUsage("load: --add does not go with --dockerfile; COPY it there")
	}
	build, err := f.build()
	if err != nil {
		return err
	}
	if _, err := host.Install(ctx, c.Log, host.BuildPackages); err != nil {
		return err
	}
	for _, i := range images {
		build.Reference, build.Target = image.Reference(i.name), i.value
		if err := c.LoadBuild(ctx, build); err != nil {
			return err
		}
	}
	return nil
}

// build is what the flags say about building from a Dockerfile.
func (f *loadFlags) build() (image.Build, error) {
	b := image.Build{Dockerfile: f.dockerfile, Context: f.context, Args: f.args}
	if b.Context == "" {
		b.Context = filepath.Dir(f.dockerfile)
	}
	if !hasArg(b.Args, "BASE") {
		b.Args = append(b.Args, "BASE=scratch")
	}
	for _, replaced := range f.contexts {
		absolute, err := image.Absolute(replaced)
		if err != nil {
			return image.Build{}, wrongUsage("load: --build-context: %v", err)
		}
		b.Contexts = append(b.Contexts, absolute)
	}
	return b, nil
}

func hasArg(args []string, name string) bool {
	for _, arg := range args {
		if strings.HasPrefix(arg, name+"=") {
			return true
		}
	}
	return false
}

const redisHelp = `Makes an image of this machine's Redis (redis-server and redis-cli, installed
from the distribution if need be) with the libraries they need and nothing else,
and puts it on every node as ` + image.RedisReference + `. It runs as any user and
keeps its data in /data.`

func runRedisImage(ctx context.Context, call invocation) error {
	set := call.flags("[--name NAME]", redisHelp)
	name := nameFlag(set)
	if _, err := call.parse(set, 0); err != nil {
		return err
	}
	tools, err := call.tools()
	if err != nil {
		return err
	}
	c, err := cluster.Open(tools, *name)
	if err != nil {
		return err
	}
	if _, err := host.Install(ctx, tools.Log, host.RedisPackages); err != nil {
		return err
	}
	redis, err := image.Redis(ctx)
	if err != nil {
		return err
	}
	return c.Load(ctx, redis)
}

# `make help` explains every target. Tools are pinned in tools/go.mod and come through the Go module proxy.
SHELL := /usr/bin/env bash -o pipefail -e
.DEFAULT_GOAL := help

VERSION ?= $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
CLUSTER ?= dev
KUBECTL ?= kubectl

TOOL := go tool -modfile=tools/go.mod
CONTROLLER_GEN := $(TOOL) controller-gen
GOLANGCI := $(TOOL) golangci-lint
KUSTOMIZE := $(TOOL) kustomize
# Without grpc's tracing pages nothing needs templates, and the linker drops what is not called: a third of the sidecar.
GO_BUILD := CGO_ENABLED=0 go build -tags grpcnotrace -trimpath -ldflags '-s -w -X main.version=$(VERSION)'

##@ Start here

.PHONY: help
help: ## Explain every target.
	@awk 'BEGIN {FS = ":.*## "} /^##@/ {printf "\n%s\n", substr($$0, 5)} /^[a-zA-Z_-]+:.*## / {printf "  %-18s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: ## Show the whole system for real, from nothing: stand-alone, then in a local Kubernetes. KEEP=1 leaves it running.
	@go run ./hack/demo

.PHONY: demo-standalone
demo-standalone: ## Show the stand-alone form alone: sidecar, sample policy, memory store.
	@go run ./hack/demo --standalone-only

.PHONY: test
test: test-tools ## Run the unit and envtest suites, with the race detector; installs and builds what they need.
	@KUBEBUILDER_ASSETS="$$(go run ./hack/cluster assets --print-path)" \
	  $(TOOL) gotestsum --format pkgname-and-test-fails --rerun-fails=0 -- -race -timeout 20m $(TESTARGS) ./...

.PHONY: test-long
test-long: test-tools ## Compare the limiter's stores with the reference models over 10,000 random schedules each, and test bigger crowds (minutes).
	TEST_LONG=1 go test -timeout 60m ./limiter/memory ./limiter/redis -rapid.checks=2000

##@ Build

COMMANDS ?= ./cmd/...

.PHONY: build
build: ## Build the binaries into bin/; COMMANDS=./cmd/sluice-sidecar builds one.
	$(GO_BUILD) -o bin/ $(COMMANDS)
	@ln -sf sluice bin/kubectl-sluice

.PHONY: shop
shop: ## Build the demo's server into bin/.
	$(GO_BUILD) -o bin/shop ./hack/shop

.PHONY: images
images: build shop ## Build the images and put them on the local cluster, without a registry.
	go run ./hack/cluster load --name $(CLUSTER) --dockerfile Dockerfile --build-context bin=bin \
	  sluice-operator=operator sluice-sidecar=sidecar shop=shop
	go run ./hack/cluster redis-image --name $(CLUSTER)

.PHONY: generate
generate: ## Generate deep copies and the push contract's Go code.
	$(CONTROLLER_GEN) object paths=./api/...
	cd proto && $(subst tools/,../tools/,$(TOOL)) buf generate

.PHONY: manifests
manifests: ## Generate the CRDs.
	$(CONTROLLER_GEN) crd paths=./api/... output:crd:dir=config/crd/bases

##@ Check

.PHONY: lint
lint: ## Run golangci-lint, kube-api-linter and buf's linter.
	$(GOLANGCI) run ./...
	$(TOOL) golangci-lint-kube-api-linter run -c .golangci-kal.yml ./api/...
	cd proto && $(subst tools/,../tools/,$(TOOL)) buf lint

.PHONY: format
format: ## Format the code as the linter wants it.
	$(GOLANGCI) fmt ./...

.PHONY: verify
verify: generate manifests ## Check that generated files are up to date, modules tidy, and PROJECT is one that kubebuilder takes.
	go mod tidy -diff
	@dir=$$(mktemp -d) && cp PROJECT Dockerfile "$$dir" && bin=$$($(TOOL) -n kubebuilder) && (cd "$$dir" && "$$bin" edit --multigroup=false >/dev/null) && rm -r "$$dir" \
	  || { echo "verify: kubebuilder does not take PROJECT" >&2; exit 1; }
	@git diff --exit-code -- api config proto || { echo "verify: generated files are stale: commit what 'make generate manifests' changed" >&2; exit 1; }

.PHONY: bench
bench: ## Run the benchmarks; figures are for comparing within one run.
	go test -run '^$$' -bench . -benchmem ./limiter/... ./sidecar/... ./internal/...

.PHONY: test-tools
test-tools: cluster-assets-envtest
	@command -v redis-server >/dev/null && command -v nginx >/dev/null || { \
	  echo "test: installing redis-server and nginx"; \
	  apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends redis-server nginx-light >/dev/null; }

##@ Local Kubernetes

.PHONY: cluster-assets
cluster-assets: ## Build Kubernetes, etcd and cluster DNS of pinned versions into the cache folder (minutes the first time).
	@go run ./hack/cluster assets

.PHONY: cluster-assets-envtest
cluster-assets-envtest: ## Build only what envtest needs: etcd, kube-apiserver, kubectl.
	@go run ./hack/cluster assets --only envtest

.PHONY: cluster-up
cluster-up: ## Start a local cluster of one node.
	go run ./hack/cluster up --name $(CLUSTER)

.PHONY: cluster-down
cluster-down: ## Stop it and leave nothing behind.
	go run ./hack/cluster down --name $(CLUSTER)

##@ Deploy

.PHONY: install
install: ## Install the CRDs into the cluster of the current kubeconfig.
	$(KUSTOMIZE) build config/crd | $(KUBECTL) apply --server-side -f -

.PHONY: deploy
deploy: ## Install the CRDs and the operator there.
	$(KUSTOMIZE) build config/default | $(KUBECTL) apply --server-side -f -

.PHONY: undeploy
undeploy: ## Remove the operator and the CRDs from there.
	$(KUSTOMIZE) build config/default | $(KUBECTL) delete --ignore-not-found -f -

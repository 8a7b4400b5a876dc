# Everything a person does here. `make help` lists it.

ARENERO_DATA ?= /var/lib/arenero
GO           ?= go
IMAGE        ?= python
VERSION      := $(shell git describe --tags --always --dirty 2>/dev/null || echo dev)
LDFLAGS      := -s -w -X main.version=$(VERSION)
FUZZTIME     ?= 30s

export ARENERO_DATA
# One set of flags for building and testing, so that gVisor is compiled once.
export GOFLAGS := -trimpath

# Packages that link gVisor: its re-exec breaks in a cgo build, and -race needs cgo.
STATIC := ./engine/... ./cmd/arenero/... ./attack/... ./e2e/... ./bench/...
static  = $(shell CGO_ENABLED=0 $(GO) list $(STATIC) 2>/dev/null)
raced   = $(filter-out $(static),$(shell CGO_ENABLED=0 $(GO) list ./...))

.PHONY: help deps guest build image demo test test-cgroup2 lint bench fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z0-9-]+:.*## / {printf "  make %-13s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

deps: ## install what is missing (apt on Debian and Ubuntu)
	@.ci/deps

guest: ## build the agent that is PID 1 in every sandbox
	CGO_ENABLED=0 $(GO) build -ldflags '-s -w' -o guest/bin/guest ./cmd/guest

build: guest ## build bin/arenero, static, the agent inside it
	CGO_ENABLED=0 $(GO) build -ldflags '$(LDFLAGS)' -o bin/arenero ./cmd/arenero

image: build ## build the image `python` into $ARENERO_DATA, once
	@bin/arenero image inspect $(IMAGE) >/dev/null 2>&1 || bin/arenero image build $(IMAGE)

demo: deps build ## a real analysis in a sandbox, then three attacks that fail
	@examples/demo

# One package at a time: some count and kill processes of this machine.
test: deps guest ## all tests, as root: the real kernel, the real sandboxes
	$(GO) test -race -p 1 -timeout 15m $(raced)
	CGO_ENABLED=0 $(GO) test -p 1 -timeout 20m $(static)

test-cgroup2: guest ## the engine on a kernel with cgroup version 2 alone, in an emulated machine
	.ci/cgroup2

lint: guest ## golangci-lint, pinned in tools.mod (the first run compiles it)
	GOFLAGS= $(GO) tool -modfile=tools.mod golangci-lint run

bench: build ## the figures of bench/README.md
	CGO_ENABLED=0 $(GO) run ./bench

fuzz: ## every fuzz target for FUZZTIME (30s)
	@GO='$(GO)' .ci/fuzz '$(FUZZTIME)'

clean: ## remove what was built; images and sandboxes stay
	rm -rf bin guest/bin/guest

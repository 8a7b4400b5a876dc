package gvisor

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"time"

	specs "github.com/opencontainers/runtime-spec/specs-go"
	"gvisor.dev/gvisor/pkg/cpuid"
	"gvisor.dev/gvisor/pkg/log"
	"gvisor.dev/gvisor/runsc/cgroup"
	"gvisor.dev/gvisor/runsc/config"
	"gvisor.dev/gvisor/runsc/flag"

	"github.com/arenero/arenero"
)

// Probe implements [arenero.Engine].
func (e *Engine) Probe(context.Context) (arenero.Capabilities, error) {
	return arenero.Capabilities{
		Version:   Name + " " + pinned,
		Isolation: "userspace-kernel",
		Platform:  e.platform(),
		CPU:       cpuDigest(),
		Pause:     true,
		Snapshot:  true,
		Update:    true,
		Prepare:   true,
		Mounts:    true,
		Missing:   e.defects(),
	}, nil
}

// cpuDigest stands for the CPU features that a snapshot may depend on.
var cpuDigest = sync.OnceValue(func() string {
	cpuid.Initialize()
	sum := sha256.Sum256([]byte(cpuid.HostFeatureSet().FlagString()))
	return hex.EncodeToString(sum[:8])
})

// defects lists what keeps the engine from working here.
func (e *Engine) defects() []arenero.Defect {
	var d []arenero.Defect
	if os.Geteuid() != 0 {
		d = append(d, arenero.Defect{
			What: "not running as root, which is needed to bound memory, CPU and processes of a sandbox",
			Mend: "run it as root, for instance with sudo",
		})
	}
	for _, c := range controllers {
		if _, ok := e.at[c]; !ok {
			d = append(d, arenero.Defect{
				What: fmt.Sprintf("the cgroup controller %q is not mounted", c),
				Mend: fmt.Sprintf("mount it: mkdir -p /sys/fs/cgroup/%[1]s && mount -t cgroup -o %[1]s %[1]s /sys/fs/cgroup/%[1]s, or boot with cgroup version 2", c),
			})
		}
	}
	if e.cfg.Agent == "" {
		d = append(d, arenero.Defect{What: "no guest agent", Mend: "build with `make build`"})
	}
	return d
}

// pinned is the version of gVisor in go.mod; a test holds the two together (a
// test binary carries no build information to read it from). A snapshot made by
// one version cannot be restored by another.
const pinned = "v0.0.0-20260905035102-160fafc42237"

// choosePlatform is what the operator asked for, else KVM where a Sentry starts
// with it, else systrap, which works everywhere.
func (e *Engine) choosePlatform() string {
	if e.cfg.Platform != "" {
		return e.cfg.Platform
	}
	if err := e.tryKVM(); err != nil {
		e.log.Debug("kvm is not used", "why", err)
		return "systrap"
	}
	return "kvm"
}

// tryKVM starts a Sentry on KVM and ends it. That /dev/kvm can be opened proves
// little: a machine may offer it without the hardware's help, where a Sentry dies
// at once (seen with KVM's page-table mode).
func (e *Engine) tryKVM() error {
	f, err := os.OpenFile("/dev/kvm", os.O_RDWR, 0)
	if err != nil {
		return err
	}
	f.Close()
	flags := cpuFlags()
	if !flags["vmx"] && !flags["svm"] {
		return errors.New("the processor shows no hardware virtualisation")
	}
	dir, err := os.MkdirTemp("", "arenero-kvm-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	trial := New(Config{Dir: dir, Agent: e.cfg.Agent, Platform: "kvm", CgroupParent: e.cfg.CgroupParent})
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return trial.try(ctx, arenero.Box{ID: "trial", RootFS: e.cfg.Agent, Limits: arenero.Limits{}.WithDefaults()})
}

// try starts the Sentry of a box, boots nothing in it, and removes it.
func (e *Engine) try(ctx context.Context, b arenero.Box) (err error) {
	i := e.instance(record{ID: b.ID, Limits: b.Limits, Cgroup: filepath.Join(e.parent, b.ID)})
	if err := os.Mkdir(i.dir, 0o700); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, i.Destroy(ctx)) }()
	_, _, err = i.prepare(b)
	return err
}

func cpuFlags() map[string]bool {
	flags := map[string]bool{}
	raw, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return flags
	}
	for line := range strings.SplitSeq(string(raw), "\n") {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "flags" {
			for f := range strings.FieldsSeq(v) {
				flags[f] = true
			}
			break
		}
	}
	return flags
}

// config is gVisor's configuration for one box.
func (e *Engine) config(dir string, network bool) (*config.Config, error) {
	flags := flag.NewFlagSet("gvisor", flag.ContinueOnError)
	config.RegisterFlags(flags)
	mode := "none"
	if network {
		mode = "sandbox"
	}
	for name, value := range map[string]string{
		"root":                    dir,
		"platform":                e.platform(),
		"network":                 mode,
		"overlay2":                "none",  // the root is read-only, and the agent mounts what can be written
		"directfs":                "false", // the Sentry keeps no capability and no file system access
		"host-uds":                "none",
		"host-fifo":               "none",
		"net-raw":                 "false",
		"allow-suid":              "false",
		"ignore-cgroups":          "true",   // ours, see cgroup.go
		"host-settings":           "ignore", // never change the host
		"fdlimit":                 "4096",
		"restore-spec-validation": "enforce",
		"panic-log":               filepath.Join(dir, wireLog), // else what a Sentry dies of is lost
		"traceback":               "single",
		"sidecar-usage-policy":    "LEGACY_DEPRECATED_SLOW_EMBEDDED_FALLBACK",
	} {
		if err := flags.Set(name, value); err != nil {
			return nil, fmt.Errorf("gvisor flag %s: %w", name, err)
		}
	}
	return config.NewFromFlags(flags)
}

// visible is what a guest is told of its machine: the sandbox's limits, never the
// host's size. gVisor asks a cgroup for that; the limits themselves are enforced
// by the group, which this engine makes itself.
type visible struct{ l arenero.Limits }

var _ cgroup.Cgroup = visible{}

func (visible) Install(*specs.LinuxResources) error { return nil }
func (visible) Update(*specs.LinuxResources) error  { return nil }
func (visible) Uninstall() error                    { return nil }
func (visible) Join() (func(), error)               { return func() {}, nil }
func (visible) CloneIntoCgroup() (*os.File, error) {
	return nil, errors.New("the engine moves the box itself")
}
func (v visible) CPUQuota() (int64, error)     { return int64(v.l.CPUs * quotaPeriod), nil }
func (visible) CPUPeriod() (int64, error)      { return quotaPeriod, nil }
func (visible) CPUUsage() (uint64, error)      { return 0, nil }
func (visible) NumCPU() (int, error)           { return runtime.NumCPU(), nil }
func (v visible) MemoryLimit() (uint64, error) { return uint64(v.l.Memory + v.l.Disk), nil }
func (visible) MakePath(string) string         { return "" }

// takeLog sends gVisor's own log, which is one per process, to ours.
func takeLog(to *slog.Logger) { log.SetTarget(emitter{to}) }

type emitter struct{ to *slog.Logger }

//nolint:goprintffuncname // gVisor's interface has the name
func (e emitter) Emit(_ int, level log.Level, _ time.Time, format string, args ...any) {
	if level == log.Warning {
		e.to.Debug("gvisor", "msg", fmt.Sprintf(format, args...))
	}
}

// Package bundle writes the OCI runtime specification of a box.
//
// A specification is made by a list of small rules, each of which knows one
// thing about the box. An engine takes [Default] and appends rules of its own.
// The rules follow the OCI runtime specification, version 1.2
// (https://github.com/opencontainers/runtime-spec).
package bundle

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/arenero/arenero"
)

// Where the guest agent lies in every box, and how it is started.
const (
	AgentDir  = "/.arenero"
	AgentPath = AgentDir + "/guest"
)

// AgentID is the uid and gid of the agent inside the box. It is neither root nor
// the user's, so that no process of a user, not even one that is root in the
// sandbox, may signal or trace the agent.
const AgentID = 65533

// AgentCapabilities is what the agent starts with, inside the box only. It gives
// up those that set up mounts and limits before the first user code runs, and
// hands none to any process it starts.
var AgentCapabilities = []string{
	"CAP_CHOWN", "CAP_DAC_OVERRIDE", "CAP_FOWNER", "CAP_KILL", "CAP_SETGID", "CAP_SETPCAP", "CAP_SETUID",
	"CAP_SYS_ADMIN", "CAP_SYS_PTRACE", "CAP_SYS_RESOURCE",
}

// A Rule sets one aspect of the specification.
type Rule func(*specs.Spec, arenero.Box) error

// Default are the rules that every engine that reads OCI bundles shares.
func Default() []Rule {
	return []Rule{process, capabilities, rlimits, root, mounts, namespaces, hostname}
}

// Spec applies the rules in order.
func Spec(b arenero.Box, rules ...Rule) (*specs.Spec, error) {
	s := &specs.Spec{Version: "1.2.0", Linux: &specs.Linux{}, Annotations: map[string]string{}}
	for _, r := range rules {
		if err := r(s, b); err != nil {
			return nil, err
		}
	}
	return s, nil
}

// Write stores a specification as dir/config.json, readable by root alone.
func Write(s *specs.Spec, dir string) error {
	raw, err := json.Marshal(s)
	if err != nil {
		return fmt.Errorf("encode specification: %w", err)
	}
	return os.WriteFile(filepath.Join(dir, "config.json"), raw, 0o600)
}

func process(s *specs.Spec, b arenero.Box) error {
	s.Process = &specs.Process{
		User:            specs.User{UID: AgentID, GID: AgentID},
		Args:            agentArgs(b),
		Env:             append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, b.Env...),
		Cwd:             "/",
		NoNewPrivileges: true,
	}
	return nil
}

// agentArgs tell the agent where folders of the machine are mounted: it mounts
// places that can be written itself, and must not hide them.
func agentArgs(b arenero.Box) []string {
	args := []string{AgentPath, "init", "--wire=stdio"}
	for _, m := range b.Mounts {
		args = append(args, "--mount="+m.Target)
	}
	return args
}

func capabilities(s *specs.Spec, _ arenero.Box) error {
	caps := AgentCapabilities
	s.Process.Capabilities = &specs.LinuxCapabilities{
		Bounding: caps, Effective: caps, Permitted: caps,
		// The agent is not root, so it keeps them through its own exec only if
		// they are ambient; it clears that set before it starts anything.
		Inheritable: caps, Ambient: caps,
	}
	return nil
}

// rlimits are the agent's own, the same for every box, since a snapshot is only
// restored into a box of the same specification: it must be able to serve while
// the user's processes are at their limits, which it sets when it starts each.
func rlimits(s *specs.Spec, _ arenero.Box) error {
	s.Process.Rlimits = []specs.POSIXRlimit{
		{Type: "RLIMIT_NOFILE", Soft: arenero.MaxOpenFiles, Hard: arenero.MaxOpenFiles},
		{Type: "RLIMIT_CORE", Soft: 0, Hard: 0},
	}
	return nil
}

func root(s *specs.Spec, _ arenero.Box) error {
	s.Root = &specs.Root{Path: "rootfs", Readonly: true}
	return nil
}

func mounts(s *specs.Spec, _ arenero.Box) error {
	s.Mounts = []specs.Mount{
		{Destination: "/proc", Type: "proc", Source: "proc", Options: []string{"nosuid", "noexec", "nodev"}},
		{Destination: "/sys", Type: "sysfs", Source: "sysfs", Options: []string{"nosuid", "noexec", "nodev", "ro"}},
	}
	return nil
}

func namespaces(s *specs.Spec, b arenero.Box) error {
	s.Linux.Namespaces = []specs.LinuxNamespace{
		{Type: specs.PIDNamespace}, {Type: specs.IPCNamespace}, {Type: specs.UTSNamespace}, {Type: specs.MountNamespace},
		{Type: specs.NetworkNamespace, Path: b.NetNS},
	}
	return nil
}

func hostname(s *specs.Spec, b arenero.Box) error {
	s.Hostname = b.Hostname
	return nil
}

package host

import (
	"context"
	"path"
	"slices"
	"strings"

	"github.com/arenero/arenero"
)

// closedTrees can not be mounted at or in: the system's, or the agent's.
var closedTrees = []string{
	"/proc", "/sys", "/dev", "/run", "/var/run", "/disk", "/.arenero", "/etc", "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/boot",
}

// checkMounts refuses mounts that can never be.
func checkMounts(mounts []arenero.VolumeMount) error {
	bad := func(format string, args ...any) error {
		return arenero.Errorf(arenero.Invalid, "check volumes", "", format, args...)
	}
	if len(mounts) > maxVolumeMount {
		return bad("%d volumes, at most %d", len(mounts), maxVolumeMount)
	}
	for i, m := range mounts {
		p := m.Path
		switch {
		case !isLabel(m.Name):
			return bad("%q is not a name of a volume", clip(m.Name, 64))
		case !path.IsAbs(p) || path.Clean(p) != p || len(p) > 1024 || printable(p) != p:
			return bad("volume %s: the path %q must be absolute and clean", m.Name, clip(printable(p), 200))
		case p == "/":
			return bad("volume %s: the path is /", m.Name)
		}
		for _, tree := range closedTrees {
			if within(p, tree) {
				return bad("volume %s: nothing can be mounted in %s", m.Name, tree)
			}
		}
		for _, other := range mounts[:i] {
			if other.Name == m.Name {
				return bad("volume %s is named twice", m.Name)
			}
			if within(p, other.Path) || within(other.Path, p) {
				return bad("volumes %s and %s: one path is in the other", other.Name, m.Name)
			}
		}
	}
	return nil
}

// within reports whether a path is a folder or in it.
func within(p, dir string) bool { return p == dir || strings.HasPrefix(p, dir+"/") }

// mountable refuses volumes that there are not, engines that can not mount them,
// and paths that would hide a folder which the sandbox can not do without.
func (h *Host) mountable(ctx context.Context, who Who, from origin, mounts []arenero.VolumeMount) error {
	const op = "create sandbox"
	if len(mounts) == 0 {
		return nil
	}
	if !from.caps.Mounts {
		return arenero.Errorf(arenero.Unavailable, op, "", "engine %s can not mount volumes", from.engine.Name())
	}
	places := []string{"/tmp", "/var/tmp", "/workspace", userOf(from.image).Home, workdirOf(from.image)}
	for _, m := range mounts {
		if _, err := h.volume(ctx, who.Tenant, m.Name, op); err != nil {
			return err
		}
		for _, place := range places {
			if place != m.Path && within(path.Clean(place), m.Path) || m.Path == "/tmp" || m.Path == "/var/tmp" {
				return arenero.Errorf(arenero.Invalid, op, "", "volume %s: at %s it would hide %s", m.Name, m.Path, place)
			}
		}
	}
	return nil
}

// withVolumes gives a copy the volumes of what it is a copy of. It needs all of
// them, where they were. Those that can be written the caller must name: the copy
// believes that it is alone with files which it found open.
func withVolumes(spec *arenero.Spec, have []arenero.VolumeMount, op string) error {
	writes := slices.IndexFunc(have, func(m arenero.VolumeMount) bool { return !m.ReadOnly })
	switch {
	case slices.Equal(spec.Volumes, have):
		return nil
	case len(spec.Volumes) > 0:
		return arenero.Errorf(arenero.Invalid, op, "", "a copy has the volumes of what it is a copy of, at the same paths").
			WithHint("leave volumes out, or name the same")
	case writes >= 0:
		return arenero.Errorf(arenero.Conflict, op, "", "it writes to volume %s, and so would the copy, to the same files", have[writes].Name).
			WithHint("name its volumes in the request to have it so")
	}
	spec.Volumes = have
	return nil
}

package agent

import (
	"io/fs"
	"strconv"

	"github.com/arenero/arenero/guest/wire"
)

// describe makes what the host is told of a file.
func describe(path string, st fs.FileInfo) *wire.FileInfo {
	info := &wire.FileInfo{
		Path: []byte(path), Size: st.Size(), Mode: uint32(st.Mode()), ModifiedUnixNanos: st.ModTime().UnixNano(),
	}
	if sys, ok := st.Sys().(*unixStat); ok {
		info.Owner, info.Group = strconv.Itoa(int(sys.Uid)), strconv.Itoa(int(sys.Gid))
	}
	return info
}

// names replaces the numbers of owner and group by names, once each.
type names struct{ users, groups map[string]string }

func newNames() names { return names{map[string]string{}, map[string]string{}} }

func (n names) resolve(info *wire.FileInfo) *wire.FileInfo {
	info.Owner = lookup(n.users, "/etc/passwd", info.GetOwner())
	info.Group = lookup(n.groups, "/etc/group", info.GetGroup())
	return info
}

func lookup(known map[string]string, file, id string) string {
	if name, ok := known[id]; ok {
		return name
	}
	name := id
	_ = eachLine(file, 3, func(f []string) bool { // a number will do where it is missing
		if f[2] == id {
			name = f[0]
		}
		return f[2] != id
	})
	known[id] = name
	return name
}

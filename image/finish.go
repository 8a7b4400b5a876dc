package image

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/arenero/arenero"
)

// A tree is a root file system under construction, with what will be its
// manifest.
type tree struct {
	path    string
	started time.Time // what is not older was made by the build
	details Details
	user    string // as asked for: "", "name", "uid", "uid:gid", "name:group"
}

// agentID is the account of the guest agent; user code must not share it.
const agentID = 65533

// mountPoints are the folders that every image has, with their modes. The agent
// mounts over them, so what they held could never be seen: it goes.
var mountPoints = []struct {
	name string
	mode fs.FileMode
}{
	{"proc", 0o555}, {"dev", 0o755}, {"sys", 0o555}, {"run", 0o755},
	{"tmp", 0o777 | fs.ModeSticky}, {"var/tmp", 0o777 | fs.ModeSticky},
	{".arenero", 0o755}, {"disk", 0o755},
}

// seal finishes the tree and stores it as an image. The tree is of no use after.
func (s *Store) seal(ctx context.Context, w *workdir, t *tree, p Progress) (arenero.Image, error) {
	root, err := os.OpenRoot(t.path)
	if err != nil {
		return arenero.Image{}, err
	}
	defer root.Close()
	p.step("finish files", 0, 0)
	if err := t.finish(root); err != nil {
		return arenero.Image{}, err
	}
	p.step("read files", 0, 0)
	top, err := readTree(ctx, root, t.started)
	if err != nil {
		return arenero.Image{}, err
	}
	top.mode, top.uid, top.gid, top.mtime = modeDir|0o755, 0, 0, epoch
	img, err := layOut(top)
	if err != nil {
		return arenero.Image{}, err
	}
	if err := s.room(img.size()); err != nil {
		return arenero.Image{}, err
	}
	file := filepath.Join(w.path, "rootfs.erofs")
	t.details.Digest, err = img.write(ctx, file, p)
	if err != nil {
		return arenero.Image{}, err
	}
	t.details.Size = img.size()
	t.details.Created = time.Now().UTC().Truncate(time.Second)
	return s.publish(ctx, t.details, file)
}

// finish makes the tree fit for a sandbox and fills in the manifest.
func (t *tree) finish(root *os.Root) error {
	for _, m := range mountPoints {
		if err := emptyDir(root, m.name, m.mode); err != nil {
			return err
		}
	}
	for _, file := range []string{"etc/machine-id", "etc/resolv.conf", "etc/hostname"} {
		if err := replaceFile(root, file, nil, 0o644); err != nil {
			return err
		}
	}
	if err := replaceFile(root, "etc/hosts", []byte("127.0.0.1 localhost\n::1 localhost\n"), 0o644); err != nil {
		return err
	}
	u, err := t.account(root)
	if err != nil {
		return err
	}
	t.details.User = u
	for _, dir := range []string{u.Home, "/workspace"} {
		if err := ownedDir(root, dir[1:], u); err != nil {
			return err
		}
	}
	if t.details.Workdir == "" {
		t.details.Workdir = "/workspace"
	}
	if err := ensureDir(root, t.details.Workdir[1:]); err != nil {
		return err
	}
	t.details.Kernels = findKernels(root)
	return nil
}

// emptyDir makes name an empty folder, whatever it was.
func emptyDir(root *os.Root, name string, mode fs.FileMode) error {
	if err := ensureDir(root, path.Dir(name)); err != nil {
		return err
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	if err := root.Mkdir(name, 0o755); err != nil {
		return err
	}
	return root.Chmod(name, mode)
}

// ensureDir makes name a folder and all above it, replacing links and files: a
// link is never followed, so the path means the same inside and outside.
func ensureDir(root *os.Root, name string) error {
	if name == "." || name == "" {
		return nil
	}
	if err := ensureDir(root, path.Dir(name)); err != nil {
		return err
	}
	info, err := root.Lstat(name)
	if err == nil && info.IsDir() {
		return nil
	}
	if err == nil {
		err = root.Remove(name)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = nil
	}
	if err != nil {
		return err
	}
	return root.Mkdir(name, 0o755)
}

// ownedDir makes name a folder of the user.
func ownedDir(root *os.Root, name string, u arenero.User) error {
	if err := ensureDir(root, name); err != nil {
		return err
	}
	return root.Lchown(name, int(u.UID), int(u.GID))
}

// replaceFile writes a file, never through a link.
func replaceFile(root *os.Root, name string, data []byte, mode fs.FileMode) error {
	if err := root.MkdirAll(path.Dir(name), 0o755); err != nil {
		// Something that is no folder, or leads out of the tree, is in the way.
		if err := ensureDir(root, path.Dir(name)); err != nil {
			return err
		}
	}
	if err := root.RemoveAll(name); err != nil {
		return err
	}
	f, err := root.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Chmod(mode), f.Close())
}

// account finds or makes the account that user code runs as. It is never root
// and never the agent's: an image that asks for root gets uid 1000, since root
// without capabilities could do no more than that.
func (t *tree) account(root *os.Root) (arenero.User, error) {
	passwd := readAccounts(root, "etc/passwd", 7)
	group := readAccounts(root, "etc/group", 3)
	name, groupName, _ := strings.Cut(t.user, ":")
	if name == "" || name == "root" || name == "0" {
		name, groupName = "1000", ""
	}
	var u arenero.User
	for _, f := range passwd {
		if f[0] == name || f[2] == name {
			uid, gid, ok := ids(f[2], f[3])
			if !ok {
				continue
			}
			u = arenero.User{Name: f[0], UID: uid, GID: gid, Home: f[5]}
			break
		}
	}
	if u.Name == "" {
		id, _, ok := ids(name, "0")
		if !ok {
			return u, arenero.Errorf(arenero.Invalid, "find user", "", "the image has no account %q", name)
		}
		u = arenero.User{Name: freeName(passwd, id), UID: id, GID: id, Home: "/home/user"}
	}
	if groupName != "" {
		gid := groupName
		for _, f := range group {
			if f[0] == groupName {
				gid = f[2]
			}
		}
		_, g, ok := ids("0", gid)
		if !ok {
			return u, arenero.Errorf(arenero.Invalid, "find user", "", "the image has no group %q", groupName)
		}
		u.GID = g
	}
	if u.UID == 0 || u.UID == agentID || u.GID == agentID {
		return u, arenero.Errorf(arenero.Invalid, "find user", "", "user code cannot run as uid %d gid %d", u.UID, u.GID)
	}
	if u.GID == 0 {
		u.GID = u.UID // the group of root owns too much of a usual image
	}
	if !homeOK(u.Home) {
		u.Home = "/home/user"
	}
	return u, writeAccounts(root, passwd, group, u)
}

// homeOK reports whether a home can be a folder that the agent mounts over.
func homeOK(home string) bool {
	if !cleanAbs(home) || strings.ContainsAny(home, ":\n") {
		return false
	}
	top, _, deeper := strings.Cut(home[1:], "/")
	switch top {
	case "home":
		return deeper
	case "", "proc", "dev", "sys", "run", "tmp", "var", "etc", "usr", "bin", "sbin", "lib", "lib64", ".arenero", "disk", "nonexistent":
		return false
	}
	return true
}

// ids parses a uid and a gid.
func ids(uid, gid string) (u, g uint32, ok bool) {
	a, err1 := strconv.ParseUint(uid, 10, 31)
	b, err2 := strconv.ParseUint(gid, 10, 31)
	return uint32(a), uint32(b), err1 == nil && err2 == nil
}

// freeName is "user", or a name made of the uid when that is taken.
func freeName(passwd [][]string, uid uint32) string {
	for _, f := range passwd {
		if f[0] == "user" {
			return fmt.Sprintf("user%d", uid)
		}
	}
	return "user"
}

// readAccounts reads /etc/passwd or /etc/group; lines that are not entries are
// dropped.
func readAccounts(root *os.Root, file string, fields int) [][]string {
	data, err := readFile(root, file, 1<<20)
	if err != nil {
		return nil
	}
	var all [][]string
	for line := range strings.Lines(string(data)) {
		f := strings.Split(strings.TrimRight(line, "\n"), ":")
		if len(f) >= fields && f[0] != "" {
			all = append(all, f)
		}
	}
	return all
}

// writeAccounts writes both files back with the user and with an account for
// uid 0 in them, which programs expect.
func writeAccounts(root *os.Root, passwd, group [][]string, u arenero.User) error {
	has := func(all [][]string, id uint32) bool {
		for _, f := range all {
			if f[2] == strconv.FormatUint(uint64(id), 10) {
				return true
			}
		}
		return false
	}
	if !has(passwd, 0) {
		passwd = append([][]string{{"root", "x", "0", "0", "root", "/root", "/bin/sh"}}, passwd...)
	}
	if !has(group, 0) {
		group = append([][]string{{"root", "x", "0", ""}}, group...)
	}
	shell := "/bin/sh"
	if _, err := root.Stat("bin/bash"); err == nil {
		shell = "/bin/bash"
	}
	uid, gid := strconv.FormatUint(uint64(u.UID), 10), strconv.FormatUint(uint64(u.GID), 10)
	if !has(passwd, u.UID) {
		passwd = append(passwd, []string{u.Name, "x", uid, gid, "", u.Home, shell})
	}
	for i, f := range passwd {
		if f[0] == u.Name {
			passwd[i][3], passwd[i][5] = gid, u.Home
		}
	}
	if !has(group, u.GID) {
		group = append(group, []string{u.Name, "x", gid, ""})
	}
	return errors.Join(
		replaceFile(root, "etc/passwd", joinAccounts(passwd), 0o644),
		replaceFile(root, "etc/group", joinAccounts(group), 0o644),
	)
}

func joinAccounts(all [][]string) []byte {
	var b strings.Builder
	for _, f := range all {
		b.WriteString(strings.Join(f, ":") + "\n")
	}
	return []byte(b.String())
}

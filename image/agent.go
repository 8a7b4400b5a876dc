package image

import (
	"bytes"
	"context"
	"io"
	"os"
	"path/filepath"
	"strings"
)

// Agent makes the tiny EROFS that engines mount read-only at /.arenero: it holds
// the guest agent as /guest and nothing else. It is kept in dir under the digest
// of its bytes, so the same binary is written once. It returns the path and the
// digest, "sha256:...", which is part of a snapshot's [Key].
func Agent(dir string, binary []byte) (path, digest string, err error) {
	const op = "store agent"
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", "", fail(op, "", err)
	}
	guest := &inode{
		mode: modeFile | 0o755, mtime: epoch, size: int64(len(binary)),
		open: func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(binary)), nil },
	}
	root := &inode{mode: modeDir | 0o755, mtime: epoch, entries: []dirent{{"guest", guest}}}
	img, err := layOut(root)
	if err != nil {
		return "", "", fail(op, "", err)
	}
	work, err := os.MkdirTemp(dir, ".new-")
	if err != nil {
		return "", "", fail(op, "", err)
	}
	defer os.RemoveAll(work)
	file := filepath.Join(work, "agent.erofs")
	digest, err = img.write(context.Background(), file, nil)
	if err != nil {
		return "", "", fail(op, "", err)
	}
	path = filepath.Join(dir, strings.Replace(digest, ":", "-", 1)+".erofs")
	if info, err := os.Stat(path); err == nil && info.Size() == img.size() {
		return path, digest, nil
	}
	if err := os.Chmod(file, 0o400); err != nil {
		return "", "", fail(op, "", err)
	}
	if err := os.Rename(file, path); err != nil {
		return "", "", fail(op, "", err)
	}
	return path, digest, fail(op, "", syncDir(dir))
}

// undated sets the date of the last change in every line of a shadow file to
// that of epoch.
func undated(shadow []byte) []byte {
	day := epochDay()
	var b strings.Builder
	for line := range strings.Lines(string(shadow)) {
		f := strings.Split(line, ":")
		if len(f) > 2 {
			f[2] = day
		}
		b.WriteString(strings.Join(f, ":"))
	}
	return []byte(b.String())
}

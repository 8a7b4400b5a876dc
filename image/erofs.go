package image

import (
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"hash/crc32"
	"io"
	"os"
	"time"
)

// The EROFS written here is the plainest there is, and all that gVisor maps:
// blocks of 4 KiB, no compression, no chunks, no extended attributes, regular
// files always in whole blocks of their own (so that they can be mapped into
// memory), small folders and links inline behind their inode. The order of
// everything follows from the sorted names, so equal trees give equal bytes.
const (
	erofsMagic   = 0xe0f5e1e2
	superOffset  = 1024
	superSize    = 128
	blockSize    = 4096
	inodeSize    = 64
	direntSize   = 12
	slotSize     = 32
	layoutPlain  = 0<<1 | 1 // extended inode, flat plain data
	layoutInline = 2<<1 | 1 // extended inode, data behind the inode
	maxLink      = blockSize - 1
)

// Types of directory entries.
const (
	typeFile = 1
	typeDir  = 2
	typeLink = 7
)

const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

// An inode is a file, a folder or a symbolic link on its way into an image.
type inode struct {
	mode     uint16 // type and permissions
	uid, gid uint32
	mtime    time.Time
	size     int64
	nlink    uint32
	target   string                        // of a link
	open     func() (io.ReadCloser, error) // of a file
	entries  []dirent                      // of a folder, sorted by name, without . and ..
	parent   *inode

	nid    uint64
	inline bool
	block  uint32
	dots   []dirent // entries with . and .., in order
}

// A dirent is one name in a folder.
type dirent struct {
	name string
	node *inode
}

func (n *inode) fileType() byte {
	switch n.mode & 0o170000 {
	case modeDir:
		return typeDir
	case modeLink:
		return typeLink
	}
	return typeFile
}

// An erofsImage is a tree whose place in the file is settled.
type erofsImage struct {
	root   *inode
	nodes  []*inode // in the order of their nids
	blocks uint32
	end    int64 // of the inodes, in bytes
}

// layOut gives every inode its place. Hard links are one *inode under several
// names.
func layOut(root *inode) (*erofsImage, error) {
	img := &erofsImage{root: root}
	seen := map[*inode]bool{}
	off := int64(superOffset + superSize)
	var walk func(n, parent *inode) error
	walk = func(n, parent *inode) error {
		if seen[n] {
			n.nlink++
			return nil
		}
		seen[n] = true
		n.parent, n.nlink = parent, 1
		if n.fileType() == typeDir {
			n.nlink = 2
			n.dots = withDots(n)
			n.size = direntBytes(n.dots)
		}
		if n.fileType() == typeLink {
			n.size = int64(len(n.target))
			if n.size == 0 || n.size > maxLink {
				return fmt.Errorf("write erofs: link of %d bytes", n.size)
			}
		}
		room := int64(inodeSize)
		if n.fileType() != typeFile && n.size <= blockSize-inodeSize {
			n.inline = true
			room += n.size
		}
		// An inode and what is inline behind it stay within one block.
		if off%blockSize+room > blockSize {
			off += blockSize - off%blockSize
		}
		n.nid = uint64(off / slotSize)
		off += (room + slotSize - 1) / slotSize * slotSize
		if off%inodeSize != 0 {
			off += slotSize // 64 byte inodes never straddle a block then
		}
		img.nodes = append(img.nodes, n)
		for _, e := range n.entries {
			if e.node.fileType() == typeDir {
				n.nlink++
			}
			if err := walk(e.node, n); err != nil {
				return err
			}
		}
		return nil
	}
	if err := walk(root, root); err != nil {
		return nil, err
	}
	img.end = off
	block := (off + blockSize - 1) / blockSize
	for _, n := range img.nodes {
		if n.inline || n.size == 0 {
			continue
		}
		n.block = uint32(block)
		block += (n.size + blockSize - 1) / blockSize
		if block > 1<<31 {
			return nil, errors.New("write erofs: the tree is over 8 TiB")
		}
	}
	img.blocks = uint32(block)
	return img, nil
}

// withDots returns the entries of a folder with . and .. in their sorted place:
// names that begin with, say, "+" come before them.
func withDots(n *inode) []dirent {
	all := make([]dirent, 0, len(n.entries)+2)
	dots := []dirent{{".", n}, {"..", n.parent}}
	for _, e := range n.entries {
		for len(dots) > 0 && dots[0].name < e.name {
			all, dots = append(all, dots[0]), dots[1:]
		}
		all = append(all, e)
	}
	return append(all, dots...)
}

// perBlock says how many of the entries fit into the first block, and the bytes
// they take.
func perBlock(entries []dirent) (n, size int) {
	for _, e := range entries {
		s := direntSize + len(e.name)
		if size+s > blockSize {
			break
		}
		size += s
		n++
	}
	return n, size
}

// direntBytes is the size of a folder: whole blocks and the used part of the last.
func direntBytes(entries []dirent) int64 {
	var total int64
	for len(entries) > 0 {
		n, size := perBlock(entries)
		entries = entries[n:]
		if len(entries) > 0 {
			size = blockSize
		}
		total += int64(size)
	}
	return total
}

// encodeDir writes the entries of a folder as they stand on disk.
func encodeDir(entries []dirent) []byte {
	var out []byte
	for len(entries) > 0 {
		n, size := perBlock(entries)
		if n < len(entries) {
			size = blockSize
		}
		b := make([]byte, size)
		at := n * direntSize
		for i, e := range entries[:n] {
			d := b[i*direntSize:]
			binary.LittleEndian.PutUint64(d, e.node.nid)
			binary.LittleEndian.PutUint16(d[8:], uint16(at))
			d[10] = e.node.fileType()
			at += copy(b[at:], e.name)
		}
		out = append(out, b...)
		entries = entries[n:]
	}
	return out
}

// head encodes everything before the data: the super block and the inodes.
func (img *erofsImage) head() []byte {
	b := make([]byte, (img.end+blockSize-1)/blockSize*blockSize)
	le := binary.LittleEndian
	for _, n := range img.nodes {
		i := b[n.nid*slotSize:]
		format := uint16(layoutPlain)
		if n.inline {
			format = layoutInline
		}
		le.PutUint16(i, format)
		le.PutUint16(i[4:], n.mode)
		le.PutUint64(i[8:], uint64(n.size))
		le.PutUint32(i[16:], n.block)
		le.PutUint32(i[20:], uint32(n.nid))
		le.PutUint32(i[24:], n.uid)
		le.PutUint32(i[28:], n.gid)
		le.PutUint64(i[32:], uint64(n.mtime.Unix()))
		le.PutUint32(i[40:], uint32(n.mtime.Nanosecond()))
		le.PutUint32(i[44:], n.nlink)
		if n.inline && n.fileType() == typeDir {
			copy(i[inodeSize:], encodeDir(n.dots))
		} else if n.inline {
			copy(i[inodeSize:], n.target)
		}
	}
	s := b[superOffset:]
	le.PutUint32(s, erofsMagic)
	le.PutUint32(s[8:], 1) // the checksum counts
	s[12] = 12             // log2 of the block size
	le.PutUint16(s[14:], uint16(img.root.nid))
	le.PutUint64(s[16:], uint64(len(img.nodes)))
	le.PutUint64(s[24:], uint64(epoch.Unix()))
	le.PutUint32(s[36:], img.blocks)
	le.PutUint32(s[4:], ^crc32.Checksum(b[superOffset:blockSize], crc32.MakeTable(crc32.Castagnoli)))
	return b
}

// size is that of the whole image in bytes.
func (img *erofsImage) size() int64 { return int64(img.blocks) * blockSize }

// write writes the image to a new file and returns the digest of its bytes. The
// file is on the disk when it returns.
func (img *erofsImage) write(ctx context.Context, path string, p Progress) (digest string, err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return "", err
	}
	defer func() {
		if cerr := f.Close(); err == nil {
			err = cerr
		}
		if err != nil {
			_ = os.Remove(path)
		}
	}()
	sum := sha256.New()
	w := bufio.NewWriterSize(io.MultiWriter(f, sum), 1<<20)
	head := img.head()
	if _, err := w.Write(head); err != nil {
		return "", err
	}
	done := int64(len(head))
	buf := make([]byte, 256<<10)
	for i, n := range img.nodes {
		if n.inline || n.size == 0 {
			continue
		}
		if i%512 == 0 {
			if err := ctx.Err(); err != nil {
				return "", err
			}
			p.step("write image", done, img.size())
		}
		if err := n.writeData(w, buf); err != nil {
			return "", err
		}
		done += (n.size + blockSize - 1) / blockSize * blockSize
	}
	if err := w.Flush(); err != nil {
		return "", err
	}
	if err := f.Sync(); err != nil {
		return "", err
	}
	p.step("write image", img.size(), img.size())
	return "sha256:" + hex.EncodeToString(sum.Sum(nil)), nil
}

// writeData writes the blocks of one inode.
func (n *inode) writeData(w io.Writer, buf []byte) error {
	var wrote int64
	switch n.fileType() {
	case typeDir:
		b, err := w.Write(encodeDir(n.dots))
		if err != nil {
			return err
		}
		wrote = int64(b)
	case typeLink:
		b, err := io.WriteString(w, n.target)
		if err != nil {
			return err
		}
		wrote = int64(b)
	default:
		r, err := n.open()
		if err != nil {
			return err
		}
		// One byte more than the inode says shows a file that grew.
		wrote, err = io.CopyBuffer(onlyWriter{w}, io.LimitReader(r, n.size+1), buf)
		_ = r.Close()
		if err != nil {
			return err
		}
	}
	if wrote != n.size {
		return fmt.Errorf("write erofs: a file changed from %d to %d bytes meanwhile", n.size, wrote)
	}
	if pad := n.size % blockSize; pad != 0 {
		_, err := w.Write(zeros[:blockSize-pad])
		return err
	}
	return nil
}

// onlyWriter hides ReadFrom, so that io.CopyBuffer uses its buffer.
type onlyWriter struct{ io.Writer }

var zeros [blockSize]byte

package host

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"github.com/arenero/arenero"
)

// A volume's disk is a file with an ext4 file system in it, as large as the quota,
// mounted over a loop device: that is a quota which holds on every host file
// system, and at which a guest sees an ordinary full disk. The file is sparse, so
// that it takes up what is in it; what is deleted is given back.

// diskFile and diskDir are what a volume's folder holds.
const (
	diskFile = "disk.ext4"
	diskDir  = "files"
)

const mkfs = "mkfs.ext4"

// VolumeTool finds the program that makes volumes.
func VolumeTool() (path string, err error) {
	if path, err = exec.LookPath(mkfs); err == nil {
		return path, nil
	}
	for _, dir := range []string{"/usr/sbin", "/sbin"} { // not in every PATH
		if _, err := os.Stat(filepath.Join(dir, mkfs)); err == nil {
			return filepath.Join(dir, mkfs), nil
		}
	}
	return "", arenero.Errorf(arenero.Unavailable, "make volume", "", "%s is not installed", mkfs).
		WithHint("install e2fsprogs")
}

// makeDisk makes the disk of a volume in a folder, owned by uid, and proves that
// it can be mounted here.
func makeDisk(ctx context.Context, dir string, size int64, uid int) error {
	tool, err := VolumeTool()
	if err != nil {
		return err
	}
	file := filepath.Join(dir, diskFile)
	f, err := os.OpenFile(file, os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o600)
	if err == nil {
		err = errors.Join(f.Truncate(size), f.Close())
	}
	if err == nil {
		err = os.Mkdir(filepath.Join(dir, diskDir), 0o700)
	}
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, tool, "-q", "-F", "-m", "0",
		"-E", fmt.Sprintf("root_owner=%d:%d,lazy_itable_init=1,nodiscard", uid, uid), file)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w: %s", mkfs, err, clip(printable(said.String()), 300))
	}
	if err := mountDisk(dir); err != nil {
		return arenero.Errorf(arenero.Unavailable, "make volume", "", "it can not be mounted, and without that its quota would not hold: %w", err).
			WithHint("volumes need root, loop devices (modprobe loop; in a container, /dev/loop-control), ext4 in the kernel and Linux 5.8")
	}
	// It is of use to a checker of file systems, which makes it again.
	err = os.Remove(filepath.Join(dir, diskDir, "lost+found"))
	return errors.Join(err, unmountDisk(dir))
}

// mountDisk mounts the disk of a volume's folder, if it is not.
func mountDisk(dir string) error {
	if isMounted(dir) {
		return nil
	}
	var err error
	for range 10 {
		var dev *os.File
		if dev, err = attachLoop(filepath.Join(dir, diskFile)); err != nil {
			return err
		}
		err = unix.Mount(dev.Name(), filepath.Join(dir, diskDir), "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "errors=remount-ro,discard")
		_ = dev.Close() // the mount holds it, or it goes
		if !errors.Is(err, unix.ENXIO) {
			break // otherwise the device was just being let go of
		}
	}
	if err != nil {
		return fmt.Errorf("mount: %w", err)
	}
	return nil
}

// unmountDisk unmounts it, if it is mounted. Boxes that still use it go on: they
// have mounts of their own.
func unmountDisk(dir string) error {
	if !isMounted(dir) {
		return nil
	}
	giveBack(filepath.Join(dir, diskDir))
	err := unix.Unmount(filepath.Join(dir, diskDir), unix.UMOUNT_NOFOLLOW)
	for try := 0; errors.Is(err, unix.EBUSY) && try < 20; try++ {
		time.Sleep(5 * time.Millisecond) // a new process of ours may have a copy of our mounts, for a moment
		err = unix.Unmount(filepath.Join(dir, diskDir), unix.UMOUNT_NOFOLLOW)
	}
	if err != nil {
		return fmt.Errorf("unmount: %w", err)
	}
	return nil
}

// giveBack frees on this machine what is free in a file system. While it is
// mounted the kernel does so by and by, but what waits is lost at the end.
func giveBack(at string) {
	const fitrim = 0xc0185879 // linux/fs.h, FITRIM
	f, err := os.Open(at)
	if err != nil {
		return
	}
	defer f.Close()
	all := struct{ start, length, least uint64 }{length: math.MaxUint64}
	_, _, _ = unix.Syscall(unix.SYS_IOCTL, f.Fd(), fitrim, uintptr(unsafe.Pointer(&all))) // not every host file system can
}

func isMounted(dir string) bool {
	var outer, inner unix.Stat_t
	return unix.Lstat(dir, &outer) == nil && unix.Lstat(filepath.Join(dir, diskDir), &inner) == nil && outer.Dev != inner.Dev
}

// diskUsed is what a disk takes up on this machine, in bytes.
func diskUsed(dir string) int64 {
	var st unix.Stat_t
	if err := unix.Stat(filepath.Join(dir, diskFile), &st); err != nil {
		return 0
	}
	return st.Blocks * 512
}

// attachLoop returns a loop device over a file. It lets go of the file when the
// device is closed and not mounted any more. One that is there already is used:
// two over one file would be two file systems that destroy each other, and a box
// of an earlier daemon, in whose mounts we can not look, may still hold one.
func attachLoop(file string) (*os.File, error) {
	back, err := os.OpenFile(file, os.O_RDWR|unix.O_NOFOLLOW, 0)
	if err != nil {
		return nil, err
	}
	defer back.Close()
	if dev := attached(back); dev != nil {
		return dev, nil
	}
	ctl, err := os.OpenFile("/dev/loop-control", os.O_RDWR, 0)
	if err != nil {
		return nil, err
	}
	defer ctl.Close()
	for range 64 { // others take them too
		n, err := unix.IoctlRetInt(int(ctl.Fd()), unix.LOOP_CTL_GET_FREE)
		if err != nil {
			return nil, fmt.Errorf("find a free loop device: %w", err)
		}
		dev, err := openLoop(n)
		if err != nil {
			return nil, err
		}
		conf := unix.LoopConfig{Fd: uint32(back.Fd())}
		conf.Info.Flags = unix.LO_FLAGS_AUTOCLEAR | unix.LO_FLAGS_DIRECT_IO
		copy(conf.Info.File_name[:len(conf.Info.File_name)-1], file)
		err = unix.IoctlLoopConfigure(int(dev.Fd()), &conf)
		if err == nil {
			return dev, nil
		}
		dev.Close()
		if !errors.Is(err, unix.EBUSY) {
			return nil, fmt.Errorf("set up a loop device: %w", err)
		}
	}
	return nil, errors.New("no loop device could be had")
}

// attached finds the loop device that a file has.
func attached(back *os.File) *os.File {
	var st unix.Stat_t
	if unix.Fstat(int(back.Fd()), &st) != nil {
		return nil
	}
	used, _ := filepath.Glob("/sys/block/loop*/loop")
	for _, path := range used {
		var n int
		if _, err := fmt.Sscanf(strings.TrimPrefix(path, "/sys/block/"), "loop%d/", &n); err != nil {
			continue
		}
		dev, err := openLoop(n)
		if err != nil {
			continue
		}
		info, err := unix.IoctlLoopGetStatus64(int(dev.Fd()))
		if err == nil && info.Inode == st.Ino && info.Device == st.Dev {
			return dev
		}
		dev.Close()
	}
	return nil
}

// openLoop opens a device, and makes its node where nobody else does.
func openLoop(n int) (*os.File, error) {
	path := fmt.Sprintf("/dev/loop%d", n)
	dev, err := os.OpenFile(path, os.O_RDWR, 0)
	if errors.Is(err, os.ErrNotExist) {
		err = unix.Mknod(path, unix.S_IFBLK|0o660, int(unix.Mkdev(7, uint32(n))))
		if err == nil || errors.Is(err, unix.EEXIST) {
			dev, err = os.OpenFile(path, os.O_RDWR, 0)
		}
	}
	return dev, err
}

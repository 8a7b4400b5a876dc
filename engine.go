package arenero

import (
	"context"
	"net"
	"time"
)

// An Engine makes boxes. It knows nothing of users, policies, exec or files.
//
// All methods may be called from any number of goroutines. Errors are *[Error].
type Engine interface {
	// Name is the word users choose it by: "gvisor".
	Name() string

	// Probe says whether the engine can run here and what it can do. It changes
	// nothing. A machine that lacks something is not an error: it stands in
	// Capabilities.Missing.
	Probe(ctx context.Context) (Capabilities, error)

	// Create makes and starts a box: all or nothing. The guest agent is running,
	// though perhaps not yet answering, when it returns. The same ID twice is a
	// [Conflict]; a limit that cannot be enforced here is [Unavailable]; a
	// snapshot that cannot be restored here is [Invalid] and nothing was made.
	Create(ctx context.Context, b Box) (Instance, error)

	// Open takes up a box that an earlier process made. [NotFound] when the
	// engine holds no such box.
	Open(ctx context.Context, id string) (Instance, error)

	// List names everything the engine holds, dead and half-made boxes included,
	// so that the host can sweep what nobody owns.
	List(ctx context.Context) ([]string, error)
}

// A Preparer is an [Engine] that can do most of a create ahead of time.
type Preparer interface {
	// Prepare makes a box in which nothing runs yet. It is all or nothing, as
	// Create is. Box.Restore and Box.Hostname are given to Start.
	Prepare(ctx context.Context, b Box) (Prepared, error)
}

// Prepared is a box that waits for what is to run in it. The caller ends it by
// Start or by Destroy.
type Prepared interface {
	ID() string
	// Start boots or restores, as b says; of b, the ID, the root and the network
	// must be those it was prepared with. After an error nothing is left.
	Start(ctx context.Context, b Box) (Instance, error)
	// Destroy gives it up. It is idempotent.
	Destroy(ctx context.Context) error
}

// An Instance is one box with a wire to the guest agent inside.
type Instance interface {
	// ID is the box's ID.
	ID() string

	// Dial opens the wire to the guest agent. A box has one wire: a later Dial,
	// from this process or from another, takes it over, and the connection that
	// held it before fails. The caller closes it; the box lives on.
	Dial(ctx context.Context) (net.Conn, error)

	// Usage says what the box uses now, measured from outside.
	Usage(ctx context.Context) (Usage, error)

	// Wait blocks until the box has ended by itself or by Destroy and says how.
	// Any number of callers may wait.
	Wait(ctx context.Context) (Exit, error)

	// Destroy ends the box and removes all that belongs to it. It is idempotent;
	// nil means that nothing is left. After an error it can be called again.
	Destroy(ctx context.Context) error
}

// A Pauser is an [Instance] that can be stopped and go on in memory.
type Pauser interface {
	Pause(ctx context.Context) error
	Resume(ctx context.Context) error
}

// A Snapshotter is an [Instance] that can be written to disk.
//
// Snapshot writes memory and files into dir, which must be empty. With
// keepRunning false the box has ended when it returns. A snapshot is restored by
// Create with Box.Restore set to dir.
type Snapshotter interface {
	Snapshot(ctx context.Context, dir string, keepRunning bool) error
}

// An Updater is an [Instance] whose limits can change while it runs.
type Updater interface {
	Update(ctx context.Context, l Limits) error
}

// A Box is all that an engine needs to make one.
type Box struct {
	ID       string   // the engine's name for it: [a-z0-9-], at most 64
	RootFS   string   // path of the image's EROFS file, read-only and shared
	Restore  string   // directory of a snapshot to restore instead of booting; "" boots
	Hostname string   //
	Env      []string // of the guest agent alone; an image's environment is for user code, see Wake
	Mounts   []Mount  // folders of this machine that are seen inside
	NetNS    string   // path of a network namespace made for this box; "" means no network at all
	Limits   Limits   //
}

// A Mount is a folder of this machine that a box sees.
type Mount struct {
	Source   string // absolute, here
	Target   string // absolute, inside; made if it is not there
	ReadOnly bool
}

// Capabilities say what an engine can do on this machine.
type Capabilities struct {
	Version   string   // of the engine: "gvisor 20260905", part of a snapshot's key
	Isolation string   // "userspace-kernel", "container", "vm", "emulation"
	Platform  string   // how it runs guest code: "systrap", "kvm"
	CPU       string   // digest of the CPU features a snapshot depends on
	Pause     bool     //
	Snapshot  bool     //
	Update    bool     //
	Prepare   bool     //
	Mounts    bool     // Box.Mounts
	Missing   []Defect // what keeps it from working here; empty when it can run
}

// A Defect is something about this machine that needs mending.
type Defect struct {
	What string // "the memory cgroup controller is not mounted"
	Mend string // "mount -t cgroup -o memory ..."
}

// Usage is what a box uses, measured by the host.
type Usage struct {
	CPU       time.Duration `json:"cpu"`       // since it was made or restored
	Memory    int64         `json:"memory"`    // bytes charged to it now, the engine's own share included
	MaxMemory int64         `json:"maxMemory"` // the most so far
	Tasks     int           `json:"tasks"`     // host threads
}

// Exit is how a box ended.
type Exit struct {
	Code        int    // status of the guest agent, or 128 + signal
	OutOfMemory bool   // the host's memory limit ended it
	Destroyed   bool   // Destroy was called
	Reason      string // for people: "killed by the memory limit"
}

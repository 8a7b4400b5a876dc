package arenero

import (
	"context"
	"io"
	"io/fs"
	"net"
	"time"
)

// A Guest is the agent inside a sandbox, PID 1 in every box on every engine.
// Every reply is bounded and validated by the implementation; errors are
// *[Error]. Streams end when their context does.
type Guest interface {
	Processes
	Files
	Kernels

	// Hello says who answers. It is the first call on a new wire.
	Hello(ctx context.Context) (Hello, error)

	// Wake gives a box its identity before any user code runs: after boot, and
	// after every restore, when the clock jumped and all randomness in memory is
	// shared with other copies of the same snapshot.
	Wake(ctx context.Context, w Wake) error

	// DialPort connects to a TCP port on the sandbox's loopback.
	DialPort(ctx context.Context, port int) (net.Conn, error)

	// Close gives up the wire. What runs inside goes on.
	Close() error
}

// Hello is the agent's answer to a greeting.
type Hello struct {
	Version string       // of the agent
	Specs   []KernelSpec // the kernels installed in this image
	Uptime  time.Duration
}

// Wake is the identity of a sandbox, given once per boot or restore.
type Wake struct {
	SandboxID string
	Hostname  string
	Now       time.Time         // the host's wall clock
	Entropy   []byte            // at least 32 fresh random bytes
	Env       map[string]string // of every process and kernel from now on, on top of the image's
	Limits    Limits            // what the agent enforces inside
	User      User              // who user code is
	Workdir   string            // where user code starts
	Warm      bool              // this box only warms a snapshot: it waits for another Wake before user code
}

// A User is an account inside a sandbox.
type User struct {
	Name string `json:"name"`
	UID  uint32 `json:"uid"`
	GID  uint32 `json:"gid"`
	Home string `json:"home"`
}

// A Command is a process to start. No shell ever touches it.
type Command struct {
	Argv       []string          // Argv[0] is looked up in PATH of Env inside the sandbox
	Env        map[string]string // on top of the sandbox's
	Dir        string            // "" is the sandbox's work directory
	User       string            // a name inside the sandbox; "" is the sandbox's user
	Stdin      bool              // whether stdin is written; otherwise it is empty
	PTY        *Window           // a terminal of this size instead of pipes
	Timeout    time.Duration     // 0 is none
	Detach     bool              // goes on when the caller goes away
	Tag        string            // a name to find it by
	OutputKeep int64             // bytes of each stream the agent keeps for a later Attach; 0 is 64 KiB
}

// Window is the size of a terminal.
type Window struct{ Cols, Rows uint16 }

// Processes are the processes of a sandbox.
type Processes interface {
	// Start starts a command. [Invalid] when it cannot be found or run.
	Start(ctx context.Context, c Command) (Process, error)
	// Attach takes up a running or just ended process by pid: what the agent has
	// kept of its output comes first. [NotFound] when it is not known.
	Attach(ctx context.Context, pid int) (Process, error)
	// List names what the agent started and is still running.
	ListProcesses(ctx context.Context) ([]ProcessInfo, error)
	// Signal sends a signal to a process of ours, or to its whole tree.
	Signal(ctx context.Context, pid int, signal string, tree bool) error
}

// ProcessInfo is a row of the list of processes.
type ProcessInfo struct {
	PID     int       `json:"pid"`
	Tag     string    `json:"tag,omitempty"`
	Argv    []string  `json:"argv"`
	Dir     string    `json:"dir"`
	Started time.Time `json:"started"`
}

// A Process is one running process, seen through one stream.
type Process interface {
	PID() int
	// Next returns the next piece of output, or the exit. After the exit it
	// returns io.EOF. One goroutine at a time.
	Next() (ProcessEvent, error)
	// Write sends to stdin or to the terminal, CloseStdin ends it.
	io.Writer
	CloseStdin() error
	Resize(Window) error
	// Close lets go of the stream. A process that is not detached is killed with
	// its whole tree.
	Close() error
}

// A ProcessEvent is output or, at the end, the exit.
type ProcessEvent struct {
	Stdout, Stderr []byte       // one of the two; a terminal's output is Stdout
	Dropped        int64        // bytes lost before this piece (on Attach only)
	Exit           *ProcessExit // set on the last event
}

// ProcessExit is how a process ended.
type ProcessExit struct {
	Code     int
	Signal   string // "SIGKILL"; "" when it exited by itself
	Reason   ExitReason
	Duration time.Duration
}

// Files are the files of a sandbox. Paths are absolute inside it or relative to
// the work directory; they act with the rights of the user ("" is the sandbox's)
// and can not leave the sandbox.
type Files interface {
	Stat(ctx context.Context, user, path string) (FileInfo, error)
	// ReadDir lists a folder down to depth (1 is the folder itself). At most
	// MaxEntries; [TooLarge] beyond.
	ReadDir(ctx context.Context, user, path string, depth int) ([]FileInfo, error)
	// ReadFile streams size bytes from offset; size < 0 reads to the end. The
	// caller closes it.
	ReadFile(ctx context.Context, user, path string, offset, size int64) (io.ReadCloser, FileInfo, error)
	// WriteFile replaces a file by the bytes of r, making parent folders. Nothing
	// half written is ever visible under the name: it appears at the end.
	WriteFile(ctx context.Context, user, path string, mode fs.FileMode, r io.Reader) (FileInfo, error)
	// ReadTree streams a folder and what is below it as a tar archive in the PAX
	// format: regular files, folders and symbolic links, with modes and times and
	// without owners; what is neither is left out. A file that changes meanwhile has
	// the size it had when it was reached; what the user may not read ends the
	// stream with [Denied]. The caller closes it, and unpacks it as what it is: a
	// stranger's archive.
	ReadTree(ctx context.Context, user, path string) (io.ReadCloser, error)
	// WriteTree unpacks a tar archive below a folder, which is made if it is missing.
	// Nothing is written outside of it, whatever the archive and the links in the
	// folder say. Each file appears at once and replaces what is there; those before
	// an error stay. Set-id bits are dropped. [Invalid] for what is not an archive,
	// for devices, pipes and sparse files; [TooLarge] for more than MaxTreeEntries.
	WriteTree(ctx context.Context, user, path string, r io.Reader) (TreeInfo, error)
	MakeDir(ctx context.Context, user, path string, mode fs.FileMode) error
	Move(ctx context.Context, user, from, to string) error
	// Remove removes a file, or a folder with all that is in it.
	Remove(ctx context.Context, user, path string) error
	Chmod(ctx context.Context, user, path string, mode fs.FileMode) error
	// Watch reports changes below a folder until ctx ends; the channel is closed
	// then. Events are dropped, and said to be, when the reader is slow.
	Watch(ctx context.Context, user, path string, recursive bool) (<-chan FileEvent, error)
}

// MaxEntries bounds one listing of a folder.
const MaxEntries = 100_000

// MaxTreeEntries bounds one archive of a folder.
const MaxTreeEntries = 1_000_000

// TreeInfo is what was unpacked.
type TreeInfo struct {
	Files int   `json:"files"` // files and links
	Bytes int64 `json:"bytes"` // in the files
}

// FileInfo describes a file inside a sandbox. All of it is what the guest says.
type FileInfo struct {
	Path     string      `json:"path"`
	Name     string      `json:"name"`
	Size     int64       `json:"size"`
	Mode     fs.FileMode `json:"mode"`
	Modified time.Time   `json:"modified"`
	Owner    string      `json:"owner"`
	Group    string      `json:"group"`
	Link     string      `json:"link,omitempty"` // target of a symbolic link
}

// A FileEvent is one change below a watched folder.
type FileEvent struct {
	Path    string `json:"path"`
	Op      string `json:"op"`                // create write remove rename chmod
	Dropped int    `json:"dropped,omitempty"` // events lost before this one
}

// Kernels are the Jupyter kernels of a sandbox.
type Kernels interface {
	// StartKernel starts a kernel of an installed language under a name of its
	// own. [NotFound] for a language the image lacks, [Conflict] for a name in use.
	StartKernel(ctx context.Context, k KernelRequest) (KernelInfo, error)
	ListKernels(ctx context.Context) ([]KernelInfo, error)
	// StopKernel ends a kernel and all it started.
	StopKernel(ctx context.Context, name string) error
	// RestartKernel gives the name a fresh interpreter; variables are gone.
	RestartKernel(ctx context.Context, name string) error
	// InterruptKernel stops the running cell; variables stay.
	InterruptKernel(ctx context.Context, name string) error
	// Execute runs a cell. Cells of one kernel run one after another.
	Execute(ctx context.Context, e Execute) (Execution, error)
	Complete(ctx context.Context, kernel, code string, cursor int) (Completion, error)
	Inspect(ctx context.Context, kernel, code string, cursor int) (map[string]string, error)
}

// KernelSpec is an installed kernel.
type KernelSpec struct {
	Name     string `json:"name"`     // "python3"
	Language string `json:"language"` // "python"
	Display  string `json:"display"`  // "Python 3"
}

// KernelRequest asks for a kernel.
type KernelRequest struct {
	Name     string // the kernel's own name: [a-zA-Z0-9._-], at most 64
	Language string // a language or the name of a spec; "" is python
	Dir      string
	Env      map[string]string
}

// KernelInfo is a kernel of a sandbox.
type KernelInfo struct {
	Name     string `json:"name"`
	Language string `json:"language"`
	Spec     string `json:"spec"`
	Dir      string `json:"dir"`
	State    string `json:"state"` // starting idle busy dead
	PID      int    `json:"pid"`
	Count    int    `json:"execution_count"`
}

// Execute is one cell to run.
type Execute struct {
	Kernel     string
	Code       string
	Timeout    time.Duration // 0 is none; the cell is interrupted, then the kernel killed
	Env        map[string]string
	Script     *Script // run as a script does, instead of as a cell
	AllowStdin bool    // otherwise a request for input raises in the cell at once
	Silent     bool    // no history, no count
}

// Script makes a cell see itself as a script does: __name__, __file__ and
// sys.argv are set, sys.exit ends it with that status.
type Script struct {
	File  string
	Args  []string
	Stdin []byte // what it reads from standard input
}

// An Execution is one running cell.
type Execution interface {
	// Next returns the next event; io.EOF after the end.
	Next() (KernelEvent, error)
	// Answer answers a request for input.
	Answer(ctx context.Context, text string) error
	// Close lets go of the stream and interrupts a cell that still runs.
	Close() error
}

// A KernelEvent is one thing that happened while a cell ran; one field is set.
type KernelEvent struct {
	Stdout, Stderr string
	Display        *Display     // display_data, execute_result
	Update         *Display     // update_display_data, by its ID
	Clear          *ClearOutput // clear_output
	Input          *InputRequest
	Error          *RunError
	End            *KernelEnd // the last event
}

// ClearOutput asks the reader to forget what it has shown.
type ClearOutput struct {
	Wait bool `json:"wait"` // only when the next output comes
}

// InputRequest asks for a line of text.
type InputRequest struct {
	Prompt   string `json:"prompt"`
	Password bool   `json:"password"`
}

// KernelEnd is how a cell ended.
type KernelEnd struct {
	Reason         ExitReason
	ExitCode       int
	Signal         string
	ExecutionCount int
	Duration       time.Duration
}

// Completion is what could follow at a cursor.
type Completion struct {
	Matches    []string `json:"matches"`
	Start, End int
}

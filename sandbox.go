package arenero

import "time"

// A Spec is what a caller asks for. The zero value is a sandbox of the default
// image with the default limits and no network.
type Spec struct {
	Image     string            `json:"image"`      // name or digest; "" is "python"
	Snapshot  string            `json:"snapshot"`   // id of a snapshot to start from instead of an image
	Engine    string            `json:"engine"`     // "" is the host's default
	Limits    Limits            `json:"limits"`     //
	Env       map[string]string `json:"env"`        // of every process and kernel
	Labels    map[string]string `json:"labels"`     // the caller's own
	Hostname  string            `json:"hostname"`   // "" is the id
	Lifetime  time.Duration     `json:"-"`          // until OnTimeout happens; 0 is the host's default
	Idle      time.Duration     `json:"-"`          // unused and at rest for so long, it sleeps; 0 is the host's default, below 0 is never
	OnTimeout OnTimeout         `json:"on_timeout"` // "" is kill
	Volumes   []VolumeMount     `json:"volumes"`    //
	Wait      time.Duration     `json:"-"`          // how long it may queue for a place on this machine; 0 is not at all
}

// OnTimeout says what becomes of a sandbox when its lifetime is over.
type OnTimeout string

// What can become of it.
const (
	KillOnTimeout  OnTimeout = "kill"
	PauseOnTimeout OnTimeout = "pause" // it sleeps until somebody uses it, and then lives for another lifetime
)

// A VolumeMount is a volume seen in a sandbox.
type VolumeMount struct {
	Name     string `json:"name"`
	Path     string `json:"path"` // absolute, inside
	ReadOnly bool   `json:"read_only"`
}

// A Sandbox is what the host knows of one.
type Sandbox struct {
	ID        string            `json:"id"` // unguessable: "sbx-" and 26 characters of base32
	State     State             `json:"state"`
	Image     string            `json:"image"`
	Engine    string            `json:"engine"`
	Limits    Limits            `json:"limits"`
	Labels    map[string]string `json:"labels"`
	Hostname  string            `json:"hostname"`
	Tenant    string            `json:"tenant"`
	Created   time.Time         `json:"created"`
	Ends      time.Time         `json:"ends"` // when its lifetime is over
	Lifetime  Seconds           `json:"lifetime"`
	Idle      Seconds           `json:"idle"` // unused for so long, it sleeps; 0 is never
	OnTimeout OnTimeout         `json:"on_timeout"`
	From      string            `json:"from"`               // how it was made last: pool, standby, restore, boot, snapshot, fork
	FromWhy   string            `json:"from_why"`           // why not the fastest way; may be empty
	Parent    string            `json:"parent,omitempty"`   // the sandbox it was forked from
	Snapshot  string            `json:"snapshot,omitempty"` // the snapshot it was made of
	Volumes   []VolumeMount     `json:"volumes,omitempty"`
	Reason    string            `json:"reason,omitempty"` // why it ended, or why it sleeps
	ExitCause ExitReason        `json:"exit_reason,omitempty"`
}

// A Patch is what changes of a sandbox while it lives; a nil field stays.
type Patch struct {
	Lifetime  *time.Duration    // from now on
	Idle      *time.Duration    // below 0 is never
	OnTimeout *OnTimeout        //
	Labels    map[string]string // replaces all of them, if not nil
	Limits    *Limits           // zero fields stay; the disk can not change
}

// A Snapshot is the memory and the files of a sandbox at one moment, kept on
// disk. Any number of sandboxes can be made of it; its own sandbox can be rolled
// back to it.
type Snapshot struct {
	ID      string            `json:"id"` // "snap-" and 26 characters
	Name    string            `json:"name,omitempty"`
	Tenant  string            `json:"tenant"`
	Sandbox string            `json:"sandbox"` // whose it is
	Image   string            `json:"image"`   // digest
	Engine  string            `json:"engine"`
	Limits  Limits            `json:"limits"`
	Labels  map[string]string `json:"labels"`
	Volumes []VolumeMount     `json:"volumes,omitempty"` // it had; what is in them is no part of it
	Size    int64             `json:"size"`              // bytes on disk
	Created time.Time         `json:"created"`
	Usable  bool              `json:"usable"`        // it can be restored here and now
	Why     string            `json:"why,omitempty"` // why not
}

// A Volume is a folder that outlives sandboxes.
type Volume struct {
	Name    string    `json:"name"`
	Tenant  string    `json:"tenant"`
	Quota   int64     `json:"quota"` // bytes
	Used    int64     `json:"used"`  // bytes
	Created time.Time `json:"created"`
	Holders []string  `json:"sandboxes"` // that have it mounted
}

// A Pool keeps sandboxes of one image and one size ready.
type Pool struct {
	Image  string  `json:"image"`
	CPUs   float64 `json:"cpus"`
	Memory int64   `json:"memory"`
	Min    int     `json:"min"` // always ready
	Max    int     `json:"max"` // never more
	Target int     `json:"target"`
	Ready  int     `json:"ready"`
	Making int     `json:"making"`
	Hits   int64   `json:"hits"`   // handed out
	Misses int64   `json:"misses"` // it was empty
	Why    string  `json:"why,omitempty"`
}

// An Event is one thing that happened to a sandbox.
type Event struct {
	Seq     int64             `json:"seq"` // grows; give it back to go on from there
	Sandbox string            `json:"sandbox"`
	At      time.Time         `json:"at"`
	Kind    string            `json:"kind"` // "state", "exec", "execute", "snapshot", ...
	State   State             `json:"state,omitempty"`
	Detail  map[string]string `json:"detail,omitempty"`
}

// Who asks: a tenant and the key it used.
type Who struct {
	Tenant string
	Key    string // id of the key, for the record; never the secret
}

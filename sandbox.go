package arenero

import "time"

// A Spec is what a caller asks for. The zero value is a sandbox of the default
// image with the default limits and no network.
type Spec struct {
	Image    string            `json:"image"`    // name or digest; "" is "python"
	Engine   string            `json:"engine"`   // "" is the host's default
	Limits   Limits            `json:"limits"`   //
	Env      map[string]string `json:"env"`      // of every process and kernel
	Labels   map[string]string `json:"labels"`   // the caller's own
	Hostname string            `json:"hostname"` // "" is the id
	Lifetime time.Duration     `json:"-"`        // until it is killed; 0 is the host's default
}

// A Sandbox is what the host knows of one.
type Sandbox struct {
	ID        string            `json:"id"` // unguessable: "sbx-" and 26 characters of base32
	State     State             `json:"state"`
	Image     string            `json:"image"`
	Engine    string            `json:"engine"`
	Limits    Limits            `json:"limits"`
	Labels    map[string]string `json:"labels"`
	Tenant    string            `json:"tenant"`
	Created   time.Time         `json:"created"`
	Ends      time.Time         `json:"ends"`             // when its lifetime is over
	From      string            `json:"from"`             // how it was made: boot, restore
	FromWhy   string            `json:"from_why"`         // why not the fastest way; may be empty
	Reason    string            `json:"reason,omitempty"` // why it ended
	ExitCause ExitReason        `json:"exit_reason,omitempty"`
}

// Who asks: a tenant and the key it used.
type Who struct {
	Tenant string
	Key    string // id of the key, for the record; never the secret
}

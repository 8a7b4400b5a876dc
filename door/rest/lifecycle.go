package rest

import (
	"context"
	"encoding/json"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

// ByRetry is the part of a request that makes a retry of it the same act.
type ByRetry struct {
	IdempotencyKey string `header:"Idempotency-Key" maxLength:"255" doc:"A retry with the same key is the same act: it gets the first answer"`
}

// once does what a request with an idempotency key asks for, once; without a key
// it does it.
func once[O any](ctx context.Context, d *Door, key, route string, request any, f func(context.Context) (O, error)) (out O, again bool, err error) {
	asked, err := json.Marshal([]any{route, request})
	if err != nil {
		return out, false, arenero.Errorf(arenero.Invalid, "read request", "", "%w", err)
	}
	answer, again, err := d.Host.Act(ctx, askerOf(ctx).who, key, asked, func(ctx context.Context) ([]byte, error) {
		v, err := f(ctx)
		if err != nil {
			return nil, err
		}
		return json.Marshal(v)
	})
	if err != nil {
		return out, false, err
	}
	if err := json.Unmarshal(answer, &out); err != nil {
		return out, false, arenero.Errorf(arenero.Internal, "read answer", "", "%w", err)
	}
	return out, again, nil
}

func replayed(again bool) string {
	if again {
		return "true"
	}
	return ""
}

type changeBody struct {
	Lifetime  *float64          `json:"lifetime,omitempty" doc:"Seconds from now"`
	Idle      *float64          `json:"idle,omitempty" doc:"Seconds it may be unused and at rest before it sleeps; below 0 is for ever"`
	OnTimeout *string           `json:"on_timeout,omitempty" enum:"kill,pause" doc:"What becomes of it when its lifetime is over"`
	Labels    map[string]string `json:"labels,omitempty" doc:"Replace all of them"`
	Limits    *limitsBody       `json:"limits,omitempty" doc:"CPUs, memory, output and timeout; the others stay"`
}

type updateRequest struct {
	ByID

	Body changeBody
}

func (d *Door) updateSandbox(ctx context.Context, in *updateRequest) (*sandboxResponse, error) {
	p := arenero.Patch{Labels: in.Body.Labels}
	if in.Body.Lifetime != nil {
		life, err := lasting("lifetime", *in.Body.Lifetime)
		if err != nil {
			return nil, err
		}
		p.Lifetime = &life
	}
	if in.Body.Idle != nil {
		idle, err := idling(*in.Body.Idle)
		if err != nil {
			return nil, err
		}
		p.Idle = &idle
	}
	if in.Body.OnTimeout != nil {
		o := arenero.OnTimeout(*in.Body.OnTimeout)
		p.OnTimeout = &o
	}
	if in.Body.Limits != nil {
		l, err := in.Body.Limits.limits()
		if err != nil {
			return nil, err
		}
		p.Limits = &l
	}
	return sandboxAnswer(d.Host.Update(ctx, askerOf(ctx).who, in.ID, p))
}

func sandboxAnswer(sb arenero.Sandbox, err error) (*sandboxResponse, error) {
	if err != nil {
		return nil, err
	}
	return &sandboxResponse{Body: sb}, nil
}

// lasting reads a number of seconds that may be days.
func lasting(field string, s float64) (time.Duration, error) {
	const most = 366 * 24 * 3600
	if !(s >= 0 && s <= most) { // also refuses NaN
		return 0, arenero.Errorf(arenero.Invalid, "check request", "", "%s is %g, must be between 0 and %d seconds", field, s, most)
	}
	return time.Duration(s * float64(time.Second)), nil
}

// idling reads how long a sandbox may be idle; below 0 is for ever, 0 is not said.
func idling(s float64) (time.Duration, error) {
	if s < 0 {
		return -1, nil
	}
	return lasting("idle", s)
}

type pauseRequest struct {
	ByID

	Body *struct {
		To string `json:"to,omitempty" enum:"memory,disk" doc:"Where it sleeps: in memory, which wakes in milliseconds, or on disk, which takes no memory"`
	}
}

func (d *Door) pauseSandbox(ctx context.Context, in *pauseRequest) (*sandboxResponse, error) {
	if in.Body != nil && in.Body.To == "disk" {
		return sandboxAnswer(d.Host.Hibernate(ctx, askerOf(ctx).who, in.ID))
	}
	return sandboxAnswer(d.Host.Pause(ctx, askerOf(ctx).who, in.ID))
}

func (d *Door) resumeSandbox(ctx context.Context, in *ByID) (*sandboxResponse, error) {
	return sandboxAnswer(d.Host.Resume(ctx, askerOf(ctx).who, in.ID))
}

type forkRequest struct {
	ByID
	ByRetry

	Body *struct {
		Count     int               `json:"count,omitempty" minimum:"1" maximum:"1000" default:"1"`
		Env       map[string]string `json:"env,omitempty" doc:"Added to what the sandbox has"`
		Labels    map[string]string `json:"labels,omitempty" doc:"Those of the sandbox if left out"`
		Limits    limitsBody        `json:"limits,omitempty" doc:"Those of the sandbox if left out"`
		Lifetime  float64           `json:"lifetime,omitempty" doc:"Seconds; that of the sandbox if left out"`
		Idle      float64           `json:"idle,omitempty"`
		OnTimeout string            `json:"on_timeout,omitempty" enum:"kill,pause"`
		Volumes   []mountBody       `json:"volumes,omitempty" maxItems:"8" doc:"Those of the sandbox, all of them, to say that the copies may write to them too"`
	}
}

type sandboxesResponse struct {
	Replayed string `header:"Idempotency-Replayed"`
	Body     struct {
		Sandboxes []arenero.Sandbox `json:"sandboxes"`
	}
}

func (d *Door) forkSandbox(ctx context.Context, in *forkRequest) (*sandboxesResponse, error) {
	count, spec := 1, arenero.Spec{}
	if b := in.Body; b != nil {
		var err error
		if spec.Limits, err = b.Limits.limits(); err != nil {
			return nil, err
		}
		if spec.Lifetime, err = lasting("lifetime", b.Lifetime); err != nil {
			return nil, err
		}
		if spec.Idle, err = idling(b.Idle); err != nil {
			return nil, err
		}
		count, spec.Env, spec.Labels, spec.OnTimeout = max(b.Count, 1), b.Env, b.Labels, arenero.OnTimeout(b.OnTimeout)
		spec.Volumes = mountsOf(b.Volumes)
	}
	who := askerOf(ctx).who
	all, again, err := once(ctx, d, in.IdempotencyKey, "fork "+in.ID, in.Body, func(ctx context.Context) ([]arenero.Sandbox, error) {
		return d.Host.Fork(ctx, who, in.ID, count, spec)
	})
	if err != nil {
		return nil, err
	}
	out := &sandboxesResponse{Replayed: replayed(again)}
	out.Body.Sandboxes = all
	return out, nil
}

type rollbackRequest struct {
	ByID

	Body struct {
		Snapshot string `json:"snapshot" maxLength:"64" doc:"One of its own snapshots"`
	}
}

func (d *Door) rollbackSandbox(ctx context.Context, in *rollbackRequest) (*sandboxResponse, error) {
	return sandboxAnswer(d.Host.Rollback(ctx, askerOf(ctx).who, in.ID, in.Body.Snapshot))
}

type usageResponse struct {
	Body struct {
		CPU       float64        `json:"cpu_seconds" doc:"Processor time since it was made or last woke"`
		Memory    int64          `json:"memory" doc:"Bytes charged to it now; 0 while it sleeps on disk"`
		MaxMemory int64          `json:"max_memory" doc:"The most so far"`
		Tasks     int            `json:"tasks"`
		Limits    arenero.Limits `json:"limits"`
	}
}

func (d *Door) sandboxUsage(ctx context.Context, in *ByID) (*usageResponse, error) {
	u, sb, err := d.Host.Usage(ctx, askerOf(ctx).who, in.ID)
	if err != nil {
		return nil, err
	}
	out := &usageResponse{}
	out.Body.CPU, out.Body.Memory, out.Body.MaxMemory, out.Body.Tasks = u.CPU.Seconds(), u.Memory, u.MaxMemory, u.Tasks
	out.Body.Limits = sb.Limits
	return out, nil
}

// ByPage is the part of a request that walks through a list.
type ByPage struct {
	After string `query:"after" maxLength:"64" doc:"Id of the last one of the page before"`
	Limit int    `query:"limit" default:"100" minimum:"1" maximum:"1000"`
}

type snapshotsRequest struct {
	ByPage

	Sandbox string `query:"sandbox" maxLength:"64" doc:"Only those of this sandbox"`
}

type snapshotsResponse struct {
	Body struct {
		Snapshots []arenero.Snapshot `json:"snapshots"`
		Next      string             `json:"next,omitempty" doc:"Give it as after to get the next page"`
	}
}

func (d *Door) listSnapshots(ctx context.Context, in *snapshotsRequest) (*snapshotsResponse, error) {
	all, err := d.Host.Snapshots(ctx, askerOf(ctx).who, in.Sandbox, in.After, in.Limit)
	if err != nil {
		return nil, err
	}
	out := &snapshotsResponse{}
	out.Body.Snapshots = all
	if len(all) == in.Limit {
		out.Body.Next = all[len(all)-1].ID
	}
	return out, nil
}

type snapshotRequest struct {
	ByID
	ByRetry

	Body *struct {
		Name string `json:"name,omitempty" maxLength:"128"`
	}
}

type snapshotResponse struct {
	Replayed string `header:"Idempotency-Replayed"`
	Body     arenero.Snapshot
}

func (d *Door) makeSnapshot(ctx context.Context, in *snapshotRequest) (*snapshotResponse, error) {
	name := ""
	if in.Body != nil {
		name = in.Body.Name
	}
	who := askerOf(ctx).who
	n, again, err := once(ctx, d, in.IdempotencyKey, "snapshot "+in.ID, name, func(ctx context.Context) (arenero.Snapshot, error) {
		return d.Host.Snapshot(ctx, who, in.ID, name)
	})
	if err != nil {
		return nil, err
	}
	return &snapshotResponse{Replayed: replayed(again), Body: n}, nil
}

// BySnapshot is the part of a request that names a snapshot.
type BySnapshot struct {
	Snapshot string `path:"snapshot" maxLength:"64"`
}

func (d *Door) getSnapshot(ctx context.Context, in *BySnapshot) (*snapshotResponse, error) {
	n, err := d.Host.GetSnapshot(ctx, askerOf(ctx).who, in.Snapshot)
	if err != nil {
		return nil, err
	}
	return &snapshotResponse{Body: n}, nil
}

func (d *Door) removeSnapshot(ctx context.Context, in *BySnapshot) (*nothing, error) {
	return nil, d.Host.RemoveSnapshot(ctx, askerOf(ctx).who, in.Snapshot)
}

// EventsQuery is the part of a request that asks for events.
type EventsQuery struct {
	Accept string `header:"Accept"`
	LastID int64  `header:"Last-Event-ID"`
	After  int64  `query:"after" minimum:"0" doc:"Only what came after this one"`
	Limit  int    `query:"limit" default:"100" minimum:"1" maximum:"1000"`
	Wait   bool   `query:"wait" doc:"Wait for an event, for at most half a minute"`
}

type sandboxEventsRequest struct {
	ByID
	EventsQuery
}

type allEventsRequest struct{ EventsQuery }

func (d *Door) sandboxEvents(ctx context.Context, in *sandboxEventsRequest) (*huma.StreamResponse, error) {
	return d.happened(ctx, in.ID, in.EventsQuery)
}

func (d *Door) allEvents(ctx context.Context, in *allEventsRequest) (*huma.StreamResponse, error) {
	return d.happened(ctx, "", in.EventsQuery)
}

func (d *Door) happened(ctx context.Context, sandbox string, q EventsQuery) (*huma.StreamResponse, error) {
	who := askerOf(ctx).who
	if accepts(q.Accept, "text/event-stream") {
		after := max(q.After, q.LastID)
		if _, err := d.Host.Events(ctx, who, sandbox, after, 1, false); err != nil {
			return nil, err
		}
		return &huma.StreamResponse{Body: func(huma.Context) { d.follow(ctx, who, sandbox, after) }}, nil
	}
	wait := ctx
	if q.Wait {
		var cancel context.CancelFunc
		wait, cancel = context.WithTimeout(ctx, 30*time.Second)
		defer cancel()
	}
	all, err := d.Host.Events(wait, who, sandbox, q.After, q.Limit, q.Wait)
	if err != nil {
		return nil, err
	}
	next := q.After
	if len(all) > 0 {
		next = all[len(all)-1].Seq
	}
	return &huma.StreamResponse{Body: func(c huma.Context) {
		c.SetHeader("Content-Type", "application/json")
		_ = strictJSON.Marshal(c.BodyWriter(), map[string]any{"events": append([]arenero.Event{}, all...), "next": next}) // the client may be gone
	}}, nil
}

// follow sends events as they happen. The id of each lets a client go on from
// there.
func (d *Door) follow(ctx context.Context, who host.Who, sandbox string, after int64) {
	s := openEvents(askerOf(ctx))
	defer s.close()
	for ctx.Err() == nil {
		all, err := d.Host.Events(ctx, who, sandbox, after, 100, true)
		if err != nil {
			s.send("problem", problemOf(told(ctx, err)))
			return
		}
		for _, e := range all {
			if !s.sendID(e.Seq, e.Kind, e) {
				return
			}
			after = e.Seq
		}
	}
}

package rest

import (
	"context"
	"math"
	"net/http"
	"reflect"
	"strconv"
	"time"

	"github.com/danielgtaylor/huma/v2"

	"github.com/arenero/arenero"
)

// register is the table of routes.
func (d *Door) register() {
	route(d, "execute", "POST", "/execute", "Run code once, in a fresh sandbox", d.execute, body(maxBody))

	route(d, "create-sandbox", "POST", "/v1/sandboxes", "Make a sandbox", d.createSandbox, body(maxSmallBody), created)
	route(d, "list-sandboxes", "GET", "/v1/sandboxes", "List sandboxes", d.listSandboxes)
	route(d, "get-sandbox", "GET", "/v1/sandboxes/{id}", "What is known of a sandbox", d.getSandbox)
	route(d, "kill-sandbox", "DELETE", "/v1/sandboxes/{id}", "End a sandbox", d.killSandbox)

	route(d, "update-sandbox", "PATCH", "/v1/sandboxes/{id}", "Change a sandbox while it lives", d.updateSandbox, body(maxSmallBody))
	route(d, "pause-sandbox", "POST", "/v1/sandboxes/{id}/pause", "Put a sandbox to sleep; any use of it wakes it", d.pauseSandbox, body(maxSmallBody))
	route(d, "resume-sandbox", "POST", "/v1/sandboxes/{id}/resume", "Wake a sandbox", d.resumeSandbox)
	route(d, "fork-sandbox", "POST", "/v1/sandboxes/{id}/fork", "Make live copies of a sandbox", d.forkSandbox, body(maxSmallBody), created)
	route(d, "rollback-sandbox", "POST", "/v1/sandboxes/{id}/rollback", "Put a sandbox back to one of its snapshots", d.rollbackSandbox, body(maxSmallBody))
	route(d, "sandbox-usage", "GET", "/v1/sandboxes/{id}/usage", "What a sandbox uses now", d.sandboxUsage)
	route(d, "sandbox-events", "GET", "/v1/sandboxes/{id}/events",
		"What happened to a sandbox. With Accept: text/event-stream, as it happens", d.sandboxEvents, streams("application/json", "text/event-stream"))
	route(d, "events", "GET", "/v1/events", "What happened to all sandboxes. With Accept: text/event-stream, as it happens",
		d.allEvents, streams("application/json", "text/event-stream"))

	route(d, "make-snapshot", "POST", "/v1/sandboxes/{id}/snapshots", "Keep a sandbox as it is now", d.makeSnapshot, body(maxSmallBody), created)
	route(d, "list-snapshots", "GET", "/v1/snapshots", "List snapshots", d.listSnapshots)
	route(d, "get-snapshot", "GET", "/v1/snapshots/{snapshot}", "What is known of a snapshot", d.getSnapshot)
	route(d, "remove-snapshot", "DELETE", "/v1/snapshots/{snapshot}", "Remove a snapshot", d.removeSnapshot)

	route(d, "list-volumes", "GET", "/v1/volumes", "List volumes", d.listVolumes)
	route(d, "make-volume", "POST", "/v1/volumes", "Make a volume: a folder that outlives sandboxes", d.makeVolume, body(maxSmallBody), created)
	route(d, "get-volume", "GET", "/v1/volumes/{volume}", "What is known of a volume", d.getVolume)
	route(d, "remove-volume", "DELETE", "/v1/volumes/{volume}", "Remove a volume with all that is in it", d.removeVolume)

	route(d, "list-kernels", "GET", "/v1/sandboxes/{id}/kernels", "List kernels", d.listKernels)
	route(d, "start-kernel", "POST", "/v1/sandboxes/{id}/kernels", "Start a kernel", d.startKernel, body(maxSmallBody), created)
	route(d, "stop-kernel", "DELETE", "/v1/sandboxes/{id}/kernels/{name}", "Stop a kernel", d.stopKernel)
	route(d, "run-cell", "POST", "/v1/sandboxes/{id}/kernels/{name}/execute",
		"Run code in a kernel; variables stay. With Accept: text/event-stream, as it happens", d.runCell, body(maxBody), streams("text/event-stream"))
	route(d, "interrupt-kernel", "POST", "/v1/sandboxes/{id}/kernels/{name}/interrupt", "Stop the running cell; variables stay", d.interruptKernel)
	route(d, "restart-kernel", "POST", "/v1/sandboxes/{id}/kernels/{name}/restart", "Give a kernel a fresh interpreter", d.restartKernel)

	route(d, "exec", "POST", "/v1/sandboxes/{id}/exec",
		"Run a command. With Accept: text/event-stream, as it happens; with application/octet-stream, stdout alone and the exit in trailers",
		d.exec, body(maxBody), streams("text/event-stream", "application/octet-stream"))

	route(d, "read-file", "GET", "/v1/sandboxes/{id}/files", "Read a file", d.readFile, streams("application/octet-stream"))
	route(d, "write-file", "PUT", "/v1/sandboxes/{id}/files", "Write a file: the body is its content", d.writeFile, takes("application/octet-stream"))
	route(d, "remove-file", "DELETE", "/v1/sandboxes/{id}/files", "Remove a file or a folder", d.removeFile)
	route(d, "list-files", "GET", "/v1/sandboxes/{id}/files/list", "List a folder", d.listFiles)

	route(d, "stat-file", "GET", "/v1/sandboxes/{id}/files/stat", "What is known of a file", d.statFile)
	route(d, "make-folder", "POST", "/v1/sandboxes/{id}/files/mkdir", "Make a folder and those above it", d.makeDir, body(maxSmallBody))
	route(d, "move-file", "POST", "/v1/sandboxes/{id}/files/move", "Move or rename", d.moveFile, body(maxSmallBody))
	route(d, "chmod-file", "POST", "/v1/sandboxes/{id}/files/chmod", "Change permissions", d.chmodFile, body(maxSmallBody))
	route(d, "watch-files", "GET", "/v1/sandboxes/{id}/files/watch", "Changes below a folder, as they happen", d.watchFiles, streams("text/event-stream"))

	route(d, "read-folder", "GET", "/v1/sandboxes/{id}/files/tree", "A folder with all that is in it, as a tar archive", d.readTree, streams("application/octet-stream"))
	route(d, "write-folder", "PUT", "/v1/sandboxes/{id}/files/tree", "Unpack a tar archive below a folder", d.writeTree, takes("application/x-tar"))

	route(d, "list-processes", "GET", "/v1/sandboxes/{id}/processes", "List what was started and runs", d.listProcesses)
	route(d, "start-process", "POST", "/v1/sandboxes/{id}/processes", "Start a command that goes on by itself", d.startProcess, body(maxBody), created)
	route(d, "attach-process", "GET", "/v1/sandboxes/{id}/processes/{pid}/output", "What a process wrote and writes, and how it ends", d.attach, streams("text/event-stream"))
	route(d, "signal-process", "POST", "/v1/sandboxes/{id}/processes/{pid}/signal", "Send a signal to a process", d.signalProcess, body(maxSmallBody))

	route(d, "complete", "POST", "/v1/sandboxes/{id}/kernels/{name}/complete", "How code could go on", d.complete, body(maxBody))
	route(d, "inspect", "POST", "/v1/sandboxes/{id}/kernels/{name}/inspect", "What is known of a name in code", d.inspect, body(maxBody))

	route(d, "list-pools", "GET", "/v1/pools", "What is kept ready", d.listPools)
	route(d, "set-pool", "PUT", "/v1/pools", "Say how many sandboxes of an image are kept ready", d.setPool, body(maxSmallBody))
	route(d, "list-keys", "GET", "/v1/keys", "List keys", d.listKeys)
	route(d, "make-key", "POST", "/v1/keys", "Make a key", d.makeKey, body(maxSmallBody), created)
	route(d, "revoke-key", "DELETE", "/v1/keys/{key}", "Make a key worthless", d.revokeKey)
	route(d, "backup", "GET", "/v1/backup", "A copy of the records, as an SQLite file", d.backup, streams("application/octet-stream"))

	route(d, "list-images", "GET", "/v1/images", "List images", d.listImages)
	route(d, "health", "GET", "/healthz", "Whether the server answers", d.health)
}

type option func(*huma.Operation)

// body bounds the request's body.
func body(n int64) option { return func(o *huma.Operation) { o.MaxBodyBytes = n } }

// created is the status of an answer that says what was made.
func created(o *huma.Operation) { o.DefaultStatus = http.StatusCreated }

// streams says in the description which other forms the answer has.
func streams(types ...string) option {
	return func(o *huma.Operation) {
		content := map[string]*huma.MediaType{}
		for _, t := range types {
			content[t] = &huma.MediaType{Schema: &huma.Schema{Type: huma.TypeString}}
		}
		o.Responses["200"] = &huma.Response{Description: "OK", Content: content}
	}
}

// takes says in the description what the body is, for a handler that reads it
// itself.
func takes(mime string) option {
	return func(o *huma.Operation) {
		o.RequestBody = &huma.RequestBody{Required: true, Content: map[string]*huma.MediaType{
			mime: {Schema: &huma.Schema{Type: huma.TypeString, Format: "binary"}},
		}}
	}
}

// route adds one row: huma reads and checks the request and writes the answer,
// f does the work, and its error becomes a Problem.
func route[I, O any](d *Door, id, method, path, summary string, f func(context.Context, *I) (*O, error), opts ...option) {
	problem := d.api.OpenAPI().Components.Schemas.Schema(reflect.TypeFor[Problem](), true, "Problem")
	op := huma.Operation{
		OperationID: id, Method: method, Path: path, Summary: summary,
		BodyReadTimeout: time.Minute,
		Responses: map[string]*huma.Response{"default": {
			Description: "Any failure", Content: map[string]*huma.MediaType{"application/problem+json": {Schema: problem}},
		}},
	}
	if d.public[path] {
		op.Security = []map[string][]string{}
	}
	for _, o := range opts {
		o(&op)
	}
	d.routes = append(d.routes, op)
	huma.Register(d.api, op, func(ctx context.Context, in *I) (*O, error) {
		a := askerOf(ctx)
		// The time to read the body is over; the run has its own. Not every
		// connection has deadlines (HTTP/2, tests): then there is none to lift.
		_ = http.NewResponseController(a.w).SetReadDeadline(time.Time{})
		out, err := f(ctx, in)
		if err != nil {
			p := problemOf(told(ctx, err))
			if p.Status == http.StatusTooManyRequests {
				wait := max(int(math.Ceil(arenero.WaitOf(err).Seconds())), 1)
				return nil, huma.ErrorWithHeaders(p, http.Header{"Retry-After": {strconv.Itoa(wait)}})
			}
			return nil, p
		}
		return out, nil
	})
}

// finishDescription mends what reflection can not know, and takes out the errors
// that huma would have sent.
func (d *Door) finishDescription() {
	schemas := d.api.OpenAPI().Components.Schemas.Map()
	delete(schemas, "ErrorModel")
	delete(schemas, "ErrorDetail")
	for _, s := range schemas {
		if p := s.Properties["duration_ms"]; p != nil {
			s.Properties["duration_ms"] = &huma.Schema{Type: huma.TypeNumber, Description: "Wall clock inside the sandbox, in milliseconds"}
		}
	}
}

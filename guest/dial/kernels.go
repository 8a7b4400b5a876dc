package dial

import (
	"context"
	"errors"
	"io"
	"strings"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/guest/wire"
)

const (
	maxTraceback = 1000
	maxMIME      = 32
)

// StartKernel implements [arenero.Kernels].
func (g *Guest) StartKernel(ctx context.Context, k arenero.KernelRequest) (arenero.KernelInfo, error) {
	// A cold interpreter imports for seconds.
	ctx, cancel := context.WithTimeout(ctx, 4*g.limit)
	defer cancel()
	res, err := g.api.StartKernel(ctx, &wire.StartKernelRequest{Name: k.Name, Language: k.Language, Dir: k.Dir, Env: k.Env})
	if err != nil {
		return arenero.KernelInfo{}, wire.FromWire("start kernel", err)
	}
	return kernelInfo(res), nil
}

func kernelInfo(k *wire.KernelInfo) arenero.KernelInfo {
	state := k.GetState()
	switch state {
	case "starting", "idle", "busy", "dead":
	default:
		state = "dead"
	}
	return arenero.KernelInfo{
		Name: word(k.GetName(), 64), Language: word(k.GetLanguage(), 64), Spec: word(k.GetSpec(), 64), Dir: text(k.GetDir(), 4096),
		State: state, PID: within(k.GetPid(), 0, 1<<31), Count: within(int64(k.GetCount()), 0, 1<<31),
	}
}

// ListKernels implements [arenero.Kernels].
func (g *Guest) ListKernels(ctx context.Context) ([]arenero.KernelInfo, error) {
	res, err := call(ctx, g, "list kernels", g.api.ListKernels, &wire.ListKernelsRequest{})
	if err != nil {
		return nil, err
	}
	list := []arenero.KernelInfo{}
	for _, k := range head(res.GetKernels(), maxCount) {
		list = append(list, kernelInfo(k))
	}
	return list, nil
}

// StopKernel implements [arenero.Kernels].
func (g *Guest) StopKernel(ctx context.Context, name string) error {
	_, err := call(ctx, g, "stop kernel", g.api.StopKernel, &wire.KernelName{Name: name})
	return err
}

// RestartKernel implements [arenero.Kernels].
func (g *Guest) RestartKernel(ctx context.Context, name string) error {
	ctx, cancel := context.WithTimeout(ctx, 4*g.limit)
	defer cancel()
	_, err := g.api.RestartKernel(ctx, &wire.KernelName{Name: name})
	return wire.FromWire("restart kernel", err)
}

// InterruptKernel implements [arenero.Kernels].
func (g *Guest) InterruptKernel(ctx context.Context, name string) error {
	_, err := call(ctx, g, "interrupt kernel", g.api.InterruptKernel, &wire.KernelName{Name: name})
	return err
}

// Complete implements [arenero.Kernels].
func (g *Guest) Complete(ctx context.Context, kernel, code string, cursor int) (arenero.Completion, error) {
	res, err := call(ctx, g, "complete", g.api.Complete, &wire.CompleteRequest{Kernel: kernel, Code: code, Cursor: int32(within(int64(cursor), 0, 1<<30))})
	if err != nil {
		return arenero.Completion{}, err
	}
	c := arenero.Completion{Matches: []string{}}
	c.Start = within(int64(res.GetStart()), 0, int64(len(code)))
	c.End = within(int64(res.GetEnd()), int64(c.Start), int64(len(code))) // code[Start:End] is what a match replaces
	for _, m := range head(res.GetMatches(), maxCount) {
		c.Matches = append(c.Matches, text(m, 1024))
	}
	return c, nil
}

// Inspect implements [arenero.Kernels].
func (g *Guest) Inspect(ctx context.Context, kernel, code string, cursor int) (map[string]string, error) {
	res, err := call(ctx, g, "inspect", g.api.Inspect, &wire.InspectRequest{Kernel: kernel, Code: code, Cursor: int32(within(int64(cursor), 0, 1<<30))})
	if err != nil {
		return nil, err
	}
	return bundle(res.GetMime()), nil
}

// bundle keeps a MIME bundle's valid entries.
func bundle(in map[string]string) map[string]string {
	out := make(map[string]string, min(len(in), maxMIME))
	for k, v := range in {
		if len(out) == maxMIME {
			break
		}
		if k == "" || len(k) > 128 || !mimeType(k) {
			continue
		}
		out[k] = text(v, wire.MaxMessage)
	}
	return out
}

func mimeType(s string) bool {
	for _, r := range s {
		if r <= ' ' || r > '~' || strings.ContainsRune(`"\<>`, r) {
			return false
		}
	}
	return strings.Count(s, "/") == 1
}

type execution struct {
	*stream[wire.ExecuteInput, wire.ExecuteOutput]

	ended  bool
	stdout rest
	stderr rest
}

// Execute implements [arenero.Kernels].
func (g *Guest) Execute(ctx context.Context, e arenero.Execute) (arenero.Execution, error) {
	start := &wire.ExecuteStart{
		Kernel: e.Kernel, Code: e.Code, TimeoutMs: ceilMillis(e.Timeout), Env: e.Env, AllowStdin: e.AllowStdin, Silent: e.Silent,
	}
	if e.Script != nil {
		start.Script = &wire.Script{File: e.Script.File, Args: e.Script.Args, Stdin: e.Script.Stdin}
	}
	st, err := openStream(ctx, "execute", g.api.Execute, &wire.ExecuteInput{Input: &wire.ExecuteInput_Start{Start: start}})
	if err != nil {
		return nil, err
	}
	return &execution{stream: st}, nil
}

func (x *execution) Next() (arenero.KernelEvent, error) {
	for {
		if x.ended {
			return arenero.KernelEvent{}, io.EOF
		}
		m, err := x.receive()
		if errors.Is(err, io.EOF) {
			return arenero.KernelEvent{}, broken(x.op, "it ended the stream before the cell")
		}
		if err != nil {
			return arenero.KernelEvent{}, err
		}
		if ev, ok := x.event(m); ok {
			return ev, nil
		}
	}
}

func (x *execution) event(m *wire.ExecuteOutput) (arenero.KernelEvent, bool) {
	switch o := m.GetOutput().(type) {
	case *wire.ExecuteOutput_Stdout:
		s := x.stdout.text(o.Stdout)
		return arenero.KernelEvent{Stdout: s}, s != ""
	case *wire.ExecuteOutput_Stderr:
		s := x.stderr.text(o.Stderr)
		return arenero.KernelEvent{Stderr: s}, s != ""
	case *wire.ExecuteOutput_Display:
		return arenero.KernelEvent{Display: display(o.Display)}, true
	case *wire.ExecuteOutput_Update:
		return arenero.KernelEvent{Update: display(o.Update)}, true
	case *wire.ExecuteOutput_Clear:
		return arenero.KernelEvent{Clear: &arenero.ClearOutput{Wait: o.Clear.GetWait()}}, true
	case *wire.ExecuteOutput_Input:
		return arenero.KernelEvent{Input: &arenero.InputRequest{Prompt: text(o.Input.GetPrompt(), 64<<10), Password: o.Input.GetPassword()}}, true
	case *wire.ExecuteOutput_Error:
		e := &arenero.RunError{Name: word(o.Error.GetName(), 1024), Value: text(o.Error.GetValue(), 1<<20), Traceback: []string{}}
		for _, line := range head(o.Error.GetTraceback(), maxTraceback) {
			e.Traceback = append(e.Traceback, text(line, 1<<20))
		}
		return arenero.KernelEvent{Error: e}, true
	case *wire.ExecuteOutput_End:
		x.ended = true
		return arenero.KernelEvent{End: &arenero.KernelEnd{
			Reason: reason(o.End.GetReason()), ExitCode: within(int64(o.End.GetExitCode()), -1, 255), Signal: signalName(o.End.GetSignal()),
			ExecutionCount: within(int64(o.End.GetExecutionCount()), 0, 1<<31), Duration: micros(o.End.GetDurationUs()),
		}}, true
	}
	return arenero.KernelEvent{}, false
}

func display(d *wire.Display) *arenero.Display {
	return &arenero.Display{
		MIME: bundle(d.GetMime()), IsMain: d.GetIsMain(), ID: text(d.GetId(), 256), Chart: parseChart(d.GetChartJson()),
	}
}

// Answer implements [arenero.Execution].
func (x *execution) Answer(_ context.Context, line string) error {
	return x.send(&wire.ExecuteInput{Input: &wire.ExecuteInput_Answer{Answer: line}})
}

// Close implements [arenero.Execution].
func (x *execution) Close() error {
	x.close()
	return nil
}

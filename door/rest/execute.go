package rest

import (
	"bytes"
	"context"
	"strings"

	"github.com/arenero/arenero"
	"github.com/arenero/arenero/host"
)

type executeRequest struct {
	Body struct {
		Code     string                 `json:"code" doc:"What to run" example:"print(6*7)"`
		Language string                 `json:"language,omitempty" maxLength:"64" doc:"python if left out" example:"python"`
		Timeout  float64                `json:"timeout,omitempty" doc:"Seconds the run may take" example:"30"`
		Image    string                 `json:"image,omitempty" maxLength:"256" doc:"python if left out"`
		Files    map[string]fileContent `json:"files,omitempty" doc:"Files to find in the work directory, by path"`
		Env      map[string]string      `json:"env,omitempty" doc:"Environment variables"`
		Stdin    string                 `json:"stdin,omitempty" doc:"What the code reads from standard input; with it the code runs as a script, not as a cell"`
		Limits   limitsBody             `json:"limits,omitempty" doc:"Bounds of the sandbox"`
	}
}

type executeResponse struct {
	Body executeResult
}

// executeResult is a Result and where it was made.
type executeResult struct {
	arenero.Result

	SandboxID string `json:"sandbox_id" doc:"The sandbox it ran in; it is gone"`
	From      string `json:"from" doc:"How the sandbox was made: boot or restore"`
}

// execute runs code in a sandbox of its own.
func (d *Door) execute(ctx context.Context, in *executeRequest) (*executeResponse, error) {
	if err := checkCode(in.Body.Code); err != nil {
		return nil, err
	}
	limits, err := in.Body.Limits.limits()
	if err != nil {
		return nil, err
	}
	timeout, err := seconds("timeout", in.Body.Timeout)
	if err != nil {
		return nil, err
	}
	job := host.Job{
		Spec:     arenero.Spec{Image: in.Body.Image, Limits: limits, Env: in.Body.Env},
		Language: in.Body.Language, Code: in.Body.Code, Timeout: timeout,
	}
	if in.Body.Stdin != "" {
		job.Script = &arenero.Script{File: "script", Stdin: []byte(in.Body.Stdin)}
	}
	if len(in.Body.Files) > 1000 {
		return nil, arenero.Errorf(arenero.TooLarge, "check files", "", "%d files, at most 1000", len(in.Body.Files))
	}
	for path, f := range in.Body.Files {
		if err := checkPath(path); err != nil {
			return nil, err
		}
		job.Files = append(job.Files, host.JobFile{Path: path, Data: bytes.NewReader(f.data)})
	}
	var out executeResponse
	job.OnStart = func(sb arenero.Sandbox) { out.Body.SandboxID, out.Body.From = sb.ID, sb.From }
	out.Body.Result, err = d.Host.RunOnce(ctx, askerOf(ctx).who, job)
	if err != nil {
		return nil, err
	}
	return &out, nil
}

// accepts reports whether the client asked for a media type by name.
func accepts(header, mime string) bool {
	for part := range strings.SplitSeq(header, ",") {
		name, _, _ := strings.Cut(part, ";")
		if strings.EqualFold(strings.TrimSpace(name), mime) {
			return true
		}
	}
	return false
}

package arenero_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
)

// TestResultJSON holds the names that clients build on.
func TestResultJSON(t *testing.T) {
	full := arenero.Result{
		ExitCode: 1, ExitReason: arenero.RaisedError, Signal: "SIGTERM",
		Stdout: "a\n", Stderr: "b\n", Output: "a\nb\n",
		Truncated: arenero.Truncated{Stdout: 3},
		Results: []arenero.Display{{
			MIME: map[string]string{"text/plain": "<Figure>"}, IsMain: true,
			Chart: &arenero.Chart{Type: "line", Series: []arenero.Series{{Label: "s", Points: [][2]any{{1.0, 2.0}}}}},
		}},
		Error:          &arenero.RunError{Name: "ValueError", Value: "no", Traceback: []string{"t"}},
		ExecutionCount: 2, Duration: arenero.Millis(1500 * time.Microsecond),
	}
	const want = `{"exit_code":1,"exit_reason":"error","signal":"SIGTERM","stdout":"a\n","stderr":"b\n","output":"a\nb\n",` +
		`"truncated":{"stdout":3,"stderr":0},` +
		`"results":[{"mime":{"text/plain":"\u003cFigure\u003e"},"is_main":true,"chart":{"type":"line","series":[{"label":"s","points":[[1,2]]}]}}],` +
		`"error":{"name":"ValueError","value":"no","traceback":["t"]},"execution_count":2,"duration_ms":1.5}`
	got, err := json.Marshal(full)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, string(got)); d != "" {
		t.Errorf("want - got +\n%s", d)
	}
	var back arenero.Result
	if err := json.Unmarshal(got, &back); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(full, back); d != "" {
		t.Errorf("a result does not survive JSON: %s", d)
	}
}

func TestMillis(t *testing.T) {
	for in, want := range map[string]time.Duration{"0": 0, "1": time.Millisecond, "0.001": time.Microsecond, "86400000": 24 * time.Hour} {
		var m arenero.Millis
		if err := json.Unmarshal([]byte(in), &m); err != nil {
			t.Fatal(err)
		}
		if time.Duration(m) != want {
			t.Errorf("%s became %v", in, time.Duration(m))
		}
	}
	var m arenero.Millis
	if err := json.Unmarshal([]byte(`"soon"`), &m); err == nil {
		t.Error("a word was taken for a duration")
	}
}

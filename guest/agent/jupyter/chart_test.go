package jupyter

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/arenero/arenero"
)

// chartsOf draws each piece of code in a figure of its own.
func chartOf(t *testing.T, m *Manager, c string) arenero.Chart {
	t.Helper()
	o := code(t, m, "import matplotlib.pyplot as plt, numpy as np, datetime as dt\n"+c+"\nplt.show()")
	if o.err != nil {
		t.Fatalf("%s: %+v", c, o.err)
	}
	if len(o.displays) != 1 || o.displays[0].MIME["image/png"] == "" || o.displays[0].Chart == nil {
		t.Fatalf("%s: %+v %q", c, o.displays, o.stderr)
	}
	if _, ok := o.displays[0].MIME[chartMIME]; ok {
		t.Error("the chart is in the MIME bundle")
	}
	var chart arenero.Chart
	if err := json.Unmarshal(o.displays[0].Chart, &chart); err != nil {
		t.Fatal(err)
	}
	return chart
}

func TestCharts(t *testing.T) {
	m := manager(t)
	point := func(x, y any) [2]any { return [2]any{x, y} }
	for name, c := range map[string]struct {
		code string
		want arenero.Chart // ticks are matplotlib's choice and not compared
	}{
		"line": {
			`plt.plot([1, 2, 3], [4, 5, float("nan")], label="a"); plt.plot([1, 2], [7, 8], "r--"); plt.axhline(5)
plt.title("T"); plt.xlabel("Time (s)"); plt.ylabel("Speed [m/s]"); plt.yscale("log")`,
			arenero.Chart{Type: "line", Title: "T", XLabel: "Time (s)", XUnit: "s", YLabel: "Speed [m/s]", YUnit: "m/s", XScale: "linear", YScale: "log",
				Series: []arenero.Series{
					{Label: "a", Points: [][2]any{point(1., 4.), point(2., 5.), point(3., nil)}},
					{Points: [][2]any{point(1., 7.), point(2., 8.)}},
				}},
		},
		"scatter": {
			`plt.scatter([1, 2], [3, 4], label="dots"); plt.plot([5], [6], "o", label="marks")`,
			arenero.Chart{Type: "scatter", XScale: "linear", YScale: "linear", Series: []arenero.Series{
				{Label: "marks", Points: [][2]any{point(5., 6.)}},
				{Label: "dots", Points: [][2]any{point(1., 3.), point(2., 4.)}},
			}},
		},
		"bar": {
			`plt.bar(["x", "y"], [3, 4.5], label="sales")`,
			arenero.Chart{Type: "bar", XScale: "categorical", YScale: "linear", Series: []arenero.Series{
				{Label: "sales", Bars: []arenero.Bar{{Label: "x", Group: "sales", Value: 3}, {Label: "y", Group: "sales", Value: 4.5}}},
			}},
		},
		"grouped bars": {
			`x = np.arange(2); plt.bar(x - .2, [1, 2], .4, label="a"); plt.bar(x + .2, [3, 4], .4, label="b"); plt.xticks(x, ["N", "S"])`,
			arenero.Chart{Type: "bar", XScale: "linear", YScale: "linear", Series: []arenero.Series{
				{Label: "a", Bars: []arenero.Bar{{Label: "N", Group: "a", Value: 1}, {Label: "S", Group: "a", Value: 2}}},
				{Label: "b", Bars: []arenero.Bar{{Label: "N", Group: "b", Value: 3}, {Label: "S", Group: "b", Value: 4}}},
			}},
		},
		"flat bars": {
			`plt.barh(["x", "y"], [3, 4])`,
			arenero.Chart{Type: "bar", XScale: "linear", YScale: "categorical", Series: []arenero.Series{
				{Bars: []arenero.Bar{{Label: "x", Value: 3}, {Label: "y", Value: 4}}},
			}},
		},
		"histogram": {
			`plt.hist([1, 1, 3], bins=[0, 2, 4])`,
			arenero.Chart{Type: "bar", XScale: "linear", YScale: "linear", Series: []arenero.Series{
				{Bars: []arenero.Bar{{Label: "1", Value: 2}, {Label: "3", Value: 1}}},
			}},
		},
		"pandas": {
			`import pandas as pd
pd.DataFrame({"n": [1, 2]}, index=["x", "y"]).plot(kind="bar")`,
			arenero.Chart{Type: "bar", XScale: "linear", YScale: "linear", Series: []arenero.Series{
				{Label: "n", Bars: []arenero.Bar{{Label: "x", Group: "n", Value: 1}, {Label: "y", Group: "n", Value: 2}}},
			}},
		},
		"box": {
			`plt.boxplot([[1, 2, 3, 4, 100], [5, 6, 7]]); plt.xticks([1, 2], ["p", "q"])`,
			arenero.Chart{Type: "box_and_whisker", XScale: "linear", YScale: "linear", Series: []arenero.Series{{Boxes: []arenero.BoxBar{
				{Label: "p", Min: 1, Q1: 2, Median: 3, Q3: 4, Max: 4, Outliers: []float64{100}},
				{Label: "q", Min: 5, Q1: 5.5, Median: 6, Q3: 6.5, Max: 7},
			}}}},
		},
		"pie": {
			`plt.pie([1, 3], labels=["a", "b"]); plt.title("P")`,
			arenero.Chart{Type: "pie", Title: "P", Series: []arenero.Series{{Bars: []arenero.Bar{
				{Label: "a", Value: 1, Angle: 90, Radius: 1}, {Label: "b", Value: 3, Angle: 270, Radius: 1},
			}}}},
		},
		"dates": {
			`plt.plot([dt.datetime(2026, 1, 2), dt.datetime(2026, 1, 3)], [1, 2])`,
			arenero.Chart{Type: "line", XScale: "datetime", YScale: "linear", Series: []arenero.Series{
				{Points: [][2]any{point("2026-01-02T00:00:00", 1.), point("2026-01-03T00:00:00", 2.)}},
			}},
		},
		"categories": {
			`plt.scatter(["u", "v"], [1, 2])`,
			arenero.Chart{Type: "scatter", XScale: "categorical", YScale: "linear", Series: []arenero.Series{
				{Points: [][2]any{point("u", 1.), point("v", 2.)}},
			}},
		},
		"picture": {`plt.imshow([[1, 2], [3, 4]])`, arenero.Chart{Type: "unknown", XScale: "linear", YScale: "linear"}},
		"subplots": {
			`f, (a, b) = plt.subplots(1, 2); a.plot([1], [2]); a.set_title("A"); b.bar(["x"], [1]); f.suptitle("both")`,
			arenero.Chart{Type: "superchart", Title: "both", Charts: []arenero.Chart{
				{Type: "line", Title: "A", XScale: "linear", YScale: "linear", Series: []arenero.Series{{Points: [][2]any{point(1., 2.)}}}},
				{Type: "bar", XScale: "categorical", YScale: "linear", Series: []arenero.Series{{Bars: []arenero.Bar{{Label: "x", Value: 1}}}}},
			}},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := chartOf(t, m, c.code)
			bare := func(c *arenero.Chart) { c.XTicks, c.YTicks = nil, nil }
			if c.want.Type != "pie" && c.want.Type != "unknown" && c.want.Type != "superchart" && (len(got.XTicks) == 0 || len(got.YTicks) == 0 && got.YScale != "log") {
				t.Errorf("no ticks: %+v", got)
			}
			bare(&got)
			for i := range got.Charts {
				bare(&got.Charts[i])
			}
			if d := cmp.Diff(c.want, got); d != "" {
				t.Errorf("-want +got\n%s", d)
			}
		})
	}
}

func TestChartBounds(t *testing.T) {
	m := manager(t)
	c := chartOf(t, m, "plt.plot(np.arange(50_000), np.arange(50_000))")
	if n := len(c.Series[0].Points); n != 10_000 {
		t.Errorf("%d points", n)
	}
	c = chartOf(t, m, "for i in range(60): plt.plot(np.zeros(10_000))")
	if len(c.Series) != 60 || len(c.Series[0].Points) > 1000 {
		t.Errorf("%d series of %d points", len(c.Series), len(c.Series[0].Points))
	}
	c = chartOf(t, m, "plt.plot([1], [1]); plt.title('x' * 2_000)")
	if len(c.Title) > 600 {
		t.Errorf("a title of %d bytes", len(c.Title))
	}
	// What a cell says is a chart is believed only if it is one.
	for _, text := range []string{"not json", `{"type": 5}`, `{}`, `{"type":"line","title":"` + strings.Repeat("x", MaxChart) + `"}`} {
		o := code(t, m, fmt.Sprintf("display({%q: %q, 'text/plain': 'x'}, raw=True)", chartMIME, text))
		if len(o.displays) != 1 || o.displays[0].Chart != nil || len(o.displays[0].MIME) != 1 {
			t.Errorf("%.30q: %+v", text, o.displays)
		}
	}
}

func TestMatplotlibIsNotImportedForNothing(t *testing.T) {
	m := manager(t)
	if o := code(t, m, "import sys; [k for k in sys.modules if k.startswith('matplotlib') or k == 'numpy' or k == '_arenero_chart']"); o.main() != "[]" {
		t.Errorf("imported: %s", o.main())
	}
}

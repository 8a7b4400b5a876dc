package dial

import (
	"encoding/json"
	"math"

	"github.com/arenero/arenero"
)

const (
	maxLabel  = 4 << 10
	maxChart  = 2 << 20 // bytes of JSON
	maxPoints = 100_000 // points, bars, boxes, ticks of one chart, all together
	maxCharts = 64      // subplots
)

// parseChart reads the description of a figure. One that is too large or makes no
// sense is none: the picture is there all the same.
func parseChart(b []byte) *arenero.Chart {
	if len(b) == 0 || len(b) > maxChart {
		return nil
	}
	var c arenero.Chart
	if json.Unmarshal(b, &c) != nil {
		return nil
	}
	budget := maxPoints
	if !checkChart(&c, &budget, 0) {
		return nil
	}
	return &c
}

func checkChart(c *arenero.Chart, budget *int, depth int) bool {
	switch c.Type {
	case "line", "scatter", "bar", "box_and_whisker", "pie", "superchart", "unknown":
	default:
		return false
	}
	for _, s := range []*string{&c.Title, &c.XLabel, &c.YLabel, &c.XUnit, &c.YUnit, &c.XScale, &c.YScale} {
		*s = text(*s, maxLabel)
	}
	if *budget -= len(c.XTicks) + len(c.YTicks) + len(c.Series); *budget < 0 {
		return false
	}
	if !scalars(c.XTicks) || !scalars(c.YTicks) {
		return false
	}
	for i := range c.Series {
		s := &c.Series[i]
		if *budget -= len(s.Points) + len(s.Bars) + len(s.Boxes); *budget < 0 {
			return false
		}
		s.Label = text(s.Label, maxLabel)
		for j := range s.Points {
			if !scalars(s.Points[j][:]) {
				return false
			}
		}
		for j := range s.Bars {
			s.Bars[j].Label, s.Bars[j].Group = text(s.Bars[j].Label, maxLabel), text(s.Bars[j].Group, maxLabel)
		}
		for j := range s.Boxes {
			if *budget -= len(s.Boxes[j].Outliers); *budget < 0 {
				return false
			}
			s.Boxes[j].Label = text(s.Boxes[j].Label, maxLabel)
		}
	}
	if len(c.Charts) > maxCharts || depth > 1 && len(c.Charts) > 0 {
		return false
	}
	for i := range c.Charts {
		if !checkChart(&c.Charts[i], budget, depth+1) {
			return false
		}
	}
	return true
}

// scalars reports whether a list holds numbers, words and nothing, and makes the
// words valid.
func scalars(list []any) bool {
	for i, v := range list {
		switch v := v.(type) {
		case nil, bool:
		case float64:
			if math.IsNaN(v) || math.IsInf(v, 0) {
				return false
			}
		case string:
			list[i] = text(v, maxLabel)
		default:
			return false
		}
	}
	return true
}

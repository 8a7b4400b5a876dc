package host

import (
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/arenero/arenero"
)

// meter counts what happens here. It has a registry of its own: two hosts in one
// process count apart.
type meter struct {
	registry *prometheus.Registry
	creates  *prometheus.HistogramVec
	runs     *prometheus.HistogramVec
	moves    *prometheus.CounterVec
	warmups  *prometheus.CounterVec
	held     *prometheus.Desc
	host     *Host
}

var runBuckets = []float64{.001, .0025, .005, .01, .025, .05, .1, .25, .5, 1, 2.5, 5, 10, 30, 60, 300}

func newMeter(h *Host) *meter {
	m := &meter{
		registry: prometheus.NewRegistry(),
		creates: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "arenero_sandbox_create_seconds", Help: "Time to make a sandbox, by how it was made.", Buckets: runBuckets,
		}, []string{"how"}),
		runs: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "arenero_run_seconds", Help: "Time of cells and processes, by how they ended.", Buckets: runBuckets,
		}, []string{"kind", "exit_reason"}),
		moves: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "arenero_sandbox_state_changes_total", Help: "Changes of state, by the new state.",
		}, []string{"state"}),
		warmups: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "arenero_warmups_total", Help: "Warm snapshots made, by outcome.",
		}, []string{"outcome"}),
		held: prometheus.NewDesc("arenero_sandboxes", "Sandboxes held now, by state.", []string{"state"}, nil),
		host: h,
	}
	m.registry.MustRegister(m.creates, m.runs, m.moves, m.warmups, m,
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// Describe and Collect count the sandboxes when somebody asks.
func (m *meter) Describe(ch chan<- *prometheus.Desc) { ch <- m.held }

// Collect implements prometheus.Collector.
func (m *meter) Collect(ch chan<- prometheus.Metric) {
	n := map[arenero.State]int{}
	for _, b := range m.host.held() {
		n[b.state()]++
	}
	for _, s := range arenero.States() {
		if !s.Ended() {
			ch <- prometheus.MustNewConstMetric(m.held, prometheus.GaugeValue, float64(n[s]), string(s))
		}
	}
}

func (m *meter) created(how string, d time.Duration) {
	m.creates.WithLabelValues(how).Observe(d.Seconds())
}

func (m *meter) moved(to arenero.State) { m.moves.WithLabelValues(string(to)).Inc() }

// ran counts a run. A reason that is none of ours came from a guest and must not
// become a label.
func (m *meter) ran(kind string, reason arenero.ExitReason, d time.Duration) {
	switch reason {
	case arenero.Exited, arenero.RaisedError, arenero.TimedOut, arenero.OutOfMemory, arenero.DiskFull, arenero.ProcessLimit,
		arenero.OutputLimit, arenero.WasKilled, arenero.Cancelled, arenero.KernelDied:
	default:
		reason = "broken"
	}
	m.runs.WithLabelValues(kind, string(reason)).Observe(d.Seconds())
}

// Metrics are the figures of this host, for the door that shows them.
func (h *Host) Metrics() prometheus.Gatherer { return h.meter.registry }

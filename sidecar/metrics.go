package sidecar

import (
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"

	"github.com/sluice-dev/sluice/limiter/memory"
)

// Metrics are all that a sidecar exports. No label carries an identity.
type Metrics struct {
	Registry *prometheus.Registry

	requests    *prometheus.CounterVec
	decision    prometheus.Histogram
	roundTrips  prometheus.Counter
	storeErrors *prometheus.CounterVec
	circuitOpen prometheus.Gauge
	mu          sync.Mutex
	leftAlone   map[string]bool // stores
	expressions *prometheus.CounterVec
	opaque      prometheus.Counter
	generation  *prometheus.GaugeVec
	queued      prometheus.Gauge
}

// NewMetrics registers the metrics; local is the store of this process alone.
func NewMetrics(local *memory.Store) *Metrics {
	m := &Metrics{
		Registry: prometheus.NewRegistry(), leftAlone: map[string]bool{},
		requests: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_requests_total", Help: "Decisions, one for each rule that applied to a request.",
		}, []string{"policy", "rule", "tier", "decision"}),
		decision: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_decision_duration_seconds", Help: "Time taken to decide a request, waiting in queues not counted.",
			Buckets: []float64{.00001, .00005, .0001, .0005, .001, .0025, .005, .01, .025, .05, .1, .25},
		}),
		roundTrips: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_store_round_trips_total", Help: "Calls to stores.",
		}),
		storeErrors: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_store_errors_total", Help: "Calls to stores that failed.",
		}, []string{"reason"}),
		circuitOpen: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_store_circuit_open", Help: "Stores that are left alone because they fail.",
		}),
		expressions: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sluice_expression_errors_total", Help: "Expressions that could not be evaluated.",
		}, []string{"policy", "rule", "field"}),
		opaque: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sluice_opaque_connections_total", Help: "Connections that are not HTTP and passed through unlimited.",
		}),
		generation: prometheus.NewGaugeVec(prometheus.GaugeOpts{
			Name: "sluice_rules_generation", Help: "Generation of each policy in force.",
		}, []string{"policy"}),
		queued: prometheus.NewGauge(prometheus.GaugeOpts{
			Name: "sluice_queue_depth", Help: "Requests that wait for their departure.",
		}),
	}
	m.Registry.MustRegister(m.requests, m.decision, m.roundTrips, m.storeErrors, m.circuitOpen, m.expressions, m.opaque,
		m.generation, m.queued,
		prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sluice_local_keys", Help: "Counters held in this process.",
		}, func() float64 { return float64(local.Len()) }),
		prometheus.NewCounterFunc(prometheus.CounterOpts{
			Name: "sluice_local_evictions_total", Help: "Counters forgotten before their end because there were too many.",
		}, func() float64 { return float64(local.Evicted()) }),
		collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	return m
}

// RoundTrip implements limiter.Observer.
func (m *Metrics) RoundTrip(string) { m.roundTrips.Inc() }

// StoreError implements limiter.Observer.
func (m *Metrics) StoreError(_, reason string) { m.storeErrors.WithLabelValues(reason).Inc() }

// CircuitOpen implements limiter.Observer.
func (m *Metrics) CircuitOpen(store string, open bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if open {
		m.leftAlone[store] = true
	} else {
		delete(m.leftAlone, store)
	}
	m.circuitOpen.Set(float64(len(m.leftAlone)))
}

func (m *Metrics) expressionFailed(policy, rule, field string) {
	m.expressions.WithLabelValues(policy, rule, field).Inc()
}

func (m *Metrics) decided(took time.Duration) { m.decision.Observe(took.Seconds()) }

// Opaque counts a connection that passed through because it is not HTTP.
func (m *Metrics) Opaque() { m.opaque.Inc() }

// CountLeased exports how many units are leased.
func (m *Metrics) CountLeased(leased func() int64) {
	m.Registry.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sluice_leased_tokens", Help: "Units leased from stores and not used yet.",
	}, func() float64 { return float64(leased()) }))
}

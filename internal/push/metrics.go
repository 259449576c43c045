package push

import (
	"net"

	"github.com/prometheus/client_golang/prometheus"
)

// Metrics of the streams.
type Metrics struct {
	connected prometheus.Gauge
	duration  prometheus.Histogram
	rejected  prometheus.Counter
}

// NewMetrics registers the metrics.
func NewMetrics(r prometheus.Registerer) (*Metrics, error) {
	m := &Metrics{
		connected: prometheus.NewGauge(prometheus.GaugeOpts{Name: "sluice_sidecars_connected", Help: "Sidecars with a stream to this replica."}),
		duration: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sluice_push_duration_seconds", Help: "From a change to its acknowledgement by a sidecar.",
			Buckets: prometheus.ExponentialBuckets(0.001, 2, 16),
		}),
		rejected: prometheus.NewCounter(prometheus.CounterOpts{Name: "sluice_push_rejected_total", Help: "Policies that a sidecar could not take."}),
	}
	for _, c := range []prometheus.Collector{m.connected, m.duration, m.rejected} {
		if err := r.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

func host(address string) string {
	h, _, err := net.SplitHostPort(address)
	if err != nil {
		return address
	}
	return h
}

// Package measure records latencies and a series by second, and reads the process, the files of the
// store and the machine.
//
// A figure that could not be found out is null in the record, and never 0.
//
// Threading: a Recorder belongs to one goroutine; Readings are plain data.
package measure

import (
	"math"
	"time"

	"github.com/HdrHistogram/hdrhistogram-go"
)

const (
	longestNs       = int64(time.Hour)
	digits          = 3
	pointsPerDecade = 20
	slowNs          = int64(time.Millisecond)
)

// Latencies of one kind of operation, in nanoseconds with three significant digits. The count, the
// mean, the shortest and the longest are exact.
type Latencies struct {
	counts      *hdrhistogram.Histogram
	sum         float64
	least, most int64
}

// NewLatencies returns no latencies.
func NewLatencies() *Latencies {
	return &Latencies{counts: hdrhistogram.New(1, longestNs, digits), least: math.MaxInt64}
}

// Record adds one, in nanoseconds.
func (l *Latencies) Record(ns int64) {
	_ = l.counts.RecordValue(min(max(ns, 0), longestNs))
	l.sum += float64(ns)
	l.least = min(l.least, ns)
	l.most = max(l.most, ns)
}

// clear forgets all latencies, and keeps the memory.
func (l *Latencies) clear() {
	if l.counts.TotalCount() > 0 {
		l.counts.Reset()
		l.sum, l.least, l.most = 0, math.MaxInt64, 0
	}
}

// Merge adds all latencies of another.
func (l *Latencies) Merge(other *Latencies) {
	l.counts.Merge(other.counts)
	l.sum += other.sum
	l.least = min(l.least, other.least)
	l.most = max(l.most, other.most)
}

// Summary is what the record says of latencies of one kind.
type Summary struct {
	Count   uint64       `json:"count"`
	MeanUs  float64      `json:"mean_us"`
	MinUs   float64      `json:"min_us"`
	P50Us   float64      `json:"p50_us"`
	P90Us   float64      `json:"p90_us"`
	P99Us   float64      `json:"p99_us"`
	P999Us  float64      `json:"p999_us"`
	P9999Us float64      `json:"p9999_us"`
	MaxUs   float64      `json:"max_us"`
	SlowS   float64      `json:"slow_s"`
	Cdf     [][2]float64 `json:"cdf"`
}

// Summary returns nil if there are no latencies.
func (l *Latencies) Summary() *Summary {
	count := l.counts.TotalCount()
	if count == 0 {
		return nil
	}
	summary := &Summary{
		Count:   uint64(count),
		MeanUs:  l.sum / float64(count) / 1e3,
		MinUs:   us(l.least),
		P50Us:   l.quantile(50),
		P90Us:   l.quantile(90),
		P99Us:   l.quantile(99),
		P999Us:  l.quantile(99.9),
		P9999Us: l.quantile(99.99),
		MaxUs:   us(l.most),
	}
	l.distribute(summary)
	return summary
}

// second summarises the latencies of one second.
func (l *Latencies) second() SecondLatency {
	return SecondLatency{
		Count: uint64(l.counts.TotalCount()),
		P50Us: l.quantile(50),
		P99Us: l.quantile(99),
		MaxUs: us(l.most),
	}
}

// SecondLatency says how long the calls of one kind took in one second.
type SecondLatency struct {
	Count uint64  `json:"count"`
	P50Us float64 `json:"p50_us"`
	P99Us float64 `json:"p99_us"`
	MaxUs float64 `json:"max_us"`
}

// distribute fills in the cumulative distribution and the time in slow operations.
func (l *Latencies) distribute(summary *Summary) {
	seen, cell := int64(0), math.MinInt
	for _, bar := range l.counts.Distribution() {
		if bar.Count == 0 {
			continue
		}
		if bar.To > slowNs {
			middle := min(bar.From+(bar.To-bar.From)/2, l.most)
			summary.SlowS += float64(middle) * float64(bar.Count) / 1e9
		}
		seen += bar.Count
		point := [2]float64{us(min(bar.To, l.most)), float64(seen) / float64(summary.Count)}
		here := int(math.Floor(math.Log10(max(point[0], 1e-3)) * pointsPerDecade))
		if here == cell {
			summary.Cdf[len(summary.Cdf)-1] = point
		} else {
			summary.Cdf = append(summary.Cdf, point)
		}
		cell = here
	}
}

// quantile is the latency in microseconds that this percentage of all calls does not exceed.
func (l *Latencies) quantile(percent float64) float64 {
	return us(min(max(l.counts.ValueAtQuantile(percent), l.least), l.most))
}

func us(ns int64) float64 { return float64(ns) / 1e3 }

package measure

import (
	"sync"
	"time"
)

// Kind is what a latency is that of. The names are those of the Rust harness.
type Kind int

// The kinds of operations.
const (
	Put Kind = iota
	Batch
	Delete
	Get
	GetMissing
	MultiGet
	Seek
	Scan
	Open
	Compact
	kinds
)

var kindNames = [kinds]string{
	"put", "batch", "delete", "get", "get_missing", "multi_get", "seek", "scan", "open", "compact",
}

// String returns the name in the record.
func (k Kind) String() string { return kindNames[k] }

// Done says what one call did.
type Done struct {
	Kind Kind
	// Operations is how many operations it counts as: each entry of a batch and of a whole scan is
	// one.
	Operations              uint64
	WrittenBytes, ReadBytes uint64
}

// Counts of operations.
type Counts struct {
	Operations, WrittenBytes, ReadBytes uint64
}

func (c *Counts) add(other Counts) {
	c.Operations += other.Operations
	c.WrittenBytes += other.WrittenBytes
	c.ReadBytes += other.ReadBytes
}

// tally is what a recorder has counted in one second.
type tally struct {
	counts  Counts
	last    int64
	latency [kinds]*Latencies
}

func (t *tally) clear() {
	t.counts, t.last = Counts{}, 0
	for _, latencies := range t.latency {
		if latencies != nil {
			latencies.clear()
		}
	}
}

// handOver is a tally on its way to the sampler.
type handOver struct {
	recorder int
	beside   bool
	second   int64
	// next is the second with which the recorder goes on; -1 if it ends.
	next  int64
	tally *tally
}

// Meter is shared by the recorders of one measurement.
type Meter struct {
	start     time.Time
	recorders int
	messages  chan handOver
	spare     sync.Pool
}

// NewMeter returns a measurement for this number of recorders. StartSampler starts its clock.
func NewMeter(recorders int) *Meter {
	return &Meter{
		recorders: recorders,
		messages:  make(chan handOver, 4*recorders+16),
		spare:     sync.Pool{New: func() any { return new(tally) }},
	}
}

// Now returns the time since the start in nanoseconds. It reads the monotonic clock once.
func (m *Meter) Now() int64 { return int64(time.Since(m.start)) }

// Start returns when the clock was started.
func (m *Meter) Start() time.Time { return m.start }

// Recorder records the calls of one goroutine. Each second it hands its tally to the sampler.
type Recorder struct {
	meter       *Meter
	number      int
	beside      bool
	last        int64
	second, end int64
	tally       *tally
}

// Recorder returns the recorder with this number, from 0. A recorder beside the workload is not
// counted in its operations. Its first call begins now.
func (m *Meter) Recorder(number int, beside bool) *Recorder {
	r := &Recorder{meter: m, number: number, beside: beside, tally: m.spare.Get().(*tally)}
	r.last = m.Now()
	r.enter(0)
	return r
}

// Lap records a call that began when the last one ended, and returns the time in nanoseconds. It
// reads the clock once.
func (r *Recorder) Lap(done *Done) int64 {
	now := r.meter.Now()
	took := now - r.last
	r.turn(now)
	latencies := r.tally.latency[done.Kind]
	if latencies == nil {
		latencies = NewLatencies()
		r.tally.latency[done.Kind] = latencies
	}
	latencies.Record(took)
	r.last = now
	r.tally.last = now
	r.tally.counts.add(Counts{done.Operations, done.WrittenBytes, done.ReadBytes})
	return now
}

// Now returns the time since the start in nanoseconds.
func (r *Recorder) Now() int64 { return r.meter.Now() }

// From says that the next call was due at this time, from which its latency counts.
func (r *Recorder) From(due int64) { r.last = due }

// Finish hands over what is left. The recorder must not be used after it.
func (r *Recorder) Finish() {
	r.meter.messages <- handOver{r.number, r.beside, r.second, -1, r.tally}
}

// turn goes on to the second of now.
func (r *Recorder) turn(now int64) {
	if now < r.end {
		return
	}
	next := now / int64(time.Second)
	r.meter.messages <- handOver{r.number, r.beside, r.second, next, r.tally}
	r.tally = r.meter.spare.Get().(*tally)
	r.enter(next)
}

func (r *Recorder) enter(second int64) {
	r.second, r.end = second, (second+1)*int64(time.Second)
}

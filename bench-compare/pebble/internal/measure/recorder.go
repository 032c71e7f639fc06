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
	Update
	Insert
	ReadModifyWrite
	kinds
)

var kindNames = [kinds]string{
	"put", "batch", "delete", "get", "get_missing", "multi_get", "seek", "scan", "open", "compact",
	"update", "insert", "read_modify_write",
}

// Unknown is the kind of an operation that would have been drawn.
const Unknown Kind = -1

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
	// service has the times from the begin of the calls of an open loop, and censored what operations
	// have waited that never began.
	service, censored [kinds]*Latencies
	// unknown is as censored, for operations of which nobody knows the kind.
	unknown *Latencies
}

func (t *tally) clear() {
	t.counts, t.last = Counts{}, 0
	for _, all := range [][]*Latencies{t.latency[:], t.service[:], t.censored[:], {t.unknown}} {
		for _, latencies := range all {
			if latencies != nil {
				latencies.clear()
			}
		}
	}
}

// of returns the latencies of a kind, which are made with its first operation.
func of(latencies **Latencies) *Latencies {
	if *latencies == nil {
		*latencies = NewLatencies()
	}
	return *latencies
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
	of(&r.tally.latency[done.Kind]).Record(took)
	r.count(done, now)
	return now
}

// count notes everything of a call but its times.
func (r *Recorder) count(done *Done, now int64) {
	r.last = now
	r.tally.last = now
	r.tally.counts.add(Counts{done.Operations, done.WrittenBytes, done.ReadBytes})
}

// RecordOpen records a call of an open loop, of which the latency counts from the time at which it was
// due, and returns the time at which it ended.
func (r *Recorder) RecordOpen(done *Done, due, began int64) int64 {
	now := r.meter.Now()
	r.turn(now)
	of(&r.tally.latency[done.Kind]).Record(now - min(due, began))
	of(&r.tally.service[done.Kind]).Record(now - began)
	r.count(done, now)
	return now
}

// RecordCensored records a call of an open loop that was due and had not begun when it was given up.
// What it waited until then is a lower bound of its latency. It is no operation, and in no second of
// the series. A kind of Unknown would have been drawn.
func (r *Recorder) RecordCensored(kind Kind, due, givenUp int64) {
	if kind == Unknown {
		of(&r.tally.unknown).Record(givenUp - due)
		return
	}
	of(&r.tally.censored[kind]).Record(givenUp - due)
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

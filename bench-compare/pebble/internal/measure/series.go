package measure

import (
	"time"

	"siltstone/bench-compare/pebble/internal/store"
)

// Second is one second of a run. Sampled figures are nil if there was no sample.
type Second struct {
	Second              int64                    `json:"second"`
	Operations          uint64                   `json:"operations"`
	BesideOperations    uint64                   `json:"beside_operations"`
	WrittenBytes        uint64                   `json:"written_bytes"`
	ReadBytes           uint64                   `json:"read_bytes"`
	Latency             map[string]SecondLatency `json:"latency"`
	StallS              map[string]float64       `json:"stall_s"`
	LogBytes            *uint64                  `json:"log_bytes"`
	FlushBytes          *uint64                  `json:"flush_bytes"`
	CompactionReadBytes *uint64                  `json:"compaction_read_bytes"`
	CompactionBytes     *uint64                  `json:"compaction_bytes"`
	WriteCallBytes      *uint64                  `json:"write_call_bytes"`
	DeviceWriteBytes    *uint64                  `json:"device_write_bytes"`
	DeviceReadBytes     *uint64                  `json:"device_read_bytes"`
	CPUS                *float64                 `json:"cpu_s"`
	ResidentBytes       *uint64                  `json:"resident_bytes"`
	AnonymousBytes      *uint64                  `json:"anonymous_bytes"`
	// Levels is the shape of the tree at the end of the second, if it was asked for then. In the
	// first second it is the shape at the start otherwise.
	Levels []store.Level `json:"levels"`

	// merged are the latencies of a second that is not complete.
	merged [kinds]*Latencies
}

// Measured is what a measurement found.
type Measured struct {
	// UntilLast is the time from the start to the end of the last measured call.
	UntilLast time.Duration
	// Counts are those of the measured threads, and Beside those of the others.
	Counts, Beside Counts
	// All are the latencies of all measured calls.
	All *Latencies
	// Latency has the latencies of all threads by kind.
	Latency map[string]*Latencies
	// Service has the times from the begin of the calls of an open loop.
	Service map[string]*Latencies
	// Censored is how many operations of an open loop were due and never begun. Their waits are in the
	// latencies.
	Censored      uint64
	Before, After Reading
	// Figures is how much the counters of the store grew until the sampler was finished.
	Figures            store.Figures
	Levels             []store.Level
	PeakAnonymousBytes *uint64
	PeakResidentBytes  *uint64
	Seconds            []*Second
}

// Sampler collects what recorders hand over, and reads the process and the store once a second.
type Sampler struct {
	meter  *Meter
	stop   chan struct{}
	result chan *Measured
}

type collector struct {
	meter       *Meter
	store       *store.Store
	isPeakNew   bool
	first, last Reading
	firstFigure store.Figures
	lastFigure  store.Figures
	firstLevels []store.Level
	// levelsTook is how long the store took to give the last shape of its tree, and levelsAt is when
	// that was, in whole seconds since the start.
	levelsTook time.Duration
	levelsAt   int64
	measured   *Measured
	// position is the second of each recorder; -1 if it has ended.
	position []int64
	complete int64
}

// StartSampler takes the first sample, and starts the clock of the meter and the sampler. The store may
// be nil.
func StartSampler(meter *Meter, opened *store.Store) *Sampler {
	s := &Sampler{meter: meter, stop: make(chan struct{}), result: make(chan *Measured, 1)}
	c := newCollector(meter, opened)
	meter.start = time.Now()
	go func() { s.result <- c.run(s.stop) }()
	return s
}

// newCollector takes the first sample.
func newCollector(meter *Meter, opened *store.Store) *collector {
	c := &collector{
		meter:     meter,
		store:     opened,
		isPeakNew: resetPeak(),
		first:     ReadProcess(),
		measured: &Measured{All: NewLatencies(), Latency: map[string]*Latencies{},
			Service: map[string]*Latencies{}},
		position: make([]int64, meter.recorders),
	}
	c.last = c.first
	c.notePeaks()
	if opened != nil {
		c.firstFigure = opened.Figures()
		c.lastFigure = c.firstFigure
		c.firstLevels = c.levels(0)
	}
	return c
}

// Finish takes the last sample. All recorders must have been finished before.
func (s *Sampler) Finish() *Measured {
	close(s.stop)
	return <-s.result
}

func (c *collector) run(stop chan struct{}) *Measured {
	next := int64(1)
	for {
		timer := time.NewTimer(time.Duration(next*int64(time.Second) - c.meter.Now()))
		select {
		case message := <-c.meter.messages:
			timer.Stop()
			c.take(message)
		case <-timer.C:
			now := c.meter.Now() / int64(time.Second)
			c.sample(max(now-1, 0), c.levelsAreDue(now))
			next = now + 1
		case <-stop:
			timer.Stop()
			return c.finish()
		}
	}
}

// row returns a second of the series.
func (c *collector) row(second int64) *Second {
	for int64(len(c.measured.Seconds)) <= second {
		row := &Second{
			Second:  int64(len(c.measured.Seconds)),
			Latency: map[string]SecondLatency{},
		}
		c.measured.Seconds = append(c.measured.Seconds, row)
	}
	return c.measured.Seconds[second]
}

func (c *collector) take(message handOver) {
	row, counts := c.row(message.second), message.tally.counts
	row.WrittenBytes += counts.WrittenBytes
	row.ReadBytes += counts.ReadBytes
	if message.beside {
		row.BesideOperations += counts.Operations
		c.measured.Beside.add(counts)
	} else {
		row.Operations += counts.Operations
		c.measured.Counts.add(counts)
		c.measured.UntilLast = max(c.measured.UntilLast, time.Duration(message.tally.last))
	}
	for kind, latencies := range message.tally.latency {
		if latencies == nil || latencies.counts.TotalCount() == 0 {
			continue
		}
		if row.merged[kind] == nil {
			row.merged[kind] = NewLatencies()
		}
		row.merged[kind].Merge(latencies)
		c.merge(c.measured.Latency, Kind(kind), latencies)
		if !message.beside {
			c.measured.All.Merge(latencies)
		}
	}
	for kind, latencies := range message.tally.service {
		c.merge(c.measured.Service, Kind(kind), latencies)
	}
	for kind, latencies := range message.tally.censored {
		c.merge(c.measured.Latency, Kind(kind), latencies)
		c.censor(message.beside, latencies)
	}
	c.censor(message.beside, message.tally.unknown)
	message.tally.clear()
	c.meter.spare.Put(message.tally)
	c.position[message.recorder] = message.next
	c.completeSeconds()
}

// merge adds latencies to those of their kind, if there are any.
func (c *collector) merge(all map[string]*Latencies, kind Kind, latencies *Latencies) {
	if latencies == nil || latencies.counts.TotalCount() == 0 {
		return
	}
	if all[kind.String()] == nil {
		all[kind.String()] = NewLatencies()
	}
	all[kind.String()].Merge(latencies)
}

// censor counts what measured operations have waited that never began.
func (c *collector) censor(beside bool, latencies *Latencies) {
	if !beside && latencies != nil {
		c.measured.Censored += uint64(latencies.counts.TotalCount())
		c.measured.All.Merge(latencies)
	}
}

// completeSeconds gives up the histograms of the seconds that all recorders have left.
func (c *collector) completeSeconds() {
	end := int64(len(c.measured.Seconds))
	for _, position := range c.position {
		if position >= 0 {
			end = min(end, position)
		}
	}
	for ; c.complete < end; c.complete++ {
		c.measured.Seconds[c.complete].summarise()
	}
}

func (s *Second) summarise() {
	for kind, latencies := range s.merged {
		if latencies != nil {
			s.Latency[Kind(kind).String()] = latencies.second()
			s.merged[kind] = nil
		}
	}
}

func (c *collector) notePeaks() {
	c.measured.PeakAnonymousBytes = larger(c.measured.PeakAnonymousBytes, c.last.AnonymousBytes)
	c.measured.PeakResidentBytes = larger(c.measured.PeakResidentBytes, c.last.ResidentBytes)
}

func larger(a, b *uint64) *uint64 {
	if a == nil || (b != nil && *b > *a) {
		return b
	}
	return a
}

// The shape of the tree is asked for every second while an answer takes less than quick. Otherwise
// it is asked for again after slowLevelsEvery seconds.
const (
	quick           = 2 * time.Millisecond
	slowLevelsEvery = 10
)

// levelsAreDue says whether the shape of the tree is asked for after this number of seconds.
func (c *collector) levelsAreDue(now int64) bool {
	every := int64(slowLevelsEvery)
	if c.levelsTook < quick {
		every = 1
	}
	return now >= c.levelsAt+every
}

// levels asks for the shape of the tree after this number of seconds.
func (c *collector) levels(now int64) []store.Level {
	begun := time.Now()
	levels := c.store.Levels()
	c.levelsTook, c.levelsAt = time.Since(begun), now
	return levels
}

// sample reads everything at the end of a second, and the shape of the tree if withLevels says so.
func (c *collector) sample(second int64, withLevels bool) {
	before, now := c.last, ReadProcess()
	c.last = now
	c.notePeaks()
	row := c.row(second)
	row.WriteCallBytes = Growth(before.WriteCallBytes, now.WriteCallBytes)
	row.DeviceWriteBytes = Growth(before.DeviceWriteBytes, now.DeviceWriteBytes)
	row.DeviceReadBytes = Growth(before.DeviceReadBytes, now.DeviceReadBytes)
	row.CPUS = Growth(before.CPUS, now.CPUS)
	row.ResidentBytes, row.AnonymousBytes = now.ResidentBytes, now.AnonymousBytes
	if c.store == nil {
		return
	}
	figures := c.store.Figures()
	grown := figures.Since(c.lastFigure)
	c.lastFigure = figures
	row.LogBytes, row.FlushBytes = &grown.LogBytes, &grown.FlushBytes
	row.CompactionReadBytes, row.CompactionBytes = &grown.CompactionReadBytes, &grown.CompactionBytes
	if len(grown.Stalls) > 0 {
		row.StallS = StallSeconds(grown.Stalls)
	}
	if withLevels {
		row.Levels = c.levels(second + 1)
	}
}

// StallSeconds gives the times in seconds, by Pebble's own names of the reasons.
func StallSeconds(stalls map[string]time.Duration) map[string]float64 {
	seconds := map[string]float64{}
	for reason, total := range stalls {
		seconds[reason] = total.Seconds()
	}
	return seconds
}

func (c *collector) finish() *Measured {
	for len(c.meter.messages) > 0 {
		c.take(<-c.meter.messages)
	}
	c.sample(c.meter.Now()/int64(time.Second), true)
	for _, row := range c.measured.Seconds {
		row.summarise()
	}
	if first := c.measured.Seconds[0]; first.Levels == nil {
		first.Levels = c.firstLevels
	}
	m := c.measured
	m.Before, m.After = c.first, c.last
	m.Figures = c.lastFigure.Since(c.firstFigure)
	if c.isPeakNew {
		m.PeakResidentBytes = larger(m.PeakResidentBytes, c.last.PeakBytes)
	}
	if c.store != nil {
		m.Levels = c.store.Levels()
	}
	return m
}

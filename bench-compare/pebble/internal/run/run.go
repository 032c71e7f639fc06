// Package run carries out a workload on a store and finds out what it costs. Its phases are those of
// docs/rfc/0008-bench.md, section 2: prepare, cache, measure, settle, account.
//
// Invariants: equal settings give the operations of the Rust harness, in the same order. A run that
// returns an outcome had no failure and no wrong answer.
//
// Threading: Run starts all goroutines and ends them before it returns.
package run

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"sync/atomic"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/measure"
	"siltstone/bench-compare/pebble/internal/settings"
)

// Outcome is what a run found.
type Outcome struct {
	Measured *measure.Measured
	// SettledAfter is the time from the end of the last operation until the store was idle.
	SettledAfter time.Duration
	// Sizes are those of the open store when it was idle, and ClosedSizes those of the closed one.
	Sizes, ClosedSizes        measure.Sizes
	Records, LiveBytes        uint64
	CachedBefore, CachedAfter *float64
	EngineSettings            map[string]string
	// Synced says that every write waited until it was durable.
	Synced bool
	// Open is what the workload open found.
	Open *OpenTimes
	// OpenLoop is what was due in an open loop; nil in a closed one.
	OpenLoop *OpenLoop
}

// OpenLoop is what was due in an open loop.
type OpenLoop struct {
	// DueOperations were due until the time was over, begun or not.
	DueOperations uint64
	// Duration is the time that was given, or that of the run.
	Duration time.Duration
}

// OpenTimes is what an open took.
type OpenTimes struct {
	UntilFirstReadS float64 `json:"until_first_read_s"`
	LogBytes        uint64  `json:"log_bytes"`
}

// ErrInterrupted says that the user ended the run.
var ErrInterrupted = errors.New("the run was interrupted")

// The lanes of random numbers of one thread.
const (
	laneOperations = 0
	laneRecords    = 1
	// laneArrivals is 2 in the Rust harness. Even times are not drawn, so nothing uses it here.
)

// Run runs the workload. If the context ends, the threads stop after their operation, the store is
// closed, and there is no outcome.
func Run(ctx context.Context, s *settings.Settings) (*Outcome, error) {
	keys, err := keysOf(s)
	if err != nil {
		return nil, err
	}
	values, err := generate.NewValues(s.ValueBytes, s.CompressionRatio, s.Seed)
	if err != nil {
		return nil, err
	}
	f, err := prepare(s)
	if err != nil {
		return nil, err
	}
	outcome, err := f.run(ctx, keys, values)
	if errors.Is(err, context.Canceled) {
		err = ErrInterrupted
	}
	return outcome, errors.Join(err, f.close())
}

func keysOf(s *settings.Settings) (generate.Keys, error) {
	if s.Workload.IsYcsb() {
		return generate.NewHashedKeys(), nil
	}
	return generate.NewKeys(s.KeyBytes, s.Records)
}

func (f *fixture) run(ctx context.Context, keys generate.Keys, values *generate.Values) (*Outcome, error) {
	if err := f.prepareCache(ctx); err != nil {
		return nil, err
	}
	outcome := &Outcome{CachedBefore: measure.CachedPart(f.folder), EngineSettings: f.store.Describe()}
	if f.settings.Workload.Writes() {
		if err := f.beginWriting(); err != nil {
			return nil, err
		}
	}
	var err error
	if f.settings.Workload == settings.Open {
		err = f.measureOpen(ctx, keys, values, outcome)
	} else {
		err = f.measure(ctx, keys, values, outcome)
	}
	if ctx.Err() != nil {
		return nil, ErrInterrupted
	}
	if err != nil {
		return nil, err
	}
	f.store.WaitForDeletions()
	if outcome.Sizes, err = measure.SizesOf(f.folder); err != nil {
		return nil, err
	}
	outcome.CachedAfter = measure.CachedPart(f.folder)
	if err := f.close(); err != nil {
		return nil, err
	}
	if outcome.ClosedSizes, err = measure.SizesOf(f.folder); err != nil {
		return nil, err
	}
	outcome.Records, outcome.LiveBytes = f.population.Count(), f.liveBytes(keys)
	if f.settings.Workload.Writes() {
		return outcome, f.save()
	}
	return outcome, nil
}

// prepareCache waits until the store is idle, and brings the page cache into the state that the run
// asks for.
func (f *fixture) prepareCache(ctx context.Context) error {
	if _, err := f.store.WaitUntilIdle(ctx); err != nil {
		return err
	}
	switch f.settings.Cache {
	case settings.Warm:
		return measure.WarmUp(f.folder)
	case settings.Cold:
		if err := f.close(); err != nil {
			return err
		}
		if err := measure.Drop(f.folder); err != nil {
			return err
		}
		if err := f.open(); err != nil {
			return err
		}
		_, err := f.store.WaitUntilIdle(ctx)
		return err
	}
	return nil
}

// settle brings the store to rest: if it was written to, it is flushed, as the other engines are. It
// returns since when the store is idle.
func (f *fixture) settle(ctx context.Context) (time.Time, error) {
	if f.settings.Workload.Writes() {
		if err := f.store.DB.Flush(); err != nil {
			return time.Now(), fmt.Errorf("flush: %w", err)
		}
	}
	return f.store.WaitUntilIdle(ctx)
}

// measure runs the threads of a workload, waits until the store is idle, and says what was measured
// and how long the store took to become idle.
func (f *fixture) measure(ctx context.Context, keys generate.Keys, values *generate.Values,
	outcome *Outcome,
) error {
	s := f.settings
	threads := s.Threads
	if s.Workload.HasBesideWriter() {
		threads++
	}
	write := pebble.NoSync
	if s.Sync {
		write = pebble.Sync
	}
	meter := measure.NewMeter(threads)
	var stop atomic.Bool
	defer context.AfterFunc(ctx, func() { stop.Store(true) })()
	var working atomic.Int32
	working.Store(int32(s.Threads))
	start := make(chan struct{})
	failures, due := make([]error, threads), make([]uint64, threads)
	existing := generate.NewAcknowledged(f.end)
	var team sync.WaitGroup
	for thread := range threads {
		isBeside := thread >= s.Threads
		t := &tools{
			store:      f.store,
			keys:       keys,
			values:     values,
			population: f.population,
			stop:       &stop,
			write:      write,
			random:     generate.NewRandom(s.OperationsSeed(), thread).Lane(laneOperations),
			versions:   newVersions(f.generation(), thread),
		}
		o := f.operationOf(existing, thread, isBeside)
		team.Go(func() {
			<-start
			t.recorder = meter.Recorder(thread, isBeside)
			switch {
			case isBeside:
				failures[thread] = work(o, t, s.Amount.Seconds, s.WriteRate)
			case s.ArrivalRate > 0:
				arrivals := generate.NewArrivals(s.ArrivalRate, thread, s.Threads)
				due[thread], failures[thread] = workOpen(o, t, s.Amount.Seconds, arrivals)
			default:
				failures[thread] = work(o, t, s.Amount.Seconds, 0)
			}
			t.recorder.Finish()
			if isLast := !isBeside && working.Add(-1) == 0; isLast || failures[thread] != nil {
				stop.Store(true)
			}
		})
	}
	sampler := measure.StartSampler(meter, f.store)
	close(start)
	team.Wait()
	idleSince, err := f.settle(ctx)
	outcome.Measured, outcome.Synced = sampler.Finish(), s.Sync
	if s.ArrivalRate > 0 {
		outcome.OpenLoop = openLoopOf(s, due, outcome.Measured)
	}
	last := meter.Start().Add(outcome.Measured.UntilLast)
	outcome.SettledAfter = max(idleSince.Sub(last), 0)
	return errors.Join(append(failures, err)...)
}

func openLoopOf(s *settings.Settings, due []uint64, measured *measure.Measured) *OpenLoop {
	found := &OpenLoop{Duration: measured.UntilLast}
	if s.Amount.Seconds > 0 {
		found.Duration = time.Duration(s.Amount.Seconds * float64(time.Second))
	}
	for _, count := range due {
		found.DueOperations += count
	}
	return found
}

// workOpen does operations at their intended times, or at once if these are past, until there are none
// left, the time is over, or the run is stopped. Latency counts from the intended time. Operations that
// were due and not begun when the time is over are recorded with what they have waited. It returns how
// many operations were due.
func workOpen(o operation, t *tools, seconds float64, arrivals *generate.Arrivals) (uint64, error) {
	end := int64(math.MaxInt64)
	if seconds > 0 {
		end = int64(seconds * float64(time.Second))
	}
	var due uint64
	for {
		intended := arrivals.Next()
		if intended >= end || !t.waitUntil(intended) {
			return due, nil
		}
		began := t.recorder.Now()
		done, err := o.step(t)
		if errors.Is(err, errDone) {
			return due, nil
		}
		if err != nil {
			return due, err
		}
		due++
		if ended := t.recorder.RecordOpen(&done, intended, began); ended >= end {
			return due + giveUp(o.kind(), t, arrivals, end, ended), nil
		}
	}
}

// giveUp records what was due before end and had not begun at this time, and returns how many they
// were.
func giveUp(kind measure.Kind, t *tools, arrivals *generate.Arrivals, end, givenUp int64) uint64 {
	var count uint64
	for intended := arrivals.Next(); intended < end; intended = arrivals.Next() {
		t.recorder.RecordCensored(kind, intended, givenUp)
		count++
	}
	return count
}

// work does operations until there are none left, the time is over, or the run is stopped. With a rate
// they begin at even times, and their latencies count from these.
func work(o operation, t *tools, seconds, rate float64) error {
	end := int64(math.MaxInt64)
	if seconds > 0 {
		end = int64(seconds * float64(time.Second))
	}
	for number := 0; !t.stop.Load(); number++ {
		if rate > 0 {
			due := int64(float64(number) / rate * float64(time.Second))
			if due >= end || !t.waitUntil(due) {
				return nil
			}
		}
		done, err := o.step(t)
		if errors.Is(err, errDone) {
			return nil
		}
		if err != nil {
			return err
		}
		if now := t.recorder.Lap(&done); now >= end {
			return nil
		}
	}
	return nil
}

// spin is how long before its time a goroutine stops sleeping.
const spin = int64(100 * time.Microsecond)

// waitUntil waits until a call is due; false if the run was stopped.
func (t *tools) waitUntil(due int64) bool {
	for {
		if t.stop.Load() {
			return false
		}
		left := due - t.recorder.Now()
		if left <= 0 {
			t.recorder.From(due)
			return true
		}
		if left > spin {
			time.Sleep(time.Duration(min(left-spin, int64(100*time.Millisecond))))
		}
	}
}

// operationOf returns the operations of one thread.
func (f *fixture) operationOf(existing *generate.Acknowledged, thread int, isBeside bool) operation {
	s := f.settings
	left := uint64(math.MaxUint64)
	if total, ok := s.TotalOperations(); ok && !isBeside {
		count, number := uint64(s.Threads), uint64(thread)
		left = total / count
		if number < total%count {
			left++
		}
	}
	d := drawn{pick: f.pickOf(thread), records: s.Records, left: left}
	if isBeside {
		return &fill{d}
	}
	switch s.Workload {
	case settings.FillBatch:
		return &batches{drawn: d, entries: uint64(s.Batch)}
	case settings.DeleteRandom:
		return &deletes{d}
	case settings.ReadRandom, settings.ReadWhileWriting:
		return &reads{d}
	case settings.ReadMissing:
		return &readsOfAbsent{d}
	case settings.MultiReadRandom:
		return &multiReads{drawn: d, count: uint64(s.Batch)}
	case settings.ReadSeq, settings.ReadReverse:
		if s.Amount.EveryRecord {
			left = math.MaxUint64
		}
		return &readAll{records: s.Records, entriesLeft: left,
			reverse: s.Workload == settings.ReadReverse, once: s.Amount.EveryRecord}
	case settings.SeekRandom, settings.SeekRandomWhileWriting:
		return &seeks{drawn: d, nexts: s.Nexts,
			othersWrite: s.Workload == settings.SeekRandomWhileWriting}
	case settings.ReadRandomWriteRandom:
		return &readsAndWrites{drawn: d, readRatio: s.ReadRatio}
	case settings.Compact:
		return &compaction{}
	case settings.YcsbA, settings.YcsbB, settings.YcsbC, settings.YcsbD, settings.YcsbE, settings.YcsbF:
		return &ycsb{workload: s.Workload, existing: existing, pick: d.pick, left: left}
	}
	return &fill{d}
}

// expectedRecords is the number of records for which hot records are chosen, so that they stay where
// they are while records are inserted.
func (f *fixture) expectedRecords() uint64 {
	s, inserts := f.settings, uint64(0)
	switch {
	case !s.Workload.IsYcsb():
		return s.Records
	case s.Workload.Inserts() && s.Amount.Operations > 0:
		// As in YCSB, twice as many as there will be on average: 5% of the operations insert.
		inserts = s.Amount.Operations / 10
	case s.Workload.Inserts():
		// Nobody knows how many there will be, so the store may grow to twice its size.
		inserts = f.end
	}
	// YCSB's generator covers the numbers from 0 to the number of records, both included.
	return f.end + inserts + 1
}

func (f *fixture) pickOf(thread int) generate.Pick {
	s := f.settings
	threads := max(s.Threads, thread+1)
	switch s.Distribution {
	case settings.Sequential:
		return generate.NewSequential(thread, threads)
	case settings.Zipfian:
		return generate.NewScrambledZipfian(s.OperationsSeed(), thread, laneRecords, f.expectedRecords())
	case settings.Latest:
		return generate.NewLatest(s.OperationsSeed(), thread, laneRecords)
	case settings.Permutation:
		return generate.NewPermuted(s.OperationsSeed(), thread, threads, laneRecords)
	}
	return generate.NewUniform(s.OperationsSeed(), thread, laneRecords)
}

// describeMissing is the text of a record that an open lost.
func describeMissing(record uint64) error {
	return fmt.Errorf("%w: record %d was in the log, and the open lost it", ErrWrongAnswer, record)
}

package run

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/cockroachdb/pebble/v2"

	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/measure"
	"siltstone/bench-compare/pebble/internal/store"
)

// ErrWrongAnswer is in the chain of errors of an answer that was wrong: a record was missing, one was
// there that must not be, or a value was not the one that was written.
var ErrWrongAnswer = errors.New("pebble gave a wrong answer")

func wrong(format string, arguments ...any) error {
	return fmt.Errorf("%w: %s", ErrWrongAnswer, fmt.Sprintf(format, arguments...))
}

// drawsMax is how often a record that the store has is drawn before the next one in order is taken.
const drawsMax = 64

// tools are what the operations of one goroutine work with.
type tools struct {
	store      *store.Store
	keys       generate.Keys
	values     *generate.Values
	population *Population
	recorder   *measure.Recorder
	stop       *atomic.Bool
	write      *pebble.WriteOptions
	// random decides what is done next. Records are drawn from another lane.
	random     generate.Random
	versions   versions
	key, value []byte
	// before is a buffer for what a scan must find.
	before []uint64
}

// versions are those of the values that one thread writes. Two workloads one after the other, and 16
// in all, write different versions of a record.
type versions struct {
	run, count uint64
}

const (
	// versionBits of a version count in a run. The four bits above them are the run's.
	versionBits = 16
	allVersions = 1 << 20
)

// newVersions returns those of a thread in the run that is the generation-th one to write.
func newVersions(generation, thread int) versions {
	return versions{uint64(generation) << versionBits % allVersions, uint64(thread) << 12}
}

// next returns the version of the next value.
func (v *versions) next() uint64 {
	version := v.run | v.count%(1<<versionBits)
	v.count++
	return version
}

// put puts a record with a new value.
func (t *tools) put(record uint64) (measure.Done, error) {
	if record >= t.population.Capacity() {
		return measure.Done{}, fmt.Errorf("record %d: the run inserts more records than this program "+
			"has room for, which are %d; give the run less time", record, t.population.Capacity())
	}
	t.value = t.values.Write(record, t.versions.next(), t.value)
	t.key = t.keys.Present(record, t.key)
	if err := t.store.DB.Set(t.key, t.value, t.write); err != nil {
		return measure.Done{}, fmt.Errorf("put: %w", err)
	}
	t.population.Add(record)
	bytes := uint64(len(t.key) + len(t.value))
	return measure.Done{Kind: measure.Put, Operations: 1, WrittenBytes: bytes}, nil
}

// remove deletes a record.
func (t *tools) remove(record uint64) (measure.Done, error) {
	t.population.Remove(record)
	t.key = t.keys.Present(record, t.key)
	if err := t.store.DB.Delete(t.key, t.write); err != nil {
		return measure.Done{}, fmt.Errorf("delete: %w", err)
	}
	return measure.Done{Kind: measure.Delete, Operations: 1, WrittenBytes: uint64(len(t.key))}, nil
}

// read reads a record that must be there, checks every byte and returns the bytes of key and value.
func (t *tools) read(record uint64) (uint64, error) {
	t.key = t.keys.Present(record, t.key)
	value, closer, err := t.store.DB.Get(t.key)
	if errors.Is(err, pebble.ErrNotFound) {
		return 0, wrong("record %d (key `%s`) was written, and a read did not find it", record, t.key)
	}
	if err != nil {
		return 0, fmt.Errorf("get: %w", err)
	}
	mismatch := t.values.Verify(record, value)
	bytes := uint64(len(t.key) + len(value))
	if err := closer.Close(); err != nil {
		return 0, fmt.Errorf("get: %w", err)
	}
	if mismatch != nil {
		return 0, wrong("%v", mismatch)
	}
	return bytes, nil
}

func (t *tools) get(record uint64) (measure.Done, error) {
	bytes, err := t.read(record)
	return measure.Done{Kind: measure.Get, Operations: 1, ReadBytes: bytes}, err
}

// getAbsent reads a key that no record has. DB.Get never consults the filters of the last level, so
// an iterator that does is what Pebble offers for reads that will mostly find nothing.
func (t *tools) getAbsent(record uint64) (measure.Done, error) {
	t.key = t.keys.Absent(record, t.key)
	// Nothing is returned, so no bytes are read.
	done := measure.Done{Kind: measure.GetMissing, Operations: 1}
	if !t.store.UseL6Filters {
		_, closer, err := t.store.DB.Get(t.key)
		if errors.Is(err, pebble.ErrNotFound) {
			return done, nil
		}
		if err != nil {
			return done, fmt.Errorf("get: %w", err)
		}
		_ = closer.Close()
		return done, wrong("the key `%s` was never written, and a read found it", t.key)
	}
	iterator, err := t.store.DB.NewIter(&absentOptions)
	if err != nil {
		return done, fmt.Errorf("get: %w", err)
	}
	isFound := iterator.SeekPrefixGE(t.key)
	if err := iterator.Close(); err != nil {
		return done, fmt.Errorf("get: %w", err)
	}
	if isFound {
		return done, wrong("the key `%s` was never written, and a read found it", t.key)
	}
	return done, nil
}

var absentOptions = pebble.IterOptions{UseL6Filters: true}

// drawPresent draws a record that the store has; false if it has none.
func (t *tools) drawPresent(pick generate.Pick, records uint64) (uint64, bool) {
	for range drawsMax {
		if record := pick.Next(records); t.population.Contains(record) {
			return record, true
		}
	}
	if record, ok := t.population.NextFrom(pick.Next(records)); ok && record < records {
		return record, true
	}
	record, ok := t.population.NextFrom(0)
	return record, ok && record < records
}

package run

import (
	"errors"
	"fmt"

	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/measure"
)

// errDone says that an operation has nothing left to do.
var errDone = errors.New("done")

// operation is what one goroutine does: step does the next call, or returns errDone.
type operation interface {
	step(t *tools) (measure.Done, error)
	// kind is that of all its operations; Unknown if it draws them.
	kind() measure.Kind
}

// drawn is what operations share that do a number of calls with records that are drawn.
type drawn struct {
	pick    generate.Pick
	records uint64
	left    uint64
}

// take takes up to this number of what is left.
func (d *drawn) take(count uint64) uint64 {
	count = min(count, d.left)
	d.left -= count
	return count
}

// fill puts records one by one.
type fill struct{ drawn }

func (o *fill) kind() measure.Kind { return measure.Put }

func (o *fill) step(t *tools) (measure.Done, error) {
	if o.take(1) == 0 {
		return measure.Done{}, errDone
	}
	return t.put(o.pick.Next(o.records))
}

// batches puts records in batches.
type batches struct {
	drawn
	entries uint64
	batch   []uint64
}

func (o *batches) kind() measure.Kind { return measure.Batch }

func (o *batches) step(t *tools) (measure.Done, error) {
	count := o.take(o.entries)
	if count == 0 {
		return measure.Done{}, errDone
	}
	o.batch = o.batch[:0]
	batch := t.store.DB.NewBatch()
	done := measure.Done{Kind: measure.Batch, Operations: count}
	for range count {
		record := o.pick.Next(o.records)
		o.batch = append(o.batch, record)
		t.value = t.values.Write(record, t.versions.next(), t.value)
		t.key = t.keys.Present(record, t.key)
		if err := batch.Set(t.key, t.value, nil); err != nil {
			return done, fmt.Errorf("batch: %w", err)
		}
		done.WrittenBytes += uint64(len(t.key) + len(t.value))
	}
	if err := batch.Commit(t.write); err != nil {
		return done, fmt.Errorf("batch: %w", err)
	}
	if err := batch.Close(); err != nil {
		return done, fmt.Errorf("batch: %w", err)
	}
	for _, record := range o.batch {
		t.population.Add(record)
	}
	return done, nil
}

// deletes deletes random records.
type deletes struct{ drawn }

func (o *deletes) kind() measure.Kind { return measure.Delete }

func (o *deletes) step(t *tools) (measure.Done, error) {
	if o.take(1) == 0 {
		return measure.Done{}, errDone
	}
	return t.remove(o.pick.Next(o.records))
}

// reads reads random records that the store has.
type reads struct{ drawn }

func (o *reads) kind() measure.Kind { return measure.Get }

func (o *reads) step(t *tools) (measure.Done, error) {
	if o.take(1) == 0 {
		return measure.Done{}, errDone
	}
	record, ok := t.drawPresent(o.pick, o.records)
	if !ok {
		return measure.Done{}, errDone
	}
	return t.get(record)
}

// readsOfAbsent reads keys that are not in the store.
type readsOfAbsent struct{ drawn }

func (o *readsOfAbsent) kind() measure.Kind { return measure.GetMissing }

func (o *readsOfAbsent) step(t *tools) (measure.Done, error) {
	if o.take(1) == 0 {
		return measure.Done{}, errDone
	}
	return t.getAbsent(o.pick.Next(o.records))
}

// multiReads reads many random records a call. Pebble has no such call, so it is a loop of gets.
type multiReads struct {
	drawn
	count uint64
}

func (o *multiReads) kind() measure.Kind { return measure.MultiGet }

func (o *multiReads) step(t *tools) (measure.Done, error) {
	done := measure.Done{Kind: measure.MultiGet, Operations: o.take(o.count)}
	if done.Operations == 0 {
		return done, errDone
	}
	for range done.Operations {
		record, ok := t.drawPresent(o.pick, o.records)
		if !ok {
			return done, errDone
		}
		bytes, err := t.read(record)
		if err != nil {
			return done, err
		}
		done.ReadBytes += bytes
	}
	return done, nil
}

// readsAndWrites reads and overwrites random records in a given ratio.
type readsAndWrites struct {
	drawn
	readRatio float64
}

func (o *readsAndWrites) kind() measure.Kind { return measure.Unknown }

func (o *readsAndWrites) step(t *tools) (measure.Done, error) {
	if o.take(1) == 0 {
		return measure.Done{}, errDone
	}
	if t.random.Chance(o.readRatio) {
		if record, ok := t.drawPresent(o.pick, o.records); ok {
			return t.get(record)
		}
	}
	return t.put(o.pick.Next(o.records))
}

// seeks seeks random records with a new iterator and reads the next entries.
type seeks struct {
	drawn
	nexts       uint64
	othersWrite bool
}

func (o *seeks) kind() measure.Kind { return measure.Seek }

func (o *seeks) step(t *tools) (measure.Done, error) {
	if o.take(1) == 0 {
		return measure.Done{}, errDone
	}
	from := o.pick.Next(o.records)
	done, _, err := scan(t, scanRange{from: &from, limit: o.nexts, records: o.records,
		othersWrite: o.othersWrite})
	return done, err
}

// readAll reads the whole store, again and again.
type readAll struct {
	records, entriesLeft uint64
	reverse              bool
	// once: it reads the store once, whatever it has.
	once bool
}

func (o *readAll) kind() measure.Kind { return measure.Scan }

func (o *readAll) step(t *tools) (measure.Done, error) {
	if o.entriesLeft == 0 || t.stop.Load() {
		return measure.Done{}, errDone
	}
	all := scanRange{limit: o.entriesLeft, records: o.records, reverse: o.reverse}
	done, entries, err := scan(t, all)
	if entries == 0 || o.once {
		o.entriesLeft = 0
	}
	o.entriesLeft -= min(entries, o.entriesLeft)
	return done, err
}

// compaction compacts the whole store once.
type compaction struct{ isDone bool }

func (o *compaction) kind() measure.Kind { return measure.Compact }

func (o *compaction) step(t *tools) (measure.Done, error) {
	if o.isDone {
		return measure.Done{}, errDone
	}
	o.isDone = true
	return measure.Done{Kind: measure.Compact, Operations: 1}, t.store.Compact()
}

package run

import (
	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/measure"
	"siltstone/bench-compare/pebble/internal/settings"
)

// scanMax is the most entries of a scan of workload E.
const scanMax = 100

// ycsb is one thread of a core workload of YCSB. What it does follows
// crates/bench/src/run/operations/ycsb.rs, which says how it differs from YCSB's own program.
type ycsb struct {
	workload settings.Workload
	// existing says how many records exist. All threads share it.
	existing *generate.Acknowledged
	pick     generate.Pick
	left     uint64
}

// next is what a thread does next.
type next int

const (
	read next = iota
	update
	insert
	scanEntries
	readModifyWrite
)

// draw draws what is done next: the proportions of the workload's file.
func (o *ycsb) draw(unit float64) next {
	reads, other := 0.95, update
	switch o.workload {
	case settings.YcsbA:
		reads = 0.5
	case settings.YcsbC:
		return read
	case settings.YcsbD:
		other = insert
	case settings.YcsbE:
		if unit < reads {
			return scanEntries
		}
		return insert
	case settings.YcsbF:
		reads, other = 0.5, readModifyWrite
	}
	if unit < reads {
		return read
	}
	return other
}

// kind is not known before it is drawn.
func (o *ycsb) kind() measure.Kind { return measure.Unknown }

func (o *ycsb) step(t *tools) (measure.Done, error) {
	if o.left == 0 {
		return measure.Done{}, errDone
	}
	o.left--
	count := o.existing.Count()
	what := o.draw(t.random.Unit())
	switch what {
	case insert:
		record := o.existing.Begin()
		done, err := t.put(record)
		if err == nil {
			o.existing.Complete(record)
		}
		done.Kind = measure.Insert
		return done, err
	case scanEntries:
		from := o.pick.Next(count)
		done, _, err := scan(t, scanRange{from: &from, limit: 1 + t.random.Below(scanMax), othersWrite: true})
		return done, err
	}
	record, ok := t.drawPresent(o.pick, count)
	if !ok {
		return measure.Done{}, errDone
	}
	switch what {
	case read:
		return t.get(record)
	case update:
		done, err := t.put(record)
		done.Kind = measure.Update
		return done, err
	}
	bytes, err := t.read(record)
	if err != nil {
		return measure.Done{}, err
	}
	done, err := t.put(record)
	done.Kind, done.ReadBytes = measure.ReadModifyWrite, bytes
	return done, err
}

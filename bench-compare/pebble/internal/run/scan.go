package run

import (
	"bytes"
	"fmt"

	"siltstone/bench-compare/pebble/internal/measure"
)

// lapEntries is how many entries of a scan of the whole store are recorded as one call. After each
// of them the scan looks whether the run has ended.
const lapEntries = 1024

// scanRange says where a scan begins and how far it goes.
type scanRange struct {
	// from is the record that is sought; nil begins at the end of the store.
	from    *uint64
	limit   uint64
	records uint64
	reverse bool
	// othersWrite: another thread writes, so records may be found that were not expected.
	othersWrite bool
}

// checker checks the entries of a scan one by one.
type checker struct {
	scanRange
	tools *tools
	// before are the records that were there before the scan began, if other threads write: one that
	// comes later is in the population and not in what the scan sees.
	before []uint64
	// next is the record that comes next at the earliest; backward, one more than the record that
	// comes next at the latest.
	next uint64
	// last is the last key, where the order of keys is not that of records.
	last []byte
	progress
}

// progress is how much a scan has read.
type progress struct{ entries, bytes uint64 }

// expected is the record that the store must give next, as far as it is known.
func (c *checker) expected() (uint64, bool) {
	if !c.tools.keys.IsOrdered() {
		return 0, false
	}
	if c.othersWrite {
		for len(c.before) > 0 && c.before[0] < c.next {
			c.before = c.before[1:]
		}
		if len(c.before) == 0 {
			return 0, false
		}
		return c.before[0], true
	}
	if c.reverse {
		return c.tools.population.LastBefore(c.next)
	}
	return c.tools.population.NextFrom(c.next)
}

// check checks an entry: its key, its order, and all of its value.
func (c *checker) check(key, value []byte) error {
	record, err := c.recordOf(key, value)
	if err != nil {
		return err
	}
	if err := c.tools.values.Verify(record, value); err != nil {
		return wrong("%v", err)
	}
	c.entries++
	c.bytes += uint64(len(key) + len(value))
	return nil
}

// hashedRecord is the record of a hashed key. Only the value says which one it is, so a record that is
// left out is not noticed; the order of the keys is checked.
func (c *checker) hashedRecord(key, value []byte) (uint64, error) {
	record, _, ok := c.tools.values.Identity(value)
	c.tools.key = c.tools.keys.Present(record, c.tools.key)
	if !ok || !bytes.Equal(c.tools.key, key) {
		return 0, wrong("a scan gave the key `%s`, which was never written", key)
	}
	if c.entries > 0 && bytes.Compare(c.last, key) >= 0 {
		return 0, wrong("a scan gave the key `%s` after `%s`", key, c.last)
	}
	c.last = append(c.last[:0], key...)
	return record, nil
}

// recordOf is the record of a key, which must be the next one of the store.
func (c *checker) recordOf(key, value []byte) (uint64, error) {
	if !c.tools.keys.IsOrdered() {
		return c.hashedRecord(key, value)
	}
	number, ok := c.tools.keys.Number(key)
	if !ok || number%2 != 0 {
		return 0, wrong("a scan gave the key `%s`, which was never written", key)
	}
	record := number / 2
	expected, isKnown := c.expected()
	isLeftOut := isKnown && (c.reverse && record < expected || !c.reverse && record > expected)
	isOutOfOrder := c.reverse && record >= c.next || !c.reverse && record < c.next
	isUnknown := !isLeftOut && (!isKnown || record != expected)
	switch {
	case isOutOfOrder:
		return 0, wrong("a scan gave record %d out of order", record)
	case isLeftOut:
		return 0, wrong("a scan gave record %d where record %d comes next", record, expected)
	case isUnknown && !c.othersWrite:
		return 0, wrong("a scan gave record %d, which is not in the store", record)
	}
	c.next = record
	if !c.reverse {
		c.next++
	}
	return record, nil
}

// scan reads entries with a new iterator and checks all of them. A scan of the whole store is
// recorded in laps of lapEntries; what is returned to be recorded is what comes after the last one.
// The number is that of all entries.
func scan(t *tools, r scanRange) (measure.Done, uint64, error) {
	c := checker{scanRange: r, tools: t}
	if r.othersWrite && r.from != nil && t.keys.IsOrdered() {
		t.before = t.before[:0]
		for next := *r.from; uint64(len(t.before)) < r.limit; {
			record, ok := t.population.NextFrom(next)
			if !ok {
				break
			}
			t.before, next = append(t.before, record), record+1
		}
		c.before = t.before
	}
	iterator, err := t.store.DB.NewIter(nil)
	if err != nil {
		return measure.Done{}, 0, fmt.Errorf("scan: %w", err)
	}
	var isValid bool
	switch {
	case r.from != nil:
		c.next = *r.from
		t.key = t.keys.Present(*r.from, t.key)
		isValid = iterator.SeekGE(t.key)
	case r.reverse:
		c.next = r.records
		isValid = iterator.Last()
	default:
		isValid = iterator.First()
	}
	step := iterator.Next
	if r.reverse {
		step = iterator.Prev
	}
	isWhole, isStopped := r.from == nil, false
	// What the recorder knows already.
	lapped := progress{}
	for isValid && !isStopped {
		value, err := iterator.ValueAndErr()
		if err == nil {
			err = c.check(iterator.Key(), value)
		}
		if err != nil {
			_ = iterator.Close()
			return measure.Done{}, 0, fmt.Errorf("scan: %w", err)
		}
		if c.entries >= r.limit {
			break
		}
		if isWhole && c.entries-lapped.entries == lapEntries {
			t.recorder.Lap(c.since(&lapped))
			lapped = c.progress
			isStopped = t.stop.Load()
		}
		isValid = step()
	}
	if err := iterator.Close(); err != nil {
		return measure.Done{}, 0, fmt.Errorf("scan: %w", err)
	}
	if expected, ok := c.expected(); ok && !isStopped && c.entries < r.limit {
		return measure.Done{}, 0, wrong("a scan ended before record %d", expected)
	}
	if !isWhole {
		done := measure.Done{Kind: measure.Seek, Operations: 1, ReadBytes: c.bytes}
		return done, c.entries, nil
	}
	return *c.since(&lapped), c.entries, nil
}

// since is what a scan of the whole store has read since an earlier state. Each entry is an
// operation.
func (c *checker) since(earlier *progress) *measure.Done {
	return &measure.Done{Kind: measure.Scan, Operations: c.entries - earlier.entries,
		ReadBytes: c.bytes - earlier.bytes}
}

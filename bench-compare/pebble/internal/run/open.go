package run

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/measure"
	"siltstone/bench-compare/pebble/internal/store"
)

const (
	// laneLog is the lane of the records that are written into the log before an open.
	laneLog = 9
	// logCheckStep: one in this many records of the log is checked after the open.
	logCheckStep = 16
	// rotations are enough for a memtable of 256 KiB to grow to its full size.
	rotations = 15
)

// logBytes are the raw bytes that are written into the log before the store is opened.
func (f *fixture) logBytes() uint64 { return f.settings.Engine.MemtableBytes / 8 * 6 }

// logged are the records whose new values are in the log only.
type logged struct {
	records []uint64
	version uint64
	bytes   uint64
	keys    generate.Keys
	values  *generate.Values
}

// measureOpen measures an open of a store as a kill -9 would have left it, with a log that has to be
// replayed. The store is open and idle when its files are copied. Tables are linked, because a
// finished table never changes. It returns with the store open.
func (f *fixture) measureOpen(ctx context.Context, keys generate.Keys, values *generate.Values,
	outcome *Outcome,
) (err error) {
	inLog, err := f.fillLog(ctx, keys, values)
	if err != nil {
		return err
	}
	folder := f.folder + ".opened"
	if err := clearFolder(folder); err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(folder), os.Remove(marker(folder))) }()
	if err := copyStore(f.folder, folder); err != nil {
		return err
	}
	if err := f.close(); err != nil {
		return err
	}
	if err := f.openCopy(ctx, folder, inLog, outcome); err != nil {
		return err
	}
	if err := f.open(); err != nil {
		return err
	}
	_, err = f.store.WaitUntilIdle(ctx)
	return err
}

// fillLog writes records that stay in one memtable and its log, and returns them. A memtable of
// Pebble needs more room than the raw bytes, and begins with 256 KiB that double with each rotation.
// So the store is opened with a memtable that is four times as large, and rotated until it has its
// full size: otherwise the log would be cut short by a flush.
func (f *fixture) fillLog(ctx context.Context, keys generate.Keys, values *generate.Values) (*logged, error) {
	if err := f.close(); err != nil {
		return nil, err
	}
	engine := f.settings.Engine
	engine.MemtableBytes = min(4*engine.MemtableBytes, 4<<30-1)
	var err error
	if f.store, err = store.Open(f.folder, engine); err != nil {
		return nil, err
	}
	for range rotations {
		if err := f.store.DB.Flush(); err != nil {
			return nil, err
		}
	}
	if _, err := f.store.WaitUntilIdle(ctx); err != nil {
		return nil, err
	}
	before, err := tablesOf(f.folder)
	if err != nil {
		return nil, err
	}
	random := generate.NewRandom(f.settings.OperationsSeed(), 0).Lane(laneLog)
	count := max(f.logBytes()/uint64(max(keys.Bytes()+values.Bytes(), 1)), 1)
	versions := newVersions(f.generation(), 0)
	inLog := &logged{make([]uint64, count), versions.next(), 0, keys, values}
	var key, value []byte
	for i := range inLog.records {
		record := random.Below(f.settings.Records)
		inLog.records[i] = record
		key = keys.Present(record, key)
		value = values.Write(record, inLog.version, value)
		if err := f.store.DB.Set(key, value, pebble.NoSync); err != nil {
			return nil, err
		}
		f.population.Add(record)
		inLog.bytes += uint64(len(key) + len(value))
	}
	// Pebble writes its log in the background. This waits for it as well.
	if err := f.store.DB.LogData(nil, pebble.Sync); err != nil {
		return nil, err
	}
	if _, err := f.store.WaitUntilIdle(ctx); err != nil {
		return nil, err
	}
	return inLog, f.checkDisk(before, inLog.bytes)
}

// checkDisk refuses a store whose log does not have what was written, or that wrote tables meanwhile.
func (f *fixture) checkDisk(before map[string]bool, written uint64) error {
	after, err := tablesOf(f.folder)
	if err != nil {
		return err
	}
	for name := range after {
		if !before[name] {
			return fmt.Errorf("%s: Pebble wrote the table %s while its log was filled with %d bytes, so "+
				"an open would replay less; give a larger --memtable-bytes", f.folder, name, written)
		}
	}
	sizes, err := measure.SizesOf(f.folder)
	if err != nil {
		return err
	}
	if sizes.Log.Bytes < written {
		return fmt.Errorf("%s: %d bytes were written, and the files of the log have %d bytes, so an open "+
			"would replay less", f.folder, written, sizes.Log.Bytes)
	}
	return nil
}

func isTable(name string) bool {
	return filepath.Ext(name) == ".sst" || filepath.Ext(name) == ".blob"
}

// tablesOf returns the names of all tables of a store.
func tablesOf(folder string) (map[string]bool, error) {
	entries, err := os.ReadDir(folder)
	tables := map[string]bool{}
	for _, entry := range entries {
		if isTable(entry.Name()) {
			tables[entry.Name()] = true
		}
	}
	return tables, err
}

// openCopy opens the copy, reads a record, and waits until it is idle.
func (f *fixture) openCopy(ctx context.Context, folder string, inLog *logged, outcome *Outcome) error {
	meter := measure.NewMeter(1)
	sampler := measure.StartSampler(meter, nil)
	recorder := meter.Recorder(0, false)
	opened, err := store.Open(folder, f.settings.Engine)
	recorder.Lap(&measure.Done{Kind: measure.Open, Operations: 1})
	recorder.Finish()
	var firstRead, idle time.Duration
	if err == nil {
		if err = inLog.check(opened, inLog.records[:1]); err == nil {
			firstRead = time.Since(meter.Start())
			var since time.Time
			since, err = opened.WaitUntilIdle(ctx)
			idle = since.Sub(meter.Start())
		}
	}
	outcome.Measured = sampler.Finish()
	outcome.SettledAfter = max(idle-outcome.Measured.UntilLast, 0)
	outcome.Open = &OpenTimes{UntilFirstReadS: firstRead.Seconds(), LogBytes: inLog.bytes}
	if opened == nil {
		return err
	}
	if err == nil {
		var some []uint64
		for i := 0; i < len(inLog.records); i += logCheckStep {
			some = append(some, inLog.records[i])
		}
		err = inLog.check(opened, some)
	}
	return errors.Join(err, opened.Close())
}

// check checks that an open found what was in the log.
func (l *logged) check(opened *store.Store, records []uint64) error {
	for _, record := range records {
		value, closer, err := opened.DB.Get(l.keys.Present(record, nil))
		if errors.Is(err, pebble.ErrNotFound) {
			return describeMissing(record)
		}
		if err != nil {
			return err
		}
		mismatch := l.values.Verify(record, value)
		if _, version, ok := l.values.Identity(value); ok && version != l.version {
			mismatch = errors.Join(mismatch, describeMissing(record))
		}
		if err := errors.Join(mismatch, closer.Close()); err != nil {
			return err
		}
	}
	return nil
}

// copyStore copies a store. Tables are linked if the file system can do that.
func copyStore(from, to string) error {
	entries, err := os.ReadDir(from)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	for _, entry := range entries {
		source, target := filepath.Join(from, entry.Name()), filepath.Join(to, entry.Name())
		if entry.IsDir() {
			err = copyStore(source, target)
		} else if !isTable(source) || os.Link(source, target) != nil {
			err = copyFile(source, target)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func copyFile(source, target string) (err error) {
	in, err := os.Open(source)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(target)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}

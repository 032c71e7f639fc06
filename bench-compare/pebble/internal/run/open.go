package run

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

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
	// loggedVersion is the version of the values in the log.
	loggedVersion = 7
)

// logBytes are the raw bytes that are written into the log before the store is opened.
func (f *fixture) logBytes() uint64 { return f.settings.Engine.MemtableBytes / 8 * 6 }

// measureOpen measures an open of a store as a kill -9 would have left it, with a log that has to be
// replayed. The store is open and idle when its files are copied. Tables are linked, because a
// finished table never changes. It returns with the store open.
func (f *fixture) measureOpen(ctx context.Context, keys generate.Keys, values *generate.Values) (
	*measure.Measured, error,
) {
	written, err := f.fillLog(ctx, keys, values)
	if err != nil {
		return nil, err
	}
	folder := f.folder + ".opened"
	if err := os.RemoveAll(folder); err != nil {
		return nil, err
	}
	defer os.RemoveAll(folder)
	if err := copyStore(f.folder, folder); err != nil {
		return nil, err
	}
	if err := f.close(); err != nil {
		return nil, err
	}
	measured, err := f.openCopy(folder, keys, values, written)
	if err != nil {
		return nil, err
	}
	return measured, f.open()
}

// fillLog writes records that stay in one memtable and its log, and returns them. A memtable of
// Pebble needs more room than the raw bytes, and begins with 256 KiB that double with each rotation.
// So the store is opened with a memtable that is four times as large, and rotated until it has its
// full size: otherwise the log would be cut short by a flush.
func (f *fixture) fillLog(ctx context.Context, keys generate.Keys, values *generate.Values) ([]uint64, error) {
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
	random := generate.NewRandom(f.settings.Seed, 0).Lane(laneLog)
	count := max(f.logBytes()/uint64(max(keys.Bytes()+values.Bytes(), 1)), 1)
	written := make([]uint64, count)
	var key, value []byte
	for i := range written {
		written[i] = random.Below(f.settings.Records)
		key = keys.Present(written[i], key)
		value = values.Write(written[i], loggedVersion, value)
		if err := f.store.DB.Set(key, value, pebble.NoSync); err != nil {
			return nil, err
		}
		f.population.Add(written[i])
	}
	// Pebble writes its log in the background. This waits for it as well.
	if err := f.store.DB.LogData(nil, pebble.Sync); err != nil {
		return nil, err
	}
	_, err = f.store.WaitUntilIdle(ctx)
	return written, err
}

func (f *fixture) openCopy(folder string, keys generate.Keys, values *generate.Values, written []uint64) (
	*measure.Measured, error,
) {
	meter := measure.NewMeter(1)
	sampler := measure.StartSampler(meter, nil)
	recorder := meter.Recorder(0, false)
	opened, err := store.Open(folder, f.settings.Engine)
	recorder.Lap(&measure.Done{Kind: measure.Open, Operations: 1})
	recorder.Finish()
	measured := sampler.Finish()
	if err != nil {
		return nil, err
	}
	err = checkLog(opened, keys, values, written)
	return measured, errors.Join(err, opened.Close())
}

// checkLog checks that an open found what was in the log.
func checkLog(opened *store.Store, keys generate.Keys, values *generate.Values, written []uint64) error {
	for i := 0; i < len(written); i += logCheckStep {
		record := written[i]
		value, closer, err := opened.DB.Get(keys.Present(record, nil))
		if errors.Is(err, pebble.ErrNotFound) {
			return describeMissing(record)
		}
		if err != nil {
			return err
		}
		mismatch := values.Verify(record, value)
		if _, version, ok := values.Identity(value); ok && version != loggedVersion {
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
		} else if isTable := filepath.Ext(source) == ".sst" || filepath.Ext(source) == ".blob"; !isTable ||
			os.Link(source, target) != nil {
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

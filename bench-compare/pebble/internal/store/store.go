package store

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"sync"
	"time"

	"github.com/cockroachdb/pebble/v2"

	"siltstone/bench-compare/pebble/internal/settings"
)

const modulePath = "github.com/cockroachdb/pebble/v2"

const (
	// idlePoll is the pause between two looks at the metrics.
	idlePoll = 10 * time.Millisecond
	// idleWindow is how long nothing must run. A compaction that is due starts at once, so this is
	// many times what is needed.
	idleWindow = 200 * time.Millisecond
	// idleDeadline ends a run whose store never becomes idle.
	idleDeadline = 30 * time.Minute
	// deletionDeadline is how long obsolete files may take to go away.
	deletionDeadline = 10 * time.Second
)

// Version returns the version of the Pebble module in this program.
func Version() string {
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, module := range info.Deps {
			if module.Path == modulePath {
				return module.Version
			}
		}
	}
	return "unknown"
}

// Store is an open store.
type Store struct {
	// DB is what the workloads call.
	DB *pebble.DB
	// UseL6Filters says that reads of absent keys consult the filters of the last level.
	UseL6Filters bool
	described    map[string]string
	events       *events
}

// Open opens the store in the folder, and creates it if there is none.
func Open(folder string, engine settings.Engine) (*Store, error) {
	options, o, err := optionsOf(engine)
	if err != nil {
		return nil, err
	}
	events := &events{stalls: map[string]time.Duration{}}
	options.EventListener = events.listener()
	options.EnsureDefaults()
	described := describe(options, o)
	db, err := pebble.Open(folder, options)
	if err != nil {
		return nil, fmt.Errorf("open the store in %s: %w", folder, err)
	}
	return &Store{DB: db, UseL6Filters: o.useL6Filters, described: described, events: events}, nil
}

// Describe returns all settings by Pebble's own names.
func (s *Store) Describe() map[string]string { return s.described }

// Close closes the store. It waits for flushes and compactions that run, and leaves the log.
func (s *Store) Close() error {
	if err := s.DB.Close(); err != nil {
		return fmt.Errorf("close the store: %w", err)
	}
	return nil
}

// Compact compacts the whole store.
func (s *Store) Compact() error {
	end := make([]byte, 1025)
	for i := range end {
		end[i] = 0xff
	}
	if err := s.DB.Compact(context.Background(), []byte{}, end, true); err != nil {
		return fmt.Errorf("compact: %w", err)
	}
	return nil
}

// WaitUntilIdle waits until no flush and no compaction runs or is due, and returns when this began. It
// also ends with the context.
func (s *Store) WaitUntilIdle(ctx context.Context) (time.Time, error) {
	began := time.Now()
	quietSince := began
	for {
		if err := s.events.backgroundError(); err != nil {
			return quietSince, fmt.Errorf("a flush or compaction failed: %w", err)
		}
		now := time.Now()
		if !s.isQuiet() {
			quietSince = time.Now()
		} else if now.Sub(quietSince) >= idleWindow {
			return quietSince, nil
		}
		if ctx.Err() != nil {
			return quietSince, ctx.Err()
		}
		if now.Sub(began) > idleDeadline {
			return quietSince, fmt.Errorf("the store did not become idle within %v", idleDeadline)
		}
		time.Sleep(idlePoll)
	}
}

// isQuiet says whether nothing runs. A sealed memtable may be left: Pebble puts its flush off until all
// sealed ones have half the size of a memtable.
func (s *Store) isQuiet() bool {
	m := s.DB.Metrics()
	return m.Flush.NumInProgress == 0 && m.Compact.NumInProgress == 0 &&
		m.Table.PendingStatsCollectionCount == 0
}

// WaitForDeletions waits until obsolete files are deleted, so that they are not measured.
func (s *Store) WaitForDeletions() {
	for deadline := time.Now().Add(deletionDeadline); time.Now().Before(deadline); {
		m := s.DB.Metrics()
		if m.Table.ObsoleteCount == 0 && m.BlobFiles.ObsoleteCount == 0 {
			return
		}
		time.Sleep(idlePoll)
	}
}

// Figures are counters since the open. Bytes are those that Pebble counts itself.
type Figures struct {
	LogBytes, FlushBytes                 uint64
	CompactionReadBytes, CompactionBytes uint64
	Stalls                               map[string]time.Duration
	Others                               map[string]uint64
}

// Figures reads the counters.
func (s *Store) Figures() Figures {
	m := s.DB.Metrics()
	f := Figures{
		LogBytes: m.WAL.BytesWritten,
		Stalls:   s.events.stallTimes(),
		Others: map[string]uint64{
			"wal_bytes_in":            m.WAL.BytesIn,
			"flushes":                 uint64(m.Flush.Count),
			"compactions":             uint64(m.Compact.Count),
			"compactions_move":        uint64(m.Compact.MoveCount),
			"compactions_read":        uint64(m.Compact.ReadCount),
			"compactions_elision":     uint64(m.Compact.ElisionOnlyCount),
			"compactions_multi_level": uint64(m.Compact.MultiLevelCount),
			"compaction_duration_us":  uint64(m.Compact.Duration.Microseconds()),
			"block_cache_hits":        uint64(m.BlockCache.Hits),
			"block_cache_misses":      uint64(m.BlockCache.Misses),
			"filter_hits":             uint64(m.Filter.Hits),
			"filter_misses":           uint64(m.Filter.Misses),
			"write_stalls":            s.events.stallCount(),
		},
	}
	for i := range m.Levels {
		level := &m.Levels[i]
		f.FlushBytes += level.TableBytesFlushed + level.BlobBytesFlushed
		f.CompactionBytes += level.TableBytesCompacted + level.BlobBytesCompacted
		f.CompactionReadBytes += level.TableBytesRead + level.BlobBytesReadEstimate
	}
	return f
}

// Since returns the difference to earlier figures of the same open store.
func (f Figures) Since(earlier Figures) Figures {
	difference := Figures{
		LogBytes:            f.LogBytes - min(earlier.LogBytes, f.LogBytes),
		FlushBytes:          f.FlushBytes - earlier.FlushBytes,
		CompactionReadBytes: f.CompactionReadBytes - earlier.CompactionReadBytes,
		CompactionBytes:     f.CompactionBytes - earlier.CompactionBytes,
		Stalls:              map[string]time.Duration{},
		Others:              map[string]uint64{},
	}
	for reason, total := range f.Stalls {
		if stalled := total - earlier.Stalls[reason]; stalled > 0 {
			difference.Stalls[reason] = stalled
		}
	}
	for name, count := range f.Others {
		difference.Others[name] = count - min(earlier.Others[name], count)
	}
	return difference
}

// Level is one level of the tree.
type Level struct {
	Level  int    `json:"level"`
	Runs   uint64 `json:"runs"`
	Tables uint64 `json:"tables"`
	Bytes  uint64 `json:"bytes"`
}

// Levels returns the levels that have tables.
func (s *Store) Levels() []Level {
	levels := []Level{}
	m := s.DB.Metrics()
	for i := range m.Levels {
		if level := &m.Levels[i]; level.TablesCount > 0 {
			levels = append(levels, Level{
				Level:  i,
				Runs:   uint64(max(level.Sublevels, 1)),
				Tables: uint64(level.TablesCount),
				Bytes:  uint64(level.AggregateSize()),
			})
		}
	}
	return levels
}

// LogBytes returns the bytes of the log that an open would have to replay.
func (s *Store) LogBytes() uint64 { return s.DB.Metrics().WAL.Size }

// events collects what Pebble says of its own accord.
type events struct {
	mutex   sync.Mutex
	reason  string
	since   time.Time
	stalls  map[string]time.Duration
	count   uint64
	failure error
}

func (e *events) listener() *pebble.EventListener {
	return &pebble.EventListener{
		WriteStallBegin: func(info pebble.WriteStallBeginInfo) {
			e.mutex.Lock()
			defer e.mutex.Unlock()
			e.reason, e.since = info.Reason, time.Now()
			e.count++
		},
		WriteStallEnd: func() {
			e.mutex.Lock()
			defer e.mutex.Unlock()
			e.stalls[e.reason] += time.Since(e.since)
			e.reason = ""
		},
		BackgroundError: func(err error) {
			e.mutex.Lock()
			defer e.mutex.Unlock()
			if e.failure == nil {
				e.failure = err
			}
		},
	}
}

// stallTimes returns the time that writers waited so far, by reason. Writers wait one at a time.
func (e *events) stallTimes() map[string]time.Duration {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	times := maps.Clone(e.stalls)
	if e.reason != "" {
		times[e.reason] += time.Since(e.since)
	}
	return times
}

func (e *events) stallCount() uint64 {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.count
}

func (e *events) backgroundError() error {
	e.mutex.Lock()
	defer e.mutex.Unlock()
	return e.failure
}

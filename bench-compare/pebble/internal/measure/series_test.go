package measure

import (
	"testing"
	"time"

	"siltstone/bench-compare/pebble/internal/settings"
	"siltstone/bench-compare/pebble/internal/store"
)

// filled returns a store with one table.
func filled(t *testing.T) *store.Store {
	t.Helper()
	opened, err := store.Open(t.TempDir(), settings.Engine{MemtableBytes: 1 << 20, CacheBytes: 1 << 20,
		BloomBits: 10, Compression: "none", BackgroundThreads: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := opened.DB.Set([]byte("key"), []byte("value"), nil); err != nil {
		t.Fatal(err)
	}
	if err := opened.DB.Flush(); err != nil {
		t.Fatal(err)
	}
	return opened
}

func TestTheFirstSecondHasTheShapeAtTheStart(t *testing.T) {
	meter := NewMeter(0)
	c := newCollector(meter, filled(t))
	// The last sample belongs to a later second.
	meter.start = time.Now().Add(-3 * time.Second)
	seconds := c.finish().Seconds
	if len(seconds) < 4 {
		t.Fatalf("%d seconds", len(seconds))
	}
	if len(seconds[0].Levels) == 0 || seconds[1].Levels != nil || len(seconds[3].Levels) == 0 {
		t.Errorf("%v, %v and %v", seconds[0].Levels, seconds[1].Levels, seconds[3].Levels)
	}
	meter = NewMeter(0)
	meter.start = time.Now()
	if levels := newCollector(meter, nil).finish().Seconds[0].Levels; levels != nil {
		t.Errorf("%v without a store", levels)
	}
}

func TestTheShapeIsAskedForEverySecondWhileAnAnswerIsQuick(t *testing.T) {
	for _, c := range []struct {
		took    time.Duration
		at, now int64
		areDue  bool
	}{
		{quick / 2, 0, 1, true},
		{quick / 2, 7, 8, true},
		{quick, 0, 1, false},
		{quick, 7, 16, false},
		{quick, 7, 17, true},
		{quick, 7, 21, true},
	} {
		asks := collector{levelsTook: c.took, levelsAt: c.at}
		if got := asks.levelsAreDue(c.now); got != c.areDue {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

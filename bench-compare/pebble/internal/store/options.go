// Package store opens Pebble with the settings of a run, and reads its counters.
//
// The reasons for each setting are in README.md.
//
// Threading: a Store is shared by all goroutines.
package store

import (
	"fmt"
	"maps"
	"os"
	"runtime"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"

	"github.com/cockroachdb/pebble/v2"
	"github.com/cockroachdb/pebble/v2/bloom"
	"github.com/cockroachdb/pebble/v2/sstable/block"

	"siltstone/bench-compare/pebble/internal/settings"
)

// own are the settings that only Pebble has.
type own struct {
	blockSize, indexBlockSize     int
	l0CompactionThreshold         int
	l0StopWritesThreshold         int
	lBaseMaxBytes, targetFileSize int64
	flushSplitBytes               int64
	memTableStopWritesThreshold   int
	maxOpenFiles                  int
	bytesPerSync, walBytesPerSync int
	compactionConcurrencyLower    int
	valueSeparationMinimumSize    int
	lastLevelFilter, useL6Filters bool
	readSamplingMultiplier        int64
	compactionDebtConcurrency     uint64
}

func defaultOwn() own {
	return own{
		blockSize:                   4 << 10,
		indexBlockSize:              256 << 10,
		l0CompactionThreshold:       2,
		l0StopWritesThreshold:       20,
		lBaseMaxBytes:               64 << 20,
		targetFileSize:              2 << 20,
		flushSplitBytes:             2 << 20,
		memTableStopWritesThreshold: 4,
		maxOpenFiles:                10_000,
		bytesPerSync:                512 << 10,
		compactionConcurrencyLower:  1,
		lastLevelFilter:             true,
		useL6Filters:                true,
		readSamplingMultiplier:      1 << 4,
		compactionDebtConcurrency:   1 << 30,
	}
}

// setters read the text of a setting, by its name in pebble.Options or pebble.IterOptions.
func (o *own) setters() map[string]func(text string) error {
	return map[string]func(string) error{
		"BlockSize":                   setBytes(&o.blockSize),
		"IndexBlockSize":              setBytes(&o.indexBlockSize),
		"L0CompactionThreshold":       setBytes(&o.l0CompactionThreshold),
		"L0StopWritesThreshold":       setBytes(&o.l0StopWritesThreshold),
		"LBaseMaxBytes":               setBytes(&o.lBaseMaxBytes),
		"TargetFileSizes":             setBytes(&o.targetFileSize),
		"FlushSplitBytes":             setBytes(&o.flushSplitBytes),
		"MemTableStopWritesThreshold": setBytes(&o.memTableStopWritesThreshold),
		"MaxOpenFiles":                setBytes(&o.maxOpenFiles),
		"BytesPerSync":                setBytes(&o.bytesPerSync),
		"WALBytesPerSync":             setBytes(&o.walBytesPerSync),
		"CompactionConcurrencyLower":  setBytes(&o.compactionConcurrencyLower),
		"ValueSeparationMinimumSize":  setBytes(&o.valueSeparationMinimumSize),
		"LastLevelFilter":             setBool(&o.lastLevelFilter),
		"UseL6Filters":                setBool(&o.useL6Filters),
		"ReadSamplingMultiplier": func(text string) (err error) {
			o.readSamplingMultiplier, err = strconv.ParseInt(text, 10, 64)
			return err
		},
		"CompactionDebtConcurrency": setBytes(&o.compactionDebtConcurrency),
	}
}

func setBytes[T int | int64 | uint64](to *T) func(string) error {
	return func(text string) error {
		parsed, err := settings.Bytes(text)
		*to = T(parsed)
		return err
	}
}

func setBool(to *bool) func(string) error {
	return func(text string) (err error) {
		*to, err = strconv.ParseBool(text)
		return err
	}
}

func ownOf(texts map[string]string) (own, error) {
	o := defaultOwn()
	setters := o.setters()
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		set, ok := setters[name]
		if !ok {
			names := strings.Join(slices.Sorted(maps.Keys(setters)), ", ")
			return o, fmt.Errorf("--own: `%s` is not a setting that can be given; these can: %s",
				name, names)
		}
		if err := set(texts[name]); err != nil {
			return o, fmt.Errorf("--own %s: `%s`: %w", name, texts[name], err)
		}
	}
	if o.blockSize < 1 || o.memTableStopWritesThreshold < 2 || o.l0CompactionThreshold < 1 ||
		o.l0StopWritesThreshold < o.l0CompactionThreshold {
		return o, fmt.Errorf("--own: BlockSize and L0CompactionThreshold must be at least 1, " +
			"MemTableStopWritesThreshold at least 2, and L0StopWritesThreshold at least " +
			"L0CompactionThreshold")
	}
	return o, nil
}

// Check refuses settings that Pebble does not have.
func Check(engine settings.Engine) error {
	if _, err := ownOf(engine.Own); err != nil {
		return err
	}
	_, err := compressionOf(engine.Compression)
	return err
}

// zstd1 is zstd at level 1, as for the other engines. Pebble's profile ZSTD has level 3.
var zstd1 = func() *block.CompressionProfile {
	profile := *block.ZstdCompression
	profile.Name = "ZSTD level 1"
	level1 := block.BalancedCompression.DataBlocks
	profile.DataBlocks, profile.ValueBlocks, profile.OtherBlocks = level1, level1, level1
	return &profile
}()

func compressionOf(name string) (*block.CompressionProfile, error) {
	switch name {
	case "none":
		return block.NoCompression, nil
	case "snappy":
		return block.SnappyCompression, nil
	case "minlz":
		return block.MinLZCompression, nil
	case "zstd":
		return zstd1, nil
	case "lz4":
		return nil, fmt.Errorf("--compression: Pebble has no lz4; it has none, snappy, minlz and zstd")
	}
	return nil, fmt.Errorf("--compression: `%s` is unknown; Pebble has none, snappy, minlz and zstd",
		name)
}

func optionsOf(engine settings.Engine) (*pebble.Options, own, error) {
	o, err := ownOf(engine.Own)
	if err != nil {
		return nil, o, err
	}
	compression, err := compressionOf(engine.Compression)
	if err != nil {
		return nil, o, err
	}
	lower, upper := min(o.compactionConcurrencyLower, engine.BackgroundThreads), engine.BackgroundThreads
	options := &pebble.Options{
		BytesPerSync:                o.bytesPerSync,
		CacheSize:                   int64(engine.CacheBytes),
		CompactionConcurrencyRange:  func() (int, int) { return lower, upper },
		FlushSplitBytes:             o.flushSplitBytes,
		FormatMajorVersion:          pebble.FormatNewest,
		L0CompactionThreshold:       o.l0CompactionThreshold,
		L0StopWritesThreshold:       o.l0StopWritesThreshold,
		LBaseMaxBytes:               o.lBaseMaxBytes,
		Logger:                      quietLogger{},
		MaxOpenFiles:                o.maxOpenFiles,
		MemTableSize:                engine.MemtableBytes,
		MemTableStopWritesThreshold: o.memTableStopWritesThreshold,
		WALBytesPerSync:             o.walBytesPerSync,
	}
	options.TargetFileSizes[0] = o.targetFileSize
	options.Experimental.ReadSamplingMultiplier = o.readSamplingMultiplier
	options.Experimental.CompactionDebtConcurrency = o.compactionDebtConcurrency
	if o.valueSeparationMinimumSize > 0 {
		options.Experimental.ValueSeparationPolicy = func() pebble.ValueSeparationPolicy {
			return pebble.ValueSeparationPolicy{
				Enabled:               true,
				MinimumSize:           o.valueSeparationMinimumSize,
				MaxBlobReferenceDepth: 10,
				TargetGarbageRatio:    1,
			}
		}
	}
	for i := range options.Levels {
		level := &options.Levels[i]
		level.BlockSize = o.blockSize
		level.IndexBlockSize = o.indexBlockSize
		level.Compression = func() *block.CompressionProfile { return compression }
		level.FilterPolicy = pebble.NoFilterPolicy
		isLast := i == len(options.Levels)-1
		if engine.BloomBits > 0 && (!isLast || o.lastLevelFilter) {
			level.FilterPolicy = bloom.FilterPolicy(engine.BloomBits)
		}
	}
	return options, o, nil
}

// quietLogger prints errors only, to the standard error output.
type quietLogger struct{}

func (quietLogger) Infof(string, ...any) {}

func (quietLogger) Errorf(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "pebble: "+format+"\n", arguments...)
}

func (quietLogger) Fatalf(format string, arguments ...any) {
	fmt.Fprintf(os.Stderr, "pebble: "+format+"\n", arguments...)
	os.Exit(1)
}

// describe lists every setting by its name in Pebble's OPTIONS file, and those of the Go runtime. A
// setting that all levels share stands once, as `levels.NAME`.
func describe(options *pebble.Options, o own) map[string]string {
	all := map[string]string{}
	section := ""
	byLevel := map[string][]string{}
	for line := range strings.Lines(options.String()) {
		line = strings.TrimSpace(line)
		if strings.HasPrefix(line, "[") {
			section = strings.Trim(line, "[]")
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		switch {
		case !ok || section == "Version":
		case strings.HasPrefix(section, "Level"):
			byLevel[name] = append(byLevel[name], value)
		case section == "Options":
			all[name] = value
		default:
			all[section+"."+name] = value
		}
	}
	for name, values := range byLevel {
		if slices.Max(values) == slices.Min(values) {
			all["levels."+name] = values[0]
			continue
		}
		for i, value := range values {
			all[fmt.Sprintf("level%d.%s", i, name)] = value
		}
	}
	all["use_l6_filters_for_missing"] = strconv.FormatBool(o.useL6Filters)
	percent := debug.SetGCPercent(100)
	debug.SetGCPercent(percent)
	all["go.GOGC"] = strconv.Itoa(percent)
	all["go.GOMEMLIMIT"] = "none"
	if limit := debug.SetMemoryLimit(-1); limit != 1<<63-1 {
		all["go.GOMEMLIMIT"] = strconv.FormatInt(limit, 10)
	}
	all["go.GOMAXPROCS"] = strconv.Itoa(runtime.GOMAXPROCS(0))
	all["go.version"] = runtime.Version()
	all["go.cgo"] = strconv.FormatBool(hasCgo)
	return all
}

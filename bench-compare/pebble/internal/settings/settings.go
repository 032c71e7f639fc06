// Package settings says what one run does. The names are those of the settings of the Rust harness
// (crates/bench/src/settings), with hyphens in flags.
//
// Invariant: Parse returns only settings that a run can carry out.
//
// Threading: plain data.
package settings

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"siltstone/bench-compare/pebble/internal/generate"
)

// Engine says how Pebble is opened.
type Engine struct {
	MemtableBytes     uint64            `json:"memtable_bytes"`
	CacheBytes        uint64            `json:"cache_bytes"`
	BloomBits         int               `json:"bloom_bits"`
	Compression       string            `json:"compression"`
	BackgroundThreads int               `json:"background_threads"`
	Own               map[string]string `json:"own"`
}

// Amount is how much a workload does: one of the three.
type Amount struct {
	Operations  uint64
	Seconds     float64
	EveryRecord bool
}

// Distribution is how records are drawn.
type Distribution string

// The distributions.
const (
	Uniform     Distribution = "uniform"
	Permutation Distribution = "permutation"
	Sequential  Distribution = "sequential"
	Zipfian     Distribution = "zipfian:0.99"
	Latest      Distribution = "latest"
)

var distributions = []Distribution{Uniform, Permutation, Sequential, Zipfian, Latest}

// Cache says whether the data is in the page cache when a workload begins.
type Cache string

// The states of the page cache.
const (
	AsIs Cache = "as_is"
	Warm Cache = "warm"
	Cold Cache = "cold"
)

// Settings of one run.
type Settings struct {
	Workload         Workload
	Folder           string
	Engine           Engine
	Records          uint64
	KeyBytes         int
	ValueBytes       int
	CompressionRatio float64
	Distribution     Distribution
	Amount           Amount
	Threads          int
	Batch            int
	Nexts            uint64
	ReadRatio        float64
	Sync             bool
	// WriteRate is the rate of the writer beside reads, in operations a second; 0 lets it write as
	// fast as it can.
	WriteRate float64
	// ArrivalRate is the rate of an open loop with even gaps, in operations a second of all threads;
	// 0 is a closed loop.
	ArrivalRate float64
	Cache       Cache
	// Seed decides keys and values, and OperationSeed what a workload draws.
	Seed          uint64
	OperationSeed uint64
}

// ErrHelp is returned by Parse if the help was asked for and printed.
var ErrHelp = flag.ErrHelp

const (
	maxRecords = 1 << 36
	maxThreads = 1024
)

// Parse reads the arguments of the command line and returns the runs in their order.
func Parse(arguments []string, output io.Writer) ([]Settings, error) {
	var s Settings
	var workloads string
	var warm, cold, everyRecord bool
	s.Engine.Own = map[string]string{}
	flags := flag.NewFlagSet("pebble-bench", flag.ContinueOnError)
	flags.SetOutput(io.Discard)
	flags.StringVar(&workloads, "workload", "", "the `names` of workloads, separated by commas")
	flags.StringVar(&s.Folder, "folder", "", "the `folder` of the store, which lies in FOLDER/pebble")
	number(flags, &s.Records, "records", 1_000_000, "the `number` of records of the store")
	flags.IntVar(&s.KeyBytes, "key-bytes", 16, "the `bytes` of a key")
	size(flags, &s.ValueBytes, "value-bytes", 128, "the `bytes` of a value")
	flags.StringVar(&s.Engine.Compression, "compression", "none", "none, snappy, minlz or zstd")
	flags.Float64Var(&s.CompressionRatio, "compression-ratio", 1,
		"the `part` of its size to which a value compresses")
	flags.IntVar(&s.Threads, "threads", 1, "the `number` of threads")
	flags.Func("seconds", "end after this `time`, for example 10 or 10s", func(text string) error {
		seconds, err := strconv.ParseFloat(strings.TrimSuffix(text, "s"), 64)
		if err != nil || !(seconds > 0 && seconds <= 1e6) {
			return errors.New("it must be a number of seconds above 0, for example 10")
		}
		s.Amount.Seconds = seconds
		return nil
	})
	number(flags, &s.Amount.Operations, "operations", 0,
		"end after this `number` of operations of all threads")
	flags.BoolVar(&everyRecord, "every-record", false, "do it once with every record")
	flags.StringVar((*string)(&s.Distribution), "distribution", "",
		"how records are drawn: uniform, permutation, zipfian:0.99 or latest")
	flags.IntVar(&s.Batch, "batch", 1000, "the `entries` of a batch, or the keys of multireadrandom")
	number(flags, &s.Nexts, "nexts", 10, "the `entries` that are read after a seek")
	flags.Float64Var(&s.ReadRatio, "read-ratio", 0.9, "the `part` of reads in readrandomwriterandom")
	flags.BoolVar(&s.Sync, "sync", false, "each write waits until it is durable")
	flags.Float64Var(&s.WriteRate, "write-rate", 0, "the `operations` a second of the writer beside "+
		"reads; 0 lets it write as fast as it can")
	flags.Func("arrival", "closed, or constant:`RATE` for an open loop with that many operations a "+
		"second at even times (default closed)", func(text string) error {
		rate, err := arrivalRate(text)
		s.ArrivalRate = rate
		return err
	})
	number(flags, &s.Seed, "seed", 1, "the `seed` of keys and values")
	number(flags, &s.OperationSeed, "operation-seed", 1, "the `seed` of what a workload draws")
	size(flags, &s.Engine.MemtableBytes, "memtable-bytes", 64<<20, "`bytes` of the memtable")
	size(flags, &s.Engine.CacheBytes, "cache-bytes", 64<<20, "`bytes` of the block cache")
	flags.IntVar(&s.Engine.BloomBits, "bloom-bits", 10,
		"`bits` of the Bloom filter for each key; 0 means no filter")
	flags.IntVar(&s.Engine.BackgroundThreads, "background-threads", 2,
		"the highest `number` of concurrent compactions")
	flags.BoolVar(&cold, "cold", false, "drop the files from the page cache before")
	flags.BoolVar(&warm, "warm", false, "read all files before")
	flags.Func("own", "a setting of Pebble as `NAME=VALUE`, for example L0CompactionThreshold=4; "+
		"may be repeated", func(text string) error {
		name, value, ok := strings.Cut(text, "=")
		if !ok {
			return errors.New("it must be NAME=VALUE")
		}
		s.Engine.Own[name] = value
		return nil
	})
	if err := flags.Parse(arguments); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			help(flags, output)
			return nil, ErrHelp
		}
		return nil, fmt.Errorf("%w (--help lists the flags)", err)
	}
	if flags.NArg() > 0 {
		return nil, fmt.Errorf("`%s` is not a flag; --help lists the flags", flags.Arg(0))
	}
	if workloads == "" {
		return nil, fmt.Errorf("--workload is missing; it takes %s", workloadNames())
	}
	names, err := parseWorkloads(workloads)
	if err != nil {
		return nil, err
	}
	s.Cache, err = cacheOf(warm, cold)
	if err != nil {
		return nil, err
	}
	s.Amount.EveryRecord = everyRecord
	var all []Settings
	for _, workload := range names {
		run := s
		run.Workload = workload
		if err := run.resolve(); err != nil {
			return nil, err
		}
		all = append(all, run)
	}
	return all, nil
}

// arrivalRate reads the value of --arrival; 0 is a closed loop.
func arrivalRate(text string) (float64, error) {
	if text == "closed" {
		return 0, nil
	}
	given, ok := strings.CutPrefix(text, "constant:")
	rate, err := strconv.ParseFloat(given, 64)
	if !ok || err != nil || !(rate >= generate.LeastRate && rate <= generate.MostRate) {
		return 0, errors.New("it must be closed, or constant:RATE with a rate from 1 to 10^9")
	}
	return rate, nil
}

func cacheOf(warm, cold bool) (Cache, error) {
	switch {
	case warm && cold:
		return "", errors.New("--warm and --cold exclude each other")
	case warm:
		return Warm, nil
	case cold:
		return Cold, nil
	}
	return AsIs, nil
}

// resolve fills in what the workload decides, and refuses what cannot be carried out.
func (s *Settings) resolve() error {
	for _, check := range []func() error{s.checkFlags, s.resolveAmount, s.resolveDistribution} {
		if err := check(); err != nil {
			return err
		}
	}
	if s.Workload.HasSingleThread() && s.Threads != 1 {
		return fmt.Errorf("--threads: %s has one thread, not %d", s.Workload, s.Threads)
	}
	if s.ArrivalRate > 0 && !s.Workload.HasSingleOperations() {
		return fmt.Errorf("--arrival: %s does one long thing, for which there is no rate", s.Workload)
	}
	if s.Workload == FillSync {
		s.Sync = true
	}
	return nil
}

func (s *Settings) checkFlags() error {
	for _, check := range []struct {
		ok       bool
		flag     string
		found    any
		expected string
	}{
		{s.Folder != "", "folder", "missing", "the folder in which the store lies"},
		{s.Records >= 1 && s.Records <= maxRecords, "records", s.Records, "from 1 to 2^36"},
		{s.Threads >= 1 && s.Threads <= maxThreads, "threads", s.Threads, "from 1 to 1024"},
		{s.Batch >= 1 && s.Batch <= 1_000_000, "batch", s.Batch, "from 1 to 1000000"},
		{s.Nexts >= 1, "nexts", s.Nexts, "at least 1"},
		{s.ReadRatio >= 0 && s.ReadRatio <= 1, "read-ratio", s.ReadRatio, "from 0 to 1"},
		{s.CompressionRatio > 0 && s.CompressionRatio <= 1, "compression-ratio", s.CompressionRatio,
			"above 0 and at most 1"},
		{s.WriteRate >= 0 && s.WriteRate <= 1e9, "write-rate", s.WriteRate, "from 0 to 10^9"},
		{s.ValueBytes <= 1<<30, "value-bytes", s.ValueBytes, "at most 2^30"},
		{s.KeyBytes >= 8 && s.KeyBytes <= 1024, "key-bytes", s.KeyBytes, "from 8 to 1024"},
		{s.Engine.MemtableBytes >= 256<<10 && s.Engine.MemtableBytes < 4<<30, "memtable-bytes",
			s.Engine.MemtableBytes, "from 256KiB to less than 4GiB, which is Pebble's limit"},
		{s.Engine.CacheBytes >= 1, "cache-bytes", s.Engine.CacheBytes,
			"at least 1, because 0 means Pebble's default of 8 MiB"},
		{s.Engine.BloomBits >= 0 && s.Engine.BloomBits <= 100, "bloom-bits", s.Engine.BloomBits,
			"from 0 to 100"},
		{s.Engine.BackgroundThreads >= 1 && s.Engine.BackgroundThreads <= 1024, "background-threads",
			s.Engine.BackgroundThreads, "from 1 to 1024"},
	} {
		if !check.ok {
			return fmt.Errorf("--%s is %v; it must be %s", check.flag, check.found, check.expected)
		}
	}
	return nil
}

func (s *Settings) resolveAmount() error {
	given := 0
	for _, is := range []bool{s.Amount.Operations > 0, s.Amount.Seconds > 0, s.Amount.EveryRecord} {
		if is {
			given++
		}
	}
	facts := allFacts[s.Workload]
	switch {
	case given > 1:
		return errors.New("--operations, --seconds and --every-record exclude each other")
	case given == 0:
		s.Amount = facts.amount(s.Records)
	case s.Amount.EveryRecord && !facts.everyRecord:
		return fmt.Errorf("--every-record: %s does not go through the records", s.Workload)
	case s.Amount.Seconds > 0 && s.Workload.HasSingleThread():
		return fmt.Errorf("--seconds: %s takes as long as it takes", s.Workload)
	case s.Amount.Seconds > 0 && (s.Workload == FillSeq || s.Workload == YcsbLoad):
		return fmt.Errorf("--seconds: %s ends when all records are there", s.Workload)
	}
	return nil
}

func (s *Settings) resolveDistribution() error {
	switch {
	case s.Distribution != "" && !s.Workload.DrawsRecords():
		return fmt.Errorf("--distribution: %s draws no records", s.Workload)
	case s.Distribution == "" && s.Workload.DrawsRecords() && s.Amount.EveryRecord:
		s.Distribution = Permutation
	case s.Distribution == "":
		s.Distribution = s.Workload.distribution()
	case !slices.Contains(distributions, s.Distribution):
		return fmt.Errorf("--distribution is `%s`; this program has %v", s.Distribution, distributions)
	}
	return nil
}

// OperationsSeed is the seed of the random numbers of all threads.
func (s *Settings) OperationsSeed() uint64 {
	return generate.SeedOfOperations(s.Seed, s.OperationSeed, string(s.Workload))
}

// notShaping are words in the names of settings that only say how files are read or what work is
// given to run. They are those of crates/bench/src/settings/own.rs.
var notShaping = []string{"cache", "direct", "map", "open_files", "OpenFiles", "pin_", "read", "tasks",
	"threads", "Cache", "L6Filters"}

// Shape returns the settings that decide what the files look like, by their names.
func (e Engine) Shape() map[string]string {
	shape := map[string]string{
		"engine.memtable_bytes": strconv.FormatUint(e.MemtableBytes, 10),
		"engine.bloom_bits":     strconv.Itoa(e.BloomBits),
		"engine.compression":    e.Compression,
	}
	for name, value := range e.Own {
		isShaping := !slices.ContainsFunc(notShaping, func(word string) bool {
			return strings.Contains(name, word)
		})
		if isShaping {
			shape["engine.own."+name] = value
		}
	}
	return shape
}

// TotalOperations is the number of operations of all measured threads; false if time decides.
func (s *Settings) TotalOperations() (uint64, bool) {
	if s.Amount.EveryRecord {
		return s.Records, true
	}
	return s.Amount.Operations, s.Amount.Seconds == 0
}

// number adds a flag for a count, for example 1000000 or 1_000_000.
func number(flags *flag.FlagSet, to *uint64, name string, value uint64, usage string) {
	*to = value
	flags.Func(name, fmt.Sprintf("%s (default %d)", usage, value), func(text string) error {
		parsed, err := strconv.ParseUint(strings.ReplaceAll(text, "_", ""), 10, 64)
		if err != nil {
			return errors.New("it must be a whole number")
		}
		*to = parsed
		return nil
	})
}

// size adds a flag for bytes, for example 67108864 or 64MiB.
func size[T int | uint64](flags *flag.FlagSet, to *T, name string, value T, usage string) {
	*to = value
	flags.Func(name, fmt.Sprintf("%s (default %d)", usage, value), func(text string) error {
		parsed, err := Bytes(text)
		*to = T(parsed)
		return err
	})
}

// Bytes reads a size: a whole number with or without KiB, MiB or GiB.
func Bytes(text string) (uint64, error) {
	shift := 0
	for suffix, bits := range map[string]int{"KiB": 10, "MiB": 20, "GiB": 30} {
		if rest, ok := strings.CutSuffix(text, suffix); ok {
			text, shift = rest, bits
		}
	}
	parsed, err := strconv.ParseUint(strings.ReplaceAll(strings.TrimSpace(text), "_", ""), 10, 64)
	if err != nil || parsed > 1<<40>>shift {
		return 0, errors.New("it must be a size, for example 65536, 64KiB or 1GiB, up to 1 TiB")
	}
	return parsed << shift, nil
}

func help(flags *flag.FlagSet, output io.Writer) {
	fmt.Fprint(output, `Runs workloads of the comparison on Pebble and prints one JSON object for each.

  pebble-bench --folder /data/bench --workload fillrandom,readrandom --records 1000000
  pebble-bench --folder /data/bench --workload readrandom --seconds 30 --cold

Workloads:
`)
	for _, workload := range Workloads {
		fmt.Fprintf(output, "  %-23s %s\n", workload, workload.About())
	}
	fmt.Fprint(output, "\nFlags:\n")
	flags.SetOutput(output)
	flags.PrintDefaults()
}

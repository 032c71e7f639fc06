// Package record makes the JSON of a run, with the keys of the record of the Rust harness
// (docs/bench-record.md, crates/bench/src/record).
//
// Invariant: a figure that is not known is null, and never 0.
//
// Threading: plain data.
package record

import (
	"encoding/json"
	"fmt"
	"maps"
	"os"
	"strconv"
	"strings"
	"time"

	"siltstone/bench-compare/pebble/internal/measure"
	"siltstone/bench-compare/pebble/internal/run"
	"siltstone/bench-compare/pebble/internal/settings"
	"siltstone/bench-compare/pebble/internal/store"
)

const schemaVersion = 1

// Abilities says what Pebble can do.
type Abilities struct {
	Unsynced string `json:"unsynced"`
	Sync     bool   `json:"sync"`
	Reverse  bool   `json:"reverse"`
	Ingest   bool   `json:"ingest"`
	MultiGet bool   `json:"multi_get"`
	Compact  bool   `json:"compact"`
	Threads  bool   `json:"threads"`
}

// abilities: this program has no workload that ingests, and Pebble has no call that reads many keys.
var abilities = Abilities{Unsynced: "memory", Sync: true, Reverse: true, Compact: true, Threads: true}

// Record is what one run found.
type Record struct {
	SchemaVersion      int      `json:"schema_version"`
	Workload           string   `json:"workload"`
	Engine             string   `json:"engine"`
	OpsPerS            *float64 `json:"ops_per_s"`
	P50Us              *float64 `json:"p50_us"`
	P99Us              *float64 `json:"p99_us"`
	P999Us             *float64 `json:"p999_us"`
	MaxUs              *float64 `json:"max_us"`
	WriteAmplification *float64 `json:"write_amplification"`
	SpaceAmplification *float64 `json:"space_amplification"`
	CPUS               *float64 `json:"cpu_s"`
	RSSBytes           *uint64  `json:"rss_bytes"`
	StallS             *float64 `json:"stall_s"`

	EngineVersion        string                      `json:"engine_version"`
	Abilities            Abilities                   `json:"abilities"`
	Promise              string                      `json:"promise"`
	Operations           uint64                      `json:"operations"`
	BesideOperations     uint64                      `json:"beside_operations"`
	BesideOpsPerS        *float64                    `json:"beside_ops_per_s"`
	UntilLastS           float64                     `json:"until_last_s"`
	UntilIdleS           float64                     `json:"until_idle_s"`
	OpsPerSUntilIdle     *float64                    `json:"ops_per_s_until_idle"`
	BytesPerS            *float64                    `json:"bytes_per_s"`
	BytesPerSUntilIdle   *float64                    `json:"bytes_per_s_until_idle"`
	MeanUs               *float64                    `json:"mean_us"`
	P90Us                *float64                    `json:"p90_us"`
	P9999Us              *float64                    `json:"p9999_us"`
	Errors               uint64                      `json:"errors"`
	VerificationFailures uint64                      `json:"verification_failures"`
	Latency              map[string]*measure.Summary `json:"latency"`
	ServiceTime          map[string]*measure.Summary `json:"service_time"`
	OpenLoop             *OpenLoop                   `json:"open_loop"`
	Open                 *run.OpenTimes              `json:"open"`
	Warnings             []string                    `json:"warnings"`
	StallSByCause        map[string]float64          `json:"stall_s_by_cause"`
	SlowS                *float64                    `json:"slow_s"`
	SilentSeconds        uint64                      `json:"silent_seconds"`
	Amplification        Amplification               `json:"amplification"`
	CPU                  CPU                         `json:"cpu"`
	Memory               Memory                      `json:"memory"`
	Bytes                Bytes                       `json:"bytes"`
	Disk                 Disk                        `json:"disk"`
	System               System                      `json:"system"`
	Levels               []store.Level               `json:"levels"`
	EngineCounters       map[string]uint64           `json:"engine_counters"`
	Series               []*measure.Second           `json:"series"`
	Settings             map[string]any              `json:"settings"`
	EngineSettings       map[string]string           `json:"engine_settings"`
	Machine              measure.Machine             `json:"machine"`
	Build                Build                       `json:"build"`
	Date                 string                      `json:"date"`
	CommandLine          []string                    `json:"command_line"`
	StandIns             []string                    `json:"stand_ins"`
}

// OpenLoop has facts of an open loop.
type OpenLoop struct {
	IntendedOpsPerS    *float64 `json:"intended_ops_per_s"`
	AchievedOpsPerS    *float64 `json:"achieved_ops_per_s"`
	DueOperations      uint64   `json:"due_operations"`
	BacklogOperations  uint64   `json:"backlog_operations"`
	CensoredOperations uint64   `json:"censored_operations"`
}

// Amplification is what the engine wrote, kept and read for each byte of the user.
type Amplification struct {
	WriteTables     *float64 `json:"write_tables"`
	WriteWithLog    *float64 `json:"write_with_log"`
	WriteCalls      *float64 `json:"write_calls"`
	WriteDevice     *float64 `json:"write_device"`
	ReadDevice      *float64 `json:"read_device"`
	Space           *float64 `json:"space"`
	SpaceWithoutLog *float64 `json:"space_without_log"`
}

// CPU is processor time until the engine was idle, in seconds. Goroutines move between threads, so
// the parts within the process are not known.
type CPU struct {
	ProcessS         *float64 `json:"process_s"`
	UserS            *float64 `json:"user_s"`
	SystemS          *float64 `json:"system_s"`
	ForegroundS      *float64 `json:"foreground_s"`
	FlushS           *float64 `json:"flush_s"`
	CompactionS      *float64 `json:"compaction_s"`
	OtherBackgroundS *float64 `json:"other_background_s"`
	SamplerS         *float64 `json:"sampler_s"`
}

// Memory is resident memory of the process.
type Memory struct {
	ResidentBytes      *uint64 `json:"resident_bytes"`
	AnonymousBytes     *uint64 `json:"anonymous_bytes"`
	FileBytes          *uint64 `json:"file_bytes"`
	SharedBytes        *uint64 `json:"shared_bytes"`
	PeakResidentBytes  *uint64 `json:"peak_resident_bytes"`
	PeakAnonymousBytes *uint64 `json:"peak_anonymous_bytes"`
}

// Bytes by cause, from the start until the engine was idle.
type Bytes struct {
	UserWrittenBytes    uint64  `json:"user_written_bytes"`
	UserReadBytes       uint64  `json:"user_read_bytes"`
	LogBytes            *uint64 `json:"log_bytes"`
	FlushBytes          *uint64 `json:"flush_bytes"`
	CompactionReadBytes *uint64 `json:"compaction_read_bytes"`
	CompactionBytes     *uint64 `json:"compaction_bytes"`
	ReadCallBytes       *uint64 `json:"read_call_bytes"`
	WriteCallBytes      *uint64 `json:"write_call_bytes"`
	DeviceReadBytes     *uint64 `json:"device_read_bytes"`
	DeviceWriteBytes    *uint64 `json:"device_write_bytes"`
}

// Disk is the files of the store when the engine was idle, and after the store was closed.
type Disk struct {
	Files        measure.Sizes `json:"files"`
	FilesClosed  measure.Sizes `json:"files_closed"`
	Records      uint64        `json:"records"`
	LiveBytes    uint64        `json:"live_bytes"`
	CachedBefore *float64      `json:"cached_before"`
	CachedAfter  *float64      `json:"cached_after"`
}

// System is what the system did for the process.
type System struct {
	MinorFaults         *uint64  `json:"minor_faults"`
	MajorFaults         *uint64  `json:"major_faults"`
	MajorFaultsPerOp    *float64 `json:"major_faults_per_op"`
	VoluntarySwitches   *uint64  `json:"voluntary_switches"`
	InvoluntarySwitches *uint64  `json:"involuntary_switches"`
}

// Of returns the record of a run that has just ended.
func Of(s *settings.Settings, outcome *run.Outcome, machine measure.Machine) *Record {
	r := &Record{
		SchemaVersion:  schemaVersion,
		Workload:       string(s.Workload),
		Engine:         "pebble",
		EngineVersion:  store.Version(),
		Abilities:      abilities,
		Promise:        abilities.Unsynced,
		Settings:       settingsOf(s),
		EngineSettings: outcome.EngineSettings,
		Machine:        machine,
		Build:          buildOf(),
		Date:           time.Now().UTC().Format(time.RFC3339),
		CommandLine:    os.Args,
		StandIns:       []string{},
	}
	if outcome.Synced {
		r.Promise = "power"
	}
	r.takeOperations(s, outcome)
	r.takeLatencies(outcome.Measured)
	r.takeOpenLoop(outcome.OpenLoop, outcome.Measured)
	r.takeStalls(outcome.Measured)
	r.takeResources(s, outcome)
	r.takeAmplification(outcome)
	return r
}

func (r *Record) takeOperations(s *settings.Settings, outcome *run.Outcome) {
	m := outcome.Measured
	r.Open, r.Warnings = outcome.Open, []string{}
	background := m.Figures.FlushBytes + m.Figures.CompactionBytes
	if !s.Workload.Writes() && s.Workload != settings.Compact && background > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("The engine flushed or compacted %d bytes while the "+
			"workload only read, so the reads were not those of a store at rest.", background))
	}
	if m.Censored > 0 {
		r.Warnings = append(r.Warnings, fmt.Sprintf("%d operations were due and never begun. What they had "+
			"waited at the end is in the latencies, whose quantiles are lower bounds.", m.Censored))
	}
	r.Operations, r.BesideOperations = m.Counts.Operations, m.Beside.Operations
	r.UntilLastS = m.UntilLast.Seconds()
	r.UntilIdleS = (m.UntilLast + outcome.SettledAfter).Seconds()
	operations, bytes := float64(r.Operations), float64(m.Counts.WrittenBytes+m.Counts.ReadBytes)
	r.OpsPerS = measure.Ratio(operations, r.UntilLastS)
	if s.Workload.HasBesideWriter() {
		r.BesideOpsPerS = measure.Ratio(float64(r.BesideOperations), r.UntilLastS)
	}
	r.OpsPerSUntilIdle = measure.Ratio(operations, r.UntilIdleS)
	r.BytesPerS = measure.Ratio(bytes, r.UntilLastS)
	r.BytesPerSUntilIdle = measure.Ratio(bytes, r.UntilIdleS)
}

func (r *Record) takeLatencies(m *measure.Measured) {
	if all := m.All.Summary(); all != nil {
		r.MeanUs, r.P50Us, r.P90Us, r.P99Us = &all.MeanUs, &all.P50Us, &all.P90Us, &all.P99Us
		r.P999Us, r.P9999Us, r.MaxUs, r.SlowS = &all.P999Us, &all.P9999Us, &all.MaxUs, &all.SlowS
	}
	r.Latency, r.ServiceTime = summaries(m.Latency), summaries(m.Service)
}

func summaries(all map[string]*measure.Latencies) map[string]*measure.Summary {
	found := map[string]*measure.Summary{}
	for kind, latencies := range all {
		found[kind] = latencies.Summary()
	}
	return found
}

// takeOpenLoop: the achieved rate is that of the operations that were done.
func (r *Record) takeOpenLoop(found *run.OpenLoop, m *measure.Measured) {
	if found == nil {
		return
	}
	took := max(found.Duration, m.UntilLast).Seconds()
	due := found.DueOperations
	r.OpenLoop = &OpenLoop{
		IntendedOpsPerS:    measure.Ratio(float64(due), found.Duration.Seconds()),
		AchievedOpsPerS:    measure.Ratio(float64(r.Operations), took),
		DueOperations:      due,
		BacklogOperations:  due - min(r.Operations, due),
		CensoredOperations: m.Censored,
	}
}

// takeStalls: Pebble counts its stalls, so without any they are 0 and not unknown. An open was not
// listened to.
func (r *Record) takeStalls(m *measure.Measured) {
	if m.Figures.Stalls != nil {
		r.StallSByCause = measure.StallSeconds(m.Figures.Stalls)
		total := 0.0
		for _, seconds := range r.StallSByCause {
			total += seconds
		}
		r.StallS = &total
	}
	for _, row := range m.Seconds {
		if row.Second < int64(m.UntilLast/time.Second) && row.Operations == 0 {
			r.SilentSeconds++
		}
	}
	r.Series, r.Levels = m.Seconds, m.Levels
	if r.Levels == nil {
		r.Levels = []store.Level{}
	}
	r.EngineCounters = map[string]uint64{}
	maps.Copy(r.EngineCounters, m.Figures.Others)
}

func (r *Record) takeResources(s *settings.Settings, outcome *run.Outcome) {
	m := outcome.Measured
	before, after := &m.Before, &m.After
	r.CPU = CPU{
		ProcessS: measure.Growth(before.CPUS, after.CPUS),
		UserS:    measure.Growth(before.UserS, after.UserS),
		SystemS:  measure.Growth(before.SystemS, after.SystemS),
	}
	r.CPUS = r.CPU.ProcessS
	r.Memory = Memory{
		ResidentBytes:      after.ResidentBytes,
		AnonymousBytes:     after.AnonymousBytes,
		FileBytes:          after.FileBytes,
		SharedBytes:        after.SharedBytes,
		PeakResidentBytes:  m.PeakResidentBytes,
		PeakAnonymousBytes: m.PeakAnonymousBytes,
	}
	r.RSSBytes = m.PeakAnonymousBytes
	r.Bytes = Bytes{
		UserWrittenBytes: m.Counts.WrittenBytes + m.Beside.WrittenBytes,
		UserReadBytes:    m.Counts.ReadBytes + m.Beside.ReadBytes,
		ReadCallBytes:    measure.Growth(before.ReadCallBytes, after.ReadCallBytes),
		WriteCallBytes:   measure.Growth(before.WriteCallBytes, after.WriteCallBytes),
		DeviceReadBytes:  measure.Growth(before.DeviceReadBytes, after.DeviceReadBytes),
		DeviceWriteBytes: measure.Growth(before.DeviceWriteBytes, after.DeviceWriteBytes),
	}
	if s.Workload != settings.Open {
		figures := &m.Figures
		r.Bytes.LogBytes, r.Bytes.FlushBytes = &figures.LogBytes, &figures.FlushBytes
		r.Bytes.CompactionReadBytes = &figures.CompactionReadBytes
		r.Bytes.CompactionBytes = &figures.CompactionBytes
	}
	r.System = System{
		MinorFaults:         measure.Growth(before.MinorFaults, after.MinorFaults),
		MajorFaults:         measure.Growth(before.MajorFaults, after.MajorFaults),
		VoluntarySwitches:   measure.Growth(before.VoluntarySwitches, after.VoluntarySwitches),
		InvoluntarySwitches: measure.Growth(before.InvoluntarySwitches, after.InvoluntarySwitches),
	}
	if faults := r.System.MajorFaults; faults != nil {
		operations := float64(r.Operations + r.BesideOperations)
		r.System.MajorFaultsPerOp = measure.Ratio(float64(*faults), operations)
	}
	r.Disk = Disk{outcome.Sizes, outcome.ClosedSizes, outcome.Records, outcome.LiveBytes, outcome.CachedBefore,
		outcome.CachedAfter}
}

func (r *Record) takeAmplification(outcome *run.Outcome) {
	by := func(part *uint64, whole uint64) *float64 {
		if part == nil {
			return nil
		}
		return measure.Ratio(float64(*part), float64(whole))
	}
	b := &r.Bytes
	a := &r.Amplification
	if b.LogBytes != nil {
		tables := *b.FlushBytes + *b.CompactionBytes
		withLog := tables + *b.LogBytes
		a.WriteTables = by(&tables, b.UserWrittenBytes)
		a.WriteWithLog = by(&withLog, b.UserWrittenBytes)
	}
	a.WriteCalls = by(b.WriteCallBytes, b.UserWrittenBytes)
	a.WriteDevice = by(b.DeviceWriteBytes, b.UserWrittenBytes)
	a.ReadDevice = by(b.DeviceReadBytes, b.UserReadBytes)
	all := outcome.ClosedSizes.Total().AllocatedBytes
	withoutLog := all - outcome.ClosedSizes.Log.AllocatedBytes
	a.Space, a.SpaceWithoutLog = by(&all, outcome.LiveBytes), by(&withoutLog, outcome.LiveBytes)
	r.WriteAmplification, r.SpaceAmplification = a.WriteWithLog, a.Space
}

// settingsOf gives the settings the names and the text forms that they have in experiment files.
func settingsOf(s *settings.Settings) map[string]any {
	amount := fmt.Sprint(s.Amount.Operations)
	switch {
	case s.Amount.EveryRecord:
		amount = "every-record"
	case s.Amount.Seconds > 0:
		amount = fmt.Sprintf("%vs", s.Amount.Seconds)
	}
	var distribution any
	if s.Workload.DrawsRecords() {
		distribution = string(s.Distribution)
	}
	var writeRate any
	if s.WriteRate > 0 {
		writeRate = s.WriteRate
	}
	arrival := "closed"
	if s.ArrivalRate > 0 {
		arrival = "constant:" + strconv.FormatFloat(s.ArrivalRate, 'f', -1, 64)
	}
	return map[string]any{
		"workload": string(s.Workload),
		"engine": map[string]any{
			"memtable_bytes":     s.Engine.MemtableBytes,
			"cache_bytes":        s.Engine.CacheBytes,
			"bloom_bits":         s.Engine.BloomBits,
			"compression":        s.Engine.Compression,
			"background_threads": s.Engine.BackgroundThreads,
			"mmap_reads":         nil,
			"own":                s.Engine.Own,
		},
		"records":           s.Records,
		"key_bytes":         s.KeyBytes,
		"value_bytes":       fmt.Sprint(s.ValueBytes),
		"compression_ratio": s.CompressionRatio,
		"distribution":      distribution,
		"amount":            amount,
		"arrival":           arrival,
		"threads":           s.Threads,
		"batch":             s.Batch,
		"nexts":             s.Nexts,
		"read_ratio":        s.ReadRatio,
		"sync":              s.Sync,
		"write_rate":        writeRate,
		"cache":             strings.ReplaceAll(string(s.Cache), "_", "-"),
		"seed":              s.Seed,
		"operation_seed":    s.OperationSeed,
	}
}

// JSON returns the record as one line.
func (r *Record) JSON() ([]byte, error) { return json.Marshal(r) }

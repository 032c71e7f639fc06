package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"

	"github.com/cockroachdb/pebble/v2"

	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/settings"
	"siltstone/bench-compare/pebble/internal/store"
)

// bench runs the program and returns its records, as JSON.
func bench(t *testing.T, folder string, arguments ...string) []map[string]any {
	t.Helper()
	code, output, failures := try(folder, arguments...)
	if code != 0 {
		t.Fatalf("%v: code %d, %s", arguments, code, failures)
	}
	var records []map[string]any
	decoder := json.NewDecoder(strings.NewReader(output))
	for decoder.More() {
		var record map[string]any
		if err := decoder.Decode(&record); err != nil {
			t.Fatal(err)
		}
		records = append(records, record)
	}
	return records
}

func try(folder string, arguments ...string) (code int, output, failures string) {
	var out, err bytes.Buffer
	arguments = append([]string{"--folder", folder, "--memtable-bytes", "1MiB"}, arguments...)
	code = runAll(context.Background(), arguments, &out, &err)
	return code, out.String(), err.String()
}

// keys of the record that a comparison needs, whatever the workload.
var requiredKeys = []string{
	"schema_version", "workload", "engine", "ops_per_s", "p50_us", "p99_us", "p999_us", "max_us",
	"write_amplification", "space_amplification", "cpu_s", "rss_bytes", "stall_s", "engine_version",
	"abilities", "promise", "operations", "beside_operations", "until_last_s", "until_idle_s",
	"ops_per_s_until_idle", "bytes_per_s", "bytes_per_s_until_idle", "mean_us", "p90_us", "p9999_us",
	"errors", "verification_failures", "latency", "service_time", "open_loop", "stall_s_by_cause",
	"slow_s", "silent_seconds", "amplification", "cpu", "memory", "bytes", "disk", "system", "levels",
	"engine_counters", "series", "settings", "engine_settings", "machine", "build", "date",
	"command_line", "stand_ins", "beside_ops_per_s", "open", "warnings",
}

// number returns a number at a path of keys, and fails if there is none.
func number(t *testing.T, record map[string]any, path ...string) float64 {
	t.Helper()
	var value any = record
	for _, key := range path {
		value = value.(map[string]any)[key]
	}
	found, ok := value.(float64)
	if !ok {
		t.Fatalf("%v of %v is %v", path, record["workload"], value)
	}
	return found
}

func TestEveryWorkloadRunsAndItsRecordHasAllKeys(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		workload   string
		kind       string
		operations float64
		arguments  []string
	}{
		{"fillseq", "put", 1000, nil},
		{"fillbatch", "batch", 1000, []string{"--batch", "300"}},
		{"fillsync", "put", 20, []string{"--operations", "20"}},
		{"fillsync", "put", 21, []string{"--operations", "21", "--threads", "4"}},
		{"fillrandom", "put", 1000, []string{"--threads", "4"}},
		{"overwrite", "put", 1000, nil},
		{"readrandom", "get", 500, []string{"--operations", "500"}},
		{"readrandom", "get", 501, []string{"--operations", "501", "--threads", "2", "--cold"}},
		{"readmissing", "get_missing", 500, []string{"--operations", "500"}},
		{"multireadrandom", "multi_get", 500, []string{"--operations", "500", "--batch", "8"}},
		{"seekrandom", "seek", 100, []string{"--operations", "100", "--nexts", "10"}},
		{"readwhilewriting", "get", 500, []string{"--operations", "500"}},
		{"seekrandomwhilewriting", "seek", 100, []string{"--operations", "100"}},
		{"readrandomwriterandom", "get", 300, []string{"--operations", "300"}},
		{"open", "open", 1, nil},
		{"compact", "compact", 1, nil},
		// The writer beside the readers wrote an unknown number of the records.
		{"fillseq", "put", 1000, nil},
		{"readseq", "scan", 3000, []string{"--operations", "3000", "--warm"}},
		{"readreverse", "scan", 1000, nil},
		{"deleterandom", "delete", 400, []string{"--operations", "400"}},
		{"readseq", "scan", 50, []string{"--operations", "50"}},
		{"readrandom", "get", 200, []string{"--operations", "200"}},
		{"ycsb-load", "put", 1000, nil},
		{"ycsb-a", "update", 1000, nil},
		{"ycsb-b", "get", 1001, []string{"--operations", "1001", "--threads", "3"}},
		{"ycsb-c", "get", 500, []string{"--operations", "500", "--cold"}},
		{"ycsb-f", "read_modify_write", 1000, nil},
		{"ycsb-d", "insert", 1003, []string{"--operations", "1003", "--threads", "4"}},
		{"ycsb-d", "get", 1000, []string{"--distribution", "uniform"}},
		{"ycsb-e", "seek", 500, []string{"--operations", "500", "--threads", "2"}},
		{"ycsb-e", "insert", 500, []string{"--operations", "500"}},
	} {
		arguments := append([]string{"--workload", c.workload, "--records", "1000"}, c.arguments...)
		record := bench(t, folder, arguments...)[0]
		for _, key := range requiredKeys {
			if _, ok := record[key]; !ok {
				t.Errorf("%s: the record has no `%s`", c.workload, key)
			}
		}
		if record["workload"] != c.workload || record["engine"] != "pebble" {
			t.Errorf("%v on %v", record["workload"], record["engine"])
		}
		if got := number(t, record, "operations"); got != c.operations {
			t.Errorf("%s: %v operations, want %v", c.workload, got, c.operations)
		}
		if number(t, record, "latency", c.kind, "count") == 0 {
			t.Errorf("%s: no latencies of %s", c.workload, c.kind)
		}
		least, most := number(t, record, "p50_us"), number(t, record, "max_us")
		if !(least > 0 && least <= most) {
			t.Errorf("%s: p50 %v, max %v", c.workload, least, most)
		}
		sum := 0.0
		for _, row := range record["series"].([]any) {
			sum += row.(map[string]any)["operations"].(float64)
		}
		if sum != c.operations {
			t.Errorf("%s: the series has %v operations", c.workload, sum)
		}
		if number(t, record, "space_amplification") <= 0 || number(t, record, "rss_bytes") <= 0 {
			t.Errorf("%s: no space or memory", c.workload)
		}
	}
}

// The operations of each core workload are those of its file, within five standard deviations, and they
// are counted by their kinds.
func TestTheCoreWorkloadsOfYcsbHaveTheirOperations(t *testing.T) {
	folder := t.TempDir()
	bench(t, folder, "--workload", "ycsb-load", "--records", "2000")
	records := 2000.0
	for _, c := range []struct {
		workload, most, other string
		share                 float64
	}{
		{"ycsb-a", "get", "update", 0.5},
		{"ycsb-b", "get", "update", 0.05},
		{"ycsb-c", "get", "", 0},
		{"ycsb-f", "get", "read_modify_write", 0.5},
		{"ycsb-d", "get", "insert", 0.05},
		{"ycsb-e", "seek", "insert", 0.05},
	} {
		record := bench(t, folder, "--workload", c.workload, "--records", "2000", "--operations", "4000")[0]
		latency := record["latency"].(map[string]any)
		most, other := number(t, record, "latency", c.most, "count"), 0.0
		kinds := 1
		if c.other != "" {
			other = number(t, record, "latency", c.other, "count")
			kinds = 2
		}
		deviation := math.Sqrt(4000 * c.share * (1 - c.share))
		if most+other != 4000 || math.Abs(other-4000*c.share) > 5*deviation || len(latency) != kinds {
			t.Errorf("%s: %v and %v operations of %v", c.workload, most, other, latency)
		}
		if c.other == "insert" {
			records += other
		}
		if got := number(t, record, "disk", "records"); got != records {
			t.Errorf("%s: %v records, want %v", c.workload, got, records)
		}
	}
	// What was inserted is there for the next run, and what a scan reads is what was written.
	record := bench(t, folder, "--workload", "ycsb-c", "--records", "2000", "--distribution", "latest")[0]
	if got := number(t, record, "disk", "records"); got != records || records < 2200 {
		t.Errorf("%v records after two workloads that insert, want %v", got, records)
	}
	if user := number(t, record, "bytes", "user_read_bytes"); user < 2000*(128+19) || user > 2000*(128+23) {
		t.Errorf("%v bytes of 2000 reads", user)
	}
}

func TestKeysOfYcsbAreOfNoUseToOtherWorkloads(t *testing.T) {
	folder := t.TempDir()
	for _, workloads := range [][2]string{{"fillseq", "ycsb-a"}, {"ycsb-load", "readrandom"}} {
		bench(t, folder, "--workload", workloads[0], "--records", "1000")
		code, _, failures := try(folder, "--workload", workloads[1], "--records", "1000")
		if code != exitFailure || !strings.Contains(failures, "other settings") {
			t.Errorf("%v: code %d, %s", workloads, code, failures)
		}
	}
}

// The first draws are those of the generators, which testdata/generators.json pins.
func TestYcsbDrawsWhatTheGeneratorsDraw(t *testing.T) {
	folder := t.TempDir()
	bench(t, folder, "--workload", "ycsb-load", "--records", "1000")
	before := dumpOf(t, folder)
	bench(t, folder, "--workload", "ycsb-a", "--records", "1000", "--operations", "50")
	after := dumpOf(t, folder)
	expected := map[string]bool{}
	seed := generate.SeedOfOperations(1, 1, "ycsb-a")
	random := generate.NewRandom(seed, 0).Lane(0)
	pick := generate.NewScrambledZipfian(seed, 0, 1, 1001)
	for range 50 {
		isRead := random.Unit() < 0.5
		if record := pick.Next(1000); !isRead {
			expected[string(generate.NewHashedKeys().Present(record, nil))] = true
		}
	}
	changed := 0
	for i := range before {
		if before[i] == after[i] {
			continue
		}
		changed++
		if key, _, _ := strings.Cut(after[i], "="); !expected[key] {
			t.Errorf("key %s was updated", key)
		}
	}
	if changed != len(expected) || changed < 10 {
		t.Errorf("%d records were updated, and %d were expected", changed, len(expected))
	}
}

func TestAnOpenLoopKeepsToItsRateAndRecordsServiceTimes(t *testing.T) {
	folder := t.TempDir()
	record := bench(t, folder, "--workload", "fillrandom", "--records", "1000", "--seconds", "0.5",
		"--arrival", "constant:2000", "--threads", "2")[0]
	due := number(t, record, "open_loop", "due_operations")
	done, censored := number(t, record, "operations"), number(t, record, "open_loop", "censored_operations")
	if due != 1000 || done+censored != due {
		t.Errorf("%v due, %v done and %v never begun in 0.5 s at 2000 a second", due, done, censored)
	}
	if got := number(t, record, "open_loop", "intended_ops_per_s"); got != 2000 {
		t.Errorf("%v a second were intended", got)
	}
	if number(t, record, "service_time", "put", "count") != done {
		t.Error("a put has no service time")
	}
	if number(t, record, "latency", "put", "count") != due {
		t.Error("a put that was due has no latency")
	}
	if number(t, record, "service_time", "put", "mean_us") > number(t, record, "latency", "put", "mean_us") {
		t.Error("latency does not count from the time at which a put was due")
	}
	closed := bench(t, folder, "--workload", "overwrite", "--records", "1000")[0]
	if closed["open_loop"] != nil || len(closed["service_time"].(map[string]any)) > 0 {
		t.Errorf("a closed loop has %v and %v", closed["open_loop"], closed["service_time"])
	}
	arrival := record["settings"].(map[string]any)["arrival"]
	if arrival != "constant:2000" || closed["settings"].(map[string]any)["arrival"] != "closed" {
		t.Errorf("arrival %v", arrival)
	}
}

// Far more puts are due than can be done. Those that never began are in the latencies, with what they
// have waited, so the latencies are about as long as the run.
func TestAnOpenLoopHidesNoOperationThatWasDue(t *testing.T) {
	folder := t.TempDir()
	record := bench(t, folder, "--workload", "fillsync", "--records", "1000", "--seconds", "0.3",
		"--arrival", "constant:1000000")[0]
	due, censored := number(t, record, "open_loop", "due_operations"),
		number(t, record, "open_loop", "censored_operations")
	done := number(t, record, "operations")
	if due != 300_000 || censored != due-done || censored < due/2 {
		t.Errorf("%v due, %v done, %v never begun", due, done, censored)
	}
	if backlog := number(t, record, "open_loop", "backlog_operations"); backlog != censored {
		t.Errorf("a backlog of %v, and %v never begun", backlog, censored)
	}
	if most := number(t, record, "max_us"); most < 150_000 {
		t.Errorf("the longest latency is %v us of 0.3 s", most)
	}
	if mean := number(t, record, "mean_us"); mean < 50_000 {
		t.Errorf("the mean latency is %v us, though most puts waited until its end", mean)
	}
	warnings := fmt.Sprint(record["warnings"])
	if !strings.Contains(warnings, "never begun") || !strings.Contains(warnings, "lower bounds") {
		t.Errorf("warnings %s", warnings)
	}
	// Workload A draws its operations, so those that never began are in no kind.
	bench(t, folder, "--workload", "ycsb-load", "--records", "1000")
	record = bench(t, folder, "--workload", "ycsb-a", "--records", "1000", "--seconds", "0.2",
		"--arrival", "constant:50000000")[0]
	kinds := number(t, record, "latency", "get", "count") + number(t, record, "latency", "update", "count")
	if done := number(t, record, "operations"); kinds != done ||
		number(t, record, "open_loop", "due_operations") <= done {
		t.Errorf("%v latencies of kinds, %v operations", kinds, done)
	}
}

func TestFillsCountTheirBytesAndTheirPromise(t *testing.T) {
	folder := t.TempDir()
	records := bench(t, folder, "--workload", "fillseq", "--records", "20000")
	records = append(records, bench(t, folder, "--workload", "fillsync", "--records", "20000",
		"--operations", "20")...)
	fill := records[0]
	user := number(t, fill, "bytes", "user_written_bytes")
	if user != 20000*(16+128) {
		t.Errorf("%v bytes of the user", user)
	}
	log, flush := number(t, fill, "bytes", "log_bytes"), number(t, fill, "bytes", "flush_bytes")
	if log < user || log > 1.3*user {
		t.Errorf("%v bytes of log for %v of the user", log, user)
	}
	if flush <= 0 || flush > 1.2*user {
		t.Errorf("%v bytes of flushes for %v of the user", flush, user)
	}
	tables := number(t, fill, "amplification", "write_tables")
	if withLog := number(t, fill, "write_amplification"); withLog < tables+0.99 {
		t.Errorf("write amplification %v with log, %v without", withLog, tables)
	}
	if fill["promise"] != "memory" || records[1]["promise"] != "power" {
		t.Errorf("promises %v and %v", fill["promise"], records[1]["promise"])
	}
	if number(t, fill, "disk", "records") != 20000 {
		t.Errorf("%v records", number(t, fill, "disk", "records"))
	}
	own := fill["engine_settings"].(map[string]any)
	if own["mem_table_size"] != "1048576" || own["levels.filter_policy"] != "rocksdb.BuiltinBloomFilter" {
		t.Errorf("settings %v", own)
	}
}

func TestReadsOfAbsentKeysUseTheFiltersOfTheLastLevel(t *testing.T) {
	folder := t.TempDir()
	records := bench(t, folder, "--workload", "fillseq,compact,readmissing", "--records", "20000")
	hits := number(t, records[2], "engine_counters", "filter_hits")
	if operations := number(t, records[2], "operations"); hits < 0.9*operations {
		t.Errorf("filters answered %v of %v reads", hits, operations)
	}
}

func TestAMissingKeyIsNoByteThatWasRead(t *testing.T) {
	folder := t.TempDir()
	bench(t, folder, "--workload", "fillseq", "--records", "1000")
	for _, filter := range []string{"true", "false"} {
		record := bench(t, folder, "--workload", "readmissing", "--records", "1000",
			"--operations", "100", "--own", "UseL6Filters="+filter)[0]
		if read := number(t, record, "bytes", "user_read_bytes"); read != 0 {
			t.Errorf("UseL6Filters=%s: %v bytes of 100 keys that are missing", filter, read)
		}
	}
}

func TestEveryCodecStoresAndReads(t *testing.T) {
	for _, codec := range []string{"none", "snappy", "minlz", "zstd"} {
		folder := t.TempDir()
		records := bench(t, folder, "--workload", "fillrandom,compact,readseq,overwrite,readrandom",
			"--records", "5000", "--operations", "5000", "--compression", codec,
			"--compression-ratio", "0.5", "--value-bytes", "400")
		space := number(t, records[1], "amplification", "space_without_log")
		if isSmall := space < 0.8; isSmall != (codec != "none") {
			t.Errorf("%s: space amplification %v", codec, space)
		}
	}
}

func TestEqualSeedsWriteEqualStores(t *testing.T) {
	var dumps []string
	for _, seed := range []string{"7", "7", "8"} {
		folder := t.TempDir()
		bench(t, folder, "--workload", "fillrandom", "--records", "2000", "--seed", seed)
		opened, err := store.Open(filepath.Join(folder, "pebble"), engine())
		if err != nil {
			t.Fatal(err)
		}
		dumps = append(dumps, dump(t, opened))
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
	}
	if dumps[0] != dumps[1] || dumps[0] == dumps[2] {
		t.Error("the seed does not decide what is written")
	}
	// The first draw of fillrandom by the generators, which testdata/generators.json pins.
	seed := generate.SeedOfOperations(7, 1, "fillrandom")
	first := generate.NewUniform(seed, 0, 1).Next(2000)
	if key := fmt.Sprintf("%016d", 2*first); !strings.Contains(dumps[0], key) {
		t.Errorf("key %s is missing", key)
	}
}

func engine() settings.Engine {
	return settings.Engine{MemtableBytes: 1 << 20, CacheBytes: 1 << 20, BloomBits: 10,
		Compression: "none", BackgroundThreads: 2}
}

func dump(t *testing.T, opened *store.Store) string {
	t.Helper()
	iterator, err := opened.DB.NewIter(nil)
	if err != nil {
		t.Fatal(err)
	}
	var text strings.Builder
	for valid := iterator.First(); valid; valid = iterator.Next() {
		fmt.Fprintf(&text, "%s=%x\n", iterator.Key(), iterator.Value())
	}
	if err := iterator.Close(); err != nil {
		t.Fatal(err)
	}
	return text.String()
}

// dumpOf returns the entries of the store below a folder, one by one.
func dumpOf(t *testing.T, folder string) []string {
	t.Helper()
	opened, err := store.Open(filepath.Join(folder, "pebble"), engine())
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(dump(t, opened)), "\n")
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
	return lines
}

// change writes to a store behind the back of the benchmark.
func change(t *testing.T, folder string, write func(db *pebble.DB) error) {
	t.Helper()
	opened, err := store.Open(filepath.Join(folder, "pebble"), engine())
	if err != nil {
		t.Fatal(err)
	}
	if err := write(opened.DB); err != nil {
		t.Fatal(err)
	}
	if err := opened.Close(); err != nil {
		t.Fatal(err)
	}
}

func TestWrongAnswersEndTheRun(t *testing.T) {
	key := []byte(fmt.Sprintf("%016d", 2*500))
	absent := []byte(fmt.Sprintf("%016d", 2*500+1))
	for _, c := range []struct {
		name      string
		write     func(db *pebble.DB) error
		workloads []string
		expected  string
	}{
		{"a lost record", func(db *pebble.DB) error { return db.Delete(key, nil) },
			[]string{"readrandom", "readseq", "readreverse"}, "record 50"},
		{"a changed value", func(db *pebble.DB) error {
			values, _ := generate.NewValues(128, 1, 1)
			value := values.Write(500, 0, nil)
			value[77] ^= 1
			return db.Set(key, value, nil)
		}, []string{"readrandom", "readseq", "multireadrandom"}, "at offset 77"},
		{"a record that nobody wrote", func(db *pebble.DB) error { return db.Set(absent, key, nil) },
			[]string{"readmissing", "readseq", "readreverse"}, "was never written"},
	} {
		folder := t.TempDir()
		bench(t, folder, "--workload", "fillseq", "--records", "1000")
		change(t, folder, c.write)
		for _, workload := range c.workloads {
			code, output, failures := try(folder, "--workload", workload, "--records", "1000",
				"--every-record")
			if workload == "multireadrandom" {
				code, output, failures = try(folder, "--workload", workload, "--records", "1000",
					"--operations", "20000")
			}
			if code != exitFailure || output != "" || !strings.Contains(failures, c.expected) {
				t.Errorf("%s, %s: code %d, %s", c.name, workload, code, failures)
			}
		}
	}
}

func TestWrongAnswersOfYcsbEndTheRun(t *testing.T) {
	key := generate.NewHashedKeys().Present(500, nil)
	for _, c := range []struct {
		name     string
		write    func(db *pebble.DB) error
		workload string
		expected string
	}{
		{"a lost record", func(db *pebble.DB) error { return db.Delete(key, nil) }, "ycsb-c", "record 500"},
		{"a changed value", func(db *pebble.DB) error {
			values, _ := generate.NewValues(128, 1, 1)
			value := values.Write(500, 0, nil)
			value[77] ^= 1
			return db.Set(key, value, nil)
		}, "ycsb-e", "at offset 77"},
		{"a record that nobody wrote", func(db *pebble.DB) error {
			values, _ := generate.NewValues(128, 1, 1)
			return db.Set([]byte("user5"), values.Write(500, 0, nil), nil)
		}, "ycsb-e", "was never written"},
	} {
		folder := t.TempDir()
		bench(t, folder, "--workload", "ycsb-load", "--records", "1000")
		change(t, folder, c.write)
		code, output, failures := try(folder, "--workload", c.workload, "--records", "1000",
			"--operations", "50000")
		if code != exitFailure || output != "" || !strings.Contains(failures, c.expected) {
			t.Errorf("%s, %s: code %d, %s", c.name, c.workload, code, failures)
		}
	}
}

func TestBadFlagsAreRefused(t *testing.T) {
	folder := t.TempDir()
	for _, c := range []struct {
		arguments string
		expected  string
	}{
		{"", "--workload is missing"},
		{"--workload fillrandon", "`fillrandon` is not a workload of this program; it has fillseq"},
		{"--workload fillseq --record 5", "flag provided but not defined: -record"},
		{"--workload fillseq --records many", "it must be a whole number"},
		{"--workload fillseq --records 0", "--records is 0"},
		{"--workload fillseq --value-bytes 1XB", "it must be a size"},
		{"--workload fillseq --compression lz4", "Pebble has no lz4"},
		{"--workload fillseq --compression none --own BlockSiez=4096",
			"`BlockSiez` is not a setting that can be given; these can: BlockSize"},
		{"--workload fillseq --own BlockSize", "it must be NAME=VALUE"},
		{"--workload readrandom --seconds 1 --operations 5", "exclude each other"},
		{"--workload readrandom --seconds -1", "a number of seconds above 0"},
		{"--workload readrandom --warm --cold", "exclude each other"},
		{"--workload readseq --distribution uniform", "readseq draws no records"},
		{"--workload readrandom --distribution zipfian", "`zipfian`"},
		{"--workload ycsb-load --seconds 1", "ends when all records are there"},
		{"--workload ycsb-a --every-record", "does not go through the records"},
		{"--workload fillrandom --arrival poisson:5", "constant:RATE"},
		{"--workload fillrandom --arrival constant:0", "constant:RATE"},
		{"--workload readseq --arrival constant:5", "for which there is no rate"},
		{"--workload readrandom --read-ratio 2", "--read-ratio is 2"},
		{"--workload compact --threads 2", "compact has one thread"},
		{"--workload fillseq extra", "`extra` is not a flag"},
		{"--workload fillseq --memtable-bytes 8GiB", "Pebble's limit"},
		{"--workload readwhilewriting --write-rate -1", "--write-rate is -1"},
		{"--workload fillseq --key-bytes 7", "--key-bytes is 7"},
	} {
		code, output, failures := try(folder, strings.Fields(c.arguments)...)
		if code != exitUsage || output != "" || !strings.Contains(failures, c.expected) {
			t.Errorf("%s: code %d, %s", c.arguments, code, failures)
		}
	}
	if code, _, failures := try("", "--workload", "fillseq"); code != exitUsage ||
		!strings.Contains(failures, "--folder is ") {
		t.Errorf("code %d, %s", code, failures)
	}
	if entries, _ := os.ReadDir(folder); len(entries) > 0 {
		t.Errorf("a refused run left %v", entries)
	}
}

func TestTheHelpListsWorkloadsAndFlags(t *testing.T) {
	code, output, _ := try(t.TempDir(), "--help")
	if code != 0 || !strings.Contains(output, "readreverse") || !strings.Contains(output, "-memtable-bytes") {
		t.Errorf("code %d, %s", code, output)
	}
}

func TestStoresOfOthersAndOfOtherSettingsAreRefused(t *testing.T) {
	folder := t.TempDir()
	code, _, failures := try(folder, "--workload", "readrandom", "--records", "1000")
	if code != exitFailure || !strings.Contains(failures, "run fillrandom or fillseq first") {
		t.Errorf("code %d, %s", code, failures)
	}
	bench(t, folder, "--workload", "fillseq", "--records", "1000")
	for _, other := range [][]string{{"--records", "2000"}, {"--seed", "9"}, {"--value-bytes", "64"},
		{"--compression", "zstd"}, {"--bloom-bits", "5"}, {"--own", "BlockSize=8192"}} {
		arguments := append([]string{"--workload", "readrandom", "--records", "1000"}, other...)
		code, _, failures := try(folder, arguments...)
		if code != exitFailure || !strings.Contains(failures, "other settings") {
			t.Errorf("%v: code %d, %s", other, code, failures)
		}
	}
	foreign := t.TempDir()
	precious := filepath.Join(foreign, "pebble", "precious")
	if err := os.MkdirAll(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, failures = try(foreign, "--workload", "fillseq", "--records", "1000")
	if code != exitFailure || !strings.Contains(failures, "files that no benchmark made") {
		t.Errorf("code %d, %s", code, failures)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

func TestAnInterruptedRunLeavesNoRecordAndNoPopulation(t *testing.T) {
	folder := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	var out, failures bytes.Buffer
	code := runAll(ctx, []string{"--folder", folder, "--workload", "fillseq", "--records", "1000"},
		&out, &failures)
	if code != exitFailure || out.Len() > 0 || !strings.Contains(failures.String(), "interrupted") {
		t.Errorf("code %d, %s", code, failures.String())
	}
	if _, err := os.Stat(filepath.Join(folder, "pebble.population")); err == nil {
		t.Error("the store of an interrupted run is taken for a whole one")
	}
}

const (
	killFolder = "PEBBLE_BENCH_TEST_KILL_FOLDER"
	killSync   = "PEBBLE_BENCH_TEST_KILL_SYNC"
	killPuts   = 3000
)

// TestMain is also the process that the tests of promises kill.
func TestMain(m *testing.M) {
	if folder := os.Getenv(killFolder); folder != "" {
		putAndDie(folder, os.Getenv(killSync) == "true")
	}
	os.Exit(m.Run())
}

// putAndDie puts records and kills the process right after the last put was acknowledged.
func putAndDie(folder string, isSynced bool) {
	opened, err := store.Open(folder, engine())
	if err != nil {
		panic(err)
	}
	puts, options := killPuts, pebble.NoSync
	if isSynced {
		puts, options = 20, pebble.Sync
	}
	for i := range puts {
		if err := opened.DB.Set(fmt.Appendf(nil, "%08d", i), make([]byte, 100), options); err != nil {
			panic(err)
		}
	}
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}

// survivors puts records in another process that is killed, and returns how many are left.
func survivors(t *testing.T, isSynced bool) int {
	t.Helper()
	folder := t.TempDir()
	child := exec.Command(os.Args[0])
	child.Env = append(os.Environ(), killFolder+"="+folder, killSync+"="+strconv.FormatBool(isSynced))
	if output, err := child.CombinedOutput(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Fatalf("%v: %s", err, output)
	}
	opened, err := store.Open(folder, engine())
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	lines := strings.Split(strings.TrimSpace(dump(t, opened)), "\n")
	lines = slices.DeleteFunc(lines, func(line string) bool { return line == "" })
	for i, line := range lines {
		if !strings.HasPrefix(line, fmt.Sprintf("%08d=", i)) {
			t.Fatalf("there is a hole at record %d: %.20s", i, line)
		}
	}
	return len(lines)
}

// An unsynced put of Pebble may be lost at kill -9, because another goroutine writes the log. So the
// record says "memory". Nothing is asserted about how many are lost.
func TestAKillLosesTheLastUnsyncedPutsAndNoSyncedOne(t *testing.T) {
	if got := survivors(t, true); got != 20 {
		t.Errorf("%d of 20 synced puts survived", got)
	}
	for range 5 {
		got := survivors(t, false)
		t.Logf("%d of %d unsynced puts survived kill -9", got, killPuts)
	}
}

// drawn returns the keys that are read or written, in order, by the draws of a workload.
func drawn(workload string, operationSeed uint64) []uint64 {
	pick := generate.NewUniform(generate.SeedOfOperations(1, operationSeed, workload), 0, 1)
	records := make([]uint64, 100)
	for i := range records {
		records[i] = pick.Next(1_000_000)
	}
	return records
}

func TestNoWorkloadAndNoRoundRepeatsTheDrawsOfAnother(t *testing.T) {
	all := [][]uint64{drawn("fillrandom", 1), drawn("readrandom", 1), drawn("readrandom", 2),
		drawn("overwrite", 1)}
	for i, a := range all {
		for _, b := range all[:i] {
			if slices.Equal(a, b) {
				t.Errorf("draws %d repeat others", i)
			}
		}
	}
}

func TestWhatOverwritesDiffersFromWhatWasThere(t *testing.T) {
	folder := t.TempDir()
	var before []string
	for _, workload := range []string{"fillseq", "overwrite", "open"} {
		bench(t, folder, "--workload", workload, "--records", "1000")
		opened, err := store.Open(filepath.Join(folder, "pebble"), engine())
		if err != nil {
			t.Fatal(err)
		}
		after := strings.Split(strings.TrimSpace(dump(t, opened)), "\n")
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		changed := 0
		for i := range before {
			if before[i] != after[i] {
				changed++
			}
		}
		// With replacement, 63% of the records are drawn, and each of them changes.
		if before != nil && changed < 550 {
			t.Errorf("%s changed %d of 1000 records", workload, changed)
		}
		before = after
	}
	content, err := os.ReadFile(filepath.Join(folder, "pebble.population"))
	if err != nil {
		t.Fatal(err)
	}
	line, _, _ := bytes.Cut(content, []byte("\n"))
	if !strings.Contains(string(line), `"workloads":["fillseq","overwrite","open"]`) {
		t.Errorf("header %s", line)
	}
}

func TestTheWriterBesideReadsKeepsToItsRate(t *testing.T) {
	folder := t.TempDir()
	bench(t, folder, "--workload", "fillseq", "--records", "1000")
	records := bench(t, folder, "--workload", "readwhilewriting", "--records", "1000", "--seconds", "0.3",
		"--write-rate", "100")
	if writes := number(t, records[0], "beside_operations"); writes < 1 || writes > 30 {
		t.Errorf("%v writes in 0.3 s at 100 a second", writes)
	}
	if number(t, records[0], "beside_ops_per_s") <= 0 {
		t.Error("the achieved rate is missing")
	}
}

func TestAnOpenSaysWhenTheFirstReadWasAnswered(t *testing.T) {
	folder := t.TempDir()
	records := bench(t, folder, "--workload", "fillrandom,open,readseq", "--records", "1000")
	open := records[1]
	read := number(t, open, "open", "until_first_read_s")
	if last := number(t, open, "until_last_s"); read < last {
		t.Errorf("a read after %v s, and the open took %v s", read, last)
	}
	if number(t, open, "open", "log_bytes") < 1<<19 {
		t.Error("the log is too short")
	}
	if number(t, records[2], "operations") != number(t, open, "disk", "records") {
		t.Error("records of the log are not known")
	}
}

func TestFoldersBesideTheStoreAreDeletedOnlyIfABenchmarkMadeThem(t *testing.T) {
	folder := t.TempDir()
	bench(t, folder, "--workload", "fillseq", "--records", "1000")
	precious := filepath.Join(folder, "pebble.opened", "precious")
	if err := os.Mkdir(filepath.Dir(precious), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(precious, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	code, _, failures := try(folder, "--workload", "open", "--records", "1000")
	if code != exitFailure || !strings.Contains(failures, "files that no benchmark made") {
		t.Errorf("code %d, %s", code, failures)
	}
	if _, err := os.Stat(precious); err != nil {
		t.Error(err)
	}
}

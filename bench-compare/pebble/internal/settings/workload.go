package settings

import (
	"fmt"
	"strings"
)

// Workload says what a run does. The names are those of db_bench.
type Workload string

// The workloads.
const (
	FillSeq                Workload = "fillseq"
	FillRandom             Workload = "fillrandom"
	FillSync               Workload = "fillsync"
	FillBatch              Workload = "fillbatch"
	Overwrite              Workload = "overwrite"
	ReadRandom             Workload = "readrandom"
	ReadMissing            Workload = "readmissing"
	ReadSeq                Workload = "readseq"
	ReadReverse            Workload = "readreverse"
	SeekRandom             Workload = "seekrandom"
	MultiReadRandom        Workload = "multireadrandom"
	ReadWhileWriting       Workload = "readwhilewriting"
	SeekRandomWhileWriting Workload = "seekrandomwhilewriting"
	ReadRandomWriteRandom  Workload = "readrandomwriterandom"
	DeleteRandom           Workload = "deleterandom"
	Compact                Workload = "compact"
	Open                   Workload = "open"
	YcsbLoad               Workload = "ycsb-load"
	YcsbA                  Workload = "ycsb-a"
	YcsbB                  Workload = "ycsb-b"
	YcsbC                  Workload = "ycsb-c"
	YcsbD                  Workload = "ycsb-d"
	YcsbE                  Workload = "ycsb-e"
	YcsbF                  Workload = "ycsb-f"
)

// facts of a workload. They follow crates/bench/src/settings/facts.rs.
type facts struct {
	about string
	// makesStore: it begins with an empty store.
	makesStore bool
	// writes: it changes what is in the store.
	writes bool
	// inserts: it adds new records to a filled store.
	inserts bool
	// besideWriter: one more thread overwrites while the others read.
	besideWriter bool
	// drawsRecords: a distribution may be given.
	drawsRecords bool
	// everyRecord: "every record once" is an amount of it.
	everyRecord bool
	// amount if nothing else is said, for a number of records.
	amount func(records uint64) Amount
}

// Workloads are all workloads, in the order in which the help lists them.
var Workloads = []Workload{
	FillSeq, FillRandom, FillSync, FillBatch, Overwrite, ReadRandom, ReadMissing, ReadSeq,
	ReadReverse, SeekRandom, MultiReadRandom, ReadWhileWriting, SeekRandomWhileWriting,
	ReadRandomWriteRandom, DeleteRandom, Compact, Open, YcsbLoad, YcsbA, YcsbB, YcsbC, YcsbD, YcsbE,
	YcsbF,
}

const defaultSeconds = 10

func everyRecord(uint64) Amount        { return Amount{EveryRecord: true} }
func allRecords(records uint64) Amount { return Amount{Operations: records} }
func tenSeconds(uint64) Amount         { return Amount{Seconds: defaultSeconds} }
func one(uint64) Amount                { return Amount{Operations: 1} }

var allFacts = map[Workload]facts{
	FillSeq: {about: "puts every record once, in the order of keys",
		makesStore: true, writes: true, everyRecord: true, amount: everyRecord},
	FillRandom: {about: "puts records that are drawn at random, as many as there are",
		makesStore: true, writes: true, drawsRecords: true, everyRecord: true, amount: allRecords},
	FillSync: {about: "as fillrandom, and each put waits until it is durable",
		makesStore: true, writes: true, drawsRecords: true, everyRecord: true, amount: tenSeconds},
	FillBatch: {about: "as fillrandom, in batches",
		makesStore: true, writes: true, drawsRecords: true, everyRecord: true, amount: allRecords},
	Overwrite: {about: "as fillrandom, on a store that was filled",
		writes: true, drawsRecords: true, everyRecord: true, amount: allRecords},
	ReadRandom: {about: "reads random records that are in the store",
		drawsRecords: true, everyRecord: true, amount: tenSeconds},
	ReadMissing: {about: "reads keys that are not in the store and lie between those that are",
		drawsRecords: true, everyRecord: true, amount: tenSeconds},
	ReadSeq: {about: "reads the whole store in the order of keys",
		everyRecord: true, amount: everyRecord},
	ReadReverse: {about: "reads the whole store backward",
		everyRecord: true, amount: everyRecord},
	SeekRandom: {about: "seeks random records with a new iterator and reads the next entries",
		drawsRecords: true, amount: tenSeconds},
	MultiReadRandom: {about: "reads --batch random records; for Pebble a loop of gets",
		drawsRecords: true, amount: tenSeconds},
	ReadWhileWriting: {about: "reads random records while one more thread overwrites",
		writes: true, besideWriter: true, drawsRecords: true, amount: tenSeconds},
	SeekRandomWhileWriting: {about: "seeks while one more thread overwrites",
		writes: true, besideWriter: true, drawsRecords: true, amount: tenSeconds},
	ReadRandomWriteRandom: {about: "reads and overwrites random records in the ratio --read-ratio",
		writes: true, drawsRecords: true, amount: tenSeconds},
	DeleteRandom: {about: "deletes random records",
		writes: true, drawsRecords: true, everyRecord: true, amount: allRecords},
	Compact: {about: "compacts the whole store", amount: one},
	Open:    {about: "opens the store with a log of about one memtable that is replayed", writes: true, amount: one},
	YcsbLoad: {about: "puts every record once, with the keys of YCSB",
		makesStore: true, writes: true, everyRecord: true, amount: everyRecord},
	YcsbA: {about: "YCSB A: half reads, half updates",
		writes: true, drawsRecords: true, amount: allRecords},
	YcsbB: {about: "YCSB B: 95% reads, 5% updates",
		writes: true, drawsRecords: true, amount: allRecords},
	YcsbC: {about: "YCSB C: reads", drawsRecords: true, amount: allRecords},
	YcsbD: {about: "YCSB D: 95% reads of the newest records, 5% inserts",
		writes: true, inserts: true, drawsRecords: true, amount: allRecords},
	YcsbE: {about: "YCSB E: 95% scans of up to 100 entries, 5% inserts",
		writes: true, inserts: true, drawsRecords: true, amount: allRecords},
	YcsbF: {about: "YCSB F: half reads, half reads with an update of what was read",
		writes: true, drawsRecords: true, amount: allRecords},
}

// About describes the workload in half a sentence.
func (w Workload) About() string { return allFacts[w].about }

// MakesStore says whether the workload begins with an empty store.
func (w Workload) MakesStore() bool { return allFacts[w].makesStore }

// Writes says whether the workload changes what is in the store.
func (w Workload) Writes() bool { return allFacts[w].writes }

// HasBesideWriter says whether one more thread writes while the threads of the workload read.
func (w Workload) HasBesideWriter() bool { return allFacts[w].besideWriter }

// DrawsRecords says whether records are drawn.
func (w Workload) DrawsRecords() bool { return allFacts[w].drawsRecords }

// Inserts says whether the workload adds new records to a filled store.
func (w Workload) Inserts() bool { return allFacts[w].inserts }

// IsYcsb says whether this is YCSB's load or one of its core workloads, whose keys are hashes.
func (w Workload) IsYcsb() bool { return strings.HasPrefix(string(w), "ycsb-") }

// HasSingleOperations says whether the workload is a number of operations that can start one by one.
// The others do one long thing, for which there is no rate.
func (w Workload) HasSingleOperations() bool {
	return !w.HasSingleThread() && w != ReadSeq && w != ReadReverse
}

// distribution is how records are drawn if nothing else is said.
func (w Workload) distribution() Distribution {
	switch {
	case w == YcsbD:
		return Latest
	case w.IsYcsb() && w.DrawsRecords():
		return Zipfian
	case w.DrawsRecords():
		return Uniform
	}
	return Sequential
}

// HasSingleThread says whether the workload does one long thing.
func (w Workload) HasSingleThread() bool {
	return w == Compact || w == Open
}

func parseWorkloads(text string) ([]Workload, error) {
	var all []Workload
	for name := range strings.SplitSeq(text, ",") {
		workload := Workload(strings.TrimSpace(name))
		if _, ok := allFacts[workload]; !ok {
			return nil, fmt.Errorf("--workload: `%s` is not a workload of this program; "+
				"it has %s", name, workloadNames())
		}
		all = append(all, workload)
	}
	return all, nil
}

func workloadNames() string {
	names := make([]string, len(Workloads))
	for i, workload := range Workloads {
		names[i] = string(workload)
	}
	return strings.Join(names, ", ")
}

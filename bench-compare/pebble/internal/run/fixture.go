package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"

	"siltstone/bench-compare/pebble/internal/generate"
	"siltstone/bench-compare/pebble/internal/settings"
	"siltstone/bench-compare/pebble/internal/store"
)

// header of the file beside a store that says which records it has: what decides the keys, the values
// and the files. The bits of the population follow it.
type header struct {
	Format           string  `json:"format"`
	Records          uint64  `json:"records"`
	KeyBytes         int     `json:"key_bytes"`
	HashedKeys       bool    `json:"hashed_keys"`
	ValueBytes       int     `json:"value_bytes"`
	CompressionRatio float64 `json:"compression_ratio"`
	Seed             uint64  `json:"seed"`
	EngineVersion    string  `json:"engine_version"`
	// Shape has the settings of the engine that decide what its files look like.
	Shape map[string]string `json:"shape"`
	// Workloads are those that have written to the store, in their order.
	Workloads []string `json:"workloads"`
	// End: all records have lower numbers. Workloads that insert begin here.
	End uint64 `json:"end"`
}

const populationFormat = "siltstone pebble-bench population 3"

func headerOf(s *settings.Settings) header {
	return header{
		Format:           populationFormat,
		Records:          s.Records,
		KeyBytes:         s.KeyBytes,
		HashedKeys:       s.Workload.IsYcsb(),
		ValueBytes:       s.ValueBytes,
		CompressionRatio: s.CompressionRatio,
		Seed:             s.Seed,
		EngineVersion:    store.Version(),
		Shape:            s.Engine.Shape(),
	}
}

// isFor says whether a store with this header can be used by a run with another one.
func (h header) isFor(asked header) bool {
	h.Workloads, asked.Workloads = nil, nil
	h.End, asked.End = 0, 0
	return reflect.DeepEqual(h, asked)
}

// fixture is an open store with the records that it has. A fill makes the store in FOLDER/pebble and
// writes FOLDER/pebble.population when it ends. While a workload writes, that file is missing, so a
// run that was cut off leaves a store that no later run takes for a known one.
type fixture struct {
	settings   *settings.Settings
	folder     string
	store      *store.Store
	population *Population
	// end: all records that the store had at the start have lower numbers.
	end uint64
	// workloads have written to the store before this one.
	workloads []string
}

func (f *fixture) populationFile() string { return f.folder + ".population" }

// generation is how many workloads have written to the store before this one.
func (f *fixture) generation() int { return len(f.workloads) }

// prepare makes an empty store, or opens the one that a fill left, as the workload needs it.
func prepare(s *settings.Settings) (*fixture, error) {
	f := &fixture{settings: s, folder: filepath.Join(s.Folder, "pebble")}
	if s.Workload.MakesStore() {
		return f, f.create()
	}
	return f, f.existing()
}

// create makes an empty store. One that a benchmark made before is deleted; anything else is refused.
func (f *fixture) create() error {
	if err := clearFolder(f.folder); err != nil {
		return err
	}
	if err := f.beginWriting(); err != nil {
		return err
	}
	if err := os.MkdirAll(f.folder, 0o755); err != nil {
		return err
	}
	f.population = NewPopulation(f.settings.Records)
	return f.open()
}

// marker lies beside every folder that a benchmark made.
func marker(folder string) string { return folder + ".bench" }

// clearFolder deletes a folder that a benchmark made, and marks it as one that it will make. A folder
// with anything else in it is refused.
func clearFolder(folder string) error {
	entries, err := os.ReadDir(folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(marker(folder)); len(entries) > 0 && err != nil {
		return fmt.Errorf("%s: the folder has files that no benchmark made, and the run would delete "+
			"them; give another --folder", folder)
	}
	if err := os.RemoveAll(folder); err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(folder), 0o755); err != nil {
		return err
	}
	text := "The folder of this name was made by a benchmark, which may delete it.\n"
	return os.WriteFile(marker(folder), []byte(text), 0o644)
}

// existing opens the store that a fill left.
func (f *fixture) existing() error {
	content, err := os.ReadFile(f.populationFile())
	if err != nil {
		return fmt.Errorf("%s: `%s` needs a store that a fill has made, and %s cannot be read (%w); "+
			"run fillrandom or fillseq first, with the same settings",
			f.folder, f.settings.Workload, f.populationFile(), err)
	}
	damaged := fmt.Errorf("%s is damaged; fill the store again", f.populationFile())
	line, bits, ok := bytes.Cut(content, []byte("\n"))
	var made header
	if !ok || json.Unmarshal(line, &made) != nil || made.Format != populationFormat {
		return damaged
	}
	if asked := headerOf(f.settings); !made.isFor(asked) {
		return fmt.Errorf("%s: the store was filled with other settings (%+v) than those of this run "+
			"(%+v); give the same, or fill the store again", f.folder, made, asked)
	}
	f.workloads = made.Workloads
	f.end = made.End
	room := max(made.Records, f.end+f.insertsMax())
	if f.population, err = decodePopulation(bits, f.end, room); err != nil {
		return fmt.Errorf("%w (%w)", damaged, err)
	}
	return f.open()
}

// insertedPerSecond is more than any store inserts: 5% of the operations insert.
const insertedPerSecond = 1_000_000

// insertsMax is the most records that a run may insert.
func (f *fixture) insertsMax() uint64 {
	s := f.settings
	if !s.Workload.Inserts() {
		return 0
	}
	if total, ok := s.TotalOperations(); ok {
		return total
	}
	return min(uint64(s.Amount.Seconds+1)*insertedPerSecond, 1<<32)
}

func (f *fixture) open() (err error) {
	f.store, err = store.Open(f.folder, f.settings.Engine)
	return err
}

func (f *fixture) close() error {
	if f.store == nil {
		return nil
	}
	opened := f.store
	f.store = nil
	return opened.Close()
}

// beginWriting is called before a workload writes: until save, nobody knows what the store has.
func (f *fixture) beginWriting() error {
	if err := os.Remove(f.populationFile()); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return nil
}

// save writes which records the store has.
func (f *fixture) save() error {
	f.workloads = append(f.workloads, string(f.settings.Workload))
	header := headerOf(f.settings)
	header.Workloads, header.End = f.workloads, f.population.End()
	line, err := json.Marshal(header)
	if err != nil {
		return err
	}
	bits, err := f.population.encode()
	if err != nil {
		return err
	}
	fresh := f.populationFile() + ".new"
	if err := os.WriteFile(fresh, append(append(line, '\n'), bits...), 0o644); err != nil {
		return err
	}
	return os.Rename(fresh, f.populationFile())
}

// liveBytes are the raw bytes of the keys and values of all records.
func (f *fixture) liveBytes(keys generate.Keys) uint64 {
	count := f.population.Count()
	values := count * uint64(f.settings.ValueBytes)
	if keys.IsOrdered() {
		return values + count*uint64(keys.Bytes())
	}
	var key []byte
	for record, ok := f.population.NextFrom(0); ok; record, ok = f.population.NextFrom(record + 1) {
		key = keys.Present(record, key)
		values += uint64(len(key))
	}
	return values
}

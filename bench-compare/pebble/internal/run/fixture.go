package run

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"siltstone/bench-compare/pebble/internal/settings"
	"siltstone/bench-compare/pebble/internal/store"
)

// header of the file beside a store that says which records it has: what decides the keys and values.
// The bits of the population follow it.
type header struct {
	Format           string  `json:"format"`
	Records          uint64  `json:"records"`
	KeyBytes         int     `json:"key_bytes"`
	ValueBytes       int     `json:"value_bytes"`
	CompressionRatio float64 `json:"compression_ratio"`
	Seed             uint64  `json:"seed"`
}

const populationFormat = "siltstone pebble-bench population 1"

func headerOf(s *settings.Settings) header {
	return header{populationFormat, s.Records, s.KeyBytes, s.ValueBytes, s.CompressionRatio, s.Seed}
}

// fixture is an open store with the records that it has. A fill makes the store in FOLDER/pebble and
// writes FOLDER/pebble.population when it ends. While a workload writes, that file is missing, so a
// run that was cut off leaves a store that no later run takes for a known one.
type fixture struct {
	settings   *settings.Settings
	folder     string
	store      *store.Store
	population *Population
}

func (f *fixture) populationFile() string { return f.folder + ".population" }
func (f *fixture) marker() string         { return f.folder + ".bench" }

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
	entries, err := os.ReadDir(f.folder)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if _, err := os.Stat(f.marker()); len(entries) > 0 && err != nil {
		return fmt.Errorf("%s: the folder has files that no benchmark made, and a fill begins with an "+
			"empty store; give another --folder", f.folder)
	}
	if err := f.beginWriting(); err != nil {
		return err
	}
	if err := os.RemoveAll(f.folder); err != nil {
		return err
	}
	if err := os.MkdirAll(f.folder, 0o755); err != nil {
		return err
	}
	text := "This store was made by a benchmark, which may delete it.\n"
	if err := os.WriteFile(f.marker(), []byte(text), 0o644); err != nil {
		return err
	}
	f.population = NewPopulation(f.settings.Records)
	return f.open()
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
	if asked := headerOf(f.settings); made != asked {
		return fmt.Errorf("%s: the store was filled with other settings (%+v) than those of this run "+
			"(%+v); give the same, or fill the store again", f.folder, made, asked)
	}
	if f.population, err = decodePopulation(bits, made.Records); err != nil {
		return fmt.Errorf("%w (%w)", damaged, err)
	}
	return f.open()
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
	line, err := json.Marshal(headerOf(f.settings))
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
func (f *fixture) liveBytes() uint64 {
	return f.population.Count() * uint64(f.settings.KeyBytes+f.settings.ValueBytes)
}

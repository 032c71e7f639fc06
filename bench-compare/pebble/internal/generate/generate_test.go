package generate

import (
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"testing"
)

// vectors is testdata/generators.json.
type vectors struct {
	Random []struct {
		Seed   uint64   `json:"seed,string"`
		Thread int      `json:"thread"`
		Lane   *int     `json:"lane"`
		Bits   []string `json:"bits"`
		Below  []struct {
			N     uint64 `json:"n,string"`
			Drawn uint64 `json:"drawn,string"`
		} `json:"below"`
		UnitBits uint64 `json:"unit_bits,string"`
		Fill     string `json:"fill_3_and_26"`
	} `json:"random"`
	Keys []struct {
		Bytes   int    `json:"bytes"`
		Record  uint64 `json:"record,string"`
		Present string `json:"present"`
		Absent  string `json:"absent"`
	} `json:"keys"`
	Values []struct {
		Bytes    int     `json:"bytes"`
		Ratio    float64 `json:"ratio"`
		Seed     uint64  `json:"seed,string"`
		Record   uint64  `json:"record,string"`
		Version  uint64  `json:"version,string"`
		Checksum uint64  `json:"checksum,string"`
		Value    *string `json:"value"`
	} `json:"values"`
	Permutations []struct {
		N     uint64   `json:"n,string"`
		Seed  uint64   `json:"seed,string"`
		First []string `json:"first"`
	} `json:"permutations"`
	OperationSeeds []struct {
		Seed          uint64 `json:"seed,string"`
		OperationSeed uint64 `json:"operation_seed,string"`
		Workload      string `json:"workload"`
		Mixed         uint64 `json:"mixed,string"`
	} `json:"operation_seeds"`
	Picks []struct {
		Distribution string   `json:"distribution"`
		Seed         uint64   `json:"seed,string"`
		Thread       int      `json:"thread"`
		Threads      int      `json:"threads"`
		Lane         int      `json:"lane"`
		Items        uint64   `json:"items,string"`
		Drawn        []string `json:"drawn"`
	} `json:"picks"`
	YcsbKeys []struct {
		Record  uint64 `json:"record,string"`
		Present string `json:"present"`
	} `json:"ycsb_keys"`
	SkewedPicks []struct {
		Distribution    string   `json:"distribution"`
		ExpectedRecords uint64   `json:"expected_records,string"`
		Seed            uint64   `json:"seed,string"`
		Thread          int      `json:"thread"`
		Lane            int      `json:"lane"`
		Items           uint64   `json:"items,string"`
		Count           uint64   `json:"count"`
		First           []string `json:"first"`
		Checksum        uint64   `json:"checksum,string"`
	} `json:"skewed_picks"`
	Arrivals []struct {
		PerSecond   float64  `json:"per_second"`
		Thread      int      `json:"thread"`
		Threads     int      `json:"threads"`
		Step        int      `json:"step"`
		Nanoseconds []string `json:"nanoseconds"`
	} `json:"arrivals"`
}

func readVectors(t *testing.T) vectors {
	t.Helper()
	bytes, err := os.ReadFile("../../testdata/generators.json")
	if err != nil {
		t.Fatal(err)
	}
	var v vectors
	if err := json.Unmarshal(bytes, &v); err != nil {
		t.Fatal(err)
	}
	if len(v.Random) == 0 || len(v.Keys) == 0 || len(v.Values) == 0 ||
		len(v.Permutations) == 0 || len(v.Picks) == 0 || len(v.OperationSeeds) == 0 ||
		len(v.YcsbKeys) == 0 || len(v.SkewedPicks) == 0 || len(v.Arrivals) == 0 {
		t.Fatal("a list of vectors is empty")
	}
	return v
}

// draw returns numbers as the texts of the vectors.
func draw(count int, next func(i int) uint64) []string {
	texts := make([]string, count)
	for i := range texts {
		bytes, _ := json.Marshal(next(i))
		texts[i] = string(bytes)
	}
	return texts
}

func TestRandomNumbersAreThoseOfTheRustHarness(t *testing.T) {
	for _, v := range readVectors(t).Random {
		r := NewRandom(v.Seed, v.Thread)
		if v.Lane != nil {
			r = r.Lane(*v.Lane)
		}
		if got := draw(len(v.Bits), func(int) uint64 { return r.Bits() }); !slices.Equal(got, v.Bits) {
			t.Errorf("seed %d, thread %d: bits %v, want %v", v.Seed, v.Thread, got, v.Bits)
		}
		for _, below := range v.Below {
			if got := r.Below(below.N); got != below.Drawn {
				t.Errorf("below %d: %d, want %d", below.N, got, below.Drawn)
			}
		}
		if got := math.Float64bits(r.Unit()); got != v.UnitBits {
			t.Errorf("unit %x, want %x", got, v.UnitBits)
		}
		bytes := make([]byte, 29)
		r.Fill(bytes[:3])
		r.Fill(bytes[3:])
		if got := hex.EncodeToString(bytes); got != v.Fill {
			t.Errorf("fill %s, want %s", got, v.Fill)
		}
	}
}

func TestSeedsOfOperationsAreThoseOfTheRustHarness(t *testing.T) {
	for _, v := range readVectors(t).OperationSeeds {
		if got := SeedOfOperations(v.Seed, v.OperationSeed, v.Workload); got != v.Mixed {
			t.Errorf("%d, %d, %q: %d, want %d", v.Seed, v.OperationSeed, v.Workload, got, v.Mixed)
		}
	}
}

func TestKeysAreThoseOfTheRustHarness(t *testing.T) {
	for _, v := range readVectors(t).Keys {
		keys, err := NewKeys(v.Bytes, v.Record+1)
		if err != nil {
			t.Fatal(err)
		}
		if got := string(keys.Present(v.Record, nil)); got != v.Present {
			t.Errorf("present %s, want %s", got, v.Present)
		}
		if got := string(keys.Absent(v.Record, nil)); got != v.Absent {
			t.Errorf("absent %s, want %s", got, v.Absent)
		}
		if number, ok := keys.Number([]byte(v.Absent)); !ok || number != 2*v.Record+1 {
			t.Errorf("number %d of %s", number, v.Absent)
		}
	}
}

// checksum is that of the program that made the vectors.
func checksum(bytes []byte) uint64 {
	hash := uint64(len(bytes))
	for chunk := range slices.Chunk(bytes, 8) {
		var word [8]byte
		copy(word[:], chunk)
		hash = Mix(hash ^ binary.LittleEndian.Uint64(word[:]))
	}
	return hash
}

func TestValuesAreThoseOfTheRustHarness(t *testing.T) {
	for _, v := range readVectors(t).Values {
		values, err := NewValues(v.Bytes, v.Ratio, v.Seed)
		if err != nil {
			t.Fatal(err)
		}
		value := values.Write(v.Record, v.Version, nil)
		if got := checksum(value); got != v.Checksum {
			t.Errorf("%d bytes, ratio %v, record %d: checksum %d, want %d",
				v.Bytes, v.Ratio, v.Record, got, v.Checksum)
		}
		if v.Value != nil && hex.EncodeToString(value) != *v.Value {
			t.Errorf("value %x, want %s", value, *v.Value)
		}
		if err := values.Verify(v.Record, value); err != nil {
			t.Error(err)
		}
	}
}

func TestOrdersAndDrawsAreThoseOfTheRustHarness(t *testing.T) {
	all := readVectors(t)
	for _, v := range all.Permutations {
		order := NewPermutation(v.N, v.Seed)
		got := draw(len(v.First), func(i int) uint64 { return order.At(uint64(i)) })
		if !slices.Equal(got, v.First) {
			t.Errorf("permutation of %d: %v, want %v", v.N, got, v.First)
		}
	}
	for _, v := range all.Picks {
		var pick Pick
		switch v.Distribution {
		case "sequential":
			pick = NewSequential(v.Thread, v.Threads)
		case "uniform":
			pick = NewUniform(v.Seed, v.Thread, v.Lane)
		case "permutation":
			pick = NewPermuted(v.Seed, v.Thread, v.Threads, v.Lane)
		default:
			t.Fatalf("unknown distribution %q", v.Distribution)
		}
		got := draw(len(v.Drawn), func(int) uint64 { return pick.Next(v.Items) })
		if !slices.Equal(got, v.Drawn) {
			t.Errorf("%s, thread %d: %v, want %v", v.Distribution, v.Thread, got, v.Drawn)
		}
	}
}

func TestKeysOfYcsbAreThoseOfTheRustHarness(t *testing.T) {
	keys := NewHashedKeys()
	for _, v := range readVectors(t).YcsbKeys {
		if got := string(keys.Present(v.Record, nil)); got != v.Present || len(got) > keys.Bytes() {
			t.Errorf("key %s, want %s", got, v.Present)
		}
		if _, ok := keys.Number([]byte(v.Present)); ok || keys.IsOrdered() {
			t.Errorf("key %s has a number", v.Present)
		}
	}
}

func TestSkewedDrawsAreThoseOfTheRustHarness(t *testing.T) {
	for _, v := range readVectors(t).SkewedPicks {
		var pick Pick
		switch v.Distribution {
		case "scrambled_zipfian":
			pick = NewScrambledZipfian(v.Seed, v.Thread, v.Lane, v.ExpectedRecords)
		case "latest":
			pick = NewLatest(v.Seed, v.Thread, v.Lane)
		default:
			t.Fatalf("unknown distribution %q", v.Distribution)
		}
		var first []string
		var checksum uint64
		for draw := range v.Count {
			record := pick.Next(v.Items + draw/10)
			if len(first) < len(v.First) {
				first = append(first, fmt.Sprint(record))
			}
			checksum = Mix(checksum ^ record)
		}
		if !slices.Equal(first, v.First) || checksum != v.Checksum {
			t.Errorf("%s of %d: %v, want %v; checksum %d, want %d", v.Distribution, v.Items, first, v.First,
				checksum, v.Checksum)
		}
	}
}

func TestArrivalsAreThoseOfTheRustHarness(t *testing.T) {
	for _, v := range readVectors(t).Arrivals {
		arrivals := NewArrivals(v.PerSecond, v.Thread, v.Threads)
		got := make([]string, len(v.Nanoseconds))
		for i := range got {
			got[i] = fmt.Sprint(arrivals.Next())
			for range v.Step - 1 {
				arrivals.Next()
			}
		}
		if !slices.Equal(got, v.Nanoseconds) {
			t.Errorf("%v a second, thread %d of %d: %v, want %v", v.PerSecond, v.Thread, v.Threads, got,
				v.Nanoseconds)
		}
	}
}

func TestInsertsCountBelowTheFirstOneThatIsNotDone(t *testing.T) {
	counter := NewAcknowledged(100)
	a, b, c := counter.Begin(), counter.Begin(), counter.Begin()
	if a != 100 || b != 101 || c != 102 {
		t.Errorf("numbers %d, %d, %d", a, b, c)
	}
	for _, step := range [][2]uint64{{b, 100}, {a, 102}, {c, 103}} {
		counter.Complete(step[0])
		if got := counter.Count(); got != step[1] {
			t.Errorf("after insert %d: %d records, want %d", step[0], got, step[1])
		}
	}
}

func TestEveryChangedByteOfAValueIsFound(t *testing.T) {
	for _, size := range []int{1, 7, 8, 9, 100, 128, 70_000} {
		values, err := NewValues(size, 0.7, 5)
		if err != nil {
			t.Fatal(err)
		}
		value := values.Write(3, 9, nil)
		step := max(size/300, 1)
		for at := 0; at < size; at += step {
			value[at] ^= 0x40
			// A value of less than 8 bytes may become that of another of its 16 versions.
			if err := values.Verify(3, value); err == nil && size >= headerBytes {
				t.Errorf("size %d: a change at offset %d is not found", size, at)
			}
			value[at] ^= 0x40
		}
		if err := values.Verify(3, value); err != nil {
			t.Error(err)
		}
		if size >= headerBytes && values.Verify(4, value) == nil {
			t.Errorf("size %d: the value of another record is accepted", size)
		}
		if values.Verify(3, value[:size-1]) == nil && size > 1 {
			t.Errorf("size %d: a value that lacks a byte is accepted", size)
		}
	}
}

func TestTheIdentityOfAValueIsItsRecordAndVersion(t *testing.T) {
	values, err := NewValues(64, 1, 1)
	if err != nil {
		t.Fatal(err)
	}
	record, version, ok := values.Identity(values.Write(77, 1<<20+5, nil))
	if !ok || record != 77 || version != 5 {
		t.Errorf("record %d, version %d, %v", record, version, ok)
	}
}

func TestBadParametersAreRefused(t *testing.T) {
	_, err := NewKeys(8, 50_000_001)
	if err == nil || !strings.Contains(err.Error(), "at most 50000000 with keys of 8 bytes") {
		t.Error(err)
	}
	if _, err := NewKeys(7, 1); err == nil {
		t.Error("keys of 7 bytes are accepted")
	}
	for _, ratio := range []float64{0, -1, 1.1, math.NaN()} {
		if _, err := NewValues(100, ratio, 1); err == nil {
			t.Errorf("the ratio %v is accepted", ratio)
		}
	}
}

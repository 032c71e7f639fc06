package generate

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

const (
	versions      = 1 << 20
	smallVersions = 16
	headerBytes   = 8
	recordBits    = 44
	records       = 1 << recordBits
	poolBytes     = 1 << 16
	segmentBytes  = 256
	matchBytes    = 4.0
	maxValueBytes = 1 << 30
)

// Values makes values of one size in which every byte is a function of the record and of the version
// of the value, so that a reader can check them completely. The layout is described in
// crates/bench/src/generate/values.rs.
type Values struct {
	size      int
	pool      []byte
	headerKey uint64
}

// NewValues returns values of size bytes that compress to ratio of their size, which is above 0 and
// at most 1 (incompressible).
func NewValues(size int, ratio float64, seed uint64) (*Values, error) {
	if size < 0 || size > maxValueBytes {
		return nil, fmt.Errorf("value sizes: `max` is %d; it must be at most 2^30 bytes", size)
	}
	if !(ratio > 0 && ratio <= 1) {
		return nil, fmt.Errorf("values: `compression ratio` is %v; it must be above 0 and at most 1",
			ratio)
	}
	random := NewRandom(seed, 0)
	v := &Values{size: size, headerKey: random.Bits()}
	random.Bits() // The key of sizes that vary.
	v.pool = pool(randomShare(ratio, float64(size)), &random)
	return v, nil
}

// Bytes returns the size of a value.
func (v *Values) Bytes() int { return v.size }

// Write returns the value of a record, in buffer if it is large enough.
func (v *Values) Write(record, version uint64, buffer []byte) []byte {
	if cap(buffer) < max(v.size, headerBytes) {
		buffer = make([]byte, max(v.size, headerBytes))
	}
	buffer = buffer[:max(v.size, headerBytes)]
	if v.size < headerBytes {
		binary.LittleEndian.PutUint64(buffer, v.smallHash(record, version))
		return buffer[:v.size]
	}
	header := v.header(record, version)
	binary.LittleEndian.PutUint64(buffer, header)
	body := buffer[headerBytes:]
	start, key := windowOf(header), header
	for lap := uint64(1); len(body) > 0; lap++ {
		n := min(len(body), poolBytes-start)
		combine(body[:n], v.pool[start:start+n], key)
		body, start, key = body[n:], 0, Mix(header+lap)
	}
	return buffer
}

// Verify checks that value is the value of any version of a record, and reads every byte of it.
func (v *Values) Verify(record uint64, value []byte) error {
	if len(value) < headerBytes {
		return v.verifySmall(record, value)
	}
	header := binary.LittleEndian.Uint64(value)
	foundRecord, version := v.unpack(header)
	if foundRecord != record%records {
		return fmt.Errorf("the value of record %d has the header of record %d",
			record%records, foundRecord)
	}
	if len(value) != v.size {
		return fmt.Errorf("the value of record %d, version %d, has %d bytes; it should have %d bytes",
			record, version, len(value), v.size)
	}
	body := value[headerBytes:]
	start, key := windowOf(header), header
	for lap := uint64(1); len(body) > 0; lap++ {
		n := min(len(body), poolBytes-start)
		if !equal(body[:n], v.pool[start:start+n], key) {
			return v.difference(record, version, value)
		}
		body, start, key = body[n:], 0, Mix(header+lap)
	}
	return nil
}

// Identity returns the record modulo 2^44 and the version modulo 2^20 that a header names, and false
// for values of less than 8 bytes.
func (v *Values) Identity(value []byte) (record, version uint64, ok bool) {
	if len(value) < headerBytes {
		return 0, 0, false
	}
	record, version = v.unpack(binary.LittleEndian.Uint64(value))
	return record, version, true
}

// difference describes the first byte that differs. The header is right.
func (v *Values) difference(record, version uint64, value []byte) error {
	expected := v.Write(record, version, nil)
	for i := range value {
		if value[i] != expected[i] {
			return fmt.Errorf("the value of record %d, version %d, has the byte %#04x at offset %d; "+
				"it should be %#04x", record, version, value[i], i, expected[i])
		}
	}
	return nil
}

func (v *Values) verifySmall(record uint64, value []byte) error {
	if len(value) == v.size {
		var expected [headerBytes]byte
		for version := range uint64(smallVersions) {
			binary.LittleEndian.PutUint64(expected[:], v.smallHash(record, version))
			if bytes.Equal(expected[:v.size], value) {
				return nil
			}
		}
	}
	return fmt.Errorf("the %d bytes found for record %d are not a value of any of its versions",
		len(value), record)
}

func (v *Values) header(record, version uint64) uint64 {
	packed := version%versions<<recordBits | record%records
	return Mix(packed ^ v.headerKey)
}

func (v *Values) unpack(header uint64) (record, version uint64) {
	packed := unmix(header) ^ v.headerKey
	return packed % records, packed >> recordBits
}

func (v *Values) smallHash(record, version uint64) uint64 {
	return Mix(Mix(record^v.headerKey) + version%smallVersions)
}

// windowOf returns where in the pool the body of a value begins.
func windowOf(header uint64) int {
	return int(Mix(header) % (poolBytes / headerBytes) * headerBytes)
}

// combine sets each byte of to to that of from, combined with the key.
func combine(to, from []byte, key uint64) {
	from = from[:len(to)]
	for len(to) >= 8 && len(from) >= 8 {
		binary.LittleEndian.PutUint64(to, binary.LittleEndian.Uint64(from)^key)
		to, from = to[8:], from[8:]
	}
	for i := range to {
		to[i] = from[i] ^ byte(key>>(8*i))
	}
}

// equal returns whether each byte of found is that of from, combined with the key.
func equal(found, from []byte, key uint64) bool {
	from = from[:len(found)]
	var difference uint64
	for len(found) >= 8 && len(from) >= 8 {
		difference |= binary.LittleEndian.Uint64(found) ^ binary.LittleEndian.Uint64(from) ^ key
		found, from = found[8:], from[8:]
	}
	for i := range found {
		difference |= uint64(found[i] ^ from[i] ^ byte(key>>(8*i)))
	}
	return difference == 0
}

// randomShare returns the share of random bytes in the pool, so that values of this size compress to
// ratio. Products are converted so that they are not fused with an addition, which would change the
// last bit.
func randomShare(ratio, size float64) float64 {
	body := size - headerBytes
	if ratio >= 1 || body <= 0 {
		return 1
	}
	incompressible := float64(ratio*size) - headerBytes - matchBytes
	return min(max(incompressible/body-matchBytes/segmentBytes, 0), 1)
}

// pool returns segments of random bytes followed by zeros. The rounding of a segment is carried to
// the next.
func pool(share float64, random *Random) []byte {
	pool := make([]byte, poolBytes)
	owed := 0.0
	for at := 0; at < poolBytes; at += segmentBytes {
		owed += float64(share * segmentBytes)
		n := min(int(owed), segmentBytes)
		owed -= float64(n)
		random.Fill(pool[at : at+n])
	}
	return pool
}

package generate

import (
	"fmt"
	"math"
	"strconv"
)

// Keys makes keys of decimal digits, padded with zeros. Record i has the number 2*i, and 2*i+1 is
// the number of a key that no record has. Hashed keys are those of YCSB: `user` and the digits of the
// hash of the record.
type Keys struct {
	size     int
	isHashed bool
}

// prefix is what YCSB puts before the hash, and hashedBytes is the size of its largest key.
const (
	prefix      = "user"
	hashedBytes = len(prefix) + 19
)

// NewHashedKeys returns YCSB's keys.
func NewHashedKeys() Keys { return Keys{size: hashedBytes, isHashed: true} }

// IsOrdered says whether keys sort as their records do.
func (k Keys) IsOrdered() bool { return !k.isHashed }

// NewKeys returns keys of size bytes (from 8 to 1024) for at most this number of records.
func NewKeys(size int, records uint64) (Keys, error) {
	if size < 8 || size > 1024 {
		return Keys{}, fmt.Errorf("keys: `size` is %d; it must be from 8 to 1024 bytes", size)
	}
	capacity := uint64(1) << 63
	if size <= 19 {
		capacity = uint64(math.Pow10(size)) / 2
	}
	if records > capacity {
		return Keys{}, fmt.Errorf("keys: `records` is %d; it must be at most %d with keys of %d bytes",
			records, capacity, size)
	}
	return Keys{size: size}, nil
}

// Bytes returns the size of a key, or of the largest one.
func (k Keys) Bytes() int { return k.size }

// Present returns the key of a record, in buffer if it is large enough.
func (k Keys) Present(record uint64, buffer []byte) []byte {
	if k.isHashed {
		return strconv.AppendUint(append(buffer[:0], prefix...), ycsbHash(record), 10)
	}
	return k.write(record*2, buffer)
}

// Absent returns a key that no record has, next to the key of the record. No workload asks for one of
// hashed keys.
func (k Keys) Absent(record uint64, buffer []byte) []byte {
	return k.write(record*2+1, buffer)
}

func (k Keys) write(number uint64, buffer []byte) []byte {
	if cap(buffer) < k.size {
		buffer = make([]byte, k.size)
	}
	buffer = buffer[:k.size]
	for i := k.size - 1; i >= 0; i-- {
		buffer[i] = byte('0' + number%10)
		number /= 10
	}
	return buffer
}

// Number returns the number of a key, and false if this is not a key of the form. Hashed keys have no
// numbers.
func (k Keys) Number(key []byte) (uint64, bool) {
	if k.isHashed || len(key) != k.size {
		return 0, false
	}
	var number uint64
	for _, digit := range key {
		if digit < '0' || digit > '9' {
			return 0, false
		}
		if number > (math.MaxUint64-uint64(digit-'0'))/10 {
			return 0, false
		}
		number = number*10 + uint64(digit-'0')
	}
	return number, true
}

// Package generate makes the random numbers, keys and values of the workloads.
//
// It is a port of crates/bench/src/generate of the Rust harness, bit for bit, so both programs do
// the same operations on the same data. testdata/generators.json holds outputs that tests of both
// programs compare.
//
// Threading: a Random and a Pick belong to one goroutine. Keys, Values and Permutation are immutable
// and shared.
package generate

import (
	"encoding/binary"
	"math/bits"
)

// Random is a stream of random numbers: xoshiro256++.
type Random struct {
	s [4]uint64
}

// NewRandom returns the stream of one thread of a run. Thread t starts t jumps of 2^128 numbers
// after the seed.
func NewRandom(seed uint64, thread int) Random {
	var r Random
	for i := range r.s {
		seed += 0x9e37_79b9_7f4a_7c15
		r.s[i] = Mix(seed)
	}
	for range thread {
		r.jump(&jumpWords)
	}
	return r
}

// SeedOfOperations returns the seed of what a workload draws. It depends on the seed of keys and values,
// on the seed of operations, and on the name of the workload, so no workload repeats the draws of
// another one, nor those of another round of itself.
func SeedOfOperations(seed, operationSeed uint64, workload string) uint64 {
	hash := Mix(seed)
	for _, word := range []byte(workload) {
		hash = Mix(hash + golden ^ uint64(word))
	}
	return Mix(hash + golden ^ operationSeed)
}

// golden is 2^64 divided by the golden ratio.
const golden = 0x9e37_79b9_7f4a_7c15

// Lane returns a stream of the same thread for another purpose. Ask a stream from which nothing has
// been drawn.
func (r Random) Lane(lane int) Random {
	for range lane + 1 {
		r.jump(&longJumpWords)
	}
	return r
}

// Bits returns 64 random bits.
func (r *Random) Bits() uint64 {
	s := &r.s
	result := bits.RotateLeft64(s[0]+s[3], 23) + s[0]
	t := s[1] << 17
	s[2] ^= s[0]
	s[3] ^= s[1]
	s[1] ^= s[2]
	s[0] ^= s[3]
	s[2] ^= t
	s[3] = bits.RotateLeft64(s[3], 45)
	return result
}

// Below returns a number below n, each with exactly the same probability. It is 0 if n is 0.
func (r *Random) Below(n uint64) uint64 {
	high, low := bits.Mul64(r.Bits(), n)
	if low < n {
		firstUnbiased := -n % n
		for low < firstUnbiased {
			high, low = bits.Mul64(r.Bits(), n)
		}
	}
	return high
}

// Unit returns a number of [0, 1), a multiple of 2^-53.
func (r *Random) Unit() float64 {
	return float64(r.Bits()>>11) * (1.0 / (1 << 53))
}

// Chance returns true with this probability.
func (r *Random) Chance(probability float64) bool {
	return r.Unit() < probability
}

// Fill fills bytes with random bytes.
func (r *Random) Fill(bytes []byte) {
	for len(bytes) >= 8 {
		binary.LittleEndian.PutUint64(bytes, r.Bits())
		bytes = bytes[8:]
	}
	if len(bytes) > 0 {
		var word [8]byte
		binary.LittleEndian.PutUint64(word[:], r.Bits())
		copy(bytes, word[:])
	}
}

var jumpWords = [4]uint64{
	0x180ec6d33cfd0aba, 0xd5a61266f0c9392c, 0xa9582618e03fc9aa, 0x39abdc4529b1661c,
}

var longJumpWords = [4]uint64{
	0x76e15d3efefdcbbf, 0xc5004e441c522fb3, 0x77710069854ee241, 0x39109bb02acbe635,
}

func (r *Random) jump(words *[4]uint64) {
	var sum [4]uint64
	for _, word := range words {
		for bit := range 64 {
			if word&(1<<bit) != 0 {
				for i := range sum {
					sum[i] ^= r.s[i]
				}
			}
			r.Bits()
		}
	}
	r.s = sum
}

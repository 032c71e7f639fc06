package generate

import "math/bits"

const (
	multiplier1 = 0xbf58_476d_1ce4_e5b9
	multiplier2 = 0x94d0_49bb_1331_11eb
)

var (
	inverse1 = inverse(multiplier1)
	inverse2 = inverse(multiplier2)
)

// Mix is a bijection of all 64-bit numbers whose results look random: the last step of splitmix64.
func Mix(x uint64) uint64 {
	x = (x ^ (x >> 30)) * multiplier1
	x = (x ^ (x >> 27)) * multiplier2
	return x ^ (x >> 31)
}

// unmix returns the number whose Mix is x.
func unmix(x uint64) uint64 {
	x ^= (x >> 31) ^ (x >> 62)
	x *= inverse2
	x ^= (x >> 27) ^ (x >> 54)
	x *= inverse1
	return x ^ (x >> 30) ^ (x >> 60)
}

// inverse returns the inverse of an odd number modulo 2^64, by Newton's method.
func inverse(odd uint64) uint64 {
	guess := odd
	for range 5 {
		guess *= 2 - odd*guess
	}
	return guess
}

// fold is a hash of x with a key: the two halves of a product of 128 bits, folded.
func fold(x, key uint64) uint64 {
	high, low := bits.Mul64(x^key, 0x9e37_79b9_7f4a_7c15)
	return high ^ low
}

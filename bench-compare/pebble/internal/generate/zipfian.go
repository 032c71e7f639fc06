package generate

import "math"

// Theta is the skew of YCSB's workloads, and the only one that this package has: the powers of the
// formula are computed with an exponent near a whole number.
const Theta = 0.99

// zipfian draws ranks below a number of items, of which rank 0 is the most frequent one. The formulas
// are described in crates/bench/src/generate/zipfian.rs.
type zipfian struct {
	sums                   *zeta
	items                  uint64
	zeta, eta              float64
	alpha                  float64
	zetaOfTwo, powerOfTwo  float64
	alphaWhole, alphaShare float64
}

func newZipfian() zipfian {
	sums := newZeta()
	zetaOfTwo, powerOfTwo := sums.of(2)
	z := zipfian{sums: sums, alpha: 1 / (1 - theta), zetaOfTwo: zetaOfTwo, powerOfTwo: powerOfTwo}
	z.alphaWhole = math.Round(z.alpha)
	z.alphaShare = z.alpha - z.alphaWhole
	z.resize(1)
	return z
}

// theta is a variable, so that arithmetic with it is that of float64 and not that of constants.
var theta = Theta

func (z *zipfian) next(random *Random, items uint64) uint64 {
	if items != z.items {
		z.resize(items)
	}
	return z.rank(random.Unit())
}

func (z *zipfian) resize(items uint64) {
	zeta, power := z.sums.of(items)
	z.set(items, zeta, power)
}

// set takes the constants for a number of items: power is items^(1 - theta).
func (z *zipfian) set(items uint64, zeta, power float64) {
	z.items, z.zeta = items, zeta
	z.eta = float64(1-float64(z.powerOfTwo/power)) / float64(1-float64(z.zetaOfTwo/zeta))
}

// rank returns the rank of a number of [0, 1). Products are converted so that they are not fused with
// an addition, which would change the last bit.
func (z *zipfian) rank(unit float64) uint64 {
	scaled := float64(unit * z.zeta)
	var rank uint64
	switch {
	case scaled < 1:
		rank = 0
	case scaled < z.zetaOfTwo:
		rank = 1
	default:
		base := float64(float64(z.eta*unit)-z.eta) + 1
		rank = uint64(float64(float64(z.items) * z.power(base)))
	}
	if z.items == 0 {
		return 0
	}
	return min(rank, z.items-1)
}

// power returns base^alpha with an error of hardly more than half a unit in the last place, as the C
// library does, which the Rust harness calls. math.Pow has errors of some units, and one draw in ten
// thousand would differ. The exponent is a whole number and a share of less than 10^-12.
func (z *zipfian) power(base float64) float64 {
	if base <= 0 {
		return 0
	}
	result, square := double{1, 0}, double{base, 0}
	for n := uint64(z.alphaWhole); n > 0; n >>= 1 {
		if n&1 == 1 {
			result = result.times(square)
		}
		square = square.times(square)
	}
	// base^share = 1 + share * ln(base); the next term is below 10^-20.
	more := float64(result.high * float64(z.alphaShare*math.Log(base)))
	return result.high + float64(result.low+more)
}

// double is the sum of two numbers, of which the second is what the first was rounded by.
type double struct{ high, low float64 }

func (a double) times(b double) double {
	high := float64(a.high * b.high)
	low := math.FMA(a.high, b.high, -high)
	low += float64(float64(a.high*b.low) + float64(a.low*b.high))
	sum := float64(high + low)
	return double{sum, float64(low - float64(sum-high))}
}

// summed is how many terms of a zeta are added up. The others come from the Euler-Maclaurin formula.
const summed = 1024

// zeta has the sums of 1 / i^theta for i from 1 to n.
type zeta struct {
	sums      [summed + 1]float64
	edgePower float64
}

func newZeta() *zeta {
	z := &zeta{edgePower: math.Pow(summed, 1-theta)}
	for i := 1; i <= summed; i++ {
		z.sums[i] = z.sums[i-1] + math.Pow(float64(i), -theta)
	}
	return z
}

// of returns the sum of the first n terms, and n^(1 - theta).
func (z *zeta) of(n uint64) (sum, power float64) {
	left := 1 - theta
	if n <= summed {
		return z.sums[n], math.Pow(float64(n), left)
	}
	number, edge := float64(n), float64(summed)
	growth := math.Expm1(float64(left * math.Log(number/edge)))
	power = float64(z.edgePower * float64(1+growth))
	integral := float64(z.edgePower*growth) / left
	term, edgeTerm := power/number, z.edgePower/edge
	slopes := float64(theta / 12 * float64(float64(edgeTerm/edge)-float64(term/number)))
	sum = z.sums[summed] + integral + float64(term-edgeTerm)/2 + slopes
	return sum, power
}

const (
	// lastRank is YCSB's ITEM_COUNT. Its generator counts from 0 to this number inclusively.
	lastRank = 10_000_000_000
	// ycsbZeta is YCSB's ZETAN.
	ycsbZeta = 26.469_028_201_783_02
	// redraws is how often a record that does not exist yet is drawn again.
	redraws = 64
)

// ScrambledZipfian draws records by Zipf's law. The frequent ones are scattered over all records that
// the run may have at its end.
type ScrambledZipfian struct {
	random   Random
	ranks    zipfian
	expected uint64
}

// NewScrambledZipfian returns the draws of one thread in a lane.
func NewScrambledZipfian(seed uint64, thread, lane int, expected uint64) *ScrambledZipfian {
	ranks := newZipfian()
	items := uint64(lastRank + 1)
	_, power := ranks.sums.of(items)
	ranks.set(items, ycsbZeta, power)
	return &ScrambledZipfian{NewRandom(seed, thread).Lane(lane), ranks, expected}
}

// Next returns the next record.
func (s *ScrambledZipfian) Next(items uint64) uint64 {
	modulus := max(s.expected, items, 1)
	draw := func() uint64 { return ycsbHash(s.ranks.rank(s.random.Unit())) % modulus }
	for range redraws {
		if record := draw(); record < items {
			return record
		}
	}
	if record := draw(); items > 0 {
		return record % items
	}
	return 0
}

// Latest draws records of which the newest are the most frequent.
type Latest struct {
	random Random
	ranks  zipfian
}

// NewLatest returns the draws of one thread in a lane.
func NewLatest(seed uint64, thread, lane int) *Latest {
	return &Latest{NewRandom(seed, thread).Lane(lane), newZipfian()}
}

// Next returns the next record.
func (l *Latest) Next(items uint64) uint64 {
	rank := l.ranks.next(&l.random, items)
	if items == 0 {
		return 0
	}
	return items - 1 - rank
}

// ycsbHash is YCSB's Utils.fnvhash64: FNV-1a over the eight bytes of a number, lowest first, and then
// the absolute value of the signed result.
func ycsbHash(number uint64) uint64 {
	hash := uint64(0xcbf2_9ce4_8422_2325)
	for range 8 {
		hash = (hash ^ number&0xff) * 0x0100_0000_01b3
		number >>= 8
	}
	if int64(hash) < 0 {
		return -hash
	}
	return hash
}

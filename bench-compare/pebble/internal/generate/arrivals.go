package generate

import "math/bits"

// Arrivals are the intended start times of one thread of an open loop with a constant rate. Thread t
// of T takes every T-th arrival of one even sequence. The times are those of
// crates/bench/src/generate/arrival.rs: whole arrivals are added up in units of 2^-64, so they do not
// drift.
type Arrivals struct {
	threads uint64
	// ofCycle are the arrivals of a second, and within those since the last whole second.
	ofCycle, within fixed
	cycle           uint64
	perArrival      float64
	isBegun         bool
}

// fixed is a number of arrivals: whole ones, and 2^-64 parts of one.
type fixed struct{ whole, part uint64 }

func (f fixed) isBelow(other fixed) bool {
	return f.whole < other.whole || f.whole == other.whole && f.part < other.part
}

func (f fixed) minus(other fixed) fixed {
	part, borrow := bits.Sub64(f.part, other.part, 0)
	whole, _ := bits.Sub64(f.whole, other.whole, borrow)
	return fixed{whole, part}
}

// The rates that NewArrivals takes, in arrivals a second.
const (
	LeastRate = 1
	MostRate  = 1e9
)

// NewArrivals returns the share of one thread. perSecond is the rate of all threads together, from
// LeastRate to MostRate.
func NewArrivals(perSecond float64, thread, threads int) *Arrivals {
	whole := uint64(perSecond)
	part := uint64((perSecond - float64(whole)) * (1 << 64))
	return &Arrivals{
		threads:    uint64(threads),
		ofCycle:    fixed{whole, part},
		within:     fixed{uint64(thread), 0},
		perArrival: 1e9 / perSecond,
	}
}

// Next returns the next intended start, in nanoseconds since the start of the run.
func (a *Arrivals) Next() int64 {
	if a.isBegun {
		a.within.whole += a.threads
	}
	a.isBegun = true
	for !a.within.isBelow(a.ofCycle) {
		a.within = a.within.minus(a.ofCycle)
		a.cycle++
	}
	within := float64(a.within.whole) + float64(a.within.part)/(1<<64)
	return int64(float64(float64(a.cycle)*1e9) + float64(within*a.perArrival))
}

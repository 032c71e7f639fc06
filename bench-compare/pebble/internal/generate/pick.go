package generate

import "math/bits"

// Permutation is an order of the numbers 0..n that looks random, with access to any position.
type Permutation struct {
	n                   uint64
	leftBits, rightBits int
	keys                [4]uint64
}

// NewPermutation returns an order of 0..n that depends on seed. n is limited to 1..2^63.
func NewPermutation(n, seed uint64) Permutation {
	n = min(max(n, 1), 1<<63)
	width := bits.Len64(n - 1)
	p := Permutation{n: n, leftBits: (width + 1) / 2, rightBits: width / 2}
	for round := range p.keys {
		p.keys[round] = Mix(seed + Mix(uint64(round)+1))
	}
	return p
}

// At returns the number at a position. The order repeats after n positions.
func (p *Permutation) At(position uint64) uint64 {
	x := position % p.n
	for {
		x = p.network(x)
		if x < p.n {
			return x
		}
	}
}

func (p *Permutation) network(x uint64) uint64 {
	leftMask := uint64(1)<<p.leftBits - 1
	rightMask := uint64(1)<<p.rightBits - 1
	left, right := x>>p.rightBits, x&rightMask
	for i := 0; i < len(p.keys); i += 2 {
		left ^= fold(right, p.keys[i]) & leftMask
		right ^= fold(left, p.keys[i+1]) & rightMask
	}
	return left<<p.rightBits | right
}

// Pick is one thread's draws of record numbers.
type Pick interface {
	// Next returns the next record, which is below items. It is 0 if items is 0.
	Next(items uint64) uint64
}

// Uniform draws every record with the same probability.
type Uniform struct {
	random Random
}

// NewUniform returns the draws of one thread in a lane.
func NewUniform(seed uint64, thread, lane int) *Uniform {
	return &Uniform{random: NewRandom(seed, thread).Lane(lane)}
}

// Next returns the next record.
func (u *Uniform) Next(items uint64) uint64 { return u.random.Below(items) }

// Sequential takes all records in order, again and again. Thread t of T takes every T-th record from
// t on.
type Sequential struct {
	thread, threads, next uint64
}

// NewSequential returns the share of one thread.
func NewSequential(thread, threads int) *Sequential {
	return &Sequential{thread: uint64(thread), threads: uint64(threads), next: uint64(thread)}
}

// Next returns the next record.
func (s *Sequential) Next(items uint64) uint64 {
	position, _ := s.step(items)
	return position
}

// step returns the next position below items, and whether it begins a pass.
func (s *Sequential) step(items uint64) (uint64, bool) {
	begins := s.next >= items || s.next == s.thread
	position := s.next
	if begins {
		position = 0
		if items > 0 {
			position = s.thread % items
		}
	}
	s.next = position + s.threads
	return position, begins
}

// Permuted takes all records in an order that looks random, each once in a pass. Threads share a
// pass as those of Sequential do, and each pass has another order.
type Permuted struct {
	share Sequential
	seed  uint64
	pass  uint64
	order Permutation
}

// NewPermuted returns the share of one thread. The order depends on the seed and on the lane.
func NewPermuted(seed uint64, thread, threads, lane int) *Permuted {
	orderSeed := Mix(Mix(seed) + uint64(lane))
	return &Permuted{
		share: *NewSequential(thread, threads),
		seed:  orderSeed,
		order: NewPermutation(1, orderSeed),
	}
}

// Next returns the next record.
func (p *Permuted) Next(items uint64) uint64 {
	position, begins := p.share.step(p.order.n)
	if !begins && p.order.n <= items {
		return p.order.At(position)
	}
	p.order = NewPermutation(items, p.seed+p.pass)
	p.pass++
	p.share.next = p.share.thread
	position, _ = p.share.step(items)
	return p.order.At(position)
}

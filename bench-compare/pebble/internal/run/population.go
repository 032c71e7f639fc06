package run

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"

	"github.com/klauspost/compress/zstd"
)

// Population says which records a store has. Every acknowledged write sets a bit and every delete
// clears one before it begins, and a read is checked against the bit.
//
// Threading: shared by all goroutines.
type Population struct {
	words []atomic.Uint64
}

// NewPopulation returns an empty population for this number of records.
func NewPopulation(records uint64) *Population {
	return &Population{words: make([]atomic.Uint64, (records+63)/64)}
}

// Capacity returns the number below which all records lie that it has room for.
func (p *Population) Capacity() uint64 { return uint64(len(p.words)) * 64 }

// End returns the number of the last record and one more; 0 if there is none.
func (p *Population) End() uint64 {
	last, ok := p.LastBefore(p.Capacity())
	if !ok {
		return 0
	}
	return last + 1
}

// Add notes that a write of the record was acknowledged.
func (p *Population) Add(record uint64) {
	word, bit := &p.words[record/64], uint64(1)<<(record%64)
	// Most overwrites find the bit set, and a load does not take the line from other threads.
	if word.Load()&bit == 0 {
		word.Or(bit)
	}
}

// Remove notes that a delete of the record begins.
func (p *Population) Remove(record uint64) {
	p.words[record/64].And(^(uint64(1) << (record % 64)))
}

// Contains says whether the store has the record.
func (p *Population) Contains(record uint64) bool {
	return record/64 < uint64(len(p.words)) && p.words[record/64].Load()>>(record%64)&1 == 1
}

// Count returns the number of records.
func (p *Population) Count() uint64 {
	var count int
	for i := range p.words {
		count += bits.OnesCount64(p.words[i].Load())
	}
	return uint64(count)
}

// NextFrom returns the first record from this one on that the store has.
func (p *Population) NextFrom(from uint64) (uint64, bool) {
	for record := from; record/64 < uint64(len(p.words)); record = (record/64 + 1) * 64 {
		if word := p.words[record/64].Load() >> (record % 64); word != 0 {
			return record + uint64(bits.TrailingZeros64(word)), true
		}
	}
	return 0, false
}

// LastBefore returns the last record below end that the store has.
func (p *Population) LastBefore(end uint64) (uint64, bool) {
	end = min(end, uint64(len(p.words))*64)
	for end > 0 {
		last := end - 1
		if word := p.words[last/64].Load() << (63 - last%64); word != 0 {
			return last - uint64(bits.LeadingZeros64(word)), true
		}
		end = last / 64 * 64
	}
	return 0, false
}

// encode returns the bits as bytes, compressed.
func (p *Population) encode() ([]byte, error) {
	words := p.words[:(p.End()+63)/64]
	bytes := make([]byte, 0, len(words)*8)
	for i := range words {
		bytes = binary.LittleEndian.AppendUint64(bytes, p.words[i].Load())
	}
	encoder, err := zstd.NewWriter(nil, zstd.WithEncoderLevel(zstd.SpeedFastest),
		zstd.WithEncoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer encoder.Close()
	return encoder.EncodeAll(bytes, nil), nil
}

// decodePopulation reads what encode made. All records lie below end; there is room for this number of
// records.
func decodePopulation(bytes []byte, end, room uint64) (*Population, error) {
	decoder, err := zstd.NewReader(nil, zstd.WithDecoderConcurrency(1))
	if err != nil {
		return nil, err
	}
	defer decoder.Close()
	decoded, err := decoder.DecodeAll(bytes, nil)
	if err != nil {
		return nil, err
	}
	if len(decoded)%8 != 0 {
		return nil, errors.New("its length is not a multiple of 8")
	}
	p := NewPopulation(max(end, room))
	for i := 0; i < len(decoded); i += 8 {
		word := binary.LittleEndian.Uint64(decoded[i:])
		if last := uint64(i*8 + bits.Len64(word)); word != 0 && last > end {
			return nil, fmt.Errorf("it has record %d, and its header says %d", last-1, end)
		}
		if word != 0 {
			p.words[i/8].Store(word)
		}
	}
	return p, nil
}

package generate

import (
	"sync"
	"sync/atomic"
)

// Acknowledged says how many records exist while several threads insert: Count is the number below
// which every insert has completed. An insert that failed ends the run, so its number is not given to
// another one.
//
// Threading: shared by all goroutines.
type Acknowledged struct {
	count atomic.Uint64
	mutex sync.Mutex
	next  uint64
	// completed are the inserts that completed beyond the first one that has not.
	completed map[uint64]struct{}
}

// NewAcknowledged returns the counter of a store that has the records below this number.
func NewAcknowledged(records uint64) *Acknowledged {
	a := &Acknowledged{next: records, completed: map[uint64]struct{}{}}
	a.count.Store(records)
	return a
}

// Count says how many records exist: every record below this number has been inserted.
func (a *Acknowledged) Count() uint64 { return a.count.Load() }

// Begin returns the number of the next new record.
func (a *Acknowledged) Begin() uint64 {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	number := a.next
	a.next++
	return number
}

// Complete says that the record is in the store.
func (a *Acknowledged) Complete(number uint64) {
	a.mutex.Lock()
	defer a.mutex.Unlock()
	a.completed[number] = struct{}{}
	count := a.count.Load()
	for {
		if _, ok := a.completed[count]; !ok {
			break
		}
		delete(a.completed, count)
		count++
	}
	a.count.Store(count)
}

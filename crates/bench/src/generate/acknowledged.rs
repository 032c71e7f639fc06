//! How many records exist while several threads insert.
//!
//! Threads take the numbers of new records from one counter, and their inserts complete in any
//! order. [`Acknowledged::count`] is the number below which every insert has completed, so a reader
//! that asks for a record below it finds one. This is what YCSB's `AcknowledgedCounterGenerator`
//! does (brianfrankcooper/YCSB, `core/src/main/java/site/ycsb/generator/` at 72c6f33c).
//!
//! # Threads that stop
//!
//! [`Acknowledged::begin`] returns an [`Insert`]. If it is dropped without
//! [`Insert::acknowledge`], because the insert failed or the thread stopped or panicked, its number
//! is given to the next insert of any thread, which fills the gap. Until then `count` stays at the
//! gap, and everything else goes on: readers read the records below it, and inserts continue. If
//! nobody inserts any more, the records above the gap are never counted, although they exist.
//! YCSB allows 2^20 inserts beyond a gap and then fails; here there is no limit, since an insert
//! beyond a gap costs one bit.
//!
//! Threading: shared by reference. `count` is one atomic load. `begin` and `acknowledge` hold a
//! lock for a few instructions; nothing waits for another thread's insert.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

/// The counter of inserted records.
#[derive(Debug)]
pub struct Acknowledged {
    /// The number below which every insert has completed. Only holders of the lock change it.
    count: AtomicU64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// The number of the next new record.
    next: u64,
    /// The first number that `completed` covers, a multiple of 64.
    base: u64,
    /// One bit for each number from `base` on, set when its insert has completed.
    completed: VecDeque<u64>,
    /// Numbers that were given back.
    returned: Vec<u64>,
}

/// An insert in progress. Dropping it gives its number to another insert.
#[derive(Debug)]
#[must_use = "an insert that is dropped counts as failed"]
pub struct Insert<'a> {
    counter: &'a Acknowledged,
    number: u64,
}

impl Acknowledged {
    /// A counter of a store that has the records 0..`records` already.
    pub fn new(records: u64) -> Acknowledged {
        let base = records / 64 * 64;
        let before = (1u64 << (records - base)) - 1;
        Acknowledged {
            count: AtomicU64::new(records),
            state: Mutex::new(State {
                next: records,
                base,
                completed: VecDeque::from([before]),
                returned: Vec::new(),
            }),
        }
    }

    /// How many records exist: every record below this number has been inserted.
    #[inline]
    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Acquire)
    }

    /// The number of records that were given to inserts. Records from `count` up to this one may
    /// exist or not.
    pub fn issued(&self) -> u64 {
        self.lock().next
    }

    /// Begins an insert. Its number is one that was given back, or a new one.
    pub fn begin(&self) -> Insert<'_> {
        let mut state = self.lock();
        let number = state.returned.pop().unwrap_or_else(|| {
            let number = state.next;
            state.next += 1;
            number
        });
        Insert {
            counter: self,
            number,
        }
    }

    /// The state is consistent at every unlock, so a panic elsewhere in a holder does not matter.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn complete(&self, number: u64) {
        let mut state = self.lock();
        state.complete(number);
        self.count.store(state.first_gap(), Ordering::Release);
    }
}

impl State {
    /// Sets the bit of a number. Full words at the front are dropped, but the last word stays.
    fn complete(&mut self, number: u64) {
        let offset = number - self.base;
        let word = (offset / 64) as usize;
        if word >= self.completed.len() {
            self.completed.resize(word + 1, 0);
        }
        self.completed[word] |= 1 << (offset % 64);
        while self.completed.front() == Some(&u64::MAX) {
            self.completed.pop_front();
            self.base += 64;
        }
    }

    /// The first number whose insert has not completed.
    fn first_gap(&self) -> u64 {
        let front = self.completed.front().copied().unwrap_or(0);
        self.base + u64::from(front.trailing_ones())
    }
}

impl Insert<'_> {
    /// The number of the record to insert.
    pub fn number(&self) -> u64 {
        self.number
    }

    /// Says that the record is in the store.
    pub fn acknowledge(self) {
        self.counter.complete(self.number);
        std::mem::forget(self);
    }
}

impl Drop for Insert<'_> {
    fn drop(&mut self) {
        self.counter.lock().returned.push(self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;
    use std::thread;

    #[test]
    fn completed_inserts_count_only_below_the_first_gap() {
        let counter = Acknowledged::new(100);
        let [a, b, c] = [(); 3].map(|()| counter.begin());
        assert_eq!([a.number(), b.number(), c.number()], [100, 101, 102]);
        b.acknowledge();
        assert_eq!(counter.count(), 100);
        a.acknowledge();
        assert_eq!(counter.count(), 102);
        c.acknowledge();
        assert_eq!((counter.count(), counter.issued()), (103, 103));
    }

    #[test]
    fn a_number_given_back_is_inserted_by_the_next_insert() {
        let counter = Acknowledged::new(0);
        let (first, second) = (counter.begin(), counter.begin());
        drop(first);
        second.acknowledge();
        assert_eq!(counter.count(), 0);
        let retry = counter.begin();
        assert_eq!(retry.number(), 0);
        retry.acknowledge();
        assert_eq!(counter.count(), 2);
    }

    /// A thread that panics in the middle of an insert leaves a gap. The others insert far more
    /// records than YCSB's window holds, and the gap is filled.
    #[test]
    fn a_thread_that_stops_early_does_not_stop_the_others() {
        let counter = Acknowledged::new(10);
        let inserts = 1_200_000;
        thread::scope(|scope| {
            let stopped = scope.spawn(|| {
                let insert = counter.begin();
                assert_eq!(insert.number(), u64::MAX, "this panic is part of the test");
            });
            assert!(stopped.join().is_err());
            for _ in 0..2 {
                scope.spawn(|| (0..inserts / 2).for_each(|_| counter.begin().acknowledge()));
            }
        });
        assert_eq!(counter.count(), 10 + inserts);
        assert_eq!(counter.issued(), 10 + inserts);
    }

    #[test]
    fn inserts_go_on_beyond_a_gap_that_stays_open() {
        let counter = Acknowledged::new(0);
        let open = counter.begin();
        (0..(1u64 << 20) + 5).for_each(|_| counter.begin().acknowledge());
        assert_eq!(counter.count(), 0);
        open.acknowledge();
        assert_eq!(counter.count(), (1 << 20) + 6);
        assert!(
            counter.lock().completed.len() <= 1,
            "the bits of counted records are dropped"
        );
    }

    /// Inserts a part of the records that it begins and gives the others back.
    fn insert_most(counter: &Acknowledged, stored: &[AtomicBool], thread: u64) {
        for i in 0..12_000u64 {
            let insert = counter.begin();
            if !(i + thread).is_multiple_of(10) {
                stored[insert.number() as usize].store(true, Ordering::Relaxed);
                insert.acknowledge();
            }
        }
    }

    #[test]
    fn readers_find_every_counted_record() {
        let counter = Acknowledged::new(0);
        let stored: Vec<AtomicBool> = (0..40_000).map(|_| AtomicBool::new(false)).collect();
        let writers_left = AtomicU64::new(3);
        thread::scope(|scope| {
            for thread in 0..3 {
                let (counter, stored, writers_left) = (&counter, &stored, &writers_left);
                scope.spawn(move || {
                    insert_most(counter, stored, thread);
                    writers_left.fetch_sub(1, Ordering::Relaxed);
                });
            }
            let mut last = 0;
            while writers_left.load(Ordering::Relaxed) > 0 {
                let count = counter.count();
                assert!(count >= last);
                let new = &stored[last as usize..count as usize];
                assert!(new.iter().all(|s| s.load(Ordering::Relaxed)));
                last = count;
                thread::yield_now();
            }
        });
        while counter.count() < counter.issued() {
            counter.begin().acknowledge();
        }
        // Nine of ten inserts were acknowledged, and those that were given back were begun again.
        assert!(counter.count() >= 32_400);
    }

    proptest! {
        /// The counter agrees with a list of flags, whatever the order of completion.
        #[test]
        fn the_count_is_the_first_gap(
            records in 0u64..200, steps in prop::collection::vec((0usize..3, any::<u16>()), 0..300),
        ) {
            let counter = Acknowledged::new(records);
            let mut stored = vec![true; records as usize];
            let mut open: Vec<Insert<'_>> = Vec::new();
            for (step, choice) in steps {
                if step == 0 || open.is_empty() {
                    let insert = counter.begin();
                    stored.resize(stored.len().max(insert.number() as usize + 1), false);
                    prop_assert!(!stored[insert.number() as usize]);
                    open.push(insert);
                } else {
                    let insert = open.swap_remove(usize::from(choice) % open.len());
                    if step == 1 {
                        stored[insert.number() as usize] = true;
                        insert.acknowledge();
                    }
                }
                let gap = stored.iter().position(|s| !s).unwrap_or(stored.len());
                prop_assert_eq!(counter.count(), gap as u64);
                prop_assert_eq!(counter.issued(), stored.len() as u64);
            }
        }
    }
}

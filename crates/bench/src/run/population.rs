//! Which records a store has.
//!
//! A fill at random with replacement leaves records out, and deletes leave holes. Readers must know
//! what they should find, so every write that is acknowledged sets a bit here and every delete
//! clears one, and a read is checked against the bit.
//!
//! The population is kept in a file beside the store, so that a later run on the same store knows
//! it. The file also names the settings that decide keys and values, and a run with other ones is
//! refused.
//!
//! Invariant: between runs, the bit of a record is set exactly if the record is in the store. In a
//! run, the bit is set after the write was acknowledged and cleared before the delete begins, so a
//! bit that is set before a read begins promises that it finds the record, unless the workload
//! deletes.
//!
//! Threading: shared by all threads. A bit costs one relaxed atomic operation, because a thread
//! that reads its bit too late only checks less.

use std::io::Read;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::prefetch_line;

/// Bits of one chunk: a chunk is allocated when its first bit is set.
const CHUNK_BITS: u64 = 1 << 20;
/// The most chunks, enough for 2^36 records.
const CHUNKS_MAX: u64 = 1 << 16;

type Chunk = Box<[AtomicU64]>;

/// The records of a store.
pub struct Population {
    chunks: Box<[OnceLock<Chunk>]>,
}

impl std::fmt::Debug for Population {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Population of {} records", self.count())
    }
}

impl Default for Population {
    fn default() -> Population {
        Population::new()
    }
}

fn empty_chunk() -> Chunk {
    (0..CHUNK_BITS / 64).map(|_| AtomicU64::new(0)).collect()
}

impl Population {
    /// The records that a population can hold.
    pub const RECORDS_MAX: u64 = CHUNK_BITS * CHUNKS_MAX;

    /// No records.
    pub fn new() -> Population {
        Population {
            chunks: (0..CHUNKS_MAX).map(|_| OnceLock::new()).collect(),
        }
    }

    fn word(&self, record: u64) -> Option<&AtomicU64> {
        let chunk = self.chunks.get((record / CHUNK_BITS) as usize)?.get()?;
        chunk.get((record % CHUNK_BITS / 64) as usize)
    }

    /// Brings the record's bit into the processor's cache, so that [`Population::add`] or
    /// [`Population::contains`] does not wait for memory a little later. That wait would count as
    /// time of the engine.
    #[inline]
    pub fn prefetch(&self, record: u64) {
        if let Some(word) = self.word(record) {
            prefetch_line(word);
        }
    }

    /// Notes that a write of the record was acknowledged.
    #[inline]
    pub fn add(&self, record: u64) {
        let Some(chunk) = self.chunks.get((record / CHUNK_BITS) as usize) else {
            return;
        };
        let word = &chunk.get_or_init(empty_chunk)[(record % CHUNK_BITS / 64) as usize];
        let bit = 1 << (record % 64);
        // Most overwrites find the bit set, and a load does not take the line from other threads.
        if word.load(Ordering::Relaxed) & bit == 0 {
            word.fetch_or(bit, Ordering::Relaxed);
        }
    }

    /// Notes that a delete of the record begins.
    #[inline]
    pub fn remove(&self, record: u64) {
        if let Some(word) = self.word(record) {
            word.fetch_and(!(1 << (record % 64)), Ordering::Relaxed);
        }
    }

    /// Whether the store has the record.
    #[inline]
    pub fn contains(&self, record: u64) -> bool {
        self.word(record)
            .is_some_and(|word| word.load(Ordering::Relaxed) & 1 << (record % 64) != 0)
    }

    /// The number of records. The cost is that of reading all bits.
    pub fn count(&self) -> u64 {
        self.words()
            .map(|(_, word)| u64::from(word.count_ones()))
            .sum()
    }

    /// The words that are not zero, with the number of their first record.
    fn words(&self) -> impl Iterator<Item = (u64, u64)> {
        let chunks = (0u64..).step_by(CHUNK_BITS as usize).zip(&self.chunks);
        chunks
            .filter_map(|(first, chunk)| Some((first, chunk.get()?)))
            .flat_map(|(first, chunk)| {
                (first..)
                    .step_by(64)
                    .zip(chunk.iter().map(|word| word.load(Ordering::Relaxed)))
            })
            .filter(|(_, word)| *word != 0)
    }

    /// All records, in ascending order.
    pub fn records(&self) -> impl Iterator<Item = u64> {
        self.words().flat_map(|(first, word)| {
            (0..64u64)
                .filter(move |bit| word & 1 << bit != 0)
                .map(move |bit| first + bit)
        })
    }

    /// The number of the last record and one more; 0 if there is none.
    pub fn end(&self) -> u64 {
        self.words().last().map_or(0, |(first, word)| {
            first + 64 - u64::from(word.leading_zeros())
        })
    }

    /// The first record from `from` on that the store has, below `end`.
    pub fn next_from(&self, from: u64, end: u64) -> Option<u64> {
        let (mut record, end) = (from, end.min(Population::RECORDS_MAX));
        while record < end {
            let Some(word) = self.word(record) else {
                record = (record / CHUNK_BITS + 1) * CHUNK_BITS;
                continue;
            };
            let all = word.load(Ordering::Relaxed);
            let word = all >> (record % 64);
            if word != 0 {
                let found = record + u64::from(word.trailing_zeros());
                return (found < end).then_some(found);
            }
            record = (record / 64 + 1) * 64;
        }
        None
    }

    /// The last record below `before` that the store has.
    pub fn last_before(&self, before: u64) -> Option<u64> {
        let mut end = before.min(Population::RECORDS_MAX);
        while end > 0 {
            let first = (end - 1) / 64 * 64;
            let Some(word) = self.word(first) else {
                end = first / CHUNK_BITS * CHUNK_BITS;
                continue;
            };
            let all = word.load(Ordering::Relaxed);
            // The bits below `end`, of which there are 1 to 64.
            let word = all & (u64::MAX >> (64 - (end - first)));
            if word != 0 {
                return Some(first + 63 - u64::from(word.leading_zeros()));
            }
            end = first;
        }
        None
    }

    /// The bits as bytes, compressed: one bit a record, the least significant bit first.
    ///
    /// # Errors
    /// Those of zstd, for example if there is no memory.
    pub fn encode(&self) -> std::io::Result<Vec<u8>> {
        let words = (0..self.end().div_ceil(64)).map(|word| {
            self.word(word * 64)
                .map_or(0, |word| word.load(Ordering::Relaxed))
        });
        let bytes: Vec<u8> = words.flat_map(u64::to_le_bytes).collect();
        zstd::encode_all(&bytes[..], 1)
    }

    /// Reads what [`Population::encode`] made.
    ///
    /// # Errors
    /// If the bytes are something else.
    pub fn decode(bytes: &[u8]) -> std::io::Result<Population> {
        let population = Population::new();
        let mut bits = zstd::Decoder::new(bytes)?;
        let mut buffer = [0; 8];
        for word in 0.. {
            if bits.read(&mut buffer[..1])? == 0 {
                break;
            }
            bits.read_exact(&mut buffer[1..])?;
            let set = u64::from_le_bytes(buffer);
            if set != 0 && word * 64 >= Population::RECORDS_MAX {
                return Err(std::io::Error::other("it has too many records"));
            }
            (0..64)
                .filter(|bit| set & 1 << bit != 0)
                .for_each(|bit| population.add(word * 64 + bit));
        }
        Ok(population)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn of(records: impl IntoIterator<Item = u64>) -> Population {
        let population = Population::new();
        records
            .into_iter()
            .for_each(|record| population.add(record));
        population
    }

    proptest! {
        #[test]
        fn it_agrees_with_a_set(
            steps in prop::collection::vec((any::<bool>(), 0u64..3_000_000), 0..200),
        ) {
            let (population, mut set) = (Population::new(), BTreeSet::new());
            for (add, record) in steps {
                if add {
                    population.add(record);
                    set.insert(record);
                } else {
                    population.remove(record);
                    set.remove(&record);
                }
                prop_assert_eq!(population.contains(record), add);
                let next = set.range(record..).next().copied().filter(|next| *next < 2_500_000);
                prop_assert_eq!(population.next_from(record, 2_500_000), next);
                let last = set.range(..record).next_back().copied();
                prop_assert_eq!(population.last_before(record), last);
            }
            prop_assert_eq!(population.count(), set.len() as u64);
            prop_assert_eq!(population.end(), set.last().map_or(0, |last| last + 1));
            prop_assert!(population.records().eq(set.iter().copied()));
            let read = Population::decode(&population.encode().unwrap()).unwrap();
            prop_assert!(read.records().eq(set.iter().copied()));
        }

        #[test]
        fn no_bytes_make_the_decoding_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            if let Ok(read) = Population::decode(&bytes) {
                let again = Population::decode(&read.encode().unwrap()).unwrap();
                prop_assert!(again.records().eq(read.records()));
            }
            // Few bytes are a frame of zstd. These are one, with whole words or with a part of one.
            let read = Population::decode(&zstd::encode_all(&bytes[..], 1).unwrap());
            prop_assert_eq!(read.is_ok(), bytes.len() % 8 == 0);
            if let Ok(read) = read {
                let is_set = |bit: &u64| bytes[(bit / 8) as usize] & 1 << (bit % 8) != 0;
                let records = (0..8 * bytes.len() as u64).filter(is_set);
                prop_assert!(read.records().eq(records));
            }
        }
    }

    #[test]
    fn a_full_store_takes_a_few_bytes() {
        let full = of(0..2_000_000);
        let bytes = full.encode().unwrap();
        assert!(bytes.len() < 200, "{} bytes", bytes.len());
        assert_eq!(Population::decode(&bytes).unwrap().count(), 2_000_000);
    }

    #[test]
    fn a_record_beyond_the_last_chunk_is_not_there() {
        let population = of([Population::RECORDS_MAX]);
        assert_eq!(population.count(), 0);
        assert!(!population.contains(u64::MAX));
    }
}

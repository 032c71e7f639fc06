//! The distributions of record numbers that a workload can name.
//!
//! A [`Distribution`] says which one and with which parameters, and a [`Pick`] is one thread's draw
//! from it. Records may be added during the run: each draw says how many there are.
//!
//! Threading: a pick belongs to one thread.

use super::error::ParameterError;
use super::hash::mix;
use super::hotspot::Hotspot;
use super::mixgraph::{MixgraphParameters, MixgraphRecords};
use super::permutation::Permutation;
use super::random::{Random, Stream};
use super::zipfian::{Latest, ScrambledZipfian};

/// A distribution of record numbers, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Distribution {
    /// All records in order, again and again. Thread `t` of `T` takes every T-th record from `t`
    /// on.
    Sequential,
    /// Every record has the same probability.
    Uniform,
    /// All records in an order that looks random, each once in a pass. Threads share a pass as
    /// those of `Sequential` do, and each pass has another order. Records that are inserted during
    /// a pass come in the next one.
    Permutation,
    /// Some records are more frequent than others, by Zipf's law. The frequent ones are scattered
    /// over all records.
    ScrambledZipfian {
        /// The skew, above 0 and below 1; YCSB's is 0.99.
        theta: f64,
        /// How many records the run may have at its end, so that hot records stay where they are.
        expected_records: u64,
    },
    /// The newest records are the most frequent ones, by Zipf's law.
    Latest {
        /// The skew, above 0 and below 1; YCSB's is 0.99.
        theta: f64,
    },
    /// A share of the operations goes to the first records.
    Hotspot {
        /// The share of hot records, from 0 to 1; YCSB's is 0.2.
        data_fraction: f64,
        /// The share of operations on hot records, from 0 to 1; YCSB's is 0.8.
        operation_fraction: f64,
    },
    /// The records of mixgraph.
    Mixgraph {
        /// The parameters, of which those of keys matter here.
        parameters: MixgraphParameters,
        /// How many records the run will have at its end, so that hot records stay where they are.
        expected_records: u64,
    },
}

impl Distribution {
    /// The name that workloads use.
    pub fn name(&self) -> &'static str {
        match self {
            Distribution::Sequential => "sequential",
            Distribution::Uniform => "uniform",
            Distribution::Permutation => "permutation",
            Distribution::ScrambledZipfian { .. } => "scrambled_zipfian",
            Distribution::Latest { .. } => "latest",
            Distribution::Hotspot { .. } => "hotspot",
            Distribution::Mixgraph { .. } => "mixgraph",
        }
    }
}

/// One thread's draws from a distribution.
#[derive(Debug, Clone)]
pub struct Pick {
    random: Random,
    records: Records,
}

#[derive(Debug, Clone)]
enum Records {
    Sequential(Share),
    Uniform,
    Permutation(Passes),
    ScrambledZipfian(ScrambledZipfian),
    Latest(Latest),
    Hotspot(Hotspot),
    Mixgraph(MixgraphRecords),
}

impl Pick {
    /// The draws of one thread. Two picks of a thread need lanes of their own.
    pub fn new(distribution: &Distribution, stream: Stream) -> Result<Pick, ParameterError> {
        let share = Share::new(stream.thread(), stream.threads());
        let records = match *distribution {
            Distribution::Sequential => Records::Sequential(share),
            Distribution::Uniform => Records::Uniform,
            Distribution::Permutation => {
                Records::Permutation(Passes::new(share, order_seed(stream)))
            }
            Distribution::ScrambledZipfian {
                theta,
                expected_records,
            } => Records::ScrambledZipfian(ScrambledZipfian::new(theta, expected_records)?),
            Distribution::Latest { theta } => Records::Latest(Latest::new(theta)?),
            Distribution::Hotspot {
                data_fraction,
                operation_fraction,
            } => Records::Hotspot(Hotspot::new(data_fraction, operation_fraction)?),
            Distribution::Mixgraph {
                parameters,
                expected_records,
            } => Records::Mixgraph(MixgraphRecords::new(&parameters, expected_records)?),
        };
        Ok(Pick {
            random: stream.random(),
            records,
        })
    }

    /// The next record, which is below `items`. It is 0 if `items` is 0.
    #[inline]
    pub fn next(&mut self, items: u64) -> u64 {
        let random = &mut self.random;
        match &mut self.records {
            Records::Sequential(share) => share.next(items).0,
            Records::Uniform => random.below(items),
            Records::Permutation(passes) => passes.next(items),
            Records::ScrambledZipfian(scrambled) => scrambled.next(random, items),
            Records::Latest(latest) => latest.next(random, items),
            Records::Hotspot(hotspot) => hotspot.next(random, items),
            Records::Mixgraph(mixgraph) => mixgraph.next(random, items),
        }
    }
}

/// The seed of a permutation, which all threads share and each lane has for itself.
fn order_seed(stream: Stream) -> u64 {
    mix(mix(stream.seed()).wrapping_add(u64::from(stream.lane_number())))
}

/// Every T-th position of a pass, which begins again after its end.
#[derive(Debug, Clone, Copy)]
struct Share {
    thread: u64,
    threads: u64,
    /// The next position, or that of the first pass.
    next: u64,
}

impl Share {
    fn new(thread: u32, threads: u32) -> Share {
        Share {
            thread: u64::from(thread),
            threads: u64::from(threads),
            next: u64::from(thread),
        }
    }

    /// The next position below `items`, and whether it begins a pass. With fewer items than
    /// threads, several threads take the same positions.
    fn next(&mut self, items: u64) -> (u64, bool) {
        let begins = self.next >= items || self.next == self.thread;
        let position = match begins {
            true => self.thread.checked_rem(items).unwrap_or(0),
            false => self.next,
        };
        self.next = position.saturating_add(self.threads);
        (position, begins)
    }
}

/// A permutation for each pass.
#[derive(Debug, Clone)]
struct Passes {
    share: Share,
    seed: u64,
    pass: u64,
    order: Permutation,
}

impl Passes {
    fn new(share: Share, seed: u64) -> Passes {
        Passes {
            share,
            seed,
            pass: 0,
            order: Permutation::limited(1, seed),
        }
    }

    fn next(&mut self, items: u64) -> u64 {
        // A pass goes on with the number of items that it began with, unless items were lost.
        let (position, begins) = self.share.next(self.order.count());
        if !begins && self.order.count() <= items {
            return self.order.at(position);
        }
        self.order = Permutation::limited(items, self.seed.wrapping_add(self.pass));
        self.pass += 1;
        self.share.next = self.share.thread;
        self.order.at(self.share.next(items).0)
    }
}

#[cfg(test)]
mod tests;

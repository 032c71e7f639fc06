//! The skew of `db_bench`'s mixgraph workload: Cao et al., "Characterizing, Modeling, and
//! Benchmarking RocksDB Key-Value Workloads at Facebook", FAST 2020.
//!
//! # Keys
//!
//! The records are cut into `keyrange_num` equal ranges. Range `x` (from 1) is as hot as
//! `a * exp(b * x) + c * exp(d * x)`, and the ranges lie in a shuffled order. Within a range a rank
//! is drawn whose cumulative probability is `key_dist_a * rank ^ key_dist_b`, and a hash of the
//! rank is the record. Either part is switched off by zeros: without ranges the ranks are over all
//! records, and without ranks all records of a range have the same probability. That gives the
//! four workloads of the paper, [`ALL_RANDOM`], [`ALL_DIST`], [`PREFIX_RANDOM`] and
//! [`PREFIX_DIST`]; the last one is closest to the trace of ZippyDB.
//!
//! # The rest
//!
//! Sizes of values and lengths of scans have generalised Pareto distributions, and operations have
//! fixed ratios.
//!
//! The algorithm is that of RocksDB's `tools/db_bench_tool.cc` (`MixGraph`,
//! `GenerateTwoTermExpKeys`) at 00595931, with these differences:
//!
//! - `db_bench` derives key, operation, value size and scan length from one random number, so they
//!   depend on each other. Here each is drawn independently.
//! - `db_bench` ignores the ranges when `key_dist_a` or `key_dist_b` is 0, so its `Prefix_random`
//!   is uniform. Here the ranges apply.
//! - `db_bench` rounds the hotness of a range down to a multiple of the coldest one, and never
//!   reads the records that an even division leaves over. Here the hotness is exact (the hottest of
//!   the 30 published ranges gets 79.1 % of the accesses, in `db_bench` 80.7 %), and the ranges
//!   cover all records.
//! - The hash and the shuffle are others, so the hot keys are other keys. They do not depend on the
//!   seed, so runs with different seeds have the same hot keys.
//! - In `db_bench` the rate of arrivals can follow a sine with a period of a day. Here operations
//!   arrive as those of every other workload.
//!
//! Threading: a generator belongs to one thread.

use super::error::{ParameterError, require};
use super::hash::{mix, scale};
use super::pareto::Pareto;
use super::permutation::Permutation;
use super::random::Random;
use super::sizes::Sizes;
use super::zipfian::redraw;

/// The parameters of mixgraph, under the names of `db_bench`'s flags.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct MixgraphParameters {
    /// The factor of the first term of a range's hotness. If all four are 0, there are no ranges.
    pub keyrange_dist_a: f64,
    /// The exponent of the first term.
    pub keyrange_dist_b: f64,
    /// The factor of the second term.
    pub keyrange_dist_c: f64,
    /// The exponent of the second term.
    pub keyrange_dist_d: f64,
    /// The number of ranges.
    pub keyrange_num: u32,
    /// The probability of rank 1. If this or the next one is 0, records are drawn uniformly.
    pub key_dist_a: f64,
    /// The exponent of the cumulative probability of ranks.
    pub key_dist_b: f64,
    /// The sizes of values in bytes: `value_theta`, `value_k` and `value_sigma`.
    pub value: Pareto,
    /// The largest size of a value in bytes.
    pub mix_max_value_size: usize,
    /// The lengths of scans in records: `iter_theta`, `iter_k` and `iter_sigma`.
    pub iter: Pareto,
    /// Lengths of scans are taken modulo this number of records.
    pub mix_max_scan_len: u64,
    /// The share of gets, relative to the other two.
    pub mix_get_ratio: f64,
    /// The share of puts.
    pub mix_put_ratio: f64,
    /// The share of seeks.
    pub mix_seek_ratio: f64,
}

/// The published settings with uniform keys. Values, scans and ratios are those that the paper fits
/// to ZippyDB, with 50 million keys of 48 bytes.
pub const ALL_RANDOM: MixgraphParameters = MixgraphParameters {
    keyrange_dist_a: 0.0,
    keyrange_dist_b: 0.0,
    keyrange_dist_c: 0.0,
    keyrange_dist_d: 0.0,
    keyrange_num: 1,
    key_dist_a: 0.0,
    key_dist_b: 0.0,
    value: Pareto {
        theta: 0.0,
        k: 0.2615,
        sigma: 25.45,
    },
    mix_max_value_size: 1024,
    iter: Pareto {
        theta: 0.0,
        k: 2.517,
        sigma: 14.236,
    },
    mix_max_scan_len: 10_000,
    mix_get_ratio: 0.83,
    mix_put_ratio: 0.14,
    mix_seek_ratio: 0.03,
};

/// The published settings with hot keys that are scattered over all keys.
pub const ALL_DIST: MixgraphParameters = MixgraphParameters {
    key_dist_a: 0.002312,
    key_dist_b: 0.3467,
    ..ALL_RANDOM
};

/// The published settings with 30 ranges of different hotness and uniform keys in each.
pub const PREFIX_RANDOM: MixgraphParameters = MixgraphParameters {
    keyrange_dist_a: 14.18,
    keyrange_dist_b: -2.917,
    keyrange_dist_c: 0.0164,
    keyrange_dist_d: -0.08082,
    keyrange_num: 30,
    ..ALL_RANDOM
};

/// The published settings with 30 ranges of different hotness and hot keys in each.
pub const PREFIX_DIST: MixgraphParameters = MixgraphParameters {
    key_dist_a: ALL_DIST.key_dist_a,
    key_dist_b: ALL_DIST.key_dist_b,
    ..PREFIX_RANDOM
};

/// The smallest value that `db_bench` writes, in bytes.
const MIN_VALUE_BYTES: usize = 10;

impl MixgraphParameters {
    /// The sizes of values.
    pub fn sizes(&self) -> Sizes {
        Sizes::Pareto {
            distribution: self.value,
            min: MIN_VALUE_BYTES.min(self.mix_max_value_size),
            max: self.mix_max_value_size,
        }
    }

    fn has_ranges(&self) -> bool {
        let factors = [
            self.keyrange_dist_a,
            self.keyrange_dist_b,
            self.keyrange_dist_c,
            self.keyrange_dist_d,
        ];
        factors.iter().any(|&factor| factor != 0.0)
    }

    /// How hot a range is. As in `db_bench`, a hotness below 10^-16 is 0.
    fn hotness(&self, range: u32) -> f64 {
        let x = f64::from(range);
        let first = self.keyrange_dist_a * (self.keyrange_dist_b * x).exp();
        let second = self.keyrange_dist_c * (self.keyrange_dist_d * x).exp();
        let sum = first + second;
        if sum < 1e-16 { 0.0 } else { sum }
    }
}

/// The records that mixgraph reads and writes.
#[derive(Debug, Clone)]
pub struct MixgraphRecords {
    /// The cumulative probability of each range in the order in which they lie; empty without
    /// ranges.
    ranges: Vec<f64>,
    /// The factor and the exponent of the ranks.
    ranks: Option<(f64, f64)>,
    expected_records: u64,
}

impl MixgraphRecords {
    /// The distribution over up to `expected_records` records. As with a
    /// [`ScrambledZipfian`](super::zipfian::ScrambledZipfian), hot records stay where they are
    /// until there are more records than that.
    pub fn new(
        parameters: &MixgraphParameters,
        expected_records: u64,
    ) -> Result<MixgraphRecords, ParameterError> {
        let (a, b) = (parameters.key_dist_a, parameters.key_dist_b);
        for (name, value) in [("key_dist_a", a), ("key_dist_b", b)] {
            let accepted = (0.0..=1e6).contains(&value);
            require(accepted, "mixgraph", name, value, "from 0 to 10^6")?;
        }
        Ok(MixgraphRecords {
            ranges: ranges(parameters)?,
            ranks: (a > 0.0 && b > 0.0).then_some((a, b)),
            expected_records,
        })
    }

    /// The next record below `records`. It is 0 if `records` is 0.
    #[inline]
    pub fn next(&self, random: &mut Random, records: u64) -> u64 {
        let all = self.expected_records.max(records);
        redraw(records, || {
            let (begin, end) = self.range(random, all);
            begin + self.offset(random, end - begin)
        })
    }

    /// The records of a range that is drawn by its hotness.
    fn range(&self, random: &mut Random, records: u64) -> (u64, u64) {
        if self.ranges.is_empty() {
            return (0, records);
        }
        let unit = random.unit();
        let drawn = self
            .ranges
            .partition_point(|&cumulative| cumulative <= unit);
        let range = drawn.min(self.ranges.len() - 1) as u128;
        let border = |range: u128| (range * u128::from(records) / self.ranges.len() as u128) as u64;
        (border(range), border(range + 1))
    }

    /// A position within a range of `count` records.
    fn offset(&self, random: &mut Random, count: u64) -> u64 {
        let Some((a, b)) = self.ranks else {
            return random.below(count);
        };
        let rank = (random.unit() / a).powf(1.0 / b).ceil() as u64;
        scale(mix(rank.wrapping_add(1)), count)
    }
}

/// The cumulative probabilities of the ranges, shuffled as their number says.
fn ranges(parameters: &MixgraphParameters) -> Result<Vec<f64>, ParameterError> {
    let count = parameters.keyrange_num;
    let accepted = (1..=1 << 20).contains(&count);
    require(
        accepted,
        "mixgraph",
        "keyrange_num",
        count,
        "from 1 to 2^20",
    )?;
    if !parameters.has_ranges() {
        return Ok(Vec::new());
    }
    let hotness: Vec<f64> = (1..=count).map(|range| parameters.hotness(range)).collect();
    let all: f64 = hotness.iter().sum();
    let expected = "such that the sum of the hotness of all ranges is above 0 and finite";
    require(
        all > 0.0 && all.is_finite(),
        "mixgraph",
        "keyrange_dist",
        all,
        expected,
    )?;
    let order = Permutation::limited(u64::from(count), 0);
    let mut sum = 0.0;
    let cumulative = (0..u64::from(count)).map(|position| {
        sum += hotness[order.at(position) as usize];
        sum / all
    });
    Ok(cumulative.collect())
}

/// An operation of mixgraph.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MixgraphOperation {
    /// Reads a record.
    Get,
    /// Overwrites a record.
    Put,
    /// Seeks a record and reads this number of records from there on.
    Seek {
        /// The number of records to read, which may be 0.
        records: u64,
    },
}

/// The operations of mixgraph.
#[derive(Debug, Clone, Copy)]
pub struct MixgraphOperations {
    gets: f64,
    gets_and_puts: f64,
    scans: Pareto,
    max_scan: u64,
}

impl MixgraphOperations {
    /// Operations with the ratios and scans of these parameters. The ratios need not add up to 1.
    pub fn new(parameters: &MixgraphParameters) -> Result<MixgraphOperations, ParameterError> {
        let ratios = [
            ("mix_get_ratio", parameters.mix_get_ratio),
            ("mix_put_ratio", parameters.mix_put_ratio),
            ("mix_seek_ratio", parameters.mix_seek_ratio),
        ];
        for (name, ratio) in ratios {
            let accepted = (0.0..=1e6).contains(&ratio);
            require(accepted, "mixgraph", name, ratio, "from 0 to 10^6")?;
        }
        let sum: f64 = ratios.iter().map(|(_, ratio)| ratio).sum();
        require(
            sum > 0.0,
            "mixgraph",
            "mix_get_ratio",
            "0",
            "above 0, or another ratio",
        )?;
        parameters.iter.check("mixgraph scans")?;
        let max_scan = parameters.mix_max_scan_len;
        require(
            max_scan > 0,
            "mixgraph",
            "mix_max_scan_len",
            max_scan,
            "at least 1",
        )?;
        Ok(MixgraphOperations {
            gets: parameters.mix_get_ratio / sum,
            gets_and_puts: (parameters.mix_get_ratio + parameters.mix_put_ratio) / sum,
            scans: parameters.iter,
            max_scan,
        })
    }

    /// The next operation.
    #[inline]
    pub fn next(&self, random: &mut Random) -> MixgraphOperation {
        let unit = random.unit();
        if unit < self.gets {
            MixgraphOperation::Get
        } else if unit < self.gets_and_puts {
            MixgraphOperation::Put
        } else {
            let length = self.scans.quantile(1.0 - random.unit()).ceil() as u64;
            MixgraphOperation::Seek {
                records: length % self.max_scan,
            }
        }
    }
}

#[cfg(test)]
mod tests;

//! YCSB's zipfian generators: zipfian, scrambled zipfian and latest.
//!
//! The formulas are those of brianfrankcooper/YCSB, `core/src/main/java/site/ycsb/generator/`:
//! `ZipfianGenerator.java` at 43f53dea, `ScrambledZipfianGenerator.java` at cd1589ce and
//! `SkewedLatestGenerator.java` at eb0ef178, which take them from Gray et al., "Quickly Generating
//! Billion-Record Synthetic Databases", SIGMOD 1994. Ranks 0 and 1 have exactly the probabilities
//! of Zipf's law. The others follow an approximation: of 1000 items at theta 0.99, rank 2 has 5.1 %
//! instead of 4.4 %, and no cumulative probability is wrong by more than 2 percent points.
//!
//! Differences from YCSB: a growing number of items changes both constants of the formula (YCSB
//! keeps the first number of items in one of them), and costs the same for any number.
//!
//! Threading: a generator belongs to one thread.

use super::error::{ParameterError, require};
use super::hash::ycsb_hash;
use super::random::Random;
use super::zeta::Zeta;

/// The theta of YCSB's workloads.
pub const YCSB_THETA: f64 = 0.99;

/// Ranks below a number of items, of which rank 0 is the most frequent one.
#[derive(Debug, Clone)]
pub struct Zipfian {
    sums: Zeta,
    /// The number of items that the following constants are for.
    items: u64,
    zeta: f64,
    eta: f64,
    /// `1 / (1 - theta)`.
    alpha: f64,
    /// The sum of the first two terms.
    zeta_of_two: f64,
    /// `2^(1 - theta)`.
    power_of_two: f64,
}

impl Zipfian {
    /// A zipfian distribution whose rank `r` has a probability of about `1 / (r + 1)^theta`.
    /// `theta` is above 0 and below 1.
    pub fn new(theta: f64) -> Result<Zipfian, ParameterError> {
        require(
            theta > 0.0 && theta < 1.0,
            "zipfian",
            "theta",
            theta,
            "above 0 and below 1",
        )?;
        let sums = Zeta::new(theta);
        let two = sums.of(2);
        let mut zipfian = Zipfian {
            sums,
            items: 0,
            zeta: 0.0,
            eta: 0.0,
            alpha: 1.0 / (1.0 - theta),
            zeta_of_two: two.zeta,
            power_of_two: two.power,
        };
        zipfian.resize(1);
        Ok(zipfian)
    }

    /// The next rank below `items`. It is 0 if `items` is 0.
    #[inline]
    pub fn next(&mut self, random: &mut Random, items: u64) -> u64 {
        if items != self.items {
            self.resize(items);
        }
        self.rank(random.unit())
    }

    fn resize(&mut self, items: u64) {
        let sum = self.sums.of(items);
        self.set(items, sum.zeta, sum.power);
    }

    /// `power` is `items^(1 - theta)`.
    fn set(&mut self, items: u64, zeta: f64, power: f64) {
        self.items = items;
        self.zeta = zeta;
        self.eta = (1.0 - self.power_of_two / power) / (1.0 - self.zeta_of_two / zeta);
    }

    /// The rank of a number of [0, 1).
    #[inline]
    fn rank(&self, unit: f64) -> u64 {
        let scaled = unit * self.zeta;
        let rank = if scaled < 1.0 {
            0
        } else if scaled < self.zeta_of_two {
            1
        } else {
            let base = self.eta * unit - self.eta + 1.0;
            (self.items as f64 * base.powf(self.alpha)) as u64
        };
        rank.min(self.items.saturating_sub(1))
    }
}

/// A zipfian distribution whose frequent records are scattered over all records.
///
/// As in YCSB, a rank is drawn from 10^10 + 1 items, and its hash modulo the number of records is
/// the record. Two ranks may share a record, so this is only about a zipfian distribution.
///
/// Another number of records would move the hot records. So a run that inserts says in advance how
/// many records it expects, and records that do not exist yet are drawn again. YCSB does the same,
/// with twice the number of inserts that it expects. When a run has more records than expected, hot
/// records move with each insert.
#[derive(Debug, Clone)]
pub struct ScrambledZipfian {
    ranks: Zipfian,
    expected_records: u64,
}

impl ScrambledZipfian {
    /// YCSB's `ITEM_COUNT`. Its generator counts from 0 to this number inclusively.
    const LAST_RANK: u64 = 10_000_000_000;
    /// YCSB's `ZETAN`, the sum for theta 0.99.
    const ZETA: f64 = 26.469_028_201_783_02;

    /// A scrambled zipfian distribution over up to `expected_records` records.
    pub fn new(theta: f64, expected_records: u64) -> Result<ScrambledZipfian, ParameterError> {
        let mut ranks = Zipfian::new(theta)?;
        let items = Self::LAST_RANK + 1;
        let sum = ranks.sums.of(items);
        let zeta = if theta == YCSB_THETA {
            Self::ZETA
        } else {
            sum.zeta
        };
        ranks.set(items, zeta, sum.power);
        Ok(ScrambledZipfian {
            ranks,
            expected_records,
        })
    }

    /// The next record below `records`. It is 0 if `records` is 0.
    #[inline]
    pub fn next(&mut self, random: &mut Random, records: u64) -> u64 {
        let modulus = self.expected_records.max(records).max(1);
        redraw(records, || {
            ycsb_hash(self.ranks.rank(random.unit())) % modulus
        })
    }
}

/// Records of which the newest are the most frequent: the newest record less a zipfian rank.
///
/// The number of records must be that of the acknowledged ones
/// ([`Acknowledged`](super::acknowledged::Acknowledged)), so that no record is drawn that is not in
/// the store yet. YCSB never draws record 0; here it is the least frequent one.
#[derive(Debug, Clone)]
pub struct Latest(Zipfian);

impl Latest {
    /// The distribution with the theta of [`Zipfian`].
    pub fn new(theta: f64) -> Result<Latest, ParameterError> {
        Ok(Latest(Zipfian::new(theta)?))
    }

    /// The next record below `records`. It is 0 if `records` is 0.
    #[inline]
    pub fn next(&mut self, random: &mut Random, records: u64) -> u64 {
        let rank = self.0.next(random, records);
        records.saturating_sub(1) - rank
    }
}

/// How often a record that does not exist yet is drawn again.
const REDRAWS: usize = 64;

/// Draws until the result is below `records`. After 64 draws the last one is taken modulo
/// `records`, so that this ends even if far more records are expected than exist.
#[inline]
pub(super) fn redraw(records: u64, mut draw: impl FnMut() -> u64) -> u64 {
    for _ in 0..REDRAWS {
        let record = draw();
        if record < records {
            return record;
        }
    }
    draw().checked_rem(records).unwrap_or(0)
}

#[cfg(test)]
mod tests;

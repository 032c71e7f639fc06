//! YCSB's exponential distribution: the newest records are the most frequent ones, and their
//! frequency falls exponentially with their age.
//!
//! A percentage of the operations goes to a fraction of the records, before the limit to existing
//! records. The formula is that of brianfrankcooper/YCSB,
//! `core/src/main/java/site/ycsb/generator/ExponentialGenerator.java` at cd1589ce and `nextKeynum`
//! of `workloads/CoreWorkload.java` at 048cbaed; its defaults are 95 and 0.8571428571 (a comment
//! there calls this 1/7, but it is 6/7). YCSB draws again when an age is beyond the oldest record;
//! here the distribution is cut there at once, which gives the same probabilities. YCSB takes the
//! fraction of the first number of records, here it is a fraction of the present one.
//!
//! Threading: a generator belongs to one thread.

use super::error::{ParameterError, require};
use super::random::Random;

/// Records of which newer ones are exponentially more frequent.
#[derive(Debug, Clone, Copy)]
pub struct Exponential {
    /// The decay over all records: the oldest record is `exp(-decay)` times as frequent as the
    /// newest.
    decay: f64,
    /// The probability that an age is that of an existing record: `1 - exp(-decay)`.
    existing: f64,
}

impl Exponential {
    /// A distribution that sends `percentile` percent of the operations to the newest `fraction` of
    /// the records. `percentile` is above 0 and below 100, `fraction` is positive and may be above
    /// 1.
    pub fn new(percentile: f64, fraction: f64) -> Result<Exponential, ParameterError> {
        let accepted = percentile > 0.0 && percentile < 100.0;
        require(
            accepted,
            "exponential",
            "percentile",
            percentile,
            "above 0 and below 100",
        )?;
        let accepted = (1e-9..=1e9).contains(&fraction);
        require(
            accepted,
            "exponential",
            "fraction",
            fraction,
            "from 10^-9 to 10^9",
        )?;
        let decay = -(-percentile / 100.0).ln_1p() / fraction;
        Ok(Exponential {
            decay,
            existing: -(-decay).exp_m1(),
        })
    }

    /// The next record below `records`. It is 0 if `records` is 0.
    #[inline]
    pub fn next(&self, random: &mut Random, records: u64) -> u64 {
        // In [0, 1): the age as a fraction of all records.
        let age = -(-random.unit() * self.existing).ln_1p() / self.decay;
        let newest = records.saturating_sub(1);
        newest - ((age * records as f64) as u64).min(newest)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn the_percentage_goes_to_the_fraction_before_the_limit() {
        let exponential = Exponential::new(95.0, 0.1).unwrap();
        let mut random = Random::new(1, 0);
        let records = 100_000;
        let newest_tenth = (0..100_000)
            .filter(|_| exponential.next(&mut random, records) >= records / 10 * 9)
            .count();
        // A tenth of the records is 1/10 of the decay, beyond which exp(-30) is cut off.
        assert!((94_500..95_500).contains(&newest_tenth), "{newest_tenth}");
    }

    #[test]
    fn the_frequency_falls_exponentially_with_the_age() {
        let exponential = Exponential::new(95.0, 0.857_142_857_1).unwrap();
        let mut random = Random::new(2, 0);
        let mut counts = [0u32; 10];
        (0..200_000).for_each(|_| counts[exponential.next(&mut random, 10) as usize] += 1);
        let decay = -(0.05f64.ln()) / 0.857_142_857_1 / 10.0;
        let all: f64 = (0..10).map(|age| (-decay * f64::from(age)).exp()).sum();
        for age in 0..10u32 {
            let expected = (-decay * f64::from(age)).exp() / all;
            let share = f64::from(counts[9 - age as usize]) / 2e5;
            // Five standard deviations of a proportion of 200,000 are at most 0.0056.
            assert!(
                (share - expected).abs() < 0.0056,
                "age {age}: {share}, {expected}"
            );
        }
    }

    #[test]
    fn parameters_out_of_range_are_refused() {
        for bad in [0.0, 100.0, -1.0, f64::NAN] {
            assert!(Exponential::new(bad, 0.5).is_err());
        }
        for bad in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(Exponential::new(95.0, bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn draws_keep_their_bounds(
            seed: u64, records: u64, percentile in 0.001f64..99.999, fraction in 1e-9f64..1e9,
        ) {
            let exponential = Exponential::new(percentile, fraction).unwrap();
            let mut random = Random::new(seed, 0);
            for records in [records, 0, 1, 2] {
                prop_assert!(exponential.next(&mut random, records) < records.max(1));
            }
        }
    }
}

//! YCSB's hotspot distribution: a share of the operations goes to a share of the records.
//!
//! The hot records are the first ones, and within the hot and the cold records each has the same
//! probability. The formula is that of brianfrankcooper/YCSB,
//! `core/src/main/java/site/ycsb/generator/HotspotIntegerGenerator.java` at eb0ef178; its workloads
//! use a data fraction of 0.2 and an operation fraction of 0.8. YCSB divides by zero if a fraction
//! leaves no hot or no cold record; here the other part takes all operations.
//!
//! Threading: a generator belongs to one thread.

use super::error::{ParameterError, require};
use super::random::Random;

/// Records of which a part is hot.
#[derive(Debug, Clone, Copy)]
pub struct Hotspot {
    data_fraction: f64,
    operation_fraction: f64,
}

impl Hotspot {
    /// A distribution that sends `operation_fraction` of the operations to the first
    /// `data_fraction` of the records. Both are from 0 to 1.
    pub fn new(data_fraction: f64, operation_fraction: f64) -> Result<Hotspot, ParameterError> {
        for (name, fraction) in [
            ("data_fraction", data_fraction),
            ("operation_fraction", operation_fraction),
        ] {
            let accepted = (0.0..=1.0).contains(&fraction);
            require(accepted, "hotspot", name, fraction, "from 0 to 1")?;
        }
        Ok(Hotspot {
            data_fraction,
            operation_fraction,
        })
    }

    /// The next record below `records`. It is 0 if `records` is 0.
    #[inline]
    pub fn next(&self, random: &mut Random, records: u64) -> u64 {
        let hot = ((records as f64 * self.data_fraction) as u64).min(records);
        let wants_hot = random.chance(self.operation_fraction);
        if hot == records || (wants_hot && hot > 0) {
            random.below(hot)
        } else {
            hot + random.below(records - hot)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn four_fifths_of_the_operations_go_to_a_fifth_of_the_records() {
        let hotspot = Hotspot::new(0.2, 0.8).unwrap();
        let mut random = Random::new(1, 0);
        let mut counts = [0u32; 1000];
        (0..200_000).for_each(|_| counts[hotspot.next(&mut random, 1000) as usize] += 1);
        let hot: u32 = counts[..200].iter().sum();
        // Five standard deviations are 900.
        assert!((159_100..160_900).contains(&hot), "{hot}");
        // Each hot record has 800 operations, each cold one 50.
        assert!(counts[..200].iter().all(|c| (650..950).contains(c)));
        assert!(counts[200..].iter().all(|c| (10..100).contains(c)));
    }

    #[test]
    fn a_part_without_records_gets_no_operations() {
        let mut random = Random::new(1, 0);
        let no_hot = Hotspot::new(0.0, 1.0).unwrap();
        let no_cold = Hotspot::new(1.0, 0.0).unwrap();
        for hotspot in [no_hot, no_cold] {
            let sum: u64 = (0..1000).map(|_| hotspot.next(&mut random, 10)).sum();
            assert!((3900..5100).contains(&sum), "{sum}");
        }
    }

    #[test]
    fn the_hot_part_grows_with_the_records() {
        let hotspot = Hotspot::new(0.5, 1.0).unwrap();
        let mut random = Random::new(1, 0);
        for records in [1000u64, 2000] {
            let most = (0..5000)
                .map(|_| hotspot.next(&mut random, records))
                .max()
                .unwrap();
            assert!((records * 49 / 100..records / 2).contains(&most), "{most}");
        }
    }

    #[test]
    fn fractions_out_of_range_are_refused() {
        for bad in [-0.1, 1.1, f64::NAN] {
            assert!(Hotspot::new(bad, 0.5).is_err());
            assert!(Hotspot::new(0.5, bad).is_err());
        }
    }

    proptest! {
        #[test]
        fn draws_keep_their_bounds(
            seed: u64, records: u64, data in 0.0f64..=1.0, operations in 0.0f64..=1.0,
        ) {
            let hotspot = Hotspot::new(data, operations).unwrap();
            let mut random = Random::new(seed, 0);
            for records in [records, 0, 1, 2] {
                prop_assert!(hotspot.next(&mut random, records) < records.max(1));
            }
        }
    }
}

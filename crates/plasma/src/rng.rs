//! Random and evenly distributed numbers, computed with integers only, the same on every platform.
//!
//! Numbers are functions of (seed, purpose, index), so a particle's numbers do not depend on the
//! order in which they are drawn. These are pure functions; there is no threading rule.

/// What a number is used for. Equal indices of different streams are unrelated.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stream {
    /// Keys of the permutation from ids to slots.
    Ids = 1,
    /// Random positions.
    Positions = 2,
    /// Shifts of the low-discrepancy sequences, by beam and component.
    Shifts = 3,
    /// Random velocities.
    Velocities = 4,
}

/// The output function of splitmix64 (Steele, Lea, Flood 2014), a bijection without visible
/// patterns.
fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The number `index` of a stream: splitmix64 with a different start for each seed and stream.
pub(crate) fn random(seed: u64, stream: Stream, index: u64) -> u64 {
    const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;
    let start = mix(mix(seed.wrapping_add(GOLDEN)) ^ (stream as u64).wrapping_mul(GOLDEN));
    mix(start.wrapping_add(index.wrapping_mul(GOLDEN)))
}

/// A number strictly between 0 and 1 from the upper 52 bits: the middles of 2^52 equal intervals.
pub(crate) fn unit(bits: u64) -> f64 {
    ((bits >> 12) as f64 + 0.5) * (1.0 / (1u64 << 52) as f64)
}

/// `index` written in `BASE` with its digits mirrored at the point (van der Corput), as a fraction
/// of 2^64.
///
/// Any run of successive indices is evenly distributed, which makes a start quiet.
pub(crate) fn radical_inverse<const BASE: u64>(mut index: u64) -> u64 {
    if BASE == 2 {
        return index.reverse_bits();
    }
    let mut digit_value = u64::MAX / BASE;
    let mut sum = 0u64;
    while index > 0 && digit_value > 0 {
        // Digits are below the base, so the sum stays below u64::MAX.
        sum += (index % BASE) * digit_value;
        index /= BASE;
        digit_value /= BASE;
    }
    sum
}

/// A bijection of `0..count`, chosen by a seed, that separates neighbours.
///
/// It mixes within the next power of two by invertible steps, and repeats them while the result is
/// outside `0..count` (less than once on average), so it needs no table.
#[derive(Clone, Debug)]
pub(crate) struct Shuffle {
    count: u64,
    mask: u64,
    shift: u32,
    rounds: [(u64, u64); 4],
}

impl Shuffle {
    pub(crate) fn new(count: u64, seed: u64) -> Self {
        let mask = count.max(2).next_power_of_two() - 1;
        let number = |index| random(seed, Stream::Ids, index);
        Shuffle {
            count,
            mask,
            // Folding the upper half onto the lower moves its bits down, because products move bits
            // only up.
            shift: mask.count_ones().div_ceil(2),
            rounds: std::array::from_fn(|i| (number(2 * i as u64) | 1, number(2 * i as u64 + 1))),
        }
    }

    /// The image of `index`, which must be below `count`, or the loop might not end.
    pub(crate) fn at(&self, index: u64) -> u64 {
        debug_assert!(index < self.count);
        let mut at = index;
        loop {
            for (factor, offset) in self.rounds {
                at = at.wrapping_mul(factor).wrapping_add(offset) & self.mask;
                at ^= at >> self.shift;
            }
            if at < self.count {
                return at;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_bijection_without_neighbours() {
        for count in (1..70).chain([1000, 1023, 1024, 1025, 4099]) {
            for seed in 0..3 {
                let shuffle = Shuffle::new(count, seed);
                let mut seen = vec![false; count as usize];
                for index in 0..count {
                    let at = shuffle.at(index) as usize;
                    assert!(
                        !std::mem::replace(&mut seen[at], true),
                        "{count} {seed} {at}"
                    );
                }
            }
        }
        let shuffle = Shuffle::new(100_000, 7);
        let near = (1..100_000u64)
            .filter(|i| shuffle.at(*i).abs_diff(shuffle.at(i - 1)) < 100)
            .count();
        // By chance 0.2% of the pairs are near; a flaw of the mixing would make many more.
        assert!(near < 2_000, "{near} of 100000 pairs are near");
    }

    #[test]
    fn shuffles_of_different_seeds_differ() {
        let (a, b) = (Shuffle::new(1000, 1), Shuffle::new(1000, 2));
        let same = (0..1000).filter(|i| a.at(*i) == b.at(*i)).count();
        assert!(same < 20, "{same}");
    }

    #[test]
    fn units_stay_strictly_inside() {
        assert!(unit(0) > 0.0);
        assert!(unit(u64::MAX) < 1.0);
        assert!((unit(1 << 63) - 0.5).abs() < 1e-15);
    }

    #[test]
    fn radical_inverses_mirror_the_digits() {
        let third = (u64::MAX / 3) as f64;
        assert_eq!(radical_inverse::<2>(1), 1 << 63);
        assert_eq!(radical_inverse::<2>(3), 3 << 62);
        assert_eq!(radical_inverse::<3>(1) as f64, third);
        let five = radical_inverse::<3>(5) as f64;
        assert!((five / (2.0 * third + third / 3.0) - 1.0).abs() < 1e-12);
        spreads::<2>();
        spreads::<3>();
        spreads::<5>();
        // The longest run of digits stays in range, too.
        assert!(radical_inverse::<3>(u64::MAX) > 0);
        assert!(radical_inverse::<5>(u64::MAX) > 0);
    }

    /// The first `BASE`^6 points fall one each into as many equal intervals.
    fn spreads<const BASE: u64>() {
        let count = BASE.pow(6);
        let mut points: Vec<u64> = (0..count).map(radical_inverse::<BASE>).collect();
        points.sort_unstable();
        for (i, point) in points.iter().enumerate() {
            let at = *point as f64 / 2f64.powi(64) * count as f64;
            assert!((at - i as f64).abs() < 1e-6, "base {BASE}, {i}: {at}");
        }
    }

    #[test]
    fn random_numbers_are_spread_and_streams_differ() {
        let mean = (0..10_000)
            .map(|i| unit(random(3, Stream::Positions, i)))
            .sum::<f64>()
            / 1e4;
        assert!((mean - 0.5).abs() < 0.02, "{mean}");
        assert_ne!(
            random(3, Stream::Positions, 5),
            random(3, Stream::Velocities, 5)
        );
        assert_ne!(
            random(3, Stream::Positions, 5),
            random(4, Stream::Positions, 5)
        );
    }
}

//! The numbers 0..n in an order that looks random, with access to any position.
//!
//! A Feistel network with four rounds permutes the next power of two. Results that are not below
//! `n` are permuted again until one is (cycle walking), which takes less than two steps on average.
//! So a fill can write every key exactly once without a list of them, and several threads can share
//! one order by taking every T-th position.
//!
//! Threading: immutable, shared by reference.

use super::error::{ParameterError, require};
use super::hash::mix;

const ROUNDS: usize = 4;

/// An order of the numbers 0..n.
#[derive(Debug, Clone)]
pub struct Permutation {
    n: u64,
    /// The network's two halves, in bits. The right half is empty if `n` is at most 2.
    left_bits: u32,
    right_bits: u32,
    keys: [u64; ROUNDS],
}

impl Permutation {
    /// An order of 0..n that depends on `seed`. `n` is from 1 to 2^63.
    pub fn new(n: u64, seed: u64) -> Result<Permutation, ParameterError> {
        let accepted = (1..=1 << 63).contains(&n);
        require(accepted, "permutation", "n", n, "from 1 to 2^63")?;
        Ok(Permutation::limited(n, seed))
    }

    /// An order of 0..n, where `n` is limited to what `new` accepts.
    pub(super) fn limited(n: u64, seed: u64) -> Permutation {
        let n = n.clamp(1, 1 << 63);
        let bits = 64 - (n - 1).leading_zeros();
        let key = |round: usize| mix(seed.wrapping_add(mix(round as u64 + 1)));
        Permutation {
            n,
            left_bits: bits.div_ceil(2),
            right_bits: bits / 2,
            keys: std::array::from_fn(key),
        }
    }

    /// How many numbers are permuted.
    pub fn count(&self) -> u64 {
        self.n
    }

    /// The number at `position`. The order repeats after `n` positions.
    #[inline]
    pub fn at(&self, position: u64) -> u64 {
        let mut x = position;
        if x >= self.n {
            x %= self.n;
        }
        loop {
            x = self.network(x);
            if x < self.n {
                return x;
            }
        }
    }

    /// A bijection of the next power of two. Each line changes one half by a function of the other
    /// half, which can be undone.
    #[inline]
    fn network(&self, x: u64) -> u64 {
        let left_mask = (1u64 << self.left_bits) - 1;
        let right_mask = (1u64 << self.right_bits) - 1;
        let (mut left, mut right) = (x >> self.right_bits, x & right_mask);
        for keys in self.keys.as_chunks::<2>().0 {
            left ^= fold(right, keys[0]) & left_mask;
            right ^= fold(left, keys[1]) & right_mask;
        }
        left << self.right_bits | right
    }
}

/// A hash of `x` with a key: the two halves of a product of 128 bits, folded.
#[inline]
fn fold(x: u64, key: u64) -> u64 {
    let product = u128::from(x ^ key) * 0x9e37_79b9_7f4a_7c15;
    (product >> 64) as u64 ^ product as u64
}

#[cfg(test)]
mod tests {
    use super::super::random::Random;
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn every_number_comes_once() {
        for n in (1..70).chain([100, 1000, 4096, 4097, 65_535]) {
            let order = Permutation::new(n, 7).unwrap();
            let mut seen: Vec<u64> = (0..n).map(|i| order.at(i)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn sizes_out_of_range_are_refused() {
        assert!(Permutation::new(0, 1).is_err());
        let error = Permutation::new((1 << 63) + 1, 1).unwrap_err().to_string();
        assert!(error.contains("from 1 to 2^63"), "{error}");
    }

    #[test]
    fn the_largest_size_has_no_duplicates_among_many_positions() {
        let order = Permutation::new(1 << 63, 3).unwrap();
        let mut seen: Vec<u64> = (0..50_000).map(|i| order.at((1 << 62) + i)).collect();
        seen.sort_unstable();
        seen.dedup();
        assert_eq!(seen.len(), 50_000);
        assert!(seen.iter().all(|&x| x < 1 << 63));
    }

    #[test]
    fn the_order_repeats_after_the_last_position() {
        let order = Permutation::new(1000, 3).unwrap();
        assert_eq!(order.at(1000 * 5 + 17), order.at(17));
    }

    /// Neighbours in the order are independent: the pairs of (tenth of the range, tenth of the
    /// range) of adjacent positions fill a table evenly.
    #[test]
    fn neighbours_are_independent() {
        for n in [10_000, 65_536, 100_003] {
            let order = Permutation::new(n, 11).unwrap();
            let mut table = [0u32; 100];
            let tenth = |i: u64| (order.at(i) * 10 / n) as usize;
            (1..n).for_each(|i| table[tenth(i - 1) * 10 + tenth(i)] += 1);
            let expected = n as f64 / 100.0;
            let chi: f64 = table
                .iter()
                .map(|&c| (f64::from(c) - expected).powi(2) / expected)
                .sum();
            // Chi-square with 99 degrees of freedom exceeds 180 once in a million.
            assert!(chi < 180.0, "n {n}, chi-square {chi}");
        }
    }

    #[test]
    fn seeds_give_different_orders() {
        let orders = [1u64, 2].map(|seed| Permutation::new(5000, seed).unwrap());
        let equal = (0..5000)
            .filter(|&i| orders[0].at(i) == orders[1].at(i))
            .count();
        // On average one position has the same number in two random orders.
        assert!(equal < 10, "{equal}");
    }

    #[test]
    fn small_orders_reach_every_arrangement() {
        let mut seen = std::collections::HashSet::new();
        for seed in 0..2000 {
            let order = Permutation::new(4, seed).unwrap();
            seen.insert([0, 1, 2, 3].map(|i| order.at(i)));
        }
        // A network of one-bit halves makes even permutations of a power of two only.
        assert!(seen.len() >= 12, "{}", seen.len());
    }

    proptest! {
        #[test]
        fn numbers_stay_below_any_size(n in 1u64..=1 << 63, position: u64, seed: u64) {
            prop_assert!(Permutation::new(n, seed).unwrap().at(position) < n);
        }

        #[test]
        fn random_sizes_are_permuted(n in 1u64..3000, seed: u64) {
            let order = Permutation::new(n, seed).unwrap();
            let mut seen = vec![false; n as usize];
            (0..n).for_each(|i| seen[order.at(i) as usize] = true);
            prop_assert!(seen.into_iter().all(|s| s));
        }
    }

    #[test]
    fn far_positions_are_as_even_as_near_ones() {
        let order = Permutation::new(1 << 40, 5).unwrap();
        let mut random = Random::new(5, 0);
        let mean = (0..20_000)
            .map(|_| order.at(random.below(1 << 40)) as f64)
            .sum::<f64>()
            / 2e4;
        assert!((mean / (1u64 << 40) as f64 - 0.5).abs() < 0.012, "{mean}");
    }
}

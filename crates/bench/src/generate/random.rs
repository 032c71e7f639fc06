//! The random stream that every generator draws from.
//!
//! It is xoshiro256++ of the crate `rand_xoshiro`, which ports the authors' reference and checks
//! itself against it; a test here pins the first outputs. The 2^256 numbers of its cycle are
//! divided between the threads of a run: thread `t` starts `t` jumps of 2^128 numbers after the
//! seed, so the streams of two threads never overlap. The purposes of one thread (which record,
//! which operation, when) take lanes, which are 2^192 numbers apart. A [`Stream`] names the thread
//! and the lane.
//!
//! The integers are equal on every machine. Numbers that pass through `ln`, `exp` or `pow` of the
//! platform may differ in their last bit between platforms, which changes about one draw in 10^12.
//!
//! Threading: a stream belongs to one thread.

use rand_xoshiro::Xoshiro256PlusPlus;
use rand_xoshiro::rand_core::{Rng, SeedableRng};

use super::error::{ParameterError, require};
use super::hash::mix;

/// Which stream a generator draws from: the seed of the run, the thread and a lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stream {
    seed: u64,
    thread: u32,
    threads: u32,
    lane: u32,
}

impl Stream {
    /// Lane 0 of thread `thread` (from 0) of `threads` threads.
    pub fn new(seed: u64, thread: u32, threads: u32) -> Result<Stream, ParameterError> {
        let expected = format!("below the number of threads, {threads}");
        require(thread < threads, "stream", "thread", thread, &expected)?;
        Ok(Stream {
            seed,
            thread,
            threads,
            lane: 0,
        })
    }

    /// Another lane of the same thread. Each generator of a thread needs a lane of its own, since
    /// two generators of the same stream would draw the same numbers. The number is the same in all
    /// threads, so that they share the order of a permutation.
    pub fn lane(self, lane: u32) -> Stream {
        Stream { lane, ..self }
    }

    /// The random numbers of the stream.
    pub fn random(&self) -> Random {
        Random::new(self.seed, self.thread).lane(self.lane)
    }

    /// The seed of the run.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The number of the lane.
    pub fn lane_number(&self) -> u32 {
        self.lane
    }

    /// The number of the thread, from 0.
    pub fn thread(&self) -> u32 {
        self.thread
    }

    /// The number of threads, at least 1.
    pub fn threads(&self) -> u32 {
        self.threads
    }
}

/// The seed of what a workload draws. It depends on all three: on the seed of keys and values, on
/// the seed of operations, and on the name of the workload. So no workload repeats the draws of
/// another one, nor those of another round of itself.
pub fn seed_of_operations(seed: u64, operation_seed: u64, workload: &str) -> u64 {
    let absorb = |hash: u64, word: u64| mix(hash.wrapping_add(GOLDEN) ^ word);
    let hash = workload.bytes().map(u64::from).fold(mix(seed), absorb);
    absorb(hash, operation_seed)
}

/// 2^64 divided by the golden ratio, which keeps zeros from staying zero.
const GOLDEN: u64 = 0x9e37_79b9_7f4a_7c15;

/// A stream of random numbers.
#[derive(Debug, Clone)]
pub struct Random(Xoshiro256PlusPlus);

impl Random {
    /// The stream of one thread of a run. Creating it takes about a microsecond for each unit of
    /// `thread`.
    pub fn new(seed: u64, thread: u32) -> Random {
        let mut state = Xoshiro256PlusPlus::seed_from_u64(seed);
        for _ in 0..thread {
            state.jump();
        }
        Random(state)
    }

    /// A stream of the same thread for another purpose. Lanes differ from each other and from the
    /// stream itself. Ask a stream from which nothing has been drawn, so that lanes of different
    /// threads do not overlap.
    pub fn lane(&self, lane: u32) -> Random {
        let mut state = self.0.clone();
        for _ in 0..=lane {
            state.long_jump();
        }
        Random(state)
    }

    /// A number of 64 random bits.
    #[inline]
    pub fn bits(&mut self) -> u64 {
        self.0.next_u64()
    }

    /// A number below `n`, each with exactly the same probability (Lemire's method). It is 0 if `n`
    /// is 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        let mut product = u128::from(self.bits()) * u128::from(n);
        if (product as u64) < n {
            let first_unbiased = n.wrapping_neg() % n;
            while (product as u64) < first_unbiased {
                product = u128::from(self.bits()) * u128::from(n);
            }
        }
        (product >> 64) as u64
    }

    /// A number of [0, 1), a multiple of 2^-53.
    #[inline]
    pub fn unit(&mut self) -> f64 {
        (self.bits() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }

    /// True with this probability.
    #[inline]
    pub fn chance(&mut self, probability: f64) -> bool {
        self.unit() < probability
    }

    /// A number of the exponential distribution with mean 1, at most 37.
    #[inline]
    pub fn exponential(&mut self) -> f64 {
        -(1.0 - self.unit()).ln()
    }

    /// Fills `bytes` with random bytes.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        self.0.fill_bytes(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// The reference values were computed from the published algorithm (xoshiro256plusplus.c,
    /// seeded by splitmix64) by a program of its own.
    #[test]
    fn the_first_numbers_never_change() {
        let mut random = Random::new(42, 0);
        let numbers = [random.bits(), random.bits(), random.bits(), random.bits()];
        let reference = [
            0xd076_4d4f_4476_689f,
            0x519e_4174_576f_3791,
            0xfbe0_7cfb_0c24_ed8c,
            0xb37d_9f60_0cd8_35b8,
        ];
        assert_eq!(numbers, reference);
    }

    #[test]
    fn threads_and_lanes_start_at_the_published_jumps() {
        let mut third = Random::new(42, 3);
        assert_eq!(third.bits(), 0x6ce8_c5b3_2e1d_aa5c);
        let mut lane = Random::new(42, 1).lane(1);
        assert_eq!(lane.bits(), 0x3255_2609_91eb_c184);
    }

    #[test]
    fn streams_of_seeds_threads_and_lanes_are_not_correlated() {
        let draw =
            |mut random: Random| -> Vec<f64> { (0..20_000).map(|_| random.unit()).collect() };
        let first = Random::new(1, 0);
        let streams = [
            draw(first.clone()),
            draw(Random::new(1, 1)),
            draw(Random::new(1, 2)),
            draw(Random::new(2, 0)),
            draw(first.lane(0)),
            draw(first.lane(1)),
        ];
        for (i, a) in streams.iter().enumerate() {
            for b in &streams[..i] {
                let covariance: f64 = a.iter().zip(b).map(|(x, y)| (x - 0.5) * (y - 0.5)).sum();
                // The correlation of 20,000 pairs has a standard deviation of 0.0071.
                let correlation = covariance * 12.0 / a.len() as f64;
                assert!(correlation.abs() < 0.035, "correlation {correlation}");
            }
        }
    }

    #[test]
    fn numbers_below_six_are_equally_frequent() {
        let mut random = Random::new(7, 0);
        let mut counts = [0u32; 6];
        for _ in 0..60_000 {
            counts[random.below(6) as usize] += 1;
        }
        let chi: f64 = counts
            .iter()
            .map(|&c| (f64::from(c) - 1e4).powi(2) / 1e4)
            .sum();
        // Chi-square with 5 degrees of freedom exceeds 35 once in 700,000.
        assert!(chi < 35.0, "{counts:?}");
    }

    /// Of four numbers of 64 bits, three are mapped to three numbers below 3 * 2^62, and the fourth
    /// has to be rejected. Without rejection, the multiples of 3 would come twice as often.
    #[test]
    fn rejection_removes_the_bias_of_large_bounds() {
        let mut random = Random::new(9, 0);
        let mut counts = [0i64; 3];
        (0..30_000).for_each(|_| counts[(random.below(3 << 62) % 3) as usize] += 1);
        assert!(
            counts.iter().all(|c| (c - 10_000).abs() < 500),
            "{counts:?}"
        );
    }

    #[test]
    fn the_exponential_has_mean_and_deviation_one() {
        let mut random = Random::new(3, 0);
        let draws: Vec<f64> = (0..100_000).map(|_| random.exponential()).collect();
        let mean = draws.iter().sum::<f64>() / 1e5;
        let variance = draws.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / 1e5;
        assert!((mean - 1.0).abs() < 0.02, "{mean}");
        assert!((variance - 1.0).abs() < 0.06, "{variance}");
        assert!(draws.iter().all(|&x| (0.0..37.0).contains(&x)));
    }

    #[test]
    fn a_stream_names_a_thread_and_a_lane() {
        let stream = Stream::new(42, 1, 2).unwrap().lane(1);
        assert_eq!(stream.random().bits(), 0x3255_2609_91eb_c184);
        let error = Stream::new(42, 2, 2).unwrap_err().to_string();
        assert!(error.contains("below the number of threads, 2"), "{error}");
        assert!(Stream::new(42, 0, 0).is_err());
    }

    proptest! {
        #[test]
        fn draws_keep_their_bounds(seed: u64, n: u64) {
            let mut random = Random::new(seed, 0);
            prop_assert!(random.below(n) < n.max(1));
            prop_assert!((0.0..1.0).contains(&random.unit()));
            prop_assert_eq!(random.below(1), 0);
            prop_assert!(random.chance(1.0) && !random.chance(0.0));
        }
    }
}

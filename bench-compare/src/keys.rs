//! Keys and values. Keys are 16 decimal digits, as db_bench writes them, of even numbers only, so
//! that odd numbers are absent keys between present ones.

/// A bijection of 0..2^64, for values and orders that look random and are the same in every run.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The key of a number.
pub fn key(mut number: u64) -> [u8; 16] {
    let mut digits = [b'0'; 16];
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
    digits
}

/// The key of the `i`th entry.
pub fn present(i: u64) -> [u8; 16] {
    key(2 * i)
}

/// A key that is nowhere, in the middle of those that are.
pub fn missing(i: u64) -> [u8; 16] {
    key(2 * i + 1)
}

/// The numbers 0..n in an order that looks random, each once: a Feistel permutation of the next
/// power of four, applied again to results that are out of range.
pub struct Shuffle {
    n: u64,
    half_bits: u32,
    seed: u64,
}

impl Shuffle {
    /// An order of 0..n.
    pub fn new(n: u64, seed: u64) -> Shuffle {
        let bits = 64 - n.saturating_sub(1).leading_zeros();
        Shuffle {
            n,
            half_bits: bits.div_ceil(2).max(1),
            seed,
        }
    }

    /// The number at place `i`.
    pub fn at(&self, i: u64) -> u64 {
        let mask = (1u64 << self.half_bits) - 1;
        let mut x = i;
        loop {
            let (mut left, mut right) = (x >> self.half_bits, x & mask);
            for round in 0..3 {
                (left, right) = (
                    right,
                    left ^ (mix(right ^ self.seed ^ (round << 56)) & mask),
                );
            }
            x = left << self.half_bits | right;
            if x < self.n {
                return x;
            }
        }
    }
}

/// Values: windows of random bytes.
pub struct Values {
    bytes: Vec<u8>,
    len: usize,
}

impl Values {
    /// Values of `len` bytes.
    pub fn new(len: usize) -> Values {
        let bytes = (0..(1u64 << 17) + len as u64 / 8 + 1)
            .flat_map(|i| mix(i + 1).to_le_bytes())
            .collect();
        Values { bytes, len }
    }

    /// The value number `i`.
    pub fn at(&self, i: u64) -> &[u8] {
        let from = (mix(i) & 0xf_ffff) as usize;
        &self.bytes[from..from + self.len]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shuffle_is_a_permutation() {
        for n in [1, 2, 3, 100, 1000, 4097] {
            let shuffle = Shuffle::new(n, 7);
            let mut seen: Vec<u64> = (0..n).map(|i| shuffle.at(i)).collect();
            seen.sort_unstable();
            assert_eq!(seen, (0..n).collect::<Vec<_>>());
        }
    }

    #[test]
    fn keys_sort_as_numbers() {
        assert!(key(9) < key(10));
        assert_eq!(&key(42), b"0000000000000042");
    }
}

//! Hashes of numbers. They decide which keys are hot and what values contain, so their results
//! never change.

/// A bijection of all 64-bit numbers whose results look random: the last step of splitmix64.
#[inline]
pub const fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(MULTIPLIER_1);
    x = (x ^ (x >> 27)).wrapping_mul(MULTIPLIER_2);
    x ^ (x >> 31)
}

/// The number whose [`mix`] is `x`.
#[inline]
pub const fn unmix(mut x: u64) -> u64 {
    x ^= (x >> 31) ^ (x >> 62);
    x = x.wrapping_mul(INVERSE_2);
    x ^= (x >> 27) ^ (x >> 54);
    x = x.wrapping_mul(INVERSE_1);
    x ^ (x >> 30) ^ (x >> 60)
}

/// Maps a hash to a number below `n`, as `hash * n / 2^64`. It returns 0 if `n` is 0.
#[inline]
pub const fn scale(hash: u64, n: u64) -> u64 {
    ((hash as u128 * n as u128) >> 64) as u64
}

/// YCSB's `Utils.fnvhash64`: FNV-1a over the eight bytes of `number`, lowest first, and then the
/// absolute value of the signed result. So it is at most 2^63. (brianfrankcooper/YCSB,
/// `core/src/main/java/site/ycsb/Utils.java` at fc575841.)
#[inline]
pub const fn ycsb_hash(number: u64) -> u64 {
    let bytes = number.to_le_bytes();
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut i = 0;
    while i < bytes.len() {
        hash = (hash ^ bytes[i] as u64).wrapping_mul(0x0100_0000_01b3);
        i += 1;
    }
    (hash as i64).unsigned_abs()
}

const MULTIPLIER_1: u64 = 0xbf58_476d_1ce4_e5b9;
const MULTIPLIER_2: u64 = 0x94d0_49bb_1331_11eb;
const INVERSE_1: u64 = inverse(MULTIPLIER_1);
const INVERSE_2: u64 = inverse(MULTIPLIER_2);

/// The inverse of an odd number modulo 2^64. Each step of Newton's method doubles the number of
/// correct bits; the first guess has three.
const fn inverse(odd: u64) -> u64 {
    let mut guess = odd;
    let mut step = 0;
    while step < 5 {
        guess = guess.wrapping_mul(2u64.wrapping_sub(odd.wrapping_mul(guess)));
        step += 1;
    }
    guess
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn unmix_inverts_mix(x: u64) {
            prop_assert_eq!(unmix(mix(x)), x);
            prop_assert_eq!(mix(unmix(x)), x);
        }

        #[test]
        fn a_scaled_hash_is_below_its_bound(hash: u64, n in 1u64..) {
            prop_assert!(scale(hash, n) < n);
        }
    }

    #[test]
    fn the_hash_is_the_one_of_ycsb() {
        // The keys of YCSB's first records are known from every trace of it.
        assert_eq!(ycsb_hash(0), 6_284_781_860_667_377_211);
        assert_eq!(ycsb_hash(1), 8_517_097_267_634_966_620);
        assert_eq!(ycsb_hash(2), 1_820_151_046_732_198_393);
        assert_eq!(ycsb_hash(999_999_999), 8_633_926_357_354_286_146);
    }
}

//! Keys from numbers. Record `i` has the number `2 * i`, and `2 * i + 1` is the number of a key
//! that no record has, next to the key of the record.
//!
//! Two forms exist. [`Keys::decimal`] writes the number in decimal digits, padded with zeros to the
//! size of the key, so that keys sort as their numbers do. [`Keys::ycsb`] writes YCSB's key of the
//! record (`insertorder=hashed`): `user` and the hash of the record's number in decimal digits, so
//! that the order of records is not the order of keys.
//!
//! Threading: immutable, shared by reference. Each thread brings its own buffer.

use super::error::{ParameterError, require};
use super::hash::ycsb_hash;

/// The size of the largest key in bytes.
pub const MAX_KEY_BYTES: usize = 1024;

/// A buffer that holds any key.
pub type KeyBuffer = [u8; MAX_KEY_BYTES];

/// A form of keys, for a number of records that is known in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Keys(Form);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    Decimal { size: usize },
    Ycsb { zero_padding: usize },
}

/// What YCSB puts before the hash.
const PREFIX: &[u8] = b"user";

impl Keys {
    /// Keys of `size` bytes (from 8 to 1024) for at most `records` records, inserts of the run
    /// included. It refuses a count whose numbers do not fit into the digits.
    pub fn decimal(size: usize, records: u64) -> Result<Keys, ParameterError> {
        let accepted = (8..=MAX_KEY_BYTES).contains(&size);
        require(accepted, "keys", "size", size, "from 8 to 1024 bytes")?;
        let capacity = capacity(size);
        if records > capacity {
            let expected = format!("at most {capacity} with keys of {size} bytes");
            return Err(ParameterError::new("keys", "records", records, expected));
        }
        Ok(Keys(Form::Decimal { size }))
    }

    /// YCSB's keys. The hash is padded with zeros to `zero_padding` digits (at most 1020), which is
    /// 1 in YCSB's default. A key has up to 23 bytes without padding.
    ///
    /// The key of an absent number is the key of its record with the last digit replaced by a
    /// letter. No record has a letter there, so it is certain that the key is absent. Two records
    /// may have the same hash, as in YCSB: of `n` records any two do with a probability of about
    /// `n * n / 2^64`, which is 0.05 % for 10^8 records.
    pub fn ycsb(zero_padding: usize) -> Result<Keys, ParameterError> {
        let most = MAX_KEY_BYTES - PREFIX.len();
        let accepted = zero_padding <= most;
        require(
            accepted,
            "keys",
            "zero_padding",
            zero_padding,
            "at most 1020 digits",
        )?;
        Ok(Keys(Form::Ycsb { zero_padding }))
    }

    /// The largest size of a key in bytes.
    pub fn max_bytes(&self) -> usize {
        match self.0 {
            Form::Decimal { size } => size,
            Form::Ycsb { zero_padding } => PREFIX.len() + zero_padding.max(19),
        }
    }

    /// True if keys sort as their numbers do.
    pub fn ordered(&self) -> bool {
        matches!(self.0, Form::Decimal { .. })
    }

    /// The key of record `record`. Records count up to 2^63.
    #[inline]
    pub fn present<'a>(&self, record: u64, buffer: &'a mut KeyBuffer) -> &'a [u8] {
        self.write(record.wrapping_mul(2), buffer)
    }

    /// A key that no record has, next to the key of `record`.
    #[inline]
    pub fn absent<'a>(&self, record: u64, buffer: &'a mut KeyBuffer) -> &'a [u8] {
        self.write(record.wrapping_mul(2).wrapping_add(1), buffer)
    }

    /// The key of a number. Digits that do not fit are cut off, which does not happen to numbers of
    /// the records that the constructor was told.
    #[inline]
    pub fn write<'a>(&self, number: u64, buffer: &'a mut KeyBuffer) -> &'a [u8] {
        let size = match self.0 {
            Form::Decimal { size } => {
                write_digits(number, &mut buffer[..size]);
                size
            }
            Form::Ycsb { zero_padding } => write_ycsb(number, zero_padding, buffer),
        };
        &buffer[..size]
    }

    /// The number of a decimal key. It is none if this is not a key of the form, and always none
    /// for YCSB's keys, which are hashes.
    pub fn number(&self, key: &[u8]) -> Option<u64> {
        let Form::Decimal { size } = self.0 else {
            return None;
        };
        if key.len() != size {
            return None;
        }
        key.iter().try_fold(0u64, |number, &byte| {
            let digit = byte.is_ascii_digit().then(|| u64::from(byte - b'0'))?;
            number.checked_mul(10)?.checked_add(digit)
        })
    }
}

/// How many records have numbers of `size` digits. The last one has the numbers `2 * n - 2` and
/// `2 * n - 1`.
fn capacity(size: usize) -> u64 {
    match 10u64.checked_pow(size as u32) {
        Some(numbers) => numbers / 2,
        None => 1 << 63,
    }
}

fn write_ycsb(number: u64, zero_padding: usize, buffer: &mut KeyBuffer) -> usize {
    let hash = ycsb_hash(number / 2);
    let digits = hash.checked_ilog10().unwrap_or(0) as usize + 1;
    let size = PREFIX.len() + digits.max(zero_padding);
    buffer[..PREFIX.len()].copy_from_slice(PREFIX);
    write_digits(hash, &mut buffer[PREFIX.len()..size]);
    if number % 2 == 1 {
        buffer[size - 1] += b'a' - b'0';
    }
    size
}

/// Writes the last digits of a number, with zeros before it, two at a time.
#[inline]
fn write_digits(mut number: u64, digits: &mut [u8]) {
    digits.fill(b'0');
    for pair in digits.rchunks_mut(2) {
        if number == 0 {
            break;
        }
        let both = PAIRS[(number % 100) as usize];
        pair.copy_from_slice(&both[2 - pair.len()..]);
        number /= 100;
    }
}

/// `00` to `99`.
const PAIRS: [[u8; 2]; 100] = {
    let mut pairs = [[b'0'; 2]; 100];
    let mut i = 0;
    while i < 100 {
        pairs[i] = [b'0' + (i / 10) as u8, b'0' + (i % 10) as u8];
        i += 1;
    }
    pairs
};

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const EMPTY: KeyBuffer = [0; MAX_KEY_BYTES];

    #[test]
    fn decimal_keys_are_padded_digits() {
        let keys = Keys::decimal(16, 1000).unwrap();
        let mut buffer = EMPTY;
        assert_eq!(keys.present(21, &mut buffer), b"0000000000000042");
        assert_eq!(keys.absent(21, &mut buffer), b"0000000000000043");
        assert_eq!(keys.present(0, &mut buffer), b"0000000000000000");
    }

    #[test]
    fn the_largest_decimal_key_has_zeros_and_twenty_digits() {
        let keys = Keys::decimal(1024, 1 << 63).unwrap();
        let mut buffer = EMPTY;
        let key = keys.absent((1 << 63) - 1, &mut buffer);
        assert_eq!(key.len(), 1024);
        assert!(key.ends_with(b"018446744073709551615"));
        assert_eq!(keys.number(key), Some(u64::MAX));
    }

    #[test]
    fn counts_that_do_not_fit_the_digits_are_refused() {
        assert!(Keys::decimal(8, 50_000_000).is_ok());
        let error = Keys::decimal(8, 50_000_001).unwrap_err().to_string();
        assert!(
            error.contains("at most 50000000 with keys of 8 bytes"),
            "{error}"
        );
        assert!(Keys::decimal(7, 1).is_err());
        assert!(Keys::decimal(1025, 1).is_err());
        assert!(Keys::decimal(20, 1 << 63).is_ok());
        assert!(Keys::decimal(19, 1 << 63).is_err());
    }

    #[test]
    fn hashed_keys_are_those_of_ycsb() {
        let keys = Keys::ycsb(1).unwrap();
        let mut buffer = EMPTY;
        assert_eq!(keys.present(0, &mut buffer), b"user6284781860667377211");
        assert_eq!(keys.present(1, &mut buffer), b"user8517097267634966620");
        assert_eq!(keys.absent(1, &mut buffer), b"user851709726763496662a");
        let padded = Keys::ycsb(22).unwrap();
        assert_eq!(
            padded.present(0, &mut buffer),
            b"user0006284781860667377211"
        );
        assert!(Keys::ycsb(1021).is_err());
    }

    #[test]
    fn hashed_keys_of_a_million_records_are_distinct_and_none_is_absent() {
        let keys = Keys::ycsb(1).unwrap();
        let mut buffer = EMPTY;
        let mut hashes: Vec<u64> = (0..1_000_000).map(ycsb_hash).collect();
        hashes.sort_unstable();
        hashes.dedup();
        assert_eq!(hashes.len(), 1_000_000);
        for record in 0..1000 {
            assert!(
                keys.present(record, &mut buffer)[4..]
                    .iter()
                    .all(u8::is_ascii_digit)
            );
            assert!(
                !keys.absent(record, &mut buffer)[4..]
                    .iter()
                    .all(u8::is_ascii_digit)
            );
        }
    }

    #[test]
    fn decoding_refuses_what_is_not_a_key() {
        let keys = Keys::decimal(24, 10).unwrap();
        for bad in [
            &b"0000"[..],
            b"00000000000000000000004x",
            b"999999999999999999999999",
        ] {
            assert_eq!(keys.number(bad), None);
        }
        assert_eq!(
            Keys::ycsb(1).unwrap().number(b"user6284781860667377211"),
            None
        );
    }

    proptest! {
        #[test]
        fn decimal_keys_decode_and_sort_as_numbers(size in 8usize..=1024, a: u64, b: u64) {
            let keys = Keys::decimal(size, 1).unwrap();
            let most = 10u64.checked_pow(size as u32).unwrap_or(u64::MAX);
            let (a, b) = (a % most, b % most);
            let (mut first, mut second) = (EMPTY, EMPTY);
            let (key_a, key_b) = (keys.write(a, &mut first), keys.write(b, &mut second));
            prop_assert_eq!(key_a.cmp(key_b), a.cmp(&b));
            prop_assert_eq!(keys.number(key_a), Some(a));
            let formatted = format!("{a:0size$}");
            prop_assert_eq!(key_a, formatted.as_bytes());
        }

        #[test]
        fn hashed_keys_equal_the_formatted_hash(record in 0u64..1 << 63, padding in 0usize..=1020) {
            let keys = Keys::ycsb(padding).unwrap();
            let mut buffer = EMPTY;
            let key = keys.present(record, &mut buffer);
            prop_assert!(key.len() <= keys.max_bytes());
            let formatted = format!("user{:0padding$}", ycsb_hash(record));
            prop_assert_eq!(key, formatted.as_bytes());
        }
    }
}

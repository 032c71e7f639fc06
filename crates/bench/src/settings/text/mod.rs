//! The text forms of settings, which the command line, the TOML files and the JSON record share.
//!
//! Sizes are `128`, `1KiB` or `64MiB`, counts `1000`, `1_000_000` or `1M`, times `10s` or `2min`.
//! As in the engine's own settings, a blank before the unit and other cases of its letters are
//! accepted. [`size_text`] and its siblings write the shortest of these forms without a blank.
//!
//! Invariant: what is written is read as the same value again.
//!
//! Threading: pure functions.

mod error;
mod forms;
mod words;

#[cfg(test)]
mod tests;

pub use error::TextError;
pub(super) use forms::{count, optional_rate, size};

/// Units of sizes, the largest first.
const SIZES: [(&str, u64); 5] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("B", 1),
];

/// Units of counts and rates.
const COUNTS: [(&str, u64); 3] = [("G", 1_000_000_000), ("M", 1_000_000), ("K", 1000)];

/// Units of time in seconds. The ones below a second divide.
const TIMES: [(&str, f64); 3] = [("h", 3600.0), ("min", 60.0), ("s", 1.0)];
const PARTS_OF_A_SECOND: [(&str, f64); 2] = [("ms", 1e3), ("us", 1e6)];

/// What a size looks like, for messages.
pub const SIZE_FORMS: &str = "a size such as 128, 1KiB or 64MiB";
/// What a count looks like, for messages.
pub const COUNT_FORMS: &str = "a whole number such as 1000, 1_000_000 or 1M";
/// What a time looks like, for messages.
pub const TIME_FORMS: &str = "a time such as 10s, 2min or 500ms";
/// What a number with a fraction looks like, for messages.
pub const NUMBER_FORMS: &str = "a number such as 0.5";
/// What a rate looks like, for messages.
pub const RATE_FORMS: &str = "operations a second such as 50000 or 50K";

/// The number and the word after it.
fn split(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '_' || c == '.'))
        .unwrap_or(text.len());
    (&text[..end], text[end..].trim_start())
}

/// Digits, which may be separated by `_` between two of them.
fn whole(digits: &str) -> Option<u64> {
    let is_separated = !digits.starts_with('_') && !digits.ends_with('_') && !digits.contains("__");
    is_separated
        .then(|| digits.replace('_', "").parse().ok())
        .flatten()
}

/// Digits, which may be separated by `_`, and a fraction.
fn decimal(digits: &str) -> Option<f64> {
    let (before, after) = digits.split_once('.').unwrap_or((digits, "0"));
    let is_fraction = !after.is_empty() && after.bytes().all(|b| b.is_ascii_digit());
    let is_whole = before.bytes().any(|b| b.is_ascii_digit()) && !before.starts_with('_');
    (is_fraction && is_whole)
        .then(|| digits.replace('_', "").parse().ok())
        .flatten()
}

fn unit<T: Copy>(word: &str, units: &[(&str, T)]) -> Option<T> {
    let found = units
        .iter()
        .find(|(unit, _)| unit.eq_ignore_ascii_case(word));
    found.map(|(_, size)| *size)
}

fn whole_in(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let (digits, word) = split(text);
    let number = whole(digits)?;
    if word.is_empty() {
        return Some(number);
    }
    number.checked_mul(unit(word, units)?)
}

/// Reads a size in bytes.
///
/// # Errors
/// For every text but a whole number with or without one of the units B, KiB, MiB, GiB and TiB.
pub fn parse_size(text: &str) -> Result<u64, TextError> {
    whole_in(text, &SIZES).ok_or_else(|| TextError::new(text, SIZE_FORMS))
}

/// Writes a size in bytes, in the largest unit in which it is a whole number.
pub fn size_text(bytes: u64) -> String {
    let fits = |size: &u64| bytes >= *size && bytes.is_multiple_of(*size);
    match SIZES[..4].iter().find(|(_, size)| fits(size)) {
        Some((word, size)) => format!("{}{word}", bytes / size),
        None => bytes.to_string(),
    }
}

/// Reads a whole number.
///
/// # Errors
/// For every text but a whole number with or without one of the units K, M and G (decimal).
pub fn parse_count(text: &str) -> Result<u64, TextError> {
    whole_in(text, &COUNTS).ok_or_else(|| TextError::new(text, COUNT_FORMS))
}

/// Reads a number that may have a fraction.
///
/// # Errors
/// For every other text, also for infinities, negative numbers and NaN.
pub fn parse_number(text: &str) -> Result<f64, TextError> {
    let (digits, word) = split(text);
    let number = decimal(digits).filter(|number| word.is_empty() && number.is_finite());
    number.ok_or_else(|| TextError::new(text, NUMBER_FORMS))
}

/// Reads a rate in operations a second.
///
/// # Errors
/// For every text but a number with or without one of the units K, M and G (decimal).
pub fn parse_rate(text: &str) -> Result<f64, TextError> {
    let (digits, word) = split(text);
    let factor = match word {
        "" => Some(1),
        word => unit(word, &COUNTS),
    };
    let rate = decimal(digits)
        .zip(factor)
        .map(|(n, factor)| n * factor as f64);
    let rate = rate.filter(|rate| rate.is_finite());
    rate.ok_or_else(|| TextError::new(text, RATE_FORMS))
}

/// Reads a time in seconds.
///
/// # Errors
/// For every text but a number with one of the units us, ms, s, min and h.
pub fn parse_seconds(text: &str) -> Result<f64, TextError> {
    let (digits, word) = split(text);
    let seconds = decimal(digits).and_then(|number| {
        let whole = unit(word, &TIMES).map(|size| number * size);
        whole.or_else(|| unit(word, &PARTS_OF_A_SECOND).map(|parts| number / parts))
    });
    let seconds = seconds.filter(|seconds| seconds.is_finite());
    seconds.ok_or_else(|| TextError::new(text, TIME_FORMS))
}

/// Writes a time: in whole hours or minutes if it is one, else in seconds.
pub fn seconds_text(seconds: f64) -> String {
    // Above 2^53 the division rounds, so that the time would not be read as the same one.
    let fits = |size: f64| seconds >= size && seconds % size == 0.0 && seconds < 9e15;
    let (word, size) = TIMES
        .iter()
        .find(|(_, size)| fits(*size))
        .unwrap_or(&TIMES[2]);
    format!("{}{word}", seconds / size)
}

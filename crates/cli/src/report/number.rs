//! Numbers in a readable form: about three digits, and a unit.

use chrono::{DateTime, Utc};

use crate::output::count;

/// The unit of an axis, or of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// A number of things a second.
    PerSecond,
    /// Bytes.
    Bytes,
    /// Bytes a second.
    BytesPerSecond,
    /// Nanoseconds.
    Nanoseconds,
    /// Seconds.
    Seconds,
    /// None.
    Plain,
}

impl Unit {
    /// The largest step of the unit that is at most `value`: its size and its name.
    pub fn step(self, value: f64) -> (f64, &'static str) {
        const K: f64 = 1024.0;
        let steps: &[(f64, &str)] = match self {
            Unit::PerSecond => &[
                (1.0, "/s"),
                (1e3, "k/s"),
                (1e6, "M/s"),
                (1e9, "G/s"),
                (1e12, "T/s"),
            ],
            Unit::Bytes => &[
                (1.0, "B"),
                (K, "KiB"),
                (K * K, "MiB"),
                (K * K * K, "GiB"),
                (K * K * K * K, "TiB"),
                (K * K * K * K * K, "PiB"),
            ],
            Unit::BytesPerSecond => &[
                (1.0, "B/s"),
                (K, "KiB/s"),
                (K * K, "MiB/s"),
                (K * K * K, "GiB/s"),
                (K * K * K * K, "TiB/s"),
                (K * K * K * K * K, "PiB/s"),
            ],
            Unit::Nanoseconds => &[(1.0, "ns"), (1e3, "µs"), (1e6, "ms"), (1e9, "s")],
            Unit::Seconds => &[(1e-6, "µs"), (1e-3, "ms"), (1.0, "s")],
            Unit::Plain => &[(1.0, "")],
        };
        // Larger values use the largest step, and smaller values the smallest.
        *steps
            .iter()
            .rev()
            .find(|(size, _)| value.abs() >= *size)
            .unwrap_or(&steps[0])
    }

    /// A value with about three digits and its unit.
    pub fn show(self, value: f64) -> String {
        if !value.is_finite() {
            return "–".to_string();
        }
        let (size, name) = match value {
            0.0 => (1.0, self.step(1.0).1),
            _ => self.step(value),
        };
        let scaled = value / size;
        let digits = match scaled.abs() {
            0.0 => 0,
            x if x >= 99.95 => 0,
            x if x >= 9.995 => 1,
            x if x >= 0.0995 => 2,
            _ => 4,
        };
        // A small number of whole things has no decimals.
        let whole = size == 1.0 && self != Unit::Plain && self != Unit::Seconds;
        let digits = if whole && scaled.fract() == 0.0 {
            0
        } else {
            digits
        };
        with_unit(&grouped(scaled, digits), name)
    }
}

/// A number and its unit, kept on one line.
pub fn with_unit(number: &str, unit: &str) -> String {
    match unit {
        "" => number.to_string(),
        unit => format!("{number}\u{a0}{unit}"),
    }
}

/// A number with this number of decimals, its digits in groups, and a typographic minus sign.
pub fn grouped(value: f64, decimals: usize) -> String {
    let text = format!("{:.decimals$}", value.abs());
    let (whole, rest) = match text.split_once('.') {
        Some((whole, rest)) => (whole, format!(".{rest}")),
        None => (&text[..], String::new()),
    };
    let whole = whole.parse().map_or_else(|_| whole.to_string(), count);
    let sign = if value < 0.0 && text.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        "\u{2212}"
    } else {
        ""
    };
    format!("{sign}{whole}{rest}")
}

/// Bytes.
pub fn bytes(n: u64) -> String {
    Unit::Bytes.show(n as f64)
}

/// Nanoseconds.
pub fn nanos(n: u64) -> String {
    Unit::Nanoseconds.show(n as f64)
}

/// Microseconds.
pub fn micros(n: u64) -> String {
    Unit::Nanoseconds.show(n as f64 * 1e3)
}

/// Seconds since 1970 as a date and a time of the day, UTC. A time after the last one that `chrono`
/// knows is shown as that one.
pub fn date_utc(unix_s: u64) -> String {
    let time = i64::try_from(unix_s)
        .ok()
        .and_then(|unix_s| DateTime::from_timestamp(unix_s, 0))
        .unwrap_or(DateTime::<Utc>::MAX_UTC);
    time.format("%Y-%m-%d %H:%M UTC").to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        let plain = |text: String| text.replace('\u{a0}', " ");
        for (unit, value, expected) in [
            (Unit::Bytes, 0.0, "0 B"),
            (Unit::Bytes, 1023.0, "1,023 B"),
            (Unit::Bytes, 1024.0, "1.00 KiB"),
            (Unit::Bytes, u64::MAX as f64, "16,384 PiB"),
            (Unit::PerSecond, 1_234_567.0, "1.23 M/s"),
            (Unit::PerSecond, 7.0, "7 /s"),
            (Unit::Nanoseconds, 1_500.0, "1.50 µs"),
            (Unit::Nanoseconds, 250_000_000.0, "250 ms"),
            (Unit::Seconds, 0.25, "250 ms"),
            (Unit::Seconds, 1234.5, "1,234 s"),
            (Unit::Plain, 0.3535, "0.35"),
            (Unit::Plain, f64::NAN, "–"),
        ] {
            assert_eq!(plain(unit.show(value)), expected, "{unit:?} {value}");
        }
        assert_eq!(grouped(-1234.56, 1), "\u{2212}1,234.6");
        assert_eq!(grouped(-0.001, 1), "0.0");
    }

    #[test]
    fn dates() {
        assert_eq!(date_utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date_utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date_utc(1_767_225_599), "2025-12-31 23:59 UTC");
        assert_eq!(date_utc(1_767_225_600), "2026-01-01 00:00 UTC");
        assert_eq!(date_utc(u64::MAX), "+262142-12-31 23:59 UTC");
    }
}

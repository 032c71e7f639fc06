//! Numbers as people read them: three digits or so, and a unit.

use crate::output::count;

/// The unit of an axis, or of a figure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Things a second.
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
        // The largest is what remains for anything larger, the smallest for anything smaller.
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
        // Things of which there are few are whole.
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

/// A number with so many decimals; its digits in groups, and a real minus.
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

/// Seconds since 1970 as a date and a time of the day, UTC.
pub fn date_utc(unix_s: u64) -> String {
    // Days from the civil calendar of eras of 400 years (H. Hinnant, "chrono-compatible low-level date algorithms").
    let (days, second) = (unix_s / 86_400 + 719_468, unix_s % 86_400);
    let (era, day_of_era) = (days / 146_097, days % 146_097);
    let year_of_era =
        (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 {
        shifted + 3
    } else {
        shifted - 9
    };
    let year = year_of_era + era * 400 + u64::from(month <= 2);
    format!(
        "{year}-{month:02}-{day:02} {:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60
    )
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
    }
}

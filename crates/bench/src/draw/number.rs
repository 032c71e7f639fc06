//! Numbers in a readable form: about three digits, and a unit. A missing figure is a dash.
//!
//! Threading: pure functions.

/// What stands for a figure that is not known.
pub const DASH: &str = "–";

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
    /// A factor, for example of amplification.
    Factor,
    /// A part of a whole, from 0 to 1, shown as a percentage.
    Percent,
    /// A number of things.
    Count,
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
            Unit::Factor => &[(1.0, "×")],
            Unit::Percent => &[(0.01, "%")],
            Unit::Count | Unit::Plain => &[(1.0, "")],
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
            return DASH.to_string();
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
        let whole = size == 1.0 && !matches!(self, Unit::Factor | Unit::Plain | Unit::Seconds);
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
        "" | "%" => format!("{number}{unit}"),
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
    let whole = groups(whole);
    let sign = if value < 0.0 && text.bytes().any(|b| (b'1'..=b'9').contains(&b)) {
        "\u{2212}"
    } else {
        ""
    };
    format!("{sign}{whole}{rest}")
}

/// A whole number, its digits in groups.
pub fn count(n: u64) -> String {
    groups(&n.to_string())
}

fn groups(digits: &str) -> String {
    let mut out = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// A figure that may be missing.
pub fn or_dash(unit: Unit, value: Option<f64>) -> String {
    value.map_or_else(|| DASH.to_string(), |value| unit.show(value))
}

/// Bytes that may be missing.
pub fn bytes(n: Option<u64>) -> String {
    or_dash(Unit::Bytes, n.map(|n| n as f64))
}

/// A latency in microseconds that may be missing.
pub fn micros(us: Option<f64>) -> String {
    or_dash(Unit::Nanoseconds, us.map(|us| us * 1e3))
}

/// Seconds that may be missing.
pub fn seconds(s: Option<f64>) -> String {
    or_dash(Unit::Seconds, s)
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
            (Unit::BytesPerSecond, 1536.0, "1.50 KiB/s"),
            (Unit::PerSecond, 1_234_567.0, "1.23 M/s"),
            (Unit::PerSecond, 7.0, "7 /s"),
            (Unit::Nanoseconds, 1_500.0, "1.50 µs"),
            (Unit::Nanoseconds, 250_000_000.0, "250 ms"),
            (Unit::Seconds, 0.25, "250 ms"),
            (Unit::Seconds, 1234.5, "1,234 s"),
            (Unit::Factor, 10.04, "10.0 ×"),
            (Unit::Percent, 0.5, "50.0%"),
            (Unit::Plain, 0.3535, "0.35"),
            (Unit::Plain, f64::NAN, "–"),
        ] {
            assert_eq!(plain(unit.show(value)), expected, "{unit:?} {value}");
        }
        assert_eq!(grouped(-1234.56, 1), "\u{2212}1,234.6");
        assert_eq!(grouped(-0.001, 1), "0.0");
    }
}

//! Numbers of the page: three digits, with commas between thousands.
//!
//! Threading: pure functions.

use crate::experiment::Metric;

/// What stands for a figure that is not known.
pub(super) const NONE: &str = "-";

/// A number with three digits, or all digits before the point.
pub(super) fn three(value: f64) -> String {
    // The sum of no numbers is -0, whose sign nobody wants to see.
    let value = value + 0.0;
    match value.abs() {
        _ if !value.is_finite() => NONE.into(),
        size if size >= 99.95 => whole(value.round() as i64),
        size if size >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A whole number with commas.
pub(super) fn whole(value: i64) -> String {
    let digits = value.unsigned_abs().to_string();
    let mut text = String::from(if value < 0 { "-" } else { "" });
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A number of things, with commas.
pub(super) fn count(number: u64) -> String {
    whole(i64::try_from(number).unwrap_or(i64::MAX))
}

/// A number that may not be known.
pub(super) fn optional(value: Option<f64>) -> String {
    value.map_or(NONE.into(), three)
}

/// The unit of a metric on the page, and by what its values are divided.
pub(super) fn unit(metric: Metric) -> (&'static str, f64) {
    match metric {
        Metric::OpsPerS | Metric::OpsPerSUntilIdle => ("kops/s", 1e3),
        Metric::BytesPerS | Metric::BytesPerSUntilIdle => ("MB/s", 1e6),
        Metric::CompactionBytesPerCpuS => ("MB per CPU-second", 1e6),
        Metric::RssBytes => ("MB", 1e6),
        Metric::UntilIdleS | Metric::CpuS | Metric::StallS => ("s", 1.0),
        Metric::WriteAmplification | Metric::SpaceAmplification => ("bytes a byte", 1.0),
        _ => ("us", 1.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits() {
        for (value, expected) in [
            (0.0, "0.00"),
            (-0.0, "0.00"),
            (0.126, "0.13"),
            (9.996, "10.0"),
            (99.96, "100"),
            (712.4, "712"),
            (1_234_567.0, "1,234,567"),
            (-1234.0, "-1,234"),
            (f64::NAN, "-"),
        ] {
            assert_eq!(three(value), expected);
        }
        assert_eq!(optional(None), "-");
    }
}

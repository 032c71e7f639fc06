//! Numbers as the table shows them: three digits and a unit. What is not known is `-`.
//!
//! The blank before a unit is a no-break space, so that rows are not broken there.
//!
//! Threading: pure functions.

/// Three digits of a number, with at most two of them behind the point.
fn digits(value: f64) -> String {
    match value.abs() {
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

/// A number in the largest unit that it reaches. The units ascend, and the first is always reached.
pub(crate) fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // A value that is rounded up to 1000 of a unit is shown as 1.00 of the next one.
    let reached = |(size, _): &&(f64, &str)| value.abs() >= size * 0.9995;
    let unit = units.iter().rev().find(reached).or(units.first());
    let (size, name) = unit.copied().unwrap_or((1.0, ""));
    format!("{}{name}", digits(value / size))
}

/// A whole number with commas.
pub(crate) fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::new();
    for (position, digit) in digits.chars().enumerate() {
        if position > 0 && (digits.len() - position).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A latency that is given in microseconds. It has at most seven characters up to a day.
pub(crate) fn latency(us: f64) -> String {
    scaled(us, &[(1e-3, "ns"), (1.0, "us"), (1e3, "ms"), (1e6, "s")])
}

/// A time in seconds.
pub(crate) fn seconds(value: Option<f64>) -> String {
    let units = [(1e-6, "\u{a0}us"), (1e-3, "\u{a0}ms"), (1.0, "\u{a0}s")];
    value.map_or("-".into(), |value| match value {
        0.0 => "0\u{a0}s".into(),
        _ => scaled(value, &units),
    })
}

/// Bytes.
pub(crate) fn bytes(value: Option<f64>) -> String {
    let units = [
        (1.0, "\u{a0}B"),
        (1024.0, "\u{a0}KiB"),
        (1024.0 * 1024.0, "\u{a0}MiB"),
        (1024.0 * 1024.0 * 1024.0, "\u{a0}GiB"),
        (1024.0 * 1024.0 * 1024.0 * 1024.0, "\u{a0}TiB"),
    ];
    value.map_or("-".into(), |value| match value {
        v if v < 1023.5 => format!("{v:.0}\u{a0}B"),
        _ => scaled(value, &units),
    })
}

/// Operations a second.
pub(crate) fn rate(value: Option<f64>) -> String {
    let units = [
        (1.0, "\u{a0}ops/s"),
        (1e3, "\u{a0}kops/s"),
        (1e6, "\u{a0}Mops/s"),
    ];
    value.map_or("-".into(), |value| scaled(value, &units))
}

/// An amplification.
pub(crate) fn factor(value: Option<f64>) -> String {
    value.map_or("-".into(), |value| format!("{}x", digits(value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        for (found, expected) in [
            (latency(0.0), "0.00ns"),
            (latency(0.041), "41.0ns"),
            (latency(1.5), "1.50us"),
            (latency(999.96), "1.00ms"),
            (latency(12_345.0), "12.3ms"),
            (latency(86_400e6), "86400s"),
            (seconds(Some(0.0)), "0 s"),
            (seconds(Some(0.0123)), "12.3 ms"),
            (seconds(Some(1234.5)), "1234 s"),
            (seconds(None), "-"),
            (bytes(Some(0.0)), "0 B"),
            (bytes(Some(1023.0)), "1023 B"),
            (bytes(Some(1024.0)), "1.00 KiB"),
            (bytes(Some(1.5 * 1024.0 * 1024.0)), "1.50 MiB"),
            (rate(Some(658_123.0)), "658 kops/s"),
            (rate(Some(7.0)), "7.00 ops/s"),
            (rate(None), "-"),
            (factor(Some(3.456)), "3.46x"),
            (count(0), "0"),
            (count(999), "999"),
            (count(1_234_567), "1,234,567"),
        ] {
            assert_eq!(found.replace('\u{a0}', " "), expected);
        }
    }
}

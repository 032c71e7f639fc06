//! Numbers of a report that are always known, and its date.
//!
//! Threading: pure functions.

use chrono::{DateTime, Utc};
use siltstone_bench::draw::number::Unit;

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
    fn dates() {
        assert_eq!(date_utc(0), "1970-01-01 00:00 UTC");
        assert_eq!(date_utc(951_782_399), "2000-02-28 23:59 UTC");
        assert_eq!(date_utc(951_782_400), "2000-02-29 00:00 UTC");
        assert_eq!(date_utc(1_767_225_599), "2025-12-31 23:59 UTC");
        assert_eq!(date_utc(1_767_225_600), "2026-01-01 00:00 UTC");
        assert_eq!(date_utc(u64::MAX), "+262142-12-31 23:59 UTC");
    }
}

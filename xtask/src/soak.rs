//! Soaking: one row, again and again with seeds that were never tried, until its time is up or a seed fails.
//!
//! Invariant: the command that repeats a failure was printed before it ran, with its first seed.

use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::{Failure, run, steps};

/// Seeds of one round: rounds of a few minutes, so that the end is not missed by much.
const ROUND_SEEDS: u64 = 500;

/// Runs `row` for about `minutes`; the round that is running then is finished.
///
/// # Errors
/// The first round that fails.
pub fn soak(root: &Path, row: &str, minutes: u64) -> Result<(), Failure> {
    let start = Instant::now();
    let end = Duration::from_secs(minutes * 60);
    // Seconds since 1970, times more seeds than a second can try: no two soaks share a seed.
    let seconds = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .map_or(0, |d| d.as_secs());
    let mut first_seed = seconds.wrapping_mul(1_000_000);
    let mut rounds = 0u64;
    while start.elapsed() < end {
        run(
            &steps::trial(Some(row), Some(first_seed), ROUND_SEEDS),
            root,
        )?;
        first_seed = first_seed.wrapping_add(ROUND_SEEDS);
        rounds += 1;
        eprintln!(
            "{rounds} rounds of {ROUND_SEEDS} seeds in {} minutes, no failure",
            start.elapsed().as_secs() / 60
        );
    }
    Ok(())
}

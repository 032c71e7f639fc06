//! What the machine is like around a process, and what is done so that each process finds it alike.
//!
//! Before each process all files are on the disk, so that none pays for what another one wrote.
//! Before the first process of each row free memory is touched once: a virtual machine may get it
//! from its host only then, which costs the first process several times what it costs the next.
//!
//! Threading: the main thread.

use std::fs::File;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use procfs::{Current, CurrentSI, KernelStats, Meminfo};
use siltstone_bench::compare::Conditions;
use siltstone_bench::measure::machine::memcpy_gb_per_s;

use crate::Result;

/// So many bytes may be left to write: other programs write a little now and then.
const UNWRITTEN_MAX: u64 = 16 << 20;
/// The longest wait for the disk.
const PATIENCE: Duration = Duration::from_secs(20);
const STEP: Duration = Duration::from_millis(100);
/// The most memory that is touched, and by what free memory is divided for it: the rest stays for
/// the other programs of the machine.
const TOUCHED_MAX: u64 = 8 << 30;
const TOUCHED_PART: u64 = 2;
/// Each piece is given back to the system when it is dropped, because it is this large.
const PIECE: usize = 64 << 20;
const PAGE: usize = 4096;

/// What was read when a process began.
pub struct Before {
    unwritten_bytes: Option<u64>,
    probe_gb_per_s: Option<f64>,
    /// Time of all processors that other machines took, and all their time, in clock ticks.
    ticks: Option<(u64, u64)>,
}

/// Writes all files to the disk and reads what the machine is like.
pub fn before(folder: &Path) -> Result<Before> {
    let opened = File::open(folder);
    let synced = opened.and_then(|folder| Ok(rustix::fs::syncfs(&folder)?));
    synced.map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(Before {
        unwritten_bytes: wait_until_written(),
        probe_gb_per_s: memcpy_gb_per_s(),
        ticks: ticks(),
    })
}

/// Reads what the machine is like after the process that began with `before`.
pub fn after(before: &Before) -> Conditions {
    let stolen = before.ticks.zip(ticks()).and_then(|(first, last)| {
        let all = last.1.checked_sub(first.1).filter(|all| *all > 0)?;
        Some(last.0.checked_sub(first.0)? as f64 / all as f64)
    });
    // Before the probe, which takes time itself.
    let ended = SystemTime::now().duration_since(UNIX_EPOCH).ok();
    Conditions {
        probe_before_gb_per_s: before.probe_gb_per_s,
        probe_after_gb_per_s: memcpy_gb_per_s(),
        stolen,
        unwritten_bytes: before.unwritten_bytes,
        ended_unix_s: ended.map(|time| time.as_secs_f64()),
    }
}

/// Waits until the kernel has written all files, but not for ever. Returns what is left.
fn wait_until_written() -> Option<u64> {
    let start = Instant::now();
    loop {
        let memory = Meminfo::current().ok()?;
        let left = memory.dirty.saturating_add(memory.writeback);
        if left <= UNWRITTEN_MAX || start.elapsed() > PATIENCE {
            return Some(left);
        }
        std::thread::sleep(STEP);
    }
}

fn ticks() -> Option<(u64, u64)> {
    let total = KernelStats::current().ok()?.total;
    let others = [total.iowait, total.irq, total.softirq, total.steal];
    let all = total.user + total.nice + total.system + total.idle;
    let all = others
        .into_iter()
        .flatten()
        .fold(all, |sum, ticks| sum + ticks);
    Some((total.steal?, all))
}

/// Touches free memory once and gives it back.
pub fn touch_memory() {
    let Ok(memory) = Meminfo::current() else {
        return;
    };
    let bytes = (memory.mem_free / TOUCHED_PART).min(TOUCHED_MAX);
    let pieces = usize::try_from(bytes).unwrap_or(0) / PIECE;
    let mut all: Vec<Vec<u8>> = Vec::with_capacity(pieces);
    for _ in 0..pieces {
        // Zeroed memory comes from the system untouched.
        let mut piece = vec![0u8; PIECE];
        for page in piece.chunks_mut(PAGE) {
            page[0] = 1;
        }
        all.push(std::hint::black_box(piece));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_is_read_around_a_process() {
        let folder = tempfile::tempdir().unwrap();
        let before = before(folder.path()).unwrap();
        let found = after(&before);
        assert_eq!(found.probes().count(), 2);
        assert!(found.ended_unix_s.unwrap() > 1e9);
        assert!(found.unwritten_bytes.is_some());
        assert!(found.stolen.is_none_or(|part| (0.0..=1.0).contains(&part)));
    }

    #[test]
    fn a_folder_that_is_not_there_is_named() {
        let error = before(Path::new("/no/such/folder")).err().unwrap();
        assert!(error.contains("/no/such/folder"), "{error}");
    }
}

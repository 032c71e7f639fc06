//! What the system counts for the disk of a folder.
//!
//! Machines that are shared have disks that are slow for a while. Nothing else than the requests
//! themselves shows that, so a run is compared with runs of equal work.
//!
//! Threading: pure functions.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// The mean time of a flush is given only if there were at least this many flushes.
const FLUSHES_MIN: u64 = 100;

/// The requests that a disk finished, and how long they took together.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskRequests {
    /// Reads that the disk finished.
    pub reads: u64,
    /// Writes that the disk finished.
    pub writes: u64,
    /// Flushes that the disk finished. A sync of a file needs one.
    pub flushes: u64,
    /// The time of all reads together, in milliseconds.
    pub read_ms: u64,
    /// The time of all writes together, in milliseconds.
    pub write_ms: u64,
    /// The time of all flushes together, in milliseconds.
    pub flush_ms: u64,
}

impl DiskRequests {
    /// What the disk of a folder has done since the system was started. `None` if the system does
    /// not count it, as for file systems without a disk of their own.
    #[cfg(target_os = "linux")]
    pub fn of(folder: &Path) -> Option<DiskRequests> {
        use std::os::unix::fs::MetadataExt;
        let device = std::fs::metadata(folder).ok()?.dev();
        let major = i32::try_from(rustix::fs::major(device)).ok()?;
        let minor = i32::try_from(rustix::fs::minor(device)).ok()?;
        let disks = procfs::diskstats().ok()?;
        let mut disks = disks.iter();
        let disk = disks.find(|disk| (disk.major, disk.minor) == (major, minor))?;
        Some(DiskRequests {
            reads: disk.reads,
            writes: disk.writes,
            flushes: disk.flushes.unwrap_or(0),
            read_ms: disk.time_reading,
            write_ms: disk.time_writing,
            flush_ms: disk.time_flushing.unwrap_or(0),
        })
    }

    /// Disks are not known here.
    #[cfg(not(target_os = "linux"))]
    pub fn of(_folder: &Path) -> Option<DiskRequests> {
        None
    }

    /// How long a flush took on average, in milliseconds. `None` if there were too few of them.
    pub fn mean_flush_ms(&self) -> Option<f64> {
        (self.flushes >= FLUSHES_MIN).then(|| self.flush_ms as f64 / self.flushes as f64)
    }

    /// What two parts of a run did together.
    pub fn plus(&self, other: &DiskRequests) -> DiskRequests {
        DiskRequests {
            reads: self.reads + other.reads,
            writes: self.writes + other.writes,
            flushes: self.flushes + other.flushes,
            read_ms: self.read_ms + other.read_ms,
            write_ms: self.write_ms + other.write_ms,
            flush_ms: self.flush_ms + other.flush_ms,
        }
    }

    /// What the disk has done since `before`.
    pub fn since(&self, before: &DiskRequests) -> DiskRequests {
        DiskRequests {
            reads: self.reads.saturating_sub(before.reads),
            writes: self.writes.saturating_sub(before.writes),
            flushes: self.flushes.saturating_sub(before.flushes),
            read_ms: self.read_ms.saturating_sub(before.read_ms),
            write_ms: self.write_ms.saturating_sub(before.write_ms),
            flush_ms: self.flush_ms.saturating_sub(before.flush_ms),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn few_flushes_have_no_mean() {
        let few = DiskRequests {
            flushes: 60,
            flush_ms: 90,
            ..DiskRequests::default()
        };
        assert_eq!(few.mean_flush_ms(), None);
        let both = few.plus(&few);
        assert_eq!(both.mean_flush_ms(), Some(1.5));
        assert_eq!(both.since(&few), few);
        assert_eq!(few.since(&both), DiskRequests::default());
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_folder_without_a_disk_has_no_requests() {
        assert_eq!(DiskRequests::of(Path::new("/proc")), None);
        assert_eq!(DiskRequests::of(Path::new("/no/such/folder")), None);
    }
}

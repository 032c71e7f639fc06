//! What a group uses, by the files of its memory controller.
//!
//! The names differ between the versions; this file is the only one that knows both. What a kernel
//! does not say is `None`.
//!
//! Threading: pure functions.

use std::fs;
use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::place::Version;

/// The part of the limit from which on a run came near it.
pub const NEAR: f64 = 0.9;

/// What the group with the limit uses at one moment. Counters are those since it was made.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// The version of control groups, 1 or 2.
    pub cgroup_version: u8,
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// Whether the kernel counts swap, so that the group cannot use any.
    pub is_swap_limited: bool,
    /// All memory of the group, the kernel's own included, in bytes.
    pub usage_bytes: Option<u64>,
    /// The highest usage so far, in bytes.
    pub peak_bytes: Option<u64>,
    /// Heap and stacks in bytes.
    pub anonymous_bytes: Option<u64>,
    /// The page cache in bytes: pages of files that the group touched first.
    pub cache_bytes: Option<u64>,
    /// The part of the page cache that a process has mapped, in bytes.
    pub mapped_bytes: Option<u64>,
    /// The part of the page cache that belongs to a tmpfs or is shared memory, in bytes. It cannot
    /// be dropped.
    pub shared_bytes: Option<u64>,
    /// The part of the page cache that is not on the device yet, in bytes.
    pub dirty_bytes: Option<u64>,
    /// Memory of the kernel for the group, such as page tables and inodes, in bytes.
    pub kernel_bytes: Option<u64>,
    /// Page faults that read from a device.
    pub major_faults: Option<u64>,
    /// Pages of files that were read again soon after they had been reclaimed.
    pub refaulted_pages: Option<u64>,
    /// How often memory was asked for at the limit, so that something had to be reclaimed.
    pub limit_hits: Option<u64>,
    /// Pages that the kernel reclaimed. Version 1 does not count them.
    pub reclaimed_pages: Option<u64>,
    /// Processes of the group that the kernel killed because nothing could be reclaimed.
    pub killed_processes: Option<u64>,
}

impl Reading {
    pub(crate) fn of(group: &Path, version: Version, limit_bytes: u64) -> Reading {
        let files = Files { group };
        let stat = files.fields("memory.stat");
        let common = Reading {
            limit_bytes,
            major_faults: stat.get("pgmajfault"),
            shared_bytes: stat.get("shmem"),
            refaulted_pages: stat
                .get("workingset_refault_file")
                .or_else(|| stat.get("workingset_refault")),
            ..Reading::default()
        };
        match version {
            Version::One => Reading {
                cgroup_version: 1,
                is_swap_limited: group.join("memory.memsw.limit_in_bytes").exists(),
                usage_bytes: files.number("memory.usage_in_bytes"),
                peak_bytes: files.number("memory.max_usage_in_bytes"),
                anonymous_bytes: stat.get("rss"),
                cache_bytes: stat.get("cache"),
                mapped_bytes: stat.get("mapped_file"),
                dirty_bytes: stat.get("dirty"),
                kernel_bytes: files.number("memory.kmem.usage_in_bytes"),
                limit_hits: files.limit_hits(limit_bytes),
                killed_processes: files.fields("memory.oom_control").get("oom_kill"),
                ..common
            },
            Version::Two => {
                let events = files.fields("memory.events");
                Reading {
                    cgroup_version: 2,
                    is_swap_limited: group.join("memory.swap.max").exists(),
                    usage_bytes: files.number("memory.current"),
                    peak_bytes: files.number("memory.peak"),
                    anonymous_bytes: stat.get("anon"),
                    cache_bytes: stat.get("file"),
                    mapped_bytes: stat.get("file_mapped"),
                    dirty_bytes: stat.get("file_dirty"),
                    kernel_bytes: stat.get("kernel").or_else(|| stat.kernel_parts()),
                    limit_hits: events.get("max"),
                    reclaimed_pages: stat.get("pgsteal"),
                    killed_processes: events.get("oom_kill"),
                    ..common
                }
            }
        }
    }

    /// Whether the group came near its limit at any time. `None` if the kernel does not say what it
    /// uses.
    ///
    /// A run with limited memory means something only if it did: otherwise the store fitted, or its
    /// pages were charged to somebody else. The highest usage counts, because an engine gives its
    /// heap back when it is closed, and nobody fills that room with page cache again.
    pub fn nearness(&self) -> Option<Nearness> {
        let (cache_bytes, anonymous_bytes) = (self.cache_bytes?, self.anonymous_bytes?);
        let now_bytes = cache_bytes + anonymous_bytes;
        let highest_bytes = self.peak_bytes.unwrap_or(0).max(now_bytes);
        let part = highest_bytes as f64 / self.limit_bytes as f64;
        Some(Nearness {
            limit_bytes: self.limit_bytes,
            highest_bytes,
            cache_bytes,
            anonymous_bytes,
            kernel_bytes: self.kernel_bytes,
            limit_hits: self.limit_hits,
            part,
            is_near: part >= NEAR,
        })
    }
}

/// How near a group came to its limit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Nearness {
    /// The limit in bytes.
    pub limit_bytes: u64,
    /// The highest usage in bytes, the kernel's memory included. Where the kernel does not count
    /// it, it is the page cache, heap and stacks of now.
    pub highest_bytes: u64,
    /// The page cache of now in bytes.
    pub cache_bytes: u64,
    /// Heap and stacks of now in bytes.
    pub anonymous_bytes: u64,
    /// Memory of the kernel in bytes, which counts against the limit.
    pub kernel_bytes: Option<u64>,
    /// How often the limit was hit.
    pub limit_hits: Option<u64>,
    /// The highest usage as a part of the limit.
    pub part: f64,
    /// Whether that is at least [`NEAR`].
    pub is_near: bool,
}

impl std::fmt::Display for Nearness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mib = |bytes: u64| bytes as f64 / (1u64 << 20) as f64;
        write!(
            f,
            "at most {:.1} MiB were used, {:.1}% of the limit of {:.1} MiB; at the end the page \
             cache has {:.1} MiB and the heap {:.1} MiB",
            mib(self.highest_bytes),
            100.0 * self.part,
            mib(self.limit_bytes),
            mib(self.cache_bytes),
            mib(self.anonymous_bytes)
        )?;
        if let Some(bytes) = self.kernel_bytes {
            write!(f, "; the kernel has {:.1} MiB for the group", mib(bytes))?;
        }
        match self.limit_hits {
            Some(hits) => write!(f, "; the limit was hit {hits} times"),
            None => Ok(()),
        }
    }
}

/// The files of a group.
struct Files<'a> {
    group: &'a Path,
}

impl Files<'_> {
    fn number(&self, name: &str) -> Option<u64> {
        let text = fs::read_to_string(self.group.join(name)).ok()?;
        text.trim().parse().ok()
    }

    /// The counter of version 1. Linux 6.18 leaves it at 0. If the highest usage came near the
    /// limit, a 0 is therefore no answer: a request that would have gone beyond the limit leaves
    /// the usage some pages below it.
    fn limit_hits(&self, limit_bytes: u64) -> Option<u64> {
        let hits = self.number("memory.failcnt")?;
        let peak = self.number("memory.max_usage_in_bytes");
        let was_near = peak.is_none_or(|peak| peak as f64 >= NEAR * limit_bytes as f64);
        (hits > 0 || !was_near).then_some(hits)
    }

    fn fields(&self, name: &str) -> Fields {
        Fields(fs::read_to_string(self.group.join(name)).unwrap_or_default())
    }
}

/// A text with lines of a name and a number.
struct Fields(String);

impl Fields {
    fn get(&self, name: &str) -> Option<u64> {
        self.0.lines().find_map(|line| {
            let (found, number) = line.split_once(' ')?;
            (found == name).then(|| number.trim().parse().ok())?
        })
    }

    /// The parts of the kernel's memory, for kernels before 5.18, which do not give their sum.
    fn kernel_parts(&self) -> Option<u64> {
        let parts = ["kernel_stack", "pagetables", "percpu", "slab", "sock"];
        parts
            .iter()
            .filter_map(|name| self.get(name))
            .reduce(|a, b| a + b)
    }
}

#[cfg(test)]
mod tests;

//! The limits of the control groups that this process is in, of version 1 and 2.
//!
//! A group is limited by all groups above it as well, so the lowest limit on the way to the root
//! counts.
//!
//! Threading: pure functions.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The limits of this process. A limit that does not exist is `None`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Cgroup {
    /// Bytes of memory, the page cache of the group included.
    pub memory_bytes: Option<u64>,
    /// Processors, for example 1.5.
    pub cpus: Option<f64>,
}

/// The control group of one controller.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Group {
    /// The version of its interface, 1 or 2.
    version: u8,
    /// Where its hierarchy is mounted.
    root: PathBuf,
    /// Its path below that.
    path: PathBuf,
}

/// The limits of this process; `None` if there are no control groups.
pub fn cgroup() -> Option<Cgroup> {
    let groups = std::fs::read_to_string("/proc/self/cgroup").ok()?;
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").ok()?;
    Some(Cgroup {
        memory_bytes: lowest(&groups_of("memory", &groups, &mounts), memory_bytes),
        cpus: lowest(&groups_of("cpu", &groups, &mounts), cpus),
    })
}

/// The groups of this process that may have limits of a controller.
fn groups_of(controller: &str, groups: &str, mounts: &str) -> Vec<Group> {
    let group = |line: &str| {
        // The format is in `cgroups(7)`: number, controllers, path. Version 2 has no controllers.
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let version = if controllers.is_empty() { 2 } else { 1 };
        let is_asked = version == 2 || controllers.split(',').any(|name| name == controller);
        let root = mount_point(version, controller, mounts)?;
        is_asked.then(|| Group {
            version,
            root,
            path: PathBuf::from(path.trim_start_matches('/')),
        })
    };
    groups.lines().filter_map(group).collect()
}

/// Where the hierarchy of a controller is mounted.
fn mount_point(version: u8, controller: &str, mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let (place, about) = line.split_once(" - ")?;
        let point = place.split(' ').nth(4)?;
        let mut about = about.split(' ');
        let (kind, options) = (about.next()?, about.nth(1)?);
        let is_it = match version {
            2 => kind == "cgroup2",
            _ => kind == "cgroup" && options.split(',').any(|option| option == controller),
        };
        is_it.then(|| PathBuf::from(point))
    })
}

/// The lowest limit of the groups and of all groups above them.
fn lowest<T: PartialOrd>(groups: &[Group], limit: fn(&Path, u8) -> Option<T>) -> Option<T> {
    let limits = groups.iter().flat_map(|group| {
        let above = group.path.ancestors();
        above.filter_map(|path| limit(&group.root.join(path), group.version))
    });
    limits.reduce(|low, other| if other < low { other } else { low })
}

fn word(folder: &Path, name: &str) -> Option<String> {
    let text = std::fs::read_to_string(folder.join(name)).ok()?;
    Some(text.trim().to_string())
}

fn memory_bytes(folder: &Path, version: u8) -> Option<u64> {
    let name = match version {
        2 => "memory.max",
        _ => "memory.limit_in_bytes",
    };
    // Version 2 says `max`. Version 1 says the largest multiple of a page that fits in 63 bits.
    let limit: u64 = word(folder, name)?.parse().ok()?;
    (limit < 1 << 62).then_some(limit)
}

fn cpus(folder: &Path, version: u8) -> Option<f64> {
    let (quota, period) = match version {
        2 => {
            let text = word(folder, "cpu.max")?;
            let (quota, period) = text.split_once(' ')?;
            (quota.to_string(), period.to_string())
        }
        _ => (
            word(folder, "cpu.cfs_quota_us")?,
            word(folder, "cpu.cfs_period_us")?,
        ),
    };
    // Without a limit version 2 says `max`, and version 1 says -1.
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    crate::measure::ratio(quota, period).filter(|cpus| *cpus > 0.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn write(folder: &Path, name: &str, text: &str) {
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join(name), text).unwrap();
    }

    #[test]
    fn groups_of_both_versions_are_found() {
        let groups = "4:memory:/a/b\n1:cpu,cpuacct:/\n0::/c\n";
        let mounts = "30 1 0:1 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n\
            31 1 0:2 / /sys/fs/cgroup/unified rw shared:2 - cgroup2 cgroup2 rw\n\
            torn line\n";
        let found = groups_of("memory", groups, mounts);
        let group = |version, root: &str, path: &str| Group {
            version,
            root: root.into(),
            path: path.into(),
        };
        assert_eq!(
            found,
            [
                group(1, "/sys/fs/cgroup/memory", "a/b"),
                group(2, "/sys/fs/cgroup/unified", "c"),
            ]
        );
        // The hierarchy of this controller is not mounted.
        assert_eq!(
            groups_of("cpu", groups, mounts),
            [group(2, "/sys/fs/cgroup/unified", "c")]
        );
    }

    #[test]
    fn the_lowest_limit_on_the_way_to_the_root_counts() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        write(&root.join("a/b"), "memory.max", "max\n");
        write(&root.join("a"), "memory.max", "1048576\n");
        write(&root.join("a/b"), "cpu.max", "150000 100000\n");
        write(&root.join("a"), "cpu.max", "max 100000\n");
        let groups = [Group {
            version: 2,
            root,
            path: "a/b".into(),
        }];
        assert_eq!(lowest(&groups, memory_bytes), Some(1 << 20));
        assert_eq!(lowest(&groups, cpus), Some(1.5));
    }

    #[test]
    fn no_limit_of_version_1_is_none() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().to_path_buf();
        write(&root, "memory.limit_in_bytes", "9223372036854771712\n");
        write(&root, "cpu.cfs_quota_us", "-1\n");
        write(&root, "cpu.cfs_period_us", "100000\n");
        let groups = [Group {
            version: 1,
            root,
            path: PathBuf::new(),
        }];
        assert_eq!(lowest(&groups, memory_bytes), None);
        assert_eq!(lowest(&groups, cpus), None);
    }
}

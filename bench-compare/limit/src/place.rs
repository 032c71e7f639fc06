//! Where this process is among the control groups.
//!
//! `/proc/self/cgroup` names the group by its path in the hierarchy, and `/proc/self/mountinfo`
//! says where the hierarchy is mounted. In a container, a mount may begin at a group further down,
//! which then is the mount's root.
//!
//! Threading: pure functions.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::error::LimitError;

/// The version of the interface.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Version {
    /// Each controller has a hierarchy of its own.
    One,
    /// All controllers share one hierarchy.
    Two,
}

/// The group of this process in the hierarchy that limits memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub version: Version,
    /// The folder of the hierarchy's mount. Nothing above it can be reached.
    pub mount: PathBuf,
    /// The folder of the group, which is the mount or below it.
    pub group: PathBuf,
}

impl Place {
    pub fn of_this_process() -> Result<Place, LimitError> {
        let read = |path: &str| {
            fs::read_to_string(path).map_err(|error| LimitError::NoController {
                found: format!("{path}: {error}"),
            })
        };
        let (groups, mounts) = (read("/proc/self/cgroup")?, read("/proc/self/mountinfo")?);
        let place = Place::parsed(&groups, &mounts)?;
        if place.version == Version::Two {
            place.check_controllers()?;
        }
        Ok(place)
    }

    /// The place by the texts of the two files. If both versions are mounted, memory is limited in
    /// version 1 if that has the controller, because a controller belongs to one hierarchy only.
    pub fn parsed(groups: &str, mounts: &str) -> Result<Place, LimitError> {
        let found = |version| {
            let path = group_path(version, groups)?;
            let (mount, root) = mount(version, mounts)?;
            let below = Path::new(&path).strip_prefix(&root).ok()?;
            Some(Place {
                version,
                group: match below.as_os_str().is_empty() {
                    true => mount.clone(),
                    false => mount.join(below),
                },
                mount,
            })
        };
        let place = found(Version::One).or_else(|| found(Version::Two));
        place.ok_or_else(|| LimitError::NoController {
            found: described(groups, mounts),
        })
    }

    /// Version 2 may be mounted without any controller, as systems that also have version 1 do.
    fn check_controllers(&self) -> Result<(), LimitError> {
        let file = self.mount.join("cgroup.controllers");
        let controllers = read(&file)?;
        match controllers.split_whitespace().any(|name| name == "memory") {
            true => Ok(()),
            false => Err(LimitError::NoController {
                found: format!("{} has {:?}", file.display(), controllers.trim()),
            }),
        }
    }

    /// The lowest limit of the group and of those above it, with the group that has it.
    pub fn lowest_limit(&self) -> Option<(PathBuf, u64)> {
        let above = self.group.ancestors();
        let groups = above.take_while(|folder| folder.starts_with(&self.mount));
        groups
            .filter_map(|folder| Some((folder.to_path_buf(), limit_of(folder, self.version)?)))
            .min_by_key(|(_, limit)| *limit)
    }
}

/// The limit of a group in bytes; `None` if there is none.
fn limit_of(group: &Path, version: Version) -> Option<u64> {
    let name = match version {
        Version::One => "memory.limit_in_bytes",
        Version::Two => "memory.max",
    };
    // Version 2 says `max`. Version 1 says the largest multiple of a page that fits in 63 bits.
    let limit: u64 = fs::read_to_string(group.join(name))
        .ok()?
        .trim()
        .parse()
        .ok()?;
    (limit < 1 << 62).then_some(limit)
}

/// The text of a file of the control groups.
pub(crate) fn read(file: &Path) -> Result<String, LimitError> {
    fs::read_to_string(file)
        .map_err(|error: io::Error| LimitError::file(file, "could not be read", error))
}

/// The path of the process's group, from lines `number:controllers:path`. The line of version 2 has
/// no controllers.
fn group_path(version: Version, groups: &str) -> Option<String> {
    groups.lines().find_map(|line| {
        let mut fields = line.splitn(3, ':');
        let (_, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
        let is_it = match version {
            Version::One => controllers.split(',').any(|name| name == "memory"),
            Version::Two => controllers.is_empty(),
        };
        is_it.then(|| path.to_string())
    })
}

/// The mount of the hierarchy: its folder, and the group at which it begins. If it is mounted more
/// than once, the mount that begins highest is taken.
fn mount(version: Version, mounts: &str) -> Option<(PathBuf, PathBuf)> {
    let parsed = |line: &str| {
        let (place, about) = line.split_once(" - ")?;
        let mut place = place.split(' ').skip(3);
        let (root, point) = (unescaped(place.next()?), unescaped(place.next()?));
        let mut about = about.split(' ');
        let (kind, options) = (about.next()?, about.nth(1)?);
        let is_it = match version {
            Version::One => kind == "cgroup" && options.split(',').any(|name| name == "memory"),
            Version::Two => kind == "cgroup2",
        };
        is_it.then(|| (PathBuf::from(point), PathBuf::from(root)))
    };
    mounts
        .lines()
        .filter_map(parsed)
        .min_by_key(|(_, root)| root.as_os_str().len())
}

/// Blanks and similar characters are octal escapes in `/proc/self/mountinfo`.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// What the two files say, for an error.
fn described(groups: &str, mounts: &str) -> String {
    let kinds = |line: &str| {
        let (place, about) = line.split_once(" - ")?;
        let kind = about.split(' ').next()?;
        let point = place.split(' ').nth(4)?;
        kind.starts_with("cgroup")
            .then(|| format!("{kind} at {point}"))
    };
    let mounted: Vec<String> = mounts.lines().filter_map(kinds).collect();
    format!(
        "/proc/self/cgroup has {:?}, and mounted are [{}]",
        groups.lines().collect::<Vec<_>>().join(" "),
        mounted.join(", ")
    )
}

#[cfg(test)]
mod tests;

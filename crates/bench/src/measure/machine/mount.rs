//! The file system that holds a folder.
//!
//! Threading: pure functions.

use std::path::Path;

/// A mounted file system.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mount {
    /// Its kind, for example `ext4`.
    pub file_system: String,
    /// What is mounted, for example `/dev/sda1`.
    pub device: Option<String>,
}

/// The file system of a folder that exists. `None` on other systems than Linux.
pub fn mount_of(folder: &Path) -> Option<Mount> {
    #[cfg(target_os = "linux")]
    {
        let folder = std::fs::canonicalize(folder).ok()?;
        let mounts = procfs::process::Process::myself().ok()?.mountinfo().ok()?;
        deepest(&mounts.0, &folder)
    }
    #[cfg(not(target_os = "linux"))]
    {
        let _ = folder;
        None
    }
}

/// The deepest mount that holds a path; of several at the same point, the last covers the others.
#[cfg(target_os = "linux")]
fn deepest(mounts: &[procfs::process::MountInfo], path: &Path) -> Option<Mount> {
    let point =
        |mount: &procfs::process::MountInfo| unescaped(&mount.mount_point.to_string_lossy());
    let holding = mounts.iter().filter(|mount| path.starts_with(point(mount)));
    let deepest = holding.max_by_key(|mount| point(mount).len())?;
    Some(Mount {
        file_system: deepest.fs_type.clone(),
        device: deepest.mount_source.as_deref().map(unescaped),
    })
}

/// Blanks and similar characters are octal escapes in `/proc/self/mountinfo`.
#[cfg(target_os = "linux")]
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_last_mount_holds_a_path() {
        let mounts: Vec<_> = [
            "22 1 0:21 / / rw - ext4 /dev/root rw",
            "23 22 0:22 / /mnt/a\\040b rw,relatime shared:1 - xfs /dev/sda\\0401 rw",
            "25 22 0:24 / /mn rw - btrfs /dev/sdb rw",
            "26 22 0:25 / /t rw - ext4 /dev/sdc rw",
            "27 26 0:26 / /t rw - tmpfs none rw",
        ]
        .iter()
        .map(|line| procfs::process::MountInfo::from_line(line).unwrap())
        .collect();
        let found = |path: &str| deepest(&mounts, Path::new(path));
        let mount = |file_system: &str, device: Option<&str>| Mount {
            file_system: file_system.into(),
            device: device.map(str::to_string),
        };
        assert_eq!(
            found("/mnt/a b/store"),
            Some(mount("xfs", Some("/dev/sda 1")))
        );
        assert_eq!(found("/mnt/a"), Some(mount("ext4", Some("/dev/root"))));
        assert_eq!(found("/t/x"), Some(mount("tmpfs", None)));
        assert_eq!(deepest(&[], Path::new("/")), None);
    }

    #[test]
    fn a_missing_folder_has_no_file_system() {
        assert_eq!(mount_of(Path::new("/no/such/folder")), None);
    }
}

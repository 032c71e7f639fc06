//! Facts about the machine, the system, the file system and the program of a run. Unknown facts are
//! left out.

use std::fs;
use std::path::Path;

use super::model::Facts;
use super::number::bytes;

/// The machine and its system.
pub fn machine() -> Facts {
    let mut rows = Vec::new();
    let mut row = |name: &str, value: Option<String>| {
        rows.extend(
            value
                .filter(|v| !v.is_empty())
                .map(|v| (name.to_string(), v)),
        );
    };
    let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    row("processor", field(&cpu, "model name"));
    let cores = std::thread::available_parallelism().ok();
    row("cores for this process", cores.map(|n| n.to_string()));
    let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
    row(
        "memory",
        field(&memory, "MemTotal").and_then(|kib| {
            let kib: u64 = kib.strip_suffix("kB")?.trim().parse().ok()?;
            Some(bytes(kib.saturating_mul(1024)))
        }),
    );
    let word = |path: &str| {
        fs::read_to_string(path)
            .ok()
            .map(|text| text.trim().to_string())
    };
    let kernel = word("/proc/sys/kernel/osrelease")
        .map(|release| format!("Linux {release}, {}", std::env::consts::ARCH));
    row("system", kernel);
    let release = fs::read_to_string("/etc/os-release").unwrap_or_default();
    let name = release
        .lines()
        .find_map(|line| line.strip_prefix("PRETTY_NAME="));
    row(
        "distribution",
        name.map(|n| n.trim_matches('"').to_string()),
    );
    let flags = field(&cpu, "flags").unwrap_or_default();
    if flags.split(' ').any(|flag| flag == "hypervisor") {
        row(
            "virtual",
            Some(
                "yes: the processor says that a hypervisor runs it, so times include the \
                hypervisor's"
                    .to_string(),
            ),
        );
    }
    Facts {
        title: "Machine".to_string(),
        rows,
        text: String::new(),
    }
}

/// The value of the first line `name : value`.
fn field(text: &str, name: &str) -> Option<String> {
    text.lines().find_map(|line| {
        let (found, value) = line.split_once(':')?;
        (found.trim() == name).then(|| value.trim().to_string())
    })
}

/// The file system of a folder: its kind and its source.
pub fn file_system(folder: &Path) -> Option<String> {
    let folder = fs::canonicalize(folder).ok()?;
    let mounts = fs::read_to_string("/proc/self/mountinfo").ok()?;
    let (kind, source) = mount_of(&mounts, &folder)?;
    Some(match &kind[..] {
        "tmpfs" | "ramfs" => format!("{kind}: memory, not a drive"),
        "nfs" | "nfs4" | "cifs" | "smb3" | "9p" | "virtiofs" => {
            format!("{kind} from {source}: not a local drive")
        }
        _ => format!("{kind} on {source}"),
    })
}

/// The kind and source of the mount that holds a path, from lines in the format of
/// `proc_pid_mountinfo(5)`.
fn mount_of(mounts: &str, path: &Path) -> Option<(String, String)> {
    let mut best: Option<(usize, String, String)> = None;
    for line in mounts.lines() {
        let Some((place, about)) = line.split_once(" - ") else {
            continue;
        };
        let Some(point) = place.split(' ').nth(4).map(unescaped) else {
            continue;
        };
        let mut about = about.split(' ').map(unescaped);
        let (Some(kind), Some(source)) = (about.next(), about.next()) else {
            continue;
        };
        // Take the deepest mount; of several at the same path, the last covers the others.
        if path.starts_with(&point)
            && best
                .as_ref()
                .is_none_or(|(length, ..)| point.len() >= *length)
        {
            best = Some((point.len(), kind, source));
        }
    }
    best.map(|(_, kind, source)| (kind, source))
}

/// Blanks and similar characters are octal escapes in that file.
fn unescaped(text: &str) -> String {
    text.replace("\\040", " ")
        .replace("\\011", "\t")
        .replace("\\012", "\n")
        .replace("\\134", "\\")
}

/// How the program was built.
pub fn program() -> Facts {
    let build = if cfg!(debug_assertions) {
        "debug: several times slower than a release build (build with --release to measure)"
    } else {
        "release"
    };
    let row = |name: &str, value: &str| (name.to_string(), value.to_string());
    Facts {
        title: "Program".to_string(),
        rows: vec![
            row("silt and siltstone", env!("CARGO_PKG_VERSION")),
            row("build", build),
        ],
        text: String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_deepest_and_last_mount_holds_a_path() {
        let mounts = "22 1 0:21 / / rw - ext4 /dev/root rw\n\
            23 22 0:22 / /mnt/a\\040b rw,relatime shared:1 - xfs /dev/sda1 rw\n\
            24 22 0:23 / /mnt/a\\040b rw - tmpfs none rw\n\
            25 22 0:24 / /mn rw - btrfs /dev/sdb rw\n\
            torn line\n26 - x";
        let found = |path: &str| mount_of(mounts, Path::new(path)).map(|(kind, _)| kind);
        assert_eq!(found("/mnt/a b/store").as_deref(), Some("tmpfs"));
        assert_eq!(found("/mnt/a").as_deref(), Some("ext4"));
        assert_eq!(mount_of("", Path::new("/")), None);
    }

    #[test]
    fn this_machine_has_something_to_say() {
        assert!(
            machine()
                .rows
                .iter()
                .any(|(name, _)| name == "cores for this process")
        );
        assert!(file_system(&std::env::temp_dir()).is_some());
        assert_eq!(file_system(Path::new("/no/such/folder")), None);
        assert_eq!(
            field("a: 1\nmodel name\t: x : y\n", "model name").as_deref(),
            Some("x : y")
        );
    }
}

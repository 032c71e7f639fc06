//! Why a limit cannot be set.
//!
//! Threading: plain data.

use std::io;
use std::path::{Path, PathBuf};

use crate::MIN_BYTES;

/// Why this process cannot run with limited memory.
#[derive(Debug, thiserror::Error)]
pub enum LimitError {
    /// A file of the control groups could not be read or written.
    #[error("{}: {what}: {source}. {advice}", file.display())]
    File {
        /// The file or folder.
        file: PathBuf,
        /// What was done with it, for example ``could not write `+memory` ``.
        what: String,
        /// What the kernel said.
        source: io::Error,
        /// What can be done about it.
        advice: &'static str,
    },
    /// The system has no controller of memory that this process can see.
    #[error(
        "this process is in no control group with a memory controller: {found}. A kernel without \
         one needs the boot option `cgroup_enable=memory`; a container needs /sys/fs/cgroup to be \
         mounted"
    )]
    NoController {
        /// What was found instead.
        found: String,
    },
    /// The limit would not let the process itself run.
    #[error("a limit of {bytes} bytes is too low: it must be at least {MIN_BYTES} bytes")]
    TooLow {
        /// What was asked for.
        bytes: u64,
    },
    /// A group above has a lower limit, which would be the one that counts.
    #[error(
        "the limit of {bytes} bytes would have no effect, because {} has a limit of {limit} bytes; \
         ask for less, or run outside of that group", group.display()
    )]
    Above {
        /// What was asked for.
        bytes: u64,
        /// The group with the lower limit.
        group: PathBuf,
        /// Its limit in bytes.
        limit: u64,
    },
    /// Version 2 allows no group with a limit below a group that has processes of its own.
    #[error(
        "{} has {processes} processes beside this one, and in version 2 of control groups a group \
         with processes cannot have groups with limits below it; start the program alone in a \
         group: `systemd-run --scope -p Delegate=yes PROGRAM` (with `--user` if you are not root), \
         or in a container as its only process", group.display()
    )]
    Crowded {
        /// The group of this process.
        group: PathBuf,
        /// How many other processes it has.
        processes: usize,
    },
    /// Processes that were started within the group still run.
    #[error(
        "{} cannot be removed, because these processes still run in it: {processes}; end them, and \
         remove the folder with rmdir", group.display()
    )]
    Inhabited {
        /// The group with the limit.
        group: PathBuf,
        /// The numbers of the processes.
        processes: String,
    },
}

impl LimitError {
    /// The error of an access to a file of the control groups.
    pub(crate) fn file(file: &Path, what: impl Into<String>, source: io::Error) -> LimitError {
        LimitError::File {
            file: file.to_path_buf(),
            what: what.into(),
            advice: advice(&source),
            source,
        }
    }
}

/// What a user can do about an error of the kernel.
fn advice(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "Run as root, or let systemd delegate a group to you: `systemd-run --user --scope -p \
             Delegate=yes PROGRAM`. In a container, start it with write access to the control \
             groups (docker: `--privileged --cgroupns=private`)"
        }
        io::ErrorKind::ReadOnlyFilesystem => {
            "The control groups are mounted read-only, as containers usually have them. Start the \
             container with write access to them (docker: `--privileged --cgroupns=private`), or \
             run outside of it"
        }
        io::ErrorKind::ResourceBusy => {
            "The group is in use: in version 2, a group with processes cannot have groups with \
             limits below it. Start the program alone in a group: `systemd-run --scope -p \
             Delegate=yes PROGRAM`"
        }
        io::ErrorKind::NotFound => {
            "The memory controller is not enabled for this group. As root, write `+memory` to the \
             file cgroup.subtree_control of the group above, or start the program with \
             `systemd-run --scope -p MemoryAccounting=yes -p Delegate=yes PROGRAM`"
        }
        _ => "See cgroups(7) for what the kernel means by this",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_the_file_the_step_the_kernels_words_and_what_to_do() {
        let file = Path::new("/sys/fs/cgroup/a/cgroup.subtree_control");
        for (code, words, advice) in [
            (13, "Permission denied", "systemd-run --user"),
            (30, "Read-only file system", "docker"),
            (16, "busy", "alone in a group"),
            (2, "No such file", "+memory"),
            (5, "Input/output error", "cgroups(7)"),
        ] {
            let source = io::Error::from_raw_os_error(code);
            let text = LimitError::file(file, "could not write `+memory`", source).to_string();
            for part in [
                "cgroup.subtree_control: could not write `+memory`: ",
                words,
                advice,
            ] {
                assert!(text.contains(part), "{part:?} is not in {text:?}");
            }
        }
    }
}

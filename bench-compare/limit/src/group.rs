//! The group with the limit: how it is made, entered, left and removed.
//!
//! Version 1 lets a group with processes have groups below it, so the new group lies below the one
//! of this process. Version 2 does not, as far as the groups below have limits of memory. There are
//! three ways to have one nevertheless, and the first that is possible is taken ([`Way`]).
//!
//! The group's name is [`PREFIX`] and the number of the process, so that a later process knows
//! whether the one that made it still runs.
//!
//! Invariant: a step that fails undoes those before it.
//!
//! Threading: a group belongs to one owner.

use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::error::LimitError;
use crate::place::{Place, Version, read};

/// What the names of all groups begin with that this crate makes.
const PREFIX: &str = "bench-limit-";

/// A group has still a process for a moment after the process has left it.
const REMOVE_FOR: Duration = Duration::from_secs(1);
const REMOVE_STEP: Duration = Duration::from_millis(10);

/// A group with a limit, in which this process is.
#[derive(Debug)]
pub(crate) struct Group {
    version: Version,
    folder: PathBuf,
    /// The group of this process before, to which it returns.
    home: PathBuf,
    way: Way,
    is_inside: bool,
    is_removed: bool,
}

/// Where the new group lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// Below the group of this process, which lets groups below it have limits: always so in
    /// version 1, and in the root of version 2.
    Below,
    /// Below the group of this process, which has no other process. Once this process is in the new
    /// group, its old one is empty and can be told to let groups below it have limits.
    Nested,
    /// Beside the group of this process.
    Beside,
}

impl Way {
    /// The way in version 2, by what the files of the groups say. `beside` is the list of the
    /// controllers that the group above hands on, if there is a group above that can be reached.
    fn of(
        place: &Place,
        hands_on: &str,
        processes: &str,
        beside: Option<&str>,
    ) -> Result<Way, LimitError> {
        let has_memory = |list: &str| list.split_whitespace().any(|name| name == "memory");
        let own = std::process::id().to_string();
        let others = processes.lines().filter(|line| line.trim() != own).count();
        if has_memory(hands_on) {
            Ok(Way::Below)
        } else if others == 0 {
            Ok(Way::Nested)
        } else if beside.is_some_and(has_memory) {
            Ok(Way::Beside)
        } else {
            Err(LimitError::Crowded {
                group: place.group.clone(),
                processes: others,
            })
        }
    }

    fn find(place: &Place) -> Result<Way, LimitError> {
        if place.version == Version::One {
            return Ok(Way::Below);
        }
        let hands_on = read(&place.group.join("cgroup.subtree_control"))?;
        let processes = read(&place.group.join("cgroup.procs"))?;
        let above = place.group.parent().filter(|_| place.group != place.mount);
        let beside = above.and_then(|above| read(&above.join("cgroup.subtree_control")).ok());
        Way::of(place, &hands_on, &processes, beside.as_deref())
    }
}

impl Group {
    /// Makes a group with a limit of `bytes`, and moves this process into it.
    pub fn enter(place: &Place, bytes: u64) -> Result<Group, LimitError> {
        let way = Way::find(place)?;
        let above = match way {
            Way::Beside => place.group.parent().unwrap_or(&place.group),
            Way::Below | Way::Nested => &place.group,
        };
        remove_leftovers(above, Path::new("/proc"));
        let folder = above.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&folder)
            .map_err(|error| LimitError::file(&folder, "could not be made", error))?;
        // From here on, dropping it undoes what was done.
        let mut group = Group {
            version: place.version,
            folder,
            home: place.group.clone(),
            way,
            is_inside: false,
            is_removed: false,
        };
        match way {
            Way::Nested => {
                group.move_in()?;
                write(&group.home.join("cgroup.subtree_control"), "+memory")?;
                group.set_limit(bytes)?;
            }
            Way::Below | Way::Beside => {
                group.set_limit(bytes)?;
                group.move_in()?;
            }
        }
        Ok(group)
    }

    pub fn version(&self) -> Version {
        self.version
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn move_in(&mut self) -> Result<(), LimitError> {
        move_to(&self.folder)?;
        self.is_inside = true;
        Ok(())
    }

    /// Limits memory, and forbids swap if the kernel counts it.
    fn set_limit(&self, bytes: u64) -> Result<(), LimitError> {
        let (memory, swap, swap_limit) = match self.version {
            // The second limit is that of memory and swap together.
            Version::One => (
                "memory.limit_in_bytes",
                "memory.memsw.limit_in_bytes",
                bytes,
            ),
            Version::Two => ("memory.max", "memory.swap.max", 0),
        };
        write(&self.folder.join(memory), &bytes.to_string())?;
        let swap = self.folder.join(swap);
        match swap.exists() {
            true => write(&swap, &swap_limit.to_string()),
            false => Ok(()),
        }
    }

    /// Moves this process back and removes the group. It may be called again if it failed.
    pub fn leave(&mut self) -> Result<(), LimitError> {
        if self.is_inside {
            if self.way == Way::Nested {
                // A group that lets groups below it have limits cannot take the process back.
                let _ = write(&self.home.join("cgroup.subtree_control"), "-memory");
            }
            move_to(&self.home)?;
            self.is_inside = false;
        }
        if !self.is_removed {
            self.remove()?;
            self.is_removed = true;
        }
        Ok(())
    }

    fn remove(&self) -> Result<(), LimitError> {
        let start = Instant::now();
        loop {
            match fs::remove_dir(&self.folder) {
                Ok(()) => return Ok(()),
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
                Err(_) if start.elapsed() < REMOVE_FOR => std::thread::sleep(REMOVE_STEP),
                Err(error) => {
                    let processes = read(&self.folder.join("cgroup.procs")).unwrap_or_default();
                    let processes: Vec<&str> = processes.lines().collect();
                    return Err(match processes.is_empty() {
                        true => LimitError::file(&self.folder, "could not be removed", error),
                        false => LimitError::Inhabited {
                            group: self.folder.clone(),
                            processes: processes.join(", "),
                        },
                    });
                }
            }
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        // Nobody can be told. The next process that enters a group removes what is left.
        let _ = self.leave();
    }
}

/// Moves this process with all its threads to a group.
fn move_to(group: &Path) -> Result<(), LimitError> {
    write(&group.join("cgroup.procs"), &std::process::id().to_string())
}

/// Writes to a file of the control groups, which exists if the controller is there.
fn write(file: &Path, text: &str) -> Result<(), LimitError> {
    let open = OpenOptions::new().write(true).open(file);
    open.and_then(|mut file| file.write_all(text.as_bytes()))
        .map_err(|error| LimitError::file(file, format!("could not write `{text}`"), error))
}

/// Removes groups whose processes were killed. A group that has processes cannot be removed, so
/// nothing that is in use is ever lost.
fn remove_leftovers(above: &Path, processes: &Path) {
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    for entry in entries {
        let name = entry.file_name();
        let process = name.to_str().and_then(|name| name.strip_prefix(PREFIX));
        let Some(Ok(process)) = process.map(str::parse::<u32>) else {
            continue;
        };
        // One that runs may have made its group a moment ago, and not entered it yet.
        if process == std::process::id() || !processes.join(process.to_string()).exists() {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

#[cfg(test)]
mod tests;

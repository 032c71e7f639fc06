//! A folder of the local file system as a storage.
//!
//! Its modules:
//! - `storage.rs`: [`FileStorage`], the storage's calls on a folder.
//! - `folder.rs`: the opened folder, and the system calls on the names in it.
//! - `own_name.rs`: the names of the files that the storage makes for itself.
//! - `place.rs`: the path to a folder: creating, renaming and deleting folders durably.
//! - `read.rs`, `write.rs`, `direct.rs`: open files: for reading, for appending, and both past the
//!   page cache. `mapping.rs` and `write_map.rs` are the memory maps of the first two.
//! - `lease.rs`: the lock on a file that keeps a second writer out.
//!
//! Invariants:
//! - Nothing is written before a lease is taken, except that the folder itself is created.
//! - All names are resolved relative to the folder that was opened at the start, so a folder that
//!   is renamed stays the same storage.
//! - Temporary files (`.<name>.tmp`) and lease files (`LOCK.<name>`) are never listed.
//! - A lease file is deleted only by [`remove_folder`], as the last step of its holder there. A
//!   lease counts only while its file still has its name.
//! - A sync of a file is `fdatasync` (on macOS `F_FULLFSYNC`). A sync of a folder is `fsync`.
//!
//! Only errors of the file system are reported. The epoch is not checked here, because a lock on an
//! open file cannot expire while its holder lives.
//!
//! Threading: everything may be called from any thread.

mod direct;
mod folder;
mod lease;
mod mapping;
mod own_name;
mod place;
mod read;
mod storage;
mod write;

#[cfg(any(target_os = "linux", target_os = "android"))]
mod write_map;

#[cfg(test)]
mod tests;

pub use own_name::is_own_name;
pub use place::{folder_entries, remove_folder, rename_folder};
pub use read::{open_descriptor, open_file};
pub use storage::{FileStorage, open_files_max};
pub use write::ignore_file_size_signal;

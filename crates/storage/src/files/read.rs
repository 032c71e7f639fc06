//! A file that is open for reading.
//!
//! Invariants: the length is the one that the file had when it was opened. A read fills the buffer
//! or fails. A file whose descriptor another process passed is one of the file system, with at
//! least the length that was told; if it becomes shorter later, reads and maps fail as those of any
//! file that is truncated.
//!
//! Threading: everything may be called from any thread. The mapping is made once, under a mutex.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::{Arc, Mutex};

use super::mapping::FileMapping;
#[cfg(any(target_os = "linux", target_os = "android"))]
use super::mapping::WILL_NEED_BYTES;
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::map::{Map, MapOwner};
use crate::storage::{Access, ReadFile};

/// Opens the file `path` for reading, for tools that examine single files. Any name in any folder
/// is accepted, and nothing is locked.
///
/// # Errors
/// If it cannot be opened, or if it is not a regular file.
pub fn open_file(path: impl AsRef<Path>) -> Result<Arc<dyn ReadFile>> {
    let path = path.as_ref();
    let shown = path.display().to_string();
    let failed = |e: io::Error| StorageError::from_io("open", &shown, &e);
    // A pipe would make the open itself wait for its other end.
    if !std::fs::metadata(path).map_err(failed)?.is_file() {
        return Err(StorageError::new(
            StorageErrorKind::InvalidInput,
            "open",
            shown,
            "this is no regular file",
        ));
    }
    let file = File::open(path).map_err(failed)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    Ok(Arc::new(FileReader::new(&name, shown.clone(), file)?))
}

/// Reads a file that another process opened, by the descriptor that it passed. `name` is the
/// object's name, and `len` the length that the other process told.
///
/// # Errors
/// If the descriptor is not one of a regular file, or the file is shorter. Nothing is believed that
/// the other process says: a map of a shorter file would have pages that cannot be read.
pub fn open_descriptor(
    name: &str,
    shown: String,
    descriptor: OwnedFd,
    len: u64,
) -> Result<Arc<dyn ReadFile>> {
    let refused = |detail: String| {
        let kind = StorageErrorKind::InvalidInput;
        Err(StorageError::new(kind, "open", &shown, detail))
    };
    let file = File::from(descriptor);
    let found = file
        .metadata()
        .map_err(|e| StorageError::from_io("open", &shown, &e))?;
    if !found.is_file() {
        return refused("the descriptor that was passed is not one of a regular file".into());
    }
    if found.len() < len {
        return refused(format!(
            "the file that was passed has {} bytes, and {len} were expected",
            found.len()
        ));
    }
    Ok(Arc::new(FileReader {
        name: name.to_owned(),
        shown,
        file,
        len,
        mapping: Mutex::new(None),
    }))
}

/// A file that is open for reading, with the mapping of its bytes if there is one.
pub(super) struct FileReader {
    name: String,
    /// The path as the user knows it, for messages.
    shown: String,
    file: File,
    len: u64,
    /// The first call of `map` makes the mapping. All views share it.
    mapping: Mutex<Option<Arc<FileMapping>>>,
}

impl FileReader {
    pub(super) fn new(name: &str, shown: String, file: File) -> Result<FileReader> {
        let len = file
            .metadata()
            .map_err(|e| StorageError::from_io("open", &shown, &e))?
            .len();
        Ok(FileReader {
            name: name.to_owned(),
            shown,
            file,
            len,
            mapping: Mutex::new(None),
        })
    }

    fn mapping(&self) -> Option<Arc<FileMapping>> {
        self.mapping
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone()
    }
}

impl ReadFile for FileReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        self.file.read_exact_at(buf, offset).map_err(|e| {
            if e.kind() == io::ErrorKind::UnexpectedEof {
                let detail = format!("wanted {} bytes, the file has {}", buf.len(), self.len);
                StorageError::new(StorageErrorKind::UnexpectedEof, "read", &self.shown, detail)
                    .at(offset)
            } else {
                StorageError::from_io("read", &self.shown, &e).at(offset)
            }
        })
    }

    fn advise(&self, access: Access, offset: u64, len: u64) {
        if let Some(mapping) = self.mapping() {
            mapping.advise(access, offset, len);
            if access == Access::WillNeed {
                // The mapping has asked for the same pages of the same file.
                return;
            }
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            use rustix::fs::{Advice, fadvise};
            use std::num::NonZeroU64;
            let advice = match access {
                Access::Random => Advice::Random,
                Access::Sequential => Advice::Sequential,
                Access::DontNeed => Advice::DontNeed,
                Access::WillNeed => {
                    let end = offset.saturating_add(len).min(self.len);
                    for piece in (offset..end).step_by(WILL_NEED_BYTES) {
                        let len = NonZeroU64::new((end - piece).min(WILL_NEED_BYTES as u64));
                        let _ = fadvise(&self.file, piece, len, Advice::WillNeed);
                    }
                    return;
                }
            };
            let _ = fadvise(&self.file, offset, NonZeroU64::new(len), advice);
        }
    }

    fn map(&self) -> Result<Option<Map>> {
        if self.len == 0 {
            return Ok(Some(Map::from_bytes(Arc::from([]), false)));
        }
        let Ok(len) = usize::try_from(self.len) else {
            return Ok(None);
        };
        let mut mapping = self.mapping.lock().unwrap_or_else(|e| e.into_inner());
        if let Some(mapping) = &*mapping {
            return Ok(Some(mapping.view()));
        }
        let fresh = Arc::new(
            FileMapping::new(&self.file, len)
                .map_err(|e| StorageError::from_io("map", &self.shown, &e))?,
        );
        let view = fresh.view();
        *mapping = Some(fresh);
        Ok(Some(view))
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

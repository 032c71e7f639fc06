//! Where the stores of a call lie, and whether there is room for them.
//!
//! Invariant: only a folder that the call made itself is removed.
//!
//! Threading: plain data.

use std::path::{Path, PathBuf};

use super::{CommandError, Result, file_error};

/// The folder of a call.
#[derive(Debug)]
pub struct Place {
    folder: PathBuf,
    /// Removes the folder when it is dropped.
    _temporary: Option<tempfile::TempDir>,
    is_kept: bool,
}

impl Place {
    /// The folder that the user named, or a new temporary one.
    ///
    /// # Errors
    /// If it cannot be created.
    pub fn of(folder: Option<&Path>, keep: bool) -> Result<Place> {
        if let Some(folder) = folder {
            std::fs::create_dir_all(folder).map_err(file_error(folder))?;
            return Ok(Place {
                folder: folder.to_path_buf(),
                _temporary: None,
                is_kept: true,
            });
        }
        let made = tempfile::Builder::new().prefix("silt-bench-").tempdir();
        let made = made.map_err(file_error(&std::env::temp_dir()))?;
        let folder = made.path().to_path_buf();
        let temporary = match keep {
            true => {
                let _ = made.keep();
                None
            }
            false => Some(made),
        };
        Ok(Place {
            folder,
            _temporary: temporary,
            is_kept: keep,
        })
    }

    /// The folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Whether the folder stays.
    pub fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// Refuses what cannot fit on the disk. `freed_bytes` are those of files that are deleted
    /// before.
    ///
    /// # Errors
    /// If there is too little room, with what the user can do.
    pub fn check_room(&self, needed_bytes: u64, freed_bytes: u64, smaller: &str) -> Result<()> {
        let found = rustix::fs::statvfs(&self.folder);
        let found = found.map_err(|error| file_error(&self.folder)(error.into()))?;
        let free_bytes = found.f_bavail.saturating_mul(found.f_frsize);
        if needed_bytes <= free_bytes.saturating_add(freed_bytes) {
            return Ok(());
        }
        let text =
            |bytes: u64| crate::record::number::bytes(Some(bytes as f64)).replace('\u{a0}', " ");
        Err(CommandError::Failed(format!(
            "{}: the disk has {} free, and the store may take {}; give --folder on a larger disk, \
             or {smaller}",
            self.folder.display(),
            text(free_bytes),
            text(needed_bytes)
        )))
    }
}

/// The bytes that the files of a folder take on disk; 0 if there is no folder.
pub fn size_of(folder: &Path) -> u64 {
    let sizes = crate::measure::files::sizes(folder, &crate::measure::files::purpose_by_name);
    sizes.map_or(0, |sizes| sizes.total().allocated_bytes)
}

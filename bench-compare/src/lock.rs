//! The lock of a folder of results, so that two comparisons never write to the same one.
//!
//! The folder itself is locked, not a file in it. So the lock can be taken before it is known
//! whether the folder has results: a folder in which results are begun has to be empty.
//!
//! Threading: a lock belongs to this process until its file is closed.

use std::fs::{self, File, TryLockError};
use std::io;
use std::path::Path;

use crate::Result;

/// Takes the lock of a folder of results, which is made if there is none. The lock is held as long
/// as the file is open.
///
/// # Errors
/// If another comparison holds it, or if the folder cannot be made, opened or locked.
pub fn lock_results(folder: &Path) -> Result<File> {
    let name = folder.display();
    let about = |error: io::Error| format!("{name}: {error}");
    fs::create_dir_all(folder).map_err(about)?;
    let opened = File::open(folder).map_err(about)?;
    match opened.try_lock() {
        Ok(()) => Ok(opened),
        Err(TryLockError::WouldBlock) => Err(format!(
            "another comparison writes its results to {name}; wait for its end, or give another \
             --results"
        )),
        Err(TryLockError::Error(error)) => Err(format!("{name} cannot be locked: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_of_results_has_one_writer_at_a_time() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("results");
        let lock = lock_results(&folder).unwrap();
        let error = lock_results(&folder).unwrap_err();
        assert!(error.contains("another comparison"), "{error}");
        assert!(error.contains(&folder.display().to_string()), "{error}");
        drop(lock);
        lock_results(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        let error = lock_results(&file).unwrap_err();
        assert!(error.contains("file"), "{error}");
    }
}

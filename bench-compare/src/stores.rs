//! The folders of the stores, and what has been done to each store.
//!
//! The store of an engine lies in `FOLDER/STORE/ENGINE`, where the child makes it. Beside it,
//! `ENGINE.history` says what has been done to it and by which program. While a workload changes a
//! store, its history is missing, so a store that was left in the middle is filled again.
//!
//! Invariants: only folders below one that this program made are deleted. One program at a time
//! uses a folder.
//!
//! Threading: the main thread.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Result;

/// The file that marks a folder as one of this program, and that it locks.
const MARK: &str = "bench-compare.lock";
const MARK_TEXT: &str = "Stores of bench-compare, which may delete everything in this folder.\n";

/// The stores of a comparison.
pub struct Stores {
    folder: PathBuf,
    /// The plan and the programs that made the stores.
    identity: String,
    /// Held as long as this program runs.
    _lock: File,
}

fn about(path: &Path) -> impl Fn(io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

impl Stores {
    /// Takes a folder for the stores.
    ///
    /// # Errors
    /// If it has files of somebody else, or if another comparison uses it.
    pub fn open(folder: &Path, identity: String) -> Result<Stores> {
        fs::create_dir_all(folder).map_err(about(folder))?;
        let mark = folder.join(MARK);
        let mut entries = fs::read_dir(folder).map_err(about(folder))?;
        if !mark.exists() && entries.next().is_some() {
            return Err(format!(
                "{} has files that bench-compare did not make; give another --folder",
                folder.display()
            ));
        }
        let mut lock = File::options()
            .create(true)
            .truncate(true)
            .write(true)
            .open(&mark)
            .map_err(about(&mark))?;
        if let Err(error) = lock.try_lock() {
            return Err(format!(
                "{} is in use by another comparison ({error}); wait for its end, or give another \
                 --folder",
                folder.display()
            ));
        }
        lock.write_all(MARK_TEXT.as_bytes()).map_err(about(&mark))?;
        Ok(Stores {
            folder: folder.into(),
            identity,
            _lock: lock,
        })
    }

    /// The folder in which the engine's store lies.
    pub fn of(&self, store: &str, engine: &str) -> PathBuf {
        self.folder.join(store).join(engine)
    }

    fn history_file(&self, store: &str, engine: &str) -> PathBuf {
        self.folder.join(store).join(format!("{engine}.history"))
    }

    /// Whether exactly this has been done to the store, by the same programs.
    pub fn has(&self, store: &str, engine: &str, history: &str) -> bool {
        let text = fs::read_to_string(self.history_file(store, engine));
        text.is_ok_and(|text| text == self.text(history))
    }

    fn text(&self, history: &str) -> String {
        format!("{}\n{history}\n", self.identity)
    }

    /// Notes what has been done to the store.
    pub fn note(&self, store: &str, engine: &str, history: &str) -> Result<()> {
        let file = self.history_file(store, engine);
        let new = file.with_extension("history.new");
        fs::write(&new, self.text(history)).map_err(about(&new))?;
        fs::rename(&new, &file).map_err(about(&file))
    }

    /// Called before a store is changed: until [`Stores::note`], nobody knows what it has.
    pub fn forget(&self, store: &str, engine: &str) -> Result<()> {
        let file = self.history_file(store, engine);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(about(&file)(error)),
            _ => Ok(()),
        }
    }

    /// Deletes a store.
    pub fn delete(&self, store: &str, engine: &str) -> Result<()> {
        self.forget(store, engine)?;
        let folder = self.of(store, engine);
        match fs::remove_dir_all(&folder) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(about(&folder)(error)),
            _ => Ok(()),
        }
    }

    /// Deletes everything, when the comparison is complete.
    pub fn delete_all(self) -> Result<()> {
        fs::remove_dir_all(&self.folder).map_err(about(&self.folder))
    }

    /// The folder of all stores.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// The bytes that are free for the stores; those that they take already count as free.
    pub fn free_bytes(&self) -> Result<u64> {
        let status =
            rustix::fs::statvfs(&self.folder).map_err(|error| about(&self.folder)(error.into()))?;
        let free = status.f_bavail.saturating_mul(status.f_frsize);
        Ok(free.saturating_add(used_bytes(&self.folder)))
    }
}

/// The bytes of all files below a folder; what cannot be read counts as nothing.
fn used_bytes(folder: &Path) -> u64 {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter_map(|entry| Some((entry.path(), entry.metadata().ok()?)))
        .map(|(path, metadata)| match metadata.is_dir() {
            true => used_bytes(&path),
            false => metadata.blocks() * 512,
        })
        .sum()
}

/// The SHA-256 of a text.
pub fn digest(text: &str) -> String {
    hexadecimal(&Sha256::digest(text))
}

/// The SHA-256 of a file.
pub fn digest_of_file(path: &Path) -> Result<String> {
    let bytes = fs::read(path).map_err(about(path))?;
    Ok(hexadecimal(&Sha256::digest(bytes)))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_known_until_it_is_changed() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("stores");
        let stores = Stores::open(&folder, "one".into()).unwrap();
        fs::create_dir_all(stores.of("128", "a")).unwrap();
        assert!(!stores.has("128", "a", "fill"));
        stores.note("128", "a", "fill").unwrap();
        assert!(stores.has("128", "a", "fill"));
        assert!(!stores.has("128", "a", "fill, overwrite"));
        assert!(!stores.has("128", "b", "fill"));
        stores.forget("128", "a").unwrap();
        assert!(!stores.has("128", "a", "fill"));
        stores.note("128", "a", "fill").unwrap();
        drop(stores);
        let other = Stores::open(&folder, "another".into()).unwrap();
        assert!(!other.has("128", "a", "fill"), "another program made it");
        other.delete("128", "a").unwrap();
        assert!(!other.of("128", "a").exists());
        other.delete_all().unwrap();
        assert!(!folder.exists());
    }

    #[test]
    fn two_comparisons_do_not_share_a_folder() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("stores");
        let _stores = Stores::open(&folder, "one".into()).unwrap();
        let error = Stores::open(&folder, "one".into()).err().unwrap();
        assert!(error.contains("in use"), "{error}");
    }

    #[test]
    fn a_folder_of_somebody_else_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("letter"), "x").unwrap();
        let error = Stores::open(folder.path(), "one".into()).err().unwrap();
        assert!(error.contains("--folder"), "{error}");
    }
}

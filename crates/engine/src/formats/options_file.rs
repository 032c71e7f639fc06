//! `OPTIONS.toml` in a store's folder, read through the storage of the store.
//!
//! Opens, `check` and the search for a store's parts all use this function. A file that exists and
//! cannot be read is an error that names it.
//!
//! Threading: pure functions.

use siltstone_storage::{Storage, StorageErrorKind};

use crate::types::error::Result;
use crate::types::options::file::OPTIONS;
use crate::types::options::{FILE_BYTES_MAX, OptionsFile};

/// The file as it was when the store was opened; `None` if there is none.
pub(crate) type Read = Result<Option<OptionsFile>>;

/// Reads the file from a store's folder.
pub(crate) fn read(storage: &dyn Storage) -> Read {
    let contents = || -> siltstone_storage::Result<Vec<u8>> {
        let file = storage.open(OPTIONS)?;
        // One byte more than is allowed is enough to refuse the file.
        let mut bytes = vec![0; file.len().min(FILE_BYTES_MAX + 1) as usize];
        file.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    let read = match contents() {
        Ok(bytes) => OptionsFile::from_bytes(&bytes).map(Some),
        Err(error) if error.kind == StorageErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    };
    read.map_err(|error| error.context(format!("{}/{OPTIONS}", storage.describe())))
}

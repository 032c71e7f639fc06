//! Reading parts of files that may have any length.
//!
//! Invariant: if there is no memory for the bytes that are asked for, that is an error of the read
//! and does not end the process.
//!
//! Threading: pure functions.

use siltstone_storage::ReadFile;

use crate::types::error::{Error, ErrorKind, Result};

/// Makes `out` hold exactly `len` bytes of any content.
///
/// # Errors
/// `Io` that names the file `file`, if there is no memory for them.
pub(crate) fn make_room(file: &str, len: u64, out: &mut Vec<u8>) -> Result<()> {
    let missing = usize::try_from(len).map(|len| len.saturating_sub(out.len()));
    let fits = missing.is_ok_and(|missing| out.try_reserve_exact(missing).is_ok());
    if !fits {
        let message = format!("there is no memory for {len} bytes of the file");
        return Err(Error::new(ErrorKind::Io, message).in_file(file));
    }
    out.resize(len as usize, 0);
    Ok(())
}

/// The `len` bytes of the file from `at` on.
///
/// # Errors
/// Those of the storage, and `Io` if there is no memory for them.
pub(crate) fn read(file: &dyn ReadFile, at: u64, len: u64) -> Result<Vec<u8>> {
    let mut bytes = Vec::new();
    make_room(file.name(), len, &mut bytes)?;
    file.read_at(at, &mut bytes)?;
    Ok(bytes)
}

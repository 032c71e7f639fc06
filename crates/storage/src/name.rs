//! Which names objects and leases may have. Every storage applies the same rules.
//!
//! Names that start with a dot belong to the storage (temporary files), and names that start with
//! `LOCK.` are lease files. Neither can be an object's name, so these files cannot be listed,
//! opened or deleted by accident.

use crate::error::{Result, StorageError, StorageErrorKind};

/// The prefix of lease files, which are called `LOCK.<lease>`.
pub const LEASE_PREFIX: &str = "LOCK.";

/// The longest object name in bytes.
pub const NAME_MAX_BYTES: usize = 100;

fn well_formed(name: &str) -> bool {
    !name.is_empty()
        && name.len() <= NAME_MAX_BYTES
        && !name.starts_with('.')
        && name
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || matches!(b, b'.' | b'_' | b'-'))
}

/// Whether `name` can be an object's name.
pub fn is_object_name(name: &str) -> bool {
    well_formed(name) && !name.starts_with(LEASE_PREFIX)
}

/// Fails if `name` cannot be an object's name.
pub(crate) fn check_object_name(op: &'static str, name: &str) -> Result<()> {
    if is_object_name(name) {
        return Ok(());
    }
    let why = if well_formed(name) {
        "names that start with `LOCK.` belong to leases"
    } else {
        "a name is 1 to 100 of the characters A-Z a-z 0-9 . _ - and does not start with a dot"
    };
    Err(StorageError::new(
        StorageErrorKind::InvalidInput,
        op,
        name.escape_debug().to_string(),
        why,
    ))
}

/// Fails if `name` cannot be a lease's name.
pub(crate) fn check_lease_name(name: &str) -> Result<()> {
    if well_formed(name) && name.len() + LEASE_PREFIX.len() <= NAME_MAX_BYTES {
        return Ok(());
    }
    Err(StorageError::new(
        StorageErrorKind::InvalidInput,
        "lease",
        name.escape_debug().to_string(),
        "a lease's name is 1 to 95 of the characters A-Z a-z 0-9 . _ - and does not start with a \
         dot",
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names() {
        for good in ["a", "000012.tbl", "CURRENT", "a_b-c.D", &"x".repeat(100)] {
            assert!(is_object_name(good), "{good}");
        }
        for bad in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "a b",
            "LOCK.writer",
            "ä",
            "a\0",
            &"x".repeat(101),
        ] {
            assert!(!is_object_name(bad), "{bad:?}");
        }
        assert!(check_lease_name("writer").is_ok());
        assert!(check_lease_name("../writer").is_err());
        assert!(check_lease_name(&"x".repeat(96)).is_err());
    }
}

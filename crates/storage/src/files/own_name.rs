//! The names of the files that a folder's storage makes for itself.
//!
//! Invariants: no such name can be an object's name (see [`crate::name`]), so these files are never
//! listed, opened or deleted as objects.
//!
//! Threading: plain functions.

use crate::name::{LEASE_PREFIX, is_object_name};

/// Ends the names of temporary files.
const TEMP_SUFFIX: &str = ".tmp";

/// The name of the temporary file for the object `name`.
pub(super) fn temp_name(name: &str) -> String {
    format!(".{name}{TEMP_SUFFIX}")
}

/// Whether a storage makes files with such a name for itself: lease files, and the temporary files
/// that a crash may leave of an atomic replacement.
pub fn is_own_name(name: &str) -> bool {
    let temporary = name
        .strip_prefix('.')
        .and_then(|n| n.strip_suffix(TEMP_SUFFIX));
    temporary.is_some_and(is_object_name) || name.starts_with(LEASE_PREFIX)
}

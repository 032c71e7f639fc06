//! The manifest: the store's state on storage, and the only place where it changes.
//!
//! A file `MANIFEST-{number}` begins with the whole state and continues with edits; the pointer
//! `CURRENT` names it. [`recover`] reads the state back. [`Manifest`] holds the current state
//! together with the writer and commits edits. `docs/format/manifest.md` describes the bytes.
//!
//! Invariants:
//! - **M1** An edit is appended and synced before [`Manifest::commit`] returns it as the new state.
//! - **M2** After a failed append or sync of the current manifest, or a replacement of `CURRENT`
//!   whose result is unknown, nothing is written any more: every later call fails with the same
//!   `Poisoned` error. So no valid record ever follows a bad one, unless something else changed the
//!   bytes, and then it is corruption.
//! - **M3** A manifest that `CURRENT` does not name yet may fail without harm: it is deleted, and
//!   the old one is still current.
//! - **M4** A full disk poisons nothing: space is written before it is used, and the last
//!   [`KEPT_BYTES`] of it are for edits that give space back.
//! - **M5** A manifest's number is above every number found, so a name is never used again.
//!
//! Threading: the mutex of the manifest role holds a [`Manifest`]. It is locked across storage
//! calls, and taken by neither reads nor writes.

pub mod format;
pub mod reader;
pub(crate) mod records;
pub mod writer;

pub use format::{
    CURRENT_NAME, Current, ManifestPosition, StoreId, manifest_name, parse_manifest_name,
};
pub use reader::{Recovered, read_current, read_manifest, recover};
pub use writer::{
    CreateFailure, KEPT_BYTES, Manifest, ManifestWriter, RESERVE_STEP_BYTES, Space,
    new_manifest_bytes, next_number,
};

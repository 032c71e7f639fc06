//! The manifest: the store's state on storage, and the one place where it changes.
//!
//! What it is: a file `MANIFEST-{number}` that begins with the whole state and goes on with edits, and the pointer
//! `CURRENT` that names it. [`recover`] reads the state back; [`Manifest`] holds the current state together with
//! the writer and commits edits. Bytes: `docs/format/manifest.md`.
//!
//! Invariants:
//! - **M1** An edit is appended and synced before [`Manifest::commit`] returns it as the new state.
//! - **M2** After a failed append or sync of the current manifest, or an unsure replacement of `CURRENT`, nothing is
//!   written any more: every later call gets the same sticky `Poisoned` error. So no valid record ever follows a bad
//!   one, unless bytes changed behind our back, and then it is corruption.
//! - **M3** A manifest that `CURRENT` does not name yet may fail freely: it is deleted, the old one goes on.
//! - **M4** Running out of room poisons nothing: space is written before it is used, and the last
//!   [`KEPT_BYTES`] of it are for edits that give space back.
//! - **M5** A manifest's number is above every number found, so a name never comes back.
//!
//! Threading: the manifest role's mutex holds a [`Manifest`]; it is locked across storage calls and taken by neither
//! reads nor writes.

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

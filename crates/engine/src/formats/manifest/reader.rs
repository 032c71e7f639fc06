//! Reads a store's state back.
//!
//! `CURRENT` names a manifest. Its first record is the whole state, and the others are edits.
//! Reading ends at the first bad record. Zeros from there on are reserved space. Anything else is
//! an edit that was being appended when the process or the power failed: it was not acknowledged,
//! so it is dropped and counted. A bad record with a valid one anywhere behind it is corruption,
//! because the writer appends only after the record before was synced.
//!
//! A seal follows each edit, so that the *last* acknowledged record can be told from one that was
//! not acknowledged. It is a valid record that changes nothing, and is written after the sync of
//! the edit ([`format::behind_seal`]).
//!
//! A file that was cut at the end of a record looks like a shorter manifest. `CURRENT` has the
//! offset that the manifest had reached when the pointer was written, and a close writes it again.
//! So this is damage too.
//!
//! Threading: pure functions, except for those that read files.

use siltstone_storage::{Storage, StorageErrorKind};

use super::format::{
    self, ALIGN_BYTES, Bad, CURRENT_NAME, Current, HEADER_BYTES, MAX_MANIFEST_BYTES,
    ManifestPosition, manifest_name,
};
use super::records::{self, Records};
use crate::formats::file_bytes;
use crate::formats::version::{Edit, StoreState};
use crate::types::error::{Error, ErrorKind, Result};
use siltstone_storage::planted;

/// A state that was read back, and how reading went.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Recovered {
    /// The manifest and the store.
    pub current: Current,
    /// The state after the last good record.
    pub state: StoreState,
    /// Where the last good record ends.
    pub end: ManifestPosition,
    /// The number of good records, including the whole-state one.
    pub record_count: u64,
    /// Bytes of an unacknowledged edit behind the last good record, up to the last byte that is not
    /// zero.
    pub dropped_bytes: u64,
    /// The number of fields that this build does not know and need not understand. They are lost
    /// when the manifest is written anew.
    pub ignored_field_count: u64,
}

/// The contents of `CURRENT`; `None` if it does not exist.
///
/// # Errors
/// `Corruption` or `Unsupported` if it cannot be used, and those of the storage.
pub fn read_current(storage: &dyn Storage) -> Result<Option<Current>> {
    match storage.read_small(CURRENT_NAME) {
        Ok(bytes) => Current::decode(&bytes).map(Some),
        Err(error) if error.kind == StorageErrorKind::NotFound => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Reads the current state; `None` without a `CURRENT`: there is no store yet, or its creation was
/// not finished. (The caller, who knows all storages, decides whether tables or log segments
/// without a `CURRENT` mean that the pointer was lost.)
///
/// # Errors
/// Those of [`read_current`] and [`read_manifest`].
pub fn recover(storage: &dyn Storage) -> Result<Option<Recovered>> {
    match read_current(storage)? {
        Some(current) => read_manifest(storage, &current).map(Some),
        None => Ok(None),
    }
}

/// Reads the manifest that `current` names.
///
/// # Errors
/// `Corruption` with file and offset, `Unsupported` for an unknown version or field, and those of
/// the storage.
pub fn read_manifest(storage: &dyn Storage, current: &Current) -> Result<Recovered> {
    let name = manifest_name(current.number);
    let file = storage.open(&name).map_err(|error| match error.kind {
        StorageErrorKind::NotFound => Error::from(error)
            .with_kind(ErrorKind::Corruption)
            .context("the manifest that CURRENT names is missing"),
        _ => error.into(),
    })?;
    let len = file.len();
    if len > MAX_MANIFEST_BYTES {
        return Err(
            Error::corruption(name, "the manifest is longer than a store can make it")
                .expected(format!("at most {MAX_MANIFEST_BYTES} bytes"))
                .found(len),
        );
    }
    let bytes = file_bytes::read(&*file, 0, len)?;
    parse_manifest(&bytes, current)
}

/// Reads a manifest from its bytes.
///
/// # Errors
/// `Corruption` with file and offset, `Unsupported` for an unknown version or field.
pub fn parse_manifest(bytes: &[u8], current: &Current) -> Result<Recovered> {
    let name = manifest_name(current.number);
    format::check_header(bytes, current)?;
    let mut recovered = Recovered {
        current: *current,
        state: StoreState::default(),
        end: ManifestPosition {
            number: current.number,
            offset: HEADER_BYTES as u64,
        },
        record_count: 0,
        dropped_bytes: 0,
        ignored_field_count: 0,
    };
    let mut records = Records::new(bytes, current.number);
    let bad = loop {
        let (at, payload) = match records.next() {
            Ok(record) => record,
            Err(bad) => break bad,
        };
        let placed = |error: Error| error.in_file(name.clone()).at(at as u64);
        let decoded = Edit::decode(payload).map_err(placed)?;
        if decoded.edit.whole != (recovered.record_count == 0) {
            return Err(placed(Error::new(
                ErrorKind::Corruption,
                "a manifest's first record, and no other, is the whole state",
            )));
        }
        recovered.state = recovered.state.apply(&decoded.edit).map_err(placed)?;
        recovered.ignored_field_count += decoded.ignored_count;
        recovered.record_count += 1;
        recovered.end.offset = records.at() as u64;
    };
    let offset = records.at();
    if recovered.record_count == 0 {
        return Err(
            Error::corruption(name, "the manifest's first record is damaged")
                .at(offset as u64)
                .expected("the whole state, which was synced before CURRENT named this manifest")
                .found(bad.describe()),
        );
    }
    // From here on nothing was acknowledged, unless a valid record shows otherwise.
    recovered.dropped_bytes = records::used_bytes(bytes, offset);
    if recovered.dropped_bytes > 0 {
        let behind = records::find(bytes, current.number, offset + ALIGN_BYTES);
        if let Some((at, ..)) = behind {
            return Err(
                Error::corruption(name, "a record of the manifest is damaged")
                    .at(offset as u64)
                    .expected(format!(
                        "a good record, because a good one follows at byte {at}"
                    ))
                    .found(bad.describe()),
            );
        }
    }
    check_end(&recovered, bad).map_err(|error| error.in_file(name))?;
    Ok(recovered)
}

/// A manifest never becomes shorter: it must still reach the offset in `CURRENT`.
fn check_end(recovered: &Recovered, bad: Bad) -> Result<()> {
    if recovered.end.offset >= recovered.current.end || planted!(ManifestEndIsIgnored) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::Corruption,
        "the manifest lost its last records: it was cut, or they are damaged",
    )
    .at(recovered.end.offset)
    .expected(format!(
        "good records through byte {}, as {CURRENT_NAME} says",
        recovered.current.end
    ))
    .found(bad.describe())
    .advice(
        "restore the manifest from a copy that is not older, or let `silt repair` read what the \
         tables and the log hold",
    ))
}

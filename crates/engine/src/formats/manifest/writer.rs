//! Writes manifests: a new one with the whole state, edits behind it, and the change to a new one.
//!
//! Invariants: M1 to M5 of the module above.
//!
//! Threading: one caller at a time, which holds the manifest role.

use std::sync::Arc;

use siltstone_storage::{Epoch, Storage, StorageErrorKind, WriteFile};

use super::format::{
    self, CURRENT_NAME, Current, HEADER_BYTES, MAX_EDIT_BYTES, ManifestPosition, StoreId,
    manifest_name, parse_manifest_name,
};
use super::reader::{Recovered, read_current};
use crate::formats::version::{Edit, StoreState};
use crate::types::error::{Error, ErrorKind, Result, closed};

/// Space is written ahead in steps of this many bytes.
pub const RESERVE_STEP_BYTES: u64 = 64 << 10;

/// Written space that only edits which give space back, and the edit of a close, may use.
pub const KEPT_BYTES: u64 = 16 << 10;

/// The length of a manifest whose whole-state record has a payload of `whole_bytes`.
pub fn new_manifest_bytes(whole_bytes: u64) -> u64 {
    let end = HEADER_BYTES as u64 + format::record_bytes(whole_bytes);
    (end + KEPT_BYTES).next_multiple_of(RESERVE_STEP_BYTES)
}

/// A shorter manifest is not written anew.
const ROLL_MIN_BYTES: u64 = 4 << 20;

/// A manifest is written anew when it is longer than this many times its whole-state record.
const ROLL_FACTOR: u64 = 4;

/// Where the space of a new manifest comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Space<'a> {
    /// A new file.
    Fresh,
    /// The file with this name, whose written space becomes the manifest's: the store's reserve, on
    /// a full disk.
    Recycle(&'a str),
}

/// The most manifests that were begun and never named by `CURRENT`. A file whose number is further
/// ahead is not one of the store's.
const MAX_UNNAMED: u64 = 1 << 32;

/// A number above that of every manifest in the storage and of the one that `CURRENT` names.
///
/// # Errors
/// Those of the storage; `Corruption` if `CURRENT` is damaged.
pub fn next_number(storage: &dyn Storage) -> Result<u64> {
    let named = read_current(storage)?.map(|current| current.number);
    let found = storage
        .list()?
        .iter()
        .filter_map(|object| parse_manifest_name(&object.name))
        .filter(|number| *number <= named.unwrap_or(0).saturating_add(MAX_UNNAMED))
        .max();
    match named.max(found).unwrap_or(0).checked_add(1) {
        Some(number) => Ok(number),
        None => Err(Error::corruption(
            CURRENT_NAME,
            "the numbers of manifests are used up",
        )),
    }
}

/// The failure to make a new manifest current.
#[derive(Debug)]
pub struct CreateFailure {
    /// What failed.
    pub error: Error,
    /// Whether `CURRENT` may name the new manifest or the old one. Neither may be written any more.
    pub unsure: bool,
}

impl From<CreateFailure> for Error {
    fn from(failure: CreateFailure) -> Error {
        // A storage that cannot be reached damages nothing, and the next open finds out which of
        // the two it is.
        if failure.unsure && !failure.error.is_unreachable() {
            failure.error.with_kind(ErrorKind::Poisoned)
        } else {
            failure.error
        }
    }
}

/// The current manifest, open for appending. The store uses it through [`Manifest`].
pub struct ManifestWriter {
    storage: Arc<dyn Storage>,
    epoch: Epoch,
    current: Current,
    /// `None` once it was released; `failed` then says so.
    file: Option<Arc<dyn WriteFile>>,
    /// The offset at which the whole-state record ends.
    whole_end: u64,
    /// The offset at which the last acknowledged edit ends.
    end: u64,
    /// The offset of the next edit: behind the seal of the last one.
    next: u64,
    failed: Option<Error>,
}

impl std::fmt::Debug for ManifestWriter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ManifestWriter")
            .field("current", &self.current)
            .field("whole_end", &self.whole_end)
            .field("end", &self.end)
            .field("next", &self.next)
            .field("failed", &self.failed)
            .finish_non_exhaustive()
    }
}

fn check_len(payload: &[u8]) -> Result<()> {
    if payload.len() as u64 > MAX_EDIT_BYTES {
        return Err(Error::invalid_argument("a manifest edit is too long")
            .expected(format!("at most {MAX_EDIT_BYTES} bytes"))
            .found(payload.len()));
    }
    Ok(())
}

impl ManifestWriter {
    /// Writes the whole `state` into manifest `current.number`, syncs it and its name, and makes it
    /// current, with the offset at which it ends.
    ///
    /// # Errors
    /// [`CreateFailure`]. Unless it is unsure, the old manifest is still current, and the new one
    /// was deleted again; if the storage refused that, it is an orphan.
    pub fn create(
        storage: Arc<dyn Storage>,
        epoch: Epoch,
        current: Current,
        state: &StoreState,
        space: Space<'_>,
    ) -> std::result::Result<ManifestWriter, CreateFailure> {
        let sure = |error: Error| CreateFailure {
            error,
            unsure: false,
        };
        let name = manifest_name(current.number);
        let payload = state.to_edit().encode();
        check_len(&payload).map_err(sure)?;
        // Gives back the space of the new name, to which nothing refers. If that fails too, it is
        // repeated later, as for any deletion that failed, or by the next open.
        let give_up = || {
            let _ = match space {
                Space::Fresh => storage.delete(epoch, &name),
                Space::Recycle(old) => storage.rename(epoch, &name, old),
            };
        };
        let created = match space {
            Space::Fresh => storage.create(epoch, &name),
            Space::Recycle(old) => storage.recycle(epoch, old, &name),
        };
        let file = created.map_err(|error| {
            // A call that failed may have created the file. A file that existed before is not ours.
            if error.kind != StorageErrorKind::AlreadyExists {
                give_up();
            }
            sure(error.into())
        })?;
        let end = Self::fill(&*file, current, &payload).map_err(|error| {
            give_up();
            sure(error)
        })?;
        // A failed sync of the folder is reported only once, to this call, and may concern any name
        // in it. So the result is unsure.
        storage.sync_dir(epoch).map_err(|e| CreateFailure {
            error: e.into(),
            unsure: true,
        })?;
        let current = Current { end, ..current };
        if let Err(error) = storage.replace(epoch, CURRENT_NAME, &current.encode()) {
            // Without room or a descriptor the replacement is not written, and a read shows that
            // the old pointer is in place. After any other failure a pointer that reads as old may
            // still become new, and one that cannot be read may be either.
            let unchanged = error.changed_nothing()
                && read_current(&*storage).is_ok_and(|now| now != Some(current));
            if unchanged {
                give_up();
            }
            return Err(CreateFailure {
                error: error.into(),
                unsure: !unchanged,
            });
        }
        Ok(ManifestWriter {
            storage,
            epoch,
            current,
            file: Some(file),
            whole_end: end,
            end,
            next: end,
            failed: None,
        })
    }

    /// Writes and syncs the header and the whole state. Returns the offset at which they end.
    fn fill(file: &dyn WriteFile, current: Current, payload: &[u8]) -> Result<u64> {
        let start = HEADER_BYTES as u64;
        let end = start + format::record_bytes(payload.len() as u64);
        match file.reserve(new_manifest_bytes(payload.len() as u64)) {
            // A recycled file may have room for the state and for nothing more.
            Err(error) if error.is_no_space() && file.len() >= end => {}
            other => other?,
        }
        let header = format::encode_header(current.store_id, current.number);
        let record = format::encode_record_header(current.number, start, payload);
        let padding = (end - start) as usize - record.len() - payload.len();
        file.append(&[
            &header,
            &record,
            payload,
            &[0; format::ALIGN_BYTES][..padding],
        ])?;
        file.sync()?;
        Ok(end)
    }

    /// Appends `edit` and syncs it. When the call returns, the edit survives power loss.
    ///
    /// # Errors
    /// `NoSpace` if there was no room, `Io` if space could not be reserved for another reason:
    /// nothing was written, and the call may be repeated. `Poisoned` after a failed append or sync,
    /// or if another writer has taken over the store: all later calls fail in the same way.
    pub fn append(&mut self, edit: &Edit) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let payload = edit.encode();
        check_len(&payload)?;
        if payload.is_empty() {
            return Ok(());
        }
        let end = self.next + format::record_bytes(payload.len() as u64);
        self.make_room(end, edit.may_use_kept_space())?;
        let record = format::encode_record_header(self.current.number, self.next, &payload);
        let padding = (end - self.next) as usize - record.len() - payload.len();
        let file = self.file()?;
        let written = file
            .append(&[&record, &payload, &[0; format::ALIGN_BYTES][..padding]])
            .and_then(|()| file.sync());
        match written {
            Ok(()) => {
                self.end = end;
                self.next = end;
                self.seal();
                Ok(())
            }
            Err(error) => Err(self.poison(error.into())),
        }
    }

    /// Writes a seal behind the last edit, which says that the edit was acknowledged, into space
    /// that is reserved; the sync of the next edit covers it. The edit is valid whether this
    /// succeeds or not: a missing seal looks like one that a power loss has taken, and the next
    /// record takes its place.
    fn seal(&mut self) {
        let seal = format::encode_seal(self.current.number, self.end);
        if let Some(file) = &self.file
            && self.end + seal.len() as u64 <= file.len()
        {
            let _ = file.append(&[&seal]);
            self.next = file.position();
        }
    }

    /// Writes into `CURRENT` at which offset the manifest ends, so that a manifest which is shorter
    /// later is known to be damaged. Both the old and the new pointer are true, so a failure harms
    /// nothing.
    ///
    /// # Errors
    /// `NoSpace` if there is no room for the new pointer, which is a file of its own for a moment.
    /// `Poisoned` after any other failure: the folder's sync may have failed.
    fn record_end(&mut self) -> Result<()> {
        let current = Current {
            end: self.end,
            ..self.current
        };
        match self
            .storage
            .replace(self.epoch, CURRENT_NAME, &current.encode())
        {
            Ok(()) => {
                self.current = current;
                Ok(())
            }
            Err(error) if error.changed_nothing() => Err(error.into()),
            Err(error) => Err(self.poison(error.into())),
        }
    }

    /// Makes sure that a record up to `end` needs no new space (M4).
    fn make_room(&mut self, end: u64, may_use_kept: bool) -> Result<()> {
        let kept = if may_use_kept { 0 } else { KEPT_BYTES };
        let file = self.file()?;
        if end + KEPT_BYTES <= file.len() {
            return Ok(());
        }
        match file.reserve((end + KEPT_BYTES).next_multiple_of(RESERVE_STEP_BYTES)) {
            Ok(()) => Ok(()),
            // This failure is final: this writer may not write any more.
            Err(error) if error.kind == StorageErrorKind::Fenced => Err(self.poison(error.into())),
            Err(_) if end + kept <= file.len() => Ok(()),
            Err(error) => Err(Error::from(error).context("the manifest cannot grow")),
        }
    }

    fn file(&self) -> Result<Arc<dyn WriteFile>> {
        self.file.clone().ok_or_else(closed)
    }

    fn poison(&mut self, cause: Error) -> Error {
        let error = Error::poisoned(&cause);
        self.failed.get_or_insert(error).clone()
    }

    /// The error of all further calls, once there is one.
    pub fn failed(&self) -> Option<&Error> {
        self.failed.as_ref()
    }

    /// The contents of `CURRENT`.
    pub fn current(&self) -> Current {
        self.current
    }

    /// The position through which edits were acknowledged.
    pub fn acknowledged(&self) -> ManifestPosition {
        ManifestPosition {
            number: self.current.number,
            offset: self.end,
        }
    }

    /// Whether the manifest should be written anew, because it is long, and longer than `bytes`.
    fn is_longer_than(&self, bytes: u64) -> bool {
        self.failed.is_none() && self.next > bytes.max(self.whole_end.saturating_mul(ROLL_FACTOR))
    }

    /// Continues in a new manifest that begins with `state`, the state after the last acknowledged
    /// edit. Returns the name of the old one, which may be deleted.
    ///
    /// # Errors
    /// The old manifest stays current, unless the error is `Poisoned`.
    pub fn roll(&mut self, state: &StoreState) -> Result<String> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        let number = next_number(&*self.storage)?.max(self.current.number + 1);
        let current = Current {
            number,
            end: 0,
            ..self.current
        };
        match ManifestWriter::create(
            self.storage.clone(),
            self.epoch,
            current,
            state,
            Space::Fresh,
        ) {
            Ok(new) => {
                let old = manifest_name(self.current.number);
                *self = new;
                Ok(old)
            }
            Err(CreateFailure {
                error,
                unsure: false,
            }) => Err(error),
            Err(CreateFailure {
                error,
                unsure: true,
            }) => Err(self.poison(error)),
        }
    }
}

/// The current state and its manifest, which the mutex of the manifest role holds.
#[derive(Debug)]
pub struct Manifest {
    writer: ManifestWriter,
    state: Arc<StoreState>,
    obsolete: Vec<String>,
    roll_failure_count: u64,
    /// The length below which no further roll is tried.
    next_roll_bytes: u64,
    /// The least length, in bytes, at which a manifest is written anew.
    roll_min_bytes: u64,
    roll_count: u64,
}

impl Manifest {
    /// Writes the whole `state` into a new manifest, numbered above every one found, and makes it
    /// current. The creation of a store and every writable open do this. Older manifests become
    /// [obsolete](Manifest::take_obsolete).
    ///
    /// # Errors
    /// [`CreateFailure`]. Unless it is unsure, the current manifest of the storage is the same as
    /// before.
    pub fn create(
        storage: Arc<dyn Storage>,
        epoch: Epoch,
        store_id: StoreId,
        state: Arc<StoreState>,
        space: Space<'_>,
    ) -> std::result::Result<Manifest, CreateFailure> {
        let sure = |error: Error| CreateFailure {
            error,
            unsure: false,
        };
        let number = next_number(&*storage).map_err(sure)?;
        let found = storage.list().map_err(|e| sure(e.into()))?;
        let obsolete = found
            .into_iter()
            .map(|o| o.name)
            .filter(|name| parse_manifest_name(name).is_some_and(|found| found < number))
            .collect();
        let writer = ManifestWriter::create(
            storage,
            epoch,
            Current {
                number,
                store_id,
                end: 0,
            },
            &state,
            space,
        )?;
        Ok(Manifest {
            writer,
            state,
            obsolete,
            roll_failure_count: 0,
            next_roll_bytes: 0,
            roll_min_bytes: ROLL_MIN_BYTES,
            roll_count: 0,
        })
    }

    /// Writes a new manifest for a store that was read back, from its state with `edit` applied.
    /// See [`Manifest::create`].
    ///
    /// # Errors
    /// Those of [`Manifest::create`]; `Corruption` for an edit that does not apply.
    pub fn reopen(
        storage: Arc<dyn Storage>,
        epoch: Epoch,
        recovered: &Recovered,
        edit: &Edit,
        space: Space<'_>,
    ) -> std::result::Result<Manifest, CreateFailure> {
        let state = recovered.state.apply(edit).map_err(|error| CreateFailure {
            error,
            unsure: false,
        })?;
        Manifest::create(
            storage,
            epoch,
            recovered.current.store_id,
            Arc::new(state),
            space,
        )
    }

    /// The state after the last committed edit.
    pub fn state(&self) -> &Arc<StoreState> {
        &self.state
    }

    /// The writer, for positions and its sticky error.
    pub fn writer(&self) -> &ManifestWriter {
        &self.writer
    }

    /// Applies `edit`, appends and syncs it, and returns the new state. When the call returns, the
    /// edit survives power loss. A manifest that has grown too long is written anew; if that fails,
    /// the edit is committed even so.
    ///
    /// # Errors
    /// `Corruption` if the edit does not apply, `NoSpace` or `Io` if the manifest could not grow
    /// (nothing has changed then); `Poisoned` after a failure that leaves the contents of the
    /// manifest unknown ([`ManifestWriter::failed`]): the edit may or may not be there after a
    /// restart.
    pub fn commit(&mut self, edit: &Edit) -> Result<Arc<StoreState>> {
        if let Some(failed) = self.writer.failed() {
            return Err(failed.clone());
        }
        let next = Arc::new(self.state.apply(edit)?);
        self.writer.append(edit)?;
        self.state = next;
        if self.writer.is_longer_than(self.roll_min_bytes)
            && self.writer.end >= self.next_roll_bytes
        {
            match self.writer.roll(&self.state) {
                Ok(old) => {
                    self.roll_count += 1;
                    self.obsolete.push(old);
                    self.next_roll_bytes = 0;
                }
                // The edit is committed. If the roll poisoned the writer, the next call reports it.
                Err(_) => {
                    self.roll_failure_count += 1;
                    self.next_roll_bytes = self.writer.end.saturating_add(self.roll_min_bytes);
                }
            }
        }
        Ok(self.state.clone())
    }

    /// Writes into `CURRENT` at which offset the manifest ends. Call this if no edit will follow.
    ///
    /// # Errors
    /// `NoSpace`: the pointer is the old one. `Poisoned` after any other failure.
    pub fn record_end(&mut self) -> Result<()> {
        if let Some(failed) = self.writer.failed() {
            return Err(failed.clone());
        }
        self.writer.record_end()
    }

    /// Returns the names of manifests that are no longer current. The caller deletes them after
    /// everything that must come first.
    pub fn take_obsolete(&mut self) -> Vec<String> {
        std::mem::take(&mut self.obsolete)
    }

    /// Drops the file. All later calls fail with `Closed`, or with the error that there was before.
    /// Makes no storage call.
    pub fn release(&mut self) {
        self.writer.failed.get_or_insert_with(closed);
        self.writer.file = None;
    }

    /// Writes the manifest anew from this length on, in bytes, instead of 4 MiB. Tests use this,
    /// because so many edits would take too long.
    pub fn set_roll_min_bytes(&mut self, bytes: u64) {
        self.roll_min_bytes = bytes;
    }

    /// How often the manifest was written anew since the open because of its length.
    pub fn roll_count(&self) -> u64 {
        self.roll_count
    }

    /// How often writing the manifest anew failed, usually for lack of room, and the old one stayed
    /// current.
    pub fn roll_failure_count(&self) -> u64 {
        self.roll_failure_count
    }
}

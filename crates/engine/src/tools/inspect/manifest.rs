//! A manifest, edit by edit, and the state that they make.

use siltstone_storage::ReadFile;

use super::shrank;
use crate::formats::file_bytes;
use crate::formats::manifest::format::{
    self, ALIGN_BYTES, Bad, Current, HEADER_BYTES, MAX_MANIFEST_BYTES, RECORD_HEADER_BYTES,
};
use crate::formats::manifest::{parse_manifest_name, records};
use crate::formats::version::{Decoded, Edit, StoreState};
use crate::types::error::{Error, ErrorKind, Result};

/// A manifest being read. See [`ManifestFile::next_item`].
pub struct ManifestFile {
    name: String,
    bytes: Vec<u8>,
    header: std::result::Result<Current, Error>,
    /// Those that its records may have been written with.
    numbers: Vec<u64>,
    at: usize,
    state: StoreState,
    record_count: u64,
    is_whole: bool,
    ended: bool,
    /// The seal of the last record was passed, or there is none.
    is_behind_seal: bool,
}

/// A part of a manifest.
#[derive(Debug)]
pub enum ManifestItem {
    /// A record whose checksums hold.
    Record(Box<ManifestRecord>),
    /// What says that the edit before it was acknowledged.
    Seal {
        /// Where it begins in the file.
        offset: u64,
        /// Whether it is there. Else power loss has taken it, or it is damaged: nothing is lost, because an edit follows it.
        is_whole: bool,
    },
    /// Bytes that are no record, though one is known to have been there.
    Damage {
        /// What was found, with offset.
        error: Error,
        /// Where the next record begins, or where the file ends.
        end: u64,
    },
    /// Where the records end. The last item, unless damage is.
    End(ManifestEnd),
}

/// A record of a manifest.
#[derive(Debug)]
pub struct ManifestRecord {
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it ends, padding included.
    pub end: u64,
    /// Bytes of its edit.
    pub payload_bytes: u64,
    /// The edit, with how many of its fields are not known here.
    pub edit: std::result::Result<Decoded, Error>,
    /// Why the state before it cannot take it: after damage that is to be expected.
    pub refused: Option<Error>,
}

/// Where the records of a manifest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestEnd {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes behind it up to the last that is not zero: an edit that was never acknowledged, or the last one, damaged.
    pub dropped_bytes: u64,
    /// Zeros behind that: space for further edits.
    pub zero_bytes: u64,
}

impl ManifestFile {
    /// Reads the file. A damaged header is told by [`ManifestFile::header`], and records are looked for all the same.
    ///
    /// # Errors
    /// Those of the storage, and a lack of memory; `Corruption` for a file longer than any manifest.
    pub fn open(file: &dyn ReadFile) -> Result<ManifestFile> {
        let name = file.name().to_string();
        if file.len() > MAX_MANIFEST_BYTES {
            return Err(
                Error::corruption(name, "the manifest is longer than any can be")
                    .expected(format!("at most {MAX_MANIFEST_BYTES} bytes"))
                    .found(file.len()),
            );
        }
        let bytes = file_bytes::read(file, 0, file.len()).map_err(shrank)?;
        let header = format::decode_header(&bytes, &name);
        let mut numbers = match &header {
            Ok(current) => vec![current.number],
            Err(_) => parse_manifest_name(&name)
                .into_iter()
                .chain(format::number_field(&bytes))
                .collect(),
        };
        numbers.dedup();
        Ok(ManifestFile {
            is_whole: header.is_ok(),
            name,
            bytes,
            header,
            numbers,
            at: HEADER_BYTES,
            state: StoreState::default(),
            record_count: 0,
            ended: false,
            is_behind_seal: false,
        })
    }

    /// The manifest's number: the header's, or if that is damaged, the name's.
    pub fn number(&self) -> Option<u64> {
        self.numbers.first().copied()
    }

    /// What the header says.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn header(&self) -> std::result::Result<&Current, &Error> {
        self.header.as_ref()
    }

    /// The state that the records so far make, those left out that it could not take.
    pub fn state(&self) -> &StoreState {
        &self.state
    }

    /// Whether no damage was met so far.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The next part of the manifest, in file order; `None` behind the last.
    pub fn next_item(&mut self) -> Option<ManifestItem> {
        if self.ended {
            return None;
        }
        if let (2.., false, Some(number)) = (self.record_count, self.is_behind_seal, self.number())
        {
            let at = self.at;
            self.at = format::behind_seal(&self.bytes, number, at);
            self.is_behind_seal = true;
            if self.at != at {
                return Some(ManifestItem::Seal {
                    offset: at as u64,
                    is_whole: format::decode_record(&self.bytes, number, at).is_ok(),
                });
            }
        }
        self.is_behind_seal = false;
        let at = self.at;
        let bad = match self.decode(at) {
            Ok((number, end)) => {
                self.numbers = vec![number];
                self.at = end;
                return Some(ManifestItem::Record(Box::new(self.record(at, end))));
            }
            Err(bad) => bad,
        };
        let len = self.bytes.len();
        let behind = (at + ALIGN_BYTES..len)
            .step_by(ALIGN_BYTES)
            .find(|at| self.decode(*at).is_ok());
        let error = Error::corruption(self.name.clone(), "a record of the manifest is damaged")
            .at(at as u64)
            .found(bad.describe());
        if let Some(next) = behind {
            self.is_whole = false;
            self.at = next;
            return Some(ManifestItem::Damage {
                error: error.expected(format!(
                    "a good record, because a good one follows at byte {next}"
                )),
                end: next as u64,
            });
        }
        self.ended = true;
        if self.record_count == 0 {
            self.is_whole = false;
            return Some(ManifestItem::Damage {
                error: error
                    .expected("the whole state, which is synced before CURRENT names a manifest"),
                end: len as u64,
            });
        }
        let dropped_bytes = records::used_bytes(&self.bytes, at);
        Some(ManifestItem::End(ManifestEnd {
            offset: at as u64,
            dropped_bytes,
            zero_bytes: len.saturating_sub(at) as u64 - dropped_bytes,
        }))
    }

    /// The manifest's number and the end of the record at `at`.
    fn decode(&self, at: usize) -> std::result::Result<(u64, usize), Bad> {
        let mut bad = Bad::Header;
        for (i, number) in self.numbers.iter().enumerate() {
            match format::decode_record(&self.bytes, *number, at) {
                Ok((_, end)) => return Ok((*number, end)),
                Err(why) if i == 0 || why == Bad::Payload => bad = why,
                Err(_) => {}
            }
        }
        Err(bad)
    }

    fn record(&mut self, at: usize, end: usize) -> ManifestRecord {
        let number = self.numbers.first().copied().unwrap_or(0);
        let payload = format::decode_record(&self.bytes, number, at).map_or(&[][..], |r| r.0);
        let placed = |error: Error| {
            error
                .in_file(self.name.clone())
                .at((at + RECORD_HEADER_BYTES) as u64)
        };
        let payload_bytes = payload.len() as u64;
        let edit = Edit::decode(payload).map_err(placed);
        let mut refused = None;
        if let Ok(decoded) = &edit {
            let applied = if decoded.edit.whole == (self.record_count == 0) {
                self.state.apply(&decoded.edit)
            } else {
                Err(Error::new(
                    ErrorKind::Corruption,
                    "a manifest's first record, and no other, is the whole state",
                ))
            };
            match applied {
                Ok(state) => self.state = state,
                Err(error) => refused = Some(placed(error)),
            }
        }
        self.is_whole &= edit.is_ok() && refused.is_none();
        self.record_count += 1;
        ManifestRecord {
            offset: at as u64,
            end: end as u64,
            payload_bytes,
            edit,
            refused,
        }
    }
}

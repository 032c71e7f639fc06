//! Reads a manifest, edit by edit, and the state that the edits make.

use siltstone_storage::ReadFile;

use super::shrank;
use crate::formats::file_bytes;
use crate::formats::manifest::format::{
    self, ALIGN_BYTES, Bad, Current, HEADER_BYTES, MAX_MANIFEST_BYTES, RECORD_HEADER_BYTES,
};
use crate::formats::manifest::{parse_manifest_name, records};
use crate::formats::version::{Decoded, Edit, StoreState};
use crate::types::error::{Error, ErrorKind, Result};

/// A manifest that is being read. See [`ManifestFile::next_item`].
pub struct ManifestFile {
    name: String,
    bytes: Vec<u8>,
    header: std::result::Result<Current, Error>,
    /// The numbers with which its records may have been written.
    numbers: Vec<u64>,
    at: usize,
    state: StoreState,
    record_count: u64,
    is_whole: bool,
    ended: bool,
    /// Whether the seal of the last record was read, or there is none.
    is_behind_seal: bool,
}

/// A part of a manifest.
#[derive(Debug)]
pub enum ManifestItem {
    /// A record with valid checksums.
    Record(Box<ManifestRecord>),
    /// A seal, which says that the edit before it was acknowledged.
    Seal {
        /// The offset in the file at which it begins.
        offset: u64,
        /// Whether it is complete. If not, a power loss has taken it, or it is damaged. Nothing is
        /// lost, because an edit follows it.
        is_whole: bool,
    },
    /// Bytes that are not a record, although there was one.
    Damage {
        /// What was found, with its offset.
        error: Error,
        /// The offset at which the next record begins, or the file ends.
        end: u64,
    },
    /// Where the records end. This is the last item, unless that is damage.
    End(ManifestEnd),
}

/// A record of a manifest.
#[derive(Debug)]
pub struct ManifestRecord {
    /// The offset in the file at which it begins.
    pub offset: u64,
    /// The offset at which it ends, including padding.
    pub end: u64,
    /// The number of bytes of its edit.
    pub payload_bytes: u64,
    /// The edit, and the number of its fields that this version does not know.
    pub edit: std::result::Result<Decoded, Error>,
    /// Why it does not apply to the state before it. After damage this is to be expected.
    pub refused: Option<Error>,
}

/// Where the records of a manifest end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ManifestEnd {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of bytes that follow, up to the last one that is not zero: an edit that was never
    /// acknowledged, or the last edit, damaged.
    pub dropped_bytes: u64,
    /// The number of zeros behind these: space for further edits.
    pub zero_bytes: u64,
}

impl ManifestFile {
    /// Reads the file. If the header is damaged, [`ManifestFile::header`] says so, and records are
    /// still searched.
    ///
    /// # Errors
    /// Those of the storage, and a lack of memory; `Corruption` for a file that is longer than any
    /// manifest.
    pub fn open(file: &dyn ReadFile) -> Result<ManifestFile> {
        let name = file.name().to_string();
        if file.len() > MAX_MANIFEST_BYTES {
            return Err(
                Error::corruption(name, "the manifest is longer than a store can make it")
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

    /// The manifest's number: that of the header or, if the header is damaged, that of the name.
    pub fn number(&self) -> Option<u64> {
        self.numbers.first().copied()
    }

    /// The contents of the header.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn header(&self) -> std::result::Result<&Current, &Error> {
        self.header.as_ref()
    }

    /// The state that the records so far make, without those that do not apply.
    pub fn state(&self) -> &StoreState {
        &self.state
    }

    /// Whether no damage was found so far.
    pub fn is_whole(&self) -> bool {
        self.is_whole
    }

    /// The next part of the manifest, in the order of the file; `None` behind the last one.
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

    /// The manifest's number, and the end of the record at `at`.
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

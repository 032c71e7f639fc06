//! The bytes of the manifest's header, of its records, and of the pointer `CURRENT`.
//!
//! Invariants: the two checksums of a record cover the manifest's number and the record's own
//! offset, so bytes of another manifest or from another offset are never taken for a record. The
//! header of a record has a checksum of its own, so a search for a valid record at every offset
//! costs one pass, whatever the bytes are.
//!
//! Threading: pure functions.

use std::fmt;

use crate::types::error::{Error, Result};

/// The name of the pointer to the current manifest.
pub const CURRENT_NAME: &str = "CURRENT";

/// The first bytes of a manifest.
pub const MAGIC: [u8; 8] = *b"SILTMAN\0";

/// The version of the format.
pub const VERSION: u32 = 2;

/// The length of a manifest's header.
pub const HEADER_BYTES: usize = 48;

/// The length of a record's header.
pub const RECORD_HEADER_BYTES: usize = 16;

/// Records start at multiples of this.
pub const ALIGN_BYTES: usize = 8;

/// The longest payload of a record.
pub const MAX_EDIT_BYTES: u64 = 1 << 30;

/// The longest manifest that is read.
pub const MAX_MANIFEST_BYTES: u64 = 8 << 30;

const PREFIX: &str = "MANIFEST-";
pub(crate) const CURRENT_HEAD: &str = "siltstone-current 2";
/// The first line of a pointer that does not say how far its manifest reaches.
const CURRENT_HEAD_1: &str = "siltstone-current 1";
/// The first word of that line, which is the same in every version.
pub(crate) const CURRENT_WORD: &str = "siltstone-current ";

/// The id of a store, which is in the manifest, in the pointer and in every log segment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct StoreId(pub u128);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// A position in a manifest. Every edit before it was acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct ManifestPosition {
    /// The manifest's number.
    pub number: u64,
    /// The byte offset in it.
    pub offset: u64,
}

/// The name of manifest `number`.
pub fn manifest_name(number: u64) -> String {
    format!("{PREFIX}{number:012}")
}

/// The number of a manifest's name; `None` for other names.
pub fn parse_manifest_name(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    let number = digits.parse().ok()?;
    (manifest_name(number) == name).then_some(number)
}

/// The contents of `CURRENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Current {
    /// The number of the current manifest.
    pub number: u64,
    /// The id of the store.
    pub store_id: StoreId,
    /// The offset, in bytes, at which the last edit ended when the pointer was written. A manifest
    /// that ends before it was cut or damaged. 0 if the pointer does not say.
    pub end: u64,
}

impl Current {
    /// The bytes of the pointer: lines of text, of which the last is a checksum of the others.
    /// Without an [`end`](Current::end) it is a pointer of version 1.
    pub fn encode(&self) -> Vec<u8> {
        let (name, store_id) = (manifest_name(self.number), self.store_id);
        let head = match self.end {
            0 => format!("{CURRENT_HEAD_1}\n{name}\nstore {store_id}\n"),
            end => format!("{CURRENT_HEAD}\n{name}\nstore {store_id}\nend {end}\n"),
        };
        let crc = crc32c::crc32c(head.as_bytes());
        format!("{head}crc32c {crc:08x}\n").into_bytes()
    }

    /// Reads what [`Current::encode`] made.
    ///
    /// # Errors
    /// `Corruption`, or `Unsupported` for a pointer of another version.
    pub fn decode(bytes: &[u8]) -> Result<Current> {
        let bad = |what: &'static str| Error::corruption(CURRENT_NAME, what);
        let text = std::str::from_utf8(bytes)
            .map_err(|_| bad("the pointer to the manifest is not UTF-8"))?;
        let lines: Vec<&str> = text.split('\n').collect();
        let (head, name, store, end, crc) = match lines[..] {
            [head, name, store, crc, ""] => (head, name, store, None, crc),
            [head, name, store, end, crc, ""] => (head, name, store, Some(end), crc),
            _ => {
                return Err(bad(
                    "the pointer to the manifest does not have four or five lines",
                ));
            }
        };
        let covered = &bytes[..bytes.len() - crc.len() - 1];
        let crc_found = crc
            .strip_prefix("crc32c ")
            .and_then(|hex| u32::from_str_radix(hex, 16).ok());
        let crc_expected = crc32c::crc32c(covered);
        if crc_found != Some(crc_expected) {
            return Err(
                bad("the checksum of the pointer to the manifest does not match")
                    .expected(format!("crc32c {crc_expected:08x}"))
                    .found(format!("{crc:?}")),
            );
        }
        if head != CURRENT_HEAD && head != CURRENT_HEAD_1 {
            return Err(
                Error::unsupported("the pointer to the manifest has an unknown version")
                    .in_file(CURRENT_NAME)
                    .expected(format!("{CURRENT_HEAD:?}"))
                    .found(format!("{head:?}"))
                    .advice("open the store with the version of siltstone that wrote it"),
            );
        }
        let number = parse_manifest_name(name)
            .ok_or_else(|| bad("the pointer names no manifest").found(name))?;
        let store_id = store
            .strip_prefix("store ")
            .and_then(|hex| u128::from_str_radix(hex, 16).ok())
            .ok_or_else(|| bad("the pointer names no store").found(store))?;
        let end = match end {
            None => 0,
            Some(line) => line
                .strip_prefix("end ")
                .and_then(|digits| digits.parse().ok())
                .ok_or_else(|| {
                    bad("the pointer does not say how far the manifest reaches").found(line)
                })?,
        };
        let current = Current {
            number,
            store_id: StoreId(store_id),
            end,
        };
        // There is only one spelling, so a flipped bit cannot give a second one.
        if current.encode() != bytes {
            return Err(bad(
                "the pointer to the manifest is not spelled as this version writes it",
            ));
        }
        Ok(current)
    }
}

/// The header of manifest `number`.
pub fn encode_header(store_id: StoreId, number: u64) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[16..32].copy_from_slice(&store_id.0.to_le_bytes());
    header[32..40].copy_from_slice(&number.to_le_bytes());
    let crc = crc32c::crc32c(&header[..44]);
    header[44..].copy_from_slice(&crc.to_le_bytes());
    header
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut four = [0; 4];
    four.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(four)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut eight = [0; 8];
    eight.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(eight)
}

/// The number and the store in the header of the manifest called `name`.
///
/// # Errors
/// `Corruption` with offset, expected and found value; `Unsupported` for another version.
pub fn decode_header(bytes: &[u8], name: &str) -> Result<Current> {
    let Some(header) = bytes.get(..HEADER_BYTES) else {
        return Err(
            Error::corruption(name, "the manifest is shorter than its header")
                .at(0)
                .expected(format!("at least {HEADER_BYTES} bytes"))
                .found(bytes.len()),
        );
    };
    if header[..8] != MAGIC {
        return Err(
            Error::corruption(name, "this is not a manifest of siltstone")
                .at(0)
                .expected(format!("{MAGIC:02x?}"))
                .found(format!("{:02x?}", &header[..8])),
        );
    }
    let (crc, found) = (crc32c::crc32c(&header[..44]), u32_at(header, 44));
    if crc != found {
        return Err(Error::corruption(
            name,
            "the checksum of the manifest's header does not match",
        )
        .at(44)
        .expected(format!("{crc:#010x}"))
        .found(format!("{found:#010x}")));
    }
    let version = u32_at(header, 8);
    if version != VERSION {
        return Err(Error::unsupported("the manifest has an unknown version")
            .in_file(name)
            .at(8)
            .expected(VERSION)
            .found(version)
            .advice(
                "open the store with the version of siltstone that wrote it; `silt scan STORE` of \
                 that version and `silt load STORE - --format tsv --escapes` of this one bring \
                 older data over",
            ));
    }
    let mut id = [0; 16];
    id.copy_from_slice(&header[16..32]);
    Ok(Current {
        number: u64_at(header, 32),
        store_id: StoreId(u128::from_le_bytes(id)),
        end: 0,
    })
}

/// Checks the header of the manifest that `current` names.
///
/// # Errors
/// Those of [`decode_header`]; `Corruption` for a manifest of another number or store.
pub fn check_header(bytes: &[u8], current: &Current) -> Result<()> {
    let name = manifest_name(current.number);
    let found = decode_header(bytes, &name)?;
    if found.number != current.number {
        return Err(
            Error::corruption(name, "the manifest has the number of another one")
                .at(32)
                .expected(current.number)
                .found(found.number),
        );
    }
    if found.store_id != current.store_id {
        return Err(
            Error::corruption(name, "the manifest belongs to another store")
                .at(16)
                .expected(current.store_id)
                .found(found.store_id),
        );
    }
    Ok(())
}

/// The number in a header that may be damaged.
pub fn number_field(bytes: &[u8]) -> Option<u64> {
    bytes.get(..HEADER_BYTES).map(|header| u64_at(header, 32))
}

/// The checksum of a record's payload.
fn payload_crc(number: u64, offset: u64, payload: &[u8]) -> u32 {
    let crc = place_crc(number, offset);
    let crc = crc32c::crc32c_append(crc, &(payload.len() as u32).to_le_bytes());
    crc32c::crc32c_append(crc, payload)
}

fn place_crc(number: u64, offset: u64) -> u32 {
    crc32c::crc32c_append(crc32c::crc32c(&number.to_le_bytes()), &offset.to_le_bytes())
}

/// The length of a record with this payload: header, payload and padding.
pub fn record_bytes(payload_bytes: u64) -> u64 {
    (RECORD_HEADER_BYTES as u64 + payload_bytes).next_multiple_of(ALIGN_BYTES as u64)
}

/// The header of a record at `offset` of manifest `number`.
pub fn encode_record_header(number: u64, offset: u64, payload: &[u8]) -> [u8; RECORD_HEADER_BYTES] {
    let mut header = [0; RECORD_HEADER_BYTES];
    header[..4].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[4..8].copy_from_slice(&payload_crc(number, offset, payload).to_le_bytes());
    let crc = crc32c::crc32c_append(place_crc(number, offset), &header[..12]);
    header[12..].copy_from_slice(&crc.to_le_bytes());
    header
}

/// The length of a seal: a record whose payload is [`SEAL_PAYLOAD`]. No edit is as short: the
/// shortest, a drop, takes 32 bytes.
pub const SEAL_BYTES: usize = 24;

/// The payload of a seal: one field that changes nothing
/// ([`SEAL_TAG`](crate::formats::version::edit::SEAL_TAG)).
pub const SEAL_PAYLOAD: [u8; 6] = [crate::formats::version::edit::SEAL_TAG as u8, 0, 0, 0, 0, 0];

/// The seal at `offset` of manifest `number`. It says that the edit before it was synced; the seal
/// itself needs no sync.
pub fn encode_seal(number: u64, offset: u64) -> [u8; SEAL_BYTES] {
    let mut seal = [0; SEAL_BYTES];
    seal[..RECORD_HEADER_BYTES].copy_from_slice(&encode_record_header(
        number,
        offset,
        &SEAL_PAYLOAD,
    ));
    seal[RECORD_HEADER_BYTES..RECORD_HEADER_BYTES + SEAL_PAYLOAD.len()]
        .copy_from_slice(&SEAL_PAYLOAD);
    seal
}

/// The offset at which to look for the edit that follows one ending at `offset`: behind the seal,
/// if there is one. A seal that is damaged, or that a power loss has taken, is skipped if a record
/// follows it: nothing else is as short, so nothing else can have been there.
pub fn behind_seal(file: &[u8], number: u64, offset: usize) -> usize {
    let behind = offset.saturating_add(SEAL_BYTES);
    match decode_record(file, number, offset) {
        Ok((payload, end)) if payload == SEAL_PAYLOAD => end,
        Ok(_) => offset,
        Err(_) if decode_record(file, number, behind).is_ok() => behind,
        Err(_) => offset,
    }
}

/// Why there is no record at an offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bad {
    /// The bytes end before the record does.
    Short,
    /// The header of the record does not match its checksum.
    Header,
    /// The payload does not match its checksum, or its padding is not zero.
    Payload,
}

impl Bad {
    /// What is wrong, for messages.
    pub fn describe(self) -> &'static str {
        match self {
            Bad::Short => "the file ends within the record",
            Bad::Header => "the record's header does not match its checksum",
            Bad::Payload => "the record's payload does not match its checksum",
        }
    }
}

/// The payload of the record at `offset` of manifest `number`, whose bytes are `file`, and the
/// offset at which the record ends.
pub fn decode_record(
    file: &[u8],
    number: u64,
    offset: usize,
) -> std::result::Result<(&[u8], usize), Bad> {
    let rest = file.get(offset..).ok_or(Bad::Short)?;
    let header = rest.get(..RECORD_HEADER_BYTES).ok_or(Bad::Short)?;
    let crc = crc32c::crc32c_append(place_crc(number, offset as u64), &header[..12]);
    let payload_bytes = u64::from(u32_at(header, 0));
    if crc != u32_at(header, 12)
        || payload_bytes == 0
        || payload_bytes > MAX_EDIT_BYTES
        || header[8..12] != [0; 4]
    {
        return Err(Bad::Header);
    }
    // At most 2^30 + 24, so this cannot overflow.
    let total = record_bytes(payload_bytes) as usize;
    let record = rest.get(..total).ok_or(Bad::Short)?;
    let (payload, padding) = record[RECORD_HEADER_BYTES..].split_at(payload_bytes as usize);
    if payload_crc(number, offset as u64, payload) != u32_at(header, 4)
        || padding.iter().any(|b| *b != 0)
    {
        return Err(Bad::Payload);
    }
    Ok((payload, offset + total))
}

//! Lists of fields {tag u16, length u32, bytes}, of which edits and stored options consist.
//!
//! Invariants: bit 15 of a tag means "must understand". Reading arbitrary bytes never panics and
//! allocates nothing but errors.
//!
//! Threading: plain values.

use crate::types::error::{Error, ErrorKind, Result};

/// The bit of a tag that makes a reader refuse the field if it does not know the tag.
pub const MUST_UNDERSTAND: u16 = 0x8000;

/// Bytes before a field's value.
const FIELD_HEADER_BYTES: usize = 6;

const NEWER_ADVICE: &str =
    "the store was written by a newer version of siltstone: open it with that version";

#[cold]
pub(crate) fn malformed(what: impl Into<String>) -> Error {
    Error::new(
        ErrorKind::Corruption,
        format!("a manifest edit is malformed: {}", what.into()),
    )
}

#[cold]
pub(crate) fn unknown_tag(place: &str, tag: u16) -> Error {
    Error::unsupported(format!(
        "{place} has the field {tag:#06x}, which this version must know and does not"
    ))
    .advice(NEWER_ADVICE)
}

/// The error for a feature that has its place in the bytes and that this build does not have (RFC
/// 12, section 4).
#[cold]
pub(crate) fn unsupported_feature(place: &str, feature: &str) -> Error {
    Error::unsupported(format!(
        "{place} needs a feature that this build does not have: {feature}"
    ))
    .advice(NEWER_ADVICE)
}

/// Builds a list of fields.
#[derive(Default)]
pub(crate) struct Writer {
    pub(crate) bytes: Vec<u8>,
}

impl Writer {
    pub(crate) fn field(&mut self, tag: u16, value: &[u8]) {
        self.bytes.extend_from_slice(&tag.to_le_bytes());
        self.bytes
            .extend_from_slice(&(value.len() as u32).to_le_bytes());
        self.bytes.extend_from_slice(value);
    }

    pub(crate) fn u64(&mut self, tag: u16, value: u64) {
        self.field(tag, &value.to_le_bytes());
    }

    pub(crate) fn nested(&mut self, tag: u16, fill: impl FnOnce(&mut Writer)) {
        self.bytes.extend_from_slice(&tag.to_le_bytes());
        let at = self.bytes.len();
        self.bytes.extend_from_slice(&[0; 4]);
        fill(self);
        let len = (self.bytes.len() - at - 4) as u32;
        self.bytes[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }

    pub(crate) fn raw(&mut self, value: &[u8]) {
        self.bytes.extend_from_slice(value);
    }
}

/// Iterates over a list of fields; ends after the first error.
pub(crate) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Fields<'a> {
        Fields { rest: bytes }
    }
}

impl<'a> Iterator for Fields<'a> {
    type Item = Result<(u16, &'a [u8])>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let split = self
            .rest
            .split_at_checked(FIELD_HEADER_BYTES)
            .and_then(|(header, rest)| {
                let tag = u16::from_le_bytes([header[0], header[1]]);
                let len = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
                let (value, rest) = rest.split_at_checked(len as usize)?;
                Some((tag, value, rest))
            });
        match split {
            Some((tag, value, rest)) => {
                self.rest = rest;
                Some(Ok((tag, value)))
            }
            None => {
                let left = self.rest.len();
                self.rest = &[];
                Some(Err(malformed(format!(
                    "a field does not fit into the {left} bytes that are left"
                ))))
            }
        }
    }
}

/// Reads fixed-length numbers off the front of a value.
pub(crate) struct Numbers<'a> {
    rest: &'a [u8],
    what: &'static str,
}

impl<'a> Numbers<'a> {
    pub(crate) fn new(
        what: &'static str,
        bytes: &'a [u8],
        expected_bytes: usize,
    ) -> Result<Numbers<'a>> {
        if bytes.len() != expected_bytes {
            return Err(malformed(format!(
                "{what} has {} bytes instead of {expected_bytes}",
                bytes.len()
            )));
        }
        Ok(Numbers { rest: bytes, what })
    }

    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N]> {
        let (head, rest) = self
            .rest
            .split_first_chunk::<N>()
            .ok_or_else(|| malformed(format!("{} is cut short", self.what)))?;
        self.rest = rest;
        Ok(*head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8> {
        Ok(self.take::<1>()?[0])
    }

    pub(crate) fn u32(&mut self) -> Result<u32> {
        Ok(u32::from_le_bytes(self.take()?))
    }

    pub(crate) fn u64(&mut self) -> Result<u64> {
        Ok(u64::from_le_bytes(self.take()?))
    }
}

pub(crate) fn one_u64(what: &'static str, value: &[u8]) -> Result<u64> {
    Numbers::new(what, value, 8)?.u64()
}

pub(crate) fn one_u32(what: &'static str, value: &[u8]) -> Result<u32> {
    Numbers::new(what, value, 4)?.u32()
}

pub(crate) fn one_name(what: &'static str, value: &[u8]) -> Result<String> {
    match std::str::from_utf8(value) {
        Ok(name) => Ok(name.to_owned()),
        Err(_) => Err(malformed(format!("{what} is not UTF-8"))),
    }
}

/// Stores a field that may occur once.
pub(crate) fn once<T>(what: &'static str, slot: &mut Option<T>, value: T) -> Result<()> {
    match slot.replace(value) {
        None => Ok(()),
        Some(_) => Err(malformed(format!("{what} occurs twice"))),
    }
}

pub(crate) fn need<T>(what: &'static str, slot: Option<T>) -> Result<T> {
    slot.ok_or_else(|| malformed(format!("{what} is missing")))
}

/// Refuses an unknown field that must be understood, and counts any other.
pub(crate) fn unknown(place: &'static str, tag: u16, ignored: &mut u64) -> Result<()> {
    if tag & MUST_UNDERSTAND != 0 {
        return Err(unknown_tag(place, tag));
    }
    *ignored += 1;
    Ok(())
}

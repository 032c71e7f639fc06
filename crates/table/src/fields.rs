//! Tagged fields as bytes: the form of jobs, outcomes and messages.
//!
//! ```text
//! field: tag u16 | length u32 | bytes
//! ```
//! Fields come in ascending order of tags, each exactly once. A reader may skip a field that it
//! does not know if its tag has the bit [`MAY_SKIP`]. Any other unknown tag is an error, because
//! guessing what a job means would corrupt data. [`FieldWriter::document`] puts a magic number and
//! a version before the fields, and a checksum behind them.
//!
//! Invariants: decoding never panics, and every count is bounded by the bytes that are left before
//! memory is allocated for it.
//!
//! Threading: pure functions.

use crate::checksum::crc32c;
use crate::coding::Cursor;
use crate::error::Damage;

/// Fields whose tag has this bit may be skipped by readers that do not know them.
pub const MAY_SKIP: u16 = 0x8000;

/// The bytes of a document around its fields: magic number, version and checksum.
const FRAME_BYTES: usize = 8 + 2 + 4;

/// The result of decoding.
pub type Decoded<T> = Result<T, Damage>;

/// Appends values to a buffer.
#[derive(Clone, Debug, Default)]
pub struct FieldWriter(Vec<u8>);

impl FieldWriter {
    /// An empty buffer.
    pub fn new() -> FieldWriter {
        FieldWriter::default()
    }

    /// The beginning of a document: its magic number and its version.
    pub fn document(magic: [u8; 8], version: u16) -> FieldWriter {
        let mut out = FieldWriter(magic.to_vec());
        out.u16(version);
        out
    }

    /// The bytes of a document, with its checksum.
    pub fn finish_document(mut self) -> Vec<u8> {
        let crc = crc32c(&self.0);
        self.u32(crc);
        self.0
    }

    /// The bytes.
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }

    /// A byte.
    pub fn u8(&mut self, x: u8) {
        self.0.push(x);
    }

    /// An integer.
    pub fn u16(&mut self, x: u16) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    /// An integer.
    pub fn u32(&mut self, x: u32) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    /// An integer.
    pub fn u64(&mut self, x: u64) {
        self.0.extend_from_slice(&x.to_le_bytes());
    }

    /// A byte that is 0 or 1.
    pub fn flag(&mut self, x: bool) {
        self.u8(u8::from(x));
    }

    /// A length (u32) and the bytes.
    pub fn bytes(&mut self, x: &[u8]) {
        self.u32(x.len() as u32);
        self.0.extend_from_slice(x);
    }

    /// A flag, and the bytes if there are any.
    pub fn option(&mut self, x: Option<&[u8]>) {
        self.flag(x.is_some());
        if let Some(x) = x {
            self.bytes(x);
        }
    }

    /// A count (u32) and the items.
    pub fn list<T>(&mut self, items: &[T], mut each: impl FnMut(&mut FieldWriter, &T)) {
        self.u32(items.len() as u32);
        for item in items {
            each(self, item);
        }
    }

    /// An integer of up to five bytes, small ones of one: seven bits in each byte, the lowest
    /// first, and a set top bit in all but the last.
    #[inline]
    pub fn var(&mut self, mut x: u32) {
        while x >= 0x80 {
            self.0.push(x as u8 | 0x80);
            x >>= 7;
        }
        self.0.push(x as u8);
    }

    /// A field, whose bytes `fill` appends.
    pub fn field(&mut self, tag: u16, fill: impl FnOnce(&mut FieldWriter)) {
        self.u16(tag);
        let at = self.0.len();
        self.u32(0);
        fill(self);
        let len = (self.0.len() - at - 4) as u32;
        self.0[at..at + 4].copy_from_slice(&len.to_le_bytes());
    }
}

/// Reads values from a slice. The argument `what` of its methods names the value in errors.
#[derive(Clone, Debug)]
pub struct FieldReader<'a>(Cursor<'a>);

impl<'a> FieldReader<'a> {
    /// A reader at the start of `bytes`.
    pub fn new(bytes: &'a [u8]) -> FieldReader<'a> {
        FieldReader(Cursor::new(bytes))
    }

    /// A reader at the first field of a document. Its magic number, its checksum and its version
    /// are checked.
    ///
    /// # Errors
    /// If one of them is another one.
    pub fn document(
        bytes: &'a [u8],
        magic: [u8; 8],
        version: u16,
        what: &'static str,
    ) -> Decoded<FieldReader<'a>> {
        if bytes.len() < FRAME_BYTES {
            return Err(Damage::new(what, 0, FRAME_BYTES as u64, bytes.len() as u64));
        }
        let end = bytes.len() - 4;
        let number = |b: &[u8]| u64::from_le_bytes(b.try_into().unwrap_or_default());
        if bytes[..8] != magic {
            return Err(Damage::new(what, 0, number(&magic), number(&bytes[..8])));
        }
        let want = u32::from_le_bytes(bytes[end..].try_into().unwrap_or_default());
        let found = crc32c(&bytes[..end]);
        if want != found {
            let at = end as u64;
            return Err(Damage::new(
                "checksum of fields",
                at,
                want.into(),
                found.into(),
            ));
        }
        let mut reader = FieldReader(Cursor::new(&bytes[..end]));
        reader.0.take(what, 8)?;
        let found = reader.u16(what)?;
        if found != version {
            return Err(Damage::new(
                "version of fields",
                8,
                version.into(),
                found.into(),
            ));
        }
        Ok(reader)
    }

    /// The number of bytes that were read, as an offset for errors.
    pub fn position(&self) -> u64 {
        self.0.position() as u64
    }

    /// The number of bytes that are left.
    pub fn remaining(&self) -> usize {
        self.0.remaining()
    }

    /// A byte.
    ///
    /// # Errors
    /// If no bytes are left. The same holds for all other values.
    pub fn u8(&mut self, what: &'static str) -> Decoded<u8> {
        Ok(self.0.take(what, 1)?[0])
    }

    /// An integer.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u16(&mut self, what: &'static str) -> Decoded<u16> {
        self.0.u16(what)
    }

    /// An integer.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u32(&mut self, what: &'static str) -> Decoded<u32> {
        self.0.u32(what)
    }

    /// An integer.
    ///
    /// # Errors
    /// If too few bytes are left.
    pub fn u64(&mut self, what: &'static str) -> Decoded<u64> {
        self.0.u64(what)
    }

    /// An integer of up to five bytes.
    ///
    /// # Errors
    /// If it has more bytes than it needs, or is larger than 32 bits.
    #[inline]
    pub fn var(&mut self, what: &'static str) -> Decoded<u32> {
        let at = self.position();
        let mut x = 0u64;
        for shift in (0..35).step_by(7) {
            let byte = self.u8(what)?;
            x |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                let is_shortest = byte != 0 || shift == 0;
                return match u32::try_from(x) {
                    Ok(x) if is_shortest => Ok(x),
                    _ => Err(Damage::new(what, at, u32::MAX.into(), x)),
                };
            }
        }
        Err(Damage::new(what, at, u32::MAX.into(), x))
    }

    /// A byte that is 0 or 1.
    ///
    /// # Errors
    /// If it is another one.
    pub fn flag(&mut self, what: &'static str) -> Decoded<bool> {
        let at = self.position();
        match self.u8(what)? {
            x @ (0 | 1) => Ok(x == 1),
            x => Err(Damage::new(what, at, 1, x.into())),
        }
    }

    /// Bytes with their length.
    ///
    /// # Errors
    /// If fewer bytes are left.
    pub fn bytes(&mut self, what: &'static str) -> Decoded<&'a [u8]> {
        let len = self.u32(what)? as usize;
        self.0.take(what, len)
    }

    /// Text with its length.
    ///
    /// # Errors
    /// If it is not UTF-8.
    pub fn text(&mut self, what: &'static str) -> Decoded<String> {
        let at = self.position();
        let bytes = self.bytes(what)?;
        match std::str::from_utf8(bytes) {
            Ok(text) => Ok(text.to_string()),
            Err(e) => Err(Damage::new(what, at, 0, e.valid_up_to() as u64)),
        }
    }

    /// Bytes, if there are any.
    ///
    /// # Errors
    /// If the flag before them is neither 0 nor 1.
    pub fn option(&mut self, what: &'static str) -> Decoded<Option<&'a [u8]>> {
        Ok(match self.flag(what)? {
            true => Some(self.bytes(what)?),
            false => None,
        })
    }

    /// Text, if there is any.
    ///
    /// # Errors
    /// If the flag before it is neither 0 nor 1, or if it is not UTF-8.
    pub fn option_text(&mut self, what: &'static str) -> Decoded<Option<String>> {
        Ok(match self.flag(what)? {
            true => Some(self.text(what)?),
            false => None,
        })
    }

    /// A list whose items take at least `least` bytes each.
    ///
    /// # Errors
    /// If the count is larger than the remaining bytes allow. Errors of `each` are passed on.
    pub fn list<T>(
        &mut self,
        what: &'static str,
        least: usize,
        mut each: impl FnMut(&mut Self) -> Decoded<T>,
    ) -> Decoded<Vec<T>> {
        let at = self.position();
        let n = self.u32(what)? as usize;
        let possible = self.remaining() / least.max(1);
        if n > possible {
            return Err(Damage::new(what, at, possible as u64, n as u64));
        }
        let mut items = Vec::with_capacity(n);
        for _ in 0..n {
            items.push(each(self)?);
        }
        Ok(items)
    }

    /// Skips optional fields until the field `tag`, and decodes all of it.
    ///
    /// # Errors
    /// If another field comes that may not be skipped, or if `read` leaves bytes over.
    pub fn field<T>(
        &mut self,
        tag: u16,
        what: &'static str,
        read: impl FnOnce(&mut FieldReader<'a>) -> Decoded<T>,
    ) -> Decoded<T> {
        loop {
            let at = self.position();
            let found = self.u16(what)?;
            let len = self.u32(what)? as usize;
            let start = self.position();
            let bytes = self.0.take(what, len)?;
            if found == tag {
                let mut field = FieldReader::new(bytes);
                let value = read(&mut field).map_err(|d| d.shifted(start))?;
                field.0.finish(what).map_err(|d| d.shifted(start))?;
                return Ok(value);
            }
            if found & MAY_SKIP == 0 {
                return Err(Damage::new(what, at, tag.into(), found.into()));
            }
        }
    }

    /// Skips the remaining optional fields.
    ///
    /// # Errors
    /// If another field is left.
    pub fn end(mut self, what: &'static str) -> Decoded<()> {
        while self.remaining() > 0 {
            let at = self.position();
            let found = self.u16(what)?;
            let len = self.u32(what)? as usize;
            self.0.take(what, len)?;
            if found & MAY_SKIP == 0 {
                return Err(Damage::new("unknown field", at, 0, found.into()));
            }
        }
        Ok(())
    }

    /// Fails if bytes are left.
    ///
    /// # Errors
    /// If bytes are left.
    pub fn finish(&self, what: &'static str) -> Decoded<()> {
        self.0.finish(what)
    }
}

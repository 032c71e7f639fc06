//! Frames: a header, fields and bulk bytes.
//!
//! ```text
//! header 28 bytes: fields length u32 | bulk length u32 | number u64 | kind u16 | flags u16
//!                  | crc32c of fields and bulk u32 | crc32c of the 24 bytes before u32
//! fields           tagged fields (docs/format/job.md)
//! bulk             bytes of files
//! ```
//!
//! Invariants: the lengths in a header are checked before anything is allocated for them. After a
//! wrong checksum nothing on the connection can be trusted, so it ends.

use siltstone_table::Damage;
use siltstone_table::checksum::crc32c;
use siltstone_table::fields::{Decoded, FieldReader};

/// The bytes of a header.
pub const HEADER_BYTES: usize = 28;

/// The bytes of a header that its own checksum covers.
const CHECKED_BYTES: usize = 24;

/// The maximum number of bytes of fields.
pub const FIELDS_MAX: usize = 64 << 10;

/// The maximum number of bulk bytes.
pub const BULK_MAX: usize = 1 << 20;

/// The flags of frames.
pub mod flag {
    /// A file descriptor is passed along with the frame.
    pub const DESCRIPTOR: u16 = 1;
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FrameHeader {
    /// The number of bytes of fields.
    pub fields_len: u32,
    /// The number of bulk bytes.
    pub bulk_len: u32,
    /// The number of the request within its connection, counted from 1. An answer has the number of
    /// its request.
    pub number: u64,
    /// The kind of the frame.
    pub kind: u16,
    /// Bits whose meaning depends on the kind; see [`flag`].
    pub flags: u16,
    /// The checksum of fields and bulk bytes.
    pub body_crc: u32,
}

impl FrameHeader {
    /// The header as bytes.
    pub fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        let mut put = |at: usize, part: &[u8]| bytes[at..at + part.len()].copy_from_slice(part);
        put(0, &self.fields_len.to_le_bytes());
        put(4, &self.bulk_len.to_le_bytes());
        put(8, &self.number.to_le_bytes());
        put(16, &self.kind.to_le_bytes());
        put(18, &self.flags.to_le_bytes());
        put(20, &self.body_crc.to_le_bytes());
        let crc = crc32c(&bytes[..CHECKED_BYTES]);
        bytes[CHECKED_BYTES..].copy_from_slice(&crc.to_le_bytes());
        bytes
    }

    /// Decodes a header and checks its checksum and its lengths.
    ///
    /// # Errors
    /// What is wrong.
    pub fn decode(bytes: &[u8; HEADER_BYTES]) -> Decoded<FrameHeader> {
        let found = crc32c(&bytes[..CHECKED_BYTES]);
        let mut i = FieldReader::new(bytes);
        let header = FrameHeader {
            fields_len: i.u32("length of fields")?,
            bulk_len: i.u32("length of bulk bytes")?,
            number: i.u64("number")?,
            kind: i.u16("kind")?,
            flags: i.u16("flags")?,
            body_crc: i.u32("checksum of a frame's body")?,
        };
        let expected = i.u32("checksum of a frame's header")?;
        if expected != found {
            let (expected, found) = (expected.into(), found.into());
            let what = "checksum of a frame's header";
            return Err(Damage::new(what, CHECKED_BYTES as u64, expected, found));
        }
        let bound = |what, at, len: u32, most: usize| match len as usize > most {
            true => Err(Damage::new(what, at, most as u64, len.into())),
            false => Ok(()),
        };
        bound("length of fields", 0, header.fields_len, FIELDS_MAX)?;
        bound("length of bulk bytes", 4, header.bulk_len, BULK_MAX)?;
        Ok(header)
    }

    /// The number of bytes that follow the header.
    pub fn body_len(&self) -> usize {
        self.fields_len as usize + self.bulk_len as usize
    }
}

/// A frame that was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    /// The frame's header.
    pub header: FrameHeader,
    body: Vec<u8>,
}

impl Frame {
    /// The bytes of the fields.
    pub fn fields(&self) -> &[u8] {
        &self.body[..self.header.fields_len as usize]
    }

    /// The bulk bytes.
    pub fn bulk(&self) -> &[u8] {
        &self.body[self.header.fields_len as usize..]
    }
}

/// The checksum of a body.
fn body_crc(fields: &[u8], bulk: &[&[u8]]) -> u32 {
    let parts = bulk.iter();
    parts.fold(crc32c(fields), |crc, part| crc32c::crc32c_append(crc, part))
}

/// The values in a frame's header that do not depend on its body.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Label {
    /// The number of the request within its connection, counted from 1. An answer has the number of
    /// its request.
    pub number: u64,
    /// The kind of the frame.
    pub kind: u16,
    /// Bits whose meaning depends on the kind.
    pub flags: u16,
}

/// The header of a frame with these fields and these bulk bytes, which are sent behind it.
///
/// # Panics
/// If there are more bytes than a frame may have. The sender must split them.
pub fn header_of(label: Label, fields: &[u8], bulk: &[&[u8]]) -> FrameHeader {
    let bulk_len: usize = bulk.iter().map(|part| part.len()).sum();
    assert!(
        fields.len() <= FIELDS_MAX,
        "{} bytes of fields",
        fields.len()
    );
    assert!(bulk_len <= BULK_MAX, "{bulk_len} bulk bytes");
    FrameHeader {
        fields_len: fields.len() as u32,
        bulk_len: bulk_len as u32,
        number: label.number,
        kind: label.kind,
        flags: label.flags,
        body_crc: body_crc(fields, bulk),
    }
}

/// How many bytes are received at once while it is not known what follows. Most frames are smaller,
/// so that one call receives a frame, or several.
const CHUNK_BYTES: usize = 2048;

/// Cuts the bytes of a connection into frames.
///
/// The caller receives into [`FrameReader::space`], calls [`FrameReader::filled`] with the number
/// of bytes that arrived, and takes frames with [`FrameReader::next_frame`] until there are no
/// more. A large body is received into the buffer that the frame keeps, except for its first bytes,
/// so bulk bytes are not copied.
#[derive(Debug)]
pub struct FrameReader {
    /// Bytes that were received. Those in `chunk_from..chunk_to` belong to no frame yet.
    chunk: Box<[u8; CHUNK_BYTES]>,
    /// See `chunk`.
    chunk_from: usize,
    chunk_to: usize,
    header: Option<FrameHeader>,
    body: Vec<u8>,
    body_len: usize,
}

impl Default for FrameReader {
    fn default() -> FrameReader {
        FrameReader {
            chunk: Box::new([0; CHUNK_BYTES]),
            chunk_from: 0,
            chunk_to: 0,
            header: None,
            body: Vec::new(),
            body_len: 0,
        }
    }
}

impl FrameReader {
    /// A reader at the beginning of a frame.
    pub fn new() -> FrameReader {
        FrameReader::default()
    }

    /// Whether a part of a frame has been received.
    pub fn is_within_frame(&self) -> bool {
        self.header.is_some() || self.chunk_from < self.chunk_to
    }

    /// The buffer for the next bytes. It is empty only if a complete frame waits to be taken.
    pub fn space(&mut self) -> &mut [u8] {
        if self.header.is_some() {
            return &mut self.body[self.body_len..];
        }
        if self.chunk_from == self.chunk_to {
            (self.chunk_from, self.chunk_to) = (0, 0);
        } else if self.chunk_to == CHUNK_BYTES {
            // Less than a header is left, because otherwise a frame would have begun.
            self.chunk.copy_within(self.chunk_from.., 0);
            self.chunk_to -= self.chunk_from;
            self.chunk_from = 0;
        }
        &mut self.chunk[self.chunk_to..]
    }

    /// Notes that the first `len` bytes of the space were filled.
    ///
    /// # Errors
    /// If these bytes complete a header, and the header is wrong.
    ///
    /// # Panics
    /// If `len` is larger than the space.
    pub fn filled(&mut self, len: usize) -> Decoded<()> {
        if self.header.is_some() {
            self.body_len += len;
            assert!(self.body_len <= self.body.len(), "more bytes than space");
            return Ok(());
        }
        self.chunk_to += len;
        assert!(self.chunk_to <= CHUNK_BYTES, "more bytes than space");
        self.begin_frame()
    }

    /// Decodes a header that was received, and takes the bytes of its body that were received with
    /// it.
    fn begin_frame(&mut self) -> Decoded<()> {
        let received = &self.chunk[self.chunk_from..self.chunk_to];
        let Some((head, rest)) = received.split_first_chunk::<HEADER_BYTES>() else {
            return Ok(());
        };
        let header = FrameHeader::decode(head)?;
        self.body = vec![0; header.body_len()];
        self.body_len = rest.len().min(self.body.len());
        self.body[..self.body_len].copy_from_slice(&rest[..self.body_len]);
        self.chunk_from += HEADER_BYTES + self.body_len;
        self.header = Some(header);
        Ok(())
    }

    /// Takes the received frame, if it is complete.
    ///
    /// # Errors
    /// If the checksum of the body does not match, or if a header is wrong.
    pub fn next_frame(&mut self) -> Decoded<Option<Frame>> {
        if self.header.is_none() {
            self.begin_frame()?;
        }
        let Some(header) = self.header.filter(|_| self.body_len == self.body.len()) else {
            return Ok(None);
        };
        let body = std::mem::take(&mut self.body);
        (self.header, self.body_len) = (None, 0);
        let found = crc32c(&body);
        if found != header.body_crc {
            let (expected, found) = (header.body_crc.into(), found.into());
            return Err(Damage::new(
                "checksum of a frame's body",
                20,
                expected,
                found,
            ));
        }
        Ok(Some(Frame { header, body }))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn label() -> Label {
        Label {
            number: 7,
            kind: 0x8002,
            flags: 1,
        }
    }

    /// A frame as it is sent.
    fn sent(label: Label, fields: &[u8], bulk: &[&[u8]]) -> Vec<u8> {
        let header = header_of(label, fields, bulk).encode();
        [&header[..], fields, &bulk.concat()].concat()
    }

    /// Receives bytes in pieces of the given sizes.
    fn received(bytes: &[u8], mut piece: impl FnMut() -> usize) -> Decoded<Vec<Frame>> {
        let (mut reader, mut frames, mut at) = (FrameReader::new(), Vec::new(), 0);
        loop {
            while let Some(frame) = reader.next_frame()? {
                frames.push(frame);
            }
            if at == bytes.len() {
                return Ok(frames);
            }
            let space = reader.space();
            let len = piece().clamp(1, space.len()).min(bytes.len() - at);
            space[..len].copy_from_slice(&bytes[at..at + len]);
            at += len;
            reader.filled(len)?;
        }
    }

    #[test]
    fn an_empty_body_is_a_frame() {
        let bytes = sent(label(), b"", &[]).repeat(2);
        let frames = received(&bytes, || 1000).unwrap();
        assert_eq!(frames.len(), 2);
        assert!(frames[1].fields().is_empty() && frames[1].bulk().is_empty());
    }

    #[test]
    fn lengths_are_bounded_before_memory_is_allocated() {
        for (fields_len, bulk_len, what) in [
            (FIELDS_MAX as u32 + 1, 0, "length of fields"),
            (u32::MAX, u32::MAX, "length of fields"),
            (0, BULK_MAX as u32 + 1, "length of bulk bytes"),
        ] {
            let header = FrameHeader {
                fields_len,
                bulk_len,
                ..header_of(label(), b"", &[])
            };
            let damage = received(&header.encode(), || 1000).unwrap_err();
            assert_eq!(damage.what, what);
        }
        let largest = sent(label(), &[1; FIELDS_MAX], &[&[2; BULK_MAX]]);
        assert_eq!(received(&largest, || 1 << 30).unwrap().len(), 1);
    }

    proptest! {
        #[test]
        fn frames_are_received_in_pieces_of_any_size(
            frames in prop::collection::vec(
                (any::<u64>(), prop::collection::vec(any::<u8>(), 0..200),
                 prop::collection::vec(any::<u8>(), 0..2000)), 1..5),
            pieces in prop::collection::vec(
                prop_oneof![1usize..100, 1..3 * CHUNK_BYTES], 1..20),
        ) {
            let mut bytes = Vec::new();
            for (number, fields, bulk) in &frames {
                let label = Label { number: *number, ..label() };
                bytes.extend(sent(label, fields, &[bulk]));
            }
            let mut sizes = pieces.iter().cycle();
            let got = received(&bytes, || *sizes.next().unwrap()).unwrap();
            prop_assert_eq!(got.len(), frames.len());
            for (got, (number, fields, bulk)) in got.iter().zip(&frames) {
                prop_assert_eq!(got.header.number, *number);
                prop_assert_eq!((got.fields(), got.bulk()), (&fields[..], &bulk[..]));
            }
        }

        #[test]
        fn a_flipped_bit_is_found(at in any::<prop::sample::Index>(), bit in 0u8..8) {
            let mut bytes = sent(label(), b"some fields", &[b"and bulk bytes"]);
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(received(&bytes, || 1000).is_err());
        }
    }
}

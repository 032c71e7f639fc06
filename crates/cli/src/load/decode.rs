//! Decodes an input to the bytes that are cut into records: decompresses it, and converts UTF-16 to
//! UTF-8.
//!
//! Invariants: every byte that can be decoded is returned before an error. Incomplete or damaged
//! data is an error, never an early end. Memory does not depend on the decoded data: the buffers
//! have fixed sizes, and zstd refuses windows over 128 MiB.

use std::cell::Cell;
use std::fmt;
use std::io::{self, BufRead, BufReader, Cursor, Read};
use std::rc::Rc;

use flate2::bufread::GzDecoder;

use super::content::{
    Compression, Encoding, MAGIC_BYTES, Refusal, SAMPLE_BYTES, refused, refused_lines,
};

/// The number of bytes that a decoder reads or returns at once.
const PIECE_BYTES: usize = 64 << 10;

/// An input whose content was detected.
pub struct Decoded<'a> {
    /// The bytes that are cut into records.
    pub bytes: Box<dyn Read + 'a>,
    /// How it was compressed.
    pub compression: Option<Compression>,
    /// How its text was encoded, if it is converted.
    pub encoding: Option<Encoding>,
    /// The number of bytes of the undecoded input that were read.
    pub read: Rc<Cell<u64>>,
    /// The number of bytes after the compressed data that are neither compressed data nor a
    /// padding of zeros. It is known once the end of the input was read.
    pub trailing: Rc<Cell<u64>>,
}

/// An error after which another load must not continue where this one stopped, because the bytes
/// that were read may differ from the input.
#[derive(Debug)]
pub struct Untrusted(pub String);

impl Untrusted {
    /// Returns it as an error of a read.
    pub fn error(text: String) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, Untrusted(text))
    }

    /// Whether this is the error.
    pub fn is(error: &io::Error) -> bool {
        error.get_ref().is_some_and(|inner| inner.is::<Untrusted>())
    }
}

impl fmt::Display for Untrusted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Untrusted {}

/// The error of text that contains half a character, or ends with one.
#[derive(Debug)]
pub struct HalfCharacter(String);

impl HalfCharacter {
    fn error(text: String) -> io::Error {
        io::Error::new(io::ErrorKind::InvalidData, HalfCharacter(text))
    }

    /// Whether this is the error.
    pub fn is(error: &io::Error) -> bool {
        error
            .get_ref()
            .is_some_and(|inner| inner.is::<HalfCharacter>())
    }
}

impl fmt::Display for HalfCharacter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for HalfCharacter {}

impl Decoded<'_> {
    /// How the input was decoded, in words; none if it was not.
    pub fn how(&self) -> Option<String> {
        let compression = self
            .compression
            .map(|c| format!("decompressed from {}", c.name()));
        let encoding = self.encoding.map(|e| format!("decoded from {}", e.name()));
        let how: Vec<String> = compression.into_iter().chain(encoding).collect();
        (!how.is_empty()).then(|| how.join(", "))
    }
}

/// What is known of an input before it is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    /// Bytes that are not decoded.
    Raw,
    /// Records of bytes, which may be compressed, but are not text.
    Fixed,
    /// Text.
    Text {
        /// Whether the format was not given by `--format`.
        is_guess: bool,
    },
}

/// Why an input cannot be decoded.
#[derive(Debug)]
pub enum Undecodable {
    /// It cannot be loaded.
    Refused(Refusal),
    /// It cannot be read.
    Io(io::Error),
}

impl From<io::Error> for Undecodable {
    fn from(error: io::Error) -> Undecodable {
        Undecodable::Io(error)
    }
}

/// Examines the start of an input, and decodes it.
///
/// # Errors
/// The input cannot be loaded; it cannot be read at all.
pub fn decoded<'a>(input: impl Read + 'a, expected: Expected) -> Result<Decoded<'a>, Undecodable> {
    let counted = Counted {
        input,
        read: Rc::default(),
        failed: Rc::default(),
    };
    let (read, failed) = (counted.read.clone(), counted.failed.clone());
    let mut decoded = Decoded {
        bytes: Box::new(io::empty()),
        compression: None,
        encoding: None,
        read: read.clone(),
        trailing: Rc::default(),
    };
    if expected == Expected::Raw {
        decoded.bytes = Box::new(counted);
        return Ok(decoded);
    }
    let mut input = Sampled::new(Box::new(counted))?;
    if let Some(compression) = Compression::of(input.sample()) {
        decoded.compression = Some(compression);
        input = Sampled::new(Box::new(Decompressed {
            member: Some(Member::begin(compression, Peeked::new(input))?),
            compression,
            read,
            failed,
            trailing: decoded.trailing.clone(),
        }))?;
    }
    if let Expected::Text { is_guess } = expected {
        if let Some(refusal) = refused(input.sample(), is_guess) {
            // Damaged data may decode to anything.
            return Err(match input.error {
                Some(error) => Undecodable::Io(error),
                None => Undecodable::Refused(refusal.after(decoded.compression, None)),
            });
        }
        if let Some(encoding) = Encoding::marked(input.sample()) {
            decoded.encoding = Some(encoding);
            input = Sampled::new(Box::new(Utf16::new(input, encoding)))?;
        }
        if let Some(refusal) = refused_lines(input.sample()) {
            let refusal = refusal.after(decoded.compression, decoded.encoding);
            return Err(Undecodable::Refused(refusal));
        }
    }
    decoded.bytes = Box::new(input);
    Ok(decoded)
}

/// Counts the bytes that are read, and records whether a read failed.
struct Counted<R> {
    input: R,
    read: Rc<Cell<u64>>,
    failed: Rc<Cell<bool>>,
}

impl<R: Read> Read for Counted<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.input.read(buffer) {
            Ok(len) => {
                self.read.set(self.read.get() + len as u64);
                Ok(len)
            }
            Err(error) => {
                self.failed.set(error.kind() != io::ErrorKind::Interrupted);
                Err(error)
            }
        }
    }
}

/// An input whose first bytes were read ahead. Reads return these bytes first, then the error that
/// stopped the reading ahead, if there was one.
struct Sampled<'a> {
    sample: Cursor<Vec<u8>>,
    rest: Box<dyn Read + 'a>,
    error: Option<io::Error>,
}

impl<'a> Sampled<'a> {
    /// # Errors
    /// The first read fails.
    fn new(mut rest: Box<dyn Read + 'a>) -> io::Result<Sampled<'a>> {
        let mut sample = Vec::with_capacity(SAMPLE_BYTES);
        // The bytes before an error are in the sample.
        let read = rest
            .by_ref()
            .take(SAMPLE_BYTES as u64)
            .read_to_end(&mut sample);
        let error = match read {
            Err(error) if sample.is_empty() => return Err(error),
            read => read.err(),
        };
        Ok(Sampled {
            sample: Cursor::new(sample),
            rest,
            error,
        })
    }

    fn sample(&self) -> &[u8] {
        self.sample.get_ref()
    }
}

impl Read for Sampled<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self.sample.read(buffer)? {
            0 if !buffer.is_empty() => match self.error.take() {
                Some(error) => Err(error),
                None => self.rest.read(buffer),
            },
            len => Ok(len),
        }
    }
}

/// An input of which a few bytes can be examined before they are read.
struct Peeked<'a> {
    head: [u8; MAGIC_BYTES],
    /// The unread part of the head.
    unread: std::ops::Range<usize>,
    rest: BufReader<Sampled<'a>>,
}

impl<'a> Peeked<'a> {
    fn new(input: Sampled<'a>) -> Peeked<'a> {
        Peeked {
            head: [0; MAGIC_BYTES],
            unread: 0..0,
            rest: BufReader::with_capacity(PIECE_BYTES, input),
        }
    }

    /// The next bytes, which stay unread; fewer at the end of the input.
    fn peek(&mut self) -> io::Result<&[u8]> {
        self.head.copy_within(self.unread.clone(), 0);
        self.unread = 0..self.unread.len();
        while self.unread.end < MAGIC_BYTES {
            match self.rest.read(&mut self.head[self.unread.end..]) {
                Ok(0) => break,
                Ok(len) => self.unread.end += len,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(&self.head[self.unread.clone()])
    }

    /// Reads to the end and returns the number of bytes that follow, or 0 if all of them are zeros.
    fn trailing(&mut self) -> io::Result<u64> {
        let (mut len, mut is_zero) = (0, true);
        loop {
            let piece = match self.fill_buf() {
                Ok(piece) => piece,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if piece.is_empty() {
                return Ok(if is_zero { 0 } else { len });
            }
            is_zero &= piece.iter().all(|byte| *byte == 0);
            let read = piece.len();
            len += read as u64;
            self.consume(read);
        }
    }
}

impl Read for Peeked<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let mut piece = self.fill_buf()?;
        let len = piece.read(buffer)?;
        self.consume(len);
        Ok(len)
    }
}

impl BufRead for Peeked<'_> {
    fn fill_buf(&mut self) -> io::Result<&[u8]> {
        if self.unread.is_empty() {
            self.rest.fill_buf()
        } else {
            Ok(&self.head[self.unread.clone()])
        }
    }

    fn consume(&mut self, len: usize) {
        if self.unread.is_empty() {
            self.rest.consume(len);
        } else {
            self.unread.start += len;
        }
    }
}

/// A member of gzip data or a frame of zstd data.
enum Member<'a> {
    Gzip(GzDecoder<Peeked<'a>>),
    Zstd(zstd::Decoder<'static, Peeked<'a>>),
}

impl<'a> Member<'a> {
    fn begin(compression: Compression, input: Peeked<'a>) -> io::Result<Member<'a>> {
        Ok(match compression {
            Compression::Gzip => Member::Gzip(GzDecoder::new(input)),
            Compression::Zstd => Member::Zstd(zstd::Decoder::with_buffer(input)?.single_frame()),
        })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Member::Gzip(decoder) => decoder.read(buffer),
            Member::Zstd(decoder) => decoder.read(buffer),
        }
    }

    fn end(self) -> Peeked<'a> {
        match self {
            Member::Gzip(decoder) => decoder.into_inner(),
            Member::Zstd(decoder) => decoder.finish(),
        }
    }
}

/// Decompresses one member after the other, and says where this failed.
struct Decompressed<'a> {
    /// The member that is being read; none after the last one.
    member: Option<Member<'a>>,
    compression: Compression,
    read: Rc<Cell<u64>>,
    failed: Rc<Cell<bool>>,
    trailing: Rc<Cell<u64>>,
}

impl Decompressed<'_> {
    fn decompress(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while let Some(member) = &mut self.member {
            let len = member.read(buffer)?;
            if len > 0 || buffer.is_empty() {
                return Ok(len);
            }
            let Some(mut input) = self.member.take().map(Member::end) else {
                break;
            };
            let head = input.peek()?;
            if !head.is_empty() && self.compression.goes_on(head) {
                self.member = Some(Member::begin(self.compression, input)?);
            } else {
                self.trailing.set(input.trailing()?);
            }
        }
        Ok(0)
    }
}

impl Read for Decompressed<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.decompress(buffer).map_err(|error| {
            // This is neither an error of the input itself nor a signal.
            if self.failed.get() || error.kind() == io::ErrorKind::Interrupted {
                return error;
            }
            let (name, at) = (self.compression.name(), self.read.get());
            let text = match error.kind() {
                io::ErrorKind::UnexpectedEof => format!(
                    "it is cut off: the {name} data is incomplete at the end of the input, at byte \
                    {at}; fetch it again"
                ),
                // This is libzstd's message; it refuses windows over 128 MiB.
                _ if error.to_string().contains("too much memory") => {
                    "it is compressed with a larger window than is safe to allow; \
                     `zstd -dc --long=31` decompresses it"
                        .to_string()
                }
                // A checksum follows the data that it covers, which may be all of it.
                _ => {
                    return Untrusted::error(format!(
                        "its {name} data is damaged somewhere before byte {at} of the input \
                         ({error}), so any record that was loaded from it may be wrong; fetch the \
                         file again, remove what was loaded, and load it with --restart (if the \
                         file is not {name}, --raw loads it without decompression)"
                    ));
                }
            };
            io::Error::new(io::ErrorKind::InvalidData, text)
        })
    }
}

/// UTF-16 as UTF-8, without its byte-order mark.
struct Utf16<R> {
    input: R,
    encoding: Encoding,
    piece: Vec<u8>,
    /// The part of the piece that is filled and not yet decoded.
    filled: usize,
    /// The number of bytes before the piece.
    base: u64,
    text: String,
    /// How much of the text was returned.
    given: usize,
    /// The error that ends the text; none at its proper end.
    end: Option<Result<(), String>>,
}

impl<R: Read> Utf16<R> {
    fn new(input: R, encoding: Encoding) -> Utf16<R> {
        Utf16 {
            input,
            encoding,
            piece: vec![0; PIECE_BYTES],
            filled: 0,
            base: 0,
            text: String::new(),
            given: 0,
            end: None,
        }
    }

    /// Decodes the next piece.
    fn decode(&mut self) -> io::Result<()> {
        let len = self.input.read(&mut self.piece[self.filled..])?;
        self.filled += len;
        self.given = 0;
        self.text.clear();
        let (pairs, _) = self.piece[..self.filled].as_chunks::<2>();
        let encoding = self.encoding;
        let mut units = pairs.iter().map(|pair| encoding.unit(*pair)).peekable();
        let mut used = 0;
        if self.base == 0 && units.next_if_eq(&0xfeff).is_some() {
            used = 2;
        }
        let mut wrong = None;
        for decoded in char::decode_utf16(units) {
            match decoded {
                Ok(c) => {
                    self.text.push(c);
                    used += 2 * c.len_utf16();
                }
                // The other half may be in the next piece.
                Err(_) if len > 0 && used + 2 == 2 * pairs.len() => {}
                Err(_) => {
                    wrong = Some("has half a surrogate pair");
                    break;
                }
            }
        }
        let at = self.base + used as u64;
        if wrong.is_none() && len == 0 && used < self.filled {
            wrong = Some("ends within a character");
        }
        self.piece.copy_within(used..self.filled, 0);
        self.filled -= used;
        self.base = at;
        if let Some(wrong) = wrong {
            let name = self.encoding.name();
            self.end = Some(Err(format!("its text is {name} and {wrong}, at byte {at}")));
        } else if len == 0 {
            self.end = Some(Ok(()));
        }
        Ok(())
    }
}

impl<R: Read> Read for Utf16<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.given == self.text.len() {
            match &self.end {
                Some(Ok(())) => return Ok(0),
                Some(Err(text)) => {
                    return Err(HalfCharacter::error(text.clone()));
                }
                None => self.decode()?,
            }
        }
        let left = &self.text.as_bytes()[self.given..];
        let len = left.len().min(buffer.len());
        buffer[..len].copy_from_slice(&left[..len]);
        self.given += len;
        Ok(len)
    }
}

#[cfg(test)]
mod tests;

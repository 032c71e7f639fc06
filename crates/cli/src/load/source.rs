//! An input as buffered bytes, with the position and the digest of what was read.
//!
//! Invariants: a [`Mark`] describes exactly the bytes before it, not those that were read or
//! buffered since. A record lies in one piece in the buffer, which grows to the longest record and
//! no further.

use std::io::{self, Read};
use std::ops::Range;

use xxhash_rust::xxh3::Xxh3;

/// The number of bytes that are read at once.
const READ_BYTES: usize = 256 << 10;

/// The position in an input, in records and lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// The number of records that were read, good or bad.
    pub records: u64,
    /// The number of line ends that were read.
    pub lines: u64,
    /// What may come next in an array.
    pub next: NextElement,
}

/// What may come next between two records of an array.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NextElement {
    /// An element or the closing bracket: at the beginning, and after a bad record.
    #[default]
    Any,
    /// A comma or the closing bracket: after an element.
    Comma,
    /// Nothing, because a bad record reached the end of the input.
    Nothing,
}

impl NextElement {
    /// The number that represents it in the entry of an interrupted load.
    pub fn code(self) -> u64 {
        self as u64
    }

    /// The value that has this number.
    pub fn of_code(code: u64) -> Option<NextElement> {
        let all = [NextElement::Any, NextElement::Comma, NextElement::Nothing];
        all.into_iter().find(|next| next.code() == code)
    }
}

/// A position in an input between two records.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The number of bytes before it.
    pub offset: u64,
    /// The records and lines before it.
    pub place: Place,
    /// The digest of the bytes before it.
    pub digest: u128,
}

/// A line of an input.
#[derive(Debug, PartialEq, Eq)]
pub enum Line {
    /// Its range in [`Source::bytes`], without its line end.
    Whole(Range<usize>),
    /// The length of a line that was longer than allowed and was skipped.
    Long(u64),
}

/// The input; see the module.
pub struct Source<'a> {
    input: Box<dyn Read + 'a>,
    buffer: Vec<u8>,
    /// The offset in the input of the buffer's first byte.
    base: u64,
    /// The number of bytes in the buffer that were read, that are in the digest, and that are
    /// filled.
    read: usize,
    hashed: usize,
    filled: usize,
    hasher: Xxh3,
    /// The last byte before the buffer.
    byte_before: u8,
    /// The position of the mark, and a copy of the hasher at the mark if bytes behind it were
    /// hashed.
    mark_offset: u64,
    mark_place: Place,
    mark_hasher: Option<Box<Xxh3>>,
    /// The position in records and lines. Readers of records update it.
    pub place: Place,
}

impl<'a> Source<'a> {
    /// A source of the bytes of `input`.
    pub fn new(input: impl Read + 'a) -> Source<'a> {
        Source::with_buffer(input, READ_BYTES)
    }

    /// A source with a buffer of a given size, for tests.
    pub fn with_buffer(input: impl Read + 'a, bytes: usize) -> Source<'a> {
        Source {
            input: Box::new(input),
            buffer: vec![0; bytes],
            base: 0,
            read: 0,
            hashed: 0,
            filled: 0,
            hasher: Xxh3::new(),
            byte_before: 0,
            mark_offset: 0,
            mark_place: Place::default(),
            mark_hasher: None,
            place: Place::default(),
        }
    }

    /// The number of bytes that were read.
    pub fn offset(&self) -> u64 {
        self.base + self.read as u64
    }

    /// Sets the mark here. This costs next to nothing.
    pub fn mark(&mut self) {
        self.mark_offset = self.offset();
        self.mark_place = self.place;
        self.mark_hasher = None;
    }

    /// The number of bytes before the mark.
    pub fn mark_offset(&self) -> u64 {
        self.mark_offset
    }

    /// The mark.
    pub fn marked(&mut self) -> Mark {
        self.hash_to_mark();
        let hasher = self.mark_hasher.as_deref().unwrap_or(&self.hasher);
        Mark {
            offset: self.mark_offset,
            place: self.mark_place,
            digest: hasher.digest128(),
        }
    }

    /// Hashes the bytes before the mark, if nothing behind it is hashed yet.
    fn hash_to_mark(&mut self) {
        if self.mark_hasher.is_none() {
            // The mark lies in the buffer, at or behind the hashed bytes, because `fill` saves the
            // hasher before it hashes more.
            let mark = (self.mark_offset - self.base) as usize;
            self.hasher.update(&self.buffer[self.hashed..mark]);
            self.hashed = mark;
        }
    }

    /// Hashes all bytes that were read.
    fn hash(&mut self) {
        self.hash_to_mark();
        if self.hashed < self.read {
            if self.mark_hasher.is_none() {
                self.mark_hasher = Some(Box::new(self.hasher.clone()));
            }
            self.hasher.update(&self.buffer[self.hashed..self.read]);
            self.hashed = self.read;
        }
    }

    /// The buffered bytes that are not yet read.
    pub fn rest(&self) -> &[u8] {
        &self.buffer[self.read..self.filled]
    }

    /// The next `len` bytes, which stay unread; fewer at the input's end.
    ///
    /// # Errors
    /// Those of the input.
    pub fn peek(&mut self, len: usize) -> io::Result<&[u8]> {
        while self.rest().len() < len && self.fill()? {}
        let rest = self.rest();
        Ok(&rest[..rest.len().min(len)])
    }

    /// The bytes of a range that [`Source::line`] or [`Source::exact`] returned. It is valid until
    /// something else is read.
    pub fn bytes(&self, range: Range<usize>) -> &[u8] {
        &self.buffer[range]
    }

    /// The last `len` bytes that were read.
    pub fn last(&self, len: usize) -> &[u8] {
        &self.buffer[self.read - len..self.read]
    }

    /// The last byte that was read; zero if none was.
    pub fn last_byte(&self) -> u8 {
        match self.read.checked_sub(1) {
            Some(at) => self.buffer[at],
            None => self.byte_before,
        }
    }

    /// Marks buffered bytes as read.
    pub fn consume(&mut self, len: usize) {
        self.read += len.min(self.filled - self.read);
    }

    /// Fills more bytes into the buffer; false at the input's end.
    ///
    /// # Errors
    /// Those of the input.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.filled == self.buffer.len() {
            self.hash();
            self.byte_before = self.last_byte();
            self.buffer.copy_within(self.read..self.filled, 0);
            self.base += self.read as u64;
            self.filled -= self.read;
            (self.read, self.hashed) = (0, 0);
            // A record that fills more than half of the buffer would be moved repeatedly.
            if self.filled > self.buffer.len() / 2 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        loop {
            match self.input.read(&mut self.buffer[self.filled..]) {
                Ok(len) => {
                    self.filled += len;
                    return Ok(len > 0);
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Skips these bytes if they come next.
    ///
    /// # Errors
    /// Those of the input.
    pub fn skip_mark(&mut self, mark: &[u8]) -> io::Result<()> {
        while self.rest().len() < mark.len() && mark.starts_with(self.rest()) && self.fill()? {}
        if self.rest().starts_with(mark) {
            self.consume(mark.len());
        }
        Ok(())
    }

    /// Skips to an offset; false if the input ends before it, or if it lies behind the current
    /// position.
    ///
    /// # Errors
    /// Those of the input.
    pub fn skip_to(&mut self, offset: u64, seen: &mut dyn FnMut(u64)) -> io::Result<bool> {
        loop {
            let Some(left) = offset.checked_sub(self.offset()) else {
                return Ok(false);
            };
            let len = usize::try_from(left).unwrap_or(usize::MAX);
            self.consume(len);
            seen(self.offset());
            if self.offset() == offset {
                return Ok(true);
            }
            if !self.fill()? {
                return Ok(false);
            }
        }
    }

    /// Reads a line of at most `limit` bytes with its end, a line feed with or without a carriage
    /// return before it, or the input's end; none at the input's end.
    ///
    /// # Errors
    /// Those of the input.
    pub fn line(&mut self, limit: usize) -> io::Result<Option<Line>> {
        let mut searched = 0;
        let mut dropped = 0u64;
        loop {
            let rest = self.rest();
            let found = memchr::memchr(b'\n', &rest[searched..]).map(|at| searched + at);
            searched = rest.len();
            let (len, end) = match found {
                Some(at) => (at, at + 1),
                None if searched as u64 + dropped > limit as u64 + 1 => {
                    // Skip all but the last byte, which may be half of a line end.
                    dropped += searched as u64 - 1;
                    self.consume(searched - 1);
                    searched = 1;
                    (0, 0)
                }
                None => (0, 0),
            };
            if end == 0 {
                if self.fill()? {
                    continue;
                }
                let left = self.rest().len();
                if left as u64 + dropped == 0 {
                    return Ok(None);
                }
                self.consume(left);
                let start = self.read - left;
                self.place.lines += 1;
                return Ok(Some(self.checked(start..self.read, dropped, limit)));
            }
            let start = self.read;
            self.consume(end);
            self.place.lines += 1;
            let ends_with_return = self.buffer[start..start + len].ends_with(b"\r");
            let without = len - usize::from(ends_with_return);
            return Ok(Some(self.checked(start..start + without, dropped, limit)));
        }
    }

    fn checked(&self, range: Range<usize>, dropped: u64, limit: usize) -> Line {
        let len = dropped + range.len() as u64;
        if len > limit as u64 {
            Line::Long(len)
        } else {
            Line::Whole(range)
        }
    }

    /// Reads `len` bytes, or fewer at the input's end.
    ///
    /// # Errors
    /// Those of the input.
    pub fn exact(&mut self, len: usize) -> io::Result<Range<usize>> {
        while self.rest().len() < len && self.fill()? {}
        let found = self.rest().len().min(len);
        self.consume(found);
        Ok(self.read - found..self.read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_digest_is_of_what_was_read_whatever_the_buffer() {
        let text: Vec<u8> = (0..5_000u32).flat_map(|n| n.to_le_bytes()).collect();
        for buffer in [1, 3, 64, 100_000] {
            let mut source = Source::with_buffer(&text[..], buffer);
            for len in [1, 0, 7, 500, 3_000] {
                let range = source.exact(len).unwrap();
                let offset = source.offset() as usize;
                assert_eq!(source.bytes(range), &text[offset - len..offset]);
                source.mark();
                assert_eq!(
                    source.marked().digest,
                    xxhash_rust::xxh3::xxh3_128(&text[..offset]),
                    "{buffer} {len}"
                );
            }
            let before = source.marked();
            assert!(source.skip_to(10_000, &mut |_| ()).unwrap());
            assert_eq!(source.marked(), before, "the mark stays behind");
            source.mark();
            let after = source.marked();
            assert_eq!(after.offset, 10_000);
            assert_eq!(after.digest, xxhash_rust::xxh3::xxh3_128(&text[..10_000]));
            assert!(!source.skip_to(9_999, &mut |_| ()).unwrap());
            assert!(!source.skip_to(20_001, &mut |_| ()).unwrap());
            assert_eq!(source.offset(), 20_000);
        }
    }

    #[test]
    fn long_lines_are_counted_and_take_no_memory() {
        let long = vec![b'x'; 100_000];
        let text = [b"ab\n", &long[..], b"\r\ncd\n", &long, b"\nef"].concat();
        let mut source = Source::with_buffer(&text[..], 16);
        let mut found = Vec::new();
        while let Some(line) = source.line(50).unwrap() {
            found.push(match line {
                Line::Whole(range) => String::from_utf8(source.bytes(range).to_vec()).unwrap(),
                Line::Long(len) => len.to_string(),
            });
        }
        assert_eq!(found, ["ab", "100000", "cd", "100000", "ef"]);
        assert_eq!(source.offset(), text.len() as u64);
        assert_eq!(source.place.lines, 5);
        assert!(source.buffer.len() <= 256, "{}", source.buffer.len());
    }
}

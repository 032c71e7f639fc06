//! Reads a JSON array whose elements are the records, and detects whether an input is such an
//! array, JSON lines, or JSON of another shape.
//!
//! An element is found by its brackets and strings, and then read like a line of JSON lines.
//! Strings end in the line that they begin in, and what may follow a string or precede a bracket is
//! known, so an element that lost a quote or a bracket is detected soon. An element is accepted
//! only if a comma or the closing bracket follows it; a comma without an element is a bad record of
//! its own.
//!
//! If an element is balanced and followed by a comma or the closing bracket, an error in it costs
//! only this element. The end of any other element is unknown, and the objects within it must not
//! become records. Then reading continues only where the layout shows the next element (see
//! [`style`]): at a line that begins with the same blanks and the same bracket as the elements. If
//! the layout shows no such line, as in an array that is one line, the rest of the input is part of
//! the bad record.

mod style;

use std::io;

use serde::de::IgnoredAny;

use super::json::JsonLines;
use super::source::{NextElement, Source};
use super::{BadRecord, Begin, LeftOut, Pair, Records, Step, record_too_long};
use style::Style;

/// The number of bytes from which the shape of the input is detected.
const SHAPE_BYTES: usize = 64 << 10;

/// The maximum number of blanks after an element that are read to find what follows it.
const BLANK_BYTES: usize = 64 << 10;

/// The shape of a JSON input.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// One value a line.
    Lines,
    /// The elements of an array.
    Array,
    /// A value spans several lines, and the input is no array.
    Spread,
}

/// The shape of JSON. `is_json` is set if the format is JSON and not JSON lines: then an array that
/// is alone in one line is an array of records, and not a record.
///
/// # Errors
/// Those of the input.
pub fn shape(source: &mut Source<'_>, is_json: bool) -> io::Result<Shape> {
    let sample = source.peek(SHAPE_BYTES)?;
    let is_all = sample.len() < SHAPE_BYTES;
    let text = sample.trim_ascii_start();
    let end = memchr::memchr(b'\n', text);
    let (line, more) = text.split_at(end.unwrap_or(text.len()));
    let more = more.trim_ascii_start();
    if line.first() != Some(&b'[') && line.first() != Some(&b'{') {
        return Ok(Shape::Lines);
    }
    let is_array = line[0] == b'[';
    if end.is_none() && !is_all {
        // A line that is longer than the sample.
        return Ok(match is_array && is_json {
            true => Shape::Array,
            false => Shape::Lines,
        });
    }
    Ok(match serde_json::from_slice::<IgnoredAny>(line) {
        Ok(_) if is_array && is_json && more.is_empty() && is_all => Shape::Array,
        Ok(_) => Shape::Lines,
        Err(error) if is_array && (is_json || error.is_eof()) => Shape::Array,
        // One torn line among lines does not make another shape.
        Err(error) if error.is_eof() && !matches!(more.first(), None | Some(b'{' | b'[')) => {
            Shape::Spread
        }
        Err(_) => Shape::Lines,
    })
}

/// Open brackets, as whether each of them is `[`: a bit each, the innermost last.
#[derive(Default)]
struct Brackets {
    depth: usize,
    bits: Vec<u64>,
}

impl Brackets {
    fn open(&mut self, is_array: bool) {
        let (word, bit) = (self.depth / 64, self.depth % 64);
        if word == self.bits.len() {
            self.bits.push(0);
        }
        self.bits[word] = self.bits[word] & !(1 << bit) | u64::from(is_array) << bit;
        self.depth += 1;
    }

    fn close(&mut self) {
        self.depth -= 1;
    }

    fn in_array(&self) -> bool {
        match self.depth.checked_sub(1) {
            Some(at) => self.bits[at / 64] >> (at % 64) & 1 == 1,
            None => false,
        }
    }
}

/// Follows the bytes of one element.
struct Scanner {
    open: Brackets,
    /// The maximum number of open brackets. Each of them takes a byte, so an element with more is
    /// too long.
    most_open: usize,
    in_string: bool,
    is_escaped: bool,
    /// The last byte outside of strings that is not white space; a quote represents a string.
    last: u8,
}

/// The result of scanning the next bytes of an element.
enum Scanned {
    /// All of them belong to the element, which continues.
    More,
    /// The element ends after this number of bytes.
    End(usize),
    /// The element cannot be JSON after this number of bytes, for this reason.
    Broken(usize, &'static str),
}

/// The meaning of one byte of an element.
enum Followed {
    /// It belongs to the element, which continues.
    More,
    /// It is the last byte of the element.
    Last,
    /// It is the first byte after the element, which is a scalar.
    After,
    /// The element cannot be JSON with it, for this reason.
    Broken(&'static str),
}

impl Scanner {
    /// For an element of at most `limit` bytes.
    fn new(limit: usize) -> Scanner {
        Scanner {
            open: Brackets::default(),
            most_open: limit,
            in_string: false,
            is_escaped: false,
            last: 0,
        }
    }

    fn scan(&mut self, chunk: &[u8]) -> Scanned {
        let mut i = 0;
        while i < chunk.len() {
            if self.in_string && !self.is_escaped {
                // All other bytes of a string change nothing.
                match memchr::memchr3(b'"', b'\\', b'\n', &chunk[i..]) {
                    Some(over) => i += over,
                    None => break,
                }
            }
            let byte = chunk[i];
            match self.follow(byte) {
                Followed::More => {}
                Followed::Last => return Scanned::End(i + 1),
                Followed::After => return Scanned::End(i),
                Followed::Broken(what) => return Scanned::Broken(i, what),
            }
            i += 1;
        }
        Scanned::More
    }

    /// Follows a byte.
    fn follow(&mut self, byte: u8) -> Followed {
        if self.in_string {
            match byte {
                _ if std::mem::take(&mut self.is_escaped) && byte != b'\n' => {}
                b'\\' => self.is_escaped = true,
                b'"' => {
                    self.in_string = false;
                    return self.closed();
                }
                b'\n' => return Followed::Broken("a string is still open at the end of its line"),
                _ => {}
            }
            return Followed::More;
        }
        let before = self.last;
        let in_array = self.open.in_array();
        match byte {
            b' ' | b'\t' | b'\r' | b'\n' | b',' | b']' if self.open.depth == 0 && before != 0 => {
                return Followed::After;
            }
            b' ' | b'\t' | b'\r' | b'\n' => return Followed::More,
            _ if before == b'"' && !b":,]}".contains(&byte) => {
                return Followed::Broken("something follows the closing quote of a string");
            }
            b'{' | b'[' => {
                let fits = match before {
                    0 | b':' => true,
                    b'[' | b',' => in_array,
                    _ => false,
                };
                if !fits {
                    return Followed::Broken("there is an opening bracket where none is allowed");
                }
                if self.open.depth == self.most_open {
                    return Followed::Broken("it has more open brackets than it may have bytes");
                }
                self.open.open(byte == b'[');
            }
            b'}' | b']' => {
                if self.open.depth == 0 || in_array != (byte == b']') {
                    return Followed::Broken("a closing bracket does not match an open one");
                }
                self.open.close();
                self.last = byte;
                return self.closed();
            }
            b'"' => self.in_string = true,
            _ => {}
        }
        self.last = byte;
        Followed::More
    }

    /// The meaning of a byte that closes a bracket or a string.
    fn closed(&self) -> Followed {
        match self.open.depth {
            0 => Followed::Last,
            _ => Followed::More,
        }
    }
}

/// Looks for the next element after a broken one.
enum Search {
    /// Looks for a line that begins with `indent` blanks and the opening byte, or with fewer blanks
    /// and the closing bracket of the array. `kept` is the number of bytes from the last line end
    /// on, if only blanks follow it, and 0 otherwise.
    Line { indent: usize, kept: usize },
    /// Looks for any byte that is not a blank after a comma, for elements without brackets and
    /// quotes. The flag says whether the comma was found.
    Comma(bool),
    /// Goes to the end of the input, because nothing shows where an element begins.
    End,
}

impl Search {
    /// Whether the next element, or the array's end, begins with this byte.
    fn ends_at(&mut self, byte: u8, open: u8) -> bool {
        match self {
            Search::Line { indent, kept } => match byte {
                b'\n' => *kept = 1,
                b' ' | b'\t' | b'\r' if *kept > 0 => *kept += 1,
                _ if *kept > 0 => {
                    let blanks = *kept - 1;
                    let is_next = byte == open && blanks == *indent;
                    if is_next || byte == b']' && blanks < *indent {
                        return true;
                    }
                    *kept = 0;
                }
                _ => {}
            },
            Search::Comma(found) => match byte {
                b' ' | b'\t' | b'\r' | b'\n' => {}
                b',' => *found = true,
                _ if *found => return true,
                // The following bytes may lie within it.
                b'{' | b'[' | b'"' => *self = Search::End,
                _ => {}
            },
            Search::End => {}
        }
        false
    }

    /// The number of last bytes that are read again with the next element: the blanks of its line.
    fn kept(&self) -> usize {
        match self {
            Search::Line { kept, .. } => *kept,
            Search::Comma(_) | Search::End => 0,
        }
    }
}

/// The next item of an array.
enum Next {
    /// An element.
    Element,
    /// The end of the input, after the end of the array.
    End,
    /// The end of the input, within the array.
    CutOff,
    /// Something after the array that is not an array.
    Stray,
    /// A comma at this offset, where none is allowed, and the reason.
    Comma(u64, &'static str),
}

/// The reader; see the module. The position of the source is after the array's opening bracket.
pub struct Array {
    element: JsonLines,
    limit: usize,
    style: Style,
}

impl Array {
    /// An array whose elements have at most `limit` bytes each and are read by `element`.
    ///
    /// # Errors
    /// Those of the input.
    pub fn new(element: JsonLines, limit: usize, source: &mut Source<'_>) -> io::Result<Array> {
        blanks(source)?;
        if source.rest().first() == Some(&b'[') {
            source.consume(1);
        }
        Ok(Array {
            element,
            limit,
            style: Style::of(source)?,
        })
    }

    /// Skips what lies between elements.
    fn reach_element(&mut self, source: &mut Source<'_>) -> io::Result<Next> {
        // The offset of the comma before the next byte.
        let mut comma = None;
        loop {
            blanks(source)?;
            let expected = source.place.next;
            match source.rest().first() {
                None if expected == NextElement::Nothing => return Ok(Next::End),
                None => return Ok(Next::CutOff),
                Some(b',') if expected == NextElement::Comma => {
                    comma = Some(source.offset());
                    source.consume(1);
                    source.place.next = NextElement::Any;
                }
                Some(b',') => {
                    let at = source.offset();
                    source.consume(1);
                    return Ok(Next::Comma(
                        at,
                        "there is a comma in the place of an element",
                    ));
                }
                Some(b']') => {
                    if let Some(at) = comma {
                        let what = "no element follows the array's last comma";
                        return Ok(Next::Comma(at, what));
                    }
                    source.consume(1);
                    source.place.next = NextElement::Any;
                    blanks(source)?;
                    match source.rest().first() {
                        None => return Ok(Next::End),
                        // Another array.
                        Some(b'[') => source.consume(1),
                        Some(_) => return Ok(Next::Stray),
                    }
                }
                Some(_) if expected == NextElement::Comma => return Ok(Next::Stray),
                Some(_) => return Ok(Next::Element),
            }
        }
    }

    /// What follows the element in the next `len` bytes: the first byte after it that is not a
    /// blank, and the number of blanks; or nothing at the end of the input. More than
    /// [`BLANK_BYTES`] blanks count as a comma; reading the next record then checks what is there.
    fn follower(source: &mut Source<'_>, len: usize) -> io::Result<(Option<u8>, usize)> {
        let mut seen = len;
        loop {
            let rest = &source.rest()[seen..];
            let blanks = rest.iter().position(|b| !b" \t\r\n".contains(b));
            seen += blanks.unwrap_or(rest.len());
            let found = blanks.map(|_| source.rest()[seen]);
            if seen - len > BLANK_BYTES {
                return Ok((Some(b','), BLANK_BYTES));
            }
            if found.is_some() || !source.fill()? {
                return Ok((found, seen - len));
            }
        }
    }

    /// Skips to the start of the next element, after a bad record with the error `what`. If nothing
    /// shows this start, skips to the end of the input, and adds this to `what`.
    fn resume(&mut self, source: &mut Source<'_>, what: &str) -> io::Result<String> {
        let mut search = match (self.style.open, self.style.indent) {
            (None, _) => Search::Comma(false),
            (Some(_), Some(indent)) => Search::Line { indent, kept: 0 },
            (Some(_), None) => Search::End,
        };
        let open = self.style.open.unwrap_or_default();
        let mut searched = 0;
        source.place.next = NextElement::Any;
        loop {
            let rest = source.rest();
            let mut bytes = rest[searched..].iter();
            let found = bytes.position(|byte| search.ends_at(*byte, open));
            let end = found.map_or(rest.len(), |at| searched + at);
            searched = search.kept();
            consume(source, end - searched);
            if found.is_some() {
                return Ok(what.to_string());
            }
            if !source.fill()? {
                consume(source, searched);
                source.place.next = NextElement::Nothing;
                return Ok(match search {
                    Search::End => format!(
                        "{what}; nothing shows where the next element begins, so everything that \
                        follows belongs to this bad record"
                    ),
                    _ => what.to_string(),
                });
            }
        }
    }
}

/// A bad record. Its lines are those in which the element lies, because elements need not begin and
/// end with lines.
fn bad(begin: Begin, source: &Source<'_>, what: String) -> Step {
    let mut step = begin.bad(source, what);
    if let Step::Bad(BadRecord { left_out, .. }) = &mut step
        && left_out.bytes > 0
        && source.last_byte() != b'\n'
    {
        *left_out = LeftOut::of_record(begin.line, left_out.lines + 1, left_out.bytes);
    }
    step
}

/// Marks bytes as read, and counts their line ends.
fn consume(source: &mut Source<'_>, len: usize) {
    source.place.lines += memchr::memchr_iter(b'\n', &source.rest()[..len]).count() as u64;
    source.consume(len);
}

/// Skips white space.
fn blanks(source: &mut Source<'_>) -> io::Result<()> {
    loop {
        let rest = source.rest();
        let is_blank = |b: &u8| b" \t\r\n".contains(b);
        let len = rest.iter().position(|b| !is_blank(b)).unwrap_or(rest.len());
        let ends = len < rest.len();
        consume(source, len);
        if ends || !source.fill()? {
            return Ok(());
        }
    }
}

impl Records for Array {
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step> {
        let next = self.reach_element(source)?;
        let begin = Begin::of(source);
        match next {
            Next::Element => {}
            Next::End => return Ok(Step::End),
            Next::Comma(offset, what) => {
                source.place.records += 1;
                source.place.next = NextElement::Any;
                let begin = Begin { offset, ..begin };
                return Ok(bad(begin, source, format!("it is not JSON: {what}")));
            }
            Next::CutOff => {
                source.place.next = NextElement::Nothing;
                source.place.records += 1;
                let what = "the array is incomplete: the input ends before its closing bracket";
                return Ok(bad(begin, source, what.to_string()));
            }
            Next::Stray => {
                source.place.records += 1;
                let what = "the array ends before it, and no other one follows";
                let what = self.resume(source, what)?;
                return Ok(bad(begin, source, what));
            }
        }
        let first = source.rest()[0];
        let mut scanner = Scanner::new(self.limit);
        // The number of remaining bytes that were scanned, and of bytes that were dropped because
        // the element is too long.
        let (mut seen, mut dropped) = (0, 0);
        let (len, broken) = loop {
            if seen == source.rest().len() && !source.fill()? {
                break (seen, Some("the input ends within it"));
            }
            match scanner.scan(&source.rest()[seen..]) {
                Scanned::More => seen = source.rest().len(),
                Scanned::End(len) => break (seen + len, None),
                Scanned::Broken(len, what) => break (seen + len, Some(what)),
            }
            if dropped + seen > self.limit {
                consume(source, seen);
                dropped += std::mem::take(&mut seen);
            }
        };
        source.place.records += 1;
        // The bytes so far may contain the next element, if all of them are still in the buffer.
        let skipped = if dropped + len <= self.limit { 1 } else { len };
        if let Some(what) = broken {
            consume(source, skipped);
            let what = self.resume(source, &format!("it is not JSON: {what}"))?;
            return Ok(bad(begin, source, what));
        }
        match Array::follower(source, len)? {
            (Some(b',' | b']'), _) => {}
            // The input ends before the array does, perhaps because of an extra bracket.
            (None, _) if self.style.open.is_none_or(|open| open == first) => {}
            (follower, blanks) => {
                let what = "it is not JSON: neither a comma nor the array's end follows it";
                if follower.is_some() && follower == self.style.open {
                    // The next element.
                    consume(source, len + blanks);
                    source.place.next = NextElement::Any;
                    return Ok(bad(begin, source, what.to_string()));
                }
                consume(source, skipped);
                let what = self.resume(source, what)?;
                return Ok(bad(begin, source, what));
            }
        }
        consume(source, len);
        source.place.next = NextElement::Comma;
        let total = dropped + len;
        if total > self.limit {
            return Ok(bad(begin, source, record_too_long(total, self.limit)));
        }
        pair.key.clear();
        pair.value.clear();
        let number = source.place.records;
        let made = self.element.make(source.last(len), number, pair);
        Ok(match begin.made(source, pair, made) {
            Step::Bad(wrong) => bad(begin, source, wrong.what),
            step => step,
        })
    }
}

#[cfg(test)]
mod tests;

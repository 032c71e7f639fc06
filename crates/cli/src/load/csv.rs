//! Comma-separated values as in RFC 4180: quotes, doubled quotes, delimiters and line breaks within
//! quotes.
//!
//! If a value is a record or several columns of it, it is copied *unchanged* from the input, with
//! its quotes, so that any reader of CSV can split it again and no byte is lost. A key, and a
//! single column, is stored without its quotes. This module has its own parser because of that, and
//! because the usual parsers accept an input that ends inside quotes, such as a torn file, as a
//! good record.
//!
//! The parser is lenient where this is unambiguous: line ends may be line feeds alone, records may
//! have different numbers of columns, empty lines are skipped, and a quote inside an unquoted field
//! is a quote.
//!
//! A stray quote must not make good records bad. If a quoted field is never closed, is longer than
//! [`Limits`] allow, or closes in a later line with text after the quote, only the lines of its
//! record up to the one with the opening quote are bad. Reading continues in the next line, as if
//! it began a record. Every line that opens a quote also ends a quote that was left open before it,
//! so each byte is scanned at most about twice.

use std::borrow::Cow;
use std::io;
use std::ops::Range;

use super::make::{KeyFrom, Maker, ValueFrom, lacks};
use super::source::Source;
use super::{Begin, Lines, Pair, Records, Step};
use crate::output::plural;

/// The maximum lengths of records and their quoted fields.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// The maximum number of bytes of a record.
    pub record_bytes: usize,
    /// The maximum number of lines that a quoted field may span after the line with its opening
    /// quote.
    pub quoted_lines: u64,
    /// The maximum number of bytes of a quoted field in those lines.
    pub quoted_bytes: u64,
}

/// The default of [`Limits::quoted_lines`].
pub const QUOTED_LINES: u64 = 1_000;
/// The default of [`Limits::quoted_bytes`].
pub const QUOTED_BYTES: u64 = 1 << 20;

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start of a field.
    Start,
    /// In a field without quotes.
    Plain,
    /// Within quotes.
    Quoted,
    /// After a quote within quotes: it is the closing quote or the first half of a doubled one.
    AfterQuote,
    /// After a closing quote and a carriage return: only a line feed may follow.
    BeforeLineFeed,
    /// In a record that is known to be bad: skip to its line end.
    Bad,
}

/// Follows the bytes of one record.
struct Scanner {
    delimiter: u8,
    limits: Limits,
    /// The number of line ends so far, and at the last opening quote.
    lines: u64,
    quote_lines: u64,
    /// The end of the line with the last opening quote, once the quoted field is beyond it.
    quote_line_end: Option<usize>,
    state: State,
    /// The number of bytes of the record so far.
    len: usize,
    /// The ends of the fields in these bytes, except that of the last field.
    ends: Vec<usize>,
    bad: Option<String>,
    /// The record is bad, and only this number of its bytes is left out with it.
    cut: Option<usize>,
}

impl Scanner {
    fn begin(&mut self, lines: u64) {
        self.lines = lines;
        self.quote_lines = lines;
        self.quote_line_end = None;
        self.state = State::Start;
        self.len = 0;
        self.ends.clear();
        self.bad = None;
        self.cut = None;
    }

    /// Marks the record as bad. It is left out up to the end of the line with the last opening
    /// quote if the quoted field is beyond that line, and otherwise up to the end of the current
    /// line.
    fn spoil(&mut self, what: String) {
        self.state = State::Bad;
        self.bad = Some(what);
        self.cut = self.quote_line_end;
    }

    /// Marks the record as bad because the last opening quote is not closed properly; `how` is the
    /// end of the message.
    fn spoil_open(&mut self, how: &str) {
        let line = self.quote_lines + 1;
        self.spoil(format!("the quote that opens in line {line} {how}"));
    }

    /// Scans the next bytes of the record. Returns how many belong to it, its line end included,
    /// and whether it ended with them. A record that is too long is given up at the same byte, in
    /// whatever pieces it arrives: at the first byte after which not even a line end of two bytes
    /// could make it good.
    fn scan(&mut self, chunk: &[u8]) -> (usize, bool) {
        let most = self.limits.record_bytes.saturating_add(2);
        let (first, rest) = match self.state {
            State::Bad => (chunk, &chunk[..0]),
            _ => chunk.split_at(chunk.len().min(most.saturating_sub(self.len))),
        };
        let (used, ended) = self.follow(first);
        if ended {
            return (used, true);
        }
        if self.len >= most && self.state != State::Bad {
            self.spoil_long(matches!(self.state, State::Quoted | State::AfterQuote));
            if self.cut.is_some() {
                return (used, true);
            }
        }
        let (more, ended) = self.follow(rest);
        (used + more, ended)
    }

    /// Marks the record as too long. `open` is set if this happened within quotes.
    fn spoil_long(&mut self, open: bool) {
        let limit = self.limits.record_bytes;
        if open {
            self.spoil_open(&format!(
                "does not close within the {limit} bytes that a record may have; if the record is \
                 longer than that, --max-record allows more"
            ));
        } else {
            self.quote_line_end = None;
            self.spoil(format!(
                "it has more than {limit} bytes (--max-record allows more)"
            ));
        }
    }

    /// Whether a quoted field is too long if the byte at this offset belongs to it. This is called
    /// at each quote and line end, so that the result does not depend on the buffer.
    fn goes_too_far(&mut self, at: usize) -> bool {
        let Some(end) = self.quote_line_end else {
            return false;
        };
        if self.lines - self.quote_lines > self.limits.quoted_lines {
            self.spoil_open(&format!(
                "does not close within {}; if the field is longer than that, --max-quoted-lines \
                 allows more",
                plural(self.limits.quoted_lines, "further line")
            ));
        } else if (at + 1).saturating_sub(end) as u64 > self.limits.quoted_bytes {
            self.spoil_open(&format!(
                "does not close within {} of further lines; if the field is longer than that, \
                 --max-quoted-bytes allows more",
                plural(self.limits.quoted_bytes, "byte")
            ));
        }
        self.cut.is_some()
    }

    fn follow(&mut self, chunk: &[u8]) -> (usize, bool) {
        let mut i = 0;
        while i < chunk.len() {
            // Skip bytes that change nothing.
            let next = match self.state {
                State::Quoted => memchr::memchr2(b'"', b'\n', &chunk[i..]),
                State::Plain => memchr::memchr2(self.delimiter, b'\n', &chunk[i..]),
                State::Bad => memchr::memchr(b'\n', &chunk[i..]),
                _ => Some(0),
            };
            let Some(over) = next else {
                break;
            };
            i += over;
            let byte = chunk[i];
            match (self.state, byte) {
                (State::Quoted, _) => {
                    if byte == b'\n' {
                        self.lines += 1;
                        self.quote_line_end.get_or_insert(self.len + i + 1);
                    } else {
                        self.state = State::AfterQuote;
                    }
                    if self.goes_too_far(self.len + i) {
                        return (i + 1, true);
                    }
                }
                (_, b'\n') => {
                    self.lines += 1;
                    self.len += i + 1;
                    return (i + 1, true);
                }
                (State::Bad, _) => {}
                (State::Start, b'"') => {
                    self.quote_lines = self.lines;
                    self.quote_line_end = None;
                    self.state = State::Quoted;
                }
                (State::AfterQuote, b'"') => self.state = State::Quoted,
                (State::Start | State::Plain | State::AfterQuote, _) if byte == self.delimiter => {
                    self.state = State::Start;
                    self.ends.push(self.len + i);
                }
                (State::Start | State::Plain, _) => self.state = State::Plain,
                (State::AfterQuote, b'\r') => self.state = State::BeforeLineFeed,
                (State::AfterQuote | State::BeforeLineFeed, _) => {
                    self.spoil_closed();
                    if self.cut.is_some() {
                        return (i + 1, true);
                    }
                }
            }
            i += 1;
        }
        self.len += chunk.len();
        (chunk.len(), false)
    }

    /// Handles text after a quote that would be the closing one.
    fn spoil_closed(&mut self) {
        if self.lines == self.quote_lines {
            self.spoil(
                "text follows a closing quote; a quote within quotes is written twice".to_string(),
            );
        } else {
            let line = self.lines + 1;
            self.spoil_open(&format!(
                "never closes: text follows the next quote, in line {line} (a quote within quotes \
                 is written twice)"
            ));
        }
    }
}

/// The reader; see the module.
pub struct Csv {
    scanner: Scanner,
    /// The parts that are the key.
    pub key_from: KeyFrom<usize>,
    /// The parts that are the value.
    pub value_from: ValueFrom<usize>,
    /// How the key's bytes are made.
    pub key: Maker,
    /// How the value's bytes are made.
    pub value: Maker,
    fields: Vec<Range<usize>>,
    /// The [`OTHER_DELIMITERS`] that each record so far has in its only column; none before the
    /// first record.
    in_all: Option<Vec<u8>>,
}

/// The common delimiters other than the comma.
const OTHER_DELIMITERS: [u8; 3] = [b';', b'\t', b'|'];

impl Csv {
    /// Records whose first column is the key and whose other columns are the value.
    pub fn new(delimiter: u8, limits: Limits) -> Csv {
        Csv {
            scanner: Scanner {
                delimiter,
                limits,
                lines: 0,
                quote_lines: 0,
                quote_line_end: None,
                state: State::Start,
                len: 0,
                ends: Vec::new(),
                bad: None,
                cut: None,
            },
            key_from: KeyFrom::Parts(vec![0]),
            value_from: ValueFrom::Rest,
            key: Maker::plain(b"/"),
            value: Maker::plain(&[delimiter]),
            fields: Vec::new(),
            in_all: None,
        }
    }

    /// Reads a record and its line end. Returns its length without the line end if it is good, and
    /// none at the end of the input.
    fn read(&mut self, source: &mut Source<'_>) -> io::Result<Option<usize>> {
        self.scanner.begin(source.place.lines);
        // The number of remaining bytes that the scanner has seen. A bad record is not kept, unless
        // it may be cut: then it was good up to here.
        let mut seen = 0;
        let ended = loop {
            if seen == source.rest().len() && !source.fill()? {
                break false;
            }
            let (used, ended) = self.scanner.scan(&source.rest()[seen..]);
            seen += used;
            if ended {
                break true;
            }
            if self.scanner.bad.is_some() {
                source.consume(seen);
                seen = 0;
            }
        };
        if !ended && self.scanner.state == State::Quoted {
            self.scanner
                .spoil_open("never closes: it is still open at the end of the input");
        }
        if let Some(len) = self.scanner.cut {
            source.consume(len);
            source.place.lines = self.scanner.quote_lines + 1;
            return Ok(Some(0));
        }
        source.consume(seen);
        if self.scanner.len == 0 {
            return Ok(None);
        }
        // The last line needs no line end.
        source.place.lines = self.scanner.lines + u64::from(!ended);
        if self.scanner.bad.is_some() {
            return Ok(Some(0));
        }
        let record = source.last(self.scanner.len);
        let record = record.strip_suffix(b"\n").unwrap_or(record);
        let len = record.strip_suffix(b"\r").unwrap_or(record).len();
        if len > self.scanner.limits.record_bytes {
            self.scanner.spoil_long(false);
            return Ok(Some(0));
        }
        Ok(Some(len))
    }

    /// Reads the record that holds the names of the columns.
    ///
    /// # Errors
    /// Those of the input.
    pub fn names(&mut self, source: &mut Source<'_>) -> io::Result<Result<Vec<Vec<u8>>, Step>> {
        let mut pair = Pair::default();
        match self.next(source, &mut pair)? {
            Step::Record => {}
            step => return Ok(Err(step)),
        }
        // It is not counted as a record.
        source.place.records = 0;
        let record = source.last(self.scanner.len);
        let names = self
            .fields
            .iter()
            .map(|f| unquoted(&record[f.clone()]).into_owned());
        Ok(Ok(names.collect()))
    }

    /// Removes from [`Csv::in_all`] the delimiters that the last record does not have.
    fn look_for_delimiters(&mut self, source: &Source<'_>, len: usize) {
        let in_all = self.in_all.get_or_insert_with(|| OTHER_DELIMITERS.to_vec());
        if in_all.is_empty() {
            return;
        }
        let record = &source.last(self.scanner.len)[..len];
        match self.fields.len() {
            1 => in_all.retain(|byte| memchr::memchr(*byte, record).is_some()),
            _ => in_all.clear(),
        }
    }

    fn make(&self, record: &[u8], number: u64, pair: &mut Pair) -> Result<(), String> {
        let field = |column: &usize| match self.fields.get(*column) {
            Some(range) => Ok(&record[range.clone()]),
            None => Err(lacks(*column, self.fields.len(), number)),
        };
        match &self.key_from {
            KeyFrom::Number => self.key.number(number, &mut pair.key)?,
            KeyFrom::Parts(columns) => match columns[..] {
                // The usual case, without an allocation.
                [column] if self.key.is_plain() => {
                    pair.key.extend_from_slice(&unquoted(field(&column)?));
                }
                _ => {
                    let parts = columns
                        .iter()
                        .map(|c| field(c).map(unquoted))
                        .collect::<Result<Vec<_>, _>>()?;
                    self.key.make(parts.iter().map(|p| &p[..]), &mut pair.key)?;
                }
            },
        }
        let rest: Vec<usize>;
        let columns = match &self.value_from {
            ValueFrom::Whole => {
                pair.value.extend_from_slice(record);
                return Ok(());
            }
            ValueFrom::Rest => {
                let keys = match &self.key_from {
                    KeyFrom::Number => &[][..],
                    KeyFrom::Parts(columns) => columns,
                };
                if self.value.is_plain() && keys == [0] {
                    let from = self.fields[0].end + 1;
                    pair.value
                        .extend_from_slice(record.get(from..).unwrap_or_default());
                    return Ok(());
                }
                rest = (0..self.fields.len())
                    .filter(|c| !keys.contains(c))
                    .collect();
                &rest[..]
            }
            ValueFrom::Parts(columns) => columns,
        };
        // Several columns stay CSV.
        let alone = columns.len() == 1 && matches!(self.value_from, ValueFrom::Parts(_));
        let parts = columns
            .iter()
            .map(|c| {
                let field = field(c)?;
                Ok(if alone || !self.value.is_plain() {
                    unquoted(field)
                } else {
                    Cow::Borrowed(field)
                })
            })
            .collect::<Result<Vec<_>, String>>()?;
        self.value
            .make(parts.iter().map(|p| &p[..]), &mut pair.value)
    }
}

/// A field without its quotes.
fn unquoted(field: &[u8]) -> Cow<'_, [u8]> {
    let quoted = field
        .strip_prefix(b"\"")
        .and_then(|f| f.strip_suffix(b"\""));
    let Some(quoted) = quoted else {
        return Cow::Borrowed(field);
    };
    if memchr::memchr(b'"', quoted).is_none() {
        return Cow::Borrowed(quoted);
    }
    // Split at doubled quotes; the state machine has checked that there are no other quotes.
    let mut bytes = Vec::with_capacity(quoted.len());
    let mut parts = quoted.split(|b| *b == b'"');
    bytes.extend_from_slice(parts.next().unwrap_or_default());
    while let (Some(_), Some(after)) = (parts.next(), parts.next()) {
        bytes.push(b'"');
        bytes.extend_from_slice(after);
    }
    Cow::Owned(bytes)
}

impl Records for Csv {
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step> {
        let (begin, len) = loop {
            let begin = Begin::of(source);
            match self.read(source)? {
                None => return Ok(Step::End),
                Some(0) if self.scanner.bad.is_none() => {}
                Some(len) => break (begin, len),
            }
        };
        source.place.records += 1;
        if let Some(what) = self.scanner.bad.take() {
            return Ok(begin.bad(source, what));
        }
        let mut fields = std::mem::take(&mut self.fields);
        fields.clear();
        let mut start = 0;
        for end in self.scanner.ends.iter().copied().chain([len]) {
            fields.push(start..end);
            start = end + 1;
        }
        self.fields = fields;
        self.look_for_delimiters(source, len);
        pair.key.clear();
        pair.value.clear();
        pair.lines = Some(Lines {
            first: begin.line,
            count: source.place.lines + 1 - begin.line,
        });
        let record = &source.last(self.scanner.len)[..len];
        let made = self.make(record, source.place.records, pair);
        Ok(begin.made(source, pair, made))
    }

    fn other_delimiter(&self) -> Option<u8> {
        self.in_all.as_ref()?.first().copied()
    }
}

#[cfg(test)]
mod tests;

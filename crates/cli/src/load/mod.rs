//! Detects what an input is (compressed, encoded, or not text), cuts it into records (CSV, TSV,
//! JSON lines and arrays, lines, fixed lengths), and makes the key and the value of each record.
//!
//! Invariants: a reader holds one record at a time, and never more bytes than the limit of a
//! record, whatever the input is. Bytes need not be text. If an input ends inside a record, the
//! record is bad, and is never silently shortened. After a bad record reading continues behind it.

pub mod array;
pub mod content;
pub mod csv;
pub mod decode;
pub mod fixed;
pub mod json;
pub mod lines;
pub mod make;
pub mod resume;
pub mod source;
pub mod tsv;

use std::fmt;
use std::io;
use std::ops::AddAssign;

use siltstone::batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

use crate::output::plural;
use source::Source;

/// The key and the value of a record, as they are stored.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The lines of the record, if it may span several because of quotes (CSV).
    pub lines: Option<Lines>,
}

/// Consecutive lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The first line, counted from 1.
    pub first: u64,
    /// Their number.
    pub count: u64,
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let last = self.first.saturating_add(self.count).saturating_sub(1);
        write!(f, "lines {} to {last}", self.first)
    }
}

/// Records that span several lines because of quotes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultiLine {
    /// Their number.
    pub records: u64,
    /// The first of the records with the most lines.
    pub longest: Option<Lines>,
}

impl MultiLine {
    /// The count of one record with these lines.
    pub fn of(lines: Option<Lines>) -> MultiLine {
        let longest = lines.filter(|lines| lines.count > 1);
        MultiLine {
            records: longest.is_some().into(),
            longest,
        }
    }
}

impl AddAssign for MultiLine {
    fn add_assign(&mut self, more: MultiLine) {
        self.records = self.records.saturating_add(more.records);
        let count = |lines: Option<Lines>| lines.map_or(0, |lines| lines.count);
        if count(more.longest) > count(self.longest) {
            self.longest = more.longest;
        }
    }
}

/// A record that cannot be loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Its number in the input, from 1.
    pub record: u64,
    /// The line in which it begins, if the input has lines.
    pub line: Option<u64>,
    /// The offset of its first byte.
    pub offset: u64,
    /// The error, and what would be right.
    pub what: String,
    /// The part of the input that is left out with it.
    pub left_out: LeftOut,
}

/// The totals of a load.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// The number of records that are in the store.
    pub records: u64,
    /// The bytes of their keys and values.
    pub entry_bytes: u64,
    /// Those of them that span several lines.
    pub multi_line: MultiLine,
    /// The parts of the input that were left out.
    pub left_out: LeftOut,
}

impl AddAssign for Tally {
    fn add_assign(&mut self, more: Tally) {
        self.records = self.records.saturating_add(more.records);
        self.entry_bytes = self.entry_bytes.saturating_add(more.entry_bytes);
        self.multi_line += more.multi_line;
        self.left_out += more.left_out;
    }
}

/// The parts of an input that were left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// The number of bad records.
    pub records: u64,
    /// The number of their lines. A line with several of them is counted once.
    pub lines: u64,
    /// Their bytes, line ends included.
    pub bytes: u64,
    /// The first and the last of the lines, so that a sum of two parts counts a common line once.
    pub first_line: Option<u64>,
    /// See `first_line`.
    pub last_line: Option<u64>,
}

impl LeftOut {
    /// One bad record with this number of lines from `first_line` on.
    fn of_record(first_line: u64, lines: u64, bytes: u64) -> LeftOut {
        LeftOut {
            records: 1,
            lines,
            bytes,
            first_line: (lines > 0).then_some(first_line),
            last_line: (lines > 0).then(|| first_line + lines - 1),
        }
    }
}

impl AddAssign for LeftOut {
    fn add_assign(&mut self, more: LeftOut) {
        self.records = self.records.saturating_add(more.records);
        let is_shared = more.first_line.is_some() && more.first_line == self.last_line;
        let more_lines = more.lines.saturating_sub(is_shared.into());
        self.lines = self.lines.saturating_add(more_lines);
        self.bytes = self.bytes.saturating_add(more.bytes);
        self.first_line = self.first_line.or(more.first_line);
        self.last_line = more.last_line.or(self.last_line);
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.lines > 0 {
            write!(f, "{}, ", plural(self.lines, "line"))?;
        }
        f.write_str(&plural(self.bytes, "byte"))
    }
}

impl BadRecord {
    /// The position of the record, and its error. `of` follows the byte: it says in what line and
    /// byte are counted, if not in the input itself.
    pub fn describe(&self, of: &str) -> String {
        let line = self.line.map(|line| format!(" (line {line})"));
        format!(
            "record {}{} at byte {}{of}: {}",
            self.record,
            line.unwrap_or_default(),
            self.offset,
            self.what
        )
    }
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.describe(""))
    }
}

/// The result of reading one step.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next record.
    Record,
    /// A record that cannot be loaded. Reading may continue.
    Bad(BadRecord),
    /// The end of the input.
    End,
}

/// A reader of records. The result for a record does not depend on earlier records, so that a load
/// may begin anywhere between two records.
pub trait Records {
    /// Reads the next record into `pair`.
    ///
    /// # Errors
    /// Those of the input.
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step>;

    /// A byte that may stand between columns but is not the delimiter: all records that were read
    /// have one column, which contains this byte.
    fn other_delimiter(&self) -> Option<u8> {
        None
    }
}

/// The position of a record, for the case that it is bad.
#[derive(Clone, Copy)]
struct Begin {
    offset: u64,
    line: u64,
}

impl Begin {
    fn of(source: &Source<'_>) -> Begin {
        Begin {
            offset: source.offset(),
            line: source.place.lines + 1,
        }
    }

    /// Reports the record that was just read as bad.
    fn bad(self, source: &Source<'_>, what: String) -> Step {
        Step::Bad(BadRecord {
            record: source.place.records,
            line: Some(self.line),
            offset: self.offset,
            what,
            left_out: LeftOut::of_record(
                self.line,
                source.place.lines + 1 - self.line,
                source.offset() - self.offset,
            ),
        })
    }

    /// Reports the record that was just read. It is good if its pair could be made and fits.
    fn made(self, source: &Source<'_>, pair: &Pair, made: Result<(), String>) -> Step {
        match made {
            Err(what) => self.bad(source, what),
            Ok(()) if pair.key.len() > MAX_KEY_BYTES => {
                self.bad(source, key_too_long(pair.key.len()))
            }
            Ok(()) if pair.value.len() > MAX_VALUE_BYTES => self.bad(
                source,
                format!(
                    "the value has {} bytes; the limit is {MAX_VALUE_BYTES}",
                    pair.value.len()
                ),
            ),
            Ok(()) => Step::Record,
        }
    }
}

/// The error of a key that is too long.
fn key_too_long(found: impl fmt::Display) -> String {
    format!("the key has {found} bytes; the limit is {MAX_KEY_BYTES}")
}

/// The error of a record that is too long.
fn record_too_long(found: impl fmt::Display, limit: usize) -> String {
    format!("it has {found} bytes, more than {limit}; --max-record allows more")
}

/// The maximum number of bytes of a record that can be loaded.
pub const MAX_RECORD_BYTES: usize = MAX_KEY_BYTES + MAX_VALUE_BYTES;

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A record, or the error of a bad one.
    pub type Read = Result<(Vec<u8>, Vec<u8>), BadRecord>;

    /// Everything that a reader returns for a text, with a buffer of this size.
    pub fn all(records: &mut dyn Records, text: &[u8], buffer: usize) -> Vec<Read> {
        let mut source = Source::with_buffer(text, buffer);
        let mut pair = Pair::default();
        let mut found = Vec::new();
        loop {
            match records.next(&mut source, &mut pair).unwrap() {
                Step::Record => found.push(Ok((pair.key.clone(), pair.value.clone()))),
                Step::Bad(bad) => found.push(Err(bad)),
                Step::End => break,
            }
            assert_eq!(source.place.records, found.len() as u64);
        }
        assert_eq!(source.offset(), text.len() as u64);
        found
    }

    /// A good record.
    pub fn pair(key: &[u8], value: &[u8]) -> Read {
        Ok((key.to_vec(), value.to_vec()))
    }
}

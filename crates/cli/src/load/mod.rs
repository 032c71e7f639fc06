//! Cutting an input into records: CSV, TSV, JSON lines and arrays, lines, fixed lengths; and what
//! of a record is its key and its value. Before that, what an input is: compressed, encoded, or no
//! text.
//!
//! Invariants: a reader holds one record at a time and no more than its limit lets a record be
//! (whatever the input is); bytes need not be text; an input that ends inside a record is a bad
//! record, never a silently shorter one; after a bad record reading goes on behind it.

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

/// A record: what goes into the store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
    /// The lines of the record, where quotes decide how many they are (CSV).
    pub lines: Option<Lines>,
}

/// Consecutive lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Lines {
    /// The first, counted from 1.
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

/// Records whose quotes make them go on over several lines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MultiLine {
    /// Their number.
    pub records: u64,
    /// The first of those that have the most lines.
    pub longest: Option<Lines>,
}

impl MultiLine {
    /// What one record with these lines adds.
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
    /// The line that it begins in, where the input has lines.
    pub line: Option<u64>,
    /// The offset of its first byte.
    pub offset: u64,
    /// What is wrong with it, and what would be right.
    pub what: String,
    /// What of the input is left out with it.
    pub left_out: LeftOut,
}

/// What a load did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    /// Records that are in the store.
    pub records: u64,
    /// Bytes of their keys and values.
    pub entry_bytes: u64,
    /// Those of them that go on over several lines.
    pub multi_line: MultiLine,
    /// What was left out.
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

/// What of an input was left out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeftOut {
    /// Bad records.
    pub records: u64,
    /// Lines that they lie in. A line in which several of them lie is counted once.
    pub lines: u64,
    /// Their bytes, line ends included.
    pub bytes: u64,
    /// The first and the last of the lines, by which sums know one that both parts have.
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
    /// Where it is and what is wrong with it. `of` follows the byte: it says what line and byte are
    /// counted in, if that is not the input as it stands.
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

/// What a reader came to.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// The next record.
    Record,
    /// A record that cannot be loaded. Reading may go on.
    Bad(BadRecord),
    /// The end of the input.
    End,
}

/// A reader of records. Nothing that it keeps from one record to the next decides what becomes of a
/// record, so that a load may begin anywhere between two records.
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

/// Where a record begins; for bad ones.
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

    /// The record that was just read is bad.
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

    /// The record that was just read is good if its pair could be made and fits.
    fn made(self, source: &Source<'_>, pair: &Pair, made: Result<(), String>) -> Step {
        match made {
            Err(what) => self.bad(source, what),
            Ok(()) if pair.key.len() > MAX_KEY_BYTES => {
                self.bad(source, key_too_long(pair.key.len()))
            }
            Ok(()) if pair.value.len() > MAX_VALUE_BYTES => self.bad(
                source,
                format!(
                    "the value has {} bytes, a value has at most {MAX_VALUE_BYTES}",
                    pair.value.len()
                ),
            ),
            Ok(()) => Step::Record,
        }
    }
}

/// What is wrong with a key that is too long.
fn key_too_long(found: impl fmt::Display) -> String {
    format!("the key has {found} bytes, a key has at most {MAX_KEY_BYTES}")
}

/// What is wrong with a record that is too long.
fn record_too_long(found: impl fmt::Display, limit: usize) -> String {
    format!("it has {found} bytes, more than {limit}; --max-record allows more")
}

/// The most bytes that a record can have and still be loaded.
pub const MAX_RECORD_BYTES: usize = MAX_KEY_BYTES + MAX_VALUE_BYTES;

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A record, or what is wrong with it.
    pub type Read = Result<(Vec<u8>, Vec<u8>), BadRecord>;

    /// Everything that a reader gives of a text, with a buffer of this size.
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

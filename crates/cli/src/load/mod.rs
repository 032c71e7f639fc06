//! Cutting an input into records: CSV, lines, fixed lengths.
//!
//! Invariants: a reader holds one record at a time and no more than the store's limits let a record be (whatever the input is);
//! bytes need not be text; an input that ends inside a record is a bad record, never a silently shorter one; after a bad record
//! reading goes on behind it.

pub mod csv;
pub mod fixed;
pub mod lines;

use std::fmt;
use std::io;

use siltstone::batch::{MAX_KEY_BYTES, MAX_VALUE_BYTES};

/// A record: what goes into the store.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Pair {
    /// The key.
    pub key: Vec<u8>,
    /// The value.
    pub value: Vec<u8>,
}

/// A record that cannot be loaded.
#[derive(Debug, PartialEq, Eq)]
pub struct BadRecord {
    /// Its number in the input, from 1.
    pub record: u64,
    /// The line that it begins in, where the input has lines.
    pub line: Option<u64>,
    /// What is wrong with it, and what would be right.
    pub what: String,
}

impl fmt::Display for BadRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "record {}", self.record)?;
        if let Some(line) = self.line {
            write!(f, " (line {line})")?;
        }
        write!(f, ": {}", self.what)
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

/// A reader of records.
pub trait Records {
    /// Reads the next record into `pair`.
    fn next(&mut self, pair: &mut Pair) -> io::Result<Step>;
}

/// What is wrong with a key that is too long.
fn key_too_long(found: impl fmt::Display) -> String {
    format!("the key has {found} bytes, a key has at most {MAX_KEY_BYTES}")
}

/// The most bytes that a record can have and still be loaded.
const MAX_RECORD_BYTES: usize = MAX_KEY_BYTES + MAX_VALUE_BYTES;

#[cfg(test)]
pub mod testing {
    use super::*;

    /// A record, or what is wrong with it.
    pub type Read = Result<(Vec<u8>, Vec<u8>), BadRecord>;

    /// Everything that a reader gives.
    pub fn all(records: &mut dyn Records) -> Vec<Read> {
        let mut pair = Pair::default();
        let mut found = Vec::new();
        loop {
            match records.next(&mut pair).unwrap() {
                Step::Record => found.push(Ok((pair.key.clone(), pair.value.clone()))),
                Step::Bad(bad) => found.push(Err(bad)),
                Step::End => return found,
            }
        }
    }
}

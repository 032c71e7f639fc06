//! Tab-separated values: each line is a record, tabs separate columns, and quotes have no meaning.
//! With escapes, `\t`, `\n`, `\\` and `\xNN` mean bytes, as `silt scan` prints them, so that
//! printed pairs can be loaded again.

use std::borrow::Cow;
use std::io;

use super::make::{KeyFrom, Maker, ValueFrom, lacks};
use super::source::{Line, Source};
use super::{Begin, Pair, Records, Step, record_too_long};
use crate::form::unescape;

/// The reader; see the module.
pub struct Tsv {
    /// The byte between columns.
    pub delimiter: u8,
    /// Whether backslashes start escapes.
    pub escapes: bool,
    /// The parts that are the key.
    pub key_from: KeyFrom<usize>,
    /// The parts that are the value.
    pub value_from: ValueFrom<usize>,
    /// How the key's bytes are made.
    pub key: Maker,
    /// How the value's bytes are made.
    pub value: Maker,
    /// The length of the longest allowed record.
    pub limit: usize,
}

impl Tsv {
    fn make(&self, line: &[u8], number: u64, pair: &mut Pair) -> Result<(), String> {
        let fields: Vec<&[u8]> = line.split(|b| *b == self.delimiter).collect();
        let field = |column: &usize| match fields.get(*column) {
            Some(field) => self.read(field),
            None => Err(lacks(*column, fields.len(), number)),
        };
        let all = |columns: &[usize]| columns.iter().map(field).collect::<Result<Vec<_>, _>>();
        let keys = match &self.key_from {
            KeyFrom::Number => {
                self.key.number(number, &mut pair.key)?;
                &[][..]
            }
            KeyFrom::Parts(columns) => {
                let parts = all(columns)?;
                self.key.make(parts.iter().map(|p| &p[..]), &mut pair.key)?;
                columns
            }
        };
        let parts = match &self.value_from {
            ValueFrom::Whole => {
                pair.value.extend_from_slice(line);
                return Ok(());
            }
            ValueFrom::Rest => {
                let rest: Vec<usize> = (0..fields.len()).filter(|c| !keys.contains(c)).collect();
                all(&rest)?
            }
            ValueFrom::Parts(columns) => all(columns)?,
        };
        self.value
            .make(parts.iter().map(|p| &p[..]), &mut pair.value)
    }

    fn read<'a>(&self, field: &'a [u8]) -> Result<Cow<'a, [u8]>, String> {
        if !self.escapes || memchr::memchr(b'\\', field).is_none() {
            return Ok(Cow::Borrowed(field));
        }
        let mut bytes = Vec::with_capacity(field.len());
        unescape(field, &mut bytes)?;
        Ok(Cow::Owned(bytes))
    }

    /// Reads the record that holds the names of the columns, or returns the step that came instead.
    ///
    /// # Errors
    /// Those of the input.
    pub fn names(&mut self, source: &mut Source<'_>) -> io::Result<Result<Vec<Vec<u8>>, Step>> {
        let begin = Begin::of(source);
        let Some(line) = source.line(self.limit)? else {
            return Ok(Err(Step::End));
        };
        Ok(match line {
            Line::Whole(range) => {
                let names = source.bytes(range).split(|b| *b == self.delimiter);
                Ok(names.map(<[u8]>::to_vec).collect())
            }
            Line::Long(len) => {
                source.place.records += 1;
                Err(begin.bad(source, record_too_long(len, self.limit)))
            }
        })
    }
}

impl Records for Tsv {
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step> {
        loop {
            let begin = Begin::of(source);
            let Some(line) = source.line(self.limit)? else {
                return Ok(Step::End);
            };
            if matches!(&line, Line::Whole(range) if range.is_empty()) {
                continue;
            }
            source.place.records += 1;
            let range = match line {
                Line::Whole(range) => range,
                Line::Long(len) => return Ok(begin.bad(source, record_too_long(len, self.limit))),
            };
            pair.key.clear();
            pair.value.clear();
            let made = self.make(source.bytes(range), source.place.records, pair);
            return Ok(begin.made(source, pair, made));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{all, pair};
    use super::*;

    fn tsv(escapes: bool) -> Tsv {
        Tsv {
            delimiter: b'\t',
            escapes,
            key_from: KeyFrom::Parts(vec![0]),
            value_from: ValueFrom::Rest,
            key: Maker::plain(b"/"),
            value: Maker::plain(b"\t"),
            limit: 100,
        }
    }

    #[test]
    fn columns_with_and_without_escapes() {
        let text = b"a\t\"b\tc\\n\r\n\\xff\\t\t\n\tx\n\nlast";
        assert_eq!(
            all(&mut tsv(false), text, 3),
            [
                pair(b"a", b"\"b\tc\\n"),
                pair(b"\\xff\\t", b""),
                pair(b"", b"x"),
                pair(b"last", b"")
            ]
        );
        let found = all(&mut tsv(true), text, 3);
        assert_eq!(found[0], pair(b"a", b"\"b\tc\n"));
        assert_eq!(found[1], pair(b"\xff\t", b""));
        let mut picked = tsv(false);
        picked.key_from = KeyFrom::Parts(vec![2, 0]);
        picked.value_from = ValueFrom::Parts(vec![1]);
        let found = all(&mut picked, b"a\tb\tc\nd\te\n", 3);
        assert_eq!(found[0], pair(b"c/a", b"b"));
        let bad = found[1].as_ref().unwrap_err();
        assert_eq!((bad.record, bad.line, bad.offset), (2, Some(2), 6));
        let found = all(&mut tsv(true), b"a\\q\tb\n", 3);
        assert!(found[0].as_ref().unwrap_err().what.contains("backslash"));
    }
}

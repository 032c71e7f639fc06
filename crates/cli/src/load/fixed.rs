//! Records of fixed length. Ranges of their bytes are the key.

use std::io;
use std::ops::Range;

use siltstone::batch::MAX_KEY_BYTES;

use super::make::{ValueFrom, rest_of};
use super::source::Source;
use super::{BadRecord, Begin, LeftOut, MAX_RECORD_BYTES, Pair, Records, Step, key_too_long};

/// The reader; see the module.
#[derive(Debug)]
pub struct Fixed {
    record_bytes: usize,
    key: Vec<Range<usize>>,
    value: ValueFrom<Range<usize>>,
}

impl Fixed {
    /// Records of `record_bytes` bytes.
    ///
    /// # Errors
    /// An argument is impossible; the text says which.
    pub fn new(
        record_bytes: usize,
        key: Vec<Range<usize>>,
        value: ValueFrom<Range<usize>>,
    ) -> Result<Fixed, String> {
        if !(1..=MAX_RECORD_BYTES).contains(&record_bytes) {
            return Err(format!(
                "a record has 1 to {MAX_RECORD_BYTES} bytes, not {record_bytes}"
            ));
        }
        let parts = match &value {
            ValueFrom::Parts(parts) => &parts[..],
            _ => &[],
        };
        for range in key.iter().chain(parts) {
            if range.is_empty() || range.end > record_bytes {
                return Err(format!(
                    "the bytes {}..{} do not lie within a record of {record_bytes} bytes",
                    range.start, range.end
                ));
            }
        }
        let key_bytes: usize = key.iter().map(ExactSizeIterator::len).sum();
        if key_bytes > MAX_KEY_BYTES {
            return Err(key_too_long(key_bytes));
        }
        Ok(Fixed {
            record_bytes,
            key,
            value,
        })
    }
}

impl Records for Fixed {
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step> {
        let begin = Begin::of(source);
        let found = source.exact(self.record_bytes)?;
        if found.is_empty() {
            return Ok(Step::End);
        }
        source.place.records += 1;
        if found.len() < self.record_bytes {
            return Ok(Step::Bad(BadRecord {
                record: source.place.records,
                line: None,
                offset: begin.offset,
                what: format!(
                    "the input ends after {} of the {} bytes of the record",
                    found.len(),
                    self.record_bytes
                ),
                left_out: LeftOut::of_record(0, 0, found.len() as u64),
            }));
        }
        let record = source.bytes(found);
        pair.key.clear();
        for range in &self.key {
            pair.key.extend_from_slice(&record[range.clone()]);
        }
        pair.value.clear();
        match &self.value {
            ValueFrom::Whole => pair.value.extend_from_slice(record),
            ValueFrom::Rest => rest_of(record, &self.key, &mut pair.value),
            ValueFrom::Parts(parts) => {
                for range in parts {
                    pair.value.extend_from_slice(&record[range.clone()]);
                }
            }
        }
        Ok(Step::Record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Read, all, pair};
    use super::*;

    fn read(text: &[u8], key: Range<usize>, value: ValueFrom<Range<usize>>) -> Vec<Read> {
        all(&mut Fixed::new(4, vec![key], value).unwrap(), text, 3)
    }

    #[test]
    fn the_key_lies_anywhere_in_a_record() {
        let text = b"abcdefgh";
        assert_eq!(
            read(text, 0..1, ValueFrom::Rest),
            [pair(b"a", b"bcd"), pair(b"e", b"fgh")]
        );
        assert_eq!(
            read(text, 1..3, ValueFrom::Rest),
            [pair(b"bc", b"ad"), pair(b"fg", b"eh")]
        );
        assert_eq!(
            read(text, 3..4, ValueFrom::Whole),
            [pair(b"d", b"abcd"), pair(b"h", b"efgh")]
        );
        assert_eq!(
            read(text, 0..4, ValueFrom::Rest),
            [pair(b"abcd", b""), pair(b"efgh", b"")]
        );
        assert_eq!(
            read(text, 0..2, ValueFrom::Parts(vec![3..4, 0..1])),
            [pair(b"ab", b"da"), pair(b"ef", b"he")]
        );
        assert_eq!(read(b"", 0..1, ValueFrom::Rest), []);
    }

    #[test]
    fn a_cut_record_is_bad() {
        let found = read(b"abcdef", 0..1, ValueFrom::Rest);
        assert_eq!(found[0], pair(b"a", b"bcd"));
        let bad = found[1].as_ref().unwrap_err();
        assert_eq!((bad.record, bad.line, bad.offset), (2, None, 4));
        assert!(bad.what.contains("2 of the 4 bytes"), "{}", bad.what);
        assert_eq!(found.len(), 2);
    }

    #[test]
    fn impossible_shapes_are_refused() {
        for (record, key, word) in [
            (0, 0..1, "1 to"),
            (usize::MAX, 0..1, "1 to"),
            (4, 2..5, "2..5"),
            (100_000, 0..70_000, "65535"),
        ] {
            let said = Fixed::new(record, vec![key], ValueFrom::Rest).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
        assert!(Fixed::new(4, vec![0..1, 1..2], ValueFrom::Parts(vec![3..4, 3..5])).is_err());
    }
}

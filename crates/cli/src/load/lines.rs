//! Lines: either the whole line is the key and its number the value, or bytes of the line, or its
//! number, are the key.

use std::io;
use std::ops::Range;

use siltstone::batch::MAX_KEY_BYTES;

use super::make::{KeyFrom, Maker, ValueFrom, rest_of};
use super::source::{Line, Source};
use super::{Begin, Pair, Records, Step, key_too_long, record_too_long};

/// The bytes of a line that are its key and its value.
pub type Bytes = (KeyFrom<Range<usize>>, ValueFrom<Range<usize>>);

/// The reader; see the module. A line ends with a line feed or with the input; a carriage return
/// before the line feed does not belong to it.
pub struct Lines {
    /// If there are none, the line is the key and its number is the value.
    pub parts: Option<Bytes>,
    /// How the key's bytes are made.
    pub key: Maker,
    /// How the value's bytes are made.
    pub value: Maker,
    /// The length of the longest allowed line.
    pub limit: usize,
}

impl Records for Lines {
    fn next(&mut self, source: &mut Source<'_>, pair: &mut Pair) -> io::Result<Step> {
        let begin = Begin::of(source);
        let limit = match self.parts {
            None => self.limit.min(MAX_KEY_BYTES),
            Some(_) => self.limit,
        };
        let Some(line) = source.line(limit)? else {
            return Ok(Step::End);
        };
        source.place.records += 1;
        let range = match line {
            Line::Whole(range) => range,
            Line::Long(len) => {
                let what = match len > self.limit as u64 {
                    true => record_too_long(len, self.limit),
                    false => key_too_long(len),
                };
                return Ok(begin.bad(source, what));
            }
        };
        let line = source.bytes(range);
        pair.key.clear();
        pair.value.clear();
        let made = match &self.parts {
            None => {
                pair.key.extend_from_slice(line);
                let number = source.place.records.to_string();
                pair.value.extend_from_slice(number.as_bytes());
                Ok(())
            }
            Some((key, value)) => self.make(key, value, line, source.place.records, pair),
        };
        Ok(begin.made(source, pair, made))
    }
}

impl Lines {
    fn make(
        &self,
        key: &KeyFrom<Range<usize>>,
        value: &ValueFrom<Range<usize>>,
        line: &[u8],
        number: u64,
        pair: &mut Pair,
    ) -> Result<(), String> {
        let taken = match key {
            KeyFrom::Number => {
                self.key.number(number, &mut pair.key)?;
                &[][..]
            }
            KeyFrom::Parts(parts) => {
                let cut = cut(line, parts)?;
                self.key.make(cut.into_iter(), &mut pair.key)?;
                parts
            }
        };
        let mut rest = Vec::new();
        let parts = match value {
            ValueFrom::Whole => vec![line],
            ValueFrom::Rest => {
                rest_of(line, taken, &mut rest);
                vec![&rest[..]]
            }
            ValueFrom::Parts(parts) => cut(line, parts)?,
        };
        self.value.make(parts.into_iter(), &mut pair.value)
    }
}

fn cut<'a>(line: &'a [u8], ranges: &[Range<usize>]) -> Result<Vec<&'a [u8]>, String> {
    let one = |range: &Range<usize>| {
        line.get(range.clone()).ok_or_else(|| {
            format!(
                "the key or value needs the bytes {}..{}, and the line has {}",
                range.start,
                range.end,
                line.len()
            )
        })
    };
    ranges.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Read, all, pair};
    use super::*;

    fn lines() -> Lines {
        Lines {
            parts: None,
            key: Maker::plain(b""),
            value: Maker::plain(b""),
            limit: 1 << 20,
        }
    }

    fn read(text: &[u8]) -> Vec<Read> {
        let found = all(&mut lines(), text, 1 << 16);
        // Small buffers, so that lines lie across their ends.
        for buffer in [1, 2, 3, 7] {
            assert_eq!(all(&mut lines(), text, buffer), found);
        }
        found
    }

    #[test]
    fn lines_with_every_kind_of_end() {
        assert_eq!(read(b""), []);
        assert_eq!(
            read(b"one\ntwo\r\n\nlast"),
            [
                pair(b"one", b"1"),
                pair(b"two", b"2"),
                pair(b"", b"3"),
                pair(b"last", b"4")
            ]
        );
        assert_eq!(read(b"\xff\0\n"), [pair(b"\xff\0", b"1")]);
        // A carriage return that does not end a line is an ordinary byte.
        assert_eq!(read(b"a\rb\r"), [pair(b"a\rb\r", b"1")]);
    }

    #[test]
    fn the_longest_key_fits_and_a_longer_one_does_not() {
        for end in [&b""[..], b"\n", b"\r\n"] {
            let longest = vec![b'x'; MAX_KEY_BYTES];
            let found = all(&mut lines(), &[&longest, end].concat(), 1000);
            assert_eq!(found, [pair(&longest, b"1")], "{end:?}");
        }
        for extra in [1, 2, 3, 1000] {
            let long = vec![b'x'; MAX_KEY_BYTES + extra];
            for end in [&b"\n"[..], b"\r\n"] {
                let text = [&b"a\n"[..], &long, end, b"next"].concat();
                let found = all(&mut lines(), &text, 1000);
                let bad = found[1].as_ref().unwrap_err();
                assert_eq!((bad.record, bad.line, bad.offset), (2, Some(2), 2));
                assert!(
                    bad.what.contains("65535") && bad.what.contains(&(65_535 + extra).to_string()),
                    "{}",
                    bad.what
                );
                assert_eq!(found[2..], [pair(b"next", b"3")], "{extra} {end:?}");
            }
        }
    }

    #[test]
    fn keys_from_bytes_and_numbers() {
        let mut by = lines();
        by.parts = Some((KeyFrom::Parts(vec![2..4, 0..1]), ValueFrom::Rest));
        by.key = Maker::plain(b"-");
        let found = all(&mut by, b"abcde\nabcd\nabc\n", 4);
        assert_eq!(found[..2], [pair(b"cd-a", b"be"), pair(b"cd-a", b"b")]);
        assert!(found[2].as_ref().unwrap_err().what.contains("2..4"));
        by.parts = Some((KeyFrom::Number, ValueFrom::Rest));
        assert_eq!(
            all(&mut by, b"x\ny", 4),
            [pair(b"000000000001", b"x"), pair(b"000000000002", b"y")]
        );
        // The limit of records also applies to lines whose key is the whole line.
        for parts in [by.parts.take(), None] {
            let mut limited = Lines {
                parts,
                limit: 100,
                ..lines()
            };
            let found = all(&mut limited, &[b'x'; 101], 4);
            assert!(found[0].as_ref().unwrap_err().what.contains("--max-record"));
            assert!(all(&mut limited, &[b'x'; 100], 4)[0].is_ok());
        }
    }
}

//! Lines: the whole line is the key, its number in the input is the value.

use std::io::{self, BufRead, Read, Write};

use siltstone::batch::MAX_KEY_BYTES;

use super::{BadRecord, Pair, Records, Step, key_too_long};

/// See the module. A line ends with a line feed or with the input; a carriage return before the line feed does not belong to it.
pub struct Lines<R> {
    input: R,
    number: u64,
}

impl<R: BufRead> Lines<R> {
    /// The lines of `input`.
    pub fn new(input: R) -> Lines<R> {
        Lines { input, number: 0 }
    }

    /// Reads to behind the next line feed; gives the bytes before it.
    fn skip_line(&mut self) -> io::Result<u64> {
        let mut skipped = 0;
        loop {
            let available = match self.input.fill_buf() {
                Ok(available) => available,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let (used, done) = match available.iter().position(|b| *b == b'\n') {
                Some(at) => (at + 1, true),
                None => (available.len(), available.is_empty()),
            };
            self.input.consume(used);
            skipped += used as u64;
            if done {
                return Ok(skipped - u64::from(used > 0));
            }
        }
    }
}

impl<R: BufRead> Records for Lines<R> {
    fn next(&mut self, pair: &mut Pair) -> io::Result<Step> {
        pair.key.clear();
        // Room for a line end behind the longest key.
        let limit = MAX_KEY_BYTES as u64 + 2;
        if (&mut self.input)
            .take(limit)
            .read_until(b'\n', &mut pair.key)?
            == 0
        {
            return Ok(Step::End);
        }
        self.number += 1;
        let mut rest = 0;
        if pair.key.last() == Some(&b'\n') {
            pair.key.pop();
            if pair.key.last() == Some(&b'\r') {
                pair.key.pop();
            }
        } else if pair.key.len() as u64 == limit {
            rest = self.skip_line()?;
        }
        let len = pair.key.len() as u64 + rest;
        if len > MAX_KEY_BYTES as u64 {
            let what = key_too_long(len);
            return Ok(Step::Bad(BadRecord {
                record: self.number,
                line: Some(self.number),
                what,
            }));
        }
        pair.value.clear();
        write!(pair.value, "{}", self.number)?;
        Ok(Step::Record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Read, all};
    use super::*;

    fn read(text: &[u8]) -> Vec<Read> {
        // A small buffer, so that lines lie across its end.
        all(&mut Lines::new(io::BufReader::with_capacity(3, text)))
    }

    fn pair(key: &[u8], number: u64) -> Read {
        Ok((key.to_vec(), number.to_string().into_bytes()))
    }

    #[test]
    fn lines_with_every_kind_of_end() {
        assert_eq!(read(b""), []);
        assert_eq!(
            read(b"one\ntwo\r\n\nlast"),
            [
                pair(b"one", 1),
                pair(b"two", 2),
                pair(b"", 3),
                pair(b"last", 4)
            ]
        );
        assert_eq!(read(b"\xff\0\n"), [pair(b"\xff\0", 1)]);
        // A carriage return that ends no line is a byte as any other.
        assert_eq!(read(b"a\rb\r"), [pair(b"a\rb\r", 1)]);
    }

    #[test]
    fn the_longest_key_fits_and_a_longer_one_does_not() {
        for end in [&b""[..], b"\n", b"\r\n"] {
            let longest = vec![b'x'; MAX_KEY_BYTES];
            let found = read(&[&longest, end].concat());
            assert_eq!(found, [pair(&longest, 1)], "{end:?}");
        }
        for extra in [1, 2, 3, 1000] {
            let long = vec![b'x'; MAX_KEY_BYTES + extra];
            for end in [&b"\n"[..], b"\r\n"] {
                let found = read(&[&long, end, b"next"].concat());
                let bad = found[0].as_ref().unwrap_err();
                assert_eq!((bad.record, bad.line), (1, Some(1)));
                assert!(
                    bad.what.contains("65535") && bad.what.contains("65"),
                    "{}",
                    bad.what
                );
                assert_eq!(found[1..], [pair(b"next", 2)], "{extra} {end:?}");
            }
        }
    }
}

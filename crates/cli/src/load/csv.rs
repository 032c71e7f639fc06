//! Comma-separated values as RFC 4180 has them: quotes, doubled quotes, delimiters and line breaks within quotes.
//!
//! The first column, unquoted, is the key; the rest of the record *as it stands* in the input, without its line end, is the value: it
//! can be taken apart again by any reader of CSV, and no byte is lost. Own code because of that, and because the usual readers take
//! an input that ends inside quotes, as torn files do, for a good record.
//!
//! Lenient where no reader could err: line ends may be line feeds alone, records may differ in their columns, empty lines are left
//! out, a quote inside an unquoted field is a quote, a byte order mark at the start is left out.

use std::io::{self, BufRead, Chain, Cursor, Read};

use siltstone::batch::MAX_KEY_BYTES;

use super::{BadRecord, MAX_RECORD_BYTES, Pair, Records, Step, key_too_long};

#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// At the start of a field.
    Start,
    /// In a field without quotes.
    Plain,
    /// Within quotes.
    Quoted,
    /// Behind a quote within quotes: its end, or the first half of a doubled one.
    AfterQuote,
    /// Behind a closing quote and a carriage return: only a line feed may follow.
    BeforeLineFeed,
    /// In a record that is bad already: on to its line end.
    Bad,
}

/// Follows the bytes of one record.
struct Scanner {
    delimiter: u8,
    /// The present line, from 1.
    line: u64,
    state: State,
    /// The record's bytes so far, quotes included.
    raw: Vec<u8>,
    /// Where the first field ends in them; none while it is read.
    first_end: Option<usize>,
    /// The line of the last opening quote.
    quote_line: u64,
    bad: Option<String>,
}

impl Scanner {
    fn begin(&mut self) {
        self.state = State::Start;
        self.raw.clear();
        self.first_end = None;
        self.bad = None;
    }

    fn spoil(&mut self, what: String) {
        self.state = State::Bad;
        self.bad = Some(what);
        self.raw = Vec::new();
    }

    /// Takes bytes of the record off `chunk`: how many, and whether the record ended with them.
    fn scan(&mut self, chunk: &[u8]) -> (usize, bool) {
        for (i, &byte) in chunk.iter().enumerate() {
            match (self.state, byte) {
                (State::Quoted, b'"') => self.state = State::AfterQuote,
                (State::Quoted, _) => self.line += u64::from(byte == b'\n'),
                (_, b'\n') => {
                    self.line += 1;
                    if self.state != State::Bad {
                        self.raw.extend_from_slice(&chunk[..i]);
                    }
                    return (i + 1, true);
                }
                (State::Bad, _) => {}
                (State::Start | State::AfterQuote, b'"') => {
                    if self.state == State::Start {
                        self.quote_line = self.line;
                    }
                    self.state = State::Quoted;
                }
                (State::Start | State::Plain | State::AfterQuote, _) if byte == self.delimiter => {
                    self.state = State::Start;
                    self.first_end.get_or_insert(self.raw.len() + i);
                }
                (State::Start | State::Plain, _) => self.state = State::Plain,
                (State::AfterQuote, b'\r') => self.state = State::BeforeLineFeed,
                (State::AfterQuote | State::BeforeLineFeed, _) => {
                    self.spoil(
                        "text follows a closing quote; a quote within quotes is written twice"
                            .to_string(),
                    );
                }
            }
        }
        if self.state != State::Bad {
            self.raw.extend_from_slice(chunk);
        }
        if self.raw.len() > MAX_RECORD_BYTES {
            let line = self.quote_line;
            self.spoil(format!(
                "it has more than {MAX_RECORD_BYTES} bytes; was a quote in line {line} left open?"
            ));
        }
        (chunk.len(), false)
    }
}

/// See the module.
pub struct Csv<R> {
    input: Chain<Cursor<Vec<u8>>, R>,
    scanner: Scanner,
    /// The value is the whole record.
    whole: bool,
    record: u64,
}

impl<R: BufRead> Csv<R> {
    /// The records of `input`. `whole`: the value is all of the record, else what follows its first column.
    ///
    /// # Errors
    /// Those of the input.
    pub fn new(mut input: R, delimiter: u8, whole: bool) -> io::Result<Csv<R>> {
        const MARK: &[u8] = b"\xef\xbb\xbf";
        let mut start = Vec::new();
        (&mut input)
            .take(MARK.len() as u64)
            .read_to_end(&mut start)?;
        if start == MARK {
            start.clear();
        }
        let scanner = Scanner {
            delimiter,
            line: 1,
            state: State::Start,
            raw: Vec::new(),
            first_end: None,
            quote_line: 1,
            bad: None,
        };
        Ok(Csv {
            input: Cursor::new(start).chain(input),
            scanner,
            whole,
            record: 0,
        })
    }

    /// Reads a record into the scanner; false at the end of the input.
    fn read(&mut self) -> io::Result<bool> {
        self.scanner.begin();
        let mut any = false;
        loop {
            let chunk = match self.input.fill_buf() {
                Ok(chunk) => chunk,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            if chunk.is_empty() {
                if self.scanner.state == State::Quoted {
                    let line = self.scanner.quote_line;
                    self.scanner
                        .spoil(format!("a quote that opens in line {line} is never closed"));
                }
                return Ok(any);
            }
            any = true;
            let (used, ended) = self.scanner.scan(chunk);
            self.input.consume(used);
            if ended {
                return Ok(true);
            }
        }
    }
}

/// Appends a field without its quotes.
fn unquote(field: &[u8], out: &mut Vec<u8>) {
    match field
        .strip_prefix(b"\"")
        .and_then(|f| f.strip_suffix(b"\""))
    {
        Some(quoted) => {
            // What lies between the halves of doubled quotes; the state machine has made sure that they are.
            let mut parts = quoted.split(|b| *b == b'"');
            out.extend_from_slice(parts.next().unwrap_or_default());
            while let (Some(_), Some(after)) = (parts.next(), parts.next()) {
                out.push(b'"');
                out.extend_from_slice(after);
            }
        }
        None => out.extend_from_slice(field),
    }
}

impl<R: BufRead> Records for Csv<R> {
    fn next(&mut self, pair: &mut Pair) -> io::Result<Step> {
        let line = loop {
            let line = self.scanner.line;
            if !self.read()? {
                return Ok(Step::End);
            }
            if self.scanner.raw.last() == Some(&b'\r') {
                self.scanner.raw.pop();
            }
            if !self.scanner.raw.is_empty() || self.scanner.bad.is_some() {
                break line;
            }
        };
        self.record += 1;
        let bad = |what| {
            Ok(Step::Bad(BadRecord {
                record: self.record,
                line: Some(line),
                what,
            }))
        };
        if let Some(what) = self.scanner.bad.take() {
            return bad(what);
        }
        let raw = &self.scanner.raw[..];
        let first_end = self.scanner.first_end.unwrap_or(raw.len());
        pair.key.clear();
        unquote(&raw[..first_end], &mut pair.key);
        if pair.key.len() > MAX_KEY_BYTES {
            return bad(key_too_long(pair.key.len()));
        }
        pair.value.clear();
        pair.value.extend_from_slice(if self.whole {
            raw
        } else {
            raw.get(first_end + 1..).unwrap_or_default()
        });
        Ok(Step::Record)
    }
}

#[cfg(test)]
mod tests {
    use super::super::testing::{Read, all};
    use super::*;

    fn read_by(buffer: usize, text: &[u8]) -> Vec<Read> {
        let input = io::BufReader::with_capacity(buffer, text);
        all(&mut Csv::new(input, b',', false).unwrap())
    }

    fn read(text: &[u8]) -> Vec<Read> {
        let found = read_by(1 << 16, text);
        for buffer in [1, 2, 3, 7] {
            assert_eq!(read_by(buffer, text), found, "buffer of {buffer}");
        }
        found
    }

    fn pair(key: &[u8], value: &[u8]) -> Read {
        Ok((key.to_vec(), value.to_vec()))
    }

    #[test]
    fn plain_records() {
        assert_eq!(read(b""), []);
        assert_eq!(
            read(b"a,b,c\r\nd\n\n\r\ne,\nf"),
            [
                pair(b"a", b"b,c"),
                pair(b"d", b""),
                pair(b"e", b""),
                pair(b"f", b"")
            ]
        );
        assert_eq!(read(b",x\n"), [pair(b"", b"x")]);
        assert_eq!(read(b"a\"b,c\"d\n"), [pair(b"a\"b", b"c\"d")]);
        assert_eq!(read(b"\xff,\0\n"), [pair(b"\xff", b"\0")]);
    }

    #[test]
    fn quoted_records() {
        assert_eq!(read(b"\"a,b\",c\n"), [pair(b"a,b", b"c")]);
        assert_eq!(
            read(b"\"say \"\"hi\"\"\",\"x\"\"y\"\n"),
            [pair(b"say \"hi\"", b"\"x\"\"y\"")]
        );
        assert_eq!(
            read(b"\"two\r\nlines\",\"and\ntwo\"\r\nnext,1"),
            [pair(b"two\r\nlines", b"\"and\ntwo\""), pair(b"next", b"1")]
        );
        assert_eq!(
            read(b"\"\",x\n\"\"\"\",y\n\"\"\"a\"\r\n"),
            [pair(b"", b"x"), pair(b"\"", b"y"), pair(b"\"a", b"")]
        );
    }

    #[test]
    fn a_byte_order_mark_is_left_out() {
        assert_eq!(read(b"\xef\xbb\xbf\"a\",b\n"), [pair(b"a", b"b")]);
        assert_eq!(read(b"\xef\xbb"), [pair(b"\xef\xbb", b"")]);
        assert_eq!(read(b"\xef\xbb\xbf"), []);
    }

    #[test]
    fn bad_records_are_named_and_reading_goes_on() {
        let found = read(b"a,1\n\"b\"x,2\nc,3\n");
        let bad = found[1].as_ref().unwrap_err();
        assert_eq!((bad.record, bad.line), (2, Some(2)));
        assert!(bad.what.contains("closing quote"), "{}", bad.what);
        assert_eq!(
            (&found[0], &found[2]),
            (&pair(b"a", b"1"), &pair(b"c", b"3"))
        );

        let found = read(b"a,\"x\ny\"\n\"torn,\nmore\n");
        let bad = found[1].as_ref().unwrap_err();
        assert_eq!(
            bad.to_string(),
            "record 2 (line 3): a quote that opens in line 3 is never closed"
        );
        assert_eq!(found.len(), 2);

        let long = [&vec![b'k'; MAX_KEY_BYTES + 1][..], b",v\n"].concat();
        let found = read(&[&long[..], b"z,9\n"].concat());
        assert!(found[0].as_ref().unwrap_err().what.contains("65536"));
        assert_eq!(found[1], pair(b"z", b"9"));
        // Quotes count double in the input and once in the key.
        let fits = [b"\"", &b"\"\"".repeat(MAX_KEY_BYTES)[..], b"\",v"].concat();
        assert_eq!(
            read_by(1 << 16, &fits),
            [pair(&b"\"".repeat(MAX_KEY_BYTES), b"v")]
        );
    }

    /// Writes fields as RFC 4180 asks.
    fn write(fields: &[Vec<u8>]) -> Vec<u8> {
        let quoted = fields.iter().map(|field| {
            if field.iter().any(|b| b",\"\r\n".contains(b)) || fields.len() == 1 {
                [
                    b"\"",
                    &field
                        .iter()
                        .flat_map(|b| [*b].repeat(1 + usize::from(*b == b'"')))
                        .collect::<Vec<_>>()[..],
                    b"\"",
                ]
                .concat()
            } else {
                field.clone()
            }
        });
        quoted.collect::<Vec<_>>().join(&b','.clone())
    }

    #[test]
    fn what_was_written_is_read() {
        let mut seed = 1u64;
        let mut draw = |n: u64| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 33) % n
        };
        for round in 0..500 {
            let (mut text, mut expected) = (Vec::new(), Vec::new());
            for _ in 0..draw(6) {
                let fields: Vec<Vec<u8>> = (0..1 + draw(4))
                    .map(|_| {
                        (0..draw(6))
                            .map(|_| b"ab,\"\r\n"[draw(6) as usize])
                            .collect()
                    })
                    .collect();
                let record = write(&fields);
                text.extend(&record);
                text.extend(if draw(2) == 0 { &b"\r\n"[..] } else { b"\n" });
                let rest = if fields.len() == 1 {
                    Vec::new()
                } else {
                    write(&fields[1..])
                };
                // A single field is always quoted above, so that an empty one is no empty line.
                expected.push((
                    fields[0].clone(),
                    if fields.len() == 2 {
                        write_one(&fields[1])
                    } else {
                        rest
                    },
                ));
            }
            let found: Vec<_> = read_by(1 + round % 5, &text)
                .into_iter()
                .map(Result::unwrap)
                .collect();
            assert_eq!(
                found,
                expected,
                "round {round}: {:?}",
                String::from_utf8_lossy(&text)
            );
        }
    }

    fn write_one(field: &[u8]) -> Vec<u8> {
        let both = write(&[Vec::new(), field.to_vec()]);
        both[1..].to_vec()
    }
}

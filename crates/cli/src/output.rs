//! How bytes look: text where they are text, escapes where they are not; and numbers for people.
//!
//! Invariant: [`parse_key`] takes back what [`push_text`] prints.

use std::fmt;
use std::io::{self, StdoutLock, Write};
use std::time::Duration;

use crate::failure::Failure;

/// Standard output, buffered whole: [`Out::finish`] must be called.
pub struct Out {
    out: io::BufWriter<StdoutLock<'static>>,
    line: Vec<u8>,
}

impl Out {
    /// Standard output.
    pub fn new() -> Out {
        Out {
            out: io::BufWriter::with_capacity(64 << 10, io::stdout().lock()),
            line: Vec::new(),
        }
    }

    /// Writes bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        self.out.write_all(bytes).map_err(|e| Failure::output(&e))
    }

    /// Writes a line: key, and value after a tab.
    pub fn pair(
        &mut self,
        key: Option<&[u8]>,
        value: Option<&[u8]>,
        hex: bool,
    ) -> Result<(), Failure> {
        self.line.clear();
        let push = if hex { push_hex } else { push_text };
        if let Some(key) = key {
            push(&mut self.line, key);
        }
        if let Some(value) = value {
            if key.is_some() {
                self.line.push(b'\t');
            }
            push(&mut self.line, value);
        }
        self.line.push(b'\n');
        self.out
            .write_all(&self.line)
            .map_err(|e| Failure::output(&e))
    }

    /// Writes text.
    pub fn text(&mut self, text: fmt::Arguments<'_>) -> Result<(), Failure> {
        self.out.write_fmt(text).map_err(|e| Failure::output(&e))
    }

    /// Hands everything over.
    pub fn finish(mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|e| Failure::output(&e))
    }
}

/// Writes a formatted line to an [`Out`].
macro_rules! outln {
    ($out:expr) => { $out.text(format_args!("\n")) };
    ($out:expr, $($arg:tt)*) => { $out.text(format_args!("{}\n", format_args!($($arg)*))) };
}
pub(crate) use outln;

/// Appends bytes as hexadecimal digits.
pub fn push_hex(line: &mut Vec<u8>, bytes: &[u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for byte in bytes {
        line.extend([
            DIGITS[usize::from(byte >> 4)],
            DIGITS[usize::from(byte & 15)],
        ]);
    }
}

fn push_escape(line: &mut Vec<u8>, byte: u8) {
    match byte {
        b'\\' => line.extend(b"\\\\"),
        b'\t' => line.extend(b"\\t"),
        b'\n' => line.extend(b"\\n"),
        _ => {
            line.extend(b"\\x");
            push_hex(line, &[byte]);
        }
    }
}

/// Appends bytes as text. What is UTF-8 is printed as it is but for control characters; in anything else only ASCII is.
pub fn push_text(line: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => {
            for c in text.chars() {
                let mut buffer = [0; 4];
                let encoded = c.encode_utf8(&mut buffer).as_bytes();
                if c == '\\' || c.is_control() {
                    encoded.iter().for_each(|byte| push_escape(line, *byte));
                } else {
                    line.extend(encoded);
                }
            }
        }
        Err(_) => {
            for &byte in bytes {
                match byte {
                    b'\\' => push_escape(line, byte),
                    0x20..=0x7e => line.push(byte),
                    _ => push_escape(line, byte),
                }
            }
        }
    }
}

/// The bytes of a key on the command line.
pub fn parse_key(text: &str, hex: bool) -> Result<Vec<u8>, Failure> {
    let wrong = |why: &str| Failure::Usage(format!("the key `{text}` cannot be read: {why}"));
    let digit = |byte: u8| (byte as char).to_digit(16).map(|d| d as u8);
    let byte_of = |pair: &[u8]| match pair {
        [high, low] => Some(digit(*high)? << 4 | digit(*low)?),
        _ => None,
    };
    if hex {
        return text
            .as_bytes()
            .chunks(2)
            .map(|pair| {
                byte_of(pair).ok_or_else(|| wrong("expected an even number of hexadecimal digits"))
            })
            .collect();
    }
    let mut key = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first != b'\\' {
            key.push(first);
            continue;
        }
        let (byte, used) = match after {
            [b'\\', ..] => (b'\\', 1),
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'x', high, low, ..] => match byte_of(&[*high, *low]) {
                Some(byte) => (byte, 3),
                None => return Err(wrong("\\x wants two hexadecimal digits")),
            },
            _ => {
                return Err(wrong(
                    "a backslash is written \\\\, a byte \\xNN; --hex takes hexadecimal digits",
                ));
            }
        };
        key.push(byte);
        rest = &after[used..];
    }
    Ok(key)
}

/// A number with its digits in groups.
pub fn count(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `n things`, or `1 thing`.
pub fn plural(n: u64, thing: &str) -> String {
    format!("{} {thing}{}", count(n), if n == 1 { "" } else { "s" })
}

/// Bytes in a unit that fits.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if n < 1024 {
        return format!("{n} B");
    }
    let mut value = n as f64 / 1024.0;
    let mut unit = 0;
    while value >= 999.95 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    format!("{value:.1} {}", UNITS[unit])
}

/// Nanoseconds in a unit that fits.
pub fn nanos(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} ns"),
        1_000..1_000_000 => format!("{:.1} us", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} ms", n as f64 / 1e6),
        _ => format!("{:.2} s", n as f64 / 1e9),
    }
}

/// A duration in a unit that fits.
pub fn duration(d: Duration) -> String {
    nanos(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX))
}

/// `n` a second, in words that fit.
pub fn rate(n: u64, time: Duration) -> String {
    let rate = n as f64 / time.as_secs_f64().max(1e-9);
    match rate {
        r if r >= 1e6 => format!("{:.2} million", r / 1e6),
        r => count(r as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut line = Vec::new();
        push_text(&mut line, bytes);
        String::from_utf8(line).unwrap()
    }

    #[test]
    fn text_is_text_and_bytes_are_escaped() {
        assert_eq!(text("Grüße, 世界".as_bytes()), "Grüße, 世界");
        assert_eq!(text(b"a\tb\nc\\d\0"), "a\\tb\\nc\\\\d\\x00");
        assert_eq!(text(b"\xffab\xc3"), "\\xffab\\xc3");
        // A control character beyond ASCII.
        assert_eq!(text("\u{85}".as_bytes()), "\\xc2\\x85");
    }

    #[test]
    fn keys_come_back_as_they_were_printed() {
        let mut seed = 7u64;
        for round in 0..2_000 {
            let mut key = Vec::new();
            for _ in 0..round % 40 {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                // Mostly ASCII, so that both branches are met.
                key.push(if seed >> 60 == 0 {
                    (seed >> 40) as u8
                } else {
                    (seed >> 40) as u8 & 0x7f
                });
            }
            assert_eq!(parse_key(&text(&key), false).unwrap(), key, "round {round}");
            let mut hex = Vec::new();
            push_hex(&mut hex, &key);
            assert_eq!(
                parse_key(std::str::from_utf8(&hex).unwrap(), true).unwrap(),
                key
            );
        }
        for wrong in ["\\", "\\x1", "\\xzz", "\\q"] {
            assert!(parse_key(wrong, false).is_err(), "{wrong}");
        }
        for wrong in ["1", "zz", "012", "é"] {
            assert!(parse_key(wrong, true).is_err(), "{wrong}");
        }
    }

    #[test]
    fn numbers_for_people() {
        assert_eq!(
            [count(0), count(999), count(1000), count(1234567)],
            ["0", "999", "1,000", "1,234,567"]
        );
        assert_eq!(
            [bytes(1023), bytes(1024), bytes(1 << 30)],
            ["1023 B", "1.0 KiB", "1.0 GiB"]
        );
        assert_eq!(bytes((1 << 20) - 1), "1.0 MiB");
        assert_eq!(
            [nanos(999), nanos(1_500), nanos(2_000_000)],
            ["999 ns", "1.5 us", "2.0 ms"]
        );
        assert_eq!(plural(1, "table"), "1 table");
        assert_eq!(plural(2000, "table"), "2,000 tables");
    }
}

//! Makes the key and the value of a record from its parts.
//!
//! Invariant: a record that lacks a part is a bad record; nothing is filled in.

use std::borrow::Cow;
use std::ops::Range;

use crate::form::{Form, parse_hex, unescape};

/// How the parts of a key or value become its bytes.
#[derive(Clone, Debug)]
pub struct Maker {
    /// The form of the parts.
    pub form: Form,
    /// The text between the parts, if they have no form of their own.
    pub join: Vec<u8>,
}

impl Maker {
    /// Uses the parts unchanged, with `join` between them.
    pub fn plain(join: &[u8]) -> Maker {
        Maker {
            form: Form::Text,
            join: join.to_vec(),
        }
    }

    /// Whether parts are used unchanged.
    pub fn is_plain(&self) -> bool {
        matches!(self.form, Form::Text | Form::Json)
    }

    /// Appends the bytes that the parts make.
    ///
    /// # Errors
    /// The parts do not fit the form.
    pub fn make<'a>(
        &self,
        mut parts: impl ExactSizeIterator<Item = &'a [u8]>,
        bytes: &mut Vec<u8>,
    ) -> Result<(), String> {
        if let Form::Layout(layout) = &self.form {
            return layout.encode(parts, false, bytes);
        }
        // One part is the most common case.
        let mut next = parts.next();
        while let Some(part) = next {
            match &self.form {
                Form::Hex => bytes.extend(parse_hex(part)?),
                Form::Base64 => {
                    let text = std::str::from_utf8(part).unwrap_or("?");
                    bytes.extend(self.form.parse(text, false)?);
                }
                Form::Text | Form::Json | Form::Layout(_) => bytes.extend_from_slice(part),
            }
            next = parts.next();
            if next.is_some() {
                bytes.extend_from_slice(&self.join);
            }
        }
        Ok(())
    }

    /// Appends the number of a record: with twelve digits, so that numbers sort, or in the form.
    ///
    /// # Errors
    /// It does not fit the form.
    pub fn number(&self, number: u64, bytes: &mut Vec<u8>) -> Result<(), String> {
        let text = match self.form {
            Form::Layout(_) => number.to_string(),
            _ => format!("{number:012}"),
        };
        self.make([text.as_bytes()].into_iter(), bytes)
    }
}

/// The parts of a record, counted from 0, that are its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum KeyFrom<T> {
    /// The record's number.
    Number,
    /// These parts, in this order.
    Parts(Vec<T>),
}

/// The parts of a record that are its value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueFrom<T> {
    /// The record, unchanged.
    Whole,
    /// Everything but the key.
    Rest,
    /// These parts.
    Parts(Vec<T>),
}

/// Reads `--key`: `number`, or parts with commas between them.
///
/// # Errors
/// A part is impossible; the error says which.
pub fn key_from<T>(
    text: &str,
    part: &dyn Fn(&str) -> Result<T, String>,
) -> Result<KeyFrom<T>, String> {
    if text == "number" {
        return Ok(KeyFrom::Number);
    }
    Ok(KeyFrom::Parts(all_parts(text, part)?))
}

/// Reads `--value`: `whole`, `rest`, or parts with commas between them.
///
/// # Errors
/// A part is impossible; the error says which.
pub fn value_from<T>(
    text: &str,
    part: &dyn Fn(&str) -> Result<T, String>,
) -> Result<ValueFrom<T>, String> {
    Ok(match text {
        "whole" => ValueFrom::Whole,
        "rest" => ValueFrom::Rest,
        _ => ValueFrom::Parts(all_parts(text, part)?),
    })
}

fn all_parts<T>(text: &str, part: &dyn Fn(&str) -> Result<T, String>) -> Result<Vec<T>, String> {
    parts(text)?.iter().map(|text| part(text)).collect()
}

/// The parts of `--key` or `--value`, which are separated by commas. As in CSV, a part that
/// contains a comma or begins with a quote is written in quotes, in which a quote is written twice.
///
/// # Errors
/// A quote does not close at the end of its part.
pub fn parts(text: &str) -> Result<Vec<Cow<'_, str>>, String> {
    let mut parts = Vec::new();
    let mut rest = Some(text);
    while let Some(text) = rest {
        let Some(quoted) = text.strip_prefix('"') else {
            let (part, after) = match text.split_once(',') {
                Some((part, after)) => (part, Some(after)),
                None => (text, None),
            };
            parts.push(Cow::Borrowed(part));
            rest = after;
            continue;
        };
        let mut part = String::new();
        let mut left = quoted;
        loop {
            let Some((before, after)) = left.split_once('"') else {
                return Err(format!(
                    "the quote at the beginning of `{text}` does not close"
                ));
            };
            part.push_str(before);
            left = after;
            match left.strip_prefix('"') {
                Some(after) => {
                    part.push('"');
                    left = after;
                }
                None => break,
            }
        }
        rest = left.strip_prefix(',');
        if rest.is_none() && !left.is_empty() {
            return Err(format!(
                "`{left}` follows a closing quote; a quote within quotes is written twice"
            ));
        }
        parts.push(Cow::Owned(part));
    }
    Ok(parts)
}

/// A range of bytes: `A..B`, without B.
///
/// # Errors
/// The text is not a range; the error says what is expected.
pub fn byte_range(text: &str) -> Result<Range<usize>, String> {
    let wrong = || {
        format!("`{text}` is not a range of bytes: expected A..B with A below B, for example 0..16")
    };
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
    let range = number(start)?..number(end)?;
    if range.is_empty() {
        Err(wrong())
    } else {
        Ok(range)
    }
}

/// Whether `text` selects a column by its number, from 1, and not by its name.
pub fn is_number(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit())
}

/// A column, counted from 0: by its number from 1, or by its name in the header.
///
/// # Errors
/// There is no such column; the error lists the columns.
pub fn column(text: &str, names: Option<&[Vec<u8>]>) -> Result<usize, String> {
    if is_number(text) {
        return match text.parse::<usize>() {
            Ok(number @ 1..=1_000_000) => Ok(number - 1),
            _ => Err(format!("there is no column {text}; columns count from 1")),
        };
    }
    let mut name = Vec::new();
    unescape(text.as_bytes(), &mut name)?;
    let names = names.unwrap_or_default();
    let mut found = names.iter().enumerate().filter(|(_, n)| **n == name);
    match (found.next(), found.next()) {
        (Some((at, _)), None) => Ok(at),
        (Some(_), Some(_)) => Err(format!(
            "two columns are called `{text}`; give the number of the column instead"
        )),
        _ => {
            let there: Vec<_> = names
                .iter()
                .take(20)
                .map(|n| n.escape_ascii().to_string())
                .collect();
            Err(format!(
                "there is no column `{text}`; there are {}{}",
                there.join(", "),
                if names.len() > there.len() {
                    ", ..."
                } else {
                    ""
                }
            ))
        }
    }
}

/// The record with this number lacks a column.
pub fn lacks(column: usize, found: usize, number: u64) -> String {
    let mut text = format!("it has no column {}, only {found}", column + 1);
    if number == 1 {
        text.push_str(
            "; this is the first record, so compare --key, --value and --delimiter with the input",
        );
    }
    text
}

/// The ranges that remain when the parts `taken` are removed from `all` bytes.
pub fn rest_of(all: &[u8], taken: &[Range<usize>], rest: &mut Vec<u8>) {
    let mut sorted: Vec<_> = taken.to_vec();
    sorted.sort_by_key(|r| r.start);
    let mut from = 0;
    for range in sorted {
        if let Some(between) = all.get(from..range.start) {
            rest.extend_from_slice(between);
        }
        from = from.max(range.end);
    }
    rest.extend_from_slice(all.get(from..).unwrap_or_default());
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn byte_ranges() {
        assert_eq!(byte_range("0..16"), Ok(0..16));
        for wrong in [
            "",
            "3",
            "..",
            "4..4",
            "5..4",
            "a..b",
            "0..-1",
            "0..99999999999999999999999",
        ] {
            assert!(byte_range(wrong).is_err(), "{wrong}");
        }
        let mut rest = Vec::new();
        rest_of(b"0123456789", &[7..9, 2..4], &mut rest);
        assert_eq!(rest, b"014569");
        rest.clear();
        rest_of(b"0123456789", &[0..3, 1..2, 9..10], &mut rest);
        assert_eq!(rest, b"345678");
    }

    #[test]
    fn parts_with_commas_stand_in_quotes() {
        for (text, expected) in [
            ("a,b", &["a", "b"][..]),
            ("", &[""]),
            ("a,", &["a", ""]),
            ("\"a,b\",c", &["a,b", "c"]),
            ("c,\"a \"\"b\"\", d\"", &["c", "a \"b\", d"]),
            ("\"\"", &[""]),
            ("a\"b", &["a\"b"]),
        ] {
            assert_eq!(parts(text).unwrap(), expected, "{text}");
        }
        for (wrong, word) in [("\"a,b", "does not close"), ("\"a\"b,c", "`b,c` follows")] {
            let said = parts(wrong).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn columns_by_name_and_number() {
        let names = [b"id".to_vec(), b"name".to_vec(), b"name".to_vec()];
        assert_eq!(column("2", None), Ok(1));
        assert_eq!(column("id", Some(&names)), Ok(0));
        for (wrong, word) in [
            ("0", "from 1"),
            ("name", "two columns"),
            ("age", "id, name"),
        ] {
            let said = column(wrong, Some(&names)).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
    }

    #[test]
    fn parts_are_joined_or_encoded() {
        let parts = [&b"12"[..], b"ff"];
        let make = |form: &str| {
            let mut bytes = Vec::new();
            let maker = Maker {
                form: Form::named(form).unwrap(),
                join: b"/".to_vec(),
            };
            maker.make(parts.into_iter(), &mut bytes).map(|()| bytes)
        };
        assert_eq!(make("text").unwrap(), b"12/ff");
        assert_eq!(make("hex").unwrap(), b"\x12/\xff");
        assert_eq!(make("a:u16be,b:bytes1").unwrap(), b"\x00\x0c\xff");
        assert!(make("a:u16be").unwrap_err().contains("2 fields"));
        assert!(make("a:u16be,b:u8").unwrap_err().contains("`ff`"));
        let mut bytes = Vec::new();
        Maker::plain(b"").number(7, &mut bytes).unwrap();
        assert_eq!(bytes, b"000000000007");
    }
}

//! How keys and values are given and printed: as text, hexadecimal digits, base64, JSON, or the
//! fields of a record layout.
//!
//! Invariant: [`Form::parse`] accepts what [`Form::push`] prints, except that the tabs between the
//! fields of a layout are commas on the command line.

pub mod layout;

use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

use crate::output::{push_hex, push_text};
use layout::Layout;

/// A form of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Form {
    /// Text, with `\xNN` for bytes that are not text.
    Text,
    /// Hexadecimal digits.
    Hex,
    /// Base64 with its padding.
    Base64,
    /// Text that is JSON: with `--json` it is printed unchanged and not in quotes.
    Json,
    /// Fields of fixed widths.
    Layout(Layout),
}

/// The form as it is given on the command line.
impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Text => f.write_str("text"),
            Form::Hex => f.write_str("hex"),
            Form::Base64 => f.write_str("base64"),
            Form::Json => f.write_str("json"),
            Form::Layout(layout) => layout.fmt(f),
        }
    }
}

impl Form {
    /// The form of this name, or the layout that it spells.
    ///
    /// # Errors
    /// It is neither; the error says why.
    pub fn named(name: &str) -> Result<Form, String> {
        Ok(match name {
            "text" => Form::Text,
            "hex" => Form::Hex,
            "base64" => Form::Base64,
            "json" => Form::Json,
            _ if name.contains(':') => Form::Layout(Layout::parse(name)?),
            _ => {
                return Err(
                    "expected text, hex, base64, json, or a layout such as id:u64be,energy:f32"
                        .to_string(),
                );
            }
        })
    }

    /// The bytes that are written in this form on the command line. If `partial`, the first fields
    /// of a layout are enough.
    ///
    /// # Errors
    /// They cannot be read; the error says why.
    pub fn parse(&self, text: &str, partial: bool) -> Result<Vec<u8>, String> {
        match self {
            Form::Text | Form::Json => parse_text(text),
            Form::Hex => parse_hex(text.as_bytes()),
            Form::Base64 => STANDARD
                .decode(text)
                .map_err(|e| format!("it is not base64: {e}")),
            Form::Layout(layout) => layout.parse_record(text, partial),
        }
    }

    /// The names of the columns that this form prints for bytes called `name`.
    pub fn columns<'a>(&'a self, name: &'a str) -> Vec<&'a str> {
        match self {
            Form::Layout(layout) => layout.names().collect(),
            _ => vec![name],
        }
    }

    /// Appends the bytes in this form; the fields of a layout with tabs between them.
    ///
    /// # Errors
    /// They do not fit the layout; the error says why.
    pub fn push(&self, line: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
        match self {
            Form::Text | Form::Json => push_text(line, bytes),
            Form::Hex => push_hex(line, bytes),
            Form::Base64 => push_base64(line, bytes),
            Form::Layout(layout) => {
                for (i, (field, bytes)) in layout.split(bytes)?.enumerate() {
                    if i > 0 {
                        line.push(b'\t');
                    }
                    field.push(line, bytes);
                }
            }
        }
        Ok(())
    }

    /// Appends the bytes as a JSON value. Bytes that are not text are the object `{"hex":"..."}`.
    ///
    /// # Errors
    /// They do not fit the layout, or are not JSON.
    pub fn push_json(&self, line: &mut Vec<u8>, bytes: &[u8]) -> Result<(), String> {
        match self {
            Form::Text => push_json_bytes(line, bytes),
            Form::Hex => {
                line.push(b'"');
                push_hex(line, bytes);
                line.push(b'"');
            }
            Form::Base64 => {
                line.push(b'"');
                push_base64(line, bytes);
                line.push(b'"');
            }
            Form::Json => {
                let raw = json(bytes).map_err(|why| format!("{why}; another form prints it"))?;
                // A line of output is one pair. Line ends can only be between tokens.
                line.extend(raw.get().bytes().map(|b| match b {
                    b'\n' | b'\r' => b' ',
                    b => b,
                }));
            }
            Form::Layout(layout) => {
                line.push(b'{');
                for (i, (field, bytes)) in layout.split(bytes)?.enumerate() {
                    if i > 0 {
                        line.push(b',');
                    }
                    push_json_text(line, &field.name);
                    line.push(b':');
                    field.push_json(line, bytes);
                }
                line.push(b'}');
            }
        }
        Ok(())
    }
}

fn push_base64(line: &mut Vec<u8>, bytes: &[u8]) {
    line.extend_from_slice(STANDARD.encode(bytes).as_bytes());
}

/// Bytes as JSON.
///
/// # Errors
/// They are not JSON; the error says where.
pub fn json(bytes: &[u8]) -> Result<&serde_json::value::RawValue, String> {
    serde_json::from_slice(bytes).map_err(|e| format!("it is not JSON: {e}"))
}

/// Appends text as a JSON string.
pub fn push_json_text(line: &mut Vec<u8>, text: &str) {
    // Neither serializing a string nor writing to a vector can fail.
    let _ = serde_json::to_writer(line, text);
}

/// Appends bytes as a JSON string if they are text, and otherwise as an object with their
/// hexadecimal digits.
pub fn push_json_bytes(line: &mut Vec<u8>, bytes: &[u8]) {
    match std::str::from_utf8(bytes) {
        Ok(text) => push_json_text(line, text),
        Err(_) => {
            line.extend_from_slice(b"{\"hex\":\"");
            push_hex(line, bytes);
            line.extend_from_slice(b"\"}");
        }
    }
}

fn byte_of(high: u8, low: u8) -> Option<u8> {
    let digit = |byte: u8| (byte as char).to_digit(16).map(|d| d as u8);
    Some(digit(high)? << 4 | digit(low)?)
}

/// The bytes of hexadecimal digits.
///
/// # Errors
/// They are not hexadecimal digits; the error says why.
pub fn parse_hex(text: &[u8]) -> Result<Vec<u8>, String> {
    text.chunks(2)
        .map(|pair| match pair {
            [high, low] => byte_of(*high, *low),
            _ => None,
        })
        .collect::<Option<_>>()
        .ok_or_else(|| "expected an even number of hexadecimal digits".to_string())
}

/// The bytes of text with escapes: `\\`, `\t`, `\n`, `\xNN`.
///
/// # Errors
/// An escape cannot be read; the error says which.
pub fn parse_text(text: &str) -> Result<Vec<u8>, String> {
    let mut bytes = Vec::with_capacity(text.len());
    unescape(text.as_bytes(), &mut bytes)?;
    Ok(bytes)
}

/// Appends the bytes that `escaped` means, like [`parse_text`].
///
/// # Errors
/// An escape cannot be read; the error says which.
pub fn unescape(escaped: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
    let mut rest = escaped;
    while let Some(at) = memchr::memchr(b'\\', rest) {
        bytes.extend_from_slice(&rest[..at]);
        rest = &rest[at + 1..];
        let (byte, used) = match rest {
            [b'\\', ..] => (b'\\', 1),
            [b't', ..] => (b'\t', 1),
            [b'n', ..] => (b'\n', 1),
            [b'x', digits @ ..] => match digits.first_chunk().and_then(|[h, l]| byte_of(*h, *l)) {
                Some(byte) => (byte, 3),
                None => return Err("\\x needs two hexadecimal digits".to_string()),
            },
            _ => {
                return Err("a backslash is written \\\\, a byte \\xNN".to_string());
            }
        };
        bytes.push(byte);
        rest = &rest[used..];
    }
    bytes.extend_from_slice(rest);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(form: &Form, bytes: &[u8]) -> String {
        let mut line = Vec::new();
        form.push(&mut line, bytes).unwrap();
        String::from_utf8(line).unwrap()
    }

    fn json(form: &Form, bytes: &[u8]) -> Result<String, String> {
        let mut line = Vec::new();
        form.push_json(&mut line, bytes)?;
        let text = String::from_utf8(line).unwrap();
        serde_json::from_str::<serde_json::Value>(&text).expect("what is printed is JSON");
        Ok(text)
    }

    #[test]
    fn what_is_printed_can_be_given() {
        let mut seed = 7u64;
        for round in 0..2_000 {
            let mut bytes = Vec::new();
            for _ in 0..round % 40 {
                seed = seed
                    .wrapping_mul(6364136223846793005)
                    .wrapping_add(1442695040888963407);
                // Mostly ASCII, so that both branches of the text form are met.
                bytes.push(if seed >> 60 == 0 {
                    (seed >> 40) as u8
                } else {
                    (seed >> 40) as u8 & 0x7f
                });
            }
            for form in [Form::Text, Form::Hex, Form::Base64] {
                let printed = text(&form, &bytes);
                assert_eq!(
                    form.parse(&printed, false).unwrap(),
                    bytes,
                    "round {round}: {printed}"
                );
                json(&form, &bytes).unwrap();
            }
        }
    }

    #[test]
    fn wrong_text_is_refused() {
        for wrong in ["\\", "\\x1", "\\xzz", "\\q"] {
            assert!(Form::Text.parse(wrong, false).is_err(), "{wrong}");
        }
        for wrong in ["1", "zz", "012", "é"] {
            assert!(Form::Hex.parse(wrong, false).is_err(), "{wrong}");
        }
        for wrong in ["a", "===", "YQ", "é"] {
            assert!(Form::Base64.parse(wrong, false).is_err(), "{wrong}");
        }
        for wrong in ["", "octal", "u64"] {
            assert!(Form::named(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn json_of_every_form() {
        assert_eq!(
            json(&Form::Text, b"a\"b\n\xc3\xa9").unwrap(),
            "\"a\\\"b\\né\""
        );
        assert_eq!(
            json(&Form::Text, b"\xff\x00").unwrap(),
            "{\"hex\":\"ff00\"}"
        );
        assert_eq!(json(&Form::Hex, b"\xff").unwrap(), "\"ff\"");
        assert_eq!(json(&Form::Base64, b"\xff").unwrap(), "\"/w==\"");
        assert_eq!(
            json(&Form::Json, b" {\"a\":\n[1, 2.50]}\n").unwrap(),
            "{\"a\": [1, 2.50]}"
        );
        assert!(json(&Form::Json, b"{").unwrap_err().contains("not JSON"));
        let form = Form::named("id:u16be,_:bytes1,x:f32,rest:text").unwrap();
        assert_eq!(
            json(&form, b"\x01\x02?\x00\x00\x80\x7f\"").unwrap(),
            "{\"id\":258,\"x\":\"inf\",\"rest\":\"\\\"\"}"
        );
    }
}

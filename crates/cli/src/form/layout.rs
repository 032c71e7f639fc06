//! Record layouts, such as `id:u64,energy:f32`: fields of fixed widths in a fixed order.
//!
//! Numbers are little-endian unless they end in `be`. `bytesN` are printed as hexadecimal digits,
//! and `textN` as text without the zero bytes at its end. The last field may be `bytes` or `text`
//! without a width and takes all remaining bytes. Fields called `_` are not shown.
//!
//! Invariant: a record fits as a whole or not at all; nothing is read beyond it.

use std::fmt;

use super::{parse_hex, parse_text, push_json_bytes};
use crate::output::{push_hex, push_text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Unsigned,
    Signed,
    Float,
    Bytes,
    Text,
}

/// One field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: String,
    kind: Kind,
    /// The width in bytes; none for a field that takes all remaining bytes.
    width: Option<usize>,
    big_endian: bool,
}

/// A layout of records.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    fields: Vec<Field>,
    /// The sum of the widths.
    width: usize,
    /// Whether the last field takes all remaining bytes.
    open: bool,
}

const KINDS: &str = "u8 to u128, i8 to i128, f32, f64 (with `be` behind it: big-endian), bytesN, \
    textN, or at the end bytes or text";

/// The layout as it is given on the command line. Equal layouts give equal texts.
impl fmt::Display for Layout {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, field) in self.fields.iter().enumerate() {
            let comma = if i > 0 { "," } else { "" };
            let order = if field.big_endian { "be" } else { "" };
            write!(f, "{comma}{}:{}{order}", field.name, field.type_name())?;
        }
        Ok(())
    }
}

impl Field {
    fn parse(text: &str) -> Result<Field, String> {
        let (name, kind) = text
            .split_once(':')
            .ok_or_else(|| format!("`{text}` is not a field; expected NAME:TYPE"))?;
        let wrong = || format!("`{kind}` is not a type of a field; expected {KINDS}");
        if name.is_empty() {
            return Err(format!("the field `{text}` has no name"));
        }
        let (word, digits) = kind.split_at(
            kind.find(|c: char| c.is_ascii_digit())
                .unwrap_or(kind.len()),
        );
        let (digits, order) = digits.split_at(
            digits
                .find(|c: char| !c.is_ascii_digit())
                .unwrap_or(digits.len()),
        );
        let number = digits.parse::<usize>().ok();
        let (kind, width) = match (word, number) {
            ("u", Some(bits @ (8 | 16 | 32 | 64 | 128))) => (Kind::Unsigned, Some(bits / 8)),
            ("i", Some(bits @ (8 | 16 | 32 | 64 | 128))) => (Kind::Signed, Some(bits / 8)),
            ("f", Some(bits @ (32 | 64))) => (Kind::Float, Some(bits / 8)),
            ("bytes", Some(width @ 1..=65_535)) => (Kind::Bytes, Some(width)),
            ("text", Some(width @ 1..=65_535)) => (Kind::Text, Some(width)),
            ("bytes", None) if digits.is_empty() => (Kind::Bytes, None),
            ("text", None) if digits.is_empty() => (Kind::Text, None),
            _ => return Err(wrong()),
        };
        let big_endian = match order {
            "" => false,
            "be" if !matches!(kind, Kind::Bytes | Kind::Text) => true,
            "le" if !matches!(kind, Kind::Bytes | Kind::Text) => false,
            _ => return Err(wrong()),
        };
        Ok(Field {
            name: name.to_string(),
            kind,
            width,
            big_endian,
        })
    }

    fn shown(&self) -> bool {
        self.name != "_"
    }

    /// The bytes of a number as an integer.
    fn unsigned(&self, bytes: &[u8]) -> u128 {
        let fold = |n: u128, byte: &u8| n << 8 | u128::from(*byte);
        if self.big_endian {
            bytes.iter().fold(0, fold)
        } else {
            bytes.iter().rev().fold(0, fold)
        }
    }

    fn signed(&self, bytes: &[u8]) -> i128 {
        let unused = 128 - 8 * bytes.len() as u32;
        ((self.unsigned(bytes) << unused) as i128) >> unused
    }

    fn float(&self, bytes: &[u8]) -> String {
        let bits = self.unsigned(bytes);
        // The shortest digits that give the same number again, with an exponent if it is shorter.
        if bytes.len() == 4 {
            format!("{:?}", f32::from_bits(bits as u32))
        } else {
            format!("{:?}", f64::from_bits(bits as u64))
        }
    }

    /// The text of a field of fixed width, without the zero bytes at its end.
    fn text<'a>(&self, bytes: &'a [u8]) -> &'a [u8] {
        match self.width {
            Some(_) => &bytes[..bytes.iter().rposition(|b| *b != 0).map_or(0, |at| at + 1)],
            None => bytes,
        }
    }

    /// Appends the field in a readable form.
    pub fn push(&self, line: &mut Vec<u8>, bytes: &[u8]) {
        match self.kind {
            Kind::Unsigned => line.extend_from_slice(self.unsigned(bytes).to_string().as_bytes()),
            Kind::Signed => line.extend_from_slice(self.signed(bytes).to_string().as_bytes()),
            Kind::Float => line.extend_from_slice(self.float(bytes).as_bytes()),
            Kind::Bytes => push_hex(line, bytes),
            Kind::Text => push_text(line, self.text(bytes)),
        }
    }

    /// Appends a JSON value. Numbers that JSON cannot express are the strings `"NaN"`, `"inf"` and
    /// `"-inf"`.
    pub fn push_json(&self, line: &mut Vec<u8>, bytes: &[u8]) {
        let finite = |text: &str| !text.contains(['N', 'i']);
        match self.kind {
            Kind::Float if !finite(&self.float(bytes)) => {
                super::push_json_text(line, &self.float(bytes));
            }
            Kind::Bytes => {
                line.push(b'"');
                push_hex(line, bytes);
                line.push(b'"');
            }
            Kind::Text => push_json_bytes(line, self.text(bytes)),
            _ => self.push(line, bytes),
        }
    }

    /// Appends the bytes of the value `text`. Text and bytes of fixed width are padded with zero
    /// bytes.
    ///
    /// # Errors
    /// The text cannot be this field; the error says why.
    pub fn encode(&self, text: &[u8], bytes: &mut Vec<u8>) -> Result<(), String> {
        let wrong = |why: &str| {
            let mut shown = Vec::new();
            push_text(&mut shown, &text[..text.len().min(40)]);
            format!(
                "`{}` is not a valid {} for the field `{}`{why}",
                String::from_utf8_lossy(&shown),
                self.type_name(),
                self.name
            )
        };
        let number = || std::str::from_utf8(text).map(str::trim).unwrap_or("");
        // Digits that give infinity are a number that does not fit; only the word `inf` means
        // infinity.
        let is_too_large =
            |is_infinite: bool| is_infinite && number().contains(|c: char| c.is_ascii_digit());
        let value = match (self.kind, self.width) {
            (Kind::Unsigned, Some(width)) => {
                let n: u128 = number().parse().map_err(|_| wrong(""))?;
                if width < 16 && n >> (8 * width) != 0 {
                    return Err(wrong(": it is too large"));
                }
                n
            }
            (Kind::Signed, Some(width)) => {
                let n: i128 = number().parse().map_err(|_| wrong(""))?;
                let unused = 128 - 8 * width as u32;
                if (n << unused) >> unused != n {
                    return Err(wrong(": it is too large"));
                }
                n as u128
            }
            (Kind::Float, Some(4)) => {
                let n: f32 = number().parse().map_err(|_| wrong(""))?;
                if is_too_large(n.is_infinite()) {
                    return Err(wrong(": it is too large"));
                }
                n.to_bits().into()
            }
            (Kind::Float, _) => {
                let n: f64 = number().parse().map_err(|_| wrong(""))?;
                if is_too_large(n.is_infinite()) {
                    return Err(wrong(": it is too large"));
                }
                n.to_bits().into()
            }
            (Kind::Bytes, width) => {
                let value = parse_hex(text).map_err(|e| wrong(&format!(": {e}")))?;
                return fill(&value, width, bytes).map_err(|e| wrong(&e));
            }
            (Kind::Text, width) => return fill(text, width, bytes).map_err(|e| wrong(&e)),
            (Kind::Unsigned | Kind::Signed, None) => return Err(wrong("")),
        };
        let width = self.width.unwrap_or(8);
        if self.big_endian {
            bytes.extend_from_slice(&value.to_be_bytes()[16 - width..]);
        } else {
            bytes.extend_from_slice(&value.to_le_bytes()[..width]);
        }
        Ok(())
    }

    fn type_name(&self) -> String {
        let word = match self.kind {
            Kind::Unsigned => "u",
            Kind::Signed => "i",
            Kind::Float => "f",
            Kind::Bytes => "bytes",
            Kind::Text => "text",
        };
        match (self.kind, self.width) {
            (Kind::Bytes | Kind::Text, Some(width)) => format!("{word}{width}"),
            (Kind::Bytes | Kind::Text, None) => word.to_string(),
            (_, width) => format!("{word}{}", 8 * width.unwrap_or(8)),
        }
    }
}

fn fill(value: &[u8], width: Option<usize>, bytes: &mut Vec<u8>) -> Result<(), String> {
    let missing = match width {
        Some(width) => width
            .checked_sub(value.len())
            .ok_or_else(|| format!(": it has {} bytes", value.len()))?,
        None => 0,
    };
    bytes.extend_from_slice(value);
    bytes.resize(bytes.len() + missing, 0);
    Ok(())
}

impl Layout {
    /// The layout that `text` describes.
    ///
    /// # Errors
    /// A field is impossible; the error says which.
    pub fn parse(text: &str) -> Result<Layout, String> {
        let fields: Vec<Field> = text
            .split(',')
            .map(Field::parse)
            .collect::<Result<_, _>>()?;
        for (i, field) in fields.iter().enumerate() {
            if field.width.is_none() && i + 1 < fields.len() {
                return Err(format!(
                    "the field `{}` takes all remaining bytes, so it must be the last; or give it \
                    a \
                    width, such as {}16",
                    field.name,
                    field.type_name()
                ));
            }
            if field.shown() && fields[..i].iter().any(|f| f.name == field.name) {
                return Err(format!("two fields are called `{}`", field.name));
            }
        }
        Ok(Layout {
            width: fields.iter().filter_map(|f| f.width).sum(),
            open: fields.iter().any(|f| f.width.is_none()),
            fields,
        })
    }

    /// Names of the fields that are shown.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.fields
            .iter()
            .filter(|f| f.shown())
            .map(|f| &f.name[..])
    }

    /// The fields of a record that are shown, with their bytes.
    ///
    /// # Errors
    /// The record has another length.
    pub fn split<'a>(
        &'a self,
        record: &'a [u8],
    ) -> Result<impl Iterator<Item = (&'a Field, &'a [u8])>, String> {
        if record.len() < self.width || (record.len() > self.width && !self.open) {
            return Err(format!(
                "it has {} bytes, the layout {}{}",
                record.len(),
                if self.open { "at least " } else { "" },
                self.width
            ));
        }
        let mut rest = record;
        Ok(self
            .fields
            .iter()
            .map(move |field| {
                let (bytes, after) = rest.split_at(field.width.unwrap_or(rest.len()));
                rest = after;
                (field, bytes)
            })
            .filter(|(field, _)| field.shown()))
    }

    /// Appends the bytes of a record from the texts of its fields, without hidden fields.
    ///
    /// # Errors
    /// A field is impossible, or the number of fields is wrong.
    pub fn encode<'a>(
        &self,
        texts: impl ExactSizeIterator<Item = &'a [u8]>,
        partial: bool,
        bytes: &mut Vec<u8>,
    ) -> Result<(), String> {
        let (given, wanted) = (texts.len(), self.names().count());
        if given > wanted || (given < wanted && !partial) {
            return Err(format!(
                "{given} fields are given, but the layout has {wanted} ({})",
                self.names().collect::<Vec<_>>().join(", ")
            ));
        }
        let mut texts = texts.peekable();
        for field in &self.fields {
            if !field.shown() {
                if texts.peek().is_some() || !partial {
                    bytes.resize(bytes.len() + field.width.unwrap_or(0), 0);
                }
            } else if let Some(text) = texts.next() {
                field.encode(text, bytes)?;
            }
        }
        Ok(())
    }

    /// The bytes of a record on the command line: fields with commas between them. In a text field
    /// a comma is written `\x2c`; a last field without a width takes everything that remains.
    ///
    /// # Errors
    /// As [`Layout::encode`].
    pub fn parse_record(&self, text: &str, partial: bool) -> Result<Vec<u8>, String> {
        let shown: Vec<&Field> = self.fields.iter().filter(|f| f.shown()).collect();
        let mut texts = Vec::new();
        if !(partial && text.is_empty()) {
            for (part, field) in text.splitn(shown.len().max(1), ',').zip(&shown) {
                texts.push(match field.kind {
                    Kind::Text => parse_text(part)?,
                    _ => part.as_bytes().to_vec(),
                });
            }
        }
        let mut bytes = Vec::new();
        self.encode(texts.iter().map(|t| &t[..]), partial, &mut bytes)?;
        Ok(bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn printed(layout: &Layout, record: &[u8]) -> Result<String, String> {
        let mut cells = Vec::new();
        for (field, bytes) in layout.split(record)? {
            let mut cell = Vec::new();
            field.push(&mut cell, bytes);
            cells.push(String::from_utf8(cell).unwrap());
        }
        Ok(cells.join(","))
    }

    #[test]
    fn every_type_there_and_back() {
        let all = "a:u8,b:u16be,c:u32,d:u64be,e:u128,f:i8,g:i16,h:i32be,i:i64,j:i128be,\
            k:f32,l:f64be,m:bytes3,n:text4,o:text";
        let layout = Layout::parse(all).unwrap();
        for record in [
            "0,0,0,0,0,0,0,0,0,0,0.0,-0.0,000000,,",
            "255,65535,4294967295,18446744073709551615,340282366920938463463374607431768211455,\
             -128,-32768,-2147483648,-9223372036854775808,\
             -170141183460469231731687303715884105728,3.4028235e38,5e-324,ff00fe,four,and the rest",
            "1,258,16909060,72623859790382856,1,127,32767,-2,-3,4,NaN,-inf,0a0b0c,é,x",
        ] {
            let bytes = layout.parse_record(record, false).unwrap();
            assert_eq!(printed(&layout, &bytes).unwrap(), record);
        }
        let bytes = layout
            .parse_record("1,258,16909060,3,4,-1,-2,-2,5,6,1.5,2,010203,ab,c,d", false)
            .unwrap();
        assert_eq!(&bytes[..7], [1, 1, 2, 4, 3, 2, 1]);
        assert!(bytes.ends_with(b"\x01\x02\x03ab\0\0c,d"));
    }

    #[test]
    fn hidden_fields_and_partial_records() {
        let layout = Layout::parse("cell:u16be,_:bytes2,id:u16be").unwrap();
        assert_eq!(
            layout.parse_record("1,2", false).unwrap(),
            [0, 1, 0, 0, 0, 2]
        );
        assert_eq!(layout.parse_record("1", true).unwrap(), [0, 1]);
        assert!(layout.parse_record("", true).unwrap().is_empty());
        assert!(
            layout
                .parse_record("1", false)
                .unwrap_err()
                .contains("cell, id")
        );
        assert_eq!(printed(&layout, &[0, 1, 9, 9, 0, 2]).unwrap(), "1,2");
        assert_eq!(layout.names().collect::<Vec<_>>(), ["cell", "id"]);
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let layout = Layout::parse("id:u16,t:text2").unwrap();
        for (wrong, word) in [
            ("65536,a", "too large"),
            ("-1,a", "not a valid u16"),
            ("x,a", "`id`"),
            ("1,abc", "3 bytes"),
            ("1", "2 (id, t)"),
            ("1,\\q", "backslash"),
        ] {
            let said = layout.parse_record(wrong, false).unwrap_err();
            assert!(said.contains(word), "{wrong}: {said}");
        }
        for (record, word) in [(&b"abc"[..], "3 bytes"), (b"abcde", "5 bytes")] {
            let said = printed(&layout, record).unwrap_err();
            assert!(said.contains(word), "{said}");
        }
        let open = Layout::parse("id:u16,t:text").unwrap();
        assert!(printed(&open, b"a").unwrap_err().contains("at least 2"));
        let signed = Layout::parse("x:i8").unwrap();
        assert!(signed.parse_record("128", false).is_err());
        assert!(signed.parse_record("-129", false).is_err());
        // These became infinities without an error.
        let floats = Layout::parse("x:f32,y:f64be").unwrap();
        for (wrong, word) in [
            (
                "1e39,0",
                "not a valid f32 for the field `x`: it is too large",
            ),
            (
                "-3.5e38,0",
                "not a valid f32 for the field `x`: it is too large",
            ),
            (
                "0,1e400",
                "not a valid f64 for the field `y`: it is too large",
            ),
        ] {
            let said = floats.parse_record(wrong, false).unwrap_err();
            assert!(said.contains(word), "{wrong}: {said}");
        }
        for said in [
            "inf,-inf",
            "Infinity,+inf",
            "3.4028235e38,1e308",
            "1e-60,1e-400",
        ] {
            assert!(floats.parse_record(said, false).is_ok(), "{said}");
        }
        for wrong in [
            "",
            "id",
            ":u8",
            "id:u7",
            "id:f16",
            "id:u",
            "id:bytes0",
            "id:bytesbe",
            "id:text4be",
            "id:u8xe",
            "a:text,b:u8",
            "a:u8,a:u8",
            "a:u8,",
            "id:bytes99999999999999999999",
        ] {
            assert!(Layout::parse(wrong).is_err(), "{wrong}");
        }
    }
}

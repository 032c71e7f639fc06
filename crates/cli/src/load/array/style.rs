//! The layout of the elements of an array in lines, which decides where reading may continue after
//! a bad one.
//!
//! An element that lost a quote or a bracket does not show where it ends, and the objects within it
//! look like elements. Only the layout distinguishes them: if elements begin their lines, all with
//! the same blanks, and nothing within an element begins a line with as few, then such a line does
//! not belong to the bad element. For other arrays, such as one in a single line, the layout shows
//! nothing.
//!
//! The layout is determined from the first [`SHAPE_BYTES`] of the array.

use std::io;

use super::super::source::Source;
use super::{SHAPE_BYTES, Scanned, Scanner};

/// The way in which the elements of an array begin.
pub struct Style {
    /// Their first byte: a bracket or a quote. None if they have neither.
    pub open: Option<u8>,
    /// The number of blanks before an element in its line, if a line that begins like this cannot
    /// belong to an element that began before it.
    pub indent: Option<usize>,
}

impl Style {
    /// The style of the array whose opening bracket was just read.
    pub fn of(source: &mut Source<'_>) -> io::Result<Style> {
        let sample = source.peek(SHAPE_BYTES)?;
        let text = sample.trim_ascii_start();
        let is_name = match Scanner::new(SHAPE_BYTES).scan(text) {
            Scanned::End(end) => text[end..].trim_ascii_start().starts_with(b":"),
            _ => false,
        };
        let open = match text.first() {
            // An object that lost its bracket.
            Some(b'"') if is_name => Some(b'{'),
            Some(open @ (b'{' | b'[' | b'"')) => Some(*open),
            Some(b':' | b'}' | b',' | b']') | None => Some(b'{'),
            Some(_) => None,
        };
        Ok(Style {
            open,
            indent: open.and_then(|open| indent(sample, open)),
        })
    }
}

/// The byte that closes what this byte opens.
fn closing(open: u8) -> u8 {
    match open {
        b'[' => b']',
        b'{' => b'}',
        other => other,
    }
}

/// The number of blanks after the last line end in the white space at the beginning of `text`, if
/// there is a line end; and the text after the white space.
fn line_start(text: &[u8]) -> (Option<usize>, &[u8]) {
    let behind = text.trim_ascii_start();
    let blanks = &text[..text.len() - behind.len()];
    let line_end = memchr::memrchr(b'\n', blanks);
    (line_end.map(|at| blanks.len() - at - 1), behind)
}

/// The blanks of a line, and the remaining text.
fn blanks_of(line: &[u8]) -> (usize, &[u8]) {
    let text = line.trim_ascii_start();
    (line.len() - text.len(), text.trim_ascii_end())
}

/// See [`Style::indent`]. `sample` follows the opening bracket of the array.
fn indent(sample: &[u8], open: u8) -> Option<usize> {
    // Check the whole elements, up to the first error.
    let mut elements = Vec::new();
    let mut second = None;
    let (_, mut rest) = line_start(sample);
    while rest.first() == Some(&open) {
        let Scanned::End(end) = Scanner::new(SHAPE_BYTES).scan(rest) else {
            break;
        };
        let Some(behind) = rest[end..].trim_ascii_start().strip_prefix(b",") else {
            break;
        };
        elements.push(&rest[..end]);
        let (blanks, next) = line_start(behind);
        if elements.len() == 1 {
            second = blanks;
        }
        rest = next;
    }
    if elements.is_empty() {
        return indent_of_lines(sample, open);
    }
    let indent = second?;
    let is_deeper = |element: &&[u8]| {
        let mut lines = element.split(|b| *b == b'\n').skip(1).peekable();
        while let Some(line) = lines.next() {
            let (blanks, text) = blanks_of(line);
            let is_end = lines.peek().is_none() && text.first() == Some(&closing(open));
            if !text.is_empty() && blanks <= indent && !(is_end && blanks == indent) {
                return false;
            }
        }
        true
    };
    elements.iter().all(is_deeper).then_some(indent)
}

/// The indent if the first element is broken or longer than the sample: only lines are known. Each
/// line after the first must be indented more than the elements, or be a whole element, a bracket
/// of one, or the end of the array.
fn indent_of_lines(sample: &[u8], open: u8) -> Option<usize> {
    let (mut indent, text) = line_start(sample);
    // The last line may continue after the sample.
    let end = memchr::memrchr(b'\n', text)?;
    let mut lines = text[..end].split(|b| *b == b'\n').skip(1).peekable();
    while let Some(line) = lines.next() {
        let (blanks, text) = blanks_of(line);
        if text.is_empty() {
            continue;
        }
        if indent.is_none() && text.first() == Some(&open) {
            indent = Some(blanks);
        }
        let indent = indent?;
        let is_last = lines.peek().is_none();
        let is_element = match Scanner::new(SHAPE_BYTES).scan(text) {
            Scanned::End(end) if text[0] == open => {
                let behind = text[end..].trim_ascii();
                matches!(behind, b"" | b",") || is_last && behind == b"]"
            }
            _ => false,
        };
        let without_comma = text.strip_suffix(b",").unwrap_or(text);
        let is_bracket = text == [open] || without_comma == [closing(open)];
        let fits = blanks > indent
            || blanks == indent && (is_element || is_bracket)
            || text == b"]" && (blanks < indent || is_last);
        if !fits {
            return None;
        }
    }
    indent
}

#[cfg(test)]
mod tests {
    use super::*;

    fn indent_of(text: &str) -> Option<usize> {
        let text = text.replace('\'', "\"");
        let mut source = Source::with_buffer(text.as_bytes(), 16);
        source.fill().unwrap();
        source.consume(1);
        Style::of(&mut source).unwrap().indent
    }

    #[test]
    fn lines_say_where_elements_begin_or_nothing_does() {
        for (text, expected) in [
            ("[{'a':1},{'a':2}]", None),
            ("[{'a':1},\n{'a':2}]", Some(0)),
            ("[\n  {'a':1},\n  {'a':[{}]},\n  {'a':2}\n]\n", Some(2)),
            ("[\n  {\n    'a':1\n  },\n  {\n    'a':2\n  }\n]", Some(2)),
            ("[{\n    'a': 1\n}, {\n    'a': 2\n}]", None),
            ("[{'a':1}\n,{'a':2}\n,{'a':3}]", None),
            // Without blanks, lines within elements begin like the elements.
            ("[\n{\n'a':1\n},\n{\n'a':2\n}\n]", None),
            ("[\n{'a':[\n{'b':1},\n{'b':2}\n]},\n{'a':[]}\n]", None),
            (
                "[\n{'a':[]},\n{'a':[\n{'b':1},\n{'b':2}\n]},\n{'a':2}]",
                None,
            ),
            // The first element is broken.
            ("[\n {'a':'x},\n {'a':2},\n {'a':3}\n]\n", Some(1)),
            ("[{'a':'x},\n {'a':2},\n {'a':3}]\n", Some(1)),
            ("[\n {\n  'a':'x\n },\n {\n  'a':2\n }\n]\n", Some(1)),
            (
                "[\n{'a':'x,'n':[\n{'b':1},\n{'b':2}\n]},\n{'a':2}\n]\n",
                None,
            ),
            ("[\n{\n'a':'x\n},\n{\n'a':2\n}\n]\n", None),
            (
                "[{\n  'a':'x,\n  'n': [\n    {'b':1}\n  ]\n}, {\n  'a':2\n}]\n",
                None,
            ),
            ("[{'a':'x},{'a':2}]", None),
        ] {
            assert_eq!(indent_of(text), expected, "{text}");
        }
    }
}

//! Prints the small text files of a store's folder.

use serde_json::json;
use siltstone::inspect::{check_small, purpose};
use siltstone::{Error, ErrorKind, Options};

use super::Dump;
use crate::failure::Failure;
use crate::output::push_text;

/// Prints a file if it is one of the text files of a store's folder.
pub fn print(dump: &mut Dump<'_>, name: &str, text: &[u8]) -> Result<(), Failure> {
    let what = purpose(name).unwrap_or("a text");
    if dump.args.json {
        let zeros = text.len() - used(text);
        let text = String::from_utf8_lossy(&text[..used(text)]);
        dump.object(&json!({
            "type": "text", "offset": 0, "purpose": what, "text": text, "zero_count": zeros,
        }))?;
    } else {
        dump.line(0, format_args!("{what}; {} bytes", text.len()))?;
        lines(dump, text)?;
    }
    let wrong = |what: String| {
        Error::new(ErrorKind::Corruption, what)
            .in_file(name.to_string())
            .at(0)
    };
    let read = String::from_utf8_lossy(text);
    let error = if name.ends_with(".toml") {
        Options::from_toml(&read)
            .err()
            .map(|e| wrong(e.to_string()))
    } else if name.ends_with(".json") {
        serde_json::from_str::<serde::de::IgnoredAny>(&read)
            .err()
            .map(|e| wrong(format!("it is not JSON: {e}")))
    } else {
        check_small(name, text).err()
    };
    match error {
        Some(error) => dump.damage(&error, None),
        None => Ok(()),
    }
}

/// The length of a text without the zeros that fill its file.
fn used(text: &[u8]) -> usize {
    text.iter()
        .rposition(|b| *b != 0)
        .map_or(0, |last| last + 1)
}

/// Prints the lines of a text with their offsets, up to the zeros that fill a file.
pub fn lines(dump: &mut Dump<'_>, text: &[u8]) -> Result<(), Failure> {
    let used = used(text);
    let mut at = 0;
    for line in text[..used].split_inclusive(|byte| *byte == b'\n') {
        let mut shown = Vec::new();
        push_text(&mut shown, line.strip_suffix(b"\n").unwrap_or(line));
        dump.line(at, String::from_utf8_lossy(&shown))?;
        at += line.len() as u64;
    }
    if used < text.len() {
        dump.line(used as u64, format_args!("{} zeros", text.len() - used))?;
    }
    Ok(())
}

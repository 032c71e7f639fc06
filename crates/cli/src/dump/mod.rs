//! The output of `silt dump`, for each kind of file. The library reads the files
//! ([`siltstone::inspect`]).
//!
//! Invariants: every line begins with the offset that it is about; damage is printed at its offset,
//! and counted; a listing that was cut says how much is missing.

pub mod log;
pub mod manifest;
pub mod table;
pub mod text;

use std::fmt;

use serde_json::Value;
use siltstone::{Error, IterOptions};

use crate::args::DumpArgs;
use crate::failure::Failure;
use crate::form::{Form, push_json_bytes};
use crate::output::{Out, count, outln, push_text};

/// The number of blocks, records or entries that are listed by default.
const LISTED: u64 = 20;

/// The output of a dump, and its filters.
pub struct Dump<'a> {
    /// Standard output.
    pub out: Out,
    /// The arguments.
    pub args: &'a DumpArgs,
    /// The bounds of keys.
    pub range: IterOptions,
    key: Form,
    value: Form,
    /// The number of damages that were printed.
    pub damage_count: u64,
}

/// An entry of a log or a table.
pub struct Shown<'a> {
    /// The offset of the entry, or of its block.
    pub offset: u64,
    /// Its sequence number.
    pub number: u64,
    /// Its kind.
    pub kind: &'static str,
    /// The keyspace's id, in logs.
    pub keyspace: Option<u32>,
    /// The key, or the first key of a range.
    pub key: &'a [u8],
    /// The value, or the key before which a range ends.
    pub value: Option<&'a [u8]>,
    /// Whether the value is a key.
    pub is_range: bool,
}

impl<'a> Dump<'a> {
    /// Starts a dump to standard output.
    pub fn new(args: &'a DumpArgs, range: IterOptions) -> Dump<'a> {
        Dump {
            out: Out::new(),
            args,
            range,
            key: args.form.key(),
            value: args.form.value(),
            damage_count: 0,
        }
    }

    /// Whether entries are printed.
    pub fn entries(&self) -> bool {
        self.args.entries || self.args.keys || self.args.range.given()
    }

    /// How many records or blocks are listed.
    pub fn listed(&self) -> u64 {
        match self.args.limit {
            // If entries are printed, the limit counts entries.
            Some(limit) if self.args.blocks || !self.entries() => limit,
            _ if self.args.blocks || self.args.json => u64::MAX,
            _ => LISTED,
        }
    }

    /// How many entries are listed.
    pub fn entry_limit(&self) -> u64 {
        self.args.limit.unwrap_or(u64::MAX)
    }

    /// Whether an entry of this key is printed.
    pub fn wants(&self, key: &[u8]) -> bool {
        let (lower, upper) = (self.range.lower.as_deref(), self.range.upper.as_deref());
        lower.is_none_or(|lower| key >= lower) && upper.is_none_or(|upper| key < upper)
    }

    /// Prints a line about an offset.
    pub fn line(&mut self, offset: u64, text: impl fmt::Display) -> Result<(), Failure> {
        outln!(self.out, "{offset:>12}  {text}")
    }

    /// Prints a line that continues the one before.
    pub fn more(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        outln!(self.out, "{:>12}    {text}", "")
    }

    /// Prints a JSON object.
    pub fn object(&mut self, value: &Value) -> Result<(), Failure> {
        outln!(self.out, "{value}")
    }

    /// A key in its form, or as text if it does not fit the form.
    pub fn key_text(&self, key: &[u8]) -> String {
        shown(&self.key, key)
    }

    /// A key as JSON.
    pub fn key_json(&self, key: &[u8]) -> Value {
        serde_json::from_slice(&json(&self.key, key)).unwrap_or(Value::Null)
    }

    /// Prints an error about the bytes from its offset on.
    pub fn damage(&mut self, error: &Error, end: Option<u64>) -> Result<(), Failure> {
        self.damage_count += 1;
        if self.args.json {
            let value = serde_json::json!({
                "type": "damage",
                "offset": error.offset(),
                "end": end,
                "kind": error.kind().word(),
                "what": error.message(),
                "expected": error.expected_value(),
                "found": error.found_value(),
            });
            return self.object(&value);
        }
        let mut text = format!("DAMAGED: {}", error.message());
        if let Some(expected) = error.expected_value() {
            text.push_str(&format!("; expected {expected}"));
        }
        if let Some(found) = error.found_value() {
            text.push_str(&format!("; found {found}"));
        }
        match (end, error.offset()) {
            (Some(end), Some(offset)) if end > offset => text.push_str(&format!(
                "; up to byte {end} ({} bytes)",
                count(end - offset)
            )),
            _ => {}
        }
        match error.offset() {
            Some(offset) => self.line(offset, text),
            None => outln!(self.out, "{:>12}  {text}", "?"),
        }
    }

    /// Prints an entry.
    pub fn entry(&mut self, entry: &Shown<'_>) -> Result<(), Failure> {
        let value = entry.value.filter(|_| !self.args.keys || entry.is_range);
        let value_form = if entry.is_range {
            &self.key
        } else {
            &self.value
        };
        if self.args.json {
            let mut line = format!(
                "{{\"type\":\"entry\",\"offset\":{},\"number\":{},\"kind\":\"{}\"",
                entry.offset, entry.number, entry.kind
            )
            .into_bytes();
            if let Some(keyspace) = entry.keyspace {
                line.extend_from_slice(format!(",\"keyspace\":{keyspace}").as_bytes());
            }
            line.extend_from_slice(b",\"key\":");
            line.extend(json(&self.key, entry.key));
            if let Some(value) = value {
                let name = if entry.is_range { "end" } else { "value" };
                line.extend_from_slice(format!(",\"{name}\":").as_bytes());
                line.extend(json(value_form, value));
            }
            line.extend_from_slice(b"}\n");
            return self.out.raw(&line);
        }
        let mut line = format!("{:>12}    {} {}", entry.offset, entry.number, entry.kind);
        if let Some(keyspace) = entry.keyspace {
            line.push_str(&format!(" in {keyspace}"));
        }
        line.push('\t');
        line.push_str(&shown(&self.key, entry.key));
        if let Some(value) = value {
            line.push('\t');
            line.push_str(&shown(value_form, value));
        }
        line.push('\n');
        self.out.raw(line.as_bytes())
    }

    /// Prints that a listing was cut.
    pub fn cut(&mut self, missing: u64, what: &str, flag: &str) -> Result<(), Failure> {
        if missing == 0 {
            return Ok(());
        }
        if self.args.json {
            let value = serde_json::json!({ "type": "cut", "what": what, "missing": missing });
            return self.object(&value);
        }
        outln!(
            self.out,
            "{:>12}  {} more {what}; {flag}",
            "...",
            count(missing)
        )
    }
}

/// How many more there are, and which flag prints them.
fn flag_for_more(args: &DumpArgs, flag: &'static str) -> &'static str {
    if args.limit.is_some() {
        "a greater --limit prints them"
    } else {
        flag
    }
}

fn shown(form: &Form, bytes: &[u8]) -> String {
    let mut line = Vec::new();
    if form.push(&mut line, bytes).is_err() {
        line.clear();
        push_text(&mut line, bytes);
        line.extend_from_slice(b" (no such record)");
    }
    String::from_utf8_lossy(&line).into_owned()
}

fn json(form: &Form, bytes: &[u8]) -> Vec<u8> {
    let mut line = Vec::new();
    if form.push_json(&mut line, bytes).is_err() {
        line.clear();
        push_json_bytes(&mut line, bytes);
    }
    line
}

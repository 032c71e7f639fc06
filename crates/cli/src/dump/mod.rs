//! What `silt dump` prints of a file, kind by kind; the reading is the library's
//! ([`siltstone::inspect`]).
//!
//! Invariants: every line begins with the offset that it speaks of; what is damaged is printed
//! where it lies, and counted; a listing that was cut says how much is missing.

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

/// Blocks, records or entries that are listed if nobody asked for more.
const LISTED: u64 = 20;

/// Where a dump goes, and what of it is wanted.
pub struct Dump<'a> {
    /// Standard output.
    pub out: Out,
    /// What was asked.
    pub args: &'a DumpArgs,
    /// Which keys.
    pub range: IterOptions,
    key: Form,
    value: Form,
    /// Damage that was printed.
    pub damage_count: u64,
}

/// An entry of a log or a table.
pub struct Shown<'a> {
    /// Offset of the entry, or of the block that holds it.
    pub offset: u64,
    /// Its sequence number.
    pub number: u64,
    /// What it does.
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
    /// A dump to standard output.
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

    /// Whether entries are wanted.
    pub fn entries(&self) -> bool {
        self.args.entries || self.args.keys || self.args.range.given()
    }

    /// How many records or blocks are listed.
    pub fn listed(&self) -> u64 {
        match self.args.limit {
            // The limit counts entries where these are what was asked for.
            Some(limit) if self.args.blocks || !self.entries() => limit,
            _ if self.args.blocks || self.args.json => u64::MAX,
            _ => LISTED,
        }
    }

    /// How many entries are listed.
    pub fn entry_limit(&self) -> u64 {
        self.args.limit.unwrap_or(u64::MAX)
    }

    /// Whether an entry of this key is wanted.
    pub fn wants(&self, key: &[u8]) -> bool {
        self.range
            .lower
            .as_ref()
            .is_none_or(|lower| key >= &lower[..])
            && self
                .range
                .upper
                .as_ref()
                .is_none_or(|upper| key < &upper[..])
    }

    /// A line about a place.
    pub fn line(&mut self, offset: u64, text: impl fmt::Display) -> Result<(), Failure> {
        outln!(self.out, "{offset:>12}  {text}")
    }

    /// A line that belongs to the one before.
    pub fn more(&mut self, text: impl fmt::Display) -> Result<(), Failure> {
        outln!(self.out, "{:>12}    {text}", "")
    }

    /// A JSON object.
    pub fn object(&mut self, value: &Value) -> Result<(), Failure> {
        outln!(self.out, "{value}")
    }

    /// A key for people, in its form; as text where it does not fit that.
    pub fn key_text(&self, key: &[u8]) -> String {
        shown(&self.key, key)
    }

    /// A key as JSON.
    pub fn key_json(&self, key: &[u8]) -> Value {
        serde_json::from_slice(&json(&self.key, key)).unwrap_or(Value::Null)
    }

    /// Something is wrong with the bytes from its offset on.
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

    /// An entry.
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

    /// Says that a listing was cut.
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

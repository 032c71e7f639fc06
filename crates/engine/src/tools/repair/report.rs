//! The report of a repair: as data, as text, as JSON.
//!
//! Threading: plain data.

use std::fmt::{self, Write};

use crate::formats::log::Position;
use crate::formats::manifest::StoreId;
use crate::formats::version::{End, KeyRange};
use crate::tools::check::TORN_RECORD;
use crate::types::error::Error;
use crate::types::limits::KeyspaceId;

/// What was lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LostWhat {
    /// Blocks of a table.
    Blocks,
    /// The range deletes of a table. Keys that they deleted may be visible again.
    RangeDeletes,
    /// A whole table: its file is missing, or is that of another table.
    Table,
}

impl LostWhat {
    /// The name of it, for reports.
    pub fn word(self) -> &'static str {
        match self {
            LostWhat::Blocks => "blocks",
            LostWhat::RangeDeletes => "range deletes",
            LostWhat::Table => "table",
        }
    }
}

/// A range of keys for which a table lost data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LostRange {
    /// The name of the table's file.
    pub file: String,
    /// What was lost of the table.
    pub what: LostWhat,
    /// The number of the first lost block; `None` if it is not known.
    pub block: Option<u64>,
    /// The offset in the file at which the lost bytes begin.
    pub offset: u64,
    /// The number of lost bytes.
    pub bytes: u64,
    /// The keyspace's id.
    pub keyspace: KeyspaceId,
    /// The range of keys in which the lost data was.
    pub range: KeyRange,
    /// The number of lost entries, including old versions and deletes; `None` if it is not known.
    pub entry_count: Option<u64>,
}

/// Why keys are suspect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum SuspectWhy {
    /// A table lost data in this range.
    Lost,
    /// Blocks without neighbours: they may be part of a value that contains a table.
    Island,
    /// Records of the log are lost.
    LogHole,
    /// The manifest is not whole: later deletes, replacements and drops are not known.
    Manifest,
}

impl SuspectWhy {
    /// The name of it, for reports.
    pub fn word(self) -> &'static str {
        match self {
            SuspectWhy::Lost => "lost",
            SuspectWhy::Island => "island",
            SuspectWhy::LogHole => "log hole",
            SuspectWhy::Manifest => "manifest",
        }
    }
}

/// Keys whose result may be wrong: they may be missing, have an older value than the last one
/// written, or be visible although they were deleted. A key whose entry has a sequence number of at
/// least `below` is not suspect, because what was lost is older.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SuspectRange {
    /// The keyspace's id.
    pub keyspace: KeyspaceId,
    /// The keys.
    pub range: KeyRange,
    /// Only entries with a sequence number below this one are suspect. If `None`, all entries are.
    pub below: Option<u64>,
    /// Why the keys are suspect.
    pub why: SuspectWhy,
}

impl SuspectRange {
    /// Whether the result for `key`, whose entry has this sequence number (0: there is no entry),
    /// may be wrong.
    pub fn holds(&self, key: &[u8], number: u64) -> bool {
        self.below.is_none_or(|below| number < below) && self.range.contains(key)
    }
}

/// Records of the log that are lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogHole {
    /// The position of the next good record, or of the log's end.
    pub before: Position,
    /// The last sequence number before the hole.
    pub after_number: u64,
    /// The first sequence number behind it; `None` at the end of the log.
    pub before_number: Option<u64>,
}

/// What was found of the log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogFound {
    /// The number of segments with records.
    pub segment_count: u64,
    /// The number of good records.
    pub record_count: u64,
    /// Bytes of these records.
    pub record_bytes: u64,
    /// The largest sequence number in them.
    pub last_number: u64,
    /// Where the last of them ends.
    pub end: Position,
    /// What was found there.
    pub stop: String,
    /// Whether an incomplete record begins there: see
    /// [`LogCheck::is_torn`](crate::tools::check::LogCheck). It is left out, and not counted as
    /// lost.
    pub is_torn: bool,
    /// Whether nothing was written there. If not, the last writes may be missing: without
    /// `is_torn`, the bytes are old contents of a recycled segment, or a last record whose header
    /// is damaged too. No format can tell these apart.
    pub end_is_clear: bool,
    /// Whether the segment with which the log should begin is missing or unreadable.
    pub first_is_missing: bool,
    /// Where the log ended when the store was closed; `None` if it was not closed.
    pub closed_end: Option<Position>,
    /// Whether there are segments.
    pub is_there: bool,
    /// Whether a whole segment is missing, between two others or at the start. The manifest may
    /// then be older than the log.
    pub is_broken: bool,
    /// The places where records are lost.
    pub holes: Vec<LogHole>,
}

/// What a repair did with a keyspace.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeyspaceRepair {
    /// The keyspace's id.
    pub id: KeyspaceId,
    /// The keyspace's name; `repaired-ID` if it was lost.
    pub name: String,
    /// The number of keys in the target.
    pub key_count: u64,
    /// Bytes of these keys and their values.
    pub byte_count: u64,
    /// The number of suspect keys among them.
    pub suspect_key_count: u64,
    /// The number of suspect keys that were left out because of `strict`.
    pub left_out_key_count: u64,
    /// The number of tables that were read.
    pub table_count: u64,
}

/// A file that was not used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UnusedFile {
    /// The file's name.
    pub name: String,
    /// Why it was not used.
    pub why: &'static str,
}

/// The result of a repair.
#[derive(Clone, Debug, Default)]
pub struct RepairReport {
    /// The id of the source; `None` if no file has it.
    pub source_id: Option<StoreId>,
    /// The id of the new store.
    pub target_id: StoreId,
    /// Whether suspect keys were left out.
    pub strict: bool,
    /// The name of the manifest that was read; `None` if there was none.
    pub manifest: Option<String>,
    /// The number of good records in it.
    pub manifest_record_count: u64,
    /// Whether all of it could be read, and tables and log agree with it.
    pub manifest_is_whole: bool,
    /// The log.
    pub log: LogFound,
    /// Everything that is damaged, with file and offset.
    pub damage: Vec<Error>,
    /// What tables have lost.
    pub lost: Vec<LostRange>,
    /// Which keys may have a wrong result.
    pub suspects: Vec<SuspectRange>,
    /// The keyspaces, in the order of their ids.
    pub keyspaces: Vec<KeyspaceRepair>,
    /// Tables that were found and not used.
    pub unused: Vec<UnusedFile>,
}

impl RepairReport {
    /// Whether nothing is lost and nothing is suspect, so the target has what the source had. A
    /// last record of the log that is not complete ([`LogFound::is_torn`]) does not count as lost.
    pub fn lost_nothing(&self) -> bool {
        self.lost.is_empty() && self.suspects.is_empty() && self.log.holes.is_empty()
    }

    /// Whether the result for a key may be wrong. The target's entry for the key has this sequence
    /// number (0: there is no entry).
    pub fn is_suspect(&self, keyspace: KeyspaceId, key: &[u8], number: u64) -> bool {
        self.suspects
            .iter()
            .any(|s| s.keyspace == keyspace && s.holds(key, number))
    }

    fn name(&self, id: KeyspaceId) -> String {
        match self.keyspaces.iter().find(|k| k.id == id) {
            Some(keyspace) => keyspace.name.clone(),
            None => format!("keyspace {id}"),
        }
    }

    /// The report as one JSON object. Keys are hexadecimal; the `end` of a range without an end is
    /// null.
    pub fn to_json(&self) -> String {
        let mut json = Json::default();
        json.object(|json| {
            json.field("source", |j| match self.source_id {
                Some(id) => j.text(&id.to_string()),
                None => j.null(),
            });
            json.field("target", |j| j.text(&self.target_id.to_string()));
            json.field("lost_nothing", |j| j.flag(self.lost_nothing()));
            json.field("strict", |j| j.flag(self.strict));
            json.field("manifest", |j| {
                j.object(|j| {
                    j.field("name", |j| match &self.manifest {
                        Some(name) => j.text(name),
                        None => j.null(),
                    });
                    j.field("record_count", |j| j.number(self.manifest_record_count));
                    j.field("is_whole", |j| j.flag(self.manifest_is_whole));
                });
            });
            json.field("log", |j| self.log.write(j));
            json.field("keyspaces", |j| {
                j.list(&self.keyspaces, |j, k| {
                    j.field("id", |j| j.number(k.id.into()));
                    j.field("name", |j| j.text(&k.name));
                    j.field("key_count", |j| j.number(k.key_count));
                    j.field("byte_count", |j| j.number(k.byte_count));
                    j.field("suspect_key_count", |j| j.number(k.suspect_key_count));
                    j.field("left_out_key_count", |j| j.number(k.left_out_key_count));
                    j.field("table_count", |j| j.number(k.table_count));
                });
            });
            json.field("lost", |j| {
                j.list(&self.lost, |j, l| {
                    j.field("file", |j| j.text(&l.file));
                    j.field("what", |j| j.text(l.what.word()));
                    j.field("block", |j| j.maybe(l.block));
                    j.field("offset", |j| j.number(l.offset));
                    j.field("bytes", |j| j.number(l.bytes));
                    j.field("keyspace", |j| j.text(&self.name(l.keyspace)));
                    j.range(&l.range);
                    j.field("entry_count", |j| j.maybe(l.entry_count));
                });
            });
            json.field("suspects", |j| {
                j.list(&self.suspects, |j, s| {
                    j.field("keyspace", |j| j.text(&self.name(s.keyspace)));
                    j.range(&s.range);
                    j.field("below_number", |j| j.maybe(s.below));
                    j.field("why", |j| j.text(s.why.word()));
                });
            });
            json.field("damage", |j| {
                j.list(&self.damage, |j, d| {
                    j.field("file", |j| match d.file() {
                        Some(file) => j.text(file),
                        None => j.null(),
                    });
                    j.field("offset", |j| j.maybe(d.offset()));
                    j.field("message", |j| j.text(d.message()));
                });
            });
            json.field("unused", |j| {
                j.list(&self.unused, |j, u| {
                    j.field("file", |j| j.text(&u.name));
                    j.field("why", |j| j.text(u.why));
                });
            });
        });
        json.0.push('\n');
        json.0
    }
}

impl LogFound {
    fn write(&self, j: &mut Json) {
        j.object(|j| {
            j.field("segment_count", |j| j.number(self.segment_count));
            j.field("record_count", |j| j.number(self.record_count));
            j.field("record_bytes", |j| j.number(self.record_bytes));
            j.field("last_number", |j| j.number(self.last_number));
            j.field("end_segment", |j| j.number(self.end.segment.into()));
            j.field("end_offset", |j| j.number(self.end.offset.into()));
            j.field("is_torn", |j| j.flag(self.is_torn));
            j.field("end_is_clear", |j| j.flag(self.end_is_clear));
            if let Some(end) = self.closed_end {
                j.field("closed_segment", |j| j.number(end.segment.into()));
                j.field("closed_offset", |j| j.number(end.offset.into()));
            }
            j.field("holes", |j| {
                j.list(&self.holes, |j, h| {
                    j.field("before_segment", |j| j.number(h.before.segment.into()));
                    j.field("before_offset", |j| j.number(h.before.offset.into()));
                    j.field("after_number", |j| j.number(h.after_number));
                    j.field("before_number", |j| j.maybe(h.before_number));
                });
            });
        });
    }
}

impl fmt::Display for RepairReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain =
            |n: Option<u64>| n.map_or("an unknown number of".to_string(), |n| n.to_string());
        match &self.manifest {
            Some(name) => writeln!(
                f,
                "manifest  {name}, {} good records, {}",
                self.manifest_record_count,
                if self.manifest_is_whole {
                    "whole"
                } else {
                    "NOT WHOLE: what was deleted, replaced or dropped since it was good is not \
                     known"
                }
            )?,
            None => writeln!(
                f,
                "manifest  none that can be read: the keyspaces are those that tables and log name"
            )?,
        }
        writeln!(
            f,
            "log       {} records in {} segments, up to number {}, ends at {}",
            self.log.record_count, self.log.segment_count, self.log.last_number, self.log.end
        )?;
        if let Some(closed) = self.log.closed_end {
            writeln!(
                f,
                "          the store was closed with its log ending at {closed}"
            )?;
        }
        if self.log.is_torn {
            writeln!(f, "          {TORN_RECORD}")?;
        } else if !self.log.end_is_clear {
            writeln!(
                f,
                "          bytes behind the end are not a record: either a recycled segment held \
                 them before, or the last record is damaged (then the last writes are missing; no \
                 format can tell these apart)"
            )?;
        }
        for hole in &self.log.holes {
            match hole.before_number {
                Some(next) => writeln!(
                    f,
                    "          HOLE before {}: records with numbers from {} to {} are lost",
                    hole.before,
                    hole.after_number + 1,
                    next.saturating_sub(1)
                )?,
                None => writeln!(
                    f,
                    "          HOLE at the end, {}: records with numbers from {} on are lost",
                    hole.before,
                    hole.after_number + 1
                )?,
            }
        }
        for damage in &self.damage {
            writeln!(f, "damaged   {damage}")?;
        }
        for lost in &self.lost {
            writeln!(
                f,
                "LOST      {} of {} at byte {} ({} bytes{}): {} entries of keyspace {} in {}",
                lost.what.word(),
                lost.file,
                lost.offset,
                lost.bytes,
                match lost.block {
                    Some(block) => format!(", from block {block}"),
                    None => String::new(),
                },
                plain(lost.entry_count),
                self.name(lost.keyspace),
                lost.range
            )?;
        }
        for suspect in &self.suspects {
            writeln!(
                f,
                "SUSPECT   {} {}{}: {}",
                self.name(suspect.keyspace),
                suspect.range,
                match suspect.below {
                    Some(below) => format!(", entries numbered below {below}"),
                    None => String::new(),
                },
                match suspect.why {
                    SuspectWhy::Lost => "a table lost data there",
                    SuspectWhy::Island => "blocks without neighbours; they may be part of a value",
                    SuspectWhy::LogHole => "records of the log are lost",
                    SuspectWhy::Manifest => "the manifest is not whole",
                }
            )?;
        }
        for unused in &self.unused {
            writeln!(f, "not used  {}: {}", unused.name, unused.why)?;
        }
        for k in &self.keyspaces {
            write!(
                f,
                "keyspace  {}: {} keys, {} bytes, from {} tables and the log",
                k.name, k.key_count, k.byte_count, k.table_count
            )?;
            if k.suspect_key_count > 0 {
                write!(f, "; {} of the keys are suspect", k.suspect_key_count)?;
            }
            if k.left_out_key_count > 0 {
                write!(f, "; {} suspect keys were left out", k.left_out_key_count)?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

/// Writes JSON from front to back.
#[derive(Default)]
struct Json(String);

impl Json {
    fn separate(&mut self) {
        if !self.0.is_empty() && !self.0.ends_with(['{', '[', ':']) {
            self.0.push(',');
        }
    }

    fn object(&mut self, fields: impl FnOnce(&mut Json)) {
        self.0.push('{');
        fields(self);
        self.0.push('}');
    }

    fn field(&mut self, name: &str, value: impl FnOnce(&mut Json)) {
        self.separate();
        self.text(name);
        self.0.push(':');
        value(self);
    }

    fn list<T>(&mut self, items: &[T], fields: impl Fn(&mut Json, &T)) {
        self.0.push('[');
        for item in items {
            self.separate();
            self.object(|json| fields(json, item));
        }
        self.0.push(']');
    }

    fn text(&mut self, text: &str) {
        self.0.push('"');
        for c in text.chars() {
            match c {
                '"' => self.0.push_str("\\\""),
                '\\' => self.0.push_str("\\\\"),
                c if c < ' ' => {
                    let _ = write!(self.0, "\\u{:04x}", c as u32);
                }
                c => self.0.push(c),
            }
        }
        self.0.push('"');
    }

    fn number(&mut self, number: u64) {
        let _ = write!(self.0, "{number}");
    }

    fn maybe(&mut self, number: Option<u64>) {
        match number {
            Some(number) => self.number(number),
            None => self.null(),
        }
    }

    fn flag(&mut self, flag: bool) {
        self.0.push_str(if flag { "true" } else { "false" });
    }

    fn null(&mut self) {
        self.0.push_str("null");
    }

    fn hex(&mut self, bytes: &[u8]) {
        self.0.push('"');
        for byte in bytes {
            let _ = write!(self.0, "{byte:02x}");
        }
        self.0.push('"');
    }

    fn range(&mut self, range: &KeyRange) {
        self.field("start", |j| j.hex(&range.start));
        self.field("end", |j| match range.end.key() {
            Some(key) => j.hex(key),
            None => j.null(),
        });
        let included = matches!(range.end, End::Included(_));
        self.field("end_included", |j| j.flag(included));
    }
}

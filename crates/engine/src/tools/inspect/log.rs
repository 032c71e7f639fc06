//! Reads a log segment, record by record.

use std::fmt;

use siltstone_storage::ReadFile;

use super::shrank;
use crate::formats::batch::{Entries, Entry};
use crate::formats::log::bodies::{decode_create, decode_drop};
use crate::formats::log::format::{
    BadHeader, BadRecord, MAGIC, Plausible, RECORD_ALIGN_BYTES, RecordHeader, RecordKind,
    RecordSeed, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION, chain, parse_segment_name,
    unknown_record,
};
use crate::formats::log::reader::{SegmentHead, SegmentReader, WINDOW_BYTES};
use crate::formats::version::Edit;
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::stored::StoredOptions;

/// A log segment that is being read. See [`LogFile::next_item`].
pub struct LogFile<'a> {
    segment: SegmentReader<&'a dyn ReadFile>,
    number: Option<u32>,
    header: std::result::Result<(SegmentHeader, u32), Error>,
    /// The seeds with which its records may have been written. If the header is damaged there may
    /// be several, until a record has shown the right one.
    seeds: Vec<RecordSeed>,
    is_unused: bool,
    at: u64,
    /// The checksum chained over the records so far; `None` after some were lost.
    chained: Option<u32>,
    ended: bool,
}

/// A part of a log segment.
#[derive(Debug)]
pub enum LogItem<'a> {
    /// A record with valid checksums.
    Record(LogRecord<'a>),
    /// Bytes that are not a record, although there was one.
    Damage {
        /// What was found, with its offset.
        error: Error,
        /// The offset at which the next record begins, or the file ends.
        end: u64,
    },
    /// Where the records end. This is the last item, unless that is damage.
    End(LogEnd),
}

/// A record of the log.
#[derive(Debug)]
pub struct LogRecord<'a> {
    /// The offset in the file at which it begins.
    pub offset: u64,
    /// The offset at which it ends, including padding.
    pub end: u64,
    /// Its header.
    pub header: RecordHeader,
    /// Its checksum.
    pub checksum: u32,
    /// Its contents.
    pub content: LogContent<'a>,
}

/// The contents of a record of the log.
#[derive(Debug)]
pub enum LogContent<'a> {
    /// Batches, see [`LogRecord::entries`].
    Batches(&'a [u8]),
    /// Tables from outside were ingested.
    Ingest(Box<Edit>),
    /// A keyspace was created.
    Create {
        /// The keyspace's id.
        id: KeyspaceId,
        /// The keyspace's name.
        name: &'a str,
        /// The options that were set for it.
        options: StoredOptions,
    },
    /// A keyspace was dropped.
    Drop(KeyspaceId),
    /// A kind, or an encoding, that this build does not know, with valid checksums.
    Unknown(Error),
}

/// An entry of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry<'a> {
    /// The offset in the file at which it begins.
    pub offset: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// The entry.
    pub entry: Entry<'a>,
}

impl<'a> LogRecord<'a> {
    /// The name of the record's kind.
    pub fn kind_word(&self) -> &'static str {
        match RecordKind::from_number(self.header.kind) {
            Some(RecordKind::Group) => "group",
            Some(RecordKind::Ingest) => "ingest",
            Some(RecordKind::KeyspaceCreate) => "keyspace create",
            Some(RecordKind::KeyspaceDrop) => "keyspace drop",
            None => "unknown",
        }
    }

    /// The entries of a group of batches; other records have none. The iterator ends after its
    /// first error, which says where and why an entry does not decode.
    pub fn entries(&self) -> impl Iterator<Item = Result<LogEntry<'a>>> + use<'a> {
        let body = match &self.content {
            LogContent::Batches(body) => body,
            _ => &[][..],
        };
        let base = self.offset + self.header.len() as u64;
        let first = self.header.first_sequence;
        let mut entries = Entries::new(body);
        let mut count = 0;
        std::iter::from_fn(move || {
            let offset = base + entries.position() as u64;
            let entry = entries.next()?;
            let sequence = first.saturating_add(count);
            count += 1;
            Some(match entry {
                Ok(entry) => Ok(LogEntry {
                    offset,
                    sequence,
                    entry,
                }),
                Err(bad) => Err(bad.into_error("a batch of the log").at(offset)),
            })
        })
    }
}

/// What follows the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: the file ends.
    Nothing,
    /// Zeros: space for further records.
    Zeros,
    /// Other bytes: old contents of a recycled segment, or a last record that is damaged beyond
    /// recognition. No format can tell these apart.
    Old,
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rest::Nothing => "the file ends",
            Rest::Zeros => "zeros follow: space for records",
            Rest::Old => {
                "bytes follow that are not a record of this segment: old ones of a recycled file, \
                 one that is damaged beyond recognition"
            }
        })
    }
}

/// Where the records of a segment end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// The offset in the file, in bytes.
    pub offset: u64,
    /// The number of bytes that follow.
    pub rest_bytes: u64,
    /// What these bytes are.
    pub rest: Rest,
    /// The checksum chained over header and records, which the next segment's header has; `None` if
    /// something was lost.
    pub chained: Option<u32>,
}

impl<'a> LogFile<'a> {
    /// Reads the header. If it is damaged, [`LogFile::header`] says so, and records are still
    /// searched with the values of its fields and the file's name.
    ///
    /// # Errors
    /// Those of the storage, and a lack of memory.
    pub fn open(file: &'a dyn ReadFile) -> Result<LogFile<'a>> {
        let mut segment = SegmentReader::of(file);
        let bytes = segment.head_bytes().map_err(shrank)?;
        let is_unused = !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0);
        let named = parse_segment_name(file.name());
        // The file may have been renamed or copied. Its own number counts, if its checksum is
        // valid.
        let field = SegmentHeader::number_field(bytes);
        let head = SegmentHead::decode(bytes, field.or(named).unwrap_or(0));
        let header = head.header.map_err(|bad| described(file.name(), &bad));
        let mut numbers: Vec<u32> = match &header {
            Ok((header, _)) => vec![header.number],
            Err(_) => named.into_iter().chain(field).collect(),
        };
        numbers.dedup();
        let seeds = head.salt.map_or(Vec::new(), |salt| {
            let seed = |number: &u32| RecordSeed::new(salt, *number);
            numbers.iter().map(seed).collect()
        });
        Ok(LogFile {
            number: numbers.first().copied(),
            chained: header.as_ref().ok().map(|(_, checksum)| *checksum),
            segment,
            header,
            seeds,
            is_unused,
            at: SEGMENT_HEADER_BYTES as u64,
            ended: false,
        })
    }

    /// The segment's number: that of the header or, if the header is damaged, that of the name.
    pub fn number(&self) -> Option<u32> {
        self.number
    }

    /// Whether it begins with zeros: the segment was made ready before it is needed, and its header
    /// is written with its first record.
    pub fn is_unused(&self) -> bool {
        self.is_unused
    }

    /// The header and its checksum.
    ///
    /// # Errors
    /// What is wrong with the header.
    pub fn header(&self) -> std::result::Result<(&SegmentHeader, u32), &Error> {
        self.header
            .as_ref()
            .map(|(header, checksum)| (header, *checksum))
    }

    /// The next part of the segment, in the order of the file; `None` behind the last one.
    ///
    /// # Errors
    /// Those of the storage, and a lack of memory. Damage is an item.
    pub fn next_item(&mut self) -> Result<Option<LogItem<'_>>> {
        if self.ended {
            return Ok(None);
        }
        let at = self.at;
        let bad = match self.record(at).map_err(shrank)? {
            Ok(found) => return self.take(at, &found).map_err(shrank).map(Some),
            Err(bad) => bad,
        };
        self.chained = self.chained.filter(|_| !bad.is_torn());
        let behind = at + RECORD_ALIGN_BYTES as u64;
        let next = self.segment.next(behind, &self.seeds).map_err(shrank)?;
        let name = self.segment.name().to_string();
        let len = self.segment.len();
        if let Some(found) = next {
            let next = found.at;
            self.seeds = vec![self.seeds[found.seed]];
            self.chained = None;
            self.at = next;
            let error = with_found(
                Error::corruption(
                    name,
                    "a record is damaged, or was torn by a crash before it was synced",
                ),
                &bad,
            );
            return Ok(Some(LogItem::Damage {
                error: error.at(at).expected(format_args!(
                    "a good record, because a good one follows at byte {next}"
                )),
                end: next,
            }));
        }
        if bad.is_torn() {
            // The header was written for exactly this offset.
            self.at = len;
            let error = with_found(
                Error::corruption(
                    name,
                    "the last record is cut off or damaged; of a live store it may be being \
                     written",
                ),
                &bad,
            );
            let error = error.at(at);
            // The rest of the file belongs to this record, because its end is unknown.
            self.ended = true;
            return Ok(Some(LogItem::Damage { error, end: len }));
        }
        self.ended = true;
        let offset = at.min(len);
        Ok(Some(LogItem::End(LogEnd {
            offset,
            rest_bytes: len - offset,
            rest: self.rest(offset).map_err(shrank)?,
            chained: self.chained,
        })))
    }

    /// The record at `at`, completely verified.
    fn record(&mut self, at: u64) -> Result<std::result::Result<Plausible, BadRecord>> {
        let mut bad = BadRecord::Header;
        for (i, &seed) in self.seeds.iter().enumerate() {
            match self.segment.record(at, seed)? {
                Ok((found, _)) => {
                    self.seeds = vec![seed];
                    return Ok(Ok(found));
                }
                Err(why) if i == 0 || why.is_torn() => bad = why,
                Err(_) => {}
            }
        }
        Ok(Err(bad))
    }

    /// What the bytes from `at` to the end are.
    fn rest(&mut self, mut at: u64) -> Result<Rest> {
        let len = self.segment.len();
        if at == len {
            return Ok(Rest::Nothing);
        }
        while at < len {
            let n = (len - at).min(WINDOW_BYTES as u64);
            let bytes = self.segment.bytes(at, n as usize)?;
            if bytes.iter().any(|byte| *byte != 0) {
                return Ok(Rest::Old);
            }
            at += n;
        }
        Ok(Rest::Zeros)
    }

    fn take(&mut self, at: u64, found: &Plausible) -> Result<LogItem<'_>> {
        self.at = u64::from(found.end);
        self.chained = self.chained.map(|sum| chain(sum, found.stored));
        let name = self.segment.name().to_string();
        let payload_at = at + found.header.len() as u64;
        let payload_bytes = found.header.payload_bytes as usize;
        let payload = self.segment.bytes(payload_at, payload_bytes)?;
        let placed = |error: Error| error.in_file(name.clone()).at(payload_at);
        let content = match RecordKind::from_number(found.header.kind) {
            Some(RecordKind::Group) => Ok(LogContent::Batches(payload)),
            Some(RecordKind::Ingest) => {
                Edit::decode(payload).map(|d| LogContent::Ingest(Box::new(d.edit)))
            }
            Some(RecordKind::KeyspaceCreate) => decode_create(payload)
                .map(|(id, name, options)| LogContent::Create { id, name, options }),
            Some(RecordKind::KeyspaceDrop) => decode_drop(payload).map(LogContent::Drop),
            None => Err(unknown_record(found.header.kind)),
        };
        let content = content.unwrap_or_else(|error| LogContent::Unknown(placed(error)));
        Ok(LogItem::Record(LogRecord {
            offset: at,
            end: u64::from(found.end),
            header: found.header,
            checksum: found.stored,
            content,
        }))
    }
}

fn with_found(error: Error, bad: &BadRecord) -> Error {
    match bad {
        BadRecord::Checksum { expected, found } => error
            .expected(format_args!("record checksum {expected:#010x}"))
            .found(format_args!("{found:#010x}")),
        bad => error.found(bad),
    }
}

fn described(name: &str, bad: &BadHeader) -> Error {
    let error = |what| Error::corruption(name, what);
    match bad {
        BadHeader::TooShort(len) => error("the segment is shorter than its header")
            .at(0)
            .expected(format_args!("at least {SEGMENT_HEADER_BYTES} bytes"))
            .found(len),
        BadHeader::Magic(found) => error("the file does not begin like a log segment")
            .at(0)
            .expected(format_args!("{:02x?}", MAGIC))
            .found(format_args!("{found:02x?}")),
        BadHeader::Version(found) => {
            Error::unsupported("this version does not know the format of the log segment")
                .in_file(name)
                .at(8)
                .expected(VERSION)
                .found(found)
                .advice("inspect it with the version of siltstone that wrote it")
        }
        BadHeader::HeaderBytes(found) => error("the length of the segment's header is not valid")
            .at(12)
            .expected(SEGMENT_HEADER_BYTES)
            .found(found),
        BadHeader::Checksum { expected, found } => {
            error("the checksum of the segment's header does not match")
                .at(60)
                .expected(format_args!("{expected:#010x}"))
                .found(format_args!("{found:#010x}"))
        }
        bad => error("the header of the segment has a value that is never written")
            .at(0)
            .found(bad),
    }
}

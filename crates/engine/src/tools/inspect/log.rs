//! A log segment, record by record.

use std::fmt;

use siltstone_storage::ReadFile;

use super::shrank;
use crate::formats::batch::{Entries, Entry};
use crate::formats::log::bodies::{decode_create, decode_drop};
use crate::formats::log::format::{
    BadHeader, BadRecord, MAGIC, Plausible, RECORD_ALIGN_BYTES, RECORD_HEADER_BYTES, RecordHeader,
    RecordKind, RecordSeed, SEGMENT_HEADER_BYTES, SegmentHeader, VERSION, chain,
    parse_segment_name,
};
use crate::formats::log::reader::{SegmentHead, SegmentReader, WINDOW_BYTES};
use crate::formats::version::Edit;
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;
use crate::types::options::stored::StoredOptions;

/// A log segment being read. See [`LogFile::next_item`].
pub struct LogFile<'a> {
    segment: SegmentReader<&'a dyn ReadFile>,
    number: Option<u32>,
    header: std::result::Result<(SegmentHeader, u32), Error>,
    /// The seeds with which its records may have been written. If the header is damaged there may
    /// be several, until a record has shown which one it is.
    seeds: Vec<RecordSeed>,
    is_unused: bool,
    at: u64,
    /// Chained over the records so far; `None` once some were lost.
    chained: Option<u32>,
    ended: bool,
}

/// A part of a log segment.
#[derive(Debug)]
pub enum LogItem<'a> {
    /// A record whose checksums hold.
    Record(LogRecord<'a>),
    /// Bytes that are no record, though one is known to have been there.
    Damage {
        /// What was found, with offset.
        error: Error,
        /// Where the next record begins, or where the file ends.
        end: u64,
    },
    /// Where the records end. The last item, unless damage is.
    End(LogEnd),
}

/// A record of the log.
#[derive(Debug)]
pub struct LogRecord<'a> {
    /// Where it begins in the file.
    pub offset: u64,
    /// Where it ends, padding included.
    pub end: u64,
    /// Its header.
    pub header: RecordHeader,
    /// Its checksum.
    pub checksum: u32,
    /// What it says.
    pub content: LogContent<'a>,
}

/// What a record of the log says.
#[derive(Debug)]
pub enum LogContent<'a> {
    /// Batches; see [`LogRecord::entries`].
    Batches(&'a [u8]),
    /// Tables taken in from outside.
    Ingest(Box<Edit>),
    /// A keyspace was created.
    Create {
        /// Its id.
        id: KeyspaceId,
        /// Its name.
        name: &'a str,
        /// What was set for it.
        options: StoredOptions,
    },
    /// A keyspace was dropped.
    Drop(KeyspaceId),
    /// A kind, or an encoding, that this build does not know, under checksums that hold.
    Unknown(Error),
}

/// An entry of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEntry<'a> {
    /// Where it begins in the file.
    pub offset: u64,
    /// Its sequence number.
    pub sequence: u64,
    /// The entry.
    pub entry: Entry<'a>,
}

impl<'a> LogRecord<'a> {
    /// What the kind is called.
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
        let base = self.offset + RECORD_HEADER_BYTES as u64;
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

/// What stands behind the last record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rest {
    /// Nothing: the file ends.
    Nothing,
    /// Zeros: space for further records.
    Zeros,
    /// Other bytes: what a recycled segment held before, or a last record that is damaged beyond
    /// recognition. No format can tell the two apart.
    Old,
}

impl fmt::Display for Rest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Rest::Nothing => "the file ends",
            Rest::Zeros => "zeros follow: space for records",
            Rest::Old => {
                "bytes follow that are no record of this segment: a recycled file's old ones, or \
                 one that is damaged beyond recognition"
            }
        })
    }
}

/// Where the records of a segment end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogEnd {
    /// Offset in the file, in bytes.
    pub offset: u64,
    /// Bytes behind it.
    pub rest_bytes: u64,
    /// What these are.
    pub rest: Rest,
    /// The checksum chained over header and records, which the next segment's header names; `None`
    /// if something was lost.
    pub chained: Option<u32>,
}

impl<'a> LogFile<'a> {
    /// Reads the header. If it is damaged, [`LogFile::header`] says so, and records are searched
    /// all the same, with what its fields and the file's name say.
    ///
    /// # Errors
    /// Those of the storage, and a lack of memory.
    pub fn open(file: &'a dyn ReadFile) -> Result<LogFile<'a>> {
        let mut segment = SegmentReader::of(file);
        let bytes = segment.head_bytes().map_err(shrank)?;
        let is_unused = !bytes.is_empty() && bytes.iter().all(|byte| *byte == 0);
        let named = parse_segment_name(file.name());
        // The file may have been renamed or copied: its own number counts, if its checksum does.
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

    /// The segment's number: the header's, or if that is damaged, the name's.
    pub fn number(&self) -> Option<u32> {
        self.number
    }

    /// Whether it begins with zeros: a segment that was made ready before it is needed. Its header
    /// is written with its first record.
    pub fn is_unused(&self) -> bool {
        self.is_unused
    }

    /// The header and its checksum.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn header(&self) -> std::result::Result<(&SegmentHeader, u32), &Error> {
        self.header
            .as_ref()
            .map(|(header, checksum)| (header, *checksum))
    }

    /// The next part of the segment, in file order; `None` behind the last.
    ///
    /// # Errors
    /// Those of the storage, and a lack of memory; damage is an item.
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
            let error = told(
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
            // Its header was written for this very place.
            self.at = len;
            let error = told(
                Error::corruption(
                    name,
                    "the last record is cut off or damaged; of a live store it may be being \
                     written",
                ),
                &bad,
            );
            let error = error.at(at);
            // The rest of the file is this record's: where it ends is not known.
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

    /// The record at `at`, verified whole.
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

    /// What lies from `at` to the end.
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
        let payload_at = at + RECORD_HEADER_BYTES as u64;
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
            None => Err(Error::unsupported(format!(
                "a log record of kind {}, which is not known here",
                found.header.kind
            ))
            .advice("look at it with the version of siltstone that wrote it")),
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

fn told(error: Error, bad: &BadRecord) -> Error {
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
        BadHeader::Magic(found) => error("this does not begin as a log segment")
            .at(0)
            .expected(format_args!("{:02x?}", MAGIC))
            .found(format_args!("{found:02x?}")),
        BadHeader::Version(found) => {
            Error::unsupported("the log segment is of a format version that is not known here")
                .in_file(name)
                .at(8)
                .expected(VERSION)
                .found(found)
                .advice("look at it with the version of siltstone that wrote it")
        }
        BadHeader::HeaderBytes(found) => error("the length of the segment's header is impossible")
            .at(12)
            .expected(SEGMENT_HEADER_BYTES)
            .found(found),
        BadHeader::Checksum { expected, found } => {
            error("the checksum of the segment's header does not match")
                .at(60)
                .expected(format_args!("{expected:#010x}"))
                .found(format_args!("{found:#010x}"))
        }
        bad => error("the header of the segment says what no writer writes")
            .at(0)
            .found(bad),
    }
}

//! Merges the salvaged sources of a keyspace: for each key the newest entry, unless a range delete
//! is newer.
//!
//! Invariants: keys ascend. Each occurs once, with the sequence number with which it was written.
//! Sources may overlap, and may hold the same entry twice.
//!
//! Threading: each job has one stream.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering as Memory};

use siltstone_storage::ReadFile;
use siltstone_table::TableError;
use siltstone_table::exec::{EntryStream, StreamEntry, StreamSource};
use siltstone_table::index::Place;
use siltstone_table::job::KeyBounds;
use siltstone_table::key::{HIGHEST_TRAILER, Kind, MAX_SEQ};
use siltstone_table::rangedel::RangeDeletes;
use siltstone_table::reader::{ReaderOptions, TableReader, Verify};
use siltstone_table::retain::RangeDelete;
use siltstone_table::salvage::PieceReader;

use super::report::SuspectRange;
use super::tables::{TableFolders, TableSource};

/// An entry of the log: key, trailer, value.
pub(super) type LogEntry = (Vec<u8>, u64, Vec<u8>);

/// The figures of a merge.
#[derive(Debug, Default)]
pub(super) struct Counts {
    pub(super) keys: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) suspects: AtomicU64,
    pub(super) left_out: AtomicU64,
}

/// All sources of a keyspace.
pub(super) struct Sources {
    pub(super) folders: TableFolders,
    pub(super) tables: Vec<TableSource>,
    /// The newest entry of each key in the log, in the order of keys.
    pub(super) log: Vec<LogEntry>,
    pub(super) deletes: RangeDeletes,
    /// The suspect ranges, in the order of their starts.
    pub(super) suspects: Vec<SuspectRange>,
    pub(super) strict: bool,
    pub(super) counts: Counts,
}

/// The sources as the input stream of a job.
pub(super) struct MergeSource(pub(super) Arc<Sources>);

impl StreamSource for MergeSource {
    fn key_bounds(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }

    fn range_deletes(&self) -> Result<Vec<RangeDelete>, TableError> {
        // The stream applies them itself.
        Ok(Vec::new())
    }

    fn open(&self, bounds: &KeyBounds) -> Result<Box<dyn EntryStream>, TableError> {
        Ok(Box::new(Merge::new(self.0.clone(), bounds.clone())))
    }
}

/// A position in one source.
enum Cursor {
    /// A table that was not read yet.
    Closed(usize),
    Table(Box<TableCursor>),
    Log(usize),
}

struct TableCursor {
    source: usize,
    file: Arc<dyn ReadFile>,
    places: Places,
    next_place: usize,
    reader: PieceReader,
    entry: usize,
}

enum Places {
    Index(Arc<TableReader>),
    These(Vec<Place>),
}

impl Places {
    fn get(&self, i: usize) -> Option<Place> {
        match self {
            Places::Index(table) => (i < table.index().len()).then(|| table.index().place(i)),
            Places::These(places) => places.get(i).copied(),
        }
    }
}

impl TableCursor {
    fn open(sources: &Sources, source: usize) -> Result<TableCursor, TableError> {
        let table = &sources.tables[source];
        let file = sources.folders.open(&table.name)?;
        let places = match &table.places {
            Some(places) => Places::These(places.clone()),
            None => {
                let options = ReaderOptions {
                    verify: Verify::Always,
                    map: false,
                    ..ReaderOptions::default()
                };
                Places::Index(TableReader::open(file.clone(), options)?)
            }
        };
        Ok(TableCursor {
            source,
            file,
            places,
            next_place: 0,
            reader: PieceReader::default(),
            entry: 0,
        })
    }

    /// Moves to the next entry that is used, and returns its key and trailer.
    fn next(&mut self, sources: &Sources) -> Result<Option<(Vec<u8>, u64)>, TableError> {
        let table = &sources.tables[self.source];
        loop {
            self.entry += 1;
            while self.entry >= self.reader.len() {
                let Some(place) = self.places.get(self.next_place) else {
                    return Ok(None);
                };
                self.reader.read(&*self.file, place)?;
                self.next_place += 1;
                self.entry = 0;
            }
            let key = self.reader.key(self.entry);
            let counts = match &table.clip {
                Some(ranges) => ranges.iter().any(|r| r.contains(key)),
                None => true,
            };
            let own = self.reader.trailer(self.entry);
            let hidden = own & 0xff == Kind::Put as u64
                && table
                    .covered
                    .as_ref()
                    .is_some_and(|covered| covered.hides(key, own >> 8));
            if counts && !hidden {
                let trailer = match table.sequence_override {
                    Some(number) => number << 8 | own & 0xff,
                    None => own,
                };
                return Ok(Some((key.to_vec(), trailer)));
            }
        }
    }
}

/// The next entry of a source. The smallest key comes first, and of equal keys the newest entry.
struct Head {
    key: Vec<u8>,
    trailer: u64,
    cursor: Cursor,
}

impl PartialEq for Head {
    fn eq(&self, other: &Head) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Head) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Head) -> Ordering {
        let keys = other.key.cmp(&self.key);
        keys.then_with(|| self.trailer.cmp(&other.trailer))
    }
}

struct Merge {
    sources: Arc<Sources>,
    bounds: KeyBounds,
    heads: BinaryHeap<Head>,
    /// The last key for which an entry was chosen or skipped.
    key: Vec<u8>,
    decided: bool,
    value: Vec<u8>,
    /// Suspect ranges that have begun, and the index of the first that has not.
    active: Vec<usize>,
    next_suspect: usize,
}

impl Merge {
    fn new(sources: Arc<Sources>, bounds: KeyBounds) -> Merge {
        for count in [
            &sources.counts.keys,
            &sources.counts.bytes,
            &sources.counts.suspects,
            &sources.counts.left_out,
        ] {
            count.store(0, Memory::Relaxed);
        }
        let mut heads = BinaryHeap::new();
        for (i, table) in sources.tables.iter().enumerate() {
            heads.push(Head {
                key: table.first_key.clone(),
                // It comes before every entry of this key, so the table is opened when it is
                // needed.
                trailer: HIGHEST_TRAILER,
                cursor: Cursor::Closed(i),
            });
        }
        if let Some((key, trailer, _)) = sources.log.first() {
            heads.push(Head {
                key: key.clone(),
                trailer: *trailer,
                cursor: Cursor::Log(0),
            });
        }
        Merge {
            sources,
            bounds,
            heads,
            key: Vec::new(),
            decided: false,
            value: Vec::new(),
            active: Vec::new(),
            next_suspect: 0,
        }
    }

    /// Moves a source to its next entry and puts it back.
    fn advance(&mut self, cursor: Cursor) -> Result<(), TableError> {
        let head = match cursor {
            Cursor::Closed(source) => {
                let mut table = Box::new(TableCursor::open(&self.sources, source)?);
                let next = table.next(&self.sources)?;
                next.map(|(key, trailer)| Head {
                    key,
                    trailer,
                    cursor: Cursor::Table(table),
                })
            }
            Cursor::Table(mut table) => table.next(&self.sources)?.map(|(key, trailer)| Head {
                key,
                trailer,
                cursor: Cursor::Table(table),
            }),
            Cursor::Log(i) => self.sources.log.get(i + 1).map(|(key, trailer, _)| Head {
                key: key.clone(),
                trailer: *trailer,
                cursor: Cursor::Log(i + 1),
            }),
        };
        self.heads.extend(head);
        Ok(())
    }

    /// Whether the result for the key may be wrong. Calls must come with ascending keys.
    fn is_suspect(&mut self, key: &[u8], number: u64) -> bool {
        let suspects = &self.sources.suspects;
        while let Some(next) = suspects.get(self.next_suspect)
            && &next.range.start[..] <= key
        {
            self.active.push(self.next_suspect);
            self.next_suspect += 1;
        }
        self.active.retain(|i| suspects[*i].range.end.reaches(key));
        self.active.iter().any(|i| suspects[*i].holds(key, number))
    }
}

impl EntryStream for Merge {
    fn next_entry(&mut self) -> Result<Option<StreamEntry<'_>>, TableError> {
        while let Some(head) = self.heads.pop() {
            if matches!(head.cursor, Cursor::Closed(_)) || self.decided && head.key == self.key {
                self.advance(head.cursor)?;
                continue;
            }
            self.key.clone_from(&head.key);
            self.decided = true;
            let (seq, kind) = (head.trailer >> 8, head.trailer as u8);
            let deleted = self.sources.deletes.covering_seq(&head.key, MAX_SEQ);
            let inside = self.bounds.start <= head.key
                && self.bounds.end.as_ref().is_none_or(|end| head.key < *end);
            let live =
                inside && kind == Kind::Put as u8 && deleted.is_none_or(|deleted| deleted < seq);
            if live {
                self.value.clear();
                match &head.cursor {
                    Cursor::Table(t) => self.value.extend_from_slice(t.reader.value(t.entry)),
                    Cursor::Log(i) => self.value.extend_from_slice(&self.sources.log[*i].2),
                    Cursor::Closed(_) => {}
                }
            }
            self.advance(head.cursor)?;
            if !live {
                continue;
            }
            let suspect = self.is_suspect(&head.key, seq);
            let counts = &self.sources.counts;
            if suspect && self.sources.strict {
                counts.left_out.fetch_add(1, Memory::Relaxed);
                continue;
            }
            counts.suspects.fetch_add(suspect.into(), Memory::Relaxed);
            counts.keys.fetch_add(1, Memory::Relaxed);
            let bytes = self.key.len() + self.value.len();
            counts.bytes.fetch_add(bytes as u64, Memory::Relaxed);
            return Ok(Some(StreamEntry {
                user_key: &self.key,
                trailer: head.trailer,
                value: &self.value,
            }));
        }
        Ok(None)
    }
}

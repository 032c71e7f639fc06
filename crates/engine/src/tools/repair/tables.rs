//! The tables of a damaged store: which file is which table, what of it can be read, and what is
//! lost.
//!
//! A table that a manifest or the log names is recognised by length and digest, not by name: names
//! may have been swapped. Tables that nothing names are used only if a known table is missing, or
//! if nothing is known. Otherwise they are left over from an earlier state, and tombstones for
//! their entries may have been dropped.
//!
//! Threading: one task, which only reads.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::{ReadFile, Storage, StorageError, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::footer::{FOOTER_BYTES, Footer};
use siltstone_table::index::Place;
use siltstone_table::reader::{ReaderOptions, TableReader};
use siltstone_table::salvage::{Expect, Gap, Salvage, salvage};

use super::RepairProgress;
use super::report::{LostRange, LostWhat, SuspectRange, SuspectWhy, UnusedFile};
use super::survey::KnownTable;
use crate::formats::directories::Missing;
use crate::formats::version::{End, KeyRange, SeqSet, TableMeta};
use crate::types::error::{Error, Result};
use crate::types::limits::KeyspaceId;

/// The folders of the tables: that of the first location, and that of the second one if there is
/// one. A file is named by a text: its name, or, if another folder before its own has a file of
/// this name, its name and the number of its folder.
#[derive(Clone)]
pub(super) struct TableFolders(pub(super) Vec<Arc<dyn Storage>>);

/// Between the number of a folder and a name. No name contains it.
const IN_FOLDER: char = '/';

impl TableFolders {
    /// The lengths of all table files, by their texts. A folder that cannot be listed is reported,
    /// unless it is the first one.
    fn list(&self, damage: &mut Vec<Error>) -> Result<BTreeMap<String, u64>> {
        let mut lengths = BTreeMap::new();
        for (i, folder) in self.0.iter().enumerate() {
            if let Some(why) = Missing::why(&**folder) {
                let place = folder.location();
                damage.push(
                    Error::not_found(format!(
                        "the folder {place}, the second location of tables, cannot be used: {why}"
                    ))
                    .advice("bring it back and repair again: no table in it was read"),
                );
                continue;
            }
            let listed = match folder.list() {
                Err(error) if i > 0 => {
                    damage.push(error.into());
                    continue;
                }
                listed => listed?,
            };
            for object in listed.into_iter().filter(|o| o.name.ends_with(".tbl")) {
                let is_taken = lengths.contains_key(&object.name);
                let text = match is_taken {
                    true => format!("{i}{IN_FOLDER}{}", object.name),
                    false => object.name,
                };
                lengths.insert(text, object.len);
            }
        }
        Ok(lengths)
    }

    /// Opens the file with this text.
    pub(super) fn open(&self, text: &str) -> siltstone_storage::Result<Arc<dyn ReadFile>> {
        if let Some((folder, name)) = text.split_once(IN_FOLDER)
            && let Some(folder) = folder.parse().ok().and_then(|i: usize| self.0.get(i))
        {
            return folder.open(name);
        }
        let mut missing = None;
        for folder in &self.0 {
            match folder.open(text) {
                Err(error) if error.kind == StorageErrorKind::NotFound => {
                    missing.get_or_insert(error);
                }
                opened => return opened,
            }
        }
        Err(missing.unwrap_or_else(|| {
            StorageError::new(
                StorageErrorKind::NotFound,
                "open",
                text,
                "there is no folder",
            )
        }))
    }
}

/// Blocks of a table file that a merge reads.
#[derive(Clone, Debug)]
pub(super) struct TableSource {
    /// The text of its file in [`TableFolders`].
    pub(super) name: String,
    /// The blocks to read; `None` for all blocks of a sound table.
    pub(super) places: Option<Vec<Place>>,
    /// The smallest key.
    pub(super) first_key: Vec<u8>,
    /// The sequence number of all its entries, if they do not have their own.
    pub(super) sequence_override: Option<u64>,
    /// If set, only keys in these ranges are used: the table replaces tables that are missing.
    pub(super) clip: Option<Vec<KeyRange>>,
    /// Puts with these sequence numbers are in known tables, or were replaced there. A table that
    /// nothing names provides them only for ranges that are lost.
    pub(super) covered: Option<Covered>,
}

/// Sequence numbers that known tables cover, and the ranges in which these tables have lost data.
#[derive(Clone, Debug, Default)]
pub(super) struct Covered {
    pub(super) numbers: SeqSet,
    pub(super) lost: Vec<KeyRange>,
}

impl Covered {
    /// Whether a put of a table that nothing names is left out, because its tombstone may have been
    /// dropped.
    pub(super) fn hides(&self, key: &[u8], number: u64) -> bool {
        self.numbers.contains(number) && !self.lost.iter().any(|r| r.contains(key))
    }
}

/// The start, the end and the sequence number of a range delete.
pub(super) type RangeDelete = (Vec<u8>, Vec<u8>, u64);

/// What was read from all tables of a store.
#[derive(Default)]
pub(super) struct Tables {
    pub(super) sources: LiteMap<KeyspaceId, Vec<TableSource>>,
    pub(super) range_deletes: LiteMap<KeyspaceId, Vec<RangeDelete>>,
    pub(super) lost: Vec<LostRange>,
    pub(super) suspects: Vec<SuspectRange>,
    pub(super) damage: Vec<Error>,
    pub(super) unused: Vec<UnusedFile>,
    /// The ranges of tables whose files are missing.
    pub(super) missing: LiteMap<KeyspaceId, Vec<KeyRange>>,
    pub(super) largest_number: u64,
    used: BTreeSet<String>,
}

/// The files in the folders of the tables.
pub(super) struct Files {
    folders: TableFolders,
    lengths: BTreeMap<String, u64>,
    /// Names by length and digest. They are read when the first table is not where it should be.
    by_digest: Option<Vec<((u64, u64), String)>>,
    total_bytes: u64,
    done_bytes: u64,
}

/// The file that was found for a known table.
struct TableFile {
    text: String,
    file: Arc<dyn ReadFile>,
    salvaged: Salvage,
    /// Whether it is certain that the file is the table, and not another one with its name.
    proven: bool,
}

/// What is known about a table whose blocks are read.
struct TableInfo {
    keyspace: KeyspaceId,
    points: Option<(Vec<u8>, Vec<u8>)>,
    bounds: KeyRange,
    entries: Option<u64>,
    may_have_range_deletes: bool,
    sequence_override: Option<u64>,
    largest: u64,
    clip: Option<Vec<KeyRange>>,
    covered: Option<Covered>,
}

impl Files {
    /// Lists the files. `damage` gets what cannot be listed.
    pub(super) fn list(folders: TableFolders, damage: &mut Vec<Error>) -> Result<Files> {
        let lengths = folders.list(damage)?;
        Ok(Files {
            folders,
            total_bytes: lengths.values().sum(),
            lengths,
            by_digest: None,
            done_bytes: 0,
        })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.lengths.is_empty()
    }

    fn open(&self, name: &str) -> Result<Option<Arc<dyn ReadFile>>> {
        if !self.lengths.contains_key(name) {
            return Ok(None);
        }
        match self.folders.open(name) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind == StorageErrorKind::NotFound => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Files of this length with a valid footer that has this digest.
    fn elsewhere(&mut self, meta: &TableMeta) -> Result<Vec<String>> {
        if self.by_digest.is_none() {
            let mut all = Vec::new();
            for name in self.lengths.keys() {
                if let Some(file) = self.open(name)?
                    && let Some(footer) = footer_of(&*file)?
                {
                    all.push(((file.len(), footer.digest), name.clone()));
                }
            }
            all.sort_unstable();
            self.by_digest = Some(all);
        }
        let all = self.by_digest.as_deref().unwrap_or_default();
        let key = (meta.file_bytes, meta.digest as u64);
        let first = all.partition_point(|(other, _)| *other < key);
        let found = all[first..].iter().take_while(|(other, _)| *other == key);
        Ok(found.map(|(_, name)| name.clone()).collect())
    }

    fn done(&mut self, len: u64, progress: &mut dyn FnMut(RepairProgress)) {
        self.done_bytes = self.done_bytes.saturating_add(len).min(self.total_bytes);
        progress(RepairProgress {
            done_bytes: self.done_bytes,
            total_bytes: self.total_bytes,
        });
    }
}

fn footer_of(file: &dyn ReadFile) -> Result<Option<Footer>> {
    let Some(at) = file.len().checked_sub(FOOTER_BYTES as u64) else {
        return Ok(None);
    };
    let mut raw = [0; FOOTER_BYTES];
    file.read_at(at, &mut raw)?;
    Ok(Footer::decode(&raw, file.name(), file.len()).ok())
}

fn first_key_of(table: &KnownTable) -> Option<&[u8]> {
    let points = table.meta.points.as_ref();
    points.map(|(smallest, _)| &smallest[..])
}

/// The smallest key greater than `key`.
fn above(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

impl Tables {
    /// Reads the tables that a manifest or the log names.
    pub(super) fn read_known(
        &mut self,
        files: &mut Files,
        known: &[KnownTable],
        progress: &mut dyn FnMut(RepairProgress),
    ) -> Result<()> {
        let mut starts: Vec<_> = known.iter().map(first_key_of).collect();
        starts.sort_unstable();
        for table in known {
            let start = first_key_of(table);
            let at = starts.partition_point(|other| *other < start);
            let is_alone = starts.get(at + 1) != Some(&start);
            let found = self.find(files, table.keyspace, &table.meta, is_alone)?;
            match found {
                Some(found) => {
                    let meta = &table.meta;
                    let info = TableInfo {
                        keyspace: table.keyspace,
                        points: meta.points.as_ref().map(|(a, b)| (a.to_vec(), b.to_vec())),
                        bounds: meta.bounds.clone(),
                        entries: Some(meta.entries),
                        may_have_range_deletes: meta.range_deletes > 0,
                        sequence_override: meta.sequence_override,
                        largest: meta.visible_seqs().1,
                        clip: None,
                        covered: None,
                    };
                    files.done(found.file.len(), progress);
                    if !found.proven {
                        self.report_doubtful(&*found.file, &info);
                    }
                    self.take(&found.text, &*found.file, found.salvaged, info);
                }
                None => self.report_missing(table),
            }
        }
        Ok(())
    }

    /// Finds the file of a known table.
    fn find(
        &mut self,
        files: &mut Files,
        keyspace: KeyspaceId,
        meta: &TableMeta,
        is_alone: bool,
    ) -> Result<Option<TableFile>> {
        let expect = Expect {
            seqs: Some((meta.min_seq, meta.max_seq)),
            keys: meta.points.as_ref().map(|(a, b)| (a.to_vec(), b.to_vec())),
        };
        let same = |footer: &Footer, len: u64| {
            (len, footer.digest) == (meta.file_bytes, meta.digest as u64)
        };
        let own = files.open(&meta.name)?;
        let own_footer = match &own {
            Some(file) => footer_of(&**file)?,
            None => None,
        };
        let own = match (own, own_footer) {
            // The file is another table, according to its footer.
            (Some(file), Some(footer)) if !same(&footer, file.len()) => None,
            (Some(file), footer) => Some((file, footer.is_some())),
            (None, _) => None,
        };
        let own = match own {
            None => None,
            Some((file, is_it)) => {
                let salvaged = salvage(&*file, &expect)?;
                let agrees = salvaged.properties.as_ref().is_none_or(|p| {
                    let own = (p.entries, p.smallest_seq, p.largest_seq);
                    own == (meta.entries, meta.min_seq, meta.max_seq)
                });
                // The first key of a file that was cut shows that it is the table, unless another
                // table, of any keyspace, has the same first key.
                let first = salvaged.pieces.first().map(|p| &p.first_key[..]);
                let proven = is_it
                    || salvaged.properties.is_some()
                    || file.len() == meta.file_bytes
                    || file.len() < meta.file_bytes
                        && first.is_some()
                        && first == meta.points.as_ref().map(|(smallest, _)| &smallest[..])
                        && is_alone;
                (is_it || agrees).then_some(TableFile {
                    text: meta.name.clone(),
                    file,
                    salvaged,
                    proven,
                })
            }
        };
        if own.as_ref().is_some_and(|own| own.salvaged.is_whole()) {
            return Ok(own);
        }
        // A sound copy, or the table itself with the name of another one.
        for name in files.elsewhere(meta)? {
            let Some(file) = files.open(&name)? else {
                continue;
            };
            let salvaged = salvage(&*file, &expect)?;
            let better = own.is_none() || salvaged.is_whole() && name != meta.name;
            let of_another = salvaged
                .properties
                .as_ref()
                .and_then(|p| p.keyspace)
                .is_some_and(|k| k != keyspace);
            if better && !of_another {
                self.damage.push(
                    Error::corruption(meta.name.clone(), "a table was found under another name")
                        .found(name.clone()),
                );
                return Ok(Some(TableFile {
                    text: name,
                    file,
                    salvaged,
                    proven: true,
                }));
            }
        }
        Ok(own)
    }

    fn report_missing(&mut self, table: &KnownTable) {
        let meta = &table.meta;
        self.damage.push(Error::corruption(
            meta.name.clone(),
            "a table is missing, or its file is another one's",
        ));
        self.lost.push(LostRange {
            file: meta.name.clone(),
            what: LostWhat::Table,
            block: None,
            offset: 0,
            bytes: meta.file_bytes,
            keyspace: table.keyspace,
            range: meta.bounds.clone(),
            entry_count: Some(meta.entries),
        });
        self.suspect(
            table.keyspace,
            meta.bounds.clone(),
            meta.visible_seqs().1,
            SuspectWhy::Lost,
        );
        self.missing
            .entry(table.keyspace)
            .or_default()
            .push(meta.bounds.clone());
        self.largest_number = self.largest_number.max(meta.visible_seqs().1);
    }

    /// Reports a file that has only its name in common with the table. It may be another table, so
    /// all of this one may be lost.
    fn report_doubtful(&mut self, file: &dyn ReadFile, info: &TableInfo) {
        self.lost.push(LostRange {
            file: file.name().to_string(),
            what: LostWhat::Table,
            block: None,
            offset: 0,
            bytes: file.len(),
            keyspace: info.keyspace,
            range: info.bounds.clone(),
            entry_count: None,
        });
        self.suspect(
            info.keyspace,
            info.bounds.clone(),
            info.largest,
            SuspectWhy::Lost,
        );
    }

    fn suspect(&mut self, keyspace: KeyspaceId, range: KeyRange, largest: u64, why: SuspectWhy) {
        self.suspects.push(SuspectRange {
            keyspace,
            range,
            below: Some(largest.saturating_add(1)),
            why,
        });
    }

    /// Takes what a file holds, and reports what it has lost.
    fn take(&mut self, text: &str, file: &dyn ReadFile, salvage: Salvage, info: TableInfo) {
        let name = file.name().to_string();
        self.used.insert(text.to_string());
        self.largest_number = self.largest_number.max(info.largest);
        let whole = salvage.is_whole();
        for (_, error) in &salvage.parts {
            self.damage.push(error.clone().into());
        }
        let entries_lost = info
            .entries
            .map(|entries| entries.saturating_sub(salvage.entry_count()))
            .filter(|_| salvage.gaps.len() == 1);
        for gap in &salvage.gaps {
            self.damage
                .push(gap.damage.in_file(&name, gap.start).into());
            let Some(range) = range_of(gap, &info) else {
                continue;
            };
            self.lost.push(LostRange {
                file: name.clone(),
                what: LostWhat::Blocks,
                block: gap.block,
                offset: gap.start,
                bytes: gap.end - gap.start,
                keyspace: info.keyspace,
                range: range.clone(),
                entry_count: entries_lost,
            });
            self.suspect(info.keyspace, range, info.largest, SuspectWhy::Lost);
        }
        for island in salvage.pieces.iter().filter(|p| p.island) {
            let range = KeyRange::closed(&island.first_key, &island.last_key);
            self.suspect(info.keyspace, range, info.largest, SuspectWhy::Island);
        }
        match salvage.range_deletes {
            Some(deletes) => {
                let all = self.range_deletes.entry(info.keyspace).or_default();
                for fragment in deletes.fragments() {
                    let seq = info.sequence_override.unwrap_or(fragment.seq);
                    all.push((fragment.start.clone(), fragment.end.clone(), seq));
                }
            }
            None if info.may_have_range_deletes => {
                self.lost.push(LostRange {
                    file: name.clone(),
                    what: LostWhat::RangeDeletes,
                    block: None,
                    offset: salvage.pieces.last().map_or(0, |p| p.place.end),
                    bytes: 0,
                    keyspace: info.keyspace,
                    range: info.bounds.clone(),
                    entry_count: None,
                });
                self.suspect(
                    info.keyspace,
                    info.bounds.clone(),
                    info.largest,
                    SuspectWhy::Lost,
                );
            }
            None => {}
        }
        let Some(first) = salvage.pieces.first() else {
            return;
        };
        let first_key = first.first_key.clone();
        let places = (!whole).then(|| salvage.pieces.iter().map(|p| p.place).collect());
        self.sources
            .entry(info.keyspace)
            .or_default()
            .push(TableSource {
                name: text.to_string(),
                places,
                first_key,
                sequence_override: info.sequence_override,
                clip: info.clip,
                covered: info.covered,
            });
    }

    /// The largest sequence number of each table that nothing names and that is sound, with its
    /// keyspace.
    pub(super) fn numbers_found(&self, files: &Files) -> Result<Vec<(KeyspaceId, u64)>> {
        let mut numbers = Vec::new();
        let options = ReaderOptions {
            map: false,
            ..ReaderOptions::default()
        };
        for name in files.lengths.keys().filter(|n| !self.used.contains(*n)) {
            let Some(file) = files.open(name)? else {
                continue;
            };
            match TableReader::open(file, options) {
                Ok(table) => {
                    let p = table.properties();
                    numbers.extend(p.keyspace.map(|keyspace| (keyspace, p.largest_seq)));
                }
                Err(TableError::Storage(error)) => return Err(error.into()),
                Err(_) => {}
            }
        }
        Ok(numbers)
    }

    /// Reads tables that nothing names. If `all` is true, everything may be missing; otherwise only
    /// the ranges of missing tables are used. `lives` returns the sequence numbers that known
    /// tables of a keyspace cover, or `None` if it was dropped.
    pub(super) fn read_found(
        &mut self,
        files: &mut Files,
        all: bool,
        deleted: &BTreeSet<String>,
        lives: &mut dyn FnMut(KeyspaceId) -> Option<SeqSet>,
        progress: &mut dyn FnMut(RepairProgress),
    ) -> Result<()> {
        let names: Vec<String> = files
            .lengths
            .keys()
            .filter(|name| !self.used.contains(*name))
            .cloned()
            .collect();
        for name in names {
            let mut not_used = |why| {
                self.unused.push(UnusedFile {
                    name: name.clone(),
                    why,
                });
            };
            if deleted.contains(&name) {
                not_used("it was replaced earlier");
                continue;
            }
            if !all && self.missing.is_empty() {
                not_used("nothing names it, and nothing is missing: a leftover");
                continue;
            }
            let Some(file) = files.open(&name)? else {
                continue;
            };
            let salvaged = salvage(&*file, &Expect::default())?;
            files.done(file.len(), progress);
            let Some(p) = salvaged.properties.clone() else {
                not_used("nothing names it, and its properties are damaged");
                continue;
            };
            let Some(keyspace) = p.keyspace else {
                not_used(
                    "nothing names it, and it belongs to no keyspace: an ingest that may not have \
                     happened",
                );
                continue;
            };
            let living = lives(keyspace).filter(|_| p.smallest_seq > 0);
            let Some(numbers) = living else {
                not_used(
                    "nothing names it, and its keyspace was dropped or its numbers are not its own",
                );
                continue;
            };
            let clip = if all {
                None
            } else {
                match self.missing.get(&keyspace) {
                    Some(ranges) => Some(ranges.clone()),
                    None => {
                        not_used(
                            "nothing names it, and nothing of its keyspace is missing: a leftover",
                        );
                        continue;
                    }
                }
            };
            let lost = self.lost.iter().filter(|l| l.keyspace == keyspace);
            let covered = Covered {
                numbers,
                lost: lost.map(|l| l.range.clone()).collect(),
            };
            let info = TableInfo {
                covered: Some(covered),
                ..found(keyspace, &p, &salvaged, clip)
            };
            self.take(&name, &*file, salvaged, info);
        }
        Ok(())
    }
}

/// The information that a table without an entry has about itself.
fn found(
    keyspace: KeyspaceId,
    p: &siltstone_table::properties::Properties,
    salvaged: &Salvage,
    clip: Option<Vec<KeyRange>>,
) -> TableInfo {
    let points = p.smallest_key.clone().zip(p.largest_key.clone());
    let deleted = salvaged.range_deletes.as_ref().and_then(|d| d.range());
    let start = match (p.left_bound(), deleted) {
        (Some(left), _) => left.to_vec(),
        (None, Some((start, _))) => start.to_vec(),
        (None, None) => Vec::new(),
    };
    // Range deletes that are lost may have reached as far as the next table.
    let end = match (&points, deleted) {
        _ if salvaged.range_deletes.is_none() => End::Unbounded,
        (Some((_, largest)), None) => End::Included(largest.clone().into()),
        (Some((_, largest)), Some((_, end))) => {
            End::Included(largest.clone().into()).max(End::Excluded(end.into()))
        }
        (None, Some((_, end))) => End::Excluded(end.into()),
        (None, None) => End::Unbounded,
    };
    TableInfo {
        keyspace,
        points,
        bounds: KeyRange {
            start: start.into(),
            end,
        },
        entries: Some(p.entries),
        may_have_range_deletes: p.range_deletes > 0,
        sequence_override: None,
        largest: p.largest_seq,
        clip,
        covered: None,
    }
}

/// The range of keys that were in a gap.
fn range_of(gap: &Gap, info: &TableInfo) -> Option<KeyRange> {
    let (smallest, largest) = info.points.as_ref()?;
    let start = match &gap.after {
        Some(after) => above(after),
        None => smallest.clone(),
    };
    let end = match &gap.until {
        Some(until) if gap.until_included => End::Included(until.clone().into()),
        Some(until) => End::Excluded(until.clone().into()),
        None => End::Included(largest.clone().into()),
    };
    let range = KeyRange {
        start: start.into(),
        end,
    };
    // Only older versions of the last key before the gap can have been lost.
    (!range.is_empty()).then_some(range)
}

//! `multi_get`: many keys at one view and one number.
//!
//! The keys are sorted once and go through the sources together, newest first; a key that a source
//! has answered is not searched any further. Within a run or a level, all keys are looked up side
//! by side ([`siltstone_table::reader::get_many`]): their cache misses overlap, a block is opened
//! once for all of its keys, and blocks that are neither mapped nor cached are read together.
//!
//! Threading: any thread.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::planted;
use siltstone_table::block::Block;
use siltstone_table::key::hash;
use siltstone_table::reader::{BlockCache as TableBlockCache, Lookup, TableReader, get_many};

use super::{Answer, decide, number_in_table, pin};
use crate::tree::Tree;
use crate::tree::cache::BlockCache;
use crate::tree::view::{KeyspaceCore, LevelView, MemSource, Source};
use crate::types::error::{Error, Result};

/// A key that no source has answered yet.
struct Pending<'a> {
    key: &'a [u8],
    /// Its index in the caller's list.
    at: usize,
    /// The hash of the key, which is computed when the first table is searched.
    hash: u64,
    answered: bool,
}

/// Values in the order of the keys.
type Values = Vec<Option<Vec<u8>>>;

/// The values of `keys` at `number` (or now).
pub(crate) fn multi_get<K: AsRef<[u8]>>(
    tree: &Tree,
    keyspace: &KeyspaceCore,
    keys: &[K],
    number: Option<u64>,
) -> Result<Values> {
    let start = tree.env.now();
    let pending = keys
        .iter()
        .enumerate()
        .map(|(at, key)| Pending {
            key: key.as_ref(),
            at,
            hash: 0,
            answered: false,
        })
        .collect();
    let values = search(tree, keyspace, pending, number)?;
    let metrics = &tree.env.metrics();
    metrics.multi_get_count.add(1);
    metrics.get_count.add(values.len() as u64);
    let hits = values.iter().filter(|v| v.is_some()).count();
    metrics.get_hit_count.add(hits as u64);
    metrics.multi_get_time.record(tree.env.now().since(start));
    Ok(values)
}

fn search(
    tree: &Tree,
    keyspace: &KeyspaceCore,
    mut pending: Vec<Pending<'_>>,
    number: Option<u64>,
) -> Result<Values> {
    let (view, seq) = pin(tree, keyspace, number)?;
    let mut values = vec![None; pending.len()];
    pending.sort_unstable_by(|a, b| a.key.cmp(b.key));
    let mut hashed = false;
    let levels = view.levels.iter().map(|level| Layer::Tables(level));
    let layers = view.sources.iter().map(|source| match source {
        Source::Memtable(mem) => Layer::Memtable(mem),
        Source::Run(run) => Layer::Tables(&run.tables),
    });
    for layer in layers.chain(levels) {
        match layer {
            Layer::Memtable(mem) => ask_memtable(mem, &mut pending, seq, &mut values)?,
            Layer::Tables(level) if level.level.is_empty() => continue,
            Layer::Tables(level) => {
                if !std::mem::replace(&mut hashed, true) {
                    pending.iter_mut().for_each(|p| p.hash = hash(p.key));
                }
                ask_tables(tree, level, &mut pending, seq, &mut values)?;
            }
        }
        pending.retain(|p| !p.answered);
        if pending.is_empty() {
            break;
        }
    }
    Ok(values)
}

/// A source or a level.
enum Layer<'a> {
    Memtable(&'a MemSource),
    Tables(&'a LevelView),
}

fn ask_memtable(
    source: &MemSource,
    pending: &mut [Pending<'_>],
    seq: u64,
    values: &mut Values,
) -> Result<()> {
    if source.mem.is_empty() {
        return Ok(());
    }
    for p in pending {
        let mut value = Vec::new();
        match super::ask_memtable(source, p.key, seq, Some(&mut value))? {
            Answer::Unknown => continue,
            Answer::Gone => {}
            Answer::Value => values[p.at] = Some(value),
        }
        p.answered = true;
    }
    Ok(())
}

/// A table in which some of the keys are searched.
struct Asked {
    reader: Arc<TableReader>,
    /// Its index in the level.
    table: usize,
    /// The sequence number to search for in its file. All entries of a table that was ingested have
    /// one sequence number, which is not in the file: `own`.
    seq: u64,
    own: Option<u64>,
    /// The bytes that were read from its file.
    read: AtomicU64,
}

/// The block cache for lookups in several tables, which counts what is read of each.
struct ManyReads<'a> {
    cache: &'a BlockCache,
    asked: &'a [Asked],
}

impl TableBlockCache for ManyReads<'_> {
    fn get(&self, table: u64, block: u32) -> Option<Arc<Block>> {
        self.cache.get(table, block)
    }

    fn insert(&self, table: u64, block: u32, read: &Arc<Block>) {
        self.cache.insert(table, block, read);
    }

    fn note_read(&self, table: u64, bytes: usize) {
        if let Some(asked) = self.asked.iter().find(|a| a.reader.id() == table) {
            asked.read.fetch_add(bytes as u64, Ordering::Relaxed);
        }
    }
}

fn ask_tables(
    tree: &Tree,
    level: &LevelView,
    pending: &mut [Pending<'_>],
    seq: u64,
    values: &mut Values,
) -> Result<()> {
    let mut asked: Vec<Asked> = Vec::new();
    // The index of each key in `pending`, and that of its table in `asked`. Neighbours mostly
    // share a table.
    let mut tables_of_keys: Vec<(u32, u32)> = Vec::with_capacity(pending.len());
    for (i, p) in pending.iter().enumerate() {
        let Some(table) = level.level.find(p.key) else {
            continue;
        };
        let is_other = |last: &Asked| last.table != table && !planted!(MultiGetAsksFirstTable);
        if asked.last().is_none_or(is_other) {
            let handle = &level.handles[table];
            let Some((seq, own)) = number_in_table(handle, seq) else {
                continue;
            };
            asked.push(Asked {
                reader: tree.tables.reader_to_get_owned(handle)?,
                read: AtomicU64::new(0),
                table,
                seq,
                own,
            });
        }
        tables_of_keys.push((i as u32, asked.len() as u32 - 1));
    }
    let mut lookups: Vec<Lookup<'_>> = tables_of_keys
        .iter()
        .map(|(i, at)| {
            let (p, asked) = (&pending[*i as usize], &asked[*at as usize]);
            Lookup::new(&asked.reader, p.key, p.hash, asked.seq)
        })
        .collect();
    let cache = ManyReads {
        cache: tree.tables.cache(),
        asked: &asked,
    };
    get_many(&cache, &mut lookups).map_err(Error::from)?;
    count_seeks(tree, level, &asked, &tables_of_keys, &lookups);
    for ((i, at), lookup) in tables_of_keys.iter().zip(lookups) {
        let (p, asked) = (&mut pending[*i as usize], &asked[*at as usize]);
        // The filter has only point keys, so range deletes are searched for every key.
        let deleted = match level.handles[asked.table].meta.range_deletes {
            0 => None,
            _ => asked
                .reader
                .covering_seq(p.key, asked.seq)
                .map(|d| asked.own.unwrap_or(d)),
        };
        match decide(lookup.found, deleted, asked.own)? {
            Answer::Unknown => continue,
            Answer::Gone => {}
            Answer::Value => values[p.at] = Some(lookup.value),
        }
        p.answered = true;
    }
    Ok(())
}

/// Counts what was read in vain. It is not known for which of its keys a block of a table was read,
/// so each key has an equal part of it.
fn count_seeks(
    tree: &Tree,
    level: &LevelView,
    asked: &[Asked],
    tables_of_keys: &[(u32, u32)],
    lookups: &[Lookup<'_>],
) {
    for (at, asked) in asked.iter().enumerate() {
        let read = asked.read.load(Ordering::Relaxed);
        if read == 0 {
            continue;
        }
        let keys = tables_of_keys.iter().zip(lookups);
        let of_table = keys.filter(|((_, table), _)| *table as usize == at);
        let found = of_table.map(|(_, lookup)| lookup.found.is_some());
        let (count, missed) = found.fold((0, 0), |(count, missed), found| {
            (count + 1, missed + u64::from(!found))
        });
        let in_vain = read * missed / std::cmp::max(count, 1);
        let handle = &level.handles[asked.table];
        tree.tables.count_seek(&tree.env, handle, in_vain);
    }
}

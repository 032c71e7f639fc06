//! The children of a merge: memtables and sorted sets of tables.
//!
//! Threading: owned by one reader; tables are opened when they are first needed.

use std::sync::Arc;

use siltstone_table::index::Narrowed;
use siltstone_table::reader::{BlockCache, TableIter};

use super::merge::EntryCursor;
use crate::env::Env;
use crate::formats::version::TableMeta;
use crate::tree::Tree;
use crate::tree::memtable::MemtableIter;
use crate::tree::seeks::SeekReads;
use crate::tree::tables::TableSet;
use crate::tree::view::{KeyspaceView, LevelView, Source};
use crate::types::error::{Error, Result};

/// One child of a merge. There are few at a time and every step goes through one, so an indirection
/// for a memtable's iterator would cost more than the bytes that it saves.
#[allow(clippy::large_enum_variant)]
pub(crate) enum Child {
    Memtable(MemtableIter),
    Level(Box<LevelCursor>),
}

/// Makes `children` the children of a view that may have entries, newest first. Children of an
/// earlier view with the same source are kept, whatever their position.
pub(crate) fn set_children(
    tree: &Tree,
    view: &KeyspaceView,
    fill_cache: bool,
    children: &mut Vec<Child>,
) {
    let mut count = 0;
    let mut set = |is: &dyn Fn(&Child) -> bool, make: &dyn Fn() -> Child| {
        match children[count..].iter().position(is) {
            Some(i) => children.swap(count, count + i),
            None => children.insert(count, make()),
        }
        count += 1;
    };
    for source in &view.sources {
        match source {
            Source::Memtable(m) => {
                // The active memtable may get entries while the cursor lives, but only with numbers
                // that the cursor does not see.
                if m.mem.entry_count() > 0 {
                    set(
                        &|c| matches!(c, Child::Memtable(i) if Arc::ptr_eq(i.memtable(), &m.mem)),
                        &|| Child::Memtable(m.mem.iter()),
                    );
                }
            }
            Source::Run(run) => set_level(tree, &run.tables, true, fill_cache, &mut set),
        }
    }
    for level in view.levels.iter().filter(|l| !l.level.is_empty()) {
        set_level(tree, level, false, fill_cache, &mut set);
    }
    children.truncate(count);
}

fn set_level(
    tree: &Tree,
    view: &Arc<LevelView>,
    is_run: bool,
    fill_cache: bool,
    set: &mut impl FnMut(&dyn Fn(&Child) -> bool, &dyn Fn() -> Child),
) {
    set(
        &|c| matches!(c, Child::Level(l) if Arc::ptr_eq(&l.view, view)),
        &|| {
            let cache = tree.tables.scan_cache(fill_cache);
            let seeks = is_run.then(|| RunSeeks {
                env: tree.env().clone(),
                reads: Arc::new(SeekReads::new(cache.clone())),
            });
            Child::Level(Box::new(LevelCursor {
                tables: tree.tables.clone(),
                cache: match &seeks {
                    Some(seeks) => seeks.reads.clone(),
                    None => cache.clone(),
                },
                view: view.clone(),
                at: 0,
                iter: None,
                own: None,
                prepared: PreparedSeek::No,
                seeks,
            }))
        },
    );
}

/// A cursor over a sorted set of tables, one after the other.
pub(crate) struct LevelCursor {
    tables: Arc<TableSet>,
    cache: Arc<dyn BlockCache>,
    view: Arc<LevelView>,
    /// The table that `iter` is in.
    at: usize,
    iter: Option<TableIter>,
    /// The sequence number of all entries of that table, if it was ingested.
    own: Option<u64>,
    /// The part of the next seek that `prepare_seek` has done.
    prepared: PreparedSeek,
    /// Given for a run of level 0.
    seeks: Option<RunSeeks>,
}

/// Counts what seeks in a run of level 0 read. Each run needs a seek of its own, and so often a
/// read, which a compaction of level 0 would save. Below level 0, what a seek reads is mostly
/// returned.
struct RunSeeks {
    env: Arc<Env>,
    reads: Arc<SeekReads<Arc<dyn BlockCache>>>,
}

/// The prepared part of a seek in the table `LevelCursor::at`.
#[derive(Clone, Copy)]
enum PreparedSeek {
    /// Nothing is prepared.
    No,
    /// All entries are before the target.
    End,
    Narrowed(Narrowed),
    /// The block that the seek must search.
    Block(u32),
    /// The iterator has found its entry.
    Located,
}

impl LevelCursor {
    /// Its tables, ascending.
    pub(super) fn tables(&self) -> &[Arc<TableMeta>] {
        self.view.level.tables()
    }

    /// The index of the table in which the cursor stands.
    pub(super) fn position(&self) -> usize {
        self.at
    }

    /// The table in which a seek to this position begins. Forward, that is the first one whose
    /// bounds hold the key or lie above it; backward, the last one that begins at or before the
    /// position.
    fn begins_in(&self, key: &[u8], trailer: u64, forward: bool) -> Option<usize> {
        let level = &self.view.level;
        if forward {
            return Some(level.seek(key)).filter(|at| *at < level.len());
        }
        let at = match level.find(key) {
            Some(at) => at,
            None => level.seek(key).checked_sub(1)?,
        };
        // No entry has the highest trailer: the key's own entries all come after this position.
        match trailer == u64::MAX && *level.tables()[at].bounds.start == *key {
            true => at.checked_sub(1),
            false => Some(at),
        }
    }

    /// The table in which a seek begins, if the seek would have to open it.
    pub(super) fn would_open(&self, key: &[u8], trailer: u64, forward: bool) -> Option<usize> {
        let at = self.begins_in(key, trailer, forward)?;
        let is_held = self.iter.is_some() && self.at == at;
        let is_open = || self.tables.reader_if_open(&self.view.handles[at]).is_some();
        (!is_held && !is_open()).then_some(at)
    }

    /// A seek begins. What was read before does not count.
    fn begin_seek(&self) {
        if let Some(seeks) = &self.seeks {
            seeks.reads.take();
        }
    }

    /// The seek has found its place in the open table. What it has read counts as read in vain.
    fn count_seek(&self) {
        if let Some(seeks) = &self.seeks {
            let handle = &self.view.handles[self.at];
            let read = seeks.reads.take();
            self.tables.count_seek(&seeks.env, handle, read);
        }
    }

    /// Makes the cursor invalid until the next seek.
    pub(super) fn finish(&mut self) {
        self.iter = None;
    }

    fn open(&mut self, at: usize) -> Result<&mut TableIter> {
        if self.iter.is_none() || self.at != at {
            self.iter = None;
            let handle = &self.view.handles[at];
            self.iter = Some(self.tables.reader_owned(handle)?.iter(self.cache.clone()));
            self.own = handle.meta.sequence_override;
            self.at = at;
        }
        Ok(self.iter.as_mut().expect("opened above"))
    }

    /// If the cursor stands after the last entry of its table, moves it through the next tables to
    /// the next entry.
    #[cold]
    #[inline(never)]
    fn enter_next_tables(&mut self) -> Result<()> {
        while !self.valid() && self.iter.is_some() {
            if self.at + 1 >= self.view.handles.len() {
                self.iter = None;
                return Ok(());
            }
            self.open(self.at + 1)?
                .seek_to_first()
                .map_err(Error::from)?;
        }
        Ok(())
    }

    /// Does the same as `enter_next_tables`, backward.
    fn enter_previous_tables(&mut self) -> Result<()> {
        while !self.valid() && self.iter.is_some() {
            let Some(before) = self.at.checked_sub(1) else {
                self.iter = None;
                return Ok(());
            };
            self.open(before)?.seek_to_last().map_err(Error::from)?;
        }
        Ok(())
    }

    #[inline]
    fn valid(&self) -> bool {
        self.iter.as_ref().is_some_and(TableIter::valid)
    }

    #[inline]
    fn trailer(&self) -> u64 {
        self.entry().1
    }

    /// The key and the trailer. Only while the cursor is valid.
    #[inline(always)]
    fn entry(&self) -> (&[u8], u64) {
        let Some(iter) = &self.iter else {
            return (&[], 0);
        };
        let trailer = match self.own {
            None => iter.trailer(),
            Some(own) => own << 8 | (iter.trailer() & 0xff),
        };
        (iter.key(), trailer)
    }

    /// Goes to the next entry.
    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        if let Some(iter) = &mut self.iter {
            iter.next().map_err(Error::from)?;
            if iter.valid() {
                return Ok(());
            }
        }
        self.enter_next_tables()
    }

    /// The trailer to look for in a table's file. The file of an ingested table has every key once,
    /// with the number 0. That entry is at or after the target if the table's own number is not
    /// above the number of the target.
    fn sought(own: Option<u64>, trailer: u64) -> u64 {
        match own {
            None => trailer,
            Some(own) if own <= trailer >> 8 => u64::MAX,
            Some(_) => 0,
        }
    }

    /// Does one part of a seek and prefetches the memory that the next part reads. After an error,
    /// the seek itself starts again, meets the error again and returns it.
    fn prepare_seek(&mut self, stage: usize, key: &[u8], trailer: u64) {
        if stage == 0 {
            self.begin_seek();
            let at = self.view.level.seek(key);
            self.prepared = if at >= self.view.handles.len() {
                PreparedSeek::End
            } else {
                match self.open(at) {
                    Ok(iter) => PreparedSeek::Narrowed(iter.reader().index().narrow(key)),
                    Err(_) => PreparedSeek::No,
                }
            };
            return;
        }
        let Some(iter) = &mut self.iter else { return };
        let sought = Self::sought(self.own, trailer);
        match (stage, self.prepared) {
            (1, PreparedSeek::Narrowed(narrowed)) => {
                let found = iter.reader().find_block_narrowed(narrowed, key, sought);
                self.prepared = found.map_or(PreparedSeek::No, PreparedSeek::Block);
            }
            (2, PreparedSeek::Block(block)) => iter.reader().prefetch_block(block),
            (3, PreparedSeek::Block(block)) => {
                self.prepared = match iter.locate_in_block(block, key, sought) {
                    Ok(()) => PreparedSeek::Located,
                    Err(_) => PreparedSeek::No,
                };
            }
            _ => {}
        }
    }

    fn seek(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        let prepared = std::mem::replace(&mut self.prepared, PreparedSeek::No);
        let at = match prepared {
            PreparedSeek::No => self.view.level.seek(key),
            PreparedSeek::End => self.view.handles.len(),
            _ => self.at,
        };
        if at >= self.view.handles.len() {
            self.iter = None;
            return Ok(());
        }
        let own = self.view.handles[at].meta.sequence_override;
        if matches!(prepared, PreparedSeek::No) {
            self.begin_seek();
        }
        let iter = self.open(at)?;
        let sought = Self::sought(own, trailer);
        match prepared {
            PreparedSeek::Located => iter.stand(),
            PreparedSeek::Block(block) => iter.seek_in_block(block, key, sought),
            _ => iter.seek(key, sought),
        }
        .map_err(Error::from)?;
        if own.is_some_and(|own| own > trailer >> 8) && iter.valid() && iter.key() == key {
            // The table's entry of this key is newer than the target.
            iter.next().map_err(Error::from)?;
        }
        self.count_seek();
        if self.valid() {
            return Ok(());
        }
        self.enter_next_tables()
    }

    fn seek_for_prev(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        let Some(at) = self.begins_in(key, trailer, false) else {
            self.iter = None;
            return Ok(());
        };
        let own = self.view.handles[at].meta.sequence_override;
        self.begin_seek();
        let iter = self.open(at)?;
        // An ingested entry of the key lies at or before the target if its number is not below that
        // of the target.
        let sought = match own {
            None => trailer,
            Some(own) if own >= trailer >> 8 => 0,
            Some(_) => u64::MAX,
        };
        iter.seek_for_prev(key, sought).map_err(Error::from)?;
        self.count_seek();
        self.enter_previous_tables()
    }
}

impl EntryCursor for Child {
    #[inline(always)]
    fn valid(&self) -> bool {
        match self {
            Child::Memtable(m) => m.is_valid(),
            Child::Level(l) => l.valid(),
        }
    }

    #[inline]
    fn key(&self) -> &[u8] {
        match self {
            Child::Memtable(m) => m.key(),
            Child::Level(l) => l.iter.as_ref().map_or(&[], |i| i.key()),
        }
    }

    #[inline]
    fn trailer(&self) -> u64 {
        match self {
            Child::Memtable(m) => m.seq() << 8 | u64::from(m.kind()),
            Child::Level(l) => l.trailer(),
        }
    }

    #[inline(always)]
    fn entry(&self) -> (&[u8], u64) {
        match self {
            Child::Memtable(m) => (m.key(), m.seq() << 8 | u64::from(m.kind())),
            Child::Level(l) => l.entry(),
        }
    }

    #[inline(always)]
    fn value_into(&mut self, out: &mut Vec<u8>) -> Result<()> {
        match self {
            Child::Memtable(m) => m.append_value(out)?,
            Child::Level(l) => {
                if let Some(iter) = l.iter.as_mut() {
                    iter.append_value(out).map_err(Error::from)?;
                }
            }
        }
        Ok(())
    }

    fn prepare_seek(&mut self, stage: usize, key: &[u8], trailer: u64) {
        if let Child::Level(l) = self {
            l.prepare_seek(stage, key, trailer);
        }
    }

    fn seek_to_last(&mut self) -> Result<()> {
        match self {
            Child::Memtable(m) => {
                m.seek_to_last();
                Ok(())
            }
            Child::Level(l) => {
                let Some(last) = l.view.handles.len().checked_sub(1) else {
                    return Ok(());
                };
                l.open(last)?.seek_to_last().map_err(Error::from)?;
                l.enter_previous_tables()
            }
        }
    }

    fn seek(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        match self {
            Child::Memtable(m) => {
                m.seek(key, trailer >> 8);
                // The memtable seeks by the number alone. Numbers are unique, so at most one entry
                // with the number of the target lies before the target.
                if m.is_valid() && m.key() == key && (m.seq() << 8 | u64::from(m.kind())) > trailer
                {
                    m.next();
                }
                Ok(())
            }
            Child::Level(l) => l.seek(key, trailer),
        }
    }

    fn seek_for_prev(&mut self, key: &[u8], trailer: u64) -> Result<()> {
        match self {
            Child::Memtable(m) => {
                m.seek_for_prev(key, trailer >> 8);
                if m.is_valid() && m.key() == key && (m.seq() << 8 | u64::from(m.kind())) < trailer
                {
                    m.prev();
                }
                Ok(())
            }
            Child::Level(l) => l.seek_for_prev(key, trailer),
        }
    }

    #[inline(always)]
    fn next(&mut self) -> Result<()> {
        match self {
            Child::Memtable(m) => {
                m.next();
                Ok(())
            }
            Child::Level(l) => l.next(),
        }
    }

    #[inline]
    fn prev(&mut self) -> Result<()> {
        match self {
            Child::Memtable(m) => {
                m.prev();
                Ok(())
            }
            Child::Level(l) => {
                if let Some(iter) = l.iter.as_mut() {
                    iter.prev().map_err(Error::from)?;
                }
                if l.valid() {
                    Ok(())
                } else {
                    l.enter_previous_tables()
                }
            }
        }
    }
}

//! The bytes of one object: which were written, which of those are durable, and which versions may
//! have reached the medium in between.
//!
//! Bytes are kept in shared 4 KiB pages, so that an image of the whole storage copies pointers and
//! not bytes.
//!
//! Invariants: `pages` covers exactly `len` (rounded up), and bytes of the last page past `len` are
//! zero. The same holds for `durable` and `durable_len`, except that `durable` may end early
//! (missing pages are zeros). A page whose written bytes differ from the durable ones is either in
//! `dirty`, or was lost by a failed sync and will never be durable.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

/// The unit of write-back in bytes.
pub(super) const PAGE_BYTES: usize = 4096;
/// The unit in bytes that a medium writes atomically.
pub(super) const SECTOR_BYTES: usize = 512;

pub(super) type Page = Arc<[u8; PAGE_BYTES]>;

/// How many earlier versions of an unsynced page, and how many earlier lengths, are kept as
/// possible outcomes of a crash.
const VERSIONS: usize = 4;

pub(super) fn zero_page() -> Page {
    static ZERO: OnceLock<Page> = OnceLock::new();
    Arc::clone(ZERO.get_or_init(|| Arc::new([0; PAGE_BYTES])))
}

pub(super) fn pages_for(len: u64) -> usize {
    len.div_ceil(PAGE_BYTES as u64) as usize
}

/// The earlier versions of an unsynced page.
#[derive(Clone, Default)]
pub(super) struct Dirty {
    /// Contents that the page had between the last sync and now. Write-back may have taken any of
    /// them.
    pub(super) older: Vec<Page>,
    writes: u64,
}

#[derive(Clone, Default)]
pub(super) struct Inode {
    pub(super) pages: Vec<Page>,
    pub(super) len: u64,
    pub(super) durable: Vec<Page>,
    pub(super) durable_len: u64,
    /// Pages that the next sync makes durable.
    pub(super) dirty: BTreeMap<usize, Dirty>,
    /// Whether the length has changed since the last sync.
    pub(super) len_dirty: bool,
    /// The lengths since the last sync.
    pub(super) older_lens: Vec<u64>,
    len_changes: u64,
    /// The object is written past the page cache: a kill loses its unsynced bytes.
    pub(super) direct: bool,
    /// Changes with every write, and so shows whether anything was written while a sync ran.
    pub(super) version: u64,
    /// A counter with one reference more than there are open handles.
    pub(super) handles: Arc<()>,
}

/// What a sync must make durable, as of its call.
#[derive(Clone)]
pub(super) struct Captured {
    pages: Vec<(usize, Page)>,
    len: u64,
}

impl Inode {
    /// An object whose bytes are durable.
    pub(super) fn durable_from(pages: Vec<Page>, len: u64) -> Inode {
        Inode {
            durable: pages.clone(),
            durable_len: len,
            pages,
            len,
            ..Inode::default()
        }
    }

    /// An empty object.
    pub(super) fn fresh(direct: bool) -> Inode {
        Inode {
            direct,
            ..Inode::default()
        }
    }

    pub(super) fn from_bytes(bytes: &[u8]) -> Inode {
        let pages = bytes
            .chunks(PAGE_BYTES)
            .map(|chunk| {
                let mut page = [0; PAGE_BYTES];
                page[..chunk.len()].copy_from_slice(chunk);
                Arc::new(page)
            })
            .collect();
        Inode::durable_from(pages, bytes.len() as u64)
    }

    /// The same object, after the medium changed its bytes to these.
    pub(super) fn rotten(&self, bytes: &[u8]) -> Inode {
        Inode {
            handles: Arc::clone(&self.handles),
            version: self.version + 1,
            ..Inode::from_bytes(bytes)
        }
    }

    /// The same object in another storage. Pages are shared, handles are not.
    pub(super) fn shared(&self) -> Inode {
        Inode {
            handles: Arc::new(()),
            ..self.clone()
        }
    }

    pub(super) fn is_open(&self) -> bool {
        Arc::strong_count(&self.handles) > 1
    }

    fn touch(&mut self, index: usize) -> &mut [u8; PAGE_BYTES] {
        match self.dirty.get_mut(&index) {
            None => {
                self.dirty.insert(index, Dirty::default());
            }
            Some(dirty) => {
                // The first few versions are kept, and later ever fewer, so that appends of small
                // records stay cheap.
                dirty.writes += 1;
                if dirty.writes < VERSIONS as u64 {
                    dirty.older.push(Arc::clone(&self.pages[index]));
                } else if dirty.writes.is_power_of_two() {
                    let slot = dirty.writes.trailing_zeros() as usize % dirty.older.len().max(1);
                    dirty.older[slot] = Arc::clone(&self.pages[index]);
                }
            }
        }
        Arc::make_mut(&mut self.pages[index])
    }

    fn set_len(&mut self, len: u64) {
        if len == self.len {
            return;
        }
        self.len_changes += 1;
        if self.older_lens.len() < VERSIONS {
            self.older_lens.push(self.len);
        } else if self.len_changes.is_power_of_two() {
            let slot = self.len_changes.trailing_zeros() as usize % VERSIONS;
            self.older_lens[slot] = self.len;
        }
        self.len = len;
        self.len_dirty = true;
    }

    /// Grows the object to `len` with zeros, which a sync writes.
    pub(super) fn grow(&mut self, len: u64) {
        if len <= self.len {
            return;
        }
        self.version += 1;
        for index in self.pages.len()..pages_for(len) {
            self.pages.push(zero_page());
            self.dirty.insert(index, Dirty::default());
        }
        self.set_len(len);
    }

    pub(super) fn write(&mut self, offset: u64, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        self.version += 1;
        let end = offset + bytes.len() as u64;
        if end > self.len {
            self.grow(end);
        }
        let mut at = offset;
        let mut rest = bytes;
        while !rest.is_empty() {
            let index = (at / PAGE_BYTES as u64) as usize;
            let within = (at % PAGE_BYTES as u64) as usize;
            let n = rest.len().min(PAGE_BYTES - within);
            self.touch(index)[within..within + n].copy_from_slice(&rest[..n]);
            at += n as u64;
            rest = &rest[n..];
        }
    }

    pub(super) fn truncate(&mut self, len: u64) {
        if len >= self.len {
            return;
        }
        self.version += 1;
        let count = pages_for(len);
        self.pages.truncate(count);
        self.dirty.retain(|index, _| *index < count);
        let within = (len % PAGE_BYTES as u64) as usize;
        if within > 0 {
            self.touch(count - 1)[within..].fill(0);
        }
        self.set_len(len);
    }

    /// Another process truncates the object, durably.
    pub(super) fn cut(&mut self, len: u64) {
        self.truncate(len);
        self.durable.truncate(pages_for(len));
        let within = (len % PAGE_BYTES as u64) as usize;
        if within > 0
            && self.durable.len() == pages_for(len)
            && let Some(last) = self.durable.last_mut()
        {
            Arc::make_mut(last)[within..].fill(0);
        }
        self.durable_len = self.durable_len.min(len);
        self.older_lens.retain(|older| *older <= len);
    }

    /// Resets the object to its durable state.
    pub(super) fn forget_unsynced(&mut self) {
        let mut pages = self.durable.clone();
        pages.resize_with(pages_for(self.durable_len), zero_page);
        *self = Inode {
            direct: self.direct,
            handles: Arc::clone(&self.handles),
            ..Inode::durable_from(pages, self.durable_len)
        };
    }

    /// Copies written bytes. The caller checked the range.
    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) {
        let mut at = offset;
        let mut rest = buf;
        while !rest.is_empty() {
            let index = (at / PAGE_BYTES as u64) as usize;
            let within = (at % PAGE_BYTES as u64) as usize;
            let n = rest.len().min(PAGE_BYTES - within);
            let (now, later) = rest.split_at_mut(n);
            match self.pages.get(index) {
                Some(page) => now.copy_from_slice(&page[within..within + n]),
                None => now.fill(0),
            }
            at += n as u64;
            rest = later;
        }
    }

    /// What a sync that is called now must make durable.
    pub(super) fn capture(&self) -> Captured {
        let pages = self
            .dirty
            .keys()
            .filter_map(|index| {
                self.pages
                    .get(*index)
                    .map(|page| (*index, Arc::clone(page)))
            })
            .collect();
        Captured {
            pages,
            len: self.len,
        }
    }

    /// Makes `captured` durable. Bytes that were written since stay unsynced.
    pub(super) fn complete(&mut self, captured: &Captured) {
        self.durable.resize_with(pages_for(captured.len), zero_page);
        for (index, page) in &captured.pages {
            if let Some(durable) = self.durable.get_mut(*index) {
                *durable = Arc::clone(page);
            }
            let unchanged = self
                .pages
                .get(*index)
                .is_some_and(|now| Arc::ptr_eq(now, page));
            if unchanged || *index >= self.pages.len() {
                self.dirty.remove(index);
            } else if let Some(dirty) = self.dirty.get_mut(index) {
                *dirty = Dirty::default();
            }
        }
        self.durable_len = captured.len;
        self.older_lens.clear();
        self.len_changes = 0;
        self.len_dirty = self.len != captured.len;
    }

    /// A failed sync: the pages count as clean, although their bytes are not durable and never will
    /// be.
    pub(super) fn lose_unsynced(&mut self) {
        self.version += 1;
        self.dirty.clear();
        self.older_lens.clear();
        self.len_changes = 0;
        self.len_dirty = false;
    }
}

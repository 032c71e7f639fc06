//! Merging inputs: a loser tree over sources of decoded blocks.
//!
//! A `Merge` gives the entries of all sources in internal key order and says where a new user key begins. It checks
//! the order on the way, with the heads it has anyway: a block with a valid checksum and keys out of order is damage,
//! not a wrong table.
//!
//! Invariants: sources each ascend; the current entry is the winner's, and its slices live until `Merge::advance`.
//!
//! Threading: one owner a merge.

pub(crate) mod source;
pub mod table;
pub mod tree;

use source::Source;
use tree::{Head, LoserTree, head_is_whole};

use crate::error::Damage;
use crate::exec::ExecError;
use siltstone_storage::planted;

/// The entries of several sources, in order.
pub(crate) struct Merge {
    sources: Vec<Source>,
    tree: LoserTree,
    /// The user key before, its head and trailer.
    last_key: Vec<u8>,
    last_head: Head,
    last_trailer: u64,
    started: bool,
}

/// Whether leaf `a`'s entry comes before `b`'s, where their heads are equal.
#[inline]
fn before(sources: &[Source], a: u32, b: u32) -> bool {
    let (x, y) = (&sources[a as usize], &sources[b as usize]);
    let keys = if head_is_whole(x.head()) {
        std::cmp::Ordering::Equal
    } else {
        x.key().cmp(y.key())
    };
    // Newest first; of two equal internal keys, which no two inputs should hold, that of the earlier run.
    keys.then_with(|| y.trailer().cmp(&x.trailer()))
        .then(a.cmp(&b))
        .is_lt()
}

impl Merge {
    /// A merge of sources, the first entries of which are loaded here.
    pub fn new(mut sources: Vec<Source>) -> Result<Merge, ExecError> {
        for source in &mut sources {
            source.refill()?;
        }
        let heads: Vec<Head> = sources.iter().map(Source::head).collect();
        let tree = LoserTree::new(&heads, |a, b| before(&sources, a, b));
        Ok(Merge {
            sources,
            tree,
            last_key: Vec::new(),
            last_head: 0,
            last_trailer: 0,
            started: false,
        })
    }

    /// The current entry's source, or `None` at the end.
    #[inline(always)]
    pub fn current(&self) -> Option<&Source> {
        if self.tree.is_exhausted() {
            None
        } else {
            self.sources.get(self.tree.winner())
        }
    }

    /// Whether the current entry is the first of its user key. To be asked once for each entry: it remembers it.
    #[inline(always)]
    pub fn note(&mut self) -> Result<bool, ExecError> {
        let head = self.tree.head();
        let source = &self.sources[self.tree.winner()];
        let trailer = source.trailer();
        if head > self.last_head || !self.started {
            self.started = true;
        } else if head < self.last_head {
            return Err(disorder(source));
        } else {
            let order = if head_is_whole(head) || planted!(MergeLosesEqualHead) {
                std::cmp::Ordering::Equal
            } else {
                source.key().cmp(&self.last_key)
            };
            match order {
                std::cmp::Ordering::Less => return Err(disorder(source)),
                std::cmp::Ordering::Equal if trailer > self.last_trailer => {
                    return Err(disorder(source));
                }
                std::cmp::Ordering::Equal => {
                    self.last_trailer = trailer;
                    return Ok(false);
                }
                std::cmp::Ordering::Greater => {}
            }
        }
        self.last_head = head;
        self.last_trailer = trailer;
        // A head that is whole stands for its key; only longer ones are compared in full.
        if !head_is_whole(head) {
            self.last_key.clear();
            self.last_key.extend_from_slice(source.key());
        }
        Ok(true)
    }

    /// Moves to the next entry; true if a block was loaded on the way.
    #[inline(always)]
    pub fn advance(&mut self) -> Result<bool, ExecError> {
        let winner = self.tree.winner();
        let mut loaded = false;
        if !self.sources[winner].step() {
            self.sources[winner].refill()?;
            loaded = true;
        }
        let head = self.sources[winner].head();
        let sources = &self.sources;
        self.tree.replace(head, |a, b| before(sources, a, b));
        Ok(loaded)
    }

    /// Entries and raw bytes from the current entry on that were counted and taken, less what was counted and not taken yet: what was taken
    /// less this was read before the current entry.
    #[cold]
    pub fn ahead(&self) -> (i64, i64) {
        let mut ahead = (0, 0);
        for s in &self.sources {
            let (entries, raw) = s.unread();
            ahead.0 += entries as i64 - s.entries_read as i64;
            ahead.1 += raw as i64 - s.raw_bytes_read as i64;
        }
        ahead
    }

    /// Memory of the sources' buffers, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.sources.iter().map(Source::buffer_bytes).sum()
    }

    /// Takes what the sources have counted: entries, raw bytes and table bytes read.
    pub fn take_counts(&mut self) -> (u64, u64, u64) {
        let mut sums = (0, 0, 0);
        for s in &mut self.sources {
            sums.0 += std::mem::take(&mut s.entries_read);
            sums.1 += std::mem::take(&mut s.raw_bytes_read);
            sums.2 += std::mem::take(&mut s.bytes_read);
        }
        sums
    }
}

#[cold]
fn disorder(source: &Source) -> ExecError {
    ExecError::Failed(
        Damage::new("order of an input's entries", 0, 0, source.trailer() >> 8)
            .in_file(source.name(), 0),
    )
}

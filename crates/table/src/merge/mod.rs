//! Merges inputs with a loser tree over runs of decoded blocks.
//!
//! A `Merge` returns the entries of all runs in internal key order and says where a new user key
//! begins. It also checks the order, with the heads that it has anyway: a block with a valid
//! checksum and keys out of order is damage, and must not become a wrong table.
//!
//! Invariants: each run ascends. The current entry is the winner's, and its slices are valid until
//! `Merge::advance`.
//!
//! Threading: each merge has one owner.

pub mod ahead;
pub(crate) mod input_run;
pub mod table;
pub mod tree;

use input_run::InputRun;
use tree::{Head, LoserTree, head_is_whole};

use crate::exec::{ExecError, plan};
use siltstone_storage::planted;

/// The entries of several runs, in order.
pub(crate) struct Merge {
    runs: Vec<InputRun>,
    tree: LoserTree,
    /// The previous user key, its head and its trailer.
    last_key: Vec<u8>,
    last_head: Head,
    last_trailer: u64,
    started: bool,
}

/// Whether the entry of leaf `a` comes before that of `b`, if their heads are equal.
#[inline(always)]
fn before(runs: &[InputRun], a: u32, b: u32) -> bool {
    let (x, y) = (&runs[a as usize], &runs[b as usize]);
    let keys = if head_is_whole(x.head()) {
        std::cmp::Ordering::Equal
    } else {
        x.key().cmp(y.key())
    };
    // The newest comes first. Of two equal internal keys, which no two inputs should have, that of
    // the earlier run comes first.
    keys.then_with(|| y.trailer().cmp(&x.trailer()))
        .then(a.cmp(&b))
        .is_lt()
}

impl Merge {
    /// A merge of runs. Loads their first entries.
    pub fn new(mut runs: Vec<InputRun>) -> Result<Merge, ExecError> {
        for run in &mut runs {
            run.refill()?;
        }
        let heads: Vec<Head> = runs.iter().map(InputRun::head).collect();
        let tree = LoserTree::new(&heads, |a, b| before(&runs, a, b));
        Ok(Merge {
            runs,
            tree,
            last_key: Vec::new(),
            last_head: 0,
            last_trailer: 0,
            started: false,
        })
    }

    /// The run of the current entry, or `None` at the end.
    #[inline(always)]
    pub fn current(&self) -> Option<&InputRun> {
        if self.tree.is_exhausted() {
            None
        } else {
            self.runs.get(self.tree.winner())
        }
    }

    /// Whether the current entry is the first of its user key. Call this once for each entry,
    /// because it remembers the entry.
    #[inline(always)]
    pub fn note(&mut self) -> Result<bool, ExecError> {
        let head = self.tree.head();
        let run = &self.runs[self.tree.winner()];
        let trailer = run.trailer();
        if head > self.last_head || !self.started {
            self.started = true;
        } else if head < self.last_head {
            return Err(disorder(run));
        } else {
            let order = if head_is_whole(head) || planted!(MergeLosesEqualHead) {
                std::cmp::Ordering::Equal
            } else {
                run.key().cmp(&self.last_key)
            };
            match order {
                std::cmp::Ordering::Less => return Err(disorder(run)),
                std::cmp::Ordering::Equal if trailer > self.last_trailer => {
                    return Err(disorder(run));
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
        // A whole head identifies its key. Only longer keys are compared in full.
        if !head_is_whole(head) {
            self.last_key.clear();
            self.last_key.extend_from_slice(run.key());
        }
        Ok(true)
    }

    /// Moves to the next entry. Returns true if a block was loaded.
    #[inline(always)]
    pub fn advance(&mut self) -> Result<bool, ExecError> {
        let winner = self.tree.winner();
        let mut loaded = false;
        if !self.runs[winner].step() {
            self.runs[winner].refill()?;
            loaded = true;
        }
        let head = self.runs[winner].head();
        self.tree.replace(head, &self.runs[..], before);
        Ok(loaded)
    }

    /// The entries and raw bytes that the counters include but that lie at or after the current
    /// entry, less those that were counted and not taken yet. The counts that were taken, less
    /// this, were read before the current entry.
    #[cold]
    pub fn ahead(&self) -> (i64, i64) {
        let mut ahead = (0, 0);
        for s in &self.runs {
            let (entries, raw) = s.unread();
            ahead.0 += entries as i64 - s.entries_read as i64;
            ahead.1 += raw as i64 - s.raw_bytes_read as i64;
        }
        ahead
    }

    /// The memory of the runs' buffers, in bytes.
    pub fn buffer_bytes(&self) -> u64 {
        self.runs.iter().map(InputRun::buffer_bytes).sum()
    }

    /// Takes the counters of the runs: entries, raw bytes, and table bytes that were read.
    pub fn take_counts(&mut self) -> (u64, u64, u64) {
        let mut sums = (0, 0, 0);
        for s in &mut self.runs {
            sums.0 += std::mem::take(&mut s.entries_read);
            sums.1 += std::mem::take(&mut s.raw_bytes_read);
            sums.2 += std::mem::take(&mut s.bytes_read);
        }
        sums
    }
}

#[cold]
fn disorder(run: &InputRun) -> ExecError {
    plan::disorder(run.name(), run.trailer())
}

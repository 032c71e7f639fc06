//! What a job may drop: shadowed versions, tombstones, entries under range deletes, and range deletes themselves.
//!
//! **Stripes.** Let p0 < p1 < ... < pk be the job's snapshots, the published number last (it is an implicit snapshot:
//! a snapshot registered while the job runs is at least that). Nobody ever reads below pk with a number that is not
//! among them. The *stripe* of a sequence number `s` is the number of the smallest `p` with `s <= p`. Every number of
//! the job's inputs is at most pk, so that each has a stripe. A reader at `p` sees the numbers `<= p`: all stripes up
//! to its own, each whole or not at all. So two entries of one stripe are seen together or not at all, by everybody.
//!
//! **The rules**, for an entry `e` of user key `k`, judged in this order, each with the reason why no read changes:
//! - *Shadowed*: a newer version `n` of `k` among the inputs has the same stripe. Whoever sees `e` sees `n`, and `n`
//!   hides `e`. This also holds if `n` itself is dropped: as shadowed, by a still newer one of the same stripe, which
//!   hides `e` too; as covered, by a range delete that is newer than `n`, of the same stripe, which hides `e` as well;
//!   as a tombstone, only if nothing older than it can be there, once `e` is gone. So *what was dropped still shadows*.
//! - *Covered*: a range delete `r` over `k` with `r > e` has the same stripe. Whoever sees `e` sees `r`. A range
//!   delete covers only smaller numbers; a put of the same stripe that is newer than it stays. If `r` is dropped, it
//!   is by the fragment rule, after everything that it hides.
//! - *Tombstone*: `e` is a delete in stripe 0, and no older data outside the job can hold `k`. Every older version of
//!   `k` in the job is in stripe 0 too, and shadowed by `e`, and so dropped (which is why the rule needs the first).
//!   What is left below `e` holds nothing for `k`, so a reader that does not find `e` finds nothing either. In a
//!   higher stripe an older version may live for an older snapshot, which `e` must hide from the newer ones: it stays.
//! - *Fragment*: a fragment in stripe 0, over a range in which older data outside the job can hold
//!   nothing. Every older entry of the range in the job is in stripe 0, covered, and dropped (which
//!   is why the rule needs the second). In a higher stripe it stays, as a tombstone does. The rule
//!   is about keys, not about whole fragments: a fragment is the same as its two halves, cut
//!   anywhere, and the rule may drop one of them. So a fragment of stripe 0 that older data needs
//!   only in part is *trimmed*: from its start to the first key that older data can hold, and from
//!   after the last such key to its end. Gaps between older ranges stay covered, so that the rule
//!   makes no more fragments than there were.
//!
//! Merge operands and value addresses have rules of their own that are not written yet: a job that meets one is
//! declined before it gets here.
//!
//! **Fragments.** A range delete `[start, end) @ s` hides the entries of its range with numbers
//! below `s`. Range deletes may overlap in any way. For each stripe and at each key, [`fragment`]
//! keeps only the one with the largest number of that stripe. The others are never needed: a reader
//! that sees one of them also sees the larger one, which hides more. What is left of a range delete
//! is cut only where a newer one of its stripe begins or ends, so n range deletes make less than 2
//! n fragments, whatever the snapshots are. Fragments of one stripe do not overlap; those of
//! different stripes may.
//!
//! Threading: one owner; no I/O.

use std::collections::BTreeMap;

use crate::key::{Kind, seq_of};
use crate::limits::MAX_KEY_BYTES;
use crate::rangedel;
pub use crate::rangedel::RangeDelete;
use siltstone_storage::planted;

/// Where a key range ends.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RangeEnd {
    /// Before this user key.
    Before(Vec<u8>),
    /// With this user key.
    With(Vec<u8>),
    /// Nowhere.
    Unbounded,
}

impl RangeEnd {
    /// Whether a range with this end goes on to or past `key`.
    #[inline]
    pub fn reaches(&self, key: &[u8]) -> bool {
        match self {
            RangeEnd::Before(end) => key < end.as_slice(),
            RangeEnd::With(end) => key <= end.as_slice(),
            RangeEnd::Unbounded => true,
        }
    }

    /// Whether a range with this end goes on at least as far as one with `other`.
    pub fn at_least(&self, other: &RangeEnd) -> bool {
        match (self, other) {
            (RangeEnd::Unbounded, _) => true,
            (_, RangeEnd::Unbounded) => false,
            (RangeEnd::Before(a), RangeEnd::Before(b)) => a >= b,
            (RangeEnd::With(a), RangeEnd::With(b)) => a >= b,
            (RangeEnd::With(a), RangeEnd::Before(b)) => {
                a >= b || b.strip_prefix(a.as_slice()).is_some_and(|rest| rest == [0])
            }
            (RangeEnd::Before(a), RangeEnd::With(b)) => a > b,
        }
    }
}

/// A range of user keys, from `start` on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    /// The first user key.
    pub start: Vec<u8>,
    /// Where it ends.
    pub end: RangeEnd,
}

impl KeyRange {
    /// All user keys.
    pub fn everything() -> KeyRange {
        KeyRange {
            start: Vec::new(),
            end: RangeEnd::Unbounded,
        }
    }

    /// From `first` to `last`, both included.
    pub fn inclusive(first: &[u8], last: &[u8]) -> KeyRange {
        KeyRange {
            start: first.to_vec(),
            end: RangeEnd::With(last.to_vec()),
        }
    }

    /// From `start` to before `end`.
    pub fn before(start: &[u8], end: &[u8]) -> KeyRange {
        KeyRange {
            start: start.to_vec(),
            end: RangeEnd::Before(end.to_vec()),
        }
    }

    /// Whether `key` lies in it.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.reaches(key)
    }

    /// Whether it has a key of `[start, end)`.
    pub fn overlaps(&self, start: &[u8], end: &[u8]) -> bool {
        self.start.as_slice() < end && self.end.reaches(start.max(&self.start))
    }
}

/// Which rules a job applies; bits, so that a policy can be named by data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DropRules(pub u8);

impl DropRules {
    /// Shadowed versions.
    pub const SHADOWED: DropRules = DropRules(1);
    /// Tombstones over nothing; needs [`DropRules::SHADOWED`].
    pub const TOMBSTONES: DropRules = DropRules(2);
    /// Entries under range deletes.
    pub const COVERED: DropRules = DropRules(4);
    /// Range deletes over nothing; needs [`DropRules::COVERED`].
    pub const FRAGMENTS: DropRules = DropRules(8);
    /// Everything that may be dropped.
    pub const ALL: DropRules = DropRules(15);
    /// Nothing: the fast merge of upper levels.
    pub const QUICK: DropRules = DropRules(0);

    /// Whether all of `rules` are applied.
    #[inline]
    pub const fn has(self, rules: DropRules) -> bool {
        self.0 & rules.0 == rules.0
    }

    /// Both sets of rules.
    pub const fn with(self, rules: DropRules) -> DropRules {
        DropRules(self.0 | rules.0)
    }

    /// Whether each rule comes with those that its proof stands on, and none is unknown.
    pub fn is_sound(self) -> bool {
        self.0 & !DropRules::ALL.0 == 0
            && (!self.has(DropRules::TOMBSTONES) || self.has(DropRules::SHADOWED))
            && (!self.has(DropRules::FRAGMENTS) || self.has(DropRules::COVERED))
    }
}

/// Snapshots and the published number as stripes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// Ascending, distinct; the published number is the last.
    ends: Vec<u64>,
}

impl Stripes {
    /// From snapshots in any order, and the published number; snapshots above it see what it sees.
    pub fn new(snapshots: &[u64], published: u64) -> Stripes {
        let mut ends: Vec<u64> = snapshots
            .iter()
            .copied()
            .filter(|s| *s < published)
            .collect();
        ends.push(published);
        ends.sort_unstable();
        ends.dedup();
        Stripes { ends }
    }

    /// The stripe of a sequence number.
    #[inline]
    pub fn of(&self, seq: u64) -> usize {
        // Snapshots are few and mostly newer than the data, so that the first comparison decides.
        if seq <= self.ends[0] {
            return 0;
        }
        self.ends
            .partition_point(|end| *end < seq || *end == seq && planted!(StripeEndExclusive))
    }
}

/// The range deletes that cover the current key, while they are cut into fragments.
#[derive(Default)]
struct Sweep<'a> {
    /// For each stripe and number, how many range deletes cover the key.
    open: BTreeMap<(usize, u64), usize>,
    /// For each stripe, the number of the current fragment, and where it begins.
    newest: BTreeMap<usize, (u64, &'a [u8])>,
    fragments: Vec<RangeDelete>,
}

impl<'a> Sweep<'a> {
    /// Ends the stripe's fragment at `key` and begins the next one, if its newest number changed.
    fn settle(&mut self, stripe: usize, key: &'a [u8]) {
        let open = self.open.range((stripe, 0)..=(stripe, u64::MAX));
        let now = open.last().map(|((_, seq), _)| *seq);
        let before = self.newest.get(&stripe).copied();
        if before.map(|(seq, _)| seq) == now {
            return;
        }
        if let Some((seq, start)) = before {
            self.fragments.push(RangeDelete {
                start: start.to_vec(),
                end: key.to_vec(),
                seq,
            });
        }
        match now {
            Some(seq) => self.newest.insert(stripe, (seq, key)),
            None => self.newest.remove(&stripe),
        };
    }
}

/// The fragments of range deletes within `[start, end)` (`None`: no end), in the order of the
/// format: of each stripe, at each key, the range delete with the largest number.
pub fn fragment(
    range_deletes: &[RangeDelete],
    stripes: &Stripes,
    start: &[u8],
    end: Option<&[u8]>,
) -> Vec<RangeDelete> {
    // Where range deletes end and begin, in order of keys. Empty ranges are left out, so no count
    // falls below zero.
    let mut events: Vec<(&[u8], bool, u64)> = Vec::with_capacity(2 * range_deletes.len());
    for r in range_deletes {
        let from = r.start.as_slice().max(start);
        let to = end.map_or(r.end.as_slice(), |end| r.end.as_slice().min(end));
        if from < to {
            events.push((from, true, r.seq));
            events.push((to, false, r.seq));
        }
    }
    events.sort_unstable();
    let mut sweep = Sweep::default();
    for at_key in events.chunk_by(|a, b| a.0 == b.0) {
        for &(_, begins, seq) in at_key {
            let place = (stripes.of(seq), seq);
            let count = sweep.open.entry(place).or_insert(0);
            *count = if begins {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
            if *count == 0 {
                sweep.open.remove(&place);
            }
        }
        for &(key, _, seq) in at_key {
            sweep.settle(stripes.of(seq), key);
        }
    }
    let mut fragments = sweep.fragments;
    rangedel::sort(&mut fragments);
    fragments
}

/// What happens to an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It survives.
    Keep,
    /// A newer version of the same stripe hides it.
    Shadowed,
    /// A range delete of the same stripe hides it.
    Covered,
    /// A delete with nothing to hide.
    Tombstone,
}

/// No fragment.
const NONE: u32 = u32::MAX;

/// Judges the entries of a subjob, in order.
#[derive(Debug)]
pub struct Retain {
    rules: DropRules,
    stripes: Stripes,
    /// Where older data outside the job can hold keys: disjoint, ascending.
    older: Vec<KeyRange>,
    /// The first range of `older` that does not end before the current key.
    older_at: usize,
    /// Every fragment of the subjob, dropped ones included: these still cover.
    fragments: Vec<RangeDelete>,
    /// The fragments in the order of their ends.
    by_end: Vec<u32>,
    /// How many fragments begin at or before the current key, and how many end at or before it.
    begun: usize,
    ended: usize,
    /// For each stripe, the fragment that covers the current key. There is at most one, because
    /// fragments of one stripe do not overlap.
    covering: Vec<u32>,
    /// The stripe of the version before, of the same user key.
    newer: Option<usize>,
}

/// Sorts ranges and unites those that overlap. Empty ones go: a search by bounds would stop at them.
fn normalised(ranges: &[KeyRange]) -> Vec<KeyRange> {
    let mut sorted = ranges.to_vec();
    sorted.retain(|range| range.end.reaches(&range.start));
    sorted.sort();
    let mut out: Vec<KeyRange> = Vec::with_capacity(sorted.len());
    for range in sorted {
        match out.last_mut() {
            Some(last) if last.end.reaches(&range.start) => {
                if range.end.at_least(&last.end) {
                    last.end = range.end;
                }
            }
            _ => out.push(range),
        }
    }
    out
}

/// Cuts off both ends of a fragment what none of `needed` reaches: the ranges that overlap it, ascending.
fn trim(fragment: &mut RangeDelete, needed: &[KeyRange]) {
    let (Some(first), Some(last)) = (needed.first(), needed.last()) else {
        return;
    };
    if first.start > fragment.start {
        fragment.start.clone_from(&first.start);
    }
    let end = match &last.end {
        RangeEnd::Before(end) => end.clone(),
        // The key right after the last; one that would be too long to be a key leaves the fragment as it is.
        RangeEnd::With(key) if key.len() < MAX_KEY_BYTES || planted!(TrimPastLongestKey) => {
            [&key[..], &[0]].concat()
        }
        RangeEnd::With(_) | RangeEnd::Unbounded => return,
    };
    if end < fragment.end {
        fragment.end = end;
    }
}

impl Retain {
    /// The rules of a job over a subjob whose range deletes make `fragments`.
    pub fn new(
        rules: DropRules,
        stripes: Stripes,
        older: &[KeyRange],
        fragments: Vec<RangeDelete>,
    ) -> Retain {
        debug_assert!(rules.is_sound());
        let mut by_end: Vec<u32> = (0..fragments.len() as u32).collect();
        by_end.sort_unstable_by_key(|i| fragments[*i as usize].end.as_slice());
        Retain {
            rules,
            covering: vec![NONE; stripes.ends.len()],
            stripes,
            older: normalised(older),
            older_at: 0,
            fragments,
            by_end,
            begun: 0,
            ended: 0,
            newer: None,
        }
    }

    /// The fragments that survive, and how many were dropped. (One that was only trimmed counts as
    /// kept.)
    pub fn surviving_fragments(&self) -> (Vec<RangeDelete>, u64) {
        let mut dropped = 0;
        let mut kept = Vec::with_capacity(self.fragments.len());
        for fragment in &self.fragments {
            let mut fragment = fragment.clone();
            if self.rules.has(DropRules::FRAGMENTS) && self.stripes.of(fragment.seq) == 0 {
                let needed = self.older_in(&fragment.start, &fragment.end);
                if needed.is_empty() {
                    dropped += 1;
                    continue;
                }
                trim(&mut fragment, needed);
            }
            kept.push(fragment);
        }
        // Trimming moves starts.
        rangedel::sort(&mut kept);
        (kept, dropped)
    }

    /// The ranges of older data that have a key of `[start, end)`.
    fn older_in(&self, start: &[u8], end: &[u8]) -> &[KeyRange] {
        // `older` is disjoint and ascending: the ends ascend as the starts do.
        let from = self.older.partition_point(|r| !r.end.reaches(start));
        let reaching = &self.older[from..];
        &reaching[..reaching.partition_point(|r| r.overlaps(start, end))]
    }

    /// Announces the next user key; its newest version comes next.
    #[inline]
    pub fn start_key(&mut self, key: &[u8]) {
        self.newer = None;
        if self.ended < self.fragments.len() {
            self.pass_bounds(key);
        }
    }

    /// Begins the fragments whose starts are at or before the key, and ends those whose ends are.
    fn pass_bounds(&mut self, key: &[u8]) {
        while let Some(fragment) = self.fragments.get(self.begun)
            && fragment.start.as_slice() <= key
        {
            self.covering[self.stripes.of(fragment.seq)] = self.begun as u32;
            self.begun += 1;
        }
        while let Some(&place) = self.by_end.get(self.ended)
            && let fragment = &self.fragments[place as usize]
            && fragment.end.as_slice() <= key
        {
            let covering = &mut self.covering[self.stripes.of(fragment.seq)];
            if *covering == place {
                *covering = NONE;
            }
            self.ended += 1;
        }
    }

    /// Whether a range delete of the stripe hides the number.
    #[cold]
    fn is_covered(&self, seq: u64, stripe: usize) -> bool {
        let fragment = self.fragments.get(self.covering[stripe] as usize);
        fragment.is_some_and(|fragment| fragment.seq > seq)
    }

    /// Whether older data outside the job can hold the key.
    fn older_can_hold(&mut self, key: &[u8]) -> bool {
        while let Some(range) = self.older.get(self.older_at) {
            if range.end.reaches(key) {
                return range.start.as_slice() <= key;
            }
            self.older_at += 1;
        }
        false
    }

    /// Judges the next version of the current user key.
    #[inline]
    pub fn judge(&mut self, key: &[u8], trailer: u64) -> Verdict {
        let seq = seq_of(trailer);
        let stripe = self.stripes.of(seq);
        let newer = self.newer.replace(stripe);
        if newer == Some(stripe) && self.rules.has(DropRules::SHADOWED) {
            return Verdict::Shadowed;
        }
        if self.begun > self.ended
            && self.rules.has(DropRules::COVERED)
            && self.is_covered(seq, stripe)
        {
            return Verdict::Covered;
        }
        if trailer as u8 == Kind::Delete as u8
            && stripe == 0
            && self.rules.has(DropRules::TOMBSTONES)
            && !self.older_can_hold(key)
        {
            return Verdict::Tombstone;
        }
        Verdict::Keep
    }
}

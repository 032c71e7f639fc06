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
//! - *Fragment*: a fragment's number in stripe 0, over a range in which older data outside the job can hold nothing.
//!   Every older entry of the range in the job is in stripe 0, covered, and dropped (which is why the rule needs the
//!   second). In a higher stripe it stays, as a tombstone does.
//!   The rule speaks of keys, not of whole fragments: a fragment is the same as its two halves, cut anywhere, and the rule
//!   may drop one of them. So a fragment of stripe 0 alone that older data needs only in part is *trimmed*: from its
//!   start to the first key that older data can hold, and from after the last such key to its end. Gaps between older
//!   ranges stay covered, and a fragment with numbers of higher stripes is dropped whole or not at all, so that no rule makes
//!   more fragments than there were.
//!
//! Merge operands and value addresses have rules of their own that are not written yet: a job that meets one is
//! declined before it gets here.
//!
//! **Fragments.** Range deletes `[start, end) @ s` hide the entries of their range with numbers below `s`. They
//! overlap as they like; [`fragment`] cuts them at each other's ends, so that fragments are disjoint, and keeps of
//! each fragment the largest number of each stripe. The others are never needed: whoever sees one of them sees the
//! larger one, which hides more. (So a hundred thousand overlapping range deletes make at most twice as many
//! fragments, of one number each, if there is no snapshot.)
//!
//! Threading: one owner; no I/O.

use std::collections::BTreeMap;

use crate::key::{Kind, seq_of};
use crate::limits::MAX_KEY_BYTES;
pub use crate::rangedel::Fragment;
use siltstone_storage::planted::{self, Bug};

/// A range delete: the user keys in `[start, end)` have no value from sequence number `seq` on.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RangeDelete {
    /// The first user key.
    pub start: Vec<u8>,
    /// The user key after the last.
    pub end: Vec<u8>,
    /// Entries with smaller numbers are hidden.
    pub seq: u64,
}

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
            .skip(usize::from(planted::is(Bug::OldestSnapshotIsForgotten)))
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
        self.ends.partition_point(|end| {
            *end < seq || *end == seq && planted::is(Bug::StripeEndExclusive)
        })
    }

    /// The largest number of the stripe below that of `seq`, if there is one.
    fn below(&self, seq: u64) -> Option<u64> {
        self.of(seq)
            .checked_sub(1)
            .and_then(|i| self.ends.get(i))
            .copied()
    }
}

/// Cuts range deletes into disjoint fragments, ascending, within `[start, end)` (`None`: no end). Of each fragment the
/// largest number of each stripe is kept; neighbours with the same numbers are *not* joined, see [`join`].
pub fn fragment(
    range_deletes: &[RangeDelete],
    stripes: &Stripes,
    start: &[u8],
    end: Option<&[u8]>,
) -> Vec<Fragment> {
    // Where deletes begin and end, in order of keys; numbers of those that are open at a key.
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
    let mut open: BTreeMap<u64, usize> = BTreeMap::new();
    let mut fragments = Vec::new();
    let mut i = 0;
    while i < events.len() {
        let at = events[i].0;
        while i < events.len() && events[i].0 == at {
            let (_, begins, seq) = events[i];
            let count = open.entry(seq).or_insert(0);
            // No delete ends where it begins, so that a count never falls below zero.
            *count = if begins {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
            if *count == 0 {
                open.remove(&seq);
            }
            i += 1;
        }
        let (Some(next), false) = (events.get(i), open.is_empty()) else {
            continue;
        };
        let mut seqs = Vec::new();
        let mut largest = open.keys().next_back().copied();
        while let Some(seq) = largest {
            seqs.push(seq);
            largest = stripes
                .below(seq)
                .and_then(|limit| open.range(..=limit).next_back().map(|(s, _)| *s));
        }
        fragments.push(Fragment {
            start: at.to_vec(),
            end: next.0.to_vec(),
            seqs,
        });
    }
    fragments
}

/// Joins neighbours that touch and have the same numbers.
pub fn join(fragments: Vec<Fragment>) -> Vec<Fragment> {
    let mut joined: Vec<Fragment> = Vec::with_capacity(fragments.len());
    for fragment in fragments {
        match joined.last_mut() {
            Some(last) if last.end == fragment.start && last.seqs == fragment.seqs => {
                last.end = fragment.end
            }
            _ => joined.push(fragment),
        }
    }
    joined
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
    fragments: Vec<Fragment>,
    /// The first fragment that does not end before the current key.
    fragment_at: usize,
    /// Whether that fragment covers the current key.
    covers: bool,
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
fn trim(fragment: &mut Fragment, needed: &[KeyRange]) {
    let (Some(first), Some(last)) = (needed.first(), needed.last()) else {
        return;
    };
    if first.start > fragment.start {
        fragment.start.clone_from(&first.start);
    }
    let end = match &last.end {
        RangeEnd::Before(end) => end.clone(),
        // The key right after the last; one that would be too long to be a key leaves the fragment as it is.
        RangeEnd::With(key) if planted::is(Bug::TrimStopsAtLastKey) => key.clone(),
        RangeEnd::With(key) if key.len() < MAX_KEY_BYTES => [&key[..], &[0]].concat(),
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
        fragments: Vec<Fragment>,
    ) -> Retain {
        debug_assert!(rules.is_sound());
        Retain {
            rules,
            stripes,
            older: normalised(older),
            older_at: 0,
            fragments,
            fragment_at: 0,
            covers: false,
            newer: None,
        }
    }

    /// The fragments that survive, joined where they touch; and how many numbers of fragments were dropped. (One that was only trimmed
    /// counts as kept.)
    pub fn surviving_fragments(&self) -> (Vec<Fragment>, u64) {
        let mut dropped = 0;
        let mut kept = Vec::with_capacity(self.fragments.len());
        for fragment in &self.fragments {
            let mut fragment = fragment.clone();
            if self.rules.has(DropRules::FRAGMENTS) {
                let before = fragment.seqs.len();
                let needed = self.older_in(&fragment.start, &fragment.end);
                if needed.is_empty() {
                    fragment.seqs.retain(|seq| self.stripes.of(*seq) > 0);
                } else if fragment.seqs.iter().all(|seq| self.stripes.of(*seq) == 0) {
                    trim(&mut fragment, needed);
                }
                dropped += (before - fragment.seqs.len()) as u64;
            }
            if !fragment.seqs.is_empty() {
                kept.push(fragment);
            }
        }
        (join(kept), dropped)
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
        if self.fragment_at < self.fragments.len() {
            self.find_fragment(key);
        }
    }

    fn find_fragment(&mut self, key: &[u8]) {
        while let Some(fragment) = self.fragments.get(self.fragment_at) {
            if key < fragment.end.as_slice() {
                self.covers = fragment.start.as_slice() <= key;
                return;
            }
            self.fragment_at += 1;
        }
        self.covers = false;
    }

    /// Whether a range delete of the stripe hides the number.
    #[cold]
    fn is_covered(&self, seq: u64, stripe: usize) -> bool {
        let seqs = self
            .fragments
            .get(self.fragment_at)
            .map_or(&[][..], |f| f.seqs.as_slice());
        seqs.iter()
            .any(|r| *r > seq && self.stripes.of(*r) == stripe)
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
        if self.covers && self.rules.has(DropRules::COVERED) && self.is_covered(seq, stripe) {
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

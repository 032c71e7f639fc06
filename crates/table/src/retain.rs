//! What a job may drop: shadowed versions, tombstones, entries under range deletes, and range
//! deletes themselves.
//!
//! **Stripes.** Let p0 < p1 < ... < pk be the job's snapshots, of which the last is the published
//! number (it is an implicit snapshot: a snapshot that is registered while the job runs is at least
//! that large). No read below pk ever uses a number that is not among them. The *stripe* of a
//! sequence number `s` is the number of the smallest `p` with `s <= p`. All numbers of the job's
//! inputs are at most pk, so each has a stripe. A reader at `p` sees the numbers `<= p`: all
//! stripes up to its own, each completely or not at all. So every reader sees either both or
//! neither of two entries of one stripe.
//!
//! **The rules** are applied to an entry `e` of user key `k` in this order. Each has the reason why
//! no read changes:
//! - *Shadowed*: a newer version `n` of `k` among the inputs has the same stripe. Every reader that
//!   sees `e` sees `n`, and `n` hides `e`. This holds even if `n` itself is dropped. If `n` is
//!   shadowed, a still newer version of the same stripe hides `e` too. If it is covered, a range
//!   delete of the same stripe that is newer than `n` hides `e` as well. If it is a dropped
//!   tombstone, nothing older than it can exist once `e` is gone. So *dropped versions still
//!   shadow*.
//! - *Covered*: a range delete `r` over `k` with `r > e` has the same stripe. Every reader that
//!   sees `e` sees `r`. A range delete covers only smaller numbers; a newer put of the same stripe
//!   stays. If `r` is dropped, it is dropped by the fragment rule, after everything that it hides.
//! - *Tombstone*: `e` is a delete in stripe 0, and no older data outside the job can hold `k`.
//!   Every older version of `k` in the job is in stripe 0 too, is shadowed by `e` and therefore
//!   dropped (which is why this rule requires the first one). The remaining data below `e` holds
//!   nothing for `k`, so a reader that does not find `e` finds nothing either. In a higher stripe,
//!   an older version may be kept for an older snapshot, and `e` must hide it from newer readers:
//!   `e` stays.
//! - *Fragment*: a fragment is in stripe 0, and older data outside the job can hold nothing in its
//!   range. Every older entry of the range in the job is in stripe 0, covered, and therefore
//!   dropped (which is why this rule requires the second one). In a higher stripe the fragment
//!   stays, as a tombstone does. The rule is about keys, not about whole fragments: a fragment
//!   means the same as its two halves, cut anywhere, and the rule may drop one of them. So a
//!   fragment of stripe 0 that older data needs only in part is *trimmed*: the part before the
//!   first key that older data can hold, and the part after the last such key, are removed. Gaps
//!   between older ranges stay covered, so the rule never increases the number of fragments.
//!
//! Merge operands and value addresses have their own rules, which are not written yet. A job with
//! such entries is declined before it gets here.
//!
//! **Fragments.** A range delete `[start, end) @ s` hides the entries of its range with numbers
//! below `s`. Range deletes may overlap in any way. For each stripe and each key, [`fragment`]
//! keeps only the one with the largest number of that stripe. The others are never needed: a reader
//! that sees one of them also sees the larger one, which hides more. What remains of a range delete
//! is cut only where a newer one of its stripe begins or ends, so n range deletes make fewer than 2
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

/// The end of a key range.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RangeEnd {
    /// The range ends before this user key.
    Before(Vec<u8>),
    /// The range ends with this user key, which it includes.
    With(Vec<u8>),
    /// The range has no end.
    Unbounded,
}

impl RangeEnd {
    /// Whether a range with this end extends to or past `key`.
    #[inline]
    pub fn reaches(&self, key: &[u8]) -> bool {
        match self {
            RangeEnd::Before(end) => key < end.as_slice(),
            RangeEnd::With(end) => key <= end.as_slice(),
            RangeEnd::Unbounded => true,
        }
    }

    /// Whether a range with this end extends at least as far as one with `other`.
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

/// A range of user keys.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct KeyRange {
    /// The first user key.
    pub start: Vec<u8>,
    /// The end of the range.
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

    /// Whether the range contains `key`.
    #[inline]
    pub fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && self.end.reaches(key)
    }

    /// Whether the range contains a key of `[start, end)`.
    pub fn overlaps(&self, start: &[u8], end: &[u8]) -> bool {
        self.start.as_slice() < end && self.end.reaches(start.max(&self.start))
    }
}

/// The rules that a job applies, as bits, so that plain data can name a policy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct DropRules(pub u8);

impl DropRules {
    /// Drop shadowed versions.
    pub const SHADOWED: DropRules = DropRules(1);
    /// Drop tombstones that hide nothing. Requires [`DropRules::SHADOWED`].
    pub const TOMBSTONES: DropRules = DropRules(2);
    /// Drop entries under range deletes.
    pub const COVERED: DropRules = DropRules(4);
    /// Drop range deletes that hide nothing. Requires [`DropRules::COVERED`].
    pub const FRAGMENTS: DropRules = DropRules(8);
    /// Drop everything that may be dropped.
    pub const ALL: DropRules = DropRules(15);
    /// Drop nothing: the fast merge of upper levels.
    pub const QUICK: DropRules = DropRules(0);

    /// Whether all of `rules` are applied.
    #[inline]
    pub const fn has(self, rules: DropRules) -> bool {
        self.0 & rules.0 == rules.0
    }

    /// The union of both sets of rules.
    pub const fn with(self, rules: DropRules) -> DropRules {
        DropRules(self.0 | rules.0)
    }

    /// Whether each rule comes with those that its proof requires, and none is unknown.
    pub fn is_sound(self) -> bool {
        self.0 & !DropRules::ALL.0 == 0
            && (!self.has(DropRules::TOMBSTONES) || self.has(DropRules::SHADOWED))
            && (!self.has(DropRules::FRAGMENTS) || self.has(DropRules::COVERED))
    }
}

/// The stripes that the snapshots and the published number make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stripes {
    /// The ends of the stripes, ascending and distinct. The published number is the last one.
    ends: Vec<u64>,
}

impl Stripes {
    /// The stripes of snapshots (in any order) and the published number. A snapshot above the
    /// published number sees the same as the published number.
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

    /// The ends of the stripes, ascending and distinct: the snapshots below the published number,
    /// and that number.
    pub fn ends(&self) -> &[u64] {
        &self.ends
    }

    /// The stripe of a sequence number.
    #[inline]
    pub fn of(&self, seq: u64) -> usize {
        // Snapshots are few and mostly newer than the data, so the first comparison usually
        // decides.
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
    /// If the stripe's newest number changed, ends its fragment at `key` and begins the next one.
    fn update(&mut self, stripe: usize, key: &'a [u8]) {
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
/// format. For each stripe and key, this is the range delete with the largest number.
pub fn fragment(
    range_deletes: &[RangeDelete],
    stripes: &Stripes,
    start: &[u8],
    end: Option<&[u8]>,
) -> Vec<RangeDelete> {
    // The keys where range deletes begin and end, in order. Empty ranges are left out, so that no
    // count falls below zero.
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
            let open = (stripes.of(seq), seq);
            let count = sweep.open.entry(open).or_insert(0);
            *count = if begins {
                *count + 1
            } else {
                count.saturating_sub(1)
            };
            if *count == 0 {
                sweep.open.remove(&open);
            }
        }
        for &(key, _, seq) in at_key {
            sweep.update(stripes.of(seq), key);
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
    /// It is a delete that hides nothing.
    Tombstone,
}

/// Stands for no fragment.
const NONE: u32 = u32::MAX;

/// Applies the drop rules to the entries of a subjob, in order.
#[derive(Clone, Debug)]
pub struct Retain {
    rules: DropRules,
    stripes: Stripes,
    /// The key ranges in which older data outside the job can hold keys: disjoint, ascending.
    older: Vec<KeyRange>,
    /// The first range of `older` that does not end before the current key.
    older_at: usize,
    /// Every fragment of the subjob. Dropped ones are included, because they still cover entries.
    fragments: Vec<RangeDelete>,
    /// The fragments in the order of their ends.
    by_end: Vec<u32>,
    /// How many fragments begin at or before the current key, and how many end at or before it.
    begun: usize,
    ended: usize,
    /// For each stripe, the fragment that covers the current key. There is at most one, because
    /// fragments of one stripe do not overlap.
    covering: Vec<u32>,
    /// The stripe of the previous (newer) version of the same user key.
    newer: Option<usize>,
}

/// Sorts ranges and unites those that overlap. Removes empty ones, at which a search by bounds
/// would stop.
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

/// Removes both ends of a fragment that none of `needed` reaches. `needed` are the ranges that
/// overlap it, ascending.
fn trim(fragment: &mut RangeDelete, needed: &[KeyRange]) {
    let (Some(first), Some(last)) = (needed.first(), needed.last()) else {
        return;
    };
    if first.start > fragment.start {
        fragment.start.clone_from(&first.start);
    }
    let end = match &last.end {
        RangeEnd::Before(end) => end.clone(),
        // The end becomes the key right after `key`; if that is too long to be a key, it stays.
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
    /// Applies the rules of a job to a subjob whose range deletes make `fragments`.
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

    /// The rules that are applied.
    pub fn rules(&self) -> DropRules {
        self.rules
    }

    /// The stripes of sequence numbers.
    pub fn stripes(&self) -> &Stripes {
        &self.stripes
    }

    /// The key ranges in which older data outside the job can hold keys. They are disjoint, not
    /// empty, and ascend.
    pub fn older(&self) -> &[KeyRange] {
        &self.older
    }

    /// All fragments of the subjob, in the order of the format. Those that are dropped or trimmed
    /// are here as a whole, because they still cover entries.
    pub fn fragments(&self) -> &[RangeDelete] {
        &self.fragments
    }

    /// The fragments that survive, and how many were dropped. A fragment that was only trimmed
    /// counts as kept.
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
        // Trimming changes starts.
        rangedel::sort(&mut kept);
        (kept, dropped)
    }

    /// The ranges of older data that contain a key of `[start, end)`.
    fn older_in(&self, start: &[u8], end: &[u8]) -> &[KeyRange] {
        // `older` is disjoint and ascending, so the ends ascend as the starts do.
        let from = self.older.partition_point(|r| !r.end.reaches(start));
        let reaching = &self.older[from..];
        &reaching[..reaching.partition_point(|r| r.overlaps(start, end))]
    }

    /// Starts the next user key, whose newest version comes next.
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
        while let Some(&index) = self.by_end.get(self.ended)
            && let fragment = &self.fragments[index as usize]
            && fragment.end.as_slice() <= key
        {
            let covering = &mut self.covering[self.stripes.of(fragment.seq)];
            if *covering == index {
                *covering = NONE;
            }
            self.ended += 1;
        }
    }

    /// Whether a range delete of the stripe hides this sequence number.
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

    /// Decides what happens to the next version of the current user key.
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

//! The operations of a victim, which can be computed again from seed, cycle, lane and number, and
//! their effect on a lane's contents.
//!
//! A *lane* is one thread of the victim. It has keys of its own in the keyspaces that all lanes
//! share, and a keyspace of its own that it creates and drops. [`Script::op`] returns operation *n*
//! of a lane; [`Lane`] is what the lane's part of the store must hold.
//!
//! Invariants: an operation depends on seed, cycle, lane and number alone, so its number determines
//! it. No operation touches keys that another lane may write, so lanes can be checked one by one,
//! whatever their order was.
//!
//! Threading: plain values.

use std::collections::BTreeMap;
use std::ops::Bound;

use siltstone::{DirectIo, IngestMode, Options, RedirectDir, StallPolicy, SyncMode};

use crate::model::{Bytes, Pairs};
use crate::rng::Rng;
use crate::workload::draw_options;

/// The number of threads of a victim.
pub const LANES: usize = 3;
/// The keyspaces that all lanes share.
pub const SHARED: [&str; 3] = ["default", "a", "b"];
/// The number of spaces of a lane: the shared keyspaces, and its own keyspace.
pub const SPACES: usize = SHARED.len() + 1;
/// A lane's own keyspace, as an index.
pub const OWN: usize = SHARED.len();
/// The number of different usual keys of a lane in one keyspace.
pub const KEYS: u64 = 240;
/// The numbers after them belong to long keys: few of them fill a memtable, and the bounds of their
/// tables fill a manifest.
pub const LONG_KEYS: u64 = 4;
const LONG_KEY_BYTES: usize = 60_000;

/// The offset of the cycle of an order to verify: its options are others, and what was decided in
/// the cycle itself stays.
pub const VERIFYING: u64 = 1000;

/// The name of a lane's own keyspace.
pub fn own_name(lane: usize) -> String {
    format!("own-{lane}")
}

/// The name of a space of a lane.
pub fn space_name(lane: usize, space: usize) -> String {
    match SHARED.get(space) {
        Some(name) => (*name).to_string(),
        None => own_name(lane),
    }
}

/// The first byte of all keys of a lane.
pub fn prefix(lane: usize) -> [u8; 1] {
    [b'a' + lane as u8]
}

/// The lane that a key belongs to.
pub fn lane_of(key: &[u8]) -> Option<usize> {
    let lane = key.first()?.checked_sub(b'a')?;
    (usize::from(lane) < LANES).then_some(lane.into())
}

/// A key as bytes; keys of a lane are in the order of their numbers.
pub fn key(lane: usize, number: u64) -> Bytes {
    let mut key = prefix(lane).to_vec();
    key.extend_from_slice(format!("{number:04}").as_bytes());
    match number {
        n if n >= KEYS => key.resize(LONG_KEY_BYTES, b'x'),
        n if n % 7 == 0 => key.extend_from_slice(&[b'/'; 40]),
        _ => {}
    }
    key.into()
}

/// One entry of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The key has this value.
    Put(usize, Bytes, Bytes),
    /// The key has no value.
    Delete(usize, Bytes),
    /// No key from the first on and before the second has a value.
    DeleteRange(usize, Bytes, Bytes),
}

impl Entry {
    /// The space that it belongs to.
    pub fn space(&self) -> usize {
        match self {
            Entry::Put(space, ..) | Entry::Delete(space, _) | Entry::DeleteRange(space, ..) => {
                *space
            }
        }
    }
}

/// One operation of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// A batch, or a single call if it has one entry; `sync` asks for a sync.
    Write {
        /// At least one.
        entries: Vec<Entry>,
        /// As `WriteOptions::sync`.
        sync: bool,
    },
    /// Tables built outside are ingested: keys in order, with deletes as keys without a value.
    Ingest {
        /// The space.
        space: usize,
        /// The entries.
        pairs: Vec<(Bytes, Option<Bytes>)>,
        /// The mode.
        mode: IngestMode,
    },
    /// The lane's own keyspace is created, if it does not exist.
    Create,
    /// It is dropped, if it exists.
    Drop,
    /// One keyspace is flushed.
    Flush(usize),
    /// All keyspaces are flushed.
    FlushAll,
    /// A range is compacted; the whole keyspace without one.
    Compact(usize, Option<(Bytes, Bytes)>),
    /// `Store::sync_log`.
    SyncLog,
    /// `Store::verify`.
    Verify,
    /// One key is read.
    Get(usize, Bytes),
    /// All of the lane's keys in a space are read.
    Scan {
        /// The space.
        space: usize,
        /// From the last key to the first.
        back: bool,
    },
    /// A snapshot is taken and kept.
    TakeSnapshot,
    /// All of the lane's keys in a shared space are read as a kept snapshot sees them. Then the
    /// snapshot may be dropped.
    ReadSnapshot {
        /// The space.
        space: usize,
        /// Whether the snapshot is dropped.
        drop: bool,
    },
}

impl Op {
    /// Whether it may change the contents of the store.
    pub fn changes(&self) -> bool {
        matches!(
            self,
            Op::Write { .. } | Op::Ingest { .. } | Op::Create | Op::Drop
        )
    }

    /// Its kind, in one word.
    pub fn word(&self) -> &'static str {
        match self {
            Op::Write { entries, .. } => match &entries[..] {
                [Entry::Put(..)] => "put",
                [Entry::Delete(..)] => "delete",
                [Entry::DeleteRange(..)] => "delete_range",
                _ => "batch",
            },
            Op::Ingest { .. } => "ingest",
            Op::Create => "create",
            Op::Drop => "drop",
            Op::Flush(_) | Op::FlushAll => "flush",
            Op::Compact(..) => "compact",
            Op::SyncLog => "sync_log",
            Op::Verify => "verify",
            Op::Get(..) => "get",
            Op::Scan { .. } => "scan",
            Op::TakeSnapshot | Op::ReadSnapshot { .. } => "snapshot",
        }
    }
}

/// The script of one cycle.
#[derive(Clone, Debug)]
pub struct Script {
    seed: u64,
    cycle: u64,
    long_keys: bool,
    /// Whether some values are larger than 1 MiB.
    has_large_values: bool,
}

fn mix(parts: &[u64]) -> Rng {
    let mut state = 0u64;
    for part in parts {
        state = Rng::new(state ^ part.wrapping_mul(0x9E37_79B9_7F4A_7C15)).draw();
    }
    Rng::new(state)
}

impl Script {
    /// The script of a cycle of a seed.
    pub fn new(seed: u64, cycle: u64) -> Script {
        let long_keys = cycle % 5 == 3;
        Script {
            seed,
            cycle,
            long_keys,
            has_large_values: cycle.is_multiple_of(2),
        }
    }

    /// Whether keys are long in this cycle: then every few writes cause a flush, and every few
    /// flushes a new manifest.
    pub fn has_long_keys(&self) -> bool {
        self.long_keys
    }

    /// The same script without long keys and large values, so that manifests stay small and a small
    /// disk does not fill up at once.
    pub fn without_long_keys(mut self) -> Script {
        self.long_keys = false;
        self.has_large_values = false;
        self
    }

    /// The options of the cycle: sizes are small, so that a few hundred operations flush, compact
    /// and change segments. The folders of log and tables are the seed's choice, since they are
    /// chosen once. A second location of tables may be added in a later cycle. `direct` says
    /// whether the file system has direct I/O.
    pub fn options(&self, direct: bool) -> Options {
        let mut rng = mix(&[self.seed, self.cycle, 23]);
        let mut options = draw_options(&mut rng);
        options.sync = match rng.below(3) {
            0 => SyncMode::Never,
            1 => SyncMode::Interval(std::time::Duration::from_micros(100 + rng.below(20_000))),
            _ => SyncMode::Always,
        };
        // Only segments of at least 1 MiB are mapped.
        if rng.chance(40) {
            options.log_segment_bytes = 1 << 20 << rng.below(2);
            options.log_bytes_max = options.log_segment_bytes * (2 + rng.below(3));
        }
        // Long waits would test nothing here.
        options.background_bytes_per_s = 0;
        if rng.chance(70) {
            options.stall_policy = StallPolicy::Stop;
        }
        if self.long_keys {
            options.memtable_bytes = 64 << 10;
            options.keyspaces.clear();
        }
        if !direct {
            options.direct_io = DirectIo::None;
        }
        let mut place = mix(&[self.seed, 29]);
        if place.chance(25) {
            options.log_dir = "the-log".into();
        }
        if place.chance(25) {
            options.table_dir = "the-tables".into();
        }
        if place.chance(50) && self.cycle % VERIFYING >= place.below(3) {
            options.redirect_dir = RedirectDir::Path("the-redirect".into());
        }
        options
    }

    /// The location of the flushes after operation `n` of a lane, if the store has a second one.
    pub fn location(&self, lane: usize, n: u64) -> Option<u32> {
        let mut rng = mix(&[self.seed, self.cycle, lane as u64, n, 31]);
        *rng.pick(&[None, Some(0), Some(1), Some(1)])
    }

    fn number(&self, rng: &mut Rng) -> u64 {
        if self.long_keys && rng.chance(60) {
            return KEYS + rng.below(LONG_KEYS);
        }
        // Some keys are hot.
        let most = if rng.chance(25) { 12 } else { KEYS };
        rng.below(most)
    }

    /// A value that identifies its writer, of any length, compressible or not.
    fn value(&self, lane: usize, n: u64, entry: u64, rng: &mut Rng) -> Bytes {
        let len = match rng.below(100) {
            0..4 => return Bytes::from(&[][..]),
            4..50 => 8 + rng.below(100),
            50..92 => 100 + rng.below(1100),
            92..99 => 1000 + rng.below(7000),
            // Larger than a buffer of direct I/O.
            _ if self.has_large_values && rng.clone().chance(15) => (1 << 20) + rng.below(1 << 20),
            _ => 30_000 + rng.below(40_000),
        } as usize;
        let mut value = format!("{}.{lane}.{n}.{entry} ", self.cycle).into_bytes();
        let (same, bits) = (rng.chance(50), rng.draw());
        while value.len() < len {
            let next = if same { bits } else { rng.draw() };
            value.extend_from_slice(&next.to_le_bytes());
        }
        value.truncate(len);
        value.into()
    }

    fn range(&self, lane: usize, rng: &mut Rng) -> (Bytes, Bytes) {
        let (from, width) = match rng.below(20) {
            0 => (0, KEYS + LONG_KEYS),
            1 => (rng.below(KEYS), KEYS),
            2..8 => (rng.below(KEYS), 1),
            _ => (rng.below(KEYS), 1 + rng.below(24)),
        };
        (
            key(lane, from),
            key(lane, (from + width).min(KEYS + LONG_KEYS)),
        )
    }

    fn entry(&self, lane: usize, n: u64, at: u64, rng: &mut Rng) -> Entry {
        let space = rng.index(SPACES);
        match rng.below(100) {
            0..6 => {
                let (from, to) = self.range(lane, rng);
                Entry::DeleteRange(space, from, to)
            }
            6..22 => Entry::Delete(space, key(lane, self.number(rng))),
            _ => {
                let number = self.number(rng);
                let value = match number >= KEYS {
                    true => Bytes::from(n.to_string().as_bytes()),
                    false => self.value(lane, n, at, rng),
                };
                Entry::Put(space, key(lane, number), value)
            }
        }
    }

    /// Operation `n` of a lane.
    pub fn op(&self, lane: usize, n: u64) -> Op {
        let mut rng = mix(&[self.seed, self.cycle, lane as u64, n]);
        let rng = &mut rng;
        match rng.below(1000) {
            0..390 => Op::Write {
                entries: vec![self.entry(lane, n, 0, rng)],
                sync: false,
            },
            390..700 => {
                let count = match rng.below(40) {
                    0 => 60 + rng.below(100),
                    _ => 2 + rng.below(12),
                };
                Op::Write {
                    entries: (0..count).map(|i| self.entry(lane, n, i, rng)).collect(),
                    sync: rng.chance(10),
                }
            }
            700..715 => {
                let mut pairs = BTreeMap::new();
                for i in 0..1 + rng.below(20) {
                    let number = rng.below(KEYS);
                    let value = (!rng.chance(20)).then(|| self.value(lane, n, i, rng));
                    pairs.insert(key(lane, number), value);
                }
                Op::Ingest {
                    space: rng.index(SPACES),
                    pairs: pairs.into_iter().collect(),
                    mode: *rng.pick(&[IngestMode::Link, IngestMode::Copy, IngestMode::Move]),
                }
            }
            715..735 => Op::Create,
            735..745 => Op::Drop,
            745..770 => Op::Flush(rng.index(SPACES)),
            770..775 => Op::FlushAll,
            775..785 => {
                let whole = rng.chance(40);
                let range = (!whole).then(|| self.range(lane, rng));
                Op::Compact(rng.index(SPACES), range)
            }
            785..800 => Op::SyncLog,
            800..802 => Op::Verify,
            802..930 => Op::Get(rng.index(SPACES), key(lane, rng.below(KEYS))),
            930..955 => Op::Scan {
                space: rng.index(SPACES),
                back: rng.chance(50),
            },
            955..975 => Op::TakeSnapshot,
            _ => Op::ReadSnapshot {
                space: rng.index(SHARED.len()),
                drop: rng.chance(60),
            },
        }
    }
}

/// The contents of a lane's part of the store.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lane {
    /// The pairs by space.
    pub spaces: [Pairs; SPACES],
    /// Whether its own keyspace exists.
    pub own: bool,
}

impl Lane {
    /// Whether a space exists.
    pub fn has(&self, space: usize) -> bool {
        space != OWN || self.own
    }

    /// Whether an operation has anything to change here: a keyspace may not exist, or exist
    /// already.
    pub fn is_changed_by(&self, op: &Op) -> bool {
        match op {
            Op::Write { entries, .. } => !self.possible(entries).is_empty(),
            Op::Ingest { space, .. } => self.has(*space),
            Op::Create => !self.own,
            Op::Drop => self.own,
            _ => false,
        }
    }

    /// The entries of a write that take effect: those to an existing keyspace.
    pub fn possible<'a>(&self, entries: &'a [Entry]) -> Vec<&'a Entry> {
        entries.iter().filter(|e| self.has(e.space())).collect()
    }

    /// Does an operation.
    pub fn apply(&mut self, op: &Op) {
        match op {
            Op::Write { entries, .. } => {
                for entry in entries {
                    if !self.has(entry.space()) {
                        continue;
                    }
                    let pairs = &mut self.spaces[entry.space()];
                    match entry {
                        Entry::Put(_, key, value) => {
                            pairs.insert(key.clone(), value.clone());
                        }
                        Entry::Delete(_, key) => {
                            pairs.remove(key);
                        }
                        Entry::DeleteRange(_, from, to) => {
                            let bounds = (Bound::Included(&from[..]), Bound::Excluded(&to[..]));
                            let gone: Vec<Bytes> = pairs
                                .range::<[u8], _>(bounds)
                                .map(|(key, _)| key.clone())
                                .collect();
                            for key in gone {
                                pairs.remove(&key);
                            }
                        }
                    }
                }
            }
            Op::Ingest { space, pairs, .. } if self.has(*space) => {
                for (key, value) in pairs {
                    match value {
                        Some(value) => self.spaces[*space].insert(key.clone(), value.clone()),
                        None => self.spaces[*space].remove(key),
                    };
                }
            }
            Op::Create => self.own = true,
            Op::Drop => {
                self.own = false;
                self.spaces[OWN].clear();
            }
            _ => {}
        }
    }

    /// Describes the first difference of two contents.
    pub fn difference(&self, found: &Lane, lane: usize) -> Option<String> {
        if self.own != found.own {
            return Some(format!(
                "keyspace {} is there: {}, expected: {}",
                own_name(lane),
                found.own,
                self.own
            ));
        }
        let show = |value: Option<&Bytes>| match value {
            None => "nothing".to_string(),
            Some(v) => {
                let head = &v[..v.len().min(24)];
                format!("{} bytes, `{}`", v.len(), head.escape_ascii())
            }
        };
        for space in 0..SPACES {
            let (wanted, found) = (&self.spaces[space], &found.spaces[space]);
            for key in wanted.keys().chain(found.keys()) {
                if wanted.get(key) != found.get(key) {
                    return Some(format!(
                        "{} of keyspace {} is {}, expected {}",
                        key[..key.len().min(12)].escape_ascii(),
                        space_name(lane, space),
                        show(found.get(key)),
                        show(wanted.get(key)),
                    ));
                }
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn operations_repeat_and_meet_every_kind() {
        let script = Script::new(5, 2);
        let mut met = BTreeSet::new();
        for lane in 0..LANES {
            for n in 0..1500 {
                let op = script.op(lane, n);
                assert_eq!(op, Script::new(5, 2).op(lane, n));
                met.insert(op.word());
                if let Op::Write { entries, .. } = &op {
                    assert!(!entries.is_empty());
                }
            }
        }
        assert_eq!(met.len(), 14, "{met:?}");
        assert_ne!(script.op(0, 3), Script::new(5, 3).op(0, 3));
        for cycle in 0..50 {
            let options = Script::new(5, cycle).options(true);
            options.validate().unwrap();
        }
    }

    #[test]
    fn a_second_location_is_given_from_some_cycle_on() {
        let is_given = |seed, cycle| {
            let options = Script::new(seed, cycle).options(true);
            options.redirect_dir != RedirectDir::Unset
        };
        let begins: BTreeSet<Option<u64>> = (1..=60)
            .map(|seed| {
                let begin = (0..5).find(|cycle| is_given(seed, *cycle));
                for cycle in 0..5 {
                    let given = begin.is_some_and(|begin| cycle >= begin);
                    assert_eq!(is_given(seed, cycle), given, "{seed}, {cycle}");
                    assert_eq!(is_given(seed, cycle + VERIFYING), given, "{seed}, {cycle}");
                }
                begin
            })
            .collect();
        assert_eq!(begins, BTreeSet::from([None, Some(0), Some(1), Some(2)]));
        let script = Script::new(5, 2);
        let locations: BTreeSet<_> = (0..100).map(|n| script.location(1, n)).collect();
        assert_eq!(locations.len(), 3);
    }

    #[test]
    fn keys_say_whose_they_are_and_keep_their_order() {
        for lane in 0..LANES {
            let keys: Vec<Bytes> = (0..KEYS + LONG_KEYS).map(|n| key(lane, n)).collect();
            assert!(keys.is_sorted());
            assert!(keys.iter().all(|k| lane_of(k) == Some(lane)));
        }
        assert_eq!(lane_of(b""), None);
        assert_eq!(lane_of(b"Z1"), None);
    }

    #[test]
    fn a_lane_without_its_keyspace_writes_nothing_there() {
        let mut lane = Lane::default();
        let value = Bytes::from(&b"v"[..]);
        let write = Op::Write {
            entries: vec![
                Entry::Put(0, key(0, 1), value.clone()),
                Entry::Put(OWN, key(0, 1), value.clone()),
            ],
            sync: false,
        };
        lane.apply(&write);
        assert_eq!((lane.spaces[0].len(), lane.spaces[OWN].len()), (1, 0));
        assert!(lane.is_changed_by(&Op::Create) && !lane.is_changed_by(&Op::Drop));
        lane.apply(&Op::Create);
        lane.apply(&write);
        assert_eq!(lane.spaces[OWN].len(), 1);
        let before = lane.clone();
        lane.apply(&Op::Write {
            entries: vec![Entry::DeleteRange(0, key(0, 0), key(0, 2))],
            sync: false,
        });
        assert!(lane.spaces[0].is_empty());
        assert!(before.difference(&lane, 0).is_some());
        lane.apply(&Op::Drop);
        assert_eq!(lane, Lane::default());
    }
}

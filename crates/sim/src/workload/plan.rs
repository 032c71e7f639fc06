//! The decisions of a seed before anything runs: options, keys, values, and the frequencies of
//! operations.
//!
//! Invariants: everything comes from the seed.
//!
//! Threading: plain values.

use std::collections::BTreeMap;
use std::time::Duration;

use siltstone::{
    ByLevel, Compression, DirectIo, FlushVerify, KeyspaceOptions, LevelTargets, Options,
    ScheduleOptions, Setting, StallPolicy, SyncMode, TableOptions, Value, Verify, settings,
};

use siltstone_table::limits::MAX_KEY_BYTES;

use crate::model::{Bytes, Op};
use crate::reduce::InForce;
use crate::rng::Rng;

/// The names of keyspaces, which are used repeatedly.
pub(crate) const NAMES: [&str; 4] = ["default", "a", "b", "c"];

/// Options drawn from a seed: sizes are small, so that a few hundred operations reach every
/// mechanism.
pub fn draw_options(rng: &mut Rng) -> Options {
    // Settings that were added later draw from a separate stream, so that kept seeds keep their
    // options.
    let mut more = rng.clone().fork(1);
    let mut latest = rng.clone().fork(2);
    let table_bytes = 64 << 10 << rng.below(2);
    let trigger = 1 + rng.below(5) as u32;
    let slowdown = trigger + rng.below(6) as u32;
    let segment = *rng.pick(&[64 << 10, 64 << 10, 96 << 10, 256 << 10]);
    let policy = latest.below(5);
    let redirect_log_bytes_max = *latest.pick(&[0, 8 * segment, 8 << 30]);
    Options {
        sync: match rng.below(5) {
            0 => SyncMode::Always,
            1 => SyncMode::Interval(Duration::from_micros(100 + rng.below(20_000))),
            _ => SyncMode::Never,
        },
        memtable_bytes: *rng.pick(&[64 << 10, 64 << 10, 100_000, 256 << 10]),
        sealed_memtables_max: 1 + rng.below(4) as u32,
        table_bytes,
        block_bytes: 1 << 10 << rng.below(4),
        l0_trigger_count: trigger,
        l0_slowdown_count: slowdown,
        l0_stop_count: slowdown + rng.below(8) as u32,
        level1_bytes: table_bytes << rng.below(2),
        level_factor: 2 + rng.below(3) as u32,
        bloom_bits_per_key: (*rng.pick(&[0, 1, 4, 10, 20])).into(),
        compression: (*rng.pick(&[Compression::None, Compression::Lz4])).into(),
        level_targets: *more.pick(&[LevelTargets::Fixed, LevelTargets::Dynamic]),
        keyspaces: draw_own(&mut more, table_bytes),
        stats_file_ms: *more.pick(&[1000, 1000, 0, 10]),
        memory_bytes_max: *more.pick(&[0, 0, 128 << 10, 1 << 20]),
        verify: *rng.pick(&[Verify::Once, Verify::Always]),
        log_segment_bytes: segment,
        log_bytes_max: segment * (2 + rng.below(5)),
        block_cache_bytes: *rng.pick(&[0, 8 << 10, 1 << 20]),
        open_tables_max: 16 + rng.below(64) as u32,
        map_tables: rng.chance(50),
        background_tasks: 1 + rng.below(3) as u32,
        subjobs_max: 1 + rng.below(4) as u32,
        background_bytes_per_s: *rng.pick(&[0, 0, 512 << 10, 4 << 20]),
        flush_verify: FlushVerify::All,
        direct_io: *more.pick(&[DirectIo::None, DirectIo::Compaction, DirectIo::All]),
        stall_policy: match (policy, *more.pick(&[0, 1, 2])) {
            (0, _) => StallPolicy::Adoc,
            (1 | 2, _) => StallPolicy::Redirect,
            (_, 2) => StallPolicy::Stop,
            _ => StallPolicy::Slowdown,
        },
        schedule: draw_schedule(&mut more),
        redirect_log_bytes_max,
        // An open for reading replays what was left in the log.
        replay_bytes_max: match redirect_log_bytes_max {
            0 => 0,
            _ => 256 << 20,
        },
        ..Options::default()
    }
}

/// A policy that needs no other executor.
fn draw_schedule(rng: &mut Rng) -> ScheduleOptions {
    let usual = ScheduleOptions::default();
    let three_levels = ScheduleOptions {
        three_levels: true,
        ..usual
    };
    let bare = ScheduleOptions {
        first_score: false,
        second_score: false,
        ..three_levels
    };
    // What `near-data` has besides, as far as it needs no other executor.
    let columns_first = ScheduleOptions {
        columns_first: true,
        fourth_score: true,
        seek_compaction: false,
        ..three_levels
    };
    let single = ScheduleOptions {
        multi_threading: false,
        ..usual
    };
    *rng.pick(&[
        usual,
        usual,
        columns_first,
        three_levels,
        three_levels,
        bare,
        single,
    ])
}

/// The own settings of some keyspaces: stored from life to life, and changed by each open that
/// requests others.
fn draw_own(rng: &mut Rng, table_bytes: u64) -> BTreeMap<String, KeyspaceOptions> {
    let mut all = BTreeMap::new();
    for name in NAMES {
        if !rng.chance(40) {
            continue;
        }
        let own = draw_own_of_one(rng, table_bytes);
        all.insert(name.to_string(), own);
    }
    all
}

/// The own settings of one keyspace.
pub(crate) fn draw_own_of_one(rng: &mut Rng, table_bytes: u64) -> KeyspaceOptions {
    let codecs = [Compression::None, Compression::Lz4, Compression::Zstd(1)];
    let by_level: Vec<Compression> = (0..1 + rng.below(4)).map(|_| *rng.pick(&codecs)).collect();
    let bits: Vec<u32> = (0..1 + rng.below(4))
        .map(|_| rng.below(21) as u32)
        .collect();
    let stop = 2 + rng.below(12) as u32;
    KeyspaceOptions {
        memtable_bytes: rng.chance(50).then(|| 64 << 10 << rng.below(3)),
        table_bytes: rng.chance(30).then_some(table_bytes),
        block_bytes: rng.chance(30).then(|| 1 << 10 << rng.below(4)),
        l0_stop_count: rng.chance(50).then_some(stop),
        level_targets: rng
            .chance(50)
            .then(|| *rng.pick(&[LevelTargets::Fixed, LevelTargets::Dynamic])),
        compression: ByLevel::of(&by_level),
        bloom_bits_per_key: ByLevel::of(&bits).filter(|_| rng.chance(50)),
        ..KeyspaceOptions::default()
    }
}

/// A setting and a value for it. The store may refuse it: some settings cannot change while it is
/// open, and some values contradict others.
pub(crate) fn draw_setting(rng: &mut Rng) -> (&'static Setting, Value) {
    let wanted: [(&str, &[Value]); 16] = [
        (
            "log_bytes_max",
            &[(128u64 << 10).into(), (512u64 << 10).into()],
        ),
        ("subjobs_max", &[1u32.into(), 4u32.into()]),
        (
            "background_bytes_per_s",
            &[0u64.into(), (4u64 << 20).into()],
        ),
        (
            "memtable_bytes",
            &[(64u64 << 10).into(), (256u64 << 10).into()],
        ),
        ("sealed_memtables_max", &[1u32.into(), 4u32.into()]),
        (
            "table_bytes",
            &[(64u64 << 10).into(), (128u64 << 10).into()],
        ),
        ("block_bytes", &[(1u32 << 10).into(), (8u32 << 10).into()]),
        ("l0_trigger_count", &[1u32.into(), 4u32.into()]),
        ("l0_stop_count", &[6u32.into(), 12u32.into()]),
        ("memory_bytes_max", &[0u64.into(), (256u64 << 10).into()]),
        (
            "stall_policy",
            &[
                "slowdown".into(),
                "stop".into(),
                "adoc".into(),
                "redirect".into(),
            ],
        ),
        ("level_factor", &[2u32.into(), 4u32.into()]),
        ("level_targets", &["fixed".into(), "dynamic".into()]),
        ("bloom_bits_per_key", &[0u32.into(), 10u32.into()]),
        ("compression", &["none".into(), "lz4".into()]),
        ("map_tables", &[true.into(), false.into()]),
    ];
    let (name, values) = rng.pick(&wanted);
    let setting = settings().iter().find(|s| s.name == *name);
    (
        setting.unwrap_or_else(|| panic!("there is no setting {name}")),
        rng.pick(values).clone(),
    )
}

/// How tables are built outside: often so that a few entries make several tables.
pub(crate) fn draw_table_options(rng: &mut Rng) -> TableOptions {
    TableOptions {
        table_bytes: 4096 << rng.below(5),
        block_bytes: 512 << rng.below(4),
        bloom_bits_per_key: *rng.pick(&[0, 10]),
        compression: *rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd(1)]),
    }
}

/// The keys of a run, of all shapes, and few enough that operations meet.
fn draw_keys(rng: &mut Rng) -> Vec<Bytes> {
    let mut keys: Vec<Vec<u8>> = vec![vec![], vec![0], vec![0, 0], vec![0xff], vec![0xff; 9]];
    let prefix: Vec<u8> = (0..8 + rng.index(40)).map(|_| b'p').collect();
    for i in 0..30 + rng.below(120) {
        keys.push(match rng.below(6) {
            0 => format!("k{i:05}").into_bytes(),
            1 => [&prefix[..], &i.to_be_bytes()[6..]].concat(),
            2 => [&prefix[..], format!("/{}/", i % 7).as_bytes(), &[i as u8]].concat(),
            3 => (0..1 + rng.index(4)).map(|_| rng.draw() as u8).collect(),
            4 => rng.draw().to_be_bytes().to_vec(),
            _ => vec![i as u8; 1 + rng.index(24)],
        });
    }
    for _ in 0..rng.below(4) {
        let len = *rng.pick(&[300, 1000, 5000]);
        let byte = rng.draw() as u8;
        keys.push(
            (0..len)
                .map(|i| if i == len - 1 { rng.draw() as u8 } else { byte })
                .collect(),
        );
    }
    draw_middles(&mut rng.clone().fork(5), &mut keys);
    keys.sort();
    keys.dedup();
    keys.into_iter().map(Bytes::from).collect()
}

/// Families of keys with equal starts and ends that differ in between, to test comparisons in words
/// of eight bytes. The starts fill a word, or a head and a word.
fn draw_middles(rng: &mut Rng, keys: &mut Vec<Vec<u8>>) {
    for _ in 0..1 + rng.below(3) {
        let bytes =
            |rng: &mut Rng, n: usize| -> Vec<u8> { (0..n).map(|_| rng.draw() as u8).collect() };
        let start_bytes = *rng.pick(&[8, 12, 16, 16, 20]);
        let (start, end) = (bytes(rng, start_bytes), bytes(rng, 8));
        let middle_bytes = 1 + rng.index(8);
        for i in 0..3 + rng.below(6) {
            let mut middle = vec![0x40; middle_bytes];
            middle[rng.index(middle_bytes)] = i as u8;
            keys.push([&start[..], &middle, &end].concat());
        }
    }
}

/// Keys up to the longest, in groups of three. The first is so large that it ends its block. The
/// other two then make a block whose tails have 65,535 to 65,537 bytes: each of them has two bytes
/// in the prefix and four in its head.
fn draw_limits(rng: &mut Rng) -> Vec<Vec<u8>> {
    const BLOCK_BYTES_MAX: usize = 8 << 10;
    let mut keys = vec![vec![0xfe; MAX_KEY_BYTES], vec![b'z'; MAX_KEY_BYTES - 1]];
    for i in 0..1 + rng.below(2) as u8 {
        let of = |which: u8, len: usize| {
            let mut key = vec![b'~', i, which];
            key.resize(len, which);
            key
        };
        let tails = 65_535 + rng.index(3);
        let short = 20 + rng.index(300);
        keys.push(of(0, BLOCK_BYTES_MAX));
        keys.push(of(1, short));
        keys.push(of(2, tails + 2 * 6 - short));
    }
    keys
}

/// The next key; after a key of the longest length, one that is a little greater.
fn behind(key: &[u8]) -> Bytes {
    match key.split_last() {
        Some((last, rest)) if key.len() == MAX_KEY_BYTES => {
            [rest, &[last.saturating_add(1)]].concat().into()
        }
        _ => [key, &[0]].concat().into(),
    }
}

/// The decisions of a seed before anything runs.
#[derive(Clone, Debug)]
pub struct Plan {
    /// All keys, ascending.
    pub keys: Vec<Bytes>,
    /// Largest usual value in bytes.
    pub value_bytes: u64,
    /// The percentage of values that are compressible.
    pub compressible_percent: u64,
    /// The percentage of batches that are synced.
    pub sync_percent: u64,
    /// The cut, which leaves out a part of the run.
    pub in_force: InForce,
    /// The weights, by [`Action`].
    weights: [u64; ACTIONS.len()],
}

/// What a client can do next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Action {
    Put,
    Delete,
    DeleteRange,
    Batch,
    Get,
    MultiGet,
    Scan,
    TakeSnapshot,
    ReadSnapshot,
    DropSnapshot,
    OpenCursor,
    StepCursor,
    RefreshCursor,
    DropCursor,
    Create,
    DropKeyspace,
    Ingest,
    Flush,
    FlushStore,
    CompactRange,
    SyncLog,
    HoldFlush,
    PauseCompaction,
    WaitIdle,
    DeleteObsolete,
    IngestFiles,
    Export,
    Checkpoint,
    SetOption,
    SetKeyspace,
    Verify,
    Approximate,
    Prefix,
    DeleteAlone,
}

use Action as A;
const ACTIONS: [(Action, u64); 34] = [
    (A::Put, 220),
    (A::Delete, 60),
    (A::DeleteRange, 25),
    (A::Batch, 200),
    (A::Get, 120),
    (A::MultiGet, 30),
    (A::Scan, 12),
    (A::TakeSnapshot, 15),
    (A::ReadSnapshot, 15),
    (A::DropSnapshot, 12),
    (A::OpenCursor, 12),
    (A::StepCursor, 40),
    (A::RefreshCursor, 10),
    (A::DropCursor, 10),
    (A::Create, 12),
    (A::DropKeyspace, 6),
    (A::Ingest, 14),
    (A::Flush, 16),
    (A::FlushStore, 3),
    (A::CompactRange, 5),
    (A::SyncLog, 12),
    (A::HoldFlush, 12),
    (A::PauseCompaction, 6),
    (A::WaitIdle, 3),
    (A::DeleteObsolete, 6),
    (A::IngestFiles, 10),
    (A::Export, 6),
    (A::Checkpoint, 3),
    (A::SetOption, 8),
    (A::SetKeyspace, 6),
    (A::Verify, 3),
    (A::Approximate, 20),
    (A::Prefix, 12),
    (A::DeleteAlone, 8),
];

/// The operations that some runs do more often than others, and how many times as often, to reach
/// situations that need several rare operations close to each other.
const THEMES: [&[(Action, u64)]; 6] = [
    &[],
    &[],
    &[],
    // Keyspaces and ingests come and go while memtables fill up and are flushed.
    &[
        (A::Create, 6),
        (A::DropKeyspace, 6),
        (A::Ingest, 4),
        (A::IngestFiles, 3),
        (A::Batch, 2),
        (A::SyncLog, 2),
    ],
    // Level 0 grows, and many of its entries are deletes.
    &[
        (A::Flush, 6),
        (A::Delete, 4),
        (A::DeleteRange, 2),
        (A::DeleteAlone, 3),
    ],
    // Tables without entries lie between tables with entries.
    &[(A::DeleteAlone, 8), (A::CompactRange, 3), (A::Scan, 4)],
];

impl Plan {
    /// A seed's plan.
    pub fn draw(rng: &mut Rng) -> Plan {
        // Each run prefers other operations: some are rare enough to be left out.
        let weights = ACTIONS.map(|(_, weight)| match rng.below(6) {
            0 => weight / 4,
            1 => weight * 3,
            _ => weight,
        });
        let mut more = rng.clone().fork(3);
        let theme = more.pick(&THEMES);
        let weights = std::array::from_fn(|i| {
            let (action, _) = ACTIONS[i];
            let theme = theme.iter().find(|(of, _)| *of == action);
            weights[i] * theme.map_or(1, |(_, times)| *times)
        });
        let in_force = InForce::present();
        let mut keys = draw_keys(rng);
        if in_force.cut.short_keys {
            let short = (0..keys.len() as u16).map(|i| Bytes::from(&i.to_be_bytes()[..]));
            keys = short.collect();
        }
        Plan {
            in_force,
            keys,
            value_bytes: *rng.pick(&[40, 300, 1500, 4000]),
            compressible_percent: *rng.pick(&[0, 50, 100]),
            sync_percent: *more.pick(&[0, 15, 15, 50]),
            weights,
        }
    }

    pub(crate) fn action(&self, rng: &mut Rng) -> Action {
        let mut at = rng.below(self.weights.iter().sum());
        for ((action, _), weight) in ACTIONS.iter().zip(self.weights) {
            if at < weight {
                return *action;
            }
            at -= weight;
        }
        A::Put
    }

    pub(crate) fn key(&self, rng: &mut Rng) -> Bytes {
        // Some keys are hot.
        let all = if rng.chance(30) {
            self.keys.len().min(8)
        } else {
            self.keys.len()
        };
        self.keys[rng.index(all)].clone()
    }

    pub(crate) fn value(&self, rng: &mut Rng) -> Bytes {
        let len = match rng.below(100) {
            0..8 => 0,
            8..12 => self.value_bytes * 8,
            12 => *rng.clone().pick(&[65_535, 65_536, 70_000]),
            _ => rng.below(self.value_bytes),
        } as usize;
        let len = match self.in_force.cut.value_bytes_max {
            0 => len,
            most => len.min(most as usize),
        };
        let same = rng.chance(self.compressible_percent);
        let byte = rng.draw();
        let mut value: Vec<u8> = Vec::with_capacity(len + 8);
        while value.len() < len {
            value.extend_from_slice(&if same { byte } else { rng.draw() }.to_le_bytes());
        }
        value.truncate(len);
        value.into()
    }

    pub(crate) fn range(&self, rng: &mut Rng) -> (Bytes, Bytes) {
        let (start, end) = self.any_range(rng);
        // A key of many 0xff bytes lies above all bounds.
        if start <= end {
            (start, end)
        } else {
            (end, start)
        }
    }

    /// A range without a key of the plan: behind one of them, up to the next.
    pub(crate) fn gap(&self, rng: &mut Rng) -> (Bytes, Bytes) {
        let at = rng.index(self.keys.len());
        let start = behind(&self.keys[at]);
        match self.keys.get(at + 1) {
            Some(next) => (start, next.clone()),
            None => (start.clone(), start),
        }
    }

    /// The same plan with values as large as any plan has, which do not compress.
    pub(crate) fn with_large_values(self) -> Plan {
        Plan {
            value_bytes: 4000,
            compressible_percent: 0,
            ..self
        }
    }

    /// The same plan with `count` keys that are numbers.
    pub(crate) fn with_numbered_keys(self, count: u32) -> Plan {
        let keys = (0..count).map(|i| Bytes::from(format!("key{i:06}").into_bytes()));
        Plan {
            keys: keys.collect(),
            ..self
        }
    }

    /// The same plan with a few keys of up to the longest length.
    pub(crate) fn with_limits(mut self, rng: &mut Rng) -> Plan {
        self.keys
            .extend(draw_limits(rng).into_iter().map(Bytes::from));
        self.keys.sort();
        self.keys.dedup();
        self
    }

    /// The same plan with keys that all begin with this many more bytes, so that the bounds of
    /// tables become long.
    pub(crate) fn with_long_keys(mut self, bytes: usize) -> Plan {
        let prefix = vec![b'L'; bytes];
        let long = self.keys.iter().map(|key| [&prefix[..], &key[..]].concat());
        self.keys = long.map(Bytes::from).collect();
        self
    }

    fn any_range(&self, rng: &mut Rng) -> (Bytes, Bytes) {
        match rng.below(10) {
            // Everything, and everything from some key on.
            0 => (Bytes::from(&[][..]), Bytes::from(&[0xff; 12][..])),
            1 => (self.key(rng), Bytes::from(&[0xff; 12][..])),
            // One key.
            2 | 3 => {
                let start = self.key(rng);
                let end = behind(&start);
                (start, end)
            }
            4..8 => {
                let at = rng.index(self.keys.len());
                let end = (at + 1 + rng.index(6)).min(self.keys.len() - 1).max(at);
                (self.keys[at].clone(), self.keys[end].clone())
            }
            _ => {
                let (a, b) = (self.key(rng), self.key(rng));
                if a <= b { (a, b) } else { (b, a) }
            }
        }
    }

    pub(crate) fn op(&self, id: u32, rng: &mut Rng) -> Op {
        match rng.below(20) {
            0 => {
                let (start, end) = self.range(rng);
                if start < end {
                    Op::DeleteRange(id, start, end)
                } else {
                    Op::Delete(id, start)
                }
            }
            1..5 => Op::Delete(id, self.key(rng)),
            _ => Op::Put(id, self.key(rng), self.value(rng)),
        }
    }
}

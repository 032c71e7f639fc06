//! Choices of compactions compared with a naive model, without an engine: random writes, rotations,
//! flushes that are installed in any order, concurrent jobs that end in any order, manual
//! compactions, and compactions for deleted entries.
//!
//! After each step every key reads as in the model, although merges keep one version of a key and
//! drop every tombstone that `older_ranges` permits. Every edit keeps the invariants of versions,
//! whatever was installed after its choice was picked. The stories about flushes that are installed
//! out of order (`docs/stories.md`) are special cases of this. Half of the seeds write only to a
//! few narrow windows of keys between two rotations, so that runs have gaps, and merges within
//! level 0 reach over tables that other jobs move down. Two seeds of three have jobs over three
//! levels, while others rewrite tables of the level that these pass. Two seeds of seven pick as
//! with `stall_policy = "redirect"`, one of these with jobs that are much smaller than level 0.
//! Every pick is made a second time with the index of overlaps, which must not change it.
//!
//! Threading: one task.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone::LevelTargets;
use siltstone::compaction::pick::{
    Choice, ChoiceKind, Deletes, Division, ManualRange, ManualStep, NOTHING_PICKED, Overlaps,
    PickInput, PickOptions, hard_cuts, joined_ranges, older_ranges, pick, pick_deletes,
    pick_manual, soft_cuts,
};
use siltstone::version::{
    CreateKeyspace, Edit, End, KeyRange, KeyspaceEdit, KeyspaceVersion, RunSlot, SeqRange,
    StoreState, StoredOptions, TableMeta,
};

use crate::coverage::Coverage;
use crate::rng::Rng;

/// The number of keys.
const KEYS: u8 = 24;

/// The target size of level 1 with which no level is due.
const QUIET_BYTES: u64 = 100;

/// The number of steps of a seed.
const STEPS: u64 = 500;

/// The contents of a source or table.
#[derive(Clone, Default)]
struct Entries {
    /// Number and value of a key's newest version; `None` means a tombstone.
    points: BTreeMap<u8, (u64, Option<u64>)>,
    /// Range deletes by key: the newest number at which the key was deleted.
    ranges: BTreeMap<u8, u64>,
}

impl Entries {
    /// All keys with an entry or a range delete.
    fn keys(&self) -> BTreeSet<u8> {
        self.points
            .keys()
            .chain(self.ranges.keys())
            .copied()
            .collect()
    }

    /// The result of a read of the key: `Some(None)` is deleted.
    fn get(&self, key: u8) -> Option<Option<u64>> {
        let (point, range) = (self.points.get(&key), self.ranges.get(&key));
        match (point, range) {
            (Some((number, value)), range) if range.is_none_or(|r| r < number) => Some(*value),
            (_, Some(_)) => Some(None),
            _ => None,
        }
    }
}

struct Job {
    choice: Choice,
    older: Vec<KeyRange>,
    soft: Vec<Box<[u8]>>,
}

struct Model {
    random: Rng,
    /// The starts of the windows of keys that are written until the next rotation, once they are
    /// drawn.
    windows: Vec<u8>,
    has_windows: bool,
    /// Small levels are often due, and tables are not moved above others, so jobs over three levels
    /// are frequent.
    is_deep: bool,
    state: StoreState,
    contents: BTreeMap<u64, Entries>,
    next_id: u64,
    sequence: u64,
    active_lo: u64,
    active: Entries,
    sealed: Vec<(SeqRange, Entries)>,
    jobs: Vec<Job>,
    truth: BTreeMap<u8, u64>,
    options: PickOptions,
    overlaps: Overlaps,
    counts: Coverage,
}

impl Model {
    fn new(seed: u64) -> Model {
        let create = CreateKeyspace {
            id: 0,
            name: "a".into(),
            sequence: 0,
            options: StoredOptions::new(),
        };
        let is_deep = seed % 3 == 2;
        let redirects = seed % 7 >= 5;
        Model {
            random: Rng::new(seed),
            windows: Vec::new(),
            has_windows: seed % 4 >= 2,
            is_deep,
            state: StoreState::new()
                .apply(&Edit {
                    create: vec![create],
                    ..Edit::new()
                })
                .unwrap(),
            contents: BTreeMap::new(),
            next_id: 1,
            sequence: 0,
            active_lo: 0,
            active: Entries::default(),
            sealed: Vec::new(),
            jobs: Vec::new(),
            truth: BTreeMap::new(),
            options: PickOptions {
                l0_trigger_count: 2,
                l0_intra_count: 3,
                l0_intra_min_count: 2,
                level1_bytes: if is_deep { 2 } else { 6 },
                level_factor: 2,
                table_bytes: 4,
                max_job_bytes: match (redirects, is_deep) {
                    // Level 0 is many times as large.
                    (true, _) if seed % 7 == 6 => 4,
                    (_, true) => 60,
                    (_, false) => 30,
                },
                redirects,
                max_grandparent_count: if is_deep { 0 } else { 3 },
                level_targets: match seed % 2 {
                    0 => LevelTargets::Fixed,
                    _ => LevelTargets::Dynamic,
                },
                first_score: !seed.is_multiple_of(5),
                three_levels: !seed.is_multiple_of(3),
                ..PickOptions::default()
            },
            overlaps: Overlaps::default(),
            counts: Coverage::default(),
        }
    }

    /// From busy to quiet, or the other way round. While no level is due, tables are rewritten for
    /// their deletes.
    fn set_quiet(&mut self, is_quiet: bool) {
        self.options.level1_bytes = if is_quiet { QUIET_BYTES } else { 2 };
        self.options.l0_trigger_count = if is_quiet { 50 } else { 2 };
    }

    fn version(&self) -> &KeyspaceVersion {
        &self.state.keyspaces[&0].version
    }

    /// Fills levels 1 to 3 with small tables that have gaps between them, half of whose entries are
    /// tombstones.
    fn fill_levels(&mut self) {
        for level in (1..=3).rev() {
            let mut change = KeyspaceEdit::new(0);
            let mut key = self.random.below(6) as u8;
            while key < KEYS {
                let mut entries = Entries::default();
                for key in key..(key + 1 + self.random.below(3) as u8).min(KEYS) {
                    self.sequence += 1;
                    let value = (self.random.below(2) > 0).then_some(self.sequence);
                    entries.points.insert(key, (self.sequence, value));
                }
                key = entries.keys().last().unwrap() + 1 + self.random.below(6) as u8;
                let table = self.table(entries);
                change.add_to_level(level, &[table]);
            }
            self.install(change);
        }
        self.active_lo = self.sequence;
        let read = (0..KEYS).filter_map(|key| Some((key, self.get(key)?)));
        self.truth = read.collect();
    }

    /// Makes tables of the entries, cut at random, at the soft cuts and between all of `bounds`.
    fn tables(&mut self, entries: Entries, soft: &[Box<[u8]>]) -> Vec<Arc<TableMeta>> {
        let mut groups: Vec<Entries> = Vec::new();
        for key in entries.keys() {
            let cut = soft.iter().any(|cut| **cut == [key]) || self.random.below(4) == 0;
            if cut || groups.is_empty() {
                groups.push(Entries::default());
            }
            let group = groups.last_mut().unwrap();
            if let Some(point) = entries.points.get(&key) {
                group.points.insert(key, *point);
            }
            if let Some(number) = entries.ranges.get(&key) {
                group.ranges.insert(key, *number);
            }
        }
        groups.into_iter().map(|group| self.table(group)).collect()
    }

    fn table(&mut self, entries: Entries) -> Arc<TableMeta> {
        let keys = entries.keys();
        let (first, last) = (*keys.first().unwrap(), *keys.last().unwrap());
        let id = self.next_id;
        self.next_id += 1;
        let count = entries.points.len() as u64;
        let numbers = entries.points.values().map(|(number, _)| *number);
        let numbers = numbers.chain(entries.ranges.values().copied());
        let end = match entries.ranges.contains_key(&last) {
            true => End::Excluded([last + 1].into()),
            false => End::Included([last].into()),
        };
        let points = entries.points.keys();
        let points = points.clone().next().zip(points.clone().last());
        let table = TableMeta {
            id,
            location: 0,
            name: format!("{id}"),
            min_seq: numbers.clone().min().unwrap(),
            max_seq: numbers.max().unwrap(),
            raw_bytes: count,
            file_bytes: count.max(1),
            entries: count,
            deletes: entries
                .points
                .values()
                .filter(|(_, value)| value.is_none())
                .count() as u64,
            range_deletes: entries.ranges.len() as u64,
            digest: 0,
            points: points.map(|(first, last)| ([*first].into(), [*last].into())),
            bounds: KeyRange {
                start: [first].into(),
                end,
            },
            sequence_override: None,
            flags: 0,
        };
        self.contents.insert(id, entries);
        Arc::new(table)
    }

    fn install(&mut self, change: KeyspaceEdit) {
        let edit = Edit {
            next_table_id: Some(self.next_id),
            keyspaces: vec![change],
            ..Edit::new()
        };
        // Goes through the encoded bytes, like the manifest.
        let edit = Edit::decode(&edit.encode()).unwrap().edit;
        self.state = self.state.apply(&edit).unwrap();
    }

    fn delete_range(&mut self) {
        let (a, b) = (
            self.random.below(KEYS.into()) as u8,
            self.random.below(KEYS.into()) as u8,
        );
        self.sequence += 1;
        for key in a.min(b)..=a.max(b) {
            self.active.ranges.insert(key, self.sequence);
            self.truth.remove(&key);
        }
    }

    fn key(&mut self) -> u8 {
        if !self.has_windows {
            return self.random.below(KEYS.into()) as u8;
        }
        if self.windows.is_empty() {
            for _ in 0..1 + self.random.below(2) {
                let start = self.random.below(u64::from(KEYS) - 2) as u8;
                self.windows.push(start);
            }
        }
        let start = *self.random.pick(&self.windows);
        start + self.random.below(2) as u8
    }

    fn write(&mut self) {
        if self.random.below(20) == 0 {
            return self.delete_range();
        }
        let key = self.key();
        self.sequence += 1;
        let value = (self.random.below(3) > 0).then_some(self.sequence);
        self.active.points.insert(key, (self.sequence, value));
        match value {
            Some(value) => self.truth.insert(key, value),
            None => self.truth.remove(&key),
        };
    }

    fn rotate(&mut self) {
        if self.sequence > self.active_lo {
            let seqs = SeqRange::new(self.active_lo, self.sequence);
            self.sealed.push((seqs, std::mem::take(&mut self.active)));
            self.active_lo = self.sequence;
            self.windows.clear();
        }
    }

    fn install_one(&mut self) {
        if self.sealed.is_empty() {
            return;
        }
        let at = self.random.below(self.sealed.len() as u64) as usize;
        self.counts
            .add_count("picks.late_installs", u64::from(at > 0));
        let (seqs, entries) = self.sealed.remove(at);
        let run = RunSlot {
            id: self.next_id,
            seqs,
        };
        self.next_id += 1;
        let mut change = KeyspaceEdit::new(0);
        change.covered.push(seqs);
        change.add_run(run, &self.tables(entries, &[]));
        self.install(change);
    }

    fn unsettled(&self) -> Vec<SeqRange> {
        let active = SeqRange::new(self.active_lo, u64::MAX);
        self.sealed
            .iter()
            .map(|(seqs, _)| *seqs)
            .chain([active])
            .collect()
    }

    fn pick(&mut self, why: Why) {
        let (a, b) = (
            self.random.below(KEYS.into()) as u8,
            self.random.below(KEYS.into()) as u8,
        );
        let unsettled = self.unsettled();
        let jobs: Vec<_> = self
            .jobs
            .iter()
            .map(|job| job.choice.reservation())
            .collect();
        // Bytes that lookups read in vain. Sometimes they make a compaction due.
        let ids: Vec<u64> = self.version().tables().map(|(_, table)| table.id).collect();
        let mut seek_bytes = BTreeMap::new();
        for id in ids {
            if self.random.chance(10) {
                seek_bytes.insert(id, self.random.below(200));
            }
        }
        self.overlaps.follow(&self.state.keyspaces[&0].version);
        let is_short = self.options.redirects && self.random.below(4) == 0;
        let free_bytes = is_short.then(|| self.random.below(100));
        let input = PickInput {
            version: self.version(),
            options: &self.options,
            jobs: &jobs,
            unsettled: &unsettled,
            seek_bytes: &seek_bytes,
            overlaps: None,
            last_picked: &NOTHING_PICKED,
            free_bytes,
            unread: &[],
            is_calm: false,
        };
        let choice = if why == Why::Deletes {
            let of = |t: &TableMeta| {
                let keys = self.contents[&t.id].ranges.keys();
                joined_ranges(keys.map(|key| KeyRange::half_open(&[*key], &[*key + 1])))
            };
            let with_ranges = self.version().tables().filter(|(_, t)| t.range_deletes > 0);
            let deletes = Deletes {
                oldest_read: self.sequence,
                ranges: with_ranges.map(|(_, t)| (t.id, Arc::new(of(t)))).collect(),
                ..Deletes::default()
            };
            pick_deletes(&input, &deletes)
        } else if why == Why::Hand {
            let range = KeyRange::closed(&[a.min(b)], &[a.max(b)]);
            let manual = ManualRange {
                range,
                rewrite_bottom: true,
                first_new_table_id: u64::MAX,
            };
            match pick_manual(&input, &manual) {
                ManualStep::Job(choice) => Some(choice),
                ManualStep::Wait | ManualStep::Done => None,
            }
        } else {
            let choice = pick(&input);
            let with_index = PickInput {
                overlaps: Some(&self.overlaps),
                ..input
            };
            assert_eq!(pick(&with_index), choice, "with the index of overlaps");
            choice
        };
        let Some(choice) = choice else { return };
        if why == Why::Deletes {
            self.counts.add("picks.for_deletes");
        }
        if choice.by_seeks {
            self.counts.add(match choice.from {
                0 => "picks.by_seeks",
                _ => "picks.by_seeks_below",
            });
        }
        let older = older_ranges(self.version(), &choice, &unsettled);
        let soft = soft_cuts(self.version(), choice.to, &choice.range);
        let hard = hard_cuts(&choice, Division::Equal(4), 1, &|_| Vec::new());
        for cuts in [&soft, &hard] {
            assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]), "{cuts:?}");
            assert!(
                cuts.iter()
                    .all(|cut| **cut > *choice.range.start && choice.range.contains(cut)),
                "{cuts:?}"
            );
        }
        assert!(hard.len() < 4);
        if !self.jobs.is_empty() {
            self.counts.add("picks.beside_other_jobs");
        }
        if self.is_deep && passes_gap(&choice) && self.random.below(2) == 0 {
            self.set_quiet(true);
        }
        self.jobs.push(Job {
            choice,
            older,
            soft,
        });
    }

    /// Counts jobs over three levels: from level 0, through tables of the level between, and past
    /// that level where it has no tables.
    fn count_levels(&mut self, choice: &Choice) {
        let levels: BTreeSet<u8> = choice.inputs.iter().map(|input| input.level).collect();
        match (choice.from, levels.len()) {
            (0, 3) => self.counts.add("picks.three_levels_from_0"),
            (_, 3) => self.counts.add("picks.three_levels"),
            _ if passes_gap(choice) => self.counts.add("picks.three_levels_past_gap"),
            _ => {}
        }
    }

    fn finish_one(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let at = self.random.below(self.jobs.len() as u64) as usize;
        // In these seeds, jobs that pass a level take long.
        let is_slow = self.is_deep && passes_gap(&self.jobs[at].choice);
        if is_slow && self.random.below(8) > 0 {
            return;
        }
        let Job {
            choice,
            older,
            soft,
        } = self.jobs.remove(at);
        let run = choice.output_seqs.map(|seqs| RunSlot {
            id: self.next_id,
            seqs,
        });
        self.next_id += 1;
        self.counts.add(&format!("picks.{:?}", choice.kind));
        if self.options.redirects && choice.from == 0 {
            let redirects = format!("picks.redirects.{:?}", choice.kind);
            self.counts.add(&redirects);
        }
        self.count_levels(&choice);
        let tables: Vec<Arc<TableMeta>> = if choice.kind == ChoiceKind::TrivialMove {
            choice.tables().cloned().collect()
        } else if choice.kind == ChoiceKind::Drop {
            Vec::new()
        } else {
            let mut merged = Entries::default();
            for table in choice.tables() {
                let contents = &self.contents[&table.id];
                for (key, entry) in &contents.points {
                    merged.points.entry(*key).or_insert(*entry);
                }
                for (key, number) in &contents.ranges {
                    let newest = merged.ranges.entry(*key).or_insert(*number);
                    *newest = (*newest).max(*number);
                }
            }
            let before = merged.points.len() + merged.ranges.len();
            // A snapshot may need the tombstones, which are then rewritten later.
            let keeps_all = self.is_deep && self.random.below(8) > 0;
            let may_be_older =
                |key: u8| keeps_all || older.iter().any(|range| range.contains(&[key]));
            let Entries { points, ranges } = &mut merged;
            points.retain(|key, (number, value)| {
                ranges.get(key).is_none_or(|deleted| deleted < number)
                    && (value.is_some() || may_be_older(*key))
            });
            ranges.retain(|key, _| may_be_older(*key));
            let dropped = before - points.len() - ranges.len();
            self.counts.add_count("picks.dropped", dropped as u64);
            self.tables(merged, &soft)
        };
        let mut change = KeyspaceEdit::new(0);
        change.remove = choice.removals();
        match run {
            Some(run) => change.add_run(run, &tables),
            None => change.add_to_level(choice.to, &tables),
        }
        self.install(change);
    }

    /// The result of a read: newest source first, then level by level.
    fn get(&self, key: u8) -> Option<u64> {
        if let Some(found) = self.active.get(key) {
            return found;
        }
        let sealed = self
            .sealed
            .iter()
            .filter_map(|(seqs, entries)| Some((seqs.lo, entries.get(key)?)));
        let runs = self.version().runs().iter().filter_map(|run| {
            let table = &run.tables.tables()[run.tables.find(&[key])?];
            Some((run.seqs.lo, self.contents[&table.id].get(key)?))
        });
        if let Some((_, found)) = sealed.chain(runs).max_by_key(|(lo, _)| *lo) {
            return found;
        }
        let hit = self.version().levels().find_map(|(_, level)| {
            let table = &level.tables()[level.find(&[key])?];
            self.contents[&table.id].get(key)
        });
        hit.flatten()
    }
}

/// Whether a job from below level 0 passes a level of which it has no tables.
fn passes_gap(choice: &Choice) -> bool {
    choice.from > 0 && choice.to > choice.from + 1 && choice.inputs.len() == 2
}

/// The reason for a compaction.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Why {
    Due,
    Deletes,
    Hand,
}

/// Runs one seed.
///
/// # Panics
/// If an answer is wrong, or a version refuses an edit.
pub fn picks_trial(seed: u64) -> Coverage {
    let mut model = Model::new(seed);
    if model.is_deep {
        model.fill_levels();
    }
    // Some stores flush late, some compact late.
    let weights: Vec<u64> = (0..7).map(|_| 1 + model.random.below(8)).collect();
    for step in 0..STEPS {
        // Settings may change at any time.
        if model.random.below(120) == 0 {
            model.options.level_targets = match model.options.level_targets {
                LevelTargets::Fixed => LevelTargets::Dynamic,
                LevelTargets::Dynamic => LevelTargets::Fixed,
            };
        }
        if model.is_deep && model.random.below(20) == 0 {
            model.set_quiet(false);
        }
        let mut at = model.random.below(weights.iter().sum::<u64>() + 20);
        let action = weights.iter().position(|weight| {
            let hit = at < *weight;
            at = at.wrapping_sub(*weight);
            hit
        });
        let is_quiet = model.options.level1_bytes == QUIET_BYTES;
        match action {
            _ if is_quiet && step % 2 == 0 => model.pick(Why::Deletes),
            Some(0) => model.rotate(),
            Some(1) => model.install_one(),
            Some(2) => model.pick(Why::Due),
            Some(3) if model.random.below(4) == 0 => model.pick(Why::Hand),
            Some(6) => model.pick(Why::Deletes),
            Some(4 | 5) => model.finish_one(),
            _ => model.write(),
        }
        for key in 0..KEYS {
            let expected = model.truth.get(&key).copied();
            assert_eq!(
                model.get(key),
                expected,
                "step {step}, key {key}: {:?}",
                model.version()
            );
        }
        if step % 50 == 0 {
            model
                .state
                .check()
                .unwrap_or_else(|error| panic!("step {step}: {error}"));
        }
    }
    model.counts
}

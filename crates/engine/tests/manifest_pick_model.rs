//! Picks and versions against a naive model: random writes, rotations, flushes that install in any order, several
//! jobs at once that finish in any order, compactions by hand. After each step every key reads as the model says,
//! although merges keep one version a key and drop every tombstone that `older_ranges` lets them drop. STORIES 14, 15
//! and 16 are special cases of this.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::LevelTargets;
use siltstone::compaction::pick::{
    Choice, ChoiceKind, ManualRange, ManualStep, PickInput, PickOptions, hard_cuts, older_ranges,
    pick, pick_manual, soft_cuts,
};
use siltstone::version::{
    AddTable, CreateKeyspace, Edit, KeyRange, KeyspaceEdit, KeyspaceVersion, RunSlot, SeqRange,
    StoreState, StoredOptions, TableMeta,
};

/// Number and value of a key's newest version; `None` is a tombstone.
type Entries = BTreeMap<u8, (u64, Option<u64>)>;

struct Random(u64);

impl Random {
    fn below(&mut self, n: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % n
    }
}

struct Job {
    choice: Choice,
    older: Vec<KeyRange>,
    soft: Vec<Box<[u8]>>,
}

#[derive(Default)]
struct Counts {
    merges: u64,
    moves: u64,
    intra: u64,
    rewrites: u64,
    late_installs: u64,
    dropped: u64,
    together: u64,
}

struct Model {
    random: Random,
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
    counts: Counts,
}

impl Model {
    fn new(seed: u64) -> Model {
        let create = CreateKeyspace {
            id: 0,
            name: "a".into(),
            sequence: 0,
            options: StoredOptions::new(),
        };
        Model {
            random: Random(seed),
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
            active: Entries::new(),
            sealed: Vec::new(),
            jobs: Vec::new(),
            truth: BTreeMap::new(),
            options: PickOptions {
                l0_trigger_count: 2,
                l0_intra_count: 3,
                l0_intra_min_count: 2,
                level1_bytes: 6,
                level_factor: 2,
                table_bytes: 4,
                max_job_bytes: 30,
                max_grandparent_count: 3,
                level_targets: match seed % 2 {
                    0 => LevelTargets::Fixed,
                    _ => LevelTargets::Dynamic,
                },
                ..PickOptions::default()
            },
            counts: Counts::default(),
        }
    }

    fn version(&self) -> &KeyspaceVersion {
        &self.state.keyspaces[&0].version
    }

    /// Makes tables of the entries, cut at random, at the soft cuts and between all of `bounds`.
    fn tables(&mut self, entries: Entries, soft: &[Box<[u8]>]) -> Vec<Arc<TableMeta>> {
        let mut groups: Vec<Entries> = Vec::new();
        for (key, entry) in entries {
            let cut = soft.iter().any(|cut| **cut == [key]) || self.random.below(4) == 0;
            match groups.last_mut() {
                Some(group) if !cut => drop(group.insert(key, entry)),
                _ => groups.push(Entries::from([(key, entry)])),
            }
        }
        groups.into_iter().map(|group| self.table(group)).collect()
    }

    fn table(&mut self, entries: Entries) -> Arc<TableMeta> {
        let (first, last) = (
            *entries.first_key_value().unwrap().0,
            *entries.last_key_value().unwrap().0,
        );
        let id = self.next_id;
        self.next_id += 1;
        let count = entries.len() as u64;
        let seqs = entries.values().map(|(sequence, _)| *sequence);
        let table = TableMeta {
            id,
            location: 0,
            name: format!("{id}"),
            min_seq: seqs.clone().min().unwrap(),
            max_seq: seqs.max().unwrap(),
            raw_bytes: count,
            file_bytes: count,
            entries: count,
            deletes: entries
                .values()
                .filter(|(_, value)| value.is_none())
                .count() as u64,
            range_deletes: 0,
            digest: 0,
            points: Some(([first].into(), [last].into())),
            bounds: KeyRange::closed(&[first], &[last]),
            sequence_override: None,
            flags: 0,
        };
        self.contents.insert(id, entries);
        Arc::new(table)
    }

    fn install(&mut self, mut change: KeyspaceEdit) {
        change.id = 0;
        let edit = Edit {
            next_table_id: Some(self.next_id),
            keyspaces: vec![change],
            ..Edit::new()
        };
        // Through the bytes, as the manifest does.
        let edit = Edit::decode(&edit.encode()).unwrap().edit;
        self.state = self.state.apply(&edit).unwrap();
    }

    fn write(&mut self) {
        let key = self.random.below(24) as u8;
        self.sequence += 1;
        let value = (self.random.below(3) > 0).then_some(self.sequence);
        self.active.insert(key, (self.sequence, value));
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
        }
    }

    fn install_one(&mut self) {
        if self.sealed.is_empty() {
            return;
        }
        let at = self.random.below(self.sealed.len() as u64) as usize;
        self.counts.late_installs += u64::from(at > 0);
        let (seqs, entries) = self.sealed.remove(at);
        let run = Some(RunSlot {
            id: self.next_id,
            seqs,
        });
        self.next_id += 1;
        let add = self
            .tables(entries, &[])
            .into_iter()
            .map(|table| AddTable {
                level: 0,
                run,
                table,
            })
            .collect();
        self.install(KeyspaceEdit {
            covered: vec![seqs],
            add,
            ..KeyspaceEdit::default()
        });
    }

    fn unsettled(&self) -> Vec<SeqRange> {
        let active = SeqRange::new(self.active_lo, u64::MAX);
        self.sealed
            .iter()
            .map(|(seqs, _)| *seqs)
            .chain([active])
            .collect()
    }

    fn pick(&mut self, by_hand: bool) {
        let (a, b) = (self.random.below(24) as u8, self.random.below(24) as u8);
        let unsettled = self.unsettled();
        let jobs: Vec<_> = self
            .jobs
            .iter()
            .map(|job| job.choice.reservation())
            .collect();
        let input = PickInput {
            version: self.version(),
            options: &self.options,
            jobs: &jobs,
            unsettled: &unsettled,
        };
        let choice = if by_hand {
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
            pick(&input)
        };
        let Some(choice) = choice else { return };
        let older = older_ranges(self.version(), &choice, &unsettled);
        let soft = soft_cuts(self.version(), choice.to, &choice.range);
        let hard = hard_cuts(&choice, 4, 1, &|_| Vec::new());
        for cuts in [&soft, &hard] {
            assert!(cuts.windows(2).all(|pair| pair[0] < pair[1]), "{cuts:?}");
            assert!(
                cuts.iter()
                    .all(|cut| **cut > *choice.range.start && choice.range.contains(cut)),
                "{cuts:?}"
            );
        }
        assert!(hard.len() < 4);
        self.counts.together += u64::from(!self.jobs.is_empty());
        self.jobs.push(Job {
            choice,
            older,
            soft,
        });
    }

    fn finish_one(&mut self) {
        if self.jobs.is_empty() {
            return;
        }
        let at = self.random.below(self.jobs.len() as u64) as usize;
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
        match choice.kind {
            ChoiceKind::Merge => self.counts.merges += 1,
            ChoiceKind::TrivialMove => self.counts.moves += 1,
            ChoiceKind::IntraL0 => self.counts.intra += 1,
            ChoiceKind::Rewrite => self.counts.rewrites += 1,
        }
        let tables: Vec<Arc<TableMeta>> = if choice.kind == ChoiceKind::TrivialMove {
            choice.tables().cloned().collect()
        } else {
            let mut merged = Entries::new();
            for table in choice.tables() {
                for (key, entry) in &self.contents[&table.id] {
                    merged.entry(*key).or_insert(*entry);
                }
            }
            let before = merged.len();
            merged.retain(|key, (_, value)| {
                value.is_some() || older.iter().any(|range| range.contains(&[*key]))
            });
            self.counts.dropped += (before - merged.len()) as u64;
            self.tables(merged, &soft)
        };
        let add = tables
            .into_iter()
            .map(|table| AddTable {
                level: choice.to,
                run,
                table,
            })
            .collect();
        self.install(KeyspaceEdit {
            remove: choice.removals(),
            add,
            ..KeyspaceEdit::default()
        });
    }

    /// What a read finds: newest source first, then level by level.
    fn get(&self, key: u8) -> Option<u64> {
        if let Some((_, value)) = self.active.get(&key) {
            return *value;
        }
        let sealed = self
            .sealed
            .iter()
            .filter_map(|(seqs, entries)| Some((seqs.lo, *entries.get(&key)?)));
        let runs = self.version().runs().iter().filter_map(|run| {
            let table = &run.tables.tables()[run.tables.find(&[key])?];
            Some((run.seqs.lo, *self.contents[&table.id].get(&key)?))
        });
        if let Some((_, (_, value))) = sealed.chain(runs).max_by_key(|(lo, _)| *lo) {
            return value;
        }
        let hit = self.version().levels().find_map(|(_, level)| {
            let table = &level.tables()[level.find(&[key])?];
            self.contents[&table.id].get(&key)
        });
        hit.and_then(|(_, value)| *value)
    }
}

#[test]
fn reads_stay_exact_whatever_is_picked_and_in_whatever_order_it_ends() {
    let mut total = Counts::default();
    for seed in 0..150u64 {
        let mut model = Model::new(seed);
        // Some stores flush late, some compact late.
        let weights: Vec<u64> = (0..6).map(|_| 1 + model.random.below(8)).collect();
        for step in 0..500 {
            // Settings may change at any time.
            if model.random.below(120) == 0 {
                model.options.level_targets = match model.options.level_targets {
                    LevelTargets::Fixed => LevelTargets::Dynamic,
                    LevelTargets::Dynamic => LevelTargets::Fixed,
                };
            }
            let mut at = model.random.below(weights.iter().sum::<u64>() + 20);
            let action = weights.iter().position(|weight| {
                let hit = at < *weight;
                at = at.wrapping_sub(*weight);
                hit
            });
            match action {
                Some(0) => model.rotate(),
                Some(1) => model.install_one(),
                Some(2) => model.pick(false),
                Some(3) if model.random.below(4) == 0 => model.pick(true),
                Some(4 | 5) => model.finish_one(),
                _ => model.write(),
            }
            for key in 0..24 {
                let expected = model.truth.get(&key).copied();
                assert_eq!(
                    model.get(key),
                    expected,
                    "seed {seed}, step {step}, key {key}: {:?}",
                    model.version()
                );
            }
            if step % 50 == 0 {
                model
                    .state
                    .check()
                    .unwrap_or_else(|error| panic!("seed {seed}, step {step}: {error}"));
            }
        }
        let counts = &model.counts;
        total.merges += counts.merges;
        total.moves += counts.moves;
        total.intra += counts.intra;
        total.rewrites += counts.rewrites;
        total.late_installs += counts.late_installs;
        total.dropped += counts.dropped;
        total.together += counts.together;
    }
    // All of it happened.
    let Counts {
        merges,
        moves,
        intra,
        rewrites,
        late_installs,
        dropped,
        together,
    } = total;
    let all = [
        merges,
        moves,
        intra,
        rewrites,
        late_installs,
        dropped,
        together,
    ];
    println!("merges, moves, intra, rewrites, late installs, dropped, together: {all:?}");
    assert!(all.iter().all(|count| *count > 20), "{all:?}");
}

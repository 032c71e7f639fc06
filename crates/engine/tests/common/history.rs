//! What the tests of cursors share: random histories of a keyspace beside a model, and readers that
//! walk through it.
//!
//! A [`Workload`] describes the histories of a test. [`World::change`] makes one change to the
//! keyspace and to the model. A [`Reader`] seeks and steps with one cursor, and compares every
//! entry on which it stands with the model as it was at the cursor's number.
//!
//! `SILT_SEED=N` plays one seed; with `SILT_COUNT=M`, it plays M seeds starting from that one.

use std::collections::BTreeMap;
use std::ops::Bound;

use siltstone::{Batch, Cursor, IterOptions, Keyspace, Options, Snapshot, Store, WriteOptions};
use siltstone_storage::Runtime;
use siltstone_storage::sim::{self, SimConfig};

use super::{Dice, Disk};

pub type Model = BTreeMap<Vec<u8>, Vec<u8>>;

/// Plays a story for some seeds in the simulated runtime.
pub fn simulate(seeds: u64, story: impl Fn(Runtime, u64) + Clone + Send + 'static) {
    let number = |name: &str| {
        std::env::var(name)
            .ok()
            .and_then(|value| value.parse().ok())
    };
    let (first, count) = match number("SILT_SEED") {
        Some(first) => (first, number("SILT_COUNT").unwrap_or(1)),
        None => (0, seeds),
    };
    for seed in first..first + count {
        let config = SimConfig {
            stack_bytes: 1 << 20,
            max_steps: 10_000_000,
            ..SimConfig::new(seed)
        };
        let story = story.clone();
        if let Err(failure) = sim::run(config, move |rt| story(rt, seed)).result {
            panic!("seed {seed}: {failure}");
        }
    }
}

/// All keys of a cursor, and the moves of its sources that it took, forward and then backward. The
/// keys are ascending in both.
pub fn both_ways(cursor: &mut Cursor) -> [(Vec<Vec<u8>>, u64); 2] {
    let moves = [cursor.moves_for_tests()];
    let mut forward = Vec::new();
    cursor.seek_to_first().unwrap();
    while cursor.valid() {
        forward.push(cursor.key().to_vec());
        cursor.next().unwrap();
    }
    let moves = [moves[0], cursor.moves_for_tests()];
    let mut backward = Vec::new();
    cursor.seek_to_last().unwrap();
    while cursor.valid() {
        backward.push(cursor.key().to_vec());
        cursor.prev().unwrap();
    }
    backward.reverse();
    let end = cursor.moves_for_tests();
    [(forward, moves[1] - moves[0]), (backward, end - moves[1])]
}

/// One kind of change to the keyspace.
#[derive(Clone, Copy, Debug)]
pub enum Change {
    Put,
    Delete,
    /// Neighbouring keys are put, as one batch or one by one.
    PutRun,
    /// Neighbouring keys are deleted, as one batch or one by one.
    DeleteRun,
    /// Puts, deletes and range deletes of the same few keys in one batch over two keyspaces.
    Batch,
    /// Many versions of one key.
    Versions,
    DeleteRange,
    Flush,
    Compact,
    /// Tables of puts and deletes, which may overlap each other.
    Ingest,
    Snapshot,
    DropSnapshot,
    /// A reader is kept over the changes that follow.
    KeepReader,
    DropReader,
    /// A sealed memtable that is not flushed until [`Change::Release`].
    Hold,
    Release,
    Reopen,
    /// The keyspace is dropped, and another one of the same name is made.
    Recreate,
}

/// What the random histories of a test are like.
#[derive(Clone)]
pub struct Workload {
    /// The keys, ascending.
    pub keys: Vec<Vec<u8>>,
    pub options: fn(&mut Dice) -> Options,
    /// The number of hidden entries of which cursors make a gap: one of these for each open.
    pub gap_mins: &'static [u64],
    /// The kinds of changes, each with its share of them.
    pub changes: &'static [(u64, Change)],
    /// The most neighbouring keys that one change touches.
    pub run_max: u64,
}

/// A keyspace and its model, with snapshots and readers of their past.
pub struct World {
    pub disk: Disk,
    pub store: Store,
    pub keyspace: Keyspace,
    pub model: Model,
    pub dice: Dice,
    pub snapshots: Vec<(Snapshot, Model)>,
    pub readers: Vec<Reader>,
    /// Batches write to this keyspace as well; nothing reads it.
    other: Keyspace,
    workload: Workload,
    /// A sealed memtable is kept from being flushed, so a call that waits for flushes would never
    /// return.
    is_held: bool,
    /// Ends of earlier range deletes.
    ends: Vec<Vec<u8>>,
    /// Gaps that cursors left behind, and jumps over gaps, over all opens.
    pub gaps: u64,
    pub jumps: u64,
}

const NAME: &str = "main";
const VALUE_BYTES: [u64; 4] = [0, 10, 200, 1500];

impl World {
    pub fn new(rt: &Runtime, seed: u64, workload: Workload) -> World {
        assert!(workload.keys.is_sorted());
        let mut dice = Dice::new(seed);
        let disk = Disk::new(rt);
        let store = disk.open_with((workload.options)(&mut dice));
        let mut world = World {
            keyspace: store.create_keyspace(NAME).unwrap(),
            other: store.default_keyspace().unwrap(),
            disk,
            store,
            model: Model::new(),
            dice,
            snapshots: Vec::new(),
            readers: Vec::new(),
            workload,
            is_held: false,
            ends: Vec::new(),
            gaps: 0,
            jumps: 0,
        };
        world.set_gap_min();
        world
    }

    fn set_gap_min(&mut self) {
        let mins = self.workload.gap_mins;
        let min = mins[self.dice.below(mins.len() as u64) as usize];
        self.store.test_hooks().set_gap_min(min);
    }

    /// Adds the gaps and the jumps of this open to the sums. It must be called once for each open.
    pub fn count(&mut self) {
        let stats = self.store.stats();
        self.gaps += stats.counter("gap_count");
        self.jumps += stats.counter("gap_jump_count");
    }

    pub fn key(&mut self) -> Vec<u8> {
        let at = self.dice.below(self.workload.keys.len() as u64);
        self.workload.keys[at as usize].clone()
    }

    fn value(&mut self) -> Vec<u8> {
        let len = VALUE_BYTES[self.dice.below(4) as usize];
        vec![self.dice.below(256) as u8; len as usize]
    }

    /// Some neighbouring keys.
    fn run(&mut self) -> Vec<Vec<u8>> {
        let first = self.dice.below(self.workload.keys.len() as u64) as usize;
        let count = 1 + self.dice.below(self.workload.run_max) as usize;
        let run = self.workload.keys[first..].iter().take(count);
        run.cloned().collect()
    }

    /// The start and the end of a range delete: narrow or wide, beside an earlier one or within
    /// it, behind the last key, or with nothing in it.
    fn range(&mut self) -> (Vec<u8>, Vec<u8>) {
        let (mut start, mut end) = match self.dice.below(16) {
            0 => (self.key(), self.key()),
            1 => {
                let start = self.key();
                let last = self.workload.keys.last().expect("there are keys");
                (start, [&last[..last.len().min(100)], &[0xff; 4]].concat())
            }
            2 => (Vec::new(), self.key()),
            _ => {
                let mut run = self.run();
                let start = run.swap_remove(0);
                (start, run.pop().unwrap_or_else(|| self.key()))
            }
        };
        // Ranges that meet, and ranges with an end in common.
        if let Some(old) = self.dice.below(self.ends.len() as u64 + 1).checked_sub(1) {
            let old = self.ends[old as usize].clone();
            match self.dice.below(12) {
                0 => start = old,
                1 => end = old,
                _ => {}
            }
        }
        if start > end {
            std::mem::swap(&mut start, &mut end);
        }
        for bound in [&start, &end] {
            self.ends.push(bound.clone());
        }
        if self.ends.len() > 8 {
            self.ends.drain(..2);
        }
        (start, end)
    }

    pub fn delete_range(&mut self, start: &[u8], end: &[u8]) {
        self.keyspace.delete_range(start, end).unwrap();
        self.model.retain(|k, _| &k[..] < start || &k[..] >= end);
    }

    fn release(&mut self) {
        self.store.test_hooks().release(&self.keyspace);
        self.is_held = false;
    }

    /// One random change.
    pub fn change(&mut self) {
        let changes = self.workload.changes;
        let mut at = self
            .dice
            .below(changes.iter().map(|(share, _)| share).sum());
        let chosen = changes
            .iter()
            .find(|(share, _)| match at.checked_sub(*share) {
                Some(less) => {
                    at = less;
                    false
                }
                None => true,
            });
        let (_, change) = chosen.expect("a number below the sum");
        self.do_change(*change);
    }

    fn do_change(&mut self, change: Change) {
        match change {
            Change::Put => {
                let (key, value) = (self.key(), self.value());
                self.keyspace.put(&key, &value).unwrap();
                self.model.insert(key, value);
            }
            Change::Delete => {
                let key = self.key();
                self.keyspace.delete(&key).unwrap();
                self.model.remove(&key);
            }
            Change::PutRun => self.write_run(true),
            Change::DeleteRun => self.write_run(false),
            Change::Batch => self.write_batch(),
            Change::Versions => {
                let key = self.key();
                for i in 0..30u8 {
                    self.keyspace.put(&key, [i]).unwrap();
                }
                self.model.insert(key, vec![29]);
            }
            Change::DeleteRange => {
                let (start, end) = self.range();
                self.delete_range(&start, &end);
            }
            Change::Flush => {
                self.release();
                self.keyspace.flush().unwrap();
            }
            Change::Compact => {
                self.release();
                let (a, b) = (self.key(), self.key());
                let (start, end) = (a.clone().min(b.clone()), a.max(b));
                let bounds = match self.dice.below(3) {
                    0 => (None, None),
                    _ => (Some(&start[..]), Some(&end[..])),
                };
                self.keyspace.compact_range(bounds.0, bounds.1).unwrap();
            }
            Change::Ingest => self.ingest(),
            Change::Snapshot => {
                let snapshot = (self.store.snapshot(), self.model.clone());
                self.snapshots.push(snapshot);
                if self.snapshots.len() > 4 {
                    self.do_change(Change::DropSnapshot);
                }
            }
            Change::DropSnapshot => {
                let at = self.dice.below(self.snapshots.len().max(1) as u64) as usize;
                if at < self.snapshots.len() {
                    self.snapshots.swap_remove(at);
                }
            }
            Change::KeepReader => {
                let bounds = self.bounds();
                let reader = self.reader(bounds);
                self.readers.push(reader);
                if self.readers.len() > 4 {
                    self.do_change(Change::DropReader);
                }
            }
            Change::DropReader => {
                let at = self.dice.below(self.readers.len().max(1) as u64) as usize;
                if at < self.readers.len() {
                    self.readers.swap_remove(at);
                }
            }
            Change::Hold if !self.is_held => {
                // With the next ingest there is a memtable between runs.
                let hooks = self.store.test_hooks();
                self.is_held = hooks.seal_and_hold(&self.keyspace).unwrap();
            }
            Change::Hold | Change::Release => self.release(),
            Change::Reopen => {
                self.release();
                self.snapshots.clear();
                self.readers.clear();
                self.count();
                self.store.clone().close().unwrap();
                let options = (self.workload.options)(&mut self.dice);
                self.store = self.disk.open_with(options);
                self.keyspace = self.store.keyspace(NAME).unwrap();
                self.other = self.store.default_keyspace().unwrap();
                self.set_gap_min();
            }
            Change::Recreate => {
                self.release();
                self.store.drop_keyspace(NAME).unwrap();
                self.keyspace = self.store.create_keyspace(NAME).unwrap();
                self.model.clear();
                // Nothing was in it then. The readers go on in the one that was dropped.
                self.snapshots
                    .iter_mut()
                    .for_each(|(_, model)| model.clear());
                self.readers
                    .iter_mut()
                    .for_each(|reader| reader.is_of_dropped = true);
            }
        }
    }

    fn write_run(&mut self, puts: bool) {
        let as_batch = self.dice.below(2) == 0;
        let mut batch = Batch::new();
        for key in self.run() {
            if puts {
                let value = self.value();
                batch.put(&self.keyspace, &key, &value).unwrap();
                self.model.insert(key, value);
            } else {
                batch.delete(&self.keyspace, &key).unwrap();
                self.model.remove(&key);
            }
            if !as_batch {
                self.store.write(&batch, WriteOptions::default()).unwrap();
                batch.clear();
            }
        }
        self.store.write(&batch, WriteOptions::default()).unwrap();
    }

    fn write_batch(&mut self) {
        let mut batch = Batch::new();
        let keys: Vec<Vec<u8>> = (0..1 + self.dice.below(3)).map(|_| self.key()).collect();
        for _ in 0..2 + self.dice.below(12) {
            let key = keys[self.dice.below(keys.len() as u64) as usize].clone();
            match self.dice.below(7) {
                0..3 => {
                    let value = self.value();
                    batch.put(&self.keyspace, &key, &value).unwrap();
                    self.model.insert(key, value);
                }
                3 => {
                    batch.delete(&self.keyspace, &key).unwrap();
                    self.model.remove(&key);
                }
                4 => {
                    let (start, end) = match self.dice.below(2) {
                        0 => self.range(),
                        _ => (
                            key.clone(),
                            [&key[..key.len().min(65_534)], &[0xff]].concat(),
                        ),
                    };
                    let (start, end) = (start.clone().min(end.clone()), start.max(end));
                    batch.delete_range(&self.keyspace, &start, &end).unwrap();
                    self.model.retain(|k, _| *k < start || *k >= end);
                }
                5 => batch.put(&self.other, &key, b"other").unwrap(),
                _ => batch.delete(&self.other, &key).unwrap(),
            }
        }
        self.store.write(&batch, WriteOptions::default()).unwrap();
    }

    fn ingest(&mut self) {
        let hooks = self.store.test_hooks();
        let mut runs = Vec::new();
        for _ in 0..1 + self.dice.below(2) {
            let mut entries: BTreeMap<Vec<u8>, Option<Vec<u8>>> = BTreeMap::new();
            for i in 0..1 + self.dice.below(6) {
                let value = (self.dice.below(4) > 0).then(|| vec![b'i', i as u8]);
                entries.insert(self.key(), value);
            }
            let borrowed: Vec<(&[u8], Option<&[u8]>)> = entries
                .iter()
                .map(|(key, value)| (&key[..], value.as_deref()))
                .collect();
            runs.push(vec![super::table_of(&self.disk, &hooks, &borrowed)]);
            for (key, value) in entries {
                match value {
                    Some(value) => self.model.insert(key, value),
                    None => self.model.remove(&key),
                };
            }
        }
        hooks.ingest_all(vec![(&self.keyspace, runs)]).unwrap();
    }

    /// Bounds of all kinds: none, a prefix, two keys, nothing in between.
    pub fn bounds(&mut self) -> IterOptions {
        let (a, b) = (self.key(), self.key());
        match self.dice.below(7) {
            0 | 1 => IterOptions::default(),
            2 => {
                let len = self.dice.below(a.len() as u64 + 1) as usize;
                IterOptions::prefix(&a[..len])
            }
            3 => IterOptions::range(a.clone()..a),
            4 if a <= b => IterOptions::range(a..=b),
            _ => IterOptions {
                lower: (self.dice.below(3) > 0).then(|| a.clone().min(b.clone())),
                upper: (self.dice.below(3) > 0).then(|| a.max(b)),
                ..IterOptions::default()
            },
        }
    }

    /// The target of a seek: a key, a bound, or something next to one of these.
    pub fn place(&mut self, options: &IterOptions) -> Vec<u8> {
        let bound = match self.dice.below(6) {
            0 => options.lower.clone(),
            1 => options.upper.clone(),
            2 if !self.ends.is_empty() => {
                let at = self.dice.below(self.ends.len() as u64) as usize;
                Some(self.ends[at].clone())
            }
            _ => None,
        };
        let mut place = bound.unwrap_or_else(|| self.key());
        match self.dice.below(12) {
            0 => place.push(0),
            1 => drop(place.pop()),
            2 => place.truncate(self.dice.below(place.len() as u64 + 1) as usize),
            3 => place = Vec::new(),
            4 => place = vec![0xff; 5],
            _ => {}
        }
        place
    }

    /// A reader of the keyspace as it is now.
    pub fn reader(&mut self, options: IterOptions) -> Reader {
        let cursor = self.keyspace.cursor(&options).unwrap();
        Reader::new(cursor, options, &self.model)
    }

    /// A reader for each snapshot.
    pub fn old_readers(&mut self) -> Vec<Reader> {
        (0..self.snapshots.len())
            .map(|at| {
                let options = self.bounds();
                let (snapshot, model) = &self.snapshots[at];
                let cursor = self.keyspace.cursor_at(snapshot, &options).unwrap();
                Reader::new(cursor, options, model)
            })
            .collect()
    }

    /// Lets a reader seek or step `steps` times.
    pub fn walk(&mut self, reader: &mut Reader, steps: u64) {
        for _ in 0..steps {
            let place = self.place(&reader.options);
            reader.step(place, &mut self.dice);
        }
    }

    /// Lets all readers look: new ones, those of snapshots, and those that were kept, some of which
    /// are refreshed.
    pub fn read(&mut self) {
        let bounds = self.bounds();
        let mut now = [self.reader(IterOptions::default()), self.reader(bounds)];
        let mut old = self.old_readers();
        for reader in now.iter_mut().chain(&mut old) {
            if self.dice.below(4) == 0 {
                reader.scan();
            }
            let steps = 1 + self.dice.below(12);
            self.walk(reader, steps);
        }
        let mut kept = std::mem::take(&mut self.readers);
        for reader in &mut kept {
            let steps = 1 + self.dice.below(12);
            self.walk(reader, steps);
            if !reader.is_of_dropped && self.dice.below(6) == 0 {
                reader.refresh(&self.model);
            }
        }
        self.readers = kept;
    }
}

/// A cursor, with the model of what it must show.
pub struct Reader {
    pub cursor: Cursor,
    pub options: IterOptions,
    /// Its keyspace was dropped, so it cannot be refreshed.
    is_of_dropped: bool,
    shown: Model,
    /// The key where it stands.
    pub at: Option<Vec<u8>>,
    story: Vec<String>,
}

impl Reader {
    pub fn new(cursor: Cursor, options: IterOptions, model: &Model) -> Reader {
        let bound = |bound: &Option<Vec<u8>>| bound.as_deref().map(short);
        let bounds = (bound(&options.lower), bound(&options.upper));
        Reader {
            story: vec![format!("bounds {bounds:?}")],
            shown: within(model, &options),
            cursor,
            options,
            is_of_dropped: false,
            at: None,
        }
    }

    /// Makes a random seek, to `place` if it needs a target, or a step, and compares.
    pub fn step(&mut self, place: Vec<u8>, dice: &mut Dice) {
        let after = |at: &Vec<u8>| (Bound::Excluded(at.clone()), Bound::Unbounded);
        let (done, stand) = match (dice.below(12), &self.at) {
            (0..4, Some(at)) => {
                self.cursor.next().unwrap();
                ("next".into(), self.shown.range(after(at)).next())
            }
            (4..8, Some(at)) => {
                self.cursor.prev().unwrap();
                ("prev".into(), self.shown.range(..at.clone()).next_back())
            }
            (8 | 0 | 1 | 2, _) => {
                let done = format!("seek {}", short(&place));
                self.cursor.seek(&place).unwrap();
                (done, self.shown.range(place..).next())
            }
            (9 | 3 | 4 | 5, _) => {
                let done = format!("seek_for_prev {}", short(&place));
                self.cursor.seek_for_prev(&place).unwrap();
                (done, self.shown.range(..=place).next_back())
            }
            (10 | 6, _) => {
                self.cursor.seek_to_first().unwrap();
                ("first".into(), self.shown.iter().next())
            }
            _ => {
                self.cursor.seek_to_last().unwrap();
                ("last".into(), self.shown.iter().next_back())
            }
        };
        self.story.push(done);
        compare(&self.cursor, stand, &self.story);
        self.at = stand.map(|(key, _)| key.clone());
    }

    /// Scans everything, forward and backward, and compares.
    pub fn scan(&mut self) {
        self.story.push("scan".into());
        self.cursor.seek_to_first().unwrap();
        for entry in &self.shown {
            compare(&self.cursor, Some(entry), &self.story);
            self.cursor.next().unwrap();
        }
        compare(&self.cursor, None, &self.story);
        self.cursor.seek_to_last().unwrap();
        for entry in self.shown.iter().rev() {
            compare(&self.cursor, Some(entry), &self.story);
            self.cursor.prev().unwrap();
        }
        compare(&self.cursor, None, &self.story);
        self.at = None;
    }

    /// Refreshes the cursor, and compares with the model as it is now.
    pub fn refresh(&mut self, model: &Model) {
        let before = self.cursor.number();
        self.cursor.refresh().unwrap();
        assert!(self.cursor.number() >= before);
        self.shown = within(model, &self.options);
        self.story.push("refresh".into());
        let stand = self.at.take();
        let stand = stand.and_then(|at| self.shown.range(at..).next());
        compare(&self.cursor, stand, &self.story);
        self.at = stand.map(|(key, _)| key.clone());
    }
}

/// What a cursor with these bounds shows of a model.
fn within(model: &Model, options: &IterOptions) -> Model {
    let inside = |k: &[u8]| {
        options.lower.as_ref().is_none_or(|l| k >= &l[..])
            && options.upper.as_ref().is_none_or(|u| k < &u[..])
    };
    let mut shown = model.clone();
    shown.retain(|k, _| inside(k));
    shown
}

/// Bytes for a message, shortened: a key may have 65,535.
fn short(bytes: &[u8]) -> String {
    let start = bytes[..bytes.len().min(60)].escape_ascii();
    format!("{start} ({} bytes)", bytes.len())
}

fn compare(cursor: &Cursor, wanted: Option<(&Vec<u8>, &Vec<u8>)>, story: &[String]) {
    let shown = cursor.valid().then(|| (cursor.key(), cursor.value()));
    let wanted = wanted.map(|(k, v)| (&k[..], &v[..]));
    if shown == wanted {
        return;
    }
    let text = |pair: Option<(&[u8], &[u8])>| pair.map(|(k, v)| (short(k), short(v)));
    panic!(
        "at number {}: the cursor stands on {:?}, the model on {:?}, after {}",
        cursor.number(),
        text(shown),
        text(wanted),
        story.join(", ")
    );
}

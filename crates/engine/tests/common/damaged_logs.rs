//! Damages the log of a store. An open, a read-only open, a check and a repair must agree about the
//! result, and nothing is lost silently.

use std::ops::Range;

use siltstone::check::{CheckStorages, check as check_store};
use siltstone::inspect::{LogFile, LogItem};
use siltstone::log::Position;
use siltstone::log::format::{parse_segment_name, segment_name};
use siltstone::manifest::recover;
use siltstone::repair::{RepairOptions, RepairReport, RepairSource, repair};
use siltstone::version::StoreState;
use siltstone::{Options, SyncMode};
use siltstone_storage::{MemoryStorage, Runtime, Storage};

use super::*;

/// The smallest segments, so that a short life of a store has several.
pub(super) fn options() -> Options {
    Options {
        log_segment_bytes: 64 << 10,
        memtable_bytes: 1 << 20,
        sync: SyncMode::Never,
        stats_file_ms: 0,
        background_tasks: 1,
        ..small()
    }
}

pub(super) fn state(disk: &Disk) -> StoreState {
    let found = recover(&disk.memory).unwrap().expect("a store");
    StoreState::clone(&found.state)
}

/// Where the log starts, according to the manifest.
pub(super) fn start_of(state: &StoreState) -> Position {
    let start = state.log_start;
    Position::new(start.segment as u32, start.offset as u32)
}

/// Through where the log is synced, according to the manifest.
pub(super) fn synced_of(state: &StoreState) -> Position {
    let synced = state.log_synced;
    Position::new(synced.segment as u32, synced.offset as u32)
}

/// Puts some pairs into each of these keyspaces.
pub(super) fn fill(keyspaces: &[&Keyspace], numbers: Range<u64>) {
    for i in numbers {
        for keyspace in keyspaces {
            keyspace.put(&key(i), &[i as u8; 2000]).unwrap();
        }
    }
}

/// Writes two keyspaces. With 0 for `how`, the second one has unflushed records behind flushed
/// ones, over several segments; with 1, everything is flushed; with 2, nothing is.
pub(super) fn write_two_keyspaces(disk: &Disk, how: u64) -> Store {
    let store = disk.open_with(options());
    let (a, b) = two(&store);
    fill(&[&a, &b], 0..30);
    if how < 2 {
        store.flush().unwrap();
        fill(&[&a], 30..35);
        a.flush().unwrap();
        fill(&[&b], 30..70);
        a.delete(&key(3)).unwrap();
        a.put(&key(3), b"again").unwrap();
    }
    if how == 1 {
        store.flush().unwrap();
    }
    store
}

/// Damage to one segment: how its bytes are changed, and which of them. `None` deletes the segment.
pub(super) struct Hit {
    pub(super) segment: u32,
    pub(super) bytes: Range<u64>,
    pub(super) what: String,
    pub(super) change: Option<Change>,
}

/// A change of a segment's bytes. All changes have the same signature, and a cut needs the vector.
pub(super) type Change = fn(&mut Vec<u8>, Range<u64>);

#[allow(clippy::ptr_arg)]
fn flip(bytes: &mut Vec<u8>, range: Range<u64>) {
    bytes[range.start as usize] ^= 0x10;
}

#[allow(clippy::ptr_arg)]
fn zero(bytes: &mut Vec<u8>, range: Range<u64>) {
    bytes[range.start as usize..range.end as usize].fill(0);
}

fn cut(bytes: &mut Vec<u8>, range: Range<u64>) {
    bytes.truncate(range.start as usize);
}

/// The byte ranges of the records of a segment.
pub(super) fn records(storage: &MemoryStorage, segment: u32) -> Vec<Range<u64>> {
    let file = storage.open(&segment_name(segment)).unwrap();
    let mut log = LogFile::open(&*file).unwrap();
    let mut found = Vec::new();
    while let Some(item) = log.next_item().unwrap() {
        if let LogItem::Record(record) = item {
            found.push(record.offset..record.end);
        }
    }
    found
}

/// Damage of each kind to each part of the log that has history.
pub(super) fn hits(disk: &Disk, start: u32, end: u32) -> Vec<Hit> {
    let mut hits = Vec::new();
    for name in disk.names(".log") {
        let segment = parse_segment_name(&name).unwrap();
        if !(start..=end).contains(&segment) {
            continue;
        }
        let len = disk.memory.open(&name).unwrap().len();
        let mut hit = |bytes: Range<u64>, what: &str, change| {
            let what = format!("{what} {bytes:?} of segment {segment}");
            hits.push(Hit {
                segment,
                bytes,
                what,
                change,
            });
        };
        hit(0..len, "missing:", None);
        hit(0..len, "empty:", Some(cut));
        hit(0..len, "zeros at", Some(zero));
        hit(0..64, "zeros at", Some(zero));
        for at in [0, 4, 10, 12, 16, 24, 32, 40, 48, 56, 60] {
            hit(at..at + 1, "flip at", Some(flip));
        }
        let records = records(&disk.memory, segment);
        for (i, record) in records.iter().enumerate() {
            let Range { start, end } = *record;
            // Every kind of byte in the first and the last records, and the payload in all records.
            let classes: &[u64] = match i < 2 || i + 2 >= records.len() {
                true => &[0, 4, 8, 9, 12, 16, 24, 32, end - start - 1],
                false => &[32],
            };
            for at in classes {
                hit(start + at..start + at + 1, "flip at", Some(flip));
            }
            if i % 5 == 0 || i + 1 == records.len() {
                hit(start..len, "cut at", Some(cut));
                hit(start + 40..len, "cut at", Some(cut));
                hit(start..len, "zeros at", Some(zero));
            }
        }
        if let Some(last) = records.last() {
            hit(last.end..len, "cut at", Some(cut));
        }
    }
    hits
}

impl Hit {
    /// A copy of the store, damaged.
    pub(super) fn apply(&self, disk: &Disk) -> Disk {
        let copy = disk.kill();
        let name = segment_name(self.segment);
        match self.change {
            Some(change) => copy
                .memory
                .damage(&name, |bytes| change(bytes, self.bytes.clone()))
                .unwrap(),
            None => {
                let lease = copy.memory.lease("store").unwrap();
                copy.memory.delete(lease.epoch(), &name).unwrap();
            }
        }
        copy
    }

    /// Whether it damages any of the history from `from` to `end`. The records of the segment end
    /// at `ends`.
    pub(super) fn meets(&self, from: Position, end: Position, ends: u64) -> bool {
        let within = self.bytes.start..self.bytes.end.min(ends);
        let from = match self.segment.cmp(&from.segment) {
            std::cmp::Ordering::Less => return false,
            std::cmp::Ordering::Equal => u64::from(from.offset),
            std::cmp::Ordering::Greater => 0,
        };
        self.segment <= end.segment && within.start < ends && within.end > from
    }
}

/// The result of a repair of a damaged store.
pub(super) struct Repaired {
    rt: Runtime,
    target: Arc<dyn Storage>,
    pub(super) report: RepairReport,
}

impl Repaired {
    /// Repairs the store on `source` into a new storage.
    pub(super) fn of(disk: &Disk, source: Arc<dyn Storage>) -> siltstone::Result<Repaired> {
        let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&disk.rt));
        let report = repair(
            &RepairSource::on(source),
            &target,
            &disk.rt,
            &RepairOptions::default(),
            &mut |_| {},
        )?;
        Ok(Repaired {
            rt: disk.rt.clone(),
            target,
            report,
        })
    }

    /// The contents of the new store.
    pub(super) fn contents(&self) -> Contents {
        let components = Components::on(self.target.clone(), self.rt.clone());
        contents(&Store::open_with(components, options()).unwrap())
    }
}

/// An open, a check, a read-only open and a repair must agree about a store. Returns whether it
/// opens, with all of its contents, and whether damage was skipped.
pub(super) fn judge(disk: &Disk, wanted: &Contents, what: &str) -> (bool, bool) {
    let storage: Arc<dyn Storage> = Arc::new(disk.memory.clone());
    let checked = check_store(&CheckStorages::on(&disk.memory), &mut |_| {})
        .unwrap_or_else(|e| panic!("{what}: check: {e}"));
    let repaired = Repaired::of(disk, storage.clone());
    let repaired = repaired.unwrap_or_else(|e| panic!("{what}: repair: {e}"));
    let components = Components::on(storage, disk.rt.clone());
    let reading = Store::open_read_only_with(components, options()).map(|s| contents(&s));
    let opened = disk.try_open(options());
    let store = match opened {
        Ok(store) => store,
        Err(error) => {
            assert!(error.is_corruption(), "{what}: {error}");
            let file = error.file().unwrap_or_default();
            assert!(parse_segment_name(file).is_some(), "{what}: {error}");
            assert!(
                error.offset().is_some() || what.contains("missing"),
                "{what}: {error}"
            );
            let read = reading.map(|_| ()).unwrap_err();
            assert_eq!(read.to_string(), error.to_string(), "{what}: read-only");
            assert!(
                !checked.is_sound(),
                "{what}: check finds nothing, open: {error}"
            );
            // A repair may find more than an open: records of a segment whose header is lost.
            if repaired.report.lost_nothing() {
                assert_eq!(repaired.contents(), *wanted, "{what}: repaired");
            }
            return (false, false);
        }
    };
    assert_eq!(contents(&store), *wanted, "{what}");
    let read = reading.unwrap_or_else(|e| panic!("{what}: read-only: {e}"));
    assert_eq!(read, *wanted, "{what}: read-only");
    let passed = store.stats().counter("skipped_log_damage_count") > 0;
    assert_eq!(
        checked.is_sound(),
        !passed,
        "{what}: check: {:?}",
        checked.problems
    );
    let report = &repaired.report;
    assert!(report.lost_nothing(), "{what}: repair: {report:?}");
    assert_eq!(repaired.contents(), *wanted, "{what}: repaired");
    store.close().unwrap();
    // The damage was deleted together with the old log.
    let again = disk.open_with(options());
    assert_eq!(
        again.stats().counter("skipped_log_damage_count"),
        0,
        "{what}"
    );
    assert_eq!(contents(&again), *wanted, "{what}: opened again");
    (true, passed)
}

/// An open, a check and a repair report that this file is damaged or missing, and change nothing.
pub(super) fn refuses(disk: &Disk, name: &str, wanted: &Contents, what: &str) {
    let error = disk.try_open(options()).expect_err(what);
    assert!(error.is_corruption(), "{what}: {error}");
    assert_eq!(error.file(), Some(name), "{what}: {error}");
    let checked = check_store(&CheckStorages::on(&disk.memory), &mut |_| {});
    assert!(
        !checked.is_ok_and(|found| found.is_sound()),
        "{what}: check finds nothing, open: {error}"
    );
    let repaired = Repaired::of(disk, Arc::new(disk.memory.clone()));
    let repaired = repaired.unwrap_or_else(|e| panic!("{what}: repair: {e}"));
    if repaired.report.lost_nothing() {
        assert_eq!(repaired.contents(), *wanted, "{what}: repaired");
    }
}

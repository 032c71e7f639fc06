//! Every workload in small, on the map in memory and on a real store, and engines that answer
//! wrongly.

mod cold;
mod draws;
mod opens;
mod panics;
mod rest;
mod scans;
mod spy;
mod stores;
mod streams;
mod sync;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::Ordering;

use super::{Control, Progress, RunError, run};
use crate::engine::{
    Abilities, Answers, Driver, Engine, EngineError, Entries, Figures, Level, NullDriver, Result,
    Session, SiltstoneDriver, Write,
};
use crate::record::Found;
use crate::settings::{
    Amount, Arrival, Cache, Distribution, EngineSettings, Kind, Settings, ValueBytes, Workload,
};

fn small(workload: Workload) -> Settings {
    Settings {
        workload,
        records: 2000,
        value_bytes: ValueBytes::Fixed(100),
        engine: EngineSettings {
            memtable_bytes: 1 << 20,
            cache_bytes: 1 << 20,
            ..EngineSettings::default()
        },
        batch: 16,
        amount: match workload {
            Workload::ReadSeq | Workload::ReadReverse | Workload::FillSeq => None,
            Workload::Ingest | Workload::YcsbLoad => None,
            Workload::Compact | Workload::Open => None,
            _ => Some(Amount::Operations(1500)),
        },
        arrival: Arrival::Closed,
        ..Settings::default()
    }
}

fn run_in(driver: &dyn Driver, folder: &Path, settings: &Settings) -> Found {
    let outcome = run(driver, folder, settings, &Control::default(), &|_| {});
    outcome.unwrap_or_else(|error| panic!("{}: {error}", settings.workload))
}

fn records(outcome: &Found) -> u64 {
    outcome.records.unwrap()
}

fn kinds(outcome: &Found) -> Vec<Kind> {
    let kinds = outcome.measured.latency.iter();
    kinds
        .filter(|(_, latencies)| latencies.count() > 0)
        .map(|(kind, _)| *kind)
        .collect()
}

#[test]
fn every_workload_runs_on_a_store_and_leaves_it_known() {
    use Workload as W;
    let folder = tempfile::tempdir().unwrap();
    let driver = SiltstoneDriver;
    let run_next = |workload| run_in(&driver, folder.path(), &small(workload));
    for (workload, kind) in [
        (W::FillRandom, Kind::Put),
        (W::FillSync, Kind::Put),
        (W::FillBatch, Kind::Batch),
    ] {
        let outcome = run_next(workload);
        assert_eq!(kinds(&outcome), [kind], "{workload}");
        assert_eq!(outcome.measured.counts.operations, 1500, "{workload}");
        // With replacement, some records come twice.
        assert!(
            (900..1400).contains(&records(&outcome)),
            "{workload}: {}",
            records(&outcome)
        );
    }
    let filled = run_next(W::FillSeq);
    assert_eq!(
        (filled.records, filled.live_bytes),
        (Some(2000), Some(2000 * 116))
    );
    for (workload, expected) in [
        (W::ReadRandom, vec![Kind::Get]),
        (W::ReadMissing, vec![Kind::GetMissing]),
        (W::ReadSeq, vec![Kind::Scan]),
        (W::ReadReverse, vec![Kind::Scan]),
        (W::SeekRandom, vec![Kind::Seek]),
        (W::MultiReadRandom, vec![Kind::MultiGet]),
        (W::ReadWhileWriting, vec![Kind::Put, Kind::Get]),
        (W::SeekRandomWhileWriting, vec![Kind::Put, Kind::Seek]),
        (W::ReadRandomWriteRandom, vec![Kind::Put, Kind::Get]),
        (W::Overwrite, vec![Kind::Put]),
        (W::Mixgraph, vec![Kind::Put, Kind::Get, Kind::Seek]),
        (W::Open, vec![Kind::Open]),
        (W::Compact, vec![Kind::Compact]),
        (W::ReadSeq, vec![Kind::Scan]),
    ] {
        let outcome = run_next(workload);
        let mut found = kinds(&outcome);
        if workload == W::ReadWhileWriting || workload == W::SeekRandomWhileWriting {
            // The writer may not have come to its first put.
            found.retain(|kind| *kind != Kind::Put);
            found.insert(0, Kind::Put);
        }
        assert_eq!(found, expected, "{workload}");
        assert_eq!(outcome.records, Some(2000), "{workload}");
    }
    let deleted = run_next(W::DeleteRandom);
    assert!(
        (800..1200).contains(&records(&deleted)),
        "{}",
        records(&deleted)
    );
    let scanned = run_next(W::ReadSeq);
    assert_eq!(Some(scanned.measured.counts.operations), deleted.records);
    let found = run_next(W::ReadRandom);
    assert_eq!(found.measured.counts.operations, 1500);
}

#[test]
fn ingested_records_can_be_read() {
    let folder = tempfile::tempdir().unwrap();
    let run_next = |workload| run_in(&SiltstoneDriver, folder.path(), &small(workload));
    let outcome = run_next(Workload::Ingest);
    assert_eq!(kinds(&outcome), [Kind::Ingest]);
    assert_eq!(records(&outcome), 2000);
    let read = run_next(Workload::ReadSeq);
    assert_eq!(read.measured.counts.operations, 2000);
}

#[test]
fn the_workloads_of_ycsb_run_one_after_the_other() {
    use Workload as W;
    let folder = tempfile::tempdir().unwrap();
    let settings = |workload| Settings {
        threads: 2,
        ..small(workload)
    };
    let run_next = |workload| run_in(&SiltstoneDriver, folder.path(), &settings(workload));
    assert_eq!(run_next(W::YcsbLoad).records, Some(2000));
    let mut records = 2000;
    for (workload, expected) in [
        (W::YcsbA, vec![Kind::Get, Kind::Update]),
        (W::YcsbB, vec![Kind::Get, Kind::Update]),
        (W::YcsbC, vec![Kind::Get]),
        (W::YcsbF, vec![Kind::Get, Kind::ReadModifyWrite]),
        (W::YcsbD, vec![Kind::Get, Kind::Insert]),
        (W::YcsbE, vec![Kind::Seek, Kind::Insert]),
    ] {
        let outcome = run_next(workload);
        assert_eq!(kinds(&outcome), expected, "{workload}");
        assert_eq!(outcome.measured.counts.operations, 1500, "{workload}");
        let inserts = outcome.measured.latency.get(&Kind::Insert);
        records += inserts.map_or(0, |latencies| latencies.count());
        assert_eq!(outcome.records, Some(records), "{workload}");
    }
}

#[test]
fn a_queue_keeps_its_length() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        records: 300,
        threads: 3,
        ..small(Workload::Queue)
    };
    let outcome = run_in(&SiltstoneDriver, folder.path(), &settings);
    assert_eq!(kinds(&outcome), [Kind::Put, Kind::Delete]);
    assert!(
        (300..=303).contains(&records(&outcome)),
        "{}",
        records(&outcome)
    );
}

#[test]
fn an_open_loop_counts_from_the_intended_start() {
    let folder = tempfile::tempdir().unwrap();
    let settings = Settings {
        arrival: Arrival::Phases(vec![(0.1, 5000.0), (0.1, 500.0)]),
        amount: Some(Amount::Seconds(0.4)),
        ..small(Workload::Overwrite)
    };
    let driver = SiltstoneDriver;
    run_in(&driver, folder.path(), &small(Workload::FillSeq));
    let outcome = run_in(&driver, folder.path(), &settings);
    // 500 and 50 operations in each of two rounds; a busy machine may do fewer.
    let operations = outcome.measured.counts.operations;
    assert!((100..=1100).contains(&operations), "{operations}");
    let service = &outcome.measured.service[&Kind::Put];
    assert_eq!(service.count(), operations);
}

#[test]
fn all_values_keys_and_caches_can_be_chosen() {
    let folder = tempfile::tempdir().unwrap();
    let settings = |workload| Settings {
        key_bytes: 24,
        value_bytes: ValueBytes::Pareto(512),
        compression_ratio: 0.5,
        threads: 2,
        cache: Cache::Cold,
        distribution: match workload {
            Workload::ReadRandom => Some(Distribution::Hotspot(0.2, 0.8)),
            _ => None,
        },
        ..small(workload)
    };
    for workload in [
        Workload::FillSeq,
        Workload::ReadRandom,
        Workload::ReadSeq,
        Workload::SeekRandom,
    ] {
        run_in(&SiltstoneDriver, folder.path(), &settings(workload));
    }
}

#[test]
fn a_store_that_is_not_known_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |settings: &Settings| {
        let control = Control::default();
        let result = run(&SiltstoneDriver, folder.path(), settings, &control, &|_| {});
        result.map(|_| ()).unwrap_err().to_string()
    };
    let text = refused(&small(Workload::ReadRandom));
    assert!(
        text.contains("run fillrandom, fillseq or ycsb-load first"),
        "{text}"
    );
    run_in(&SiltstoneDriver, folder.path(), &small(Workload::FillSeq));
    let other = Settings {
        value_bytes: ValueBytes::Fixed(101),
        ..small(Workload::ReadRandom)
    };
    let text = refused(&other);
    assert!(text.contains("filled with value_bytes = 100"), "{text}");
    let file = folder.path().join("siltstone.population");
    std::fs::write(&file, b"{}\n").unwrap();
    let text = refused(&small(Workload::ReadRandom));
    assert!(text.contains("is damaged; fill the store again"), "{text}");
}

#[test]
fn files_that_no_benchmark_made_are_never_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let precious = folder.path().join("siltstone").join("thesis.tex");
    std::fs::create_dir_all(precious.parent().unwrap()).unwrap();
    std::fs::write(&precious, b"years of work").unwrap();
    let settings = small(Workload::FillSeq);
    let control = Control::default();
    let result = run(
        &SiltstoneDriver,
        folder.path(),
        &settings,
        &control,
        &|_| {},
    );
    let text = result.map(|_| ()).unwrap_err().to_string();
    assert!(text.contains("files that no benchmark made"), "{text}");
    assert!(precious.exists());
}

#[test]
fn an_interrupted_fill_leaves_no_known_store() {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::default();
    let settings = Settings {
        amount: Some(Amount::Seconds(60.0)),
        ..small(Workload::FillRandom)
    };
    let stop_at_once = |progress| {
        if matches!(progress, Progress::Running { .. }) {
            control.stop.store(true, Ordering::Release);
        }
    };
    let result = run(
        &SiltstoneDriver,
        folder.path(),
        &settings,
        &control,
        &stop_at_once,
    );
    assert!(matches!(result, Err(RunError::Interrupted)));
    assert!(!folder.path().join("siltstone.population").exists());
    // The next fill begins anew.
    run_in(&SiltstoneDriver, folder.path(), &small(Workload::FillSeq));
}

#[test]
fn settings_that_an_engine_cannot_do_are_refused_before_the_run() {
    let folder = tempfile::tempdir().unwrap();
    let settings = small(Workload::FillSync);
    let result = run(
        &NullDriver,
        folder.path(),
        &settings,
        &Control::default(),
        &|_| {},
    );
    assert!(matches!(result, Err(RunError::Settings(_))));
}

/// What an engine does wrong.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Lie {
    LosesAPut,
    GivesAnotherValue,
    CutsAValue,
    FindsWhatIsNotThere,
    LeavesOutAnEntry,
    RepeatsAnEntry,
    EndsAScanEarly,
    AnswersTooFewKeys,
    FailsAPut,
}

/// The map in memory, with one wrong answer.
struct Liar(Lie);

struct LyingEngine(Lie, Box<dyn Engine>);

struct LyingSession<'a>(Lie, Box<dyn Session + 'a>, u64);

impl Driver for Liar {
    fn name(&self) -> &str {
        "liar"
    }
    fn version(&self) -> String {
        "1".into()
    }
    fn abilities(&self) -> Abilities {
        NullDriver.abilities()
    }
    fn settings(&self, _settings: &EngineSettings) -> BTreeMap<String, String> {
        BTreeMap::new()
    }
    fn open(&self, folder: &Path, settings: &EngineSettings) -> Result<Box<dyn Engine>> {
        let inner = SiltstoneDriver.open(folder, settings)?;
        Ok(Box::new(LyingEngine(self.0, inner)))
    }
}

impl Engine for LyingEngine {
    fn session(&self) -> Result<Box<dyn Session + '_>> {
        Ok(Box::new(LyingSession(self.0, self.1.session()?, 0)))
    }
    fn wait_until_idle(&self) -> Result<bool> {
        self.1.wait_until_idle()
    }
    fn flush(&self) -> Result<()> {
        self.1.flush()
    }
    fn compact(&self) -> Result<()> {
        self.1.compact()
    }
    fn ingest(&self, next: &mut dyn FnMut(&mut Vec<u8>, &mut Vec<u8>) -> bool) -> Result<()> {
        self.1.ingest(next)
    }
    fn figures(&self) -> Figures {
        self.1.figures()
    }
    fn levels(&self) -> Vec<Level> {
        self.1.levels()
    }
    fn close(self: Box<Self>) -> Result<()> {
        self.1.close()
    }
}

impl LyingSession<'_> {
    /// Whether it is time for the lie.
    fn lies(&mut self, lie: Lie) -> bool {
        self.2 += 1;
        self.0 == lie && self.2 == 100
    }
}

impl Session for LyingSession<'_> {
    fn write(&mut self, writes: &[Write<'_>], sync: bool) -> Result<()> {
        if self.lies(Lie::LosesAPut) {
            return Ok(());
        }
        if self.0 == Lie::FailsAPut && self.2 == 100 {
            return Err(EngineError::new("put", "the disk is on fire"));
        }
        self.1.write(writes, sync)
    }
    fn get(&mut self, key: &[u8], found: &mut dyn FnMut(&[u8])) -> Result<bool> {
        self.2 += 1;
        let (lie, is_time) = (self.0, self.2 == 100);
        if is_time && lie == Lie::FindsWhatIsNotThere {
            found(b"something");
            return Ok(true);
        }
        self.1.get(key, &mut |value| match lie {
            Lie::GivesAnotherValue if is_time => {
                let mut value = value.to_vec();
                let last = value.len() - 1;
                value[last] ^= 1;
                found(&value);
            }
            Lie::CutsAValue if is_time => found(&value[..value.len() - 1]),
            _ => found(value),
        })
    }
    fn multi_get(&mut self, keys: &[&[u8]], answers: &mut Answers<'_>) -> Result<()> {
        let count = keys.len() - usize::from(self.0 == Lie::AnswersTooFewKeys);
        self.1.multi_get(&keys[..count], answers)
    }
    fn scan(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let (lie, mut seen) = (self.0, 0);
        self.1.scan(from, &mut |key, value| {
            seen += 1;
            match lie {
                Lie::LeavesOutAnEntry if seen == 5 => true,
                Lie::EndsAScanEarly if seen == 5 => false,
                Lie::RepeatsAnEntry if seen == 5 => entries(key, value) && entries(key, value),
                _ => entries(key, value),
            }
        })
    }
    fn scan_reverse(&mut self, from: Option<&[u8]>, entries: &mut Entries<'_>) -> Result<()> {
        let (lie, mut seen) = (self.0, 0);
        self.1.scan_reverse(from, &mut |key, value| {
            seen += 1;
            match lie {
                Lie::LeavesOutAnEntry if seen == 5 => true,
                Lie::EndsAScanEarly if seen == 5 => false,
                _ => entries(key, value),
            }
        })
    }
}

/// The error of a workload on a filled store of the liar.
fn caught(lie: Lie, workload: Workload) -> RunError {
    let folder = tempfile::tempdir().unwrap();
    let control = Control::default();
    let fill = run(
        &Liar(lie),
        folder.path(),
        &small(Workload::FillSeq),
        &control,
        &|_| {},
    );
    if let Err(error) = fill {
        return error;
    }
    let result = run(
        &Liar(lie),
        folder.path(),
        &small(workload),
        &Control::default(),
        &|_| {},
    );
    match result {
        Ok(_) => panic!("{workload} did not notice: {lie:?}"),
        Err(error) => error,
    }
}

#[test]
fn a_wrong_answer_ends_the_run() {
    use Workload as W;
    for (lie, workload) in [
        (Lie::LosesAPut, W::ReadSeq),
        (Lie::LosesAPut, W::ReadReverse),
        (Lie::GivesAnotherValue, W::ReadRandom),
        (Lie::CutsAValue, W::ReadRandom),
        (Lie::FindsWhatIsNotThere, W::ReadMissing),
        (Lie::LeavesOutAnEntry, W::ReadSeq),
        (Lie::LeavesOutAnEntry, W::ReadReverse),
        (Lie::LeavesOutAnEntry, W::SeekRandom),
        (Lie::RepeatsAnEntry, W::ReadSeq),
        (Lie::EndsAScanEarly, W::ReadSeq),
        (Lie::EndsAScanEarly, W::ReadReverse),
        (Lie::EndsAScanEarly, W::SeekRandom),
        (Lie::AnswersTooFewKeys, W::MultiReadRandom),
    ] {
        let error = caught(lie, workload);
        let is_caught = matches!(error, RunError::WrongAnswer { .. });
        assert!(is_caught, "{lie:?}, {workload}: {error}");
    }
    let error = caught(Lie::FailsAPut, W::ReadRandom);
    assert!(error.to_string().contains("the disk is on fire"), "{error}");
}

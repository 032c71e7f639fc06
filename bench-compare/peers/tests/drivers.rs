//! Every call of the traits, on every engine: those of this crate and those that the benchmark has
//! itself. A test of a call that an engine does not have checks that the engine says so.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Command, Stdio};

use siltstone_bench::engine::{
    Driver, Engine, Promise, SETTINGS_ERROR, Session, SiltstoneDriver, ThreadClass, Write,
};
use siltstone_bench::settings::{Compression, EngineSettings};

type Map = BTreeMap<Vec<u8>, Vec<u8>>;

/// Settings that make small stores flush and compact.
fn small() -> EngineSettings {
    EngineSettings {
        memtable_bytes: 1 << 20,
        cache_bytes: 1 << 20,
        ..EngineSettings::default()
    }
}

/// A key of 16 bytes, whose order is that of `number`.
fn key(number: u64) -> Vec<u8> {
    format!("key-{number:012}").into_bytes()
}

/// A value of 100 bytes that does not compress well.
fn value(number: u64, round: u64) -> Vec<u8> {
    let mut state = number * 1000 + round + 1;
    (0..100)
        .map(|_| {
            state = state
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (state >> 56) as u8
        })
        .collect()
}

fn open(driver: &dyn Driver, folder: &Path) -> Box<dyn Engine> {
    driver
        .open(&folder.join("store"), &small())
        .expect("it opens")
}

fn get(session: &mut dyn Session, key: &[u8]) -> Option<Vec<u8>> {
    let mut values = Vec::new();
    let is_found = session
        .get(key, &mut |value| values.push(value.to_vec()))
        .expect("get");
    assert_eq!(values.len(), usize::from(is_found));
    values.pop()
}

fn scan(session: &mut dyn Session, from: Option<&[u8]>, count: usize) -> Vec<(Vec<u8>, Vec<u8>)> {
    let mut found = Vec::new();
    let mut entries = |key: &[u8], value: &[u8]| {
        found.push((key.to_vec(), value.to_vec()));
        found.len() < count
    };
    session.scan(from, &mut entries).expect("scan");
    found
}

fn scan_reverse(session: &mut dyn Session, from: Option<&[u8]>, count: usize) -> Vec<Vec<u8>> {
    let mut found = Vec::new();
    let mut entries = |key: &[u8], _: &[u8]| {
        found.push(key.to_vec());
        found.len() < count
    };
    session
        .scan_reverse(from, &mut entries)
        .expect("scan_reverse");
    found
}

/// Checks all entries of a store against the map, by scans, gets and reads of many keys.
fn check(session: &mut dyn Session, expected: &Map) {
    let all: Vec<_> = expected.clone().into_iter().collect();
    assert_eq!(scan(session, None, usize::MAX), all);
    let reversed: Vec<_> = expected.keys().rev().cloned().collect();
    assert_eq!(scan_reverse(session, None, usize::MAX), reversed);
    let keys: Vec<Vec<u8>> = (0..3000).map(|number| key(number * 37 % 30_000)).collect();
    for asked in &keys {
        assert_eq!(get(session, asked).as_ref(), expected.get(asked));
    }
    let slices: Vec<&[u8]> = keys.iter().map(Vec::as_slice).collect();
    let mut answers = vec![None; keys.len()];
    session
        .multi_get(&slices, &mut |index, value| {
            assert!(answers[index].replace(value.map(<[u8]>::to_vec)).is_none());
        })
        .expect("multi_get");
    for (asked, answer) in keys.iter().zip(answers) {
        assert_eq!(
            answer.expect("an answer for each key").as_ref(),
            expected.get(asked)
        );
    }
}

/// Writes 20,000 entries three times in a mixed order, and deletes every seventh.
fn fill(session: &mut dyn Session, expected: &mut Map) {
    for round in 0..3 {
        for number in 0..20_000 {
            let number = number * 7919 % 20_000;
            session
                .put(&key(number), &value(number, round), false)
                .expect("put");
            expected.insert(key(number), value(number, round));
        }
    }
    for number in (0..20_000).step_by(7) {
        session.delete(&key(number), false).expect("delete");
        expected.remove(&key(number));
    }
}

fn names_itself_and_its_settings(driver: &dyn Driver) {
    assert!(!driver.name().is_empty());
    let version = driver.version();
    assert!(
        version.starts_with(|c: char| c.is_ascii_digit()),
        "{version}"
    );
    let settings = driver.settings(&small());
    assert!(
        !settings.is_empty() && !settings.contains_key(SETTINGS_ERROR),
        "{settings:?}"
    );
    assert_eq!(driver.thread_class("main"), ThreadClass::Foreground);
}

fn refuses_a_setting_that_it_does_not_have(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let mut settings = small();
    settings.own.insert("no_such_setting".into(), "1".into());
    let error = driver
        .open(&folder.path().join("store"), &settings)
        .err()
        .expect("it is refused");
    assert!(error.to_string().contains("no_such_setting"), "{error}");
}

fn puts_gets_and_deletes(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(driver, folder.path());
    let mut session = engine.session().unwrap();
    assert_eq!(get(&mut *session, b"a"), None);
    session.put(b"a", b"1", false).unwrap();
    session.put(b"a", b"2", false).unwrap();
    assert_eq!(get(&mut *session, b"a"), Some(b"2".to_vec()));
    session.put(b"empty", b"", false).unwrap();
    assert_eq!(get(&mut *session, b"empty"), Some(Vec::new()));
    session.delete(b"a", false).unwrap();
    session.delete(b"never written", false).unwrap();
    assert_eq!(get(&mut *session, b"a"), None);
    if driver.abilities().sync {
        session.put(b"synced", b"3", true).unwrap();
        session.put(b"not synced", b"4", false).unwrap();
        session.delete(b"empty", true).unwrap();
        let batch = [Write::Put(b"x", b"5"), Write::Delete(b"not synced")];
        session.write(&batch, true).unwrap();
        assert_eq!(get(&mut *session, b"synced"), Some(b"3".to_vec()));
        assert_eq!(get(&mut *session, b"x"), Some(b"5".to_vec()));
        assert_eq!(get(&mut *session, b"not synced"), None);
    }
    drop(session);
    engine.close().unwrap();
}

fn writes_batches_in_their_order(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(driver, folder.path());
    let mut session = engine.session().unwrap();
    let keys: Vec<_> = (0..1000).map(key).collect();
    let puts: Vec<_> = keys.iter().map(|key| Write::Put(key, key)).collect();
    session.write(&puts, false).unwrap();
    session.write(&[], false).unwrap();
    let deletes: Vec<_> = keys[..990].iter().map(|key| Write::Delete(key)).collect();
    session.write(&deletes, false).unwrap();
    let expected: Vec<_> = keys[990..]
        .iter()
        .map(|key| (key.clone(), key.clone()))
        .collect();
    assert_eq!(scan(&mut *session, None, usize::MAX), expected);
}

fn scans_from_a_key_in_both_directions(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(driver, folder.path());
    let mut session = engine.session().unwrap();
    assert_eq!(scan(&mut *session, None, 1), []);
    assert_eq!(
        scan_reverse(&mut *session, Some(b"k"), 1),
        Vec::<Vec<u8>>::new()
    );
    for number in 0..100 {
        session.put(&key(number * 2), &key(number), false).unwrap();
    }
    let keys = |found: Vec<(Vec<u8>, _)>| found.into_iter().map(|(key, _)| key).collect::<Vec<_>>();
    let forward = |from: &[u8], session: &mut dyn Session| keys(scan(session, Some(from), 2));
    let session = &mut *session;
    assert_eq!(forward(&key(10), session), [key(10), key(12)]);
    assert_eq!(forward(&key(11), session), [key(12), key(14)]);
    assert_eq!(forward(b"", session), [key(0), key(2)]);
    assert_eq!(forward(&key(198), session), [key(198)]);
    assert_eq!(forward(&key(199), session), Vec::<Vec<u8>>::new());
    assert_eq!(scan_reverse(session, Some(&key(10)), 2), [key(10), key(8)]);
    assert_eq!(scan_reverse(session, Some(&key(11)), 2), [key(10), key(8)]);
    assert_eq!(scan_reverse(session, Some(&key(0)), 2), [key(0)]);
    assert_eq!(
        scan_reverse(session, Some(&key(500)), 2),
        [key(198), key(196)]
    );
    assert_eq!(scan_reverse(session, Some(b"a"), 2), Vec::<Vec<u8>>::new());
    assert_eq!(scan_reverse(session, Some(b""), 2), Vec::<Vec<u8>>::new());
}

fn keeps_entries_through_flushes_compactions_and_reopening(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Map::new();
    let engine = open(driver, folder.path());
    let mut session = engine.session().unwrap();
    fill(&mut *session, &mut expected);
    check(&mut *session, &expected);
    engine.flush().unwrap();
    engine.wait_until_idle().unwrap();
    check(&mut *session, &expected);
    assert_eq!(engine.compact().is_ok(), driver.abilities().compact);
    check(&mut *session, &expected);
    session.put(b"after", b"1", false).unwrap();
    expected.insert(b"after".into(), b"1".into());
    drop(session);
    engine.close().unwrap();
    if driver.abilities().unsynced != Promise::Memory {
        let engine = open(driver, folder.path());
        check(&mut *engine.session().unwrap(), &expected);
        engine.close().unwrap();
    }
}

fn ingests_sorted_entries(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let mut expected = Map::new();
    let engine = open(driver, folder.path());
    for (first, step) in [(0, 2), (20_000, 1), (1, 2)] {
        let mut numbers = (first..first + 10_000).step_by(step);
        let mut next = |k: &mut Vec<u8>, v: &mut Vec<u8>| {
            let Some(number) = numbers.next() else {
                return false;
            };
            (*k, *v) = (key(number), value(number, 0));
            expected.insert(k.clone(), v.clone());
            true
        };
        let result = engine.ingest(&mut next);
        assert_eq!(result.is_ok(), driver.abilities().ingest, "{result:?}");
    }
    let nothing = engine.ingest(&mut |_, _| false);
    assert_eq!(nothing.is_ok(), driver.abilities().ingest, "{nothing:?}");
    check(&mut *engine.session().unwrap(), &expected);
    engine.close().unwrap();
    let names: Vec<_> = std::fs::read_dir(folder.path())
        .unwrap()
        .flatten()
        .collect();
    assert!(
        names.len() <= 1,
        "nothing is left beside the store: {names:?}"
    );
}

/// The bytes that an engine says it wrote must be near those that were put, or more.
fn figures_and_levels_are_plausible(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(driver, folder.path());
    let mut session = engine.session().unwrap();
    fill(&mut *session, &mut Map::new());
    engine.flush().unwrap();
    if driver.abilities().compact {
        engine.compact().unwrap();
    }
    engine.wait_until_idle().unwrap();
    let figures = engine.figures();
    let levels = engine.levels();
    println!("{}: {figures:#?} {levels:?}", driver.name());
    let put_bytes = 60_000 * 116;
    for bytes in [figures.flush_bytes, figures.compaction_bytes]
        .into_iter()
        .flatten()
    {
        assert!(
            (put_bytes / 4..put_bytes * 20).contains(&bytes),
            "{figures:?}"
        );
    }
    for seconds in [figures.flush_cpu_s, figures.compaction_cpu_s]
        .into_iter()
        .flatten()
    {
        assert!(seconds > 0.0 && seconds < 60.0, "{figures:?}");
    }
    if !levels.is_empty() {
        let bytes: u64 = levels.iter().map(|level| level.bytes).sum();
        assert!((1_500_000..4_000_000).contains(&bytes), "{levels:?}");
        assert!(
            levels.iter().all(|level| level.runs <= level.tables),
            "{levels:?}"
        );
        assert!(
            levels
                .iter()
                .all(|level| level.level == 0 || level.runs <= 1),
            "{levels:?}"
        );
    }
}

fn several_threads_write_and_read(driver: &dyn Driver) {
    let folder = tempfile::tempdir().unwrap();
    let engine = open(driver, folder.path());
    let engine = &*engine;
    std::thread::scope(|scope| {
        for thread in 0..4 {
            scope.spawn(move || {
                let mut session = engine.session().unwrap();
                for number in (0..8000).map(|number| number * 4 + thread) {
                    session.put(&key(number), &value(number, 0), false).unwrap();
                    assert_eq!(get(&mut *session, &key(number)), Some(value(number, 0)));
                }
            });
        }
    });
    let found = scan(&mut *engine.session().unwrap(), None, usize::MAX);
    let expected: Vec<_> = (0..32_000)
        .map(|number| (key(number), value(number, 0)))
        .collect();
    assert_eq!(found, expected);
}

/// A process writes until it is killed. What it said to have written must be there.
fn unsynced_writes_survive_a_kill(driver: &dyn Driver) {
    if driver.abilities().unsynced == Promise::Memory {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "writes_until_it_is_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(ENGINE, driver.name())
        .env(FOLDER, folder.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap())
        .lines()
        .map_while(|line| line.ok());
    let said = lines.find(|line| line == "written 20000");
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(said.is_some(), "the process ended before it was killed");
    let engine = open(driver, folder.path());
    let found = scan(&mut *engine.session().unwrap(), None, usize::MAX);
    assert!(
        found.len() >= 20_000,
        "{} of 20000 writes are left",
        found.len()
    );
    for (number, entry) in (0..).zip(found) {
        assert_eq!(entry, (key(number), value(number, 0)));
    }
}

const ENGINE: &str = "BENCH_PEERS_ENGINE";
const FOLDER: &str = "BENCH_PEERS_FOLDER";

/// The process that [`unsynced_writes_survive_a_kill`] kills.
#[test]
#[ignore = "a part of another test, which starts it as a process"]
fn writes_until_it_is_killed() {
    let (Ok(name), Ok(folder)) = (std::env::var(ENGINE), std::env::var(FOLDER)) else {
        return;
    };
    let mut drivers = bench_peers::drivers();
    drivers.push(Box::new(SiltstoneDriver));
    let driver = drivers.iter().find(|driver| driver.name() == name).unwrap();
    let engine = open(&**driver, Path::new(&folder));
    let mut session = engine.session().unwrap();
    println!();
    for number in 0..10_000_000 {
        session.put(&key(number), &value(number, 0), false).unwrap();
        if (number + 1) % 1000 == 0 {
            println!("written {}", number + 1);
        }
    }
}

/// Whether the engine has the codec. The sorted map in memory has no blocks, so it takes any.
fn has_codec(driver: &dyn Driver, codec: Compression) -> bool {
    match (driver.name(), codec) {
        (_, Compression::None) => true,
        ("leveldb" | "lmdb", _) => false,
        ("fjall", codec) => codec != Compression::Zstd,
        _ => true,
    }
}

fn opens_without_filter_with_each_codec_that_it_has_and_refuses_the_others(driver: &dyn Driver) {
    for &compression in Compression::ALL {
        let folder = tempfile::tempdir().unwrap();
        let settings = EngineSettings {
            compression,
            bloom_bits: 0,
            mmap_reads: Some(true),
            background_threads: 1,
            ..small()
        };
        let opened = driver.open(&folder.path().join("store"), &settings);
        if !has_codec(driver, compression) {
            let error = opened.err().expect("it is refused");
            let expected = format!("has no {compression};");
            assert!(error.message.contains(&expected), "{error}");
            let named = driver.settings(&settings);
            let refusal = BTreeMap::from([(SETTINGS_ERROR.to_string(), error.message)]);
            assert_eq!(named, refusal, "the record claims no other codec");
            continue;
        }
        let engine = opened.unwrap();
        let mut session = engine.session().unwrap();
        let mut expected = Map::new();
        fill(&mut *session, &mut expected);
        engine.flush().unwrap();
        check(&mut *session, &expected);
    }
}

macro_rules! suite {
    ($($engine:ident: $driver:expr;)*) => {
        $(mod $engine {
            suite!(@tests $driver;
                names_itself_and_its_settings
                puts_gets_and_deletes
                writes_batches_in_their_order
                scans_from_a_key_in_both_directions
                keeps_entries_through_flushes_compactions_and_reopening
                ingests_sorted_entries
                figures_and_levels_are_plausible
                several_threads_write_and_read
                unsynced_writes_survive_a_kill
                opens_without_filter_with_each_codec_that_it_has_and_refuses_the_others
            );
        })*
    };
    (@tests $driver:expr; $($test:ident)*) => {
        $(#[test]
        fn $test() {
            super::$test(&$driver);
        })*
    };
}

suite! {
    null: siltstone_bench::engine::NullDriver;
    siltstone: siltstone_bench::engine::SiltstoneDriver;
}

#[cfg(feature = "rocksdb")]
suite!(rocksdb: bench_peers::RocksDbDriver;);
#[cfg(feature = "leveldb")]
suite!(leveldb: bench_peers::LevelDbDriver;);
#[cfg(feature = "lmdb")]
suite!(lmdb: bench_peers::LmdbDriver;);
#[cfg(feature = "fjall")]
suite!(fjall: bench_peers::FjallDriver;);

#[test]
fn unknown_settings_are_refused() {
    refuses_a_setting_that_it_does_not_have(&SiltstoneDriver);
    for driver in bench_peers::drivers() {
        refuses_a_setting_that_it_does_not_have(&*driver);
    }
}

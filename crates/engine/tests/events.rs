//! Every kind of event is emitted, and a listener that is slow, closes the store or panics does no
//! harm.
// A listener is the user's code: it has std's locks, under which no hand-over happens.
#![allow(clippy::disallowed_methods, clippy::disallowed_types)]

mod common;

use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use common::{Disk, key, put_synced, small};
use siltstone::stall::StallCause;
use siltstone::{
    Components, ErrorKind, Event, EventListener, IngestMode, IterOptions, KeyspaceOptions, Options,
    Store, TableFolder, Value,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{Condvar, Epoch, MemoryStorage, OpKind, Runtime, StorageErrorKind};

/// Plays a story on the simulated runtime with a few seeds.
fn play(story: fn(Runtime)) {
    for seed in 0..4 {
        let config = SimConfig {
            stack_bytes: 1 << 20,
            max_steps: 3_000_000,
            ..SimConfig::new(seed)
        };
        if let Err(failure) = sim::run(config, story).result {
            panic!("seed {seed}: {failure}");
        }
    }
}

fn open(disk: &Disk, options: Options, listener: Arc<dyn EventListener>) -> Store {
    let components = Components {
        listener: Some(listener),
        ..Components::on(Arc::new(disk.faults.clone()), disk.rt.clone())
    };
    Store::open_with(components, options).unwrap()
}

/// Keeps all events.
#[derive(Default)]
struct Recorder(Mutex<Vec<Event>>);

impl EventListener for Recorder {
    fn on_event(&self, event: &Event) {
        self.0.lock().unwrap().push(event.clone());
    }
}

impl Recorder {
    fn heard(&self) -> MutexGuard<'_, Vec<Event>> {
        self.0.lock().unwrap()
    }

    /// The events since the last call.
    fn take(&self, rt: &Runtime) -> Vec<Event> {
        rt.sleep(Duration::from_secs(1));
        std::mem::take(&mut self.heard())
    }
}

/// One element for each event that matches the pattern.
macro_rules! of {
    ($events:expr, $pattern:pat $(if $guard:expr)? => $value:expr) => {
        $events
            .iter()
            .filter_map(|event| match event {
                $pattern $(if $guard)? => Some($value),
                _ => None,
            })
            .collect::<Vec<_>>()
    };
}

/// After a kill one record of the log is damaged, and the whole records behind it are discarded,
/// with an event. A log that is whole, or only ends in a torn record, causes no event.
#[test]
fn records_that_an_open_discards_are_named() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(small());
        let ks = store.default_keyspace().unwrap();
        for i in 0..10 {
            ks.put(&key(i), &[7; 100]).unwrap();
        }
        let log = disk.names(".log").remove(0);
        let open_with = |change: &dyn Fn(&mut Vec<u8>)| {
            let killed = disk.kill();
            killed.memory.damage(&log, |bytes| change(bytes)).unwrap();
            let recorder = Arc::new(Recorder::default());
            let store = open(&killed, small(), recorder.clone());
            let events = recorder.take(&rt);
            let bytes = store.stats().counter("discarded_log_bytes");
            let found = of!(events,
                Event::LogRecordsDiscarded { file, offset_bytes, record_count, record_bytes, .. }
                => (file.clone(), *offset_bytes, *record_count, *record_bytes));
            assert_eq!(found.iter().map(|f| f.3).sum::<u64>(), bytes);
            let left = store.default_keyspace().unwrap().iter().unwrap().count();
            (found, left as u64)
        };
        assert_eq!(open_with(&|_| {}), (Vec::new(), 10));
        let (found, left) = open_with(&|bytes| bytes[700] ^= 1);
        assert_eq!(found.len(), 1);
        let (file, offset, count, _) = &found[0];
        assert_eq!((file, left + 1 + count), (&log, 10), "{found:?}");
        assert!(*offset <= 700 && *count > 0, "{found:?}");
        store.close().unwrap();
    });
}

#[test]
fn work_on_tables_emits_events() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let recorder = Arc::new(Recorder::default());
        let store = open(&disk, small(), recorder.clone());
        assert!(recorder.take(&rt).is_empty(), "nothing has happened");
        let ks = store.create_keyspace("a").unwrap();
        let events = recorder.take(&rt);
        let created = of!(events, Event::KeyspaceCreated { name, id, .. } => (&name[..], *id));
        assert_eq!((created, events.len()), (vec![("a", ks.id())], 1));

        for round in 0..2u8 {
            for i in 0..500 {
                ks.put(&key(i), &[round; 100]).unwrap();
            }
            store.flush().unwrap();
        }
        store.wait_until_idle().unwrap();
        let events = recorder.take(&rt);
        let flushes = of!(
        events,
        Event::Flushed {
            keyspace, in_bytes, out_bytes, table_count, executor, side, ..
        } => {
            assert_eq!([&executor[..], side], ["cpu", "host"]);
            (&keyspace[..], *in_bytes > 500 * 100, *out_bytes > 0, *table_count)
        });
        assert_eq!(flushes, [("a", true, true, 1); 2], "{events:?}");
        let elsewhere = of!(events, Event::JobPlaced { .. } => ());
        assert!(elsewhere.is_empty(), "there is only the host: {events:?}");
        let tables = of!(
            events,
            Event::TableCreated {
                keyspace, name, level: 0, entry_count: 500, file_bytes, ..
            }
            => (keyspace == "a" && *file_bytes > 0).then(|| name.clone()).unwrap());
        assert_eq!(tables.len(), 2);

        ks.compact_range(None, None).unwrap();
        store.wait_until_idle().unwrap();
        let events = recorder.take(&rt);
        let merged = of!(
            events,
            Event::Compacted {
                keyspace, from_level, to_level, in_table_count, in_bytes, out_bytes, reason,
                executor, side, ..
            }
        if *out_bytes > 0 => {
            assert!(keyspace == "a" && out_bytes < in_bytes && !reason.is_empty());
            assert_eq!([&executor[..], side], ["cpu", "host"]);
            (*from_level, *to_level > 0, *in_table_count)
        });
        assert_eq!(merged[0], (0, true, 2), "{events:?}");
        let mut deleted = of!(events, Event::TableDeleted { name, .. } => name.clone());
        let made =
            of!(events, Event::TableCreated { level, name, .. } => (*level > 0, name.clone()));
        deleted.retain(|name| tables.contains(name));
        assert_eq!(deleted.len(), 2, "both inputs went: {events:?}");
        assert!(!made.is_empty() && made.iter().all(|(below, _)| *below));
        for (_, name) in &made {
            let gone = of!(events, Event::TableDeleted { name: gone, .. } => gone).contains(&name);
            assert_ne!(gone, disk.names(".tbl").contains(name), "{name}");
        }

        // A job fails once and runs again.
        disk.faults
            .add(Rule::on(OpKind::Create, Fault::Fail(StorageErrorKind::Io)).named("00000001-"));
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
        let events = recorder.take(&rt);
        let failed = of!(events, Event::JobFailed { error, .. } => error.kind());
        assert_eq!(failed, [ErrorKind::Io], "{events:?}");

        let outside = MemoryStorage::new(&rt);
        let folder = TableFolder::on(Arc::new(outside), Epoch::default());
        let built = ks.export(IterOptions::default(), &folder, "x").unwrap();
        let other = store.create_keyspace("b").unwrap();
        let files = built.iter().map(|t| t.file.clone()).collect();
        let report = store.ingest(&[(&other, files)], IngestMode::Copy).unwrap();
        let events = recorder.take(&rt);
        let ingested = of!(events, Event::Ingested { keyspaces, number, table_count, .. } =>
            (keyspaces.clone(), *number, *table_count));
        assert_eq!(
            ingested,
            [(vec!["b".to_string()], report.number, report.table_count)]
        );
        let made = of!(events, Event::TableCreated { keyspace, level: 0, .. } => keyspace == "b");
        assert_eq!(made.len() as u64, report.table_count);

        let target = Arc::new(MemoryStorage::new(&rt));
        let report = store.checkpoint_to(target).unwrap();
        store.drop_keyspace("b").unwrap();
        let events = recorder.take(&rt);
        let checkpoints =
            of!(events, Event::Checkpointed { report, folder, .. } => (*report, folder.is_empty()));
        assert_eq!(checkpoints, [(report, false)]);
        let dropped = of!(events, Event::KeyspaceDropped { name, id, .. } => (&name[..], *id));
        assert_eq!(dropped, [("b", other.id())]);
        store.close().unwrap();
    });
}

#[test]
fn changes_of_options_emit_events() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let recorder = Arc::new(Recorder::default());
        let store = open(&disk, small(), recorder.clone());
        let ks = store.create_keyspace("a").unwrap();
        recorder.take(&rt);
        store.set_option("subjobs_max", 3u64).unwrap();
        // This is not a change.
        store.set_option("subjobs_max", 3u64).unwrap();
        assert!(store.set_option("subjobs_max", 0u64).is_err());
        let own = KeyspaceOptions {
            memtable_bytes: Some(128 << 10),
            l0_stop_count: Some(99),
            ..KeyspaceOptions::default()
        };
        ks.set_options(&own).unwrap();
        let events = recorder.take(&rt);
        let changed = of!(events, Event::OptionChanged { keyspace, name, value, .. } =>
            (keyspace.as_deref(), *name, value.clone()));
        let number = |n: u64| Some(Value::Number(n));
        assert_eq!(
            changed,
            [
                (None, "subjobs_max", number(3)),
                (Some("a"), "memtable_bytes", number(128 << 10)),
                (Some("a"), "l0_stop_count", number(99)),
            ]
        );
        assert_eq!(events.len(), 3);
        store.close().unwrap();
    });
}

#[test]
fn stalls_a_full_disk_and_poison_emit_events() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let recorder = Arc::new(Recorder::default());
        let options = Options {
            memtable_bytes: 64 << 10,
            sealed_memtables_max: 1,
            ..small()
        };
        let store = open(&disk, options, recorder.clone());
        let ks = store.default_keyspace().unwrap();
        // Flushes take some time, so that writers wait for them in every schedule.
        let slow = Fault::Delay(Duration::from_millis(20));
        disk.faults
            .add(Rule::on(OpKind::Create, slow).ending(".tbl").times(4));
        for i in 0..400 {
            ks.put(&key(i), &[1; 1000]).unwrap();
        }
        let events = recorder.take(&rt);
        let began = of!(
            events,
            Event::StallBegan {
                keyspace, cause: StallCause::SealedMemtables, load, limit: 1, ..
            }
            => assert!(keyspace == "default" && load.sealed_memtable_count >= 1));
        let ended = of!(events, Event::StallEnded { cause: StallCause::SealedMemtables, .. } => ());
        let total = store.stats().delay_totals[StallCause::SealedMemtables as usize].1;
        assert!(!began.is_empty(), "{events:?}");
        assert_eq!(
            (began.len(), ended.len()),
            (ended.len(), total.count as usize)
        );

        disk.memory.set_capacity(Some(0));
        let refused = (0..2000).find_map(|i| ks.put(&key(i), &[2; 1000]).err());
        assert_eq!(refused.unwrap().kind(), ErrorKind::NoSpace);
        // A call that finds a little room does not end the condition.
        for _ in 0..50 {
            rt.sleep(Duration::from_millis(100));
            let _ = ks.put(b"k", &[2; 1000]);
        }
        let mut events = recorder.take(&rt);
        disk.memory.set_capacity(None);
        rt.sleep(Duration::from_secs(5));
        put_synced(&ks, b"k", b"v");
        events.extend(recorder.take(&rt));
        let mut conditions =
            of!(events, Event::NoSpace { error, .. } => error.kind() == ErrorKind::NoSpace);
        assert!(!conditions.is_empty() && conditions.iter().all(|no_space| *no_space));
        // One event for each time, however many calls fail, and each time its end.
        let all = events.iter().filter_map(|event| match event {
            Event::NoSpace { .. } => Some(true),
            Event::SpaceAvailable => Some(false),
            _ => None,
        });
        conditions.clear();
        for no_space in all {
            assert_ne!(conditions.last().copied().unwrap_or(false), no_space);
            conditions.push(no_space);
        }
        assert_eq!(conditions, [true, false]);

        disk.faults
            .add(Rule::on(OpKind::Sync, Fault::Fail(StorageErrorKind::Io)).named(common::LOG));
        ks.put(b"x", b"y").unwrap();
        assert_eq!(store.sync_log().unwrap_err().kind(), ErrorKind::Poisoned);
        assert!(store.sync_log().is_err());
        let events = recorder.take(&rt);
        let causes = of!(events, Event::Poisoned { error, .. } => error.to_string());
        assert_eq!(causes.len(), 1, "{causes:?}");
        assert_eq!(store.stats().counter("event_lost_count"), 0);
        assert!(store.close().is_err());
    });
}

/// Stays in its first call until it is released.
struct Slow {
    let_go: siltstone_storage::Mutex<bool>,
    changed: Condvar,
    heard: Mutex<u64>,
}

impl EventListener for Slow {
    fn on_event(&self, _: &Event) {
        *self.heard.lock().unwrap() += 1;
        let mut let_go = self.let_go.lock();
        while !*let_go {
            let_go = self.changed.wait(let_go);
        }
    }
}

#[test]
fn a_slow_listener_loses_events_and_delays_nobody() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let slow = Arc::new(Slow {
            let_go: rt.mutex(false),
            changed: rt.condvar(),
            heard: Mutex::new(0),
        });
        let store = open(&disk, small(), slow.clone());
        let ks = store.default_keyspace().unwrap();
        for i in 0..1500u64 {
            store.set_option("subjobs_max", 1 + i % 2).unwrap();
        }
        ks.put(b"k", b"v").unwrap();
        store.flush().unwrap();
        // 1024 events are queued, and one is being delivered.
        let lost = store.stats().counter("event_lost_count");
        assert!((1500 - 1026..1510).contains(&lost), "{lost}");
        assert_eq!(ks.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        // The listener is still in its first call.
        store.close().unwrap();
        assert!(disk.try_open(small()).is_ok(), "the lease is free");
        assert_eq!(*slow.heard.lock().unwrap(), 1);
        *slow.let_go.lock() = true;
        slow.changed.notify_all();
        rt.sleep(Duration::from_secs(1));
        assert_eq!(
            *slow.heard.lock().unwrap(),
            1025,
            "queued events are still delivered"
        );
    });
}

/// Closes the store at the first flush.
#[derive(Default)]
struct Closing {
    store: Mutex<Option<Store>>,
    closed: Mutex<Option<siltstone::Result<()>>>,
}

impl EventListener for Closing {
    fn on_event(&self, event: &Event) {
        if !matches!(event, Event::Flushed { .. }) {
            return;
        }
        let store = self.store.lock().unwrap().take();
        if let Some(store) = store {
            let closed = store.close();
            *self.closed.lock().unwrap() = Some(closed);
        }
    }
}

#[test]
fn a_listener_may_close_the_store() {
    play(|rt| {
        let disk = Disk::new(&rt);
        let closing = Arc::new(Closing::default());
        let store = open(&disk, small(), closing.clone());
        *closing.store.lock().unwrap() = Some(store.clone());
        let ks = store.default_keyspace().unwrap();
        put_synced(&ks, b"k", b"v");
        // The store is closed before or after this call returns.
        let _ = store.flush();
        rt.sleep(Duration::from_secs(5));
        assert!(matches!(*closing.closed.lock().unwrap(), Some(Ok(()))));
        assert_eq!(ks.put(b"k", b"w").unwrap_err().kind(), ErrorKind::Closed);
        drop((ks, store));
        let again = disk.open();
        let ks = again.default_keyspace().unwrap();
        assert_eq!(ks.get(b"k").unwrap().as_deref(), Some(&b"v"[..]));
        again.close().unwrap();
    });
}

/// Panics at once.
struct Panicking;

impl EventListener for Panicking {
    fn on_event(&self, _: &Event) {
        panic!("a listener's own mistake, wanted by the test");
    }
}

#[test]
fn a_listener_that_panics_receives_no_more_events() {
    let rt = Runtime::threads();
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open_with_listener(folder.path(), small(), Arc::new(Panicking)).unwrap();
    let ks = store.create_keyspace("a").unwrap();
    for i in 0..100 {
        ks.put(&key(i), b"v").unwrap();
        store.flush().unwrap();
    }
    rt.sleep(Duration::from_millis(1));
    assert_eq!(store.stats().health, "good");
    store.close().unwrap();
    Store::open(folder.path(), small())
        .unwrap()
        .close()
        .unwrap();
}

#[test]
fn without_a_listener_nothing_is_lost() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path(), small()).unwrap();
    store.create_keyspace("a").unwrap();
    store.flush().unwrap();
    assert_eq!(store.stats().counter("event_lost_count"), 0);
    store.close().unwrap();
}

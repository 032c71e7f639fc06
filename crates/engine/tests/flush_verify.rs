//! A flush is read back and compared with its memtable before the log may drop the entries
//! (`flush_verify`).

mod common;

use std::sync::Arc;

use common::{Disk, key, simulate, small};
use siltstone::{Components, ErrorKind, FlushVerify, Keyspace, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{OpKind, ReadFile, Runtime, Storage};
use siltstone_table::error::TableError;
use siltstone_table::exec::{
    CpuExecutor, EntryStream, ExecContext, ExecError, Executor, Inputs, Side, StreamEntry,
    StreamSource,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{Job, KeyBounds};
use siltstone_table::retain::RangeDelete;

fn options(flush_verify: FlushVerify) -> Options {
    Options {
        flush_verify,
        ..small()
    }
}

const PAIRS: u64 = 200;

fn fill(keyspace: &Keyspace) {
    for i in 0..PAIRS {
        keyspace.put(&key(i), &[i as u8; 300]).unwrap();
    }
}

fn check(keyspace: &Keyspace) {
    for i in 0..PAIRS {
        assert_eq!(
            keyspace.get(&key(i)).unwrap(),
            Some(vec![i as u8; 300]),
            "{i}"
        );
    }
}

/// The first byte of a table, in its first value, is read with a flipped bit.
fn flips() -> Rule {
    let fault = Fault::FlipAt { offset: 0, mask: 1 };
    Rule::on(OpKind::Read, fault).ending(".tbl")
}

fn reads(disk: &Disk) -> u64 {
    disk.faults.counts().of(OpKind::Read)
}

/// The number of reads of tables during a flush of what `fill` writes.
fn reads_of_a_flush(rt: &Runtime, flush_verify: FlushVerify) -> u64 {
    let disk = Disk::new(rt);
    let store = disk.open_with(options(flush_verify));
    let keyspace = store.default_keyspace().unwrap();
    fill(&keyspace);
    let before = reads(&disk);
    store.flush().unwrap();
    reads(&disk) - before
}

#[test]
fn the_setting_says_how_much_is_read_back() {
    simulate(|rt| {
        let none = reads_of_a_flush(&rt, FlushVerify::None);
        let sample = reads_of_a_flush(&rt, FlushVerify::Sample);
        let all = reads_of_a_flush(&rt, FlushVerify::All);
        assert_eq!(none, 0, "nothing is to be read back");
        // 60 KB in blocks of 1 KiB are more than 50 blocks, of which a sample has 16, beside the
        // five sections.
        assert!((2..=16 + 6).contains(&sample), "{sample}");
        assert!(all > 50, "{all}");
        assert_eq!(Options::default().flush_verify, FlushVerify::Sample);
    });
}

#[test]
fn a_flush_whose_tables_are_not_what_was_written_runs_again() {
    simulate(|rt| {
        for how in [FlushVerify::Sample, FlushVerify::All] {
            let disk = Disk::new(&rt);
            let store = disk.open_with(options(how));
            let keyspace = store.default_keyspace().unwrap();
            fill(&keyspace);
            // Four sections and the first block, and the footer in the next attempt.
            disk.faults.add(flips().times(6));
            store.flush().unwrap();
            let stats = store.stats();
            assert_eq!(stats.counter("job_rejected_count"), 1);
            assert_eq!(stats.counter("job_failed_count"), 1);
            let error = stats.last_job_error.unwrap().to_string();
            assert!(error.contains("rejected"), "{error}");
            assert_eq!(disk.names(".tbl").len(), 1, "the rejected table is deleted");
            check(&keyspace);
            store.close().unwrap();
            let again = disk.open();
            check(&again.default_keyspace().unwrap());
        }
    });
}

#[test]
fn a_keyspace_that_cannot_be_flushed_stops_the_store_and_loses_nothing() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(options(FlushVerify::Sample));
        let keyspace = store.default_keyspace().unwrap();
        fill(&keyspace);
        disk.faults.add(flips().for_good());
        let error = store.flush().unwrap_err();
        while !store.stats().health.contains("cannot be flushed") {
            rt.sleep(std::time::Duration::from_millis(100));
        }
        let refused = keyspace.put(b"k", b"v").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Poisoned, "{error}");
        for said in [
            "`default` cannot be flushed: 3 times in a row",
            "the log keeps all",
        ] {
            assert!(refused.to_string().contains(said), "{refused}");
        }
        assert_eq!(store.stats().counter("job_rejected_count"), 3);
        assert_eq!(disk.names(".tbl").len(), 0, "rejected tables are deleted");
        check(&keyspace);
        drop((keyspace, store));
        // If the fault persists, an open reports it. A reader needs no flush and has everything.
        let dead = disk.kill();
        dead.faults.add(flips().for_good());
        let error = dead.try_open(small()).unwrap_err();
        assert!(error.to_string().contains("rejected"), "{error}");
        let storage: Arc<dyn Storage> = Arc::new(dead.faults.clone());
        let reader =
            Store::open_read_only_with(Components::on(storage, rt.clone()), small()).unwrap();
        check(&reader.default_keyspace().unwrap());
        drop(reader);
        // If the fault has passed, nothing is lost.
        let mended = disk.kill();
        check(&mended.open().default_keyspace().unwrap());
    });
}

/// A storage that cannot be read for a moment is not a reason to stop the store.
#[test]
fn a_table_that_cannot_be_read_back_only_delays_its_flush() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(options(FlushVerify::All));
        let keyspace = store.default_keyspace().unwrap();
        fill(&keyspace);
        let fault = Fault::Fail(siltstone_storage::StorageErrorKind::Io);
        disk.faults
            .add(Rule::on(OpKind::Read, fault).ending(".tbl").times(8));
        let _ = store.flush();
        store
            .wait_until_idle()
            .or_else(|_| store.wait_until_idle())
            .unwrap();
        let stats = store.stats();
        assert_eq!(stats.counter("job_rejected_count"), 0);
        assert_eq!(stats.health, "good");
        assert_eq!(stats.counter("job_failed_count"), 8);
        keyspace.put(b"k", b"v").unwrap();
        check(&keyspace);
        assert_eq!(disk.names(".tbl").len(), 1);
    });
}

#[test]
fn the_setting_changes_while_the_store_is_open() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let store = disk.open_with(options(FlushVerify::None));
        let keyspace = store.default_keyspace().unwrap();
        fill(&keyspace);
        store.set_option("flush_verify", "all").unwrap();
        let before = reads(&disk);
        store.flush().unwrap();
        assert!(reads(&disk) - before > 50);
        assert!(store.set_option("flush_verify", "some").is_err());
    });
}

/// Runs jobs on streams that differ from the memtable, so the tables have valid checksums and
/// counts, and wrong contents.
struct Wrong(Lie);

#[derive(Clone, Copy, PartialEq)]
enum Lie {
    /// One value is changed.
    Value,
    /// Range deletes end later.
    RangeDeletes,
}

struct WrongInputs(Arc<dyn Inputs>, Lie);
struct WrongSource(Arc<dyn StreamSource>, Lie);
struct WrongStream(Box<dyn EntryStream>, Vec<u8>);

impl Executor for Wrong {
    fn name(&self) -> &str {
        "wrong"
    }
    fn side(&self) -> Side {
        Side::Device
    }
    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let ctx = ExecContext {
            inputs: Arc::new(WrongInputs(ctx.inputs.clone(), self.0)),
            ..ctx.clone()
        };
        CpuExecutor::new().run(job, &ctx)
    }
}

impl Inputs for WrongInputs {
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        self.0.table(location, name)
    }
    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        Ok(Arc::new(WrongSource(
            self.0.stream(location, name)?,
            self.1,
        )))
    }
}

impl StreamSource for WrongSource {
    fn key_bounds(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        self.0.key_bounds()
    }
    fn range_deletes(&self) -> Result<Vec<RangeDelete>, TableError> {
        let mut range_deletes = self.0.range_deletes()?;
        if self.1 == Lie::RangeDeletes {
            range_deletes.iter_mut().for_each(|r| r.end = key(PAIRS));
        }
        Ok(range_deletes)
    }
    fn open(&self, bounds: &KeyBounds) -> Result<Box<dyn EntryStream>, TableError> {
        if self.1 != Lie::Value {
            return self.0.open(bounds);
        }
        Ok(Box::new(WrongStream(self.0.open(bounds)?, Vec::new())))
    }
}

impl EntryStream for WrongStream {
    fn next_entry(&mut self) -> Result<Option<StreamEntry<'_>>, TableError> {
        let WrongStream(inner, value) = self;
        Ok(inner.next_entry()?.map(|entry| {
            value.clear();
            value.extend_from_slice(entry.value);
            if entry.user_key == key(0) {
                value[7] ^= 1;
            }
            StreamEntry { value, ..entry }
        }))
    }
}

#[test]
fn a_wrong_value_with_valid_checksums_is_not_installed() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let components = Components {
            executors: vec![Arc::new(Wrong(Lie::Value))],
            ..Components::on(Arc::new(disk.faults.clone()), rt.clone())
        };
        let store = Store::open_with(components, options(FlushVerify::Sample)).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        fill(&keyspace);
        store.flush().unwrap();
        check(&keyspace);
        let stats = store.stats();
        assert_eq!(stats.sides[0].rejected_count, 1, "the host ran it instead");
        assert_eq!(stats.counter("job_failed_count"), 0);
    });
}

/// The executor's tables agree with its outcome, and delete more than was deleted. Range deletes of
/// an executor were once compared only with its own count.
#[test]
fn a_range_delete_that_is_too_wide_is_not_installed() {
    simulate(|rt| {
        let disk = Disk::new(&rt);
        let components = Components {
            executors: vec![Arc::new(Wrong(Lie::RangeDeletes))],
            ..Components::on(Arc::new(disk.faults.clone()), rt.clone())
        };
        let store = Store::open_with(components, options(FlushVerify::None)).unwrap();
        let keyspace = store.default_keyspace().unwrap();
        fill(&keyspace);
        store.flush().unwrap();
        // It covers no key.
        keyspace.delete_range(b"key", key(0)).unwrap();
        store.flush().unwrap();
        let stats = store.stats();
        assert_eq!(stats.sides[0].rejected_count, 1, "the host ran it instead");
        assert_eq!(stats.counter("job_failed_count"), 0);
        check(&keyspace);
    });
}

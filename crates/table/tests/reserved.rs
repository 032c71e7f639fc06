//! The numbers of RFC 12, section 4, that tables and jobs can have: for each of them, bytes that
//! are made by hand are refused by name wherever they are met. None of them can be given to
//! something else as long as this test is there. `crates/engine/tests/reserved.rs` has those of the
//! log and the manifest, and the places of the engine; `crates/device/tests/hostile_jobs.rs` and
//! `crates/device/tests/executor.rs` those that cross a link.

mod common;
#[path = "common/patched.rs"]
mod patched;

use std::sync::Arc;

use common::*;
use patched::{Patched, TABLE_CASES, TableCase};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::exec::cpu::CpuExecutor;
use siltstone_table::exec::{ExecContext, ExecError, Executor, InputMap};
use siltstone_table::job::{Extension, Input, InputKind, Job};
use siltstone_table::key::{Kind, MAX_SEQ, hash, trailer};
use siltstone_table::merge::table::InputTable;
use siltstone_table::salvage::{Expect, salvage};
use siltstone_table::{NoCache, ReaderOptions, TableError, TableReader};

struct World {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    job: Job,
}

/// A job with one table of puts. With `mixed`, every third entry is a delete.
fn world(mixed: bool) -> World {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut content = Content::default();
    for i in 0..40u64 {
        let kind = match mixed && i % 3 == 1 {
            true => Kind::Delete,
            false => Kind::Put,
        };
        let key = format!("key{i:03}").into_bytes();
        content
            .entries
            .push((key, trailer(i + 1, kind), b"value".to_vec()));
    }
    let mut job = a_job(1000);
    let input = table_input(&mut InputMap::new(), &storage, "in.tbl", &content);
    job.inputs.push(input);
    World {
        runtime,
        storage,
        job,
    }
}

impl World {
    /// Replaces the bytes of the table, and what the job says of it.
    fn patch(&mut self, make: fn(Patched) -> Patched) {
        let bytes = self.storage.read_small("in.tbl").unwrap();
        let patched = make(Patched(bytes));
        let input = &mut self.job.inputs[0];
        (input.len_bytes, input.digest) = (patched.0.len() as u64, patched.digest());
        self.storage.delete(epoch(), "in.tbl").unwrap();
        let file = self.storage.create(epoch(), "in.tbl").unwrap();
        file.append(&[&patched.0]).unwrap();
        file.sync().unwrap();
    }

    fn run(&self, job: &Job) -> Result<(), ExecError> {
        let mut inputs = InputMap::new();
        for input in &job.inputs {
            let file = self.storage.open("in.tbl").unwrap();
            inputs.add_table(input.location, &input.name, file);
        }
        let storage: Arc<dyn Storage> = self.storage.clone();
        let ctx = ExecContext::new(self.runtime.clone(), Arc::new(inputs), storage, epoch());
        CpuExecutor::new().run(job, &ctx).map(|_| ())
    }
}

#[track_caller]
fn is_refused<T>(result: Result<T, TableError>, case: &TableCase, place: &str) {
    let Err(error) = result else {
        panic!("{}: {place} accepts it", case.what);
    };
    let what = case.what;
    assert!(error.is_unsupported(), "{what}, {place}: {error}");
    let said = error.to_string();
    assert!(said.contains(case.says), "{what}, {place}: {said}");
    assert!(said.contains("in.tbl"), "{what}, {place}: {said}");
}

#[track_caller]
fn is_declined(world: &World, job: &Job, says: &str) {
    let names = || world.storage.list().unwrap().len();
    let before = names();
    match world.run(job) {
        Err(ExecError::Declined { reason }) => assert!(reason.contains(says), "{says}: {reason}"),
        other => panic!("{says}: {other:?}"),
    }
    assert_eq!(names(), before, "{says}: outputs are left");
}

#[test]
fn tables_with_a_reserved_number_are_refused_wherever_they_are_read() {
    for case in TABLE_CASES {
        let mut world = world(case.what.contains("column"));
        world.run(&world.job).unwrap();
        let mut again = world.job.clone();
        again.output.attempt = 2;
        world.patch(case.make);
        again.inputs = world.job.inputs.clone();
        let open = || world.storage.open("in.tbl").unwrap();
        for map in [false, true] {
            let options = ReaderOptions {
                map,
                ..ReaderOptions::default()
            };
            let reader = TableReader::open(open(), options);
            if case.at_open {
                is_refused(reader, case, "open");
                continue;
            }
            let reader = reader.unwrap();
            let cache = NoCache;
            let mut value = Vec::new();
            let got = reader.get(&cache, b"key000", hash(b"key000"), MAX_SEQ, &mut value);
            is_refused(got, case, "get");
            let mut iter = reader.iter(Arc::new(NoCache));
            is_refused(iter.seek_to_first(), case, "iterator");
            let report = siltstone_table::check::check(&reader).unwrap();
            let first = report.damage.into_iter().next().expect("a check finds it");
            is_refused(Err::<(), _>(first.error), case, "check");
        }
        if case.at_open {
            is_refused(InputTable::open(open()), case, "input of a job");
        }
        is_refused(salvage(&*open(), &Expect::default()), case, "salvage");
        is_declined(&world, &again, case.says);
        // Without the footer, a salvage searches for the blocks.
        if !case.at_open && case.what != "flag 64" {
            world.patch(|t| {
                let end = t.0.len() - 100;
                let mut bytes = t.0;
                bytes[end..].fill(7);
                Patched(bytes)
            });
            is_refused(
                salvage(&*world.storage.open("in.tbl").unwrap(), &Expect::default()),
                case,
                "salvage without a footer",
            );
        }
    }
}

/// Flag 128 has no feature, and neither have kinds from 5 on: they are damage. Location 0 and the
/// present version of the layout rules are what every table and job has.
#[test]
fn what_has_no_feature_is_damage() {
    let damage: [fn(Patched) -> Patched; 4] = [
        |t| t.header_byte(6, |flags| flags | 128),
        |t| t.header_byte(6, |flags| flags | 128 | 64),
        |t| t.kind(5),
        |t| t.kind(2),
    ];
    for make in damage {
        let mut world = world(false);
        world.patch(make);
        let file = world.storage.open("in.tbl").unwrap();
        let reader = TableReader::open(file, ReaderOptions::default()).unwrap();
        let mut value = Vec::new();
        let got = reader.get(&NoCache, b"key000", hash(b"key000"), MAX_SEQ, &mut value);
        let error = got.unwrap_err();
        assert!(error.is_corruption(), "{error}");
        assert!(matches!(world.run(&world.job), Err(ExecError::Failed(_))));
    }
    let mut world = world(false);
    assert_eq!(
        (world.job.layout_version, world.job.inputs[0].location),
        (2, 0)
    );
    world.patch(|t| t.layout(2));
    world.run(&world.job).unwrap();
}

type Change = fn(&mut Job);

#[test]
fn jobs_with_a_reserved_number_are_declined() {
    let world = world(false);
    let changes: &[(&str, Change)] = &[
        ("layout version 1", |j| j.layout_version = 1),
        ("layout version 3", |j| j.layout_version = 3),
        ("extension merge version 1", |j| {
            j.extensions = vec![Extension {
                name: "merge".into(),
                version: 1,
                params: b"\x01\0\0\0add".to_vec(),
            }]
        }),
        ("has kind 2", |j| {
            j.inputs[0].kind = InputKind::from_number(2)
        }),
        ("has kind 255", |j| {
            j.inputs[0].kind = InputKind::from_number(255)
        }),
    ];
    for (says, change) in changes {
        let mut job = world.job.clone();
        change(&mut job);
        // What crosses a link is the same job: it is understood before it is declined.
        let job = Job::decode(&job.encode()).unwrap();
        assert!(CpuExecutor::new().accepts(&job).unwrap_err().contains(says));
        is_declined(&world, &job, says);
    }
    let numbers: Vec<u8> = [InputKind::Table, InputKind::Stream, InputKind::Unknown(2)]
        .map(InputKind::number)
        .into();
    assert_eq!(numbers, [0, 1, 2]);
    assert_eq!(Input::of_stream("s", 0..=1).location, 0);
    // A location is no reserved number: whoever runs the job has its inputs, or does not.
    let mut job = world.job.clone();
    job.inputs[0].location = 1;
    let job = Job::decode(&job.encode()).unwrap();
    assert_eq!(job.inputs[0].location, 1);
    CpuExecutor::new().accepts(&job).unwrap();
    world.run(&job).unwrap();
}

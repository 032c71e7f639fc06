//! Failures around a job: storage that fails at every call, damaged and wrong inputs, cancellation,
//! and unknown kinds and extensions. No such job returns an outcome, and its output is deleted if
//! that is possible.

mod common;

use std::sync::Arc;

use common::*;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, Runtime, Storage, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::checksum::{Digest, crc32c};
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, InputMap, Side};
use siltstone_table::footer::Footer;
use siltstone_table::job::{Extension, Job, KeyBounds, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::reader::{ReaderOptions, TableReader};
use siltstone_table::retain::RangeDelete;

struct World {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    faults: Arc<FaultStorage>,
    job: Job,
    content: Vec<Content>,
}

fn world() -> World {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let faults = Arc::new(FaultStorage::new(storage.clone(), &runtime));
    let mut job = a_job(1000);
    job.hard_cuts = vec![b"k0300".to_vec()];
    job.limits = OutputLimits::new(1 << 13, 512, false);
    let mut content = vec![];
    for run in 0..3u64 {
        let mut c = Content::default();
        for i in 0..200u64 {
            let key = format!("k{:04}", (i * 3 + run) % 600).into_bytes();
            c.entries.push((
                key,
                trailer(run * 300 + i + 1, Kind::Put),
                vec![i as u8; 50],
            ));
        }
        c.range_deletes.push(RangeDelete {
            start: b"k0290".to_vec(),
            end: b"k0310".to_vec(),
            seq: run * 300 + 250,
        });
        let input = table_input(&mut InputMap::new(), &storage, &format!("in-{run}.tbl"), &c);
        job.inputs.push(siltstone_table::job::Input {
            run: run as u32,
            ..input
        });
        content.push(c);
    }
    World {
        runtime,
        storage,
        faults,
        job,
        content,
    }
}

impl World {
    /// A context whose inputs and outputs go through the faults.
    fn context(&self) -> ExecContext {
        let mut inputs = InputMap::new();
        for input in &self.job.inputs {
            inputs.add_table(
                input.location,
                &input.name,
                self.faults.open(&input.name).unwrap(),
            );
        }
        ExecContext::new(
            self.runtime.clone(),
            Arc::new(inputs),
            self.faults.clone(),
            epoch(),
        )
    }

    fn outputs(&self) -> Vec<String> {
        let names = self.storage.list().unwrap().into_iter().map(|o| o.name);
        names.filter(|n| !n.starts_with("in-")).collect()
    }
}

#[test]
fn an_object_that_was_there_before_is_not_deleted() {
    let w = world();
    let outcome = CpuExecutor::new().run(&w.job, &w.context()).unwrap();
    let made = w.outputs();
    assert!(made.len() > 2);
    // The same attempt again, as a device does it that was asked twice: its names are taken, by
    // tables that the store may refer to.
    let last = &outcome.tables.last().unwrap().name;
    let before = w.storage.read_small(last).unwrap();
    for parallel in [1, 2] {
        let ctx = ExecContext {
            max_parallel: parallel,
            ..w.context()
        };
        match CpuExecutor::new().run(&w.job, &ctx) {
            Err(ExecError::Failed(TableError::Storage(error))) => {
                assert_eq!(error.kind, StorageErrorKind::AlreadyExists, "{error}");
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(w.outputs(), made);
    }
    assert_eq!(w.storage.read_small(last).unwrap(), before);
}

#[test]
fn every_failing_call_fails_the_job_and_leaves_nothing() {
    let w = world();
    let error = Fault::Fail(StorageErrorKind::Io);
    for parallel in [1, 2] {
        for reads in [false, true] {
            let mut failures = 0;
            for n in 1.. {
                let ctx = ExecContext {
                    max_parallel: parallel,
                    ..w.context()
                };
                w.faults.clear();
                let rule = if reads {
                    Rule::on_reads(error)
                } else {
                    Rule::on_changes(error)
                };
                let rule = w.faults.add(rule.nth(n));
                let result = CpuExecutor::new().run(&w.job, &ctx);
                let fired = w.faults.fired_count(rule) > 0;
                w.faults.clear();
                match result {
                    Err(ExecError::Failed(TableError::Storage(e))) => {
                        assert!(fired, "{e}");
                        assert_eq!(w.outputs(), Vec::<String>::new(), "call {n}: {e}");
                        failures += 1;
                    }
                    Ok(outcome) => {
                        for table in &outcome.tables {
                            w.storage.delete(epoch(), &table.name).unwrap();
                        }
                        // A failed hint is not a failure. If no fault fired, all calls have been
                        // tried.
                        if !fired {
                            break;
                        }
                    }
                    Err(other) => panic!("call {n}: {other}"),
                }
            }
            assert!(failures > 8, "only {failures} calls failed");
        }
    }
}

#[test]
fn damage_is_named_and_never_copied() {
    let w = world();
    let name = &w.job.inputs[1].name;
    let whole = w.storage.read_small(name).unwrap();
    let step = (whole.len() / 150).max(1);
    for at in (0..whole.len()).step_by(step) {
        let mut bytes = whole.clone();
        bytes[at] ^= 0x10;
        w.storage.delete(epoch(), name).unwrap();
        w.storage
            .create(epoch(), name)
            .unwrap()
            .append(&[&bytes])
            .unwrap();
        match CpuExecutor::new().run(&w.job, &w.context()) {
            Err(ExecError::Failed(error)) => {
                let named = error.to_string().contains("in-1.tbl");
                assert!(
                    named || matches!(error, TableError::UnsupportedFeature { .. }),
                    "byte {at}: {error}"
                );
                assert_eq!(w.outputs(), Vec::<String>::new());
            }
            Ok(outcome) => {
                // A merge does not read the filter.
                let table =
                    siltstone_table::merge::table::InputTable::open(w.storage.open(name).unwrap())
                        .unwrap();
                let blocks = table.place(table.block_count() - 1).end;
                assert!(
                    at as u64 >= blocks,
                    "byte {at} of the blocks went unnoticed"
                );
                for table in &outcome.tables {
                    w.storage.delete(epoch(), &table.name).unwrap();
                }
            }
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn an_input_that_is_not_the_named_one_is_refused() {
    let w = world();
    let mut job = w.job.clone();
    job.inputs[0].digest ^= 1;
    let error = CpuExecutor::new().run(&job, &w.context()).unwrap_err();
    assert!(
        error.to_string().contains("digest of an input table"),
        "{error}"
    );
    let mut job = w.job.clone();
    job.inputs[2].max_seq -= 20;
    let error = CpuExecutor::new().run(&job, &w.context()).unwrap_err();
    assert!(error.to_string().contains("sequence number"), "{error}");
    let mut job = w.job.clone();
    job.inputs[0].name = "elsewhere".into();
    let error = CpuExecutor::new().run(&job, &w.context()).unwrap_err();
    assert!(
        matches!(error, ExecError::Failed(TableError::Storage(_))),
        "{error}"
    );
    assert_eq!(w.outputs(), Vec::<String>::new());
}

/// The reason for declining, and the change to a job that causes it.
type Change = (&'static str, fn(&mut Job));

#[test]
fn unsupported_jobs_are_declined_with_a_reason() {
    let w = world();
    assert_eq!(CpuExecutor::new().accepts(&w.job), Ok(()));
    // An input at another location is supported, because the context resolves it.
    let mut elsewhere = w.job.clone();
    elsewhere.inputs[0].location = 1;
    assert_eq!(CpuExecutor::new().accepts(&elsewhere), Ok(()));
    let changes: &[Change] = &[
        ("layout version", |j| j.layout_version = 9),
        ("extension ttl", |j| {
            j.extensions.push(Extension {
                name: "ttl".into(),
                version: 1,
                params: vec![],
            })
        }),
        ("kind 2", |j| {
            j.inputs[0].kind = siltstone_table::job::InputKind::Unknown(2)
        }),
        ("above the published", |j| j.published = 3),
        ("ascending", |j| {
            j.soft_cuts = vec![b"k2".to_vec(), b"k1".to_vec()]
        }),
        ("lack a rule", |j| {
            j.rules = siltstone_table::job::DropRules::TOMBSTONES
        }),
        ("empty", |j| {
            j.bounds = KeyBounds {
                start: b"z".to_vec(),
                end: Some(b"a".to_vec()),
            }
        }),
        ("power", |j| j.limits.layout.table_bytes = 1000),
    ];
    for (reason, change) in changes {
        let mut job = w.job.clone();
        change(&mut job);
        let not_accepted = CpuExecutor::new().accepts(&job).unwrap_err();
        match CpuExecutor::new().run(&job, &w.context()) {
            Err(ExecError::Declined { reason: found }) => {
                assert!(found.contains(reason), "{found}");
                assert_eq!(found, not_accepted);
            }
            other => panic!("{reason}: {other:?}"),
        }
    }
    for kind in [Kind::Merge, Kind::ValueAddress] {
        let mut content = w.content[0].clone();
        content
            .entries
            .push((b"k0599x".to_vec(), trailer(999, kind), vec![1]));
        let mut inputs = InputMap::new();
        let mut job = w.job.clone();
        job.inputs = vec![stream_input(&mut inputs, "stream", &content)];
        let ctx = ExecContext {
            inputs: Arc::new(inputs),
            ..w.context()
        };
        let error = CpuExecutor::new().run(&job, &ctx).unwrap_err();
        assert!(
            matches!(&error, ExecError::Declined { reason } if reason.contains("reserved kind")),
            "{error}"
        );
        assert_eq!(w.outputs(), Vec::<String>::new());
    }
    assert_eq!(
        (CpuExecutor::new().name(), CpuExecutor::new().side()),
        ("cpu", Side::Host)
    );
}

#[test]
fn a_cancelled_job_leaves_nothing() {
    let w = world();
    let ctx = w.context();
    ctx.cancel.cancel();
    assert!(matches!(
        CpuExecutor::new().run(&w.job, &ctx),
        Err(ExecError::Cancelled)
    ));
    assert_eq!(w.outputs(), Vec::<String>::new());
}

/// A flush of range deletes alone, and a sequence override.
#[test]
fn range_deletes_alone_and_overrides_give_the_right_tables() {
    let w = world();
    let mut content = Content::default();
    content.range_deletes.push(RangeDelete {
        start: b"a".to_vec(),
        end: b"k0400".to_vec(),
        seq: 5,
    });
    let mut inputs = InputMap::new();
    let mut job = w.job.clone();
    job.older = vec![siltstone_table::job::KeyRange::everything()];
    job.inputs = vec![stream_input(&mut inputs, "stream", &content)];
    let ctx = ExecContext {
        inputs: Arc::new(inputs),
        ..w.context()
    };
    let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
    // Two subjobs with one table each, clipped at the hard cut.
    let ranges: Vec<_> = outcome
        .tables
        .iter()
        .map(|t| (t.bounds.clone(), t.entries))
        .collect();
    let range = siltstone_table::job::KeyRange::before;
    assert_eq!(
        ranges,
        [(range(b"a", b"k0300"), 0), (range(b"k0300", b"k0400"), 0)]
    );
    siltstone_table::job::verify::verify_outcome(&job, &outcome).unwrap();

    let mut content = Content::default();
    content
        .entries
        .push((b"k1".to_vec(), trailer(0, Kind::Put), b"v".to_vec()));
    let mut inputs = InputMap::new();
    let input = table_input(&mut inputs, &w.storage, "in-ingested.tbl", &content);
    let mut job = w.job.clone();
    job.output.attempt = 9;
    job.inputs = vec![siltstone_table::job::Input {
        seq_override: Some(77),
        min_seq: 77,
        max_seq: 77,
        ..input
    }];
    let ctx = ExecContext {
        inputs: Arc::new(inputs),
        ..w.context()
    };
    let outcome = CpuExecutor::new().run(&job, &ctx).unwrap();
    assert_eq!(
        read_all(&*w.storage, &outcome).entries[0].1,
        trailer(77, Kind::Put)
    );
}

/// A table whose keys are `aaa1`, `bbb2` and `aaa3`, with right checksums. An honest one cannot be
/// written, because its keys would not ascend.
fn table_with_another_prefix(storage: &Arc<MemoryStorage>) -> siltstone_table::job::Input {
    let mut content = Content::default();
    for (i, key) in ["aaa1", "bbb2", "caa3"].iter().enumerate() {
        let seq = 100 + i as u64;
        let put = (key.as_bytes().to_vec(), trailer(seq, Kind::Put), vec![7; 9]);
        content.entries.push(put);
    }
    let mut input = table_input(&mut InputMap::new(), storage, "honest.tbl", &content);
    let mut bytes = storage.read_small("honest.tbl").unwrap();
    let file = storage.open("honest.tbl").unwrap();
    let mut footer = Footer::read(&*file).unwrap();
    let table = TableReader::open(file, ReaderOptions::default()).unwrap();
    let place = table.index().place(0);
    let (anchor, end) = (place.anchor as usize, place.end as usize - 4);
    // The third of the heads, which have four bytes, the first one of the key last.
    let head = anchor + 32 + 2 * 4;
    assert_eq!(&bytes[head..head + 4], b"3aac");
    bytes[head + 3] = b'a';
    let crc = crc32c(&bytes[anchor..end]);
    bytes[end..end + 4].copy_from_slice(&crc.to_le_bytes());
    let mut digest = Digest::new();
    digest.push(crc);
    (footer.digest, input.digest) = (digest.value(), digest.value());
    let mut properties = table.properties().clone();
    properties.largest_key = Some(b"aaa3".to_vec());
    let mut section = Vec::new();
    properties.encode(&mut section);
    section.extend_from_slice(&crc32c(&section).to_le_bytes());
    assert_eq!(section.len() as u64, footer.properties_bytes);
    let properties_at = (footer.file_bytes() - 64 - footer.properties_bytes) as usize;
    bytes.truncate(properties_at);
    bytes.extend_from_slice(&section);
    bytes.extend_from_slice(&footer.encode());
    storage.replace(epoch(), "forged.tbl", &bytes).unwrap();
    input.name = "forged.tbl".into();
    input
}

/// A merge compares keys without the prefix that all of them should have. So a key with another
/// prefix must be noticed, or it is taken for a version of another key and dropped.
#[test]
fn a_key_in_the_middle_of_a_block_without_the_prefix_is_damage() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let mut inputs = InputMap::new();
    let mut older = Content::default();
    older
        .entries
        .push((b"aaa2".to_vec(), trailer(1, Kind::Put), vec![1]));
    let mut job = a_job(1000);
    let input = table_input(&mut inputs, &storage, "older.tbl", &older);
    job.inputs.push(input);
    let input = table_with_another_prefix(&storage);
    inputs.add_table(0, &input.name, storage.open(&input.name).unwrap());
    job.inputs
        .push(siltstone_table::job::Input { run: 1, ..input });
    for columns_first in [false, true] {
        let inputs = Arc::new(inputs.clone());
        let ctx = ExecContext {
            columns_first,
            ..ExecContext::new(runtime.clone(), inputs, storage.clone(), epoch())
        };
        let failed = CpuExecutor::new().run(&job, &ctx).unwrap_err();
        assert!(
            matches!(&failed, ExecError::Failed(TableError::Corruption { .. })),
            "{failed:?}"
        );
        let text = failed.to_string();
        assert!(text.contains("prefix of an input's keys"), "{text}");
        assert!(text.contains("forged.tbl"), "{text}");
    }
}

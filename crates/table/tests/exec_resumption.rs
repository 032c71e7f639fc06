//! A failed attempt leaves its finished tables to the next attempt of the same job. The result is
//! that of an undisturbed run.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use common::*;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Runtime, Storage, StorageErrorKind};
use siltstone_table::exec::{
    CancelToken, CpuExecutor, ExecContext, ExecError, Executor, Handover, InputMap, Throttle,
};
use siltstone_table::job::outcome::{Counters, Outcome};
use siltstone_table::job::verify::{Sample, TrustSyncs, verify_outcome, verify_tables};
use siltstone_table::job::{Job, OutputLimits};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::retain::RangeDelete;

struct World {
    runtime: Runtime,
    storage: Arc<MemoryStorage>,
    faults: Arc<FaultStorage>,
    job: Job,
    undisturbed: Outcome,
    files: Vec<Vec<u8>>,
}

/// Three inputs with overwritten keys, deletes, and range deletes that cross tables, soft cuts and
/// the bound of a subjob.
fn world() -> World {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let faults = Arc::new(FaultStorage::new(storage.clone(), &runtime));
    let mut job = a_job(2000);
    job.hard_cuts = vec![b"k0700".to_vec()];
    job.soft_cuts = (0..1000)
        .step_by(90)
        .map(|i| format!("k{i:04}x").into_bytes())
        .collect();
    job.limits = OutputLimits::new(1 << 13, 512, true);
    job.snapshots = vec![300];
    for run in 0..3u64 {
        let mut c = Content::default();
        for i in 0..500u64 {
            let number = (i * 2 + run) % 1000;
            let kind = if (i + run) % 11 == 0 {
                Kind::Delete
            } else {
                Kind::Put
            };
            let value = match kind {
                Kind::Delete => Vec::new(),
                _ => vec![i as u8; 70 + (i % 30) as usize],
            };
            let key = format!("k{number:04}").into_bytes();
            c.entries
                .push((key, trailer(run * 600 + i + 1, kind), value));
        }
        for (start, end, seq) in [("k0080", "k0330", 250), ("k0640", "k0760", 400)] {
            c.range_deletes.push(RangeDelete {
                start: start.into(),
                end: end.into(),
                seq: run * 600 + seq,
            });
        }
        let input = table_input(&mut InputMap::new(), &storage, &format!("in-{run}.tbl"), &c);
        job.inputs.push(siltstone_table::job::Input {
            run: run as u32,
            ..input
        });
    }
    let mut world = World {
        runtime,
        storage,
        faults,
        job,
        undisturbed: Outcome::default(),
        files: Vec::new(),
    };
    let outcome = world.attempt(1, 1, None, None).unwrap();
    verify_outcome(&world.job, &outcome).unwrap();
    assert!(outcome.tables.len() >= 8, "{}", outcome.tables.len());
    assert!(
        outcome.counters.fragments_dropped > 0 || outcome.tables.iter().any(|t| t.fragments > 0)
    );
    assert!(outcome.counters.covered > 0 && outcome.counters.shadowed > 0);
    world.files = files(&*world.storage, &outcome);
    for table in &outcome.tables {
        world.storage.delete(epoch(), &table.name).unwrap();
    }
    world.undisturbed = outcome;
    world
}

impl World {
    fn named(&self, attempt: u64) -> Job {
        let mut job = self.job.clone();
        job.output.attempt = attempt;
        job
    }

    fn attempt(
        &self,
        attempt: u64,
        max_parallel: usize,
        handover: Option<&Arc<Handover>>,
        cancel_after: Option<u64>,
    ) -> Result<Outcome, ExecError> {
        let mut inputs = InputMap::new();
        for input in &self.job.inputs {
            let file = self.storage.open(&input.name).unwrap();
            inputs.add_table(input.location, &input.name, file);
        }
        let outputs = self.faults.clone();
        let mut ctx = ExecContext::new(self.runtime.clone(), Arc::new(inputs), outputs, epoch());
        ctx.max_parallel = max_parallel;
        ctx.handover = handover.cloned();
        if let Some(blocks) = cancel_after {
            ctx.throttle = Some(Arc::new(CancelAfter {
                left: AtomicU64::new(blocks),
                cancel: ctx.cancel.clone(),
            }));
        }
        CpuExecutor::new().run(&self.named(attempt), &ctx)
    }

    fn outputs(&self) -> Vec<String> {
        let names = self.storage.list().unwrap().into_iter().map(|o| o.name);
        names.filter(|n| !n.starts_with("in-")).collect()
    }

    /// Checks that the outcome of attempt `attempt` is the undisturbed one, and that there are no
    /// other objects. Deletes it.
    fn check(&self, outcome: &Outcome, attempt: u64, when: &str) {
        let job = self.named(attempt);
        verify_outcome(&job, outcome).unwrap_or_else(|e| panic!("{when}: {e}"));
        verify_tables(&job, outcome, &*self.storage, &TrustSyncs, Sample::All)
            .unwrap()
            .unwrap_or_else(|e| panic!("{when}: {e}"));
        assert!(
            files(&*self.storage, outcome) == self.files,
            "{when}: other bytes"
        );
        let nameless = |outcome: &Outcome| {
            let mut tables = outcome.tables.clone();
            tables.iter_mut().for_each(|t| t.name.clear());
            tables
        };
        assert_eq!(nameless(outcome), nameless(&self.undisturbed), "{when}");
        // Blocks around the points where attempts continued were read once more, by one attempt.
        // Processor time differs from run to run.
        let counted = |c: &Counters| Counters {
            bytes_read: 0,
            cpu_ns: 0,
            ..*c
        };
        let (own, undisturbed) = (&outcome.counters, &self.undisturbed.counters);
        assert_eq!(
            Counters {
                raw_bytes_read: 0,
                ..counted(own)
            },
            Counters {
                raw_bytes_read: 0,
                ..counted(undisturbed)
            },
            "{when}"
        );
        assert!(
            own.raw_bytes_read.abs_diff(undisturbed.raw_bytes_read) < 1000,
            "{when}"
        );
        let mut names: Vec<String> = outcome.tables.iter().map(|t| t.name.clone()).collect();
        names.sort();
        assert_eq!(self.outputs(), names, "{when}");
        for name in names {
            self.storage.delete(epoch(), &name).unwrap();
        }
    }
}

/// Cancels the job after a number of blocks.
struct CancelAfter {
    left: AtomicU64,
    cancel: CancelToken,
}

impl Throttle for CancelAfter {
    fn spent(&self, _: u64, _: &dyn Fn() -> bool) {
        if self.left.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.cancel.cancel();
        }
    }
}

const IO: Fault = Fault::Fail(StorageErrorKind::Io);

#[test]
fn after_any_failed_call_the_next_attempt_continues() {
    let w = world();
    for parallel in [1, 2] {
        let mut most = 0;
        for n in 0.. {
            let handover = Arc::new(Handover::new(&w.runtime));
            w.faults.clear();
            let rule = w.faults.add(Rule::on_changes(IO).nth(n));
            let first = w.attempt(10, parallel, Some(&handover), None);
            let fired = w.faults.fired();
            let fired = (w.faults.fired_count(rule) > 0).then(|| format!("{:?}", fired[0]));
            w.faults.clear();
            let when = format!("{parallel} at once, call {n}: {fired:?}");
            if let Ok(outcome) = first {
                w.check(&outcome, 10, &when);
                if fired.is_none() {
                    break;
                }
                continue;
            }
            let left = handover.left_count();
            assert_eq!(w.outputs().len(), left, "{when}");
            let outcome = w.attempt(11, parallel, Some(&handover), None).unwrap();
            assert_eq!(handover.adopted_count(), left as u64, "{when}");
            assert_eq!(handover.left_count(), 0);
            most = most.max(left);
            w.check(&outcome, 11, &when);
        }
        assert!(most + 2 >= w.files.len(), "{most} of {}", w.files.len());
    }
}

#[test]
fn k_of_n_tables_are_adopted() {
    let w = world();
    for k in 0..w.files.len() as u64 {
        let handover = Arc::new(Handover::new(&w.runtime));
        w.faults.clear();
        w.faults.add(Rule::on(OpKind::Create, IO).nth(k));
        w.attempt(10, 1, Some(&handover), None).unwrap_err();
        w.faults.clear();
        assert_eq!(handover.left_count() as u64, k);
        // An attempt in between that fails at once leaves them unchanged, under its own names.
        w.faults.add(Rule::on(OpKind::Create, IO));
        w.attempt(11, 1, Some(&handover), None).unwrap_err();
        w.faults.clear();
        assert_eq!(
            (handover.left_count() as u64, handover.adopted_count()),
            (k, k)
        );
        assert!(
            w.outputs().iter().all(|n| n.contains("-0000000b-")),
            "{:?}",
            w.outputs()
        );
        let outcome = w.attempt(12, 1, Some(&handover), None).unwrap();
        assert_eq!(handover.adopted_count(), 2 * k);
        w.check(&outcome, 12, &format!("{k} tables"));
    }
}

#[test]
fn cancelled_attempts_are_continued_wherever_they_were() {
    let w = world();
    for parallel in [1, 2] {
        let handover = Arc::new(Handover::new(&w.runtime));
        let mut before = 0;
        for attempt in 10.. {
            // Each attempt reads a few blocks: some make no table, others several.
            match w.attempt(attempt, parallel, Some(&handover), Some(attempt * 2)) {
                Err(ExecError::Cancelled) => {
                    assert!(handover.left_count() >= before);
                    assert_eq!(w.outputs().len(), handover.left_count());
                    before = handover.left_count();
                }
                Err(error) => panic!("{error}"),
                Ok(outcome) => {
                    w.check(&outcome, attempt, &format!("attempt {attempt}"));
                    break;
                }
            }
        }
        assert!(before > 2);
    }
}

#[test]
fn nothing_is_adopted_after_a_failed_sync_or_on_a_full_disk() {
    let w = world();
    let no_space = Fault::Fail(StorageErrorKind::NoSpace);
    for (rule, what) in [
        (Rule::on(OpKind::Sync, IO).nth(4), "sync of a table"),
        (Rule::on(OpKind::SyncDir, IO), "sync of the folder"),
        (Rule::on(OpKind::Append, no_space).nth(3), "a full disk"),
        (Rule::on(OpKind::Create, no_space).nth(4), "a full disk"),
    ] {
        let handover = Arc::new(Handover::new(&w.runtime));
        w.faults.clear();
        let rule = w.faults.add(rule);
        w.attempt(10, 2, Some(&handover), None).expect_err(what);
        assert_eq!(w.faults.fired_count(rule), 1, "{what}");
        w.faults.clear();
        assert_eq!(handover.left_count(), 0, "{what}");
        assert_eq!(w.outputs(), Vec::<String>::new(), "{what}");
        let outcome = w.attempt(11, 2, Some(&handover), None).unwrap();
        assert_eq!(handover.adopted_count(), 0, "{what}");
        w.check(&outcome, 11, what);
    }
}

#[test]
fn damaged_tables_and_those_of_another_job_are_made_again() {
    let w = world();
    let fail_after = |k: u64| {
        let handover = Arc::new(Handover::new(&w.runtime));
        w.faults.clear();
        w.faults.add(Rule::on(OpKind::Create, IO).nth(k));
        w.attempt(10, 1, Some(&handover), None).unwrap_err();
        w.faults.clear();
        handover
    };
    // A table that was changed, and one that was deleted.
    let handover = fail_after(3);
    let name = w.outputs()[1].clone();
    let mut bytes = w.storage.read_small(&name).unwrap();
    bytes[20] ^= 1;
    w.storage.replace(epoch(), &name, &bytes).unwrap();
    let outcome = w.attempt(11, 1, Some(&handover), None).unwrap();
    assert_eq!(handover.adopted_count(), 0);
    w.check(&outcome, 11, "damage");
    let handover = fail_after(3);
    w.storage.delete(epoch(), &w.outputs()[0]).unwrap();
    let outcome = w.attempt(11, 1, Some(&handover), None).unwrap();
    assert_eq!(handover.adopted_count(), 0);
    w.check(&outcome, 11, "a deleted table");
    // A rename that fails halfway.
    let handover = fail_after(3);
    w.faults.add(Rule::on(OpKind::Rename, IO).nth(1));
    let outcome = w.attempt(11, 1, Some(&handover), None).unwrap();
    assert_eq!(handover.adopted_count(), 0);
    w.check(&outcome, 11, "rename");
    // Another job.
    let handover = fail_after(3);
    let mut other = world();
    other.job.snapshots = vec![301];
    other.storage = w.storage.clone();
    other.faults = w.faults.clone();
    let outcome = other.attempt(11, 1, Some(&handover), None).unwrap();
    assert_eq!(handover.adopted_count(), 0);
    assert_eq!(w.outputs().len(), outcome.tables.len());
    for table in &outcome.tables {
        w.storage.delete(epoch(), &table.name).unwrap();
    }
    // No further attempt: the names are given, once.
    let handover = fail_after(3);
    let mut names = handover.end();
    names.sort();
    assert_eq!(names, w.outputs());
    assert_eq!(handover.end(), Vec::<String>::new());
}

/// The caller gives up an attempt that still runs, and ends its handover. When the attempt fails
/// later, it leaves nothing and deletes what it made; when it succeeds, it adopts nothing.
#[test]
fn an_attempt_that_ends_after_its_handover_leaves_nothing() {
    let w = world();
    for parallel in [1, 2] {
        let handover = Arc::new(Handover::new(&w.runtime));
        assert_eq!(handover.end(), Vec::<String>::new());
        w.faults.clear();
        let rule = w.faults.add(Rule::on(OpKind::Create, IO).nth(4));
        w.attempt(10, parallel, Some(&handover), None).unwrap_err();
        assert_eq!(w.faults.fired_count(rule), 1);
        w.faults.clear();
        assert_eq!(handover.left_count(), 0);
        assert_eq!(w.outputs(), Vec::<String>::new());
        let outcome = w.attempt(11, parallel, Some(&handover), None).unwrap();
        assert_eq!(handover.adopted_count(), 0);
        w.check(&outcome, 11, "after the end");
    }
}

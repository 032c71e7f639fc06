//! An executor that divides jobs between two others: which side gets which jobs, how long the
//! caller waits, and what is counted and deleted.
//!
//! Most tests run in simulation, where the sides take exactly as long as a test says.

mod common;

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use common::forged::*;
use common::*;
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::sim::{self, SimConfig};
use siltstone_storage::{FaultStorage, Mutex, OpKind, Runtime, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::exec::{CpuExecutor, ExecContext, ExecError, Executor, Side, SplitExecutor};
use siltstone_table::job::Job;
use siltstone_table::job::outcome::{Outcome, OutputTable};

/// What a side does with its next jobs.
#[derive(Clone, Copy)]
struct Plan {
    takes_ms: u64,
    fails: bool,
}

const QUICK: Plan = Plan {
    takes_ms: 0,
    fails: false,
};

/// One of the two sides.
struct Half {
    side: Side,
    plan: Mutex<Plan>,
    /// The number of subjobs of each job that it was given.
    given: Mutex<Vec<usize>>,
}

impl Half {
    fn new(runtime: &Runtime, side: Side, plan: Plan) -> Arc<Half> {
        Arc::new(Half {
            side,
            plan: runtime.mutex(plan),
            given: runtime.mutex(Vec::new()),
        })
    }

    fn given(&self) -> Vec<usize> {
        self.given.lock().clone()
    }
}

impl Executor for Half {
    fn name(&self) -> &str {
        "half"
    }

    fn side(&self) -> Side {
        self.side
    }

    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let plan = *self.plan.lock();
        self.given.lock().push(job.subjobs());
        if plan.takes_ms > 0 {
            ctx.runtime.sleep(Duration::from_millis(plan.takes_ms));
        }
        if plan.fails {
            ctx.progress.bytes_in.fetch_add(1 << 30, Ordering::Relaxed);
            return Err(TableError::Misuse("the test wants it").into());
        }
        CpuExecutor::new().run(job, ctx)
    }
}

/// Two sides, the executor that divides jobs between them, and a job.
struct Halves {
    runtime: Runtime,
    sides: [Arc<Half>; 2],
    split: SplitExecutor,
    honest: Honest,
    faults: Arc<FaultStorage>,
    attempt: u64,
}

impl Halves {
    fn new(runtime: &Runtime, plans: [Plan; 2]) -> Halves {
        let [host, device] = plans;
        let sides = [
            Half::new(runtime, Side::Host, host),
            Half::new(runtime, Side::Device, device),
        ];
        let [first, second] = [0, 1].map(|at: usize| sides[at].clone() as Arc<dyn Executor>);
        let honest = honest();
        let faults = Arc::new(FaultStorage::new(honest.storage.clone(), runtime));
        Halves {
            runtime: runtime.clone(),
            split: SplitExecutor::new(runtime, "split", first, second),
            sides,
            honest,
            faults,
            attempt: 10,
        }
    }

    fn context(&self) -> ExecContext {
        let inputs = Arc::new(self.honest.inputs.clone());
        let outputs = self.faults.clone();
        ExecContext::new(self.runtime.clone(), inputs, outputs, epoch())
    }

    /// Runs the job, which is divided into this many subjobs.
    fn run(&mut self, subjobs: usize, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let mut job = self.honest.job.clone();
        self.attempt += 1;
        job.output.attempt = self.attempt;
        let cut = |i| format!("k{:04}", i * 900 / subjobs).into_bytes();
        job.hard_cuts = (1..subjobs).map(cut).collect();
        job.soft_cuts.retain(|cut| !job.hard_cuts.contains(cut));
        self.split.run(&job, ctx)
    }
}

fn simulated(test: impl FnOnce(Runtime) + Send + 'static) {
    sim::run(SimConfig::new(1), test).result.unwrap();
}

/// A storage that cannot be reached makes each call wait for its time limit.
#[test]
fn deletes_end_at_the_first_one_that_cannot_reach_the_storage() {
    simulated(|runtime| {
        let late_failure = Plan {
            takes_ms: 1000,
            fails: true,
        };
        for kind in [StorageErrorKind::Unreachable, StorageErrorKind::Io] {
            let is_unreachable = kind == StorageErrorKind::Unreachable;
            // The tables of the first part are deleted, because the second part fails.
            let mut halves = Halves::new(&runtime, [QUICK, late_failure]);
            let rule = Rule::on(OpKind::Delete, Fault::Fail(kind)).for_good();
            halves.faults.add(rule);
            halves.run(2, &halves.context()).unwrap_err();
            let made = halves.faults.counts().of(OpKind::Create);
            let tried = halves.faults.counts().of(OpKind::Delete);
            assert!(made > 1, "{made} tables");
            assert_eq!(tried, if is_unreachable { 1 } else { made }, "{kind:?}");
            // The tables of both parts are deleted, because a table cannot be renamed.
            let mut halves = Halves::new(&runtime, [QUICK, QUICK]);
            halves
                .faults
                .add(Rule::on(OpKind::Rename, Fault::Fail(kind)).for_good());
            halves.run(2, &halves.context()).unwrap_err();
            let made = halves.faults.counts().of(OpKind::Create);
            let tried = halves.faults.counts().of(OpKind::Delete);
            assert_eq!(tried, if is_unreachable { 0 } else { made + 1 }, "{kind:?}");
        }
    });
}

/// The names of the second part change when the parts are joined, so the folder is synced then.
#[test]
fn the_folder_of_a_divided_job_is_synced_once_at_its_end() {
    simulated(|runtime| {
        let mut halves = Halves::new(&runtime, [QUICK, QUICK]);
        halves.run(4, &halves.context()).unwrap();
        assert!(halves.faults.counts().of(OpKind::Rename) > 0);
        assert_eq!(halves.faults.counts().of(OpKind::SyncDir), 1);
        // If that sync fails, so does the job, and no table stays.
        let rule = Rule::on(OpKind::SyncDir, Fault::Fail(StorageErrorKind::Io)).for_good();
        halves.faults.add(rule);
        let before = halves.faults.counts();
        halves.run(4, &halves.context()).unwrap_err();
        let after = halves.faults.counts();
        let of = |kind| after.of(kind) - before.of(kind);
        assert!(of(OpKind::Create) > 1);
        assert_eq!(of(OpKind::Delete), of(OpKind::Create));
    });
}

#[test]
fn the_end_of_a_part_wakes_the_caller() {
    simulated(|runtime| {
        let mut halves = Halves::new(&runtime, [QUICK, QUICK]);
        let begun = runtime.now();
        halves.run(4, &halves.context()).unwrap();
        assert_eq!(runtime.now(), begun, "both parts take no simulated time");
    });
}

/// The first part runs in a task of its own, and the caller of the executor counts only its own.
#[test]
fn the_processor_time_of_the_first_part_is_counted() {
    let mut halves = Halves::new(&Runtime::threads(), [QUICK, QUICK]);
    let ctx = halves.context();
    let of = |ctx: &ExecContext| ctx.progress.helpers_cpu_ns.load(Ordering::Relaxed);
    halves.run(2, &ctx).unwrap();
    let once = of(&ctx);
    assert!(once > 0);
    // A second attempt with the same progress adds to it.
    halves.run(2, &ctx).unwrap();
    assert!(of(&ctx) > once, "{} after {once}", of(&ctx));
}

/// What was done of a job by each side: bytes in, bytes out, nanoseconds, processor time.
fn done(ctx: &ExecContext) -> [[u64; 4]; 2] {
    ctx.progress.divided.each_ref().map(|part| {
        let counts = [&part.bytes_in, &part.bytes_out, &part.run_ns, &part.cpu_ns];
        counts.map(|count| count.load(Ordering::Relaxed))
    })
}

/// The progress of a job says what each side did of it, as soon as it has an outcome.
#[test]
fn each_side_is_told_apart() {
    simulated(|runtime| {
        let plan = |takes_ms| Plan {
            takes_ms,
            fails: false,
        };
        let mut halves = Halves::new(&runtime, [plan(30), plan(10)]);
        let ctx = halves.context();
        assert_eq!(done(&ctx), [[0; 4]; 2]);
        let outcome = halves.run(8, &ctx).unwrap();
        let [host, device] = done(&ctx);
        let read = ctx.progress.bytes_in.load(Ordering::Relaxed);
        assert!(host[0] > 1 && device[0] > 1, "{host:?} {device:?}");
        assert_eq!(host[0] + device[0], read);
        let bytes = |tables: &[OutputTable]| tables.iter().map(|t| t.file_bytes).sum::<u64>();
        let of_host = outcome.tables.iter().take_while(|table| table.subjob < 4);
        let of_host: Vec<OutputTable> = of_host.cloned().collect();
        assert_eq!(host[1], bytes(&of_host), "half of the subjobs");
        assert_eq!(host[1] + device[1], bytes(&outcome.tables));
        assert_eq!([host[2], device[2]], [30_000_000, 10_000_000]);
        // Of a whole job, the other side did nothing.
        let ctx = halves.context();
        let outcome = halves.run(1, &ctx).unwrap();
        let [host, device] = done(&ctx);
        assert_eq!(host, [0; 4], "the device is the faster side");
        assert_eq!(device[0], ctx.progress.bytes_in.load(Ordering::Relaxed));
        let bytes_and_ns = [bytes(&outcome.tables), 10_000_000];
        assert_eq!(device[1..3], bytes_and_ns);
        // Nothing is said of a job without an outcome.
        halves.sides[0].plan.lock().fails = true;
        let ctx = halves.context();
        halves.run(8, &ctx).unwrap_err();
        assert_eq!(done(&ctx), [[0; 4]; 2]);
    });
    // Real tasks use processor time.
    let mut halves = Halves::new(&Runtime::threads(), [QUICK, QUICK]);
    let ctx = halves.context();
    let outcome = halves.run(2, &ctx).unwrap();
    let cpu_ns = done(&ctx).map(|part| part[3]);
    assert!(cpu_ns.iter().all(|ns| *ns > 0), "{cpu_ns:?}");
    assert_eq!(cpu_ns[0] + cpu_ns[1], outcome.counters.cpu_ns);
}

#[test]
fn a_part_that_failed_does_not_count_as_fast() {
    simulated(|runtime| {
        let slow = Plan {
            takes_ms: 100,
            fails: false,
        };
        let fails = Plan {
            takes_ms: 0,
            fails: true,
        };
        let mut halves = Halves::new(&runtime, [slow, slow]);
        halves.run(8, &halves.context()).unwrap();
        *halves.sides[1].plan.lock() = fails;
        halves.run(8, &halves.context()).unwrap_err();
        *halves.sides[1].plan.lock() = slow;
        halves.run(8, &halves.context()).unwrap();
        let given = halves.sides[0].given();
        assert_eq!(
            given[2], given[1],
            "the failure changes no share: {given:?}"
        );
    });
}

#[test]
fn undivided_jobs_are_measured_and_go_to_the_faster_side() {
    simulated(|runtime| {
        let plan = |takes_ms| Plan {
            takes_ms,
            fails: false,
        };
        let mut halves = Halves::new(&runtime, [plan(30), plan(10)]);
        let given = |halves: &mut Halves, jobs: usize| {
            (0..jobs).for_each(|_| drop(halves.run(1, &halves.context()).unwrap()));
            [0, 1].map(|at: usize| halves.sides[at].given().len())
        };
        assert_eq!(given(&mut halves, 2), [1, 1], "each side is measured");
        assert_eq!(given(&mut halves, 3), [1, 4], "the second side is faster");
        // The second side slows down. After two jobs its mean is above the first side's.
        *halves.sides[1].plan.lock() = plan(80);
        assert_eq!(given(&mut halves, 2), [1, 6]);
        assert_eq!(given(&mut halves, 3), [4, 6]);
    });
}

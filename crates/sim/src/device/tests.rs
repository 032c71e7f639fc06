//! Tests that a device follows its plan.

use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{MemoryStorage, Storage};
use siltstone_table::error::TableError;
use siltstone_table::exec::{EntryStream, Handover, InputMap, StreamEntry, StreamSource};
use siltstone_table::job::outcome::OutputTable;
use siltstone_table::job::verify::verify_outcome;
use siltstone_table::job::{
    DropRules, FormatOptions, Input, KeyBounds, LAYOUT_VERSION, OutputLimits, OutputPrefix,
};
use siltstone_table::merge::table::InputTable;
use siltstone_table::retain::RangeDelete;

use super::*;

const KEYS: u32 = 400;

struct Numbers;

struct NumberStream {
    next: u32,
    key: [u8; 4],
}

impl EntryStream for NumberStream {
    fn next_entry(&mut self) -> Result<Option<StreamEntry<'_>>, TableError> {
        if self.next == KEYS {
            return Ok(None);
        }
        self.key = self.next.to_be_bytes();
        self.next += 1;
        Ok(Some(StreamEntry {
            user_key: &self.key,
            trailer: u64::from(self.next) << 8 | 1,
            value: &[7; 40],
        }))
    }
}

impl StreamSource for Numbers {
    fn key_bounds(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        None
    }
    fn range_deletes(&self) -> Result<Vec<RangeDelete>, TableError> {
        Ok(Vec::new())
    }
    fn open(&self, _: &KeyBounds) -> Result<Box<dyn EntryStream>, TableError> {
        Ok(Box::new(NumberStream {
            next: 0,
            key: [0; 4],
        }))
    }
}

/// A flush of [`KEYS`] entries that makes several tables.
fn a_flush(attempt: u64) -> Job {
    Job {
        keyspace: 1,
        layout_version: LAYOUT_VERSION,
        inputs: vec![Input {
            kind: InputKind::Stream,
            location: 0,
            name: "numbers".into(),
            run: 0,
            len_bytes: 0,
            digest: 0,
            min_seq: 1,
            max_seq: u64::from(KEYS),
            clip: KeyBounds::everything(),
            seq_override: None,
        }],
        bounds: KeyBounds::everything(),
        hard_cuts: vec![],
        soft_cuts: vec![],
        published: u64::from(KEYS),
        snapshots: vec![],
        rules: DropRules::ALL,
        now_us: 0,
        older: vec![],
        limits: OutputLimits::new(1 << 12, 512, false),
        format: FormatOptions::default(),
        extensions: vec![],
        output: OutputPrefix { epoch: 1, attempt },
    }
}

/// The outcome of a job that was not disturbed.
fn finished(job: &Job, result: Result<Outcome, ExecError>) {
    verify_outcome(job, &result.unwrap()).unwrap();
}

fn simulated(story: impl FnOnce(Runtime, Arc<MemoryStorage>) + Send + 'static) {
    let report = run(SimConfig::new(3), |rt| {
        let storage = Arc::new(MemoryStorage::new(&rt));
        story(rt, storage);
    });
    report.result.unwrap();
}

fn context(rt: &Runtime, storage: &Arc<MemoryStorage>) -> ExecContext {
    let mut inputs = InputMap::new();
    inputs.add_stream(0, "numbers", Arc::new(Numbers));
    let epoch = siltstone_storage::Epoch(1);
    ExecContext::new(rt.clone(), Arc::new(inputs), storage.clone(), epoch)
}

#[test]
fn jobs_take_their_time_side_by_side() {
    simulated(|rt, storage| {
        let plan = Plan {
            slots: 2,
            job_time: Duration::from_secs(5),
            ..Plan::default()
        };
        let device = Device::new(&rt, "slow", plan);
        let begin = rt.now();
        let tasks: Vec<_> = (1..=2)
            .map(|attempt| {
                let (device, ctx) = (device.clone(), context(&rt, &storage));
                let job = a_flush(attempt);
                let work = move || finished(&job, device.run(&job, &ctx));
                rt.spawn("job", work).unwrap()
            })
            .collect();
        rt.sleep(Duration::from_secs(1));
        assert_eq!(device.running(), 2);
        tasks.into_iter().for_each(|task| task.join().unwrap());
        assert_eq!(rt.now().since(begin).as_secs(), 5);
        assert_eq!((device.running(), device.most_running()), (0, 2));
        for ran in device.ran() {
            assert!(
                ran.is_flush && ran.subjob_count == 1 && ran.end.is_some(),
                "{ran:?}"
            );
        }
    });
}

#[test]
fn a_plan_says_what_is_accepted() {
    simulated(|rt, _| {
        let device = Device::new(&rt, "picky", Plan::default());
        let flush = a_flush(1);
        let mut large = a_flush(1);
        large.inputs[0].kind = InputKind::Table;
        large.inputs[0].len_bytes = 1001;
        assert_eq!(
            (device.accepts(&flush), device.accepts(&large)),
            (Ok(()), Ok(()))
        );
        device.change(|plan| {
            plan.takes_flushes = false;
            plan.bytes_max = 1000;
            plan.slots = 3;
            plan.parallelism = 4;
            plan.state = ExecutorState::Down("unplugged".into());
        });
        assert!(device.accepts(&flush).unwrap_err().contains("flushes"));
        assert!(device.accepts(&large).unwrap_err().contains("1000"));
        assert_eq!((device.slots(), device.parallelism()), (3, 4));
        assert_eq!(device.state(), ExecutorState::Down("unplugged".into()));
    });
}

#[test]
fn jobs_end_as_planned() {
    simulated(|rt, storage| {
        let endings = [
            Ending::Declined,
            Ending::Failed,
            Ending::FailedAfter(2),
            Ending::Lie(WrongField::Digest),
        ];
        let plan = Plan {
            endings: endings.into(),
            ..Plan::default()
        };
        let device = Device::new(&rt, "bad", plan);
        let handover = Arc::new(Handover::new(&rt));
        let mut ctx = context(&rt, &storage);
        ctx.handover = Some(handover.clone());
        let run = |attempt| device.run(&a_flush(attempt), &ctx);
        assert!(matches!(run(1), Err(ExecError::Declined { .. })));
        assert!(matches!(run(2), Err(ExecError::Failed(_))));
        assert_eq!(handover.left_count(), 0);
        assert!(matches!(run(3), Err(ExecError::Failed(_))));
        assert_eq!(handover.left_count(), 2, "it leaves what it finished");
        let outcome = run(4).unwrap();
        assert!(outcome.tables.len() > 2 && handover.adopted_count() == 0);
        let is_true = |table: &OutputTable| {
            let file = storage.open(&table.name).unwrap();
            InputTable::open(file).unwrap().digest() == table.digest
        };
        assert!(!outcome.tables.iter().all(is_true), "it lies");
        finished(&a_flush(5), run(5));
        assert_eq!(device.ran().len(), 5);
    });
}

#[test]
fn a_hung_job_shows_no_sign_of_life_and_ends_late() {
    simulated(|rt, storage| {
        let plan = Plan {
            job_time: Duration::from_secs(60),
            endings: [Ending::Hang(Duration::from_secs(600))].into(),
            ..Plan::default()
        };
        let device = Device::new(&rt, "deaf", plan);
        let ctx = context(&rt, &storage);
        let start = |attempt| {
            let (device, ctx) = (device.clone(), ctx.clone());
            rt.spawn("job", move || device.run(&a_flush(attempt), &ctx))
                .unwrap()
        };
        let hung = start(1);
        rt.sleep(Duration::from_secs(599));
        assert_eq!(ctx.progress.signs_of_life(), 0);
        ctx.cancel.cancel();
        rt.sleep(Duration::from_secs(2));
        finished(&a_flush(1), hung.join().unwrap());
        // The next job notices that it is cancelled, and a third one shows signs of life.
        let begin = rt.now();
        assert!(matches!(
            start(2).join().unwrap(),
            Err(ExecError::Cancelled)
        ));
        assert_eq!(rt.now(), begin);
        let ctx = context(&rt, &storage);
        let before = ctx.progress.signs_of_life();
        let (progress, task) = (ctx.progress.clone(), {
            let device = device.clone();
            rt.spawn("job", move || device.run(&a_flush(3), &ctx))
                .unwrap()
        });
        rt.sleep(Duration::from_secs(1));
        assert!(progress.signs_of_life() > before);
        finished(&a_flush(3), task.join().unwrap());
    });
}

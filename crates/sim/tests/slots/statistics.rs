//! What a user sees of jobs elsewhere: statistics and events.

use siltstone::{Event, EventListener, JobStats, Options, Stats};
use siltstone_storage::Mutex;
use siltstone_storage::OpKind;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};

use super::*;

/// The figures of the device and of the host.
fn sides(stats: &Stats) -> [&siltstone::SideStats; 2] {
    let [device, host] = &stats.sides[..] else {
        panic!("{:?}", stats.sides);
    };
    assert_eq!([&device.name[..], &device.side], ["device", "device"]);
    assert_eq!([&host.name[..], &host.side], ["cpu", "host"]);
    [device, host]
}

/// Of three compactions that run and one that is left, the statistics say where they are, why, how
/// far they are and what is left of them.
#[test]
fn statistics_say_where_jobs_run_and_why() {
    simulated(|world| {
        let device = world.device(two_slots());
        let store = world.open(&[&device]);
        let [before, _] = sides(&store.stats()).map(Clone::clone);
        assert_eq!((&before.state[..], before.slot_count), ("ready", 2));
        assert_eq!(before.compaction_bytes_per_s, None);
        measure(&world, &store, &device);
        let [measured, host] = sides(&store.stats()).map(Clone::clone);
        assert!(
            measured.compaction_bytes_per_s.unwrap() > 1e4,
            "{measured:?}"
        );
        assert_eq!(measured.flush_bytes_per_s, None, "it takes none");
        assert!(host.compaction_bytes_per_s.unwrap() < 2e5, "{host:?}");

        let made = due(&store, &["a", "b", "c", "d"]);
        let [refuses, _] = sides(&store.stats()).map(Clone::clone);
        let refusal = Some("the device takes no flushes".to_string());
        assert_eq!(refuses.refusal, refusal, "the last job was a flush");
        world.rt.sleep(Duration::from_secs(60));
        store.test_hooks().pause_compaction(false);
        world.rt.sleep(Duration::from_secs(1));
        let stats = store.stats();
        let [there, here] = sides(&stats);
        let counts =
            |s: &siltstone::SideStats| (s.slot_count, s.running_job_count, s.waiting_job_count);
        assert_eq!((counts(there), counts(here)), ((2, 2, 0), (2, 1, 1)));
        assert_eq!(there.refusal, None, "it was asked about compactions");
        let on = |name: &str| {
            let jobs = stats.jobs.iter().filter(|job| job.executor == name);
            jobs.collect::<Vec<_>>()
        };
        assert_eq!((on("device").len(), on("cpu").len()), (2, 1));
        for job in &stats.jobs {
            assert_eq!([&job.kind[..], &job.stage], ["merge", "running"]);
            assert_eq!(job.from_level, Some(0));
            assert!(job.to_level > 0 && !job.reason.is_empty(), "{job:?}");
            assert!((600_000..700_000).contains(&job.input_bytes), "{job:?}");
            assert!(
                (900_000..=1_100_000).contains(&job.run_us.unwrap()),
                "{job:?}"
            );
        }
        // The device sleeps before it reads. Until then its speed says when it will be done.
        for job in on("device") {
            assert_eq!((&job.side[..], job.read_bytes), ("device", 0));
            assert!(
                (9_500_000..=11_500_000).contains(&job.left_us.unwrap()),
                "{job:?}"
            );
            assert!(job.placement.starts_with("device 11."), "{job:?}");
            assert!(job.placement.contains(" s, host "), "{job:?}");
        }
        let job = on("cpu")[0];
        assert_eq!(
            (&job.side[..], job.placement.contains(", host ")),
            ("host", true)
        );
        assert!(
            job.read_bytes > 0 && job.read_bytes < job.input_bytes,
            "{job:?}"
        );
        assert!(job.entry_count > 0 && job.left_us.unwrap() > 0, "{job:?}");
        for side in [there, here] {
            let jobs = on(&side.name);
            let sum = |of: fn(&JobStats) -> u64| jobs.iter().map(|job| of(job)).sum::<u64>();
            assert_eq!(side.running_in_bytes, sum(|job| job.input_bytes));
            assert_eq!(side.running_read_bytes, sum(|job| job.read_bytes));
            assert_eq!(side.running_out_bytes, sum(|job| job.out_bytes));
            let left = jobs.iter().map(|job| job.left_us).max().flatten();
            assert!(left.is_some() && side.running_left_us == left, "{side:?}");
        }
        let [waiting] = &stats.waiting_jobs[..] else {
            panic!("{:?}", stats.waiting_jobs);
        };
        let words = [&waiting.stage[..], &waiting.executor];
        assert_eq!(words, ["waiting", "cpu"]);
        assert!(
            stats
                .jobs
                .iter()
                .all(|job| job.keyspace != waiting.keyspace)
        );
        let reason = "device has no free slot, host ";
        assert!(waiting.placement.starts_with(reason), "{waiting:?}");
        assert_eq!((waiting.run_us, waiting.left_us), (None, None));

        store.wait_until_idle().unwrap();
        let stats = store.stats();
        assert!(stats.jobs.is_empty() && stats.waiting_jobs.is_empty());
        let [there, here] = sides(&stats);
        assert_eq!((counts(there), counts(here)), ((2, 0, 0), (2, 0, 0)));
        assert_eq!((there.running_in_bytes, there.running_left_us), (0, None));
        for (keyspace, model) in &made {
            check(keyspace, model);
        }
    });
}

/// Each state that a job of the device is seen in, once per change.
fn stages_of(world: &World, store: &Store) -> Vec<String> {
    let mut stages: Vec<String> = Vec::new();
    for _ in 0..600 {
        let stats = store.stats();
        let job = stats.jobs.iter().find(|job| job.executor == "device");
        if let Some(job) = job.filter(|job| stages.last() != Some(&job.stage)) {
            stages.push(job.stage.clone());
            assert!(job.left_us.is_none() || job.stage == "running", "{job:?}");
        } else if job.is_none() && !stages.is_empty() {
            return stages;
        }
        world.rt.sleep(Duration::from_millis(100));
    }
    panic!("{stages:?} {:?}", store.stats().sides)
}

/// A job is seen while it runs, while its tables are read back, and while they are installed.
#[test]
fn a_job_is_seen_in_each_stage() {
    simulated(|world| {
        let device = world.device(two_slots());
        let faults = Arc::new(FaultStorage::new(world.storage.clone(), &world.rt));
        let components = world.components(faults.clone(), &[&device]);
        let store = Store::open_with(components, options()).unwrap();
        let made = due(&store, &["a"]);
        world.rt.sleep(Duration::from_secs(60));
        let slow = || Fault::Delay(Duration::from_millis(500));
        faults.add(Rule::on(OpKind::Open, slow()).ending(".tbl").for_good());
        faults.add(Rule::on(OpKind::Sync, slow()).named("MANIFEST").for_good());
        store.test_hooks().pause_compaction(false);
        let stages = stages_of(&world, &store);
        assert_eq!(stages, ["running", "verifying", "finishing"]);
        faults.clear();
        store.wait_until_idle().unwrap();
        check(&made[0].0, &made[0].1);
    });
}

/// A compaction below level 0 waits for a fast device that is busy. It is in the statistics, with
/// the reason.
#[test]
fn a_job_that_waits_for_a_busy_side_is_seen() {
    until_seen([1], |world| {
        let device = world.device(Plan {
            slots: 1,
            job_time: Duration::from_secs(1),
            ..two_slots()
        });
        let options = Options {
            level1_bytes: 256 << 10,
            ..options()
        };
        let components = world.components(world.storage.clone(), &[&device]);
        let store = Store::open_with(components, options).unwrap();
        let mut made = due(&store, &["a", "b", "c", "d"]);
        let mut seen: Vec<JobStats> = Vec::new();
        for round in 0..2 {
            if round > 0 {
                store.test_hooks().pause_compaction(true);
                made.iter_mut()
                    .for_each(|(keyspace, model)| two_runs(keyspace, model));
            }
            world.rt.sleep(Duration::from_secs(60));
            store.test_hooks().pause_compaction(false);
            world.rt.sleep(Duration::from_secs(1));
            loop {
                let stats = store.stats();
                if stats.jobs.is_empty() && stats.waiting_jobs.is_empty() {
                    break;
                }
                let waits = |job: &&JobStats| job.executor == "device";
                let waiting: Vec<_> = stats.waiting_jobs.iter().filter(waits).cloned().collect();
                assert_eq!(sides(&stats)[0].waiting_job_count, waiting.len() as u64);
                assert!(waiting.len() <= 1, "as many as the device has slots");
                seen.extend(waiting);
                world.rt.sleep(Duration::from_millis(200));
            }
            store.wait_until_idle().unwrap();
        }
        for job in &seen {
            assert_eq!(job.stage, "waiting");
            assert!(job.from_level.unwrap() > 0, "{job:?}");
            let is_time = |part: &str| part.ends_with(" s");
            assert!(job.placement.split(", ").all(is_time), "{job:?}");
        }
        for (keyspace, model) in &made {
            check(keyspace, model);
        }
        [seen.len()]
    });
}

struct Recorder(Mutex<Vec<Event>>);

impl EventListener for Recorder {
    fn on_event(&self, event: &Event) {
        self.0.lock().push(event.clone());
    }
}

/// A store whose events are recorded, and whose compactions are paused.
fn open_recorded(world: &World, device: &Arc<Device>) -> (Store, Arc<Recorder>) {
    let recorder = Arc::new(Recorder(world.rt.mutex(Vec::new())));
    let mut components = world.components(world.storage.clone(), &[device]);
    components.listener = Some(recorder.clone());
    let store = Store::open_with(components, options()).unwrap();
    store.test_hooks().pause_compaction(true);
    (store, recorder)
}

/// The events of jobs and sides since the last call, in short.
fn take(world: &World, recorder: &Recorder) -> Vec<String> {
    // They are delivered by a task.
    world.rt.sleep(Duration::from_millis(1));
    let events = std::mem::take(&mut *recorder.0.lock());
    let short = |event: &Event| match event {
        Event::JobPlaced {
            kind,
            in_bytes,
            executor,
            side,
            placement,
            ..
        } => {
            assert!(*in_bytes > 0 && placement.contains("device"), "{event:?}");
            Some(format!("{kind} placed on {executor} ({side})"))
        }
        Event::Flushed { executor, side, .. } => Some(format!("flushed by {executor} ({side})")),
        Event::Compacted { executor, side, .. } => {
            Some(format!("compacted by {executor} ({side})"))
        }
        Event::SideSuspended {
            executor,
            side,
            reason,
            pause_us,
            ..
        } => {
            assert_eq!((&executor[..], &side[..]), ("device", "device"));
            Some(format!("suspended for {pause_us} us: {reason}"))
        }
        Event::SideResumed { executor, .. } => Some(format!("{executor} resumed")),
        Event::JobFailed { .. } => Some(format!("{event:?}")),
        _ => None,
    };
    events.iter().filter_map(short).collect()
}

/// Events say which side runs a job, when a side is suspended and why, and when it works again.
#[test]
fn events_say_where_jobs_run_and_how_sides_fare() {
    simulated(|world| {
        let device = world.device(Plan {
            endings: [Ending::Failed; 4].into(),
            takes_flushes: true,
            job_time: Duration::ZERO,
            ..two_slots()
        });
        let (store, recorder) = open_recorded(&world, &device);
        let keyspace = store.default_keyspace().unwrap();
        let flush = || {
            keyspace.put(b"k", b"v").unwrap();
            keyspace.flush().unwrap();
            take(&world, &recorder)
        };
        let failed = ["flush placed on device (device)", "flushed by cpu (host)"];
        let suspended = |us: u64| {
            let said = format!("suspended for {us} us: the device failed");
            [failed[0], &said, failed[1]].map(String::from)
        };
        assert_eq!([flush(), flush()], [failed, failed]);
        assert_eq!(flush(), suspended(1_000_000));
        let stats = store.stats();
        let [side, _] = sides(&stats);
        assert_eq!((side.failed_count, side.suspended_count), (3, 1));
        assert!(
            (900_000..=1_000_000).contains(&side.suspended_us),
            "{side:?}"
        );
        let failure = side.last_failure.as_deref().unwrap();
        assert!(failure.contains("the device failed"), "{failure}");
        assert_eq!(flush(), ["flushed by cpu (host)"], "it is suspended");
        world.rt.sleep(Duration::from_secs(1));
        assert_eq!(flush(), suspended(2_000_000), "the one job to try it");
        world.rt.sleep(Duration::from_secs(2));
        let works = [
            "flush placed on device (device)",
            "flushed by device (device)",
        ];
        assert_eq!(flush(), [works[0], "device resumed", works[1]]);
        assert_eq!(flush(), works);
        let [side, _] = sides(&store.stats()).map(Clone::clone);
        assert_eq!((side.failed_count, side.suspended_us), (4, 0));
        store.test_hooks().pause_compaction(false);
        store.wait_until_idle().unwrap();
        let compacted = [
            "compaction placed on device (device)",
            "compacted by device (device)",
        ];
        assert_eq!(take(&world, &recorder), compacted);
    });
}

/// A side that is down, or has lost its slots, is idle for a reason that the statistics name, and
/// so does the placement of the jobs that the host does for it.
#[test]
fn statistics_say_why_a_side_is_idle() {
    simulated(|world| {
        let device = world.device(Plan {
            slots: 1,
            takes_flushes: true,
            job_time: Duration::ZERO,
            state: siltstone_table::exec::ExecutorState::Down("its link is down".into()),
            endings: [Ending::Hang(Duration::from_secs(3600))].into(),
            ..two_slots()
        });
        let (store, recorder) = open_recorded(&world, &device);
        let keyspace = store.default_keyspace().unwrap();
        let flush = || {
            keyspace.put(b"k", b"v").unwrap();
            keyspace.flush().unwrap();
            let [side, _] = sides(&store.stats()).map(Clone::clone);
            side
        };
        let side = flush();
        assert_eq!(
            (&side.state[..], side.slot_count),
            ("down: its link is down", 0)
        );
        assert_eq!(take(&world, &recorder), ["flushed by cpu (host)"]);
        device.change(|plan| plan.state = siltstone_table::exec::ExecutorState::Ready);
        let side = flush();
        assert_eq!((side.slot_count, side.lost_slot_count), (1, 1), "it hangs");
        assert_eq!((side.failed_count, side.running_job_count), (1, 0));
        let silent = "it showed no sign of life, and its job was given up";
        assert_eq!(side.last_failure.as_deref(), Some(silent));
        let said = format!("suspended for 1000000 us: {silent}");
        let events = take(&world, &recorder);
        assert_eq!(
            events,
            [
                "flush placed on device (device)",
                &said,
                "flushed by cpu (host)"
            ]
        );
        world.rt.sleep(Duration::from_secs(3700));
        assert_eq!(flush().lost_slot_count, 0, "it has returned");
    });
}

//! Policies of the schedule (`docs/rfc/0010-schedule.md`): queues with two ends, one job at once on
//! a side, the host alone, and jobs over three levels.

use siltstone::{
    Event, EventListener, JobStats, Options, QueueStats, ScheduleOptions, Stats, ThirdScore, Value,
};
use siltstone_storage::Mutex;

use super::*;

/// A compaction that a side has done.
#[derive(Clone, Debug)]
struct Done {
    from_level: u8,
    to_level: u8,
    executor: String,
    placement: String,
}

struct Compactions(Mutex<Vec<Done>>);

impl EventListener for Compactions {
    fn on_event(&self, event: &Event) {
        if let Event::Compacted {
            from_level,
            to_level,
            out_bytes,
            executor,
            placement,
            ..
        } = event
            && *out_bytes > 0
        {
            self.0.lock().push(Done {
                from_level: *from_level,
                to_level: *to_level,
                executor: executor.clone(),
                placement: placement.clone(),
            });
        }
    }
}

pub fn policy(text: &str) -> ScheduleOptions {
    let mut options = Options::default();
    options.set("schedule", &Value::from(text)).unwrap();
    options.schedule
}

/// Small levels, so that levels 1 and 2 are often due.
fn deep_options(text: &str) -> Options {
    Options {
        memtable_bytes: 256 << 10,
        table_bytes: 64 << 10,
        level1_bytes: 64 << 10,
        level_factor: 3,
        background_bytes_per_s: 1 << 20,
        background_tasks: 3,
        schedule: policy(text),
        ..options()
    }
}

/// Whether a job is a compaction that a side executes, or will begin to. A move or a drop is only
/// an edit of the manifest. While an outcome is verified or installed, its side may have the next
/// compaction.
fn is_executed(job: &JobStats) -> bool {
    let is_compaction = !["flush", "move", "drop"].contains(&&job.kind[..]);
    is_compaction && ["reserved", "running"].contains(&&job.stage[..])
}

/// What was seen of a store while it was written.
struct Seen {
    done: Vec<Done>,
    stats: Vec<Stats>,
}

/// Writes keys in an order that spreads them, some again and again, and looks at the statistics
/// meanwhile.
fn write_much(world: &World, devices: &[&Arc<Device>], text: &str) -> Seen {
    write_and(world, devices, text, || ())
}

/// Does something when half is written and merged.
fn write_and(world: &World, devices: &[&Arc<Device>], text: &str, middle: impl FnOnce()) -> Seen {
    let listener = Arc::new(Compactions(world.rt.mutex(Vec::new())));
    let mut components = world.components(world.storage.clone(), devices);
    components.listener = Some(listener.clone());
    let store = Store::open_with(components, deep_options(text)).unwrap();
    store.test_hooks().set_subjob_min_bytes(10_000);
    let keyspace = store.default_keyspace().unwrap();
    let mut model = Model::new();
    let (mut stats, mut middle) = (Vec::new(), Some(middle));
    for i in 0..8000u64 {
        if i == 4000
            && let Some(middle) = middle.take()
        {
            store.wait_until_idle().unwrap();
            middle();
        }
        let key = key(i * 7919 % 2503);
        let value = vec![i as u8; 500];
        keyspace.put(&key, &value).unwrap();
        model.insert(key, value);
        if i % 50 == 0 {
            world.rt.sleep(Duration::from_millis(20));
            stats.push(store.stats());
        }
    }
    store.wait_until_idle().unwrap();
    // After the last job, the workers look for work once more.
    world.rt.sleep(Duration::from_secs(1));
    stats.push(store.stats());
    check(&keyspace, &model);
    assert_eq!(store.stats().counter("job_failed_count"), 0);
    store.close().unwrap();
    check(&world.open(&[]).default_keyspace().unwrap(), &model);
    let done = listener.0.lock().clone();
    Seen { done, stats }
}

/// A device that takes so long for each byte and has no other cost.
fn timed(slots: usize, ns_per_byte: u64) -> Plan {
    Plan {
        slots,
        ns_per_byte,
        is_rate_limited: false,
        takes_flushes: false,
        ..Plan::default()
    }
}

/// The end of the queues from which the device takes, as of statistics of an idle store. The policy
/// compares the sides again and again, so the end has to fit to their measured speeds.
fn end_of_device(stats: &Stats) -> &str {
    let [device, host] = &stats.sides[..] else {
        panic!("{:?}", stats.sides);
    };
    let ends = [&device.queue_end[..], &host.queue_end];
    let is_slower = device.compaction_ns_per_byte > host.compaction_ns_per_byte;
    if device.compaction_count.min(host.compaction_count) >= 5 {
        let expected = match is_slower {
            true => ["small", "large"],
            false => ["large", "small"],
        };
        assert_eq!(ends, expected, "{:?}", stats.sides);
    }
    ends[0]
}

/// The device is the faster side at first, and then the slower one.
#[test]
fn each_side_takes_from_its_end() {
    until_seen([1, 1, 1, 2, 2], |world| {
        let device = world.device(timed(2, 0));
        let slows_down = || device.change(|plan| plan.ns_per_byte = 20_000);
        let seen = write_and(&world, &[&device], "third-score=ends", slows_down);
        let [large, small, of_host] = [
            ("device", "device takes from the large end of level 1"),
            ("device", "device takes from the small end"),
            ("cpu", "host takes from the large end"),
        ]
        .map(|(name, what)| {
            let is_one = |d: &&Done| d.executor == name && d.placement.contains(what);
            seen.done.iter().filter(is_one).count()
        });
        // Level 0 is in no queue.
        let mut of_level_0 = seen.done.iter().filter(|d| d.from_level == 0);
        assert!(of_level_0.all(|d| !d.placement.contains("end of level")));
        let is_large = |stats: &Stats| stats.sides[0].queue_end == "large";
        let was_large = seen.stats.iter().any(is_large);
        let last = seen.stats.last().unwrap();
        // Of the five jobs that count, some may be from before it became slow.
        let is_slow = last.sides[0].compaction_ns_per_byte > Some(10_000.0);
        let became_small = end_of_device(last) == "small" && is_slow;
        [
            large,
            small,
            of_host,
            usize::from(was_large),
            usize::from(became_small),
        ]
    });
}

/// What the end of the device is when both sides were measured and compared, and what it is after
/// the device has become much slower.
fn ends_of_device(world: &World, text: &str) -> [String; 2] {
    let device = world.device(timed(1, 1500));
    let listener = Arc::new(Compactions(world.rt.mutex(Vec::new())));
    let mut components = world.components(world.storage.clone(), &[&device]);
    components.listener = Some(listener.clone());
    let store = Store::open_with(components, deep_options(text)).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let mut model = Model::new();
    let mut write = |from: u64, to: u64| {
        for i in from..to {
            let (key, value) = (key(i * 7919 % 2503), vec![i as u8; 500]);
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        store.wait_until_idle().unwrap();
        // After the last job, the workers look for work once more.
        world.rt.sleep(Duration::from_secs(1));
        store.stats()
    };
    // Until both are measured, and have been compared since.
    let is_measured = |side: &str| {
        let done = listener.0.lock();
        done.iter().filter(|d| d.executor == side).count() > 6
    };
    let (mut written, mut before) = (0, None);
    while before.is_none() || !is_measured("device") || !is_measured("cpu") {
        assert!(written < 100_000, "the sides have too few compactions");
        before = Some(write(written, written + 4_000));
        written += 4_000;
    }
    device.change(|plan| plan.ns_per_byte = 50_000);
    let after = write(written, written + 8_000);
    check(&keyspace, &model);
    let before = before.expect("something was written");
    if text == "third-score=ends" {
        [&before, &after].map(|stats| end_of_device(stats).to_string())
    } else {
        [&before, &after].map(|stats| stats.sides[0].queue_end.clone())
    }
}

/// With `ends-frozen` the first comparison of both sides is kept, although the device becomes slow
/// later. With `ends` it is not.
#[test]
fn a_frozen_order_is_kept() {
    // Whether the device is the faster one at first depends on the jobs that each side gets.
    until_seen([1], |world| {
        let [before, after] = ends_of_device(&world, "third-score=ends-frozen");
        assert_eq!(before, after);
        [usize::from(after == "large")]
    });
    until_seen([1], |world| {
        let [before, after] = ends_of_device(&world, "third-score=ends");
        [usize::from(before == "large" && after == "small")]
    });
}

/// The statistics of a store in which more is due than two slow sides can begin.
fn stats_of_waiting_work(world: &World) -> Vec<Stats> {
    let device = world.device(timed(1, 100_000));
    let components = world.components(world.storage.clone(), &[&device]);
    let slow = Options {
        background_tasks: 2,
        background_bytes_per_s: 100_000,
        ..deep_options("third-score=ends")
    };
    let store = Store::open_with(components, slow).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let mut model = Model::new();
    for round in 0..3u8 {
        store.test_hooks().pause_compaction(true);
        for i in 0..2503u64 {
            let (key, value) = (key(i * 7919 % 2503), vec![round; 500]);
            keyspace.put(&key, &value).unwrap();
            model.insert(key, value);
        }
        keyspace.flush().unwrap();
        store.test_hooks().pause_compaction(false);
        if round < 2 {
            store.wait_until_idle().unwrap();
        }
    }
    let mut seen = Vec::new();
    for _ in 0..200 {
        world.rt.sleep(Duration::from_millis(500));
        seen.push(store.stats());
    }
    store.wait_until_idle().unwrap();
    check(&keyspace, &model);
    seen
}

/// Work that is due and that nobody can begin is shown with its place in a queue.
#[test]
fn waiting_work_is_shown_in_its_queue() {
    until_seen([1, 1, 1], |world| {
        let seen = stats_of_waiting_work(&world);
        let (mut first, mut of_level) = (0, 0);
        for stats in &seen {
            for queue in &stats.queues {
                assert!(queue.work_count > 0 && queue.bytes > 0, "{queue:?}");
                assert!(queue.table_count >= queue.work_count, "{queue:?}");
            }
            let of_queues: u64 = stats.queues.iter().map(|queue| queue.work_count).sum();
            let compactions = stats.waiting_jobs.iter().filter(|job| job.kind != "flush");
            assert_eq!(of_queues, compactions.count() as u64);
            let is_queued = |job: &&JobStats| job.placement.contains("in the queue of level");
            for job in stats.waiting_jobs.iter().filter(is_queued) {
                assert_eq!((&job.stage[..], &job.executor[..]), ("waiting", ""));
                first += usize::from(job.placement.starts_with("1 of "));
                let is_its = |queue: &QueueStats| {
                    Some(queue.level) == job.from_level && queue.keyspace == "default"
                };
                assert!(stats.queues.iter().any(is_its), "{job:?}");
                of_level += 1;
            }
        }
        let scores = seen.iter().flat_map(|s| s.keyspaces[0].level_scores.iter());
        let due = scores.filter(|score| **score > 1.0).count();
        assert_eq!(seen[0].keyspaces[0].level_scores.len(), 7);
        [first, of_level, due]
    });
}

/// With `async-single`, a side has one compaction of one subjob at once.
#[test]
fn one_compaction_at_once_on_a_side() {
    until_seen([4], |world| {
        let device = world.device(Plan {
            parallelism: 3,
            ..timed(4, 500)
        });
        let seen = write_much(&world, &[&device], "async-single");
        assert!(device.most_running() <= 1, "{}", device.most_running());
        assert!(device.ran().iter().all(|ran| ran.subjob_count == 1));
        for stats in &seen.stats {
            let on_host = |job: &&JobStats| job.executor == "cpu" && is_executed(job);
            let running = stats.jobs.iter().filter(on_host).count();
            assert!(running <= 1, "{:?}", stats.jobs);
        }
        [device.ran().len()]
    });
    // Without other executors, too.
    until_seen([1], |world| {
        let seen = write_much(&world, &[], "async-single");
        let mut busy = 0;
        for stats in &seen.stats {
            let running = stats.jobs.iter().filter(|job| is_executed(job)).count();
            assert!(running <= 1, "{:?}", stats.jobs);
            busy += running;
        }
        [busy]
    });
}

/// A search for work asks about few compactions, even if a level stays due whatever is listed. (It
/// once asked about 32 of them, one after the other, whenever a job ended.)
#[test]
fn searches_ask_about_few_compactions() {
    for (text, most) in [
        ("async-single", 12.0),
        ("sync-split", 12.0),
        ("near-data", 30.0),
        ("default", 12.0),
        ("first-score=off", 12.0),
    ] {
        let (mut asked, mut done) = (0, 0);
        for seed in FEW {
            let [of_seed, done_of_seed] = told(seed, move |world| {
                let device = world.device(timed(2, 2000));
                let seen = write_much(&world, &[&device], text);
                [device.asked_count(), seen.done.len() as u64]
            });
            asked += of_seed;
            done += done_of_seed;
        }
        let for_each = asked as f64 / done as f64;
        assert!(
            for_each < most,
            "{text}: {for_each} questions for each compaction"
        );
    }
}

/// While the outcome of a divided compaction is verified, the next one runs, if the device has a
/// second slot.
#[test]
fn the_next_compaction_runs_while_the_last_one_is_verified() {
    for (slots, parts) in [(2, 2), (1, 1)] {
        simulated(move |world| {
            let device = world.device(Plan {
                slots,
                takes_flushes: false,
                ..Plan::default()
            });
            let storage = Arc::new(FaultStorage::new(world.storage.clone(), &world.rt));
            let components = world.components(storage.clone(), &[&device]);
            let divided = Options {
                schedule: policy("sync-split"),
                ..options()
            };
            let store = Store::open_with(components, divided).unwrap();
            store.test_hooks().set_subjob_min_bytes(10_000);
            let made = due(&store, &["a", "b"]);
            // The flushes are paid for.
            world.rt.sleep(Duration::from_secs(60));
            // The first table of the device's part is read when the outcome is verified.
            let slow = Fault::Delay(Duration::from_secs(300));
            storage.add(
                Rule::on(OpKind::Read, slow)
                    .ending("-0001-00000.tbl")
                    .times(1),
            );
            store.test_hooks().pause_compaction(false);
            world.rt.sleep(Duration::from_secs(100));
            let jobs = store.stats().jobs;
            let verified = jobs.iter().filter(|job| job.stage == "verifying");
            assert!(verified.count() >= 1, "{jobs:?}");
            assert_eq!(device.ran().len(), parts, "{jobs:?}");
            store.wait_until_idle().unwrap();
            assert_eq!(device.ran().len(), 2);
            for (keyspace, model) in &made {
                check(keyspace, model);
            }
        });
    }
}

/// With `sync-split`, each compaction is divided between the host and the device, one at a time,
/// and the host does none alone.
#[test]
fn compactions_are_divided_between_two_sides() {
    until_seen([6, 6, 6], |world| {
        let device = world.device(Plan {
            parallelism: 3,
            ..timed(4, 500)
        });
        let seen = write_much(&world, &[&device], "sync-split");
        let name = &seen.stats.last().unwrap().sides[0].name;
        assert!(name.ends_with("+cpu"), "{name}");
        let others: Vec<&Done> = seen.done.iter().filter(|d| &d.executor != name).collect();
        assert!(others.is_empty(), "{others:?}");
        assert!(device.most_running() <= 1, "{}", device.most_running());
        for stats in &seen.stats {
            let running = stats.jobs.iter().filter(|job| is_executed(job)).count();
            assert!(running <= 1, "{:?}", stats.jobs);
        }
        // What each of them did counts for its side.
        let last = seen.stats.last().unwrap();
        let [there, host] = &last.sides[..] else {
            panic!("{:?}", last.sides);
        };
        let parts = [there, host].map(|s| [s.compaction_in_bytes, s.compaction_out_bytes]);
        let whole = ["compaction_in_bytes", "compaction_out_bytes"].map(|name| last.counter(name));
        assert_eq!([0, 1].map(|i: usize| parts[0][i] + parts[1][i]), whole);
        let host_count = host.compaction_count as usize;
        assert!(host_count == 0 || host.compaction_in_bytes > 0, "{host:?}");
        [seen.done.len(), device.ran().len(), host_count]
    });
}

/// With `host-only`, the device gets no job and no question.
#[test]
fn the_host_alone_runs_all_jobs() {
    until_seen([10], |world| {
        let device = world.device(Plan {
            bytes_max: 0,
            takes_flushes: true,
            ..timed(4, 0)
        });
        let seen = write_much(&world, &[&device], "host-only");
        assert!(device.ran().is_empty());
        let side = &seen.stats.last().unwrap().sides[0];
        assert_eq!((&side.refusal, &side.queue_end[..]), (&None, ""));
        assert!(seen.done.iter().all(|d| d.executor == "cpu"));
        [seen.done.len()]
    });
}

/// With the switches of `near-data`, jobs go over three levels on both sides, and all data is there
/// afterwards. `spare-host` is off, because with it the host would get few of them.
#[test]
fn jobs_go_over_three_levels_on_both_sides() {
    fn over_three(world: &World, text: &str) -> [usize; 2] {
        let device = world.device(timed(1, 500));
        let seen = write_much(world, &[&device], text);
        let is_one = |d: &&Done| d.from_level > 0 && d.to_level == d.from_level + 2;
        let on = |name: &str| {
            let done = seen.done.iter().filter(is_one);
            done.filter(|d| d.executor == name).count()
        };
        [on("device"), on("cpu")]
    }
    // Which side gets such a job depends on what else is due at that moment.
    until_seen([1, 1], |world| {
        over_three(&world, "near-data, spare-host=off")
    });
    let without = |world: World| over_three(&world, "near-data, three-levels=off");
    assert_eq!(told(FEW.start, without), [0, 0]);
}

/// The compactions on the host that ended while a store was written, always a little, so that the
/// host's cores are wanted all the time. The device needs twice as long as the host.
fn on_host_while_written(world: &World, text: &str) -> usize {
    let device = world.device(timed(4, 4000));
    let listener = Arc::new(Compactions(world.rt.mutex(Vec::new())));
    let mut components = world.components(world.storage.clone(), &[&device]);
    components.listener = Some(listener.clone());
    let options = Options {
        memtable_bytes: 128 << 10,
        // One worker compacts, so that no two compactions of the host share its rate.
        background_tasks: 2,
        ..deep_options(text)
    };
    let store = Store::open_with(components, options).unwrap();
    let keyspace = store.default_keyspace().unwrap();
    let mut model = Model::new();
    for i in 0..4000u64 {
        let (key, value) = (key(i * 7919 % 2503), vec![i as u8; 500]);
        keyspace.put(&key, &value).unwrap();
        model.insert(key, value);
        if i % 6 == 0 {
            world.rt.sleep(Duration::from_millis(50));
        }
    }
    let done = listener.0.lock().clone();
    store.wait_until_idle().unwrap();
    check(&keyspace, &model);
    store.close().unwrap();
    done.iter().filter(|d| d.executor == "cpu").count()
}

/// While the host's cores are wanted, it runs far fewer compactions with `near-data` than without
/// `spare-host`, although it is the faster side. When nobody writes, it helps in both cases.
#[test]
fn a_spared_host_runs_fewer_compactions() {
    let sum = |text: &'static str| -> usize {
        let on_host = |seed| told(seed, move |world| on_host_while_written(&world, text));
        FEW.map(on_host).sum()
    };
    let (spared, not_spared) = (sum("near-data"), sum("near-data, spare-host=off"));
    assert!(2 * spared < not_spared, "{spared} and {not_spared}");
}

/// Level 0 is due nearly all the time, and level 1 goes down nevertheless, because level 0 comes
/// first only while no other level is more urgent. Otherwise each job from level 0 would keep
/// level 1 from going down, and would be larger than the one before.
#[test]
fn level_1_goes_down_while_level_0_is_due() {
    let mean_of = |seed| {
        told(seed, |world| {
            let device = world.device(timed(2, 1000));
            let seen = write_much(&world, &[&device], "near-data");
            let levels = seen.stats.iter().map(|stats| &stats.keyspaces[0].levels);
            let bytes = levels.map(|levels| levels[1].file_bytes).sum::<u64>();
            bytes / seen.stats.len() as u64
        })
    };
    let means: Vec<u64> = FEW.map(mean_of).collect();
    // Of 25 runs the largest mean was less than twice the target of level 1, and about four times
    // in all of them if level 0 came first.
    let mean = means.iter().sum::<u64>() / means.len() as u64;
    assert!(mean < 3 * (64 << 10), "{mean} of {means:?}");
}

/// Of the two slots of a device, compactions below level 0 get one, so that a job from level 0 need
/// not wait for one of them to end.
#[test]
fn one_of_several_slots_is_kept_for_level_0() {
    until_seen([1, 1], |world| {
        let device = world.device(timed(2, 1000));
        let seen = write_much(&world, &[&device], "near-data");
        let (mut below, mut both) = (0, 0);
        for stats in &seen.stats {
            let jobs = stats.jobs.iter();
            let on_device = jobs.filter(|job| job.executor == "device" && job.is_under_way());
            let levels: Vec<_> = on_device.map(|job| job.from_level).collect();
            let count = levels.iter().filter(|level| **level > Some(0)).count();
            assert!(count <= 1, "{levels:?}");
            below += count;
            both += usize::from(levels.len() == 2);
        }
        [below, both]
    });
}

/// Without fallback, what a device has failed with waits for that device, and the host does none of
/// it. With fallback the host does some.
#[test]
fn without_fallback_failed_work_waits_for_a_device() {
    fn counts(world: &World, text: &str) -> [usize; 3] {
        let device = world.device(Plan {
            endings: [Ending::Failed; 9].into(),
            ..timed(2, 100)
        });
        let seen = write_much(world, &[&device], text);
        let is_kept = |done: &&Done| done.placement.contains("the host does not get");
        let kept: Vec<&Done> = seen.done.iter().filter(is_kept).collect();
        assert!(kept.iter().all(|done| done.executor != "cpu"), "{kept:?}");
        let last = seen.stats.last().unwrap();
        let failed = last.sides.iter().map(|side| side.failed_count).max();
        let fallbacks = last.counter("job_fallback_count");
        [kept.len(), failed.unwrap_or(0) as usize, fallbacks as usize]
    }
    let without = |text: &'static str| {
        move |world: World| {
            let [kept, failed, fallbacks] = counts(&world, text);
            assert_eq!(fallbacks, 0, "{text}");
            [kept, failed]
        }
    };
    until_seen([1, 1], without("default, fallback=off"));
    until_seen([1, 1], without("near-data, fallback=off"));
    until_seen([1, 1], |world| {
        let [kept, failed, fallbacks] = counts(&world, "default");
        assert_eq!(kept, 0, "nothing is kept off the host");
        [failed, fallbacks]
    });
}

/// What cannot work is refused at the open, and no store is made.
#[test]
fn policies_that_cannot_work_are_refused() {
    simulated(|world| {
        let device = world.device(timed(1, 0));
        let open = |schedule: ScheduleOptions, devices: &[&Arc<Device>]| {
            let components = world.components(world.storage.clone(), devices);
            let options = Options {
                schedule,
                ..options()
            };
            Store::open_with(components, options).map(|_| ())
        };
        let said = open(policy("near-data"), &[]).unwrap_err().to_string();
        assert!(said.contains("another executor"), "{said}");
        let split = ScheduleOptions {
            third_score: ThirdScore::Split,
            ..ScheduleOptions::default()
        };
        for devices in [&[][..], &[&device, &device]] {
            let said = open(split, devices).unwrap_err().to_string();
            assert!(said.contains("one other executor"), "{said}");
        }
        assert!(world.folder().is_empty(), "{:?}", world.folder());
        open(policy("near-data"), &[&device]).unwrap();
        // The policy is not stored with the store.
        open(policy("default"), &[]).unwrap();
    });
}

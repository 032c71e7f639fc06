//! Storage calls that fail, once or for good: no wrong answers meanwhile, a store that says what became of it, and one that comes back when it is opened again.

use std::sync::Arc;
use std::time::Duration;

use siltstone::ErrorKind;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, StorageErrorKind};

use super::{Run, STEPS, simulate_counted};
use crate::checker::{Check, check_now};
use crate::coverage::Coverage;
use crate::model::{Bytes, Op};
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::{Plan, draw_options};
use crate::world::{Errors, World};

fn draw_rule(rng: &mut Rng) -> (Rule, String) {
    let kind = *rng.pick(&[
        StorageErrorKind::Io,
        StorageErrorKind::Io,
        StorageErrorKind::NoSpace,
    ]);
    let fault = match rng.below(8) {
        0 => Fault::FailAfter(kind),
        1 => Fault::ShortAppend {
            per_mille: rng.below(1001) as u32,
            kind,
        },
        _ => Fault::Fail(kind),
    };
    let mut rule = match rng.below(10) {
        0..4 => Rule::on_changes(fault),
        4 => Rule::on_reads(fault),
        5 => Rule::on(OpKind::Sync, fault),
        6 => Rule::on(OpKind::Append, fault),
        7 => Rule::on(OpKind::SyncDir, fault),
        8 => Rule::on(OpKind::Create, fault),
        _ => Rule::on(OpKind::Reserve, fault),
    };
    let most = *rng.pick(&[5, 30, 100, 400]);
    rule = rule.nth(rng.below(most));
    rule = match rng.below(3) {
        0 => rule.for_good(),
        1 => rule.times(1 + rng.below(8)),
        _ => rule,
    };
    let text = format!("{rule:?}");
    (rule, text)
}

/// A call, or some, that take long.
fn draw_delay(rng: &mut Rng) -> Rule {
    let delay = *rng.pick(&[1, 30, 900]);
    let fault = Fault::Delay(Duration::from_millis(delay));
    let rule = match rng.below(4) {
        0 => Rule::on_changes(fault),
        1 => Rule::on_reads(fault),
        _ => Rule::on(OpKind::Sync, fault),
    };
    let most = *rng.pick(&[5, 30, 100]);
    rule.nth(rng.below(most)).times(1 + rng.below(20))
}

/// A few calls on tables fail, of those that the jobs make after some work: what an attempt had finished is taken over by the next one.
fn draw_rule_on_tables(rng: &mut Rng) -> Rule {
    let fault = match rng.below(4) {
        0 => Fault::FailAfter(StorageErrorKind::Io),
        _ => Fault::Fail(StorageErrorKind::Io),
    };
    let (kind, most) = *rng.pick(&[(OpKind::Create, 5), (OpKind::Append, 20)]);
    let rule = Rule::on(kind, fault).ending(".tbl");
    rule.nth(1 + rng.below(most)).times(1 + rng.below(2))
}

/// Has everything compacted by jobs of several tables, some of whose attempts fail; they go on behind each other, and end well.
fn compact_with_failing_attempts(
    run: &Run,
    world: &World,
    faulty: &FaultStorage,
    rng: &mut Rng,
) -> Check {
    let Some(name) = world.store.keyspaces().pop() else {
        return Ok(());
    };
    let keyspace = world.store.keyspace(&name).map_err(|e| e.to_string())?;
    for _ in 0..2 + rng.below(3) {
        let put = |key: &Bytes| Op::Put(keyspace.id(), key.clone(), run.plan.value(rng));
        let all: Vec<Op> = run.plan.keys.iter().map(put).collect();
        for some in all.chunks(20) {
            world.write_batch(some.to_vec(), false)?;
        }
        faulty.add(draw_rule_on_tables(rng));
        if let Err(e) = keyspace.compact_range(None, None) {
            world.allow(&e, &[ErrorKind::KeyspaceDropped], "compact_range")?;
        }
        // What failed is tried again after a while.
        run.runtime.sleep(Duration::from_millis(rng.below(3000)));
    }
    Ok(())
}

/// One seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn fault_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut rng = Rng::new(seed ^ 0xFA17);
        let mut run = Run::new(&runtime, &mut rng);
        let medium = MemoryStorage::new(&runtime);
        let options = draw_options(&mut rng);
        // A first life without faults, so that there is something to open.
        let world = run.must_open(&medium, &options, "first life")?;
        world.settings_after_open()?;
        let mut more = rng.clone().fork(1);
        let has_attempts = more.chance(10);
        if has_attempts {
            // Levels of many tables.
            run.plan = Arc::new(Plan::clone(&run.plan).with_large_values());
        }
        run.work(&world, 1, 30, &mut rng)?;
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        drop(world);

        let faulty = FaultStorage::new(Arc::new(medium.clone()), &runtime);
        let (rule, mut text) = draw_rule(&mut rng);
        faulty.add(rule);
        // What came later draws from numbers of its own.
        let mut late = rng.clone().fork(3);
        let (mut failing, mut delays, mut deletions) = (vec![0], Vec::new(), Vec::new());
        if late.chance(35) {
            let (second, told) = draw_rule(&mut late);
            text = format!("{text}, and {told}");
            failing.push(faulty.add(second));
        }
        if late.chance(35) {
            let delay = draw_delay(&mut late);
            text = format!("{text}, and {delay:?}");
            delays.push(faulty.add(delay));
        }
        // A deletion that fails now must be repeated by this store, not by the next open.
        let mut later = late.clone().fork(6);
        if later.chance(35) {
            let fault = match later.chance(30) {
                true => Fault::FailAfter(StorageErrorKind::Io),
                false => Fault::Fail(StorageErrorKind::Io),
            };
            let rule = Rule::on(OpKind::Delete, fault);
            let rule = rule.nth(later.below(6)).times(1 + later.below(3));
            text = format!("{text}, and {rule:?}");
            deletions.push(faulty.add(rule));
        }
        let what = format!("{options:?}; {text}");
        let told = |e: String| format!("{what}: {e}");
        if rng.chance(70) {
            faulty.disarm();
        }
        let opened = run.open(
            &medium,
            Arc::new(faulty.clone()),
            &options,
            Errors::Expected,
        );
        let world = match opened {
            Ok(world) => world,
            Err(error) => {
                run.coverage.add("fault.open_refused");
                if !matches!(
                    error.kind(),
                    ErrorKind::Io | ErrorKind::NoSpace | ErrorKind::Poisoned
                ) {
                    return Err(told(format!("open: {error}")));
                }
                faulty.disarm();
                run.open(
                    &medium,
                    Arc::new(faulty.clone()),
                    &options,
                    Errors::Expected,
                )
                .map_err(|e| told(format!("open after a refused open: {e}")))?
            }
        };
        world.settings_after_open()?;
        faulty.arm();
        // What fails for good stalls writers for good, visibly; somebody changes the disk.
        let repaired = faulty.clone();
        let clock = runtime.clone();
        runtime
            .spawn("repair", move || {
                clock.sleep(Duration::from_secs(5));
                repaired.disarm();
            })
            .map_err(|e| e.to_string())?;
        let (clients, count) = (1 + rng.below(3), 20 + rng.below(60));
        run.work(&world, clients, count, &mut rng).map_err(told)?;
        if has_attempts {
            compact_with_failing_attempts(&run, &world, &faulty, &mut more).map_err(told)?;
        }
        faulty.disarm();
        let count = |rules: &[usize]| rules.iter().map(|rule| faulty.fired_count(*rule)).sum();
        let fired: u64 = count(&failing);
        run.coverage.add_count("fault.fired", fired);
        run.coverage.add_count("fault.slow", count(&delays));
        run.coverage.add_count("fault.deletion", count(&deletions));
        if failing.len() > 1 && failing.iter().all(|rule| faulty.fired_count(*rule) > 0) {
            run.coverage.add("fault.two");
        }
        check_now(&world.store, &run.history, &world.plan.keys, &mut rng)
            .map_err(|e| told(format!("after the fault: {e}")))?;

        // Poisoned stays; anything else passes by itself.
        let mut last = None;
        for _ in 0..100 {
            let names = world.store.keyspaces();
            let result = match names.first() {
                Some(name) => {
                    let keyspace = world.store.keyspace(name).map_err(|e| e.to_string())?;
                    let op = Op::Put(
                        keyspace.id(),
                        b"after".as_slice().into(),
                        b"all".as_slice().into(),
                    );
                    lock(&run.history).announce(vec![op.clone()]);
                    keyspace
                        .put(b"after", b"all")
                        .inspect_err(|_| lock(&run.history).withdraw(&[op]))
                }
                None => Ok(()),
            };
            match result {
                Ok(()) => {
                    last = None;
                    break;
                }
                Err(e) if e.kind() == ErrorKind::Poisoned => {
                    last = Some(e);
                    break;
                }
                Err(e) => last = Some(e),
            }
            runtime.sleep(Duration::from_millis(500));
        }
        let mut poisoned = match last {
            None => false,
            Some(e) if e.kind() == ErrorKind::Poisoned => {
                if fired == 0 {
                    return Err(told(format!("poisoned without a fault: {e}")));
                }
                true
            }
            Some(e) => return Err(told(format!("writes do not resume: {e}"))),
        };
        run.coverage.add(if poisoned {
            "fault.poisoned"
        } else {
            "fault.passed"
        });
        if !poisoned && let Err(e) = run.check_all(&world, &mut rng) {
            // A call that had met its fault before the rules were taken away may tell it only now.
            poisoned = e.contains("injected") && world.store.stats().health != "good";
            if !poisoned {
                return Err(told(format!("after it passed: {e}")));
            }
        }
        if !poisoned {
            run.work_mended(&world, &mut late).map_err(told)?;
        }
        let close = run.close(&world);
        if let Err(e) = &close
            && !poisoned
        {
            return Err(told(format!("close: {e}")));
        }
        drop(world);
        let (acked, synced) = {
            let history = lock(&run.history);
            (history.acked, history.synced)
        };
        let (mut image, mut least) = (medium.kill_in(&runtime), acked);
        if rng.chance(50) {
            image = medium.crash_in(&runtime, CrashPolicy::Seeded(rng.draw())).0;
            least = synced;
        }
        for round in 0..2 {
            let world = run.must_open(&image, &draw_options(&mut rng), &what)?;
            run.settle(&world.store, least)
                .map_err(|e| told(format!("reopened, round {round}: {e}")))?;
            world.take_settings(false)?;
            run.work(&world, 1, 10, &mut rng)
                .map_err(|e| told(format!("reopened, round {round}: {e}")))?;
            least = lock(&run.history).synced;
            image = image.crash_in(&runtime, CrashPolicy::LoseUnsynced).0;
            run.coverage.add("fault.reopened");
        }
        Ok(run.coverage)
    })
}

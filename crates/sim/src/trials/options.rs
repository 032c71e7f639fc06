//! Random operations under random option sets, in several lives, which end by a close, a kill or a
//! power loss.
//!
//! A seed draws options, the media of log, tables and a second location of tables, executors that
//! fail and lie, the size at which the manifest is rewritten, clients, and operations.

use std::sync::Arc;

use siltstone_storage::JoinHandle;

use super::closing::check_closed;
use super::media::{End, Media};
use super::offline::{Offline, destroy};
use super::{Promised, Run, STEPS, simulate_counted};
use crate::checker::{Check, find_prefix};
use crate::coverage::Coverage;
use crate::executors::OtherExecutors;
use crate::model::Op;
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::{Plan, draw_options};
use crate::world::{Errors, World};

/// Runs one seed: up to three lives of one store, each with other options.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn options_trial(seed: u64) -> Coverage {
    lives(seed, 20, 170, STEPS)
}

/// Runs one seed with up to 5,000 operations: levels fill up, log segments are recycled, and
/// settings change during the run.
///
/// # Panics
/// In the same cases as [`options_trial`].
pub fn options_trial_long(seed: u64) -> Coverage {
    lives(seed ^ 0x10E6, 1000, 5000, STEPS * 20)
}

/// Each client makes `least` to `most` operations. If `most` is larger than any number of clients,
/// this is the number for all clients of a seed together.
fn lives(seed: u64, least: u64, most: u64, max_steps: u64) -> Coverage {
    simulate_counted(seed, max_steps, move |runtime| {
        let mut rng = Rng::new(seed);
        let mut run = Run::new(&runtime, &mut rng);
        // Parts that were added later draw from their own random numbers.
        let mut more = rng.clone().fork(2);
        let mut limits = rng.clone().fork(4);
        if limits.chance(15) {
            let plan = Plan::clone(&run.plan).with_limits(&mut limits);
            run.plan = Arc::new(plan);
            run.coverage.add("keys.up_to_the_longest");
        }
        let mut media = Media::draw(&runtime, &mut more);
        let mut second = rng.clone().fork(5);
        if second.chance(40) {
            media.add_redirect(&runtime);
        }
        run.coverage.add(&format!("layout.{}", media.describe()));
        let lives = 1 + rng.below(3);
        // After a kill, a power loss may still take unsynced writes, until the store is open again.
        let mut before = Promised::default();
        let is_long = max_steps > STEPS;
        for life in 0..lives {
            let options = draw_options(&mut rng);
            let what = format!("life {life} of {lives}, {}, {options:?}", media.describe());
            let with_context = |e: String| format!("{what}: {e}");
            run.restart_settings(before.settings);
            run.restart_numbers(before.given);
            before.settings = 0;
            let seen = match media.only() {
                Some(medium) => Offline::at(&mut run, medium, &mut rng).map_err(with_context)?,
                None => Offline::default(),
            };
            media.start_journals();
            let other_executors = OtherExecutors::draw(&runtime, &mut more);
            let world = run
                .open_on(
                    media.main(),
                    media.storages(),
                    other_executors,
                    &options,
                    Errors::Fatal,
                )
                .map_err(|e| format!("{what}: open: {e}"))?;
            let mut model = run.model();
            let end = find_prefix(&world.store, &mut model, before.acked).map_err(with_context)?;
            seen.compare(&run.model(), end, &world.store)
                .map_err(with_context)?;
            run.settle_at(end);
            world.settings_after_open().map_err(with_context)?;
            media.main().mark(format!("s{end}"));
            let hooks = world.store.test_hooks();
            world.choose_location(&mut second);
            if more.chance(50) {
                hooks.roll_manifest_from(1 << more.below(14));
            }
            let clients = 1 + rng.below(4);
            let count = least + rng.below(most - least);
            let count = if is_long {
                count / lives / clients
            } else {
                count
            };
            run.coverage.add_count("operations", clients * count);
            let mut late = rng.clone().fork(3);
            let work = run
                .start(&world, clients, count, &mut rng)
                .map_err(with_context)?;
            if limits.chance(10) {
                large_group(&mut run, &world, &mut limits).map_err(with_context)?;
            }
            // The policy `adoc` makes memtables larger than those that are refused.
            let tunes = options.stall_policy == siltstone::StallPolicy::Adoc;
            if late.chance(25) && !tunes {
                write_without_memory(&world, &mut late).map_err(with_context)?;
            }
            if late.chance(25) {
                close_beside(&mut run, &world, work, &mut late).map_err(with_context)?;
                run.late_executors_change_nothing(&world)
                    .map_err(with_context)?;
            } else {
                Run::join(work).map_err(with_context)?;
                if rng.chance(60) {
                    run.check_all(&world, &mut rng).map_err(with_context)?;
                }
                let rolls = hooks.manifest_roll_count();
                run.coverage.add_count("manifest.rolled", rolls);
                run.close(&world)
                    .map_err(|e| with_context(format!("close: {e}")))?;
            }
            drop((hooks, world));
            let last = run.model().last();
            let settled = lock(&run.history).settings.settled();
            let after = Promised {
                acked: last,
                synced: last,
                settings: settled,
                given: before.given.max(last),
            };
            if late.chance(20) {
                check_closed(&runtime, &media, &mut late, &mut run.coverage)
                    .map_err(with_context)?;
            }
            let way = match rng.below(3) {
                0 => None,
                1 => Some(End::Kill),
                _ => Some(End::Power),
            };
            let Some(way) = way else {
                run.coverage.add("life.closed");
                before = after;
                continue;
            };
            let left = media.end(&runtime, way, before, &mut rng);
            run.coverage.take_crash(&left.report);
            before = left.promised;
            media = left.media;
            if matches!(way, End::Kill) {
                run.coverage.add("life.killed");
            } else {
                run.coverage.add("life.power_lost");
                before.acked = before.synced;
            }
        }
        run.check_copies()?;
        if let Some(medium) = media.only()
            && rng.chance(30)
        {
            destroy(&mut run, medium, &mut rng)?;
        }
        Ok(run.coverage)
    })
}

/// Many writers at once, whose batches one leader writes as one group.
fn large_group(run: &mut Run, world: &Arc<World>, rng: &mut Rng) -> Check {
    let Some(keyspace) = world.store.keyspaces().pop() else {
        return Ok(());
    };
    let Ok(keyspace) = world.store.keyspace(&keyspace) else {
        return Ok(());
    };
    let count = 65 + rng.index(60);
    let hooks = world.store.test_hooks();
    let held = hooks.hold_writes();
    let start = |i: usize| {
        let value = [&[i as u8], &rng.draw().to_le_bytes()[..]].concat();
        let op = Op::Put(keyspace.id(), run.plan.key(rng), value.into());
        let (world, sync) = (world.clone(), rng.chance(2));
        let write = move || world.write_batch(vec![op], sync);
        let task = run.runtime.spawn(&format!("writer-{i}"), write);
        task.map_err(|e| e.to_string())
    };
    let writers = (0..count).map(start).collect::<Result<Vec<_>, _>>()?;
    // Some writers may first wait for flushes and compactions.
    for _ in 0..100 {
        if hooks.queued_writer_count() >= count {
            break;
        }
        run.runtime.sleep(std::time::Duration::from_millis(1));
    }
    if hooks.queued_writer_count() > 64 {
        run.coverage.add("group.of_more_than_64");
    }
    drop(held);
    Run::join(writers)
}

/// Large values for which there is no memory, while clients work: writers to another keyspace are
/// not affected.
fn write_without_memory(world: &Arc<World>, rng: &mut Rng) -> Check {
    let names = world.store.keyspaces();
    if names.is_empty() {
        return Ok(());
    }
    let name = rng.pick(&names).clone();
    world.starve();
    for _ in 0..4 + rng.below(12) {
        if let Ok(keyspace) = world.store.keyspace(&name) {
            world.write_too_much(&keyspace)?;
        }
        for _ in 0..rng.below(60) {
            world.runtime.yield_point();
        }
    }
    Ok(())
}

/// Closes the store while its clients work. The closed store has every write that was acknowledged
/// to them. After the close they get the error that the store is closed, and its log does not grow.
fn close_beside(
    run: &mut Run,
    world: &Arc<World>,
    work: Vec<JoinHandle<Check>>,
    rng: &mut Rng,
) -> Check {
    let most = *rng.pick(&[50, 500, 3000]);
    for _ in 0..rng.below(most) {
        world.runtime.yield_point();
    }
    let busy = work.iter().filter(|task| !task.is_finished()).count();
    run.close_beside_clients(world)
        .map_err(|e| format!("close beside {busy} clients: {e}"))?;
    let last = run.model().last();
    Run::join(work).map_err(|e| format!("beside a close: {e}"))?;
    let later = run.model().last();
    if later != last {
        return Err(format!(
            "the store was closed at {last}, and its log was given {later} later"
        ));
    }
    if busy > 0 {
        run.coverage.add("life.closed_beside_clients");
    }
    Ok(())
}

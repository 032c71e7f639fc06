//! Power loss at random calls of a run, with random losses; again during the recovery from it; and
//! once more after work on the recovered store.

use siltstone_storage::{CrashPolicy, CrashReport, MemoryStorage};

use super::closing::{check_closed_on, is_closed};
use super::moments::{self, Moment};
use super::{OTHER_EXECUTORS_PERCENT, Promised, Run, STEPS, simulate_counted};
use crate::checker::{check_now, find_prefix};
use crate::coverage::Coverage;
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::draw_options;

/// The number of crashes of one run.
const CRASHES: u64 = 6;

/// Runs one seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn power_trial(seed: u64) -> Coverage {
    power_loss(seed, OTHER_EXECUTORS_PERCENT)
}

/// Runs one seed without executors beside the host's own.
///
/// # Panics
/// As [`power_trial`].
pub fn power_trial_alone(seed: u64) -> Coverage {
    power_loss(seed, 0)
}

fn power_loss(seed: u64, other_executors_percent: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x5057);
        let mut run = Run::new(&runtime, &mut rng);
        run.offer_other_executors(seed, other_executors_percent);
        let medium = MemoryStorage::new(&runtime);
        let options = draw_options(&mut rng);
        medium.start_journal();
        let world = run.must_open(&medium, &options, "first life")?;
        let hooks = world.store.test_hooks();
        if rng.chance(30) {
            hooks.roll_manifest_from(1 << rng.below(14));
        }
        let (clients, count) = (1 + rng.below(3), 20 + rng.below(80));
        run.work(&world, clients, count, &mut rng)
            .map_err(|e| format!("{options:?}: {e}"))?;
        let rolls = hooks.manifest_roll_count();
        run.coverage.add_count("manifest.rolled", rolls);
        drop(hooks);
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        let mut replay = medium.replay();
        let mut late = rng.clone().fork(3);
        if late.chance(10) {
            check_closed_on(&runtime, &medium, &mut late, &mut run.coverage)?;
        }
        let mut places: Vec<Moment> = (0..CRASHES)
            .map(|_| moments::draw(replay.marks(), replay.len(), 0, &mut rng))
            .collect();
        places.sort_unstable_by_key(|moment| moment.at);
        for moment in places {
            let n = moment.at;
            replay.advance_to(n);
            let policy = moments::draw_policy(moment, &mut rng);
            let promised = Promised::at(&replay, Promised::default());
            let killed = rng.chance(20);
            // The crash happens during the next call, if that call can be interrupted partway.
            let middle = rng.chance(40).then(|| rng.draw());
            let least = if killed {
                promised.acked
            } else {
                promised.synced
            };
            let within = middle.and_then(|seed| match killed {
                true => replay.kill_within(&runtime, seed),
                false => replay.crash_within(&runtime, policy, seed),
            });
            if within.is_some() {
                run.coverage.add("crash.in_the_middle");
            }
            let what = format!(
                "{options:?}: {} {} call {n} of {}, {policy:?}",
                if killed { "kill" } else { "power loss" },
                if within.is_some() {
                    "in the middle of"
                } else {
                    "before"
                },
                replay.len()
            );
            let (image, report) = within.unwrap_or_else(|| match killed {
                true => (replay.kill_in(&runtime), CrashReport::default()),
                false => replay.crash_in(&runtime, policy),
            });
            run.coverage.take_crash(&report);
            let mut least = least;
            if is_closed(&image) {
                // Writes that were lost were not acknowledged before the close.
                least = promised.acked;
                run.coverage.add("crash.closed");
            }
            run.coverage.add(if killed {
                "crash.kills"
            } else {
                "crash.power_losses"
            });
            let reached = recover(&run, image, least, promised, &what, &mut rng)?;
            run.coverage.merge(&reached);
            run.coverage.add("crash.recovered");
        }
        Ok(run.coverage)
    })
}

/// Opens an image, which must show everything up to `least`, and compares it. `before` has the
/// promises that a loss of power must keep. Then loses power during that recovery and compares
/// again. Then works, loses power, and compares again.
fn recover(
    run: &Run,
    image: MemoryStorage,
    least: u64,
    before: Promised,
    what: &str,
    rng: &mut Rng,
) -> Result<Coverage, String> {
    let mut run = run.fork();
    let options = draw_options(rng);
    let with_context = |e: String| format!("{what}; then with {options:?}: {e}");
    let synced = before.synced;
    run.restart_settings(before.settings);
    run.restart_numbers(before.given);
    let before_recovery = run.fork();
    image.start_journal();
    let world = run.must_open(&image, &options, what)?;
    let mut model = run.model();
    let end = find_prefix(&world.store, &mut model, least).map_err(with_context)?;
    run.settle_at(end);
    world.settings_after_open().map_err(with_context)?;
    check_now(&world.store, &run.history, &world.plan.keys, rng)
        .map_err(|e| with_context(format!("after recovery at {end}: {e}")))?;
    image.mark(format!("s{end}"));
    let recovery_len = image.journal_len();

    // Power is lost during the recovery.
    let mut replay = image.replay();
    let moment = moments::draw(&[], recovery_len, 0, rng);
    let at = moment.at;
    replay.advance_to(at);
    let policy = moments::draw_policy(moment, rng);
    let promised = Promised::at(
        &replay,
        Promised {
            acked: synced,
            synced,
            settings: 0,
            given: before.given,
        },
    );
    let twice = replay.crash_in(&run.runtime, policy).0;
    {
        let second = before_recovery;
        // The first recovery may have stored the settings that its open requested.
        let names = second.model().all_keyspaces();
        lock(&second.history)
            .settings
            .wish(&names, &options.keyspaces);
        let what =
            format!("{what}; again at call {at} of {recovery_len} of the recovery, {policy:?}");
        let mut world = second.must_open(&twice, &draw_options(rng), &what)?;
        find_prefix(&world.store, &mut second.model(), promised.synced)
            .map_err(|e| format!("{what}: {e}"))?;
        run.coverage.add("crash.recovered_twice");
        world
            .settings_after_open()
            .map_err(|e| format!("{what}: {e}"))?;
        // Even a power loss right after the open loses nothing that the open showed.
        let mut model = second.model();
        let end = find_prefix(&world.store, &mut model, promised.synced)?;
        second.settle_at(end);
        drop(world);
        let third = twice.crash_in(&run.runtime, CrashPolicy::LoseUnsynced).0;
        world = second.must_open(&third, &draw_options(rng), &what)?;
        find_prefix(&world.store, &mut second.model(), end)
            .map_err(|e| format!("{what}; and once more: {e}"))?;
    }

    // The run continues.
    if rng.chance(50) {
        let clients = 1 + rng.below(2);
        run.work(&world, clients, 30, rng).map_err(with_context)?;
        run.check_all(&world, rng).map_err(with_context)?;
        run.close(&world)
            .map_err(|e| with_context(format!("close: {e}")))?;
        let mut replay = image.replay();
        let moment = moments::draw(replay.marks(), replay.len(), recovery_len, rng);
        replay.advance_to(moment.at);
        let promised = Promised::at(
            &replay,
            Promised {
                acked: end,
                synced: end,
                settings: 0,
                given: before.given,
            },
        );
        let policy = moments::draw_policy(moment, rng);
        let later = replay.crash_in(&run.runtime, policy).0;
        let what = format!(
            "{what}; after more work at call {} of {}, {policy:?}",
            replay.position(),
            replay.len()
        );
        run.restart_settings(promised.settings);
        let world = run.must_open(&later, &draw_options(rng), &what)?;
        let mut model = run.model();
        let end = find_prefix(&world.store, &mut model, promised.synced)
            .map_err(|e| format!("{what}: {e}"))?;
        run.settle_at(end);
        world
            .settings_after_open()
            .map_err(|e| format!("{what}: {e}"))?;
        run.restart_numbers(promised.given);
        run.work(&world, 1, 5, &mut rng.clone().fork(1))
            .map_err(|e| format!("{what}: {e}"))?;
        run.coverage.add("crash.recovered_after_more_work");
    } else {
        run.close(&world)
            .map_err(|e| with_context(format!("close: {e}")))?;
    }
    Ok(std::mem::take(&mut run.coverage))
}

//! Power loss at random calls of a run, with random losses; again during the recovery from it; and
//! once more after work on the recovered store. In a part of the seeds the store has a second
//! location of tables, whose medium loses power at the same moment.

use siltstone_storage::{CrashPolicy, MemoryStorage};

use super::closing::{check_closed, is_closed};
use super::media::{End, Journals, Media};
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
        // A second location draws from random numbers of its own, so the other seeds run unchanged.
        let mut second = rng.clone().fork(5);
        let mut media = Media::one(MemoryStorage::named(&runtime, "/store"));
        if second.chance(25) {
            media.add_redirect(&runtime);
            run.coverage.add("crash.second_location");
        }
        let options = draw_options(&mut rng);
        media.start_journals();
        let world = run.must_open_on(&media, &options, "first life")?;
        world.choose_location(&mut second);
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
        let mut journals = media.journals();
        let len = journals.own().len();
        let mut late = rng.clone().fork(3);
        if late.chance(10) {
            check_closed(&runtime, &media, &mut late, &mut run.coverage)?;
        }
        let mut places: Vec<Moment> = (0..CRASHES)
            .map(|_| moments::draw(journals.own().marks(), len, 0, &mut rng))
            .collect();
        places.sort_unstable_by_key(|moment| moment.at);
        for moment in places {
            let n = moment.at;
            advance(&mut journals, n, &mut second);
            let policy = moments::draw_policy(moment, &mut rng);
            let promised = Promised::at(journals.own(), Promised::default());
            let killed = rng.chance(20);
            // The crash happens during the next call, if that call can be interrupted partway.
            let middle = rng.chance(40).then(|| rng.draw());
            let least = if killed {
                promised.acked
            } else {
                promised.synced
            };
            let end = if killed { End::Kill } else { End::Power };
            let ended = journals.end(&runtime, end, policy, middle);
            if ended.is_within {
                run.coverage.add("crash.in_the_middle");
            }
            let what = format!(
                "{options:?}: {} {} call {n} of {len}, {}{policy:?}",
                if killed { "kill" } else { "power loss" },
                if ended.is_within {
                    "in the middle of"
                } else {
                    "before"
                },
                journals.describe_others(),
            );
            run.coverage.take_crash(&ended.report);
            let image = ended.media;
            let mut least = least;
            if is_closed(image.main()) {
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

/// Moves to a moment after `n` changes of the store's own medium, with a second location to any such
/// moment.
fn advance(journals: &mut Journals, n: u64, second: &mut Rng) {
    let moments = journals.moments(n, &[]);
    let mark_count = match moments.len() {
        1 => moments[0],
        _ => *second.pick(&moments),
    };
    journals.advance_to(n, mark_count);
}

/// Opens an image, which must show everything up to `least`, and compares it. `before` has the
/// promises that a loss of power must keep. Then loses power during that recovery and compares
/// again. Then works, loses power, and compares again.
fn recover(
    run: &Run,
    image: Media,
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
    let mut second = rng.clone().fork(5);
    image.start_journals();
    let world = run.must_open_on(&image, &options, what)?;
    let mut model = run.model();
    let end = find_prefix(&world.store, &mut model, least).map_err(with_context)?;
    run.settle_at(end);
    world.settings_after_open().map_err(with_context)?;
    check_now(&world.store, &run.history, &world.plan.keys, rng)
        .map_err(|e| with_context(format!("after recovery at {end}: {e}")))?;
    image.main().mark(format!("s{end}"));
    let recovery_len = image.main().journal_len();

    // Power is lost during the recovery.
    let mut journals = image.journals();
    let moment = moments::draw(&[], recovery_len, 0, rng);
    let at = moment.at;
    advance(&mut journals, at, &mut second);
    let policy = moments::draw_policy(moment, rng);
    let promised = Promised::at(
        journals.own(),
        Promised {
            acked: synced,
            synced,
            settings: 0,
            given: before.given,
        },
    );
    let twice = journals.end(&run.runtime, End::Power, policy, None).media;
    {
        let again = before_recovery;
        // The first recovery may have stored the settings that its open requested.
        let names = again.model().all_keyspaces();
        lock(&again.history)
            .settings
            .wish(&names, &options.keyspaces);
        let what =
            format!("{what}; again at call {at} of {recovery_len} of the recovery, {policy:?}");
        let mut world = again.must_open_on(&twice, &draw_options(rng), &what)?;
        find_prefix(&world.store, &mut again.model(), promised.synced)
            .map_err(|e| format!("{what}: {e}"))?;
        run.coverage.add("crash.recovered_twice");
        world
            .settings_after_open()
            .map_err(|e| format!("{what}: {e}"))?;
        // Even a power loss right after the open loses nothing that the open showed.
        let mut model = again.model();
        let end = find_prefix(&world.store, &mut model, promised.synced)?;
        again.settle_at(end);
        drop(world);
        let third = twice.end_now(&run.runtime, Some(CrashPolicy::LoseUnsynced));
        world = again.must_open_on(&third, &draw_options(rng), &what)?;
        find_prefix(&world.store, &mut again.model(), end)
            .map_err(|e| format!("{what}; and once more: {e}"))?;
    }

    // The run continues.
    world.choose_location(&mut second);
    if rng.chance(50) {
        let clients = 1 + rng.below(2);
        run.work(&world, clients, 30, rng).map_err(with_context)?;
        run.check_all(&world, rng).map_err(with_context)?;
        run.close(&world)
            .map_err(|e| with_context(format!("close: {e}")))?;
        let mut journals = image.journals();
        let len = journals.own().len();
        let moment = moments::draw(journals.own().marks(), len, recovery_len, rng);
        advance(&mut journals, moment.at, &mut second);
        let promised = Promised::at(
            journals.own(),
            Promised {
                acked: end,
                synced: end,
                settings: 0,
                given: before.given,
            },
        );
        let policy = moments::draw_policy(moment, rng);
        let later = journals.end(&run.runtime, End::Power, policy, None).media;
        let what = format!(
            "{what}; after more work at call {} of {len}, {policy:?}",
            moment.at
        );
        run.restart_settings(promised.settings);
        let world = run.must_open_on(&later, &draw_options(rng), &what)?;
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

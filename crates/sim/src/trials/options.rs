//! Random operations under random option sets, in several lives: closed, killed, or cut off from power in between.

use siltstone_storage::{CrashPolicy, MemoryStorage};

use super::looks::{Looks, destroy};
use super::{Promised, Run, simulate};
use crate::checker::find_prefix;
use crate::coverage::Coverage;
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::draw_options;

/// One seed: up to three lives of one store, each with other options.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn options_trial(seed: u64) -> Coverage {
    simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed);
        let mut run = Run::new(&runtime, &mut rng);
        let mut medium = MemoryStorage::new(&runtime);
        let lives = 1 + rng.below(3);
        // Of what a kill left, power may still take what was not synced, until the store is open again.
        let mut before = Promised::default();
        for life in 0..lives {
            let options = draw_options(&mut rng);
            let what = format!("life {life} of {lives}, {options:?}");
            let told = |e: String| format!("{what}: {e}");
            run.restart_settings(before.settings);
            before.settings = 0;
            let seen = Looks::at(&mut run, &medium, &mut rng).map_err(told)?;
            medium.start_journal();
            let world = run.must_open(&medium, &options, &what)?;
            let mut model = run.model();
            let end = find_prefix(&world.store, &mut model, before.acked).map_err(told)?;
            seen.compare(&run.model(), end, &world.store)
                .map_err(told)?;
            run.settle_at(end);
            world.settings_after_open().map_err(told)?;
            medium.mark(format!("s{end}"));
            let clients = 1 + rng.below(4);
            let count = 20 + rng.below(150);
            run.work(&world, clients, count, &mut rng).map_err(told)?;
            if rng.chance(60) {
                run.check_all(&world, &mut rng).map_err(told)?;
            }
            run.close(&world).map_err(|e| told(format!("close: {e}")))?;
            drop(world);
            let last = run.model().last();
            let settled = lock(&run.history).settings.settled();
            let after = Promised {
                acked: last,
                synced: last,
                settings: settled,
            };
            match rng.below(3) {
                0 => {
                    run.coverage.add("life.closed");
                    before = after;
                }
                way => {
                    let mut replay = medium.replay();
                    replay.advance_to(rng.below(replay.len() + 1));
                    let promised = Promised::at(&replay, before);
                    before = promised;
                    if way == 1 {
                        run.coverage.add("life.killed");
                        medium = replay.kill_in(&runtime);
                    } else {
                        run.coverage.add("life.power_lost");
                        medium = replay.crash_in(&runtime, CrashPolicy::Seeded(rng.draw())).0;
                        before.acked = promised.synced;
                    }
                }
            }
        }
        run.check_copies()?;
        if rng.chance(30) {
            destroy(&mut run, &medium, &mut rng)?;
        }
        Ok(run.coverage)
    })
}

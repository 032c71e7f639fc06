//! Fixed stories in which every storage call fails in turn: calls of the store, of the checkpoint's
//! folder, and of the folder of tables outside.

use std::time::Duration;

use siltstone::{Components, ErrorKind, Store};
use siltstone_storage::fault::{Fault, Fired, Rule};
use siltstone_storage::{CrashPolicy, OpKind, Storage, StorageErrorKind};

use super::stories::{Stage, Story, check_moved, options};
use super::{OTHER_EXECUTORS_PERCENT, Run, simulate};
use crate::checker::{check_now, find_prefix};
use crate::coverage::Coverage;
use crate::observe::lock;
use crate::rng::Rng;
use crate::world::admin::reading_options;

/// Plays a story once for each call number `seed`, `seed` + `share`, ..., at which a call fails,
/// until the story ends before that call. `place` selects the storage that fails: `s`tore, its
/// second location of tables (`l`), `t`arget of the checkpoint, or outside (`x`). How it fails
/// depends on the seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn every_fault(seed: u64, story: Story, place: char, share: u64) -> Coverage {
    faults(seed, story, place, share, OTHER_EXECUTORS_PERCENT)
}

/// Does the same as [`every_fault`] without executors besides the host's own.
///
/// # Panics
/// In the same cases as [`every_fault`].
pub fn every_fault_alone(seed: u64, story: Story, place: char, share: u64) -> Coverage {
    faults(seed, story, place, share, 0)
}

fn faults(
    seed: u64,
    story: Story,
    place: char,
    share: u64,
    other_executors_percent: u64,
) -> Coverage {
    let mut coverage = Coverage::default();
    let mut nth = seed % share;
    let one = |nth, for_good| one(seed, story, place, nth, for_good, other_executors_percent);
    loop {
        let (fired, reached) = one(nth, false);
        if fired {
            // The story runs again with all calls from this one on failing.
            coverage.merge(&one(nth, true).1);
        } else {
            coverage.add_count(&format!("every_fault.calls.{story:?}.{place}"), nth);
            return coverage;
        }
        coverage.merge(&reached);
        nth += share;
    }
}

fn draw_fault(rng: &mut Rng) -> Fault {
    let kind = *rng.pick(&[StorageErrorKind::Io, StorageErrorKind::NoSpace]);
    match rng.below(4) {
        0 => Fault::FailAfter(kind),
        1 => Fault::ShortAppend {
            per_mille: rng.below(1001) as u32,
            kind,
        },
        _ => Fault::Fail(kind),
    }
}

/// Runs one story. Returns whether it met the fault, and the coverage.
fn one(
    seed: u64,
    story: Story,
    place: char,
    nth: u64,
    for_good: bool,
    other_executors_percent: u64,
) -> (bool, Coverage) {
    simulate(seed << 20 | nth, move |runtime| {
        let mut rng = Rng::new(seed << 20 | nth);
        let mut run = Run::new(&runtime, &mut rng);
        run.offer_other_executors(seed << 8 | story as u64, other_executors_percent);
        let (mut stage, faults) = Stage::with_faults(run, story, place);
        let fault = draw_fault(&mut rng);
        let rule = Rule::on_any(fault).nth(nth);
        faults.add(if for_good { rule.for_good() } else { rule });
        let what =
            format!("{story:?}, call {nth} at {place} meets {fault:?}, for good: {for_good}");
        let with_context = |e: String| format!("{what}: {e}");
        // A permanent fault stalls writers permanently, and visibly, until the disk is replaced.
        let (clear_faults, clock) = (stage.fault_clearer(), runtime.clone());
        let repair = runtime.spawn("repair", move || {
            clock.sleep(Duration::from_secs(5));
            clear_faults();
        });
        repair.map_err(|e| e.to_string())?;
        stage.play(story, &mut rng).map_err(with_context)?;
        let Some(fired) = faults.fired().first().cloned() else {
            return Ok((false, Coverage::default()));
        };
        let what = format!("{what}: {:?} {}", fired.kind, fired.name);
        let with_context = |e: String| format!("{what}: {e}");
        let mut coverage = std::mem::take(&mut stage.run.coverage);
        coverage.add(match for_good {
            true => "every_fault.fired_for_good",
            false => "every_fault.fired",
        });
        coverage.add(&format!("every_fault.{}", fired.kind.name()));

        // The store must open again, whatever was lost.
        let (acked, synced) = {
            let history = lock(&stage.run.history);
            (history.acked, history.synced)
        };
        let power = rng.chance(50);
        let (lost, least) = match power {
            true => (Some(CrashPolicy::Seeded(rng.draw())), synced),
            false => (None, acked),
        };
        let image = stage.media.end_now(&runtime, lost);
        let run = stage.run.fork();
        // A failed sync of a folder may lose deletions for good. If the store has left the folder
        // afterwards, such a table comes back with the power, and belongs to nobody.
        let lost_names = |fired: &Fired| fired.kind == OpKind::SyncDir;
        let may_return = place == 'l' && faults.fired().iter().any(lost_names);
        if may_return && image.move_unowned_tables_away()? {
            coverage.add("every_fault.table_came_back");
        }
        let world = run.must_open_on(&image, &options(), &what)?;
        let end = run.settle(&world.store, least).map_err(with_context)?;
        check_now(&world.store, &run.history, &world.plan.keys, &mut rng).map_err(with_context)?;
        if image.has_redirect() {
            world.all_tables_come_back().map_err(with_context)?;
        }
        let moved = stage.run.outside.journal_len();
        check_moved(&stage.moved, &run.history, &stage.run.outside, moved, end)
            .map_err(with_context)?;
        match &stage.copy {
            Some(copy) if !power || end >= copy.published => {
                copy.verify(&runtime).map_err(with_context)?;
            }
            Some(copy) => {
                return Err(with_context(format!(
                    "a checkpoint shows {}, its source lost all above {end}",
                    copy.published
                )));
            }
            None if story == Story::Checkpoint => {
                check_failed_checkpoint(&stage, &world, &mut coverage).map_err(with_context)?;
            }
            None => {}
        }
        // The state that the reopen showed must stay, even if the power fails after it. Pages of a
        // failed sync look as if they were stored.
        let policy = match rng.chance(50) {
            true => CrashPolicy::LoseUnsynced,
            false => CrashPolicy::Seeded(rng.draw()),
        };
        let later = image.end_now(&runtime, Some(policy));
        world
            .store
            .clone()
            .close()
            .map_err(|e| with_context(e.to_string()))?;
        coverage.add("every_fault.reopened");
        let last = run.fork();
        last.restart_settings(0);
        if may_return && later.move_unowned_tables_away()? {
            coverage.add("every_fault.table_came_back");
        }
        let world = last.must_open_on(&later, &options(), &what)?;
        find_prefix(&world.store, &mut last.model(), end)
            .map_err(|e| with_context(format!("{policy:?} after the reopen: {e}")))?;
        world
            .store
            .clone()
            .close()
            .map_err(|e| with_context(e.to_string()))?;
        coverage.add("every_fault.power_lost_after_the_reopen");
        Ok((true, coverage))
    })
}

/// Checks that a failed checkpoint is no store or a whole one. If it is no store, the next
/// checkpoint to the same folder replaces it.
fn check_failed_checkpoint(
    stage: &Stage,
    world: &crate::world::World,
    coverage: &mut Coverage,
) -> Result<(), String> {
    let storage: std::sync::Arc<dyn Storage> = std::sync::Arc::new(stage.target.clone());
    let components = Components::on(storage.clone(), stage.run.runtime.clone());
    match Store::open_read_only_with(components, reading_options()) {
        Ok(store) => {
            coverage.add("every_fault.checkpoint_whole_all_the_same");
            store.verify(&mut |_| {}).map_err(|e| e.to_string())?;
            store.close().map_err(|e| e.to_string())
        }
        Err(e) if e.kind() == ErrorKind::NotFound => {
            coverage.add("every_fault.checkpoint_taken_up");
            let copy = world.checkpoint_to(storage, &stage.target)?;
            copy.ok_or("no checkpoint was written")?
                .verify(&stage.run.runtime)
        }
        Err(e) => Err(format!("opening a checkpoint that failed: {e}")),
    }
}

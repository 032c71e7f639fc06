//! Fixed stories that are crashed at every storage call, and whose recoveries are crashed in turn.

use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::{Components, ErrorKind, KeyspaceOptions, Store};
use siltstone_storage::{CrashPolicy, CrashReport, JournalReplay, MemoryStorage, Storage};

use super::closing::is_closed;
use super::stories::{Stage, Story, check_moved, options};
use super::{OTHER_EXECUTORS_PERCENT, Promised, Run, simulate};
use crate::checker::{Check, find_prefix};
use crate::coverage::Coverage;
use crate::marking::moments;
use crate::rng::Rng;
use crate::world::World;
use crate::world::admin::reading_options;

/// The share of a story that a seed takes.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    /// One in this many calls is crashed.
    pub calls: u64,
    /// One in this many pairs of a crash and a call of its recovery is crashed again.
    pub pairs: u64,
}

/// The state that a crash of a story leaves: the images of all media at one moment.
struct Crashed {
    what: String,
    image: MemoryStorage,
    target: MemoryStorage,
    outside: MemoryStorage,
    outside_place: u64,
    /// The promises of the store.
    promised: Promised,
    /// The number up to which the store must show all writes.
    least: u64,
    /// Whether the checkpoint was acknowledged.
    copied: bool,
}

/// Crashes a story at its calls, in several ways. The choice of calls and pairs moves with the
/// seed, so that as many consecutive seeds as the share's denominator cover all of them.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn scenario(seed: u64, story: Story, share: Share) -> Coverage {
    simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x5CE);
        let mut run = Run::new(&runtime, &mut rng);
        run.offer_other_executors(seed << 8 | story as u64, OTHER_EXECUTORS_PERCENT);
        let mut stage = Stage::new(run);
        stage
            .play(story, &mut rng)
            .map_err(|e| format!("{story:?}: {e}"))?;
        let mut replay = stage.medium.replay();
        let (mut target, mut outside) = (stage.target.replay(), stage.run.outside.replay());
        let mut pair = seed;
        for n in (0..=replay.len()).filter(|n| (n + seed).is_multiple_of(share.calls)) {
            replay.advance_to(n);
            stage.run.coverage.add(&format!("{story:?}.calls"));
            if let Some(kind) = replay.kind(n) {
                let kind = format!("scenario.before.{}", kind.name());
                stage.run.coverage.add(&kind);
            }
            let places = joint(&replay);
            for (i, (at_target, at_outside)) in places.iter().enumerate() {
                target.advance_to(*at_target);
                outside.advance_to(*at_outside);
                // The store's own next call comes only after the other media have done everything
                // that came before it.
                let is_next = i + 1 == places.len();
                let others = (&target, &outside);
                for crashed in crash(&mut stage, seed, &replay, others, is_next) {
                    let what = format!("{story:?}, {}", crashed.what);
                    crashed
                        .recover(&mut stage, story, share.pairs, &mut pair)
                        .map_err(|e| format!("{what}: {e}"))?;
                }
            }
        }
        let calls = format!("{story:?}.calls_of_all_seeds");
        stage.run.coverage.add_count(&calls, replay.len() + 1);
        Ok(stage.run.coverage)
    })
}

/// The combined positions at which the other media may have been. Only one medium at a time is
/// changed.
fn joint(replay: &JournalReplay) -> Vec<(u64, u64)> {
    let (target, outside) = (moments(replay, 't'), moments(replay, 'x'));
    let (last_target, last_outside) = (target[target.len() - 1], outside[outside.len() - 1]);
    let mut all: Vec<(u64, u64)> = target.into_iter().map(|t| (t, outside[0])).collect();
    all.extend(outside.into_iter().map(|x| (last_target, x)));
    debug_assert!(all.ends_with(&[(last_target, last_outside)]));
    all.dedup();
    all
}

/// The position of the target when its checkpoint was acknowledged, if it was.
fn copied_at(replay: &JournalReplay) -> Option<u64> {
    let marks = replay.marks_so_far();
    let acknowledged = marks.iter().position(|mark| mark.label == "c1")?;
    let place = |label: &str| label.strip_prefix('t')?.parse::<u64>().ok();
    let before = marks[..acknowledged].iter().rev();
    Some(before.filter_map(|m| place(&m.label)).next().unwrap_or(0))
}

fn crash(
    stage: &mut Stage,
    seed: u64,
    replay: &JournalReplay,
    (target, outside): (&JournalReplay, &JournalReplay),
    is_next: bool,
) -> Vec<Crashed> {
    let runtime = &stage.run.runtime.clone();
    let n = replay.position();
    let promised = Promised::at(replay, Promised::default());
    // The target may be at an earlier position of this same moment.
    let copied = copied_at(replay).is_some_and(|place| target.position() >= place);
    let what = format!(
        "call {n} of {} ({:?}), {} of {} at the target, {} of {} outside",
        replay.len(),
        replay.kind(n.saturating_sub(1)),
        target.position(),
        target.len(),
        outside.position(),
        outside.len(),
    );
    let policies = [
        CrashPolicy::LoseUnsynced,
        CrashPolicy::KeepUnsynced,
        CrashPolicy::Seeded(seed << 32 | n),
    ];
    let mut all: Vec<Crashed> = policies
        .map(|policy| Crashed {
            what: format!("{what}, {policy:?}"),
            image: replay.crash_in(runtime, policy).0,
            target: target.crash_in(runtime, policy).0,
            outside: outside.crash_in(runtime, policy).0,
            outside_place: outside.position(),
            promised,
            least: promised.synced,
            copied,
        })
        .into();
    let killed = |what: String, image| Crashed {
        what,
        image,
        target: target.kill_in(runtime),
        outside: outside.kill_in(runtime),
        outside_place: outside.position(),
        promised,
        least: promised.acked,
        copied,
    };
    all.push(killed(format!("{what}, kill"), replay.kill_in(runtime)));
    if !is_next {
        return all;
    }
    // The crash happens during the next call, if that call can be interrupted partway.
    let seed = seed << 32 | n;
    if let Some((image, report)) = replay.kill_within(runtime, seed) {
        all.push(killed(
            format!("{what}, kill in the next call's middle"),
            image,
        ));
        stage.run.coverage.take_crash(&report);
        stage.run.coverage.add("scenario.killed_in_the_middle");
    }
    let policy = CrashPolicy::Seeded(seed);
    if let Some((image, report)) = replay.crash_within(runtime, policy, seed) {
        all.push(Crashed {
            what: format!("{what}, {policy:?} in the next call's middle"),
            image,
            target: target.crash_in(runtime, policy).0,
            outside: outside.crash_in(runtime, policy).0,
            outside_place: outside.position(),
            promised,
            least: promised.synced,
            copied,
        });
        stage.run.coverage.take_crash(&report);
        stage.run.coverage.add("scenario.power_lost_in_the_middle");
    }
    all
}

impl Crashed {
    fn recover(&self, stage: &mut Stage, story: Story, share: u64, pair: &mut u64) -> Check {
        self.image.start_journal();
        let mut least = self.least;
        if is_closed(&self.image) {
            // Writes that were lost were not acknowledged before that close.
            least = self.promised.acked;
            stage.run.coverage.add("scenario.closed");
        }
        let (world, end) = recovered(&stage.run, &self.image, least, self.promised.settings)?;
        stage.run.coverage.add("scenario.recovered");
        stage.run.coverage.add(&format!("{story:?}.crashes"));
        self.check_copy(stage, &world, end)?;
        check_moved(
            &stage.moved,
            &stage.run.history,
            &self.outside,
            self.outside_place,
            end,
        )?;
        let text = |e: siltstone::Error| e.to_string();
        world.store.clone().close().map_err(text)?;
        if pair.is_multiple_of(5) {
            let report = check(&CheckStorages::on(&self.image), &mut |_| {}).map_err(text)?;
            if !report.is_sound() {
                return Err(format!("after the recovery: {:?}", report.problems));
            }
        }
        // The recovery is crashed at every call.
        let mut again = self.image.replay();
        for m in 0..=again.len() {
            *pair += 1;
            if !pair.is_multiple_of(share) {
                continue;
            }
            again.advance_to(m);
            let promised = Promised::at(&again, self.promised);
            let seed = *pair << 24 | m;
            let policy = match *pair / share % 3 {
                0 => CrashPolicy::LoseUnsynced,
                _ => CrashPolicy::Seeded(seed),
            };
            // It is also crashed during its next call, by a power loss or by a kill.
            let runtime = &stage.run.runtime;
            let killed = *pair / share % 4 == 1;
            let (image, _) = match *pair / share % 4 {
                0 => again.crash_within(runtime, policy, seed),
                1 => Some((again.kill_in(runtime), CrashReport::default())),
                _ => None,
            }
            .unwrap_or_else(|| again.crash_in(runtime, policy));
            // A kill loses nothing that the first crash had left.
            let least = match killed {
                true => promised.synced.max(self.least),
                // Everything that this recovery had when it was closed is there. Writes that the
                // first crash lost stay lost.
                false if is_closed(&image) => end,
                false => promised.synced,
            };
            let settings = self.promised.settings;
            let (world, _) = recovered(&stage.run, &image, least, settings)
                .map_err(|e| format!("recovery crashed at call {m} of {}: {e}", again.len()))?;
            world.store.clone().close().map_err(text)?;
            stage.run.coverage.add("scenario.recovered_twice");
            stage.run.coverage.add(&format!("{story:?}.pairs"));
        }
        let pairs = format!("{story:?}.pairs_there_are");
        stage.run.coverage.add_count(&pairs, again.len() + 1);
        Ok(())
    }

    /// Checks that the checkpoint is whole and not newer than its source, or that it is no store
    /// and the next checkpoint replaces it.
    fn check_copy(&self, stage: &mut Stage, world: &World, end: u64) -> Check {
        let Some(copy) = &stage.copy else {
            return Ok(());
        };
        let storage: Arc<dyn Storage> = Arc::new(self.target.clone());
        let components = Components::on(storage.clone(), stage.run.runtime.clone());
        match Store::open_read_only_with(components, reading_options()) {
            Ok(store) => {
                store.close().map_err(|e| e.to_string())?;
                if end < copy.published {
                    return Err(format!(
                        "a checkpoint shows {}, its source lost all above {end}",
                        copy.published
                    ));
                }
                let mut found = copy.clone();
                found.medium = self.target.clone();
                found.verify(&stage.run.runtime)?;
                stage.run.coverage.add("scenario.checkpoint_whole");
            }
            Err(e) if e.kind() == ErrorKind::NotFound && !self.copied => {
                let was_begun = !storage.list().map_err(|e| e.to_string())?.is_empty();
                let again = world.checkpoint_to(storage, &self.target)?;
                again
                    .ok_or("no checkpoint was written")?
                    .verify(&stage.run.runtime)?;
                stage.run.coverage.add(match was_begun {
                    true => "scenario.checkpoint_taken_up",
                    false => "scenario.checkpoint_not_begun",
                });
            }
            Err(e) => return Err(format!("opening the checkpoint: {e}")),
        }
        Ok(())
    }
}

/// Opens an image, finds the prefix of the history that it shows, and compares the settings.
fn recovered(
    run: &Run,
    image: &MemoryStorage,
    least: u64,
    settings: usize,
) -> Result<(Arc<World>, u64), String> {
    let next = run.fork();
    next.restart_settings(settings);
    let mut options = options();
    // Half of the opens request a setting for a keyspace, which a crash may cut off.
    if next.model().records().len().is_multiple_of(2) {
        let own = KeyspaceOptions {
            l0_stop_count: Some(12),
            ..KeyspaceOptions::default()
        };
        options.keyspaces.insert("a".to_string(), own);
    }
    let world = next.must_open(image, &options, "recovery")?;
    let mut model = next.model();
    let end = find_prefix(&world.store, &mut model, least)?;
    next.settle_at(end);
    image.mark(format!("s{end}"));
    world.settings_after_open()?;
    Ok((world, end))
}

//! Fixed stories that are crashed at every storage call, and whose recoveries are crashed in turn.

use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::{Components, ErrorKind, KeyspaceOptions, Store};
use siltstone_storage::{CrashPolicy, JournalReplay, MemoryStorage, Storage};

use super::closing::is_closed;
use super::media::{End, Ended, Journals, Media};
use super::stories::{Stage, Story, check_moved, options};
use super::{OTHER_EXECUTORS_PERCENT, Promised, Run, simulate};
use crate::checker::{Check, find_prefix};
use crate::coverage::Coverage;
use crate::marking::last_position;
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
    image: Media,
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
        let mut stage = Stage::new(run, story);
        stage
            .play(story, &mut rng)
            .map_err(|e| format!("{story:?}: {e}"))?;
        let mut journals = stage.media.journals();
        let (mut target, mut outside) = (stage.target.replay(), stage.run.outside.replay());
        let mut pair = seed;
        let len = journals.own().len();
        for n in (0..=len).filter(|n| (n + seed).is_multiple_of(share.calls)) {
            stage.run.coverage.add(&format!("{story:?}.calls"));
            if let Some(kind) = journals.own().kind(n) {
                let kind = format!("scenario.before.{}", kind.name());
                stage.run.coverage.add(&kind);
            }
            let moments = journals.moments(n, &['t', 'x']);
            for (i, mark_count) in moments.iter().enumerate() {
                journals.advance_to(n, *mark_count);
                let marks = &journals.own().marks()[..*mark_count];
                target.advance_to(last_position(marks, 't'));
                outside.advance_to(last_position(marks, 'x'));
                // The store's own next call comes only after the other media have done everything
                // that came before it.
                let is_next = i + 1 == moments.len() || !journals.is_own_next();
                let others = (&target, &outside);
                for crashed in crash(&mut stage, seed, &journals, others, is_next) {
                    let what = format!("{story:?}, {}", crashed.what);
                    crashed
                        .recover(&mut stage, story, share.pairs, &mut pair)
                        .map_err(|e| format!("{what}: {e}"))?;
                }
            }
        }
        let calls = format!("{story:?}.calls_of_all_seeds");
        stage.run.coverage.add_count(&calls, len + 1);
        Ok(stage.run.coverage)
    })
}

/// The position of the target when its checkpoint was acknowledged, if it was.
fn copied_at(replay: &JournalReplay) -> Option<u64> {
    let marks = replay.marks_so_far();
    let acknowledged = marks.iter().position(|mark| mark.label == "c1")?;
    Some(last_position(&marks[..acknowledged], 't'))
}

fn crash(
    stage: &mut Stage,
    seed: u64,
    journals: &Journals,
    (target, outside): (&JournalReplay, &JournalReplay),
    is_next: bool,
) -> Vec<Crashed> {
    let runtime = &stage.run.runtime.clone();
    let (replay, n) = (journals.own(), journals.own().position());
    let promised = Promised::at(replay, Promised::default());
    // The target may be at an earlier position of this same moment.
    let copied = copied_at(replay).is_some_and(|place| target.position() >= place);
    let what = format!(
        "call {n} of {} ({:?}), {}{} of {} at the target, {} of {} outside",
        replay.len(),
        replay.kind(n.saturating_sub(1)),
        journals.describe_others(),
        target.position(),
        target.len(),
        outside.position(),
        outside.len(),
    );
    let lost = |what: String, policy, ended: Ended| Crashed {
        what,
        image: ended.media,
        target: target.crash_in(runtime, policy).0,
        outside: outside.crash_in(runtime, policy).0,
        outside_place: outside.position(),
        promised,
        least: promised.synced,
        copied,
    };
    let killed = |what: String, ended: Ended| Crashed {
        what,
        image: ended.media,
        target: target.kill_in(runtime),
        outside: outside.kill_in(runtime),
        outside_place: outside.position(),
        promised,
        least: promised.acked,
        copied,
    };
    let seeded = CrashPolicy::Seeded(seed << 32 | n);
    let end = |end, policy, within| journals.end(runtime, end, policy, within);
    let policies = [CrashPolicy::LoseUnsynced, CrashPolicy::KeepUnsynced, seeded];
    let mut all: Vec<Crashed> = policies
        .map(|policy| {
            let ended = end(End::Power, policy, None);
            lost(format!("{what}, {policy:?}"), policy, ended)
        })
        .into();
    all.push(killed(
        format!("{what}, kill"),
        end(End::Kill, seeded, None),
    ));
    if !is_next {
        return all;
    }
    // The crash happens during the next call, if that call can be interrupted partway.
    let within = Some(seed << 32 | n);
    let ended = end(End::Kill, seeded, within);
    if ended.is_within {
        stage.run.coverage.take_crash(&ended.report);
        stage.run.coverage.add("scenario.killed_in_the_middle");
        let what = format!("{what}, kill in the next call's middle");
        all.push(killed(what, ended));
    }
    let ended = end(End::Power, seeded, within);
    if ended.is_within {
        stage.run.coverage.take_crash(&ended.report);
        stage.run.coverage.add("scenario.power_lost_in_the_middle");
        let what = format!("{what}, {seeded:?} in the next call's middle");
        all.push(lost(what, seeded, ended));
    }
    all
}

impl Crashed {
    fn recover(&self, stage: &mut Stage, story: Story, share: u64, pair: &mut u64) -> Check {
        self.image.start_journals();
        let mut least = self.least;
        if is_closed(self.image.main()) {
            // Writes that were lost were not acknowledged before that close.
            least = self.promised.acked;
            stage.run.coverage.add("scenario.closed");
        }
        let (world, shown) = recovered(&stage.run, &self.image, least, self.promised.settings)?;
        stage.run.coverage.add("scenario.recovered");
        stage.run.coverage.add(&format!("{story:?}.crashes"));
        self.check_copy(stage, &world, shown)?;
        check_moved(
            &stage.moved,
            &stage.run.history,
            &self.outside,
            self.outside_place,
            shown,
        )?;
        let text = |e: siltstone::Error| e.to_string();
        world.store.clone().close().map_err(text)?;
        if pair.is_multiple_of(5) {
            let storages = self.image.storages();
            let report = check(&CheckStorages::of(&storages), &mut |_| {}).map_err(text)?;
            if !report.is_sound() {
                return Err(format!("after the recovery: {:?}", report.problems));
            }
        }
        // The recovery is crashed at every call.
        let mut again = self.image.journals();
        let len = again.own().len();
        let moments = (0..=len).flat_map(|m| {
            let at_call = again.moments(m, &[]);
            at_call.into_iter().map(move |mark_count| (m, mark_count))
        });
        let moments: Vec<(u64, usize)> = moments.collect();
        for (m, mark_count) in &moments {
            *pair += 1;
            if !pair.is_multiple_of(share) {
                continue;
            }
            again.advance_to(*m, *mark_count);
            let promised = Promised::at(again.own(), self.promised);
            let seed = *pair << 24 | m;
            let policy = match *pair / share % 3 {
                0 => CrashPolicy::LoseUnsynced,
                _ => CrashPolicy::Seeded(seed),
            };
            // It is also crashed during its next call, by a power loss or by a kill.
            let runtime = &stage.run.runtime;
            let killed = *pair / share % 4 == 1;
            let end = if killed { End::Kill } else { End::Power };
            let within = (*pair / share).is_multiple_of(4).then_some(seed);
            let image = again.end(runtime, end, policy, within).media;
            // A kill loses nothing that the first crash had left.
            let least = match killed {
                true => promised.synced.max(self.least),
                // Everything that this recovery had when it was closed is there. Writes that the
                // first crash lost stay lost.
                false if is_closed(image.main()) => shown,
                false => promised.synced,
            };
            let settings = self.promised.settings;
            let (world, _) = recovered(&stage.run, &image, least, settings)
                .map_err(|e| format!("recovery crashed at call {m} of {len}: {e}"))?;
            world.store.clone().close().map_err(text)?;
            stage.run.coverage.add("scenario.recovered_twice");
            stage.run.coverage.add(&format!("{story:?}.pairs"));
        }
        let pairs = format!("{story:?}.pairs_there_are");
        stage.run.coverage.add_count(&pairs, moments.len() as u64);
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

/// Opens an image, finds the prefix of the history that it shows, and compares the settings. Tables
/// at a second location must come back, and leave nothing there.
fn recovered(
    run: &Run,
    image: &Media,
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
    let world = next.must_open_on(image, &options, "recovery")?;
    let mut model = next.model();
    let end = find_prefix(&world.store, &mut model, least)?;
    next.settle_at(end);
    image.main().mark(format!("s{end}"));
    world.settings_after_open()?;
    if image.has_redirect() {
        world.all_tables_come_back()?;
        find_prefix(&world.store, &mut next.model(), end)?;
    }
    Ok((world, end))
}

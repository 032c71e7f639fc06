//! A disk that is full from some call on.
//!
//! On a full disk, writes are refused with `NoSpace` and no other error, reads continue and are
//! right, and keyspaces can be dropped. Writing resumes by itself when there is space again. A
//! store on a full disk can be opened. In a part of the seeds the manifest has a disk of its own,
//! which is the one that is full, and it outgrows its space after a few edits because its keys are
//! long.
//!
//! Threading: one task, its clients, and one that makes space after a while. Without it, writers
//! that wait for space would wait forever.

use std::sync::Arc;
use std::time::Duration;

use siltstone::{ErrorKind, Options};
use siltstone_storage::{CrashPolicy, MemoryStorage, ObjectMeta, OpKind, Runtime};

use super::failed_syncs::try_put;
use super::media::Media;
use super::{OTHER_EXECUTORS_PERCENT, Run, STEPS, simulate_counted};
use crate::checker::{Check, check_now, find_prefix};
use crate::coverage::Coverage;
use crate::model::Bytes;
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::{Plan, draw_options};
use crate::world::{Errors, World};

/// Leaves `free_bytes` bytes of space on the disk.
fn leave(medium: &MemoryStorage, free_bytes: u64) {
    medium.set_capacity(Some(medium.used_bytes() + free_bytes));
}

/// Draws the number of bytes that a full disk still has.
fn draw_free(rng: &mut Rng) -> u64 {
    *rng.pick(&[0, 0, 4 << 10, 20 << 10, 64 << 10, 200 << 10, 1 << 20])
}

/// Whether the space that the store reserves for a full disk is there. A loss of power may leave
/// the name of a reserve without its bytes.
fn has_reserves(there: &[ObjectMeta]) -> bool {
    let len = |name: &str| there.iter().find(|o| o.name == name).map_or(0, |o| o.len);
    let all = ["RESERVE", "RESERVE-LOG", "RESERVE-CURRENT"];
    all.into_iter().all(|name| len(name) > 0)
}

/// Opens on a disk that may be full. The open succeeds, unless the space that is reserved for this
/// is missing (because it was used up, or lost with the power). Then it may be refused until there
/// is space. On a disk that is already full, a manifest with long keys may also outgrow the
/// reserved space, because it can grow within space that it had before.
fn open_full(
    run: &mut Run,
    media: &Media,
    options: &Options,
    has_long_keys: bool,
) -> Result<Arc<World>, String> {
    let before = media.list()?;
    let has_reserves = has_reserves(&before);
    let outgrown =
        |e: &siltstone::Error| has_long_keys && e.file().is_some_and(|f| f.starts_with("MANIFEST"));
    let open = |run: &Run| {
        let storages = media.storages();
        run.open_on(
            media.main(),
            storages,
            run.other_executors(),
            options,
            Errors::Expected,
        )
    };
    match open(run) {
        Ok(world) => Ok(world),
        // An open may also be refused if the log holds more than the options allow in memory.
        Err(e)
            if (!has_reserves || outgrown(&e)) && e.kind() == ErrorKind::NoSpace
                || e.to_string().contains("replay_bytes_max") =>
        {
            run.coverage.add(match has_reserves {
                true if outgrown(&e) => "disk_full.open_refused_beyond_the_reserve",
                true => "disk_full.open_refused_beyond_replay_bytes",
                false => "disk_full.open_refused_without_reserves",
            });
            media.main().set_capacity(None);
            open(run).map_err(|e| format!("open when there was room: {e}"))
        }
        Err(e) => Err(format!("open: {e}; there was {before:?}")),
    }
}

/// Reads everything, writes something and drops something, if the disk is still full.
fn while_full(run: &mut Run, world: &World, medium: &MemoryStorage, rng: &mut Rng) -> Check {
    if medium.capacity().is_none() {
        return Ok(());
    }
    check_now(&world.store, &run.history, &world.plan.keys, rng)
        .map_err(|e| format!("on the full disk: {e}"))?;
    run.coverage.add("disk_full.read_while_full");
    match try_put(run, world)? {
        None => run.coverage.add("disk_full.written_while_full"),
        Some(e) if e.kind() == ErrorKind::NoSpace => run.coverage.add("disk_full.refused"),
        Some(e) => return Err(format!("a write on the full disk: {e}")),
    }
    let names = world.store.keyspaces();
    if let Some(name) = names.last().filter(|_| rng.chance(40)) {
        let keyspace = world.store.keyspace(name).map_err(|e| e.to_string())?;
        world.drop_keyspace(&keyspace)?;
        let names = world.store.keyspaces();
        if names.iter().any(|n| n == keyspace.name()) {
            // A keyspace whose creation waits for space cannot be dropped before the edit of its
            // creation is written.
            if world.store.test_hooks().pending_edit_count() == 0 {
                return Err(format!("{name} could not be dropped on the full disk"));
            }
            run.coverage.add("disk_full.drop_refused");
        } else {
            run.coverage.add("disk_full.dropped_while_full");
        }
        check_now(&world.store, &run.history, &world.plan.keys, rng)
            .map_err(|e| format!("on the full disk after a drop: {e}"))?;
    }
    Ok(())
}

/// Ingests tables until an edit finds no space in the manifest although its record fits into the
/// log. This works because the tables are in the store's folder already and their keys are long.
/// Then, half of the time, drops one of the keyspaces that wait. Returns whether anything was
/// ingested.
fn edits_wait(
    run: &mut Run,
    world: &World,
    medium: &MemoryStorage,
    rng: &mut Rng,
) -> Result<bool, String> {
    medium.set_capacity(None);
    let mut patience = 0;
    while try_put(run, world)?.is_some() {
        patience += 1;
        if patience > 20 {
            // The store is poisoned or does not resume. The following steps report it.
            return Ok(false);
        }
        run.runtime.sleep(Duration::from_millis(500));
    }
    let (hooks, mut keyspaces) = (world.store.test_hooks(), Vec::new());
    for name in world.store.keyspaces().iter().take(2) {
        keyspaces.push(world.store.keyspace(name).map_err(|e| e.to_string())?);
    }
    let mut ingests = Vec::new();
    for i in 0..6 {
        let mut parts = Vec::new();
        for keyspace in &keyspaces {
            let key: Bytes = vec![b'a' + i; 7000].into();
            let entries = vec![(key, Some(b"waits"[..].into()))];
            if let Some(table) = world.prepare_own(entries)? {
                parts.push((keyspace, vec![vec![table]]));
            }
        }
        ingests.push(parts);
    }
    leave(medium, *rng.pick(&[0, 0, 4 << 10]));
    for parts in ingests {
        match hooks.ingest_all(parts) {
            Ok(number) => world.synced(number),
            Err(e) => world.allow(&e, &[ErrorKind::KeyspaceDropped], "ingest")?,
        }
        if hooks.pending_edit_count() > 0 {
            break;
        }
    }
    if hooks.pending_edit_count() == 0 || medium.capacity().is_none() {
        return Ok(true);
    }
    run.coverage.add("disk_full.edits_wait");
    if let Some(keyspace) = keyspaces.last().filter(|_| rng.chance(50)) {
        world.drop_keyspace(keyspace)?;
        run.coverage.add("disk_full.dropped_beside_waiting_edits");
    }
    check_now(&world.store, &run.history, &world.plan.keys, rng)
        .map_err(|e| format!("while edits wait: {e}"))?;
    Ok(true)
}

/// Makes space, half of the time only a little at first. Writing must resume by itself, and
/// everything must be right.
fn resume(run: &mut Run, world: &Arc<World>, medium: &MemoryStorage, rng: &mut Rng) -> Check {
    if medium.capacity().is_some() && rng.chance(50) {
        leave(medium, draw_free(rng));
        run.runtime.sleep(Duration::from_secs(2));
    }
    medium.set_capacity(None);
    let mut patience = 0;
    while let Some(error) = try_put(run, world)? {
        patience += 1;
        if patience > 100 || error.kind() != ErrorKind::NoSpace {
            return Err(format!("writes do not resume: {error}"));
        }
        run.runtime.sleep(Duration::from_millis(500));
    }
    if patience > 0 {
        run.coverage.add("disk_full.resumed_after_a_while");
    }
    run.check_all(world, rng)
        .map_err(|e| format!("after there was room: {e}"))?;
    // What prepares the next segment of the log tries again by itself, a moment later.
    let mut looks = 0;
    while world.store.stats().health != "good" && looks < 50 {
        looks += 1;
        run.runtime.sleep(Duration::from_millis(100));
    }
    let health = world.store.stats().health;
    if health != "good" {
        return Err(format!("there is room, and the store says: {health}"));
    }
    let mut late = rng.clone().fork(4);
    run.work_repaired(world, &mut late)
}

/// Checks that no call was refused because the store is poisoned, which a full disk never causes.
fn never_poisoned(world: &World) -> Check {
    let coverage = world.coverage.lock().unwrap_or_else(|e| e.into_inner());
    match coverage.of("fault.error.poisoned") {
        0 => Ok(()),
        count => Err(format!("{count} calls were refused as poisoned")),
    }
}

/// Opens on a disk with enough space, where the open must succeed.
fn open_with_space(run: &Run, media: &Media, options: &Options) -> siltstone::Result<Arc<World>> {
    let (medium, storages) = (media.main(), media.storages());
    run.open_on(
        medium,
        storages,
        run.other_executors(),
        options,
        Errors::Fatal,
    )
}

/// A life with enough space, so that there is something to open.
fn first_life(run: &mut Run, media: &Media, rng: &mut Rng) -> Check {
    let options = draw_options(rng);
    let world =
        open_with_space(run, media, &options).map_err(|e| format!("first life: open: {e}"))?;
    world.settings_after_open()?;
    let count = 10 + rng.below(60);
    run.work(&world, 1, count, rng)?;
    run.close(&world).map_err(|e| format!("close: {e}"))
}

/// Adds the coverage of the clients of `world`.
fn take_coverage(run: &mut Run, world: &World) {
    let reached = world.coverage.lock().unwrap_or_else(|e| e.into_inner());
    run.coverage.merge(&reached);
}

/// Starts a task that makes space after a while.
fn make_space_later(runtime: &Runtime, medium: &MemoryStorage) -> Check {
    let (medium, clock) = (medium.clone(), runtime.clone());
    let task = runtime.spawn("room", move || {
        clock.sleep(Duration::from_secs(30));
        medium.set_capacity(None);
    });
    task.map(|_| ()).map_err(|e| e.to_string())
}

/// The state of one seed's run between its steps.
struct FullDisk {
    run: Run,
    rng: Rng,
    /// The random numbers for parts of this trial that were added later, so that kept seeds keep
    /// their runs.
    late: Rng,
    media: Media,
    /// Whether the manifest has a disk of its own, which is the one that is full.
    is_apart: bool,
    /// Whether the manifest may hold long keys.
    has_long_keys: bool,
    /// Whether edits are made to wait for space.
    waits: bool,
    /// The options of the life in which the disk is full.
    options: Options,
    /// The draws of the seed, for messages.
    what: String,
}

impl FullDisk {
    /// Runs a first life with enough space, and draws from which call on the disk is full.
    fn new(runtime: &Runtime, seed: u64) -> Result<FullDisk, String> {
        let mut rng = Rng::new(seed ^ 0xD15C);
        let mut run = Run::new(runtime, &mut rng);
        let mut more = rng.clone().fork(1);
        let is_apart = more.chance(40);
        let media = Media::with_manifest_apart(is_apart, runtime, &mut more);
        if is_apart {
            let bytes = 1000 + more.index(3000);
            run.plan = Arc::new(Plan::clone(&run.plan).with_long_keys(bytes));
        }
        first_life(&mut run, &media, &mut rng)?;

        // The disk is full before the open, or from some call of the open or of the work after it.
        let free = draw_free(&mut rng);
        let mut options = draw_options(&mut rng);
        let mut late = rng.clone().fork(3);
        let waits = late.chance(40);
        if waits {
            // The log gets space for records that are longer than the manifest's.
            options.log_segment_bytes = 512 << 10;
            options.log_bytes_max = 1 << 20;
        }
        let most = *rng.pick(&[30, 200, 1000]);
        let at = rng.below(most);
        let at_open = rng.chance(20);
        let what = match at_open {
            true => format!("{options:?}; {free} bytes free at open"),
            false => format!("{options:?}; {free} bytes free after {at} calls"),
        };
        match at_open {
            true => leave(media.main(), free),
            false => media.main().fill_after(at, free),
        }
        Ok(FullDisk {
            run,
            rng,
            late,
            media,
            is_apart,
            has_long_keys: is_apart,
            waits,
            options,
            what,
        })
    }

    /// Adds the draws of the seed to an error.
    fn context(&self, e: String) -> String {
        format!("{}: {e}", self.what)
    }

    fn is_full(&self) -> bool {
        self.media.main().capacity().is_some()
    }

    /// The life in which the disk becomes full, up to its last work.
    fn full_life(&mut self) -> Result<Arc<World>, String> {
        let medium = self.media.main().clone();
        let world = open_full(
            &mut self.run,
            &self.media,
            &self.options,
            self.has_long_keys,
        )
        .map_err(|e| self.context(e))?;
        if self.is_full() {
            self.run.coverage.add("disk_full.at_open");
        }
        world.settings_after_open()?;
        make_space_later(&self.run.runtime, &medium)?;
        self.work(&world, &medium).map_err(|e| self.context(e))?;
        let recycled = medium.counts().of(OpKind::Recycle);
        self.run.coverage.add_count("disk_full.recycled", recycled);
        Ok(world)
    }

    /// Work before the disk is full, on the full disk, and, in a part of the seeds, when there is
    /// space again.
    fn work(&mut self, world: &Arc<World>, medium: &MemoryStorage) -> Check {
        let (clients, count) = (1 + self.rng.below(3), 20 + self.rng.below(100));
        self.run.work(world, clients, count, &mut self.rng)?;
        if self.is_full() {
            self.run.coverage.add("disk_full.met");
            if self.is_apart {
                self.run.coverage.add("disk_full.only_of_the_manifest");
            }
        }
        if self.waits {
            self.has_long_keys |= edits_wait(&mut self.run, world, medium, &mut self.late)?;
        }
        while_full(&mut self.run, world, medium, &mut self.rng)?;
        if self.rng.chance(60) {
            resume(&mut self.run, world, medium, &mut self.rng)?;
        }
        never_poisoned(world)
    }

    /// Ends a life by a close, or leaves the store open.
    fn close_or_leave(&mut self, world: &World) -> Check {
        if self.rng.chance(50) {
            let closed = self.run.close(world);
            if let Err(e) = &closed
                && e.kind() != ErrorKind::NoSpace
            {
                return Err(self.context(format!("close: {e}")));
            }
        } else {
            take_coverage(&mut self.run, world);
        }
        Ok(())
    }

    /// Ends a life by a loss of power, if `lost` says which losses it causes, and otherwise by a
    /// kill. Returns the remaining media, and the number up to which all writes must be there.
    fn end(&self, media: &Media, lost: Option<CrashPolicy>) -> (Media, u64) {
        let left = media.end_now(&self.run.runtime, lost);
        let history = lock(&self.run.history);
        match lost {
            None => (left, history.acked),
            Some(_) => (left, history.synced),
        }
    }

    /// Opens the store that the previous life left, on a disk that is full again, and works on it.
    /// In the last round there is space at the end. Returns the state that this life leaves, like
    /// [`FullDisk::end`].
    fn reopen(&mut self, round: u32, media: &Media, least: u64) -> Result<(Media, u64), String> {
        let options = draw_options(&mut self.rng);
        let free = draw_free(&mut self.rng);
        leave(media.main(), free);
        let reopened = format!("reopened, round {round}, {free} bytes free, {options:?}");
        let world = self
            .reopened_life(media, &options, least, round == 1)
            .map_err(|e| self.context(format!("{reopened}: {e}")))?;
        let lost = (!self.rng.chance(50)).then_some(CrashPolicy::LoseUnsynced);
        let left = self.end(media, lost);
        take_coverage(&mut self.run, &world);
        Ok(left)
    }

    /// One life after the first full one, up to its last work.
    fn reopened_life(
        &mut self,
        media: &Media,
        options: &Options,
        least: u64,
        is_last: bool,
    ) -> Result<Arc<World>, String> {
        let world = open_full(&mut self.run, media, options, self.has_long_keys)?;
        self.run.settle(&world.store, least)?;
        world.take_settings(false)?;
        let health = world.store.stats().health;
        self.run.coverage.add(match health.as_str() {
            "good" => "disk_full.reopened_good",
            _ => "disk_full.reopened_without_room",
        });
        make_space_later(&self.run.runtime, media.main())?;
        self.run.work(&world, 1, 10, &mut self.rng)?;
        while_full(&mut self.run, &world, media.main(), &mut self.rng)?;
        if is_last {
            resume(&mut self.run, &world, media.main(), &mut self.rng)?;
        }
        never_poisoned(&world)?;
        Ok(world)
    }

    /// Opens the store that the last life left, with enough space. Everything that was promised
    /// must be there.
    fn open_at_last(&mut self, media: &Media, least: u64) -> Check {
        media.main().set_capacity(None);
        let options = draw_options(&mut self.rng);
        let world = open_with_space(&self.run, media, &options)
            .map_err(|e| self.context(format!("open at last: {e}")))?;
        find_prefix(&world.store, &mut self.run.model(), least)
            .map_err(|e| self.context(format!("opened at last: {e}")))?;
        Ok(())
    }
}

/// Runs one seed: the disk is full from a call on that the seed draws.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn disk_full_trial(seed: u64) -> Coverage {
    disk_full(seed, OTHER_EXECUTORS_PERCENT)
}

/// Runs one seed without executors besides the host's own.
///
/// # Panics
/// In the same cases as [`disk_full_trial`].
pub fn disk_full_trial_alone(seed: u64) -> Coverage {
    disk_full(seed, 0)
}

fn disk_full(seed: u64, other_executors_percent: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut trial = FullDisk::new(&runtime, seed)?;
        trial
            .run
            .offer_other_executors(seed, other_executors_percent);
        let world = trial.full_life()?;
        trial.close_or_leave(&world)?;
        let by_power = !trial.rng.chance(50);
        let lost = by_power.then(|| CrashPolicy::Seeded(trial.rng.draw()));
        let (mut media, mut least) = trial.end(&trial.media, lost);
        drop(world);
        for round in 0..2 {
            (media, least) = trial.reopen(round, &media, least)?;
        }
        trial.open_at_last(&media, least)?;
        Ok(trial.run.coverage)
    })
}

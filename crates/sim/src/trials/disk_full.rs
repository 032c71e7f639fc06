//! A disk that is full from some call on: writes are refused with `NoSpace` and nothing else, reads go on and are right, keyspaces can be dropped; when
//! there is room again writing resumes by itself. A full disk at open is opened all the same. In a part of the seeds the manifest lies on a disk of
//! its own, which is the one that is full, and outgrows its space after a few edits, because its keys are long.
//!
//! Threading: one task, its clients, and one that makes room after a while (what waits for room keeps writers waiting).

use std::time::Duration;

use siltstone::{ErrorKind, Options};
use siltstone_storage::{CrashPolicy, MemoryStorage, ObjectMeta, OpKind};
use std::sync::Arc;

use super::failed_syncs::try_put;
use super::media::Media;
use super::{Run, STEPS, simulate_counted};
use crate::checker::{Check, check_now, find_prefix};
use crate::coverage::Coverage;
use crate::model::Bytes;
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::{Plan, draw_options};
use crate::world::{Errors, World};

/// Limits what is free, in bytes.
fn leave(medium: &MemoryStorage, free_bytes: u64) {
    medium.set_capacity(Some(medium.used_bytes() + free_bytes));
}

fn draw_free(rng: &mut Rng) -> u64 {
    *rng.pick(&[0, 0, 4 << 10, 20 << 10, 64 << 10, 200 << 10, 1 << 20])
}

/// Whether what is put by for a full disk is there. A loss of power may leave the name alone.
fn has_reserves(there: &[ObjectMeta]) -> bool {
    let len = |name: &str| there.iter().find(|o| o.name == name).map_or(0, |o| o.len);
    let all = ["RESERVE", "RESERVE-LOG", "RESERVE-CURRENT"];
    all.into_iter().all(|name| len(name) > 0)
}

/// Opens on a disk that may be full. The open succeeds, unless the space that is kept for this is
/// missing (it was used up, or lost with the power). Then it may be refused until there is room. On
/// a disk that is already full, a manifest with long keys may also outgrow the kept space, because
/// it can grow within space that it had before.
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
            Vec::new(),
            options,
            Errors::Expected,
        )
    };
    match open(run) {
        Ok(world) => Ok(world),
        // Nor where the log holds more than may be kept in memory, which is an option.
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

/// Reads everything, writes something, drops something, on a disk that is (still) full.
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
            // One whose create waits for room is newer than what there is room to say.
            if world.store.core_for_tests().pending_edit_count() == 0 {
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

/// Ingests whose edits find no room, though their records do: the tables are in the store's folder already, and their keys are long. Then, half of the
/// time, one of the keyspaces that wait is dropped. Whether anything was ingested.
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
            // It was poisoned, or does not resume: what follows says so.
            return Ok(false);
        }
        run.runtime.sleep(Duration::from_millis(500));
    }
    let (hooks, mut keyspaces) = (world.store.core_for_tests(), Vec::new());
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

/// Somebody makes room: a little first, half of the time. Writing resumes, by itself, and everything is right.
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
    let health = world.store.stats().health;
    if health != "good" {
        return Err(format!("there is room, and the store says: {health}"));
    }
    let mut late = rng.clone().fork(4);
    run.work_mended(world, &mut late)
}

fn never_poisoned(world: &World) -> Check {
    let coverage = world.coverage.lock().unwrap_or_else(|e| e.into_inner());
    match coverage.of("fault.error.poisoned") {
        0 => Ok(()),
        count => Err(format!("{count} calls were refused as poisoned")),
    }
}

/// One seed: the disk is full from the call on that the seed says.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn disk_full_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut rng = Rng::new(seed ^ 0xD15C);
        let mut run = Run::new(&runtime, &mut rng);
        let mut more = rng.clone().fork(1);
        let is_apart = more.chance(40);
        let media = Media::with_manifest_apart(is_apart, &runtime, &mut more);
        let medium = media.main().clone();
        if is_apart {
            let bytes = 1000 + more.index(3000);
            run.plan = Arc::new(Plan::clone(&run.plan).with_long_keys(bytes));
        }
        let options = draw_options(&mut rng);
        let world = run
            .open_on(
                &medium,
                media.storages(),
                Vec::new(),
                &options,
                Errors::Fatal,
            )
            .map_err(|e| format!("first life: open: {e}"))?;
        world.settings_after_open()?;
        let count = 10 + rng.below(60);
        run.work(&world, 1, count, &mut rng)?;
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        drop(world);

        // Full before the open, or from some call of it or of what comes after it.
        let free = draw_free(&mut rng);
        let mut options = draw_options(&mut rng);
        let mut late = rng.clone().fork(3);
        let waits = late.chance(40);
        if waits {
            // Room for records that are longer than the manifest's.
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
        let told = |e: String| format!("{what}: {e}");
        match at_open {
            true => leave(&medium, free),
            false => medium.fill_after(at, free),
        }
        let mut has_long_keys = is_apart;
        let world = open_full(&mut run, &media, &options, has_long_keys).map_err(told)?;
        if medium.capacity().is_some() {
            run.coverage.add("disk_full.at_open");
        }
        world.settings_after_open()?;
        let (roomy, clock) = (medium.clone(), runtime.clone());
        let mender = runtime.spawn("room", move || {
            clock.sleep(Duration::from_secs(30));
            roomy.set_capacity(None);
        });
        mender.map_err(|e| e.to_string())?;
        let (clients, count) = (1 + rng.below(3), 20 + rng.below(100));
        run.work(&world, clients, count, &mut rng).map_err(told)?;
        if medium.capacity().is_some() {
            run.coverage.add("disk_full.met");
            if is_apart {
                run.coverage.add("disk_full.only_of_the_manifest");
            }
        }
        if waits {
            has_long_keys |= edits_wait(&mut run, &world, &medium, &mut late).map_err(told)?;
        }
        while_full(&mut run, &world, &medium, &mut rng).map_err(told)?;
        if rng.chance(60) {
            resume(&mut run, &world, &medium, &mut rng).map_err(told)?;
        }
        never_poisoned(&world).map_err(told)?;
        let recycled = medium.counts().of(OpKind::Recycle);
        run.coverage.add_count("disk_full.recycled", recycled);
        let closes = rng.chance(50);
        if closes {
            let close = run.close(&world);
            if let Err(e) = &close
                && e.kind() != ErrorKind::NoSpace
            {
                return Err(told(format!("close: {e}")));
            }
        } else {
            run.coverage
                .merge(&world.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        }

        // Opened again on a full disk, twice; then there is room.
        let (acked, synced) = {
            let history = lock(&run.history);
            (history.acked, history.synced)
        };
        let (mut image, mut least) = match rng.chance(50) {
            true => (media.end_now(&runtime, None), acked),
            false => {
                let policy = CrashPolicy::Seeded(rng.draw());
                (media.end_now(&runtime, Some(policy)), synced)
            }
        };
        drop(world);
        for round in 0..2 {
            let options = draw_options(&mut rng);
            let free = draw_free(&mut rng);
            let medium = image.main().clone();
            leave(&medium, free);
            let told = |e: String| {
                told(format!(
                    "reopened, round {round}, {free} bytes free, {options:?}: {e}"
                ))
            };
            let world = open_full(&mut run, &image, &options, has_long_keys).map_err(told)?;
            run.settle(&world.store, least).map_err(told)?;
            world.take_settings(false)?;
            run.coverage.add(match world.store.stats().health.as_str() {
                "good" => "disk_full.reopened_good",
                _ => "disk_full.reopened_without_room",
            });
            let (roomy, clock) = (medium.clone(), runtime.clone());
            let mender = runtime.spawn("room", move || {
                clock.sleep(Duration::from_secs(30));
                roomy.set_capacity(None);
            });
            mender.map_err(|e| e.to_string())?;
            run.work(&world, 1, 10, &mut rng).map_err(told)?;
            while_full(&mut run, &world, &medium, &mut rng).map_err(told)?;
            if round == 1 {
                resume(&mut run, &world, &medium, &mut rng).map_err(told)?;
            }
            never_poisoned(&world).map_err(told)?;
            (image, least) = match rng.chance(50) {
                true => (image.end_now(&runtime, None), lock(&run.history).acked),
                false => {
                    let least = lock(&run.history).synced;
                    let policy = CrashPolicy::LoseUnsynced;
                    (image.end_now(&runtime, Some(policy)), least)
                }
            };
            run.coverage
                .merge(&world.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        }
        image.main().set_capacity(None);
        let options = draw_options(&mut rng);
        let world = run
            .open_on(
                image.main(),
                image.storages(),
                Vec::new(),
                &options,
                Errors::Fatal,
            )
            .map_err(|e| told(format!("open at last: {e}")))?;
        find_prefix(&world.store, &mut run.model(), least)
            .map_err(|e| told(format!("opened at last: {e}")))?;
        Ok(run.coverage)
    })
}

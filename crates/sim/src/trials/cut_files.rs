//! Files that are cut under an open store, and pages that can no longer be read: every call returns
//! an error that names the file, or the right answer; there is never a panic, a wrong answer or a
//! hang. The same holds afterwards, when the store is opened again.
//!
//! Threading: one task, its clients, and one that damages files meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone::{ErrorKind, IterOptions, Store};
use siltstone_storage::{MemoryStorage, Storage};

use super::{Run, STEPS, simulate_counted};
use crate::checker::{Check, show};
use crate::coverage::Coverage;
use crate::model::{Bytes, Model};
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::draw_options;
use crate::world::{Errors, World};

/// The kind of a damaged file.
fn part_of(name: &str) -> &'static str {
    match name {
        name if name.ends_with(".tbl") => "table",
        name if name.ends_with(".log") => "log",
        name if name.starts_with("MANIFEST") => "manifest",
        "CURRENT" => "current",
        _ => "other",
    }
}

/// Damages one file, and returns its kind.
fn damage(world: &World, medium: &MemoryStorage, rng: &mut Rng) -> Option<&'static str> {
    let objects = medium.list().ok()?;
    let objects: Vec<_> = objects.into_iter().filter(|o| o.len > 0).collect();
    // Mostly tables, because these are read.
    let tables: Vec<_> = objects
        .iter()
        .filter(|o| part_of(&o.name) == "table")
        .cloned()
        .collect();
    let among = match rng.chance(75) && !tables.is_empty() {
        true => tables,
        false => objects,
    };
    if among.is_empty() {
        return None;
    }
    let object = rng.pick(&among);
    {
        let mut damaged = world.damaged.lock().unwrap_or_else(|e| e.into_inner());
        damaged.insert(object.name.clone());
    }
    let from = rng.below(object.len);
    if rng.chance(60) {
        let to = match rng.below(4) {
            0 => 0,
            1 => from / 4096 * 4096,
            _ => from,
        };
        medium.cut(&object.name, to);
        world.reach("damage.cut");
    } else {
        let to = from + 1 + rng.below(20_000);
        medium.set_unreadable(&object.name, from..to);
        world.reach("damage.unreadable");
    }
    Some(part_of(&object.name))
}

/// The value of each key, or `None` if the error named a damaged file.
type Seen = BTreeMap<String, (u32, BTreeMap<Bytes, Option<Option<Bytes>>>)>;

/// Reads every key by itself.
fn read_all(store: &Store, model: &Model, damaged: &BTreeSet<String>) -> Result<Seen, String> {
    let mut all = Seen::new();
    let names = |text: &str| damaged.iter().any(|name| text.contains(name.as_str()));
    for name in store.keyspaces() {
        let keyspace = store.keyspace(&name).map_err(|e| e.to_string())?;
        let mut keys = BTreeMap::new();
        for key in model.keys(keyspace.id()) {
            let seen = match keyspace.get(&key) {
                Ok(value) => Some(value.map(Bytes::from)),
                Err(e) if names(&e.to_string()) => None,
                Err(e) => return Err(format!("get {}: {e}", show(&key))),
            };
            keys.insert(key, seen);
        }
        // Then reads by a scan. Every pair before its error must be right.
        let mut cursor = keyspace
            .cursor(IterOptions::default())
            .map_err(|e| e.to_string());
        let scanned = cursor.as_mut().map_err(|e| e.clone()).and_then(|cursor| {
            let mut step = cursor.seek_to_first();
            while step.is_ok() && cursor.valid() {
                let (key, value) = (cursor.key(), cursor.value());
                match keys.get(key) {
                    Some(None) => {}
                    Some(Some(Some(by_get))) if by_get[..] == *value => {}
                    by_get => {
                        return Err(format!(
                            "a scan shows {} = {}, a get {by_get:?}",
                            show(key),
                            show(value)
                        ));
                    }
                }
                step = cursor.next();
            }
            step.map_err(|e| e.to_string())
        });
        if let Err(e) = scanned
            && !names(&e)
        {
            return Err(format!("scan of {name}: {e}"));
        }
        all.insert(name, (keyspace.id(), keys));
    }
    Ok(all)
}

/// Whether the store may show the state at `number`.
fn is_at(seen: &Seen, model: &Model, number: u64) -> Check {
    let ids: BTreeMap<String, u32> = seen.iter().map(|(n, (id, _))| (n.clone(), *id)).collect();
    if ids != model.keyspaces(number) {
        return Err(format!("keyspaces {ids:?}"));
    }
    for (name, (id, keys)) in seen {
        for (key, value) in keys {
            let wanted = model.get(*id, key, number);
            if let Some(value) = value
                && *value != wanted
            {
                return Err(format!(
                    "{name}: {} is {value:?}, expected {wanted:?}",
                    show(key)
                ));
            }
        }
    }
    Ok(())
}

fn errors(seen: &Seen) -> u64 {
    let keys = seen.values().flat_map(|(_, keys)| keys.values());
    keys.filter(|value| value.is_none()).count() as u64
}

/// Runs one seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn cut_files_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut rng = Rng::new(seed ^ 0xC07);
        let mut run = Run::new(&runtime, &mut rng);
        let medium = MemoryStorage::new(&runtime);
        let mut options = draw_options(&mut rng);
        options.map_tables = rng.chance(70);
        let what = format!("{options:?}");
        let with_context = |e: String| format!("{what}: {e}");
        // Writes data into tables before any file is damaged.
        let world = run.must_open(&medium, &options, "first life")?;
        world.settings_after_open()?;
        let (clients, count) = (1 + rng.below(2), 20 + rng.below(80));
        run.work(&world, clients, count, &mut rng)
            .map_err(with_context)?;
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        drop(world);
        let storage: Arc<dyn Storage> = Arc::new(medium.clone());
        let world = run
            .open(&medium, storage, &options, Errors::Damaged)
            .map_err(|e| with_context(format!("open: {e}")))?;
        world.settings_after_open()?;
        // Tables are open, and some of their blocks were verified.
        run.work(&world, 1, 20, &mut rng).map_err(with_context)?;

        // Some damage happens while clients work.
        let mut rng_of_damage = rng.clone().fork(7);
        let (at_work, of_damage) = (world.clone(), medium.clone());
        let damaging = runtime.spawn("damage", move || {
            let mut parts = Vec::new();
            for _ in 0..1 + rng_of_damage.below(3) {
                for _ in 0..rng_of_damage.below(2000) {
                    at_work.runtime.yield_point();
                }
                parts.extend(damage(&at_work, &of_damage, &mut rng_of_damage));
            }
            parts
        });
        let damaging = damaging.map_err(|e| e.to_string())?;
        // Permanent damage stalls writers permanently, and visibly. No client of this trial waits
        // for that.
        let (clients, count) = (1 + rng.below(2), 20 + rng.below(40));
        let closer = world.store.clone();
        let clock = runtime.clone();
        let ends = runtime.spawn("ends", move || {
            clock.sleep(std::time::Duration::from_secs(60));
            let _ = closer.close();
        });
        drop(ends.map_err(|e| e.to_string())?);
        let worked = run.work(&world, clients, count, &mut rng);
        let stalled = worked.as_ref().is_err_and(|e| e.contains("clos"));
        match worked {
            Err(e) if !stalled => return Err(with_context(e)),
            _ => {}
        }
        let parts = damaging
            .join()
            .map_err(|_| "damage ended without an answer")?;
        for part in &parts {
            run.coverage.add(&format!("damage.{part}"));
        }
        if stalled {
            run.coverage.add("damage.stalled");
        } else {
            let model = run.model();
            let damaged = world
                .damaged
                .lock()
                .unwrap_or_else(|e| e.into_inner())
                .clone();
            let seen = read_all(&world.store, &model, &damaged).map_err(with_context)?;
            let now = world.store.snapshot().number();
            is_at(&seen, &model, now).map_err(|e| with_context(format!("at {now}: {e}")))?;
            run.coverage
                .add_count("damage.reported_by_a_get", errors(&seen));
            for name in world.store.keyspaces() {
                let keyspace = world.store.keyspace(&name).map_err(|e| e.to_string())?;
                if let Err(e) = keyspace.compact_range(None, None) {
                    world
                        .allow(&e, &[], "compact_range")
                        .map_err(with_context)?;
                    run.coverage.add("damage.reported_by_a_compaction");
                }
            }
            world.verify().map_err(with_context)?;
            let seen = read_all(&world.store, &model, &damaged).map_err(with_context)?;
            is_at(&seen, &model, now)
                .map_err(|e| with_context(format!("compacted, at {now}: {e}")))?;
            if let Err(e) = run.close(&world) {
                world.allow(&e, &[], "close").map_err(with_context)?;
                run.coverage.add("damage.reported_by_close");
            }
        }
        run.coverage
            .merge(&world.coverage.lock().unwrap_or_else(|e| e.into_inner()));
        let damaged = world
            .damaged
            .lock()
            .unwrap_or_else(|e| e.into_inner())
            .clone();
        drop(world);

        // The store is opened again: data that was only unreadable is there.
        let image = medium.kill_in(&runtime);
        let acked = lock(&run.history).acked;
        let storage: Arc<dyn Storage> = Arc::new(image.clone());
        let world = match run.open(&image, storage, &draw_options(&mut rng), Errors::Damaged) {
            Ok(world) => world,
            Err(e) => {
                let text = e.to_string();
                // If a segment is missing, the error names the one before it, because there the log
                // ends too early.
                let of_log = damaged.iter().any(|name| part_of(name) == "log");
                let named = damaged.iter().any(|name| text.contains(name.as_str()))
                    || of_log && text.contains(".log");
                let kinds = [ErrorKind::Corruption, ErrorKind::Io, ErrorKind::NotFound];
                if !named || !kinds.contains(&e.kind()) {
                    return Err(with_context(format!(
                        "open of a damaged store ({damaged:?}): {e}"
                    )));
                }
                run.coverage.add("damage.reported_by_open");
                return Ok(run.coverage);
            }
        };
        let model = run.model();
        let seen = read_all(&world.store, &model, &damaged).map_err(with_context)?;
        let log_is_whole = !damaged.iter().any(|name| part_of(name) == "log");
        let least = if log_is_whole { acked } else { 0 };
        let ends = model.ends_from(least);
        if !ends.iter().any(|end| is_at(&seen, &model, *end).is_ok()) {
            let nearest = is_at(&seen, &model, model.last());
            return Err(with_context(format!(
                "opened again it shows no moment from {least} to {}; damaged: {damaged:?}; against \
                the last: {nearest:?}",
                model.last()
            )));
        }
        run.coverage.add("damage.opened_again");
        run.coverage
            .add_count("damage.reported_by_a_get_later", errors(&seen));
        Ok(run.coverage)
    })
}

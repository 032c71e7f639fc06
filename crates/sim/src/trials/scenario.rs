//! One fixed story (load, flush, compact, range delete, ingest, drop, create again, reopen), crashed at every single storage call.

use siltstone::{Batch, Options, WriteOptions};
use siltstone_storage::{CrashPolicy, MemoryStorage};

use super::{Promised, Run, simulate};
use crate::checker::find_prefix;
use crate::coverage::Coverage;
use crate::model::{Event, Op};
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::World;

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        level1_bytes: 64 << 10,
        level_factor: 2,
        l0_trigger_count: 2,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 128 << 10,
        background_tasks: 1,
        ..Options::default()
    }
}

fn load(world: &World, names: &[&str], from: u64, count: u64, sync: bool) -> Result<(), String> {
    let mut batch = Batch::new();
    let mut ops = Vec::new();
    for name in names {
        let id = world
            .store
            .open_keyspace(name)
            .map_err(|e| e.to_string())?
            .id();
        for i in from..from + count {
            let (key, value) = (format!("key{:03}", i * 7 % 50), vec![i as u8; 700]);
            batch
                .put(id, key.as_bytes(), &value)
                .map_err(|e| e.to_string())?;
            ops.push(Op::Put(id, key.as_bytes().into(), value.into()));
        }
    }
    write(world, batch, ops, sync)
}

fn write(world: &World, mut batch: Batch, ops: Vec<Op>, sync: bool) -> Result<(), String> {
    lock(&world.history).announce(ops);
    world
        .store
        .write(&mut batch, WriteOptions { sync })
        .map_err(|e| e.to_string())?;
    let number = lock(&world.history)
        .model
        .number_of_change(|e| matches!(e, Event::Group(_)))
        .unwrap_or(0);
    if sync {
        world.synced(number)
    } else {
        world.acked(number)
    }
    Ok(())
}

fn story(run: &mut Run, medium: &MemoryStorage) -> Result<(), String> {
    let world = run.must_open(medium, &options(), "first life")?;
    let told = |e: siltstone::Error| e.to_string();
    let store = &world.store;
    for round in 0..4 {
        load(&world, &["default", "a"], round * 20, 12, false)?;
    }
    load(&world, &["default", "a"], 5, 1, true)?;
    load(&world, &["a", "b"], 100, 10, false)?;
    store.flush().map_err(told)?;
    world.synced(store.snapshot().number());
    load(&world, &["default", "a"], 90, 25, false)?;
    store
        .keyspace("a")
        .and_then(|k| k.compact_range(None, None))
        .map_err(told)?;
    let default = store.default_keyspace().map_err(told)?;
    let mut batch = Batch::new();
    batch
        .delete_range(default.id(), b"key010", b"key030")
        .map_err(told)?;
    write(
        &world,
        batch,
        vec![Op::DeleteRange(
            1,
            b"key010".as_slice().into(),
            b"key030".as_slice().into(),
        )],
        false,
    )?;
    store.drop_keyspace("b").map_err(told)?;
    load(&world, &["b", "default"], 7, 5, false)?;
    default.flush().map_err(told)?;
    store.wait_until_idle().map_err(told)?;
    load(&world, &["default", "a", "b"], 40, 8, false)?;
    run.close(&world).map_err(told)?;
    drop(world);
    let world = run.must_open(medium, &options(), "second life")?;
    load(&world, &["default", "b"], 60, 20, false)?;
    world.store.sync_log().map_err(told)?;
    world.synced(world.store.snapshot().number());
    world
        .store
        .default_keyspace()
        .and_then(|k| k.compact_range(None, None))
        .map_err(told)?;
    load(&world, &["a", "b"], 64, 3, false)?;
    run.close(&world).map_err(told)
}

/// Crashes the story at every call, in several ways. Of the pairs of such a crash and a call of its recovery, at which that is crashed in turn,
/// one in `share` is taken; which ones moves with the seed, so that `share` seeds in a row take all.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn scenario(seed: u64, share: u64) -> Coverage {
    simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x5CE);
        let mut run = Run::new(&runtime, &mut rng);
        let medium = MemoryStorage::new(&runtime);
        medium.start_journal();
        story(&mut run, &medium)?;
        let mut replay = medium.replay();
        let mut pair = seed;
        for n in 0..=replay.len() {
            replay.advance_to(n);
            let promised = Promised::at(
                &replay,
                Promised {
                    acked: 0,
                    synced: 0,
                },
            );
            let what = format!(
                "call {n} of {} ({:?})",
                replay.len(),
                replay.kind(n.saturating_sub(1))
            );
            let policies = [
                CrashPolicy::LoseUnsynced,
                CrashPolicy::KeepUnsynced,
                CrashPolicy::Seeded(seed << 32 | n),
            ];
            let crashes = policies.map(|p| {
                (
                    format!("{what}, {p:?}"),
                    replay.crash_in(&runtime, p).0,
                    promised.synced,
                )
            });
            let killed = (
                format!("{what}, kill"),
                replay.kill_in(&runtime),
                promised.acked,
            );
            for (what, image, least) in crashes.into_iter().chain([killed]) {
                image.start_journal();
                recovered(&run, &image, least, &what)?;
                run.coverage.add("scenario.recovered");
                {
                    // The recovery, crashed at every call of it.
                    let mut again = image.replay();
                    for m in 0..=again.len() {
                        pair += 1;
                        if !pair.is_multiple_of(share) {
                            continue;
                        }
                        again.advance_to(m);
                        let least = Promised::at(&again, promised).synced;
                        let policy = CrashPolicy::Seeded(seed << 48 | n << 24 | m);
                        let (image, _) = again.crash_in(
                            &runtime,
                            if m % 3 == 0 {
                                CrashPolicy::LoseUnsynced
                            } else {
                                policy
                            },
                        );
                        recovered(
                            &run,
                            &image,
                            least,
                            &format!("{what}; recovery crashed at call {m} of {}", again.len()),
                        )?;
                        run.coverage.add("scenario.recovered_twice");
                    }
                    run.coverage.add_count("scenario.pairs", again.len() + 1);
                }
            }
        }
        Ok(run.coverage)
    })
}

fn recovered(run: &Run, image: &MemoryStorage, least: u64, what: &str) -> Result<u64, String> {
    let next = run.fork();
    let world = next.must_open(image, &options(), what)?;
    let end =
        find_prefix(&world.store, &mut next.model(), least).map_err(|e| format!("{what}: {e}"))?;
    image.mark(format!("s{end}"));
    world
        .store
        .clone()
        .close()
        .map_err(|e| format!("{what}: close: {e}"))?;
    Ok(end)
}

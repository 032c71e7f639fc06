//! A process with few file handles left: tables are closed for other files, jobs open their inputs
//! only to read them, and every call succeeds.
//!
//! A seed makes a store with more tables than there are file handles. It starts with a larger limit
//! than later. Files that the store writes count too: segments, outputs of jobs, manifests. All
//! keys are written, read by gets and by cursors that stay open meanwhile, and compacted. No call
//! and no job fails.

use std::sync::Arc;

use siltstone::{Cursor, IterOptions, KeyspaceOptions, Options};
use siltstone_storage::MemoryStorage;

use super::{Run, STEPS, simulate_counted};
use crate::checker::Check;
use crate::coverage::Coverage;
use crate::model::{Bytes, Op};
use crate::rng::Rng;
use crate::workload::{Plan, draw_options};
use crate::world::World;

/// The number of keys of the store: with values of 2 to 6 KB they make about ninety tables.
const KEYS: u32 = 1500;

/// Runs one seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn handles_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS * 4, move |runtime| {
        let mut rng = Rng::new(seed ^ 0xF11E);
        let mut run = Run::new(&runtime, &mut rng);
        run.plan = Arc::new(Plan::clone(&run.plan).with_numbered_keys(KEYS));
        let medium = MemoryStorage::new(&runtime);
        // At first, all handles of the limit are available.
        let left = 40 + rng.below(10);
        medium.set_open_max(left * 4, left * 4);
        let options = Options {
            table_bytes: 64 << 10,
            memtable_bytes: 64 << 10,
            memory_bytes_max: 0,
            open_tables_max: 1000,
            keyspaces: Default::default(),
            ..draw_options(&mut rng)
        };
        let what = format!("{left} handles, {options:?}");
        let with_context = |e: String| format!("{what}: {e}");
        let world = run
            .must_open(&medium, &options, "open")
            .map_err(with_context)?;
        fill(&run, &world, &mut rng).map_err(with_context)?;
        get_all(&run, &world).map_err(with_context)?;
        let cursors = cursors(&run, &world).map_err(with_context)?;
        // The program around the store takes most of the handles, while tables hold more handles
        // than are left.
        medium.set_open_max(left * 4, left);
        fill(&run, &world, &mut rng).map_err(with_context)?;
        get_all(&run, &world).map_err(with_context)?;
        if rng.chance(50) {
            let keyspace = world.store.keyspace("default");
            let compacted = keyspace.and_then(|keyspace| keyspace.compact_range(None, None));
            compacted.map_err(|e| with_context(e.to_string()))?;
        }
        let idle = world.store.wait_until_idle();
        idle.map_err(|e| with_context(e.to_string()))?;
        get_all(&run, &world).map_err(with_context)?;
        continue_reading(cursors).map_err(with_context)?;
        world.nothing_is_left_over().map_err(with_context)?;
        let stats = world.store.stats();
        if stats.counter("job_failed_count") > 0 {
            let error = stats.last_job_error.map(|e| e.to_string());
            return Err(with_context(format!("jobs failed: {error:?}")));
        }
        let tables: u64 = stats
            .keyspaces
            .iter()
            .flat_map(|k| &k.levels)
            .map(|level| level.table_count)
            .sum();
        if tables > left {
            run.coverage.add("handles.fewer_than_tables");
        }
        for (name, counter) in [
            ("handles.files_closed", "table_file_close_count"),
            ("handles.calls_made_again", "descriptor_retry_count"),
        ] {
            run.coverage.add_count(name, stats.counter(counter));
        }
        run.close(&world)
            .map_err(|e| with_context(format!("close: {e}")))?;
        Ok(run.coverage)
    })
}

/// A cursor, and the keys that it must show from its position on.
type Positioned = (Cursor, Vec<Bytes>);

/// The number of keys that each cursor reads in the end.
const PASSED: usize = 20;

/// Opens a cursor at every tenth key.
fn cursors(run: &Run, world: &World) -> Result<Vec<Positioned>, String> {
    let text = |e: siltstone::Error| e.to_string();
    let keyspace = world.store.keyspace("default").map_err(text)?;
    let keys = &run.plan.keys;
    let at = |n: usize| {
        let mut cursor = keyspace.cursor(IterOptions::default())?;
        cursor.seek(&keys[n])?;
        Ok((cursor, keys[n..keys.len().min(n + PASSED)].to_vec()))
    };
    (0..keys.len())
        .step_by(10)
        .map(at)
        .collect::<Result<_, _>>()
        .map_err(text)
}

/// Continues to read with cursors that were positioned earlier.
fn continue_reading(cursors: Vec<Positioned>) -> Check {
    for (mut cursor, keys) in cursors {
        for key in keys {
            if !cursor.valid() || cursor.key() != &*key {
                return Err(format!("a cursor is not at {key:?}, the next key"));
            }
            cursor.next().map_err(|e| e.to_string())?;
        }
    }
    Ok(())
}

/// Reads every key.
fn get_all(run: &Run, world: &World) -> Check {
    let text = |e: siltstone::Error| e.to_string();
    let keyspace = world.store.keyspace("default").map_err(text)?;
    let (model, number) = (run.model(), world.store.snapshot().number());
    for key in &run.plan.keys {
        let found = keyspace.get(key).map_err(text)?;
        let expected = model.get(keyspace.id(), key, number);
        if found.as_deref() != expected.as_deref() {
            return Err(format!("get {key:?} at {number} is not what was written"));
        }
    }
    Ok(())
}

/// Writes every key once.
fn fill(run: &Run, world: &World, rng: &mut Rng) -> Result<(), String> {
    let keyspace = match world.store.keyspace("default") {
        Ok(keyspace) => Some(keyspace),
        Err(_) => world.create("default", &KeyspaceOptions::default())?,
    };
    let keyspace = keyspace.ok_or("there is no keyspace")?;
    let keys: Vec<_> = run.plan.keys.to_vec();
    for some in keys.chunks(10) {
        let put = |key: &Bytes| {
            let mut value = vec![0; 2000 + rng.index(4000)];
            value[..8].copy_from_slice(&rng.draw().to_le_bytes());
            Op::Put(keyspace.id(), key.clone(), value.into())
        };
        world.write_batch(some.iter().map(put).collect(), false)?;
    }
    Ok(())
}

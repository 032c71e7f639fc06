//! The second section: everything that was written is read back and compared with the simulation.

use std::sync::Arc;
use std::time::{Duration, Instant};

use siltstone::batch::Batch;
use siltstone::{Cursor, IterOptions, Keyspace, Snapshot, Store, WriteOptions};
use siltstone_plasma::{KEY_BYTES, VALUE_BYTES, encode_key};

use super::particles::{Change, Particles};
use super::plan::Plan;
use super::{Draw, Latencies, pictures, say, wrong};
use crate::failure::Failure;
use crate::output::{count, duration, rate};
use crate::report::model::{PhaseKind, Plasma};
use crate::report::record::Recorder;

/// The number of pairs in a short scan.
const SCAN_PAIRS: u64 = 100;
/// The number of changes in a batch.
const BATCH_CHANGES: usize = 500;

/// The results of the section, and the contents of the store after it.
pub struct Read {
    /// The store's contents from here on.
    pub particles: Particles,
    /// Latencies of point reads that found a value.
    pub hits: Latencies,
    /// Latencies of point reads that found no value.
    pub misses: Latencies,
    /// The number of pairs that scans returned,
    pub scanned: u64,
    /// and the time they took.
    pub scanning: Duration,
    /// The plasma, as the store holds it.
    pub plasma: Plasma,
}

/// Runs the section.
pub fn run(
    plan: &Plan,
    store: &Store,
    mut particles: Particles,
    recorder: &Arc<Recorder>,
) -> Result<Read, Failure> {
    say!("\n2  reading it back, every byte compared with the simulation")?;
    let keyspace = store.default_keyspace()?;
    let mut draw = Draw::new(&[plan.seed, 2]);
    recorder.phase(PhaseKind::Read, "random keys");
    let (hits, misses) = points(plan, &keyspace, &particles, &mut draw, recorder)?;
    say!("   random keys:  {hits}")?;
    say!("   absent keys:  {misses}")?;

    recorder.phase(PhaseKind::Read, "a scan of everything in order");
    let start = Instant::now();
    let whole = compare_dumps(
        plan.seed,
        keyspace.cursor(IterOptions::default())?,
        &particles,
        recorder,
    )?;
    let mut scanned = whole;
    say!(
        "   all of it:    {} pairs in order in {}: {} a second",
        count(whole),
        duration(start.elapsed()),
        rate(whole, start.elapsed())
    )?;
    recorder.phase(PhaseKind::Read, "short scans");
    let short = Instant::now();
    let from_scans = short_scans(plan, &keyspace, &particles, &mut draw, recorder)?;
    scanned += from_scans;
    say!(
        "   short scans:  {} from random keys, both ways, {} pairs in {}",
        count(plan.scans),
        count(from_scans),
        duration(short.elapsed())
    )?;
    let scanning = start.elapsed();
    recorder.phase(PhaseKind::Read, "pictures");
    let plasma = pictures::run(plan, &keyspace, &particles, recorder)?;
    recorder.phase(
        PhaseKind::Write,
        "changes under a snapshot, and both compared",
    );
    snapshot(plan, store, &keyspace, &mut particles, recorder)?;
    Ok(Read {
        particles,
        hits,
        misses,
        scanned,
        scanning,
        plasma,
    })
}

/// Compares one key's value.
pub fn compare_point(
    seed: u64,
    keyspace: &Keyspace,
    particles: &Particles,
    dump: u64,
    id: u64,
) -> Result<(), Failure> {
    compare(
        seed,
        keyspace.get(&encode_key(dump, id))?.as_deref(),
        particles.expected(dump, id),
        dump,
        id,
    )
}

fn compare(
    seed: u64,
    found: Option<&[u8]>,
    expected: Option<[u8; VALUE_BYTES]>,
    dump: u64,
    id: u64,
) -> Result<(), Failure> {
    if found == expected.as_ref().map(|v| &v[..]) {
        return Ok(());
    }
    Err(wrong(
        format_args!("particle {id} of dump {dump} is {found:?}, expected {expected:?}"),
        seed,
    ))
}

fn points(
    plan: &Plan,
    keyspace: &Keyspace,
    particles: &Particles,
    draw: &mut Draw,
    recorder: &Recorder,
) -> Result<(Latencies, Latencies), Failure> {
    let (mut hits, mut misses) = (Latencies::default(), Latencies::default());
    let mut value = Vec::new();
    for i in 0..plan.reads {
        let dump = draw.below(particles.dump_count());
        let absent = i % 4 == 3;
        // An absent key lies between present ones, so the bounds of tables do not exclude it.
        let id = draw.below(particles.particle_count());
        let mut key = encode_key(dump, id).to_vec();
        if absent {
            key.push(0);
        }
        let start = Instant::now();
        let found = keyspace.get_into(&key, &mut value)?;
        let time = start.elapsed();
        recorder.read(1);
        if absent {
            misses.add(time);
            if found {
                return Err(never_written(&key, plan.seed));
            }
        } else {
            hits.add(time);
            compare(
                plan.seed,
                found.then_some(&value[..]),
                particles.expected(dump, id),
                dump,
                id,
            )?;
        }
    }
    Ok((hits.finish(), misses.finish()))
}

fn never_written(key: &[u8], seed: u64) -> Failure {
    wrong(
        format_args!("a key that was never written has a value: {key:?}"),
        seed,
    )
}

/// Compares everything that the cursor returns with the expected pairs.
pub fn compare_dumps(
    seed: u64,
    mut cursor: Cursor,
    particles: &Particles,
    recorder: &Recorder,
) -> Result<u64, Failure> {
    let mut pairs = 0;
    cursor.seek_to_first()?;
    for dump in 0..particles.dump_count() {
        for id in 0..particles.particle_count() {
            let Some(expected) = particles.expected(dump, id) else {
                continue;
            };
            let key = encode_key(dump, id);
            if !cursor.valid() || cursor.key() != key || cursor.value() != expected {
                let found = cursor.valid().then(|| (cursor.key(), cursor.value()));
                return Err(wrong(
                    format_args!(
                        "a scan gives {found:?} where particle {id} of dump {dump} must be \
                        ({key:?}, {expected:?})"
                    ),
                    seed,
                ));
            }
            pairs += 1;
            recorder.read(1);
            cursor.next()?;
        }
    }
    if cursor.valid() {
        return Err(wrong(
            format_args!(
                "a scan gives a key that was never written: {:?}",
                cursor.key()
            ),
            seed,
        ));
    }
    Ok(pairs)
}

/// Scans from random keys, forward and backward, within a dump.
fn short_scans(
    plan: &Plan,
    keyspace: &Keyspace,
    particles: &Particles,
    draw: &mut Draw,
    recorder: &Recorder,
) -> Result<u64, Failure> {
    let mut pairs = 0;
    for i in 0..plan.scans {
        let (dump, id) = (
            draw.below(particles.dump_count()),
            draw.below(particles.particle_count()),
        );
        let end = (id + SCAN_PAIRS).min(particles.particle_count());
        let range = keyspace.range(IterOptions::range(
            encode_key(dump, id)..encode_key(dump, end),
        ))?;
        let backward = i % 2 == 1;
        let pairs_found: Box<dyn Iterator<Item = _>> = if backward {
            Box::new(range.rev())
        } else {
            Box::new(range)
        };
        let mut found = 0;
        for pair in pairs_found {
            let (key, value) = pair?;
            let at = if backward {
                end - 1 - found
            } else {
                id + found
            };
            if at >= end || at < id || key != encode_key(dump, at) {
                return Err(wrong(
                    format_args!("a scan of dump {dump} from {id} to {end} gives {key:?}"),
                    plan.seed,
                ));
            }
            compare(
                plan.seed,
                Some(&value),
                particles.expected(dump, at),
                dump,
                at,
            )?;
            found += 1;
        }
        if found != end - id {
            return Err(wrong(
                format_args!("a scan of dump {dump} from {id} to {end} gives {found} pairs"),
                plan.seed,
            ));
        }
        pairs += found;
        recorder.read(found);
    }
    Ok(pairs)
}

/// Checks that a snapshot sees the old values after newer writes, deletes and a range delete.
fn snapshot(
    plan: &Plan,
    store: &Store,
    keyspace: &Keyspace,
    particles: &mut Particles,
    recorder: &Recorder,
) -> Result<(), Failure> {
    let start = Instant::now();
    let snapshot = store.snapshot();
    let (mut overwritten, mut deleted, mut ranged) = (0u64, 0u64, 0u64);
    let mut batch = Batch::new();
    let (from, to) = particles.deleted_range();
    for id in 0..particles.particle_count() {
        let key: [u8; KEY_BYTES] = encode_key(0, id);
        match (particles.change(0, id), particles.original(0, id)) {
            (Some(Change::Overwritten), Some(original)) => {
                batch.put(keyspace, &key, &original.map(|b| !b))?;
                overwritten += 1;
            }
            (Some(Change::Deleted), _) => {
                batch.delete(keyspace, &key)?;
                deleted += 1;
            }
            (Some(Change::RangeDeleted), _) => ranged += 1,
            _ => {}
        }
        if batch.len() >= BATCH_CHANGES {
            store.write(&batch, WriteOptions::default())?;
            batch.clear();
        }
    }
    store.write(&batch, WriteOptions::default())?;
    keyspace.delete_range(&from, &to)?;
    // Flush, so that the snapshot's reads find the changes in tables as well.
    store.flush()?;
    let before = compare_snapshot(plan.seed, keyspace, &snapshot, particles, recorder)?;
    particles.altered = true;
    let after = compare_dumps(
        plan.seed,
        keyspace.cursor(IterOptions::default())?,
        particles,
        recorder,
    )?;
    drop(snapshot);
    say!(
        "   a snapshot:   after {} overwrites, {} deletes and one range delete over {} keys it saw \
         {} pairs, all of them old ones;\n\
         {:17}a new scan saw {}, all of them new ones ({})",
        count(overwritten),
        count(deleted),
        count(ranged),
        count(before),
        "",
        count(after),
        duration(start.elapsed())
    )
}

fn compare_snapshot(
    seed: u64,
    keyspace: &Keyspace,
    snapshot: &Snapshot,
    particles: &Particles,
    recorder: &Recorder,
) -> Result<u64, Failure> {
    for id in (0..particles.particle_count()).step_by(97) {
        let found = keyspace.get_at(snapshot, &encode_key(0, id))?;
        compare(seed, found.as_deref(), particles.original(0, id), 0, id)?;
    }
    compare_dumps(
        seed,
        keyspace.cursor_at(snapshot, IterOptions::default())?,
        particles,
        recorder,
    )
}

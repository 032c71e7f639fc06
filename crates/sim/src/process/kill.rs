//! Row 1: a real process is killed with SIGKILL at random moments, repeatedly in the same folder,
//! and nothing acknowledged is missing.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use siltstone::check::{CheckStorages, check};
use siltstone::log::format::segment_name;
use siltstone::manifest::recover;
use siltstone::{Storages, SyncMode};

use super::parent::{Bench, PATIENCE, Received, Victim, settled};
use super::script::{Script, VERIFYING};
use super::victim::{NOT_OPEN, Order};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// The number of cycles of a seed, which all use one folder.
pub const CYCLES: u64 = 5;

/// The moment when the victim dies.
#[derive(Clone, Copy, Debug)]
enum When {
    /// This time after its start: mostly while it opens the store.
    AfterStart(Duration),
    /// This time after work began.
    AfterReady(Duration),
    /// When this number of operations was acknowledged.
    AfterDone(u64),
    /// It is stopped, another process is refused, and then it dies.
    Stopped(Duration),
    /// It is asked to end, and closes the store.
    Never(Duration),
}

fn draw_when(seed: u64, cycle: u64, rng: &mut Rng, open: Duration) -> When {
    if cycle == 0 && rng.chance(50) {
        // The duration of an open is not known yet.
        return When::AfterStart(Duration::from_micros(rng.below(12_000)));
    }
    if Script::new(seed, cycle).has_long_keys() && rng.chance(80) {
        // Enough operations for another manifest.
        return When::AfterDone(100 + rng.below(300));
    }
    let most = *rng.pick(&[10, 40, 120, 250]);
    let work = Duration::from_micros(rng.below(most * 1000));
    match (rng.below(100), seed % CYCLES == cycle) {
        // About once per seed, so that a few seeds are enough to reach them.
        (n, true) if n < 30 => When::Never(work),
        (n, true) if n < 70 => When::Stopped(work),
        (n, _) => draw_kill(n, work, rng, open),
    }
}

fn draw_kill(n: u64, work: Duration, rng: &mut Rng, open: Duration) -> When {
    match n {
        0..25 => When::AfterStart(open * (rng.below(130) as u32) / 100),
        25..45 => When::AfterDone(1 + rng.below(400)),
        45..55 => When::Stopped(work),
        55..62 => When::Never(work),
        _ => When::AfterReady(work),
    }
}

/// Runs one seed: [`CYCLES`] cycles of start, work, kill and verification in one folder. `program`
/// is the victim's.
///
/// # Panics
/// At the first loss, wrong answer, unexpected error, panic or hang.
pub fn kill_trial(seed: u64, program: &Path) -> Coverage {
    let mut bench = Bench::new(seed, program, None);
    let mut rng = Rng::new(seed ^ 0x6B11);
    let mut open = Duration::from_millis(20);
    for cycle in 0..CYCLES {
        let when = draw_when(seed, cycle, &mut rng, open);
        let result = cycle_of(&mut bench, cycle, when, &mut rng, &mut open);
        if result.is_err() {
            return settled(bench, "kill_9", result, &format!("cycle {cycle}, {when:?}"));
        }
    }
    settled(bench, "kill_9", Ok(()), "")
}

fn cycle_of(
    bench: &mut Bench,
    cycle: u64,
    when: When,
    rng: &mut Rng,
    open: &mut Duration,
) -> Result<(), String> {
    let script = Script::new(bench.seed, cycle);
    let options = script.options(true);
    let newest = newest_manifest(bench);
    let had_second = second_location(bench).exists();
    let order = bench.order(cycle);
    let mut victim = bench.start(&order, script, &[])?;
    until(bench, &mut victim, when, open)?;
    match when {
        When::Never(_) => {
            bench.ended_well(&mut victim)?;
            bench.coverage.add("ended.closed");
            damage_closed(&order.path, &mut Rng::new(bench.seed ^ cycle))?;
            bench.coverage.add("closed.damaged");
        }
        When::Stopped(_) => {
            victim.signal(Signal::STOP);
            let (status, _, errors) = bench.other("verify", &order)?;
            if bench.expected.said().opened_us.is_some() {
                if status.code() != Some(NOT_OPEN) || !errors.contains("[locked]") {
                    return Err(format!(
                        "a second opener was not refused while the first was stopped: {status}; \
                        {errors}"
                    ));
                }
                bench.coverage.add("second_opener_refused");
            } else if !matches!(status.code(), Some(0 | NOT_OPEN)) {
                return Err(format!("a second opener: {status}; {errors}"));
            }
            // It is killed while it is stopped, or right after it continues.
            if rng.chance(50) {
                victim.signal(Signal::CONT);
            }
            victim.signal(Signal::KILL);
            bench.killed(&mut victim)?;
        }
        _ => {
            victim.signal(Signal::KILL);
            bench.killed(&mut victim)?;
        }
    }
    drop(victim);
    reached(
        bench,
        cycle,
        options.sync,
        options.log_segment_bytes,
        newest,
        when,
    );

    let second = second_location(bench);
    if !had_second && second.exists() && cycle > 0 {
        bench.coverage.add("second_location.added");
    }
    let names = std::fs::read_dir(second).into_iter().flatten().flatten();
    if names.into_iter().any(|entry| is_table(&entry.path())) {
        bench.coverage.add("second_location.has_tables");
    }

    let later = Order {
        cycle: cycle + VERIFYING,
        ..order
    };
    // The recovery after a kill is killed, perhaps several times.
    while rng.chance(25) {
        let recovering = bench.start_other("verify", &later)?;
        std::thread::sleep(open.mul_f64(rng.below(120) as f64 / 100.0));
        recovering.signal(Signal::KILL);
        bench.coverage.add("killed.in_recovery");
    }
    if rng.chance(20) && bench.store.join("CURRENT").exists() {
        bench.check(&later)?;
    }
    let first_reader = rng.chance(40) && bench.store.join("CURRENT").exists();
    if first_reader {
        bench.verify_by_reader(&later)?;
    }
    // If only a reader opened the store, the next victim's open is the recovery.
    if !first_reader || cycle + 1 == CYCLES || rng.chance(30) {
        bench.verify(&later)?;
    }
    bench.coverage.add("cycle");
    Ok(())
}

/// Receives the victim's messages until the moment has come.
fn until(
    bench: &mut Bench,
    victim: &mut Victim,
    when: When,
    open: &mut Duration,
) -> Result<(), String> {
    let mut end = match when {
        When::AfterStart(after) => Some(Instant::now() + after),
        _ => None,
    };
    let mut ready = false;
    loop {
        let patience = end.map_or(PATIENCE, |end| {
            end.saturating_duration_since(Instant::now())
        });
        match victim.next(patience) {
            Received::Message(message) => bench.expected.receive(message?)?,
            Received::End => return Ok(()),
            Received::Silence if end.is_some() => return Ok(()),
            Received::Silence => return Err(bench.hang(victim, "says nothing")),
        }
        let said = bench.expected.said();
        if said.ready && !ready {
            ready = true;
            *open = victim.age();
            if let When::AfterReady(after) | When::Stopped(after) | When::Never(after) = when {
                end = Some(Instant::now() + after);
            }
        }
        match when {
            When::AfterDone(count) if said.done >= count => return Ok(()),
            // Its messages must not keep it alive.
            _ if end.is_some_and(|end| Instant::now() >= end) => return Ok(()),
            _ => {}
        }
    }
}

/// The folder of the second location of tables, if there is one.
fn second_location(bench: &Bench) -> PathBuf {
    bench.store.join("the-redirect")
}

fn is_table(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension == "tbl")
}

/// The largest number of a manifest in the folder.
fn newest_manifest(bench: &Bench) -> u64 {
    let entries = std::fs::read_dir(&bench.store).into_iter().flatten();
    let names = entries
        .flatten()
        .filter_map(|e| e.file_name().into_string().ok());
    let numbers = names.filter_map(|n| n.strip_prefix("MANIFEST-")?.parse().ok());
    numbers.max().unwrap_or(0)
}

fn reached(
    bench: &mut Bench,
    cycle: u64,
    sync: SyncMode,
    segment_bytes: u64,
    newest: u64,
    when: When,
) {
    let said = bench.expected.said().clone();
    let now = newest_manifest(bench);
    let killed = !matches!(when, When::Never(_));
    let coverage = &mut bench.coverage;
    let mut add = |on: bool, name: &str| {
        if on {
            coverage.add(name);
        }
    };
    add(killed, "killed");
    match (said.opened_us, cycle) {
        (None, 0) => add(killed, "killed.in_first_open"),
        (None, _) => add(killed, "killed.in_open"),
        (Some(_), _) => add(killed && said.ready, "killed.at_work"),
    }
    add(killed && said.jobs > 0, "killed.with_running_jobs");
    add(killed && said.flushes > 0, "killed.after_flush");
    add(killed && said.compactions > 0, "killed.after_compaction");
    add(
        killed && said.redirected > 0,
        "killed.after_redirected_flush",
    );
    add(said.replayed > 0, "log_was_replayed");
    add(said.log_bytes > segment_bytes, "log_rolled");
    add(
        said.log_bytes > 0 && segment_bytes >= 1 << 20,
        "log_large_segments",
    );
    add(said.ingests > 0, "ingested");
    // Each open writes a new manifest; one more is a roll.
    add(said.ready && now > newest + 1, "manifest_rolled");
    if said.ready {
        coverage.add(match sync {
            SyncMode::Never => "sync.never",
            SyncMode::Interval(_) => "sync.interval",
            SyncMode::Always => "sync.always",
        });
    }
}

/// Checks a store that a process has closed: the manifest says where the log ends, and `check` must
/// find damage before that position. Restores the log.
fn damage_closed(path: &Path, rng: &mut Rng) -> Result<(), String> {
    let text = |e: siltstone::Error| e.to_string();
    let failed = |e: std::io::Error| format!("damaging a closed log: {e}");
    let storages = Storages::find(path).map_err(text)?;
    let found = recover(&*storages.manifest).map_err(text)?;
    let state = found.ok_or("there is no store")?.state;
    if !state.closed {
        return Err("a process closed its store, but the manifest does not say so".into());
    }
    let end = state.log_synced;
    let file = PathBuf::from(storages.log.describe()).join(segment_name(end.segment as u32));
    drop(storages);
    let whole = std::fs::read(&file).map_err(failed)?;
    let at = rng.below(end.offset) as usize;
    let mut damaged = whole.clone();
    match rng.chance(30) {
        true => damaged.truncate(at),
        false => damaged[at] ^= 1 << rng.below(8),
    }
    std::fs::write(&file, &damaged).map_err(failed)?;
    let storages = Storages::find(path).map_err(text)?;
    let report = check(&CheckStorages::of(&storages), &mut |_| {}).map_err(text)?;
    std::fs::write(&file, &whole).map_err(failed)?;
    match report.is_sound() {
        true => Err(format!(
            "`check` finds no damage at byte {at} of a log that was closed at {end}"
        )),
        false => Ok(()),
    }
}

/// What row 1 must reach.
pub const KILL_REACHED: &[&str] = &[
    "checked",
    "cycle",
    "closed.damaged",
    "ended.closed",
    "ingested",
    "killed.after_compaction",
    "killed.after_flush",
    "killed.after_redirected_flush",
    "killed.at_work",
    "killed.in_first_open",
    "killed.in_open",
    "killed.in_recovery",
    "killed.with_running_jobs",
    "log_large_segments",
    "log_rolled",
    "log_was_replayed",
    "manifest_rolled",
    "op.batch_over_keyspaces",
    "op.create",
    "op.delete_range",
    "op.drop",
    "op.ingest",
    "pending.batch",
    "pending.put",
    "second_opener_refused",
    "sync.always",
    "sync.interval",
    "sync.never",
    "unsure.not_there",
    "unsure.there",
    "second_location.added",
    "second_location.has_tables",
    "verified.by_a_reader",
    "verified.by_a_writer",
];

//! Syncs that fail. If it is the sync of a log segment, a manifest or the folder, the store accepts
//! no more writes and says why, that sync is never repeated, reads continue, and the state that a
//! reopen shows is kept, even if the power fails after it (the page cache still shows what a failed
//! sync covered, although it will never be durable). If it is the sync of a table, its job runs
//! again, and nothing else happens.
//!
//! Threading: one task, its clients, and one that repairs the disk after a while.

use std::sync::Arc;
use std::time::Duration;

use siltstone::ErrorKind;
use siltstone_storage::fault::{Fault, FaultStorage, Rule};
use siltstone_storage::{CrashPolicy, MemoryStorage, OpKind, StorageErrorKind};

use super::{OTHER_EXECUTORS_PERCENT, Run, STEPS, simulate_counted};
use crate::checker::check_now;
use crate::coverage::Coverage;
use crate::model::Event;
use crate::observe::lock;
use crate::rng::Rng;
use crate::workload::draw_options;
use crate::world::{Errors, World};

/// A sync that failed.
struct Failed {
    /// The line in the trace.
    at: usize,
    /// The kind of the object.
    part: &'static str,
    /// The call and the object, as the trace shows them.
    call: String,
    /// The object's name in errors.
    named: String,
    /// Whether the failure must end writing.
    is_bad: bool,
}

/// The failed syncs in a trace, from line `from` on.
fn failed_syncs(trace: &[String], from: usize) -> Vec<Failed> {
    let mut all = Vec::new();
    for (at, line) in trace.iter().enumerate().skip(from) {
        let mut words = line.split(' ').skip(1);
        let (Some(kind), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        if !line.ends_with(" Io") || !["sync", "sync_dir"].contains(&kind) {
            continue;
        }
        let named = name.trim_matches('"').to_string();
        // A segment that is being prepared is empty, and nothing refers to it.
        let has_records = || {
            let append = format!(" append {name} at ");
            trace[..at].iter().any(|line| line.contains(&append))
        };
        // Nor does anything refer to a new manifest before the pointer names it.
        let is_current = || {
            let append = format!(" append {name} at ");
            let begun = trace[..at].iter().position(|line| line.contains(&append));
            let named = |line: &&String| line.contains(" replace \"CURRENT\" at ");
            begun.is_some_and(|begun| trace[begun..at].iter().any(|line| named(&line)))
        };
        let (part, is_bad) = match named.as_str() {
            _ if kind == "sync_dir" => ("folder", true),
            name if name.ends_with(".log") => match has_records() {
                true => ("log", true),
                false => ("spare_segment", false),
            },
            name if name.starts_with("MANIFEST") => match is_current() {
                true => ("manifest", true),
                false => ("spare_manifest", false),
            },
            name if name.ends_with(".tbl") => ("table", false),
            _ => ("other", false),
        };
        all.push(Failed {
            at,
            part,
            call: format!(" {kind} {name} at "),
            named: match part {
                "folder" => "directory".into(),
                _ => named,
            },
            is_bad,
        });
    }
    all
}

/// Tries to write, and returns the error if it fails. If there is no keyspace, tries to create one.
pub(super) fn try_put(run: &Run, world: &World) -> Result<Option<siltstone::Error>, String> {
    let Some(name) = world.store.keyspaces().first().cloned() else {
        lock(&run.history)
            .settings
            .announce_create(world.wishes.get("default").cloned().unwrap_or_default());
        return Ok(match world.store.create_keyspace("default") {
            Ok(keyspace) => {
                let id = keyspace.id();
                let created = |e: &Event| matches!(e, Event::Create(i, _) if *i == id);
                let number = lock(&run.history).model.number_of_change(created);
                world.synced(number.ok_or("a create left no record")?);
                None
            }
            Err(e) => Some(e),
        });
    };
    let keyspace = world.store.keyspace(&name).map_err(|e| e.to_string())?;
    let op = crate::model::Op::Put(
        keyspace.id(),
        b"after".as_slice().into(),
        b"all".as_slice().into(),
    );
    lock(&run.history).announce(vec![op.clone()]);
    let result = keyspace.put(b"after", b"all");
    if result.is_err() {
        lock(&run.history).withdraw(&[op]);
    }
    Ok(result.err())
}

/// Which syncs fail.
fn draw_rule(rng: &mut Rng) -> Rule {
    let fault = match rng.chance(25) {
        true => Fault::FailAfter(StorageErrorKind::Io),
        false => Fault::Fail(StorageErrorKind::Io),
    };
    let rule = match rng.below(4) {
        0 => Rule::on(OpKind::SyncDir, fault),
        1 => Rule::on(OpKind::Sync, fault).named("MANIFEST"),
        _ => Rule::on(OpKind::Sync, fault),
    };
    let most = *rng.pick(&[2, 10, 40]);
    let rule = rule.nth(rng.below(most));
    match rng.chance(40) {
        true => rule.for_good(),
        false => rule,
    }
}

/// Checks that a write fails and names the sync that failed.
fn refuses_writes(
    run: &Run,
    world: &World,
    failed: &[Failed],
    bad: &Failed,
    health: &str,
) -> Result<(), String> {
    let call = &bad.call;
    let error = try_put(run, world)?.ok_or_else(|| format!("a write after the failed{call}"))?;
    let text = error.to_string();
    // If several syncs failed at once, any of them may have been the first to end writing.
    let names_one = failed.iter().any(|f| f.is_bad && text.contains(&f.named));
    let is_poisoned = error.kind() == ErrorKind::Poisoned && health != "good";
    if !is_poisoned || !names_one || !text.contains("injected") {
        return Err(format!("after the failed{call}: {error}; health: {health}"));
    }
    Ok(())
}

/// Only syncs of tables failed: this passes.
fn writes_resume(run: &Run, world: &World) -> Result<(), String> {
    let mut patience = 0;
    while let Some(error) = try_put(run, world)? {
        patience += 1;
        if patience > 50 || error.kind() == ErrorKind::Poisoned {
            return Err(format!("writes do not resume: {error}"));
        }
        run.runtime.sleep(Duration::from_millis(500));
    }
    Ok(())
}

/// Runs one seed.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn failed_syncs_trial(seed: u64) -> Coverage {
    simulate_counted(seed, STEPS, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x5F9C);
        let mut run = Run::new(&runtime, &mut rng);
        run.offer_other_executors(seed, OTHER_EXECUTORS_PERCENT);
        let medium = MemoryStorage::new(&runtime);
        let options = draw_options(&mut rng);
        let world = run.must_open(&medium, &options, "first life")?;
        world.settings_after_open()?;
        run.work(&world, 1, 20, &mut rng)?;
        run.close(&world).map_err(|e| format!("close: {e}"))?;
        drop(world);

        let faulty = FaultStorage::new(Arc::new(medium.clone()), &runtime);
        faulty.start_trace(true);
        faulty.disarm();
        let rule = draw_rule(&mut rng);
        let what = format!("{options:?}; {rule:?}");
        let with_context = |e: String| format!("{what}: {e}");
        faulty.add(rule);
        let storage = Arc::new(faulty.clone());
        let world = run
            .open(&medium, storage, &options, Errors::Expected)
            .map_err(|e| with_context(format!("open: {e}")))?;
        world.settings_after_open()?;
        if rng.chance(50) {
            world
                .store
                .test_hooks()
                .roll_manifest_from(1 << rng.below(14));
        }
        let opened = faulty.trace_log().len();
        faulty.arm();
        let (repaired, clock) = (faulty.clone(), runtime.clone());
        let repair = runtime.spawn("repair", move || {
            clock.sleep(Duration::from_secs(5));
            repaired.disarm();
        });
        repair.map_err(|e| e.to_string())?;
        let (clients, count) = (1 + rng.below(3), 20 + rng.below(60));
        run.work(&world, clients, count, &mut rng)
            .map_err(with_context)?;
        // The task that met the failure has had time to report it.
        runtime.sleep(Duration::from_millis(100));
        faulty.disarm();
        let failed = failed_syncs(&faulty.trace_log(), opened);
        for f in &failed {
            run.coverage.add(&format!("failed_sync.{}", f.part));
        }
        let bad = failed.iter().find(|f| f.is_bad);
        check_now(&world.store, &run.history, &world.plan.keys, &mut rng)
            .map_err(|e| with_context(format!("after the fault: {e}")))?;
        let health = world.store.stats().health;
        match bad {
            Some(bad) => {
                refuses_writes(&run, &world, &failed, bad, &health).map_err(with_context)?;
            }
            None => {
                let fired = faulty.fired();
                if health.contains("poison") {
                    return Err(with_context(format!("{fired:?} poisoned: {health}")));
                }
                writes_resume(&run, &world).map_err(|e| with_context(format!("{fired:?}: {e}")))?;
                run.check_all(&world, &mut rng).map_err(with_context)?;
                run.coverage.add(match fired.is_empty() {
                    true => "failed_sync.not_met",
                    false => "failed_sync.passed",
                });
            }
        }
        let close = run.close(&world);
        if let (Err(e), None) = (&close, bad) {
            return Err(with_context(format!("close: {e}")));
        }
        drop(world);
        for bad in failed.iter().filter(|f| f.is_bad) {
            // The sync is never repeated, neither by other tasks nor by the close.
            let trace = faulty.trace_log();
            if let Some(again) = trace[bad.at + 1..].iter().find(|l| l.contains(&bad.call)) {
                return Err(with_context(format!(
                    "the failed{} was made again: {again}",
                    bad.call
                )));
            }
            run.coverage
                .add(&format!("failed_sync.{}.poisoned", bad.part));
        }

        let (acked, synced) = {
            let history = lock(&run.history);
            (history.acked, history.synced)
        };
        let power = rng.chance(30);
        let (image, mut least) = match power {
            true => {
                let policy = CrashPolicy::Seeded(rng.draw());
                (medium.crash_in(&runtime, policy).0, synced)
            }
            false => (medium.kill_in(&runtime), acked),
        };
        let mut image = image;
        for round in 0..3 {
            let options = draw_options(&mut rng);
            let world = run.must_open(&image, &options, &what)?;
            run.settle(&world.store, least).map_err(|e| {
                with_context(format!("reopened, round {round}, power lost: {power}: {e}"))
            })?;
            world.take_settings(false)?;
            // Power fails right after the reopen, and then after some work.
            if round > 0 {
                run.work(&world, 1, 10, &mut rng).map_err(with_context)?;
            }
            least = lock(&run.history).synced;
            let policy = match rng.chance(50) {
                true => CrashPolicy::LoseUnsynced,
                false => CrashPolicy::Seeded(rng.draw()),
            };
            image = image.crash_in(&runtime, policy).0;
            if bad.is_some() {
                run.coverage.add("failed_sync.power_lost_after_the_reopen");
            }
        }
        Ok(run.coverage)
    })
}

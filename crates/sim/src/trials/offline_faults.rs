//! Repairs and readers whose calls fail, or that are crashed at each call. They never change the
//! source, an incomplete target is made again, and the answers are right.

use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::repair::{RepairOptions, RepairReport, RepairSource, repair};
use siltstone::{Components, ErrorKind, IterOptions, Options, Store};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{
    CrashPolicy, FaultStorage, MemoryStorage, Runtime, Storage, StorageErrorKind,
};

use super::repair::{damaged_copy, history, read_folder};
use super::simulate;
use crate::checker::{Contents, contents};
use crate::coverage::Coverage;
use crate::rng::Rng;
use crate::world::admin::reading_options;

fn run_repair(
    runtime: &Runtime,
    source: &Arc<dyn Storage>,
    target: &Arc<dyn Storage>,
) -> siltstone::Result<RepairReport> {
    let options = RepairOptions {
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        ..RepairOptions::default()
    };
    let from = RepairSource::on(source.clone());
    repair(&from, target, runtime, &options, &mut |_| {})
}

fn open(runtime: &Runtime, storage: &Arc<dyn Storage>) -> siltstone::Result<Store> {
    let components = Components::on(storage.clone(), runtime.clone());
    Store::open_read_only_with(components, reading_options())
}

fn read(runtime: &Runtime, storage: &Arc<dyn Storage>) -> siltstone::Result<Contents> {
    let store = open(runtime, storage)?;
    let found = contents(&store)?;
    store.close()?;
    Ok(found)
}

/// Runs one seed: a store, sound or damaged, is repaired. The repair is crashed at every call, and
/// meets a fault at one call in `share`.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn repair_at_every_call(seed: u64, share: u64) -> Coverage {
    simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x9E4A);
        let (run, image) = history(&runtime, &mut rng)?;
        let mut coverage = Coverage::default();
        let image = match rng.chance(50) {
            true => damaged_copy(&runtime, &mut rng, &image, run.model())?,
            false => image,
        };
        let before = read_folder(&image)?;
        let source: Arc<dyn Storage> = Arc::new(image.clone());
        let target = MemoryStorage::new(&runtime);
        target.start_journal();
        let whole: Arc<dyn Storage> = Arc::new(target.clone());
        run_repair(&runtime, &source, &whole).map_err(|e| format!("repair: {e}"))?;
        let wanted = read(
            &runtime,
            &(Arc::new(target.kill_in(&runtime)) as Arc<dyn Storage>),
        )
        .map_err(|e| format!("the repaired store: {e}"))?;
        let holds = |image: &MemoryStorage, what: &str| -> Result<(), String> {
            let storage: Arc<dyn Storage> = Arc::new(image.clone());
            let found = read(&runtime, &storage).map_err(|e| format!("{what}: {e}"))?;
            found.same_as(&wanted).map_err(|e| format!("{what}: {e}"))?;
            let report = check(&CheckStorages::on(image), &mut |_| {})
                .map_err(|e| format!("{what}: {e}"))?;
            match report.is_sound() && report.orphans.is_empty() {
                true => Ok(()),
                false => Err(format!(
                    "{what}: {:?} {:?}",
                    report.problems, report.orphans
                )),
            }
        };

        let mut replay = target.replay();
        for n in 0..=replay.len() {
            replay.advance_to(n);
            let policies = [
                CrashPolicy::LoseUnsynced,
                CrashPolicy::KeepUnsynced,
                CrashPolicy::Seeded(seed << 32 | n),
            ];
            for policy in policies {
                let what = format!("repair crashed at call {n} of {}, {policy:?}", replay.len());
                let image = replay.crash_in(&runtime, policy).0;
                let again: Arc<dyn Storage> = Arc::new(image.clone());
                match run_repair(&runtime, &source, &again) {
                    Ok(_) => coverage.add("repair_crash.made_again"),
                    // This is allowed only if the first repair was complete.
                    Err(e) if e.kind() == ErrorKind::InvalidArgument => {
                        coverage.add("repair_crash.whole");
                    }
                    Err(e) => return Err(format!("{what}: once more: {e}")),
                }
                holds(&image, &what)?;
            }
        }

        for in_target in [false, true] {
            let mut nth = seed % share;
            loop {
                let (kind, for_good) = (
                    *rng.pick(&[StorageErrorKind::Io, StorageErrorKind::NoSpace]),
                    rng.chance(30),
                );
                let rule = Rule::on_any(Fault::Fail(kind)).nth(nth);
                let target = MemoryStorage::new(&runtime);
                let below: Arc<dyn Storage> = match in_target {
                    true => Arc::new(target.clone()),
                    false => source.clone(),
                };
                let faulty = FaultStorage::new(below, &runtime);
                faulty.add(if for_good { rule.for_good() } else { rule });
                let seen: Arc<dyn Storage> = Arc::new(faulty.clone());
                let plain: Arc<dyn Storage> = Arc::new(target.clone());
                let result = match in_target {
                    true => run_repair(&runtime, &source, &seen),
                    false => run_repair(&runtime, &seen, &plain),
                };
                let Some(fired) = faulty.fired().first().cloned() else {
                    result.map_err(|e| format!("repair without a fault: {e}"))?;
                    break;
                };
                let what = format!(
                    "repair, call {nth} {} meets {kind:?} for good {for_good}: {:?} {}",
                    if in_target {
                        "of the target"
                    } else {
                        "of the source"
                    },
                    fired.kind,
                    fired.name
                );
                match result {
                    // The failure may have had no effect, because it concerned the deletion of the
                    // marker or an advice to the kernel.
                    Ok(_) => coverage.add("repair_fault.harmless"),
                    Err(e) => {
                        let kinds = [ErrorKind::Io, ErrorKind::NoSpace, ErrorKind::Poisoned];
                        if !kinds.contains(&e.kind()) {
                            return Err(format!("{what}: {e}"));
                        }
                        coverage.add("repair_fault.reported");
                        match run_repair(&runtime, &source, &plain) {
                            Ok(_) => {}
                            Err(e) if e.kind() == ErrorKind::InvalidArgument => {
                                coverage.add("repair_fault.whole_all_the_same");
                            }
                            Err(e) => return Err(format!("{what}: once more: {e}")),
                        }
                    }
                }
                holds(&target, &what)?;
                nth += share;
            }
        }
        if read_folder(&image)? != before {
            return Err("a repair changed its source".to_string());
        }
        Ok(coverage)
    })
}

/// Runs one seed: a store that a killed process left is opened for reading and read completely,
/// while one in `share` of the calls fails. Every answer is an error or right.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang.
pub fn reader_at_every_call(seed: u64, share: u64) -> Coverage {
    simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x4EAD);
        let (_, image) = history(&runtime, &mut rng)?;
        let before = read_folder(&image)?;
        let mut coverage = Coverage::default();
        let storage: Arc<dyn Storage> = Arc::new(image.clone());
        let wanted = read(&runtime, &storage).map_err(|e| format!("open for reading: {e}"))?;
        let mut nth = seed % share;
        loop {
            let fault = match rng.below(4) {
                0 => Fault::ShortRead,
                1 => Fault::FailedMap,
                _ => Fault::Fail(StorageErrorKind::Io),
            };
            let faulty = FaultStorage::new(storage.clone(), &runtime);
            faulty.add(Rule::on_any(fault).nth(nth));
            let seen: Arc<dyn Storage> = Arc::new(faulty.clone());
            let what = format!("reader, call {nth} meets {fault:?}");
            let with_context = |e: siltstone::Error| format!("{what}: {e}");
            // A file that ends too early counts as damage, and a map that failed once stays failed.
            let excused = |e: &siltstone::Error| {
                let short = fault == Fault::ShortRead && e.kind() == ErrorKind::Corruption;
                !faulty.fired().is_empty() && (short || e.kind() == ErrorKind::Io)
            };
            let same = |found: Contents| found.same_as(&wanted).map_err(|e| format!("{what}: {e}"));
            match open(&runtime, &seen) {
                Ok(store) => {
                    match contents(&store) {
                        Ok(found) => same(found)?,
                        Err(e) if excused(&e) => {
                            coverage.add("reader_fault.reported_by_a_read");
                            match contents(&store) {
                                Ok(found) => same(found)?,
                                Err(e) if fault == Fault::FailedMap && excused(&e) => {}
                                Err(e) => {
                                    return Err(format!("read once more: {}", with_context(e)));
                                }
                            }
                        }
                        Err(e) => return Err(with_context(e)),
                    }
                    for name in store.keyspaces() {
                        let keyspace = store.keyspace(&name).map_err(with_context)?;
                        match keyspace.approximate_size(&IterOptions::default()) {
                            Err(e) if !excused(&e) => return Err(with_context(e)),
                            _ => {}
                        }
                    }
                    store.close().map_err(with_context)?;
                }
                Err(e) if excused(&e) => coverage.add("reader_fault.reported_by_open"),
                Err(e) => return Err(with_context(e)),
            }
            if faulty.counts().changes() > 0 {
                return Err(format!(
                    "a reader whose call {nth} failed changed something"
                ));
            }
            if faulty.fired().is_empty() {
                break;
            }
            coverage.add("reader_fault.fired");
            nth += share;
        }
        if read_folder(&image)? != before {
            return Err("a reader changed its store".to_string());
        }
        // The repair and the reader must not leave files that hinder a writer.
        let components = Components::on(storage, runtime.clone());
        let store = Store::open_with(components, Options::default())
            .map_err(|e| format!("a writer after the readers: {e}"))?;
        let found = contents(&store).map_err(|e| e.to_string())?;
        found.same_as(&wanted)?;
        store.close().map_err(|e| e.to_string())?;
        Ok(coverage)
    })
}

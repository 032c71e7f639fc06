//! Opens of a store that no process has open, by a reader and by a repair. Their results are
//! compared with the state that a writer's open keeps right afterwards.
//!
//! Invariant: neither changes a byte of the store.
//!
//! Threading: one task.

use std::collections::BTreeSet;
use std::sync::Arc;

use siltstone::repair::{RepairOptions, RepairReport, RepairSource, repair};
use siltstone::{Components, ErrorKind, Options, Storages, Store};
use siltstone_storage::{FaultStorage, MemoryStorage, Storage};

use super::Run;
use crate::checker::{Check, Contents, contents, show};
use crate::model::{Event, Model};
use crate::observe::lock;
use crate::rng::Rng;
use crate::world::admin::reading_options;

/// What the offline opens of a store returned; see the module.
#[derive(Default)]
pub(crate) struct Offline {
    reader: Option<Contents>,
    repaired: Option<Repaired>,
}

struct Repaired {
    contents: Contents,
    report: RepairReport,
}

impl Offline {
    /// Opens the store offline, as the seed decides.
    pub(crate) fn at(
        run: &mut Run,
        medium: &MemoryStorage,
        rng: &mut Rng,
    ) -> Result<Offline, String> {
        let mut offline = Offline::default();
        let objects = medium.list().map_err(|e| e.to_string())?;
        let exists = objects.iter().any(|o| o.name == "CURRENT");
        let watched = FaultStorage::new(Arc::new(medium.clone()), &run.runtime);
        let storage: Arc<dyn Storage> = Arc::new(watched.clone());
        if rng.chance(40) {
            offline.reader = read(run, &storage, exists)?;
        }
        if rng.chance(20) {
            offline.repaired = run_repair(run, &storage, exists, rng)?;
        }
        match watched.counts().changes() {
            0 => Ok(offline),
            count => Err(format!(
                "an offline open of a store made {count} calls that change something"
            )),
        }
    }

    /// Compares the offline results with the state that a writer's open kept, which ends at `end`.
    /// `model` has all writes.
    pub(crate) fn compare(&self, model: &Model, end: u64, store: &Store) -> Check {
        if self.reader.is_none() && self.repaired.is_none() {
            return Ok(());
        }
        let kept = contents(store).map_err(|e| e.to_string())?;
        if let Some(seen) = &self.reader {
            seen.same_as(&kept)
                .map_err(|e| format!("a reader saw something else than a writer keeps: {e}"))?;
        }
        if let Some(repaired) = &self.repaired {
            repaired
                .compare(model, end, &kept)
                .map_err(|e| format!("a repair: {e}\n{}", repaired.report))?;
        }
        Ok(())
    }
}

/// Destroys a copy of the store that the last life left, and another copy during whose destruction
/// the process is killed: it is whole or no store, and the next attempt deletes the remaining
/// files.
pub(crate) fn destroy(run: &mut Run, medium: &MemoryStorage, rng: &mut Rng) -> Check {
    let image = medium.kill_in(&run.runtime);
    let objects = image.list().map_err(|e| e.to_string())?;
    if !objects.iter().any(|o| o.name == "CURRENT") {
        return Ok(());
    }
    let open = |image: &MemoryStorage| {
        let storage: Arc<dyn Storage> = Arc::new(image.clone());
        let components = Components::on(storage, run.runtime.clone());
        Store::open_read_only_with(components, reading_options())
    };
    let with_context = |e: siltstone::Error| format!("destroy: {e}");
    let store = open(&image).map_err(with_context)?;
    let whole = contents(&store).map_err(with_context)?;
    store.close().map_err(with_context)?;
    image.start_journal();
    let end = |image: &MemoryStorage| {
        let storage: Arc<dyn Storage> = Arc::new(image.clone());
        Store::destroy_on(&Storages::on(storage))
    };
    let is_empty = |image: &MemoryStorage| -> Check {
        let left = image.list().map_err(|e| e.to_string())?;
        match left.is_empty() {
            true => Ok(()),
            false => Err(format!("a destroyed store left {left:?}")),
        }
    };
    end(&image).map_err(with_context)?;
    is_empty(&image)?;
    let mut replay = image.replay();
    replay.advance_to(rng.below(replay.len() + 1));
    let cut = replay.kill_in(&run.runtime);
    match open(&cut) {
        Ok(store) => {
            let found = contents(&store).map_err(with_context)?;
            found
                .same_as(&whole)
                .map_err(|e| format!("half destroyed: {e}"))?;
            store.close().map_err(with_context)?;
            run.coverage.add("destroy.whole");
        }
        Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::Corruption) => {
            run.coverage.add("destroy.gone");
        }
        Err(e) => return Err(format!("opening a store half destroyed: {e}")),
    }
    match end(&cut) {
        Ok(_) => {}
        // The first attempt deleted all files of the store.
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) => return Err(format!("destroying the rest: {e}")),
    }
    is_empty(&cut)
}

/// Opens the store with two readers at once, and checks that a writer is refused.
fn read(
    run: &mut Run,
    storage: &Arc<dyn Storage>,
    exists: bool,
) -> Result<Option<Contents>, String> {
    let with_context = |e: siltstone::Error| format!("open for reading: {e}");
    let components = || Components::on(storage.clone(), run.runtime.clone());
    let open = || Store::open_read_only_with(components(), reading_options());
    let one = match open() {
        Ok(store) => store,
        Err(e) if !exists && e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(with_context(e)),
    };
    let two = open().map_err(with_context)?;
    let seen = contents(&one).map_err(with_context)?;
    seen.same_as(&contents(&two).map_err(with_context)?)
        .map_err(|e| format!("two readers differ: {e}"))?;
    for name in one.keyspaces() {
        let keyspace = one.keyspace(&name).map_err(with_context)?;
        let own = keyspace.own_options();
        let allowed = {
            let history = lock(&run.history);
            let settled = history.settings.settled();
            history.settings.allowed(keyspace.id(), settled)
        };
        if !allowed.contains(&own) {
            return Err(format!(
                "a reader: {own:?} is set for {name}, expected one of {allowed:?}"
            ));
        }
        let refused = keyspace.put(b"k", b"v").map_err(|e| e.kind());
        if refused != Err(ErrorKind::ReadOnly) {
            return Err(format!("a put beside readers gives {refused:?}"));
        }
    }
    one.close().map_err(with_context)?;
    two.close().map_err(with_context)?;
    run.coverage.add("offline.reader");
    Ok(Some(seen))
}

fn run_repair(
    run: &mut Run,
    storage: &Arc<dyn Storage>,
    exists: bool,
    rng: &mut Rng,
) -> Result<Option<Repaired>, String> {
    let target: Arc<dyn Storage> = Arc::new(MemoryStorage::new(&run.runtime));
    let options = RepairOptions {
        strict: rng.chance(40),
        table_bytes: 64 << 10 << rng.below(3),
        block_bytes: 1 << 10 << rng.below(3),
        ..RepairOptions::default()
    };
    let from = RepairSource::on(storage.clone());
    let report = match repair(&from, &target, &run.runtime, &options, &mut |_| {}) {
        Ok(report) => report,
        Err(e) if !exists && e.kind() == ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(format!("repair: {e}")),
    };
    let components = Components::on(target, run.runtime.clone());
    let opened = Options {
        log_segment_bytes: 64 << 10,
        ..reading_options()
    };
    let store = Store::open_with(components, opened).map_err(|e| format!("repaired: {e}"))?;
    let contents = contents(&store).map_err(|e| format!("repaired: {e}"))?;
    store.close().map_err(|e| format!("repaired: {e}"))?;
    run.coverage.add(match options.strict {
        true => "offline.repair_strict",
        false => "offline.repair",
    });
    run.coverage.add(match report.suspects.is_empty() {
        true => "offline.repair_sure",
        false => "offline.repair_suspects",
    });
    Ok(Some(Repaired { contents, report }))
}

impl Repaired {
    fn compare(&self, model: &Model, end: u64, kept: &Contents) -> Check {
        if self.report.lost_nothing() {
            return self.contents.same_as(kept);
        }
        let last = model.last();
        let ids: BTreeSet<u32> = self.contents.ids().into_values().collect();
        for (name, id) in kept.ids().into_iter().filter(|(_, id)| !ids.contains(id)) {
            // A repair also uses a drop behind a hole.
            let drops =
                |e: &Event| matches!(e, Event::Drop(i) | Event::DropWithoutRecord(i) if *i == id);
            if model.first_above(end, drops).is_none() {
                return Err(format!(
                    "the keyspace {name}, which a writer keeps, is missing"
                ));
            }
        }
        for (name, id) in self.contents.ids() {
            let Some((wanted, _)) = kept.ids().into_iter().find(|(_, i)| *i == id) else {
                continue;
            };
            let keys: BTreeSet<&[u8]> = self
                .contents
                .keys(&name)
                .chain(kept.keys(&wanted))
                .collect();
            for key in keys {
                let value = self.contents.get(&name, key);
                // For a writer, records after a hole do not belong to the history; a repair uses
                // every entry whose checksum is right.
                let later = model.between(id, key, end, last);
                let is_suspect = self
                    .report
                    .suspects
                    .iter()
                    .any(|s| s.keyspace == id && s.range.contains(key));
                if !is_suspect && !later.iter().any(|v| v.as_deref() == value) {
                    return Err(format!(
                        "{} of {name} has {:?} bytes, a writer keeps {:?}, and it is not suspect",
                        show(key),
                        value.map(<[u8]>::len),
                        kept.get(&wanted, key).map(<[u8]>::len)
                    ));
                }
            }
        }
        Ok(())
    }
}

//! The last step of an open: makes the parts of the open store.
//!
//! The only storage call here reads the file of options.
//!
//! Threading: the opening thread.

use std::sync::Arc;

use super::claim::Opening;
use super::install::Installed;
use super::replay::History;
use super::unflushed::Unflushed;
use crate::catalog::{Catalog, KeyspaceMap};
use crate::commit::Commit;
use crate::commit::write::WriteQueue;
use crate::env::below::Below;
use crate::env::{Env, Surroundings};
use crate::formats::log::LogWriter;
use crate::formats::options_file;
use crate::jobs::Jobs;
use crate::services::parts::Parts;
use crate::tree::Tree;
use crate::tree::settings::{Settings, first_memtable};
use crate::tree::tables::TableSet;
use crate::tree::view::{KeyspaceCore, KeyspaceView, MemSource, Source};
use crate::types::error::Result;
use crate::types::options::KeyspaceOptions;
use crate::wal::Wal;

/// Keyspaces with their first views.
struct Keyspaces {
    map: KeyspaceMap,
    /// The id that the next memtable or run gets in a view.
    next_source_id: u64,
}

/// Makes the parts out of the results of the earlier steps.
pub(super) fn assemble(
    opening: Opening,
    log: LogWriter,
    installed: Installed,
    history: &History,
) -> Result<Parts> {
    let tables = Arc::new(TableSet::new(
        &opening.runtime,
        opening.events.clone(),
        &opening.storages_at_once,
        opening.descriptors.clone(),
        &opening.options,
    ));
    let keyspaces = keyspaces_of(&opening, &installed, &tables)?;
    let options_file = match opening.is_reading() {
        false => options_file::read(&*opening.storages.manifest),
        true => Ok(None),
    };
    let live = opening.old.log_start.segment as u32..=history.end.segment;
    let env = Arc::new(Env::new(Surroundings {
        options: opening.options,
        options_file,
        runtime: opening.runtime,
        storages: opening.storages,
        storages_at_once: opening.storages_at_once,
        outage: opening.outage,
        locations: opening.locations,
        below: opening.below.map(|storages| Below { storages, live }),
        guards: opening.guards,
        epoch: opening.epoch,
        lease: opening.lease,
        health: opening.health,
        events: opening.events,
        metrics: opening.metrics,
    }));
    let published = installed.published;
    let queue = Arc::new(WriteQueue::of_store(
        &env,
        published + 1,
        keyspaces.next_source_id,
    ));
    let tree = Tree::new(&env, tables, published, opening.arenas, queue.clone());
    let tree = Arc::new(tree);
    let wal = Arc::new(Wal::new(&env, log));
    let catalog = Arc::new(Catalog::new(
        &tree,
        &wal,
        keyspaces.map,
        installed.manifest,
        installed.ceiling,
        installed.unflushed.is_some(),
    ));
    let commit = Arc::new(Commit::new(&catalog, queue));
    let jobs = Arc::new(Jobs::new(&commit, opening.runner));
    Ok(Parts {
        unflushed: Arc::new(Unflushed::new(&env, installed.unflushed)),
        env,
        tree,
        wal,
        catalog,
        commit,
        jobs,
    })
}

/// The keyspaces of the new manifest, each with an empty memtable above what was recovered.
fn keyspaces_of(
    opening: &Opening,
    installed: &Installed,
    tables: &Arc<TableSet>,
) -> Result<Keyspaces> {
    let mut map = KeyspaceMap::default();
    let mut next_source_id = 0;
    for (id, keyspace) in &installed.manifest.state().keyspaces {
        let own = KeyspaceOptions::from_stored(&keyspace.options)
            .map_err(|e| e.context(format!("keyspace `{}`", keyspace.name)))?;
        let settings = Settings::new(own, &opening.options, &opening.arenas);
        let mem = first_memtable(&settings)?;
        let active = MemSource::new(next_source_id, mem, installed.published);
        next_source_id += 1;
        let mut unsettled = vec![Source::Memtable(active)];
        for replayed in installed.unflushed.iter().flat_map(|data| data.of(*id)) {
            unsettled.push(replayed.in_view(next_source_id, tables));
            next_source_id += 1;
        }
        let view = KeyspaceView::build(unsettled, keyspace.version.clone(), tables, None);
        let core = KeyspaceCore::new(&opening.runtime, *id, &keyspace.name, view, settings);
        core.set_created();
        map.by_name.insert(keyspace.name.clone(), *id);
        map.by_id.insert(*id, core);
    }
    Ok(Keyspaces {
        map,
        next_source_id,
    })
}

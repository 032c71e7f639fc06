//! The properties of a keyspace: [`Keyspace::properties`].
//!
//! Threading: plain data, made from one pinned view.

use crate::api::keyspace::Keyspace;
use crate::stats::{LevelStats, level_stats};
use crate::tree::view::Source;
use crate::types::error::Result;
use crate::types::options::KeyspaceSettings;

/// The state of a keyspace at one moment. Sizes are in bytes.
#[derive(Clone, Debug, PartialEq)]
pub struct KeyspaceProperties {
    /// The keyspace's number, which identifies it in its store and is never used again.
    pub id: u32,
    /// The keyspace's name.
    pub name: String,
    /// The settings in force.
    pub settings: KeyspaceSettings,
    /// Memtables, the active one included.
    pub memtable_count: u64,
    /// Bytes that the memtables use.
    pub memtable_bytes: u64,
    /// Entries in the memtables, including deletes and overwritten versions.
    pub memtable_entry_count: u64,
    /// Range deletes in the memtables.
    pub memtable_range_delete_count: u64,
    /// Ingested runs that are in the log and not in the manifest yet.
    pub pending_run_count: u64,
    /// Levels 0 to 6.
    pub levels: Vec<LevelStats>,
    /// Tables in all levels.
    pub table_count: u64,
    /// Bytes of the tables' files.
    pub file_bytes: u64,
    /// Raw bytes in the tables: user keys, values and 12 bytes an entry.
    pub raw_bytes: u64,
    /// Entries in the tables, including deletes and overwritten versions.
    pub entry_count: u64,
    /// Deletes among the entries in the tables.
    pub delete_count: u64,
    /// Range-delete fragments in the tables.
    pub range_delete_count: u64,
    /// The smallest sequence number in the keyspace; `None` if the keyspace is empty.
    pub oldest_number: Option<u64>,
    /// The largest sequence number in the keyspace; `None` if the keyspace is empty.
    pub newest_number: Option<u64>,
}

impl Keyspace {
    /// Counts, sizes, levels and sequence numbers of the keyspace. They are known without reading a
    /// table.
    ///
    /// # Errors
    /// `KeyspaceDropped`, `Closed`.
    pub fn properties(&self) -> Result<KeyspaceProperties> {
        self.check()?;
        let (view, _) = crate::tree::read::pin(&self.parts().tree, self.inner(), None)?;
        let mut p = KeyspaceProperties {
            id: self.id(),
            name: self.name().to_string(),
            settings: self.inner().load_settings().all.clone(),
            levels: level_stats(&view),
            memtable_count: 0,
            memtable_bytes: 0,
            memtable_entry_count: 0,
            memtable_range_delete_count: 0,
            pending_run_count: 0,
            table_count: 0,
            file_bytes: 0,
            raw_bytes: 0,
            entry_count: 0,
            delete_count: 0,
            range_delete_count: 0,
            oldest_number: None,
            newest_number: None,
        };
        let mut numbers = |oldest: u64, newest: u64| {
            p.oldest_number = Some(p.oldest_number.map_or(oldest, |o| o.min(oldest)));
            p.newest_number = p.newest_number.max(Some(newest));
        };
        for source in &view.sources {
            match source {
                Source::Memtable(m) => {
                    p.memtable_count += 1;
                    p.memtable_bytes += m.mem.used_bytes();
                    p.memtable_entry_count += m.mem.entry_count();
                    p.memtable_range_delete_count += m.mem.range_delete_count() as u64;
                    if let (Some(oldest), Some(newest)) = (m.mem.min_seq(), m.mem.max_seq()) {
                        numbers(oldest, newest);
                    }
                }
                Source::Run(run) => p.pending_run_count += u64::from(run.pending),
            }
        }
        for (_, level) in view.level_views() {
            for table in level.level.tables() {
                p.table_count += 1;
                p.file_bytes += table.file_bytes;
                p.raw_bytes += table.raw_bytes;
                p.entry_count += table.entries;
                p.delete_count += table.deletes;
                p.range_delete_count += table.range_deletes;
                let (oldest, newest) = table.visible_seqs();
                numbers(oldest, newest);
            }
        }
        Ok(p)
    }
}

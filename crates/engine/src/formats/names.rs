//! Which files in a store's folders are the store's own.
//!
//! What it is: one table of names and name patterns, asked by everything that must tell the store's files from other people's: `check`
//! (what is foreign), `Store::destroy` (what may be deleted), `silt` (is this folder a store's). Recovery deletes by the same patterns.
//!
//! Invariant: a name that is not here is not the store's, and nothing of ours deletes it.
//!
//! Threading: pure functions.

use siltstone_table::job::OutputPrefix;

use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{CURRENT_NAME, parse_manifest_name};
use crate::types::options::file::OPTIONS;

/// Where log and tables lie, if they do not lie in the store's folder.
pub(crate) const DIRECTORIES: &str = "DIRECTORIES";
/// In a folder that holds a store's log or tables: whose they are.
pub(crate) const OWNER: &str = "OWNER";

/// What `CURRENT` becomes when the store is destroyed.
pub(crate) const DESTROYED: &str = "DESTROYED";

/// All names that are no patterns.
pub(crate) const FIXED: [&str; 11] = [
    CURRENT_NAME,
    DIRECTORIES,
    OWNER,
    crate::formats::names::STATS,
    OPTIONS,
    DESTROYED,
    crate::formats::names::PARTIAL,
    crate::formats::names::MANIFEST_RESERVE,
    crate::formats::names::MANIFEST_RESERVE_RESIZING,
    crate::formats::names::LOG_RESERVE,
    crate::formats::names::CURRENT_RESERVE,
];

/// What a file is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A table, with the number of the open that wrote it.
    Table(u64),
    /// A log segment.
    Segment,
    /// A manifest, with its number.
    Manifest(u64),
    /// Space kept for the log on a full disk.
    LogReserve,
    /// Says whose the folder is.
    Owner,
    /// Any other file that every store's folder may have.
    Kept,
}

/// Which parts of a store a folder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// Its pointer, manifests, leases.
    pub(crate) manifest: bool,
    /// Its log.
    pub(crate) log: bool,
    /// Its tables.
    pub(crate) tables: bool,
}

/// What the file of this name is; `None` if it is none of a store's.
pub(crate) fn kind_of(name: &str) -> Option<Kind> {
    if let Some(open_number) = crate::formats::names::open_number_of(name) {
        return Some(Kind::Table(open_number));
    }
    if parse_segment_name(name).is_some() {
        return Some(Kind::Segment);
    }
    if let Some(number) = parse_manifest_name(name) {
        return Some(Kind::Manifest(number));
    }
    match name {
        crate::formats::names::LOG_RESERVE => Some(Kind::LogReserve),
        OWNER => Some(Kind::Owner),
        name if FIXED.contains(&name) => Some(Kind::Kept),
        _ => None,
    }
}

impl Parts {
    /// Whether the store keeps files of this kind in such a folder. Files in the wrong one are other people's: nothing of ours put them there.
    pub(crate) fn hold(self, kind: Kind) -> bool {
        match kind {
            Kind::Table(_) => self.tables,
            Kind::Segment | Kind::LogReserve => self.log,
            Kind::Manifest(_) | Kind::Kept => self.manifest,
            Kind::Owner => !self.manifest,
        }
    }

    /// Whether the file of this name is the store's own in such a folder.
    pub(crate) fn own(self, name: &str) -> bool {
        kind_of(name).is_some_and(|kind| self.hold(kind))
    }
}

/// Whether a file of this name in a folder speaks for a store there: a table, a log segment, a manifest, or one of the files with fixed names. Lease
/// files are not asked about: they are the storage's.
pub fn is_store_file(name: &str) -> bool {
    kind_of(name).is_some()
}

/// Becomes a manifest.
pub(crate) const MANIFEST_RESERVE: &str = "RESERVE";

/// The name of [`MANIFEST_RESERVE`] while it is resized.
pub(crate) const MANIFEST_RESERVE_RESIZING: &str = "RESERVE-RESIZING";

/// Becomes a log segment.
pub(crate) const LOG_RESERVE: &str = "RESERVE-LOG";

/// Deleted for the few bytes of the pointer's replacement, which is a new object for a moment.
pub(crate) const CURRENT_RESERVE: &str = "RESERVE-CURRENT";

/// Whether a file of this name is space kept for a full disk.
pub(crate) fn is_reserve(name: &str) -> bool {
    [
        MANIFEST_RESERVE,
        MANIFEST_RESERVE_RESIZING,
        LOG_RESERVE,
        CURRENT_RESERVE,
    ]
    .contains(&name)
}

/// Name of the lease.
pub(crate) const LEASE: &str = "store";

/// The file's name.
pub(crate) const STATS: &str = "STATS.json";

/// Stands in a folder while a checkpoint is written into it.
pub(crate) const PARTIAL: &str = "PARTIAL";

/// The open number in a table's name.
pub(crate) fn open_number_of(name: &str) -> Option<u64> {
    // Exactly as tables are called: what people call `2024-sales.tbl` is theirs.
    let parts: Vec<&str> = name.strip_suffix(".tbl")?.split('-').collect();
    let [epoch, attempt, subjob, place] = parts[..] else {
        return None;
    };
    let open_number = u64::from_str_radix(epoch, 16).ok()?;
    let prefix = OutputPrefix {
        epoch: open_number,
        attempt: u64::from_str_radix(attempt, 16).ok()?,
    };
    let spelled = prefix.table_name(subjob.parse().ok()?, place.parse().ok()?);
    (spelled == name).then_some(open_number)
}

/// What the names of built tables end with. The store's own tables end otherwise, so that a table
/// which lies in a store's folder by mistake is not deleted as an orphan.
pub const BUILT_TABLE_SUFFIX: &str = ".table";

/// How the marker's text begins, which tells it from a checkpoint's.
pub(crate) const MARKER_TEXT: &str = "a repair is making this store";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_folders() {
        let whole = Parts {
            manifest: true,
            log: true,
            tables: true,
        };
        let tables = Parts {
            tables: true,
            ..Parts::default()
        };
        let log = Parts {
            log: true,
            ..Parts::default()
        };
        let table = "0000000a-00000003-0000-00001.tbl";
        let segment = crate::formats::log::format::segment_name(7);
        for (name, in_whole, in_tables, in_log) in [
            (table, true, true, false),
            (&segment, true, false, true),
            ("RESERVE-LOG", true, false, true),
            ("RESERVE", true, false, false),
            ("CURRENT", true, false, false),
            ("MANIFEST-000000000012", true, false, false),
            ("DIRECTORIES", true, false, false),
            ("STATS.json", true, false, false),
            ("OPTIONS.toml", true, false, false),
            ("OWNER", false, true, true),
            ("letter.txt", false, false, false),
            ("MANIFEST-12", false, false, false),
            ("a.tbl", false, false, false),
            ("x.log", false, false, false),
        ] {
            assert_eq!(whole.own(name), in_whole, "{name}");
            assert_eq!(tables.own(name), in_tables, "{name}");
            assert_eq!(log.own(name), in_log, "{name}");
        }
    }
}

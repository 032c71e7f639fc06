//! Which files in the folders of a store belong to the store.
//!
//! One table of names and name patterns, for everything that must tell the store's files from other
//! files: `check` (which files are foreign), `Store::destroy` (which may be deleted), and `silt`
//! (whether a folder has a store). Recovery deletes by the same patterns.
//!
//! Invariant: a file whose name is not here does not belong to the store, and the store never
//! deletes it.
//!
//! Threading: pure functions.

use siltstone_table::job::OutputPrefix;

use crate::formats::log::format::parse_segment_name;
use crate::formats::manifest::{CURRENT_NAME, parse_manifest_name};
use crate::types::options::file::OPTIONS;

/// Names the folders of log and tables, if they are not in the store's folder, and that of the
/// second location of tables, if there is one.
pub(crate) const DIRECTORIES: &str = "DIRECTORIES";
/// Names the store to which a folder with a log or tables belongs.
pub(crate) const OWNER: &str = "OWNER";
/// Names the opens by which the folders of a store know each other.
pub(crate) const OPENED: &str = "OPENED";

/// The new name of `CURRENT` while the store is destroyed.
pub(crate) const DESTROYED: &str = "DESTROYED";

/// All names that are not patterns.
pub(crate) const FIXED: [&str; 12] = [
    CURRENT_NAME,
    DIRECTORIES,
    OWNER,
    OPENED,
    STATS,
    OPTIONS,
    DESTROYED,
    PARTIAL,
    MANIFEST_RESERVE,
    MANIFEST_RESERVE_RESIZING,
    LOG_RESERVE,
    CURRENT_RESERVE,
];

/// The purpose of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A table, with the number of the open that wrote it.
    Table(u64),
    /// A log segment.
    Segment,
    /// A manifest, with its number.
    Manifest(u64),
    /// Space that is reserved for the log on a full disk.
    LogReserve,
    /// The file that names the store to which the folder belongs.
    Owner,
    /// The file that names the last opens of a store that has several folders.
    Opened,
    /// Any other file that the folder of every store may have.
    Kept,
}

/// The parts of a store that a folder holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Parts {
    /// The pointer, the manifests and the lease.
    pub(crate) manifest: bool,
    /// The log.
    pub(crate) log: bool,
    /// The tables, at location 0.
    pub(crate) tables: bool,
    /// The tables at location 1, which compactions bring back to location 0.
    pub(crate) redirected: bool,
}

/// The purpose of the file with this name; `None` if no store has such a file.
pub(crate) fn kind_of(name: &str) -> Option<Kind> {
    if let Some(open_number) = open_number_of(name) {
        return Some(Kind::Table(open_number));
    }
    if parse_segment_name(name).is_some() {
        return Some(Kind::Segment);
    }
    if let Some(number) = parse_manifest_name(name) {
        return Some(Kind::Manifest(number));
    }
    match name {
        LOG_RESERVE => Some(Kind::LogReserve),
        OWNER => Some(Kind::Owner),
        OPENED => Some(Kind::Opened),
        name if FIXED.contains(&name) => Some(Kind::Kept),
        _ => None,
    }
}

impl Parts {
    /// Whether a store keeps files of this kind in such a folder. A store never puts a file into a
    /// wrong folder, so a file that is in one belongs to someone else.
    pub(crate) fn hold(self, kind: Kind) -> bool {
        match kind {
            Kind::Table(_) => self.tables || self.redirected,
            Kind::Segment | Kind::LogReserve => self.log,
            Kind::Manifest(_) | Kind::Kept => self.manifest,
            Kind::Owner => !self.manifest,
            // A store that has one folder now may have had another one before.
            Kind::Opened => true,
        }
    }

    /// Whether the file with this name belongs to the store that has such a folder.
    pub(crate) fn own(self, name: &str) -> bool {
        kind_of(name).is_some_and(|kind| self.hold(kind))
    }
}

/// Whether a file with this name is evidence of a store in its folder: a table, a log segment, a
/// manifest, or a file with a fixed name. Lease files do not count: they belong to the storage.
pub fn is_store_file(name: &str) -> bool {
    kind_of(name).is_some()
}

/// Reserved space that becomes a manifest on a full disk.
pub(crate) const MANIFEST_RESERVE: &str = "RESERVE";

/// The name of [`MANIFEST_RESERVE`] while it is resized.
pub(crate) const MANIFEST_RESERVE_RESIZING: &str = "RESERVE-RESIZING";

/// Reserved space that becomes a log segment on a full disk.
pub(crate) const LOG_RESERVE: &str = "RESERVE-LOG";

/// A file that is deleted to make room for the new pointer, which is a file of its own for a
/// moment.
pub(crate) const CURRENT_RESERVE: &str = "RESERVE-CURRENT";

/// Whether a file with this name is space that is reserved for a full disk.
pub(crate) fn is_reserve(name: &str) -> bool {
    [
        MANIFEST_RESERVE,
        MANIFEST_RESERVE_RESIZING,
        LOG_RESERVE,
        CURRENT_RESERVE,
    ]
    .contains(&name)
}

/// The name of the lease.
pub(crate) const LEASE: &str = "store";

/// The name of the file with the statistics of a store that is open for writing.
pub(crate) const STATS: &str = "STATS.json";

/// Marks a folder into which a checkpoint or a repair is being written.
pub(crate) const PARTIAL: &str = "PARTIAL";

/// The number of the open in the name of a table.
pub(crate) fn open_number_of(name: &str) -> Option<u64> {
    // Only the exact form counts: a file that somebody named `2024-sales.tbl` is not the store's.
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

/// The suffix of tables that were built for an ingest. The store's own tables have another one, so
/// a table that lies in a store's folder by mistake is not deleted as an orphan.
pub const BUILT_TABLE_SUFFIX: &str = ".table";

/// The first words of the marker file of a repair. The marker of a checkpoint has other ones.
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
            redirected: false,
        };
        let redirected = Parts {
            redirected: true,
            ..Parts::default()
        };
        let tables = Parts {
            tables: true,
            ..Parts::default()
        };
        let log = Parts {
            log: true,
            ..Parts::default()
        };
        let own = Parts {
            manifest: true,
            log: true,
            tables: false,
            redirected: false,
        };
        assert!(own.own("OPENED"));
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
            ("OPENED", true, true, true),
            ("letter.txt", false, false, false),
            ("MANIFEST-12", false, false, false),
            ("a.tbl", false, false, false),
            ("x.log", false, false, false),
        ] {
            assert_eq!(whole.own(name), in_whole, "{name}");
            assert_eq!(tables.own(name), in_tables, "{name}");
            assert_eq!(redirected.own(name), in_tables, "{name}");
            assert_eq!(log.own(name), in_log, "{name}");
        }
    }
}

//! Which files in a store's folders are the store's own.
//!
//! What it is: one table of names and name patterns, asked by everything that must tell the store's files from other people's: `check`
//! (what is foreign), `Store::destroy` (what may be deleted), `silt` (is this folder a store's). Recovery deletes by the same patterns.
//!
//! Invariant: a name that is not here is not the store's, and nothing of ours deletes it.
//!
//! Threading: pure functions.

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
    crate::stats::published::STATS,
    OPTIONS,
    DESTROYED,
    crate::services::checkpoint::PARTIAL,
    crate::catalog::reserve::MANIFEST,
    crate::catalog::reserve::RESIZING,
    crate::catalog::reserve::LOG,
    crate::catalog::reserve::POINTER,
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
    if let Some(open_number) = crate::services::recovery::open_number_of(name) {
        return Some(Kind::Table(open_number));
    }
    if parse_segment_name(name).is_some() {
        return Some(Kind::Segment);
    }
    if let Some(number) = parse_manifest_name(name) {
        return Some(Kind::Manifest(number));
    }
    match name {
        crate::catalog::reserve::LOG => Some(Kind::LogReserve),
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

//! The space that a store's files take on disk, by their purpose.
//!
//! A store's folders have more than tables: log segments that are live, prepared, or kept to be
//! recycled; the reserves for a full disk; manifests. All files are counted here from the listings
//! of the folders, so that the sum is what `du` shows.
//!
//! Invariants: every file in a listing is counted once. Nothing is changed, and no lease is needed.
//! A folder that cannot be listed counts as empty, and the count says that it is not complete.
//!
//! Threading: a pure function of the listings, except that a writer may begin or end a live log
//! segment meanwhile.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::formats::directories::Storages;
use crate::formats::log::format::parse_segment_name;
use crate::formats::names::{self, Kind};
use crate::wal::Wal;

/// The space that files of one kind take.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Space {
    /// The number of files.
    pub file_count: u64,
    /// The sum of their lengths in bytes.
    pub file_bytes: u64,
}

impl Space {
    fn add(&mut self, bytes: u64) {
        self.file_count += 1;
        self.file_bytes += bytes;
    }

    /// Adds files of which the number and the bytes are known.
    pub(crate) fn add_files(&mut self, count: u64, bytes: u64) {
        self.file_count += count;
        self.file_bytes += bytes;
    }

    fn plus(self, other: Space) -> Space {
        Space {
            file_count: self.file_count + other.file_count,
            file_bytes: self.file_bytes + other.file_bytes,
        }
    }
}

/// The space that a store's files take on disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SpaceStats {
    /// Tables, including obsolete ones that readers hold or that are about to be deleted.
    pub tables: Space,
    /// Log segments that a replay would read. They include the current one with the space that is
    /// reserved in it.
    pub log_live: Space,
    /// Log segments that were prepared to be written next.
    pub log_prepared: Space,
    /// Obsolete log segments that are kept to be recycled, or are about to be deleted.
    pub log_pooled: Space,
    /// Files that reserve space for opening the store on a full disk.
    pub reserves: Space,
    /// Manifests.
    pub manifests: Space,
    /// Everything else in the store's folders: small files of the store, and other files.
    pub others: Space,
}

impl SpaceStats {
    /// The sum of all kinds.
    pub fn total(&self) -> Space {
        self.parts()
            .into_iter()
            .map(|(_, space)| space)
            .fold(Space::default(), Space::plus)
    }

    /// The space of each kind, with a name for people.
    pub fn parts(&self) -> [(&'static str, Space); 7] {
        [
            ("tables", self.tables),
            ("log, live", self.log_live),
            ("log, prepared", self.log_prepared),
            ("log, pooled", self.log_pooled),
            ("reserves", self.reserves),
            ("manifests", self.manifests),
            ("others", self.others),
        ]
    }
}

/// The result of a count.
pub(crate) struct Counted {
    pub(crate) space: SpaceStats,
    /// Whether all folders could be listed.
    pub(crate) is_complete: bool,
}

/// Which folders are listed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Listed {
    All,
    /// All but the second location of tables, whose calls may hang.
    WithoutSecondLocation,
}

/// Counts the files of an open store.
pub(crate) fn collect(wal: &Wal, listed: Listed) -> Counted {
    match &wal.env().below() {
        Some(below) => count(&below.storages, &below.live, listed),
        None => {
            let log = wal.stats();
            count(
                wal.env().storages_at_once(),
                &(log.oldest_segment..=log.newest_segment),
                listed,
            )
        }
    }
}

fn count(storages: &Storages, live: &RangeInclusive<u32>, listed: Listed) -> Counted {
    let mut all = SpaceStats::default();
    let mut is_complete = true;
    for (storage, parts) in storages.folders() {
        if parts.redirected && listed == Listed::WithoutSecondLocation {
            continue;
        }
        let listed = storage.list();
        is_complete &= listed.is_ok();
        for object in listed.unwrap_or_default() {
            let kind = names::kind_of(&object.name).filter(|kind| parts.hold(*kind));
            let space = match kind {
                Some(Kind::Table(_)) => &mut all.tables,
                Some(Kind::Segment) => match parse_segment_name(&object.name) {
                    Some(number) if live.contains(&number) => &mut all.log_live,
                    Some(number) if number > *live.end() => &mut all.log_prepared,
                    _ => &mut all.log_pooled,
                },
                Some(Kind::Manifest(_)) => &mut all.manifests,
                Some(Kind::LogReserve) => &mut all.reserves,
                _ if crate::formats::names::is_reserve(&object.name) => &mut all.reserves,
                _ => &mut all.others,
            };
            space.add(object.len);
        }
    }
    Counted {
        space: all,
        is_complete,
    }
}

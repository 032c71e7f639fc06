//! Settings of a store and of its keyspaces.
//!
//! The table in this file is the only registry. A line of it makes a field of [`Options`] (and, for
//! a keyspace's setting, of [`KeyspaceOptions`] and [`KeyspaceSettings`]), its default and its
//! limits, and its entry in the TOML file, in the manifest and in error messages. [`settings`]
//! lists them for tools and documents.
//!
//! Invariants: an option that nobody has needed is a constant. Values that cannot work are refused
//! by name and never adjusted. Only a default gives way to what a keyspace has set
//! ([`KeyspaceOptions::over`]).
//!
//! Threading: plain values. `tree/settings.rs` holds the values in force.

pub(crate) mod difference;
pub(crate) mod file;
pub(crate) mod keyspace;
mod registry;
mod schedule;
pub(crate) mod stored;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use file::{FILE_BYTES_MAX, OptionsFile, file_is_wrong};
pub use registry::{Change, Limits, Scope, Setting, setting, settings};
use registry::{KeyspaceAccess, choice, refuse_number, switch, times, within, within_power_of_two};
pub use schedule::{ScheduleOptions, ThirdScore};
pub use value::Value;
use value::{SettingType, StoredType};

use crate::types::error::{Error, Result};
use crate::types::limits::LEVEL_COUNT;
use crate::types::options::stored::option as tag;

/// When a write becomes durable against power loss. On local files, a kill of the process loses no
/// acknowledged write in any mode.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Only when [`crate::Store::sync_log`] is called or a write asks for it. A power loss may take
    /// any suffix of the history since the last sync.
    Never,
    /// A background task syncs once in each interval. A power loss takes about the last interval at
    /// most.
    Interval(Duration),
    /// Every write is synced before it is acknowledged; a group of writers shares one sync.
    Always,
}

/// When the checksums of blocks are verified. Compactions and `check` always verify them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// When a block is first used after its table was opened.
    Once,
    /// At every read.
    Always,
}

/// How much of the tables of a flush is read back and compared with the memtable before the log may
/// drop the entries. Checksums cover what was encoded; this comparison finds an entry that was
/// encoded wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushVerify {
    /// Nothing is compared.
    None,
    /// All range deletes and, in each table, at most 16 blocks: the first, the last, and others
    /// that are drawn at random. A fault in every block is always found; a fault in a single block
    /// of many rarely is.
    Sample,
    /// Every entry is compared and looked up. A flush then takes three to four times as long.
    All,
}

/// How blocks are compressed. A part of a block is kept compressed only if that saves at least an
/// eighth of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not compressed. Blocks are searched in the memory map of the file.
    None,
    /// LZ4: fast in both directions.
    Lz4,
    /// Zstandard: smaller, and slower in both directions.
    ///
    /// The level is 1 (fast) to 19 (small). In text this is `zstd:9`; `zstd` alone has zstd's own
    /// default level, which is 3.
    Zstd(u8),
}

impl Compression {
    /// Zstandard at its own default level, 3.
    pub const ZSTD: Compression = Compression::Zstd(3);
}

/// How the target sizes of levels are chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelTargets {
    /// Level 1 has `level1_bytes`, and each further level `level_factor` times more. While the
    /// deepest level is far below its target, the tables can take twice the space of the data, or
    /// more.
    Fixed = 0,
    /// The deepest level holds nearly all data, and each level above it has a target `level_factor`
    /// times smaller, down to `level1_bytes`. Level 0 is merged into the first level that is in
    /// use.
    Dynamic = 1,
}

/// Which files are read and written past the system's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// None.
    None,
    /// The files that flushes and compactions read and write, so that the page cache is left to
    /// reads.
    Compaction,
    /// The same, and reads of tables. Blocks are then cached in the block cache only.
    All,
}

/// The folder of a second location of tables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RedirectDir {
    /// A store keeps the second location that it has, or has none.
    #[default]
    Unset,
    /// The store has none. An open for writing takes out the one that it has.
    None,
    /// This folder. A relative path starts at the store's folder.
    Path(PathBuf),
}

impl RedirectDir {
    /// The word that takes the second location out. A folder of this name is written `./none`.
    pub(super) const NONE: &'static str = "none";

    /// The folder, if one is named.
    pub(crate) fn path(&self) -> Option<&Path> {
        match self {
            RedirectDir::Path(path) => Some(path),
            RedirectDir::Unset | RedirectDir::None => None,
        }
    }
}

/// What happens to writers when flushes and compactions fall behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallPolicy {
    /// Writers are not delayed until a limit is reached; then they wait.
    Stop,
    /// Writers are slowed down: the nearer a limit, the fewer bytes a second are taken. At the
    /// limit they wait. A few long waits become many short ones.
    Slowdown,
    /// As `Slowdown`, and the size of memtables and the number of compactions at once are tuned
    /// before that (ADOC, FAST 2023).
    Adoc,
    /// Writers wait for memory, and not for compactions: level 0 takes any number of runs, and
    /// compactions catch up later (after KVAccel).
    Redirect,
}

/// A value for each level, 0 to 6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ByLevel<T>([T; LEVEL_COUNT]);

impl<T: Copy + PartialEq> ByLevel<T> {
    /// The same value on all levels.
    pub fn all(value: T) -> ByLevel<T> {
        ByLevel([value; LEVEL_COUNT])
    }

    /// One value for each level, from level 0 on; the last one is that of all deeper levels. `None`
    /// if there is no value, or if there are more than seven.
    pub fn of(values: &[T]) -> Option<ByLevel<T>> {
        let last = *values.last().filter(|_| values.len() <= LEVEL_COUNT)?;
        let mut all = [last; LEVEL_COUNT];
        all[..values.len()].copy_from_slice(values);
        Some(ByLevel(all))
    }

    /// The value of a level. A level below the bottom has the bottom's.
    pub fn at(&self, level: u8) -> T {
        self.0[usize::from(level).min(LEVEL_COUNT - 1)]
    }

    /// The shortest list from which [`ByLevel::of`] makes this value.
    pub fn listed(&self) -> &[T] {
        let same = self
            .0
            .iter()
            .rev()
            .take_while(|v| **v == self.at(6))
            .count();
        &self.0[..(LEVEL_COUNT - same + 1).min(LEVEL_COUNT)]
    }
}

impl<T: Copy + PartialEq> From<T> for ByLevel<T> {
    fn from(value: T) -> ByLevel<T> {
        ByLevel::all(value)
    }
}

impl<T: Copy + PartialEq + std::fmt::Debug> std::fmt::Debug for ByLevel<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.listed() {
            [one] => one.fmt(f),
            many => many.fmt(f),
        }
    }
}

/// Makes the structures and the registry from the table below.
macro_rules! settings_table {
    (
        store {
            $( $(#[doc = $sdoc:literal])+
            $s:ident: $stype:ty = $sdefault:expr, $sunit:literal, $srange:literal, $slimits:expr,
                $schange:expr; )+
        }
        keyspace {
            $( $(#[doc = $kdoc:literal])+
            $k:ident: $ktype:ty = $kdefault:expr, $kunit:literal, $krange:literal, $klimits:expr,
                $ktag:expr; )+
        }
    ) => {
        /// The settings of a store, and the defaults of its keyspaces. `Options::default()` suits a
        /// service on a small machine.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            $( $(#[doc = $sdoc])+
            #[doc = ""]
            #[doc = $srange]
            pub $s: $stype, )+
            $( $(#[doc = $kdoc])+
            #[doc = ""]
            #[doc = concat!($krange, " A keyspace may set its own.")]
            pub $k: $ktype, )+
            /// Options of single keyspaces, by name. They are set when the store is opened, or when
            /// the keyspace is created. The store keeps them, as it keeps those of
            /// [`crate::Keyspace::set_options`]: they stay in force after an open without them,
            /// until [`crate::Keyspace::unset_options`] removes them.
            pub keyspaces: BTreeMap<String, KeyspaceOptions>,
        }

        impl Default for Options {
            fn default() -> Options {
                Options {
                    $( $s: $sdefault, )+
                    $( $k: $kdefault, )+
                    keyspaces: BTreeMap::new(),
                }
            }
        }

        /// The options that were set for one keyspace. Where there is `None`, the keyspace follows
        /// the store.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct KeyspaceOptions {
            $( #[doc = concat!("See [`Options::", stringify!($k), "`].")]
            pub $k: Option<$ktype>, )+
        }

        /// The settings in force for one keyspace: its own, and the store's where it has none.
        #[derive(Clone, Debug, PartialEq)]
        pub struct KeyspaceSettings {
            $( #[doc = concat!("See [`Options::", stringify!($k), "`].")]
            pub $k: $ktype, )+
        }

        impl Options {
            /// The settings of a keyspace that has set none of its own.
            pub fn keyspace_defaults(&self) -> KeyspaceSettings {
                KeyspaceSettings { $( $k: self.$k.clone(), )+ }
            }
        }

        impl KeyspaceOptions {
            /// Sets every option that `newer` sets.
            pub fn merge(&mut self, newer: &KeyspaceOptions) {
                $( if newer.$k.is_some() {
                    self.$k = newer.$k.clone();
                } )+
            }

            /// The options that are set, and `base` for the others.
            fn overlay(&self, base: &KeyspaceSettings) -> KeyspaceSettings {
                KeyspaceSettings { $( $k: self.$k.clone().unwrap_or_else(|| base.$k.clone()), )+ }
            }
        }

        impl KeyspaceSettings {
            /// All settings, as options that are set.
            pub fn all_set(&self) -> KeyspaceOptions {
                KeyspaceOptions { $( $k: Some(self.$k.clone()), )+ }
            }
        }

        static SETTINGS: &[Setting] = &[
            $( Setting {
                name: stringify!($s),
                unit: $sunit,
                scope: Scope::Store,
                limits: $slimits,
                #[cfg(test)]
                documented: $srange,
                meaning: concat!($($sdoc),+),
                change: $schange,
                get: |o| o.$s.to_value(),
                set: |o, value| SettingType::from_value(value).map(|v| o.$s = v).is_some(),
                numbers: |o| o.$s.numbers(),
                keyspace: None,
            }, )+
            $( Setting {
                name: stringify!($k),
                unit: $kunit,
                scope: Scope::Keyspace,
                limits: $klimits,
                #[cfg(test)]
                documented: $krange,
                meaning: concat!($($kdoc),+),
                change: Change::WhileOpen,
                get: |o| o.$k.to_value(),
                set: |o, value| SettingType::from_value(value).map(|v| o.$k = v).is_some(),
                numbers: |o| o.$k.numbers(),
                keyspace: Some(KeyspaceAccess {
                    tag: $ktag,
                    get: |o| o.$k.as_ref().map(|v| v.to_value()),
                set: |o, value| {
                    SettingType::from_value(value).map(|v| o.$k = Some(v)).is_some()
                },
                    clear: |o| o.$k = None,
                    numbers: |o| o.$k.as_ref().map_or(Vec::new(), |v| v.numbers()),
                    encode: |o| o.$k.as_ref().map(|v| v.encode()),
                    decode: |o, bytes| StoredType::decode(bytes).map(|v| o.$k = Some(v)).is_some(),
                }),
            }, )+
        ];
    };
}

use Change::{AtOpen, WhileOpen};

settings_table! {
    store {
        /// Create the store if the folder has none.
        create_if_missing: bool = true, "switch",
            "`true` or `false`; default `true`.",
            switch(), AtOpen("it decides what an open does");
        /// Refuse to open a store that already exists.
        error_if_exists: bool = false, "switch",
            "`true` or `false`; default `false`.",
            switch(), AtOpen("it decides what an open does");
        /// When writes become durable against power loss: only on request (as in LevelDB and
        /// RocksDB), once in each interval, or before each write is acknowledged.
        sync: SyncMode = SyncMode::Never, "mode",
            "`\"never\"`, `\"always\"`, or an interval, `\"100 us\"` to `\"3600 s\"`; \
             default `\"never\"`.",
            times(100, 3_600_000_000,
                "\"never\", \"always\", or an interval, \"100 us\" to \"3600 s\""),
            AtOpen("writers rely on what it promises");
        /// When block checksums are verified: when a block is first used after its table was
        /// opened, or at every read.
        verify: Verify = Verify::Once, "mode",
            "`\"once\"` or `\"always\"`; default `\"once\"`.",
            choice("\"once\" or \"always\""), AtOpen("open tables remember what they verified");
        /// How much of each flushed table is read back and compared with the memtable before the
        /// log may drop the entries: nothing, a bounded number of blocks, or every entry.
        flush_verify: FlushVerify = FlushVerify::Sample, "mode",
            "`\"none\"`, `\"sample\"` or `\"all\"`; default `\"sample\"`.",
            choice("\"none\", \"sample\" or \"all\""), WhileOpen;
        /// The full size of a log segment. The first segment has 256 KiB, and each further one
        /// twice the size of the one before it, up to this size. A larger batch gets a segment of
        /// its own.
        log_segment_bytes: u64 = 64 << 20, "bytes",
            "From 64 KiB to 2 GiB; default 64 MiB.",
            within(64 << 10, 2 << 30), AtOpen("the next segments are prepared already");
        /// The folder of the log. It is created with the store; a relative path starts at the
        /// store's folder. If empty, a new store has its log in its own folder, and an existing
        /// store keeps it where it is.
        log_dir: PathBuf = PathBuf::new(), "folder",
            "A path; default empty.",
            choice("a path"), AtOpen("it is chosen when the store is created");
        /// The folder of the tables. It is created with the store; a relative path starts at the
        /// store's folder. If empty, a new store has its tables in its own folder, and an existing
        /// store keeps them where they are.
        table_dir: PathBuf = PathBuf::new(), "folder",
            "A path; default empty.",
            choice("a path"), AtOpen("it is chosen when the store is created");
        /// The folder of a second location of tables, on a disk of its own. With the stall_policy
        /// "redirect", flushes that fall behind go there too, and compactions bring the tables
        /// back. It may be added to a store that exists; a relative path starts at the store's
        /// folder. If empty, a store keeps the second location that it has. With "none", an open
        /// for writing takes it out, as soon as no table is there.
        redirect_dir: RedirectDir = RedirectDir::Unset, "folder",
            "A path, or `\"none\"`; default empty.",
            choice("a path, or \"none\""), AtOpen("an open adds it or takes it out");
        /// Log bytes at which the keyspace that needs the oldest segment is flushed; at least two
        /// segments.
        log_bytes_max: u64 = 512 << 20, "bytes",
            "From 128 KiB to 1024 TiB; default 512 MiB.",
            within(128 << 10, 1 << 50), WhileOpen;
        /// With the stall_policy "redirect", the log bytes up to which memtables that fill faster
        /// than they are flushed leave their values of at least 512 bytes in the log, and are
        /// flushed later. The next open reads what was not flushed before a crash or a close; an
        /// open for reading needs as much in `replay_bytes_max`. Writers of such a keyspace stop at
        /// this number, or at twice `log_bytes_max` if that is more. With 0, or with a
        /// `redirect_dir`, no values are left in the log; 8 GiB is enough for most bursts.
        redirect_log_bytes_max: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), AtOpen("a task for it is started when the store is opened");
        /// Memory that replay may use for data that is not written to tables: all of the log's data
        /// for an open for reading; what finds no room on the disk for an open for writing. At
        /// least eight of the largest memtables and `log_bytes_max`, whatever is set.
        replay_bytes_max: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), AtOpen("the log is replayed when the store is opened");
        /// Size of the block cache. Uncompressed blocks of tables that are read through memory maps
        /// do not use it; compressed blocks do.
        block_cache_bytes: u64 = 64 << 20, "bytes",
            "From 0 B to 1024 TiB; default 64 MiB.",
            within(0, 1 << 50), AtOpen("the cache's shards are sized once");
        /// Memory for memtables, cached blocks, filters and indexes of open tables, and buffers of
        /// jobs, all together; 0 sets no limit beyond those of the parts. Above it, first the block
        /// cache shrinks, then tables below level 1 are closed, then the largest memtable is
        /// flushed early. Memory that is needed beyond that is used and counted.
        memory_bytes_max: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), WhileOpen;
        /// The most tables below level 1 whose filters and indexes stay in memory, in addition to
        /// those of all tables above. Further tables are opened for each read. This does not limit
        /// open files: those are limited to half of what the process may open.
        open_tables_max: u32 = 4096, "tables",
            "From 16 to 1048576 tables; default 4096.",
            within(16, 1 << 20), AtOpen("the cache of open tables is sized once");
        /// Read tables through memory maps, if the storage has them.
        map_tables: bool = true, "switch",
            "`true` or `false`; default `true`.",
            switch(), AtOpen("open tables stay as they were opened");
        /// What is read and written past the system's page cache (O_DIRECT): nothing, what flushes
        /// and compactions read and write, or all of tables, which are then not mapped but read
        /// through the block cache. An open fails if the tables' file system does not support it.
        direct_io: DirectIo = DirectIo::None, "mode",
            "`\"none\"`, `\"compaction\"` or `\"all\"`; default `\"none\"`.",
            choice("\"none\", \"compaction\" or \"all\""),
            AtOpen("open tables stay as they were opened");
        /// Background tasks for flushes and compactions.
        background_tasks: u32 = 2, "tasks",
            "From 1 to 64 tasks; default 2.",
            within(1, 64), AtOpen("tasks are started once");
        /// By how much the nice value of a compaction on the host exceeds that of the process, if
        /// the depth of level 0 is at most half of that at which writers are slowed down when the
        /// compaction begins. With 10, a compaction that competes for a core with a thread of the
        /// program gets a tenth of the core's time, and all time that the program leaves. Other
        /// compactions, and flushes, exceed it by 3 at most. Tasks that have been started keep
        /// their priority. Only Linux has such priorities.
        compaction_nice: u32 = 10, "steps",
            "From 0 to 19 steps; default 10.",
            within(0, 19), WhileOpen;
        /// The most subjobs of one job that run at once.
        subjobs_max: u32 = 2, "subjobs",
            "From 1 to 64 subjobs; default 2.",
            within(1, 64), WhileOpen;
        /// The most bytes a second that all compactions together read and write; 0 is no limit.
        /// Flushes never wait for this limit, but the bytes that they write count towards it.
        background_bytes_per_s: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), WhileOpen;
        /// The most bytes of blocks that are read into the block cache before the tables of a
        /// compaction that another executor ran are installed, in place of blocks of its inputs
        /// that are cached; 0 reads none.
        carry_over_bytes: u64 = 8 << 20, "bytes",
            "From 0 B to 1024 TiB; default 8 MiB.",
            within(0, 1 << 50), WhileOpen;
        /// How compactions are chosen and placed on executors: a policy, and the switches that
        /// differ from it, such as "near-data, second-score=off". The default compares when each
        /// side would have done a job. "near-data" gives the largest compactions to the faster
        /// sides and needs another executor than the host's; it and switches are for comparisons.
        schedule: ScheduleOptions = ScheduleOptions::default(), "policy",
            "`\"default\"`, `\"near-data\"`, `\"async-single\"`, `\"sync-split\"` or \
             `\"host-only\"`, and after a comma each first-score, second-score, fourth-score, \
             three-levels, multi-threading, separated-transfer, columns-first, spare-host, \
             seek-compaction or fallback (=on or =off), or third-score (=first-done, =ends, \
             =ends-frozen, =split or =host-only); default `\"default\"`.",
            choice("\"default\", \"near-data\", \"async-single\", \"sync-split\" or \"host-only\", \
                and after a comma each first-score, second-score, fourth-score, three-levels, \
                multi-threading, separated-transfer, columns-first, spare-host, \
                seek-compaction or fallback (=on or =off), or third-score (=first-done, \
                =ends, =ends-frozen, =split or =host-only)"),
            AtOpen("the sides are measured from the open on");
        /// What happens to the writers of a keyspace whose flushes or compactions fall behind:
        /// "stop" does not delay them until a limit is reached, where they wait; "slowdown" takes
        /// fewer bytes a second the nearer the limits are; "adoc" also tunes the size of memtables
        /// and the number of compactions at once; "redirect" lets them wait for memory only, and
        /// compactions catch up later.
        stall_policy: StallPolicy = StallPolicy::Slowdown, "mode",
            "`\"stop\"`, `\"slowdown\"`, `\"adoc\"` or `\"redirect\"`; default `\"slowdown\"`.",
            choice("\"stop\", \"slowdown\", \"adoc\" or \"redirect\""), WhileOpen;
        /// How often a store that is open for writing writes its statistics to the file
        /// STATS.json, which other processes can read; 0 is never. The file has some 10 KB, and 1
        /// KB more for each keyspace, and is written without a sync.
        stats_file_ms: u64 = 1000, "milliseconds",
            "From 0 to 3600000 milliseconds; default 1000.",
            within(0, 3_600_000), WhileOpen;
    }
    keyspace {
        /// Size of a memtable. A keyspace has one memtable that is written, and up to
        /// `sealed_memtables_max` sealed ones.
        memtable_bytes: u64 = 64 << 20, "bytes",
            "From 64 KiB to 4 GiB; default 64 MiB.",
            within(64 << 10, 4 << 30), tag::MEMTABLE_BYTES;
        /// Sealed memtables of a keyspace at which its writers wait.
        sealed_memtables_max: u32 = 3, "memtables",
            "From 1 to 64 memtables; default 3.",
            within(1, 64), tag::MEMTABLE_STOP_COUNT;
        /// Target size of a table, before compression.
        table_bytes: u64 = 64 << 20, "bytes",
            "A power of two, 64 KiB to 1 GiB; default 64 MiB.",
            within_power_of_two(64 << 10, 1 << 30), tag::TABLE_BYTES;
        /// Size of a block, before compression. In an uncompressed table, a block of at least 4 KiB
        /// ends with a page of 4 KiB if little is lost, so that a read from a file that is not in
        /// memory waits for the disk once.
        block_bytes: u32 = 4 << 10, "bytes",
            "A power of two, 1 KiB to 32 KiB; default 4 KiB.",
            within_power_of_two(1 << 10, 32 << 10), tag::BLOCK_BYTES;
        /// Level-0 runs at which a compaction begins.
        l0_trigger_count: u32 = 4, "runs",
            "From 1 to 1000 runs; default 4.",
            within(1, 1000), tag::L0_TRIGGER_COUNT;
        /// Level-0 runs over one key from which on writers are slowed down, if stall_policy is
        /// "slowdown" or "adoc"; at least l0_trigger_count.
        l0_slowdown_count: u32 = 20, "runs",
            "From 1 to 10000 runs; default 20.",
            within(1, 10_000), tag::L0_SLOWDOWN_COUNT;
        /// Level-0 runs over one key at which writers wait, or are slowed down if stall_policy is
        /// "redirect"; at least l0_slowdown_count.
        l0_stop_count: u32 = 36, "runs",
            "From 1 to 10000 runs; default 36.",
            within(1, 10_000), tag::L0_STOP_COUNT;
        /// Bytes that compactions have to read, until each level has its target size, from which on
        /// writers are slowed down, unless stall_policy is "stop".
        pending_slowdown_bytes: u64 = 64 << 30, "bytes",
            "From 1 MiB to 1024 TiB; default 64 GiB.",
            within(1 << 20, 1 << 50), tag::PENDING_SLOWDOWN_BYTES;
        /// Bytes that compactions have to read at which writers wait, unless stall_policy is
        /// "redirect"; at least pending_slowdown_bytes.
        pending_stop_bytes: u64 = 256 << 30, "bytes",
            "From 1 MiB to 1024 TiB; default 256 GiB.",
            within(1 << 20, 1 << 50), tag::PENDING_STOP_BYTES;
        /// Target size of level 1, or with dynamic targets of the first level in use; at least
        /// table_bytes.
        level1_bytes: u64 = 256 << 20, "bytes",
            "From 64 KiB to 1024 TiB; default 256 MiB.",
            within(64 << 10, 1 << 50), tag::LEVEL1_BYTES;
        /// How many times larger the target of each further level is.
        level_factor: u32 = 10, "times",
            "From 2 to 100 times; default 10.",
            within(2, 100), tag::LEVEL_FACTOR;
        /// How the target sizes of levels are chosen: fixed from level 1 on, or dynamic, from the
        /// size of the deepest level.
        level_targets: LevelTargets = LevelTargets::Fixed, "mode",
            "`\"fixed\"` or `\"dynamic\"`; default `\"fixed\"`.",
            choice("\"fixed\" or \"dynamic\""), tag::LEVEL_TARGETS;
        /// Filter bits for each key, as one number for all levels or a list by level; 10 bits give
        /// 1% false positives, 0 is no filter.
        bloom_bits_per_key: ByLevel<u32> = ByLevel([10; LEVEL_COUNT]), "bits",
            "From 0 to 20 bits; default 10.",
            within(0, 20), tag::FILTER_BITS_BY_LEVEL;
        /// Compression of blocks, as one codec for all levels or a list by level. Tables of level 0
        /// are soon rewritten; those of the bottom level hold most of the data.
        compression: ByLevel<Compression> = ByLevel([Compression::None; LEVEL_COUNT]), "codec",
            "`\"none\"`, `\"lz4\"`, `\"zstd\"` or `\"zstd:1\"` to `\"zstd:19\"`; \
             default `\"none\"`.",
            times(1, 19, "\"none\", \"lz4\", \"zstd\" or \"zstd:1\" to \"zstd:19\""),
            tag::CODECS_BY_LEVEL;
    }
}

/// Checks the relations between values, which no line of the table can express: lower name, its
/// value, upper name, its value.
fn out_of_order<'a>(pairs: impl IntoIterator<Item = (&'a str, u64, &'a str, u64)>) -> Result<()> {
    for (lower, low, upper, high) in pairs {
        if high < low {
            return Err(Error::invalid_argument(format!(
                "the value of option {upper} is not valid"
            ))
            .expected(format!("at least {lower}, which is {low}"))
            .found(high)
            .advice(format!("raise {upper} or lower {lower}")));
        }
    }
    Ok(())
}

impl Options {
    /// Checks every value and every relation between values.
    ///
    /// # Errors
    /// `InvalidArgument` with the option, its limits and the value found.
    pub fn validate(&self) -> Result<()> {
        for setting in SETTINGS {
            setting.check_numbers(&(setting.numbers)(self))?;
        }
        out_of_order(self.keyspace_defaults().relations())?;
        if self.log_bytes_max < 2 * self.log_segment_bytes {
            return Err(
                Error::invalid_argument("the value of option log_bytes_max is not valid")
                    .expected(format!(
                        "at least two segments of log_segment_bytes, {} bytes",
                        2 * self.log_segment_bytes
                    ))
                    .found(self.log_bytes_max)
                    .advice("raise log_bytes_max or lower log_segment_bytes"),
            );
        }
        let redirect = self.redirect_dir.path().map(|dir| ("redirect_dir", dir));
        for (name, path) in self.directories().into_iter().chain(redirect) {
            if path.to_str().is_none_or(|p| p.contains(['\n', '\r'])) {
                return Err(Error::invalid_argument(format!(
                    "the value of option {name} is not valid"
                ))
                .expected("a path of UTF-8 without line breaks")
                .found(format!("{path:?}"))
                .advice("name another folder"));
            }
        }
        if self.error_if_exists && !self.create_if_missing {
            return Err(
                Error::invalid_argument("option error_if_exists needs create_if_missing")
                    .advice("set both, or neither"),
            );
        }
        for (name, own) in &self.keyspaces {
            own.validate()
                .map_err(|e| e.context(format!("keyspace `{name}`")))?;
        }
        Ok(())
    }

    /// The settings that are folders of parts of a store, with their names.
    pub(crate) fn directories(&self) -> [(&'static str, &Path); 2] {
        [("log_dir", &self.log_dir), ("table_dir", &self.table_dir)]
    }

    /// Sets an option, given by name. [`Options::validate`] checks whether it fits the others.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that does not exist (with the nearest one), or for a value that
    /// is not valid.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<()> {
        let setting = setting(name)?;
        if !(setting.set)(self, value) {
            return Err(setting.refuse(value));
        }
        setting.check_numbers(&(setting.numbers)(self))
    }

    /// The value of an option, given by name.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that does not exist.
    pub fn get(&self, name: &str) -> Result<Value> {
        Ok((setting(name)?.get)(self))
    }
}

#[cfg(test)]
mod tests;

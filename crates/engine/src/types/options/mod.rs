//! Settings: of a store, and of its keyspaces.
//!
//! What it is: the table in this file is the one registry. A line of it makes a field of [`Options`] (and, for a keyspace's setting, of
//! [`KeyspaceOptions`] and [`KeyspaceSettings`]), its default, its limits, its place in the TOML file, in the manifest and in error texts.
//! [`settings`] lists them for tools and documents.
//!
//! Invariants: an option that nobody has needed is a constant. Values that cannot work are refused by name, never adjusted; only what a
//! keyspace did *not* set for itself gives way to what it did ([`KeyspaceOptions::over`]).
//!
//! Threading: plain values. Who holds the present ones is `settings.rs`'s business.

pub(crate) mod file;
pub(crate) mod keyspace;
mod registry;
pub(crate) mod stored;
mod value;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

pub(crate) use file::{FILE_BYTES_MAX, OptionsFile, file_is_wrong};
pub use registry::{Change, Limits, Scope, Setting, setting, settings};
use registry::{KeyspaceAccess, choice, refuse_number, switch, times, within, within_power_of_two};
pub use value::Value;
use value::{SettingType, StoredType};

use crate::types::error::{Error, Result};
use crate::types::limits::LEVEL_COUNT;
use crate::types::options::stored::option as tag;

/// When a write is durable against power loss. A kill of the process loses nothing in any mode (local files).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SyncMode {
    /// Never by itself; [`crate::Store::sync_log`] and writes that ask for it do. Power loss may take any suffix of the
    /// history since the last sync.
    Never,
    /// A background task syncs once an interval; power loss takes at most about that much time.
    Interval(Duration),
    /// Every write is synced before it is acknowledged; a group of writers shares one sync.
    Always,
}

/// When block checksums are verified. Compaction and `check` always verify.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// When a block is first used after the table was opened.
    Once,
    /// At every read.
    Always,
}

/// How much of the tables of a flush is read back and compared with the memtable before the log may
/// drop what was flushed. Checksums cover what was encoded; this finds an entry that was encoded
/// wrongly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FlushVerify {
    /// Nothing.
    None,
    /// All range deletes and, of each table, at most 16 blocks: the first, the last, and others
    /// that are drawn at random. A fault in every block is always found, one in a single block of
    /// many rarely.
    Sample,
    /// Every entry, and whether a lookup finds it. A flush then takes three to four times as long.
    All,
}

/// How blocks are compressed. A part of a block is kept compressed only where that saves an eighth of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all: blocks are searched in the map of the file.
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

/// How large levels are to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LevelTargets {
    /// Level 1 has `level1_bytes`, each further level `level_factor` times more. A level that is not full yet lies above others that are: up to
    /// twice the space for the same data, or more.
    Fixed = 0,
    /// The deepest level holds nearly everything, each level above it `level_factor` times less, down to `level1_bytes`; level 0 goes straight
    /// to the first level that is needed.
    Dynamic = 1,
}

/// What is read and written past the system's page cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DirectIo {
    /// Nothing.
    None,
    /// What flushes and compactions read and write: they leave the page cache to reads.
    Compaction,
    /// That, and reads of tables: memory is what the block cache is given, and nothing else.
    All,
}

/// What happens to writers when flushes and compactions fall behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StallPolicy {
    /// Nothing until a limit is met, then they wait.
    Stop,
    /// The nearer a limit, the fewer bytes a second are taken; at the limit they wait. Long waits become many short ones.
    Slowdown,
}

/// A value for each level, 0 to 6.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ByLevel<T>([T; LEVEL_COUNT]);

impl<T: Copy + PartialEq> ByLevel<T> {
    /// The same value on all levels.
    pub fn all(value: T) -> ByLevel<T> {
        ByLevel([value; LEVEL_COUNT])
    }

    /// One value a level from level 0 on; the last one counts for all deeper levels. `None` for none, or more than seven.
    pub fn of(values: &[T]) -> Option<ByLevel<T>> {
        let last = *values.last().filter(|_| values.len() <= LEVEL_COUNT)?;
        let mut all = [last; LEVEL_COUNT];
        all[..values.len()].copy_from_slice(values);
        Some(ByLevel(all))
    }

    /// The value of a level; below the bottom, the bottom's.
    pub fn at(&self, level: u8) -> T {
        self.0[usize::from(level).min(LEVEL_COUNT - 1)]
    }

    /// The shortest list that [`ByLevel::of`] makes this of.
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

/// Makes the structures and the registry of the table below.
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
        /// Settings of a store, and the defaults of its keyspaces. `Options::default()` suits a service on a small machine.
        #[derive(Clone, Debug, PartialEq)]
        pub struct Options {
            $( $(#[doc = $sdoc])+
            #[doc = ""]
            #[doc = $srange]
            pub $s: $stype, )+
            $( $(#[doc = $kdoc])+
            #[doc = ""]
            #[doc = concat!($krange, " A keyspace may have its own.")]
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

        /// What was set for one keyspace: `None` follows the store's options.
        #[derive(Clone, Debug, Default, PartialEq)]
        pub struct KeyspaceOptions {
            $( #[doc = concat!("See [`Options::", stringify!($k), "`].")]
            pub $k: Option<$ktype>, )+
        }

        /// The settings that count for one keyspace: its own, and the store's where it has none.
        #[derive(Clone, Debug, PartialEq)]
        pub struct KeyspaceSettings {
            $( #[doc = concat!("See [`Options::", stringify!($k), "`].")]
            pub $k: $ktype, )+
        }

        impl Options {
            /// What keyspaces follow that set nothing.
            pub fn keyspace_defaults(&self) -> KeyspaceSettings {
                KeyspaceSettings { $( $k: self.$k.clone(), )+ }
            }
        }

        impl KeyspaceOptions {
            /// Takes over what `newer` sets.
            pub fn merge(&mut self, newer: &KeyspaceOptions) {
                $( if newer.$k.is_some() {
                    self.$k = newer.$k.clone();
                } )+
            }

            /// `base` where nothing is set.
            fn overlay(&self, base: &KeyspaceSettings) -> KeyspaceSettings {
                KeyspaceSettings { $( $k: self.$k.clone().unwrap_or_else(|| base.$k.clone()), )+ }
            }
        }

        impl KeyspaceSettings {
            /// All of them, as if each had been set.
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
                    set: |o, value| SettingType::from_value(value).map(|v| o.$k = Some(v)).is_some(),
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
            switch(), AtOpen("it says what an open does");
        /// Refuse to open a store that is already there.
        error_if_exists: bool = false, "switch",
            "`true` or `false`; default `false`.",
            switch(), AtOpen("it says what an open does");
        /// When writes become durable against power loss: never by themselves (as LevelDB and RocksDB do), once an interval, or before each
        /// is acknowledged.
        sync: SyncMode = SyncMode::Never, "mode",
            "`\"never\"`, `\"always\"`, or an interval, `\"100 us\"` to `\"3600 s\"`; \
             default `\"never\"`.",
            times(100, 3_600_000_000,
                "\"never\", \"always\", or an interval, \"100 us\" to \"3600 s\""),
            AtOpen("writers rely on what it promises");
        /// When block checksums are verified: when a block is first used after its table was opened, or at every read.
        verify: Verify = Verify::Once, "mode",
            "`\"once\"` or `\"always\"`; default `\"once\"`.",
            choice("\"once\" or \"always\""), AtOpen("open tables remember what they verified");
        /// How much of each flushed table is read back and compared with the memtable before the
        /// log may drop its entries: nothing, a bounded number of blocks, or every entry.
        flush_verify: FlushVerify = FlushVerify::Sample, "mode",
            "`\"none\"`, `\"sample\"` or `\"all\"`; default `\"sample\"`.",
            choice("\"none\", \"sample\" or \"all\""), WhileOpen;
        /// The full size of a log segment. The first one has 256 KiB, and each further one twice
        /// the size of the one before it, up to this. A larger batch gets a segment of its own.
        log_segment_bytes: u64 = 64 << 20, "bytes",
            "From 64 KiB to 2 GiB; default 64 MiB.",
            within(64 << 10, 2 << 30), AtOpen("the next segments are prepared already");
        /// The log's folder, created with the store; a relative path counts from the store's folder. Empty: the store's folder, or where the store has its log.
        log_dir: PathBuf = PathBuf::new(), "folder",
            "A path; default empty.",
            choice("a path"), AtOpen("it is chosen when the store is created");
        /// The tables' folder, created with the store; a relative path counts from the store's folder. Empty: the store's folder, or where the store has its tables.
        table_dir: PathBuf = PathBuf::new(), "folder",
            "A path; default empty.",
            choice("a path"), AtOpen("it is chosen when the store is created");
        /// Log bytes at which the keyspace that pins the oldest segment is flushed; at least two segments.
        log_bytes_max: u64 = 512 << 20, "bytes",
            "From 128 KiB to 1024 TiB; default 512 MiB.",
            within(128 << 10, 1 << 50), WhileOpen;
        /// What replay may keep in memory: a reader all that the log holds, a writer what finds no room on the disk. At least eight of the largest memtables
        /// and `log_bytes_max`, whatever is set.
        replay_bytes_max: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), AtOpen("the log is replayed when the store is opened");
        /// Bytes of cached blocks. Tables that are read through maps do not use it, compressed blocks do.
        block_cache_bytes: u64 = 64 << 20, "bytes",
            "From 0 B to 1024 TiB; default 64 MiB.",
            within(0, 1 << 50), AtOpen("the cache's shards are sized once");
        /// Memory for memtables, cached blocks, filters and indexes of open tables and buffers of
        /// jobs, all together; 0: as much as these are given one by one. Over it the cache shrinks
        /// first, then tables below level 1 are closed, then the largest memtable is flushed early.
        /// Memory that is needed beyond that is used, and counted.
        memory_bytes_max: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), WhileOpen;
        /// The most tables below level 1 whose filters and indexes stay in memory, in addition to
        /// those of all tables above. This does not bound open files: half of what the process may
        /// open does. Tables beyond that are opened for each read.
        open_tables_max: u32 = 4096, "tables",
            "From 16 to 1048576 tables; default 4096.",
            within(16, 1 << 20), AtOpen("the cache of open tables is sized once");
        /// Read tables through memory maps where the storage has them.
        map_tables: bool = true, "switch",
            "`true` or `false`; default `true`.",
            switch(), AtOpen("open tables stay as they were opened");
        /// What is read and written past the system's page cache (O_DIRECT): nothing, what flushes and compactions read and write, or all of
        /// tables, which are then not mapped and read through the block cache. Refused where the tables' file system cannot.
        direct_io: DirectIo = DirectIo::None, "mode",
            "`\"none\"`, `\"compaction\"` or `\"all\"`; default `\"none\"`.",
            choice("\"none\", \"compaction\" or \"all\""),
            AtOpen("open tables stay as they were opened");
        /// Background tasks for flush and compaction.
        background_tasks: u32 = 2, "tasks",
            "From 1 to 64 tasks; default 2.",
            within(1, 64), AtOpen("tasks are started once");
        /// Subjobs of one job that may run at once.
        subjobs_max: u32 = 2, "subjobs",
            "From 1 to 64 subjobs; default 2.",
            within(1, 64), WhileOpen;
        /// What compactions may read and write in a second, all together; 0 is no limit. Flushes never wait for it, but what they write is
        /// taken from what compactions may.
        background_bytes_per_s: u64 = 0, "bytes",
            "From 0 B to 1024 TiB; default 0.",
            within(0, 1 << 50), WhileOpen;
        /// What happens to the writers of a keyspace whose flushes or compactions fall behind: "stop" lets them go on until a limit is met and
        /// has them wait then; "slowdown" takes fewer bytes a second the nearer the limits are.
        stall_policy: StallPolicy = StallPolicy::Slowdown, "mode",
            "`\"stop\"` or `\"slowdown\"`; default `\"slowdown\"`.",
            choice("\"stop\" or \"slowdown\""), WhileOpen;
        /// How often a writer publishes its statistics to the file STATS.json, which others read beside it; 0 is never. What is published
        /// is some 10 KB, and 1 KB more for each keyspace, written without a sync.
        stats_publish_ms: u64 = 1000, "milliseconds",
            "From 0 to 3600000 milliseconds; default 1000.",
            within(0, 3_600_000), WhileOpen;
    }
    keyspace {
        /// Size of a memtable. A keyspace holds one that is written and up to `sealed_memtables_max` sealed ones.
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
        /// Size of a block, before compression.
        block_bytes: u32 = 8 << 10, "bytes",
            "A power of two, 1 KiB to 32 KiB; default 8 KiB.",
            within_power_of_two(1 << 10, 32 << 10), tag::BLOCK_BYTES;
        /// Level-0 runs at which compaction begins.
        l0_trigger_count: u32 = 4, "runs",
            "From 1 to 1000 runs; default 4.",
            within(1, 1000), tag::L0_TRIGGER_COUNT;
        /// Level-0 runs from which on writers are slowed down, unless stall_policy is "stop"; not below l0_trigger_count.
        l0_slowdown_count: u32 = 20, "runs",
            "From 1 to 10000 runs; default 20.",
            within(1, 10_000), tag::L0_SLOWDOWN_COUNT;
        /// Level-0 runs at which writers wait; not below l0_slowdown_count.
        l0_stop_count: u32 = 36, "runs",
            "From 1 to 10000 runs; default 36.",
            within(1, 10_000), tag::L0_STOP_COUNT;
        /// Target size of level 1, or of the first level in use with dynamic targets; not below table_bytes.
        level1_bytes: u64 = 256 << 20, "bytes",
            "From 64 KiB to 1024 TiB; default 256 MiB.",
            within(64 << 10, 1 << 50), tag::LEVEL1_BYTES;
        /// How many times larger the target of each further level is.
        level_factor: u32 = 10, "times",
            "From 2 to 100 times; default 10.",
            within(2, 100), tag::LEVEL_FACTOR;
        /// Targets of the levels: fixed from level 1 on, or dynamic, from the size of the deepest one.
        level_targets: LevelTargets = LevelTargets::Fixed, "mode",
            "`\"fixed\"` or `\"dynamic\"`; default `\"fixed\"`.",
            choice("\"fixed\" or \"dynamic\""), tag::LEVEL_TARGETS;
        /// Filter bits for each key, for all levels or a list by level; 10 give 1% false positives, 0 is no filter.
        bloom_bits_per_key: ByLevel<u32> = ByLevel([10; LEVEL_COUNT]), "bits",
            "From 0 to 20 bits; default 10.",
            within(0, 20), tag::FILTER_BITS_BY_LEVEL;
        /// Compression of blocks, for all levels or a list by level. Tables of level 0 are rewritten soon, those of the bottom hold most of the data.
        compression: ByLevel<Compression> = ByLevel([Compression::None; LEVEL_COUNT]), "codec",
            "`\"none\"`, `\"lz4\"`, `\"zstd\"` or `\"zstd:1\"` to `\"zstd:19\"`; \
             default `\"none\"`.",
            times(1, 19, "\"none\", \"lz4\", \"zstd\" or \"zstd:1\" to \"zstd:19\""), tag::CODECS_BY_LEVEL;
    }
}

/// Relations between values that a line of the table cannot say: lower name, its value, upper name, its value.
fn out_of_order<'a>(pairs: impl IntoIterator<Item = (&'a str, u64, &'a str, u64)>) -> Result<()> {
    for (lower, low, upper, high) in pairs {
        if high < low {
            return Err(
                Error::invalid_argument(format!("option {upper} is impossible"))
                    .expected(format!("at least {lower}, which is {low}"))
                    .found(high)
                    .advice(format!("raise {upper} or lower {lower}")),
            );
        }
    }
    Ok(())
}

impl Options {
    /// Checks every value and every relation between values.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option, its limits and the value found.
    pub fn validate(&self) -> Result<()> {
        for setting in SETTINGS {
            setting.check_numbers(&(setting.numbers)(self))?;
        }
        out_of_order(self.keyspace_defaults().relations())?;
        if self.log_bytes_max < 2 * self.log_segment_bytes {
            return Err(
                Error::invalid_argument("option log_bytes_max is impossible")
                    .expected(format!(
                        "at least two segments of log_segment_bytes, {} bytes",
                        2 * self.log_segment_bytes
                    ))
                    .found(self.log_bytes_max)
                    .advice("raise log_bytes_max or lower log_segment_bytes"),
            );
        }
        for (name, path) in self.directories() {
            if path.to_str().is_none_or(|p| p.contains(['\n', '\r'])) {
                return Err(
                    Error::invalid_argument(format!("option {name} is impossible"))
                        .expected("a path of UTF-8 without line breaks")
                        .found(format!("{path:?}"))
                        .advice("name another folder"),
                );
            }
        }
        if self.error_if_exists && !self.create_if_missing {
            return Err(
                Error::invalid_argument("option error_if_exists needs create_if_missing")
                    .advice("set create_if_missing too, or neither"),
            );
        }
        for (name, own) in &self.keyspaces {
            own.validate()
                .map_err(|e| e.context(format!("keyspace `{name}`")))?;
        }
        Ok(())
    }

    /// The settings that are folders, by name.
    pub(crate) fn directories(&self) -> [(&'static str, &Path); 2] {
        [("log_dir", &self.log_dir), ("table_dir", &self.table_dir)]
    }

    /// Sets an option by name, without asking whether it fits the others: [`Options::validate`] does.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not there, with the nearest one, or a value that is none of the setting's.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<()> {
        let setting = setting(name)?;
        if !(setting.set)(self, value) {
            return Err(setting.refuse(value));
        }
        setting.check_numbers(&(setting.numbers)(self))
    }

    /// An option by name.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that is not there.
    pub fn get(&self, name: &str) -> Result<Value> {
        Ok((setting(name)?.get)(self))
    }
}

#[cfg(test)]
mod tests;

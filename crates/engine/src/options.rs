//! Options of a store: plain data with units in the names, validated once at open.
//!
//! An option that nobody has needed is a constant. Values that cannot work are refused by name, never adjusted.

use std::time::Duration;

use crate::error::{Error, Result};

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

/// How blocks are compressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Compression {
    /// Not at all.
    None,
    /// LZ4, kept only where it saves an eighth.
    Lz4,
}

/// Settings of a store. `Options::default()` suits a service on a small machine.
#[derive(Clone, Debug, PartialEq)]
pub struct Options {
    /// Create the store if the folder has none (default true).
    pub create_if_missing: bool,
    /// Refuse to open a store that is already there (default false).
    pub error_if_exists: bool,
    /// When writes become durable against power loss (default `Never`: as LevelDB and RocksDB do).
    pub sync: SyncMode,
    /// Size of a memtable in bytes, 64 KiB to 4 GiB (default 64 MiB). A keyspace holds one active memtable and up
    /// to [`Options::sealed_memtables_max`] sealed ones.
    pub memtable_bytes: u64,
    /// Sealed memtables of a keyspace at which its writers wait, 1 to 64 (default 3).
    pub sealed_memtables_max: u32,
    /// Target size of a table in raw bytes, a power of two, 64 KiB to 1 GiB (default 64 MiB).
    pub table_bytes: u64,
    /// Size of a block in raw bytes, a power of two, 1 KiB to 32 KiB (default 8 KiB).
    pub block_bytes: u32,
    /// Level-0 runs at which compaction begins, 1 to 1000 (default 4).
    pub l0_trigger_count: u32,
    /// Level-0 runs at which each batch is delayed by a millisecond, not below the trigger (default 20).
    pub l0_slowdown_count: u32,
    /// Level-0 runs at which writers wait, not below slowdown (default 36).
    pub l0_stop_count: u32,
    /// Target size of level 1 in raw bytes, at least a table (default 256 MiB).
    pub level1_bytes: u64,
    /// Growth of the target from level to level, 2 to 100 (default 10).
    pub level_factor: u32,
    /// Filter bits per key, 0 (no filter) to 20 (default 10: 1% false positives).
    pub bloom_bits_per_key: u32,
    /// Compression of blocks (default none).
    pub compression: Compression,
    /// When checksums are verified (default `Once`).
    pub verify: Verify,
    /// Size of a log segment in bytes, 64 KiB to 2 GiB (default 64 MiB). A larger batch gets a segment of its own.
    pub log_segment_bytes: u64,
    /// Log bytes at which the keyspace that pins the oldest segment is flushed, at least two segments (default 512 MiB).
    pub log_bytes_max: u64,
    /// Bytes of cached blocks (default 64 MiB). Tables that are read through maps do not use it.
    pub block_cache_bytes: u64,
    /// Tables kept open at most, at least 16 (default 4096); never more than half of the files that the process may open.
    pub open_tables_max: u32,
    /// Read tables through memory maps where the storage has them (default true).
    pub map_tables: bool,
    /// Background tasks for flush and compaction, 1 to 64 (default 2).
    pub background_tasks: u32,
    /// Subjobs of one job that may run at once, 1 to 64 (default 2).
    pub subjobs_max: u32,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            create_if_missing: true,
            error_if_exists: false,
            sync: SyncMode::Never,
            memtable_bytes: 64 << 20,
            sealed_memtables_max: 3,
            table_bytes: 64 << 20,
            block_bytes: 8 << 10,
            l0_trigger_count: 4,
            l0_slowdown_count: 20,
            l0_stop_count: 36,
            level1_bytes: 256 << 20,
            level_factor: 10,
            bloom_bits_per_key: 10,
            compression: Compression::None,
            verify: Verify::Once,
            log_segment_bytes: 64 << 20,
            log_bytes_max: 512 << 20,
            block_cache_bytes: 64 << 20,
            open_tables_max: 4096,
            map_tables: true,
            background_tasks: 2,
            subjobs_max: 2,
        }
    }
}

fn within(name: &str, unit: &str, value: u64, min: u64, max: u64) -> Result<()> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(
        Error::invalid_argument(format!("option {name} is impossible"))
            .expected(format!("{min} to {max} {unit}"))
            .found(value.to_string())
            .advice(format!("set {name} within these limits")),
    )
}

fn power_of_two(name: &str, value: u64) -> Result<()> {
    if value.is_power_of_two() {
        return Ok(());
    }
    Err(
        Error::invalid_argument(format!("option {name} is impossible"))
            .expected("a power of two")
            .found(value.to_string())
            .advice(format!(
                "use {} or {}",
                value.next_power_of_two() / 2,
                value.next_power_of_two()
            )),
    )
}

impl Options {
    /// Checks every value and every relation between values.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option, its limits and the value found.
    pub fn validate(&self) -> Result<()> {
        within(
            "memtable_bytes",
            "bytes",
            self.memtable_bytes,
            64 << 10,
            4 << 30,
        )?;
        within(
            "sealed_memtables_max",
            "memtables",
            self.sealed_memtables_max.into(),
            1,
            64,
        )?;
        within("table_bytes", "bytes", self.table_bytes, 64 << 10, 1 << 30)?;
        power_of_two("table_bytes", self.table_bytes)?;
        within(
            "block_bytes",
            "bytes",
            self.block_bytes.into(),
            1 << 10,
            32 << 10,
        )?;
        power_of_two("block_bytes", self.block_bytes.into())?;
        within(
            "l0_trigger_count",
            "runs",
            self.l0_trigger_count.into(),
            1,
            1000,
        )?;
        within(
            "l0_slowdown_count",
            "runs (not below l0_trigger_count)",
            self.l0_slowdown_count.into(),
            self.l0_trigger_count.into(),
            10_000,
        )?;
        within(
            "l0_stop_count",
            "runs (not below l0_slowdown_count)",
            self.l0_stop_count.into(),
            self.l0_slowdown_count.into(),
            10_000,
        )?;
        within(
            "level1_bytes",
            "bytes (not below table_bytes)",
            self.level1_bytes,
            self.table_bytes,
            1 << 50,
        )?;
        within("level_factor", "times", self.level_factor.into(), 2, 100)?;
        within(
            "bloom_bits_per_key",
            "bits",
            self.bloom_bits_per_key.into(),
            0,
            20,
        )?;
        within(
            "log_segment_bytes",
            "bytes",
            self.log_segment_bytes,
            64 << 10,
            2 << 30,
        )?;
        within(
            "log_bytes_max",
            "bytes (at least two segments)",
            self.log_bytes_max,
            2 * self.log_segment_bytes,
            1 << 50,
        )?;
        within(
            "block_cache_bytes",
            "bytes",
            self.block_cache_bytes,
            0,
            1 << 50,
        )?;
        within(
            "open_tables_max",
            "tables",
            self.open_tables_max.into(),
            16,
            1 << 20,
        )?;
        within(
            "background_tasks",
            "tasks",
            self.background_tasks.into(),
            1,
            64,
        )?;
        within("subjobs_max", "subjobs", self.subjobs_max.into(), 1, 64)?;
        if let SyncMode::Interval(d) = self.sync {
            within(
                "sync interval",
                "microseconds",
                u64::try_from(d.as_micros()).unwrap_or(u64::MAX),
                100,
                3_600_000_000,
            )?;
        }
        if self.create_if_missing && self.error_if_exists {
            return Ok(());
        }
        if self.error_if_exists {
            return Err(
                Error::invalid_argument("option error_if_exists needs create_if_missing")
                    .advice("set create_if_missing too, or neither"),
            );
        }
        Ok(())
    }
}

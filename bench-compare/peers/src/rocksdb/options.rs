//! The settings of a run as RocksDB's own options, in the form that RocksDB parses.
//!
//! Invariant: what [`names`] returns is what the database is opened with, so the record of a run is
//! true.
//!
//! Threading: plain data.

use std::collections::BTreeMap;

use siltstone_bench::engine::{EngineError, Result};
use siltstone_bench::settings::{Compression, EngineSettings};

/// Options of tables are inside the option of their factory.
pub(super) const TABLE: &str = "block_based_table_factory.";

/// The one setting that is an option of reads.
const VERIFY_CHECKSUMS: &str = "verify_checksums";

/// Logs that are kept to be written again. Their blocks are there already, so a synced write need
/// not wait for the file system's own log; siltstone and Pebble do the same by default.
const RECYCLED_LOGS: u32 = 2;

/// All options that are not left at their defaults, by their names. An option of tables has the
/// prefix `block_based_table_factory.`.
pub(super) fn names(settings: &EngineSettings) -> BTreeMap<String, String> {
    let mut names = BTreeMap::new();
    let mut set = |name: &str, value: String| {
        names.insert(name.to_string(), value);
    };
    set("create_if_missing", true.to_string());
    set("write_buffer_size", settings.memtable_bytes.to_string());
    set(
        "max_background_jobs",
        settings.background_threads.to_string(),
    );
    set("recycle_log_file_num", RECYCLED_LOGS.to_string());
    match settings.compression {
        Compression::None => set("compression", "kNoCompression".into()),
        Compression::Lz4 => set("compression", "kLZ4Compression".into()),
        Compression::Zstd => {
            set("compression", "kZSTD".into());
            set("compression_opts", "{level=1}".into());
        }
    }
    if let Some(mmap_reads) = settings.mmap_reads {
        set("allow_mmap_reads", mmap_reads.to_string());
    }
    match settings.cache_bytes {
        0 => set(&format!("{TABLE}no_block_cache"), true.to_string()),
        bytes => set(&format!("{TABLE}block_cache"), bytes.to_string()),
    }
    if settings.bloom_bits > 0 {
        let filter = format!("bloomfilter:{}:false", settings.bloom_bits);
        set(&format!("{TABLE}filter_policy"), filter);
    }
    set(VERIFY_CHECKSUMS, true.to_string());
    names.extend(settings.own.clone());
    names
}

/// Options as text, and whether reads verify checksums.
pub(super) fn text(settings: &EngineSettings) -> Result<(String, bool)> {
    let mut names = names(settings);
    let verify = names.remove(VERIFY_CHECKSUMS).unwrap_or_default();
    let verify = verify.parse().map_err(|error| {
        EngineError::new(
            "open",
            format!("RocksDB: {VERIFY_CHECKSUMS}={verify}: {error}"),
        )
    })?;
    let (mut text, mut tables) = (String::new(), String::new());
    for (name, value) in &names {
        match name.strip_prefix(TABLE) {
            Some(name) => tables.push_str(&format!("{name}={value};")),
            None => text.push_str(&format!("{name}={value};")),
        }
    }
    text.push_str(&format!("block_based_table_factory={{{tables}}};"));
    Ok((text, verify))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_of_tables_are_inside_their_factory_and_own_options_win() {
        let mut settings = EngineSettings::default();
        settings
            .own
            .insert("write_buffer_size".into(), "1000".into());
        settings
            .own
            .insert("block_based_table_factory.block_size".into(), "8192".into());
        let (text, verify) = text(&settings).unwrap();
        assert!(verify);
        assert!(text.contains("write_buffer_size=1000;"), "{text}");
        assert!(text.contains("recycle_log_file_num=2;"), "{text}");
        let tables = "block_based_table_factory={block_cache=67108864;block_size=8192;\
                      filter_policy=bloomfilter:10:false;};";
        assert!(text.ends_with(tables), "{text}");
    }
}

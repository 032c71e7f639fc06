//! Checks that a table can be ingested.
//!
//! [`verify`] reads all of the *imported* table, every block and every section, and checks the
//! rules (RFC 3, section 5): every entry has number 0, each key is there once, there are only puts
//! and deletes and no range deletes, and the table names no keyspace. Errors have the file's name
//! that the caller gave, because the imported file is deleted right after.
//!
//! Threading: one task. It takes memory for one block, the index, the filter and eight bytes a key.

use siltstone_storage::{ReadFile, Storage};
use siltstone_table::footer::{FOOTER_BYTES, MAGIC};
use siltstone_table::reader::{ReaderOptions, TableReader, Verify};

use crate::formats::version::{KeyRange, TableMeta};
use crate::services::table_builder::TableFile;
use crate::types::error::{Error, ErrorKind, Result};

/// Verifies the object `name` in the storage of the tables, which was imported from `file`. Returns
/// its description as table `id`.
pub(crate) fn verify(
    storage: &dyn Storage,
    name: &str,
    id: u64,
    file: &TableFile,
) -> Result<TableMeta> {
    read(storage, name, id).map_err(|error| error.in_file(file.shown()))
}

/// Refuses a file that does not end as tables do. It may be a damaged table, or never have been
/// one.
fn refuse_other_files(file: &dyn ReadFile) -> Result<()> {
    let (len, mut end) = (file.len(), MAGIC.map(|_| 0));
    let is_long_enough = len >= FOOTER_BYTES as u64;
    if is_long_enough {
        file.read_at(len - MAGIC.len() as u64, &mut end)?;
    }
    if is_long_enough && end == MAGIC {
        return Ok(());
    }
    let found = match len {
        0 => "an empty file".to_string(),
        _ => format!("a file of {len} bytes with another end"),
    };
    Err(
        // This is the error for damage too, because a table that was cut off looks like a file that
        // never was a table.
        Error::new(
            ErrorKind::Corruption,
            "a file cannot be ingested: it is no table, or not a whole one",
        )
        .expected(format!("a file that ends with `{}`", MAGIC.escape_ascii()))
        .found(found)
        .advice(
            "ingest tables that TableBuilder or `silt export` made; `silt load` takes text, and \
             a table that was cut off must come from another copy",
        ),
    )
}

fn read(storage: &dyn Storage, name: &str, id: u64) -> Result<TableMeta> {
    let options = ReaderOptions {
        verify: Verify::Always,
        map: false,
        ..ReaderOptions::default()
    };
    let opened = storage.open(name)?;
    refuse_other_files(&*opened)?;
    let table = TableReader::open(opened, options)
        .map_err(|e| Error::from(e).context("a table cannot be ingested"))?;
    let p = table.properties();
    // The properties are checked first, because a table of another store is sound: reading all of
    // it would find nothing more.
    let refused = |what: &str, expected: &str, found: String| {
        Err(
            Error::invalid_argument(format!("a table cannot be ingested: {what}"))
                .expected(expected)
                .found(found)
                .advice("ingest tables that TableBuilder or export made"),
        )
    };
    if let Some(keyspace) = p.keyspace {
        return refused(
            "it belongs to a store",
            "a table of no keyspace",
            format!("keyspace {keyspace}"),
        );
    }
    if p.smallest_seq != 0 || p.largest_seq != 0 {
        return refused(
            "its entries have sequence numbers of their own",
            "number 0",
            format!("{} to {}", p.smallest_seq, p.largest_seq),
        );
    }
    if p.user_keys != p.entries {
        return refused(
            "keys are in it more than once",
            "one entry a key",
            format!("{} entries of {} keys", p.entries, p.user_keys),
        );
    }
    if p.range_deletes != 0 || !table.range_deletes().fragments().is_empty() {
        return refused(
            "it has range deletes",
            "puts and deletes only",
            p.range_deletes.to_string(),
        );
    }
    let found = siltstone_table::check::check(&table)?;
    if let Some(first) = found.damage.into_iter().next() {
        let error = crate::formats::version::meta::in_block(first);
        let error = error.context("a table cannot be ingested");
        return Err(match error.is_corruption() {
            true => error.advice("build it again, or take it from another copy"),
            false => error,
        });
    }
    // The check has compared the counts and the first and last key with the entries.
    let (Some(first), Some(last)) = (&p.smallest_key, &p.largest_key) else {
        return refused("it is empty", "at least one entry", "none".into());
    };
    Ok(TableMeta {
        id,
        location: 0,
        name: name.to_string(),
        min_seq: 0,
        max_seq: 0,
        raw_bytes: p.raw_bytes(),
        file_bytes: table.file().len(),
        entries: p.entries,
        deletes: p.deletes,
        range_deletes: 0,
        digest: table.footer().digest.into(),
        points: Some((first[..].into(), last[..].into())),
        bounds: KeyRange::closed(first, last),
        sequence_override: None,
        flags: 0,
    })
}

//! Prints a table.

use std::ops::Range;

use serde_json::json;
use siltstone::Error;
use siltstone::inspect::TableFile;
use siltstone_storage::ReadFile;
use siltstone_table::footer::FOOTER_BYTES;
use siltstone_table::key::{Kind, kind_of, seq_of};
use siltstone_table::salvage::{Gap, Piece};

use super::{Dump, Shown, flag_for_more};
use crate::failure::Failure;
use crate::output::{bytes, count, outln, plural};

/// Prints a table.
pub fn print(dump: &mut Dump<'_>, file: &dyn ReadFile) -> Result<(), Failure> {
    let mut table = TableFile::open(file)?;
    sections(dump, &table, file)?;
    properties(dump, &table)?;
    for (part, error) in table.found().parts.clone() {
        if part == "index" && table.found().sections.is_none() {
            let what = "neither footer nor index can be found: blocks are searched for one by one";
            dump.damage(&Error::corruption(file.name(), what).at(0), None)?;
        } else {
            dump.damage(&Error::from(error), None)?;
        }
    }
    range_deletes(dump, &table)?;
    if dump.args.blocks || !dump.entries() {
        blocks(dump, &mut table, file.name())?;
    } else {
        for gap in table.found().gaps.clone() {
            lost(dump, file.name(), &gap)?;
        }
    }
    if dump.entries() {
        entries(dump, &mut table)?;
    }
    Ok(())
}

fn sections(
    dump: &mut Dump<'_>,
    table: &TableFile<'_>,
    file: &dyn ReadFile,
) -> Result<(), Failure> {
    let found = table.found();
    let len = file.len();
    let (pieces, entries) = (found.pieces.len() as u64, found.entry_count());
    if dump.args.json {
        dump.object(&json!({
            "type": "table", "offset": 0, "file_bytes": len, "readable_block_count": pieces,
            "readable_entry_count": entries, "is_whole": found.is_whole(),
        }))?;
    } else {
        dump.line(
            0,
            format_args!(
                "table of {}; {} with {} can be read",
                bytes(len),
                plural(pieces, "block"),
                plural(entries, "entry").replace("entrys", "entries")
            ),
        )?;
    }
    let Some(places) = &found.sections else {
        return Ok(());
    };
    let footer_at = len.saturating_sub(FOOTER_BYTES as u64);
    let blocks = 0..places.filter.start;
    let all: [(&str, &Range<u64>, String); 6] = [
        (
            "blocks",
            &blocks,
            found
                .index
                .as_ref()
                .map_or(String::new(), |index| plural(index.len() as u64, "block")),
        ),
        (
            "filter",
            &places.filter,
            found
                .properties
                .as_ref()
                .map_or(String::new(), |p| format!("{} bits a key", p.bits_per_key)),
        ),
        ("index", &places.index, String::new()),
        (
            "range deletes",
            &places.range_deletes,
            found.range_deletes.as_ref().map_or(String::new(), |d| {
                plural(d.fragments().len() as u64, "range delete")
            }),
        ),
        ("properties", &places.properties, String::new()),
        (
            "footer",
            &(footer_at..len),
            found.footer.as_ref().map_or(String::new(), |footer| {
                format!("digest {:016x}", footer.digest)
            }),
        ),
    ];
    for (name, place, what) in all {
        if place.is_empty() {
            continue;
        }
        let size = place.end - place.start;
        if dump.args.json {
            dump.object(&json!({
                "type": "section", "offset": place.start, "end": place.end, "name": name,
            }))?;
        } else {
            dump.line(
                place.start,
                format!("{name:<14} {:>10}  {what}", bytes(size)).trim_end(),
            )?;
        }
    }
    Ok(())
}

fn properties(dump: &mut Dump<'_>, table: &TableFile<'_>) -> Result<(), Failure> {
    let (Some(p), Some(places)) = (&table.found().properties, &table.found().sections) else {
        return Ok(());
    };
    if dump.args.json {
        let key = |key: &Option<Vec<u8>>| key.as_ref().map(|key| dump.key_json(key));
        let value = json!({
            "type": "properties", "offset": places.properties.start,
            "entry_count": p.entries, "put_count": p.puts, "delete_count": p.deletes,
            "range_delete_count": p.range_deletes, "key_count": p.user_keys,
            "key_bytes": p.key_bytes,
            "value_bytes": p.value_bytes, "smallest_key": key(&p.smallest_key),
            "largest_key": key(&p.largest_key),
            "left_bound": key(&p.left_bound), "smallest_number": p.smallest_seq,
            "largest_number": p.largest_seq,
            "block_count": p.blocks, "compression": p.codec.word(),
            "bloom_bits_per_key": p.bits_per_key,
            "block_bytes": p.block_size_bytes, "layout_version": p.layout_version,
            "keyspace": p.keyspace,
        });
        return dump.object(&value);
    }
    outln!(dump.out)?;
    let key = |key: &Option<Vec<u8>>| key.as_ref().map(|key| format!("`{}`", dump.key_text(key)));
    let rows: Vec<(&str, Option<String>)> = vec![
        (
            "entries",
            Some(format!(
                "{} ({} puts, {} deletes) of {} keys",
                count(p.entries),
                count(p.puts),
                count(p.deletes),
                count(p.user_keys)
            )),
        ),
        (
            "range deletes",
            (p.range_deletes > 0).then(|| count(p.range_deletes)),
        ),
        (
            "bytes",
            Some(format!(
                "{} of keys, {} of values",
                bytes(p.key_bytes),
                bytes(p.value_bytes)
            )),
        ),
        ("smallest key", key(&p.smallest_key)),
        ("largest key", key(&p.largest_key)),
        ("left bound", key(&p.left_bound)),
        (
            "numbers",
            Some(format!("{} to {}", p.smallest_seq, p.largest_seq)),
        ),
        ("compression", Some(p.codec.word().to_string())),
        (
            "layout",
            Some(format!(
                "version {}, blocks of {} bytes",
                p.layout_version, p.block_size_bytes
            )),
        ),
        (
            "keyspace",
            Some(
                p.keyspace
                    .map_or("none: it belongs to no store".to_string(), |id| {
                        format!("id {id}")
                    }),
            ),
        ),
    ];
    for (name, value) in rows {
        if let Some(value) = value {
            outln!(dump.out, "  {name:<14} {value}")?;
        }
    }
    outln!(dump.out)
}

fn range_deletes(dump: &mut Dump<'_>, table: &TableFile<'_>) -> Result<(), Failure> {
    let (Some(deletes), Some(places)) = (&table.found().range_deletes, &table.found().sections)
    else {
        return Ok(());
    };
    let all = deletes.fragments();
    let limit = usize::try_from(if dump.entries() {
        dump.entry_limit()
    } else {
        dump.listed()
    })
    .unwrap_or(usize::MAX);
    for fragment in all.iter().take(limit) {
        if dump.args.json {
            let (start, end) = (dump.key_json(&fragment.start), dump.key_json(&fragment.end));
            dump.object(&json!({
                "type": "range_delete", "offset": places.range_deletes.start,
                "start": start, "end": end, "number": fragment.seq,
            }))?;
            continue;
        }
        let text = format!(
            "range delete from `{}` to before `{}`, number {}",
            dump.key_text(&fragment.start),
            dump.key_text(&fragment.end),
            fragment.seq
        );
        dump.line(places.range_deletes.start, text)?;
    }
    let flag = flag_for_more(dump.args, "--blocks prints them");
    dump.cut(
        all.len().saturating_sub(limit) as u64,
        "range deletes",
        flag,
    )
}

/// A damaged piece of the blocks.
fn lost(dump: &mut Dump<'_>, name: &str, gap: &Gap) -> Result<(), Failure> {
    let mut what = match gap.block {
        Some(block) => format!(
            "blocks from number {block} on cannot be read: {}",
            gap.damage.what
        ),
        None => "no block can be read".to_string(),
    };
    if !dump.args.json {
        let key = |key: &Option<Vec<u8>>, none: &str| {
            key.as_ref()
                .map_or(none.to_string(), |key| format!("`{}`", dump.key_text(key)))
        };
        what.push_str(&format!(
            " (keys after {} up to {})",
            key(&gap.after, "the start"),
            key(&gap.until, "the end")
        ));
    }
    let mut error =
        Error::corruption(name.to_string(), what).at(gap.start.saturating_add(gap.damage.offset));
    if gap.block.is_some() {
        error = error
            .expected(format_args!("{:#x}", gap.damage.expected))
            .found(format_args!("{:#x}", gap.damage.found));
    }
    dump.damage(&error, Some(gap.end))
}

/// Prints blocks and what lies between them, in file order.
fn blocks(dump: &mut Dump<'_>, table: &mut TableFile<'_>, name: &str) -> Result<(), Failure> {
    let (pieces, gaps) = (table.found().pieces.clone(), table.found().gaps.clone());
    let limit = dump.listed();
    if !dump.args.json && !pieces.is_empty() {
        outln!(
            dump.out,
            "{:>12}  {:>8}  {:>8}  {:>7}  keys",
            "block at",
            "stored",
            "unpacked",
            "entries"
        )?;
    }
    let mut gaps = gaps.iter().peekable();
    let (mut listed, mut left_out) = (0, 0);
    for piece in &pieces {
        while let Some(gap) = gaps.next_if(|gap| gap.start < piece.place.start) {
            more_blocks(dump, &mut left_out)?;
            lost(dump, name, gap)?;
        }
        if listed < limit {
            listed += 1;
            block(dump, table, piece)?;
        } else {
            left_out += 1;
        }
    }
    more_blocks(dump, &mut left_out)?;
    for gap in gaps {
        lost(dump, name, gap)?;
    }
    Ok(())
}

fn more_blocks(dump: &mut Dump<'_>, left_out: &mut u64) -> Result<(), Failure> {
    let flag = flag_for_more(dump.args, "--blocks prints them, --entries what is in them");
    dump.cut(std::mem::take(left_out), "blocks", flag)
}

fn block(dump: &mut Dump<'_>, table: &mut TableFile<'_>, piece: &Piece) -> Result<(), Failure> {
    let place = piece.place;
    let info = match table.block(piece) {
        Ok(info) => info,
        Err(error) => return dump.damage(&error, Some(place.end)),
    };
    if dump.args.json {
        let (first, last) = (
            dump.key_json(&piece.first_key),
            dump.key_json(&piece.last_key),
        );
        return dump.object(&json!({
            "type": "block", "offset": place.start, "header": place.anchor, "end": place.end,
            "entry_count": piece.entries, "first_key": first, "last_key": last,
            "smallest_number": info.seqs.0, "largest_number": info.seqs.1,
            "value_bytes": info.value_bytes, "column_bytes": info.column_bytes,
            "prefix_bytes": info.prefix_bytes,
            "values_compression": info.values_codec.word(),
            "columns_compression": info.columns_codec.word(),
            "is_suspect": piece.island,
        }));
    }
    let text = format!(
        "{:>8}  {:>8}  {:>7}  `{}` to `{}`{}",
        bytes(place.stored_bytes()),
        bytes(info.value_bytes.saturating_add(info.column_bytes)),
        count(piece.entries),
        dump.key_text(&piece.first_key),
        dump.key_text(&piece.last_key),
        if piece.island {
            " (found behind damage: perhaps a part of a value)"
        } else {
            ""
        }
    );
    dump.line(place.start, text)
}

fn entries(dump: &mut Dump<'_>, table: &mut TableFile<'_>) -> Result<(), Failure> {
    let pieces = table.found().pieces.clone();
    let limit = dump.entry_limit();
    let (mut printed, mut left_out) = (0, 0);
    for piece in &pieces {
        let before = dump.range.lower.as_ref();
        let behind = dump.range.upper.as_ref();
        if before.is_some_and(|lower| piece.last_key < *lower)
            || behind.is_some_and(|upper| piece.first_key >= *upper)
        {
            continue;
        }
        if printed >= limit && before.is_none() && behind.is_none() {
            left_out += piece.entries;
            continue;
        }
        let read = match table.entries(piece) {
            Ok(read) => read,
            Err(error) => {
                dump.damage(&error, Some(piece.place.end))?;
                continue;
            }
        };
        for i in 0..read.len() {
            let (key, trailer) = (read.key(i), read.trailer(i));
            if !dump.wants(key) {
                continue;
            }
            if printed >= limit {
                left_out += 1;
                continue;
            }
            printed += 1;
            let kind = kind_of(trailer);
            dump.entry(&Shown {
                offset: piece.place.start,
                number: seq_of(trailer),
                kind: match kind {
                    Some(Kind::Put) => "put",
                    Some(Kind::Delete) => "delete",
                    _ => "unknown",
                },
                keyspace: None,
                key,
                value: (kind == Some(Kind::Put)).then(|| read.value(i)),
                is_range: false,
            })?;
        }
    }
    dump.cut(left_out, "entries", "a greater --limit prints them")
}

//! Prints a log segment.

use serde_json::json;
use siltstone::batch::EntryKind;
use siltstone::inspect::{LogContent, LogEnd, LogFile, LogItem, LogRecord};
use siltstone::log::format::parse_segment_name;
use siltstone_storage::ReadFile;

use super::manifest::{edit_json, edit_lines, options_text};
use super::{Dump, Shown, flag_for_more};
use crate::failure::Failure;
use crate::output::{bytes, count, plural};

/// Prints a segment.
pub fn print(dump: &mut Dump<'_>, file: &dyn ReadFile) -> Result<(), Failure> {
    let mut log = LogFile::open(file)?;
    header(dump, &log, file)?;
    let (mut listed, mut left_out) = (0, 0u64);
    let (mut entries, mut entries_left_out) = (0, 0u64);
    let limit = dump.listed();
    while let Some(item) = log.next_item()? {
        match item {
            LogItem::Record(record) => {
                // If entries are printed, a record without matching entries is left out.
                if dump.entries() && !dump.args.blocks {
                    print_entries(dump, &record, &mut entries, &mut entries_left_out)?;
                    continue;
                }
                if listed < limit {
                    print_record(dump, &record)?;
                    listed += 1;
                } else {
                    left_out += 1;
                }
                if let LogContent::Unknown(error) = &record.content {
                    dump.damage(error, Some(record.end))?;
                }
                if dump.entries() {
                    print_entries(dump, &record, &mut entries, &mut entries_left_out)?;
                } else if let Some(Err(error)) = record.entries().find(Result::is_err) {
                    dump.damage(&error.in_file(file.name()), Some(record.end))?;
                }
            }
            LogItem::Damage { error, end } => {
                cut(dump, &mut left_out, &mut entries_left_out)?;
                dump.damage(&error, Some(end))?;
            }
            LogItem::End(end) => {
                cut(dump, &mut left_out, &mut entries_left_out)?;
                print_end(dump, &end)?;
            }
        }
    }
    cut(dump, &mut left_out, &mut entries_left_out)
}

fn cut(dump: &mut Dump<'_>, records: &mut u64, entries: &mut u64) -> Result<(), Failure> {
    let flag = flag_for_more(dump.args, "--records prints them");
    dump.cut(std::mem::take(records), "records", flag)?;
    dump.cut(
        std::mem::take(entries),
        "entries",
        "a greater --limit prints them",
    )
}

fn header(dump: &mut Dump<'_>, log: &LogFile<'_>, file: &dyn ReadFile) -> Result<(), Failure> {
    let len = file.len();
    if log.is_unused() {
        if dump.args.json {
            return dump.object(&json!({ "type": "unused", "offset": 0, "file_bytes": len }));
        }
        return dump.line(
            0,
            format_args!(
                "a log segment that was prepared and is not used yet, {}",
                bytes(len)
            ),
        );
    }
    let (header, checksum) = match log.header() {
        Ok(found) => found,
        Err(error) => {
            let error = error.clone();
            return dump.damage(&error, None);
        }
    };
    let before = header.previous;
    if dump.args.json {
        return dump.object(&json!({
            "type": "header", "offset": 0, "file_bytes": len, "segment": header.number,
            "store": format!("{:016x}", header.store_id), "salt": format!("{:016x}", header.salt),
            "previous_segment": before.segment, "previous_end": before.offset,
            "previous_checksum": format!("{:08x}", before.checksum),
            "checksum": format!("{checksum:08x}"),
        }));
    }
    dump.line(
        0,
        format_args!(
            "log segment {} of store {:016x}, {}",
            header.number,
            header.store_id,
            bytes(len)
        ),
    )?;
    if parse_segment_name(file.name()).is_some_and(|named| named != header.number) {
        dump.more(
            "its header has the number of another segment: a recycled file that is not used again \
            yet, or a \
            renamed one",
        )?;
    }
    if before.segment == 0 {
        dump.more(format_args!("begins chain {:016x}", header.salt))
    } else {
        dump.more(format_args!(
            "continues chain {:016x} after segment {}, whose records end at {} with checksum \
            {:08x}",
            header.salt, before.segment, before.offset, before.checksum
        ))
    }
}

fn print_record(dump: &mut Dump<'_>, record: &LogRecord<'_>) -> Result<(), Failure> {
    let count_entries = record.entries().filter(Result::is_ok).count() as u64;
    if dump.args.json {
        let mut value = json!({
            "type": "record", "offset": record.offset, "end": record.end,
            "kind": record.kind_word(),
            "payload_bytes": record.header.payload_bytes, "number": record.header.first_sequence,
            "synced_segment": record.header.synced.map(|synced| synced.segment),
            "synced_offset": record.header.synced.map(|synced| synced.offset),
            "checksum": format!("{:08x}", record.checksum),
        });
        match &record.content {
            LogContent::Batches(_) => value["entry_count"] = count_entries.into(),
            LogContent::Ingest(edit) => value["edit"] = edit_json(dump, edit),
            LogContent::Create { id, name, options } => {
                value["keyspace"] = (*id).into();
                value["name"] = (*name).into();
                value["options"] = super::manifest::options_json(options);
            }
            LogContent::Drop(id) => value["keyspace"] = (*id).into(),
            LogContent::Unknown(_) => {}
        }
        return dump.object(&value);
    }
    let header = &record.header;
    let numbers = match count_entries {
        0 | 1 => format!("number {}", header.first_sequence),
        n => format!(
            "numbers {} to {}",
            header.first_sequence,
            header.first_sequence.saturating_add(n - 1)
        ),
    };
    let what = match &record.content {
        LogContent::Batches(_) => plural(count_entries, "entry").replace("entrys", "entries"),
        LogContent::Create { id, name, options } => {
            format!("{id} `{name}`{}", options_text(options))
        }
        LogContent::Drop(id) => format!("{id}"),
        LogContent::Ingest(_) => "tables from outside".to_string(),
        LogContent::Unknown(_) => format!("kind {}", header.kind),
    };
    let synced = match header.synced {
        Some(synced) => format!(", synced through {synced}"),
        None => String::new(),
    };
    dump.line(
        record.offset,
        format_args!(
            "{}: {what}, {numbers}, {} payload bytes{synced}",
            record.kind_word(),
            count(u64::from(header.payload_bytes)),
        ),
    )?;
    match &record.content {
        LogContent::Ingest(edit) => edit_lines(dump, edit),
        _ => Ok(()),
    }
}

fn print_entries(
    dump: &mut Dump<'_>,
    record: &LogRecord<'_>,
    printed: &mut u64,
    left_out: &mut u64,
) -> Result<(), Failure> {
    for entry in record.entries() {
        let found = match entry {
            Ok(found) => found,
            Err(error) => return dump.damage(&error, Some(record.end)),
        };
        let entry = found.entry;
        let is_range = entry.kind == EntryKind::RangeDelete;
        if !dump.wants(entry.key) {
            continue;
        }
        if *printed >= dump.entry_limit() {
            *left_out += 1;
            continue;
        }
        *printed += 1;
        dump.entry(&Shown {
            offset: found.offset,
            number: found.sequence,
            kind: match entry.kind {
                EntryKind::Put => "put",
                EntryKind::Delete => "delete",
                EntryKind::RangeDelete => "range delete",
            },
            keyspace: Some(entry.keyspace),
            key: entry.key,
            value: (entry.kind != EntryKind::Delete).then_some(entry.value),
            is_range,
        })?;
    }
    Ok(())
}

fn print_end(dump: &mut Dump<'_>, end: &LogEnd) -> Result<(), Failure> {
    if dump.args.json {
        return dump.object(&json!({
            "type": "end", "offset": end.offset, "rest_bytes": end.rest_bytes,
            "rest": end.rest.to_string(),
            "chained_checksum": end.chained.map(|sum| format!("{sum:08x}")),
        }));
    }
    let chained = match end.chained {
        Some(sum) => format!(" with checksum {sum:08x}"),
        None => String::new(),
    };
    dump.line(
        end.offset,
        format_args!(
            "the records end{chained}; {} ({})",
            end.rest,
            bytes(end.rest_bytes)
        ),
    )
}

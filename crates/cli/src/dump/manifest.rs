//! Prints a manifest with its edits, and the pointer.

use serde_json::{Value, json};
use siltstone::inspect::{ManifestFile, ManifestItem, ManifestRecord, stored_options};
use siltstone::manifest::Current;
use siltstone::version::{AddTable, Edit, End, StoreState, StoredOptions};
use siltstone_storage::ReadFile;

use super::{Dump, flag_for_more};
use crate::failure::Failure;
use crate::output::{bytes, count, outln, plural};

/// The number of tables of an edit that are listed by default.
const LISTED_TABLES: usize = 20;

/// Prints a manifest.
pub fn print(dump: &mut Dump<'_>, file: &dyn ReadFile) -> Result<(), Failure> {
    let mut manifest = ManifestFile::open(file)?;
    match manifest.header() {
        Ok(current) if dump.args.json => {
            let value = json!({
                "type": "header", "offset": 0, "file_bytes": file.len(), "manifest": current.number,
                "store": current.store_id.to_string(), "end_bytes": current.end,
            });
            dump.object(&value)?;
        }
        Ok(current) => {
            let text = format!(
                "manifest {} of store {}, {}",
                current.number,
                current.store_id,
                bytes(file.len())
            );
            dump.line(0, text)?;
        }
        Err(error) => {
            let error = error.clone();
            dump.damage(&error, None)?;
        }
    }
    let limit = dump.listed();
    let (mut listed, mut left_out) = (0, 0);
    while let Some(item) = manifest.next_item() {
        match item {
            ManifestItem::Record(record) => {
                if listed < limit {
                    print_record(dump, &record)?;
                    listed += 1;
                } else {
                    left_out += 1;
                }
                for error in record
                    .edit
                    .as_ref()
                    .err()
                    .into_iter()
                    .chain(&record.refused)
                {
                    dump.damage(error, Some(record.end))?;
                }
            }
            // Nothing is printed about a seal that is as it should be.
            ManifestItem::Seal { is_whole: true, .. } => {}
            ManifestItem::Seal { offset, .. } => {
                cut(dump, &mut left_out)?;
                if dump.args.json {
                    dump.object(&json!({ "type": "seal", "offset": offset, "is_whole": false }))?;
                } else {
                    dump.line(
                        offset,
                        "no seal behind this edit: it was lost with the power, or is damaged; \
                        nothing else is lost",
                    )?;
                }
            }
            ManifestItem::Damage { error, end } => {
                cut(dump, &mut left_out)?;
                dump.damage(&error, Some(end))?;
            }
            ManifestItem::End(end) => {
                cut(dump, &mut left_out)?;
                if dump.args.json {
                    dump.object(&json!({
                        "type": "end", "offset": end.offset, "dropped_bytes": end.dropped_bytes,
                        "zero_bytes": end.zero_bytes,
                    }))?;
                    continue;
                }
                if end.dropped_bytes > 0 {
                    dump.line(
                        end.offset,
                        format_args!(
                            "{} that are not a record: an edit that was never acknowledged, or the \
                            last one, damaged",
                            bytes(end.dropped_bytes)
                        ),
                    )?;
                }
                dump.line(
                    end.offset + end.dropped_bytes,
                    format_args!(
                        "the records end; {} of zeros: reserved space for edits",
                        bytes(end.zero_bytes)
                    ),
                )?;
            }
        }
    }
    cut(dump, &mut left_out)?;
    if dump.args.json {
        let whole = manifest.is_whole();
        let state = edit_json(dump, &manifest.state().to_edit());
        return dump.object(&json!({ "type": "state", "is_whole": whole, "state": state }));
    }
    print_state(dump, manifest.state())
}

fn cut(dump: &mut Dump<'_>, left_out: &mut u64) -> Result<(), Failure> {
    let flag = flag_for_more(dump.args, "--records prints them");
    dump.cut(std::mem::take(left_out), "records", flag)
}

fn print_record(dump: &mut Dump<'_>, record: &ManifestRecord) -> Result<(), Failure> {
    let Ok(decoded) = &record.edit else {
        return Ok(());
    };
    if dump.args.json {
        let edit = edit_json(dump, &decoded.edit);
        return dump.object(&json!({
            "type": "record", "offset": record.offset, "end": record.end,
            "payload_bytes": record.payload_bytes,
            "ignored_field_count": decoded.ignored_count, "edit": edit,
        }));
    }
    let what = if decoded.edit.whole {
        "whole state"
    } else {
        "edit"
    };
    dump.line(
        record.offset,
        format_args!("{what}, {} payload bytes", count(record.payload_bytes)),
    )?;
    edit_lines(dump, &decoded.edit)?;
    if decoded.ignored_count > 0 {
        dump.more(format_args!(
            "and {} of a newer version, unknown to this one",
            plural(decoded.ignored_count, "field")
        ))?;
    }
    Ok(())
}

/// Prints the fields of an edit, one a line.
pub fn edit_lines(dump: &mut Dump<'_>, edit: &Edit) -> Result<(), Failure> {
    let numbers = [
        ("next table id", edit.next_table_id),
        ("sequence ceiling", edit.sequence_ceiling),
        ("open number", edit.open_number),
        ("created, in microseconds since 1970:", edit.created_us),
        ("next keyspace id", edit.next_keyspace_id.map(u64::from)),
    ];
    for (what, number) in numbers {
        if let Some(number) = number {
            dump.more(format_args!("{what} {number}"))?;
        }
    }
    if let Some(start) = edit.log_start {
        dump.more(format_args!(
            "log starts at {start}, salt {:016x}",
            start.salt
        ))?;
    }
    if let Some(position) = edit.log_synced {
        dump.more(format_args!("log synced through {position}"))?;
    }
    if edit.closed {
        dump.more(format_args!("the store was closed, its log ends there"))?;
    }
    for id in &edit.drop {
        dump.more(format_args!("drop keyspace {id}"))?;
    }
    for create in &edit.create {
        dump.more(format_args!(
            "create keyspace {} `{}` at number {}{}",
            create.id,
            create.name,
            create.sequence,
            options_text(&create.options)
        ))?;
    }
    let mut tables = 0;
    for change in &edit.keyspaces {
        let id = change.id;
        if let Some(options) = &change.options {
            dump.more(format_args!("keyspace {id}: set{}", options_text(options)))?;
        }
        for range in &change.covered {
            dump.more(format_args!("keyspace {id}: installed numbers {range}"))?;
        }
        if let Some(floor) = change.covered_floor {
            dump.more(format_args!(
                "keyspace {id}: all numbers up to {floor} count as installed"
            ))?;
        }
        if let Some(through) = change.moved_through {
            dump.more(format_args!(
                "keyspace {id}: moved below level 0 through {through}"
            ))?;
        }
        for remove in &change.remove {
            dump.more(format_args!(
                "keyspace {id}: remove table {} from level {}",
                remove.id, remove.level
            ))?;
        }
        for add in &change.add {
            tables += 1;
            if tables > LISTED_TABLES && !dump.args.blocks {
                continue;
            }
            let text = table_text(dump, add);
            dump.more(format_args!("keyspace {id}: add {text}"))?;
        }
    }
    if !dump.args.blocks {
        dump.cut(
            tables.saturating_sub(LISTED_TABLES) as u64,
            "tables",
            "--records prints them",
        )?;
    }
    Ok(())
}

fn table_text(dump: &Dump<'_>, add: &AddTable) -> String {
    let t = &add.table;
    let mut text = format!("table {} on level {}", t.id, add.level);
    if let Some(run) = add.run {
        text.push_str(&format!(" (run {} of {})", run.id, run.seqs));
    }
    text.push_str(&format!(
        ": {}, {}, {}",
        t.name,
        bytes(t.file_bytes),
        plural(t.entries, "entry").replace("entrys", "entries")
    ));
    for (n, what) in [(t.deletes, "deletes"), (t.range_deletes, "range deletes")] {
        if n > 0 {
            text.push_str(&format!(", {} {what}", count(n)));
        }
    }
    match t.sequence_override {
        Some(number) => text.push_str(&format!(", all of number {number}")),
        None => text.push_str(&format!(", numbers {} to {}", t.min_seq, t.max_seq)),
    }
    if let Some((smallest, largest)) = &t.points {
        text.push_str(&format!(
            ", keys `{}` to `{}`",
            dump.key_text(smallest),
            dump.key_text(largest)
        ));
    }
    text
}

/// An edit as JSON, with all its fields.
pub fn edit_json(dump: &Dump<'_>, edit: &Edit) -> Value {
    let tables = |add: &AddTable| {
        let t = &add.table;
        let key = |key: &[u8]| dump.key_json(key);
        json!({
            "id": t.id, "level": add.level, "run": add.run.map(|r| r.id),
            "run_numbers": add.run.map(|r| [r.seqs.lo, r.seqs.hi]),
            "name": t.name, "location": t.location, "file_bytes": t.file_bytes,
            "raw_bytes": t.raw_bytes,
            "entry_count": t.entries, "delete_count": t.deletes,
            "range_delete_count": t.range_deletes,
            "smallest_number": t.min_seq, "largest_number": t.max_seq,
            "number_of_all": t.sequence_override,
            "smallest_key": t.points.as_ref().map(|(first, _)| key(first)),
            "largest_key": t.points.as_ref().map(|(_, last)| key(last)),
            "left_bound": key(&t.bounds.start),
            "right_bound": t.bounds.end.key().map(key),
            "right_bound_included": matches!(t.bounds.end, End::Included(_)),
            "digest": format!("{:032x}", t.digest), "flags": t.flags,
        })
    };
    let mut value = serde_json::Map::new();
    let mut put = |name: &str, found: Option<Value>| {
        if let Some(found) = found {
            value.insert(name.to_string(), found);
        }
    };
    put("whole", edit.whole.then_some(Value::Bool(true)));
    put("next_table_id", edit.next_table_id.map(Value::from));
    put("sequence_ceiling", edit.sequence_ceiling.map(Value::from));
    put("open_number", edit.open_number.map(Value::from));
    put(
        "log_start",
        edit.log_start.map(|at| {
            let salt = format!("{:016x}", at.salt);
            json!({ "segment": at.segment, "offset": at.offset, "salt": salt })
        }),
    );
    put("closed", edit.closed.then_some(Value::Bool(true)));
    put("created_us", edit.created_us.map(Value::from));
    put("next_keyspace_id", edit.next_keyspace_id.map(Value::from));
    put(
        "log_synced",
        edit.log_synced
            .map(|at| json!({ "segment": at.segment, "offset": at.offset })),
    );
    put(
        "drop",
        (!edit.drop.is_empty()).then(|| edit.drop.clone().into()),
    );
    put(
        "create",
        (!edit.create.is_empty()).then(|| {
            let one = edit.create.iter().map(|create| {
                json!({
                    "id": create.id, "name": create.name, "number": create.sequence,
                    "options": options_json(&create.options),
                })
            });
            one.collect()
        }),
    );
    put(
        "keyspaces",
        (!edit.keyspaces.is_empty()).then(|| {
            let one = edit.keyspaces.iter().map(|change| {
                json!({
                    "id": change.id,
                    "options": change.options.as_ref().map(options_json),
                    "installed": change.covered.iter().map(|r| [r.lo, r.hi]).collect::<Vec<_>>(),
                    "installed_floor": change.covered_floor, "moved_through": change.moved_through,
                    "remove": change.remove.iter()
                        .map(|r| json!({ "level": r.level, "id": r.id }))
                        .collect::<Vec<_>>(),
                    "add": change.add.iter().map(tables).collect::<Vec<_>>(),
                })
            });
            one.collect()
        }),
    );
    Value::Object(value)
}

/// The settings of a keyspace, as a part of a line.
pub fn options_text(options: &StoredOptions) -> String {
    let all = stored_options(options).into_iter();
    let all: Vec<_> = all
        .map(|(name, value)| format!("{name} = {value}"))
        .collect();
    match all.is_empty() {
        true => String::new(),
        false => format!(" with {}", all.join(", ")),
    }
}

/// The settings of a keyspace, as JSON.
pub fn options_json(options: &StoredOptions) -> Value {
    let all = stored_options(options).into_iter();
    Value::Object(all.map(|(name, value)| (name, value.into())).collect())
}

fn print_state(dump: &mut Dump<'_>, state: &StoreState) -> Result<(), Failure> {
    outln!(
        dump.out,
        "\nThe state after that: log from {}, synced through {}{}",
        state.log_start,
        state.log_synced,
        match state.closed {
            true => ", closed there",
            false => "",
        }
    )?;
    for (id, keyspace) in &state.keyspaces {
        let change = keyspace.version.to_edit();
        let mut levels: Vec<(u64, u64, u64)> = Vec::new();
        for add in &change.add {
            let level = usize::from(add.level);
            levels.resize(levels.len().max(level + 1), (0, 0, 0));
            let sum = &mut levels[level];
            sum.0 += 1;
            sum.1 = sum.1.saturating_add(add.table.file_bytes);
            sum.2 = sum.2.saturating_add(add.table.entries);
        }
        outln!(
            dump.out,
            "  keyspace {id} `{}`: {}",
            keyspace.name,
            plural(change.add.len() as u64, "table")
        )?;
        for (level, (tables, file_bytes, entries)) in levels.iter().enumerate() {
            if *tables > 0 {
                outln!(
                    dump.out,
                    "    level {level}: {}, {}, {} entries",
                    plural(*tables, "table"),
                    bytes(*file_bytes),
                    count(*entries)
                )?;
            }
        }
    }
    Ok(())
}

/// Prints `CURRENT`.
pub fn pointer(dump: &mut Dump<'_>, text: &[u8]) -> Result<(), Failure> {
    match Current::decode(text) {
        Ok(current) if dump.args.json => {
            let value = json!({
                "type": "pointer", "offset": 0,

                    "manifest": siltstone::manifest::manifest_name(current.number),
                "store": current.store_id.to_string(), "end_bytes": current.end,
            });
            dump.object(&value)
        }
        Ok(current) => {
            let name = siltstone::manifest::manifest_name(current.number);
            dump.line(
                0,
                format_args!(
                    "the pointer: {name} of store {} is current and has records through byte {}",
                    current.store_id, current.end
                ),
            )
        }
        Err(error) => {
            let offset = error.offset().unwrap_or(0);
            dump.damage(&error.at(offset), Some(text.len() as u64))?;
            super::text::lines(dump, text)
        }
    }
}

//! Tests closed stores: the manifest says where the log ends, so damage to any byte up to that
//! position is found, and bytes before the log's start are not needed.
//!
//! [`check_closed`] compares the files that a close left with the files that remain if power is
//! lost right after it. Then it damages the log of copies at random positions. A copy opens if and
//! only if no needed byte was hit, and then holds everything; `check` finds every hit. A copy whose
//! manifest lost its last record does not open, and neither does one with a log segment of another
//! copy that was written to.
//!
//! Threading: one task.

use siltstone::check::{CheckStorages, check};
use siltstone::inspect::{LogFile, LogItem, ManifestFile, ManifestItem};
use siltstone::log::Position;
use siltstone::log::format::{parse_segment_name, segment_name};
use siltstone::manifest::{manifest_name, recover};
use siltstone::version::StoreState;
use siltstone::{Components, Options, Store};
use siltstone_storage::{CrashPolicy, MemoryStorage, Runtime, Storage};

use super::media::Media;
use crate::checker::{Contents, contents};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// The number of damaged copies of a closed store that are tested.
const HITS: u64 = 3;

/// The state that a manifest describes.
fn state_of(storage: &dyn Storage) -> Result<StoreState, String> {
    let found = recover(storage).map_err(|e| e.to_string())?;
    Ok(StoreState::clone(&found.ok_or("there is no store")?.state))
}

/// Whether the last change of the store was a close. Everything that was acknowledged before it is
/// then durable.
pub(crate) fn is_closed(storage: &MemoryStorage) -> bool {
    state_of(storage).is_ok_and(|state| state.closed)
}

fn options() -> Options {
    Options {
        create_if_missing: false,
        memtable_bytes: 4 << 20,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        stats_file_ms: 0,
        background_tasks: 1,
        ..Options::default()
    }
}

fn open(runtime: &Runtime, media: &Media) -> siltstone::Result<Store> {
    let components = Components::of(media.storages(), runtime.clone());
    Store::open_with(components, options())
}

fn read(runtime: &Runtime, media: &Media) -> Result<Contents, String> {
    let store = open(runtime, media).map_err(|e| format!("a closed store does not open: {e}"))?;
    contents(&store).map_err(|e| e.to_string())
}

/// The end of a segment's records.
fn end_of(log: &MemoryStorage, segment: u32) -> Result<u64, String> {
    let file = log
        .open(&segment_name(segment))
        .map_err(|e| e.to_string())?;
    let mut log = LogFile::open(&*file).map_err(|e| e.to_string())?;
    let mut end = siltstone::log::format::SEGMENT_HEADER_BYTES as u64;
    while let Some(item) = log.next_item().map_err(|e| e.to_string())? {
        if let LogItem::Record(record) = item {
            end = record.end;
        }
    }
    Ok(end)
}

/// Runs the check (see the module) on `media`, as a successful close left them.
pub(crate) fn check_closed(
    runtime: &Runtime,
    media: &Media,
    rng: &mut Rng,
    coverage: &mut Coverage,
) -> Result<(), String> {
    let state = state_of(media.main())?;
    if !state.closed {
        return Err("a store was closed, but its manifest does not say so".into());
    }
    let start = state.log_start;
    let start = Position::new(start.segment as u32, start.offset as u32);
    let end = state.log_synced;
    let end = Position::new(end.segment as u32, end.offset as u32);
    let wanted = read(runtime, &media.end_now(runtime, None))?;
    for policy in [CrashPolicy::LoseUnsynced, CrashPolicy::Seeded(rng.draw())] {
        let lost = media.end_now(runtime, Some(policy));
        if !is_closed(lost.main()) {
            return Err(format!("{policy:?} took the edit of a close"));
        }
        read(runtime, &lost)?
            .same_as(&wanted)
            .map_err(|e| format!("{policy:?} after a close: {e}"))?;
    }
    coverage.add("closed.power_lost");
    lose_last_edit(runtime, media)?;
    swap_log_segment(runtime, media, coverage)?;
    for _ in 0..HITS {
        let copy = media.end_now(runtime, None);
        let mut segments: Vec<u32> = copy
            .log()
            .list()
            .map_err(|e| e.to_string())?
            .iter()
            .filter_map(|object| parse_segment_name(&object.name))
            .filter(|number| (start.segment..=end.segment).contains(number))
            .collect();
        segments.sort_unstable();
        let segment = *rng.pick(&segments);
        let used = end_of(copy.log(), segment)?;
        let from = match rng.chance(30) {
            true => rng.below(64.min(used)),
            false => rng.below(used),
        };
        let name = segment_name(segment);
        let (what, to) = match rng.below(4) {
            0 => ("cut", u64::MAX),
            1 => ("missing", u64::MAX),
            _ => ("flip", from + 1),
        };
        let from = if what == "missing" { 0 } else { from };
        let hit = match what {
            "missing" => {
                let epoch = copy
                    .log()
                    .lease("store")
                    .map_err(|e| e.to_string())?
                    .epoch();
                copy.log().delete(epoch, &name)
            }
            _ => copy.log().damage(&name, |bytes| match what {
                "cut" => bytes.truncate(from as usize),
                _ => bytes[from as usize] ^= 1 << rng.below(8),
            }),
        };
        hit.map_err(|e| e.to_string())?;
        let needed_from = match segment == start.segment {
            true => u64::from(start.offset),
            false => 0,
        };
        let is_needed = to > needed_from && needed_from < used;
        let what = format!("{what} from {from} of {used} in {name}, log from {start} to {end}");
        let storages = copy.storages();
        let checked = check(&CheckStorages::of(&storages), &mut |_| {});
        let checked = checked.map_err(|e| format!("{what}: check: {e}"))?;
        if checked.is_sound() {
            return Err(format!("{what}: check finds nothing"));
        }
        match open(runtime, &copy) {
            Err(error) if !is_needed || !error.is_corruption() || error.file().is_none() => {
                return Err(format!("{what}: {error}"));
            }
            Err(_) => coverage.add("closed.refused"),
            Ok(_) if is_needed => {
                return Err(format!(
                    "{what}: it opens, although a part that is needed is damaged"
                ));
            }
            Ok(store) => {
                let found = contents(&store).map_err(|e| format!("{what}: {e}"))?;
                found.same_as(&wanted).map_err(|e| format!("{what}: {e}"))?;
                if store.stats().counter("skipped_log_damage_count") != 1 {
                    return Err(format!("{what}: nothing is counted"));
                }
                coverage.add("closed.passed");
            }
        }
    }
    Ok(())
}

/// Removes the last record and the seal after it from the manifest of a closed store, as if a disk
/// had never written them. `CURRENT` says how long the manifest was.
fn lose_last_edit(runtime: &Runtime, media: &Media) -> Result<(), String> {
    let copy = media.end_now(runtime, None);
    let found = recover(copy.main()).map_err(|e| e.to_string())?;
    let name = manifest_name(found.ok_or("there is no store")?.current.number);
    let file = copy.main().open(&name).map_err(|e| e.to_string())?;
    let mut manifest = ManifestFile::open(&*file).map_err(|e| e.to_string())?;
    let mut last = None;
    while let Some(item) = manifest.next_item() {
        if let ManifestItem::Record(record) = item {
            last = Some((record.offset, record.end));
        }
    }
    let (start, end) = last.ok_or("a manifest without a record")?;
    copy.main()
        .damage(&name, |bytes| bytes[start as usize..].fill(0))
        .map_err(|e| e.to_string())?;
    let what = format!("{name} lost its last record, {start} to {end}, and what follows");
    must_refuse(runtime, &copy, &what)
}

/// Requires that `check` finds damage, and that the error of an open names a file.
fn must_refuse(runtime: &Runtime, copy: &Media, what: &str) -> Result<(), String> {
    let storages = copy.storages();
    let checked = check(&CheckStorages::of(&storages), &mut |_| {});
    if checked
        .map_err(|e| format!("{what}: check: {e}"))?
        .is_sound()
    {
        return Err(format!("{what}: check finds nothing"));
    }
    match open(runtime, copy) {
        Ok(_) => Err(format!("{what}: it opens")),
        Err(error) if error.is_corruption() && error.file().is_some() => Ok(()),
        Err(error) => Err(format!("{what}: {error}")),
    }
}

/// Writes to two copies of a closed store, and gives one of them the other's log segment with the
/// same name. All records have the same length in both, so that only the chain distinguishes them.
fn swap_log_segment(
    runtime: &Runtime,
    media: &Media,
    coverage: &mut Coverage,
) -> Result<(), String> {
    let copies = [b'a', b'b'].map(|own| -> Result<Media, String> {
        let copy = media.end_now(runtime, None);
        let with_context = |e: siltstone::Error| format!("a copy goes its own way: {e}");
        let store = open(runtime, &copy).map_err(with_context)?;
        let keyspace = store.open_keyspace("chain").map_err(with_context)?;
        keyspace.put(b"chain", [own; 8]).map_err(with_context)?;
        drop(keyspace);
        store.close().map_err(with_context)?;
        Ok(copy)
    });
    let [one, other] = copies;
    let (one, other) = (one?, other?);
    let wanted = read(runtime, &one.end_now(runtime, None))?;
    let start = state_of(one.main())?.log_start;
    let name = segment_name(start.segment as u32);
    let mut bytes = Vec::new();
    let is_there = other.log().damage(&name, |theirs| bytes.clone_from(theirs));
    if is_there.is_err() {
        return Ok(());
    }
    let given = one.log().damage(&name, |ours| ours.clone_from(&bytes));
    given.map_err(|e| e.to_string())?;
    match open(runtime, &one) {
        Err(error) if error.is_corruption() && error.file().is_some() => {
            coverage.add("closed.other_chain_refused");
        }
        Err(error) => return Err(format!("{name} of another copy: {error}")),
        Ok(store) => {
            let found = contents(&store).map_err(|e| e.to_string())?;
            found
                .same_as(&wanted)
                .map_err(|e| format!("{name} of another copy: {e}"))?;
            coverage.add("closed.other_chain_not_needed");
        }
    }
    Ok(())
}

//! Random damage to random stores, and their repair.
//!
//! A seed draws a history (by the clients of the other trials: keyspaces, overwrites, deletes,
//! range deletes, snapshots, compactions, ingests, an unflushed log), then damages copies of the
//! folder in several ways each, repairs them, and compares the new store with the model:
//!
//! - (a) An entry in a table whose block was not damaged is there, or a newer entry of its key.
//! - (b) No pair is there that was never written.
//! - (c), (d) Everything that differs from the model lies in a suspect range of the report,
//!   including its number; everything else is exact. There is one exception: the last records of
//!   the log, if nothing shows that they existed (then the report must call the log's end unclear,
//!   or there must be zeros). The manifest of a store that was closed says where the log ends, and
//!   then there is no exception.
//!
//! Threading: each trial is a run of the simulated runtime.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::manifest::recover;
use siltstone::repair::{LostWhat, RepairOptions, RepairReport, RepairSource, repair};
use siltstone::{Components, FlushVerify, Options, Store};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::footer::Footer;
use siltstone_table::reader::{ReaderOptions, TableReader};
use siltstone_table::salvage::PieceReader;

use super::{Run, simulate};
use crate::checker::show;
use crate::coverage::Coverage;
use crate::model::Model;
use crate::rng::Rng;
use crate::workload::draw_options;

/// The number of damaged copies of a history.
const DAMAGED_COPIES: u64 = 5;

/// The objects of a folder.
pub(super) type Folder = BTreeMap<String, Vec<u8>>;

/// A sound store, with the positions that are worth damaging.
struct Sound {
    folder: Folder,
    /// Blocks of live tables, by file: start and end in bytes, and the entries.
    blocks: Vec<LiveBlock>,
    /// The ends of the used parts of files with reserved space.
    used_bytes: BTreeMap<String, usize>,
    model: Model,
}

struct LiveBlock {
    file: String,
    keyspace: u32,
    start: usize,
    end: usize,
    /// The table was ingested, so only the manifest has the sequence number of its entries.
    is_ingested: bool,
    /// The key, the number, and whether it is a put.
    entries: Vec<(Vec<u8>, u64, bool)>,
}

pub(super) fn read_folder(storage: &dyn Storage) -> Result<Folder, String> {
    let text = |e: siltstone_storage::StorageError| e.to_string();
    let mut folder = Folder::new();
    for object in storage.list().map_err(text)? {
        let file = storage.open(&object.name).map_err(text)?;
        let mut bytes = vec![0; file.len() as usize];
        file.read_at(0, &mut bytes).map_err(text)?;
        folder.insert(object.name, bytes);
    }
    Ok(folder)
}

fn write_folder(runtime: &Runtime, folder: &Folder) -> Result<MemoryStorage, String> {
    let text = |e: siltstone_storage::StorageError| e.to_string();
    let storage = MemoryStorage::new(runtime);
    let lease = storage.lease("store").map_err(text)?;
    for (name, bytes) in folder {
        let file = storage.create(lease.epoch(), name).map_err(text)?;
        file.append(&[bytes]).map_err(text)?;
        file.sync().map_err(text)?;
    }
    storage.sync_dir(lease.epoch()).map_err(text)?;
    Ok(storage)
}

/// The end of the last byte that is not zero.
fn used(bytes: &[u8]) -> usize {
    bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1)
}

impl Sound {
    fn of(image: &MemoryStorage, model: Model) -> Result<Sound, String> {
        let folder = read_folder(image)?;
        let state = recover(image)
            .map_err(|e| e.to_string())?
            .ok_or("no store")?
            .state;
        let mut blocks = Vec::new();
        let mut reader = PieceReader::default();
        for (id, keyspace) in &state.keyspaces {
            for (_, meta) in keyspace.version.tables() {
                let file = image.open(&meta.name).map_err(|e| e.to_string())?;
                let options = ReaderOptions {
                    map: false,
                    ..ReaderOptions::default()
                };
                let table = TableReader::open(file.clone(), options).map_err(|e| e.to_string())?;
                for i in 0..table.index().len() {
                    let place = table.index().place(i);
                    reader.read(&*file, place).map_err(|e| e.to_string())?;
                    blocks.push(LiveBlock {
                        file: meta.name.clone(),
                        keyspace: *id,
                        start: place.start as usize,
                        end: place.end as usize,
                        is_ingested: meta.sequence_override.is_some(),
                        entries: (0..reader.len())
                            .map(|i| {
                                let own = reader.trailer(i);
                                let number = meta.sequence_override.unwrap_or(own >> 8);
                                (reader.key(i).to_vec(), number, own & 0xff == 1)
                            })
                            .collect(),
                    });
                }
            }
        }
        let used_bytes = folder
            .iter()
            .map(|(name, bytes)| (name.clone(), used(bytes)))
            .collect();
        Ok(Sound {
            folder,
            blocks,
            used_bytes,
            model,
        })
    }
}

/// The damage that was done to a copy.
#[derive(Default)]
struct Damaged {
    descriptions: Vec<String>,
    files: BTreeSet<String>,
    /// Bytes of the log were zeroed, cut off or deleted, so losses at the log's end leave no trace.
    log_without_trace: bool,
}

fn kind_of(name: &str) -> &'static str {
    match name {
        "CURRENT" => "current",
        n if n.starts_with("MANIFEST-") => "manifest",
        n if n.ends_with(".log") => "log",
        n if n.ends_with(".tbl") => "table",
        _ => "other",
    }
}

/// Draws a position in a file: anywhere in its used part, or in a part of a table that random
/// positions rarely hit.
fn draw_place(rng: &mut Rng, sound: &Sound, name: &str, bytes: &[u8]) -> usize {
    let most = sound
        .used_bytes
        .get(name)
        .copied()
        .unwrap_or(0)
        .clamp(1, bytes.len().max(1));
    if kind_of(name) == "table"
        && bytes.len() >= 64
        && let Ok(raw) = <&[u8; 64]>::try_from(&bytes[bytes.len() - 64..])
        && let Ok(footer) = Footer::decode(raw, name, bytes.len() as u64)
    {
        let sections = footer.sections();
        let part = rng.index(7);
        let (start, len) = match part {
            0..5 => (
                sections[..part].iter().sum::<u64>() as usize,
                sections[part] as usize,
            ),
            5 => (bytes.len() - 64, 64),
            _ => (0, bytes.len()),
        };
        if len > 0 {
            return start + rng.index(len);
        }
    }
    if rng.chance(30) {
        // The end has the newest data.
        return most.saturating_sub(1 + rng.index(most.min(200)));
    }
    rng.index(most)
}

fn damage_once(rng: &mut Rng, sound: &Sound, folder: &mut Folder, done: &mut Damaged) {
    let wanted = *rng.pick(&[
        "table", "table", "table", "log", "log", "manifest", "current",
    ]);
    let names: Vec<String> = folder
        .keys()
        .filter(|n| kind_of(n) == wanted)
        .cloned()
        .collect();
    let Some(name) = (!names.is_empty()).then(|| rng.pick(&names).clone()) else {
        return;
    };
    let mut bytes = folder[&name].clone();
    let place = draw_place(rng, sound, &name, &bytes);
    let most = *rng.pick(&[1, 8, 64, 700, 5000]);
    let end = (place + 1 + rng.index(most)).min(bytes.len());
    let is_log = wanted == "log";
    let what = match rng.below(12) {
        0..5 if !bytes.is_empty() => {
            bytes[place] ^= 1 << rng.below(8);
            "a flipped bit"
        }
        5 | 6 => {
            bytes[place..end].fill(0);
            done.log_without_trace |= is_log;
            "zeros"
        }
        7 => {
            bytes[place..end]
                .iter_mut()
                .for_each(|b| *b = rng.draw() as u8);
            "noise"
        }
        8 => {
            bytes.truncate(place);
            done.log_without_trace |= is_log;
            "a cut"
        }
        9 => {
            folder.remove(&name);
            done.files.insert(name.clone());
            done.log_without_trace |= is_log;
            done.descriptions.push(format!("{name}: deleted"));
            return;
        }
        10 => {
            let other = rng.pick(&names).clone();
            let theirs = folder[&other].clone();
            folder.insert(name.clone(), theirs);
            folder.insert(other.clone(), bytes);
            done.files.extend([name.clone(), other.clone()]);
            done.log_without_trace |= is_log && name != other;
            done.descriptions
                .push(format!("{name} and {other}: swapped"));
            return;
        }
        _ => {
            let from = rng.index(bytes.len().max(1));
            let part: Vec<u8> = bytes[from..].iter().take(end - place).copied().collect();
            bytes[place..place + part.len().min(end - place)]
                .copy_from_slice(&part[..part.len().min(end - place)]);
            done.log_without_trace |= is_log && part.iter().all(|b| *b == 0);
            "bytes of another place"
        }
    };
    done.descriptions
        .push(format!("{name}: {what} at {place} to {end}"));
    done.files.insert(name.clone());
    folder.insert(name, bytes);
}

/// The contents of the new store: the number and value of each key by keyspace, and the names of
/// the keyspaces.
struct Made {
    entries: BTreeMap<(u32, Vec<u8>), (u64, Vec<u8>)>,
    names: BTreeMap<u32, String>,
}

impl Made {
    fn read(runtime: &Runtime, target: &MemoryStorage) -> Result<Made, String> {
        let text = |e: siltstone::Error| e.to_string();
        let checked = check(&CheckStorages::on(target), &mut |_| {}).map_err(text)?;
        if !checked.is_sound() || !checked.orphans.is_empty() || !checked.foreign.is_empty() {
            return Err(format!(
                "the new store is not sound: {:?} {:?} {:?}",
                checked.problems, checked.orphans, checked.foreign
            ));
        }
        let state = recover(target)
            .map_err(text)?
            .ok_or("no store was made")?
            .state;
        let mut made = Made {
            entries: BTreeMap::new(),
            names: state
                .keyspaces
                .iter()
                .map(|(id, k)| (*id, k.name.clone()))
                .collect(),
        };
        let mut reader = PieceReader::default();
        for (id, keyspace) in &state.keyspaces {
            for (_, meta) in keyspace.version.tables() {
                let file = target.open(&meta.name).map_err(|e| e.to_string())?;
                let table = TableReader::open(file.clone(), ReaderOptions::default())
                    .map_err(|e| e.to_string())?;
                for i in 0..table.index().len() {
                    reader
                        .read(&*file, table.index().place(i))
                        .map_err(|e| e.to_string())?;
                    for i in 0..reader.len() {
                        let entry = (reader.trailer(i) >> 8, reader.value(i).to_vec());
                        let key = (*id, reader.key(i).to_vec());
                        if made.entries.insert(key, entry).is_some() {
                            return Err("a key is there twice".to_string());
                        }
                    }
                }
            }
        }
        // The store opens, and a scan returns the same.
        let storage: Arc<dyn Storage> = Arc::new(target.clone());
        let options = Options {
            flush_verify: FlushVerify::All,
            memtable_bytes: 64 << 10,
            log_segment_bytes: 64 << 10,
            log_bytes_max: 256 << 10,
            create_if_missing: false,
            ..Options::default()
        };
        let store =
            Store::open_with(Components::on(storage, runtime.clone()), options).map_err(text)?;
        let mut count = 0;
        for (id, name) in &made.names {
            let keyspace = store.keyspace(name).map_err(text)?;
            for pair in keyspace.iter().map_err(text)? {
                let (key, value) = pair.map_err(text)?;
                let (_, of_table) = made.entries.get(&(*id, key.clone())).ok_or_else(|| {
                    format!("a scan shows {} of {name}, no table has it", show(&key))
                })?;
                if *of_table != value {
                    return Err(format!("a scan shows another value of {}", show(&key)));
                }
                count += 1;
            }
        }
        if count != made.entries.len() {
            return Err(format!(
                "a scan shows {count} pairs of {}",
                made.entries.len()
            ));
        }
        store.close().map_err(text)?;
        Ok(made)
    }
}

/// Checks the rules (see the module).
fn verify(
    sound: &Sound,
    damaged: &Folder,
    done: &Damaged,
    report: &RepairReport,
    made: &Made,
) -> Result<(), String> {
    let model = &sound.model;
    let last = model.last();
    let live = model.keyspaces(last);
    let logged = report.log.last_number;
    // The log's last records are lost, and nothing shows that they existed.
    let log_is_cut = done.files.iter().any(|f| kind_of(f) == "log") && logged < last;
    // If the store was closed, the report must say that the log is cut.
    let may_be_cut = log_is_cut
        && report.log.closed_end.is_none()
        && (done.log_without_trace || !report.log.end_is_clear);
    // (b)
    for ((id, key), (number, value)) in &made.entries {
        let written = model
            .between(*id, key, number.saturating_sub(1), *number)
            .contains(&Some(value[..].into()));
        if !written {
            return Err(format!(
                "(b) {} of keyspace {id} was never written with number {number} and {} bytes",
                show(key),
                value.len()
            ));
        }
    }
    // (c), (d)
    for (name, id) in &live {
        let Some(made_name) = made.names.get(id) else {
            // Only the record of its creation named it.
            if report.log.holes.is_empty() && report.manifest_is_whole && !may_be_cut {
                return Err(format!("keyspace {name} is gone"));
            }
            continue;
        };
        let lost_name = made_name.starts_with("repaired-");
        let loss_is_reported =
            !report.log.holes.is_empty() || !report.manifest_is_whole || may_be_cut;
        if made_name != name && !(lost_name && loss_is_reported) {
            return Err(format!("keyspace {name} is called {made_name}"));
        }
        let mut keys: BTreeSet<Vec<u8>> = model.keys(*id).iter().map(|k| k.to_vec()).collect();
        keys.extend(
            made.entries
                .keys()
                .filter(|(k, _)| k == id)
                .map(|(_, key)| key.clone()),
        );
        for key in keys {
            let entry = made.entries.get(&(*id, key.clone()));
            let value = entry.map(|(_, value)| &value[..]);
            let wanted = model.get(*id, &key, last);
            let number = entry.map_or(0, |(number, _)| *number);
            let suspect = report.is_suspect(*id, &key, number);
            if report.strict && suspect && entry.is_some() {
                return Err(format!("strict left {} in, which is suspect", show(&key)));
            }
            if value == wanted.as_deref() {
                continue;
            }
            let cut = may_be_cut
                && model
                    .between(*id, &key, logged, last)
                    .iter()
                    .any(|v| v.as_deref() == value);
            let left_out = report.strict
                && wanted.is_some()
                && value.is_none()
                && report
                    .suspects
                    .iter()
                    .any(|s| s.keyspace == *id && s.range.contains(&key));
            if !suspect && !cut && !left_out {
                return Err(format!(
                    "(d) {} of {name}: {:?} bytes at {number}, written {:?} bytes; logged {logged} \
                    of {last}; not suspect",
                    show(&key),
                    value.map(<[u8]>::len),
                    wanted.map(|v| v.len())
                ));
            }
        }
    }
    for (id, name) in &made.names {
        let is_live = live.values().any(|l| l == id);
        let loss_is_reported =
            !report.manifest_is_whole || !report.log.holes.is_empty() || may_be_cut;
        if !is_live && !loss_is_reported {
            return Err(format!("keyspace {name} ({id}) was dropped or never there"));
        }
    }
    // (a)
    if report.strict {
        return Ok(());
    }
    for block in &sound.blocks {
        let bytes = &sound.folder[&block.file][block.start..block.end];
        let intact = damaged
            .get(&block.file)
            .is_some_and(|f| f.get(block.start..block.end) == Some(bytes))
            || damaged.values().any(|f| *f == sound.folder[&block.file]);
        let manifest_is_hit = done
            .files
            .iter()
            .any(|f| matches!(kind_of(f), "manifest" | "current"));
        // The end of the manifest is lost without a trace (docs/format/manifest.md says how), and
        // an older state names tables that were replaced. From the tables that replaced them the
        // repair takes only entries in the ranges of the missing ones, and it reports the loss.
        let is_older = manifest_is_hit
            && report.lost.iter().any(|lost| {
                matches!(lost.what, LostWhat::Table)
                    && !done.files.contains(&lost.file)
                    && !sound.folder.contains_key(&lost.file)
            });
        // Only the manifest (or the log) showed which keyspace it belongs to, or that it was
        // ingested at all.
        let nameless = manifest_is_hit && done.files.contains(&block.file)
            || block.is_ingested && !report.manifest_is_whole;
        if !intact || nameless || is_older || !live.values().any(|id| *id == block.keyspace) {
            continue;
        }
        for (key, number, is_put) in &block.entries {
            let found = made
                .entries
                .get(&(block.keyspace, key.clone()))
                .map(|e| e.0);
            let shadowed = model
                .between(block.keyspace, key, *number, last)
                .contains(&None);
            let there = match found {
                Some(found) => found >= *number,
                None => !is_put || shadowed,
            };
            if !there {
                return Err(format!(
                    "(a) {}..{}:  {} of keyspace {}, number {number}, lies in a sound block of {} \
                    at {}, and the new store has {found:?}",
                    block.start,
                    block.end,
                    show(key),
                    block.keyspace,
                    block.file,
                    block.start
                ));
            }
        }
    }
    Ok(())
}

/// A copy of a store, damaged at a few positions.
pub(super) fn damaged_copy(
    runtime: &Runtime,
    rng: &mut Rng,
    image: &MemoryStorage,
    model: Model,
) -> Result<MemoryStorage, String> {
    let sound = Sound::of(image, model)?;
    let (mut folder, mut done) = (sound.folder.clone(), Damaged::default());
    for _ in 0..1 + rng.below(3) {
        damage_once(rng, &sound, &mut folder, &mut done);
    }
    write_folder(runtime, &folder)
}

/// A history, and the folder that a killed process left.
pub(crate) fn history(runtime: &Runtime, rng: &mut Rng) -> Result<(Run, MemoryStorage), String> {
    let mut run = Run::new(runtime, rng);
    let mut medium = MemoryStorage::new(runtime);
    for life in 0..1 + rng.below(2) {
        let options = draw_options(rng);
        let world = run.must_open(&medium, &options, &format!("life {life}"))?;
        world.take_settings(false)?;
        run.work(&world, 1 + rng.below(2), 20 + rng.below(80), rng)?;
        if rng.chance(30) {
            run.check_all(&world, rng)?;
        }
        if rng.chance(30) {
            world.store.flush().map_err(|e| e.to_string())?;
            let keyspace = world.store.keyspaces().into_iter().next();
            if let Some(keyspace) = keyspace.and_then(|name| world.store.keyspace(&name).ok()) {
                keyspace
                    .compact_range(None, None)
                    .map_err(|e| e.to_string())?;
            }
            run.work(&world, 1, rng.below(30), rng)?;
        }
        // Acknowledged writes are in the page cache, whatever the process does now.
        let image = medium.kill_in(runtime);
        let model = run.model();
        run.close(&world).map_err(|e| e.to_string())?;
        drop(world);
        medium = if rng.chance(50) {
            image
        } else {
            medium.kill_in(runtime)
        };
        run.settle_at(model.last());
    }
    Ok((run, medium))
}

/// Whether no file is left from which a store could be made (a pointer alone is not enough).
fn holds_no_store(folder: &Folder) -> bool {
    let mut names = folder.keys();
    !names.any(|n| n.starts_with("MANIFEST-") || n.ends_with(".log") || n.ends_with(".tbl"))
}

/// Runs one seed: a history, and several damaged copies of it.
///
/// # Panics
/// If a repair breaks a rule.
pub fn repair_trial(seed: u64) -> Coverage {
    simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed ^ 0x4E9A);
        let (mut run, image) = history(&runtime, &mut rng)?;
        let sound = Sound::of(&image, run.model())?;
        for copy in 0..DAMAGED_COPIES {
            let mut folder = sound.folder.clone();
            let mut done = Damaged::default();
            // The first copy is not damaged.
            let damages = if copy == 0 {
                0
            } else {
                1 + rng.below(3) * rng.below(2)
            };
            for _ in 0..damages {
                damage_once(&mut rng, &sound, &mut folder, &mut done);
            }
            let strict = rng.chance(20);
            let what = format!("copy {copy}, strict {strict}, {:?}", done.descriptions);
            let source = write_folder(&runtime, &folder)?;
            let target = MemoryStorage::new(&runtime);
            let options = RepairOptions {
                strict,
                table_bytes: 64 << 10 << rng.below(3),
                block_bytes: 1 << 10 << rng.below(3),
                ..RepairOptions::default()
            };
            let storage: Arc<dyn Storage> = Arc::new(target.clone());
            let from = RepairSource::on(Arc::new(source.clone()));
            let report = match repair(&from, &storage, &runtime, &options, &mut |_| {}) {
                Ok(report) => report,
                Err(e) if e.kind() == siltstone::ErrorKind::NotFound && holds_no_store(&folder) => {
                    run.coverage.add("repair.nothing_there");
                    continue;
                }
                Err(e) => return Err(format!("{what}: {e}")),
            };
            if read_folder(&source)? != folder {
                return Err(format!("{what}: the source was changed"));
            }
            let checked = Made::read(&runtime, &target).and_then(|made| {
                if damages == 0 && !report.lost_nothing() {
                    return Err("a sound store has lost something".to_string());
                }
                verify(&sound, &folder, &done, &report, &made)
            });
            checked.map_err(|e| format!("{what}: {e}\n{report}"))?;
            reach(&mut run.coverage, &report, &done);
        }
        Ok(run.coverage)
    })
}

fn reach(coverage: &mut Coverage, report: &RepairReport, done: &Damaged) {
    coverage.add("repair.done");
    for file in &done.files {
        coverage.add(&format!("repair.damaged.{}", kind_of(file)));
    }
    for lost in &report.lost {
        coverage.add(&format!("repair.lost.{}", lost.what.word()));
    }
    for suspect in &report.suspects {
        coverage.add(&format!("repair.suspect.{}", suspect.why.word()));
    }
    if report.log.is_broken {
        coverage.add("repair.log_broken");
    }
    if !report.unused.is_empty() {
        coverage.add("repair.unused");
    }
    if report.keyspaces.iter().any(|k| k.left_out_key_count > 0) {
        coverage.add("repair.left_out");
    }
    if report.lost_nothing() {
        coverage.add("repair.lost_nothing");
    }
}

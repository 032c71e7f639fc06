//! Damage at rest: a trial changes one position of one file of a store, and then reads everything.
//!
//! A seed makes an image of a store (by the clients of the other trials; or a checkpoint; or a
//! store in three folders), and damages copies of it at one position of one file each. A copy of a
//! closed store is checked, opened, read, compacted, opened again and read once more. A store that
//! is open with `verify = always` is hit between two reads. A table outside is hit before it is
//! ingested.
//!
//! - Whichever byte was hit, every answer is right or an error that names a file. There is no panic
//!   and no hang (the simulated runtime detects both).
//! - A store that `check` finds sound has no error later.
//! - The log: a hit at a position that the manifest or a later record knows to be synced is
//!   refused. Otherwise the history may end at the record that was hit, and no earlier, the same
//!   for all keyspaces; valid records after it are counted. What a record knows is what it would
//!   say if every record said it. That must be at least what was acknowledged as synced before the
//!   record was appended ([`History::synced_before`](crate::observe::History::synced_before)), so
//!   that the trial does not become weaker together with the format.
//! - The log of a store that was closed is whole up to its end, or the open is refused. Damage
//!   before the log's start does not refuse the open and loses nothing: it is counted, and `check`
//!   finds it.
//! - The manifest: a record that was hit is refused, the last one too. Damage without a trace
//!   (zeros, a cut) may be refused, or may lose settings that were the last change, but never data.
//!
//! Threading: each flip is a run of the simulated runtime.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone::check::{CheckStorages, check};
use siltstone::inspect::{LogFile, LogItem, ManifestFile, ManifestItem, TableFile};
use siltstone::log::Position;
use siltstone::manifest::recover;
use siltstone::{
    ByLevel, Components, Compression, ErrorKind, FlushVerify, IngestMode, KeyspaceOptions, Options,
    Storages, Store, SyncMode, TableBuilder, TableFolder, TableOptions, Verify,
};
use siltstone_storage::{Epoch, MemoryStorage, Runtime, Storage};

mod damage;
mod log_records;
mod reading;

use damage::{Damage, FileKind, Hit, hit};
use log_records::{LogRecord, log_of, unit_start};
use reading::{Answers, Wanted, names_a_file, read_all};

use super::repair::history;
use super::simulate;
use crate::checker::find_prefix;
use crate::coverage::Coverage;
use crate::model::{Bytes, Model, Pairs};
use crate::observe::lock;
use crate::rng::Rng;

/// The number of flips of one seed's store.
pub const FLIPS: u64 = 100;

/// The folders of a store: its own first, then those of the log and the tables if they differ.
#[derive(Clone)]
struct Place(Vec<MemoryStorage>);

impl Place {
    fn fork(&self, runtime: &Runtime) -> Place {
        Place(self.0.iter().map(|m| m.kill_in(runtime)).collect())
    }

    fn storages(&self) -> Storages {
        let all: Vec<Arc<dyn Storage>> = self
            .0
            .iter()
            .map(|m| Arc::new(m.clone()) as Arc<dyn Storage>)
            .collect();
        match &all[..] {
            [manifest, log, tables] => Storages {
                manifest: manifest.clone(),
                log: log.clone(),
                tables: tables.clone(),
                redirect: None,
            },
            _ => Storages::on(all[0].clone()),
        }
    }

    fn open(&self, runtime: &Runtime, options: &Options) -> siltstone::Result<Store> {
        let components = Components::of(self.storages(), runtime.clone());
        Store::open_with(components, options.clone())
    }

    /// The folder and name of every file.
    fn files(&self) -> Result<Vec<(usize, String)>, String> {
        let mut all = Vec::new();
        for (i, storage) in self.0.iter().enumerate() {
            let found = storage.list().map_err(|e| e.to_string())?;
            all.extend(found.into_iter().map(|o| (i, o.name)));
        }
        Ok(all)
    }

    /// A file of a random existing kind; log and manifest and tables are more likely than the other
    /// kinds.
    fn draw_file(
        &self,
        rng: &mut Rng,
        left_out: Option<FileKind>,
    ) -> Result<(usize, String), String> {
        let mut kinds: BTreeMap<FileKind, Vec<(usize, String)>> = BTreeMap::new();
        for (folder, name) in self.files()? {
            let kind = FileKind::of(&name);
            if Some(kind) != left_out {
                kinds.entry(kind).or_default().push((folder, name));
            }
        }
        let weights = |kind: FileKind| match kind {
            FileKind::Log | FileKind::Manifest | FileKind::Table => 4,
            _ => 1,
        };
        let all: u64 = kinds.keys().map(|k| weights(*k)).sum();
        let mut at = rng.below(all);
        for (kind, files) in &kinds {
            if at < weights(*kind) {
                return Ok(rng.pick(files).clone());
            }
            at -= weights(*kind);
        }
        Err("there is no file".into())
    }
}

/// A store before any byte is hit.
struct Sound {
    place: Place,
    wanted: Wanted,
    /// The history of the writes, if the log may be hit.
    model: Option<Model>,
    /// The settings of its keyspaces.
    settings: BTreeMap<String, KeyspaceOptions>,
    keys: Vec<Bytes>,
    log: Vec<LogRecord>,
    /// No record before this position is needed.
    log_start: Position,
    manifest_synced: Position,
    /// Whether the store was closed with its log ending at `manifest_synced`.
    closed: bool,
    /// The manifest in use, and the bounds of its header and its edits. Between them are seals.
    manifest: (String, Vec<(u64, u64)>),
    /// The end of the part of the manifest that later bytes confirm. This is all of it, unless the
    /// process died between the last edit's sync and its seal.
    vouched_bytes: u64,
    /// The end of the manifest when `CURRENT` was written, as in `CURRENT`.
    named_bytes: u64,
    is_checkpoint: bool,
}

/// Options to open any store for comparison, with enough memory for all of its log.
fn draw_options(rng: &mut Rng) -> Options {
    Options {
        create_if_missing: false,
        memtable_bytes: *rng.pick(&[64 << 10, 4 << 20]),
        log_segment_bytes: 64 << 10,
        log_bytes_max: 1 << 20,
        stats_file_ms: 0,
        flush_verify: FlushVerify::All,
        verify: *rng.pick(&[Verify::Once, Verify::Always]),
        map_tables: rng.chance(50),
        block_cache_bytes: *rng.pick(&[0, 1 << 20]),
        background_tasks: 1 + rng.below(2) as u32,
        ..Options::default()
    }
}

impl Sound {
    fn of(
        place: Place,
        wanted: Wanted,
        model: Option<Model>,
        synced_before: &BTreeMap<u64, u64>,
        keys: Vec<Bytes>,
        is_checkpoint: bool,
    ) -> Result<Sound, String> {
        let found = recover(&place.0[0])
            .map_err(|e| e.to_string())?
            .ok_or("there is no store")?;
        let start = found.state.log_start;
        let log_start = Position::new(start.segment as u32, start.offset as u32);
        let log = match &model {
            Some(_) => log_of(&place.0[0], log_start.segment, synced_before)?,
            None => Vec::new(),
        };
        let name = siltstone::manifest::manifest_name(found.current.number);
        let synced = found.state.log_synced;
        let file = place.0[0].open(&name).map_err(|e| e.to_string())?;
        let mut file = ManifestFile::open(&*file).map_err(|e| e.to_string())?;
        let mut parts = vec![(0, 48)];
        let mut vouched_bytes = 0;
        while let Some(item) = file.next_item() {
            match item {
                ManifestItem::Record(record) => {
                    // The first record, which has the whole state, was synced before the pointer
                    // named the manifest.
                    vouched_bytes = match parts.len() {
                        1 => record.end,
                        _ => record.offset,
                    };
                    parts.push((record.offset, record.end));
                }
                ManifestItem::Seal { offset, is_whole } if is_whole => vouched_bytes = offset,
                _ => {}
            }
        }
        if parts.last().is_none_or(|part| part.1 != found.end.offset) {
            return Err("a manifest's records end at two places".into());
        }
        Ok(Sound {
            wanted,
            model,
            settings: BTreeMap::new(),
            keys,
            log,
            log_start,
            manifest_synced: Position::new(synced.segment as u32, synced.offset as u32),
            closed: found.state.closed,
            manifest: (name, parts),
            vouched_bytes,
            named_bytes: found.current.end,
            is_checkpoint,
            place,
        })
    }

    /// Reads the settings that an open shows. There may be more of them than in the manifest,
    /// because creations may be in the log.
    fn read_settings(&mut self, runtime: &Runtime) -> Result<(), String> {
        let store = self
            .place
            .fork(runtime)
            .open(runtime, &draw_options(&mut Rng::new(0)))
            .map_err(|e| format!("a sound store does not open: {e}"))?;
        self.settings = settings_of(&store)?;
        store.close().map_err(|e| e.to_string())
    }
}

fn settings_of(store: &Store) -> Result<BTreeMap<String, KeyspaceOptions>, String> {
    let mut all = BTreeMap::new();
    for name in store.keyspaces() {
        let keyspace = store.keyspace(&name).map_err(|e| e.to_string())?;
        all.insert(name, keyspace.own_options());
    }
    Ok(all)
}

fn wanted_of(model: &Model, number: u64) -> Wanted {
    let live = model.keyspaces(number).into_iter();
    live.map(|(name, id)| (name, (id, model.state(id, number))))
        .collect()
}

/// A store in three folders, with a different codec in each keyspace, tables on two levels and a
/// log that is not flushed.
fn in_three_folders(runtime: &Runtime, rng: &mut Rng) -> Result<Sound, String> {
    let text = |e: siltstone::Error| e.to_string();
    let place = Place(
        ["/store", "/fast", "/large"]
            .map(|name| MemoryStorage::named(runtime, name))
            .to_vec(),
    );
    let options = Options {
        create_if_missing: true,
        sync: *rng.pick(&[SyncMode::Always, SyncMode::Never]),
        ..draw_options(rng)
    };
    let store = place.open(runtime, &options).map_err(text)?;
    let mut wanted = Wanted::new();
    let mut keys: Vec<Bytes> = Vec::new();
    for (name, codec) in [
        ("default", Compression::None),
        ("fast", Compression::Lz4),
        ("small", Compression::Zstd(1)),
    ] {
        let own = KeyspaceOptions {
            compression: ByLevel::of(&[codec]),
            ..KeyspaceOptions::default()
        };
        let keyspace = if name == "default" {
            store.default_keyspace().map_err(text)?
        } else {
            store.create_keyspace_with(name, &own).map_err(text)?
        };
        let mut pairs = Pairs::new();
        for i in 0..60 + rng.below(60) {
            let key: Bytes = format!("key-{:04}", rng.below(200)).into_bytes().into();
            let value: Bytes = vec![i as u8; rng.index(400)].into();
            keyspace.put(&key, &value).map_err(text)?;
            keys.push(key.clone());
            pairs.insert(key, value);
            if i == 30 {
                keyspace.flush().map_err(text)?;
                keyspace.compact_range(None, None).map_err(text)?;
            }
            if i == 50 {
                keyspace.flush().map_err(text)?;
            }
        }
        wanted.insert(name.to_string(), (keyspace.id(), pairs));
    }
    keys.sort();
    keys.dedup();
    let image = if rng.chance(50) {
        place.fork(runtime)
    } else {
        store.close().map_err(text)?;
        place.fork(runtime)
    };
    Sound::of(image, wanted, None, &BTreeMap::new(), keys, false)
}

/// Makes the image from which a seed's copies are made.
fn make(runtime: &Runtime, seed: u64, rng: &mut Rng) -> Result<Sound, String> {
    let mut sound = if seed.is_multiple_of(6) {
        in_three_folders(runtime, rng)?
    } else {
        let (run, image) = history(runtime, rng)?;
        let keys = run.plan.keys.clone();
        let model = run.model();
        if seed % 6 == 1 {
            let world = run.must_open(&image, &draw_options(rng), "for a checkpoint")?;
            let target = MemoryStorage::new(runtime);
            let copy = world
                .checkpoint_to(Arc::new(target.clone()), &target)?
                .ok_or("there is no checkpoint")?;
            let wanted = copy.keyspaces.into_iter();
            let wanted = wanted.map(|(name, (id, pairs, _))| (name, (id, pairs)));
            let wanted = wanted.collect();
            world.store.clone().close().map_err(|e| e.to_string())?;
            let place = Place(vec![target.kill_in(runtime)]);
            Sound::of(place, wanted, None, &BTreeMap::new(), keys, true)?
        } else {
            let wanted = wanted_of(&model, model.last());
            let synced_before = lock(&run.history).synced_before.clone();
            let place = Place(vec![image]);
            Sound::of(place, wanted, Some(model), &synced_before, keys, false)?
        }
    };
    sound.read_settings(runtime)?;
    Ok(sound)
}

/// The results that a hit allows.
struct Justified {
    /// The open may be refused.
    refused: bool,
    /// The history may end here, at this number.
    ends_at: Option<u64>,
    /// The settings must be as before.
    settings: bool,
    /// Valid records of the chain lie after the hit.
    records_behind: bool,
    /// The damage is in a part of the log that is not needed.
    passed: bool,
}

fn justified(sound: &Sound, hit: &Hit) -> Justified {
    let mut just = Justified {
        refused: false,
        ends_at: None,
        settings: true,
        records_behind: false,
        passed: false,
    };
    match hit.kind {
        FileKind::Current => just.refused = true,
        FileKind::Manifest if hit.name == sound.manifest.0 => {
            let parts = &sound.manifest.1;
            let end = parts.last().map_or(0, |part| part.1);
            // An intact seal after the last record confirms it, or `CURRENT` does.
            let is_named = hit.first < sound.named_bytes;
            let is_vouched_for = hit.end <= sound.vouched_bytes || is_named;
            let is_part = |at: u64| {
                parts
                    .iter()
                    .any(|(start, end)| (*start..*end).contains(&at))
            };
            let meets_named = |(start, part_end): &(u64, u64)| {
                hit.touches(*start..*part_end) && *part_end <= sound.named_bytes
            };
            just.refused = hit.damage == Damage::Gone
                || is_named && parts.iter().any(meets_named)
                || is_vouched_for && (is_part(hit.first) || is_part(hit.end - 1));
            just.settings = is_vouched_for || hit.first >= end;
        }
        FileKind::Log => {
            let Some(number) = siltstone::log::format::parse_segment_name(&hit.name) else {
                return just;
            };
            // The first record that is damaged, and the end of the records before it.
            let own = |r: &LogRecord| r.start.segment == number;
            let start = sound.log_start;
            let is_left = |r: &LogRecord| !own(r) || !hit.touches(u64::from(r.start.offset)..r.end);
            // Damage to bytes that are not needed is skipped, unless the segment ends before the
            // log start and the store was not closed. In that case the log after it may be missing
            // too.
            let reaches_start = hit.damage != Damage::Gone && hit.new_bytes >= start.offset.into();
            just.passed = number == start.segment
                && hit.first < start.offset.into()
                && (sound.closed || reaches_start);
            let is_header = hit.first < 64 && !just.passed;
            let is_lost = |r: &LogRecord| match just.passed {
                true => r.start >= start && !is_left(r),
                false => own(r) && (is_header || r.end > hit.first),
            };
            let lost = sound.log.iter().position(is_lost);
            let bad = match lost {
                _ if is_header && number == start.segment => Position::new(number, 0),
                None => return just,
                Some(lost) if is_header => match lost.checked_sub(1) {
                    Some(before) => sound.log[before].end(),
                    None => Position::new(start.segment, 64),
                },
                Some(lost) => sound.log[lost].start,
            };
            just.ends_at = Some(lost.map_or(u64::MAX, |lost| sound.log[lost].before));
            // Without the first header, the salt that identifies records may be unknown.
            let behind: Vec<&LogRecord> = match lost {
                Some(lost) if !(is_header && number == start.segment) => {
                    sound.log[lost..].iter().filter(|r| is_left(r)).collect()
                }
                _ => Vec::new(),
            };
            just.records_behind = !behind.is_empty();
            // If the damage takes several records, and does not end with a unit, the records in the
            // rest of this unit need not say what the lost ones said. (The medium loses whole
            // units.)
            let lost_count = sound.log.iter().filter(|r| !is_left(r)).count();
            let is_small = lost_count + usize::from(is_header) <= 1;
            let counts = |r: &&&LogRecord| {
                let at = u64::from(r.start.offset);
                is_small || r.says_synced || !own(r) || !hit.touches(unit_start(at)..at)
            };
            let knows = behind.iter().filter(counts).map(|r| r.synced).max();
            let knows = knows.unwrap_or_default();
            // The name of the log's start was durable before a manifest named it.
            let start_is_gone =
                hit.damage == Damage::Gone && number == start.segment && !just.passed;
            just.refused = start_is_gone || sound.manifest_synced.max(knows) > bad;
        }
        _ => {}
    }
    just
}

/// Reads a file to its end like the tools, whatever its contents.
fn inspect(storage: &MemoryStorage, hit: &Hit) -> Result<(), String> {
    let file = storage.open(&hit.name).map_err(|e| e.to_string())?;
    let with_context = |e: siltstone::Error| format!("inspecting {}: {e}", hit.name);
    match hit.kind {
        FileKind::Log => {
            let mut log = LogFile::open(&*file).map_err(with_context)?;
            while let Some(item) = log.next_item().map_err(with_context)? {
                if let LogItem::Record(record) = item {
                    record.entries().for_each(drop);
                }
            }
        }
        FileKind::Manifest => {
            let mut manifest = ManifestFile::open(&*file).map_err(with_context)?;
            while let Some(item) = manifest.next_item() {
                if let ManifestItem::Record(record) = item {
                    let _ = format!("{record:?}");
                }
            }
        }
        FileKind::Table => {
            let mut table = TableFile::open(&*file).map_err(with_context)?;
            let pieces: Vec<_> = table.found().pieces.clone();
            for piece in &pieces {
                table.entries(piece).map_err(with_context)?;
                table.block(piece).map_err(with_context)?;
            }
        }
        FileKind::Stats => {
            if let Err(e) = siltstone::read_stats_file_from(storage) {
                names_a_file("statistics", &e)?;
            }
        }
        _ => {}
    }
    Ok(())
}

/// Compacts everything, which may fail.
fn compact(store: &Store) -> Result<(), String> {
    for name in store.keyspaces() {
        let keyspace = store.keyspace(&name).map_err(|e| e.to_string())?;
        if let Err(e) = keyspace.compact_range(None, None) {
            names_a_file("compacting", &e)?;
        }
    }
    if let Err(e) = store.wait_until_idle() {
        names_a_file("waiting for the background", &e)?;
    }
    Ok(())
}

/// Requires that an error names a file, except if the pointer is missing and no other file shows
/// that there was a store.
fn check_error(hit: &Hit, what: &str, error: &siltstone::Error) -> Result<(), String> {
    let no_pointer = hit.kind == FileKind::Current && hit.damage == Damage::Gone;
    match no_pointer && error.kind() == ErrorKind::NotFound {
        true => Ok(()),
        false => names_a_file(what, error),
    }
}

/// Hits a copy of a closed store.
fn closed(runtime: &Runtime, sound: &Sound, rng: &mut Rng) -> Result<Coverage, String> {
    let mut coverage = Coverage::default();
    let copy = sound.place.fork(runtime);
    // Without the history of the writes, the contents of a shorter log are not known.
    let left_out = (sound.model.is_none() && !sound.is_checkpoint).then_some(FileKind::Log);
    let (folder, name) = copy.draw_file(rng, left_out)?;
    let damage = Damage::draw_of_closed(rng);
    let Some(hit) = hit(rng, &copy.0[folder], &name, damage)? else {
        coverage.add("flip.nothing");
        return Ok(coverage);
    };
    let options = draw_options(rng);
    let with_context = |e: String| {
        let (verify, map) = (options.verify, options.map_tables);
        format!("{hit}; verify {verify:?}, map {map}: {e}")
    };
    if damage != Damage::Gone {
        inspect(&copy.0[folder], &hit).map_err(with_context)?;
    }
    let just = justified(sound, &hit);
    let is_sound = {
        let storages = copy.fork(runtime).storages();
        match check(&CheckStorages::of(&storages), &mut |_| {}) {
            Ok(report) => Some(report.is_sound()),
            Err(e) => {
                check_error(&hit, "check", &e).map_err(with_context)?;
                None
            }
        }
    };
    let outcome = |coverage: &mut Coverage, what: &str| {
        let of = if sound.is_checkpoint {
            "checkpoint."
        } else {
            ""
        };
        let kind = hit.kind.word();
        coverage.add(&format!("flip.{of}{kind}.{}", damage.word()));
        coverage.add(&format!("flip.{of}{kind}.{what}"));
    };
    let store = match copy.open(runtime, &options) {
        Ok(store) => store,
        Err(e) => {
            check_error(&hit, "open", &e).map_err(with_context)?;
            if is_sound == Some(true) {
                return Err(with_context(format!(
                    "`check` finds nothing, and open says: {e}"
                )));
            }
            if just.passed && just.ends_at.is_none() {
                return Err(with_context(format!("nothing that is needed was hit: {e}")));
            }
            if hit.kind == FileKind::Log && sound.closed {
                coverage.add("flip.log.closed_refused");
            }
            outcome(&mut coverage, "refused");
            return Ok(coverage);
        }
    };
    if just.refused {
        return Err(with_context(
            "a place that is known to be synced was hit, and open did not refuse".into(),
        ));
    }
    let counted = store.stats().counter("skipped_log_damage_count");
    if counted != u64::from(just.passed) {
        return Err(with_context(format!("{counted} damaged parts are counted")));
    }
    if just.passed {
        if is_sound == Some(true) {
            return Err(with_context(
                "`check` finds nothing in a damaged log".into(),
            ));
        }
        coverage.add("flip.log.passed");
    }
    if hit.kind == FileKind::Log && sound.closed {
        coverage.add("flip.log.of_closed");
    }
    let discarded_bytes = store.stats().counter("discarded_log_bytes");
    let mut wanted = &sound.wanted;
    let shorter;
    let mut ended = false;
    if let (Some(ends_at), Some(model)) = (just.ends_at, &sound.model) {
        let mut model = model.clone();
        let least = model.end_at(ends_at);
        let end = find_prefix(&store, &mut model, least).map_err(with_context)?;
        shorter = wanted_of(&model, end);
        ended = shorter != *wanted;
        wanted = &shorter;
        if ended && just.records_behind && discarded_bytes == 0 {
            return Err(with_context(
                "history ends early, and nothing reports it".into(),
            ));
        }
    }
    let settings = settings_of(&store).map_err(with_context)?;
    if just.settings && !ended && settings != sound.settings {
        return Err(with_context(format!(
            "set is {settings:?}, expected {:?}",
            sound.settings
        )));
    }
    let mut answers = read_all(&store, wanted, &sound.keys, rng).map_err(with_context)?;
    if rng.chance(40) {
        compact(&store).map_err(with_context)?;
        let after = read_all(&store, wanted, &sound.keys, rng)
            .map_err(|e| with_context(format!("after a compaction: {e}")))?;
        answers.add(after);
        coverage.add("flip.compacted");
    }
    if let Err(e) = store.close() {
        names_a_file("close", &e).map_err(with_context)?;
    }
    if rng.chance(20) {
        match copy.fork(runtime).open(runtime, &options) {
            Ok(store) => {
                let again = read_all(&store, wanted, &sound.keys, rng)
                    .map_err(|e| with_context(format!("opened once more: {e}")))?;
                answers.add(again);
                coverage.add("flip.opened_again");
            }
            Err(e) if is_sound == Some(true) => {
                return Err(with_context(format!("a second open says: {e}")));
            }
            Err(e) => names_a_file("a second open", &e).map_err(with_context)?,
        }
    }
    if is_sound == Some(true) && answers.error_count > 0 {
        return Err(with_context(format!(
            "`check` finds nothing, and {} answers of {} are errors",
            answers.error_count,
            answers.error_count + answers.right_count
        )));
    }
    outcome(
        &mut coverage,
        match (answers.error_count > 0, ended) {
            (true, _) => "error_on_read",
            (_, true) => "history_ends",
            _ => "right",
        },
    );
    Ok(coverage)
}

/// Hits a table of an open copy.
fn open(runtime: &Runtime, sound: &Sound, rng: &mut Rng) -> Result<Coverage, String> {
    let mut coverage = Coverage::default();
    let copy = sound.place.fork(runtime);
    let options = Options {
        verify: Verify::Always,
        ..draw_options(rng)
    };
    let store = copy
        .open(runtime, &options)
        .map_err(|e| format!("a sound store does not open: {e}"))?;
    let mut answers = Answers::default();
    if rng.chance(50) {
        answers.add(read_all(&store, &sound.wanted, &sound.keys, rng)?);
    }
    let (folder, name) = copy.draw_file(rng, None)?;
    let damage = Damage::draw(rng);
    let Some(hit) = hit(rng, &copy.0[folder], &name, damage)? else {
        coverage.add("flip.nothing");
        return Ok(coverage);
    };
    let with_context = |e: String| format!("while open, {hit}; map {}: {e}", options.map_tables);
    let mut read =
        |store: &Store| read_all(store, &sound.wanted, &sound.keys, rng).map_err(with_context);
    answers.add(read(&store)?);
    match store.verify(&mut |_| {}) {
        Ok(report) if !report.is_sound() => coverage.add("flip.open.verify_finds_damage"),
        Ok(_) => coverage.add("flip.open.verify_finds_nothing"),
        Err(e) => names_a_file("verify", &e).map_err(with_context)?,
    }
    compact(&store).map_err(with_context)?;
    answers.add(read(&store)?);
    if let Err(e) = store.close() {
        names_a_file("close", &e).map_err(with_context)?;
    }
    let what = if answers.error_count > 0 {
        "error_on_read"
    } else {
        "right"
    };
    let mut what = what.to_string();
    match copy.fork(runtime).open(runtime, &options) {
        Ok(store) => {
            read(&store)?;
        }
        Err(e) => {
            names_a_file("open", &e).map_err(with_context)?;
            what = "refused_later".to_string();
        }
    }
    let kind = hit.kind.word();
    coverage.add(&format!("flip.open.{kind}.{}", damage.word()));
    coverage.add(&format!("flip.open.{kind}.{what}"));
    Ok(coverage)
}

/// Hits a table outside, and ingests it.
fn ingested(runtime: &Runtime, rng: &mut Rng) -> Result<Coverage, String> {
    let text = |e: siltstone::Error| e.to_string();
    let mut coverage = Coverage::default();
    let outside = MemoryStorage::named(runtime, "/outside");
    let folder = TableFolder::on(Arc::new(outside.clone()), Epoch::default());
    let options = TableOptions {
        block_bytes: 512 << rng.below(3),
        bloom_bits_per_key: *rng.pick(&[0, 10]),
        compression: *rng.pick(&[Compression::None, Compression::Lz4, Compression::Zstd(1)]),
        ..TableOptions::default()
    };
    let mut builder = TableBuilder::new(&folder, "t", options).map_err(text)?;
    let mut pairs = Pairs::new();
    for i in 0..40 + rng.below(100) {
        let key: Bytes = format!("key-{i:04}").into_bytes().into();
        let value: Bytes = vec![i as u8; rng.index(100)].into();
        builder.put(&key, &value).map_err(text)?;
        pairs.insert(key, value);
    }
    let built = builder.finish().map_err(text)?;
    let keys: Vec<Bytes> = pairs.keys().cloned().collect();
    let name = built[0].file.name().to_string();
    let damage = Damage::draw(rng);
    let Some(hit) = hit(rng, &outside, &name, damage)? else {
        coverage.add("flip.nothing");
        return Ok(coverage);
    };
    let with_context = |e: String| format!("before an ingest, {hit}: {e}");
    inspect(&outside, &hit).map_err(with_context)?;
    let place = Place(vec![MemoryStorage::new(runtime)]);
    let options = Options {
        create_if_missing: true,
        ..draw_options(rng)
    };
    let store = place.open(runtime, &options).map_err(text)?;
    let keyspace = store.default_keyspace().map_err(text)?;
    let mode = *rng.pick(&[IngestMode::Copy, IngestMode::Link, IngestMode::Move]);
    let (is_in, mut what) = match store.ingest(&[(&keyspace, vec![built[0].file.clone()])], mode) {
        Ok(_) => (true, "right"),
        Err(e) => {
            names_a_file("ingest", &e).map_err(with_context)?;
            (false, "refused")
        }
    };
    let wanted = if is_in { pairs } else { Pairs::new() };
    let wanted = Wanted::from([("default".to_string(), (keyspace.id(), wanted))]);
    let mut answers = read_all(&store, &wanted, &keys, rng).map_err(with_context)?;
    compact(&store).map_err(with_context)?;
    answers.add(read_all(&store, &wanted, &keys, rng).map_err(with_context)?);
    store.close().map_err(text)?;
    if answers.error_count > 0 {
        what = "error_on_read";
    }
    coverage.add(&format!("flip.ingest.table.{}", damage.word()));
    coverage.add(&format!("flip.ingest.table.{what}"));
    Ok(coverage)
}

/// Runs one seed: a store, and [`FLIPS`] copies of it that are hit. `SILT_FLIP=N` hits only copy N.
///
/// # Panics
/// At the first wrong answer, unexpected error, panic or hang; it names the flip.
pub fn flip_trial(seed: u64) -> Coverage {
    let sound = simulate(seed, move |runtime| {
        let mut rng = Rng::new(seed ^ 0xF11B);
        make(&runtime, seed, &mut rng).map(Arc::new)
    });
    let only = std::env::var("SILT_FLIP").ok().map(|n| {
        n.parse::<u64>()
            .unwrap_or_else(|_| panic!("SILT_FLIP={n} is no number"))
    });
    let mut coverage = Coverage::default();
    for flip in only.map_or(0..FLIPS, |n| n..n + 1) {
        let sound = sound.clone();
        let mut rng = Rng::new(seed.wrapping_mul(0x1_0001) ^ flip).fork(flip);
        let reached = simulate(rng.draw(), move |runtime| {
            let reached = match rng.below(10) {
                0 => ingested(&runtime, &mut rng),
                1 | 2 => open(&runtime, &sound, &mut rng),
                _ => closed(&runtime, &sound, &mut rng),
            };
            reached.map_err(|e| format!("flip {flip} (SILT_FLIP={flip}): {e}"))
        });
        coverage.merge(&reached);
    }
    coverage
}

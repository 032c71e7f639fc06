//! Fixed stories that are crashed at every call and that meet a fault at every call: loading,
//! tables from outside, keyspaces and their settings, checkpoints, exports, flushes, compactions,
//! rewritten manifests, and a second location of tables.
//!
//! A [`Story`] is a list of steps on a [`Stage`]. Each step treats errors like the stage, so one
//! story serves both trials.
//!
//! Threading: the run's first task; the checkpoint story has a concurrent writer.

mod locations;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use siltstone::{
    Compression, ErrorKind, FlushVerify, IngestMode, IterOptions, Keyspace, KeyspaceOptions,
    Options, Storages, TableFile, TableOptions, setting,
};
use siltstone_storage::fault::{Fault, Rule};
use siltstone_storage::{FaultStorage, MemoryStorage, OpKind, Storage};

use super::Run;
use super::faults::is_refused_by_fault;
use super::media::Media;
use crate::checker::{Check, check_now};
use crate::marking::MarkingStorage;
use crate::model::{Bytes, Op};
use crate::observe::lock;
use crate::rng::Rng;
use crate::world::admin::Copy;
use crate::world::{Errors, World};

/// The stories.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Story {
    /// Load, flush, compact, delete ranges, drop, create again, reopen.
    Load,
    /// Memtables of several keyspaces are flushed while more is written.
    Flush,
    /// Compactions: of whole keyspaces, of ranges, and automatic ones; moves; deletes that reach
    /// the deepest level.
    Compaction,
    /// The manifest is rewritten repeatedly because it has grown.
    ManifestRoll,
    /// Ingests into one keyspace and several, overlapping, by link, copy and move.
    Ingest,
    /// Create with settings, set, unset, drop, create again, settings that an open requests.
    Keyspaces,
    /// A checkpoint with a concurrent writer.
    Checkpoint,
    /// An export, ingested by move into another keyspace.
    Export,
    /// A second location of tables is added to a store, tables are flushed there and come back, and
    /// it is taken out again.
    Locations,
}

impl Story {
    /// All stories.
    pub const ALL: [Story; 9] = [
        Story::Load,
        Story::Flush,
        Story::Compaction,
        Story::ManifestRoll,
        Story::Ingest,
        Story::Keyspaces,
        Story::Checkpoint,
        Story::Export,
        Story::Locations,
    ];

    /// What the story does in each life of the store.
    fn lives(self) -> &'static [Life] {
        match self {
            Story::Load => &[load_first, load_second],
            Story::Flush => &[flush_first, flush_second],
            Story::Compaction => &[compaction_first, compaction_second],
            Story::ManifestRoll => &[roll_first, roll_second],
            Story::Ingest => &[ingest_first, ingest_second],
            Story::Keyspaces => &[keyspaces_first, keyspaces_second],
            Story::Checkpoint => &[checkpoint_first, checkpoint_second],
            Story::Export => &[export_first, export_second],
            Story::Locations => &locations::LIVES,
        }
    }
}

/// What a story does in one life of the store.
type Life = fn(&mut Stage, &Arc<World>) -> Check;

/// Tables that were moved into the store.
pub(crate) struct Moved {
    /// The position in the outside folder's journal at which they began to exist.
    pub(crate) built_at: u64,
    /// Their names.
    pub(crate) names: Vec<String>,
    /// The ingest's number; `None` if it failed.
    pub(crate) number: Option<u64>,
}

/// The store and the storages of a story.
pub(crate) struct Stage {
    pub(crate) run: Run,
    /// The media of the store. Only the story of locations has more than one.
    pub(crate) media: Media,
    storage: Arc<dyn Storage>,
    /// The storage of the second location of tables, and whether the store is opened with it.
    redirect: Option<Arc<dyn Storage>>,
    has_redirect: bool,
    /// Whether this open takes it out.
    takes_out: bool,
    /// The number of tables that were there before this open.
    redirected_before: usize,
    /// The target of a checkpoint.
    pub(crate) target: MemoryStorage,
    target_seen: Arc<dyn Storage>,
    faults: Option<FaultStorage>,
    /// The rules that make single calls slow.
    slow: FaultStorage,
    /// Whether faults may occur: the disk has not been replaced yet.
    failing: Arc<AtomicBool>,
    pub(crate) copy: Option<Copy>,
    pub(crate) moved: Vec<Moved>,
}

/// The beginning of the names of log segments, and of no others: twelve digits.
const LOG: &str = "000000000";

/// The beginning of the names of manifests.
const MANIFEST: &str = "MANIFEST-";

/// Options with small sizes, so that every mechanism runs early.
pub(crate) fn options() -> Options {
    Options {
        flush_verify: FlushVerify::All,
        memtable_bytes: 64 << 10,
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        level1_bytes: 64 << 10,
        level_factor: 2,
        l0_trigger_count: 2,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 128 << 10,
        background_tasks: 1,
        ..Options::default()
    }
}

impl Stage {
    /// A stage with journals on all media, and notes in the store's journal of the positions of the
    /// others.
    pub(crate) fn new(run: Run, story: Story) -> Stage {
        let mut media = Media::one(MemoryStorage::named(&run.runtime, "/store"));
        if story == Story::Locations {
            media.add_redirect(&run.runtime);
        }
        let target = MemoryStorage::new(&run.runtime);
        media.start_journals();
        target.start_journal();
        run.outside.start_journal();
        let medium = media.main().clone();
        let slow = FaultStorage::new(Arc::new(medium.clone()), &run.runtime);
        let mut stage = Stage {
            storage: Arc::new(slow.clone()),
            redirect: media.storages().redirect,
            has_redirect: false,
            takes_out: false,
            redirected_before: 0,
            slow,
            target_seen: Arc::new(MarkingStorage::new(target.clone(), medium.clone(), 't')),
            media,
            target,
            faults: None,
            failing: Arc::new(AtomicBool::new(true)),
            copy: None,
            moved: Vec::new(),
            run,
        };
        stage.run.outside_seen =
            Arc::new(MarkingStorage::new(stage.run.outside.clone(), medium, 'x'));
        stage
    }

    /// A stage with faults in the storage `place`: `s`tore, its second location of tables (`l`),
    /// `t`arget, or outside (`x`).
    pub(crate) fn with_faults(run: Run, story: Story, place: char) -> (Stage, FaultStorage) {
        let mut stage = Stage::new(run, story);
        let of_place = match (place, &mut stage.redirect) {
            ('s', _) => &mut stage.storage,
            ('l', Some(redirect)) => redirect,
            ('t', _) => &mut stage.target_seen,
            _ => &mut stage.run.outside_seen,
        };
        let faults = FaultStorage::new(of_place.clone(), &stage.run.runtime);
        *of_place = Arc::new(faults.clone());
        stage.faults = Some(faults.clone());
        (stage, faults)
    }

    /// Ends all faults.
    pub(crate) fn fault_clearer(&self) -> impl FnOnce() + Send + 'static {
        let (faults, failing) = (self.faults.clone(), self.failing.clone());
        move || {
            failing.store(false, Ordering::Relaxed);
            if let Some(faults) = faults {
                faults.disarm();
            }
        }
    }

    /// Begins a life. Changes that the previous life refused may be there or not. Acknowledged
    /// changes must be there.
    fn open(&mut self, options: &Options) -> Result<Arc<World>, String> {
        let errors = match self.faults {
            Some(_) => Errors::Expected,
            None => Errors::Fatal,
        };
        let storages = Storages {
            redirect: self.redirect.clone().filter(|_| self.has_redirect),
            ..Storages::on(self.storage.clone())
        };
        let open = || {
            let (storages, other_executors) = (storages.clone(), self.run.other_executors());
            let medium = self.media.main();
            self.run
                .open_on(medium, storages, other_executors, options, errors)
        };
        let mut refused = false;
        let world = match (open(), &self.faults) {
            (Ok(world), _) => world,
            (Err(e), Some(faults)) if is_refused_by_fault(&e) => {
                refused = true;
                faults.disarm();
                self.failing.store(false, Ordering::Relaxed);
                open().map_err(|e| format!("open after a refused open: {e}"))?
            }
            (Err(e), _) => return Err(format!("open: {e}")),
        };
        if refused {
            self.run.coverage.add("fault.open_refused");
        }
        let acked = lock(&self.run.history).acked;
        if let Some(faults) = &self.faults {
            faults.disarm();
        }
        self.run.settle(&world.store, acked)?;
        world.settings_after_open()?;
        if let Some(faults) = &self.faults
            && self.failing.load(Ordering::Relaxed)
        {
            faults.arm();
        }
        Ok(world)
    }

    /// Ends a life: everything is compared, then the store is closed.
    fn end(&mut self, world: Arc<World>, rng: &mut Rng) -> Check {
        if let Some(faults) = &self.faults {
            faults.disarm();
        }
        let checked = check_now(&world.store, &self.run.history, &world.plan.keys, rng);
        checked.or_else(|e| world.excuse(e))?;
        if world.errors == Errors::Fatal {
            return self.run.close(&world).map_err(|e| format!("close: {e}"));
        }
        let poisoned = world.store.stats().health != "good";
        match self.run.close(&world) {
            Err(e) if !poisoned => world.excuse(format!("close: {e}")),
            _ => Ok(()),
        }
    }

    /// Plays a story from its beginning to its end.
    pub(crate) fn play(&mut self, story: Story, rng: &mut Rng) -> Check {
        for (life, play) in (0..).zip(story.lives()) {
            if let Some(faults) = &self.faults
                && self.failing.load(Ordering::Relaxed)
            {
                faults.arm();
            }
            let mut options = options();
            if story == Story::Keyspaces {
                let name = if life == 0 { "b" } else { "a" };
                options.keyspaces = BTreeMap::from([(name.to_string(), own(9))]);
                // Two flushes, one after the other.
                options.background_tasks = 1 + life;
            }
            if story == Story::Locations {
                self.set_location(life, &mut options)?;
            }
            let world = self.open(&options)?;
            let hooks = world.store.test_hooks();
            if story == Story::ManifestRoll {
                hooks.roll_manifest_from(0);
            }
            play(self, &world).map_err(|e| format!("life {life}: {e}"))?;
            let rolls = hooks.manifest_roll_count();
            self.run.coverage.add_count("story.manifest_rolled", rolls);
            drop(hooks);
            self.end(world, rng)
                .map_err(|e| format!("end of life {life}: {e}"))?;
        }
        Ok(())
    }
}

fn own(stop: u32) -> KeyspaceOptions {
    KeyspaceOptions {
        l0_stop_count: Some(stop),
        compression: Some(Compression::Lz4.into()),
        ..KeyspaceOptions::default()
    }
}

fn pair(i: u64) -> (Bytes, Bytes) {
    let key = format!("key{:03}", i * 7 % 50).into_bytes();
    (key.into(), vec![i as u8; 700].into())
}

/// A keyspace, if it could be created.
fn keyspace(world: &World, name: &str) -> Result<Option<Keyspace>, String> {
    match world.store.keyspace(name) {
        Ok(keyspace) => Ok(Some(keyspace)),
        Err(e) if e.kind() == ErrorKind::NotFound => {
            world.create(name, &KeyspaceOptions::default())
        }
        Err(e) => Err(e.to_string()),
    }
}

/// Writes one batch over several keyspaces.
fn load(world: &World, names: &[&str], from: u64, count: u64, sync: bool) -> Check {
    let mut ops = Vec::new();
    for name in names {
        if let Some(keyspace) = keyspace(world, name)? {
            ops.extend((from..from + count).map(|i| {
                let (key, value) = pair(i);
                Op::Put(keyspace.id(), key, value)
            }));
        }
    }
    match ops.is_empty() {
        true => Ok(()),
        false => world.write_batch(ops, sync),
    }
}

fn delete_range(world: &World, name: &str, start: &str, end: &str) -> Check {
    let Some(keyspace) = keyspace(world, name)? else {
        return Ok(());
    };
    let (start, end) = (start.as_bytes().into(), end.as_bytes().into());
    world.write_batch(vec![Op::DeleteRange(keyspace.id(), start, end)], false)
}

fn flush(world: &World) -> Check {
    let number = world.store.snapshot().number();
    match world.store.flush() {
        Ok(()) => {
            world.synced(number);
            Ok(())
        }
        Err(e) => world.allow(&e, &[], "flush"),
    }
}

fn compact(world: &World, name: &str) -> Check {
    let Some(keyspace) = keyspace(world, name)? else {
        return Ok(());
    };
    let compacted = keyspace.compact_range(None, None);
    compacted.or_else(|e| world.allow(&e, &[], "compact_range"))
}

fn idle(world: &World) -> Check {
    let idle = world.store.wait_until_idle();
    idle.or_else(|e| world.allow(&e, &[], "wait_until_idle"))
}

fn drop_named(world: &World, name: &str) -> Check {
    match world.store.keyspace(name) {
        Ok(keyspace) => world.drop_keyspace(&keyspace),
        Err(_) => Ok(()),
    }
}

fn load_first(_: &mut Stage, world: &Arc<World>) -> Check {
    for round in 0..4 {
        load(world, &["default", "a"], round * 20, 12, false)?;
    }
    load(world, &["default", "a"], 5, 1, true)?;
    load(world, &["a", "b"], 100, 10, false)?;
    flush(world)?;
    load(world, &["default", "a"], 90, 25, false)?;
    compact(world, "a")?;
    delete_range(world, "default", "key010", "key030")?;
    drop_named(world, "b")?;
    load(world, &["b", "default"], 7, 5, false)?;
    flush(world)?;
    idle(world)?;
    load(world, &["default", "a", "b"], 40, 8, false)
}

fn load_second(_: &mut Stage, world: &Arc<World>) -> Check {
    load(world, &["default", "b"], 60, 20, false)?;
    let number = world.store.snapshot().number();
    match world.store.sync_log() {
        Ok(()) => world.synced(number),
        Err(e) => world.allow(&e, &[], "sync_log")?,
    }
    compact(world, "default")?;
    load(world, &["a", "b"], 64, 3, false)
}

fn flush_first(_: &mut Stage, world: &Arc<World>) -> Check {
    keyspace(world, "a")?;
    for round in 0..3 {
        load(world, &["default", "a", "b"], round * 9, 8, round == 1)?;
        delete_range(world, "a", "key010", "key020")?;
        // Meanwhile another task writes more.
        let writer = world.clone();
        let beside = world.runtime.spawn("beside", move || {
            (0..3).try_for_each(|i| load(&writer, &["default", "b"], 50 + i, 2, i == 1))
        });
        flush(world)?;
        let written = beside.map_err(|e| e.to_string())?.join();
        written.map_err(|_| "the writer beside ended without an answer")??;
    }
    idle(world)?;
    load(world, &["a", "b"], 70, 3, false)
}

fn flush_second(_: &mut Stage, world: &Arc<World>) -> Check {
    // This flushes the data in the log first.
    flush(world)?;
    load(world, &["default", "a"], 5, 6, false)?;
    delete_range(world, "b", "key000", "key999")?;
    flush(world)?;
    load(world, &["b"], 5, 2, false)
}

fn compaction_first(_: &mut Stage, world: &Arc<World>) -> Check {
    for round in 0..3 {
        load(world, &["default", "a"], round * 15, 25, false)?;
        flush(world)?;
    }
    idle(world)?;
    let held = world.store.snapshot();
    delete_range(world, "a", "key005", "key040")?;
    load(world, &["a"], 3, 6, true)?;
    compact(world, "a")?;
    drop(held);
    load(world, &["default"], 200, 30, false)?;
    flush(world)?;
    compact(world, "a")?;
    compact(world, "default")?;
    load(world, &["default", "a"], 11, 2, false)
}

fn compaction_second(_: &mut Stage, world: &Arc<World>) -> Check {
    load(world, &["default", "a"], 30, 12, false)?;
    delete_range(world, "default", "key000", "key025")?;
    compact(world, "default")?;
    idle(world)?;
    load(world, &["a"], 1, 3, false)
}

/// Changes settings repeatedly. These changes are short edits without tables.
fn turn_settings(world: &World, name: &str, from: u32, count: u32) -> Check {
    if let Some(keyspace) = keyspace(world, name)? {
        for i in from..from + count {
            world.set_keyspace(&keyspace, &own(2 + i % 7), &[])?;
        }
    }
    Ok(())
}

fn roll_first(_: &mut Stage, world: &Arc<World>) -> Check {
    world.create("a", &own(5))?;
    for round in 0..2 {
        load(world, &["default", "a"], round * 10, 6, false)?;
        turn_settings(world, "a", round as u32, 9)?;
        flush(world)?;
        turn_settings(world, "default", round as u32, 9)?;
    }
    load(world, &["default", "b"], 40, 4, true)?;
    compact(world, "a")?;
    drop_named(world, "b")?;
    turn_settings(world, "a", 3, 6)?;
    load(world, &["default", "a"], 60, 4, false)
}

fn roll_second(_: &mut Stage, world: &Arc<World>) -> Check {
    load(world, &["a"], 60, 4, false)?;
    turn_settings(world, "a", 1, 16)?;
    flush(world)?;
    turn_settings(world, "default", 1, 8)?;
    load(world, &["default"], 62, 2, false)
}

/// Builds tables of the pairs from `from` on, with a delete.
fn built(world: &World, from: u64, count: u64) -> Result<Vec<TableFile>, String> {
    let mut entries: BTreeMap<Bytes, Option<Bytes>> = (from..from + count)
        .map(pair)
        .map(|(key, value)| (key, Some(value)))
        .collect();
    entries.insert(pair(from + count).0, None);
    let options = TableOptions {
        table_bytes: 8 << 10,
        block_bytes: 1 << 10,
        ..TableOptions::default()
    };
    let entries: Vec<_> = entries.into_iter().collect();
    Ok(world.build(&entries, options)?.unwrap_or_default())
}

fn ingest(
    stage: &mut Stage,
    world: &World,
    parts: Vec<(&str, Vec<TableFile>)>,
    how: IngestMode,
) -> Check {
    let mut all = Vec::new();
    for (name, files) in parts {
        if let Some(keyspace) = keyspace(world, name)? {
            all.push((keyspace, files));
        }
    }
    let built_at = stage.run.outside.journal_len();
    let names = all.iter().flat_map(|(_, files)| files);
    let names = names.map(|file| file.name().to_string()).collect();
    let number = world.ingest(&all, how)?;
    stage.moved.push(Moved {
        built_at,
        names,
        number,
    });
    Ok(())
}

fn ingest_first(stage: &mut Stage, world: &Arc<World>) -> Check {
    keyspace(world, "a")?;
    world.create("b", &own(7))?;
    load(world, &["default", "a", "b"], 0, 8, false)?;
    let (mut of_a, of_b) = (built(world, 0, 20)?, built(world, 30, 5)?);
    of_a.extend(built(world, 10, 20)?);
    ingest(
        stage,
        world,
        vec![("a", of_a), ("b", of_b)],
        IngestMode::Link,
    )?;
    load(world, &["a", "b"], 12, 4, false)?;
    delete_range(world, "a", "key020", "key030")?;
    let (of_default, of_b) = (built(world, 3, 9)?, built(world, 33, 3)?);
    let again = built(world, 34, 3)?;
    ingest(
        stage,
        world,
        vec![("default", of_default), ("b", of_b), ("b", again)],
        IngestMode::Move,
    )?;
    flush(world)?;
    load(world, &["default"], 3, 2, false)?;
    let more = built(world, 1, 6)?;
    ingest(stage, world, vec![("default", more)], IngestMode::Copy)?;
    compact(world, "a")?;
    drop_named(world, "b")?;
    load(world, &["default", "a"], 5, 3, false)
}

fn ingest_second(stage: &mut Stage, world: &Arc<World>) -> Check {
    let (of_a, of_default) = (built(world, 7, 8)?, built(world, 9, 4)?);
    ingest(
        stage,
        world,
        vec![("a", of_a), ("default", of_default)],
        IngestMode::Move,
    )?;
    load(world, &["a"], 7, 2, false)?;
    compact(world, "default")
}

fn keyspaces_first(stage: &mut Stage, world: &Arc<World>) -> Check {
    world.create("a", &own(5))?;
    load(world, &["a", "default"], 0, 6, false)?;
    if let Some(a) = keyspace(world, "a")? {
        world.set_keyspace(&a, &own(6), &[])?;
    }
    load(world, &["a"], 3, 4, false)?;
    drop_named(world, "a")?;
    world.create("a", &KeyspaceOptions::default())?;
    world.create("b", &own(4))?;
    load(world, &["a", "b", "default"], 20, 5, false)?;
    if let Some(b) = keyspace(world, "b")? {
        world.set_keyspace(&b, &KeyspaceOptions::default(), &["compression"])?;
    }
    let setting = setting("l0_trigger_count").map_err(|e| e.to_string())?;
    world.set_option(setting, 3u32.into())?;
    flush(world)?;
    drop_named(world, "b")?;
    load(world, &["default", "c"], 30, 4, true)?;
    slow_drop(stage, world)
}

/// Drops a keyspace whose records are synced and not flushed. The sync of the drop's record is
/// slow. Meanwhile all younger data is flushed, so that the log could start after the keyspace's
/// records.
fn slow_drop(stage: &Stage, world: &Arc<World>) -> Check {
    flush(world)?;
    load(world, &["d"], 0, 3, true)?;
    load(world, &["default", "a"], 0, 40, false)?;
    load(world, &["default", "a"], 10, 30, false)?;
    let number = world.store.snapshot().number();
    match world.store.sync_log() {
        Ok(()) => world.synced(number),
        Err(e) => world.allow(&e, &[], "sync_log")?,
    }
    let Ok(dropped) = world.store.keyspace("d") else {
        return Ok(());
    };
    let slow = Fault::Delay(Duration::from_secs(2));
    stage.slow.add(Rule::on(OpKind::Sync, slow).named(LOG));
    let (dropper, gone) = (world.clone(), dropped.clone());
    let drop = world
        .runtime
        .spawn("dropper", move || dropper.drop_keyspace(&gone));
    let drop = drop.map_err(|e| e.to_string())?;
    while dropped.get(b"key000").is_ok() && !drop.is_finished() {
        world.runtime.sleep(Duration::from_millis(1));
    }
    // A flush ends with a sync of the log, which waits like the drop; its tables are installed
    // before that.
    let flushes = || world.store.stats().counter("flush_count");
    let before = flushes();
    let flusher = world.clone();
    let flush = world.runtime.spawn("flusher", move || {
        let flushed = flusher.store.flush();
        flushed.or_else(|e| flusher.allow(&e, &[], "flush beside a drop"))
    });
    let flush = flush.map_err(|e| e.to_string())?;
    for _ in 0..500 {
        if drop.is_finished() || flush.is_finished() {
            break;
        }
        world.runtime.sleep(Duration::from_millis(1));
    }
    world.store.test_hooks().delete_obsolete();
    if !drop.is_finished() && flushes() > before {
        world.reach("story.flushed_beside_a_drop");
    }
    flush
        .join()
        .map_err(|_| "the flush ended without an answer")??;
    world.store.test_hooks().delete_obsolete();
    compact(world, "default")?;
    compact(world, "a")?;
    drop.join()
        .map_err(|_| "the drop ended without an answer")?
}

/// Creates a keyspace while the manifest is slow: the create's record is synced, and its edit waits
/// behind others. Meanwhile younger data is flushed. If the flush's edit comes first, the log could
/// start behind that record.
fn slow_create(stage: &Stage, world: &Arc<World>) -> Check {
    flush(world)?;
    load(world, &["a"], 0, 3, false)?;
    let Some(a) = keyspace(world, "a")? else {
        return Ok(());
    };
    let slow = Rule::on(OpKind::Sync, Fault::Delay(Duration::from_secs(2)));
    let rule = stage.slow.add(slow.named(MANIFEST).times(3));
    let holder = world.clone();
    let held = world.runtime.spawn("holder", move || {
        let flushed = a.flush();
        flushed.or_else(|e| holder.allow(&e, &[], "flush of a keyspace"))
    });
    let held = held.map_err(|e| e.to_string())?;
    while stage.slow.fired_count(rule) == 0 && !held.is_finished() {
        world.runtime.sleep(Duration::from_millis(1));
    }
    let creator = world.clone();
    let create = world
        .runtime
        .spawn("creator", move || creator.create("e", &own(3)).map(|_| ()));
    let create = create.map_err(|e| e.to_string())?;
    world.runtime.sleep(Duration::from_millis(5));
    // This is more than a segment of the log.
    load(world, &["default"], 20, 60, false)?;
    load(world, &["default"], 80, 60, false)?;
    let flushes = || world.store.stats().counter("flush_count");
    let before = flushes();
    let flusher = world.clone();
    let flushed = world.runtime.spawn("flusher", move || flush(&flusher));
    let flushed = flushed.map_err(|e| e.to_string())?;
    for i in 0..12 {
        load(world, &["default"], 140 + i, 1, false)?;
        if !create.is_finished() && flushes() > before {
            world.reach("story.flushed_beside_a_create");
        }
        world.runtime.sleep(Duration::from_millis(500));
    }
    let tasks = [("holder", held), ("create", create), ("flush", flushed)];
    tasks.into_iter().try_for_each(|(what, task)| {
        task.join()
            .map_err(|_| format!("the {what} ended without an answer"))?
    })
}

fn keyspaces_second(stage: &mut Stage, world: &Arc<World>) -> Check {
    if let Some(a) = keyspace(world, "a")? {
        world.set_keyspace(&a, &own(11), &[])?;
    }
    slow_create(stage, world)?;
    drop_named(world, "default")?;
    world.create("default", &own(3))?;
    load(world, &["default", "a"], 2, 3, false)?;
    drop_named(world, "c")?;
    compact(world, "a")
}

fn checkpoint_first(stage: &mut Stage, world: &Arc<World>) -> Check {
    world.create("a", &own(6))?;
    load(world, &["default", "a"], 0, 20, false)?;
    flush(world)?;
    let more = built(world, 9, 4)?;
    ingest(stage, world, vec![("a", more)], IngestMode::Copy)?;
    load(world, &["default", "a"], 11, 6, false)?;
    let writer = world.clone();
    let beside = world.runtime.spawn("beside", move || {
        (0..6).try_for_each(|i| load(&writer, &["default", "a"], 40 + i, 2, false))
    });
    let copy = world.checkpoint_to(stage.target_seen.clone(), &stage.target);
    let written = beside.map_err(|e| e.to_string())?.join();
    written.map_err(|_| "the writer beside ended without an answer")??;
    stage.copy = copy?;
    if let Some(copy) = &stage.copy {
        stage.media.main().mark("c1");
        copy.verify(&world.runtime)?;
    }
    load(world, &["default", "a"], 70, 10, false)?;
    compact(world, "a")
}

fn checkpoint_second(_: &mut Stage, world: &Arc<World>) -> Check {
    load(world, &["default"], 5, 5, false)?;
    compact(world, "default")
}

fn export_first(stage: &mut Stage, world: &Arc<World>) -> Check {
    keyspace(world, "b")?;
    load(world, &["default", "b"], 0, 30, false)?;
    flush(world)?;
    load(world, &["default"], 4, 5, false)?;
    let snapshot = world.store.snapshot();
    load(world, &["default", "b"], 8, 6, false)?;
    let Some(from) = keyspace(world, "default")? else {
        return Ok(());
    };
    let range = IterOptions::range(&b"key003"[..]..&b"key041"[..]);
    let files = world.export(&from, &snapshot, range)?.unwrap_or_default();
    let all = world
        .export(&from, &world.store.snapshot(), IterOptions::default())?
        .unwrap_or_default();
    ingest(
        stage,
        world,
        vec![("b", files), ("c", all)],
        IngestMode::Move,
    )?;
    load(world, &["b"], 3, 3, false)
}

fn export_second(stage: &mut Stage, world: &Arc<World>) -> Check {
    let Some(from) = keyspace(world, "b")? else {
        return Ok(());
    };
    let range = IterOptions::prefix(b"key01");
    let files = world
        .export(&from, &world.store.snapshot(), range)?
        .unwrap_or_default();
    ingest(stage, world, vec![("default", files)], IngestMode::Move)?;
    compact(world, "c")
}

/// Checks that a crash did not lose tables that were being moved into a store that now ends at
/// `end`.
pub(crate) fn check_moved(
    moved: &[Moved],
    history: &crate::observe::SharedHistory,
    outside: &MemoryStorage,
    place: u64,
    end: u64,
) -> Check {
    for tables in moved.iter().filter(|m| m.built_at <= place) {
        if tables.number.is_some_and(|number| number <= end) {
            continue;
        }
        for name in &tables.names {
            let (digest, _) = crate::world::outside::read_table(outside, name).map_err(|e| {
                format!("the store ends at {end}, before its ingest, and the table is gone: {e}")
            })?;
            if !lock(history).knows_table(digest) {
                return Err(format!("{name} holds something else"));
            }
        }
    }
    Ok(())
}

//! The child process: it works on a real folder until it is killed, or opens the store and dumps
//! its contents.
//!
//! [`main`] is the program `victim`. `run` works through the script with one thread for each lane,
//! and sends a message to its parent before each operation begins and after it was acknowledged.
//! `verify` and `check` are in `verifier.rs`.
//!
//! Invariants: a lane compares what it reads with what it wrote, so wrong answers before the kill
//! are found too. Anything unexpected ends the process with [`WRONG`] and a text on its standard
//! error.
//!
//! Threading: one thread for each lane; the first thread waits for the end.

use std::fs::File;
use std::io::Read;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use siltstone::{
    Batch, Cursor, Error, ErrorKind, IterOptions, Keyspace, Options, Snapshot, Store, TableBuilder,
    TableFile, TableFolder, TableOptions, WriteOptions,
};
use siltstone_storage::Storage;
use siltstone_storage::files::FileStorage;

use super::messages::{Health, Message, Pipe};
use super::script::{Entry, LANES, Lane, Op, SHARED, SPACES, Script, own_name, prefix, space_name};
use super::verifier;
use crate::model::{Bytes, Pairs};

/// The store could not be opened; the reason is on standard error.
pub const NOT_OPEN: i32 = 2;
/// Something unexpected: a wrong answer, or an error without a cause.
pub const WRONG: i32 = 3;
/// The parent has closed the pipe.
pub const ALONE: i32 = 4;
/// `check` found damage.
pub const DAMAGED: i32 = 5;

/// The interval at which the store's state is sent.
const STATE_EVERY: Duration = Duration::from_millis(5);
/// The number of writes of a lane that may fail without it being known whether they had an effect;
/// then the lane ends.
const UNSURE_MAX: u32 = 4;
/// The number of writes of a lane that may be refused by a full disk; then the lane ends, unless it
/// is to be patient.
const REFUSED_MAX: u32 = 60;

/// The orders for the program.
#[derive(Clone, Debug)]
pub struct Order {
    /// The store's folder.
    pub path: PathBuf,
    /// The script's seed.
    pub seed: u64,
    /// The script's cycle.
    pub cycle: u64,
    /// The maximum number of operations of a lane; 0: no limit.
    pub ops: u64,
    /// Whether system calls fail: then errors are expected.
    pub faulty: bool,
    /// Whether the disk fills and empties: then a lane waits for space.
    pub patient: bool,
    /// For `verify`: whether to open the store as a reader, which changes nothing.
    pub reader: bool,
}

impl Order {
    /// Orders without anything special.
    pub fn new(path: &Path, seed: u64, cycle: u64) -> Order {
        Order {
            path: path.to_path_buf(),
            seed,
            cycle,
            ops: 0,
            faulty: false,
            patient: false,
            reader: false,
        }
    }

    /// The orders as arguments.
    pub fn words(&self, what: &str) -> Vec<String> {
        let mut words = vec![
            what.to_string(),
            self.path.display().to_string(),
            self.seed.to_string(),
            self.cycle.to_string(),
            self.ops.to_string(),
        ];
        let switches = [
            (self.faulty, "faulty"),
            (self.patient, "patient"),
            (self.reader, "reader"),
        ];
        words.extend(
            switches
                .iter()
                .filter(|(on, _)| *on)
                .map(|(_, w)| w.to_string()),
        );
        words
    }

    fn parse(words: &[String]) -> Option<Order> {
        let number = |at: usize| words.get(at)?.parse().ok();
        let has = |word: &str| words[1..].iter().any(|w| w == word);
        Some(Order {
            path: PathBuf::from(words.first()?),
            seed: number(1)?,
            cycle: number(2)?,
            ops: number(3)?,
            faulty: has("faulty"),
            patient: has("patient"),
            reader: has("reader"),
        })
    }

    fn script(&self) -> Script {
        let script = Script::new(self.seed, self.cycle);
        match self.faulty || self.patient {
            true => script.without_long_keys(),
            false => script,
        }
    }

    pub(super) fn options(&self) -> Options {
        // The question is about the parent folder, because the store creates its own folder.
        let above = self.path.parent().unwrap_or(Path::new("."));
        let direct = FileStorage::open_existing(above).is_ok_and(|s| s.check_direct().is_ok());
        let mut options = self.script().options(direct);
        if self.reader {
            // A reader keeps in memory all that the log holds; with the largest keys that may be
            // more than the smallest budget.
            options.replay_bytes_max = 256 << 20;
        }
        options
    }
}

/// The reason for the victim's end.
#[derive(Debug)]
pub(super) enum End {
    /// The parent has closed the pipe.
    Alone,
    /// This status and text.
    Status(i32, String),
}

impl From<std::io::Error> for End {
    fn from(_: std::io::Error) -> End {
        End::Alone
    }
}

pub(super) type Outcome<T = ()> = Result<T, End>;

pub(super) fn wrong(text: String) -> End {
    End::Status(WRONG, text)
}

/// The program `victim`. Returns its exit status.
pub fn main(words: &[String]) -> i32 {
    let usage = "victim run|verify|check FOLDER SEED CYCLE OPERATIONS [faulty] [patient] [reader]";
    let Some(order) = words.split_first().and_then(|(_, w)| Order::parse(w)) else {
        eprintln!("usage: {usage}");
        return 64;
    };
    let ended = match words[0].as_str() {
        "run" => run(&order),
        "verify" => verifier::verify(&order),
        "check" => verifier::check_closed(&order.path),
        _ => Err(End::Status(64, format!("usage: {usage}"))),
    };
    match ended {
        Ok(()) => 0,
        Err(End::Alone) => ALONE,
        Err(End::Status(status, text)) => {
            eprintln!("victim: {text}");
            status
        }
    }
}

fn now_us() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |d| d.as_micros() as u64)
}

pub(super) fn standard_output() -> Outcome<File> {
    Ok(File::from(std::io::stdout().as_fd().try_clone_to_owned()?))
}

pub(super) fn not_open(error: &Error) -> End {
    End::Status(NOT_OPEN, format!("not open: [{}] {error}", error.kind()))
}

/// A system call that fails may keep a lane from starting: that is an error of the victim and not
/// of the store.
fn no_thread(error: &std::io::Error) -> End {
    End::Status(NOT_OPEN, format!("not open: [thread] {error}"))
}

fn health_of(store: &Store) -> Health {
    let health = store.stats().health;
    if health == "good" {
        Health::Good
    } else if health.starts_with("no space") {
        Health::NoSpace
    } else {
        Health::Poisoned
    }
}

/// The state that the lanes share.
struct Stage<'a> {
    order: &'a Order,
    script: Script,
    store: Store,
    pipe: Pipe,
    stop: &'static AtomicBool,
    at_work: AtomicU64,
}

fn run(order: &Order) -> Outcome {
    let pipe = Pipe::new(standard_output()?);
    let store = Store::open(&order.path, order.options()).map_err(|e| not_open(&e))?;
    pipe.send(Message::Opened {
        at_us: now_us(),
        replayed: store.stats().counter("replayed_record_count"),
    })?;
    for name in SHARED {
        store.open_keyspace(name).map_err(|e| not_open(&e))?;
    }
    pipe.send(Message::Ready)?;
    let stop: &'static AtomicBool = Box::leak(Box::default());
    // The thread is not joined: its read ends with the parent's request, or with the process.
    let waits = std::thread::Builder::new().spawn(move || {
        let _ = std::io::stdin().read(&mut [0; 1]);
        stop.store(true, Ordering::Release);
    });
    waits.map_err(|e| no_thread(&e))?;
    let stage = Stage {
        order,
        script: order.script(),
        store,
        pipe,
        stop,
        at_work: AtomicU64::new(LANES as u64),
    };
    std::thread::scope(|scope| {
        let stage = &stage;
        let lanes: Vec<_> = (0..LANES)
            .map(|lane| {
                let spawned = std::thread::Builder::new().spawn_scoped(scope, move || {
                    let result = Worker::begin(stage, lane).and_then(|mut w| w.work());
                    if result.is_err() {
                        stage.stop.store(true, Ordering::Release);
                    }
                    stage.at_work.fetch_sub(1, Ordering::AcqRel);
                    result
                });
                if spawned.is_err() {
                    stage.stop.store(true, Ordering::Release);
                    stage.at_work.fetch_sub(1, Ordering::AcqRel);
                }
                spawned
            })
            .collect();
        let mut watched = Ok(());
        while stage.at_work.load(Ordering::Acquire) > 0 && watched.is_ok() {
            watched = stage.send_state();
            std::thread::sleep(STATE_EVERY);
        }
        if watched.is_err() {
            stage.stop.store(true, Ordering::Release);
        }
        for lane in lanes {
            lane.map_err(|e| no_thread(&e))?
                .join()
                .map_err(|_| wrong("a lane panicked".to_string()))??;
        }
        watched?;
        stage.send_state()
    })?;
    stage.pipe.send(Message::Closing { at_us: now_us() })?;
    let closed = stage.store.close();
    stage.pipe.send(Message::Closed {
        fine: closed.is_ok(),
    })?;
    match closed {
        Err(e) if !order.faulty && !order.patient => Err(wrong(format!("close: {e}"))),
        Err(e) => {
            eprintln!("victim: close: [{}] {e}", e.kind());
            Ok(())
        }
        Ok(()) => Ok(()),
    }
}

impl Stage<'_> {
    fn send_state(&self) -> Outcome {
        let stats = self.store.stats();
        let narrow = |name: &str| u32::try_from(stats.counter(name)).unwrap_or(u32::MAX);
        let state = Message::State {
            jobs: stats.jobs.len() as u64,
            health: health_of(&self.store),
            job_error: stats.last_job_error.is_some(),
            flushes: narrow("flush_count"),
            compactions: narrow("compaction_count"),
            log_bytes: stats.log.appended_bytes,
            ingests: narrow("ingest_count"),
            redirected: narrow("redirected_flush_count"),
        };
        Ok(self.pipe.send(state)?)
    }

    /// With a second location of tables, chooses the one to which flushes go from operation `n` of a
    /// lane on. Without pressure they would all go to the first one.
    fn choose_location(&self, lane: usize, n: u64) {
        if !self.store.stats().locations.is_empty() {
            let location = self.script.location(lane, n);
            self.store.test_hooks().force_location(location);
        }
    }

    /// Whether an error is allowed.
    fn allow(&self, error: &Error, what: &str) -> Outcome {
        let expected = match error.kind() {
            ErrorKind::InvalidArgument | ErrorKind::Locked | ErrorKind::ReadOnly => false,
            ErrorKind::NoSpace => self.order.faulty || self.order.patient,
            _ => self.order.faulty,
        };
        match expected {
            true => {
                eprintln!("victim: {what}: [{}] {error}", error.kind());
                Ok(())
            }
            false => Err(wrong(format!(
                "{what}: unexpected: [{}] {error}",
                error.kind()
            ))),
        }
    }
}

/// The result of a call.
enum Went {
    Well,
    /// It failed; the flag says whether it is known to have had no effect.
    Wrong(Error, bool),
}

/// A lane.
struct Worker<'a> {
    stage: &'a Stage<'a>,
    lane: usize,
    shared: Vec<Keyspace>,
    own: Option<Keyspace>,
    /// The expected contents.
    wanted: Lane,
    snapshots: Vec<(Snapshot, Lane)>,
    outside: PathBuf,
}

impl<'a> Worker<'a> {
    fn begin(stage: &'a Stage<'a>, lane: usize) -> Outcome<Worker<'a>> {
        let shared: Result<Vec<_>, _> = SHARED.iter().map(|n| stage.store.keyspace(n)).collect();
        let mut worker = Worker {
            stage,
            lane,
            shared: shared.map_err(|e| not_open(&e))?,
            own: stage.store.keyspace(&own_name(lane)).ok(),
            wanted: Lane::default(),
            snapshots: Vec::new(),
            outside: stage.order.path.with_extension("outside"),
        };
        worker.wanted = match worker.found() {
            Ok(found) => found,
            Err(e) => {
                stage.allow(&e, "reading at the start")?;
                return Err(not_open(&e));
            }
        };
        Ok(worker)
    }

    fn keyspace(&self, space: usize) -> Option<&Keyspace> {
        self.shared.get(space).or(self.own.as_ref())
    }

    /// The contents of this lane in the store.
    fn found(&self) -> siltstone::Result<Lane> {
        let mut found = Lane {
            own: self.own.is_some(),
            ..Lane::default()
        };
        for space in 0..SPACES {
            if let Some(keyspace) = self.keyspace(space) {
                found.spaces[space] = self.read(keyspace, None, false)?.into_iter().collect();
            }
        }
        Ok(found)
    }

    /// The lane's pairs in the order of a scan, reversed for a scan from the end.
    fn read(
        &self,
        keyspace: &Keyspace,
        at: Option<&Snapshot>,
        back: bool,
    ) -> siltstone::Result<Vec<(Bytes, Bytes)>> {
        let options = IterOptions::prefix(&prefix(self.lane));
        let mut cursor = match at {
            Some(snapshot) => keyspace.cursor_at(snapshot, options)?,
            None => keyspace.cursor(options)?,
        };
        scan(&mut cursor, back)
    }

    fn work(&mut self) -> Outcome {
        let (mut unsure, mut refused) = (0, 0);
        for n in 0.. {
            let limit = self.stage.order.ops;
            if self.stage.stop.load(Ordering::Acquire) || (limit > 0 && n >= limit) {
                break;
            }
            let op = self.stage.script.op(self.lane, n);
            let lane = self.lane;
            if n == 0 || matches!(op, Op::Flush(_) | Op::FlushAll) {
                self.stage.choose_location(lane, n);
            }
            if !op.changes() {
                if let Err(e) = self.look(&op)? {
                    self.stage
                        .allow(&e, &format!("lane {lane}, operation {n}, {}", op.word()))?;
                    // Slow down, because this may fail permanently.
                    std::thread::sleep(Duration::from_millis(1));
                }
                continue;
            }
            if !self.wanted.is_changed_by(&op) {
                continue;
            }
            let own = self.own.is_some();
            self.stage.pipe.send(Message::Begun { lane, n, own })?;
            match self.change(&op, n) {
                Went::Well => {
                    self.stage.pipe.send(Message::Done { lane, n })?;
                    self.wanted.apply(&op);
                }
                Went::Wrong(error, sure) => {
                    let kind = error.kind();
                    self.stage.pipe.send(Message::Failed {
                        lane,
                        n,
                        sure,
                        kind,
                    })?;
                    self.stage.allow(
                        &error,
                        &format!("lane {lane}, operation {n}, {}", op.word()),
                    )?;
                    if sure {
                        refused += 1;
                        if refused > REFUSED_MAX && !self.stage.order.patient {
                            break;
                        }
                        std::thread::sleep(Duration::from_millis(2));
                    } else {
                        unsure += 1;
                        if unsure >= UNSURE_MAX || !self.settle(&op, n)? {
                            break;
                        }
                    }
                }
            }
        }
        Ok(())
    }

    /// Resolves a write of which it is not known whether it had an effect: it must be there as a
    /// whole or not at all. False if nothing can be read.
    fn settle(&mut self, op: &Op, n: u64) -> Outcome<bool> {
        self.own = self.stage.store.keyspace(&own_name(self.lane)).ok();
        let found = match self.found() {
            Ok(found) => found,
            Err(e) => {
                self.stage.allow(&e, "reading after a failure")?;
                return Ok(false);
            }
        };
        let mut after = self.wanted.clone();
        after.apply(op);
        if let Some(difference) = self.wanted.difference(&found, self.lane)
            && after != found
        {
            return Err(wrong(format!(
                "lane {}, operation {n}, {}: failed, and is there by half: {difference}",
                self.lane,
                op.word()
            )));
        }
        self.wanted = found;
        Ok(true)
    }

    fn change(&mut self, op: &Op, n: u64) -> Went {
        let store = &self.stage.store;
        let done = match op {
            Op::Write { entries, sync } => self.write(entries, *sync),
            Op::Ingest { space, pairs, mode } => {
                let Some(keyspace) = self.keyspace(*space) else {
                    return Went::Well;
                };
                let files = match self.build(pairs, n) {
                    Ok(files) => files,
                    Err(e) => return Went::Wrong(e, true),
                };
                store.ingest(&[(keyspace, files)], *mode).map(drop)
            }
            Op::Create => {
                let created = store.create_keyspace(&own_name(self.lane));
                created.map(|keyspace| self.own = Some(keyspace))
            }
            Op::Drop => {
                let dropped = store.drop_keyspace(&own_name(self.lane));
                dropped.map(|()| self.own = None)
            }
            _ => Ok(()),
        };
        match done {
            Ok(()) => Went::Well,
            // A full disk refuses the write before anything is written.
            Err(e) => {
                let sure = e.kind() == ErrorKind::NoSpace;
                Went::Wrong(e, sure)
            }
        }
    }

    fn write(&self, entries: &[Entry], sync: bool) -> siltstone::Result<()> {
        let entries = self.wanted.possible(entries);
        let keyspace = |space: usize| {
            self.keyspace(space)
                .ok_or_else(|| Error::not_found("the lane's own keyspace"))
        };
        if let ([entry], false) = (&entries[..], sync) {
            let keyspace = keyspace(entry.space())?;
            return match entry {
                Entry::Put(_, key, value) => keyspace.put(key, value),
                Entry::Delete(_, key) => keyspace.delete(key),
                Entry::DeleteRange(_, from, to) => keyspace.delete_range(from, to),
            };
        }
        let mut batch = Batch::new();
        for entry in entries {
            let keyspace = keyspace(entry.space())?;
            match entry {
                Entry::Put(_, key, value) => batch.put(keyspace, key, value)?,
                Entry::Delete(_, key) => batch.delete(keyspace, key)?,
                Entry::DeleteRange(_, from, to) => batch.delete_range(keyspace, from, to)?,
            }
        }
        self.stage.store.write(
            &batch,
            WriteOptions {
                sync,
                ..WriteOptions::default()
            },
        )
    }

    fn build(&self, pairs: &[(Bytes, Option<Bytes>)], n: u64) -> siltstone::Result<Vec<TableFile>> {
        let folder = TableFolder::create(&self.outside)?;
        let name = format!("{}-{}-{n}", self.stage.order.cycle, self.lane);
        let options = TableOptions {
            table_bytes: 4096 << (n % 5),
            block_bytes: 512 << (n % 4),
            ..TableOptions::default()
        };
        let mut builder = TableBuilder::new(&folder, &name, options)?;
        for (key, value) in pairs {
            match value {
                Some(value) => builder.put(key, value)?,
                None => builder.delete(key)?,
            }
        }
        Ok(builder.finish()?.into_iter().map(|t| t.file).collect())
    }

    /// An operation that changes nothing. An error of the store is returned inside.
    fn look(&mut self, op: &Op) -> Outcome<siltstone::Result<()>> {
        let store = &self.stage.store;
        let differs = |what: &str, space: usize| {
            let name = space_name(self.lane, space);
            wrong(format!(
                "lane {}: {what} of keyspace {name} is not what was written",
                self.lane
            ))
        };
        let looked = match op {
            Op::Flush(space) => self.keyspace(*space).map_or(Ok(()), Keyspace::flush),
            Op::FlushAll => match store.flush() {
                // Another lane's keyspace may be dropped meanwhile.
                Err(e) if e.kind() == ErrorKind::KeyspaceDropped => Ok(()),
                flushed => flushed,
            },
            Op::Compact(space, range) => match (self.keyspace(*space), range) {
                (None, _) => Ok(()),
                (Some(keyspace), None) => keyspace.compact_range(None, None),
                (Some(keyspace), Some((from, to))) => keyspace.compact_range(Some(from), Some(to)),
            },
            Op::SyncLog => store.sync_log(),
            Op::Verify => match store.verify(&mut |_| {}) {
                Ok(report) if report.is_sound() || self.stage.order.faulty => Ok(()),
                Ok(report) => {
                    return Err(wrong(format!("verify finds damage: {:?}", report.problems)));
                }
                Err(e) => Err(e),
            },
            Op::Get(space, key) => match self.keyspace(*space) {
                None => Ok(()),
                Some(keyspace) => match keyspace.get(key) {
                    Ok(found) => {
                        if found.as_deref() != self.wanted.spaces[*space].get(key).map(|v| &v[..]) {
                            return Err(differs(&key.escape_ascii().to_string(), *space));
                        }
                        Ok(())
                    }
                    Err(e) => Err(e),
                },
            },
            Op::Scan { space, back } => match self.keyspace(*space) {
                None => Ok(()),
                Some(keyspace) => match self.read(keyspace, None, *back) {
                    Ok(found) => {
                        if !same(&found, &self.wanted.spaces[*space]) {
                            return Err(differs("a scan", *space));
                        }
                        Ok(())
                    }
                    Err(e) => Err(e),
                },
            },
            Op::TakeSnapshot => {
                if self.snapshots.len() < 2 {
                    self.snapshots.push((store.snapshot(), self.wanted.clone()));
                }
                Ok(())
            }
            Op::ReadSnapshot { space, drop } => {
                let read = match self.snapshots.first() {
                    None => Ok(()),
                    Some((snapshot, wanted)) => {
                        match self.read(&self.shared[*space], Some(snapshot), false) {
                            Ok(found) => {
                                if !same(&found, &wanted.spaces[*space]) {
                                    return Err(differs("a snapshot", *space));
                                }
                                Ok(())
                            }
                            Err(e) => Err(e),
                        }
                    }
                };
                if *drop && !self.snapshots.is_empty() {
                    self.snapshots.remove(0);
                }
                read
            }
            _ => Ok(()),
        };
        Ok(looked)
    }
}

pub(super) fn same(found: &[(Bytes, Bytes)], wanted: &Pairs) -> bool {
    found.len() == wanted.len()
        && found
            .iter()
            .zip(wanted)
            .all(|(f, w)| (&f.0, &f.1) == (w.0, w.1))
}

/// All pairs of a cursor in ascending order, read forward or backward.
pub(super) fn scan(cursor: &mut Cursor, back: bool) -> siltstone::Result<Vec<(Bytes, Bytes)>> {
    let mut pairs = Vec::new();
    match back {
        true => cursor.seek_to_last()?,
        false => cursor.seek_to_first()?,
    }
    while cursor.valid() {
        pairs.push((Bytes::from(cursor.key()), Bytes::from(cursor.value())));
        match back {
            true => cursor.prev()?,
            false => cursor.next()?,
        }
    }
    if back {
        pairs.reverse();
    }
    Ok(pairs)
}

//! Histories with threads of the operating system, on a folder, in processes that are killed.
//!
//! A life is a process: it opens the store, its clients work, and it ends by SIGKILL or by itself.
//! Its clients' notes are files ([`super::history_file`]), which the parent combines. Lives do not
//! overlap, so the times of each life are after the times of the previous one. The last life is the
//! parent's own, which closes the store.
//!
//! Threading: one thread for each client.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use siltstone::{Options, Store, SyncMode};
use siltstone_storage::Runtime;

use super::history_file::{self, HistoryFile};
use super::{Client, Clock, Notes, OPERATIONS, draw_options, verdict};
use crate::coverage::Coverage;
use crate::linear::{End, Operation};
use crate::rng::Rng;

/// The environment variable of a child: seed, number of its first client, start time, folder.
const CHILD: &str = "SILT_HISTORY_CHILD";

/// Nanoseconds since the first call in the process, of a clock that all cores share and that no
/// thread waits for.
pub(super) fn machine_nanos() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64
}

/// Runs one seed with threads on a new store in the empty folder `folder`: a history of about a
/// thousand operations. `child` is a test of the calling binary that only calls [`history_child`].
///
/// # Panics
/// If no order explains the history (with the operations in conflict), or at an unexpected error.
pub fn linearizable_threads_trial(seed: u64, folder: &Path, child: &str) -> Coverage {
    let mut coverage = Coverage::default();
    if let Err(e) = history(seed, folder, child, &mut coverage) {
        panic!("seed {seed}, threads: {e}");
    }
    coverage
}

fn history(seed: u64, folder: &Path, child: &str, coverage: &mut Coverage) -> Result<(), String> {
    let mut rng = Rng::new(seed);
    let mut operations: Vec<Operation> = Vec::new();
    let mut life = 0;
    // A child that is killed early has done little; the number of children does not depend on the
    // machine's speed.
    while life < 8 && operations.len() < OPERATIONS / 2 {
        let base = latest(&operations) + 1;
        let first_client = 1 + life * 100;
        let killed = child_life(child, folder, rng.draw(), first_client, base, &mut rng)?;
        coverage.add(match killed {
            true => "threads.killed",
            false => "threads.ended",
        });
        let mut more = Vec::new();
        for client in 0..CLIENTS_MAX {
            let path = notes_path(folder, first_client + client);
            if path.exists() {
                more.extend(history_file::read(&path, first_client + client)?);
            }
        }
        let over = latest(&more).max(base) + 1;
        for operation in &mut more {
            if operation.end == End::Cut(u64::MAX) {
                operation.end = End::Cut(over);
            }
        }
        operations.extend(more);
        life += 1;
    }
    let clock = Clock::Machine(latest(&operations) + 1);
    let count = clients(&mut rng);
    let notes: Vec<Notes> = (0..count)
        .map(|i| Notes::new(&clock, 1 + life * 100 + i))
        .collect();
    let each = OPERATIONS / 2 / count as usize;
    let store = one_life(&folder.join("store"), &notes, each, &mut rng)?;
    coverage.take_stats(&store.stats());
    store.close().map_err(|e| format!("close: {e}"))?;
    coverage.add("threads.closed");
    operations.extend(notes.iter().flat_map(|notes| notes.take(u64::MAX)));
    verdict(operations, coverage)
}

/// The last time in the notes.
fn latest(operations: &[Operation]) -> u64 {
    let times = operations.iter().map(|o| match o.end {
        End::Cut(u64::MAX) => o.called,
        end => end.time().max(o.called),
    });
    times.max().unwrap_or(0)
}

const CLIENTS_MAX: u32 = 8;

fn clients(rng: &mut Rng) -> u32 {
    4 + rng.below(u64::from(CLIENTS_MAX) - 3) as u32
}

fn notes_path(folder: &Path, client: u32) -> PathBuf {
    folder.join(format!("notes-{client}"))
}

/// Starts a process and kills it, unless it ends before. Returns true if it was killed.
fn child_life(
    child: &str,
    folder: &Path,
    seed: u64,
    first_client: u32,
    base: u64,
    rng: &mut Rng,
) -> Result<bool, String> {
    let exe = std::env::current_exe().map_err(|e| format!("this binary: {e}"))?;
    let mut process = Command::new(exe)
        .args(["--exact", child, "--nocapture"])
        .env(
            CHILD,
            format!("{seed} {first_client} {base} {}", folder.display()),
        )
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|e| format!("a child: {e}"))?;
    // The time counts from the moment at which the child's first client has a file, so that a slow
    // start does not count. In some runs the kill comes at any time.
    let first = notes_path(folder, first_client);
    let early = rng.chance(10);
    let mut waits = rng.below(60);
    let status = loop {
        if let Some(status) = process.try_wait().map_err(|e| format!("a child: {e}"))? {
            break status;
        }
        if early || first.exists() {
            if waits == 0 {
                process.kill().map_err(|e| format!("kill: {e}"))?;
                break process.wait().map_err(|e| format!("a child: {e}"))?;
            }
            waits -= 1;
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    // An exit code means that the child ended by itself.
    match status.code() {
        None => Ok(true),
        Some(0) => Ok(false),
        Some(code) => {
            let mut text = String::new();
            if let Some(mut errors) = process.stderr.take() {
                let _ = std::io::Read::read_to_string(&mut errors, &mut text);
            }
            Err(format!("a child ended with {code}: {text}"))
        }
    }
}

/// The work of a child; does nothing in other processes.
///
/// # Panics
/// At an unexpected error; the parent shows it.
pub fn history_child() {
    let Ok(instructions) = std::env::var(CHILD) else {
        return;
    };
    let words: Vec<&str> = instructions.splitn(4, ' ').collect();
    let number = |at: usize| -> u64 { words[at].parse().expect("a number from the parent") };
    let (seed, first_client, base) = (number(0), number(1) as u32, number(2));
    let folder = Path::new(words[3]);
    let mut rng = Rng::new(seed);
    let clock = Clock::Machine(base);
    let count = clients(&mut rng);
    let notes = (0..count).map(|i| {
        let client = first_client + i;
        let history_file =
            HistoryFile::create(&notes_path(folder, client)).expect("a file for notes");
        Notes {
            history_file: Some(Arc::new(history_file)),
            ..Notes::new(&clock, client)
        }
    });
    let notes: Vec<Notes> = notes.collect();
    match one_life(&folder.join("store"), &notes, OPERATIONS, &mut rng) {
        // The child ends without closing the store, like a program that forgets to close it.
        Ok(store) => std::mem::forget(store),
        Err(e) => panic!("{e}"),
    }
}

fn one_life(folder: &Path, notes: &[Notes], each: usize, rng: &mut Rng) -> Result<Store, String> {
    let mut options: Options = draw_options(rng);
    // If all writes of every client were synced, they would take most of the time, and few
    // operations would overlap.
    if options.sync == SyncMode::Always && rng.chance(50) {
        options.sync = SyncMode::Never;
    }
    let runtime = Runtime::threads();
    let store = Store::open(folder, options).map_err(|e| format!("open: {e}"))?;
    let mut clients = Vec::new();
    for notes in notes {
        clients.push(Client::new(&runtime, &store, notes, rng.draw())?);
    }
    clients[0].look()?;
    let threads: Vec<_> = clients
        .into_iter()
        .map(|mut client| std::thread::spawn(move || client.work(each).map(|()| client)))
        .collect();
    let mut last = None;
    for thread in threads {
        let client = thread.join().map_err(|_| "a client panicked".to_string())?;
        last = Some(client?);
    }
    if let Some(client) = &mut last {
        client.look()?;
    }
    Ok(store)
}

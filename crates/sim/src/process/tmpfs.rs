//! Row 5 on a real small file system: it fills up, from outside and by a victim at work, and is
//! freed again.
//!
//! These must hold: writes are refused with `NoSpace` and no other error; reads continue and are
//! right; writing resumes by itself when there is space, without a reopen; nothing acknowledged is
//! missing, whether the store is closed, killed while the disk is full, or opened while it is full.

use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::process::Signal;
use siltstone::{ErrorKind, Keyspace, Store};

use super::parent::{Bench, PATIENCE, Received, Victim, settled};
use super::script::{Script, VERIFYING};
use super::victim::Order;
use crate::coverage::Coverage;
use crate::rng::Rng;

/// The size of the file system, in MiB.
pub const TMPFS_MIB: u32 = 32;
/// How often a seed fills it.
const ROUNDS: u64 = 5;
/// The number of acknowledged changes that show that writing works again.
const RESUMED: u64 = 30;

/// What row 5 on a real file system must reach.
pub const TMPFS_REACHED: &[&str] = &[
    "ballast.dropped",
    "filled.from_outside",
    "filled.from_inside",
    "full.closed",
    "full.killed",
    "full.opened",
    "op.put",
    "refused.no_space",
    "resumed.by_itself",
    "verified.by_a_writer",
];

/// A foreign file that takes the remaining space of the disk.
struct Filler(PathBuf);

impl Filler {
    /// Takes all space but about `left` bytes.
    fn take(path: PathBuf, left: u64) -> Result<Filler, String> {
        let failed = |e: std::io::Error| format!("the filler: {e}");
        let mut file = File::create(&path).map_err(failed)?;
        for step in [1 << 20, 64 << 10, 4 << 10] {
            let bytes = vec![1u8; step];
            while file.write_all(&bytes).is_ok() {}
        }
        let filler = Filler(path);
        if left > 0 {
            let len = file.metadata().map_err(failed)?.len();
            file.set_len(len.saturating_sub(left)).map_err(failed)?;
        }
        Ok(filler)
    }

    fn give_back(&self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Drop for Filler {
    fn drop(&mut self) {
        self.give_back();
    }
}

/// Runs one seed: `folder` lies on the small file system and is emptied first. `program` is the
/// victim's.
///
/// # Panics
/// At the first loss, wrong answer, other error than `NoSpace`, panic or hang.
pub fn tmpfs_trial(seed: u64, program: &Path, folder: &Path) -> Coverage {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let _ = std::fs::remove_dir_all(&path);
        let _ = std::fs::remove_file(&path);
    }
    let mut bench = Bench::new(seed, program, Some(folder));
    let mut rng = Rng::new(seed ^ 0x7F5);
    for cycle in 0..ROUNDS {
        let result = round(&mut bench, cycle, &mut rng);
        if result.is_err() {
            return settled(bench, "small_tmpfs", result, &format!("round {cycle}"));
        }
    }
    let result = from_inside(&mut bench);
    settled(bench, "small_tmpfs", result, "filled from inside")
}

/// Receives the victim's messages until a condition holds.
fn until(
    bench: &mut Bench,
    victim: &Victim,
    what: &str,
    holds: impl Fn(&Bench) -> bool,
) -> Result<(), String> {
    let start = Instant::now();
    while !holds(bench) {
        match victim.next(Duration::from_millis(100)) {
            Received::Message(message) => bench.expected.receive(message?)?,
            Received::End => return Err(format!("the victim ended: {}", victim.errors())),
            Received::Silence => {}
        }
        if start.elapsed() > PATIENCE {
            return Err(bench.hang(victim, what));
        }
    }
    Ok(())
}

/// A victim works while the disk fills up and is freed.
fn round(bench: &mut Bench, cycle: u64, rng: &mut Rng) -> Result<(), String> {
    let order = Order {
        patient: true,
        ..bench.order(cycle)
    };
    let later = Order {
        cycle: cycle + VERIFYING,
        ..order.clone()
    };
    let script = Script::new(bench.seed, cycle).without_long_keys();
    let ballast = bench.beside("ballast");
    let mut victim = bench.start(&order, script, &[])?;
    until(bench, &victim, "does not begin to work", |b| {
        b.expected.said().ready
    })?;
    let some = rng.below(200);
    until(bench, &victim, "does not work", |b| {
        b.expected.said().done >= some
    })?;
    let mut filler = None;
    for _ in 0..1 + rng.below(3) {
        let left = *rng.pick(&[0, 0, 16 << 10, 200 << 10]);
        let full = Filler::take(ballast.clone(), left)?;
        let before = bench.expected.said().no_space;
        let done = bench.expected.said().done;
        until(
            bench,
            &victim,
            "does not report that the disk is full",
            |b| {
                // With a little space, compactions may free more space repeatedly.
                let enough = left > 0 && b.expected.said().done > done + 10 * RESUMED;
                enough || b.expected.said().no_space > before
            },
        )?;
        bench.coverage.add("filled.from_outside");
        if bench.expected.said().no_space > before {
            bench.coverage.add("refused.no_space");
        }
        if rng.chance(30) {
            filler = Some(full);
            break;
        }
        full.give_back();
        // Earlier messages do not count; what is acknowledged from here on has found space.
        let done = bench.expected.said().done;
        until(bench, &victim, "does not go on when there is room", |b| {
            b.expected.said().done >= done + RESUMED
        })?;
        bench.coverage.add("resumed.by_itself");
    }
    let full = filler.is_some();
    if rng.chance(50) {
        victim.signal(Signal::KILL);
        bench.killed(&mut victim)?;
        bench
            .coverage
            .add(if full { "full.killed" } else { "killed" });
    } else {
        bench.ended_well(&mut victim)?;
        bench
            .coverage
            .add(if full { "full.closed" } else { "closed" });
    }
    drop(victim);
    if full || rng.chance(30) {
        // The store is opened without any space: all data can be read.
        if filler.is_none() {
            filler = Some(Filler::take(ballast, 0)?);
        }
        match bench.verify(&later) {
            // The log's contents either go to tables, for which there is no space, or stay in
            // memory, up to a bound that users set.
            Err(e) if e.contains("replay_bytes_max") => {
                bench.coverage.add("full.refused_beyond_replay_bytes");
            }
            opened => {
                opened?;
                bench.coverage.add("full.opened");
            }
        }
    }
    drop(filler);
    bench.verify(&later)
}

/// The store's own data fill the disk, and dropping a keyspace frees space.
fn from_inside(bench: &mut Bench) -> Result<(), String> {
    let script = Script::new(bench.seed, ROUNDS).without_long_keys();
    let failed = |what: &str| {
        let what = what.to_string();
        move |e: siltstone::Error| format!("{what}: [{}] {e}", e.kind())
    };
    let store = Store::open(&bench.store, script.options(false)).map_err(failed("open"))?;
    let ballast = store
        .create_keyspace("ballast")
        .map_err(failed("create_keyspace"))?;
    let value = |n: u64| {
        let mut rng = Rng::new(n);
        let words = (0..500).flat_map(|_| rng.draw().to_le_bytes());
        words.collect::<Vec<u8>>()
    };
    let mut stored = 0u64;
    let error = loop {
        match ballast.put(&stored.to_be_bytes(), &value(stored)) {
            Ok(()) => stored += 1,
            Err(e) => break e,
        }
        if stored << 12 > u64::from(TMPFS_MIB) << 22 {
            return Err("the disk never fills".to_string());
        }
    };
    if error.kind() != ErrorKind::NoSpace {
        return Err(failed("a put that fills the disk")(error));
    }
    bench.coverage.add("filled.from_inside");
    for n in 0..stored {
        let found = ballast
            .get(&n.to_be_bytes())
            .map_err(failed("a read from a full disk"))?;
        if found != Some(value(n)) {
            return Err(format!("on a full disk, key {n} of {stored} reads wrong"));
        }
    }
    store
        .drop_keyspace("ballast")
        .map_err(failed("dropping a keyspace on a full disk"))?;
    bench.coverage.add("ballast.dropped");
    let default = store
        .default_keyspace()
        .map_err(failed("the keyspace default"))?;
    resumes(&default, &store)?;
    bench.coverage.add("resumed.by_itself");
    drop((ballast, default));
    store.close().map_err(failed("close"))?;
    let order = bench.order(ROUNDS + VERIFYING);
    bench.verify(&order)
}

/// Writes and reverts until it works, and does nothing else to make it work.
fn resumes(keyspace: &Keyspace, store: &Store) -> Result<(), String> {
    let start = Instant::now();
    // A key of the first lane, far behind those that the lane uses.
    let key = b"a9999";
    loop {
        match keyspace.put(key, b"x").and_then(|()| keyspace.delete(key)) {
            Ok(()) => return Ok(()),
            Err(e) if e.kind() != ErrorKind::NoSpace => {
                return Err(format!("writing after room was made: [{}] {e}", e.kind()));
            }
            Err(_) if start.elapsed() > PATIENCE => {
                return Err(format!(
                    "writing does not resume though there is room: {}",
                    store.stats().health
                ));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

//! Row 4 on the real binary: its system calls fail, by `strace -e inject`, once or always.
//!
//! A first run under strace counts the calls of each thread. From these a call, an error and a
//! number are drawn, and the victim continues in the same folder with that fault. strace counts for
//! each thread separately, so several threads may meet the fault. The output of strace says which
//! file met it, and what was called on that file afterwards.
//!
//! These must hold: the victim continues, or says clearly what failed; nothing acknowledged is
//! missing for a process without faults; a failed sync of the log or of the manifest poisons the
//! store, and no write is acknowledged that began after a client got that error; no sync of a file
//! is called again after it failed (see [`synced_again`]); the failed sync of a table, or of
//! the folder of the second location of tables, does not poison; there is no panic and no hang.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::Signal;

use super::messages::{Health, Message};
use super::parent::{Bench, PATIENCE, Received, Victim, settled};
use super::script::{Script, VERIFYING};
use super::victim::{NOT_OPEN, Order};
use crate::coverage::Coverage;
use crate::rng::Rng;

/// The number of faults of a seed. Each has one run, and all runs use one folder.
pub const FAULTS: u64 = 5;
/// The number of operations of a lane in each run.
const OPS: u64 = 120;
/// With a permanent fault, a victim that makes no progress for this time and says why is left to
/// itself.
const STALL: Duration = Duration::from_secs(3);

/// The system calls of the store, how often each is chosen, and the errors that it gets.
const CALLS: &[(&str, u64, &[&str])] = &[
    (
        "fdatasync",
        36,
        &[
            "error=EIO",
            "error=EIO",
            "error=ENOSPC",
            "error=EDQUOT",
            "error=EINTR",
        ],
    ),
    ("fsync", 16, &["error=EIO", "error=ENOSPC", "error=EINTR"]),
    (
        "pwrite64",
        12,
        &[
            "error=EIO",
            "error=ENOSPC",
            "error=EDQUOT",
            "error=EINTR",
            "retval=0",
        ],
    ),
    (
        "pwritev",
        12,
        &[
            "error=EIO",
            "error=ENOSPC",
            "error=EDQUOT",
            "error=EINTR",
            "retval=0",
        ],
    ),
    (
        "openat",
        14,
        &[
            "error=EIO",
            "error=EMFILE",
            "error=ENFILE",
            "error=ENOSPC",
            "error=EACCES",
            "error=EINTR",
        ],
    ),
    ("pread64", 8, &["error=EIO", "error=EIO", "error=EINTR"]),
    ("mmap", 6, &["error=ENOMEM"]),
    (
        "fallocate",
        6,
        &[
            "error=ENOSPC",
            "error=EIO",
            "error=EOPNOTSUPP",
            "error=EINTR",
        ],
    ),
    ("ftruncate", 4, &["error=EIO", "error=ENOSPC"]),
    (
        "renameat",
        6,
        &["error=EIO", "error=ENOSPC", "error=EACCES"],
    ),
    ("renameat2", 3, &["error=EIO", "error=EINVAL"]),
    ("unlinkat", 6, &["error=EIO", "error=EACCES", "error=EBUSY"]),
    ("getdents64", 3, &["error=EIO"]),
    ("linkat", 3, &["error=EIO", "error=EXDEV", "error=EMLINK"]),
    ("mkdir", 2, &["error=ENOSPC", "error=EACCES"]),
    ("statx", 4, &["error=EIO", "error=ENOMEM"]),
    ("newfstatat", 3, &["error=EIO"]),
    ("fcntl", 2, &["error=ENOLCK", "error=EINTR"]),
    ("sync_file_range", 1, &["error=EIO"]),
];

/// What row 4 on the real binary must reach.
pub const STRACE_REACHED: &[&str] = &[
    "after.poisoned",
    "after.refused_open",
    "after.went_on",
    "call.fdatasync",
    "call.fsync",
    "call.openat",
    "call.pwritev",
    "fault",
    "fault.fired",
    "fault.for_good",
    "fault.once",
    "met.log",
    "met.manifest",
    "met.table",
    "verified.by_a_writer",
];

/// The reason why strace is of no use here: it is not installed, or may not trace.
pub fn without_strace() -> Option<String> {
    let output = Command::new("strace")
        .args([
            "-f",
            "--seccomp-bpf",
            "-o",
            "/dev/null",
            "-e",
            "trace=fsync",
            "true",
        ])
        .stdin(Stdio::null())
        .output();
    match output {
        Err(e) => Some(format!("strace cannot be run: {e}")),
        Ok(output) if !output.status.success() => Some(format!(
            "strace may not trace here: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        )),
        Ok(_) => None,
    }
}

/// The kind of a store's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Log,
    Manifest,
    Pointer,
    Table,
    Folder,
    /// The folder of the second location of tables.
    Redirect,
    Other,
}

impl Kind {
    fn word(self) -> &'static str {
        match self {
            Kind::Log => "log",
            Kind::Manifest => "manifest",
            Kind::Pointer => "pointer",
            Kind::Table => "table",
            Kind::Folder => "folder",
            Kind::Redirect => "second_location",
            Kind::Other => "other",
        }
    }

    fn of(path: &str, store: &str) -> Kind {
        let name = path.rsplit('/').next().unwrap_or_default();
        match name {
            _ if name.ends_with(".log") => Kind::Log,
            _ if name.starts_with("MANIFEST-") => Kind::Manifest,
            _ if name.starts_with("CURRENT") || name.starts_with(".CURRENT") => Kind::Pointer,
            _ if name.ends_with(".tbl") => Kind::Table,
            "the-log" | "the-tables" => Kind::Folder,
            "the-redirect" => Kind::Redirect,
            _ if path == store => Kind::Folder,
            _ => Kind::Other,
        }
    }
}

/// One traced call.
#[derive(Clone, Debug)]
struct Traced {
    thread: u32,
    at_us: u64,
    call: String,
    /// The file of the call, as far as the line shows it.
    path: String,
    injected: bool,
    /// The line of strace's output.
    text: String,
    /// The indexes of the events at which it began and ended.
    began: usize,
    ended: usize,
}

/// Parses the output of strace with `-f -y -ttt`.
fn parse(text: &str) -> Vec<Traced> {
    let mut all = Vec::new();
    let mut unfinished: BTreeMap<u32, Traced> = BTreeMap::new();
    for (place, line) in text.lines().enumerate() {
        let mut words = line.splitn(2, ' ');
        let Some(Ok(thread)) = words.next().map(str::parse) else {
            continue;
        };
        let rest = words.next().unwrap_or_default().trim_start();
        let Some((at, rest)) = rest.split_once(' ') else {
            continue;
        };
        let at_us = at.parse::<f64>().map_or(0, |s| (s * 1e6) as u64);
        let rest = rest.trim_start();
        if rest.starts_with("<...") {
            if let Some(mut call) = unfinished.remove(&thread) {
                call.injected = rest.contains("(INJECTED)");
                call.text = format!("{} ... {rest}", call.text);
                call.ended = place;
                all.push(call);
            }
            continue;
        }
        let Some((call, arguments)) = rest.split_once('(') else {
            continue;
        };
        let traced = Traced {
            thread,
            at_us,
            call: call.to_string(),
            path: match call.starts_with("rename") {
                // The new name of the file.
                true => arguments
                    .split_once("\", ")
                    .map_or_else(String::new, |(_, to)| path_of(to)),
                false => path_of(arguments),
            },
            injected: rest.contains("(INJECTED)"),
            text: rest.to_string(),
            began: place,
            ended: place,
        };
        match rest.ends_with("<unfinished ...>") {
            true => {
                unfinished.insert(thread, traced);
            }
            false => all.push(traced),
        }
    }
    all
}

/// The path of the first argument: that of a descriptor, and of a name after it if there is one.
fn path_of(arguments: &str) -> String {
    let of_descriptor = arguments
        .split_once('<')
        .and_then(|(_, rest)| rest.split_once('>'))
        .map_or("", |(path, _)| path);
    let first = arguments.split(')').next().unwrap_or_default();
    match first.split('"').nth(1) {
        Some(name) if name.starts_with('/') => name.to_string(),
        Some(name) if !name.is_empty() && !first.contains("\\0") => {
            format!("{of_descriptor}/{name}")
        }
        _ => of_descriptor.to_string(),
    }
}

/// A fault that was drawn.
#[derive(Clone, Debug)]
struct Fault {
    call: &'static str,
    what: &'static str,
    nth: u64,
    times: Times,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Times {
    Once,
    Thrice,
    ForGood,
}

impl Fault {
    /// The argument for strace.
    fn expression(&self) -> String {
        let (n, end) = (self.nth, self.nth + 2);
        let when = match self.times {
            Times::Once => format!("{n}"),
            Times::Thrice => format!("{n}..{end}"),
            Times::ForGood => format!("{n}+"),
        };
        format!("inject={}:{}:when={when}", self.call, self.what)
    }
}

/// How often each thread of the first run called each system call, and how often before it touched
/// the store.
struct Counted {
    calls: BTreeMap<String, Vec<u64>>,
    before: BTreeMap<String, u64>,
}

impl Counted {
    fn of(trace: &[Traced], store: &str) -> Counted {
        let mut threads: BTreeMap<(String, u32), u64> = BTreeMap::new();
        let mut before: BTreeMap<String, u64> = BTreeMap::new();
        let mut touched = false;
        for call in trace {
            touched |= call.path.starts_with(store);
            if !touched {
                *before.entry(call.call.clone()).or_default() += 1;
            }
            *threads.entry((call.call.clone(), call.thread)).or_default() += 1;
        }
        let mut calls: BTreeMap<String, Vec<u64>> = BTreeMap::new();
        for ((call, _), count) in threads {
            calls.entry(call).or_default().push(count);
        }
        Counted { calls, before }
    }

    fn draw(&self, rng: &mut Rng) -> Option<Fault> {
        let there: Vec<_> = CALLS
            .iter()
            .filter(|(call, ..)| self.calls.contains_key(*call))
            .collect();
        let mut at = rng.below(there.iter().map(|(_, weight, _)| weight).sum());
        let (call, _, errors) = there.into_iter().find(|(_, weight, _)| {
            let found = at < *weight;
            at = at.saturating_sub(*weight);
            found
        })?;
        let count = *rng.pick(&self.calls[*call]);
        let before = self.before.get(*call).copied().unwrap_or(0);
        let most = count.saturating_sub(before).max(1);
        let most = if rng.chance(25) { most.min(12) } else { most };
        let what = *rng.pick(errors);
        let times = match rng.below(10) {
            // A file system on which a call is always interrupted, or always writes nothing, is not
            // a file system.
            _ if what == "error=EINTR" => *rng.pick(&[Times::Once, Times::Thrice]),
            0..5 => Times::Once,
            5 => Times::Thrice,
            _ => Times::ForGood,
        };
        Some(Fault {
            call,
            what,
            nth: before + 1 + rng.below(most),
            times,
        })
    }
}

fn strace(log: &Path, traced: &str, inject: Option<&Fault>) -> Vec<String> {
    let mut words: Vec<String> = [
        "strace",
        "-f",
        "--seccomp-bpf",
        "-y",
        "-ttt",
        "-s",
        "64",
        "-o",
    ]
    .map(String::from)
    .into();
    words.push(log.display().to_string());
    words.extend(["-e", "signal=none", "-e"].map(String::from));
    words.push(format!("trace={traced}"));
    if let Some(fault) = inject {
        words.extend(["-e".to_string(), fault.expression()]);
    }
    words.push("--".to_string());
    words
}

/// Runs one seed: a run that counts, then [`FAULTS`] runs with a fault each, in one folder. The
/// store is verified each time. `program` is the victim's.
///
/// # Panics
/// At the first loss, wrong answer, panic, hang, or poison that is missing or wrong.
pub fn strace_trial(seed: u64, program: &Path) -> Coverage {
    let mut bench = Bench::new(seed, program, None);
    let mut rng = Rng::new(seed ^ 0x57AC);
    let counted = match count(&mut bench) {
        Ok(counted) => counted,
        Err(e) => return settled(bench, "strace_errors", Err(e), "the run that counts"),
    };
    for cycle in 1..=FAULTS {
        let Some(fault) = counted.draw(&mut rng) else {
            let result = Err("strace saw no call of the store".to_string());
            return settled(bench, "strace_errors", result, "the run that counts");
        };
        let result = with_fault(&mut bench, cycle, &fault);
        if result.is_err() {
            let what = format!("run {cycle}, {}", fault.expression());
            return settled(bench, "strace_errors", result, &what);
        }
    }
    settled(bench, "strace_errors", Ok(()), "")
}

fn order_of(bench: &Bench, cycle: u64) -> Order {
    Order {
        ops: OPS,
        faulty: true,
        ..bench.order(cycle)
    }
}

fn script_of(bench: &Bench, cycle: u64) -> Script {
    Script::new(bench.seed, cycle).without_long_keys()
}

fn read_log(log: &Path) -> Result<Vec<Traced>, String> {
    let text = std::fs::read(log).map_err(|e| format!("what strace wrote: {e}"))?;
    Ok(parse(&String::from_utf8_lossy(&text)))
}

fn count(bench: &mut Bench) -> Result<Counted, String> {
    let log = bench.beside("strace-0");
    let calls: Vec<&str> = CALLS.iter().map(|(call, ..)| *call).collect();
    let before = strace(&log, &calls.join(","), None);
    let order = order_of(bench, 0);
    let script = script_of(bench, 0);
    let mut victim = bench.start(&order, script, &before)?;
    work(bench, &mut victim, None)?;
    bench.ended_well(&mut victim)?;
    let later = bench.order(VERIFYING);
    bench.verify(&later)?;
    Ok(Counted::of(
        &read_log(&log)?,
        &bench.store.display().to_string(),
    ))
}

/// Receives the victim's messages to its end. False if it makes no progress and says why, and was
/// left to itself.
fn work(bench: &mut Bench, victim: &mut Victim, fault: Option<&Fault>) -> Result<bool, String> {
    let mut progress = Instant::now();
    let stays = fault.is_some_and(|f| f.times == Times::ForGood);
    loop {
        match victim.next(Duration::from_millis(500)) {
            Received::Message(message) => {
                let message = message?;
                if !matches!(message, Message::State { .. }) {
                    progress = Instant::now();
                }
                bench.expected.receive(message)?;
            }
            Received::End => return Ok(true),
            Received::Silence => {}
        }
        let said = bench.expected.said();
        let reported = said.job_error || said.health != Health::Good;
        if stays && said.ready && reported && progress.elapsed() > STALL {
            return Ok(false);
        }
        if progress.elapsed() > PATIENCE {
            return Err(bench.hang(victim, "makes no progress"));
        }
    }
}

fn with_fault(bench: &mut Bench, cycle: u64, fault: &Fault) -> Result<(), String> {
    let log = bench.beside(&format!("strace-{cycle}"));
    let syncs = matches!(fault.call, "fsync" | "fdatasync");
    // Whether a name belongs to another file by now.
    let traced = match syncs {
        true => "fsync,fdatasync,openat,renameat,renameat2",
        false => fault.call,
    };
    let before = strace(&log, traced, Some(fault));
    let (order, script) = (order_of(bench, cycle), script_of(bench, cycle));
    let mut victim = bench.start(&order, script, &before)?;
    let ended = work(bench, &mut victim, Some(fault))?;
    let after = match ended {
        true => {
            let status = bench.end(&mut victim)?;
            let errors = victim.errors();
            match status.code() {
                Some(0) => match bench.expected.said().health {
                    Health::Good => "after.went_on",
                    Health::NoSpace => "after.no_space",
                    Health::Poisoned => "after.poisoned",
                },
                Some(NOT_OPEN) if errors.contains("not open: [") => "after.refused_open",
                // Missing memory is not an error of the store's files.
                None if fault.call == "mmap" && errors.contains("memory allocation of") => {
                    "after.no_memory"
                }
                _ => return Err(format!("the victim ended: {status}; {errors}")),
            }
        }
        false => {
            victim.signal(Signal::KILL);
            bench.end(&mut victim)?;
            match bench.expected.said().health {
                Health::Poisoned => "after.poisoned",
                Health::NoSpace => "after.no_space",
                Health::Good => "after.stands_still",
            }
        }
    };
    let errors = victim.errors();
    drop(victim);
    let trace = read_log(&log)?;
    let seen = judge(bench, fault, &trace).map_err(|e| format!("{e}; {after}; {errors}"))?;
    for name in seen {
        bench.coverage.add(name);
    }
    let coverage = &mut bench.coverage;
    coverage.add("fault");
    if trace.iter().any(|t| t.injected) {
        coverage.add("fault.fired");
        coverage.add(after);
        coverage.add(&format!("call.{}", fault.call));
        coverage.add(match fault.times {
            Times::Once => "fault.once",
            Times::Thrice => "fault.thrice",
            Times::ForGood => "fault.for_good",
        });
        let store = bench.store.display().to_string();
        for call in trace.iter().filter(|t| t.injected) {
            let kind = Kind::of(&call.path, &store).word();
            coverage.add(&format!("met.{kind}"));
        }
    }
    let later = bench.order(cycle + VERIFYING);
    bench
        .verify(&later)
        .map_err(|e| format!("{e}\nthe run before: {after}; {errors}"))?;
    std::fs::remove_file(&log).map_err(|e| e.to_string())
}

impl Traced {
    fn is_sync(&self) -> bool {
        matches!(self.call.as_str(), "fsync" | "fdatasync")
    }

    /// Whether a new file, or one whose bytes were all discarded, has the name from here on.
    fn makes_anew(&self) -> bool {
        let made = self.text.contains("O_EXCL") || self.text.contains("O_TRUNC");
        self.call.starts_with("rename") || (self.call == "openat" && made)
    }
}

/// A sync of the file whose sync failed, called after that failure.
///
/// It is allowed once the file was made anew, and in `outside` once a file was made in it: in this
/// folder each ingest builds tables of its own. The one that got the error does not use its tables,
/// and another one syncs the names of those that it has built since.
fn synced_again<'a>(trace: &'a [Traced], failed: &Traced, outside: &str) -> Option<&'a Traced> {
    // The folder that the store and the folder outside are in. It is synced by whoever makes one of
    // them, and again by the next one who tries after that failed.
    let above = outside.rsplit_once('/').map(|(folder, _)| folder);
    if above == Some(failed.path.as_str()) {
        return None;
    }
    let is_made = |m: &Traced| {
        let folder = m.path.rsplit_once('/').map(|(folder, _)| folder);
        let is_inside = failed.path == outside && folder == Some(outside);
        m.makes_anew() && (m.path == failed.path || is_inside)
    };
    trace.iter().find(|t| {
        let between = |m: &&Traced| m.began > failed.ended && m.began < t.began;
        let may = || trace.iter().filter(between).any(is_made);
        t.is_sync() && t.path == failed.path && t.began > failed.ended && !may()
    })
}

/// Compares the trace with the victim's messages.
fn judge(bench: &Bench, fault: &Fault, trace: &[Traced]) -> Result<BTreeSet<&'static str>, String> {
    let mut seen = BTreeSet::new();
    let said = bench.expected.said();
    if said.done_after_poison > 0 {
        return Err(format!(
            "{} writes were acknowledged that began after the store had said that it is poisoned",
            said.done_after_poison
        ));
    }
    if !matches!(fault.call, "fsync" | "fdatasync") || fault.what == "error=EINTR" {
        return Ok(seen);
    }
    let store = bench.store.display().to_string();
    let outside = bench.outside().display().to_string();
    let mut only_tables = true;
    for failed in trace.iter().filter(|t| t.injected) {
        let kind = Kind::of(&failed.path, &store);
        only_tables &= matches!(kind, Kind::Table | Kind::Redirect | Kind::Other);
        let of_it = || trace.iter().filter(|t| t.path == failed.path);
        if let Some(again) = synced_again(trace, failed, &outside) {
            return Err(format!(
                "a sync that had failed was called again: {} after {}",
                again.text, failed.text
            ));
        }
        // The first sync of a segment or a manifest that is only being prepared: it does not
        // contain anything that was acknowledged.
        let made = of_it()
            .filter(|t| t.makes_anew() && t.began < failed.began)
            .max_by_key(|t| t.began);
        let ready = made.is_some_and(|made| {
            !of_it().any(|t| t.is_sync() && t.began > made.began && t.began < failed.began)
        });
        let at_work = said.opened_us.is_some_and(|at| failed.at_us > at)
            && said.closing_us.is_none_or(|at| failed.at_us < at);
        if at_work && matches!(kind, Kind::Log | Kind::Manifest) && said.health != Health::Poisoned
        {
            return Err(format!(
                "a sync of the {} failed, and the store's health is {:?}: {}",
                kind.word(),
                said.health,
                failed.text
            ));
        }
        if at_work {
            seen.insert(match kind {
                _ if ready && kind != Kind::Table => "failed_at_work.sync_of_a_new_file",
                Kind::Log => "poisoned_by.log_sync",
                Kind::Manifest => "poisoned_by.manifest_sync",
                Kind::Table => "failed_at_work.table_sync",
                _ => "failed_at_work.other_sync",
            });
        }
    }
    if only_tables && (said.health == Health::Poisoned || said.poisoned > 0) {
        return Err(format!(
            "only syncs of tables failed, and the store is poisoned: {:?}",
            trace.iter().find(|t| t.injected).map(|t| &t.text)
        ));
    }
    Ok(seen)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TRACE: &str = r#"7  100.000001 openat(AT_FDCWD</tmp>, "/etc/ld.so.cache", O_RDONLY|O_CLOEXEC) = 3</etc/ld.so.cache>
7  100.000002 openat(4</t/store>, "CURRENT", O_RDONLY) = -1 ENOENT (No such file or directory)
8  100.000003 fdatasync(6</t/store/000000000001.log> <unfinished ...>
7  100.000004 fdatasync(9</t/store/MANIFEST-000000000002>) = -1 EIO (Input/output error) (INJECTED)
8  100.000005 <... fdatasync resumed>) = -1 EIO (Input/output error) (INJECTED)
7  100.000006 renameat2(4</t/store>, "RESERVE", 4</t/store>, "MANIFEST-000000000003", RENAME_NOREPLACE) = 0
7  100.000006 pwrite64(6</t/store/x.tbl>, "a\"b)c", 5, 0) = 5
8  100.000007 +++ exited with 0 +++
"#;

    #[test]
    fn traces_are_read() {
        let trace = parse(TRACE);
        let seen: Vec<_> = trace
            .iter()
            .map(|t| (t.thread, t.call.as_str(), t.path.as_str(), t.injected))
            .collect();
        assert_eq!(
            seen[..4],
            [
                (7, "openat", "/etc/ld.so.cache", false),
                (7, "openat", "/t/store/CURRENT", false),
                (7, "fdatasync", "/t/store/MANIFEST-000000000002", true),
                (8, "fdatasync", "/t/store/000000000001.log", true),
            ]
        );
        assert_eq!((trace[3].began, trace[3].ended), (2, 4));
        assert_eq!(trace[4].path, "/t/store/MANIFEST-000000000003");
        assert!(trace[4].makes_anew() && trace[3].is_sync() && !trace[1].makes_anew());
        let kinds: Vec<_> = trace
            .iter()
            .map(|t| Kind::of(&t.path, "/t/store"))
            .collect();
        assert_eq!(
            kinds[..4],
            [Kind::Other, Kind::Pointer, Kind::Manifest, Kind::Log]
        );
        let counted = Counted::of(&trace, "/t/store");
        assert_eq!(counted.before["openat"], 1);
        assert_eq!(counted.calls["fdatasync"], [1, 1]);
        let mut rng = Rng::new(1);
        for _ in 0..100 {
            let fault = counted.draw(&mut rng).unwrap();
            assert!(fault.call != "openat" || fault.nth == 2, "{fault:?}");
        }
    }

    #[test]
    fn a_folder_outside_is_synced_again_for_new_tables_only() {
        let failed = "7  1.0 fsync(5</t/store.outside>) = -1 EIO (Input/output error) (INJECTED)\n";
        let made = "8  1.1 openat(5</t/store.outside>, \"2.tbl\", O_RDWR|O_CREAT|O_EXCL) = 6\n";
        let again = "8  1.2 fsync(5</t/store.outside>) = 0\n";
        let is_called = |lines: &[&str], outside: &str| {
            let trace = parse(&lines.concat());
            let failed = trace.iter().find(|t| t.injected).unwrap();
            synced_again(&trace, failed, outside).is_some()
        };
        assert!(is_called(&[failed, again], "/t/store.outside"));
        assert!(is_called(&[made, failed, again], "/t/store.outside"));
        assert!(!is_called(&[failed, made, again], "/t/store.outside"));
        assert!(!is_called(&[failed, made], "/t/store.outside"));
        let failed_above = "7  1.0 fsync(5</t>) = -1 EIO (Input/output error) (INJECTED)\n";
        let again_above = "8  1.2 fsync(5</t>) = 0\n";
        assert!(!is_called(&[failed_above, again_above], "/t/store.outside"));
        // A new file does not make good a failed sync of one of the store's own folders.
        assert!(is_called(&[failed, made, again], "/t/other.outside"));
    }
}

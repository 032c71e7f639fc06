//! The output of `silt device`: a line for each event.
//!
//! Invariants: nothing waits for the reader of the output. If it stops reading, lines are left out
//! and counted; if it has gone, the device goes on without output. Peers that are refused cannot
//! fill the output: after the first ones, there is one line about them in [`REFUSED_PAUSE`], and
//! one at the end.
//!
//! Threading: one thread writes the lines that the main thread gives it.

use std::sync::mpsc::{Receiver, SyncSender, TrySendError, channel, sync_channel};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use siltstone_device::probe::Machine;
use siltstone_device::{
    ExecutorReport, RefusedPeer, RefusedPeers, Server, ServerOptions, SessionEvent,
};
use siltstone_storage::link::Address;
use siltstone_table::exec::ExecutorState;

use super::Own;
use crate::failure::Failure;
use crate::output::{Out, bytes, one_line, outln, plural};
use crate::signals::Signal;

/// How many lines may wait for the reader of the output.
const WAITING_MAX: usize = 1024;

/// How long the end of the command waits for the reader of the output.
const END_PATIENCE: Duration = Duration::from_secs(2);

/// How many refused peers are printed at once.
const REFUSED_AT_ONCE: u32 = 10;

/// After this time, another line about refused peers may be printed.
const REFUSED_PAUSE: Duration = Duration::from_secs(10);

/// How long a host must not have been heard to count as silent.
const SILENT: Duration = Duration::from_secs(10);

/// How many lines about refused peers may be printed.
struct Budget {
    left: u32,
    /// Since when the budget has been growing.
    since: Instant,
}

impl Budget {
    fn new(now: Instant) -> Budget {
        Budget {
            left: REFUSED_AT_ONCE,
            since: now,
        }
    }

    /// Whether a line may be printed now. It is taken from the budget.
    fn take(&mut self, now: Instant) -> bool {
        while self.left < REFUSED_AT_ONCE
            && now.saturating_duration_since(self.since) >= REFUSED_PAUSE
        {
            self.left += 1;
            self.since += REFUSED_PAUSE;
        }
        if self.left == REFUSED_AT_ONCE {
            self.since = now;
        }
        let may = self.left > 0;
        self.left -= u32::from(may);
        may
    }
}

/// What runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Status {
    sessions: u64,
    /// The sessions whose hosts have not been heard for a while: they were killed or cut off.
    silent: u64,
    jobs: u64,
    open_objects: u64,
}

impl Status {
    pub(super) fn of(server: &Server) -> Status {
        let mut status = Status::default();
        for session in server.sessions() {
            status.sessions += 1;
            status.silent += u64::from(session.silent_for >= SILENT);
            status.jobs += session.jobs as u64;
            status.open_objects += session.open_objects as u64;
        }
        status
    }
}

/// What the machine has, on one line.
fn measured(machine: &Machine) -> String {
    let rate = |rate: u64| match rate {
        0 => "not measured".to_string(),
        rate => format!("{}/s", bytes(rate)),
    };
    format!(
        "this machine has {}, {} of memory and {} free; its storage writes {} (synced) and reads \
         {}{}",
        plural(machine.cores.into(), "core"),
        bytes(machine.memory_bytes),
        machine
            .free_bytes
            .map_or("an unknown space".to_string(), bytes),
        rate(machine.write_bytes_per_s),
        rate(machine.read_bytes_per_s),
        match machine.reads_are_direct {
            true => "",
            false => " (from the page cache)",
        }
    )
}

/// The state of an executor in one word, and the reason.
fn state_of(report: &ExecutorReport) -> (&'static str, Option<&str>) {
    match &report.state {
        ExecutorState::Ready => ("ready", None),
        ExecutorState::Starting(reason) => ("starting", Some(reason)),
        ExecutorState::Down(reason) => ("down", Some(reason)),
    }
}

/// What an executor has done, in words.
fn done(report: &ExecutorReport) -> String {
    let compactions = |count: u64| plural(count, "compaction");
    let mut text = format!(
        "{} has done {}",
        one_line(&report.name),
        compactions(report.done_count)
    );
    if !report.counters.is_empty() {
        let counters = report.counters.iter();
        let counters = counters.map(|(name, count)| format!("{name} {count}"));
        text += &format!(" ({})", counters.collect::<Vec<_>>().join(", "));
    }
    let mut add = |count: u64, what: &str, reason: &Option<String>| {
        if count > 0 {
            let reason = one_line(reason.as_deref().unwrap_or("no reason is known"));
            text += &format!(", {what} {} (the last: {reason})", compactions(count));
        }
    };
    add(
        report.passed_over_count,
        "could not take",
        &report.last_passed_over,
    );
    add(report.given_up_count, "gave up", &report.last_given_up);
    text
}

/// The output, a line for each event.
pub(super) struct Lines {
    json: bool,
    /// Leads to the thread that writes. `None` once nobody reads the output any more.
    sender: Option<SyncSender<String>>,
    /// Ends when the thread ends.
    writing: Receiver<()>,
    /// The lines that were left out since one was taken.
    left_out_count: u64,
    /// The refused peers that were not printed.
    unnamed_count: u64,
    refused: Budget,
}

/// Writes a line to standard output.
fn write(line: &str) -> Result<(), Failure> {
    let mut out = Out::new();
    outln!(out, "{line}")?;
    out.finish()
}

impl Lines {
    /// Starts the thread that writes.
    ///
    /// # Errors
    /// The system starts no thread.
    pub(super) fn begin(json: bool) -> std::io::Result<Lines> {
        let (sender, lines) = sync_channel::<String>(WAITING_MAX);
        let (is_writing, writing) = channel::<()>();
        let write_all = move || {
            // If a line cannot be written, nobody reads the output any more.
            let _ = lines.iter().try_for_each(|line| write(&line));
            drop(is_writing);
        };
        std::thread::Builder::new()
            .name("output".to_string())
            .spawn(write_all)?;
        Ok(Lines {
            json,
            sender: Some(sender),
            writing,
            left_out_count: 0,
            unnamed_count: 0,
            refused: Budget::new(Instant::now()),
        })
    }

    /// Prints a line, without waiting for the reader of the output.
    fn print(&mut self, text: &str, value: impl FnOnce() -> Value) {
        if self.left_out_count > 0 {
            let count = self.left_out_count;
            let were = match count {
                1 => "1 line was".to_string(),
                count => format!("{} were", plural(count, "line")),
            };
            let line = self.line(
                &format!("{were} left out here, because nobody read the output"),
                || json!({ "event": "left_out", "line_count": count }),
            );
            if self.take(line) {
                self.left_out_count = 0;
            }
        }
        let line = self.line(text, value);
        if !self.take(line) {
            self.left_out_count += 1;
        }
    }

    fn line(&self, text: &str, value: impl FnOnce() -> Value) -> String {
        match self.json {
            true => value().to_string(),
            false => text.to_string(),
        }
    }

    /// Gives a line to the thread that writes. Returns false if too many lines wait for the reader.
    fn take(&mut self, line: String) -> bool {
        let Some(sender) = &self.sender else {
            return true;
        };
        match sender.try_send(line) {
            Ok(()) => true,
            Err(TrySendError::Full(_)) => false,
            Err(TrySendError::Disconnected(_)) => {
                self.sender = None;
                true
            }
        }
    }

    /// Prints the last lines, and waits a moment until all lines are written.
    pub(super) fn end(mut self) {
        self.refused_more();
        self.print("ended", || json!({ "event": "ended" }));
        self.sender = None;
        let _ = self.writing.recv_timeout(END_PATIENCE);
    }

    /// Prints which peers were refused. A hostile peer can be refused very often, so most of them
    /// may only be counted.
    pub(super) fn refused(&mut self, peers: RefusedPeers) {
        self.refused_at(peers, Instant::now());
    }

    fn refused_at(&mut self, peers: RefusedPeers, now: Instant) {
        if self.unnamed_count > 0 && self.refused.take(now) {
            self.refused_more();
        }
        for peer in peers.first {
            match self.refused.take(now) {
                true => self.refused_peer(&peer),
                false => self.unnamed_count += 1,
            }
        }
        self.unnamed_count += peers.more_count;
    }

    /// Prints how many peers were refused and only counted since the last such line.
    fn refused_more(&mut self) {
        let count = std::mem::take(&mut self.unnamed_count);
        if count > 0 {
            self.print(
                &format!("refused {}", plural(count, "more peer")),
                || json!({ "event": "refused_more", "peer_count": count }),
            );
        }
    }

    fn refused_peer(&mut self, refused: &RefusedPeer) {
        let host = refused.host.as_deref().unwrap_or("a peer");
        let text = format!(
            "refused {} at {}: {}",
            one_line(host),
            one_line(&refused.peer),
            one_line(&refused.reason)
        );
        self.print(&text, || {
            json!({
                "event": "refused", "host": refused.host, "peer": refused.peer,
                "reason": refused.reason,
            })
        });
    }

    /// Prints which folders hosts miss. Their disk may not be mounted.
    pub(super) fn missing(&mut self, missing: &siltstone_device::MissingFolders) {
        let hosts = plural(missing.session_count, "host");
        let names: Vec<String> = missing
            .names
            .iter()
            .map(|name| format!("`{}`", one_line(name)))
            .collect();
        let names = names.join(", ");
        let text = format!(
            "{hosts} asked for folders that are not there any more: {names}; is their disk mounted?"
        );
        self.print(&text, || {
            json!({
                "event": "folders_missing", "host_count": missing.session_count,
                "folders": missing.names,
            })
        });
    }

    /// Prints where the server listens, and what it has for hosts.
    pub(super) fn started(&mut self, server: &Server, own: &Own, options: &ServerOptions) {
        let path = own.path.display();
        let machine = server.machine();
        if self.json {
            let addresses: Vec<String> =
                server.addresses().iter().map(Address::to_string).collect();
            let shared = options.shared.iter().map(|path| path.display().to_string());
            let shared: Vec<String> = shared.collect();
            self.print("", || {
                json!({
                    "event": "started", "name": options.name, "addresses": addresses,
                    "data": own.is_data.then(|| path.to_string()),
                    "state": (!own.is_data).then(|| path.to_string()),
                    "shared": shared, "keep_bytes": options.keep_bytes,
                    "slot_count": options.slots, "parallelism": options.parallelism,
                    "core_count": machine.cores, "memory_bytes": machine.memory_bytes,
                    "free_bytes": machine.free_bytes,
                    "write_bytes_per_s": machine.write_bytes_per_s,
                    "read_bytes_per_s": machine.read_bytes_per_s,
                    "reads_are_direct": machine.reads_are_direct,
                })
            });
            return;
        }
        let mut say = |text: String| self.print(&text, || Value::Null);
        for address in server.addresses() {
            say(format!("listening at {address}"));
        }
        match own.is_data {
            true => say(format!("holding the folders below {path}")),
            false => say(format!("holding no stores; notes are in {path}")),
        }
        for shared in &options.shared {
            say(format!("sharing {}", shared.display()));
        }
        match options.keep_bytes {
            0 => {}
            keep => say(format!(
                "keeping up to {} of tables that hosts send, for each session",
                bytes(keep)
            )),
        }
        say(format!(
            "running up to {} at once as `{}`, each with {}",
            plural(options.slots.into(), "compaction"),
            one_line(&options.name),
            plural(options.parallelism.into(), "thread")
        ));
        say(measured(&machine));
    }

    pub(super) fn session(&mut self, event: &SessionEvent) {
        let folder = match &event.folder {
            _ if event.is_scratch => "for work that is sent".to_string(),
            Some(folder) => format!("on folder `{}`", one_line(folder)),
            None => "without a folder".to_string(),
        };
        let (name, verb) = match event.has_ended {
            true => ("session_ended", "ended"),
            false => ("session_began", "began"),
        };
        let text = format!("a session {folder} {verb}: {}", one_line(&event.host));
        self.print(&text, || {
            json!({
                "event": name, "host": event.host,
                "folder": event.folder.as_ref().filter(|_| !event.is_scratch),
                "is_sent_work": event.is_scratch,
            })
        });
    }

    pub(super) fn status(&mut self, status: &Status) {
        let silent = match status.silent {
            0 => String::new(),
            silent => format!(" ({silent} of them silent)"),
        };
        let text = format!(
            "{}{silent}, {} running, {} open",
            plural(status.sessions, "session"),
            plural(status.jobs, "compaction"),
            plural(status.open_objects, "file"),
        );
        self.print(&text, || {
            json!({
                "event": "status", "session_count": status.sessions,
                "silent_session_count": status.silent,
                "running_job_count": status.jobs, "open_file_count": status.open_objects,
            })
        });
    }

    /// Prints which executors are asked before the cores of the machine.
    pub(super) fn asks_first(&mut self, words: &str) {
        self.print(
            &format!("offering compactions to {words}"),
            || json!({ "event": "offering", "to": words }),
        );
    }

    /// Prints that the state of an executor has changed.
    pub(super) fn executor_state(&mut self, report: &ExecutorReport) {
        let state = report.state.to_string();
        let (name, state) = (one_line(&report.name), one_line(&state));
        let then = match report.state {
            ExecutorState::Ready => "",
            ExecutorState::Starting(_) => "; the cores of the device run all compactions meanwhile",
            ExecutorState::Down(_) => {
                "; the cores of the device run all compactions until it is started again"
            }
        };
        self.print(&format!("{name} is {state}{then}"), || {
            let (state, reason) = state_of(report);
            json!({ "event": "executor", "name": report.name, "state": state, "reason": reason })
        });
    }

    /// Prints what the executors have done.
    pub(super) fn executors(&mut self, reports: &[ExecutorReport]) {
        let texts: Vec<String> = reports.iter().map(done).collect();
        self.print(&texts.join("; "), || {
            let all = reports.iter().map(|report| {
                let (state, reason) = state_of(report);
                let counters = report.counters.iter();
                let counters: serde_json::Map<String, Value> = counters
                    .map(|(name, count)| (name.clone(), Value::from(*count)))
                    .collect();
                json!({
                    "name": report.name, "state": state, "reason": reason,
                    "running_job_count": report.running_count, "done_count": report.done_count,
                    "passed_over_count": report.passed_over_count,
                    "last_passed_over": report.last_passed_over,
                    "given_up_count": report.given_up_count,
                    "last_given_up": report.last_given_up, "counters": counters,
                })
            });
            json!({ "event": "executors", "executors": all.collect::<Vec<Value>>() })
        });
    }

    pub(super) fn stopping(&mut self, server: &Server, signal: Signal) {
        let sessions = server.sessions().len() as u64;
        let text = format!("{signal}: ending {}", plural(sessions, "session"));
        self.print(&text, || {
            json!({
                "event": "stopping", "signal": signal.to_string(), "session_count": sessions,
            })
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn refused_peers_do_not_fill_the_output() {
        let begun = Instant::now();
        let mut budget = Budget::new(begun);
        let mut count = |at: Duration, asked: u32| {
            let taken = (0..asked).filter(|_| budget.take(begun + at));
            taken.count()
        };
        let hour = Duration::from_secs(3600);
        assert_eq!(count(Duration::ZERO, 100), 10);
        assert_eq!(count(REFUSED_PAUSE / 2, 100), 0);
        assert_eq!(count(REFUSED_PAUSE, 100), 1);
        assert_eq!(count(3 * REFUSED_PAUSE, 100), 2);
        assert_eq!(count(hour, 3), 3);
        assert_eq!(count(2 * hour, 100), 10);
        assert_eq!(count(2 * hour + REFUSED_PAUSE, 100), 1);
    }

    /// Lines of which `waiting` may wait for the reader, which takes them from the channel.
    fn lines(json: bool, waiting: usize) -> (Lines, Receiver<String>) {
        let (sender, reader) = sync_channel(waiting);
        let (_, writing) = channel();
        let lines = Lines {
            json,
            sender: Some(sender),
            writing,
            left_out_count: 0,
            unnamed_count: 0,
            refused: Budget::new(Instant::now()),
        };
        (lines, reader)
    }

    #[test]
    fn lines_that_nobody_reads_are_counted_where_they_are_missing() {
        for json in [false, true] {
            let (mut lines, reader) = lines(json, 1);
            let mut print = |n: u64| lines.print(&n.to_string(), || n.into());
            let read = || reader.try_iter().collect::<Vec<_>>();
            let left_out = |count: u64| match (json, count) {
                (true, _) => json!({ "event": "left_out", "line_count": count }).to_string(),
                (false, 1) => "1 line was left out here, because nobody read the output".into(),
                (false, _) => {
                    format!("{count} lines were left out here, because nobody read the output")
                }
            };
            (1..4).for_each(&mut print);
            assert_eq!(read(), ["1"]);
            // There is room for one line, which says that two are missing.
            print(4);
            assert_eq!(read(), [left_out(2)]);
            print(5);
            assert_eq!(read(), [left_out(1)]);
        }
        // With more room, the next line follows.
        let (mut lines, reader) = lines(false, 2);
        let mut print = |n: u64| lines.print(&n.to_string(), || n.into());
        (1..5).for_each(&mut print);
        assert_eq!(reader.try_iter().count(), 2);
        print(5);
        let text = "2 lines were left out here, because nobody read the output";
        assert_eq!(reader.try_iter().collect::<Vec<_>>(), [text, "5"]);
    }

    #[test]
    fn executors_say_what_they_did_and_why_not() {
        let reports = [
            ExecutorReport {
                name: "gpu0".to_string(),
                state: ExecutorState::Down("the GPU failed".to_string()),
                running_count: 0,
                done_count: 12,
                passed_over_count: 3,
                last_passed_over: Some("7 bytes are too few to pay".to_string()),
                given_up_count: 1,
                last_given_up: Some("cuLaunchKernel failed".to_string()),
                counters: vec![("gpu_jobs".to_string(), 13), ("gpu_pieces".to_string(), 20)],
            },
            ExecutorReport {
                name: "cpu".to_string(),
                state: ExecutorState::Ready,
                running_count: 1,
                done_count: 1,
                passed_over_count: 0,
                last_passed_over: None,
                given_up_count: 0,
                last_given_up: None,
                counters: Vec::new(),
            },
        ];
        let (mut text, reader) = lines(false, 9);
        text.executors(&reports);
        text.executor_state(&reports[0]);
        text.executor_state(&reports[1]);
        let said = [
            "gpu0 has done 12 compactions (gpu_jobs 13, gpu_pieces 20), could not take 3 \
             compactions (the last: 7 bytes are too few to pay), gave up 1 compaction (the last: \
             cuLaunchKernel failed); cpu has done 1 compaction",
            "gpu0 is down: the GPU failed; the cores of the device run all compactions until it \
             is started again",
            "cpu is ready",
        ];
        assert_eq!(reader.try_iter().collect::<Vec<_>>(), said);
        let (mut json, reader) = lines(true, 9);
        json.executors(&reports);
        json.executor_state(&reports[0]);
        let read = || serde_json::from_str::<Value>(&reader.recv().unwrap()).unwrap();
        let all = read();
        let gpu = &all["executors"][0];
        assert_eq!(all["event"], "executors");
        assert_eq!(
            (&gpu["done_count"], &gpu["counters"]["gpu_pieces"]),
            (&12.into(), &20.into())
        );
        assert_eq!(gpu["last_given_up"], "cuLaunchKernel failed");
        assert_eq!(all["executors"][1]["last_given_up"], Value::Null);
        let state = json!({
            "event": "executor", "name": "gpu0", "state": "down", "reason": "the GPU failed",
        });
        assert_eq!(read(), state);
    }

    #[test]
    fn refused_peers_that_are_not_printed_are_counted() {
        let peers = |named: usize, more_count: u64| RefusedPeers {
            first: vec![
                RefusedPeer {
                    peer: "10.0.0.1:7".to_string(),
                    host: None,
                    reason: "it has no certificate".to_string(),
                };
                named
            ],
            more_count,
        };
        for json in [false, true] {
            let begun = Instant::now();
            let (mut lines, reader) = lines(json, 1);
            lines.refused = Budget {
                left: 0,
                since: begun,
            };
            let read = || reader.try_iter().collect::<Vec<_>>();
            let more = |count: u64| match json {
                true => json!({ "event": "refused_more", "peer_count": count }).to_string(),
                false => format!("refused {count} more peers"),
            };
            lines.refused_at(peers(2, 1), begun);
            assert!(read().is_empty());
            // There is one line after a while, and its peers are not counted again.
            lines.refused_at(peers(1, 1), begun + REFUSED_PAUSE);
            assert_eq!(read(), [more(3)]);
            lines.refused_at(peers(0, 0), begun + REFUSED_PAUSE);
            assert!(read().is_empty());
            // The end needs no leave for such a line.
            lines.refused_more();
            assert_eq!(read(), [more(2)]);
            lines.refused_more();
            lines.refused_at(peers(0, 0), begun + 2 * REFUSED_PAUSE);
            assert!(read().is_empty());
            // A peer is named if there is leave for it.
            lines.refused_at(peers(2, 0), begun + 2 * REFUSED_PAUSE);
            let named = read();
            assert!(named[0].contains("10.0.0.1:7"), "{named:?}");
            lines.end();
            let ended = match json {
                true => json!({ "event": "refused_more", "peer_count": 1 }).to_string(),
                false => "refused 1 more peer".to_string(),
            };
            assert_eq!(read(), [ended]);
        }
    }
}

//! Loads whose compactions run on devices, while they run: two devices of one store, devices that
//! are killed in the middle of a job, and what `silt levels --watch` shows of jobs.

mod common;
#[path = "common/device.rs"]
#[allow(dead_code)]
mod device;

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use common::{Ended, SILT, silt};
use device::{PATIENCE, TestDevice, ended};
use rustix::process::{Pid, Signal, kill_process};
use siltstone::{SideStats, Stats, StatsFile, read_stats_file};

/// How long to wait between two looks.
const LOOK: Duration = Duration::from_millis(20);

/// A process that ends with the test.
struct Running(Option<Child>);

impl Running {
    fn start(command: &mut Command) -> Running {
        Running(Some(command.spawn().unwrap()))
    }

    fn child(&mut self) -> &mut Child {
        self.0.as_mut().expect("it was started")
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if let Some(child) = &mut self.0 {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// A load of standard input, whose input stays open.
struct Load {
    store: String,
    running: Running,
    stdin: ChildStdin,
    /// The number of lines that it was given.
    fed: u64,
}

/// A line, which is its own key. The keys come in an order that lets all tables overlap.
fn line(n: u64) -> String {
    format!("{:07} {n:07} {}", n * 7919 % 1_000_003, "x".repeat(80))
}

impl Load {
    /// Begins to load into a store of small memtables and tables, which has many compactions.
    fn begin(store: &str, options: &Path, args: &[&str]) -> Load {
        let set = "memtable_bytes = 65536\ntable_bytes = 65536\nlevel1_bytes = 131072\n\
                   l0_trigger_count = 2\nstats_file_ms = 20\n";
        std::fs::create_dir_all(options).unwrap();
        std::fs::write(options.join("OPTIONS.toml"), set).unwrap();
        let mut running = Running::start(
            Command::new(SILT)
                .args(["load", store, "-"])
                .args(args)
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped()),
        );
        let stdin = running.child().stdin.take().unwrap();
        Load {
            store: store.to_string(),
            running,
            stdin,
            fed: 0,
        }
    }

    /// Gives it some more lines if it has read those before, which never waits: they fit into an
    /// empty pipe.
    fn feed(&mut self) {
        if rustix::io::ioctl_fionread(&self.stdin).unwrap() == 0 {
            let lines = self.fed..self.fed + 400;
            let text: String = lines.map(|n| line(n) + "\n").collect();
            self.stdin.write_all(text.as_bytes()).unwrap();
            self.fed += 400;
        }
    }

    /// Feeds it until something is so.
    #[track_caller]
    fn feed_until(&mut self, what: &str, mut is_so: impl FnMut(&mut Load) -> bool) {
        let start = Instant::now();
        while !is_so(self) {
            assert!(start.elapsed() < PATIENCE, "waited too long for: {what}");
            if let Some(status) = self.running.child().try_wait().unwrap() {
                panic!("the load has ended: {status}");
            }
            self.feed();
            std::thread::sleep(LOOK);
        }
    }

    /// The last figures that it has written, if there are any.
    fn figures(&self) -> Option<StatsFile> {
        read_stats_file(&self.store).ok()
    }

    /// Feeds it until its figures are so, and returns them.
    #[track_caller]
    fn until(&mut self, what: &str, is_so: impl Fn(&Stats) -> bool) -> Stats {
        let mut found = None;
        self.feed_until(what, |load| {
            let figures = load.figures().filter(|figures| is_so(&figures.stats));
            found = figures.map(|figures| figures.stats);
            found.is_some()
        });
        found.expect("it was so")
    }

    /// Ends its input. Returns what it said, after all lines were compared with the store. If a
    /// device was killed, it said when that could not be reached, and when it could be again.
    fn end(mut self, was_killed: bool) -> String {
        drop(self.stdin);
        ended(self.running.child());
        let child = self.running.0.take().expect("it was started");
        let mut ended = Ended::from(child.wait_with_output().unwrap());
        let said: Vec<&str> = ended.err.lines().collect();
        let notes = ["could not be reached for 3 s", "answers again"];
        let is_note = |(line, note): (&&str, &&str)| {
            line.starts_with("silt: the device at ") && line.contains(note)
        };
        let is_right =
            said.is_empty() != was_killed && said.iter().zip(notes.iter().cycle()).all(is_note);
        assert!(is_right, "{}", ended.err);
        ended.err.clear();
        let said = ended.fine();
        let count = format!("{}", self.fed);
        assert!(
            said.replace(',', "")
                .contains(&format!("loaded {count} records")),
            "{said}"
        );
        let mut expected: Vec<String> = (0..self.fed)
            .map(|n| format!("{}\t{}\n", line(n), n + 1))
            .collect();
        expected.sort();
        let scanned = silt(["scan", &self.store]).fine();
        assert!(scanned == expected.concat(), "{} bytes", scanned.len());
        let report = silt(["check", &self.store, "--json"]).fine();
        let report: serde_json::Value = serde_json::from_str(&report).unwrap();
        assert_eq!(report["orphans"], serde_json::json!([]), "{report}");
        said
    }
}

/// Whether a side runs a job.
fn is_running(stats: &Stats, at: usize) -> bool {
    let side = &stats.sides[at];
    let mut jobs = stats.jobs.iter();
    jobs.any(|job| job.stage == "running" && job.executor == side.name)
}

/// Kills a device in the middle of a job of the load. `at` is the number of its side. Returns the
/// figures from after the job has failed.
fn kill_in_a_job(load: &mut Load, device: &mut TestDevice, at: usize) -> Stats {
    for _ in 0..20 {
        stop_in_a_job(load, device, at);
        // After an earlier kill, a job may have failed late.
        let before = load.until("a figure", |_| true).sides[at].failed_count;
        device.kill();
        let stats = load.until("the end of its job", |stats| {
            stats.sides[at].failed_count > before || !is_running(stats, at)
        });
        if stats.sides[at].failed_count > before {
            return stats;
        }
        // The host had all that it needed of the device, so the job did not fail.
        device.run();
    }
    panic!("no job needed the device any more when it was killed");
}

/// Stops a device while the load has a job on it. `at` is the number of its side.
fn stop_in_a_job(load: &mut Load, device: &TestDevice, at: usize) {
    let start = Instant::now();
    loop {
        load.until("a job on the device", |stats| is_running(stats, at));
        device.send(Signal::STOP);
        // Figures from after the stop say whether the job was still there.
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
        let now_us = now.as_micros() as u64;
        let mut found = None;
        load.feed_until("new figures", |load| {
            found = load.figures().filter(|figures| figures.written_us > now_us);
            found.is_some()
        });
        if is_running(&found.expect("new figures").stats, at) {
            return;
        }
        device.send(Signal::CONT);
        assert!(start.elapsed() < PATIENCE, "no job lasts long enough");
    }
}

fn host(stats: &Stats) -> &SideStats {
    let host = stats.sides.last().expect("the host");
    assert_eq!(host.side, "host");
    host
}

/// Nothing of what happened to devices is a failure of the store.
fn is_healthy(stats: &Stats) {
    assert_eq!(stats.counter("job_failed_count"), 0, "{stats:?}");
    assert_eq!(stats.jobs_failing, None);
    assert_eq!(host(stats).failed_count, 0);
    assert_eq!(stats.health.to_string(), "good");
}

/// Two devices of one load: both run compactions. One of them is killed in the middle of a job, and
/// all that this costs is the job.
#[test]
fn one_of_two_devices_is_killed() {
    let options = ["--keep", "1GiB", "--slots", "2"];
    let (first, mut second) = (TestDevice::start(&options), TestDevice::start(&options));
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("store");
    let (a, b) = (first.address(), second.address());
    let devices = ["--device", &a, "--device", &b];
    let mut load = Load::begin(store.to_str().unwrap(), &store, &devices);
    let stats = load.until("a compaction of each device", |stats| {
        stats.sides[..2]
            .iter()
            .all(|side| side.compaction_count > 0)
    });
    let names: Vec<&str> = stats.sides.iter().map(|side| &side.name[..]).collect();
    assert_eq!(names, [&a, &b, "cpu"]);
    let killed = kill_in_a_job(&mut load, &mut second, 1);
    let work = |stats: &Stats| stats.sides[0].compaction_count + host(stats).compaction_count;
    let stats = load.until("compactions elsewhere", |stats| {
        work(stats) > work(&killed) + 2
    });
    is_healthy(&stats);
    assert!(stats.sides[1].state.starts_with("down: "), "{stats:?}");
    assert!(stats.sides[1].last_failure.is_some(), "{stats:?}");
    // The other one has nothing to do with it.
    assert_eq!(stats.sides[0].failed_count, 0, "{stats:?}");
    assert_eq!(stats.sides[0].state, "ready");
    let said = load.end(true);
    for name in [&a[..], &b] {
        let row = said.lines().skip_while(|line| line != &name).nth(1);
        let row = row.unwrap_or_else(|| panic!("no row of {name} in {said}"));
        assert!(
            row.contains("compaction") && row.contains("processor time"),
            "{row}"
        );
    }
}

/// A device that shares the folder of a store is killed in the middle of a job. The host does the
/// work with its own cores, and a device that is started there again gets jobs again.
#[test]
fn a_device_with_a_shared_folder_is_killed_and_started_again() {
    let dir = tempfile::tempdir().unwrap();
    let (shared, store) = (dir.path(), dir.path().join("store"));
    let mut device = TestDevice::start(&["--share", shared.to_str().unwrap(), "--slots", "2"]);
    let address = device.address();
    let devices = ["--device", &address];
    let mut load = Load::begin(store.to_str().unwrap(), &store, &devices);
    load.until("a compaction", |stats| stats.sides[0].compaction_count > 0);
    let killed = kill_in_a_job(&mut load, &mut device, 0);
    let stats = load.until("compactions of the host", |stats| {
        host(stats).compaction_count > host(&killed).compaction_count + 2
    });
    is_healthy(&stats);
    assert!(stats.sides[0].state.starts_with("down: "), "{stats:?}");
    let before = stats.sides[0].compaction_count;
    device.run();
    let stats = load.until("compactions of the device", |stats| {
        stats.sides[0].compaction_count > before + 2
    });
    is_healthy(&stats);
    assert_eq!(stats.sides[0].state, "ready");
    assert_eq!(stats.sides[0].rejected_count, 0, "{stats:?}");
    // Only jobs crossed the link.
    assert_eq!(stats.counter("link_lent_sent_bytes"), 0);
    assert!(stats.counter("link_jobs_sent_bytes") > 0);
    load.end(true);
    let (status, said) = device.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
}

/// A `silt levels --watch`, and the lines that it prints.
struct Watched {
    running: Running,
    lines: Receiver<String>,
}

impl Watched {
    fn begin(store: &str, args: &[&str]) -> Watched {
        let mut running = Running::start(
            Command::new(SILT)
                .args(["levels", store, "--watch=0.1"])
                .args(args)
                .stdin(Stdio::null())
                .stdout(Stdio::piped()),
        );
        let out = BufReader::new(running.child().stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // The pipe is closed when nobody receives any more, as by `head`.
            for line in out.lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Watched { running, lines }
    }

    /// The next line, if there is one now.
    fn next(&self) -> Option<String> {
        self.lines.try_recv().ok()
    }
}

/// The jobs of a store on a device are shown while they run there, with what each side has done. A
/// watcher ends by a signal, or when nobody reads it any more, and the load goes on.
#[test]
fn levels_shows_jobs_that_run_on_a_device() {
    let mut device = TestDevice::start(&["--slots", "2"]);
    let (url, folder) = (device.url("db"), device.path("data/db"));
    let mut load = Load::begin(&url, &folder, &[]);
    load.feed_until("figures", |_| folder.join("STATS.json").exists());
    let json = Watched::begin(&url, &["--json"]);
    let (mut ran, mut done, mut scored) = (false, false, false);
    load.feed_until("a job on the device", |_| {
        while let Some(line) = json.next() {
            let shown: serde_json::Value = serde_json::from_str(&line).unwrap();
            assert_eq!(shown["source"]["kind"], "written", "{line}");
            let list = |name: &str| shown[name].as_array().unwrap().clone();
            ran |= list("jobs").iter().any(|job| {
                (&job["side"], &job["stage"]) == (&"device".into(), &"running".into())
                    && job["executor"] == "device"
                    && job["reason"].as_str().is_some_and(|why| !why.is_empty())
            });
            let sides = list("sides");
            let names: Vec<_> = sides.iter().map(|side| &side["name"]).collect();
            assert_eq!(names, ["device", "cpu"], "{line}");
            done |= sides[0]["compaction_count"].as_u64() > Some(0);
            assert!(shown["queues"].is_array() && shown["waiting_jobs"].is_array());
            let scores = shown["keyspaces"][0]["level_scores"].as_array().unwrap();
            scored |= scores.iter().any(|score| score.as_f64() > Some(0.0));
        }
        ran && done && scored
    });
    // The same in words.
    let mut text = Watched::begin(&url, &[]);
    let mut wanted = vec![
        ("  level", "score"),
        ("job ", "running on device (device) for "),
        ("side ", "device (device): ready, "),
        ("  ", "takes from the "),
        ("  ", "why there: "),
        ("  ", " the host about "),
        ("  ", "did "),
        ("side ", "cpu (host): ready, "),
        ("link ", "sent "),
    ];
    load.feed_until("all that is shown", |_| {
        while let Some(line) = text.next() {
            wanted.retain(|(begin, part)| !(line.starts_with(begin) && line.contains(part)));
        }
        wanted.is_empty()
    });
    // Not SIGINT: who runs these tests as a background job of a shell ignores it, and so do the
    // processes that he starts.
    kill_process(Pid::from_child(text.running.child()), Signal::TERM).unwrap();
    assert_eq!(
        ended(text.running.child()).signal(),
        Some(Signal::TERM.as_raw())
    );
    let Watched { mut running, lines } = json;
    drop(lines);
    assert_eq!(ended(running.child()).code(), Some(0));
    load.end(false);
    let (status, said) = device.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
    let count = |what: &str| said.matches(what).count();
    assert_eq!(
        count("a session on folder `db` began"),
        count("a session on folder `db` ended")
    );
}

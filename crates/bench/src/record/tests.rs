use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use super::*;
use crate::engine::{self, Driver, Engine, Figures, Level, NullDriver, ThreadClass};
use crate::measure::files::{Part, Sizes};
use crate::measure::machine::Cgroup;
use crate::measure::process::Reading;
use crate::measure::{Latencies, Measured};
use crate::settings::{EngineSettings, Files, Kind, Workload};

mod keys;

/// An engine without a store, whose threads have names.
struct Named;

impl Driver for Named {
    fn name(&self) -> &str {
        "named"
    }

    fn version(&self) -> String {
        "1.2.3".into()
    }

    fn abilities(&self) -> Abilities {
        Abilities {
            sync: true,
            unsynced: Promise::Process,
            ..NullDriver.abilities()
        }
    }

    fn settings(&self, _settings: &EngineSettings) -> BTreeMap<String, String> {
        BTreeMap::from([("cache".into(), "1 MiB".into())])
    }

    fn thread_class(&self, name: &str) -> ThreadClass {
        match name {
            "flusher" => ThreadClass::Flush,
            "compactor" => ThreadClass::Compaction,
            _ => ThreadClass::Foreground,
        }
    }

    fn open(&self, _folder: &Path, _settings: &EngineSettings) -> engine::Result<Box<dyn Engine>> {
        Err(engine::EngineError::new("open", "there is no store"))
    }
}

fn latencies(all_us: &[u64]) -> Latencies {
    let mut latencies = Latencies::new();
    for us in all_us {
        latencies.record(Duration::from_micros(*us));
    }
    latencies
}

fn reading(count: u64) -> Reading {
    Reading {
        cpu_s: Some(count as f64),
        user_s: Some(count as f64 / 2.0),
        system_s: Some(count as f64 / 2.0),
        resident_bytes: Some(count),
        anonymous_bytes: Some(count),
        file_bytes: Some(count),
        shared_bytes: Some(count),
        peak_bytes: Some(count),
        read_call_bytes: Some(count),
        write_call_bytes: Some(400 * count),
        device_read_bytes: Some(100 * count),
        device_write_bytes: Some(count),
        minor_faults: Some(count),
        major_faults: Some(count),
        voluntary_switches: Some(count),
        involuntary_switches: Some(count),
    }
}

fn figures() -> Figures {
    Figures {
        log_bytes: Some(1_100),
        flush_bytes: Some(1_000),
        compaction_read_bytes: Some(500),
        compaction_bytes: Some(1_900),
        stall_s: BTreeMap::from([("log".into(), 0.25), ("memtables".into(), 0.5)]),
        others: BTreeMap::from([("syncs".into(), 3)]),
        ..Figures::default()
    }
}

fn seconds() -> Vec<Second> {
    let summary = Default::default();
    let full = Second {
        second: 0,
        operations: 40,
        latency: BTreeMap::from([("put".into(), summary)]),
        stall_s: Some(BTreeMap::from([("log".into(), 0.25)])),
        levels: Some(vec![level()]),
        ..Second::default()
    };
    let of = |second, operations| Second {
        second,
        operations,
        ..Second::default()
    };
    vec![full, of(1, 0), of(2, 60), of(3, 0), of(4, 0)]
}

fn level() -> Level {
    Level {
        level: 1,
        runs: 1,
        tables: 2,
        bytes: 3,
    }
}

/// A run in which everything is known.
fn found() -> Found {
    let measured = Measured {
        until_last: Duration::from_millis(2_500),
        counts: crate::measure::series::Counts {
            operations: 100,
            written_bytes: 800,
            read_bytes: 200,
        },
        beside: crate::measure::series::Counts {
            operations: 10,
            written_bytes: 200,
            read_bytes: 0,
        },
        all: latencies(&[10, 20, 2_000]),
        censored_operations: 7,
        latency: BTreeMap::from([(Kind::Put, latencies(&[10, 20, 2_000]))]),
        service: BTreeMap::from([(Kind::Put, latencies(&[5, 6, 7]))]),
        workload_cpu_s: Some(2.0),
        thread_cpu_s: BTreeMap::from([
            ("flusher".into(), 0.5),
            ("compactor".into(), 1.0),
            ("main".into(), 9.0),
        ]),
        sampler_cpu_s: Some(0.125),
        before: reading(1),
        after: reading(6),
        figures: figures(),
        levels: vec![level()],
        peak_anonymous_bytes: Some(70),
        peak_resident_bytes: Some(80),
        seconds: seconds(),
        ..Measured::default()
    };
    let part = |allocated_bytes| Part {
        files: 1,
        bytes: 2,
        allocated_bytes,
    };
    Found {
        measured,
        settled_after: Duration::from_millis(1_500),
        sizes: Sizes {
            tables: part(950),
            log: part(700),
            other: part(100),
        },
        closed_sizes: Sizes {
            tables: part(900),
            log: part(500),
            other: part(100),
        },
        records: Some(90),
        live_bytes: Some(1_000),
        cached_before: Some(0.5),
        cached_after: Some(1.0),
        kept_in_cache: None,
        open_loop: Some(OpenLoopFound {
            due_operations: 150,
            duration: Duration::from_secs(3),
        }),
        open: Some(OpenFound {
            until_first_read: Duration::from_millis(250),
            log_bytes: 48,
        }),
        is_synced: false,
    }
}

fn context() -> Context {
    Context {
        machine: Machine {
            cgroup: Some(Cgroup::default()),
            ..Machine::default()
        },
        command_line: vec!["silt".into(), "bench".into()],
        stand_ins: vec!["The page cache stood in for the persistent memory.".into()],
        ..Context::default()
    }
}

fn record_of(found: &Found) -> Record {
    Record::of(&Named, &Settings::default(), found, &context())
}

#[test]
fn figures_follow_from_what_was_measured() {
    let record = record_of(&found());
    assert_eq!(record.workload, "fillrandom");
    assert_eq!(
        (&record.engine[..], &record.engine_version[..]),
        ("named", "1.2.3")
    );
    assert_eq!(record.promise, Some(Promise::Process));
    assert_eq!(record.ops_per_s, Some(40.0));
    assert_eq!(record.ops_per_s_until_idle, Some(25.0));
    assert_eq!(record.bytes_per_s, Some(400.0));
    assert_eq!(record.bytes_per_s_until_idle, Some(250.0));
    assert_eq!(record.max_us, Some(2_000.0));
    assert_eq!(record.latency["put"].count, 3);
    assert_eq!(record.service_time["put"].max_us, 7.0);
    assert_eq!(record.stall_s, Some(0.75));
    assert!((record.slow_s.unwrap() - 0.002).abs() < 1e-5);
    // The last second but one is whole; later ones belong to the wait until idle.
    assert_eq!(record.silent_seconds, 1);
    assert_eq!(record.rss_bytes, Some(70));
    // Those of the thread beside the measured ones count too.
    assert_eq!(record.system.major_faults_per_op, Some(5.0 / 110.0));
    let open = record.open_loop.unwrap();
    assert_eq!(open.intended_ops_per_s, Some(50.0));
    assert!((open.achieved_ops_per_s.unwrap() - 100.0 / 3.0).abs() < 1e-9);
    assert_eq!(open.backlog_operations, 50);
    assert_eq!(open.censored_operations, 7);
    assert_eq!(record.open.unwrap().until_first_read_s, 0.25);
    assert_eq!(record.engine_counters["syncs"], 3);
    assert!(record.date.ends_with('Z') && record.date.starts_with("20"));
    assert_eq!(
        record.run_settings().unwrap(),
        Settings::default().resolved()
    );
}

#[test]
fn amplifications_count_the_log_and_all_writers() {
    let record = record_of(&found());
    let found = record.amplification;
    assert_eq!(record.bytes.user_written_bytes, 1_000);
    assert_eq!(found.write_tables, Some(2.9));
    assert_eq!(found.write_with_log, Some(4.0));
    assert_eq!(record.write_amplification, Some(4.0));
    assert_eq!(found.write_calls, Some(2.0));
    assert_eq!(found.read_device, Some(2.5));
    assert_eq!(found.space, Some(1.5));
    assert_eq!(found.space_without_log, Some(1.0));
    assert_eq!(record.space_amplification, Some(1.5));
}

#[test]
fn processor_time_is_split_by_account_or_by_thread() {
    let cpu = record_of(&found()).cpu;
    assert_eq!(cpu.process_s, Some(5.0));
    assert_eq!(cpu.foreground_s, Some(2.0));
    assert_eq!(cpu.flush_s, Some(0.5));
    assert_eq!(cpu.compaction_s, Some(1.0));
    assert_eq!(cpu.other_background_s, Some(1.375));

    let mut own = found();
    own.measured.figures.flush_cpu_s = Some(2.0);
    own.measured.figures.compaction_cpu_s = Some(3.0);
    let cpu = record_of(&own).cpu;
    assert_eq!((cpu.flush_s, cpu.compaction_s), (Some(2.0), Some(3.0)));
    // More than the process used: the clocks differ.
    assert_eq!(cpu.other_background_s, Some(0.0));

    own.measured.figures = Figures::default();
    own.measured.thread_cpu_s = BTreeMap::new();
    let cpu = record_of(&own).cpu;
    assert_eq!((cpu.flush_s, cpu.compaction_s), (None, None));
    assert_eq!(cpu.other_background_s, Some(2.875));
}

#[test]
fn what_is_not_known_is_null() {
    let record = record_of(&Found::default());
    let json: Value = serde_json::from_str(&record.to_json().unwrap()).unwrap();
    for key in [
        "ops_per_s",
        "ops_per_s_until_idle",
        "bytes_per_s",
        "p50_us",
        "max_us",
        "write_amplification",
        "space_amplification",
        "cpu_s",
        "rss_bytes",
        "stall_s",
        "stall_s_by_cause",
        "slow_s",
        "open_loop",
    ] {
        assert_eq!(json[key], Value::Null, "{key}");
    }
    assert_eq!(json["operations"], 0);
    assert_eq!(json["amplification"]["read_device"], Value::Null);
    assert_eq!(json["machine"]["memory_bytes"], Value::Null);
}

#[test]
fn without_bytes_of_the_user_there_is_no_write_amplification() {
    let mut nothing = found();
    nothing.measured.counts.written_bytes = 0;
    nothing.measured.beside.written_bytes = 0;
    let record = record_of(&nothing);
    assert_eq!(record.write_amplification, None);
    assert_eq!(record.amplification.write_calls, None);
    assert_eq!(record.bytes.flush_bytes, Some(1_000));

    let mut unknown = found();
    unknown.measured.figures.log_bytes = None;
    let record = record_of(&unknown);
    assert_eq!(record.write_amplification, None);
    assert_eq!(record.amplification.write_tables, Some(2.9));

    let ingest = Settings {
        workload: Workload::Ingest,
        ..Settings::default()
    };
    let record = Record::of(&Named, &ingest, &found(), &context());
    assert_eq!(record.write_amplification, None);
}

#[test]
fn what_the_host_writes_to_tables_is_what_it_sends_for_them() {
    let of = |files: Files, counters: &[(&str, u64)]| {
        let mut found = found();
        let counters = counters
            .iter()
            .map(|(name, count)| (name.to_string(), *count));
        found.measured.figures.others = counters.collect();
        let mut settings = Settings::default();
        settings.topology.files = files;
        let record = Record::of(&Named, &settings, &found, &context());
        assert_eq!(record.amplification.write_tables, Some(2.9));
        record.amplification.write_tables_by_host
    };
    // The user wrote 1000 bytes. A purpose for which nothing was sent has no counter.
    let sent = [
        ("link_sent_bytes", 9_000),
        ("link_log_sent_bytes", 1_050),
        ("link_compaction_sent_bytes", 70),
        ("link_table_sent_bytes", 1_200),
        ("link_survivors_sent_bytes", 100),
    ];
    for files in [Files::Held, Files::HeldLocalLog] {
        assert_eq!(of(files, &sent), Some(1.3));
        assert_eq!(of(files, &sent[..4]), Some(1.2));
        assert_eq!(of(files, &sent[..1]), Some(0.0));
        assert_eq!(of(files, &[]), None);
    }
    assert_eq!(of(Files::Local, &[]), Some(2.9));
    assert_eq!(of(Files::Shared, &sent), None);
    assert_eq!(of(Files::Lent, &sent), None);
}

#[test]
fn the_bandwidth_of_compactions_is_that_of_the_time_that_they_took() {
    let of = |counters: &[(&str, u64)]| {
        let mut found = found();
        let counters = counters
            .iter()
            .map(|(name, count)| (name.to_string(), *count));
        found.measured.figures.others = counters.collect();
        let record = record_of(&found);
        let device = record.device_compaction_bytes_per_s;
        (record.host_compaction_bytes_per_s, device)
    };
    // The run took four seconds until it was idle, and the compactions half a second of them.
    let host = [
        ("host_compaction_in_bytes", 3_000),
        ("host_compaction_busy_us", 500_000),
        ("device_compaction_in_bytes", 0),
        ("device_compaction_busy_us", 0),
    ];
    assert_eq!(of(&host), (Some(6_000.0), None));
    // Each side has its part of the compactions that were divided between them.
    let mut both = host;
    (both[2].1, both[3].1) = (1_000, 250_000);
    assert_eq!(of(&both), (Some(6_000.0), Some(4_000.0)));
    // An engine without a device counts no sides.
    assert_eq!(of(&[("syncs", 3)]), (None, None));
}

#[test]
fn a_store_in_memory_has_no_space_amplification() {
    let mut in_memory = found();
    in_memory.closed_sizes = Sizes::default();
    assert_eq!(record_of(&in_memory).space_amplification, None);
    let mut empty = found();
    empty.live_bytes = Some(0);
    assert_eq!(record_of(&empty).space_amplification, None);
}

#[test]
fn the_promise_is_that_of_what_the_engine_was_told() {
    let of = |driver: &dyn Driver, workload, is_synced| {
        let settings = Settings {
            workload,
            ..Settings::default()
        };
        let found = Found {
            is_synced,
            ..found()
        };
        Record::of(driver, &settings, &found, &context()).promise
    };
    let fill = Workload::FillRandom;
    assert_eq!(of(&Named, fill, true), Some(Promise::Power));
    assert_eq!(of(&Named, fill, false), Some(Promise::Process));
    assert_eq!(of(&NullDriver, fill, true), Some(Promise::Memory));
    // The name of the workload promises nothing.
    let unsynced = of(&Named, Workload::FillSync, false);
    assert_eq!(unsynced, Some(Promise::Process));
}

#[test]
fn a_record_has_the_settings_that_were_carried_out() {
    let mut settings = Settings {
        workload: Workload::FillSync,
        ..Settings::default()
    };
    settings.set("engine.own.named.x", "1").unwrap_err();
    let record = Record::of(&Named, &settings, &found(), &context());
    assert_eq!(record.settings["sync"], true);
    assert_eq!(record.settings["amount"], "10s");
}

#[test]
fn a_reader_is_warned_of_a_store_that_was_not_at_rest() {
    let of = |workload, found: &Found| {
        let settings = Settings {
            workload,
            ..Settings::default()
        };
        Record::of(&Named, &settings, found, &context()).warnings
    };
    let mut busy = found();
    busy.measured.censored_operations = 0;
    let read = of(Workload::ReadRandom, &busy);
    assert!(read[0].contains("compacted 2900 bytes"), "{read:?}");
    assert!(of(Workload::FillRandom, &busy).is_empty());
    assert!(of(Workload::Compact, &busy).is_empty());
    let mut calm = busy.clone();
    calm.measured.figures.flush_bytes = Some(0);
    calm.measured.figures.compaction_bytes = None;
    assert!(of(Workload::ReadRandom, &calm).is_empty());
    let censored = of(Workload::FillRandom, &found());
    assert!(censored[0].contains("lower bounds"), "{censored:?}");
}

#[test]
fn the_rate_of_the_writer_beside_reads_is_recorded() {
    let settings = Settings {
        workload: Workload::ReadWhileWriting,
        ..Settings::default()
    };
    let record = Record::of(&Named, &settings, &found(), &context());
    assert_eq!(record.beside_ops_per_s, Some(4.0));
    assert_eq!(record_of(&found()).beside_ops_per_s, None);
}

/// Fails if a number in the JSON is null where a number has to be, which is what serde makes of a
/// number that is not finite.
#[test]
fn numbers_that_are_not_finite_do_not_get_into_a_record() {
    let mut torn = found();
    torn.cached_before = Some(f64::NAN);
    torn.cached_after = Some(f64::INFINITY);
    torn.measured.after.cpu_s = Some(f64::NAN);
    let record = record_of(&torn);
    assert_eq!(record.disk.cached_before, None);
    assert_eq!(record.disk.cached_after, None);
    assert_eq!(record.cpu_s, None);
    assert_eq!(record.cpu.other_background_s, None);
    let text = record.to_json().unwrap();
    assert_eq!(Record::from_json(&text).unwrap(), record);
}

#[test]
fn a_record_is_one_line_and_is_read_back() {
    let record = record_of(&found());
    let text = record.to_json().unwrap();
    assert!(!text.contains('\n'));
    let read = Record::from_json(&text).unwrap();
    assert_eq!(read, record);
}

#[test]
fn unknown_keys_are_ignored_and_missing_ones_are_not_known() {
    let text = "{\"schema_version\": 1, \"workload\": \"fillseq\", \"new_key\": {\"a\": 1}, \
        \"cpu\": {\"process_s\": 2.0, \"new_s\": 1}}";
    let record = Record::from_json(text).unwrap();
    assert_eq!(record.workload, "fillseq");
    assert_eq!(record.cpu.process_s, Some(2.0));
    assert_eq!(record.p50_us, None);
}

/// Earlier programs wrote these two keys, always as null.
#[test]
fn a_record_of_an_earlier_program_is_read_without_the_keys_that_are_gone() {
    let mut json: Value = serde_json::from_str(&record_of(&found()).to_json().unwrap()).unwrap();
    for key in ["blocks_per_get", "tables_per_get"] {
        let amplification = json["amplification"].as_object_mut().unwrap();
        assert!(!amplification.contains_key(key), "{key} is written");
        amplification.insert(key.into(), Value::Null);
    }
    let record = Record::from_json(&json.to_string()).unwrap();
    assert_eq!(record.amplification.read_device, Some(2.5));
}

#[test]
fn records_of_other_versions_are_refused() {
    let refused = Record::from_json("{\"schema_version\": 2}").unwrap_err();
    assert!(
        refused.to_string().contains("schema version 2"),
        "{refused}"
    );
    let refused = Record::from_json("[1").unwrap_err();
    assert!(
        refused.to_string().contains("no record of a run"),
        "{refused}"
    );
}

#[test]
fn the_table_shows_all_that_matters_in_100_columns() {
    let mut run = found();
    run.measured.errors = 3;
    run.measured.wrong_answers = 2;
    let text = table(&record_of(&run));
    for part in [
        "fillrandom on named 1.2.3, writes survive the end of the process",
        "100 operations in 2.50 s: 40.0 ops/s",
        "until idle 4.00 s: 25.0 ops/s",
        "10 operations beside them",
        "first read after 250 ms; 48 B in the log",
        "7 operations were due and never begun",
        "50 left at the end",
        "3 calls failed; 2 answers were wrong",
        "750 ms (log 250 ms, memtables 500 ms)",
        "2.00 ms in calls above 1 ms",
        "1 second without an operation",
        "4.00x of the user's 1000 B with the log, 2.90x without",
        "1.50x with the log, 1.00x without",
        "foreground 2.00 s, flushes 500 ms, compactions 1.00 s",
        "70 B anonymous and 80 B resident at most; 0.05 page faults that read, per operation",
        "put, served",
        "stood in for the persistent memory",
    ] {
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(flat.contains(part), "{part:?} is not in\n{text}");
    }
    let longest = text.lines().map(|line| line.chars().count()).max();
    assert!(longest <= Some(100), "{text}");
    assert!(text.ends_with('\n'));
}

#[test]
fn the_table_of_a_run_without_figures_hides_nothing() {
    let text = table(&record_of(&Found::default()));
    assert!(text.contains("not counted by the engine"), "{text}");
    assert!(text.contains("0 operations in 0 s: -, -"), "{text}");
    assert!(!text.contains("FAILURES"), "{text}");
    let mut calm = found();
    calm.measured.figures.stall_s = BTreeMap::from([("log".into(), 0.0)]);
    calm.measured.after.major_faults = calm.measured.before.major_faults;
    let text = table(&record_of(&calm));
    assert!(!text.contains("page faults"), "{text}");
    assert!(text.contains("none by the engine's account"), "{text}");
}

#[test]
fn long_rows_of_the_table_are_broken_between_words() {
    let mut run = found();
    let causes = (0..30).map(|n| (format!("cause{n}"), 1.0));
    run.measured.figures.stall_s = causes.collect();
    run.measured.latency = BTreeMap::from([
        (Kind::ReadModifyWrite, latencies(&[1, 86_400_000_000])),
        (Kind::Put, latencies(&[999_999])),
    ]);
    run.measured.service = run.measured.latency.clone();
    let text = table(&record_of(&run));
    assert!(
        text.lines().all(|line| line.chars().count() <= 100),
        "{text}"
    );
    assert!(text.contains("cause29 1.00 s,"), "{text}");
}

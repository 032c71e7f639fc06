//! The short table of a run, for people.
//!
//! It fits in 100 columns. Failures, stalls and backlogs stand in it whenever there are any, and
//! what an engine does not count is called so.
//!
//! Threading: pure functions.

use super::Record;
use crate::engine::Promise;
use crate::measure::LatencySummary;

pub(crate) mod number;

use number::{bytes, count, factor, latency, rate, seconds};

/// The width of the table.
const COLUMNS: usize = 100;

/// The width of the names of the rows.
const LABEL_COLUMNS: usize = 12;

/// A blank at which no line is broken.
const NO_BREAK: char = '\u{a0}';

/// The table of one run. It ends with a line break.
pub fn table(record: &Record) -> String {
    let mut text = heading(record);
    for (label, facts) in [
        ("rate", rates(record)),
        ("open loop", open_loop(record)),
        ("open", open(record)),
        ("FAILURES", failures(record)),
        ("WARNINGS", record.warnings.clone()),
    ] {
        text.push_str(&row(label, &facts));
    }
    text.push_str(&latencies(record));
    for (label, facts) in [
        ("stalls", stalls(record)),
        ("written", written(record)),
        ("space", space(record)),
        ("processor", processor(record)),
        ("memory", memory(record)),
        ("stand-ins", record.stand_ins.clone()),
    ] {
        text.push_str(&row(label, &facts));
    }
    text
}

/// A name and facts, with lines broken between words. Nothing if there are no facts.
pub(crate) fn row(label: &str, facts: &[String]) -> String {
    if facts.is_empty() {
        return String::new();
    }
    let mut text = format!("  {label:<LABEL_COLUMNS$}");
    let indent = text.chars().count();
    let mut used = indent;
    for (position, word) in facts.join("; ").split(' ').enumerate() {
        let width = word.chars().count();
        if position > 0 && used + 1 + width > COLUMNS {
            text.push_str(&format!("\n{:indent$}", ""));
            used = indent;
        } else if position > 0 {
            text.push(' ');
            used += 1;
        }
        text.push_str(word);
        used += width;
    }
    text.replace(NO_BREAK, " ") + "\n"
}

fn heading(record: &Record) -> String {
    let survives = record.promise.map(|promise| match promise {
        Promise::Memory => ", writes may be lost if the process is killed",
        Promise::Fragile => ", a loss of power may damage the store",
        Promise::Process => ", writes survive the end of the process",
        Promise::Power => ", writes survive a loss of power",
    });
    format!(
        "{} on {} {}{}\n",
        record.workload,
        record.engine,
        record.engine_version,
        survives.unwrap_or_default()
    )
}

fn rates(record: &Record) -> Vec<String> {
    let mut facts = vec![format!(
        "{} operations in {}: {}, {}",
        count(record.operations),
        seconds(Some(record.until_last_s)),
        rate(record.ops_per_s),
        per_second(record.bytes_per_s),
    )];
    facts.push(format!(
        "until idle {}: {}",
        seconds(Some(record.until_idle_s)),
        rate(record.ops_per_s_until_idle)
    ));
    if record.beside_operations > 0 {
        let beside = count(record.beside_operations);
        let rate = rate(record.beside_ops_per_s);
        facts.push(format!("{beside} operations beside them: {rate}"));
    }
    facts
}

fn per_second(bytes_per_s: Option<f64>) -> String {
    bytes_per_s.map_or("-".into(), |value| format!("{}/s", bytes(Some(value))))
}

fn open_loop(record: &Record) -> Vec<String> {
    let Some(open) = record.open_loop else {
        return Vec::new();
    };
    let (due, done) = (open.intended_ops_per_s, open.achieved_ops_per_s);
    vec![
        format!("{} due, {} done", rate(due), rate(done)),
        format!("{} left at the end", count(open.backlog_operations)),
    ]
}

fn open(record: &Record) -> Vec<String> {
    let Some(open) = record.open else {
        return Vec::new();
    };
    let (read_s, log_bytes) = (open.until_first_read_s, open.log_bytes as f64);
    vec![
        format!("first read after {}", seconds(Some(read_s))),
        format!("{} in the log", bytes(Some(log_bytes))),
    ]
}

fn failures(record: &Record) -> Vec<String> {
    if record.errors == 0 && record.verification_failures == 0 {
        return Vec::new();
    }
    vec![
        format!("{} calls failed", count(record.errors)),
        format!("{} answers were wrong", count(record.verification_failures)),
    ]
}

/// A line for each kind of operation.
fn latencies(record: &Record) -> String {
    if record.latency.is_empty() {
        return String::new();
    }
    let names = [
        "calls", "mean", "p50", "p90", "p99", "p99.9", "p99.99", "max",
    ];
    let mut text = line("latency", &names.map(str::to_string));
    for (kind, found) in &record.latency {
        text.push_str(&line(kind, &cells(found)));
    }
    for (kind, found) in &record.service_time {
        text.push_str(&line(&format!("{kind}, served"), &cells(found)));
    }
    text
}

fn cells(found: &LatencySummary) -> [String; 8] {
    [
        count(found.count),
        latency(found.mean_us),
        latency(found.p50_us),
        latency(found.p90_us),
        latency(found.p99_us),
        latency(found.p999_us),
        latency(found.p9999_us),
        latency(found.max_us),
    ]
}

/// A line of the table of latencies: 2 + 25 + 14 columns, and 8 for each of the others.
fn line(label: &str, cells: &[String; 8]) -> String {
    let [calls, others @ ..] = cells;
    let mut text = format!("  {label:<25}{calls:>14}");
    for cell in others {
        text.push_str(&format!("{cell:>8}"));
    }
    text + "\n"
}

fn stalls(record: &Record) -> Vec<String> {
    let own = match (&record.stall_s_by_cause, record.stall_s) {
        (Some(causes), Some(total)) if total > 0.0 => {
            let causes = causes.iter().filter(|(_, cause_s)| **cause_s > 0.0);
            let causes: Vec<String> = causes
                .map(|(cause, cause_s)| format!("{cause}{NO_BREAK}{}", seconds(Some(*cause_s))))
                .collect();
            format!("{} ({})", seconds(Some(total)), causes.join(", "))
        }
        (Some(_), _) => "none by the engine's account".into(),
        (None, _) => "not counted by the engine".into(),
    };
    let mut facts = vec![own];
    if let Some(slow_s) = record.slow_s {
        facts.push(format!("{} in calls above 1 ms", seconds(Some(slow_s))));
    }
    match record.silent_seconds {
        0 => {}
        1 => facts.push("1 second without an operation".into()),
        many => facts.push(format!("{} seconds without an operation", count(many))),
    }
    facts
}

fn written(record: &Record) -> Vec<String> {
    let (found, bytes_of) = (&record.amplification, &record.bytes);
    if bytes_of.user_written_bytes == 0 {
        return Vec::new();
    }
    let part = |value: Option<u64>| bytes(value.map(|value| value as f64));
    vec![
        format!(
            "{} of the user's {} with the log, {} without",
            factor(found.write_with_log),
            part(Some(bytes_of.user_written_bytes)),
            factor(found.write_tables)
        ),
        format!(
            "log {}, flushes {}, compactions {}",
            part(bytes_of.log_bytes),
            part(bytes_of.flush_bytes),
            part(bytes_of.compaction_bytes)
        ),
    ]
}

fn space(record: &Record) -> Vec<String> {
    let (found, disk) = (&record.amplification, &record.disk);
    let part = |value: Option<u64>| bytes(value.map(|value| value as f64));
    vec![format!(
        "{} with the log, {} without: files {}, log {}, records {}",
        factor(found.space),
        factor(found.space_without_log),
        part(Some(disk.files_closed.total().allocated_bytes)),
        part(Some(disk.files_closed.log.allocated_bytes)),
        part(disk.live_bytes),
    )]
}

fn processor(record: &Record) -> Vec<String> {
    let cpu = &record.cpu;
    vec![format!(
        "{}: foreground {}, flushes {}, compactions {}, others {}",
        seconds(cpu.process_s),
        seconds(cpu.foreground_s),
        seconds(cpu.flush_s),
        seconds(cpu.compaction_s),
        seconds(cpu.other_background_s)
    )]
}

fn memory(record: &Record) -> Vec<String> {
    let part = |value: Option<u64>| bytes(value.map(|value| value as f64));
    let mut facts = vec![format!(
        "{} anonymous and {} resident at most",
        part(record.memory.peak_anonymous_bytes),
        part(record.memory.peak_resident_bytes)
    )];
    // With enough memory there are none, or a few when a run begins.
    let faults = record.system.major_faults_per_op;
    if let Some(faults) = faults.filter(|faults| *faults >= 0.01) {
        facts.push(format!("{faults:.2} page faults that read, per operation"));
    }
    facts
}

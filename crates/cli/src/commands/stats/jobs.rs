//! Jobs and the sides that run them, in words: why a job runs where it runs, what it waits for, and
//! why a side has nothing to do.

use std::time::Duration;

use siltstone::{JobStats, QueueStats, SideStats, Stats};

use crate::failure::Failure;
use crate::output::{Out, bytes, count, duration, one_line, outln, plural};

/// What a job does, in a few words, such as `merge 1 -> 2`.
pub fn name_of(job: &JobStats) -> String {
    match job.from_level {
        Some(from) if from != job.to_level => format!("{} {from} -> {}", job.kind, job.to_level),
        Some(from) if job.kind == "rewrite" => format!("rewrite in {from}"),
        _ => job.kind.clone(),
    }
}

/// Prints the jobs that have begun, the queues, the jobs that wait, and the sides.
pub fn print(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    // The last side is the store's own: its jobs run on the store's workers.
    let own = stats.sides.last().map_or("", |side| &side.name[..]);
    let jobs = stats.jobs.iter().map(|job| ("job", job_lines(job)));
    let queues = stats.queues.iter();
    let queues = queues.map(|queue| ("queue", vec![queue_line(queue)]));
    let waiting = stats.waiting_jobs.iter();
    let waiting = waiting.map(|job| ("waiting", waiting_lines(job, own)));
    let sides = stats.sides.iter();
    let sides = sides.map(|side| ("side", side_lines(side, own)));
    for (title, lines) in jobs.chain(queues).chain(waiting).chain(sides) {
        for (at, line) in lines.iter().enumerate() {
            let title = if at == 0 { title } else { "" };
            outln!(out, "{title:<11}{line}")?;
        }
    }
    Ok(())
}

fn micros(us: u64) -> String {
    duration(Duration::from_micros(us))
}

/// An executor and where it computes.
fn place(job: &JobStats) -> String {
    format!("{} ({})", one_line(&job.executor), job.side)
}

fn job_lines(job: &JobStats) -> Vec<String> {
    let state = match &job.stage[..] {
        "reserved" if job.executor.is_empty() => "reserved for its next attempt".to_string(),
        "reserved" if !job.is_under_way() => format!("reserved, waiting for {}", place(job)),
        "verifying" => format!("verifying the tables of {}", place(job)),
        "finishing" => format!("finishing, installing the tables of {}", place(job)),
        stage => format!("{stage} on {}", place(job)),
    };
    let mut line = format!("{} of `{}`: {state}", name_of(job), one_line(&job.keyspace));
    if let Some(us) = job.run_us {
        line += &format!(" for {}", micros(us));
    }
    line += &format!(
        "; {} of {} read, {} written",
        bytes(job.read_bytes),
        bytes(job.input_bytes),
        bytes(job.out_bytes)
    );
    if let Some(us) = job.left_us {
        line += &format!("; about {} left", micros(us));
    }
    let mut lines = vec![line];
    lines.extend(why(job));
    lines
}

fn queue_line(queue: &QueueStats) -> String {
    format!(
        "level {} of `{}`: {} of {} ({}) are due and wait",
        queue.level,
        one_line(&queue.keyspace),
        plural(queue.work_count, "compaction"),
        plural(queue.table_count, "table"),
        bytes(queue.bytes)
    )
}

/// `own`: the name of the store's own executor.
fn waiting_lines(job: &JobStats, own: &str) -> Vec<String> {
    let what = if job.executor.is_empty() {
        "any side that takes it from its queue".to_string()
    } else if job.executor == own {
        "a worker of the host".to_string()
    } else {
        format!("a slot of {}", place(job))
    };
    let mut lines = vec![format!(
        "{} of `{}` ({}) waits for {what}",
        name_of(job),
        one_line(&job.keyspace),
        bytes(job.input_bytes)
    )];
    lines.extend(why(job));
    lines
}

/// Why a job is needed, and why it is where it is.
fn why(job: &JobStats) -> Vec<String> {
    let needed = (!job.reason.is_empty()).then(|| format!("why: {}", job.reason));
    let there = (!job.placement.is_empty()).then(|| format!("why there: {}", job.placement));
    let lines = needed.into_iter().chain(there);
    lines.map(|line| one_line(&line).into_owned()).collect()
}

/// `own`: the name of the store's own executor.
fn side_lines(side: &SideStats, own: &str) -> Vec<String> {
    let slot = if side.name == own { "worker" } else { "slot" };
    let mut line = format!(
        "{} ({}): {}, {} of {} busy",
        one_line(&side.name),
        side.side,
        one_line(&side.state),
        count(side.running_job_count),
        plural(side.slot_count, slot)
    );
    if side.waiting_job_count > 0 {
        let verb = if side.waiting_job_count == 1 {
            "waits"
        } else {
            "wait"
        };
        line += &format!(", {} {verb} for it", plural(side.waiting_job_count, "job"));
    }
    let speed = |speed: Option<f64>| match speed {
        Some(speed) => format!("{}/s", bytes(speed as u64)),
        None => "not measured yet".to_string(),
    };
    line += &format!(
        "; flushes {}, compactions {}",
        speed(side.flush_bytes_per_s),
        speed(side.compaction_bytes_per_s)
    );
    let mut lines = vec![line];
    if !side.queue_end.is_empty() {
        let speed = match side.compaction_ns_per_byte {
            Some(ns) => format!(" ({ns:.3} ns a byte)"),
            None => String::new(),
        };
        lines.push(format!(
            "takes from the {} end of the queues{speed}",
            side.queue_end
        ));
    }
    lines.extend(cost_lines(side));
    if side.suspended_us > 0 {
        let seconds = side.suspended_us.div_ceil(1_000_000);
        lines.push(format!(
            "suspended for {seconds} s more: it is given no jobs"
        ));
    }
    if side.lost_slot_count > 0 {
        let slots = plural(side.lost_slot_count, "slot");
        lines.push(format!(
            "{slots} lost: it does not return from jobs that were given up"
        ));
    }
    if let Some(refusal) = &side.refusal {
        lines.push(format!("does not accept a job: {}", one_line(refusal)));
    }
    lines.extend(failure_lines(side));
    lines
}

/// What became of the jobs of a side that it did not do.
fn failure_lines(side: &SideStats) -> Vec<String> {
    let mut lines = Vec::new();
    let counts = [
        (side.failed_count, "failed"),
        (side.declined_count, "declined"),
        (side.rejected_count, "rejected"),
    ];
    let counts: Vec<String> = counts
        .iter()
        .filter(|(n, _)| *n > 0)
        .map(|(n, word)| format!("{} {word}", count(*n)))
        .collect();
    if !counts.is_empty() {
        lines.push(format!("of its jobs {}", counts.join(", ")));
    }
    if let Some(failure) = &side.last_failure {
        lines.push(format!("the last failure: {}", one_line(failure)));
    }
    lines
}

/// What a side has done, what that cost, and what it saved.
fn cost_lines(side: &SideStats) -> Vec<String> {
    if side.compaction_count == 0 {
        return Vec::new();
    }
    let mut done = format!(
        "did {}: {} in, {} out, in {}",
        plural(side.compaction_count, "compaction"),
        bytes(side.compaction_in_bytes),
        bytes(side.compaction_out_bytes),
        micros(side.compaction_us)
    );
    if side.compaction_cpu_us > 0 {
        done += &format!("; processor time {}", micros(side.compaction_cpu_us));
    }
    if side.side != "host" {
        done += &format!(", and {} of the host", micros(side.host_cpu_us));
    }
    if let Some(used) = side.link_bytes {
        done += &format!("; {} on the link", bytes(used));
    }
    let mut saved = Vec::new();
    match side.saved_cpu_us {
        Some(us) if us >= 0 => saved.push(format!(
            "saved the host about {} of processor time",
            micros(us.unsigned_abs())
        )),
        Some(us) => saved.push(format!(
            "cost the host about {} more processor time than it saved",
            micros(us.unsigned_abs())
        )),
        None => {}
    }
    if let Some(spared) = side.saved_link_bytes.filter(|spared| *spared > 0) {
        saved.push(format!("kept {} off the link", bytes(spared)));
    }
    let mut lines = vec![done];
    if !saved.is_empty() {
        lines.push(saved.join(", "));
    }
    lines
}

/// Prints what the sides beside the host have done since the store was opened, and the bytes of the
/// link. Nothing if there is no such side.
pub fn print_devices(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    // The last side is the store's own.
    let Some((_, others)) = stats.sides.split_last() else {
        return Ok(());
    };
    for side in others {
        let mut title = one_line(&side.name);
        // An address is too long for the column.
        if title.len() > 10 {
            outln!(out, "{title}")?;
            title = "".into();
        }
        for line in work_lines(side) {
            outln!(out, "{title:<11}{line}")?;
            title = "".into();
        }
    }
    print_link(out, stats)
}

/// Adds what the sides have done to the JSON of a command, with the names of `silt stats --json`.
/// Nothing if there is no side beside the host.
pub fn add_devices(json: &mut serde_json::Value, stats: &Stats) {
    if stats.sides.len() < 2 {
        return;
    }
    let all: serde_json::Value = serde_json::from_str(&stats.to_json()).expect("it is JSON");
    json["sides"] = all["sides"].clone();
}

/// What a side has done, or why it has done nothing, and what went wrong there.
pub fn work_lines(side: &SideStats) -> Vec<String> {
    let is_ready = side.state == "ready" || side.state.is_empty();
    let state = (!is_ready).then_some(&side.state);
    let mut lines = cost_lines(side);
    if lines.is_empty() {
        // A failure has lines of its own.
        let why = match (&side.last_failure, state, &side.refusal) {
            (Some(_), ..) => String::new(),
            (None, Some(state), _) => format!(": {}", one_line(state)),
            (None, None, Some(refusal)) => {
                format!("; it did not accept the last job: {}", one_line(refusal))
            }
            (None, None, None) => "; either there were none, or others began them first".into(),
        };
        lines.push(format!("did no compactions{why}"));
    } else if let Some(state) = state {
        lines.push(format!("was given no more jobs: {}", one_line(state)));
    }
    lines.extend(failure_lines(side));
    lines
}

/// The bytes of links by purpose, or of a part of the time; `of` gives a counter's value, and
/// `shown` its text. Nothing if there is no link.
pub fn link_lines(
    of: impl Fn(&str) -> u64,
    shown: impl Fn(u64) -> String,
    names: impl Iterator<Item = String>,
) -> Vec<String> {
    let mut ways = [("sent", Vec::new()), ("received", Vec::new())];
    for name in names {
        let Some(rest) = name.strip_prefix("link_") else {
            continue;
        };
        for (way, purposes) in &mut ways {
            let suffix = format!("_{way}_bytes");
            if let Some(purpose) = rest.strip_suffix(&suffix) {
                purposes.push((of(&name), purpose.to_string()));
            }
        }
    }
    let lines = ways.into_iter().map(|(way, mut purposes)| {
        // The largest first.
        purposes.sort_by(|a, b| b.cmp(a));
        let all: u64 = purposes.iter().map(|(bytes, _)| bytes).sum();
        let each: Vec<String> = purposes
            .iter()
            .filter(|(bytes, _)| *bytes > 0)
            .map(|(bytes, purpose)| format!("{purpose} {}", shown(*bytes)))
            .collect();
        let line = format!("{way} {}: {}", shown(all), each.join(", "));
        (all, line)
    });
    lines
        .filter(|(all, _)| *all > 0)
        .map(|(_, line)| line)
        .collect()
}

/// Prints the bytes of the link since the store was opened.
pub fn print_link(out: &mut Out, stats: &Stats) -> Result<(), Failure> {
    let names = stats.counters.keys().map(|name| name.to_string());
    let lines = link_lines(|name| stats.counter(name), bytes, names);
    for (at, line) in lines.iter().enumerate() {
        outln!(out, "{:<11}{line}", if at == 0 { "link" } else { "" })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn merge() -> JobStats {
        JobStats {
            keyspace: "a".to_string(),
            kind: "merge".to_string(),
            from_level: Some(1),
            to_level: 2,
            reason: "level 1 is too large".to_string(),
            stage: "running".to_string(),
            executor: "gpu0".to_string(),
            side: "gpu".to_string(),
            placement: "gpu0 0.234 s, host 0.537 s".to_string(),
            input_bytes: 10 << 20,
            read_bytes: 5 << 20,
            run_us: Some(1_500_000),
            left_us: Some(1_500_000),
            ..JobStats::default()
        }
    }

    #[test]
    fn a_job_says_where_it_runs_and_why() {
        let why = [
            "why: level 1 is too large",
            "why there: gpu0 0.234 s, host 0.537 s",
        ];
        let lines = job_lines(&merge());
        assert_eq!(
            lines[0],
            "merge 1 -> 2 of `a`: running on gpu0 (gpu) for 1.50 s; 5.0 MiB of 10.0 MiB read, 0 B \
             written; about 1.50 s left"
        );
        assert_eq!(lines[1..], why);
        let flush = JobStats {
            kind: "flush".to_string(),
            keyspace: "a\nb".to_string(),
            stage: "finishing".to_string(),
            executor: "cpu".to_string(),
            side: "host".to_string(),
            ..JobStats::default()
        };
        let said = "flush of `a\\nb`: finishing, installing the tables of cpu (host); 0 B of 0 B \
                    read, 0 B written";
        assert_eq!(job_lines(&flush), [said]);
        let waits = JobStats {
            stage: "waiting".to_string(),
            ..merge()
        };
        let lines = waiting_lines(&waits, "cpu");
        let said = "merge 1 -> 2 of `a` (10.0 MiB) waits for a slot of gpu0 (gpu)";
        assert_eq!(
            (&lines[0][..], &lines[1..]),
            (said, &why.map(String::from)[..])
        );
        let queued = JobStats {
            executor: String::new(),
            side: String::new(),
            placement: "2 of 5 in the queue of level 1, by size".to_string(),
            ..waits
        };
        let lines = waiting_lines(&queued, "cpu");
        let said = "merge 1 -> 2 of `a` (10.0 MiB) waits for any side that takes it from its queue";
        assert_eq!(lines[0], said);
        assert_eq!(
            lines[2],
            "why there: 2 of 5 in the queue of level 1, by size"
        );
        let next = JobStats {
            stage: "reserved".to_string(),
            run_us: None,
            ..merge()
        };
        let line = &job_lines(&next)[0];
        assert!(line.contains("reserved, waiting for gpu0 (gpu)"), "{line}");
    }

    #[test]
    fn queues_and_their_ends_are_shown() {
        let queue = QueueStats {
            keyspace: "a\nb".to_string(),
            level: 2,
            work_count: 3,
            table_count: 17,
            bytes: 40 << 20,
        };
        assert_eq!(
            queue_line(&queue),
            "level 2 of `a\\nb`: 3 compactions of 17 tables (40.0 MiB) are due and wait"
        );
        let side = |ns_per_byte| SideStats {
            queue_end: "large".to_string(),
            compaction_ns_per_byte: ns_per_byte,
            ..SideStats::default()
        };
        let end = |ns_per_byte| side_lines(&side(ns_per_byte), "cpu")[1].clone();
        let said = "takes from the large end of the queues";
        assert_eq!(end(None), said);
        assert_eq!(end(Some(4.5)), format!("{said} (4.500 ns a byte)"));
        assert_eq!(side_lines(&SideStats::default(), "cpu").len(), 1);
    }

    #[test]
    fn a_side_says_what_it_cost_and_saved() {
        let side = SideStats {
            side: "device".to_string(),
            compaction_count: 3,
            compaction_in_bytes: 10 << 20,
            compaction_out_bytes: 8 << 20,
            compaction_us: 2_500_000,
            compaction_busy_us: 2_000_000,
            compaction_cpu_us: 2_000_000,
            host_cpu_us: 20_000,
            saved_cpu_us: Some(1_500_000),
            link_bytes: Some(4096),
            saved_link_bytes: Some(18 << 20),
            ..SideStats::default()
        };
        assert_eq!(
            cost_lines(&side),
            [
                "did 3 compactions: 10.0 MiB in, 8.0 MiB out, in 2.50 s; processor time 2.00 s, \
                 and 20.0 ms of the host; 4.0 KiB on the link",
                "saved the host about 1.50 s of processor time, kept 18.0 MiB off the link",
            ]
        );
        let costly = SideStats {
            saved_cpu_us: Some(-1_000_000),
            saved_link_bytes: Some(0),
            ..side.clone()
        };
        let said = "cost the host about 1.00 s more processor time than it saved";
        assert_eq!(cost_lines(&costly)[1..], [said]);
        let unknown = SideStats {
            saved_cpu_us: None,
            saved_link_bytes: None,
            link_bytes: None,
            compaction_cpu_us: 0,
            ..side
        };
        assert_eq!(
            cost_lines(&unknown),
            ["did 3 compactions: 10.0 MiB in, 8.0 MiB out, in 2.50 s, and 20.0 ms of the host"]
        );
    }

    #[test]
    fn a_load_says_what_went_wrong_on_a_device() {
        let idle = SideStats {
            side: "device".to_string(),
            state: "down: it could not be reached".to_string(),
            refusal: Some("its tables are elsewhere".to_string()),
            ..SideStats::default()
        };
        let said = "did no compactions: down: it could not be reached";
        assert_eq!(work_lines(&idle), [said]);
        let failed = SideStats {
            failed_count: 2,
            last_failure: Some("the link was cut".to_string()),
            ..idle.clone()
        };
        let lines = work_lines(&failed);
        let expected = [
            "did no compactions",
            "of its jobs 2 failed",
            "the last failure: the link was cut",
        ];
        assert_eq!(lines, expected);
        let lost = SideStats {
            compaction_count: 1,
            ..failed
        };
        let lines = work_lines(&lost);
        assert!(lines[0].starts_with("did 1 compaction:"), "{lines:?}");
        let state = "was given no more jobs: down: it could not be reached";
        assert_eq!(lines[1..], [state, expected[1], expected[2]]);
        let ready = SideStats {
            state: "ready".to_string(),
            refusal: None,
            ..idle
        };
        let said = "did no compactions; either there were none, or others began them first";
        assert_eq!(work_lines(&ready), [said]);
        let refused = SideStats {
            refusal: Some("it is a flush".to_string()),
            ..ready
        };
        let said = "did no compactions; it did not accept the last job: it is a flush";
        assert_eq!(work_lines(&refused), [said]);
    }

    #[test]
    fn the_link_is_shown_by_purpose() {
        let counters = [
            ("link_log_sent_bytes", 2048),
            ("link_log_received_bytes", 0),
            ("link_table_sent_bytes", 4096),
            ("log_bytes", 7),
        ];
        let of = |name: &str| counters.iter().find(|(n, _)| *n == name).unwrap().1;
        let names = counters.iter().map(|(name, _)| name.to_string());
        assert_eq!(
            link_lines(of, bytes, names),
            ["sent 6.0 KiB: table 4.0 KiB, log 2.0 KiB"]
        );
        assert!(link_lines(|_| 0, bytes, ["log_bytes".to_string()].into_iter()).is_empty());
    }

    #[test]
    fn a_side_says_why_it_is_idle() {
        let idle = SideStats {
            name: "gpu0".to_string(),
            side: "gpu".to_string(),
            state: "down: no link".to_string(),
            slot_count: 2,
            lost_slot_count: 1,
            waiting_job_count: 1,
            compaction_bytes_per_s: Some(3e9),
            refusal: Some("it takes no flushes".to_string()),
            failed_count: 3,
            rejected_count: 1,
            last_failure: Some("its link is down".to_string()),
            suspended_us: 1_500_000,
            ..SideStats::default()
        };
        assert_eq!(
            side_lines(&idle, "cpu"),
            [
                "gpu0 (gpu): down: no link, 0 of 2 slots busy, 1 job waits for it; flushes not \
                 measured yet, compactions 2.8 GiB/s",
                "suspended for 2 s more: it is given no jobs",
                "1 slot lost: it does not return from jobs that were given up",
                "does not accept a job: it takes no flushes",
                "of its jobs 3 failed, 1 rejected",
                "the last failure: its link is down",
            ]
        );
        let host = SideStats {
            name: "cpu".to_string(),
            side: "host".to_string(),
            state: "ready".to_string(),
            slot_count: 4,
            running_job_count: 1,
            ..SideStats::default()
        };
        let said = "cpu (host): ready, 1 of 4 workers busy; flushes not measured yet, compactions \
                    not measured yet";
        assert_eq!(side_lines(&host, "cpu"), [said]);
        // An executor of the user's that computes on the host has slots, and no workers.
        let pool = SideStats {
            name: "pool".to_string(),
            ..host
        };
        let line = &side_lines(&pool, "cpu")[0];
        assert!(
            line.starts_with("pool (host): ready, 1 of 4 slots busy"),
            "{line}"
        );
    }
}

//! The lines on standard error: what runs, how much is left.
//!
//! Threading: the main thread.

use std::time::{Duration, Instant};

use siltstone_bench::compare::{Forecast, Outcome, Plan, Process, Verdict};

/// Prints what will be done.
pub fn forecast(plan: &Plan, forecast: &Forecast, free_bytes: u64) {
    eprintln!("{}: {}", plan.name, plan.title);
    for row in &forecast.rows {
        let spec = &plan.rows[row.row];
        eprintln!(
            "  {:<32} {:>3} processes, about {:>8}, {:>5.1} GB of disk",
            format!("{}.{}", plan.stores[spec.store].name, spec.name),
            row.processes,
            duration(row.seconds),
            row.disk_bytes as f64 / 1e9
        );
    }
    eprintln!(
        "All together about {}, and up to {:.1} GB of disk; {:.1} GB are free.",
        duration(forecast.seconds),
        forecast.disk_bytes as f64 / 1e9,
        free_bytes as f64 / 1e9
    );
}

/// A time as people say it.
pub fn duration(seconds: f64) -> String {
    let seconds = seconds.max(0.0).round() as u64;
    match (seconds / 3600, seconds % 3600 / 60, seconds % 60) {
        (0, 0, s) => format!("{s} s"),
        (0, m, s) if m < 10 => format!("{m} min {s} s"),
        (0, m, _) => format!("{m} min"),
        (h, m, _) => format!("{h} h {m} min"),
    }
}

/// How far a comparison is.
pub struct Progress {
    start: Instant,
    /// Processes of this run.
    total: usize,
    done: usize,
    /// What is expected of the processes that are left, in seconds.
    expected_left_s: f64,
    /// What was expected of those that are done, and what they took.
    expected_s: f64,
    took_s: f64,
}

impl Progress {
    /// The beginning of a run.
    pub fn new(total: usize, expected_s: f64) -> Progress {
        Progress {
            start: Instant::now(),
            total,
            done: 0,
            expected_left_s: expected_s,
            expected_s: 0.0,
            took_s: 0.0,
        }
    }

    /// A process begins.
    pub fn begin(&self, plan: &Plan, process: Process) {
        let row = &plan.rows[process.row];
        eprintln!(
            "[{}/{}] {}.{} {} round {} of {} | {} passed, about {} left",
            self.done + 1,
            self.total,
            plan.stores[row.store].name,
            row.name,
            plan.engines[process.engine].name,
            process.round,
            row.pairs,
            duration(self.start.elapsed().as_secs_f64()),
            duration(self.left_s())
        );
    }

    /// What is left, if the rest is as much slower or faster than expected as what is done.
    fn left_s(&self) -> f64 {
        // One process says little, so the expectation counts like a minute of experience.
        const WEIGHT_S: f64 = 60.0;
        let factor = (self.took_s + WEIGHT_S) / (self.expected_s + WEIGHT_S);
        self.expected_left_s * factor
    }

    /// A store is filled for the next process.
    pub fn prepare(&self, what: &str, engine: &str) {
        eprintln!("        the store of {engine} is prepared: {what}");
    }

    /// A process has ended.
    pub fn end(&mut self, plan: &Plan, process: Process, outcome: &Outcome, expected_s: f64) {
        let metric = plan.rows[process.row].metric;
        match &outcome.verdict {
            Verdict::Done(record) => {
                let figure = metric.of_record(record);
                let figure = figure.map_or("no figure".into(), |f| format!("{metric} {f:.0}"));
                eprintln!("        {figure}, in {}", duration(outcome.took_s));
            }
            Verdict::Failed(reason) => eprintln!("        failed: {reason}"),
            Verdict::Skipped(reason) => eprintln!("        left out: {reason}"),
        }
        self.took_s += outcome.took_s;
        self.expected_s += expected_s.min(outcome.took_s * 10.0);
        self.pass(expected_s);
    }

    /// A process does not run any more.
    pub fn pass(&mut self, expected_s: f64) {
        self.done += 1;
        self.expected_left_s = (self.expected_left_s - expected_s).max(0.0);
    }
}

/// A time that is given as a [`Duration`].
pub fn seconds(seconds: f64) -> Duration {
    Duration::try_from_secs_f64(seconds).unwrap_or(Duration::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_given_as_people_say_them() {
        for (seconds, text) in [
            (0.4, "0 s"),
            (59.6, "1 min 0 s"),
            (754.0, "12 min"),
            (5400.0, "1 h 30 min"),
            (-3.0, "0 s"),
        ] {
            assert_eq!(duration(seconds), text);
        }
    }

    #[test]
    fn what_is_left_follows_what_the_others_took() {
        let mut progress = Progress::new(10, 1000.0);
        assert_eq!(progress.left_s(), 1000.0);
        progress.took_s = 540.0;
        progress.expected_s = 240.0;
        assert_eq!(progress.left_s(), 2000.0);
        progress.pass(100.0);
        assert_eq!(progress.expected_left_s, 900.0);
    }
}

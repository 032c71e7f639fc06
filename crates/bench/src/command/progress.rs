//! The progress of a run on standard error: a bar on a terminal, elsewhere a line each minute.
//!
//! Threading: [`Shown::show`] may be called by any thread.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::record::number;
use crate::run::Progress;

/// The length of a bar.
const PARTS: u64 = 1000;
/// How often a line is written where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(60);

/// What shows the progress of one run. It is gone when this is dropped.
pub struct Shown {
    bar: Option<ProgressBar>,
    label: String,
    start: Instant,
    lines: AtomicU64,
}

impl Shown {
    /// Begins to show a run under this name.
    pub fn new(label: &str) -> Shown {
        let bar = io::stderr().is_terminal().then(|| {
            let target = ProgressDrawTarget::stderr_with_hz(8);
            let bar = ProgressBar::with_draw_target(Some(PARTS), target);
            let style = ProgressStyle::with_template("{prefix} {bar:24} {wide_msg}");
            bar.with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()))
                .with_prefix(label.to_string())
        });
        Shown {
            bar,
            label: label.into(),
            start: Instant::now(),
            lines: AtomicU64::new(0),
        }
    }

    /// Shows what a run tells.
    pub fn show(&self, progress: Progress) {
        let (part, text) = told(progress);
        match &self.bar {
            Some(bar) => {
                bar.set_position((part * PARTS as f64) as u64);
                bar.set_message(text);
            }
            None => self.line(&text),
        }
    }

    fn line(&self, text: &str) {
        let due = self.start.elapsed().as_secs() / LINE_INTERVAL.as_secs();
        if self.lines.fetch_max(due, Ordering::Relaxed) < due {
            eprintln!("{}: {text}", self.label);
        }
    }
}

impl Drop for Shown {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

/// The part that is done, and what stands beside the bar.
fn told(progress: Progress) -> (f64, String) {
    let Progress::Running {
        operations,
        of,
        elapsed,
        limit,
    } = progress
    else {
        return match progress {
            Progress::Preparing => (0.0, "preparing the store".into()),
            _ => (1.0, "waiting for flushes and compactions".into()),
        };
    };
    let seconds = |time: Duration| format!("{:.0} s", time.as_secs_f64());
    let done = number::count(operations);
    let rate = number::rate(Some(operations as f64 / elapsed.as_secs_f64().max(1e-3)));
    let rate = rate.replace('\u{a0}', " ");
    match (of, limit) {
        (Some(of), _) => (
            operations as f64 / of.max(1) as f64,
            format!("{done} of {} operations, {rate}", number::count(of)),
        ),
        (None, Some(limit)) => (
            elapsed.as_secs_f64() / limit.as_secs_f64().max(1e-3),
            format!("{} of {}, {rate}", seconds(elapsed), seconds(limit)),
        ),
        (None, None) => (0.0, format!("{done} operations, {rate}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_and_a_time_are_told() {
        let running = |of, limit| Progress::Running {
            operations: 250,
            of,
            elapsed: Duration::from_secs(5),
            limit,
        };
        assert_eq!(
            told(running(Some(1000), None)),
            (0.25, "250 of 1,000 operations, 50.0 ops/s".into())
        );
        assert_eq!(
            told(running(None, Some(Duration::from_secs(10)))),
            (0.5, "5 s of 10 s, 50.0 ops/s".into())
        );
        assert_eq!(told(Progress::Settling).0, 1.0);
    }
}

//! One workload on one engine, in this process. The record goes to standard output as one line of
//! JSON, and the reason of a failure to standard error.
//!
//! Invariant: a task that this program does not fully understand is refused, so an earlier or later
//! program never carries out something else.
//!
//! Threading: this thread runs the workload, which starts its own threads.

use std::path::PathBuf;
use std::process::ExitCode;

use bench_limit::Limit;
use serde::{Deserialize, Serialize};
use siltstone_bench::measure::machine::cgroup;
use siltstone_bench::record::{Context, Record};
use siltstone_bench::run::{self, Control, RunError};
use siltstone_bench::settings::{Settings, size_text};

use crate::{Result, engines, signals};

/// What `child --protocol` prints. Programs with another one do not understand each other's tasks.
pub const PROTOCOL: &str = "bench-compare child 1";

/// The exit code of a child that was told to stop.
pub const STOPPED: u8 = 130;

/// What a child is asked to do.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Task {
    /// [`PROTOCOL`].
    pub protocol: String,
    /// The name of the engine's driver.
    pub engine: String,
    /// The folder in which the store lies.
    pub folder: PathBuf,
    /// The workload and all settings.
    pub settings: Settings,
    /// The limit of memory in bytes, page cache included.
    pub memory_limit: Option<u64>,
}

static CONTROL: Control = Control {
    stop: std::sync::atomic::AtomicBool::new(false),
};

/// Carries out a task.
pub fn child(task: &str) -> Result<ExitCode> {
    signals::set_on_signal(&CONTROL.stop)?;
    let task: Task =
        serde_json::from_str(task).map_err(|error| format!("the task cannot be read: {error}"))?;
    if task.protocol != PROTOCOL {
        let found = &task.protocol;
        return Err(format!(
            "the task is `{found}`, and this program reads `{PROTOCOL}`"
        ));
    }
    let driver = engines::driver(&task.engine)?;
    std::fs::create_dir_all(&task.folder)
        .map_err(|error| format!("{}: {error}", task.folder.display()))?;
    // Its probe needs more memory than a limit may leave.
    let mut context = Context::of_this_process(&task.folder);
    let limit = task.memory_limit.map(Limit::enter).transpose();
    let limit = limit.map_err(|error| format!("the memory cannot be limited: {error}"))?;
    context.machine.cgroup = cgroup();
    let found = run::run(&*driver, &task.folder, &task.settings, &CONTROL, &|_| {});
    let found = match found {
        Err(RunError::Interrupted) => return Ok(ExitCode::from(STOPPED)),
        found => found.map_err(|error| error.to_string())?,
    };
    let settings = task.settings.resolved();
    let mut record = Record::of(&*driver, &settings, &found, &context);
    if let Some(limit) = limit {
        check_limit(&limit, &mut record)?;
    }
    let line = record.to_json().map_err(|error| error.to_string())?;
    println!("{line}");
    Ok(ExitCode::SUCCESS)
}

/// Refuses a run whose memory was not really short, and notes what it used.
fn check_limit(limit: &Limit, record: &mut Record) -> Result<()> {
    let reading = limit.reading();
    let bytes = size_text(reading.limit_bytes);
    let Some(nearness) = reading.nearness() else {
        return Err(format!(
            "the kernel does not say what the group with the limit of {bytes} uses"
        ));
    };
    if !nearness.is_near {
        return Err(format!(
            "the run did not come near its limit of {bytes}: it used at most {:.0}% of it, so it \
             does not show what limited memory costs. Give it more data or more time",
            nearness.part * 100.0
        ));
    }
    let figures = [
        ("limit.bytes", Some(nearness.limit_bytes)),
        ("limit.highest_bytes", Some(nearness.highest_bytes)),
        ("limit.cache_bytes", Some(nearness.cache_bytes)),
        ("limit.anonymous_bytes", Some(nearness.anonymous_bytes)),
        ("limit.kernel_bytes", nearness.kernel_bytes),
        ("limit.hits", nearness.limit_hits),
    ];
    for (name, figure) in figures {
        if let Some(figure) = figure {
            record.engine_counters.insert(name.into(), figure);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_task_of_another_program_is_refused() {
        let error = child("{}").unwrap_err();
        assert!(error.contains("cannot be read"), "{error}");
        let task = Task {
            protocol: "bench-compare child 0".into(),
            engine: "null".into(),
            folder: "/nonexistent".into(),
            settings: Settings::default(),
            memory_limit: None,
        };
        let text = serde_json::to_string(&task).unwrap();
        let error = child(&text).unwrap_err();
        assert!(error.contains("bench-compare child 0"), "{error}");
        let more = text.replacen('{', "{\"more\": 1, ", 1);
        assert!(child(&more).unwrap_err().contains("more"));
    }
}

//! What RocksDB says in its log about flushes and compactions.
//!
//! RocksDB writes a line of JSON for each event, with exact bytes and processor times. These
//! figures cost nothing on the paths of reads and writes. RocksDB's `Statistics` have the same
//! bytes, but count each read and write with a dozen atomic additions, which slows it by about a
//! hundredth.
//!
//! Threading: lines come from any thread of RocksDB. One lock guards the sums.

use std::collections::HashSet;
use std::sync::Mutex;

use serde_json::Value;

/// Sums since the open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Sums {
    pub flush_count: u64,
    pub flush_bytes: u64,
    pub flush_cpu_us: u64,
    pub compaction_count: u64,
    pub compaction_read_bytes: u64,
    pub compaction_bytes: u64,
    pub compaction_cpu_us: u64,
    pub trivial_move_count: u64,
}

#[derive(Default)]
struct State {
    sums: Sums,
    /// The numbers of jobs that flush, or that recover a log into tables.
    flushes: HashSet<u64>,
    version: Option<String>,
}

/// Collects events.
#[derive(Default)]
pub(super) struct Events {
    state: Mutex<State>,
}

impl Events {
    /// The sums of all lines so far.
    pub fn sums(&self) -> Sums {
        self.state
            .lock()
            .map(|state| state.sums.clone())
            .unwrap_or_default()
    }

    /// The version of the library, which it writes to its log when a database is opened.
    pub fn version(&self) -> Option<String> {
        self.state.lock().ok()?.version.clone()
    }

    /// Takes in one line of the log. Lines that say nothing of interest are ignored.
    pub fn line(&self, line: &str) {
        let Ok(mut state) = self.state.lock() else {
            return;
        };
        // Some lines are kept for a while, and then begin with their original time.
        if let Some((_, json)) = line.split_once("EVENT_LOG_v1 ") {
            if let Ok(event) = serde_json::from_str(json) {
                state.event(&event);
            }
        } else if let Some(cpu_us) = flush_cpu_us(line) {
            state.sums.flush_cpu_us += cpu_us;
        } else if let Some(version) = line.strip_prefix("RocksDB version: ") {
            state.version = Some(version.trim().to_string());
        }
    }
}

impl State {
    fn event(&mut self, event: &Value) {
        let number = |name: &str| event[name].as_u64().unwrap_or(0);
        let sums = &mut self.sums;
        match event["event"].as_str().unwrap_or_default() {
            "flush_started" | "recovery_started" => {
                self.flushes.insert(number("job"));
            }
            "flush_finished" => sums.flush_count += 1,
            "table_file_creation" if self.flushes.contains(&number("job")) => {
                sums.flush_bytes += number("file_size");
            }
            "compaction_started" => sums.compaction_read_bytes += number("input_data_size"),
            "compaction_finished" => {
                sums.compaction_count += 1;
                sums.compaction_bytes += number("total_output_size");
                sums.compaction_cpu_us += number("compaction_time_cpu_micros");
            }
            "trivial_move" => sums.trivial_move_count += 1,
            _ => {}
        }
    }
}

/// The number in `[default] [JOB 4] Flush lasted 2121 microseconds, and 1870 cpu microseconds.`
fn flush_cpu_us(line: &str) -> Option<u64> {
    let (_, rest) = line.split_once("] Flush lasted ")?;
    let (_, rest) = rest.split_once(" microseconds, and ")?;
    let (number, _) = rest.split_once(' ')?;
    number.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flushes_and_compactions_are_summed_by_their_jobs() {
        let events = Events::default();
        for line in [
            r#"EVENT_LOG_v1 {"job": 2, "event": "flush_started", "total_data_size": 9}"#,
            r#"EVENT_LOG_v1 {"cf_name": "default", "job": 2, "event": "table_file_creation", "file_size": 100}"#,
            r#"EVENT_LOG_v1 {"job": 2, "event": "flush_finished"}"#,
            "[default] [JOB 2] Flush lasted 2121 microseconds, and 1870 cpu microseconds.\n",
            r#"EVENT_LOG_v1 {"job": 3, "event": "compaction_started", "input_data_size": 300}"#,
            r#"EVENT_LOG_v1 {"cf_name": "default", "job": 3, "event": "table_file_creation", "file_size": 200}"#,
            r#"(Original Log Time 2026/11/23-21:45:01.123456) EVENT_LOG_v1 {"job": 3, "event": "compaction_finished", "compaction_time_cpu_micros": 77, "total_output_size": 200}"#,
            "a line without numbers",
            "EVENT_LOG_v1 {not json",
        ] {
            events.line(line);
        }
        let expected = Sums {
            flush_count: 1,
            flush_bytes: 100,
            flush_cpu_us: 1870,
            compaction_count: 1,
            compaction_read_bytes: 300,
            compaction_bytes: 200,
            compaction_cpu_us: 77,
            trivial_move_count: 0,
        };
        assert_eq!(events.sums(), expected);
    }
}

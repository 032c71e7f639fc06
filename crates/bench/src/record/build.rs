//! How a record follows from what was measured.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, SystemTime};

use chrono::{DateTime, SecondsFormat, Utc};

use super::parts::{Amplification, Bytes, Cpu, Disk, Memory, OpenLoop, OpenTimes, System};
use super::{Record, SCHEMA_VERSION};
use crate::engine::{Driver, ThreadClass};
use crate::measure::files::{Kept, Sizes};
use crate::measure::machine::{Build, Machine};
use crate::measure::process::Reading;
use crate::measure::{Latencies, LatencySummary, Measured, Second, ratio};
use crate::settings::{Files, Kind, Promise, Settings, Workload};

/// What a run found on its store.
#[derive(Debug, Clone, Default)]
pub struct Found {
    /// What was measured from the start until the engine was idle.
    pub measured: Measured,
    /// From the end of the last operation until the engine was idle.
    pub settled_after: Duration,
    /// The files when the engine was idle and the store was open.
    pub sizes: Sizes,
    /// The files after the store was closed.
    pub closed_sizes: Sizes,
    /// Whether every write waited until it was durable: what the engine was told.
    pub is_synced: bool,
    /// Records of the store at the end.
    pub records: Option<u64>,
    /// Raw bytes of the keys and values of all records at the end.
    pub live_bytes: Option<u64>,
    /// The part of the files in the page cache before the first operation.
    pub cached_before: Option<f64>,
    /// The same at the end.
    pub cached_after: Option<f64>,
    /// What stayed in the page cache of a store that was dropped from it.
    pub kept_in_cache: Option<Kept>,
    /// What was due, in an open loop.
    pub open_loop: Option<OpenLoopFound>,
    /// What an open of the store took, in the workload that is about this.
    pub open: Option<OpenFound>,
}

/// What was due in an open loop.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenLoopFound {
    /// Operations that were due by the end, done or not.
    pub due_operations: u64,
    /// How long operations became due.
    pub duration: Duration,
}

/// What an open of a store found.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenFound {
    /// From the start until a record of the log had been read and checked.
    pub until_first_read: Duration,
    /// Raw bytes of the keys and values that were in the log only.
    pub log_bytes: u64,
}

/// What belongs to the record and is the same for all engines and workloads of a process.
#[derive(Debug, Clone, Default)]
pub struct Context {
    /// The machine.
    pub machine: Machine,
    /// How the program was built.
    pub build: Build,
    /// The program and its arguments.
    pub command_line: Vec<String>,
    /// Which hardware something else stood in for.
    pub stand_ins: Vec<String>,
}

impl Context {
    /// Finds out about the machine, with the file system of `folder`, and about this program.
    pub fn of_this_process(folder: &Path) -> Context {
        let arguments = std::env::args_os();
        Context {
            machine: Machine::of(folder),
            build: Build::of_this_program(),
            command_line: arguments
                .map(|a| a.to_string_lossy().into_owned())
                .collect(),
            stand_ins: Vec::new(),
        }
    }
}

impl Record {
    /// The record of a run of these settings that ended now. The record has them with the
    /// workload's own filled in, as they were carried out.
    pub fn of(
        driver: &dyn Driver,
        settings: &Settings,
        found: &Found,
        context: &Context,
    ) -> Record {
        let settings = &settings.resolved();
        let engine = settings.engine.for_engine(driver.name());
        let mut record = Record {
            schema_version: SCHEMA_VERSION,
            workload: settings.workload.to_string(),
            engine: driver.name().to_string(),
            engine_version: driver.version(),
            abilities: Some(driver.abilities()),
            promise: Some(promise(driver, found)),
            settings: serde_json::to_value(settings).unwrap_or_default(),
            engine_settings: driver.settings(&engine),
            machine: context.machine.clone(),
            build: context.build.clone(),
            date: date(SystemTime::now()),
            command_line: context.command_line.clone(),
            stand_ins: context.stand_ins.clone(),
            ..Record::default()
        };
        record.take_operations(settings, found);
        record.take_latencies(&found.measured);
        record.take_stalls(&found.measured);
        record.take_resources(driver, found);
        record.take_amplification(settings, found);
        record.take_sides(settings);
        record.warnings = warnings(settings, found);
        record
    }

    fn take_operations(&mut self, settings: &Settings, found: &Found) {
        let measured = &found.measured;
        self.operations = measured.counts.operations;
        self.beside_operations = measured.beside.operations;
        self.errors = measured.errors;
        self.verification_failures = measured.wrong_answers;
        self.until_last_s = measured.until_last.as_secs_f64();
        self.until_idle_s = (measured.until_last + found.settled_after).as_secs_f64();
        let operations = self.operations as f64;
        let bytes = (measured.counts.written_bytes + measured.counts.read_bytes) as f64;
        self.ops_per_s = ratio(operations, self.until_last_s);
        self.ops_per_s_until_idle = ratio(operations, self.until_idle_s);
        self.bytes_per_s = ratio(bytes, self.until_last_s);
        self.bytes_per_s_until_idle = ratio(bytes, self.until_idle_s);
        self.beside_ops_per_s = (settings.workload.has_background_writer())
            .then(|| ratio(self.beside_operations as f64, self.until_last_s))
            .flatten();
        self.open = found.open.map(|open| OpenTimes {
            until_first_read_s: open.until_first_read.as_secs_f64(),
            log_bytes: open.log_bytes,
        });
        self.open_loop = found.open_loop.map(|due| {
            let took = due.duration.max(measured.until_last).as_secs_f64();
            OpenLoop {
                intended_ops_per_s: ratio(due.due_operations as f64, due.duration.as_secs_f64()),
                achieved_ops_per_s: ratio(operations, took),
                due_operations: due.due_operations,
                backlog_operations: due.due_operations.saturating_sub(self.operations),
                censored_operations: measured.censored_operations,
            }
        });
    }

    fn take_latencies(&mut self, measured: &Measured) {
        let all = measured.all.summary();
        let figure = |of: fn(&LatencySummary) -> f64| all.as_ref().map(of);
        self.mean_us = figure(|all| all.mean_us);
        self.p50_us = figure(|all| all.p50_us);
        self.p90_us = figure(|all| all.p90_us);
        self.p99_us = figure(|all| all.p99_us);
        self.p999_us = figure(|all| all.p999_us);
        self.p9999_us = figure(|all| all.p9999_us);
        self.max_us = figure(|all| all.max_us);
        self.slow_s = figure(|all| all.slow_s);
        self.latency = by_name(&measured.latency);
        self.service_time = by_name(&measured.service);
    }

    fn take_stalls(&mut self, measured: &Measured) {
        let by_cause = &measured.figures.stall_s;
        let total_s: f64 = by_cause.values().sum();
        self.stall_s_by_cause = (!by_cause.is_empty()).then(|| by_cause.clone());
        self.stall_s = self.stall_s_by_cause.as_ref().map(|_| total_s);
        let whole = measured.until_last.as_secs();
        let silent = |row: &&Second| row.second < whole && row.operations == 0;
        self.silent_seconds = measured.seconds.iter().filter(silent).count() as u64;
        self.series = measured.seconds.clone();
        self.levels = measured.levels.clone();
        self.engine_counters = measured.figures.others.clone();
    }

    fn take_resources(&mut self, driver: &dyn Driver, found: &Found) {
        let measured = &found.measured;
        let (before, after) = (&measured.before, &measured.after);
        let grown = |of: fn(&Reading) -> Option<u64>| of(after)?.checked_sub(of(before)?);
        self.cpu = cpu(driver, measured);
        self.cpu_s = self.cpu.process_s;
        self.memory = Memory {
            resident_bytes: after.resident_bytes,
            anonymous_bytes: after.anonymous_bytes,
            file_bytes: after.file_bytes,
            shared_bytes: after.shared_bytes,
            peak_resident_bytes: measured.peak_resident_bytes,
            peak_anonymous_bytes: measured.peak_anonymous_bytes,
        };
        self.rss_bytes = measured.peak_anonymous_bytes;
        self.bytes = Bytes {
            user_written_bytes: measured.counts.written_bytes + measured.beside.written_bytes,
            user_read_bytes: measured.counts.read_bytes + measured.beside.read_bytes,
            log_bytes: measured.figures.log_bytes,
            flush_bytes: measured.figures.flush_bytes,
            compaction_read_bytes: measured.figures.compaction_read_bytes,
            compaction_bytes: measured.figures.compaction_bytes,
            read_call_bytes: grown(|reading| reading.read_call_bytes),
            write_call_bytes: grown(|reading| reading.write_call_bytes),
            device_read_bytes: grown(|reading| reading.device_read_bytes),
            device_write_bytes: grown(|reading| reading.device_write_bytes),
        };
        let major_faults = grown(|reading| reading.major_faults);
        let operations = (self.operations + self.beside_operations) as f64;
        self.system = System {
            minor_faults: grown(|reading| reading.minor_faults),
            major_faults,
            major_faults_per_op: major_faults.and_then(|all| ratio(all as f64, operations)),
            voluntary_switches: grown(|reading| reading.voluntary_switches),
            involuntary_switches: grown(|reading| reading.involuntary_switches),
        };
        self.disk = Disk {
            files: found.sizes,
            files_closed: found.closed_sizes,
            records: found.records,
            live_bytes: found.live_bytes,
            cached_before: found.cached_before.filter(|part| part.is_finite()),
            cached_after: found.cached_after.filter(|part| part.is_finite()),
        };
    }

    /// What host and device did, from the counters of an engine that has a device.
    fn take_sides(&mut self, settings: &Settings) {
        let counter = |name: &str| self.engine_counters.get(name).copied();
        let written = self.bytes.user_written_bytes as f64;
        let until_idle_s = self.until_idle_s;
        let a_second = |figure: Option<f64>| ratio(figure?, until_idle_s);
        self.host_cpu = a_second(self.cpu_s);
        self.device_cpu_s = counter("device_cpu_us").map(|us| us as f64 / 1e6);
        self.device_cpu = a_second(self.device_cpu_s);
        self.cpu_s_per_gib = ratio(self.cpu_s.unwrap_or(f64::NAN), written / f64::from(1 << 30));
        let bandwidth = |side: &str| {
            let counter = |what: &str| counter(&format!("{side}_compaction_{what}"));
            // A side that ran none has no time, and no bandwidth.
            ratio(
                counter("in_bytes")? as f64,
                counter("busy_us")? as f64 / 1e6,
            )
        };
        self.host_compaction_bytes_per_s = bandwidth("host");
        self.device_compaction_bytes_per_s = bandwidth("device");
        // Of a run with a GPU only what the GPU did, or else one that declines all jobs would have
        // the figure of the host.
        self.compaction_bytes_per_s = match settings.gpu.is_used() {
            true => bandwidth("gpu"),
            false if settings.topology.has_device() => None,
            false => bandwidth("host"),
        };
        // A GPU whose clock shows no time has no utilisation.
        let busy_us = counter("gpu_busy_us").filter(|busy_us| *busy_us > 0);
        self.gpu_utilisation = a_second(busy_us.map(|busy_us| busy_us as f64 / 1e6));
        let whole = self.series.len().saturating_sub(1);
        let busy_s = self
            .series
            .iter()
            .take(whole)
            .filter_map(|row| row.gpu_busy_s);
        // What ended in a second may have begun in the one before.
        let peak = busy_s.fold(0.0, f64::max).min(1.0);
        self.gpu_utilisation_peak = self
            .gpu_utilisation
            .map(|_| peak)
            .filter(|peak| *peak > 0.0);
        let link = counter("link_sent_bytes").zip(counter("link_received_bytes"));
        self.link_bytes = link.map(|(sent, received)| sent + received);
        self.link_amplification = self
            .link_bytes
            .and_then(|bytes| ratio(bytes as f64, written));
    }

    fn take_amplification(&mut self, settings: &Settings, found: &Found) {
        let bytes = &self.bytes;
        let by = |part: Option<u64>, whole: u64| ratio(part? as f64, whole as f64);
        let written = |part| by(part, bytes.user_written_bytes);
        // Flushes and compactions do not count what an ingest writes.
        let tables = bytes.flush_bytes.zip(bytes.compaction_bytes);
        let tables = tables.filter(|_| settings.workload != Workload::Ingest);
        let tables = tables.map(|(flush, compaction)| flush + compaction);
        let with_log = tables.zip(bytes.log_bytes).map(|(all, log)| all + log);
        // Where the device has the tables, what the host writes of them crosses the link. Requests
        // to read tables count under other names.
        let counter = |name: &str| self.engine_counters.get(name).copied();
        let sent_for = |name: &str| counter(name).unwrap_or(0);
        let sent = counter("link_sent_bytes").map(|_| {
            // A purpose for which nothing was sent has no counter.
            sent_for("link_table_sent_bytes") + sent_for("link_survivors_sent_bytes")
        });
        let by_host = match settings.topology.files {
            Files::Local => tables,
            Files::Held | Files::HeldLocalLog => tables.and(sent),
            Files::Shared | Files::Lent => None,
        };
        let all = found.closed_sizes.total().allocated_bytes;
        let log = found.closed_sizes.log.allocated_bytes;
        // A store in memory has no files, and nothing is known of its size.
        let on_disk = |part| (all > 0).then_some(part);
        let kept = |part| by(on_disk(part), found.live_bytes?);
        self.amplification = Amplification {
            write_tables: written(tables),
            write_tables_by_host: written(by_host),
            write_with_log: written(with_log),
            write_calls: written(bytes.write_call_bytes),
            write_device: written(bytes.device_write_bytes),
            read_device: by(bytes.device_read_bytes, bytes.user_read_bytes),
            space: kept(all),
            space_without_log: kept(all.saturating_sub(log)),
        };
        self.write_amplification = self.amplification.write_with_log;
        self.space_amplification = self.amplification.space;
    }
}

/// What the record says of latencies, by the names of their kinds.
fn by_name(all: &BTreeMap<Kind, Latencies>) -> BTreeMap<String, LatencySummary> {
    all.iter()
        .filter_map(|(kind, latencies)| Some((kind.name().to_string(), latencies.summary()?)))
        .collect()
}

/// What an acknowledged write of this run survives, by what the engine was told.
fn promise(driver: &dyn Driver, found: &Found) -> Promise {
    let abilities = driver.abilities();
    match found.is_synced && abilities.sync {
        true => Promise::Power,
        false => abilities.unsynced,
    }
}

/// The part of a store that may stay in the page cache of a cold run without a warning.
const KEPT_PART_MAX: f64 = 0.02;

/// What a reader of the figures has to know beforehand, in sentences.
fn warnings(settings: &Settings, found: &Found) -> Vec<String> {
    let workload = settings.workload;
    let figures = &found.measured.figures;
    let background = [figures.flush_bytes, figures.compaction_bytes];
    let background: u64 = background.into_iter().flatten().sum();
    let mut all = Vec::new();
    if !workload.writes() && workload != Workload::Compact && background > 0 {
        all.push(format!(
            "The engine flushed or compacted {background} bytes while the workload only read, so \
             the reads were not those of a store at rest."
        ));
    }
    if found.measured.censored_operations > 0 {
        all.push(format!(
            "{} operations were due and never begun. What they had waited at the end is in the \
             latencies, whose quantiles are lower bounds.",
            found.measured.censored_operations
        ));
    }
    let kept = found.kept_in_cache.as_ref();
    if let Some(kept) = kept.filter(|kept| kept.part() > KEPT_PART_MAX) {
        all.push(format!(
            "The run should have begun with a cold page cache, but {} of {} bytes of the store \
             stayed in it. A process has the files mapped or writes them, or their file system \
             cannot drop pages, as a tmpfs.",
            kept.bytes, kept.of_bytes
        ));
    }
    all
}

fn cpu(driver: &dyn Driver, measured: &Measured) -> Cpu {
    let (before, after) = (&measured.before, &measured.after);
    let grown = |of: fn(&Reading) -> Option<f64>| {
        let grown_s = of(after)? - of(before)?;
        grown_s.is_finite().then_some(grown_s.max(0.0))
    };
    let process_s = grown(|reading| reading.cpu_s);
    let flush_s = measured.figures.flush_cpu_s;
    let compaction_s = measured.figures.compaction_cpu_s;
    let flush_s = flush_s.or_else(|| of_class(driver, measured, ThreadClass::Flush));
    let compaction_s = compaction_s.or_else(|| of_class(driver, measured, ThreadClass::Compaction));
    let known = [
        measured.workload_cpu_s,
        flush_s,
        compaction_s,
        measured.sampler_cpu_s,
    ];
    let known_s: f64 = known.into_iter().flatten().sum();
    Cpu {
        process_s,
        user_s: grown(|reading| reading.user_s),
        system_s: grown(|reading| reading.system_s),
        foreground_s: measured.workload_cpu_s,
        flush_s,
        compaction_s,
        // The clocks of threads and process differ by a little.
        other_background_s: process_s.map(|all_s| (all_s - known_s).max(0.0)),
        sampler_s: measured.sampler_cpu_s,
    }
}

/// Processor time of the threads of a class; `None` if there are none.
fn of_class(driver: &dyn Driver, measured: &Measured, class: ThreadClass) -> Option<f64> {
    let times = measured.thread_cpu_s.iter();
    times
        .filter(|(name, _)| driver.thread_class(name) == class)
        .map(|(_, cpu_s)| *cpu_s)
        .reduce(|a, b| a + b)
}

/// A time in UTC, in the form of RFC 3339.
pub fn date(time: SystemTime) -> String {
    let since_1970 = time
        .duration_since(SystemTime::UNIX_EPOCH)
        .unwrap_or_default();
    let seconds = i64::try_from(since_1970.as_secs()).unwrap_or(i64::MAX);
    DateTime::<Utc>::from_timestamp(seconds, 0)
        .unwrap_or(DateTime::<Utc>::MAX_UTC)
        .to_rfc3339_opts(SecondsFormat::Secs, true)
}

//! Readings of this process and its threads.
//!
//! Processor time comes from the clocks of the process and of the thread, which count nanoseconds;
//! its split into user and system, page faults and context switches from `getrusage`; the rest from
//! `/proc/self`. On systems other than Linux, the figures from `/proc` are `None`.
//!
//! What the counters of input and output mean: `call_bytes` were passed to read and write calls,
//! whether or not a device was involved. Bytes that were read or written through a memory map are
//! not in them. `device_bytes` count whole pages that were read from a device, or that became dirty
//! and so have to be written to one, through calls and maps alike.
//!
//! Threading: pure functions.

use nix::sys::resource::{Usage, UsageWho, getrusage};
use nix::sys::time::TimeValLike;
use rustix::time::{ClockId, Timespec, clock_gettime};
use serde::{Deserialize, Serialize};

/// What the system says of this process at one moment. Times and counters are those since the
/// process started.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Reading {
    /// Processor time of all threads, also those that have ended, in seconds.
    pub cpu_s: Option<f64>,
    /// The part of the processor time outside the kernel, in seconds.
    pub user_s: Option<f64>,
    /// The part of the processor time in the kernel, in seconds.
    pub system_s: Option<f64>,
    /// Resident memory in bytes.
    pub resident_bytes: Option<u64>,
    /// The anonymous part of the resident memory: heap and stacks.
    pub anonymous_bytes: Option<u64>,
    /// The part of the resident memory that is mapped files. The page cache has these pages anyway.
    pub file_bytes: Option<u64>,
    /// The part of the resident memory that is shared memory, which includes files of a tmpfs.
    pub shared_bytes: Option<u64>,
    /// The highest resident memory since the start or the last [`reset_peak`], in bytes.
    pub peak_bytes: Option<u64>,
    /// Bytes that read calls returned.
    pub read_call_bytes: Option<u64>,
    /// Bytes that were passed to write calls.
    pub write_call_bytes: Option<u64>,
    /// Bytes that were read from a device.
    pub device_read_bytes: Option<u64>,
    /// Bytes of pages that became dirty, less those that were given up before they were written.
    pub device_write_bytes: Option<u64>,
    /// Page faults that needed no device.
    pub minor_faults: Option<u64>,
    /// Page faults that read from a device.
    pub major_faults: Option<u64>,
    /// How often a thread gave its processor up to wait.
    pub voluntary_switches: Option<u64>,
    /// How often a thread lost its processor to another one.
    pub involuntary_switches: Option<u64>,
}

impl Reading {
    /// Reads everything. It takes about a tenth of a millisecond.
    pub fn now() -> Reading {
        let mut reading = Reading {
            cpu_s: cpu_s(),
            ..Reading::default()
        };
        if let Ok(usage) = getrusage(UsageWho::RUSAGE_SELF) {
            reading.take_usage(&usage);
        }
        reading.take_proc();
        reading
    }

    fn take_usage(&mut self, usage: &Usage) {
        let seconds = |time: nix::sys::time::TimeVal| Some(time.num_microseconds() as f64 / 1e6);
        self.user_s = seconds(usage.user_time());
        self.system_s = seconds(usage.system_time());
        self.minor_faults = u64::try_from(usage.minor_page_faults()).ok();
        self.major_faults = u64::try_from(usage.major_page_faults()).ok();
        self.voluntary_switches = u64::try_from(usage.voluntary_context_switches()).ok();
        self.involuntary_switches = u64::try_from(usage.involuntary_context_switches()).ok();
    }

    #[cfg(target_os = "linux")]
    fn take_proc(&mut self) {
        let Ok(process) = procfs::process::Process::myself() else {
            return;
        };
        if let Ok(status) = process.status() {
            let bytes = |kib: Option<u64>| kib.map(|kib| kib.saturating_mul(1024));
            self.resident_bytes = bytes(status.vmrss);
            self.anonymous_bytes = bytes(status.rssanon);
            self.file_bytes = bytes(status.rssfile);
            self.shared_bytes = bytes(status.rssshmem);
            self.peak_bytes = bytes(status.vmhwm);
        }
        if let Ok(io) = process.io() {
            self.read_call_bytes = Some(io.rchar);
            self.write_call_bytes = Some(io.wchar);
            self.device_read_bytes = Some(io.read_bytes);
            let written = io.write_bytes.saturating_sub(io.cancelled_write_bytes);
            self.device_write_bytes = Some(written);
        }
    }

    #[cfg(not(target_os = "linux"))]
    fn take_proc(&mut self) {}
}

fn seconds(time: Timespec) -> f64 {
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}

/// Processor time of this process so far, in seconds.
pub fn cpu_s() -> Option<f64> {
    Some(seconds(clock_gettime(ClockId::ProcessCPUTime)))
}

/// Processor time of the calling thread so far, in seconds.
pub fn thread_cpu_s() -> Option<f64> {
    Some(seconds(clock_gettime(ClockId::ThreadCPUTime)))
}

/// Lets [`Reading::peak_bytes`] begin anew. Returns whether the system did so.
pub fn reset_peak() -> bool {
    #[cfg(target_os = "linux")]
    {
        use procfs::process::{ClearRefs, Process};
        Process::myself().is_ok_and(|me| me.clear_refs(ClearRefs::PeakRSS).is_ok())
    }
    #[cfg(not(target_os = "linux"))]
    false
}

/// A thread of this process.
#[derive(Debug, Clone, PartialEq)]
pub struct Thread {
    /// Its number.
    pub id: i32,
    /// Its name, of which Linux keeps 15 bytes. Those of an engine tell its flushes from its
    /// compactions, for example `rocksdb:high`.
    pub name: String,
    /// Its processor time so far, in seconds.
    pub cpu_s: f64,
    /// Whether it waits for a device, or for something else that no signal interrupts.
    pub waits_for_device: bool,
}

/// The threads of this process. Those that have ended are missing. `None` on other systems than
/// Linux.
pub fn threads() -> Option<Vec<Thread>> {
    #[cfg(target_os = "linux")]
    {
        let tasks = procfs::process::Process::myself().ok()?.tasks().ok()?;
        Some(tasks.flatten().filter_map(|task| of_task(&task)).collect())
    }
    #[cfg(not(target_os = "linux"))]
    None
}

/// A thread that ends meanwhile is `None`.
#[cfg(target_os = "linux")]
fn of_task(task: &procfs::process::Task) -> Option<Thread> {
    let stat = task.stat().ok()?;
    // The kernel may be built without `schedstat`; the other counters have steps of 10 ms.
    let cpu_s = match task.schedstat() {
        Ok(schedule) => schedule.sum_exec_runtime as f64 / 1e9,
        Err(_) => (stat.utime + stat.stime) as f64 / procfs::ticks_per_second() as f64,
    };
    Some(Thread {
        id: task.tid,
        cpu_s,
        waits_for_device: stat.state == 'D',
        name: stat.comm,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_memory_and_time() {
        let reading = Reading::now();
        assert!(reading.cpu_s.unwrap() > 0.0);
        let split_s = reading.user_s.unwrap() + reading.system_s.unwrap();
        assert!((reading.cpu_s.unwrap() - split_s).abs() < 1.0);
        assert!(reading.anonymous_bytes.unwrap() > 0);
        assert!(reading.resident_bytes.unwrap() >= reading.anonymous_bytes.unwrap());
        assert!(reading.peak_bytes.unwrap() >= reading.anonymous_bytes.unwrap());
        assert!(reading.minor_faults.unwrap() > 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn bytes_of_write_calls_are_counted() {
        use std::io::Write;
        let before = Reading::now().write_call_bytes.unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&[1; 100_000]).unwrap();
        // Other tests write at the same time, so there may be more.
        assert!(Reading::now().write_call_bytes.unwrap() >= before + 100_000);
    }

    #[test]
    fn the_time_of_this_thread_grows_with_its_work() {
        let before = thread_cpu_s().unwrap();
        let mut sum = 0u64;
        while thread_cpu_s().unwrap() < before + 0.01 {
            sum = std::hint::black_box(sum + 1);
        }
        assert!(cpu_s().unwrap() >= 0.01);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_thread_is_found_by_its_name() {
        let (begin, began) = std::sync::mpsc::channel();
        let (end, ended) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::Builder::new()
            .name("bench:found".into())
            .spawn(move || {
                begin.send(()).unwrap();
                let _ = ended.recv();
            })
            .unwrap();
        began.recv().unwrap();
        let names: Vec<String> = threads().unwrap().into_iter().map(|t| t.name).collect();
        assert!(names.iter().any(|name| name == "bench:found"), "{names:?}");
        drop(end);
        thread.join().unwrap();
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_peak_can_begin_anew() {
        // A container may refuse it. Other tests allocate at the same time, so only this is sure:
        let _ = reset_peak();
        let reading = Reading::now();
        assert!(reading.peak_bytes.unwrap() > 0);
    }
}

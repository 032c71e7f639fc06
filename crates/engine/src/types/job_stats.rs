//! Statistics of jobs and of the sides that run them, as users see them.
//!
//! Threading: plain values.

use serde::{Deserialize, Serialize};

/// A flush or a compaction that has begun, or that waits for the side that would do it first.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobStats {
    /// The keyspace.
    pub keyspace: String,
    /// What it does: `flush` (write a memtable as tables), `merge` (of levels), `merge within level
    /// 0`, `rewrite` (tables in place, for their deletes), `move` (tables to another level, without
    /// a job) or `drop` (tables that range deletes cover, without a job).
    pub kind: String,
    /// The topmost level of the inputs; `None` for a flush, which reads a memtable.
    pub from_level: Option<u8>,
    /// The level of the outputs.
    pub to_level: u8,
    /// Why the work is needed, in words; empty for a flush.
    pub reason: String,
    /// How far the work is:
    /// - `waiting`: it has not begun. It waits for a slot of the side in `executor`, or for a
    ///   worker if that is the host. It is chosen for again whenever something changes.
    /// - `reserved`: its tables are reserved, and it is about to begin, or waits for its next
    ///   attempt after a failed one.
    /// - `running`: the executor has it.
    /// - `paused`: the host has it, and lets flushes come first.
    /// - `verifying`: the executor has returned, and its tables are verified.
    /// - `finishing`: the tables are being installed.
    pub stage: String,
    /// The name of the executor that has it, or that it waits for. Empty if no attempt is under
    /// way and it waits for no side.
    pub executor: String,
    /// Where that executor computes: `host`, `gpu` or `device`.
    pub side: String,
    /// Why that side was chosen: when each side would have done the job, or why a side was no
    /// candidate, such as `gpu0 0.234 s, host 0.537 s`; or from which end of which queue it was
    /// taken. Of work in a queue, where it stands. Empty if the host is the only side.
    pub placement: String,
    /// All bytes that it reads: the files of its input tables, or the raw bytes of a memtable's
    /// entries (keys, values and 12 bytes an entry).
    pub input_bytes: u64,
    /// Bytes of these that it has read so far.
    pub read_bytes: u64,
    /// Entries that it has read so far.
    pub entry_count: u64,
    /// Bytes of the output tables that are finished.
    pub out_bytes: u64,
    /// How long the attempt has been under way, in microseconds; `None` if there is none.
    pub run_us: Option<u64>,
    /// An estimate of how long it will still run, in microseconds: from what it has read, or from
    /// the side's measured speed before it has read anything. `None` if there is no estimate, and
    /// in stages other than `running`.
    pub left_us: Option<u64>,
}

impl JobStats {
    /// Whether an executor has been given the job, in an attempt that has not ended. Otherwise it
    /// waits for one.
    pub fn is_under_way(&self) -> bool {
        self.run_us.is_some()
    }
}

/// What an executor runs, and what it has done lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct SideStats {
    /// The executor's name. If another executor of the store has the same, a number follows it:
    /// `gpu#2`.
    pub name: String,
    /// Where it computes: `host`, `gpu` or `device`.
    pub side: String,
    /// `ready`, or why it can be given no jobs now, in its own words: `starting: ...` or
    /// `down: ...`. A side that is ready may still be suspended (`suspended_us`).
    pub state: String,
    /// The number of jobs that it may have at once now; 0 unless it is `ready`. For the host, this
    /// is the number of workers (`background_tasks`).
    pub slot_count: u64,
    /// Slots that it cannot use, because the store has given up jobs in them and the executor has
    /// not returned from these jobs.
    pub lost_slot_count: u64,
    /// The number of jobs that it has now.
    pub running_job_count: u64,
    /// All bytes that the jobs read that it has now.
    pub running_in_bytes: u64,
    /// Bytes of these that they have read so far.
    pub running_read_bytes: u64,
    /// Bytes of the tables that these jobs have finished.
    pub running_out_bytes: u64,
    /// An estimate of how long the last of these jobs will still run, in microseconds; `None` if
    /// there is no estimate for any of them.
    pub running_left_us: Option<u64>,
    /// The number of jobs that wait for one of its slots, or of the host's workers.
    pub waiting_job_count: u64,
    /// Input bytes a second of its last five flushes, if it has done any.
    pub flush_bytes_per_s: Option<f64>,
    /// Input bytes a second of its last five compactions, if it has done any.
    pub compaction_bytes_per_s: Option<f64>,
    /// Nanoseconds for each input byte of its last five compactions, if it has done any.
    pub compaction_ns_per_byte: Option<f64>,
    /// From which end of the queues of compactions it takes work, by size: `small` or `large`.
    /// Empty if the policy (`schedule`) has no queues.
    pub queue_end: String,
    /// Why it did not accept the job that it was asked about last; `None` if it accepted that one.
    pub refusal: Option<String>,
    /// The number of its jobs that failed, panicked, or were given up because they showed no sign
    /// of life.
    pub failed_count: u64,
    /// The number of jobs that it declined after it had accepted them.
    pub declined_count: u64,
    /// The number of its outcomes that were rejected: the tables were not what they must be.
    pub rejected_count: u64,
    /// What went wrong the last time. For the host, this is `Stats::last_job_error`.
    pub last_failure: Option<String>,
    /// How often it was suspended because it failed, or its outcomes were rejected, several times
    /// in a row. The host is never suspended.
    pub suspended_count: u64,
    /// For how long it will be given no job, in microseconds; 0 if it is not suspended. Then it
    /// gets one job, which shows whether it works again. `last_failure` is the reason.
    pub suspended_us: u64,
    /// The number of compactions that it has done since the store was opened. The following figures
    /// are sums over them. If a compaction is divided between the host and another side (the policy
    /// `sync-split`), it counts for both, and each has the figures of its part.
    pub compaction_count: u64,
    /// Bytes of their input tables.
    pub compaction_in_bytes: u64,
    /// Bytes of the tables that they made.
    pub compaction_out_bytes: u64,
    /// How long they took, in microseconds, without their verification. Compactions that ran at the
    /// same time count each.
    pub compaction_us: u64,
    /// The same, but compactions that ran at the same time count once.
    pub compaction_busy_us: u64,
    /// Processor time of the machine that ran them, in microseconds, as the executor reports it; 0
    /// if it does not.
    pub compaction_cpu_us: u64,
    /// Processor time of the host for compactions of this side, in microseconds, for building,
    /// verifying and installing too, and for attempts that failed.
    pub host_cpu_us: u64,
    /// An estimate of the processor time of the host that this side has saved, in microseconds:
    /// what the host would have needed for these compactions, by the bytes and the processor time
    /// of its own, less what it spent (`host_cpu_us`). While the host has run none, it is taken to
    /// need what the side needed. Negative if the side costs the host more than it saves. `None`
    /// for the host, and if neither is known.
    pub saved_cpu_us: Option<i64>,
    /// Bytes that its jobs put on the link to it, both ways: orders, outcomes, and tables of lent
    /// work. `None` if there is no link. Reads that verify its tables count as
    /// `link_verify_received_bytes` of the counters.
    pub link_bytes: Option<u64>,
    /// Bytes of tables that its jobs read and wrote where they lie, and that would have crossed
    /// the link if the host had done these jobs. `None` if there is no link.
    pub saved_link_bytes: Option<u64>,
}

/// The compactions of one level of a keyspace that are due and wait, as the last whole search for
/// work found them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct QueueStats {
    /// The keyspace.
    pub keyspace: String,
    /// The topmost level of their inputs.
    pub level: u8,
    /// The number of compactions.
    pub work_count: u64,
    /// The number of their input tables.
    pub table_count: u64,
    /// Bytes of these tables' files.
    pub bytes: u64,
}

/// One location of tables.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct LocationStats {
    /// Its number: 0 is the folder of the tables, 1 the one to which flushes can be redirected.
    pub location: u32,
    /// The path of its folder.
    pub path: String,
    /// The tables there that the present views name.
    pub table_count: u64,
    /// Bytes of their files.
    pub table_bytes: u64,
    /// Free bytes on its disk, as of the last second, if they are known.
    pub free_bytes: Option<u64>,
    /// Bytes of memtables that are flushed to it in a second while flushes to it run, as the last
    /// eight were; `None` before the first one.
    pub flush_bytes_per_s: Option<u64>,
    /// Bytes of memtables that were flushed to it since the open.
    pub flushed_bytes: u64,
    /// Bytes of its tables that compactions brought back to location 0.
    pub returned_bytes: u64,
    /// Flushes do not go there for a while, because flushes there have failed.
    pub is_suspended: bool,
    /// Flushes do not go there until the next open: its folder is missing, or a sync of it failed.
    pub is_lost: bool,
}

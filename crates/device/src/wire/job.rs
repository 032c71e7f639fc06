//! How a host asks for a job, and how the device reports on it.
//!
//! The job itself, the parts that earlier attempts left, and the outcome are encoded as in
//! `docs/format/job.md`. They are sent as bulk bytes.
//!
//! Invariants and threading: as in the parent module.

use siltstone_storage::StorageError;
use siltstone_table::Damage;
use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};
use siltstone_table::job::Job;

use super::error::{get_error, put_error, put_text};

/// Where the tables of a job lie.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Place {
    /// In the folder of the session.
    Session,
    /// In a folder of the machine that the device and the host share.
    Shared {
        /// The folder's absolute path, as the host knows it.
        path: String,
    },
}

/// What is sent along with a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct JobOrder {
    /// The attempt's number. Numbers rise within the session.
    pub attempt: u64,
    /// The id of the store, for messages.
    pub store: [u8; 16],
    /// Where the job's tables lie.
    pub place: Place,
    /// The epoch of the host's lease.
    pub epoch: u64,
    /// The number of subjobs that may run at once.
    pub max_parallel: u32,
    /// How many bytes the job may read and write per second; 0 means no limit. Each question about
    /// the job contains the limit at that time.
    pub bytes_per_s: u64,
    /// The time without progress after which the device ends the job, in milliseconds.
    pub silence_ms: u64,
}

impl JobOrder {
    pub(super) fn put(&self, out: &mut FieldWriter) {
        out.u64(self.attempt);
        super::request::put_id(out, &self.store);
        match &self.place {
            Place::Session => out.u8(0),
            Place::Shared { path } => {
                out.u8(1);
                out.bytes(path.as_bytes());
            }
        }
        out.u64(self.epoch);
        out.u32(self.max_parallel);
        out.u64(self.bytes_per_s);
        out.u64(self.silence_ms);
    }

    pub(super) fn get(i: &mut FieldReader<'_>) -> Decoded<JobOrder> {
        Ok(JobOrder {
            attempt: i.u64("attempt")?,
            store: super::request::get_id(i, "store")?,
            place: {
                let at = i.position();
                match i.u8("place of tables")? {
                    0 => Place::Session,
                    1 => Place::Shared {
                        path: i.text("path")?,
                    },
                    x => return Err(Damage::new("place of tables", at, 1, x.into())),
                }
            },
            epoch: i.u64("epoch")?,
            max_parallel: i.u32("subjobs at once")?,
            bytes_per_s: i.u64("bytes a second")?,
            silence_ms: i.u64("time without progress")?,
        })
    }
}

/// The location of the inputs that lie in the place of a job's order. A device has no other.
pub use siltstone_table::job::LOCATION;

/// Checks that all inputs of a job lie where a device looks for them.
///
/// # Errors
/// A description of the first input that lies elsewhere, for people.
pub fn check_locations(job: &Job) -> Result<(), String> {
    match job.inputs.iter().find(|input| input.location != LOCATION) {
        None => Ok(()),
        Some(input) => Err(format!(
            "the input {} is at location {}, and a device has only location {LOCATION}, the folder \
             in which it runs the job",
            input.name, input.location
        )),
    }
}

/// Encodes a job and the parts after which the attempt continues, as the bulk bytes of its order.
/// Parts that do not fit into `most` bytes are left out. The second value is the number of parts
/// that were included.
pub fn put_work(job: &[u8], parts: &[Vec<u8>], most: usize) -> (Vec<u8>, usize) {
    let mut bytes = job.len() + 8;
    let fit = parts.iter().take_while(|part| {
        bytes += part.len() + 4;
        bytes <= most
    });
    let count = fit.count();
    let mut out = FieldWriter::new();
    out.bytes(job);
    out.list(&parts[..count], |o, part| o.bytes(part));
    (out.into_bytes(), count)
}

/// Decodes the job and the parts that [`put_work`] encoded.
///
/// # Errors
/// If the bytes are not well formed.
pub fn get_work(bulk: &[u8]) -> Decoded<(&[u8], Vec<&[u8]>)> {
    let mut i = FieldReader::new(bulk);
    let job = i.bytes("job")?;
    let parts = i.list("parts", 4, |i| i.bytes("part"))?;
    i.finish("work")?;
    Ok((job, parts))
}

/// How an attempt ended.
#[derive(Clone, Debug)]
pub enum JobEnd {
    /// It succeeded, with an outcome of this many bytes.
    Done {
        /// The length of the outcome's bytes.
        outcome_bytes: u64,
    },
    /// The device lacks something for the job.
    Declined(String),
    /// The attempt was cancelled.
    Cancelled,
    /// The storage returned this error.
    Storage(StorageError),
    /// It failed for another reason, such as a damaged input.
    Failed(String),
}

/// The present counts of a job's progress.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct JobCounts {
    /// Entries read.
    pub entries: u64,
    /// Bytes read.
    pub bytes_in: u64,
    /// Bytes of finished tables.
    pub bytes_out: u64,
    /// Finished tables.
    pub tables: u64,
    /// Signs of life that no other count shows.
    pub beats: u64,
    /// The processor time that the job has used on the device so far, in nanoseconds.
    pub cpu_ns: u64,
    /// Bytes that were read and written, including those of unfinished tables. The host counts them
    /// against its limit of bytes per second.
    pub spent_bytes: u64,
}

/// The state of an attempt.
#[derive(Clone, Debug)]
pub struct JobStatus {
    /// The progress of the attempt.
    pub counts: JobCounts,
    /// The parts that the host does not know yet, encoded as in `docs/format/job.md`.
    pub parts: Vec<Vec<u8>>,
    /// Whether the parts may be adopted: no sync of the attempt has failed.
    pub parts_hold: bool,
    /// How the attempt ended, if it has ended.
    pub end: Option<JobEnd>,
}

impl JobStatus {
    pub(super) fn put(&self, out: &mut FieldWriter) {
        let c = &self.counts;
        for count in [
            c.entries,
            c.bytes_in,
            c.bytes_out,
            c.tables,
            c.beats,
            c.cpu_ns,
            c.spent_bytes,
        ] {
            out.u64(count);
        }
        out.list(&self.parts, |o, part| o.bytes(part));
        out.flag(self.parts_hold);
        match &self.end {
            None => out.u8(0),
            Some(JobEnd::Done { outcome_bytes }) => {
                out.u8(1);
                out.u64(*outcome_bytes);
            }
            Some(JobEnd::Declined(reason)) => {
                out.u8(2);
                put_text(out, reason);
            }
            Some(JobEnd::Cancelled) => out.u8(3),
            Some(JobEnd::Storage(error)) => {
                out.u8(4);
                put_error(out, error);
            }
            Some(JobEnd::Failed(reason)) => {
                out.u8(5);
                put_text(out, reason);
            }
        }
    }

    pub(super) fn get(i: &mut FieldReader<'_>) -> Decoded<JobStatus> {
        let counts = JobCounts {
            entries: i.u64("entries")?,
            bytes_in: i.u64("bytes read")?,
            bytes_out: i.u64("bytes written")?,
            tables: i.u64("tables")?,
            beats: i.u64("signs of life")?,
            cpu_ns: i.u64("processor time")?,
            spent_bytes: i.u64("bytes read and written")?,
        };
        let parts = i.list("parts", 4, |i| Ok(i.bytes("part")?.to_vec()))?;
        let parts_hold = i.flag("whether parts hold")?;
        let at = i.position();
        let end = match i.u8("end of a job")? {
            0 => None,
            1 => Some(JobEnd::Done {
                outcome_bytes: i.u64("length of the outcome")?,
            }),
            2 => Some(JobEnd::Declined(i.text("reason")?)),
            3 => Some(JobEnd::Cancelled),
            4 => Some(JobEnd::Storage(get_error(i)?)),
            5 => Some(JobEnd::Failed(i.text("reason")?)),
            x => return Err(Damage::new("end of a job", at, 5, x.into())),
        };
        Ok(JobStatus {
            counts,
            parts,
            parts_hold,
            end,
        })
    }
}

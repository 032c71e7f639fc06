//! Answers: what a device answers to a request.
//!
//! Invariants and threading: as in the parent module.

use siltstone_storage::{ObjectMeta, StorageError};
use siltstone_table::Damage;
use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};

use super::error::{get_error, put_error};
use super::job::JobStatus;
use super::machine::{Machine, MergeRate};

/// The maximum number of bytes of names in one page of a list.
pub const LIST_BYTES_MAX: usize = 48 << 10;

/// The kind of a frame that says that a request is still being executed. Its number is 0.
pub const WORKING: u16 = 0x4000;

/// An answer.
#[derive(Clone, Debug)]
pub enum Answer {
    /// The request was executed.
    Done,
    /// The request failed.
    Failed(StorageError),
    /// The session state that the connection belongs to has ended. The host must connect again.
    Ended,
    /// The lease was granted with this epoch.
    Leased {
        /// The epoch. For a share, it is the epoch of the last grant.
        epoch: u64,
    },
    /// The object is open, and has this length.
    Opened {
        /// The length in bytes.
        len: u64,
    },
    /// The bytes that were requested are the bulk bytes.
    Bytes,
    /// A list of objects.
    Objects {
        /// Names and lengths, sorted by name.
        objects: Vec<ObjectMeta>,
        /// Whether there are more objects after the last one.
        more: bool,
    },
    /// The free bytes, if they are known.
    FreeBytes(Option<u64>),
    /// The state of a job.
    Job(JobStatus),
    /// The proof of a shared folder: a hash of the object's bytes and the salt.
    Proof([u8; 16]),
    /// There is no room for what the request contains. The host must send it again.
    Later,
    /// A description of the device's machine.
    Machine(Machine),
    /// How fast a merge was.
    Merged(MergeRate),
}

/// The kinds of answers.
mod kind {
    pub const DONE: u16 = 0x8001;
    pub const FAILED: u16 = 0x8002;
    pub const ENDED: u16 = 0x8003;
    pub const LEASED: u16 = 0x8004;
    pub const OPENED: u16 = 0x8005;
    pub const BYTES: u16 = 0x8006;
    pub const OBJECTS: u16 = 0x8007;
    pub const FREE_BYTES: u16 = 0x8008;
    pub const JOB: u16 = 0x8009;
    pub const PROOF: u16 = 0x800a;
    pub const LATER: u16 = 0x800b;
    pub const MACHINE: u16 = 0x8010;
    pub const MERGED: u16 = 0x8011;
}

impl Answer {
    /// The kind of the frame.
    pub fn kind(&self) -> u16 {
        match self {
            Answer::Done => kind::DONE,
            Answer::Failed(_) => kind::FAILED,
            Answer::Ended => kind::ENDED,
            Answer::Leased { .. } => kind::LEASED,
            Answer::Opened { .. } => kind::OPENED,
            Answer::Bytes => kind::BYTES,
            Answer::Objects { .. } => kind::OBJECTS,
            Answer::FreeBytes(_) => kind::FREE_BYTES,
            Answer::Job(_) => kind::JOB,
            Answer::Proof(_) => kind::PROOF,
            Answer::Later => kind::LATER,
            Answer::Machine(_) => kind::MACHINE,
            Answer::Merged(_) => kind::MERGED,
        }
    }

    /// The fields of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::new();
        let o = &mut out;
        match self {
            Answer::Done | Answer::Ended | Answer::Bytes | Answer::Later => {}
            Answer::Failed(error) => put_error(o, error),
            Answer::Leased { epoch } => o.u64(*epoch),
            Answer::Opened { len } => o.u64(*len),
            Answer::Objects { objects, more } => {
                o.list(objects, |o, object| {
                    o.bytes(object.name.as_bytes());
                    o.u64(object.len);
                });
                o.flag(*more);
            }
            Answer::FreeBytes(bytes) => {
                o.flag(bytes.is_some());
                o.u64(bytes.unwrap_or(0));
            }
            Answer::Job(status) => status.put(o),
            Answer::Proof(hash) => super::request::put_id(o, hash),
            Answer::Machine(machine) => machine.put(o),
            Answer::Merged(rate) => rate.put(o),
        }
        out.into_bytes()
    }

    /// Decodes the fields of a frame of this kind.
    ///
    /// # Errors
    /// If the kind is unknown, or the fields do not belong to this kind.
    pub fn decode(found: u16, fields: &[u8]) -> Decoded<Answer> {
        let mut reader = FieldReader::new(fields);
        let i = &mut reader;
        let answer = match found {
            kind::DONE => Answer::Done,
            kind::FAILED => Answer::Failed(get_error(i)?),
            kind::ENDED => Answer::Ended,
            kind::LATER => Answer::Later,
            kind::LEASED => Answer::Leased {
                epoch: i.u64("epoch")?,
            },
            kind::OPENED => Answer::Opened {
                len: i.u64("length")?,
            },
            kind::BYTES => Answer::Bytes,
            kind::OBJECTS => Answer::Objects {
                objects: i.list("objects", 12, |i| {
                    Ok(ObjectMeta {
                        name: i.text("name")?,
                        len: i.u64("length")?,
                    })
                })?,
                more: i.flag("more objects")?,
            },
            kind::FREE_BYTES => {
                let is_known = i.flag("whether free bytes are known")?;
                let bytes = i.u64("free bytes")?;
                Answer::FreeBytes(is_known.then_some(bytes))
            }
            kind::JOB => Answer::Job(JobStatus::get(i)?),
            kind::PROOF => Answer::Proof(super::request::get_id(i, "proof")?),
            kind::MACHINE => Answer::Machine(Machine::get(i)?),
            kind::MERGED => Answer::Merged(MergeRate::get(i)?),
            other => return Err(Damage::new("kind of answer", 16, 0, other.into())),
        };
        i.finish("answer")?;
        Ok(answer)
    }
}

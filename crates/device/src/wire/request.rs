//! Requests: what a host asks a device to do.
//!
//! A request is a frame. The kind of the frame says which values its fields have, and in which
//! order. `docs/format/wire.md` lists them. Bytes of files are the frame's bulk bytes.
//!
//! Invariants: as in the parent module. A decoded name may still not be a valid name of an object.
//! The storage that gets the name checks it.
//!
//! Threading: plain data.

use siltstone_table::Damage;
use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};

use super::job::JobOrder;
use super::survivors::SurvivorsPiece;

/// The maximum number of ranges of one read.
pub const RANGES_MAX: usize = 1024;

/// A request. RFC 9, section 5, says what a lane is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    /// A sign of life of the session.
    KeepAlive,
    /// Ends the state of the session.
    Goodbye,
    /// Takes a lease, or a share of it.
    Lease {
        /// The lease's id, which the host has drawn at random.
        id: [u8; 16],
        /// The lease's name.
        name: String,
        /// Whether it is a share.
        shared: bool,
        /// The epoch of the lease, if the host had this lease before the device forgot the session.
        again: Option<u64>,
    },
    /// Gives a lease or a share back.
    Release {
        /// The lease's id.
        id: [u8; 16],
    },
    /// Opens an object for writing again. The host was writing it before the device forgot the
    /// session.
    Reopen {
        /// The object.
        name: String,
        /// The number that the host gives the open object.
        file: u64,
        /// The epoch of the lease under which it is written.
        epoch: u64,
        /// The position at which writing continues.
        position: u64,
    },
    /// Closes an object that is open for reading or for writing.
    Close {
        /// The number of the open object.
        file: u64,
    },
    /// Opens an object for reading.
    Open {
        /// The object.
        name: String,
        /// The number that the host gives the open object.
        file: u64,
        /// Whether it is read past the page cache.
        direct: bool,
    },
    /// Opens a finished object, to which nobody writes any more, for reading. If the descriptor is
    /// wanted and can be passed, it comes with the answer, and the object is not open on the device
    /// then. Otherwise the answer has the object's last bytes.
    OpenFinished {
        /// The object.
        name: String,
        /// The number that the host gives the open object.
        file: u64,
        /// How many of the last bytes are wanted.
        tail: u32,
        /// Whether the descriptor is wanted.
        descriptor: bool,
    },
    /// Reads ranges of an open object. Together they must fit into a frame.
    Read {
        /// The number of the open object.
        file: u64,
        /// The offset and the length of each range.
        ranges: Vec<(u64, u32)>,
    },
    /// Reads the whole of a small object.
    ReadSmall {
        /// The object.
        name: String,
    },
    /// Lists objects.
    List {
        /// The last name of the previous page of the list. The list continues after it.
        after: String,
    },
    /// Asks for the number of free bytes.
    FreeBytes,
    /// Asks whether the page cache can be bypassed.
    CheckDirect,
    /// Asks for a proof that the device can read an object in a folder of the host's machine.
    ProveFolder {
        /// The object.
        name: String,
        /// Random bytes that the host has drawn.
        salt: [u8; 16],
        /// The absolute path of the folder, as the host knows it.
        path: String,
    },
    /// Asks for the state of a job. It is answered when there is something new, or after `wait_ms`.
    WaitJob {
        /// The attempt.
        attempt: u64,
        /// The number of parts that the host knows.
        parts_known: u32,
        /// How long the device waits for something new, in milliseconds.
        wait_ms: u32,
        /// How many bytes the job may read and write per second; 0 means no limit.
        bytes_per_s: u64,
        /// The bytes read and written that the host has counted against its limit. The device runs
        /// at most one second ahead of them.
        paid_bytes: u64,
    },
    /// Asks an attempt to end.
    CancelJob {
        /// The attempt.
        attempt: u64,
    },
    /// Reads a piece of the outcome of an attempt that is done.
    ReadOutcome {
        /// The attempt.
        attempt: u64,
        /// The offset in the outcome's bytes.
        offset: u64,
    },
    /// Reads a piece of a finished part of an attempt. This is for a part that is too large for an
    /// answer about the job, which then has an empty part in its place.
    ReadPart {
        /// The attempt.
        attempt: u64,
        /// How many parts come before it.
        index: u32,
        /// The offset in the part's bytes.
        offset: u64,
    },
    /// Makes the device forget an attempt that the host does not need any more.
    ForgetJob {
        /// The attempt.
        attempt: u64,
    },
    /// Sends a piece of the survivors of a subjob. The bytes of the piece are the bulk bytes.
    Survivors(SurvivorsPiece),
    /// Asks for a description of the device's machine.
    Describe,
    /// Sends bulk bytes that are thrown away, and asks for `len` bytes. This is used to measure the
    /// link.
    Echo {
        /// The number of bytes of the answer, at most what fits into a frame.
        len: u32,
    },
    /// Asks the device to measure a small merge in memory.
    MeasureMerge {
        /// The number of the codec.
        codec: u8,
        /// The level of the codec.
        level: u8,
        /// The bytes of a value.
        value_bytes: u32,
    },
    /// Makes a change in the lane of names.
    Names {
        /// The change's number in the lane.
        number: u64,
        /// The epoch of the lease under which it is made.
        epoch: u64,
        /// The change.
        change: NamesChange,
    },
    /// Makes a change in the lane of a file.
    File {
        /// The number of the open object.
        file: u64,
        /// The change's number in the lane.
        number: u64,
        /// The change.
        change: FileChange,
    },
}

/// A change of names, or the start of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NamesChange {
    /// Creates an object for writing.
    Create {
        /// The object.
        name: String,
        /// The number that the host gives the open object.
        file: u64,
        /// Whether it is written past the page cache.
        direct: bool,
    },
    /// Renames an object to a free name and opens it for overwriting.
    Recycle {
        /// The object.
        old: String,
        /// The object's new name.
        new: String,
        /// The number that the host gives the open object.
        file: u64,
    },
    /// Makes the bytes of an object durable.
    SyncObject {
        /// The object.
        name: String,
        /// Whether the bytes are written again.
        rewrite: bool,
    },
    /// Deletes an object.
    Delete {
        /// The object.
        name: String,
    },
    /// Renames an object.
    Rename {
        /// The object.
        old: String,
        /// The object's new name.
        new: String,
    },
    /// Sets the contents of an object to the bulk bytes, without making them durable.
    Publish {
        /// The object.
        name: String,
    },
    /// Replaces the contents of an object by the bulk bytes, durably.
    Replace {
        /// The object.
        name: String,
    },
    /// Imports an object from the folder of another session.
    Import {
        /// The new name.
        name: String,
        /// The token of the other session.
        from: [u8; 16],
        /// The object's name in the other folder.
        from_name: String,
    },
    /// Makes the names in the folder durable.
    SyncDir,
    /// Makes the names that lead to the folder durable.
    SyncParents,
    /// Begins a job, whose encoding is the bulk bytes.
    BeginJob(JobOrder),
    /// Begins a job, whose encoding is the bulk bytes. The host decides what is kept
    /// ([`Request::Survivors`]), and the device makes the tables.
    BeginRebuild(JobOrder),
}

/// A change of a file that is open for writing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FileChange {
    /// Appends the bulk bytes.
    Append {
        /// The position, which must be the file's present position.
        position: u64,
    },
    /// Reserves space.
    Reserve {
        /// The length up to which space is reserved.
        len: u64,
    },
    /// Truncates the file at its position.
    Truncate,
    /// Makes the bytes of the file durable.
    Sync,
}

/// The kinds of requests.
mod kind {
    pub const KEEP_ALIVE: u16 = 1;
    pub const GOODBYE: u16 = 2;
    pub const LEASE: u16 = 3;
    pub const RELEASE: u16 = 4;
    pub const REOPEN: u16 = 5;
    pub const CLOSE: u16 = 6;
    pub const OPEN: u16 = 7;
    pub const READ: u16 = 8;
    pub const READ_SMALL: u16 = 9;
    pub const LIST: u16 = 10;
    pub const FREE_BYTES: u16 = 11;
    pub const CHECK_DIRECT: u16 = 12;
    pub const PROVE_FOLDER: u16 = 13;
    pub const WAIT_JOB: u16 = 14;
    pub const CANCEL_JOB: u16 = 15;
    pub const READ_OUTCOME: u16 = 16;
    pub const FORGET_JOB: u16 = 17;
    pub const OPEN_FINISHED: u16 = 18;
    pub const SURVIVORS: u16 = 19;
    pub const READ_PART: u16 = 20;
    pub const DESCRIBE: u16 = 24;
    pub const ECHO: u16 = 25;
    pub const MEASURE_MERGE: u16 = 26;
    pub const CREATE: u16 = 32;
    pub const RECYCLE: u16 = 33;
    pub const SYNC_OBJECT: u16 = 34;
    pub const DELETE: u16 = 35;
    pub const RENAME: u16 = 36;
    pub const PUBLISH: u16 = 37;
    pub const REPLACE: u16 = 38;
    pub const IMPORT: u16 = 39;
    pub const SYNC_DIR: u16 = 40;
    pub const SYNC_PARENTS: u16 = 41;
    pub const BEGIN_JOB: u16 = 42;
    pub const BEGIN_REBUILD: u16 = 43;
    pub const APPEND: u16 = 64;
    pub const RESERVE: u16 = 65;
    pub const TRUNCATE: u16 = 66;
    pub const SYNC: u16 = 67;
}

/// Reads 16 bytes.
pub(super) fn get_id(i: &mut FieldReader<'_>, what: &'static str) -> Decoded<[u8; 16]> {
    let mut id = [0; 16];
    for byte in &mut id {
        *byte = i.u8(what)?;
    }
    Ok(id)
}

/// Appends 16 bytes.
pub(super) fn put_id(out: &mut FieldWriter, id: &[u8; 16]) {
    id.iter().for_each(|byte| out.u8(*byte));
}

fn put_name(out: &mut FieldWriter, name: &str) {
    out.bytes(name.as_bytes());
}

impl NamesChange {
    fn kind(&self) -> u16 {
        match self {
            NamesChange::Create { .. } => kind::CREATE,
            NamesChange::Recycle { .. } => kind::RECYCLE,
            NamesChange::SyncObject { .. } => kind::SYNC_OBJECT,
            NamesChange::Delete { .. } => kind::DELETE,
            NamesChange::Rename { .. } => kind::RENAME,
            NamesChange::Publish { .. } => kind::PUBLISH,
            NamesChange::Replace { .. } => kind::REPLACE,
            NamesChange::Import { .. } => kind::IMPORT,
            NamesChange::SyncDir => kind::SYNC_DIR,
            NamesChange::SyncParents => kind::SYNC_PARENTS,
            NamesChange::BeginJob(_) => kind::BEGIN_JOB,
            NamesChange::BeginRebuild(_) => kind::BEGIN_REBUILD,
        }
    }

    fn put(&self, out: &mut FieldWriter) {
        match self {
            NamesChange::Create { name, file, direct } => {
                put_name(out, name);
                out.u64(*file);
                out.flag(*direct);
            }
            NamesChange::Recycle { old, new, file } => {
                put_name(out, old);
                put_name(out, new);
                out.u64(*file);
            }
            NamesChange::SyncObject { name, rewrite } => {
                put_name(out, name);
                out.flag(*rewrite);
            }
            NamesChange::Delete { name }
            | NamesChange::Publish { name }
            | NamesChange::Replace { name } => put_name(out, name),
            NamesChange::Rename { old, new } => {
                put_name(out, old);
                put_name(out, new);
            }
            NamesChange::Import {
                name,
                from,
                from_name,
            } => {
                put_name(out, name);
                put_id(out, from);
                put_name(out, from_name);
            }
            NamesChange::SyncDir | NamesChange::SyncParents => {}
            NamesChange::BeginJob(order) | NamesChange::BeginRebuild(order) => order.put(out),
        }
    }

    fn get(found: u16, i: &mut FieldReader<'_>) -> Decoded<NamesChange> {
        Ok(match found {
            kind::CREATE => NamesChange::Create {
                name: i.text("name")?,
                file: i.u64("file")?,
                direct: i.flag("direct")?,
            },
            kind::RECYCLE => NamesChange::Recycle {
                old: i.text("old name")?,
                new: i.text("new name")?,
                file: i.u64("file")?,
            },
            kind::SYNC_OBJECT => NamesChange::SyncObject {
                name: i.text("name")?,
                rewrite: i.flag("rewrite")?,
            },
            kind::DELETE => NamesChange::Delete {
                name: i.text("name")?,
            },
            kind::RENAME => NamesChange::Rename {
                old: i.text("old name")?,
                new: i.text("new name")?,
            },
            kind::PUBLISH => NamesChange::Publish {
                name: i.text("name")?,
            },
            kind::REPLACE => NamesChange::Replace {
                name: i.text("name")?,
            },
            kind::IMPORT => NamesChange::Import {
                name: i.text("name")?,
                from: get_id(i, "token")?,
                from_name: i.text("name to import")?,
            },
            kind::SYNC_DIR => NamesChange::SyncDir,
            kind::SYNC_PARENTS => NamesChange::SyncParents,
            kind::BEGIN_JOB => NamesChange::BeginJob(JobOrder::get(i)?),
            kind::BEGIN_REBUILD => NamesChange::BeginRebuild(JobOrder::get(i)?),
            other => return Err(Damage::new("kind of request", 16, 0, other.into())),
        })
    }
}

impl Request {
    /// The kind of the frame.
    pub fn kind(&self) -> u16 {
        match self {
            Request::KeepAlive => kind::KEEP_ALIVE,
            Request::Goodbye => kind::GOODBYE,
            Request::Lease { .. } => kind::LEASE,
            Request::Release { .. } => kind::RELEASE,
            Request::Reopen { .. } => kind::REOPEN,
            Request::Close { .. } => kind::CLOSE,
            Request::Open { .. } => kind::OPEN,
            Request::OpenFinished { .. } => kind::OPEN_FINISHED,
            Request::Read { .. } => kind::READ,
            Request::ReadSmall { .. } => kind::READ_SMALL,
            Request::List { .. } => kind::LIST,
            Request::FreeBytes => kind::FREE_BYTES,
            Request::CheckDirect => kind::CHECK_DIRECT,
            Request::ProveFolder { .. } => kind::PROVE_FOLDER,
            Request::WaitJob { .. } => kind::WAIT_JOB,
            Request::CancelJob { .. } => kind::CANCEL_JOB,
            Request::ReadOutcome { .. } => kind::READ_OUTCOME,
            Request::ReadPart { .. } => kind::READ_PART,
            Request::ForgetJob { .. } => kind::FORGET_JOB,
            Request::Survivors(_) => kind::SURVIVORS,
            Request::Describe => kind::DESCRIBE,
            Request::Echo { .. } => kind::ECHO,
            Request::MeasureMerge { .. } => kind::MEASURE_MERGE,
            Request::Names { change, .. } => change.kind(),
            Request::File { change, .. } => match change {
                FileChange::Append { .. } => kind::APPEND,
                FileChange::Reserve { .. } => kind::RESERVE,
                FileChange::Truncate => kind::TRUNCATE,
                FileChange::Sync => kind::SYNC,
            },
        }
    }

    /// The fields of the frame.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = FieldWriter::new();
        let o = &mut out;
        match self {
            Request::KeepAlive
            | Request::Goodbye
            | Request::FreeBytes
            | Request::CheckDirect
            | Request::Describe => {}
            Request::Echo { len } => o.u32(*len),
            Request::MeasureMerge {
                codec,
                level,
                value_bytes,
            } => {
                o.u8(*codec);
                o.u8(*level);
                o.u32(*value_bytes);
            }
            Request::Lease {
                id,
                name,
                shared,
                again,
            } => {
                put_id(o, id);
                put_name(o, name);
                o.flag(*shared);
                o.flag(again.is_some());
                o.u64(again.unwrap_or(0));
            }
            Request::Release { id } => put_id(o, id),
            Request::Reopen {
                name,
                file,
                epoch,
                position,
            } => {
                put_name(o, name);
                o.u64(*file);
                o.u64(*epoch);
                o.u64(*position);
            }
            Request::Close { file } => o.u64(*file),
            Request::Open { name, file, direct } => {
                put_name(o, name);
                o.u64(*file);
                o.flag(*direct);
            }
            Request::OpenFinished {
                name,
                file,
                tail,
                descriptor,
            } => {
                put_name(o, name);
                o.u64(*file);
                o.u32(*tail);
                o.flag(*descriptor);
            }
            Request::Read { file, ranges } => {
                o.u64(*file);
                o.list(ranges, |o, (offset, len)| {
                    o.u64(*offset);
                    o.u32(*len);
                });
            }
            Request::ReadSmall { name } => put_name(o, name),
            Request::List { after } => put_name(o, after),
            Request::ProveFolder { name, salt, path } => {
                put_name(o, name);
                put_id(o, salt);
                o.bytes(path.as_bytes());
            }
            Request::WaitJob {
                attempt,
                parts_known,
                wait_ms,
                bytes_per_s,
                paid_bytes,
            } => {
                o.u64(*attempt);
                o.u32(*parts_known);
                o.u32(*wait_ms);
                o.u64(*bytes_per_s);
                o.u64(*paid_bytes);
            }
            Request::CancelJob { attempt } | Request::ForgetJob { attempt } => o.u64(*attempt),
            Request::ReadOutcome { attempt, offset } => {
                o.u64(*attempt);
                o.u64(*offset);
            }
            Request::ReadPart {
                attempt,
                index,
                offset,
            } => {
                o.u64(*attempt);
                o.u32(*index);
                o.u64(*offset);
            }
            Request::Survivors(piece) => piece.put(o),
            Request::Names {
                number,
                epoch,
                change,
            } => {
                o.u64(*number);
                o.u64(*epoch);
                change.put(o);
            }
            Request::File {
                file,
                number,
                change,
            } => {
                o.u64(*file);
                o.u64(*number);
                match change {
                    FileChange::Append { position } => o.u64(*position),
                    FileChange::Reserve { len } => o.u64(*len),
                    FileChange::Truncate | FileChange::Sync => {}
                }
            }
        }
        out.into_bytes()
    }

    /// Decodes the fields of a frame of this kind.
    ///
    /// # Errors
    /// If the kind is unknown, or the fields do not belong to this kind.
    pub fn decode(found: u16, fields: &[u8]) -> Decoded<Request> {
        let mut reader = FieldReader::new(fields);
        let i = &mut reader;
        let request = match found {
            kind::KEEP_ALIVE => Request::KeepAlive,
            kind::GOODBYE => Request::Goodbye,
            kind::LEASE => Request::Lease {
                id: get_id(i, "lease")?,
                name: i.text("name")?,
                shared: i.flag("shared")?,
                again: {
                    let is_again = i.flag("again")?;
                    let epoch = i.u64("epoch")?;
                    is_again.then_some(epoch)
                },
            },
            kind::RELEASE => Request::Release {
                id: get_id(i, "lease")?,
            },
            kind::REOPEN => Request::Reopen {
                name: i.text("name")?,
                file: i.u64("file")?,
                epoch: i.u64("epoch")?,
                position: i.u64("position")?,
            },
            kind::CLOSE => Request::Close {
                file: i.u64("file")?,
            },
            kind::OPEN => Request::Open {
                name: i.text("name")?,
                file: i.u64("file")?,
                direct: i.flag("direct")?,
            },
            kind::OPEN_FINISHED => Request::OpenFinished {
                name: i.text("name")?,
                file: i.u64("file")?,
                tail: i.u32("last bytes")?,
                descriptor: i.flag("whether the descriptor is wanted")?,
            },
            kind::READ => Request::Read {
                file: i.u64("file")?,
                ranges: i.list("ranges", 12, |i| Ok((i.u64("offset")?, i.u32("length")?)))?,
            },
            kind::READ_SMALL => Request::ReadSmall {
                name: i.text("name")?,
            },
            kind::LIST => Request::List {
                after: i.text("name")?,
            },
            kind::FREE_BYTES => Request::FreeBytes,
            kind::CHECK_DIRECT => Request::CheckDirect,
            kind::PROVE_FOLDER => Request::ProveFolder {
                name: i.text("name")?,
                salt: get_id(i, "salt")?,
                path: i.text("path")?,
            },
            kind::WAIT_JOB => Request::WaitJob {
                attempt: i.u64("attempt")?,
                parts_known: i.u32("parts")?,
                wait_ms: i.u32("time to wait")?,
                bytes_per_s: i.u64("bytes a second")?,
                paid_bytes: i.u64("bytes that count")?,
            },
            kind::CANCEL_JOB => Request::CancelJob {
                attempt: i.u64("attempt")?,
            },
            kind::READ_OUTCOME => Request::ReadOutcome {
                attempt: i.u64("attempt")?,
                offset: i.u64("offset")?,
            },
            kind::READ_PART => Request::ReadPart {
                attempt: i.u64("attempt")?,
                index: i.u32("number of the part")?,
                offset: i.u64("offset")?,
            },
            kind::FORGET_JOB => Request::ForgetJob {
                attempt: i.u64("attempt")?,
            },
            kind::SURVIVORS => Request::Survivors(SurvivorsPiece::get(i)?),
            kind::DESCRIBE => Request::Describe,
            kind::ECHO => Request::Echo {
                len: i.u32("bytes of the answer")?,
            },
            kind::MEASURE_MERGE => Request::MeasureMerge {
                codec: i.u8("codec")?,
                level: i.u8("level")?,
                value_bytes: i.u32("bytes of a value")?,
            },
            kind::CREATE..=kind::BEGIN_REBUILD => Request::Names {
                number: i.u64("number")?,
                epoch: i.u64("epoch")?,
                change: NamesChange::get(found, i)?,
            },
            kind::APPEND..=kind::SYNC => Request::File {
                file: i.u64("file")?,
                number: i.u64("number")?,
                change: match found {
                    kind::APPEND => FileChange::Append {
                        position: i.u64("position")?,
                    },
                    kind::RESERVE => FileChange::Reserve {
                        len: i.u64("length")?,
                    },
                    kind::TRUNCATE => FileChange::Truncate,
                    _ => FileChange::Sync,
                },
            },
            other => return Err(Damage::new("kind of request", 16, 0, other.into())),
        };
        if let Request::Read { ranges, .. } = &request
            && ranges.len() > RANGES_MAX
        {
            let (most, found) = (RANGES_MAX as u64, ranges.len() as u64);
            return Err(Damage::new("number of ranges", 8, most, found));
        }
        i.finish("request")?;
        Ok(request)
    }
}

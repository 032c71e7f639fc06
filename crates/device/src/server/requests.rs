//! Executes requests, except those about leases and jobs.
//!
//! Invariants: D1 and D2 of RFC 9. The host's bytes and names are passed to the folder's storage,
//! which checks the names.
//!
//! Threading: a request is executed by the task of the connection on which it arrived.

use std::sync::Arc;

use siltstone_storage::planted;
use siltstone_storage::{
    MutexGuard, ReadFile, ReadRange, Storage, StorageError, StorageErrorKind, WriteFile,
};

use super::Inner;
use super::bounded::Taken;
use super::jobs::Decides;
use super::leases::{self, Wanted};
use super::session::{FileLane, Object, Reading, SessionState, Turn, Written};
use crate::secret::token_hash;
use crate::wire::answer::LIST_BYTES_MAX;
use crate::wire::frame::BULK_MAX;
use crate::wire::request::{FileChange, NamesChange};
use crate::wire::{Answer, Frame, Request};

/// The result of a request.
pub(super) enum Executed {
    /// An answer, with its bulk bytes.
    Answer(Answer, Vec<u8>),
    /// An answer, with the descriptor of this object.
    Passed(Answer, Arc<dyn ReadFile>),
    /// The host broke the protocol, so the connection ends.
    Broken,
}

impl From<Result<Answer, StorageError>> for Executed {
    fn from(result: Result<Answer, StorageError>) -> Executed {
        Executed::Answer(result.unwrap_or_else(Answer::Failed), Vec::new())
    }
}

fn done(result: Result<(), StorageError>) -> Answer {
    match result {
        Ok(()) => Answer::Done,
        Err(error) => Answer::Failed(error),
    }
}

fn no_folder(op: &'static str) -> StorageError {
    let detail = "this session has no folder";
    StorageError::new(StorageErrorKind::InvalidInput, op, "", detail)
}

fn not_open(op: &'static str, file: u64) -> StorageError {
    let detail = format!("object {file} is not open on the device");
    StorageError::new(StorageErrorKind::Closed, op, "", detail)
}

fn in_use(op: &'static str, file: u64) -> StorageError {
    let detail = format!("the host has another object open as object {file}");
    StorageError::new(StorageErrorKind::InvalidInput, op, "", detail)
}

/// Executes a request.
pub(super) fn execute(
    inner: &Arc<Inner>,
    session: &Arc<SessionState>,
    request: Request,
    frame: &Frame,
    passes_descriptors: bool,
) -> Executed {
    if session.is_ended() && !planted!(FencedRead) {
        return Executed::Answer(Answer::Ended, Vec::new());
    }
    match request {
        Request::KeepAlive => Ok(Answer::Done).into(),
        Request::Goodbye => {
            leases::goodbye(inner, session);
            Ok(Answer::Done).into()
        }
        Request::Lease {
            id,
            name,
            shared,
            again,
        } => {
            let wanted = Wanted {
                id,
                name: &name,
                shared,
                again,
            };
            leases::give(inner, session, &wanted).into()
        }
        Request::Release { id } => {
            leases::release(inner, session, id);
            Ok(Answer::Done).into()
        }
        Request::Reopen {
            name,
            file,
            epoch,
            position,
        } => reopen(inner, session, &name, file, epoch, position).into(),
        Request::Close { file } => {
            close(session, file);
            Ok(Answer::Done).into()
        }
        Request::Open { name, file, direct } => open(inner, session, &name, file, direct).into(),
        Request::OpenFinished {
            name,
            file,
            tail,
            descriptor,
        } => {
            let passes = descriptor && passes_descriptors;
            match open_finished(inner, session, &name, file, tail, passes) {
                Ok(executed) => executed,
                Err(error) => Err(error).into(),
            }
        }
        Request::Read { file, ranges } => unless_ended(session, read(session, file, &ranges)),
        Request::ReadSmall { name } => unless_ended(session, read_small(session, &name)),
        Request::List { after } => unless_ended(session, list(session, &after).into()),
        Request::FreeBytes => {
            let folder = session.folder.as_ref();
            let bytes = folder.and_then(|folder| folder.storage.free_bytes());
            Ok(Answer::FreeBytes(bytes)).into()
        }
        Request::CheckDirect => {
            let folder = session.folder.as_ref();
            let checked = folder.map(|folder| folder.storage.check_direct());
            Ok(done(checked.unwrap_or(Err(no_folder("check_direct"))))).into()
        }
        Request::ProveFolder { name, salt, path } => {
            inner.prove_folder(session, &path, &name, &salt).into()
        }
        Request::Describe => Ok(Answer::Machine(inner.machine())).into(),
        Request::Echo { len } if len as usize > BULK_MAX => {
            let detail = format!("{len} bytes do not fit into one answer");
            let kind = StorageErrorKind::InvalidInput;
            Err(StorageError::new(kind, "echo", "", detail)).into()
        }
        Request::Echo { len } => Executed::Answer(Answer::Bytes, vec![0xa5; len as usize]),
        Request::MeasureMerge {
            codec,
            level,
            value_bytes,
        } => {
            let measured = inner.measure_merge(codec, level, value_bytes);
            measured.map(Answer::Merged).into()
        }
        Request::Names {
            number,
            epoch,
            change,
        } => change_names(inner, session, number, epoch, change, frame),
        Request::File {
            file,
            number,
            change,
        } => change_file(session, file, number, &change, frame.bulk()),
        Request::WaitJob {
            attempt,
            parts_known,
            wait_ms,
            bytes_per_s,
            paid_bytes,
        } => {
            session.jobs.pay(attempt, bytes_per_s, paid_bytes);
            session.jobs.wait(attempt, parts_known, wait_ms).into()
        }
        Request::CancelJob { attempt } => {
            session.jobs.cancel(attempt);
            Ok(Answer::Done).into()
        }
        Request::ReadOutcome { attempt, offset } => {
            match session.jobs.read_outcome(attempt, offset, BULK_MAX) {
                Ok(bytes) => Executed::Answer(Answer::Bytes, bytes),
                Err(error) => Err(error).into(),
            }
        }
        Request::ReadPart {
            attempt,
            index,
            offset,
        } => match session.jobs.read_part(attempt, index, offset, BULK_MAX) {
            Ok(bytes) => Executed::Answer(Answer::Bytes, bytes),
            Err(error) => Err(error).into(),
        },
        Request::ForgetJob { attempt } => {
            session.jobs.forget(attempt);
            Ok(Answer::Done).into()
        }
        Request::Survivors(piece) => {
            let crc = frame.header.body_crc;
            session.jobs.survivors(&piece, crc, frame.bulk()).into()
        }
    }
}

/// The answer to a read. If the state of the session has ended meanwhile, another host may have the
/// lease, and what was read may be that host's.
fn unless_ended(session: &SessionState, executed: Executed) -> Executed {
    if session.is_ended() && !planted!(FencedRead) {
        return Executed::Answer(Answer::Ended, Vec::new());
    }
    executed
}

/// Executes a change in the session's lane of names.
fn change_names(
    inner: &Arc<Inner>,
    session: &Arc<SessionState>,
    number: u64,
    epoch: u64,
    change: NamesChange,
    frame: &Frame,
) -> Executed {
    let crc = frame.header.body_crc;
    let mut names = session.names.lock();
    if session.is_ended() {
        return Executed::Answer(Answer::Ended, Vec::new());
    }
    match names.turn(number, crc) {
        Turn::Execute => {}
        Turn::Answered(answer) => return Executed::Answer(answer, Vec::new()),
        Turn::Broken => return Executed::Broken,
    }
    let result = match (change, &session.folder) {
        (NamesChange::BeginJob(order), _) => {
            super::jobs::begin(inner, session, order, Decides::Device, frame)
        }
        (NamesChange::BeginRebuild(order), _) => {
            super::jobs::begin(inner, session, order, Decides::Host, frame)
        }
        (_, None) => Err(no_folder("change")),
        (change, Some(folder)) => {
            let storage = &*folder.storage;
            make_change(inner, session, storage, epoch, change, frame.bulk())
        }
    };
    let answer = result.unwrap_or_else(Answer::Failed);
    names.taken(number, crc, &answer);
    Executed::Answer(answer, Vec::new())
}

fn make_change(
    inner: &Inner,
    session: &SessionState,
    storage: &dyn Storage,
    epoch: u64,
    change: NamesChange,
    bulk: &[u8],
) -> Result<Answer, StorageError> {
    let local = |op| session.local_epoch(op, epoch);
    // An object with other bytes has this name now.
    let is_new = |name: &str| drop(session.failed.lock().objects.remove(name));
    Ok(match change {
        NamesChange::Create { name, file, direct } => {
            let epoch = local("create")?;
            check_free(session, "create", file)?;
            let room = take_room(inner, session)?;
            let written = match direct {
                true => storage.create_direct(epoch, &name)?,
                false => storage.create(epoch, &name)?,
            };
            is_new(&name);
            opened(session, file, written, room)
        }
        NamesChange::Recycle { old, new, file } => {
            let epoch = local("recycle")?;
            check_free(session, "recycle", file)?;
            let room = take_room(inner, session)?;
            let before = session.objects.lock().written_as(&old);
            let lanes = lanes_of(&before);
            let written = storage.recycle(epoch, &old, &new)?;
            is_new(&old);
            is_new(&new);
            rename_written(&before, &new);
            drop(lanes);
            opened(session, file, written, room)
        }
        NamesChange::SyncObject { name, rewrite } => {
            let epoch = local("sync_object")?;
            let written = session.objects.lock().written_as(&name);
            let _lanes = lanes_of(&written);
            let before = session.failed.lock().objects.get(&name).cloned();
            if let Some(error) = before.filter(|_| !rewrite) {
                return Err(error);
            }
            let synced = match rewrite {
                true => storage.rewrite_object(epoch, &name),
                false => storage.sync_object(epoch, &name),
            };
            match &synced {
                Ok(()) => is_new(&name),
                // The object was not even opened.
                Err(error) if is_refusal(error.kind) => {}
                Err(error) => {
                    let failed = &mut session.failed.lock().objects;
                    failed.insert(name, error.clone());
                }
            }
            done(synced)
        }
        NamesChange::Delete { name } => {
            let epoch = local("delete")?;
            let written = session.objects.lock().written_as(&name);
            let _lanes = lanes_of(&written);
            let deleted = storage.delete(epoch, &name);
            done(deleted.inspect(|()| is_new(&name)))
        }
        NamesChange::Rename { old, new } => {
            let epoch = local("rename")?;
            let written = session.objects.lock().written_as(&old);
            let _lanes = lanes_of(&written);
            storage.rename(epoch, &old, &new)?;
            rename_written(&written, &new);
            let failed = &mut session.failed.lock().objects;
            match failed.remove(&old) {
                Some(error) => failed.insert(new, error),
                None => failed.remove(&new),
            };
            Answer::Done
        }
        NamesChange::Publish { name } => {
            let published = storage.publish(local("publish")?, &name, bulk);
            done(published.inspect(|()| is_new(&name)))
        }
        NamesChange::Replace { name } => {
            let epoch = local("replace")?;
            if let Some(error) = &session.failed.lock().names {
                return Err(error.clone());
            }
            let replaced = storage.replace(epoch, &name, bulk);
            match &replaced {
                Ok(()) => is_new(&name),
                Err(error)
                    if error.changed_nothing() || error.kind == StorageErrorKind::InvalidInput => {}
                Err(error) => session.failed.lock().names = Some(error.clone()),
            }
            done(replaced)
        }
        NamesChange::Import {
            name,
            from,
            from_name,
        } => {
            let epoch = local("import")?;
            let other = inner.session(token_hash(&from)).filter(|other| {
                !other.is_ended() && other.peer.certificate == session.peer.certificate
            });
            let Some(other) = other.and_then(|other| other.folder.clone()) else {
                let detail = "the session that the object is imported from has ended";
                let kind = StorageErrorKind::Closed;
                return Err(StorageError::new(kind, "import", from_name, detail));
            };
            let imported = storage.import(epoch, &name, &*other.storage, &from_name);
            done(imported.inspect(|()| is_new(&name)))
        }
        NamesChange::SyncDir => {
            let epoch = local("sync_dir")?;
            if let Some(error) = &session.failed.lock().names {
                return Err(error.clone());
            }
            let synced = storage.sync_dir(epoch);
            session.failed.lock().names = synced.as_ref().err().cloned();
            done(synced)
        }
        NamesChange::SyncParents => done(storage.sync_parents(local("sync_parents")?)),
        NamesChange::BeginJob(_) | NamesChange::BeginRebuild(_) => {
            unreachable!("jobs are begun by the caller")
        }
    })
}

/// Locks the lanes of files. The system reports a failed sync only once, and a request in a file's
/// lane notes it before it leaves the lane. So under these locks, all failed syncs are noted.
fn lanes_of(written: &[Arc<Written>]) -> Vec<MutexGuard<'_, FileLane>> {
    written.iter().map(|written| written.lane.lock()).collect()
}

/// Notes the new name of files that are open for writing.
fn rename_written(written: &[Arc<Written>], new: &str) {
    for written in written {
        *written.name.lock() = new.to_string();
    }
}

/// Whether a sync with this error did nothing, so that another one may succeed.
fn is_refusal(kind: StorageErrorKind) -> bool {
    matches!(
        kind,
        StorageErrorKind::NotFound
            | StorageErrorKind::TooManyOpen
            | StorageErrorKind::InvalidInput
            | StorageErrorKind::Fenced
    )
}

/// Reserves a slot for an open object. Fails if the session, or all sessions together, have as many
/// objects open as they may.
fn take_room(inner: &Inner, session: &SessionState) -> Result<Taken, StorageError> {
    let full = |who: &str, max: u64| {
        let detail = format!("the device lets {who} open {max} objects at once");
        StorageError::new(StorageErrorKind::TooManyOpen, "open", "", detail)
    };
    let options = &inner.options;
    let open = session.objects.lock().open.len() as u64;
    if open >= options.open_objects_max {
        return Err(full("a host", options.open_objects_max));
    }
    let taken = inner.open_objects.take(options.open_objects_all_max);
    taken.ok_or_else(|| full("all hosts together", options.open_objects_all_max))
}

/// Fails if the host has an object open under this number. The end of a lease or of a session waits
/// only for requests to files that are registered, so a file that is open for writing must stay so.
fn check_free(session: &SessionState, op: &'static str, file: u64) -> Result<(), StorageError> {
    let is_open = session.objects.lock().open.contains_key(&file);
    match is_open {
        true => Err(in_use(op, file)),
        false => Ok(()),
    }
}

/// Registers a file that is open for writing. No such file has this number, because the caller has
/// checked that and has the lane of names.
fn opened(session: &SessionState, file: u64, written: Arc<dyn WriteFile>, room: Taken) -> Answer {
    let len = written.len();
    let object = Object::Written(session.new_written(written, room));
    session.objects.lock().open.insert(file, object);
    Answer::Opened { len }
}

fn reopen(
    inner: &Inner,
    session: &SessionState,
    name: &str,
    file: u64,
    epoch: u64,
    position: u64,
) -> Result<Answer, StorageError> {
    let folder = session.folder.as_ref().ok_or_else(|| no_folder("reopen"))?;
    // Under this lock, no other request opens files for writing, and the end of a lease or of the
    // session closes none.
    let _names = session.names.lock();
    if session.is_ended() {
        return Ok(Answer::Ended);
    }
    {
        let objects = session.objects.lock();
        match objects.open.get(&file) {
            Some(Object::Written(written)) => {
                let len = written.file.len();
                return Ok(Answer::Opened { len });
            }
            Some(Object::Read(_)) => return Err(in_use("reopen", file)),
            None => {}
        }
        if objects.was_closed(file) {
            return Err(not_open("reopen", file));
        }
    }
    let epoch = session.local_epoch("reopen", epoch)?;
    let room = take_room(inner, session)?;
    let written = folder.storage.reopen(epoch, name, position)?;
    Ok(opened(session, file, written, room))
}

fn close(session: &SessionState, file: u64) {
    let object = session.objects.lock().close(file);
    if let Some(Object::Written(written)) = object {
        written.lane.lock().is_closed = true;
    }
}

fn open(
    inner: &Inner,
    session: &SessionState,
    name: &str,
    file: u64,
    direct: bool,
) -> Result<Answer, StorageError> {
    let folder = session.folder.as_ref().ok_or_else(|| no_folder("open"))?;
    {
        let objects = session.objects.lock();
        match objects.open.get(&file) {
            Some(Object::Read(object)) => {
                let len = object.file.len();
                return Ok(Answer::Opened { len });
            }
            Some(Object::Written(_)) => return Err(in_use("open", file)),
            None => {}
        }
    }
    let room = take_room(inner, session)?;
    let object: Arc<dyn ReadFile> = match direct {
        true => folder.storage.open_direct(name)?,
        false => folder.storage.open(name)?,
    };
    let len = object.len();
    let mut objects = session.objects.lock();
    if session.is_ended() {
        return Ok(Answer::Ended);
    }
    // The host did not wait for the answer, and has closed the object.
    if objects.was_closed(file) {
        return Err(not_open("open", file));
    }
    // Another request has opened an object for writing under this number meanwhile.
    if let Some(Object::Written(_)) = objects.open.get(&file) {
        return Err(in_use("open", file));
    }
    let reading = Reading {
        file: object,
        _room: room,
    };
    objects.open.insert(file, Object::Read(Arc::new(reading)));
    Ok(Answer::Opened { len })
}

/// Opens an object to which nobody writes any more. If its descriptor can be passed, the host needs
/// nothing else, so the object is not registered as open here. Otherwise the answer has the
/// object's last bytes.
fn open_finished(
    inner: &Inner,
    session: &SessionState,
    name: &str,
    file: u64,
    tail: u32,
    passes_descriptors: bool,
) -> Result<Executed, StorageError> {
    let folder = session.folder.as_ref().ok_or_else(|| no_folder("open"))?;
    if passes_descriptors && !is_written(session, name) {
        let object = folder.storage.open(name)?;
        if session.is_ended() {
            return Ok(Ok(Answer::Ended).into());
        }
        if object.descriptor().is_some() {
            let len = object.len();
            return Ok(Executed::Passed(Answer::Opened { len }, object));
        }
    }
    let answer = open(inner, session, name, file, false)?;
    let object = session.objects.lock().open.get(&file).cloned();
    let (Answer::Opened { len }, Some(Object::Read(object))) = (&answer, object) else {
        return Ok(Ok(answer).into());
    };
    let tail = u64::from(tail).min(*len).min(BULK_MAX as u64);
    let mut bytes = vec![0; tail as usize];
    if let Err(error) = object.file.read_at(len - tail, &mut bytes) {
        close(session, file);
        return Err(error);
    }
    Ok(Executed::Answer(answer, bytes))
}

/// Whether the session has an object of this name open for writing.
fn is_written(session: &SessionState, name: &str) -> bool {
    !session.objects.lock().written_as(name).is_empty()
}

fn read(session: &SessionState, file: u64, ranges: &[(u64, u32)]) -> Executed {
    let total: u64 = ranges.iter().map(|(_, len)| u64::from(*len)).sum();
    if total > BULK_MAX as u64 {
        return Executed::Broken;
    }
    let object = session.objects.lock().open.get(&file).cloned();
    let Some(Object::Read(object)) = object else {
        return Err(not_open("read", file)).into();
    };
    let mut bytes = vec![0; total as usize];
    let mut left = &mut bytes[..];
    let mut wanted = Vec::with_capacity(ranges.len());
    for (offset, len) in ranges {
        let (buf, rest) = left.split_at_mut(*len as usize);
        left = rest;
        wanted.push(ReadRange {
            offset: *offset,
            buf,
        });
    }
    match object.file.read_ranges(&mut wanted) {
        Ok(()) => Executed::Answer(Answer::Bytes, bytes),
        Err(error) => Err(error).into(),
    }
}

fn read_small(session: &SessionState, name: &str) -> Executed {
    let Some(folder) = &session.folder else {
        return Err(no_folder("read")).into();
    };
    let read = || {
        let object = folder.storage.open(name)?;
        if object.len() > BULK_MAX as u64 {
            let detail = format!("its {} bytes do not fit into one answer", object.len());
            return Err(StorageError::new(
                StorageErrorKind::InvalidInput,
                "read",
                name,
                detail,
            ));
        }
        let mut bytes = vec![0; object.len() as usize];
        object.read_at(0, &mut bytes)?;
        Ok(bytes)
    };
    match read() {
        Ok(bytes) => Executed::Answer(Answer::Bytes, bytes),
        Err(error) => Err(error).into(),
    }
}

fn list(session: &SessionState, after: &str) -> Result<Answer, StorageError> {
    let folder = session.folder.as_ref().ok_or_else(|| no_folder("list"))?;
    let mut objects = folder.storage.list()?;
    objects.retain(|object| object.name.as_str() > after);
    let mut bytes = 0;
    let fit = objects.iter().position(|object| {
        bytes += object.name.len() + 12;
        bytes > LIST_BYTES_MAX
    });
    let more = fit.is_some();
    objects.truncate(fit.unwrap_or(objects.len()));
    Ok(Answer::Objects { objects, more })
}

/// Executes a change in the lane of a file.
fn change_file(
    session: &SessionState,
    file: u64,
    number: u64,
    change: &FileChange,
    bulk: &[u8],
) -> Executed {
    let op = match change {
        FileChange::Append { .. } => "append",
        FileChange::Reserve { .. } => "reserve",
        FileChange::Truncate => "truncate",
        FileChange::Sync => "sync",
    };
    let object = session.objects.lock().open.get(&file).cloned();
    let Some(Object::Written(written)) = object else {
        return Err(not_open(op, file)).into();
    };
    let mut lane = written.lane.lock();
    if session.is_ended() {
        return Executed::Answer(Answer::Ended, Vec::new());
    }
    if lane.is_closed {
        return Err(not_open(op, file)).into();
    }
    if let Some(error) = &lane.failed {
        return Err(error.clone()).into();
    }
    if number == lane.taken && number > 0 {
        return Ok(done(lane.last.clone().map_or(Ok(()), Err))).into();
    }
    if number == 0 || number > lane.taken + 1 {
        return Executed::Broken;
    }
    if number < lane.taken {
        return Ok(Answer::Done).into();
    }
    let result = match change {
        FileChange::Append { position } if *position != written.file.position() => {
            return Executed::Broken;
        }
        FileChange::Append { .. } => written.file.append(&[bulk]),
        FileChange::Reserve { len } => written.file.reserve(*len),
        FileChange::Truncate => written.file.truncate_to_position(),
        FileChange::Sync => written.file.sync(),
    };
    lane.taken = number;
    lane.last = result.as_ref().err().cloned();
    // A failed reserve has changed nothing. After any other failure, the content of the file may
    // differ from what the host assumes.
    if !matches!(change, FileChange::Reserve { .. }) {
        lane.failed = lane.last.clone();
    }
    if let (FileChange::Sync, Err(error)) = (&change, &result) {
        // The host may not have asked for this sync. But the system reports its failure only once,
        // so a later sync of the object has to return this error.
        let name = written.name.lock().clone();
        session.failed.lock().objects.insert(name, error.clone());
    }
    Ok(done(result)).into()
}

//! How a server grants the leases of its folders to sessions (RFC 9, section 6).
//!
//! Invariants:
//! - D3: a lease is granted only after everything that its last holder did has ended.
//! - D3a: the note of a grant is durable before the grant is answered, and epochs rise. Leases of
//!   scratch folders have no notes, and are not granted again.
//! - A lease is granted *again* only to the token and the id of the last grant, and only if nobody
//!   opened the folder since then. A share is granted again only if there was no writer since then.
//!   If the server took the folder's lease and could not note that, nothing happened under it, so
//!   this does not count.
//!
//! Threading: the lock `grants` of the folder serialises grants. A release does not take it: its
//! note is written before the lease is dropped, and until then nobody else can get the lease.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::planted;
use siltstone_storage::{Epoch, StorageError, StorageErrorKind};

use super::Inner;
use super::notes::{Note, Notes};
use super::session::{Folder, Held, SessionState};
use crate::wire::Answer;

/// How many released leases are remembered.
const RELEASED_MAX: usize = 4096;

/// The maximum number of leases of a session. Each is an open file, and a store has two.
const HELD_MAX: usize = 64;

/// The maximum number of leases of a folder that a server grants for the first time. The notes of
/// each of them stay for good, and a store has two leases.
const NEW_MAX: usize = 64;

/// The lease that a host asks for.
pub(super) struct Wanted<'a> {
    pub(super) id: [u8; 16],
    pub(super) name: &'a str,
    pub(super) shared: bool,
    pub(super) again: Option<u64>,
}

impl Wanted<'_> {
    fn error(&self, kind: StorageErrorKind, detail: impl Into<String>) -> StorageError {
        let op = if self.shared { "lease_shared" } else { "lease" };
        StorageError::new(kind, op, self.name, detail)
    }
}

/// Grants a lease to a session, or says why it does not.
pub(super) fn give(
    inner: &Inner,
    session: &Arc<SessionState>,
    wanted: &Wanted<'_>,
) -> Result<Answer, StorageError> {
    let Some(folder) = &session.folder else {
        let detail = "this session has no folder";
        return Err(wanted.error(StorageErrorKind::InvalidInput, detail));
    };
    let was_released = || {
        let detail = "the lease was given back before";
        wanted.error(StorageErrorKind::Fenced, detail)
    };
    let mut grants = folder.grants.lock();
    {
        let leases = session.leases.lock();
        if session.is_ended() {
            return Ok(Answer::Ended);
        }
        if let Some(held) = leases.held.get(&wanted.id) {
            let epoch = held.granted.0;
            return Ok(Answer::Leased { epoch });
        }
        if leases.released.contains(&wanted.id) {
            return Err(was_released());
        }
        if leases.held.len() >= HELD_MAX {
            let detail = format!("the session has {HELD_MAX} leases already");
            return Err(wanted.error(StorageErrorKind::TooManyOpen, detail));
        }
    }
    let held = match wanted.shared {
        true => share(inner, session, folder, wanted)?,
        false => lease(inner, session, folder, wanted, &mut grants)?,
    };
    let epoch = held.granted.0;
    let mut leases = session.leases.lock();
    // An end that began meanwhile either has not dropped the leases yet, or has dropped them and
    // would miss this one.
    if session.is_ended() {
        return Ok(Answer::Ended);
    }
    // The host gave up while this request waited, so it would never give the lease back.
    if leases.released.contains(&wanted.id) {
        drop(leases);
        note_release(inner, session, folder, &held);
        return Err(was_released());
    }
    leases.held.insert(wanted.id, held);
    drop(leases);
    drop(grants);
    Ok(Answer::Leased { epoch })
}

fn share(
    inner: &Inner,
    session: &Arc<SessionState>,
    folder: &Arc<Folder>,
    wanted: &Wanted<'_>,
) -> Result<Held, StorageError> {
    let take = || folder.storage.lease_shared(wanted.name);
    let share = inner.after_silent_holders(session, folder, wanted.name, take)?;
    let last = share.last_epoch();
    if wanted.again.is_some_and(|epoch| epoch != last.0) {
        let detail = "a writer had the folder while the device was away; open the store again";
        return Err(wanted.error(StorageErrorKind::Fenced, detail));
    }
    Ok(Held {
        name: wanted.name.to_string(),
        granted: last,
        local: None,
        _lock: Box::new(share),
    })
}

fn lease(
    inner: &Inner,
    session: &Arc<SessionState>,
    folder: &Arc<Folder>,
    wanted: &Wanted<'_>,
    unnoted: &mut BTreeMap<String, u64>,
) -> Result<Held, StorageError> {
    let notes = Notes::new(&*inner.root, inner.root_epoch, &folder.name, wanted.name);
    let hash = session.token_hash;
    // A scratch folder ends with its session, so nobody would ever read its notes, and their
    // objects would stay.
    let has_notes = !session.is_scratch;
    let last = match has_notes {
        true => notes.read()?.map(|(_, note)| note),
        false => None,
    };
    let taken = unnoted.get(wanted.name).copied().unwrap_or(0);
    let last = last.map(|note| Note {
        local: note.local.max(taken),
        ..note
    });
    let fenced = || {
        let detail = "somebody else had the folder while the device was away; open the store again";
        wanted.error(StorageErrorKind::Fenced, detail)
    };
    match (&last, wanted.again) {
        (Some(note), Some(epoch)) => {
            let is_same = note.token_hash == hash && note.id == wanted.id && note.granted == epoch;
            if !is_same {
                return Err(fenced());
            }
        }
        (None, Some(_)) => return Err(fenced()),
        (Some(note), None) if !note.is_released() && note.token_hash != hash => {
            // The host that held the lease before the server's start may come back within a short
            // time.
            let left = inner.grace_left();
            let came_back = inner.was_given(&folder.name, wanted.name);
            if !left.is_zero() && !came_back && !session.is_scratch {
                let detail = format!(
                    "the device was just started, and keeps the lease for its last holder for \
                     {:.0} s more",
                    left.as_secs_f64().ceil()
                );
                return Err(wanted.error(StorageErrorKind::LeaseHeld, detail));
            }
        }
        (_, None) => {}
    }
    if has_notes && last.is_none() && inner.new_lease_count(&folder.name) >= NEW_MAX {
        let detail = format!(
            "hosts took {NEW_MAX} new leases of this folder since the device was started, and it \
             grants no more new ones until it is started again"
        );
        return Err(wanted.error(StorageErrorKind::InvalidInput, detail));
    }
    let take = || folder.storage.lease(wanted.name);
    let lease = inner.after_silent_holders(session, folder, wanted.name, take)?;
    let local = lease.epoch();
    let granted = match (&last, wanted.again) {
        (Some(note), Some(_)) if local.0 != note.local + 1 && !planted!(AgainAfterOthers) => {
            return Err(fenced());
        }
        (_, Some(epoch)) => epoch,
        (Some(note), None) => local
            .0
            .max(note.granted + u64::from(!planted!(EpochGivenTwice))),
        (None, None) => local.0,
    };
    if has_notes {
        let noted = notes.write(&Note {
            token_hash: hash,
            id: wanted.id,
            granted,
            local: local.0,
        });
        if let Err(error) = noted {
            let follows = last.is_some_and(|note| local.0 == note.local + 1);
            // Without space, the folder may not have kept this epoch, and may give it to others.
            if follows && !error.is_no_space() {
                unnoted.insert(wanted.name.to_string(), local.0);
            }
            return Err(error);
        }
        unnoted.remove(wanted.name);
        inner.note_given(&folder.name, wanted.name, last.is_none());
    }
    Ok(Held {
        name: wanted.name.to_string(),
        granted: Epoch(granted),
        local: Some(local),
        _lock: Box::new(lease),
    })
}

/// Takes a lease or a share back from the session. Returns when others can get it.
pub(super) fn release(inner: &Inner, session: &SessionState, id: [u8; 16]) {
    // Under the lane's lock no change can begin. Once the last lease is released, nothing may
    // write.
    let names = session.names.lock();
    let is_last = {
        let leases = session.leases.lock();
        let is_lease = leases
            .held
            .get(&id)
            .is_some_and(|held| held.local.is_some());
        let count = leases.held.values().filter(|held| held.local.is_some());
        is_lease && count.count() == 1
    };
    if is_last {
        session.end_writers();
    }
    let mut leases = session.leases.lock();
    let held = leases.held.remove(&id);
    if !leases.released.contains(&id) {
        leases.released.push(id);
        if leases.released.len() > RELEASED_MAX {
            leases.released.remove(0);
        }
    }
    drop(leases);
    drop(names);
    if let (Some(held), Some(folder)) = (&held, &session.folder) {
        note_release(inner, session, folder, held);
    }
    drop(held);
}

/// Ends the session, because its host does not need it any more.
pub(super) fn goodbye(inner: &Inner, session: &Arc<SessionState>) {
    let ids: Vec<[u8; 16]> = session.leases.lock().held.keys().copied().collect();
    for id in ids {
        release(inner, session, id);
    }
    session.end(inner.options.end_limit);
}

/// Notes that nobody has the lease, so that a restarted server does not keep it for its last
/// holder.
fn note_release(inner: &Inner, session: &SessionState, folder: &Folder, held: &Held) {
    let Some(local) = held.local.filter(|_| !session.is_scratch) else {
        return;
    };
    let notes = Notes::new(&*inner.root, inner.root_epoch, &folder.name, &held.name);
    let written = notes.write(&Note {
        granted: held.granted.0,
        local: local.0,
        ..Note::RELEASED
    });
    if let Err(error) = written {
        tracing::warn!(%error, "the release of a lease could not be noted");
    }
}

//! The model of leases and epochs (rule S3): holders with programs of calls, which are paused
//! anywhere while others run.

#![allow(dead_code)]

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{
    Epoch, Lease, MemoryStorage, Result, Storage, StorageErrorKind, WriteFile,
};

/// One storage call of a holder. Each holder uses its own object names, except for `CURRENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    Lease,
    Create,
    CreateDirect,
    Append,
    Reserve,
    Sync,
    Truncate,
    SyncObject,
    SyncDir,
    Rename,
    Recycle,
    Delete,
    Publish,
    Replace,
    GiveBack,
}

use Step::*;

/// Calls that take an epoch as an argument instead of using that of a handle.
pub const WITH_EPOCH: [Step; 9] = [
    Create,
    CreateDirect,
    SyncObject,
    SyncDir,
    Rename,
    Recycle,
    Delete,
    Publish,
    Replace,
];

struct Holder {
    number: usize,
    lease: Option<Box<dyn Lease>>,
    epoch: Option<Epoch>,
    file: Option<Arc<dyn WriteFile>>,
    /// The present name of its file.
    name: String,
    /// It was fenced or got no lease, and makes no further calls.
    stopped: bool,
}

impl Holder {
    fn new(number: usize) -> Holder {
        Holder {
            number,
            lease: None,
            epoch: None,
            file: None,
            name: format!("file-{number}"),
            stopped: false,
        }
    }

    fn call(&mut self, storage: &dyn Storage, step: Step, epoch: Epoch) -> Result<()> {
        let file = || self.file.clone().expect("a program creates it first");
        let next = format!("{}x", self.name);
        match step {
            Lease | GiveBack => unreachable!("not a change"),
            Create => self.file = Some(storage.create(epoch, &self.name)?),
            CreateDirect => self.file = Some(storage.create_direct(epoch, &self.name)?),
            Append => {
                file().append(&[b"bytes of ", &[b'0' + self.number as u8]])?;
                // An append may return before the storage has it. The sync then says what came of
                // it.
                if storage.capabilities().pipelined {
                    file().sync()?;
                }
            }
            Reserve => file().reserve(100)?,
            Sync => file().sync()?,
            Truncate => file().truncate_to_position()?,
            SyncObject => storage.sync_object(epoch, &self.name)?,
            SyncDir => storage.sync_dir(epoch)?,
            Rename => {
                storage.rename(epoch, &self.name, &next)?;
                self.name = next;
            }
            Recycle => {
                self.file = Some(storage.recycle(epoch, &self.name, &next)?);
                self.name = next;
            }
            Delete => storage.delete(epoch, &self.name)?,
            Publish => storage.publish(epoch, "NOTES", self.name.as_bytes())?,
            Replace => storage.replace(epoch, "CURRENT", self.name.as_bytes())?,
        }
        Ok(())
    }
}

/// All objects with their bytes, and whether their names would survive a power loss.
pub type Contents = BTreeMap<String, (Vec<u8>, bool)>;

/// The contents of a storage in memory.
pub fn contents(storage: &MemoryStorage) -> Contents {
    let durable = storage.crash(siltstone_storage::CrashPolicy::LoseUnsynced);
    let durable: Vec<String> = durable
        .list()
        .expect("a list")
        .into_iter()
        .map(|object| object.name)
        .collect();
    let listed = storage.list().expect("a list");
    listed
        .into_iter()
        .map(|object| {
            let bytes = storage.read_small(&object.name).expect("its bytes");
            let is_durable = durable.contains(&object.name);
            (object.name, (bytes, is_durable))
        })
        .collect()
}

/// What the holders run on.
pub trait Place {
    /// The storage as this holder sees it.
    fn storage(&self, holder: usize) -> Arc<dyn Storage>;

    /// Takes the lease for a holder. If `expires`, another one has it, and is paused for so long
    /// that its lease expires.
    fn lease(&self, holder: usize, expires: bool) -> Result<Box<dyn Lease>>;

    /// What is stored.
    fn contents(&self) -> Contents;
}

#[derive(Default)]
pub struct Seen {
    pub runs: u64,
    pub fenced: u64,
    pub taken_over: u64,
    pub refused: u64,
}

/// Runs one interleaving, which is given by the numbers of the holders.
///
/// # Errors
/// What violates the rule.
pub fn play(
    place: &dyn Place,
    programs: &[&[Step]],
    order: &[usize],
    expire: bool,
    unfenced: Option<Step>,
    seen: &mut Seen,
) -> std::result::Result<(), String> {
    let mut holders: Vec<Holder> = (0..programs.len()).map(Holder::new).collect();
    let mut at = vec![0; programs.len()];
    let mut newest = Epoch(0);
    seen.runs += 1;
    for number in order {
        let step = programs[*number][at[*number]];
        at[*number] += 1;
        let is_held = holders.iter().any(|other| other.lease.is_some());
        let holder = &mut holders[*number];
        if holder.stopped {
            continue;
        }
        let problem = |what: String| format!("holder {number}, {step:?} in {order:?}: {what}");
        match step {
            Lease => match place.lease(*number, is_held && expire) {
                Ok(lease) => {
                    if is_held && !expire {
                        return Err(problem("granted while another holds it".into()));
                    }
                    if lease.epoch() <= newest {
                        return Err(problem(format!(
                            "epoch {:?} after {newest:?}",
                            lease.epoch()
                        )));
                    }
                    seen.taken_over += u64::from(is_held);
                    newest = lease.epoch();
                    holder.epoch = Some(newest);
                    holder.lease = Some(lease);
                }
                Err(_) if is_held && !expire => {
                    holder.stopped = true;
                    seen.refused += 1;
                }
                Err(e) => return Err(problem(format!("not granted: {e}"))),
            },
            GiveBack => {
                let lease = holder.lease.take();
                let released = lease.map_or(Ok(()), |lease| lease.release());
                released.map_err(|e| problem(format!("not given back: {e}")))?;
            }
            change => {
                let own = holder.epoch.expect("a program takes the lease first");
                let forged = unfenced == Some(change);
                // The contents are compared only where nothing may change.
                let before = (own != newest).then(|| place.contents());
                let epoch = if forged { newest } else { own };
                let result = holder.call(&*place.storage(*number), change, epoch);
                match result {
                    Ok(()) if own == newest => {}
                    Err(e) if own != newest && e.kind == StorageErrorKind::Fenced => {
                        if before != Some(place.contents()) {
                            return Err(problem("fenced, and something changed".into()));
                        }
                        holder.stopped = true;
                        seen.fenced += 1;
                    }
                    Ok(()) => {
                        return Err(problem(format!(
                            "{own:?} changed something after {newest:?}"
                        )));
                    }
                    Err(e) => return Err(problem(format!("{own:?} of {newest:?}: {e}"))),
                }
            }
        }
    }
    Ok(())
}

/// The calls of a writer: a file, its sync, its name, the pointer to it, and its deletion.
pub const WRITER: &[Step] = &[Lease, Create, Append, Sync, SyncDir, Replace, Delete];
/// All other calls that change something, in two programs.
pub const KEEPER: &[Step] = &[
    Lease,
    CreateDirect,
    Reserve,
    Truncate,
    Rename,
    Publish,
    GiveBack,
];
pub const RECYCLER: &[Step] = &[Lease, Create, SyncObject, Recycle, Append, Publish];
/// Three of these programs run in all their interleavings.
pub const SHORT: [&[Step]; 3] = [
    &[Lease, Create, Append, Replace],
    &[Lease, Create, Sync, GiveBack],
    &[Lease, Publish, SyncDir, Replace],
];

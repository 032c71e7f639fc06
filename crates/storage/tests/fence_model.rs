//! Exhaustive tests of leases and epochs (rule S3), with holders that are paused anywhere for any
//! time.
//!
//! Every holder has a program of storage calls, one of which takes the lease. All interleavings of
//! two or three programs run on the real [`MemoryStorage`]; a holder is paused while the others
//! run. After every call the result is compared with the rule. While leases expire, a lease is
//! always granted, with an epoch above all earlier ones. A changing call succeeds if and only if
//! its epoch is the newest; otherwise it is `Fenced`, and nothing in the storage has changed. While
//! leases do not expire, one is granted if and only if nobody holds it.
//!
//! To show that the comparison finds violations, one test lets one kind of call carry the newest
//! epoch instead of its holder's, as if the storage did not fence it. For each kind, some
//! interleaving must detect it.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{
    Epoch, Lease, MemoryStorage, Runtime, Storage, StorageErrorKind, WriteFile,
};

/// One storage call of a holder. Each holder uses its own object names, except for `CURRENT`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Step {
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
const WITH_EPOCH: [Step; 9] = [
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

    fn call(
        &mut self,
        storage: &MemoryStorage,
        step: Step,
        epoch: Epoch,
    ) -> siltstone_storage::Result<()> {
        let file = || self.file.clone().expect("a program creates it first");
        let next = format!("{}x", self.name);
        match step {
            Lease | GiveBack => unreachable!("not a change"),
            Create => self.file = Some(storage.create(epoch, &self.name)?),
            CreateDirect => self.file = Some(storage.create_direct(epoch, &self.name)?),
            Append => file().append(&[b"bytes of ", &[b'0' + self.number as u8]])?,
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
fn contents(storage: &MemoryStorage) -> BTreeMap<String, (Vec<u8>, bool)> {
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

#[derive(Default)]
struct Seen {
    runs: u64,
    fenced: u64,
    taken_over: u64,
    refused: u64,
}

/// Runs one interleaving, which is given by the numbers of the holders.
fn play(
    programs: &[&[Step]],
    order: &[usize],
    expire: bool,
    unfenced: Option<Step>,
    seen: &mut Seen,
) -> Result<(), String> {
    let storage = MemoryStorage::new(&Runtime::threads());
    storage.set_leases_expire(expire);
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
            Lease => match storage.lease("store") {
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
            GiveBack => holder.lease = None,
            change => {
                let own = holder.epoch.expect("a program takes the lease first");
                let forged = unfenced == Some(change);
                // The contents are compared only where nothing may change.
                let before = (own != newest).then(|| contents(&storage));
                let result = holder.call(&storage, change, if forged { newest } else { own });
                match result {
                    Ok(()) if own == newest => {}
                    Err(e) if own != newest && e.kind == StorageErrorKind::Fenced => {
                        if before != Some(contents(&storage)) {
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

/// Runs all interleavings.
fn explore(programs: &[&[Step]], expire: bool, unfenced: Option<Step>) -> Result<Seen, String> {
    fn go(
        programs: &[&[Step]],
        order: &mut Vec<usize>,
        left: &mut [usize],
        run: &mut impl FnMut(&[usize]) -> Result<(), String>,
    ) -> Result<(), String> {
        if left.iter().all(|count| *count == 0) {
            return run(order);
        }
        for number in 0..programs.len() {
            if left[number] > 0 {
                left[number] -= 1;
                order.push(number);
                let result = go(programs, order, left, run);
                order.pop();
                left[number] += 1;
                result?;
            }
        }
        Ok(())
    }
    let mut seen = Seen::default();
    let mut left: Vec<usize> = programs.iter().map(|program| program.len()).collect();
    go(programs, &mut Vec::new(), &mut left, &mut |order| {
        play(programs, order, expire, unfenced, &mut seen)
    })?;
    Ok(seen)
}

/// The calls of a writer: a file, its sync, its name, the pointer to it, and its deletion.
const WRITER: &[Step] = &[Lease, Create, Append, Sync, SyncDir, Replace, Delete];
/// All other calls that change something, in two programs.
const KEEPER: &[Step] = &[
    Lease,
    CreateDirect,
    Reserve,
    Truncate,
    Rename,
    Publish,
    GiveBack,
];
const RECYCLER: &[Step] = &[Lease, Create, SyncObject, Recycle, Append, Publish];
/// Three of these programs run in all their interleavings.
const SHORT: [&[Step]; 3] = [
    &[Lease, Create, Append, Replace],
    &[Lease, Create, Sync, GiveBack],
    &[Lease, Publish, SyncDir, Replace],
];

#[test]
fn only_the_newest_epoch_changes_anything() {
    let pairs = [[WRITER, WRITER], [WRITER, KEEPER], [KEEPER, RECYCLER]];
    for pair in pairs {
        let seen = explore(&pair, true, None).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.runs > 1000 && seen.fenced > 100 && seen.taken_over > 100);
    }
    let seen = explore(&SHORT, true, None).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(seen.runs, 34_650);
    println!(
        "{} interleavings of three, {} leases taken over, {} fenced",
        seen.runs, seen.taken_over, seen.fenced
    );
}

#[test]
fn a_lease_that_does_not_expire_has_one_holder() {
    for pair in [[WRITER, KEEPER], [KEEPER, RECYCLER]] {
        let seen = explore(&pair, false, None).unwrap_or_else(|e| panic!("{e}"));
        assert!(seen.refused > 100 && seen.taken_over == 0);
    }
}

#[test]
fn a_call_that_is_not_fenced_is_found() {
    let all: [&[Step]; 4] = [WRITER, KEEPER, RECYCLER, SHORT[2]];
    for unfenced in WITH_EPOCH {
        let found = all.iter().any(|program| {
            program.contains(&unfenced)
                && explore(&[program, &[Lease]], true, Some(unfenced)).is_err()
        });
        assert!(found, "{unfenced:?} without a fence is not noticed");
    }
}

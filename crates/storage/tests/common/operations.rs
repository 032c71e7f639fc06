//! Random operations on a storage, whose answers can be compared with those of another storage.

use std::sync::Arc;

use proptest::prelude::*;
use siltstone_storage::{
    Epoch, Lease, ReadFile, ReadRange, Result, SharedLease, Storage, StorageErrorKind, WriteFile,
};

/// A call to a storage or to one of its open objects. Names and handles are indices.
#[derive(Clone, Debug)]
pub enum Op {
    Create(usize),
    Recycle(usize, usize),
    /// Opens an object for writing at a position.
    Reopen(usize, u64),
    Rename(usize, usize),
    /// Imports from the side's second storage, or (if true) from the first itself.
    Import(usize, bool, usize),
    Publish(usize, Vec<u8>),
    /// Takes a share of a lease, or (if false) the whole lease.
    Lease(bool),
    Delete(usize),
    Replace(usize, Vec<u8>),
    Open(usize),
    ReadSmall(usize),
    Append(usize, Vec<Vec<u8>>),
    Reserve(usize, u64),
    Truncate(usize),
    Sync(usize),
    SyncDir,
    Read(usize, u64, usize),
    Map(usize),
    CloseWriter(usize),
    CloseReader(usize),
}

/// The last two names are for imports from the other storage, which must not be written.
pub const NAMES: [&str; 8] = ["a", "b", "000001.log", "LOCK.x", "bad name", "c", "x", "y"];

/// The objects that can be imported, by name and length.
const OTHER: [(&str, usize); 3] = [("a", 0), ("b", 300), ("c", 9000)];

/// A random operation.
pub fn op() -> impl Strategy<Value = Op> {
    let name = 0..6usize;
    let any_name = 0..NAMES.len();
    let import = prop_oneof![
        (name.clone(), Just(true), name.clone()),
        (6..NAMES.len(), Just(false), name.clone()),
    ];
    let bytes = prop_oneof![
        prop::collection::vec(any::<u8>(), 0..40),
        (any::<u8>(), 4000usize..9000).prop_map(|(b, n)| vec![b; n]),
    ];
    let handle = 0usize..8;
    prop_oneof![
        4 => name.clone().prop_map(Op::Create),
        2 => (name.clone(), name.clone()).prop_map(|(a, b)| Op::Recycle(a, b)),
        1 => (name.clone(), 0u64..10_000).prop_map(|(n, position)| Op::Reopen(n, position)),
        2 => (name.clone(), name.clone()).prop_map(|(a, b)| Op::Rename(a, b)),
        4 => import.prop_map(|(a, own, b)| Op::Import(a, own, b)),
        1 => (name.clone(), bytes.clone()).prop_map(|(n, b)| Op::Publish(n, b)),
        1 => any::<bool>().prop_map(Op::Lease),
        2 => any_name.clone().prop_map(Op::Delete),
        1 => (name.clone(), bytes.clone()).prop_map(|(n, b)| Op::Replace(n, b)),
        3 => any_name.clone().prop_map(Op::Open),
        2 => any_name.prop_map(Op::ReadSmall),
        10 => (handle.clone(), prop::collection::vec(bytes, 0..4))
            .prop_map(|(h, p)| Op::Append(h, p)),
        2 => (handle.clone(), 0u64..20_000).prop_map(|(h, n)| Op::Reserve(h, n)),
        2 => handle.clone().prop_map(Op::Truncate),
        1 => handle.clone().prop_map(Op::Sync),
        1 => Just(Op::SyncDir),
        8 => (handle.clone(), 0u64..20_000, 0usize..5000).prop_map(|(h, o, n)| Op::Read(h, o, n)),
        2 => handle.clone().prop_map(Op::Map),
        1 => handle.clone().prop_map(Op::CloseWriter),
        1 => handle.prop_map(Op::CloseReader),
    ]
}

/// One side of the comparison: a storage and its open handles.
pub struct Side {
    storage: Arc<dyn Storage>,
    /// Objects for imports: `a`, `b` and `c`, as in [`OTHER`].
    other: Arc<dyn Storage>,
    shares: Vec<Box<dyn SharedLease>>,
    _lease: Box<dyn Lease>,
    epoch: Epoch,
    writers: Vec<Arc<dyn WriteFile>>,
    readers: Vec<Arc<dyn ReadFile>>,
}

/// The answer of an operation, in a form that can be compared.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    Done,
    Failed(StorageErrorKind, Option<u64>),
    Bytes(Vec<u8>),
    State(String, u64, u64),
    NoHandle,
}

impl Side {
    /// The storage to compare, and another one for imports.
    pub fn new(storage: Arc<dyn Storage>, other: Arc<dyn Storage>) -> Side {
        for (name, len) in OTHER {
            if other.open(name).is_err() {
                let lease = other.lease("writer").expect("free");
                let file = other.create(lease.epoch(), name).expect("free");
                file.append(&[&vec![len as u8; len]]).expect("room");
                file.sync().expect("sound");
            }
        }
        let lease = storage.lease("writer").expect("free");
        Side {
            epoch: lease.epoch(),
            _lease: lease,
            storage,
            other,
            shares: Vec::new(),
            writers: Vec::new(),
            readers: Vec::new(),
        }
    }

    fn answer<T>(result: Result<T>, f: impl FnOnce(T) -> Answer) -> Answer {
        result.map_or_else(|e| Answer::Failed(e.kind, e.offset), f)
    }

    fn add_writer(&mut self, w: Arc<dyn WriteFile>) -> Answer {
        let answer = Answer::State(w.name().into(), w.position(), w.len());
        self.writers.push(w);
        answer
    }

    /// Makes a call, and returns its answer.
    pub fn apply(&mut self, op: &Op) -> Answer {
        let e = self.epoch;
        let done = |()| Answer::Done;
        match op {
            Op::Create(n) => match self.storage.create(e, NAMES[*n]) {
                Ok(w) => self.add_writer(w),
                Err(e) => Answer::Failed(e.kind, e.offset),
            },
            Op::Recycle(a, b) => match self.storage.recycle(e, NAMES[*a], NAMES[*b]) {
                Ok(w) => {
                    // An object has one writer. The one that finished it must not continue.
                    self.writers.clear();
                    self.add_writer(w)
                }
                Err(e) => Answer::Failed(e.kind, e.offset),
            },
            Op::Reopen(n, position) => match self.storage.reopen(e, NAMES[*n], *position) {
                Ok(w) => {
                    self.writers.clear();
                    self.add_writer(w)
                }
                Err(e) => Answer::Failed(e.kind, e.offset),
            },
            Op::Rename(a, b) => Side::answer(self.storage.rename(e, NAMES[*a], NAMES[*b]), done),
            Op::Import(n, own, from) => {
                let other = if *own { &self.storage } else { &self.other };
                Side::answer(
                    self.storage.import(e, NAMES[*n], &**other, NAMES[*from]),
                    done,
                )
            }
            Op::Publish(n, bytes) => Side::answer(self.storage.publish(e, NAMES[*n], bytes), done),
            Op::Lease(shared) => {
                if *shared {
                    Side::answer(self.storage.lease_shared("other"), |share| {
                        self.shares.push(share);
                        Answer::Done
                    })
                } else {
                    let answer = Side::answer(self.storage.lease("other"), |_| Answer::Done);
                    self.shares.pop();
                    answer
                }
            }
            Op::Delete(n) => Side::answer(self.storage.delete(e, NAMES[*n]), done),
            Op::Replace(n, bytes) => Side::answer(self.storage.replace(e, NAMES[*n], bytes), done),
            Op::ReadSmall(n) => Side::answer(self.storage.read_small(NAMES[*n]), Answer::Bytes),
            Op::SyncDir => Side::answer(self.storage.sync_dir(e), done),
            Op::Open(n) => match self.storage.open(NAMES[*n]) {
                Ok(r) => {
                    let answer = Answer::State(r.name().into(), 0, r.len());
                    self.readers.push(r);
                    answer
                }
                Err(e) => Answer::Failed(e.kind, e.offset),
            },
            Op::Append(h, parts) => {
                let Some(w) = self.writers.get(*h) else {
                    return Answer::NoHandle;
                };
                let parts: Vec<&[u8]> = parts.iter().map(Vec::as_slice).collect();
                Side::answer(w.append(&parts), |()| {
                    Answer::State(w.name().into(), w.position(), w.len())
                })
            }
            Op::Reserve(h, len) => {
                let Some(w) = self.writers.get(*h) else {
                    return Answer::NoHandle;
                };
                Side::answer(w.reserve(*len), |()| {
                    Answer::State(w.name().into(), w.position(), w.len())
                })
            }
            Op::Truncate(h) => {
                let Some(w) = self.writers.get(*h) else {
                    return Answer::NoHandle;
                };
                Side::answer(w.truncate_to_position(), |()| {
                    Answer::State(w.name().into(), w.position(), w.len())
                })
            }
            Op::Sync(h) => {
                let Some(w) = self.writers.get(*h) else {
                    return Answer::NoHandle;
                };
                w.start_writeback(0, w.len());
                Side::answer(w.sync(), done)
            }
            Op::Read(h, offset, n) => {
                let Some(r) = self.readers.get(*h) else {
                    return Answer::NoHandle;
                };
                let (mut a, mut b) = (vec![0; *n], vec![0; *n / 2]);
                let mut ranges = [
                    ReadRange {
                        offset: *offset,
                        buf: &mut a,
                    },
                    ReadRange {
                        offset: *offset / 2,
                        buf: &mut b,
                    },
                ];
                let result = r.read_ranges(&mut ranges);
                Side::answer(result, |()| Answer::Bytes([a, b].concat()))
            }
            Op::Map(h) => {
                // A new handle is opened, because a mapping of an object that is written meanwhile
                // may differ.
                let Some(r) = self.readers.get(*h) else {
                    return Answer::NoHandle;
                };
                let Ok(r) = self.storage.open(r.name()) else {
                    return Answer::NoHandle;
                };
                let Some(map) = r.map().expect("maps work") else {
                    assert!(!self.storage.capabilities().maps);
                    let mut bytes = vec![0; r.len() as usize];
                    return Side::answer(r.read_at(0, &mut bytes), |()| Answer::Bytes(bytes));
                };
                let mut bytes = vec![0; map.len()];
                assert!(map.copy_to(0, &mut bytes) && !map.failed());
                assert_eq!(map.crc32c(0, bytes.len()), Some(crc32c::crc32c(&bytes)));
                Answer::Bytes(bytes)
            }
            Op::CloseWriter(h) => {
                if *h < self.writers.len() {
                    self.writers.remove(*h);
                }
                Answer::Done
            }
            Op::CloseReader(h) => {
                if *h < self.readers.len() {
                    self.readers.remove(*h);
                }
                Answer::Done
            }
        }
    }

    /// Whether a file that is written has failed because its object was lost: nobody asks for the
    /// result of its last appends, and they are not there.
    #[allow(dead_code)]
    pub fn has_lost_writer(&self) -> bool {
        let failure = |file: &Arc<dyn WriteFile>| file.append(&[]).err();
        let mut failures = self.writers.iter().filter_map(failure);
        failures.any(|error| error.kind == StorageErrorKind::Closed)
    }

    /// Closes all open objects.
    #[allow(dead_code)]
    pub fn close_all(&mut self) {
        self.writers.clear();
        self.readers.clear();
    }

    /// All objects with their bytes.
    pub fn contents(&self) -> Vec<(String, u64, Vec<u8>)> {
        let objects = self.storage.list().expect("list");
        objects
            .into_iter()
            .map(|o| {
                (
                    o.name.clone(),
                    o.len,
                    self.storage.read_small(&o.name).expect("read"),
                )
            })
            .collect()
    }
}

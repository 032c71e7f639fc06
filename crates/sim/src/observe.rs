//! The history: a storage between store and medium that records every append to the log.
//!
//! [`Observed`] forwards every call. It decodes the record of every append to a log segment and
//! adds it to the [`History`] *before* the append happens. So the history has the store's own
//! order, even with concurrent writers, and it includes records in flight at a crash. The contents
//! of a batch are taken from its client's announcement ([`History::announce`]). A record with
//! entries that no client announced, or with a number that does not ascend, ends the run. An append
//! that did not reach the storage had no effect, so its record is taken back.
//!
//! Threading: the history is under a std mutex that is not held over storage calls.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard};

use siltstone::batch::{Entries, EntryKind};
use siltstone::log::RecordKind;
use siltstone::log::format::{HAS_POSITION, MAGIC, header_bytes, parse_segment_name};
use siltstone::version::Edit;
use siltstone_storage::storage::InjectedFault;
use siltstone_storage::{
    Capabilities, Epoch, Lease, MemoryStorage, ObjectMeta, ReadFile, Result, SharedLease, Storage,
    StorageErrorKind, WriteFile,
};

use crate::model::{Event, Model, Op, Record, TablePairs};
use crate::settings::SettingsModel;

/// The writes and the promises.
#[derive(Clone, Default)]
pub struct History {
    /// Everything that was appended to the log.
    pub model: Model,
    /// Batches that clients are about to write or have in flight.
    announced: Vec<Vec<Op>>,
    /// Announced tables by the digest of their blocks, because an ingest gives them new names.
    tables: BTreeMap<u128, TablePairs>,
    /// The settings of keyspaces.
    pub settings: SettingsModel,
    /// A keyspace whose drop found no space for a record and poisoned the store. The manifest may
    /// still have the drop when it is read again.
    pub doubtful_drop: Option<u32>,
    /// The largest number that was given before the last crash, also to writes that were lost
    /// since. The log may not give it again.
    pub given: u64,
    /// Largest number acknowledged.
    pub acked: u64,
    /// Largest number acknowledged as synced.
    pub synced: u64,
    /// For each record, by its first number: what was acknowledged as synced when it was appended.
    /// The log knew at least that, whatever its records say.
    pub synced_before: BTreeMap<u64, u64>,
}

impl History {
    /// Announces a write, as one batch.
    pub fn announce(&mut self, ops: Vec<Op>) {
        self.announced.push(ops);
    }

    /// Removes an announcement that was refused before it reached the log. Does nothing if it is in
    /// the log.
    pub fn withdraw(&mut self, ops: &[Op]) {
        if let Some(at) = self.announced.iter().position(|a| a == ops) {
            self.announced.swap_remove(at);
        }
    }

    /// Forgets announcements after a crash or close, because no write is in flight.
    pub fn forget_announced(&mut self) {
        self.announced.clear();
    }

    /// Announces the contents of the table with this digest of its blocks, which may be ingested.
    pub fn announce_table(&mut self, digest: u128, pairs: TablePairs) {
        self.tables.insert(digest, pairs);
    }

    /// Whether a table with this digest was announced.
    pub fn knows_table(&self, digest: u128) -> bool {
        self.tables.contains_key(&digest)
    }

    /// The contents of an ingest's record: for each keyspace its runs, with the announced contents
    /// of their tables.
    fn ingest(&self, body: &[u8]) -> Event {
        let edit = Edit::decode(body).expect("an ingest's body").edit;
        let parts = edit.keyspaces.iter().map(|keyspace| {
            let mut runs: BTreeMap<u64, Vec<_>> = BTreeMap::new();
            for add in &keyspace.add {
                let pairs = self.tables.get(&add.table.digest).unwrap_or_else(|| {
                    panic!(
                        "an ingest of {}, of which nobody announced what it holds",
                        add.table.name
                    )
                });
                assert_eq!(add.level, 0, "an ingest below level 0");
                let run = add.run.expect("an ingested table is in a run");
                runs.entry(run.seqs.lo)
                    .or_default()
                    .extend(pairs.iter().cloned());
            }
            assert!(
                runs.keys().copied().eq(0..runs.len() as u64),
                "numbers of an ingest's runs that do not meet: {runs:?}"
            );
            (keyspace.id, runs.into_values().map(Arc::new).collect())
        });
        Event::Ingest(parts.collect())
    }

    fn group(&mut self, bodies: &[&[u8]]) -> Vec<Op> {
        let mut all = Vec::new();
        for body in bodies {
            let ops: Vec<Op> = Entries::new(body)
                .map(|entry| {
                    let entry = entry.unwrap_or_else(|bad| {
                        panic!("the log was given a batch that cannot be read: {bad:?}")
                    });
                    match entry.kind {
                        EntryKind::Put => {
                            Op::Put(entry.keyspace, entry.key.into(), entry.value.into())
                        }
                        EntryKind::Delete => Op::Delete(entry.keyspace, entry.key.into()),
                        EntryKind::RangeDelete => {
                            Op::DeleteRange(entry.keyspace, entry.key.into(), entry.value.into())
                        }
                    }
                })
                .collect();
            let at = self
                .announced
                .iter()
                .position(|announced| *announced == ops);
            let at = at
                .unwrap_or_else(|| panic!("the log was given a batch that nobody wrote: {ops:?}"));
            all.extend(self.announced.swap_remove(at));
        }
        all
    }

    /// Takes back the record of an append that had no effect, so that the store may give its
    /// numbers again.
    fn take_back(&mut self, last: u64) {
        let Some(record) = self.model.records().last().filter(|r| r.last() == last) else {
            panic!("an append that failed is not the last one: {last}");
        };
        if let Event::Create(..) = &record.event {
            self.settings.withdraw();
        }
        let before = record.first.saturating_sub(1);
        self.model.cut(before);
    }

    /// Records an append to a log segment: a header, or one whole record. Returns the record's last
    /// number.
    fn appended(&mut self, parts: &[&[u8]]) -> Option<u64> {
        let head = parts[0];
        if head.starts_with(&MAGIC) {
            return None;
        }
        let head_bytes = head.first_chunk().map(header_bytes);
        assert_eq!(
            Some(head.len()),
            head_bytes,
            "an append to the log that is neither a segment's header nor a record"
        );
        let payload_bytes = u32::from_le_bytes(head[4..8].try_into().expect("four bytes")) as usize;
        let word = u64::from_le_bytes(head[8..16].try_into().expect("eight bytes"));
        let (first, kind) = (word >> 8, head[8] & !HAS_POSITION);
        assert!(
            first > self.given,
            "the log gives number {first} again: numbers up to {} were given before the store was \
            opened",
            self.given
        );
        let mut bodies = Vec::new();
        let mut left = payload_bytes;
        for part in &parts[1..] {
            if left == 0 {
                break;
            }
            bodies.push(*part);
            left -= part.len();
        }
        let whole = bodies.concat();
        let number = |bytes: &[u8]| u32::from_le_bytes(bytes[..4].try_into().expect("four bytes"));
        let event = match RecordKind::from_number(kind) {
            Some(RecordKind::Group) => Event::Group(self.group(&bodies)),
            Some(RecordKind::KeyspaceCreate) => Event::Create(
                number(&whole),
                // Options may follow, after a byte that never occurs in a name.
                whole[4..]
                    .split(|byte| *byte == 0xff)
                    .next()
                    .map(|name| String::from_utf8(name.to_vec()).expect("a keyspace's name"))
                    .expect("a split has a first part"),
            ),
            Some(RecordKind::KeyspaceDrop) => Event::Drop(number(&whole)),
            Some(RecordKind::Ingest) => self.ingest(&whole),
            None => panic!("a log record of kind {kind}"),
        };
        if let Event::Create(id, _) = &event {
            self.settings.created(*id);
        }
        self.synced_before.insert(first, self.synced);
        self.model.push(Record { first, event });
        Some(self.model.last())
    }
}

/// A shared history.
pub type SharedHistory = Arc<Mutex<History>>;

/// The history, even if a task panicked while it held it.
pub fn lock(history: &SharedHistory) -> MutexGuard<'_, History> {
    history.lock().unwrap_or_else(|e| e.into_inner())
}

/// The storage; see the module.
pub struct Observed {
    inner: Arc<dyn Storage>,
    history: SharedHistory,
    journal: MemoryStorage,
}

impl Observed {
    /// Records the writes to `inner`, and notes the given numbers in the journal of `journal`.
    pub fn new(
        inner: Arc<dyn Storage>,
        history: SharedHistory,
        journal: MemoryStorage,
    ) -> Observed {
        Observed {
            inner,
            history,
            journal,
        }
    }

    fn file(&self, name: &str, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        match parse_segment_name(name) {
            Some(_) => Arc::new(ObservedLog {
                inner: file,
                history: self.history.clone(),
                journal: self.journal.clone(),
            }),
            None => file,
        }
    }
}

impl Storage for Observed {
    fn location(&self) -> String {
        self.inner.location()
    }
    fn describe(&self) -> String {
        self.inner.describe()
    }
    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>> {
        self.inner.lease(name)
    }
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>> {
        self.inner.lease_shared(name)
    }
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(name, self.inner.create(epoch, name)?))
    }
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(name, self.inner.create_direct(epoch, name)?))
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(self.file(new, self.inner.recycle(epoch, old, new)?))
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open(name)
    }
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open_direct(name)
    }
    fn check_direct(&self) -> Result<()> {
        self.inner.check_direct()
    }
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        self.inner.read_small(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.inner.list()
    }
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.delete(epoch, name)
    }
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()> {
        self.inner.rename(epoch, old, new)
    }
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        self.inner.import(epoch, name, from, from_name)
    }
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.publish(epoch, name, bytes)
    }
    fn base(&self) -> Option<&dyn std::any::Any> {
        self.inner.base()
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.sync_object(epoch, name)
    }
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.rewrite_object(epoch, name)
    }
    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_parents(epoch)
    }
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_dir(epoch)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.replace(epoch, name, bytes)
    }
    fn open_objects_max(&self) -> Option<u64> {
        self.inner.open_objects_max()
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
    fn inject_lost_names(&self) -> bool {
        self.inner.inject_lost_names()
    }
    fn inject_lost_bytes(&self, name: &str) -> bool {
        self.inner.inject_lost_bytes(name)
    }
}

struct ObservedLog {
    inner: Arc<dyn WriteFile>,
    history: SharedHistory,
    journal: MemoryStorage,
}

impl WriteFile for ObservedLog {
    fn name(&self) -> &str {
        self.inner.name()
    }
    fn position(&self) -> u64 {
        self.inner.position()
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let given = lock(&self.history).appended(parts);
        if let Some(number) = given {
            self.journal.mark(format!("g{number}"));
        }
        self.inner.append(parts).inspect_err(|error| {
            if let Some(number) = given
                && error.kind == StorageErrorKind::Unreachable
            {
                lock(&self.history).take_back(number);
            }
        })
    }
    fn reserve(&self, len: u64) -> Result<()> {
        self.inner.reserve(len)
    }
    fn len(&self) -> u64 {
        self.inner.len()
    }
    fn sync(&self) -> Result<()> {
        self.inner.sync()
    }
    fn start_writeback(&self, from: u64, len: u64) {
        self.inner.start_writeback(from, len);
    }
    fn truncate_to_position(&self) -> Result<()> {
        self.inner.truncate_to_position()
    }
    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        self.inner.inject(fault)
    }
}

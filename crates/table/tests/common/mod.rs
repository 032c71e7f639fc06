//! Shared by the tests of jobs: a naive model of contents, and inputs made from it.
#![allow(dead_code)]

pub mod cases;
pub mod foreign;
pub mod forged;

use std::sync::Arc;

use siltstone_storage::{Epoch, Storage};
use siltstone_table::error::TableError;
use siltstone_table::exec::{EntryStream, InputMap, StreamEntry, StreamSource};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, LAYOUT_VERSION, LOCATION,
    OutputLimits, OutputPrefix,
};
use siltstone_table::key::compare_internal;
use siltstone_table::merge::table::InputTable;
use siltstone_table::rangedel::joined;
use siltstone_table::retain::RangeDelete;
use siltstone_table::writer::{TableWriter, WriterOptions};

/// The epoch of the lease in tests.
pub fn epoch() -> Epoch {
    Epoch(3)
}

/// Entries and range deletes in any order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Content {
    pub entries: Vec<(Vec<u8>, u64, Vec<u8>)>,
    pub range_deletes: Vec<RangeDelete>,
}

impl Content {
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty() && self.range_deletes.is_empty()
    }

    pub fn extend(&mut self, other: &Content) {
        self.entries.extend(other.entries.iter().cloned());
        self.range_deletes
            .extend(other.range_deletes.iter().cloned());
    }

    pub fn keys(&self) -> Vec<Vec<u8>> {
        self.entries.iter().map(|e| e.0.clone()).collect()
    }

    pub fn sorted(&self) -> Vec<(Vec<u8>, u64, Vec<u8>)> {
        let mut entries = self.entries.clone();
        entries.sort_by(|a, b| compare_internal(&a.0, a.1, &b.0, b.1));
        entries
    }

    /// The value that a reader at `at` sees, by definition.
    pub fn get(&self, key: &[u8], at: u64) -> Option<&[u8]> {
        let newest = self
            .entries
            .iter()
            .filter(|e| e.0 == key && e.1 >> 8 <= at)
            .max_by_key(|e| e.1)?;
        let covers =
            |r: &&RangeDelete| r.start.as_slice() <= key && key < r.end.as_slice() && r.seq <= at;
        let deleted = self
            .range_deletes
            .iter()
            .filter(covers)
            .any(|r| r.seq > newest.1 >> 8);
        (!deleted && newest.1 as u8 == 1).then_some(newest.2.as_slice())
    }

    fn seqs(&self) -> (u64, u64) {
        let all = || {
            self.entries
                .iter()
                .map(|e| e.1 >> 8)
                .chain(self.range_deletes.iter().map(|r| r.seq))
        };
        (all().min().unwrap_or(0), all().max().unwrap_or(0))
    }
}

/// A job without inputs that drops everything that it may drop.
pub fn a_job(published: u64) -> Job {
    Job {
        keyspace: 1,
        layout_version: LAYOUT_VERSION,
        inputs: vec![],
        bounds: KeyBounds::everything(),
        hard_cuts: vec![],
        soft_cuts: vec![],
        published,
        snapshots: vec![],
        rules: DropRules::ALL,
        now_us: 0,
        older: vec![],
        limits: OutputLimits::new(1 << 12, 512, false),
        format: FormatOptions::default(),
        extensions: vec![],
        output: OutputPrefix {
            epoch: epoch().0,
            attempt: 1,
        },
    }
}

/// Writes a table and describes it as an input. It is at location 0, like all tables of a store.
pub fn table_input(
    inputs: &mut InputMap,
    storage: &Arc<impl Storage + ?Sized>,
    name: &str,
    content: &Content,
) -> Input {
    let file = storage.create(epoch(), name).unwrap();
    let options = WriterOptions {
        block_size_bytes: 512,
        ..WriterOptions::default()
    };
    let mut writer = TableWriter::new(file.clone(), options).unwrap();
    for (key, trailer, value) in content.sorted() {
        writer.add(&key, trailer, &value).unwrap();
    }
    let deletes = content
        .range_deletes
        .iter()
        .map(|r| (r.start.clone(), r.end.clone(), r.seq));
    writer.set_range_deletes(joined(deletes)).unwrap();
    let summary = writer.finish().unwrap();
    file.sync().unwrap();
    storage.sync_dir(epoch()).unwrap();
    inputs.add_table(0, name, storage.open(name).unwrap());
    let (min_seq, max_seq) = content.seqs();
    Input {
        kind: InputKind::Table,
        location: 0,
        name: name.into(),
        run: 0,
        len_bytes: summary.file_bytes,
        digest: summary.digest,
        min_seq,
        max_seq,
        clip: KeyBounds::everything(),
        seq_override: None,
    }
}

/// Makes a stream of the content and describes it as an input.
pub fn stream_input(inputs: &mut InputMap, name: &str, content: &Content) -> Input {
    inputs.add_stream(
        LOCATION,
        name,
        Arc::new(Stream(Arc::new((
            content.sorted(),
            content.range_deletes.clone(),
        )))),
    );
    let (min_seq, max_seq) = content.seqs();
    Input::of_stream(name, min_seq..=max_seq)
}

type Sorted = (Vec<(Vec<u8>, u64, Vec<u8>)>, Vec<RangeDelete>);

pub struct Stream(pub Arc<Sorted>);

struct Open {
    content: Arc<Sorted>,
    bounds: KeyBounds,
    at: usize,
}

impl StreamSource for Stream {
    fn key_bounds(&self) -> Option<(Vec<u8>, Vec<u8>)> {
        Some((self.0.0.first()?.0.clone(), self.0.0.last()?.0.clone()))
    }

    fn range_deletes(&self) -> Result<Vec<RangeDelete>, TableError> {
        Ok(self.0.1.clone())
    }

    fn open(&self, bounds: &KeyBounds) -> Result<Box<dyn EntryStream>, TableError> {
        Ok(Box::new(Open {
            content: self.0.clone(),
            bounds: bounds.clone(),
            at: 0,
        }))
    }
}

impl EntryStream for Open {
    fn next_entry(&mut self) -> Result<Option<StreamEntry<'_>>, TableError> {
        while let Some((key, trailer, value)) = self.content.0.get(self.at) {
            self.at += 1;
            if self.bounds.contains(key) {
                return Ok(Some(StreamEntry {
                    user_key: key,
                    trailer: *trailer,
                    value,
                }));
            }
        }
        Ok(None)
    }
}

/// The contents of a table, read block by block.
pub fn read_table(storage: &dyn Storage, name: &str) -> Content {
    use siltstone_table::block::{Decoded, open_stored};
    let file = storage.open(name).unwrap();
    let table = InputTable::open(file.clone()).unwrap();
    let mut content = Content::default();
    for block in 0..table.block_count() {
        let place = table.place(block);
        let mut stored = vec![0; place.stored_bytes() as usize];
        file.read_at(place.start, &mut stored).unwrap();
        let mut scratch = vec![];
        let view = open_stored(
            &stored,
            (place.anchor - place.start) as usize,
            true,
            &mut scratch,
        )
        .unwrap();
        let mut all = Decoded::default();
        view.decode_all(&mut all).unwrap();
        for i in 0..all.len() {
            content.entries.push((
                all.key(i).to_vec(),
                all.trailers[i],
                view.value(i).unwrap().to_vec(),
            ));
        }
    }
    content
        .range_deletes
        .extend_from_slice(table.range_deletes().fragments());
    content
}

/// The contents of all tables of an outcome.
pub fn read_all(storage: &dyn Storage, outcome: &Outcome) -> Content {
    let mut all = Content::default();
    outcome
        .tables
        .iter()
        .for_each(|t| all.extend(&read_table(storage, &t.name)));
    all
}

/// The bytes of an outcome's tables.
pub fn files(storage: &dyn Storage, outcome: &Outcome) -> Vec<Vec<u8>> {
    outcome
        .tables
        .iter()
        .map(|t| storage.read_small(&t.name).unwrap())
        .collect()
}

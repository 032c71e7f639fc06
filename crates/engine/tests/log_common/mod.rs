//! The parts that the log's tests share: a log in memory, records with a number, and replay into a
//! list.
#![allow(dead_code)]

use std::sync::Arc;

use siltstone::Result;
use siltstone::batch::{BatchBody, Entries};
use siltstone::log::{
    LogConfig, LogOptions, LogWriter, Position, RecordKind, ReplayOptions, ReplayReport, replay,
};
use siltstone_storage::{Epoch, MemoryStorage, Runtime, Storage};

pub const STORE_ID: u64 = 0x1122_3344_5566_7788;

/// A small random generator, so that every choice comes from a seed that a failure can print.
pub struct Rng(pub u64);

impl Rng {
    pub fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
}

pub fn memory() -> (Runtime, MemoryStorage) {
    let runtime = Runtime::threads();
    let storage = MemoryStorage::new(&runtime);
    (runtime, storage)
}

pub fn config(runtime: &Runtime, storage: Arc<dyn Storage>, segment_bytes: u64) -> LogConfig {
    LogConfig {
        storage,
        epoch: Epoch(0),
        runtime: runtime.clone(),
        store_id: STORE_ID,
        options: LogOptions {
            segment_bytes,
            recycle_count: 2,
        },
        reserve: None,
        last_known_segment: 0,
        on_poison: Box::new(|_| {}),
    }
}

pub fn start(runtime: &Runtime, storage: &MemoryStorage, segment_bytes: u64) -> LogWriter {
    LogWriter::start(config(runtime, Arc::new(storage.clone()), segment_bytes)).unwrap()
}

/// A batch whose only entry has `number`, with a value of `value_bytes`.
pub fn batch(number: u64, value_bytes: usize) -> BatchBody {
    let mut batch = BatchBody::new();
    let value: Vec<u8> = (0..value_bytes)
        .map(|i| (number as usize * 31 + i) as u8)
        .collect();
    batch.put(1, &number.to_be_bytes(), &value).unwrap();
    batch
}

/// Appends the batch with `number`, which is also its sequence number.
pub fn append(log: &LogWriter, number: u64, value_bytes: usize) -> Result<Position> {
    log.append(
        RecordKind::Group,
        number,
        1,
        &[batch(number, value_bytes).body()],
    )
}

/// What replay returned: the number of each record, and where it is.
#[derive(Debug, Default, PartialEq)]
pub struct Found {
    pub numbers: Vec<u64>,
    pub places: Vec<(Position, Position)>,
}

pub fn read(
    storage: &dyn Storage,
    start_segment: u32,
    synced: Position,
) -> Result<(Found, ReplayReport)> {
    let mut found = Found::default();
    let options = ReplayOptions {
        synced,
        ..ReplayOptions::from_segment(start_segment, STORE_ID)
    };
    let report = replay(storage, &options, &mut |record| {
        assert_eq!(record.kind, RecordKind::Group);
        let entries: Vec<_> = Entries::new(record.payload).map(|e| e.unwrap()).collect();
        assert_eq!(entries.len() as u64, record.sequence_count);
        let number = u64::from_be_bytes(entries[0].key.try_into().unwrap());
        assert_eq!(number, record.first_sequence);
        assert_eq!(batch(number, entries[0].value.len()).body(), record.payload);
        found.numbers.push(number);
        found.places.push((record.position, record.end));
        Ok(())
    })?;
    Ok((found, report))
}

/// All bytes of an object.
pub fn bytes_of(storage: &dyn Storage, name: &str) -> Vec<u8> {
    storage.read_small(name).unwrap()
}

/// A storage with these objects, all synced.
pub fn storage_of(runtime: &Runtime, objects: &[(String, Vec<u8>)]) -> MemoryStorage {
    let storage = MemoryStorage::new(runtime);
    for (name, bytes) in objects {
        let file = storage.create(Epoch(0), name).unwrap();
        file.append(&[bytes]).unwrap();
        file.sync().unwrap();
    }
    storage.sync_dir(Epoch(0)).unwrap();
    storage
}

/// All objects and their bytes.
pub fn objects_of(storage: &dyn Storage) -> Vec<(String, Vec<u8>)> {
    let objects = storage.list().unwrap();
    objects
        .into_iter()
        .map(|o| (o.name.clone(), bytes_of(storage, &o.name)))
        .collect()
}

//! Writes: fills, batches, deletes and a queue.

use super::{Operation, Result, Tools};
use crate::engine::Write;
use crate::generate::keys::KeyBuffer;
use crate::generate::pick::Pick;
use crate::measure::Done;
use crate::settings::Kind;

/// Puts records one by one.
pub(in crate::run) struct Fill {
    /// The records of this thread.
    pub pick: Pick,
    /// The records of the store.
    pub records: u64,
    /// How many this thread still puts.
    pub left: u64,
}

impl Operation for Fill {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let record = self.pick.next(self.records);
        tools.put(record, Kind::Put).map(Some)
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::Put)
    }
}

/// Puts records in batches.
pub(in crate::run) struct Batches {
    fill: Fill,
    /// The entries of a batch.
    entries: usize,
    /// The keys and values of the batch.
    buffers: Vec<(Box<KeyBuffer>, usize, Vec<u8>)>,
    records: Vec<u64>,
}

impl Batches {
    pub fn new(fill: Fill, entries: usize) -> Batches {
        Batches {
            fill,
            entries,
            buffers: Vec::new(),
            records: Vec::new(),
        }
    }
}

impl Operation for Batches {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        let count = self.fill.left.min(self.entries as u64) as usize;
        if count == 0 {
            return Ok(None);
        }
        self.fill.left -= count as u64;
        self.records.clear();
        for index in 0..count {
            let record = self.fill.pick.next(self.fill.records);
            self.records.push(record);
            if self.buffers.len() == index {
                self.buffers.push((tools.key.clone(), 0, Vec::new()));
            }
            let (key, bytes, value) = &mut self.buffers[index];
            tools.values.write(record, tools.versions.next(), value);
            *bytes = tools.keys.present(record, key).len();
        }
        let writes: Vec<Write<'_>> = self.buffers[..count]
            .iter()
            .map(|(key, bytes, value)| Write::Put(&key[..*bytes], value))
            .collect();
        tools.session.write(&writes, tools.sync)?;
        for record in &self.records {
            tools.population.add(*record);
        }
        let sizes = self.buffers[..count].iter();
        Ok(Some(Done {
            kind: Kind::Batch,
            operations: count as u64,
            written_bytes: sizes
                .map(|(_, key, value)| (key + value.len()) as u64)
                .sum(),
            read_bytes: 0,
        }))
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::Batch)
    }
}

/// Deletes random records.
pub(in crate::run) struct Deletes {
    pub pick: Pick,
    pub records: u64,
    pub left: u64,
}

impl Operation for Deletes {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let record = self.pick.next(self.records);
        tools.delete(record).map(Some)
    }

    fn kind(&self) -> Option<Kind> {
        Some(Kind::Delete)
    }
}

/// Puts at the tail of a queue and deletes at its head, in turn. Each thread has a queue of its
/// own: the records whose number is its own modulo the number of threads. The queue keeps its
/// length once it has it.
pub(in crate::run) struct Queue {
    /// The next record of the tail, and the step from one record of this thread to the next.
    pub tail: u64,
    /// The record at the head.
    pub head: u64,
    pub step: u64,
    /// The records of the queue when it is full.
    pub length: u64,
    pub left: u64,
}

impl Operation for Queue {
    fn step(&mut self, tools: &mut Tools<'_>) -> Result<Option<Done>> {
        if self.left == 0 {
            return Ok(None);
        }
        self.left -= 1;
        let length = (self.tail - self.head) / self.step;
        if length > self.length {
            let record = self.head;
            self.head += self.step;
            return tools.delete(record).map(Some);
        }
        let record = self.tail;
        self.tail += self.step;
        tools.put(record, Kind::Put).map(Some)
    }
}

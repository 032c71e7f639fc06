//! What the server measures on its machine: its storage, and small merges for hosts that ask.
//!
//! Invariants: at most one merge at a time is measured, and the storage is measured once. Each
//! measurement is bounded in bytes. If the storage cannot be measured, its rates count as not
//! known, because a full disk must not keep a device from serving.
//!
//! Threading: a measurement runs in the task of the connection that asks. Its lock is held
//! meanwhile, and only requests for the same kind of measurement wait for that lock.

use siltstone_storage::{Result, StorageError, StorageErrorKind};
use siltstone_table::{Codec, TableError};

use super::Inner;
use crate::probe::{Format, Machine, MergeRate};

/// The object that is written to measure the storage.
const OBJECT: &str = "probe";

/// The number of bytes of that object, and of each piece in which it is written and read.
const STORAGE_BYTES: u64 = 8 << 20;
const PIECE_BYTES: usize = 1 << 20;

impl Inner {
    /// Describes the machine. The first call measures the storage.
    pub(super) fn machine(&self) -> Machine {
        let mut known = self.measured.lock();
        let rates = *known.get_or_insert_with(|| {
            let rates = self.measure_storage();
            let _ = self.root.delete(self.root_epoch, OBJECT);
            rates.unwrap_or_else(|error| {
                tracing::warn!(%error, "the storage of the device could not be measured");
                Machine::default()
            })
        });
        Machine {
            cores: self.options.cores,
            memory_bytes: self.options.memory_bytes,
            free_bytes: self.root.free_bytes(),
            ..rates
        }
    }

    fn measure_storage(&self) -> Result<Machine> {
        let (root, now) = (&self.root, || self.runtime.now());
        // A killed server may have left the object.
        let _ = root.delete(self.root_epoch, OBJECT);
        let mut piece = vec![0; PIECE_BYTES];
        // The bytes are random, because a storage that compresses must not be measured with zeros.
        for bytes in piece.chunks_mut(8) {
            bytes.copy_from_slice(&self.runtime.random_u64().to_le_bytes());
        }
        let begun = now();
        let file = root.create(self.root_epoch, OBJECT)?;
        for _ in 0..STORAGE_BYTES / PIECE_BYTES as u64 {
            file.append(&[&piece])?;
        }
        file.sync()?;
        let written = now();
        let write_bytes_per_s = rate(STORAGE_BYTES, written.since(begun));
        let reads_are_direct = root.check_direct().is_ok();
        let file = match reads_are_direct {
            true => root.open_direct(OBJECT)?,
            false => root.open(OBJECT)?,
        };
        let begun = now();
        for at in 0..STORAGE_BYTES / PIECE_BYTES as u64 {
            file.read_at(at * PIECE_BYTES as u64, &mut piece)?;
        }
        Ok(Machine {
            write_bytes_per_s,
            read_bytes_per_s: rate(STORAGE_BYTES, now().since(begun)),
            reads_are_direct,
            ..Machine::default()
        })
    }

    /// Measures a merge for a host.
    pub(super) fn measure_merge(
        &self,
        codec: u8,
        level: u8,
        value_bytes: u32,
    ) -> Result<MergeRate> {
        let failed = |kind, detail: String| StorageError::new(kind, "measure", "a merge", detail);
        let refused = |detail: String| failed(StorageErrorKind::InvalidInput, detail);
        let codec =
            Codec::from_u8(codec).ok_or_else(|| refused(format!("there is no codec {codec}")))?;
        let format = Format {
            codec,
            level,
            value_bytes,
        };
        if let Some(reason) = format.refusal() {
            return Err(refused(reason));
        }
        let _one_at_a_time = self.measuring.lock();
        match crate::probe::merge::measure(&self.runtime, format) {
            Ok(rate) => Ok(rate),
            Err(TableError::Storage(error)) => Err(error),
            Err(error) => Err(failed(StorageErrorKind::Io, error.to_string())),
        }
    }
}

fn rate(bytes: u64, took: std::time::Duration) -> u64 {
    let seconds = took.as_secs_f64();
    match seconds > 0.0 {
        true => (bytes as f64 / seconds) as u64,
        false => 0,
    }
}

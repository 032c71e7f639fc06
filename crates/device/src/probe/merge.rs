//! A small merge in memory, which shows how fast one core merges tables of a format.
//!
//! Two runs that have half of their keys in common are merged, so a quarter of the entries is
//! shadowed. Half of each value is random, so that it compresses about as well as common data. The
//! time for making the inputs does not count.
//!
//! Invariants: the size of the merge is bounded, whatever a peer asks for.
//!
//! Threading: any task may call this. It uses one core.

use std::fmt;
use std::sync::Arc;

use siltstone_storage::{Epoch, MemoryStorage, Runtime, Storage};
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap};
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, LAYOUT_VERSION, OutputLimits,
    OutputPrefix,
};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::writer::{TableWriter, WriterOptions};
use siltstone_table::{Codec, TableError};

use crate::wire::machine::MergeRate;

/// The approximate number of raw bytes of all inputs together.
const RAW_BYTES: usize = 4 << 20;

/// The maximum number of bytes of a value.
pub const VALUE_BYTES_MAX: u32 = 64 << 10;

/// The bytes of a key.
const KEY_BYTES: usize = 16;

/// The bytes of a block.
const BLOCK_BYTES: u64 = 4 << 10;

/// How many times the merge is run. The fastest run counts.
const TRIES: usize = 2;

/// The format of tables, and the size of their values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Format {
    /// How blocks are compressed.
    pub codec: Codec,
    /// The codec's level.
    pub level: u8,
    /// The bytes of a value.
    pub value_bytes: u32,
}

impl Format {
    /// The formats for which a probe makes predictions.
    pub fn all() -> Vec<Format> {
        let mut all = Vec::new();
        for (codec, level) in [(Codec::None, 0), (Codec::Lz4, 0), (Codec::Zstd, 3)] {
            all.extend([32, 128, 1024, 4096].map(|value_bytes| Format {
                codec,
                level,
                value_bytes,
            }));
        }
        all
    }

    /// Returns the reason why this format cannot be measured, if there is one.
    pub fn refusal(&self) -> Option<String> {
        if !self.codec.levels().contains(&self.level) {
            return Some(format!("the codec has no level {}", self.level));
        }
        (self.value_bytes > VALUE_BYTES_MAX).then(|| {
            format!(
                "values of {} bytes are too large; the largest have {VALUE_BYTES_MAX}",
                self.value_bytes
            )
        })
    }

    /// The codec and its level, as they are written in options: `zstd:3`.
    pub fn codec_name(&self) -> String {
        match self.codec {
            Codec::None => "none".into(),
            Codec::Lz4 => "lz4".into(),
            Codec::Zstd => format!("zstd:{}", self.level),
        }
    }
}

impl fmt::Display for Format {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = self.codec_name();
        write!(f, "{name}, values of {} bytes", self.value_bytes)
    }
}

/// A small random number generator (xorshift), so that both sides merge the same bytes.
struct Draw(u64);

impl Draw {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    /// Fills the first half of `value` with random bytes, and the second half with one byte.
    fn value(&mut self, value: &mut [u8]) {
        let half = value.len() / 2;
        for piece in value[..half].chunks_mut(8) {
            let random = self.next().to_le_bytes();
            piece.copy_from_slice(&random[..piece.len()]);
        }
        let byte = self.next() as u8;
        value[half..].fill(byte);
    }
}

/// Measures a merge of this format on one core.
///
/// # Errors
/// Those of the table layer; none is expected in memory.
///
/// # Panics
/// If [`Format::refusal`] returns a reason.
pub fn measure(runtime: &Runtime, format: Format) -> Result<MergeRate, TableError> {
    assert_eq!(format.refusal(), None, "the caller has checked this");
    let storage = Arc::new(MemoryStorage::new(runtime));
    let lease = storage.lease("probe")?;
    let epoch = lease.epoch();
    let entry_bytes = KEY_BYTES + format.value_bytes as usize + 12;
    let entries = (RAW_BYTES / 2 / entry_bytes).max(1) as u64;
    let mut inputs = InputMap::new();
    let mut listed = Vec::new();
    for run in 0..2 {
        let name = format!("run-{run}.tbl");
        let input = write_run(&*storage, epoch, format, &name, run, entries)?;
        inputs.add_table(0, &name, storage.open(&name)?);
        listed.push(input);
    }
    let inputs = Arc::new(inputs);
    let mut best: Option<MergeRate> = None;
    for attempt in 0..TRIES as u64 {
        let job = job_of(&listed, format, 2 * entries, attempt);
        let outputs: Arc<dyn Storage> = storage.clone();
        let context = ExecContext::new(runtime.clone(), inputs.clone(), outputs, epoch);
        let begun = runtime.now();
        let outcome = CpuExecutor::new().run(&job, &context);
        let ns = runtime.now().since(begun).as_nanos() as u64;
        let outcome = outcome.map_err(|error| match error {
            siltstone_table::exec::ExecError::Failed(error) => error,
            other => {
                let kind = siltstone_storage::StorageErrorKind::Io;
                let detail = other.to_string();
                siltstone_storage::StorageError::new(kind, "probe", "a merge", detail).into()
            }
        })?;
        for table in &outcome.tables {
            storage.delete(epoch, &table.name)?;
        }
        let rate = MergeRate {
            in_bytes: listed.iter().map(|input| input.len_bytes).sum(),
            out_bytes: outcome.tables.iter().map(|table| table.file_bytes).sum(),
            ns,
            cpu_ns: outcome.counters.cpu_ns,
        };
        if best.is_none_or(|best| rate.busy_ns() < best.busy_ns()) {
            best = Some(rate);
        }
    }
    Ok(best.unwrap_or_default())
}

/// Writes a run as one table. Every second key is the same in both runs.
fn write_run(
    storage: &dyn Storage,
    epoch: Epoch,
    format: Format,
    name: &str,
    run: u64,
    entries: u64,
) -> Result<Input, TableError> {
    let file = storage.create(epoch, name)?;
    let options = WriterOptions {
        codec: format.codec,
        level: format.level,
        block_size_bytes: BLOCK_BYTES,
        ..WriterOptions::default()
    };
    let mut writer = TableWriter::new(file.clone(), options)?;
    let mut draw = Draw(0x5eed_0000 + run + 1);
    let mut value = vec![0; format.value_bytes as usize];
    let mut key = [b'k'; KEY_BYTES];
    let seq_of = |n: u64| (1 - run) * entries + n + 1;
    for n in 0..entries {
        // Keys are spread, so that neighbours share no longer prefixes than in common data.
        let own = if n % 2 == 0 { 0 } else { run };
        key[..8].copy_from_slice(&(n * 0x10_0001 * 2 + own).to_be_bytes());
        draw.value(&mut value);
        writer.add(&key, trailer(seq_of(n), Kind::Put), &value)?;
    }
    let summary = writer.finish()?;
    file.sync()?;
    Ok(Input {
        kind: InputKind::Table,
        location: 0,
        name: name.into(),
        run: run as u32,
        len_bytes: summary.file_bytes,
        digest: summary.digest,
        min_seq: seq_of(0),
        max_seq: seq_of(entries - 1),
        clip: KeyBounds::everything(),
        seq_override: None,
    })
}

fn job_of(inputs: &[Input], format: Format, published: u64, attempt: u64) -> Job {
    Job {
        keyspace: 1,
        layout_version: LAYOUT_VERSION,
        inputs: inputs.to_vec(),
        bounds: KeyBounds::everything(),
        hard_cuts: Vec::new(),
        soft_cuts: Vec::new(),
        published,
        snapshots: Vec::new(),
        rules: DropRules::ALL,
        now_us: 0,
        older: Vec::new(),
        limits: OutputLimits::new(64 << 20, BLOCK_BYTES, false),
        format: FormatOptions {
            codec: format.codec,
            level: format.level,
            ..FormatOptions::default()
        },
        extensions: Vec::new(),
        output: OutputPrefix {
            epoch: 1,
            attempt: attempt + 1,
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_format_can_be_measured() {
        let runtime = Runtime::threads();
        let mut sizes = Vec::new();
        for format in Format::all() {
            assert_eq!(format.refusal(), None, "{format}");
            let rate = measure(&runtime, format).unwrap();
            assert!(rate.in_bytes > 0 && rate.ns > 0, "{format}: {rate:?}");
            // A quarter of all entries is shadowed.
            let kept = rate.out_bytes as f64 / rate.in_bytes as f64;
            assert!((0.6..0.95).contains(&kept), "{format}: {kept}");
            if format.value_bytes == 1024 {
                sizes.push(rate.in_bytes);
            }
        }
        assert!(sizes[0] > sizes[1] && sizes[0] > sizes[2], "{sizes:?}");
    }

    #[test]
    fn what_cannot_be_measured_is_refused() {
        let format = |codec, level, value_bytes| Format {
            codec,
            level,
            value_bytes,
        };
        for wrong in [
            format(Codec::Zstd, 100, 32),
            format(Codec::None, 9, 32),
            format(Codec::None, 0, VALUE_BYTES_MAX + 1),
        ] {
            assert!(wrong.refusal().is_some(), "{wrong}");
        }
        assert_eq!(format(Codec::None, 0, 0).refusal(), None);
        assert_eq!(format(Codec::Zstd, 3, 0).codec_name(), "zstd:3");
    }
}

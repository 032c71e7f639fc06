//! Measures how fast the CPU executor merges, in MB of raw input per second of this process's CPU
//! time.
//!
//! `cargo run --release -p siltstone-table --example merge_bench -- [input MiB] [folder]`
//!
//! There are 12 input tables with 16-byte keys. A fifth of the entries are shadowed, values have 32
//! or 128 bytes, and the tables are real files in the page cache. `cold`: the pages of the outputs
//! are new, so the figure includes their page faults and the copies of the sync. `warm`: the
//! outputs overwrite those of the run before (`first` made them). `none`: the bytes of the outputs
//! are discarded, so that only the merge, the encoding and the reading are measured.
#![allow(clippy::disallowed_types, clippy::disallowed_methods)]

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{
    Capabilities, Epoch, FileStorage, Lease, ObjectMeta, ReadFile, Result, Runtime, SharedLease,
    Storage, StorageError, StorageErrorKind, WriteFile,
};
use siltstone_table::exec::{CpuExecutor, ExecContext, Executor, InputMap};
use siltstone_table::job::{
    DropRules, FormatOptions, Input, InputKind, Job, KeyBounds, KeyRange, LAYOUT_VERSION,
    OutputLimits, OutputPrefix,
};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::writer::{TableWriter, WriterOptions};

/// CPU time of this process, user and system, in seconds.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat
        .rsplit(')')
        .next()
        .unwrap_or("")
        .split_whitespace()
        .collect();
    let ticks = |i: usize| {
        fields
            .get(i)
            .and_then(|f| f.parse::<u64>().ok())
            .unwrap_or(0)
    };
    (ticks(11) + ticks(12)) as f64 / 100.0
}

/// A storage whose files discard what is written.
struct Discard;

struct DiscardFile(String, AtomicU64);

impl WriteFile for DiscardFile {
    fn name(&self) -> &str {
        &self.0
    }
    fn position(&self) -> u64 {
        self.1.load(Ordering::Relaxed)
    }
    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        self.1.fetch_add(
            parts.iter().map(|p| p.len() as u64).sum(),
            Ordering::Relaxed,
        );
        Ok(())
    }
    fn reserve(&self, _len: u64) -> Result<()> {
        Ok(())
    }
    fn len(&self) -> u64 {
        self.position()
    }
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    fn truncate_to_position(&self) -> Result<()> {
        Ok(())
    }
}

fn unsupported<T>(op: &'static str) -> Result<T> {
    Err(StorageError::new(
        StorageErrorKind::Unsupported,
        op,
        "discard",
        "the benchmark's storage cannot do this",
    ))
}

impl Storage for Discard {
    fn describe(&self) -> String {
        "discard".into()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::default()
    }
    fn lease(&self, _name: &str) -> Result<Box<dyn Lease>> {
        unsupported("lease")
    }
    fn lease_shared(&self, _name: &str) -> Result<Box<dyn SharedLease>> {
        unsupported("lease_shared")
    }
    fn create(&self, _epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        Ok(Arc::new(DiscardFile(name.into(), AtomicU64::new(0))))
    }
    fn recycle(&self, _epoch: Epoch, _old: &str, _new: &str) -> Result<Arc<dyn WriteFile>> {
        unsupported("recycle")
    }
    fn sync_object(&self, _epoch: Epoch, _name: &str) -> Result<()> {
        unsupported("sync_object")
    }
    fn open(&self, _name: &str) -> Result<Arc<dyn ReadFile>> {
        unsupported("open")
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        Ok(vec![])
    }
    fn delete(&self, _epoch: Epoch, _name: &str) -> Result<()> {
        Ok(())
    }
    fn rename(&self, _epoch: Epoch, _old: &str, _new: &str) -> Result<()> {
        unsupported("rename")
    }
    fn publish(&self, _epoch: Epoch, _name: &str, _bytes: &[u8]) -> Result<()> {
        unsupported("publish")
    }
    fn sync_dir(&self, _epoch: Epoch) -> Result<()> {
        Ok(())
    }
    fn replace(&self, _epoch: Epoch, _name: &str, _bytes: &[u8]) -> Result<()> {
        unsupported("replace")
    }
    fn free_bytes(&self) -> Option<u64> {
        None
    }
}

/// Real files whose outputs overwrite those of the run before. Their pages are already in the
/// cache, as in a store that recycles the files of deleted tables.
struct Recycled {
    inner: Arc<dyn Storage>,
    /// Finished outputs that can be overwritten.
    kept: siltstone_storage::Mutex<Vec<String>>,
}

impl Storage for Recycled {
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
        match self.kept.lock().pop() {
            Some(old) => self.inner.recycle(epoch, &old, name),
            None => self.inner.create(epoch, name),
        }
    }
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>> {
        self.inner.recycle(epoch, old, new)
    }
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.inner.sync_object(epoch, name)
    }
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.inner.open(name)
    }
    fn list(&self) -> Result<Vec<ObjectMeta>> {
        self.inner.list()
    }
    fn delete(&self, _epoch: Epoch, name: &str) -> Result<()> {
        self.kept.lock().push(name.to_string());
        Ok(())
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
    fn sync_dir(&self, epoch: Epoch) -> Result<()> {
        self.inner.sync_dir(epoch)
    }
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()> {
        self.inner.replace(epoch, name, bytes)
    }
    fn free_bytes(&self) -> Option<u64> {
        self.inner.free_bytes()
    }
}

fn mix(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let mut args = std::env::args().skip(1);
    let mib: usize = args.next().map_or(Ok(256), |a| a.parse())?;
    let folder = args.next().unwrap_or_else(|| {
        std::env::temp_dir()
            .join("silt-merge-bench")
            .display()
            .to_string()
    });
    let storage: Arc<dyn Storage> = Arc::new(FileStorage::open_or_create(&folder)?);
    let epoch = Epoch(1);
    for object in storage.list()? {
        storage.delete(epoch, &object.name)?;
    }
    const RUNS: u64 = 12;
    for value_bytes in [32usize, 128] {
        let entries = (mib << 20) / (16 + value_bytes + 12);
        // A fifth of the entries repeat a user key of another run.
        let distinct = entries * 4 / 5;
        let mut runs: Vec<Vec<(u128, u64)>> = vec![vec![]; RUNS as usize];
        for i in 0..entries {
            let id = if i < distinct {
                i as u64
            } else {
                mix(i as u64) % distinct as u64
            };
            let key = (mix(id) as u128) << 64 | mix(id ^ 0x5555) as u128;
            runs[(mix(i as u64 ^ 0xABCD) % RUNS) as usize].push((key, i as u64 + 1));
        }
        let mut inputs = InputMap::new();
        let mut job = Job {
            keyspace: 1,
            layout_version: LAYOUT_VERSION,
            inputs: vec![],
            bounds: KeyBounds::everything(),
            hard_cuts: vec![],
            soft_cuts: vec![],
            published: entries as u64,
            snapshots: vec![],
            rules: DropRules::ALL,
            now_us: 0,
            older: vec![KeyRange::everything()],
            limits: OutputLimits::new(64 << 20, 4 << 10, false),
            format: FormatOptions::default(),
            extensions: vec![],
            output: OutputPrefix {
                epoch: 1,
                attempt: 0,
            },
        };
        for (r, run) in runs.iter_mut().enumerate() {
            run.sort_by(|a, b| a.0.cmp(&b.0).then(b.1.cmp(&a.1)));
            let name = format!("in-{r}.tbl");
            let file = storage.create(epoch, &name)?;
            let mut writer = TableWriter::new(file, WriterOptions::default())?;
            let mut value = vec![0; value_bytes];
            for (key, seq) in run.iter() {
                value[..8].copy_from_slice(&seq.to_le_bytes());
                writer.add(&key.to_be_bytes(), trailer(*seq, Kind::Put), &value)?;
            }
            let summary = writer.finish()?;
            inputs.add_table(0, &name, storage.open(&name)?);
            job.inputs.push(Input {
                kind: InputKind::Table,
                location: 0,
                name,
                run: r as u32,
                len_bytes: summary.file_bytes,
                digest: summary.digest,
                min_seq: summary.properties.smallest_seq,
                max_seq: summary.properties.largest_seq,
                clip: KeyBounds::everything(),
                seq_override: None,
            });
        }
        drop(runs);
        let inputs = Arc::new(inputs);
        let runtime = Runtime::threads();
        let discard: Arc<dyn Storage> = Arc::new(Discard);
        let recycled: Arc<dyn Storage> = Arc::new(Recycled {
            inner: storage.clone(),
            kept: Runtime::threads().mutex(vec![]),
        });
        // The first run with `recycled` only makes the files that later runs recycle.
        for (label, outputs) in [
            ("first", &recycled),
            ("warm", &recycled),
            ("cold", &storage),
            ("none", &discard),
            ("warm", &recycled),
            ("cold", &storage),
            ("none", &discard),
            ("warm", &recycled),
            ("cold", &storage),
            ("none", &discard),
        ] {
            job.output.attempt += 1;
            let ctx = ExecContext::new(runtime.clone(), inputs.clone(), outputs.clone(), epoch);
            let (cpu, wall) = (cpu_seconds(), std::time::Instant::now());
            let outcome = CpuExecutor::new().run(&job, &ctx)?;
            let (cpu, wall) = (cpu_seconds() - cpu, wall.elapsed().as_secs_f64());
            let c = &outcome.counters;
            println!(
                "value {value_bytes:4} {label:7}: {:6.0} MB/cpu-s {:6.1} ns per entry; \
                 {:6.0} MB/s wall; {} entries, {} shadowed, {} tables",
                c.raw_bytes_read as f64 / 1e6 / cpu,
                cpu * 1e9 / c.entries_read as f64,
                c.raw_bytes_read as f64 / 1e6 / wall,
                c.entries_read,
                c.shadowed,
                outcome.tables.len()
            );
            for table in &outcome.tables {
                let _ = outputs.delete(epoch, &table.name);
            }
        }
        for object in storage.list()? {
            storage.delete(epoch, &object.name)?;
        }
    }
    Ok(())
}

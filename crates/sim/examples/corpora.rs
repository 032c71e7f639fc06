//! Writes the seeds of the fuzzers' corpora, from the files of real stores:
//! `cargo run -p siltstone-sim --example corpora -- FOLDER`.
//!
//! Files with equal bytes are written once. Existing files stay.

use std::collections::BTreeMap;
use std::error::Error;
use std::path::Path;
use std::sync::{Arc, Mutex};

use siltstone::batch::Entries;
use siltstone::inspect::{LogContent, LogFile, LogItem};
use siltstone::{
    Batch, ByLevel, Components, Compression, KeyspaceOptions, LevelTargets, Options, Storages,
    Store,
};
use siltstone_sim::trials::simulate;
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::exec::cpu::CpuExecutor;
use siltstone_table::exec::{ExecContext, ExecError, Executor, Side};
use siltstone_table::footer::Footer;
use siltstone_table::job::Job;
use siltstone_table::job::outcome::Outcome;
use siltstone_table::key::hash;
use siltstone_table::reader::{ReaderOptions, TableReader};

type Seeds = BTreeMap<&'static str, Vec<Vec<u8>>>;

fn options() -> Options {
    Options {
        memtable_bytes: 64 << 10,
        log_segment_bytes: 64 << 10,
        log_bytes_max: 256 << 10,
        table_bytes: 64 << 10,
        block_bytes: 1 << 10,
        stats_file_ms: 1,
        background_tasks: 1,
        ..Options::default()
    }
}

/// The used part of a file, and a little of the reserved space behind it.
fn used(bytes: &[u8]) -> Vec<u8> {
    let end = bytes.iter().rposition(|b| *b != 0).map_or(0, |i| i + 1);
    bytes[..(end + 24).min(bytes.len())].to_vec()
}

/// Files of a store with three keyspaces, with each codec, range deletes, a log that is not
/// flushed, and some edits of every kind.
fn files(runtime: &Runtime, recorder: Arc<JobRecorder>) -> Result<Vec<MemoryStorage>, String> {
    let text = |e: siltstone::Error| e.to_string();
    let media = ["/store", "/log"].map(|n| MemoryStorage::named(runtime, n));
    let [store_side, log_side] = media.clone().map(|m| Arc::new(m) as Arc<dyn Storage>);
    let storages = Storages {
        log: log_side,
        manifest: store_side.clone(),
        tables: store_side,
        redirect: None,
    };
    let components = Components {
        executors: vec![recorder],
        ..Components::of(storages, runtime.clone())
    };
    let store = Store::open_with(components, options()).map_err(text)?;
    for (name, codec) in [
        ("plain", Compression::None),
        ("lz4", Compression::Lz4),
        ("zstd", Compression::Zstd(3)),
    ] {
        let own = KeyspaceOptions {
            compression: ByLevel::of(&[codec]),
            bloom_bits_per_key: ByLevel::of(&[10, 6]),
            level_targets: Some(LevelTargets::Dynamic),
            ..KeyspaceOptions::default()
        };
        let keyspace = store.create_keyspace_with(name, &own).map_err(text)?;
        for i in 0..40u32 {
            let key = format!("key-{:03}", i * 7 % 50);
            let value = vec![i as u8; 30 + (i as usize * 13) % 90];
            keyspace.put(key.as_bytes(), &value).map_err(text)?;
            if i == 20 {
                keyspace
                    .delete_range(b"key-010", b"key-020")
                    .map_err(text)?;
                keyspace.flush().map_err(text)?;
            }
            if i == 30 {
                keyspace.flush().map_err(text)?;
                keyspace.compact_range(None, None).map_err(text)?;
            }
        }
        keyspace.delete(b"key-001").map_err(text)?;
        if name == "zstd" {
            keyspace
                .set_options(&KeyspaceOptions {
                    l0_stop_count: Some(9),
                    ..KeyspaceOptions::default()
                })
                .map_err(text)?;
        }
    }
    // Tables with range deletes are compacted soon.
    store.test_hooks().pause_compaction(true);
    for name in ["plain", "lz4"] {
        let keyspace = store.keyspace(name).map_err(text)?;
        for (start, end) in [(b"key-030", b"key-035"), (b"key-033", b"key-040")] {
            keyspace.delete_range(start, end).map_err(text)?;
        }
        keyspace.put(b"key-099", b"last").map_err(text)?;
        keyspace.flush().map_err(text)?;
    }
    store.create_keyspace("gone").map_err(text)?;
    store.drop_keyspace("gone").map_err(text)?;
    let mut batch = Batch::new();
    let keyspace = store.default_keyspace().map_err(text)?;
    batch.put(&keyspace, b"", b"").map_err(text)?;
    batch.delete(&keyspace, b"a").map_err(text)?;
    batch.delete_range(&keyspace, b"a", b"b").map_err(text)?;
    store
        .write(&batch, siltstone::WriteOptions::default())
        .map_err(text)?;
    runtime.sleep(std::time::Duration::from_millis(20));
    let images = media.iter().map(|m| m.kill_in(runtime)).collect();
    store.close().map_err(text)?;
    Ok(images)
}

fn of_log(seeds: &mut Seeds, image: &MemoryStorage, name: &str, bytes: &[u8]) {
    let add = |seeds: &mut Seeds, target, bytes: &[u8]| {
        seeds.entry(target).or_default().push(bytes.to_vec());
    };
    add(seeds, "log_segment", bytes);
    add(seeds, "recovery", bytes);
    let Ok(file) = image.open(name) else { return };
    let Ok(mut log) = LogFile::open(&*file) else {
        return;
    };
    while let Ok(Some(item)) = log.next_item() {
        let LogItem::Record(record) = item else {
            continue;
        };
        match &record.content {
            LogContent::Batches(body) if Entries::new(body).count() > 1 => {
                add(seeds, "batch", body)
            }
            LogContent::Ingest(edit) => add(seeds, "edit", &edit.encode()),
            _ => {}
        }
    }
}

fn of_manifest(seeds: &mut Seeds, bytes: &[u8]) {
    use siltstone::manifest::format::{HEADER_BYTES, decode_header, decode_record};
    seeds.entry("manifest").or_default().push(bytes.to_vec());
    let Ok(current) = decode_header(bytes, "seed") else {
        return;
    };
    let mut at = HEADER_BYTES;
    while let Ok((payload, end)) = decode_record(bytes, current.number, at) {
        seeds.entry("edit").or_default().push(payload.to_vec());
        if let Ok(decoded) = siltstone::version::Edit::decode(payload) {
            for create in &decoded.edit.create {
                let stored = create.options.encode();
                seeds.entry("stored_options").or_default().push(stored);
            }
        }
        at = end;
    }
}

fn of_table(seeds: &mut Seeds, image: &MemoryStorage, name: &str, bytes: &[u8]) {
    let mut add = |target: &'static str, bytes: Vec<u8>| {
        seeds.entry(target).or_default().push(bytes);
    };
    add("table", bytes.to_vec());
    add("salvage", bytes.to_vec());
    let Some(raw) = bytes.last_chunk::<64>() else {
        return;
    };
    let Ok(footer) = Footer::decode(raw, name, bytes.len() as u64) else {
        return;
    };
    add("footer", raw.to_vec());
    let mut at = footer.blocks_bytes as usize;
    let mut section = |len: u64| {
        let part = bytes[at..at + len as usize].to_vec();
        at += len as usize;
        part[..part.len().saturating_sub(4)].to_vec()
    };
    let filter = section(footer.filter_bytes);
    let index = section(footer.index_bytes);
    let ranges = section(footer.range_deletes_bytes);
    let properties = section(footer.properties_bytes);
    let Ok(file) = image.open(name) else { return };
    let Ok(table) = TableReader::open(file, ReaderOptions::default()) else {
        return;
    };
    add(
        "filter",
        [&[table.properties().bits_per_key], &filter[..]].concat(),
    );
    add(
        "index",
        [&footer.blocks_bytes.to_le_bytes(), &index[..]].concat(),
    );
    if !ranges.is_empty() {
        add("range_deletes", ranges);
    }
    add("properties", properties);
    for i in 0..table.index().len().min(2) {
        let place = table.index().place(i);
        let anchor = (place.anchor - place.start) as u16;
        let stored = &bytes[place.start as usize..place.end as usize];
        add("block", [&anchor.to_le_bytes(), stored].concat());
    }
}

/// An executor on the host's cores that keeps its jobs and outcomes as bytes.
#[derive(Default)]
struct JobRecorder {
    jobs: Mutex<Vec<Vec<u8>>>,
    outcomes: Mutex<Vec<Vec<u8>>>,
}

impl Executor for JobRecorder {
    fn name(&self) -> &str {
        "keeps"
    }
    fn side(&self) -> Side {
        Side::Host
    }
    fn run(&self, job: &Job, ctx: &ExecContext) -> Result<Outcome, ExecError> {
        let outcome = CpuExecutor.run(job, ctx)?;
        let keep = |list: &Mutex<Vec<Vec<u8>>>, bytes| {
            list.lock().unwrap_or_else(|e| e.into_inner()).push(bytes)
        };
        keep(&self.jobs, job.encode());
        keep(&self.outcomes, outcome.encode());
        Ok(outcome)
    }
}

/// A folder for `repair`: pieces with a number, a length and bytes. They are the files of the store
/// under the names of the target.
fn folder_of(image: &MemoryStorage, number_bit: u8) -> Result<Vec<u8>, Box<dyn Error>> {
    let mut out = Vec::new();
    let mut tables = 5..8u8;
    for object in image.list()? {
        let bytes = used(&image.read_small(&object.name)?);
        let number = match &object.name[..] {
            "CURRENT" => 0,
            n if n.starts_with("MANIFEST-") => 1,
            n if n.ends_with(".log") => 3,
            n if n.ends_with(".tbl") => match tables.next() {
                Some(number) => number,
                None => continue,
            },
            _ => continue,
        };
        if let Ok(len) = u16::try_from(bytes.len()) {
            out.push(number | number_bit);
            out.extend_from_slice(&len.to_le_bytes());
            out.extend_from_slice(&bytes);
        }
    }
    Ok(out)
}

fn main() -> Result<(), Box<dyn Error>> {
    let folder = std::env::args().nth(1).ok_or("usage: corpora FOLDER")?;
    let mut seeds = Seeds::new();
    let recorder = Arc::new(JobRecorder::default());
    let kept = recorder.clone();
    let images = simulate(7, move |runtime| files(&runtime, kept));
    let take = |list: &Mutex<Vec<Vec<u8>>>| {
        std::mem::take(&mut *list.lock().unwrap_or_else(|e| e.into_inner()))
    };
    seeds.insert("job", take(&recorder.jobs));
    seeds.insert("outcome", take(&recorder.outcomes));
    let all = options().to_toml();
    let few = "memtable_bytes = \"1 MiB\"\nsync = \"100 ms\"\n[keyspaces.a]\nl0_stop_count = \
        50\ncompression = [\"none\", \"zstd:3\"]\n";
    seeds.insert("options", vec![all.into_bytes(), few.into()]);
    for bit in [0, 8] {
        let folder = folder_of(&images[0], bit)?;
        seeds.entry("repair").or_default().push(folder);
    }
    for image in &images {
        for object in image.list()? {
            let name = object.name;
            let bytes = image.read_small(&name)?;
            match &name[..] {
                "CURRENT" => seeds.entry("pointer").or_default().push(bytes),
                "STATS.json" => seeds.entry("stats").or_default().push(bytes),
                "DIRECTORIES" => seeds
                    .entry("directories")
                    .or_default()
                    .push([&[0], &bytes[..]].concat()),
                "OWNER" => seeds
                    .entry("directories")
                    .or_default()
                    .push([&[1], &bytes[..]].concat()),
                n if n.starts_with("MANIFEST-") => of_manifest(&mut seeds, &used(&bytes)),
                n if n.ends_with(".log") => of_log(&mut seeds, image, n, &used(&bytes)),
                n if n.ends_with(".tbl") => of_table(&mut seeds, image, n, &bytes),
                _ => {}
            }
        }
    }
    for (target, files) in &seeds {
        let folder = Path::new(&folder).join(target);
        std::fs::create_dir_all(&folder)?;
        for bytes in files {
            std::fs::write(folder.join(format!("seed-{:016x}", hash(bytes))), bytes)?;
        }
        println!("{target}: {} seeds", files.len());
    }
    Ok(())
}

//! The second section: jobs of many shapes, run by the GPU's executor and by the host's, whose
//! files and counters are compared.
//!
//! Files are compared byte by byte. The compressed bytes of two encoders may differ, so those of
//! compressed tables are compared block by block after decoding, if they differ.
//!
//! Threading: one thread.

use std::sync::Arc;

use siltstone_gpu::{GpuExecutor, GpuOptions, Strategy, Transfer};
use siltstone_storage::{ReadFile, Storage};
use siltstone_table::block::{Decoded, open_stored};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, Executor};
use siltstone_table::footer::Footer;
use siltstone_table::job::DropRules;
use siltstone_table::job::outcome::{Counters, Outcome};
use siltstone_table::merge::table::InputTable;

use super::report::{EqualityRow, Report};
use super::setup::{Limit, Setup, delete};
use super::world::{Keys, Shape, World, mix};

/// How much of two files is compared at once.
const CHUNK_BYTES: usize = 1 << 20;

/// The shapes, without compression.
fn shapes() -> Vec<Shape> {
    let plain = Shape::plain;
    let variable = Shape {
        keys: Keys::Variable,
        is_variable: true,
        ..plain(100, 4)
    };
    vec![
        plain(32, 4),
        plain(64, 8),
        plain(128, 2),
        plain(256, 4),
        Shape {
            deletes_share: 5,
            has_older: false,
            hard_cuts: 3,
            ..variable
        },
        Shape {
            versions_share: 3,
            snapshots: 5,
            deletes_share: 7,
            ..variable
        },
        Shape {
            range_deletes: 40,
            snapshots: 2,
            soft_cuts: 20,
            hard_cuts: 2,
            ..variable
        },
        Shape {
            rules: DropRules::QUICK,
            versions_share: 2,
            deletes_share: 3,
            ..plain(64, 3)
        },
        Shape {
            keys: Keys::Of(64),
            range_deletes: 10,
            block_bytes: 16 << 10,
            ..plain(32, 16)
        },
        Shape {
            keys: Keys::Of(8),
            is_variable: true,
            deletes_share: 4,
            has_older: false,
            block_bytes: 1024,
            ..plain(20, 5)
        },
        Shape {
            is_variable: true,
            ..plain(6000, 3)
        },
        plain(64, 1),
    ]
}

/// The ways to open an executor.
fn ways(setup: &Setup) -> Vec<(String, GpuOptions)> {
    let usual = setup.options();
    let named = |name: &str, options| (name.to_string(), options);
    let checked = GpuOptions {
        verifies_all: true,
        ..usual
    };
    let small = GpuOptions {
        memory_bytes_max: setup.options().memory_bytes_max.min(1 << 30),
        ..usual
    };
    let by = |strategy, transfer| GpuOptions {
        strategy,
        transfer,
        ..usual
    };
    let rank = GpuOptions {
        rank_runs_max: 16,
        ..by(Strategy::Full, Transfer::Plain)
    };
    vec![
        named("full, pipeline", usual),
        named("full, pipeline, small memory", small),
        named("full, pipeline, all checked", checked),
        named("full, plain, by rank", rank),
        named(
            "cooperative, pipeline",
            by(Strategy::Cooperative, Transfer::Pipeline),
        ),
        named("luda, plain", by(Strategy::Luda, Transfer::Plain)),
        named(
            "hierarchical, pipeline",
            by(Strategy::Hierarchical, Transfer::Pipeline),
        ),
        named("full, direct", by(Strategy::Full, Transfer::Direct)),
    ]
}

/// Compares until the time is over. Returns whether the time was cut.
///
/// # Errors
/// What kept a comparison from being made: no device, no room. A difference is no error here.
pub fn compare_all(
    setup: &Setup,
    limit: Limit,
    seed: u64,
    report: &mut Report,
) -> Result<bool, String> {
    let device = setup.device()?;
    let mut executors = Vec::new();
    for (name, options) in ways(setup) {
        if options.transfer != Transfer::Direct {
            executors.push((name, setup.executor(&device, options)?));
            continue;
        }
        match setup.tried(&device, options) {
            Ok(gpu) => {
                if let Some(mode) = gpu.direct_mode() {
                    report.with_direct(mode);
                }
                executors.push((name, gpu));
            }
            Err(why) => report.without_direct(&why),
        }
    }
    let mut all = shapes();
    let lz4: Vec<Shape> = all
        .iter()
        .map(|shape| Shape {
            codec: Codec::Lz4,
            ..*shape
        })
        .collect();
    all.extend(lz4);
    let sizes: &[u64] = match setup.is_small || setup.is_emulated {
        true => &[120 << 10],
        false => &[
            8 << 20,
            64 << 20,
            384 << 20,
            1 << 30,
            2 << 30,
            1 << 30,
            2 << 30,
        ],
    };
    let mut number = 0;
    for (round, bytes) in sizes.iter().enumerate() {
        for mut shape in all.iter().copied() {
            if limit.is_over() {
                return Ok(true);
            }
            shape.table_bytes = setup.sized(64 << 20, 16 << 10);
            // The same shape meets another executor in each round.
            let (name, gpu) = &executors[(number + round * 3) % executors.len()];
            number += 1;
            // A tiny job says whether this executor takes such jobs.
            let asked = setup.world(shape, 4 << 10, 0)?;
            if let Err(reason) = gpu.accepts(&asked.job()) {
                let reason = format!("{}: {reason}", shape.codec_word());
                if !report.declined_codecs.contains(&reason) {
                    println!("  not compared: {reason}");
                    report.declined_codecs.push(reason);
                }
                continue;
            }
            let seed = mix(seed ^ number as u64);
            let world = match gpu.direct_mode() {
                Some(_) => setup.direct_world(shape, *bytes, seed)?,
                None => setup.world(shape, *bytes, seed)?,
            };
            report.equality.push(compared(setup, &world, name, gpu));
        }
    }
    Ok(false)
}

/// Runs the job of a world on both sides.
fn compared(setup: &Setup, world: &World, name: &str, gpu: &GpuExecutor) -> EqualityRow {
    let found = compare(setup, world, gpu);
    let row = EqualityRow {
        shape: world.shape.to_string(),
        seed: world.seed,
        input_bytes: world.input_bytes,
        executor: name.to_string(),
        tables: found.as_ref().map_or(0, |(tables, _)| *tables),
        compared: found.as_ref().map_or("nothing", |(_, how)| how),
        is_equal: found.is_ok(),
        difference: found.err(),
    };
    let mib = row.input_bytes as f64 / 1048576.0;
    match &row.difference {
        None => println!("  equal: {mib:.1} MiB, {} ({})", row.shape, row.executor),
        Some(what) => println!(
            "  *** NOT EQUAL *** seed {}: {mib:.1} MiB, {} ({}): {what}",
            row.seed, row.shape, row.executor
        ),
    }
    row
}

/// The number of tables, and what was compared; or what differs.
fn compare(
    setup: &Setup,
    world: &World,
    gpu: &GpuExecutor,
) -> Result<(usize, &'static str), String> {
    let storage = &world.storage;
    let cores = setup.runtime.cores();
    let run = |whose: &str, executor: &dyn Executor, tasks| {
        let ran = setup.run(world, &world.job(), executor, tasks, storage);
        ran.map(|ran| ran.outcome)
            .map_err(|why| format!("the {whose} executor made no tables: {why}"))
    };
    let want = run("host's", &CpuExecutor::new(), cores)?;
    let found = run("GPU's", gpu, gpu.tasks()).inspect_err(|_| delete(storage, &want))?;
    let result = compare_outcomes(&**storage, &want, &found);
    delete(storage, &want);
    delete(storage, &found);
    Ok((want.tables.len(), result?))
}

fn compare_outcomes(
    storage: &dyn Storage,
    want: &Outcome,
    found: &Outcome,
) -> Result<&'static str, String> {
    let (a, b) = (want.tables.len(), found.tables.len());
    if a != b {
        return Err(format!("the host makes {a} tables, and the GPU {b}"));
    }
    let mut compared = "bytes";
    for (number, (a, b)) in want.tables.iter().zip(&found.tables).enumerate() {
        if (a.subjob, &a.left_bound, a.raw_bytes) != (b.subjob, &b.left_bound, b.raw_bytes) {
            return Err(format!(
                "table {number} has other bounds, or other contents"
            ));
        }
        let open = |name: &str| storage.open(name).map_err(|e| e.to_string());
        let (a, b) = (open(&a.name)?, open(&b.name)?);
        if let Err(difference) = compare_files(&*a, &*b)? {
            let table = InputTable::open(Arc::clone(&a)).map_err(|e| e.to_string())?;
            if !is_compressed(&table)? {
                return Err(format!("table {number}: {difference}"));
            }
            compared = "contents";
            let other = InputTable::open(b).map_err(|e| e.to_string())?;
            let contents = compare_contents(&table, &other);
            contents.map_err(|what| format!("table {number}: {what}"))?;
        }
    }
    let counters = |outcome: &Outcome| Counters {
        cpu_ns: 0,
        // The lengths of compressed files may differ.
        bytes_written: match compared {
            "bytes" => outcome.counters.bytes_written,
            _ => 0,
        },
        ..outcome.counters
    };
    let (a, b) = (counters(want), counters(found));
    match a == b {
        true => Ok(compared),
        false => Err(format!(
            "the counters are {a:?} on the host, and {b:?} on the GPU"
        )),
    }
}

/// Where two files differ, if they do.
fn compare_files(a: &dyn ReadFile, b: &dyn ReadFile) -> Result<Result<(), String>, String> {
    if a.len() != b.len() {
        let what = format!("{} bytes on the host, {} on the GPU", a.len(), b.len());
        return Ok(Err(what));
    }
    let (mut x, mut y) = (vec![0; CHUNK_BYTES], vec![0; CHUNK_BYTES]);
    let mut at = 0;
    while at < a.len() {
        let len = (a.len() - at).min(CHUNK_BYTES as u64) as usize;
        let (x, y) = (&mut x[..len], &mut y[..len]);
        a.read_at(at, x).map_err(|e| e.to_string())?;
        b.read_at(at, y).map_err(|e| e.to_string())?;
        if x != y {
            let first = x.iter().zip(y.iter()).position(|(x, y)| x != y);
            let place = at + first.unwrap_or(0) as u64;
            return Ok(Err(format!("the files differ from byte {place} on")));
        }
        at += len as u64;
    }
    Ok(Ok(()))
}

/// Whether any block of a table is compressed.
fn is_compressed(table: &InputTable) -> Result<bool, String> {
    for block in 0..table.block_count() {
        let mut scratch = Vec::new();
        let mut stored = Vec::new();
        opened(table, block, &mut stored, &mut scratch, |_| ())?;
        if !scratch.is_empty() {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Reads and decodes a block.
fn opened<T>(
    table: &InputTable,
    block: usize,
    stored: &mut Vec<u8>,
    scratch: &mut Vec<u8>,
    with: impl FnOnce(&siltstone_table::block::View<'_, [u8]>) -> T,
) -> Result<T, String> {
    let place = table.place(block);
    stored.resize(place.stored_bytes() as usize, 0);
    let read = table.file().read_at(place.start, stored);
    read.map_err(|e| e.to_string())?;
    let anchor = (place.anchor - place.start) as usize;
    let view = open_stored(stored, anchor, true, scratch);
    let view = view.map_err(|damage| format!("block {block} is damaged: {damage:?}"))?;
    Ok(with(&view))
}

/// All entries of a block.
type Entries = Vec<(Vec<u8>, u64, Vec<u8>)>;

fn entries(table: &InputTable, block: usize) -> Result<Entries, String> {
    let (mut stored, mut scratch) = (Vec::new(), Vec::new());
    opened(table, block, &mut stored, &mut scratch, |view| {
        let mut all = Decoded::default();
        view.decode_all(&mut all).map_err(|e| format!("{e:?}"))?;
        let entry = |i: usize| {
            let value = view.value(i).map_err(|e| format!("{e:?}"))?;
            Ok((all.key(i).to_vec(), all.trailers[i], value.to_vec()))
        };
        (0..all.len()).map(entry).collect()
    })?
}

/// The filter of a table, which follows the blocks.
fn filter(table: &InputTable) -> Result<Vec<u8>, String> {
    let file = table.file();
    let footer = Footer::read(&**file).map_err(|e| e.to_string())?;
    let mut filter = vec![0; footer.filter_bytes as usize];
    let read = file.read_at(footer.blocks_bytes, &mut filter);
    read.map_err(|e| e.to_string())?;
    Ok(filter)
}

/// Compares blocks, index keys, filters and range deletes of two tables.
fn compare_contents(a: &InputTable, b: &InputTable) -> Result<(), String> {
    if a.block_count() != b.block_count() {
        let (a, b) = (a.block_count(), b.block_count());
        return Err(format!("{a} blocks on the host, {b} on the GPU"));
    }
    if filter(a)? != filter(b)? {
        return Err("the filters differ".into());
    }
    if a.range_deletes().fragments() != b.range_deletes().fragments() {
        return Err("the range deletes differ".into());
    }
    for block in 0..a.block_count() {
        if a.separator(block) != b.separator(block) || entries(a, block)? != entries(b, block)? {
            return Err(format!("block {block} differs"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use siltstone_storage::Runtime;

    use super::super::world::EPOCH;
    use super::*;

    /// The bytes of a table, with one changed, as a table of the outcome.
    fn change(world: &World, outcome: &mut Outcome, at: usize) {
        let table = &mut outcome.tables[0];
        let mut bytes = world.storage.read_small(&table.name).unwrap();
        bytes[at] ^= 1;
        table.name = format!("changed-{at}.tbl");
        let file = world.storage.create(EPOCH, &table.name).unwrap();
        file.append(&[&bytes]).unwrap();
    }

    #[test]
    fn differences_are_found() {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup {
            runtime: Runtime::threads(),
            is_emulated: true,
            is_small: true,
            memory: folder.path().to_path_buf(),
            disk: folder.path().to_path_buf(),
            index: 0,
            gpu_memory_bytes: None,
            rocksdb: None,
        };
        for codec in [Codec::None, Codec::Lz4] {
            let shape = Shape {
                codec,
                ..Shape::plain(64, 2)
            };
            let world = setup.world(shape, 50_000, 1).unwrap();
            let run = || {
                let cpu = CpuExecutor::new();
                let ran = setup.run(&world, &world.job(), &cpu, 1, &world.storage);
                ran.unwrap().outcome
            };
            let (want, found) = (run(), run());
            let compare = |found: &Outcome| compare_outcomes(&*world.storage, &want, found);
            assert_eq!(compare(&found), Ok("bytes"));
            for at in [0, 3000] {
                let mut changed = found.clone();
                change(&world, &mut changed, at);
                let error = compare(&changed).unwrap_err();
                assert!(error.starts_with("table 0: "), "{error}");
            }
            let mut changed = found.clone();
            changed.counters.shadowed += 1;
            let error = compare(&changed).unwrap_err();
            assert!(error.starts_with("the counters are "), "{error}");
            let mut changed = found;
            changed.tables.pop();
            assert!(compare(&changed).unwrap_err().contains("and the GPU 0"));
        }
    }
}

//! The third section: how fast each strategy and transfer merges, beside the host's executor and
//! RocksDB.
//!
//! All ways to merge one job are tried in turn, round after round, because a machine drifts. A way
//! that a codec's jobs are declined for is left out. RocksDB takes part where four runs are merged
//! in memory, and only if its program is there: it is slow, and its runs have to be written first.
//!
//! Threading: one thread.

use std::sync::Arc;

use siltstone_gpu::{GpuExecutor, GpuOptions, Strategy, Transfer};
use siltstone_storage::{FileStorage, Storage};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, Executor};
use siltstone_table::job::DropRules;

use super::peer::{Merge, Peer};
use super::report::{Report, SpeedRow, SpreadRow};
use super::setup::{Limit, Setup, delete, free_bytes};
use super::world::{Shape, World};

/// The sizes of values.
pub const VALUE_BYTES: [usize; 4] = [32, 64, 128, 256];

/// The rounds of a case, if there is time.
const ROUNDS: usize = 3;

/// A way to merge.
enum Way {
    /// The host with this number of tasks.
    Host(usize),
    Gpu(Box<GpuExecutor>, Strategy, &'static str),
    /// RocksDB with this number of threads.
    RocksDb(usize),
}

/// What a way needed in a round, and what it made.
#[derive(Clone, Copy)]
struct Ran {
    wall_s: f64,
    cpu_s: f64,
    made_bytes: u64,
    /// The entries that are left.
    kept: u64,
}

impl Way {
    fn names(&self) -> (String, String) {
        match self {
            Way::RocksDb(1) => ("rocksdb".into(), "1 thread".into()),
            Way::RocksDb(threads) => ("rocksdb".into(), format!("{threads} threads")),
            Way::Host(1) => ("cpu".into(), "1 task".into()),
            Way::Host(tasks) => ("cpu".into(), format!("{tasks} tasks")),
            Way::Gpu(_, strategy, transfer) => (strategy.to_string(), transfer.to_string()),
        }
    }

    fn run(
        &self,
        setup: &Setup,
        world: &World,
        out: &Arc<dyn Storage>,
        peer: &mut Option<Peer>,
    ) -> Result<Ran, String> {
        let ran = match self {
            Way::RocksDb(threads) => {
                let peer = peer.as_mut().ok_or("RocksDB's program has ended")?;
                let merged = peer.merge(*threads)?;
                return Ok(Ran {
                    wall_s: merged.wall_s,
                    cpu_s: merged.cpu_s,
                    made_bytes: merged.written_bytes,
                    kept: merged.entries,
                });
            }
            Way::Host(tasks) => {
                // A task of the host needs a subjob of its own.
                let subjobs = if *tasks > 1 { 4 * *tasks as u64 } else { 1 };
                let job = world.divided_job(subjobs);
                setup.run(world, &job, &CpuExecutor::new(), *tasks, out)?
            }
            Way::Gpu(gpu, strategy, _) => {
                let mut job = world.job();
                if *strategy == Strategy::Hierarchical {
                    // Its jobs into levels 1 and 2; those below are `cooperative`.
                    job.rules = DropRules::QUICK;
                }
                setup.run(world, &job, &**gpu, gpu.tasks(), out)?
            }
        };
        let tables = &ran.outcome.tables;
        let found = Ran {
            wall_s: ran.wall_s,
            cpu_s: ran.cpu_s,
            made_bytes: tables.iter().map(|table| table.file_bytes).sum(),
            kept: ran.outcome.counters.entries_written,
        };
        delete(out, &ran.outcome);
        Ok(found)
    }
}

/// Where files are.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// All are in memory.
    Memory,
    /// Outputs go to a disk. Inputs are in memory, where the page cache would have them, too.
    Disk,
    /// All are on a disk, and are read and written past the page cache.
    DirectIo,
}

impl Place {
    fn name(self) -> &'static str {
        match self {
            Place::Memory => "memory",
            Place::Disk => "disk",
            Place::DirectIo => "direct I/O",
        }
    }
}

/// What is merged, and where.
struct Case {
    shape: Shape,
    bytes: u64,
    place: Place,
}

/// The cases, in the order of their worth.
fn cases(setup: &Setup, has_rocksdb: bool) -> Vec<Case> {
    let mut all = Vec::new();
    // A GiB takes RocksDB a minute in three rounds.
    let large = if has_rocksdb { 512 << 20 } else { 1 << 30 };
    let large = setup.sized(large, 120 << 10);
    let medium = setup.sized(384 << 20, 80 << 10);
    let mut add = |runs, codec, bytes, place| {
        let values = match setup.is_small || setup.is_emulated {
            true => &VALUE_BYTES[..1],
            false => &VALUE_BYTES[..],
        };
        for value_bytes in values {
            let shape = Shape {
                codec,
                table_bytes: setup.sized(64 << 20, 64 << 10),
                ..Shape::plain(*value_bytes, runs)
            };
            all.push(Case {
                shape,
                bytes,
                place,
            });
        }
    };
    add(4, Codec::None, large, Place::Memory);
    add(4, Codec::Lz4, large, Place::Memory);
    add(4, Codec::None, medium, Place::DirectIo);
    add(4, Codec::None, medium, Place::Disk);
    for codec in [Codec::None, Codec::Lz4] {
        for runs in [2, 8] {
            add(runs, codec, medium, Place::Memory);
        }
    }
    all
}

fn ways(setup: &Setup, report: &mut Report) -> Result<Vec<Way>, String> {
    let device = setup.device()?;
    let cores = setup.runtime.cores();
    let mut ways = vec![Way::Host(1)];
    if cores > 1 {
        ways.push(Way::Host(cores));
    }
    for strategy in [
        Strategy::Full,
        Strategy::Cooperative,
        Strategy::Luda,
        Strategy::Hierarchical,
    ] {
        for transfer in [Transfer::Pipeline, Transfer::Plain, Transfer::Direct] {
            let options = GpuOptions {
                strategy,
                transfer,
                ..setup.options()
            };
            let gpu = match transfer {
                Transfer::Direct => setup.tried(&device, options),
                _ => Ok(setup.executor(&device, options)?),
            };
            match gpu {
                Ok(gpu) => {
                    if let Some(mode) = gpu.direct_mode() {
                        report.with_direct(mode);
                    }
                    ways.push(Way::Gpu(Box::new(gpu), strategy, transfer.name()));
                }
                Err(why) => report.without_direct(&why),
            }
        }
    }
    let checked = GpuOptions {
        verifies_all: true,
        ..setup.options()
    };
    let gpu = setup.executor(&device, checked)?;
    ways.push(Way::Gpu(
        Box::new(gpu),
        Strategy::Full,
        "pipeline, all checked",
    ));
    Ok(ways)
}

/// Measures until the time is over. Returns whether the time was cut.
///
/// # Errors
/// What kept a case from being measured.
pub fn measure(setup: &Setup, limit: Limit, report: &mut Report) -> Result<bool, String> {
    let mut ways = ways(setup, report)?;
    let mut peer = start_rocksdb(setup, report);
    if peer.is_some() {
        ways.push(Way::RocksDb(1));
        if setup.runtime.cores() > 1 {
            ways.push(Way::RocksDb(setup.runtime.cores()));
        }
    }
    let disk = tempfile::Builder::new()
        .prefix("siltstone-gpu-check-")
        .tempdir_in(&setup.disk)
        .map_err(|e| e.to_string())?;
    let disk = FileStorage::open_or_create(disk.path()).map_err(|e| e.to_string())?;
    let disk: Arc<dyn Storage> = Arc::new(disk);
    for case in cases(setup, peer.is_some()) {
        if limit.is_over() {
            return Ok(true);
        }
        // Without files that are open for direct I/O, `direct` is `pipeline`.
        let takes = |way: &Way, world: &World| match way {
            Way::Host(_) | Way::RocksDb(_) => true,
            Way::Gpu(gpu, ..) if gpu.direct_mode().is_some() && case.place != Place::DirectIo => {
                false
            }
            Way::Gpu(gpu, ..) => gpu.accepts(&world.job()).is_ok(),
        };
        if case.place != Place::Memory
            && free_bytes(&setup.disk).is_some_and(|free| free < 3 * case.bytes)
        {
            println!("  not enough room in {}", setup.disk.display());
            continue;
        }
        // A tiny job says who takes such jobs.
        let asked = setup.world(case.shape, 4 << 10, 0)?;
        let mut usable: Vec<&Way> = ways.iter().filter(|way| takes(way, &asked)).collect();
        if !usable.iter().any(|way| matches!(way, Way::Gpu(..))) {
            println!(
                "  no GPU strategy accepts jobs with {}",
                case.shape.codec_word()
            );
            continue;
        }
        let world = match case.place {
            Place::DirectIo => setup.direct_world(case.shape, case.bytes, 1),
            Place::Memory | Place::Disk => setup.world(case.shape, case.bytes, 1),
        };
        let world = match (world, case.place) {
            (Ok(world), _) => world,
            (Err(why), Place::DirectIo) => {
                println!("  no merges with direct I/O: {why}");
                continue;
            }
            (Err(why), _) => return Err(why),
        };
        let outputs = match case.place {
            Place::Disk => &disk,
            Place::Memory | Place::DirectIo => &world.storage,
        };
        if !write_for_rocksdb(&mut peer, &case, &world, report) {
            usable.retain(|way| !matches!(way, Way::RocksDb(_)));
        }
        let rounds = rounds(setup, &world, &usable, outputs, (&mut peer, limit))?;
        rows(setup, &case, &world, &usable, &rounds, report);
    }
    Ok(false)
}

/// Starts RocksDB's program, or says in one line why RocksDB is left out.
fn start_rocksdb(setup: &Setup, report: &mut Report) -> Option<Peer> {
    let named = setup.rocksdb.clone();
    let program = named.unwrap_or_else(Peer::beside_this_program);
    let started = Peer::start(&program, &setup.memory);
    started.map_err(|why| leave_out(report, &why)).ok()
}

fn leave_out(report: &mut Report, why: &str) {
    println!("  RocksDB is left out: {why}");
    report.rocksdb = Some(format!("RocksDB is left out: {why}."));
}

/// Has RocksDB's program write its runs of a case. Returns whether it takes part.
fn write_for_rocksdb(
    peer: &mut Option<Peer>,
    case: &Case,
    world: &World,
    report: &mut Report,
) -> bool {
    let takes_part = case.place == Place::Memory && case.shape.runs == 4;
    let merge = Merge::of(world).filter(|_| takes_part);
    let (Some(asked), Some(merge)) = (peer.as_mut(), merge) else {
        return false;
    };
    match asked.write(merge) {
        Ok(version) => {
            report.rocksdb = Some(format!("RocksDB has version {version}."));
            true
        }
        Err(why) => {
            leave_out(report, &why);
            *peer = None;
            false
        }
    }
}

/// What each way needed in each round.
type Rounds = Vec<Vec<Ran>>;

fn rounds(
    setup: &Setup,
    world: &World,
    ways: &[&Way],
    outputs: &Arc<dyn Storage>,
    (peer, limit): (&mut Option<Peer>, Limit),
) -> Result<Rounds, String> {
    let mut rounds: Rounds = vec![Vec::new(); ways.len()];
    for round in 0..ROUNDS {
        for (number, way) in ways.iter().enumerate() {
            // One round is whole.
            if round > 0 && limit.is_over() {
                return Ok(rounds);
            }
            let (side, transfer) = way.names();
            let ran = way.run(setup, world, outputs, peer);
            let ran = ran.map_err(|e| format!("{side}, {transfer}, {}: {e}", world.shape));
            match (way, ran) {
                // What is wrong with RocksDB's program costs its rows only.
                (Way::RocksDb(_), Err(why)) => println!("  {why}"),
                (_, ran) => rounds[number].push(ran?),
            }
        }
    }
    Ok(rounds)
}

fn rows(
    setup: &Setup,
    case: &Case,
    world: &World,
    ways: &[&Way],
    rounds: &Rounds,
    report: &mut Report,
) {
    let bytes = world.input_bytes as f64;
    let speed_of = |ran: &Ran| bytes / 1e6 / ran.wall_s;
    let one_task = rounds.first().and_then(|all| {
        let spread = SpreadRow::of(all.iter().map(speed_of))?;
        Some(spread.median)
    });
    let kept = rounds.first().and_then(|all| Some(all.first()?.kept));
    for (way, all) in ways.iter().zip(rounds) {
        if let (Way::RocksDb(_), Some(kept), Some(found)) = (way, kept, all.first())
            && found.kept != kept
        {
            let what = format!(
                "RocksDB kept {} entries and the host {kept}, so its figures are left out.",
                found.kept
            );
            println!("  {what}");
            report.rocksdb = Some(what);
            continue;
        }
        let cpu = all.iter().map(|ran| ran.cpu_s / (bytes / 1e9));
        let (Some(mb_per_s), Some(cpu_s_per_gb)) =
            (SpreadRow::of(all.iter().map(speed_of)), SpreadRow::of(cpu))
        else {
            continue;
        };
        let (side, transfer) = way.names();
        let place = case.place.name();
        println!(
            "  {place}, values of {}, {} runs, {}: {side}, {transfer}: {:.0} MB/s, {:.2} CPU-s/GB",
            case.shape.value_bytes,
            case.shape.runs,
            case.shape.codec_word(),
            mb_per_s.median,
            cpu_s_per_gb.median,
        );
        report.speed.push(SpeedRow {
            place,
            value_bytes: case.shape.value_bytes,
            runs: case.shape.runs,
            codec: case.shape.codec_word(),
            side,
            transfer,
            input_bytes: world.input_bytes,
            output_bytes: all.last().map_or(0, |ran| ran.made_bytes),
            over_one_task: one_task.map(|one| mb_per_s.median / one),
            mb_per_s,
            cpu_s_per_gb,
            label: setup.label(),
        });
    }
}

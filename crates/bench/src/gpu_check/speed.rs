//! The third section: how fast each strategy and transfer merges, beside the host's executor.
//!
//! All ways to merge one job are tried in turn, round after round, because a machine drifts. A way
//! that a codec's jobs are declined for is left out.
//!
//! Threading: one thread.

use std::sync::Arc;

use siltstone_gpu::{GpuExecutor, GpuOptions, Strategy, Transfer};
use siltstone_storage::{FileStorage, Storage};
use siltstone_table::compress::Codec;
use siltstone_table::exec::{CpuExecutor, Executor};
use siltstone_table::job::DropRules;

use super::report::{Report, SpeedRow, SpreadRow};
use super::setup::{Limit, Ran, Setup, delete, free_bytes};
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
}

impl Way {
    fn names(&self) -> (String, String) {
        match self {
            Way::Host(1) => ("cpu".into(), "1 task".into()),
            Way::Host(tasks) => ("cpu".into(), format!("{tasks} tasks")),
            Way::Gpu(_, strategy, transfer) => (strategy.to_string(), transfer.to_string()),
        }
    }

    fn run(&self, setup: &Setup, world: &World, out: &Arc<dyn Storage>) -> Result<Ran, String> {
        match self {
            Way::Host(tasks) => {
                // A task of the host needs a subjob of its own.
                let subjobs = if *tasks > 1 { 4 * *tasks as u64 } else { 1 };
                let job = world.divided_job(subjobs);
                setup.run(world, &job, &CpuExecutor::new(), *tasks, out)
            }
            Way::Gpu(gpu, strategy, _) => {
                let mut job = world.job();
                if *strategy == Strategy::Hierarchical {
                    // Its jobs into levels 1 and 2; those below are `cooperative`.
                    job.rules = DropRules::QUICK;
                }
                setup.run(world, &job, &**gpu, gpu.tasks(), out)
            }
        }
    }
}

/// What is merged, and where.
struct Case {
    shape: Shape,
    bytes: u64,
    on_disk: bool,
}

/// The cases, in the order of their worth.
fn cases(setup: &Setup) -> Vec<Case> {
    let mut all = Vec::new();
    let large = setup.sized(1 << 30, 120 << 10);
    let medium = setup.sized(384 << 20, 80 << 10);
    let mut add = |runs, codec, bytes, on_disk| {
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
                on_disk,
            });
        }
    };
    add(4, Codec::None, large, false);
    add(4, Codec::Lz4, large, false);
    add(4, Codec::None, medium, true);
    for runs in [2, 8] {
        add(runs, Codec::None, medium, false);
    }
    for runs in [2, 8] {
        add(runs, Codec::Lz4, medium, false);
    }
    all
}

fn ways(setup: &Setup) -> Result<Vec<Way>, String> {
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
        for transfer in [Transfer::Pipeline, Transfer::Plain] {
            let options = GpuOptions {
                strategy,
                transfer,
                ..setup.options()
            };
            let gpu = setup.executor(&device, options)?;
            ways.push(Way::Gpu(Box::new(gpu), strategy, transfer.name()));
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
    let ways = ways(setup)?;
    let disk = tempfile::Builder::new()
        .prefix("siltstone-gpu-check-")
        .tempdir_in(&setup.disk)
        .map_err(|e| e.to_string())?;
    let disk = FileStorage::open_or_create(disk.path()).map_err(|e| e.to_string())?;
    let disk: Arc<dyn Storage> = Arc::new(disk);
    for case in cases(setup) {
        if limit.is_over() {
            return Ok(true);
        }
        let takes = |way: &Way, world: &World| match way {
            Way::Host(_) => true,
            Way::Gpu(gpu, ..) => gpu.accepts(&world.job()).is_ok(),
        };
        if case.on_disk && free_bytes(&setup.disk).is_some_and(|free| free < 3 * case.bytes) {
            println!("  not enough room in {}", setup.disk.display());
            continue;
        }
        // A tiny job says who takes such jobs.
        let asked = setup.world(case.shape, 4 << 10, 0)?;
        let usable: Vec<&Way> = ways.iter().filter(|way| takes(way, &asked)).collect();
        if !usable.iter().any(|way| matches!(way, Way::Gpu(..))) {
            println!(
                "  no GPU strategy accepts jobs with {}",
                case.shape.codec_word()
            );
            continue;
        }
        // Inputs are in memory, also if outputs go to a disk: they would be in the page cache.
        let world = setup.world(case.shape, case.bytes, 1)?;
        let outputs = if case.on_disk { &disk } else { &world.storage };
        let rounds = rounds(setup, &world, &usable, outputs, limit)?;
        rows(setup, &case, &world, &usable, &rounds, report);
    }
    Ok(false)
}

/// What each way needed in each round: seconds, processor seconds, bytes of outputs.
type Rounds = Vec<Vec<(f64, f64, u64)>>;

fn rounds(
    setup: &Setup,
    world: &World,
    ways: &[&Way],
    outputs: &Arc<dyn Storage>,
    limit: Limit,
) -> Result<Rounds, String> {
    let mut rounds: Rounds = vec![Vec::new(); ways.len()];
    for round in 0..ROUNDS {
        for (number, way) in ways.iter().enumerate() {
            // One round is whole.
            if round > 0 && limit.is_over() {
                return Ok(rounds);
            }
            let (side, transfer) = way.names();
            let ran = way.run(setup, world, outputs);
            let ran = ran.map_err(|e| format!("{side}, {transfer}, {}: {e}", world.shape))?;
            let made = ran.outcome.tables.iter().map(|t| t.file_bytes).sum();
            rounds[number].push((ran.wall_s, ran.cpu_s, made));
            delete(outputs, &ran.outcome);
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
    let speed_of = |(wall_s, ..): &(f64, f64, u64)| bytes / 1e6 / wall_s;
    let one_task = rounds.first().and_then(|all| {
        let spread = SpreadRow::of(all.iter().map(speed_of))?;
        Some(spread.median)
    });
    for (way, all) in ways.iter().zip(rounds) {
        let cpu = all.iter().map(|(_, cpu_s, _)| cpu_s / (bytes / 1e9));
        let (Some(mb_per_s), Some(cpu_s_per_gb)) =
            (SpreadRow::of(all.iter().map(speed_of)), SpreadRow::of(cpu))
        else {
            continue;
        };
        let (side, transfer) = way.names();
        let place = if case.on_disk { "disk" } else { "memory" };
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
            output_bytes: all.last().map_or(0, |(.., made)| *made),
            over_one_task: one_task.map(|one| mb_per_s.median / one),
            mb_per_s,
            cpu_s_per_gb,
            label: setup.label(),
        });
    }
}

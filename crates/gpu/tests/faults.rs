//! What goes wrong: calls of the device that fail, copies that flip a bit, kernels that never end,
//! damaged inputs, and jobs that are cancelled. The result is an error or the right tables, and
//! nothing is left behind.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod generate;
mod same;
mod setting;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use common::{Content, a_job, epoch, table_input};
use generate::{Random, World, a_small_world};
use setting::{Setting, is_declined};
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions, Strategy};
use siltstone_storage::sim::{SimConfig, run};
use siltstone_storage::{MemoryStorage, Runtime, Storage};
use siltstone_table::checksum::crc32c;
use siltstone_table::exec::{
    CancelToken, CpuExecutor, ExecContext, ExecError, Executor, ExecutorState, InputMap, Inputs,
    Throttle,
};
use siltstone_table::key::{Kind, trailer};
use siltstone_table::merge::table::InputTable;

const MEMORY_BYTES: u64 = 4 << 20;

fn options() -> GpuOptions {
    GpuOptions {
        memory_bytes_max: MEMORY_BYTES,
        pinned_bytes_max: 256 << 10,
        jobs: 1,
        lanes: 2,
        verifies_all: true,
        job_bytes_min: 0,
        ..GpuOptions::default()
    }
}

fn setting(world: &World) -> Setting {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let given = world.write(&storage);
    Setting::of(runtime, storage, given)
}

/// An executor that leaves it to the GPU to find damage in inputs.
fn open_believing(setting: &Setting, seed: u64) -> GpuExecutor {
    let options = GpuOptions {
        verifies_all: false,
        verified_first: 0,
        verified_share: 0,
        ..options()
    };
    setting.open_as(options, seed, Faults::default()).1.unwrap()
}

#[test]
fn every_call_may_fail() {
    let setting = setting(&a_small_world(&mut Random::new(1)));
    let (device, gpu) = setting.open_as(options(), 1, Faults::default());
    setting.run(&gpu.unwrap()).unwrap();
    let (calls, ..) = device.counts();
    assert!(calls > 100);
    let mut declined = 0;
    for call in 1..=calls {
        let faults = Faults {
            failing_call: call,
            is_sticky: call % 3 == 0,
            ..Faults::default()
        };
        let (device, gpu) = setting.open_as(options(), call, faults);
        let gpu = match gpu {
            Ok(gpu) => gpu,
            Err(text) => {
                assert!(text.contains("an error that was asked for"), "{text}");
                continue;
            }
        };
        let result = setting.run(&gpu);
        // The order of a seed decides how many polls there are, so some calls come after the job.
        declined += u64::from(is_declined(&result));
        assert!(result.is_ok() || is_declined(&result), "{result:?}");
        // Each of the two lanes may have an event after its last work.
        assert!(device.events_in_use() <= 2, "call {call}");
        let again = setting.run(&gpu);
        match faults.is_sticky && result.is_err() {
            true => {
                assert!(is_declined(&again));
                assert!(matches!(gpu.state(), ExecutorState::Down(_)));
            }
            false => assert!(again.is_ok() || result.is_ok(), "call {call}: {again:?}"),
        }
    }
    assert!(declined > calls / 3, "{declined} of {calls}");
}

#[test]
fn a_flipped_bit_in_a_copy_never_makes_a_wrong_table() {
    let setting = setting(&a_small_world(&mut Random::new(2)));
    let (device, gpu) = setting.open_as(options(), 0, Faults::default());
    setting.run(&gpu.unwrap()).unwrap();
    let (_, copies, _) = device.counts();
    assert!(copies > 20);
    let mut random = Random::new(3);
    let (mut found, mut tries) = (0, 0);
    for copy in 1..=copies {
        for _ in 0..5 {
            let faults = Faults {
                flipped_copy: copy,
                flipped_bit: random.below(1 << 40),
                ..Faults::default()
            };
            let (_, gpu) = setting.open_as(options(), 0, faults);
            let gpu = gpu.unwrap();
            let result = setting.run(&gpu);
            assert!(result.is_ok() || is_declined(&result), "{result:?}");
            tries += 1;
            found += u64::from(result.is_err());
            setting.run(&gpu).unwrap();
        }
    }
    // A flip goes unnoticed only where nothing depends on it, such as checksums of nothing.
    assert!(found * 10 > tries * 9, "{found} of {tries}");
}

/// A bit of the device's memory flips just before some numbers are copied to the host, so their
/// checksums are right, and the numbers are not. Nothing is indexed or divided by them. The tables
/// may be wrong then, which whoever asks for them verifies.
#[test]
fn a_flipped_bit_in_the_memory_of_the_device_is_borne() {
    let (mut declined, mut tries) = (0, 0);
    let strategies = [Strategy::Full, Strategy::Luda, Strategy::Cooperative];
    for (seed, strategy) in (20..).zip(strategies) {
        let mut random = Random::new(seed);
        let setting = setting(&a_small_world(&mut random));
        let open = |faults| {
            let options = GpuOptions {
                strategy,
                ..options()
            };
            let (device, gpu) = setting.open_as(options, 0, faults);
            (device, gpu.unwrap())
        };
        let (device, gpu) = open(Faults::default());
        setting.run(&gpu).unwrap();
        let (_, copies, _) = device.counts();
        for flipped_source in 1..=copies {
            for _ in 0..3 {
                // Mostly of one of the first numbers of the array.
                let most = 1 << random.below(20);
                let (_, gpu) = open(Faults {
                    flipped_source,
                    flipped_bit: random.below(most),
                    ..Faults::default()
                });
                match setting.run_and(&gpu, &setting.context(), |_| ()) {
                    Ok(()) => {}
                    Err(ExecError::Declined { .. }) => declined += 1,
                    Err(error) => panic!("copy {flipped_source}: {error}"),
                }
                tries += 1;
            }
        }
    }
    assert!(declined > tries / 4, "{declined} of {tries}");
}

#[test]
fn mismatches_in_a_row_switch_it_off() {
    let setting = setting(&a_small_world(&mut Random::new(2)));
    let faults = Faults {
        flipped_copy: 1,
        flipped_bit: 77,
        ..Faults::default()
    };
    let (_, gpu) = setting.open_as(options(), 0, faults);
    let gpu = gpu.unwrap();
    assert!(is_declined(&setting.run(&gpu)));
    assert_eq!(gpu.state(), ExecutorState::Ready);
    setting.run(&gpu).unwrap();
    let counters = gpu.counters();
    let mismatches = counters.iter().find(|(name, _)| name == "gpu_mismatches");
    assert_eq!(mismatches.map(|(_, count)| *count), Some(1));
}

/// Cancels a job when it has reported bytes this many times.
struct Cancels {
    after: AtomicU64,
    token: CancelToken,
}

impl Throttle for Cancels {
    fn spent(&self, _bytes: u64, _stop: &dyn Fn() -> bool) {
        if self.after.fetch_sub(1, Ordering::Relaxed) == 1 {
            self.token.cancel();
        }
    }
}

#[test]
fn a_cancelled_job_leaves_nothing() {
    let setting = setting(&a_small_world(&mut Random::new(4)));
    let (_, gpu) = setting.open_as(options(), 7, Faults::default());
    let gpu = gpu.unwrap();
    let mut cancelled = 0;
    for after in 1..40 {
        let mut ctx = setting.context();
        ctx.throttle = Some(Arc::new(Cancels {
            after: AtomicU64::new(after),
            token: ctx.cancel.clone(),
        }));
        match setting.run_in(&gpu, &ctx) {
            Ok(()) => break,
            Err(ExecError::Cancelled) => cancelled += 1,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(cancelled > 5);
    setting.run(&gpu).unwrap();
}

#[test]
fn a_kernel_that_never_ends_keeps_its_lane() {
    let setting = setting(&a_small_world(&mut Random::new(5)));
    let (device, gpu) = setting.open_as(options(), 0, Faults::default());
    setting.run(&gpu.unwrap()).unwrap();
    let (.., kernels) = device.counts();
    for hanging_kernel in [3, kernels / 2, kernels - 3] {
        let faults = Faults {
            hanging_kernel,
            ..Faults::default()
        };
        let options = GpuOptions {
            lanes: 1,
            ..options()
        };
        let gpu = setting.open_as(options, 0, faults).1.unwrap();
        assert_eq!(gpu.slots(), 1);
        let ctx = setting.context();
        let cancel = ctx.cancel.clone();
        let runtime = setting.runtime.clone();
        let canceller = runtime.spawn("canceller", {
            let runtime = runtime.clone();
            move || {
                runtime.sleep(std::time::Duration::from_millis(30));
                cancel.cancel();
            }
        });
        let result = setting.run_in(&gpu, &ctx);
        assert!(matches!(result, Err(ExecError::Cancelled)), "{result:?}");
        canceller.unwrap().join().unwrap();
        assert_eq!(gpu.slots(), 0);
        assert!(is_declined(&setting.run(&gpu)));
    }
}

/// The inputs of a job with one file replaced.
fn with_file(setting: &Setting, name: &str, bytes: &[u8]) -> Arc<dyn Inputs> {
    let patched = Arc::new(MemoryStorage::new(&setting.runtime));
    let mut inputs = InputMap::new();
    for input in &setting.job.inputs {
        let own = setting.storage.read_small(&input.name).unwrap();
        let bytes = if input.name == name { bytes } else { &own };
        let file = patched.create(epoch(), &input.name).unwrap();
        file.append(&[bytes]).unwrap();
        file.sync().unwrap();
        inputs.add_table(0, &input.name, patched.open(&input.name).unwrap());
    }
    Arc::new(inputs)
}

/// Damages one block of an input in some way that `damage` draws, and compares what both sides make
/// of the job. Returns whether the host's executor failed.
fn compare_damaged(
    setting: &Setting,
    gpu: &GpuExecutor,
    random: &mut Random,
    damage: impl Fn(&mut Random, &mut [u8], usize),
) -> bool {
    let number = random.below(setting.job.inputs.len() as u64) as usize;
    let name = &setting.job.inputs[number].name;
    let mut bytes = setting.storage.read_small(name).unwrap();
    let table = InputTable::open(setting.storage.open(name).unwrap()).unwrap();
    if table.block_count() == 0 {
        return false;
    }
    let place = table.place(random.below(table.block_count() as u64) as usize);
    let block = &mut bytes[place.start as usize..place.end as usize];
    damage(random, block, (place.anchor - place.start) as usize);
    let inputs = with_file(setting, name, &bytes);
    let ctx = || {
        let (runtime, inputs) = (setting.runtime.clone(), Arc::clone(&inputs));
        ExecContext::new(runtime, inputs, setting.storage.clone(), epoch())
    };
    let want = CpuExecutor::new().run(&setting.next_attempt(), &ctx());
    let found = gpu.run(&setting.next_attempt(), &ctx());
    match (&want, &found) {
        (Ok(want), Ok(found)) => {
            let is_same = setting.contents(want) == setting.contents(found);
            assert!(is_same, "tables differ");
        }
        // The GPU looks at more entries than the host, and leaves the verdict to the host.
        (_, Err(ExecError::Declined { reason })) => {
            assert!(!reason.contains("the GPU was wrong"), "{reason}");
        }
        (Err(want), Err(found)) => assert_eq!(want.to_string(), found.to_string()),
        (want, found) => panic!("{want:?} and {found:?}"),
    }
    want.iter().chain(&found).for_each(|o| setting.delete(o));
    assert_eq!(setting.storage.list().unwrap().len(), setting.count);
    want.is_err()
}

#[test]
fn flipped_bits_of_inputs_give_the_error_of_the_host() {
    for seed in 0..6 {
        let mut random = Random::new(100 + seed);
        let setting = setting(&a_small_world(&mut random));
        let gpu = match seed % 3 {
            0 => setting
                .open_as(options(), seed, Faults::default())
                .1
                .unwrap(),
            _ => open_believing(&setting, seed),
        };
        let mut failed = 0;
        for _ in 0..60 {
            let flip = |random: &mut Random, block: &mut [u8], _: usize| {
                let at = random.below(block.len() as u64) as usize;
                block[at] ^= 1 << random.below(8);
            };
            failed += u32::from(compare_damaged(&setting, &gpu, &mut random, flip));
        }
        assert!(failed > 20, "{failed}");
    }
}

/// Bytes with valid checksums that no writer makes.
#[test]
fn hostile_blocks_are_refused_as_by_the_host_or_declined() {
    let mut failed = 0;
    for seed in 0..12 {
        let mut random = Random::new(200 + seed);
        let setting = setting(&a_small_world(&mut random));
        let gpu = open_believing(&setting, seed);
        for _ in 0..150 {
            let change = |random: &mut Random, block: &mut [u8], anchor: usize| {
                let end = block.len() - 4;
                for _ in 0..1 + random.below(3) {
                    // Mostly the header, and otherwise some column.
                    let at = match random.one_in(2) {
                        true => anchor + random.below(32) as usize,
                        false => anchor + random.below((end - anchor) as u64) as usize,
                    };
                    block[at] = match random.below(3) {
                        0 => block[at] ^ 1 << random.below(8),
                        1 => random.below(256) as u8,
                        _ => random.of(&[0, 1, 4, 8, 255]),
                    };
                }
                let values = crc32c(&block[..anchor]).to_le_bytes();
                block[anchor + 24..anchor + 28].copy_from_slice(&values);
                let columns = crc32c(&block[anchor..end]).to_le_bytes();
                block[end..].copy_from_slice(&columns);
            };
            failed += u32::from(compare_damaged(&setting, &gpu, &mut random, change));
        }
    }
    assert!(failed > 300, "{failed}");
}

/// The last key of a table is above the first key of the next table of its run, and all checksums
/// are right. Whoever sorts, the job is left to the host, which says so.
#[test]
fn tables_of_a_run_that_are_not_in_order_are_found_by_every_strategy() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let table = |inputs: &mut InputMap, name: &str, letters: std::ops::RangeInclusive<u8>| {
        let row = |letter| {
            let seq = u64::from(letter);
            (vec![b'a', letter], trailer(seq, Kind::Put), vec![7; 100])
        };
        let content = Content {
            entries: letters.map(row).collect(),
            ..Content::default()
        };
        table_input(inputs, &storage, name, &content)
    };
    let mut inputs = InputMap::new();
    let mut job = a_job(1000);
    job.inputs = vec![
        table(&mut inputs, "low.tbl", b'0'..=b'3'),
        table(&mut inputs, "high.tbl", b'4'..=b'9'),
    ];
    change_last_head(&storage, "low.tbl", 4, b'x');
    inputs.add_table(0, "low.tbl", storage.open("bad.tbl").unwrap());
    let inputs: Arc<dyn Inputs> = Arc::new(inputs);
    let ctx = || ExecContext::new(runtime.clone(), inputs.clone(), storage.clone(), epoch());
    let wrong = CpuExecutor::new().run(&job, &ctx()).unwrap_err();
    assert!(wrong.to_string().contains("order of an input's entries"));
    for strategy in [Strategy::Full, Strategy::Cooperative, Strategy::Luda] {
        let device = Arc::new(EmulatedDevice::new(&runtime, MEMORY_BYTES, 1));
        let options = GpuOptions {
            strategy,
            ..options()
        };
        let gpu = GpuExecutor::open("gpu0", device, &runtime, options).unwrap();
        let found = gpu.run(&job, &ctx());
        let Err(ExecError::Declined { reason }) = found else {
            panic!("{strategy}: {found:?}");
        };
        assert!(reason.contains("out of order"), "{strategy}: {reason}");
        assert_eq!(storage.list().unwrap().len(), 3);
    }
}

/// The last key of a table is above what its properties say, so the pieces that have keys up there
/// do not read the table. The host's executor reads it as a whole.
#[test]
fn an_entry_that_no_piece_reads_is_missed() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let table = |inputs: &mut InputMap, name: &str, keys: Vec<Vec<u8>>| {
        let rows = keys.into_iter().zip(1u64..);
        let row = |(key, seq)| (key, trailer(seq, Kind::Put), vec![7; 100]);
        let content = Content {
            entries: rows.map(row).collect(),
            ..Content::default()
        };
        table_input(inputs, &storage, name, &content)
    };
    let mut inputs = InputMap::new();
    let mut job = a_job(10_000);
    let few = (b'0'..=b'3').map(|letter| vec![b'b', letter]).collect();
    let many = (0..3000)
        .map(|i| format!("b4{i:05}").into_bytes())
        .collect();
    job.inputs = vec![
        table(&mut inputs, "few.tbl", few),
        table(&mut inputs, "many.tbl", many),
    ];
    job.inputs[1].run = 1;
    let run = |inputs: &InputMap, attempt| {
        let device = Arc::new(EmulatedDevice::new(&runtime, 1 << 20, 1));
        let options = GpuOptions {
            memory_bytes_max: 1 << 20,
            lanes: 1,
            ..options()
        };
        let gpu = GpuExecutor::open("gpu0", device, &runtime, options).unwrap();
        let (inputs, storage) = (Arc::new(inputs.clone()), storage.clone());
        let ctx = ExecContext::new(runtime.clone(), inputs, storage, epoch());
        let mut job = job.clone();
        job.output.attempt = attempt;
        let host = CpuExecutor::new().run(&job, &ctx).unwrap().counters;
        job.output.attempt += 1;
        let found = gpu.run(&job, &ctx);
        (host.entries_read, found, count_of(&gpu, "gpu_pieces"))
    };
    let (read, found, pieces) = run(&inputs, 10);
    assert_eq!(found.unwrap().counters.entries_read, read);
    assert!(pieces > 2, "{pieces}");
    change_last_head(&storage, "few.tbl", 4, 0xff);
    inputs.add_table(0, "few.tbl", storage.open("bad.tbl").unwrap());
    let (read, found, _) = run(&inputs, 20);
    assert_eq!(read, 3004);
    match found.map(|outcome| outcome.counters) {
        Err(ExecError::Declined { reason }) => {
            let said = "have 3004 entries, and 3003 were read";
            assert!(reason.contains(said), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// Copies a table of one block to `bad.tbl`, with another first byte in the head of its last entry.
/// Its keys share the prefix of one byte, so heads are stored as integers of four bytes.
fn change_last_head(storage: &Arc<MemoryStorage>, name: &str, entries: usize, byte: u8) {
    let mut bytes = storage.read_small(name).unwrap();
    let table = InputTable::open(storage.open(name).unwrap()).unwrap();
    let place = table.place(0);
    let (anchor, end) = (place.anchor as usize, place.end as usize - 4);
    let last = anchor + 32 + 4 * entries - 1;
    assert_eq!((table.block_count(), bytes[last]), (1, b'3'));
    bytes[last] = byte;
    let columns = crc32c(&bytes[anchor..end]).to_le_bytes();
    bytes[end..end + 4].copy_from_slice(&columns);
    let file = storage.create(epoch(), "bad.tbl").unwrap();
    file.append(&[&bytes]).unwrap();
    file.sync().unwrap();
}

/// An executor with one lane.
fn executor_with(runtime: &Runtime, seed: u64, faults: Faults) -> GpuExecutor {
    let device = EmulatedDevice::with_faults(runtime, MEMORY_BYTES, seed, faults);
    let options = GpuOptions {
        lanes: 1,
        ..options()
    };
    GpuExecutor::open("gpu0", Arc::new(device), runtime, options).unwrap()
}

/// A count of the executor.
fn count_of(gpu: &GpuExecutor, name: &str) -> u64 {
    let counters = gpu.counters();
    let count = counters.iter().find(|(of, _)| of == name);
    count.map_or(0, |(_, count)| *count)
}

/// A kernel never ends. The job asks for it with few calls, and returns soon after it is cancelled.
/// Its lane is no slot any more, and the executor can be dropped.
#[test]
fn a_lane_whose_kernel_hangs_is_no_slot() {
    for hanging_kernel in [2, 20, 60] {
        let config = SimConfig {
            max_steps: 100_000,
            ..SimConfig::new(hanging_kernel)
        };
        let outcome = run(config, move |runtime| {
            let storage = Arc::new(MemoryStorage::new(&runtime));
            let (job, inputs) = a_small_world(&mut Random::new(1000)).write(&storage);
            let faults = Faults {
                hanging_kernel,
                ..Faults::default()
            };
            let gpu = Arc::new(executor_with(&runtime, 5, faults));
            let ctx = ExecContext::new(runtime.clone(), inputs, storage.clone(), epoch());
            let before = storage.list().unwrap().len();
            assert_eq!(gpu.slots(), 1);
            let (own, given, task_ctx) = (gpu.clone(), job.clone(), ctx.clone());
            let task = runtime.spawn("job", move || own.run(&given, &task_ctx));
            let task = task.unwrap();
            runtime.sleep(Duration::from_secs(60));
            assert!(!task.is_finished());
            ctx.cancel.cancel();
            runtime.sleep(Duration::from_millis(100));
            assert!(task.is_finished());
            assert!(matches!(task.join(), Ok(Err(ExecError::Cancelled))));
            assert_eq!(gpu.slots(), 0);
            assert!(matches!(
                gpu.run(&job, &ctx),
                Err(ExecError::Declined { .. })
            ));
            assert_eq!(storage.list().unwrap().len(), before);
        });
        if let Err(failure) = outcome.result {
            panic!("kernel {hanging_kernel}: {failure}");
        }
    }
}

/// A call fails, at any place of a job, and later ones do not: the next job is done.
#[test]
fn a_job_after_one_that_failed_is_done() {
    let runtime = Runtime::threads();
    let storage = Arc::new(MemoryStorage::new(&runtime));
    let (job, inputs) = a_small_world(&mut Random::new(1000)).write(&storage);
    let mut failed_count = 0;
    for failing_call in (10..400).step_by(13) {
        let faults = Faults {
            failing_call,
            ..Faults::default()
        };
        let gpu = executor_with(&runtime, 5, faults);
        let mut given = job.clone();
        given.output.attempt = 100 + failing_call;
        let ctx = ExecContext::new(runtime.clone(), inputs.clone(), storage.clone(), epoch());
        if gpu.run(&given, &ctx).is_err() {
            failed_count += 1;
            // What the first job had started ends first.
            let is_free = (0..10_000).any(|_| gpu.slots() == 1);
            assert!(is_free, "call {failing_call}");
            given.output.attempt = 1000 + failing_call;
            let next = gpu.run(&given, &ctx);
            assert!(next.is_ok(), "call {failing_call}: {next:?}");
        }
        assert_eq!(count_of(&gpu, "gpu_mismatches"), 0);
    }
    assert!(failed_count > 10, "{failed_count}");
}

//! The transfer `direct` on the emulated device, with files of a folder that are open for direct
//! I/O: the tables are those of the host's executor, whatever goes wrong on the way. Where the file
//! system of temporary files has no direct I/O, the tests say so and try nothing.

#[path = "../../table/tests/common/mod.rs"]
mod common;
mod generate;
mod same;
mod setting;

use std::ops::Deref;
use std::sync::Arc;

use common::epoch;
use generate::{Random, World, a_small_world, a_world};
use setting::{Setting, is_declined};
use siltstone_gpu::device::DirectMode;
use siltstone_gpu::device::emulated::{EmulatedDevice, Faults};
use siltstone_gpu::{GpuExecutor, GpuOptions, Transfer};
use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{
    DirectStorage, FileStorage, Mutex, ReadFile, Result as StorageResult, Runtime, Storage,
    StorageError, StorageErrorKind, WriteByDescriptor, WriteFile,
};
use siltstone_table::check::check;
use siltstone_table::exec::{
    CpuExecutor, ExecContext, ExecError, Executor, Inputs, RemarkListener,
};
use siltstone_table::job::outcome::Outcome;
use siltstone_table::{ReaderOptions, TableReader};

/// Enough for every small job.
const MEMORY_BYTES: u64 = 4 << 20;

/// Enough for every job.
const LARGE_MEMORY_BYTES: u64 = 32 << 20;

fn options(memory_bytes: u64, seed: u64) -> GpuOptions {
    GpuOptions {
        transfer: Transfer::Direct,
        memory_bytes_max: memory_bytes,
        pinned_bytes_max: 256 << 10,
        jobs: 1,
        lanes: 1 + (seed % 2) as usize,
        job_bytes_min: 0,
        ..GpuOptions::default()
    }
}

/// A job whose files lie in a folder.
struct InFolder {
    setting: Setting,
    remarks: Arc<Remarks>,
    folder: tempfile::TempDir,
}

impl Deref for InFolder {
    type Target = Setting;

    fn deref(&self) -> &Setting {
        &self.setting
    }
}

/// What an executor has said of its jobs.
struct Remarks(Mutex<Vec<String>>);

impl RemarkListener for Remarks {
    fn remark(&self, text: &str) {
        self.0.lock().push(text.to_string());
    }
}

/// A folder, or none if it has no direct I/O.
fn folder() -> Option<(tempfile::TempDir, Arc<FileStorage>)> {
    let folder = tempfile::tempdir().unwrap();
    let files = FileStorage::open_or_create(folder.path()).unwrap();
    match files.check_direct() {
        Ok(()) => Some((folder, Arc::new(files))),
        Err(error) => {
            eprintln!("skipped: {error}");
            None
        }
    }
}

impl InFolder {
    /// `outputs` gives the storage of outputs, made of the folder's.
    fn with(
        world: &World,
        outputs: impl FnOnce(Arc<FileStorage>) -> Arc<dyn Storage>,
    ) -> Option<InFolder> {
        let (folder, files) = folder()?;
        let runtime = Runtime::threads();
        let direct: Arc<dyn Storage> = Arc::new(DirectStorage::new(files.clone()));
        let given = world.write(&direct);
        let remarks = Arc::new(Remarks(runtime.mutex(Vec::new())));
        let mut setting = Setting::of(runtime, outputs(files), given);
        setting.remarks = Some(remarks.clone());
        Some(InFolder {
            setting,
            remarks,
            folder,
        })
    }

    fn new(world: &World) -> Option<InFolder> {
        InFolder::with(world, |files| Arc::new(DirectStorage::new(files)))
    }

    fn open(
        &self,
        seed: u64,
        faults: Faults,
    ) -> (Arc<EmulatedDevice>, Result<GpuExecutor, String>) {
        self.open_with(MEMORY_BYTES, seed, faults)
    }

    fn open_with(
        &self,
        memory_bytes: u64,
        seed: u64,
        faults: Faults,
    ) -> (Arc<EmulatedDevice>, Result<GpuExecutor, String>) {
        let options = GpuOptions {
            verified_first: 0,
            verified_share: 0,
            ..options(memory_bytes, seed)
        };
        self.open_as(options, seed, faults)
    }

    /// An executor that checks everything.
    fn open_checking(
        &self,
        seed: u64,
        faults: Faults,
    ) -> (Arc<EmulatedDevice>, Result<GpuExecutor, String>) {
        let options = GpuOptions {
            verifies_all: true,
            ..options(MEMORY_BYTES, seed)
        };
        self.open_as(options, seed, faults)
    }

    /// Whether the tables have blocks whose checksums are wrong.
    fn are_damaged(&self, outcome: &Outcome) -> bool {
        outcome.tables.iter().any(|table| {
            let file = self.storage.open(&table.name).unwrap();
            let table = TableReader::open(file, ReaderOptions::default()).unwrap();
            !check(&table).unwrap().damage.is_empty()
        })
    }
}

/// A small job whose files are so large that there are several transfers, and their number.
fn with_transfers() -> Option<(InFolder, u64)> {
    for seed in 1..100 {
        let setting = InFolder::new(&a_small_world(&mut Random::new(seed)))?;
        let (device, gpu) = setting.open(2, Faults::default());
        setting.run(&gpu.unwrap()).unwrap();
        if device.transfer_count() >= 6 {
            return Some((setting, device.transfer_count()));
        }
    }
    panic!("no job has several transfers");
}

fn count_of(gpu: &GpuExecutor, name: &str) -> u64 {
    let counters = gpu.counters();
    let found = counters.iter().find(|(of, _)| of == name);
    found.unwrap_or_else(|| panic!("no {name}")).1
}

#[test]
fn random_jobs_make_the_tables_of_the_host() {
    let (mut read, mut written) = (0, 0);
    for seed in 1..=24 {
        let world = a_world(&mut Random::new(seed));
        let Some(setting) = InFolder::new(&world) else {
            return;
        };
        let (_, gpu) = setting.open_with(LARGE_MEMORY_BYTES, seed, Faults::default());
        let gpu = gpu.unwrap();
        assert_eq!(gpu.direct_mode(), Some(&DirectMode::Emulated));
        let result = setting.run(&gpu);
        assert!(result.is_ok(), "seed {seed}, {world}: {result:?}");
        read += count_of(&gpu, "gpu_direct_read_bytes");
        written += count_of(&gpu, "gpu_direct_written_bytes");
    }
    assert!(
        read > 4 << 20 && written > 1 << 20,
        "{read} and {written} bytes"
    );
}

/// The files of the inputs, the outputs, or both are in the page cache.
#[test]
fn files_that_are_not_open_for_direct_io_go_through_the_ring() {
    let world = a_world(&mut Random::new(5));
    let Some((_folder, files)) = folder() else {
        return;
    };
    let runtime = Runtime::threads();
    let direct: Arc<dyn Storage> = Arc::new(DirectStorage::new(files.clone()));
    let (job, direct_inputs) = world.write(&direct);
    let mut cached_inputs = siltstone_table::exec::InputMap::new();
    for input in &job.inputs {
        cached_inputs.add_table(0, &input.name, files.open(&input.name).unwrap());
    }
    let inputs: [Arc<dyn Inputs>; 2] = [Arc::new(cached_inputs), direct_inputs];
    let outputs: [Arc<dyn Storage>; 2] = [files, direct];
    let mut want = None;
    for which in 0..4u64 {
        let (reads, writes) = (which & 1, which >> 1);
        let ctx = ExecContext {
            max_parallel: 2,
            ..ExecContext::new(
                runtime.clone(),
                Arc::clone(&inputs[reads as usize]),
                Arc::clone(&outputs[writes as usize]),
                epoch(),
            )
        };
        let device = Arc::new(EmulatedDevice::new(&runtime, LARGE_MEMORY_BYTES, 3));
        let options = GpuOptions {
            transfer: Transfer::Direct,
            memory_bytes_max: LARGE_MEMORY_BYTES,
            jobs: 1,
            verified_first: 0,
            verified_share: 0,
            job_bytes_min: 0,
            ..GpuOptions::default()
        };
        let gpu = GpuExecutor::open("gpu0", device, &runtime, options).unwrap();
        let mut again = job.clone();
        again.output.attempt = which + 1;
        let outcome = gpu.run(&again, &ctx).unwrap();
        let contents: Vec<_> = outcome
            .tables
            .iter()
            .map(|table| same::content(&*outputs[0], &table.name))
            .collect();
        assert!(*want.get_or_insert_with(|| contents.clone()) == contents);
        let (read, written) = (
            count_of(&gpu, "gpu_direct_read_bytes"),
            count_of(&gpu, "gpu_direct_written_bytes"),
        );
        assert_eq!((read > 0, written > 0), (reads == 1, writes == 1));
    }
}

#[test]
fn every_call_may_fail() {
    let Some(setting) = InFolder::new(&a_small_world(&mut Random::new(1))) else {
        return;
    };
    let (device, gpu) = setting.open(1, Faults::default());
    setting.run(&gpu.unwrap()).unwrap();
    let (calls, ..) = device.counts();
    let mut declined = 0;
    for call in 1..=calls {
        let faults = Faults {
            failing_call: call,
            is_sticky: call % 3 == 0,
            ..Faults::default()
        };
        let (device, gpu) = setting.open(call, faults);
        let gpu = match gpu {
            Ok(gpu) => gpu,
            Err(text) => {
                assert!(text.contains("an error that was asked for"), "{text}");
                continue;
            }
        };
        let result = setting.run(&gpu);
        declined += u64::from(is_declined(&result));
        assert!(result.is_ok() || is_declined(&result), "{result:?}");
        assert!(device.events_in_use() <= 2, "call {call}");
    }
    assert!(declined > calls / 3, "{declined} of {calls}");
}

/// Bytes that were read directly are compared with their checksums on the device. If one is wrong,
/// the piece is read again, through memory of the host, so the job succeeds. A wrong bit on the way
/// to a file is found by the checksums there: whoever verifies an outcome sees it.
#[test]
fn a_flipped_bit_in_a_transfer_is_found() {
    let (mut repeated, mut damaged, mut tries) = (0, 0, 0);
    for seed in 1..=4 {
        let Some(setting) = InFolder::new(&a_small_world(&mut Random::new(seed))) else {
            return;
        };
        let (device, gpu) = setting.open(2, Faults::default());
        setting.run(&gpu.unwrap()).unwrap();
        let (_, copies, _) = device.counts();
        let mut random = Random::new(seed);
        // Each run waits for the disk, so some of the copies are drawn.
        let drawn = |_: &u64| random.below(copies) < 30;
        let drawn: Vec<u64> = (1..=copies).filter(drawn).collect();
        for copy in drawn {
            let faults = Faults {
                flipped_copy: copy,
                flipped_bit: random.below(1 << 40),
                ..Faults::default()
            };
            let (_, gpu) = setting.open(2, faults);
            let gpu = gpu.unwrap();
            let result = setting.run_and(&gpu, &setting.context(), |outcome| {
                let are_damaged = setting.are_damaged(outcome);
                damaged += u64::from(are_damaged);
                assert!(are_damaged || setting.contents(outcome) == setting.want);
            });
            assert!(result.is_ok() || is_declined(&result), "{result:?}");
            if result.is_ok() {
                repeated += count_of(&gpu, "gpu_direct_repeated_pieces");
            }
            tries += 1;
        }
    }
    assert!(
        repeated > 3 && damaged > 3,
        "{repeated}, {damaged} of {tries}"
    );
}

/// The bits of the copies are flipped for an executor that checks everything, so no outcome is
/// wrong, and the table is right also if the bit is one of a direct write.
#[test]
fn an_executor_that_checks_everything_returns_no_damage() {
    let Some((setting, transfers)) = with_transfers() else {
        return;
    };
    let (device, gpu) = setting.open_checking(2, Faults::default());
    setting.run(&gpu.unwrap()).unwrap();
    let (_, copies, _) = device.counts();
    assert_eq!(device.transfer_count(), transfers);
    let mut random = Random::new(7);
    let drawn = |_: &u64| random.below(copies) < 30;
    let drawn: Vec<u64> = (1..=copies).filter(drawn).collect();
    let flips = drawn.into_iter().map(|copy| Faults {
        flipped_copy: copy,
        flipped_bit: copy * 1_234_567,
        ..Faults::default()
    });
    let idle = (1..=transfers).map(|transfer| Faults {
        idle_transfer: transfer,
        ..Faults::default()
    });
    let mut declined = 0;
    for faults in flips.chain(idle) {
        let (_, gpu) = setting.open_checking(2, faults);
        let gpu = gpu.unwrap();
        let result = setting.run(&gpu);
        declined += u64::from(is_declined(&result));
        assert!(
            result.is_ok() || is_declined(&result),
            "{faults:?}: {result:?}"
        );
    }
    assert!(declined > 3, "{declined}");
}

/// Memory of a lane may hold sound blocks of an earlier job, which must not be taken for those of a
/// file that was not read.
#[test]
fn a_transfer_that_moves_nothing_is_found() {
    let Some((setting, transfers)) = with_transfers() else {
        return;
    };
    let (mut repeated, mut damaged) = (0, 0);
    for transfer in 1..=transfers {
        let faults = Faults {
            // In the second job, the memory has the blocks of the first.
            idle_transfer: transfers + transfer,
            ..Faults::default()
        };
        let (_, gpu) = setting.open(2, faults);
        let gpu = gpu.unwrap();
        setting.run(&gpu).unwrap();
        let result = setting.run_and(&gpu, &setting.context(), |outcome| {
            let are_damaged = setting.are_damaged(outcome);
            damaged += u64::from(are_damaged);
            assert!(are_damaged || setting.contents(outcome) == setting.want);
        });
        result.unwrap();
        repeated += count_of(&gpu, "gpu_direct_repeated_pieces");
    }
    assert!(
        repeated > 0 && repeated + damaged == transfers,
        "{repeated}, {damaged}"
    );
}

#[test]
fn files_that_the_device_refuses_go_through_the_ring() {
    let Some((setting, _)) = with_transfers() else {
        return;
    };
    let faults = Faults {
        refuses_files: true,
        ..Faults::default()
    };
    let (_, gpu) = setting.open(2, faults);
    let gpu = gpu.unwrap();
    setting.run(&gpu).unwrap();
    assert!(count_of(&gpu, "gpu_direct_refused_files") > 1);
    // People hear of it.
    let remarks = setting.remarks.0.lock();
    assert!(
        remarks.contains(&"direct transfers: emulated".to_string()),
        "{remarks:?}"
    );
    let refused = "no direct transfer of a file: open_file failed: files are refused";
    assert_eq!(remarks.last().unwrap(), refused);
    for name in ["read_bytes", "written_bytes", "repeated_pieces"] {
        assert_eq!(count_of(&gpu, &format!("gpu_direct_{name}")), 0);
    }
}

/// A block that is damaged in its file has the error of the host.
#[test]
fn a_damaged_input_has_the_error_of_the_host() {
    let world = a_small_world(&mut Random::new(4));
    let Some(setting) = InFolder::new(&world) else {
        return;
    };
    let (_, gpu) = setting.open(2, Faults::default());
    let gpu = gpu.unwrap();
    let name = &setting.job.inputs[0].name;
    let path = setting.folder.path().join(name);
    let mut bytes = std::fs::read(&path).unwrap();
    bytes[40] ^= 4;
    std::fs::write(&path, bytes).unwrap();
    let want = CpuExecutor::new().run(&setting.job, &setting.context());
    let want = want.unwrap_err();
    let found = setting.run(&gpu).unwrap_err();
    assert_eq!(found.to_string(), want.to_string());
    assert!(!matches!(found, ExecError::Declined { .. }), "{found}");
}

/// A storage whose disk is full when the device writes to it.
struct Full(Arc<dyn Storage>);

impl Wrapper for Full {
    fn inner(&self) -> &dyn Storage {
        &*self.0
    }

    fn make<T>(&self, _: Call<'_>, mut run: impl FnMut() -> StorageResult<T>) -> StorageResult<T> {
        run()
    }

    fn opened(&self, file: Arc<dyn WriteFile>) -> Arc<dyn WriteFile> {
        Arc::new(FullFile(file))
    }

    fn opened_to_read(&self, file: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        file
    }
}

struct FullFile(Arc<dyn WriteFile>);

impl WriteFile for FullFile {
    fn name(&self) -> &str {
        self.0.name()
    }
    fn position(&self) -> u64 {
        self.0.position()
    }
    fn append(&self, parts: &[&[u8]]) -> StorageResult<()> {
        self.0.append(parts)
    }
    fn append_by_descriptor(
        &self,
        len: u64,
        write: &mut WriteByDescriptor<'_>,
    ) -> StorageResult<bool> {
        let mut write = |file: siltstone_storage::DirectFile<'_>, offset| {
            assert!(write(file, offset)?);
            Err(std::io::Error::from_raw_os_error(28))
        };
        self.0.append_by_descriptor(len, &mut write)
    }
    fn reserve(&self, len: u64) -> StorageResult<()> {
        self.0.reserve(len)
    }
    fn len(&self) -> u64 {
        self.0.len()
    }
    fn sync(&self) -> StorageResult<()> {
        self.0.sync()
    }
    fn truncate_to_position(&self) -> StorageResult<()> {
        self.0.truncate_to_position()
    }
}

#[test]
fn a_full_disk_is_an_error_of_the_disk_and_not_of_the_gpu() {
    let world = a_world(&mut Random::new(5));
    let full = |files: Arc<FileStorage>| -> Arc<dyn Storage> {
        let direct: Arc<dyn Storage> = Arc::new(DirectStorage::new(files));
        Arc::new(Wrapped(Full(direct)))
    };
    let Some(setting) = InFolder::with(&world, full) else {
        return;
    };
    let (_, gpu) = setting.open_with(LARGE_MEMORY_BYTES, 2, Faults::default());
    let gpu = gpu.unwrap();
    let error = setting.run(&gpu).unwrap_err();
    let ExecError::Failed(table) = &error else {
        panic!("{error:?}");
    };
    let siltstone_table::TableError::Storage(StorageError { kind, op, .. }) = table else {
        panic!("{table:?}");
    };
    assert_eq!((*kind, *op), (StorageErrorKind::NoSpace, "append"));
    assert_eq!(count_of(&gpu, "gpu_device_errors"), 0);
}

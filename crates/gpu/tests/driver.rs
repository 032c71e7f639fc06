//! `device::cuda` against libraries that look like the driver's (`tests/fake/cuda.c`), which are
//! compiled here. The driver's library is loaded once in a process, so each case is a child: this
//! test program, with the fake library first in the loader's path, running [`child`].

mod fake;

use std::path::Path;

use fake::{CHILD, Fake};
use siltstone_gpu::device::cuda::{self, CudaDevice};
use siltstone_gpu::device::{
    Device, DeviceError, PinnedBuffer, Region, Stream, TransferError, Unavailable,
};
use siltstone_storage::{DirectFile, Runtime};

/// One kernel: `out[i] = begin + i` for `i < count`.
const PTX: &str = "// sources\n.version 8.4\n.target sm_80\n.address_size 64\n\
    .visible .entry prove(\n\t.param .align 8 .b8 prove_param_0[24]\n)\n{\n\tret;\n}\n";

/// The code that makes all later calls fail.
const LOST: u32 = 700;

#[test]
fn without_a_library_it_is_said_what_was_looked_for() {
    let said = Fake::none().run("list", &[]);
    let why = said.after("unavailable: ").unwrap();
    assert!(
        why.contains("no NVIDIA driver") && why.contains("libcuda.so.1"),
        "{why}"
    );
    let said = Fake::none().run("trip", &[]);
    assert!(
        said.after("unavailable: ")
            .unwrap()
            .contains("libcuda.so.1")
    );
}

#[test]
fn a_library_without_some_calls_is_refused() {
    let said = Fake::compiled(&["-DWITHOUT_LAUNCH"]).run("list", &[]);
    let why = said.after("unavailable: ").unwrap();
    assert!(
        why.contains("has no cuLaunchKernel, cuEventQuery; install"),
        "{why}"
    );
}

#[test]
fn what_a_driver_lacks_is_named() {
    let fake = Fake::compiled(&[]);
    for (variables, expected) in [
        (
            ("FAKE_INIT", 100),
            "sees no GPU (cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable",
        ),
        (("FAKE_DEVICES", 0), "sees no GPU (cuDeviceGetCount: 0)"),
        (
            ("FAKE_VERSION", 12020),
            "supports CUDA 12.2 at most, and the kernels need CUDA 12.4",
        ),
        (
            ("FAKE_CAPABILITY", 75),
            "compute capability 8.0 or later is needed, found Fake 0 (7.5)",
        ),
        (
            ("FAKE_INIT", 803),
            "cuInit failed: an error with the code 803, which the driver does",
        ),
        (("FAKE_INIT", 803), "restart the machine"),
        // No enum has this code.
        (("FAKE_INIT", 54321), "an error with the code 54321"),
    ] {
        for what in ["list", "trip"] {
            let said = fake.run(what, &[variables]);
            let why = said.after("unavailable: ");
            let why = why.unwrap_or_else(|| panic!("{variables:?}: {}", said.out));
            assert!(why.contains(expected), "{variables:?}: {why}");
            assert_eq!(said.count("made") + said.count("wrong"), 0);
        }
    }
    let said = fake.run("list", &[("FAKE_DEVICES", 2)]);
    let facts = said.after("found: ").unwrap();
    for expected in [
        "Fake 0",
        "Fake 1",
        "(9, 0)",
        "(12, 4)",
        "0000:29:00.0",
        "132",
    ] {
        assert!(facts.contains(expected), "{facts}");
    }
    // The fourth call asks for the first GPU. The other one is found all the same.
    let said = fake.run("list", &[("FAKE_DEVICES", 2), ("FAKE_FAIL_AT", 4)]);
    let facts = said.after("found: ").unwrap();
    assert!(
        facts.contains("Fake 1") && !facts.contains("Fake 0"),
        "{facts}"
    );
    let said = fake.run("list", &[("FAKE_FAIL_AT", 4)]);
    let why = said.after("unavailable: ").unwrap();
    assert!(why.starts_with("cuDeviceGet failed: "), "{why}");
    let said = fake.run("other", &[("FAKE_DEVICES", 2)]);
    assert_eq!(
        said.after("unavailable: "),
        Some(
            "there is no GPU 2: the NVIDIA driver sees 2, and \
                                                  the first has number 0"
        )
    );
}

#[test]
fn kernels_that_the_driver_refuses_are_an_error_with_its_words() {
    let said = Fake::compiled(&[]).run("mistake", &[]);
    let why = said.after("unavailable: ").unwrap();
    assert!(
        why.contains("CUDA_ERROR_INVALID_PTX") && why.contains("line 3: a mistake"),
        "{why}"
    );
    assert_eq!(
        (
            said.count("alive"),
            said.count("wrong"),
            said.count("pushed")
        ),
        (0, 0, 0)
    );
}

#[test]
fn a_round_trip_leaves_nothing_behind() {
    let said = Fake::compiled(&[]).run("trip", &[]);
    assert!(
        said.after("the trip is over").is_some(),
        "{}\n{}",
        said.out,
        said.err
    );
    assert!(
        said.err.contains("fake: launch prove 2*256\n"),
        "{}",
        said.err
    );
    assert_eq!(said.count("made"), said.count("freed"));
    for name in ["left", "alive", "wrong", "pushed"] {
        assert_eq!(said.count(name), 0, "{name}: {}", said.err);
    }
}

/// Each call of the trip fails, once by itself and once with all later calls.
#[test]
fn every_call_may_fail() {
    let fake = Fake::compiled(&[]);
    let calls = fake.run("trip", &[]).count("calls");
    assert!(calls > 100, "{calls}");
    for code in [2, LOST] {
        let (mut in_trip, mut in_drop) = (0, 0);
        for call in 1..=calls {
            let variables = [("FAKE_FAIL_AT", call), ("FAKE_FAIL_WITH", code)];
            let said = fake.run("trip", &variables);
            let about = format!("call {call}, code {code}: {}\n{}", said.out, said.err);
            let failed = said
                .err
                .lines()
                .find_map(|line| line.strip_prefix("fake: failed "));
            let failed = failed.unwrap_or_else(|| panic!("{about}"));
            let error = said
                .after("error: ")
                .or_else(|| said.after("unavailable: "));
            match error {
                Some(error) => {
                    in_trip += 1;
                    assert!(error.contains(&format!("{failed} failed: ")), "{about}");
                    assert_eq!(error.contains("sticky=true"), code == LOST, "{about}");
                }
                // Errors of the destructor are nobody's.
                None => {
                    in_drop += 1;
                    assert!(said.after("the trip is over").is_some(), "{about}");
                }
            }
            assert_eq!(said.count("wrong"), 0, "{about}");
            let is_context_left = failed == "cuCtxDestroy_v2";
            assert_eq!(said.count("alive"), u32::from(is_context_left), "{about}");
            let is_pushed = failed == "cuCtxPopCurrent_v2";
            assert_eq!(said.count("pushed"), u32::from(is_pushed), "{about}");
        }
        assert!(in_trip > 80 && in_drop > 8, "{in_trip} and {in_drop}");
    }
}

/// An event that could not be recorded goes back to the pool.
#[test]
fn events_are_used_again() {
    let fake = Fake::compiled(&[]);
    let without = fake.run("pool", &[]);
    let mut tried = 0;
    for call in 1..=without.count("calls") {
        let said = fake.run("pool", &[("FAKE_FAIL_AT", call)]);
        if said.err.contains("fake: failed cuEventRecord\n") {
            assert_eq!(said.after("recorded "), Some("3"), "{}", said.out);
            assert_eq!(said.count("made"), without.count("made"), "{}", said.err);
            tried += 1;
        }
    }
    assert_eq!(tried, 3);
}

#[test]
fn a_gpu_that_does_not_come_to_rest_keeps_its_memory() {
    let said = Fake::compiled(&[]).run("stuck", &[("FAKE_STUCK", 1)]);
    assert!(
        said.after("the device was dropped").is_some(),
        "{}\n{}",
        said.out,
        said.err
    );
    assert_eq!((said.count("freed"), said.count("left")), (0, 0));
    assert_eq!(
        (said.count("alive"), said.count("wrong")),
        (said.count("made"), 0)
    );
    assert_eq!(said.count("pushed"), 0);
}

#[test]
fn direct_transfers_move_bytes_and_leave_nothing_behind() {
    let fake = Fake::with_files(&[]);
    for (variables, mode) in [
        (&[][..], "DMA by nvidia-fs 2.17"),
        (&[("FAKE_FILE_SHORT", 3000)], "DMA by nvidia-fs 2.17"),
        (&[("FAKE_FILE_NVFS", 0)], "cuFile without nvidia-fs"),
        // The memory cannot be registered.
        (
            &[("FAKE_FILE_FAIL_AT", 3)],
            "DMA by nvidia-fs 2.17, through buffers of cuFile, because 1 regions of memory",
        ),
    ] {
        let said = fake.run("files", variables);
        let found = said
            .after("mode: ")
            .unwrap_or_else(|| panic!("{}", said.out));
        assert!(found.starts_with(mode), "{found}");
        assert!(said.after("the bytes are right").is_some(), "{}", said.out);
        for name in ["wrong", "buffers", "handles"] {
            assert_eq!(said.count_of("cufile", name), 0, "{name}: {}", said.err);
        }
        for name in ["left", "alive", "wrong", "pushed"] {
            assert_eq!(said.count(name), 0, "{name}: {}", said.err);
        }
    }
}

#[test]
fn without_libcufile_it_is_said_what_is_missing() {
    let said = Fake::compiled(&[])
        .with("cufile.c", "libcufile.so.0", &["-DWITHOUT_WRITE"])
        .run("files", &[]);
    assert_eq!(
        said.after("not direct: "),
        Some("libcufile.so.0 has no cuFileWrite")
    );
    let none = Fake::compiled(&[]);
    for name in ["libcufile.so.0", "libcufile.so"] {
        std::fs::write(none.folder.path().join(name), "not a library").unwrap();
    }
    let said = none.run("files", &[]);
    let why = said.after("not direct: ").unwrap();
    assert!(why.contains("there is no libcufile"), "{why}");
    assert!(why.contains("install GPUDirect Storage"), "{why}");
}

/// Each call of the library of direct transfers fails.
#[test]
fn every_call_of_libcufile_may_fail() {
    let fake = Fake::with_files(&[]);
    let calls = fake.run("files", &[]).count_of("cufile", "calls");
    assert!(calls > 8, "{calls}");
    for code in [5008, 5011, 5] {
        for call in 1..=calls {
            let variables = [("FAKE_FILE_FAIL_AT", call), ("FAKE_FILE_FAIL_WITH", code)];
            let said = fake.run("files", &variables);
            let about = format!("call {call}, code {code}: {}\n{}", said.out, said.err);
            let failed = said.err.lines();
            let mut failed = failed.filter_map(|line| line.strip_prefix("cufile: failed "));
            let failed = failed.next().unwrap_or_else(|| panic!("{about}"));
            let of_device = said.after("not direct: ").or(said.after("error: "));
            match (failed, code) {
                // Memory that is not registered can be reached, and a mode is only for people.
                (
                    "cuFileBufRegister"
                    | "cuFileBufDeregister"
                    | "cuFileHandleDeregister"
                    | "cuFileDriverGetProperties",
                    _,
                ) => assert!(said.after("the bytes are right").is_some(), "{about}"),
                _ => {
                    let error = of_device.unwrap_or_else(|| panic!("{about}"));
                    assert!(error.contains(&format!("{failed} failed: ")), "{about}");
                    let is_errno = code == 5 && matches!(failed, "cuFileRead" | "cuFileWrite");
                    match is_errno {
                        true => assert!(error.contains("os error 5"), "{about}"),
                        false => assert!(error.contains(&format!("code {code}")), "{about}"),
                    }
                    let has_driver_code = error.contains("CUDA's code 201");
                    let is_status = !matches!(failed, "cuFileRead" | "cuFileWrite");
                    assert_eq!(has_driver_code, code == 5011 && is_status, "{about}");
                }
            }
            assert_eq!(said.count_of("cufile", "wrong"), 0, "{about}");
            assert_eq!(said.count_of("cufile", "handles"), 0, "{about}");
            assert_eq!(
                (said.count("alive"), said.count("pushed")),
                (0, 0),
                "{about}"
            );
        }
    }
}

/// Kernels are compiled at run time, by a library that is looked for then.
#[test]
fn kernels_of_a_folder_are_compiled() {
    let fake = Fake::compiled(&[]).with("nvrtc.c", "libnvrtc.so.12", &[]);
    let folder = fake.folder.path().join("kernels");
    let missing = fake.run("source", &[]);
    let why = missing.after("not compiled: ").unwrap();
    assert!(why.contains("kernels.cu cannot be read: "), "{why}");

    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("kernels.cu"), "the source\n").unwrap();
    let said = fake.run("source", &[]);
    let options = format!(
        "the source|option --gpu-architecture=compute_80|option -default-device|option \
         --std=c++17|option --include-path={}|",
        folder.display()
    );
    assert_eq!(said.after("compiled: "), Some(&options[..]));
    assert_eq!((said.count_of("nvrtc", "alive")), 0);
    for call in 1..=4 {
        let said = fake.run("source", &[("FAKE_NVRTC_FAIL", call)]);
        let why = said.after("not compiled: ").unwrap();
        assert!(why.contains(" failed with the code 6"), "{why}");
        assert_eq!(
            why.contains("it says: kernels.cu(3): error: a mistake"),
            call == 2
        );
        assert_eq!(said.count_of("nvrtc", "alive"), 0);
    }

    let none = Fake::compiled(&[]);
    for name in [
        "libnvrtc.so",
        "libnvrtc.so.11.2",
        "libnvrtc.so.12",
        "libnvrtc.so.13",
    ] {
        std::fs::write(none.folder.path().join(name), "not a library").unwrap();
    }
    let folder = none.folder.path().join("kernels");
    std::fs::create_dir(&folder).unwrap();
    std::fs::write(folder.join("kernels.cu"), "the source\n").unwrap();
    let said = none.run("source", &[]);
    let why = said.after("not compiled: ").unwrap();
    assert!(
        why.contains("there is no libnvrtc") && why.contains("SILT_GPU_SOURCE"),
        "{why}"
    );
}

// What follows runs in the children.

#[test]
fn child() {
    let Ok(what) = std::env::var(CHILD) else {
        return;
    };
    let open = |index, ptx: &str| match CudaDevice::open(index, ptx) {
        Ok(device) => Some(device),
        Err(why) => {
            say(&why);
            None
        }
    };
    match what.as_str() {
        "list" => match cuda::list() {
            Ok(facts) => println!("found: {facts:?}"),
            Err(why) => say(&why),
        },
        "other" => drop(open(2, PTX)),
        "mistake" => drop(open(0, &PTX.replace("ret;", "a mistake;"))),
        "trip" => {
            if let Some(device) = open(0, PTX) {
                match trip(device) {
                    Ok(()) => println!("the trip is over"),
                    Err(error) => println!("error: {error} sticky={}", error.is_sticky()),
                }
            }
        }
        "pool" => {
            let Some(device) = open(0, PTX) else { return };
            let Ok(stream) = device.stream() else { return };
            let events = (0..3).map(|_| {
                let event = device.record(stream);
                let event = event.or_else(|_| device.record(stream))?;
                device.release(event);
                Ok::<_, DeviceError>(event)
            });
            println!("recorded {}", events.flatten().count());
        }
        "stuck" => {
            let device = open(0, PTX).unwrap();
            let stream = device.stream().unwrap();
            let region = device.alloc(64).unwrap();
            let buffer = device.alloc_pinned(64).unwrap();
            device.copy_in(stream, region, &buffer, 0..64).unwrap();
            let event = device.record(stream).unwrap();
            assert_eq!(device.is_done(event), Ok(false));
            assert_eq!(device.is_done(event), Ok(false));
            drop((device, buffer));
            println!("the device was dropped");
        }
        "source" => {
            let libraries = std::env::var_os("LD_LIBRARY_PATH").unwrap();
            match cuda::compile(&Path::new(&libraries).join("kernels")) {
                Ok(ptx) => println!("compiled: {}", ptx.replace('\n', "|")),
                Err(why) => println!("not compiled: {why}"),
            }
        }
        "files" => {
            let device = open(0, PTX).unwrap();
            match files(&device) {
                Ok(true) => println!("the bytes are right"),
                Ok(false) => {}
                Err(TransferError::File(error)) => println!("error of the file: {error}"),
                Err(TransferError::Device(error)) => println!("error: {error}"),
            }
        }
        what => panic!("{what}"),
    }
}

/// Copies a file to another one, through the memory of a GPU. Returns whether that is possible.
fn files(device: &CudaDevice) -> Result<bool, TransferError> {
    let region = device.alloc(65536)?;
    let begun = device.begin_direct();
    let mode = match begun {
        Ok(mode) => mode,
        Err(why) => {
            println!("not direct: {why}");
            return Ok(false);
        }
    };
    println!("mode: {mode}");
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let bytes: Vec<u8> = (0..50_000u32).map(|i| (i * 7 % 251) as u8).collect();
    std::fs::write(path("from"), &bytes).unwrap();
    let from = std::fs::File::open(path("from")).unwrap();
    let to = std::fs::File::create(path("to")).unwrap();
    let of = |file| DirectFile {
        descriptor: std::os::fd::AsFd::as_fd(file),
        alignment: 4096,
    };
    let part = region.part(4096, 40_000).unwrap();
    device.open_file(of(&from))?.read(part, 4096)?;
    let mut target = device.open_file(of(&to))?;
    target.write(part.part(0, 8192).unwrap(), 0)?;
    target.write(part.part(8192, 40_000 - 8192).unwrap(), 8192)?;
    drop(target);
    assert!(std::fs::read(path("to")).unwrap() == bytes[4096..44_096]);

    // Wrong uses, and a file that ends too early.
    let beyond = Region {
        at: region.at + 65536,
        bytes: 1,
    };
    let mut file = device.open_file(of(&from))?;
    let refused = file.read(beyond, 0);
    let Err(TransferError::Device(DeviceError::Misuse { detail, .. })) = refused else {
        panic!("{refused:?}");
    };
    assert!(detail.contains("not allocated"), "{detail}");
    match file.read(part, 20_000) {
        Err(TransferError::Device(error)) if error.to_string().contains("nothing was moved") => {
            assert!(
                error.to_string().contains("at offset 50000 of a file"),
                "{error}"
            );
            Ok(true)
        }
        Err(error) => Err(error),
        Ok(()) => panic!("the file has no such bytes"),
    }
}

/// Says why there is no device.
fn say(why: &Unavailable) {
    let is_sticky = match why {
        Unavailable::Call(error) => error.is_sticky(),
        _ => false,
    };
    match is_sticky {
        true => println!("unavailable: {why} sticky=true"),
        false => println!("unavailable: {why}"),
    }
}

/// Asserts that a call was refused, for this reason.
fn refused<T: std::fmt::Debug>(result: Result<T, DeviceError>, reason: &str) {
    let error = result.unwrap_err();
    assert!(matches!(error, DeviceError::Misuse { .. }), "{error}");
    assert!(error.to_string().contains(reason), "{error}");
}

fn is_in_use<T>(result: Result<T, DeviceError>) -> bool {
    matches!(result, Err(DeviceError::InUse { .. }))
}

fn args(out: u64, count: u64, begin: u64) -> Vec<u8> {
    [out, count, begin]
        .iter()
        .flat_map(|word| word.to_ne_bytes())
        .collect()
}

/// Asks for an event until it has passed.
fn pass(device: &CudaDevice, stream: Stream) -> Result<(), DeviceError> {
    let event = device.record(stream)?;
    assert!(!device.is_done(event)?);
    assert!(device.is_done(event)?);
    device.release(event);
    Ok(())
}

/// Uses everything, and returns the first error of the driver.
fn trip(device: CudaDevice) -> Result<(), DeviceError> {
    let facts = device.facts();
    assert_eq!(
        (facts.memory_bytes, facts.memory_free_bytes),
        (1 << 34, Some(3 << 32))
    );
    assert_eq!(
        (facts.index, facts.is_emulated, device.name().as_str()),
        (0, false, "Fake 0")
    );

    let region = device.alloc(8192)?;
    let (low, high) = (
        region.part(0, 4096).unwrap(),
        region.part(4096, 4096).unwrap(),
    );
    let mut from = device.alloc_pinned(4096)?;
    let mut to = device.alloc_pinned(8192)?;
    assert_eq!((to.len(), to.is_empty()), (8192, false));
    assert!(to.bytes()?.iter().all(|byte| *byte == 0));
    let (a, b) = (device.stream()?, device.stream()?);
    let pattern = |i: usize| (i * 7 % 251) as u8;
    for (i, byte) in from.bytes_mut()?.iter_mut().enumerate() {
        *byte = pattern(i);
    }

    // One stream copies in, the other one waits for it, computes and copies out.
    let begin = device.record(a)?;
    device.copy_in(a, low, &from, 0..4096)?;
    assert_eq!(from.bytes()?[9], pattern(9));
    assert!(is_in_use(from.bytes_mut()));
    let copied = device.record(a)?;
    device.wait(b, copied)?;
    device.fill(b, high, 0xee)?;
    device.launch(b, "prove", 2, 256, &args(high.at, 500, 1 << 40))?;
    device.copy_out(b, &mut to, 0..8192, region)?;
    assert!(is_in_use(to.bytes()) && is_in_use(to.bytes_mut()));
    let end = device.record(b)?;
    assert!(!device.is_done(end)?);
    assert!(is_in_use(to.bytes()) && is_in_use(from.bytes_mut()));
    assert!(device.is_done(end)?);
    // The first copy has passed, too, because `b` waited for it.
    from.bytes_mut()?.fill(1);
    let bytes = to.bytes()?;
    assert!((0..4096).all(|i| bytes[i] == pattern(i)));
    for (i, word) in bytes[4096..].chunks(8).enumerate() {
        let word = u64::from_ne_bytes(word.try_into().unwrap());
        let expected = if i < 500 {
            (1 << 40) + i as u64
        } else {
            0xeeee_eeee_eeee_eeee
        };
        assert_eq!(word, expected, "{i}");
    }
    assert_eq!(device.seconds_between(begin, end)?, 0.002);

    // Events are used again, and old numbers are not believed.
    device.release(begin);
    device.release(begin);
    let again = device.record(a)?;
    assert_ne!(again, begin);
    device.release(begin);
    assert!(!device.is_done(again)?);
    refused(device.is_done(begin), "released");
    refused(device.wait(a, begin), "released");
    refused(device.seconds_between(begin, end), "released");
    for event in [begin, copied, end, again] {
        device.release(event);
    }

    refusals(&device, region, a, &mut to);
    assert_eq!(
        device.launch(a, "prove", 0, 256, &args(high.at, 500, 0)),
        Ok(())
    );
    assert_eq!(
        device.copy_in(a, Region { bytes: 0, ..low }, &from, 3..3),
        Ok(())
    );

    // A part of a buffer, from another thread, which has no context of its own.
    let device = std::sync::Arc::new(device);
    let shared = device.clone();
    let other = Runtime::threads().spawn("other", move || {
        shared.copy_in(a, low.part(10, 20).unwrap(), &from, 30..50)?;
        shared.copy_out(a, &mut to, 0..64, low.part(0, 64).unwrap())?;
        pass(&shared, a)?;
        Ok::<_, DeviceError>(to)
    });
    let mut to = other.unwrap().join().unwrap()?;
    let expected = |i| if (10..30).contains(&i) { 1 } else { pattern(i) };
    assert!((0..64).all(|i| to.bytes().unwrap()[i] == expected(i)));

    // A copy may be under way when its device and its buffer are dropped.
    device.copy_in(b, low, &to, 0..4096)?;
    drop(device);
    assert!(is_in_use(to.bytes_mut()));
    assert_eq!(to.bytes()?[0], pattern(0));
    Ok(())
}

/// Calls that are refused before the driver is asked.
fn refusals(device: &CudaDevice, region: Region, stream: Stream, to: &mut PinnedBuffer) {
    let beyond = Region {
        at: region.at + 8190,
        bytes: 4,
    };
    refused(device.alloc(0), "0 bytes");
    refused(device.alloc_pinned(0), "0 bytes");
    refused(device.fill(stream, beyond, 0), "not allocated");
    refused(device.copy_in(stream, beyond, to, 0..4), "not allocated");
    refused(device.copy_out(stream, to, 0..4, beyond), "not allocated");
    let here = to.bytes().unwrap().as_ptr() as u64;
    let host = Region { at: here, bytes: 4 };
    refused(device.copy_out(stream, to, 0..4, host), "not allocated");
    let small = region.part(0, 4).unwrap();
    refused(
        device.copy_in(stream, small, to, 0..5),
        "5 bytes of a pinned buffer and 4",
    );
    refused(device.copy_in(stream, small, to, 8190..8194), "8190..8194");
    #[allow(clippy::reversed_empty_ranges)]
    let reversed = 8..4;
    refused(device.copy_out(stream, to, reversed, small), "8..4");
    refused(device.launch(stream, "other", 1, 1, &[]), "`other`");
    refused(
        device.launch(stream, "prove", 1, 1, &[0; 23]),
        "23 bytes of arguments",
    );
    refused(
        device.launch(stream, "prove", 1, 1025, &[0; 24]),
        "1025 threads",
    );
    refused(device.launch(stream, "prove", 1, 0, &[0; 24]), "0 threads");
    assert!(to.bytes_mut().is_ok());
}

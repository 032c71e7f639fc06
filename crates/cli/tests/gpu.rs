//! `silt gpu`, and the commands that can use a GPU: without a driver, and with libraries that look
//! like the driver's (`crates/gpu/tests/fake/cuda.c`), which are compiled here.

mod common;

use std::ffi::OsStr;
use std::fmt::Write as _;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use common::{Ended, SILT, numbered, on};
use rustix::process::{Pid, Signal, kill_process};

/// The line that a command begins with if it should use a GPU and there is none.
const NONE: &str = "silt: no GPU is used, and the host runs all compactions: ";

/// The same line of a device.
const NONE_OF_DEVICE: &str =
    "silt: no GPU is used, and the cores of the device run all compactions: ";

/// Names under which the driver's library is looked for.
const NAMES: [&str; 12] = [
    "libcuda.so",
    "libcuda64.so",
    "libcuda64_12.so",
    "libcuda64_124.so",
    "libcuda64_124_0.so",
    "libcuda64_120_4.so",
    "libcuda.so.1",
    "libcuda.so.9",
    "libcuda.so.10",
    "libcuda.so.11",
    "libcuda.so.12",
    "libnvcuda.so",
];

/// A folder that comes first in the loader's path, with an input beside it.
struct Machine {
    dir: tempfile::TempDir,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("lib")).unwrap();
        std::fs::write(dir.path().join("lines.txt"), numbered(2000)).unwrap();
        Machine { dir }
    }

    /// A machine without a driver: files that are no libraries have its names, so one of this
    /// machine is not found either.
    fn without_driver() -> Machine {
        let machine = Machine::new();
        for name in NAMES {
            std::fs::write(machine.path("lib").join(name), "not a library").unwrap();
        }
        machine
    }

    /// A machine with the fake driver.
    fn with_driver() -> Machine {
        let machine = Machine::new();
        machine.compile("libcuda.so", &["tests/fake/cuda.c"], &["-O1"]);
        machine
    }

    /// A machine whose fake driver runs the kernels, and values that are worth a compaction on a
    /// GPU: they cannot be compressed, and no key is above all keys before it.
    fn with_gpu() -> Machine {
        let machine = Machine::new();
        let sources = ["tests/fake/cuda.c", "kernels/emulated.c"];
        machine.compile("libcuda.so", &sources, &["-O2", "-DWITH_KERNELS"]);
        const COUNT: u64 = 170_000;
        let mut seed = 1u64;
        let mut text = String::new();
        for i in 0..COUNT {
            // Every number below COUNT once.
            let key = i * 7919 % COUNT;
            write!(text, "{key:07}\t").unwrap();
            for _ in 0..100 {
                seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                text.push(char::from(b'0' + (seed >> 58) as u8));
            }
            text.push('\n');
        }
        std::fs::write(machine.path("values.txt"), text).unwrap();
        machine
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Compiles a library. Paths of sources begin in the folder of the GPU's crate.
    fn compile(&self, name: &str, sources: &[&str], options: &[&str]) {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../gpu");
        let compiler = std::env::var("CC").unwrap_or("cc".to_string());
        let status = Command::new(&compiler)
            .args(["-std=gnu11", "-shared", "-fPIC", "-pthread"])
            .args(options)
            .arg("-o")
            .arg(self.path("lib").join(name))
            .args(sources.iter().map(|source| folder.join(source)))
            .status();
        let status = status.unwrap_or_else(|e| panic!("the C compiler `{compiler}`: {e}"));
        assert!(status.success(), "`{compiler}` could not compile {name}");
    }

    /// Runs `silt` there.
    fn silt<S: AsRef<OsStr>>(&self, args: &[S], variables: &[(&str, u32)]) -> Ended {
        let variables = variables.iter();
        Command::new(SILT)
            .args(args)
            .current_dir(self.dir.path())
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .envs(variables.map(|(name, value)| (name, value.to_string())))
            .stdin(Stdio::null())
            .output()
            .unwrap()
            .into()
    }
}

/// How long a test waits for a line. It is never reached unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(60);

/// A `silt device` on such a machine, and the lines that it prints.
struct DeviceThere {
    child: Option<Child>,
    lines: Receiver<String>,
}

impl Machine {
    /// Starts a device with a folder for stores, and waits until it listens.
    fn device(&self, args: &[&str]) -> DeviceThere {
        let mut child = Command::new(SILT)
            .args(["device", "--listen", "unix:socket", "--data", "data"])
            .args(args)
            .current_dir(self.dir.path())
            .env("LD_LIBRARY_PATH", self.path("lib"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = channel();
        std::thread::spawn(move || {
            // Nobody receives any more if the test has failed.
            out.lines().map_while(Result::ok).for_each(|line| {
                let _ = sender.send(line);
            });
        });
        // It prints its first line when it listens.
        let first = lines.recv_timeout(PATIENCE);
        let child = Some(child);
        let device = DeviceThere { child, lines };
        first.expect("the device does not start");
        device
    }
}

impl DeviceThere {
    /// The next line with this text.
    #[track_caller]
    fn line(&self, text: &str) -> String {
        loop {
            match self.lines.recv_timeout(PATIENCE) {
                Ok(line) if line.contains(text) => return line,
                Ok(_) => {}
                Err(error) => panic!("no line has {text:?}: {error}"),
            }
        }
    }

    /// Ends the device in order. Its output is what was not read so far.
    fn end(mut self) -> Ended {
        let child = self.child.take().unwrap();
        kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
        let mut output = child.wait_with_output().unwrap();
        let out: String = self.lines.iter().map(|line| line + "\n").collect();
        output.stdout = out.into_bytes();
        output.into()
    }
}

impl Drop for DeviceThere {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// What a command said on standard error, without the words of the fake libraries.
fn said(ended: &Ended) -> String {
    let is_own = |line: &&str| !line.starts_with("fake: ") && !line.starts_with("cufile: ");
    let lines = ended.err.lines().filter(is_own);
    lines.map(|line| line.to_string() + "\n").collect()
}

/// The reason why no GPU is used, which must be the only line on standard error.
#[track_caller]
fn reason(ended: &Ended) -> String {
    assert_eq!(ended.code, Some(0), "{}{}", ended.out, ended.err);
    let said = said(ended);
    let reason = said.strip_prefix(NONE).unwrap_or_else(|| panic!("{said}"));
    assert_eq!(reason.trim_end().lines().count(), 1, "{reason}");
    reason.trim_end().to_string()
}

#[test]
fn without_a_driver_one_line_says_so() {
    let machine = Machine::without_driver();
    let out = machine.silt(&["gpu"], &[]).fine();
    let begin = "no GPU can be used: there is no NVIDIA driver: the loader finds no library of it \
                 (looked for libcuda.so, ";
    assert!(out.starts_with(begin) && out.lines().count() == 1, "{out}");
    let json = machine.silt(&["gpu", "--json"], &[]).fine();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(json["gpus"], serde_json::json!([]));
    assert!(
        json["reason"]
            .as_str()
            .unwrap()
            .contains("no NVIDIA driver")
    );
}

#[test]
fn what_a_driver_or_a_gpu_lacks_is_one_line() {
    let machine = Machine::with_driver();
    for (variable, expected) in [
        (
            ("FAKE_DEVICES", 0),
            "no GPU can be used: the NVIDIA driver sees no GPU (cuDeviceGetCount: 0); look at \
             `nvidia-smi` and at CUDA_VISIBLE_DEVICES, and give the container access to the GPU\n",
        ),
        (
            ("FAKE_CAPABILITY", 75),
            "no GPU can be used: a GPU of compute capability 8.0 or later is needed, found Fake 0 \
             (7.5)\n",
        ),
        (
            ("FAKE_VERSION", 12020),
            "no GPU can be used: the NVIDIA driver supports CUDA 12.2 at most, and the kernels \
             need CUDA 12.4; install a driver of version 550 or later\n",
        ),
    ] {
        let ended = machine.silt(&["gpu"], &[variable]);
        assert_eq!((ended.code, said(&ended)), (Some(0), String::new()));
        assert_eq!(ended.out, expected);
    }
}

#[test]
fn gpus_are_listed_and_measured() {
    let machine = Machine::with_driver();
    let ended = machine.silt(&["gpu"], &[("FAKE_DEVICES", 2)]);
    assert_eq!((ended.code, said(&ended)), (Some(0), String::new()));
    let lines: Vec<&str> = ended.out.lines().collect();
    assert_eq!(lines.len(), 11, "{}", ended.out);
    // A copy of 32 MiB takes half a millisecond.
    for (line, expected) in [
        (
            0,
            "gpu0       Fake 0: compute capability 9.0, 132 multiprocessors, memory 16.0 GiB (12.0 \
             GiB free)",
        ),
        (1, "driver     supports CUDA 12.4"),
        (
            2,
            "link       PCI 0000:28:00.0: 62.5 GiB/s to the GPU, 62.5 GiB/s back, through pinned \
             memory",
        ),
        (5, ""),
        (
            6,
            "gpu1       Fake 1: compute capability 9.0, 132 multiprocessors, memory 16.0 GiB (12.0 \
             GiB free)",
        ),
    ] {
        assert_eq!(lines[line], expected);
    }
    assert!(
        lines[3].starts_with("kernels    loaded in "),
        "{}",
        lines[3]
    );
    assert!(
        lines[4].starts_with("transfers  plain, pipeline"),
        "{}",
        lines[4]
    );

    let json = machine.silt(&["gpu", "--json"], &[]);
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    let gpu = &json["gpus"][0];
    assert_eq!(gpu["name"], "Fake 0");
    assert_eq!(gpu["in_bytes_per_s"], 62.5 * f64::from(1 << 30));
    assert_eq!(
        (&gpu["capability"], &gpu["memory_bytes"]),
        (&"9.0".into(), &(1u64 << 34).into())
    );
    assert_eq!(gpu["unusable_because"], serde_json::Value::Null);
}

#[test]
fn a_gpu_that_cannot_be_opened_is_listed_with_the_reason() {
    let machine = Machine::with_driver();
    // The calls before this one are those of the list.
    let tries = (1..60).map(|call| machine.silt(&["gpu"], &[("FAKE_FAIL_AT", call)]));
    let mut unusable = tries.filter(|ended| ended.out.contains("\nunusable   "));
    let ended = unusable.next().expect("a call of the open fails");
    assert_eq!(ended.code, Some(0));
    assert!(
        ended.out.starts_with("gpu0       Fake 0: "),
        "{}",
        ended.out
    );
    assert!(
        ended.out.contains(" failed: CUDA_ERROR_OUT_OF_MEMORY"),
        "{}",
        ended.out
    );
}

#[test]
fn direct_transfers_need_libcufile() {
    let machine = Machine::with_driver();
    let direct = |machine: &Machine, variables: &[(&str, u32)]| {
        let out = machine.silt(&["gpu"], variables).out;
        out.lines().last().unwrap_or_default().to_string()
    };
    let source = machine.path("cufile.c");
    std::fs::write(&source, "void cuFileRead(void) {}\n").unwrap();
    machine.compile("libcufile.so.0", &[source.to_str().unwrap()], &["-O1"]);
    let lacks = "transfers  plain, pipeline; not direct: libcufile.so.0 has no cuFileDriverOpen, ";
    let found = direct(&machine, &[]);
    assert!(found.starts_with(lacks), "{found}");

    machine.compile("libcufile.so.0", &["tests/fake/cufile.c"], &["-O1"]);
    assert_eq!(
        direct(&machine, &[]),
        "transfers  plain, pipeline, direct (DMA by nvidia-fs 2.17)"
    );
    assert_eq!(
        direct(&machine, &[("FAKE_FILE_NVFS", 0)]),
        "transfers  plain, pipeline, direct (cuFile without nvidia-fs, which usually copies \
         through memory of the host (its compatibility mode))"
    );
    let args = [
        "load",
        "s",
        "lines.txt",
        "--gpu",
        "--gpu-transfer",
        "direct",
    ];
    let hint = "silt: no table moves directly between disk and GPU, because the store has no \
                direct I/O; set it with `silt options s --set direct_io=compaction`\n";
    assert_eq!(said(&machine.silt(&args, &[])), hint);
    let set = ["options", "s", "--set", "direct_io=compaction"];
    assert_eq!(machine.silt(&set, &[]).code, Some(0));
    assert_eq!(said(&machine.silt(&args, &[])), "");
    let json = machine.silt(&["gpu", "--json"], &[]).out;
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    let gpu = &json["gpus"][0];
    assert_eq!(gpu["direct_mode"], "DMA by nvidia-fs 2.17");
    assert_eq!(gpu["transfers"][2], "direct");
}

#[test]
fn commands_go_on_without_a_gpu() {
    let machine = Machine::without_driver();
    let load = machine.silt(&["load", "s", "lines.txt", "--gpu"], &[]);
    assert!(
        reason(&load).contains("there is no NVIDIA driver"),
        "{}",
        load.err
    );
    assert!(load.out.contains("\nloaded 2,000 records"), "{}", load.out);
    assert_eq!(on("count", &machine.path("s"), &[]).fine(), "2000\n");
    let compact = machine.silt(&["compact", "s", "--gpu=1", "--json"], &[]);
    reason(&compact);
    // The exit code of a command stays its own.
    let missing = machine.silt(&["load", "t", "nothing.txt", "--gpu"], &[]);
    assert_eq!(missing.code, Some(3), "{}", missing.err);
    let bench = ["bench", "fillseq", "--records", "1000", "--json", "--gpu"];
    let bench = machine.silt(&bench, &[]);
    assert_eq!(bench.code, Some(0), "{}", bench.err);
    assert!(bench.err.contains(NONE), "{}", bench.err);
    let demo = [
        "demo", "--quick", "--pairs", "2000", "--kills", "1", "--store", "d", "--gpu",
    ];
    let demo = machine.silt(&demo, &[]);
    reason(&demo);
    assert!(
        demo.out.contains("killed                1 times"),
        "{}",
        demo.out
    );
    assert!(!demo.out.contains("gpu"), "{}", demo.out);
}

#[test]
fn a_gpu_without_memory_is_not_used() {
    let machine = Machine::with_driver();
    // It is opened while the command works, so that it may still be starting at the end.
    let load = machine.silt(&["load", "s", "lines.txt", "--gpu"], &[]);
    assert_eq!(
        (load.code, said(&load)),
        (Some(0), String::new()),
        "{}",
        load.out
    );
    let line = load.out.lines().find(|line| line.starts_with("gpu0 "));
    let line = line.unwrap_or_else(|| panic!("{}", load.out));
    let is_told = [
        "starting: the driver compiles",
        "down: cuMemAlloc_v2 failed: ",
    ];
    let is_told = is_told.iter().any(|what| line.contains(what));
    assert!(
        line.starts_with("gpu0       did no compactions: ") && is_told,
        "{line}"
    );
    // A compaction on request waits for it, and so does the benchmark.
    let compact = machine.silt(&["compact", "s", "--gpu", "--json"], &[]);
    let why = reason(&compact);
    assert!(why.starts_with("cuMemAlloc_v2 failed: "), "{why}");
    assert!(compact.out.contains("\"keyspaces\""), "{}", compact.out);
    let bench = ["bench", "fillseq", "--records", "1000", "--json", "--gpu"];
    let bench = machine.silt(&bench, &[]);
    assert_eq!(bench.code, Some(0), "{}", bench.err);
    let expected = format!("{NONE}cuMemAlloc_v2 failed: CUDA_ERROR_OUT_OF_MEMORY (2): ");
    assert!(bench.err.contains(&expected), "{}", bench.err);
    assert!(
        load.err.contains("alive=0") && bench.err.contains("alive=0"),
        "{}",
        load.err
    );
}

/// What the fake driver says at its end: nothing was used wrongly, and nothing is left.
fn ends_well(ended: &Ended) {
    for part in ["left=0", "alive=0", "wrong=0", "pushed=0"] {
        assert!(ended.err.contains(part), "{}", ended.err);
    }
}

#[test]
fn compactions_run_on_a_gpu_and_keep_everything() {
    let machine = Machine::with_gpu();
    let quiet = |args: &[&str]| {
        let ended = machine.silt(args, &[]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
        ended
    };
    quiet(&["load", "s", "values.txt"]);
    let before = quiet(&["scan", "s"]).out;
    assert_eq!(before.lines().count(), 170_000);
    for strategy in ["full", "luda"] {
        let compact = quiet(&[
            "compact",
            "s",
            "--gpu",
            "--gpu-memory",
            "512MiB",
            "--gpu-strategy",
            strategy,
        ]);
        let line = compact.out.lines().find(|line| line.starts_with("gpu0 "));
        let line = line.unwrap_or_else(|| panic!("{}", compact.out));
        assert!(line.starts_with("gpu0       did 1 compaction: "), "{line}");
        ends_well(&compact);
        let after = quiet(&["scan", "s"]).out;
        assert!(before == after, "{strategy} has changed the contents");
        quiet(&["check", "s"]);
    }
    let gpu = ["--gpu", "--gpu-memory", "512MiB"];
    let compact = quiet(&[&["compact", "s", "--json"][..], &gpu].concat());
    let json: serde_json::Value = serde_json::from_str(&compact.out).unwrap();
    let side = &json["sides"][0];
    let did = (&side["name"], &side["compaction_count"]);
    assert_eq!(did, (&"gpu0".into(), &1.into()), "{json}");
}

#[test]
fn a_device_gives_compactions_to_its_gpu() {
    let machine = Machine::with_gpu();
    let device = machine.device(&["--gpu", "--gpu-memory", "512MiB"]);
    device.line("offering compactions to gpu0");
    // A GPU that is ready at once is not named again.
    let starting = device.lines.recv_timeout(Duration::from_secs(1));
    if starting.is_ok_and(|line| line.contains("gpu0 is starting")) {
        device.line("gpu0 is ready");
    }
    let store = "silt+unix://socket#s";
    for args in [&["load", store, "values.txt"][..], &["compact", store]] {
        let ended = machine.silt(args, &[]);
        assert_eq!(ended.code, Some(0), "{}", ended.err);
    }
    let checked = machine.silt(&["check", store], &[]);
    assert_eq!(checked.code, Some(0), "{}", checked.out);
    assert!(checked.out.contains("170,000 entries"), "{}", checked.out);
    let ended = device.end();
    let did = "gpu0 has done 1 compaction (gpu_jobs 1, ";
    assert!(ended.out.contains(did), "{}", ended.out);
    ends_well(&ended);
}

#[test]
fn wrong_arguments_are_refused() {
    let machine = Machine::with_driver();
    let refused = |args: &[&str]| {
        let all = [&["load", "s", "lines.txt"][..], args].concat();
        machine.silt(&all, &[]).failed(2)
    };
    let said = refused(&["--gpu", "--gpu-strategy", "fast"]);
    let expected = "there is no strategy `fast`; the names are full, quick, cooperative, luda, \
                    hierarchical, cpu";
    assert!(said.contains(expected), "{said}");
    let said = refused(&["--gpu", "--gpu-transfer", "slow"]);
    let expected = "there is no transfer `slow`; the names are plain, pipeline, direct";
    assert!(said.contains(expected), "{said}");
    for alone in [["--gpu-strategy", "full"], ["--gpu-memory", "1GiB"]] {
        assert!(refused(&alone).contains("--gpu"), "{alone:?}");
    }
    refused(&["--gpu=x"]);
    let said = refused(&["--gpu", "--gpu-memory", "17GiB"]);
    assert!(
        said.starts_with(
            "silt: the options of the GPU: 18253611008 bytes of memory were asked for, and"
        ),
        "{said}"
    );
    assert!(!machine.path("s").exists());
    let other = machine.silt(&["load", "s", "lines.txt", "--gpu=7"], &[]);
    let why = "there is no GPU 7: the NVIDIA driver sees 1, and the first has number 0";
    assert_eq!(reason(&other), why);
    let late = machine.silt(&["bench", "--gpu", "paper", "gpu"], &[]);
    let said = late.failed(2);
    assert!(said.contains("`paper` is a command of its own"), "{said}");
    let null = machine.silt(&["bench", "fillseq", "--engine", "null", "--gpu"], &[]);
    assert!(
        null.failed(2)
            .contains("`--gpu` is for the engine siltstone")
    );
}

#[test]
fn a_device_serves_without_a_gpu() {
    let machine = Machine::without_driver();
    let device = machine.device(&["--gpu"]);
    device.line("running up to 1 compaction at once");
    let url = format!("silt+unix://{}#s", machine.path("socket").display());
    let load = machine.silt(&["load", &url, "lines.txt"], &[]);
    assert_eq!(load.code, Some(0), "{}", load.err);
    let compact = machine.silt(&["compact", &url], &[]);
    assert_eq!(compact.code, Some(0), "{}", compact.err);
    assert_eq!(machine.silt(&["count", &url], &[]).fine(), "2000\n");
    let ended = device.end();
    assert_eq!(ended.code, Some(0), "{}", ended.err);
    let reason = ended.err.strip_prefix(NONE_OF_DEVICE);
    let reason = reason.unwrap_or_else(|| panic!("{}", ended.err));
    assert!(reason.contains("there is no NVIDIA driver"), "{reason}");
    assert_eq!(reason.trim_end().lines().count(), 1, "{reason}");
    assert!(!ended.out.contains("gpu"), "{}", ended.out);
}

#[test]
fn a_device_says_once_that_its_gpu_cannot_be_used() {
    let machine = Machine::with_driver();
    // The fake GPU cannot be used. More jobs at once than a GPU can have are no error.
    let slots = [
        "--gpu",
        "--slots",
        "100",
        "--json",
        "--gpu-verify-all",
        "--gpu-memory",
        "2GiB",
    ];
    for (args, is_json) in [(&["--gpu"][..], false), (&slots[..], true)] {
        let device = machine.device(args);
        let offering = device.line("gpu0 (Fake 0): strategy full, transfer pipeline");
        let down = device.line(" failed: ");
        match is_json {
            false => {
                assert!(offering.starts_with("offering compactions to gpu0 (Fake 0): "));
                assert!(down.starts_with("gpu0 is down: "), "{down}");
                let then = "the cores of the device run all compactions until it is started again";
                assert!(down.ends_with(then), "{down}");
            }
            true => {
                let how = "pipeline, 2147483648 bytes of its memory, everything is verified";
                assert!(offering.contains(how), "{offering}");
                let json: serde_json::Value = serde_json::from_str(&down).unwrap();
                let of = (&json["event"], &json["name"], &json["state"]);
                assert_eq!(of, (&"executor".into(), &"gpu0".into(), &"down".into()));
                assert!(json["reason"].as_str().unwrap().starts_with("cu"));
            }
        }
        let ended = device.end();
        assert_eq!((ended.code, said(&ended)), (Some(0), String::new()));
        assert!(!ended.out.contains("failed"), "{}", ended.out);
        assert!(ended.out.contains("ended"), "{}", ended.out);
    }
}

#[test]
fn a_device_refuses_strategies_that_hosts_decide() {
    let machine = Machine::without_driver();
    let refused = |args: &[&str]| {
        let device = ["device", "--listen", "unix:socket", "--data", "data"];
        let all = [&device[..], args].concat();
        machine.silt(&all, &[]).failed(2)
    };
    for strategy in ["quick", "hierarchical"] {
        let said = refused(&["--gpu", "--gpu-strategy", strategy]);
        let begin = format!("silt: --gpu-strategy {strategy}: with it, compactions into the upper");
        assert!(said.starts_with(&begin), "{said}");
    }
    for alone in [["--gpu-strategy", "full"], ["--gpu-memory", "1GiB"]] {
        assert!(refused(&alone).contains("--gpu"), "{alone:?}");
    }
    let machine = Machine::with_driver();
    let listen = ["device", "--listen", "unix:socket", "--data", "data"];
    let large = [&listen[..], &["--gpu", "--gpu-memory", "17GiB"]].concat();
    let said = machine.silt(&large, &[]).failed(2);
    assert!(said.starts_with("silt: the options of the GPU: "), "{said}");
    assert!(!machine.path("data").exists());
}

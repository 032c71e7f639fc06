//! `silt device`, and commands whose store, tables or compactions are on one.

mod common;
#[path = "common/device.rs"]
mod device;

use std::ffi::OsStr;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};

use common::{Ended, SILT, files, numbered, silt, silt_with};
use device::{TestDevice, ended, wait_until};
use rustix::process::{Pid, Signal, kill_process};

/// Whether a file of the folder with this ending has the text.
fn has(folder: &Path, suffix: &str, text: &str) -> bool {
    folder.exists()
        && files(folder, suffix).iter().any(|file| {
            let found = std::fs::read(file).unwrap_or_default();
            found.windows(text.len()).any(|w| w == text.as_bytes())
        })
}

/// A load of standard input, whose input stays open.
fn begun(args: &[&str]) -> (Child, ChildStdin) {
    let mut child = Command::new(SILT)
        .arg("load")
        .args(args)
        .args(["-", "--key", "number"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let stdin = child.stdin.take().unwrap();
    (child, stdin)
}

fn result(mut child: Child) -> Ended {
    ended(&mut child);
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_store_on_a_device_is_used_like_a_local_one() {
    let mut device = TestDevice::start(&[]);
    let url = device.url("birds");
    let of = |command: &str, args: &[&str]| {
        let mut all = vec![command, url.as_str()];
        all.extend(args);
        silt(all)
    };
    silt_with(["load", &url, "-", "--key", "number"], &numbered(3_000)).fine();
    assert_eq!(of("get", &["000000000007"]).fine(), "key 000006\n");
    assert_eq!(of("count", &[]).fine(), "3000\n");
    let last = of("scan", &["--reverse", "--limit", "1"]).fine();
    assert_eq!(last, "000000003000\tkey 002999\n");
    assert_eq!(of("get", &["nothing"]).code, Some(1));
    of("put", &["wren", "9 g"]).fine();
    of("del", &["000000000007"]).fine();
    assert_eq!(of("get", &["000000000007"]).code, Some(1));
    assert!(of("compact", &[]).fine().contains("3,000 entries"));
    let stats = of("stats", &["--json"]).fine();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["source"]["kind"], "opened");
    assert_eq!(stats["keyspaces"][0]["name"], "default");
    assert!(of("levels", &[]).fine().contains("3,000"));
    assert!(of("check", &[]).fine().contains("nothing is wrong"));
    let out = device.text("out");
    of("export", &[&out]).fine();
    of("ingest", &["-k", "copy", &out]).fine();
    assert_eq!(of("count", &["-k", "copy"]).fine(), "3000\n");
    assert_eq!(silt(["keyspace", "list", &url]).fine(), "copy\ndefault\n");
    // The settings are those of the folder on the device, and are shown with their origin.
    let file = device.path("data/birds/OPTIONS.toml");
    std::fs::write(&file, "compression = \"lz4\"\n").unwrap();
    let shown = of("options", &["--json"]).fine();
    let shown: serde_json::Value = serde_json::from_str(&shown).unwrap();
    let settings = shown["settings"].as_array().unwrap();
    let of_file = settings.iter().find(|s| s["name"] == "compression");
    assert_eq!(of_file.unwrap()["value"], "lz4", "{shown}");
    std::fs::write(&file, "compression = 7\n").unwrap();
    assert!(of("count", &[]).failed(3).contains("OPTIONS.toml"));
    std::fs::remove_file(&file).unwrap();
    // After the device has ended, the folder is a local store.
    let (status, said) = device.end(Signal::TERM);
    assert_eq!(status.code(), Some(0), "{said}");
    assert!(said.contains("a session on folder `birds` began"), "{said}");
    assert!(said.contains("a session on folder `birds` ended"), "{said}");
    assert_eq!(said.lines().last(), Some("ended"));
    let local = device.path("data/birds");
    assert_eq!(common::on("count", &local, &[]).fine(), "3000\n");
    common::on("check", &local, &[]).fine();
}

#[test]
fn a_load_goes_on_after_its_device_was_started_again() {
    let mut device = TestDevice::start(&[]);
    let url = device.url("lines");
    let input = numbered(60_000);
    let line = "key 000000\n".len();
    let (child, mut stdin) = begun(&[&url]);
    let folder = device.path("data/lines");
    let mut fed = 0;
    for part in [20_500, 40_500] {
        stdin.write_all(&input[fed * line..part * line]).unwrap();
        fed = part;
        // The last whole batch has arrived at the device.
        let last = format!("{:012}", part / 1000 * 1000);
        wait_until(&last, || has(&folder, ".log", &last));
        // A kill in the first round, an end in order in the second one.
        match part {
            20_500 => device.kill(),
            _ => assert_eq!(device.end(Signal::TERM).0.code(), Some(0)),
        }
        device.run();
    }
    let fed = stdin.write_all(&input[fed * line..]);
    drop(stdin);
    let said = result(child);
    assert_eq!(said.code, Some(0), "{}{}", said.out, said.err);
    fed.unwrap();
    assert!(said.out.contains("loaded 60,000 records"), "{}", said.out);
    assert_eq!(silt(["count", &url]).fine(), "60000\n");
    let scanned = silt(["scan", &url]).fine();
    for (n, found) in scanned.lines().enumerate() {
        assert_eq!(found, format!("{:012}\tkey {n:06}", n + 1));
    }
    silt(["check", &url]).fine();
}

#[test]
fn a_signal_ends_a_load_whose_device_does_not_answer() {
    let device = TestDevice::start(&[]);
    let url = device.url("lines");
    let input = numbered(5_000);
    let named = [&url[..], "--input-name", "lines"];
    let (child, mut stdin) = begun(&named);
    let line = "key 000000\n".len();
    stdin.write_all(&input[..2_500 * line]).unwrap();
    let folder = device.path("data/lines");
    wait_until("a batch", || has(&folder, ".log", "000000002000"));
    device.send(Signal::STOP);
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    let said = result(child);
    device.send(Signal::CONT);
    drop(stdin);
    assert_eq!(said.code, Some(143), "{said:?}");
    assert!(said.err.contains("stopped by SIGTERM"), "{said:?}");
    assert!(said.err.contains("the store was not closed"), "{said:?}");
    // The batch that the device had is there, and the same command goes on.
    let (child, mut stdin) = begun(&named);
    stdin.write_all(&input).unwrap();
    drop(stdin);
    let said = result(child);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("stopped after 2,"), "{said:?}");
    assert_eq!(silt(["count", &url]).fine(), "5000\n");
    silt(["check", &url]).fine();
}

#[test]
fn a_load_that_was_killed_is_resumed() {
    let device = TestDevice::start(&[]);
    let url = device.url("lines");
    let input = numbered(5_000);
    let named = [&url[..], "--input-name", "lines"];
    let (mut child, mut stdin) = begun(&named);
    stdin
        .write_all(&input[..2_500 * "key 000000\n".len()])
        .unwrap();
    let folder = device.path("data/lines");
    wait_until("a batch", || has(&folder, ".log", "000000002000"));
    child.kill().unwrap();
    child.wait().unwrap();
    drop(stdin);
    // The next command waits until the device has given up the host that was killed.
    let (child, mut stdin) = begun(&named);
    stdin.write_all(&input).unwrap();
    drop(stdin);
    let said = result(child);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let resumed = said.err.contains("stopped after 2,000 records");
    assert!(
        resumed && said.out.contains("loaded 3,000 records"),
        "{said:?}"
    );
    assert_eq!(silt(["count", &url]).fine(), "5000\n");
    silt(["check", &url]).fine();
}

#[test]
fn a_store_is_used_by_one_host_at_a_time() {
    let device = TestDevice::start(&[]);
    let url = device.url("lines");
    let (child, mut stdin) = begun(&[&url]);
    stdin.write_all(&numbered(1_500)).unwrap();
    let folder = device.path("data/lines");
    wait_until("a batch", || has(&folder, ".log", "000000001000"));
    // The figures of the writer are read without an open.
    wait_until("figures", || folder.join("STATS.json").exists());
    let stats = silt(["stats", &url, "--json"]).fine();
    let stats: serde_json::Value = serde_json::from_str(&stats).unwrap();
    assert_eq!(stats["source"]["kind"], "written");
    assert_eq!(stats["source"]["pid"], child.id());
    let said = silt(["put", &url, "k", "v"]).failed(3);
    assert!(said.contains("another host has it"), "{said}");
    assert!(said.contains(&format!("pid {}", child.id())), "{said}");
    drop(stdin);
    assert_eq!(result(child).code, Some(0));
    silt(["put", &url, "k", "v"]).fine();
    assert_eq!(silt(["count", &url]).fine(), "1501\n");
}

#[test]
fn tables_on_a_device_and_compactions_on_a_device() {
    let mut device = TestDevice::start(&["--keep", "100000000", "--json"]);
    let (local, tables) = (device.text("local"), device.url("tables"));
    let load = ["load", &local, "-", "--key", "number", "--tables", &tables];
    silt_with(load, &numbered(5_000)).fine();
    assert!(files(Path::new(&local), ".tbl").is_empty());
    assert!(!files(&device.path("data/tables"), ".tbl").is_empty());
    // The store knows where its tables are.
    assert_eq!(silt(["count", &local]).fine(), "5000\n");
    silt(["put", &local, "k", "v"]).fine();
    silt(["check", &local]).fine();
    // Another spelling of the same address is the same, and another address is none.
    let slash = format!("{tables}/");
    let load = ["load", &local, "-", "--format", "lines", "--tables", &slash];
    assert_eq!(silt_with(load, b"").code, Some(0));
    let elsewhere = device.url("elsewhere");
    let load = [
        "load", &local, "-", "--format", "lines", "--tables", &elsewhere,
    ];
    let said = silt_with(load, b"a\n").failed(3);
    assert!(
        said.contains(&tables) && said.contains("DIRECTORIES"),
        "{said}"
    );
    let plain = device.text("plain");
    silt(["put", &plain, "k", "v"]).fine();
    let load = ["load", &plain, "-", "--tables", &elsewhere];
    let said = silt_with(load, b"a\n").failed(2);
    assert!(said.contains("leave --tables out"), "{said}");
    let is_not = format!("{plain} exists already, and {elsewhere} is not the folder");
    assert!(said.contains(&is_not), "{said}");
    // The log of such a store lies in its own folder, so the settings cannot name another one.
    let split = device.text("split");
    for (name, folder) in [("log_dir", "fast"), ("table_dir", "wide")] {
        let set = format!("{name}={}", device.text(folder));
        silt(["options", &split, "--set", &set]).fine();
        let load = [
            "load", &split, "-", "--format", "lines", "--tables", &elsewhere,
        ];
        let said = silt_with(load, b"a\n").failed(3);
        let is_named = said.contains(&format!("option {name} names"));
        assert!(is_named && said.contains("remove its line"), "{said}");
        assert!(!device.path(folder).exists());
        silt(["options", &split, "--unset", name]).fine();
    }
    assert!(!device.path("data/elsewhere").exists());
    let shown = silt(["options", &local]).fine();
    assert!(
        shown.contains(&format!("table_dir = \"{tables}\"")),
        "{shown}"
    );
    // If the store is moved, the file that has its old path is on the device's machine.
    let moved = device.text("moved");
    std::fs::rename(&local, &moved).unwrap();
    let said = silt(["count", &moved]).failed(3);
    for word in [
        "the file OWNER of the folder",
        &tables,
        "on the device's machine",
    ] {
        assert!(said.contains(word), "{said}");
    }
    assert!(!said.contains("tables/OWNER"), "{said}");
    std::fs::rename(&moved, &local).unwrap();
    // Copies of the store are whole, and in local folders.
    let (copy, repaired) = (device.text("copy"), device.text("repaired"));
    silt(["checkpoint", &local, &copy]).fine();
    silt(["repair", &local, "--to", &repaired]).fine();
    for store in [&local, &copy, &repaired] {
        assert_eq!(silt(["count", store]).fine(), "5001\n");
        silt(["check", store]).fine();
    }
    assert!(!files(Path::new(&copy), ".tbl").is_empty());
    let said = silt(["load", &device.url("x"), "-", "--tables", &tables]).failed(2);
    assert!(said.contains("leave --tables out"), "{said}");
    // A local store whose compactions are sent to the device: small memtables make many of them.
    let lent = device.text("lent");
    for set in ["memtable_bytes=65536", "l0_trigger_count=2"] {
        silt(["options", &lent, "--set", set]).fine();
    }
    let address = device.address();
    let load = ["load", &lent, "-", "--key", "number", "--device", &address];
    let said = silt_with(load, &numbered(50_000)).fine();
    assert!(
        said.contains("\ndevice ") && said.contains("compaction"),
        "{said}"
    );
    assert!(said.contains("\nlink "), "{said}");
    assert_eq!(silt(["count", &lent]).fine(), "50000\n");
    silt(["check", &lent]).fine();
    // A store is destroyed with its tables. Their folder stays.
    silt(["destroy", &local]).failed(2);
    assert_eq!(silt(["count", &local]).fine(), "5001\n");
    let said = silt(["destroy", &local, "--yes"]).fine();
    assert!(said.contains(&tables), "{said}");
    assert!(!Path::new(&local).exists());
    assert!(files(&device.path("data/tables"), ".tbl").is_empty());
    assert!(!device.path("data/tables/OWNER").exists());
    let (status, said) = device.end(Signal::INT);
    assert_eq!(status.code(), Some(0));
    let events: Vec<serde_json::Value> = said
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let is = |event: &str, folder: &str, is_sent_work: bool| {
        events.iter().any(|e| {
            e["event"] == event
                && e["folder"].as_str().unwrap_or_default() == folder
                && e["is_sent_work"] == is_sent_work
        })
    };
    // A session for work that is sent begins with the first such work, and ends with the command.
    for event in ["session_began", "session_ended"] {
        assert!(is(event, "tables", false), "{event}: {said}");
        assert!(is(event, "", false), "{event}: {said}");
        assert!(is(event, "", true), "{event}: {said}");
    }
    let stopping = &events[events.len() - 2];
    assert_eq!(stopping["event"], "stopping");
    assert_eq!(stopping["session_count"], 0, "{said}");
    assert_eq!(events.last().unwrap()["event"], "ended");
}

/// The result of a `silt device` that does not start. If it starts, it is killed after a while.
fn refused<const N: usize>(args: [&str; N]) -> Ended {
    let child = Command::new(SILT)
        .args(args)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    result(child)
}

#[test]
fn what_keeps_a_device_from_starting_is_one_line() {
    let device = TestDevice::start(&[]);
    let dir = device.dir.path();
    let at = |name: &str| format!("unix:{}", dir.join(name).display());
    let (data, other) = (device.text("data"), device.text("other"));
    let said = refused(["device", "--listen", &device.address(), "--data", &other]).failed(3);
    assert!(
        said.contains("in use") && said.contains("choose another address"),
        "{said}"
    );
    let said = refused(["device", "--listen", &at("s2"), "--data", &data]).failed(3);
    assert!(said.contains("another device has this folder"), "{said}");
    let missing = device.text("missing/data");
    let said = refused(["device", "--listen", &at("s2"), "--data", &missing]).failed(3);
    assert!(
        said.contains("does not exist") && said.contains("--data"),
        "{said}"
    );
    let missing = device.text("missing");
    let said = refused(["device", "--listen", &at("s2"), "--share", &missing]).failed(3);
    assert!(
        said.contains(&missing) && said.contains("--share"),
        "{said}"
    );
    let said = refused(["device", "--listen", &at("missing/s"), "--data", &other]).failed(3);
    assert!(
        said.contains("the folder of a Unix socket must exist"),
        "{said}"
    );
    let said = refused(["device", "--listen", "0.0.0.0:0", "--data", &other]).failed(2);
    assert!(said.contains("without TLS"), "{said}");
    assert!(said.contains("--allow-plaintext-from-anyone"), "{said}");
    let said = refused(["device", "--listen", &at("s2"), "--keep", "0"]).failed(2);
    assert!(said.contains("nothing to do"), "{said}");
    let said = refused(["device", "--listen", &at("s2"), "--keep", "4 GB"]).failed(2);
    assert!(said.contains("a size such as"), "{said}");
    for (keep, less) in [
        ("4GiB", "(1.0 GiB) is less than --keep (4.0 GiB)"),
        (
            "1073741825",
            "(1,073,741,824 bytes) is less than --keep (1,073,741,825 bytes)",
        ),
    ] {
        let socket = at("s2");
        let said = refused([
            "device",
            "--listen",
            &socket,
            "--keep-all",
            "1GiB",
            "--keep",
            keep,
        ]);
        let said = said.failed(2);
        assert!(said.contains(&format!("--keep-all {less}: ")), "{said}");
    }
    let name = "n".repeat(257);
    let said = refused([
        "device",
        "--listen",
        &at("s2"),
        "--data",
        &other,
        "--name",
        &name,
    ]);
    assert!(said.failed(2).contains("at most 256"));
    // Hosts name a shared folder in UTF-8.
    let odd = dir.join(OsStr::from_bytes(b"caf\xe9"));
    std::fs::create_dir(&odd).unwrap();
    let mut command = Command::new(SILT);
    command.args(["device", "--json", "--listen", &at("s2"), "--share"]);
    let said = Ended::from(command.arg(odd).output().unwrap()).failed(2);
    assert!(said.contains("must be UTF-8"), "{said}");
    // A store is no folder with stores in it, and nothing is written into it.
    let url = device.url("birds");
    silt(["put", &url, "wren", "9 g"]).fine();
    let birds = device.text("data/birds");
    let said = refused(["device", "--listen", &at("s2"), "--data", &birds]).failed(2);
    assert!(
        said.contains("is a store itself") && said.contains(&format!("--data {data},")),
        "{said}"
    );
    assert!(!device.path("data/birds/.device").exists());
    // A path that is taken or too long, and what the socket of another one is not.
    std::fs::write(device.path("file"), "text").unwrap();
    let said = refused(["device", "--listen", &at("file"), "--data", &other]).failed(3);
    assert!(
        said.contains("a file at this path that is no socket"),
        "{said}"
    );
    let long = at(&"s".repeat(120));
    let said = refused(["device", "--listen", &long, "--data", &other]).failed(3);
    assert!(said.contains("at most 107 bytes"), "{said}");
    let said = silt(["device", "probe", &long]).failed(3);
    assert!(said.contains("at most 107 bytes"), "{said}");
    for wrong in ["127.0.0.1", "memory:x"] {
        let said = refused(["device", "--listen", wrong, "--data", &other]).failed(2);
        assert!(said.contains("expected HOST:PORT or unix:PATH"), "{said}");
    }
    // The list of hosts needs certificates, and is refused with the line that is wrong.
    let access = device.text("access");
    std::fs::write(&access, "wren: birds\nrobin eggs\n").unwrap();
    let listen = at("s2");
    let of_list = |more: &[&str]| {
        let mut args = vec![
            "device", "--listen", &listen, "--data", &other, "--access", &access,
        ];
        args.extend(more);
        let out = Command::new(SILT).args(args).output().unwrap();
        Ended::from(out)
    };
    let said = of_list(&[]).failed(2);
    assert!(said.contains("--tls-ca"), "{said}");
    let tls = ["--tls-ca", "x", "--tls-cert", "x", "--tls-key", "x"];
    let said = of_list(&tls).failed(3);
    assert!(
        said.contains(&format!("{access}: line 2: expected `NAME: FOLDER")),
        "{said}"
    );
    assert_eq!(said.lines().count(), 1, "{said}");
    std::fs::remove_file(&access).unwrap();
    assert!(of_list(&tls).failed(3).contains(&access));
    let homeless = Command::new(SILT)
        .args(["device", "--listen", &at("s2"), "--keep", "1000000"])
        .env_remove("HOME")
        .env_remove("XDG_STATE_HOME")
        .output()
        .unwrap();
    assert!(Ended::from(homeless).failed(2).contains("--state DIR"));
}

#[test]
fn a_device_without_stores_has_its_notes_in_the_state_folder() {
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path().join("state");
    let mut child = Command::new(SILT)
        .args([
            "device",
            "--listen",
            "127.0.0.1:0",
            "--keep",
            "1000000",
            "--json",
        ])
        .env("XDG_STATE_HOME", &state)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = std::io::BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    std::io::BufRead::read_line(&mut out, &mut line).unwrap();
    let started: serde_json::Value = serde_json::from_str(&line).unwrap();
    assert_eq!(started["event"], "started");
    assert_eq!(started["data"], serde_json::Value::Null);
    let state = state.join("siltstone");
    assert_eq!(started["state"], state.to_str().unwrap());
    assert!(state.is_dir());
    // The line has the port that was chosen.
    let address = started["addresses"][0].as_str().unwrap();
    assert!(
        address.starts_with("127.0.0.1:") && !address.ends_with(":0"),
        "{address}"
    );
    let said = silt(["put", &format!("silt://{address}/birds"), "k", "v"]).failed(3);
    assert!(said.contains("--data DIR"), "{said}");
    let pid = rustix::process::Pid::from_child(&child);
    rustix::process::kill_process(pid, Signal::TERM).unwrap();
    assert_eq!(ended(&mut child).code(), Some(0));
}

#[test]
fn what_is_not_on_a_device_is_refused() {
    let device = TestDevice::start(&[]);
    let url = device.url("birds");
    // Commands that read create nothing.
    for command in ["count", "scan", "stats", "check", "options"] {
        let said = silt([command, &url]).failed(3);
        assert!(said.contains("birds"), "{command}: {said}");
    }
    assert!(!device.path("data/birds").exists());
    silt(["put", &url, "k", "v"]).fine();
    // Commands on files name the command and the address, and change nothing.
    for args in [
        &["destroy", &url, "--yes"][..],
        &["repair", &url],
        &["repair", "nothing", "--to", &url],
        &["dump", &url],
        &["checkpoint", &url, "copy"],
        &["checkpoint", "nothing", &url],
        &["export", &url, &url],
        &[
            "device", "--listen", "unix:x", "--keep", "1", "--state", &url,
        ],
        &["device", "--listen", "unix:x", "--data", &url],
        &["demo", "--store", &url],
        &["bench", "fillseq", "--folder", &url],
        &["options", &url, "--set", "compression=lz4"],
        &["options", &url, "--write"],
    ] {
        let said = silt(args).failed(2);
        assert!(
            said.contains(&url) && said.lines().count() == 1,
            "{args:?}: {said}"
        );
    }
    // For what a command makes, another folder is the way out, and not another machine.
    for args in [
        &["repair", "nothing", "--to", &url][..],
        &["checkpoint", "nothing", &url],
        &["demo", "--store", &url],
        &["bench", "fillseq", "--folder", &url],
        &["bench", "paper", "prockstore-fig9", "--folder", &url],
    ] {
        let said = silt(args).failed(2);
        assert!(said.contains("give a local folder"), "{args:?}: {said}");
    }
    for wrong in [
        "silt://127.0.0.1:4400",
        "silt+unix:///run/s",
        "silt://h:1/../x",
        "silt:/h:1/birds",
        "SILT://h:1/birds",
        "silt+tcp://h:1/birds",
        "silt+unix:/run/s#birds",
    ] {
        let said = silt(["get", wrong, "k"]).failed(2);
        assert!(said.contains("silt://HOST:PORT/FOLDER"), "{said}");
    }
    assert_eq!(silt(["get", &url, "k"]).fine(), "v\n");
    // A device that does not answer is reported before a store is created.
    let (local, nobody) = (
        device.text("local"),
        format!("unix:{}", device.text("none")),
    );
    let input = device.text("input");
    std::fs::write(&input, numbered(10)).unwrap();
    for store in [local, device.url("new")] {
        let args = [
            "load", &store, &input, "--format", "lines", "--device", &nobody,
        ];
        let said = silt(args).failed(3);
        assert!(said.contains("is `silt device` running?"), "{said}");
    }
    assert!(!device.path("local").exists());
    assert!(!device.path("data/new").exists());
}

#[test]
fn a_policy_that_needs_a_device_says_how_to_do_without() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s").to_str().unwrap().to_string();
    silt(["put", &store, "k", "v"]).fine();
    silt(["options", &store, "--set", "schedule=near-data"]).fine();
    let said = silt(["put", &store, "k", "w"]).failed(3);
    assert!(
        said.contains("--unset schedule") && !said.contains("Components"),
        "{said}"
    );
    silt(["options", &store, "--unset", "schedule"]).fine();
    silt(["put", &store, "k", "w"]).fine();
}

/// A reader that no longer reads does not delay a signal.
#[test]
fn a_device_whose_output_is_full_ends_by_a_signal() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("socket");
    let (ours, theirs) = UnixStream::pair().unwrap();
    theirs.set_nonblocking(true).unwrap();
    while (&theirs).write(b"\n").is_ok() {}
    theirs.set_nonblocking(false).unwrap();
    let mut child = Command::new(SILT)
        .arg("device")
        .arg("--listen")
        .arg(format!("unix:{}", socket.display()))
        .arg("--data")
        .arg(dir.path().join("data"))
        .stdin(Stdio::null())
        .stdout(OwnedFd::from(theirs))
        .spawn()
        .unwrap();
    wait_until("the device listens", || socket.exists());
    kill_process(Pid::from_child(&child), Signal::TERM).unwrap();
    assert_eq!(ended(&mut child).code(), Some(0));
    drop(ours);
}

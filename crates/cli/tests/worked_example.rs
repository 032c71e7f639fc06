//! README.md's examples of a large file and of a device, with the commands exactly as they are
//! there, over a small tree instead of /usr, and in a temporary folder instead of /tmp.

mod common;
#[path = "common/device.rs"]
#[allow(dead_code)]
mod device;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::{SILT, files, numbered, silt};
use device::ended;
use rustix::process::{Pid, Signal, kill_process};

const README: &str = include_str!("../../../README.md");

/// The commands of the example whose first one begins with this.
fn commands(begin: &str) -> Vec<&'static str> {
    let block = README
        .split("```sh\n")
        .find(|block| block.starts_with(begin))
        .expect("README.md has the example");
    let block = block.split("```").next().unwrap();
    block.lines().collect()
}

/// The search path of a shell that finds the `silt` of this build first.
fn search_path() -> String {
    let silt = Path::new(SILT).parent().unwrap().to_str().unwrap();
    format!("{silt}:{}", std::env::var("PATH").unwrap())
}

/// A tree with the paths that the example reads, and names that make bad lines.
fn plant(root: &Path) -> u64 {
    for folder in ["bin", "share/doc", "lib"] {
        fs::create_dir_all(root.join(folder)).unwrap();
    }
    let put = |name: &OsStr, bytes: usize| {
        fs::write(root.join(name), vec![b'x'; bytes]).unwrap();
    };
    let named = ["bin/env", "bin/gawk", "bin/grep", "bin/gzip", "bin/gcc"];
    for name in named {
        put(OsStr::new(name), 17);
    }
    for n in 0..300 {
        put(OsStr::new(&format!("share/doc/page {n:03}.txt")), n);
        put(OsStr::new(&format!("lib/größe-{n:03}.so")), 0);
    }
    put(OsStr::new("lib/a \"quoted\" name"), 1);
    put(OsStr::from_bytes(b"lib/no \xff text"), 1);
    put(OsStr::new("lib/back\\slash"), 1);
    named.len() as u64 + 600
}

#[test]
fn the_readmes_example_runs() {
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    let good = plant(&tree);
    let tree = tree.to_str().unwrap();
    let has_jq = Command::new("jq").arg("--version").output().is_ok();
    let commands = commands("find /usr");
    let mut script = String::new();
    for command in &commands {
        let mut command = command.replace("/usr", tree);
        if !has_jq && let Some((before, _)) = command.split_once(" | jq") {
            command.truncate(before.len());
        }
        script.push_str(&format!("{command} 2>&1\necho \"== $?\"\n"));
    }
    // The redirection is placed before a comment.
    let script: String = script
        .lines()
        .map(|line| match line.split_once("  # ") {
            Some((command, _)) => format!("{} 2>&1\n", command.trim_end()),
            None => format!("{line}\n"),
        })
        .collect();
    let script = script.replace("files.jsonl 2>&1\n", "files.jsonl\n");
    let output = Command::new("sh")
        .args(["-c", &script])
        .current_dir(dir.path())
        .env("PATH", search_path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    let mut parts = Vec::new();
    let mut part = String::new();
    for line in said.lines() {
        match line.strip_prefix("== ") {
            Some(code) => parts.push((std::mem::take(&mut part), code.parse::<i32>().unwrap())),
            None => part.push_str(&format!("{line}\n")),
        }
    }
    assert_eq!(parts.len(), commands.len(), "{said}");
    let of = |begin: &str| -> Vec<&(String, i32)> {
        commands
            .iter()
            .zip(&parts)
            .filter(|(command, _)| command.starts_with(begin))
            .map(|(_, part)| part)
            .collect()
    };
    for (command, (out, code)) in commands.iter().zip(&parts) {
        let is_damaged = command.starts_with("silt check files")
            || command.contains("--entries")
            || command.starts_with("silt repair");
        let leaves_out = command.contains("--skip-bad");
        assert_eq!(
            *code,
            i32::from(is_damaged || leaves_out),
            "{command}: {out}"
        );
    }
    let load = &of("silt load")[0].0;
    assert!(
        load.contains(&format!("loaded {good} records")) && load.contains("left out 3 bad records"),
        "{load}"
    );
    assert_eq!(of("silt count")[0].0, format!("{good}\n"));
    assert!(of("silt get")[0].0.contains("\"size\":17"));
    assert_eq!(of("silt scan")[0].0.lines().count(), 3);
    assert!(of("silt ingest")[0].0.contains("300 entries"));
    assert!(of("silt dump")[0].0.contains("table of"));
    let check = &of("silt check files")[0].0;
    assert!(
        check.contains("DAMAGED: 1 problem") && check.contains(".tbl"),
        "{check}"
    );
    assert!(of("silt dump")[1].0.contains("DAMAGED"));
    let repair = &of("silt repair")[0].0;
    assert!(repair.contains("LOST"), "{repair}");
    assert!(of("silt check whole")[0].0.contains("sound"));
}

/// A process that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The example of a device: its two commands, each in a shell of its own. The address in the second
/// one stands for the store in other commands, and the files are on the device.
#[test]
fn the_readmes_device_runs() {
    let dir = tempfile::tempdir().unwrap();
    let place = dir.path().to_str().unwrap();
    let words = dir.path().join("words");
    fs::write(&words, numbered(2_000)).unwrap();
    let commands = commands("silt device");
    let [device, load] = &commands[..] else {
        panic!("README.md has two commands for a device: {commands:?}");
    };
    let here = |command: &str| {
        let command = command.replace("/tmp/", &format!("{place}/"));
        assert!(command.contains(place), "{command}");
        command.replace("/usr/share/dict/words", words.to_str().unwrap())
    };
    let shell = |command: &str| {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec {}", here(command))]);
        shell.env("PATH", search_path()).stdin(Stdio::null());
        shell
    };
    let mut device = Running(shell(device).stdout(Stdio::piped()).spawn().unwrap());
    let mut out = BufReader::new(device.0.stdout.take().unwrap());
    let mut line = String::new();
    // The first line comes when it listens.
    out.read_line(&mut line).unwrap();
    assert!(line.contains(&format!("unix:{place}/silt.sock")), "{line}");
    let said = shell(load).output().unwrap();
    let said = common::Ended::from(said).fine();
    assert!(said.contains("loaded 2,000 records"), "{said}");
    let url = here(load.split_whitespace().find(|w| w.contains("://")).unwrap());
    assert_eq!(silt(["count", &url]).fine(), "2000\n");
    assert_eq!(silt(["get", &url, "key 001999"]).fine(), "2000\n");
    silt(["put", &url, "zebra", "striped"]).fine();
    silt(["compact", &url]).fine();
    assert!(silt(["check", &url]).fine().contains("sound"));
    // Its compactions are for the device, because nobody has set another policy.
    let shown = silt(["options", &url]).fine();
    assert!(shown.contains("near-data"), "{shown}");
    // What the text below the commands says that a local store can and this one cannot.
    for command in ["dump", "repair", "destroy"] {
        let said = silt([command, &url]).failed(2);
        assert!(said.contains(&url), "{command}: {said}");
    }
    kill_process(Pid::from_child(&device.0), Signal::INT).unwrap();
    assert_eq!(ended(&mut device.0).code(), Some(0));
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(rest.lines().last(), Some("ended"), "{rest}");
    let stores = dir.path().join("stores/words");
    assert!(!files(&stores, ".tbl").is_empty());
    assert_eq!(common::on("count", &stores, &[]).fine(), "2001\n");
}

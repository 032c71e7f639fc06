//! README.md's example of a large file, with the commands exactly as they are there, over a small
//! tree instead of /usr.

mod common;

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::Command;

use common::SILT;

const README: &str = include_str!("../../../README.md");

/// The commands of the example.
fn commands() -> Vec<&'static str> {
    let block = README
        .split("```sh\n")
        .find(|block| block.starts_with("find /usr"))
        .expect("README.md has the example");
    let block = block.split("```").next().unwrap();
    block.lines().collect()
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
    let silt = Path::new(SILT).parent().unwrap().to_str().unwrap();
    let path = format!("{silt}:{}", std::env::var("PATH").unwrap());
    let has_jq = Command::new("jq").arg("--version").output().is_ok();
    let commands = commands();
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
        .env("PATH", path)
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

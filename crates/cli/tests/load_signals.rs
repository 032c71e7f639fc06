//! `load` and signals: it stops between two records, closes the store, and the same command resumes
//! it.

mod common;

use std::fs;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::time::{Duration, Instant};

use common::{Ended, SILT, files, numbered, on};
use rustix::process::{Pid, Signal, kill_process};

/// A load of standard input that has a name, and the bytes that it gets first.
fn begun(store: &Path, input: &[u8], errors: Stdio) -> (Child, ChildStdin) {
    let mut child = Command::new(SILT)
        .args(["load", store.to_str().unwrap(), "-"])
        .args(["--key", "number", "--input-name", "lines"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(errors)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(input).unwrap();
    (child, stdin)
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Waits until the log has a text. Before that, the handlers may not be installed.
fn wait_for(store: &Path, text: &str) {
    let has = |log: &Path| {
        fs::read(log).is_ok_and(|b| b.windows(text.len()).any(|w| w == text.as_bytes()))
    };
    let start = Instant::now();
    while !store.exists() || !files(store, ".log").iter().any(|log| has(log)) {
        assert!(start.elapsed() < Duration::from_secs(60), "{text}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Gives the command one more byte, and waits until it has read all lines before this byte. The
/// command reads from the pipe only when it has no complete line, so it takes a byte that comes
/// into an empty pipe only after all lines before it.
fn read_up_to(stdin: &mut ChildStdin, next: u8) {
    wait_for_empty(stdin);
    stdin.write_all(&[next]).unwrap();
    wait_for_empty(stdin);
}

fn wait_for_empty(stdin: &ChildStdin) {
    let start = Instant::now();
    while rustix::io::ioctl_fionread(stdin).unwrap() > 0 {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The result of the command. It must end although its input stays open.
fn ended(mut child: Child) -> Ended {
    let start = Instant::now();
    while child.try_wait().unwrap().is_none() {
        if start.elapsed() > Duration::from_secs(60) {
            child.kill().unwrap();
            panic!("the signal does not end the load");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.wait_with_output().unwrap().into()
}

#[test]
fn a_signal_ends_a_load_between_two_records_and_it_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let input = numbered(6_000);
    let line = "key 000000\n".len();
    for (signal, name, code, fed) in [
        (Signal::INT, "SIGINT", 130, 2_500),
        (Signal::TERM, "SIGTERM", 143, 4_500),
    ] {
        // The input stays open in the middle of a line, so the command waits for the end of the
        // line.
        let part = &input[..fed * line + 4];
        let (child, mut stdin) = begun(&store, part, Stdio::piped());
        // This is the last batch that is written while the input is open.
        wait_for(&store, &format!("{:012}", fed - 500));
        read_up_to(&mut stdin, input[part.len()]);
        send(&child, signal);
        let said = ended(child);
        drop(stdin);
        assert_eq!(said.code, Some(code), "{}{}", said.out, said.err);
        let last = said.err.lines().last().unwrap();
        assert!(
            last.contains(&format!("stopped by {name}"))
                && last.contains("stay in the store: ")
                && last.contains("the same command continues there"),
            "{last}"
        );
        // The records of the incomplete batch are in the store as well, and the store is closed:
        // another process can open it.
        assert_eq!(on("count", &store, &[]).fine(), format!("{fed}\n"));
        on("check", &store, &[]).fine();
    }
    let (child, stdin) = begun(&store, &input, Stdio::piped());
    drop(stdin);
    let said = ended(child);
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(
        said.err.contains("stopped after 4,500 records"),
        "{}",
        said.err
    );
    assert!(said.out.contains("loaded 1,500 records"), "{}", said.out);
    assert_eq!(on("count", &store, &[]).fine(), "6000\n");
    let last = on("scan", &store, &["--reverse", "--limit", "1"]).fine();
    assert_eq!(last, "000000006000\tkey 005999\n");
}

#[test]
fn a_signal_while_reading_over_what_was_loaded_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    let input = numbered(3_000);
    let (child, mut stdin) = begun(&store, &input[..2_500 * 11], Stdio::piped());
    wait_for(&store, &format!("{:012}", 2_000));
    read_up_to(&mut stdin, input[2_500 * 11]);
    send(&child, Signal::INT);
    assert_eq!(ended(child).code, Some(130));
    drop(stdin);
    // The second run gets less than the first one loaded. When it has locked the store, it catches
    // the signals a moment later; before that the signal ends it at once.
    let (child, stdin) = begun(&store, &input[..500 * 11], Stdio::piped());
    std::thread::sleep(Duration::from_millis(300));
    send(&child, Signal::TERM);
    let said = ended(child);
    drop(stdin);
    match said.code {
        None => {}
        code => {
            assert_eq!(code, Some(143), "{}", said.err);
            assert!(said.err.contains("this run added nothing"), "{}", said.err);
        }
    }
    assert_eq!(on("count", &store, &[]).fine(), "2500\n");
    let (child, stdin) = begun(&store, &input, Stdio::piped());
    drop(stdin);
    assert_eq!(ended(child).code, Some(0));
    assert_eq!(on("count", &store, &[]).fine(), "3000\n");
}

#[test]
fn a_second_signal_ends_a_load_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let store = dir.path().join("s");
    // Standard error is not read, and its pipe is full, so the command blocks at its last message.
    let (mut reader, mut writer) = std::io::pipe().unwrap();
    let room = rustix::pipe::fcntl_getpipe_size(&writer).unwrap();
    writer.write_all(&vec![b'.'; room]).unwrap();
    let input = numbered(1_500);
    let (mut child, mut stdin) = begun(&store, &input, writer.into());
    wait_for(&store, &format!("{:012}", 1_000));
    read_up_to(&mut stdin, b'k');
    send(&child, Signal::INT);
    // The first signal has taken effect: the records of the incomplete batch are in the store.
    let start = Instant::now();
    while on("count", &store, &[]).out != "1500\n" {
        assert!(start.elapsed() < Duration::from_secs(60));
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!(child.try_wait().unwrap(), None, "it waits for its reader");
    send(&child, Signal::TERM);
    assert_eq!(ended(child).code, Some(143));
    drop(stdin);
    let mut said = String::new();
    reader.read_to_string(&mut said).unwrap();
    assert!(!said.contains("silt"), "{said}");
    assert_eq!(on("count", &store, &[]).fine(), "1500\n");
}

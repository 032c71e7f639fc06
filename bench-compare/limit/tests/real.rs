//! A process that really enters a group with a limit. Where that is not permitted, the test says
//! why it did nothing.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use bench_limit::{Limit, LimitError, Reading};

const LIMIT_BYTES: u64 = 32 << 20;
const FILE_BYTES: usize = 128 << 20;
const FILE: &str = "BENCH_LIMIT_FILE";
/// The value of [`FILE`] for a process that only enters, and then waits to be killed.
const WAIT: &str = "wait";

/// Writes a file of [`FILE_BYTES`] outside of any limit, and drops it from the page cache. The size
/// of the group's page cache then follows from what is read within it.
fn file_outside() -> PathBuf {
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join("larger-than-the-limit");
    fs::write(&path, vec![7; FILE_BYTES]).unwrap();
    let file = File::open(&path).unwrap();
    file.sync_all().unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    path
}

fn read_all(path: &Path) -> usize {
    let mut file = File::open(path).unwrap();
    let (mut buffer, mut bytes) = (vec![0; 1 << 20], 0);
    loop {
        match file.read(&mut buffer).unwrap() {
            0 => return bytes,
            count => bytes += count,
        }
    }
}

/// A process of its own that runs [`within_the_limit`], so that a failure leaves this one where it
/// is.
fn within(file: &std::ffi::OsStr) -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "within_the_limit", "--ignored", "--nocapture"])
        .env(FILE, file);
    command
}

#[test]
fn the_page_cache_of_a_process_stays_below_its_limit() {
    let path = file_outside();
    let output = within(path.as_os_str()).output().unwrap();
    let _ = fs::remove_file(&path);
    let text = String::from_utf8_lossy(&output.stdout);
    let found = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
    if let Some(why) = found("skipped: ") {
        println!("skipped: {why}");
        return;
    }
    assert!(output.status.success(), "{output:?}");
    let reading: Reading = serde_json::from_str(found("reading: ").unwrap()).unwrap();
    println!("{reading:#?}");
    assert!(reading.usage_bytes.unwrap() <= LIMIT_BYTES);
    assert_ne!(reading.limit_hits, Some(0));
    assert_eq!(reading.killed_processes.unwrap_or(0), 0);
    let nearness = reading.nearness().unwrap();
    assert!(nearness.is_near, "{nearness}");
    let folder = found("folder: ").unwrap();
    assert!(!Path::new(folder).exists(), "{folder} is left");
}

/// Starts a process that waits within its limit, and kills it. Returns the folder of its group.
fn killed_within() -> Result<PathBuf, String> {
    let mut child = within(WAIT.as_ref())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said = lines.map_while(Result::ok).find_map(|line| {
        let folder = line.strip_prefix("folder: ").map(PathBuf::from);
        let why = line.strip_prefix("skipped: ").map(str::to_string);
        folder.map(Ok).or(why.map(Err))
    });
    child.kill().unwrap();
    child.wait().unwrap();
    said.expect("the process says where it is")
}

#[test]
fn the_group_of_a_killed_process_is_removed_by_the_next_one() {
    let left = match killed_within() {
        Ok(left) => left,
        Err(why) => {
            println!("skipped: {why}");
            return;
        }
    };
    assert!(left.exists(), "{}", left.display());
    let last = killed_within().unwrap();
    assert!(!left.exists(), "{} is left", left.display());
    // This test leaves nothing either. A group has its process for a moment after it was killed.
    for _ in 0..100 {
        if fs::remove_dir(&last).is_ok() {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(!last.exists(), "{} is left", last.display());
}

/// The process that the tests above start.
#[test]
#[ignore = "a part of another test, which starts it as a process"]
fn within_the_limit() {
    let Some(path) = std::env::var_os(FILE).map(PathBuf::from) else {
        return;
    };
    let before = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    println!();
    let limit = match Limit::enter(LIMIT_BYTES) {
        Ok(limit) => limit,
        Err(error @ (LimitError::File { .. } | LimitError::NoController { .. })) => {
            println!("skipped: {error}");
            return;
        }
        Err(error @ (LimitError::Crowded { .. } | LimitError::Above { .. })) => {
            println!("skipped: {error}");
            return;
        }
        Err(error) => panic!("{error}"),
    };
    assert_ne!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
    println!("folder: {}", limit.folder().display());
    if path == Path::new(WAIT) {
        std::thread::sleep(Duration::from_secs(600));
    }
    assert_eq!(read_all(&path), FILE_BYTES);
    println!(
        "reading: {}",
        serde_json::to_string(&limit.reading()).unwrap()
    );
    limit.leave().unwrap();
    assert_eq!(fs::read_to_string("/proc/self/cgroup").unwrap(), before);
}

#[test]
fn a_limit_that_is_too_low_is_refused() {
    match Limit::enter(1 << 20) {
        // Without a controller, nothing else is looked at.
        Err(LimitError::TooLow { bytes: 1_048_576 } | LimitError::NoController { .. }) => {}
        other => panic!("{other:?}"),
    }
}

//! A process that really enters a group with a limit. Where that is not permitted, the test says
//! why it did nothing.

use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::Command;

use bench_limit::{Limit, LimitError, Reading};

const LIMIT_BYTES: u64 = 32 << 20;
const FILE_BYTES: usize = 128 << 20;
const FILE: &str = "BENCH_LIMIT_FILE";

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

#[test]
fn the_page_cache_of_a_process_stays_below_its_limit() {
    let path = file_outside();
    // A process of its own, so that a failure leaves this one where it is.
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "within_the_limit", "--ignored", "--nocapture"])
        .env(FILE, &path)
        .output()
        .unwrap();
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

/// The process that [`the_page_cache_of_a_process_stays_below_its_limit`] starts.
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

//! Measures what an append to the log and a sync of it cost on local files.
//!
//! `cargo run --release -p siltstone --example log_bench [folder] [records]`

use std::sync::Arc;

use siltstone::batch::BatchBody;
use siltstone::log::{LogConfig, LogOptions, LogWriter, RecordKind, ReplayOptions, replay};
use siltstone::storage::{Epoch, FileStorage, Runtime};

/// Processor time of this thread in nanoseconds, if the system has it. Other load does not count.
fn cpu_nanos() -> Option<u64> {
    std::fs::read_to_string("/proc/thread-self/schedstat")
        .ok()?
        .split(' ')
        .next()?
        .parse()
        .ok()
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let parent = arguments.next().map_or_else(std::env::temp_dir, Into::into);
    let records: u64 = arguments.next().map_or(Ok(2_000_000), |n| n.parse())?;
    let folder = parent.join(format!("log-bench-{}", std::process::id()));
    let runtime = Runtime::threads();
    let storage = Arc::new(FileStorage::open_or_create(&folder)?);
    let log = LogWriter::start(LogConfig {
        storage: storage.clone(),
        epoch: Epoch(0),
        runtime: runtime.clone(),
        store_id: 1,
        options: LogOptions::default(),
        reserve: None,
        last_known_segment: 0,
        on_poison: Box::new(|error| eprintln!("{error}")),
    })?;
    let mut batch = BatchBody::new();
    let mut sequence = 0u64;
    let mut put = |log: &LogWriter| {
        sequence += 1;
        batch.clear();
        batch.put(1, &u128::from(sequence).to_be_bytes(), &[7; 128])?;
        log.append(RecordKind::Group, sequence, 1, &[batch.body()])
    };
    println!(
        "records of 16 + 128 bytes, segments of 64 MiB, in {}",
        folder.display()
    );

    let (mut spent, mut prepared, mut cpu) = (0.0, 0.0, 0);
    let mut left = records;
    while left > 0 {
        // The work of the background is done here and timed separately.
        let start = runtime.now();
        log.prepare(1)?;
        prepared += runtime.now().since(start).as_secs_f64();
        let chunk = left.min(100_000);
        let start = runtime.now();
        let cpu_before = cpu_nanos().unwrap_or(0);
        for _ in 0..chunk {
            put(&log)?;
        }
        cpu += cpu_nanos().unwrap_or(0) - cpu_before;
        spent += runtime.now().since(start).as_secs_f64();
        left -= chunk;
        let end = log.sync_all()?;
        log.obsolete(end.segment)?;
    }
    let stats = log.stats();
    println!(
        "append        {:8.0} ns a record ({} ns of processor time), {:.0} MB/s \
         (making segments ready: {:.1} s for {} created, {} recycled)",
        spent * 1e9 / records as f64,
        cpu / records.max(1),
        stats.appended_bytes as f64 / spent / 1e6,
        prepared,
        stats.created_segment_count,
        stats.recycled_segment_count,
    );

    let start = runtime.now();
    let mut syncs = 0u32;
    while runtime.now().since(start).as_secs_f64() < 2.0 {
        let end = put(&log)?;
        log.sync(end)?;
        syncs += 1;
    }
    let spent = runtime.now().since(start).as_secs_f64();
    println!(
        "append + sync {:8.1} us a record, {:.0} a second",
        spent * 1e6 / f64::from(syncs),
        f64::from(syncs) / spent
    );

    let oldest = log.oldest_segment();
    drop(log);
    let options = ReplayOptions::from_segment(oldest, 1);
    let start = runtime.now();
    let report = replay(&*storage, &options, &mut |_| Ok(()))?;
    println!(
        "replay        {:8.0} ns a record of {}, {:.0} MB/s, including the search behind the end",
        runtime.now().since(start).as_nanos() as f64 / report.record_count.max(1) as f64,
        report.record_count,
        report.record_bytes as f64 / runtime.now().since(start).as_secs_f64() / 1e6,
    );
    std::fs::remove_dir_all(&folder)?;
    Ok(())
}

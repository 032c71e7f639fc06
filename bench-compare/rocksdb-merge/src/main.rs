//! `rocksdb-merge FOLDER`: writes runs and merges them with RocksDB, as `gpu-check` asks on
//! standard input. `siltstone_bench::gpu_check::peer` has the requests, and
//! `bench_peers::RocksDbRuns` does the merges.
//!
//! `rocksdb-merge --library` prints the file of RocksDB's library, which a bundle has to have
//! beside this program. It prints nothing if RocksDB is a part of the program.
//!
//! Threading: a thread for each run while runs are written. RocksDB has its own for a merge.

use std::io::{stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use bench_peers::{RocksDbDriver, RocksDbRuns};
use siltstone_bench::engine::Driver;
use siltstone_bench::gpu_check::peer::{Merge, Merged, Reply, Request, serve};
use siltstone_bench::settings::Compression;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [one] if one == "--library" => {
            println!(
                "{}",
                option_env!("SILT_ROCKSDB_LIBRARY").unwrap_or_default()
            );
            Ok(())
        }
        [folder] if !folder.starts_with('-') => {
            let mut merger = Merger::new(folder.into());
            serve(stdin().lock(), stdout().lock(), |request| {
                merger.answer(request)
            })
        }
        _ => Err("usage: rocksdb-merge FOLDER, or rocksdb-merge --library".to_string()),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("rocksdb-merge: {error}");
            ExitCode::FAILURE
        }
    }
}

/// What has been written.
struct Merger {
    folder: PathBuf,
    runs: Option<RocksDbRuns>,
}

impl Merger {
    fn new(folder: PathBuf) -> Merger {
        Merger { folder, runs: None }
    }

    fn answer(&mut self, request: Request) -> Result<Reply, String> {
        match request {
            Request::Write(merge) => {
                // The runs of the case before make room.
                self.runs = None;
                let folder = self.folder.join("runs");
                match std::fs::remove_dir_all(&folder) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        return Err(format!("{}: {error}", folder.display()));
                    }
                    _ => {}
                }
                self.runs = Some(written(&folder, merge)?);
                Ok(Reply::Written(RocksDbDriver.version()))
            }
            Request::Merge(threads) => {
                let runs = self.runs.as_ref().ok_or("there are no runs to merge")?;
                let merged = runs.merge(threads).map_err(|error| error.to_string())?;
                Ok(Reply::Merged(Merged {
                    wall_s: merged.wall_s,
                    cpu_s: merged.cpu_s,
                    read_bytes: merged.read_bytes,
                    written_bytes: merged.written_bytes,
                    entries: merged.entries,
                }))
            }
        }
    }
}

/// Writes all runs.
fn written(folder: &Path, merge: Merge) -> Result<RocksDbRuns, String> {
    let compression = match merge.is_lz4 {
        true => Compression::Lz4,
        false => Compression::None,
    };
    let runs = RocksDbRuns::new(folder, compression, merge.runs);
    let runs = runs.map_err(|error| error.to_string())?;
    std::thread::scope(|scope| {
        let runs = &runs;
        let write = |run| move || write(runs, merge, run);
        let threads: Vec<_> = (0..merge.runs).map(|run| scope.spawn(write(run))).collect();
        let ended = || Err("the thread that writes a run panicked".to_string());
        let join = |thread: std::thread::ScopedJoinHandle<'_, _>| thread.join();
        threads
            .into_iter()
            .try_for_each(|thread| join(thread).unwrap_or_else(|_| ended()))
    })?;
    Ok(runs)
}

/// Writes one run.
fn write(runs: &RocksDbRuns, merge: Merge, run: usize) -> Result<(), String> {
    let mut table = runs.table(run).map_err(|error| error.to_string())?;
    merge.entries(run, &mut |key, value| {
        table.put(key, value).map_err(|error| error.to_string())
    })?;
    table.finish().map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn what_is_asked_for_is_merged() {
        let folder = tempfile::tempdir().unwrap();
        let mut merger = Merger::new(folder.path().to_path_buf());
        assert!(merger.answer(Request::Merge(1)).is_err());
        for is_lz4 in [false, true] {
            let merge = Merge {
                value_bytes: 64,
                runs: 4,
                is_lz4,
                entries: 2000,
                seed: 7,
            };
            let mut keys = BTreeSet::new();
            for run in 0..merge.runs {
                let keep = &mut |key: &[u8], _: &[u8]| {
                    keys.insert(key.to_vec());
                    Ok(())
                };
                merge.entries(run, keep).unwrap();
            }
            assert!(keys.len() < 8000, "no key is in two runs");
            let Ok(Reply::Written(version)) = merger.answer(Request::Write(merge)) else {
                panic!("the runs were not written");
            };
            assert!(!version.is_empty());
            for threads in [1, 2] {
                let reply = merger.answer(Request::Merge(threads)).unwrap();
                let Reply::Merged(merged) = reply else {
                    panic!("{reply:?}");
                };
                assert_eq!(merged.entries, keys.len() as u64);
                assert!(merged.wall_s > 0.0 && merged.read_bytes > merged.written_bytes);
            }
        }
    }
}

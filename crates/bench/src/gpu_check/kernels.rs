//! The fourth and the fifth section: the time of each kernel and its share of the GPU's bandwidth;
//! the two ways to merge runs; and what more memory of the GPU is worth.
//!
//! Necessary bytes are those that a kernel has to read and write once, from the sizes of its arrays
//! (`crates/gpu/src/kernels.rs`). What a kernel reads more than once is in a cache at best.
//!
//! Threading: one thread.

use std::sync::Arc;

use siltstone_gpu::device::Device;
use siltstone_gpu::{GpuExecutor, GpuOptions, KernelTime, Strategy, Transfer};
use siltstone_table::compress::Codec;
use siltstone_table::exec::Executor;
use siltstone_table::job::outcome::Counters;

use super::report::{KernelRow, MemoryRow, RankRow, Report, SpreadRow};
use super::setup::{Limit, Ran, Setup, delete};
use super::world::{Keys, Shape, World};

/// What the necessary bytes of a job's kernels are computed from.
struct Sizes {
    /// Entries that are read, and those that are kept.
    read: u64,
    kept: u64,
    /// Bytes of the inputs as they are stored and without compression, and of the values in them.
    stored: u64,
    unpacked: u64,
    stored_values: u64,
    /// The same of the outputs.
    made: u64,
    packed: u64,
    made_values: u64,
    /// Bytes of a key on the device.
    key: u64,
}

impl Sizes {
    fn of(world: &World, ran: &Ran) -> Sizes {
        let Counters {
            entries_read,
            shadowed,
            tombstones,
            covered,
            raw_bytes_read,
            ..
        } = ran.outcome.counters;
        let kept = entries_read - shadowed - tombstones - covered;
        let value = world.shape.value_bytes as u64;
        let key = match world.shape.keys {
            Keys::Of(bytes) => bytes as u64,
            _ => 16,
        };
        let tables = &ran.outcome.tables;
        let made = tables.iter().map(|t| t.file_bytes).sum();
        let made_raw: u64 = tables.iter().map(|t| t.raw_bytes).sum();
        Sizes {
            read: entries_read,
            kept,
            stored: world.input_bytes,
            stored_values: entries_read * value,
            unpacked: raw_bytes_read.max(world.input_bytes),
            made,
            packed: made_raw.max(made),
            made_values: kept * value,
            key: key.next_multiple_of(8),
        }
    }

    /// The necessary bytes of a kernel. Those of small kernels are not known.
    fn necessary(&self, kernel: &str, time: &KernelTime) -> Option<u64> {
        let (read, kept, key) = (self.read, self.kept, self.key);
        let columns = self.unpacked.saturating_sub(self.stored_values);
        let made_columns = self.packed.saturating_sub(self.made_values);
        Some(match kernel {
            // Each thread has 32 items.
            "scan_sums32" => time.items * (32 * 4 + 8),
            "scan_apply32" => time.items * (32 * 8 + 8),
            "scan_sums64" => time.items * (32 * 8 + 8),
            "scan_apply64" => time.items * (32 * 16 + 8),
            "checksum_blocks" => self.stored,
            "lz4_decode" => self.stored + self.unpacked,
            "lz4_encode" => self.packed + self.made,
            "place_parts" => 2 * self.made,
            // Trailers, lengths of keys twice, places and lengths of values.
            "unpack_entries" => columns + read * (8 + 2 + 4 + 8 + 4),
            "unpack_keys" => columns.min(read * key) + read * (key + 16 + 4),
            "check_order" => read * (key + 4 + 2 + 8),
            "gather_items" => read * (16 + 20),
            // Heads and numbers, in and out, in each round.
            "merge_pairs" => time.launches * read * (20 + 20),
            "rank_items" => time.launches * read * (20 + 20),
            "judge" => read * (4 + 4 + 2 + key + 8 + 1 + 4),
            "list_survivors" => read * (4 + 1 + 4) + kept * 4,
            "gather_survivors" => kept * (4 + 4 + 2 + key + 8 + 8 + 4) + kept * (6 + 20 + 3 + 16),
            "count_verdicts" => read * (1 + 4 + 2 + 4),
            "begin_tables" => kept * (1 + 8 + 4),
            "list_tables" => kept * 4,
            "find_block_ends" => kept * (2 + 2 + 4 + 8 + 4 + 4),
            "list_blocks" => kept * 4,
            "measure_tails" => kept * (4 + 2 + 2 + 4),
            "pack_columns" => kept * (key + 4 + 2 + 8 + 8 + 4) + made_columns,
            "pack_values" => 2 * self.made_values + kept * (8 + 4 + 8),
            "checksum_values" => self.made_values,
            "checksum_columns" => made_columns,
            "sum_tables" => kept * (4 + 2 + 8 + 4 + 1),
            "set_filter_bits" => kept * (key + 4 + 2 + 1 + 4 + 4),
            "copy in" | "copy out" | "fill" => time.items,
            _ => return None,
        })
    }
}

fn shape(setup: &Setup, shape: Shape) -> Shape {
    Shape {
        table_bytes: setup.sized(64 << 20, 64 << 10),
        ..shape
    }
}

/// Measures the kernels of some jobs. Returns whether the time was cut.
///
/// # Errors
/// What kept a job from being measured.
pub fn kernels(setup: &Setup, limit: Limit, report: &mut Report) -> Result<bool, String> {
    let bytes = setup.sized(1 << 30, 120 << 10);
    let device = setup.device()?;
    for (value_bytes, strategy, codec) in [
        (32, Strategy::Full, Codec::None),
        (256, Strategy::Full, Codec::None),
        (64, Strategy::Full, Codec::Lz4),
        (64, Strategy::Full, Codec::None),
        (128, Strategy::Full, Codec::None),
        (32, Strategy::Luda, Codec::None),
    ] {
        if limit.is_over() {
            return Ok(true);
        }
        let options = GpuOptions {
            strategy,
            transfer: Transfer::Plain,
            profiles: true,
            ..setup.options()
        };
        let gpu = setup.executor(&device, options)?;
        let plain = Shape {
            codec,
            ..Shape::plain(value_bytes, 4)
        };
        let world = setup.world(shape(setup, plain), bytes, 2)?;
        if gpu.accepts(&world.job()).is_err() {
            continue;
        }
        let storage = &world.storage;
        let ran = setup.run(&world, &world.job(), &gpu, 1, storage)?;
        delete(storage, &ran.outcome);
        let sizes = Sizes::of(&world, &ran);
        let times = gpu.profile();
        let all_s: f64 = times.iter().map(|(_, time)| time.seconds).sum();
        println!(
            "  values of {value_bytes}, {strategy}: {:.1} ms on the device, {:.1} ms in all",
            all_s * 1e3,
            ran.wall_s * 1e3
        );
        for (kernel, time) in times {
            let necessary = sizes.necessary(kernel, &time);
            let rate = necessary.map(|bytes| bytes as f64 / 1e9 / time.seconds);
            report.kernels.push(KernelRow {
                job: format!("{}, {strategy}", world.shape),
                kernel,
                launches: time.launches,
                items: time.items,
                seconds: time.seconds,
                share: crate::measure::ratio(time.seconds, all_s).unwrap_or(0.0),
                necessary_bytes: necessary,
                gb_per_s: rate.filter(|rate| rate.is_finite()),
                label: setup.label(),
            });
        }
    }
    Ok(false)
}

/// The time of a kernel in one job, and the job's entries.
fn time_of(
    setup: &Setup,
    world: &World,
    gpu: &GpuExecutor,
    kernel: &str,
) -> Result<(f64, u64), String> {
    let sum_of = || {
        let profile = gpu.profile();
        let found = profile.iter().find(|(name, _)| *name == kernel);
        found.map_or(0.0, |(_, time)| time.seconds)
    };
    let mut before_s = sum_of();
    // The first job finds cold caches.
    let mut best_s = f64::INFINITY;
    let mut entries = 0;
    for _ in 0..2 {
        let ran = setup.run(world, &world.job(), gpu, 1, &world.storage)?;
        delete(&world.storage, &ran.outcome);
        entries = ran.outcome.counters.entries_read;
        let sum_s = sum_of();
        best_s = best_s.min(sum_s - before_s);
        before_s = sum_s;
    }
    Ok((best_s, entries))
}

/// Compares the two ways to merge runs, and then sizes of memory. Returns whether the time was cut.
///
/// # Errors
/// What kept a job from being measured.
pub fn rank(setup: &Setup, limit: Limit, report: &mut Report) -> Result<bool, String> {
    let bytes = setup.sized(256 << 20, 60 << 10);
    let (keys, runs): (&[usize], &[usize]) = match setup.is_small || setup.is_emulated {
        true => (&[16], &[2, 4]),
        false => (&[16, 8, 64], &[4, 2, 8, 16, 3, 6, 12]),
    };
    let device = setup.device()?;
    let by = |rank_runs_max| {
        let options = GpuOptions {
            transfer: Transfer::Plain,
            profiles: true,
            rank_runs_max,
            ..setup.options()
        };
        setup.executor(&device, options)
    };
    let (pairs, ranks) = (by(0)?, by(16)?);
    for key_bytes in keys {
        for runs in runs {
            if limit.is_over() {
                return Ok(true);
            }
            let plain = Shape {
                keys: match key_bytes {
                    16 => Keys::Sixteen,
                    other => Keys::Of(*other),
                },
                ..Shape::plain(32, *runs)
            };
            let world = setup.world(shape(setup, plain), bytes, 3)?;
            let (merge_pairs_s, entries) = time_of(setup, &world, &pairs, "merge_pairs")?;
            let (rank_s, _) = time_of(setup, &world, &ranks, "rank_items")?;
            println!(
                "  {runs} runs, {key_bytes}-byte keys, {entries} entries: merge_pairs {:.2} ms, \
                 rank_items {:.2} ms",
                merge_pairs_s * 1e3,
                rank_s * 1e3
            );
            report.rank.push(RankRow {
                runs: *runs,
                key_bytes: *key_bytes,
                entries,
                merge_pairs_s,
                rank_s,
                label: setup.label(),
            });
        }
    }
    memory(setup, &device, limit, report)
}

/// The sizes of executors that fit into half of a GPU's memory. The other executors of the section
/// are still open.
fn memory_sizes(gpu_memory_bytes: Option<u64>) -> Vec<u64> {
    let most = gpu_memory_bytes.unwrap_or(u64::MAX) / 2;
    let all = [16 << 30, 8 << 30, 4 << 30, 2 << 30, 1 << 30];
    all.into_iter().filter(|bytes| *bytes <= most).collect()
}

/// One job with executors of different sizes.
fn memory(
    setup: &Setup,
    device: &Arc<dyn Device>,
    limit: Limit,
    report: &mut Report,
) -> Result<bool, String> {
    let sizes = match setup.is_small || setup.is_emulated {
        true => vec![24 << 20],
        false => memory_sizes(setup.gpu_memory_bytes),
    };
    let bytes = setup.sized(2 << 30, 60 << 10);
    let world = setup.world(shape(setup, Shape::plain(64, 4)), bytes, 4)?;
    for memory_bytes in sizes {
        if limit.is_over() {
            return Ok(true);
        }
        let options = GpuOptions {
            memory_bytes_max: memory_bytes,
            ..setup.options()
        };
        let gpu = setup.executor(device, options)?;
        let mut speeds = Vec::new();
        let times = setup.sized(3, 1);
        for _ in 0..times {
            let ran = setup.run(&world, &world.job(), &gpu, gpu.tasks(), &world.storage)?;
            delete(&world.storage, &ran.outcome);
            speeds.push(world.input_bytes as f64 / 1e6 / ran.wall_s);
        }
        let counters = gpu.counters();
        let pieces = counters.iter().find(|(name, _)| name == "gpu_pieces");
        let pieces = pieces.map_or(0, |(_, count)| *count) / times;
        let Some(mb_per_s) = SpreadRow::of(speeds) else {
            continue;
        };
        println!(
            "  {} MiB of the GPU's memory: {pieces} pieces, {:.0} MB/s",
            memory_bytes >> 20,
            mb_per_s.median
        );
        report.memory.push(MemoryRow {
            memory_bytes,
            pieces,
            mb_per_s,
            label: setup.label(),
        });
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::memory_sizes;

    #[test]
    fn executors_fit_into_the_gpu() {
        assert_eq!(memory_sizes(None).len(), 5);
        assert_eq!(memory_sizes(Some(139 << 30)).len(), 5);
        assert_eq!(memory_sizes(Some(24 << 30))[0], 8 << 30);
        assert_eq!(memory_sizes(Some(1 << 30)), Vec::<u64>::new());
    }
}

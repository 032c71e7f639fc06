//! What the figures cost: latencies, amplification, processor time, memory and sizes; and how they
//! change while a store grows.
//!
//! Threading: pure functions.

use super::Shown;
use super::number::{NONE, optional, whole};
use super::table::Table;
use super::text::paragraph;
use crate::compare::Spread;
use crate::record::Record;

/// What stands above the table. The number of entries is `LAP_ENTRIES` of `run/operations/read.rs`.
pub(super) const HEAD: &str = "What it costs (medians of the rounds). Latencies are those of all \
     calls, in us. A batch is one call. Of `readseq` and `readreverse`, each latency is that of \
     up to 1,024 entries. *Over 1 ms* is the time in calls that took longer. *Written* is what \
     the engine wrote to log and tables for each byte of the user; with a star it is what the \
     kernel counts, in whole pages, because the engine does not count its bytes. *Space* is the \
     disk for each byte of the records, log included. Processor time is that of the whole \
     process until idle. Memory is the highest anonymous memory, without mapped files and page \
     cache. Sizes are those after the close.";

const HEADS: [&str; 14] = [
    "",
    "engine",
    "p50",
    "p99",
    "p99.9",
    "max",
    "over 1 ms, s",
    "written",
    "space",
    "CPU s",
    "CPU us/op",
    "memory MB",
    "tables MB",
    "log MB",
];

/// The tenths of a run.
const TENTHS: usize = 10;

/// A line for each row and engine.
pub(super) fn table(shown: &Shown<'_>, rows: &[usize], engines: &[usize]) -> Table {
    let mut table = Table::new(HEADS.map(String::from));
    for row in rows {
        let mut name = shown.results.plan.rows[*row].name.clone();
        for engine in engines {
            let records: Vec<&Record> = shown.records(*row, *engine).collect();
            if records.is_empty() {
                continue;
            }
            let median = |of: &dyn Fn(&Record) -> Option<f64>| {
                let figures = records.iter().filter_map(|record| of(record));
                optional(Spread::of(figures).map(|spread| spread.median))
            };
            let sizes = |record: &Record| record.disk.files_closed;
            let megabytes = |bytes: u64| Some(bytes as f64 / 1e6);
            table.line([
                std::mem::take(&mut name),
                shown.engine_name(*engine).to_string(),
                median(&|record| record.p50_us),
                median(&|record| record.p99_us),
                median(&|record| record.p999_us),
                median(&|record| record.max_us),
                median(&|record| record.slow_s),
                match median(&|record| record.write_amplification) {
                    nothing if nothing == NONE => {
                        let kernel = median(&|record| record.amplification.write_device);
                        if kernel == NONE {
                            kernel
                        } else {
                            kernel + "\\*"
                        }
                    }
                    counted => counted,
                },
                median(&|record| record.space_amplification),
                median(&|record| record.cpu_s),
                median(&|record| {
                    let operations = record.operations + record.beside_operations;
                    let cpu_us = record.cpu_s? * 1e6;
                    (operations > 0).then(|| cpu_us / operations as f64)
                }),
                median(&|record| megabytes(record.rss_bytes?)),
                median(&|record| megabytes(sizes(record).tables.allocated_bytes)),
                median(&|record| megabytes(sizes(record).log.allocated_bytes)),
            ]);
        }
    }
    table
}

/// What a run did in one tenth of its operations.
struct Tenth {
    kops_per_s: Option<f64>,
    written: Option<f64>,
    cpu_us: Option<f64>,
}

/// A table with the rate, the bytes written and the processor time of each tenth of a row's
/// operations, from the first round of each engine.
pub(super) fn tenths(shown: &Shown<'_>, row: usize) -> String {
    let spec = &shown.results.plan.rows[row];
    let mut all = Vec::new();
    for engine in &spec.engines {
        if let Some(record) = shown.records(row, *engine).next() {
            all.push((shown.engine_name(*engine), tenths_of(record)));
        }
    }
    if all.is_empty() {
        return String::new();
    }
    let heads = all.iter().flat_map(|(name, _)| {
        ["kops/s", "written", "CPU us/op"].map(|what| format!("{name} {what}"))
    });
    let mut table = Table::new(std::iter::once(format!("{}, tenth", spec.name)).chain(heads));
    for tenth in 0..TENTHS {
        let cells = all.iter().flat_map(|(_, tenths)| {
            let tenth = &tenths[tenth];
            [tenth.kops_per_s, tenth.written, tenth.cpu_us].map(optional)
        });
        table.line(std::iter::once(whole(tenth as i64 + 1)).chain(cells));
    }
    let text = format!(
        "How `{}` changes while it runs: each line is a tenth of its operations, in the first \
         round. What is left to do after the last operation is in the figures above, and not here.",
        spec.name
    );
    paragraph(&text) + &table.text()
}

/// Sums of a series, cut where a tenth of the operations is done.
fn tenths_of(record: &Record) -> Vec<Tenth> {
    let total: u64 = record.series.iter().map(|second| second.operations).sum();
    let mut sums = vec![[0.0; 4]; TENTHS];
    let mut known = [true; 2];
    let mut done = 0.0;
    let share = total as f64 / TENTHS as f64;
    for second in &record.series {
        let operations = second.operations as f64;
        if operations == 0.0 && done >= total as f64 {
            break;
        }
        let parts = [
            second.log_bytes,
            second.flush_bytes,
            second.compaction_bytes,
        ];
        let written: Option<u64> = parts.into_iter().sum();
        known[0] &= written.is_some();
        known[1] &= second.cpu_s.is_some();
        let figures = [
            1.0,
            written.unwrap_or(0) as f64,
            second.cpu_s.unwrap_or(0.0),
            second.written_bytes as f64,
        ];
        for (part, tenth) in parts_of(done, operations, share) {
            for (sum, figure) in sums[tenth].iter_mut().zip(figures) {
                *sum += figure * part;
            }
        }
        done += operations;
    }
    let tenth = |[seconds, written, cpu_s, user]: [f64; 4]| Tenth {
        kops_per_s: crate::measure::ratio(share / 1e3, seconds),
        written: crate::measure::ratio(written, user).filter(|_| known[0]),
        cpu_us: crate::measure::ratio(cpu_s * 1e6, share).filter(|_| known[1]),
    };
    sums.into_iter().map(tenth).collect()
}

/// How a second with this number of operations is divided among the tenths: parts and tenths.
fn parts_of(done: f64, operations: f64, share: f64) -> Vec<(f64, usize)> {
    let tenth_of = |done: f64| ((done / share) as usize).min(TENTHS - 1);
    if share <= 0.0 {
        return Vec::new();
    }
    if operations == 0.0 {
        return vec![(1.0, tenth_of(done))];
    }
    let (first, last) = (tenth_of(done), tenth_of(done + operations));
    let part = |tenth: usize| {
        let from = done.max(tenth as f64 * share);
        let to = match tenth == TENTHS - 1 {
            true => done + operations,
            false => (done + operations).min((tenth + 1) as f64 * share),
        };
        ((to - from).max(0.0) / operations, tenth)
    };
    (first..=last).map(part).collect()
}

#[cfg(test)]
mod tests {
    use super::super::number::three;
    use super::*;
    use crate::measure::Second;

    #[test]
    fn a_second_is_divided_among_the_tenths_that_it_touches() {
        let parts = parts_of(5.0, 20.0, 10.0);
        assert_eq!(parts, [(0.25, 0), (0.5, 1), (0.25, 2)]);
        assert_eq!(parts_of(95.0, 10.0, 10.0), [(1.0, 9)]);
        assert_eq!(parts_of(15.0, 0.0, 10.0), [(1.0, 1)]);
    }

    #[test]
    fn a_run_that_slows_down_shows_it() {
        let second = |second, operations| Second {
            second,
            operations,
            written_bytes: operations * 100,
            log_bytes: Some(operations * 100),
            flush_bytes: Some(operations * 100),
            compaction_bytes: Some(0),
            cpu_s: None,
            ..Second::default()
        };
        let mut series = vec![second(0, 5_000)];
        series.extend((1..=5).map(|n| second(n, 1_000)));
        series.push(second(6, 0));
        let record = Record {
            series,
            ..Record::default()
        };
        let tenths = tenths_of(&record);
        assert_eq!(tenths.len(), TENTHS);
        assert_eq!(three(tenths[0].kops_per_s.unwrap()), "5.00");
        assert_eq!(three(tenths[9].kops_per_s.unwrap()), "1.00");
        assert_eq!(three(tenths[4].written.unwrap()), "2.00");
        assert!(tenths[4].cpu_us.is_none());
    }
}

//! The page of what was found: tables whose figures have bars, so that they can be compared at a
//! glance.
//!
//! Threading: pure functions.

use super::report::{DeviceReport, Label, Report, SpreadRow, StoreRow};
use crate::draw::number::{DASH, Unit, count, grouped, or_dash};
use crate::page::{Body, Cell, Part, Row, Table, page_with, with_bars};

/// The page.
pub fn page(report: &Report) -> String {
    let title = match report.is_emulated {
        false => "Compaction on a GPU",
        true => "Compaction on an emulated GPU: no figure here is a speed",
    };
    let mut parts = vec![overview(report)];
    let device = report.device.as_ref();
    parts.extend(device.map(|found| device_part(found, report.first_open_s)));
    parts.push(equality(report));
    parts.push(speed(report));
    parts.push(kernels(report));
    parts.push(rank(report));
    parts.push(store(report));
    page_with(&[], title, &parts)
}

/// A row of texts.
fn row(head: impl Into<String>, label: Label, cells: Vec<String>) -> Row {
    Row {
        head: head.into(),
        note: label.unwrap_or_default().to_string(),
        cells: cells.into_iter().map(Cell::from).collect(),
        ..Row::default()
    }
}

fn part(id: &str, title: &str, texts: Vec<String>, tables: Vec<Table>) -> Part {
    Part {
        id: id.to_string(),
        title: title.to_string(),
        texts,
        tables,
        gloss: Vec::new(),
    }
}

fn milliseconds(seconds: f64) -> String {
    format!("{} ms", grouped(seconds * 1e3, 3))
}

fn overview(report: &Report) -> Part {
    let mut texts = report.hardware.clone();
    let different = report.equality.iter().filter(|row| !row.is_equal).count();
    texts.push(match (report.equality.len(), different) {
        (0, _) => "No job was compared with the host's executor.".to_string(),
        (all, 0) => {
            format!("All {all} jobs that were compared with the host's executor are equal.")
        }
        (all, bad) => {
            format!("{bad} OF {all} JOBS ARE NOT EQUAL TO THOSE OF THE HOST'S EXECUTOR.")
        }
    });
    let sections = report.sections.iter().map(|section| {
        let state = match (section.is_cut, &section.error) {
            (_, Some(error)) => format!("{}: {error}", section.state),
            (true, None) => format!("{}, until its time was over", section.state),
            (false, None) => section.state.to_string(),
        };
        let seconds = format!("{} s", grouped(section.seconds, 1));
        row(section.name, None, vec![state, seconds])
    });
    let machine = &report.machine;
    let facts = [
        ("processor", machine.cpu.clone()),
        ("cores", machine.cores.map(count)),
        (
            "memory",
            machine.memory_bytes.map(|n| Unit::Bytes.show(n as f64)),
        ),
        ("system", machine.distribution.clone()),
        ("kernel", machine.kernel.clone()),
        ("file system of the results", machine.file_system.clone()),
        ("commit", report.build.commit.clone()),
        ("build", report.build.profile.clone()),
        ("began", Some(report.began.clone())),
    ];
    let facts = facts.map(|(name, value)| {
        let value = value.unwrap_or_else(|| DASH.to_string());
        row(name, None, vec![value])
    });
    let tables = vec![
        Table::new(
            "Sections",
            &["section", "state", "time"],
            sections.collect(),
        ),
        Table::new("The machine", &["fact", ""], facts.into()),
    ];
    part("overview", "What was run", texts, tables)
}

fn device_part(found: &DeviceReport, first_open_s: f64) -> Part {
    let label = found.label;
    let fact = |name: &str, value: String| row(name, label, vec![value]);
    let micros = |us: f64| format!("{} µs", grouped(us, 2));
    let waits = found.launch_and_wait_us.map_or(DASH.to_string(), |us| {
        let ends = format!("{} to {}", grouped(us.lowest, 2), grouped(us.highest, 2));
        format!("{} ({ends})", micros(us.median))
    });
    let facts = vec![
        fact("name", found.name.clone()),
        fact("memory", Unit::Bytes.show(found.memory_bytes as f64)),
        fact("compute capability", found.capability.clone()),
        fact("CUDA of the driver", found.driver_version.clone()),
        fact("address", found.pci_bus_id.clone()),
        fact("multiprocessors", found.multiprocessor_count.to_string()),
        fact(
            "the first open, with the kernels",
            milliseconds(first_open_s),
        ),
        fact("another open", milliseconds(found.open_s)),
        fact("a launch and a wait for it", waits),
        fact(
            "a launch among many",
            found.launch_us.map_or(DASH.to_string(), micros),
        ),
    ];
    let copies: Vec<_> = found.copies.iter().collect();
    let mut rows: Vec<Row> = copies
        .iter()
        .map(|copy| {
            let head = format!(
                "{}, {}",
                Unit::Bytes.show(copy.bytes as f64),
                copy.direction
            );
            row(
                head,
                label,
                vec![format!("{} GB/s", grouped(copy.gb_per_s, 2))],
            )
        })
        .collect();
    let rates: Vec<_> = copies.iter().map(|copy| Some(copy.gb_per_s)).collect();
    with_bars(&mut rows, 0, &rates);
    let tables = vec![
        Table::new("The GPU", &["fact", ""], facts),
        Table::new(
            "Copies through pinned memory",
            &["size and direction", "speed"],
            rows,
        ),
    ];
    part("device", "The GPU and its link", Vec::new(), tables)
}

fn equality(report: &Report) -> Part {
    let mut texts = vec![
        "Each job was run by the GPU's executor and by the host's. Files and counters were \
         compared. Where both compress, decoded blocks, index keys and filters were compared."
            .to_string(),
    ];
    for reason in &report.declined_codecs {
        texts.push(format!(
            "Not compared, because the executor declines it: {reason}."
        ));
    }
    let rows = report.equality.iter().map(|found| {
        let result = match &found.difference {
            None => format!("equal ({})", found.compared),
            Some(what) => format!("NOT EQUAL: {what}"),
        };
        let cells = vec![
            found.executor.clone(),
            Unit::Bytes.show(found.input_bytes as f64),
            count(found.tables as u64),
            found.seed.to_string(),
            result,
        ];
        row(&found.shape, None, cells)
    });
    let heads = ["job", "executor", "inputs", "tables", "seed", "result"];
    let table = Table::new("Comparisons", &heads, rows.collect());
    part(
        "equality",
        "Equal to the host's executor",
        texts,
        vec![table],
    )
}

/// A median and its ends.
fn spread(figures: &SpreadRow, decimals: usize) -> Cell {
    let ends = format!(
        "{} to {} in {} rounds",
        grouped(figures.lowest, decimals),
        grouped(figures.highest, decimals),
        figures.count
    );
    Cell {
        text: grouped(figures.median, decimals),
        notes: vec![ends],
        bar: None,
    }
}

fn speed(report: &Report) -> Part {
    let mut tables: Vec<Table> = Vec::new();
    for place in ["memory", "disk", "direct I/O"] {
        let caption = match place {
            "memory" => "Merges whose outputs go to memory (tmpfs)",
            "direct I/O" => {
                "Merges on the disk of the results; inputs and outputs go past the page cache"
            }
            _ => "Merges whose outputs go to the disk of the results; inputs are in memory",
        };
        let heads = [
            "way",
            "MB of inputs a second",
            "CPU-seconds a GB",
            "over one task",
        ];
        let mut table = Table::new(caption, &heads, Vec::new());
        table.bodies.clear();
        let rows: Vec<_> = report.speed.iter().filter(|s| s.place == place).collect();
        for group in rows
            .chunk_by(|a, b| (a.value_bytes, a.runs, a.codec) == (b.value_bytes, b.runs, b.codec))
        {
            let Some(first) = group.first() else { continue };
            let title = format!(
                "Values of {} bytes, {} runs, codec {}, {} of inputs",
                first.value_bytes,
                first.runs,
                first.codec,
                Unit::Bytes.show(first.input_bytes as f64)
            );
            let mut rows: Vec<Row> = group
                .iter()
                .map(|s| Row {
                    head: format!("{}, {}", s.side, s.transfer),
                    note: s.label.unwrap_or_default().to_string(),
                    cells: vec![
                        spread(&s.mb_per_s, 0),
                        spread(&s.cpu_s_per_gb, 2),
                        Cell::from(or_dash(Unit::Factor, s.over_one_task)),
                    ],
                    ..Row::default()
                })
                .collect();
            let figures = |of: fn(&super::report::SpeedRow) -> f64| -> Vec<Option<f64>> {
                group.iter().map(|s| Some(of(s))).collect()
            };
            with_bars(&mut rows, 0, &figures(|s| s.mb_per_s.median));
            with_bars(&mut rows, 1, &figures(|s| s.cpu_s_per_gb.median));
            table.bodies.push(Body {
                title: Some((title, None)),
                rows,
            });
        }
        tables.push(table);
    }
    let texts = [
        "MB are 10^6 bytes of input files. Keys have 16 bytes. CPU-seconds are those of the whole \
         process: all tasks, and the threads of the driver. Figures are medians of rounds in which \
         all ways took turns.",
        "RocksDB merges the same entries in a process of its own: one table a run, one compaction, \
         of which the call is timed, and the processor time is that of its process. Its speed is \
         in MB of the executors' inputs, so equal speeds are equal times.",
        "`hierarchical` is shown with a job into level 1 or 2, which drops nothing; its jobs into \
         lower levels are those of `cooperative`. The host with several tasks has a job that is \
         cut into as many subjobs as it needs. `all checked` is the executor whose host checks the \
         checksums of all blocks, as it does for the first jobs after an open.",
    ];
    let mut texts: Vec<String> = texts.map(str::to_string).into();
    texts.extend(report.rocksdb.clone());
    part("speed", "How fast jobs are merged", texts, tables)
}

fn kernels(report: &Report) -> Part {
    let mut tables = Vec::new();
    for group in report.kernels.chunk_by(|a, b| a.job == b.job) {
        let mut sorted: Vec<_> = group.iter().collect();
        sorted.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let mut rows: Vec<Row> = sorted
            .iter()
            .map(|kernel| {
                let rate = kernel
                    .gb_per_s
                    .map(|rate| format!("{} GB/s", grouped(rate, 0)));
                let cells = vec![
                    milliseconds(kernel.seconds),
                    Unit::Percent.show(kernel.share),
                    count(kernel.launches),
                    count(kernel.items),
                    rate.unwrap_or_else(|| DASH.to_string()),
                ];
                row(kernel.kernel, kernel.label, cells)
            })
            .collect();
        let seconds: Vec<_> = sorted.iter().map(|kernel| Some(kernel.seconds)).collect();
        with_bars(&mut rows, 0, &seconds);
        let caption = group.first().map_or("", |kernel| &kernel.job[..]);
        let heads = [
            "kernel",
            "time",
            "share",
            "launches",
            "items",
            "necessary bytes over time",
        ];
        tables.push(Table::new(caption, &heads, rows));
    }
    let text = "The times are those of the device, between events before and after each launch, in \
                one job with the transfer `plain`. Necessary bytes are those that the kernel has \
                to read and write once; an H200 has 4,800 GB/s.";
    part(
        "kernels",
        "The time of each kernel",
        vec![text.to_string()],
        tables,
    )
}

fn rank(report: &Report) -> Part {
    let mut rows: Vec<Row> = report
        .rank
        .iter()
        .map(|found| {
            let head = format!("{} runs, {}-byte keys", found.runs, found.key_bytes);
            let cells = vec![
                count(found.entries),
                milliseconds(found.merge_pairs_s),
                milliseconds(found.rank_s),
            ];
            row(head, found.label, cells)
        })
        .collect();
    let of = |figure: fn(&super::report::RankRow) -> f64| -> Vec<Option<f64>> {
        report
            .rank
            .iter()
            .map(|found| Some(figure(found)))
            .collect()
    };
    with_bars(&mut rows, 1, &of(|found| found.merge_pairs_s));
    with_bars(&mut rows, 2, &of(|found| found.rank_s));
    let heads = ["job", "entries", "merge_pairs, all rounds", "rank_items"];
    let mut memory: Vec<Row> = report
        .memory
        .iter()
        .map(|found| Row {
            head: Unit::Bytes.show(found.memory_bytes as f64),
            note: found.label.unwrap_or_default().to_string(),
            cells: vec![Cell::from(count(found.pieces)), spread(&found.mb_per_s, 0)],
            ..Row::default()
        })
        .collect();
    let speeds: Vec<_> = report
        .memory
        .iter()
        .map(|m| Some(m.mb_per_s.median))
        .collect();
    with_bars(&mut memory, 1, &speeds);
    let memory_heads = ["memory of the GPU", "pieces", "MB of inputs a second"];
    let tables = vec![
        Table::new("The time of merging, on the device", &heads, rows),
        Table::new("One job with less and less memory", &memory_heads, memory),
    ];
    part(
        "rank",
        "By rank or in pairs, and how much memory",
        Vec::new(),
        tables,
    )
}

fn store(report: &Report) -> Part {
    let seconds = report
        .store
        .iter()
        .map(|s| s.by_second.len())
        .max()
        .unwrap_or(0);
    let latency =
        |us: Option<f64>| us.map_or(DASH.to_string(), |us| format!("{} µs", grouped(us, 1)));
    let name = |s: &StoreRow| format!("{}, {}", s.workload, s.side);
    let mut rows: Vec<Row> = report
        .store
        .iter()
        .map(|s| {
            let (writes, reads) = (s.writes.as_ref(), s.reads.as_ref());
            let busy = s
                .gpu_busy
                .map(|share| format!("{}%", grouped(100.0 * share, 1)));
            let cells = vec![
                Unit::PerSecond.show(s.per_s),
                latency(writes.map(|w| w.p50_us)),
                latency(writes.map(|w| w.p99_us)),
                latency(writes.map(|w| w.p999_us)),
                latency(reads.map(|r| r.p50_us)),
                latency(reads.map(|r| r.p99_us)),
                format!("{} s", grouped(s.cpu_s, 1)),
                count(s.compactions),
                count(s.gpu_jobs),
                busy.unwrap_or(DASH.to_string()),
            ];
            row(name(s), s.label, cells)
        })
        .collect();
    let speeds: Vec<_> = report.store.iter().map(|s| Some(s.per_s)).collect();
    with_bars(&mut rows, 0, &speeds);
    let heads = [
        "store",
        "operations",
        "writes, p50",
        "p99",
        "p99.9",
        "gets, p50",
        "p99",
        "CPU time",
        "compactions",
        "jobs of the GPU",
        "GPU busy",
    ];
    let mut second_heads = vec!["second".to_string()];
    second_heads.extend(report.store.iter().map(name));
    let second_rows = (0..seconds).map(|second| {
        let figure = |s: &StoreRow| {
            s.by_second
                .get(second)
                .map_or(DASH.to_string(), |n| count(*n))
        };
        let label = report.store.first().and_then(|s| s.label);
        row(
            (second + 1).to_string(),
            label,
            report.store.iter().map(figure).collect(),
        )
    });
    let by_second = Table {
        caption: "Operations by second".to_string(),
        heads: second_heads,
        bodies: vec![Body {
            title: None,
            rows: second_rows.collect(),
        }],
    };
    let text = "Eight threads, and one worker of the host for flushes and compactions, in memory \
                (tmpfs), without syncs.";
    let tables = vec![Table::new("Stores", &heads, rows), by_second];
    part(
        "store",
        "A store under load",
        vec![text.to_string()],
        tables,
    )
}

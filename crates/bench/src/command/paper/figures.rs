//! Tables of the figures of all runs of an experiment.
//!
//! Threading: pure functions.

use serde_json::Value as Json;

use super::carried::Carried;
use super::compare::text;
use super::verdict::median;
use crate::experiment::Metric;

/// A table that does not depend on the kind of page.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Grid {
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// The columns of the table of all runs, with their figures.
const COLUMNS: [(&str, Metric); 13] = [
    ("bytes until idle", Metric::BytesPerSUntilIdle),
    ("operations until idle", Metric::OpsPerSUntilIdle),
    ("bytes", Metric::BytesPerS),
    ("WA of tables", Metric::TableWriteAmplification),
    ("by the host", Metric::HostWriteAmplification),
    ("mean", Metric::MeanUs),
    ("p90", Metric::P90Us),
    ("p99", Metric::P99Us),
    ("p99.9", Metric::P999Us),
    ("host CPU", Metric::HostCpu),
    ("device CPU", Metric::DeviceCpu),
    ("host compaction bandwidth", Metric::HostCompactionBytesPerS),
    ("link bytes a byte", Metric::LinkAmplification),
];

/// The prefix of the counters that count the bytes of the link by purpose.
const PURPOSE: &str = "link_purpose_";

/// The medians of the figures of each run that was carried out.
pub fn runs(carried: &Carried) -> Grid {
    let heads = ["run"].into_iter().chain(COLUMNS.map(|(head, _)| head));
    let rows = carried.plan.runs.iter().filter_map(|planned| {
        let records = carried.rounds_of(planned.index);
        records.iter().flatten().next()?;
        let figure = |metric: Metric| {
            let found = median(metric, None, records);
            found.map_or("-".into(), |found| text(metric.name(), found))
        };
        let mut cells = vec![planned.label.clone()];
        cells.extend(COLUMNS.map(|(_, metric)| figure(metric)));
        Some(cells)
    });
    Grid {
        heads: heads.map(String::from).collect(),
        rows: rows.collect(),
    }
}

/// The bytes that crossed the link by purpose, for each byte that was put. Only runs whose engine
/// counts them have any.
pub fn purposes(carried: &Carried) -> Grid {
    let first = |index: usize| carried.rounds_of(index).iter().flatten().next();
    let mut names: Vec<String> = Vec::new();
    for index in 0..carried.experiment.runs.len() {
        let counters = first(index).and_then(|record| record.get("engine_counters")?.as_object());
        let used = counters.into_iter().flatten();
        let used = used.filter(|(_, bytes)| bytes.as_u64() != Some(0));
        for name in used.map(|(name, _)| name) {
            if name.starts_with(PURPOSE) && !names.contains(name) {
                names.push(name.clone());
            }
        }
    }
    if names.is_empty() {
        return Grid::default();
    }
    let rows = carried.plan.runs.iter().filter_map(|planned| {
        let record = first(planned.index)?;
        let written = record.pointer("/bytes/user_written_bytes")?.as_f64()?;
        let counters = record.get("engine_counters")?;
        let part = |name: &String| {
            let bytes = counters.get(name).and_then(Json::as_f64);
            let part = bytes.map(|bytes| bytes / written);
            let part = part.filter(|part| part.is_finite());
            part.map_or("-".into(), |part| format!("{part:.3}"))
        };
        let label = std::iter::once(planned.label.clone());
        Some(label.chain(names.iter().map(part)).collect())
    });
    let short = |name: &String| {
        let name = name.trim_start_matches(PURPOSE);
        name.trim_end_matches("_bytes").to_string()
    };
    let head = std::iter::once("run".to_string());
    Grid {
        heads: head.chain(names.iter().map(short)).collect(),
        rows: rows.collect(),
    }
}

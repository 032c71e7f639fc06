//! Which run's store a run uses, and whether it can.

use std::ops::Range;

use super::Run;
use super::error::{ExperimentError, did_you_mean};
use super::product::Assigned;
use super::section::{At, Section};
use crate::settings::{ENGINES, differing, nearest};

type Read<T> = Result<T, ExperimentError>;

/// What `store` says if the run makes a store of its own.
const FRESH: &str = "fresh";

/// The settings that decide the keys and values of a store.
pub(crate) const DATA: [&str; 5] = [
    "records",
    "key_bytes",
    "value_bytes",
    "compression_ratio",
    "seed",
];

/// The index of the run whose store is used; `None` if the run makes one.
pub(super) fn store_of(
    section: &Section<'_>,
    runs: &[Run],
    later: &[String],
    named: Option<&At<String>>,
    assigned: &Assigned,
) -> Read<Option<usize>> {
    let workload = assigned.settings.workload;
    let position = assigned
        .position("workload")
        .unwrap_or(section.span.clone());
    match named {
        None if workload.makes_store() => Ok(None),
        Some((name, _)) if name == FRESH && workload.makes_store() => Ok(None),
        Some((_, span)) if workload.makes_store() => {
            let message = format!(
                "`{workload}` begins with an empty store; leave `store` out, or write \
                 `store = \"{FRESH}\"`"
            );
            Err(section.error(span.clone(), message))
        }
        None => Err(section.error(position, needs_store(workload.name()))),
        Some((name, span)) if name == FRESH => {
            Err(section.error(span.clone(), needs_store(workload.name())))
        }
        Some((name, span)) => {
            let index = earlier(section, runs, later, name, span)?;
            same_data(section, &runs[index], assigned, span)?;
            Ok(Some(index))
        }
    }
}

fn needs_store(workload: &str) -> String {
    format!("`{workload}` needs a filled store; say which run fills it: `store = \"LABEL\"`")
}

/// The index of the run with this label among the runs so far.
fn earlier(
    section: &Section<'_>,
    runs: &[Run],
    later: &[String],
    name: &str,
    span: &Range<usize>,
) -> Read<usize> {
    if let Some(index) = runs.iter().position(|run| run.label == name) {
        return Ok(index);
    }
    let message = if later.iter().any(|label| label == name) {
        format!("`{name}` is not an earlier run, so its store is not filled yet")
    } else {
        let nearest = nearest(name, runs.iter().map(|run| run.label.as_str()));
        format!(
            "no earlier run has the label `{name}`{}",
            did_you_mean(nearest)
        )
    };
    Err(section.error(span.clone(), message))
}

/// Refuses a store with other keys or values than the run expects.
fn same_data(
    section: &Section<'_>,
    maker: &Run,
    assigned: &Assigned,
    span: &Range<usize>,
) -> Read<()> {
    let (own, made) = (&assigned.settings, &maker.settings);
    if own.workload.has_hashed_keys() != made.workload.has_hashed_keys() {
        let message = format!(
            "`{}` has other keys than `{}`, which `{}` does; YCSB's workloads need a store of \
             `ycsb-load`, and the others one of a fill",
            own.workload, made.workload, maker.label
        );
        return Err(section.error(span.clone(), message));
    }
    for name in DATA {
        let text = |settings: &crate::settings::Settings| settings.get(name).unwrap_or_default();
        if text(own) != text(made) {
            let message = format!(
                "`{name}` is {}, and the store of `{}` was filled with {}",
                text(own),
                maker.label,
                text(made)
            );
            let position = assigned.position(name).unwrap_or(span.clone());
            return Err(section.error(position, message));
        }
    }
    same_shape(section, maker, assigned, span)
}

/// Refuses a store that was filled with other settings of the engine that shape its files.
fn same_shape(
    section: &Section<'_>,
    maker: &Run,
    assigned: &Assigned,
    span: &Range<usize>,
) -> Read<()> {
    for engine in ENGINES {
        let (own, made) = (&assigned.settings.engine, &maker.settings.engine);
        if let Some((name, own, made)) = differing(&own.shape(engine), &made.shape(engine)) {
            let message = format!(
                "`{name}` is {own}, and the store of `{}` was filled with {made}",
                maker.label
            );
            let position = assigned.position(&name).unwrap_or(span.clone());
            return Err(section.error(position, message));
        }
    }
    Ok(())
}

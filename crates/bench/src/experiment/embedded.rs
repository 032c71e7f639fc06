//! The experiments that are part of the program: those of `crates/bench/experiments`.

use super::Experiment;
use super::error::did_you_mean;
use crate::settings::nearest;

macro_rules! files {
    ($($name:literal),+ $(,)?) => {
        [$(($name, include_str!(concat!("../../experiments/", $name, ".toml")))),+]
    };
}

/// Names and texts, sorted by name.
pub(super) static FILES: [(&str, &str); 22] = files![
    "gpu-compaction-fig11",
    "gpu-compaction-fig14",
    "gpu-compaction-table2",
    "hpdk-fig5",
    "hpdk-fig6",
    "kv-csd-fig10",
    "kv-csd-fig7",
    "kv-csd-fig8",
    "kvaccel-table4",
    "prockstore-ablation",
    "prockstore-fig10",
    "prockstore-fig11",
    "prockstore-fig12",
    "prockstore-fig13",
    "prockstore-fig16",
    "prockstore-fig17",
    "prockstore-fig9",
    "prockstore-target-lent",
    "prockstore-target-link",
    "prockstore-target-local",
    "prockstore-target-sustained",
    "prockstore-target-tail",
];

/// There is no experiment of this name in the program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no experiment `{name}`{}; those that there are: {}",
    did_you_mean(*.nearest),
    embedded_names().collect::<Vec<_>>().join(", ")
)]
pub struct NoExperiment {
    /// The name.
    pub name: String,
    /// The name that may have been meant.
    pub nearest: Option<&'static str>,
}

/// The names of the experiments that are part of the program, sorted.
pub fn embedded_names() -> impl Iterator<Item = &'static str> {
    FILES.iter().map(|(name, _)| *name)
}

impl Experiment {
    /// An experiment that is part of the program.
    ///
    /// # Errors
    /// If there is none of this name, with the nearest name and all names.
    pub fn named(name: &str) -> Result<Experiment, NoExperiment> {
        let file = FILES.iter().find(|(known, _)| *known == name);
        let experiment = file.and_then(|(name, text)| {
            // A test reads all of them, so this cannot fail.
            Experiment::parse(&format!("experiments/{name}.toml"), text).ok()
        });
        experiment.ok_or_else(|| NoExperiment {
            name: name.into(),
            nearest: nearest(name, embedded_names()),
        })
    }
}

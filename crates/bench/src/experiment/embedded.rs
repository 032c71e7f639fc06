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
pub(super) static FILES: [(&str, &str); 23] = files![
    "gpu-compaction-fig11",
    "gpu-compaction-fig13",
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

/// Names of figures that show other metrics of the runs of another figure: each with the experiment
/// that has these runs, and with the figure as the sources in its file name it.
static OTHER_NAMES: [(&str, &str, &str); 4] = [
    ("gpu-compaction-fig10", "gpu-compaction-fig11", "Fig. 10"),
    ("gpu-compaction-table1", "gpu-compaction-fig11", "Table I"),
    ("prockstore-fig14", "prockstore-fig12", "Fig. 14"),
    ("prockstore-fig15", "prockstore-fig13", "Fig. 15"),
];

/// The name of an experiment on compaction on a GPU, if this is its short form: `gpu-fig11` is
/// `gpu-compaction-fig11`.
fn whole_name(name: &str) -> Option<String> {
    let figure = name.strip_prefix("gpu-")?;
    let whole = format!("gpu-compaction-{figure}");
    known_names().contains(&&*whole).then_some(whole)
}

/// There is no experiment of this name in the program.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "there is no experiment `{name}`{}; the names are: {}",
    did_you_mean(*.nearest),
    known_names().join(", ")
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

/// Other names, each with the experiment whose runs it has, and with the figure of the paper to
/// which its ratios belong.
pub fn other_names() -> impl Iterator<Item = (&'static str, &'static str, &'static str)> {
    OTHER_NAMES.iter().copied()
}

/// All names by which an experiment of the program can be given, sorted.
pub fn known_names() -> Vec<&'static str> {
    let others = other_names().map(|(name, ..)| name);
    let mut names: Vec<_> = embedded_names().chain(others).collect();
    names.sort_unstable();
    names
}

impl Experiment {
    /// An experiment that is part of the program.
    ///
    /// # Errors
    /// If there is none of this name, with the nearest name and all names.
    pub fn named(name: &str) -> Result<Experiment, NoExperiment> {
        let whole = whole_name(name);
        let name = whole.as_deref().unwrap_or(name);
        let other = OTHER_NAMES.iter().find(|(known, ..)| *known == name);
        let of = other.map_or(name, |(_, of, _)| *of);
        let file = FILES.iter().find(|(known, _)| *known == of);
        let experiment = file.and_then(|(_, text)| {
            // A test reads all of them, so this cannot fail.
            Experiment::parse(&format!("experiments/{name}.toml"), text).ok()
        });
        let experiment = match other {
            Some((.., figure)) => experiment.map(|all| all.only(figure)),
            None => experiment,
        };
        experiment.ok_or_else(|| NoExperiment {
            name: name.into(),
            nearest: nearest(name, known_names()),
        })
    }

    /// The same runs, with nothing of the paper but what it has in this figure.
    fn only(mut self, figure: &str) -> Experiment {
        let is_its = |source: &str| source.contains(figure);
        self.ratios.retain(|ratio| is_its(&ratio.source));
        self.claims.retain(|claim| is_its(&claim.source));
        for run in &mut self.runs {
            run.values.retain(|value| is_its(&value.source));
        }
        self
    }
}

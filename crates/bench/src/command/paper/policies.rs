//! Compares the policy of this project with the best of the other policies.
//!
//! Runs of an experiment are compared if they differ only in their schedule: a run with the policy,
//! and the runs with the other policies, on the same device over the same link. The best of the
//! others is the one with the highest median.
//!
//! Invariant: if a run or a round is missing, of the policy or of another one, this never makes the
//! verdict better for the policy.
//!
//! Threading: pure functions.

use super::carried::Carried;
use super::compare::pairs;
use super::figures::Grid;
use super::rows::Row;
use super::verdict::{Verdict, median};
use crate::compare::{Interval, Rounds};
use crate::experiment::Metric;
use crate::record::number;
use crate::settings::Settings;

/// The policy that is compared with all others.
pub const POLICY: &str = "near-data";
/// Two policies are level if 1 is in the interval of their ratio, and neither end of the interval
/// is farther from 1 than this.
const LEVEL: f64 = 0.1;

/// How a run with the policy compares with the best other policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Says {
    /// All of the interval is above 1.
    Faster,
    /// 1 is in the interval, which is narrow.
    Level,
    /// All of the interval is below 1.
    Slower,
    /// 1 is in the interval, which is wide.
    Wide,
    /// There is only one round, so there is no interval.
    OneRound,
    /// No round has both runs.
    Nothing,
}

impl Says {
    const ALL: [Says; 6] = [
        Says::Faster,
        Says::Level,
        Says::Slower,
        Says::Wide,
        Says::OneRound,
        Says::Nothing,
    ];

    fn of(rounds: Option<&Rounds>) -> Says {
        let Some(rounds) = rounds else {
            return Says::Nothing;
        };
        let is_narrow =
            |interval: Interval| interval.from >= 1.0 - LEVEL && interval.to <= 1.0 + LEVEL;
        match (rounds.is_better(), rounds.interval) {
            (Some(true), _) => Says::Faster,
            (Some(false), _) => Says::Slower,
            (None, Some(interval)) if is_narrow(interval) => Says::Level,
            (None, Some(_)) => Says::Wide,
            (None, None) => Says::OneRound,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Says::Faster => "faster",
            Says::Level => "level",
            Says::Slower => "slower",
            Says::Wide => "undecided",
            Says::OneRound => "one round",
            Says::Nothing => "no ratio",
        }
    }
}

/// A run with the policy, compared with the runs of the other policies.
#[derive(Debug)]
pub struct Against<'a> {
    experiment: &'a str,
    run: &'a str,
    /// The other policies in the order of the experiment. If rounds of one are missing, a text says
    /// which ones.
    others: Vec<(&'a str, Option<String>)>,
    /// Which rounds of the run itself are missing, as text. `None` if none is.
    own: Option<String>,
    /// The best other policy, and the ratios of the run to it.
    best: Option<(&'a str, Option<Rounds>)>,
}

impl Against<'_> {
    fn says(&self) -> Says {
        let rounds = self.best.as_ref().and_then(|(_, rounds)| rounds.as_ref());
        Says::of(rounds)
    }

    fn is_complete(&self) -> bool {
        self.own.is_none() && self.others.iter().all(|(_, missing)| missing.is_none())
    }

    /// Whether it is certain that the run is not slower.
    fn is_good(&self) -> bool {
        self.is_complete() && matches!(self.says(), Says::Faster | Says::Level)
    }

    /// The policies of the comparison, each with the rounds that are missing.
    fn policies(&self) -> String {
        let own = std::iter::once((POLICY, &self.own));
        let others = self.others.iter().map(|(name, missing)| (*name, missing));
        let text = |(name, missing): (&str, &Option<String>)| match missing {
            None => name.to_string(),
            Some(missing) => format!("{name} ({missing})"),
        };
        own.chain(others).map(text).collect::<Vec<_>>().join(", ")
    }
}

/// The schedule of a run with a device.
fn policy(settings: &Settings) -> Option<&str> {
    let schedule = settings.engine.own.get("schedule")?;
    settings.topology.has_device().then_some(schedule.as_str())
}

/// Settings without the schedule.
fn bare(settings: &Settings) -> Settings {
    let mut settings = settings.clone();
    settings.engine.own.remove("schedule");
    settings
}

/// The comparisons of policies in all experiments that have figures of the paper.
pub fn against(all: &[Carried]) -> Vec<Against<'_>> {
    let figures = all.iter().filter(|carried| !carried.is_target());
    figures
        .flat_map(|carried| {
            let runs = 0..carried.experiment.runs.len();
            runs.filter_map(|index| against_others(carried, index))
        })
        .collect()
}

/// The comparison of a run. `None` if the run has another policy, or if there is no run to compare
/// it with.
fn against_others(carried: &Carried, index: usize) -> Option<Against<'_>> {
    let run = &carried.experiment.runs[index];
    (policy(&run.settings)? == POLICY).then_some(())?;
    let own = bare(&run.settings);
    let runs = carried.experiment.runs.iter().enumerate();
    let others = runs.filter_map(|(other, found)| {
        let name = policy(&found.settings).filter(|name| !name.starts_with(POLICY))?;
        (bare(&found.settings) == own).then_some((other, name))
    });
    let others: Vec<(usize, &str)> = others.collect();
    if others.is_empty() {
        return None;
    }
    let metric = match run.settings.workload.writes() {
        true => Metric::OpsPerSUntilIdle,
        false => Metric::OpsPerS,
    };
    let rates = others.iter().filter_map(|(other, name)| {
        let rate = median(metric, None, carried.rounds_of(*other))?;
        Some((rate, *other, *name))
    });
    let best = rates.max_by(|a, b| a.0.total_cmp(&b.0));
    let best = best.map(|(_, other, name)| {
        let both = (carried.rounds_of(index), carried.rounds_of(other));
        (name, Rounds::of(pairs(metric, None, both)))
    });
    let members = others.iter().map(|(other, _)| *other);
    let members: Vec<usize> = std::iter::once(index).chain(members).collect();
    let missing = |run| missing(carried, &members, run);
    Some(Against {
        experiment: &carried.experiment.name,
        run: &run.label,
        own: missing(index),
        others: others
            .iter()
            .map(|(other, name)| (*name, missing(*other)))
            .collect(),
        best,
    })
}

/// Says which rounds the run has no record of, among the rounds that any of the runs `members`
/// began. If none of them began a round, it says that. `None` if no record is missing.
fn missing(carried: &Carried, members: &[usize], run: usize) -> Option<String> {
    let has_failed = |run: usize, round: usize| {
        let mut failures = carried.failures.iter();
        failures.any(|failure| (failure.run, failure.round) == (run, round))
    };
    let has_record = |run: usize, round: usize| {
        let record = carried.rounds_of(run).get(round);
        record.is_some_and(Option::is_some)
    };
    let was_begun = |round: &usize| {
        let mut members = members.iter();
        members.any(|run| has_record(*run, *round) || has_failed(*run, *round))
    };
    let begun: Vec<usize> = (0..carried.rounds as usize).filter(was_begun).collect();
    if begun.is_empty() {
        return Some("not carried out".into());
    }
    let mut parts = Vec::new();
    for round in begun {
        if has_failed(run, round) {
            parts.push(format!("failed in round {}", round + 1));
        } else if !has_record(run, round) {
            parts.push(format!("missing in round {}", round + 1));
        }
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// The row for the table of targets. `None` if no policies are compared.
pub fn row(all: &[Against<'_>]) -> Option<Row> {
    if all.is_empty() {
        return None;
    }
    let names = |is_named: &dyn Fn(&Against<'_>) -> bool| {
        let (mut text, mut experiment) = (String::new(), "");
        for against in all.iter().filter(|against| is_named(against)) {
            let separator = match text.is_empty() {
                true => "",
                false if against.experiment == experiment => ", ",
                false => "; ",
            };
            text.push_str(separator);
            if against.experiment != experiment {
                experiment = against.experiment;
                text.push_str(&format!("{experiment}: "));
            }
            text.push_str(against.run);
        }
        text
    };
    let slower = names(&|against| against.says() == Says::Slower);
    let open = names(&|against| against.says() != Says::Slower && !against.is_good());
    let verdict = match () {
        () if !slower.is_empty() => Verdict::Missed,
        () if all.iter().all(|against| against.best.is_none()) => Verdict::NotRun,
        () if open.is_empty() => Verdict::Met,
        () => Verdict::Undecided,
    };
    let mut why = Vec::new();
    for (what, names) in [("slower", slower), ("undecided", open)] {
        if !names.is_empty() {
            why.push(format!("{what} in {names}"));
        }
    }
    Some(Row {
        what: format!("`{POLICY}` is never slower than the best other policy"),
        paper: format!("in none of {} runs", all.len()),
        ours: counts(all),
        verdict,
        why: why.join("; "),
        source: "the table of policies below".into(),
    })
}

/// The number of runs for each result of the comparison, as text.
fn counts(all: &[Against<'_>]) -> String {
    let count = |says| all.iter().filter(|against| against.says() == says).count();
    let counts = Says::ALL
        .into_iter()
        .filter(|says| count(*says) > 0)
        .map(|says| format!("{} {}", says.word(), count(says)));
    let mut counts: Vec<String> = counts.collect();
    let incomplete = all.iter().filter(|against| !against.is_complete()).count();
    if incomplete > 0 {
        counts.push(format!("incomplete {incomplete}"));
    }
    counts.join(", ")
}

/// The heading of the table.
pub fn title() -> String {
    format!("`{POLICY}` against the best other policy")
}

/// An explanation of the words in the table.
pub fn explanation(all: &[Against<'_>]) -> String {
    let slower = all.iter().filter(|against| against.says() == Says::Slower);
    format!(
        "It is slower in {} of {} runs. *slower* stands where all of the interval is below 1, \
         *faster* where all of it is above, *level* where 1 is in it and it lies within 0.90 and \
         1.10, and *undecided* where 1 is in it and it is wider. With one round there is no \
         interval, and nothing is judged. A run is *incomplete* if it, or the run of another \
         policy, failed or is missing in a round that others have. That it is never slower is \
         missed if a run is slower, and met if all runs are complete and each is faster or level; \
         otherwise it is undecided. Runs that write are compared until idle, others by their \
         operations a second. Experiments with targets of our own are not among these runs.",
        slower.count(),
        all.len()
    )
}

/// A row for each run.
pub fn grid(all: &[Against<'_>]) -> Grid {
    let cells = |against: &Against<'_>| {
        let best = against.best.as_ref();
        let rounds = best.and_then(|(_, rounds)| rounds.as_ref());
        let ratio = rounds.map_or("-".into(), ratio_text);
        let mut says = against.says().word().to_string();
        if !against.is_complete() {
            says.push_str(", incomplete");
        }
        vec![
            format!("{}: {}", against.experiment, against.run),
            against.policies(),
            best.map_or("-".into(), |(name, _)| name.to_string()),
            ratio,
            says,
        ]
    };
    let heads = [
        "run",
        "policies that were there",
        "best other policy",
        "ratio",
        "what it says",
    ];
    Grid {
        heads: heads.map(String::from).to_vec(),
        rows: all.iter().map(cells).collect(),
    }
}

fn ratio_text(rounds: &Rounds) -> String {
    let ratio = number::factor(Some(rounds.spread.median));
    match rounds.interval {
        None => ratio,
        Some(interval) => format!("{ratio} ({:.2} to {:.2})", interval.from, interval.to),
    }
}

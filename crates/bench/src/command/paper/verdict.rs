//! Decides whether a figure of the paper was reached, and explains why not.
//!
//! Invariant: each verdict except *not judged* and *not run* comes from the interval of the rounds.
//! One round has no interval, so it decides nothing.
//!
//! Threading: pure functions.

use std::collections::BTreeMap;
use std::fmt;

use serde_json::Value as Json;

use super::compare::{Compared, RoundsOf, ends, text};
use crate::compare::{Interval, Spread};
use crate::experiment::{Metric, Number, Ratio};
use crate::settings::Kind;

/// Whether a figure was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// As good as the paper's, or better.
    Met,
    /// It is not certain that the ratio of the paper is reached. The system by which it is divided
    /// is better here than in the paper, and ours is better than that system. This counts as met.
    BaselineBetter,
    /// The rounds do not decide it.
    Undecided,
    /// Not reached.
    Missed,
    /// The figure is only shown: neither more nor less of it is better, or it is one of another
    /// system.
    Described,
    /// There is no figure.
    NotRun,
}

impl Verdict {
    /// All verdicts, in the order of a summary.
    pub const ALL: [Verdict; 6] = [
        Verdict::Met,
        Verdict::BaselineBetter,
        Verdict::Undecided,
        Verdict::Missed,
        Verdict::Described,
        Verdict::NotRun,
    ];

    /// What the verdict means, for readers of a page.
    pub fn meaning(self) -> &'static str {
        match self {
            Verdict::Met => {
                "the median is as good as the figure of the paper or of the target, or better, and \
                 the worse end of the interval is within 5% of that figure. Where the paper has a \
                 range, its worse end counts."
            }
            Verdict::BaselineBetter => {
                "the ratio of the paper is not met in this way, and the system by which it is \
                 divided is better here than in the paper; the whole interval shows that ours is \
                 better than that system. This stands only where the paper's figure of that \
                 system is known. Rates and times depend on the machine. A system therefore counts \
                 as better only if ours, divided by the paper's figure, exceeds by a tenth (of \
                 times: is below by a tenth) the geometric mean of the same quotient of the other \
                 systems that the same run is compared with. Without another such system this \
                 verdict is not given. If ours is not better, or not surely, it is *missed* or \
                 *undecided*."
            }
            Verdict::Undecided => {
                "the rounds decide neither. The interval is too wide, or there is one round only."
            }
            Verdict::Missed => {
                "the whole interval is worse than the figure of the paper or of the target."
            }
            Verdict::Described => {
                "it is only shown, because neither more nor less of it is better (how busy host \
                 and device are), or because it is of another system of the paper alone."
            }
            Verdict::NotRun => {
                "there is no figure, because the run failed, was not carried out, or needs \
                 something that does not exist here."
            }
        }
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Verdict::Met => "met",
            Verdict::BaselineBetter => "met (better baseline)",
            Verdict::Undecided => "undecided",
            Verdict::Missed => "missed",
            Verdict::Described => "not judged",
            Verdict::NotRun => "not run",
        })
    }
}

/// The median of a run's figure.
pub fn median(metric: Metric, operation: Option<Kind>, records: &RoundsOf) -> Option<f64> {
    let figures = records
        .iter()
        .flatten()
        .filter_map(|record| metric.of(record, operation));
    Spread::of(figures).map(|spread| spread.median)
}

/// The worse end of the interval of a figure that is met may miss the target by this share.
const SLACK: f64 = 0.05;

/// A number that a figure has to reach, from below or from above.
#[derive(Debug, Clone, Copy)]
struct Target {
    more_is_better: bool,
    number: f64,
}

impl Target {
    /// The target that a figure of the paper sets. Of a range, the worse end counts.
    fn of(metric: Metric, paper: Number) -> Target {
        let (low, high) = ends(paper);
        match metric.more_is_better() {
            true => Target::new(metric, low),
            false => Target::new(metric, high),
        }
    }

    fn new(metric: Metric, number: f64) -> Target {
        Target {
            more_is_better: metric.more_is_better(),
            number,
        }
    }

    /// Whether a figure is as good as the target, or better.
    fn is_reached(self, figure: f64) -> bool {
        match self.more_is_better {
            true => figure >= self.number,
            false => figure <= self.number,
        }
    }

    /// Whether a figure is better than the target.
    fn is_exceeded(self, figure: f64) -> bool {
        self.is_reached(figure) && figure != self.number
    }

    /// The target of the worse end of an interval.
    fn with_slack(self) -> Target {
        let number = match self.more_is_better {
            true => self.number * (1.0 - SLACK),
            false => self.number * (1.0 + SLACK),
        };
        Target { number, ..self }
    }

    /// The worse and the better end of an interval.
    fn ends(self, interval: Interval) -> (f64, f64) {
        match self.more_is_better {
            true => (interval.from, interval.to),
            false => (interval.to, interval.from),
        }
    }

    /// The verdict on a figure by its median and its interval.
    fn judge(self, median: f64, interval: Option<Interval>) -> Verdict {
        let Some(interval) = interval else {
            return Verdict::Undecided;
        };
        let (worse, better) = self.ends(interval);
        if self.is_reached(median) && self.with_slack().is_reached(worse) {
            return Verdict::Met;
        }
        match self.is_reached(better) {
            true => Verdict::Undecided,
            false => Verdict::Missed,
        }
    }
}

/// The verdict on a value that is a target.
pub fn of_target(metric: Metric, compared: &Compared) -> Verdict {
    match compared.ours {
        None => Verdict::NotRun,
        Some(_) if matches!(metric, Metric::HostCpu | Metric::DeviceCpu) => Verdict::Described,
        Some(median) => Target::of(metric, compared.paper).judge(median, compared.interval),
    }
}

/// The factor by which figures of this machine differ from those of the paper's machines. It is
/// estimated from the other baselines of the experiment, which are the runs by which other ratios
/// of the same run and metric are divided: it is the geometric mean of our figures divided by the
/// paper's. It is 1 for figures that do not depend on the machine, and `None` if there is no other
/// baseline. `rounds` returns the records of a run.
pub fn machine_factor<'a>(
    ratio: &Ratio,
    all: &[Ratio],
    rounds: impl Fn(usize) -> &'a RoundsOf,
) -> Option<f64> {
    if !ratio.metric.is_of_machine() {
        return Some(1.0);
    }
    let mut factors = BTreeMap::new();
    let is_like = |other: &&Ratio| {
        other.to != ratio.to
            && other.of == ratio.of
            && (other.metric, other.operation) == (ratio.metric, ratio.operation)
    };
    for other in all.iter().filter(is_like) {
        let ours = median(other.metric, other.operation, rounds(other.to));
        if let Some((ours, paper)) = ours.zip(other.baseline) {
            factors.entry(other.to).or_insert(ours / paper);
        }
    }
    let logarithms: f64 = factors.values().map(|factor| factor.ln()).sum();
    let mean = (logarithms / factors.len() as f64).exp();
    (mean.is_finite() && mean > 0.0).then_some(mean)
}

/// The verdict on a ratio. `to` are the records of the run by which it is divided, and `factor` is
/// that of the machine ([`machine_factor`]).
pub fn of_ratio(ratio: &Ratio, compared: &Compared, to: &RoundsOf, factor: Option<f64>) -> Verdict {
    let verdict = of_target(ratio.metric, compared);
    let is_judged = matches!(verdict, Verdict::Undecided | Verdict::Missed);
    if !is_judged || !is_baseline_better(ratio, to, factor) {
        return verdict;
    }
    // In this case the paper's ratio says little, so it is only judged whether ours is better at
    // all.
    let equal = Target::new(ratio.metric, 1.0);
    match compared.interval.map(|interval| equal.ends(interval)) {
        Some((worse, _)) if equal.is_exceeded(worse) => Verdict::BaselineBetter,
        Some((_, better)) if !equal.is_reached(better) => Verdict::Missed,
        _ => Verdict::Undecided,
    }
}

/// Whether our run of the baseline is better than the paper's figure of that system on this
/// machine. It is false if that figure cannot be known. The factor of the machine is an estimate,
/// so a figure that depends on the machine must be better by more than a tenth.
fn is_baseline_better(ratio: &Ratio, to: &RoundsOf, factor: Option<f64>) -> bool {
    let ours = median(ratio.metric, ratio.operation, to);
    let baseline = ratio.baseline.zip(ours).zip(factor);
    baseline.is_some_and(|((paper, ours), factor)| {
        let tenth = match (ratio.metric.is_of_machine(), ratio.metric.more_is_better()) {
            (false, _) => 1.0,
            (true, true) => 1.1,
            (true, false) => 0.9,
        };
        Target::new(ratio.metric, paper * factor * tenth).is_exceeded(ours)
    })
}

/// Whether our run of the baseline is worse than the paper's figure of that system on this machine,
/// by more than a tenth.
fn is_baseline_worse(ratio: &Ratio, to: &RoundsOf, factor: Option<f64>) -> bool {
    let ours = median(ratio.metric, ratio.operation, to);
    let baseline = ratio.baseline.zip(ours).zip(factor);
    baseline.is_some_and(|((paper, ours), factor)| {
        let tenth = match ratio.metric.more_is_better() {
            true => 0.9,
            false => 1.1,
        };
        !Target::new(ratio.metric, paper * factor * tenth).is_reached(ours)
    })
}

/// Explains why a ratio was not reached, or was easier to reach than in the paper: by the paper's
/// figure of the baseline beside ours, and by what each run used of cores and link. `factor` is
/// that of the machine ([`machine_factor`]).
pub fn why(
    verdict: Verdict,
    ratio: &Ratio,
    of: &RoundsOf,
    to: &RoundsOf,
    factor: Option<f64>,
) -> String {
    let name = ratio.metric.name();
    let baseline = || {
        let ours = median(ratio.metric, ratio.operation, to);
        let show = |figure: Option<f64>| figure.map_or("-".into(), |f| text(name, f));
        let paper = show(ratio.baseline);
        let mut said = format!("the paper's baseline has {paper}, ours {}", show(ours));
        let expected = ratio.baseline.zip(factor).map(|(paper, f)| paper * f);
        if ratio.metric.is_of_machine()
            && let Some(expected) = expected
        {
            let expected = text(name, expected);
            said = format!(
                "{said} ({expected} would be expected here, judging by the other baselines)"
            );
        }
        said
    };
    match verdict {
        Verdict::BaselineBetter => baseline(),
        // A reader has to know that a ratio is easier to reach here.
        Verdict::Met if is_baseline_worse(ratio, to, factor) => baseline(),
        Verdict::Undecided | Verdict::Missed => {
            let used = format!("{}; divided by: {}", used(of), used(to));
            match is_baseline_better(ratio, to, factor) {
                true => format!("{}; {used}", baseline()),
                false => used,
            }
        }
        _ => String::new(),
    }
}

/// The shares of its cores and of its link that a run used, as medians.
pub fn used(records: &RoundsOf) -> String {
    let middle = |figure: &dyn Fn(&Json) -> Option<f64>| {
        let figures = records.iter().flatten().filter_map(figure);
        Spread::of(figures).map(|spread| spread.median)
    };
    let mut parts = Vec::new();
    let percent = |part: f64| format!("{:.0}%", part * 100.0);
    let host = middle(&|record| Some(record.get("host_cpu")?.as_f64()? / cores(record, "host")));
    let device =
        middle(&|record| Some(record.get("device_cpu")?.as_f64()? / cores(record, "device")));
    if let Some(host) = host {
        parts.push(format!("host {}", percent(host)));
    }
    if let Some(device) = device {
        parts.push(format!("device {}", percent(device)));
    }
    for (name, counter) in [("up", "wire_sent_bytes"), ("down", "wire_received_bytes")] {
        if let Some(part) = middle(&|record| link_part(record, counter)) {
            parts.push(format!("link {name} {}", percent(part)));
        }
    }
    match parts.is_empty() {
        true => "nothing known".into(),
        false => parts.join(", "),
    }
}

/// The number of cores that a side may use.
fn cores(record: &Json, side: &str) -> f64 {
    let topology = record
        .get("settings")
        .and_then(|settings| settings.get("topology"));
    let text = topology.and_then(|topology| topology.get(format!("{side}_cores"))?.as_str());
    let all = || {
        record
            .pointer("/machine/cores")
            .and_then(Json::as_f64)
            .unwrap_or(1.0)
    };
    match text.map(str::parse) {
        Some(Ok(crate::settings::Cores::Only(cores))) => cores.len() as f64,
        _ => all(),
    }
}

/// The share of one direction of the shaped link that was used.
fn link_part(record: &Json, counter: &str) -> Option<f64> {
    let bytes = record.get("engine_counters")?.get(counter)?.as_f64()?;
    let seconds = record.get("until_idle_s")?.as_f64()?;
    let link = record.pointer("/settings/topology/link")?.as_str()?;
    let crate::settings::Link::Bits(bits) = link.parse().ok()? else {
        return None;
    };
    let part = bytes * 8.0 / (bits as f64 * seconds);
    part.is_finite().then_some(part)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn ratio(metric: Metric, paper: Number, baseline: Option<f64>) -> Ratio {
        Ratio {
            of: 0,
            to: 1,
            metric,
            operation: None,
            paper,
            baseline,
            what: None,
            system: "ProckStore".into(),
            source: "Fig. 9".into(),
        }
    }

    fn compared(paper: Number, ours: f64, interval: Option<(f64, f64)>) -> Compared {
        Compared {
            name: "x".into(),
            paper,
            ours: Some(ours),
            interval: interval.map(|(from, to)| Interval { from, to }),
            rounds: interval.map_or(1, |_| 3),
            system: "ProckStore".into(),
            source: "Fig. 9".into(),
        }
    }

    const RATE: Metric = Metric::OpsPerSUntilIdle;
    const TIME: Metric = Metric::MeanUs;

    /// The verdict on a ratio to a run with a rate of 100 and a mean time of 50, and on a value.
    fn verdicts(
        (metric, paper): (Metric, Number),
        (ours, interval): (f64, Option<(f64, f64)>),
        baseline: Option<f64>,
    ) -> [Verdict; 2] {
        let to = [Some(
            json!({"ops_per_s_until_idle": 100.0, "mean_us": 50.0, "host_cpu": 1.0}),
        )];
        let found = compared(paper, ours, interval);
        [
            of_ratio(&ratio(metric, paper, baseline), &found, &to, Some(1.0)),
            of_target(metric, &found),
        ]
    }

    #[test]
    fn a_figure_is_met_missed_or_undecided_by_its_interval() {
        use Verdict::{Met, Missed, Undecided};
        let half = Number::Exact(0.5);
        let paper = Number::Exact(1.5);
        let range = Number::Range(1.5, 2.0);
        let less = Number::Range(0.4, 0.5);
        for (metric, paper, median, interval, expected) in [
            // The median reaches it, and the lower end is within 5%: 1.425.
            (RATE, paper, 1.5, (1.43, 1.6), Met),
            (RATE, paper, 1.6, (1.55, 1.7), Met),
            (RATE, paper, 1.6, (1.42, 1.8), Undecided),
            // The median does not reach it, and the upper end does.
            (RATE, paper, 1.49, (1.45, 1.5), Undecided),
            (RATE, paper, 1.4, (1.3, 1.6), Undecided),
            (RATE, paper, 1.4, (1.3, 1.49), Missed),
            // A range counts by its worse end, which is its lower one where more is better.
            (RATE, range, 1.6, (1.5, 1.7), Met),
            (RATE, range, 1.4, (1.3, 1.49), Missed),
            (RATE, range, 1.4, (1.3, 1.8), Undecided),
            // Of times, less is better: the upper end is within 5% up to 0.525.
            (TIME, half, 0.5, (0.4, 0.52), Met),
            (TIME, half, 0.45, (0.4, 0.53), Undecided),
            (TIME, half, 0.51, (0.5, 0.52), Undecided),
            (TIME, half, 0.6, (0.51, 0.7), Missed),
            (TIME, less, 0.48, (0.47, 0.5), Met),
            (TIME, less, 0.6, (0.51, 0.7), Missed),
            (TIME, less, 0.6, (0.45, 0.7), Undecided),
        ] {
            let found = verdicts((metric, paper), (median, Some(interval)), None);
            let case = format!("{metric} {paper}: {median} {interval:?}");
            assert_eq!(found, [expected; 2], "{case}");
            // One round decides nothing, however good or bad it is.
            let one = verdicts((metric, paper), (median, None), None);
            assert_eq!(one, [Undecided; 2], "{case}");
        }
    }

    #[test]
    fn a_better_baseline_counts_only_if_ours_is_surely_better_than_it() {
        use Verdict::{BaselineBetter, Met, Missed, Undecided};
        let rate = (RATE, Number::Exact(1.5));
        let time = (TIME, Number::Exact(0.5));
        for (what, median, interval, baseline, expected) in [
            // Ours of the run that is divided by is 100, and the paper's 90.
            (rate, 1.4, (1.3, 1.45), Some(90.0), BaselineBetter),
            (rate, 1.4, (1.3, 1.6), Some(90.0), BaselineBetter),
            (rate, 1.6, (1.5, 1.7), Some(90.0), Met),
            (rate, 1.1, (0.9, 1.3), Some(90.0), Undecided),
            (rate, 1.0, (1.0, 1.0), Some(90.0), Undecided),
            (rate, 0.8, (0.7, 0.99), Some(90.0), Missed),
            // The run that is divided by is better than the paper's by less than a tenth.
            (rate, 1.4, (1.3, 1.45), Some(92.0), Missed),
            (rate, 1.4, (1.3, 1.6), Some(92.0), Undecided),
            // The run that is divided by is as the paper's or worse.
            (rate, 1.4, (1.3, 1.45), Some(100.0), Missed),
            (rate, 1.4, (1.3, 1.6), Some(110.0), Undecided),
            (rate, 1.4, (1.3, 1.45), None, Missed),
            // The mean time of the run that is divided by is 50.
            (time, 0.7, (0.6, 0.8), Some(60.0), BaselineBetter),
            (time, 0.7, (0.6, 1.1), Some(60.0), Undecided),
            (time, 1.2, (1.1, 1.3), Some(60.0), Missed),
            (time, 0.7, (0.6, 0.8), Some(55.0), Missed),
            (time, 0.7, (0.6, 0.8), Some(50.0), Missed),
            (time, 0.7, (0.6, 0.8), None, Missed),
        ] {
            let [found, _] = verdicts(what, (median, Some(interval)), baseline);
            assert_eq!(found, expected, "{what:?}: {interval:?} {baseline:?}");
        }
        let [one, _] = verdicts(rate, (1.4, None), Some(90.0));
        assert_eq!(one, Undecided);
    }

    #[test]
    fn what_is_busy_is_not_judged_and_what_has_no_figure_was_not_run() {
        let cpu = (Metric::HostCpu, Number::Exact(1.9));
        for interval in [None, Some((0.9, 1.1))] {
            let found = verdicts(cpu, (1.0, interval), Some(0.5));
            assert_eq!(found, [Verdict::Described; 2]);
        }
        let paper = Number::Exact(1.0);
        let none = Compared {
            ours: None,
            ..compared(paper, 1.0, None)
        };
        for metric in [RATE, Metric::DeviceCpu] {
            let found = of_ratio(&ratio(metric, paper, Some(90.0)), &none, &[None], None);
            assert_eq!(found, Verdict::NotRun);
            assert_eq!(of_target(metric, &none), Verdict::NotRun);
        }
    }

    #[test]
    fn a_baseline_of_one_kind_of_operation_is_compared_with_that_kind() {
        let to = [Some(
            json!({"p99_us": 1.0, "latency": {"get": {"p99_us": 9.0}}}),
        )];
        let mut asked = ratio(Metric::P99Us, Number::Exact(0.5), Some(5.0));
        let found = compared(Number::Exact(0.5), 0.7, Some((0.6, 0.8)));
        assert_eq!(
            of_ratio(&asked, &found, &to, Some(1.0)),
            Verdict::BaselineBetter
        );
        asked.operation = Some(Kind::Get);
        assert_eq!(of_ratio(&asked, &found, &to, Some(1.0)), Verdict::Missed);
    }

    #[test]
    fn a_figure_that_does_not_depend_on_the_machine_has_no_margin() {
        let metric = Metric::WriteAmplification;
        let to = [Some(json!({"write_amplification": 4.9}))];
        let found = compared(Number::Exact(0.5), 0.7, Some((0.6, 0.8)));
        for (baseline, expected) in [
            (5.0, Verdict::BaselineBetter),
            (4.9, Verdict::Missed),
            (4.8, Verdict::Missed),
        ] {
            let asked = ratio(metric, Number::Exact(0.5), Some(baseline));
            assert_eq!(of_ratio(&asked, &found, &to, Some(1.0)), expected);
        }
    }

    #[test]
    fn the_other_baselines_show_how_fast_the_machine_is() {
        let rounds = [100.0, 60.0, 20.0, 30.0].map(|rate| {
            vec![Some(
                json!({"ops_per_s_until_idle": rate, "write_amplification": 3.0}),
            )]
        });
        let of_run = |run: usize| &rounds[run][..];
        let asked = |to, baseline| Ratio {
            to,
            ..ratio(RATE, Number::Exact(3.0), baseline)
        };
        // The runs 1 to 3 have 6, 4 and 1 times the paper's figures. The second one of run 3 does
        // not count.
        let mut all = vec![
            asked(1, Some(10.0)),
            asked(2, Some(5.0)),
            asked(3, Some(30.0)),
            asked(3, Some(1.0)),
            asked(0, None),
        ];
        let factor = |ratio: &Ratio, all: &[Ratio]| machine_factor(ratio, all, of_run);
        assert_eq!(factor(&all[0], &all), Some(2.0));
        assert!((factor(&all[1], &all).unwrap() - 6f64.sqrt()).abs() < 1e-9);
        // Ratios of another run, and of another metric, say nothing.
        all[1].of = 9;
        all[2].metric = Metric::P99Us;
        all[3].metric = Metric::P99Us;
        assert_eq!(factor(&all[0], &all), None);
        let amplification = Ratio {
            metric: Metric::WriteAmplification,
            ..asked(1, Some(4.0))
        };
        assert_eq!(factor(&amplification, &all), Some(1.0));
        // Without a factor, a baseline that is faster than the paper's proves nothing.
        let found = compared(Number::Exact(3.0), 2.0, Some((1.9, 2.1)));
        for (factor, expected) in [
            (None, Verdict::Missed),
            (Some(7.0), Verdict::Missed),
            // 60 is better than 57, by less than a tenth.
            (Some(5.7), Verdict::Missed),
            (Some(5.0), Verdict::BaselineBetter),
        ] {
            assert_eq!(of_ratio(&all[0], &found, of_run(1), factor), expected);
        }
    }

    #[test]
    fn a_figure_that_was_not_reached_says_why() {
        let to = [Some(json!({"ops_per_s_until_idle": 100.0}))];
        let asked = ratio(RATE, Number::Exact(1.5), Some(90.0));
        let baseline = "the paper's baseline has 90.0 ops/s, ours 100 ops/s (90.0 ops/s would be \
                        expected here, judging by the other baselines)";
        assert_eq!(
            why(Verdict::BaselineBetter, &asked, &to, &to, Some(1.0)),
            baseline
        );
        let undecided = why(Verdict::Undecided, &asked, &to, &to, Some(1.0));
        assert!(undecided.starts_with(baseline), "{undecided}");
        let other = ratio(RATE, Number::Exact(1.5), None);
        let missed = why(Verdict::Missed, &other, &to, &to, Some(1.0));
        assert_eq!(missed, "nothing known; divided by: nothing known");
        assert_eq!(why(Verdict::Met, &asked, &to, &to, Some(1.0)), "");
        // The paper's baseline is better than ours by more than a tenth.
        let worse = ratio(RATE, Number::Exact(1.5), Some(120.0));
        let said = why(Verdict::Met, &worse, &to, &to, Some(1.0));
        let expected = "the paper's baseline has 120 ops/s, ours 100 ops/s (";
        assert!(said.starts_with(expected), "{said}");
        let times = ratio(TIME, Number::Exact(0.5), Some(50.0));
        let slow = [Some(json!({"mean_us": 56.0}))];
        assert!(why(Verdict::Met, &times, &slow, &slow, Some(1.0)).contains("baseline"));
        let level = [Some(json!({"mean_us": 54.0}))];
        assert_eq!(why(Verdict::Met, &times, &level, &level, Some(1.0)), "");
    }

    #[test]
    fn what_a_run_used_is_a_part_of_what_it_had() {
        let record = json!({
            "host_cpu": 0.5, "device_cpu": 1.0, "until_idle_s": 2.0,
            "machine": { "cores": 2 },
            "settings": { "topology": { "host_cores": "0", "device_cores": "any", "link": "1Gbit" } },
            "engine_counters": { "wire_sent_bytes": 125_000_000, "wire_received_bytes": 0 },
        });
        assert_eq!(
            used(&[Some(record), None]),
            "host 50%, device 50%, link up 50%, link down 0%"
        );
        assert_eq!(used(&[None]), "nothing known");
    }
}

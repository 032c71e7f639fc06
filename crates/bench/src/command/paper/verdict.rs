//! Whether a figure of the paper was reached, and why not.
//!
//! Threading: pure functions.

use std::fmt;

use serde_json::Value as Json;

use super::compare::{Compared, RoundsOf, ends, text};
use crate::compare::Spread;
use crate::experiment::{Metric, Ratio};

/// Whether a figure was reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Verdict {
    /// As good as the paper's, or better.
    Met,
    /// Not reached, because the system that is divided by is better here than in the paper. This
    /// counts as met.
    BaselineBetter,
    /// Not reached, but the interval of the true ratio has the paper's in it.
    Undecided,
    /// Not reached.
    Missed,
    /// A figure of which neither more nor less is better.
    Described,
    /// There is no figure.
    NotRun,
}

impl Verdict {
    /// All, in the order of a summary.
    pub const ALL: [Verdict; 6] = [
        Verdict::Met,
        Verdict::BaselineBetter,
        Verdict::Undecided,
        Verdict::Missed,
        Verdict::Described,
        Verdict::NotRun,
    ];
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
pub fn median(metric: Metric, records: &RoundsOf) -> Option<f64> {
    let figures = records
        .iter()
        .flatten()
        .filter_map(|record| metric.of(record, None));
    Spread::of(figures).map(|spread| spread.median)
}

/// Whether a figure is as good as the worse end of the paper's.
fn is_reached(metric: Metric, compared: &Compared) -> Option<bool> {
    let (low, high) = ends(compared.paper);
    let ours = compared.ours?;
    Some(match metric.more_is_better() {
        true => ours >= low,
        false => ours <= high,
    })
}

/// The verdict on a ratio. `to` are the records of the run by which it is divided.
pub fn of_ratio(ratio: &Ratio, compared: &Compared, to: &RoundsOf) -> Verdict {
    let is_better = |ours: f64, paper: f64| match ratio.metric.more_is_better() {
        true => ours > paper,
        false => ours < paper,
    };
    match is_reached(ratio.metric, compared) {
        None => Verdict::NotRun,
        Some(_) if matches!(ratio.metric, Metric::HostCpu | Metric::DeviceCpu) => {
            Verdict::Described
        }
        Some(true) => Verdict::Met,
        Some(false) => {
            let baseline = ratio.baseline.zip(median(ratio.metric, to));
            if baseline.is_some_and(|(paper, ours)| is_better(ours, paper)) {
                return Verdict::BaselineBetter;
            }
            let (low, high) = ends(compared.paper);
            match compared.interval {
                Some(interval) if interval.from <= high && interval.to >= low => Verdict::Undecided,
                _ => Verdict::Missed,
            }
        }
    }
}

/// The verdict on a value that is a target.
pub fn of_target(metric: Metric, compared: &Compared) -> Verdict {
    match is_reached(metric, compared) {
        None => Verdict::NotRun,
        Some(true) => Verdict::Met,
        Some(false) => Verdict::Missed,
    }
}

/// Why a ratio was not reached: the better baseline, or what each run used of cores and link.
pub fn why(verdict: Verdict, ratio: &Ratio, of: &RoundsOf, to: &RoundsOf) -> String {
    match verdict {
        Verdict::BaselineBetter => {
            let ours = median(ratio.metric, to);
            let name = ratio.metric.name();
            let show = |figure: Option<f64>| figure.map_or("-".into(), |f| text(name, f));
            format!(
                "the paper's baseline has {}, ours {}",
                show(ratio.baseline),
                show(ours)
            )
        }
        Verdict::Undecided | Verdict::Missed => {
            format!("{}; divided by: {}", used(of), used(to))
        }
        _ => String::new(),
    }
}

/// What a run used of its cores and its link, as medians.
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

/// The cores that a side may use.
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

/// The part of a direction of the shaped link that was used.
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
    use crate::compare::Interval;
    use crate::experiment::Number;

    fn ratio(metric: Metric, paper: f64, baseline: Option<f64>) -> Ratio {
        Ratio {
            of: 0,
            to: 1,
            metric,
            operation: None,
            paper: Number::Exact(paper),
            baseline,
            what: None,
            system: "ProckStore".into(),
            source: "Fig. 9".into(),
        }
    }

    fn compared(paper: f64, ours: f64, interval: Option<(f64, f64)>) -> Compared {
        Compared {
            name: "x".into(),
            paper: Number::Exact(paper),
            ours: Some(ours),
            interval: interval.map(|(from, to)| Interval { from, to }),
            rounds: 3,
            system: "ProckStore".into(),
            source: "Fig. 9".into(),
        }
    }

    #[test]
    fn a_ratio_is_met_by_its_direction_its_baseline_or_not_at_all() {
        let to = [Some(
            json!({"ops_per_s_until_idle": 100.0, "mean_us": 50.0}),
        )];
        let rate = Metric::OpsPerSUntilIdle;
        let verdict = |metric, paper, ours, interval, baseline| {
            let found = compared(paper, ours, interval);
            of_ratio(&ratio(metric, paper, baseline), &found, &to)
        };
        assert_eq!(verdict(rate, 1.5, 1.6, None, None), Verdict::Met);
        assert_eq!(verdict(rate, 1.5, 1.4, None, None), Verdict::Missed);
        assert_eq!(
            verdict(rate, 1.5, 1.4, Some((1.3, 1.45)), None),
            Verdict::Missed
        );
        assert_eq!(
            verdict(rate, 1.5, 1.4, Some((1.3, 1.6)), None),
            Verdict::Undecided
        );
        assert_eq!(
            verdict(rate, 1.5, 1.4, None, Some(90.0)),
            Verdict::BaselineBetter
        );
        assert_eq!(verdict(rate, 1.5, 1.4, None, Some(110.0)), Verdict::Missed);
        // Of latencies, less is better.
        assert_eq!(verdict(Metric::MeanUs, 0.8, 0.7, None, None), Verdict::Met);
        assert_eq!(
            verdict(Metric::MeanUs, 0.8, 0.9, None, None),
            Verdict::Missed
        );
        assert_eq!(
            verdict(Metric::MeanUs, 0.8, 0.9, None, Some(60.0)),
            Verdict::BaselineBetter
        );
        assert_eq!(
            verdict(Metric::HostCpu, 1.9, 1.0, None, None),
            Verdict::Described
        );
        let none = Compared {
            ours: None,
            ..compared(1.0, 1.0, None)
        };
        assert_eq!(
            of_ratio(&ratio(rate, 1.0, None), &none, &to),
            Verdict::NotRun
        );
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

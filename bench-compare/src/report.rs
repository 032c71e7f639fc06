//! Medians, spreads and ratios, as a markdown table and as JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

/// Figures by (workload, engine, name), one a round, in order.
pub type Figures = BTreeMap<(String, String, String), Vec<f64>>;

/// The middle one.
pub fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => (sorted[n / 2 - 1] + sorted[n / 2]) / 2.0,
    }
}

fn short(value: f64) -> String {
    match value.abs() {
        v if v >= 100.0 => format!("{value:.0}"),
        v if v >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

fn cell(values: Option<&Vec<f64>>) -> String {
    let Some(values) = values else {
        return "-".into();
    };
    let (low, high) = values
        .iter()
        .fold((f64::MAX, f64::MIN), |(l, h), v| (l.min(*v), h.max(*v)));
    if values.len() == 1 {
        short(values[0])
    } else {
        format!("{} ({}-{})", short(median(values)), short(low), short(high))
    }
}

/// Whether less is better.
fn less_is_better(name: &str) -> bool {
    !name.starts_with("kops") && name != "memcpy_gb_per_second"
}

/// A table for each figure: medians (lowest to highest), and for each other engine the median of
/// the rounds' ratios. Above 1 the first engine is better.
pub fn markdown(
    figures: &Figures,
    workloads: &[String],
    engines: &[String],
    names: &[&str],
) -> String {
    let mut text = String::new();
    for name in names {
        let has = |w: &&String| {
            figures.contains_key(&((*w).clone(), engines[0].clone(), (*name).to_string()))
        };
        let rows: Vec<&String> = workloads.iter().filter(has).collect();
        if rows.is_empty() {
            continue;
        }
        let _ = write!(text, "\n| {name} |");
        for engine in engines {
            let _ = write!(text, " {engine} |");
        }
        for other in &engines[1..] {
            let _ = write!(text, " {} / {other} |", engines[0]);
        }
        let _ = writeln!(text, "\n|{}", " --- |".repeat(2 * engines.len()));
        for workload in rows {
            let of = |engine: &String| {
                figures.get(&(workload.clone(), engine.clone(), (*name).to_string()))
            };
            let _ = write!(text, "| {workload} |");
            for engine in engines {
                let _ = write!(text, " {} |", cell(of(engine)));
            }
            for other in &engines[1..] {
                let (Some(a), Some(b)) = (of(&engines[0]), of(other)) else {
                    text.push_str(" - |");
                    continue;
                };
                let ratios: Vec<f64> = a
                    .iter()
                    .zip(b)
                    .map(|(a, b)| if less_is_better(name) { b / a } else { a / b })
                    .collect();
                let _ = write!(text, " {}x |", short(median(&ratios)));
            }
            text.push('\n');
        }
    }
    text
}

/// Every figure of every round.
pub fn json(figures: &Figures, settings: &[(&str, String)]) -> String {
    let mut text = String::from("{\n");
    for (name, value) in settings {
        let _ = writeln!(text, "  \"{name}\": \"{value}\",");
    }
    text.push_str("  \"figures\": [\n");
    let rows: Vec<String> = figures
        .iter()
        .map(|((workload, engine, name), values)| {
            let values: Vec<String> = values.iter().map(f64::to_string).collect();
            format!(
                "    {{\"workload\": \"{workload}\", \"engine\": \"{engine}\", \
                 \"figure\": \"{name}\", \"rounds\": [{}]}}",
                values.join(", ")
            )
        })
        .collect();
    text + &rows.join(",\n") + "\n  ]\n}\n"
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ratios_are_above_one_where_the_first_engine_is_better() {
        let mut figures = Figures::new();
        let mut add = |engine: &str, name: &str, values: &[f64]| {
            figures.insert(("w".into(), engine.into(), name.into()), values.to_vec());
        };
        add("a", "kops", &[20.0, 30.0, 40.0]);
        add("b", "kops", &[10.0, 10.0, 10.0]);
        add("a", "seconds", &[1.0]);
        add("b", "seconds", &[4.0]);
        let engines = ["a".to_string(), "b".to_string()];
        let text = markdown(&figures, &["w".to_string()], &engines, &["kops", "seconds"]);
        assert!(
            text.contains("| w | 30.0 (20.0-40.0) | 10.0 (10.0-10.0) | 3.00x |"),
            "{text}"
        );
        assert!(text.contains("| w | 1.00 | 4.00 | 4.00x |"), "{text}");
        assert!(json(&figures, &[("size", "1".into())]).contains("\"rounds\": [20, 30, 40]"));
    }
}

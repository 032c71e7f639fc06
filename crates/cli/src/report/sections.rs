//! The parts of the page after the timeline: latencies, bytes by cause, kills, the plasma, facts.

use std::fmt::Display;

use super::chart::{self, Chart, Layer, Shape, Table, dots};
use super::model::{Dump, Facts, Kill, Latency, Plasma, Writes};
use super::number::{bytes, micros, nanos};
use super::png;
use crate::output::{count, plural};
use siltstone_bench::draw::axis::{Axis, Tick};
use siltstone_bench::draw::html::Html;
use siltstone_bench::draw::number::{Unit, grouped};
use siltstone_bench::draw::plot::{self, line, percent};

/// The colours of latencies, used in turn.
const SERIES: [&str; 8] = [
    "c-s0", "c-s1", "c-s2", "c-s3", "c-s4", "c-s5", "c-s6", "c-s7",
];
/// The shares of observations that have a tick on the axis and a column in the table.
const SHARES: [(f64, &str); 6] = [
    (0.0, "0"),
    (0.5, "p50"),
    (0.9, "p90"),
    (0.99, "p99"),
    (0.999, "p99.9"),
    (0.9999, "p99.99"),
];

/// The position of a share on an axis on which each further nine takes the same room.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(1e-9).log10()
}

/// Writes the section about latencies.
pub fn latencies(h: &mut Html, latencies: &[Latency]) {
    h.line();
    h.within("section", &[("id", &"latency")], |h| {
        h.element("h2", &[], "Latencies");
        let seen: Vec<&Latency> = latencies.iter().filter(|l| l.count > 0).collect();
        if seen.is_empty() {
            h.element("p", &[("class", &"quiet")], "Nothing was timed.");
            return;
        }
        latency_chart(h, &seen);
        let mut heads: Vec<String> = ["", "observed", "mean"].map(String::from).to_vec();
        heads.extend(SHARES[1..5].iter().map(|s| s.1.to_string()));
        heads.push("max".to_string());
        let rows = seen.iter().map(|l| {
            let mut cells = vec![l.name.clone(), count(l.count), nanos(l.mean_ns)];
            cells.extend(
                SHARES[1..5]
                    .iter()
                    .map(|(share, _)| l.at(*share).map_or("–".to_string(), nanos)),
            );
            cells.push(nanos(l.max_ns));
            (None, cells)
        });
        let table = Table {
            heads,
            rows: rows.collect(),
        };
        chart::table(h, "Latencies", "figures", &table);
        h.within("dl", &[("class", &"gloss")], |h| {
            for l in seen.iter().filter(|l| !l.what.is_empty()) {
                h.element("dt", &[], &l.name);
                h.element("dd", &[], &l.what);
            }
        });
    });
}

fn latency_chart(h: &mut Html, seen: &[&Latency]) {
    // The maximum of n observations stands at the share of the last one, 1 - 1/n.
    let lines: Vec<Vec<(f64, f64)>> = seen
        .iter()
        .map(|l| {
            let last = 1.0 - 1.0 / l.count as f64;
            let mut points: Vec<(f64, f64)> = l
                .points
                .iter()
                .filter(|(share, _)| *share < last)
                .map(|(share, ns)| (nines(*share), *ns as f64))
                .collect();
            points.push((nines(last), l.max_ns as f64));
            points
        })
        .collect();
    let most = lines.iter().flatten().map(|p| p.0).fold(2.0, f64::max);
    let mut x = Axis::span(most * 1.02, 1, Unit::Plain);
    x.ticks = SHARES
        .iter()
        .filter(|(share, _)| nines(*share) <= most * 1.02)
        .map(|(share, label)| Tick {
            at: x.place(nines(*share)),
            label: (*label).to_string(),
            // Its neighbour is so close that their labels may collide.
            minor: *share == 0.5,
        })
        .collect();
    for (share, label) in [(0.99999, "p99.999"), (0.999_999, "p99.9999")] {
        if nines(share) <= most * 1.02 {
            x.ticks.push(Tick {
                at: x.place(nines(share)),
                label: label.to_string(),
                minor: true,
            });
        }
    }
    let y = Axis::log(
        lines.iter().flatten().map(|p| p.1.max(1.0)),
        Some(Unit::Nanoseconds),
    );
    let mut layers = Vec::new();
    for (n, (latency, points)) in seen.iter().zip(&lines).enumerate() {
        let colour = SERIES[n % SERIES.len()];
        // Each line begins at the left edge, at the height of its first point: some latencies
        // have no figures below the median.
        let first = points.first().map(|p| (0.0, p.1));
        let whole = first.into_iter().chain(points.iter().copied());
        let mut path = line(&x, &y, whole);
        path.push_str(&dots(&x, &y, points.last().copied().into_iter()));
        layers.push(Layer {
            name: latency.name.clone(),
            colour,
            shape: Shape::Line,
            path,
        });
    }
    let mut heads = vec!["share".to_string()];
    heads.extend(seen.iter().map(|l| l.name.clone()));
    let rows = SHARES[1..]
        .iter()
        .filter(|(share, _)| nines(*share) <= most)
        .map(|(share, label)| {
            let mut cells = vec![(*label).to_string()];
            cells.extend(
                seen.iter()
                    .map(|l| l.at(*share).map_or("–".to_string(), nanos)),
            );
            (Some(x.place(nines(*share))), cells)
        });
    let table = Table {
        heads,
        rows: rows.collect(),
    };
    let said: Vec<String> = seen
        .iter()
        .map(|l| {
            format!(
                "{}: half took at most {}, the longest {}",
                l.name,
                nanos(l.at(0.5).unwrap_or(l.max_ns)),
                nanos(l.max_ns)
            )
        })
        .collect();
    let chart = Chart {
        id: "percentiles",
        title: "Percentiles",
        note: "Both axes are logarithmic: rarer observations are to the right, longer ones are \
            higher up. A line ends with its longest observation."
            .to_string(),
        description: said.join("; "),
        x,
        x_name: "share of observations that took at most that long",
        y,
        height_rem: 19.0,
        layers,
        marks: &[],
        table,
    };
    chart::draw(h, &chart, |_| {});
}

/// Writes the section about bytes by cause.
pub fn writes(h: &mut Html, writes: &[Writes]) {
    h.line();
    h.within("section", &[("id", &"bytes")], |h| {
        h.element("h2", &[], "What was written, and why");
        let ratio = |bytes: u64, user: u64| bytes as f64 / user.max(1) as f64;
        let written = |w: &Writes| w.log_bytes + w.flush_bytes + w.compaction_bytes;
        let some: Vec<&Writes> = writes
            .iter()
            .filter(|w| written(w) > 0 || w.user_bytes > 0)
            .collect();
        if some.is_empty() {
            h.element("p", &[("class", &"quiet")], "Nothing was written.");
            return;
        }
        h.element(
            "p",
            &[("class", &"note")],
            "Bytes written to files for each byte that users wrote: the write amplification, and \
            its parts.",
        );
        let most = some
            .iter()
            .map(|w| ratio(written(w), w.user_bytes))
            .fold(1.0, f64::max);
        let x = Axis::from_zero(most, 6, Unit::Plain);
        h.within("figure", &[("class", &"bars")], |h| {
            h.within("figcaption", &[], |h| {
                let keys = [
                    ("log", "c-log"),
                    ("flush", "c-flush"),
                    ("compaction", "c-compaction"),
                ];
                chart::legend(
                    h,
                    keys.into_iter()
                        .map(|(name, colour)| (name, colour, Shape::Fill)),
                );
            });
            for w in &some {
                h.element(
                    "p",
                    &[("class", &"bar-name")],
                    format_args!(
                        "{}: {} for each byte",
                        w.name,
                        grouped(ratio(written(w), w.user_bytes), 2)
                    ),
                );
                let parts = [
                    ("log", "c-log", w.log_bytes),
                    ("flush", "c-flush", w.flush_bytes),
                    ("compaction", "c-compaction", w.compaction_bytes),
                ];
                let about = parts
                    .map(|(name, _, n)| format!("{name} {}", grouped(ratio(n, w.user_bytes), 2)))
                    .join(", ");
                h.within(
                    "div",
                    &[("class", &"bar"), ("role", &"img"), ("aria-label", &about)],
                    |h| {
                        for (name, colour, n) in parts {
                            let share = ratio(n, w.user_bytes);
                            let style = format!("width:{}", percent(x.place(share)));
                            let class = format!(
                                "{colour} {}",
                                if x.place(share) > 0.12 {
                                    "roomy"
                                } else {
                                    "tight"
                                }
                            );
                            let title = format!(
                                "{name}: {} ({} for each byte)",
                                bytes(n),
                                grouped(share, 2)
                            );
                            let attributes: [(_, &dyn Display); 3] =
                                [("class", &class), ("style", &style), ("title", &title)];
                            h.within("span", &attributes, |h| {
                                h.element("b", &[], grouped(share, 2));
                            });
                        }
                    },
                );
            }
            plot::x_labels(h, &x, "bytes written for each byte given");
        });
        let rows = some.iter().map(|w| {
            (
                None,
                vec![
                    w.name.clone(),
                    bytes(w.user_bytes),
                    bytes(w.log_bytes),
                    bytes(w.flush_bytes),
                    bytes(w.compaction_bytes),
                    bytes(w.compaction_read_bytes),
                    grouped(ratio(w.flush_bytes + w.compaction_bytes, w.user_bytes), 2),
                    grouped(ratio(written(w), w.user_bytes), 2),
                ],
            )
        });
        let heads = [
            "",
            "user",
            "log",
            "flush",
            "compaction",
            "read by compaction",
            "tables, a byte",
            "all, a byte",
        ];
        let table = Table {
            heads: heads.map(String::from).to_vec(),
            rows: rows.collect(),
        };
        chart::table(h, "Bytes by cause", "figures", &table);
    });
}

/// Writes the section about kills.
pub fn kills(h: &mut Html, kills: &[Kill]) {
    h.line();
    h.within("section", &[("id", &"kills")], |h| {
        h.element("h2", &[], "Kills, and what recovery did");
        if kills.is_empty() {
            h.element(
                "p",
                &[("class", &"quiet")],
                "No writer was killed in this run.",
            );
            return;
        }
        h.element(
            "p",
            &[("class", &"note")],
            "Each time a writer process died by SIGKILL in the middle of its work, the store was \
             opened again and both of its keyspaces were compared with the script, pair by pair. \
             All acknowledged batches of each writer thread must be there as a whole, and beyond \
             them at most the one that was being written.",
        );
        let rows = kills.iter().enumerate().map(|(n, kill)| {
            let lost = kill.acknowledged_count.saturating_sub(kill.found_count);
            let more = kill.found_count.saturating_sub(kill.acknowledged_count);
            (
                None,
                vec![
                    format!("✕\u{a0}{}", n + 1),
                    micros(kill.after_us),
                    count(kill.job_count),
                    format!(
                        "{}, {}",
                        count(kill.flush_count),
                        count(kill.compaction_count)
                    ),
                    count(kill.acknowledged_count),
                    match (lost, more) {
                        (0, 0) => format!("{},\u{a0}all", count(kill.found_count)),
                        (0, more) => format!("{}, all and {more} more", count(kill.found_count)),
                        (lost, _) => format!("{}, {lost} lost", count(kill.found_count)),
                    },
                    count(kill.compared_count),
                    micros(kill.open_us),
                    count(kill.replayed_record_count),
                    bytes(kill.discarded_log_bytes),
                ],
            )
        });
        let heads = [
            "kill",
            "after",
            "jobs running",
            "flushes, compactions so far",
            "batches acknowledged",
            "batches there",
            "pairs compared",
            "opened again in",
            "log records replayed",
            "torn end of the log",
        ];
        let table = Table {
            heads: heads.map(String::from).to_vec(),
            rows: rows.collect(),
        };
        chart::table(h, "The kills", "figures", &table);
    });
}

/// Writes the section about the plasma.
pub fn plasma(h: &mut Html, plasma: &Plasma) {
    h.line();
    h.within("section", &[("id", &"plasma")], |h| {
        h.element("h2", &[], "The plasma, read back from the store");
        h.element(
            "p",
            &[("class", &"note")],
            format_args!(
                "Two beams of electrons stream through each other. Each picture is phase space at \
                 a dump: position to the right, velocity upwards, brighter where more of the {} \
                 particles are. At first there are two straight beams; a slight wave bunches them, \
                 grows exponentially, and in the end traps them in rotating holes: the two-stream \
                 instability. The pictures are drawn from {} that were scanned out of the store in \
                 {}, not from the simulation.",
                count(plasma.particle_count),
                plural(plasma.pair_count, "pair"),
                micros(plasma.reading_us)
            ),
        );
        // All pictures have one scale, so that they can be compared. The fullest cell in 200
        // does not count for it, so that a few full cells do not darken the others.
        let mut full: Vec<u32> = plasma
            .dumps
            .iter()
            .flat_map(|d| &d.counts)
            .copied()
            .filter(|c| *c > 0)
            .collect();
        let most = match full.len() {
            0 => 1,
            n => *full.select_nth_unstable(n - 1 - n / 200).1,
        };
        h.within("div", &[("class", &"pictures")], |h| {
            for (n, dump) in plasma.dumps.iter().enumerate() {
                picture(h, plasma, n, dump, most);
            }
        });
        growth(h, plasma);
    });
}

/// Writes dump `n` as a picture with a caption. Cells with `most` particles are the brightest.
fn picture(h: &mut Html, plasma: &Plasma, n: usize, dump: &Dump, most: u32) {
    h.within("figure", &[("class", &"picture")], |h| {
        let time = grouped(dump.time, 0);
        let about = format!(
            "Phase space at time {time}: {} particles by position and velocity along \
             x; the fastest has {}.",
            count(dump.counts.iter().map(|c| u64::from(*c)).sum()),
            grouped(dump.speed_max, 2)
        );
        h.within("div", &[("class", &"canvas")], |h| {
            let rows = dump.counts.len() / dump.columns.max(1);
            if let Some(image) = png::data_uri(&dump.counts, dump.columns, most) {
                let attributes: [(_, &dyn Display); 4] = [
                    ("src", &image),
                    ("alt", &about),
                    ("width", &dump.columns),
                    ("height", &rows),
                ];
                h.empty("img", &attributes);
            }
            let edge = grouped(plasma.velocity, 1);
            h.element(
                "span",
                &[("class", &"top"), ("aria-hidden", &"true")],
                format_args!("v = +{edge}"),
            );
            h.element(
                "span",
                &[("class", &"bottom"), ("aria-hidden", &"true")],
                format_args!("v = \u{2212}{edge}"),
            );
            h.element(
                "span",
                &[("class", &"right"), ("aria-hidden", &"true")],
                format_args!("x = {}", grouped(plasma.length, 0)),
            );
        });
        h.within("figcaption", &[], |h| {
            h.element("b", &[], format_args!("time {time}"));
            let (energy, fastest) = (grouped(dump.kinetic_energy, 3), grouped(dump.speed_max, 2));
            h.element(
                "span",
                &[],
                format_args!(" dump {n} · kinetic energy {energy} · fastest {fastest}"),
            );
        });
    });
}

fn growth(h: &mut Html, plasma: &Plasma) {
    if plasma.field_energy.is_empty() {
        return;
    }
    let end = plasma.field_energy.iter().map(|p| p.0).fold(0.0, f64::max);
    let x = Axis::span(end, 10, Unit::Plain);
    let y = Axis::log(plasma.field_energy.iter().map(|p| p.1), None);
    let stored: Vec<(f64, f64)> = plasma
        .dumps
        .iter()
        .map(|d| (d.time, d.field_energy))
        .collect();
    let mut layers = vec![Layer {
        name: "the simulation, at every step".to_string(),
        colour: "c-write",
        shape: Shape::Line,
        path: line(&x, &y, plasma.field_energy.iter().copied()),
    }];
    let mut theory = None;
    let mut note =
        "Energy of the electric field, logarithmic: a straight line is exponential growth."
            .to_string();
    if let Some(growth) = plasma
        .growth
        .filter(|g| g.theory > 0.0 && g.theory.is_finite())
    {
        // The line of theory runs through the middle of the fit on the logarithmic scale. The
        // energy grows twice as fast as the amplitude.
        let middle = (growth.from + growth.to) / 2.0;
        let nearest = plasma
            .field_energy
            .iter()
            .min_by(|a, b| (a.0 - middle).abs().total_cmp(&(b.0 - middle).abs()));
        if let Some((at, energy)) = nearest.copied() {
            let value = move |time: f64| energy * (2.0 * growth.theory * (time - at)).exp();
            let (low, high) = plasma
                .field_energy
                .iter()
                .filter(|p| p.1 > 0.0)
                .fold((f64::INFINITY, 0f64), |(low, high), p| {
                    (low.min(p.1), high.max(p.1))
                });
            // The line ends at the edge of the plot.
            let until = |edge: f64| at + (edge / energy).ln() / (2.0 * growth.theory).max(1e-9);
            let (from, to) = (until(low).clamp(0.0, end), until(high).clamp(0.0, end));
            layers.push(Layer {
                name: "linear theory of cold beams".to_string(),
                colour: "c-delay",
                shape: Shape::Dashes,
                path: line(&x, &y, [from, to].into_iter().map(|t| (t, value(t)))),
            });
            theory = Some(value);
        }
        note.push_str(&format!(
            " The wave's amplitude grew at {} a unit of time between {} and {}; theory says {} \
             for cold beams ({}\u{a0}%), and these are a little warm.",
            grouped(growth.measured, 3),
            grouped(growth.from, 1),
            grouped(growth.to, 1),
            grouped(growth.theory, 3),
            signed_percent(growth.measured / growth.theory - 1.0),
        ));
    }
    layers.push(Layer {
        name: "from the fields of the stored particles".to_string(),
        colour: "c-read",
        shape: Shape::Dots,
        path: dots(&x, &y, stored.iter().copied()),
    });
    let every = (plasma.field_energy.len() / 60).max(1);
    let rows = plasma
        .field_energy
        .iter()
        .step_by(every)
        .map(|(time, energy)| {
            let mut cells = vec![grouped(*time, 1), science(*energy)];
            if let Some(theory) = &theory {
                cells.push(science(theory(*time)));
            }
            (Some(x.place(*time)), cells)
        });
    let mut heads = ["time", "field energy"].map(String::from).to_vec();
    if theory.is_some() {
        heads.push("theory".to_string());
    }
    let found: Vec<String> = stored
        .iter()
        .map(|(t, e)| format!("{} at {}", science(*e), grouped(*t, 0)))
        .collect();
    let chart = Chart {
        id: "growth",
        title: "How the wave grew",
        note,
        description: format!("Field energy in the store: {}.", found.join(", ")),
        table: Table {
            heads,
            rows: rows.collect(),
        },
        x,
        x_name: "time, of which a plasma oscillation takes 2π",
        y,
        height_rem: 15.0,
        layers,
        marks: &[],
    };
    chart::draw(h, &chart, |_| {});
}

fn signed_percent(share: f64) -> String {
    let text = grouped(share * 100.0, 1);
    if share >= 0.0 {
        format!("+{text}")
    } else {
        text
    }
}

/// A number of any size with three digits.
fn science(value: f64) -> String {
    match value.abs() {
        size if !size.is_finite() => "–".to_string(),
        size if size != 0.0 && !(0.01..10_000.0).contains(&size) => {
            format!("{value:.2e}").replace("e-", "e\u{2212}")
        }
        _ => grouped(value, 3),
    }
}

/// Writes the section about facts.
pub fn facts(h: &mut Html, facts: &[Facts]) {
    h.line();
    h.within("section", &[("id", &"facts")], |h| {
        h.element("h2", &[], "What this was measured on");
        h.within("div", &[("class", &"facts")], |h| {
            for group in facts.iter().filter(|g| !g.rows.is_empty()) {
                h.within("div", &[("class", &"card")], |h| {
                    h.element("h3", &[], &group.title);
                    h.within("dl", &[], |h| {
                        for (name, value) in &group.rows {
                            h.element("dt", &[], name);
                            h.element("dd", &[], value);
                        }
                    });
                });
            }
        });
        for group in facts.iter().filter(|g| !g.text.is_empty()) {
            h.within("details", &[], |h| {
                h.element("summary", &[], &group.title);
                h.element("pre", &[], &group.text);
            });
        }
    });
}

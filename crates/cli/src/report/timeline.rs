//! The timeline of the page: throughput with delays and kills, bytes written by cause, and bytes
//! held by level.

use std::fmt::Display;

use super::bins::Bins;
use super::chart::{self, Chart, Layer, Shape, Table, steps};
use super::model::{Counts, DelayTotal, Delayed, PhaseKind, Timeline};
use super::number::micros;
use crate::output::{count, plural};
use siltstone_bench::draw::axis::Axis;
use siltstone_bench::draw::html::Html;
use siltstone_bench::draw::number::{Unit, grouped};
use siltstone_bench::draw::plot::{self, percent};

/// The number of delays that are drawn. If there are more, the shortest are only counted.
const DRAWN_MAX: usize = 500;
/// The number of delays that are listed one by one.
const LISTED_MAX: usize = 8;
/// Colours of levels.
const LEVELS: [&str; 7] = ["c-l0", "c-l1", "c-l2", "c-l3", "c-l4", "c-l5", "c-l6"];

impl PhaseKind {
    fn colour(self) -> &'static str {
        match self {
            PhaseKind::Rest => "c-rest",
            PhaseKind::Write => "c-write",
            PhaseKind::Read => "c-read",
            PhaseKind::Kill => "c-delay",
            PhaseKind::Verify => "c-verify",
        }
    }

    fn name(self) -> &'static str {
        match self {
            PhaseKind::Rest => "the store is idle",
            PhaseKind::Write => "writing",
            PhaseKind::Read => "reading",
            PhaseKind::Kill => "writing, to be killed",
            PhaseKind::Verify => "opening again, comparing",
        }
    }
}

/// The cause of a delay, in words.
fn cause(word: &str) -> String {
    match word {
        "sealed_memtables" => "memtables wait for their flush".to_string(),
        "memtable_slowdown" => "memtables fill faster than they are flushed: slowed".to_string(),
        "log_slowdown" => "much of the log is not flushed: slowed".to_string(),
        "pending_slowdown" => "compactions have much to read: slowed".to_string(),
        "pending_stop" => "compactions have too much to read: stopped".to_string(),
        "space_slowdown" => "little free space: slowed".to_string(),
        "log_segment" => "no log segment was ready".to_string(),
        "arena" => "no memory for a memtable was ready".to_string(),
        "ceiling" => "the ceiling of numbers was raised".to_string(),
        "log_write" => "a write to the log was slow".to_string(),
        "log_sync" => "a sync of the log".to_string(),
        "lead" => "an ingest, a create, a drop, a flush or a checkpoint".to_string(),
        "l0_slowdown" => "many runs in level 0: slowed".to_string(),
        "l0_stop" => "too many runs in level 0: stopped".to_string(),
        "log_bytes" => "too much of the log is not flushed".to_string(),
        other => other.replace('_', " "),
    }
}

struct Times<'a> {
    timeline: &'a Timeline,
    bins: Bins,
    x: Axis,
}

/// Writes the section.
pub fn section(h: &mut Html, timeline: &Timeline) {
    let times = Times {
        timeline,
        bins: Bins::of(timeline.length_s),
        x: Axis::span(timeline.length_s, 12, Unit::Seconds),
    };
    h.line();
    h.within("section", &[("id", &"time")], |h| {
        h.element("h2", &[], "Second by second");
        times.phases(h);
        times.throughput(h);
        times.written(h);
        times.held(h);
    });
}

impl Times<'_> {
    /// The end of the last span, which may lie beyond the end of the run.
    fn end_s(&self) -> f64 {
        self.bins.width_s * self.bins.count as f64
    }

    /// A table of all spans with a column for each series.
    fn table(&self, heads: &[String], unit: Unit, series: &[&[f64]]) -> Table {
        let decimals = if self.bins.width_s < 0.1 {
            2
        } else {
            usize::from(self.bins.width_s < 1.0)
        };
        let mut all = vec!["from".to_string()];
        all.extend_from_slice(heads);
        let rows = (0..self.bins.count).map(|bin| {
            let middle = self.bins.start_s(bin) + self.bins.width_s / 2.0;
            let mut cells = vec![format!(
                "{}\u{a0}s",
                grouped(self.bins.start_s(bin), decimals)
            )];
            cells.extend(series.iter().map(|values| unit.show(values[bin])));
            (Some(self.x.place(middle)), cells)
        });
        Table {
            heads: all,
            rows: rows.collect(),
        }
    }

    fn phases(&self, h: &mut Html) {
        let mut kinds: Vec<PhaseKind> = Vec::new();
        for phase in &self.timeline.phases {
            if !kinds.contains(&phase.kind) {
                kinds.push(phase.kind);
            }
        }
        if kinds.is_empty() {
            return;
        }
        h.within("figure", &[("class", &"chart phases")], |h| {
            h.within("figcaption", &[], |h| {
                h.element("h3", &[], "Phases, throughput and delays");
                chart::legend(h, kinds.iter().map(|k| (k.name(), k.colour(), Shape::Fill)));
            });
            h.within("div", &[("class", &"frame")], |h| {
                h.within("ol", &[("class", &"band")], |h| {
                    for phase in &self.timeline.phases {
                        let (from, to) = (self.x.place(phase.from_s), self.x.place(phase.to_s));
                        let width = to - from;
                        let room = match width {
                            w if w > 0.25 => "roomy",
                            w if w > 0.06 => "fair",
                            _ => "tight",
                        };
                        let class = format!("{} {room}", phase.kind.colour());
                        let style = format!("left:{};width:{}", percent(from), percent(width));
                        let about = format!(
                            "{}: from {} to {}",
                            phase.name,
                            Unit::Seconds.show(phase.from_s),
                            Unit::Seconds.show(phase.to_s)
                        );
                        let attributes: [(_, &dyn Display); 3] =
                            [("class", &class), ("style", &style), ("title", &about)];
                        h.within("li", &attributes, |h| {
                            h.element("span", &[], &phase.name);
                        });
                    }
                });
                plot::x_labels(h, &self.x, "");
            });
        });
    }

    fn throughput(&self, h: &mut Html) {
        let timeline = self.timeline;
        let written = self.bins.rate(timeline, |c| c.written_count);
        let read = self.bins.reads(timeline);
        let waited = self.bins.delayed_s(timeline);
        let max = |values: &[f64]| values.iter().copied().fold(0.0, f64::max);
        let y = Axis::from_zero(max(&written).max(max(&read)), 5, Unit::PerSecond);
        let end = self.end_s();
        let zero = vec![0.0; self.bins.count];
        let path = |values: &[f64], base| steps(&self.x, &y, end, values, base);
        let layers = vec![
            Layer {
                name: "entries written".to_string(),
                colour: "c-write",
                shape: Shape::Fill,
                path: path(&written, Some(&zero)),
            },
            Layer {
                name: "pairs read and compared".to_string(),
                colour: "c-read",
                shape: Shape::Line,
                path: path(&read, None),
            },
        ];
        let mut table = self.table(
            &["written".to_string(), "read".to_string()],
            Unit::PerSecond,
            &[&written, &read],
        );
        table.heads.push("writers waited".to_string());
        for ((_, cells), waited) in table.rows.iter_mut().zip(&waited) {
            cells.push(if *waited > 0.0 {
                Unit::Seconds.show(*waited)
            } else {
                "–".to_string()
            });
        }
        let total: u64 = timeline.delay_totals.iter().map(|t| t.count).sum();
        let description = format!(
            "Over {}: at most {} entries written and {} pairs read. Writers were delayed {}; {} \
            are marked.",
            Unit::Seconds.show(timeline.length_s),
            Unit::PerSecond.show(max(&written)),
            Unit::PerSecond.show(max(&read)),
            times_count(total),
            plural(timeline.marks.len() as u64, "kill"),
        );
        let chart = Chart {
            id: "throughput",
            title: "Throughput",
            note: format!(
                "Per second, in spans of {}.{}{}",
                Unit::Seconds.show(self.bins.width_s),
                self.lane_note(total),
                if timeline.marks.is_empty() {
                    ""
                } else {
                    " ✕ is a SIGKILL."
                },
            ),
            description,
            x: self.x.clone(),
            x_name: "time since the run began",
            y,
            height_rem: 17.0,
            layers,
            marks: &timeline.marks,
            table,
        };
        chart::draw(h, &chart, |h| {
            if !timeline.delays.is_empty() {
                self.lane(h);
            }
        });
        self.delays(h);
    }

    /// The note about the lane of delays; the argument is the number of all delays.
    fn lane_note(&self, total: u64) -> String {
        let drawn = self.timeline.delays.len().min(DRAWN_MAX) as u64;
        match drawn {
            0 => String::new(),
            n if n < total => format!(
                " Under it, the {} longest of {} delays of writers: point at one to see its cause \
                and length.",
                count(n),
                count(total)
            ),
            _ => " Under it, each delay of a writer: point at it to see its cause and length."
                .to_string(),
        }
    }

    /// A lane of delays under the plot.
    fn lane(&self, h: &mut Html) {
        let mut longest: Vec<&Delayed> = self.timeline.delays.iter().collect();
        longest.sort_by_key(|d| std::cmp::Reverse(d.length_us));
        longest.truncate(DRAWN_MAX);
        let attributes: [(_, &dyn Display); 5] = [
            ("class", &"lane"),
            ("viewBox", &"0 0 1000 10"),
            ("preserveAspectRatio", &"none"),
            ("role", &"img"),
            ("aria-label", &"Delays of writers; listed below"),
        ];
        h.within("svg", &attributes, |h| {
            for delay in longest {
                let from = self.x.place(delay.from_s) * 1000.0;
                let to = self.x.place(delay.from_s + delay.length_us as f64 / 1e6) * 1000.0;
                let (x, width) = (format!("{from:.2}"), format!("{:.2}", to - from));
                let attributes: [(_, &dyn Display); 4] =
                    [("x", &x), ("y", &"0"), ("width", &width), ("height", &"10")];
                h.within("rect", &attributes, |h| {
                    h.element("title", &[], delay_text(delay));
                });
            }
        });
    }

    /// Delays by cause, and the longest.
    fn delays(&self, h: &mut Html) {
        let totals: &[DelayTotal] = &self.timeline.delay_totals;
        if totals.iter().all(|t| t.count == 0) {
            h.within("p", &[("class", &"quiet")], |h| {
                h.text("No writer was ever delayed.")
            });
            return;
        }
        let rows = totals.iter().filter(|t| t.count > 0).map(|t| {
            let mean = micros(t.total_us / t.count.max(1));
            (
                None,
                vec![
                    cause(&t.cause),
                    count(t.count),
                    micros(t.total_us),
                    mean,
                    micros(t.max_us),
                ],
            )
        });
        let table = Table {
            heads: ["why writers waited", "times", "together", "mean", "longest"]
                .map(String::from)
                .to_vec(),
            rows: rows.collect(),
        };
        chart::table(h, "Delays of writers, by cause", "figures", &table);
        let mut longest: Vec<&Delayed> = self.timeline.delays.iter().collect();
        longest.sort_by_key(|d| std::cmp::Reverse(d.length_us));
        longest.truncate(LISTED_MAX);
        if longest.is_empty() {
            return;
        }
        h.within("details", &[], |h| {
            h.element(
                "summary",
                &[],
                format_args!(
                    "The {} longest delays, each with its numbers",
                    longest.len()
                ),
            );
            h.within("ol", &[("class", &"listed")], |h| {
                for delay in longest {
                    h.element("li", &[], delay_text(delay));
                }
            });
        });
    }

    fn written(&self, h: &mut Html) {
        type Of = fn(&Counts) -> u64;
        let causes: [(&str, &'static str, Of); 3] = [
            ("log", "c-log", |c| c.log_bytes),
            ("flush", "c-flush", |c| c.flush_bytes),
            ("compaction", "c-compaction", |c| c.compaction_bytes),
        ];
        let rates: Vec<Vec<f64>> = causes
            .iter()
            .map(|c| self.bins.rate(self.timeline, c.2))
            .collect();
        let user = self.bins.rate(self.timeline, |c| c.user_bytes);
        let tops = stacked(&rates);
        let max = tops
            .last()
            .into_iter()
            .flatten()
            .chain(&user)
            .copied()
            .fold(0.0, f64::max);
        let y = Axis::from_zero(max, 4, Unit::BytesPerSecond);
        let mut layers = self.stack(&y, &tops, causes.iter().map(|c| (c.0.to_string(), c.1)));
        layers.push(Layer {
            name: "given by the user".to_string(),
            colour: "c-user",
            shape: Shape::Dashes,
            path: steps(&self.x, &y, self.end_s(), &user, None),
        });
        let mut heads: Vec<String> = causes.iter().map(|c| c.0.to_string()).collect();
        heads.push("user".to_string());
        let mut series: Vec<&[f64]> = rates.iter().map(|r| &r[..]).collect();
        series.push(&user);
        let chart = Chart {
            id: "written",
            title: "Bytes written to files, by cause",
            note:
                "Per second, stacked; the dashed line shows the bytes that users wrote. A flush or \
                compaction counts when it is done."
                    .to_string(),
            description: format!("At most {} together.", Unit::BytesPerSecond.show(max)),
            x: self.x.clone(),
            x_name: "",
            table: self.table(&heads, Unit::BytesPerSecond, &series),
            y,
            height_rem: 12.0,
            layers,
            marks: &self.timeline.marks,
        };
        chart::draw(h, &chart, |_| {});
    }

    fn held(&self, h: &mut Html) {
        let depth = self
            .timeline
            .samples
            .iter()
            .map(|s| s.counts.level_bytes.len())
            .max()
            .unwrap_or(0);
        let mut names = vec![("memtables".to_string(), "c-memtable")];
        let mut held = vec![self.bins.held(self.timeline, |c| c.memtable_bytes)];
        for level in 0..depth {
            let bytes = self.bins.held(self.timeline, |c| {
                c.level_bytes.get(level).copied().unwrap_or(0)
            });
            if bytes.iter().any(|b| *b > 0.0) {
                names.push((
                    format!("level {level}"),
                    LEVELS[level.min(LEVELS.len() - 1)],
                ));
                held.push(bytes);
            }
        }
        // The deepest level at the bottom, as in a picture of such a tree.
        names.reverse();
        held.reverse();
        let tops = stacked(&held);
        let max = tops
            .last()
            .into_iter()
            .flatten()
            .copied()
            .fold(0.0, f64::max);
        let y = Axis::from_zero(max, 4, Unit::Bytes);
        let heads: Vec<String> = names.iter().map(|n| n.0.clone()).collect();
        let series: Vec<&[f64]> = held.iter().map(|b| &b[..]).collect();
        let last = held.iter().zip(&names).map(|(bytes, (name, _))| {
            format!(
                "{name} {}",
                Unit::Bytes.show(bytes.last().copied().unwrap_or(0.0))
            )
        });
        let chart = Chart {
            id: "levels",
            title: "Bytes by level",
            note: "Bytes in memtables and in tables by level, all keyspaces together.".to_string(),
            description: format!(
                "At most {} in total. At the end: {}.",
                Unit::Bytes.show(max),
                last.collect::<Vec<_>>().join(", ")
            ),
            x: self.x.clone(),
            x_name: "",
            layers: self.stack(&y, &tops, names.iter().cloned()),
            table: self.table(&heads, Unit::Bytes, &series),
            y,
            height_rem: 12.0,
            marks: &self.timeline.marks,
        };
        chart::draw(h, &chart, |_| {});
    }

    fn stack(
        &self,
        y: &Axis,
        tops: &[Vec<f64>],
        names: impl Iterator<Item = (String, &'static str)>,
    ) -> Vec<Layer> {
        let zero = vec![0.0; self.bins.count];
        names
            .enumerate()
            .map(|(n, (name, colour))| Layer {
                name,
                colour,
                shape: Shape::Fill,
                path: steps(
                    &self.x,
                    y,
                    self.end_s(),
                    &tops[n],
                    Some(if n == 0 { &zero } else { &tops[n - 1] }),
                ),
            })
            .collect()
    }
}

/// Stacks each series on those before it.
fn stacked(series: &[Vec<f64>]) -> Vec<Vec<f64>> {
    let mut tops: Vec<Vec<f64>> = Vec::with_capacity(series.len());
    for values in series {
        let top = match tops.last() {
            None => values.clone(),
            Some(below) => values.iter().zip(below).map(|(a, b)| a + b).collect(),
        };
        tops.push(top);
    }
    tops
}

fn times_count(n: u64) -> String {
    match n {
        0 => "never".to_string(),
        1 => "once".to_string(),
        n => format!("{} times", count(n)),
    }
}

fn delay_text(delay: &Delayed) -> String {
    format!(
        "{} at {}\u{a0}s, keyspace {}: {} ({})",
        micros(delay.length_us),
        grouped(delay.from_s, 2),
        delay.keyspace,
        cause(&delay.cause),
        delay.why
    )
}

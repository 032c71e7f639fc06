//! Charts: an SVG plot that stretches with the page, HTML labels that do not, and a table with the
//! same numbers.
//!
//! The table is for readers who cannot see the plot or want the numbers. If scripts are enabled, a
//! script shows the table's numbers under the pointer.

use std::fmt::Write;

use siltstone_bench::draw::axis::Axis;
use siltstone_bench::draw::html::Html;
use siltstone_bench::draw::plot::{self, coordinate, percent};

use super::model::Mark;

/// The way in which a layer is drawn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// A filled area, down to its base.
    Fill,
    /// A line.
    Line,
    /// A dashed line.
    Dashes,
    /// Dots.
    Dots,
}

impl Shape {
    fn class(self) -> &'static str {
        match self {
            Shape::Fill => "fill",
            Shape::Line => "stroke",
            Shape::Dashes => "stroke dash",
            Shape::Dots => "stroke dots",
        }
    }
}

/// A layer of a chart.
#[derive(Clone, Debug)]
pub struct Layer {
    /// Its name in the legend.
    pub name: String,
    /// The class that gives its colour.
    pub colour: &'static str,
    /// How it is drawn.
    pub shape: Shape,
    /// Its outline, in the plot's coordinates.
    pub path: String,
}

/// Numbers beside a chart, or without one.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// Heads of columns.
    pub heads: Vec<String>,
    /// Rows: the position on the chart's x axis (0 to 1), if there is a chart, and the cells.
    pub rows: Vec<(Option<f64>, Vec<String>)>,
}

/// A chart.
pub struct Chart<'a> {
    /// Unique on the page.
    pub id: &'static str,
    /// The title.
    pub title: &'a str,
    /// More about it.
    pub note: String,
    /// A description for readers who cannot see it.
    pub description: String,
    /// From left to right.
    pub x: Axis,
    /// The name of the x axis, if its ticks do not say it.
    pub x_name: &'static str,
    /// From the bottom up.
    pub y: Axis,
    /// Height in units of text.
    pub height_rem: f64,
    /// From the bottom up.
    pub layers: Vec<Layer>,
    /// Events, with their positions on the x axis.
    pub marks: &'a [Mark],
    /// The numbers.
    pub table: Table,
}

/// The outline of values in equal spans from 0 to `end`, as steps; with a base, down to it and
/// back.
pub fn steps(x: &Axis, y: &Axis, end: f64, values: &[f64], base: Option<&[f64]>) -> String {
    let mut path = String::new();
    let width = end / values.len().max(1) as f64;
    let right = |n: usize| coordinate(x.place(n as f64 * width));
    let up = |value: f64| coordinate(1.0 - y.place(value));
    for (n, value) in values.iter().enumerate() {
        let _ = match n {
            0 => write!(path, "M0 {}H{}", up(*value), right(1)),
            // A flat stretch is one line.
            _ if up(*value) == up(values[n - 1]) => write!(path, "H{}", right(n + 1)),
            _ => write!(path, "V{}H{}", up(*value), right(n + 1)),
        };
    }
    if let Some(base) = base.filter(|_| !values.is_empty()) {
        for n in (0..values.len()).rev() {
            let _ = write!(
                path,
                "V{}H{}",
                up(base.get(n).copied().unwrap_or(0.0)),
                right(n)
            );
        }
        path.push('Z');
    }
    path
}

/// Points, each a dot.
pub fn dots(x: &Axis, y: &Axis, points: impl Iterator<Item = (f64, f64)>) -> String {
    points
        .map(|(at, value)| plot::dot(x, y, at, value))
        .collect()
}

/// Draws a chart. `below` may add something under the plot, with the same width.
pub fn draw(h: &mut Html, chart: &Chart<'_>, below: impl FnOnce(&mut Html)) {
    let title_id = format!("{}-title", chart.id);
    let about_id = format!("{}-about", chart.id);
    h.line();
    h.within("figure", &[("class", &"chart"), ("id", &chart.id)], |h| {
        h.within("figcaption", &[], |h| {
            h.element("h3", &[], chart.title);
            if !chart.note.is_empty() {
                h.element("p", &[("class", &"note")], &chart.note);
            }
            legend(
                h,
                chart
                    .layers
                    .iter()
                    .map(|l| (&l.name[..], l.colour, l.shape)),
            );
        });
        let height = format!("--h:{}rem", chart.height_rem);
        h.within("div", &[("class", &"frame"), ("style", &height)], |h| {
            plot::y_labels(h, &chart.y);
            h.within("div", &[("class", &"plot")], |h| {
                let labelled = format!("{title_id} {about_id}");
                h.within(
                    "svg",
                    &[
                        ("viewBox", &"0 0 1000 1000"),
                        ("preserveAspectRatio", &"none"),
                        ("role", &"img"),
                        ("aria-labelledby", &labelled),
                    ],
                    |h| {
                        h.element("title", &[("id", &title_id)], chart.title);
                        h.element("desc", &[("id", &about_id)], &chart.description);
                        svg_body(h, chart);
                    },
                );
                for mark in chart.marks {
                    let style = format!("left:{}", percent(chart.x.place(mark.at_s)));
                    let attributes: [(_, &dyn std::fmt::Display); 3] =
                        [("class", &"mark"), ("style", &style), ("title", &mark.what)];
                    h.element("span", &attributes, &mark.label);
                }
            });
            h.within("div", &[("class", &"below")], below);
            plot::x_labels(h, &chart.x, chart.x_name);
        });
        if !chart.table.rows.is_empty() {
            h.within("details", &[], |h| {
                h.element("summary", &[], "The numbers as a table");
                table(
                    h,
                    &format!("{}, as numbers", chart.title),
                    "numbers",
                    &chart.table,
                );
            });
        }
    });
}

fn svg_body(h: &mut Html, chart: &Chart<'_>) {
    plot::grid(h, &chart.y);
    for layer in &chart.layers {
        let class = format!("{} {}", layer.shape.class(), layer.colour);
        h.empty("path", &[("class", &class), ("d", &layer.path)]);
    }
    let mut lines = String::new();
    for mark in chart.marks {
        let _ = write!(lines, "M{} 0V1000", coordinate(chart.x.place(mark.at_s)));
    }
    if !lines.is_empty() {
        h.empty("path", &[("class", &"stroke marks"), ("d", &lines)]);
    }
}

/// A legend. A single layer needs none.
pub fn legend<'a>(h: &mut Html, layers: impl Iterator<Item = (&'a str, &'static str, Shape)>) {
    let layers: Vec<_> = layers.collect();
    if layers.len() < 2 {
        return;
    }
    h.within("ul", &[("class", &"legend")], |h| {
        for (name, colour, shape) in layers {
            h.within("li", &[], |h| {
                let class = format!("key {} {colour}", shape.class());
                h.within(
                    "span",
                    &[("class", &class), ("aria-hidden", &"true")],
                    |_| {},
                );
                h.text(name);
            });
        }
    });
}

/// A table. Its first column names the row. On a narrow page each row becomes a list, and therefore
/// each cell has the head of its column as an attribute.
pub fn table(h: &mut Html, caption: &str, class: &str, table: &Table) {
    h.within("table", &[("class", &class)], |h| {
        h.element("caption", &[], caption);
        h.within("thead", &[], |h| {
            h.within("tr", &[], |h| {
                for head in &table.heads {
                    h.element("th", &[("scope", &"col")], head);
                }
            });
        });
        h.within("tbody", &[], |h| {
            for (at, cells) in &table.rows {
                let row = |h: &mut Html| {
                    for (n, cell) in cells.iter().enumerate() {
                        let head = table.heads.get(n).map_or("", |head| &head[..]);
                        match n {
                            0 => h.element("th", &[("scope", &"row")], cell),
                            _ => h.element("td", &[("data-head", &head)], cell),
                        }
                    }
                };
                match at {
                    Some(at) => h.within("tr", &[("data-at", &((at * 1e4).round() / 1e4))], row),
                    None => h.within("tr", &[], row),
                }
            }
        });
    });
}

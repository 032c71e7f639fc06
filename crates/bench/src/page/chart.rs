//! Charts: an SVG plot that stretches with the page, HTML labels that do not, and a table with the
//! same numbers.
//!
//! The table is for readers who cannot see the plot or want the numbers. If scripts are enabled, a
//! script shows the table's numbers under the pointer.
//!
//! Threading: plain data.

use std::fmt::Write;

use super::table::{self, Table};
use super::thin::{self, Bin};
use crate::draw::axis::Axis;
use crate::draw::html::Html;
use crate::draw::plot::{self, coordinate};

/// How many styles of lines there are: a colour and a pattern of dashes each.
pub const LOOKS: usize = 8;

/// How many columns the plot has: a chart with more seconds shows the lowest and the highest value
/// of each column.
pub const COLUMNS: usize = 1000;

/// How many means a line has if its seconds are more than [`COLUMNS`].
const MEANS: usize = 150;

/// A layer of a chart.
#[derive(Clone, Debug, Default)]
pub struct Layer {
    /// Its name in the legend; an empty one is not in the legend.
    pub name: String,
    /// The classes that give its shape and colour.
    pub class: String,
    /// Its outline, in the plot's coordinates.
    pub path: String,
    /// What a pointer that rests on it is told; empty for nothing.
    pub hint: String,
}

/// A thin row under the plot, with the plot's width.
#[derive(Clone, Debug, Default)]
pub struct Lane {
    /// Its name.
    pub name: String,
    /// The class that gives its colour.
    pub colour: String,
    /// Outlines of its marks, each with its opacity from 0 to 1.
    pub marks: Vec<(f64, String)>,
    /// What stands in the row if it cannot have marks.
    pub instead: &'static str,
}

/// A chart.
pub struct Chart {
    /// Unique on the page.
    pub id: String,
    /// The title.
    pub title: String,
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
    /// Rows under the plot.
    pub lanes: Vec<Lane>,
    /// The numbers.
    pub table: Table,
}

/// The classes of a line with this style.
pub fn line_class(look: usize) -> String {
    format!("stroke {} d{}", colour(look), look % LOOKS)
}

/// The class of the colour of this style.
pub fn colour(look: usize) -> String {
    format!("c-s{}", look % LOOKS)
}

/// The outline of values by second. Single seconds are steps; wider bins are a line through their
/// lowest and highest values, in the order in which these occurred.
pub fn outline(x: &Axis, y: &Axis, bins: &[Bin]) -> String {
    let up = |value: f64| coordinate(1.0 - y.place(value));
    let mut path = String::new();
    let mut last = None;
    for bin in bins {
        let (first, second) = bin.in_order();
        let (from, to) = (coordinate(x.place(bin.from)), coordinate(x.place(bin.to)));
        let (first, second) = (up(first), up(second));
        let command = if last.is_none() { 'M' } else { 'L' };
        // A flat stretch is one line.
        let _ = match last == Some(first) && first == second {
            true => write!(path, "H{to}"),
            false if first == second => write!(path, "{command}{from} {first}H{to}"),
            false => write!(path, "{command}{from} {first}L{to} {second}"),
        };
        last = Some(second);
    }
    path
}

/// The lines of values by second, in the style `look`. If there are more seconds than columns, a
/// thin line spans the lowest and the highest value of each column, and the thick one is the mean
/// of several columns.
pub fn lines(x: &Axis, y: &Axis, name: &str, look: usize, values: &[f64]) -> Vec<Layer> {
    let width = thin::width(values.len(), COLUMNS);
    let line = |name: &str, class: String, bins: &[Bin]| Layer {
        name: name.to_string(),
        class,
        path: outline(x, y, bins),
        hint: String::new(),
    };
    let all = thin::bins(values, width);
    if width == 1 {
        return vec![line(name, line_class(look), &all)];
    }
    let means = thin::bins(values, thin::width(values.len(), MEANS));
    let means = Bin::flat(&means, |bin| bin.mean);
    let thin = format!("stroke thin {}", colour(look));
    vec![line("", thin, &all), line(name, line_class(look), &means)]
}

/// The area between two rows of values that have the same spans: from and to on the x axis, lower
/// and upper value.
pub fn area(x: &Axis, y: &Axis, spans: &[(f64, f64, f64, f64)]) -> String {
    let up = |value: f64| coordinate(1.0 - y.place(value));
    let mut path = String::new();
    for (n, (from, to, _, high)) in spans.iter().enumerate() {
        let command = if n == 0 { 'M' } else { 'L' };
        let (from, to) = (coordinate(x.place(*from)), coordinate(x.place(*to)));
        let _ = write!(path, "{command}{from} {}H{to}", up(*high));
    }
    for (from, to, low, _) in spans.iter().rev() {
        let (from, to) = (coordinate(x.place(*from)), coordinate(x.place(*to)));
        let _ = write!(path, "L{to} {}H{from}", up(*low));
    }
    if !spans.is_empty() {
        path.push('Z');
    }
    path
}

/// Rectangles over the whole height, each from and to a value of the x axis.
pub fn bands(x: &Axis, spans: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (from, to) in spans {
        let (from, to) = (coordinate(x.place(from)), coordinate(x.place(to)));
        let _ = write!(path, "M{from} 0H{to}V1000H{from}Z");
    }
    path
}

/// Draws a chart.
pub fn draw(h: &mut Html, chart: &Chart) {
    h.line();
    h.within("figure", &[("class", &"chart"), ("id", &chart.id)], |h| {
        h.within("figcaption", &[], |h| {
            h.element("h3", &[], &chart.title);
            if !chart.note.is_empty() {
                h.element("p", &[("class", &"note")], &chart.note);
            }
            legend(h, &chart.layers);
        });
        let height = format!("--h:{}rem", chart.height_rem);
        h.within("div", &[("class", &"frame"), ("style", &height)], |h| {
            plot::y_labels(h, &chart.y);
            h.within("div", &[("class", &"plot")], |h| svg(h, chart));
            for lane in &chart.lanes {
                draw_lane(h, lane);
            }
            plot::x_labels(h, &chart.x, chart.x_name);
        });
        numbers(h, &chart.table);
    });
}

fn numbers(h: &mut Html, table: &Table) {
    if table.is_empty() {
        return;
    }
    h.within("details", &[], |h| {
        h.element("summary", &[], "The numbers as a table");
        table::draw(h, "numbers", table);
    });
}

fn svg(h: &mut Html, chart: &Chart) {
    let title_id = format!("{}-title", chart.id);
    let about_id = format!("{}-about", chart.id);
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
            h.element("title", &[("id", &title_id)], &chart.title);
            h.element("desc", &[("id", &about_id)], &chart.description);
            plot::grid(h, &chart.y);
            for layer in &chart.layers {
                draw_layer(h, layer);
            }
        },
    );
}

fn draw_layer(h: &mut Html, layer: &Layer) {
    if layer.path.is_empty() {
        return;
    }
    let attributes: [(_, &dyn std::fmt::Display); 2] =
        [("class", &layer.class), ("d", &layer.path)];
    match layer.hint.is_empty() {
        true => h.empty("path", &attributes),
        false => h.within("path", &attributes, |h| {
            h.element("title", &[], &layer.hint);
        }),
    }
}

fn draw_lane(h: &mut Html, lane: &Lane) {
    let name: [(_, &dyn std::fmt::Display); 2] = [("class", &"lane-name"), ("title", &lane.name)];
    h.element("span", &name, &lane.name);
    if !lane.instead.is_empty() {
        h.element("span", &[("class", &"lane-text")], lane.instead);
        return;
    }
    let class = format!("lane {}", lane.colour);
    let attributes: [(_, &dyn std::fmt::Display); 4] = [
        ("class", &class),
        ("viewBox", &"0 0 1000 1000"),
        ("preserveAspectRatio", &"none"),
        ("aria-hidden", &"true"),
    ];
    h.within("svg", &attributes, |h| {
        for (opacity, path) in &lane.marks {
            h.empty("path", &[("fill-opacity", opacity), ("d", path)]);
        }
    });
}

/// A legend of the layers that have names.
pub fn legend(h: &mut Html, layers: &[Layer]) {
    let named: Vec<&Layer> = layers.iter().filter(|l| !l.name.is_empty()).collect();
    if named.is_empty() {
        return;
    }
    h.within("ul", &[("class", &"legend")], |h| {
        for layer in named {
            h.within("li", &[], |h| {
                key(h, &layer.class);
                h.element("span", &[], &layer.name);
            });
        }
    });
}

/// A sample of a layer's style.
pub fn key(h: &mut Html, class: &str) {
    let attributes: [(_, &dyn std::fmt::Display); 3] = [
        ("class", &"key"),
        ("viewBox", &"0 0 30 12"),
        ("aria-hidden", &"true"),
    ];
    let path = match class.starts_with("stroke") {
        true => "M1 6H29",
        false => "M0 0H30V12H0Z",
    };
    h.within("svg", &attributes, |h| {
        h.empty("path", &[("class", &class), ("d", &path)]);
    });
}

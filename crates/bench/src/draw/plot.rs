//! Positions in a plot, lines through points, and the labels of its axes.
//!
//! The plot's coordinates go from 0 to 1000 in both directions and are stretched to the available
//! space. Strokes keep their width (`vector-effect`), and labels lie over the plot at percentages.
//! So a chart is legible on screens of all sizes, without a script.
//!
//! Threading: pure functions.

use std::fmt::Write;

use super::axis::Axis;
use super::html::Html;

/// A coordinate of the plot.
pub fn coordinate(at: f64) -> f64 {
    (at * 10_000.0).round() / 10.0
}

/// Percent of the plot's width or height.
pub fn percent(at: f64) -> String {
    format!("{}%", (at * 10_000.0).round() / 100.0)
}

/// A line through points.
pub fn line(x: &Axis, y: &Axis, points: impl Iterator<Item = (f64, f64)>) -> String {
    let mut path = String::new();
    for (n, (at, value)) in points.enumerate() {
        let command = if n == 0 { 'M' } else { 'L' };
        let (at, up) = (coordinate(x.place(at)), coordinate(1.0 - y.place(value)));
        // Writing to a string cannot fail.
        let _ = write!(path, "{command}{at} {up}");
    }
    path
}

/// A dot: a line of length zero is drawn as its round ends.
pub fn dot(x: &Axis, y: &Axis, at: f64, value: f64) -> String {
    let (at, up) = (coordinate(x.place(at)), coordinate(1.0 - y.place(value)));
    format!("M{at} {up}h0")
}

/// Lines across the plot at the ticks of the y axis.
pub fn grid(h: &mut Html, y: &Axis) {
    let mut path = String::new();
    for tick in &y.ticks {
        let _ = write!(path, "M0 {}H1000", coordinate(1.0 - tick.at));
    }
    h.empty("path", &[("class", &"grid"), ("d", &path)]);
}

/// Labels to the left of a plot.
pub fn y_labels(h: &mut Html, y: &Axis) {
    h.within("div", &[("class", &"ys"), ("aria-hidden", &"true")], |h| {
        for tick in &y.ticks {
            let style = format!("top:{}", percent(1.0 - tick.at));
            let class = if tick.minor { "half" } else { "" };
            h.element("span", &[("style", &style), ("class", &class)], &tick.label);
        }
    });
}

/// Labels under a plot.
pub fn x_labels(h: &mut Html, x: &Axis, name: &str) {
    h.within("div", &[("class", &"xs"), ("aria-hidden", &"true")], |h| {
        for tick in &x.ticks {
            let style = format!("left:{}", percent(tick.at));
            let class = match (tick.minor, tick.at) {
                (true, _) => "half",
                (_, at) if at > 0.97 => "last",
                _ => "",
            };
            h.element("span", &[("style", &style), ("class", &class)], &tick.label);
        }
    });
    if !name.is_empty() {
        h.element("p", &[("class", &"axis")], name);
    }
}

//! Stacked bars: what a figure of each engine consists of.
//!
//! Threading: plain data.

use super::chart::{self, Layer};
use super::table::{self, Table};
use crate::draw::axis::Axis;
use crate::draw::html::{Attribute, Html};
use crate::draw::number::Unit;
use crate::draw::plot::{self, percent};

/// A part of a bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Its name.
    pub name: &'static str,
    /// The class of its colour.
    pub class: &'static str,
    /// Its size, above 0.
    pub value: f64,
}

/// A bar.
#[derive(Clone, Debug, PartialEq)]
pub struct Bar {
    /// Its name and its total.
    pub name: String,
    /// Its parts that are known and not zero, from left to right.
    pub parts: Vec<Part>,
    /// Whether any of its parts is known.
    pub is_known: bool,
}

impl Bar {
    /// The sum of its parts.
    pub fn total(&self) -> f64 {
        self.parts.iter().map(|part| part.value).sum()
    }
}

/// Bars with a common axis.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What they show.
    pub title: &'static str,
    /// More about it.
    pub note: &'static str,
    /// The unit of the figures.
    pub unit: Unit,
    /// From 0 to the longest bar.
    pub axis: Axis,
    /// The longest bar.
    pub max: f64,
    /// Names and classes of all parts.
    pub legend: Vec<(&'static str, &'static str)>,
    /// The bars.
    pub bars: Vec<Bar>,
    /// The numbers.
    pub table: Table,
}

impl Bars {
    /// The same with more said about it.
    pub fn noted(self, note: &'static str) -> Bars {
        Bars { note, ..self }
    }
}

/// Draws bars; without any known part, the table alone.
pub fn draw(h: &mut Html, bars: &Bars) {
    h.line();
    h.within("figure", &[("class", &"bars")], |h| {
        h.within("figcaption", &[], |h| {
            h.element("h3", &[], bars.title);
            if !bars.note.is_empty() {
                h.element("p", &[("class", &"note")], bars.note);
            }
            if bars.max > 0.0 {
                legend(h, bars);
            }
        });
        for bar in &bars.bars {
            h.element("p", &[("class", &"bar-name")], &bar.name);
            draw_bar(h, bars, bar);
        }
        if bars.max > 0.0 {
            plot::x_labels(h, &bars.axis, "");
        }
        h.within("details", &[], |h| {
            h.element("summary", &[], "The numbers as a table");
            table::draw(h, "numbers", &bars.table);
        });
    });
}

fn legend(h: &mut Html, bars: &Bars) {
    let used = |class: &str| {
        let mut parts = bars.bars.iter().flat_map(|bar| &bar.parts);
        parts.any(|part| part.class == class)
    };
    let layers = bars.legend.iter().filter(|(_, class)| used(class));
    let layers: Vec<Layer> = layers
        .map(|(name, class)| Layer {
            name: name.to_string(),
            class: format!("fill {class}"),
            ..Layer::default()
        })
        .collect();
    chart::legend(h, &layers);
}

fn draw_bar(h: &mut Html, bars: &Bars, bar: &Bar) {
    if bar.parts.is_empty() {
        let text = if bar.is_known { "none" } else { "not known" };
        h.element("p", &[("class", &"bar-none")], text);
        return;
    }
    h.within("div", &[("class", &"bar"), ("role", &"list")], |h| {
        for part in &bar.parts {
            let share = part.value / bars.max;
            let text = format!("{} {}", part.name, bars.unit.show(part.value));
            let style = format!("width:{}", percent(share));
            // Labels of narrow parts would not fit.
            let tight = match share {
                _ if share < 0.14 => " tight",
                _ if share < 0.28 => " fair",
                _ => "",
            };
            let class = format!("{}{tight}", part.class);
            let attributes: [Attribute<'_>; 5] = [
                ("class", &class),
                ("style", &style),
                ("title", &text),
                ("role", &"listitem"),
                ("aria-label", &text),
            ];
            h.within("span", &attributes, |h| {
                h.element("b", &[], bars.unit.show(part.value));
            });
        }
    });
}

//! Tables: of figures, which become lists on narrow pages, and of the numbers behind charts.
//!
//! Threading: plain data.

use std::fmt::Display;

use super::chart;
use crate::draw::html::{Attribute, Html};
use crate::draw::plot;

/// A cell.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Cell {
    /// The figure with its unit.
    pub text: String,
    /// What stands under it in small letters, each on a line.
    pub notes: Vec<String>,
    /// The length of a bar under the figure, from 0 to 1.
    pub bar: Option<f64>,
}

impl From<String> for Cell {
    fn from(text: String) -> Cell {
        Cell {
            text,
            ..Cell::default()
        }
    }
}

/// A row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// What the row is about.
    pub head: String,
    /// What stands under it in small letters; empty for nothing.
    pub note: String,
    /// The style of the line that shows it in charts.
    pub look: Option<usize>,
    /// Its position on the chart's x axis, from 0 to 1.
    pub at: Option<f64>,
    /// The figures.
    pub cells: Vec<Cell>,
}

/// Rows under a heading of their own.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Body {
    /// The heading, and the place on the page to which it leads, if there is one.
    pub title: Option<(String, Option<String>)>,
    /// The rows.
    pub rows: Vec<Row>,
}

/// A table.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Table {
    /// What it shows.
    pub caption: String,
    /// Heads of columns. The first one is that of the rows' names.
    pub heads: Vec<String>,
    /// Its parts.
    pub bodies: Vec<Body>,
}

impl Table {
    /// A table of one part.
    pub fn new(caption: &str, heads: &[&str], rows: Vec<Row>) -> Table {
        Table {
            caption: caption.to_string(),
            heads: heads.iter().map(|head| head.to_string()).collect(),
            bodies: vec![Body { title: None, rows }],
        }
    }

    /// Whether it has no row.
    pub fn is_empty(&self) -> bool {
        self.bodies.iter().all(|body| body.rows.is_empty())
    }
}

/// Gives the cells of a column bars in proportion to `values`, the figures of these rows. A column
/// with one figure gets none: there is nothing to compare.
pub fn with_bars(rows: &mut [Row], column: usize, values: &[Option<f64>]) {
    let known = values.iter().flatten().filter(|value| value.is_finite());
    let max = known.clone().fold(0f64, |max, value| max.max(*value));
    if known.count() < 2 || max <= 0.0 {
        return;
    }
    for (row, value) in rows.iter_mut().zip(values) {
        if let Some(cell) = row.cells.get_mut(column) {
            cell.bar = value.map(|value| (value / max).clamp(0.0, 1.0));
        }
    }
}

/// Draws a table. On a narrow page each row of the class `figures` becomes a list, and therefore
/// each cell has the head of its column as an attribute.
pub fn draw(h: &mut Html, class: &str, table: &Table) {
    h.line();
    h.within("table", &[("class", &class)], |h| {
        h.element("caption", &[], &table.caption);
        h.within("thead", &[], |h| {
            h.within("tr", &[], |h| {
                for head in &table.heads {
                    h.element("th", &[("scope", &"col")], head);
                }
            });
        });
        for body in &table.bodies {
            h.within("tbody", &[], |h| draw_body(h, table, body));
        }
    });
}

fn draw_body(h: &mut Html, table: &Table, body: &Body) {
    if let Some((title, link)) = &body.title {
        h.within("tr", &[("class", &"part")], |h| {
            let columns = table.heads.len();
            let attributes: [Attribute<'_>; 2] = [("scope", &"rowgroup"), ("colspan", &columns)];
            h.within("th", &attributes, |h| match link {
                Some(link) => h.element("a", &[("href", link)], title),
                None => h.text(title),
            });
        });
    }
    for row in &body.rows {
        let at = row.at.map(|at| (at * 1e4).round() / 1e4);
        let at: Vec<Attribute<'_>> = at
            .iter()
            .map(|at| ("data-at", at as &dyn Display))
            .collect();
        h.within("tr", &at, |h| draw_row(h, table, row));
    }
}

fn draw_row(h: &mut Html, table: &Table, row: &Row) {
    h.within("th", &[("scope", &"row")], |h| {
        if let Some(look) = row.look {
            chart::key(h, &chart::line_class(look));
        }
        h.text(&row.head);
        small(h, &row.note);
    });
    for (n, cell) in row.cells.iter().enumerate() {
        let head = table.heads.get(n + 1).map_or("", |head| &head[..]);
        h.within("td", &[("data-head", &head)], |h| draw_cell(h, cell));
    }
}

fn draw_cell(h: &mut Html, cell: &Cell) {
    if cell.notes.is_empty() && cell.bar.is_none() {
        h.text(&cell.text);
        return;
    }
    h.within("div", &[], |h| {
        h.text(&cell.text);
        for note in &cell.notes {
            small(h, note);
        }
        if let Some(bar) = cell.bar {
            let style = format!("width:{}", plot::percent(bar));
            h.within("i", &[("class", &"track"), ("aria-hidden", &"true")], |h| {
                h.within("i", &[("style", &style)], |_| {});
            });
        }
    });
}

fn small(h: &mut Html, text: &str) {
    if !text.is_empty() {
        h.element("small", &[], text);
    }
}

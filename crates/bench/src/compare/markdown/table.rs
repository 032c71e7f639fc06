//! A table of Markdown.
//!
//! Threading: plain data.

/// A table: names of columns, and lines with a cell for each of them.
#[derive(Debug, Default)]
pub(super) struct Table {
    heads: Vec<String>,
    lines: Vec<Vec<String>>,
}

impl Table {
    /// A table without lines.
    pub fn new(heads: impl IntoIterator<Item = String>) -> Table {
        Table {
            heads: heads.into_iter().collect(),
            lines: Vec::new(),
        }
    }

    /// Adds a line.
    pub fn line(&mut self, cells: impl IntoIterator<Item = String>) {
        self.lines.push(cells.into_iter().collect());
    }

    /// Whether it has no lines.
    pub fn is_empty(&self) -> bool {
        self.lines.is_empty()
    }

    /// The table, with an empty line after it. Nothing if it has no lines.
    pub fn text(&self) -> String {
        if self.is_empty() {
            return String::new();
        }
        let line = |cells: &[String]| {
            let cells: Vec<String> = cells.iter().map(|cell| cell.replace('|', "\\|")).collect();
            format!("| {} |\n", cells.join(" | "))
        };
        let rule = vec!["---".to_string(); self.heads.len()];
        let mut out = line(&self.heads) + &line(&rule);
        for cells in &self.lines {
            out.push_str(&line(cells));
        }
        out.push('\n');
        out
    }
}

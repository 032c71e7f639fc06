//! Where results go: tables or JSON to standard output, and a page of charts to a file.
//!
//! Invariant: with `--json`, standard output has one object a line and nothing else, and each is
//! there as soon as its run has ended.
//!
//! Threading: plain data.

use std::io::{self, Write};
use std::path::{Path, PathBuf};

use super::args::OutputArgs;
use super::{CommandError, Result, file_error};
use crate::page::{Part, page_with};
use crate::record::{Record, number, row, table};

/// The results of a call.
pub struct Output<'a> {
    out: &'a mut dyn Write,
    is_json: bool,
    html: Option<PathBuf>,
    title: String,
    records: Vec<Record>,
    part: Option<Part>,
}

/// The error of standard output.
fn output_error(error: io::Error) -> CommandError {
    match error.kind() {
        io::ErrorKind::BrokenPipe => CommandError::OutputClosed,
        _ => CommandError::Failed(format!("standard output: {error}")),
    }
}

impl<'a> Output<'a> {
    /// Results of a call, whose page has this title.
    ///
    /// # Errors
    /// If the page cannot lie where it is asked for. It is better to know that before a long run.
    pub fn new(args: &OutputArgs, title: String, out: &'a mut dyn Write) -> Result<Output<'a>> {
        if let Some(html) = &args.html {
            check_file(html)?;
        }
        Ok(Output {
            out,
            is_json: args.json,
            html: args.html.clone(),
            title,
            records: Vec::new(),
            part: None,
        })
    }

    /// Whether results are JSON.
    pub fn is_json(&self) -> bool {
        self.is_json
    }

    /// The records so far.
    pub fn records(&self) -> &[Record] {
        &self.records
    }

    /// Writes text for people; nothing if the results are JSON.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn text(&mut self, text: &str) -> Result<()> {
        if self.is_json {
            return Ok(());
        }
        self.write(text)
    }

    /// Writes a name and facts for people.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn row(&mut self, label: &str, facts: &[String]) -> Result<()> {
        self.text(&row(label, facts))
    }

    /// Writes a line of JSON, if the results are JSON.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn json(&mut self, value: &serde_json::Value) -> Result<()> {
        if !self.is_json {
            return Ok(());
        }
        self.write(&format!("{value}\n"))
    }

    fn write(&mut self, text: &str) -> Result<()> {
        let written = self.out.write_all(text.as_bytes());
        written
            .and_then(|()| self.out.flush())
            .map_err(output_error)
    }

    /// Writes a record as a table or as JSON, and keeps it for the page.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn record(&mut self, record: Record) -> Result<()> {
        if self.is_json {
            let json = serde_json::to_value(&record);
            self.json(&json.map_err(|error| CommandError::Failed(error.to_string()))?)?;
        }
        self.text(&format!("\n{}", table(&record)))?;
        self.keep(record);
        Ok(())
    }

    /// Keeps a record for the page.
    pub fn keep(&mut self, record: Record) {
        self.records.push(record);
    }

    /// Gives the page a part of the caller's own.
    pub fn set_part(&mut self, part: Part) {
        self.part = Some(part);
    }

    /// A line for each record, if there are several.
    ///
    /// # Errors
    /// Those of standard output.
    pub fn summary(&mut self) -> Result<()> {
        if self.records.len() < 2 {
            return Ok(());
        }
        let mut text = format!(
            "\n{}",
            summary_line("", ["rate", "p50", "p99", "p99.9", "max"])
        );
        for record in &self.records {
            let latency = |us: Option<f64>| us.map_or("-".into(), number::latency);
            let rate = number::rate(record.ops_per_s);
            let cells = [
                rate,
                latency(record.p50_us),
                latency(record.p99_us),
                latency(record.p999_us),
                latency(record.max_us),
            ];
            text.push_str(&summary_line(
                &record.workload,
                cells.each_ref().map(|c| &c[..]),
            ));
        }
        self.text(&text)
    }

    /// Writes the page, if one is asked for and there is something to show.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn finish(&mut self) -> Result<()> {
        let Some(file) = self.html.clone().filter(|_| !self.records.is_empty()) else {
            return Ok(());
        };
        let text = page_with(&self.records, &self.title, self.part.as_slice());
        std::fs::write(&file, text).map_err(file_error(&file))?;
        self.row("page", &[file.display().to_string()])
    }
}

fn summary_line(name: &str, cells: [&str; 5]) -> String {
    let mut line = format!("  {name:<24}");
    for (cell, width) in cells.iter().zip([14, 10, 10, 10, 10]) {
        line.push_str(&format!("{:>width$}", cell.replace('\u{a0}', " ")));
    }
    line.push('\n');
    line
}

/// Refuses a file in a folder that does not exist, and a folder.
fn check_file(file: &Path) -> Result<()> {
    let folder = file
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    let what = if file.is_dir() {
        "it is a folder; name a file for the page"
    } else if folder.is_some_and(|folder| !folder.is_dir()) {
        "its folder does not exist; create it first"
    } else {
        return Ok(());
    };
    Err(CommandError::Failed(format!("{}: {what}", file.display())))
}

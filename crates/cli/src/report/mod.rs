//! Reports: the measurements and results of a run, as one HTML file that needs nothing else.
//!
//! [`model`] is the data, independent of its presentation. [`record`] gathers it during a run, and
//! [`machine`] describes the machine. [`page`] draws the report. [`timeline`] and [`sections`] are
//! its parts; they use [`chart`], [`number`], [`bins`] and [`png`]. Axes, units, and the HTML that
//! escapes text and balances elements come from [`siltstone_bench::draw`], as in the benchmark's
//! page.
//!
//! Invariants: the file refers to nothing outside of itself; every text that is not a literal of
//! this program is escaped; every chart also shows its numbers as a table; the data, except the
//! pictures, is in the file as JSON too (`<script id="data">`). Any data can be drawn: none at all,
//! a single sample, zeros, the largest numbers.
//!
//! Threading: only the recorder is shared by threads.

mod bins;
mod chart;
pub mod machine;
pub mod model;
pub mod number;
mod page;
mod png;
pub mod record;
mod sections;
mod timeline;

#[cfg(test)]
mod tests;

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};

use crate::failure::Failure;
use model::Report;

/// The file of a report. It is created before the run, so that a path that cannot be written is
/// known before the work, not after it.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    /// Whether this created the file and has written nothing to it yet.
    vain: bool,
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.vain {
            // The run failed, and its error matters more than an empty file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

impl Place {
    /// The requested file, which is replaced at the end.
    ///
    /// # Errors
    /// It cannot be written.
    pub fn asked(path: &Path) -> Result<Place, Failure> {
        let vain = !path.exists();
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(path)
            .map_err(|e| Failure::file(path, &e))?;
        Ok(Place {
            path: path.to_path_buf(),
            vain,
        })
    }

    /// A new file beside a store: its folder's name and `.html`, with a number if that file exists.
    ///
    /// # Errors
    /// No file can be made there.
    pub fn beside(store: &Path) -> Result<Place, Failure> {
        // `.` and `..` have no name; the folder itself does.
        let store = std::path::absolute(store).map_err(|e| Failure::file(store, &e))?;
        let name = store.file_name().unwrap_or("store".as_ref());
        for n in 1..1000 {
            let mut file = name.to_os_string();
            if n > 1 {
                file.push(format!("-{n}"));
            }
            file.push(".html");
            let path = store.with_file_name(file);
            match OpenOptions::new().write(true).create_new(true).open(&path) {
                Ok(_) => return Ok(Place { path, vain: true }),
                Err(e) if e.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(e) => return Err(Failure::file(&path, &e)),
            }
        }
        Err(Failure::Other(format!(
            "{}: no free name for the report beside it; give one with --report",
            store.display()
        )))
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a report there.
    ///
    /// # Errors
    /// The file cannot be written.
    pub fn write(mut self, report: &Report) -> Result<(), Failure> {
        let text = page::render(report)?;
        self.vain = false;
        OpenOptions::new()
            .write(true)
            .truncate(true)
            .create(true)
            .open(&self.path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| Failure::file(&self.path, &e))
    }
}

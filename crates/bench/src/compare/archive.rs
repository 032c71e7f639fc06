//! All results of a comparison in one file, which is small enough to be kept with the sources. From
//! it the page can be made again, and every figure of it can be looked up.
//!
//! The file has lines of JSON, compressed with zstd: the manifest, and then for each process that
//! has finished its name and its outcome, in the order of the plan. `zstdcat` shows them.
//!
//! Invariants: equal results give equal files. A file that is cut off, damaged, or has other lines
//! is refused as a whole. No more than [`UNPACKED_MAX`] bytes are unpacked, whatever the
//! file claims.
//!
//! Threading: pure functions on files.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::results::about;
use super::{Manifest, Outcome, Results, ResultsError};

/// The most bytes of an unpacked file: about fifty times those of the standard comparison.
const UNPACKED_MAX: u64 = 256 << 20;
/// Records are much alike, so a higher level makes them a good deal smaller.
const LEVEL: i32 = 19;

/// A line behind the first one.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Line<O> {
    process: String,
    outcome: O,
}

/// The manifest and the outcomes by the names of their processes.
pub(super) type Contents = (Manifest, BTreeMap<String, Outcome>);

impl Results {
    /// Writes all results to one file.
    ///
    /// # Errors
    /// If the file cannot be written.
    pub fn write_archive(&self, path: &Path) -> Result<(), ResultsError> {
        let write = || {
            let mut out = zstd::Encoder::new(File::create(path)?, LEVEL)?;
            out.include_checksum(true)?;
            write_line(&mut out, &self.manifest)?;
            for (process, outcome) in self.all() {
                if let Some(outcome) = outcome {
                    let process = self.plan.id(process);
                    write_line(&mut out, &Line { process, outcome })?;
                }
            }
            out.finish()?.sync_all()
        };
        write().map_err(about(path))
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

/// Reads what [`Results::write_archive`] wrote.
pub(super) fn read(path: &Path) -> Result<Contents, ResultsError> {
    let damaged = |line: u64, what: String| ResultsError::Archive {
        path: path.into(),
        line,
        what,
    };
    let file = File::open(path).map_err(about(path))?;
    let unpacked = zstd::Decoder::new(file).map_err(about(path))?;
    // One more byte than is allowed shows that there is more.
    let mut lines = BufReader::new(unpacked.take(UNPACKED_MAX + 1));
    let (mut manifest, mut outcomes) = (None, BTreeMap::new());
    let (mut text, mut number, mut bytes) = (String::new(), 0, 0u64);
    loop {
        text.clear();
        number += 1;
        let read = lines
            .read_line(&mut text)
            .map_err(|error| damaged(number, error.to_string()))?;
        bytes += read as u64;
        if bytes > UNPACKED_MAX {
            let what = format!("it has more than {UNPACKED_MAX} unpacked bytes");
            return Err(damaged(number, what));
        }
        if read == 0 {
            let none = || damaged(number, "expected a manifest, found the end".into());
            return Ok((manifest.ok_or_else(none)?, outcomes));
        }
        let invalid = |error: serde_json::Error| damaged(number, error.to_string());
        if manifest.is_none() {
            manifest = Some(serde_json::from_str(&text).map_err(invalid)?);
            continue;
        }
        let line: Line<Outcome> = serde_json::from_str(&text).map_err(invalid)?;
        if let Some(_twice) = outcomes.insert(line.process.clone(), line.outcome) {
            return Err(damaged(number, format!("{} is there twice", line.process)));
        }
    }
}

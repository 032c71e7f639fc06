//! All records of a paper's experiments in one file, which is small enough to be kept with the
//! sources. The page can be made from it again, and every figure on the page can be looked up.
//!
//! The file has lines of JSON, compressed with zstd: first the manifest, and then a line for each
//! run and round. `zstdcat` shows them.
//!
//! Invariants: equal results give equal files. If a file is cut off or damaged, or has lines of
//! another form, all of it is refused. No more than [`UNPACKED_MAX`] bytes are unpacked, whatever
//! the file claims.
//!
//! Threading: pure functions on files.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Write};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::rounds::Piece;
use crate::record::Record;

/// The maximum number of bytes of an unpacked file.
const UNPACKED_MAX: u64 = 256 << 20;
const LEVEL: i32 = 19;
const FORMAT: &str = "siltstone paper records 1";

/// What a call carried out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    pub format: String,
    /// The name of the experiment or of the paper that the call was given.
    pub name: String,
    /// Whether the experiments had their quick scales.
    pub is_quick: bool,
    /// The time limit in seconds, if there was one.
    pub within_s: Option<f64>,
    /// How long the call took, in seconds.
    pub took_s: f64,
    pub experiments: Vec<Planned>,
}

impl Default for Manifest {
    fn default() -> Manifest {
        Manifest {
            format: FORMAT.into(),
            name: String::new(),
            is_quick: false,
            within_s: None,
            took_s: 0.0,
            experiments: Vec::new(),
        }
    }
}

/// One experiment of a call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Planned {
    pub name: String,
    pub scale: f64,
    pub rounds: u32,
}

impl Planned {
    /// The entry of an experiment in the manifest.
    pub fn of(piece: &Piece) -> Planned {
        Planned {
            name: piece.experiment.name.clone(),
            scale: piece.plan.scale,
            rounds: piece.rounds,
        }
    }
}

/// A run of one round: its record, or why it failed.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Line {
    pub experiment: String,
    pub run: String,
    pub round: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub record: Option<Box<Record>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A file of records.
#[derive(Debug, Clone, PartialEq)]
pub struct Archive {
    pub manifest: Manifest,
    pub lines: Vec<Line>,
}

impl Archive {
    /// Writes the file, beside one of the same name that is there, and then in its place.
    ///
    /// # Errors
    /// If it cannot be written. What was there before is there still.
    pub fn write(&self, path: &Path) -> io::Result<()> {
        let mut name = path.file_name().unwrap_or_default().to_os_string();
        name.push(".new");
        let new = path.with_file_name(name);
        self.write_new(&new)?;
        std::fs::rename(&new, path)
    }

    fn write_new(&self, path: &Path) -> io::Result<()> {
        let mut out = zstd::Encoder::new(File::create(path)?, LEVEL)?;
        out.include_checksum(true)?;
        write_line(&mut out, &self.manifest)?;
        self.lines
            .iter()
            .try_for_each(|line| write_line(&mut out, line))?;
        out.finish()?.sync_all()
    }

    /// Reads what [`Archive::write`] wrote.
    ///
    /// # Errors
    /// If the file cannot be read, or is not a file of records. The message names the line.
    pub fn read(path: &Path) -> Result<Archive, String> {
        let about = |error: String| format!("{}: {error}", path.display());
        let file = File::open(path).map_err(|error| about(error.to_string()))?;
        Archive::read_from(file).map_err(about)
    }

    fn read_from(file: impl Read) -> Result<Archive, String> {
        let unpacked = zstd::Decoder::new(file).map_err(|error| error.to_string())?;
        // One byte more than the limit is unpacked, which shows whether there is more.
        let lines = BufReader::new(unpacked.take(UNPACKED_MAX + 1)).lines();
        let (mut manifest, mut found, mut bytes) = (None, Vec::new(), 0u64);
        for (number, line) in (1..).zip(lines) {
            let wrong = |error: String| format!("line {number}: {error}");
            let line = line.map_err(|error| wrong(error.to_string()))?;
            bytes += line.len() as u64 + 1;
            if bytes > UNPACKED_MAX {
                return Err(wrong(format!("more than {UNPACKED_MAX} unpacked bytes")));
            }
            let json = |error: serde_json::Error| wrong(error.to_string());
            if manifest.is_none() {
                let read: Manifest = serde_json::from_str(&line).map_err(json)?;
                if read.format != FORMAT {
                    return Err(wrong(format!(
                        "expected `{FORMAT}`, found `{}`",
                        read.format
                    )));
                }
                manifest = Some(read);
                continue;
            }
            found.push(serde_json::from_str(&line).map_err(json)?);
        }
        Ok(Archive {
            manifest: manifest.ok_or("expected a manifest, found the end")?,
            lines: found,
        })
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn archive() -> Archive {
        let line = |round, record, error: Option<&str>| Line {
            experiment: "prockstore-fig9".into(),
            run: "near-data 10GB".into(),
            round,
            record,
            error: error.map(String::from),
        };
        Archive {
            manifest: Manifest {
                name: "prockstore".into(),
                experiments: vec![Planned {
                    name: "prockstore-fig9".into(),
                    scale: 0.01,
                    rounds: 2,
                }],
                ..Manifest::default()
            },
            lines: vec![
                line(0, Some(Box::default()), None),
                line(1, None, Some("the disk is full")),
            ],
        }
    }

    #[test]
    fn a_file_has_what_was_written_and_a_damaged_one_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("records");
        archive().write(&path).unwrap();
        assert_eq!(Archive::read(&path).unwrap(), archive());
        assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 1);

        let bytes = std::fs::read(&path).unwrap();
        for cut in 0..bytes.len() {
            assert!(Archive::read_from(&bytes[..cut]).is_err(), "cut at {cut}");
        }
        let packed = |text: &str| zstd::encode_all(text.as_bytes(), 1).unwrap();
        let other = r#"{"format":"x","name":"","is_quick":false,"within_s":null,"took_s":0.0,"experiments":[]}"#;
        for (text, says) in [
            ("", "found the end"),
            ("{}", "line 1"),
            (other, "siltstone paper records 1"),
        ] {
            let error = Archive::read_from(&packed(text)[..]).unwrap_err();
            assert!(error.contains(says), "{text}: {error}");
        }
    }
}

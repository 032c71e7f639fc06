//! The mark of an export that is not finished.
//!
//! An export writes one table after the other. If it is killed between two of them, the tables in
//! the folder are whole, and nothing in them says that others are missing. Therefore an export
//! creates a file beside its tables first and deletes it last. As long as this file is there, an
//! export of the same name and an ingest of these tables are refused.
//!
//! Invariants: the mark is durable before the first table is written. It is deleted only after all
//! tables are durable, or after a failed export has deleted what it wrote.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use siltstone::BUILT_TABLE_SUFFIX;

use crate::failure::Failure;

/// The end of a mark's name; the name of the export's tables precedes it.
const MARK_SUFFIX: &str = "-unfinished.export";

/// The mark of the export that this process runs.
pub struct Mark {
    folder: PathBuf,
    name: String,
}

impl Mark {
    /// Marks the export of tables `name` into `folder`.
    ///
    /// # Errors
    /// Tables of this name exist, or another export's mark; the file cannot be written.
    pub fn create(folder: &Path, name: &str) -> Result<Mark, Failure> {
        let mark = Mark {
            folder: folder.to_path_buf(),
            name: name.to_string(),
        };
        let path = mark.path();
        if path.exists() {
            return Err(mark.refusal());
        }
        if let Some(table) = mark.table()? {
            return Err(Failure::Other(format!(
                "{} exists already, and an export replaces nothing; export to another folder, or \
                give the tables another name than `{name}` with --name",
                table.display()
            )));
        }
        let mut file = match File::create_new(&path) {
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                return Err(mark.refusal());
            }
            created => created.map_err(|e| Failure::file(&path, &e))?,
        };
        let text = format!(
            "An export writes the tables {} and deletes this file at its end.\n",
            mark.tables()
        );
        let written = file
            .write_all(text.as_bytes())
            .and_then(|()| file.sync_all())
            .and_then(|()| mark.sync_folder());
        if let Err(error) = written {
            let _ = fs::remove_file(&path);
            return Err(Failure::file(&path, &error));
        }
        Ok(mark)
    }

    /// Deletes the mark, because the export is finished.
    ///
    /// # Errors
    /// The file cannot be deleted.
    pub fn delete(self) -> Result<(), Failure> {
        let path = self.path();
        fs::remove_file(&path)
            .and_then(|()| self.sync_folder())
            .map_err(|e| Failure::file(&path, &e))
    }

    /// Deletes the mark after an export that failed, unless some of its tables could not be
    /// deleted.
    pub fn abandon(self) {
        if let Ok(None) = self.table() {
            let _ = fs::remove_file(self.path());
        }
    }

    fn path(&self) -> PathBuf {
        self.folder.join(format!("{}{MARK_SUFFIX}", self.name))
    }

    /// The export's tables, as a pattern of a shell.
    fn tables(&self) -> String {
        format!("{}-[0-9]*{BUILT_TABLE_SUFFIX}", self.name)
    }

    /// The first table of this name in the folder.
    fn table(&self) -> Result<Option<PathBuf>, Failure> {
        let fail = |e: io::Error| Failure::file(&self.folder, &e);
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.folder).map_err(fail)? {
            let path = entry.map_err(fail)?.path();
            if name_of(&path).as_deref() == Some(&self.name) {
                found.push(path);
            }
        }
        Ok(found.into_iter().min())
    }

    fn sync_folder(&self) -> io::Result<()> {
        File::open(&self.folder)?.sync_all()
    }

    fn refusal(&self) -> Failure {
        Failure::Other(format!(
            "{}: an export to this folder was interrupted, or is still running; if none is \
            running, delete {} and {} there and export again",
            self.path().display(),
            self.tables(),
            name_in(&self.path())
        ))
    }
}

/// The name that the export gave to the table at `path`, if its file has a name of such a table.
fn name_of(path: &Path) -> Option<String> {
    let file = name_in(path);
    let (name, number) = file.strip_suffix(BUILT_TABLE_SUFFIX)?.rsplit_once('-')?;
    let is_number = !number.is_empty() && number.bytes().all(|b| b.is_ascii_digit());
    is_number.then(|| name.to_string())
}

fn name_in(path: &Path) -> String {
    let name = path.file_name().unwrap_or_default();
    name.to_string_lossy().into_owned()
}

/// Refuses a file of an unfinished export: its mark, or a table beside its mark.
///
/// # Errors
/// The file is one of these.
pub fn refuse(path: &Path) -> Result<(), Failure> {
    let file = name_in(path);
    let marked = file.strip_suffix(MARK_SUFFIX).map(String::from);
    let Some(name) = marked.or_else(|| name_of(path)) else {
        return Ok(());
    };
    let folder = match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder.to_path_buf(),
        _ => PathBuf::from("."),
    };
    let mark = Mark { folder, name };
    match mark.path().exists() {
        true => Err(mark.refusal()),
        false => Ok(()),
    }
}

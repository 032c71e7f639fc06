//! Writes the page of results, and packs results into one file.
//!
//! Threading: the main thread.

use siltstone_bench::compare::{self, Results};

use crate::{PackArguments, PageArguments, Result};

/// Prints the page, or writes it to a file.
pub fn page(arguments: &PageArguments) -> Result<()> {
    let read = |folder: &std::path::PathBuf| Results::read(folder);
    let all: std::result::Result<Vec<Results>, _> = arguments.results.iter().map(read).collect();
    let page = compare::page(&all.map_err(|error| error.to_string())?);
    match &arguments.write {
        None => print!("{page}"),
        Some(path) => {
            std::fs::write(path, page).map_err(|error| format!("{}: {error}", path.display()))?
        }
    }
    Ok(())
}

/// Writes all records of a comparison to one file.
pub fn pack(arguments: &PackArguments) -> Result<()> {
    let results = Results::read(&arguments.results).map_err(|error| error.to_string())?;
    let written = results.write_archive(&arguments.file);
    written.map_err(|error| error.to_string())
}

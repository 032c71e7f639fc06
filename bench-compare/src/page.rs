//! Writes the page of results.
//!
//! Threading: the main thread.

use siltstone_bench::compare::{self, Results};

use crate::{PageArguments, Result};

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

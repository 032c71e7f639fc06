//! Tables as the inputs of a job.

use std::sync::Arc;

use siltstone_storage::{ReadFile, StorageError, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::exec::{Inputs, StreamSource};

use crate::tree::tables::{TableHandle, TableSet};

/// The tables that a job reads. It holds their handles, so that nobody deletes them meanwhile.
pub(super) struct JobInputs {
    pub(super) tables: Arc<TableSet>,
    /// In the order of locations and names.
    pub(super) handles: Vec<((u32, String), Arc<TableHandle>)>,
}

fn not_an_input(location: u32, name: &str) -> TableError {
    StorageError::new(
        StorageErrorKind::NotFound,
        "resolve input",
        name,
        format!("location {location} has no such input of this job"),
    )
    .into()
}

impl Inputs for JobInputs {
    fn table(&self, location: u32, name: &str) -> Result<Arc<dyn ReadFile>, TableError> {
        let found = self
            .handles
            .binary_search_by(|((at, own), _)| (*at, &own[..]).cmp(&(location, name)));
        match found {
            Ok(index) => Ok(self.tables.readers().input_file(&self.handles[index].1)?),
            Err(_) => Err(not_an_input(location, name)),
        }
    }

    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        Err(not_an_input(location, name))
    }
}

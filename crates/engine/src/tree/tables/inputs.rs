//! Tables as the inputs of a job.

use std::collections::BTreeMap;
use std::sync::Arc;

use siltstone_storage::{ReadFile, StorageError, StorageErrorKind};
use siltstone_table::error::TableError;
use siltstone_table::exec::{Inputs, StreamSource};

use crate::tree::tables::{TableHandle, TableSet};

/// The tables that a job reads. It holds their handles, so that nobody deletes them meanwhile.
pub(super) struct JobInputs {
    pub(super) tables: Arc<TableSet>,
    /// By location and name.
    pub(super) handles: BTreeMap<(u32, String), Arc<TableHandle>>,
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
        let handle = self
            .handles
            .get(&(location, name.to_string()))
            .ok_or_else(|| not_an_input(location, name))?;
        Ok(self.tables.readers().input_file(handle)?)
    }

    fn stream(&self, location: u32, name: &str) -> Result<Arc<dyn StreamSource>, TableError> {
        Err(not_an_input(location, name))
    }
}

//! Files whose reads say what they are for.
//!
//! A table's file is shared by all that read it, and a storage across a link counts its bytes by
//! reader ([`ReadPurpose`]). So jobs and verifications read through these wrappers. Reads without
//! one are lookups.
//!
//! Threading: as the files below.

use std::sync::Arc;

use siltstone_storage::wrapped::{Call, Wrapped, Wrapper};
use siltstone_storage::{
    Access, Map, ReadByDescriptor, ReadFile, ReadPurpose, ReadRange, Result, Storage,
};
use siltstone_table::TableError;
use siltstone_table::exec::{Inputs, StreamSource};

/// Inputs of a job that are read for this purpose.
pub(crate) fn inputs_for(purpose: ReadPurpose, inputs: Arc<dyn Inputs>) -> Arc<dyn Inputs> {
    Arc::new(InputsFor { purpose, inputs })
}

/// A storage whose objects are read for this purpose.
pub(crate) fn storage_for(purpose: ReadPurpose, inner: Arc<dyn Storage>) -> Arc<dyn Storage> {
    Arc::new(Wrapped(StorageFor { purpose, inner }))
}

/// A file that is read for this purpose.
pub(crate) fn file_for(purpose: ReadPurpose, file: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
    Arc::new(FileFor { purpose, file })
}

struct InputsFor {
    purpose: ReadPurpose,
    inputs: Arc<dyn Inputs>,
}

impl Inputs for InputsFor {
    fn table(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn ReadFile>, TableError> {
        let file = self.inputs.table(location, name)?;
        let purpose = self.purpose;
        Ok(Arc::new(FileFor { purpose, file }))
    }

    fn stream(
        &self,
        location: u32,
        name: &str,
    ) -> std::result::Result<Arc<dyn StreamSource>, TableError> {
        self.inputs.stream(location, name)
    }
}

struct StorageFor {
    purpose: ReadPurpose,
    inner: Arc<dyn Storage>,
}

impl Wrapper for StorageFor {
    fn inner(&self) -> &dyn Storage {
        &*self.inner
    }

    fn make<T>(&self, _: Call<'_>, mut run: impl FnMut() -> Result<T>) -> Result<T> {
        run()
    }

    fn opened_to_read(&self, file: Arc<dyn ReadFile>) -> Arc<dyn ReadFile> {
        let purpose = self.purpose;
        Arc::new(FileFor { purpose, file })
    }
}

struct FileFor {
    purpose: ReadPurpose,
    file: Arc<dyn ReadFile>,
}

impl ReadFile for FileFor {
    fn name(&self) -> &str {
        self.file.name()
    }
    fn len(&self) -> u64 {
        self.file.len()
    }
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let mut range = [ReadRange { offset, buf }];
        self.file.read_ranges_for(self.purpose, &mut range)
    }
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        self.file.read_ranges_for(self.purpose, ranges)
    }
    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        // A verification reads columns, too.
        let purpose = match self.purpose {
            ReadPurpose::Verify => ReadPurpose::Verify,
            _ => purpose,
        };
        self.file.read_ranges_for(purpose, ranges)
    }
    fn read_by_descriptor(&self, read: &mut ReadByDescriptor<'_>) -> Result<bool> {
        self.file.read_by_descriptor(read)
    }
    fn advise(&self, access: Access, offset: u64, len: u64) {
        self.file.advise(access, offset, len);
    }
    fn map(&self) -> Result<Option<Map>> {
        self.file.map()
    }
}

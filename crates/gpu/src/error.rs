//! What ends the work of a piece early.

use siltstone_storage::StorageError;
use siltstone_table::TableError;
use siltstone_table::exec::ExecError;

use crate::device::DeviceError;

/// Why the GPU did not finish a piece.
#[derive(Debug)]
pub(crate) enum GpuError {
    /// A call of the device failed.
    Device(DeviceError),
    /// The memory of the lane is too small for the piece.
    NoRoom {
        /// The bytes that were asked for when it was full.
        wanted_bytes: u64,
    },
    /// A block of an input is damaged. The CPU's check says how.
    BadBlock {
        /// The number of the input in the job.
        input: u32,
        /// The number of the block in the table.
        block: usize,
    },
    /// What the GPU computed or transferred was found to be wrong.
    Mismatch(String),
    /// The job ends in this way.
    Exec(ExecError),
}

impl From<DeviceError> for GpuError {
    fn from(error: DeviceError) -> GpuError {
        GpuError::Device(error)
    }
}

impl From<ExecError> for GpuError {
    fn from(error: ExecError) -> GpuError {
        GpuError::Exec(error)
    }
}

impl From<TableError> for GpuError {
    fn from(error: TableError) -> GpuError {
        GpuError::Exec(error.into())
    }
}

impl From<StorageError> for GpuError {
    fn from(error: StorageError) -> GpuError {
        GpuError::Exec(error.into())
    }
}

impl GpuError {
    /// The error of a table that is made of what the device says of its blocks. A rule of the table
    /// crate that is broken then was broken by the device.
    pub fn of_table(error: impl Into<ExecError>) -> GpuError {
        match error.into() {
            ExecError::Failed(TableError::Misuse(rule)) => GpuError::Mismatch(rule.into()),
            error => error.into(),
        }
    }
}

pub(crate) type Result<T> = std::result::Result<T, GpuError>;

/// Fails if what the device says of its own arrays cannot be right. Its checksum only shows that it
/// came here as it was in the device's memory, of which bits may have flipped. So nothing may be
/// indexed or divided by it before it was checked.
pub(crate) fn check(is_possible: bool, what: &str) -> Result<()> {
    match is_possible {
        true => Ok(()),
        false => Err(GpuError::Mismatch(format!("{what} cannot be right"))),
    }
}

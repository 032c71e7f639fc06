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

pub(crate) type Result<T> = std::result::Result<T, GpuError>;

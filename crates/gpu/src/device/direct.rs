//! Direct transfers: bytes that move between a file and the memory of a GPU, without memory of the
//! host where the machine allows it (GPUDirect Storage).
//!
//! Threading: an open file has one owner.

use std::fmt;
use std::io;

use super::{DeviceError, Region};

/// How direct transfers of a device are made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DirectMode {
    /// The kernel's module `nvidia-fs` is loaded, so the disk and the GPU can exchange bytes by
    /// themselves, where the file system supports it.
    Dma {
        /// Major and minor number of the module's version.
        driver: (u32, u32),
        /// The regions of memory that the library could not register. It copies through buffers of
        /// its own for them.
        unregistered_count: usize,
    },
    /// The library copies through memory of the host: its compatibility mode, or another way that
    /// it does not report.
    Compatibility,
    /// The emulated device copies.
    Emulated,
}

impl fmt::Display for DirectMode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            DirectMode::Dma {
                driver,
                unregistered_count,
            } => {
                write!(f, "DMA by nvidia-fs {}.{}", driver.0, driver.1)?;
                match unregistered_count {
                    0 => Ok(()),
                    count => write!(
                        f,
                        ", through buffers of cuFile, because {count} regions of memory could not \
                         be registered"
                    ),
                }
            }
            DirectMode::Compatibility => f.write_str(
                "cuFile without nvidia-fs, which usually copies through memory of the host (its \
                 compatibility mode)",
            ),
            DirectMode::Emulated => f.write_str("emulated"),
        }
    }
}

/// Why a direct transfer failed.
#[derive(Debug)]
pub enum TransferError {
    /// The file could not be read or written, as it could not be by the host.
    File(io::Error),
    /// The device or its library failed.
    Device(DeviceError),
}

impl From<DeviceError> for TransferError {
    fn from(error: DeviceError) -> TransferError {
        TransferError::Device(error)
    }
}

/// A file that is open for direct transfers with one device. Transfers have ended when their calls
/// return. They are in no stream: the caller sees to it that no work uses the region meanwhile.
pub trait DeviceFile {
    /// Fills a region of the device from an offset of the file.
    ///
    /// # Errors
    /// [`TransferError`].
    fn read(&mut self, to: Region, offset: u64) -> Result<(), TransferError>;

    /// Writes a region of the device to the file, from an offset on.
    ///
    /// # Errors
    /// [`TransferError`].
    fn write(&mut self, from: Region, offset: u64) -> Result<(), TransferError>;
}

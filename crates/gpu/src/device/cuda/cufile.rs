//! The library of direct transfers between files and GPUs, libcufile (GPUDirect Storage).
//!
//! The library is looked for when direct transfers are asked for, opened once in a process, and
//! never closed: it has started threads. It writes a file `cufile.log` into the working directory,
//! unless its configuration (the variables CUFILE_ENV_PATH_JSON and CUFILE_LOGFILE_PATH) says
//! otherwise.
//!
//! Invariants: a file that is open here is registered with the library, from [`OpenFile::open`]
//! until it is dropped. A buffer that was registered is deregistered before its memory is freed;
//! the device does both.
//!
//! Threading: the library's calls may be made from all threads at once.

use std::ffi::{c_int, c_uint, c_void};
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::ptr;

use super::super::{DeviceError, DirectMode, Region, TransferError};
use super::library::{self, calls};

/// The names of its file.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// `CU_FILE_HANDLE_TYPE_OPAQUE_FD`.
const OPAQUE_FD: c_int = 1;

/// What the library returns, as `CUfileError_t`: its own code, and the driver's if that failed.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Status {
    code: c_int,
    driver_code: c_int,
}

/// `CUfileDescr_t`, of a file that is named by a descriptor.
#[repr(C)]
struct Description {
    kind: c_int,
    handle: Handle,
    file_system: *const c_void,
}

/// The union in it, which is as large as a pointer.
#[repr(C)]
union Handle {
    descriptor: c_int,
    pointer: *mut c_void,
}

/// `CUfileDrvProps_t` begins with these numbers. The library writes what follows them, too, in some
/// versions more than in others.
#[repr(C, align(8))]
#[derive(Clone, Copy, Default)]
struct Properties {
    driver_major: c_uint,
    driver_minor: c_uint,
    others: [u64; 31],
}

/// A registered file.
type FileHandle = *mut c_void;

calls! {
    cuFileDriverOpen() -> Status;
    cuFileDriverGetProperties(*mut Properties) -> Status;
    cuFileBufRegister(*const c_void, usize, c_int) -> Status;
    cuFileBufDeregister(*const c_void) -> Status;
    cuFileHandleRegister(*mut FileHandle, *mut Description) -> Status;
    cuFileHandleDeregister(FileHandle) -> ();
    cuFileRead(FileHandle, *mut c_void, usize, i64, i64) -> isize;
    cuFileWrite(FileHandle, *const c_void, usize, i64, i64) -> isize;
}

fn load() -> Result<(&'static str, Calls), String> {
    library::load(
        "libcufile",
        &NAMES,
        "install GPUDirect Storage",
        Calls::find,
    )
}

/// Looks for the library: the name under which the loader has found it. Whether a GPU and a file
/// system can use it is not tried.
///
/// # Errors
/// There is none, or it lacks calls, as text.
pub fn find_cufile() -> Result<&'static str, String> {
    load().map(|(name, _)| name)
}

/// The library, open.
pub(super) struct CuFile {
    calls: Calls,
    mode: DirectMode,
}

/// The open library of this process, or why there is none. A first call opens it, in the context
/// that is current.
pub(super) fn shared() -> Result<&'static CuFile, String> {
    // The library is one for the process, and no simulated run has a GPU of CUDA.
    #[allow(clippy::disallowed_types)]
    static LIBRARY: std::sync::OnceLock<Result<CuFile, String>> = std::sync::OnceLock::new();
    LIBRARY
        .get_or_init(CuFile::open)
        .as_ref()
        .map_err(Clone::clone)
}

/// An error of the library.
fn failure(what: &'static str, code: c_int, driver_code: c_int) -> DeviceError {
    let known = match code {
        5001 => ": the kernel's module nvidia-fs is not loaded",
        5004 | 5005 => ": the version of the kernel's module nvidia-fs does not fit the library's",
        5007 => ": this machine is not supported",
        5008 => ": this file system is not supported",
        5009 => ": this GPU is not supported",
        5011 => ": CUDA's driver failed",
        5012..=5015 => ": it does not know this memory of the GPU",
        5019 | 5020 => ": the file is not open for direct I/O",
        5025 => ": permission was denied",
        5036 => ": the memory of the GPU could not be pinned",
        _ => "",
    };
    let driver = match driver_code {
        0 => String::new(),
        code => format!(", and CUDA's code {code}"),
    };
    DeviceError::Call {
        what,
        detail: format!(
            "libcufile's code {code}{known}{driver}; the transfer `pipeline` does without it"
        ),
        is_sticky: false,
    }
}

fn check(what: &'static str, status: Status) -> Result<(), DeviceError> {
    match status.code {
        0 => Ok(()),
        code => Err(failure(what, code, status.driver_code)),
    }
}

impl CuFile {
    fn open() -> Result<CuFile, String> {
        let (_, calls) = load()?;
        let text = |error: DeviceError| error.to_string();
        // SAFETY: the call has no parameters.
        check("cuFileDriverOpen", unsafe { (calls.cuFileDriverOpen)() }).map_err(text)?;
        let mut found = Properties::default();
        // SAFETY: the library writes less than this buffer has in every known version.
        let asked = unsafe { (calls.cuFileDriverGetProperties)(&mut found) };
        let driver = (found.driver_major, found.driver_minor);
        let mode = match check("cuFileDriverGetProperties", asked) {
            Ok(()) if driver != (0, 0) => DirectMode::Dma {
                driver,
                unregistered_count: 0,
            },
            Ok(()) | Err(_) => DirectMode::Compatibility,
        };
        Ok(CuFile { calls, mode })
    }

    /// How transfers are made, if this number of regions could not be registered.
    pub(super) fn mode(&self, unregistered_count: usize) -> DirectMode {
        match self.mode {
            DirectMode::Dma { driver, .. } => DirectMode::Dma {
                driver,
                unregistered_count,
            },
            ref mode => mode.clone(),
        }
    }

    /// Lets transfers reach this memory without buffers of the library. The context of the memory
    /// is current.
    pub(super) fn register(&self, region: Region) -> Result<(), DeviceError> {
        let size = usize::try_from(region.bytes).unwrap_or(0);
        // SAFETY: the library keeps the address, and the device deregisters it before it frees it.
        let status = unsafe { (self.calls.cuFileBufRegister)(address(region.at), size, 0) };
        check("cuFileBufRegister", status)
    }

    /// Ends what [`CuFile::register`] began.
    pub(super) fn deregister(&self, region: Region) {
        // SAFETY: the region was registered, and no transfer uses it. An error changes nothing.
        let _ = unsafe { (self.calls.cuFileBufDeregister)(address(region.at)) };
    }
}

fn address(at: u64) -> *const c_void {
    ptr::without_provenance(at as usize)
}

/// A file that is registered with the library.
pub(super) struct OpenFile<'a> {
    library: &'static CuFile,
    handle: FileHandle,
    /// The descriptor stays open while the file is registered.
    _descriptor: BorrowedFd<'a>,
}

impl<'a> OpenFile<'a> {
    /// Registers a file. A context of the device is current.
    pub(super) fn open(
        library: &'static CuFile,
        descriptor: BorrowedFd<'a>,
    ) -> Result<OpenFile<'a>, DeviceError> {
        let mut description = Description {
            kind: OPAQUE_FD,
            handle: Handle {
                pointer: ptr::null_mut(),
            },
            file_system: ptr::null(),
        };
        description.handle.descriptor = descriptor.as_raw_fd();
        let mut handle = ptr::null_mut();
        // SAFETY: the library reads the description and writes one pointer.
        let status = unsafe { (library.calls.cuFileHandleRegister)(&mut handle, &mut description) };
        check("cuFileHandleRegister", status)?;
        Ok(OpenFile {
            library,
            handle,
            _descriptor: descriptor,
        })
    }

    /// Fills a part of the allocation `whole` from the file.
    pub(super) fn read(&self, whole: Region, to: Region, offset: u64) -> Result<(), TransferError> {
        let calls = &self.library.calls;
        // SAFETY: the part lies within the allocation, whose context is current and which nobody
        // else uses now. The file is registered.
        let read = |size, from, at| unsafe {
            (calls.cuFileRead)(self.handle, address(whole.at).cast_mut(), size, from, at)
        };
        moved("cuFileRead", whole, to, offset, read)
    }

    /// Writes a part of the allocation `whole` to the file.
    pub(super) fn write(
        &self,
        whole: Region,
        from: Region,
        offset: u64,
    ) -> Result<(), TransferError> {
        let calls = &self.library.calls;
        // SAFETY: as above.
        let write = |size, to, at| unsafe {
            (calls.cuFileWrite)(self.handle, address(whole.at), size, to, at)
        };
        moved("cuFileWrite", whole, from, offset, write)
    }
}

impl Drop for OpenFile<'_> {
    fn drop(&mut self) {
        // SAFETY: the file is registered, and no transfer of it is under way.
        unsafe { (self.library.calls.cuFileHandleDeregister)(self.handle) };
    }
}

/// The error of a transfer that ended at an offset of the file.
fn stopped(what: &'static str, offset: u64, why: String) -> TransferError {
    TransferError::Device(DeviceError::Call {
        what,
        detail: format!("at offset {offset} of a file: {why}"),
        is_sticky: false,
    })
}

/// Calls `transfer` with a size, an offset in the file and an offset in the allocation, until all
/// of `part` was moved.
fn moved(
    what: &'static str,
    whole: Region,
    part: Region,
    offset: u64,
    transfer: impl Fn(usize, i64, i64) -> isize,
) -> Result<(), TransferError> {
    let misuse = |detail: &str| TransferError::Device(DeviceError::misuse(what, detail));
    let is_small = |number: u64| i64::try_from(number).is_ok();
    let within = part.at.wrapping_sub(whole.at);
    let end = offset.checked_add(part.bytes);
    if !whole.contains(part) || !is_small(whole.bytes) || !end.is_some_and(is_small) {
        return Err(misuse("a range that is too large, or not the device's"));
    }
    let mut done = 0;
    while done < part.bytes {
        let left = part.bytes - done;
        let found = transfer(
            left as usize,
            (offset + done) as i64,
            (within + done) as i64,
        );
        match u64::try_from(found) {
            Ok(0) => return Err(stopped(what, offset + done, "nothing was moved".into())),
            Ok(count) if count > left => return Err(misuse("more bytes than were asked for")),
            Ok(count) => done += count,
            Err(_) if found == -1 => {
                let error = io::Error::last_os_error();
                // What `errno` has may be of an earlier call, so other errors are the library's.
                let is_full = [
                    io::ErrorKind::StorageFull,
                    io::ErrorKind::QuotaExceeded,
                    io::ErrorKind::FileTooLarge,
                ];
                return Err(match is_full.contains(&error.kind()) {
                    true => TransferError::File(error),
                    false => stopped(what, offset + done, error.to_string()),
                });
            }
            Err(_) => {
                let code = c_int::try_from(-found).unwrap_or(c_int::MAX);
                return Err(failure(what, code, 0).into());
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::mem::{offset_of, size_of};

    use super::*;

    /// The sizes and places of `cufile.h` on machines of 64 bits.
    #[test]
    fn structures_are_those_of_the_header() {
        assert_eq!(size_of::<Status>(), 8);
        assert_eq!(size_of::<Description>(), 24);
        assert_eq!(offset_of!(Description, handle), 8);
        assert_eq!(offset_of!(Description, file_system), 16);
        assert!(size_of::<Properties>() >= 2 * 72);
    }

    #[test]
    fn a_transfer_goes_on_until_all_bytes_are_moved() {
        let whole = Region {
            at: 1 << 20,
            bytes: 1 << 16,
        };
        let part = whole.part(4096, 10_000).unwrap();
        let calls = std::cell::RefCell::new(Vec::new());
        let of = |result: fn(usize) -> isize| {
            calls.borrow_mut().clear();
            moved("cuFileRead", whole, part, 8192, |size, from, at| {
                calls.borrow_mut().push((size, from, at));
                result(size)
            })
        };
        of(|size| size.min(4096) as isize).unwrap();
        let want = [
            (10_000, 8192, 4096),
            (5904, 12_288, 8192),
            (1808, 16_384, 12_288),
        ];
        assert_eq!(*calls.borrow(), want);
        let error = of(|_| 0).unwrap_err();
        let TransferError::Device(error) = error else {
            panic!("{error:?}");
        };
        assert!(
            error
                .to_string()
                .contains("offset 8192 of a file: nothing was moved")
        );
        let error = of(|_| -5008).unwrap_err();
        let TransferError::Device(error) = error else {
            panic!("{error:?}");
        };
        let text = error.to_string();
        assert!(
            text.contains("5008: this file system is not supported"),
            "{text}"
        );
        assert!(matches!(of(|_| 10_001), Err(TransferError::Device(_))));
        let outside = Region {
            at: whole.at + whole.bytes,
            bytes: 1,
        };
        let refused = moved("cuFileRead", whole, outside, 0, |_, _, _| {
            panic!("it is refused")
        });
        assert!(matches!(refused, Err(TransferError::Device(_))));
    }
}

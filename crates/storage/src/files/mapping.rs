//! A read-only mapping of a file, and the map views that hang on it.
//!
//! Files of 2 MiB and more are mapped at a 2 MiB boundary: page cache in 2 MiB folios (which large writes make) is
//! then mapped by huge entries. The mapping starts with `MADV_RANDOM`: a cold point read must not read ahead 128 KiB;
//! whoever scans says so with `advise`, which asks for huge pages and read-ahead on that range.

#![allow(unsafe_code)]

use std::ffi::c_void;
use std::fs::File;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use rustix::mm::{Advice, MapFlags, ProtFlags};

use crate::map::{Map, MapOwner};
use crate::sigbus::{self, Registration};
use crate::storage::Access;

const HUGE_BYTES: usize = 2 << 20;

/// The kernel cuts one request to read ahead off at the device's largest transfer; so they are made in pieces.
pub(super) const WILL_NEED_BYTES: usize = 256 << 10;

/// A mapped file. Dropping it unmaps; no storage call is made then.
pub(super) struct FileMapping {
    start: *mut u8,
    /// Length of the file; the mapping goes on to the end of its last page.
    len: usize,
    mapped: usize,
    failed: Box<AtomicBool>,
    /// `None` only while dropping.
    registration: Option<Registration>,
}

// SAFETY: read-only memory; all methods may run from any thread.
unsafe impl Send for FileMapping {}
// SAFETY: as above.
unsafe impl Sync for FileMapping {}

impl FileMapping {
    /// Maps the first `len` (> 0) bytes of `file`.
    pub(super) fn new(file: &File, len: usize) -> io::Result<FileMapping> {
        let page = sigbus::page_bytes();
        let mapped = len.checked_next_multiple_of(page).ok_or_else(|| {
            io::Error::new(io::ErrorKind::InvalidInput, "the file is too large to map")
        })?;
        let start = map_aligned(file, mapped)?;
        let mut mapping = FileMapping {
            start,
            len,
            mapped,
            failed: Box::new(AtomicBool::new(false)),
            registration: None,
        };
        let from = start as usize;
        // SAFETY: the mark lives in a box that the mapping owns and outlives the registration (see `drop`); nothing
        // but map views, which know about zeros, reads the range.
        mapping.registration =
            Some(unsafe { sigbus::register(from, from + mapped, &raw const *mapping.failed)? });
        // SAFETY: advice about our own mapping; it changes no contents.
        let _ = unsafe { rustix::mm::madvise(start.cast(), mapped, Advice::Random) };
        Ok(mapping)
    }

    /// A view of the whole file.
    pub(super) fn view(self: &Arc<Self>) -> Map {
        // SAFETY: `start..start + len` stays mapped until the last Arc is gone; unreadable pages become zeros.
        unsafe { Map::new(self.start, self.len, Arc::clone(self) as Arc<dyn MapOwner>) }
    }
}

impl MapOwner for FileMapping {
    fn failed(&self) -> &AtomicBool {
        &self.failed
    }

    fn advise(&self, access: Access, offset: u64, len: u64) {
        let page = sigbus::page_bytes();
        let Ok(offset) = usize::try_from(offset) else {
            return;
        };
        if offset >= self.mapped {
            return;
        }
        let from = offset & !(page - 1);
        let to = offset
            .saturating_add(usize::try_from(len).unwrap_or(usize::MAX))
            .min(self.mapped);
        let advise = |from: usize, to: usize, advice| {
            // SAFETY: within our own mapping by the clamps above; none of these advices changes contents of a file
            // mapping (it is shared and read-only, so dropped pages come back from the file).
            let _ = unsafe { rustix::mm::madvise(self.start.add(from).cast(), to - from, advice) };
        };
        match access {
            Access::Random => advise(from, to, Advice::Random),
            Access::Sequential | Access::WillNeed => {
                // Both take back the `Random` that the mapping began with: under it, nothing is read ahead.
                advise(from, to, Advice::Sequential);
                #[cfg(any(target_os = "linux", target_os = "android"))]
                advise(from, to, Advice::LinuxHugepage);
                if access == Access::WillNeed {
                    for piece in (from..to).step_by(WILL_NEED_BYTES) {
                        advise(piece, to.min(piece + WILL_NEED_BYTES), Advice::WillNeed);
                    }
                }
            }
            Access::DontNeed => advise(from, to, Advice::DontNeed),
        }
    }
}

impl Drop for FileMapping {
    fn drop(&mut self) {
        // First, so that the handler never overmaps memory that somebody else got meanwhile.
        self.registration = None;
        // SAFETY: our own mapping; the last view is gone, or this would not run.
        unsafe { unmap(self.start.cast(), self.mapped) };
    }
}

/// Maps `mapped` bytes (whole pages) of `file`, at a 2 MiB boundary if there are that many.
fn map_aligned(file: &File, mapped: usize) -> io::Result<*mut u8> {
    if mapped >= HUGE_BYTES
        && let Some(room) = mapped.checked_add(HUGE_BYTES)
        && let Some(reserved) = reserve_addresses(room)
    {
        let base = reserved as usize;
        let head = base.next_multiple_of(HUGE_BYTES) - base;
        let tail = room - head - mapped;
        // SAFETY: `head..head + mapped` lies within the reservation, which nobody else knows of; a mapping that
        // fails leaves it as it was or unmapped. What is unmapped afterwards belongs to the reservation too.
        return unsafe {
            let flags = MapFlags::SHARED | MapFlags::FIXED;
            match rustix::mm::mmap(
                reserved.byte_add(head),
                mapped,
                ProtFlags::READ,
                flags,
                file,
                0,
            ) {
                Ok(start) => {
                    unmap(reserved, head);
                    unmap(start.byte_add(mapped), tail);
                    Ok(start.cast())
                }
                Err(e) => {
                    unmap(reserved, room);
                    Err(e.into())
                }
            }
        };
    }
    // SAFETY: a fresh mapping at an address that the kernel chooses.
    let start = unsafe {
        rustix::mm::mmap(
            ptr::null_mut(),
            mapped,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )
    }?;
    Ok(start.cast())
}

/// Address space without memory behind it.
fn reserve_addresses(len: usize) -> Option<*mut c_void> {
    // SAFETY: a fresh anonymous mapping at an address that the kernel chooses, not accessible.
    unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)
    }
    .ok()
}

/// Unmaps `len` bytes; nothing if there are none.
///
/// # Safety
/// Nobody may use the range any more.
unsafe fn unmap(start: *mut c_void, len: usize) {
    if len > 0 {
        // SAFETY: by this function's contract.
        let _ = unsafe { rustix::mm::munmap(start, len) };
    }
}

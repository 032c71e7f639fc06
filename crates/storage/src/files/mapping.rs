//! A read-only mapping of a file, and the map views that keep it alive.
//!
//! Files of 2 MiB and more are mapped at a 2 MiB boundary, so that page cache in folios of 2 MiB
//! (which large writes create) is mapped by huge page table entries. The mapping starts with
//! `MADV_RANDOM`, because a cold point read must not read 128 KiB ahead. A scan calls `advise`,
//! which asks for huge pages and read-ahead on its range.

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

/// The kernel limits one read-ahead request to the device's largest transfer, so requests are made
/// in pieces of this size.
pub(super) const WILL_NEED_BYTES: usize = 256 << 10;

/// A mapped file. Dropping it unmaps the file and makes no storage call.
pub(super) struct FileMapping {
    start: *mut u8,
    /// Length of the file. The mapping extends to the end of its last page.
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
        // SAFETY: the mark is in a box that the mapping owns, and it outlives the registration (see
        // `drop`). Only map views read the range, and they handle zeros.
        mapping.registration =
            Some(unsafe { sigbus::register(from, from + mapped, &raw const *mapping.failed)? });
        // SAFETY: advice about our own mapping; it changes no contents.
        let _ = unsafe { rustix::mm::madvise(start.cast(), mapped, Advice::Random) };
        Ok(mapping)
    }

    /// A view of the whole file.
    pub(super) fn view(self: &Arc<Self>) -> Map {
        // SAFETY: `start..start + len` stays mapped until the last `Arc` is dropped; unreadable
        // pages become zeros.
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
            // SAFETY: the range is clipped to our own mapping. None of these advices changes the
            // contents of the mapping: it is shared and read-only, so dropped pages are read from
            // the file again.
            let _ = unsafe { rustix::mm::madvise(self.start.add(from).cast(), to - from, advice) };
        };
        match access {
            Access::Random => advise(from, to, Advice::Random),
            Access::Sequential | Access::WillNeed => {
                // Both cancel the `Random` of the new mapping, which prevents read-ahead.
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
        // Unregistered first, so that the handler never overwrites memory that somebody else got
        // meanwhile.
        self.registration = None;
        // SAFETY: this is our own mapping, and there are no views any more, or `drop` would not
        // run.
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
        // SAFETY: `head..head + mapped` lies within the reservation, which nobody else knows of. A
        // failed mmap leaves it unchanged or unmapped. The parts that are unmapped afterwards
        // belong to the reservation too.
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
    // SAFETY: this is a new mapping at an address that the kernel chooses.
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

/// Reserves address space without memory behind it.
fn reserve_addresses(len: usize) -> Option<*mut c_void> {
    // SAFETY: this is a new, inaccessible anonymous mapping at an address that the kernel chooses.
    unsafe {
        rustix::mm::mmap_anonymous(ptr::null_mut(), len, ProtFlags::empty(), MapFlags::PRIVATE)
    }
    .ok()
}

/// Unmaps `len` bytes. Does nothing if `len` is zero.
///
/// # Safety
/// Nobody may use the range afterwards.
unsafe fn unmap(start: *mut c_void, len: usize) {
    if len > 0 {
        // SAFETY: by this function's contract.
        let _ = unsafe { rustix::mm::munmap(start, len) };
    }
}

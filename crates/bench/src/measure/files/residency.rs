//! How much of a file is in the page cache, by `mincore(2)`. This is the only file with `unsafe`
//! code of this crate: no safe crate offers the call.
//!
//! The argument: a part of the file is mapped without any access to its pages, so that it does not
//! matter if the file is changed or truncated meanwhile: nothing is ever read through the map. The
//! map's address is only passed to `mincore`, which writes one byte for each page of the given
//! range into a vector that has exactly that length, and to `munmap`, once, before the address is
//! forgotten.
//!
//! Since Linux 5.2, `mincore` calls all pages cached if the process may neither write the file nor
//! own it. The files of a store are always the user's own.
//!
//! Threading: a pure function.

use std::fs::File;
use std::io;
use std::ops::Range;

/// Bytes of the file that are mapped at a time; a multiple of every page size.
#[cfg(target_os = "linux")]
const WINDOW_BYTES: u64 = 1 << 30;

/// The bytes of these ranges of the file that are in the page cache; `None` on other systems than
/// Linux.
///
/// # Errors
/// If the file cannot be mapped.
#[cfg(not(target_os = "linux"))]
pub(super) fn cached_bytes(_file: &File, _ranges: &[Range<u64>]) -> io::Result<Option<u64>> {
    Ok(None)
}

/// The bytes of these ranges of the file that are in the page cache; `None` on other systems than
/// Linux. The ranges ascend.
///
/// # Errors
/// If the file cannot be mapped.
#[cfg(target_os = "linux")]
pub(super) fn cached_bytes(file: &File, ranges: &[Range<u64>]) -> io::Result<Option<u64>> {
    let page_bytes = rustix::param::page_size() as u64;
    let (mut end, mut cached) = (0, 0);
    for range in ranges {
        // A block of the file system may be smaller than a page. A page counts once.
        let mut from = end.max(range.start / page_bytes * page_bytes);
        while from < range.end {
            let length = (range.end - from).min(WINDOW_BYTES);
            let pages = cached_pages(file, from, length, page_bytes)?;
            // The last page may reach beyond the end of the file.
            cached += (pages * page_bytes).min(length);
            from += length.next_multiple_of(page_bytes);
        }
        end = from;
    }
    Ok(Some(cached.min(super::extents::bytes_of(ranges))))
}

/// The pages of a range that are cached. `from` is a multiple of the page size, and `length` is not
/// 0.
#[cfg(target_os = "linux")]
fn cached_pages(file: &File, from: u64, length: u64, page_bytes: u64) -> io::Result<u64> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let too_large = |_| io::Error::other("the file is too large for this machine's addresses");
    let length_bytes = usize::try_from(length).map_err(too_large)?;
    let mut pages = vec![0u8; usize::try_from(length.div_ceil(page_bytes)).map_err(too_large)?];
    // SAFETY: the address is null, so the system chooses a free range, and no memory of this
    // process is replaced. Nothing is read or written through the map.
    let map = unsafe {
        let (protection, flags) = (ProtFlags::empty(), MapFlags::SHARED);
        mmap(
            std::ptr::null_mut(),
            length_bytes,
            protection,
            flags,
            file,
            from,
        )?
    };
    // SAFETY: `map` is a range of `length_bytes` bytes that begins at a page, and `pages` has one
    // byte for each of its pages, also for the last one if that is not full.
    let status = unsafe { libc::mincore(map, length_bytes, pages.as_mut_ptr()) };
    let error = io::Error::last_os_error();
    // SAFETY: this is the range that was mapped above, and nobody else knows its address.
    unsafe { munmap(map, length_bytes)? };
    if status != 0 {
        return Err(error);
    }
    // Only the lowest bit has a meaning.
    Ok(pages.iter().filter(|page| **page & 1 == 1).count() as u64)
}

//! The ranges of a file that are not holes.
//!
//! Linux finds them by `SEEK_DATA` and `SEEK_HOLE` of `lseek(2)`. A file system that does not know
//! its holes calls everything data, and so does this module on other systems. Space that is
//! reserved but not written counts as a hole.
//!
//! Threading: a pure function, but for the position of the file.

use std::fs::File;
use std::io;
use std::ops::Range;

/// The ranges with data of a file with `length` bytes, in ascending order. The position of the file
/// is moved.
///
/// # Errors
/// If the file cannot be read.
#[cfg(target_os = "linux")]
pub(super) fn data_ranges(file: &File, length: u64) -> io::Result<Vec<Range<u64>>> {
    use rustix::fs::{SeekFrom, seek};
    use rustix::io::Errno;
    let mut ranges = Vec::new();
    let mut from = 0;
    while from < length {
        let start = match seek(file, SeekFrom::Data(from)) {
            // Nothing but a hole is left, or the file was truncated meanwhile.
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return Ok(all_of(length)),
            found => found?,
        };
        let end = match seek(file, SeekFrom::Hole(start)) {
            Err(Errno::NXIO) => break,
            found => found?.min(length),
        };
        if start >= end {
            break;
        }
        ranges.push(start..end);
        from = end;
    }
    Ok(ranges)
}

/// The ranges with data of a file with `length` bytes: on this system, all of it.
///
/// # Errors
/// None.
#[cfg(not(target_os = "linux"))]
pub(super) fn data_ranges(_file: &File, length: u64) -> io::Result<Vec<Range<u64>>> {
    Ok(all_of(length))
}

fn all_of(length: u64) -> Vec<Range<u64>> {
    (length > 0).then_some(0..length).into_iter().collect()
}

/// The bytes of all ranges together.
pub(super) fn bytes_of(ranges: &[Range<u64>]) -> u64 {
    ranges.iter().map(|range| range.end - range.start).sum()
}

//! Bytes of tables that move between their files and the device, without memory of the host: the
//! transfer `direct`.
//!
//! The device reads and writes files that are open for direct I/O, and only whole multiples of
//! [`ALIGN_BYTES`]. Other files, files that the device refuses, and what is left at the end of a
//! range go through the ring of pinned buffers as with the transfer `pipeline`.
//!
//! Invariants: all work of the lane has passed when a transfer begins, and a transfer has ended
//! when its function returns. So kernels that are started before or after see what they should.
//! Before a read the memory is filled with bytes that are no blocks, so a transfer that moves
//! nothing is found as one that moves wrong bytes is: memory of a lane may hold sound blocks of an
//! earlier job.
//!
//! Threading: see `lane`. The counts are shared.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use siltstone_storage::{DirectFile, ReadFile};
use siltstone_table::assembly::TableAssembler;

use crate::device::{DeviceFile, TransferError};
use crate::error::{GpuError, Result};
use crate::kernels::Array;
use crate::lane::Work;

/// Offsets and lengths in files are multiples of this, which suits every disk that we know of.
pub(crate) const ALIGN_BYTES: u64 = 4096;

/// Bytes that no kernel takes for a block.
const NO_BLOCK: u8 = 0xff;

/// The bytes of one call of the device. Between two calls, a job that was cancelled ends.
const CALL_BYTES: u64 = 16 << 20;

/// What was moved in this way, and what could not be.
#[derive(Debug, Default)]
pub(crate) struct DirectCounts {
    pub read_bytes: AtomicU64,
    pub written_bytes: AtomicU64,
    /// Files that the device could not open.
    pub refused_files: AtomicU64,
    /// Pieces that were read a second time, through memory of the host, because of what the device
    /// found in their blocks.
    pub repeated_pieces: AtomicU64,
}

/// Whether a file is open for direct I/O, with an alignment that suits transfers.
pub(crate) fn is_open(file: &dyn ReadFile) -> Result<bool> {
    let mut suits = false;
    let is_direct = file.read_by_descriptor(&mut |file| {
        suits = file.alignment > 0 && ALIGN_BYTES.is_multiple_of(file.alignment);
        Ok(())
    })?;
    Ok(is_direct && suits)
}

/// Moves `len` bytes in calls of a bounded size: `call` gets the part. An error that is not the
/// file's is put into `other`; the one that is returned then only ends the storage's call.
fn move_all(
    len: u64,
    other: &mut Option<GpuError>,
    mut call: impl FnMut(Range<u64>) -> std::result::Result<(), TransferError>,
    mut spend: impl FnMut(u64) -> Result<()>,
) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        let part = done..len.min(done + CALL_BYTES);
        done = part.end;
        let bytes = part.end - part.start;
        let moved = match call(part) {
            Ok(()) => spend(bytes),
            Err(TransferError::File(error)) => return Err(error),
            Err(TransferError::Device(error)) => Err(error.into()),
        };
        if let Err(error) = moved {
            *other = Some(error);
            return Err(io::Error::other("a direct transfer was given up"));
        }
    }
    Ok(())
}

/// Opens a file on the device. A file that it refuses goes through the host.
fn open<'a>(work: &'a Work, file: DirectFile<'a>) -> Option<Box<dyn DeviceFile + 'a>> {
    match work.lane.device().open_file(file) {
        Ok(opened) => Some(opened),
        Err(error) => {
            let refused = &work.lane.direct_counts().refused_files;
            refused.fetch_add(1, Ordering::Relaxed);
            let ctx = &work.ctx;
            ctx.remark(&format!("no direct transfer of a file: {error}"));
            None
        }
    }
}

/// Fills an array from a range of a file for which [`is_open`] is true. The borders of the range
/// are multiples of [`ALIGN_BYTES`]. `spend` is called with the number of bytes after each call of
/// the device. Returns false if the device refuses the file.
pub(crate) fn read(
    work: &mut Work,
    file: &dyn ReadFile,
    range: Range<u64>,
    to: Array<u8>,
    mut spend: impl FnMut(&Work, u64) -> Result<()>,
) -> Result<bool> {
    work.fill(to, NO_BLOCK)?;
    work.wait()?;
    let work = &*work;
    let len = range.end - range.start;
    let (mut other, mut is_opened) = (None, false);
    let read = file.read_by_descriptor(&mut |file| {
        let Some(mut opened) = open(work, file) else {
            return Ok(());
        };
        is_opened = true;
        let call = |part: Range<u64>| {
            let to = to.part(part.start, part.end - part.start);
            opened.read(to.region(), range.start + part.start)
        };
        move_all(len, &mut other, call, |bytes| spend(work, bytes))
    });
    if let Some(error) = other {
        return Err(error);
    }
    let is_moved = read? && is_opened;
    if is_moved {
        let counts = work.lane.direct_counts();
        counts.read_bytes.fetch_add(len, Ordering::Relaxed);
    }
    Ok(is_moved)
}

/// Appends the beginning of an array to a table. Returns the number of bytes, which is 0 if the
/// table's file is not open for direct I/O, or if the device refuses it.
pub(crate) fn append(work: &mut Work, from: Array<u8>, table: &mut TableAssembler) -> Result<u64> {
    let len = from.count() / ALIGN_BYTES * ALIGN_BYTES;
    if len == 0 {
        return Ok(0);
    }
    work.wait()?;
    let work = &*work;
    let mut other = None;
    let appended = table.append_by_descriptor(len, &mut |file, offset| {
        let suits = file.alignment > 0 && ALIGN_BYTES.is_multiple_of(file.alignment);
        let Some(mut opened) = suits.then(|| open(work, file)).flatten() else {
            return Ok(false);
        };
        let call = |part: Range<u64>| {
            let from = from.part(part.start, part.end - part.start);
            opened.write(from.region(), offset + part.start)
        };
        let moved = move_all(len, &mut other, call, |bytes| {
            work.ctx.progress.beat();
            work.spend(bytes)
        });
        moved.map(|()| true)
    });
    if let Some(error) = other {
        return Err(error);
    }
    let done = match appended? {
        true => len,
        false => 0,
    };
    let counts = work.lane.direct_counts();
    counts.written_bytes.fetch_add(done, Ordering::Relaxed);
    Ok(done)
}

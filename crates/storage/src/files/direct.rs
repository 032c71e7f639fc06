//! Files that are read and written past the page cache.
//!
//! The reader and the writer use descriptors with `O_DIRECT`. The kernel then moves bytes directly
//! between the device and the caller's memory, so offset, length and address must be multiples of
//! an alignment. The file system reports it (`statx`, since Linux 6.1); otherwise 4096 is used. A
//! read fetches the aligned range around the wanted bytes. A writer collects appends in one aligned
//! buffer; a sync writes the unaligned tail as a padded block and truncates the file to its length.
//! Large appends of aligned memory at an aligned position are written without a copy. Bytes that
//! are not in the host's memory can be moved by whoever gets the descriptor.
//!
//! Invariants: a reader never sees bytes beyond the file's length. The bytes that a successful sync
//! covered are in the file, at their offset, and on the device. Appended bytes that were not synced
//! may be in the buffer only. Unlike those of other files they do not survive a kill of the
//! process, so only files that nothing refers to before their sync (tables) are written this way.
//! After a failed write the file accepts no further appends.
//!
//! Threading: as for all files. One mutex serialises the writers.

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::storage::{DirectFile, ReadByDescriptor, ReadFile, WriteByDescriptor, WriteFile};

/// An alignment, in bytes, that suits every block device and file system that we know of.
const USUAL_ALIGNMENT: usize = 4096;

/// No file system requires more than this. A larger answer is not trusted.
const ALIGNMENT_MAX: usize = 1 << 20;

/// The size of a writer's buffer in bytes. It makes few calls, each large enough to keep a device
/// busy.
const BUFFER_BYTES: usize = 1 << 20;

/// Shorter parts are collected in the buffer although they could be written as they are: a device
/// takes few large writes in less time than many small ones.
const UNCOPIED_BYTES_MIN: usize = 256 << 10;

/// The alignment of offsets, lengths and addresses, in bytes. `None` if this file does not support
/// direct I/O.
#[cfg(any(target_os = "linux", target_os = "android"))]
pub(super) fn alignment_of(file: &File) -> Option<usize> {
    use rustix::fs::{AtFlags, StatxFlags, statx};
    let Ok(stat) = statx(file, c"", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN) else {
        return Some(USUAL_ALIGNMENT);
    };
    if stat.stx_mask & StatxFlags::DIOALIGN.bits() == 0 {
        // This kernel or file system does not report the alignment.
        return Some(USUAL_ALIGNMENT);
    }
    let reported = stat.stx_dio_mem_align.max(stat.stx_dio_offset_align) as usize;
    (stat.stx_dio_offset_align > 0 && reported.is_power_of_two() && reported <= ALIGNMENT_MAX)
        .then_some(reported.max(512))
}

/// The alignment of offsets, lengths and addresses, in bytes. `None` if this file does not support
/// direct I/O.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
pub(super) fn alignment_of(_: &File) -> Option<usize> {
    None
}

/// Heap memory whose address is a multiple of an alignment.
struct Aligned {
    bytes: Vec<u8>,
    /// The index of the first aligned byte.
    start: usize,
}

impl Aligned {
    fn zeroed(len: usize, alignment: usize) -> Aligned {
        let bytes = vec![0; len + alignment];
        let start = bytes.as_ptr().align_offset(alignment).min(alignment);
        Aligned { bytes, start }
    }

    fn get(&self, len: usize) -> &[u8] {
        &self.bytes[self.start..self.start + len]
    }

    fn get_mut(&mut self, len: usize) -> &mut [u8] {
        &mut self.bytes[self.start..self.start + len]
    }
}

pub(super) struct DirectReader {
    name: String,
    shown: String,
    file: File,
    len: u64,
    alignment: usize,
}

impl DirectReader {
    pub(super) fn new(
        name: &str,
        shown: String,
        file: File,
        alignment: usize,
    ) -> Result<DirectReader> {
        let len = file
            .metadata()
            .map_err(|e| StorageError::from_io("open", &shown, &e))?
            .len();
        Ok(DirectReader {
            name: name.to_owned(),
            shown,
            file,
            len,
            alignment,
        })
    }

    /// Fills `buf` from an aligned offset until it has `wanted` bytes or the file ends. Returns how
    /// many it has.
    fn fill(&self, buf: &mut [u8], offset: u64, wanted: usize) -> io::Result<usize> {
        let mut done = 0;
        while done < wanted {
            match self.file.read_at(&mut buf[done..], offset + done as u64) {
                Ok(0) => break,
                // An unaligned length means that the file ends here.
                Ok(n) if !n.is_multiple_of(self.alignment) => {
                    done += n;
                    break;
                }
                Ok(n) => done += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(done)
    }
}

impl ReadFile for DirectReader {
    fn name(&self) -> &str {
        &self.name
    }

    fn len(&self) -> u64 {
        self.len
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()> {
        if buf.is_empty() {
            return Ok(());
        }
        let len = buf.len();
        let fail = |e: &io::Error| StorageError::from_io("read", &self.shown, e).at(offset);
        let ends_early = || {
            let detail = format!("wanted {len} bytes, the file has {}", self.len);
            StorageError::new(StorageErrorKind::UnexpectedEof, "read", &self.shown, detail)
                .at(offset)
        };
        let alignment = self.alignment as u64;
        let from = offset / alignment * alignment;
        let to = offset
            .checked_add(buf.len() as u64)
            .and_then(|end| end.checked_next_multiple_of(alignment));
        let Some(all) = to.and_then(|to| usize::try_from(to - from).ok()) else {
            return Err(ends_early());
        };
        let before = (offset - from) as usize;
        let wanted = before + buf.len();
        let is_aligned = (buf.as_ptr() as usize).is_multiple_of(self.alignment);
        if is_aligned && before == 0 && all == buf.len() {
            return match self.fill(buf, from, wanted) {
                Ok(done) if done >= wanted => Ok(()),
                Ok(_) => Err(ends_early()),
                Err(e) => Err(fail(&e)),
            };
        }
        let mut around = Aligned::zeroed(all, self.alignment);
        let around = around.get_mut(all);
        let done = self.fill(around, from, wanted).map_err(|e| fail(&e))?;
        if done < wanted {
            return Err(ends_early());
        }
        buf.copy_from_slice(&around[before..wanted]);
        Ok(())
    }

    fn read_by_descriptor(&self, read: &mut ReadByDescriptor<'_>) -> Result<bool> {
        let file = DirectFile {
            descriptor: self.file.as_fd(),
            alignment: self.alignment as u64,
        };
        read(file).map_err(|e| StorageError::from_io("read", &self.shown, &e))?;
        Ok(true)
    }
}

struct Writing {
    buffer: Aligned,
    /// The aligned file offset of the buffer's first byte.
    at: u64,
    /// Bytes in the buffer.
    filled: usize,
    /// A write or a sync failed.
    failed: bool,
}

pub(super) struct DirectWriter {
    name: String,
    shown: String,
    file: File,
    alignment: usize,
    writing: Mutex<Writing>,
    position: AtomicU64,
    /// The length, including reserved space.
    len: AtomicU64,
}

impl DirectWriter {
    /// A writer for the new, empty file `file`.
    pub(super) fn new(name: &str, shown: String, file: File, alignment: usize) -> DirectWriter {
        DirectWriter {
            name: name.to_owned(),
            shown,
            file,
            alignment,
            writing: Mutex::new(Writing {
                buffer: Aligned::zeroed(BUFFER_BYTES.max(alignment), alignment),
                at: 0,
                filled: 0,
                failed: false,
            }),
            position: AtomicU64::new(0),
            len: AtomicU64::new(0),
        }
    }

    fn writing(&self, op: &'static str) -> Result<MutexGuard<'_, Writing>> {
        let writing = self.writing.lock().unwrap_or_else(|e| e.into_inner());
        if writing.failed {
            return Err(StorageError::new(
                StorageErrorKind::Io,
                op,
                &self.shown,
                "an earlier write or sync of this file failed; the bytes that it covered are lost, \
                 and another one cannot save them",
            ));
        }
        Ok(writing)
    }

    /// Writes the first `len` bytes of the buffer (a multiple of the alignment) at their offset.
    fn write_out(&self, writing: &Writing, len: usize) -> io::Result<()> {
        self.file.write_all_at(writing.buffer.get(len), writing.at)
    }

    fn capacity(&self) -> usize {
        BUFFER_BYTES.max(self.alignment)
    }

    /// Writes what is in the buffer, which must be a multiple of the alignment.
    fn empty_buffer(&self, writing: &mut Writing) -> io::Result<()> {
        if writing.filled > 0 {
            self.write_out(writing, writing.filled)?;
            writing.at += writing.filled as u64;
            writing.filled = 0;
        }
        Ok(())
    }

    /// Writes the begin of a part without copying it, if that is possible. Returns the number of
    /// bytes that were written.
    fn write_uncopied(&self, writing: &mut Writing, part: &[u8]) -> io::Result<usize> {
        let whole = part.len() / self.alignment * self.alignment;
        let is_aligned = (part.as_ptr() as usize).is_multiple_of(self.alignment)
            && writing.filled.is_multiple_of(self.alignment);
        if whole < UNCOPIED_BYTES_MIN || !is_aligned {
            return Ok(0);
        }
        self.empty_buffer(writing)?;
        self.file.write_all_at(&part[..whole], writing.at)?;
        writing.at += whole as u64;
        Ok(whole)
    }

    /// Takes one part: writes what need not be copied, copies what is left into the buffer, and
    /// writes the buffer whenever it is full.
    fn take(&self, writing: &mut Writing, part: &[u8]) -> io::Result<()> {
        let capacity = self.capacity();
        let mut part = &part[self.write_uncopied(writing, part)?..];
        while !part.is_empty() {
            let n = part.len().min(capacity - writing.filled);
            let filled = writing.filled;
            writing.buffer.get_mut(filled + n)[filled..].copy_from_slice(&part[..n]);
            writing.filled += n;
            part = &part[n..];
            if writing.filled == capacity {
                self.write_out(writing, capacity)?;
                writing.at += capacity as u64;
                writing.filled = 0;
            }
        }
        Ok(())
    }

    /// Writes the buffer's bytes, with its unaligned tail as a padded block, and sets the file's
    /// length. The tail stays in the buffer.
    fn write_tail(&self, writing: &mut Writing) -> io::Result<()> {
        let filled = writing.filled;
        let padded = filled.next_multiple_of(self.alignment);
        if padded > 0 {
            writing.buffer.get_mut(padded)[filled..].fill(0);
            self.write_out(writing, padded)?;
        }
        self.file.set_len(self.len.load(Ordering::Acquire))?;
        let whole = filled / self.alignment * self.alignment;
        writing.buffer.get_mut(filled).copy_within(whole.., 0);
        writing.at += whole as u64;
        writing.filled = filled - whole;
        Ok(())
    }
}

impl WriteFile for DirectWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut writing = self.writing("append")?;
        let position = self.position.load(Ordering::Acquire);
        for part in parts {
            if let Err(e) = self.take(&mut writing, part) {
                writing.failed = true;
                return Err(StorageError::from_io("append", &self.shown, &e).at(writing.at));
            }
        }
        let end = position + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        self.position.store(end, Ordering::Release);
        self.len.fetch_max(end, Ordering::AcqRel);
        Ok(())
    }

    fn append_by_descriptor(&self, len: u64, write: &mut WriteByDescriptor<'_>) -> Result<bool> {
        let mut writing = self.writing("append")?;
        let alignment = self.alignment as u64;
        let position = self.position.load(Ordering::Acquire);
        if !position.is_multiple_of(alignment) || !len.is_multiple_of(alignment) {
            return Ok(false);
        }
        let file = DirectFile {
            descriptor: self.file.as_fd(),
            alignment,
        };
        let written = self
            .empty_buffer(&mut writing)
            .and_then(|()| write(file, position));
        match written {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(e) => {
                writing.failed = true;
                return Err(StorageError::from_io("append", &self.shown, &e).at(position));
            }
        }
        let end = position + len;
        writing.at = end;
        self.position.store(end, Ordering::Release);
        self.len.fetch_max(end, Ordering::AcqRel);
        Ok(true)
    }

    /// Blocks are allocated and read as zeros. Unlike those of other files, they are not written
    /// before something is appended.
    fn reserve(&self, len: u64) -> Result<()> {
        let _writing = self.writing("reserve")?;
        let old = self.len.load(Ordering::Acquire);
        if len <= old {
            return Ok(());
        }
        #[cfg(any(target_os = "linux", target_os = "android"))]
        let allocated = loop {
            let flags = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&self.file, flags, old, len - old) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
                    break self.file.set_len(len);
                }
                result => break result.map_err(io::Error::from),
            }
        };
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let allocated = self.file.set_len(len);
        if let Err(e) = allocated {
            let _ = self.file.set_len(old);
            return Err(StorageError::from_io("reserve", &self.shown, &e).at(old));
        }
        self.len.fetch_max(len, Ordering::AcqRel);
        Ok(())
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn buffer_bytes(&self) -> u64 {
        (self.capacity() + self.alignment) as u64
    }

    fn sync(&self) -> Result<()> {
        let mut writing = self.writing("sync")?;
        let synced = self
            .write_tail(&mut writing)
            .and_then(|()| self.file.sync_data());
        synced.map_err(|e| {
            writing.failed = true;
            StorageError::from_io("sync", &self.shown, &e)
        })
    }

    fn truncate_to_position(&self) -> Result<()> {
        let _writing = self.writing("truncate_to_position")?;
        let position = self.position.load(Ordering::Acquire);
        self.file.set_len(position).map_err(|e| {
            StorageError::from_io("truncate_to_position", &self.shown, &e).at(position)
        })?;
        self.len.store(position, Ordering::Release);
        Ok(())
    }
}

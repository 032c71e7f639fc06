//! A file being written: appends at its position, reserved space, and an explicit sync.
//!
//! Small appends into reserved space that are not synced one by one are stored through a map of it
//! (`write_map`).

use std::fs::File;
use std::io;
#[cfg(any(target_os = "linux", target_os = "android"))]
use std::io::IoSlice;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

#[cfg(any(target_os = "linux", target_os = "android"))]
use super::write_map::WriteMap;
use crate::error::{Result, StorageError, StorageErrorKind};
use crate::storage::{InjectedFault, WriteFile};

/// The number of parts in one system call.
#[cfg(any(target_os = "linux", target_os = "android"))]
const PARTS_A_CALL: usize = 64;

/// Zeros are written in calls of this size. A call creates page cache folios of up to its own size,
/// and they stay. Larger folios cause fewer page faults when appends are stored through a map (64
/// KiB take about half the processor time for each page that 16 KiB take). But each `write` into a
/// large folio walks the state of all its blocks, which takes long from 1 MiB on. There are few
/// extents whatever the size, because `fallocate` makes them.
const ZEROS_BYTES: usize = 64 << 10;
/// Allocated space is brought into the page cache by reads of this size.
const READ_BYTES: usize = 1 << 20;
static ZEROS: [u8; ZEROS_BYTES] = [0; ZEROS_BYTES];

/// The number of appends since the last sync after which appends are stored through a map. If a
/// sync follows every few appends, the page faults after each sync cost more than the system calls.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAP_AFTER_APPENDS: u32 = 32;
/// Larger appends use a system call: their cost is the copy, not the call.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAP_APPEND_BYTES: usize = 16 << 10;
/// Shorter files are not worth a map.
#[cfg(any(target_os = "linux", target_os = "android"))]
const MAP_FILE_BYTES: u64 = 1 << 20;

/// State that only the task that moves the position touches.
#[derive(Default)]
struct Writing {
    /// The map of the reserved space. `None` if [`Writing::map_refused`] is set.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    map: Option<WriteMap>,
    /// The system could not map this file.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    map_refused: bool,
}

pub(super) struct FileWriter {
    name: String,
    /// The path as the user knows it, for messages.
    shown: String,
    file: File,
    /// Serialises the calls that move the position or change the length.
    writing: Mutex<Writing>,
    /// Appends since the last sync, counted up to [`MAP_AFTER_APPENDS`].
    unsynced_appends: AtomicU32,
    position: AtomicU64,
    len: AtomicU64,
    /// A sync failed. The kernel reports that only once, so this file repeats it for every later
    /// sync.
    sync_failed: AtomicBool,
}

impl FileWriter {
    /// A writer that overwrites `file`, whose length is `len`, from offset 0.
    pub(super) fn new(name: &str, shown: String, file: File, len: u64) -> FileWriter {
        FileWriter {
            name: name.to_owned(),
            shown,
            file,
            writing: Mutex::default(),
            unsynced_appends: AtomicU32::new(0),
            position: AtomicU64::new(0),
            len: AtomicU64::new(len),
            sync_failed: AtomicBool::new(false),
        }
    }

    /// The same writer at another position.
    pub(super) fn at_position(self, position: u64) -> FileWriter {
        self.position.store(position, Ordering::Relaxed);
        self
    }

    fn writing(&self) -> MutexGuard<'_, Writing> {
        self.writing.lock().unwrap_or_else(|e| e.into_inner())
    }

    fn error(&self, op: &'static str, error: &io::Error) -> StorageError {
        StorageError::from_io(op, &self.shown, error)
    }

    fn grown_to(&self, end: u64) {
        self.len.fetch_max(end, Ordering::AcqRel);
    }

    /// Stores a small append through the map. `None` if the append must use a system call.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn append_mapped(
        &self,
        writing: &mut Writing,
        parts: &[&[u8]],
        position: u64,
    ) -> Option<io::Result<u64>> {
        let appends = self.unsynced_appends.load(Ordering::Relaxed);
        if appends < MAP_AFTER_APPENDS {
            self.unsynced_appends.store(appends + 1, Ordering::Relaxed);
            return None;
        }
        let bytes: usize = parts.iter().map(|part| part.len()).sum();
        let len = self.len.load(Ordering::Relaxed);
        if bytes > MAP_APPEND_BYTES || position + bytes as u64 > len {
            return None;
        }
        if writing.map.is_none() {
            self.map_space(writing);
        }
        let map = writing.map.as_mut()?;
        let offset = usize::try_from(position).ok()?;
        if offset + bytes > map.len() {
            return None;
        }
        Some(map.store(parts, offset).map(|()| bytes as u64))
    }

    /// Maps the file's space, if it is worth it.
    #[cfg(any(target_os = "linux", target_os = "android"))]
    fn map_space(&self, writing: &mut Writing) {
        let len = self.len.load(Ordering::Relaxed);
        if writing.map_refused || len < MAP_FILE_BYTES {
            return;
        }
        let map = usize::try_from(len)
            .ok()
            .and_then(|len| WriteMap::new(&self.file, len).ok());
        writing.map_refused = map.is_none();
        writing.map = map;
    }

    /// Allocates the blocks of the space from `from` to `to`. Returns false if the file system
    /// cannot do this.
    fn allocate_blocks(&self, from: u64, to: u64) -> io::Result<bool> {
        #[cfg(any(target_os = "linux", target_os = "android"))]
        loop {
            let flags = rustix::fs::FallocateFlags::empty();
            match rustix::fs::fallocate(&self.file, flags, from, to - from) {
                Err(rustix::io::Errno::INTR) => {}
                Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => return Ok(false),
                Err(e) => return Err(e.into()),
                Ok(()) => return Ok(true),
            }
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        {
            let _ = (from, to);
            Ok(false)
        }
    }

    /// Reserves the space up to `len`, without writing zeros to it if `allocated_is_enough`.
    /// Returns whether zeros were written. The caller holds the lock.
    fn make_space(&self, len: u64, allocated_is_enough: bool) -> Result<bool> {
        let old = self.len.load(Ordering::Acquire);
        if len <= old {
            return Ok(false);
        }
        let mut at = old;
        // Blocks are allocated first: that gives few extents, and a full disk shows before anything
        // is written.
        let made = self.allocate_blocks(old, len).and_then(|is_allocated| {
            if is_allocated && allocated_is_enough {
                self.bring_in(old, len)?;
                return Ok(false);
            }
            while at < len {
                let n = usize::try_from(len - at)
                    .unwrap_or(ZEROS_BYTES)
                    .min(ZEROS_BYTES);
                self.file.write_all_at(&ZEROS[..n], at)?;
                at += n as u64;
            }
            Ok(true)
        });
        match made {
            Ok(written) => {
                self.grown_to(len);
                Ok(written)
            }
            Err(e) => {
                // Release the space, so that the file is as before and others can use it.
                let _ = self.file.set_len(old);
                Err(self.error("reserve", &e).at(at))
            }
        }
    }

    /// As [`FileWriter::make_space`], and maps the space.
    fn make_mapped_space(&self, len: u64, allocated_is_enough: bool) -> Result<bool> {
        #[cfg_attr(not(any(target_os = "linux", target_os = "android")), expect(unused))]
        let mut writing = self.writing();
        let written = self.make_space(len, allocated_is_enough)?;
        // The space is mapped now, because this call is made in the background, and an append that
        // maps it may have to wait for other threads.
        #[cfg(any(target_os = "linux", target_os = "android"))]
        {
            writing.map = None;
            self.map_space(&mut writing);
        }
        Ok(written)
    }

    /// Brings allocated space into the page cache, whose pages are then zeros that need not be
    /// written back. Appends that are stored through a map fault them in far more cheaply than
    /// pages that do not exist yet.
    fn bring_in(&self, from: u64, to: u64) -> io::Result<()> {
        let mut buffer = vec![0; READ_BYTES];
        let mut at = from;
        while at < to {
            let wanted = usize::try_from(to - at).unwrap_or(READ_BYTES);
            match self.file.read_at(&mut buffer[..wanted.min(READ_BYTES)], at) {
                // The file was made shorter by somebody else.
                Ok(0) => break,
                Ok(n) => at += n as u64,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    /// Writes all of `parts` at `offset`. An error carries the number of bytes that were written.
    fn write_parts(
        &self,
        parts: &[&[u8]],
        offset: u64,
    ) -> std::result::Result<u64, (u64, io::Error)> {
        let mut done = 0u64;
        let mut part = 0;
        let mut skip = 0; // bytes of `parts[part]` that are written already
        while part < parts.len() {
            if parts[part].len() == skip {
                part += 1;
                skip = 0;
                continue;
            }
            let at = offset + done;
            match self.write_some(&parts[part..], skip, at) {
                Ok(0) => return Err((done, io::Error::from(io::ErrorKind::WriteZero))),
                Ok(mut n) => {
                    done += n as u64;
                    while n > 0 {
                        let rest = parts[part].len() - skip;
                        if n < rest {
                            skip += n;
                            break;
                        }
                        n -= rest;
                        part += 1;
                        skip = 0;
                    }
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err((done, e)),
            }
        }
        Ok(done)
    }

    /// Makes one system call. The first `skip` bytes of the first part are left out.
    fn write_some(&self, parts: &[&[u8]], skip: usize, offset: u64) -> io::Result<usize> {
        let first = &parts[0][skip..];
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if parts.len() > 1 {
            let mut slices: [IoSlice<'_>; PARTS_A_CALL] =
                std::array::from_fn(|_| IoSlice::new(&[]));
            let count = parts.len().min(PARTS_A_CALL);
            slices[0] = IoSlice::new(first);
            for (slice, part) in slices[1..].iter_mut().zip(&parts[1..count]) {
                *slice = IoSlice::new(part);
            }
            return Ok(rustix::io::pwritev(&self.file, &slices[..count], offset)?);
        }
        self.file.write_at(first, offset)
    }
}

impl WriteFile for FileWriter {
    fn name(&self) -> &str {
        &self.name
    }

    fn position(&self) -> u64 {
        self.position.load(Ordering::Acquire)
    }

    fn append(&self, parts: &[&[u8]]) -> Result<()> {
        let mut writing = self.writing();
        let position = self.position.load(Ordering::Acquire);
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(stored) = self.append_mapped(&mut writing, parts, position) {
            let done = stored.map_err(|e| self.error("append", &e).at(position))?;
            self.position.store(position + done, Ordering::Release);
            return Ok(());
        }
        #[cfg(not(any(target_os = "linux", target_os = "android")))]
        let _ = &mut writing;
        match self.write_parts(parts, position) {
            Ok(done) => {
                self.grown_to(position + done);
                self.position.store(position + done, Ordering::Release);
                Ok(())
            }
            Err((done, e)) => {
                self.grown_to(position + done);
                Err(self.error("append", &e).at(position + done))
            }
        }
    }

    fn reserve(&self, len: u64) -> Result<()> {
        self.make_mapped_space(len, false).map(drop)
    }

    fn allocate(&self, len: u64) -> Result<bool> {
        self.make_mapped_space(len, true)
    }

    fn len(&self) -> u64 {
        self.len.load(Ordering::Acquire)
    }

    fn sync(&self) -> Result<()> {
        if self.sync_failed.load(Ordering::Acquire) {
            return Err(StorageError::new(
                StorageErrorKind::Io,
                "sync",
                &self.shown,
                "an earlier sync of this file failed; the bytes that it covered are lost, and \
                 another sync cannot save them",
            ));
        }
        self.unsynced_appends.store(0, Ordering::Relaxed);
        // Writing mapped pages back is dear (see `write_map`).
        #[cfg(any(target_os = "linux", target_os = "android"))]
        if let Some(map) = &mut self.writing().map {
            let position = self.position.load(Ordering::Acquire);
            map.leave(usize::try_from(position).unwrap_or(usize::MAX));
        }
        self.file.sync_data().map_err(|e| {
            self.sync_failed.store(true, Ordering::Release);
            self.error("sync", &e)
        })
    }

    #[cfg(target_os = "linux")]
    #[allow(unsafe_code)]
    fn start_writeback(&self, from: u64, len: u64) {
        use std::os::fd::AsRawFd;
        let (Ok(from), Ok(len)) = (i64::try_from(from), i64::try_from(len)) else {
            return;
        };
        // A length of 0 would mean "to the end of the file".
        if len > 0 {
            // SAFETY: the descriptor is valid, and the call touches no memory of ours. Its errors
            // do not consume the error that the next sync reports.
            unsafe {
                libc::sync_file_range(
                    self.file.as_raw_fd(),
                    from,
                    len,
                    libc::SYNC_FILE_RANGE_WRITE,
                )
            };
        }
    }

    fn truncate_to_position(&self) -> Result<()> {
        let mut writing = self.writing();
        // Nothing may be stored beyond the new end.
        *writing = Writing::default();
        let position = self.position.load(Ordering::Acquire);
        self.file
            .set_len(position)
            .map_err(|e| self.error("truncate_to_position", &e).at(position))?;
        self.len.store(position, Ordering::Release);
        Ok(())
    }

    fn inject(&self, fault: InjectedFault<'_>) -> bool {
        match fault {
            // The kernel's page cache cannot be told to forget.
            InjectedFault::LoseUnsynced => false,
            InjectedFault::ShortAppend { parts, keep_bytes } => {
                let _writing = self.writing();
                let position = self.position.load(Ordering::Acquire);
                let mut left = keep_bytes;
                let kept: Vec<&[u8]> = parts
                    .iter()
                    .map(|part| {
                        let n = usize::try_from(left).unwrap_or(usize::MAX).min(part.len());
                        left -= n as u64;
                        &part[..n]
                    })
                    .collect();
                let done = match self.write_parts(&kept, position) {
                    Ok(done) | Err((done, _)) => done,
                };
                self.grown_to(position + done);
                true
            }
        }
    }
}

/// Makes a write beyond the process's limit of file sizes (`ulimit -f`) fail with
/// [`StorageErrorKind::FileTooLarge`], which is treated as a full disk. Otherwise the kernel's
/// SIGXFSZ ends the process. Programs call this when they start: a library must not change how its
/// process handles signals.
#[allow(unsafe_code)]
pub fn ignore_file_size_signal() {
    // SAFETY: ignoring a signal runs no code of ours and touches nothing else.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
}

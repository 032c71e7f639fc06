//! Arenas: the memory of memtables. It is faulted in once, and reused as a whole.
//!
//! Faulting in 64 MiB takes 5 to 300 ms, so a store does it once for each arena that it needs at
//! the same time, not once for each memtable, and in the background. A writer that needs an arena
//! before one is prepared gets its pages as it writes. When its memtable is dropped, an arena goes
//! back to its pool; the pool keeps a fixed number and returns the others to the system. Nothing
//! here blocks or makes a storage call, so this may happen in a destructor, on any thread: the
//! pool's shelf is an array of atomic pointers.

use std::io;
use std::ptr::NonNull;
use std::sync::Arc;
use std::sync::atomic::{AtomicPtr, AtomicU64, AtomicUsize, Ordering};

/// The largest arena, in bytes, that 32-bit offsets in units of 8 bytes can address.
pub const MAX_ARENA_BYTES: usize = (u32::MAX as usize) * 8;
/// The smallest arena, in bytes.
pub const MIN_ARENA_BYTES: usize = 16 << 10;
const PAGE_BYTES: usize = 4096;
#[cfg(all(target_os = "linux", not(miri)))]
const HUGE_PAGE_BYTES: usize = 2 << 20;
/// Room for the first nodes before the filter, for which no huge pages are wanted.
#[cfg(all(target_os = "linux", not(miri)))]
const NODES_IN_SMALL_PAGES_BYTES: usize = 64 << 10;
/// The maximum number of arenas that a pool keeps for reuse.
const SHELF_COUNT: usize = 16;

/// The failure to get an arena.
#[derive(Debug, thiserror::Error)]
pub enum ArenaError {
    /// The size is more than 32-bit offsets can reach.
    #[error(
        "a memtable of {wanted_bytes} bytes was asked for, but one holds at most \
         {MAX_ARENA_BYTES}: split the batch"
    )]
    TooLarge {
        /// The size that was asked for.
        wanted_bytes: usize,
    },
    /// The system gave no memory.
    #[error(
        "the system gave no {wanted_bytes} bytes of memory for a memtable ({source}): lower the \
         memtable size or free memory"
    )]
    NoMemory {
        /// The size that was asked for.
        wanted_bytes: usize,
        /// The system's error.
        source: io::Error,
    },
}

/// How the pages of a new arena are brought into memory.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Pages {
    /// All pages, before the arena is used.
    AtOnce,
    /// Each page when it is first written.
    AsWritten,
    /// Each page when it is first written, without huge pages at either end.
    Sparse,
}

/// Keeps arenas of one size for reuse. A clone is another handle to the same pool.
#[derive(Clone)]
pub struct ArenaPool {
    shared: Arc<Shared>,
}

struct Shared {
    arena_bytes: usize,
    keep_count: usize,
    prefault: bool,
    shelf: [AtomicPtr<u8>; SHELF_COUNT],
    held_bytes: AtomicU64,
    /// The part of `held_bytes` that belongs to arenas of `Pages::Sparse`.
    sparse_bytes: AtomicU64,
    /// New arenas of at least this size are refused, as on a system without memory. Only tests set
    /// it.
    refuse_from_bytes: AtomicUsize,
}

/// The memory of one memtable. Dropping it returns it to its pool.
pub struct Arena {
    start: NonNull<u8>,
    bytes: usize,
    /// Whether another memtable used it before, so it may have bytes other than zero.
    used: bool,
    /// Whether its pages are of `Pages::Sparse`, for a memtable that may stay small.
    sparse: bool,
    pool: Arc<Shared>,
}

// SAFETY: an arena owns its memory, and only hands out a raw pointer to it.
unsafe impl Send for Arena {}
// SAFETY: as above; nothing in it changes while it is shared.
unsafe impl Sync for Arena {}

impl ArenaPool {
    /// A pool of arenas of `arena_bytes` (rounded up to whole pages) that keeps up to `keep_count`
    /// unused ones (at most 16). With `prefault`, [`ArenaPool::prepare`] brings in all pages of a
    /// new arena at once, which takes milliseconds. Otherwise they come one by one as the memtable
    /// grows.
    pub fn new(arena_bytes: usize, keep_count: usize, prefault: bool) -> ArenaPool {
        let arena_bytes = arena_bytes
            .clamp(MIN_ARENA_BYTES, MAX_ARENA_BYTES - PAGE_BYTES)
            .next_multiple_of(PAGE_BYTES);
        ArenaPool {
            shared: Arc::new(Shared {
                arena_bytes,
                keep_count: keep_count.min(SHELF_COUNT),
                prefault,
                shelf: [const { AtomicPtr::new(std::ptr::null_mut()) }; SHELF_COUNT],
                held_bytes: AtomicU64::new(0),
                sparse_bytes: AtomicU64::new(0),
                refuse_from_bytes: AtomicUsize::new(usize::MAX),
            }),
        }
    }

    /// A kept arena, or a new one. If `min_bytes` is more than the size of the pool's arenas, a new
    /// one of that size. The pages of a new one come in as they are written, so that the caller,
    /// who is a writer, waits for two megabytes at a time at most.
    pub fn take(&self, min_bytes: usize) -> Result<Arena, ArenaError> {
        let shared = &self.shared;
        if min_bytes > shared.arena_bytes {
            return self.map(min_bytes, Pages::AsWritten);
        }
        for place in &shared.shelf[..shared.keep_count] {
            // Acquire: the last user's writes come before the next user's writes.
            if let Some(start) = NonNull::new(place.swap(std::ptr::null_mut(), Ordering::Acquire)) {
                return Ok(Arena {
                    start,
                    bytes: shared.arena_bytes,
                    used: true,
                    sparse: false,
                    pool: shared.clone(),
                });
            }
        }
        self.map(shared.arena_bytes, Pages::AsWritten)
    }

    /// A new arena whose pages come in one by one as they are written, with small pages at both
    /// ends. It is for memtables that may stay small, such as the first ones of keyspaces, of which
    /// there may be thousands. It never comes from the shelf, whose arenas are in memory as a
    /// whole, and never goes there.
    pub fn take_lazily(&self, min_bytes: usize) -> Result<Arena, ArenaError> {
        let pages = match min_bytes > self.shared.arena_bytes {
            // It is made for a batch that fills it.
            true => Pages::AsWritten,
            false => Pages::Sparse,
        };
        self.map(min_bytes.max(self.shared.arena_bytes), pages)
    }

    /// A new arena of this size, whatever that of the pool's arenas is. Its pages come in as they
    /// are written, and it never goes to the shelf.
    pub(crate) fn take_exactly(&self, bytes: usize) -> Result<Arena, ArenaError> {
        self.map(bytes.max(MIN_ARENA_BYTES), Pages::Sparse)
    }

    /// A new arena of this size, rounded up to whole pages.
    fn map(&self, bytes: usize, pages: Pages) -> Result<Arena, ArenaError> {
        let shared = &self.shared;
        if bytes > MAX_ARENA_BYTES - PAGE_BYTES {
            return Err(ArenaError::TooLarge {
                wanted_bytes: bytes,
            });
        }
        let bytes = bytes.next_multiple_of(PAGE_BYTES);
        let refused = bytes >= shared.refuse_from_bytes.load(Ordering::Relaxed);
        let mapped = if refused {
            Err(io::ErrorKind::OutOfMemory.into())
        } else {
            map(bytes, pages)
        };
        let start = mapped.map_err(|source| ArenaError::NoMemory {
            wanted_bytes: bytes,
            source,
        })?;
        shared.held_bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        if pages == Pages::Sparse {
            shared
                .sparse_bytes
                .fetch_add(bytes as u64, Ordering::Relaxed);
        }
        Ok(Arena {
            start,
            bytes,
            used: false,
            sparse: pages == Pages::Sparse,
            pool: shared.clone(),
        })
    }

    /// Makes sure that `wanted` arenas are kept for the next calls of [`ArenaPool::take`], so that
    /// they need not fault any in. A background task calls this.
    ///
    /// # Errors
    /// Those of [`ArenaPool::take`].
    pub fn prepare(&self, wanted: usize) -> Result<(), ArenaError> {
        let shared = &self.shared;
        let kept = |place: &&AtomicPtr<u8>| !place.load(Ordering::Relaxed).is_null();
        let shelf = &shared.shelf[..shared.keep_count];
        let missing = wanted
            .min(shelf.len())
            .saturating_sub(shelf.iter().filter(kept).count());
        let pages = match shared.prefault {
            true => Pages::AtOnce,
            false => Pages::AsWritten,
        };
        for _ in 0..missing {
            // When it is dropped, it goes to the shelf.
            self.map(shared.arena_bytes, pages).map(drop)?;
        }
        Ok(())
    }

    /// Whether an arena is kept for the next [`ArenaPool::take`].
    pub fn has_kept(&self) -> bool {
        let shelf = &self.shared.shelf[..self.shared.keep_count];
        shelf
            .iter()
            .any(|place| !place.load(Ordering::Relaxed).is_null())
    }

    /// Refuses new arenas of at least this size, as a system without memory would. For tests.
    pub(crate) fn refuse_from(&self, bytes: usize) {
        self.shared
            .refuse_from_bytes
            .store(bytes, Ordering::Relaxed);
    }

    /// The size of an ordinary arena, in bytes.
    pub fn arena_bytes(&self) -> usize {
        self.shared.arena_bytes
    }

    /// Whether there is another handle, or an arena that is in use.
    pub fn is_in_use(&self) -> bool {
        Arc::strong_count(&self.shared) > 1
    }

    /// Bytes of all arenas that exist: those in use, and those kept for reuse.
    pub fn held_bytes(&self) -> u64 {
        self.shared.held_bytes.load(Ordering::Relaxed)
    }

    /// Bytes of the arenas that are in memory as a whole.
    pub fn whole_bytes(&self) -> u64 {
        let shared = &self.shared;
        let sparse = shared.sparse_bytes.load(Ordering::Relaxed);
        self.held_bytes().saturating_sub(sparse)
    }

    /// Returns the kept arenas to the system.
    pub fn release_kept(&self) {
        let shared = &*self.shared;
        for place in &shared.shelf {
            // Acquire: the last user's writes come before the memory is unmapped.
            if let Some(start) = NonNull::new(place.swap(std::ptr::null_mut(), Ordering::Acquire)) {
                shared
                    .held_bytes
                    .fetch_sub(shared.arena_bytes as u64, Ordering::Relaxed);
                // SAFETY: arenas on the shelf came from `map` with this size, and the thread that
                // takes one off the shelf is its only owner.
                unsafe { unmap(start, shared.arena_bytes) };
            }
        }
    }
}

impl Arena {
    /// The size, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    pub(super) fn start(&self) -> *mut u8 {
        self.start.as_ptr()
    }

    /// Whether its pages come in as they are written.
    pub(super) fn is_sparse(&self) -> bool {
        self.sparse
    }

    /// Whether it may hold bytes other than zero.
    pub(super) fn is_used(&self) -> bool {
        self.used
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        let pool = &*self.pool;
        if self.bytes == pool.arena_bytes && !self.sparse {
            for place in &pool.shelf[..pool.keep_count] {
                // Release: this memtable's writes come before the next memtable's writes.
                let put = place.compare_exchange(
                    std::ptr::null_mut(),
                    self.start.as_ptr(),
                    Ordering::Release,
                    Ordering::Relaxed,
                );
                if put.is_ok() {
                    return;
                }
            }
        }
        pool.held_bytes
            .fetch_sub(self.bytes as u64, Ordering::Relaxed);
        if self.sparse {
            pool.sparse_bytes
                .fetch_sub(self.bytes as u64, Ordering::Relaxed);
        }
        // SAFETY: the arena came from `map` with this size, and is not used after this call.
        unsafe { unmap(self.start, self.bytes) };
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        for place in &mut self.shelf {
            if let Some(start) = NonNull::new(*place.get_mut()) {
                // SAFETY: arenas on the shelf came from `map` with this size, and nothing else
                // refers to them.
                unsafe { unmap(start, self.arena_bytes) };
            }
        }
    }
}

/// Zeroed memory, aligned to a page, and to a huge page if it is larger than one.
#[cfg(all(target_os = "linux", not(miri)))]
fn map(bytes: usize, pages: Pages) -> io::Result<NonNull<u8>> {
    use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
    let huge = bytes >= HUGE_PAGE_BYTES;
    let slack = if huge { HUGE_PAGE_BYTES } else { 0 };
    // SAFETY: a new private mapping at an address that the kernel chooses affects nothing that
    // exists.
    let all = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes + slack,
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::PRIVATE,
        )?
    };
    let all = all.cast::<u8>();
    let before = if huge {
        all.align_offset(HUGE_PAGE_BYTES)
    } else {
        0
    };
    // SAFETY: `before` is at most `slack`. All three parts lie in the new mapping and consist of
    // whole pages, and the two that are unmapped are not used. The advice does not change contents:
    // the pages are new.
    unsafe {
        let start = all.add(before);
        if before > 0 {
            munmap(all.cast(), before)?;
        }
        if slack > before {
            munmap(start.add(bytes).cast(), slack - before)?;
        }
        // This is only advice: a kernel without huge pages refuses it, and small pages work as
        // well.
        if huge && pages == Pages::Sparse {
            // A memtable begins at both ends: records at the start, nodes and the filter at the
            // end. Without this, its first entry would take two huge pages, 4 MiB. The kernel may
            // be set to give huge pages to every mapping, so it is told that none are wanted there.
            let small = bytes / super::FILTER_SHARE + NODES_IN_SMALL_PAGES_BYTES;
            let tail_at = (bytes.saturating_sub(small) / HUGE_PAGE_BYTES * HUGE_PAGE_BYTES)
                .max(HUGE_PAGE_BYTES);
            let middle = start.add(HUGE_PAGE_BYTES).cast();
            let _ = madvise(start.cast(), HUGE_PAGE_BYTES, Advice::LinuxNoHugepage);
            if tail_at > HUGE_PAGE_BYTES {
                let _ = madvise(middle, tail_at - HUGE_PAGE_BYTES, Advice::LinuxHugepage);
            }
            if bytes > tail_at {
                let tail = start.add(tail_at).cast();
                let _ = madvise(tail, bytes - tail_at, Advice::LinuxNoHugepage);
            }
        } else if huge {
            let _ = madvise(start.cast(), bytes, Advice::LinuxHugepage);
        }
        // One call for each huge page: while a call runs, no other thread can change the mappings
        // of the process, and all of them together may take a tenth of a second.
        let pieces = (0..bytes).step_by(HUGE_PAGE_BYTES);
        for piece in pieces.filter(|_| pages == Pages::AtOnce) {
            let piece_bytes = HUGE_PAGE_BYTES.min(bytes - piece);
            let at = start.add(piece);
            if madvise(at.cast(), piece_bytes, Advice::LinuxPopulateWrite).is_err() {
                // Kernels before 5.14 cannot do this: touch every page.
                for page in (0..piece_bytes).step_by(PAGE_BYTES) {
                    at.add(page).write_volatile(0);
                }
            }
        }
        NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
    }
}

/// # Safety
/// `start` came from `map(bytes, _)`, and is not used afterwards.
#[cfg(all(target_os = "linux", not(miri)))]
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    // SAFETY: by the caller's promise. An error would mean that the range was never mapped; then
    // nothing needs to be done.
    let _ = unsafe { rustix::mm::munmap(start.as_ptr().cast(), bytes) };
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn layout(bytes: usize) -> io::Result<std::alloc::Layout> {
    std::alloc::Layout::from_size_align(bytes, PAGE_BYTES)
        .map_err(|_| io::Error::from(io::ErrorKind::OutOfMemory))
}

#[cfg(not(all(target_os = "linux", not(miri))))]
fn map(bytes: usize, _pages: Pages) -> io::Result<NonNull<u8>> {
    // SAFETY: an arena is never of size zero.
    let start = unsafe { std::alloc::alloc_zeroed(layout(bytes)?) };
    NonNull::new(start).ok_or_else(|| io::Error::from(io::ErrorKind::OutOfMemory))
}

/// # Safety
/// `start` came from `map(bytes, _)`, and is not used afterwards.
#[cfg(not(all(target_os = "linux", not(miri))))]
unsafe fn unmap(start: NonNull<u8>, bytes: usize) {
    if let Ok(layout) = layout(bytes) {
        // SAFETY: by the caller's promise; `map` used the same layout.
        unsafe { std::alloc::dealloc(start.as_ptr(), layout) };
    }
}

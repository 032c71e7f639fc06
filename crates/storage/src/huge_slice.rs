//! Long-lived arrays in huge pages.
//!
//! Filters and indexes of open tables are read at random places. In pages of 4 KiB, most of these
//! reads miss the TLB, and in a large store each miss also waits for a page table. Therefore all
//! arrays of at least 64 KiB share regions of 32 MiB, for which huge pages are advised. Smaller
//! arrays are on the heap: many small stores take no huge page each, and a small array never keeps
//! a huge page in memory after larger ones have gone.
//!
//! A region is divided by best fit. Free ranges that touch are joined. Pages of 2 MiB that are
//! free as a whole go back to the system, except for 8 MiB, which the next tables will need.
//!
//! # Soundness
//! A region owns its memory. A range is either free, or belongs to
//! exactly one array: [`Pool`] removes it from the free ranges before it returns it, and adds it
//! again when the array is dropped. An array writes all its elements before anybody can read them,
//! and `T: Copy` says that elements need no destructor. `MADV_DONTNEED` is only given for free
//! ranges, whose contents nobody reads before they are written again.
//!
//! Threading: one lock for the whole process, which is held for a few searches of ordered maps, and
//! while the system takes pages back. Arrays themselves need no lock: they are owned or shared as a
//! `Box` is.

#![allow(unsafe_code)]

use std::alloc::{Layout, handle_alloc_error};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::{Mutex, PoisonError};

/// The size of a huge page in bytes.
const PAGE_BYTES: usize = if cfg!(miri) { 4 << 10 } else { 2 << 20 };
/// The size of a region in bytes, unless one array is larger.
const REGION_BYTES: usize = 16 * PAGE_BYTES;
/// Arrays of fewer bytes are on the heap.
const MIN_BYTES: usize = if cfg!(miri) { 1 << 10 } else { 64 << 10 };
/// Ranges begin at multiples of this, and so do their ends.
const LINE_BYTES: usize = 64;
/// The bytes of free pages that stay in memory.
const RETAINED_BYTES: usize = 4 * PAGE_BYTES;

static POOL: Mutex<Pool> = Mutex::new(Pool::new());

/// An array like a `Box<[T]>`, which is in huge pages if it has at least 64 KiB.
pub struct HugeSlice<T: Copy> {
    start: NonNull<T>,
    len: usize,
}

// SAFETY: an array owns its elements, and gives them out only by the rules of references.
unsafe impl<T: Copy + Send> Send for HugeSlice<T> {}
// SAFETY: as above.
unsafe impl<T: Copy + Sync> Sync for HugeSlice<T> {}

impl<T: Copy> HugeSlice<T> {
    /// Whether an array of this many elements is in a region.
    const fn is_pooled(len: usize) -> bool {
        const { assert!(align_of::<T>() <= LINE_BYTES) }
        len.saturating_mul(size_of::<T>()) >= MIN_BYTES
    }

    /// An array of `len` elements, of which `element` returns each by its number.
    ///
    /// If the system has no memory, this ends the process, as for a `Vec`.
    pub fn from_fn(len: usize, mut element: impl FnMut(usize) -> T) -> HugeSlice<T> {
        if !Self::is_pooled(len) {
            let elements: Box<[T]> = (0..len).map(element).collect();
            return HugeSlice::of_the_heap(elements);
        }
        let start = POOL
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .allocate(len.saturating_mul(size_of::<T>()))
            .cast::<T>();
        for i in 0..len {
            // SAFETY: `i` is in the range, which has room for `len` elements, is aligned to a cache
            // line, and belongs to nobody else. If `element` panics, the range is never used again.
            unsafe { start.add(i).write(element(i)) };
        }
        HugeSlice { start, len }
    }

    fn of_the_heap(elements: Box<[T]>) -> HugeSlice<T> {
        let elements = NonNull::from(Box::leak(elements));
        HugeSlice {
            start: elements.cast(),
            len: elements.len(),
        }
    }
}

impl<T: Copy> Drop for HugeSlice<T> {
    fn drop(&mut self) {
        if Self::is_pooled(self.len) {
            let bytes = self.len * size_of::<T>();
            POOL.lock()
                .unwrap_or_else(PoisonError::into_inner)
                .free(self.start.cast(), bytes);
        } else {
            let elements = NonNull::slice_from_raw_parts(self.start, self.len);
            // SAFETY: the same condition said that the elements were leaked from a box.
            drop(unsafe { Box::from_raw(elements.as_ptr()) });
        }
    }
}

impl<T: Copy> Deref for HugeSlice<T> {
    type Target = [T];

    #[inline(always)]
    fn deref(&self) -> &[T] {
        // SAFETY: `len` elements were written at `start`, and stay until the drop.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> DerefMut for HugeSlice<T> {
    #[inline(always)]
    fn deref_mut(&mut self) -> &mut [T] {
        // SAFETY: as in `deref`, and `self` is borrowed exclusively.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.len) }
    }
}

impl<T: Copy> From<&[T]> for HugeSlice<T> {
    fn from(elements: &[T]) -> HugeSlice<T> {
        HugeSlice::from_fn(elements.len(), |i| elements[i])
    }
}

impl<T: Copy> Clone for HugeSlice<T> {
    fn clone(&self) -> HugeSlice<T> {
        HugeSlice::from(&**self)
    }
}

impl<T: Copy + PartialEq> PartialEq for HugeSlice<T> {
    fn eq(&self, other: &HugeSlice<T>) -> bool {
        **self == **other
    }
}

impl<T: Copy + Eq> Eq for HugeSlice<T> {}

impl<T: Copy + std::fmt::Debug> std::fmt::Debug for HugeSlice<T> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.iter()).finish()
    }
}

/// The regions, and which of their ranges are free.
struct Pool {
    /// By the address of their first byte.
    regions: BTreeMap<usize, Region>,
    /// The length of each free range, by address. No two of them touch within a region.
    free: BTreeMap<usize, usize>,
    /// The same ranges, by length and address.
    free_by_length: BTreeSet<(usize, usize)>,
    /// The bytes of all arrays.
    used_bytes: usize,
    /// The bytes of all pages that may be in memory.
    resident_bytes: usize,
}

struct Region {
    /// It is given back when the region is dropped.
    _memory: Memory,
    /// The first byte, at a multiple of [`PAGE_BYTES`].
    start: NonNull<u8>,
    bytes: usize,
    /// For each page, whether it may be in memory: it was used, and not given back since.
    resident: Vec<bool>,
}

// SAFETY: a region owns its memory, and only its pool hands out pointers to it.
unsafe impl Send for Region {}

impl Region {
    /// A region of `bytes`, which is a multiple of [`PAGE_BYTES`] and not 0.
    fn new(bytes: usize) -> Region {
        let Some(memory) = bytes.checked_add(PAGE_BYTES).and_then(Memory::new) else {
            handle_alloc_error(Layout::from_size_align(bytes, 1).unwrap_or(Layout::new::<u8>()))
        };
        let before = memory.0.cast::<u8>().align_offset(PAGE_BYTES);
        // SAFETY: the memory has room for the region and for one page more, and fewer bytes than a
        // page lie before the first multiple of the size of a page.
        let start = unsafe { memory.0.cast::<u8>().add(before) };
        #[cfg(all(target_os = "linux", not(miri)))]
        // SAFETY: advice on memory that belongs to nobody else. It changes no contents. A kernel
        // without huge pages refuses it, and small pages work as well.
        let _ = unsafe {
            rustix::mm::madvise(
                start.as_ptr().cast(),
                bytes,
                rustix::mm::Advice::LinuxHugepage,
            )
        };
        Region {
            _memory: memory,
            start,
            bytes,
            resident: vec![false; bytes / PAGE_BYTES],
        }
    }

    fn end(&self) -> usize {
        self.start.addr().get() + self.bytes
    }

    /// The numbers of the pages that the range touches.
    fn pages(&self, at: usize, bytes: usize) -> std::ops::Range<usize> {
        let from = at - self.start.addr().get();
        from / PAGE_BYTES..(from + bytes).div_ceil(PAGE_BYTES)
    }

    /// Gives the pages that lie in this free range as a whole back to the system. Returns how many
    /// bytes of them were in memory.
    fn release(&mut self, at: usize, bytes: usize) -> usize {
        let from = at - self.start.addr().get();
        let pages = from.div_ceil(PAGE_BYTES)..(from + bytes) / PAGE_BYTES;
        let mut released = 0;
        for page in pages {
            if std::mem::take(&mut self.resident[page]) {
                #[cfg(all(target_os = "linux", not(miri)))]
                // SAFETY: the page lies in the region, whose memory is private and anonymous, and
                // no array has a byte of it.
                let _ = unsafe {
                    rustix::mm::madvise(
                        self.start.as_ptr().add(page * PAGE_BYTES).cast(),
                        PAGE_BYTES,
                        rustix::mm::Advice::LinuxDontNeed,
                    )
                };
                released += PAGE_BYTES;
            }
        }
        released
    }
}

/// The memory of a region. On Linux it is a mapping of its own, as the arenas of memtables are.
struct Memory(NonNull<[u8]>);

#[cfg(all(target_os = "linux", not(miri)))]
impl Memory {
    fn new(bytes: usize) -> Option<Memory> {
        use rustix::mm::{MapFlags, ProtFlags, mmap_anonymous};
        let any = std::ptr::null_mut();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a new private mapping at an address that the kernel chooses affects nothing that
        // exists.
        let start = unsafe { mmap_anonymous(any, bytes, access, MapFlags::PRIVATE) }.ok()?;
        let start = NonNull::new(start.cast())?;
        Some(Memory(NonNull::slice_from_raw_parts(start, bytes)))
    }
}

#[cfg(all(target_os = "linux", not(miri)))]
impl Drop for Memory {
    fn drop(&mut self) {
        // SAFETY: this is the whole mapping, and no array is left in it. An error would mean that
        // it was never mapped; then nothing needs to be done.
        let _ = unsafe { rustix::mm::munmap(self.0.as_ptr().cast(), self.0.len()) };
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
impl Memory {
    fn layout(bytes: usize) -> Option<Layout> {
        Layout::from_size_align(bytes, LINE_BYTES).ok()
    }

    fn new(bytes: usize) -> Option<Memory> {
        // SAFETY: the size is not zero.
        let start = unsafe { std::alloc::alloc(Memory::layout(bytes)?) };
        let start = NonNull::new(start)?;
        Some(Memory(NonNull::slice_from_raw_parts(start, bytes)))
    }
}

#[cfg(not(all(target_os = "linux", not(miri))))]
impl Drop for Memory {
    fn drop(&mut self) {
        if let Some(layout) = Memory::layout(self.0.len()) {
            // SAFETY: it was allocated with this layout, and no array is left in it.
            unsafe { std::alloc::dealloc(self.0.as_ptr().cast(), layout) };
        }
    }
}

impl Pool {
    const fn new() -> Pool {
        Pool {
            regions: BTreeMap::new(),
            free: BTreeMap::new(),
            free_by_length: BTreeSet::new(),
            used_bytes: 0,
            resident_bytes: 0,
        }
    }

    fn add_free(&mut self, at: usize, bytes: usize) {
        self.free.insert(at, bytes);
        self.free_by_length.insert((bytes, at));
    }

    fn remove_free(&mut self, at: usize, bytes: usize) {
        self.free.remove(&at);
        self.free_by_length.remove(&(bytes, at));
    }

    /// A range of at least `bytes`, aligned to a cache line. Its contents are undefined.
    fn allocate(&mut self, bytes: usize) -> NonNull<u8> {
        let (Some(bytes), Some(pages)) = (
            bytes.checked_next_multiple_of(LINE_BYTES),
            bytes.checked_next_multiple_of(PAGE_BYTES),
        ) else {
            panic!("an array of {bytes} bytes is larger than the address space");
        };
        let best = self.free_by_length.range((bytes, 0)..).next();
        let (length, at) = match best {
            Some(range) => *range,
            None => {
                let region = Region::new(pages.max(REGION_BYTES));
                let range = (region.bytes, region.start.addr().get());
                self.regions.insert(range.1, region);
                self.add_free(range.1, range.0);
                range
            }
        };
        self.remove_free(at, length);
        if length > bytes {
            self.add_free(at + bytes, length - bytes);
        }
        self.used_bytes += bytes;
        let (_, region) =
            (self.regions.range_mut(..=at).next_back()).expect("each free range lies in a region");
        for page in region.pages(at, bytes) {
            if !std::mem::replace(&mut region.resident[page], true) {
                self.resident_bytes += PAGE_BYTES;
            }
        }
        // SAFETY: the range lies in the region.
        unsafe { region.start.add(at - region.start.addr().get()) }
    }

    /// Takes back a range of [`Pool::allocate`], with the same `bytes`.
    fn free(&mut self, start: NonNull<u8>, bytes: usize) {
        let bytes = bytes.next_multiple_of(LINE_BYTES);
        let start = start.addr().get();
        let (&region_start, region) =
            (self.regions.range(..=start).next_back()).expect("each array lies in a region");
        let region_end = region.end();
        let (mut from, mut to) = (start, start + bytes);
        if let Some((&at, &length)) = self.free.range(region_start..start).next_back()
            && at + length == from
        {
            self.remove_free(at, length);
            from = at;
        }
        if to < region_end
            && let Some(&length) = self.free.get(&to)
        {
            self.remove_free(to, length);
            to += length;
        }
        self.add_free(from, to - from);
        self.used_bytes -= bytes;
        if self.resident_bytes - self.used_bytes > RETAINED_BYTES {
            let region = (self.regions.get_mut(&region_start)).expect("it was just found");
            self.resident_bytes -= region.release(from, to - from);
            if to - from == region.bytes {
                self.remove_free(from, to - from);
                self.regions.remove(&region_start);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prng::Prng;

    /// Checks what [`Pool`] promises about its ranges.
    fn check(pool: &Pool) {
        let by_length: BTreeSet<_> = pool.free.iter().map(|(at, bytes)| (*bytes, *at)).collect();
        assert_eq!(by_length, pool.free_by_length);
        let free: usize = pool.free.values().sum();
        let all: usize = pool.regions.values().map(|region| region.bytes).sum();
        assert_eq!(pool.used_bytes, all - free);
        let resident = |region: &Region| region.resident.iter().filter(|page| **page).count();
        let resident: usize = pool.regions.values().map(resident).sum();
        assert_eq!(pool.resident_bytes, resident * PAGE_BYTES);
        assert!(pool.resident_bytes >= pool.used_bytes);
        for (at, bytes) in &pool.free {
            let (_, region) = pool.regions.range(..=at).next_back().unwrap();
            assert!(at + bytes <= region.end());
            let next = pool.free.get(&(at + bytes));
            assert!(next.is_none() || at + bytes == region.end());
        }
    }

    fn bytes_of(prng: &mut Prng) -> usize {
        match prng.below(20) {
            0 => REGION_BYTES + prng.below(2 * PAGE_BYTES as u64) as usize,
            1..4 => prng.below(3 * PAGE_BYTES as u64) as usize + 1,
            _ => prng.below(PAGE_BYTES as u64 / 4) as usize + 1,
        }
    }

    /// Random arrays come and go. None overlaps another one, and the free memory that stays is
    /// bounded, apart from pages of which some array has a part.
    #[test]
    fn ranges_never_overlap_and_are_joined() {
        let mut prng = Prng::new(7);
        let mut pool = Pool::new();
        let mut arrays: Vec<(NonNull<u8>, usize)> = Vec::new();
        for step in 0..if cfg!(miri) { 100 } else { 4_100 } {
            // The number of arrays grows and shrinks in turns.
            if prng.below(10) < if step / 100 % 2 == 0 { 7 } else { 3 } {
                let bytes = bytes_of(&mut prng);
                let start = pool.allocate(bytes);
                assert_eq!(start.addr().get() % LINE_BYTES, 0);
                arrays.push((start, bytes));
            } else if !arrays.is_empty() {
                let (start, bytes) = arrays.swap_remove(prng.below(arrays.len() as u64) as usize);
                pool.free(start, bytes);
            }
            check(&pool);
        }
        let mut ranges: Vec<_> = arrays
            .iter()
            .map(|(at, bytes)| (at.addr().get(), bytes))
            .collect();
        ranges.sort_unstable();
        assert!(ranges.len() > 10);
        assert!(ranges.windows(2).all(|two| two[0].0 + two[0].1 <= two[1].0));
        for (start, bytes) in arrays {
            pool.free(start, bytes);
            check(&pool);
        }
        assert_eq!(pool.used_bytes, 0);
        assert!(pool.resident_bytes <= RETAINED_BYTES);
    }

    /// Memory of arrays that are gone is used again, not added to.
    #[test]
    fn a_region_is_used_again() {
        let mut pool = Pool::new();
        for _ in 0..1_000 {
            let one = pool.allocate(PAGE_BYTES);
            let two = pool.allocate(PAGE_BYTES / 2);
            pool.free(one, PAGE_BYTES);
            pool.free(two, PAGE_BYTES / 2);
        }
        assert_eq!(pool.regions.len(), 1);
        assert!(pool.resident_bytes <= 2 * PAGE_BYTES);
    }

    #[test]
    fn arrays_keep_their_elements() {
        let mut arrays = Vec::new();
        // On both sides of the least size of a region's arrays.
        let least = MIN_BYTES / 8;
        for len in [0, 1, least - 1, least, least + 1, 3_000, PAGE_BYTES / 8 + 1] {
            let mut array = HugeSlice::from_fn(len, |i| (i * len) as u64);
            if let Some(last) = array.last_mut() {
                *last = 7;
            }
            arrays.push((len, array.clone(), array));
        }
        for (len, one, two) in arrays {
            assert_eq!((one.len(), &one), (len, &two));
            let want = |i| if i + 1 == len { 7 } else { (i * len) as u64 };
            assert!(one.iter().enumerate().all(|(i, x)| *x == want(i)));
        }
    }

    /// Threads that own arrays each.
    #[test]
    fn threads_share_the_regions() {
        let work = |seed: u64| {
            let mut prng = Prng::new(seed);
            let mut arrays: Vec<HugeSlice<u32>> = Vec::new();
            for _ in 0..if cfg!(miri) { 20 } else { 500 } {
                if arrays.len() > 8 {
                    let array = arrays.swap_remove(prng.below(8) as usize);
                    assert!(array.iter().all(|x| u64::from(*x) == seed));
                }
                let len = 1_000 + prng.below(PAGE_BYTES as u64 / 8) as usize;
                arrays.push(HugeSlice::from_fn(len, |_| seed as u32));
            }
            assert!(
                arrays
                    .iter()
                    .all(|a| a.iter().all(|x| u64::from(*x) == seed))
            );
        };
        std::thread::scope(|scope| {
            for seed in 1..4 {
                scope.spawn(move || work(seed));
            }
        });
    }
}

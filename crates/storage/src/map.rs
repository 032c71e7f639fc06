//! A map view of an immutable object. It is not a `&[u8]`: its bytes may turn to zeros after an I/O
//! error (a page of a mapped file that can no longer be read), so accessors check bounds, decode
//! each field once and copy bytes out.
//!
//! Rules:
//! - Every access is checked against the bounds. Out of bounds gives `None` or `false`, never a
//!   panic.
//! - Each field is read by one volatile load, so the value that was checked is the value that is
//!   used, whatever happens to the page in between.
//! - Read bytes may be trusted only after [`Map::failed`], called after the last access, returned
//!   false.
//! - Nothing here returns a reference into the mapped memory. Bulk reads (`copy_to`, `compare`,
//!   `crc32c`) use raw pointers: the memory is readable for the owner's life, and torn or zeroed
//!   bytes are only wrong bytes, which the failed mark invalidates.
//!
//! Threading: a view is read-only and may be used from any thread.

use std::cmp::Ordering;
use std::marker::PhantomData;
use std::sync::Arc;
use std::sync::atomic::{self, AtomicBool, AtomicU8};

use crate::prefetch::prefetch_address;
use crate::storage::Access;

/// Keeps the memory alive that a view points into: a kernel mapping, or a buffer of the memory
/// storage.
pub trait MapOwner: Send + Sync {
    /// The mark that the SIGBUS handler sets when a page of this map could not be read. It must
    /// always be the same mark, because a view calls this only once.
    fn failed(&self) -> &AtomicBool;

    /// A hint about coming reads of `len` bytes at `offset` of the mapping.
    fn advise(&self, _access: Access, _offset: u64, _len: u64) {}
}

/// A bounds-checked view of an object's bytes that keeps the object's memory alive.
#[derive(Clone)]
pub struct Map {
    ptr: *const u8,
    len: usize,
    /// `owner`'s mark. It is read after every entry, where a call through the trait would dominate
    /// the cost.
    mark: *const AtomicBool,
    owner: Arc<dyn MapOwner>,
}

// SAFETY: the view is read-only memory that lives as long as `owner`, which is Send + Sync.
#[allow(unsafe_code)]
unsafe impl Send for Map {}
// SAFETY: as above; every access is a read.
#[allow(unsafe_code)]
unsafe impl Sync for Map {}

impl std::fmt::Debug for Map {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Map")
            .field("len", &self.len)
            .field("failed", &self.failed())
            .finish()
    }
}

/// Heap bytes behind a map.
struct HeapOwner {
    failed: AtomicBool,
    // Read through the map's pointer only.
    _bytes: Arc<[u8]>,
}

impl MapOwner for HeapOwner {
    fn failed(&self) -> &AtomicBool {
        &self.failed
    }
}

/// Heap bytes behind maps. Ranges of them can be lost, as pages of a mapped file can (when the file
/// is truncated or a page cannot be read): the mark is set first, then the bytes become zeros.
///
/// Threading: bytes may be lost while others read. The mark tells those readers not to trust what
/// they read.
pub(crate) struct LosableBytes {
    failed: AtomicBool,
    bytes: Box<[AtomicU8]>,
}

impl LosableBytes {
    pub(crate) fn new(bytes: Vec<u8>) -> LosableBytes {
        let mut bytes = std::mem::ManuallyDrop::new(bytes.into_boxed_slice());
        let slice = std::ptr::slice_from_raw_parts_mut(bytes.as_mut_ptr().cast(), bytes.len());
        // SAFETY: `ManuallyDrop` hands the allocation over once, and an `AtomicU8` has the size,
        // alignment and values of a `u8`.
        #[allow(unsafe_code)]
        let bytes = unsafe { Box::<[AtomicU8]>::from_raw(slice) };
        LosableBytes {
            failed: AtomicBool::new(false),
            bytes,
        }
    }

    /// A view of all the bytes.
    pub(crate) fn map(self: &Arc<Self>) -> Map {
        let (ptr, len) = (self.bytes.as_ptr().cast(), self.bytes.len());
        // SAFETY: the box is neither moved nor freed while `owner` lives, and its bytes stay
        // readable.
        #[allow(unsafe_code)]
        unsafe {
            Map::new(ptr, len, Arc::clone(self) as Arc<dyn MapOwner>)
        }
    }

    /// Marks all views as failed, then turns the bytes in `from..to` (clipped to the length) to
    /// zeros.
    pub(crate) fn lose(&self, from: u64, to: u64) {
        let at = |offset: u64| {
            usize::try_from(offset).map_or(self.bytes.len(), |o| o.min(self.bytes.len()))
        };
        let (from, to) = (at(from), at(to));
        if from >= to {
            return;
        }
        self.failed.store(true, atomic::Ordering::SeqCst);
        for byte in &self.bytes[from..to] {
            byte.store(0, atomic::Ordering::Release);
        }
    }
}

impl MapOwner for LosableBytes {
    fn failed(&self) -> &AtomicBool {
        &self.failed
    }
}

impl Map {
    /// A view of `len` bytes at `ptr`.
    ///
    /// # Safety
    /// `ptr..ptr + len` must stay readable until `owner` is dropped. A failed page that became
    /// zeros counts as readable.
    #[allow(unsafe_code)]
    pub unsafe fn new(ptr: *const u8, len: usize, owner: Arc<dyn MapOwner>) -> Map {
        let mark = std::ptr::from_ref(owner.failed());
        Map {
            ptr,
            len,
            mark,
            owner,
        }
    }

    /// A view of heap bytes. It never fails by itself. With `failed`, it is marked as if a page had
    /// been lost (for fault injection).
    pub fn from_bytes(bytes: Arc<[u8]>, failed: bool) -> Map {
        let (ptr, len) = (bytes.as_ptr(), bytes.len());
        let owner = Arc::new(HeapOwner {
            failed: AtomicBool::new(failed),
            _bytes: bytes,
        });
        Map {
            ptr,
            len,
            mark: std::ptr::from_ref(owner.failed()),
            owner,
        }
    }

    /// The view as a copyable borrow without a reference count, for hot loops.
    #[inline]
    pub fn view(&self) -> MapView<'_> {
        MapView {
            ptr: self.ptr,
            len: self.len,
            map: PhantomData,
        }
    }

    /// The `len` bytes at `offset` as a [`MapView`]; `None` if they are out of bounds.
    #[inline]
    pub fn sub(&self, offset: usize, len: usize) -> Option<MapView<'_>> {
        self.view().sub(offset, len)
    }

    /// Length in bytes.
    #[inline]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the view is empty.
    #[inline]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether a page of the map failed. Call this after the last access, before trusting the bytes
    /// that were read.
    #[inline]
    #[allow(unsafe_code)]
    pub fn failed(&self) -> bool {
        // The fence orders the reads of the map before the load of the mark: a reader that got
        // zeros from the replacement page (on any thread) must also see the mark, which was set
        // before that page was mapped.
        atomic::fence(atomic::Ordering::Acquire);
        // SAFETY: `owner` holds the mark, and neither moves, changes nor frees it while it is held
        // here.
        unsafe { &*self.mark }.load(atomic::Ordering::Relaxed)
    }

    /// A hint about coming reads of `len` bytes at `offset`.
    pub fn advise(&self, access: Access, offset: u64, len: u64) {
        self.owner.advise(access, offset, len);
    }

    /// Copies `buf.len()` bytes from `offset`; false if they are out of bounds.
    #[inline]
    pub fn copy_to(&self, offset: usize, buf: &mut [u8]) -> bool {
        self.view().copy_to(offset, buf)
    }

    /// Prefetches the cache line at `offset`; does nothing if it is out of bounds.
    #[inline]
    pub fn prefetch(&self, offset: usize) {
        self.view().prefetch(offset)
    }

    /// See [`MapView::read_u8`].
    #[inline]
    pub fn read_u8(&self, offset: usize) -> Option<u8> {
        self.view().read_u8(offset)
    }

    /// See [`MapView::read_u16`].
    #[inline]
    pub fn read_u16(&self, offset: usize) -> Option<u16> {
        self.view().read_u16(offset)
    }

    /// See [`MapView::read_u32`].
    #[inline]
    pub fn read_u32(&self, offset: usize) -> Option<u32> {
        self.view().read_u32(offset)
    }

    /// See [`MapView::read_u64`].
    #[inline]
    pub fn read_u64(&self, offset: usize) -> Option<u64> {
        self.view().read_u64(offset)
    }

    /// See [`MapView::crc32c`].
    pub fn crc32c(&self, offset: usize, len: usize) -> Option<u32> {
        self.view().crc32c(offset, len)
    }
}

/// A borrowed part of a [`Map`]. It is only a pointer and a length, so that it fits in two
/// registers.
#[derive(Clone, Copy)]
pub struct MapView<'a> {
    ptr: *const u8,
    len: usize,
    map: PhantomData<&'a Map>,
}

// SAFETY: it is a borrow of a `Map`, which is `Send`.
#[allow(unsafe_code)]
unsafe impl Send for MapView<'_> {}
// SAFETY: it is a borrow of a `Map`, which is `Sync`.
#[allow(unsafe_code)]
unsafe impl Sync for MapView<'_> {}

impl std::fmt::Debug for MapView<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MapView").field("len", &self.len).finish()
    }
}

/// Alignment 1 makes a volatile load of an unaligned field legal. It still compiles to one plain
/// load.
#[derive(Clone, Copy)]
#[repr(C, packed)]
struct Unaligned<T: Copy>(T);

macro_rules! read_int {
    ($(#[$doc:meta])* $name:ident, $int:ty) => {
        $(#[$doc])*
        #[inline]
        #[allow(unsafe_code)]
        pub fn $name(self, offset: usize) -> Option<$int> {
            const BYTES: usize = size_of::<$int>();
            if self.len < BYTES || offset > self.len - BYTES {
                return None;
            }
            // SAFETY: `offset + BYTES <= len` was checked, and the memory is readable while the map
            // is borrowed. The alignment is 1. A volatile load is never repeated by the compiler,
            // so a value that was checked does not change.
            let value = unsafe { self.ptr.add(offset).cast::<Unaligned<$int>>().read_volatile() };
            Some(<$int>::from_le(value.0))
        }
    };
}

impl<'a> MapView<'a> {
    /// Length in bytes.
    #[inline]
    pub fn len(self) -> usize {
        self.len
    }

    /// Whether the view is empty.
    #[inline]
    pub fn is_empty(self) -> bool {
        self.len == 0
    }

    /// `len` bytes at `offset`; `None` if they are out of bounds.
    #[inline]
    #[allow(unsafe_code)]
    pub fn sub(self, offset: usize, len: usize) -> Option<MapView<'a>> {
        if offset > self.len || len > self.len - offset {
            return None;
        }
        // SAFETY: `offset <= self.len`, so the pointer is within the mapping or at its end.
        let ptr = unsafe { self.ptr.add(offset) };
        Some(MapView {
            ptr,
            len,
            map: PhantomData,
        })
    }

    read_int!(
        /// The byte at `offset`; `None` out of bounds.
        read_u8,
        u8
    );
    read_int!(
        /// The little-endian number at `offset`; `None` out of bounds.
        read_u16,
        u16
    );
    read_int!(
        /// The little-endian number at `offset`; `None` out of bounds.
        read_u32,
        u32
    );
    read_int!(
        /// The little-endian number at `offset`; `None` out of bounds.
        read_u64,
        u64
    );

    /// Copies `buf.len()` bytes from `offset`; false if they are out of bounds.
    #[inline]
    #[allow(unsafe_code)]
    pub fn copy_to(self, offset: usize, buf: &mut [u8]) -> bool {
        if offset > self.len || buf.len() > self.len - offset {
            return false;
        }
        // SAFETY: the range was checked. `buf` is an exclusive borrow, so the two do not overlap.
        unsafe { std::ptr::copy_nonoverlapping(self.ptr.add(offset), buf.as_mut_ptr(), buf.len()) };
        true
    }

    /// Appends `len` bytes from `offset` to `out`. If they are out of bounds, appends nothing and
    /// returns false.
    #[inline]
    #[allow(unsafe_code)]
    pub fn append_to(self, offset: usize, len: usize, out: &mut Vec<u8>) -> bool {
        if offset > self.len || len > self.len - offset {
            return false;
        }
        out.reserve(len);
        // SAFETY: the source range was checked. `reserve` made room for `len` bytes at the end of
        // `out`, and they are written before `set_len` covers them.
        unsafe {
            std::ptr::copy_nonoverlapping(
                self.ptr.add(offset),
                out.as_mut_ptr().add(out.len()),
                len,
            );
            out.set_len(out.len() + len);
        }
        true
    }

    /// Compares the whole view with `other` bytewise, as slices compare.
    #[inline]
    pub fn compare(self, other: &[u8]) -> Ordering {
        self.memcmp(other, self.len.min(other.len()))
            .then(self.len.cmp(&other.len()))
    }

    /// Whether the view holds exactly `other`'s bytes.
    #[inline]
    pub fn equals(self, other: &[u8]) -> bool {
        self.len == other.len() && self.memcmp(other, self.len) == Ordering::Equal
    }

    /// Compares the first bytes of the view with `prefix`: `Equal` if the view starts with it,
    /// otherwise as slices compare.
    #[inline]
    pub fn compare_prefix(self, prefix: &[u8]) -> Ordering {
        let common = self.len.min(prefix.len());
        self.memcmp(prefix, common)
            .then(if self.len < prefix.len() {
                Ordering::Less
            } else {
                Ordering::Equal
            })
    }

    /// The length of the common prefix.
    pub fn common_prefix(self, other: &[u8]) -> usize {
        let limit = self.len.min(other.len());
        let mut at = 0;
        while at + 8 <= limit {
            let word: [u8; 8] = other[at..at + 8].try_into().unwrap_or_default();
            let diff = self.read_u64(at).unwrap_or(0) ^ u64::from_le_bytes(word);
            if diff != 0 {
                return at + (diff.trailing_zeros() / 8) as usize;
            }
            at += 8;
        }
        while at < limit && self.read_u8(at) == Some(other[at]) {
            at += 1;
        }
        at
    }

    /// Compares the first `n` bytes. `n` must not exceed either length.
    #[inline]
    #[allow(unsafe_code)]
    fn memcmp(self, other: &[u8], n: usize) -> Ordering {
        debug_assert!(n <= self.len && n <= other.len());
        // SAFETY: both ranges are readable for `n` bytes. These are raw pointers and not
        // references: if a page turns to zeros in between, the result is only a wrong ordering.
        let order = unsafe { libc::memcmp(self.ptr.cast(), other.as_ptr().cast(), n) };
        order.cmp(&0)
    }

    /// Prefetches the cache line at `offset`; does nothing if it is out of bounds.
    #[inline]
    pub fn prefetch(self, offset: usize) {
        if offset < self.len {
            prefetch_address(self.ptr.wrapping_add(offset));
        }
    }

    /// The CRC-32C of `len` bytes at `offset`; `None` out of bounds.
    pub fn crc32c(self, offset: usize, len: usize) -> Option<u32> {
        let mut crc = 0;
        self.for_each_piece(offset, len, |piece| crc = crc32c::crc32c_append(crc, piece))
            .then_some(crc)
    }

    /// Passes `len` bytes from `offset` to `take`, in order, in pieces that are copied to a small
    /// buffer. The buffer stays in the first-level cache, so the copy is cheap, and `take` sees
    /// bytes that do not change. Returns false if the range is out of bounds.
    pub fn for_each_piece(self, offset: usize, len: usize, mut take: impl FnMut(&[u8])) -> bool {
        let Some(range) = self.sub(offset, len) else {
            return false;
        };
        let mut buf = [0u8; 4096];
        let mut at = 0;
        while at < len {
            let n = (len - at).min(buf.len());
            if !range.copy_to(at, &mut buf[..n]) {
                return false;
            }
            take(&buf[..n]);
            at += n;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(bytes: &[u8]) -> Map {
        Map::from_bytes(bytes.into(), false)
    }

    #[test]
    fn numbers_and_bounds() {
        let m = map(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        assert_eq!(m.read_u8(8), Some(9));
        assert_eq!(m.read_u8(9), None);
        assert_eq!(m.read_u16(7), Some(0x0908));
        assert_eq!(m.read_u16(8), None);
        assert_eq!(m.read_u32(1), Some(0x0504_0302));
        assert_eq!(m.read_u32(6), None);
        assert_eq!(m.read_u64(1), Some(0x0908_0706_0504_0302));
        assert_eq!(m.read_u64(2), None);
        assert_eq!(m.read_u64(usize::MAX), None);
        assert_eq!(m.read_u64(usize::MAX - 7), None);
        let empty = map(&[]);
        assert!(empty.is_empty());
        assert_eq!(empty.read_u8(0), None);
        assert!(empty.copy_to(0, &mut []));
        assert!(!empty.copy_to(1, &mut []));
    }

    #[test]
    fn sub_views_stay_inside() {
        let m = map(b"0123456789");
        let s = m.sub(2, 5).unwrap();
        assert!(s.equals(b"23456"));
        assert!(s.sub(1, 4).unwrap().equals(b"3456"));
        assert!(s.sub(1, 5).is_none());
        assert!(s.sub(5, 0).unwrap().is_empty());
        assert!(s.sub(6, 0).is_none());
        assert!(m.sub(usize::MAX, 2).is_none());
        assert_eq!(s.read_u8(5), None);
        let mut out = b"x".to_vec();
        assert!(s.append_to(1, 3, &mut out));
        assert!(!s.append_to(3, 3, &mut out));
        assert_eq!(out, b"x345");
    }

    #[test]
    fn comparisons_are_those_of_slices() {
        let words: [&[u8]; 9] = [
            b"",
            b"a",
            b"ab",
            b"abc",
            b"b",
            b"\xff",
            b"\xff\x00",
            b"aaaaaaaaaaaa",
            b"aaaaaaaaaaab",
        ];
        for a in words {
            for b in words {
                let m = map(a);
                assert_eq!(m.view().compare(b), a.cmp(b), "{a:?} {b:?}");
                assert_eq!(m.view().equals(b), a == b);
                assert_eq!(
                    m.view().compare_prefix(b).is_eq(),
                    a.starts_with(b),
                    "{a:?} {b:?}"
                );
                if !a.starts_with(b) {
                    assert_eq!(m.view().compare_prefix(b), a.cmp(b));
                }
                assert_eq!(
                    m.view().common_prefix(b),
                    a.iter().zip(b).take_while(|(x, y)| x == y).count()
                );
            }
        }
    }

    #[test]
    fn checksum_in_pieces() {
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        let m = map(&bytes);
        for (offset, len) in [
            (0, 0),
            (0, 1),
            (1, 4096),
            (5, 8192),
            (0, 20_000),
            (20_000, 0),
            (4095, 4097),
        ] {
            assert_eq!(
                m.crc32c(offset, len),
                Some(crc32c::crc32c(&bytes[offset..offset + len]))
            );
        }
        assert_eq!(m.crc32c(1, 20_000), None);
        m.prefetch(0);
        m.prefetch(usize::MAX);
    }

    #[test]
    fn lost_bytes_are_zeros_and_marked() {
        let bytes = Arc::new(LosableBytes::new(vec![7; 100]));
        let map = bytes.map();
        bytes.lose(100, 200);
        bytes.lose(50, 50);
        assert!(!map.failed(), "nothing was lost");
        assert!(map.view().equals(&[7; 100]));
        bytes.lose(60, u64::MAX);
        drop(bytes);
        assert!(map.failed());
        assert_eq!(
            (map.read_u8(59), map.read_u8(60), map.read_u8(99)),
            (Some(7), Some(0), Some(0))
        );
    }

    #[test]
    fn failed_mark_shows() {
        assert!(!map(b"x").failed());
        assert!(Map::from_bytes(b"x".as_slice().into(), true).failed());
    }
}

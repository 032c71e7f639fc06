//! Records: one version of one user key in an arena. A record is immutable once its offset is
//! published.
//!
//! ```text
//!  0  u64  sequence number << 8 | kind
//!  8  u32  key length, and `CHAINED`
//! 12  u32  value length
//!     only if chained, that is, if there is an older version:
//! 16  u32  the next older version
//! 20  u32  a much older version (jump)
//! 24  u32  depth: number of older versions
//!     key, value
//! ```
//! Records start at multiples of 8 bytes, which offsets count, so 32 bits reach 32 GiB; offset 0
//! means "none". Jumps follow Myers' skew-binary stack: a jump from depth d leads to a fixed
//! smaller depth, so any version is reached in O(log versions) steps although each record has only
//! one jump. Without them, a key that is overwritten 66,000 times would cost an old snapshot
//! milliseconds.
//!
//! Threading: the writer writes a record before its offset is known to others. From then on all
//! threads may read it.

use siltstone_storage::prefetch_address;

use super::node::Keys;

/// Offsets count in units of this many bytes.
pub(super) const GRANULE_BYTES: usize = 8;
const PLAIN_BYTES: usize = 16;
const CHAINED_BYTES: usize = 28;
const CHAINED: u32 = 1 << 31;
/// The most bytes of a record beyond its key and value: header and padding.
pub(super) const RECORD_OVERHEAD_BYTES: usize = CHAINED_BYTES + GRANULE_BYTES - 1;

/// The start of an arena with records. Offsets in published slots and published records are valid;
/// that is the memtable's invariant, and these methods rely on it.
#[derive(Clone, Copy)]
pub(super) struct Records {
    base: *const u8,
}

/// The fields of a record that link it to older versions.
#[derive(Clone, Copy)]
pub(super) struct Chain {
    older: u32,
    jump: u32,
    depth: u32,
}

/// The size of a record in the arena, in bytes.
pub(super) fn record_bytes(key_bytes: usize, value_bytes: usize, chained: bool) -> usize {
    let header = if chained { CHAINED_BYTES } else { PLAIN_BYTES };
    (header + key_bytes + value_bytes).next_multiple_of(GRANULE_BYTES)
}

impl Records {
    /// # Safety
    /// `base` must stay valid for reads of every record whose offset is passed to the other
    /// methods.
    pub(super) unsafe fn new(base: *const u8) -> Records {
        Records { base }
    }

    #[inline(always)]
    fn pointer(&self, record: u32) -> *const u8 {
        debug_assert!(record != 0);
        // SAFETY: by the invariant of the type, the record lies within the arena at `base`.
        unsafe { self.base.add(record as usize * GRANULE_BYTES) }
    }

    #[inline(always)]
    fn word(&self, record: u32, at: usize) -> u32 {
        // SAFETY: the header lies in the record and is aligned to 4 bytes, and it is not written
        // any more.
        unsafe { self.pointer(record).add(at).cast::<u32>().read() }
    }

    #[inline(always)]
    fn trailer(&self, record: u32) -> u64 {
        // SAFETY: the header lies in the record and is aligned to 8 bytes, and it is not written
        // any more.
        unsafe { self.pointer(record).cast::<u64>().read() }
    }

    /// The sequence number.
    #[inline(always)]
    pub(super) fn seq(&self, record: u32) -> u64 {
        self.trailer(record) >> 8
    }

    /// The kind, as its number.
    #[inline(always)]
    pub(super) fn kind(&self, record: u32) -> u8 {
        self.trailer(record) as u8
    }

    #[inline(always)]
    fn key_place(&self, record: u32) -> (usize, usize) {
        let word = self.word(record, 8);
        let header = if word & CHAINED == 0 {
            PLAIN_BYTES
        } else {
            CHAINED_BYTES
        };
        (header, (word & !CHAINED) as usize)
    }

    /// The value.
    #[inline(always)]
    pub(super) fn value(&self, record: u32) -> &[u8] {
        let (start, length) = self.key_place(record);
        // SAFETY: the value lies in the record, right after the key, and is not written any more.
        // The lifetime is that of `self`, which the memtable hands out only while it holds the
        // arena.
        unsafe {
            std::slice::from_raw_parts(
                self.pointer(record).add(start + length),
                self.word(record, 12) as usize,
            )
        }
    }

    /// The next older version, 0 if there is none.
    #[inline(always)]
    pub(super) fn older(&self, record: u32) -> u32 {
        if self.word(record, 8) & CHAINED == 0 {
            0
        } else {
            self.word(record, 16)
        }
    }

    /// The jump. That of the oldest version leads to itself, as the skew-binary rule requires.
    #[inline(always)]
    fn jump(&self, record: u32) -> u32 {
        if self.word(record, 8) & CHAINED == 0 {
            record
        } else {
            self.word(record, 20)
        }
    }

    #[inline(always)]
    fn depth(&self, record: u32) -> u32 {
        if self.word(record, 8) & CHAINED == 0 {
            0
        } else {
            self.word(record, 24)
        }
    }

    /// The link fields of a version that is newer than `newest`.
    pub(super) fn chain_onto(&self, newest: u32) -> Chain {
        let near = self.jump(newest);
        let far = self.jump(near);
        let depth = self.depth(newest);
        let even = depth - self.depth(near) == self.depth(near) - self.depth(far);
        Chain {
            older: newest,
            jump: if even { far } else { newest },
            depth: depth + 1,
        }
    }

    /// The newest version, from `newest` on, with a number of at most `seq`; 0 if there is none.
    #[inline(always)]
    pub(super) fn visible(&self, newest: u32, seq: u64) -> u32 {
        self.visible_counting(newest, seq).0
    }

    /// Like `visible`, with the number of versions that were skipped.
    #[inline(always)]
    pub(super) fn visible_counting(&self, newest: u32, seq: u64) -> (u32, usize) {
        let mut record = newest;
        let mut steps = 0;
        loop {
            if self.seq(record) <= seq {
                return (record, steps);
            }
            let older = self.older(record);
            if older == 0 {
                return (0, steps);
            }
            let jump = self.jump(record);
            record = if self.seq(jump) > seq { jump } else { older };
            steps += 1;
        }
    }

    /// The oldest version in the chain.
    pub(super) fn oldest(&self, newest: u32) -> u32 {
        let mut record = newest;
        while self.older(record) != 0 {
            record = self.jump(record);
        }
        record
    }

    /// The next newer version than `record` in the chain that starts at `newest`; 0 if `record` is
    /// the newest.
    pub(super) fn newer(&self, newest: u32, record: u32) -> u32 {
        if newest == record {
            return 0;
        }
        let depth = self.depth(record);
        let mut above = newest;
        loop {
            let older = self.older(above);
            if older == record {
                return above;
            }
            let jump = self.jump(above);
            above = if self.depth(jump) > depth {
                jump
            } else {
                older
            };
        }
    }

    /// Prefetches the first cache line of the record.
    #[inline(always)]
    pub(super) fn prefetch(&self, record: u32) {
        prefetch_address(self.pointer(record));
    }
}

impl Keys for Records {
    #[inline(always)]
    fn key(&self, record: u32) -> &[u8] {
        let (start, length) = self.key_place(record);
        // SAFETY: as for `value`.
        unsafe { std::slice::from_raw_parts(self.pointer(record).add(start), length) }
    }
}

/// Writes a record at `to`.
///
/// # Safety
/// `to` must be aligned to 8 bytes and valid for writes of `record_bytes` of the same lengths, and
/// nothing else may use these bytes yet.
#[inline(always)]
pub(super) unsafe fn write_record(
    to: *mut u8,
    key: &[u8],
    seq: u64,
    kind: u8,
    value: &[u8],
    chain: Option<Chain>,
) {
    // SAFETY: all writes lie in the bytes for which the caller vouches, and header fields are
    // aligned as the layout requires.
    unsafe {
        to.cast::<u64>().write(seq << 8 | u64::from(kind));
        to.add(12).cast::<u32>().write(value.len() as u32);
        let key_length = key.len() as u32;
        let start = match chain {
            None => {
                to.add(8).cast::<u32>().write(key_length);
                PLAIN_BYTES
            }
            Some(chain) => {
                to.add(8).cast::<u32>().write(key_length | CHAINED);
                to.add(16).cast::<u32>().write(chain.older);
                to.add(20).cast::<u32>().write(chain.jump);
                to.add(24).cast::<u32>().write(chain.depth);
                CHAINED_BYTES
            }
        };
        std::ptr::copy_nonoverlapping(key.as_ptr(), to.add(start), key.len());
        std::ptr::copy_nonoverlapping(value.as_ptr(), to.add(start + key.len()), value.len());
    }
}

//! Prefetches of cache lines: one instruction, without an effect on any value.
//!
//! Threading: any thread.

#![allow(unsafe_code)]

/// Prefetches the cache line in which `value` begins.
#[inline(always)]
pub fn prefetch_line<T>(value: &T) {
    prefetch_address(std::ptr::from_ref(value).cast());
}

/// Prefetches the cache line of `address`. It need not be the address of anything.
#[inline(always)]
pub fn prefetch_address(address: *const u8) {
    #[cfg(all(target_arch = "x86_64", not(miri)))]
    // SAFETY: a prefetch has no architectural effect, whatever the address.
    unsafe {
        std::arch::x86_64::_mm_prefetch(address.cast(), std::arch::x86_64::_MM_HINT_T0);
    }
    #[cfg(not(all(target_arch = "x86_64", not(miri))))]
    let _ = address;
}

//! The SIGBUS handler. When a mapped page cannot be read (I/O error, truncated file, bad memory),
//! it replaces the page by zeros and marks its map as failed, instead of ending the process.
//!
//! Invariants: the process has one handler, installed with the first mapping. It acts only on
//! addresses inside registered ranges and passes every other SIGBUS to the handler that was there
//! before. It takes no lock and allocates nothing. A range is registered before its memory is
//! touched and unregistered before it is unmapped.
//!
//! Threading: the registry is a list of chunks of slots to which chunks are only ever added. A
//! slot's generation is odd while it changes. The handler skips such slots, and slots whose
//! generation changed while it read them. This is correct because the slot of the faulting address
//! cannot be changing: the thread that faulted holds the map.

#![allow(unsafe_code)]

use std::ffi::c_int;
use std::ptr;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering};

const CHUNK_SLOTS: usize = 256;

struct Slot {
    /// Odd while the slot is being changed.
    generation: AtomicUsize,
    /// First address, 0 for a free slot.
    start: AtomicUsize,
    /// One past the last address.
    end: AtomicUsize,
    failed: AtomicPtr<AtomicBool>,
}

struct Chunk {
    slots: [Slot; CHUNK_SLOTS],
    next: AtomicPtr<Chunk>,
}

impl Chunk {
    const fn new() -> Chunk {
        Chunk {
            slots: [const {
                Slot {
                    generation: AtomicUsize::new(0),
                    start: AtomicUsize::new(0),
                    end: AtomicUsize::new(0),
                    failed: AtomicPtr::new(ptr::null_mut()),
                }
            }; CHUNK_SLOTS],
            next: AtomicPtr::new(ptr::null_mut()),
        }
    }
}

static REGISTRY: Chunk = Chunk::new();
static PAGE_BYTES: AtomicUsize = AtomicUsize::new(4096);
/// The previously installed handler. Null until ours is installed.
static PREVIOUS: AtomicPtr<libc::sigaction> = AtomicPtr::new(ptr::null_mut());

/// A registered range. It must be dropped before the range is unmapped.
pub(crate) struct Registration {
    slot: &'static Slot,
}

/// Registers `start..end`. The mark `failed` is set when a page in the range cannot be read.
///
/// # Errors
/// If the handler could not be installed.
///
/// # Safety
/// `failed` must live until the registration is dropped, and single pages of the range may be
/// replaced by pages of zeros.
pub(crate) unsafe fn register(
    start: usize,
    end: usize,
    failed: *const AtomicBool,
) -> std::io::Result<Registration> {
    install()?;
    let mut chunk = &REGISTRY;
    loop {
        for slot in &chunk.slots {
            let generation = slot.generation.load(Ordering::Relaxed);
            if generation % 2 == 1 || slot.start.load(Ordering::Relaxed) != 0 {
                continue;
            }
            let claim = slot.generation.compare_exchange(
                generation,
                generation.wrapping_add(1),
                Ordering::Acquire,
                Ordering::Relaxed,
            );
            // Another thread may have filled the slot between the two loads; then its generation
            // has changed.
            if claim.is_err() {
                continue;
            }
            slot.start.store(start, Ordering::Release);
            slot.end.store(end, Ordering::Release);
            slot.failed.store(failed.cast_mut(), Ordering::Release);
            slot.generation
                .store(generation.wrapping_add(2), Ordering::Release);
            return Ok(Registration { slot });
        }
        chunk = next_chunk(chunk);
    }
}

fn next_chunk(chunk: &'static Chunk) -> &'static Chunk {
    let next = chunk.next.load(Ordering::Acquire);
    if !next.is_null() {
        // SAFETY: chunks are leaked, never freed.
        return unsafe { &*next };
    }
    let fresh = Box::into_raw(Box::new(Chunk::new()));
    match chunk
        .next
        .compare_exchange(ptr::null_mut(), fresh, Ordering::AcqRel, Ordering::Acquire)
    {
        // SAFETY: just leaked; never freed from here on.
        Ok(_) => unsafe { &*fresh },
        Err(other) => {
            // SAFETY: another chunk won the race, so nobody has a pointer to `fresh`.
            drop(unsafe { Box::from_raw(fresh) });
            // SAFETY: chunks are leaked, never freed.
            unsafe { &*other }
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let generation = self.slot.generation.load(Ordering::Relaxed);
        self.slot
            .generation
            .store(generation.wrapping_add(1), Ordering::Relaxed);
        // The range is cleared before the slot appears free.
        self.slot.end.store(0, Ordering::Release);
        self.slot.failed.store(ptr::null_mut(), Ordering::Release);
        self.slot.start.store(0, Ordering::Release);
        self.slot
            .generation
            .store(generation.wrapping_add(2), Ordering::Release);
    }
}

/// The size of a memory page in bytes.
pub(crate) fn page_bytes() -> usize {
    // SAFETY: sysconf has no preconditions.
    usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) })
        .unwrap_or(4096)
        .max(1)
}

fn install() -> std::io::Result<()> {
    static INSTALLED: OnceLock<Result<(), i32>> = OnceLock::new();
    let result = INSTALLED.get_or_init(|| {
        PAGE_BYTES.store(page_bytes(), Ordering::Relaxed);
        // SAFETY: an all-zero sigaction is a valid value (default handler, empty mask, no flags).
        let previous: &'static mut libc::sigaction =
            Box::leak(Box::new(unsafe { std::mem::zeroed() }));
        // SAFETY: as above.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = on_sigbus as *const () as usize;
        // The handler runs on the alternate stack, where there is one: the fault may come from a
        // small coroutine stack.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: both pointers are valid. The present action is read first, so that our handler
        // never runs without knowing the previous one.
        unsafe {
            libc::sigemptyset(&mut action.sa_mask);
            if libc::sigaction(libc::SIGBUS, ptr::null(), previous) != 0 {
                return Err(*errno());
            }
        }
        PREVIOUS.store(previous, Ordering::Release);
        // SAFETY: `action` is fully initialised.
        if unsafe { libc::sigaction(libc::SIGBUS, &action, ptr::null_mut()) } != 0 {
            // SAFETY: errno is always readable.
            return Err(unsafe { *errno() });
        }
        Ok(())
    });
    (*result).map_err(std::io::Error::from_raw_os_error)
}

#[cfg(any(target_os = "linux", target_os = "android"))]
fn errno() -> *mut c_int {
    // SAFETY: always valid to call.
    unsafe { libc::__errno_location() }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn errno() -> *mut c_int {
    // SAFETY: always valid to call.
    unsafe { libc::__error() }
}

/// Finds the mark of the registered range that contains `address`.
fn find(address: usize) -> Option<*const AtomicBool> {
    let mut chunk = &REGISTRY;
    loop {
        for slot in &chunk.slots {
            let generation = slot.generation.load(Ordering::Acquire);
            if generation % 2 == 1 {
                continue;
            }
            let start = slot.start.load(Ordering::Acquire);
            let end = slot.end.load(Ordering::Acquire);
            let failed = slot.failed.load(Ordering::Acquire);
            if slot.generation.load(Ordering::Acquire) != generation {
                continue;
            }
            if start != 0 && start <= address && address < end && !failed.is_null() {
                return Some(failed);
            }
        }
        let next = chunk.next.load(Ordering::Acquire);
        if next.is_null() {
            return None;
        }
        // SAFETY: chunks are leaked, never freed.
        chunk = unsafe { &*next };
    }
}

extern "C" fn on_sigbus(signal: c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: errno is always readable and writable; the interrupted code must find it unchanged.
    let saved = unsafe { *errno() };
    // SAFETY: the kernel passes a valid siginfo to an SA_SIGINFO handler.
    let (address, sent_by_a_process) =
        unsafe { ((*info).si_addr() as usize, (*info).si_code <= 0) };
    let handled = !sent_by_a_process
        && find(address).is_some_and(|failed| {
            // The mark is set before the zeros appear, so that a reader of the zeros can see it.
            // SAFETY: the range is registered, so its mark is alive (contract of `register`).
            unsafe { (*failed).store(true, Ordering::SeqCst) };
            let page = PAGE_BYTES.load(Ordering::Relaxed);
            // SAFETY: the page lies in a registered mapping, whose contract allows replacing pages.
            // mmap is a plain system call here and touches no state of the C library.
            let mapped = unsafe {
                libc::mmap(
                    (address & !(page - 1)) as *mut libc::c_void,
                    page,
                    // Writable, because the fault may be a store into a mapped log. Nothing stores
                    // into other maps.
                    libc::PROT_READ | libc::PROT_WRITE,
                    libc::MAP_PRIVATE | libc::MAP_ANON | libc::MAP_FIXED,
                    -1,
                    0,
                )
            };
            mapped != libc::MAP_FAILED
        });
    if !handled {
        // SAFETY: the arguments are passed on as received.
        unsafe { pass_on(signal, info, context, sent_by_a_process) };
    }
    // SAFETY: as above.
    unsafe { *errno() = saved };
}

/// Does what would have happened without our handler.
///
/// # Safety
/// May be called only from a signal handler, with its arguments.
unsafe fn pass_on(
    signal: c_int,
    info: *mut libc::siginfo_t,
    context: *mut libc::c_void,
    sent_by_a_process: bool,
) {
    // SAFETY: it was written once before our handler was installed, and is never freed.
    let previous = unsafe { &*PREVIOUS.load(Ordering::Acquire) };
    match previous.sa_sigaction {
        libc::SIG_IGN if sent_by_a_process => {}
        libc::SIG_DFL | libc::SIG_IGN => {
            // The default action ends the process: by the same fault, which repeats when this
            // returns, or by a second signal if a process sent the first one.
            // SAFETY: these calls are async-signal-safe, and the zeroed action is valid.
            unsafe {
                let mut default: libc::sigaction = std::mem::zeroed();
                default.sa_sigaction = libc::SIG_DFL;
                libc::sigaction(signal, &default, ptr::null_mut());
                if sent_by_a_process {
                    libc::raise(signal);
                }
            }
        }
        handler if previous.sa_flags & libc::SA_SIGINFO != 0 => {
            // SAFETY: an SA_SIGINFO action holds a function of this type.
            unsafe {
                let handler: extern "C" fn(c_int, *mut libc::siginfo_t, *mut libc::c_void) =
                    std::mem::transmute(handler);
                handler(signal, info, context);
            }
        }
        handler => {
            // SAFETY: an action without SA_SIGINFO that is neither default nor ignore holds a
            // function of this type.
            unsafe {
                let handler: extern "C" fn(c_int) = std::mem::transmute(handler);
                handler(signal);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registry_grows_and_slots_are_used_again() {
        let mark = AtomicBool::new(false);
        let base = 0x7000_0000_0000usize; // never dereferenced
        let count = CHUNK_SLOTS * 2 + 10;
        let range = |i: usize| (base + i * 0x1_0000, base + i * 0x1_0000 + 0x1000);
        for _ in 0..3 {
            let registered: Vec<Registration> = (0..count)
                // SAFETY: the mark outlives the registrations; nothing faults there.
                .map(|i| unsafe { register(range(i).0, range(i).1, &mark).unwrap() })
                .collect();
            for i in 0..count {
                assert_eq!(find(range(i).0), Some(&raw const mark));
                assert_eq!(find(range(i).1 - 1), Some(&raw const mark));
                assert_eq!(find(range(i).1), None);
            }
            drop(registered);
            assert_eq!(find(range(0).0), None);
            assert_eq!(find(range(count - 1).0), None);
        }
    }

    #[test]
    fn concurrent_registration() {
        std::thread::scope(|scope| {
            for t in 0..4usize {
                scope.spawn(move || {
                    let mark = AtomicBool::new(false);
                    for i in 0..2000 {
                        let start = 0x6000_0000_0000 + t * 0x1000_0000 + i * 0x1000;
                        // SAFETY: the mark outlives the registration; nothing faults there.
                        let registration =
                            unsafe { register(start, start + 0x1000, &mark).unwrap() };
                        assert_eq!(find(start + 5), Some(&raw const mark));
                        drop(registration);
                        assert_eq!(find(start + 5), None);
                    }
                });
            }
        });
    }
}

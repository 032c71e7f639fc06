//! SIGINT and SIGTERM set a flag.
//!
//! Threading: signal handlers, which only store into an atomic.

use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGINT, SIGTERM};

/// Has `flag` set when the user wants the program to end.
pub fn set_on_signal(flag: &'static AtomicBool) -> Result<(), String> {
    for signal in [SIGINT, SIGTERM] {
        let store = move || flag.store(true, Ordering::Release);
        // SAFETY: the handler only stores into an atomic, which signal-safety(7) allows.
        let registered = unsafe { signal_hook::low_level::register(signal, store) };
        registered.map_err(|error| format!("signal {signal} cannot be handled: {error}"))?;
    }
    Ok(())
}

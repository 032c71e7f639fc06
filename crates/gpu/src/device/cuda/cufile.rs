//! The library of direct transfers between files and GPUs, libcufile. It is only looked for here.
//!
//! Threading: may be called from all threads at once.

/// The names of its file.
const NAMES: [&str; 2] = ["libcufile.so.0", "libcufile.so"];

/// The calls that direct transfers need.
const CALLS: [&str; 3] = ["cuFileDriverOpen", "cuFileRead", "cuFileWrite"];

/// Looks for the library: the name under which the loader has found it. Whether a GPU and a file
/// system can use it is not tried.
///
/// # Errors
/// There is none, or it lacks calls, as text.
pub fn find_cufile() -> Result<&'static str, String> {
    for name in NAMES {
        // SAFETY: loading the library runs its initialisers, as in every program that uses it. No
        // call of it is made.
        let Ok(library) = (unsafe { libloading::Library::new(name) }) else {
            continue;
        };
        // SAFETY: the address is never called.
        let lacks =
            |call: &&&str| unsafe { library.get::<unsafe extern "C" fn()>(**call) }.is_err();
        let missing: Vec<&str> = CALLS.iter().filter(lacks).copied().collect();
        // It stays loaded: a library that has started threads must not be unloaded.
        std::mem::forget(library);
        return match missing.is_empty() {
            true => Ok(name),
            false => Err(format!("{name} has no {}", missing.join(", "))),
        };
    }
    Err(format!(
        "there is no libcufile (looked for {}); install GPUDirect Storage",
        NAMES.join(", ")
    ))
}

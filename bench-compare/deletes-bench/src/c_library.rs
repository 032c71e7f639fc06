//! Shared libraries that are loaded at run time, and the functions of their C interfaces.
//!
//! Threading: a library that was opened stays loaded until the process ends.

use std::ffi::{CStr, CString, c_char, c_void};

/// A pointer that an engine gave.
pub(crate) type P = *mut c_void;

/// Where an engine leaves the text of an error.
pub(crate) type Failure = *mut *mut c_char;

/// A loaded library.
pub struct Library {
    handle: P,
    name: String,
}

impl Library {
    /// Loads the library that the environment variable `variable` names, or else `name`.
    pub(crate) fn open(variable: &str, name: &str) -> Result<Library, String> {
        let name = std::env::var(variable).unwrap_or(name.to_string());
        let text = CString::new(name.as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a valid string; the libraries' constructors are trusted as those of any engine.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match handle.is_null() {
            true => Err(format!(
                "the library `{name}` cannot be loaded; install it, or set {variable} to its path"
            )),
            false => Ok(Library { handle, name }),
        }
    }

    /// The address of a function.
    pub(crate) fn find(&self, name: &str) -> Result<P, String> {
        let text = CString::new(name).map_err(|e| e.to_string())?;
        // SAFETY: the library is loaded, the string is valid.
        let found = unsafe { libc::dlsym(self.handle, text.as_ptr()) };
        match found.is_null() {
            true => Err(format!(
                "the library `{}` has no function `{name}`",
                self.name
            )),
            false => Ok(found),
        }
    }
}

/// Copies a text that an engine gave, if it gave one, and has `free` release it.
///
/// # Safety
/// `given` is null or a zero-terminated string that `free` may release.
pub(crate) unsafe fn taken(given: *mut c_char, free: unsafe extern "C" fn(P)) -> Option<String> {
    if given.is_null() {
        return None;
    }
    // SAFETY: as the caller promises.
    unsafe {
        let text = CStr::from_ptr(given).to_string_lossy().into_owned();
        free(given.cast());
        Some(text)
    }
}

/// Declares functions of a C interface without their prefix, as fields of a structure that a
/// library fills. The types must be those of the header.
macro_rules! c_functions {
    ($structure:ident; $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(clippy::type_complexity)]
        struct $structure {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $structure {
            fn load(library: &Library, prefix: &str) -> Result<$structure, String> {
                Ok($structure {
                    $($name: {
                        let found = library.find(&format!("{prefix}_{}", stringify!($name)))?;
                        // SAFETY: the header declares the function with these types.
                        unsafe {
                            std::mem::transmute::<
                                P,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

pub(crate) use c_functions;

//! LevelDB and RocksDB as shared libraries that are loaded at run time, through their C interfaces.
//! These have the same functions under two prefixes.
//!
//! Threading: a library that was opened stays loaded until the process ends.

use std::ffi::{CStr, CString, c_char, c_void};

/// A pointer that an engine gave.
pub type P = *mut c_void;

/// Where an engine leaves the text of an error.
pub type Failure = *mut *mut c_char;

/// A loaded library.
pub struct Library {
    handle: P,
    name: String,
}

impl Library {
    /// Loads LevelDB as the system has it (Debian: libleveldb1d).
    pub fn leveldb() -> Result<Library, String> {
        Library::open("libleveldb.so.1d".to_string())
            .map_err(|e| format!("{e}; install libleveldb1d"))
    }

    /// Loads RocksDB: the library that `ROCKSDB_LIBRARY` names, or else `librocksdb.so`.
    pub fn rocksdb() -> Result<Library, String> {
        let name = std::env::var("ROCKSDB_LIBRARY").unwrap_or("librocksdb.so".to_string());
        Library::open(name).map_err(|e| format!("{e}; set ROCKSDB_LIBRARY to its path"))
    }

    fn open(name: String) -> Result<Library, String> {
        let text = CString::new(name.as_bytes()).map_err(|e| e.to_string())?;
        // SAFETY: a valid string; the libraries' constructors are trusted as those of any engine.
        let handle = unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
        match handle.is_null() {
            true => Err(format!("the library `{name}` cannot be loaded")),
            false => Ok(Library { handle, name }),
        }
    }

    /// The address of a function.
    pub fn find(&self, name: &str) -> Result<P, String> {
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
pub unsafe fn taken(given: *mut c_char, free: unsafe extern "C" fn(P)) -> Option<String> {
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
#[macro_export]
macro_rules! c_functions {
    ($structure:ident; $($name:ident: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        #[allow(clippy::type_complexity)]
        struct $structure {
            $($name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $structure {
            fn load(
                library: &$crate::c_library::Library,
                prefix: &str,
            ) -> ::std::result::Result<$structure, String> {
                Ok($structure {
                    $($name: {
                        let found = library.find(&format!("{prefix}_{}", stringify!($name)))?;
                        // SAFETY: the header declares the function with these types.
                        unsafe {
                            ::std::mem::transmute::<
                                $crate::c_library::P,
                                unsafe extern "C" fn($($argument),*) $(-> $result)?,
                            >(found)
                        }
                    },)*
                })
            }
        }
    };
}

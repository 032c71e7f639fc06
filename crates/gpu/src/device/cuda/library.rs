//! Libraries of NVIDIA. Each is looked for when it is needed, and stays loaded, because a library
//! that has started threads must not be unloaded.
//!
//! Threading: may be called from all threads at once.

/// Declares a structure `Calls` with the addresses of a library's calls, and finds them.
macro_rules! calls {
    ($($name:ident($($parameter:ty),* $(,)?) -> $result:ty;)*) => {
        /// The addresses of the calls, in a library that is never unloaded.
        #[derive(Clone, Copy)]
        #[allow(non_snake_case)]
        struct Calls {
            $($name: unsafe extern "C" fn($($parameter),*) -> $result,)*
        }

        impl Calls {
            /// Finds all calls, or the names of those that are missing.
            #[allow(non_snake_case)]
            fn find(library: &libloading::Library) -> Result<Calls, String> {
                let mut missing: Vec<&str> = Vec::new();
                $(
                    // SAFETY: each call is declared with the signature of the library's header,
                    // which has been the same since the call was introduced.
                    let $name = unsafe {
                        library.get::<unsafe extern "C" fn($($parameter),*) -> $result>(
                            concat!(stringify!($name), "\0").as_bytes(),
                        )
                    };
                    if $name.is_err() {
                        missing.push(stringify!($name));
                    }
                )*
                if let ($(Ok($name),)*) = ($($name,)*) {
                    return Ok(Calls { $($name: *$name,)* });
                }
                Err(missing.join(", "))
            }
        }
    };
}
pub(super) use calls;

/// Loads the first of these libraries that the loader finds. Returns its name and its calls.
/// `advice` says what to do if there is none.
///
/// # Errors
/// There is none, or it lacks calls, as text.
pub(super) fn load<C>(
    library: &str,
    names: &[&'static str],
    advice: &str,
    find: impl FnOnce(&libloading::Library) -> Result<C, String>,
) -> Result<(&'static str, C), String> {
    for name in names {
        // SAFETY: loading the library runs its initialisers, as in every program that uses it.
        let Ok(loaded) = (unsafe { libloading::Library::new(*name) }) else {
            continue;
        };
        let calls = find(&loaded);
        std::mem::forget(loaded);
        return match calls {
            Ok(calls) => Ok((name, calls)),
            Err(missing) => Err(format!("{name} has no {missing}")),
        };
    }
    let names = names.join(", ");
    Err(format!(
        "there is no {library} (looked for {names}); {advice}"
    ))
}

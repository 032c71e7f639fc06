//! Where records come from: a file, or standard input.

use std::fs::File;
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use crate::args::LoadArgs;
use crate::failure::Failure;

/// An input that is open.
pub struct Input {
    /// Its bytes.
    pub bytes: Box<dyn Read>,
    /// Known of a file.
    pub len: Option<u64>,
    /// For messages.
    pub name: String,
    /// What it is called where interrupted loads are kept; none if it cannot be read again.
    pub identity: Option<Vec<u8>>,
}

impl Input {
    /// Opens what the arguments name.
    ///
    /// # Errors
    /// It is not there, or no file.
    pub fn open(args: &LoadArgs) -> Result<Input, Failure> {
        let named = args.input_name.as_ref();
        let named = named.map(|name| [b"name:", name.as_bytes()].concat());
        let path: &Path = &args.file;
        if path == Path::new("-") {
            return Ok(Input {
                bytes: Box::new(io::stdin().lock()),
                len: None,
                name: "standard input".to_string(),
                identity: named,
            });
        }
        let fail = |e: io::Error| Failure::file(path, &e);
        let file = File::open(path).map_err(fail)?;
        let meta = file.metadata().map_err(fail)?;
        if meta.is_dir() {
            return Err(Failure::Other(format!(
                "{}: it is a folder, expected a file",
                path.display()
            )));
        }
        let identity = if named.is_some() || !meta.is_file() {
            named
        } else {
            let whole = path.canonicalize().map_err(fail)?;
            Some([b"file:", whole.as_os_str().as_bytes()].concat())
        };
        Ok(Input {
            bytes: Box::new(file),
            len: meta.is_file().then_some(meta.len()),
            name: path.display().to_string(),
            identity,
        })
    }
}

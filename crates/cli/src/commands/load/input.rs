//! The origin of records (a file or standard input), and the format that its name implies.

use std::cell::Cell;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read, Seek};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;

use super::advice;
use crate::args::{Format, LoadArgs};
use crate::failure::Failure;
use crate::load::content::{Compression, Convert, Encoding, Refusal};
use crate::load::decode::{Decoded, Expected, Undecodable, Untrusted, decoded};
use crate::signals::Signals;

/// A format, and its origin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guess {
    /// The format.
    pub format: Format,
    /// Its origin.
    pub from: GuessedFrom,
}

/// The origin of an input's format.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GuessedFrom {
    /// The flag.
    Flag,
    /// The extension of the file's name.
    Ending,
    /// A default: the name has no extension, or there is no name. Then text is read as lines.
    Nothing,
}

impl GuessedFrom {
    /// The text for the first line of output.
    pub fn describe(self) -> &'static str {
        match self {
            GuessedFrom::Flag => "",
            GuessedFrom::Ending => " (by the extension of its name)",
            GuessedFrom::Nothing => " (nothing says of which format it is; --format does)",
        }
    }
}

/// Extensions that show the compression of a file, and nothing about its format.
const COMPRESSED: [&str; 11] = [
    "gz", "gzip", "zst", "zstd", "xz", "bz2", "lz4", "z", "zip", "7z", "tgz",
];

fn ending(path: &Path) -> Option<String> {
    let ending = path.extension()?.to_string_lossy().to_lowercase();
    (!ending.is_empty()).then_some(ending)
}

fn is_compressed(ending: &str) -> bool {
    COMPRESSED.contains(&ending)
}

/// The format of the input.
///
/// # Errors
/// Its name has an unknown extension.
pub fn guess(args: &LoadArgs) -> Result<Guess, Failure> {
    let guessed = |format, from| Ok(Guess { format, from });
    if let Some(format) = args.format {
        return guessed(format, GuessedFrom::Flag);
    }
    let mut path: PathBuf = args.file.clone();
    let mut found = ending(&path);
    if found.as_deref().is_some_and(is_compressed) {
        path.set_extension("");
        found = ending(&path);
    }
    let format = match found.as_deref() {
        None => return guessed(Format::Lines, GuessedFrom::Nothing),
        Some("csv") => Format::Csv,
        Some("tsv" | "tab") => Format::Tsv,
        Some("json") => Format::Json,
        Some("jsonl" | "ndjson") => Format::Jsonl,
        Some("txt" | "text" | "log" | "lst") => Format::Lines,
        Some(ending) => {
            return Err(Failure::Usage(format!(
                "{}: the extension `.{ending}` does not show its format; give --format csv, tsv, \
                 jsonl, json, fixed, or --format lines to load it line by line",
                args.file.display()
            )));
        }
    };
    guessed(format, GuessedFrom::Ending)
}

/// What is known of an open input.
pub struct Input {
    /// The number of bytes of the file that were read, before they were decoded.
    pub read: Rc<Cell<u64>>,
    /// The length of the file; none if the input is not a regular file.
    pub len: Option<u64>,
    /// Its name in messages.
    pub name: String,
    /// How its bytes were decoded, in words.
    pub decoded: Option<String>,
    /// How it was compressed, and how its text was encoded.
    pub undone: (Option<Compression>, Option<Encoding>),
    /// The number of bytes that follow the compressed data and do not belong to it. It is known
    /// once the end was read.
    pub trailing: Rc<Cell<u64>>,
    /// Whether it is standard input.
    pub is_stdin: bool,
    /// The name under which an interrupted load of it is stored; none if it cannot be read again.
    pub identity: Option<Vec<u8>>,
}

impl Input {
    /// Opens the input that the arguments name. The second part of the result is its decoded
    /// bytes. Reading them fails with the signal once one has come.
    ///
    /// # Errors
    /// The input does not exist or is a folder, or its content cannot be loaded.
    pub fn open(
        args: &LoadArgs,
        guess: Guess,
        signals: &Rc<Signals>,
    ) -> Result<(Input, Box<dyn Read>), Failure> {
        let named = args.input_name.as_ref();
        let named = named.map(|name| [b"name:", name.as_bytes()].concat());
        let path: &Path = &args.file;
        if path == Path::new("-") {
            let name = "standard input".to_string();
            let fail = |e: io::Error| Failure::io(&name, &e);
            let file = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(fail)?);
            let whole = Whole::of(file, signals.clone()).map_err(fail)?;
            let decoded = decode(args, guess, &name, whole)?;
            return Ok(Input::of(decoded, None, name, named, true));
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
        let name = path.display().to_string();
        let whole = Whole::of(file, signals.clone()).map_err(fail)?;
        let decoded = decode(args, guess, &name, whole)?;
        let len = meta.is_file().then_some(meta.len());
        Ok(Input::of(decoded, len, name, identity, false))
    }

    fn of(
        decoded: Decoded<'static>,
        len: Option<u64>,
        name: String,
        identity: Option<Vec<u8>>,
        is_stdin: bool,
    ) -> (Input, Box<dyn Read>) {
        let input = Input {
            decoded: decoded.how(),
            undone: (decoded.compression, decoded.encoding),
            is_stdin,
            read: decoded.read,
            trailing: decoded.trailing,
            len,
            name,
            identity,
        };
        (input, decoded.bytes)
    }
}

/// A file that is read at least to the length that it had when it was opened. If it gets shorter
/// meanwhile (`logrotate` empties a file in place with `copytruncate`), reading fails instead of
/// ending early.
struct Whole {
    file: File,
    /// The length when it was opened, and the position of reading; none if it is not a regular
    /// file.
    len: Option<(u64, u64)>,
    signals: Rc<Signals>,
}

impl Whole {
    fn of(mut file: File, signals: Rc<Signals>) -> io::Result<Whole> {
        let meta = file.metadata()?;
        let len = match meta.is_file() {
            // Standard input may be a file that was partly read before.
            true => Some((meta.len(), file.stream_position()?)),
            false => None,
        };
        Ok(Whole { file, len, signals })
    }
}

impl Read for Whole {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.signals.wait(&self.file)?;
        let read = self.file.read(buffer)?;
        if let Some((len, at)) = &mut self.len {
            // Bytes that were read after the file had been cut may be anything.
            let now = self.file.metadata()?.len();
            if now < *len || read == 0 && *at < *len && !buffer.is_empty() {
                let found = match now < *len {
                    true => format!("now has {now}"),
                    // It grew again before its length was read.
                    false => format!("ended at byte {at}"),
                };
                return Err(Untrusted::error(format!(
                    "the file got shorter while it was read: it began with {len} bytes and \
                     {found}; load a copy of it that nothing changes (--restart loads this file \
                     as it is now from its start)"
                )));
            }
            *at += read as u64;
        }
        Ok(read)
    }
}

fn decode(
    args: &LoadArgs,
    guess: Guess,
    name: &str,
    input: impl Read + 'static,
) -> Result<Decoded<'static>, Failure> {
    let expected = if args.raw {
        Expected::Raw
    } else if guess.format == Format::Fixed {
        Expected::Fixed
    } else {
        Expected::Text {
            is_guess: guess.from != GuessedFrom::Flag,
        }
    };
    decoded(input, expected).map_err(|why| match why {
        Undecodable::Io(error) => Failure::io(name, &error),
        Undecodable::Refused(refusal) => refuse(args, guess.format, name, &refusal),
    })
}

/// The command line that loads text without the halves of characters in it; none if the input is
/// not decoded.
pub fn without_halves(
    args: &LoadArgs,
    format: Format,
    (compression, encoding): (Option<Compression>, Option<Encoding>),
) -> Option<String> {
    let decode = Convert::decode_whole(encoding?);
    let convert: Vec<Convert> = compression.map(Convert::decompress).into_iter().collect();
    let convert = [convert, vec![decode]].concat();
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let format = super::readers::name_of(format);
    Some(advice::piped(&convert, &args.file, &words, format))
}

/// The error for an input whose content cannot be loaded, with a command that loads it.
pub fn refuse(args: &LoadArgs, format: Format, name: &str, refusal: &Refusal) -> Failure {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    let Refusal { what, expected, .. } = refusal;
    let format_name = match refusal.format {
        Some(name) => name,
        // The name of an archive says nothing about the text in it.
        None if super::readers::Flags::of(args, format).is_err() => "FORMAT",
        None => super::readers::name_of(format),
    };
    Failure::Other(match &refusal.convert[..] {
        [] => format!(
            "{name}: it is {what}, expected {expected}; for records of one length give --format \
             fixed --record BYTES --key A..B; `{}` loads it as it is",
            advice::as_it_is(&words, format_name)
        ),
        convert => {
            let note = match refusal.note {
                "" => String::new(),
                note => format!(", {note},"),
            };
            format!(
                "{name}: it is {what}, expected {expected}; `{}`{note} loads it (--raw takes it \
                 as it stands)",
                advice::piped(convert, &args.file, &words, format_name)
            )
        }
    })
}

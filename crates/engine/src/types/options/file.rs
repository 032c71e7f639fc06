//! The TOML file of options, which belongs to the user.
//!
//! The file begins with the store's settings and the defaults of its keyspaces. Below them a table
//! `[keyspaces.NAME]` sets what one keyspace has instead. [`Options::to_toml`] writes every setting
//! with a comment above it: its meaning, unit, default, range, and whether it may change while the
//! store is open.
//!
//! Invariants: text that was written reads back as the same options. The error for an unknown name
//! suggests the nearest known one, and every error in a line has the line and the column.
//!
//! Threading: pure functions, but for [`Options::load`], which reads one file.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::io::Read;
use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{KeyspaceOptions, Options, SETTINGS, Scope, Value};
use crate::types::error::{Error, Result};

/// A longer file is refused. All settings with their comments take some 10 KB.
pub(crate) const FILE_BYTES_MAX: u64 = 1 << 20;

/// The contents of a file of options.
#[derive(Clone, Debug, Default)]
pub(crate) struct OptionsFile {
    /// Its options. An option that the file does not set has its default.
    pub(crate) options: Options,
    /// The names of the options that it sets outside of `[keyspaces]`.
    pub(crate) names: BTreeSet<&'static str>,
}

/// The text of a file of options, in which errors are located.
#[derive(Clone, Copy)]
struct FileText<'a>(&'a str);

impl FileText<'_> {
    /// The error, with the line and the column in front.
    fn locate(self, span: Range<usize>, error: Error) -> Error {
        let before = &self.0.as_bytes()[..span.start.min(self.0.len())];
        let line = 1 + before.iter().filter(|b| **b == b'\n').count();
        let line_start = before
            .iter()
            .rposition(|b| *b == b'\n')
            .map_or(0, |at| at + 1);
        let column = 1 + String::from_utf8_lossy(&before[line_start..])
            .chars()
            .count();
        error.context(format!("line {line}, column {column}"))
    }

    /// The text of this span.
    fn text(self, span: Range<usize>) -> String {
        self.0.get(span).unwrap_or_default().to_string()
    }

    fn value(self, name: &str, value: &Spanned<DeValue<'_>>) -> Result<Value> {
        let number = |text: &str, radix| u64::from_str_radix(text, radix).ok();
        let known = match value.get_ref() {
            DeValue::Boolean(on) => Some(Value::Switch(*on)),
            DeValue::String(text) => Some(Value::Text(text.to_string())),
            DeValue::Integer(integer) => {
                number(integer.as_str(), integer.radix()).map(Value::Number)
            }
            DeValue::Array(values) => {
                let values: Result<Vec<Value>> =
                    values.iter().map(|v| self.value(name, v)).collect();
                return values.map(Value::List);
            }
            _ => None,
        };
        let is_number = matches!(value.get_ref(), DeValue::Integer(_) | DeValue::Float(_));
        known.ok_or_else(|| {
            let text = self.text(value.span());
            // The setting's own error says which numbers it takes.
            let refused = is_number.then(|| super::refuse_number(name, &text));
            refused.flatten().unwrap_or_else(|| {
                Error::invalid_argument(format!("the value of option {name} is not valid"))
                    .expected(
                        "a number that is not negative, true or false, a text, or a list of these",
                    )
                    .found(text)
            })
        })
    }

    fn table<'t, 'i>(self, what: &str, value: &'t Spanned<DeValue<'i>>) -> Result<&'t DeTable<'i>> {
        value.get_ref().as_table().ok_or_else(|| {
            let error = Error::invalid_argument(format!("`{what}` is not a table"))
                .expected(format!("[{what}] and lines below it"))
                .found(self.text(value.span()));
            self.locate(value.span(), error)
        })
    }
}

impl OptionsFile {
    /// Reads the text of a file.
    pub(crate) fn parse(text: &str) -> Result<OptionsFile> {
        let source = FileText(text);
        let table = DeTable::parse(text).map_err(|e| {
            let message = format!("the options are not TOML: {}", e.message());
            source.locate(e.span().unwrap_or(0..0), Error::invalid_argument(message))
        })?;
        let mut file = OptionsFile::default();
        for (name, value) in table.get_ref() {
            let at = name.span();
            let name: &str = name.get_ref();
            if name != "keyspaces" {
                let set = super::setting(name).and_then(|setting| {
                    let value = source.value(name, value)?;
                    file.options.set(name, &value)?;
                    Ok(setting)
                });
                let setting = set.map_err(|e| source.locate(at, e))?;
                file.names.insert(setting.name);
                continue;
            }
            for (keyspace, lines) in source.table("keyspaces", value)? {
                let keyspace: &str = keyspace.get_ref();
                let own = file
                    .options
                    .keyspaces
                    .entry(keyspace.to_string())
                    .or_default();
                for (name, value) in source.table(&format!("keyspaces.{keyspace}"), lines)? {
                    let at = name.span();
                    let name: &str = name.get_ref();
                    source
                        .value(name, value)
                        .and_then(|value| own.set(name, &value))
                        .map_err(|e| {
                            source.locate(at, e.context(format!("keyspace `{keyspace}`")))
                        })?;
                }
            }
        }
        file.options.validate()?;
        Ok(file)
    }

    /// Reads the bytes of a file.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Result<OptionsFile> {
        if bytes.len() as u64 > FILE_BYTES_MAX {
            return Err(Error::invalid_argument("the file of options is too long")
                .expected(format!("at most {FILE_BYTES_MAX} bytes"))
                .advice("look at what is in the file: all settings together take some 10 KB"));
        }
        let text = std::str::from_utf8(bytes).map_err(|e| {
            Error::invalid_argument("the file of options is not UTF-8")
                .at(e.valid_up_to() as u64)
                .advice("write the file as UTF-8")
        })?;
        OptionsFile::parse(text)
    }
}

/// Adds to the error of a file of options what the user can do.
pub(crate) fn file_is_wrong(error: Error) -> Error {
    let mend = "correct the line, or delete the file: the data does not depend on it, and what \
                the file does not set has its default";
    let advice = match error.advice_text() {
        Some(advice) => format!("{advice}; {mend}"),
        None => mend.to_string(),
    };
    error.advice(advice)
}

/// Whether the file, or a folder on the way to it, is not there.
fn is_missing(error: &std::io::Error) -> bool {
    use std::io::ErrorKind::{NotADirectory, NotFound};
    matches!(error.kind(), NotFound | NotADirectory)
}

/// A key in TOML, without quotes if it may be.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        name.to_string()
    } else {
        Value::from(name).to_string()
    }
}

impl Options {
    /// Reads options from TOML. An option that the text does not set has its default. In a list of
    /// values by level, the last one counts for all deeper levels.
    ///
    /// ```
    /// use siltstone::{Options, SyncMode};
    /// let options = Options::from_toml(
    ///     r#"
    ///     sync = "always"
    ///     memtable_bytes = "32 MiB"
    ///     compression = ["none", "lz4", "zstd:3"]
    ///
    ///     [keyspaces.events]
    ///     block_bytes = "32 KiB"
    ///     "#,
    /// )?;
    /// assert_eq!(options.sync, SyncMode::Always);
    /// assert_eq!(Options::from_toml(&options.to_toml())?, options);
    ///
    /// let error = Options::from_toml("memtable_byte = 1").unwrap_err();
    /// assert!(error.to_string().contains("memtable_bytes"), "{error}"); // the nearest name
    /// # siltstone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument`, with the line and the column, for text that is not TOML, for unknown
    /// names (with the nearest known one), for values that are not valid, and for values that
    /// contradict each other.
    pub fn from_toml(text: &str) -> Result<Options> {
        Ok(OptionsFile::parse(text)?.options)
    }

    /// Reads the options that an operator keeps in the file `OPTIONS.toml` in a store's folder.
    /// `silt options` writes this file, and every command of `silt` uses it. Options that the file
    /// does not set have their defaults. [`crate::Store::open`] does not read the file by itself:
    /// pass it the result of this call.
    ///
    /// A store keeps the options of single keyspaces. An option that a table `[keyspaces.NAME]` of
    /// the file has set once stays in force when it is removed from the file, until
    /// [`crate::Keyspace::unset_options`] (`silt options -k NAME --unset OPTION`) removes it.
    ///
    /// `path` is the store's folder, or the file itself. If the folder has no such file, or does
    /// not exist yet, the options are the defaults. A path that ends with `.toml` must exist.
    ///
    /// ```
    /// use siltstone::{Options, Store, SyncMode};
    /// # let folder = tempfile::tempdir().unwrap();
    /// # let path = folder.path().join("birds.silt");
    /// # std::fs::create_dir(&path).unwrap();
    /// # std::fs::write(path.join("OPTIONS.toml"), "sync = \"always\"").unwrap();
    /// let store = Store::open(&path, Options::load(&path)?)?;
    /// assert_eq!(store.options().sync, SyncMode::Always); // the file says so
    /// # siltstone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// Those of [`Options::from_toml`], with the path of the file in front; `NotFound` for a
    /// missing path that ends with `.toml`; `InvalidArgument` for a file of more than 1 MiB or one
    /// that is not UTF-8; I/O.
    pub fn load(path: impl AsRef<Path>) -> Result<Options> {
        let path = path.as_ref();
        let is_toml = path.extension().is_some_and(|e| e == "toml");
        let is_named = path.is_file() || is_toml && !path.is_dir();
        let file = match is_named {
            true => path.to_path_buf(),
            false => path.join(OPTIONS),
        };
        let io = |error: &std::io::Error| {
            let name = file.file_name().unwrap_or(file.as_os_str());
            let name = name.to_string_lossy().into_owned();
            let missing = is_missing(error);
            let error = siltstone_storage::StorageError::from_io("open", &name, error);
            let error = Error::from(error);
            let error = error.context(format!("reading options from {}", file.display()));
            match missing {
                true => error.advice(
                    "check the path, or pass the store's folder, which need not have the file",
                ),
                false => error,
            }
        };
        let mut bytes = Vec::new();
        let read = std::fs::File::open(&file)
            .and_then(|open| open.take(FILE_BYTES_MAX + 1).read_to_end(&mut bytes));
        match read {
            Ok(_) => OptionsFile::from_bytes(&bytes)
                .map(|file| file.options)
                .map_err(|e| file_is_wrong(e).context(file.display())),
            Err(error) if !is_named && is_missing(&error) => Ok(Options::default()),
            Err(error) => Err(io(&error)),
        }
    }

    /// The options as TOML: every setting with a comment that gives its meaning, unit, default and
    /// range, and says whether it can change while the store is open.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for (scope, title) in [
            (Scope::Store, "# The store.\n"),
            (
                Scope::Keyspace,
                "\n# Defaults of keyspaces. A table [keyspaces.NAME] below may set other values \
                 for one of them.\n",
            ),
        ] {
            out.push_str(title);
            for setting in SETTINGS.iter().filter(|s| s.scope == scope) {
                out.push('\n');
                let _ = writeln!(out, "# {}", setting.description());
                let value = setting.show(&setting.value(self));
                let _ = writeln!(out, "{} = {value}", setting.name);
            }
        }
        for (name, own) in &self.keyspaces {
            let _ = write!(out, "\n[keyspaces.{}]\n{}", key(name), own.to_toml());
        }
        out
    }
}

impl KeyspaceOptions {
    /// The options that are set, as lines of TOML without comments.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for setting in SETTINGS {
            if let Some(value) = setting.keyspace_value(self) {
                let _ = writeln!(out, "{} = {}", setting.name, setting.show(&value));
            }
        }
        out
    }
}

/// The name of the user's file of options.
pub(crate) const OPTIONS: &str = "OPTIONS.toml";

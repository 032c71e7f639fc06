//! Tables that are built outside a store, for [`crate::Store::ingest`].
//!
//! [`TableBuilder`] takes puts and deletes in ascending key order, begins tables and blocks where
//! the layout says (`siltstone_table::layout`), and writes finished, synced tables into a folder of
//! the caller. [`TableFolder`] is such a folder, [`TableFile`] one table in it.
//!
//! Invariants: all entries have sequence number 0, each key is there once, and no table says to
//! which keyspace it belongs (RFC 3, section 5). So a table that nobody ingested cannot be taken
//! for data of a store. The result names a table only when its bytes and its name are synced.
//!
//! Threading: a builder has one owner; folders and files are plain handles.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use litemap::LiteMap;
use siltstone_storage::files::FileStorage;
use siltstone_storage::{Epoch, Storage, StorageErrorKind, WriteFile};
use siltstone_table::error::TableError;
use siltstone_table::key::{Kind, raw_bytes, trailer};
use siltstone_table::layout::{Layout, LayoutLimits};
use siltstone_table::limits::{MAX_BLOCK_SIZE_BYTES, MIN_BLOCK_SIZE_BYTES};
use siltstone_table::writer::{TableWriter, WriterBuffers, WriterOptions};

use crate::env::descriptors::Descriptors;
use crate::formats::names::BUILT_TABLE_SUFFIX;
use crate::jobs::build::codec_of;
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::limits::BOTTOM_LEVEL;
use crate::types::options::{Compression, KeyspaceSettings, Options};
use crate::types::show::ShowKey;

/// A folder of tables that belong to no store.
#[derive(Clone)]
pub struct TableFolder {
    storage: Arc<dyn Storage>,
    epoch: Epoch,
}

impl TableFolder {
    /// Opens the folder `path`, which must exist.
    ///
    /// # Errors
    /// `NotFound` if it does not exist, `InvalidArgument` if it is not a folder, or I/O.
    pub fn open(path: impl AsRef<Path>) -> Result<TableFolder> {
        let path = path.as_ref();
        let storage = FileStorage::open_existing(path).map_err(|e| {
            Error::from(e).context(format!("opening the folder {}", path.display()))
        })?;
        Ok(TableFolder::on(Arc::new(storage), Epoch::default()))
    }

    /// Opens the folder `path`, and creates it if it does not exist.
    ///
    /// # Errors
    /// As [`TableFolder::open`].
    pub fn create(path: impl AsRef<Path>) -> Result<TableFolder> {
        let path = path.as_ref();
        let storage = FileStorage::open_or_create(path)
            .map_err(|e| Error::from(e).context(format!("making the folder {}", path.display())))?;
        Ok(TableFolder::on(Arc::new(storage), Epoch::default()))
    }

    /// Uses a storage of the caller as the folder. Every call that changes it gets `epoch`, as
    /// [`Storage`] requires.
    pub fn on(storage: Arc<dyn Storage>, epoch: Epoch) -> TableFolder {
        TableFolder { storage, epoch }
    }

    /// The table called `name`. This does not check that there is such a file.
    pub fn file(&self, name: &str) -> TableFile {
        TableFile {
            folder: self.clone(),
            name: name.to_string(),
        }
    }

    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The same folder. If the process has no file descriptor left, its calls close files of the
    /// store's tables and try again.
    pub(crate) fn wrapped(&self, descriptors: &Arc<Descriptors>) -> TableFolder {
        TableFolder::on(descriptors.wrap(self.storage.clone()), self.epoch)
    }
}

impl std::fmt::Debug for TableFolder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TableFolder({})", self.storage.describe())
    }
}

/// One table in a [`TableFolder`].
#[derive(Clone, Debug)]
pub struct TableFile {
    folder: TableFolder,
    name: String,
}

impl TableFile {
    /// The tables with these paths. Each folder is opened once.
    ///
    /// # Errors
    /// As [`TableFolder::open`]; `InvalidArgument` for a path without a file name in UTF-8.
    pub fn at_paths<P: AsRef<Path>>(paths: impl IntoIterator<Item = P>) -> Result<Vec<TableFile>> {
        let mut folders: LiteMap<PathBuf, TableFolder> = LiteMap::new();
        let mut files = Vec::new();
        for path in paths {
            let path = path.as_ref();
            let Some(name) = path.file_name().and_then(|n| n.to_str()) else {
                return Err(
                    Error::invalid_argument(format!("{} names no table", path.display())).advice(
                        "give the path of a file whose name is of the characters A-Z a-z 0-9 . _ -",
                    ),
                );
            };
            let parent = match path.parent() {
                Some(parent) if parent != Path::new("") => parent,
                _ => Path::new("."),
            };
            if let Some(folder) = folders.get(parent) {
                files.push(folder.file(name));
            } else {
                let folder = TableFolder::open(parent)?;
                files.push(folder.file(name));
                folders.insert(parent.to_path_buf(), folder);
            }
        }
        Ok(files)
    }

    /// The table's name in its folder.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder that the table is in.
    pub fn folder(&self) -> &TableFolder {
        &self.folder
    }

    /// Reads the whole table, every block and every section, and refuses what
    /// [`crate::Store::ingest`] would refuse. Call this before you create a store or a keyspace for
    /// the table.
    ///
    /// # Errors
    /// `NotFound` if there is no such file; `InvalidArgument` or `Corruption` for a file that
    /// cannot be ingested; I/O.
    pub fn verify(&self) -> Result<()> {
        crate::services::ingest::check::verify(&*self.folder.storage, &self.name, 0, self)?;
        Ok(())
    }

    /// For messages.
    pub(crate) fn shown(&self) -> String {
        format!("{}/{}", self.folder.storage.describe(), self.name)
    }

    pub(crate) fn delete(&self) -> siltstone_storage::Result<()> {
        self.folder.storage.delete(self.folder.epoch, &self.name)
    }
}

/// How tables are built. Sizes are in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// Target size of a table in raw bytes (user keys, values and 12 bytes an entry): a power of
    /// two, at least 4096.
    pub table_bytes: u64,
    /// Size of a block in bytes before compression, as for [`Options::block_bytes`]: a power of two
    /// from 512 to 32768.
    pub block_bytes: u32,
    /// Filter bits for each key, 0 to 20; 0 means no filter.
    pub bloom_bits_per_key: u32,
    /// How blocks are compressed.
    pub compression: Compression,
}

impl Default for TableOptions {
    fn default() -> TableOptions {
        TableOptions::from(&Options::default().keyspace_defaults())
    }
}

/// The options with which a keyspace with these settings writes the tables of its deepest level. An
/// ingested table moves down there unchanged if nothing overlaps it.
impl From<&KeyspaceSettings> for TableOptions {
    fn from(settings: &KeyspaceSettings) -> TableOptions {
        TableOptions {
            table_bytes: settings.table_bytes,
            block_bytes: settings.block_bytes,
            bloom_bits_per_key: settings.bloom_bits_per_key.at(BOTTOM_LEVEL),
            compression: settings.compression.at(BOTTOM_LEVEL),
        }
    }
}

impl TableOptions {
    fn writer_options(&self) -> Result<WriterOptions> {
        let out_of_range = |what: &str, expected: String, found: u64| {
            Err(
                Error::invalid_argument(format!("tables cannot be built with this {what}"))
                    .expected(expected)
                    .found(found),
            )
        };
        if !self.table_bytes.is_power_of_two() || self.table_bytes < 4096 {
            return out_of_range(
                "table_bytes",
                "a power of two, 4096 or more".into(),
                self.table_bytes,
            );
        }
        let block_bytes = u64::from(self.block_bytes);
        if !block_bytes.is_power_of_two()
            || !(MIN_BLOCK_SIZE_BYTES..=MAX_BLOCK_SIZE_BYTES).contains(&block_bytes)
        {
            return out_of_range(
                "block_bytes",
                format!("a power of two, {MIN_BLOCK_SIZE_BYTES} to {MAX_BLOCK_SIZE_BYTES}"),
                block_bytes,
            );
        }
        let (codec, level) = codec_of(self.compression);
        Ok(WriterOptions {
            // The writer refuses more than 20 with an error that names the option.
            bits_per_key: u8::try_from(self.bloom_bits_per_key).unwrap_or(u8::MAX),
            codec,
            level,
            block_size_bytes: block_bytes,
            keyspace: None,
            ..WriterOptions::default()
        })
    }
}

/// A finished, synced table.
#[derive(Clone, Debug)]
pub struct BuiltTable {
    /// Where the table is.
    pub file: TableFile,
    /// Entries, which are puts and deletes.
    pub entry_count: u64,
    /// Deletes among the entries.
    pub delete_count: u64,
    /// Raw bytes: user keys, values and 12 bytes an entry.
    pub raw_bytes: u64,
    /// Bytes of the table's file.
    pub file_bytes: u64,
    /// The first key.
    pub smallest_key: Vec<u8>,
    /// The last key.
    pub largest_key: Vec<u8>,
}

/// A table being written.
struct Open {
    writer: TableWriter,
    file: Arc<dyn WriteFile>,
    name: String,
}

/// Builds tables for [`crate::Store::ingest`], out of keys in ascending order. When a table reaches
/// its target size, it ends and the next one begins.
///
/// A builder takes memory for one output buffer (2 MiB), one block, the index, and eight bytes for
/// each key of a table. A builder that is dropped leaves the files that it has created;
/// [`TableBuilder::abandon`] deletes them.
///
/// ```
/// use siltstone::{IngestMode, Options, Store, TableBuilder, TableFolder, TableOptions};
///
/// # let folder = tempfile::tempdir().unwrap();
/// # let path = folder.path().join("a.store");
/// let built = TableFolder::create(folder.path().join("built"))?;
/// let mut builder = TableBuilder::new(&built, "birds", TableOptions::default())?;
/// builder.put(b"robin", b"18 g")?;
/// builder.put(b"wren", b"9 g")?;
/// let tables = builder.finish()?;
///
/// let store = Store::open(&path, Options::default())?;
/// let birds = store.open_keyspace("birds")?;
/// let files = tables.into_iter().map(|t| t.file).collect();
/// store.ingest(&[(&birds, files)], IngestMode::Move)?;
/// assert_eq!(birds.get(b"wren")?, Some(b"9 g".to_vec()));
/// # store.close()?;
/// # siltstone::Result::Ok(())
/// ```
pub struct TableBuilder {
    folder: TableFolder,
    prefix: String,
    options: TableOptions,
    writer_options: WriterOptions,
    layout: Layout<'static>,
    open: Option<Open>,
    buffers: WriterBuffers,
    last_key: Option<Vec<u8>>,
    /// The files that were created, including the open one.
    created: Vec<String>,
    tables: Vec<BuiltTable>,
    /// The error after which the builder takes no more entries.
    failed: Option<Error>,
}

impl TableBuilder {
    /// A builder that writes `PREFIX-00000.table`, `PREFIX-00001.table` and so on into `folder`. No
    /// file is created before the first entry.
    ///
    /// # Errors
    /// `InvalidArgument` for options outside their limits.
    pub fn new(folder: &TableFolder, prefix: &str, options: TableOptions) -> Result<TableBuilder> {
        let writer_options = options.writer_options()?;
        Ok(TableBuilder {
            folder: folder.clone(),
            prefix: prefix.to_string(),
            writer_options,
            layout: Layout::new(LayoutLimits::new(options.table_bytes, false), &[]),
            options,
            open: None,
            buffers: WriterBuffers::default(),
            last_key: None,
            created: Vec::new(),
            tables: Vec::new(),
            failed: None,
        })
    }

    /// The options that the builder was made with.
    pub fn options(&self) -> TableOptions {
        self.options
    }

    /// Adds a key with its value. The key must be greater than every earlier key.
    ///
    /// # Errors
    /// `InvalidArgument` if the key is not greater (the error shows both keys), for a key over
    /// 65,535 bytes, and for a value over 1 GiB; the builder can then be used further. After any
    /// other error, every call returns that error.
    pub fn put(&mut self, key: impl AsRef<[u8]>, value: impl AsRef<[u8]>) -> Result<()> {
        self.add(key.as_ref(), Kind::Put, value.as_ref())
    }

    /// Adds a delete: once ingested, it deletes what the keyspace has under `key`.
    ///
    /// # Errors
    /// As [`TableBuilder::put`].
    pub fn delete(&mut self, key: impl AsRef<[u8]>) -> Result<()> {
        self.add(key.as_ref(), Kind::Delete, &[])
    }

    fn add(&mut self, key: &[u8], kind: Kind, value: &[u8]) -> Result<()> {
        if let Some(failed) = &self.failed {
            return Err(failed.clone());
        }
        crate::formats::batch::check_lengths(key, value)?;
        if let Some(last) = &self.last_key
            && key <= &last[..]
        {
            return Err(Error::invalid_argument(
                "tables are built in ascending key order, each key once",
            )
            .expected(format!("a key above {}", ShowKey(last)))
            .found(ShowKey(key))
            .advice("sort the entries first, and keep the newest one of each key"));
        }
        self.write(key, kind, value).inspect_err(|error| {
            self.failed = Some(error.clone());
        })?;
        let last = self.last_key.get_or_insert_default();
        last.clear();
        last.extend_from_slice(key);
        Ok(())
    }

    fn write(&mut self, key: &[u8], kind: Kind, value: &[u8]) -> Result<()> {
        if self.layout.start_key(key).is_some() {
            self.finish_table()?;
            self.create_table()?;
        }
        let Some(open) = &mut self.open else {
            return Err(TableError::Misuse("an entry came before its table").into());
        };
        open.writer.add(key, trailer(0, kind), value)?;
        self.layout.add(raw_bytes(key.len(), value.len()));
        Ok(())
    }

    fn create_table(&mut self) -> Result<()> {
        let name = format!(
            "{}-{:05}{BUILT_TABLE_SUFFIX}",
            self.prefix,
            self.tables.len()
        );
        let storage = &self.folder.storage;
        let file = storage
            .create(self.folder.epoch, &name)
            .map_err(|error| match error.kind {
                StorageErrorKind::AlreadyExists => Error::from(error)
                    .with_kind(ErrorKind::InvalidArgument)
                    .with_message("there is a file of this name already, and it stays as it is")
                    .advice("use another prefix or another folder, or delete the file"),
                _ => error.into(),
            })?;
        self.created.push(name.clone());
        let buffers = std::mem::take(&mut self.buffers);
        let writer = TableWriter::with_buffers(file.clone(), self.writer_options, buffers)?;
        self.open = Some(Open { writer, file, name });
        Ok(())
    }

    fn finish_table(&mut self) -> Result<()> {
        let Some(open) = self.open.take() else {
            return Ok(());
        };
        let (summary, buffers) = open.writer.finish_with_buffers()?;
        self.buffers = buffers;
        open.file.sync()?;
        let p = summary.properties;
        self.tables.push(BuiltTable {
            file: self.folder.file(&open.name),
            entry_count: p.entries,
            delete_count: p.deletes,
            raw_bytes: summary.raw_bytes,
            file_bytes: summary.file_bytes,
            smallest_key: p.smallest_key.unwrap_or_default(),
            largest_key: p.largest_key.unwrap_or_default(),
        });
        Ok(())
    }

    /// Finishes the last table and syncs the names of all tables. The tables are disjoint and in
    /// key order. If no entry was added, there are none.
    ///
    /// # Errors
    /// An earlier error of the builder, or one of the storage. All files that were created are then
    /// deleted, as far as the storage lets it.
    pub fn finish(mut self) -> Result<Vec<BuiltTable>> {
        let finished = match self.failed.take() {
            Some(failed) => Err(failed),
            None => self.finish_table().and_then(|()| {
                if self.created.is_empty() {
                    return Ok(());
                }
                Ok(self.folder.storage.sync_dir(self.folder.epoch)?)
            }),
        };
        match finished {
            Ok(()) => Ok(std::mem::take(&mut self.tables)),
            Err(error) => {
                self.abandon();
                Err(error)
            }
        }
    }

    /// Deletes all files that the builder has created, as far as the storage lets it.
    pub fn abandon(mut self) {
        self.open = None;
        for name in std::mem::take(&mut self.created) {
            let _ = self.folder.storage.delete(self.folder.epoch, &name);
        }
    }
}

impl std::fmt::Debug for TableBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TableBuilder")
            .field("folder", &self.folder)
            .field("prefix", &self.prefix)
            .field("tables", &self.tables.len())
            .finish_non_exhaustive()
    }
}

/// The error if a file cannot be imported, mostly because it does not exist.
#[cold]
pub(crate) fn no_table(file: &TableFile, error: siltstone_storage::StorageError) -> Error {
    let error = Error::from(error);
    if error.kind() == ErrorKind::NotFound {
        return error
            .in_file(file.shown())
            .with_message("there is no table to ingest")
            .advice(
                "check the path; a table that was ingested by IngestMode::Move is the store's, and \
                 no longer where it was",
            );
    }
    error.context(format!("ingesting {}", file.shown()))
}

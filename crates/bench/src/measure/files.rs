//! The files of a store: their sizes, and their part in the page cache.
//!
//! Every regular file below the folder counts. Symbolic links are not followed. A file that an
//! engine deletes meanwhile does not count, so a reading of an open store is that of one moment
//! only if the engine is idle.
//!
//! Files may have holes: LMDB's has the length of its map, most of which was never written. What a
//! store takes on the disk is the blocks that are allocated, so sizes have both. What concerns the
//! page cache leaves holes out, because there is nothing to read in them.
//!
//! Threading: pure functions. They must not be called on a folder that another process changes.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

mod extents;
mod residency;

#[cfg(test)]
mod tests;

/// What a file of a store is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A sorted table, or the tree of an engine without tables.
    Table,
    /// The write-ahead log, which includes segments that are kept for later.
    Log,
    /// Anything else.
    Other,
}

/// The purpose of a file by the name that siltstone, RocksDB, LevelDB, Pebble, fjall or LMDB give
/// it. A driver of another engine needs a function of its own.
pub fn purpose_by_name(path: &Path) -> Purpose {
    let name = path.file_name().and_then(|name| name.to_str());
    let name = name.unwrap_or_default();
    let extension = path.extension().and_then(|extension| extension.to_str());
    let folder = path.parent().and_then(Path::file_name);
    match extension.unwrap_or_default() {
        "tbl" | "sst" | "ldb" | "blob" => Purpose::Table,
        "log" | "jnl" => Purpose::Log,
        "mdb" if name == "data.mdb" => Purpose::Table,
        _ if name == "RESERVE-LOG" => Purpose::Log,
        _ if folder.is_some_and(|folder| folder == "tables" || folder == "blobs") => Purpose::Table,
        _ => Purpose::Other,
    }
}

/// The files of one purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Part {
    /// How many there are.
    pub files: u64,
    /// Their lengths in bytes.
    pub bytes: u64,
    /// The bytes of the blocks that the file system has given them. Less than their length if they
    /// have holes or are compressed by the file system, more if space is reserved.
    pub allocated_bytes: u64,
}

impl Part {
    fn add(&mut self, metadata: &fs::Metadata) {
        self.files += 1;
        self.bytes += metadata.len();
        self.allocated_bytes += allocated_bytes(metadata);
    }
}

/// The sizes of a store's folder.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Sizes {
    /// The tables.
    pub tables: Part,
    /// The log.
    pub log: Part,
    /// All other files.
    pub other: Part,
}

impl Sizes {
    /// Adds the files of another folder.
    pub fn add(&mut self, other: &Sizes) {
        let pairs = [
            (&mut self.tables, &other.tables),
            (&mut self.log, &other.log),
            (&mut self.other, &other.other),
        ];
        for (own, other) in pairs {
            own.files += other.files;
            own.bytes += other.bytes;
            own.allocated_bytes += other.allocated_bytes;
        }
    }

    /// All files.
    pub fn total(&self) -> Part {
        let parts = [self.tables, self.log, self.other];
        let sum = |figure: fn(&Part) -> u64| parts.iter().map(figure).sum();
        Part {
            files: sum(|part| part.files),
            bytes: sum(|part| part.bytes),
            allocated_bytes: sum(|part| part.allocated_bytes),
        }
    }
}

#[cfg(unix)]
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    // `st_blocks` is in units of 512 bytes whatever the block size of the file system is.
    std::os::unix::fs::MetadataExt::blocks(metadata) * 512
}

#[cfg(not(unix))]
fn allocated_bytes(metadata: &fs::Metadata) -> u64 {
    metadata.len()
}

/// `None` if the file or folder does not exist any more.
fn unless_deleted<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        other => other.map(Some),
    }
}

/// An error that says which file it is about.
fn about(path: &Path) -> impl Fn(io::Error) -> io::Error + '_ {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

/// Calls `visit` with each regular file below `folder`.
fn walk(
    folder: &Path,
    visit: &mut dyn FnMut(&Path, &fs::Metadata) -> io::Result<()>,
) -> io::Result<()> {
    let mut folders: Vec<PathBuf> = vec![folder.to_path_buf()];
    let mut is_root = true;
    while let Some(folder) = folders.pop() {
        let entries = fs::read_dir(&folder).map_err(about(&folder));
        // Only folders below the first one may vanish.
        let entries = if std::mem::take(&mut is_root) {
            Some(entries?)
        } else {
            unless_deleted(entries)?
        };
        for entry in entries.into_iter().flatten() {
            let path = entry.map_err(about(&folder))?.path();
            let metadata = fs::symlink_metadata(&path).map_err(about(&path));
            match unless_deleted(metadata)? {
                Some(metadata) if metadata.is_dir() => folders.push(path),
                Some(metadata) if metadata.is_file() => visit(&path, &metadata)?,
                _ => {}
            }
        }
    }
    Ok(())
}

/// Calls `visit` with each regular file below `folder`, open for reading.
fn walk_open(
    folder: &Path,
    visit: &mut dyn FnMut(&Path, &mut File, &fs::Metadata) -> io::Result<()>,
) -> io::Result<()> {
    walk(
        folder,
        &mut |path, metadata| match unless_deleted(File::open(path).map_err(about(path)))? {
            Some(mut file) => visit(path, &mut file, metadata).map_err(about(path)),
            None => Ok(()),
        },
    )
}

/// The sizes of the files below `folder`.
///
/// # Errors
/// If the folder or one of its files cannot be read.
pub fn sizes(folder: &Path, purpose_of: &dyn Fn(&Path) -> Purpose) -> io::Result<Sizes> {
    let mut sizes = Sizes::default();
    walk(folder, &mut |path, metadata| {
        let part = match purpose_of(path) {
            Purpose::Table => &mut sizes.tables,
            Purpose::Log => &mut sizes.log,
            Purpose::Other => &mut sizes.other,
        };
        part.add(metadata);
        Ok(())
    })?;
    Ok(sizes)
}

/// The part of the files that is in the page cache, from 0 to 1. Holes are no part of a file here.
/// `None` if there are no bytes, or if the system does not tell.
///
/// # Errors
/// If the folder or one of its files cannot be read.
pub fn cached_part(folder: &Path) -> io::Result<Option<f64>> {
    let (mut cached, mut all) = (0, 0);
    let mut is_known = true;
    walk_open(folder, &mut |_, file, metadata| {
        let ranges = extents::data_ranges(file, metadata.len())?;
        match residency::cached_bytes(file, &ranges)? {
            Some(bytes) => cached += bytes,
            None => is_known = false,
        }
        all += extents::bytes_of(&ranges);
        Ok(())
    })?;
    Ok(super::ratio(cached as f64, all as f64).filter(|_| is_known))
}

/// Reads all files once, so that they are in the page cache if it has room. Holes are not read.
/// Returns the bytes that were.
///
/// # Errors
/// If the folder or one of its files cannot be read.
pub fn warm(folder: &Path) -> io::Result<u64> {
    let mut buffer = vec![0; 1 << 20];
    let mut bytes = 0;
    walk_open(folder, &mut |_, file, metadata| {
        for range in extents::data_ranges(file, metadata.len())? {
            file.seek(SeekFrom::Start(range.start))?;
            bytes += read_all(
                &mut file.by_ref().take(range.end - range.start),
                &mut buffer,
            )?;
        }
        Ok(())
    })?;
    Ok(bytes)
}

fn read_all(from: &mut impl Read, buffer: &mut [u8]) -> io::Result<u64> {
    let mut bytes = 0;
    loop {
        match from.read(buffer)? {
            0 => return Ok(bytes),
            count => bytes += count as u64,
        }
    }
}

/// What stayed in the page cache although the system was asked to drop it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Kept {
    /// Files of which pages stayed.
    pub files: u64,
    /// Their bytes in the page cache.
    pub bytes: u64,
    /// The bytes of all files without their holes.
    pub of_bytes: u64,
    /// The file of which the most stayed.
    pub most: Option<PathBuf>,
}

impl Kept {
    fn add(&mut self, path: &Path, bytes: u64, most_bytes: &mut u64) {
        self.bytes += bytes;
        self.files += u64::from(bytes > 0);
        if bytes > *most_bytes {
            *most_bytes = bytes;
            self.most = Some(path.to_path_buf());
        }
    }

    /// What stayed as a part of all, from 0 to 1.
    pub fn part(&self) -> f64 {
        super::ratio(self.bytes as f64, self.of_bytes as f64).unwrap_or(0.0)
    }
}

impl std::fmt::Display for Kept {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Some(most) = &self.most else {
            return write!(f, "all pages were dropped from the page cache");
        };
        write!(
            f,
            "{} of {} bytes stayed in the page cache, in {} files, most of them in {}: a process \
             has the file mapped or writes it, or its file system cannot drop pages, as a tmpfs",
            self.bytes,
            self.of_bytes,
            self.files,
            most.display()
        )
    }
}

/// Syncs all files and asks the system to drop them from the page cache. Pages that a process has
/// mapped stay, and so do those that are dirty again and those of a tmpfs. So the store has to be
/// closed before, by all processes. Returns what stayed.
///
/// # Errors
/// If the folder or one of its files cannot be read or synced; on other systems than Linux always.
pub fn drop_from_cache(folder: &Path) -> io::Result<Kept> {
    let (mut kept, mut most_bytes) = (Kept::default(), 0);
    walk_open(folder, &mut |path, file, metadata| {
        file.sync_all()?;
        drop_file(file)?;
        let ranges = extents::data_ranges(file, metadata.len())?;
        kept.of_bytes += extents::bytes_of(&ranges);
        let bytes = residency::cached_bytes(file, &ranges)?.unwrap_or(0);
        kept.add(path, bytes, &mut most_bytes);
        Ok(())
    })?;
    Ok(kept)
}

#[cfg(target_os = "linux")]
fn drop_file(file: &File) -> io::Result<()> {
    use rustix::fs::{Advice, fadvise};
    Ok(fadvise(file, 0, None, Advice::DontNeed)?)
}

#[cfg(not(target_os = "linux"))]
fn drop_file(_file: &File) -> io::Result<()> {
    Err(io::Error::new(
        io::ErrorKind::Unsupported,
        "files can be dropped from the page cache on Linux only",
    ))
}

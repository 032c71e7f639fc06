//! The files `DIRECTORIES` and `OWNER`. They are lines of text, because people move folders.
//!
//! Invariants: a file that was written reads back the same. `DIRECTORIES` has a checksum, since a
//! wrong path would be followed; a person who edits it writes the word `edited` in its place.
//! `OWNER` has no checksum: it is compared and never followed.
//!
//! Threading: pure functions, except for those that read a file.

use std::fmt;

use siltstone_storage::{Epoch, Storage, StorageErrorKind};

use crate::formats::manifest::StoreId;
use crate::formats::names::{DIRECTORIES, OWNER, Parts};
use crate::types::error::{Error, Result};

const DIRECTORIES_HEAD: &str = "siltstone-directories 1";
/// The first line if the store has a second location of tables.
const DIRECTORIES_HEAD_2: &str = "siltstone-directories 2";
const OWNER_HEAD: &str = "siltstone-owner 1";

/// A folder, and the parts of a store that it holds.
pub(crate) type Folder<'a> = (&'a dyn Storage, Parts);

/// Whether a location is that of a folder on a device.
pub(super) fn is_on_device(location: &str) -> bool {
    ["silt://", "silt+unix://", "silt+memory://"]
        .iter()
        .any(|scheme| location.starts_with(scheme))
}

/// The longest such file that is read.
const MAX_BYTES: u64 = 64 << 10;

/// The path of a part in the store's folder.
const HERE: &str = ".";

/// Stands in place of the checksum in a file that was edited by hand.
const EDITED: &str = "edited";

impl fmt::Display for Parts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = [
            (self.manifest, "manifest"),
            (self.log, "log"),
            (self.tables, "tables"),
            // The number keeps the folders of two locations apart.
            (self.redirected, "redirected-tables 1"),
        ];
        let words: Vec<&str> = all.iter().filter(|(is, _)| *is).map(|(_, w)| *w).collect();
        f.write_str(&words.join(" "))
    }
}

/// The text of a small file; `None` if the file does not exist.
pub(super) fn read_text(storage: &dyn Storage, name: &str) -> Result<Option<String>> {
    let file = match storage.open(name) {
        Ok(file) => file,
        Err(e) if e.kind == StorageErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let place = || format!("{}/{name}", storage.describe());
    if file.len() > MAX_BYTES {
        return Err(Error::corruption(place(), "the file is too long")
            .expected(format!("at most {MAX_BYTES} bytes"))
            .found(file.len()));
    }
    let mut bytes = vec![0; file.len() as usize];
    file.read_at(0, &mut bytes)?;
    text_of(&bytes, &place()).map(|text| Some(text.to_string()))
}

/// The bytes of a file as text; `place` names the file in the error.
pub(super) fn text_of<'a>(bytes: &'a [u8], place: &str) -> Result<&'a str> {
    std::str::from_utf8(bytes)
        .map_err(|_| Error::corruption(place.to_string(), "the file is not UTF-8"))
}

/// The name of a file in a folder, for advice. Only a file that the user can reach is named by its
/// path.
pub(super) fn shown_file(storage: &dyn Storage, name: &str) -> String {
    let place = storage.describe();
    match is_on_device(&storage.location()) {
        true => format!(
            "the file {name} of the folder {place}, on the device's machine and below the \
             device's --data"
        ),
        false => format!("{place}/{name}"),
    }
}

/// Refuses a file of another version, which must not be edited or deleted like a damaged one.
/// `head` is the first line of this version's, which ends with the number of the version; `file` is
/// the name of the file.
///
/// # Errors
/// `Unsupported`.
pub(super) fn refuse_other_version(text: &str, head: &str, file: &str) -> Result<()> {
    let found = text.lines().next().unwrap_or_default().trim_end();
    let word = head.trim_end_matches(|c: char| c.is_ascii_digit());
    let is_number = |rest: &str| rest.bytes().all(|byte| byte.is_ascii_digit());
    if found == head || !found.strip_prefix(word).is_some_and(is_number) {
        return Ok(());
    }
    Err(Error::unsupported(format!("{file} has an unknown version"))
        .in_file(file)
        .expected(head)
        .found(found)
        .advice("open the store with the version of siltstone that wrote it"))
}

/// Replaces a small file by one with other text, unless the disk is full. Returns whether it was
/// replaced.
///
/// # Errors
/// Those of the storage, except that there is no space.
pub(super) fn replace_if_room(
    storage: &dyn Storage,
    epoch: Epoch,
    name: &str,
    text: &str,
) -> Result<bool> {
    match storage.replace(epoch, name, text.as_bytes()) {
        Ok(()) => Ok(true),
        // If the new file is there, the sync of the folder has failed. A later sync could succeed
        // without making durable what this one should have.
        Err(error) if error.is_no_space() => {
            match read_text(storage, name).is_ok_and(|now| now.as_deref() == Some(text)) {
                true => Err(error.into()),
                false => Ok(false),
            }
        }
        Err(error) => Err(error.into()),
    }
}

/// A path that fits on a line.
fn on_a_line(path: String) -> Result<String> {
    if path.contains(['\n', '\r', '\u{FFFD}']) || path.is_empty() || path == HERE {
        return Err(
            Error::invalid_argument("a folder's path cannot be recorded")
                .expected("a path of UTF-8 without line breaks")
                .found(format!("{path:?}"))
                .advice(
                    "rename the folder: a part of a store can only be in a folder with such a path",
                ),
        );
    }
    Ok(path)
}

pub(super) fn store_line(id: StoreId) -> String {
    format!("store {id}")
}

pub(super) fn id_of(line: &str) -> Option<StoreId> {
    let hex = line.strip_prefix("store ")?;
    let id = StoreId(u128::from_str_radix(hex, 16).ok()?);
    (store_line(id) == line).then_some(id)
}

/// The contents of `DIRECTORIES`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Directories {
    pub(crate) store_id: StoreId,
    /// The folder of the log; `None` for the store's folder.
    log: Option<String>,
    /// The folder of the tables; `None` for the store's folder.
    tables: Option<String>,
    /// The folder of the second location of tables, if there is one.
    redirect: Option<String>,
}

impl Directories {
    /// The file for these folders, of which the store's own is the first.
    pub(super) fn of(folders: &[Folder<'_>], store_id: StoreId) -> Result<Directories> {
        let elsewhere = |holds: fn(&Parts) -> bool| {
            let folder = folders.iter().skip(1).find(|(_, parts)| holds(parts));
            folder.map(|(s, _)| on_a_line(s.location())).transpose()
        };
        Ok(Directories {
            store_id,
            log: elsewhere(|p| p.log)?,
            tables: elsewhere(|p| p.tables)?,
            redirect: elsewhere(|p| p.redirected)?,
        })
    }

    /// The file for a store with these folders of the log, the tables, and their second location.
    pub(super) fn new(store_id: StoreId, parts: [Option<String>; 3]) -> Directories {
        let [log, tables, redirect] = parts;
        Directories {
            store_id,
            log,
            tables,
            redirect,
        }
    }

    /// The file without a second location of tables.
    pub(super) fn without_redirect(self) -> Directories {
        Directories {
            redirect: None,
            ..self
        }
    }

    /// The file with this second location of tables.
    pub(super) fn with_redirect(self, storage: &dyn Storage) -> Result<Directories> {
        Ok(Directories {
            redirect: Some(on_a_line(storage.location())?),
            ..self
        })
    }

    /// The folder that this option names; `None` for the store's folder, and of a second location
    /// that the store does not have.
    pub(crate) fn part(&self, option: &str) -> Option<&str> {
        match option {
            "log_dir" => self.log.as_deref(),
            "redirect_dir" => self.redirect.as_deref(),
            _ => self.tables.as_deref(),
        }
    }

    /// The parts that the store's own folder holds.
    pub(crate) fn own_parts(&self) -> Parts {
        Parts {
            manifest: true,
            log: self.log.is_none(),
            tables: self.tables.is_none(),
            redirected: false,
        }
    }

    /// Refuses a store's folder that is to hold other parts than this file says.
    pub(super) fn check_parts(&self, own: Parts, place: &str) -> Result<()> {
        let wanted = self.own_parts();
        if own == wanted {
            return Ok(());
        }
        let of = |parts: Parts| format!("the store's folder with {parts}");
        Err(Error::invalid_argument(format!(
            "the log and the tables of the store {place} are not where {DIRECTORIES} says"
        ))
        .expected(of(wanted))
        .found(of(own))
        .advice(
            "open the store by its path, which follows that file, or pass the storages that it \
             names",
        ))
    }

    /// The lines above the checksum.
    fn head(&self) -> String {
        // An earlier build, which would not look at the second location, must not open the store.
        let head = match self.redirect {
            Some(_) => DIRECTORIES_HEAD_2,
            None => DIRECTORIES_HEAD,
        };
        let redirect = self.redirect.iter();
        let redirect: String = redirect.map(|path| format!("redirect {path}\n")).collect();
        format!(
            "{head}\n{}\nlog {}\ntables {}\n{redirect}",
            store_line(self.store_id),
            self.log.as_deref().unwrap_or(HERE),
            self.tables.as_deref().unwrap_or(HERE)
        )
    }

    /// The text, with its checksum.
    pub(crate) fn encode(&self) -> String {
        let head = self.head();
        let crc = crc32c::crc32c(head.as_bytes());
        format!("{head}crc32c {crc:08x}\n")
    }

    /// The text as a person would write it, without a checksum.
    pub(super) fn edited(&self) -> String {
        format!("{}crc32c {EDITED}\n", self.head())
    }

    fn decode(text: &str) -> Result<Directories> {
        let bad = |what: &'static str| {
            Error::corruption(DIRECTORIES, what).advice(format!(
                "put the file back from a copy; if you edit it by hand, write `crc32c {EDITED}` as \
                 its last line"
            ))
        };
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let (store, log, tables, redirect, crc) = match lines[..] {
            [DIRECTORIES_HEAD, store, log, tables, crc] => (store, log, tables, None, crc),
            [DIRECTORIES_HEAD_2, store, log, tables, redirect, crc] => {
                (store, log, tables, Some(redirect), crc)
            }
            [DIRECTORIES_HEAD_2, ..] => {
                return Err(bad("the file does not say where a store's parts lie"));
            }
            _ => {
                refuse_other_version(text, DIRECTORIES_HEAD, DIRECTORIES)?;
                return Err(bad("the file does not say where a store's parts lie"));
            }
        };
        let path = |line: &str, word: &str| {
            let path = line.strip_prefix(word)?.to_string();
            (!path.is_empty()).then(|| Some(path).filter(|p| p != HERE))
        };
        let parsed = (|| {
            Some(Directories {
                store_id: id_of(store)?,
                log: path(log, "log ")?,
                tables: path(tables, "tables ")?,
                redirect: match redirect {
                    None => None,
                    // A location is never the store's own folder.
                    Some(redirect) => Some(path(redirect, "redirect ")??),
                },
            })
        })();
        let Some(directories) = parsed else {
            return Err(bad("the file does not say where a store's parts lie"));
        };
        if crc != format!("crc32c {EDITED}") && directories.encode() != text {
            return Err(bad("the checksum of the file does not match"));
        }
        Ok(directories)
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// Those of [`Directories::read`].
    pub(crate) fn check_bytes(bytes: &[u8]) -> Result<()> {
        Directories::decode(text_of(bytes, DIRECTORIES)?).map(drop)
    }

    /// Reads the file in a store's folder; `None` if there is none, and all parts are in that
    /// folder.
    pub(crate) fn read(root: &dyn Storage) -> Result<Option<Directories>> {
        read_text(root, DIRECTORIES)?
            .map(|text| Directories::decode(&text))
            .transpose()
            .map_err(|e| {
                e.context(format!(
                    "finding the parts of the store {}",
                    root.describe()
                ))
            })
    }
}

/// The contents of `OWNER`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    store_id: StoreId,
    /// The path of the store's folder.
    folder: String,
    /// The parts of the store in this folder.
    holds: String,
}

impl Owner {
    /// The file for a folder that holds `parts` of the store in `root`.
    pub(super) fn of(root: &dyn Storage, store_id: StoreId, parts: Parts) -> Result<Owner> {
        Ok(Owner {
            store_id,
            folder: on_a_line(root.location())?,
            holds: parts.to_string(),
        })
    }

    pub(super) fn encode(&self) -> String {
        format!(
            "{OWNER_HEAD}\n{}\nfolder {}\nholds {}\n",
            store_line(self.store_id),
            self.folder,
            self.holds
        )
    }

    /// Reads the text of the file `file`.
    fn decode(text: &str, file: &str) -> Result<Owner> {
        refuse_other_version(text, OWNER_HEAD, file)?;
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        let parsed = (|| {
            let [OWNER_HEAD, store, folder, holds] = lines[..] else {
                return None;
            };
            Some(Owner {
                store_id: id_of(store)?,
                folder: folder.strip_prefix("folder ")?.to_string(),
                holds: holds.strip_prefix("holds ")?.to_string(),
            })
        })();
        parsed.ok_or_else(|| Owner::unclear(file.to_string()))
    }

    /// Reads the file of a folder; `None` if there is none.
    pub(crate) fn read(storage: &dyn Storage) -> Result<Option<Owner>> {
        let Some(text) = read_text(storage, OWNER)? else {
            return Ok(None);
        };
        Owner::decode(&text, &format!("{}/{OWNER}", storage.describe())).map(Some)
    }

    /// The error for a file that does not name a store.
    #[cold]
    fn unclear(file: String) -> Error {
        Error::corruption(
            file,
            "the file does not say which store the folder belongs to",
        )
        .expected(format!(
            "the lines `{OWNER_HEAD}`, `store ID`, `folder PATH`, `holds PARTS`"
        ))
        .advice("put the file back from a copy, or write these lines")
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// Those of [`Owner::read`].
    pub(crate) fn check_bytes(bytes: &[u8]) -> Result<()> {
        Owner::decode(text_of(bytes, OWNER)?, OWNER).map(drop)
    }

    /// Whether it names the store `id`, in any folder.
    pub(super) fn names(&self, id: StoreId) -> bool {
        self.store_id == id
    }

    /// The id of the store that it names, if that store is in the folder `root`.
    pub(super) fn id_of_store_in(&self, root: &dyn Storage) -> Option<StoreId> {
        (self.folder == root.location()).then_some(self.store_id)
    }

    /// Whether it names the store `id` in this folder.
    pub(crate) fn is(&self, id: StoreId, root: &dyn Storage) -> bool {
        self.store_id == id && self.folder == root.location()
    }

    /// Whether it says that the folder holds these parts of the store `id` in this folder.
    pub(super) fn says(&self, id: StoreId, root: &dyn Storage, parts: Parts) -> bool {
        Owner::of(root, id, parts).is_ok_and(|own| *self == own)
    }

    /// The store that it names, for messages.
    pub(crate) fn whose(&self) -> String {
        format!("the store in {} ({})", self.folder, self.store_id)
    }

    /// The error for a folder that is to be, or is, a store's own, and has this file.
    #[cold]
    pub(super) fn refusal(&self, root: &dyn Storage, is_store: bool) -> Error {
        let (place, whose) = (root.describe(), self.whose());
        let holds = match self.holds.starts_with("redirected") {
            true => "redirected tables".to_string(),
            false => self.holds.replace(' ', " and "),
        };
        let error = match is_store {
            true => Error::invalid_argument(format!(
                "the store {place} was made in a folder that holds the {holds} of {whose}"
            ))
            .advice(format!(
                "each of the two stores would delete the other one's files: copy the folder, \
                 delete {OWNER} in the copy, which is the store of {place} then, and delete \
                 CURRENT here; if nothing of the other store is left, delete {OWNER} here"
            )),
            false => Error::invalid_argument(format!(
                "{place} is no store: it holds the {holds} of {whose}"
            ))
            .advice(
                "give the path of that store, or name another folder for a new one; if that \
                 store's own folder is lost, `silt repair` makes a store of what is in this one",
            ),
        };
        error.in_file(OWNER)
    }

    /// Refuses a folder that does not belong to the store `id` in `root`.
    pub(crate) fn check(
        &self,
        id: StoreId,
        root: &dyn Storage,
        storage: &dyn Storage,
        parts: Parts,
    ) -> Result<()> {
        let own = Owner::of(root, id, parts)?;
        if *self == own {
            return Ok(());
        }
        let (place, root) = (storage.describe(), root.location());
        let error = if self.store_id != id {
            Error::invalid_argument(format!("the folder {place} belongs to another store"))
                .advice("name another folder; each store's log and tables need their own")
        } else if self.folder != own.folder {
            let file = shown_file(storage, OWNER);
            Error::invalid_argument(format!(
                "the folder {place} holds the {parts} of the store in {}, and {root} is a copy of \
                 that store's folder, or that folder was moved here",
                self.folder
            ))
            .advice(format!(
                "a copy cannot share them: `silt checkpoint` makes a whole copy of a store. If the \
                 store was moved, and nothing is left at the old path, write the new path into \
                 {file}"
            ))
        } else {
            Error::invalid_argument(format!(
                "the folder {place} holds another part of the store"
            ))
            .advice("do not exchange the folders of log and tables")
        };
        Err(error
            .in_file(OWNER)
            .expected(format!("{}, holding {}", own.whose(), own.holds))
            .found(format!("{}, holding {}", self.whose(), self.holds)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn directories() -> Directories {
        Directories {
            store_id: StoreId(0xabc),
            log: Some("/a folder/log".to_string()),
            tables: None,
            redirect: None,
        }
    }

    #[test]
    fn a_file_reads_back_and_damage_is_detected() {
        let second = Directories {
            redirect: Some("/a second disk/t".to_string()),
            ..directories()
        };
        assert!(
            directories()
                .encode()
                .starts_with("siltstone-directories 1\n")
        );
        assert!(second.encode().starts_with("siltstone-directories 2\n"));
        assert_eq!(second.clone().without_redirect(), directories());
        for directories in [directories(), second] {
            let text = directories.encode();
            assert_eq!(Directories::decode(&text).unwrap(), directories);
            for i in 0..text.len() {
                for bit in 0..8 {
                    let mut bytes = text.clone().into_bytes();
                    bytes[i] ^= 1 << bit;
                    if let Ok(changed) = String::from_utf8(bytes) {
                        assert!(Directories::decode(&changed).is_err(), "{changed}");
                    }
                }
            }
            for len in 0..text.len() {
                assert!(Directories::decode(&text[..len]).is_err(), "{len}");
            }
        }
        // The store's own folder is no second location.
        let here = Directories {
            redirect: Some(HERE.to_string()),
            ..directories()
        };
        assert!(
            Directories::decode(&here.encode())
                .unwrap_err()
                .is_corruption()
        );
        let text = directories().encode();
        let newer = text.replace("directories 1", "directories 3");
        let error = Directories::decode(&newer).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        // Edited by hand, with line ends of any kind.
        let crc = text.lines().last().unwrap();
        let edited = text
            .replace("/a folder/log", "/b")
            .replace(crc, "crc32c edited");
        for edited in [edited.clone(), edited.replace('\n', "\r\n")] {
            let read = Directories::decode(&edited).unwrap();
            assert_eq!(read.part("log_dir"), Some("/b"));
            assert_eq!(read.part("table_dir"), None);
        }
    }

    #[test]
    fn owners_read_back_or_are_refused() {
        let owner = Owner {
            store_id: StoreId(7),
            folder: "/some where/s".to_string(),
            holds: "log tables".to_string(),
        };
        let text = owner.encode();
        assert_eq!(Owner::decode(&text, OWNER).unwrap(), owner);
        assert_eq!(
            Owner::decode(&text.replace('\n', " \r\n"), OWNER).unwrap(),
            owner,
            "an editor's line ends"
        );
        for bad in ["", "siltstone-owner 1\n", "siltstone-own 1\nstore 7"] {
            assert!(Owner::decode(bad, OWNER).unwrap_err().is_corruption());
        }
        let error = Owner::decode("siltstone-owner 2\nstore 7", OWNER).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
    }

    #[test]
    fn paths_with_line_breaks_are_refused() {
        for bad in ["/a\nb", "", ".", "/\u{FFFD}"] {
            let error = on_a_line(bad.to_string()).unwrap_err();
            assert!(error.to_string().contains("line breaks"), "{error}");
        }
    }
}

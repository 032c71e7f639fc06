//! The file `OPENED`: by which opens the folders of a store know each other.
//!
//! `OWNER` names a store and the path of its folder. An old copy of that folder at the same path,
//! on another machine or in a clone or a snapshot of this one, passes that test. Its open would
//! delete, as orphans, the tables that the newer copy has made. So each open for writing draws a
//! number, and notes it in the store's own folder and then in the other folders. If another folder
//! has a number that the store's own folder does not have, then another copy of the store's folder
//! was opened since, and the open is refused.
//!
//! The numbers of opens in the names of tables could not serve: an open writes tables of what the
//! log holds before its own number is durable, so after a crash there are tables with a number
//! above that of the manifest.
//!
//! Invariants:
//! - Before a number is noted in another folder, the store's own folder has it durably. It keeps
//!   the numbers that the other folders had, and the last ones of its own: a loss of power can
//!   bring back what an earlier open had replaced, if that open was killed before its sync. So
//!   crashes at any calls lock nobody out, unless nearly [`OPENS_MAX`] opens in a row were cut off.
//! - The numbers that the second location of tables may have are kept apart. They are only replaced
//!   by opens that write there, because the store opens without that folder as often as it must,
//!   and the folder may come back at any time, even after it was taken out.
//! - An open deletes and overwrites nothing in another folder before the numbers are compared and
//!   noted. It notes nothing on a full disk: then only the next open tells other copies apart.
//! - A folder without the file is accepted. No open for writing by a version with this file has
//!   used it, or somebody has deleted the file because the other copy is lost.
//!
//! Threading: calls of one task during an open, under the leases.

use std::collections::BTreeSet;

use siltstone_storage::{Epoch, Storage};

use super::text::{
    Folder, id_of, read_text, refuse_other_version, replace_if_room, shown_file, store_line,
    text_of,
};
use crate::formats::manifest::StoreId;
use crate::formats::names::{OPENED, Parts};
use crate::types::error::{Error, Result};

const HEAD: &str = "siltstone-opened 1";
/// The first line if there are numbers of a second location of tables.
const HEAD_2: &str = "siltstone-opened 2";

/// How many numbers of each of the two kinds the store's own folder keeps. Each open that was cut
/// off since the last sync of another folder takes one, and so does each open beside a reader
/// without a lease that compares.
const OPENS_MAX: usize = 16;

/// The contents of `OPENED`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Opened {
    store_id: StoreId,
    /// The numbers of opens, the last one at the end.
    opens: Vec<u128>,
    /// In the store's own folder: the numbers that the second location of tables may have.
    redirect: Vec<u128>,
}

/// The opens that the other folders of a store know.
#[derive(Debug, Default)]
pub(crate) struct Known {
    /// Those of the folders of the log and the tables.
    others: BTreeSet<u128>,
    /// That of the second location of tables.
    redirect: Option<u128>,
    /// Why the file of the second location cannot be read.
    unread: Option<Error>,
}

impl Known {
    /// Why the file in the folder of the second location of tables cannot be read. A store does not
    /// need that folder as long as no table is there.
    pub(crate) fn unread(&self) -> Option<&Error> {
        self.unread.as_ref()
    }
}

impl Opened {
    fn encode(&self) -> String {
        let lines = |word: &str, numbers: &[u128]| -> String {
            let lines = numbers.iter().map(|open| format!("{word} {open:032x}\n"));
            lines.collect()
        };
        // An earlier build would drop the numbers of the second location.
        let head = match self.redirect.is_empty() {
            true => HEAD,
            false => HEAD_2,
        };
        let store = store_line(self.store_id);
        let (opens, redirect) = (
            lines("open", &self.opens),
            lines("redirect", &self.redirect),
        );
        let head = format!("{head}\n{store}\n{opens}{redirect}");
        let crc = crc32c::crc32c(head.as_bytes());
        format!("{head}crc32c {crc:08x}\n")
    }

    /// Reads the text of the file `file`.
    fn decode(text: &str, file: &str) -> Result<Opened> {
        if text.lines().next().map(str::trim_end) != Some(HEAD) {
            refuse_other_version(text, HEAD_2, file)?;
        }
        let parsed = (|| {
            let mut lines = text.lines().skip(1);
            let store_id = id_of(lines.next()?)?;
            let numbers = |word: &str| -> Vec<u128> {
                let number = |line: &str| u128::from_str_radix(line.strip_prefix(word)?, 16).ok();
                let lines = lines.clone().skip_while(|line| !line.starts_with(word));
                lines.map_while(number).collect()
            };
            Some(Opened {
                store_id,
                opens: numbers("open "),
                redirect: numbers("redirect "),
            })
        })();
        // This compares the first line and the checksum, too.
        parsed
            .filter(|opened| opened.encode() == text)
            .ok_or_else(|| Opened::unclear(file.to_string()))
    }

    /// Reads the file of a folder; `None` if there is none.
    fn read(storage: &dyn Storage) -> Result<Option<Opened>> {
        let Some(text) = read_text(storage, OPENED)? else {
            return Ok(None);
        };
        Opened::decode(&text, &format!("{}/{OPENED}", storage.describe())).map(Some)
    }

    #[cold]
    fn unclear(file: String) -> Error {
        Error::corruption(
            file,
            "the file does not say by which opens the folders of the store know each other",
        )
        .expected(format!(
            "the lines `{HEAD}` or `{HEAD_2}`, `store ID`, `open NUMBER`, `redirect NUMBER` (only \
             in version 2), `crc32c CHECKSUM`"
        ))
        .advice(
            "if no other copy of the store's folder was used since, delete the files OPENED in the \
             other folders of the store; the next open makes them again",
        )
    }

    /// Checks the bytes of a file.
    ///
    /// # Errors
    /// `Corruption`, and `Unsupported` for another version.
    pub(crate) fn check_bytes(bytes: &[u8]) -> Result<()> {
        Opened::decode(text_of(bytes, OPENED)?, OPENED).map(drop)
    }

    /// The number of the last open of the store `id` that `folder` knows; `None` if it knows none.
    /// The store's own folder is `root`.
    ///
    /// # Errors
    /// `InvalidArgument` if the store's own folder does not know that open; `Corruption` if a file
    /// is damaged; `Unsupported` if another version wrote it; those of the storage.
    pub(crate) fn last_in(
        folder: Folder<'_>,
        root: &dyn Storage,
        id: StoreId,
    ) -> Result<Option<u128>> {
        let (storage, parts) = folder;
        let of_store = |opened: &Opened| opened.store_id == id;
        let there = Opened::read(storage)?.filter(of_store);
        let Some(last) = there.and_then(|there| there.opens.last().copied()) else {
            return Ok(None);
        };
        // The store's own folder is read after the other one. So a reader without a lease, beside a
        // writer, finds there what the writer has noted in the other one.
        let own = Opened::read(root)?.filter(of_store);
        let knows = |own: Opened| {
            own.opens.contains(&last) || parts.redirected && own.redirect.contains(&last)
        };
        match own.is_some_and(knows) {
            true => Ok(Some(last)),
            false => Err(newer(root, storage, parts, last)),
        }
    }

    /// Refuses an old copy of a store's folder. Returns the opens that the other folders know.
    ///
    /// # Errors
    /// Those of [`Opened::last_in`].
    pub(crate) fn check(folders: &[Folder<'_>], id: StoreId) -> Result<Known> {
        let (root, _) = folders[0];
        let mut known = Known::default();
        for folder in &folders[1..] {
            let (_, parts) = folder;
            match Opened::last_in(*folder, root, id) {
                Err(error) if parts.redirected && error.storage().is_some() => {
                    known.unread = Some(error);
                }
                last if parts.redirected => known.redirect = last?,
                last => known.others.extend(last?),
            }
        }
        Ok(known)
    }

    /// Notes an open for writing, with a new number. `known` is what [`Opened::check`] returned.
    /// The folder of the second location of tables is not among `folders` if it is missing or is
    /// taken out.
    ///
    /// # Errors
    /// `Unsupported` if another version wrote the file in the store's own folder; those of the
    /// storage, except that there is no space.
    pub(crate) fn note(
        folders: &[Folder<'_>],
        id: StoreId,
        known: &Known,
        new: impl FnOnce() -> u128,
        epoch: Epoch,
    ) -> Result<()> {
        let [(root, _), others @ ..] = folders else {
            return Ok(());
        };
        if others.is_empty() {
            return Ok(());
        }
        let write = |storage: &dyn Storage, opens, redirect| -> Result<bool> {
            let opened = Opened {
                store_id: id,
                opens,
                redirect,
            };
            replace_if_room(storage, epoch, OPENED, &opened.encode())
        };
        let own = match Opened::read(*root) {
            // If another folder knew an open, the check has read this file. Otherwise nothing
            // depends on it.
            Err(error) if error.is_corruption() => None,
            own => own?.filter(|own| own.store_id == id),
        };
        let (own, own_redirect) =
            own.map_or_else(Default::default, |own| (own.opens, own.redirect));
        let new = new();
        let opens = remembered(own, &known.others, Some(new));
        let is_written = others.iter().any(|(_, parts)| parts.redirected);
        let there = known.redirect.into_iter().collect();
        let redirect = remembered(own_redirect, &there, is_written.then_some(new));
        if !write(*root, opens, redirect)? {
            return Ok(());
        }
        for (storage, parts) in others {
            match write(*storage, vec![new], Vec::new()) {
                // Its guard has noted that nothing can be written there.
                Err(error) if parts.redirected => {
                    let place = storage.describe();
                    tracing::warn!(%error, place, "an open could not be noted in a folder");
                }
                written => drop(written?),
            }
        }
        Ok(())
    }
}

/// The numbers for the store's own folder: those that it has, without the oldest ones if there are
/// too many, those that the other folders know, and the new one.
fn remembered(mut own: Vec<u128>, known: &BTreeSet<u128>, new: Option<u128>) -> Vec<u128> {
    own.retain(|open| !known.contains(open));
    let room = OPENS_MAX.saturating_sub(known.len() + usize::from(new.is_some()));
    let mut opens = own.split_off(own.len().saturating_sub(room));
    opens.extend(known);
    opens.extend(new);
    opens
}

/// The error for an old copy of a store's folder.
#[cold]
fn newer(root: &dyn Storage, storage: &dyn Storage, parts: Parts, last: u128) -> Error {
    let (root, place) = (root.describe(), storage.describe());
    let file = shown_file(storage, OPENED);
    Error::invalid_argument(format!(
        "{root} is an old copy of the store's folder: another copy of it was opened since, and \
         {place}, which holds the {parts}, belongs to that one now"
    ))
    .in_file(OPENED)
    .expected(format!("an open that {root}/{OPENED} names"))
    .found(format!("open {last:032x} in {place}/{OPENED}"))
    .advice(format!(
        "use the other copy, because an open of this one would delete what that one has written; \
         if the other copy is lost for good, delete {file}: then this one goes on with what it \
         knows, if that is still there, and deletes the rest"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_reads_back_and_damage_is_detected() {
        let all = [vec![], vec![1], vec![7, u128::MAX, 0]];
        let pairs = all
            .iter()
            .flat_map(|opens| all.iter().map(move |other| (opens, other)));
        for (opens, redirect) in pairs {
            let opened = Opened {
                store_id: StoreId(0xabc),
                opens: opens.clone(),
                redirect: redirect.clone(),
            };
            let text = opened.encode();
            let version = if redirect.is_empty() { 1 } else { 2 };
            assert!(text.starts_with(&format!("siltstone-opened {version}\n")));
            assert_eq!(Opened::decode(&text, OPENED).unwrap(), opened);
            for i in 0..text.len() {
                for bit in 0..8 {
                    let mut bytes = text.clone().into_bytes();
                    bytes[i] ^= 1 << bit;
                    if let Ok(changed) = String::from_utf8(bytes) {
                        assert!(Opened::decode(&changed, OPENED).is_err(), "{changed}");
                    }
                }
                let error = Opened::decode(&text[..i], OPENED).unwrap_err();
                assert!(error.is_corruption(), "{i}: {error}");
            }
        }
        for bad in [&b""[..], b"junk", b"siltstone-open 1", b"\xff"] {
            assert!(Opened::check_bytes(bad).unwrap_err().is_corruption());
        }
        let newer = b"siltstone-opened 3\nwhatever follows";
        let error = Opened::check_bytes(newer).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Unsupported);
        assert!(!error.to_string().contains("delete"), "{error}");
    }

    #[test]
    fn the_oldest_numbers_are_forgotten_unless_a_folder_knows_them() {
        let known = |all: &[u128]| all.iter().copied().collect::<BTreeSet<u128>>();
        assert_eq!(remembered(vec![], &known(&[]), Some(1)), [1]);
        assert_eq!(remembered(vec![1], &known(&[1]), Some(2)), [1, 2]);
        assert_eq!(remembered(vec![1, 2], &known(&[1]), Some(3)), [2, 1, 3]);
        assert_eq!(remembered(vec![1, 2], &known(&[1]), None), [2, 1]);
        // The disk of one folder was full at each of these opens.
        let mut opens = vec![7];
        for new in 100..200 {
            opens = remembered(opens, &known(&[7, new - 1]), Some(new));
        }
        assert_eq!(opens.len(), OPENS_MAX);
        assert!(opens.contains(&7), "{opens:?}");
        assert_eq!(opens[..3], [185, 186, 187]);
        assert_eq!(opens.last(), Some(&199));
    }
}

//! The server's notes about the leases that it granted. They survive its restarts (RFC 9, D3a).
//!
//! Each lease of each folder has two objects in the server's root folder, which are written in
//! turn. An object has a fixed length and is overwritten in place, so a note needs no space on a
//! full disk. A torn note has a wrong checksum, and then the other one counts.
//!
//! ```text
//! length u32 | document: folder, lease, number, hash of the token, id, granted epoch, local epoch
//! | zeros up to 1,024 bytes
//! ```
//!
//! Invariants: a note is durable before the lease that it describes is granted to a host. The
//! numbers of notes rise.
//!
//! Threading: the caller serialises the calls for one lease.

use siltstone_storage::{Epoch, Result, Storage, StorageError, StorageErrorKind};
use siltstone_table::fields::{Decoded, FieldReader, FieldWriter};
use xxhash_rust::xxh3::xxh3_64;

/// The first bytes of a note.
const MAGIC: [u8; 8] = *b"siltnote";

/// The version of the format of a note.
const VERSION: u16 = 1;

/// The length of an object, in bytes.
const NOTE_BYTES: usize = 1024;

/// The tags of fields.
mod tag {
    pub const LEASE: u16 = 1;
    pub const NUMBER: u16 = 2;
    pub const HOLDER: u16 = 3;
    pub const EPOCHS: u16 = 4;
}

/// The last grant of a lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Note {
    /// The hash of the holder's token. The token itself is a secret.
    pub(super) token_hash: u128,
    /// The lease's id, which the holder has drawn at random.
    pub(super) id: [u8; 16],
    /// The epoch that was granted to the holder.
    pub(super) granted: u64,
    /// The epoch that the folder's own lease had.
    pub(super) local: u64,
}

impl Note {
    /// A lease that nobody has.
    pub(super) const RELEASED: Note = Note {
        token_hash: 0,
        id: [0; 16],
        granted: 0,
        local: 0,
    };

    pub(super) fn is_released(&self) -> bool {
        (self.token_hash, self.id) == (0, [0; 16])
    }
}

/// The notes of one lease.
pub(super) struct Notes<'a> {
    root: &'a dyn Storage,
    epoch: Epoch,
    folder: &'a str,
    lease: &'a str,
}

impl<'a> Notes<'a> {
    pub(super) fn new(
        root: &'a dyn Storage,
        epoch: Epoch,
        folder: &'a str,
        lease: &'a str,
    ) -> Notes<'a> {
        Notes {
            root,
            epoch,
            folder,
            lease,
        }
    }

    fn object(&self, number: u64) -> String {
        let hash = xxh3_64(format!("{}/{}", self.folder, self.lease).as_bytes());
        format!("grant-{hash:016x}-{}", number % 2)
    }

    fn read_object(&self, number: u64) -> Result<Option<(u64, Note)>> {
        let bytes = match self.root.read_small(&self.object(number)) {
            Ok(bytes) => bytes,
            Err(e) if e.kind == StorageErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        // An object that cannot be decoded was torn, or was never finished.
        Ok(self.decode(&bytes).ok().flatten())
    }

    /// The last note, with its number. `None` if the lease was never granted.
    pub(super) fn read(&self) -> Result<Option<(u64, Note)>> {
        let (a, b) = (self.read_object(0)?, self.read_object(1)?);
        Ok(a.into_iter().chain(b).max_by_key(|(number, _)| *number))
    }

    /// Writes the next note and makes it durable.
    pub(super) fn write(&self, note: &Note) -> Result<()> {
        let number = self.read()?.map_or(0, |(number, _)| number + 1);
        let name = self.object(number);
        let bytes = self.encode(number, note);
        let file = match self.root.reopen(self.epoch, &name, 0) {
            Err(e) if e.kind == StorageErrorKind::NotFound => {
                let file = self.root.create(self.epoch, &name)?;
                self.root.sync_dir(self.epoch)?;
                file
            }
            file => file?,
        };
        file.append(&[&bytes])?;
        file.sync()
    }

    fn encode(&self, number: u64, note: &Note) -> Vec<u8> {
        let mut out = FieldWriter::document(MAGIC, VERSION);
        out.field(tag::LEASE, |o| {
            o.bytes(self.folder.as_bytes());
            o.bytes(self.lease.as_bytes());
        });
        out.field(tag::NUMBER, |o| o.u64(number));
        out.field(tag::HOLDER, |o| {
            o.bytes(&note.token_hash.to_le_bytes());
            o.bytes(&note.id);
        });
        out.field(tag::EPOCHS, |o| {
            o.u64(note.granted);
            o.u64(note.local);
        });
        let document = out.finish_document();
        let mut bytes = (document.len() as u32).to_le_bytes().to_vec();
        bytes.extend(document);
        assert!(bytes.len() <= NOTE_BYTES, "names have at most 100 bytes");
        bytes.resize(NOTE_BYTES, 0);
        bytes
    }

    /// The number and the note, or `None` if the note belongs to another lease.
    fn decode(&self, bytes: &[u8]) -> Decoded<Option<(u64, Note)>> {
        let mut i = FieldReader::new(bytes);
        let len = i.u32("length of a note")? as usize;
        let document = bytes.get(4..4 + len.min(NOTE_BYTES)).unwrap_or_default();
        let mut i = FieldReader::document(document, MAGIC, VERSION, "note of a lease")?;
        let names = i.field(tag::LEASE, "lease", |i| {
            Ok((i.text("folder")?, i.text("lease")?))
        })?;
        let number = i.field(tag::NUMBER, "number", |i| i.u64("number"))?;
        let fixed = |i: &mut FieldReader<'_>, what| -> Decoded<[u8; 16]> {
            let at = i.position();
            let bytes = i.bytes(what)?;
            let len = bytes.len() as u64;
            let wrong = |_| siltstone_table::Damage::new(what, at, 16, len);
            bytes.try_into().map_err(wrong)
        };
        let (token_hash, id) = i.field(tag::HOLDER, "holder", |i| {
            Ok((fixed(i, "hash of the token")?, fixed(i, "id of the lease")?))
        })?;
        let (granted, local) = i.field(tag::EPOCHS, "epochs", |i| {
            Ok((i.u64("granted epoch")?, i.u64("local epoch")?))
        })?;
        i.end("note of a lease")?;
        let is_this = names.0 == self.folder && names.1 == self.lease;
        let note = Note {
            token_hash: u128::from_le_bytes(token_hash),
            id,
            granted,
            local,
        };
        Ok(is_this.then_some((number, note)))
    }
}

/// The server's own id, which is drawn at random when the server is started for the first time.
pub(super) fn device_id(root: &dyn Storage, epoch: Epoch, new: [u8; 16]) -> Result<[u8; 16]> {
    const NAME: &str = "device-id";
    match root.read_small(NAME) {
        Ok(bytes) => bytes[..].try_into().map_err(|_| {
            let detail = format!("expected 16 bytes, found {}; delete the file", bytes.len());
            StorageError::new(StorageErrorKind::Io, "read", NAME, detail)
        }),
        Err(e) if e.kind == StorageErrorKind::NotFound => {
            root.replace(epoch, NAME, &new)?;
            Ok(new)
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use siltstone_storage::{MemoryStorage, Runtime};

    use super::*;

    fn note(granted: u64) -> Note {
        Note {
            token_hash: 7,
            id: [granted as u8; 16],
            granted,
            local: granted - 1,
        }
    }

    #[test]
    fn the_last_whole_note_counts() {
        let root = MemoryStorage::new(&Runtime::threads());
        let epoch = root.lease("device").unwrap().epoch();
        let notes = Notes::new(&root, epoch, "db", "store");
        assert_eq!(notes.read().unwrap(), None);
        for granted in 1..6 {
            notes.write(&note(granted)).unwrap();
            assert_eq!(notes.read().unwrap(), Some((granted - 1, note(granted))));
        }
        // Another lease has other notes.
        assert_eq!(Notes::new(&root, epoch, "db", "x").read().unwrap(), None);
        // The last note is torn. So the one before it counts, and it is not the next to be
        // overwritten.
        let torn = root.reopen(epoch, &notes.object(4), 100).unwrap();
        torn.append(&[&[0xff; 20]]).unwrap();
        assert_eq!(notes.read().unwrap(), Some((3, note(4))));
        notes.write(&note(9)).unwrap();
        assert_eq!(notes.read().unwrap(), Some((4, note(9))));
    }

    #[test]
    fn a_full_disk_does_not_keep_notes_from_being_written() {
        let root = MemoryStorage::new(&Runtime::threads());
        let epoch = root.lease("device").unwrap().epoch();
        let notes = Notes::new(&root, epoch, "db", "store");
        (1..3).for_each(|granted| notes.write(&note(granted)).unwrap());
        root.set_capacity(Some(root.used_bytes()));
        (3..9).for_each(|granted| notes.write(&note(granted)).unwrap());
        assert_eq!(notes.read().unwrap().unwrap().1, note(8));
    }

    #[test]
    fn a_device_keeps_its_id() {
        let root = MemoryStorage::new(&Runtime::threads());
        let epoch = root.lease("device").unwrap().epoch();
        assert_eq!(device_id(&root, epoch, [1; 16]).unwrap(), [1; 16]);
        assert_eq!(device_id(&root, epoch, [2; 16]).unwrap(), [1; 16]);
    }
}

//! The storage trait: one flat folder of named objects.
//!
//! What it is: everything that the store keeps (log segments, manifests, tables, the pointer to the current
//! manifest) is an object in a [`Storage`]. An object is created exclusively, written by appends, made durable
//! by an explicit sync, and then either immutable (tables), or append-only (log, manifest).
//!
//! Invariants that every implementation keeps:
//! - **S1** A name becomes durable by [`Storage::sync_dir`], bytes by [`WriteFile::sync`]; nothing else is promised
//!   about power loss. What was written survives a kill of the process on local files.
//! - **S2** [`Storage::replace`] is atomic and durable when it returns: readers see the old or the new bytes.
//! - **S3** Every changing call carries the epoch of the lease; a storage whose leases expire refuses older ones.
//! - **S4** A read either fills the whole buffer or fails.
//! - **S5** Destructors make no storage calls. Dropping a file closes it, that is all.
//!
//! Threading: all methods may be called from any thread. A [`WriteFile`] has one appender at a time (the
//! caller's duty; implementations serialise), while `sync` may run beside an append: it covers the bytes whose
//! append returned before it was called.

use std::sync::Arc;

use crate::error::Result;
use crate::map::Map;

/// A writer's turn on a storage. Larger epochs fence smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// A held lease. It ends when it is dropped or the process dies.
pub trait Lease: Send + Sync {
    /// The epoch to pass with every changing call.
    fn epoch(&self) -> Epoch;
}

/// A reader's share of a lease: while it is held there is no writer. It has no epoch, because who only reads changes
/// nothing. It ends when it is dropped or the process dies.
pub trait SharedLease: Send + Sync {
    /// Whether it keeps writers out. False on a read-only mount without the lease's file: nobody can write through this mount, but somebody
    /// may through another.
    fn is_held(&self) -> bool {
        true
    }
}

/// Name and length of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ObjectMeta {
    /// The object's name.
    pub name: String,
    /// Its length in bytes.
    pub len: u64,
}

/// What a storage can do beyond the required calls.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// [`ReadFile::map`] gives maps.
    pub maps: bool,
    /// [`Storage::import`] gives objects of the same kind of storage a second name instead of copying them.
    pub links: bool,
    /// A kill of the process keeps what was appended (local files: the page cache). False across a link.
    pub survives_kill: bool,
}

/// How an object will be read; a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Point reads.
    Random,
    /// Front to back, soon: read ahead.
    Sequential,
    /// All of it, now.
    WillNeed,
    /// Not again soon.
    DontNeed,
}

/// One range of a vectored read.
pub struct ReadRange<'a> {
    /// Byte offset in the object.
    pub offset: u64,
    /// Filled whole.
    pub buf: &'a mut [u8],
}

/// A named, flat folder of objects. See the module for the invariants.
///
/// Names match `[A-Za-z0-9._-]{1,100}` and do not start with a dot.
pub trait Storage: Send + Sync + 'static {
    /// A word for messages: a path, or `memory`.
    fn describe(&self) -> String;

    /// What tells this storage from all others that a process on this machine may open: a folder's absolute path, links resolved. What stores
    /// write down of where their parts lie. Wrappers pass it on.
    fn location(&self) -> String {
        self.describe()
    }

    /// What this storage can do.
    fn capabilities(&self) -> Capabilities;

    /// Takes the one writer's lease called `name`, or fails with `LeaseHeld` (message: by whom, if known).
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>>;

    /// Takes a share of the lease called `name`: any number of readers, and no writer beside them. Fails with `LeaseHeld` (message: by whom, if
    /// known) while a writer has it; a writer fails so while a reader has it. Changes nothing of what is stored.
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>>;

    /// Creates an object, empty, exclusively.
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>>;

    /// As [`Storage::create`], written past a page cache where the storage has one (direct I/O). What was appended and not synced need not
    /// survive a kill of the process.
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.create(epoch, name)
    }

    /// Renames the finished object `old` to the free name `new` and opens it for overwriting from offset 0. Its
    /// bytes stay (they are *reserved* space); its length stays. Used for log segments and for output files that
    /// are still in the page cache.
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>>;

    /// Makes the bytes of an existing object durable that somebody else wrote: an inherited log segment, of which what was read may
    /// still be in memory only.
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// Writes the bytes of an existing object, as they read now, once more over themselves, and makes them durable. For bytes of which an earlier
    /// sync may have failed: its failure was told once, and what it did not write is no longer waiting to be written, so that
    /// [`Storage::sync_object`] would succeed and do nothing. Costs a read and a write of the object. Nobody else may write to it meanwhile. A
    /// storage that cannot do this syncs.
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.sync_object(epoch, name)
    }

    /// Opens an object for reading.
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>>;

    /// As [`Storage::open`], read past a page cache where the storage has one (direct I/O). Such an object has no map.
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.open(name)
    }

    /// Whether [`Storage::open_direct`] and [`Storage::create_direct`] do what they say: `Unsupported` if there is a page cache and no way past
    /// it. The caller holds a lease. Leaves everything as it was.
    fn check_direct(&self) -> Result<()> {
        Ok(())
    }

    /// Reads a small object whole (the manifest's pointer).
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.open(name)?;
        let mut buf = vec![0; file.len() as usize];
        file.read_at(0, &mut buf)?;
        Ok(buf)
    }

    /// All objects, sorted by name. Leases are not listed.
    fn list(&self) -> Result<Vec<ObjectMeta>>;

    /// Deletes an object. Files open for reading stay readable.
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// Renames `old` to `new`, replacing `new` if it is there. Durable after `sync_dir`.
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()>;

    /// Takes the finished, synced object `from_name` of `from` in under the free name `name`: a second name of the same bytes where both
    /// storages can share them (a hard link between folders of one file system), else a synced copy. Its bytes are durable when this
    /// returns (if they were in `from`), its name after `sync_dir`. A failed call leaves no object behind, as far as the storage lets it.
    ///
    /// Neither object may be written afterwards: they may be one.
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        copy_object(self, epoch, name, from, from_name)
    }

    /// Sets a small object that nobody relies on: readers see the old bytes or the new ones, and after a power loss any bytes or none. Costs no
    /// sync. For figures that are out of date in a second.
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()>;

    /// Makes creations, renames and deletions that returned before this call durable.
    fn sync_dir(&self, epoch: Epoch) -> Result<()>;

    /// Makes the names durable that lead to this storage (a folder's name in the folder above it, and so on), whoever made them. Costs a few
    /// syncs; for whoever founds something in it.
    fn sync_place(&self, epoch: Epoch) -> Result<()> {
        let _ = epoch;
        Ok(())
    }

    /// Replaces a small object atomically and durably (S2).
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()>;

    /// Free bytes, where the storage knows them.
    fn free_bytes(&self) -> Option<u64>;

    /// The storage below all wrappers, by which [`Storage::import`] knows with whom it can share bytes. Wrappers pass it on.
    #[doc(hidden)]
    fn base(&self) -> Option<&dyn std::any::Any> {
        None
    }

    /// How many objects this process may have open at once; none: no limit that is worth asking for.
    fn open_objects_max(&self) -> Option<u64> {
        None
    }

    /// For fault injection: what a directory sync whose write-back failed does to the creations, renames and
    /// deletions that it should have made durable: they show, but never become durable. False: not supported.
    #[doc(hidden)]
    fn inject_lost_names(&self) -> bool {
        false
    }

    /// As [`InjectedFault::LoseUnsynced`], of the object `name`. False if the storage cannot do that.
    fn inject_lost_bytes(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// How much [`copy_object`] moves at once, in bytes.
const COPY_BYTES: usize = 1 << 20;

/// Copies the object `from_name` of `from` to the free name `name` of `to`, and syncs its bytes. What [`Storage::import`] does where bytes cannot
/// be shared.
///
/// # Errors
/// Those of the calls that it makes; what was begun is deleted again, as far as the storage lets us.
pub fn copy_object<S: Storage + ?Sized>(
    to: &S,
    epoch: Epoch,
    name: &str,
    from: &dyn Storage,
    from_name: &str,
) -> Result<()> {
    let source = from.open(from_name)?;
    let target = to.create(epoch, name)?;
    let copied = (|| {
        source.advise(Access::Sequential, 0, source.len());
        let mut buf = vec![0; COPY_BYTES.min(source.len() as usize)];
        let mut at = 0;
        while at < source.len() {
            let n = (source.len() - at).min(COPY_BYTES as u64) as usize;
            source.read_at(at, &mut buf[..n])?;
            target.append(&[&buf[..n]])?;
            at += n as u64;
        }
        target.sync()
    })();
    drop(target);
    if copied.is_err() {
        let _ = to.delete(epoch, name);
    }
    copied
}

/// What a fault-injecting wrapper asks of the storage below it; see [`WriteFile::inject`].
#[derive(Clone, Copy, Debug)]
pub enum InjectedFault<'a> {
    /// The bytes since the last sync stay readable until a crash but never become durable, as after a failed sync.
    LoseUnsynced,
    /// The first `keep_bytes` of `parts` land at the position, which does not move.
    ShortAppend {
        /// As given to `append`.
        parts: &'a [&'a [u8]],
        /// How many bytes land.
        keep_bytes: u64,
    },
}

/// An object being written. Appends go to the write position, which starts at 0.
pub trait WriteFile: Send + Sync {
    /// The object's name.
    fn name(&self) -> &str;

    /// Where the next append goes, in bytes.
    fn position(&self) -> u64;

    /// Appends all of `parts`, in order, as one write where possible. After an error the position is unchanged
    /// and the bytes from it on are unknown.
    fn append(&self, parts: &[&[u8]]) -> Result<()>;

    /// Makes sure that the object has written (not only allocated) space up to `len` bytes, without moving the
    /// position: appends within it need no new space. Zeros where nothing was written before.
    fn reserve(&self, len: u64) -> Result<()>;

    /// Length of the object, reserved space included.
    fn len(&self) -> u64;

    /// Whether the object has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the bytes (and the length) durable that were appended or reserved before this call. After an error
    /// the bytes since the last successful sync are lost for good: never call it again for them (the kernel
    /// reports a write-back error once).
    fn sync(&self) -> Result<()>;

    /// Memory that it has for bytes that were appended and not written yet.
    fn buffer_bytes(&self) -> u64 {
        0
    }

    /// Starts writing bytes back without waiting; a hint that never fails.
    fn start_writeback(&self, _from: u64, _len: u64) {}

    /// Cuts the object at the position (recycled output files that turned out shorter).
    fn truncate_to_position(&self) -> Result<()>;

    /// For fault injection: leaves what the named failure leaves. False: not supported, nothing was done.
    #[doc(hidden)]
    fn inject(&self, _fault: InjectedFault<'_>) -> bool {
        false
    }
}

/// An object open for reading.
pub trait ReadFile: Send + Sync {
    /// The object's name.
    fn name(&self) -> &str;

    /// Length in bytes when it was opened.
    fn len(&self) -> u64;

    /// Whether the object has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset` (S4).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills several ranges; implementations may do them at once.
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        for range in ranges {
            self.read_at(range.offset, range.buf)?;
        }
        Ok(())
    }

    /// A hint about coming reads.
    fn advise(&self, _access: Access, _offset: u64, _len: u64) {}

    /// A view of the whole object in memory, if the storage has maps.
    fn map(&self) -> Result<Option<Map>> {
        Ok(None)
    }
}

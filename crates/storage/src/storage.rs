//! The storage trait: one flat folder of named objects.
//!
//! Everything that the store keeps (log segments, manifests, tables, the pointer to the current
//! manifest) is an object in a [`Storage`]. An object is created exclusively, written by appends
//! and made durable by an explicit sync. After that it is either immutable (tables) or append-only
//! (log, manifest).
//!
//! Invariants that every implementation keeps:
//! - **S1** A name becomes durable by [`Storage::sync_dir`], bytes by [`WriteFile::sync`]. Nothing
//!   else is promised about power loss. On local files, written bytes survive a kill of the
//!   process.
//! - **S2** [`Storage::replace`] is atomic, and durable when it returns: readers see the old or the
//!   new bytes.
//! - **S3** Every changing call carries the epoch of the lease. A storage whose leases expire
//!   refuses older epochs.
//! - **S4** A read either fills the whole buffer or fails.
//! - **S5** Destructors make no storage calls. Dropping a file only closes it.
//!
//! Threading: all methods may be called from any thread. A [`WriteFile`] has one appender at a
//! time, which the caller ensures (implementations also serialise appends). `sync` may run beside
//! an append: it covers the bytes whose append returned before it was called.

use std::os::fd::BorrowedFd;
use std::sync::Arc;

use crate::error::{Result, StorageError, StorageErrorKind};
use crate::map::Map;

/// The number of a writer's lease on a storage. Larger epochs fence smaller ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Epoch(pub u64);

/// A held lease. It ends when it is dropped or the process dies.
pub trait Lease: Send + Sync {
    /// The epoch to pass with every changing call.
    fn epoch(&self) -> Epoch;

    /// Gives the lease back, and returns when somebody else can take it. The holder changes nothing
    /// afterwards. A storage across a link needs this, because a destructor makes no calls there
    /// (S5), and the lease would stay until the link's next call. Where dropping a lease ends it,
    /// this does nothing.
    ///
    /// # Errors
    /// If the storage cannot be reached. The lease then ends when its holder has been silent for
    /// long enough.
    fn release(&self) -> Result<()> {
        Ok(())
    }
}

/// A reader's share of a lease: while it is held there is no writer. It has no epoch, because a
/// reader changes nothing. It ends when it is dropped or the process dies.
pub trait SharedLease: Send + Sync {
    /// Whether the share keeps writers out. It does not on a read-only mount that lacks the lease's
    /// file: nobody can write through this mount, but somebody may write through another one.
    fn is_held(&self) -> bool {
        true
    }

    /// The epoch of the last writer. Another one later means that a writer was there in between.
    fn last_epoch(&self) -> Epoch {
        Epoch(0)
    }

    /// Gives the share back, as [`Lease::release`].
    ///
    /// # Errors
    /// As [`Lease::release`].
    fn release(&self) -> Result<()> {
        Ok(())
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
    /// [`ReadFile::map`] returns maps.
    pub maps: bool,
    /// [`Storage::import`] gives an object of the same kind of storage a second name instead of
    /// copying it.
    pub links: bool,
    /// Appended bytes survive a kill of the process (on local files they are in the page cache).
    /// False for a storage across a link.
    pub survives_kill: bool,
    /// An append may return before the storage has taken it. What makes it fail, a lost lease for
    /// example, is then the result of a later call on the file, at the latest of its sync.
    pub pipelined: bool,
    /// Other processes of this machine find the same objects at the path that
    /// [`Storage::location`] returns.
    pub has_path: bool,
}

/// How an object will be read; a hint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Point reads at random offsets.
    Random,
    /// A scan from front to back that starts soon: the storage should read ahead.
    Sequential,
    /// The whole range will be read at once.
    WillNeed,
    /// The range will not be read again soon.
    DontNeed,
}

/// Who reads an object. A storage across a link counts the bytes of each reader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReadPurpose {
    /// A caller that wants an entry, or many: a get, a scan, a check.
    Lookup,
    /// A compaction of this process.
    Compaction,
    /// A compaction that reads columns only, and decides by them what is kept.
    Columns,
    /// The verification of what an executor made.
    Verify,
}

/// One range of a vectored read.
pub struct ReadRange<'a> {
    /// Byte offset in the object.
    pub offset: u64,
    /// The buffer, which the read fills completely.
    pub buf: &'a mut [u8],
}

/// A named, flat folder of objects. See the module for the invariants.
///
/// Names match `[A-Za-z0-9._-]{1,100}` and do not start with a dot.
pub trait Storage: Send + Sync + 'static {
    /// The storage's name for messages: a path, or `memory`.
    fn describe(&self) -> String;

    /// The identity of this storage among all that a process on this machine can open: a folder's
    /// absolute path, with links resolved. Stores record it to find their parts again. Wrappers
    /// return the location of the storage that they wrap.
    fn location(&self) -> String {
        self.describe()
    }

    /// What this storage can do.
    fn capabilities(&self) -> Capabilities;

    /// Takes the lease called `name` for the one writer. Fails with `LeaseHeld` if somebody else
    /// holds it; the message names the holder, if that is known.
    fn lease(&self, name: &str) -> Result<Box<dyn Lease>>;

    /// Takes a share of the lease called `name`. Any number of readers can hold shares, and no
    /// writer can hold the lease beside them. Fails with `LeaseHeld` while a writer holds the
    /// lease, and [`Storage::lease`] fails with it while a reader holds a share; the message names
    /// the holder, if that is known. Changes no stored object.
    fn lease_shared(&self, name: &str) -> Result<Box<dyn SharedLease>>;

    /// Creates an empty object. Fails if the name is taken.
    fn create(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>>;

    /// As [`Storage::create`], but the object is written past the page cache where the storage has
    /// one (direct I/O). Bytes that were appended but not synced may be lost when the process is
    /// killed.
    fn create_direct(&self, epoch: Epoch, name: &str) -> Result<Arc<dyn WriteFile>> {
        self.create(epoch, name)
    }

    /// Renames the finished object `old` to the free name `new` and opens it for overwriting from
    /// offset 0. Its bytes and its length stay, and count as *reserved* space. Used for log
    /// segments, and for output files that are still in the page cache.
    fn recycle(&self, epoch: Epoch, old: &str, new: &str) -> Result<Arc<dyn WriteFile>>;

    /// Opens an existing object for writing at `position`. Its bytes and its length stay, and count
    /// as *reserved* space. This is for a process that goes on writing an object of one that ended;
    /// the caller knows that nobody else writes to it. Fails with `UnexpectedEof` if the object is
    /// shorter than `position`.
    fn reopen(&self, epoch: Epoch, name: &str, position: u64) -> Result<Arc<dyn WriteFile>> {
        let _ = (epoch, position);
        Err(StorageError::new(
            StorageErrorKind::Unsupported,
            "reopen",
            name,
            format!("{} cannot go on writing an object", self.describe()),
        ))
    }

    /// Makes the bytes of an existing object durable that another process wrote. An inherited log
    /// segment may be in memory only, even though it can be read.
    fn sync_object(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// Writes the current bytes of an existing object over themselves and makes them durable. This
    /// is for bytes whose earlier sync may have failed: the kernel reports that failure once and no
    /// longer considers the bytes unwritten, so [`Storage::sync_object`] would succeed without
    /// writing them. Costs a read and a write of the object, to which nobody else may write
    /// meanwhile. A storage that cannot rewrite objects only syncs.
    fn rewrite_object(&self, epoch: Epoch, name: &str) -> Result<()> {
        self.sync_object(epoch, name)
    }

    /// Opens an object for reading.
    fn open(&self, name: &str) -> Result<Arc<dyn ReadFile>>;

    /// As [`Storage::open`], for an object that is finished: nobody writes to it any more as long
    /// as anybody has it open. So its bytes may be read in any way that the storage has, also after
    /// the lease was lost: they are the right ones for ever.
    fn open_finished(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.open(name)
    }

    /// As [`Storage::open`], but the object is read past the page cache where the storage has one
    /// (direct I/O). Such an object has no map.
    fn open_direct(&self, name: &str) -> Result<Arc<dyn ReadFile>> {
        self.open(name)
    }

    /// Checks that [`Storage::open_direct`] and [`Storage::create_direct`] avoid the page cache.
    /// Fails with `Unsupported` if there is a page cache that cannot be avoided. The caller holds a
    /// lease. Leaves the storage unchanged.
    fn check_direct(&self) -> Result<()> {
        Ok(())
    }

    /// Reads the whole of a small object (the manifest's pointer).
    fn read_small(&self, name: &str) -> Result<Vec<u8>> {
        let file = self.open(name)?;
        let mut buf = vec![0; file.len() as usize];
        file.read_at(0, &mut buf)?;
        Ok(buf)
    }

    /// Lists all objects, sorted by name. Leases are not listed.
    fn list(&self) -> Result<Vec<ObjectMeta>>;

    /// Deletes an object. A file that is open for reading stays readable.
    fn delete(&self, epoch: Epoch, name: &str) -> Result<()>;

    /// Renames `old` to `new`, and replaces `new` if it exists. Durable after `sync_dir`.
    fn rename(&self, epoch: Epoch, old: &str, new: &str) -> Result<()>;

    /// Imports the finished, synced object `from_name` of `from` under the free name `name`. If
    /// both storages can share the bytes (a hard link between folders of one file system), the
    /// object gets a second name; otherwise it is copied, and the copy is synced. The bytes are
    /// durable when this returns (if they were durable in `from`), the name after `sync_dir`. A
    /// failed call deletes what it created, if the storage allows it.
    ///
    /// Neither object may be written afterwards, because they may share their bytes.
    fn import(&self, epoch: Epoch, name: &str, from: &dyn Storage, from_name: &str) -> Result<()> {
        copy_object(self, epoch, name, from, from_name)
    }

    /// Sets the contents of a small object that nothing relies on, such as statistics that are soon
    /// out of date. Readers see the old bytes or the new ones. After a power loss the object may
    /// hold any bytes or be missing. Costs no sync.
    fn publish(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()>;

    /// Makes the creations, renames and deletions durable that returned before this call.
    fn sync_dir(&self, epoch: Epoch) -> Result<()>;

    /// Makes the names durable that lead to this storage (a folder's name in the folder above it,
    /// and so on), whoever created them. Costs a few syncs, so it is called only when something is
    /// created in the storage for the first time.
    fn sync_parents(&self, epoch: Epoch) -> Result<()> {
        let _ = epoch;
        Ok(())
    }

    /// Replaces a small object atomically and durably (S2).
    fn replace(&self, epoch: Epoch, name: &str, bytes: &[u8]) -> Result<()>;

    /// Free bytes, if the storage knows them.
    fn free_bytes(&self) -> Option<u64>;

    /// The storage below all wrappers, with which [`Storage::import`] finds out whether bytes can
    /// be shared. Wrappers return the base of the storage that they wrap.
    #[doc(hidden)]
    fn base(&self) -> Option<&dyn std::any::Any> {
        None
    }

    /// The number of objects that this process may have open at once. `None` if there is no
    /// practical limit.
    fn open_objects_max(&self) -> Option<u64> {
        None
    }

    /// Counts that the storage keeps, by name, for the statistics of a store. They only rise. A
    /// storage across a link counts its bytes here.
    fn counters(&self) -> Vec<(String, u64)> {
        Vec::new()
    }

    /// For fault injection: does what a directory sync with a failed write-back does. The
    /// creations, renames and deletions that it should have made durable stay visible but never
    /// become durable. Returns false if the storage does not support this.
    #[doc(hidden)]
    fn inject_lost_names(&self) -> bool {
        false
    }

    /// For fault injection: as [`InjectedFault::LoseUnsynced`], for the object `name`. Returns
    /// false if the storage does not support this.
    fn inject_lost_bytes(&self, name: &str) -> bool {
        let _ = name;
        false
    }
}

/// The number of bytes that [`copy_object`] moves at once.
const COPY_BYTES: usize = 1 << 20;

/// Copies the object `from_name` of `from` to the free name `name` of `to`, and syncs the copy.
/// [`Storage::import`] does this where bytes cannot be shared.
///
/// # Errors
/// Those of the calls that it makes. A failed copy is deleted, if the storage allows it.
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

/// Refuses to go on writing behind the end of an object of `len` bytes.
pub(crate) fn check_position(shown: &str, position: u64, len: u64) -> Result<()> {
    if position <= len {
        return Ok(());
    }
    let detail = format!("the object has {len} bytes, so writing cannot go on at {position}");
    let kind = StorageErrorKind::UnexpectedEof;
    Err(StorageError::new(kind, "reopen", shown, detail).at(position))
}

/// A fault that a wrapper asks the storage below it to inject; see [`WriteFile::inject`].
#[derive(Clone, Copy, Debug)]
pub enum InjectedFault<'a> {
    /// The bytes since the last sync stay readable until a crash but never become durable, as after
    /// a failed sync.
    LoseUnsynced,
    /// The first `keep_bytes` bytes of `parts` are written at the position, which does not move.
    ShortAppend {
        /// The parts, as they were given to `append`.
        parts: &'a [&'a [u8]],
        /// The number of bytes that are written.
        keep_bytes: u64,
    },
}

/// A file that is open for direct I/O: the kernel moves bytes between the device and memory, past
/// the page cache.
#[derive(Clone, Copy, Debug)]
pub struct DirectFile<'a> {
    /// Its descriptor, which was opened with `O_DIRECT`.
    pub descriptor: BorrowedFd<'a>,
    /// Offsets, lengths and addresses must be multiples of this number of bytes.
    pub alignment: u64,
}

/// Reads a file by its descriptor.
pub type ReadByDescriptor<'a> = dyn FnMut(DirectFile<'_>) -> std::io::Result<()> + 'a;

/// Writes a file by its descriptor, from an offset on, or returns false.
pub type WriteByDescriptor<'a> = dyn FnMut(DirectFile<'_>, u64) -> std::io::Result<bool> + 'a;

/// An object being written. Appends go to the write position, which starts at 0.
pub trait WriteFile: Send + Sync {
    /// The object's name.
    fn name(&self) -> &str;

    /// The offset of the next append, in bytes.
    fn position(&self) -> u64;

    /// Appends all of `parts`, in order, as one write where possible. After an error the position
    /// is unchanged, and the bytes after it are undefined. After `Unreachable` nothing was written.
    fn append(&self, parts: &[&[u8]]) -> Result<()>;

    /// Appends `len` bytes that `write` puts into the file by itself, for bytes that are not in the
    /// memory of the host. `write` gets the file, and the offset at which the bytes begin.
    ///
    /// Returns false, and does not call `write`, if the file is not open for direct I/O, or if
    /// position or `len` are no multiples of its alignment. `write` returns false if it cannot
    /// write this file and has written nothing; then nothing has changed, and this returns false,
    /// too. An error of `write` is one of the append.
    fn append_by_descriptor(&self, len: u64, write: &mut WriteByDescriptor<'_>) -> Result<bool> {
        let _ = (len, write);
        Ok(false)
    }

    /// Ensures that the object has written (not only allocated) space up to `len` bytes, without
    /// moving the position. Appends within it need no new space. Space that was not written before
    /// reads as zeros.
    fn reserve(&self, len: u64) -> Result<()>;

    /// As [`WriteFile::reserve`], but the space need not have been written: the first sync of bytes
    /// that lie in it may also have to change what the file system knows of it, and then takes
    /// longer. For space that is written and synced in large pieces this saves writing it twice.
    /// Returns whether zeros were written nevertheless.
    fn allocate(&self, len: u64) -> Result<bool> {
        let is_longer = len > self.len();
        self.reserve(len)?;
        Ok(is_longer)
    }

    /// Length of the object, including reserved space.
    fn len(&self) -> u64;

    /// Whether the object has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Makes the bytes (and the length) durable that were appended or reserved before this call.
    /// After an error, the bytes since the last successful sync are lost: never call this again for
    /// them, because the kernel reports a write-back error only once. After `Unreachable` it is not
    /// known whether they are durable, and the call may be repeated: they are kept until then.
    fn sync(&self) -> Result<()>;

    /// The memory that this file uses for bytes that were appended and not yet written.
    fn buffer_bytes(&self) -> u64 {
        0
    }

    /// Starts writing bytes back without waiting. This is a hint and never fails.
    fn start_writeback(&self, _from: u64, _len: u64) {}

    /// Truncates the object at the position (for recycled output files that turned out shorter).
    fn truncate_to_position(&self) -> Result<()>;

    /// For fault injection: leaves the file in the state that the given fault leaves. Returns
    /// false, and does nothing, if the fault is not supported.
    #[doc(hidden)]
    fn inject(&self, _fault: InjectedFault<'_>) -> bool {
        false
    }
}

/// An object open for reading.
pub trait ReadFile: Send + Sync {
    /// The object's name.
    fn name(&self) -> &str;

    /// Length in bytes at the time when it was opened.
    fn len(&self) -> u64;

    /// Whether the object has no bytes.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Fills `buf` from `offset` (S4).
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<()>;

    /// Fills several ranges. Implementations may read them concurrently.
    fn read_ranges(&self, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        for range in ranges {
            self.read_at(range.offset, range.buf)?;
        }
        Ok(())
    }

    /// As [`ReadFile::read_ranges`], and says who reads. The other reads are lookups.
    fn read_ranges_for(&self, purpose: ReadPurpose, ranges: &mut [ReadRange<'_>]) -> Result<()> {
        let _ = purpose;
        self.read_ranges(ranges)
    }

    /// Lets `read` read the file by itself, for bytes that go to memory which is not the host's.
    /// Returns false, and does not call `read`, if the file is not open for direct I/O. An error of
    /// `read` is one of a read.
    fn read_by_descriptor(&self, read: &mut ReadByDescriptor<'_>) -> Result<bool> {
        let _ = read;
        Ok(false)
    }

    /// A hint about coming reads.
    fn advise(&self, _access: Access, _offset: u64, _len: u64) {}

    /// A view of the whole object in memory, if the storage has maps.
    fn map(&self) -> Result<Option<Map>> {
        Ok(None)
    }

    /// The system's descriptor of the object, if it is an open file that can only be read. It can
    /// be passed to another process of the same machine.
    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

//! The kinds of storage calls, for counting, for traces and for aiming faults.

/// A kind of storage call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
#[allow(missing_docs)] // each is the call of the same name in `Storage`, `WriteFile` or `ReadFile`
pub enum OpKind {
    Lease,
    Create,
    Recycle,
    Open,
    List,
    Delete,
    Rename,
    Import,
    SyncDir,
    Replace,
    FreeBytes,
    Append,
    Reserve,
    Sync,
    StartWriteback,
    Truncate,
    Read,
    Map,
    Advise,
    LeaseShared,
    Publish,
}

impl OpKind {
    /// All kinds.
    pub const ALL: [OpKind; 21] = [
        OpKind::Lease,
        OpKind::Create,
        OpKind::Recycle,
        OpKind::Open,
        OpKind::List,
        OpKind::Delete,
        OpKind::Rename,
        OpKind::Import,
        OpKind::SyncDir,
        OpKind::Replace,
        OpKind::FreeBytes,
        OpKind::Append,
        OpKind::Reserve,
        OpKind::Sync,
        OpKind::StartWriteback,
        OpKind::Truncate,
        OpKind::Read,
        OpKind::Map,
        OpKind::Advise,
        OpKind::LeaseShared,
        OpKind::Publish,
    ];

    /// Whether such a call changes the stored objects, or which of their bytes are durable. Leases
    /// count, because they assign epochs.
    pub const fn is_change(self) -> bool {
        matches!(
            self,
            OpKind::Lease
                | OpKind::Create
                | OpKind::Recycle
                | OpKind::Delete
                | OpKind::Rename
                | OpKind::Import
                | OpKind::SyncDir
                | OpKind::Replace
                | OpKind::Append
                | OpKind::Reserve
                | OpKind::Sync
                | OpKind::Truncate
                | OpKind::Publish
        )
    }

    /// Whether such a call reads stored objects.
    pub const fn is_read(self) -> bool {
        matches!(
            self,
            OpKind::Open | OpKind::List | OpKind::Read | OpKind::Map
        )
    }

    /// The call's name, as errors print it.
    pub const fn name(self) -> &'static str {
        match self {
            OpKind::Lease => "lease",
            OpKind::Create => "create",
            OpKind::Recycle => "recycle",
            OpKind::Open => "open",
            OpKind::List => "list",
            OpKind::Delete => "delete",
            OpKind::Rename => "rename",
            OpKind::Import => "import",
            OpKind::SyncDir => "sync_dir",
            OpKind::Replace => "replace",
            OpKind::FreeBytes => "free_bytes",
            OpKind::Append => "append",
            OpKind::Reserve => "reserve",
            OpKind::Sync => "sync",
            OpKind::StartWriteback => "start_writeback",
            OpKind::Truncate => "truncate_to_position",
            OpKind::Read => "read",
            OpKind::Map => "map",
            OpKind::Advise => "advise",
            OpKind::LeaseShared => "lease_shared",
            OpKind::Publish => "publish",
        }
    }
}

/// The number of calls of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CallCounts {
    counts: [u64; OpKind::ALL.len()],
}

impl CallCounts {
    pub(crate) fn add(&mut self, kind: OpKind) {
        self.counts[kind as usize] += 1;
    }

    /// Calls of one kind.
    pub fn of(&self, kind: OpKind) -> u64 {
        self.counts[kind as usize]
    }

    /// Calls of all kinds.
    pub fn total(&self) -> u64 {
        self.counts.iter().sum()
    }

    /// Calls that change something.
    pub fn changes(&self) -> u64 {
        OpKind::ALL
            .iter()
            .filter(|k| k.is_change())
            .map(|k| self.of(*k))
            .sum()
    }
}

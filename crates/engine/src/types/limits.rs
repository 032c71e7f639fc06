//! Identities and limits that every layer knows.

/// Identity of a keyspace. Never given twice in the life of a store.
pub type KeyspaceId = u32;

/// Number of levels, level 0 included.
pub const LEVEL_COUNT: usize = 7;

/// The deepest level.
pub const BOTTOM_LEVEL: u8 = (LEVEL_COUNT - 1) as u8;

/// The name of the keyspace that every new store has. It can be dropped like any other;
/// [`Store::open_keyspace`](crate::Store::open_keyspace) creates it again.
pub const DEFAULT_KEYSPACE: &str = "default";

/// Longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// Largest value: 1 GiB.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// Largest body of a batch: 2 GiB.
pub const MAX_BATCH_BYTES: usize = 1 << 31;

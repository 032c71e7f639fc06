//! Ids and limits that every layer knows.

/// The id of a keyspace. A store never gives an id twice.
pub type KeyspaceId = u32;

/// The number of levels, including level 0.
pub const LEVEL_COUNT: usize = 7;

/// The deepest level.
pub const BOTTOM_LEVEL: u8 = (LEVEL_COUNT - 1) as u8;

/// The name of the keyspace that every new store has. It can be dropped like any other;
/// [`Store::open_keyspace`](crate::Store::open_keyspace) creates it again.
pub const DEFAULT_KEYSPACE: &str = "default";

/// The longest key, in bytes.
pub const MAX_KEY_BYTES: usize = 65_535;

/// The longest value, in bytes: 1 GiB.
pub const MAX_VALUE_BYTES: usize = 1 << 30;

/// The largest encoded batch, in bytes: 2 GiB.
pub const MAX_BATCH_BYTES: usize = 1 << 31;

//! Programs that the types refuse, as documentation tests. Each item has a program that compiles
//! and runs, and the same program with one line changed, which must not compile.
//!
//! Stable Rust ignores the error code of a `compile_fail` block (nightly checks it), so the first
//! program shows that the second one fails because of the changed line. `tests/interface.rs` checks
//! that each pair differs in one line. `trybuild` is not used, because it compares the compiler's
//! whole message, which changes from version to version, and builds the crate once more.

/// A batch takes keyspaces, not their numbers.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// let mut batch = siltstone::Batch::new();
/// batch.put(&keyspace, "key", "value")?;
/// store.write(&batch, siltstone::WriteOptions::default())?;
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0308
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// let mut batch = siltstone::Batch::new();
/// batch.put(keyspace.id(), "key", "value")?;
/// store.write(&batch, siltstone::WriteOptions::default())?;
/// # siltstone::Result::Ok(())
/// ```
mod batch_of_numbers {}

/// A batch with numbers of keyspaces is for the log's tests and cannot be written to a store.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// store.write(&siltstone::Batch::new(), siltstone::WriteOptions::default())?;
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0308
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// store.write(&siltstone::batch::BatchBody::new(), siltstone::WriteOptions::default())?;
/// # siltstone::Result::Ok(())
/// ```
mod batch_body {}

/// A number is not a key: the caller chooses the order of its bytes.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// keyspace.put(7u64.to_be_bytes(), "value")?;
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0277
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// keyspace.put(7u64, "value")?;
/// # siltstone::Result::Ok(())
/// ```
mod number_as_key {}

/// Nor are two numbers a range of keys.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// keyspace.range(1u32.to_be_bytes()..9u32.to_be_bytes())?;
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0277
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// keyspace.range(1u32..9u32)?;
/// # siltstone::Result::Ok(())
/// ```
mod range_of_numbers {}

/// A snapshot is not a key: reads at one have calls of their own.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// let snapshot = store.snapshot();
/// keyspace.get_at(&snapshot, "key")?;
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0277
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// let snapshot = store.snapshot();
/// keyspace.get(&snapshot)?;
/// # siltstone::Result::Ok(())
/// ```
mod snapshot_as_key {}

/// A handle cannot be used after `close` has taken it.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// store.clone().close()?;
/// let _ = store.stats();
/// let _ = store.keyspaces();
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0382
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// store.clone().close()?;
/// store.close()?;
/// let _ = store.keyspaces();
/// # siltstone::Result::Ok(())
/// ```
mod use_after_close {}

/// A cursor's key is borrowed until the cursor moves.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// keyspace.put("key", "value")?;
/// let mut cursor = keyspace.cursor(..)?;
/// cursor.seek_to_first()?;
/// let key = cursor.key().to_vec();
/// cursor.next()?;
/// assert_eq!(key, b"key");
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0502
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// keyspace.put("key", "value")?;
/// let mut cursor = keyspace.cursor(..)?;
/// cursor.seek_to_first()?;
/// let key = cursor.key();
/// cursor.next()?;
/// assert_eq!(key, b"key");
/// # siltstone::Result::Ok(())
/// ```
mod key_after_step {}

/// A batch cannot be changed while its entries are borrowed.
///
/// ```
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// let mut batch = siltstone::Batch::new();
/// batch.put(&keyspace, "key", "value")?;
/// let entries = batch.clone(); let entries = entries.iter();
/// batch.clear();
/// assert_eq!(entries.count(), 1);
/// # siltstone::Result::Ok(())
/// ```
///
/// ```compile_fail,E0502
/// # let folder = tempfile::tempdir().unwrap();
/// # let store = siltstone::Store::open(folder.path(), siltstone::Options::default())?;
/// # let keyspace = store.default_keyspace()?;
/// let mut batch = siltstone::Batch::new();
/// batch.put(&keyspace, "key", "value")?;
/// let entries = batch.iter();
/// batch.clear();
/// assert_eq!(entries.count(), 1);
/// # siltstone::Result::Ok(())
/// ```
mod batch_changed_while_read {}

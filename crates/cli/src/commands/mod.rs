//! The commands, one file each; and what they share: opening a store, keys and bounds.

pub mod check;
pub mod count;
pub mod get;
pub mod load;
pub mod scan;
pub mod stats;

use std::path::Path;

use siltstone::{IterOptions, Keyspace, Options, Store};

use crate::args::{RangeArgs, StoreArgs};
use crate::failure::Failure;
use crate::output::parse_key;

/// Opens a store that must be there, to read it: with little memory and a small log, because nothing will be written, and because a
/// disk that is nearly full should not keep anybody from looking.
///
/// # Errors
/// As [`Store::open`].
fn open_existing(path: &Path) -> Result<Store, Failure> {
    let options = Options {
        create_if_missing: false,
        memtable_bytes: 16 << 20,
        log_segment_bytes: 256 << 10,
        ..Options::default()
    };
    Ok(Store::open(path, options)?)
}

/// Opens a store and a keyspace that must be there.
fn open_keyspace(args: &StoreArgs) -> Result<(Store, Keyspace), Failure> {
    let store = open_existing(&args.store)?;
    let keyspace = store.keyspace(&args.keyspace)?;
    Ok((store, keyspace))
}

/// The bounds of a scan.
fn bounds(args: &RangeArgs, hex: bool, values: bool) -> Result<IterOptions, Failure> {
    let key = |text: &Option<String>| text.as_deref().map(|t| parse_key(t, hex)).transpose();
    let (from, to) = (key(&args.from)?, key(&args.to)?);
    if let (Some(lower), Some(upper)) = (&from, &to)
        && lower > upper
    {
        return Err(Failure::Usage(
            "--to lies before --from; a reverse scan takes them in this order too".to_string(),
        ));
    }
    let range = match key(&args.prefix)? {
        Some(prefix) => IterOptions::prefix(&prefix),
        None => IterOptions {
            lower: from,
            upper: to,
            ..IterOptions::default()
        },
    };
    Ok(IterOptions { values, ..range })
}

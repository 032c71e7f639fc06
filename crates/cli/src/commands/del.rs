//! `silt del`: removes keys, or a range of keys.

use siltstone::batch::{Batch, MAX_KEY_BYTES};
use siltstone::{IterOptions, Keyspace, WriteOptions};

use super::{bounds, key_of, keyspace_of, open_existing};
use crate::args::DelArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, confirm, count, outln, plural};

/// The maximum number of keys that are counted for the question.
const COUNTED_KEYS: u64 = 10_000;

/// Runs the command.
pub fn run(args: &DelArgs) -> Result<Outcome, Failure> {
    let form = args.form.key();
    let keys = args
        .keys
        .iter()
        .map(|key| key_of(key, &form, false))
        .collect::<Result<Vec<_>, _>>()?;
    let range = bounds(&args.range, &form, false)?;
    let store = open_existing(&args.store.store)?;
    let keyspace = keyspace_of(&store, &args.store.keyspace)?;
    let mut batch = Batch::new();
    for key in &keys {
        batch.delete(&keyspace, key)?;
    }
    let mut said = None;
    if args.range.given() {
        let what = describe(args);
        if !args.yes {
            let found = match counted(&keyspace, range.clone())? {
                n if n > COUNTED_KEYS => format!("more than {} keys", count(COUNTED_KEYS)),
                n => plural(n, "key"),
            };
            let name = &args.store.keyspace;
            let question = format!("Remove {what} of keyspace `{name}` ({found})?");
            confirm(&question, false)?;
        }
        add_range(&keyspace, range, &mut batch)?;
        said = Some(format!("removed {what}"));
    }
    if !batch.is_empty() {
        store.write(&batch, WriteOptions::SYNC)?;
    }
    store.close()?;
    if let Some(said) = said {
        print(&said)?;
    }
    Ok(Outcome::Fine)
}

fn print(said: &str) -> Result<(), Failure> {
    let mut out = Out::new();
    outln!(out, "{said}")?;
    out.finish()
}

/// The range as it was given.
fn describe(args: &DelArgs) -> String {
    match (&args.range.prefix, &args.range.from, &args.range.to) {
        (Some(prefix), ..) => format!("all keys that begin with `{prefix}`"),
        (_, Some(from), Some(to)) => format!("all keys from `{from}` to before `{to}`"),
        (_, Some(from), None) => format!("all keys from `{from}` on"),
        (_, None, Some(to)) => format!("all keys before `{to}`"),
        (_, None, None) => "all keys".to_string(),
    }
}

fn counted(keyspace: &Keyspace, range: IterOptions) -> Result<u64, Failure> {
    let mut cursor = keyspace.cursor(range)?;
    let mut count = 0;
    cursor.seek_to_first()?;
    while cursor.valid() && count <= COUNTED_KEYS {
        count += 1;
        cursor.next()?;
    }
    Ok(count)
}

/// Adds a range delete. Without an end it reaches to the last existing key, because there is no end
/// that lies above all possible keys.
fn add_range(keyspace: &Keyspace, range: IterOptions, batch: &mut Batch) -> Result<(), Failure> {
    let start = range.lower.clone().unwrap_or_default();
    let end = match range.upper.clone() {
        Some(end) => end,
        None => {
            let mut cursor = keyspace.cursor(range)?;
            cursor.seek_to_last()?;
            if !cursor.valid() {
                return Ok(());
            }
            let mut last = cursor.key().to_vec();
            if last.len() < MAX_KEY_BYTES {
                last.push(0);
            } else {
                // Nothing follows a key of the greatest length directly.
                batch.delete(keyspace, &last)?;
            }
            last
        }
    };
    batch.delete_range(keyspace, &start, &end)?;
    Ok(())
}

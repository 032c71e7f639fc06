//! `silt scan`: pairs in key order.

use super::{bounds, open_keyspace};
use crate::args::ScanArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Out;

/// Runs the command.
pub fn run(args: &ScanArgs) -> Result<Outcome, Failure> {
    let options = bounds(&args.range, args.form.hex, !args.keys)?;
    let (store, keyspace) = open_keyspace(&args.store)?;
    let mut out = Out::new();
    let mut cursor = keyspace.cursor(options)?;
    let mut left = args.limit.unwrap_or(u64::MAX);
    if left > 0 {
        if args.reverse {
            cursor.seek_to_last()?
        } else {
            cursor.seek_to_first()?
        }
    }
    while cursor.valid() {
        let value = (!args.keys).then(|| cursor.value());
        out.pair(Some(cursor.key()), value, args.form.hex)?;
        left -= 1;
        if left == 0 {
            break;
        }
        if args.reverse {
            cursor.prev()?
        } else {
            cursor.next()?
        }
    }
    out.finish()?;
    drop(cursor);
    store.close()?;
    Ok(Outcome::Fine)
}

//! `silt count`: prints the number of keys.

use super::{bounds, open_keyspace};
use crate::args::CountArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, outln};

/// Runs the command.
pub fn run(args: &CountArgs) -> Result<Outcome, Failure> {
    let options = bounds(&args.range, &args.form.key(), false)?;
    let (store, keyspace) = open_keyspace(&args.store)?;
    let mut cursor = keyspace.cursor(options)?;
    let mut count = 0u64;
    cursor.seek_to_first()?;
    while cursor.valid() {
        count += 1;
        cursor.next()?;
    }
    drop(cursor);
    let mut out = Out::new();
    if args.json {
        outln!(out, "{{\"count\":{count}}}")?;
    } else {
        outln!(out, "{count}")?;
    }
    out.finish()?;
    store.close()?;
    Ok(Outcome::Fine)
}

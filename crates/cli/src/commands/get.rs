//! `silt get`: the value of one key.

use super::open_keyspace;
use crate::args::GetArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, parse_key};

/// Runs the command.
pub fn run(args: &GetArgs) -> Result<Outcome, Failure> {
    let key = parse_key(&args.key, args.form.hex)?;
    let (store, keyspace) = open_keyspace(&args.store)?;
    let value = keyspace.get(&key)?;
    let outcome = match value {
        Some(value) => {
            let mut out = Out::new();
            if args.raw {
                out.raw(&value)?;
            } else {
                out.pair(None, Some(&value), args.form.hex)?;
            }
            out.finish()?;
            Outcome::Fine
        }
        None => {
            eprintln!(
                "silt: there is no key `{}` in keyspace `{}`",
                args.key, args.store.keyspace
            );
            Outcome::NotFound
        }
    };
    store.close()?;
    Ok(outcome)
}

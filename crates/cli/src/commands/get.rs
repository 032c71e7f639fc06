//! `silt get`: prints the value of one key.

use super::scan::Printer;
use super::{key_of, open_keyspace};
use crate::args::GetArgs;
use crate::failure::{Failure, Outcome};
use crate::output::Out;

/// Runs the command.
pub fn run(args: &GetArgs) -> Result<Outcome, Failure> {
    let key = key_of(&args.key, &args.form.key(), false)?;
    let (store, keyspace) = open_keyspace(&args.store)?;
    let value = keyspace.get(&key)?;
    let outcome = match value {
        Some(value) => {
            let mut out = Out::new();
            if args.raw {
                out.raw(&value)?;
            } else {
                let mut printer = Printer::new(&args.form, args.json);
                let key = args.json.then_some(&key[..]);
                printer.pair(&mut out, key, Some(&value))?;
                printer.finish(&mut out)?;
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

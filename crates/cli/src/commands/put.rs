//! `silt put`: writes one pair.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use siltstone::WriteOptions;
use siltstone::batch::{Batch, MAX_VALUE_BYTES, check_lengths};

use super::{key_of, keyspace_or_new, open_for};
use crate::args::PutArgs;
use crate::failure::{Failure, Outcome};
use crate::form::{Form, json};

/// Runs the command.
pub fn run(args: &PutArgs) -> Result<Outcome, Failure> {
    let key = key_of(&args.key, &args.form.key(), false)?;
    let value = match (&args.value, &args.file) {
        (Some(text), _) => given(text, &args.form.value())
            .map_err(|why| Failure::Usage(format!("the value `{text}` cannot be read: {why}")))?,
        (None, Some(path)) => whole(path)?,
        (None, None) => {
            return Err(Failure::Usage("give a value, or --file FILE".to_string()));
        }
    };
    // This comes before a store is created for the value.
    check_lengths(&key, &value)?;
    let store = open_for(&args.store.store, &[&args.store.keyspace])?;
    let keyspace = keyspace_or_new(&store, &args.store.keyspace, false)?;
    let mut batch = Batch::new();
    batch.put(&keyspace, &key, &value)?;
    store.write(&batch, WriteOptions::SYNC)?;
    store.close()?;
    Ok(Outcome::Fine)
}

/// The value that a text of this form represents.
fn given(text: &str, form: &Form) -> Result<Vec<u8>, String> {
    let value = form.parse(text, false)?;
    if *form == Form::Json {
        json(&value).map_err(|why| {
            format!(
                "{why} (in the value as it would be stored: \\n, \\t and \\xNN mean bytes; give a \
                backslash of the JSON itself as \\\\)"
            )
        })?;
    }
    Ok(value)
}

/// The contents of a file, if they can be a value.
fn whole(path: &Path) -> Result<Vec<u8>, Failure> {
    let (name, input): (String, Box<dyn Read>) = if path == Path::new("-") {
        ("standard input".to_string(), Box::new(io::stdin().lock()))
    } else {
        let file = File::open(path).map_err(|e| Failure::file(path, &e))?;
        (path.display().to_string(), Box::new(file))
    };
    let mut value = Vec::new();
    let limit = MAX_VALUE_BYTES as u64 + 1;
    input
        .take(limit)
        .read_to_end(&mut value)
        .map_err(|e| Failure::io(&name, &e))?;
    if value.len() as u64 == limit {
        return Err(Failure::Other(format!(
            "{name}: it has more than {MAX_VALUE_BYTES} bytes, the limit of a value"
        )));
    }
    Ok(value)
}

//! `silt dump`: prints the contents of a file of a store, with offsets.

use siltstone::inspect::{FileKind, purpose, recognise};
use siltstone_storage::ReadFile;
use siltstone_storage::files::open_file;

use super::bounds;
use super::place::refuse_url;
use crate::args::{DumpArgs, DumpKind};
use crate::dump::{Dump, log, manifest, table, text};
use crate::failure::{Failure, Outcome};

/// The largest file that is printed as text, in bytes.
const TEXT_BYTES_MAX: u64 = 1 << 20;

/// Runs the command.
pub fn run(args: &DumpArgs) -> Result<Outcome, Failure> {
    refuse_url(&args.file, "dump")?;
    let range = bounds(&args.range, &args.form.key(), true)?;
    if args.file.is_dir() {
        return Err(Failure::Usage(format!(
            "{} is a folder; name a file in it, for example {}",
            args.file.display(),
            args.file.join("CURRENT").display()
        )));
    }
    let file = open_file(&args.file).map_err(siltstone::Error::from)?;
    let kind = match args.kind {
        Some(kind) => Some(match kind {
            DumpKind::Log => FileKind::Log,
            DumpKind::Manifest => FileKind::Manifest,
            DumpKind::Table => FileKind::Table,
            DumpKind::Pointer => FileKind::Pointer,
        }),
        None => recognise(&*file)?.map(|found| found.kind),
    };
    let mut dump = Dump::new(args, range);
    let printed = match kind {
        Some(FileKind::Log) => log::print(&mut dump, &*file),
        Some(FileKind::Manifest) => manifest::print(&mut dump, &*file),
        Some(FileKind::Table) => table::print(&mut dump, &*file),
        Some(FileKind::Pointer) => {
            small(&*file).and_then(|text| manifest::pointer(&mut dump, &text))
        }
        _ if purpose(file.name()).is_some() => {
            small(&*file).and_then(|found| text::print(&mut dump, file.name(), &found))
        }
        _ => {
            return Err(Failure::Other(format!(
                "{}: neither its bytes nor its name show that it is a file of a store; --kind says \
                how to read it",
                args.file.display()
            )));
        }
    };
    // Print everything that could be read before a failure.
    let damaged = dump.damage_count > 0;
    dump.out.finish()?;
    printed?;
    Ok(if damaged {
        Outcome::Damaged
    } else {
        Outcome::Fine
    })
}

fn small(file: &dyn ReadFile) -> Result<Vec<u8>, Failure> {
    let len = file.len().min(TEXT_BYTES_MAX);
    let mut bytes = vec![0; len as usize];
    file.read_at(0, &mut bytes)
        .map_err(siltstone::Error::from)?;
    Ok(bytes)
}

//! `silt completions` and `silt man`: what the definition of the command line can say of itself.

use std::fs;
use std::path::Path;

use clap::CommandFactory;

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Out;

/// Runs `silt completions`.
pub fn completions(args: &CompletionsArgs) -> Result<Outcome, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "silt", &mut script);
    print(&script)
}

/// Runs `silt man`.
pub fn man(args: &ManArgs) -> Result<Outcome, Failure> {
    let command = Args::command();
    match &args.folder {
        None => print(&page(command)?),
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|e| Failure::file(folder, &e))?;
            pages(command, folder, "silt")?;
            Ok(Outcome::Fine)
        }
    }
}

fn print(bytes: &[u8]) -> Result<Outcome, Failure> {
    let mut out = Out::new();
    out.raw(bytes)?;
    out.finish()?;
    Ok(Outcome::Fine)
}

fn page(command: clap::Command) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    clap_mangen::Man::new(command)
        .render(&mut page)
        .map_err(|e| Failure::io("the manual page", &e))?;
    Ok(page)
}

/// Writes the page of a command and those of the commands below it: `silt.1`, `silt-load.1`, ...
fn pages(command: clap::Command, folder: &Path, name: &str) -> Result<(), Failure> {
    for below in command.get_subcommands().filter(|c| !c.is_hide_set()) {
        pages(
            below.clone(),
            folder,
            &format!("{name}-{}", below.get_name()),
        )?;
    }
    let path = folder.join(format!("{name}.1"));
    // Clap keeps names as `&'static str`; the few of them live as long as the process anyway.
    let name: &'static str = name.to_string().leak();
    fs::write(&path, page(command.name(name))?).map_err(|e| Failure::file(&path, &e))
}

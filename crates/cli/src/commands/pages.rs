//! `silt man`: manual pages, generated from the definition of the command line.
//!
//! Each command has a page of its own, whose synopsis has every option with its value. The lines of
//! examples are never wrapped, so that they can be copied.

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use clap::{Arg, ArgAction, Command, CommandFactory};
use clap_mangen::Man;

use crate::args::{Args, ManArgs};
use crate::failure::{Failure, Outcome};
use crate::output::Out;

/// Runs the command.
pub fn run(args: &ManArgs) -> Result<Outcome, Failure> {
    let mut command = Args::command();
    // Adds to each command its whole name and the options that all commands have.
    command.build();
    match &args.folder {
        None => {
            let mut out = Out::new();
            out.raw(&page(&command, "silt")?)?;
            out.finish()?;
        }
        Some(folder) => {
            fs::create_dir_all(folder).map_err(|e| Failure::file(folder, &e))?;
            pages(&command, folder, "silt")?;
        }
    }
    Ok(Outcome::Fine)
}

/// The subcommands that have pages.
fn below(command: &Command) -> impl Iterator<Item = &Command> {
    let all = command.get_subcommands();
    all.filter(|c| !c.is_hide_set() && c.get_name() != "help")
}

/// Writes the page of a command and those of the commands below it: `silt.1`, `silt-load.1`, ...
fn pages(command: &Command, folder: &Path, name: &str) -> Result<(), Failure> {
    for sub in below(command) {
        pages(sub, folder, &format!("{name}-{}", sub.get_name()))?;
    }
    let path = folder.join(format!("{name}.1"));
    fs::write(&path, page(command, name)?).map_err(|e| Failure::file(&path, &e))
}

fn page(command: &Command, name: &str) -> Result<Vec<u8>, Failure> {
    let mut page = Vec::new();
    render(command, name, &mut page).map_err(|e| Failure::io("the manual page", &e))?;
    Ok(page)
}

fn render(command: &Command, name: &str, page: &mut Vec<u8>) -> io::Result<()> {
    // Clap keeps names as `&'static str`. There are few of them, so leaking them does no harm.
    let leaked: &'static str = name.to_string().leak();
    let whole = command.get_bin_name().unwrap_or(name).to_string();
    let man = Man::new(command.clone().name(leaked).disable_help_subcommand(true));
    man.render_title(page)?;
    man.render_name_section(page)?;
    synopsis(command, &whole, page)?;
    man.render_description_section(page)?;
    man.render_options_section(page)?;
    if below(command).next().is_some() {
        man.render_subcommands_section(page)?;
    }
    let help = command.get_after_long_help().or(command.get_after_help());
    if let Some(help) = help {
        notes(&help.to_string(), page)?;
    }
    man.render_version_section(page)
}

/// The synopsis: all options and arguments of the command.
fn synopsis(command: &Command, whole: &str, page: &mut Vec<u8>) -> io::Result<()> {
    writeln!(page, ".SH SYNOPSIS\n.ad l\n.nh\n\\fB{}\\fR", escaped(whole))?;
    let shown = command.get_arguments().filter(|a| !a.is_hide_set());
    let (places, options): (Vec<&Arg>, Vec<&Arg>) = shown.partition(|a| a.is_positional());
    for option in options {
        writeln!(page, "{}", in_brackets(option, &option_text(option)))?;
    }
    for place in places {
        let value = format!("\\fI{}\\fR", escaped(&value_of(place)));
        writeln!(page, "{}", in_brackets(place, &value))?;
    }
    if below(command).next().is_some() {
        writeln!(page, "\\fICOMMAND\\fR ...")?;
    }
    writeln!(page, ".hy\n.ad b")
}

/// Puts optional arguments in brackets, and dots behind arguments that can be repeated.
fn in_brackets(arg: &Arg, text: &str) -> String {
    let many = matches!(arg.get_action(), ArgAction::Append | ArgAction::Count)
        || arg.get_num_args().is_some_and(|n| n.max_values() > 1);
    let dots = if many { "..." } else { "" };
    match arg.is_required_set() {
        true => format!("{text}{dots}"),
        false => format!("[{text}]{dots}"),
    }
}

/// The names of an option, and its value.
fn option_text(option: &Arg) -> String {
    let short = option.get_short().map(|c| format!("\\fB\\-{c}\\fR"));
    let long = option
        .get_long()
        .map(|l| format!("\\fB\\-\\-{}\\fR", escaped(l)));
    let names: Vec<String> = short.into_iter().chain(long).collect();
    let names = names.join("|");
    if !option.get_action().takes_values() {
        return names;
    }
    let value = format!("\\fI{}\\fR", escaped(&value_of(option)));
    let may_be_left_out = option.get_num_args().is_some_and(|n| n.min_values() == 0);
    match (may_be_left_out, option.is_require_equals_set()) {
        (true, true) => format!("{names}[={value}]"),
        (true, false) => format!("{names} [{value}]"),
        (false, true) => format!("{names}={value}"),
        (false, false) => format!("{names} {value}"),
    }
}

/// The name of a value.
fn value_of(arg: &Arg) -> String {
    let names = arg.get_value_names().unwrap_or_default();
    match names {
        [] => arg.get_id().as_str().to_uppercase(),
        all => all.join(" "),
    }
}

/// The text after the options: examples line by line, everything else as paragraphs.
fn notes(help: &str, page: &mut Vec<u8>) -> io::Result<()> {
    let mut has_notes = false;
    for paragraph in help.split("\n\n").filter(|p| !p.trim().is_empty()) {
        let examples = ["Example:\n", "Examples:\n"];
        match examples
            .iter()
            .find_map(|head| paragraph.strip_prefix(head))
        {
            Some(lines) => {
                writeln!(page, ".SH EXAMPLES\n.nf")?;
                for line in lines.lines() {
                    writeln!(page, "{}", escaped(line.trim()))?;
                }
                writeln!(page, ".fi")?;
            }
            None => {
                let head = if has_notes { ".PP" } else { ".SH NOTES" };
                writeln!(page, "{head}\n{}", escaped(&paragraph.replace('\n', " ")))?;
                has_notes = true;
            }
        }
    }
    Ok(())
}

/// Escapes text so that a formatter prints it unchanged.
fn escaped(text: &str) -> String {
    let text = text
        .replace('\\', "\\e")
        .replace('-', "\\-")
        .replace('\'', "\\(aq");
    match text.starts_with('.') {
        true => format!("\\&{text}"),
        false => text,
    }
}

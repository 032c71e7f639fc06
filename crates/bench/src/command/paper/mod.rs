//! Runs one experiment, or all experiments of a paper, and prints the results beside the figures of
//! the paper.
//!
//! [`paper()`] finds the experiments and plans them. `rounds` carries out their runs in interleaved
//! rounds, each run on its store. `compare` computes what is printed and written as JSON, and
//! `show` prints it. `archive` keeps all records in a file, and `continued` continues a comparison
//! from such a file.
//!
//! `carried` is an experiment with its records. From it, `verdict`, `rows`, `policies`, `figures`
//! and `intro` make the contents of pages: `markdown` writes the page of the documentation, and
//! `tables` the parts of pages with charts.
//!
//! Invariants: all runs are checked before the first one begins. Every result is shown together
//! with the settings that were made smaller than in the paper. If the paper reports a mechanism
//! that does not exist here, its figure is listed as not measured.
//!
//! Threading: one thread calls.

mod archive;
mod carried;
mod compare;
mod continued;
mod figures;
mod intro;
mod markdown;
mod policies;
mod rounds;
mod rows;
mod show;
mod tables;
mod verdict;

#[cfg(test)]
mod tests;

use std::io::Write;
use std::path::Path;
use std::time::{Duration, Instant};

use super::output::Output;
use super::place::Place;
use super::runs::Runner;
use super::{CommandError, PaperArgs, Program, Result, check_own, file_error, refusal_text};
use crate::engine::Driver;
use crate::experiment::{Experiment, Plan, embedded_names};
use crate::measure::machine::Build;
use crate::page::page_with;
use crate::record::Context;
use crate::topology::Awake;

use archive::{Archive, Manifest, Planned};
use carried::Carried;
use rounds::{Piece, Trial};

/// Runs the experiments that the arguments name, and writes their results to `out`. Without a name,
/// lists all experiments.
///
/// # Errors
/// See [`CommandError`]. The results up to the error are written.
pub fn paper(program: &Program<'_>, args: &PaperArgs, out: &mut dyn Write) -> Result<()> {
    if let Some(from) = &args.from {
        let archive = Archive::read(from).map_err(CommandError::Failed)?;
        return write_page(args.page.as_deref(), &archive);
    }
    let Some(figure) = &args.figure else {
        return list(program, args, out);
    };
    let driver = program.driver(args.output.engine.as_deref())?;
    let begun = Instant::now();
    let experiments = find(figure)?;
    let is_family = experiments.len() > 1;
    let pieces = experiments.into_iter().map(|experiment| {
        let quick = experiment.quick_scale.filter(|_| args.quick);
        let plan = experiment.plan(args.scale.or(quick));
        let plan = plan.map_err(|error| CommandError::Usage(error.to_string()))?;
        check(driver, &plan)?;
        Ok(Piece::new(experiment, plan, args.rounds))
    });
    let mut pieces = pieces.collect::<Result<Vec<Piece>>>()?;
    let earlier = earlier(args)?;
    if let Some((file, archive)) = &earlier {
        let own = Build::of_this_program();
        let taken = continued::take_over(&mut pieces, archive, (figure, args.quick), &own);
        taken.map_err(|error| CommandError::Usage(format!("{}: {error}", file.display())))?;
    }
    if is_family && let Some(folder) = &args.output.html {
        std::fs::create_dir_all(folder).map_err(file_error(folder))?;
    }
    let title = match &pieces[..] {
        [one] => one.experiment.title.clone(),
        _ => figure.clone(),
    };
    let mut options = args.output.clone();
    if is_family {
        // In this case each experiment has a page of its own in the folder.
        options.html = None;
    }
    let mut output = Output::new(&options, title, out)?;
    let place = Place::of(args.folder.as_deref(), args.keep)?;
    let runner = Runner {
        program,
        driver,
        context: Context::of_this_process(place.folder()),
    };
    if runner.uses_disk() {
        let sizes = pieces
            .iter()
            .map(|piece| disk_bytes(&piece.plan, args.keep));
        // The stores of one experiment are deleted before those of the next one are made, unless
        // they are kept.
        let needed = match args.keep {
            true => sizes.sum(),
            false => sizes.max().unwrap_or(0),
        };
        place.check_room(needed, 0, "a smaller --scale")?;
    }
    for piece in &pieces {
        show::head(&mut output, &piece.experiment, &piece.plan, piece.rounds)?;
    }
    runner.head(&mut output)?;
    let mut trial = Trial {
        runner,
        place,
        keep: args.keep,
        goes_on: is_family,
        until: args.within.map(|within| begun + within),
        awake: awake(program, &pieces),
        pieces,
        speeds: Vec::new(),
    };
    let before = earlier.map(|(_, archive)| archive.manifest);
    let mut keep_records = |trial: &Trial<'_>| match &args.record {
        Some(file) => {
            create_parent(file)?;
            let archive = archive_of(args, figure, trial, (before.as_ref(), begun.elapsed()));
            archive.write(file).map_err(file_error(file))
        }
        None => Ok(()),
    };
    let result = trial.run(&mut output, &mut keep_records);
    let ended = trial.ended(
        &mut output,
        matches!(result, Err(CommandError::OutputClosed)),
    );
    keep(args, figure, &trial, (before.as_ref(), begun.elapsed()))?;
    result.and(ended)?;
    trial.say_where(&mut output)
}

/// Keeps the cores from sleeping if there are runs beside a device.
fn awake(program: &Program<'_>, pieces: &[Piece]) -> Option<Awake> {
    let mut runs = pieces.iter().flat_map(|piece| &piece.plan.runs);
    let is_apart = runs.any(|run| !run.settings.topology.is_plain());
    let file = program.file.as_ref().filter(|_| is_apart)?;
    Awake::start(file)
}

/// The file of records of an earlier call, if this call continues it.
fn earlier(args: &PaperArgs) -> Result<Option<(&Path, Archive)>> {
    let file = args.record.as_deref().filter(|_| args.continues);
    let Some(file) = file.filter(|file| file.exists()) else {
        return Ok(None);
    };
    let archive = Archive::read(file).map_err(CommandError::Failed)?;
    Ok(Some((file, archive)))
}

fn create_parent(file: &Path) -> Result<()> {
    match file.parent() {
        Some(folder) => std::fs::create_dir_all(folder).map_err(file_error(folder)),
        None => Ok(()),
    }
}

/// All records of a call. The time that an earlier call took is added to that of this call.
fn archive_of(
    args: &PaperArgs,
    figure: &str,
    trial: &Trial<'_>,
    (before, took): (Option<&Manifest>, Duration),
) -> Archive {
    let limits = [
        before.and_then(|manifest| manifest.within_s),
        args.within.map(|within| within.as_secs_f64()),
    ];
    Archive {
        manifest: Manifest {
            name: figure.to_string(),
            is_quick: args.quick,
            within_s: limits.iter().flatten().copied().reduce(|a, b| a + b),
            took_s: took.as_secs_f64() + before.map_or(0.0, |m| m.took_s),
            experiments: trial.pieces.iter().map(Planned::of).collect(),
            ..Manifest::default()
        },
        lines: trial.pieces.iter().flat_map(Piece::lines).collect(),
    }
}

/// Writes the files that the arguments ask for: records, page, charts.
fn keep(
    args: &PaperArgs,
    figure: &str,
    trial: &Trial<'_>,
    before: (Option<&Manifest>, Duration),
) -> Result<()> {
    if let (Some(folder), [_, _, ..]) = (&args.output.html, &trial.pieces[..]) {
        write_pages(folder, figure, &trial.pieces)?;
    }
    if args.record.is_none() && args.page.is_none() {
        return Ok(());
    }
    for file in args.record.iter().chain(&args.page) {
        create_parent(file)?;
    }
    let archive = archive_of(args, figure, trial, before);
    if let Some(file) = &args.record {
        archive.write(file).map_err(file_error(file))?;
    }
    write_page(args.page.as_deref(), &archive)
}

/// Writes a page of charts for each experiment, and `index.html` with the verdicts on all of them.
fn write_pages(folder: &Path, figure: &str, pieces: &[Piece]) -> Result<()> {
    let write = |name: &str, text: String| {
        let file = folder.join(format!("{name}.html"));
        std::fs::write(&file, text).map_err(file_error(&file))
    };
    let all: Vec<Carried> = pieces.iter().map(Carried::of).collect();
    for (piece, carried) in pieces.iter().zip(&all) {
        let experiment = &piece.experiment;
        let records = piece.representatives();
        let part = tables::part(carried);
        let text = page_with(&records, &experiment.title, &[part]);
        write(&experiment.name, text)?;
    }
    let records = pieces.iter().flat_map(|piece| &piece.records);
    let parts = tables::parts(&all, records.flatten().flatten());
    write(
        "index",
        page_with(&[], &format!("The comparison of {figure}"), &parts),
    )
}

fn write_page(file: Option<&Path>, archive: &Archive) -> Result<()> {
    let Some(file) = file else { return Ok(()) };
    let text = markdown::page(archive).map_err(CommandError::Failed)?;
    std::fs::write(file, text).map_err(file_error(file))
}

/// Lists the experiments of the program.
fn list(program: &Program<'_>, args: &PaperArgs, out: &mut dyn Write) -> Result<()> {
    let needs_figure = args.scale.is_some()
        || args.folder.is_some()
        || args.keep
        || args.quick
        || args.rounds.is_some()
        || args.within.is_some()
        || args.record.is_some()
        || args.continues
        || args.page.is_some()
        || args.output.html.is_some()
        || args.output.engine.is_some();
    if needs_figure {
        return Err(CommandError::Usage(format!(
            "which experiment? `{} paper` lists all of them",
            program.command
        )));
    }
    let mut output = Output::new(&args.output, String::new(), out)?;
    for name in embedded_names() {
        let found = Experiment::named(name);
        let experiment = found.map_err(|error| CommandError::Failed(error.to_string()))?;
        show::listed(&mut output, &experiment)?;
    }
    output.text(&format!(
        "\n`{} paper NAME --scale 0.001` runs one in small.\n",
        program.command
    ))
}

/// Finds the experiment in a file, the experiment of the program with this name, or all experiments
/// of a paper.
fn find(figure: &str) -> Result<Vec<Experiment>> {
    let is_file = figure.ends_with(".toml") || figure.contains('/');
    if is_file {
        let text = std::fs::read_to_string(figure).map_err(file_error(Path::new(figure)))?;
        let found = Experiment::parse(figure, &text);
        let found = found.map_err(|error| CommandError::Failed(error.to_string()))?;
        return Ok(vec![found]);
    }
    let is_of = |name: &&str| {
        name.split_once('-')
            .is_some_and(|(paper, _)| paper == figure)
    };
    let mut names: Vec<&str> = embedded_names().filter(is_of).collect();
    if names.is_empty() {
        names.push(figure);
    }
    names.sort_by_key(|name| in_order(name));
    let found = names.into_iter().map(Experiment::named);
    let found: std::result::Result<Vec<Experiment>, _> = found.collect();
    found.map_err(|error| CommandError::Usage(error.to_string()))
}

/// The key by which names are sorted: figures come first, and numbers in names are compared as
/// numbers, so `fig9` comes before `fig10`.
fn in_order(name: &str) -> (bool, String, u64, String) {
    let is_other = !name.contains("-fig");
    let start = name
        .find(|c: char| c.is_ascii_digit())
        .unwrap_or(name.len());
    let (word, rest) = name.split_at(start);
    let end = rest
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(rest.len());
    let (digits, rest) = rest.split_at(end);
    (
        is_other,
        word.into(),
        digits.parse().unwrap_or(0),
        rest.into(),
    )
}

/// Refuses a plan with runs that the engine cannot carry out. It is called before the first run.
fn check(driver: &dyn Driver, plan: &Plan) -> Result<()> {
    for run in &plan.runs {
        let checked = run.settings.check(&driver.abilities());
        checked.map_err(|refusal| {
            CommandError::Usage(format!(
                "{} cannot do the run `{}`: {}",
                driver.name(),
                run.label,
                refusal_text(&refusal)
            ))
        })?;
        check_own(driver, &run.settings.engine)?;
    }
    Ok(())
}

/// The maximum number of bytes that the stores take at the same time.
fn disk_bytes(plan: &Plan, keep: bool) -> u64 {
    if !keep {
        return plan.disk_bytes();
    }
    let last_uses = plan.runs.iter().filter(|run| run.is_last_use);
    let sizes = last_uses.map(|run| run.estimate.store_bytes);
    sizes.fold(0, u64::saturating_add)
}

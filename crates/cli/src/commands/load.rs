//! `silt load`: writes the records of a file into a store, in batches.
//!
//! Invariants: when a later record is bad or the disk is full, the records that were written stay,
//! and the message says how many they are. Each batch of records also holds the offset at which the
//! next load has to continue. After a signal it ends soon (`ending.rs`).

mod advice;
mod ending;
pub mod input;
pub mod readers;

use std::io::{IsTerminal, Read};
use std::rc::Rc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::batch::Batch;
use siltstone::{ErrorKind, Keyspace, Options, Stats, Store, WriteOptions};
use siltstone_device::Placement;

use super::opened::Opened;
use super::place;
use super::stats::jobs::{add_devices, print_devices};
use crate::args::{Format, LoadArgs};
use crate::failure::{Failure, Outcome, of_a_command};
use crate::load::decode::{HalfCharacter, Untrusted};
use crate::load::resume::Resume;
use crate::load::source::Source;
use crate::load::{LeftOut, MultiLine, Pair, Records, Step, Tally};
use crate::output::{Out, bytes, duration, outln, plural, rate};
use crate::signals::Signals;
use ending::Running;
use input::{Guess, GuessedFrom, Input};
use readers::Flags;

/// A batch is written once it has this number of records,
const BATCH_RECORDS: usize = 1000;
/// or this number of bytes.
const BATCH_BYTES: usize = 1 << 20;
/// The number of bad records that are named under `--skip-bad`. The others are only counted.
const NAMED_BAD: u64 = 10;
/// The output of a load that took less time than this shows no rates.
const RATED: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: &LoadArgs) -> Result<Outcome, Failure> {
    // The input is opened first, because a wrong path or flag must not leave an empty store.
    let guess = input::guess(args)?;
    let signals = Rc::new(Signals::new().map_err(signal_failure)?);
    let (flags, input, bytes) = open_input(args, guess, &signals)?;
    let bar = progress_bar(input.len);
    let mut source = Source::new(bytes);
    let mut reader = flags.reader(args, &mut source, &input.name, input.undone)?;
    if !args.json {
        print_format(&input, guess, reader.format)?;
    }

    let options = Options {
        create_if_missing: true,
        ..super::options_of(&args.store.store)?
    };
    // It is dropped after the store.
    let mut running = Running::new();
    let placement = placement(args)?;
    let path = &args.store.store;
    super::gpu::say_if_not_direct(&args.gpu, &options, path, &placement.executors);
    let store = super::open_placed(path, options, &placement)?;
    signals.watch().map_err(signal_failure)?;
    running
        .watch(&signals, &store, &bar)
        .map_err(|e| Failure::io("a thread that watches for signals", &e))?;
    let keyspace = super::keyspace_or_new(&store, &args.store.keyspace, args.json)?;
    let how = flags.describe(args, reader.format);
    let resume = find_resume(args, &input, &store, &keyspace, how)?;
    if let Some(resume) = &resume
        && let Err(failure) = skip_loaded(resume, &input, &mut source, &bar)
    {
        return Err(close_unchanged(store, failure));
    }

    let earlier = resume.as_ref().map(Resume::tally).unwrap_or_default();
    let mut load = Load {
        store: &store,
        keyspace: &keyspace,
        batch: Batch::new(),
        batched: Tally::default(),
        sync: args.sync,
        start_offset: resume.as_ref().map_or(0, Resume::offset),
        resume,
        done: Tally::default(),
        earlier,
        input: &input,
        signals: &signals,
        is_untrusted: false,
        without_halves: input::without_halves(args, reader.format, input.undone),
        bar: &bar,
    };
    let start = Instant::now();
    let result = load.all(&mut *reader.records, &mut source, args.skip_bad);
    let time = start.elapsed();
    bar.finish_and_clear();
    let summary = load.summary(&source, time);
    if let Err(failure) = result {
        let kept = load.kept(&summary);
        return Err(close_partial(store, failure, &kept));
    }

    let total = load.total();
    let mut json = load.json(&source, time, readers::name_of(reader.format));
    let resume = load.resume;
    let closed = close_complete(store, resume);
    let stats = closed.map_err(|failure| only_close_failed(&failure, &summary))?;
    if args.json {
        let mut out = Out::new();
        add_devices(&mut json, &stats);
        outln!(out, "{json}")?;
        out.finish()?;
        super::gpu::say_if_down(&placement.executors);
    } else {
        print_loaded(&summary, &earlier, &total, &stats)?;
    }
    warn_of_input(&input, &*reader.records);
    Ok(match total.left_out.records + input.trailing.get() {
        0 => Outcome::Fine,
        _ => Outcome::LeftOut,
    })
}

/// The parts of the store that the flags put on devices.
fn placement(args: &LoadArgs) -> Result<Placement, Failure> {
    if args.tables.is_some() && place::url(&args.store.store)?.is_some() {
        return Err(Failure::Usage(format!(
            "{} is on a device, and so are its tables: leave --tables out, or give a local folder \
             for the log and the manifest",
            args.store.store.display()
        )));
    }
    let store = &args.store.store;
    if let Some(tables) = &args.tables
        && place::has_store(store)
        && place::tables_on_device(store).is_none()
        && !place::has_lost_tables(store, tables)?
    {
        let store = store.display();
        return Err(Failure::Usage(format!(
            "{store} exists already, and {tables} is not the folder of its tables: leave --tables \
             out, or choose another folder for a new store; if {store} has lost its file \
             DIRECTORIES, give the folder on the device whose file OWNER names {store}"
        )));
    }
    Ok(Placement {
        tables: args.tables.clone(),
        devices: args.device.clone(),
        executors: super::gpu::executors(&args.gpu)?,
        ..place::placement()?
    })
}

fn signal_failure(error: std::io::Error) -> Failure {
    Failure::io("signal handlers", &error)
}

/// Checks the flags and opens the input: what the flags say, the input, and its decoded bytes.
fn open_input(
    args: &LoadArgs,
    guess: Guess,
    signals: &Rc<Signals>,
) -> Result<(Flags, Input, Box<dyn Read>), Failure> {
    let flags = Flags::of(args, guess.format).map_err(|wrong| {
        // If the format was guessed and the file is not text, but for example an archive, then that
        // is the error to report, and not the flags that do not fit the format.
        match guess.from != GuessedFrom::Flag && args.file.is_file() {
            true => Input::open(args, guess, signals).err().unwrap_or(wrong),
            false => wrong,
        }
    })?;
    let (input, bytes) = Input::open(args, guess, signals)?;
    Ok((flags, input, bytes))
}

/// Prints how the input is decoded and read, and what its format was guessed from.
fn print_format(input: &Input, guess: Guess, format: Format) -> Result<(), Failure> {
    let decoded = input.decoded.as_ref().map(|how| format!(", {how}"));
    let mut out = Out::new();
    outln!(
        out,
        "reading {} as {}{}{}",
        input.name,
        readers::name_of(format),
        decoded.unwrap_or_default(),
        match format == guess.format {
            true => guess.from.describe(),
            false => " (by its content)",
        }
    )?;
    out.finish()
}

/// Where the load begins: at the input's start, or where an earlier load of it stopped. None if the
/// input cannot be read again.
fn find_resume(
    args: &LoadArgs,
    input: &Input,
    store: &Store,
    keyspace: &Keyspace,
    how: String,
) -> Result<Option<Resume>, Failure> {
    let Some(identity) = &input.identity else {
        return Ok(None);
    };
    match args.restart {
        true => Resume::restart(store, keyspace, identity, how).map(Some),
        false => Resume::find(store, keyspace, identity, how).map(Some),
    }
}

/// Skips the part of the input that earlier loads loaded.
fn skip_loaded(
    resume: &Resume,
    input: &Input,
    source: &mut Source<'_>,
    bar: &ProgressBar,
) -> Result<(), Failure> {
    bar.set_message("skipping what was loaded before");
    let mut seen = |_| bar.set_position(input.read.get());
    if let Some(stopped) = resume.go_on(source, &input.name, &mut seen)? {
        bar.suspend(|| eprintln!("silt: {stopped}; continuing from there"));
    }
    bar.set_message("");
    bar.reset_eta();
    Ok(())
}

/// Closes the store after a failure before the first batch. A signal may have stopped the load.
fn close_unchanged(store: Opened, failure: Failure) -> Failure {
    let Failure::Stopped(signal, what) = failure else {
        return failure;
    };
    match store.close() {
        Ok(()) => Failure::Stopped(
            signal,
            format!(
                "{what} (this run added nothing to what earlier runs loaded; the same command \
                continues there)"
            ),
        ),
        Err(error) => Failure::Store(error),
    }
}

/// Closes the store after a failure between batches. `kept` says what stays in the store.
fn close_partial(store: Opened, failure: Failure, kept: &str) -> Failure {
    match (failure, store.close()) {
        (Failure::Store(error), _) => Failure::Other(format!("{} ({kept})", of_a_command(&error))),
        (Failure::Stopped(signal, what), Ok(())) => {
            Failure::Stopped(signal, format!("{what} ({kept})"))
        }
        (other, Ok(())) => Failure::Other(format!("{other} ({kept})")),
        (_, Err(error)) => Failure::Store(error),
    }
}

/// Closes the store after the last batch. Returns its statistics.
fn close_complete(store: Opened, resume: Option<Resume>) -> Result<Stats, Failure> {
    // The records are flushed to tables, so that the next command opens the store without
    // replaying a log.
    let flushed = store.flush().map_err(Failure::from);
    let flushed = flushed.and_then(|()| match resume {
        Some(resume) => resume.drop_unused_keyspace(&store),
        None => Ok(()),
    });
    let stats = store.stats();
    let closed = store.close().map_err(Failure::from);
    flushed.and(closed).map(|()| stats)
}

/// The failure of [`close_complete`]: all records are in the store.
fn only_close_failed(failure: &Failure, summary: &str) -> Failure {
    let why = match failure {
        Failure::Store(error) if error.is_no_space() => {
            let advice = error.advice_text().unwrap_or("free some space");
            let advice = advice.split(';').next().unwrap_or_default();
            let next = format!(
                "{advice}; the next command that opens the store completes the \
                close"
            );
            error.clone().advice(next).to_string()
        }
        failure => failure.to_string(),
    };
    Failure::Other(format!(
        "all records were loaded and stay in the store: {summary}; only the close of the store \
        failed, and nothing needs to be loaded again: {why}"
    ))
}

/// Prints what was loaded and left out, by this run and by the earlier ones, and what devices did.
fn print_loaded(
    summary: &str,
    earlier: &Tally,
    total: &Tally,
    stats: &Stats,
) -> Result<(), Failure> {
    let mut out = Out::new();
    outln!(out, "loaded {summary}")?;
    if *earlier != Tally::default() {
        outln!(out, "with what was loaded before: {}", loaded(total))?;
    }
    if let Some(longest) = total.multi_line.longest {
        outln!(
            out,
            "{} several lines because of quotes; the longest has {} ({longest})",
            match total.multi_line.records {
                1 => "1 record spans".to_string(),
                n => format!("{} span", plural(n, "record")),
            },
            plural(longest.count, "line"),
        )?;
    }
    if total.left_out.records > 0 {
        outln!(out, "{}", left_out(&total.left_out))?;
    }
    print_devices(&mut out, stats)?;
    out.finish()
}

/// Prints warnings to standard error if an input looks odd whose records were all loaded.
fn warn_of_input(input: &Input, records: &dyn Records) {
    let name = &input.name;
    if input.read.get() == 0 && input.is_stdin {
        eprintln!("silt: {name}: the input is empty; did the command before it fail?");
    }
    if let Some(byte) = records.other_delimiter() {
        let shown = match byte {
            b'\t' => "a tab".to_string(),
            byte => format!("`{}`", byte.escape_ascii()),
        };
        eprintln!(
            "silt: {name}: each record has one column that contains {shown}; if this separates \
            columns, load the input again with --delimiter '{}' (and remove what was loaded)",
            byte.escape_ascii()
        );
    }
    let trailing = input.trailing.get();
    if trailing > 0 {
        eprintln!(
            "silt: {name}: {} after the compressed data are not compressed data; they were left \
            out",
            plural(trailing, "byte")
        );
    }
}

/// The bad records that were left out, in words.
fn left_out(left_out: &LeftOut) -> String {
    format!(
        "left out {} ({left_out})",
        plural(left_out.records, "bad record")
    )
}

/// The records that are in the store, in words.
fn loaded(tally: &Tally) -> String {
    format!(
        "{}, {} of keys and values",
        plural(tally.records, "record"),
        bytes(tally.entry_bytes)
    )
}

/// The longest of the records that span several lines. It is null if there is none.
fn longest_json(tally: &Tally) -> serde_json::Value {
    tally.multi_line.longest.map_or(
        serde_json::Value::Null,
        |lines| serde_json::json!({ "first_line": lines.first, "line_count": lines.count }),
    )
}

fn progress_bar(len: Option<u64>) -> ProgressBar {
    if !std::io::stderr().is_terminal() {
        return ProgressBar::hidden();
    }
    let (bar, template) = match len {
        Some(len) => (
            ProgressBar::new(len),
            "{bar:32} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left; \
             {msg}",
        ),
        None => (
            ProgressBar::new_spinner(),
            "{spinner} {binary_bytes} {binary_bytes_per_sec}; {msg}",
        ),
    };
    bar.set_draw_target(ProgressDrawTarget::stderr_with_hz(8));
    bar.enable_steady_tick(Duration::from_millis(250));
    bar.with_style(
        ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()),
    )
}

/// A running load.
struct Load<'a> {
    store: &'a Store,
    keyspace: &'a Keyspace,
    resume: Option<Resume>,
    batch: Batch,
    /// The records in the batch, and those left out since the last batch was written.
    batched: Tally,
    sync: bool,
    start_offset: u64,
    /// The totals of this run, without the records in the batch.
    done: Tally,
    /// The totals of the interrupted runs before this one.
    earlier: Tally,
    input: &'a Input,
    signals: &'a Signals,
    /// Whether the bytes that were read may differ from the input (see [`Untrusted`]).
    is_untrusted: bool,
    /// The command that loads the input without halves of characters, if it may have any.
    without_halves: Option<String>,
    bar: &'a ProgressBar,
}

impl Load<'_> {
    /// Loads all remaining records of the source.
    fn all(
        &mut self,
        records: &mut dyn Records,
        source: &mut Source<'_>,
        skip_bad: bool,
    ) -> Result<(), Failure> {
        let (name, bar) = (&self.input.name, self.bar);
        let of = match self.input.decoded {
            Some(_) => " of the decoded text",
            None => "",
        };
        let mut pair = Pair::default();
        let mut named = 0;
        loop {
            source.mark();
            if let Some(signal) = self.signals.came() {
                self.write(source, false)?;
                return Err(Failure::Stopped(signal, signal.to_string()));
            }
            match records.next(source, &mut pair) {
                Ok(Step::Record) => {
                    self.batch.put(self.keyspace, &pair.key, &pair.value)?;
                    self.batched.records += 1;
                    self.batched.multi_line += MultiLine::of(pair.lines);
                    self.batched.entry_bytes += (pair.key.len() + pair.value.len()) as u64;
                    if self.batch.len() >= BATCH_RECORDS || self.batch.bytes() >= BATCH_BYTES {
                        source.mark();
                        self.write(source, false)?;
                        bar.set_position(self.input.read.get());
                        bar.set_message(plural(self.total().records, "record"));
                    }
                }
                Ok(Step::Bad(bad)) if skip_bad => {
                    self.batched.left_out += bad.left_out;
                    named += 1;
                    let said = match named {
                        ..=NAMED_BAD => {
                            let (bad, left_out) = (bad.describe(of), bad.left_out);
                            format!("{bad}; left out ({left_out})")
                        }
                        _ if named == NAMED_BAD + 1 => {
                            "more bad records are left out; they are counted".to_string()
                        }
                        _ => continue,
                    };
                    bar.suspend(|| eprintln!("silt: {name}: {said}"));
                }
                Ok(Step::Bad(bad)) => {
                    self.write(source, false)?;
                    return Err(Failure::Other(format!(
                        "{name}: {}; --skip-bad leaves such records out",
                        bad.describe(of)
                    )));
                }
                Ok(Step::End) => {
                    source.mark();
                    return self.write(source, true);
                }
                Err(error) => {
                    self.write(source, false)?;
                    self.is_untrusted = Untrusted::is(&error);
                    let failure = Failure::input(name, &error);
                    return Err(match &self.without_halves {
                        Some(command) if HalfCharacter::is(&error) => Failure::Other(format!(
                            "{failure}; `{command}` leaves such characters out"
                        )),
                        _ => failure,
                    });
                }
            }
        }
    }

    /// Writes the batch, and with it the position at which the next load has to continue.
    fn write(&mut self, source: &mut Source<'_>, last: bool) -> Result<(), Failure> {
        let mut total = self.total();
        total += self.batched;
        match &mut self.resume {
            Some(resume) if last => resume.end(&mut self.batch)?,
            Some(resume) if self.batched.records > 0 => {
                resume.add(self.store, &source.marked(), &total, &mut self.batch)?;
            }
            _ => {}
        }
        if !self.batch.is_empty() {
            let options = WriteOptions {
                sync: self.sync,
                ..WriteOptions::default()
            };
            let written = self.store.write(&self.batch, options);
            written.map_err(|error| match self.signals.came() {
                Some(signal) if error.kind() == ErrorKind::Closed => {
                    Failure::Stopped(signal, format!("{signal} while a write was stalled"))
                }
                _ => Failure::Store(error),
            })?;
            self.batch.clear();
        }
        self.done += std::mem::take(&mut self.batched);
        Ok(())
    }

    /// The totals of this run and the runs before it.
    fn total(&self) -> Tally {
        let mut total = self.earlier;
        total += self.done;
        total
    }

    /// Says which part of a failed load stays in the store, and how to continue.
    fn kept(&self, summary: &str) -> String {
        let left_out = match self.done.left_out.records {
            0 => String::new(),
            _ => format!("; {}", left_out(&self.done.left_out)),
        };
        let again = match self.resume {
            Some(_) if !self.is_untrusted => "; the same command continues there",
            _ => "",
        };
        format!("earlier records stay in the store: {summary}{left_out}{again}")
    }

    /// The totals of this run in words. A very short run has no rates, because they would mean
    /// nothing.
    fn summary(&self, source: &Source<'_>, time: Duration) -> String {
        // A bad record that ends the load is not counted: the next load reads it again.
        let read = source.mark_offset().saturating_sub(self.start_offset);
        let mut text = format!(
            "{}, from {} of input, in {}",
            loaded(&self.done),
            bytes(read),
            duration(time),
        );
        if self.done.records > 0 && time >= RATED {
            text.push_str(&format!(
                ": {} records and {} of input a second",
                rate(self.done.records, time),
                bytes((read as f64 / time.as_secs_f64()) as u64),
            ));
        }
        text
    }

    fn json(&self, source: &Source<'_>, time: Duration, format: &str) -> serde_json::Value {
        let total = self.total();
        serde_json::json!({
            "format": format,
            "decoded": self.input.decoded,
            "record_count": self.done.records,
            "multi_line_record_count": self.done.multi_line.records,
            "longest_record": longest_json(&self.done),
            "bad_record_count": self.done.left_out.records,
            "left_out_line_count": self.done.left_out.lines,
            "left_out_bytes": self.done.left_out.bytes,
            "trailing_bytes": self.input.trailing.get(),
            "entry_bytes": self.done.entry_bytes,
            "start_offset": self.start_offset,
            "end_offset": source.offset(),
            "time_us": u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
            "total": {
                "record_count": total.records,
                "multi_line_record_count": total.multi_line.records,
                "longest_record": longest_json(&total),
                "bad_record_count": total.left_out.records,
                "left_out_line_count": total.left_out.lines,
                "left_out_bytes": total.left_out.bytes,
                "entry_bytes": total.entry_bytes,
            },
        })
    }
}

//! `silt load`: records of a file into a store, in batches.
//!
//! Invariants: what was written stays when a later record is bad or the disk is full, and the message says how much that is; where the next
//! load goes on is in the batch of the records that it speaks of.

mod advice;
pub mod input;
pub mod readers;

use std::cell::Cell;
use std::io::IsTerminal;
use std::rc::Rc;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::batch::Batch;
use siltstone::{Keyspace, Options, Store, WriteOptions};

use crate::args::LoadArgs;
use crate::failure::{Failure, Outcome, of_a_command};
use crate::load::decode::{HalfCharacter, Untrusted};
use crate::load::resume::Resume;
use crate::load::source::Source;
use crate::load::{MultiLine, Pair, Records, Step, Tally};
use crate::output::{Out, bytes, duration, outln, plural, rate};
use crate::signals::Signals;
use input::Input;

/// A batch is written when it has so many records,
const BATCH_RECORDS: usize = 1000;
/// or so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Bad records that are named under `--skip-bad`; the others are only counted.
const NAMED_BAD: u64 = 10;
/// A load that took less time than this has no rates in its output.
const RATED: Duration = Duration::from_millis(100);

/// Runs the command.
pub fn run(args: &LoadArgs) -> Result<Outcome, Failure> {
    // The input first: a wrong path or flag must not leave an empty store behind.
    let guess = input::guess(args)?;
    let in_signals = |e: std::io::Error| Failure::io("signal handlers", &e);
    let signals = Rc::new(Signals::new().map_err(in_signals)?);
    let flags = readers::Flags::of(args, guess.format).map_err(|wrong| {
        // Flags that do not fit the format of a file that is no text at all, such as an archive,
        // are not what is wrong.
        match guess.from != input::GuessedFrom::Flag && args.file.is_file() {
            true => Input::open(args, guess, &signals).err().unwrap_or(wrong),
            false => wrong,
        }
    })?;
    let input = Input::open(args, guess, &signals)?;
    let bar = progress_bar(input.len);
    let mut source = Source::new(input.bytes);
    let mut reader = flags.reader(args, &mut source, &input.name, input.undone)?;
    let format = readers::name_of(reader.format);
    if !args.json {
        let decoded = input.decoded.as_ref().map(|how| format!(", {how}"));
        let mut out = Out::new();
        outln!(
            out,
            "reading {} as {format}{}{}",
            input.name,
            decoded.unwrap_or_default(),
            match reader.format == guess.format {
                true => guess.from.describe(),
                false => " (by its content)",
            }
        )?;
        out.finish()?;
    }

    let options = Options {
        create_if_missing: true,
        ..super::options_of(&args.store.store)?
    };
    let store = super::open(&args.store.store, options)?;
    signals.watch().map_err(in_signals)?;
    let keyspace = super::keyspace_or_new(&store, &args.store.keyspace, args.json)?;
    let how = flags.describe(args, reader.format);
    let resume = match &input.identity {
        None => None,
        Some(identity) if args.restart => Some(Resume::restart(&store, &keyspace, identity, how)?),
        Some(identity) => Some(Resume::find(&store, &keyspace, identity, how)?),
    };
    if let Some(resume) = &resume {
        bar.set_message("reading over what was loaded before");
        let mut seen = |_| bar.set_position(input.read.get());
        match resume.go_on(&mut source, &input.name, &mut seen) {
            Ok(Some(stopped)) => {
                bar.suspend(|| eprintln!("silt: {stopped}; going on from there"));
            }
            Ok(None) => {}
            Err(Failure::Stopped(signal, what)) => {
                store.close()?;
                return Err(Failure::Stopped(
                    signal,
                    format!(
                        "{what} (nothing was added to what earlier runs loaded; the same command \
                         goes on there)"
                    ),
                ));
            }
            Err(failure) => return Err(failure),
        }
        bar.set_message("");
        bar.reset_eta();
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
        name: &input.name,
        read: &input.read,
        trailing: &input.trailing,
        signals: &signals,
        is_untrusted: false,
        decoded: input.decoded.as_deref(),
        without_halves: input::without_halves(args, reader.format, input.undone),
        bar: &bar,
    };
    let start = Instant::now();
    let result = load.all(&mut *reader.records, &mut source, args.skip_bad);
    let time = start.elapsed();
    bar.finish_and_clear();
    let summary = load.summary(&source, time);
    if let Err(failure) = result {
        let again = match load.resume {
            Some(_) if !load.is_untrusted => "; the same command goes on there",
            _ => "",
        };
        let left_out = match load.done.left_out.records {
            0 => String::new(),
            n => format!(
                "; left out {} ({})",
                plural(n, "bad record"),
                load.done.left_out
            ),
        };
        let kept = format!("what came before stays in the store: {summary}{left_out}{again}");
        let closed = store.close();
        return Err(match (failure, closed) {
            (Failure::Store(error), _) => {
                Failure::Other(format!("{} ({kept})", of_a_command(&error)))
            }
            (Failure::Stopped(signal, what), Ok(())) => {
                Failure::Stopped(signal, format!("{what} ({kept})"))
            }
            (other, Ok(())) => Failure::Other(format!("{other} ({kept})")),
            (_, Err(error)) => Failure::Store(error),
        });
    }
    let json = load.json(&source, time, format);
    let total = load.total();
    // To tables, so that the next command opens the store without a log to replay.
    let settled = store.flush().map_err(Failure::from);
    let settled = settled.and_then(|()| match load.resume {
        Some(resume) => resume.tidy(&store),
        None => Ok(()),
    });
    let closed = store.close().map_err(Failure::from);
    settled
        .and(closed)
        .map_err(|failure| unsettled(&failure, &summary))?;
    let mut out = Out::new();
    if args.json {
        outln!(out, "{json}")?;
    } else {
        outln!(out, "loaded {summary}")?;
        if earlier != Tally::default() {
            outln!(out, "with what was loaded before: {}", loaded(&total))?;
        }
        if let Some(longest) = total.multi_line.longest {
            outln!(
                out,
                "{} over several lines by quotes; the longest has {} ({longest})",
                match total.multi_line.records {
                    1 => "1 record goes".to_string(),
                    n => format!("{} go", plural(n, "record")),
                },
                plural(longest.count, "line"),
            )?;
        }
        if total.left_out.records > 0 {
            outln!(
                out,
                "left out {} ({})",
                plural(total.left_out.records, "bad record"),
                total.left_out
            )?;
        }
    }
    out.finish()?;
    if input.read.get() == 0 && input.is_stdin {
        eprintln!(
            "silt: {}: it is empty: 0 bytes came; did the command before it fail?",
            input.name
        );
    }
    if let Some(byte) = reader.records.other_delimiter() {
        let shown = match byte {
            b'\t' => "a tab".to_string(),
            byte => format!("`{}`", byte.escape_ascii()),
        };
        eprintln!(
            "silt: {}: each record has one column, with {shown} in it; if that stands between \
             columns, load the input again with --delimiter '{}' (and remove what was loaded)",
            input.name,
            byte.escape_ascii()
        );
    }
    let trailing = input.trailing.get();
    if trailing > 0 {
        eprintln!(
            "silt: {}: {} after the compressed data that are no such data; they were left out",
            input.name,
            plural(trailing, "byte")
        );
    }
    Ok(match total.left_out.records + trailing {
        0 => Outcome::Fine,
        _ => Outcome::LeftOut,
    })
}

/// The failure of a load all of whose records are in the store, because only what follows them
/// failed: tables of them, and the close.
fn unsettled(failure: &Failure, summary: &str) -> Failure {
    let why = match failure {
        Failure::Store(error) if error.is_no_space() => {
            let advice = error.advice_text().unwrap_or("free some space");
            let advice = advice.split(';').next().unwrap_or_default();
            let next = format!("{advice}; the next command that opens the store does the rest");
            error.clone().advice(next).to_string()
        }
        failure => failure.to_string(),
    };
    Failure::Other(format!(
        "all records were loaded and stay in the store: {summary}; only closing the store after \
         them failed, and nothing needs to be loaded again: {why}"
    ))
}

/// What is in the store, in words.
fn loaded(tally: &Tally) -> String {
    format!(
        "{}, {} of keys and values",
        plural(tally.records, "record"),
        bytes(tally.entry_bytes)
    )
}

/// The longest of the records that go on over several lines; null if there is none.
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
            "{bar:32} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec}, {eta} left; {msg}",
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

/// A load under way.
struct Load<'a> {
    store: &'a Store,
    keyspace: &'a Keyspace,
    resume: Option<Resume>,
    batch: Batch,
    /// What is in the batch, and what was left out since the last batch was written.
    batched: Tally,
    sync: bool,
    start_offset: u64,
    /// What this run did, without what is in the batch.
    done: Tally,
    /// What the interrupted runs before this one did.
    earlier: Tally,
    /// The input: what messages call it, how much of it was read, and how it was decoded.
    name: &'a str,
    read: &'a Cell<u64>,
    /// Bytes that follow the compressed data, see [`Input::trailing`].
    trailing: &'a Cell<u64>,
    signals: &'a Signals,
    /// Whether what was read may differ from what the input holds, see [`Untrusted`].
    is_untrusted: bool,
    decoded: Option<&'a str>,
    /// The command that loads the input without the halves of characters in it, if it may have any.
    without_halves: Option<String>,
    bar: &'a ProgressBar,
}

impl Load<'_> {
    fn all(
        &mut self,
        records: &mut dyn Records,
        source: &mut Source<'_>,
        skip_bad: bool,
    ) -> Result<(), Failure> {
        let (name, bar) = (self.name, self.bar);
        let of = match self.decoded {
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
                        bar.set_position(self.read.get());
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

    /// Writes the batch, with where the next load goes on: at the source's mark.
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
            self.store
                .write(&self.batch, WriteOptions { sync: self.sync })?;
            self.batch.clear();
        }
        self.done += std::mem::take(&mut self.batched);
        Ok(())
    }

    /// What is done of the whole input, by this run and those before it.
    fn total(&self) -> Tally {
        let mut total = self.earlier;
        total += self.done;
        total
    }

    /// What this run did. Rates of a run that was over at once would mean nothing.
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
            "decoded": self.decoded,
            "record_count": self.done.records,
            "multi_line_record_count": self.done.multi_line.records,
            "longest_record": longest_json(&self.done),
            "bad_record_count": self.done.left_out.records,
            "left_out_line_count": self.done.left_out.lines,
            "left_out_bytes": self.done.left_out.bytes,
            "trailing_bytes": self.trailing.get(),
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

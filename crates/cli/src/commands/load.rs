//! `silt load`: records of a file into a store, in batches.
//!
//! Invariants: what was written stays when a later record is bad or the disk is full, and the message says how much that is; where the next
//! load goes on is in the batch of the records that it speaks of.

mod input;
pub mod readers;

use std::io::IsTerminal;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::batch::Batch;
use siltstone::{Keyspace, Options, Store, WriteOptions};

use crate::args::{Format, LoadArgs};
use crate::failure::{Failure, Outcome};
use crate::load::compressed;
use crate::load::resume::Resume;
use crate::load::source::Source;
use crate::load::{Pair, Records, Step};
use crate::output::{Out, bytes, duration, outln, plural, rate};
use input::Input;

/// A batch is written when it has so many records,
const BATCH_RECORDS: usize = 1000;
/// or so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Bad records that are named under `--skip-bad`; the others are only counted.
const NAMED_BAD: u64 = 10;

/// Runs the command.
pub fn run(args: &LoadArgs) -> Result<Outcome, Failure> {
    // The input first: a wrong path or flag must not leave an empty store behind.
    let flags = readers::Flags::of(args)?;
    let input = Input::open(args)?;
    let bar = progress_bar(input.len);
    let mut source = Source::new(input.bytes);
    // A pipe may have nothing to say yet, and is not waited for.
    if args.format != Some(Format::Fixed) && input.len.is_some() {
        source.fill().map_err(|e| Failure::io(&input.name, &e))?;
        compressed::refuse(source.rest(), &input.name)?;
    }
    let mut records = flags.reader(args, &mut source, &input.name)?;

    let options = Options {
        create_if_missing: true,
        ..super::options_of(&args.store.store)?
    };
    let store = super::open(&args.store.store, options)?;
    let keyspace = store.open_keyspace(&args.store.keyspace)?;
    let how = flags.describe(args);
    let resume = match &input.identity {
        None => None,
        Some(identity) if args.restart => Some(Resume::restart(&store, &keyspace, identity, how)?),
        Some(identity) => Some(Resume::find(&store, &keyspace, identity, how)?),
    };
    if let Some(resume) = &resume {
        bar.set_message("reading over what was loaded before");
        let gone_on = resume.go_on(&mut source, &input.name, &mut |at| bar.set_position(at))?;
        if let Some(stopped) = gone_on {
            bar.suspend(|| eprintln!("silt: {stopped}; going on from there"));
        }
        bar.set_message("");
        bar.reset_eta();
    }
    let mut load = Load {
        store: &store,
        keyspace: &keyspace,
        resume,
        batch: Batch::new(),
        sync: args.sync,
        start_offset: source.offset(),
        records: 0,
        bytes: 0,
        bad: 0,
    };
    let start = Instant::now();
    let result = load.all(&mut *records, &mut source, args.skip_bad, &input.name, &bar);
    let time = start.elapsed();
    bar.finish_and_clear();
    let summary = load.summary(&source, time);
    if let Err(failure) = result {
        let again = match load.resume {
            Some(_) => "; the same command goes on there",
            None => "",
        };
        let kept = format!("what came before stays in the store: {summary}{again}");
        let closed = store.close();
        return Err(match (failure, closed) {
            (Failure::Store(error), _) => Failure::Other(format!("{error} ({kept})")),
            (other, Ok(())) => Failure::Other(format!("{other} ({kept})")),
            (_, Err(error)) => Failure::Store(error),
        });
    }
    let json = load.json(&source, time);
    let bad = load.bad;
    // To tables, so that the next command opens the store without a log to replay.
    store.flush()?;
    if let Some(resume) = load.resume {
        resume.tidy(&store)?;
    }
    store.close()?;
    let mut out = Out::new();
    if args.json {
        outln!(out, "{json}")?;
    } else {
        outln!(out, "loaded {summary}")?;
        if bad > 0 {
            outln!(out, "left out {}", plural(bad, "bad record"))?;
        }
    }
    out.finish()?;
    Ok(Outcome::Fine)
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
    sync: bool,
    start_offset: u64,
    /// Records and bytes that are in the store.
    records: u64,
    bytes: u64,
    bad: u64,
}

impl Load<'_> {
    fn all(
        &mut self,
        records: &mut dyn Records,
        source: &mut Source<'_>,
        skip_bad: bool,
        name: &str,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        let mut pair = Pair::default();
        loop {
            source.mark();
            match records.next(source, &mut pair) {
                Ok(Step::Record) => {
                    self.batch.put(self.keyspace, &pair.key, &pair.value)?;
                    if self.batch.len() >= BATCH_RECORDS || self.batch.bytes() >= BATCH_BYTES {
                        source.mark();
                        self.write(source, false)?;
                        bar.set_position(source.offset());
                        bar.set_message(plural(self.records, "record"));
                    }
                }
                Ok(Step::Bad(bad)) if skip_bad => {
                    self.bad += 1;
                    if self.bad <= NAMED_BAD {
                        bar.suspend(|| eprintln!("silt: {name}: {bad}; left out"));
                    } else if self.bad == NAMED_BAD + 1 {
                        bar.suspend(|| {
                            eprintln!(
                                "silt: {name}: more bad records are left out; they are counted"
                            )
                        });
                    }
                }
                Ok(Step::Bad(bad)) => {
                    self.write(source, false)?;
                    return Err(Failure::Other(format!(
                        "{name}: {bad}; --skip-bad leaves such records out"
                    )));
                }
                Ok(Step::End) => return self.write(source, true),
                Err(error) => {
                    self.write(source, false)?;
                    return Err(Failure::io(name, &error));
                }
            }
        }
    }

    /// Writes the batch, with where the next load goes on: at the source's mark.
    fn write(&mut self, source: &mut Source<'_>, last: bool) -> Result<(), Failure> {
        let (records, bytes) = (self.batch.len() as u64, self.batch.bytes() as u64);
        match &mut self.resume {
            Some(resume) if last => resume.end(&mut self.batch)?,
            Some(resume) if records > 0 => {
                resume.add(self.store, &source.marked(), &mut self.batch)?;
            }
            _ => {}
        }
        if self.batch.is_empty() {
            return Ok(());
        }
        self.store
            .write(&self.batch, WriteOptions { sync: self.sync })?;
        self.records += records;
        self.bytes += bytes;
        self.batch.clear();
        Ok(())
    }

    fn summary(&self, source: &Source<'_>, time: Duration) -> String {
        let read = source.offset() - self.start_offset;
        format!(
            "{} ({}) in {}, {} records and {} a second",
            plural(self.records, "record"),
            bytes(self.bytes),
            duration(time),
            rate(self.records, time),
            bytes((read as f64 / time.as_secs_f64().max(1e-9)) as u64),
        )
    }

    fn json(&self, source: &Source<'_>, time: Duration) -> serde_json::Value {
        serde_json::json!({
            "record_count": self.records,
            "bad_record_count": self.bad,
            "entry_bytes": self.bytes,
            "start_offset": self.start_offset,
            "end_offset": source.offset(),
            "time_us": u64::try_from(time.as_micros()).unwrap_or(u64::MAX),
        })
    }
}

//! `silt load`: records of a file into a store, in batches.
//!
//! Invariant: what was written stays when a later record is bad or the disk is full; the message says how much that is.

use std::fs::File;
use std::io::{self, BufReader, IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use siltstone::batch::Batch;
use siltstone::{Keyspace, Options, Store, WriteOptions};

use crate::args::{Format, LoadArgs};
use crate::failure::{Failure, Outcome};
use crate::load::csv::Csv;
use crate::load::fixed::Fixed;
use crate::load::lines::Lines;
use crate::load::{Pair, Records, Step};
use crate::output::{Out, bytes, duration, outln, plural, rate};

/// A batch is written when it has so many records,
const BATCH_RECORDS: usize = 1000;
/// or so many bytes.
const BATCH_BYTES: usize = 1 << 20;
/// Buffered input bytes.
const INPUT_BYTES: usize = 256 << 10;
/// Bad records that are named under `--skip-bad`; the others are only counted.
const NAMED_BAD: u64 = 10;

/// Runs the command.
pub fn run(args: &LoadArgs) -> Result<Outcome, Failure> {
    refuse_foreign_flags(args)?;
    // The input first: a wrong path must not leave an empty store behind.
    let Input {
        bytes: input,
        len,
        name,
    } = open_input(&args.file)?;
    let bar = progress_bar(len);
    let input = BufReader::with_capacity(INPUT_BYTES, bar.wrap_read(input));
    let in_error = |e: io::Error| Failure::io(&name, &e);
    let mut records: Box<dyn Records> = match args.format {
        Format::Lines => Box::new(Lines::new(input)),
        Format::Csv => {
            Box::new(Csv::new(input, args.delimiter.unwrap_or(b','), args.whole).map_err(in_error)?)
        }
        Format::Fixed => {
            let (Some(record), Some(key)) = (args.record, args.key.clone()) else {
                return Err(Failure::Usage(
                    "--format fixed needs --record BYTES and --key A..B".to_string(),
                ));
            };
            Box::new(Fixed::new(input, record, key, args.whole).map_err(Failure::Usage)?)
        }
    };
    let mut pair = Pair::default();
    if args.header && records.next(&mut pair).map_err(in_error)? == Step::End {
        return Err(Failure::Other(format!(
            "{name}: it is empty, and --header asks for a first record"
        )));
    }

    let store = Store::open(&args.store.store, Options::default())?;
    let keyspace = store.open_keyspace(&args.store.keyspace)?;
    let mut load = Load::new(&store, &keyspace, args.sync);
    let start = Instant::now();
    let result = load.all(&mut *records, &mut pair, args.skip_bad, &name, &bar);
    let time = start.elapsed();
    bar.finish_and_clear();
    let Load {
        records,
        bytes: loaded_bytes,
        bad,
        ..
    } = load;
    let summary = format!(
        "{} ({}) in {}, {} records a second",
        plural(records, "record"),
        bytes(loaded_bytes),
        duration(time),
        rate(records, time)
    );
    if let Err(failure) = result {
        let kept = format!("what came before stays in the store: {summary}");
        let closed = store.close();
        return Err(match (failure, closed) {
            (Failure::Store(error), _) => Failure::Other(format!("{error} ({kept})")),
            (other, Ok(())) => Failure::Other(format!("{other} ({kept})")),
            (_, Err(error)) => Failure::Store(error),
        });
    }
    // To tables, so that the next command opens the store without a log to replay.
    store.flush()?;
    store.close()?;
    let mut out = Out::new();
    outln!(out, "loaded {summary}")?;
    if bad > 0 {
        outln!(out, "left out {}", plural(bad, "bad record"))?;
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

/// Flags of other formats would be taken for something that they do not do.
fn refuse_foreign_flags(args: &LoadArgs) -> Result<(), Failure> {
    let given = [
        ("--header", args.header, args.format == Format::Csv),
        (
            "--delimiter",
            args.delimiter.is_some(),
            args.format == Format::Csv,
        ),
        (
            "--record",
            args.record.is_some(),
            args.format == Format::Fixed,
        ),
        ("--key", args.key.is_some(), args.format == Format::Fixed),
        ("--whole", args.whole, args.format != Format::Lines),
    ];
    match given.iter().find(|(_, given, fits)| *given && !fits) {
        Some((flag, ..)) => {
            let format = format!("{:?}", args.format).to_lowercase();
            Err(Failure::Usage(format!(
                "{flag} means nothing with --format {format}; see `silt load --help`"
            )))
        }
        None => Ok(()),
    }
}

/// Where records come from.
struct Input {
    bytes: Box<dyn Read>,
    /// Known of a file.
    len: Option<u64>,
    /// For messages.
    name: String,
}

fn open_input(path: &Path) -> Result<Input, Failure> {
    if path == Path::new("-") {
        return Ok(Input {
            bytes: Box::new(io::stdin().lock()),
            len: None,
            name: "standard input".to_string(),
        });
    }
    let fail = |e: io::Error| Failure::file(path, &e);
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_dir() {
        return Err(Failure::Other(format!(
            "{}: it is a folder, expected a file",
            path.display()
        )));
    }
    let len = meta.is_file().then_some(meta.len());
    Ok(Input {
        bytes: Box::new(file),
        len,
        name: path.display().to_string(),
    })
}

fn progress_bar(len: Option<u64>) -> ProgressBar {
    if !io::stderr().is_terminal() {
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
    batch: Batch,
    sync: bool,
    /// Records and bytes that are in the store.
    records: u64,
    bytes: u64,
    bad: u64,
}

impl<'a> Load<'a> {
    fn new(store: &'a Store, keyspace: &'a Keyspace, sync: bool) -> Load<'a> {
        Load {
            store,
            keyspace,
            batch: Batch::new(),
            sync,
            records: 0,
            bytes: 0,
            bad: 0,
        }
    }

    fn all(
        &mut self,
        records: &mut dyn Records,
        pair: &mut Pair,
        skip_bad: bool,
        name: &str,
        bar: &ProgressBar,
    ) -> Result<(), Failure> {
        loop {
            match records.next(pair) {
                Ok(Step::Record) => {
                    self.batch.put(self.keyspace.id(), &pair.key, &pair.value)?;
                    if self.batch.len() >= BATCH_RECORDS || self.batch.bytes() >= BATCH_BYTES {
                        self.write()?;
                        bar.set_message(plural(self.records, "record"));
                    }
                }
                Ok(Step::Bad(bad)) if skip_bad => {
                    self.bad += 1;
                    if self.bad <= NAMED_BAD {
                        bar.suspend(|| eprintln!("silt: {name}: {bad}; left out"));
                    }
                }
                Ok(Step::Bad(bad)) => {
                    self.write()?;
                    return Err(Failure::Other(format!(
                        "{name}: {bad}; --skip-bad leaves such records out"
                    )));
                }
                Ok(Step::End) => return self.write(),
                Err(error) => {
                    self.write()?;
                    return Err(Failure::io(name, &error));
                }
            }
        }
    }

    fn write(&mut self) -> Result<(), Failure> {
        self.store
            .write(&mut self.batch, WriteOptions { sync: self.sync })?;
        self.records += self.batch.len() as u64;
        self.bytes += self.batch.bytes() as u64;
        self.batch.clear();
        Ok(())
    }
}

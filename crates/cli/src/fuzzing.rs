//! The parsers of the command line as functions of bytes. libFuzzer (`fuzz/`) and the replay of its
//! corpora run them, like those of `siltstone_sim::fuzzing` for the parsers of files.
//!
//! Each of [`TARGETS`] checks promises of a parser: printed bytes can be given again; an input
//! gives the same records with every size of the buffer, and from a position between two records
//! the same ones as from its start; settings that were written are read back.
//!
//! Invariants: a target is a function of its bytes alone, opens no store, and panics if a promise
//! is broken.
//!
//! Threading: targets start no threads.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use clap::{CommandFactory, FromArgMatches, Parser};
use serde::de::IgnoredAny;

use crate::args::{Args, Command, LoadArgs, OptionsArgs};
use crate::commands;
use crate::commands::load::input::guess;
use crate::commands::load::readers::Flags;
use crate::form::Form;
use crate::load::source::{Place, Source};
use crate::load::{BadRecord, Pair, Records, Step};

/// The name of a parser and of its corpus, and the function that runs the parser on bytes.
pub type Target = (&'static str, fn(&[u8]));

/// All of them.
pub const TARGETS: [Target; 4] = [
    ("cli_args", command_line),
    ("cli_form", form),
    ("cli_load", load),
    ("cli_set", set),
];

/// The maximum length of a line of flags. Without it a layout's field could have 65,535 bytes, and
/// a command line as many fields as its length allows.
const FLAGS_BYTES: usize = 200;

/// The first line and the rest.
fn first_line(bytes: &[u8]) -> Option<(&str, &[u8])> {
    let at = memchr::memchr(b'\n', bytes).filter(|at| *at <= FLAGS_BYTES)?;
    Some((std::str::from_utf8(&bytes[..at]).ok()?, &bytes[at + 1..]))
}

/// A command line: words with line feeds between them.
fn command_line(bytes: &[u8]) {
    thread_local! {
        // Building the parser takes a hundred times as long as a parse.
        static COMMAND: RefCell<clap::Command> = RefCell::new(Args::command());
    }
    let words = bytes.split(|b| *b == b'\n').map(OsStr::from_bytes);
    let words = [OsStr::new("silt")].into_iter().chain(words.take(40));
    let parsed = COMMAND.with_borrow_mut(|command| command.try_get_matches_from_mut(words));
    let args = match parsed.and_then(|found| Args::from_arg_matches(&found)) {
        Ok(args) => args,
        Err(error) => {
            assert!(!error.to_string().is_empty(), "an error has a text");
            return;
        }
    };
    let (range, form) = match &args.command {
        Command::Scan(args) => (&args.range, args.form.key()),
        Command::Count(args) => (&args.range, args.form.key()),
        Command::Del(args) => (&args.range, args.form.key()),
        Command::Compact(args) => (&args.range, args.form.key()),
        Command::Load(args) => {
            if let Ok(guess) = guess(args)
                && let Ok(flags) = Flags::of(args, guess.format)
            {
                flags.describe(args, guess.format);
            }
            return;
        }
        _ => return,
    };
    if let Ok(bounds) = commands::bounds(range, &form, true)
        && let (Some(lower), Some(upper)) = (&bounds.lower, &bounds.upper)
    {
        assert!(lower <= upper, "bounds in order");
    }
}

/// The text that a form prints.
fn printed(form: &Form, bytes: &[u8]) -> Result<String, String> {
    let mut line = Vec::new();
    form.push(&mut line, bytes)?;
    assert!(!line.contains(&b'\n'), "a pair is one line");
    Ok(String::from_utf8(line).expect("what is printed is text"))
}

/// Printed text in the form of an argument: the fields of a layout with commas between them, and
/// their own commas escaped.
fn given(form: &Form, printed: &str) -> String {
    if !matches!(form, Form::Layout(_)) {
        return printed.to_string();
    }
    let fields: Vec<&str> = printed.split('\t').collect();
    let (last, others) = fields.split_last().expect("there is one at least");
    let mut text = String::new();
    for field in others {
        text.push_str(&field.replace(',', "\\x2c"));
        text.push(',');
    }
    text + last
}

fn check_json(form: &Form, bytes: &[u8]) {
    let mut line = Vec::new();
    if form.push_json(&mut line, bytes).is_ok() {
        let read = serde_json::from_slice::<IgnoredAny>(&line);
        assert!(read.is_ok() && !line.contains(&b'\n'), "one line of JSON");
    }
}

/// The name of a form, a line feed, and a text or bytes.
fn form(bytes: &[u8]) {
    let Some((name, rest)) = first_line(bytes) else {
        return;
    };
    let Ok(form) = Form::named(name) else {
        return;
    };
    assert_eq!(Form::named(&form.to_string()).as_ref(), Ok(&form));
    // Bytes of a store.
    if let Ok(line) = printed(&form, rest)
        && !matches!(form, Form::Layout(_))
    {
        assert_eq!(form.parse(&line, false).as_deref(), Ok(rest), "{line}");
    }
    check_json(&form, rest);
    // A text of a command line.
    let Ok(text) = std::str::from_utf8(rest) else {
        return;
    };
    let _ = form.parse(text, true);
    if let Ok(bytes) = form.parse(text, false) {
        let line = printed(&form, &bytes).expect("what was given can be printed");
        let again = form.parse(&given(&form, &line), false);
        assert_eq!(again.as_deref(), Ok(&bytes[..]), "printed as {line:?}");
        check_json(&form, &bytes);
    }
}

/// The flags of a load alone.
#[derive(Debug, Parser)]
struct LoadFlags {
    #[command(flatten)]
    load: LoadArgs,
}

/// The number of records that are compared. After them, only the end of reading is checked.
const COMPARED_RECORDS: usize = 64;

/// The result of reading: the first records, and the end of each.
#[derive(Debug, Default, PartialEq, Eq)]
struct Read {
    records: Vec<Result<Pair, BadRecord>>,
    ends: Vec<(u64, Place)>,
    count: u64,
    end: u64,
}

/// Reads an input with a buffer of this size, from its start or from a position between two
/// records.
fn read(
    flags: &Flags,
    args: &LoadArgs,
    text: &[u8],
    buffer: usize,
    from: Option<(u64, Place)>,
) -> Option<Read> {
    let mut source = Source::with_buffer(text, buffer);
    let mut records = flags
        .reader(args, &mut source, "fuzzed", (None, None))
        .ok()?
        .records;
    if let Some((offset, place)) = from {
        let there = source.skip_to(offset, &mut |_| ());
        assert!(there.expect("memory"), "a place between two records");
        source.place = place;
    }
    let mut read = Read::default();
    let mut pair = Pair::default();
    let mut before = source.offset();
    loop {
        let records: &mut dyn Records = &mut *records;
        source.mark();
        let step = records.next(&mut source, &mut pair).expect("memory");
        if step == Step::End {
            break;
        }
        let end = source.offset();
        // An incomplete array may lack only its bracket.
        let is_end = matches!(step, Step::Bad(_)) && end == text.len() as u64;
        assert!(end > before || is_end, "a record has bytes");
        before = end;
        read.count += 1;
        if read.records.len() < COMPARED_RECORDS {
            read.ends.push((end, source.place));
            read.records.push(match step {
                Step::Bad(bad) => Err(bad),
                _ => Ok(Pair {
                    key: pair.key.clone(),
                    value: pair.value.clone(),
                    lines: pair.lines,
                }),
            });
        }
    }
    read.end = source.offset();
    assert_eq!(read.end, text.len() as u64, "all of it was read");
    Some(read)
}

/// A line of flags, and its meaning if it is valid.
type Asked = (String, Option<(LoadArgs, Flags)>);

/// The meaning of the flags in a line, which are separated by tabs.
fn asked(line: &str) -> Option<(LoadArgs, Flags)> {
    thread_local! {
        static COMMAND: RefCell<clap::Command> = RefCell::new(LoadFlags::command());
    }
    let words = ["silt", "store", "-"].into_iter();
    let words = words.chain(line.split('\t').filter(|w| !w.is_empty()));
    let parsed = COMMAND.with_borrow_mut(|command| command.try_get_matches_from_mut(words));
    let args = parsed.and_then(|found| LoadFlags::from_arg_matches(&found));
    let args = args.ok()?.load;
    let guess = guess(&args).ok()?;
    let flags = Flags::of(&args, guess.format).ok()?;
    flags.describe(&args, guess.format);
    Some((args, flags))
}

/// The flags of `silt load` separated by tabs, a line feed, and the input.
fn load(bytes: &[u8]) {
    thread_local! {
        // Most inputs have the same flags as the one before, and parsing the flags takes most of
        // the time.
        static ASKED: RefCell<Asked> = RefCell::default();
    }
    let Some((line, text)) = first_line(bytes) else {
        return;
    };
    ASKED.with_borrow_mut(|last| {
        if last.0 != line || last.1.is_none() {
            *last = (line.to_string(), asked(line));
        }
        if let Some((args, flags)) = &last.1 {
            load_text(args, flags, text);
        }
    });
}

fn load_text(args: &LoadArgs, flags: &Flags, text: &[u8]) {
    let whole = read(flags, args, text, 64 << 10, None);
    assert_eq!(read(flags, args, text, 3, None), whole, "another buffer");
    let Some(whole) = whole else { return };
    let at = whole.ends.len() / 2;
    // No load continues at the end of the input after a bad record that reached it, because the
    // next step ends the load. Otherwise an array that was cut off there would be reported a second
    // time.
    let is_over = |end: u64| end == whole.end && whole.records[at].is_err();
    if let Some(&middle) = whole.ends.get(at)
        && whole.count <= COMPARED_RECORDS as u64
        && !is_over(middle.0)
    {
        let rest = read(flags, args, text, 64, Some(middle)).expect("it was read before");
        assert_eq!(rest.records, whole.records[at + 1..], "from {middle:?} on");
    }
}

/// `silt options --set`: the name of a keyspace or nothing, lines of NAME=VALUE or -NAME up to an
/// empty one, the text of `OPTIONS.toml`.
fn set(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let Some((head, file)) = text.split_once("\n\n") else {
        return;
    };
    let mut lines = head.split('\n');
    let keyspace = lines.next().filter(|name| !name.is_empty());
    let (unset, set): (Vec<&str>, Vec<&str>) = lines.partition(|line| line.starts_with('-'));
    let args = OptionsArgs {
        store: "/nowhere/at/all".into(),
        keyspace: keyspace.map(String::from),
        set: set.into_iter().map(String::from).collect(),
        unset: unset.iter().map(|name| name[1..].to_string()).collect(),
        write: false,
        json: false,
    };
    let Ok(changes) = commands::options::changes(&args) else {
        return;
    };
    let Ok((options, written)) = changes.apply(file) else {
        return;
    };
    for text in [written, options.to_toml()] {
        match siltstone::Options::from_toml(&text) {
            Ok(back) => assert_eq!(back, options, "{text}"),
            Err(error) => panic!("what was written is refused: {error}\n{text}"),
        }
    }
}

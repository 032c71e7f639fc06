//! Makes a reader of records from the flags.

use std::fmt::Write;
use std::ops::Range;

use super::input::{self, GuessedFrom};
use crate::args::{Format, LoadArgs};
use crate::failure::Failure;
use crate::form::Form;
use crate::load::array::{self, Array, Shape};
use crate::load::content::{Compression, Convert, Encoding, Refusal};
use crate::load::csv::{Csv, Limits};
use crate::load::fixed::Fixed;
use crate::load::json::{JsonLines, Pointer};
use crate::load::lines::{self, Lines};
use crate::load::make::{
    KeyFrom, Maker, ValueFrom, byte_range, column, is_number, key_from, parts, value_from,
};
use crate::load::source::Source;
use crate::load::tsv::Tsv;
use crate::load::{Records, Step};

/// A byte order mark, which some programs put before text.
const MARK: &[u8] = b"\xef\xbb\xbf";

/// Flags that were checked before anything is opened.
pub struct Flags {
    format: Format,
    /// Whether the first record holds the names of columns.
    header: bool,
    value: Option<String>,
    limit: usize,
    parts: Parts,
}

/// A reader of records, and the format that it reads. The content of a JSON input decides whether
/// it is read as an array or as lines.
pub struct Reader {
    /// The reader.
    pub records: Box<dyn Records>,
    /// Its format.
    pub format: Format,
}

/// Parts that are known before the input is open.
enum Parts {
    /// Columns: their names may have to be looked up in the header.
    Columns,
    Pointers(KeyFrom<Pointer>, ValueFrom<Pointer>),
    Lines(Option<lines::Bytes>),
    Fixed(Vec<Range<usize>>, ValueFrom<Range<usize>>),
}

impl Flags {
    /// Checks the flags.
    ///
    /// # Errors
    /// Flags that make no sense together.
    pub fn of(args: &LoadArgs, format: Format) -> Result<Flags, Failure> {
        refuse_foreign(args, format)?;
        let value = if args.whole {
            Some("whole".to_string())
        } else {
            args.value.clone()
        };
        if value.as_deref() == Some("whole") && args.value_as.is_some() {
            return Err(Failure::Usage(
                "--value-as wants parts, and --value whole has none: name columns or members"
                    .to_string(),
            ));
        }
        let value_or = |default: &str| value.clone().unwrap_or_else(|| default.to_string());
        let mut header = args.header;
        let parts = match format {
            Format::Csv | Format::Tsv => {
                let given = [&args.key, &value].into_iter().flatten();
                for text in given.filter(|v| !["whole", "rest", "number"].contains(&&v[..])) {
                    let names = parts(text).map_err(Failure::Usage)?;
                    header |= names.iter().any(|name| !is_number(name));
                }
                Parts::Columns
            }
            Format::Jsonl | Format::Json => {
                let key = args.key.as_deref().ok_or_else(|| {
                    Failure::Usage(format!(
                        "--format {} needs --key POINTER, for example --key /id, or --key number",
                        name_of(format)
                    ))
                })?;
                let key = key_from(key, &Pointer::parse).map_err(Failure::Usage)?;
                let value = value_from(&value_or("whole"), &Pointer::parse);
                Parts::Pointers(key, value.map_err(Failure::Usage)?)
            }
            Format::Lines => match &args.key {
                None => Parts::Lines(None),
                Some(key) => {
                    let wrong = |why: String| Failure::Usage(format!("{why}{}", by_lines(args)));
                    let key = key_from(key, &byte_range).map_err(wrong)?;
                    let value = value_from(&value_or("rest"), &byte_range).map_err(wrong)?;
                    Parts::Lines(Some((key, value)))
                }
            },
            Format::Fixed => {
                let (Some(_), Some(key)) = (args.record, &args.key) else {
                    return Err(Failure::Usage(
                        "--format fixed needs --record BYTES and --key A..B".to_string(),
                    ));
                };
                let key = key.split(',').map(byte_range).collect::<Result<_, _>>();
                let value = value_from(&value_or("rest"), &byte_range);
                Parts::Fixed(key.map_err(Failure::Usage)?, value.map_err(Failure::Usage)?)
            }
        };
        let flags = Flags {
            format,
            header,
            value,
            limit: usize::try_from(args.max_record).unwrap_or(usize::MAX),
            parts,
        };
        // Other errors show when the reader is made; here it is made of an empty input.
        if !flags.header {
            flags.reader(args, &mut Source::new(&b""[..]), "", (None, None))?;
        }
        Ok(flags)
    }

    /// The flags that decide the result for a record, in words. `format` is the reader's.
    pub fn describe(&self, args: &LoadArgs, format: Format) -> String {
        let mut text = format!("--format {}", name_of(format));
        let mut flag = |name: &str, value: Option<&str>| {
            if let Some(value) = value {
                let _ = write!(text, " --{name} {value}");
            }
        };
        flag("key", args.key.as_deref());
        // The default gives the same text whether it is given or not.
        let unsaid = match self.format {
            Format::Jsonl | Format::Json => "whole",
            _ => "rest",
        };
        flag("value", self.value.as_deref().filter(|v| *v != unsaid));
        let form = |form: &Option<Form>| form.as_ref().map(Form::to_string);
        flag("key-as", form(&args.key_as).as_deref());
        flag("value-as", form(&args.value_as).as_deref());
        if args.join.0 != b"/" {
            flag("join", Some(&args.join.0.escape_ascii().to_string()));
        }
        flag("record", args.record.map(|r| r.to_string()).as_deref());
        flag(
            "delimiter",
            args.delimiter
                .map(|d| d.escape_ascii().to_string())
                .as_deref(),
        );
        if self.header {
            text.push_str(" --header");
        }
        if args.escapes {
            text.push_str(" --escapes");
        }
        if args.raw {
            text.push_str(" --raw");
        }
        text
    }

    /// Makes the reader, and reads the header if there is one.
    ///
    /// # Errors
    /// Impossible flags; missing columns; errors of the input.
    pub fn reader(
        &self,
        args: &LoadArgs,
        source: &mut Source<'_>,
        name: &str,
        undone: (Option<Compression>, Option<Encoding>),
    ) -> Result<Reader, Failure> {
        let maker = |form: &Option<Form>, join: &[u8]| Maker {
            form: form.clone().unwrap_or(Form::Text),
            join: join.to_vec(),
        };
        let key = maker(&args.key_as, &args.join.0);
        let in_error = |e: std::io::Error| Failure::io(name, &e);
        let no_names = |step: Step| match step {
            Step::Bad(bad) => Failure::Other(format!("{name}: {bad}")),
            _ => no_header(name),
        };
        if self.format != Format::Fixed && !args.raw {
            source.skip_mark(MARK).map_err(in_error)?;
        }
        let mut format = self.format;
        let records: Box<dyn Records> = match &self.parts {
            Parts::Columns if self.format == Format::Csv => {
                let delimiter = args.delimiter.unwrap_or(b',');
                let limits = Limits {
                    record_bytes: self.limit,
                    quoted_lines: args.max_quoted_lines,
                    quoted_bytes: args.max_quoted_bytes,
                };
                let mut csv = Csv::new(delimiter, limits);
                let mut names = None;
                if self.header {
                    names = Some(csv.names(source).map_err(in_error)?.map_err(no_names)?);
                }
                (csv.key_from, csv.value_from) = self.columns(args, names.as_deref())?;
                csv.key = key;
                csv.value = maker(&args.value_as, &[delimiter]);
                Box::new(csv)
            }
            Parts::Columns => {
                let delimiter = args.delimiter.unwrap_or(b'\t');
                let mut tsv = Tsv {
                    delimiter,
                    escapes: args.escapes,
                    key_from: KeyFrom::Number,
                    value_from: ValueFrom::Whole,
                    key,
                    value: maker(&args.value_as, &[delimiter]),
                    limit: self.limit,
                };
                let mut names = None;
                if self.header {
                    names = Some(tsv.names(source).map_err(in_error)?.map_err(no_names)?);
                }
                (tsv.key_from, tsv.value_from) = self.columns(args, names.as_deref())?;
                Box::new(tsv)
            }
            Parts::Pointers(key_from, value_from) => {
                let (key_from, value_from) = (key_from.clone(), value_from.clone());
                let value = maker(&args.value_as, b"");
                let lines = JsonLines::new(key_from, value_from, key, value, self.limit)
                    .map_err(Failure::Usage)?;
                let is_json = self.format == Format::Json;
                match array::shape(source, is_json).map_err(in_error)? {
                    Shape::Lines => {
                        format = Format::Jsonl;
                        Box::new(lines)
                    }
                    Shape::Array => {
                        format = Format::Json;
                        Box::new(Array::new(lines, self.limit, source).map_err(in_error)?)
                    }
                    Shape::Spread => return Err(spread(args, name, undone)),
                }
            }
            Parts::Lines(parts) => Box::new(Lines {
                parts: parts.clone(),
                key,
                value: maker(&args.value_as, b""),
                limit: self.limit,
            }),
            Parts::Fixed(key_from, value_from) => {
                let fixed = Fixed::new(
                    args.record.unwrap_or_default(),
                    key_from.clone(),
                    value_from.clone(),
                );
                Box::new(fixed.map_err(Failure::Usage)?)
            }
        };
        Ok(Reader { records, format })
    }

    fn columns(
        &self,
        args: &LoadArgs,
        names: Option<&[Vec<u8>]>,
    ) -> Result<(KeyFrom<usize>, ValueFrom<usize>), Failure> {
        let part = |text: &str| column(text, names);
        let key = key_from(args.key.as_deref().unwrap_or("1"), &part);
        let value = value_from(self.value.as_deref().unwrap_or("rest"), &part);
        Ok((key.map_err(Failure::Usage)?, value.map_err(Failure::Usage)?))
    }
}

fn no_header(name: &str) -> Failure {
    Failure::Other(format!(
        "{name}: it is empty, and --header asks for a first record"
    ))
}

/// The refusal of JSON whose values span several lines.
fn spread(
    args: &LoadArgs,
    name: &str,
    (compression, encoding): (Option<Compression>, Option<Encoding>),
) -> Failure {
    let refusal = Refusal {
        what: "JSON whose values go on over several lines".to_string(),
        expected: "a value a line, or an array",
        convert: vec![Convert::filter("jq -c . FILE")],
        format: Some("jsonl"),
        note: "",
    };
    let refusal = refusal.after(compression, encoding);
    input::refuse(args, Format::Jsonl, name, &refusal)
}

/// Why the input is read as lines, for messages about a text that is not a range of bytes.
fn by_lines(args: &LoadArgs) -> String {
    match input::guess(args) {
        Ok(guess) if guess.from != GuessedFrom::Flag => format!(
            "; the input is read as lines{}, and --format picks another format, such as csv",
            guess.from.describe()
        ),
        _ => String::new(),
    }
}

/// The name of a format, as `--format` takes it.
pub fn name_of(format: Format) -> &'static str {
    match format {
        Format::Csv => "csv",
        Format::Tsv => "tsv",
        Format::Jsonl => "jsonl",
        Format::Json => "json",
        Format::Lines => "lines",
        Format::Fixed => "fixed",
    }
}

/// Flags of other formats are refused, because users would expect an effect.
fn refuse_foreign(args: &LoadArgs, format: Format) -> Result<(), Failure> {
    use Format::{Csv, Fixed, Lines, Tsv};
    let columns = [Csv, Tsv].contains(&format);
    let keyed = format != Lines || args.key.is_some();
    let given = [
        ("--header", args.header, columns),
        ("--delimiter", args.delimiter.is_some(), columns),
        ("--escapes", args.escapes, format == Tsv),
        ("--record", args.record.is_some(), format == Fixed),
        ("--key-as", args.key_as.is_some(), format != Fixed && keyed),
        (
            "--value-as",
            args.value_as.is_some(),
            format != Fixed && keyed,
        ),
        ("--value", args.value.is_some(), keyed),
        ("--whole", args.whole, keyed),
    ];
    match given.iter().find(|(_, given, fits)| *given && !fits) {
        Some((flag, ..)) => Err(Failure::Usage(format!(
            "{flag} means nothing with --format {}{}; see `silt load --help`",
            name_of(format),
            if keyed { "" } else { " without --key" }
        ))),
        None => Ok(()),
    }
}

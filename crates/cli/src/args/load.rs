//! Arguments of `load`.

use std::path::PathBuf;

use clap::ValueEnum;

use super::StoreArgs;
use crate::form::{Form, parse_text};
use crate::load::csv::{QUOTED_BYTES, QUOTED_LINES};

/// A format of `load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns with commas between them, as RFC 4180 has them: quotes, line breaks in quotes.
    Csv,
    /// Columns with tabs between them; quotes have no meaning.
    Tsv,
    /// A JSON value a line.
    Jsonl,
    /// A JSON array whose elements are the records; or a JSON value a line.
    Json,
    /// Lines.
    Lines,
    /// Records of --record bytes.
    Fixed,
}

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = "Examples:\n  \
    silt load people.silt people.csv --header\n  \
    silt load people.silt people.csv --key surname,name --value age\n  \
    silt load events.silt events.jsonl --key /user/id,/time\n  \
    silt load events.silt events.jsonl --key /id --key-as id:u64be\n  \
    silt load log.silt access.log.gz --key number\n  \
    silt load particles.silt dump.bin --format fixed --record 48 --key 0..16\n  \
    silt scan a.silt | silt load b.silt - --format tsv --escapes\n\n\
    The key (--key):\n  \
    csv, tsv  columns by number from 1, or by the name that the first record gives them; the first \
    if not given\n  \
    json(l)   JSON pointers; a name alone is a member of the outermost object; must be given\n  \
    lines     ranges of bytes A..B; if not given, the whole line is the key and its number the \
    value\n  \
    fixed     ranges of bytes A..B; must be given\n  \
    any       `number`: the record's number, with twelve digits; a header is no record\n  \
    Several have commas between them; a name that holds a comma stands in quotes, as in CSV \
    ('\"name, first\",age'). They are joined with --join (fixed: with nothing). \
    --key-as says how their texts become bytes: hex, base64, or the fields of a layout, such as \
    id:u64be, so that numbers sort as numbers.\n\n\
    The value (--value):\n  \
    whole     the record as it stands (if not given: json, jsonl)\n  \
    rest      what is not the key (if not given: the others); of CSV, the text of the other \
    columns with its quotes and delimiters\n  \
    else      columns, pointers or ranges as for the key. One is its text; several stay CSV, TSV \
    or a JSON object, without the members that a record lacks; a record that lacks all of them is \
    bad. --value-as as --key-as.\n\n\
    Equal keys replace each other, so that `silt count` may tell less than the number of records. \
    Parts that hold the text of --join can make equal keys of different parts (a/b and c, a and \
    b/c): --key-as with a layout gives each part its own width.\n\n\
    An element of a JSON array is a record if a comma or the end of the array follows it. After \
    one that lost a quote or a bracket, --skip-bad goes on at the next line that begins with the \
    same blanks and the same bracket as the elements do. Where the first 64 KiB of the array do \
    not show such lines (it is one line, or what lies within elements begins lines in the same \
    way), all that follows is part of the bad record: what lies within an element never becomes a \
    record.\n\n\
    What the input is: gzip and zstd are decompressed, UTF-8 and UTF-16 with a byte-order mark are \
    decoded, whatever the file is called. Lines and bytes in messages are then those of the \
    decoded text. Other compressed or binary files, UTF-16 without a mark, lines that end in \
    carriage returns alone and JSON values that go on over lines are refused with a command that \
    loads them. JSON lines and a JSON array, whose elements are the records, are told apart by \
    their content, and fixed records are decompressed, too. Binary data is looked for in the first \
    4,096 bytes, and only if --format is not given. Bytes that follow the compressed data, unless \
    they are zeros, are left out and counted, and the exit code is 1. A file that gets shorter \
    while it is read ends the load with an error. UTF-16 with half a surrogate pair does so, too, \
    and --skip-bad does not leave it out. --raw takes the input as it stands.\n\n\
    A record that cannot be loaded (a key over 65,535 bytes, an open quote, no such column, no \
    JSON, a cut record) ends the load with its number, line and byte, and an exit code of 3; what \
    was loaded before it stays. With --skip-bad such records are left out: the first ones are \
    named, all are counted, with their lines and bytes, and the exit code is 1. Empty lines are no \
    records (csv, tsv, json, jsonl).\n\n\
    A quote that never closes would take in all that follows (csv). A quoted field may go on over \
    --max-quoted-lines further lines and --max-quoted-bytes bytes of them; if it goes on further, \
    or to the end of the input, or the next quote has text behind it, the lines of its record up \
    to the one with the opening quote are a bad record, and reading goes on in the next line. \
    Lines of a field that was longer than these bounds are then read as records of their own.\n\n\
    Two lines that each end in a lone quote are one record with all lines between them, as in RFC \
    4180. The totals say how many records go over several lines, and which one is the longest.\n\n\
    A load that was interrupted, by a signal, a bad record or a full disk, goes on where it \
    stopped when it is given again: the place in the input is committed in the batch of its \
    records. If the input has changed before that place, the load is refused; --restart loads it \
    from its start. Standard input goes on if it is given a name by --input-name.\n\n\
    SIGINT and SIGTERM end a load between two records: what was read is written, the store is \
    closed, and the exit code is 130 or 143. A second signal ends it at once, as kill -9 does.")]
pub struct LoadArgs {
    /// Store and keyspace, both created if they are not there.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The file, or - for standard input.
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// How the file is cut into records; if not given, by the ending of its name (.csv, .tsv, .tab,
    /// .jsonl, .ndjson, .json; .txt, .text, .log and .lst are lines), without .gz or .zst behind
    /// it. Text without an ending, and standard input, are lines.
    #[arg(short, long, value_enum)]
    pub format: Option<Format>,
    /// What of a record is its key: columns, JSON pointers, ranges of bytes A..B, or `number`.
    #[arg(long, value_name = "PARTS")]
    pub key: Option<String>,
    /// What is its value: whole, rest, or parts as for the key.
    #[arg(long, value_name = "PARTS")]
    pub value: Option<String>,
    /// The value is the whole record: the same as --value whole.
    #[arg(long, conflicts_with = "value")]
    pub whole: bool,
    /// What stands between several parts of a key.
    #[arg(long, value_name = "TEXT", default_value = "/", value_parser = join)]
    pub join: Bytes,
    /// How texts become the key's bytes: text, hex, base64, or a layout such as id:u64be.
    #[arg(long, value_name = "FORM", value_parser = Form::named)]
    pub key_as: Option<Form>,
    /// How texts become the value's bytes: text, hex, base64, or a layout such as x:f32,v:f32.
    #[arg(long, value_name = "FORM", value_parser = Form::named)]
    pub value_as: Option<Form>,
    /// The first record holds the names of columns (csv, tsv); a column that is named says so too.
    #[arg(long)]
    pub header: bool,
    /// The byte between columns (csv, tsv).
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Backslashes begin escapes, as `silt scan` prints them (tsv).
    #[arg(long)]
    pub escapes: bool,
    /// Length of a record (fixed).
    #[arg(long, value_name = "BYTES")]
    pub record: Option<usize>,
    /// Longest record in bytes; a longer one is bad (csv, tsv, jsonl, json, lines).
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = max_record)]
    pub max_record: u64,
    /// The most lines that a quoted field may go on over after the line in which its quote opens;
    /// if it goes on further, its quote counts as one that never closes (csv).
    #[arg(long, value_name = "LINES", default_value_t = QUOTED_LINES)]
    pub max_quoted_lines: u64,
    /// The most bytes of a quoted field in these further lines (csv).
    #[arg(long, value_name = "BYTES", default_value_t = QUOTED_BYTES)]
    pub max_quoted_bytes: u64,
    /// Take the input's bytes as they stand: decompress and decode nothing, and do not refuse what
    /// does not look like text.
    #[arg(long)]
    pub raw: bool,
    /// Leave bad records out and count them instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Load from the input's start, even if an earlier load of it was interrupted.
    #[arg(long)]
    pub restart: bool,
    /// What the input is called, instead of its path: a load of this name goes on where one of this
    /// name was interrupted.
    #[arg(long, value_name = "NAME")]
    pub input_name: Option<String>,
    /// Make every batch durable against power loss before the next one.
    #[arg(long)]
    pub sync: bool,
    /// Say at the end as JSON what was loaded.
    #[arg(long)]
    pub json: bool,
}

/// Bytes of an argument. (Clap takes a `Vec` for several values.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

fn join(text: &str) -> Result<Bytes, String> {
    parse_text(text).map(Bytes)
}

fn max_record(text: &str) -> Result<u64, String> {
    let limit = crate::load::MAX_RECORD_BYTES as u64;
    match text.parse::<u64>() {
        Ok(bytes) if (1..=limit).contains(&bytes) => Ok(bytes),
        _ => Err(format!("expected 1 to {limit} bytes")),
    }
}

fn delimiter(text: &str) -> Result<u8, String> {
    let byte = match text.as_bytes() {
        b"\\t" => b'\t',
        [byte] => *byte,
        _ => return Err("expected one byte, or \\t for a tab".to_string()),
    };
    match byte {
        b'"' | b'\n' | b'\r' => Err("quotes and line ends have their own meaning".to_string()),
        _ => Ok(byte),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delimiters_and_limits() {
        assert_eq!(delimiter(";"), Ok(b';'));
        assert_eq!(delimiter("\\t"), Ok(b'\t'));
        assert!(delimiter("\"").is_err() && delimiter("ab").is_err() && delimiter("").is_err());
        assert_eq!(max_record("1"), Ok(1));
        for wrong in ["0", "-1", "1k", "99999999999999999999"] {
            assert!(max_record(wrong).is_err(), "{wrong}");
        }
    }
}

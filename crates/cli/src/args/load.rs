//! Arguments of `load`.

use std::path::PathBuf;

use clap::ValueEnum;
use siltstone_device::DeviceUrl;
use siltstone_storage::link::Address;

use super::StoreArgs;
use crate::form::{Form, parse_text};
use crate::load::csv::{QUOTED_BYTES, QUOTED_LINES};

/// A format of `load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// Columns with commas between them, as in RFC 4180: with quotes, and line breaks in quotes.
    Csv,
    /// Columns with tabs between them; quotes have no meaning.
    Tsv,
    /// One JSON value a line.
    Jsonl,
    /// A JSON array whose elements are the records, or one JSON value a line.
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
    silt scan a.silt | silt load b.silt - --format tsv --escapes\n  \
    silt load silt://127.0.0.1:4400/birds birds.csv    on a device (see silt device --help)\n  \
    silt load birds.silt birds.csv --device 127.0.0.1:4400\n  \
    silt load birds.silt birds.csv --gpu\n\n\
    The key (--key):\n  \
    csv, tsv  columns by number from 1, or by the name in the first record; by default the first \
    column\n  \
    json(l)   JSON pointers; a name alone is a member of the outermost object; there is no \
    default\n  \
    lines     ranges of bytes A..B; by default the whole line is the key and its number the \
    value\n  \
    fixed     ranges of bytes A..B; there is no default\n  \
    any       `number`: the record's number, with twelve digits; a header is not a record\n  \
    Write commas between several parts; put a name that contains a comma in quotes, as in CSV \
    ('\"name, first\",age'). The parts are joined with --join (fixed: with nothing). --key-as \
    converts their text to bytes: hex, base64, or the fields of a layout, such as id:u64be, with \
    which numbers sort as numbers.\n\n\
    The value (--value):\n  \
    whole     the record, unchanged (the default of json and jsonl)\n  \
    rest      everything but the key (the default of the others); for CSV, the text of the other \
    columns with its quotes and delimiters\n  \
    PARTS     columns, pointers or ranges as for the key. One part is its text; several parts are \
    CSV, TSV or a JSON object, without the members that a record lacks; a record that lacks all of \
    them is bad. --value-as converts their text like --key-as.\n\n\
    Of several records with equal keys the last one stays, so `silt count` may print less than the \
    number of records. If parts contain the text of --join, different parts can make equal keys \
    (a/b and c, a and b/c): --key-as with a layout gives each part its own width.\n\n\
    An element of a JSON array is a record if a comma or the end of the array follows it. After an \
    element that lost a quote or a bracket, --skip-bad continues at the next line that begins with \
    the same blanks and the same bracket as the elements. If the first 64 KiB of the array do not \
    show such lines (because the array is one line, or because lines within elements begin in the \
    same way), everything that follows is part of the bad record: a value within an element never \
    becomes a record.\n\n\
    Decoding: gzip and zstd are decompressed, and UTF-8 and UTF-16 with a byte-order mark are \
    decoded, whatever the name of the file. Lines and bytes in messages are then those of the \
    decoded text. Other compressed or binary files, UTF-16 without a mark, lines that end in \
    carriage returns alone and JSON values that span several lines are refused, and the message \
    has a command that loads them. JSON lines and JSON arrays, whose elements are the records, are \
    distinguished by their content, and fixed records are decompressed too. Binary data is \
    searched for in the first 4,096 bytes, and only if --format is not given. Bytes that follow \
    the compressed data are left out and counted unless they are zeros, and the exit code is 1. A \
    file that gets shorter while it is read ends the load with an error. So does half of a UTF-16 \
    surrogate pair, which --skip-bad does not leave out. With --raw the input is neither \
    decompressed nor decoded.\n\n\
    A record that cannot be loaded (a key over 65,535 bytes, an open quote, a missing column, text \
    that is not JSON, an incomplete record) ends the load with exit code 3, and the message names \
    its number, line and byte; the records before it stay loaded. With --skip-bad such records are \
    left out: the first ones are named, all are counted with their lines and bytes, and the exit \
    code is 1. Empty lines are not records (csv, tsv, json, jsonl).\n\n\
    A quote that is never closed would include everything that follows (csv). Therefore a quoted \
    field may continue over at most --max-quoted-lines further lines and --max-quoted-bytes bytes \
    in them. If it is longer, or reaches the end of the input, or if text follows the next quote, \
    then the lines of its record up to the one with the opening quote are a bad record, and \
    reading continues in the next line. The lines of a field that is longer than these bounds are \
    then read as records.\n\n\
    Two lines that each end in a lone quote are one record with all lines between them, as in RFC \
    4180. The totals say how many records span several lines, and which one is the longest.\n\n\
    If a load was interrupted by a signal, a bad record or a full disk, the same command resumes \
    it: each batch of records also commits the position in the input. If the input before that \
    position has changed, the load is refused; --restart loads it from the start. A load of \
    standard input can be resumed if --input-name gives it a name.\n\n\
    SIGINT and SIGTERM end a load between two records: the records that were read are written, the \
    store is closed, and the exit code is 130 or 143. A write that is stalled ends after 2 s. If \
    devices have a part in the store and one does not answer, the load ends after 5 s without a \
    close, like kill -9. A second signal ends it at once, like kill -9.")]
pub struct LoadArgs {
    /// Store and keyspace, both created if they do not exist.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The file, or - for standard input.
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// The format of the records. The default follows from the extension of the file's name (.csv,
    /// .tsv, .tab, .jsonl, .ndjson, .json; .txt, .text, .log and .lst are lines), without a final
    /// .gz or .zst. Text without an extension, and standard input, are lines.
    #[arg(short, long, value_enum)]
    pub format: Option<Format>,
    /// The key of a record: columns, JSON pointers, ranges of bytes A..B, or `number`.
    #[arg(long, value_name = "PARTS")]
    pub key: Option<String>,
    /// The value of a record: whole, rest, or parts as for the key.
    #[arg(long, value_name = "PARTS")]
    pub value: Option<String>,
    /// Take the whole record as the value: the same as --value whole.
    #[arg(long, conflicts_with = "value")]
    pub whole: bool,
    /// The text between several parts of a key.
    #[arg(long, value_name = "TEXT", default_value = "/", value_parser = join)]
    pub join: Bytes,
    /// How text becomes the key's bytes: text, hex, base64, or a layout such as id:u64be.
    #[arg(long, value_name = "FORM", value_parser = Form::named)]
    pub key_as: Option<Form>,
    /// How text becomes the value's bytes: text, hex, base64, or a layout such as x:f32,v:f32.
    #[arg(long, value_name = "FORM", value_parser = Form::named)]
    pub value_as: Option<Form>,
    /// The first record holds the names of columns (csv, tsv); naming a column implies this.
    #[arg(long)]
    pub header: bool,
    /// The byte between columns (csv, tsv).
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Backslashes start escapes, as `silt scan` prints them (tsv).
    #[arg(long)]
    pub escapes: bool,
    /// The length of a record (fixed).
    #[arg(long, value_name = "BYTES")]
    pub record: Option<usize>,
    /// The longest record in bytes; a longer one is bad (csv, tsv, jsonl, json, lines).
    #[arg(long, value_name = "BYTES", default_value_t = 64 << 20, value_parser = max_record)]
    pub max_record: u64,
    /// The maximum number of lines that a quoted field may span after the line with its opening
    /// quote; in a longer field the quote counts as one that is never closed (csv).
    #[arg(long, value_name = "LINES", default_value_t = QUOTED_LINES)]
    pub max_quoted_lines: u64,
    /// The maximum number of bytes of a quoted field in these further lines (csv).
    #[arg(long, value_name = "BYTES", default_value_t = QUOTED_BYTES)]
    pub max_quoted_bytes: u64,
    /// Do not decompress or decode the input, and do not refuse input that does not look like text.
    #[arg(long)]
    pub raw: bool,
    /// Leave bad records out and count them instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Load from the start of the input, even if an earlier load of it was interrupted.
    #[arg(long)]
    pub restart: bool,
    /// The name of the input, instead of its path: a load with this name resumes an interrupted
    /// load with the same name.
    #[arg(long, value_name = "NAME")]
    pub input_name: Option<String>,
    /// Make every batch durable against power loss before the next one.
    #[arg(long)]
    pub sync: bool,
    /// Put the tables of a new store into this folder on a device: silt://HOST:PORT/FOLDER, or
    /// silt+unix://SOCKET#FOLDER. Log and manifest stay in the store's folder. If an existing store
    /// has lost its file DIRECTORIES, giving the folder of its tables restores the file.
    #[arg(long, value_name = "URL", value_parser = tables)]
    pub tables: Option<String>,
    /// Let the device at this address (HOST:PORT or unix:PATH) run compactions of the load; can be
    /// repeated.
    #[arg(long, value_name = "ADDR", value_parser = super::device::address)]
    pub device: Vec<Address>,
    /// Whether a GPU runs compactions of the load.
    #[command(flatten)]
    pub gpu: super::GpuUseArgs,
    /// Print a summary as JSON at the end.
    #[arg(long)]
    pub json: bool,
}

/// Bytes of an argument. (Clap takes a `Vec` for several values.)
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bytes(pub Vec<u8>);

fn join(text: &str) -> Result<Bytes, String> {
    parse_text(text).map(Bytes)
}

/// Reads the address of a folder on a device.
fn tables(text: &str) -> Result<String, String> {
    let address = text.parse::<DeviceUrl>();
    let normal = address.and_then(|address| address.normal());
    normal.map_err(|error| error.to_string())
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

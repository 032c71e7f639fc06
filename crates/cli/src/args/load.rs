//! Arguments of `load`.

use std::ops::Range;
use std::path::PathBuf;

use clap::ValueEnum;

use super::StoreArgs;

/// A format of `load`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Format {
    /// The first column is the key, the rest of the record as it stands is the value (RFC 4180: quotes, line breaks in quotes).
    Csv,
    /// The whole line is the key, its number in the input (from 1) is the value; of equal lines the last one stays.
    Lines,
    /// Records of --record bytes; bytes --key are the key, all others are the value.
    Fixed,
}

/// Arguments of `load`.
#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  \
    silt load people.silt people.csv --format csv --header\n  \
    zcat access.log.gz | silt load log.silt - \n  \
    silt load particles.silt dump.bin --format fixed --record 48 --key 0..16\n\n\
    A record that cannot be loaded (a key over 65,535 bytes, an open quote, a cut record) ends the load with its number and an exit code \
    of 3; what was loaded before it stays. With --skip-bad such records are counted and left out.")]
pub struct LoadArgs {
    /// Store and keyspace.
    #[command(flatten)]
    pub store: StoreArgs,
    /// The file, or - for standard input.
    #[arg(default_value = "-")]
    pub file: PathBuf,
    /// How the file is cut into records.
    #[arg(short, long, value_enum, default_value_t = Format::Lines)]
    pub format: Format,
    /// Leave out the first record, which holds names (csv).
    #[arg(long)]
    pub header: bool,
    /// The byte between columns (csv).
    #[arg(long, value_name = "CHAR", value_parser = delimiter)]
    pub delimiter: Option<u8>,
    /// Length of a record (fixed).
    #[arg(long, value_name = "BYTES")]
    pub record: Option<usize>,
    /// Which bytes of a record are its key, for example 0..16; the end does not belong to it (fixed).
    #[arg(long, value_name = "A..B", value_parser = byte_range)]
    pub key: Option<Range<usize>>,
    /// The value is the whole record, not only the bytes that are not the key (fixed, csv).
    #[arg(long)]
    pub whole: bool,
    /// Leave bad records out and count them instead of stopping at the first.
    #[arg(long)]
    pub skip_bad: bool,
    /// Make every batch durable against power loss before the next one.
    #[arg(long)]
    pub sync: bool,
}

fn byte_range(text: &str) -> Result<Range<usize>, String> {
    let wrong = || "expected A..B with A below B, for example 0..16".to_string();
    let (start, end) = text.split_once("..").ok_or_else(wrong)?;
    let number = |text: &str| text.parse::<usize>().map_err(|_| wrong());
    let range = number(start)?..number(end)?;
    if range.is_empty() {
        Err(wrong())
    } else {
        Ok(range)
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
    fn byte_ranges_and_delimiters() {
        assert_eq!(byte_range("0..16"), Ok(0..16));
        for wrong in [
            "",
            "3",
            "..",
            "4..4",
            "5..4",
            "a..b",
            "0..-1",
            "0..99999999999999999999999",
        ] {
            assert!(byte_range(wrong).is_err(), "{wrong}");
        }
        assert_eq!(delimiter(";"), Ok(b';'));
        assert_eq!(delimiter("\\t"), Ok(b'\t'));
        assert!(delimiter("\"").is_err() && delimiter("ab").is_err() && delimiter("").is_err());
    }
}

//! Command lines for messages: they load an input that the given command line does not load.

use std::ffi::OsString;
use std::path::Path;

use crate::load::content::Convert;

/// A word, in quotes if a shell needs them.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The words of the command line with this format. If text is piped in, `-` replaces the file's
/// name.
fn command(words: &[OsString], format: &str, piped: Option<&Path>) -> String {
    let mut text = "silt".to_string();
    let mut has_format = false;
    let mut skip = false;
    for word in words {
        let shown = word.to_string_lossy();
        let is_format = |flag: &str| shown == flag || shown.starts_with(&format!("{flag}="));
        if std::mem::take(&mut skip) {
            continue;
        }
        if is_format("--format") || shown.starts_with("-f") {
            skip = shown == "--format" || shown == "-f";
        } else if piped.is_some_and(|file| file.as_os_str() == word) {
            text.push_str(" -");
            continue;
        } else {
            text.push(' ');
            text.push_str(&quoted(&shown));
            continue;
        }
        has_format = true;
        text.push_str(&format!(" --format {format}"));
    }
    if !has_format {
        text.push_str(&format!(" --format {format}"));
    }
    text
}

/// The command line that pipes `file` through the commands of `convert` into this command.
pub fn piped(convert: &[Convert], file: &Path, words: &[OsString], format: &str) -> String {
    let name = file.to_string_lossy();
    let mut is_pipe = name == "-";
    let mut text = String::new();
    for convert in convert {
        let command = &convert.command[..];
        let (joint, command) = match (is_pipe, convert.reads_pipe) {
            (true, true) => {
                let from_pipe = command.replace(" < FILE", "").replace("FILE", "-");
                (" | ", from_pipe)
            }
            // The input must first become a file.
            (true, false) if text.is_empty() => {
                text.push_str("cat");
                (" > PLAIN && ", command.replace("FILE", "PLAIN"))
            }
            (true, false) => (" > PLAIN && ", command.replace("FILE", "PLAIN")),
            (false, _) => ("", named(command, &name)),
        };
        if !text.is_empty() {
            text.push_str(joint);
        }
        text.push_str(&command);
        is_pipe = true;
    }
    format!("{text} | {}", command(words, format, Some(file)))
}

/// A command with the file's name, in quotes if needed, in place of `FILE`.
fn named(command: &str, name: &str) -> String {
    if command.contains("(FILE)") {
        // A string of SQL, within the double quotes of a shell.
        let mut text = name.replace('\'', "''");
        for special in ['\\', '"', '$', '`'] {
            text = text.replace(special, &format!("\\{special}"));
        }
        return command.replace("FILE", &format!("'{text}'"));
    }
    command.replace("FILE", &quoted(name))
}

/// The command line that reads the input without decoding.
pub fn as_it_is(words: &[OsString], format: &str) -> String {
    command(words, format, None)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_as_they_were_given() {
        let words = |text: &str| -> Vec<OsString> { text.split('|').map(OsString::from).collect() };
        let given = words("load|my store|it's.csv.xz|--key|id,name|--join| ");
        assert_eq!(
            piped(
                &[Convert::filter("xz -dc FILE")],
                Path::new("it's.csv.xz"),
                &given,
                "csv"
            ),
            "xz -dc 'it'\\''s.csv.xz' | \
             silt load 'my store' - --key id,name --join ' ' --format csv"
        );
        for format in ["-f|tsv", "-ftsv", "--format|tsv", "--format=tsv"] {
            let given = words(&format!("load|s|{format}|a.db|--header"));
            assert_eq!(
                piped(
                    &[Convert::filter("sqlite3 FILE")],
                    Path::new("a.db"),
                    &given,
                    "csv"
                ),
                "sqlite3 a.db | silt load s --format csv - --header"
            );
        }
        // What is compressed, encoded, or needs a file of its own.
        let given = words("load|s|a.csv.gz");
        let path = Path::new("a.csv.gz");
        let gzip = Convert::filter("gzip -dc FILE");
        let iconv = Convert::filter("iconv -f UTF-16LE -t UTF-8 FILE");
        let tr = Convert::filter("tr '\\r' '\\n' < FILE");
        let unzip = Convert {
            command: "unzip -p FILE MEMBER".to_string(),
            reads_pipe: false,
        };
        let duckdb = Convert {
            command: "duckdb -c \"from read_parquet(FILE)\"".to_string(),
            reads_pipe: false,
        };
        for (convert, expected) in [
            (
                &[gzip.clone(), iconv, tr.clone()][..],
                "gzip -dc a.csv.gz | iconv -f UTF-16LE -t UTF-8 - | tr '\\r' '\\n' | silt",
            ),
            (&[tr], "tr '\\r' '\\n' < a.csv.gz | silt"),
            (
                &[gzip, unzip],
                "gzip -dc a.csv.gz > PLAIN && unzip -p PLAIN MEMBER | silt",
            ),
            (
                &[duckdb],
                "duckdb -c \"from read_parquet('a.csv.gz')\" | silt",
            ),
        ] {
            let said = piped(convert, path, &given, "csv");
            assert_eq!(said, format!("{expected} load s - --format csv"));
        }
        assert_eq!(
            as_it_is(&words("load|s|a"), "lines"),
            "silt load s a --format lines"
        );
    }
}

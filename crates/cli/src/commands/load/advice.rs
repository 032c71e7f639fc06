//! Command lines for messages: they load an input that the present command line does not load.

use std::ffi::OsString;
use std::path::Path;

/// A word in the quotes that a shell needs for it, if it needs any.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "_-./:,=+@%".contains(c);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_string();
    }
    format!("'{}'", word.replace('\'', "'\\''"))
}

/// The words of the command line with this format. If text is piped in, `-` stands in place of the
/// file's name.
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

/// The command line that pipes what `convert` makes of `FILE` into this command.
pub fn piped(convert: &str, file: &Path, words: &[OsString], format: &str) -> String {
    let name = file.to_string_lossy();
    let convert = match &*name {
        "-" => convert.to_string(),
        name => convert.replace("FILE", &quoted(name)),
    };
    format!("{convert} | {}", command(words, format, Some(file)))
}

/// The command line that takes the input as it is.
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
            piped("xz -dc FILE", Path::new("it's.csv.xz"), &given, "csv"),
            "xz -dc 'it'\\''s.csv.xz' | \
             silt load 'my store' - --key id,name --join ' ' --format csv"
        );
        for format in ["-f|tsv", "-ftsv", "--format|tsv", "--format=tsv"] {
            let given = words(&format!("load|s|{format}|a.db|--header"));
            assert_eq!(
                piped("sqlite3 FILE", Path::new("a.db"), &given, "csv"),
                "sqlite3 a.db | silt load s --format csv - --header"
            );
        }
        assert_eq!(
            as_it_is(&words("load|s|a"), "lines"),
            "silt load s a --format lines"
        );
    }
}

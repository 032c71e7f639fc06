//! Paragraphs whose lines are short, and numbered notes.
//!
//! Threading: pure functions.

/// The longest line of prose.
const COLUMNS: usize = 100;

/// A paragraph with lines broken between words, and an empty line after it.
pub(super) fn paragraph(text: &str) -> String {
    wrapped(text, "", "") + "\n"
}

/// An entry of a list.
pub(super) fn bullet(text: &str) -> String {
    wrapped(text, "- ", "  ")
}

fn wrapped(text: &str, first: &str, further: &str) -> String {
    let mut out = String::new();
    let mut line = String::from(first);
    let mut is_empty = true;
    for word in text.split_whitespace() {
        if !is_empty && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            out.push_str(&line);
            out.push('\n');
            line = String::from(further);
            is_empty = true;
        }
        if !is_empty {
            line.push(' ');
        }
        line.push_str(word);
        is_empty = false;
    }
    out.push_str(&line);
    out.push('\n');
    out
}

/// A text of somebody else that must not be taken for Markdown, on one line.
pub(super) fn quoted(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let mark = "`".repeat(1 + longest_run(&line));
    match line.starts_with('`') || line.ends_with('`') {
        true => format!("{mark} {line} {mark}"),
        false => format!("{mark}{line}{mark}"),
    }
}

/// The longest run of backquotes.
fn longest_run(line: &str) -> usize {
    let runs = line.split(|c| c != '`').map(str::len);
    runs.max().unwrap_or(0)
}

/// Notes below a table, to which its cells refer by number. Equal notes are one.
#[derive(Debug, Default)]
pub(super) struct Notes {
    all: Vec<String>,
}

impl Notes {
    /// The number of a note.
    pub fn number(&mut self, text: String) -> usize {
        let found = self.all.iter().position(|other| *other == text);
        let position = found.unwrap_or_else(|| {
            self.all.push(text);
            self.all.len() - 1
        });
        position + 1
    }

    /// The notes with their numbers.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let notes = self.all.iter().zip(1..);
        notes.map(|(text, number)| format!("Note {number}: {text}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_broken_between_words() {
        let text = paragraph(&"word ".repeat(40));
        assert!(text.lines().all(|line| line.len() <= COLUMNS), "{text}");
        assert_eq!(text.matches("word").count(), 40);
        assert!(bullet(&"word ".repeat(40)).contains("\n  word"));
    }

    #[test]
    fn backquotes_in_a_message_do_not_end_its_quotation() {
        assert_eq!(quoted("a\n b"), "`a b`");
        assert_eq!(quoted("a `b` c"), "``a `b` c``");
        assert_eq!(quoted("`b`"), "`` `b` ``");
    }

    #[test]
    fn equal_notes_have_one_number() {
        let mut notes = Notes::default();
        assert_eq!((notes.number("a".into()), notes.number("b".into())), (1, 2));
        assert_eq!(notes.number("a".into()), 1);
        assert_eq!(notes.lines().count(), 2);
    }
}

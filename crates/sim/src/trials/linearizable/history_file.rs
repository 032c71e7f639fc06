//! A client's notes in a file: they outlive a process that is killed.
//!
//! Each event is one line, and each line is one system call, so it is in the page cache and
//! outlives a kill. A last line without a line end is ignored: if the beginning of a write was not
//! noted, the write was not called.
//!
//! Threading: each file has one client.

use std::fmt::Write as _;
use std::fs::File;
use std::io::Write as _;
use std::path::Path;

use crate::linear::{Action, End, Key, Operation, Value};

/// The names of operations.
const NAMES: [&str; 10] = [
    "put",
    "delete",
    "delete_range",
    "batch",
    "get",
    "get_pinned",
    "multi_get",
    "scan",
    "scan_back",
    "snapshot",
];

pub(super) struct HistoryFile(File);

fn pairs_text(pairs: &[(Key, Value)]) -> String {
    let mut text = String::new();
    for (key, value) in pairs {
        let _ = write!(text, " {key}={}", value.unwrap_or(0));
    }
    text
}

fn pairs_of(words: &[&str]) -> Option<Vec<(Key, Value)>> {
    let pair = |word: &&str| {
        let (key, value) = word.split_once('=')?;
        let value: u64 = value.parse().ok()?;
        Some((key.parse().ok()?, Some(value).filter(|v| *v > 0)))
    };
    words.iter().map(pair).collect()
}

impl HistoryFile {
    pub(super) fn create(path: &Path) -> std::io::Result<HistoryFile> {
        File::create(path).map(HistoryFile)
    }

    /// A client that cannot note an operation must not do it.
    fn line(&self, text: String) {
        (&self.0)
            .write_all(text.as_bytes())
            .unwrap_or_else(|e| panic!("a client's notes: {e}"));
    }

    pub(super) fn began(&self, operation: &Operation) {
        let kind = if operation.action.is_write() {
            'w'
        } else {
            'r'
        };
        let Operation { name, called, .. } = operation;
        let end = match operation.end {
            End::Returned(time) => time,
            End::Cut(_) => 0,
        };
        let pairs = pairs_text(operation.action.pairs());
        self.line(format!("{kind} {name} {called} {end}{pairs}\n"));
    }

    pub(super) fn returned(&self, at: usize, time: u64) {
        self.line(format!("e {at} {time}\n"));
    }

    pub(super) fn more(&self, at: usize, pairs: &[(Key, Value)]) {
        self.line(format!("m {at}{}\n", pairs_text(pairs)));
    }
}

/// The notes of a client. Operations whose end was not noted have no end.
pub(super) fn read(path: &Path, client: u32) -> Result<Vec<Operation>, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    let whole = text.rfind('\n').map_or(0, |end| end + 1);
    let mut operations: Vec<Operation> = Vec::new();
    for line in text[..whole].lines() {
        event(line, client, &mut operations)
            .ok_or_else(|| format!("{}: `{line}` is no note", path.display()))?;
    }
    Ok(operations)
}

fn event(line: &str, client: u32, operations: &mut Vec<Operation>) -> Option<()> {
    let words: Vec<&str> = line.split(' ').collect();
    match words[..] {
        [kind @ ("w" | "r"), name, called, end, ..] => {
            let pairs = pairs_of(&words[4..])?;
            let end = match end.parse().ok()? {
                0 => End::Cut(u64::MAX),
                time => End::Returned(time),
            };
            operations.push(Operation {
                name: NAMES.iter().find(|known| **known == name)?,
                client,
                called: called.parse().ok()?,
                end,
                action: match kind {
                    "w" => Action::Write(pairs),
                    _ => Action::Read(pairs),
                },
            });
        }
        ["e", at, time] => {
            let at: usize = at.parse().ok()?;
            operations.get_mut(at)?.end = End::Returned(time.parse().ok()?);
        }
        ["m", at, ..] => {
            let at: usize = at.parse().ok()?;
            match &mut operations.get_mut(at)?.action {
                Action::Read(all) | Action::Write(all) => all.extend(pairs_of(&words[2..])?),
            }
        }
        _ => return None,
    }
    Some(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_noted_is_read_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("notes");
        let history_file = HistoryFile::create(&path).unwrap();
        let mut all = vec![
            Operation {
                name: "batch",
                client: 3,
                called: 5,
                end: End::Cut(u64::MAX),
                action: Action::Write(vec![(1, Some(7)), (2, None)]),
            },
            Operation {
                name: "snapshot",
                client: 3,
                called: 8,
                end: End::Returned(9),
                action: Action::Read(Vec::new()),
            },
        ];
        all.iter()
            .for_each(|operation| history_file.began(operation));
        assert_eq!(read(&path, 3).unwrap(), all);
        history_file.returned(0, 6);
        history_file.more(1, &[(2, None), (1, Some(7))]);
        history_file.line("w put 12 0 1=".into());
        all[0].end = End::Returned(6);
        all[1].action = Action::Read(vec![(2, None), (1, Some(7))]);
        assert_eq!(read(&path, 3).unwrap(), all);
    }
}

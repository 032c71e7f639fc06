//! Reads everything from a store. Any answer may be an error that names a file, and none may be
//! wrong.
//!
//! Threading: one task of a run.

use std::collections::BTreeMap;

use siltstone::{IterOptions, Keyspace, Store};

use crate::checker::show;
use crate::model::{Bytes, Pairs};
use crate::rng::Rng;

/// The expected contents of a store: the id and the pairs of each keyspace, by name.
pub(super) type Wanted = BTreeMap<String, (u32, Pairs)>;

/// The numbers of answers and of refusals.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Answers {
    pub(super) right_count: u64,
    pub(super) error_count: u64,
}

impl Answers {
    pub(super) fn add(&mut self, other: Answers) {
        self.right_count += other.right_count;
        self.error_count += other.error_count;
    }

    fn take<T>(&mut self, what: &str, answer: siltstone::Result<T>) -> Result<Option<T>, String> {
        match answer {
            Ok(value) => {
                self.right_count += 1;
                Ok(Some(value))
            }
            Err(e) => {
                names_a_file(what, &e)?;
                self.error_count += 1;
                Ok(None)
            }
        }
    }
}

/// Requires that an error names the file.
pub(super) fn names_a_file(what: &str, error: &siltstone::Error) -> Result<(), String> {
    if error.file().is_some() {
        Ok(())
    } else {
        Err(format!("{what}: an error that names no file: {error}"))
    }
}

fn differs(what: &str, found: Option<&[u8]>, wanted: Option<&[u8]>) -> String {
    let text = |v: Option<&[u8]>| v.map_or("nothing".to_string(), show);
    format!("{what} gives {}, expected {}", text(found), text(wanted))
}

fn scan(
    keyspace: &Keyspace,
    wanted: &Pairs,
    backward: bool,
    answers: &mut Answers,
) -> Result<(), String> {
    let what = format!(
        "keyspace {}: a scan {}",
        keyspace.name(),
        if backward { "backward" } else { "forward" }
    );
    let Some(mut cursor) = answers.take(&what, keyspace.cursor(IterOptions::default()))? else {
        return Ok(());
    };
    let mut all: Vec<(&Bytes, &Bytes)> = wanted.iter().collect();
    if backward {
        all.reverse();
    }
    let mut wanted = all.into_iter();
    let mut step = if backward {
        cursor.seek_to_last()
    } else {
        cursor.seek_to_first()
    };
    loop {
        if answers.take(&what, step)?.is_none() {
            return Ok(());
        }
        let found = cursor.valid().then(|| (cursor.key(), cursor.value()));
        let next = wanted.next().map(|(k, v)| (&k[..], &v[..]));
        if found != next {
            return Err(format!(
                "{}; {}",
                differs(&what, found.map(|p| p.0), next.map(|p| p.0)),
                differs("value", found.map(|p| p.1), next.map(|p| p.1))
            ));
        }
        if found.is_none() {
            return Ok(());
        }
        step = if backward {
            cursor.prev()
        } else {
            cursor.next()
        };
    }
}

fn read_keyspace(
    keyspace: &Keyspace,
    wanted: &Pairs,
    keys: &[Bytes],
    rng: &mut Rng,
    answers: &mut Answers,
) -> Result<(), String> {
    let name = keyspace.name().to_string();
    for key in keys {
        let what = format!("keyspace {name}: get {}", show(key));
        if let Some(found) = answers.take(&what, keyspace.get(key))? {
            let wanted = wanted.get(key).map(|v| &v[..]);
            if found.as_deref() != wanted {
                return Err(differs(&what, found.as_deref(), wanted));
            }
        }
    }
    let what = format!("keyspace {name}: multi_get");
    // Reads all keys at once, and then some of them. An error concerns the whole call.
    for _ in 0..3 {
        let from = rng.index(keys.len().max(1));
        let some = &keys[from..(from + 1 + rng.index(16)).min(keys.len())];
        for asked in [some, keys] {
            if let Some(found) = answers.take(&what, keyspace.multi_get(asked))? {
                for (key, found) in asked.iter().zip(&found) {
                    let wanted = wanted.get(key).map(|v| &v[..]);
                    if found.as_deref() != wanted {
                        return Err(differs(
                            &format!("{what} of {}", show(key)),
                            found.as_deref(),
                            wanted,
                        ));
                    }
                }
            }
        }
    }
    scan(keyspace, wanted, false, answers)?;
    scan(keyspace, wanted, true, answers)?;
    for _ in 0..6 {
        let Some(key) = (!keys.is_empty()).then(|| rng.pick(keys).clone()) else {
            break;
        };
        let what = format!("keyspace {name}: seek {}", show(&key));
        let cursor = keyspace.cursor(IterOptions::default());
        let Some(mut cursor) = answers.take(&what, cursor)? else {
            continue;
        };
        if answers.take(&what, cursor.seek(&key))?.is_some() {
            let found = cursor.valid().then(|| cursor.key());
            let next = wanted.range(key.clone()..).next();
            if found != next.map(|(k, _)| &k[..]) {
                return Err(differs(&what, found, next.map(|(k, _)| &k[..])));
            }
        }
    }
    Ok(())
}

/// Reads everything from an open store.
///
/// # Errors
/// A wrong answer, or an error that names no file.
pub(super) fn read_all(
    store: &Store,
    wanted: &Wanted,
    keys: &[Bytes],
    rng: &mut Rng,
) -> Result<Answers, String> {
    let mut answers = Answers::default();
    let names: Vec<&String> = wanted.keys().collect();
    let found = store.keyspaces();
    if found.iter().collect::<Vec<_>>() != names {
        return Err(format!("keyspaces {found:?}, expected {names:?}"));
    }
    for (name, (id, pairs)) in wanted {
        let keyspace = store.keyspace(name).map_err(|e| e.to_string())?;
        if keyspace.id() != *id {
            return Err(format!(
                "keyspace {name} has id {}, expected {id}",
                keyspace.id()
            ));
        }
        read_keyspace(&keyspace, pairs, keys, rng, &mut answers)?;
    }
    Ok(answers)
}

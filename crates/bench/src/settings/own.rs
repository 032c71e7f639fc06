//! Settings of the engines' own, by their own names.
//!
//! `engine.own.NAME` is for every engine, and `engine.own.ENGINE.NAME` for one of them: a comparison
//! can give one engine what the others do not have. A driver gets what is meant for it, without the
//! name of the engine ([`EngineSettings::for_engine`]).
//!
//! Invariant: a name with a dot begins with the name of an engine.
//!
//! Threading: plain data.

use std::collections::BTreeMap;

use serde::Deserialize;
use serde::de::{Deserializer, Error};

use super::registry::OWN_PREFIX;
use super::{EngineSettings, SettingError, nearest};

/// The names of all engines that have a driver, in this project or in the comparison.
pub const ENGINES: &[&str] = &[
    "siltstone",
    "null",
    "rocksdb",
    "leveldb",
    "lmdb",
    "fjall",
    "pebble",
];

/// Common settings of the engine that decide what its files look like.
const SHAPING: [&str; 3] = [
    "engine.memtable_bytes",
    "engine.bloom_bits",
    "engine.compression",
];

/// Words in the names of settings that only say how files are read or what work is given to run: a
/// store may be read with other ones than those with which it was filled.
const NOT_SHAPING: [&str; 11] = [
    "cache",
    "direct",
    "map",
    "open_files",
    "OpenFiles",
    "pin_",
    "read",
    "tasks",
    "threads",
    "Cache",
    "L6Filters",
];

impl EngineSettings {
    /// What the driver of this engine gets: its own settings take the place of common ones of the
    /// same name, and those of other engines are left out.
    pub fn for_engine(&self, engine: &str) -> EngineSettings {
        let is_common = |name: &&String| !name.contains('.');
        let common = self.own.iter().filter(|(name, _)| is_common(name));
        let mut own: BTreeMap<String, String> = common
            .map(|(name, value)| (name.clone(), value.clone()))
            .collect();
        own.extend(self.own.iter().filter_map(|(name, value)| {
            let (of, name) = name.split_once('.')?;
            (of == engine).then(|| (name.to_string(), value.clone()))
        }));
        EngineSettings {
            own,
            ..self.clone()
        }
    }

    /// The settings that decide what the files of this engine look like, by their names and with
    /// their values. Sizes of caches, memory maps, numbers of threads and the like do not.
    pub fn shape(&self, engine: &str) -> BTreeMap<String, String> {
        let settings = super::Settings {
            engine: self.for_engine(engine),
            ..super::Settings::default()
        };
        let common = SHAPING.map(|name| (name.into(), settings.get(name).unwrap_or_default()));
        let own = settings.engine.own.iter();
        let own = own.filter(|(name, _)| !NOT_SHAPING.iter().any(|word| name.contains(word)));
        common
            .into_iter()
            .chain(own.map(|(name, value)| (format!("{OWN_PREFIX}{name}"), value.clone())))
            .collect()
    }
}

/// The name of the first setting in which two shapes differ, with both values. A setting that was not
/// given has the value `default`.
pub fn differing(
    own: &BTreeMap<String, String>,
    other: &BTreeMap<String, String>,
) -> Option<(String, String, String)> {
    let value = |of: &BTreeMap<String, String>, name: &str| {
        of.get(name).cloned().unwrap_or_else(|| "default".into())
    };
    own.keys()
        .chain(other.keys())
        .map(|name| (name.clone(), value(own, name), value(other, name)))
        .find(|(_, own, other)| own != other)
}

/// Refuses the name of a setting, without `engine.own.`, if it begins with an engine that does not
/// exist.
pub(super) fn check_name(name: &str) -> Result<(), SettingError> {
    match name.split_once('.') {
        Some((engine, _)) if !ENGINES.contains(&engine) => Err(SettingError::Engine {
            name: format!("{OWN_PREFIX}{name}"),
            engine: engine.into(),
            nearest: nearest(engine, ENGINES.iter().copied()),
        }),
        _ => Ok(()),
    }
}

/// A value in a file, which may be written without quotation marks.
#[derive(Deserialize)]
#[serde(untagged)]
enum Plain {
    Text(String),
    Switch(bool),
    Whole(i64),
    Number(f64),
}

impl Plain {
    fn text(self) -> String {
        match self {
            Plain::Text(text) => text,
            Plain::Switch(on) => on.to_string(),
            Plain::Whole(number) => number.to_string(),
            Plain::Number(number) => number.to_string(),
        }
    }
}

/// A value, or the settings of one engine as a table.
#[derive(Deserialize)]
#[serde(untagged)]
enum Given {
    Value(Plain),
    Engine(BTreeMap<String, Plain>),
}

/// Reads settings of the engines' own. Those of one engine may be a table of their own.
pub(super) fn deserialize<'de, D>(deserializer: D) -> Result<BTreeMap<String, String>, D::Error>
where
    D: Deserializer<'de>,
{
    let mut own = BTreeMap::new();
    for (name, given) in BTreeMap::<String, Given>::deserialize(deserializer)? {
        match given {
            Given::Value(value) => {
                own.insert(name, value.text());
            }
            Given::Engine(values) => own.extend(
                values
                    .into_iter()
                    .map(|(below, value)| (format!("{name}.{below}"), value.text())),
            ),
        }
    }
    own.keys()
        .try_for_each(|name| check_name(name))
        .map_err(D::Error::custom)?;
    Ok(own)
}

#[cfg(test)]
mod tests;

//! Records in the order of the page: groups of runs that can be compared.
//!
//! A group has one workload with equal settings. The seeds and the engines' own settings may
//! differ.
//! An entrant is an engine with its version, its commit and its own settings; its records in a
//! group are rounds. An entrant has the same name and style on the whole page.
//!
//! Invariant: every group has a run, and every run a round.
//!
//! Threading: plain data.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::Value;

use crate::draw::number::{DASH, count};
use crate::record::Record;
use crate::settings::{Promise, size_text};

/// The rounds of one entrant in one group.
#[derive(Debug)]
pub struct Runs<'a> {
    /// The entrant's name.
    pub name: String,
    /// The style of its lines.
    pub look: usize,
    /// Its records, in the order in which they were given.
    pub rounds: Vec<&'a Record>,
}

/// Runs that can be compared.
#[derive(Debug)]
pub struct Group<'a> {
    /// Unique on the page.
    pub id: String,
    /// The workload, and the settings in which the page's groups of this workload differ.
    pub title: String,
    /// The common settings.
    pub settings: BTreeMap<String, String>,
    /// Its entrants.
    pub runs: Vec<Runs<'a>>,
}

/// The median of a figure over the rounds, and its range.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Spread {
    /// The lowest figure.
    pub low: f64,
    /// The median.
    pub median: f64,
    /// The highest figure.
    pub high: f64,
}

impl<'a> Runs<'a> {
    /// The round that charts show: the median by throughput, the slower one of two in the middle.
    pub fn typical(&self) -> &'a Record {
        let mut rounds = self.rounds.clone();
        let rate = |record: &Record| record.ops_per_s.unwrap_or(0.0);
        rounds.sort_by(|a, b| rate(a).total_cmp(&rate(b)));
        rounds[(rounds.len() - 1) / 2]
    }

    /// The number of the typical round, from 1.
    pub fn typical_number(&self) -> usize {
        let typical = self.typical();
        let place = self.rounds.iter().position(|r| std::ptr::eq(*r, typical));
        place.unwrap_or(0) + 1
    }

    /// A figure over all rounds that have it.
    pub fn spread(&self, figure: impl Fn(&Record) -> Option<f64>) -> Option<Spread> {
        let figures = self.rounds.iter().filter_map(|record| figure(record));
        let mut figures: Vec<f64> = figures.filter(|figure| figure.is_finite()).collect();
        figures.sort_by(f64::total_cmp);
        let middle = figures.len() / 2;
        let median = match figures.len() % 2 {
            0 => (figures.get(middle.wrapping_sub(1))? + figures[middle]) / 2.0,
            _ => figures[middle],
        };
        Some(Spread {
            low: *figures.first()?,
            median,
            high: *figures.last()?,
        })
    }
}

impl Group<'_> {
    /// The strongest promise of its runs.
    pub fn strongest(&self) -> Option<Promise> {
        let rounds = self.runs.iter().flat_map(|runs| &runs.rounds);
        rounds.filter_map(|record| record.promise).max()
    }

    /// What is to be said of a run's promise beside its figures: only that it is weaker.
    pub fn weaker_promise(&self, runs: &Runs<'_>) -> Option<String> {
        let strongest = self.strongest()?;
        match runs.typical().promise {
            Some(promise) if promise == strongest => None,
            Some(promise) => Some(format!("weaker promise: {}", promise_text(promise))),
            None => Some("its promise is not known".to_string()),
        }
    }
}

/// What an acknowledged write survives.
pub fn promise_text(promise: Promise) -> &'static str {
    match promise {
        Promise::Memory => "writes may be lost if the process is killed",
        Promise::Fragile => {
            "writes survive the end of the process, but a loss of power may damage the store"
        }
        Promise::Process => "writes survive the end of the process, but not a loss of power",
        Promise::Power => "writes survive a loss of power",
    }
}

/// What identifies an entrant: its name first, then what tells it from others of this name.
type Identity = [String; 4];

fn identity(record: &Record) -> Identity {
    let own = flat(
        record
            .settings
            .pointer("/engine/own")
            .unwrap_or(&Value::Null),
    );
    // What is for another engine only is not its own.
    let of_engine = |name: &'_ str| match name.split_once('.') {
        Some((engine, name)) if engine == record.engine => Some(name.to_string()),
        Some(_) => None,
        None => Some(name.to_string()),
    };
    let own: Vec<String> = own
        .iter()
        .filter(|(name, _)| !name.is_empty())
        .filter_map(|(name, value)| Some(format!("{} = {value}", of_engine(name)?)))
        .collect();
    let commit = record.build.commit.as_deref().unwrap_or_default();
    [
        record.engine.clone(),
        record.engine_version.clone(),
        commit.to_string(),
        own.join(", "),
    ]
}

/// The shortest names that differ, by identity.
fn names(identities: &[Identity]) -> Vec<String> {
    let name = |identity: &Identity| {
        let mut alike: Vec<&Identity> = identities.iter().collect();
        let mut name = identity[0].clone();
        for part in 0..identity.len() {
            let values: BTreeSet<&str> = alike.iter().map(|other| &other[part][..]).collect();
            if part > 0 && values.len() > 1 {
                let text = match &identity[part][..] {
                    "" => "by default",
                    text if part == 2 => first_characters(text, 8),
                    text => text,
                };
                name.push_str(&format!(" {text}"));
            }
            alike.retain(|other| other[part] == identity[part]);
        }
        name
    };
    identities.iter().map(name).collect()
}

/// The beginning of a text.
fn first_characters(text: &str, count: usize) -> &str {
    let end = text.char_indices().nth(count).map(|(end, _)| end);
    &text[..end.unwrap_or(text.len())]
}

/// The settings that runs of one group share: their names and their texts.
fn shared_settings(record: &Record) -> BTreeMap<String, String> {
    let mut settings = flat(&record.settings);
    settings.retain(|name, _| !is_seed(name) && !name.starts_with("engine.own"));
    settings
}

/// Whether a setting is a seed, which may differ from round to round.
fn is_seed(name: &str) -> bool {
    name == "seed" || name == "operation_seed"
}

/// All groups, in the order of their first records.
pub fn groups(records: &[Record]) -> Vec<Group<'_>> {
    let mut identities: Vec<Identity> = Vec::new();
    let mut groups: Vec<(&str, Group<'_>)> = Vec::new();
    for record in records {
        let identity = identity(record);
        let look = match identities.iter().position(|known| *known == identity) {
            Some(look) => look,
            None => {
                identities.push(identity);
                identities.len() - 1
            }
        };
        let settings = shared_settings(record);
        let is_same = |(workload, group): &(&str, Group<'_>)| {
            *workload == record.workload && group.settings == settings
        };
        let position = groups.iter().position(is_same).unwrap_or_else(|| {
            let group = Group {
                id: format!("w{}", groups.len() + 1),
                title: String::new(),
                settings,
                runs: Vec::new(),
            };
            groups.push((&record.workload, group));
            groups.len() - 1
        });
        add(&mut groups[position].1, look, record);
    }
    let names = names(&identities);
    let titles: Vec<String> = (0..groups.len()).map(|n| title(&groups, n)).collect();
    let finished = groups.into_iter().zip(titles);
    finished
        .map(|((_, group), title)| finish(group, title, &names))
        .collect()
}

fn add<'a>(group: &mut Group<'a>, look: usize, record: &'a Record) {
    if let Some(runs) = group.runs.iter_mut().find(|runs| runs.look == look) {
        runs.rounds.push(record);
        return;
    }
    group.runs.push(Runs {
        name: String::new(),
        look,
        rounds: vec![record],
    });
}

fn finish<'a>(mut group: Group<'a>, title: String, names: &[String]) -> Group<'a> {
    for runs in &mut group.runs {
        runs.name = names.get(runs.look).cloned().unwrap_or_default();
    }
    group.runs.sort_by_key(|runs| runs.look);
    Group { title, ..group }
}

/// The workload, with the settings in which groups of this workload differ.
fn title(groups: &[(&str, Group<'_>)], position: usize) -> String {
    let (workload, group) = &groups[position];
    let alike = groups.iter().filter(|(other, _)| other == workload);
    let alike: Vec<&BTreeMap<String, String>> = alike.map(|(_, group)| &group.settings).collect();
    let names: BTreeSet<&String> = alike.iter().flat_map(|settings| settings.keys()).collect();
    let mut parts = Vec::new();
    for name in names {
        if alike
            .iter()
            .any(|other| other.get(name) != group.settings.get(name))
        {
            let value = group.settings.get(name).map_or(DASH, |value| value);
            parts.push(format!("{} {value}", spaced(name)));
        }
    }
    match parts.is_empty() {
        true => workload.to_string(),
        false => format!("{workload}, {}", parts.join(", ")),
    }
}

/// The name of a setting as it stands in sentences.
pub fn spaced(name: &str) -> String {
    name.trim_start_matches("engine.").replace('_', " ")
}

/// All values inside of a JSON value with their paths. Sizes have units.
pub fn flat(value: &Value) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    flatten(value, String::new(), &mut found);
    found
}

fn flatten(value: &Value, path: String, found: &mut BTreeMap<String, String>) {
    let text = match value {
        Value::Object(inner) => {
            for (name, value) in inner {
                let path = match path.is_empty() {
                    true => name.clone(),
                    false => format!("{path}.{name}"),
                };
                flatten(value, path, found);
            }
            return;
        }
        Value::Null => DASH.to_string(),
        Value::String(text) => text.clone(),
        Value::Bool(true) => "yes".to_string(),
        Value::Bool(false) => "no".to_string(),
        Value::Number(number) => match number.as_u64() {
            Some(n) if path.ends_with("_bytes") => size_text(n),
            Some(n) if !is_seed(&path) => count(n),
            _ => number.to_string(),
        },
        Value::Array(_) => value.to_string(),
    };
    found.insert(path, text);
}

#[cfg(test)]
mod tests;

//! The types of the registry: what is known about a setting, and the texts that are made from it.

use super::value::{Value, bytes_text, size_units};
use super::{KeyspaceOptions, Options, SETTINGS};
use crate::types::error::{Error, Result};

/// What a setting applies to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// The whole store.
    Store,
    /// A keyspace. The store's value is the default of all keyspaces.
    Keyspace,
}

/// When a setting may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// At each open, and while the store is open.
    WhileOpen,
    /// Only at an open; the text says why.
    AtOpen(&'static str),
}

/// The values that a setting may have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// The smallest number.
    pub min: u64,
    /// The largest number.
    pub max: u64,
    /// Whether numbers must be powers of two.
    pub power_of_two: bool,
    /// The values in words, for settings that are not just numbers.
    pub words: Option<&'static str>,
}

const ANY: Limits = Limits {
    min: 0,
    max: u64::MAX,
    power_of_two: false,
    words: None,
};

pub(super) const fn within(min: u64, max: u64) -> Limits {
    Limits { min, max, ..ANY }
}

pub(super) const fn within_power_of_two(min: u64, max: u64) -> Limits {
    Limits {
        power_of_two: true,
        ..within(min, max)
    }
}

pub(super) const fn choice(words: &'static str) -> Limits {
    Limits {
        words: Some(words),
        ..ANY
    }
}

pub(super) const fn switch() -> Limits {
    choice("true or false")
}

pub(super) const fn times(min: u64, max: u64, words: &'static str) -> Limits {
    Limits {
        words: Some(words),
        ..within(min, max)
    }
}

/// Access to a keyspace's own value.
pub(super) struct KeyspaceAccess {
    pub(super) tag: u16,
    pub(super) get: fn(&KeyspaceOptions) -> Option<Value>,
    pub(super) set: fn(&mut KeyspaceOptions, &Value) -> bool,
    pub(super) clear: fn(&mut KeyspaceOptions),
    pub(super) numbers: fn(&KeyspaceOptions) -> Vec<u64>,
    pub(super) encode: fn(&KeyspaceOptions) -> Option<Vec<u8>>,
    pub(super) decode: fn(&mut KeyspaceOptions, &[u8]) -> bool,
}

/// One line of the registry.
pub struct Setting {
    /// The name, in `Options`, in TOML and in error messages.
    pub name: &'static str,
    /// The unit of its numbers, or the kind of its values.
    pub unit: &'static str,
    /// What the setting applies to.
    pub scope: Scope,
    /// The values that it may have.
    pub limits: Limits,
    /// The sentence of the field's rustdoc about range and default. A test compares it with these.
    #[cfg(test)]
    pub(super) documented: &'static str,
    pub(super) meaning: &'static str,
    /// When the setting may change.
    pub change: Change,
    pub(super) get: fn(&Options) -> Value,
    pub(super) set: fn(&mut Options, &Value) -> bool,
    pub(super) numbers: fn(&Options) -> Vec<u64>,
    pub(super) keyspace: Option<KeyspaceAccess>,
}

/// All settings: first those of the store, then those of keyspaces.
pub fn settings() -> &'static [Setting] {
    SETTINGS
}

/// The setting with this name.
///
/// # Errors
/// `InvalidArgument` with the nearest name that exists.
pub fn setting(name: &str) -> Result<&'static Setting> {
    SETTINGS
        .iter()
        .find(|s| s.name == name)
        .ok_or_else(|| unknown(name, SETTINGS.iter().map(|s| s.name)))
}

/// The error for a number that is negative or has a fraction, if the setting's values are numbers.
pub(super) fn refuse_number(name: &str, found: &str) -> Option<Error> {
    let setting = setting(name).ok()?;
    matches!(setting.default_value(), Value::Number(_))
        .then(|| setting.refuse(&Value::from(found)).found(found))
}

/// The error for a name that does not exist, with the nearest one.
pub(super) fn unknown<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    let nearest = known
        .map(|k| (distance(name, k), k))
        .min()
        .filter(|(d, k)| *d <= k.len() / 2);
    let error = Error::invalid_argument(format!("there is no option `{name}`"));
    match nearest {
        // A common mistake in the name of a keyspace's table.
        _ if name == "keyspace" => {
            error.advice("a table `[keyspaces.NAME]` sets the options of one keyspace")
        }
        Some((_, nearest)) => error.advice(format!("did you mean `{nearest}`?")),
        None => error.advice("`silt options` lists all of them"),
    }
}

/// The number of letters to insert, delete or replace to get from one name to the other.
fn distance(a: &str, b: &str) -> usize {
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.bytes().enumerate() {
        let mut before = row[0];
        row[0] = i + 1;
        for (j, y) in b.bytes().enumerate() {
            let replaced = before + usize::from(x != y);
            before = row[j + 1];
            row[j + 1] = replaced.min(row[j] + 1).min(before + 1);
        }
    }
    row[b.len()]
}

/// Whether the text is a whole number of any size.
fn is_whole(text: &str) -> bool {
    let digits = text.strip_prefix('-').unwrap_or(text);
    !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit())
}

impl Setting {
    /// What the setting means, in a few sentences.
    pub fn meaning(&self) -> &'static str {
        self.meaning.trim()
    }

    /// The default.
    pub fn default_value(&self) -> Value {
        (self.get)(&Options::default())
    }

    /// The value in these options.
    pub fn value(&self, options: &Options) -> Value {
        (self.get)(options)
    }

    /// The value that was set for a keyspace; `None` if none was, or if keyspaces do not have this
    /// setting.
    pub fn keyspace_value(&self, options: &KeyspaceOptions) -> Option<Value> {
        (self.keyspace.as_ref()?.get)(options)
    }

    /// A value as it is written in TOML. Sizes have a unit.
    pub fn show(&self, value: &Value) -> String {
        match value {
            Value::Number(bytes) if self.unit == "bytes" && bytes.is_multiple_of(1 << 10) => {
                Value::Text(bytes_text(*bytes)).to_string()
            }
            value => value.to_string(),
        }
    }

    /// The values that the setting may have, in words.
    pub fn range(&self) -> String {
        let number = |n: u64| match self.unit {
            "bytes" => bytes_text(n),
            unit => format!("{n} {unit}"),
        };
        match (self.limits.words, self.limits.power_of_two) {
            (Some(words), _) => words.to_string(),
            (None, true) => format!(
                "a power of two, {} to {}",
                number(self.limits.min),
                number(self.limits.max)
            ),
            (None, false) if self.unit == "bytes" => {
                format!("{} to {}", number(self.limits.min), number(self.limits.max))
            }
            (None, false) => format!("{} to {}", self.limits.min, number(self.limits.max)),
        }
    }

    /// The setting in a few sentences: its meaning, unit, default and range, and when it may
    /// change.
    pub fn description(&self) -> String {
        let change = match self.change {
            Change::WhileOpen => "Can change while the store is open.".to_string(),
            Change::AtOpen(why) => format!("Fixed while the store is open: {why}."),
        };
        format!(
            "{} Unit: {}. Default: {}. Range: {}. {change}",
            self.meaning(),
            self.unit,
            self.show(&self.default_value()),
            self.range(),
        )
    }

    pub(super) fn refuse(&self, found: &Value) -> Error {
        let advice = match (self.unit, found) {
            // A whole number is out of range; another text has the wrong form.
            ("bytes", Value::Text(text)) if text.starts_with(|c: char| c.is_ascii_digit()) => {
                format!(
                    "write a whole number of bytes, or one with a unit: {}",
                    size_units()
                )
            }
            (unit, Value::Text(text)) if self.limits.words.is_none() && !is_whole(text) => {
                format!("write a whole number of {unit}, without a unit")
            }
            _ => format!("set {} to a value within these limits", self.name),
        };
        Error::invalid_argument(format!("the value of option {} is not valid", self.name))
            .expected(self.range())
            .found(self.show(found))
            .advice(advice)
    }

    pub(super) fn check_numbers(&self, numbers: &[u64]) -> Result<()> {
        for &number in numbers {
            if !(self.limits.min..=self.limits.max).contains(&number) {
                return Err(self.refuse(&Value::Number(number)));
            }
            if self.limits.power_of_two && !number.is_power_of_two() {
                let above = number.next_power_of_two();
                let advice = format!("use {} or {}", bytes_text(above / 2), bytes_text(above));
                return Err(self.refuse(&Value::Number(number)).advice(advice));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn distances() {
        for (a, b, d) in [
            ("", "", 0),
            ("abc", "abd", 1),
            ("abc", "bc", 1),
            ("a", "xyz", 3),
        ] {
            assert_eq!((distance(a, b), distance(b, a)), (d, d), "{a} {b}");
        }
    }

    #[test]
    fn the_error_for_an_unknown_name_suggests_the_nearest() {
        let advice = |name| {
            setting(name)
                .err()
                .unwrap()
                .advice_text()
                .unwrap()
                .to_string()
        };
        assert!(advice("memtable_byte").contains("memtable_bytes"));
        assert!(advice("l0_stop").contains("l0_stop_count"));
        assert!(!advice("zzz").contains("did you mean"));
    }
}

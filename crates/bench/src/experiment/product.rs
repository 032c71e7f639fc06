//! The settings of runs: what all share and what one changes. Each combination of the values of
//! lists is a run.

use std::ops::Range;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::error::{ExperimentError, did_you_mean};
use super::section::{At, Section};
use crate::settings::{OWN_PREFIX, Setting, SettingError, Settings, all_settings, nearest};

/// The most runs of one `[[run]]`.
const RUNS_MAX: usize = 256;

type Read<T> = Result<T, ExperimentError>;

/// A setting and the values that it takes one after the other.
#[derive(Debug, Clone)]
pub(crate) struct Assignment {
    pub name: At<String>,
    pub values: Vec<At<String>>,
}

/// The settings of a table, apart from the keys in `others`.
pub(crate) fn assignments(section: &Section<'_>, others: &[&str]) -> Read<Vec<Assignment>> {
    let mut found = Vec::new();
    collect(section, section.table, "", others, &mut found)?;
    found.sort_by_key(|assignment: &Assignment| assignment.name.1.start);
    Ok(found)
}

fn collect(
    section: &Section<'_>,
    table: &DeTable<'_>,
    prefix: &str,
    others: &[&str],
    found: &mut Vec<Assignment>,
) -> Read<()> {
    for (key, value) in table {
        let name = format!("{prefix}{}", key.get_ref());
        let is_group = ["engine", "topology", "gpu"].contains(&name.as_str())
            || format!("{name}.").starts_with(OWN_PREFIX);
        match value.get_ref() {
            _ if prefix.is_empty() && others.contains(&name.as_str()) => {}
            DeValue::Table(inner) if is_group => {
                collect(section, inner, &format!("{name}."), others, found)?;
            }
            _ => {
                known(section, key, &name, others)?;
                let values = values(section, &name, value)?;
                let name = (name, key.span());
                found.push(Assignment { name, values });
            }
        }
    }
    Ok(())
}

/// Refuses a name that is no setting.
fn known(
    section: &Section<'_>,
    key: &Spanned<DeString<'_>>,
    name: &str,
    others: &[&str],
) -> Read<()> {
    let found = match name.starts_with(OWN_PREFIX) {
        true => Settings::default().set(name, ""),
        false => Setting::named(name).map(drop),
    };
    let Err(error) = found else {
        return Ok(());
    };
    let other = nearest(name, others.iter().copied());
    let message = match error {
        SettingError::Unknown { nearest: None, .. } if other.is_some() => {
            format!(
                "unknown key `{name}` in {}{}",
                section.name,
                did_you_mean(other)
            )
        }
        error => error.to_string(),
    };
    Err(section.error(key.span(), message))
}

/// The values of a setting: one, or those of a list.
fn values(
    section: &Section<'_>,
    name: &str,
    value: &Spanned<DeValue<'_>>,
) -> Read<Vec<At<String>>> {
    let Some(list) = value.get_ref().as_array() else {
        return Ok(vec![(text(section, name, value)?, value.span())]);
    };
    if list.is_empty() {
        let message = format!("`{name}` is an empty list, expected at least one value");
        return Err(section.error(value.span(), message));
    }
    let one = |item: &Spanned<DeValue<'_>>| Ok((text(section, name, item)?, item.span()));
    list.iter().map(one).collect()
}

/// A value of TOML as the text that settings are read from.
fn text(section: &Section<'_>, name: &str, value: &Spanned<DeValue<'_>>) -> Read<String> {
    match value.get_ref() {
        DeValue::String(text) => Ok(text.to_string()),
        DeValue::Integer(integer) => Ok(integer.to_string()),
        DeValue::Float(float) => Ok(float.as_str().to_string()),
        DeValue::Boolean(on) => Ok(on.to_string()),
        other => {
            let message = format!(
                "`{name}` is of type {}, expected a text, a number or true or false",
                other.type_str()
            );
            Err(section.error(value.span(), message))
        }
    }
}

/// The settings of one run, and where each of them stands in the file.
#[derive(Debug, Clone)]
pub(crate) struct Assigned {
    pub settings: Settings,
    positions: Vec<At<String>>,
    /// The settings that a list gave.
    pub listed: Vec<String>,
}

impl Assigned {
    /// Where the value of a setting stands.
    pub fn position(&self, name: &str) -> Option<Range<usize>> {
        let found = self.positions.iter().find(|(n, _)| n == name);
        found.map(|(_, span)| span.clone())
    }
}

/// All combinations of the values. `own` replaces what `base` says; the last list changes first.
pub(crate) fn product(
    section: &Section<'_>,
    base: &[Assignment],
    own: &[Assignment],
) -> Read<Vec<Assigned>> {
    let is_replaced = |a: &&Assignment| own.iter().all(|o| o.name.0 != a.name.0);
    let all: Vec<&Assignment> = base.iter().filter(is_replaced).chain(own).collect();
    let count: usize = all
        .iter()
        .map(|a| a.values.len())
        .fold(1, usize::saturating_mul);
    if count > RUNS_MAX {
        let message = format!("the lists make {count} runs, expected at most {RUNS_MAX}");
        return Err(section.error(section.span.clone(), message));
    }
    (0..count)
        .map(|index| combination(section, &all, index))
        .collect()
}

fn combination(section: &Section<'_>, all: &[&Assignment], index: usize) -> Read<Assigned> {
    let mut assigned = Assigned {
        settings: Settings::default(),
        positions: Vec::new(),
        listed: Vec::new(),
    };
    let mut rest = index;
    for assignment in all.iter().rev() {
        let (text, span) = &assignment.values[rest % assignment.values.len()];
        rest /= assignment.values.len();
        let name = &assignment.name.0;
        let set = assigned.settings.set(name, text);
        set.map_err(|error| section.error(span.clone(), error.to_string()))?;
        if assignment.values.len() > 1 {
            assigned.listed.push(name.clone());
        }
        assigned.positions.push((name.clone(), span.clone()));
    }
    assigned.listed.reverse();
    Ok(assigned)
}

/// A text in which `{setting}` stands for the value of that setting.
pub(crate) fn fill_in(
    section: &Section<'_>,
    template: &At<String>,
    settings: &Settings,
) -> Read<String> {
    let (mut rest, span) = (template.0.as_str(), &template.1);
    let mut out = String::new();
    while let Some((before, after)) = rest.split_once('{') {
        let Some((name, behind)) = after.split_once('}') else {
            let message = format!("`{}` has a `{{` without a `}}`", template.0);
            return Err(section.error(span.clone(), message));
        };
        let value = settings.get(name).map_err(|_| {
            let nearest = nearest(name, all_settings().iter().map(|setting| setting.name));
            let message = format!(
                "`{{{name}}}` in `{}` is no setting{}",
                template.0,
                did_you_mean(nearest)
            );
            section.error(span.clone(), message)
        })?;
        out.push_str(before);
        out.push_str(&value);
        rest = behind;
    }
    out.push_str(rest);
    Ok(out)
}

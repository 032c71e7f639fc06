//! The value in force of each setting, and its origin.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Value as Json, json};
use siltstone::{ErrorKind, KeyspaceOptions, Options, Scope, Setting, Storages, Value, settings};

use super::{OPTIONS_FILE, outln};
use crate::commands::{OptionsFile, is_own, no_keyspace, open_to_read_with, place};
use crate::failure::Failure;
use crate::output::{Out, one_line};

/// The width at which comments are wrapped.
const WIDTH: usize = 98;

/// The origin of a value.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Origin {
    Default,
    /// The top level of the file.
    File,
    /// The store keeps it for a keyspace.
    Keyspace,
    /// The file's table for a keyspace, which the store adopts when it is next opened for writing.
    FileForKeyspace,
    /// A default that is adjusted to what is set for the keyspace.
    GivesWay,
    /// It was chosen when the store was created.
    Created,
    /// A program has the store open with another value than the file's.
    Process(u32),
}

impl Origin {
    fn word(&self) -> &'static str {
        match self {
            Origin::Default => "default",
            Origin::File => "file",
            Origin::Keyspace => "keyspace",
            Origin::FileForKeyspace => "file for keyspace",
            Origin::GivesWay => "gives way",
            Origin::Created => "store",
            Origin::Process(_) => "process",
        }
    }

    fn text(&self) -> String {
        match self {
            Origin::Default => "default".to_string(),
            Origin::File => OPTIONS_FILE.to_string(),
            Origin::Keyspace => "set for the keyspace, kept by the store".to_string(),
            Origin::FileForKeyspace => {
                format!("{OPTIONS_FILE}, from when the store is next opened for writing")
            }
            Origin::GivesWay => "gives way to what is set for the keyspace".to_string(),
            Origin::Created => "the store was created so".to_string(),
            Origin::Process(pid) => {
                format!("process {pid}, which has the store open; {OPTIONS_FILE} says otherwise")
            }
        }
    }
}

/// A setting with its value.
struct Row {
    setting: &'static Setting,
    value: Value,
    source: Origin,
}

impl Row {
    /// The setting as a line of TOML, with its origin as a comment.
    fn line(&self) -> String {
        let value = self.setting.show(&self.value);
        format!("{} = {value}  # {}", self.setting.name, self.source.text())
    }

    fn json(&self) -> Json {
        let default = to_json(&self.setting.default_value());
        json!({
            "name": self.setting.name, "value": to_json(&self.value), "default": default,
            "unit": self.setting.unit, "source": self.source.word(),
        })
    }
}

fn to_json(value: &Value) -> Json {
    match value {
        Value::Switch(on) => (*on).into(),
        Value::Number(number) => (*number).into(),
        Value::Text(text) => text.as_str().into(),
        Value::List(all) => all.iter().map(to_json).collect(),
    }
}

/// The settings in force in a store, or in one of its keyspaces.
pub struct InForce {
    /// The keyspace, if it was given.
    keyspace: Option<String>,
    rows: Vec<Row>,
    /// The own settings of single keyspaces.
    own: Vec<(String, Vec<Row>)>,
    /// Notes for the user.
    notes: Vec<String>,
}

/// What was read from a store.
struct Stored {
    /// The keyspaces, and what the store keeps for each.
    keyspaces: Vec<(String, KeyspaceOptions)>,
}

impl InForce {
    /// Reads the store in a folder; `file` is the folder's file of options, before or after a
    /// change.
    pub fn find(
        path: &Path,
        file: &OptionsFile,
        keyspace: Option<&str>,
    ) -> Result<InForce, Failure> {
        let mut notes = Vec::new();
        let stored = match open_to_read_with(path, &file.options) {
            Ok(store) => {
                let names = match keyspace {
                    Some(name) => vec![super::named(&store, name)?.name().to_string()],
                    None => {
                        let names = store.keyspaces().into_iter();
                        names.filter(|name| !is_own(name)).collect()
                    }
                };
                let keyspaces = names
                    .into_iter()
                    .map(|name| Ok((name.clone(), store.keyspace(&name)?.own_options())))
                    .collect::<siltstone::Result<_>>()?;
                store.close()?;
                Some(Stored { keyspaces })
            }
            Err(Failure::Store(error)) if error.kind() == ErrorKind::NotFound => {
                if let Some(name) = keyspace {
                    return Err(no_keyspace(name, &[]).into());
                }
                None
            }
            Err(Failure::Store(error)) if error.kind() == ErrorKind::Locked => {
                if keyspace.is_some() {
                    return Err(error
                        .advice(
                            "what the store keeps for a keyspace can be read when no other process \
                             has it open for writing",
                        )
                        .into());
                }
                notes.push(
                    "another process has the store open for writing: settings of single keyspaces \
                     are not shown, and changes of the file count from its next open on"
                        .to_string(),
                );
                None
            }
            Err(failure) => return Err(failure),
        };
        let names = file.names();
        let mut rows: Vec<Row> = settings()
            .iter()
            .map(|setting| Row {
                setting,
                value: setting.value(&file.options),
                source: match names.contains(&setting.name) {
                    true => Origin::File,
                    false => Origin::Default,
                },
            })
            .collect();
        if let Some(stored) = &stored {
            created(path, &mut rows);
            let absent = file.options.keyspaces.keys();
            let is_there = |name: &&String| stored.keyspaces.iter().any(|(n, _)| n == *name);
            if keyspace.is_none() {
                let absent = absent.filter(|name| !is_there(name) && !is_own(name));
                notes.extend(absent.map(|name| {
                    let name = one_line(name);
                    format!(
                        "{OPTIONS_FILE} has settings for `{name}`, which is not a keyspace of the \
                         store: they have no effect until there is one of this name"
                    )
                }));
            }
        } else if !notes.is_empty() {
            of_process(path, &mut rows);
        }
        let of_keyspace = |name: &str, kept: &KeyspaceOptions| {
            of_keyspace(
                &file.options,
                &names,
                file.options.keyspaces.get(name),
                kept,
            )
        };
        let stored = stored.map_or(Vec::new(), |s| s.keyspaces);
        let mut own = Vec::new();
        match keyspace {
            Some(name) => {
                let kept = stored.iter().find(|(n, _)| n == name).map(|(_, kept)| kept);
                rows = of_keyspace(name, kept.unwrap_or(&KeyspaceOptions::default()));
            }
            None => {
                for (name, kept) in &stored {
                    let mut rows = of_keyspace(name, kept);
                    rows.retain(|row| !matches!(row.source, Origin::Default | Origin::File));
                    if !rows.is_empty() {
                        own.push((name.clone(), rows));
                    }
                }
            }
        }
        Ok(InForce {
            keyspace: keyspace.map(String::from),
            rows,
            own,
            notes,
        })
    }

    /// Keeps only the settings with these names.
    pub fn only(mut self, names: &[&str]) -> InForce {
        self.rows.retain(|row| names.contains(&row.setting.name));
        for (_, rows) in &mut self.own {
            rows.retain(|row| names.contains(&row.setting.name));
        }
        self.own.retain(|(_, rows)| !rows.is_empty());
        self
    }

    /// Prints everything: as TOML, each setting with its description, or as JSON.
    pub fn print(&self, out: &mut Out, json: bool) -> Result<(), Failure> {
        if json {
            return outln!(out, "{}", self.json());
        }
        if self.keyspace.is_some() {
            return self.print_brief(out, false);
        }
        // Notes come before the many settings, so that users see them.
        self.print_notes(out)?;
        let mut scope = None;
        for row in &self.rows {
            if scope != Some(row.setting.scope) {
                scope = Some(row.setting.scope);
                match row.setting.scope {
                    Scope::Store => outln!(out, "# The store.")?,
                    Scope::Keyspace => outln!(
                        out,
                        "\n# Keyspaces: the defaults, which hold where a keyspace sets nothing."
                    )?,
                }
            }
            outln!(out)?;
            for line in broken(&row.setting.description()) {
                outln!(out, "# {line}")?;
            }
            outln!(out, "{}", row.line())?;
        }
        if !self.own.is_empty() {
            outln!(out)?;
        }
        self.print_own(out)
    }

    /// Prints each setting on a line.
    pub fn print_brief(&self, out: &mut Out, json: bool) -> Result<(), Failure> {
        if json {
            return outln!(out, "{}", self.json());
        }
        for row in &self.rows {
            outln!(out, "{}", row.line())?;
        }
        self.print_own(out)?;
        self.print_notes(out)
    }

    fn print_own(&self, out: &mut Out) -> Result<(), Failure> {
        for (name, rows) in &self.own {
            outln!(out, "[keyspaces.{}]", Value::from(&name[..]))?;
            for row in rows {
                outln!(out, "{}", row.line())?;
            }
        }
        Ok(())
    }

    fn print_notes(&self, out: &mut Out) -> Result<(), Failure> {
        for note in &self.notes {
            for line in broken(note) {
                outln!(out, "# {line}")?;
            }
        }
        Ok(())
    }

    fn json(&self) -> Json {
        let rows = |rows: &[Row]| rows.iter().map(Row::json).collect::<Json>();
        let own = self.own.iter();
        let own: Json = own
            .map(|(name, own)| json!({ "name": name, "settings": rows(own) }))
            .collect();
        json!({
            "keyspace": self.keyspace, "settings": rows(&self.rows), "keyspaces": own,
            "notes": self.notes,
        })
    }
}

/// The folders of log and tables are those with which the store was created, whatever the file
/// says.
fn created(path: &Path, rows: &mut [Row]) {
    if let Some(tables) = place::tables_on_device(path)
        && let Some(row) = rows.iter_mut().find(|row| row.setting.name == "table_dir")
    {
        row.value = tables.into();
        row.source = Origin::Created;
    }
    let Ok(storages) = Storages::find(path) else {
        return;
    };
    if let Some(redirect) = &storages.redirect
        && let Some(row) = rows
            .iter_mut()
            .find(|row| row.setting.name == "redirect_dir")
    {
        row.value = redirect.location().into();
        row.source = Origin::Created;
    }
    for (name, part) in [("log_dir", &storages.log), ("table_dir", &storages.tables)] {
        let is_elsewhere = !Arc::ptr_eq(part, &storages.manifest);
        if let Some(row) = rows.iter_mut().find(|row| row.setting.name == name) {
            row.value = match is_elsewhere {
                true => part.location().into(),
                false => "".into(),
            };
            row.source = match is_elsewhere {
                true => Origin::Created,
                false => Origin::Default,
            };
        }
    }
}

/// Takes the options of a live writer that contradict the file from its file of statistics.
fn of_process(path: &Path, rows: &mut [Row]) {
    let Ok(file) = place::stats_file(path) else {
        return;
    };
    for difference in &file.stats.option_differences {
        let row = rows
            .iter_mut()
            .find(|row| row.setting.name == difference.name);
        if let (Some(row), None) = (row, &difference.keyspace) {
            let text = format!("{} = {}", difference.name, difference.value);
            if let Ok(options) = Options::from_toml(&text) {
                row.value = row.setting.value(&options);
                row.source = Origin::Process(file.pid);
            }
        }
    }
}

/// The settings of a keyspace. What the store keeps for it (`kept`) comes before the store's
/// settings. What the file sets for it (`in_file`) comes before both, once the store is opened for
/// writing.
fn of_keyspace(
    options: &Options,
    names: &[&str],
    in_file: Option<&KeyspaceOptions>,
    kept: &KeyspaceOptions,
) -> Vec<Row> {
    let defaults = options.keyspace_defaults();
    let in_force = kept.over(&defaults).all_set();
    let value_in_file = |setting: &Setting| setting.keyspace_value(in_file?);
    settings()
        .iter()
        .filter_map(|setting| {
            let value = setting.keyspace_value(&in_force)?;
            let kept_value = setting.keyspace_value(kept);
            let in_file = value_in_file(setting).filter(|w| kept_value.as_ref() != Some(w));
            let (value, source) = match (in_file, &kept_value) {
                (Some(in_file), _) => (in_file, Origin::FileForKeyspace),
                (None, Some(_)) => (value, Origin::Keyspace),
                (None, None) if value != setting.value(options) => (value, Origin::GivesWay),
                (None, None) if names.contains(&setting.name) => (value, Origin::File),
                (None, None) => (value, Origin::Default),
            };
            Some(Row {
                setting,
                value,
                source,
            })
        })
        .collect()
}

/// Wraps text into lines of at most [`WIDTH`] characters.
fn broken(text: &str) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let line = lines.last_mut().expect("there is one");
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > WIDTH {
            lines.push(word.to_string());
        } else {
            if !line.is_empty() {
                line.push(' ');
            }
            line.push_str(word);
        }
    }
    lines
}

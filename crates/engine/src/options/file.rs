//! The TOML file of settings: the user's, read and written as a whole.
//!
//! What it is: at the top the store's settings and the defaults of its keyspaces; then one table `[keyspaces.NAME]` for what single ones
//! have of their own. Written, every setting is preceded by its meaning, unit, default, range and whether it may change while the store is open.
//!
//! Invariants: what was written reads back as the same options. Unknown names are refused with the nearest one.

use std::fmt::Write;

use super::{Change, KeyspaceOptions, Options, SETTINGS, Scope, Setting, Value};
use crate::error::{Error, Result};

fn value_of(name: &str, value: &toml::Value) -> Result<Value> {
    match value {
        toml::Value::Boolean(on) => Ok(Value::Switch(*on)),
        toml::Value::String(text) => Ok(Value::Text(text.clone())),
        toml::Value::Integer(number) if *number >= 0 => Ok(Value::Number(*number as u64)),
        toml::Value::Array(values) => {
            let values: Result<Vec<Value>> = values.iter().map(|v| value_of(name, v)).collect();
            Ok(Value::List(values?))
        }
        other => Err(
            Error::invalid_argument(format!("option {name} is impossible"))
                .expected("a whole number that is not negative, true or false, a text, or a list of these")
                .found(other.to_string()),
        ),
    }
}

fn table_of<'a>(what: &str, value: &'a toml::Value) -> Result<&'a toml::Table> {
    value.as_table().ok_or_else(|| {
        Error::invalid_argument(format!("`{what}` is no table"))
            .expected(format!("[{what}] and lines below it"))
            .found(value.to_string())
    })
}

fn comment(out: &mut String, setting: &Setting) {
    let change = match setting.change {
        Change::WhileOpen => "Can change while the store is open.".to_string(),
        Change::AtOpen(why) => format!("Fixed while the store is open: {why}."),
    };
    let _ = writeln!(
        out,
        "# {} Unit: {}. Default: {}. Range: {}. {change}",
        setting.meaning(),
        setting.unit,
        setting.show(&setting.default_value()),
        setting.range(),
    );
}

/// A key as TOML wants it: bare where it may be.
fn key(name: &str) -> String {
    let bare = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    if !name.is_empty() && name.chars().all(bare) {
        name.to_string()
    } else {
        Value::from(name).to_string()
    }
}

impl Options {
    /// Reads options from TOML. What is not there has its default.
    ///
    /// ```
    /// use siltstone::{Options, SyncMode};
    /// let options = Options::from_toml(
    ///     r#"
    ///     sync = "always"
    ///     memtable_bytes = "32 MiB"
    ///     compression = ["none", "lz4", "zstd:3"] # by level; the last one counts for all deeper levels
    ///
    ///     [keyspaces.events]
    ///     block_bytes = "32 KiB"
    ///     "#,
    /// )?;
    /// assert_eq!(options.sync, SyncMode::Always);
    /// assert_eq!(Options::from_toml(&options.to_toml())?, options);
    ///
    /// let error = Options::from_toml("memtable_byte = 1").unwrap_err();
    /// assert!(error.to_string().contains("memtable_bytes"), "{error}"); // the nearest name
    /// # siltstone::Result::Ok(())
    /// ```
    ///
    /// # Errors
    /// `InvalidArgument` for bytes that are no TOML (with the line), unknown names (with the nearest one), impossible values and relations.
    pub fn from_toml(text: &str) -> Result<Options> {
        let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
            let line = e.span().map_or(1, |span| {
                1 + text.as_bytes()[..span.start.min(text.len())]
                    .iter()
                    .filter(|b| **b == b'\n')
                    .count()
            });
            Error::invalid_argument(format!(
                "the options are no TOML: {} (line {line})",
                e.message()
            ))
        })?;
        let mut options = Options::default();
        for (name, value) in &table {
            if name != "keyspaces" {
                options.set(name, &value_of(name, value)?)?;
                continue;
            }
            for (keyspace, lines) in table_of("keyspaces", value)? {
                let own = options.keyspaces.entry(keyspace.clone()).or_default();
                for (name, value) in table_of(&format!("keyspaces.{keyspace}"), lines)? {
                    value_of(name, value)
                        .and_then(|value| own.set(name, &value))
                        .map_err(|e| e.context(format!("keyspace `{keyspace}`")))?;
                }
            }
        }
        options.validate()?;
        Ok(options)
    }

    /// The options as TOML: every setting with a comment that says its meaning, unit, default, range and whether it can change while
    /// the store is open.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for (scope, title) in [
            (Scope::Store, "# The store.\n"),
            (
                Scope::Keyspace,
                "\n# Keyspaces: the defaults. A table [keyspaces.NAME] below may say otherwise for one of them.\n",
            ),
        ] {
            out.push_str(title);
            for setting in SETTINGS.iter().filter(|s| s.scope == scope) {
                out.push('\n');
                comment(&mut out, setting);
                let value = setting.show(&setting.value(self));
                let _ = writeln!(out, "{} = {value}", setting.name);
            }
        }
        for (name, own) in &self.keyspaces {
            let _ = write!(out, "\n[keyspaces.{}]\n{}", key(name), own.to_toml());
        }
        out
    }
}

impl KeyspaceOptions {
    /// What is set, as lines of TOML, without comments.
    pub fn to_toml(&self) -> String {
        let mut out = String::new();
        for setting in SETTINGS {
            if let Some(value) = setting.keyspace_value(self) {
                let _ = writeln!(out, "{} = {}", setting.name, setting.show(&value));
            }
        }
        out
    }
}

//! Edits the text of `OPTIONS.toml`. What the user wrote around the settings stays unchanged.
//!
//! Invariants: an edit changes only the settings that it names. If a setting of the store is set to
//! its default, it is removed, so that the file holds only what differs. Every comment of the user
//! survives; only the comment that `--write` made for a setting is removed with it.
//!
//! Threading: pure functions.

use siltstone::{KeyspaceOptions, Options, Value, setting};
use toml_edit::{DocumentMut, Item, TableLike};

use super::usage;
use crate::failure::Failure;

/// Changes to a file of options.
pub struct Changes<'a> {
    /// The keyspace whose own settings are changed; `None` means the store's settings.
    pub keyspace: Option<&'a str>,
    /// Settings to set, with the values from the command line.
    pub set: Vec<(&'a str, &'a str)>,
    /// Settings to remove.
    pub unset: Vec<&'a str>,
}

impl Changes<'_> {
    /// The options and the text of a file with these changes.
    ///
    /// # Errors
    /// The text is not a file of options, or a setting or a value is impossible.
    pub fn apply(&self, text: &str) -> Result<(Options, String), Failure> {
        let mut options = Options::from_toml(text)?;
        let mut document: DocumentMut = text
            .parse()
            .map_err(|e| Failure::Other(format!("the options are no TOML: {e}")))?;
        let mut leftover = String::new();
        for name in &self.unset {
            self.unset_one(&mut options, &mut document, name, &mut leftover)?;
        }
        for (name, value) in &self.set {
            let value = value_of(name, value)?;
            match self.keyspace {
                None => {
                    options.set(name, &value).map_err(usage)?;
                    let setting = setting(name)?;
                    let value = setting.value(&options);
                    if value == setting.default_value() {
                        take_out(Some(document.as_table_mut()), name, &mut leftover);
                    } else {
                        put_in(document.as_table_mut(), name, &setting.show(&value));
                    }
                }
                Some(keyspace) => {
                    let own = options.keyspaces.entry(keyspace.to_string()).or_default();
                    own.set(name, &value).map_err(usage)?;
                    let setting = setting(name)?;
                    if let Some(value) = setting.keyspace_value(own) {
                        let section = section_or_new(&mut document, keyspace)?;
                        put_in(section, name, &setting.show(&value));
                    }
                }
            }
        }
        options.validate().map_err(usage)?;
        if !leftover.is_empty() {
            let end = document.trailing().as_str().unwrap_or_default().to_string();
            let gap = if end.is_empty() || end.ends_with('\n') {
                ""
            } else {
                "\n"
            };
            document.set_trailing(format!("{end}{gap}{leftover}"));
        }
        Ok((options, document.to_string()))
    }

    fn unset_one(
        &self,
        options: &mut Options,
        document: &mut DocumentMut,
        name: &str,
        leftover: &mut String,
    ) -> Result<(), Failure> {
        let Some(keyspace) = self.keyspace else {
            options.set(name, &setting(name)?.default_value())?;
            take_out(Some(document.as_table_mut()), name, leftover);
            return Ok(());
        };
        // Refuses the name of a setting that keyspaces cannot have.
        KeyspaceOptions::default().unset(name)?;
        let Some(own) = options.keyspaces.get_mut(keyspace) else {
            return Ok(());
        };
        own.unset(name)?;
        let is_empty = own.is_empty();
        take_out(section(document, keyspace), name, leftover);
        if is_empty {
            options.keyspaces.remove(keyspace);
            take_section_out(document, keyspace, leftover);
        }
        Ok(())
    }
}

/// The value in an argument of `--set`: in TOML, or a word without quotes.
fn value_of(name: &str, text: &str) -> Result<Value, Failure> {
    let Ok(value) = text.parse::<toml_edit::Value>() else {
        return Ok(text.into());
    };
    if let Some(value) = of_toml(&value) {
        return Ok(value);
    }
    // For a setting with numeric values, the error names the allowed numbers.
    if matches!(
        setting(name).map_err(usage)?.default_value(),
        Value::Number(_)
    ) {
        return Ok(text.into());
    }
    Err(Failure::Usage(format!(
        "the value `{text}` is not valid: expected a whole number that is not negative, true or \
         false, a text, or a list of these"
    )))
}

fn of_toml(value: &toml_edit::Value) -> Option<Value> {
    use toml_edit::Value as Toml;
    match value {
        Toml::Boolean(on) => Some((*on.value()).into()),
        Toml::Integer(number) => u64::try_from(*number.value()).ok().map(Value::from),
        Toml::String(text) => Some(text.value().as_str().into()),
        Toml::Array(all) => all
            .iter()
            .map(of_toml)
            .collect::<Option<Vec<_>>>()
            .map(Value::from),
        _ => None,
    }
}

/// The keyspace's own settings in the file, if it has a table for them.
fn section<'a>(document: &'a mut DocumentMut, keyspace: &str) -> Option<&'a mut dyn TableLike> {
    let all = document.get_mut("keyspaces")?.as_table_like_mut()?;
    all.get_mut(keyspace)?.as_table_like_mut()
}

fn section_or_new<'a>(
    document: &'a mut DocumentMut,
    keyspace: &str,
) -> Result<&'a mut dyn TableLike, Failure> {
    let no_table = |what: &str| Failure::Usage(format!("`{what}` is no table"));
    let all = document
        .as_table_mut()
        .entry("keyspaces")
        .or_insert_with(|| {
            // Only the tables below it have their own lines.
            let mut table = toml_edit::Table::new();
            table.set_implicit(true);
            Item::Table(table)
        });
    let is_inline = all.is_inline_table();
    let all = all
        .as_table_like_mut()
        .ok_or_else(|| no_table("keyspaces"))?;
    all.entry(keyspace)
        .or_insert_with(|| match is_inline {
            true => toml_edit::value(toml_edit::InlineTable::new()),
            false => toml_edit::table(),
        })
        .as_table_like_mut()
        .ok_or_else(|| no_table(&format!("keyspaces.{keyspace}")))
}

/// Adds a setting. It takes the position and the comments of an old value.
fn put_in(table: &mut dyn TableLike, name: &str, value: &str) {
    let mut value: toml_edit::Value = value.parse().unwrap_or_else(|_| value.into());
    match table.get_mut(name).and_then(Item::as_value_mut) {
        Some(old) => {
            *value.decor_mut() = old.decor().clone();
            *old = value;
        }
        None => {
            table.insert(name, Item::Value(value));
        }
    }
}

/// Removes a setting. Its comments go to the next setting, or to the end of the file if there is
/// none.
fn take_out(table: Option<&mut dyn TableLike>, name: &str, leftover: &mut String) {
    let Some(table) = table else { return };
    let behind = table.iter().skip_while(|(n, _)| *n != name).skip(1);
    let next = behind
        .filter(|(_, item)| item.is_value())
        .map(|(n, _)| n.to_string())
        .next();
    let before = table
        .key(name)
        .and_then(|key| key.leaf_decor().prefix()?.as_str());
    let behind = table.get(name).and_then(Item::as_value);
    let behind = behind.and_then(|value| value.decor().suffix()?.as_str());
    let kept = comments(name, before.unwrap_or_default(), behind.unwrap_or_default());
    table.remove(name);
    match next.and_then(|next| table.key_mut(&next)) {
        Some(mut next) => {
            let decor = next.leaf_decor_mut();
            let old = decor.prefix().and_then(|p| p.as_str()).unwrap_or_default();
            let new = format!("{kept}{old}");
            decor.set_prefix(new);
        }
        None => leftover.push_str(&kept),
    }
}

/// Removes a keyspace's empty table.
fn take_section_out(document: &mut DocumentMut, keyspace: &str, leftover: &mut String) {
    let all = document
        .get_mut("keyspaces")
        .and_then(Item::as_table_like_mut);
    let Some(all) = all else { return };
    if let Some(Item::Table(table)) = all.get(keyspace) {
        let text = |part: Option<&toml_edit::RawString>| {
            part.and_then(|p| p.as_str())
                .unwrap_or_default()
                .to_string()
        };
        let decor = table.decor();
        leftover.push_str(&comments("", &text(decor.prefix()), &text(decor.suffix())));
    }
    all.remove(keyspace);
    let is_bare = all.is_empty();
    if is_bare
        && document
            .get("keyspaces")
            .is_some_and(|k| k.as_inline_table().is_some())
    {
        document.remove("keyspaces");
    }
}

/// The user's comments around a setting, one a line, without the one that [`Options::to_toml`]
/// wrote.
fn comments(name: &str, before: &str, behind: &str) -> String {
    let made = setting(name)
        .map(|s| format!("# {}", s.description()))
        .unwrap_or_default();
    before
        .lines()
        .chain(behind.lines())
        .map(str::trim)
        .filter(|line| line.starts_with('#') && *line != made)
        .map(|line| format!("{line}\n"))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn changed(text: &str, keyspace: Option<&str>, set: &[(&str, &str)], unset: &[&str]) -> String {
        let changes = Changes {
            keyspace,
            set: set.to_vec(),
            unset: unset.to_vec(),
        };
        let (options, text) = changes.apply(text).unwrap();
        assert_eq!(Options::from_toml(&text).unwrap(), options, "{text}");
        text
    }

    #[test]
    fn what_the_user_wrote_stays() {
        let text = "# Ours.\n\n# We lost a day once.\nsync = \"always\" # ask Ada\n\
            level_factor   =  8\n\n# Birds are small.\n[keyspaces.birds] # all of them\n\
            block_bytes = \"1 KiB\"\n# The end.\n";
        assert_eq!(
            changed(
                text,
                None,
                &[("level_factor", "12"), ("verify", "always")],
                &[]
            ),
            text.replace("=  8\n", "=  12\nverify = \"always\"\n")
        );
        assert_eq!(
            changed(text, None, &[("sync", "20 ms")], &[]),
            text.replace("\"always\"", "\"20 ms\"")
        );
        // The comments of a removed setting stay.
        assert_eq!(
            changed(text, None, &[], &["sync"]),
            text.replace("sync = \"always\" # ask Ada\n", "# ask Ada\n")
                .replacen("\n\n", "\n", 1)
        );
        let gone = changed(text, Some("birds"), &[], &["block_bytes"]);
        assert!(!gone.contains("[keyspaces"), "{gone}");
        for comment in [
            "# Ours.",
            "# ask Ada",
            "# Birds are small.",
            "# all of them",
            "# The end.",
        ] {
            assert!(gone.contains(comment), "{comment}: {gone}");
        }
    }

    #[test]
    fn only_what_differs_from_the_default_is_written() {
        let text = changed(
            "",
            None,
            &[("memtable_bytes", "134217728"), ("level_factor", "10")],
            &[],
        );
        assert_eq!(text, "memtable_bytes = \"128 MiB\"\n");
        assert_eq!(
            changed(&text, None, &[("memtable_bytes", "64 MiB")], &[]),
            ""
        );
        // A keyspace's own value is kept even if it equals the default.
        let text = changed("", Some("a b"), &[("level_factor", "10")], &[]);
        assert_eq!(text, "[keyspaces.\"a b\"]\nlevel_factor = 10\n");
        assert_eq!(changed(&text, Some("a b"), &[], &["level_factor"]), "");
        // If the file has all settings, a removed setting also loses the comment that was made for
        // it.
        let all = Options::default().to_toml();
        let less = changed(&all, None, &[], &["verify"]);
        assert_eq!(all.lines().count() - less.lines().count(), 3, "{less}");
    }

    #[test]
    fn other_ways_to_write_a_keyspace() {
        for text in [
            "keyspaces = { a = { level_factor = 4 } }\n",
            "keyspaces.a.level_factor = 4\n",
            "[keyspaces]\na = { level_factor = 4 }\n",
        ] {
            let more = changed(
                text,
                Some("a"),
                &[("level_factor", "5"), ("block_bytes", "1024")],
                &[],
            );
            let options = Options::from_toml(&more).unwrap();
            assert_eq!(options.keyspaces["a"].level_factor, Some(5), "{more}");
            assert_eq!(options.keyspaces["a"].block_bytes, Some(1024), "{more}");
            let more = changed(text, Some("b"), &[("level_factor", "5")], &[]);
            let options = Options::from_toml(&more).unwrap();
            assert_eq!(options.keyspaces["a"].level_factor, Some(4), "{more}");
            let none = changed(text, Some("a"), &[], &["level_factor"]);
            assert_eq!(
                Options::from_toml(&none).unwrap(),
                Options::default(),
                "{none}"
            );
        }
    }
}

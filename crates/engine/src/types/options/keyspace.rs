//! A keyspace's own settings: how they stand in the manifest, and what counts where they meet the store's.

use super::registry::unknown;
use super::{KeyspaceOptions, KeyspaceSettings, SETTINGS, Setting, Value, out_of_order, setting};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::file::OPTIONS;
use crate::types::options::stored::StoredOptions;

/// The settings that keyspaces can have of their own.
fn of_keyspaces() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|s| s.keyspace.is_some())
}

impl KeyspaceSettings {
    /// What must ascend: lower name and value, upper name and value.
    pub(super) fn relations(&self) -> [(&'static str, u64, &'static str, u64); 3] {
        let (trigger, slowdown, stop) = (
            self.l0_trigger_count.into(),
            self.l0_slowdown_count.into(),
            self.l0_stop_count.into(),
        );
        [
            ("l0_trigger_count", trigger, "l0_slowdown_count", slowdown),
            ("l0_slowdown_count", slowdown, "l0_stop_count", stop),
            (
                "table_bytes",
                self.table_bytes,
                "level1_bytes",
                self.level1_bytes,
            ),
        ]
    }
}

impl KeyspaceOptions {
    /// Whether nothing is set.
    pub fn is_empty(&self) -> bool {
        *self == KeyspaceOptions::default()
    }

    /// Checks every value that is set, and the relations between them.
    ///
    /// # Errors
    /// `InvalidArgument` naming the option, its limits and the value found.
    pub fn validate(&self) -> Result<()> {
        for setting in of_keyspaces() {
            if let Some(access) = &setting.keyspace {
                setting.check_numbers(&(access.numbers)(self))?;
            }
        }
        out_of_order(self.relations())
    }

    /// The first two of the options that are set that contradict each other: the lower name and
    /// value, the upper name and value.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, u64, &'static str, u64)> {
        self.relations().find(|(_, low, _, high)| high < low)
    }

    /// What must ascend, of the options that are set.
    fn relations(&self) -> impl Iterator<Item = (&'static str, u64, &'static str, u64)> {
        let both =
            |lower, low: Option<u64>, upper, high: Option<u64>| Some((lower, low?, upper, high?));
        let (trigger, slowdown, stop) = (
            self.l0_trigger_count.map(u64::from),
            self.l0_slowdown_count.map(u64::from),
            self.l0_stop_count.map(u64::from),
        );
        let pairs = [
            both("l0_trigger_count", trigger, "l0_slowdown_count", slowdown),
            both("l0_slowdown_count", slowdown, "l0_stop_count", stop),
            both("l0_trigger_count", trigger, "l0_stop_count", stop),
            both(
                "table_bytes",
                self.table_bytes,
                "level1_bytes",
                self.level1_bytes,
            ),
        ];
        pairs.into_iter().flatten()
    }

    /// What counts for a keyspace that set this in a store with these defaults. Where a default does not fit what was set
    /// (`l0_stop_count` 8 was, and the default of `l0_trigger_count` is 16), the default gives way, so that whatever the mixture
    /// trigger <= slowdown <= stop and table <= level 1 hold.
    pub fn over(&self, base: &KeyspaceSettings) -> KeyspaceSettings {
        let mut all = self.overlay(base);
        if self.l0_trigger_count.is_none() {
            let least = [self.l0_slowdown_count, self.l0_stop_count];
            let least = least.into_iter().flatten().min().unwrap_or(u32::MAX);
            all.l0_trigger_count = all.l0_trigger_count.min(least);
        }
        if self.l0_stop_count.is_none() {
            let most = all
                .l0_trigger_count
                .max(self.l0_slowdown_count.unwrap_or(0));
            all.l0_stop_count = all.l0_stop_count.max(most);
        }
        // Last resort for what no `validate` let pass: the lower limits are cut.
        all.l0_trigger_count = all.l0_trigger_count.min(all.l0_stop_count);
        all.l0_slowdown_count = all
            .l0_slowdown_count
            .clamp(all.l0_trigger_count, all.l0_stop_count);
        if self.level1_bytes.is_none() {
            all.level1_bytes = all.level1_bytes.max(all.table_bytes);
        }
        let largest = 1 << all.level1_bytes.max(1).ilog2();
        all.table_bytes = all.table_bytes.min(largest);
        all
    }

    /// Sets an option by name.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that keyspaces do not have (with the nearest one, or that it is the store's), or an impossible value.
    pub fn set(&mut self, name: &str, value: &Value) -> Result<()> {
        let setting = keyspace_setting(name)?;
        if let Some(access) = &setting.keyspace {
            if !(access.set)(self, value) {
                return Err(setting.refuse(value));
            }
            setting.check_numbers(&(access.numbers)(self))?;
        }
        Ok(())
    }

    /// What differs from `old`: names, and values where they are set.
    pub(crate) fn changes_from(
        &self,
        old: &KeyspaceOptions,
    ) -> impl Iterator<Item = (&'static str, Option<Value>)> {
        SETTINGS.iter().filter_map(move |setting| {
            let access = setting.keyspace.as_ref()?;
            let value = (access.get)(self);
            (value != (access.get)(old)).then_some((setting.name, value))
        })
    }

    /// Has an option follow the store's again.
    ///
    /// # Errors
    /// As [`KeyspaceOptions::set`], for the name.
    pub fn unset(&mut self, name: &str) -> Result<()> {
        if let Some(access) = &keyspace_setting(name)?.keyspace {
            (access.clear)(self);
        }
        Ok(())
    }

    /// Everything that is set, as (name, value).
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        of_keyspaces()
            .filter_map(|s| Some((s.name, s.keyspace_value(self)?)))
            .collect()
    }

    /// Reads what the manifest or a create record says. Fields that this build does not know are left alone.
    ///
    /// # Errors
    /// `Unsupported` for a value that this build cannot follow.
    pub(crate) fn from_stored(stored: &StoredOptions) -> Result<KeyspaceOptions> {
        let mut own = KeyspaceOptions::default();
        for setting in of_keyspaces() {
            let Some(access) = &setting.keyspace else {
                continue;
            };
            let Some(bytes) = stored.get(access.tag) else {
                continue;
            };
            let good = (access.decode)(&mut own, bytes)
                && setting.check_numbers(&(access.numbers)(&own)).is_ok();
            if !good {
                return Err(Error::new(
                    ErrorKind::Unsupported,
                    format!("the stored option {} has a value that this version does not know", setting.name),
                )
                .expected(setting.range())
                .found(format!("{bytes:02x?}"))
                .advice("open the store with the version that set it, or set it to something else there"));
            }
        }
        Ok(own)
    }

    /// Puts what is set into `stored`, and takes out what is not. Fields that this build does not know stay.
    pub(crate) fn store_into(&self, stored: &mut StoredOptions) {
        for setting in of_keyspaces() {
            if let Some(access) = &setting.keyspace {
                match (access.encode)(self) {
                    Some(bytes) => stored.set(access.tag, &bytes),
                    None => stored.remove(access.tag),
                }
            }
        }
    }
}

/// A setting that keyspaces have.
fn keyspace_setting(name: &str) -> Result<&'static Setting> {
    if let Some(setting) = of_keyspaces().find(|s| s.name == name) {
        return Ok(setting);
    }
    match setting(name) {
        Ok(_) => Err(Error::invalid_argument(format!(
            "option {name} is the store's, not a keyspace's"
        ))
        .advice("set it for the whole store")),
        Err(_) => Err(unknown(name, of_keyspaces().map(|s| s.name))),
    }
}

/// The options of a keyspace: what it has (`kept`), and over it what is to be set (`wished`), which
/// comes from the file `OPTIONS.toml` where `in_file` has it too.
///
/// # Errors
/// `InvalidArgument` if two of these options contradict each other. The error names both, and
/// where each of them comes from.
pub(crate) fn merged(
    name: &str,
    kept: &KeyspaceOptions,
    wished: &KeyspaceOptions,
    in_file: Option<&KeyspaceOptions>,
) -> Result<KeyspaceOptions> {
    let mut own = kept.clone();
    own.merge(wished);
    let Some((lower, low, upper, high)) = own.contradiction() else {
        own.validate()?;
        return Ok(own);
    };
    let origin = |option: &str| -> Result<(String, bool)> {
        let setting = setting(option)?;
        let Some(value) = setting.keyspace_value(wished) else {
            return Ok(("kept by the store".to_string(), true));
        };
        let is_in_file = in_file.and_then(|own| setting.keyspace_value(own)) == Some(value);
        let origin = match is_in_file {
            true => format!("set in {OPTIONS}"),
            false => "set by the caller".to_string(),
        };
        Ok((origin, false))
    };
    let ((lower_origin, lower_is_kept), (upper_origin, upper_is_kept)) =
        (origin(lower)?, origin(upper)?);
    let mut advice = format!("raise {upper} or lower {lower}");
    let all_kept = [(lower, lower_is_kept), (upper, upper_is_kept)];
    for (option, _) in all_kept.iter().filter(|(_, is_kept)| *is_kept) {
        advice += &format!(
            "; `silt options STORE -k {name} --unset {option}` takes away the {option} that the \
             store keeps"
        );
    }
    let error = Error::invalid_argument(format!(
        "option {upper} of the keyspace `{name}` contradicts its option {lower}"
    ))
    .expected(format!(
        "a value of {upper} of at least {low}, the value of {lower} ({lower_origin})"
    ))
    .found(format!("{high} ({upper_origin})"))
    .advice(advice);
    Err(match in_file.is_some() {
        true => error.in_file(OPTIONS),
        false => error,
    })
}

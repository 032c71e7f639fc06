//! A keyspace's own settings: how they are stored in the manifest, and what is in force when they
//! are combined with the store's.

use super::registry::unknown;
use super::{KeyspaceOptions, KeyspaceSettings, SETTINGS, Setting, Value, out_of_order, setting};
use crate::types::error::{Error, ErrorKind, Result};
use crate::types::options::file::OPTIONS;
use crate::types::options::stored::StoredOptions;

/// The settings that a keyspace may have of its own.
fn of_keyspaces() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|s| s.keyspace.is_some())
}

impl KeyspaceSettings {
    /// The pairs of values that must be in ascending order: lower name and value, upper name and
    /// value.
    pub(super) fn relations(&self) -> [(&'static str, u64, &'static str, u64); 4] {
        let (trigger, slowdown, stop) = (
            self.l0_trigger_count.into(),
            self.l0_slowdown_count.into(),
            self.l0_stop_count.into(),
        );
        [
            ("l0_trigger_count", trigger, "l0_slowdown_count", slowdown),
            ("l0_slowdown_count", slowdown, "l0_stop_count", stop),
            (
                "pending_slowdown_bytes",
                self.pending_slowdown_bytes,
                "pending_stop_bytes",
                self.pending_stop_bytes,
            ),
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
    /// Whether no option is set.
    pub fn is_empty(&self) -> bool {
        *self == KeyspaceOptions::default()
    }

    /// Checks every option that is set, and the relations between them.
    ///
    /// # Errors
    /// `InvalidArgument` with the option, its limits and the value found.
    pub fn validate(&self) -> Result<()> {
        for setting in of_keyspaces() {
            if let Some(access) = &setting.keyspace {
                setting.check_numbers(&(access.numbers)(self))?;
            }
        }
        out_of_order(self.relations())
    }

    /// The first two options that are set and contradict each other: the lower name and value, the
    /// upper name and value.
    pub(crate) fn contradiction(&self) -> Option<(&'static str, u64, &'static str, u64)> {
        self.relations().find(|(_, low, _, high)| high < low)
    }

    /// The pairs that must be in ascending order, among the options that are set.
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
                "pending_slowdown_bytes",
                self.pending_slowdown_bytes,
                "pending_stop_bytes",
                self.pending_stop_bytes,
            ),
            both(
                "table_bytes",
                self.table_bytes,
                "level1_bytes",
                self.level1_bytes,
            ),
        ];
        pairs.into_iter().flatten()
    }

    /// The settings in force for a keyspace that has set these options, in a store with these
    /// defaults. A default that does not fit an option that was set gives way: if `l0_stop_count`
    /// was set to 8 and the default of `l0_trigger_count` is 16, the trigger becomes 8 too. So the
    /// trigger is never above the slowdown, no slowdown is above its stop, and a table is never
    /// larger than level 1.
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
        // `validate` refuses such options. If they come nevertheless, the lower limits are cut.
        all.l0_trigger_count = all.l0_trigger_count.min(all.l0_stop_count);
        all.l0_slowdown_count = all
            .l0_slowdown_count
            .clamp(all.l0_trigger_count, all.l0_stop_count);
        if self.pending_stop_bytes.is_none() {
            all.pending_stop_bytes = all.pending_stop_bytes.max(all.pending_slowdown_bytes);
        }
        all.pending_slowdown_bytes = all.pending_slowdown_bytes.min(all.pending_stop_bytes);
        if self.level1_bytes.is_none() {
            all.level1_bytes = all.level1_bytes.max(all.table_bytes);
        }
        let largest = 1 << all.level1_bytes.max(1).ilog2();
        all.table_bytes = all.table_bytes.min(largest);
        all
    }

    /// Sets an option, given by name.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that keyspaces do not have (with the nearest one, or that it is
    /// an option of the store), or for a value that is not valid.
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

    /// The options that differ from `old`, with their values; `None` if the option is not set any
    /// more.
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

    /// Removes an option, so that the keyspace follows the store's.
    ///
    /// # Errors
    /// `InvalidArgument` for a name that keyspaces do not have.
    pub fn unset(&mut self, name: &str) -> Result<()> {
        if let Some(access) = &keyspace_setting(name)?.keyspace {
            (access.clear)(self);
        }
        Ok(())
    }

    /// All options that are set, with their values.
    pub fn values(&self) -> Vec<(&'static str, Value)> {
        of_keyspaces()
            .filter_map(|s| Some((s.name, s.keyspace_value(self)?)))
            .collect()
    }

    /// Reads the options that the manifest or a create record holds. Fields that this build does
    /// not know are left alone.
    ///
    /// # Errors
    /// `Unsupported` for a value that this build does not understand.
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
                    format!(
                        "this version does not know the value of the stored option {}",
                        setting.name
                    ),
                )
                .expected(setting.range())
                .found(format!("{bytes:02x?}"))
                .advice(
                    "open the store with the version that set it, or set another value with that \
                     version",
                ));
            }
        }
        Ok(own)
    }

    /// Writes the options that are set into `stored`, and removes those that are not. Fields that
    /// this build does not know stay.
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

/// A setting that a keyspace may have.
fn keyspace_setting(name: &str) -> Result<&'static Setting> {
    if let Some(setting) = of_keyspaces().find(|s| s.name == name) {
        return Ok(setting);
    }
    match setting(name) {
        Ok(_) => Err(Error::invalid_argument(format!(
            "option {name} is an option of the store, not of a keyspace"
        ))
        .advice("set it for the whole store")),
        Err(_) => Err(unknown(name, of_keyspaces().map(|s| s.name))),
    }
}

/// The options of a keyspace: those that it has (`kept`), overridden by those that are to be set
/// (`wished`). A wished option comes from the file `OPTIONS.toml` if `in_file` has it with the same
/// value.
///
/// # Errors
/// `InvalidArgument` if two of these options contradict each other. The error names both, and says
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
            "; `silt options STORE -k {name} --unset {option}` removes the {option} that the \
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

//! The options that set settings, made from the list of all settings.
//!
//! Invariant: an option accepts exactly the texts of its setting, and a refused text is answered
//! with what the setting expects.
//!
//! Threading: plain data.

use std::sync::LazyLock;

use clap::{Arg, ArgAction, ArgMatches, Command, FromArgMatches};

use super::{CommandError, Result};
use crate::settings::{Setting, SettingError, Settings, Workload, all_settings};

/// The heads under which help lists the options.
const RUN_HEADING: &str = "Settings of the runs";
const ENGINE_HEADING: &str = "Settings of the engine";
const TOPOLOGY_HEADING: &str = "Settings of host and device";

/// A text that no setting accepts.
const NO_VALUE: &str = "\0";

/// The settings that were given on the command line, with their texts.
#[derive(Debug, Clone, Default)]
pub struct SettingsArgs {
    given: Vec<(&'static Setting, Vec<String>)>,
}

impl SettingsArgs {
    /// Sets what was given.
    ///
    /// # Errors
    /// None that is known: the texts were checked when the command line was read.
    pub fn apply(&self, settings: &mut Settings) -> Result<()> {
        for (setting, texts) in &self.given {
            for text in texts {
                let set = setting.set(settings, text);
                set.map_err(|error| CommandError::Usage(error.to_string()))?;
            }
        }
        Ok(())
    }

    /// Whether the setting of this name was given.
    pub fn has(&self, name: &str) -> bool {
        self.given.iter().any(|(setting, _)| setting.name == name)
    }

    /// The options and their texts, as they are given on a command line.
    pub fn words(&self) -> impl Iterator<Item = (String, &str)> {
        self.given.iter().flat_map(|(setting, texts)| {
            let option = setting.option();
            texts
                .iter()
                .map(move |text| (option.clone(), text.as_str()))
        })
    }
}

/// The settings that have an option. A workload is an argument without a name, and what a GPU does
/// is said with the program's own options.
fn settings() -> impl Iterator<Item = &'static Setting> {
    all_settings()
        .iter()
        .filter(|setting| setting.name != "workload" && !setting.name.starts_with("gpu."))
}

/// The names of the options without `--`. Clap keeps names as `&'static str`, so they are made once
/// and never freed.
static NAMES: LazyLock<Vec<&'static str>> = LazyLock::new(|| {
    let name = |setting: &Setting| -> &'static str {
        setting.option().trim_start_matches('-').to_string().leak()
    };
    settings().map(name).collect()
});

/// What an option takes, for help.
fn value_name(setting: &Setting) -> &'static str {
    match setting.name {
        "records" | "threads" | "batch" | "nexts" | "engine.background_threads" => "COUNT",
        "key_bytes" | "engine.memtable_bytes" | "engine.cache_bytes" => "SIZE",
        "value_bytes" => "SIZES",
        "compression_ratio" | "read_ratio" => "RATIO",
        "amount" => "TIME|COUNT",
        "engine.bloom_bits" => "BITS",
        "engine.compression" => "CODEC",
        "engine.own" => "NAME=VALUE",
        "sync" | "engine.mmap_reads" => "BOOL",
        "seed" | "operation_seed" => "NUMBER",
        "write_rate" => "RATE",
        "distribution" => "DISTRIBUTION",
        "arrival" => "ARRIVAL",
        "cache" => "STATE",
        "topology.files" => "FILES",
        "topology.link" => "LINK",
        "topology.host_cores" | "topology.device_cores" => "CORES",
        "topology.slots" | "topology.parallelism" | "topology.nice" => "NUMBER",
        _ => "VALUE",
    }
}

/// Whether the option may stand alone, which means `true`.
fn is_switch(setting: &Setting) -> bool {
    value_name(setting) == "BOOL"
}

/// What a setting accepts.
fn expected(setting: &Setting) -> Option<String> {
    match setting.set(&mut Settings::default(), NO_VALUE) {
        Err(SettingError::Text { error, .. }) => Some(error.expected.into_owned()),
        _ => None,
    }
}

/// What stands behind the meaning of a setting.
fn default_text(setting: &Setting) -> String {
    match (setting.name, setting.show(&Settings::default())) {
        ("amount", _) => " [default: the workload's own]".into(),
        (_, text) if text.is_empty() || text == "default" => String::new(),
        (name, text) => format!(" [default: {text}{}]", other_defaults(name)),
    }
}

/// The defaults of the workloads that have another one, for example `; 48 for mixgraph`.
fn other_defaults(name: &str) -> String {
    let mut by_text: Vec<(&str, Vec<&str>)> = Vec::new();
    for workload in Workload::ALL {
        let of = match workload.is_ycsb() {
            true => "ycsb-*",
            false => workload.name(),
        };
        for &(own, text) in workload.own_defaults() {
            if own != name {
                continue;
            }
            match by_text.iter_mut().find(|(known, _)| *known == text) {
                Some((_, names)) if names.contains(&of) => {}
                Some((_, names)) => names.push(of),
                None => by_text.push((text, vec![of])),
            }
        }
    }
    let texts = by_text.iter();
    texts
        .map(|(text, names)| format!("; {text} for {}", names.join(" and ")))
        .collect()
}

fn option(setting: &'static Setting, name: &'static str) -> Arg {
    let meaning = setting.meaning.trim_end_matches('.');
    let default = default_text(setting);
    let forms = expected(setting).map_or_else(String::new, |forms| format!(": {forms}"));
    let heading = match setting.name.split_once('.') {
        Some(("engine", _)) => ENGINE_HEADING,
        Some(("topology", _)) => TOPOLOGY_HEADING,
        _ => RUN_HEADING,
    };
    let option = Arg::new(setting.name)
        .long(name)
        .value_name(value_name(setting))
        .help(format!("{meaning}{default}"))
        .long_help(format!("{meaning}{forms}{default}"))
        .help_heading(heading)
        .value_parser(move |text: &str| read(setting, text));
    if is_switch(setting) {
        return option
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value("true");
    }
    if setting.name == "engine.own" {
        return option.action(ArgAction::Append);
    }
    option
}

/// The text, if the setting accepts it.
fn read(setting: &Setting, text: &str) -> std::result::Result<String, String> {
    match setting.set(&mut Settings::default(), text) {
        Ok(()) => Ok(text.to_string()),
        Err(SettingError::Text { error, .. }) => {
            let meant = error
                .nearest
                .map(|name| format!("; did you mean `{name}`?"));
            Err(format!(
                "expected {}{}",
                error.expected,
                meant.unwrap_or_default()
            ))
        }
        Err(other) => Err(other.to_string()),
    }
}

impl clap::Args for SettingsArgs {
    fn augment_args(command: Command) -> Command {
        let options = settings().zip(NAMES.iter());
        command.args(options.map(|(setting, name)| option(setting, name)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        SettingsArgs::augment_args(command)
    }
}

impl FromArgMatches for SettingsArgs {
    fn from_arg_matches(matches: &ArgMatches) -> std::result::Result<SettingsArgs, clap::Error> {
        let texts = |setting: &Setting| {
            let texts = matches.get_many::<String>(setting.name)?;
            Some(texts.cloned().collect::<Vec<_>>())
        };
        let given = settings().filter_map(|setting| Some((setting, texts(setting)?)));
        Ok(SettingsArgs {
            given: given.collect(),
        })
    }

    fn update_from_arg_matches(
        &mut self,
        matches: &ArgMatches,
    ) -> std::result::Result<(), clap::Error> {
        *self = SettingsArgs::from_arg_matches(matches)?;
        Ok(())
    }
}

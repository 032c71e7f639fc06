//! All settings by name, with what they mean and how their texts are read and written.
//!
//! Settings of the engine begin with `engine.` here and in TOML files. On the command line they do
//! not: `--memtable-bytes 64MiB`. Those of the topology begin with `topology.`: `--topology-files`.
//! Those of a GPU begin with `gpu.`, and have no option, because the command line has `--gpu`.
//! An engine's own settings are `engine.own.NAME`, or `engine.own.ENGINE.NAME` if only that engine
//! gets them; their names are known to the engine only.
//!
//! Invariant: each field of [`Settings`] and `EngineSettings` has one entry, under the name that
//! serde gives it.
//!
//! Threading: constants.

use std::fmt;

use super::own::{ENGINES, check_name};
use super::text::{COUNT_FORMS, NUMBER_FORMS, SIZE_FORMS, TextError};
use super::{Settings, nearest, parse_count, parse_number, parse_rate, parse_size, size_text};

/// What the names of an engine's own settings begin with.
pub const OWN_PREFIX: &str = "engine.own.";

/// The text that leaves the choice to the workload or to the engine.
const DEFAULT: &str = "default";

/// One setting.
pub struct Setting {
    /// The name in TOML files and in the JSON record, for example `engine.memtable_bytes`.
    pub name: &'static str,
    /// What it means, in a sentence.
    pub meaning: &'static str,
    set: fn(&mut Settings, &str) -> Result<(), TextError>,
    show: fn(&Settings) -> String,
}

/// Why a setting was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SettingError {
    /// There is no setting of this name.
    #[error(
        "unknown setting `{name}`{}",
        .nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
    )]
    Unknown {
        /// The name.
        name: String,
        /// The name that may have been meant.
        nearest: Option<&'static str>,
    },
    /// There is no engine of this name.
    #[error(
        "unknown engine `{engine}` in `{name}`{}",
        .nearest.map(|n| format!("; did you mean `{n}`?")).unwrap_or_default()
    )]
    Engine {
        /// The name of the setting.
        name: String,
        /// The name of the engine in it.
        engine: String,
        /// The name that may have been meant.
        nearest: Option<&'static str>,
    },
    /// The text is no value of the setting.
    #[error("`{name}`: {error}")]
    Text {
        /// The name of the setting.
        name: &'static str,
        /// What was found and expected.
        error: TextError,
    },
}

/// A setting whose type has `FromStr` and `Display`.
macro_rules! own_form {
    ($name:literal, $($field:ident).+, $meaning:literal) => {
        Setting {
            name: $name,
            meaning: $meaning,
            set: |settings, text| {
                settings.$($field).+ = text.parse()?;
                Ok(())
            },
            show: |settings| settings.$($field).+.to_string(),
        }
    };
}

/// A setting that need not be given.
macro_rules! optional {
    ($name:literal, $($field:ident).+, $parse:expr, $meaning:literal) => {
        Setting {
            name: $name,
            meaning: $meaning,
            set: |settings, text| {
                settings.$($field).+ = match text.trim() {
                    DEFAULT => None,
                    text => Some($parse(text)?),
                };
                Ok(())
            },
            show: |settings| match &settings.$($field).+ {
                Some(value) => value.to_string(),
                None => DEFAULT.into(),
            },
        }
    };
}

/// A number of bytes.
macro_rules! size {
    ($name:literal, $($field:ident).+, $meaning:literal) => {
        Setting {
            name: $name,
            meaning: $meaning,
            set: |settings, text| {
                let number = parse_size(text)?.try_into();
                settings.$($field).+ = number.map_err(|_| TextError::new(text, SIZE_FORMS))?;
                Ok(())
            },
            show: |settings| size_text(settings.$($field).+.into()),
        }
    };
}

/// A whole number of something else.
macro_rules! count {
    ($name:literal, $($field:ident).+, $meaning:literal) => {
        Setting {
            name: $name,
            meaning: $meaning,
            set: |settings, text| {
                let number = parse_count(text)?.try_into();
                settings.$($field).+ = number.map_err(|_| TextError::new(text, COUNT_FORMS))?;
                Ok(())
            },
            show: |settings| settings.$($field).+.to_string(),
        }
    };
}

/// A number with a fraction.
macro_rules! number {
    ($name:literal, $($field:ident).+, $meaning:literal) => {
        Setting {
            name: $name,
            meaning: $meaning,
            set: |settings, text| {
                let number = parse_number(text);
                let number = number.map_err(|_| TextError::new(text, NUMBER_FORMS))?;
                settings.$($field).+ = number;
                Ok(())
            },
            show: |settings| settings.$($field).+.to_string(),
        }
    };
}

fn parse_switch(text: &str) -> Result<bool, TextError> {
    let found = text.trim().parse();
    found.map_err(|_| TextError::new(text, "true or false"))
}

static SETTINGS: [Setting; 34] = [
    own_form!(
        "workload",
        workload,
        "What is done; the names are those of db_bench and YCSB."
    ),
    count!("records", records, "Records of the store."),
    size!("key_bytes", key_bytes, "Bytes of a key."),
    own_form!(
        "value_bytes",
        value_bytes,
        "Bytes of values, all the same or distributed."
    ),
    number!(
        "compression_ratio",
        compression_ratio,
        "The part of its size to which a value compresses; 1 does not compress."
    ),
    optional!(
        "distribution",
        distribution,
        str::parse,
        "How records are drawn; the default is the workload's own."
    ),
    optional!(
        "amount",
        amount,
        str::parse,
        "How much is done: a time, a number of operations or every record once."
    ),
    own_form!(
        "arrival",
        arrival,
        "When operations start: one after the other, or at a rate whatever the engine does."
    ),
    count!("threads", threads, "Threads of the workload."),
    count!(
        "batch",
        batch,
        "Entries of a batch of writes, or keys of a call that reads many."
    ),
    count!("nexts", nexts, "Entries that a scan reads after its seek."),
    number!(
        "read_ratio",
        read_ratio,
        "The part of reads in readrandomwriterandom and peaks, from 0 to 1."
    ),
    Setting {
        name: "sync",
        meaning: "Whether each write waits until it is durable.",
        set: |settings, text| {
            settings.sync = parse_switch(text)?;
            Ok(())
        },
        show: |settings| settings.sync.to_string(),
    },
    optional!(
        "write_rate",
        write_rate,
        parse_rate,
        "Operations a second of the thread that writes beside reads; by default as many as it can."
    ),
    own_form!(
        "cache",
        cache,
        "Whether the data is in the page cache at the start."
    ),
    count!(
        "seed",
        seed,
        "The seed of keys and values; a store can only be used with its own."
    ),
    count!(
        "operation_seed",
        operation_seed,
        "The seed of what a workload draws; equal seeds give equal operations."
    ),
    size!(
        "engine.memtable_bytes",
        engine.memtable_bytes,
        "Bytes of the memtable."
    ),
    size!(
        "engine.cache_bytes",
        engine.cache_bytes,
        "Bytes of the block cache."
    ),
    count!(
        "engine.bloom_bits",
        engine.bloom_bits,
        "Bits of the Bloom filter for each key; 0 is no filter."
    ),
    own_form!(
        "engine.compression",
        engine.compression,
        "How blocks are compressed."
    ),
    count!(
        "engine.background_threads",
        engine.background_threads,
        "Threads for flushes and compactions."
    ),
    optional!(
        "engine.mmap_reads",
        engine.mmap_reads,
        parse_switch,
        "Whether tables are read through memory maps, where the engine offers a choice."
    ),
    Setting {
        name: "engine.own",
        meaning: "Settings of the engine's own, by its own names: NAME=VALUE,ENGINE.NAME=VALUE.",
        set: set_own,
        show: |settings| {
            let own = settings.engine.own.iter();
            let pairs: Vec<String> = own.map(|(name, value)| format!("{name}={value}")).collect();
            pairs.join(",")
        },
    },
    own_form!(
        "topology.files",
        topology.files,
        "Which part of the store a device has, which the call starts as a process of its own."
    ),
    own_form!(
        "topology.link",
        topology.link,
        "The link between host and device."
    ),
    own_form!(
        "topology.host_cores",
        topology.host_cores,
        "The cores of the process with the workload and the engine."
    ),
    own_form!(
        "topology.device_cores",
        topology.device_cores,
        "The cores of the device."
    ),
    count!(
        "topology.slots",
        topology.slots,
        "Compactions that the device runs at once."
    ),
    count!(
        "topology.parallelism",
        topology.parallelism,
        "Threads of one compaction on the device."
    ),
    count!(
        "topology.nice",
        topology.nice,
        "The nice value of the device and of the engine's workers."
    ),
    own_form!(
        "gpu.strategy",
        gpu.strategy,
        "Which parts of a compaction a GPU computes; with cpu, no GPU is opened."
    ),
    own_form!(
        "gpu.transfer",
        gpu.transfer,
        "How tables get to the GPU and back."
    ),
    Setting {
        name: "gpu.profiles",
        meaning: "Whether the time in which the GPU is busy is measured, which costs some time.",
        set: |settings, text| {
            settings.gpu.profiles = parse_switch(text)?;
            Ok(())
        },
        show: |settings| settings.gpu.profiles.to_string(),
    },
];

/// Adds settings of the engine's own. A comma in a list of values does not end a setting, because
/// what follows it has no `=`.
fn set_own(settings: &mut Settings, text: &str) -> Result<(), TextError> {
    let mut pairs: Vec<(String, String)> = Vec::new();
    for part in text.split(',') {
        match (part.split_once('='), pairs.last_mut()) {
            (Some((name, value)), _) if !name.trim().is_empty() => {
                pairs.push((name.trim().into(), value.trim().into()));
            }
            (None, Some((_, value))) => {
                value.push(',');
                value.push_str(part);
            }
            _ if text.trim().is_empty() => {}
            _ => return Err(TextError::new(text, "NAME=VALUE,NAME=VALUE")),
        }
    }
    for (name, _) in &pairs {
        check_name(name).map_err(|error| no_engine(name, &error))?;
    }
    settings.engine.own.extend(pairs);
    Ok(())
}

/// The error of a setting in a list whose engine does not exist.
fn no_engine(name: &str, error: &SettingError) -> TextError {
    let expected = format!("NAME or ENGINE.NAME with one of {}", ENGINES.join(", "));
    let nearest = match error {
        SettingError::Engine { nearest, .. } => *nearest,
        _ => None,
    };
    TextError {
        nearest,
        ..TextError::new(name, expected)
    }
}

/// All settings, in the order in which help lists them.
pub fn all() -> &'static [Setting] {
    &SETTINGS
}

impl Setting {
    /// The setting of this name.
    ///
    /// # Errors
    /// If there is none, with the nearest name.
    pub fn named(name: &str) -> Result<&'static Setting, SettingError> {
        let found = SETTINGS.iter().find(|setting| setting.name == name);
        found.ok_or_else(|| SettingError::Unknown {
            name: name.into(),
            nearest: Setting::nearest(name),
        })
    }

    /// The name that may have been meant. Forgetting `engine.` is a common mistake.
    fn nearest(name: &str) -> Option<&'static str> {
        let engines = SETTINGS.iter().map(|setting| setting.name);
        let forgotten = engines.clone().find(|n| {
            let groups = ["engine.", "topology.", "gpu."];
            groups
                .iter()
                .any(|group| n.strip_prefix(group) == Some(name))
        });
        forgotten.or_else(|| nearest(name, engines))
    }

    /// The option of the command line, for example `--memtable-bytes`. `amount` has the name
    /// `--for`, which reads better: `--for 60s`.
    pub fn option(&self) -> String {
        let name = match self.name {
            "amount" => "for",
            name => name.strip_prefix("engine.").unwrap_or(name),
        };
        format!("--{}", name.replace(['_', '.'], "-"))
    }

    /// Sets it from a text.
    ///
    /// # Errors
    /// If the text is none of its values.
    pub fn set(&self, settings: &mut Settings, text: &str) -> Result<(), SettingError> {
        let failed = |error| SettingError::Text {
            name: self.name,
            error,
        };
        (self.set)(settings, text).map_err(failed)
    }

    /// Its value as a text, which [`Setting::set`] reads as the same value.
    pub fn show(&self, settings: &Settings) -> String {
        (self.show)(settings)
    }
}

impl fmt::Debug for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Setting({})", self.name)
    }
}

impl Settings {
    /// Sets one setting by its name, also `engine.own.NAME` and `engine.own.ENGINE.NAME`.
    ///
    /// # Errors
    /// If there is no setting or no engine of this name, or if the text is none of its values.
    pub fn set(&mut self, name: &str, text: &str) -> Result<(), SettingError> {
        if let Some(own) = name.strip_prefix(OWN_PREFIX).filter(|own| !own.is_empty()) {
            check_name(own)?;
            self.engine.own.insert(own.into(), text.into());
            return Ok(());
        }
        Setting::named(name)?.set(self, text)
    }

    /// The value of a setting as a text, also of `engine.own.NAME` if it is set.
    ///
    /// # Errors
    /// If there is no setting of this name.
    pub fn get(&self, name: &str) -> Result<String, SettingError> {
        let own = name
            .strip_prefix(OWN_PREFIX)
            .and_then(|own| self.engine.own.get(own));
        if let Some(value) = own {
            return Ok(value.clone());
        }
        Ok(Setting::named(name)?.show(self))
    }
}

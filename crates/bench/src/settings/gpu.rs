//! Which GPU a run has: what it computes of a compaction, and how tables get there and back.
//!
//! The names are those of `siltstone_gpu`. The strategy `cpu`, which is the default, leaves all
//! compactions to the host's executor, so such a run opens no GPU and needs none.
//!
//! Invariant: [`Settings::check`] accepts the other settings only if there is a GPU.
//!
//! Threading: plain data.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use siltstone_gpu::{Strategy, Transfer, UnknownName};

use super::check::{Checked, Refusal};
use super::{Settings, TextError};

/// Which GPU a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct GpuSettings {
    /// Which parts of a compaction the GPU computes.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub strategy: Strategy,
    /// How tables get to the GPU and back.
    #[serde(serialize_with = "to_text", deserialize_with = "from_text")]
    pub transfer: Transfer,
    /// Whether the time in which the GPU is busy is measured.
    pub profiles: bool,
}

impl Default for GpuSettings {
    fn default() -> GpuSettings {
        GpuSettings {
            strategy: Strategy::Cpu,
            transfer: Transfer::default(),
            profiles: false,
        }
    }
}

impl GpuSettings {
    /// Whether the run opens a GPU.
    pub fn is_used(&self) -> bool {
        self.strategy != Strategy::Cpu
    }

    /// Whether nothing was set.
    pub(super) fn is_default(&self) -> bool {
        *self == GpuSettings::default()
    }
}

impl From<UnknownName> for TextError {
    fn from(error: UnknownName) -> TextError {
        TextError::no_word(&error.found, error.names)
    }
}

fn to_text<S: Serializer>(
    value: &impl std::fmt::Display,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    serializer.collect_str(value)
}

fn from_text<'de, T, D>(deserializer: D) -> Result<T, D::Error>
where
    T: std::str::FromStr<Err = UnknownName>,
    D: Deserializer<'de>,
{
    let text = String::deserialize(deserializer)?;
    text.parse().map_err(de::Error::custom)
}

impl Settings {
    /// Refuses settings of a GPU where there is none, and a GPU where none can be opened.
    pub(super) fn check_gpu(&self) -> Checked {
        let gpu = &self.gpu;
        let refuse = |setting: &'static str, expected: &str| {
            Err(Refusal {
                setting,
                found: self.get(setting).unwrap_or_default(),
                expected: expected.into(),
            })
        };
        if gpu.is_used() {
            return match self.topology.is_plain() {
                true => Ok(()),
                false => refuse(
                    "gpu.strategy",
                    "a run whose host and device are processes of their own has no GPU; set it to \
                     cpu, or leave the topology out",
                ),
            };
        }
        let needs = "it belongs to a GPU; set `gpu.strategy` to another one than cpu";
        if gpu.transfer != GpuSettings::default().transfer {
            return refuse("gpu.transfer", needs);
        }
        if gpu.profiles {
            return refuse("gpu.profiles", needs);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::Abilities;

    fn settings(pairs: &[(&str, &str)]) -> Settings {
        let mut settings = Settings::default();
        for (name, text) in pairs {
            settings.set(name, text).unwrap();
        }
        settings
    }

    #[test]
    fn strategies_and_transfers_are_set_by_name() {
        for strategy in Strategy::ALL {
            let found = settings(&[("gpu.strategy", strategy.name())]);
            assert_eq!(found.gpu.strategy, strategy);
            assert_eq!(found.gpu.is_used(), strategy != Strategy::Cpu);
            found.check(&Abilities::ALL).unwrap();
        }
        for transfer in Transfer::ALL {
            let found = settings(&[("gpu.strategy", "full"), ("gpu.transfer", transfer.name())]);
            assert_eq!(found.gpu.transfer, transfer);
            found.check(&Abilities::ALL).unwrap();
            let json = serde_json::to_value(&found).unwrap();
            assert_eq!(json["gpu"]["transfer"], transfer.name());
            assert_eq!(serde_json::from_value::<Settings>(json).unwrap(), found);
        }
        // Records of runs without a GPU have no such key, as before there was one.
        let json = serde_json::to_value(Settings::default()).unwrap();
        assert!(json.get("gpu").is_none());
    }

    #[test]
    fn other_names_are_refused_with_the_list() {
        let refused = |name: &str, text: &str| {
            let error = Settings::default().set(name, text).unwrap_err();
            error.to_string()
        };
        assert_eq!(
            refused("gpu.strategy", "hierarchicall"),
            "`gpu.strategy`: found `hierarchicall`, expected full, quick, cooperative, luda, \
             hierarchical or cpu; did you mean `hierarchical`?"
        );
        assert_eq!(
            refused("gpu.transfer", "slow"),
            "`gpu.transfer`: found `slow`, expected plain, pipeline or direct"
        );
        assert!(refused("gpu.profiles", "some").contains("true or false"));
        assert!(refused("gpu.stratgy", "full").contains("did you mean `gpu.strategy`?"));
        let error = serde_json::from_str::<Settings>(r#"{"gpu":{"strategy":"fast"}}"#);
        let error = error.unwrap_err().to_string();
        assert!(error.contains("the names are full, quick"), "{error}");
    }

    #[test]
    fn settings_of_a_gpu_need_a_gpu() {
        for (pairs, says) in [
            (&[("gpu.transfer", "direct")][..], "belongs to a GPU"),
            (&[("gpu.profiles", "true")], "belongs to a GPU"),
            (
                &[("gpu.strategy", "full"), ("topology.files", "held")],
                "has no GPU",
            ),
        ] {
            let refusal = settings(pairs).check(&Abilities::ALL).unwrap_err();
            assert!(refusal.to_string().contains(says), "{refusal}");
            assert!(refusal.setting.starts_with("gpu."), "{refusal}");
        }
    }
}

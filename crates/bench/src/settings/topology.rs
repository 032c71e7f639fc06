//! Where a run's host and device are: which part of the store the device has, the link between the
//! two, and the cores of each.
//!
//! Invariant: [`Settings::check`] refuses parts that contradict each other, so a topology that was
//! accepted can be stood up on a machine with enough cores.
//!
//! Threading: plain data.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use super::check::{Checked, Refusal};
use super::{Settings, TextError, text};

/// Which part of a store a device has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Files {
    /// There is no device.
    Local,
    /// The device holds all files.
    Held,
    /// The device holds the tables; the log and the manifest are on the host.
    HeldLocalLog,
    /// The files are in a folder that both see, and the device runs compactions.
    Shared,
    /// The device has no files. It is sent the tables that a compaction needs.
    Lent,
}

/// The link between host and device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// A Unix socket, as fast as the machine.
    Unix,
    /// A link with this many bits a second in each direction.
    Bits(u64),
}

/// The cores of a process. Linux has at most 1024 by default.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cores {
    /// All of the machine.
    Any,
    /// Those of these numbers, ascending.
    Only(Vec<u32>),
}

/// The most cores that have a number.
const CORES_MAX: u32 = 1024;
/// The slowest link.
const BITS_MIN: u64 = 1_000_000;
/// The fastest link that is shaped.
const BITS_MAX: u64 = 100_000_000_000;
const LINK_FORMS: &str = "unix, or bits a second such as 1Gbit or 100Mbit";
const CORES_FORMS: &str = "any, or numbers of cores such as 0, 0+1 or 0-3";
const UNITS: [(&str, u64); 3] = [
    ("Gbit", 1_000_000_000),
    ("Mbit", 1_000_000),
    ("kbit", 1_000),
];

impl fmt::Display for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Link::Unix => f.pad("unix"),
            Link::Bits(bits) => {
                let unit = UNITS.iter().find(|(_, unit)| bits.is_multiple_of(*unit));
                match unit {
                    Some((name, unit)) => f.pad(&format!("{}{name}", bits / unit)),
                    None => f.pad(&format!("{bits}bit")),
                }
            }
        }
    }
}

impl FromStr for Link {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Link, TextError> {
        let wrong = || TextError::new(text, LINK_FORMS);
        let trimmed = text.trim();
        if trimmed == "unix" {
            return Ok(Link::Unix);
        }
        let all = UNITS.iter().chain(&[("bit", 1)]);
        let found = all.filter_map(|(name, unit)| Some((trimmed.strip_suffix(name)?, *unit)));
        let (digits, unit) = found
            .min_by_key(|(digits, _)| digits.len())
            .ok_or_else(wrong)?;
        let number: u64 = digits.trim().parse().map_err(|_| wrong())?;
        let bits = number.checked_mul(unit).ok_or_else(wrong)?;
        match (BITS_MIN..=BITS_MAX).contains(&bits) {
            true => Ok(Link::Bits(bits)),
            false => Err(wrong()),
        }
    }
}

impl fmt::Display for Cores {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Cores::Any => f.pad("any"),
            Cores::Only(cores) => {
                let cores: Vec<String> = cores.iter().map(u32::to_string).collect();
                f.pad(&cores.join("+"))
            }
        }
    }
}

impl FromStr for Cores {
    type Err = TextError;

    fn from_str(text: &str) -> Result<Cores, TextError> {
        if text.trim() == "any" {
            return Ok(Cores::Any);
        }
        let wrong = || TextError::new(text, CORES_FORMS);
        let number = |text: &str| {
            let core = text.trim().parse::<u32>().ok();
            core.filter(|core| *core < CORES_MAX).ok_or_else(wrong)
        };
        let mut cores = Vec::new();
        for part in text.split(['+', ',']) {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (number(first)?, number(last)?);
            if first > last {
                return Err(wrong());
            }
            cores.extend(first..=last);
        }
        cores.sort_unstable();
        cores.dedup();
        Ok(Cores::Only(cores))
    }
}

/// Where host and device of a run are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Topology {
    /// Which part of the store the device has.
    pub files: Files,
    /// The link between host and device.
    pub link: Link,
    /// The cores of the process with the workload and the engine.
    pub host_cores: Cores,
    /// The cores of the device.
    pub device_cores: Cores,
    /// Compactions that the device runs at once.
    #[serde(deserialize_with = "text::count")]
    pub slots: u32,
    /// Threads of one compaction on the device.
    #[serde(deserialize_with = "text::count")]
    pub parallelism: u32,
    /// How far the processor prefers others to the device and to the engine's own workers: the
    /// `nice` of Linux, from 0 to 19.
    #[serde(deserialize_with = "text::count")]
    pub nice: u32,
}

impl Default for Topology {
    fn default() -> Topology {
        Topology {
            files: Files::Local,
            link: Link::Unix,
            host_cores: Cores::Any,
            device_cores: Cores::Any,
            slots: 1,
            parallelism: 1,
            nice: 0,
        }
    }
}

impl Topology {
    /// Whether runs need no process of their own and no device.
    pub fn is_plain(&self) -> bool {
        *self == Topology::default()
    }

    /// Whether there is a device.
    pub fn has_device(&self) -> bool {
        self.files != Files::Local
    }

    /// The bytes a second of a link that is shaped.
    pub fn link_bytes_per_s(&self) -> Option<u64> {
        match self.link {
            Link::Unix => None,
            Link::Bits(bits) => Some(bits / 8),
        }
    }
}

/// The policies and switches of the engine's option `schedule` that need a device.
const NEED_DEVICE: [&str; 4] = [
    "near-data",
    "sync-split",
    "third-score=ends",
    "third-score=split",
];

impl Settings {
    /// Refuses topologies that contradict themselves or the engine's schedule.
    pub(super) fn check_topology(&self) -> Checked {
        let topology = &self.topology;
        let default = Topology::default();
        let refuse = |setting: &'static str, expected: &str| {
            Err(Refusal {
                setting,
                found: self.get(setting).unwrap_or_default(),
                expected: expected.into(),
            })
        };
        let in_range = |number: u32| (1..=64).contains(&number);
        if !in_range(topology.slots) {
            return refuse("topology.slots", "it must be from 1 to 64");
        }
        if !in_range(topology.parallelism) {
            return refuse("topology.parallelism", "it must be from 1 to 64");
        }
        if topology.nice > 19 {
            return refuse("topology.nice", "it must be from 0 to 19");
        }
        if !topology.has_device() {
            let needs = "it belongs to a device; set `topology.files` to held, held-local-log, \
                         shared or lent";
            if topology.link != default.link {
                return refuse("topology.link", needs);
            }
            if topology.device_cores != default.device_cores {
                return refuse("topology.device_cores", needs);
            }
            if topology.slots != default.slots {
                return refuse("topology.slots", needs);
            }
            if topology.parallelism != default.parallelism {
                return refuse("topology.parallelism", needs);
            }
            return self.check_schedule();
        }
        if topology.files == Files::Shared && topology.link != Link::Unix {
            return refuse(
                "topology.link",
                "host and device of a shared folder are on one machine, whose link is unix",
            );
        }
        Ok(())
    }

    /// Refuses a schedule that needs a device where there is none.
    fn check_schedule(&self) -> Checked {
        let schedules = ["schedule", "siltstone.schedule"].map(|name| self.engine.own.get(name));
        for schedule in schedules.into_iter().flatten() {
            let plain: String = schedule.split_whitespace().collect();
            let mut parts = plain.split(',');
            let needs = |part: &str| NEED_DEVICE.iter().any(|needs| part.starts_with(needs));
            // A later switch may take the need away.
            let has_other =
                plain.contains("third-score=host-only") || plain.contains("third-score=first-done");
            if parts.any(needs) && !has_other {
                return Err(Refusal {
                    setting: "topology.files",
                    found: self.topology.files.to_string(),
                    expected: format!(
                        "the schedule `{schedule}` needs a device; set it to held, \
                         held-local-log, shared or lent"
                    ),
                });
            }
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

    fn refused(pairs: &[(&str, &str)]) -> String {
        let refusal = settings(pairs).check(&Abilities::ALL).unwrap_err();
        refusal.to_string()
    }

    #[test]
    fn links_and_cores_have_a_text() {
        for (text, link) in [
            ("unix", Link::Unix),
            ("1Gbit", Link::Bits(1_000_000_000)),
            ("1500Mbit", Link::Bits(1_500_000_000)),
            ("100Mbit", Link::Bits(100_000_000)),
        ] {
            assert_eq!(text.parse::<Link>().unwrap(), link);
            assert_eq!(link.to_string(), text);
        }
        assert_eq!("1000Mbit".parse::<Link>().unwrap().to_string(), "1Gbit");
        for wrong in [
            "", "1", "Gbit", "1.5Gbit", "-1Mbit", "1kbit", "999Gbit", "tcp",
        ] {
            let error = wrong.parse::<Link>().unwrap_err().to_string();
            assert!(error.contains("1Gbit"), "{wrong}: {error}");
        }
        for (text, shown, cores) in [
            ("any", "any", Cores::Any),
            ("0", "0", Cores::Only(vec![0])),
            ("1+0", "0+1", Cores::Only(vec![0, 1])),
            ("0-2,5,1", "0+1+2+5", Cores::Only(vec![0, 1, 2, 5])),
        ] {
            assert_eq!(text.parse::<Cores>().unwrap(), cores);
            assert_eq!(cores.to_string(), shown);
        }
        for wrong in ["", "x", "2-1", "0+", "-1", "1024", "0-99999999"] {
            assert!(wrong.parse::<Cores>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_topology_survives_json_and_a_plain_one_is_left_out() {
        let some = settings(&[
            ("topology.files", "held-local-log"),
            ("topology.link", "1Gbit"),
            ("topology.host_cores", "0"),
            ("topology.device_cores", "1"),
            ("topology.slots", "2"),
            ("topology.parallelism", "4"),
            ("topology.nice", "10"),
        ]);
        let json = serde_json::to_value(&some).unwrap();
        assert_eq!(json["topology"]["link"], "1Gbit");
        assert_eq!(serde_json::from_value::<Settings>(json).unwrap(), some);
        // Programs of earlier commits read settings, and refuse names that they do not know.
        let plain = serde_json::to_value(Settings::default()).unwrap();
        assert!(plain.get("topology").is_none());
    }

    #[test]
    fn combinations_that_make_no_sense_are_refused() {
        let needs = "belongs to a device";
        for (pairs, says) in [
            (&[("topology.link", "1Gbit")][..], needs),
            (&[("topology.device_cores", "1")], needs),
            (&[("topology.slots", "2")], needs),
            (&[("topology.parallelism", "2")], needs),
            (&[("topology.slots", "0")], "from 1 to 64"),
            (&[("topology.parallelism", "65")], "from 1 to 64"),
            (&[("topology.nice", "20")], "from 0 to 19"),
            (
                &[("topology.files", "shared"), ("topology.link", "1Gbit")],
                "on one machine",
            ),
            (&[("engine.own.schedule", "near-data")], "needs a device"),
            (
                &[("engine.own.schedule", "default, third-score = split")],
                "needs a device",
            ),
            (
                &[("engine.own.siltstone.schedule", "sync-split")],
                "needs a device",
            ),
        ] {
            let said = refused(pairs);
            assert!(said.contains(says), "{pairs:?}: {said}");
        }
        for pairs in [
            &[("topology.host_cores", "0")][..],
            &[("topology.nice", "19")],
            &[
                ("engine.own.schedule", "near-data"),
                ("topology.files", "lent"),
            ],
            &[("engine.own.schedule", "near-data,third-score=host-only")],
            &[("topology.files", "held"), ("topology.link", "1Gbit")],
            &[("engine.own.schedule", "host-only")],
        ] {
            settings(pairs).check(&Abilities::ALL).unwrap();
        }
    }
}

//! Which parts of a job a GPU computes, and how bytes get to it and back: sections 8 and 11 of the
//! RFC, by name.
//!
//! Invariants: a name is parsed to the value that prints as that name, and every other text is
//! refused with the list of all names.
//!
//! Threading: plain data.

use std::fmt;
use std::str::FromStr;

/// Which parts of a job a GPU computes, and which the host.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Strategy {
    /// The GPU unpacks, sorts, collects and packs.
    #[default]
    Full,
    /// As [`Strategy::Full`], but in jobs into levels 1 and 2 nothing is collected, so they drop no
    /// entry.
    Quick,
    /// The GPU unpacks, sorts and packs, and the host collects.
    Cooperative,
    /// The GPU unpacks and packs, and the host sorts and collects.
    Luda,
    /// [`Strategy::Quick`] into levels 1 and 2, and [`Strategy::Cooperative`] below.
    Hierarchical,
    /// The host does everything.
    Cpu,
}

impl Strategy {
    /// All strategies.
    pub const ALL: [Strategy; 6] = [
        Strategy::Full,
        Strategy::Quick,
        Strategy::Cooperative,
        Strategy::Luda,
        Strategy::Hierarchical,
        Strategy::Cpu,
    ];

    /// The names, in the order of [`Strategy::ALL`].
    pub const NAMES: &'static [&'static str] = &[
        "full",
        "quick",
        "cooperative",
        "luda",
        "hierarchical",
        "cpu",
    ];

    /// Its name.
    pub fn name(self) -> &'static str {
        Strategy::NAMES[self as usize]
    }
}

/// What the host does of a job that a GPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostUnits {
    /// Nothing.
    None,
    /// It collects.
    Collect,
    /// It sorts and collects.
    SortAndCollect,
}

impl Strategy {
    /// Whether jobs into the upper levels drop nothing.
    pub(crate) fn is_quick_above(self) -> bool {
        matches!(self, Strategy::Quick | Strategy::Hierarchical)
    }

    /// What the host does of a job. `collects_nothing` says whether the job's rules are those of
    /// [`Strategy::Quick`].
    pub(crate) fn host_units(self, collects_nothing: bool) -> HostUnits {
        match self {
            Strategy::Full | Strategy::Quick | Strategy::Cpu => HostUnits::None,
            Strategy::Hierarchical if collects_nothing => HostUnits::None,
            Strategy::Cooperative | Strategy::Hierarchical => HostUnits::Collect,
            Strategy::Luda => HostUnits::SortAndCollect,
        }
    }
}

/// How the bytes of tables get to a GPU and back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Transfer {
    /// Each step waits for the one before.
    Plain,
    /// Reads, copies, kernels and writes overlap.
    #[default]
    Pipeline,
    /// Between file and GPU, without memory of the host.
    Direct,
}

impl Transfer {
    /// All transfers.
    pub const ALL: [Transfer; 3] = [Transfer::Plain, Transfer::Pipeline, Transfer::Direct];

    /// The names, in the order of [`Transfer::ALL`].
    pub const NAMES: &'static [&'static str] = &["plain", "pipeline", "direct"];

    /// Its name.
    pub fn name(self) -> &'static str {
        Transfer::NAMES[self as usize]
    }
}

/// A name that is not in the list.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no {what} `{found}`; the names are {}", names.join(", "))]
pub struct UnknownName {
    /// What it should name.
    pub what: &'static str,
    /// The text.
    pub found: String,
    /// All names.
    pub names: &'static [&'static str],
}

/// The value at the position that a name has in the list.
fn parse<T: Copy>(
    what: &'static str,
    text: &str,
    all: &[T],
    names: &'static [&'static str],
) -> Result<T, UnknownName> {
    let place = names.iter().position(|name| *name == text);
    let value = place.and_then(|place| all.get(place));
    value.copied().ok_or_else(|| UnknownName {
        what,
        found: text.to_string(),
        names,
    })
}

impl FromStr for Strategy {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Strategy, UnknownName> {
        parse("strategy", text, &Strategy::ALL, Strategy::NAMES)
    }
}

impl fmt::Display for Strategy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for Transfer {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Transfer, UnknownName> {
        parse("transfer", text, &Transfer::ALL, Transfer::NAMES)
    }
}

impl fmt::Display for Transfer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_parsed_and_printed() {
        for (value, name) in Strategy::ALL.into_iter().zip(Strategy::NAMES) {
            assert_eq!(
                (name.parse(), value.to_string()),
                (Ok(value), name.to_string())
            );
        }
        for (value, name) in Transfer::ALL.into_iter().zip(Transfer::NAMES) {
            assert_eq!(
                (name.parse(), value.to_string()),
                (Ok(value), name.to_string())
            );
        }
        assert_eq!((Strategy::ALL.len(), Transfer::ALL.len()), (6, 3));
        assert_eq!(Strategy::Luda.name(), "luda");
        assert_eq!(
            (Strategy::default(), Transfer::default()),
            (Strategy::Full, Transfer::Pipeline)
        );
    }

    #[test]
    fn other_names_are_refused_with_the_list() {
        for wrong in ["", "Full", "full ", "gpu"] {
            let error = wrong.parse::<Strategy>().unwrap_err().to_string();
            let said = format!(
                "there is no strategy `{wrong}`; the names are full, quick, cooperative, luda, \
                 hierarchical, cpu"
            );
            assert_eq!(error, said);
        }
        let error = "slow".parse::<Transfer>().unwrap_err().to_string();
        assert_eq!(
            error,
            "there is no transfer `slow`; the names are plain, pipeline, direct"
        );
    }
}

//! How the program was built, and from which commit.
//!
//! The build script finds out about the commit (`build/commit.rs`), so it is that of the sources,
//! whatever is checked out when the program runs, and wherever it lies then.
//!
//! Threading: a pure function.

use serde::{Deserialize, Serialize};

/// How the program was built.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Build {
    /// The compiler, for example `rustc 1.95.0 (f2d3ce0bd 2026-03-21)`.
    pub rustc: Option<String>,
    /// `release`, or `debug` if debug assertions are compiled in. Figures of `debug` mean nothing.
    pub profile: Option<String>,
    /// The commit: 40 hexadecimal digits, what the environment variable `SILTSTONE_COMMIT` of the
    /// build said, or [`UNKNOWN`].
    pub commit: Option<String>,
    /// Whether sources differed from that commit when they were compiled. `None` if the commit was
    /// given by the environment variable, or is not known.
    pub is_modified: Option<bool>,
}

/// The commit of a program that was built without a repository, for example from an archive.
pub const UNKNOWN: &str = "unknown";

impl Build {
    /// What is known about this program.
    pub fn of_this_program() -> Build {
        let profile = match cfg!(debug_assertions) {
            true => "debug",
            false => "release",
        };
        let is_modified = option_env!("SILTSTONE_BUILD_IS_MODIFIED");
        Build {
            rustc: option_env!("SILTSTONE_RUSTC").map(str::to_string),
            profile: Some(profile.to_string()),
            commit: Some(
                option_env!("SILTSTONE_BUILD_COMMIT")
                    .unwrap_or(UNKNOWN)
                    .into(),
            ),
            is_modified: is_modified.and_then(|text| text.parse().ok()),
        }
    }
}

#[cfg(test)]
#[path = "../../../build/commit.rs"]
mod commit;

#[cfg(test)]
mod tests;

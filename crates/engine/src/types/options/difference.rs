//! An option whose value in force is not that of the file of options.
//!
//! Threading: plain data.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::types::options::file::OPTIONS;

/// An option whose value in force differs from the file `OPTIONS.toml` in the store's folder.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OptionDifference {
    /// The keyspace whose option the file sets; `None` for an option of the store.
    pub keyspace: Option<String>,
    /// The option's name.
    pub name: String,
    /// The value in force, as it is written in TOML.
    pub value: String,
    /// The value in the file.
    pub file_value: String,
}

impl fmt::Display for OptionDifference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(keyspace) = &self.keyspace {
            write!(f, "keyspace `{keyspace}`: ")?;
        }
        let (name, value, file_value) = (&self.name, &self.value, &self.file_value);
        write!(f, "{name} is {value}, but {OPTIONS} sets {file_value}")
    }
}

//! Reads the settings of an engine's own, and refuses what the engine does not have.
//!
//! Invariant: a name that the engine does not have is refused, with the names that it has.
//!
//! Threading: plain data.

use std::collections::BTreeMap;
use std::fmt::Display;
use std::str::FromStr;

use siltstone_bench::engine::{EngineError, Result};
use siltstone_bench::settings::Compression;

/// What [`siltstone_bench::engine::Driver::settings`] says of a setting that the engine lacks.
pub(crate) const NOT_AVAILABLE: &str = "not available";

/// The refusal of a codec that the engine does not have. With another codec in its place the
/// engines would not do the same work. `others` says what can be asked for instead.
pub(crate) fn no_codec(engine: &str, asked: Compression, others: &str) -> EngineError {
    EngineError::new("open", format!("{engine} has no {asked}; {others}"))
}

/// The settings of an engine's own, and the names that were asked for.
pub(crate) struct Own<'a> {
    engine: &'static str,
    given: &'a BTreeMap<String, String>,
    known: Vec<&'static str>,
}

impl<'a> Own<'a> {
    pub fn new(engine: &'static str, given: &'a BTreeMap<String, String>) -> Own<'a> {
        Own {
            engine,
            given,
            known: Vec::new(),
        }
    }

    fn given(&mut self, name: &'static str) -> Option<&'a str> {
        self.known.push(name);
        self.given.get(name).map(String::as_str)
    }

    /// A setting that is parsed by its type, or `default` if it is not given.
    pub fn number<T: FromStr>(&mut self, name: &'static str, default: T) -> Result<T>
    where
        T::Err: Display,
    {
        let Some(text) = self.given(name) else {
            return Ok(default);
        };
        text.parse().map_err(|error| {
            let engine = self.engine;
            EngineError::new("open", format!("{engine}: {name}={text}: {error}"))
        })
    }

    /// The position of a setting's value among `values`, or 0 if it is not given.
    pub fn choice(&mut self, name: &'static str, values: &[&str]) -> Result<usize> {
        let Some(text) = self.given(name) else {
            return Ok(0);
        };
        values
            .iter()
            .position(|value| *value == text)
            .ok_or_else(|| {
                let (engine, values) = (self.engine, values.join(" or "));
                EngineError::new(
                    "open",
                    format!("{engine}: {name}={text}: expected {values}"),
                )
            })
    }

    /// Refuses names that nobody asked for.
    pub fn check(&self) -> Result<()> {
        let unknown = |name: &&String| !self.known.contains(&name.as_str());
        match self.given.keys().find(unknown) {
            None => Ok(()),
            Some(name) => {
                let (engine, known) = (self.engine, self.known.join(", "));
                let message = format!("{engine} has no setting {name}. It has: {known}.");
                Err(EngineError::new("open", message))
            }
        }
    }
}

//! The error of all constructors in this module's parent: a parameter that makes no sense.

use std::fmt::Display;

/// A parameter that a generator refuses. It names the generator, the parameter, the value that was
/// found and what would be accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{generator}: `{parameter}` is {found}; it must be {expected}")]
pub struct ParameterError {
    /// The generator, in the word that workloads use for it.
    pub generator: &'static str,
    /// The name of the parameter.
    pub parameter: &'static str,
    /// The value that was given.
    pub found: String,
    /// The values that are accepted.
    pub expected: String,
}

impl ParameterError {
    /// An error for one parameter of one generator.
    pub(super) fn new(
        generator: &'static str,
        parameter: &'static str,
        found: impl Display,
        expected: impl Into<String>,
    ) -> ParameterError {
        ParameterError {
            generator,
            parameter,
            found: found.to_string(),
            expected: expected.into(),
        }
    }
}

/// Refuses a parameter for which `accepted` is false. NaN must make `accepted` false.
pub(super) fn require(
    accepted: bool,
    generator: &'static str,
    parameter: &'static str,
    found: impl Display,
    expected: &str,
) -> Result<(), ParameterError> {
    if accepted {
        return Ok(());
    }
    Err(ParameterError::new(generator, parameter, found, expected))
}

//! Why a run ended early.

use crate::engine::EngineError;
use crate::generate::ParameterError;
use crate::settings::Refusal;
use crate::topology::TopologyError;

/// The error of a run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The engine failed.
    #[error("{engine}: {error}")]
    Engine {
        /// The name of the engine.
        engine: String,
        /// What it said.
        error: EngineError,
    },
    /// The engine gave a wrong answer: a record is missing, one is there that must not be, or a
    /// value is not the one that was written. The figures of such a run mean nothing.
    #[error("{engine} gave a wrong answer: {what}")]
    WrongAnswer {
        /// The name of the engine.
        engine: String,
        /// What was asked, expected and found.
        what: String,
    },
    /// The settings cannot be carried out on this engine.
    #[error(transparent)]
    Settings(Refusal),
    /// A generator refused a parameter.
    #[error(transparent)]
    Parameter(#[from] ParameterError),
    /// The store in the folder is not the one that the run needs.
    #[error("{folder}: {what}")]
    Store {
        /// The folder of the store.
        folder: String,
        /// What is wrong, and what the user can do.
        what: String,
    },
    /// The operating system refused something.
    #[error("{during}: {error}")]
    System {
        /// What was done.
        during: String,
        /// What the system said.
        error: std::io::Error,
    },
    /// What the run's topology needs does not stand, or the process of the run failed.
    #[error(transparent)]
    Topology(TopologyError),
    /// The machine lacks what the run needs, so it was not begun.
    #[error("not run: {0}")]
    NotRun(String),
    /// A thread of the run panicked.
    #[error("a thread of the run panicked; this is a bug in the benchmark or in the engine")]
    Panic,
    /// The user ended the run.
    #[error("the run was interrupted")]
    Interrupted,
}

impl From<TopologyError> for RunError {
    fn from(error: TopologyError) -> RunError {
        match error {
            TopologyError::Interrupted => RunError::Interrupted,
            other => RunError::Topology(other),
        }
    }
}

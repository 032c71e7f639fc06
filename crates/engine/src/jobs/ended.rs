//! How an attempt ended whose outcome is not believed, and which side was at fault.

use std::fmt;

use siltstone_storage::StorageErrorKind;
use siltstone_table::exec::ExecError;

use crate::types::error::{Error, ErrorKind};

/// How an attempt ended whose outcome is not believed.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The verification found wrong tables.
    Rejected(Error),
    /// The executor lacks something that the job names.
    Declined(String),
    /// The executor failed, or its tables could not be read back.
    Failed(Error),
    /// The executor showed no sign of life.
    Hung,
    /// The store asked the executor to stop.
    Cancelled,
}

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Ended::Rejected(error) | Ended::Failed(error) => error.fmt(f),
            Ended::Declined(reason) => {
                write!(f, "it declined a job that it had accepted: {reason}")
            }
            Ended::Hung => f.write_str("it showed no sign of life, and its job was given up"),
            Ended::Cancelled => f.write_str("its job was cancelled"),
        }
    }
}

impl From<ExecError> for Ended {
    fn from(error: ExecError) -> Ended {
        match error {
            ExecError::Declined { reason } => Ended::Declined(reason),
            ExecError::Cancelled => Ended::Cancelled,
            ExecError::Failed(error) => Ended::Failed(error.into()),
        }
    }
}

impl Ended {
    /// The error of the job, if the host could not run it either.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Ended::Rejected(error) | Ended::Failed(error) => error,
            Ended::Hung | Ended::Cancelled => cancelled(),
            Ended::Declined(reason) => Error::new(
                ErrorKind::Unsupported,
                format!("every executor declined a job, the last: {reason}"),
            )
            .advice(
                "the store holds data of a kind that this build cannot compact; use a build that \
                 has what this reason names",
            ),
        }
    }

    /// The end that the side is judged by, if the store did not cancel the job. An executor that
    /// reports a cancellation in that case has failed, for example because its device was reset.
    pub(crate) fn unless_unasked(self, is_host: bool) -> Ended {
        match self {
            Ended::Cancelled if !is_host => Ended::Failed(Error::new(
                ErrorKind::Io,
                "the executor ended the job as cancelled, but nobody had cancelled it",
            )),
            ended => ended,
        }
    }

    /// Whether the store rather than the side may be at fault. If another side succeeds with the
    /// same job, the side was at fault.
    pub(crate) fn may_be_the_stores(&self) -> bool {
        let Ended::Failed(error) = self else {
            return false;
        };
        let storage = error.storage().map(|error| error.kind);
        matches!(error.kind(), ErrorKind::NoSpace | ErrorKind::Corruption)
            || matches!(
                storage,
                Some(StorageErrorKind::Fenced | StorageErrorKind::TooManyOpen)
            )
    }
}

/// The error for a rejected outcome.
pub(crate) fn rejection(reason: &str, executor: &str) -> Error {
    let message = format!("the outcome of a job was rejected: {reason} (executor {executor})");
    Error::new(ErrorKind::Io, message).advice(
        "nothing was installed and the job runs again; if it happens again, test the machine's \
         memory and report it",
    )
}

/// The error of a job that was cancelled.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Closed, "the job was cancelled")
}

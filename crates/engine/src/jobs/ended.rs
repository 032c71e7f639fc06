//! How an attempt ends whose outcome is not believed, and whose fault that is.

use std::fmt;

use siltstone_storage::StorageErrorKind;
use siltstone_table::exec::ExecError;

use crate::types::error::{Error, ErrorKind};

/// How an attempt ended whose outcome is not believed.
#[derive(Debug)]
pub(crate) enum Ended {
    /// The verification found that the tables are not what they must be.
    Rejected(Error),
    /// The executor lacks something that the job names.
    Declined(String),
    /// The executor failed, or its tables could not be read back.
    Failed(Error),
    /// It showed no sign of life.
    Hung,
    /// It was asked to stop.
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
    /// The error of a job that the host could not do either.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Ended::Rejected(error) | Ended::Failed(error) => error,
            Ended::Hung | Ended::Cancelled => cancelled(),
            Ended::Declined(reason) => Error::new(
                ErrorKind::Unsupported,
                format!("every executor declined a job, the last: {reason}"),
            )
            .advice(
                "the store holds data of a kind that this build cannot compact; use a newer one",
            ),
        }
    }

    /// As the side is to be judged for it, when the store has not cancelled the job: an executor
    /// that says that it was cancelled has failed, for example because its device was reset.
    pub(crate) fn unless_unasked(self, is_host: bool) -> Ended {
        match self {
            Ended::Cancelled if !is_host => Ended::Failed(Error::new(
                ErrorKind::Io,
                "the executor ended the job as cancelled, but nobody had cancelled it",
            )),
            ended => ended,
        }
    }

    /// Whether the fault may be the store's own and not the side's: it is the side's if another one
    /// does the same job.
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

/// An outcome was not accepted.
pub(crate) fn rejection(reason: &str, executor: &str) -> Error {
    let message = format!("the outcome of a job was rejected: {reason} (executor {executor})");
    Error::new(ErrorKind::Io, message).advice(
        "nothing was installed and the job runs again; if it happens again, test the machine's \
         memory and report it",
    )
}

/// The answer of a job that was asked to stop.
pub(crate) fn cancelled() -> Error {
    Error::new(ErrorKind::Closed, "the job was cancelled")
}

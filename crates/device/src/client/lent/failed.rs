//! How a step of an attempt of lent work fails: on this host, or on the device.
//!
//! Threading: plain data.

use siltstone_storage::{StorageError, StorageErrorKind};
use siltstone_table::TableError;
use siltstone_table::exec::{ExecContext, ExecError};

/// How a step of an attempt failed.
pub(super) enum Failed {
    /// This host failed or declined the job, or the job was cancelled.
    Here(ExecError),
    /// The device failed, or the session on the scratch folder.
    There(ExecError),
    /// The job was cancelled, and what it had begun on the device could not be undone soon.
    NotUndone,
}

impl Failed {
    /// Whether the session on the scratch folder is of no use any more.
    pub(super) fn is_gone(&self) -> bool {
        match self {
            Failed::There(ExecError::Failed(TableError::Storage(error))) => matches!(
                error.kind,
                StorageErrorKind::Unreachable | StorageErrorKind::Fenced
            ),
            Failed::Here(_) | Failed::There(_) => false,
            Failed::NotUndone => true,
        }
    }
}

/// The result of a step of an attempt.
pub(super) type Step<T> = std::result::Result<T, Failed>;

/// An error of this host.
pub(super) fn here(error: impl Into<ExecError>) -> Failed {
    Failed::Here(error.into())
}

/// An error of the session on the scratch folder.
pub(super) fn there(error: impl Into<ExecError>) -> Failed {
    Failed::There(error.into())
}

/// An error of a call there that gives up when the job is cancelled.
pub(super) fn there_or_cancelled(error: StorageError, ctx: &ExecContext) -> Failed {
    match ctx.cancel.is_cancelled() {
        true => Failed::Here(ExecError::Cancelled),
        false => there(error),
    }
}

/// An error of a call that should have undone what an attempt had begun there.
pub(super) fn not_undone(error: StorageError, ctx: &ExecContext) -> Failed {
    match ctx.cancel.is_cancelled() {
        true => Failed::NotUndone,
        false => there(error),
    }
}

/// Ends a step if the job was cancelled.
pub(super) fn check_cancel(ctx: &ExecContext) -> Step<()> {
    match ctx.cancel.is_cancelled() {
        true => Err(Failed::Here(ExecError::Cancelled)),
        false => Ok(()),
    }
}

/// The same error, as one of this host's store. The folder of a device that was started again is
/// gone, so its lease is too. That is an outage of the device: nobody has taken over the store.
pub(super) fn outage(error: StorageError) -> StorageError {
    if error.kind != StorageErrorKind::Fenced {
        return error;
    }
    let detail = "the device was started again, or had ended the session, and has forgotten the \
                  tables that it was sent";
    StorageError::new(StorageErrorKind::Unreachable, error.op, error.name, detail)
}

/// If the device has no room for the tables, the device declines the job. The host's disk is not
/// full.
pub(super) fn no_room(error: ExecError) -> ExecError {
    match error {
        ExecError::Failed(TableError::Storage(error)) if error.is_no_space() => {
            ExecError::declined(format!("the device has no room for the tables: {error}"))
        }
        error => error,
    }
}

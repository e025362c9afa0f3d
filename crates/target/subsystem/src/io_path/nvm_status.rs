//! Statuses of the NVM command set: for commands that a backend has failed, or that were refused. wire §17

use store::StoreError;
use wire::status::Status;

/// The blocks differ from what the host sent.
pub(crate) fn compare_failure() -> Status {
    Status::COMPARE_FAILURE.with_dnr()
}

/// Writes issued before the namespace was reopened may be lost. Not to be retried: the next Flush does not cover them.
pub(crate) fn lost_before_flush() -> Status {
    Status::WRITE_FAULT.with_dnr()
}

/// The other half of the fused pair has failed. wire §16
pub(crate) fn failed_pair() -> Status {
    Status::ABORTED_FAILED_FUSED.with_dnr()
}

/// The status for a failure of a backend. wire §17
pub(crate) fn status_of(error: StoreError, is_read: bool) -> Status {
    match error {
        StoreError::ReadOnly => Status::NAMESPACE_WRITE_PROTECTED.with_dnr(),
        StoreError::NoSpace | StoreError::FileSizeLimit => Status::CAPACITY_EXCEEDED.with_dnr(),
        StoreError::ReadFailed(_) => Status::UNRECOVERED_READ_ERROR,
        StoreError::WriteFailed(_) => Status::WRITE_FAULT,
        // Ready again only when the operator has reopened it: an event notifies hosts.
        StoreError::Closed => Status::NAMESPACE_NOT_READY.with_dnr(),
        StoreError::Unsupported => Status::INVALID_OPCODE.with_dnr(),
        // A part of the command may have been carried out: it is not "not ready".
        StoreError::Unreachable => Status::INTERNAL_PATH_ERROR,
        StoreError::NotReady => Status::NAMESPACE_NOT_READY,
        // Another path may lead to the client that has the storage by now.
        StoreError::Fenced => Status::INTERNAL_PATH_ERROR,
        StoreError::Truncated | StoreError::Injected if is_read => Status::UNRECOVERED_READ_ERROR,
        StoreError::Truncated | StoreError::Injected => Status::WRITE_FAULT,
        _ => Status::INTERNAL_ERROR,
    }
}

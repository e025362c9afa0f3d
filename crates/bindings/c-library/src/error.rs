//! Errors: codes, and texts of the last one of each thread.

use std::borrow::Cow;
use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int};

use host::key_value::KeyValueNamespace;
use host::{Failure, InvalidCommand, LinkError, RefusedReason, Status};

/// Success.
pub const NVLANE_OK: c_int = 0;
/// An argument is wrong: the text says which. Nothing has happened.
pub const NVLANE_ERROR_ARGUMENT: c_int = -1;
/// The target cannot be reached, or does not accept this host.
pub const NVLANE_ERROR_CONNECTION: c_int = -2;
/// There is no such namespace, or it is of another kind.
pub const NVLANE_ERROR_NAMESPACE: c_int = -3;
/// The target, or this build of the library, does not have what is asked for.
pub const NVLANE_ERROR_UNSUPPORTED: c_int = -4;
/// The lane has as many commands outstanding as it takes: take completions first.
pub const NVLANE_ERROR_FULL: c_int = -5;
/// The target ended the command with a status, which is beside the code.
pub const NVLANE_ERROR_STATUS: c_int = -6;
/// The connection was lost before the answer: the command may or may not have happened, and may still happen.
pub const NVLANE_ERROR_INTERRUPTED: c_int = -7;
/// No answer in time: the command may or may not have happened, and may still happen.
pub const NVLANE_ERROR_TIMED_OUT: c_int = -8;
/// The first flush after a reconnect: earlier writes that were not flushed may be lost, and must be written again.
pub const NVLANE_ERROR_UNFLUSHED: c_int = -9;
/// The command was cancelled before it happened.
pub const NVLANE_ERROR_CANCELLED: c_int = -10;
/// The target is gone for good, or was away for too long. The command has not happened.
pub const NVLANE_ERROR_UNREACHABLE: c_int = -11;
/// Other storage than before answers under the namespace's id. The command has not happened.
pub const NVLANE_ERROR_REPLACED: c_int = -12;
/// There is no such key.
pub const NVLANE_ERROR_NO_KEY: c_int = -13;
/// There is such a key, and the value was to be stored only if there is none.
pub const NVLANE_ERROR_KEY_EXISTS: c_int = -14;
/// The value is longer than the buffer, which has its first bytes.
pub const NVLANE_ERROR_TRUNCATED: c_int = -15;
/// The data differs from that on the target.
pub const NVLANE_ERROR_MISCOMPARE: c_int = -16;
/// A call of the system failed: no memory, descriptor or thread is left.
pub const NVLANE_ERROR_SYSTEM: c_int = -17;
/// The handle was made before a fork, of which this is the child: it belongs to the parent.
pub const NVLANE_ERROR_FORKED: c_int = -18;
/// A bug of the library: its message is on standard error, and the handle takes no further call but its close.
pub const NVLANE_ERROR_INTERNAL: c_int = -19;

/// An error on its way to the caller.
#[derive(Debug)]
pub(crate) struct Error {
    pub(crate) code: c_int,
    /// The controller's status, 0 for none.
    pub(crate) status: u16,
    text: Cow<'static, CStr>,
}

pub(crate) type Result<T> = std::result::Result<T, Error>;

impl Error {
    pub(crate) fn new(code: c_int, text: impl std::fmt::Display) -> Self {
        // A text may quote what the caller or the target wrote.
        let text = CString::new(text.to_string().replace('\0', "\u{fffd}")).unwrap_or_default();
        Self { code, status: 0, text: Cow::Owned(text) }
    }

    pub(crate) fn argument(text: impl std::fmt::Display) -> Self {
        Self::new(NVLANE_ERROR_ARGUMENT, text)
    }

    pub(crate) const fn of_text(code: c_int, text: &'static CStr) -> Self {
        Self { code, status: 0, text: Cow::Borrowed(text) }
    }

    /// A failed command.
    pub(crate) fn failed(command: &str, failure: Failure) -> Self {
        let (code, status) = code_of(failure);
        Self { status, ..Self::new(code, format_args!("{command} failed: {failure}")) }
    }

    /// Whether the controller ended the command with this status.
    pub(crate) fn is_status(&self, status: Status) -> bool {
        self.code == NVLANE_ERROR_STATUS && Status::from_wire(self.status).is(status)
    }

    /// A refused command.
    pub(crate) fn refused(reason: RefusedReason) -> Self {
        match reason {
            RefusedReason::Full => {
                Self::of_text(NVLANE_ERROR_FULL, c"the lane is full: take completions first")
            }
            RefusedReason::Ended => Self::new(NVLANE_ERROR_UNREACHABLE, reason),
            _ => Self::argument(reason),
        }
    }

    /// With the reason for which the association ended, if the command has not happened because of that.
    pub(crate) fn explained_by(self, over: &host::Error) -> Self {
        if self.code == NVLANE_ERROR_UNREACHABLE { Self::new(self.code, over) } else { self }
    }

    /// Keeps the text for [`nvlane_error_message`], and returns the code.
    pub(crate) fn keep(self) -> c_int {
        let code = self.code;
        LAST.set(Some(self));
        code
    }
}

/// The code of a failed command, and the controller's status.
pub(crate) fn code_of(failure: Failure) -> (c_int, u16) {
    let status = failure.status().map_or(0, |status| status.to_wire(false));
    let code = match failure {
        Failure::Status(status) if status.is(Status::KEY_DOES_NOT_EXIST) => NVLANE_ERROR_NO_KEY,
        Failure::Status(status) if status.is(Status::KEY_EXISTS) => NVLANE_ERROR_KEY_EXISTS,
        Failure::Status(status) if status.is(Status::COMPARE_FAILURE) => NVLANE_ERROR_MISCOMPARE,
        Failure::Status(_) | Failure::GaveUp { .. } => NVLANE_ERROR_STATUS,
        Failure::Interrupted => NVLANE_ERROR_INTERRUPTED,
        Failure::TimedOut => NVLANE_ERROR_TIMED_OUT,
        Failure::Unflushed => NVLANE_ERROR_UNFLUSHED,
        Failure::Cancelled => NVLANE_ERROR_CANCELLED,
        Failure::Replaced => NVLANE_ERROR_REPLACED,
        Failure::NoConnection { .. } | Failure::Unreachable => NVLANE_ERROR_UNREACHABLE,
        // A new one of the host library: the safe assumption.
        _ => NVLANE_ERROR_INTERRUPTED,
    };
    (code, status)
}

impl From<host::Error> for Error {
    fn from(error: host::Error) -> Self {
        let code = match &error {
            host::Error::Failed { failure, .. } => {
                let (code, status) = code_of(*failure);
                return Self { status, ..Self::new(code, &error) };
            }
            host::Error::Refused { reason, .. } => Self::refused(*reason).code,
            host::Error::Address(_)
            | host::Error::NoSubsystem { .. }
            | host::Error::NoLane { .. }
            | host::Error::TooFewQueues { .. } => NVLANE_ERROR_ARGUMENT,
            host::Error::Command(InvalidCommand::Unsupported(_)) | host::Error::NotBuilt { .. } => {
                NVLANE_ERROR_UNSUPPORTED
            }
            host::Error::Command(_) => NVLANE_ERROR_ARGUMENT,
            host::Error::NoNamespace { .. }
            | host::Error::WhichNamespace { .. }
            | host::Error::UnusableNamespace { .. } => NVLANE_ERROR_NAMESPACE,
            host::Error::System { .. } => NVLANE_ERROR_SYSTEM,
            host::Error::GaveUp { .. }
            | host::Error::Ended
            | host::Error::Link { cause: LinkError::Lost { .. }, .. } => NVLANE_ERROR_UNREACHABLE,
            _ => NVLANE_ERROR_CONNECTION,
        };
        Self::new(code, error)
    }
}

impl From<InvalidCommand> for Error {
    fn from(invalid: InvalidCommand) -> Self {
        host::Error::from(invalid).into()
    }
}

/// The kind of a namespace that a call is not for.
pub(crate) fn wrong_kind(has: Option<&KeyValueNamespace>) -> Error {
    let text = match has {
        Some(_) => c"this is a namespace of keys and values: blocks are read and written in another",
        None => c"this is a namespace of blocks: keys and values are in another",
    };
    Error::of_text(NVLANE_ERROR_NAMESPACE, text)
}

thread_local! {
    /// The last error of this thread.
    static LAST: RefCell<Option<Error>> = const { RefCell::new(None) };
}

/// The text of this thread's last error: what failed, why, and advice where there is any. It is never NULL, and is valid until
/// the next call of this thread fails.
#[unsafe(no_mangle)]
pub extern "C" fn nvlane_error_message() -> *const c_char {
    LAST.with_borrow(|last| last.as_ref().map_or(c"no error".as_ptr(), |error| error.text.as_ptr()))
}

/// The NVMe status of this thread's last error, as in bits 15 to 0 of the completion's last word; 0 if the target gave none.
#[unsafe(no_mangle)]
pub extern "C" fn nvlane_error_status() -> u16 {
    LAST.with_borrow(|last| last.as_ref().map_or(0, |error| error.status))
}

/// What a code means, as a short text that is valid for ever.
#[unsafe(no_mangle)]
pub extern "C" fn nvlane_error_text(code: c_int) -> *const c_char {
    let text = match code {
        NVLANE_OK => c"success",
        NVLANE_ERROR_ARGUMENT => c"an argument is wrong",
        NVLANE_ERROR_CONNECTION => c"the target cannot be reached, or does not accept this host",
        NVLANE_ERROR_NAMESPACE => c"no such namespace, or one of another kind",
        NVLANE_ERROR_UNSUPPORTED => c"not supported",
        NVLANE_ERROR_FULL => c"the lane is full: take completions first",
        NVLANE_ERROR_STATUS => c"the target ended the command with a status",
        NVLANE_ERROR_INTERRUPTED => c"connection lost before the answer: the command may have happened",
        NVLANE_ERROR_TIMED_OUT => c"no answer in time: the command may have happened",
        NVLANE_ERROR_UNFLUSHED => c"reconnected since the last flush: earlier unflushed writes may be lost",
        NVLANE_ERROR_CANCELLED => c"cancelled",
        NVLANE_ERROR_UNREACHABLE => c"the target is gone: the command has not happened",
        NVLANE_ERROR_REPLACED => c"other storage answers under this namespace id",
        NVLANE_ERROR_NO_KEY => c"there is no such key",
        NVLANE_ERROR_KEY_EXISTS => c"the key exists",
        NVLANE_ERROR_TRUNCATED => c"the value is longer than the buffer",
        NVLANE_ERROR_MISCOMPARE => c"the data differs",
        NVLANE_ERROR_SYSTEM => c"a call of the system failed",
        NVLANE_ERROR_FORKED => c"the handle belongs to the parent of this process",
        NVLANE_ERROR_INTERNAL => c"a bug of the library",
        _ => c"unknown error",
    };
    text.as_ptr()
}

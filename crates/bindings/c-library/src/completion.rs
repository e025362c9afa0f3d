//! The end of a command of a lane.

use std::ffi::c_int;

use host::Failure;

use crate::buffer::Buffer;
use crate::error::code_of;

/// The end of a command.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
pub struct Completion {
    /// The value that it was submitted with.
    pub user: u64,
    /// Its result, if it succeeded: of a get, the length of the value, which may be more than was received.
    pub result: u64,
    /// Bytes received into its buffer.
    pub received: u32,
    /// NVLANE_OK, or why it failed.
    pub error: c_int,
    /// The NVMe status, if the target gave one other than success; else 0.
    pub status: u16,
    /// 0.
    pub reserved: [u16; 3],
}

const _: () = assert!(size_of::<Completion>() == 32);

impl Completion {
    #[inline]
    pub(crate) fn of(completion: &host::Completion<Buffer>) -> Self {
        let host::Completion { user, result, received, .. } = *completion;
        match result {
            Ok(result) => Self { user, result, received, ..Self::default() },
            Err(failure) => Self::failed(user, received, failure),
        }
    }

    #[cold]
    fn failed(user: u64, received: u32, failure: Failure) -> Self {
        let (error, status) = code_of(failure);
        Self { user, received, error, status, ..Self::default() }
    }
}

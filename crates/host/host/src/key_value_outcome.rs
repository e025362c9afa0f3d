//! The results of key-value commands for a caller, however it waits for them.

use host_core::failure::Failure;
use wire::kv::{Key, KeyList};
use wire::status::Status;

use crate::error::Error;

/// The number of the first pair of commands of a batch. Numbers wrap soon, and not only after 2^32 batches.
pub(crate) const FIRST_BATCH_TAG: u32 = u32::MAX - 1;

/// Bytes read of a value whose length is not known yet.
pub(crate) const FIRST_BYTES: u32 = 4096;

/// Buffer of one List command, bytes.
pub(crate) const LIST_BYTES: u32 = 64 << 10;

/// Whether a command ended with this status.
fn is_status(error: &Error, expected: Status) -> bool {
    matches!(error, Error::Failed { failure: Failure::Status(status), .. } if status.is(expected))
}

/// Whether a Store was refused because its condition does not hold.
pub(crate) fn is_unmet_condition(error: &Error) -> bool {
    is_status(error, Status::KEY_EXISTS) || is_status(error, Status::KEY_DOES_NOT_EXIST)
}

/// Separates a key that does not exist from other failures.
pub(crate) fn present<T>(ended: Result<T, Error>) -> Result<Option<T>, Error> {
    match ended {
        Ok(value) => Ok(Some(value)),
        Err(error) if is_status(&error, Status::KEY_DOES_NOT_EXIST) => Ok(None),
        Err(error) => Err(error),
    }
}

/// The keys in the data of a List command.
pub(crate) fn listed_keys(data: &[u8]) -> Result<Vec<Key>, Error> {
    let malformed = || Error::Malformed { what: "list of keys" };
    let list = KeyList::new(data).ok_or_else(malformed)?;
    list.collect::<Result<_, _>>().map_err(|_| malformed())
}

//! Error information log (LID 01): one entry per command that failed with More, newest first. wire §11

use crate::status::Status;
use crate::{U16, U32, U64};

/// Bytes of an entry.
pub const ERROR_ENTRY_BYTES: usize = 64;

tables! {
    /// An entry of the error log; all zero where there is none. wire §11
    pub structure ErrorEntry: ERROR_ENTRY_BYTES {
        0 pub count: U64, "Errors so far, counted from 1; 0 in an empty entry.";
        8 pub sqid: U16, "Queue of the command.";
        10 pub cid: U16, "Id of the command.";
        12 status: U16;
        14 pub parameter_location: U16, "Byte and bit of the parameter in error, as the wire has it.";
        16 pub lba: U64, "First block in error.";
        24 pub nsid: U32, "Namespace of the command.";
        28 pub vs: u8, "Vendor page with more, 0 for none.";
        29 pub trtype: u8, "Transport of the command.";
        30 reserved_30: [u8; 2];
        32 pub command_specific: U64, "Specific to the command.";
        40 reserved_40: [u8; 24];
    }
}

impl ErrorEntry {
    /// Status of the command.
    #[must_use]
    pub const fn status(&self) -> Status {
        Status::from_wire(self.status.get())
    }

    /// Sets [`Self::status`].
    pub fn set_status(&mut self, status: Status) {
        self.status.set(status.to_wire(false));
    }
}

default_zeroed! { ErrorEntry }

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use zerocopy::{FromBytes, IntoBytes};

    use super::*;

    proptest! {
        /// wire §11
        #[test]
        fn an_entry_keeps_its_status(word: u16, bytes: [[u8; 32]; 2]) {
            let mut entry = ErrorEntry::read_from_bytes(bytes.as_flattened()).expect("64 bytes");
            prop_assert_eq!(entry.as_bytes(), bytes.as_flattened());
            entry.set_status(Status::from_wire(word));
            prop_assert_eq!(entry.status(), Status::from_wire(word));
            prop_assert_eq!(entry.as_bytes()[12..14].to_vec(), (word & !1).to_le_bytes().to_vec());
        }
    }
}

//! Values under keys of up to 250 bytes, and ranges of values: two commands each, or three. docs/kv-commands.md §7

use std::ops::Range;

use wire::identify::command_set::KvVendorCommands;
use wire::kv::StoreOptions;
use wire::kv::batch::{BatchCollect, StoreAttributes};
use wire::kv::value::{FLAGS_FOLLOW, RetrieveSubmit, StoreData, StoreFlags, StoreSubmit};

use super::KeyValueNamespace;
use crate::namespace::InvalidCommand;
use crate::reconnect::Class;
use crate::submit::{Command, Moves, Payload};

impl KeyValueNamespace {
    /// Retrieves ranges of a value, one after the other, or all of it if none is given, into `length` bytes. With
    /// `expected_bytes`, if it is not 0, a value of another length ends with
    /// [`INVALID_VALUE_SIZE`](wire::status::Status::INVALID_VALUE_SIZE); so does one that has fewer bytes than a range.
    ///
    /// Returns two commands, submitted one directly after the other on one lane: the first takes a buffer of that length,
    /// and ends with the bytes received and, in its high dword, the value's length. The second ends with the value's
    /// version, if it has at least a mebibyte, else 0, and in its high dword the flags. If the second fails while the first is outstanding, `cancel` the first.
    ///
    /// # Errors
    /// [`InvalidCommand`].
    pub fn retrieve_ranges(
        &self,
        tag: u32,
        key: &[u8],
        ranges: &[Range<u32>],
        (expected_bytes, length): (u32, u32),
    ) -> Result<[Command; 2], InvalidCommand> {
        self.check_vendor(KvVendorCommands::VALUE, "Retrieve Submit")?;
        self.check_long_key(key)?;
        if length == 0 {
            return Err(InvalidCommand::Empty);
        }
        Self::check_length(length, self.value_transfer_bytes_max.max(self.paired_value_bytes_max()))?;
        let collect = BatchCollect { buffer_bytes: length, tag }.to_sqe(self.nsid);
        let collect = Command::new(collect, Class::Other, Moves::AtMostFromController, length);
        let too_many =
            InvalidCommand::RangeCount { count: ranges.len(), limit: wire::kv::value::RANGE_COUNT_MAX };
        let (submit, data) = RetrieveSubmit::new(tag, key, ranges, expected_bytes).ok_or(too_many)?;
        let payload = Payload::Own(data.into());
        Ok([collect, Command::with_payload(submit.to_sqe(self.nsid), Class::Other, payload)])
    }

    /// Stores a value of `length` bytes under a key of up to 250 bytes, with attributes. Options as of
    /// [`store`](Self::store).
    ///
    /// Returns two commands, submitted one directly after the other on one lane: the first takes the value, and ends
    /// when it is stored. If the second fails while the first is outstanding, `cancel` the first.
    ///
    /// # Errors
    /// [`InvalidCommand`].
    pub fn store_long(
        &self,
        tag: u32,
        key: &[u8],
        length: u32,
        (options, attributes): (StoreOptions, StoreAttributes),
    ) -> Result<[Command; 2], InvalidCommand> {
        self.store_submitted(tag, key, length, (options.bits(), attributes))
    }

    /// As [`store_long`](Self::store_long), with flags that are known only once the value was sent, such as a checksum: then
    /// [`store_flags`](Self::store_flags) is submitted on the same lane. Until it was, the value is not stored.
    ///
    /// # Errors
    /// [`InvalidCommand`].
    pub fn store_flags_later(
        &self,
        tag: u32,
        key: &[u8],
        length: u32,
        (options, ttl_s): (StoreOptions, u32),
    ) -> Result<[Command; 2], InvalidCommand> {
        self.check_vendor(KvVendorCommands::STORE_FLAGS, "Store Flags")?;
        let attributes = StoreAttributes { ttl_s, flags: 0 };
        self.store_submitted(tag, key, length, (options.bits() | FLAGS_FOLLOW, attributes))
    }

    /// The flags of a value with this tag: see [`store_flags_later`](Self::store_flags_later).
    #[must_use]
    pub fn store_flags(&self, tag: u32, flags: u32) -> Command {
        let sqe = StoreFlags { tag, flags }.to_sqe(self.nsid);
        Command::new(sqe, Class::Other, Moves::Nothing, 0)
    }

    /// Whether the flags of a value may come behind it.
    #[must_use]
    pub fn takes_flags_later(&self) -> bool {
        self.check_vendor(KvVendorCommands::STORE_FLAGS, "Store Flags").is_ok()
    }

    fn store_submitted(
        &self,
        tag: u32,
        key: &[u8],
        length: u32,
        (options, attributes): (u8, StoreAttributes),
    ) -> Result<[Command; 2], InvalidCommand> {
        self.check_vendor(KvVendorCommands::VALUE, "Store Submit")?;
        self.check_long_key(key)?;
        Self::check_length(length, self.paired_value_bytes_max())?;
        if length == 0 {
            return Err(InvalidCommand::Empty);
        }
        let store = StoreData { value_bytes: length, tag }.to_sqe(self.nsid);
        let store = Command::new(store, Class::Other, Moves::ToController, length);
        let key_bytes = u8::try_from(key.len()).unwrap_or(u8::MAX);
        let StoreAttributes { ttl_s, flags } = attributes;
        let submit = StoreSubmit { value_bytes: length, key_bytes, options, tag, ttl_s };
        let payload = Payload::Own([&flags.to_le_bytes(), key].concat().into());
        Ok([store, Command::with_payload(submit.to_sqe(self.nsid), Class::Other, payload)])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key_value::tests::namespace;

    #[test]
    fn both_commands_of_a_value_have_one_tag() {
        let namespace = namespace(KvVendorCommands::all());
        let long = [7; 250];
        let [collect, submit] =
            namespace.retrieve_ranges(5, &long, &[0..4, 8..12], (100, 8)).expect("two ranges");
        assert_eq!(BatchCollect::from_sqe(collect.sqe()), BatchCollect { buffer_bytes: 8, tag: 5 });
        let submitted = RetrieveSubmit::from_sqe(submit.sqe());
        assert_eq!((submitted.tag, submitted.data_bytes, submitted.expected_bytes), (5, 266, 100));
        assert_eq!((collect.buffer_bytes(), submit.buffer_bytes()), (Some(8), None));
        let [store, submit] = namespace
            .store_long(6, &long, 100, (StoreOptions::MUST_NOT_EXIST, StoreAttributes { ttl_s: 9, flags: 8 }))
            .expect("a value");
        assert_eq!(StoreData::from_sqe(store.sqe()), StoreData { value_bytes: 100, tag: 6 });
        let expected = StoreSubmit { value_bytes: 100, key_bytes: 250, options: 2, tag: 6, ttl_s: 9 };
        assert_eq!(StoreSubmit::from_sqe(submit.sqe()), expected);
        let [store, submit] =
            namespace.store_flags_later(7, &long, 100, (StoreOptions::empty(), 9)).expect("a value");
        assert_eq!(StoreData::from_sqe(store.sqe()), StoreData { value_bytes: 100, tag: 7 });
        let expected = StoreSubmit { options: FLAGS_FOLLOW, tag: 7, ..expected };
        assert_eq!(StoreSubmit::from_sqe(submit.sqe()), expected);
        let flags = namespace.store_flags(7, 8);
        assert_eq!(StoreFlags::from_sqe(flags.sqe()), StoreFlags { tag: 7, flags: 8 });
        assert_eq!(flags.buffer_bytes(), None);
    }

    #[test]
    fn two_commands_move_a_value_longer_than_a_transfer_where_the_target_says_so() {
        let mut namespace = namespace(KvVendorCommands::all());
        let one = namespace.value_bytes_max();
        let whole = (StoreOptions::empty(), StoreAttributes::default());
        assert_eq!(namespace.paired_value_bytes_max(), one);
        let too_long = |limit: u32| InvalidCommand::ValueTooLong { length: u64::from(limit) + 1, limit };
        assert_eq!(namespace.store_long(0, b"k", one + 1, whole).unwrap_err(), too_long(one));
        namespace.keys.vendor.value_bytes_max = 4 * one;
        assert!(namespace.store_long(0, b"k", 4 * one, whole).is_ok());
        assert!(namespace.retrieve_ranges(0, b"k", &[], (0, 4 * one)).is_ok());
        assert_eq!(namespace.store_long(0, b"k", 4 * one + 1, whole).unwrap_err(), too_long(4 * one));
        let refused = namespace.retrieve_ranges(0, b"k", &[], (0, 4 * one + 1)).unwrap_err();
        assert_eq!(refused, too_long(4 * one));
        let short = wire::kv::Key::new(b"k").expect("a key");
        assert!(namespace.store(&short, one + 1, StoreOptions::empty()).is_err(), "alone it is limited");
        namespace.keys.vendor.commands = KvVendorCommands::BATCH;
        assert_eq!(namespace.paired_value_bytes_max(), one);
    }

    #[test]
    fn what_no_controller_takes_is_not_sent() {
        let namespace = namespace(KvVendorCommands::all());
        let whole = (StoreOptions::empty(), StoreAttributes::default());
        let length = |length| InvalidCommand::KeyLength { length, limit: 250 };
        assert_eq!(namespace.store_long(0, &[7; 251], 1, whole).unwrap_err(), length(251));
        assert_eq!(namespace.retrieve_ranges(0, b"", &[], (0, 1)).unwrap_err(), length(0));
        assert_eq!(namespace.store_long(0, b"k", 0, whole).unwrap_err(), InvalidCommand::Empty);
        assert_eq!(namespace.retrieve_ranges(0, b"k", &[], (0, 0)).unwrap_err(), InvalidCommand::Empty);
        let many = vec![0..1; 1025];
        let refused = namespace.retrieve_ranges(0, b"k", &many, (0, 1)).unwrap_err();
        assert_eq!(refused, InvalidCommand::RangeCount { count: 1025, limit: 1024 });
        let older = crate::key_value::tests::namespace(KvVendorCommands::BATCH);
        assert!(older.store_long(0, b"k", 1, whole).is_err());
        assert!(!older.takes_flags_later());
        let before = crate::key_value::tests::namespace(KvVendorCommands::VALUE);
        assert!(before.store_flags_later(0, b"k", 1, (StoreOptions::empty(), 0)).is_err());
        assert!(older.retrieve_ranges(0, b"k", &[], (0, 1)).is_err());
    }
}

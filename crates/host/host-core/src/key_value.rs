//! A key-value namespace: its limits, and the constructor of its commands.
//!
//! Commands beyond NVMe's key-value command set (atomics, vectors, batches) are vendor-specific commands of nvlane
//! targets: `docs/kv-commands.md`. [`vendor`](KeyValueNamespace::vendor) lists those that a controller supports.
//!
//! # Interrupted operations
//!
//! An operation on a number or a vector is not idempotent, so it is never submitted again: if the connection is lost
//! before its answer, it ends with [`Failure::Interrupted`](crate::Failure::Interrupted) and may or may not have been
//! executed. The same holds for a batch, of which a prefix of the operations on each partition of the target may have
//! been executed. A caller that must know reads the number, or uses compare-and-swap with values that differ between
//! attempts.
// Data from a controller must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

mod batch;
mod divided_batch;
mod partition_map;
mod value;

use proto::host_limits::Limits;
use proto::host_namespaces::{KeySpace, KeySpaceVendor, NamespaceInfo, Unusable};
use wire::id::Nsid;
use wire::identify::command_set::KvVendorCommands;
use wire::kv::batch::Operation;
use wire::kv::operation::{
    AtomicOperation, AtomicOptions, ElementCode, PIN_IF_ROOM, PIN_SECONDS_MAX, VectorComparison,
    VectorFunction,
};
use wire::kv::{Key, RetrieveOptions, StoreOptions};
use wire::opcode::KvOpcode;
use wire::sqe::Sqe;

pub use batch::Batch;
pub use divided_batch::DividedBatch;
pub use partition_map::PartitionMap;
pub(crate) use partition_map::partition_near;

use crate::namespace::InvalidCommand;
use crate::reconnect::Class;
use crate::submit::{Command, Moves, Payload, RangeBytes};

/// A key-value namespace: a value with its limits at the time of the query. It constructs commands and checks their
/// sizes.
#[derive(Clone, Copy, Debug)]
pub struct KeyValueNamespace {
    nsid: Nsid,
    keys: KeySpace,
    /// Maximum transfer of one command, bytes.
    transfer_bytes_max: u32,
    /// Maximum transfer of one command that transfers a value, bytes.
    value_transfer_bytes_max: u32,
}

/// What is done to the pins of pairs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pin {
    /// One more for each: it is not evicted for this number of seconds, 1 to a day.
    For {
        /// The seconds.
        seconds: u32,
    },
    /// The same, but a pair that cannot be pinned, since pinned pairs would have more than half of the memory, is success.
    IfRoom {
        /// The seconds.
        seconds: u32,
    },
    /// One is taken back of each.
    End,
}

impl Pin {
    /// Options and seconds of its operations.
    #[must_use]
    pub fn parts(self) -> (u8, u32) {
        match self {
            Self::For { seconds } => (0, seconds),
            Self::IfRoom { seconds } => (PIN_IF_ROOM, seconds),
            Self::End => (0, 0),
        }
    }

    /// The operation on a key, with the operand that these seconds are.
    #[must_use]
    pub fn operation<'a>(self, key: &'a [u8], seconds: &'a [u8; 4]) -> Operation<'a> {
        Operation { options: self.parts().0, operand: seconds, ..Operation::on(KvOpcode::PIN, key) }
    }
}

/// Outcome of an atomic operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AtomicOutcome {
    /// The previous number.
    pub before: u64,
    /// Whether the number changed. It does not if the result would exceed the limit, or if it was not the expected one.
    pub took_effect: bool,
}

impl KeyValueNamespace {
    /// A namespace of a controller with these limits.
    ///
    /// # Errors
    /// [`Unusable::NoKeys`] if it is not a key-value namespace.
    pub fn new(info: &NamespaceInfo, limits: &Limits) -> Result<Self, Unusable> {
        let keys = info.keys.ok_or(Unusable::NoKeys { csi: info.csi })?;
        let Limits { transfer_bytes_max, value_transfer_bytes_max, .. } = *limits;
        Ok(Self { nsid: info.nsid, keys, transfer_bytes_max, value_transfer_bytes_max })
    }

    /// The namespace id.
    #[must_use]
    pub fn nsid(&self) -> Nsid {
        self.nsid
    }

    /// Limits of keys and values.
    #[must_use]
    pub fn keys(&self) -> &KeySpace {
        &self.keys
    }

    /// Supported vendor-specific commands, and their limits.
    #[must_use]
    pub fn vendor(&self) -> &KeySpaceVendor {
        &self.keys.vendor
    }

    /// How the target divides keys among its reactors, if it tells that; see [`PartitionMap`].
    #[must_use]
    pub fn partition_map(&self) -> Option<PartitionMap> {
        self.keys.vendor.partitions.map(PartitionMap::new)
    }

    /// Maximum key in the data of a command, bytes: 16 if the controller supports no longer ones.
    #[must_use]
    pub fn long_key_bytes_max(&self) -> u16 {
        self.keys.vendor.long_key_bytes_max.max(16)
    }

    /// Checks the length of a key in the data of a command.
    pub(crate) fn check_long_key(&self, key: &[u8]) -> Result<(), InvalidCommand> {
        let (length, limit) = (key.len(), self.long_key_bytes_max());
        if (1..=usize::from(limit)).contains(&length) {
            return Ok(());
        }
        Err(InvalidCommand::KeyLength { length, limit })
    }

    /// Maximum value that one command transfers, bytes.
    #[must_use]
    pub fn value_bytes_max(&self) -> u32 {
        self.keys.value_bytes_max.min(self.value_transfer_bytes_max)
    }

    /// Maximum value that two commands move, one with the data and one with the key, bytes: on an nvlane target any value that
    /// it takes, also beside block namespaces.
    #[must_use]
    pub fn paired_value_bytes_max(&self) -> u32 {
        match self.keys.vendor.commands.contains(KvVendorCommands::VALUE) {
            true => self.keys.vendor.value_bytes_max.max(self.value_bytes_max()),
            false => self.value_bytes_max(),
        }
    }

    /// Maximum transfer of one command, bytes.
    #[must_use]
    pub fn transfer_bytes_max(&self) -> u32 {
        self.transfer_bytes_max
    }

    fn check_value(&self, length: u32) -> Result<(), InvalidCommand> {
        Self::check_length(length, self.value_bytes_max())
    }

    pub(crate) fn check_length(length: u32, limit: u32) -> Result<(), InvalidCommand> {
        if length > limit {
            return Err(InvalidCommand::ValueTooLong { length: length.into(), limit });
        }
        Ok(())
    }

    /// Checks that the controller supports these commands.
    pub(crate) fn check_vendor(
        &self,
        commands: KvVendorCommands,
        name: &'static str,
    ) -> Result<(), InvalidCommand> {
        match self.keys.vendor.commands.contains(commands) {
            true => Ok(()),
            false => Err(InvalidCommand::Unsupported(name)),
        }
    }

    /// Stores a value of `length` bytes, replacing any other. With an option it may end with
    /// [`Status::KEY_EXISTS`](wire::status::Status::KEY_EXISTS) or `KEY_DOES_NOT_EXIST`. An empty value takes no
    /// buffer.
    ///
    /// # Errors
    /// [`InvalidCommand::ValueTooLong`].
    pub fn store(&self, key: &Key, length: u32, options: StoreOptions) -> Result<Command, InvalidCommand> {
        self.check_value(length)?;
        let sqe = Sqe::kv_store(self.nsid, key, length, options);
        // The first execution changes the condition of the second.
        let class = if options.is_empty() { Class::Idempotent } else { Class::Other };
        let moves = if length == 0 { Moves::Nothing } else { Moves::ToController };
        Ok(Command::new(sqe, class, moves, length))
    }

    /// Retrieves the first `length` bytes of a value; the result is the value's full length.
    ///
    /// # Errors
    /// [`InvalidCommand::ValueTooLong`] if one command does not transfer `length` bytes, [`InvalidCommand::Empty`] for
    /// 0.
    pub fn retrieve(&self, key: &Key, length: u32) -> Result<Command, InvalidCommand> {
        let sqe = Sqe::kv_retrieve(self.nsid, key, length, RetrieveOptions::empty());
        self.bringing_at_most(self.value_transfer_bytes_max, length, Class::ReadOnly, sqe)
    }

    /// Deletes a key and its value.
    #[must_use]
    pub fn delete(&self, key: &Key) -> Command {
        Command::new(Sqe::kv_delete(self.nsid, key), Class::Idempotent, Moves::Nothing, 0)
    }

    /// Makes all changes that completed before it durable; needed where the target answers before that. The first Flush
    /// after a reconnect fails: see [`reconnect`](crate::reconnect).
    #[must_use]
    pub fn flush(&self) -> Command {
        Command::new(Sqe::flush(self.nsid), Class::Flush, Moves::Nothing, 0)
    }

    /// Tests whether a key exists; ends with `KEY_DOES_NOT_EXIST` if not.
    #[must_use]
    pub fn exist(&self, key: &Key) -> Command {
        Command::new(Sqe::kv_exist(self.nsid, key), Class::ReadOnly, Moves::Nothing, 0)
    }

    /// Pins a pair, or takes one pin back: a pinned pair is not evicted before its time is over, or before it was unpinned
    /// as often. Ends with `KEY_DOES_NOT_EXIST`, or with
    /// [`Status::CAPACITY_EXCEEDED`](wire::status::Status::CAPACITY_EXCEEDED) if pinned pairs would have more than half of the
    /// memory.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`]; [`InvalidCommand::PinTime`].
    pub fn pin(&self, key: &Key, pin: Pin) -> Result<Command, InvalidCommand> {
        self.check_pin(pin)?;
        let (options, seconds) = pin.parts();
        // A second execution would count twice.
        Ok(Command::new(Sqe::kv_pin(self.nsid, key, options, seconds), Class::Other, Moves::Nothing, 0))
    }

    /// An empty batch for pins of so many seconds, or for taking pins back, whose outcomes are one bit for each key:
    /// whether it is pinned now.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn pin_batch(&self, pin: Pin) -> Result<Batch, InvalidCommand> {
        self.check_pin(pin)?;
        self.presence_batch()
    }

    fn check_pin(&self, pin: Pin) -> Result<(), InvalidCommand> {
        self.check_vendor(KvVendorCommands::PIN, "Pin")?;
        match pin {
            Pin::For { seconds } | Pin::IfRoom { seconds } if !(1..=PIN_SECONDS_MAX).contains(&seconds) => {
                Err(InvalidCommand::PinTime { seconds, limit: PIN_SECONDS_MAX })
            }
            _ => Ok(()),
        }
    }

    /// Lists keys into `length` bytes, from `from` on if that key exists; read the data with
    /// [`KeyList`](wire::kv::KeyList).
    ///
    /// # Errors
    /// As [`retrieve`](Self::retrieve).
    pub fn list(&self, from: Option<&Key>, length: u32) -> Result<Command, InvalidCommand> {
        self.bringing(length, Class::ReadOnly, Sqe::kv_list(self.nsid, from, length))
    }

    fn bringing(&self, length: u32, class: Class, sqe: Sqe) -> Result<Command, InvalidCommand> {
        self.bringing_at_most(self.transfer_bytes_max, length, class, sqe)
    }

    fn bringing_at_most(
        &self,
        limit: u32,
        length: u32,
        class: Class,
        sqe: Sqe,
    ) -> Result<Command, InvalidCommand> {
        if length == 0 {
            return Err(InvalidCommand::Empty);
        }
        Self::check_length(length, limit)?;
        Ok(Command::new(sqe, class, Moves::AtMostFromController, length))
    }

    /// Atomically changes the number that is a key's value. The result is the previous number, from which
    /// [`AtomicOperation::took_effect`] derives whether it changed.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`].
    #[expect(clippy::expect_used, reason = "two of three words")]
    pub fn atomic(&self, key: &Key, atomic: &AtomicOperation) -> Result<Command, InvalidCommand> {
        self.check_vendor(KvVendorCommands::ATOMIC, "Atomic")?;
        let mut sqe = Sqe::kv_atomic(self.nsid, key, atomic);
        let bytes = atomic.to_bytes();
        let payload = if atomic.options.contains(AtomicOptions::CREATE) {
            Payload::Own(bytes.into())
        } else {
            // Two words suffice, and need no allocation.
            sqe.cdw10.set(16);
            Payload::Range(RangeBytes(*bytes.first_chunk().expect("24 bytes")))
        };
        Ok(Command::with_payload(sqe, Class::Other, payload))
    }

    /// Applies a function with one operand, in its low bytes, to every element of a vector. The result is the vector's
    /// length, bytes.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`].
    pub fn vector_scalar(
        &self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        operand: u64,
    ) -> Result<Command, InvalidCommand> {
        self.check_vendor(KvVendorCommands::VECTOR, "Vector Update")?;
        let sqe = Sqe::kv_vector_scalar(self.nsid, key, element, function, operand);
        Ok(Command::new(sqe, Class::Other, Moves::Nothing, 0))
    }

    /// As [`vector_scalar`](Self::vector_scalar), and returns the first `length` bytes of the vector before the change.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`], and as [`retrieve`](Self::retrieve).
    pub fn vector_fetch(
        &self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        operand: u64,
        length: u32,
    ) -> Result<Command, InvalidCommand> {
        self.check_vendor(KvVendorCommands::VECTOR, "Vector Fetch and Update")?;
        let sqe = Sqe::kv_vector_fetch(self.nsid, key, (element, function), operand, length);
        self.bringing(length, Class::Other, sqe)
    }

    /// Applies a function to each element of a vector and the element at the same index of the `length` bytes sent.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`], [`InvalidCommand::Empty`] or [`InvalidCommand::ValueTooLong`].
    pub fn vector_vector(
        &self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        length: u32,
    ) -> Result<Command, InvalidCommand> {
        self.check_vendor(KvVendorCommands::VECTOR, "Vector Update")?;
        if length == 0 {
            return Err(InvalidCommand::Empty);
        }
        self.check_value(length)?;
        let sqe = Sqe::kv_vector_vector(self.nsid, key, element, function, length);
        Ok(Command::new(sqe, Class::Other, Moves::ToController, length))
    }

    /// Reduces a vector to one element, starting with `initial`: the low bytes of the result.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`].
    pub fn vector_reduce(
        &self,
        key: &Key,
        (element, function): (ElementCode, VectorFunction),
        initial: u64,
    ) -> Result<Command, InvalidCommand> {
        self.check_vendor(KvVendorCommands::VECTOR, "Vector Reduce")?;
        let sqe = Sqe::kv_vector_reduce(self.nsid, key, element, function, initial);
        Ok(Command::new(sqe, Class::ReadOnly, Moves::Nothing, 0))
    }

    /// Returns the elements of a vector that satisfy a comparison with the operand, at most `length` bytes; the result
    /// is the length of all such elements.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`], and as [`retrieve`](Self::retrieve).
    pub fn vector_filter(
        &self,
        key: &Key,
        (element, comparison): (ElementCode, VectorComparison),
        operand: u64,
        length: u32,
    ) -> Result<Command, InvalidCommand> {
        self.check_vendor(KvVendorCommands::VECTOR, "Vector Filter")?;
        let sqe = Sqe::kv_vector_filter(self.nsid, key, (element, comparison), operand, length);
        self.bringing(length, Class::ReadOnly, sqe)
    }

    /// An empty batch.
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`].
    pub fn batch(&self) -> Result<Batch, InvalidCommand> {
        self.check_vendor(KvVendorCommands::BATCH, "Batch Submit")?;
        Ok(Batch::new(self, false))
    }

    /// An empty batch that only tests whether keys exist: read its outcomes with
    /// [`Presence::read`](wire::kv::presence::Presence::read).
    ///
    /// # Errors
    /// [`InvalidCommand::Unsupported`].
    pub fn presence_batch(&self) -> Result<Batch, InvalidCommand> {
        let commands = KvVendorCommands::BATCH | KvVendorCommands::PRESENCE;
        self.check_vendor(commands, "batches of one bit for each key")?;
        Ok(Batch::new(self, true))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proto::host_namespaces::Ids;
    use wire::id::Csi;
    use wire::identify::command_set::{KvFormat, KvNamespace, KvVendorArea};
    use wire::kv::operation::AtomicFunction;
    use wire::opcode::KvOpcode;

    /// A namespace with or without our own commands; transfers of 128 KiB, batches of 4 operations in 4 KiB.
    pub(crate) fn namespace(commands: KvVendorCommands) -> KeyValueNamespace {
        let mut identify = KvNamespace::default();
        identify.nsze.set(1 << 30);
        identify.set_format_count(1);
        identify.kvf[0] = KvFormat::new(16, 256 << 20, 0);
        let mut vendor = KvVendorArea::default();
        vendor.long_key_bytes_max.set(250);
        vendor.batch_operations_max.set(4);
        vendor.batch_bytes_max.set(4096);
        vendor.set_commands(commands);
        identify.set_vendor(vendor);
        let ids = Ids { csi: Csi::KV, ..Ids::default() };
        let info = NamespaceInfo::of_keys(Nsid::new(7), &ids, &identify);
        let blocks = crate::namespace::tests::namespace(wire::identify::capabilities::Oncs::empty());
        KeyValueNamespace::new(&info, blocks.limits()).expect("keys and values")
    }

    pub(crate) fn key(text: &str) -> Key {
        Key::new(text.as_bytes()).expect("1 to 16 bytes")
    }

    #[test]
    fn commands_move_what_they_should() {
        let namespace = namespace(KvVendorCommands::all());
        let k = key("k");
        assert_eq!(namespace.value_bytes_max(), 128 << 10, "no more than a transfer");
        assert_eq!(namespace.store(&k, 5, StoreOptions::empty()).unwrap().buffer_bytes(), Some(5));
        assert_eq!(namespace.store(&k, 0, StoreOptions::empty()).unwrap().buffer_bytes(), None);
        let too_long = InvalidCommand::ValueTooLong { length: 131_073, limit: 131_072 };
        assert_eq!(namespace.store(&k, 131_073, StoreOptions::empty()).unwrap_err(), too_long);
        assert_eq!(namespace.retrieve(&k, 131_073).unwrap_err(), too_long);
        assert_eq!(namespace.retrieve(&k, 0).unwrap_err(), InvalidCommand::Empty);
        assert_eq!(namespace.list(None, 512).unwrap().buffer_bytes(), Some(512));
        assert_eq!(namespace.delete(&k).buffer_bytes(), None);
    }

    #[test]
    fn what_depends_on_how_often_it_is_done_is_not_done_again() {
        let namespace = namespace(KvVendorCommands::all());
        let k = key("k");
        let kind = (ElementCode::U8, VectorFunction::ADD);
        let class = |command: Result<Command, InvalidCommand>| command.expect("a command").class;
        assert_eq!(class(namespace.store(&k, 1, StoreOptions::empty())), Class::Idempotent);
        assert_eq!(class(namespace.store(&k, 1, StoreOptions::MUST_NOT_EXIST)), Class::Other);
        assert_eq!(class(namespace.retrieve(&k, 1)), Class::ReadOnly);
        let add = AtomicOperation::new(AtomicFunction::ADD, 1);
        assert_eq!(class(namespace.atomic(&k, &add)), Class::Other);
        assert_eq!(class(namespace.pin(&k, Pin::For { seconds: 1 })), Class::Other);
        assert_eq!(class(namespace.pin(&k, Pin::End)), Class::Other);
        assert_eq!(class(namespace.vector_scalar(&k, kind, 1)), Class::Other);
        assert_eq!(class(namespace.vector_fetch(&k, kind, 1, 8)), Class::Other);
        assert_eq!(class(namespace.vector_vector(&k, kind, 8)), Class::Other);
        assert_eq!(class(namespace.vector_reduce(&k, kind, 0)), Class::ReadOnly);
    }

    #[test]
    fn operands_go_with_the_command() {
        let namespace = namespace(KvVendorCommands::all());
        let add = AtomicOperation::new(AtomicFunction::ADD, 1);
        let plain = namespace.atomic(&key("k"), &add).unwrap();
        assert!(matches!(plain.payload, Payload::Range(_)) && plain.sqe().cdw10.get() == 16);
        let creating = namespace.atomic(&key("k"), &add.or_create(5)).unwrap();
        assert!(matches!(&creating.payload, Payload::Own(bytes) if bytes.len() == 24));
        assert_eq!(creating.sqe().opcode, KvOpcode::ATOMIC.raw());
    }

    #[test]
    fn what_a_controller_lacks_is_said_by_name() {
        let namespace = namespace(KvVendorCommands::empty());
        let add = AtomicOperation::new(AtomicFunction::ADD, 1);
        assert_eq!(namespace.atomic(&key("k"), &add).unwrap_err(), InvalidCommand::Unsupported("Atomic"));
        assert_eq!(namespace.batch().unwrap_err(), InvalidCommand::Unsupported("Batch Submit"));
        assert_eq!(namespace.pin(&key("k"), Pin::End).unwrap_err(), InvalidCommand::Unsupported("Pin"));
    }

    #[test]
    fn a_pin_has_a_time() {
        let namespace = self::namespace(KvVendorCommands::all());
        for (pin, seconds) in [(Pin::For { seconds: 0 }, 0), (Pin::IfRoom { seconds: 86_401 }, 86_401)] {
            let refused = InvalidCommand::PinTime { seconds, limit: 86_400 };
            assert_eq!(namespace.pin(&key("k"), pin).unwrap_err(), refused);
            assert_eq!(namespace.pin_batch(pin).unwrap_err(), refused);
        }
        assert!(namespace.pin_batch(Pin::End).is_ok());
        let sqe = *namespace.pin(&key("k"), Pin::IfRoom { seconds: 60 }).expect("a pin").sqe();
        assert_eq!((sqe.opcode, sqe.cdw11.get(), sqe.cdw12.get()), (0x84, 0x0101, 60));
    }
}

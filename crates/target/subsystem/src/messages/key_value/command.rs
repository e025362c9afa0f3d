//! I/O commands of the key-value command set, parsed from SQEs. wire §23

use wire::kv::batch::{BatchCollect, BatchSubmit};
use wire::kv::operation::KvVendorCommand;
use wire::kv::value::{RetrieveSubmit, StoreData, StoreFlags, StoreSubmit};
use wire::kv::{Key, KvCommand, StoreOptions};
use wire::opcode::{KvOpcode, NvmOpcode};
use wire::sqe::Sqe;
use wire::status::Status;

/// A command of the key-value command set.
#[derive(Debug)]
pub(crate) enum KeyValueCommand {
    /// Makes all earlier changes durable.
    Flush,
    /// Receives the outcomes of a batch. docs/kv-commands.md §4
    BatchCollect(BatchCollect),
    /// Carries the operations of a batch. docs/kv-commands.md §4
    BatchSubmit(BatchSubmit),
    /// Has a Batch Collect receive a value. docs/kv-commands.md §7.1
    RetrieveSubmit(RetrieveSubmit),
    /// Names the key of a Store Data. docs/kv-commands.md §7.2
    StoreSubmit(StoreSubmit),
    /// Brings a value whose key a Store Submit names. docs/kv-commands.md §7.2
    StoreData(StoreData),
    /// Brings the flags of a value that arrives. docs/kv-commands.md §7.3
    StoreFlags(StoreFlags),
    /// Lists keys.
    List {
        /// The first key, if given.
        from: Option<Key>,
        /// Size of the host's buffer, bytes.
        room_bytes: u32,
    },
    /// One operation on one key.
    Operate(KeyedCommand),
}

/// One operation on one key.
#[derive(Debug)]
pub(crate) struct KeyedCommand {
    pub(crate) key: Key,
    pub(crate) opcode: KvOpcode,
    pub(crate) options: u8,
    /// The function, for opcodes that have several.
    pub(crate) kind: u8,
    /// Size of the host's data buffer, bytes.
    pub(crate) room_bytes: u32,
    /// Length of the data from the host, a value or operands, bytes.
    pub(crate) brought_bytes: u32,
    /// The operand in the command itself, for opcodes that have one.
    pub(crate) scalar: Option<[u8; 8]>,
}

impl KeyValueCommand {
    /// The key that it names; others name theirs in their data.
    pub(crate) fn key(&self) -> Option<&Key> {
        match self {
            Self::Operate(command) => Some(&command.key),
            Self::List { from, .. } => from.as_ref(),
            Self::Flush
            | Self::BatchCollect(_)
            | Self::BatchSubmit(_)
            | Self::RetrieveSubmit(_)
            | Self::StoreSubmit(_)
            | Self::StoreData(_)
            | Self::StoreFlags(_) => None,
        }
    }

    /// Parses a command.
    ///
    /// # Errors
    /// The status to refuse it with.
    pub(crate) fn parse(sqe: &Sqe) -> Result<Self, Status> {
        let opcode = KvOpcode::from_raw(sqe.opcode);
        match opcode {
            // Common to all command sets. wire §23
            _ if opcode.raw() == NvmOpcode::FLUSH.raw() => return Ok(Self::Flush),
            KvOpcode::BATCH_COLLECT => return Ok(Self::BatchCollect(BatchCollect::from_sqe(sqe))),
            KvOpcode::BATCH_SUBMIT => return Ok(Self::BatchSubmit(BatchSubmit::from_sqe(sqe))),
            KvOpcode::RETRIEVE_SUBMIT => return Ok(Self::RetrieveSubmit(RetrieveSubmit::from_sqe(sqe))),
            KvOpcode::STORE_SUBMIT => return Ok(Self::StoreSubmit(StoreSubmit::from_sqe(sqe))),
            KvOpcode::STORE_DATA => return Ok(Self::StoreData(StoreData::from_sqe(sqe))),
            KvOpcode::STORE_FLAGS => return Ok(Self::StoreFlags(StoreFlags::from_sqe(sqe))),
            _ => {}
        }
        let command = KvCommand::from_sqe(sqe);
        let key = command.key().map_err(|_| Status::INVALID_KEY_SIZE.with_dnr())?;
        let length = command.size_bytes;
        if opcode == KvOpcode::LIST {
            return Ok(Self::List { from: key, room_bytes: length });
        }
        let key = key.ok_or(Status::INVALID_KEY_SIZE.with_dnr())?;
        let vendor = KvVendorCommand::from_sqe(sqe);
        let scalar = Some(vendor.operand.to_le_bytes());
        let (room_bytes, brought_bytes, scalar) = match opcode {
            // Further options are only for batches, where they change what the operand is.
            KvOpcode::STORE if StoreOptions::from_bits(command.options).is_none() => {
                return Err(Status::INVALID_FIELD.with_dnr());
            }
            KvOpcode::STORE | KvOpcode::ATOMIC | KvOpcode::VECTOR_VECTOR => (0, length, None),
            KvOpcode::RETRIEVE => (length, 0, None),
            KvOpcode::DELETE | KvOpcode::EXIST => (0, 0, None),
            KvOpcode::PIN | KvOpcode::VECTOR_SCALAR | KvOpcode::VECTOR_REDUCE => (0, 0, scalar),
            KvOpcode::VECTOR_FILTER | KvOpcode::VECTOR_FETCH => (length, 0, scalar),
            _ => return Err(Status::INVALID_OPCODE.with_dnr()),
        };
        Ok(Self::Operate(KeyedCommand {
            key,
            // Returning the vector as it was is an option of the update: it has room for it.
            opcode: if opcode == KvOpcode::VECTOR_FETCH { KvOpcode::VECTOR_SCALAR } else { opcode },
            options: command.options,
            kind: if matches!(opcode.raw(), 0..0x80) { 0 } else { vendor.kind },
            room_bytes,
            brought_bytes,
            scalar,
        }))
    }
}

//! Actions that commands of NVMe lanes request from the partition of their key, and their outcomes.

use std::sync::Arc;

use kv::{ArrivingShare, ChunkList, Condition, ListPosition};
use memory::{CHUNK_BYTES, Chunk};
use store::Need;
use wire::kv::batch::StoreAttributes;
use wire::kv::{Key, StoreOptions};
use wire::opcode::KvOpcode;
use wire::status::Status;

use crate::messages::key_value::operation::condition;
use crate::objects::key_rights::KeyScope;

/// An action that a command requests from the partition of its key.
#[derive(Debug)]
pub enum KvAction {
    /// Execute one operation.
    Operate {
        /// Its opcode.
        opcode: KvOpcode,
        /// Its options.
        options: u8,
        /// Its function, for opcodes that have several. Retrieve: whether version and flags are asked for.
        kind: u8,
        /// Size of the host's data buffer, bytes.
        room_bytes: u32,
        /// The value, or operands.
        operand: Box<[u8]>,
    },
    /// Make all earlier changes durable, on this partition and those after it.
    Flush,
    /// Reserve memory for parts of an arriving value.
    Reserve {
        /// How far the value has come.
        progress: Progress,
        /// Options of the Store.
        options: u8,
        /// Length of the value, bytes.
        length: u32,
        /// Number of parts.
        count: usize,
    },
    /// Store a value that has arrived.
    Commit {
        /// Options of the Store.
        options: u8,
        /// Length of the value, bytes.
        length: u32,
        /// Its attributes.
        attributes: StoreAttributes,
        /// The value.
        chunks: Vec<Chunk>,
        /// The share of memory that it arrived in.
        share: Option<ArrivingShare>,
    },
    /// Continue a list of keys, with the keys so far and the total room.
    List {
        /// Where it begins on this partition.
        from: ListPosition,
        /// Keys so far.
        keys: Vec<Key>,
        /// The keys that the host may use; `None` for all.
        scope: Option<Arc<KeyScope>>,
        /// Room for the list, bytes.
        room: usize,
    },
}

/// How far a value has come for which memory is reserved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It begins, if others leave room for it.
    Begins,
    /// It begins once others have ended.
    Waits,
    /// It has begun.
    Begun,
}

impl KvAction {
    /// Whether an action that is not complete continues on the same partition, not on the next.
    pub(crate) fn continues_here(&self) -> bool {
        match self {
            Self::List { from, .. } => *from != ListPosition::default(),
            Self::Reserve { .. } => true,
            _ => false,
        }
    }

    /// What it needs to know of its key.
    pub(crate) fn need(&self) -> Need {
        match self {
            Self::Operate { opcode, options, .. } => need(*opcode, *options),
            Self::Reserve { options, .. } | Self::Commit { options, .. } => need(KvOpcode::STORE, *options),
            Self::Flush | Self::List { .. } => Need::Nothing,
        }
    }

    /// Bytes of the value that it stores, or of its operands, if it may change a pair.
    pub(crate) fn change_bytes(&self) -> Option<usize> {
        match self {
            Self::Operate { opcode, operand, .. } => changes(*opcode).then_some(operand.len()),
            Self::Commit { length, .. } => Some(*length as usize),
            Self::Flush | Self::List { .. } | Self::Reserve { .. } => None,
        }
    }

    /// Bytes of a value that it stores or reserves memory for.
    pub(crate) fn brought_bytes(&self) -> usize {
        match self {
            Self::Operate { opcode: KvOpcode::STORE, operand, .. } => operand.len(),
            Self::Reserve { count, .. } => count * CHUNK_BYTES,
            Self::Commit { length, .. } => *length as usize % CHUNK_BYTES,
            Self::Operate { .. } | Self::Flush | Self::List { .. } => 0,
        }
    }
}

/// Whether an operation may change a pair.
pub(crate) fn changes(opcode: KvOpcode) -> bool {
    use KvOpcode as Opcode;
    !matches!(
        opcode,
        Opcode::RETRIEVE | Opcode::EXIST | Opcode::PIN | Opcode::VECTOR_FILTER | Opcode::VECTOR_REDUCE
    )
}

/// What an operation needs to know of its key.
pub(crate) fn need(opcode: KvOpcode, options: u8) -> Need {
    match opcode {
        KvOpcode::STORE => match StoreOptions::from_bits(options).and_then(condition) {
            Some(Condition::Always) => Need::Nothing,
            _ => Need::Presence,
        },
        KvOpcode::DELETE | KvOpcode::EXIST | KvOpcode::PIN => Need::Presence,
        _ => Need::Value,
    }
}

/// The outcome of a command at its partition.
#[derive(Debug)]
pub struct KvOutcome {
    /// The status.
    pub status: Status,
    /// The value's length.
    pub result: u64,
    /// Version and flags of a value, if they were asked for.
    pub version_and_flags: u64,
    /// Data for the host.
    pub data: Box<[u8]>,
    /// Chunks to send before that data, and the total length.
    pub chunks: Option<(ChunkList, u32)>,
    /// Memory for an arriving value.
    pub room: Vec<Chunk>,
    /// Its share of memory, if it begins.
    pub share: Option<ArrivingShare>,
}

impl KvOutcome {
    pub(crate) fn new(status: Status) -> Self {
        Self {
            status,
            result: 0,
            version_and_flags: 0,
            data: Box::default(),
            chunks: None,
            room: Vec::new(),
            share: None,
        }
    }
}

//! What a command of an NVMe lane asks of the partition that has its key, and how that ended.

use kv::ChunkList;
use reactor::{CHUNK_BYTES, Chunk};
use wire::kv::Key;
use wire::opcode::KvOpcode;
use wire::status::Status;

/// What a command asks of the partition that has its key.
#[derive(Debug)]
pub enum KvAction {
    /// Carry out one operation.
    Operate {
        /// Which, by the code of its own command.
        opcode: KvOpcode,
        /// Its options.
        options: u8,
        /// What is done, of those that do different things.
        kind: u8,
        /// Bytes of data that the host takes.
        room_bytes: u32,
        /// The value, or operands.
        operand: Box<[u8]>,
    },
    /// Have everything survive that was done so far, on this partition and those after it.
    Flush,
    /// Give memory for parts of a value that arrives.
    Reserve {
        /// Options of the Store.
        options: u8,
        /// Bytes of the value.
        length: u32,
        /// For how many parts.
        count: usize,
    },
    /// Store a value that has arrived.
    Commit {
        /// Options of the Store.
        options: u8,
        /// Bytes of the value.
        length: u32,
        /// The value.
        chunks: Vec<Chunk>,
    },
    /// Go on with a list of keys, from the first partition named to the last: what there is of it, and the
    /// room in all.
    List {
        /// Key to begin with, on the first partition only.
        from: Option<Key>,
        /// Keys so far.
        keys: Vec<Key>,
        /// Room for the list, bytes.
        room: usize,
    },
}

impl KvAction {
    /// Whether it cannot be carried out without the value that is there.
    pub(crate) fn needs_value(&self) -> bool {
        match self {
            Self::Operate { opcode, .. } => needs_value(*opcode),
            Self::Flush | Self::List { .. } | Self::Reserve { .. } | Self::Commit { .. } => false,
        }
    }

    /// Bytes of a value that it wants stored, or memory for.
    pub(crate) fn brought_bytes(&self) -> usize {
        match self {
            Self::Operate { opcode: KvOpcode::STORE, operand, .. } => operand.len(),
            Self::Reserve { count, .. } => count * CHUNK_BYTES,
            Self::Commit { length, .. } => *length as usize % CHUNK_BYTES,
            Self::Operate { .. } | Self::Flush | Self::List { .. } => 0,
        }
    }
}

/// Whether an operation cannot be carried out without the value that is there.
pub(crate) fn needs_value(opcode: KvOpcode) -> bool {
    !matches!(opcode, KvOpcode::STORE | KvOpcode::DELETE | KvOpcode::EXIST)
}

/// How a command ended at its partition.
#[derive(Debug)]
pub struct KvOutcome {
    /// How.
    pub status: Status,
    /// The value's length.
    pub result: u64,
    /// What the host is sent.
    pub data: Box<[u8]>,
    /// What it is sent before that, and how much of both.
    pub chunks: Option<(ChunkList, u32)>,
    /// Memory for a value that arrives.
    pub room: Vec<Chunk>,
}

impl KvOutcome {
    pub(crate) fn new(status: Status) -> Self {
        Self { status, result: 0, data: Box::default(), chunks: None, room: Vec::new() }
    }
}

//! What is under way for each key: at most one write or read at a time, in the order of its changes.

use std::collections::{HashMap, VecDeque};

use kv::log::FetchError;
use kv::{ChunkList, KeyHash};
use memory::CHUNK_BYTES;

use super::format::{Head, PART_BYTES};

/// What is under way, by key, and which keys may go on.
#[derive(Default)]
pub(super) struct Works {
    /// Keys with changes or fetches.
    pub(super) keys: HashMap<Box<[u8]>, Work>,
    /// Those that may go on.
    pub(super) ready: VecDeque<Box<[u8]>>,
    /// Keys whose writes found no space, to be repeated at the next tick.
    pub(super) refused: Vec<Box<[u8]>>,
    pub(super) long: LongReads,
}

/// Long values are read one at a time. Others wait.
#[derive(Default)]
pub(super) struct LongReads {
    is_running: bool,
    waiting: Vec<Box<[u8]>>,
}

impl LongReads {
    /// Whether one may begin; else it waits for the end of the other.
    pub(super) fn may_begin(&mut self, key: &[u8]) -> bool {
        let may_begin = !std::mem::replace(&mut self.is_running, true);
        if !may_begin {
            self.waiting.push(key.into());
        }
        may_begin
    }

    /// One has ended. Returns those that waited, which try again.
    pub(super) fn end(&mut self) -> Vec<Box<[u8]>> {
        self.is_running = false;
        std::mem::take(&mut self.waiting)
    }
}

/// What is under way for a key.
#[derive(Default)]
pub(super) struct Work {
    pub(super) running: Running,
    /// The state that is written next, and the changes that it makes durable.
    pub(super) next: Option<Change>,
    pub(super) numbers: Vec<(u64, KeyHash)>,
    pub(super) is_wanted: bool,
}

#[derive(Default)]
pub(super) enum Running {
    #[default]
    Nothing,
    Write(Write),
    Read(Read),
}

pub(super) struct Write {
    pub(super) change: Change,
    pub(super) numbers: Vec<(u64, KeyHash)>,
    /// The next part, and those in flight.
    pub(super) next_part: u64,
    pub(super) part_runs: u32,
    pub(super) is_head_started: bool,
    pub(super) errno: Option<i32>,
}

#[derive(Default)]
pub(super) struct Read {
    pub(super) head: Option<Head>,
    pub(super) value: Vec<u8>,
    pub(super) next_part: u64,
    pub(super) part_runs: u32,
    pub(super) error: Option<FetchError>,
}

/// The state of a key.
pub(super) enum Change {
    Removed,
    /// The whole object.
    Whole(Vec<u8>),
    /// A head, and the value in parts.
    Parts(Head, ChunkList, Vec<u8>),
}

impl Change {
    pub(super) fn bytes(&self) -> usize {
        match self {
            Self::Removed => 64,
            Self::Whole(bytes) => 64 + bytes.len(),
            Self::Parts(head, ..) => 64 + length_of(head.value_bytes),
        }
    }

    /// The version of its parts, and their number.
    pub(super) fn parts(&self) -> Option<(u64, u64)> {
        match self {
            Self::Parts(head, ..) => Some((head.version, head.part_count())),
            _ => None,
        }
    }
}

/// Bytes from `start` on of a value in chunks and a rest.
pub(super) fn part_bytes(chunks: &ChunkList, rest: &[u8], number: u64) -> Vec<u8> {
    let start = usize::try_from(number).expect("few parts") * PART_BYTES;
    let first = start / CHUNK_BYTES;
    let own = &chunks[first.min(chunks.len())..(first + PART_BYTES / CHUNK_BYTES).min(chunks.len())];
    let mut bytes = Vec::with_capacity(PART_BYTES.min(own.len() * CHUNK_BYTES + rest.len()));
    own.iter().for_each(|chunk| bytes.extend_from_slice(chunk));
    if own.len() < PART_BYTES / CHUNK_BYTES {
        bytes.extend_from_slice(rest);
    }
    bytes
}

/// The length of a value, of which there are none that are longer than memory.
pub(super) fn length_of(value_bytes: u64) -> usize {
    usize::try_from(value_bytes).unwrap_or(usize::MAX)
}

/// Length of a part of a value.
pub(super) fn part_length(value_bytes: u64, number: u64) -> usize {
    length_of(value_bytes - number * PART_BYTES as u64).min(PART_BYTES)
}

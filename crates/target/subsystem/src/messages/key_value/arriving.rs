//! A Store whose value arrives in parts: its chunks, and the next request to its partition.

use std::ops::Range;

use kv::ArrivingShare;
use memory::{Buffer, CHUNK_BYTES, Chunk};
use wire::kv::batch::StoreAttributes;
use wire::status::Status;

use crate::messages::key_value::action::{KvAction, Progress};
use crate::messages::key_value::key_name::KeyName;

/// Chunks reserved beyond those received, and parts requested: the current one and the next.
const AHEAD_COUNT: usize = 2;

/// Size of a part, bytes.
const PART_BYTES: u32 = 1 << 20;
const _: () = assert!(PART_BYTES as usize == CHUNK_BYTES);

/// The memory that a command's data is received into.
#[derive(Debug)]
pub(crate) enum Intake {
    /// A buffer of the pool.
    Buffer(Buffer),
    /// A part of a value.
    Chunk(Chunk),
}

impl AsRef<[u8]> for Intake {
    #[inline]
    fn as_ref(&self) -> &[u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Chunk(chunk) => chunk,
        }
    }
}

impl AsMut<[u8]> for Intake {
    #[inline]
    fn as_mut(&mut self) -> &mut [u8] {
        match self {
            Self::Buffer(buffer) => buffer,
            Self::Chunk(chunk) => chunk,
        }
    }
}

/// A Store whose value arrives in parts.
#[derive(Debug)]
pub(crate) struct Arriving {
    pub(crate) key: KeyName,
    pub(crate) options: u8,
    pub(crate) length: u32,
    pub(crate) attributes: StoreAttributes,
    /// Whether a Store Flags brings its flags. docs/kv-commands.md §7.3
    pub(crate) awaits_flags: bool,
    /// The parts received.
    pub(crate) chunks: Vec<Chunk>,
    /// Memory for the next parts.
    pub(crate) spare: Vec<Chunk>,
    /// Number of chunks reserved so far.
    pub(crate) given_count: usize,
    /// Its share of the partition's memory, once it has begun. It is counted longer than its chunks are held.
    pub(crate) share: Option<ArrivingShare>,
    pub(crate) stage: Stage,
    /// Chunks reserved before the first part has arrived.
    pub(crate) first_count: usize,
    pub(crate) is_asking: bool,
    /// Parts requested that have not arrived.
    pub(crate) requested_count: usize,
    /// Since when a requested part, or the flags behind the last part, are awaited, ns: the last request or arrival.
    pub(crate) asked_since_ns: Option<u64>,
    /// Whether it has failed: it ends once the requested parts, which the host still sends, have arrived.
    pub(crate) failure: Option<Status>,
}

/// The progress of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// It waits behind others of its lane.
    Waiting,
    Arriving,
    /// It has arrived in full: its partition has it.
    Whole,
}

impl Arriving {
    /// A value of `length` bytes that waits for its turn.
    pub(crate) fn new(key: KeyName, options: u8, length: u32, attributes: StoreAttributes) -> Self {
        Self {
            key,
            options,
            length,
            attributes,
            awaits_flags: false,
            chunks: Vec::new(),
            spare: Vec::new(),
            given_count: 0,
            share: None,
            stage: Stage::Waiting,
            first_count: 1,
            is_asking: false,
            requested_count: 0,
            asked_since_ns: None,
            failure: None,
        }
    }

    /// Its lane receives it from now on, alone or behind another one.
    pub(crate) fn begin(&mut self, is_alone: bool) {
        self.stage = Stage::Arriving;
        self.first_count = if is_alone { AHEAD_COUNT } else { 1 };
    }

    /// Whether its partition may have stored it.
    pub(crate) fn is_whole(&self) -> bool {
        self.stage == Stage::Whole
    }

    /// Since when a requested part, or the flags behind the last one, are awaited, ns; `None` if none is.
    pub(crate) fn asked_since_ns(&self) -> Option<u64> {
        self.asked_since_ns
    }

    /// Whether every part has arrived.
    pub(crate) fn has_all_parts(&self) -> bool {
        self.chunks.len() == self.part_count()
    }

    /// A part has arrived.
    pub(crate) fn push(&mut self, chunk: Chunk, now_ns: u64) {
        self.chunks.push(chunk);
        self.requested_count = self.requested_count.saturating_sub(1);
        let is_awaited = self.requested_count > 0 || self.awaits_flags && self.has_all_parts();
        self.asked_since_ns = is_awaited.then_some(now_ns);
    }

    /// Its flags, which may come before its last part.
    pub(crate) fn set_flags(&mut self, flags: u32) {
        self.awaits_flags = false;
        self.attributes.flags = flags;
        if self.has_all_parts() {
            self.asked_since_ns = None;
        }
    }

    pub(crate) fn part_count(&self) -> usize {
        (self.length as usize).div_ceil(CHUNK_BYTES)
    }

    /// Whether at most one part is missing, with memory reserved for it.
    pub(crate) fn is_nearly_whole(&self) -> bool {
        self.is_whole() || self.given_count == self.part_count() && self.given_count - self.chunks.len() <= 1
    }

    /// The next part to request from the host, if there is memory for it.
    pub(crate) fn next_part(&mut self, now_ns: u64) -> Option<(Intake, Range<u32>)> {
        if self.requested_count == AHEAD_COUNT || self.failure.is_some() {
            return None;
        }
        let chunk = self.spare.pop()?;
        let number = self.chunks.len() + self.requested_count;
        self.requested_count += 1;
        self.asked_since_ns = Some(now_ns);
        let start = u32::try_from(number * CHUNK_BYTES).expect("within the value");
        let end = self.length.min(start.saturating_add(PART_BYTES));
        Some((Intake::Chunk(chunk), start..end))
    }

    /// The next action for its partition, if any.
    pub(crate) fn next_action(&mut self) -> Option<KvAction> {
        if self.has_all_parts() {
            if self.awaits_flags {
                return None;
            }
            self.stage = Stage::Whole;
            let chunks = std::mem::take(&mut self.chunks);
            let share = self.share.take();
            let Self { options, length, attributes, .. } = *self;
            return Some(KvAction::Commit { options, length, attributes, chunks, share });
        }
        let ahead = self.given_count - self.chunks.len();
        let ahead_max = if self.chunks.is_empty() { self.first_count } else { AHEAD_COUNT };
        let count = ahead_max.saturating_sub(ahead).min(self.part_count() - self.given_count);
        if self.is_asking || self.failure.is_some() || count == 0 {
            return None;
        }
        self.is_asking = true;
        let progress = if self.share.is_none() { Progress::Begins } else { Progress::Begun };
        Some(KvAction::Reserve { progress, options: self.options, length: self.length, count })
    }
}

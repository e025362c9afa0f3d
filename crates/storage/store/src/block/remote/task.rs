//! Requests that a reactor has in flight in another process, each in a slot.

use std::sync::Arc;

use memory::Buffer;
use reactor::DataMap;

use super::shared::{Call, Inbox, Kind};
use super::{Abilities, Wire};
use crate::namespace::{Generation, Ticket};

/// Bytes of which one command tells which parts have data.
const FOUND_BYTES: u64 = 1 << 30;

/// Commands of a search, and the time after which no other one begins, ns.
const SEARCH_COUNT: u32 = 1024;
const SEARCH_NS: u64 = 1_000_000_000;

/// The data of zeroes for storage that has no such command.
static ZEROES: [u8; 256 << 10] = [0; 256 << 10];

/// The asker of a request.
pub(super) enum Origin<W> {
    /// Our own reactor.
    Ticket(Ticket),
    /// Another one, which calls the request by this number.
    Job(Arc<Inbox<W>>, u64),
}

/// The data of a request.
pub(crate) enum Memory {
    None,
    Buffer(Buffer),
    /// Of a job.
    Copy(Vec<u8>),
    /// Of a search for data.
    Map(Arc<DataMap>),
}

/// A request in flight, carried out by one command after the other.
pub(crate) struct Task<W: Wire> {
    pub(super) origin: Origin<W>,
    pub(super) call: Call,
    pub(in crate::block) memory: Memory,
    /// The state of the namespace when it was started.
    pub(super) gate: Generation,
    pub(super) begun_ns: u64,
    /// When the request was started, ns; `begun_ns` is that of its command under way.
    started_ns: u64,
    /// Commands of a search that have ended.
    search_count: u32,
    /// It has been answered by its deadline.
    pub(super) is_overdue: bool,
    /// Bytes of the range that earlier commands have done.
    done: u64,
    /// The most that was ever done of it, its flush counted as a byte.
    reached: u64,
    /// Its range is done, and is flushed.
    is_flushing: bool,
    /// Changes that its flush covers.
    pub(super) covered: u64,
    part: Part,
    /// Bytes at the start of the part that the extents received so far describe.
    told: u64,
    /// The server has sent extents that cannot be.
    is_refuted: bool,
    /// The map of a search has no room for what was found.
    is_map_full: bool,
    /// The command under way, as the connection has it.
    pub(in crate::block) command: W::Command,
}

/// The part of a request that the command under way carries out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(in crate::block) verb: Verb,
    /// First byte in the storage, and within the request.
    pub(in crate::block) offset: u64,
    pub(in crate::block) at: u64,
    pub(in crate::block) bytes: u64,
    /// Answered when it is on stable media: where the storage has FUA.
    pub(in crate::block) is_durable: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verb {
    Read,
    /// With the data of the request, or zeroes.
    Write,
    Flush,
    Zero {
        may_deallocate: bool,
    },
    /// Tells which parts have data.
    Find,
}

/// A place within a buffer, none of which is longer than memory.
pub(crate) fn place(bytes: u64) -> usize {
    usize::try_from(bytes).unwrap_or(usize::MAX)
}

impl Memory {
    pub(in crate::block) fn bytes(&self) -> &[u8] {
        match self {
            Self::None | Self::Map(_) => &[],
            Self::Buffer(buffer) => buffer,
            Self::Copy(bytes) => bytes,
        }
    }

    pub(in crate::block) fn bytes_mut(&mut self) -> &mut [u8] {
        match self {
            Self::None | Self::Map(_) => &mut [],
            Self::Buffer(buffer) => buffer,
            Self::Copy(bytes) => bytes,
        }
    }
}

impl<W: Wire> Task<W> {
    pub(super) fn new(origin: Origin<W>, call: Call, memory: Memory, gate: Generation, now_ns: u64) -> Self {
        Self {
            origin,
            call,
            memory,
            gate,
            begun_ns: now_ns,
            started_ns: now_ns,
            search_count: 0,
            is_overdue: false,
            done: 0,
            reached: 0,
            is_flushing: false,
            covered: 0,
            part: Part { verb: Verb::Flush, offset: 0, at: 0, bytes: 0, is_durable: false },
            told: 0,
            is_refuted: false,
            is_map_full: false,
            command: W::Command::default(),
        }
    }

    /// Whether the command under way is a flush.
    pub(super) fn flushes(&self) -> bool {
        self.is_flushing || self.call.kind == Kind::Flush
    }

    /// From the beginning, on another connection: what was done may be lost, but for what was found.
    pub(super) fn restart(&mut self) {
        if self.call.kind != Kind::Find {
            (self.done, self.is_flushing) = (0, false);
        }
    }

    /// The next command begins. What another connection repeats has no time of its own: a server that is lost at the same
    /// command each time would never be late.
    pub(super) fn begin_next(&mut self, now_ns: u64) {
        let done = self.done + u64::from(self.is_flushing);
        if done > self.reached {
            (self.reached, self.begun_ns) = (done, now_ns);
        }
    }

    /// Prepares the next command.
    pub(super) fn prepare(&mut self, abilities: &Abilities) {
        let Call { kind, offset, length, is_durable } = self.call;
        let left = length - self.done;
        let by_data = left.min(u64::from(abilities.data_bytes_max));
        let (verb, bytes) = match kind {
            _ if self.flushes() => (Verb::Flush, 0),
            Kind::Read | Kind::Flush => (Verb::Read, by_data),
            Kind::Write => (Verb::Write, by_data),
            Kind::Zero { may_deallocate } if abilities.has_zeroes => {
                (Verb::Zero { may_deallocate }, left.min(abilities.zeroed_bytes_max))
            }
            Kind::Zero { .. } => (Verb::Write, by_data.min(ZEROES.len() as u64)),
            Kind::Find => (Verb::Find, left.min(FOUND_BYTES)),
        };
        let changes = matches!(verb, Verb::Write | Verb::Zero { .. });
        self.part = Part {
            verb,
            offset: if verb == Verb::Flush { 0 } else { offset + self.done },
            at: self.done,
            bytes,
            is_durable: is_durable && changes && abilities.has_fua,
        };
        self.told = 0;
        self.command = W::Command::default();
    }

    /// The next bytes of the part, and whether they have data.
    pub(in crate::block) fn add_extent(&mut self, length: u64, has_data: bool) {
        let (Part { offset, bytes, .. }, told) = (self.part, self.told);
        if length == 0 || told >= bytes {
            self.is_refuted = true;
        }
        // The last one may be longer than what was asked for.
        self.told = bytes.min(told.saturating_add(length));
        if let (true, Memory::Map(map)) = (has_data, &self.memory)
            && !map.add(offset + told..offset + self.told)
        {
            self.is_map_full = true;
        }
    }

    /// Counts a command of a search as ended. Returns whether the search is over; the bytes that no extent describes then count as data.
    pub(super) fn advance_search(&mut self, has_failed: bool, now_ns: u64) -> bool {
        let told = if has_failed || self.is_refuted { 0 } else { self.told };
        self.done += told;
        self.search_count += 1;
        if self.is_map_full || self.done >= self.call.length {
            return true;
        }
        let is_late =
            now_ns.saturating_sub(self.started_ns) >= SEARCH_NS || self.search_count >= SEARCH_COUNT;
        let is_over = told == 0 || is_late;
        if is_over {
            self.end_search();
        }
        is_over
    }

    /// Nothing more is found.
    pub(super) fn end_search(&mut self) {
        if let Memory::Map(map) = &self.memory {
            map.end_early(self.call.offset + self.done);
        }
    }

    /// Whether the server has sent extents that cannot be.
    pub(super) fn is_refuted(&self) -> bool {
        self.is_refuted
    }

    /// What the command under way has to do.
    pub(in crate::block) fn part(&self) -> Part {
        self.part
    }

    /// The data of a write.
    pub(in crate::block) fn data(&self) -> &[u8] {
        let Part { verb, at, bytes, .. } = self.part;
        let data = match (verb, self.call.kind) {
            (Verb::Write, Kind::Write) => self.memory.bytes().get(place(at)..).unwrap_or_default(),
            (Verb::Write, _) => &ZEROES[..],
            _ => &[],
        };
        data.get(..place(bytes)).unwrap_or_default()
    }

    /// Memory for the data of a read.
    pub(in crate::block) fn room(&mut self) -> &mut [u8] {
        let Part { verb, at, bytes, .. } = self.part;
        if verb != Verb::Read {
            return &mut [];
        }
        self.memory.bytes_mut().get_mut(place(at)..place(at + bytes)).unwrap_or_default()
    }

    /// The command under way has succeeded. Returns whether the request needs no other.
    pub(super) fn advance(&mut self, abilities: &Abilities) -> bool {
        if self.flushes() {
            return true;
        }
        self.done += self.part.bytes;
        let is_whole = self.done >= self.call.length;
        self.is_flushing = is_whole && self.call.is_durable && !abilities.has_fua;
        is_whole && !self.is_flushing
    }
}

/// Tasks by slot.
pub(crate) struct Tasks<W: Wire> {
    slots: Vec<Option<Task<W>>>,
    free: Vec<u32>,
}

impl<W: Wire> Default for Tasks<W> {
    fn default() -> Self {
        Self { slots: Vec::new(), free: Vec::new() }
    }
}

impl<W: Wire> Tasks<W> {
    pub(super) fn insert(&mut self, task: Task<W>) -> u32 {
        if let Some(slot) = self.free.pop() {
            self.slots[slot as usize] = Some(task);
            return slot;
        }
        self.slots.push(Some(task));
        u32::try_from(self.slots.len() - 1).expect("there are fewer buffers")
    }

    pub(super) fn remove(&mut self, slot: u32) -> Option<Task<W>> {
        let task = self.slots.get_mut(slot as usize)?.take()?;
        self.free.push(slot);
        Some(task)
    }

    pub(in crate::block) fn get_mut(&mut self, slot: u32) -> Option<&mut Task<W>> {
        self.slots.get_mut(slot as usize)?.as_mut()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.free.len() == self.slots.len()
    }

    /// The slots of the tasks for which `is_meant`.
    pub(super) fn slots(&self, is_meant: impl Fn(&Task<W>) -> bool) -> Vec<u32> {
        let slots = (0..).zip(&self.slots);
        slots.filter(|(_, task)| task.as_ref().is_some_and(&is_meant)).map(|(slot, _)| slot).collect()
    }
}

//! The running table: commands of a reactor that did not end when they began, and how far each is.
//!
//! The slot of a command in its queue (`proto::ControllerQueue`) holds only the command's ticket. The state that it
//! needs to continue is here, and not in the slot, because it outlives the slot: a backend keeps the buffers of a
//! command whose lane has ended, and completes by ticket; and because commands run that no slot belongs to: parts of a
//! Flush of all namespaces, the halves of a fused pair as one, and flushes of the control plane. A command that ends
//! when it begins has no entry.

use std::ops::Range;
use std::sync::Arc;

use memory::Buffer;
use proto::Slot;
use reactor::DataMap;
use store::Ticket;
use wire::lba_status::AllocatedBlocks;
use wire::nvm::BlockCommand;
use wire::opcode::NvmOpcode;
use wire::sqe::Sqe;

use crate::io_path::attached::AttachedIndex;
use crate::io_path::exclusion::overlap;
use crate::io_path::throttle::{Flows, Share};
use crate::messages::key_value::arriving::Arriving;
use crate::messages::key_value::digested::Digested;
use crate::messages::key_value::retrieving::Retrieving;
use crate::messages::key_value::scattered::Scattered;
use crate::names::lane_id::{CommandId, FIRST_GENERATION, GENERATION_MASK};

/// A command under way.
#[derive(Debug)]
pub(crate) struct Running {
    /// The caller.
    pub(crate) owner: Owner,
    /// The command.
    pub(crate) sqe: Sqe,
    /// Its namespace; `None` if it works on none.
    pub(crate) namespace: Option<AttachedIndex>,
    /// Its progress.
    pub(crate) step: Step,
    /// Memory that it has taken and releases at its end at the latest, bytes.
    pub(crate) taken_bytes: usize,
    /// The part of it that is a value which came in the capsule.
    pub(crate) kept_bytes: usize,
    /// While it waits for a range that is excluded.
    pub(crate) held_back: Option<HeldBack>,
    /// It has passed its rate limits.
    pub(crate) is_paid: bool,
    /// The share that it is counted in.
    pub(crate) share: Share,
}

/// What a write waits for that is held back.
#[derive(Clone, Copy, Debug)]
pub(crate) struct HeldBack {
    /// Its namespace.
    pub(crate) at: AttachedIndex,
    /// The number of the last exclusion there when it was held back first: later ones wait for it.
    pub(crate) behind: u64,
}

/// The receiver of a command's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Owner {
    /// The command in this slot of this lane; of an earlier occupant of the lane's place if the generations differ.
    Lane { index: u32, generation: u32, slot: Slot },
    /// The fused pair in these slots of this lane.
    Pair { index: u32, generation: u32, first: Slot, second: Slot },
    /// A part of another running command.
    Parent(Ticket),
    /// The control plane, for a controller that shuts down.
    Control(CommandId),
}

impl Owner {
    /// Whether it is this lane.
    pub(crate) fn is_of_lane(self, lane: u32, of_generation: u32) -> bool {
        match self {
            Self::Lane { index, generation, .. } | Self::Pair { index, generation, .. } => {
                (index, generation) == (lane, of_generation)
            }
            Self::Parent(_) | Self::Control(_) => false,
        }
    }

    /// The lane's index, if it is one.
    pub(crate) fn lane(self) -> Option<u32> {
        match self {
            Self::Lane { index, .. } | Self::Pair { index, .. } => Some(index),
            Self::Parent(_) | Self::Control(_) => None,
        }
    }
}

/// The step that a command is at.
#[derive(Debug)]
pub(crate) enum Step {
    /// Between two of the others.
    Between,
    /// Its data was asked for at this time, ns, and is on its way into the queue's buffer.
    Receiving { since_ns: u64 },
    /// It waits in its lane's line, for a buffer of this many bytes to receive its data into.
    AwaitingRoom(u32),
    /// It waits in its lane's line, to begin.
    InLine,
    /// It waits for a rate limit of reads or writes since this time, ns, with the data of its capsule.
    Throttled { data: Box<[u8]>, since_ns: u64, is_write: bool },
    /// It waits for a buffer, or for a range to be free again, with the data it has.
    Waiting(Supply),
    /// The backend has it; the next step follows.
    Backend(After),
    /// A partition of keys has it, or several do one after the other.
    Partition,
    /// A fused pair that waits for its range.
    Locking(Box<FusedPair>),
    /// A Batch Collect or Store Data that waits for its Submit, with the value that came in its capsule.
    Collecting(Box<[u8]>),
    /// A Batch Collect whose Submit is being carried out.
    Collected,
    /// A Store whose value arrives in parts.
    Arriving(Box<Arriving>),
    /// Digests of the value that it has found are computed.
    Digesting(Box<Digested>),
    /// A Batch Submit, of which other partitions carry out parts.
    Scattered(Box<Scattered>),
    /// A Retrieve Submit, whose value a partition looks up.
    Retrieving(Box<Retrieving>),
}

/// The data of a command.
#[derive(Debug)]
pub(crate) enum Supply {
    /// None, or none yet.
    None,
    /// In a buffer of the pool, which may be longer.
    Buffer(Buffer),
    /// On the heap: it came in a capsule when no buffer was free.
    Heap(Box<[u8]>),
}

/// The next step of a command when the backend has replied.
#[derive(Debug)]
pub(crate) enum After {
    /// Send this number of bytes of the buffer.
    Read { length: u32 },
    /// Complete.
    Complete,
    /// Compare the buffer with what the host sent.
    Compare(Supply),
    /// Read on from here to there.
    Verify { range: Range<u64> },
    /// Deallocate these ranges of bytes as well, last first.
    Deallocate { ranges: Vec<Range<u64>> },
    /// Copy the next part.
    Copy(Box<Copy>),
    /// Send the list of blocks that have data.
    LbaStatus(Box<LbaStatus>),
    /// Wait for `left` more parts; `status` is the first failure so far.
    FlushAll { left: u32, status: wire::status::Status },
    /// Compare the buffer, then write: a fused pair that has its range.
    FusedCompare(Box<FusedPair>),
    /// The write of a fused pair is done: give its range back.
    FusedWrite(LockNumber),
}

/// A Get LBA Status under way.
#[derive(Debug)]
pub(crate) struct LbaStatus {
    /// What the backend finds, in bytes.
    pub(crate) map: Arc<DataMap>,
    /// The range, in blocks.
    pub(crate) blocks: Range<u64>,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
    /// For the list.
    pub(crate) buffer: Buffer,
}

impl LbaStatus {
    /// The list, and its length. `is_known`: the backend knows which parts have data; otherwise all may have.
    pub(crate) fn into_list(self, is_known: bool) -> (Buffer, u32) {
        let Self { map, blocks, block_bytes, mut buffer } = self;
        if !is_known {
            drop(map.take());
            map.add(map.range());
        }
        let parts = map.take();
        let end = map.covered(&parts).div_ceil(block_bytes);
        // A block of which a part has data is allocated.
        let in_blocks = |part: &Range<u64>| part.start / block_bytes..part.end.div_ceil(block_bytes);
        let mut allocated: Vec<Range<u64>> = Vec::with_capacity(parts.len());
        for part in parts.iter().map(in_blocks) {
            match allocated.last_mut().filter(|last| last.end >= part.start) {
                Some(last) => last.end = last.end.max(part.end),
                None => allocated.push(part),
            }
        }
        let is_complete = end >= blocks.end;
        let list = AllocatedBlocks { range: blocks.start..end, allocated };
        let length = list.to_bytes(is_complete, &mut buffer);
        buffer.set_len(length);
        (buffer, u32::try_from(length).unwrap_or(u32::MAX))
    }
}

/// Names a lock among those that this reactor has asked for.
pub(crate) type LockNumber = u64;

/// Both halves of a fused Compare and Write, ready to execute.
#[derive(Debug)]
pub(crate) struct FusedPair {
    /// The data of the Compare.
    pub(crate) expected: Supply,
    /// The data of the Write.
    pub(crate) data: Supply,
    /// First byte of both.
    pub(crate) offset: u64,
    /// Bytes of each; both have at least this many.
    pub(crate) length: usize,
    /// FUA was asked for.
    pub(crate) is_durable: bool,
    /// Its lock.
    pub(crate) lock: LockNumber,
}

impl FusedPair {
    /// The bytes that are compared.
    pub(crate) fn expected_bytes(&self) -> &[u8] {
        &self.expected.bytes()[..self.length]
    }

    /// The bytes that are written.
    pub(crate) fn data_bytes(&self) -> &[u8] {
        &self.data.bytes()[..self.length]
    }
}

/// A Copy under way, in bytes.
#[derive(Debug)]
pub(crate) struct Copy {
    /// Ranges that are still to be read, the next one last.
    sources: Vec<Range<u64>>,
    /// Where the first byte of the next range goes.
    destination: u64,
    /// Bytes of the next range that were copied from its end already.
    tail: u64,
    /// The source range being copied; reported as the lowest uncopied range if that fails.
    pub(crate) range: u32,
    next_range: u32,
    /// Where that part goes.
    pub(crate) part_destination: u64,
    /// FUA was asked for.
    pub(crate) is_durable: bool,
    /// Bytes of all ranges.
    pub(crate) bytes: u64,
    /// Whether the buffer that comes back was read (and is to be written) or written.
    pub(crate) is_reading: bool,
}

impl Copy {
    /// A Copy of these ranges of bytes, which are not empty, one after the other.
    pub(crate) fn new(mut sources: Vec<Range<u64>>, destination: u64, is_durable: bool) -> Self {
        sources.reverse();
        let bytes = sources.iter().map(|range| range.end - range.start).sum();
        Self {
            bytes,
            sources,
            destination,
            tail: 0,
            range: 0,
            next_range: 0,
            part_destination: destination,
            is_durable,
            is_reading: true,
        }
    }

    /// The next part to read, at most `bytes_max`. A range that is moved up onto itself begins with its end, so that no
    /// bytes are overwritten before they are read.
    pub(crate) fn next_part(&mut self, bytes_max: u64) -> Option<Range<u64>> {
        let source = self.sources.last_mut()?;
        let count = bytes_max.min(source.end - source.start);
        self.range = self.next_range;
        let part;
        if (source.start + 1..source.end).contains(&self.destination) {
            part = source.end - count..source.end;
            source.end -= count;
            self.tail += count;
            self.part_destination = self.destination + (source.end - source.start);
        } else {
            part = source.start..source.start + count;
            source.start += count;
            self.part_destination = self.destination;
            self.destination += count;
        }
        if source.is_empty() {
            self.sources.pop();
            self.next_range += 1;
            self.destination += std::mem::take(&mut self.tail);
        }
        Some(part)
    }
}

impl Supply {
    /// The bytes.
    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Self::None => &[],
            Self::Buffer(buffer) => buffer,
            Self::Heap(bytes) => bytes,
        }
    }
}

impl Running {
    /// A command that has taken nothing yet.
    pub(crate) fn new(owner: Owner, sqe: Sqe, namespace: Option<AttachedIndex>, step: Step) -> Self {
        Self {
            owner,
            sqe,
            namespace,
            step,
            taken_bytes: 0,
            kept_bytes: 0,
            held_back: None,
            is_paid: false,
            share: Share::Free,
        }
    }

    /// The namespace of a command that a backend was asked for.
    ///
    /// # Panics
    /// If none was.
    pub(crate) fn asked_namespace(&self) -> AttachedIndex {
        self.namespace.expect("a backend was asked")
    }

    /// The blocks that it changes in the namespace before the exclusion with this number, if any; at least those.
    pub(crate) fn blocks_changed(&self, namespace: AttachedIndex, number: u64) -> Option<Range<u64>> {
        let goes_first = match self.step {
            Step::Backend(_) => self.namespace == Some(namespace),
            Step::Waiting(_) => {
                self.held_back.is_some_and(|held| held.at == namespace && held.behind < number)
            }
            _ => false,
        };
        if !goes_first {
            return None;
        }
        match NvmOpcode::from_raw(self.sqe.opcode) {
            NvmOpcode::WRITE | NvmOpcode::WRITE_ZEROES => {
                let command = BlockCommand::from_sqe(&self.sqe);
                Some(command.slba..command.slba + u64::from(command.blocks))
            }
            // Their ranges are many: all of the namespace is a safe answer.
            NvmOpcode::DATASET_MANAGEMENT | NvmOpcode::COPY => Some(0..u64::MAX),
            _ => None,
        }
    }
}

/// All commands under way on a reactor.
#[derive(Debug, Default)]
pub(crate) struct RunningTable {
    entries: Vec<Entry>,
    free: Vec<u32>,
    /// Memory taken by the commands of each lane, bytes.
    taken_bytes: Vec<usize>,
    /// The part of it that is values which came in capsules.
    kept_bytes: Vec<usize>,
    /// Commands by their share, where rates are guaranteed.
    pub(crate) flows: Flows,
}

#[derive(Debug)]
struct Entry {
    generation: u32,
    running: Option<Running>,
}

impl RunningTable {
    /// The number of commands.
    pub(crate) fn count(&self) -> usize {
        self.entries.iter().filter(|entry| entry.running.is_some()).count()
    }

    pub(crate) fn insert(&mut self, running: Running) -> Ticket {
        let index = self.free.pop().unwrap_or_else(|| {
            self.entries.push(Entry { generation: FIRST_GENERATION, running: None });
            u32::try_from(self.entries.len() - 1).expect("bounded by the queues' sizes")
        });
        let entry = &mut self.entries[index as usize];
        entry.generation = (entry.generation + 1) & GENERATION_MASK;
        entry.running = Some(running);
        Ticket(u64::from(entry.generation) << 32 | u64::from(index))
    }

    pub(crate) fn get_mut(&mut self, ticket: Ticket) -> Option<&mut Running> {
        let entry = self.entries.get_mut((ticket.0 & 0xffff_ffff) as usize)?;
        (u64::from(entry.generation) == ticket.0 >> 32).then_some(entry.running.as_mut()).flatten()
    }

    /// A command that has not ended.
    ///
    /// # Panics
    /// If it has ended.
    pub(crate) fn live_mut(&mut self, ticket: Ticket) -> &mut Running {
        self.get_mut(ticket).expect("a running command")
    }

    /// Ends a command that has not ended.
    ///
    /// # Panics
    /// As [`live_mut`](Self::live_mut).
    pub(crate) fn end(&mut self, ticket: Ticket) -> Running {
        self.remove(ticket).expect("a command ends once")
    }

    pub(crate) fn remove(&mut self, ticket: Ticket) -> Option<Running> {
        self.get_mut(ticket)?;
        let index = u32::try_from(ticket.0 & 0xffff_ffff).expect("masked");
        self.free.push(index);
        let running = self.entries[index as usize].running.take()?;
        self.flows.on_ended(running.share);
        if running.taken_bytes > 0
            && let Some(lane) = running.owner.lane()
        {
            self.taken_bytes[lane as usize] -= running.taken_bytes;
            if running.kept_bytes > 0 {
                self.kept_bytes[lane as usize] -= running.kept_bytes;
            }
        }
        Some(running)
    }

    /// Counts a command in its share.
    pub(crate) fn count_in(&mut self, ticket: Ticket, share: Share) {
        if let Some(running) = self.get_mut(ticket)
            && running.share == Share::Free
        {
            running.share = share;
            self.flows.on_begun(share);
        }
    }

    /// Counts no command any more, and has this number of parties.
    pub(crate) fn reset_flows(&mut self, party_count: usize) {
        let running = self.entries.iter_mut().filter_map(|entry| entry.running.as_mut());
        running.for_each(|running| running.share = Share::Free);
        self.flows = Flows { rest: 0, parties: vec![<_>::default(); party_count] };
    }

    /// Records the memory that a command has taken, replacing the previous amount.
    pub(crate) fn charge(&mut self, ticket: Ticket, bytes: usize) {
        let Some(running) = self.get_mut(ticket) else { return };
        let before = std::mem::replace(&mut running.taken_bytes, bytes);
        let Some(lane) = running.owner.lane() else { return };
        let lane = lane as usize;
        if self.taken_bytes.len() <= lane {
            self.taken_bytes.resize(lane + 1, 0);
        }
        self.taken_bytes[lane] = self.taken_bytes[lane] + bytes - before;
    }

    /// Records that a command keeps a value of this length, which came in its capsule.
    pub(crate) fn charge_kept(&mut self, ticket: Ticket, bytes: usize) {
        self.charge(ticket, bytes);
        let Some(running) = self.get_mut(ticket) else { return };
        running.kept_bytes = bytes;
        let Some(lane) = running.owner.lane() else { return };
        if self.kept_bytes.len() <= lane as usize {
            self.kept_bytes.resize(lane as usize + 1, 0);
        }
        self.kept_bytes[lane as usize] += bytes;
    }

    /// Since when a command waits for requested data, ns; `None` if it does not.
    pub(crate) fn asked_since_ns(&self, ticket: Ticket) -> Option<u64> {
        let entry = self.entries.get((ticket.0 & 0xffff_ffff) as usize)?;
        let running = entry.running.as_ref().filter(|_| u64::from(entry.generation) == ticket.0 >> 32)?;
        match &running.step {
            Step::Receiving { since_ns } => Some(*since_ns),
            Step::Arriving(arriving) => arriving.asked_since_ns(),
            _ => None,
        }
    }

    /// Memory taken by the commands of a lane, bytes.
    pub(crate) fn taken_bytes(&self, lane: u32) -> usize {
        self.taken_bytes.get(lane as usize).copied().unwrap_or(0)
    }

    /// Values that the commands of a lane keep, bytes.
    pub(crate) fn kept_bytes(&self, lane: u32) -> usize {
        self.kept_bytes.get(lane as usize).copied().unwrap_or(0)
    }

    /// Memory taken by the commands of all lanes, bytes.
    pub(crate) fn all_taken_bytes(&self) -> usize {
        self.taken_bytes.iter().chain(&self.kept_bytes).sum()
    }

    /// The first that is so.
    pub(crate) fn find(&self, is_so: impl Fn(&Running) -> bool) -> Option<Ticket> {
        let is_so = |entry: &Entry| entry.running.as_ref().is_some_and(&is_so);
        let index = self.entries.iter().position(is_so)?;
        Some(Ticket(u64::from(self.entries[index].generation) << 32 | index as u64))
    }

    /// Commands of a lane that have an operation running which cannot be taken back.
    pub(crate) fn count_of_lane(&self, lane: u32, of_generation: u32) -> u32 {
        let is_of_lane = |running: &&Running| running.owner.is_of_lane(lane, of_generation);
        let count = self.iter().filter(is_of_lane).count();
        u32::try_from(count).expect("bounded by the queue's size")
    }

    /// Whether a command changes any of these blocks before the exclusion with this number.
    pub(crate) fn changes(&self, namespace: AttachedIndex, blocks: &Range<u64>, number: u64) -> bool {
        let mut changed = self.iter().filter_map(|running| running.blocks_changed(namespace, number));
        changed.any(|changed| overlap(&changed, blocks))
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Running> {
        self.entries.iter().filter_map(|entry| entry.running.as_ref())
    }
}

#[cfg(test)]
mod tests {
    use wire::id::Nsid;

    use super::*;
    use proptest::prelude::*;

    #[test]
    fn buffers_of_a_lane_are_no_values_that_it_keeps() {
        let mut table = RunningTable::default();
        let owner = Owner::Lane { index: 2, generation: 1, slot: Slot::new(0) };
        let mut begin = || table.insert(Running::new(owner, Sqe::flush(Nsid::new(1)), None, Step::Between));
        let [read, value, other] = [begin(), begin(), begin()];
        table.charge(read, 4 << 20);
        table.charge_kept(value, 100);
        table.charge_kept(other, 30);
        assert_eq!((table.taken_bytes(2), table.kept_bytes(2)), ((4 << 20) + 130, 130));
        assert_eq!((table.taken_bytes(1), table.kept_bytes(1)), (0, 0));
        table.end(value);
        assert_eq!((table.taken_bytes(2), table.kept_bytes(2)), ((4 << 20) + 30, 30));
        table.end(read);
        table.end(other);
        assert_eq!(table.all_taken_bytes(), 0);
    }

    proptest! {
        /// With parts of any size, each range is moved as a whole, before the next one.
        #[test]
        fn a_copy_in_parts_moves_each_range_as_one(
            ranges in proptest::collection::vec((0usize..60, 1usize..40), 1..4),
            destination in 0usize..100,
            part_max in 1u64..50,
        ) {
            let mut model: Vec<u8> = (0..220).collect();
            let mut memory = model.clone();
            let sources: Vec<_> = ranges.iter().map(|&(at, count)| at as u64..(at + count) as u64).collect();
            let mut to = destination;
            for &(at, count) in &ranges {
                model.copy_within(at..at + count, to);
                to += count;
            }
            let mut copy = Copy::new(sources, destination as u64, false);
            let mut before = 0;
            while let Some(part) = copy.next_part(part_max) {
                prop_assert!(copy.range == before || copy.range == before + 1);
                before = copy.range;
                prop_assert!(part.end - part.start <= part_max && !part.is_empty());
                let to = usize::try_from(copy.part_destination).unwrap();
                memory.copy_within(part.start as usize..part.end as usize, to);
            }
            prop_assert_eq!(memory, model);
            prop_assert_eq!(before as usize, ranges.len() - 1);
        }
    }
}

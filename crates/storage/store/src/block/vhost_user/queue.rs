//! A split virtqueue as the driver has it: requests of one reactor become chains of descriptors, and come back.
//!
//! ```text
//! head ─▶ data ─▶ status      the three descriptors of a place in the ring, always the same ones
//! ```
//!
//! The device can write into all of this memory at any time. What it says is checked: it can spoil data, and nothing else.
// circle with session.rs: a connection lays out its queues, and a queue keeps its connection and the memory

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_S_IOERR, VIRTIO_BLK_S_OK, VIRTIO_BLK_S_UNSUPP, VIRTIO_BLK_T_FLUSH, VIRTIO_BLK_T_IN,
    VIRTIO_BLK_T_OUT, VIRTIO_BLK_T_WRITE_ZEROES, VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP,
};
use virtio_bindings::virtio_ring::{VRING_DESC_F_NEXT, VRING_DESC_F_WRITE, VRING_USED_F_NO_NOTIFY};
use vm_memory::{Bytes, GuestAddress};

use super::session::{Queue, SECTOR_BYTES, Session};
use crate::block::remote::{Ended, Lost, Tasks, Verb, Wire};

/// Entries of a ring.
pub(super) const QUEUE_SIZE: u16 = 256;

/// Requests in a ring: each has three descriptors.
const PLACES: u16 = QUEUE_SIZE / 3;

/// Longest data of a request.
pub(super) const DATA_BYTES: u64 = 256 << 10;

/// Bytes of a request's head; of the head and the status of a place, so that no two share a line; of a descriptor.
const HEAD_BYTES: u64 = 16;
const PLACE_BYTES: u64 = 64;
const DESCRIPTOR_BYTES: u64 = 16;

/// Where the parts of a queue's memory are. Most of it is never touched: places that were used last are used first.
const AVAILABLE_AT: u64 = 4096;
const USED_AT: u64 = 8192;
const PLACES_AT: u64 = 16 << 10;
const DATA_AT: u64 = 32 << 10;
pub(super) const QUEUE_BYTES: u64 = DATA_AT + PLACES as u64 * DATA_BYTES;

/// A status that no device gives.
const NO_STATUS: u8 = 0xff;

/// Error numbers.
const EIO: u32 = 5;
const EOPNOTSUPP: u32 = 95;

/// The places of a queue's parts in the memory.
#[derive(Clone, Copy)]
pub(super) struct Layout {
    pub(super) at: u64,
}

impl Layout {
    pub(super) fn descriptors(self) -> u64 {
        self.at
    }

    pub(super) fn available(self) -> u64 {
        self.at + AVAILABLE_AT
    }

    pub(super) fn used(self) -> u64 {
        self.at + USED_AT
    }

    fn head(self, place: u16) -> u64 {
        self.at + PLACES_AT + u64::from(place) * PLACE_BYTES
    }

    fn status(self, place: u16) -> u64 {
        self.head(place) + HEAD_BYTES
    }

    fn data(self, place: u16) -> u64 {
        self.at + DATA_AT + u64::from(place) * DATA_BYTES
    }
}

/// A queue of a connection, which belongs to one reactor.
pub(crate) struct QueueWire {
    session: Arc<Session>,
    queue: Queue,
    /// Places in the ring that are free, and the slots of the tasks at the others.
    free: Vec<u16>,
    slots: Vec<Option<u32>>,
    /// Slots of tasks that wait for a place.
    waiting: VecDeque<u32>,
    /// Chains given to the device, and taken back.
    available: u16,
    used: u16,
    /// The device's count of chains that it gave back.
    used_by_device: u16,
    /// All that the bell has told is taken in.
    is_drained: bool,
    is_leaving: bool,
}

/// Memory of ours is at the places that we compute.
fn outside(error: impl std::fmt::Display) -> Lost {
    Lost::Violation(format!("shared memory: {error}"))
}

impl QueueWire {
    pub(super) fn new(session: Arc<Session>, queue: Queue) -> Self {
        Self {
            session,
            queue,
            free: (0..PLACES).rev().collect(),
            slots: vec![None; PLACES.into()],
            waiting: VecDeque::new(),
            available: 0,
            used: 0,
            used_by_device: 0,
            is_drained: false,
            is_leaving: false,
        }
    }

    fn write<T: vm_memory::ByteValued>(&self, value: T, at: u64) -> Result<(), Lost> {
        self.session.memory.write_obj(value, GuestAddress(at)).map_err(outside)
    }

    fn load(&self, at: u64) -> Result<u16, Lost> {
        let number = self.session.memory.load::<u16>(GuestAddress(at), Ordering::Acquire);
        number.map(u16::from_le).map_err(outside)
    }

    /// Writes the chain of a task's command, and shows it to the device with the next ones.
    fn put(&mut self, tasks: &mut Tasks<Self>, slot: u32, place: u16) -> Result<(), Lost> {
        let Some(task) = tasks.get_mut(slot) else { return Err(Lost::Ended) };
        let (part, layout) = (task.part(), self.queue.layout);
        let data_at = layout.data(place);
        let (kind, length, is_written) = match part.verb {
            Verb::Read => (VIRTIO_BLK_T_IN, part.bytes, true),
            Verb::Write => {
                let data = task.data();
                self.session.memory.write_slice(data, GuestAddress(data_at)).map_err(outside)?;
                (VIRTIO_BLK_T_OUT, part.bytes, false)
            }
            Verb::Flush => (VIRTIO_BLK_T_FLUSH, 0, false),
            Verb::Zero { may_deallocate } => {
                let flags = if may_deallocate { VIRTIO_BLK_WRITE_ZEROES_FLAG_UNMAP } else { 0 };
                let sectors = u32::try_from(part.bytes / SECTOR_BYTES).map_err(outside)?;
                self.write((part.offset / SECTOR_BYTES).to_le(), data_at)?;
                self.write(sectors.to_le(), data_at + 8)?;
                self.write(flags.to_le(), data_at + 12)?;
                (VIRTIO_BLK_T_WRITE_ZEROES, 16, false)
            }
            Verb::Find => unreachable!("a device has no map"),
        };
        let sector =
            if matches!(part.verb, Verb::Read | Verb::Write) { part.offset / SECTOR_BYTES } else { 0 };
        self.write(kind.to_le(), layout.head(place))?;
        self.write(0_u32, layout.head(place) + 4)?;
        self.write(sector.to_le(), layout.head(place) + 8)?;
        self.write(NO_STATUS, layout.status(place))?;
        let first = place * 3;
        // A flush has no data: its head is followed by the status.
        let after_head = if length == 0 { first + 2 } else { first + 1 };
        let written = if is_written { VRING_DESC_F_WRITE } else { 0 };
        self.describe(first, layout.head(place), HEAD_BYTES, VRING_DESC_F_NEXT, after_head)?;
        if length > 0 {
            self.describe(first + 1, data_at, length, VRING_DESC_F_NEXT | written, first + 2)?;
        }
        self.describe(first + 2, layout.status(place), 1, VRING_DESC_F_WRITE, 0)?;
        let entry = layout.available() + 4 + 2 * u64::from(self.available % QUEUE_SIZE);
        self.write(first.to_le(), entry)?;
        self.available = self.available.wrapping_add(1);
        self.slots[usize::from(place)] = Some(slot);
        Ok(())
    }

    fn describe(&self, number: u16, at: u64, bytes: u64, flags: u32, next: u16) -> Result<(), Lost> {
        let entry = self.queue.layout.descriptors() + u64::from(number) * DESCRIPTOR_BYTES;
        self.write(at.to_le(), entry)?;
        self.write(u32::try_from(bytes).map_err(outside)?.to_le(), entry + 8)?;
        self.write(u16::try_from(flags).map_err(outside)?.to_le(), entry + 12)?;
        self.write(next.to_le(), entry + 14)
    }

    /// The place of the next chain that has come back.
    fn next_place(&mut self) -> Result<Option<u16>, Lost> {
        if self.used == self.used_by_device {
            return Ok(None);
        }
        let entry = self.queue.layout.used() + 4 + 8 * u64::from(self.used % QUEUE_SIZE);
        let first = self.session.memory.read_obj::<u32>(GuestAddress(entry)).map_err(outside)?;
        let first = u32::from_le(first);
        self.used = self.used.wrapping_add(1);
        match u16::try_from(first / 3) {
            Ok(place) if first.is_multiple_of(3) && place < PLACES => Ok(Some(place)),
            _ => Err(Lost::Violation(format!("chain {first} comes back, and there is none"))),
        }
    }
}

impl Wire for QueueWire {
    type Command = ();

    fn socket(&self) -> BorrowedFd<'_> {
        self.session.socket()
    }

    fn bell(&self) -> Option<BorrowedFd<'_>> {
        Some(self.queue.call.as_fd())
    }

    fn queue(&mut self, _: &mut Tasks<Self>, slot: u32) {
        self.waiting.push_back(slot);
    }

    fn send(&mut self, tasks: &mut Tasks<Self>) -> Result<bool, Lost> {
        let before = self.available;
        while let Some(&slot) = self.waiting.front() {
            let Some(place) = self.free.pop() else { break };
            self.waiting.pop_front();
            self.put(tasks, slot, place)?;
        }
        if self.available == before {
            return Ok(false);
        }
        let layout = self.queue.layout;
        let shown = self.available.to_le();
        self.session
            .memory
            .store(shown, GuestAddress(layout.available() + 2), Ordering::Release)
            .map_err(outside)?;
        // The device looks at the ring after it has said that it wants to be told.
        fence(Ordering::SeqCst);
        if u32::from(self.load(layout.used())?) & VRING_USED_F_NO_NOTIFY == 0 {
            // The counter is at its end only if it is readable already.
            let _ = rustix::io::write(&self.queue.kick, &1_u64.to_ne_bytes());
        }
        Ok(false)
    }

    fn receive(&mut self, _: &mut Tasks<Self>) -> Result<bool, Lost> {
        // What comes back meanwhile rings again.
        if std::mem::take(&mut self.is_drained) {
            return Ok(false);
        }
        let has_rung = rustix::io::read(&self.queue.call, &mut [0; 8]).is_ok();
        let before = self.used_by_device;
        self.used_by_device = self.load(self.queue.layout.used() + 2)?;
        let in_flight = self.available.wrapping_sub(self.used);
        if self.used_by_device.wrapping_sub(self.used) > in_flight {
            return Err(Lost::Violation("more chains come back than went out".into()));
        }
        self.is_drained = self.used_by_device != before;
        if !self.is_drained && !has_rung && self.session.has_hung_up() {
            return Err(Lost::Ended);
        }
        Ok(self.is_drained)
    }

    fn next_ended(&mut self, tasks: &mut Tasks<Self>) -> Result<Option<Ended>, Lost> {
        let Some(place) = self.next_place()? else {
            self.send(tasks)?;
            return Ok(None);
        };
        let taken = self.slots.get_mut(usize::from(place)).and_then(Option::take);
        let again = || Lost::Violation(format!("the chain at {place} comes back, and is not out"));
        let slot = taken.ok_or_else(again)?;
        let task = tasks.get_mut(slot).ok_or_else(again)?;
        let layout = self.queue.layout;
        let status =
            self.session.memory.read_obj::<u8>(GuestAddress(layout.status(place))).map_err(outside)?;
        let errno = match u32::from(status) {
            VIRTIO_BLK_S_OK => None,
            VIRTIO_BLK_S_UNSUPP => Some(EOPNOTSUPP),
            VIRTIO_BLK_S_IOERR => Some(EIO),
            _ => return Err(Lost::Violation(format!("a request ends with status {status:#04x}"))),
        };
        if errno.is_none() {
            let data = GuestAddress(layout.data(place));
            self.session.memory.read_slice(task.room(), data).map_err(outside)?;
        }
        self.free.push(place);
        Ok(Some((slot, errno)))
    }

    fn leave(&mut self) {
        self.is_leaving = true;
    }
}

impl Drop for QueueWire {
    fn drop(&mut self) {
        // The other queues of a connection that was lost are lost, too.
        if !self.is_leaving {
            self.session.end();
        }
    }
}

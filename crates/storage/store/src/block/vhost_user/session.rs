//! A connection to a device: what was agreed, the memory that is shared, and the queues that no reactor has taken.

use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, Shutdown};
use virtio_bindings::virtio_blk::{
    VIRTIO_BLK_F_BLK_SIZE, VIRTIO_BLK_F_FLUSH, VIRTIO_BLK_F_MQ, VIRTIO_BLK_F_RO, VIRTIO_BLK_F_SIZE_MAX,
    VIRTIO_BLK_F_WRITE_ZEROES,
};
use virtio_bindings::virtio_config::VIRTIO_F_VERSION_1;
use vm_memory::{FileOffset, GuestAddress, GuestMemoryMmap, GuestRegionMmap, MmapRegion};

use super::front::{Front, HEAD_BYTES, is_reply, plain_head, request};
use super::queue::{DATA_BYTES, Layout, QUEUE_BYTES, QUEUE_SIZE};
use crate::block::remote::Abilities;

/// Bytes of a sector, which are virtio's unit whatever the size of the blocks is.
pub(super) const SECTOR_BYTES: u64 = 512;

/// Queues of one device: a reactor has one, if there are enough.
const QUEUE_LIMIT: u64 = 64;

/// Where the device sees the memory.
const MEMORY_AT: u64 = 1 << 32;

/// Features of vhost-user: several queues, acknowledgements, configuration space.
const PROTOCOL_FEATURES_BIT: u32 = 30;
const MQ: u64 = 1 << 0;
const REPLY_ACK: u64 = 1 << 3;
const CONFIG: u64 = 1 << 9;

/// Bytes of `struct virtio_blk_config` up to the limits of Write Zeroes.
const SPACE_BYTES: usize = 60;

/// Bytes of a request for it, or of a reply: offset, length, flags, and the space.
const CONFIG_BYTES: usize = 12 + SPACE_BYTES;

/// Lengths of data, and of zeroed ranges, are multiples of it, and so of every block size.
const UNIT_BYTES: u64 = 64 << 10;

/// Time that a device has to tell its size before others have their turn.
const LOOK_LIMIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 200_000_000 };

/// A connection.
pub(super) struct Session {
    socket: OwnedFd,
    is_ended: AtomicBool,
    pub(super) memory: GuestMemoryMmap,
    pub(super) abilities: Abilities,
    queues: Mutex<Vec<Queue>>,
    look: Mutex<Look>,
}

/// A queue that no reactor has taken.
pub(super) struct Queue {
    pub(super) layout: Layout,
    pub(super) kick: OwnedFd,
    pub(super) call: OwnedFd,
}

/// A question for the size that is under way.
#[derive(Default)]
struct Look {
    is_asked: bool,
    received: Vec<u8>,
}

/// What the configuration space says.
struct Space([u8; SPACE_BYTES]);

impl Space {
    fn u64(&self, at: usize) -> u64 {
        u64::from_le_bytes(std::array::from_fn(|byte| self.0.get(at + byte).copied().unwrap_or_default()))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_le_bytes(std::array::from_fn(|byte| self.0.get(at + byte).copied().unwrap_or_default()))
    }

    /// Bytes of the disk.
    fn bytes(&self) -> u64 {
        self.u64(0).saturating_mul(SECTOR_BYTES)
    }

    fn size_max(&self) -> u32 {
        self.u32(8)
    }

    fn block_bytes(&self) -> u32 {
        self.u32(20)
    }

    fn queue_count(&self) -> u64 {
        u64::from(self.u32(32) >> 16)
    }

    fn zeroed_bytes_max(&self) -> u64 {
        u64::from(self.u32(48)).saturating_mul(SECTOR_BYTES)
    }
}

/// The payload of a question for the configuration space.
fn config_question() -> [u8; CONFIG_BYTES] {
    let mut payload = [0; CONFIG_BYTES];
    payload[4..8].copy_from_slice(&60_u32.to_ne_bytes());
    payload
}

fn space_of(reply: &[u8; CONFIG_BYTES]) -> Option<Space> {
    let (head, space) = reply.split_last_chunk::<SPACE_BYTES>()?;
    head.starts_with(&config_question()[..8]).then_some(Space(*space))
}

fn text(error: impl std::fmt::Display) -> String {
    error.to_string()
}

/// Memory for this many queues, of which nothing can be cut off.
fn shared_memory(queue_count: u64) -> Result<(OwnedFd, GuestMemoryMmap), String> {
    let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
    let file = rustix::fs::memfd_create("vhost-user", flags).map_err(text)?;
    let bytes = QUEUE_BYTES * queue_count;
    rustix::fs::ftruncate(&file, bytes).map_err(text)?;
    rustix::fs::fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)
        .map_err(text)?;
    let copy = File::from(file.try_clone().map_err(text)?);
    let bytes = usize::try_from(bytes).map_err(text)?;
    let mapped = MmapRegion::from_file(FileOffset::new(copy, 0), bytes).map_err(text)?;
    let region = GuestRegionMmap::new(mapped, GuestAddress(MEMORY_AT)).ok_or("no memory")?;
    Ok((file, GuestMemoryMmap::from_regions(vec![region]).map_err(text)?))
}

/// Numbers of a message, in the machine's order.
fn numbers(numbers: &[u64]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_ne_bytes()).collect()
}

/// Two short numbers, such as that of a queue and its state.
fn state(queue: u32, number: u32) -> [u8; 8] {
    let mut bytes = [0; 8];
    bytes[..4].copy_from_slice(&queue.to_ne_bytes());
    bytes[4..].copy_from_slice(&number.to_ne_bytes());
    bytes
}

impl Session {
    /// Connects, agrees on features, shares the memory and starts all queues. Takes up to `limit`.
    pub(super) fn connect(path: &Path, limit: Duration) -> Result<Arc<Self>, String> {
        let until = Instant::now() + limit;
        let socket = crate::block::nbd::connect_by_unix(path, limit)
            .map_err(|error| format!("cannot connect: {error}"))?;
        let mut front = Front { socket: &socket, until, has_acknowledgements: false };
        let offered = front.ask(request::GET_FEATURES)?;
        let has = |bit: u32| offered >> bit & 1 == 1;
        if !has(VIRTIO_F_VERSION_1) || !has(PROTOCOL_FEATURES_BIT) {
            return Err(
                "the device is older than virtio 1.0, or has no protocol features of vhost-user".into()
            );
        }
        let protocol = front.ask(request::GET_PROTOCOL_FEATURES)?;
        if protocol & CONFIG == 0 {
            return Err("it is no block device: it has no configuration space".into());
        }
        let protocol = protocol & (MQ | REPLY_ACK | CONFIG);
        front.tell(request::SET_PROTOCOL_FEATURES, &protocol.to_ne_bytes(), &[])?;
        front.has_acknowledgements = protocol & REPLY_ACK != 0;
        let queue_limit = if protocol & MQ != 0 { front.ask(request::GET_QUEUE_NUM)? } else { 1 };
        front.tell(request::SET_OWNER, &[], &[])?;
        let reply = front.exchange::<CONFIG_BYTES>(request::GET_CONFIG, &config_question())?;
        let space = space_of(&reply).ok_or("the device broke the protocol of vhost-user")?;
        let wanted = [
            VIRTIO_F_VERSION_1,
            PROTOCOL_FEATURES_BIT,
            VIRTIO_BLK_F_FLUSH,
            VIRTIO_BLK_F_MQ,
            VIRTIO_BLK_F_RO,
            VIRTIO_BLK_F_BLK_SIZE,
            VIRTIO_BLK_F_SIZE_MAX,
            VIRTIO_BLK_F_WRITE_ZEROES,
        ];
        let features = wanted.iter().fold(0, |all, bit| all | (offered & 1 << bit));
        front.tell(request::SET_FEATURES, &features.to_ne_bytes(), &[])?;
        let queues_of_device = if has(VIRTIO_BLK_F_MQ) { space.queue_count() } else { 1 };
        let queue_count = queue_limit.min(queues_of_device).clamp(1, QUEUE_LIMIT);
        let abilities = abilities(&space, has, queue_count)?;
        let (file, memory) = shared_memory(queue_count)?;
        // One region: its place for the device, its length, its place in what is written into the rings, its start in the file.
        let region = numbers(&[MEMORY_AT, QUEUE_BYTES * queue_count, MEMORY_AT, 0]);
        front.tell(request::SET_MEM_TABLE, &[&state(1, 0)[..], &region].concat(), &[file.as_fd()])?;
        let mut queues = Vec::new();
        for number in (0..queue_count).rev() {
            queues.push(start_queue(&front, u32::try_from(number).map_err(text)?)?);
        }
        Ok(Arc::new(Self {
            socket,
            is_ended: AtomicBool::new(false),
            memory,
            abilities,
            queues: Mutex::new(queues),
            look: Mutex::default(),
        }))
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }

    /// Whether nothing is known that speaks against it.
    pub(super) fn is_up(&self) -> bool {
        !self.is_ended.load(Ordering::Acquire) && !self.has_hung_up()
    }

    /// Whether the device has ended the connection.
    pub(super) fn has_hung_up(&self) -> bool {
        let flags = RecvFlags::PEEK | RecvFlags::DONTWAIT;
        match rustix::net::recv(&self.socket, &mut [0; 1][..], flags) {
            Ok((0, _)) => true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => false,
            Err(_) => true,
        }
    }

    /// Ends the connection for all queues.
    pub(super) fn end(&self) {
        self.is_ended.store(true, Ordering::Release);
        let _ = rustix::net::shutdown(&self.socket, Shutdown::Both);
    }

    pub(super) fn has_queue(&self) -> bool {
        !self.queues.lock().unwrap_or_else(PoisonError::into_inner).is_empty()
    }

    pub(super) fn take_queue(&self) -> Option<Queue> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner).pop()
    }

    /// Asks for the size of the disk; `None` if there is no answer yet, which a later call takes.
    pub(super) fn bytes_now(&self) -> Option<u64> {
        let mut look = self.look.lock().unwrap_or_else(PoisonError::into_inner);
        if !look.is_asked {
            let question = [&plain_head(request::GET_CONFIG, CONFIG_BYTES)[..], &config_question()].concat();
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let sent = rustix::net::send(&self.socket, &question, flags).ok()?;
            if sent < question.len() {
                self.end();
                return None;
            }
            look.is_asked = true;
        }
        let mut bytes = [0; HEAD_BYTES + CONFIG_BYTES];
        while look.received.len() < bytes.len() {
            let waits = &mut [PollFd::new(&self.socket, PollFlags::IN)];
            if !matches!(rustix::event::poll(waits, Some(&LOOK_LIMIT)), Ok(1..)) {
                return None;
            }
            let room = bytes.len() - look.received.len();
            match rustix::net::recv(&self.socket, &mut bytes[..room], RecvFlags::DONTWAIT) {
                Ok((count @ 1.., _)) => look.received.extend_from_slice(&bytes[..count.min(room)]),
                _ => return None,
            }
        }
        let received = std::mem::take(&mut *look).received;
        let (head, reply) = received.split_first_chunk::<HEAD_BYTES>()?;
        let reply = reply.first_chunk::<CONFIG_BYTES>()?;
        let space = space_of(reply).filter(|_| is_reply(head, request::GET_CONFIG, CONFIG_BYTES));
        if space.is_none() {
            self.end();
        }
        space.map(|space| space.bytes())
    }
}

/// What the device is and does.
fn abilities(space: &Space, has: impl Fn(u32) -> bool, queue_count: u64) -> Result<Abilities, String> {
    let whole_units = |bytes: u64| bytes - bytes % UNIT_BYTES;
    let mut data_bytes_max = DATA_BYTES;
    if has(VIRTIO_BLK_F_SIZE_MAX) && space.size_max() > 0 {
        data_bytes_max = data_bytes_max.min(whole_units(space.size_max().into()));
    }
    if data_bytes_max == 0 {
        let size_max = space.size_max();
        return Err(format!("the device takes segments of {size_max} bytes: 64 KiB are needed"));
    }
    let zeroed_bytes_max = whole_units(space.zeroed_bytes_max());
    Ok(Abilities {
        bytes: space.bytes(),
        is_read_only: has(VIRTIO_BLK_F_RO),
        has_flush: has(VIRTIO_BLK_F_FLUSH),
        has_fua: false,
        has_zeroes: has(VIRTIO_BLK_F_WRITE_ZEROES) && zeroed_bytes_max > 0,
        has_map: false,
        block_bytes_min: if has(VIRTIO_BLK_F_BLK_SIZE) { space.block_bytes() } else { 512 },
        data_bytes_max: u32::try_from(data_bytes_max).unwrap_or(u32::MAX),
        zeroed_bytes_max,
        connection_count: usize::try_from(queue_count).unwrap_or(1),
    })
}

/// Gives a queue to the device.
fn start_queue(front: &Front<'_>, number: u32) -> Result<Queue, String> {
    let layout = Layout { at: MEMORY_AT + QUEUE_BYTES * u64::from(number) };
    let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
    let (kick, call) = (eventfd(0, flags).map_err(text)?, eventfd(0, flags).map_err(text)?);
    let index = u64::from(number).to_ne_bytes();
    front.tell(request::SET_VRING_NUM, &state(number, QUEUE_SIZE.into()), &[])?;
    front.tell(request::SET_VRING_BASE, &state(number, 0), &[])?;
    let places = numbers(&[layout.descriptors(), layout.used(), layout.available(), 0]);
    front.tell(request::SET_VRING_ADDR, &[&state(number, 0)[..], &places].concat(), &[])?;
    front.tell(request::SET_VRING_CALL, &index, &[call.as_fd()])?;
    front.tell(request::SET_VRING_KICK, &index, &[kick.as_fd()])?;
    front.tell(request::SET_VRING_ENABLE, &state(number, 1), &[])?;
    Ok(Queue { layout, kick, call })
}

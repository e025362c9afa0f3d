//! One queue of a device: requests of the block device, and their outcomes.

use std::fs::OpenOptions;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use io_uring::types::Fd;
use io_uring::{IoUring, opcode};
use memory::{Buffer, Pool};
use zerocopy::IntoBytes;

use crate::commands::{
    COMMIT_AND_FETCH, FETCH, IS_DURABLE, KEEPS_BLOCKS, Operation, QueueCommand, SECTOR_BYTES,
};
use crate::control::DeviceName;
use crate::descriptors::Descriptors;

/// The character device by which a device is served, by one process at a time. Queues share it.
#[derive(Clone, Debug)]
pub struct CharacterDevice(Arc<OwnedFd>);

impl CharacterDevice {
    /// Opens it.
    ///
    /// # Errors
    /// The kernel's: EBUSY if another process serves the device, EACCES if it is not for this user.
    pub fn open(name: DeviceName) -> io::Result<Self> {
        let device = OpenOptions::new().read(true).write(true).open(name.character_path())?;
        Ok(Self(Arc::new(device.into())))
    }
}

/// A request of the block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// Names it until it is given back.
    pub tag: u16,
    /// What it asks for.
    pub operation: Operation,
    /// First sector of 512 bytes.
    pub first_sector: u64,
    /// Sectors.
    pub sectors: u32,
    /// It is durable when it ends.
    pub is_durable: bool,
    /// A Write Zeroes whose blocks stay allocated.
    pub keeps_blocks: bool,
}

impl Request {
    /// Bytes of its data, or of its range.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        u64::from(self.sectors) * u64::from(SECTOR_BYTES)
    }
}

/// What comes from a queue.
#[derive(Debug)]
pub enum Arrival {
    /// A request, with the data of a write, or the memory for the data of a read: a buffer of the size of the largest request.
    Request(Request, Buffer),
    /// A tag has no more requests: the device was stopped, or this is a failure.
    End(io::Error),
}

/// One queue of a device, on the thread that has made it: the kernel takes its commands from no other.
///
/// ```text
/// kernel ──next──▶ request and buffer ──complete──▶ kernel
/// ```
///
/// Each tag has a buffer. The kernel has it, copies a write's data to it or a read's from it, and gives it away with the
/// request.
pub struct Queue {
    ring: IoUring,
    device: CharacterDevice,
    descriptors: Descriptors,
    number: u16,
    /// Buffers that the kernel has, by tag.
    buffers: Vec<Option<Buffer>>,
    /// Tags that the kernel has, and tags with a request.
    tag_count: usize,
    /// Whether commands wait for [`submit`](Self::submit).
    has_waiting: bool,
}

impl Queue {
    /// Serves a queue with `depth` tags, whose requests have `request_bytes_max` at most. The kernel gets all tags: no request
    /// may come yet.
    ///
    /// # Errors
    /// The kernel's: no memory, or another process serves the device.
    pub fn new(
        device: &CharacterDevice,
        number: u16,
        depth: u16,
        request_bytes_max: u32,
    ) -> io::Result<Self> {
        let descriptors = Descriptors::map(device.0.as_fd(), number, depth)?;
        let buffer_bytes = request_bytes_max as usize;
        let pool = Pool::new(usize::from(depth) * buffer_bytes.next_power_of_two())?;
        let buffers = (0..depth).map(|_| pool.take(buffer_bytes)).collect::<Option<Vec<_>>>();
        let buffers = buffers.ok_or(io::ErrorKind::OutOfMemory)?;
        // The kernel copies data on this thread: when it calls the kernel anyway, or sleeps.
        let mut builder = IoUring::builder();
        builder.setup_single_issuer().setup_coop_taskrun().setup_taskrun_flag().dontfork();
        let ring = builder.build(u32::from(depth).next_power_of_two())?;
        let mut queue = Self {
            ring,
            device: device.clone(),
            descriptors,
            number,
            buffers: (0..depth).map(|_| None).collect(),
            tag_count: depth.into(),
            has_waiting: false,
        };
        for (tag, buffer) in (0..depth).zip(buffers) {
            queue.push(FETCH, tag, 0, buffer);
        }
        while queue.has_waiting {
            queue.submit()?;
        }
        match queue.next_arrival() {
            Some(Arrival::End(error)) => Err(error),
            _ => Ok(queue),
        }
    }

    /// Gives a request back: its outcome is the bytes of a read or write, 0 of another one, or an error of the kernel as a
    /// negative number. The kernel learns it with the next [`submit`](Self::submit).
    ///
    /// # Panics
    /// If the request was given back already.
    pub fn complete(&mut self, tag: u16, outcome: i32, buffer: Buffer) {
        self.push(COMMIT_AND_FETCH, tag, outcome, buffer);
    }

    /// Gives a tag and its buffer to the kernel.
    fn push(&mut self, command: u32, tag: u16, result: i32, mut buffer: Buffer) {
        let slot = &mut self.buffers[usize::from(tag)];
        assert!(slot.is_none(), "the kernel has tag {tag} already");
        let capacity = buffer.capacity();
        buffer.set_len(capacity);
        let address = buffer.as_mut_ptr().expose_provenance() as u64;
        *slot = Some(buffer);
        let inline = QueueCommand { queue: self.number, tag, result, address };
        let mut bytes = [0; 16];
        bytes.copy_from_slice(inline.as_bytes());
        let fd = Fd(self.device.0.as_raw_fd());
        let entry = opcode::UringCmd16::new(fd, command).cmd(bytes).build().user_data(tag.into());
        // SAFETY: the buffer that the command names stays in `buffers` until its completion is reaped; `drop` leaks it if that
        // has not come.
        let pushed = unsafe { self.ring.submission().push(&entry) };
        pushed.expect("room for a command of each tag");
        self.has_waiting = true;
    }

    /// Hands commands to the kernel, and lets it work for requests that have come. Without either it calls no one.
    ///
    /// # Errors
    /// The ring fails.
    #[inline]
    pub fn submit(&mut self) -> io::Result<()> {
        if self.has_waiting || self.ring.submission().taskrun() {
            self.enter(0)?;
        }
        Ok(())
    }

    /// As [`submit`](Self::submit), and waits for an arrival.
    ///
    /// # Errors
    /// The ring fails.
    pub fn wait(&mut self) -> io::Result<()> {
        self.enter(1)
    }

    fn enter(&mut self, arrivals: usize) -> io::Result<()> {
        const GET_EVENTS: u32 = 1;
        let waiting = u32::try_from(self.ring.submission().len()).expect("a small queue");
        let wanted = u32::try_from(arrivals).expect("one at most");
        // SAFETY: no signal set is passed.
        let entered =
            unsafe { self.ring.submitter().enter::<libc::sigset_t>(waiting, wanted, GET_EVENTS, None) };
        match entered {
            Ok(_) => {}
            // A signal came, or there is no memory at the moment: the commands that were not taken stay in the queue.
            Err(error)
                if matches!(
                    error.raw_os_error(),
                    Some(libc::EINTR | libc::EAGAIN | libc::EBUSY | libc::ENOMEM)
                ) => {}
            Err(error) => return Err(error),
        }
        self.has_waiting = !self.ring.submission().is_empty();
        Ok(())
    }

    /// The next arrival.
    #[inline]
    pub fn next_arrival(&mut self) -> Option<Arrival> {
        let completion = self.ring.completion().next()?;
        let tag = u16::try_from(completion.user_data()).expect("tags have 16 bits");
        let buffer = self.buffers[usize::from(tag)].take().expect("a completion for each command");
        if completion.result() != 0 {
            self.tag_count -= 1;
            return Some(Arrival::End(io::Error::from_raw_os_error(-completion.result())));
        }
        let descriptor = self.descriptors.of(tag);
        let has = |flag| descriptor.operation_flags & flag != 0;
        let request = Request {
            tag,
            operation: Operation::of(&descriptor),
            first_sector: descriptor.first_sector,
            sectors: descriptor.sectors,
            is_durable: has(IS_DURABLE),
            keeps_blocks: has(KEEPS_BLOCKS),
        };
        Some(Arrival::Request(request, buffer))
    }

    /// Whether no request will come any more, and all are given back.
    #[must_use]
    pub fn is_ended(&self) -> bool {
        self.tag_count == 0
    }

    /// Whether commands wait for [`submit`](Self::submit).
    #[must_use]
    pub fn has_waiting(&self) -> bool {
        self.has_waiting
    }
}

impl AsFd for Queue {
    /// Readable when there is an arrival.
    fn as_fd(&self) -> BorrowedFd<'_> {
        // SAFETY: the ring has the descriptor open as long as it lives.
        unsafe { BorrowedFd::borrow_raw(self.ring.as_raw_fd()) }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // The kernel may still copy to buffers that it has, until the process ends.
        self.buffers.drain(..).flatten().for_each(std::mem::forget);
    }
}

impl std::fmt::Debug for Queue {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Queue({}, {} tags)", self.number, self.tag_count)
    }
}

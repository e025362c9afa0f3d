//! The requests of one reactor to an image: their buffers belong to librbd until they have ended.

use std::ffi::c_void;
use std::mem::ManuallyDrop;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use memory::Buffer;

use crate::functions::{RawCompletion, ZEROES_KEEP_SPACE};
use crate::image::{Ended, Image};
use crate::search::{OnData, Search};

// A completion carries its owner and its slot in the argument of C.
const _: () = assert!(size_of::<usize>() == 8);

/// A request to an image.
#[derive(Debug)]
pub enum Request {
    /// Fills the buffer from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// The buffer.
        buffer: Buffer,
    },
    /// Writes the buffer at `offset`.
    Write {
        /// First byte.
        offset: u64,
        /// The buffer.
        buffer: Buffer,
    },
    /// Ends when all writes that have ended before are on stable media.
    Flush,
    /// Makes a range read as zeroes.
    Zero {
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
        /// Whether the range keeps its space; else its objects are removed or cut.
        keeps_space: bool,
    },
}

/// A request that could not be started.
#[derive(Debug)]
pub struct Unstarted {
    /// The system's number of the error.
    pub errno: i32,
    /// Its buffer.
    pub buffer: Option<Buffer>,
}

/// A request that has ended.
#[derive(Debug)]
pub struct Finished {
    /// The slot that it had, free again.
    pub slot: u32,
    /// Bytes read, or the end of a search, or the system's number of the error.
    pub result: Result<usize, i32>,
    /// Its buffer.
    pub buffer: Option<Buffer>,
}

/// The requests of one reactor.
pub struct Requests {
    owner: u32,
    /// Never dropped while librbd may use a buffer of a slot.
    image: ManuallyDrop<Arc<Image>>,
    slots: ManuallyDrop<Vec<Slot>>,
    free: Vec<u32>,
}

#[derive(Default)]
struct Slot {
    is_running: bool,
    /// A search, which uses no buffer, and whose thread keeps the image open.
    is_search: bool,
    buffer: Option<Buffer>,
}

/// Each has a number of its own, for as long as the process runs.
static NEXT_OWNER: AtomicU32 = AtomicU32::new(1);

impl Requests {
    /// Requests to this image.
    #[must_use]
    pub fn new(image: Arc<Image>) -> Self {
        let owner = NEXT_OWNER.fetch_add(1, Ordering::Relaxed);
        let (image, slots) = (ManuallyDrop::new(image), ManuallyDrop::default());
        Self { owner, image, slots, free: Vec::new() }
    }

    /// The number in the completions of its requests.
    #[must_use]
    pub fn owner(&self) -> u32 {
        self.owner
    }

    /// The image.
    #[must_use]
    pub fn image(&self) -> &Arc<Image> {
        &self.image
    }

    /// Requests in flight.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Starts a request. Returns its slot, which is its own until it has [ended](Self::finish).
    ///
    /// # Errors
    /// The reason why librbd does not take it.
    pub fn start(&mut self, request: Request) -> Result<u32, Unstarted> {
        let functions = &self.image.cluster().library().functions;
        let slot = self.take_slot(false);
        let kept = &mut self.slots[slot as usize];
        let argument = u64::from(self.owner) << 32 | u64::from(slot);
        let argument = usize::try_from(argument).expect("64 bits");
        let argument = std::ptr::without_provenance_mut::<c_void>(argument);
        let mut completion: RawCompletion = std::ptr::null_mut();
        let raw = self.image.raw();
        // SAFETY: a place for the completion. Its argument is a number and not used as an address; there is no callback.
        let made = unsafe {
            (functions.rbd_aio_create_completion)(argument, std::ptr::null_mut(), &raw mut completion)
        };
        debug_assert!(made >= 0, "librbd always makes one");
        let started = match request {
            Request::Read { offset, buffer } => {
                let buffer = kept.buffer.insert(buffer);
                let (start, length) = (buffer.as_mut_ptr(), buffer.len());
                // SAFETY: the buffer stays in its slot, untouched, until the completion has come back, and its memory
                // does not move with it; `drop` leaks it if it has not.
                unsafe { (functions.rbd_aio_read)(raw, offset, length, start.cast(), completion) }
            }
            Request::Write { offset, buffer } => {
                let buffer = kept.buffer.insert(buffer);
                let (start, length) = (buffer.as_ptr(), buffer.len());
                // SAFETY: as above.
                unsafe { (functions.rbd_aio_write)(raw, offset, length, start.cast(), completion) }
            }
            // SAFETY: an open image and a new completion.
            Request::Flush => unsafe { (functions.rbd_aio_flush)(raw, completion) },
            Request::Zero { offset, length, keeps_space } => {
                let flags = if keeps_space { ZEROES_KEEP_SPACE } else { 0 };
                let length = usize::try_from(length).expect("64 bits");
                // SAFETY: as above.
                unsafe { (functions.rbd_aio_write_zeroes)(raw, offset, length, completion, flags, 0) }
            }
        };
        if started < 0 {
            // SAFETY: librbd has not taken the completion, so it never comes back.
            unsafe { (functions.rbd_aio_release)(completion) };
            kept.is_running = false;
            self.free.push(slot);
            return Err(Unstarted { errno: -started, buffer: self.slots[slot as usize].buffer.take() });
        }
        Ok(slot)
    }

    /// Starts a search for the parts of a range of bytes that have data, which `on_data` gets in order, in another thread.
    /// Returns its slot. Its result is the end of what was looked at, or `EOPNOTSUPP` if the image has no map of its data.
    pub fn search(&mut self, range: Range<u64>, on_data: OnData) -> u32 {
        let slot = self.take_slot(true);
        self.image.search(Search { owner: self.owner, slot, range, on_data });
        slot
    }

    fn take_slot(&mut self, is_search: bool) -> u32 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot::default());
            u32::try_from(self.slots.len() - 1).expect("fewer than 32 bits count")
        });
        let kept = &mut self.slots[slot as usize];
        (kept.is_running, kept.is_search) = (true, is_search);
        slot
    }

    /// Takes in the end of a request.
    ///
    /// # Errors
    /// The end itself, if it is that of another reactor's request.
    pub fn finish(&mut self, ended: Ended) -> Result<Finished, Ended> {
        if ended.owner != self.owner {
            return Err(ended);
        }
        let kept = &mut self.slots[ended.slot as usize];
        assert!(std::mem::replace(&mut kept.is_running, false), "librbd ends each request once");
        self.free.push(ended.slot);
        let result = usize::try_from(ended.result)
            .map_err(|_| i32::try_from(-ended.result).unwrap_or(rustix::io::Errno::IO.raw_os_error()));
        Ok(Finished { slot: ended.slot, result, buffer: kept.buffer.take() })
    }
}

impl Drop for Requests {
    /// While requests run, librbd may use their buffers, whose memory is then never used for anything else.
    fn drop(&mut self) {
        let count = self.slots.iter().filter(|slot| slot.is_running && !slot.is_search).count();
        if count > 0 {
            tracing::warn!(count, "requests to an image have not ended: their buffers are leaked");
            return;
        }
        // SAFETY: dropped once, here, and not used again.
        unsafe {
            ManuallyDrop::drop(&mut self.slots);
            ManuallyDrop::drop(&mut self.image);
        }
    }
}

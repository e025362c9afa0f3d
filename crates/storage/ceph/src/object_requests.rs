//! The requests of one reactor to objects: their memory belongs to librados until they have ended.
//!
//! librados tells the end of a request by a call in one of its threads. What it calls writes the number of the request's
//! slot into a pipe: the pipe is the queue, its readable end what the reactor waits for, and no memory is shared. As many
//! requests may be in flight as the pipe has room for, so that the write never waits.

use std::ffi::{CString, c_int, c_void};
use std::io;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use rustix::pipe::{PipeFlags, pipe_with};

use crate::functions::ObjectCompletion;
use crate::objects::Objects;

// The descriptor and the slot are in the argument of C.
const _: () = assert!(size_of::<usize>() == 8);

/// Requests in flight at most: the pipe has room for 64 KiB, four bytes each.
const RUNNING_COUNT_MAX: usize = 8192;

/// In place of a slot: the pipe is readable because of a [`Waker`].
const WOKEN: u32 = u32::MAX;

/// A request to an object.
#[derive(Debug)]
pub enum ObjectRequest {
    /// Fills the buffer from `offset` on, as far as the object goes.
    Read {
        /// First byte.
        offset: u64,
        /// The buffer.
        buffer: Vec<u8>,
    },
    /// Gives the object these bytes, in place of all that it has.
    Write {
        /// The bytes.
        bytes: Vec<u8>,
    },
    /// Removes the object.
    Remove,
}

/// A request that could not be started.
#[derive(Debug)]
pub struct UnstartedObject {
    /// The system's number of the error.
    pub errno: i32,
    /// Its bytes.
    pub bytes: Vec<u8>,
}

/// A request that has ended.
#[derive(Debug)]
pub struct FinishedObject {
    /// The slot that it had, free again.
    pub slot: u32,
    /// Bytes read, or the system's number of the error.
    pub result: Result<usize, i32>,
    /// Its buffer or bytes.
    pub bytes: Vec<u8>,
}

/// The requests of one reactor.
pub struct ObjectRequests {
    /// Never dropped while librados may use what is in a slot.
    slots: ManuallyDrop<Vec<Option<Slot>>>,
    free: Vec<u32>,
    /// Neither end is closed while librados may write.
    reader: ManuallyDrop<OwnedFd>,
    writer: ManuallyDrop<OwnedFd>,
}

/// A request in flight.
struct Slot {
    completion: ObjectCompletion,
    bytes: Vec<u8>,
    _object: CString,
    objects: Arc<Objects>,
}

// SAFETY: completions may be used by any thread; they are those of one owner.
unsafe impl Send for Slot {}

/// Makes the pipe of a reactor's requests readable, from any thread.
pub struct Waker(OwnedFd);

impl Waker {
    /// Makes it readable.
    pub fn wake(&self) {
        let _ = rustix::io::write(&self.0, &WOKEN.to_ne_bytes());
    }
}

/// Called by a thread of librados at the end of a request: `argument` has a descriptor and a slot.
unsafe extern "C" fn ring(_: ObjectCompletion, argument: *mut c_void) {
    let [a, b, c, d, rest @ ..] = argument.addr().to_le_bytes();
    let (slot, descriptor) = (u32::from_le_bytes([a, b, c, d]), c_int::from_le_bytes(rest));
    // SAFETY: four bytes of its own. The descriptor stays open as long as a request is in flight, and its pipe has room.
    unsafe { libc::write(descriptor, (&raw const slot).cast(), size_of::<u32>()) };
}

impl ObjectRequests {
    /// No requests yet.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn new() -> io::Result<Self> {
        let (reader, writer) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        let slots = ManuallyDrop::default();
        let (reader, writer) = (ManuallyDrop::new(reader), ManuallyDrop::new(writer));
        Ok(Self { slots, free: Vec::new(), reader, writer })
    }

    /// Requests in flight.
    #[must_use]
    pub fn running_count(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// What is readable when requests have ended.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn bell(&self) -> io::Result<OwnedFd> {
        self.reader.try_clone()
    }

    /// What makes the bell ring from another thread.
    ///
    /// # Errors
    /// If the system has no more descriptors.
    pub fn waker(&self) -> io::Result<Waker> {
        Ok(Waker(self.writer.try_clone()?))
    }

    /// Starts a request and returns its slot.
    ///
    /// # Errors
    /// The request's bytes, with the reason why it was not started.
    pub fn start(
        &mut self,
        objects: &Arc<Objects>,
        object: CString,
        mut request: ObjectRequest,
    ) -> Result<u32, UnstartedObject> {
        let functions = &objects.pool.cluster.library().functions;
        let context = objects.pool.context;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            u32::try_from(self.slots.len() - 1).expect("few requests")
        });
        let give_up = |this: &mut Self, errno: i32, bytes: Vec<u8>| {
            this.free.push(slot);
            Err(UnstartedObject { errno, bytes })
        };
        let mut bytes = match &mut request {
            ObjectRequest::Read { buffer, .. } => std::mem::take(buffer),
            ObjectRequest::Write { bytes } => std::mem::take(bytes),
            ObjectRequest::Remove => Vec::new(),
        };
        if slot as usize >= RUNNING_COUNT_MAX {
            return give_up(self, libc::EAGAIN, bytes);
        }
        let descriptor = usize::try_from(self.writer.as_raw_fd()).expect("it is open");
        let argument = std::ptr::without_provenance_mut::<c_void>(descriptor << 32 | slot as usize);
        let mut completion: ObjectCompletion = std::ptr::null_mut();
        // SAFETY: a callback that takes this argument, and a place for the completion.
        let made =
            unsafe { (functions.rados_aio_create_completion2)(argument, Some(ring), &raw mut completion) };
        if made < 0 {
            return give_up(self, -made, bytes);
        }
        let (name, length) = (object.as_ptr(), bytes.len());
        let started = match request {
            ObjectRequest::Read { offset, .. } => {
                let start = bytes.as_mut_ptr().cast();
                // SAFETY: the buffer and the name go to the slot, untouched until the completion has come back, and their
                // memory does not move with them; `drop` leaks them if it has not.
                unsafe { (functions.rados_aio_read)(context, name, completion, start, length, offset) }
            }
            ObjectRequest::Write { .. } => {
                let start = bytes.as_ptr().cast();
                // SAFETY: as above.
                unsafe { (functions.rados_aio_write_full)(context, name, completion, start, length) }
            }
            // SAFETY: as above.
            ObjectRequest::Remove => unsafe { (functions.rados_aio_remove)(context, name, completion) },
        };
        if started < 0 {
            // SAFETY: librados has not taken the completion, so it never comes back.
            unsafe { (functions.rados_aio_release)(completion) };
            return give_up(self, -started, bytes);
        }
        let objects = Arc::clone(objects);
        self.slots[slot as usize] = Some(Slot { completion, bytes, _object: object, objects });
        Ok(slot)
    }

    /// Takes in the requests that have ended, and appends them to `ended`.
    pub fn collect(&mut self, ended: &mut Vec<FinishedObject>) {
        let mut room = [0_u8; 1024];
        loop {
            // Writes of four bytes are whole, and so are reads of a multiple.
            let Ok(count @ 1..) = rustix::io::read(&*self.reader, &mut room) else { return };
            for number in room[..count].chunks_exact(size_of::<u32>()) {
                let number = u32::from_ne_bytes(number.try_into().expect("four bytes"));
                if number != WOKEN {
                    ended.push(self.finish(number));
                }
            }
            if count < room.len() {
                return;
            }
        }
    }

    fn finish(&mut self, slot: u32) -> FinishedObject {
        let kept = self.slots[slot as usize].take().expect("librados ends each request once");
        self.free.push(slot);
        let functions = &kept.objects.pool.cluster.library().functions;
        // SAFETY: a completion that has ended, and is not used after this.
        let result = unsafe {
            let result = (functions.rados_aio_get_return_value)(kept.completion);
            (functions.rados_aio_release)(kept.completion);
            result
        };
        FinishedObject { slot, result: usize::try_from(result).map_err(|_| -result), bytes: kept.bytes }
    }
}

impl Drop for ObjectRequests {
    /// While requests run, librados may use their memory and the pipe, which are then never used for anything else.
    fn drop(&mut self) {
        if self.running_count() > 0 {
            tracing::warn!(
                count = self.running_count(),
                "requests to objects have not ended: their memory is leaked"
            );
            return;
        }
        // SAFETY: dropped once, here, and not used again.
        unsafe {
            ManuallyDrop::drop(&mut self.slots);
            ManuallyDrop::drop(&mut self.reader);
            ManuallyDrop::drop(&mut self.writer);
        }
    }
}

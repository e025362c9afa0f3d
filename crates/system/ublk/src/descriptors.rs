//! The kernel's descriptions of a queue's requests, which it writes to memory that is mapped here.

use std::io;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::commands::{DEPTH_MAX, Descriptor};

/// A description for each tag.
pub(crate) struct Descriptors {
    start: NonNull<Descriptor>,
    count: u16,
    mapped_bytes: usize,
}

fn mapped_bytes(count: u16) -> usize {
    (usize::from(count) * size_of::<Descriptor>()).next_multiple_of(memory::page_bytes())
}

impl Descriptors {
    /// Maps those of a queue with `count` tags.
    ///
    /// # Errors
    /// The kernel's: another process serves the device.
    pub(crate) fn map(device: BorrowedFd<'_>, queue: u16, count: u16) -> io::Result<Self> {
        let mapped_bytes = mapped_bytes(count);
        let offset = u64::from(queue) * mapped_bytes_max();
        // SAFETY: a new mapping, at an address that the kernel chooses.
        let start = unsafe {
            mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                ProtFlags::READ,
                MapFlags::SHARED | MapFlags::POPULATE,
                device,
                offset,
            )?
        };
        let start = NonNull::new(start.cast()).ok_or(io::ErrorKind::OutOfMemory)?;
        Ok(Self { start, count, mapped_bytes })
    }

    /// The description of the request that a tag has now.
    ///
    /// # Panics
    /// If there is no such tag.
    #[inline]
    pub(crate) fn of(&self, tag: u16) -> Descriptor {
        assert!(tag < self.count, "tag {tag} of {}", self.count);
        // SAFETY: inside the mapping, as just asserted, and aligned. The kernel writes a description before it gives the tag to
        // us, and not again before it has it back; whatever the bytes are, they are a description.
        unsafe { self.start.add(tag.into()).read_volatile() }
    }
}

/// Distance between the descriptions of two queues.
fn mapped_bytes_max() -> u64 {
    mapped_bytes(DEPTH_MAX) as u64
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: mapped by us with this length, and no reference into it exists.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.mapped_bytes) };
    }
}

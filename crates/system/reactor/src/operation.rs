//! Storage operations that a reactor carries out beside its sockets, and their results.

use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use memory::Buffer;

/// Identifies an operation to its starter.
pub type Token = u64;

/// An open file or block device, shared by the reactors that use it.
#[derive(Clone, Debug)]
pub struct File(Arc<Handle>);

#[derive(Debug)]
enum Handle {
    Os(OwnedFd),
    Simulated(u64),
}

impl File {
    /// A file of the system. Operations run with the flags it was opened with (O_DIRECT as a rule).
    #[must_use]
    pub fn new(file: OwnedFd) -> Self {
        Self(Arc::new(Handle::Os(file)))
    }

    /// A file of a simulated disk, known there by `id`.
    #[must_use]
    pub fn simulated(id: u64) -> Self {
        Self(Arc::new(Handle::Simulated(id)))
    }

    /// The number given to [`simulated`](Self::simulated), if this is such a file.
    #[must_use]
    pub fn simulated_id(&self) -> Option<u64> {
        match *self.0 {
            Handle::Os(_) => None,
            Handle::Simulated(id) => Some(id),
        }
    }

    /// Whether both are one open file description, which holds one lock.
    #[must_use]
    pub fn is_same_description(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    /// The system's descriptor, or an error for a simulated file.
    ///
    /// # Errors
    /// `Unsupported` for a simulated file.
    pub fn descriptor(&self) -> io::Result<BorrowedFd<'_>> {
        match &*self.0 {
            Handle::Os(fd) => Ok(fd.as_fd()),
            Handle::Simulated(_) => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// One asynchronous operation on a file. Offsets and lengths are bytes.
#[derive(Debug)]
pub enum Operation {
    /// Reads into the buffer's first `len()` bytes. May come back short.
    Read {
        /// The file to read.
        file: File,
        /// First byte in the file.
        offset: u64,
        /// The buffer to fill, from `skip` on.
        buffer: Buffer,
        /// Bytes of the buffer that are filled already.
        skip: usize,
    },
    /// Writes the buffer. May come back short.
    Write {
        /// The file to write.
        file: File,
        /// Byte in the file where `buffer[skip..]` goes.
        offset: u64,
        /// The buffer to write, from `skip` on.
        buffer: Buffer,
        /// Bytes of the buffer that are written already.
        skip: usize,
        /// Complete only when the data is on stable media (`RWF_DSYNC`).
        durable: bool,
    },
    /// Makes all writes that completed before this was started durable (`fdatasync`).
    Sync {
        /// The file.
        file: File,
    },
    /// Completes once the descriptor has something to read: an eventfd by which another library tells of its
    /// completions. It takes no buffer and no room of other operations, and a reactor that ends does not wait for it.
    /// With epoll, a descriptor is awaited by one operation at a time.
    Await {
        /// The descriptor.
        file: File,
    },
    /// Changes how a range is backed (`fallocate`, size kept).
    Allocate {
        /// The file.
        file: File,
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
        /// The change to the range.
        change: Allocation,
    },
    /// Finds the parts of a range that have data (`SEEK_DATA`, `SEEK_HOLE`). No engine of the kernel has it: a thread
    /// makes the calls, which may wait for the file's lock or read its extents from the disk.
    FindData {
        /// The file.
        file: File,
        /// The range, and the parts found.
        map: Arc<DataMap>,
    },
}

/// The parts of a range of bytes that have data, in order. What lies between them reads as zeroes.
///
/// A map that is full or [incomplete](Self::end_early) says nothing of what is behind its last part.
#[derive(Debug)]
pub struct DataMap {
    range: Range<u64>,
    part_limit: usize,
    parts: Mutex<Vec<Range<u64>>>,
    is_incomplete: AtomicBool,
}

impl DataMap {
    /// An empty map of a range, for at most so many parts: at least one.
    #[must_use]
    pub fn new(range: Range<u64>, part_limit: usize) -> Self {
        Self {
            range,
            part_limit: part_limit.max(1),
            parts: Mutex::default(),
            is_incomplete: AtomicBool::new(false),
        }
    }

    /// The range that it is about.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.range.clone()
    }

    /// Adds a part behind the others, or lengthens the last one. What lies outside of the range is cut off. `false`: the map
    /// is full, and the part is not in it.
    pub fn add(&self, part: Range<u64>) -> bool {
        let part = part.start.max(self.range.start)..part.end.min(self.range.end);
        if part.is_empty() {
            return true;
        }
        let mut parts = self.parts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(last) = parts.last_mut().filter(|last| last.end >= part.start) {
            last.end = last.end.max(part.end);
            return true;
        }
        let has_room = parts.len() < self.part_limit;
        if has_room {
            parts.push(part);
        }
        has_room
    }

    /// Nothing is known from byte `at` on, and it took too long already: the map ends with its last part, or without one
    /// takes the rest of the range for data.
    pub fn end_early(&self, at: u64) {
        if self.parts.lock().unwrap_or_else(PoisonError::into_inner).is_empty() {
            self.add(at..self.range.end);
        } else {
            self.is_incomplete.store(true, Ordering::Relaxed);
        }
    }

    /// Takes the parts out.
    #[must_use]
    pub fn take(&self) -> Vec<Range<u64>> {
        std::mem::take(&mut *self.parts.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// The end of what these parts, taken from this map, tell about.
    #[must_use]
    pub fn covered(&self, parts: &[Range<u64>]) -> u64 {
        let is_incomplete = self.is_incomplete.load(Ordering::Relaxed);
        let last = if is_incomplete { parts.last() } else { parts.get(self.part_limit - 1) };
        last.map_or(self.range.end, |last| last.end)
    }

    /// Adds the parts of a file that have data.
    pub(crate) fn find_in(&self, file: BorrowedFd<'_>) -> rustix::io::Result<()> {
        use rustix::fs::SeekFrom;
        let mut at = self.range.start;
        while at < self.range.end {
            let start = match rustix::fs::seek(file, SeekFrom::Data(at)) {
                Ok(start) => start,
                // No data up to the end of the file.
                Err(rustix::io::Errno::NXIO) => break,
                Err(errno) => return Err(errno),
            };
            if start >= self.range.end {
                break;
            }
            // The file may be cut in between: what was found to be data then stays that.
            let end = match rustix::fs::seek(file, SeekFrom::Hole(start)) {
                Ok(end) if end > start => end,
                Ok(_) | Err(rustix::io::Errno::NXIO) => self.range.end,
                Err(errno) => return Err(errno),
            };
            if !self.add(start..end) {
                break;
            }
            at = end;
        }
        Ok(())
    }
}

/// The effect of [`Operation::Allocate`] on a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Allocation {
    /// Gives the space back; the range reads as zeroes.
    Punch,
    /// The range reads as zeroes and keeps its space.
    Zero,
}

/// The end of an [`Operation`].
#[derive(Debug)]
pub struct Completion {
    /// As given at the start.
    pub token: Token,
    /// Bytes read or written (0 for the others), or the error.
    pub result: io::Result<usize>,
    /// The buffer of a read or write, back from the kernel.
    pub buffer: Option<Buffer>,
}

/// The rest of a buffer behind the bytes that are done.
///
/// # Panics
/// If more are done than there are.
pub(crate) fn rest_of(buffer: &mut Buffer, done: usize) -> &mut [u8] {
    let length = buffer.len();
    buffer.get_mut(done..).unwrap_or_else(|| panic!("{done} bytes are done of a buffer of {length}"))
}

impl Operation {
    /// The file it works on.
    #[must_use]
    pub fn file(&self) -> &File {
        match self {
            Self::Read { file, .. }
            | Self::Write { file, .. }
            | Self::Sync { file }
            | Self::Await { file }
            | Self::Allocate { file, .. }
            | Self::FindData { file, .. } => file,
        }
    }

    /// The buffer of a read or write.
    #[must_use]
    pub fn into_buffer(self) -> Option<Buffer> {
        match self {
            Self::Read { buffer, .. } | Self::Write { buffer, .. } => Some(buffer),
            Self::Sync { .. } | Self::Await { .. } | Self::Allocate { .. } | Self::FindData { .. } => None,
        }
    }

    /// Ends the operation: gives the buffer back.
    pub(crate) fn complete(self, token: Token, result: io::Result<usize>) -> Completion {
        Completion { token, result, buffer: self.into_buffer() }
    }
}

impl Allocation {
    /// The mode of `fallocate`.
    pub(crate) fn mode(self) -> rustix::fs::FallocateFlags {
        use rustix::fs::FallocateFlags;
        FallocateFlags::KEEP_SIZE
            | match self {
                Self::Punch => FallocateFlags::PUNCH_HOLE,
                Self::Zero => FallocateFlags::ZERO_RANGE,
            }
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init)] // Lists of ranges.
mod tests {
    use super::*;

    #[test]
    fn parts_are_cut_to_the_range_and_joined() {
        let map = DataMap::new(10..100, 2);
        assert!(map.add(0..5) && map.add(8..20) && map.add(20..30) && map.add(40..200));
        let parts = map.take();
        assert_eq!(parts, [10..30, 40..100]);
        assert_eq!(map.covered(&parts), 100);
        assert_eq!(map.covered(&[]), 100, "no data at all");
    }

    #[test]
    fn a_full_map_ends_with_its_last_part() {
        let map = DataMap::new(0..100, 2);
        assert!(map.add(0..5) && map.add(10..20));
        assert!(!map.add(30..40));
        let parts = map.take();
        assert_eq!((map.covered(&parts), parts.len()), (20, 2));
        assert_eq!(map.covered(&parts[..1]), 100, "a map with room left");
    }

    #[test]
    fn a_map_that_ends_early_tells_of_no_holes_behind_its_end() {
        let map = DataMap::new(10..100, 9);
        map.end_early(30);
        let parts = map.take();
        assert_eq!((map.covered(&parts), parts), (100, vec![30..100]), "holes are known up to byte 30");
        let map = DataMap::new(10..100, 9);
        assert!(map.add(20..25));
        map.end_early(30);
        let parts = map.take();
        assert_eq!((map.covered(&parts), parts), (25, vec![20..25]));
    }

    #[test]
    #[cfg_attr(miri, ignore = "no SEEK_DATA")]
    fn the_data_of_a_sparse_file_is_found() {
        const MIB: u64 = 1 << 20;
        let file = tempfile::tempfile().unwrap();
        file.set_len(8 * MIB).unwrap();
        let write = |at| std::os::unix::fs::FileExt::write_all_at(&file, &[1; 4096], at).unwrap();
        write(MIB);
        write(4 * MIB);
        let map = DataMap::new(0..8 * MIB, 10);
        map.find_in(file.as_fd()).unwrap();
        let parts = map.take();
        // A file system may have larger blocks, or no holes at all.
        for at in [MIB, 4 * MIB] {
            assert!(parts.iter().any(|part| part.start <= at && at + 4096 <= part.end), "{parts:?}");
        }
        let beyond = DataMap::new(8 * MIB..9 * MIB, 10);
        beyond.find_in(file.as_fd()).unwrap();
        assert_eq!(beyond.take(), []);
        let device = std::fs::File::open("/dev/null").unwrap();
        let whole = DataMap::new(0..MIB, 1);
        whole.find_in(device.as_fd()).unwrap();
        assert_eq!(whole.take(), [0..MIB], "a device that finds neither data nor holes");
    }
}

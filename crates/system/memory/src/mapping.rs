//! An anonymous memory mapping: reserved at once, given memory page by page as it is touched.

mod pages;

use std::io;
use std::ops::Range;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Address space for all reservations of the process. The rest of what x86-64 and arm64 have for a process, 128 TiB, is for
/// threads, buffers and the allocator, which could get nothing otherwise.
const SPACE_BYTES: usize = 96 << 40;

/// Pages asked about in one call.
const PAGE_ENTRY_COUNT: usize = 8192;

/// The sum of all reservations.
static RESERVED_BYTES: AtomicUsize = AtomicUsize::new(0);

/// Zero-filled memory that belongs to the process until it is dropped.
pub(crate) struct Mapping {
    start: NonNull<u8>,
    length: usize,
    /// The mapping as the system made it, of which the above is the aligned part.
    whole: (NonNull<u8>, usize),
    page_bytes: usize,
    /// Its part of [`RESERVED_BYTES`].
    reserved: usize,
}

/// Bytes to reserve for `bytes` that are needed at once and up to `bytes_max` later, of `left`: a 512th, so that thousands of
/// reservations have room to grow, or twice what is needed if that is no more than a sixteenth.
fn reservation(bytes: usize, bytes_max: usize, left: usize) -> usize {
    let share = (left / 512).max(bytes.saturating_mul(2).min(left / 16));
    bytes_max.min(share).max(bytes)
}

/// Bytes of a page of the running kernel.
#[must_use]
pub fn page_bytes() -> usize {
    pages::page_bytes()
}

// SAFETY: a mapping is plain memory, tied to no thread; those who hand out views of it order their accesses.
unsafe impl Send for Mapping {}
// SAFETY: `&Mapping` gives out addresses only; every access through them is the holder's `unsafe`.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps `length` bytes (not 0). No memory is committed yet.
    pub(crate) fn anonymous(length: usize) -> io::Result<Self> {
        Self::with_pages(length, 1, true, page_bytes())
    }

    /// Maps `length` bytes (not 0), aligned to `alignment` (a power of two) and to pages. Unless it `is_open`, address
    /// space alone is reserved: none of it may be touched before [`open`](Self::open). Tests give pages larger than the
    /// system's: calls then affect the same bytes as on a kernel with such pages.
    pub(crate) fn with_pages(
        length: usize,
        alignment: usize,
        is_open: bool,
        page_bytes: usize,
    ) -> io::Result<Self> {
        let alignment = alignment.max(page_bytes);
        // The system aligns to its pages, and maps whole ones.
        let slack = if alignment > pages::page_bytes() { alignment } else { 0 };
        let mapped = length.checked_next_multiple_of(page_bytes).and_then(|bytes| bytes.checked_add(slack));
        let mapped = mapped.ok_or(io::ErrorKind::OutOfMemory)?;
        let whole = pages::reserve(mapped, is_open)?;
        let before = whole.align_offset(alignment);
        // SAFETY: fewer than `alignment` bytes in, which the mapping is longer by unless the system aligned it.
        let start = unsafe { whole.add(before) };
        Ok(Self { start, length, whole: (whole, mapped), page_bytes, reserved: 0 })
    }

    /// Reserves address space for `bytes` (not 0), and for up to `bytes_max` as far as the system lets us and others
    /// have left it; both are multiples of `alignment`. None of it may be touched before [`open`](Self::open).
    pub(crate) fn reserve(
        bytes: usize,
        bytes_max: usize,
        alignment: usize,
        page_bytes: usize,
    ) -> io::Result<Self> {
        let left = SPACE_BYTES.saturating_sub(RESERVED_BYTES.load(Ordering::Relaxed));
        let mut reserved = (reservation(bytes, bytes_max, left) / alignment * alignment).max(bytes);
        loop {
            match Self::with_pages(reserved, alignment, false, page_bytes) {
                Ok(mut mapping) => {
                    RESERVED_BYTES.fetch_add(reserved, Ordering::Relaxed);
                    mapping.reserved = reserved;
                    return Ok(mapping);
                }
                Err(error) if reserved == bytes => return Err(error),
                Err(_) => reserved = (reserved / 2 / alignment * alignment).max(bytes),
            }
        }
    }

    /// Bytes mapped or reserved.
    pub(crate) fn len(&self) -> usize {
        self.length
    }

    /// Address of byte `offset`.
    ///
    /// # Panics
    /// If `offset` is not in the mapping.
    #[inline]
    pub(crate) fn at(&self, offset: usize) -> NonNull<u8> {
        assert!(offset < self.length, "offset {offset} past a mapping of {} bytes", self.length);
        // SAFETY: in the mapping, as just asserted.
        unsafe { self.start.add(offset) }
    }

    /// Makes all pages that `range` of a reservation lies in readable and writable, for good. They read as zeroes.
    ///
    /// # Panics
    /// If the range is not in the mapping.
    pub(crate) fn open(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} past {}", self.length);
        let outward = range.start / self.page_bytes * self.page_bytes..range.end;
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: ours, as just asserted, up to the end of the last page.
        unsafe { pages::open(self.start.add(outward.start), outward.len()) }
    }

    /// Asks for transparent huge pages. The kernel may decline.
    pub(crate) fn prefer_huge_pages(&self) -> io::Result<()> {
        // SAFETY: the range is ours.
        unsafe { pages::prefer_huge(self.start, self.length) }
    }

    /// Populates the pages of `range` now, which begins at a page and may be touched. Their content stays, also while
    /// other threads read and write them.
    ///
    /// # Panics
    /// If the range is not in the mapping.
    pub(crate) fn populate(&self, range: Range<usize>) -> io::Result<()> {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} past {}", self.length);
        if range.is_empty() {
            return Ok(());
        }
        // SAFETY: ours, as just asserted; it changes no content.
        unsafe { pages::populate(self.start.add(range.start), range.len()) }
    }

    /// Tells `found` of the pages of `range` that may have been written to, in order: all others read as zeroes. `false` if
    /// the kernel does not tell.
    ///
    /// # Panics
    /// If the range is not in the mapping.
    pub(crate) fn touched(&self, range: Range<usize>, mut found: impl FnMut(Range<usize>)) -> bool {
        assert!(range.start <= range.end && range.end <= self.length, "{range:?} past {}", self.length);
        let page_bytes = pages::page_bytes();
        let base = self.start.as_ptr() as usize;
        // The mapping begins at a page.
        let (mut page, end) = (range.start / page_bytes, range.end.div_ceil(page_bytes));
        let mut entries = vec![[0; 8]; (end - page).min(PAGE_ENTRY_COUNT)];
        while page < end {
            let count = (end - page).min(entries.len());
            if !pages::read_page_map(base / page_bytes + page, &mut entries[..count]) {
                return false;
            }
            for (at, _) in (page..).zip(&entries[..count]).filter(|(_, entry)| pages::is_touched(**entry)) {
                found(at * page_bytes..(at + 1) * page_bytes);
            }
            page += count;
        }
        true
    }

    /// Returns the whole pages within `range` to the system, and their bytes to the caller: these read as zeroes
    /// afterwards, all others are unchanged.
    ///
    /// # Safety
    /// The range is in the mapping and may be touched, and no reference into it is alive.
    pub(crate) unsafe fn discard(&self, range: Range<usize>) -> io::Result<Range<usize>> {
        let page_bytes = self.page_bytes;
        let start = range.start.next_multiple_of(page_bytes);
        let inward = start..(range.end / page_bytes * page_bytes).max(start);
        if !inward.is_empty() {
            // SAFETY: the caller's contract; whole pages, so nothing beside them is touched.
            unsafe { self.discard_as_the_kernel(inward.start, inward.len())? };
        }
        Ok(inward)
    }

    /// Gives pages back. A kernel refuses a start within a page and rounds the length up to whole pages; one whose
    /// pages are as small as the system's does not have to be imitated.
    ///
    /// # Safety
    /// The pages are in the mapping and may be touched, and no reference into them is alive.
    unsafe fn discard_as_the_kernel(&self, start: usize, length: usize) -> io::Result<()> {
        if !start.is_multiple_of(self.page_bytes) {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        // SAFETY: the caller's contract.
        unsafe { pages::discard(self.start.add(start), length.next_multiple_of(self.page_bytes)) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        RESERVED_BYTES.fetch_sub(self.reserved, Ordering::Relaxed);
        let (start, length) = self.whole;
        // SAFETY: reserved by `new` with this length; nothing refers to it any more.
        unsafe { pages::release(start, length) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Pages of kernels in use.
    const PAGE_SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

    fn bytes(mapping: &Mapping) -> Vec<u8> {
        // SAFETY: open to its end, and nobody writes.
        unsafe { std::slice::from_raw_parts(mapping.at(0).as_ptr(), mapping.len()) }.to_vec()
    }

    fn filled(page_bytes: usize) -> Mapping {
        let mapping = Mapping::with_pages(4 * page_bytes, 1, true, page_bytes).unwrap();
        // SAFETY: open to its end, and nothing else refers to it.
        unsafe { mapping.at(0).as_ptr().write_bytes(7, mapping.len()) };
        mapping
    }

    #[test]
    fn a_discard_takes_the_whole_pages_of_a_range_and_no_byte_beside_it() {
        for page_bytes in PAGE_SIZES {
            let (page, line) = (page_bytes, 64);
            for (range, discarded) in [
                (0..page, 0..page),
                (0..4096.min(page - 1), page..page),
                (line..3 * page - line, page..2 * page),
                (page - line..3 * page + line, page..3 * page),
                (page..page, page..page),
                (page + line..page + 2 * line, 2 * page..2 * page),
                (0..4 * page, 0..4 * page),
            ] {
                let mapping = filled(page_bytes);
                // SAFETY: within the mapping, which nothing refers to.
                let done = unsafe { mapping.discard(range.clone()) }.unwrap();
                if discarded.is_empty() {
                    assert!(done.is_empty(), "{range:?} of pages of {page_bytes}: {done:?}");
                } else {
                    assert_eq!(done, discarded, "{range:?} of pages of {page_bytes}");
                }
                for (at, byte) in bytes(&mapping).into_iter().enumerate() {
                    assert_eq!(byte == 0, discarded.contains(&at), "byte {at}, pages of {page_bytes}");
                }
            }
        }
    }

    /// Rounding to pages, which this module must not leave to the kernel.
    #[test]
    fn a_kernel_with_larger_pages_erases_neighbours_of_a_part() {
        let mapping = filled(64 << 10);
        // SAFETY: within the mapping, which nothing refers to.
        assert!(unsafe { mapping.discard_as_the_kernel(4096, 4096) }.is_err());
        // SAFETY: as above.
        unsafe { mapping.discard_as_the_kernel(0, 4096) }.unwrap();
        assert_eq!(bytes(&mapping).iter().position(|&byte| byte == 7), Some(64 << 10));
    }

    #[test]
    fn what_is_opened_may_be_touched_to_the_end_of_its_pages() {
        for page_bytes in PAGE_SIZES {
            let mapping = Mapping::with_pages(4 * page_bytes, 1, false, page_bytes).unwrap();
            mapping.open(100..page_bytes + 1).unwrap();
            for at in [0, 99, page_bytes - 1, page_bytes, page_bytes + 1] {
                // SAFETY: just opened.
                unsafe { mapping.at(at).as_ptr().write_volatile(1) };
            }
        }
    }

    #[test]
    fn thousands_of_reservations_have_room_to_grow() {
        let (bytes, bytes_max) = (1 << 20, 1 << 40);
        let mut left = SPACE_BYTES;
        for index in 0..4096 {
            let reserved = reservation(bytes, bytes_max, left);
            assert!(reserved >= if index < 300 { 64 << 30 } else { 2 * bytes }, "{index}: {reserved}");
            left = left.checked_sub(reserved).expect("address space is left");
        }
        assert_eq!(reservation(bytes, 2 * bytes, SPACE_BYTES), 2 * bytes, "no more than is wanted");
        assert_eq!(reservation(1 << 40, 16 << 40, SPACE_BYTES), 2 << 40, "the large may double");
        assert_eq!(reservation(1 << 40, 16 << 40, 0), 1 << 40, "what is needed at once is tried");
    }

    #[test]
    #[cfg_attr(miri, ignore = "address space is memory to Miri")]
    fn hundreds_of_reservations_leave_address_space_to_others() {
        let many: Vec<Mapping> =
            (0..300).map(|_| Mapping::reserve(1 << 20, 1 << 40, 4096, page_bytes()).unwrap()).collect();
        assert!(many.iter().all(|mapping| mapping.len() >= 32 << 30), "{}", many[299].len());
        assert!(Mapping::with_pages(16 << 40, 4096, false, page_bytes()).is_ok());
    }

    #[test]
    fn the_page_size_is_the_systems() {
        let page_bytes = page_bytes();
        assert!(page_bytes.is_power_of_two() && page_bytes >= 4096);
        let mapping = Mapping::anonymous(1).unwrap();
        assert_eq!((mapping.page_bytes, mapping.at(0).as_ptr() as usize % page_bytes), (page_bytes, 0));
    }
}

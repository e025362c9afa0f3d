//! Memory as an array of cache lines, and the hint that one of them will be needed soon.

use std::io;
use std::ops::{Deref, DerefMut, Range};
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, PoisonError};

use crate::mapping::{Mapping, page_bytes};

/// Bytes of a cache line.
pub const LINE_BYTES: usize = 64;

/// The grain in which memory is withheld from population: a multiple of the page size of every kernel.
const GRAIN_BYTES: usize = 64 << 10;

/// One cache line.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub struct Line(pub [u8; LINE_BYTES]);

/// Cache lines of one owner: zeroes at first, given memory as they are touched, in huge pages where the
/// system has any. There can be more or fewer later, in address space that was reserved for them.
pub struct Lines {
    /// Where the mapping begins.
    start: NonNull<Line>,
    count: usize,
    /// Lines that may be touched: the largest count so far.
    open_count: usize,
    shared: Arc<Shared>,
}

struct Shared {
    mapping: Mapping,
    /// By grain: whether it is withheld from population. Locked during population.
    withheld: Mutex<Vec<bool>>,
}

// SAFETY: the start is that of the mapping, which is tied to no thread; nobody else reads or writes it.
unsafe impl Send for Lines {}
// SAFETY: `&Lines` only reads.
unsafe impl Sync for Lines {}

/// Lines that another thread populates with memory before their owner touches them.
pub struct Untouched {
    shared: Arc<Shared>,
    /// The bytes not populated yet.
    rest: Range<usize>,
}

impl Untouched {
    /// Bytes in all.
    #[must_use]
    pub fn len(&self) -> usize {
        self.rest.end
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes populated so far.
    #[must_use]
    pub fn populated(&self) -> usize {
        self.rest.start
    }

    /// Populates up to `bytes` more, except withheld grains. Returns whether there were any, and the owner still
    /// exists.
    ///
    /// # Errors
    /// If the system has no memory, or is older than Linux 5.14.
    pub fn populate(&mut self, bytes: usize) -> io::Result<bool> {
        let end = self.rest.start.saturating_add(bytes.next_multiple_of(GRAIN_BYTES)).min(self.len());
        if end == self.rest.start || Arc::strong_count(&self.shared) == 1 {
            return Ok(false);
        }
        let withheld = self.shared.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        while self.rest.start < end {
            let is_withheld = |at: usize| withheld[at / GRAIN_BYTES];
            let starts = (self.rest.start..end).step_by(GRAIN_BYTES).skip(1);
            let kind = is_withheld(self.rest.start);
            let until = starts.clone().find(|&at| is_withheld(at) != kind).unwrap_or(end);
            if !kind {
                self.shared.mapping.populate(self.rest.start..until)?;
            }
            self.rest.start = until;
        }
        Ok(true)
    }
}

impl Lines {
    /// Maps `count` lines (not 0), and reserves address space for up to `count_max`, or as far as the system lets us.
    ///
    /// # Errors
    /// The system's error if it refuses the mapping.
    pub fn new(count: usize, count_max: usize) -> io::Result<Self> {
        Self::with_pages(count, count_max, page_bytes())
    }

    fn with_pages(count: usize, count_max: usize, page_bytes: usize) -> io::Result<Self> {
        let bytes = |count: usize| count.max(1).checked_mul(LINE_BYTES).ok_or(io::ErrorKind::OutOfMemory);
        let mapping = Mapping::reserve(bytes(count)?, bytes(count_max)?, LINE_BYTES, page_bytes)?;
        mapping.open(0..bytes(count)?)?;
        // Random accesses to small pages miss the TLB each time. Systems without huge pages refuse the
        // advice.
        let _ = mapping.prefer_huge_pages();
        let withheld = Mutex::new(vec![false; bytes(count)?.div_ceil(GRAIN_BYTES)]);
        Ok(Self {
            start: mapping.at(0).cast(),
            count: count.max(1),
            open_count: count.max(1),
            shared: Arc::new(Shared { mapping, withheld }),
        })
    }

    /// Lines for which address space is reserved.
    #[must_use]
    pub fn count_max(&self) -> usize {
        self.shared.mapping.len() / LINE_BYTES
    }

    /// Changes the length to `count` lines (not 0). The content of added lines is undefined. Lines that are cut off are
    /// [given back](Self::give_back) before, or keep their memory.
    ///
    /// # Errors
    /// If no address space is reserved for them, or the system refuses them. Nothing has changed then.
    pub fn resize(&mut self, count: usize) -> io::Result<()> {
        if count > self.count_max() {
            return Err(io::ErrorKind::OutOfMemory.into());
        }
        if count > self.open_count {
            self.shared.mapping.open(self.open_count * LINE_BYTES..count * LINE_BYTES)?;
            self.open_count = count;
        }
        let mut withheld = self.shared.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        let grain_count = (count * LINE_BYTES).div_ceil(GRAIN_BYTES);
        if grain_count > withheld.len() {
            withheld.resize(grain_count, false);
        }
        drop(withheld);
        self.count = count;
        Ok(())
    }

    /// The lines as another thread populates them.
    #[must_use]
    pub fn untouched(&self) -> Untouched {
        Untouched { shared: Arc::clone(&self.shared), rest: 0..self.count * LINE_BYTES }
    }

    /// All bytes, in order.
    #[inline]
    #[must_use]
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the mapping is that long, initialised, and only `&mut self` gives a way to write to it.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr().cast(), self.count * LINE_BYTES) }
    }

    /// All bytes, in order.
    #[inline]
    #[must_use]
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `bytes`, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr().cast(), self.count * LINE_BYTES) }
    }

    /// Zeroes lines; whole pages of them go back to the system.
    ///
    /// # Panics
    /// If the range is not within.
    pub fn zero(&mut self, range: Range<usize>) {
        let bytes = range.start * LINE_BYTES..range.end * LINE_BYTES;
        let pages = self.discard(range);
        let all = self.bytes_mut();
        match pages {
            Some(pages) => {
                all[bytes.start..pages.start].fill(0);
                all[pages.end..bytes.end].fill(0);
            }
            None => all[bytes].fill(0),
        }
    }

    /// Returns whole pages of lines to the system without touching any: the lines keep their content or become zero.
    /// Population skips the grains of 64 KiB that they begin in, until they are [allowed](Self::allow).
    ///
    /// # Panics
    /// If the range is not within.
    pub fn give_back(&mut self, range: Range<usize>) {
        self.withhold(&range, true);
        self.discard(range);
    }

    /// Lets lines that were discarded be populated again.
    ///
    /// # Panics
    /// If the range is not within.
    pub fn allow(&mut self, range: &Range<usize>) {
        self.withhold(range, false);
    }

    fn withhold(&mut self, range: &Range<usize>, is_withheld: bool) {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} lines", self.count);
        let grains =
            (range.start * LINE_BYTES).div_ceil(GRAIN_BYTES)..(range.end * LINE_BYTES).div_ceil(GRAIN_BYTES);
        let mut withheld = self.shared.withheld.lock().unwrap_or_else(PoisonError::into_inner);
        withheld[grains].fill(is_withheld);
    }

    /// Discards the whole pages of lines. Returns their bytes; `None` if there are none, or the system refuses.
    fn discard(&mut self, range: Range<usize>) -> Option<Range<usize>> {
        assert!(range.start <= range.end && range.end <= self.count, "{range:?} of {} lines", self.count);
        let bytes = range.start * LINE_BYTES..range.end * LINE_BYTES;
        // SAFETY: within, and `&mut self` says that nothing refers to it.
        unsafe { self.shared.mapping.discard(bytes) }.ok().filter(|pages| !pages.is_empty())
    }
}

impl Deref for Lines {
    type Target = [Line];

    #[inline]
    fn deref(&self) -> &[Line] {
        // SAFETY: as in `bytes`; mappings begin at a page, so lines are aligned.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.count) }
    }
}

impl DerefMut for Lines {
    #[inline]
    fn deref_mut(&mut self) -> &mut [Line] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.count) }
    }
}

/// Prefetches the cache line of `of`, which will be read soon.
#[inline(always)]
pub fn prefetch<T: ?Sized>(of: &T) {
    let address = std::ptr::from_ref(of).cast::<i8>();
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint; it never faults and changes nothing that a program can see.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address);
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!("prfm pldl1keep, [{0}]", in(reg) address, options(nostack, preserves_flags, readonly));
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    let _ = address;
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::FileExt;

    use super::*;

    #[test]
    fn lines_are_zero_aligned_and_one_with_their_bytes() {
        let mut lines = Lines::new(1000, 1000).unwrap();
        assert_eq!(lines.len(), 1000);
        assert!(lines.bytes().iter().all(|&byte| byte == 0));
        assert_eq!(lines.as_ptr() as usize % LINE_BYTES, 0);
        lines[3].0[5] = 7;
        assert_eq!(lines.bytes()[3 * 64 + 5], 7);
        lines.bytes_mut()[64] = 9;
        assert_eq!(lines[1].0[0], 9);
        prefetch(&lines[999]);
    }

    #[test]
    fn populating_changes_nothing_and_ends_with_the_lines() {
        let mut lines = Lines::new(10_000, 10_000).unwrap();
        lines[3].0[5] = 7;
        let mut untouched = lines.untouched();
        assert_eq!((untouched.len(), untouched.populated()), (10_000 * LINE_BYTES, 0));
        let thread = std::thread::spawn(move || {
            let mut count = 0;
            while untouched.populate(100_000).unwrap() {
                count += 1;
            }
            assert_eq!((count, untouched.populated()), (5, 10_000 * LINE_BYTES));
            untouched
        });
        lines[4].0[5] = 8;
        assert!(!thread.join().unwrap().populate(1).unwrap());
        assert_eq!((lines[3].0[5], lines[4].0[5], lines[5].0[5]), (7, 8, 0));
        let mut untouched = lines.untouched();
        drop(lines);
        assert!(!untouched.populate(10_000).unwrap(), "nobody wants it");
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no pages")]
    fn what_is_given_back_is_not_populated_until_it_is_allowed() {
        let grain = GRAIN_BYTES / LINE_BYTES;
        let mut lines = Lines::new(8 * grain, 8 * grain).unwrap();
        // The top bit of a page's entry of eight bytes says whether the page is present.
        let pages = std::fs::File::open("/proc/self/pagemap").unwrap();
        let is_there = |at: usize| {
            let mut entry = [0; 8];
            pages.read_exact_at(&mut entry, (at / page_bytes() * 8) as u64).unwrap();
            u64::from_le_bytes(entry) >> 63 == 1
        };
        lines.give_back(grain..3 * grain);
        lines.give_back(5 * grain..6 * grain);
        lines.allow(&(2 * grain..3 * grain));
        let mut untouched = lines.untouched();
        while untouched.populate(3 * GRAIN_BYTES).unwrap() {}
        let start = lines.bytes().as_ptr() as usize;
        let populated = [0, 1, 2, 3, 4, 5, 6, 7].map(|at| is_there(start + at * GRAIN_BYTES));
        assert_eq!(populated, [true, false, true, true, true, false, true, true]);
    }

    #[test]
    fn lines_that_are_cut_off_and_added_again_leave_the_others() {
        let grain = GRAIN_BYTES / LINE_BYTES;
        let mut lines = Lines::new(4 * grain, 8 * grain).unwrap();
        assert_eq!(lines.count_max(), 8 * grain);
        for (count, number) in [(2, 1), (8, 2), (1, 3), (4, 4), (8, 5)] {
            let kept = lines.len().min(count * grain);
            lines.resize(count * grain).unwrap();
            assert_eq!(lines.len(), count * grain);
            let expected = number - 1;
            assert!(number == 1 || lines[..kept].iter().all(|line| line.0 == [expected; LINE_BYTES]));
            lines.bytes_mut().fill(number);
        }
        assert!(lines.resize(8 * grain + 1).is_err());
        assert_eq!(lines.untouched().len(), 8 * GRAIN_BYTES);
    }

    #[test]
    #[cfg_attr(miri, ignore = "it has no pages")]
    fn a_large_reservation_takes_no_memory() {
        // More than most machines have.
        let mut lines = Lines::new(1024, 1 << 32).unwrap();
        assert!(lines.count_max() >= 1 << 30, "{} lines", lines.count_max());
        lines.resize(1 << 20).unwrap();
        lines[(1 << 20) - 1].0[0] = 1;
        lines.resize(1024).unwrap();
        assert_eq!(lines[1023].0[0], 0);
    }

    const PAGE_SIZES: [usize; 3] = [4 << 10, 16 << 10, 64 << 10];

    #[test]
    fn zeroing_takes_exactly_the_lines_named() {
        for page_bytes in PAGE_SIZES {
            for range in [0..1, 1..63, 63..65, 1..64, 64..128, 10..900, 64..1000, 500..500, 1000..3000] {
                let mut lines = Lines::with_pages(4000, 8000, page_bytes).unwrap();
                lines.bytes_mut().fill(0xEE);
                lines.zero(range.clone());
                for (at, line) in lines.iter().enumerate() {
                    let expected = if range.contains(&at) { 0 } else { 0xEE };
                    assert_eq!(line.0, [expected; 64], "line {at} of {range:?}, pages of {page_bytes}");
                }
            }
        }
    }

    #[test]
    fn what_is_given_back_is_whole_pages_of_the_lines_named_and_nothing_else() {
        for page_bytes in PAGE_SIZES {
            let page = page_bytes / LINE_BYTES;
            for range in [0..1, 1..63, 63..130, 64..128, 10..900, 500..500, 1..3999, page..2 * page] {
                let mut lines = Lines::with_pages(4000, 8000, page_bytes).unwrap();
                lines.bytes_mut().fill(0xEE);
                lines.give_back(range.clone());
                let pages = range.start.next_multiple_of(page)..range.end / page * page;
                for (at, line) in lines.iter().enumerate() {
                    let expected = if pages.contains(&at) { 0 } else { 0xEE };
                    assert_eq!(line.0, [expected; 64], "line {at} of {range:?}, pages of {page_bytes}");
                }
            }
        }
    }
}

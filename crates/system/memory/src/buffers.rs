//! The buffer pool of a reactor: one arena, mapped at start, cut into blocks on demand.
//!
//! Blocks are powers of two from [`BLOCK_BYTES_MIN`] up. A block is contiguous and aligned to its own size, so
//! one type serves O_DIRECT, registered (fixed) io_uring operations and vectored sends. Freed blocks go onto the
//! stack of their size and are reused warm; neighbours are merged only when a larger block is asked for and
//! none is left. The arena never grows: an empty pool is back-pressure for the caller.
//!
//! Dropping a [`Buffer`] frees its block. Buffers never leave their thread.

use std::cell::RefCell;
use std::fmt;
use std::io;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::rc::Rc;

use crate::mapping::Mapping;

/// The smallest block, bytes: enough for O_DIRECT on every known device, independent of the kernel's page size.
pub const BLOCK_BYTES_MIN: usize = 4096;

/// Sizes of blocks: `BLOCK_BYTES_MIN << 0 .. BLOCK_BYTES_MIN << (ORDER_COUNT - 1)`, that is 4 KiB to 4 MiB.
const ORDER_COUNT: usize = 11;

/// The largest block, bytes.
pub const BLOCK_BYTES_MAX: usize = BLOCK_BYTES_MIN << (ORDER_COUNT - 1);

/// A reactor's arena of buffers. Clones share it; all stay on one thread.
#[derive(Clone)]
pub struct Pool {
    shared: Rc<Shared>,
}

struct Shared {
    mapping: Mapping,
    free: RefCell<FreeLists>,
}

/// Free blocks by order, each named by its first page.
struct FreeLists {
    stacks: [Vec<u32>; ORDER_COUNT],
    free_page_count: u32,
    low_water_page_count: u32,
    freed_since_merge: bool,
}

/// An owned block of the pool, with the length that was asked for.
///
/// Its content is what the last owner left: fill it before sending it to a peer.
pub struct Buffer {
    pool: Rc<Shared>,
    start: NonNull<u8>,
    page: u32,
    order: u8,
    length: u32,
}

impl Pool {
    /// Maps an arena of `bytes`, rounded up to whole largest blocks. Pages are touched as they are used.
    ///
    /// # Errors
    /// The kernel's error if it refuses the mapping.
    pub fn new(bytes: usize) -> io::Result<Self> {
        let bytes = bytes.max(1).next_multiple_of(BLOCK_BYTES_MAX);
        let mapping = Mapping::anonymous(bytes)?;
        let page_count = u32::try_from(bytes / BLOCK_BYTES_MIN).map_err(|_| io::ErrorKind::InvalidInput)?;
        let pages_max = u32::try_from(BLOCK_BYTES_MAX / BLOCK_BYTES_MIN).expect("a constant");
        let mut stacks: [Vec<u32>; ORDER_COUNT] = std::array::from_fn(|order| {
            // Room for every block of the order: pushing never allocates.
            Vec::with_capacity(page_count as usize >> order)
        });
        // Lowest addresses on top of the stack, so that a lightly used arena touches little memory.
        stacks[ORDER_COUNT - 1].extend((0..page_count).step_by(pages_max as usize).rev());
        let free = FreeLists {
            stacks,
            free_page_count: page_count,
            low_water_page_count: page_count,
            freed_since_merge: false,
        };
        Ok(Self { shared: Rc::new(Shared { mapping, free: RefCell::new(free) }) })
    }

    /// A buffer of `length` bytes (1 to [`BLOCK_BYTES_MAX`]), or `None` if no block of that size is free.
    #[inline]
    #[must_use]
    pub fn take(&self, length: usize) -> Option<Buffer> {
        if length > BLOCK_BYTES_MAX {
            return None;
        }
        let order = order_of(length);
        let page = self.shared.free.borrow_mut().take(order)?;
        // In range: the free lists hold only pages of the mapping.
        let start = self.shared.mapping.at(page as usize * BLOCK_BYTES_MIN);
        Some(Buffer {
            pool: Rc::clone(&self.shared),
            start,
            page,
            order: u8::try_from(order).expect("fewer than 256 orders"),
            length: u32::try_from(length).expect("at most the largest block"),
        })
    }

    /// Whether a buffer of `length` bytes is available now.
    #[inline]
    #[must_use]
    pub fn has(&self, length: usize) -> bool {
        if length > BLOCK_BYTES_MAX {
            return false;
        }
        let order = order_of(length);
        let mut free = self.shared.free.borrow_mut();
        free.stacks[order..].iter().any(|stack| !stack.is_empty()) || {
            free.merge();
            free.stacks[order..].iter().any(|stack| !stack.is_empty())
        }
    }

    /// Size of the arena, bytes.
    #[must_use]
    pub fn capacity_bytes(&self) -> usize {
        self.shared.mapping.len()
    }

    /// Bytes in free blocks of all sizes.
    #[must_use]
    pub fn free_bytes(&self) -> usize {
        self.shared.free.borrow().free_page_count as usize * BLOCK_BYTES_MIN
    }

    /// The fewest bytes that were free at any time.
    #[must_use]
    pub fn free_bytes_min(&self) -> usize {
        self.shared.free.borrow().low_water_page_count as usize * BLOCK_BYTES_MIN
    }

    /// The arena as the ring registers it: start and length.
    #[must_use]
    pub fn arena(&self) -> (NonNull<u8>, usize) {
        (self.shared.mapping.at(0), self.shared.mapping.len())
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Pool({} of {} bytes free)", self.free_bytes(), self.capacity_bytes())
    }
}

impl FreeLists {
    #[inline]
    fn take(&mut self, order: usize) -> Option<u32> {
        let page = match self.stacks[order].pop() {
            Some(page) => page,
            None => self.split(order)?,
        };
        self.free_page_count -= 1 << order;
        self.low_water_page_count = self.low_water_page_count.min(self.free_page_count);
        Some(page)
    }

    /// Cuts the smallest larger block down to `order`; merges first if there is none.
    #[cold]
    fn split(&mut self, order: usize) -> Option<u32> {
        let larger = |lists: &Self| (order..ORDER_COUNT).find(|&from| !lists.stacks[from].is_empty());
        let mut from = larger(self).or_else(|| {
            self.merge();
            larger(self)
        })?;
        let page = self.stacks[from].pop().expect("just found non-empty");
        while from > order {
            from -= 1;
            self.stacks[from].push(page + (1 << from));
        }
        Some(page)
    }

    #[inline]
    fn give_back(&mut self, page: u32, order: usize) {
        self.stacks[order].push(page);
        self.free_page_count += 1 << order;
        self.freed_since_merge = true;
    }

    /// Joins free neighbours into the largest blocks they form. In place: it never allocates.
    #[cold]
    fn merge(&mut self) {
        if !self.freed_since_merge {
            return;
        }
        self.freed_since_merge = false;
        for order in 0..ORDER_COUNT - 1 {
            let (lower, upper) = self.stacks.split_at_mut(order + 1);
            let (stack, larger) = (&mut lower[order], &mut upper[0]);
            stack.sort_unstable();
            let (mut read, mut kept) = (0, 0);
            while read < stack.len() {
                let page = stack[read];
                let is_lower_half = page & (1 << order) == 0;
                if is_lower_half && stack.get(read + 1) == Some(&(page | 1 << order)) {
                    larger.push(page);
                    read += 2;
                } else {
                    stack[kept] = page;
                    (read, kept) = (read + 1, kept + 1);
                }
            }
            stack.truncate(kept);
            // Lowest addresses on top again.
            stack.reverse();
        }
    }
}

#[inline]
fn order_of(length: usize) -> usize {
    let blocks = length.max(1).div_ceil(BLOCK_BYTES_MIN).next_power_of_two();
    blocks.trailing_zeros() as usize
}

impl Buffer {
    /// Bytes up to which [`set_len`](Self::set_len) may go.
    #[inline]
    #[must_use]
    pub fn capacity(&self) -> usize {
        BLOCK_BYTES_MIN << self.order
    }

    /// Makes the buffer `length` bytes long, at most its capacity. Bytes keep their content.
    ///
    /// # Panics
    /// If `length` is over the capacity.
    #[inline]
    pub fn set_len(&mut self, length: usize) {
        assert!(length <= self.capacity(), "length {length} over capacity {}", self.capacity());
        self.length = u32::try_from(length).expect("blocks are small");
    }
}

impl Deref for Buffer {
    type Target = [u8];
    #[inline]
    fn deref(&self) -> &[u8] {
        // SAFETY: `start..start + length` lies in the mapping, which `pool` keeps alive; the block is owned by
        // this value alone (it left the free lists and comes back only on drop); mapped bytes are initialised.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length as usize) }
    }
}

impl DerefMut for Buffer {
    #[inline]
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` excludes every other view.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length as usize) }
    }
}

impl AsRef<[u8]> for Buffer {
    fn as_ref(&self) -> &[u8] {
        self
    }
}

impl AsMut<[u8]> for Buffer {
    fn as_mut(&mut self) -> &mut [u8] {
        self
    }
}

impl Drop for Buffer {
    #[inline]
    fn drop(&mut self) {
        self.pool.free.borrow_mut().give_back(self.page, self.order as usize);
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Buffer({} bytes at page {})", self.length, self.page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_empty_pool_gives_none_and_recovers() {
        let pool = Pool::new(BLOCK_BYTES_MAX).unwrap();
        let all: Vec<_> = (0..BLOCK_BYTES_MAX / BLOCK_BYTES_MIN).map(|_| pool.take(1).unwrap()).collect();
        assert!(pool.take(1).is_none());
        assert!(!pool.has(1));
        assert_eq!(pool.free_bytes(), 0);
        drop(all);
        assert_eq!(pool.free_bytes(), BLOCK_BYTES_MAX);
        assert!(pool.take(BLOCK_BYTES_MAX).is_some(), "freed pages merge into the largest block");
        assert_eq!(pool.free_bytes_min(), 0);
    }

    #[test]
    fn a_buffer_over_the_largest_block_is_refused() {
        let pool = Pool::new(1).unwrap();
        assert!(pool.take(BLOCK_BYTES_MAX + 1).is_none());
        assert!(!pool.has(BLOCK_BYTES_MAX + 1));
    }

    #[test]
    fn blocks_are_aligned_to_their_size() {
        let pool = Pool::new(2 * BLOCK_BYTES_MAX).unwrap();
        let (arena, _) = pool.arena();
        for length in [1, 4096, 4097, 70_000, 1 << 20] {
            let buffer = pool.take(length).unwrap();
            let offset = buffer.as_ptr() as usize - arena.as_ptr() as usize;
            assert_eq!(offset % length.next_power_of_two().max(BLOCK_BYTES_MIN), 0);
            assert_eq!(buffer.len(), length);
        }
    }

    proptest! {
        /// Whatever is taken and freed in whatever order: buffers never overlap, nothing is lost.
        #[test]
        fn buffers_never_overlap(steps in proptest::collection::vec((any::<bool>(), 1usize..600_000), 1..200)) {
            let pool = Pool::new(2 * BLOCK_BYTES_MAX).unwrap();
            let mut held: Vec<(Buffer, u8)> = Vec::new();
            for (index, (take, length)) in steps.into_iter().enumerate() {
                if take || held.is_empty() {
                    let tag = (index % 251) as u8;
                    if let Some(mut buffer) = pool.take(length) {
                        buffer.fill(tag);
                        held.push((buffer, tag));
                    }
                } else {
                    let (buffer, tag) = held.swap_remove(length % held.len());
                    prop_assert!(*buffer == *vec![tag; buffer.len()]);
                }
            }
            for (buffer, tag) in &held {
                prop_assert!(**buffer == *vec![*tag; buffer.len()]);
            }
            drop(held);
            prop_assert_eq!(pool.free_bytes(), pool.capacity_bytes());
            let whole = (pool.take(BLOCK_BYTES_MAX), pool.take(BLOCK_BYTES_MAX));
            prop_assert!(whole.0.is_some() && whole.1.is_some());
        }
    }
}

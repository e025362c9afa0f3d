//! Pieces of a vectored send.

use std::fmt;
use std::marker::PhantomData;

/// A run of bytes to send, laid out as the kernel's `iovec`.
///
/// Unlike `IoSlice` it gives no `&[u8]`: the bytes may be namespace memory that the next command writes to,
/// which is fine for the kernel to read from now, and not for a Rust reference to point at.
#[derive(Clone, Copy)]
#[repr(transparent)]
pub struct Segment<'a> {
    raw: libc::iovec,
    bytes: PhantomData<&'a [u8]>,
}

impl<'a> Segment<'a> {
    /// An empty segment, to fill arrays with.
    pub const EMPTY: Segment<'static> =
        Segment { raw: libc::iovec { iov_base: std::ptr::null_mut(), iov_len: 0 }, bytes: PhantomData };

    /// The bytes of a slice.
    #[inline]
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        Self {
            raw: libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() },
            bytes: PhantomData,
        }
    }

    /// The bytes at an address.
    ///
    /// # Safety
    /// `start..start + length` stays mapped for `'a`, and no thread writes to it while the segment is sent.
    #[inline]
    pub(crate) unsafe fn from_raw(start: *const u8, length: usize) -> Self {
        Self { raw: libc::iovec { iov_base: start.cast_mut().cast(), iov_len: length }, bytes: PhantomData }
    }

    /// The kernel's form.
    #[inline]
    #[must_use]
    pub fn raw(self) -> libc::iovec {
        self.raw
    }

    /// The segment without its first `count` bytes.
    ///
    /// # Panics
    /// If it is shorter.
    #[inline]
    #[must_use]
    pub fn after(self, count: usize) -> Self {
        assert!(count <= self.len(), "{count} bytes of {}", self.len());
        let start = self.raw.iov_base.cast::<u8>().wrapping_add(count);
        Self { raw: libc::iovec { iov_base: start.cast(), iov_len: self.len() - count }, bytes: PhantomData }
    }

    /// The first `count` bytes of the segment.
    ///
    /// # Panics
    /// If it is shorter.
    #[inline]
    #[must_use]
    pub fn up_to(self, count: usize) -> Self {
        assert!(count <= self.len(), "{count} bytes of {}", self.len());
        Self { raw: libc::iovec { iov_len: count, ..self.raw }, bytes: PhantomData }
    }

    /// Bytes in the segment.
    #[inline]
    #[must_use]
    pub fn len(&self) -> usize {
        self.raw.iov_len
    }

    /// Address of the first byte.
    #[inline]
    #[must_use]
    pub fn address(&self) -> usize {
        self.raw.iov_base.addr()
    }

    /// Whether there is nothing to send.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.raw.iov_len == 0
    }

    /// Appends the bytes to `out`.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        if self.is_empty() {
            return;
        }
        out.reserve(self.len());
        // SAFETY: the bytes are mapped and unwritten for `'a` (from_raw's contract, or a slice); `out` has room
        // for them and is another allocation.
        unsafe {
            let end = out.as_mut_ptr().add(out.len());
            std::ptr::copy_nonoverlapping(self.raw.iov_base.cast::<u8>(), end, self.len());
            out.set_len(out.len() + self.len());
        }
    }
}

impl fmt::Debug for Segment<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Segment({} bytes)", self.len())
    }
}

//! The first request: versions, and what both sides can do.

use super::reply::Reply;
use super::wire::{InitOut, MAJOR, MINOR, MINOR_MIN, init_flag};

/// Bytes of a page, as `max_pages` counts them.
const PAGE_BYTES: u32 = 4096;

/// Requests that the kernel sends without a waiting program at once: read-ahead and asynchronous I/O.
const BACKGROUND_MAX: u16 = 128;

/// What this side asks for, where the kernel can do it.
const WANTED: u64 = init_flag::ASYNC_READ
    | init_flag::ATOMIC_O_TRUNC
    | init_flag::BIG_WRITES
    | init_flag::ASYNC_DIO
    | init_flag::PARALLEL_DIROPS
    | init_flag::MAX_PAGES
    | init_flag::INIT_EXT
    | init_flag::DIRECT_IO_ALLOW_MMAP;

/// What was agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Init {
    /// Minor version of the kernel.
    pub minor: u32,
    /// The reply.
    pub reply: Reply,
}

/// The kernel's protocol is another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "the kernel has version {major}.{minor} of FUSE, and the bridge needs {MAJOR}.{MINOR_MIN} or later (Linux 5.4)"
)]
pub struct InitRefused {
    /// Major version of the kernel.
    pub major: u32,
    /// Its minor version.
    pub minor: u32,
}

impl Init {
    /// Answers `INIT`. `transfer_bytes_max` is the longest read or write, a multiple of the page size.
    ///
    /// # Errors
    /// [`InitRefused`].
    pub fn answer(
        unique: u64,
        (major, minor): (u32, u32),
        max_readahead: u32,
        flags: u64,
        transfer_bytes_max: u32,
    ) -> Result<Self, InitRefused> {
        if major != MAJOR || minor < MINOR_MIN {
            return Err(InitRefused { major, minor });
        }
        let agreed = flags & WANTED;
        let [flags, flags2] = [agreed, agreed >> 32].map(|half| u32::try_from(half & u64::from(u32::MAX)));
        let body = InitOut {
            major: MAJOR,
            minor: minor.min(MINOR),
            max_readahead,
            flags: flags.unwrap_or(0),
            flags2: flags2.unwrap_or(0),
            max_background: BACKGROUND_MAX,
            congestion_threshold: BACKGROUND_MAX / 4 * 3,
            max_write: transfer_bytes_max,
            time_gran: 1,
            max_pages: u16::try_from(transfer_bytes_max / PAGE_BYTES).unwrap_or(u16::MAX).max(1),
            ..InitOut::default()
        };
        Ok(Self { minor, reply: Reply::of(unique, &body) })
    }
}

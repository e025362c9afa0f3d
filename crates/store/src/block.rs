//! Block namespaces: in RAM, on a file or device, or nowhere.

mod error;
mod file;
mod file_backend;
#[cfg(test)]
mod file_faults;
mod file_open;
mod file_shared;
mod memory;
mod null;

pub use error::OpenError;
pub use file::FileStore;
pub use file_open::{Contents, FileKind, FileSettings};
pub use memory::{MemorySettings, MemoryStore};
pub use null::NullStore;

use crate::namespace::Reply;
use crate::namespace::StoreError;
use reactor::Buffer;

/// Block sizes that there are, bytes.
pub(crate) const BLOCK_BYTES: std::ops::RangeInclusive<u32> = 512..=65536;

/// The block size when none is asked for, bytes. The same on every machine: partition tables depend on it.
pub(crate) const BLOCK_BYTES_DEFAULT: u32 = 4096;

/// The end of a request that took a buffer.
fn ended(result: Result<(), StoreError>, buffer: Buffer) -> Reply {
    Reply { result, buffer: Some(buffer) }
}

/// The end of a request without data.
fn done(result: Result<(), StoreError>) -> Reply {
    Reply { result, buffer: None }
}

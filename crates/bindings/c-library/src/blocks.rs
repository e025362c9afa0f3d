//! Blocking calls on blocks.

use std::ffi::{CStr, c_int};
use std::time::Duration;

use host::{BlockRange, Command, DataBuffer, Failure, Namespace};
use libc::iovec;

use crate::argument::{self, put, wanted};
use crate::buffer::Buffer;
use crate::entry::{Guard, Handle, close, enter, give, share};
use crate::error::{Error, NVLANE_OK, Result};
use crate::lane::{NVLANE_DEALLOCATE, NVLANE_FUA, check_flags};
use crate::target::{AnyNamespace, NamespaceInfo, Target};

/// Longest command of a transfer, bytes: several are outstanding.
const PART_BYTES: u32 = 1 << 20;

/// Timeout of a wait: effectively none, since commands have their own.
pub(crate) const WAIT: Duration = Duration::from_secs(3600);

/// A namespace of blocks, with calls that wait for their results: opened by nvlane_blocks_open.
#[derive(Debug)]
pub struct Blocks {
    guard: Guard,
    lane: host::Lane<Buffer>,
    namespace: AnyNamespace,
    association: host::Association,
}

impl Handle for Blocks {
    const MISSING: &'static CStr = c"blocks is NULL";

    fn guard(&self) -> &Guard {
        &self.guard
    }
}

type Make<'a> = &'a dyn Fn(&Namespace, BlockRange) -> Result<Command>;

impl Blocks {
    /// Runs the commands of a range, each with its part of `buffer`, as many at once as the lane takes. Returns after all have
    /// ended, with the first failure.
    fn run(
        &mut self,
        name: &str,
        (lba, blocks, blocks_max): (u64, u64, u32),
        buffer: Option<&Buffer>,
        make: Make<'_>,
    ) -> Result<c_int> {
        let Self { lane, namespace, .. } = self;
        let namespace = namespace.blocks()?;
        let block_bytes = namespace.lba_bytes() as usize;
        let mut ranges = Namespace::split(lba, blocks, blocks_max);
        let mut start = 0;
        let mut error = None;
        loop {
            // A lane that has ended has room for nothing, and says so.
            while error.is_none() && lane.outstanding() < lane.depth() {
                let Some(range) = ranges.next() else { break };
                let length = range.blocks as usize * block_bytes;
                let part = buffer.map(|buffer| buffer.cut(start, length));
                start += length;
                let submitted = make(namespace, range).and_then(|command| {
                    lane.submit(command, part, 0).map_err(|refused| Error::refused(refused.reason))
                });
                error = submitted.err();
            }
            if lane.outstanding() == 0 {
                break;
            }
            // The caller's memory is in use until the last command has ended.
            lane.wait_with(
                &mut |completion| {
                    if let Err(failure) = completion.result {
                        error.get_or_insert_with(|| failed(name, failure));
                    }
                },
                WAIT,
            );
        }
        match (error, lane.over()) {
            (None, _) => Ok(NVLANE_OK),
            (Some(error), Some(over)) => Err(error.explained_by(over)),
            (Some(error), None) => Err(error),
        }
    }

    /// Transfers a buffer.
    fn transfer(
        &mut self,
        name: &str,
        buffer: Option<&Buffer>,
        offset: u64,
        make: Make<'_>,
    ) -> Result<c_int> {
        let namespace = self.namespace.blocks()?;
        let length = buffer.map_or(0, DataBuffer::length) as u64;
        let (lba, blocks) = namespace.blocks_of(offset, length)?;
        let blocks_max = namespace.transfer_blocks_max().min((PART_BYTES / namespace.lba_bytes()).max(1));
        self.run(name, (lba, blocks, blocks_max), buffer, make)
    }

    fn read(&mut self, buffer: Option<&Buffer>, offset: u64) -> Result<c_int> {
        self.transfer(
            "Read",
            buffer,
            offset,
            &|namespace, range| Ok(namespace.read(range.lba, range.blocks)?),
        )
    }

    fn write(&mut self, buffer: Option<&Buffer>, offset: u64, flags: u32) -> Result<c_int> {
        check_flags(flags, NVLANE_FUA)?;
        self.transfer("Write", buffer, offset, &|namespace, range| {
            let command = namespace.write(range.lba, range.blocks)?;
            Ok(if flags == NVLANE_FUA { command.fua() } else { command })
        })
    }
}

#[cold]
fn failed(name: &str, failure: Failure) -> Error {
    Error::failed(name, failure)
}

/// Opens a namespace of blocks of a target: `nsid` is its id, or 0 for the one that the address names, else the only one. On
/// success `*blocks` is a handle; close it with nvlane_blocks_close. The target may be closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_blocks_open(
    target: *const Target,
    nsid: u32,
    blocks: *mut *mut Blocks,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        share(target, |target| {
            let place = wanted(c"blocks is NULL", blocks)?;
            put(place, std::ptr::null_mut());
            let association = target.association.clone();
            let namespace = AnyNamespace::find(&association, nsid)?;
            namespace.blocks()?;
            let lane = association.lane()?;
            put(place, give(Blocks { guard: Guard::new(), lane, namespace, association }));
            Ok(NVLANE_OK)
        })
    }
}

/// Closes a handle; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_blocks_close(blocks: *mut Blocks) {
    // SAFETY: as this function's.
    unsafe { close(blocks) }
}

/// What the namespace is (size, block size), as the target reports it now; later calls are checked against that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_blocks_namespace(
    blocks: *mut Blocks,
    namespace: *mut NamespaceInfo,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(blocks, |blocks| {
            blocks.namespace = blocks.namespace.refreshed(&blocks.association)?;
            put(namespace, blocks.namespace.info());
            Ok(NVLANE_OK)
        })
    }
}

/// Reads `length` bytes from byte `offset` on into `buffer`. Both are multiples of the block size; any length is split into
/// commands that are outstanding together. Data arrives in the buffer itself.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_read(
    blocks: *mut Blocks,
    buffer: *mut u8,
    length: usize,
    offset: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe { enter(blocks, |blocks| blocks.read(Buffer::one(buffer, length)?.as_ref(), offset)) }
}

/// As nvlane_read, into the memory of a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_readv(
    blocks: *mut Blocks,
    list: *const iovec,
    count: usize,
    offset: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(blocks, |blocks| blocks.read(Buffer::list(argument::list(list, count)?)?.as_ref(), offset))
    }
}

/// Writes `length` bytes at byte `offset`; `flags` is 0 or NVLANE_FUA. Without it the data is durable after the next nvlane_flush.
/// After a failure a part may have been written.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_write(
    blocks: *mut Blocks,
    buffer: *const u8,
    length: usize,
    offset: u64,
    flags: u32,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(blocks, |blocks| blocks.write(Buffer::one(buffer.cast_mut(), length)?.as_ref(), offset, flags))
    }
}

/// As nvlane_write, from the memory of a list.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_writev(
    blocks: *mut Blocks,
    list: *const iovec,
    count: usize,
    offset: u64,
    flags: u32,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(blocks, |blocks| {
            blocks.write(Buffer::list(argument::list(list, count)?)?.as_ref(), offset, flags)
        })
    }
}

/// Makes all writes durable that have returned before. The first call of each handle after a reconnect fails with
/// NVLANE_ERROR_UNFLUSHED: its writes since the last flush may be lost, and must be repeated.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_flush(blocks: *mut Blocks) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        // A flush has no range: one block stands for one command.
        enter(blocks, |blocks| blocks.run("Flush", (0, 1, 1), None, &|namespace, _| Ok(namespace.flush())))
    }
}

/// Deallocates (TRIM) a range of whole blocks, in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_discard(blocks: *mut Blocks, offset: u64, length: u64) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(blocks, |blocks| {
            let namespace = blocks.namespace.blocks()?;
            let (lba, count) = namespace.blocks_of(offset, length)?;
            let blocks_max = namespace.limits().deallocate_range_blocks_max.unwrap_or(u32::MAX);
            blocks.run("Deallocate", (lba, count, blocks_max), None, &|namespace, range| {
                Ok(namespace.deallocate(&[range])?)
            })
        })
    }
}

/// Writes zeroes to a range of whole blocks, in bytes; `flags` is NVLANE_FUA, NVLANE_DEALLOCATE (the target may deallocate the
/// blocks), both or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_write_zeroes(
    blocks: *mut Blocks,
    offset: u64,
    length: u64,
    flags: u32,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(blocks, |blocks| {
            check_flags(flags, NVLANE_FUA | NVLANE_DEALLOCATE)?;
            let namespace = blocks.namespace.blocks()?;
            let (lba, count) = namespace.blocks_of(offset, length)?;
            let blocks_max = namespace.write_zeroes_blocks_max();
            blocks.run("Write Zeroes", (lba, count, blocks_max), None, &|namespace, range| {
                let deallocates = flags & NVLANE_DEALLOCATE != 0;
                let command = namespace.write_zeroes(range.lba, range.blocks, deallocates)?;
                Ok(if flags & NVLANE_FUA != 0 { command.fua() } else { command })
            })
        })
    }
}

//! Lanes: commands that are submitted, and whose completions are taken later.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd};
use std::time::{Duration, Instant};

use host::wire::kv::batch::Operation;
use host::wire::opcode::KvOpcode;
use host::{
    BlockRange, Command, EventDescriptor, InvalidCommand, Key, KeyValueNamespace, Namespace, Status,
    StoreOptions,
};
use libc::iovec;

use crate::argument::{self, put, wanted};
use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::entry::{Guard, Handle, ask, close, enter, give, share};
use crate::error::{Error, NVLANE_ERROR_ARGUMENT, NVLANE_OK, Result, nvlane_error_text};
use crate::pairs::Pairs;
use crate::target::{AnyNamespace, NamespaceInfo, Target};

/// Flag of writes: complete once the data is durable.
pub const NVLANE_FUA: u32 = 1 << 0;
/// Flag of write zeroes: the target may deallocate the blocks.
pub const NVLANE_DEALLOCATE: u32 = 1 << 1;
/// Flag of a value to set: only if there is no such key.
pub const NVLANE_IF_ABSENT: u32 = 1 << 2;
/// Flag of a value to set: only if there is such a key.
pub const NVLANE_IF_PRESENT: u32 = 1 << 3;

/// A queue of commands on one connection, to one namespace: opened by nvlane_lane_open. It has no thread: it sends and receives
/// within calls.
#[derive(Debug)]
pub struct Lane {
    guard: Guard,
    lane: host::Lane<Buffer>,
    namespace: AnyNamespace,
    association: host::Association,
    descriptor: Option<EventDescriptor>,
    /// Completions that the caller's array had no room for.
    surplus: VecDeque<Completion>,
    /// Commands on long keys.
    pairs: Pairs,
}

impl Handle for Lane {
    const MISSING: &'static CStr = c"lane is NULL";

    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// Completions of one call, for the array of its caller.
struct Taken<'a> {
    room: &'a mut [MaybeUninit<Completion>],
    count: usize,
    surplus: &'a mut VecDeque<Completion>,
    pairs: &'a mut Pairs,
}

impl Taken<'_> {
    #[inline]
    fn push(&mut self, completion: &host::Completion<Buffer>) {
        let completion = match self.pairs.is_empty() {
            true => Completion::of(completion),
            false => match self.pairs.on_completion(completion) {
                Some(completion) => completion,
                None => return,
            },
        };
        match self.room.get_mut(self.count) {
            Some(place) => {
                place.write(completion);
                self.count += 1;
            }
            None => self.surplus.push_back(completion),
        }
    }

    /// Those that earlier calls had no room for.
    fn take_surplus(&mut self) {
        let count = self.room.len().min(self.surplus.len());
        for (place, completion) in self.room.iter_mut().zip(self.surplus.drain(..count)) {
            place.write(completion);
        }
        self.count = count;
    }
}

impl Lane {
    #[inline]
    fn submit(&mut self, command: Command, buffer: Option<Buffer>, user: u64) -> Result<c_int> {
        match self.lane.submit(command, buffer, user) {
            Ok(()) => Ok(NVLANE_OK),
            Err(refused) => Err(Error::refused(refused.reason)),
        }
    }

    /// Takes completions, by `call` of the lane.
    #[inline]
    fn take(
        &mut self,
        room: &mut [MaybeUninit<Completion>],
        call: impl FnOnce(&mut host::Lane<Buffer>, &mut Taken<'_>),
    ) -> Result<c_int> {
        if room.is_empty() {
            return Err(Error::of_text(NVLANE_ERROR_ARGUMENT, c"completions is NULL, or has no room"));
        }
        let mut taken = Taken { room, count: 0, surplus: &mut self.surplus, pairs: &mut self.pairs };
        if !taken.surplus.is_empty() {
            taken.take_surplus();
        }
        // What was left behind is taken first, without a call that may sleep.
        if taken.count == 0 {
            call(&mut self.lane, &mut taken);
        }
        let count = taken.count;
        self.pairs.cancel_left(&mut self.lane);
        self.arm();
        // A lane has fewer commands than that.
        Ok(c_int::try_from(count).unwrap_or(c_int::MAX))
    }

    /// Keeps the event descriptor, if there is one, readable while there is work.
    #[inline]
    fn arm(&mut self) {
        if let Some(descriptor) = &mut self.descriptor {
            descriptor.arm(&mut self.lane);
        }
    }

    /// The command of a transfer in one piece or several.
    fn transfer(
        &mut self,
        (buffer, offset): (Option<Buffer>, u64),
        user: u64,
        make: fn(&Namespace, u64, u32) -> std::result::Result<Command, InvalidCommand>,
        fua: bool,
    ) -> Result<c_int> {
        let namespace = self.namespace.blocks()?;
        let length = buffer.as_ref().map_or(0, host::DataBuffer::length) as u64;
        let (lba, blocks) = namespace.blocks_of(offset, length)?;
        let command = make(namespace, lba, one_command(namespace, blocks)?)?;
        self.submit(if fua { command.fua() } else { command }, buffer, user)
    }

    /// A command on a range without data.
    fn on_range(
        &mut self,
        (offset, length): (u64, u64),
        user: u64,
        make: impl FnOnce(&Namespace, BlockRange) -> std::result::Result<Command, InvalidCommand>,
    ) -> Result<c_int> {
        let namespace = self.namespace.blocks()?;
        let (lba, blocks) = namespace.blocks_of(offset, length)?;
        let blocks = one_command(namespace, blocks)?;
        let command = make(namespace, BlockRange { lba, blocks })?;
        self.submit(command, None, user)
    }
}

/// The blocks of one command.
#[inline]
fn one_command(namespace: &Namespace, blocks: u64) -> Result<u32> {
    u32::try_from(blocks).map_err(|_| {
        let limit = namespace.transfer_blocks_max().into();
        InvalidCommand::TooLong { blocks, limit }.into()
    })
}

/// Refuses unknown flags.
#[inline]
pub(crate) fn check_flags(flags: u32, known: u32) -> Result<()> {
    match flags & !known {
        0 => Ok(()),
        unknown => Err(Error::argument(format_args!("flags {unknown:#x} are not for this call"))),
    }
}

/// Options of a value to set.
pub(crate) fn store_options(flags: u32) -> Result<StoreOptions> {
    check_flags(flags, NVLANE_IF_ABSENT | NVLANE_IF_PRESENT)?;
    let mut options = StoreOptions::empty();
    options.set(StoreOptions::MUST_NOT_EXIST, flags & NVLANE_IF_ABSENT != 0);
    options.set(StoreOptions::MUST_EXIST, flags & NVLANE_IF_PRESENT != 0);
    Ok(options)
}

/// The length of a value, for a command; that of one that is too long is refused by the namespace.
pub(crate) fn value_length(length: usize) -> u32 {
    u32::try_from(length).unwrap_or(u32::MAX)
}

/// A key for a command that has it itself, and moves as many bytes of its value. None if that takes two commands: for a long
/// key; or for a value longer than one transfers, if two can.
pub(crate) fn key_of_one_command(namespace: &KeyValueNamespace, key: &[u8], length: usize) -> Option<Key> {
    let (one, two) = (namespace.value_bytes_max(), namespace.paired_value_bytes_max());
    Key::new(key).filter(|_| one == two || length <= one as usize)
}

/// A timeout in milliseconds; a negative one is none.
fn timeout(timeout_ms: c_int) -> Duration {
    u64::try_from(timeout_ms).map_or(Duration::MAX, Duration::from_millis)
}

/// Opens a lane to a namespace of a target: `nsid` is its id, or 0 for the one that the address names, else the only one. On
/// success `*lane` is a handle; close it with nvlane_lane_close. The target may be closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_open(target: *const Target, nsid: u32, lane: *mut *mut Lane) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        share(target, |target| {
            let place = wanted(c"lane is NULL", lane)?;
            put(place, std::ptr::null_mut());
            let association = target.association.clone();
            let namespace = AnyNamespace::find(&association, nsid)?;
            let lane = association.lane()?;
            let (guard, surplus, pairs) = (Guard::new(), VecDeque::new(), Pairs::new());
            let lane = Lane { guard, lane, namespace, association, descriptor: None, surplus, pairs };
            put(place, give(lane));
            Ok(NVLANE_OK)
        })
    }
}

/// Closes a lane; NULL is allowed. Commands that are outstanding end without a completion: they may or may not have happened.
/// On return the buffers of all commands belong to the caller again.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_close(lane: *mut Lane) {
    // SAFETY: as this function's.
    unsafe { close(lane) }
}

/// What the lane's namespace is, as the target reports it now; later commands are checked against that.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_namespace(lane: *mut Lane, namespace: *mut NamespaceInfo) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            lane.namespace = lane.namespace.refreshed(&lane.association)?;
            put(namespace, lane.namespace.info());
            Ok(NVLANE_OK)
        })
    }
}

/// Submits a read of `length` bytes from byte `offset` on into `buffer`; both are multiples of the block size. The completion
/// carries `user`.
///
/// Of every submission: it is sent by the next nvlane_lane_ring, nvlane_lane_poll or nvlane_lane_wait. The buffer belongs to the
/// library until the completion is taken, or the lane is closed. Returns NVLANE_OK, NVLANE_ERROR_FULL, NVLANE_ERROR_ARGUMENT
/// (also for more than one command transfers) or NVLANE_ERROR_UNREACHABLE; after an error there is no completion.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_read(
    lane: *mut Lane,
    buffer: *mut u8,
    length: usize,
    offset: u64,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let buffer = Buffer::one(buffer, length)?;
            lane.transfer((buffer, offset), user, Namespace::read, false)
        })
    }
}

/// As nvlane_lane_read, into the memory of a list, which is not used after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_readv(
    lane: *mut Lane,
    list: *const iovec,
    count: usize,
    offset: u64,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let buffer = Buffer::list(argument::list(list, count)?)?;
            lane.transfer((buffer, offset), user, Namespace::read, false)
        })
    }
}

/// Submits a write of `length` bytes at byte `offset`; `flags` is 0 or NVLANE_FUA. The buffer is only read.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_write(
    lane: *mut Lane,
    buffer: *const u8,
    length: usize,
    offset: u64,
    flags: u32,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            check_flags(flags, NVLANE_FUA)?;
            let buffer = Buffer::one(buffer.cast_mut(), length)?;
            lane.transfer((buffer, offset), user, Namespace::write, flags != 0)
        })
    }
}

/// As nvlane_lane_write, from the memory of a list, which is not used after the call.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_writev(
    lane: *mut Lane,
    list: *const iovec,
    count: usize,
    offset: u64,
    flags: u32,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            check_flags(flags, NVLANE_FUA)?;
            let buffer = Buffer::list(argument::list(list, count)?)?;
            lane.transfer((buffer, offset), user, Namespace::write, flags != 0)
        })
    }
}

/// Submits a comparison of `length` bytes with those at byte `offset` of the namespace; NVLANE_ERROR_MISCOMPARE if they differ.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_compare(
    lane: *mut Lane,
    buffer: *const u8,
    length: usize,
    offset: u64,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let buffer = Buffer::one(buffer.cast_mut(), length)?;
            lane.transfer((buffer, offset), user, Namespace::compare, false)
        })
    }
}

/// Submits a flush: makes every write durable whose completion was taken before. Of either kind of namespace. The first one of
/// each handle after a reconnect ends with NVLANE_ERROR_UNFLUSHED: flush by the handle that wrote.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_flush(lane: *mut Lane, user: u64) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let command = match &lane.namespace {
                AnyNamespace::Blocks(namespace) => namespace.flush(),
                AnyNamespace::Keys(namespace) => namespace.flush(),
            };
            lane.submit(command, None, user)
        })
    }
}

/// Submits a deallocation (TRIM) of a range of whole blocks, in bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_discard(lane: *mut Lane, offset: u64, length: u64, user: u64) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            lane.on_range((offset, length), user, |namespace, range| namespace.deallocate(&[range]))
        })
    }
}

/// Submits a write of zeroes to a range of whole blocks, in bytes; `flags` is NVLANE_FUA, NVLANE_DEALLOCATE, both or 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_write_zeroes(
    lane: *mut Lane,
    offset: u64,
    length: u64,
    flags: u32,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            check_flags(flags, NVLANE_FUA | NVLANE_DEALLOCATE)?;
            lane.on_range((offset, length), user, |namespace, BlockRange { lba, blocks }| {
                let command = namespace.write_zeroes(lba, blocks, flags & NVLANE_DEALLOCATE != 0)?;
                Ok(if flags & NVLANE_FUA != 0 { command.fua() } else { command })
            })
        })
    }
}

/// Submits the storing of a value; `flags` is 0, NVLANE_IF_ABSENT or NVLANE_IF_PRESENT. The key is not used after the call, the
/// value belongs to the library until the completion is taken.
///
/// Of every command on a key: it has 1 to 16 bytes, with a target of nvlane up to 250. One on a key of more than 16 is two commands
/// to the target, sent together: it takes two places of the lane's depth, and is not sent again after a reconnect. So is one on a
/// value, or with a buffer, that is longer than one command transfers (beside block namespaces, 1 MiB).
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_set(
    lane: *mut Lane,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    length: usize,
    flags: u32,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let key = argument::long_key(key, key_length)?;
            let buffer = Buffer::one(value.cast_mut(), length)?;
            let (options, namespace) = (store_options(flags)?, lane.namespace.keys()?);
            let Some(short) = key_of_one_command(namespace, key, length) else {
                let value = (buffer, value_length(length));
                if length > 0 {
                    return lane.pairs.set(&mut lane.lane, (namespace, key), value, options, user);
                }
                // No command has data of no bytes.
                let operation = Operation { options: options.bits(), ..Operation::on(KvOpcode::STORE, key) };
                return lane.pairs.operate(&mut lane.lane, namespace, &operation, user);
            };
            let command = namespace.store(&short, value_length(length), options)?;
            lane.submit(command, buffer, user)
        })
    }
}

/// Submits the retrieval of a value into a buffer of `room` bytes, at least 1. The result of the completion is the length of the
/// value; the buffer has its first bytes, as far as there is room. NVLANE_ERROR_NO_KEY if there is no such key. Where the get is two
/// commands, a value that is longer than the buffer ends with NVLANE_ERROR_TRUNCATED, and its length is not told.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_get(
    lane: *mut Lane,
    key: *const u8,
    key_length: usize,
    buffer: *mut u8,
    room: usize,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let key = argument::long_key(key, key_length)?;
            let namespace = lane.namespace.keys()?;
            let room = room.min(namespace.paired_value_bytes_max() as usize);
            let buffer = Buffer::room(buffer, room)?;
            let Some(short) = key_of_one_command(namespace, key, room) else {
                let value = (buffer, value_length(room));
                return lane.pairs.get(&mut lane.lane, (namespace, key), value, user);
            };
            let command = namespace.retrieve(&short, value_length(room))?;
            lane.submit(command, buffer, user)
        })
    }
}

/// Submits the deletion of a key and its value, as nvlane_delete.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_delete(
    lane: *mut Lane,
    key: *const u8,
    key_length: usize,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let (key, namespace) = (argument::long_key(key, key_length)?, lane.namespace.keys()?);
            let Some(short) = Key::new(key) else {
                let operation = Operation::on(KvOpcode::DELETE, key);
                return lane.pairs.operate(&mut lane.lane, namespace, &operation, user);
            };
            lane.submit(namespace.delete(&short), None, user)
        })
    }
}

/// Submits the question whether a key exists: NVLANE_OK or NVLANE_ERROR_NO_KEY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_exists(
    lane: *mut Lane,
    key: *const u8,
    key_length: usize,
    user: u64,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let (key, namespace) = (argument::long_key(key, key_length)?, lane.namespace.keys()?);
            let Some(short) = Key::new(key) else {
                let operation = Operation::on(KvOpcode::EXIST, key);
                return lane.pairs.operate(&mut lane.lane, namespace, &operation, user);
            };
            lane.submit(namespace.exist(&short), None, user)
        })
    }
}

/// Cancels the commands that were submitted with `user`. Each still completes, with NVLANE_ERROR_CANCELLED if it was stopped.
/// Returns 1 if there was one, else 0.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_cancel(lane: *mut Lane, user: u64) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            let found = lane.lane.cancel(user) | lane.pairs.cancel(&mut lane.lane, user);
            lane.arm();
            Ok(found.into())
        })
    }
}

/// Sends all submitted commands, as far as the socket takes them; the rest is sent by the next poll or wait.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_ring(lane: *mut Lane) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            lane.lane.ring();
            lane.arm();
            Ok(NVLANE_OK)
        })
    }
}

/// Takes completions without blocking: sends what was submitted, if that is worth a send now, receives, and handles timeouts and
/// reconnects. Fills at most `count` entries of `completions`; more are kept for the next call. Returns the number of entries, or
/// an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_poll(
    lane: *mut Lane,
    completions: *mut Completion,
    count: usize,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            lane.take(argument::room(completions, count), |lane, taken| {
                lane.poll_with(&mut |completion| taken.push(&completion));
            })
        })
    }
}

/// As nvlane_lane_poll, and waits for completions, at most `timeout_ms` milliseconds; a negative time is no limit. Spins as long
/// as that has paid off, then sleeps. Returns 0 after the time, or if no command is outstanding.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_wait(
    lane: *mut Lane,
    completions: *mut Completion,
    count: usize,
    timeout_ms: c_int,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            lane.take(argument::room(completions, count), |lane, taken| {
                let until = Instant::now().checked_add(timeout(timeout_ms));
                // The first half of a command on a long key is no completion.
                loop {
                    let left =
                        until.map_or(Duration::MAX, |until| until.saturating_duration_since(Instant::now()));
                    lane.wait_with(&mut |completion| taken.push(&completion), left);
                    taken.pairs.cancel_left(lane);
                    if taken.count > 0 || taken.pairs.is_empty() || left.is_zero() || lane.outstanding() == 0
                    {
                        break;
                    }
                }
            })
        })
    }
}

/// A descriptor for event loops (poll, epoll, libuv, ...), or an error. It is readable while nvlane_lane_poll has something to do:
/// completions, a timeout, a reconnect. Submit, call nvlane_lane_ring, and when it is readable call nvlane_lane_poll until that
/// returns 0. It is the same in every call, and is closed with the lane: only wait for it, and do not read or close it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_descriptor(lane: *mut Lane) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(lane, |lane| {
            if lane.descriptor.is_none() {
                lane.descriptor = Some(EventDescriptor::new(&mut lane.lane)?);
            }
            let descriptor = lane.descriptor.as_ref();
            Ok(descriptor.map_or(-1, |descriptor| descriptor.as_fd().as_raw_fd()))
        })
    }
}

/// Commands that were submitted, and whose completions were not taken.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_outstanding(lane: *mut Lane) -> u32 {
    // SAFETY: as this function's.
    unsafe {
        ask(lane, 0, |lane| {
            let surplus = u32::try_from(lane.surplus.len()).unwrap_or(u32::MAX);
            let halves = u32::try_from(lane.pairs.surplus()).unwrap_or(u32::MAX);
            surplus.saturating_add(u32::from(lane.lane.outstanding()).saturating_sub(halves))
        })
    }
}

/// Commands that can be outstanding: the option depth, or less if the target takes fewer.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_lane_depth(lane: *mut Lane) -> u32 {
    // SAFETY: as this function's.
    unsafe { ask(lane, 0, |lane| lane.lane.depth().into()) }
}

/// Writes what a completion means into `text`, at most `size` bytes with the null byte at the end: its error, with the target's
/// status if there is one. Returns the length of the whole text.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_completion_text(
    completion: *const Completion,
    text: *mut c_char,
    size: usize,
) -> usize {
    // SAFETY: as this function's; the text of a code is valid for ever.
    unsafe {
        let Some(completion) = completion.as_ref() else { return 0 };
        let meaning = match completion.status {
            0 => CStr::from_ptr(nvlane_error_text(completion.error)).to_string_lossy().into_owned(),
            status => Status::from_wire(status).to_string(),
        };
        let room = argument::room(text, size);
        if let Some(end) = room.len().checked_sub(1) {
            let kept = &meaning.as_bytes()[..meaning.floor_char_boundary(end)];
            for (place, byte) in room.iter_mut().zip(kept.iter().chain(&[0])) {
                place.write(byte.cast_signed());
            }
        }
        meaning.len()
    }
}

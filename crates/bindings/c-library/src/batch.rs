//! Batches: many operations on keys in one round trip.

use std::ffi::{CStr, c_int};
use std::ops::Range;

use host::wire::kv::batch::Operation;
use host::wire::opcode::KvOpcode;
use host::{Failure, Pin, Status, StoreAttributes};

use crate::argument::{self, put, wanted};
use crate::buffer::NO_ROOM;
use crate::entry::{BROKEN, Guard, Handle, close, enter, give};
use crate::error::{Error, NVLANE_ERROR_INTERNAL, NVLANE_ERROR_TRUNCATED, NVLANE_OK, Result, code_of};
use crate::key_value::KeyValue;
use crate::lane::{store_options, value_length};

/// Operations on keys that one call executes together: made by nvlane_batch_new.
#[derive(Debug)]
pub struct Batch {
    guard: Guard,
    batch: host::Batch,
    /// Bytes that each operation has room for.
    rooms: Vec<u32>,
    outcomes: Vec<(Outcome, Range<usize>)>,
    data: Vec<u8>,
}

impl Handle for Batch {
    const MISSING: &'static CStr = c"batch is NULL";

    fn guard(&self) -> &Guard {
        &self.guard
    }
}

/// The outcome of one operation of a batch.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Outcome {
    /// Of a get, the bytes of the value, as far as there is room; else NULL. It is valid until the batch is run again, cleared or
    /// freed.
    pub data: *const u8,
    /// Bytes of `data`.
    pub data_length: usize,
    /// Of a get or an exists, the length of the value.
    pub result: u64,
    /// NVLANE_OK, or why the operation failed: NVLANE_ERROR_TRUNCATED for a value longer than its room.
    pub error: c_int,
    /// The NVMe status, if the target gave one other than success; else 0.
    pub status: u16,
    /// 0.
    pub reserved: u16,
}

impl Batch {
    fn push(&mut self, room: u32, push: impl FnOnce(&mut host::Batch) -> Result<()>) -> Result<c_int> {
        push(&mut self.batch)?;
        self.rooms.push(room);
        Ok(NVLANE_OK)
    }

    fn clear(&mut self) {
        self.batch.clear();
        self.rooms.clear();
        self.forget_outcomes();
    }

    fn forget_outcomes(&mut self) {
        self.outcomes.clear();
        self.data.clear();
    }

    fn run(&mut self, key_value: &mut KeyValue) -> Result<c_int> {
        self.forget_outcomes();
        let Self { batch, rooms, outcomes, data, .. } = self;
        let all = key_value.batches()?.run_batch(batch)?;
        for (outcome, room) in all.zip(rooms) {
            let (error, status) = match outcome.status {
                status if status.is(Status::SUCCESS) && outcome.result > u64::from(*room) && *room > 0 => {
                    (NVLANE_ERROR_TRUNCATED, 0)
                }
                status if status.is(Status::SUCCESS) => (NVLANE_OK, 0),
                status => code_of(Failure::Status(status)),
            };
            let start = data.len();
            data.extend_from_slice(outcome.data);
            let place = start..data.len();
            let (data, data_length) = (std::ptr::null(), place.len());
            let outcome = Outcome { data, data_length, result: outcome.result, error, status, reserved: 0 };
            outcomes.push((outcome, place));
        }
        Ok(c_int::try_from(outcomes.len()).unwrap_or(c_int::MAX))
    }

    fn outcome(&self, index: usize) -> Result<Outcome> {
        let (outcome, place) = self.outcomes.get(index).ok_or_else(|| {
            let count = self.outcomes.len();
            Error::argument(format_args!("there is no outcome {index}: the last run has {count}"))
        })?;
        let data = &self.data[place.clone()];
        Ok(Outcome { data: if data.is_empty() { std::ptr::null() } else { data.as_ptr() }, ..*outcome })
    }
}

/// Makes an empty batch for a namespace; `*batch` is a handle, to be freed with nvlane_batch_free. NVLANE_ERROR_UNSUPPORTED if the
/// target has no batches.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_new(key_value: *mut KeyValue, batch: *mut *mut Batch) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let place = wanted(c"batch is NULL", batch)?;
            put(place, std::ptr::null_mut());
            let batch = key_value.namespace().batch()?;
            let (rooms, outcomes, data) = (Vec::new(), Vec::new(), Vec::new());
            put(place, give(Batch { guard: Guard::new(), batch, rooms, outcomes, data }));
            Ok(NVLANE_OK)
        })
    }
}

/// Frees a batch; NULL is allowed.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_free(batch: *mut Batch) {
    // SAFETY: as this function's.
    unsafe { close(batch) }
}

/// Empties a batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_clear(batch: *mut Batch) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(batch, |batch| {
            batch.clear();
            Ok(NVLANE_OK)
        })
    }
}

/// Adds the storing of a value, of which a copy is kept; `flags` as of nvlane_set.
///
/// Of every addition: NVLANE_ERROR_ARGUMENT if the batch is full, which is then unchanged.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_set(
    batch: *mut Batch,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    length: usize,
    flags: u32,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(batch, |batch| {
            let key = argument::long_key(key, key_length)?;
            let value = argument::bytes(c"the value is NULL", value, length)?;
            let options = store_options(flags)?;
            batch.push(0, |batch| Ok(batch.store_with(key, value, options, StoreAttributes::default())?))
        })
    }
}

/// Adds the retrieval of a value's first `room` bytes, at least 1.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_get(
    batch: *mut Batch,
    key: *const u8,
    key_length: usize,
    room: usize,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(batch, |batch| {
            let key = argument::long_key(key, key_length)?;
            let room = match value_length(room) {
                0 => return Err(NO_ROOM),
                room => room,
            };
            let operation = Operation { room_bytes: room, ..Operation::on(KvOpcode::RETRIEVE, key) };
            batch.push(room, |batch| Ok(batch.push(&operation)?))
        })
    }
}

/// Adds an operation without data.
///
/// # Safety
/// As of the exported functions.
unsafe fn add(batch: *mut Batch, (key, key_length): (*const u8, usize), opcode: KvOpcode) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(batch, |batch| {
            let key = argument::long_key(key, key_length)?;
            batch.push(0, |batch| Ok(batch.push(&Operation::on(opcode, key))?))
        })
    }
}

/// Adds the deletion of a key.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_delete(batch: *mut Batch, key: *const u8, key_length: usize) -> c_int {
    // SAFETY: as this function's.
    unsafe { add(batch, (key, key_length), KvOpcode::DELETE) }
}

/// Adds the question whether a key exists: NVLANE_OK, with the value's length, or NVLANE_ERROR_NO_KEY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_exists(batch: *mut Batch, key: *const u8, key_length: usize) -> c_int {
    // SAFETY: as this function's.
    unsafe { add(batch, (key, key_length), KvOpcode::EXIST) }
}

/// Adds the pinning of a pair for `seconds`, at most 86,400: it is not evicted until they are over, or until it was unpinned as
/// often. With 0 seconds one pin is taken back. NVLANE_OK, NVLANE_ERROR_NO_KEY, or NVLANE_ERROR_STATUS with status 81h if pinned pairs would
/// have more than half of the memory.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_pin(
    batch: *mut Batch,
    key: *const u8,
    key_length: usize,
    seconds: u32,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(batch, |batch| {
            let key = argument::long_key(key, key_length)?;
            let pin = if seconds == 0 { Pin::End } else { Pin::For { seconds } };
            batch.push(0, |batch| Ok(batch.pin(key, pin)?))
        })
    }
}

/// Executes a batch and waits for it. The failure of one operation does not stop the next. Returns the number of outcomes, or an
/// error: then no operation was executed, but for NVLANE_ERROR_INTERRUPTED and NVLANE_ERROR_TIMED_OUT, after which some may have
/// been. The operations stay in the batch.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_run(key_value: *mut KeyValue, batch: *mut Batch) -> c_int {
    // SAFETY: as this function's; the handles are two.
    unsafe {
        enter(key_value, |key_value| match enter(batch, |batch| batch.run(key_value)) {
            NVLANE_ERROR_INTERNAL => Err(BROKEN),
            // The text of an error is kept.
            count_or_code => Ok(count_or_code),
        })
    }
}

/// The outcome of operation `index`, from 0, in the order in which they were added.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_batch_outcome(
    batch: *mut Batch,
    index: usize,
    outcome: *mut Outcome,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(batch, |batch| {
            put(outcome, batch.outcome(index)?);
            Ok(NVLANE_OK)
        })
    }
}

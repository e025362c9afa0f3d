//! Blocking calls on keys and values.

use std::ffi::{CStr, c_int};

use host::{BlockingKeyValue, Command, Failure, FlushEpoch, KeyValueNamespace};

use crate::argument::{self, put, wanted};
use crate::blocks::WAIT;
use crate::buffer::Buffer;
use crate::entry::{Guard, Handle, close, enter, give, share};
use crate::error::{Error, NVLANE_ERROR_NO_KEY, NVLANE_ERROR_TRUNCATED, NVLANE_OK, Result};
use crate::lane::{store_options, value_length};
use crate::target::{AnyNamespace, NamespaceInfo, Target};

/// A namespace of keys and values, with calls that wait for their results: opened by nvlane_key_value_open. A key has 1 to 16
/// bytes, any bytes.
#[derive(Debug)]
pub struct KeyValue {
    guard: Guard,
    lane: host::Lane<Buffer>,
    namespace: KeyValueNamespace,
    association: host::Association,
    flush_epoch: FlushEpoch,
    /// For batches, once there is one: their data has a lane of its own.
    batches: Option<BlockingKeyValue>,
}

impl Handle for KeyValue {
    const MISSING: &'static CStr = c"key_value is NULL";

    fn guard(&self) -> &Guard {
        &self.guard
    }
}

impl KeyValue {
    pub(crate) fn namespace(&self) -> &KeyValueNamespace {
        &self.namespace
    }

    /// The handle that runs batches.
    pub(crate) fn batches(&mut self) -> Result<&mut BlockingKeyValue> {
        if self.batches.is_none() {
            let mut batches = BlockingKeyValue::new(&self.association, self.namespace)?;
            batches.lane_mut().share_flush_epoch(self.flush_epoch.clone());
            self.batches = Some(batches);
        }
        self.batches.as_mut().ok_or_else(|| Error::failed("Batch", Failure::Unreachable))
    }

    /// Runs a command, and returns its result.
    fn run(&mut self, name: &str, command: Command, buffer: Option<Buffer>) -> Result<u64> {
        let submitted = self.lane.submit(command, buffer, 0);
        let mut result = submitted.map(|()| 0).map_err(|refused| Error::refused(refused.reason));
        while self.lane.outstanding() > 0 {
            let mut take = |completion: host::Completion<Buffer>| {
                result = completion.result.map_err(|failure| Error::failed(name, failure));
            };
            self.lane.wait_with(&mut take, WAIT);
        }
        result.map_err(|error| match self.lane.over() {
            Some(over) => error.explained_by(over),
            None => error,
        })
    }
}

/// Opens a namespace of keys and values of a target: `nsid` is its id, or 0 for the one that the address names, else the only one
/// of its kind. On success `*key_value` is a handle; close it with nvlane_key_value_close. The target may be closed before.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_key_value_open(
    target: *const Target,
    nsid: u32,
    key_value: *mut *mut KeyValue,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        share(target, |target| {
            let place = wanted(c"key_value is NULL", key_value)?;
            put(place, std::ptr::null_mut());
            let association = target.association.clone();
            let namespace = match argument::nsid(nsid)? {
                Some(nsid) => association.key_value(nsid)?,
                None => association.addressed_key_value()?,
            };
            let (mut lane, flush_epoch) = (association.lane()?, FlushEpoch::default());
            lane.share_flush_epoch(flush_epoch.clone());
            let guard = Guard::new();
            put(place, give(KeyValue { guard, lane, namespace, association, flush_epoch, batches: None }));
            Ok(NVLANE_OK)
        })
    }
}

/// Closes a handle; NULL is allowed. Batches that were made of it may be freed later.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_key_value_close(key_value: *mut KeyValue) {
    // SAFETY: as this function's.
    unsafe { close(key_value) }
}

/// What the namespace is (longest value and key), as the target reports it now.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_key_value_namespace(
    key_value: *mut KeyValue,
    namespace: *mut NamespaceInfo,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            key_value.namespace = key_value.association.key_value(key_value.namespace.nsid())?;
            put(namespace, AnyNamespace::Keys(key_value.namespace).info());
            Ok(NVLANE_OK)
        })
    }
}

/// Stores a value, replacing any other. `flags` is 0, or NVLANE_IF_ABSENT (NVLANE_ERROR_KEY_EXISTS if there is such a key), or
/// NVLANE_IF_PRESENT (NVLANE_ERROR_NO_KEY if there is none). The value is sent from where it lies.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_set(
    key_value: *mut KeyValue,
    key: *const u8,
    key_length: usize,
    value: *const u8,
    length: usize,
    flags: u32,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let key = argument::key(key, key_length)?;
            let buffer = Buffer::one(value.cast_mut(), length)?;
            let options = store_options(flags)?;
            let command = key_value.namespace.store(&key, value_length(length), options)?;
            key_value.run("Store", command, buffer).map(|_| NVLANE_OK)
        })
    }
}

/// Retrieves a value into a buffer of `room` bytes, at least 1; it arrives there without a copy. `*length` is the length of the
/// whole value, unless `length` is NULL. NVLANE_ERROR_NO_KEY if there is no such key, NVLANE_ERROR_TRUNCATED if the value is longer
/// than the buffer, which then has its first bytes.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_get(
    key_value: *mut KeyValue,
    key: *const u8,
    key_length: usize,
    buffer: *mut u8,
    room: usize,
    length: *mut usize,
) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let key = argument::key(key, key_length)?;
            let room = room.min(key_value.namespace.value_bytes_max() as usize);
            let buffer = Buffer::one(buffer, room)?;
            let command = key_value.namespace.retrieve(&key, value_length(room))?;
            let full = key_value.run("Retrieve", command, buffer)?;
            let full = usize::try_from(full).unwrap_or(usize::MAX);
            put(length, full);
            match full > room {
                true => Err(Error::new(
                    NVLANE_ERROR_TRUNCATED,
                    format_args!("the value has {full} bytes, the buffer {room}"),
                )),
                false => Ok(NVLANE_OK),
            }
        })
    }
}

/// Deletes a key and its value. Without such a key it succeeds too, unless the namespace is set to refuse that: then
/// NVLANE_ERROR_NO_KEY.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_delete(key_value: *mut KeyValue, key: *const u8, key_length: usize) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let command = key_value.namespace.delete(&argument::key(key, key_length)?);
            key_value.run("Delete", command, None).map(|_| NVLANE_OK)
        })
    }
}

/// Whether a key exists: 1 or 0, or an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_exists(key_value: *mut KeyValue, key: *const u8, key_length: usize) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let command = key_value.namespace.exist(&argument::key(key, key_length)?);
            match key_value.run("Exist", command, None) {
                Ok(_) => Ok(1),
                Err(error) if error.code == NVLANE_ERROR_NO_KEY => Ok(0),
                Err(error) => Err(error),
            }
        })
    }
}

/// Makes all changes durable that have returned before, where the target answers before that. As nvlane_flush.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_key_value_flush(key_value: *mut KeyValue) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let command = key_value.namespace.flush();
            key_value.run("Flush", command, None).map(|_| NVLANE_OK)
        })
    }
}

//! Blocking calls on keys and values.

use std::ffi::{CStr, c_int};

use host::wire::kv::batch::Operation;
use host::wire::opcode::KvOpcode;
use host::{BlockingKeyValue, Command, Failure, FlushEpoch, Key, KeyValueNamespace, Status, StoreAttributes};

use crate::argument::{self, put, wanted};
use crate::blocks::WAIT;
use crate::buffer::Buffer;
use crate::entry::{Guard, Handle, close, enter, give, share};
use crate::error::{Error, NVLANE_ERROR_NO_KEY, NVLANE_ERROR_TRUNCATED, NVLANE_OK, Result};
use crate::lane::{key_of_one_command, store_options, value_length};
use crate::target::{AnyNamespace, NamespaceInfo, Target};

/// A namespace of keys and values, with calls that wait for their results: opened by nvlane_key_value_open. A key has 1 to 16
/// bytes, any bytes; with a target of nvlane up to 250, else NVLANE_ERROR_UNSUPPORTED.
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
        result.map_err(|error| self.explained(error))
    }

    fn explained(&self, error: Error) -> Error {
        match self.lane.over() {
            Some(over) => error.explained_by(over),
            None => error,
        }
    }

    /// Runs the two commands of a value under a long key, or of a long value: the first has the data, the second names the
    /// key. Returns the result of the first.
    fn run_pair(&mut self, name: &str, commands: [Command; 2], buffer: Option<Buffer>) -> Result<u64> {
        const DATA: u64 = 0;
        const NAME: u64 = 1;
        let [data, names] = commands;
        self.lane.submit(data, buffer, DATA).map_err(|refused| Error::refused(refused.reason))?;
        let refused = self.lane.submit(names, None, NAME).err();
        if refused.is_some() {
            self.lane.cancel(DATA);
        }
        let (mut result, mut failure) = (0, None);
        while self.lane.outstanding() > 0 {
            let mut is_unnamed = false;
            let mut take = |completion: host::Completion<Buffer>| match completion.result {
                Ok(of_data) if completion.user == DATA => result = of_data,
                Ok(_) => {}
                Err(why) => {
                    // The status of both is that of the first; a cancelled one says nothing.
                    failure = failure.filter(|known| *known != Failure::Cancelled).or(Some(why));
                    is_unnamed |= completion.user == NAME;
                }
            };
            self.lane.wait_with(&mut take, WAIT);
            if is_unnamed && self.lane.outstanding() > 0 {
                self.lane.cancel(DATA);
            }
        }
        match (refused, failure) {
            (Some(refused), _) => Err(self.explained(Error::refused(refused.reason))),
            (None, Some(failure)) => Err(self.explained(Error::failed(name, failure))),
            (None, None) => Ok(result),
        }
    }

    /// Runs an operation on a long key that has no data. Returns its result.
    fn run_one(&mut self, name: &str, operation: &Operation<'_>) -> Result<u64> {
        let mut batch = self.namespace.batch()?;
        batch.push(operation)?;
        let outcome = self.batches()?.run_batch(&mut batch)?.next();
        match outcome {
            Some(outcome) if outcome.status.is(Status::SUCCESS) => Ok(outcome.result),
            Some(outcome) => Err(Error::failed(name, Failure::Status(outcome.status))),
            None => Err(Error::failed(name, Failure::Interrupted)),
        }
    }

    fn store(&mut self, key: &[u8], buffer: Option<Buffer>, length: usize, flags: u32) -> Result<c_int> {
        let options = store_options(flags)?;
        let stored = match key_of_one_command(&self.namespace, key, length) {
            Some(key) => {
                let command = self.namespace.store(&key, value_length(length), options)?;
                self.run("Store", command, buffer)
            }
            // No command has data of no bytes.
            None if length == 0 => {
                let operation = Operation { options: options.bits(), ..Operation::on(KvOpcode::STORE, key) };
                self.run_one("Store", &operation)
            }
            None => {
                let attributes = (options, StoreAttributes::default());
                let commands = self.namespace.store_long(0, key, value_length(length), attributes)?;
                self.run_pair("Store", commands, buffer)
            }
        };
        stored.map(|_| NVLANE_OK)
    }

    /// Retrieves a value. Returns its length.
    fn retrieve(&mut self, key: &[u8], buffer: Option<Buffer>, room: usize) -> Result<u64> {
        if let Some(key) = key_of_one_command(&self.namespace, key, room) {
            let command = self.namespace.retrieve(&key, value_length(room))?;
            return self.run("Retrieve", command, buffer);
        }
        let commands = self.namespace.retrieve_ranges(0, key, &[], (0, value_length(room)))?;
        match self.run_pair("Retrieve", commands, buffer) {
            Ok(result) => Ok(result >> 32),
            Err(error) if error.is_status(Status::INVALID_VALUE_SIZE) => {
                let full = self.run_one("Exist", &Operation::on(KvOpcode::EXIST, key))?;
                // Shorter now: another value was stored meanwhile.
                if full > room as u64 { Ok(full) } else { Err(error) }
            }
            Err(error) => Err(error),
        }
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
            let key = argument::long_key(key, key_length)?;
            let buffer = Buffer::one(value.cast_mut(), length)?;
            key_value.store(key, buffer, length, flags)
        })
    }
}

/// Retrieves a value into a buffer of `room` bytes, at least 1; it arrives there without a copy. `*length` is the length of the
/// whole value, unless `length` is NULL. NVLANE_ERROR_NO_KEY if there is no such key, NVLANE_ERROR_TRUNCATED if the value is longer
/// than the buffer, which then has its first bytes, or is unchanged if the key has more than 16 bytes, or the buffer more than one
/// command transfers.
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
            let key = argument::long_key(key, key_length)?;
            let room = room.min(key_value.namespace.paired_value_bytes_max() as usize);
            let buffer = Buffer::room(buffer, room)?;
            let full = key_value.retrieve(key, buffer, room)?;
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
            let key = argument::long_key(key, key_length)?;
            let deleted = match Key::new(key) {
                Some(key) => key_value.run("Delete", key_value.namespace.delete(&key), None),
                None => key_value.run_one("Delete", &Operation::on(KvOpcode::DELETE, key)),
            };
            deleted.map(|_| NVLANE_OK)
        })
    }
}

/// Whether a key exists: 1 or 0, or an error.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn nvlane_exists(key_value: *mut KeyValue, key: *const u8, key_length: usize) -> c_int {
    // SAFETY: as this function's.
    unsafe {
        enter(key_value, |key_value| {
            let key = argument::long_key(key, key_length)?;
            let found = match Key::new(key) {
                Some(key) => key_value.run("Exist", key_value.namespace.exist(&key), None),
                None => key_value.run_one("Exist", &Operation::on(KvOpcode::EXIST, key)),
            };
            match found {
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

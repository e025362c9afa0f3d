//! Commands of a lane that are two: those on keys longer than 16 bytes, and on values longer than one transfers. One has
//! the data and waits for the other, which names the key. The caller sees one command.

use std::collections::HashMap;
use std::ffi::c_int;
use std::hash::{BuildHasher, RandomState};

use host::wire::kv::batch::Operation;
use host::{Batch, Command, Failure, KeyValueNamespace, Status, StoreAttributes, StoreOptions};

use crate::buffer::Buffer;
use crate::completion::Completion;
use crate::error::{Error, NVLANE_ERROR_FULL, NVLANE_ERROR_TRUNCATED, NVLANE_OK, Result, code_of};

/// What a pair does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Get,
    Set,
    /// One operation of a batch, whose outcome is in the first command's buffer.
    Operation,
}

/// A pair that is outstanding.
#[derive(Debug)]
struct Pair {
    /// The value that the caller submitted it with.
    user: u64,
    kind: Kind,
    /// Halves that are outstanding: of the data, of the name.
    is_outstanding: [bool; 2],
    failure: Option<Failure>,
    /// What the half with the data ended with.
    result: u64,
    received: u32,
    outcome: Option<Status>,
}

/// The pairs of a lane.
///
/// The halves are submitted with numbers of their own. These begin at random among 2^64, so a number of the caller is not
/// one of them.
#[derive(Debug)]
pub(crate) struct Pairs {
    outstanding: HashMap<u32, Pair>,
    first_user: u64,
    next_tag: u32,
    /// Halves that wait for others that have failed.
    to_cancel: Vec<u64>,
}

const DATA: usize = 0;
const NAME: usize = 1;

impl Pairs {
    pub(crate) fn new() -> Self {
        let first_user = RandomState::new().hash_one(0u8);
        Self { outstanding: HashMap::new(), first_user, next_tag: 0, to_cancel: Vec::new() }
    }

    /// Whether none is outstanding.
    #[inline]
    pub(crate) fn is_empty(&self) -> bool {
        self.outstanding.is_empty()
    }

    fn user(&self, tag: u32, half: usize) -> u64 {
        self.first_user.wrapping_add(2 * u64::from(tag) + half as u64)
    }

    /// Commands that the lane counts once too often.
    pub(crate) fn surplus(&self) -> usize {
        self.outstanding.values().filter(|pair| pair.is_outstanding == [true; 2]).count()
    }

    /// Submits the retrieval of a value into a buffer of `room` bytes.
    pub(crate) fn get(
        &mut self,
        lane: &mut host::Lane<Buffer>,
        (namespace, key): (&KeyValueNamespace, &[u8]),
        (buffer, room): (Option<Buffer>, u32),
        user: u64,
    ) -> Result<c_int> {
        let commands = namespace.retrieve_ranges(self.next_tag, key, &[], (0, room))?;
        self.submit(lane, (Kind::Get, user), commands, [buffer, None])
    }

    /// Submits the storing of a value of `length` bytes.
    pub(crate) fn set(
        &mut self,
        lane: &mut host::Lane<Buffer>,
        (namespace, key): (&KeyValueNamespace, &[u8]),
        (buffer, length): (Option<Buffer>, u32),
        options: StoreOptions,
        user: u64,
    ) -> Result<c_int> {
        let attributes = (options, StoreAttributes::default());
        let commands = namespace.store_long(self.next_tag, key, length, attributes)?;
        self.submit(lane, (Kind::Set, user), commands, [buffer, None])
    }

    /// Submits an operation that has no data, in a batch of its own.
    pub(crate) fn operate(
        &mut self,
        lane: &mut host::Lane<Buffer>,
        namespace: &KeyValueNamespace,
        operation: &Operation<'_>,
        user: u64,
    ) -> Result<c_int> {
        let mut batch = namespace.batch()?;
        batch.push(operation)?;
        let (tag, data) = (self.next_tag, batch.take_data());
        let commands = [batch.collect(tag), batch.submit(tag, data.len())];
        let outcomes = vec![0; batch.outcome_bytes() as usize];
        let buffers = [Some(Buffer::Own(outcomes.into())), Some(Buffer::Own(data.into()))];
        self.submit(lane, (Kind::Operation, user), commands, buffers)
    }

    fn submit(
        &mut self,
        lane: &mut host::Lane<Buffer>,
        (kind, user): (Kind, u64),
        commands: [Command; 2],
        buffers: [Option<Buffer>; 2],
    ) -> Result<c_int> {
        if lane.depth() < lane.outstanding().saturating_add(2) {
            return Err(Error::of_text(
                NVLANE_ERROR_FULL,
                c"the lane has no room for two commands, as a key longer than 16 bytes or a long value needs",
            ));
        }
        let tag = self.next_tag;
        let [of_data, of_name] = commands;
        let [data, name] = buffers;
        lane.submit(of_data, data, self.user(tag, DATA)).map_err(|refused| Error::refused(refused.reason))?;
        let refused = lane.submit(of_name, name, self.user(tag, NAME)).err();
        if refused.is_some() {
            lane.cancel(self.user(tag, DATA));
        }
        let failure = refused.as_ref().map(|_| Failure::Cancelled);
        self.next_tag = self.next_tag.wrapping_add(1);
        let is_outstanding = [true, refused.is_none()];
        let pair = Pair { user, kind, is_outstanding, failure, result: 0, received: 0, outcome: None };
        self.outstanding.insert(tag, pair);
        Ok(NVLANE_OK)
    }

    /// Cancels the pairs of a caller's number. Returns whether there was one.
    pub(crate) fn cancel(&mut self, lane: &mut host::Lane<Buffer>, user: u64) -> bool {
        let meant: Vec<u32> =
            self.outstanding.iter().filter(|(_, pair)| pair.user == user).map(|(tag, _)| *tag).collect();
        for &tag in &meant {
            lane.cancel(self.user(tag, DATA));
            lane.cancel(self.user(tag, NAME));
        }
        !meant.is_empty()
    }

    /// Cancels halves that wait for others that have failed.
    pub(crate) fn cancel_left(&mut self, lane: &mut host::Lane<Buffer>) {
        for user in std::mem::take(&mut self.to_cancel) {
            lane.cancel(user);
        }
    }

    /// Takes in a completion: what the caller gets, which is nothing for the first half of a pair.
    pub(crate) fn on_completion(&mut self, completion: &host::Completion<Buffer>) -> Option<Completion> {
        let offset = completion.user.wrapping_sub(self.first_user);
        let (tag, half) = (u32::try_from(offset / 2), usize::from(offset % 2 == 1));
        let Some((tag, pair)) = tag.ok().and_then(|tag| Some((tag, self.outstanding.get_mut(&tag)?))) else {
            return Some(Completion::of(completion));
        };
        pair.is_outstanding[half] = false;
        match completion.result {
            Ok(result) if half == DATA => {
                (pair.result, pair.received) = (result, completion.received);
                if let Some(Buffer::Own(outcomes)) = &completion.buffer {
                    pair.outcome = Batch::outcomes(outcomes, result).next().map(|outcome| outcome.status);
                }
            }
            Ok(_) => {}
            // The status of both is that of the first; a cancelled one says nothing.
            Err(why) => {
                pair.failure = pair.failure.filter(|known| *known != Failure::Cancelled).or(Some(why));
            }
        }
        if pair.is_outstanding != [false; 2] {
            if half == NAME && completion.result.is_err() {
                let waiting = self.user(tag, DATA);
                self.to_cancel.push(waiting);
            }
            return None;
        }
        self.outstanding.remove(&tag).map(Pair::ended)
    }
}

impl Pair {
    /// The completion of the caller's command.
    fn ended(self) -> Completion {
        let Self { user, kind, failure, result, received, outcome, .. } = self;
        let failure = failure.or(match (kind, outcome) {
            (Kind::Operation, Some(status)) => {
                (!status.is(Status::SUCCESS)).then_some(Failure::Status(status))
            }
            (Kind::Operation, None) => Some(Failure::Interrupted),
            _ => None,
        });
        let Some(failure) = failure else {
            let result = if kind == Kind::Get { result >> 32 } else { 0 };
            let received = if kind == Kind::Get { received } else { 0 };
            return Completion { user, result, received, ..Completion::default() };
        };
        let (mut error, status) = code_of(failure);
        if kind == Kind::Get && matches!(failure, Failure::Status(of) if of.is(Status::INVALID_VALUE_SIZE)) {
            error = NVLANE_ERROR_TRUNCATED;
        }
        Completion { user, error, status, ..Completion::default() }
    }
}

//! Fused Compare and Write: two commands of one queue, executed as one. wire §16
//!
//! ```text
//! FIRST ─▶ (its data) ─┐
//! SECOND ▶ (its data) ─┴─▶ lock the range ─▶ compare ──equal──▶ write ─▶ both end, range unlocked
//!                                               └─different──▶ 0x285 and 0x009
//! ```
// What a host has sent must not be able to end us: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::collections::VecDeque;

use proto::Slot;
use reactor::{Buffer, Io};
use store::{Request, Ticket};
use wire::nvm::BlockCommand;
use wire::opcode::NvmOpcode;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use crate::commands::{Caller, Commands};
use crate::exclusion::{Lock, LockMessage};
use crate::message::Message;
use crate::nvm_io::{failed_pair, status_of};
use crate::running::{After, FusedPair, LockNumber, Owner, Running, Step, Supply};

/// The fused commands of one queue that are not complete pairs with all their data yet.
#[derive(Debug, Default)]
pub(crate) struct Pairs {
    pairs: VecDeque<Pair>,
    /// Whether the last of `pairs` waits for its second command, which must come next.
    is_open: bool,
}

#[derive(Debug)]
struct Pair {
    first: Half,
    second: Option<Half>,
}

/// One command of a pair.
#[derive(Debug)]
struct Half {
    slot: Slot,
    sqe: Sqe,
    state: HalfState,
}

#[derive(Debug)]
enum HalfState {
    /// Its data was asked for.
    AwaitsData,
    /// Its data is there.
    Ready(Supply),
    /// It was completed with an error already; the other half must not succeed.
    Failed,
}

/// What to do about a command of a queue with fused commands.
#[derive(Debug)]
#[allow(clippy::large_enum_variant)] // Made and taken apart in one go.
pub(crate) enum Verdict {
    /// Complete this command so.
    Complete(Slot, Status),
    /// Execute this pair.
    Execute { first: (Slot, Sqe, Supply), second: (Slot, Sqe, Supply) },
}

impl Pairs {
    /// Whether the queue has any fused commands under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.pairs.is_empty()
    }

    /// A command has arrived that does not continue an open pair: its first is alone.
    pub(crate) fn on_other(&mut self) -> Option<Verdict> {
        if !std::mem::take(&mut self.is_open) {
            return None;
        }
        let pair = self.pairs.pop_back()?;
        match pair.first.state {
            HalfState::Failed => None,
            _ => Some(Verdict::Complete(pair.first.slot, Status::ABORTED_MISSING_FUSED.with_dnr())),
        }
    }

    /// The first of a pair, with its data if that is there; or the error that it has been completed with.
    pub(crate) fn on_first(&mut self, slot: Slot, sqe: &Sqe, data: Result<Option<Supply>, ()>) {
        self.is_open = true;
        self.pairs.push_back(Pair { first: half(slot, sqe, data), second: None });
    }

    /// The second of a pair, likewise. Says what follows, as [`next_verdict`](Self::next_verdict) does from then on.
    pub(crate) fn on_second(
        &mut self,
        slot: Slot,
        sqe: &Sqe,
        data: Result<Option<Supply>, ()>,
    ) -> Option<Verdict> {
        if !std::mem::take(&mut self.is_open) {
            // Alone: nothing to pair it with.
            let is_completed = data.is_err();
            return (!is_completed)
                .then(|| Verdict::Complete(slot, Status::ABORTED_MISSING_FUSED.with_dnr()));
        }
        let pair = self.pairs.back_mut()?;
        pair.second = Some(half(slot, sqe, data));
        self.next_verdict()
    }

    /// Data has arrived for the command in `slot`. Says whether it is one of ours.
    pub(crate) fn on_data(&mut self, slot: Slot, buffer: Buffer, is_intact: bool) -> Result<(), Buffer> {
        let halves = self.pairs.iter_mut().flat_map(|pair| [Some(&mut pair.first), pair.second.as_mut()]);
        let mut waiting =
            halves.flatten().filter(|half| half.slot == slot && matches!(half.state, HalfState::AwaitsData));
        let Some(half) = waiting.next() else { return Err(buffer) };
        // Onto the heap: a pair waits for its other half and for its range, and whoever it waits for may need a buffer.
        half.state =
            if is_intact { HalfState::Ready(Supply::Heap(buffer[..].into())) } else { HalfState::Failed };
        Ok(())
    }

    /// What follows from what has arrived. Pull until `None`.
    pub(crate) fn next_verdict(&mut self) -> Option<Verdict> {
        for at in 0..self.pairs.len() {
            let Some(Pair { first, second: Some(second) }) = self.pairs.get_mut(at) else { continue };
            // One half has failed: so does the other, once.
            match (&first.state, &second.state) {
                (HalfState::Failed, HalfState::Failed) => {
                    self.pairs.remove(at);
                    return self.next_verdict();
                }
                (HalfState::Failed, _) => {
                    second.state = HalfState::Failed;
                    return Some(Verdict::Complete(second.slot, failed_pair()));
                }
                (_, HalfState::Failed) => {
                    first.state = HalfState::Failed;
                    return Some(Verdict::Complete(first.slot, failed_pair()));
                }
                (HalfState::Ready(_), HalfState::Ready(_)) => {
                    let Pair { first, second: Some(second) } = self.pairs.remove(at)? else { return None };
                    return match (first.state, second.state) {
                        (HalfState::Ready(expected), HalfState::Ready(data)) => Some(Verdict::Execute {
                            first: (first.slot, first.sqe, expected),
                            second: (second.slot, second.sqe, data),
                        }),
                        _ => None,
                    };
                }
                _ => {}
            }
        }
        None
    }
}

fn half(slot: Slot, sqe: &Sqe, data: Result<Option<Supply>, ()>) -> Half {
    let state = match data {
        Ok(Some(supply)) => HalfState::Ready(supply),
        Ok(None) => HalfState::AwaitsData,
        Err(()) => HalfState::Failed,
    };
    Half { slot, sqe: *sqe, state }
}

impl Commands {
    /// How many bytes one half of a fused pair moves.
    ///
    /// # Errors
    /// The status to refuse it with.
    pub(crate) fn check_fused(&mut self, caller: Caller, sqe: &Sqe) -> Result<u32, Status> {
        let is_right = match sqe.flags.fuse() {
            Fuse::FIRST => sqe.opcode == NvmOpcode::COMPARE.raw(),
            Fuse::SECOND => sqe.opcode == NvmOpcode::WRITE.raw(),
            _ => false,
        };
        if !is_right {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let command = BlockCommand::from_sqe(sqe);
        let has_directive = sqe.flags.fuse() == Fuse::SECOND && command.control.directive_type() != 0;
        if has_directive || command.blocks > self.limits.compare_and_write_blocks_max {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let extent = self.fused_extent(caller.subsystem, sqe.nsid(), &command)?;
        if sqe.flags.fuse() == Fuse::SECOND && extent.geometry.is_read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        u32::try_from(extent.bytes).map_err(|_| Status::INVALID_FIELD.with_dnr())
    }

    /// Executes a pair whose data is complete; both commands are those of `lane` and its generation.
    pub(crate) fn begin_pair<I: Io<Message>>(
        &mut self,
        io: &mut I,
        caller: Caller,
        lane: (u32, u32),
        first: (Slot, Sqe, Supply),
        second: (Slot, Sqe, Supply),
    ) {
        let owner = Owner::Pair { index: lane.0, generation: lane.1, first: first.0, second: second.0 };
        let sqe = second.1;
        let command = BlockCommand::from_sqe(&sqe);
        let compared = BlockCommand::from_sqe(&first.1);
        let is_same = (compared.slba, compared.blocks) == (command.slba, command.blocks)
            && first.1.nsid() == sqe.nsid();
        let extent = self.fused_extent(caller.subsystem, sqe.nsid(), &command);
        let extent = match extent {
            Ok(extent) if is_same => extent,
            Ok(_) => return self.refuse_pair(owner, sqe, Status::INVALID_FIELD.with_dnr()),
            Err(status) => return self.refuse_pair(owner, sqe, status),
        };
        // As with any data that was asked for before another namespace took the place of the first.
        let given = first.2.bytes().len().min(second.2.bytes().len());
        let Some(length) = usize::try_from(extent.bytes).ok().filter(|&length| length <= given) else {
            return self.refuse_pair(owner, sqe, Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        };
        self.next_lock = self.next_lock.wrapping_add(1);
        let lock = self.next_lock;
        let pair = Box::new(FusedPair {
            expected: first.2,
            data: second.2,
            offset: extent.offset,
            length,
            is_durable: command.control.fua(),
            lock,
        });
        self.namespaces.begin(extent.at);
        let step = Step::Locking(pair);
        self.running.insert(Running::new(owner, sqe, Some(extent.at), step));
        let namespace = self.namespaces.get_mut(extent.at).id;
        let blocks = command.slba..command.slba.saturating_add(command.blocks.into());
        io.post(0, Message::Lock(LockMessage::Ask(Lock { holder: self.holder(lock), namespace, blocks })));
    }

    /// Ends both halves of a pair that cannot be executed.
    fn refuse_pair(&mut self, owner: Owner, sqe: Sqe, status: Status) {
        self.push_ended_pair(owner, sqe, status, failed_pair());
    }

    /// The lock of this number has been granted.
    pub(crate) fn on_lock_granted<I: Io<Message>>(&mut self, io: &mut I, lock: LockNumber) {
        let waits = |running: &Running| matches!(&running.step, Step::Locking(pair) if pair.lock == lock);
        let Some(ticket) = self.running.find(waits) else { return };
        let running = self.running.live_mut(ticket);
        let at = running.asked_namespace();
        let Step::Locking(pair) = std::mem::replace(&mut running.step, Step::Between) else {
            unreachable!("just matched")
        };
        match self.namespaces.blocks_mut(at).backend.compare_now(pair.offset, pair.expected_bytes()) {
            Some(Ok(is_equal)) => self.on_fused_compared(io, ticket, &pair, is_equal, None),
            Some(Err(error)) => {
                self.end_pair(io, ticket, pair.lock, status_of(error, true), failed_pair());
            }
            None => match self.take_critical(io.pool(), pair.length) {
                Some(buffer) => {
                    let offset = pair.offset;
                    self.set_after(ticket, After::FusedCompare(pair));
                    self.start_in(io, at, ticket, Request::Read { offset, buffer });
                }
                // Holding a range while waiting for memory would hold up others: let the host try again.
                None => {
                    self.end_pair(io, ticket, pair.lock, Status::COMMAND_INTERRUPTED, failed_pair());
                }
            },
        }
    }

    /// What a pair compares with has been read.
    pub(crate) fn on_fused_read<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        pair: &FusedPair,
        buffer: Buffer,
    ) {
        let is_equal = buffer.get(..pair.length) == Some(pair.expected_bytes());
        self.on_fused_compared(io, ticket, pair, is_equal, Some(buffer));
    }

    fn on_fused_compared<I: Io<Message>>(
        &mut self,
        io: &mut I,
        ticket: Ticket,
        pair: &FusedPair,
        is_equal: bool,
        buffer: Option<Buffer>,
    ) {
        let lock = pair.lock;
        if !is_equal {
            self.give_back(buffer);
            let status = Status::COMPARE_FAILURE.with_dnr();
            return self.end_pair(io, ticket, lock, status, failed_pair());
        }
        let running = self.running.live_mut(ticket);
        let at = running.asked_namespace();
        let data = pair.data_bytes();
        match self.namespaces.blocks_mut(at).backend.write_now(pair.offset, data, pair.is_durable) {
            Some(result) => {
                self.give_back(buffer);
                let second = result.map_or_else(|error| status_of(error, false), |()| Status::SUCCESS);
                self.end_pair(io, ticket, lock, Status::SUCCESS, second);
            }
            None => {
                // The buffer that was read into is free again.
                let Some(mut buffer) = buffer.or_else(|| io.pool().take(pair.length)) else {
                    return self.end_pair(io, ticket, lock, Status::COMMAND_INTERRUPTED, failed_pair());
                };
                buffer.set_len(pair.length);
                buffer.copy_from_slice(pair.data_bytes());
                self.set_after(ticket, After::FusedWrite(lock));
                let request = Request::Write { offset: pair.offset, buffer, is_durable: pair.is_durable };
                self.start_in(io, at, ticket, request);
            }
        }
    }
}

//! Fused Compare and Write: two commands of one queue, executed as one. wire §16
//!
//! ```text
//! FIRST ─▶ (its data) ─┐
//! SECOND ▶ (its data) ─┴─▶ lock the range ─▶ compare ──equal──▶ write ─▶ both end, range unlocked
//!                                               └─different──▶ 0x285 and 0x009
//! ```
// Input from a host must never cause a panic: see docs/testing.md.
#![deny(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]

use memory::Buffer;
use proto::Slot;
use reactor::Io;
use store::{Request, Ticket};
use wire::nvm::BlockCommand;
use wire::opcode::NvmOpcode;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use crate::io_path::commands::Commands;
use crate::io_path::io_command::Caller;
use crate::io_path::nvm_io::Extent;
use crate::io_path::nvm_status::{failed_pair, status_of};
use crate::io_path::running::{After, FusedPair, LockNumber, Owner, Running, Step, Supply};
use crate::messages::message::{Lock, LockMessage, Message};
use crate::objects::rate_limit::Work;

/// Executes complete pairs of Compare and Write.
pub(crate) struct FusedExecutor<'a, I> {
    pub(crate) commands: &'a mut Commands,
    pub(crate) io: &'a mut I,
}

impl<I: Io<Message>> FusedExecutor<'_, I> {
    /// Number of bytes that one half of a fused pair moves.
    ///
    /// # Errors
    /// The status to refuse it with.
    pub(crate) fn check(&mut self, caller: Caller, sqe: &Sqe) -> Result<u32, Status> {
        let is_right = match sqe.flags.fuse() {
            Fuse::FIRST => sqe.opcode == NvmOpcode::COMPARE.raw(),
            Fuse::SECOND => sqe.opcode == NvmOpcode::WRITE.raw(),
            _ => false,
        };
        if !is_right {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let command = BlockCommand::from_sqe(sqe);
        if command.blocks > self.commands.limits.compare_and_write_blocks_max {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        let extent = Extent::of_fused(&mut self.commands.namespaces, caller.view, sqe.nsid(), &command)?;
        // The range would be locked on the reactors of this target only.
        if extent.geometry.has_other_writers {
            return Err(Status::INVALID_FIELD.with_dnr());
        }
        if sqe.flags.fuse() == Fuse::SECOND && extent.geometry.is_read_only {
            return Err(Status::NAMESPACE_WRITE_PROTECTED.with_dnr());
        }
        u32::try_from(extent.bytes).map_err(|_| Status::INVALID_FIELD.with_dnr())
    }

    /// Executes a pair whose data is complete; both commands are those of `lane` and its generation.
    pub(crate) fn begin(
        &mut self,
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
        let extent = Extent::of_fused(&mut self.commands.namespaces, caller.view, sqe.nsid(), &command);
        let extent = match extent {
            // The host may have lost the right to write since the commands arrived.
            Ok(extent) if is_same && extent.geometry.is_read_only => {
                let status = Status::NAMESPACE_WRITE_PROTECTED.with_dnr();
                return self.commands.push_ended_pair(owner, sqe, failed_pair(), status);
            }
            Ok(extent) if is_same => extent,
            Ok(_) => return self.refuse(owner, sqe, Status::INVALID_FIELD.with_dnr()),
            Err(status) => return self.refuse(owner, sqe, status),
        };
        // As with any data that was asked for before another namespace took the place of the first.
        let given = first.2.bytes().len().min(second.2.bytes().len());
        let Some(length) = usize::try_from(extent.bytes).ok().filter(|&length| length <= given) else {
            return self.refuse(owner, sqe, Status::DATA_SGL_LENGTH_INVALID.with_dnr());
        };
        // It waits for no rate limit: another lane may wait for its buffers.
        for is_write in [false, true] {
            self.commands.debit(
                caller.view,
                sqe.nsid(),
                Work { is_write, operations: 1, bytes: extent.bytes },
            );
        }
        self.commands.next_lock = self.commands.next_lock.wrapping_add(1);
        let lock = self.commands.next_lock;
        let pair = Box::new(FusedPair {
            expected: first.2,
            data: second.2,
            offset: extent.offset,
            length,
            is_durable: command.control.fua(),
            lock,
        });
        self.commands.namespaces.begin(extent.at);
        let step = Step::Locking(pair);
        self.commands.running.insert(Running::new(owner, sqe, Some(extent.at), step));
        let namespace = self.commands.namespaces.get_mut(extent.at).id;
        let blocks = command.slba..command.slba.saturating_add(command.blocks.into());
        self.io.post(
            0,
            Message::Lock(LockMessage::Ask(Lock { holder: self.commands.holder(lock), namespace, blocks })),
        );
    }

    /// Ends both halves of a pair that cannot be executed.
    fn refuse(&mut self, owner: Owner, sqe: Sqe, status: Status) {
        self.commands.push_ended_pair(owner, sqe, status, failed_pair());
    }

    /// The lock of this number has been granted.
    pub(crate) fn on_lock_granted(&mut self, lock: LockNumber) {
        let waits = |running: &Running| matches!(&running.step, Step::Locking(pair) if pair.lock == lock);
        let Some(ticket) = self.commands.running.find(waits) else { return };
        let running = self.commands.running.live_mut(ticket);
        let at = running.asked_namespace();
        let Step::Locking(pair) = std::mem::replace(&mut running.step, Step::Between) else {
            unreachable!("just matched")
        };
        match self.commands.namespaces.blocks_mut(at).backend.compare_now(pair.offset, pair.expected_bytes())
        {
            Some(Ok(is_equal)) => self.on_compared(ticket, &pair, is_equal, None),
            Some(Err(error)) => {
                self.end(ticket, pair.lock, status_of(error, true), failed_pair());
            }
            None => match self.commands.take_critical(self.io.pool(), pair.length) {
                Some(buffer) => {
                    let offset = pair.offset;
                    self.commands.set_after(ticket, After::FusedCompare(pair));
                    self.commands.start_in(self.io, at, ticket, Request::Read { offset, buffer });
                }
                // Holding a range while waiting for memory would hold up others: let the host try again.
                None => {
                    self.end(ticket, pair.lock, Status::COMMAND_INTERRUPTED, failed_pair());
                }
            },
        }
    }

    /// The data to compare with has been read.
    pub(crate) fn on_read(&mut self, ticket: Ticket, pair: &FusedPair, buffer: Buffer) {
        let is_equal = buffer.get(..pair.length) == Some(pair.expected_bytes());
        self.on_compared(ticket, pair, is_equal, Some(buffer));
    }

    fn on_compared(&mut self, ticket: Ticket, pair: &FusedPair, is_equal: bool, buffer: Option<Buffer>) {
        let lock = pair.lock;
        if !is_equal {
            self.commands.release(buffer);
            let status = Status::COMPARE_FAILURE.with_dnr();
            return self.end(ticket, lock, status, failed_pair());
        }
        let running = self.commands.running.live_mut(ticket);
        let at = running.asked_namespace();
        let data = pair.data_bytes();
        match self.commands.namespaces.blocks_mut(at).backend.write_now(pair.offset, data, pair.is_durable) {
            Some(result) => {
                self.commands.release(buffer);
                let second = result.map_or_else(|error| status_of(error, false), |()| Status::SUCCESS);
                self.end(ticket, lock, Status::SUCCESS, second);
            }
            None => {
                // The buffer that was read into is free again.
                let Some(mut buffer) = buffer.or_else(|| self.io.pool().take(pair.length)) else {
                    return self.end(ticket, lock, Status::COMMAND_INTERRUPTED, failed_pair());
                };
                buffer.set_len(pair.length);
                buffer.copy_from_slice(pair.data_bytes());
                self.commands.set_after(ticket, After::FusedWrite(lock));
                let request = Request::Write { offset: pair.offset, buffer, is_durable: pair.is_durable };
                self.commands.start_in(self.io, at, ticket, request);
            }
        }
    }

    /// A fused pair has ended: its range is free again.
    pub(crate) fn end(&mut self, ticket: Ticket, lock: LockNumber, first: Status, second: Status) {
        self.io.post(0, Message::Lock(LockMessage::Unlock(self.commands.holder(lock))));
        let running = self.commands.running.end(ticket);
        if let Some(at) = running.namespace {
            self.commands.table_settled |= self.commands.namespaces.end(at);
        }
        self.commands.push_ended_pair(running.owner, running.sqe, first, second);
    }
}

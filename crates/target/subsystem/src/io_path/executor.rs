//! Executes the I/O commands of a reactor: begins them by the command set of their namespace, continues those that
//! waited or that a backend has replied to.
//!
//! ```text
//! SQE ─▶ begin: what is its NSID? ─┬─▶ blocks: Start::block_command (nvm_io.rs)
//!                                  └─▶ keys:   KeyValueStart::begin (key_value_io/execute.rs)
//!
//! begin ─▶ Complete / Data            done at once: RAM and null, errors
//!    ├──▶ RequestData ─(R2T)─▶ resume, with the data
//!    └──▶ Started ─▶ … Commands::on_completion, on_timer … on_replies, retry ─▶ Commands::next_ended
//! ```
// Input from a host must never cause a panic: see docs/testing.md.
#![deny(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]

use std::ops::Range;

use memory::{Buffer, Payload};
use reactor::Io;
use store::{Reply, Request, StoreError, Ticket};
use wire::id::Nsid;
use wire::opcode::{KvOpcode, NvmOpcode};
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;

use crate::io_path::attached::{AttachedIndex, Found};
use crate::io_path::buffer_quota::UNSENT_BYTES_MAX;
use crate::io_path::command_effects::is_key_value;
use crate::io_path::command_form::check_form;
use crate::io_path::commands::Commands;
use crate::io_path::fused::FusedExecutor;
use crate::io_path::io_command::{Begun, Caller, Ended, Hold};
use crate::io_path::key_value_io::{KeyValueStart, batch, flush_logs};
use crate::io_path::nvm_io::{Checked, Start};
use crate::io_path::nvm_status::{compare_failure, failed_pair, lost_before_flush, status_of};
use crate::io_path::running::{After, Copy, Owner, Running, Step, Supply};
use crate::messages::key_value::arriving::Intake;
use crate::messages::message::Message;
use crate::names::lane_id::CommandId;
use crate::objects::subsystem::SubsystemId;

/// Begins and continues the commands of a reactor.
pub(crate) struct IoExecutor<'a, I> {
    pub(crate) commands: &'a mut Commands,
    pub(crate) io: &'a mut I,
}

impl<I: Io<Message>> IoExecutor<'_, I> {
    /// Begins an I/O command with the data of its capsule.
    #[inline]
    pub(crate) fn begin(&mut self, caller: &Caller, sqe: &Sqe, data: &[u8]) -> Begun {
        self.start(caller, sqe, data, Supply::None, None)
    }

    /// Continues a command with the data that was asked for.
    pub(crate) fn resume(&mut self, caller: &Caller, sqe: &Sqe, buffer: Buffer, ticket: Ticket) -> Begun {
        self.start(caller, sqe, &[], Supply::Buffer(buffer), Some(ticket))
    }

    #[inline]
    fn start(
        &mut self,
        caller: &Caller,
        sqe: &Sqe,
        data: &[u8],
        supply: Supply,
        ticket: Option<Ticket>,
    ) -> Begun {
        let found = self.commands.namespaces.find(caller.view, sqe.nsid());
        self.start_in(found, caller, sqe, data, supply, ticket)
    }

    #[inline]
    pub(super) fn start_in(
        &mut self,
        found: Found,
        caller: &Caller,
        sqe: &Sqe,
        data: &[u8],
        supply: Supply,
        ticket: Option<Ticket>,
    ) -> Begun {
        let mut start = Start { commands: self.commands, io: self.io, caller, sqe, data, supply, ticket };
        let begun = match found {
            Found::Blocks(at) => start.block_command(at),
            Found::Keys(at) => KeyValueStart { start: &mut start, at, may_write: true }.begin(),
            Found::BlocksToRead(at) => start.block_command_to_read(at),
            Found::KeysToRead(at) => KeyValueStart { start: &mut start, at, may_write: false }.begin(),
            Found::Limited(number) => {
                let Start { commands, io, data, supply, ticket, .. } = start;
                return IoExecutor { commands, io }.start_limited(number, caller, sqe, data, supply, ticket);
            }
            Found::Unusable => self.without_namespace(caller, sqe, ticket, Status::NAMESPACE_NOT_READY),
            Found::Missing => {
                self.without_namespace(caller, sqe, ticket, Status::INVALID_NAMESPACE.with_dnr())
            }
        };
        begun.unwrap_or_else(|status| Begun::Complete(status, 0))
    }

    /// A command whose NSID names no namespace that can be used: Flush of all of them, or refused, known commands with
    /// `status`.
    #[cold]
    #[inline(never)]
    fn without_namespace(
        &mut self,
        caller: &Caller,
        sqe: &Sqe,
        ticket: Option<Ticket>,
        status: Status,
    ) -> Checked<Begun> {
        match NvmOpcode::from_raw(sqe.opcode) {
            NvmOpcode::FLUSH => {
                check_form(sqe)?;
                if sqe.nsid() == Nsid::ALL { self.flush_subsystem(caller, sqe, ticket) } else { Err(status) }
            }
            NvmOpcode::READ
            | NvmOpcode::WRITE
            | NvmOpcode::COMPARE
            | NvmOpcode::WRITE_ZEROES
            | NvmOpcode::DATASET_MANAGEMENT
            | NvmOpcode::VERIFY
            | NvmOpcode::COPY
            | NvmOpcode::GET_LBA_STATUS => Err(status),
            _ if self.commands.namespaces.is_beside_keys(caller.view)
                && is_key_value(KvOpcode::from_raw(sqe.opcode)) =>
            {
                Err(status)
            }
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        }
    }

    /// Flushes all namespaces that the caller sees.
    #[expect(clippy::expect_used, reason = "no more namespaces than there are ids, of 32 bits")]
    fn flush_subsystem(&mut self, caller: &Caller, sqe: &Sqe, ticket: Option<Ticket>) -> Checked<Begun> {
        let mut all = self.commands.namespaces.all_of(caller.view);
        let mut may_succeed = true;
        for at in &all {
            may_succeed &= self.commands.may_flush(caller.owner, *at);
        }
        if !may_succeed {
            return Err(lost_before_flush());
        }
        all.retain(|at| self.commands.namespaces.get_mut(*at).has_volatile_state());
        if all.is_empty() {
            return Ok(Begun::Complete(Status::SUCCESS, 0));
        }
        let left = u32::try_from(all.len()).expect("few namespaces");
        let step = Step::Backend(After::FlushAll { left, status: Status::SUCCESS });
        let parent = self.commands.keep(ticket, Running::new(caller.owner, *sqe, None, step));
        for at in all {
            let caller = Caller { owner: Owner::Parent(parent), ..*caller };
            if self.commands.namespaces.has_keys(at) {
                let ticket = self.commands.run((caller, sqe, None), at, Step::Partition);
                flush_logs(self.commands, self.io, at, ticket);
            } else {
                let step = Step::Backend(After::Complete);
                let ticket = self.commands.run((caller, sqe, None), at, step);
                self.commands.start_in(self.io, at, ticket, Request::Flush);
            }
        }
        Ok(Begun::Started { ticket: parent, hold: Hold::None })
    }

    /// Continues commands that wait, as far as there are buffers. Returns whether there may be more to do at once.
    pub(crate) fn retry(&mut self, caller: impl Fn(Owner) -> Option<Caller>) -> bool {
        self.commands.reserve.refill(self.io.pool());
        for _ in 0..self.commands.waiting_count() {
            let Some(ticket) = self.commands.next_waiting() else { break };
            self.go_on(ticket, &caller);
        }
        let mut has_served = false;
        self.commands.quota.end_window(self.io.now_ns());
        for _ in 0..self.commands.quota.waiting_count() {
            let Some(lane) = self.commands.quota.next_turn() else { break };
            let wanted_bytes = self.serve_line(lane, &caller);
            has_served |= wanted_bytes.is_none();
            let (now_ns, taken_bytes) = (self.io.now_ns(), self.commands.running.taken_bytes(lane));
            self.commands.quota.end_turn(self.io.pool(), now_ns, lane, taken_bytes, wanted_bytes);
        }
        has_served
    }

    /// Continues the commands in a lane's line, in order: one of them, if other lanes wait as well. Returns the length
    /// of the buffer that the next one did not get, if that is why it stopped.
    fn serve_line(&mut self, lane: u32, caller: &impl Fn(Owner) -> Option<Caller>) -> Option<usize> {
        let is_alone = self.commands.quota.waiting_count() == 0;
        // Commands that end at once are sent at the end of the turn, which shows whether the peer reads.
        let mut ended_bytes = 0usize;
        while let Some(ticket) = self.commands.quota.first_in_line(lane) {
            let ended_count = self.commands.ended_count();
            self.go_on(ticket, caller);
            match self.commands.running.get_mut(ticket) {
                Some(Running { step: Step::AwaitingRoom(length), .. }) => return Some(*length as usize),
                // Values may be longer: their chunks take no buffers.
                Some(Running { step: Step::InLine, sqe, .. }) => {
                    return Some(sqe.dptr.length.get().min(self.commands.limits.transfer_bytes_max) as usize);
                }
                // It has continued, or waits for another resource now.
                _ => self.commands.quota.leave_line(lane),
            }
            ended_bytes = ended_bytes.saturating_add(self.commands.ended_bytes(ended_count));
            if !is_alone || ended_bytes >= UNSENT_BYTES_MAX {
                break;
            }
        }
        None
    }

    /// Continues a command that waits, or lets it wait again.
    fn go_on(&mut self, ticket: Ticket, caller: &impl Fn(Owner) -> Option<Caller>) {
        // Aborted, or its lane has ended.
        let Some(running) = self.commands.running.get_mut(ticket) else { return };
        let (owner, sqe) = (running.owner, running.sqe);
        let ended = Ended::new(owner, sqe, Status::SUCCESS);
        let supply = match std::mem::replace(&mut running.step, Step::Between) {
            Step::Waiting(supply) => supply,
            Step::InLine => Supply::None,
            Step::AwaitingRoom(length) => return self.room(ticket, length),
            _ => unreachable!("what waits has not begun"),
        };
        let Some(caller) = caller(owner) else {
            self.commands.running.remove(ticket);
            return;
        };
        let ended = match self.start(&caller, &sqe, &[], supply, Some(ticket)) {
            Begun::Started { .. } => return,
            Begun::Complete(status, result) => Ended { status, result, is_counted: true, ..ended },
            Begun::Data(payload, length) => {
                Ended { data: Some((payload, length)), is_counted: true, ..ended }
            }
            Begun::Value(payload, length, result) => {
                Ended { data: Some((payload, length)), result, is_counted: true, ..ended }
            }
            Begun::RequestData(length) => return self.room(ticket, length),
        };
        self.commands.running.remove(ticket);
        self.commands.push_ended(ended);
    }

    /// Takes a buffer to receive a waiting command's data into, or waits for one.
    fn room(&mut self, ticket: Ticket, length: u32) {
        let running = self.commands.running.live_mut(ticket);
        let (owner, sqe) = (running.owner, running.sqe);
        let Some(buffer) = self.take_room(owner, &sqe, length) else {
            return self.commands.line_up(ticket, Step::AwaitingRoom(length));
        };
        self.commands.receive(ticket, &buffer, self.io.now_ns());
        let room = Some((Intake::Buffer(buffer), 0..length));
        self.commands.push_ended(Ended { room, ..Ended::new(owner, sqe, Status::SUCCESS) });
    }

    /// A buffer to receive a command's data into, if it may have one.
    pub(crate) fn take_room(&mut self, owner: Owner, sqe: &Sqe, length: u32) -> Option<Buffer> {
        // Half of a fused pair waits for no other lane: the other half has its buffer already, for which that lane may
        // wait.
        if sqe.flags.fuse() != Fuse::NONE {
            return self.io.pool().take(length as usize);
        }
        let length = batch::room_bytes(sqe, length, self.commands.limits.transfer_bytes_max);
        self.commands.take(self.io.pool(), owner, length as usize)
    }

    /// Flushes all namespaces of a subsystem for the control plane. The end comes out of [`Commands::next_ended`].
    pub(crate) fn flush_all(&mut self, subsystem: SubsystemId, asked_by: CommandId) {
        let view = self.commands.namespaces.whole(subsystem);
        let caller = Caller { owner: Owner::Control(asked_by), view, needs_stable_copy: false };
        let sqe = Sqe::flush(Nsid::ALL);
        if let Begun::Complete(status, result) = self.begin(&caller, &sqe, &[]) {
            self.commands.push_ended(Ended { result, ..Ended::new(caller.owner, sqe, status) });
        }
    }

    /// Continues the commands that backends have replied to. Returns whether there were any.
    pub(crate) fn on_replies(&mut self) -> bool {
        let mut worked = false;
        while let Some((ticket, reply)) = self.commands.queues.replies.pop_front() {
            self.on_reply(ticket, reply);
            worked = true;
        }
        worked
    }

    /// The backend is done with a ticket: the next step of its command, or its end.
    #[expect(
        clippy::expect_used,
        clippy::indexing_slicing,
        reason = "a backend returns the buffer that it was given"
    )]
    fn on_reply(&mut self, ticket: Ticket, reply: Reply) {
        let running = self.commands.running.live_mut(ticket);
        let at = running.asked_namespace();
        let Step::Backend(after) = std::mem::replace(&mut running.step, Step::Between) else {
            unreachable!("only commands that the backend has are replied to")
        };
        let after = match after {
            After::LbaStatus(list) if matches!(reply.result, Ok(()) | Err(StoreError::Unsupported)) => {
                let (buffer, length) = list.into_list(reply.result.is_ok());
                let data = Some((Payload::Buffer(buffer), length));
                return self.commands.end(ticket, Status::SUCCESS, 0, data);
            }
            after => after,
        };
        if let Err(error) = reply.result {
            self.commands.release(reply.buffer);
            return self.on_failure(ticket, after, error);
        }
        match after {
            After::Complete => {
                self.commands.release(reply.buffer);
                self.commands.end(ticket, Status::SUCCESS, 0, None);
            }
            After::Read { length } => {
                let payload = Payload::Buffer(reply.buffer.expect("a read has a buffer"));
                self.commands.end(ticket, Status::SUCCESS, 0, Some((payload, length)));
            }
            After::Compare(expected) => {
                let buffer = reply.buffer.expect("a read has a buffer");
                let is_equal = expected.bytes()[..buffer.len()] == buffer[..];
                let status = if is_equal { Status::SUCCESS } else { compare_failure() };
                self.commands.release(Some(buffer));
                self.commands.end(ticket, status, 0, None);
            }
            After::Verify { range } => match reply.buffer {
                Some(buffer) if !range.is_empty() => self.verify(ticket, at, range, buffer),
                _ => self.commands.end(ticket, Status::SUCCESS, 0, None),
            },
            After::Deallocate { ranges } => self.deallocate(ticket, at, ranges),
            After::Copy(copy) => {
                let buffer = reply.buffer.expect("a read or write has a buffer");
                self.copy(ticket, at, copy, buffer);
            }
            After::LbaStatus(_) => unreachable!("it has ended above"),
            After::FlushAll { .. } => unreachable!("a parent is not replied to"),
            After::FusedCompare(pair) => {
                let buffer = reply.buffer.expect("a read has a buffer");
                self.fused().on_read(ticket, &pair, buffer);
            }
            After::FusedWrite(lock) => {
                self.commands.release(reply.buffer);
                self.fused().end(ticket, lock, Status::SUCCESS, Status::SUCCESS);
            }
        }
    }

    fn on_failure(&mut self, ticket: Ticket, after: After, error: StoreError) {
        let running = self.commands.running.live_mut(ticket);
        let is_read = match &after {
            After::Copy(copy) => copy.is_reading,
            After::Complete | After::Deallocate { .. } | After::FusedWrite(_) => false,
            _ => true,
        };
        let status = status_of(error, is_read);
        tracing::debug!(%error, opcode = running.sqe.opcode, "command failed");
        match after {
            // The result is the number of the first range that was not copied.
            After::Copy(copy) => self.commands.end(ticket, status, copy.range.into(), None),
            After::FusedCompare(pair) => self.fused().end(ticket, pair.lock, status, failed_pair()),
            After::FusedWrite(lock) => self.fused().end(ticket, lock, Status::SUCCESS, status),
            _ => self.commands.end(ticket, status, 0, None),
        }
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "a chunk of a range in the namespace"
    )]
    fn verify(&mut self, ticket: Ticket, at: AttachedIndex, range: Range<u64>, mut buffer: Buffer) {
        let count = (buffer.capacity() as u64).min(range.end - range.start);
        buffer.set_len(usize::try_from(count).expect("a chunk"));
        let offset = range.start;
        self.commands.set_after(ticket, After::Verify { range: offset + count..range.end });
        self.commands.start_in(self.io, at, ticket, Request::Read { offset, buffer });
    }

    #[expect(clippy::arithmetic_side_effects, reason = "a range ends after it begins")]
    fn deallocate(&mut self, ticket: Ticket, at: AttachedIndex, mut ranges: Vec<Range<u64>>) {
        let Some(range) = ranges.pop() else { return self.commands.end(ticket, Status::SUCCESS, 0, None) };
        self.commands.set_after(ticket, After::Deallocate { ranges });
        let request = Request::Deallocate { offset: range.start, length: range.end - range.start };
        self.commands.start_in(self.io, at, ticket, request);
    }

    #[expect(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        reason = "a chunk of a range in the namespace"
    )]
    fn copy(&mut self, ticket: Ticket, at: AttachedIndex, mut copy: Box<Copy>, mut buffer: Buffer) {
        let request = if copy.is_reading {
            // The data read goes out.
            copy.is_reading = false;
            Request::Write { offset: copy.part_destination, buffer, is_durable: copy.is_durable }
        } else {
            let Some(part) = copy.next_part(buffer.capacity() as u64) else {
                self.commands.release(Some(buffer));
                return self.commands.end(ticket, Status::SUCCESS, 0, None);
            };
            copy.is_reading = true;
            buffer.set_len(usize::try_from(part.end - part.start).expect("a chunk"));
            Request::Read { offset: part.start, buffer }
        };
        self.commands.set_after(ticket, After::Copy(copy));
        self.commands.start_in(self.io, at, ticket, request);
    }

    fn fused(&mut self) -> FusedExecutor<'_, I> {
        FusedExecutor { commands: self.commands, io: self.io }
    }
}

//! Commands of namespaces and hosts with rate limits: what each takes of the rates, and how it waits.
//!
//! A command takes its share when it comes, before it has a buffer and before its data is asked for. Fused pairs never
//! wait, and pay afterwards; Flush and Batch Collect take nothing.
// Input from a host must never cause a panic: see docs/testing.md.
#![deny(clippy::arithmetic_side_effects, clippy::expect_used, clippy::indexing_slicing, clippy::unwrap_used)]

use memory::Payload;
use reactor::Io;
use store::Ticket;
use wire::id::Nsid;
use wire::kv::batch::BatchSubmit;
use wire::kv::value::StoreSubmit;
use wire::nvm::BlockCommand;
use wire::opcode::{DataDirection, KvOpcode, NvmOpcode};
use wire::sqe::Sqe;

use crate::io_path::attached::{AttachedIndex, Attachments, Found, ViewIndex};
use crate::io_path::command_effects::{KEY_VALUE_READING, KEY_VALUE_WRITING};
use crate::io_path::commands::Commands;
use crate::io_path::executor::IoExecutor;
use crate::io_path::io_command::{Begun, Caller, Hold};
use crate::io_path::running::{After, Owner, Running, Step, Supply};
use crate::io_path::throttle::Share;
use crate::messages::message::Message;
use crate::objects::rate_limit::Work;

impl<I: Io<Message>> IoExecutor<'_, I> {
    /// Begins a command that has rate limits, or has it wait for them.
    #[cold]
    #[inline(never)]
    pub(super) fn start_limited(
        &mut self,
        number: u32,
        caller: &Caller,
        sqe: &Sqe,
        data: &[u8],
        supply: Supply,
        ticket: Option<Ticket>,
    ) -> Begun {
        let Some(limited) = self.commands.namespaces.limited(number) else {
            return self.start_in(Found::Missing, caller, sqe, data, supply, ticket);
        };
        // Its data was asked for, or it has waited for something else since.
        let is_paid = !matches!(supply, Supply::None)
            || ticket.is_some_and(|ticket| self.commands.running.live_mut(ticket).is_paid);
        let transfer_bytes_max = self.commands.limits.transfer_bytes_max;
        let work = work_of(&mut self.commands.namespaces, limited.found, sqe, transfer_bytes_max);
        // A Batch Collect runs until its Submit has come, which may have to wait: it takes no place from others.
        let share = work.map_or(Share::Free, |_| limited.share);
        let work = work.filter(|_| !is_paid);
        let lane = caller.owner.lane();
        if let (Some(work), Some(lane)) = (work, lane) {
            let (key, now_ns) = ((lane, sqe.nsid(), work.is_write), self.io.now_ns());
            self.commands.throttle.set_in_flight(self.commands.running.flows.rest);
            let passed = self.commands.throttle.passes(key, limited.stages, work, now_ns);
            if limited.stages.get(passed).copied().flatten().is_some() {
                let running = Running::new(caller.owner, *sqe, None, Step::Between);
                let ticket = self.commands.keep(ticket, running);
                let is_write = work.is_write;
                let step = Step::Throttled { data: data.into(), since_ns: now_ns, is_write };
                self.commands.running.live_mut(ticket).step = step;
                let waiting = (ticket, work, passed);
                let holds_lane = self.commands.throttle.line_up(key, limited.stages, waiting, data.len());
                let hold = if holds_lane { Hold::Capsule } else { Hold::None };
                return Begun::Started { ticket, hold };
            }
        }
        self.start_paid((limited.found, share), caller, sqe, data, supply, ticket)
    }

    /// Begins a command that has waited for its rate limits, with the data of its capsule.
    pub(crate) fn begin_throttled(
        &mut self,
        caller: &Caller,
        sqe: &Sqe,
        data: &[u8],
        ticket: Ticket,
        is_paid: bool,
    ) -> Begun {
        let found = self.commands.namespaces.find(caller.view, sqe.nsid());
        match is_paid {
            true => {
                let limited = match found {
                    Found::Limited(number) => self.commands.namespaces.limited(number),
                    _ => None,
                };
                let found = limited.map_or((found, Share::Free), |limited| (limited.found, limited.share));
                self.start_paid(found, caller, sqe, data, Supply::None, Some(ticket))
            }
            false => self.start_in(found, caller, sqe, data, Supply::None, Some(ticket)),
        }
    }

    fn start_paid(
        &mut self,
        (found, share): (Found, Share),
        caller: &Caller,
        sqe: &Sqe,
        data: &[u8],
        supply: Supply,
        ticket: Option<Ticket>,
    ) -> Begun {
        let begun = self.start_in(found, caller, sqe, data, supply, ticket);
        match &begun {
            Begun::Started { ticket, .. } => {
                if share == Share::Rest {
                    self.commands.throttle.on_started();
                }
                self.commands.running.count_in(*ticket, share);
                let copied_bytes = match self.commands.running.get_mut(*ticket) {
                    Some(running) => {
                        running.is_paid = true;
                        match &running.step {
                            Step::Backend(After::Copy(copy)) => copy.bytes,
                            _ => 0,
                        }
                    }
                    None => 0,
                };
                if copied_bytes > 0 {
                    // It reads and writes them.
                    let work = Work { is_write: true, operations: 0, bytes: copied_bytes.saturating_mul(2) };
                    self.commands.debit(caller.view, sqe.nsid(), work);
                }
            }
            _ if matches!(share, Share::Party(_)) && !matches!(begun, Begun::RequestData(_)) => {
                self.commands.running.flows.on_begun(share);
                self.commands.running.flows.on_ended(share);
                if let Begun::Value(_, length, _) = &begun {
                    self.commands.debit_value(caller.view, sqe.nsid(), *length);
                }
            }
            Begun::Value(_, length, _) => self.commands.debit_value(caller.view, sqe.nsid(), *length),
            Begun::Complete(..) | Begun::Data(..) | Begun::RequestData(_) => {}
        }
        begun
    }
}

impl Commands {
    /// Goes over to the rate limits of another table of namespaces.
    pub(crate) fn replace_meters(&mut self) {
        let Attachments { meters, guarantees, has_guarantees, .. } = &self.namespaces;
        let window = has_guarantees.then(|| (&guarantees[..], self.namespaces.pressure()));
        self.running.reset_flows(guarantees.len());
        self.throttle.replace(meters, window);
    }

    /// Whether a command waits for a rate limit.
    pub(crate) fn is_throttled(&mut self, ticket: Ticket) -> bool {
        let running = self.running.get_mut(ticket);
        running.is_some_and(|running| matches!(running.step, Step::Throttled { .. }))
    }

    /// Takes what a command has used that was not known when it began.
    pub(crate) fn debit(&mut self, view: ViewIndex, nsid: Nsid, work: Work) {
        if let Found::Limited(number) = self.namespaces.find(view, nsid)
            && let Some(limited) = self.namespaces.limited(number)
        {
            self.throttle.debit(limited.stages, work);
        }
    }

    /// A host gets this number of bytes of a value.
    #[cold]
    pub(crate) fn debit_value(&mut self, view: ViewIndex, nsid: Nsid, length: u32) {
        self.debit(view, nsid, Work { is_write: false, operations: 0, bytes: length.into() });
    }

    /// The same for a command that has run since; blocks are known when it begins.
    pub(crate) fn debit_late(&mut self, view: Option<ViewIndex>, sqe: &Sqe, payload: &(Payload, u32)) {
        if let Some(view) = view
            && self.namespaces.find_unlimited(view, sqe.nsid()).is_keys()
        {
            self.debit_value(view, sqe.nsid(), payload.1);
        }
    }

    /// A command that waits for a rate limit has ended.
    pub(crate) fn forget_throttled(&mut self, ticket: Ticket) {
        let Some(running) = self.running.remove(ticket) else { return };
        if let (Step::Throttled { data, is_write, .. }, Some(lane)) = (&running.step, running.owner.lane()) {
            self.throttle.forget((lane, running.sqe.nsid(), *is_write), ticket, data.len());
        }
    }

    /// A command goes on that has waited for a rate limit: its caller, the command, the data of its capsule, and since
    /// when it has waited, ns. `None` if it has ended.
    pub(crate) fn take_throttled(&mut self, ticket: Ticket) -> Option<(Owner, Sqe, Box<[u8]>, u64)> {
        let running = self.running.get_mut(ticket)?;
        match std::mem::replace(&mut running.step, Step::Between) {
            Step::Throttled { data, since_ns, .. } => {
                self.throttle.on_left(data.len());
                Some((running.owner, running.sqe, data, since_ns))
            }
            other => {
                running.step = other;
                None
            }
        }
    }
}

/// What a command takes of the rates, at most the longest that is served; `None` if it never waits.
fn work_of(namespaces: &mut Attachments, found: Found, sqe: &Sqe, transfer_bytes_max: u32) -> Option<Work> {
    let mut bytes_max = u64::from(transfer_bytes_max);
    let blocks = |namespaces: &mut Attachments, at: AttachedIndex, is_write| {
        let shift = namespaces.blocks_mut(at).block_shift;
        let bytes = u64::from(BlockCommand::from_sqe(sqe).blocks).checked_shl(shift).unwrap_or(u64::MAX);
        Work { is_write, operations: 1, bytes }
    };
    let work = match found {
        Found::Blocks(at) | Found::BlocksToRead(at) => match NvmOpcode::from_raw(sqe.opcode) {
            NvmOpcode::READ | NvmOpcode::COMPARE | NvmOpcode::VERIFY => Some(blocks(namespaces, at, false)),
            NvmOpcode::GET_LBA_STATUS => Some(Work { is_write: false, operations: 1, bytes: 0 }),
            NvmOpcode::WRITE => Some(blocks(namespaces, at, true)),
            NvmOpcode::WRITE_ZEROES | NvmOpcode::DATASET_MANAGEMENT | NvmOpcode::COPY => {
                Some(Work { is_write: true, operations: 1, bytes: 0 })
            }
            _ => None,
        },
        Found::Keys(at) | Found::KeysToRead(at) => {
            let opcode = KvOpcode::from_raw(sqe.opcode);
            let brings_data =
                matches!(sqe.data_direction(), DataDirection::HostToController | DataDirection::Both);
            let bytes = if brings_data { sqe.dptr.length.get().into() } else { 0 };
            match opcode {
                // What waits for a Submit, or follows it, is counted with it.
                KvOpcode::BATCH_COLLECT | KvOpcode::STORE_DATA | KvOpcode::STORE_FLAGS => None,
                KvOpcode::STORE_SUBMIT => {
                    let bytes = StoreSubmit::from_sqe(sqe).value_bytes.into();
                    let partition = namespaces.keys_mut(at).partition_unread();
                    bytes_max = partition.processor.settings().value_bytes_max as u64;
                    Some(Work { is_write: true, operations: 1, bytes })
                }
                KvOpcode::BATCH_SUBMIT => {
                    let operations = u64::from(BatchSubmit::from_sqe(sqe).count).max(1);
                    Some(Work { is_write: true, operations, bytes })
                }
                _ if KEY_VALUE_WRITING.contains(&opcode) => {
                    Some(Work { is_write: true, operations: 1, bytes })
                }
                _ if KEY_VALUE_READING.contains(&opcode) => {
                    Some(Work { is_write: false, operations: 1, bytes })
                }
                _ => None,
            }
        }
        Found::Limited(_) | Found::Unusable | Found::Missing => None,
    };
    work.map(|work| Work { bytes: work.bytes.min(bytes_max), ..work })
}

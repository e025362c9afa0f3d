//! Commands on admin queues, and the few on I/O queues that the control plane handles.

use wire::fabrics::Disconnect;
use wire::id::Qid;
use wire::opcode::{AdminOpcode, FabricsType};
use wire::sqe::Sqe;
use wire::status::Status;

use super::{Control, LaneUse};
use crate::admin::abort::Aborting;
use crate::admin::{
    self, Outcome, Reply, Surroundings, abort, async_event_request, get_features, get_log_page, identify,
    keep_alive, set_features,
};
use crate::controller::{ControllerKey, ControllerKind, EventRequest};
use crate::lane_counters::LaneTotals;
use crate::lane_id::CommandId;
use crate::message::{Failure, LaneMessage, Message};

impl Control {
    /// Handles a command on the admin queue of a controller.
    pub(super) fn on_admin_command(
        &mut self,
        now_ns: u64,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
        data: &[u8],
    ) {
        let outcome = if sqe.opcode == AdminOpcode::FABRICS.raw() {
            match sqe.fctype() {
                FabricsType::PROPERTY_GET => Some(self.on_property_get(key, sqe)),
                FabricsType::PROPERTY_SET => self.on_property_set(now_ns, key, command, sqe),
                FabricsType::CONNECT => Some(Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr())),
                FabricsType::DISCONNECT => Some(Err(Status::DISCONNECT_INVALID_QUEUE_TYPE.with_dnr())),
                fctype => Some(Err(refused(fctype))),
            }
        } else {
            self.on_ready_command(now_ns, key, command, sqe, data)
        };
        if let Some(Err(status)) = outcome {
            self.note_failure(key, Qid::ADMIN, sqe, status);
        }
        if let Some(outcome) = outcome {
            self.answer(command, outcome);
        }
        self.tell_events(key);
    }

    /// Handles a command that only an enabled controller accepts: `None` if it is answered later.
    fn on_ready_command(
        &mut self,
        now_ns: u64,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
        data: &[u8],
    ) -> Option<Outcome> {
        let is_list = sqe.opcode == AdminOpcode::IDENTIFY.raw() && identify::lists_controllers(sqe);
        let cntlids = if is_list { self.live_cntlids(key.kind) } else { Vec::new() };
        let is_health = sqe.opcode == AdminOpcode::GET_LOG_PAGE.raw() && get_log_page::tells_traffic(sqe);
        let traffic = if is_health { self.traffic(key.kind, sqe.nsid()) } else { LaneTotals::default() };
        let Some(record) = self.controllers.get_mut(&key).filter(|record| record.is_ready()) else {
            return Some(Err(Status::COMMAND_SEQUENCE_ERROR));
        };
        let around = Surroundings {
            limits: &self.limits,
            subsystem: match key.kind {
                ControllerKind::Io(subsystem) => self.subsystems.get(&subsystem),
                ControllerKind::Discovery => None,
            },
            subsystems: &self.subsystems,
            discovery: &self.discovery,
            cntlids: &cntlids,
            traffic,
            version_in_use: self.rollouts.version_in_use(),
            now_ns,
            boot_ns: self.boot_ns,
        };
        Some(match AdminOpcode::from_raw(sqe.opcode) {
            AdminOpcode::IDENTIFY => identify::execute(record, &around, sqe),
            AdminOpcode::GET_LOG_PAGE => get_log_page::execute(record, &around, sqe),
            AdminOpcode::GET_FEATURES => get_features::execute(record, &around, sqe),
            AdminOpcode::SET_FEATURES => {
                let outcome = set_features::execute(record, &around, sqe, data);
                self.wake_for(key);
                outcome
            }
            AdminOpcode::KEEP_ALIVE => keep_alive::execute(record, now_ns),
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                let request = EventRequest { command, cid: sqe.cid.get() };
                match async_event_request::execute(record, request) {
                    Ok(()) => return None,
                    Err(status) => Err(status),
                }
            }
            AdminOpcode::ABORT => return self.on_abort(key, command, sqe),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        })
    }

    fn on_abort(&mut self, key: ControllerKey, command: CommandId, sqe: &Sqe) -> Option<Outcome> {
        let Some(record) = self.controllers.get_mut(&key) else { return Some(Err(Status::INTERNAL_ERROR)) };
        match abort::execute(record, &self.limits, command, sqe) {
            Err(status) => Some(Err(status)),
            Ok(Aborting::NotAborted) => Some(Ok(abort::reply(false))),
            Ok(Aborting::Aborted(aborted)) => {
                self.answer(aborted, Err(Status::ABORT_REQUESTED));
                Some(Ok(abort::reply(true)))
            }
            Ok(Aborting::Ask { lane, cid }) => {
                self.post(lane.reactor, Message::Lane(LaneMessage::Abort { lane, cid, asked_by: command }));
                None
            }
        }
    }

    /// A host has reused the command id of an Asynchronous Event Request.
    pub(super) fn on_superseded(&mut self, request: CommandId) {
        let Some(LaneUse { controller: key, .. }) = self.lanes.get(&request.lane).copied() else { return };
        let Some(record) = self.controllers.get_mut(&key) else { return };
        if record.take_back_event_request(request) {
            self.answer(request, Err(Status::ABORT_REQUESTED));
        }
        self.tell_events(key);
    }

    /// Handles a Fabrics command on an I/O queue.
    pub(super) fn on_io_fabrics_command(&mut self, key: ControllerKey, command: CommandId, sqe: &Sqe) {
        let is_fabrics = sqe.opcode == AdminOpcode::FABRICS.raw();
        let outcome = match sqe.fctype() {
            FabricsType::CONNECT if is_fabrics => Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr()),
            FabricsType::DISCONNECT if is_fabrics => {
                if Disconnect::from_sqe(sqe).recfmt == 0 {
                    // Not advertised (OFCS 0), but executed: the answer, then the end of the connection. wire §6.5
                    self.answer(command, Ok(Reply::default()));
                    return self.post(command.lane.reactor, Message::Lane(LaneMessage::End(command.lane)));
                }
                Err(Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr())
            }
            fctype if is_fabrics => Err(refused(fctype)),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        };
        if let (Err(status), Some(lane)) = (&outcome, self.lanes.get(&command.lane)) {
            self.note_failure(key, lane.qid, sqe, *status);
        }
        self.answer(command, outcome);
    }

    /// Completes the event requests of a controller that has pending events.
    pub(super) fn tell_events(&mut self, key: ControllerKey) {
        let Some(record) = self.controllers.get_mut(&key) else { return };
        let told: Vec<_> = std::iter::from_fn(|| record.events.next_completion()).collect();
        for (request, event) in told {
            self.answer(request.command, admin::reply_dw0(event.bits()));
        }
    }

    /// A feature has changed: the association may expire at another time.
    fn wake_for(&mut self, key: ControllerKey) {
        let record = self.controllers.get(&key);
        if let Some(deadline_ns) = record.and_then(|record| self.association_deadline_ns(record)) {
            self.wake_about(deadline_ns);
        }
    }

    fn note_failure(&mut self, key: ControllerKey, qid: Qid, sqe: &Sqe, status: Status) {
        let Some(record) = self.controllers.get_mut(&key) else { return };
        // The nsid of a Fabrics command is its type.
        let nsid = if sqe.opcode == AdminOpcode::FABRICS.raw() { 0 } else { sqe.nsid.get() };
        record.errors.record(&Failure { qid, cid: sqe.cid.get(), status, nsid, lba: 0 });
    }
}

/// The status for a Fabrics command that is not supported.
fn refused(fctype: FabricsType) -> Status {
    match fctype {
        // No host is asked to authenticate, and there is no key to do it with.
        FabricsType::AUTHENTICATION_SEND | FabricsType::AUTHENTICATION_RECEIVE => {
            Status::INVALID_FIELD.with_dnr()
        }
        // These are valid on the admin queue only.
        FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET => Status::INVALID_FIELD.with_dnr(),
        _ => Status::INVALID_OPCODE.with_dnr(),
    }
}

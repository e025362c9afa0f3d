//! Commands on admin queues, and the few on I/O queues that the control plane handles.

use wire::fabrics::{Disconnect, PropertyGet};
use wire::id::{Cntlid, Qid};
use wire::opcode::{AdminOpcode, FabricsType};
use wire::sqe::Sqe;
use wire::status::Status;

use super::associations::Associations;
use super::outputs::Outputs;
use crate::control_plane::admin::{
    AdminOutcome, Reply, Surroundings, get_features, get_log_page, identify, set_features,
};
use crate::names::lane_counters::LaneTotals;
use crate::names::lane_id::CommandId;
use crate::names::limits::Limits;
use crate::objects::access::Right;
use crate::objects::catalog::Catalog;
use crate::objects::controller::error_log::Failure;
use crate::objects::controller::{ControllerKey, ControllerKind, EventRequest};

/// Executes the commands of connected queues that reach the control plane.
pub(super) struct QueueCommands<'a> {
    pub(super) limits: &'a Limits,
    pub(super) catalog: &'a Catalog,
    pub(super) associations: &'a mut Associations,
    pub(super) outputs: &'a mut Outputs,
    /// The version of the namespace table that every reactor serves.
    pub(super) version_in_use: u64,
    pub(super) now_ns: u64,
    /// When the target started.
    pub(super) boot_ns: u64,
}

impl QueueCommands<'_> {
    /// Handles a command on the admin queue of a controller.
    pub(super) fn on_admin_command(
        &mut self,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
        data: &[u8],
    ) {
        let outcome = if sqe.opcode == AdminOpcode::FABRICS.raw() {
            match sqe.fctype() {
                FabricsType::PROPERTY_GET => Some(self.on_property_get(key, sqe)),
                FabricsType::PROPERTY_SET => {
                    self.associations.on_property_set(self.now_ns, key, command, sqe, self.outputs)
                }
                FabricsType::CONNECT => Some(Err(Status::COMMAND_SEQUENCE_ERROR.with_dnr())),
                FabricsType::DISCONNECT => Some(Err(Status::DISCONNECT_INVALID_QUEUE_TYPE.with_dnr())),
                fctype => Some(Err(refused(fctype))),
            }
        } else {
            self.on_ready_command(key, command, sqe, data)
        };
        if let Some(outcome) = outcome {
            self.complete(key, Qid::ADMIN, command, sqe, outcome);
        }
        self.associations.tell_events(key, self.outputs);
    }

    /// Handles a Fabrics command on an I/O queue.
    pub(super) fn on_io_command(&mut self, key: ControllerKey, qid: Qid, command: CommandId, sqe: &Sqe) {
        let is_fabrics = sqe.opcode == AdminOpcode::FABRICS.raw();
        let status = match sqe.fctype() {
            FabricsType::CONNECT if is_fabrics => Status::COMMAND_SEQUENCE_ERROR.with_dnr(),
            FabricsType::DISCONNECT if is_fabrics => {
                if Disconnect::from_sqe(sqe).recfmt == 0 {
                    // Not advertised (OFCS 0), but executed: the answer, then the end of the connection. wire §6.5
                    self.outputs.answer(command, Ok(Reply::default()));
                    return self.outputs.end_lane(command.lane);
                }
                Status::CONNECT_INCOMPATIBLE_FORMAT.with_dnr()
            }
            fctype if is_fabrics => refused(fctype),
            _ => Status::INVALID_OPCODE.with_dnr(),
        };
        self.complete(key, qid, command, sqe, Err(status));
    }

    /// Completes a command; the error log of its controller keeps a failure.
    fn complete(
        &mut self,
        key: ControllerKey,
        qid: Qid,
        command: CommandId,
        sqe: &Sqe,
        outcome: AdminOutcome,
    ) {
        if let (Err(status), Some(record)) = (&outcome, self.associations.get_mut(key)) {
            // The nsid of a Fabrics command is its type.
            let nsid = if sqe.opcode == AdminOpcode::FABRICS.raw() { 0 } else { sqe.nsid.get() };
            record.errors.record(&Failure { qid, cid: sqe.cid.get(), status: *status, nsid, lba: 0 });
        }
        self.outputs.answer(command, outcome);
    }

    fn on_property_get(&self, key: ControllerKey, sqe: &Sqe) -> AdminOutcome {
        let record = self.associations.get(key).ok_or(Status::INTERNAL_ERROR)?;
        let result = record.machine.on_property_get(PropertyGet::from_sqe(sqe))?;
        Ok(Reply { result, data: None })
    }

    /// Handles a command that only an enabled controller accepts: `None` if it is answered later.
    fn on_ready_command(
        &mut self,
        key: ControllerKey,
        command: CommandId,
        sqe: &Sqe,
        data: &[u8],
    ) -> Option<AdminOutcome> {
        let opcode = AdminOpcode::from_raw(sqe.opcode);
        let is_list = opcode == AdminOpcode::IDENTIFY && identify::lists_controllers(sqe);
        let cntlids = if is_list { self.cntlids(key.kind, sqe) } else { Vec::new() };
        let is_health = opcode == AdminOpcode::GET_LOG_PAGE && get_log_page::tells_traffic(sqe);
        let traffic = if is_health { self.traffic(key.kind, sqe) } else { LaneTotals::default() };
        let Some(record) = self.associations.get_mut(key).filter(|record| record.is_ready()) else {
            return Some(Err(Status::COMMAND_SEQUENCE_ERROR));
        };
        let host = record.host.clone();
        let around = Surroundings {
            limits: self.limits,
            subsystem: self.catalog.subsystem_of(key.kind),
            host: &host,
            catalog: self.catalog,
            cntlids: &cntlids,
            traffic,
            version_in_use: self.version_in_use,
            now_ns: self.now_ns,
            boot_ns: self.boot_ns,
        };
        Some(match opcode {
            AdminOpcode::IDENTIFY => identify::execute(record, &around, sqe),
            AdminOpcode::GET_LOG_PAGE => get_log_page::execute(record, &around, sqe),
            AdminOpcode::GET_FEATURES => get_features::execute(record, &around, sqe),
            AdminOpcode::SET_FEATURES => {
                let outcome = set_features::execute(record, &around, sqe, data);
                self.associations.wake_for(key, self.outputs);
                outcome
            }
            // Like any command it shows that the host is alive. wire §9
            AdminOpcode::KEEP_ALIVE => {
                record.keep_alive.on_sign(self.now_ns);
                Ok(Reply::default())
            }
            // It is answered when an event occurs. wire §13
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                let request = EventRequest { command, cid: sqe.cid.get() };
                return record.events.on_request(request).err().map(Err);
            }
            AdminOpcode::ABORT => return self.associations.on_abort(key, command, sqe, self.outputs),
            _ => Err(Status::INVALID_OPCODE.with_dnr()),
        })
    }

    /// Ids of the controllers of the subsystem; of those that a namespace is attached to, if the Identify names one.
    fn cntlids(&self, kind: ControllerKind, sqe: &Sqe) -> Vec<Cntlid> {
        let subsystem = self.catalog.subsystem_of(kind);
        let namespace = subsystem.and_then(|subsystem| subsystem.namespaces.get(&sqe.nsid()));
        self.associations.live_cntlids(kind, |host| {
            namespace.is_none_or(|namespace| namespace.rights.of(host, self.version_in_use) != Right::None)
        })
    }

    /// Traffic of the subsystem; for one namespace, since it was added.
    fn traffic(&self, kind: ControllerKind, sqe: &Sqe) -> LaneTotals {
        let ControllerKind::Io(subsystem) = kind else { return LaneTotals::default() };
        if !sqe.nsid().is_one_namespace() {
            return self.associations.traffic(subsystem);
        }
        let known = self.catalog.subsystems.get(&subsystem);
        let namespace = known.and_then(|subsystem| subsystem.namespaces.get(&sqe.nsid()));
        namespace.map_or_else(LaneTotals::default, |namespace| namespace.traffic.totals())
    }
}

/// The status for a Fabrics command that is not supported.
fn refused(fctype: FabricsType) -> Status {
    match fctype {
        // Properties are those of the admin queue.
        FabricsType::PROPERTY_GET | FabricsType::PROPERTY_SET => Status::INVALID_FIELD.with_dnr(),
        _ => Status::INVALID_OPCODE.with_dnr(),
    }
}

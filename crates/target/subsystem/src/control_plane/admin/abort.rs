//! Abort: of Asynchronous Event Requests that wait here, and of I/O commands on their lanes. wire §18

use wire::admin::{AbortCommand, AbortResult};
use wire::sqe::Sqe;
use wire::status::Status;

use super::Reply;
use crate::names::lane_id::{CommandId, LaneId};
use crate::names::limits::Limits;
use crate::objects::controller::{ControllerRecord, PendingAbort};

/// The outcome of an Abort.
#[derive(Debug)]
pub(crate) enum Aborting {
    /// No command to abort: it does not exist, or is past being aborted.
    NotAborted,
    /// This Asynchronous Event Request is aborted.
    Aborted(CommandId),
    /// The command's lane must abort it.
    Ask {
        /// The lane.
        lane: LaneId,
        /// The command.
        cid: u16,
    },
}

/// Begins an Abort.
pub(crate) fn execute(
    record: &mut ControllerRecord,
    limits: &Limits,
    asked_by: CommandId,
    sqe: &Sqe,
) -> Result<Aborting, Status> {
    let command = AbortCommand::from_sqe(sqe);
    if record.aborts.len() >= limits.abort_count_max.into() {
        return Err(Status::ABORT_LIMIT_EXCEEDED);
    }
    if command.sqid.is_admin() {
        let aborted = record.abort_event_request(command.cid);
        return Ok(aborted.map_or(Aborting::NotAborted, Aborting::Aborted));
    }
    let Some(&lane) = record.io.get(&command.sqid) else { return Ok(Aborting::NotAborted) };
    record.aborts.push(PendingAbort { asked_by, lane });
    Ok(Aborting::Ask { lane, cid: command.cid })
}

/// The completion of an Abort.
pub(crate) fn reply(is_aborted: bool) -> Reply {
    let result = AbortResult::default().with_not_aborted(!is_aborted);
    Reply { result: result.bits().into(), data: None }
}

//! One case of a row: a fault, its trigger, and the result required of the host. Helpers build the common ones.

use peer::fake_target::Fault;
use peer::link::Term;
use peer::session::{Event, Session, Then};
use peer::stage::BLOCK_BYTES;
use wire::identify::{Cns, IdentifyCommand};
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, NvmOpcode};
use wire::pdu::Digests;
use wire::sgl::DataPointer;
use wire::sqe::Sqe;

use crate::host::drive::Task;

/// One variant of a row.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) fault: Fault,
    pub(crate) is_once: bool,
    pub(crate) right: Right,
    pub(crate) task: Task,
}

/// The result required of the host, in addition to its immediate reaction.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// It must not succeed.
    Fails,
    /// It must succeed.
    Survives,
    /// Either: it must end, and all data that it reads must be the data written.
    Ends,
}

pub(crate) fn case(name: impl Into<String>, right: Right, fault: Fault) -> Case {
    Case { name: name.into(), fault, is_once: true, right, task: Task::Io(Digests::empty()) }
}

impl Case {
    pub(crate) fn every_time(self) -> Self {
        Self { is_once: false, ..self }
    }

    pub(crate) fn with_digests(self) -> Self {
        Self { task: Task::Io(Digests::all()), ..self }
    }

    pub(crate) fn discovering(self) -> Self {
        Self { task: Task::Discover, ..self }
    }
}

/// The command, if the event is one with this opcode on an I/O queue.
pub(crate) fn io_command<'a>(session: &Session<'_>, event: &'a Event, opcode: NvmOpcode) -> Option<&'a Sqe> {
    match event {
        Event::Command { sqe, .. }
            if session.qid.is_some_and(|qid| qid > 0) && sqe.opcode == opcode.raw() =>
        {
            Some(sqe)
        }
        _ => None,
    }
}

/// The command, if the event is a Write that needs an R2T.
pub(crate) fn asked_write<'a>(session: &Session<'_>, event: &'a Event) -> Option<&'a Sqe> {
    let sqe = io_command(session, event, NvmOpcode::WRITE)?;
    matches!(sqe.dptr.classify(), DataPointer::Transport { .. }).then_some(sqe)
}

/// Injects `act` at the first Read; the host must answer with one of these TermReqs.
pub(crate) fn to_read(
    name: &str,
    rights: &'static [Term],
    act: impl Fn(&mut Session<'_>, &Sqe) + Send + Sync + 'static,
) -> Case {
    case(
        name,
        Right::Ends,
        Box::new(move |session, event| {
            let Some(sqe) = io_command(session, event, NvmOpcode::READ).copied() else {
                return Ok(Then::AsUsual);
            };
            session.stage.mark();
            act(session, &sqe);
            session.expect_term_req(rights)
        }),
    )
}

/// Injects `act` at the first Write that needs an R2T; the host must answer with one of these TermReqs.
pub(crate) fn to_write(
    name: &str,
    rights: &'static [Term],
    act: impl Fn(&mut Session<'_>, &Sqe) + Send + Sync + 'static,
) -> Case {
    case(
        name,
        Right::Ends,
        Box::new(move |session, event| {
            let Some(sqe) = asked_write(session, event).copied() else { return Ok(Then::AsUsual) };
            session.stage.mark();
            act(session, &sqe);
            session.expect_term_req(rights)
        }),
    )
}

/// Transfer length of a command, bytes.
pub(crate) fn length_of(sqe: &Sqe) -> u32 {
    BlockCommand::from_sqe(sqe).blocks * BLOCK_BYTES
}

pub(crate) fn is_identify(session: &Session<'_>, sqe: &Sqe, cns: Cns) -> bool {
    session.qid == Some(0)
        && sqe.opcode == AdminOpcode::IDENTIFY.raw()
        && IdentifyCommand::from_sqe(sqe).cns == cns
}

//! One case of a row: a fault, its trigger, and the result required of the host. Helpers build the common ones.

use peer::fake_target::Fault;
use peer::finding::Check;
use peer::link::Term;
use peer::session::{Event, Session, Then};
use peer::stage::BLOCK_BYTES;
use wire::identify::{Cns, IdentifyCommand};
use wire::log::GetLogPage;
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, NvmOpcode};
use wire::pdu::Digests;
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;

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
            if session.controller.qid.is_some_and(|qid| qid > 0) && sqe.opcode == opcode.raw() =>
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

/// Injects `act` at commands that `select` returns.
fn at(
    name: impl Into<String>,
    right: Right,
    select: impl Fn(&Session<'_>, &Event) -> Option<Sqe> + Send + Sync + 'static,
    act: impl Fn(&mut Session<'_>, &Sqe) -> Check<Then> + Send + Sync + 'static,
) -> Case {
    case(
        name,
        right,
        Box::new(move |session, event| match select(session, event) {
            Some(sqe) => act(session, &sqe),
            None => Ok(Then::AsUsual),
        }),
    )
}

/// Injects `act` at the first command with this opcode on an I/O queue.
pub(crate) fn at_io(
    name: impl Into<String>,
    right: Right,
    opcode: NvmOpcode,
    act: impl Fn(&mut Session<'_>, &Sqe) -> Check<Then> + Send + Sync + 'static,
) -> Case {
    at(name, right, move |session, event| io_command(session, event, opcode).copied(), act)
}

/// [`at_io`]; the host must answer with one of these TermReqs.
pub(crate) fn to_io(
    name: &str,
    opcode: NvmOpcode,
    rights: &'static [Term],
    act: impl Fn(&mut Session<'_>, &Sqe) + Send + Sync + 'static,
) -> Case {
    at_io(name, Right::Ends, opcode, term_req_after(rights, act))
}

/// Injects `act` at the first Read; the host must answer with one of these TermReqs.
pub(crate) fn to_read(
    name: &str,
    rights: &'static [Term],
    act: impl Fn(&mut Session<'_>, &Sqe) + Send + Sync + 'static,
) -> Case {
    to_io(name, NvmOpcode::READ, rights, act)
}

/// Injects `act` at the first Write that needs an R2T; the host must answer with one of these TermReqs.
pub(crate) fn to_write(
    name: &str,
    rights: &'static [Term],
    act: impl Fn(&mut Session<'_>, &Sqe) + Send + Sync + 'static,
) -> Case {
    let select = |session: &Session<'_>, event: &Event| asked_write(session, event).copied();
    at(name, Right::Ends, select, term_req_after(rights, act))
}

fn term_req_after(
    rights: &'static [Term],
    act: impl Fn(&mut Session<'_>, &Sqe),
) -> impl Fn(&mut Session<'_>, &Sqe) -> Check<Then> {
    move |session, sqe| {
        session.stage.mark();
        act(session, sqe);
        session.expect_term_req(rights)
    }
}

/// Answers every Identify of this kind with the page that `make` returns.
pub(crate) fn with_page(
    name: impl Into<String>,
    right: Right,
    cns: Cns,
    make: impl Fn(&Session<'_>) -> Vec<u8> + Send + Sync + 'static,
) -> Case {
    let select = move |session: &Session<'_>, event: &Event| match event {
        Event::Command { sqe, .. } if is_identify(session, sqe, cns) => Some(*sqe),
        _ => None,
    };
    at(name, right, select, move |session, sqe| answer(session, sqe, &make(session))).every_time()
}

/// Sends the data of a command and its success.
pub(crate) fn answer(session: &mut Session<'_>, sqe: &Sqe, data: &[u8]) -> Check<Then> {
    session.send_data(sqe, data);
    session.complete(sqe, Status::SUCCESS, 0);
    Ok(Then::GoOn)
}

/// Sends the requested part of a log page and success.
pub(crate) fn answer_log(session: &mut Session<'_>, sqe: &Sqe, log: &[u8]) -> Check<Then> {
    let page = GetLogPage::from_sqe(sqe);
    let start = usize::try_from(page.offset).unwrap_or(usize::MAX).min(log.len());
    let mut part = log[start..].to_vec();
    part.resize(usize::try_from(page.length_bytes).unwrap_or(usize::MAX).min(4 << 20), 0);
    answer(session, sqe, &part)
}

/// Transfer length of a command, bytes.
pub(crate) fn length_of(sqe: &Sqe) -> u32 {
    BlockCommand::from_sqe(sqe).blocks * BLOCK_BYTES
}

pub(crate) fn is_identify(session: &Session<'_>, sqe: &Sqe, cns: Cns) -> bool {
    session.controller.qid == Some(0)
        && sqe.opcode == AdminOpcode::IDENTIFY.raw()
        && IdentifyCommand::from_sqe(sqe).cns == cns
}

//! Section 14: what a false target does to hosts, and what they must make of it.

mod ana;
mod authentication;

use peer::finding::{Check, differs, holds};
use peer::link::{Term, term, term_at};
use peer::pdu::Draft;
use wire::cqe::Cqe;
use wire::discovery::{DiscoveryEntry, DiscoveryHeader};
use wire::fabrics::{ConnectCommand, ConnectResult};
use wire::identify::namespace::{Flbas, IdentifyNamespace};
use wire::identify::{Cns, IdentifyCommand};
use wire::log::{GetLogPage, Lid};
use wire::nvm::BlockCommand;
use wire::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use wire::pdu::{DataAlignment, Digests, FatalErrorStatus, IcResp, PduFlags, TermReq};
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::host::drive::Task;
use crate::host::false_target::Misdeed;
use crate::host::session::{BLOCK_BYTES, Event, IN_CAPSULE_BYTES, Session, Then, discovery_log, namespace};

/// A row for hosts.
pub struct HostRow {
    /// Its name in the list.
    pub id: &'static str,
    /// What the target does.
    pub sent: &'static str,
    /// What is right of the host.
    pub right: &'static str,
    /// Why that is a judgement of ours, if nothing but sense demands it.
    pub judgement: Option<&'static str>,
    pub(crate) cases: fn() -> Check<Vec<Case>>,
}

impl std::fmt::Debug for HostRow {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "HostRow({})", self.id)
    }
}

/// One way to do what a row says.
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) misdeed: Misdeed,
    pub(crate) is_once: bool,
    pub(crate) right: Right,
    pub(crate) task: Task,
}

/// What the host must come to, beside what it must answer at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Right {
    /// It must not succeed.
    Fails,
    /// It must succeed.
    Bears,
    /// Either: it must end, and whatever it has read must be what was written.
    Ends,
}

const fn row(
    id: &'static str,
    sent: &'static str,
    right: &'static str,
    cases: fn() -> Check<Vec<Case>>,
) -> HostRow {
    HostRow { id, sent, right, judgement: None, cases }
}

/// The rows.
pub const ROWS: &[HostRow] = &[
    row("H1", "an ICResp that is wrong, partial, or none", "the connect fails", ic_resp),
    row("H2", "C2HData with HLEN 255 and header digest", "TermReq 01 at 2", header_length),
    row("H3", "C2HData for no command, a write, a flush", "TermReq 01 at 8", data_for_others),
    row(
        "H4",
        "C2HData out of place, of no length, too much",
        "TermReq 04, or 01 at the length",
        data_out_of_place,
    ),
    row("H5", "SUCCESS without LAST, success after a short read", "never success", short_reads),
    row("H6", "completions for no command, twice, too early", "TermReq 02", completions),
    row("H7", "an R2T of length 0", "TermReq 01 at 16", empty_r2t),
    row("H8", "an R2T for a read", "TermReq 02, and no data", r2t_for_read),
    row("H9", "R2Ts beyond the command, with gaps, that wrap", "TermReq 04", r2t_out_of_place),
    row("H10", "an R2T again, more than MAXR2T", "TermReq 05", r2t_again),
    row("H11", "TermReqs, right and wrong", "closed without a TermReq; comes back", term_reqs),
    row("H12", "a data digest that is wrong", "the read fails or is repeated, never success", data_digest),
    row("H13", "no answer; an answer after the host has given up", "no buffer used twice", no_answer),
    row("H14", "an Identify with values that cannot be", "refused or clamped", identify),
    row(
        "H15",
        "ANA logs that contradict themselves, and events without end",
        "refused, or not asked for",
        ana::cases,
    ),
    row("H16", "discovery logs that are huge, odd, or never the same", "limited", discovery),
    row("H17", "terminal escapes in names", "escaped when they are shown", escapes),
    row("H18", "the end of the connection at every PDU", "comes back, one result for each command", ends),
    row(
        "H19",
        "a target that wants authentication, and is wrong at its own",
        "the connect fails",
        authentication::cases,
    ),
    row("H20", "a CNTLID that changes from queue to queue", "the connect fails", cntlids),
    row("H21", "a flood of events", "bounded work", events),
    row("H22", "setup that fails at each step", "ends, and can be tried again", failing_setup),
    row("H23", "writes that fit in a capsule", "come in the capsule", in_capsule),
];

fn case(name: impl Into<String>, right: Right, misdeed: Misdeed) -> Case {
    Case { name: name.into(), misdeed, is_once: true, right, task: Task::Io(Digests::empty()) }
}

impl Case {
    fn every_time(self) -> Self {
        Self { is_once: false, ..self }
    }

    fn with_digests(self) -> Self {
        Self { task: Task::Io(Digests::all()), ..self }
    }

    fn discovering(self) -> Self {
        Self { task: Task::Discover, ..self }
    }
}

/// A command on an I/O queue of this opcode.
fn io_command<'a>(session: &Session<'_>, event: &'a Event, opcode: NvmOpcode) -> Option<&'a Sqe> {
    match event {
        Event::Command { sqe, .. }
            if session.qid.is_some_and(|qid| qid > 0) && sqe.opcode == opcode.raw() =>
        {
            Some(sqe)
        }
        _ => None,
    }
}

/// A write that has to be asked for its data.
fn asked_write<'a>(session: &Session<'_>, event: &'a Event) -> Option<&'a Sqe> {
    let sqe = io_command(session, event, NvmOpcode::WRITE)?;
    matches!(sqe.dptr.classify(), DataPointer::Transport { .. }).then_some(sqe)
}

/// Does this to the first read, and then the host must give up so.
fn to_read(
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
            session.expect_term(rights)
        }),
    )
}

/// The same to the first write that must be asked for its data.
fn to_write(
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
            session.expect_term(rights)
        }),
    )
}

/// Bytes that a command moves.
fn length_of(sqe: &Sqe) -> u32 {
    BlockCommand::from_sqe(sqe).blocks * BLOCK_BYTES
}

fn ic_resp() -> Check<Vec<Case>> {
    let wrong = |name: &str, change: fn(&mut Vec<u8>)| {
        case(
            name,
            Right::Fails,
            Box::new(move |session, event| {
                let Event::IcReq(request) = event else { return Ok(Then::AsUsual) };
                let mut bytes = IcResp::new(DataAlignment::NONE, request.dgst, 65_536).as_bytes().to_vec();
                change(&mut bytes);
                session.stage.mark();
                session.send(&bytes);
                // It may give up with a TermReq or without, but it must not go on.
                match session.next()? {
                    Event::Closed | Event::TermReq { .. } => Ok(Then::End),
                    _ => differs("the host goes on after it"),
                }
            }),
        )
        .every_time()
    };
    Ok(vec![
        wrong("another type", |bytes| bytes[0] = 5),
        wrong("HLEN 127", |bytes| bytes[2] = 127),
        wrong("PLEN 127", |bytes| bytes[4] = 127),
        wrong("PLEN 132", |bytes| {
            bytes[4] = 132;
            bytes.extend_from_slice(&[0; 4]);
        }),
        wrong("PFV 1", |bytes| bytes[8] = 1),
        wrong("CPDA 32", |bytes| bytes[10] = 32),
        wrong("digests not asked for", |bytes| bytes[11] ^= 3),
        wrong("MAXH2CDATA 0", |bytes| bytes[12..16].fill(0)),
        wrong("MAXH2CDATA 4092", |bytes| bytes[12..16].copy_from_slice(&4092_u32.to_le_bytes())),
        wrong("MAXH2CDATA 4098", |bytes| bytes[12..16].copy_from_slice(&4098_u32.to_le_bytes())),
        case(
            "a part of it",
            Right::Fails,
            Box::new(|session, event| {
                let Event::IcReq(request) = event else { return Ok(Then::AsUsual) };
                session.send(&IcResp::new(DataAlignment::NONE, request.dgst, 65_536).as_bytes()[..60]);
                Ok(Then::End)
            }),
        )
        .every_time(),
        case(
            "none",
            Right::Fails,
            Box::new(|session, event| {
                let Event::IcReq(_) = event else { return Ok(Then::AsUsual) };
                session.stage.mark();
                match session.next()? {
                    Event::Closed | Event::TermReq { .. } => Ok(Then::End),
                    _ => differs("the host goes on without an ICResp"),
                }
            }),
        )
        .every_time(),
    ])
}

fn header_length() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term_at(1, 2)];
    let act = |session: &mut Session<'_>, sqe: &Sqe| {
        let data = vec![0; length_of(sqe) as usize];
        let form = session.form;
        let bytes = Draft::c2h_data(form, sqe.cid.get(), 0, &data, PduFlags::LAST).with(2, &[255]).seal();
        session.send(&bytes);
    };
    Ok(vec![to_read("with digests", RIGHT, act).with_digests(), to_read("without", RIGHT, act)])
}

fn data_for_others() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term_at(1, 8)];
    let send = |session: &mut Session<'_>, cid: u16, length: u32| {
        let bytes =
            Draft::c2h_data(session.form, cid, 0, &vec![0xBD; length as usize], PduFlags::LAST).seal();
        session.send(&bytes);
    };
    Ok(vec![
        to_read("no command", RIGHT, move |session, sqe| send(session, sqe.cid.get() ^ 0x5A5A, 4096)),
        to_write("a write", RIGHT, move |session, sqe| send(session, sqe.cid.get(), length_of(sqe))),
        case(
            "a flush",
            Right::Ends,
            Box::new(move |session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::FLUSH).copied() else {
                    return Ok(Then::AsUsual);
                };
                session.stage.mark();
                send(session, sqe.cid.get(), 4096);
                session.expect_term(RIGHT)
            }),
        ),
    ])
}

fn data_out_of_place() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(4)];
    const LENGTH: &[Term] = &[term(4), term_at(1, 16), term_at(1, 4)];
    let at = |session: &mut Session<'_>, sqe: &Sqe, offset: u32, length: u32| {
        let data = vec![0xBD; length as usize];
        let bytes = Draft::c2h_data(session.form, sqe.cid.get(), offset, &data, PduFlags::empty()).seal();
        session.send(&bytes);
    };
    let with_length = |session: &mut Session<'_>, sqe: &Sqe, length: u32| {
        let data = vec![0xBD; length_of(sqe) as usize];
        let draft = Draft::c2h_data(session.form, sqe.cid.get(), 0, &data, PduFlags::LAST);
        let bytes = draft.with(16, &length.to_le_bytes()).seal();
        session.send(&bytes);
    };
    Ok(vec![
        to_read("a gap", RIGHT, move |session, sqe| at(session, sqe, 4, 512)),
        to_read("beyond the end", RIGHT, move |session, sqe| at(session, sqe, length_of(sqe), 512)),
        to_read("a wrap", RIGHT, move |session, sqe| at(session, sqe, u32::MAX - 3, 512)),
        to_read("too much", RIGHT, move |session, sqe| at(session, sqe, 0, length_of(sqe) + 4)),
        to_read("the same twice", RIGHT, move |session, sqe| {
            at(session, sqe, 0, 512);
            at(session, sqe, 0, 512);
        }),
        to_read("more than there is in a second one", RIGHT, move |session, sqe| {
            at(session, sqe, 0, length_of(sqe) - 512);
            at(session, sqe, length_of(sqe) - 512, 1024);
        }),
        to_read("DATAL 0", LENGTH, move |session, sqe| with_length(session, sqe, 0)),
        to_read("DATAL above PLEN", LENGTH, move |session, sqe| {
            with_length(session, sqe, length_of(sqe) + 512);
        }),
        to_read("DATAL below PLEN", LENGTH, move |session, sqe| with_length(session, sqe, 512)),
    ])
}

fn short_reads() -> Check<Vec<Case>> {
    const NO_LAST: &[Term] = &[term(2), term_at(1, 1)];
    let part = |session: &mut Session<'_>, sqe: &Sqe, flags: PduFlags, length: u32| {
        let data = vec![0xBD; length as usize];
        session.send(&Draft::c2h_data(session.form, sqe.cid.get(), 0, &data, flags).seal());
    };
    // Whatever it does, it must not take this for what was read: the drive compares.
    let on_read = |name: &str, act: fn(&mut Session<'_>, &Sqe)| {
        case(
            name,
            Right::Ends,
            Box::new(move |session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::READ).copied() else {
                    return Ok(Then::AsUsual);
                };
                act(session, &sqe);
                Ok(Then::GoOn)
            }),
        )
    };
    Ok(vec![
        to_read("SUCCESS without LAST", NO_LAST, move |session, sqe| {
            part(session, sqe, PduFlags::SUCCESS, length_of(sqe));
        }),
        on_read("SUCCESS after too few bytes", |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize - 512];
            let flags = PduFlags::LAST | PduFlags::SUCCESS;
            session.send(&Draft::c2h_data(session.form, sqe.cid.get(), 0, &data, flags).seal());
        }),
        on_read("success after nothing", |session, sqe| session.complete(sqe, Status::SUCCESS, 0)),
        on_read("success after too few bytes", |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize - 512];
            let flags = PduFlags::empty();
            session.send(&Draft::c2h_data(session.form, sqe.cid.get(), 0, &data, flags).seal());
            session.complete(sqe, Status::SUCCESS, 0);
        }),
        on_read("failure after all bytes", |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize];
            session.send_data(sqe, &data);
            session.complete(sqe, Status::INTERNAL_ERROR, 0);
        }),
    ])
}

fn completions() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(2)];
    Ok(vec![
        to_read("no command", RIGHT, |session, sqe| {
            let bytes =
                Draft::completion(session.form, Cqe::new(wire::U16::new(!sqe.cid.get()), 0, Status::SUCCESS));
            session.send(&bytes.seal());
        }),
        to_read("twice", RIGHT, |session, sqe| {
            let data = session.stage.read(0, length_of(sqe) as usize);
            // For the first extent this is right; the others are not reached.
            session.send_data(sqe, &data);
            session.complete(sqe, Status::SUCCESS, 0);
            session.complete(sqe, Status::SUCCESS, 0);
        }),
        to_write("success for a write whose data was never asked for", RIGHT, |session, sqe| {
            session.complete(sqe, Status::SUCCESS, 0);
        }),
    ])
}

fn r2t(session: &mut Session<'_>, sqe: &Sqe, offset: u32, length: u32) {
    session.send(&Draft::r2t(session.form, sqe.cid.get(), 0x1234, offset, length).seal());
}

fn empty_r2t() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term_at(1, 16)];
    Ok(vec![to_write("length 0", RIGHT, |session, sqe| r2t(session, sqe, 0, 0))])
}

fn r2t_for_read() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(2)];
    const UNKNOWN: &[Term] = &[term_at(1, 8), term(2)];
    Ok(vec![
        case(
            "a read",
            Right::Ends,
            Box::new(|session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::READ).copied() else {
                    return Ok(Then::AsUsual);
                };
                session.stage.mark();
                r2t(session, &sqe, 0, length_of(&sqe));
                match session.next()? {
                    Event::Data { .. } => differs("the host sends its memory for a read"),
                    Event::TermReq { fes: 2, .. } => Ok(Then::End),
                    Event::TermReq { fes, .. } => differs(format!("a TermReq {fes:#04x}")),
                    Event::Closed => differs("the host closes without a TermReq"),
                    _ => session.expect_term(RIGHT),
                }
            }),
        ),
        to_read("no command", UNKNOWN, |session, sqe| {
            let bytes = Draft::r2t(session.form, !sqe.cid.get(), 1, 0, 4096).seal();
            session.send(&bytes);
        }),
    ])
}

fn r2t_out_of_place() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(4)];
    Ok(vec![
        to_write("a gap", RIGHT, |session, sqe| r2t(session, sqe, 4096, 4096)),
        to_write("beyond the end", RIGHT, |session, sqe| r2t(session, sqe, length_of(sqe), 4096)),
        to_write("too long", RIGHT, |session, sqe| r2t(session, sqe, 0, length_of(sqe) + 4)),
        to_write("4 GiB", RIGHT, |session, sqe| r2t(session, sqe, 0, u32::MAX - 3)),
        to_write("a wrap", RIGHT, |session, sqe| r2t(session, sqe, u32::MAX - 3, 4096)),
        case(
            "overlapping the one before",
            Right::Ends,
            Box::new(|session, event| {
                let Some(sqe) = asked_write(session, event).copied() else { return Ok(Then::AsUsual) };
                session.stage.mark();
                let half = length_of(&sqe) / 2;
                if session.ask(&sqe, 0, half)?.is_none() {
                    return Ok(Then::End);
                }
                r2t(session, &sqe, half - 512, half);
                session.expect_term(RIGHT)
            }),
        ),
    ])
}

fn r2t_again() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(5), term(4)];
    const LIMIT: &[Term] = &[term(5)];
    Ok(vec![
        to_write("the same twice at once", RIGHT, |session, sqe| {
            let one = Draft::r2t(session.form, sqe.cid.get(), 1, 0, length_of(sqe)).seal();
            session.send(&[&one[..], &one[..]].concat());
        }),
        to_write("two windows at once", LIMIT, |session, sqe| {
            let half = length_of(sqe) / 2;
            let first = Draft::r2t(session.form, sqe.cid.get(), 1, 0, half).seal();
            let second = Draft::r2t(session.form, sqe.cid.get(), 2, half, half).seal();
            session.send(&[&first[..], &second[..]].concat());
        }),
    ])
}

fn term_reqs() -> Check<Vec<Case>> {
    let case_of = |name: &str, bytes: Vec<u8>| {
        case(
            name,
            Right::Bears,
            Box::new(move |session, event| {
                if io_command(session, event, NvmOpcode::READ).is_none() {
                    return Ok(Then::AsUsual);
                }
                session.stage.mark();
                session.send(&bytes);
                session.expect_closed()
            }),
        )
    };
    let term_req = |fes: u16, copy: u8| {
        let header = TermReq::from_controller(FatalErrorStatus::from_raw(fes), 0, copy);
        [header.as_bytes(), &vec![0; copy.into()]].concat()
    };
    let with_plen = |plen: u32| {
        let mut bytes = term_req(2, 128);
        bytes[4..8].copy_from_slice(&plen.to_le_bytes());
        bytes
    };
    Ok(vec![
        case_of("right", term_req(2, 72)),
        case_of("FES 0", term_req(0, 8)),
        case_of("FES FFFFh", term_req(0xFFFF, 8)),
        case_of("PLEN 8", with_plen(8)),
        case_of("PLEN 23", with_plen(23)),
        case_of("PLEN 153", with_plen(153)),
        case_of("a flood", term_req(2, 8).repeat(1000)),
    ])
}

fn data_digest() -> Check<Vec<Case>> {
    Ok(vec![
        case(
            "of a read",
            Right::Ends,
            Box::new(|session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::READ).copied() else {
                    return Ok(Then::AsUsual);
                };
                if !session.form.digests.contains(Digests::DATA) {
                    return Ok(Then::AsUsual);
                }
                let data = vec![0xBD; length_of(&sqe) as usize];
                let mut bytes = Draft::c2h_data(session.form, sqe.cid.get(), 0, &data, PduFlags::LAST).seal();
                *bytes.last_mut().expect("not empty") ^= 1;
                session.send(&bytes);
                session.complete(&sqe, Status::SUCCESS, 0);
                Ok(Then::GoOn)
            }),
        )
        .with_digests(),
    ])
}

fn no_answer() -> Check<Vec<Case>> {
    let silent = |name: &str, opcode: NvmOpcode| {
        case(
            name,
            Right::Bears,
            Box::new(move |session, event| match io_command(session, event, opcode) {
                Some(_) => Ok(Then::GoOn),
                None => Ok(Then::AsUsual),
            }),
        )
    };
    Ok(vec![
        silent("a read without an answer", NvmOpcode::READ),
        silent("a write without an answer", NvmOpcode::WRITE),
        case(
            "data for a read that was aborted",
            Right::Ends,
            Box::new(|session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::READ).copied() else {
                    return Ok(Then::AsUsual);
                };
                session.stage.mark();
                session.complete(&sqe, Status::ABORT_REQUESTED, 0);
                // Its id and its buffer may be in use again, for the same read: whatever it is, this is not its data.
                session.send_data(&sqe, &vec![0xBD; length_of(&sqe) as usize]);
                match session.next()? {
                    Event::Command { .. } => session.expect_term(&[term_at(1, 8)]),
                    Event::TermReq { .. } => Ok(Then::End),
                    _ => differs("the host closes without a TermReq"),
                }
            }),
        ),
    ])
}

fn identify() -> Check<Vec<Case>> {
    let of_controller = |name: &str, change: fn(&mut [u8])| {
        case(
            name,
            Right::Ends,
            Box::new(move |session, event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                if !is_identify(session, sqe, Cns::CONTROLLER) {
                    return Ok(Then::AsUsual);
                }
                let mut page = session.controller().as_bytes().to_vec();
                change(&mut page);
                session.send_data(sqe, &page);
                session.complete(sqe, Status::SUCCESS, 0);
                Ok(Then::GoOn)
            }),
        )
        .every_time()
    };
    let of_namespace = |name: &str, change: fn(&mut IdentifyNamespace)| {
        case(
            name,
            Right::Ends,
            Box::new(move |session, event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                if !is_identify(session, sqe, Cns::NAMESPACE) {
                    return Ok(Then::AsUsual);
                }
                let mut page = namespace();
                change(&mut page);
                session.send_data(sqe, page.as_bytes());
                session.complete(sqe, Status::SUCCESS, 0);
                Ok(Then::GoOn)
            }),
        )
        .every_time()
    };
    let mut cases = vec![
        of_namespace("NSZE 0", |namespace| namespace.nsze.set(0)),
        of_namespace("NSZE of 64 bits", |namespace| namespace.nsze.set(u64::MAX)),
        of_namespace("a format that is not there", |namespace| {
            namespace.flbas = Flbas::default().with_index(5);
        }),
        of_namespace("the last format of all", |namespace| namespace.flbas = Flbas::default().with_index(63)),
        of_controller("MDTS 255", |page| page[77] = 255),
        of_controller("MDTS 31", |page| page[77] = 31),
        of_controller("SQES and CQES 0", |page| page[512..514].fill(0)),
        of_controller("SQES FFh", |page| page[512] = 0xFF),
        of_controller("IOCCSZ 0", |page| page[1792..1796].fill(0)),
        of_controller("IOCCSZ 3", |page| page[1792..1796].copy_from_slice(&3_u32.to_le_bytes())),
        of_controller("IOCCSZ of 32 bits", |page| page[1792..1796].fill(0xFF)),
        of_controller("MAXCMD 0", |page| page[514..516].fill(0)),
        of_controller("NN of 32 bits", |page| page[516..520].fill(0xFF)),
        of_controller("KAS 0", |page| page[320..322].fill(0)),
        of_controller("everything FFh", |page| page.fill(0xFF)),
        of_controller("everything 0", |page| page.fill(0)),
    ];
    for lbads in [0, 1, 8, 31, 32, 63, 255] {
        cases.push(
            case(
                format!("LBADS {lbads}"),
                Right::Ends,
                Box::new(move |session, event| {
                    let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                    if !is_identify(session, sqe, Cns::NAMESPACE) {
                        return Ok(Then::AsUsual);
                    }
                    let mut page = namespace().as_bytes().to_vec();
                    page[130] = lbads;
                    session.send_data(sqe, &page);
                    session.complete(sqe, Status::SUCCESS, 0);
                    Ok(Then::GoOn)
                }),
            )
            .every_time(),
        );
    }
    Ok(cases)
}

fn is_identify(session: &Session<'_>, sqe: &Sqe, cns: Cns) -> bool {
    session.qid == Some(0)
        && sqe.opcode == AdminOpcode::IDENTIFY.raw()
        && IdentifyCommand::from_sqe(sqe).cns == cns
}

/// Answers a read of the discovery log out of this one, made anew for each.
fn with_log(name: &str, make: impl Fn(&Session<'_>, u64) -> Vec<u8> + Send + Sync + 'static) -> Case {
    let count = std::sync::atomic::AtomicU64::new(0);
    case(
        name,
        Right::Ends,
        Box::new(move |session, event| {
            let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
            let page = GetLogPage::from_sqe(sqe);
            let is_log = sqe.opcode == AdminOpcode::GET_LOG_PAGE.raw() && page.lid == Lid::DISCOVERY;
            if session.qid != Some(0) || !is_log {
                return Ok(Then::AsUsual);
            }
            let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
            holds(number < 20_000, "the host reads and reads")?;
            let log = make(session, number);
            let start = usize::try_from(page.offset).unwrap_or(usize::MAX).min(log.len());
            let length = usize::try_from(page.length_bytes).unwrap_or(usize::MAX).min(4 << 20);
            let mut part = log[start..].to_vec();
            part.resize(length, 0);
            session.send_data(sqe, &part);
            session.complete(sqe, Status::SUCCESS, 0);
            Ok(Then::GoOn)
        }),
    )
    .every_time()
    .discovering()
}

fn discovery() -> Check<Vec<Case>> {
    let referral = |session: &Session<'_>| {
        let stage = session.stage;
        let nqn = wire::nqn::Nqn::discovery();
        let mut entry = DiscoveryEntry::tcp(stage.address.ip(), stage.address.port(), &nqn);
        entry.subtype = wire::discovery::SubsystemType::REFERRAL;
        entry
    };
    Ok(vec![
        with_log("NUMREC of 64 bits", |session, _| {
            let mut log = discovery_log(session.stage);
            log[8..16].fill(0xFF);
            log
        }),
        with_log("RECFMT 9", |session, _| {
            let mut log = discovery_log(session.stage);
            log[16] = 9;
            log
        }),
        with_log("another generation each time", |session, number| {
            let mut log = discovery_log(session.stage);
            log[..8].copy_from_slice(&number.to_le_bytes());
            log
        }),
        with_log("texts without an end", |session, _| {
            let mut log = discovery_log(session.stage);
            log[1024 + 32..1024 + 64].fill(b'9');
            log[1024 + 256..1024 + 512].fill(b'n');
            log[1024 + 512..1024 + 768].fill(b'a');
            log
        }),
        with_log("a referral to itself", move |session, _| {
            [DiscoveryHeader::new(1, 1).as_bytes(), referral(session).as_bytes()].concat()
        }),
        with_log("referrals without end", move |session, number| {
            // Each leads to another address of this machine, where the same target answers.
            let stage = session.stage;
            let mut log = DiscoveryHeader::new(1, 64).as_bytes().to_vec();
            for index in 0..64_u64 {
                let mut entry = referral(session);
                let low = u8::try_from((number + index) % 250 + 1).expect("small");
                if stage.address.is_ipv4() {
                    let _ = entry.set_address(&format!("127.0.{}.{low}", (number / 250) % 250));
                }
                log.extend_from_slice(entry.as_bytes());
            }
            log
        }),
    ])
}

fn escapes() -> Check<Vec<Case>> {
    const HOSTILE: &[u8] = b"\x1b[2J\x1b]0;owned\x07\r\n%s";
    // What turns text around, line and paragraph separators, what has no width, C1 controls, bytes that are not UTF-8.
    const HIDDEN: &[u8] = "\u{202e}\u{2028}\u{2029}\u{200b}\u{9b}2J \" cntlid=1\n\u{feff}".as_bytes();
    let names = case(
        "model and serial number",
        Right::Ends,
        Box::new(|session, event| {
            let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
            if !is_identify(session, sqe, Cns::CONTROLLER) {
                return Ok(Then::AsUsual);
            }
            let mut page = session.controller().as_bytes().to_vec();
            page[4..4 + HOSTILE.len()].copy_from_slice(HOSTILE);
            page[24..24 + HIDDEN.len()].copy_from_slice(HIDDEN);
            page[64..72].copy_from_slice(b"\xff\xc3\x28\xe2\x80\xae1\0");
            session.send_data(sqe, &page);
            session.complete(sqe, Status::SUCCESS, 0);
            Ok(Then::GoOn)
        }),
    )
    .every_time();
    let log = with_log("a discovery log", |session, _| {
        let mut log = discovery_log(session.stage);
        log[1024 + 256..1024 + 256 + HOSTILE.len()].copy_from_slice(HOSTILE);
        log[1024 + 512..1024 + 512 + HOSTILE.len()].copy_from_slice(HOSTILE);
        log
    });
    let hidden = with_log("a discovery log that hides text", |session, _| {
        let mut log = discovery_log(session.stage);
        for at in [1024 + 32, 1024 + 256, 1024 + 512] {
            let length = if at == 1024 + 32 { HIDDEN.len().min(32) } else { HIDDEN.len() };
            log[at..at + length].copy_from_slice(&HIDDEN[..length]);
        }
        log
    });
    Ok(vec![names, log, hidden])
}

fn ends() -> Check<Vec<Case>> {
    // After so many PDUs of the host, before the answer to the last of them, and in the middle of a read's data.
    let mut cases: Vec<_> = (1..=24_u64)
        .map(|count| {
            case(
                format!("before the answer to PDU {count}"),
                // Setting up is tried once; what is set up comes back.
                Right::Ends,
                Box::new(move |session: &mut Session<'_>, _: &Event| {
                    Ok(if session.stage.pdu_count() >= count { Then::End } else { Then::AsUsual })
                }) as Misdeed,
            )
        })
        .collect();
    for (name, cut) in [("within C2HData", 100), ("within its header", 10)] {
        cases.push(case(
            name,
            Right::Bears,
            Box::new(move |session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::READ).copied() else {
                    return Ok(Then::AsUsual);
                };
                let data = vec![0xBD; length_of(&sqe) as usize];
                let bytes = Draft::c2h_data(session.form, sqe.cid.get(), 0, &data, PduFlags::LAST).seal();
                session.send(&bytes[..cut]);
                Ok(Then::End)
            }),
        ));
    }
    Ok(cases)
}

fn cntlids() -> Check<Vec<Case>> {
    Ok(vec![
        case(
            "another one for the I/O queue",
            Right::Fails,
            Box::new(|session, event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                let is_connect =
                    sqe.opcode == AdminOpcode::FABRICS.raw() && sqe.fctype() == FabricsType::CONNECT;
                if !is_connect || ConnectCommand::from_sqe(sqe).qid.is_admin() {
                    return Ok(Then::AsUsual);
                }
                session.qid = Some(ConnectCommand::from_sqe(sqe).qid.get());
                let result = ConnectResult::default().with_cntlid(session.stage.cntlid() ^ 0x55);
                session.complete(sqe, Status::SUCCESS, result.bits().into());
                Ok(Then::GoOn)
            }),
        )
        .every_time(),
        case(
            "another one in Identify",
            Right::Fails,
            Box::new(|session, event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                if !is_identify(session, sqe, Cns::CONTROLLER) {
                    return Ok(Then::AsUsual);
                }
                let mut page = session.controller().as_bytes().to_vec();
                page[78] ^= 0x55;
                session.send_data(sqe, &page);
                session.complete(sqe, Status::SUCCESS, 0);
                Ok(Then::GoOn)
            }),
        )
        .every_time(),
    ])
}

fn events() -> Check<Vec<Case>> {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    Ok(vec![
        case(
            "each request answered at once",
            Right::Bears,
            Box::new(move |session, event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                let is_request = sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw();
                if session.qid != Some(0) || !is_request {
                    return Ok(Then::AsUsual);
                }
                let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                holds(number < 10_000, "the host asks for more than 10,000 events")?;
                // A namespace has changed: log page 04.
                session.complete(sqe, Status::SUCCESS, 0x0004_0002);
                Ok(Then::GoOn)
            }),
        )
        .every_time(),
    ])
}

fn failing_setup() -> Check<Vec<Case>> {
    let failing = |count: u64, status: Status| {
        case(
            format!("command {count} fails: {status}"),
            Right::Ends,
            Box::new(move |session: &mut Session<'_>, event: &Event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                if session.stage.pdu_count() < count {
                    return Ok(Then::AsUsual);
                }
                session.complete(sqe, status, 0);
                Ok(Then::GoOn)
            }) as Misdeed,
        )
    };
    let statuses = [Status::INTERNAL_ERROR, Status::INVALID_FIELD.with_dnr()];
    Ok((2..=16).flat_map(|count| statuses.map(|status| failing(count, status))).collect())
}

fn in_capsule() -> Check<Vec<Case>> {
    Ok(vec![
        case(
            "every write",
            Right::Bears,
            Box::new(|session, event| {
                let Some(sqe) = io_command(session, event, NvmOpcode::WRITE) else {
                    return Ok(Then::AsUsual);
                };
                session.stage.mark();
                let fits = length_of(sqe) <= IN_CAPSULE_BYTES;
                let is_asked = matches!(sqe.dptr.classify(), DataPointer::Transport { .. });
                holds(!(fits && is_asked), format!("a write of {} bytes waits to be asked", length_of(sqe)))?;
                Ok(Then::AsUsual)
            }),
        )
        .every_time(),
    ])
}

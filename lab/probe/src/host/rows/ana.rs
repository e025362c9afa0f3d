//! H15: ANA logs that contradict themselves.

use std::sync::atomic::{AtomicU64, Ordering};

use wire::identify::capabilities::{Anacap, Cmic};

use super::case::{answer, is_identify};
use super::prelude::*;

/// Event: the ANA state has changed, log page 0Ch.
const CHANGED: u64 = 0x000C_0302;

/// Number of events sent.
const EVENT_COUNT: u64 = 16;

/// The log: a header, and one group with one namespace.
fn log(change_count: u64, group_count: u16, group: u32, nsid_count: u32, state: u8) -> Vec<u8> {
    let mut log = change_count.to_le_bytes().to_vec();
    log.extend_from_slice(&group_count.to_le_bytes());
    log.extend_from_slice(&[0; 6]);
    log.extend_from_slice(&group.to_le_bytes());
    log.extend_from_slice(&nsid_count.to_le_bytes());
    log.extend_from_slice(&change_count.to_le_bytes());
    log.push(state);
    log.extend_from_slice(&[0; 15]);
    log.extend_from_slice(&1_u32.to_le_bytes());
    log
}

/// A target with ANA that reports one change after another and answers reads of the log with these.
fn with_logs(name: &str, make: impl Fn(u64) -> Vec<u8> + Send + Sync + 'static) -> Case {
    let (reads, events) = (AtomicU64::new(0), AtomicU64::new(0));
    case(
        name,
        // A host that does not read the log has nothing to refuse.
        Right::Ends,
        Box::new(move |session, event| {
            let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
            if is_identify(session, sqe, Cns::CONTROLLER) {
                let mut controller = session.identify_controller();
                controller.cmic = Cmic::MULTIPLE_PORTS | Cmic::MULTIPLE_CONTROLLERS | Cmic::ANA;
                controller.anacap = Anacap::all();
                controller.anatt = 1;
                controller.anagrpmax.set(4);
                controller.nanagrpid.set(4);
                controller.set_oaes(wire::async_event::AsyncEvents::all());
                return answer(session, sqe, controller.as_bytes());
            }
            if session.controller.qid != Some(0) {
                return Ok(Then::AsUsual);
            }
            let is_event_request = sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw();
            if is_event_request && events.fetch_add(1, Ordering::SeqCst) < EVENT_COUNT {
                session.complete(sqe, Status::SUCCESS, CHANGED);
                return Ok(Then::GoOn);
            }
            if sqe.opcode != AdminOpcode::GET_LOG_PAGE.raw() || GetLogPage::from_sqe(sqe).lid != Lid::ANA {
                return Ok(Then::AsUsual);
            }
            let number = reads.fetch_add(1, Ordering::SeqCst);
            holds(number < 10_000, "the host reads the log again and again")?;
            answer_log(session, sqe, &make(number))
        }),
    )
    .every_time()
}

pub(super) fn cases() -> Check<Vec<Case>> {
    Ok(vec![
        with_logs("more groups than the log has", |_| log(1, u16::MAX, 1, 1, 1)),
        with_logs("no group", |_| log(1, 0, 1, 1, 1)),
        with_logs("more namespaces than the log has", |_| log(1, 1, 1, u32::MAX, 1)),
        with_logs("namespaces that wrap with their size", |_| log(1, 1, 1, 0x4000_0000, 1)),
        with_logs("a group without a number", |_| log(1, 1, 0, 1, 1)),
        with_logs("a group beyond the last", |_| log(1, 1, u32::MAX, 1, 1)),
        with_logs("a state that is none", |_| log(1, 1, 1, 1, 0)),
        with_logs("another state that is none", |_| log(1, 1, 1, 1, 0xFF)),
        with_logs("a count of changes that goes back", |number| log(u64::MAX - number, 1, 1, 1, 1)),
        with_logs("nothing but FFh", |_| vec![0xFF; 64 << 10]),
    ])
}

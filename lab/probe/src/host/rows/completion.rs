//! Completions that are wrong, late or missing; asynchronous events without end.

use wire::cqe::Cqe;

use super::prelude::*;

pub(super) fn completions() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(2)];
    Ok(vec![
        to_read("no command", RIGHT, |session, sqe| {
            let bytes = Draft::completion(
                session.form(),
                Cqe::new(wire::U16::new(!sqe.cid.get()), 0, Status::SUCCESS),
            );
            session.send(&bytes.seal());
        }),
        to_read("twice", RIGHT, |session, sqe| {
            let data = session.stage.state().memory[0][..length_of(sqe) as usize].to_vec();
            // Right for the first extent; the others are not reached.
            session.send_data(sqe, &data);
            session.complete(sqe, Status::SUCCESS, 0);
            session.complete(sqe, Status::SUCCESS, 0);
        }),
        to_write("success for a write whose data was never requested", RIGHT, |session, sqe| {
            session.complete(sqe, Status::SUCCESS, 0);
        }),
    ])
}

pub(super) fn no_answer() -> Check<Vec<Case>> {
    let silent = |name: &str, opcode| at_io(name, Right::Survives, opcode, |_, _| Ok(Then::GoOn));
    Ok(vec![
        silent("a read without an answer", NvmOpcode::READ),
        silent("a write without an answer", NvmOpcode::WRITE),
        at_io("data for a read that was aborted", Right::Ends, NvmOpcode::READ, |session, sqe| {
            session.stage.mark();
            session.complete(sqe, Status::ABORT_REQUESTED, 0);
            // The id and buffer may belong to a repetition of the same read: either way this is not its data.
            session.send_data(sqe, &vec![0xBD; length_of(sqe) as usize]);
            match session.receive()? {
                Event::Command { .. } => session.expect_term_req(&[term_at(1, 8)]),
                Event::TermReq { .. } => Ok(Then::End),
                _ => differs("the host closes without a TermReq"),
            }
        }),
    ])
}

pub(super) fn events() -> Check<Vec<Case>> {
    let count = std::sync::Arc::new(std::sync::atomic::AtomicU64::new(0));
    Ok(vec![
        case(
            "each request answered at once",
            Right::Survives,
            Box::new(move |session, event| {
                let Event::Command { sqe, .. } = event else { return Ok(Then::AsUsual) };
                let is_request = sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw();
                if session.controller.qid != Some(0) || !is_request {
                    return Ok(Then::AsUsual);
                }
                let number = count.fetch_add(1, std::sync::atomic::Ordering::SeqCst);
                holds(number < 10_000, "the host asks for more than 10,000 events")?;
                // Event: a namespace has changed, log page 04.
                session.complete(sqe, Status::SUCCESS, 0x0004_0002);
                Ok(Then::GoOn)
            }),
        )
        .every_time(),
    ])
}

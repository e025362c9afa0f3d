//! R2Ts that do not fit their write.

use peer::target_end::IN_CAPSULE_BYTES;

use super::case::asked_write;
use super::prelude::*;

fn r2t(session: &mut Session<'_>, sqe: &Sqe, offset: u32, length: u32) {
    session.send(&Draft::r2t(session.form(), sqe.cid.get(), 0x1234, offset, length).seal());
}

pub(super) fn empty_r2t() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term_at(1, 16)];
    Ok(vec![to_write("length 0", RIGHT, |session, sqe| r2t(session, sqe, 0, 0))])
}

pub(super) fn r2t_for_read() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(2)];
    const UNKNOWN: &[Term] = &[term_at(1, 8), term(2)];
    Ok(vec![
        at_io("a read", Right::Ends, NvmOpcode::READ, |session, sqe| {
            session.stage.mark();
            r2t(session, sqe, 0, length_of(sqe));
            match session.receive()? {
                Event::Data { .. } => differs("the host sends its memory for a read"),
                Event::TermReq { fes: 2, .. } => Ok(Then::End),
                Event::TermReq { fes, fei } => differs(format!("a TermReq ({fes:#04x}, {fei:#x})")),
                Event::Closed => differs("the host closes without a TermReq"),
                _ => session.expect_term_req(RIGHT),
            }
        }),
        to_read("no command", UNKNOWN, |session, sqe| {
            let bytes = Draft::r2t(session.form(), !sqe.cid.get(), 1, 0, 4096).seal();
            session.send(&bytes);
        }),
    ])
}

pub(super) fn r2t_out_of_place() -> Check<Vec<Case>> {
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
                session.expect_term_req(RIGHT)
            }),
        ),
    ])
}

pub(super) fn r2t_again() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(5), term(4)];
    const LIMIT: &[Term] = &[term(5)];
    Ok(vec![
        to_write("the same twice at once", RIGHT, |session, sqe| {
            let one = Draft::r2t(session.form(), sqe.cid.get(), 1, 0, length_of(sqe)).seal();
            session.send(&[&one[..], &one[..]].concat());
        }),
        to_write("two windows at once", LIMIT, |session, sqe| {
            let half = length_of(sqe) / 2;
            let first = Draft::r2t(session.form(), sqe.cid.get(), 1, 0, half).seal();
            let second = Draft::r2t(session.form(), sqe.cid.get(), 2, half, half).seal();
            session.send(&[&first[..], &second[..]].concat());
        }),
    ])
}

pub(super) fn in_capsule() -> Check<Vec<Case>> {
    let act = |session: &mut Session<'_>, sqe: &Sqe| {
        session.stage.mark();
        let fits = length_of(sqe) <= IN_CAPSULE_BYTES;
        let is_asked = matches!(sqe.dptr.classify(), DataPointer::Transport { .. });
        holds(!(fits && is_asked), format!("a write of {} bytes waits to be asked", length_of(sqe)))?;
        Ok(Then::AsUsual)
    };
    Ok(vec![at_io("every write", Right::Survives, NvmOpcode::WRITE, act).every_time()])
}

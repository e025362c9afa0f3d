//! C2HData that does not fit its read.

use wire::pdu::Digests;

use super::case::to_io;
use super::prelude::*;

pub(super) fn header_length() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term_at(1, 2)];
    let act = |session: &mut Session<'_>, sqe: &Sqe| {
        let data = vec![0; length_of(sqe) as usize];
        let form = session.form();
        let bytes = Draft::c2h_data(form, sqe.cid.get(), 0, &data, PduFlags::LAST).with(2, &[255]).seal();
        session.send(&bytes);
    };
    Ok(vec![to_read("with digests", RIGHT, act).with_digests(), to_read("without", RIGHT, act)])
}

pub(super) fn data_for_others() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term_at(1, 8)];
    let send = |session: &mut Session<'_>, cid: u16, length: u32| {
        let bytes =
            Draft::c2h_data(session.form(), cid, 0, &vec![0xBD; length as usize], PduFlags::LAST).seal();
        session.send(&bytes);
    };
    Ok(vec![
        to_read("no command", RIGHT, move |session, sqe| send(session, sqe.cid.get() ^ 0x5A5A, 4096)),
        to_write("a write", RIGHT, move |session, sqe| send(session, sqe.cid.get(), length_of(sqe))),
        to_io("a flush", NvmOpcode::FLUSH, RIGHT, move |session, sqe| send(session, sqe.cid.get(), 4096)),
    ])
}

pub(super) fn data_out_of_place() -> Check<Vec<Case>> {
    const RIGHT: &[Term] = &[term(4)];
    const LENGTH: &[Term] = &[term(4), term_at(1, 16), term_at(1, 4)];
    let at = |session: &mut Session<'_>, sqe: &Sqe, offset: u32, length: u32| {
        let data = vec![0xBD; length as usize];
        let bytes = Draft::c2h_data(session.form(), sqe.cid.get(), offset, &data, PduFlags::empty()).seal();
        session.send(&bytes);
    };
    let with_length = |session: &mut Session<'_>, sqe: &Sqe, length: u32| {
        let data = vec![0xBD; length_of(sqe) as usize];
        let draft = Draft::c2h_data(session.form(), sqe.cid.get(), 0, &data, PduFlags::LAST);
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

pub(super) fn short_reads() -> Check<Vec<Case>> {
    const NO_LAST: &[Term] = &[term(2), term_at(1, 1)];
    let part = |session: &mut Session<'_>, sqe: &Sqe, flags: PduFlags, length: u32| {
        let data = vec![0xBD; length as usize];
        session.send(&Draft::c2h_data(session.form(), sqe.cid.get(), 0, &data, flags).seal());
    };
    // The host must not take this for the data: the drive compares.
    let on_read = |name: &str, act: fn(&mut Session<'_>, &Sqe)| {
        at_io(name, Right::Ends, NvmOpcode::READ, move |session, sqe| {
            act(session, sqe);
            Ok(Then::GoOn)
        })
    };
    Ok(vec![
        to_read("SUCCESS without LAST", NO_LAST, move |session, sqe| {
            part(session, sqe, PduFlags::SUCCESS, length_of(sqe));
        }),
        on_read("SUCCESS after too few bytes", |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize - 512];
            let flags = PduFlags::LAST | PduFlags::SUCCESS;
            session.send(&Draft::c2h_data(session.form(), sqe.cid.get(), 0, &data, flags).seal());
        }),
        on_read("success after nothing", |session, sqe| session.complete(sqe, Status::SUCCESS, 0)),
        on_read("success after too few bytes", |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize - 512];
            let flags = PduFlags::empty();
            session.send(&Draft::c2h_data(session.form(), sqe.cid.get(), 0, &data, flags).seal());
            session.complete(sqe, Status::SUCCESS, 0);
        }),
        on_read("failure after all bytes", |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize];
            session.send_data(sqe, &data);
            session.complete(sqe, Status::INTERNAL_ERROR, 0);
        }),
    ])
}

pub(super) fn data_digest() -> Check<Vec<Case>> {
    let act = |session: &mut Session<'_>, sqe: &Sqe| {
        if !session.form().digests.contains(Digests::DATA) {
            return Ok(Then::AsUsual);
        }
        let data = vec![0xBD; length_of(sqe) as usize];
        let mut bytes = Draft::c2h_data(session.form(), sqe.cid.get(), 0, &data, PduFlags::LAST).seal();
        *bytes.last_mut().expect("not empty") ^= 1;
        session.send(&bytes);
        session.complete(sqe, Status::SUCCESS, 0);
        Ok(Then::GoOn)
    };
    Ok(vec![at_io("of a read", Right::Ends, NvmOpcode::READ, act).with_digests()])
}

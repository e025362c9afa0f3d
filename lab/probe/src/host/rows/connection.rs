//! Faults of handshakes, TermReqs and closed connections.

use wire::pdu::{DataAlignment, FatalErrorStatus, IcResp, TermReq};

use super::prelude::*;

pub(super) fn ic_resp() -> Check<Vec<Case>> {
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
                // The host may give up with or without a TermReq, but must not go on.
                match session.receive()? {
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
        wrong("digests that were not requested", |bytes| bytes[11] ^= 3),
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
                match session.receive()? {
                    Event::Closed | Event::TermReq { .. } => Ok(Then::End),
                    _ => differs("the host goes on without an ICResp"),
                }
            }),
        )
        .every_time(),
    ])
}

pub(super) fn term_reqs() -> Check<Vec<Case>> {
    let case_of = |name: &str, bytes: Vec<u8>| {
        at_io(name, Right::Survives, NvmOpcode::READ, move |session, _| {
            session.stage.mark();
            session.send(&bytes);
            session.expect_closed()
        })
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

pub(super) fn ends() -> Check<Vec<Case>> {
    // The target closes after this many PDUs of the host, before it answers the last one, and in the middle of a read's
    // data.
    let mut cases: Vec<_> = (1..=24_u64)
        .map(|count| {
            case(
                format!("before the answer to PDU {count}"),
                // The first connect is tried once; an established association reconnects.
                Right::Ends,
                Box::new(move |session: &mut Session<'_>, _: &Event| {
                    Ok(if session.stage.pdu_count() >= count { Then::End } else { Then::AsUsual })
                }) as Fault,
            )
        })
        .collect();
    for (name, cut) in [("within C2HData", 100), ("within its header", 10)] {
        cases.push(at_io(name, Right::Survives, NvmOpcode::READ, move |session, sqe| {
            let data = vec![0xBD; length_of(sqe) as usize];
            let bytes = Draft::c2h_data(session.form(), sqe.cid.get(), 0, &data, PduFlags::LAST).seal();
            session.send(&bytes[..cut]);
            Ok(Then::End)
        }));
    }
    Ok(cases)
}

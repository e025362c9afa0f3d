//! Every header byte of every PDU type with every value, in every state of a connection: the reaction is in a table.
//!
//! That is 472 bytes of headers × 256 values × 5 states at each end, 1,208,320 cases. Where a case ends the connection,
//! its TermReq has the right status and offset and a copy of the header, and no further input is accepted.
//!
//! A row names the bytes of the header it is about, then reactions, each with the values of such a byte that cause it.
//! A value that a good PDU has is among them, so each row with a command, data or a completion in it shows that, too.

#![allow(clippy::cast_possible_truncation)]

#[path = "harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

use std::collections::BTreeMap;
use std::fmt::Write;

use ends::{ControllerEnd, HostEnd, Seen, codes};
use nvlane_proto::Violation;
use nvlane_proto::controller_queue::QueueSettings;
use pdus::{
    Dialect, FLUSH, IN_CAPSULE, LAST, TRANSPORT, WRITE, cqe, header_length, ic_req, ic_resp, pattern, sqe,
    term_req,
};

const NAMES: [(u8, &str); 9] = [
    (0x00, "ICReq"),
    (0x01, "ICResp"),
    (0x02, "H2CTermReq"),
    (0x03, "C2HTermReq"),
    (0x04, "CapsuleCmd"),
    (0x05, "CapsuleResp"),
    (0x06, "H2CData"),
    (0x07, "C2HData"),
    (0x09, "R2T"),
];

fn violation(violation: Violation) -> String {
    match violation {
        Violation::HeaderField { offset } => format!("field {offset}"),
        Violation::UnsupportedParameter { offset } => format!("unsupported {offset}"),
        other => other.name().replace('_', " "),
    }
}

/// Checks that the connection ended with the right TermReq, or without one if none is due.
fn assert_told(told: Option<Vec<u8>>, kind: u8, why: Violation, offending: &[u8]) {
    if matches!(why, Violation::EndedByPeer { .. } | Violation::MalformedTermReq) {
        return assert_eq!(told, None);
    }
    let told = told.expect("a TermReq is due");
    let (fes, fei) = codes(why);
    let copied = told.len() - 24;
    assert!((8..=128).contains(&copied) && copied <= offending.len(), "{copied} bytes are quoted");
    assert_eq!(told, term_req(kind, fes, fei, &offending[..copied]));
}

/// A valid PDU of each type for a command with this cid and tag and 64 bytes of data.
fn good(dialect: Dialect, kind: u8, cid: u16, ttag: u16) -> Vec<u8> {
    match kind {
        0x00 => ic_req(0, dialect.digests, 0),
        0x01 => ic_resp(0, dialect.digests, 8192),
        0x02 | 0x03 => term_req(kind, 1, 0, &[0; 24]),
        0x04 => dialect.command(sqe(WRITE, cid, IN_CAPSULE, 64), &pattern(64)),
        0x05 => dialect.response(cqe(cid, 0, 0)),
        0x06 => dialect.h2c(cid, ttag, 0, &pattern(64), LAST),
        0x07 => dialect.c2h(cid, 0, &pattern(64), LAST),
        _ => dialect.r2t(cid, ttag, 0, 64),
    }
}

/// Formats values as ranges.
fn ranges(values: &[u8]) -> String {
    let mut text = String::new();
    let mut rest = values;
    while let [first, ..] = rest {
        let count = rest.iter().zip(*first..=0xFF).take_while(|(value, expected)| *value == expected).count();
        let last = rest[count - 1];
        let comma = if text.is_empty() { "" } else { "," };
        match count {
            1 => write!(text, "{comma}{first:02x}"),
            _ => write!(text, "{comma}{first:02x}-{last:02x}"),
        }
        .unwrap();
        rest = &rest[count..];
    }
    text
}

/// The table of one state: a line for each run of bytes with the same reactions.
fn table(text: &mut String, state: &str, mut react: impl FnMut(u8, usize, u8) -> String) {
    for (kind, name) in NAMES {
        let mut rows: Vec<(usize, usize, String)> = Vec::new();
        for at in 0..header_length(kind) {
            let mut reactions = BTreeMap::<String, Vec<u8>>::new();
            for value in 0..=0xFF {
                reactions.entry(react(kind, at, value)).or_default().push(value);
            }
            let mut row = String::new();
            for (reaction, values) in &reactions {
                let comma = if row.is_empty() { "" } else { "; " };
                let values = if values.len() == 256 { "any".into() } else { ranges(values) };
                write!(row, "{comma}{reaction}: {values}").unwrap();
            }
            match rows.last_mut() {
                Some((_, last, same)) if *same == row => *last = at,
                _ => rows.push((at, at, row)),
            }
        }
        for (first, last, row) in rows {
            let bytes = if first == last { first.to_string() } else { format!("{first}-{last}") };
            writeln!(text, "{state}, {name} {bytes}: {row}").unwrap();
        }
    }
}

#[derive(Clone, Copy)]
enum State {
    BeforeHandshake,
    AfterHandshake,
    /// A flush is outstanding, or a read at the host.
    CommandOutstanding,
    /// An R2T was sent for a write.
    R2tOutstanding,
    /// That write was aborted. At the host: it has answered an R2T.
    Draining,
}

const STATES: [(State, &str); 5] = [
    (State::BeforeHandshake, "before the handshake"),
    (State::AfterHandshake, "after it"),
    (State::CommandOutstanding, "command out"),
    (State::R2tOutstanding, "R2T out"),
    (State::Draining, "draining"),
];

const CID: u16 = 0x0102;

fn controller(state: State, dialect: Dialect) -> ControllerEnd {
    if matches!(state, State::BeforeHandshake) {
        return ControllerEnd::new(QueueSettings::default());
    }
    let mut end = ControllerEnd::plain(dialect);
    match state {
        State::BeforeHandshake | State::AfterHandshake => {}
        State::CommandOutstanding => {
            end.deliver(&dialect.command(sqe(FLUSH, CID, TRANSPORT, 0), &[]));
        }
        State::R2tOutstanding | State::Draining => {
            let slot = end.deliver(&dialect.command(sqe(WRITE, CID, TRANSPORT, 64), &[]));
            end.queue.request_data(slot, vec![0; 64], 64);
            end.sent();
            if matches!(state, State::Draining) {
                end.complete(slot, wire::status::Status::ABORT_REQUESTED);
                end.sent();
            }
        }
    }
    end
}

fn controller_reacts(mut end: ControllerEnd, pdu: &[u8]) -> String {
    match end.feed(pdu) {
        Err(why) => {
            let is_told = end.queue.fail(why);
            assert_told(is_told.then(|| end.sent()), 0x03, why, pdu);
            end.assert_dead(why);
            violation(why)
        }
        Ok(seen) => match &seen[..] {
            [] if end.queue.is_within_pdu() => "waits".into(),
            [] => "dropped".into(),
            [Seen::Initialised(_)] => "initialised".into(),
            [Seen::Command { .. }] => "command".into(),
            [Seen::DataReceived { .. }] => "data".into(),
            [Seen::Refused { status, .. }] => format!("refused {:#05x}", status.code()),
            other => panic!("{other:?}"),
        },
    }
}

#[test]
fn a_controller_reacts_to_every_header_byte_as_the_table_says() {
    let mut text = String::new();
    for (state, name) in STATES {
        table(&mut text, name, |kind, at, value| {
            let dialect = Dialect::PLAIN;
            let pdu = dialect.with(good(dialect, kind, CID, 0x1000), at, &[value]);
            controller_reacts(controller(state, dialect), &pdu)
        });
    }
    insta::assert_snapshot!("controller", text);
}

fn host(state: State, dialect: Dialect) -> (HostEnd, u16) {
    if matches!(state, State::BeforeHandshake) {
        return (HostEnd::new(dialect, 1), CID);
    }
    let mut end = HostEnd::plain(dialect);
    end.queue.set_in_capsule_bytes(0);
    let cid = match state {
        State::BeforeHandshake | State::AfterHandshake => CID,
        State::CommandOutstanding => end.read(64),
        State::R2tOutstanding => end.write(pattern(64)),
        State::Draining => {
            let cid = end.write(pattern(64));
            end.feed(&dialect.r2t(cid, 1, 0, 64)).unwrap();
            end.sent();
            cid
        }
    };
    (end, cid)
}

fn host_reacts(mut end: HostEnd, pdu: &[u8]) -> String {
    let mut input = pdu;
    match end.queue.next_event(&mut input) {
        Err(why) => {
            assert_told(end.queue.fail(why), 0x02, why, pdu);
            end.assert_dead(why);
            violation(why)
        }
        Ok(None) if end.queue.is_within_pdu() => "waits".into(),
        Ok(None) if !end.queue.caravan().is_empty() => "serves".into(),
        Ok(None) => "taken".into(),
        Ok(Some(nvlane_proto::host_queue::HostEvent::Initialised(_))) => "initialised".into(),
        Ok(Some(nvlane_proto::host_queue::HostEvent::Completed(done))) if done.status.is_success() => {
            "success".into()
        }
        Ok(Some(nvlane_proto::host_queue::HostEvent::Completed(_))) => "failure".into(),
    }
}

#[test]
fn a_host_reacts_to_every_header_byte_as_the_table_says() {
    let mut text = String::new();
    let names = ["before the handshake", "after it", "read out", "write out", "R2T served"];
    for ((state, _), name) in STATES.into_iter().zip(names) {
        table(&mut text, name, |kind, at, value| {
            let dialect = Dialect::PLAIN;
            let (end, cid) = host(state, dialect);
            host_reacts(end, &dialect.with(good(dialect, kind, cid, 0xABCD), at, &[value]))
        });
    }
    insta::assert_snapshot!("host", text);
}

/// With a header digest, no byte after the common header can be changed undetected.
#[test]
fn no_byte_of_a_header_with_its_digest_changes_unseen() {
    let dialect = Dialect::HEADER_DIGEST;
    for (state, _) in STATES.into_iter().skip(1) {
        for (kind, at) in [(0x04, 72), (0x06, 24)]
            .into_iter()
            .flat_map(|(kind, hlen)| (0..hlen + 4).map(move |at| (kind, at)))
        {
            let pdu = good(dialect, kind, CID, 0x1000);
            for value in (0..=0xFF).filter(|value| *value != pdu[at]) {
                let mut changed = pdu.clone();
                changed[at] = value;
                let mut end = controller(state, dialect);
                match end.feed(&changed) {
                    Err(Violation::HeaderDigest { .. }) => {}
                    Err(_) => assert!(at < 8),
                    // A PDU longer than any valid one.
                    Ok(seen) => assert!(at < 8 && seen.is_empty() && end.queue.is_within_pdu()),
                }
            }
        }
        for kind in [0x05, 0x07, 0x09] {
            for at in 0..28 {
                let (_, cid) = host(state, dialect);
                let pdu = good(dialect, kind, cid, 1);
                for value in (0..=0xFF).filter(|value| *value != pdu[at]) {
                    let mut changed = pdu.clone();
                    changed[at] = value;
                    let (mut end, _) = host(state, dialect);
                    match end.feed(&changed) {
                        Err(Violation::HeaderDigest { .. }) => {}
                        Err(_) => assert!(at < 8),
                        Ok(seen) => assert!(at < 8 && seen.is_empty() && end.queue.is_within_pdu()),
                    }
                }
            }
        }
    }
}

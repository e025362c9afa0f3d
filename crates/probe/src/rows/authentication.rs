//! Section 6: authentication, as far as a host without keys can try it.

use wire::fabrics::AuthenticationCommand;
use wire::id::Nsid;
use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
use wire::pdu::Digests;
use wire::property::Property;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::finding::{About, Check, skipped};
use crate::peer::Peer;
use crate::queue::{Move, Queue, expect_status};
use crate::row::Row;
use crate::rows::queue_setup::discovery;

pub(super) const ROWS: &[Row] = &[
    Row::new("A1", "commands before authentication", "status 1/91", before),
    Row::new("A2", "messages where none is asked for", "they may begin, or 0/02", unasked)
        .judged("a target without keys may not know the commands: 0/01"),
    Row::new("A3", "protocol, subtype and lengths that are wrong", "status 0/02", wrong_fields)
        .judged("a target without keys may not know the commands: 0/01"),
    Row::new("A4", "Negotiate too short, or with odd lists", "reason 06", needs_keys),
    Row::new("A5", "no common hash or group", "reason 04 or 05", needs_keys),
    Row::new("A6", "secure channels that are none", "reason 03", needs_keys),
    Row::new("A7", "Reply with lengths that do not fit", "reason 06", needs_keys),
    Row::new("A8", "public values that are no such", "reason 05 or 06", needs_keys),
    Row::new("A9", "wrong transaction, wrong response", "reason 01 or 06", needs_keys),
    Row::new("A10", "messages in every wrong order", "reason 07, never authenticated", needs_keys),
    Row::new("A11", "Receive into short buffers", "status 0/02", needs_keys),
    Row::new("A12", "Receive into long buffers", "the rest is zero", needs_keys),
    Row::new("A13", "two Sends at once, Negotiate again and again", "one after the other", needs_keys),
    Row::new("A14", "transactions left unfinished", "ended in time", needs_keys),
    Row::new("A15", "a Reply replayed", "fails", needs_keys),
    Row::new("A16", "our own challenge reflected", "reason 01", needs_keys),
    Row::new("A17", "the right key under another name", "fails", needs_keys),
    Row::new("A18", "a flood of attempts", "limited", needs_keys),
    Row::new("A19", "malformed secrets", "a configuration error", |_| {
        skipped("the target's configuration cannot be changed from here")
    }),
    Row::new("A20", "both directions asked for, one key", "reason 01", needs_keys),
];

fn needs_keys(peer: &Peer) -> Check {
    if peer.connected.authentication_required() {
        return skipped("not written yet");
    }
    skipped("the target does not ask for authentication")
}

fn before(peer: &Peer) -> Check {
    if !peer.connected.authentication_required() {
        return skipped("the target does not ask for authentication");
    }
    let mut admin = peer.queue(Digests::empty())?;
    peer.connect_admin(&mut admin)?;
    let refused = [Status::AUTHENTICATION_REQUIRED];
    let command = IdentifyCommand { cns: Cns::CONTROLLER, ..IdentifyCommand::default() };
    admin.must_end(command.to_sqe(Nsid::NONE), Move::Back(IDENTIFY_BYTES), &refused).about("Identify")?;
    admin.must_end(Sqe::property_get(Property::CAP), Move::None, &refused).about("Property Get").map(drop)
}

/// What a target may say that does not want any of it.
const UNWANTED: [Status; 4] = [
    Status::INVALID_FIELD,
    Status::INVALID_OPCODE,
    Status::COMMAND_SEQUENCE_ERROR,
    Status::DATA_SGL_LENGTH_INVALID,
];

fn unasked(peer: &Peer) -> Check {
    let message = [0_u8; 256];
    let try_on = |queue: &mut Queue, what: &str| {
        let send = AuthenticationCommand::new(256).to_send_sqe();
        let answer = queue.run(send, Move::InCapsule(&message)).about(format!("Send on {what}"))?;
        expect_status(&answer, &[&UNWANTED[..], &[Status::SUCCESS]].concat())
            .about(format!("Send on {what}"))?;
        let receive = AuthenticationCommand::new(256).to_receive_sqe();
        let answer = queue.run(receive, Move::Back(256)).about(format!("Receive on {what}"))?;
        expect_status(&answer, &[&UNWANTED[..], &[Status::SUCCESS]].concat())
            .about(format!("Receive on {what}"))
    };
    let (mut admin, _) = peer.admin(Digests::empty())?;
    try_on(&mut admin, "the admin queue")?;
    if peer.disk().is_ok() {
        try_on(&mut peer.io(Digests::empty())?, "an I/O queue")?;
    }
    if let Ok(mut queue) = discovery(peer) {
        try_on(&mut queue, "the discovery controller")?;
    }
    Ok(())
}

fn wrong_fields(peer: &Peer) -> Check {
    let mut admin = peer.queue(Digests::empty())?;
    peer.connect_admin(&mut admin)?;
    let message = [0_u8; 256];
    let right = AuthenticationCommand::new(256);
    for (what, command) in [
        ("SECP", AuthenticationCommand { secp: 0, ..right }),
        ("SPSP0", AuthenticationCommand { spsp0: 0, ..right }),
        ("SPSP1", AuthenticationCommand { spsp1: 2, ..right }),
        ("length 0", AuthenticationCommand { length: 0, ..right }),
        ("a length that is not the SGL's", AuthenticationCommand { length: 512, ..right }),
        ("4 GiB", AuthenticationCommand { length: u32::MAX, ..right }),
    ] {
        let answer = admin.run(command.to_send_sqe(), Move::InCapsule(&message)).about(what)?;
        expect_status(&answer, &UNWANTED).about(format!("Send with {what}"))?;
        let answer = admin.run(command.to_receive_sqe(), Move::Back(256)).about(what)?;
        expect_status(&answer, &UNWANTED).about(format!("Receive with {what}"))?;
    }
    Ok(())
}

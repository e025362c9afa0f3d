//! Section 13, in sessions: TLS with the target's key, whose records are replayed, cut, joined with others or left in
//! clear. They take `--tls --tls-key FILE`, and a listener that allows TLS.
//!
//! What the probe cannot do: encrypt messages that a host does not send, such as a ClientHello within the session.

use security::tls::HostKeys;
use wire::pdu::{CapsuleResp, IC_BYTES};

use super::prelude::*;
use super::tls::others_get_in;
use crate::client_hello::{ALERT, APPLICATION_DATA, HANDSHAKE, is_refused_by_tls};
use crate::tls_link::{Next, TlsLink};

pub(super) const ROWS: &[TargetRow] = &[
    row("T8", |peer| in_session(peer, many_records)),
    row("T9", |peer| in_session(peer, unasked_messages)),
    row("T10", |peer| in_session(peer, changed_hello)),
    row("T11", |peer| in_session(peer, data_before_the_handshake)),
    row("T12", |peer| in_session(peer, replayed_record)),
    row("T13", |peer| in_session(peer, clear_pdu)),
    row("T14", |peer| in_session(peer, cut_record)),
    row("T15", |peer| in_session(peer, long_record)),
    row("T16", |peer| in_session(peer, empty_records)),
    row("T17", |peer| in_session(peer, clear_handshake_messages)),
    row("T18", |peer| in_session(peer, changed_keys)),
    row("T19", |peer| in_session(peer, other_names)),
    row("T20", |peer| in_session(peer, one_identity_on_several_queues)),
];

/// How long a target is listened to that owes nothing.
const QUIET: Duration = Duration::from_millis(300);

/// A record that announces this length, not encrypted.
fn record(kind: u8, length: usize, body: &[u8]) -> Vec<u8> {
    let length = u16::try_from(length).expect("16 bits");
    [&[kind, 3, 3][..], &length.to_be_bytes(), body].concat()
}

/// Tries a row with the key of the target, unless its port does not speak TLS: then there is nothing to try.
fn in_session(peer: &Target, trial: fn(&Target, &HostKeys) -> Check) -> Check {
    match &peer.settings.tls {
        _ if !is_refused_by_tls(peer.host())? => Ok(()),
        Some(keys) => trial(peer, keys),
        None => skipped("it takes a session: give --tls --tls-key FILE, the key of the target"),
    }
}

/// A Connect of the admin queue under this name.
fn connect(peer: &Target, host: &Nqn) -> Vec<u8> {
    let data = ConnectData::new(peer.host().hostid, Cntlid::DYNAMIC, &peer.host().subsystem, host);
    connect_of(peer, 0, &data)
}

fn connect_of(peer: &Target, qid: u16, data: &ConnectData) -> Vec<u8> {
    let sqe = peer.host().connect_command(qid, 32).to_sqe();
    in_capsule(Form::PLAIN, sqe, data.as_bytes()).seal()
}

/// The completion that the session brings next.
fn completion(link: &mut TlsLink) -> Check<CapsuleResp> {
    let bytes = link.receive(size_of::<CapsuleResp>())?;
    holds(bytes[0] == PduType::CapsuleResp as u8, "no completion in answer to a command")?;
    Ok(CapsuleResp::read_from_bytes(&bytes).expect("its size"))
}

/// The connection must end; up to `bytes_max` of data may come before.
fn must_end(link: &mut TlsLink, bytes_max: usize) -> Check {
    let mut count = 0;
    loop {
        match link.next()? {
            Next::Ended => return Ok(()),
            Next::Data(data) => {
                count += data.len();
                holds(count <= bytes_max, format!("{count} bytes of data in answer"))?;
            }
        }
    }
}

/// Runs a trial in a session after ICReq, whose connection must end.
fn ends(peer: &Target, what: &str, keys: &HostKeys, trial: impl FnOnce(&mut TlsLink) -> Check) -> Check {
    let mut link = TlsLink::initialised(peer.host(), keys).about(what)?;
    trial(&mut link).about(what)?;
    must_end(&mut link, 0).about(what)
}

/// RFC 8446 section 5.5: a key protects 2^24.5 records at most.
fn many_records(_: &Target, _: &HostKeys) -> Check {
    skipped("it takes 2^24.5 records, more than a row has time for")
}

/// RFC 8446 sections 4.6.1 and 4.6.3: Linux hosts know neither session tickets nor KeyUpdates, and end a connection that brings one.
fn unasked_messages(peer: &Target, keys: &HostKeys) -> Check {
    let mut link = TlsLink::secured(peer.host(), keys)?;
    link.expect_silence(QUIET).about("after the handshake")?;
    let mut link = TlsLink::initialised(peer.host(), keys)?;
    link.expect_silence(QUIET).about("after ICResp")?;
    link.send(&connect(peer, &peer.host().nqn))?;
    let status = completion(&mut link)?.cqe.status();
    holds(status.is_success(), format!("Connect: {status}"))?;
    link.expect_silence(QUIET).about("after Connect")
}

/// RFC 8446 sections 4.1.3, 4.2.1, 4.2.9 and 4.2.11: the binder covers the ClientHello, so a changed one does not weaken the
/// session: it fails.
fn changed_hello(peer: &Target, keys: &HostKeys) -> Check {
    for (what, from, to) in [
        ("TLS 1.2 in place of 1.3", &[0, 43, 0, 3, 2, 3, 4][..], &[0, 43, 0, 3, 2, 3, 3][..]),
        ("the key without a key exchange", &[0, 45, 0, 2, 1, 1], &[0, 45, 0, 2, 1, 0]),
        ("another suite", &[0x13, 2], &[0x13, 4]),
        ("the other suite only", &[0x13, 1], &[0x13, 2]),
    ] {
        let mut link = TlsLink::dial(peer.host(), keys, &peer.host().subsystem)?;
        let mut hello = link.take_output();
        let at = hello.windows(from.len()).position(|window| window == from);
        let Some(at) = at else { return differs(format!("{what}: the probe's ClientHello has other bytes")) };
        hello[at..at + to.len()].copy_from_slice(to);
        link.send_raw(&hello)?;
        match link.handshake() {
            Err(Finding::Differs(_)) => {}
            Err(other) => return Err(other.about(what)),
            Ok(()) => return differs(format!("{what}: the handshake succeeds")),
        }
    }
    others_get_in(peer)
}

/// RFC 8446 section 4.2.10: without an offer of early data, records of data before the handshake is complete end it.
fn data_before_the_handshake(peer: &Target, keys: &HostKeys) -> Check {
    let mut link = TlsLink::dial(peer.host(), keys, &peer.host().subsystem)?;
    let hello = link.take_output();
    link.send_raw(&[hello, record(APPLICATION_DATA, 64, &[0x17; 64])].concat())?;
    match link.handshake().and_then(|()| must_end(&mut link, 0)) {
        Ok(()) | Err(Finding::Differs(_)) => {}
        Err(other) => return Err(other),
    }
    others_get_in(peer)
}

/// RFC 8446 sections 5.2 and 5.3: each record has a sequence number of its own, so a second copy does not decrypt.
fn replayed_record(peer: &Target, keys: &HostKeys) -> Check {
    let mut link = TlsLink::initialised(peer.host(), keys)?;
    let command = link.seal(&connect(peer, &peer.host().nqn))?;
    link.send_raw(&command.repeat(2))?;
    // The first one may be answered.
    must_end(&mut link, size_of::<CapsuleResp>()).about("a record twice")?;
    // Of another session with the same key.
    ends(peer, "a record of another session", keys, |link| link.send_raw(&command))?;
    others_get_in(peer)
}

/// RFC 8446 section 5.2, NVMe/TCP clause 3.6.1: once a connection has TLS, no PDU travels in cleartext.
fn clear_pdu(peer: &Target, keys: &HostKeys) -> Check {
    let request = IcReq::new(DataAlignment::NONE, Digests::empty(), 1);
    let mut link = TlsLink::secured(peer.host(), keys)?;
    link.send_raw(request.as_bytes())?;
    must_end(&mut link, 0).about("ICReq in cleartext")?;
    ends(peer, "a Connect in cleartext", keys, |link| link.send_raw(&connect(peer, &peer.host().nqn)))?;
    // In a record, and not encrypted.
    let body = connect(peer, &peer.host().nqn);
    let inside = record(APPLICATION_DATA, body.len(), &body);
    ends(peer, "a Connect in a record in cleartext", keys, |link| link.send_raw(&inside))?;
    others_get_in(peer)
}

/// RFC 8446 sections 5.1 and 6.1: a record that is cut off, or whose length is changed, brings nothing.
fn cut_record(peer: &Target, keys: &HostKeys) -> Check {
    for cut in [1, 16, 500] {
        ends(peer, &format!("a Connect {cut} bytes short"), keys, |link| {
            let command = link.seal(&connect(peer, &peer.host().nqn))?;
            link.send_raw(&command[..command.len() - cut])?;
            link.finish();
            Ok(())
        })?;
    }
    ends(peer, "a shorter length", keys, |link| {
        let mut command = link.seal(&connect(peer, &peer.host().nqn))?;
        command[4] = command[4].wrapping_sub(1);
        link.send_raw(&command)?;
        link.finish();
        Ok(())
    })?;
    ends(peer, "a flipped bit", keys, |link| {
        let mut command = link.seal(&connect(peer, &peer.host().nqn))?;
        command[100] ^= 4;
        link.send_raw(&command)
    })?;
    others_get_in(peer)
}

/// RFC 8446 section 5.2: a record has at most 2^14 + 256 bytes.
fn long_record(peer: &Target, keys: &HostKeys) -> Check {
    for length in [(1 << 14) + 257, usize::from(u16::MAX)] {
        let bytes = record(APPLICATION_DATA, length, &vec![0; length]);
        ends(peer, &format!("a record of {length} bytes"), keys, |link| link.send_raw(&bytes))?;
    }
    others_get_in(peer)
}

/// RFC 8446 sections 5.2 and 5.4: an encrypted record has 17 bytes or more, the kind of its content and the tag.
fn empty_records(peer: &Target, keys: &HostKeys) -> Check {
    for length in [0, 1, 16] {
        let bytes = record(APPLICATION_DATA, length, &vec![0; length]);
        ends(peer, &format!("a record of {length} bytes"), keys, |link| link.send_raw(&bytes))?;
    }
    others_get_in(peer)
}

/// RFC 8446 sections 4.1.2 and 5: TLS 1.3 has no renegotiation, and after the handshake no message is in cleartext.
fn clear_handshake_messages(peer: &Target, keys: &HostKeys) -> Check {
    let hello = TlsLink::dial(peer.host(), keys, &peer.host().subsystem)?.take_output();
    for (what, bytes) in [
        ("a second ClientHello", hello),
        ("a HelloRequest", record(HANDSHAKE, 4, &[0, 0, 0, 0])),
        ("a KeyUpdate in cleartext", record(HANDSHAKE, 5, &[24, 0, 0, 1, 0])),
        ("an alert in cleartext", record(ALERT, 2, &[2, 40])),
        ("a heartbeat", record(24, 3, &[1, 64, 0])),
    ] {
        ends(peer, what, keys, |link| link.send_raw(&bytes))?;
    }
    others_get_in(peer)
}

/// RFC 8446 section 4.6.3: after a KeyUpdate the session goes on with the new key, and the old one is worth nothing.
fn changed_keys(peer: &Target, keys: &HostKeys) -> Check {
    let mut link = TlsLink::secured(peer.host(), keys)?;
    link.update_key()?;
    link.send(IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes())?;
    let response = link.receive(IC_BYTES).about("ICReq after a KeyUpdate")?;
    holds(response[0] == PduType::IcResp as u8, "no ICResp after a KeyUpdate")?;
    link.send(&connect(peer, &peer.host().nqn))?;
    let status = completion(&mut link).about("Connect after a KeyUpdate")?.cqe.status();
    holds(status.is_success(), format!("Connect after a KeyUpdate: {status}"))?;
    let mut link = TlsLink::initialised(peer.host(), keys)?;
    let before = link.seal(&connect(peer, &peer.host().nqn))?;
    link.send_raw(&before)?;
    link.update_key()?;
    // The KeyUpdate, and the first byte of a capsule.
    let after = link.seal(&[PduType::CapsuleCmd as u8])?;
    link.send_raw(&[after, before].concat())?;
    must_end(&mut link, size_of::<CapsuleResp>()).about("a record of before the KeyUpdate")?;
    others_get_in(peer)
}

/// NVMe/TCP clause 3.6.1: the identity names host and subsystem, and Connect must name the same.
fn other_names(peer: &Target, keys: &HostKeys) -> Check {
    let other: Nqn =
        "nqn.2014-08.org.nvmexpress:uuid:e0000000-0000-4000-8000-00000000000e".parse().expect("a name");
    let mut link = TlsLink::initialised(peer.host(), keys)?;
    link.send(&connect(peer, &other))?;
    let status = completion(&mut link).about("Connect under another name")?.cqe.status();
    holds(status.is(Status::CONNECT_INVALID_HOST), format!("Connect under another name: {status}"))?;
    must_end(&mut link, 0).about("Connect under another name")?;
    // An identity for another subsystem.
    let mut link = TlsLink::dial(peer.host(), keys, &other)?;
    if link.handshake().is_ok() {
        link.send(IcReq::new(DataAlignment::NONE, Digests::empty(), 1).as_bytes())?;
        link.receive(IC_BYTES)?;
        link.send(&connect(peer, &peer.host().nqn))?;
        let status = completion(&mut link).about("the identity of another subsystem")?.cqe.status();
        holds(!status.is_success(), "a queue connects with the identity of another subsystem")?;
    }
    others_get_in(peer)
}

/// NVMe/TCP clause 3.6.1: each queue has a session of its own, with the same identity. A queue in cleartext does not
/// join the controller of a queue with TLS.
fn one_identity_on_several_queues(peer: &Target, keys: &HostKeys) -> Check {
    let mut first = TlsLink::initialised(peer.host(), keys)?;
    first.send(&connect(peer, &peer.host().nqn))?;
    let response = completion(&mut first)?;
    let status = response.cqe.status();
    holds(status.is_success(), format!("Connect: {status}"))?;
    let cntlid = Cntlid::new(u16::try_from(response.cqe.dw0() & 0xFFFF).expect("16 bits"));
    let host = peer.host();
    let data = ConnectData::new(host.hostid, cntlid, &host.subsystem, &host.nqn);
    // Before the controller is enabled no I/O queue connects, but each queue gets its own session and answer.
    let mut second = TlsLink::initialised(peer.host(), keys).about("a second session with the identity")?;
    second.send(&connect_of(peer, 1, &data))?;
    completion(&mut second).about("a second session with the identity")?;
    if peer.is_tls_only {
        return holds(host.link(Digests::empty()).is_err(), "a connection in cleartext is initialised");
    }
    let mut clear = host.link(Digests::empty()).about("a connection in cleartext")?;
    clear.send(&connect_of(peer, 1, &data))?;
    match clear.receive() {
        Ok(peer::link::Got::Completion(cqe)) => {
            // A queue that must authenticate first has joined nothing yet.
            let is_out =
                !cqe.status().is_success() || ConnectResult::from_bits(cqe.dw0()).authentication_required();
            holds(is_out, "a queue in cleartext joins the controller of a queue with TLS")?;
        }
        Ok(_) => {}
        Err(finding) => return Err(finding.about("a queue in cleartext")),
    }
    others_get_in(peer)
}

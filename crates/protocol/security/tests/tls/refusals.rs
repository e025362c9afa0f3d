//! What is refused, how soon, and with which alert.

use nvlane_security::hash::HashFunction;
use nvlane_security::tls::{Alert, Failure, IdentityOffer, Read, Session};

use crate::{host_keys, host_name, key, keyring, subsystem};

/// Gives all output of one session to the other, and reads there.
fn deliver(from: &mut Session, to: &mut Session) -> Result<Read, Failure> {
    let bytes = from.output().to_vec();
    from.on_sent(bytes.len());
    give(to, &bytes)
}

fn give(to: &mut Session, bytes: &[u8]) -> Result<Read, Failure> {
    let mut rest = bytes;
    while !rest.is_empty() {
        let taken = to.receive(rest.len(), |room| {
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            (count, count)
        });
        rest = &rest[taken.expect("room")..];
        to.read(&mut [0; 100])?;
    }
    to.read(&mut [0; 100])
}

fn host(byte: u8) -> Session {
    Session::host(&host_keys(key(HashFunction::Sha256, byte)).offer(
        IdentityOffer::Both,
        &host_name(),
        &subsystem(),
    ))
    .expect("a session")
}

#[test]
fn another_key_is_an_unknown_identity() {
    let (mut host, mut target) = (host(2), Session::target(keyring([key(HashFunction::Sha256, 1)])));
    // Version 1 is unknown. Version 0 has no digest of the key, so its binder is checked, and does not fit.
    let refused = deliver(&mut host, &mut target).expect_err("another key");
    assert_eq!(refused, Failure::Protocol("PSK binder did not match the expected value"));
    assert_eq!(target.output(), [21, 3, 3, 0, 2, 2, 51]);
    assert_eq!(deliver(&mut target, &mut host), Err(Failure::Alert(Alert::DECRYPT_ERROR)));
    assert!(target.established().is_none() && host.established().is_none());
    // It stays refused.
    assert_eq!(target.read(&mut [0; 10]), Err(refused));
}

#[test]
fn an_identity_without_a_key_is_refused_at_once() {
    let ring = keyring([key(HashFunction::Sha384, 1)]);
    let (mut host, mut target) = (host(1), Session::target(ring));
    let refused = deliver(&mut host, &mut target).expect_err("no such key");
    assert!(
        matches!(&refused, Failure::UnknownIdentity(identity) if identity.starts_with("NVMe1R01 ")),
        "{refused}"
    );
    // As with a wrong key.
    assert_eq!(target.output(), [21, 3, 3, 0, 2, 2, 51]);
    assert_eq!(deliver(&mut target, &mut host), Err(Failure::Alert(Alert::DECRYPT_ERROR)));
}

#[test]
fn what_is_not_tls_is_refused_with_its_first_byte() {
    for bytes in [&[0, 0, 128][..], b"GET /", &[0x80, 46, 1]] {
        let mut target = Session::target(keyring([key(HashFunction::Sha256, 1)]));
        assert_eq!(give(&mut target, bytes), Err(Failure::NotTls));
        assert!(target.output().is_empty());
    }
    // A target in cleartext answers with a TermReq.
    let mut host = host(1);
    assert_eq!(give(&mut host, &[3, 0, 24, 0, 24, 0, 0, 0]), Err(Failure::NotTls));
}

#[test]
fn a_connection_that_ends_within_the_handshake_is_said_to() {
    let mut target = Session::target(keyring([key(HashFunction::Sha256, 1)]));
    target.on_input_end();
    assert_eq!(target.read(&mut [0; 10]), Err(Failure::Closed));
    let mut host = host(1);
    host.on_input_end();
    assert_eq!(host.read(&mut [0; 10]), Err(Failure::Closed));
}

#[test]
fn a_long_hello_is_refused_and_kept_no_longer() {
    let mut target = Session::target(keyring([key(HashFunction::Sha256, 1)]));
    // Records of one byte, of a message that announces 8 KiB.
    let begin =
        [[22, 3, 1, 0, 1, 1], [22, 3, 1, 0, 1, 0], [22, 3, 1, 0, 1, 31], [22, 3, 1, 0, 1, 255]].concat();
    let endless: Vec<u8> = begin.into_iter().chain([22, 3, 1, 0, 1, 0].repeat(3000)).collect();
    assert_eq!(give(&mut target, &endless), Err(Failure::MalformedHello));
    assert_eq!(target.output(), [21, 3, 3, 0, 2, 2, 50]);
}

/// Changes of cipher suite mean nothing in TLS 1.3 and are skipped, but not for ever.
#[test]
fn a_peer_that_only_keeps_the_other_end_busy_is_refused() {
    let (mut host, mut target) = (host(1), Session::target(keyring([key(HashFunction::Sha256, 1)])));
    deliver(&mut host, &mut target).expect("a ClientHello");
    let endless = [20, 3, 3, 0, 1, 1].repeat(20_000);
    assert_eq!(give(&mut target, &endless), Err(Failure::Protocol("too much input without data")));
}

//! A host's session and a target's, byte by byte in memory.

use nvlane_security::hash::HashFunction;
use nvlane_security::psk::{Cipher, IdentityVersion};
use nvlane_security::tls::{Failure, IdentityOffer, Read, Session};
use proptest::prelude::*;

use crate::{HOST, SUBSYSTEM, host_keys, host_name, key, keyring, subsystem};

/// Two sessions.
struct Pair {
    host: Session,
    target: Session,
}

impl Pair {
    fn new(hash: HashFunction) -> Self {
        let offer = host_keys(key(hash, 1)).offer(IdentityOffer::Both, &host_name(), &subsystem());
        let ring = keyring([key(HashFunction::Sha384, 9), key(hash, 1)]);
        Self { host: Session::host(&offer).expect("a session"), target: Session::target(ring) }
    }

    /// Moves at most `most` bytes from one session to the other. Returns how many there were.
    fn carry(from: &mut Session, to: &mut Session, most: usize) -> usize {
        let mut bytes = from.output().to_vec();
        bytes.truncate(most);
        let taken = to.receive(bytes.len(), |room| {
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            (count, count)
        });
        from.on_sent(taken.unwrap_or(0));
        taken.unwrap_or(0)
    }

    /// Carries bytes both ways in pieces until no more come; what each side reads is returned: the host's, the target's.
    fn exchange(&mut self, most: usize) -> Result<[Vec<u8>; 2], Failure> {
        let mut received = [Vec::new(), Vec::new()];
        loop {
            let there = Self::carry(&mut self.host, &mut self.target, most);
            drain(&mut self.target, &mut received[1])?;
            let back = Self::carry(&mut self.target, &mut self.host, most);
            drain(&mut self.host, &mut received[0])?;
            if there + back == 0 {
                return Ok(received);
            }
        }
    }
}

fn drain(session: &mut Session, into: &mut Vec<u8>) -> Result<bool, Failure> {
    let mut buffer = [0; 5000];
    loop {
        match session.read(&mut buffer)? {
            Read::Bytes(count) => into.extend_from_slice(&buffer[..count]),
            Read::Dry => return Ok(false),
            Read::Ended => return Ok(true),
        }
    }
}

fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|at| u8::try_from(at % 251).expect("a byte")).collect()
}

#[test]
fn both_ciphers_carry_data_both_ways_whatever_the_pieces() {
    for (hash, cipher) in
        [(HashFunction::Sha256, Cipher::Aes128GcmSha256), (HashFunction::Sha384, Cipher::Aes256GcmSha384)]
    {
        for most in [1, 2, 3, 5, 16, 100, 1000, usize::MAX] {
            let mut pair = Pair::new(hash);
            assert_eq!(pair.exchange(most).expect("a handshake"), [vec![], vec![]]);
            for session in [&pair.host, &pair.target] {
                let established = session.established().expect("established");
                assert_eq!(established.cipher, cipher);
                assert_eq!(established.identity.version, IdentityVersion::One);
                assert_eq!(established.identity.host.to_string(), HOST);
                assert_eq!(established.identity.subsystem.to_string(), SUBSYSTEM);
            }
            let (there, back) = (pattern(40_000), pattern(333));
            pair.host.write(&there).expect("encrypted");
            pair.target.write(&back).expect("encrypted");
            assert_eq!(pair.exchange(most).expect("carried"), [back, there]);
        }
    }
}

#[test]
fn a_long_write_is_full_records() {
    let mut pair = Pair::new(HashFunction::Sha256);
    pair.exchange(usize::MAX).expect("a handshake");
    pair.host.write(&pattern(64 << 10)).expect("encrypted");
    let (mut records, mut output) = (Vec::new(), pair.host.output());
    while let [23, 3, 3, high, low, rest @ ..] = output {
        let length = usize::from(u16::from_be_bytes([*high, *low]));
        records.push(length);
        output = &rest[length..];
    }
    // Each with its type and tag.
    assert_eq!((records, output.len()), (vec![(16 << 10) + 17; 4], 0));
    assert_eq!(pair.exchange(usize::MAX).expect("carried")[1], pattern(64 << 10));
}

#[test]
fn keys_are_updated_both_ways_and_data_goes_on() {
    let mut pair = Pair::new(HashFunction::Sha256);
    pair.exchange(usize::MAX).expect("a handshake");
    for round in 0..5 {
        let (there, back) = (pattern(100 + round), pattern(20_000 + round));
        pair.host.update_key().expect("updated");
        pair.host.write(&there).expect("encrypted");
        // A record for the KeyUpdate, before that of the data.
        assert!(pair.host.output().len() > there.len() + 2 * 22, "{}", pair.host.output().len());
        pair.target.update_key().expect("updated");
        pair.target.write(&back).expect("encrypted");
        assert_eq!(pair.exchange(7).expect("carried"), [back, there]);
    }
}

#[test]
fn close_notify_ends_one_direction_and_a_cut_connection_ends_too() {
    for is_polite in [true, false] {
        let mut pair = Pair::new(HashFunction::Sha256);
        pair.exchange(usize::MAX).expect("a handshake");
        pair.host.write(b"last").expect("encrypted");
        if is_polite {
            pair.host.close();
        }
        while Pair::carry(&mut pair.host, &mut pair.target, usize::MAX) > 0 {}
        pair.target.on_input_end();
        let mut received = Vec::new();
        assert_eq!(drain(&mut pair.target, &mut received), Ok(true));
        assert_eq!(received, b"last");
    }
}

/// Whatever follows, encrypted, in cleartext, at once or later.
#[test]
fn nothing_behind_a_close_notify_is_delivered() {
    let mut pair = Pair::new(HashFunction::Sha256);
    pair.exchange(usize::MAX).expect("a handshake");
    pair.host.write(b"last").expect("encrypted");
    let record = pair.host.output().to_vec();
    pair.host.close();
    let sent: Vec<u8> = [pair.host.output(), &record, b"in cleartext"].concat();
    let mut received = Vec::new();
    for bytes in [&sent[..], b"later", &record] {
        let taken = pair.target.receive(bytes.len(), |room| {
            let count = room.len().min(bytes.len());
            room[..count].copy_from_slice(&bytes[..count]);
            (count, count)
        });
        assert!(taken.is_none_or(|taken| taken == bytes.len()));
        for _ in 0..3 {
            assert_eq!(drain(&mut pair.target, &mut received), Ok(true));
            assert_eq!(received, b"last");
        }
    }
}

#[test]
fn idle_sessions_free_their_buffers_and_go_on() {
    let mut pair = Pair::new(HashFunction::Sha256);
    pair.exchange(usize::MAX).expect("a handshake");
    for _ in 0..3 {
        pair.host.write(&pattern(3000)).expect("encrypted");
        assert_eq!(pair.exchange(100).expect("carried")[1], pattern(3000));
        pair.host.shrink();
        pair.target.shrink();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is changed in transit, no session returns anything but what the other one wrote, and both fail or wait.
    #[test]
    fn damage_is_noticed(at in any::<prop::sample::Index>(), flip in 1..=255_u8, in_data in any::<bool>()) {
        let mut pair = Pair::new(HashFunction::Sha256);
        if in_data {
            pair.exchange(usize::MAX).expect("a handshake");
            pair.host.write(&pattern(500)).expect("encrypted");
        }
        let mut bytes = pair.host.output().to_vec();
        let at = at.index(bytes.len());
        bytes[at] ^= flip;
        pair.host.on_sent(bytes.len());
        let mut rest = &bytes[..];
        let mut received = Vec::new();
        let mut outcome = Ok(false);
        while !rest.is_empty() && outcome == Ok(false) {
            let taken = pair.target.receive(rest.len(), |room| {
                let count = room.len().min(rest.len());
                room[..count].copy_from_slice(&rest[..count]);
                (count, count)
            });
            rest = &rest[taken.unwrap_or(0)..];
            outcome = drain(&mut pair.target, &mut received);
        }
        prop_assert!(received.is_empty(), "{} bytes of a damaged record", received.len());
        let sent = pair.target.output().first().copied();
        if outcome.is_ok() {
            // It waits for the rest of a longer record, or the change was in what TLS 1.3 ignores and signs: the
            // handshake cannot be completed then.
            let _ = pair.exchange(usize::MAX);
            // The version of the record is ignored, and nothing signs it.
            let is_version = !in_data && (1..3).contains(&at);
            let is_open = pair.host.established().is_some() && pair.target.established().is_some();
            prop_assert!(in_data || is_version || !is_open);
        } else {
            prop_assert!(pair.target.failure().is_some());
            prop_assert!(sent.is_none_or(|kind| [21, 22, 23].contains(&kind)));
        }
    }

    #[test]
    fn any_bytes_are_taken_in(bytes in prop::collection::vec(any::<u8>(), 1..3000), from_target in any::<bool>()) {
        let mut pair = Pair::new(HashFunction::Sha256);
        let session = if from_target { &mut pair.host } else { &mut pair.target };
        let mut rest = &bytes[..];
        while !rest.is_empty() {
            let taken = session.receive(rest.len(), |room| {
                let count = room.len().min(rest.len());
                room[..count].copy_from_slice(&rest[..count]);
                (count, count)
            });
            rest = &rest[taken.unwrap_or(0)..];
            if session.read(&mut [0; 100]).is_err() {
                break;
            }
        }
        prop_assert!(session.established().is_none());
    }
}

/// The cipher suites of a ClientHello.
fn suites_of(hello: &[u8]) -> Vec<u16> {
    // The record's header, the message's, its version and random bytes.
    let session_at = 5 + 4 + 2 + 32;
    let suites_at = session_at + 1 + usize::from(hello[session_at]);
    let length = usize::from(u16::from_be_bytes([hello[suites_at], hello[suites_at + 1]]));
    let suites = &hello[suites_at + 2..suites_at + 2 + length];
    suites.chunks(2).map(|suite| u16::from_be_bytes([suite[0], suite[1]])).collect()
}

/// A target may choose the suite first, and look for a key of it then.
#[test]
fn a_host_prefers_the_suite_of_its_key() {
    const TLS_AES_128_GCM_SHA256: u16 = 0x1301;
    const TLS_AES_256_GCM_SHA384: u16 = 0x1302;
    for (hash, suites) in [
        (HashFunction::Sha256, &[TLS_AES_128_GCM_SHA256, TLS_AES_256_GCM_SHA384][..]),
        (HashFunction::Sha384, &[TLS_AES_256_GCM_SHA384]),
    ] {
        for identities in [IdentityOffer::Both, IdentityOffer::VersionZero] {
            let offer = host_keys(key(hash, 1)).offer(identities, &host_name(), &subsystem());
            let session = Session::host(&offer).expect("a session");
            let mut offered = suites_of(session.output());
            // A value that says something about renegotiation is no suite.
            offered.retain(|suite| suite >> 8 == 0x13);
            assert_eq!(offered, suites);
        }
    }
}

//! Memory of idle sessions, by role. The figures: `cargo test -p nvlane-security --test tls_memory -- --nocapture`
#![allow(missing_docs)]

use std::sync::Arc;

use allocators::CountingAllocator;
use nvlane_security::hash::HashFunction;
use nvlane_security::psk::Derivation;
use nvlane_security::tls::{HostKeys, IdentityOffer, Keyring, KnownKey, Read, Session};
use nvlane_security::tls_key::TlsKey;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

const SESSIONS: usize = 200;

/// Bar of docs/design/tls.md: bytes of an idle lane with TLS beyond one without.
const IDLE_BYTES_MAX: usize = 32 << 10;

/// Bytes of a handshake that is under way.
const HANDSHAKE_BYTES_MAX: usize = 48 << 10;

fn carry(from: &mut Session, to: &mut Session) -> usize {
    let bytes = from.output().to_vec();
    let mut rest = &bytes[..];
    let mut buffer = vec![0; 20_000];
    while !rest.is_empty() {
        let taken = to.receive(rest.len(), |room| {
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            (count, count)
        });
        rest = &rest[taken.unwrap_or(0)..];
        while let Read::Bytes(_) = to.read(&mut buffer).expect("good bytes") {}
    }
    from.on_sent(bytes.len());
    bytes.len()
}

/// Resident memory of this process, bytes.
fn resident_bytes() -> usize {
    let text = std::fs::read_to_string("/proc/self/statm").expect("Linux");
    let pages = text.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok());
    pages.expect("a number") * 4096
}

/// Many sessions of one role, and the bytes of each: by the allocator, and resident.
fn sessions(is_host: bool, is_used: bool, is_idle: bool) -> (Vec<Session>, usize, usize) {
    let key = TlsKey::new(Some(HashFunction::Sha256), vec![1; 32].into()).expect("a key");
    let host =
        "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().expect("a name");
    let subsystem = "nqn.2016-06.io.nvlane:disk".parse().expect("a name");
    let offer = HostKeys { key: key.clone(), derivation: Derivation::Standard }.offer(
        IdentityOffer::Both,
        &host,
        &subsystem,
    );
    let ring = Arc::new(Keyring::new(vec![KnownKey { subsystem: None, host: None, key }]));
    let begin = || {
        let mut host = Session::host(&offer).expect("a session");
        let mut target = Session::target(Arc::clone(&ring));
        while carry(&mut host, &mut target) + carry(&mut target, &mut host) > 0 {}
        if is_used {
            for (one, other) in [(0, 1), (1, 0)] {
                let mut ends = [&mut host, &mut target];
                ends[one].write(&[7; 64 << 10]).expect("encrypted");
                let [host, target] = &mut ends;
                if other == 1 {
                    carry(host, target)
                } else {
                    carry(target, host)
                };
            }
        }
        let mut kept = if is_host { host } else { target };
        if is_idle {
            kept.shrink();
        }
        kept
    };
    drop(begin());
    let mut kept = Vec::with_capacity(SESSIONS);
    let before = (CountingAllocator::held_bytes(), resident_bytes());
    kept.resize_with(SESSIONS, begin);
    let after = (CountingAllocator::held_bytes(), resident_bytes());
    (kept, (after.0 - before.0) / SESSIONS, (after.1 - before.1) / SESSIONS)
}

/// Checks the memory of sessions after a ClientHello that anybody may record and send again: the host never completes the
/// handshake. Returns them.
fn check_stopped_handshake() -> Vec<Session> {
    let key = TlsKey::new(Some(HashFunction::Sha256), vec![1; 32].into()).expect("a key");
    let host =
        "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().expect("a name");
    let subsystem = "nqn.2016-06.io.nvlane:disk".parse().expect("a name");
    let keys = HostKeys { key: key.clone(), derivation: Derivation::Standard };
    let offer = keys.offer(IdentityOffer::Both, &host, &subsystem);
    let ring = Arc::new(Keyring::new(vec![KnownKey { subsystem: None, host: None, key }]));
    let hello = Session::host(&offer).expect("a session").output().to_vec();
    let begin = || {
        let mut target = Session::target(Arc::clone(&ring));
        let mut rest = &hello[..];
        while !rest.is_empty() {
            let taken = target.receive(rest.len(), |room| {
                let count = room.len().min(rest.len());
                room[..count].copy_from_slice(&rest[..count]);
                (count, count)
            });
            rest = &rest[taken.unwrap_or(0)..];
        }
        target.read(&mut []).expect("a ServerHello");
        target.on_sent(target.output().len());
        target
    };
    drop(begin());
    let mut kept = Vec::with_capacity(SESSIONS);
    let before = (CountingAllocator::held_bytes(), resident_bytes());
    kept.resize_with(SESSIONS, begin);
    let after = (CountingAllocator::held_bytes(), resident_bytes());
    let (bytes, resident) = ((after.0 - before.0) / SESSIONS, (after.1 - before.1) / SESSIONS);
    println!("handshake under way: {bytes} bytes of the allocator, {resident} resident");
    assert!(bytes.max(resident) < HANDSHAKE_BYTES_MAX, "{bytes}, resident {resident}");
    kept
}

/// The memory is that of the process: nothing else runs meanwhile.
#[test]
fn a_stopped_handshake_is_bounded_and_an_idle_session_has_no_buffers() {
    // All are kept, so that none uses the memory that another one has freed.
    let mut kept = vec![check_stopped_handshake()];
    for (is_host, role) in [(true, "host"), (false, "target")] {
        for (is_used, is_idle) in [(false, true), (true, true), (true, false)] {
            let (sessions, bytes, resident) = sessions(is_host, is_used, is_idle);
            println!(
                "{role}, used {is_used}, idle {is_idle}: {bytes} bytes of the allocator, {resident} resident"
            );
            assert!(!is_idle || bytes.max(resident) < IDLE_BYTES_MAX, "{role}: {bytes}, resident {resident}");
            kept.push(sessions);
        }
    }
}

//! A lane core over TLS, between sockets in memory.

use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::sync::Arc;

use memory::Segment;
use nvlane_host_core::Command;
use nvlane_host_core::lane_core::LaneCore;
use proto::Violation;
use proto::host_controller::ControllerSettings;
use reactor::{Received, Sent};
use security::hash::HashFunction;
use security::psk::Derivation;
use security::tls::{ByteSocket, HostKeys, IdentityOffer, Keyring, KnownKey, Session, Stream};
use security::tls_key::TlsKey;
use wire::id::Nsid;
use wire::sqe::Sqe;

use super::{Laned, controller_settings};

/// A socket in memory that takes `room` bytes more.
struct Memory {
    received: VecDeque<u8>,
    sent: Vec<u8>,
    room: usize,
}

impl Memory {
    fn new() -> Self {
        Self { received: VecDeque::new(), sent: Vec::new(), room: usize::MAX }
    }

    /// Delivers what the other has sent.
    fn take_from(&mut self, other: &mut Self) {
        self.received.extend(other.sent.drain(..));
    }
}

impl ByteSocket for Memory {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        let count = into.len().min(self.received.len());
        if count == 0 {
            return Received::Dry;
        }
        into.iter_mut().zip(self.received.drain(..count)).for_each(|(into, byte)| *into = byte);
        Received::Bytes(count)
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        let count = bytes.len().min(self.room);
        if count == 0 {
            return Sent::Blocked;
        }
        self.room -= count;
        self.sent.extend_from_slice(&bytes[..count]);
        Sent::Bytes(count)
    }
}

/// The streams of a host and a target, with their sockets.
fn tls_pair() -> [(Stream, Memory); 2] {
    let key = TlsKey::new(Some(HashFunction::Sha256), vec![1; 32].into()).unwrap();
    let ControllerSettings { host, subsystem, .. } = controller_settings();
    let keys = HostKeys { key: key.clone(), derivation: Derivation::Standard };
    let ring = Keyring::new(vec![KnownKey { subsystem: None, host: None, key }]);
    let host =
        Stream::new(Session::host(&keys.offer(IdentityOffer::Both, &host.into(), &subsystem)).unwrap());
    let target = Stream::new(Session::target(Arc::new(ring)));
    let (mut host, mut target) = ((host, Memory::new()), (target, Memory::new()));
    while target.0.established().is_none() {
        host.0.handshake(&mut host.1).unwrap();
        target.1.take_from(&mut host.1);
        let received = target.0.receive(&mut [IoSliceMut::new(&mut [0; 100])], &mut target.1);
        assert!(matches!(received, Received::Dry));
        host.1.take_from(&mut target.1);
    }
    [host, target]
}

/// Sends what the lane has, as far as the socket takes it.
fn send_over_tls(core: &mut LaneCore<Vec<u8>>, host: &mut (Stream, Memory)) {
    while core.ring() {
        let mut segments = Vec::new();
        core.for_each_piece(|piece| {
            segments.push(Segment::new(piece));
            true
        });
        match host.0.send(&segments, &mut host.1) {
            Sent::Bytes(count) => core.on_sent(count),
            Sent::Blocked => return,
            Sent::Failed(error) => panic!("{error}"),
        }
    }
}

/// Where a socket takes a part of a caravan, TLS has encrypted all of it and still owes a byte. A TermReq sent then would
/// lose its first byte to it.
#[test]
fn a_term_req_waits_for_the_byte_that_tls_owes() {
    let [mut host, mut target] = tls_pair();
    let mut lane = Laned::new();
    let write = Command::raw_to_controller(Sqe::write(Nsid::new(1), 0, 8), 4096);
    lane.core.submit(write, Some(vec![0x22; 4096]), 9).unwrap();
    host.1.room = 100;
    send_over_tls(&mut lane.core, &mut host);
    assert_eq!(host.1.room, 0, "the socket is full");
    // Meanwhile the target reads, and breaks the transport.
    host.1.room = usize::MAX;
    let term_req = lane.core.term_req(Violation::Sequence);
    assert_eq!(term_req, None, "the caravan is on its way, if only with its last byte");
    // Without the violation: the caravan, and then a TermReq, arrive whole.
    send_over_tls(&mut lane.core, &mut host);
    let term_req = lane.core.term_req(Violation::Sequence).expect("nothing is on its way");
    let sent = host.0.send(&[Segment::new(&term_req)], &mut host.1);
    assert!(matches!(sent, Sent::Bytes(count) if count == term_req.len()));
    target.1.take_from(&mut host.1);
    let mut bytes = vec![0; 8192];
    let received = target.0.receive(&mut [IoSliceMut::new(&mut bytes)], &mut target.1);
    let Received::Bytes(count) = received else { panic!("{received:?}") };
    let (capsule, last) = bytes[..count].split_at(count - term_req.len());
    assert_eq!(last, term_req);
    assert_eq!(capsule.len(), 72 + 4096);
    assert!(capsule[72..].iter().all(|byte| *byte == 0x22));
}

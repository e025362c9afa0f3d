//! TLS sessions of both roles: bytes between them are cut, changed, inserted and dropped. wire §22.6
//!
//! Input: the cipher suite and whether the target has the host's key, then steps, each of one end.

use std::collections::VecDeque;
use std::sync::{Arc, LazyLock};

use security::hash::HashFunction;
use security::psk::Derivation;
use security::tls::{HostKeys, IdentityOffer, Keyring, KnownKey, Read, Session};
use security::tls_key::TlsKey;

use crate::input::Input;

/// Steps of one run.
const STEP_COUNT: usize = 300;

/// Bytes that one step moves at most.
const STEP_BYTES: u16 = 20_000;

/// Either end returns what the other has written, in order and from its begin, and nothing else; all of it if nothing happens
/// on the way. Without the key no session is established.
pub fn tls_stream(data: &[u8]) {
    let mut input = Input::new(data);
    let flags = input.byte();
    let hash = if flags & 1 == 0 { HashFunction::Sha256 } else { HashFunction::Sha384 };
    let is_known = flags & 2 == 0;
    let (host, subsystem) = ("nqn.2026-01.io.nvlane:host", "nqn.2026-01.io.nvlane:disk");
    let offer = HostKeys { key: key(hash, if is_known { 1 } else { 2 }), derivation: Derivation::Standard }
        .offer(IdentityOffer::Both, &host.parse().expect("a name"), &subsystem.parse().expect("a name"));
    let mut ends = [
        End::new(Session::host(&offer).expect("a key that the library takes")),
        End::new(Session::target(Arc::clone(&KEYRING))),
    ];
    ends.iter_mut().for_each(End::flush);
    for _ in 0..STEP_COUNT {
        if input.is_empty() {
            break;
        }
        let step = input.byte();
        let from = usize::from(step & 1);
        let is_established = ends[from].session.established().is_some();
        let count = |input: &mut Input<'_>| usize::from(input.word() % STEP_BYTES);
        match (step >> 1) & 7 {
            0 | 1 => carry(&mut ends, from, count(&mut input)),
            2 if is_established => {
                let length = count(&mut input);
                ends[from].write(length);
            }
            3 if is_established && !ends[from].is_closed => {
                let _ = ends[from].session.update_key();
            }
            4 => {
                let (at, bit) = (usize::from(input.word()), input.byte() & 7);
                let wire = &mut ends[from].wire;
                if let Some(byte) = wire.len().checked_sub(1).and_then(|last| wire.get_mut(at.min(last))) {
                    *byte ^= 1 << bit;
                    ends[from].is_damaged = true;
                }
            }
            5 => {
                let length = usize::from(input.byte());
                for byte in input.bytes(length).iter().rev() {
                    ends[from].wire.push_front(*byte);
                    ends[from].is_damaged = true;
                }
            }
            6 => {
                let end = &mut ends[from];
                let dropped = count(&mut input).min(end.wire.len());
                end.wire.drain(..dropped);
                end.is_damaged |= dropped > 0;
            }
            7 if is_established => {
                ends[from].session.close();
                ends[from].is_closed = true;
                ends[from].flush();
            }
            _ => {}
        }
    }
    // What is on the way arrives. A session sends little by itself: a few rounds are enough.
    let mut rounds = 0;
    while ends.iter().any(|end| !end.wire.is_empty()) {
        assert!(rounds < 1000, "the sessions go on without end");
        rounds += 1;
        carry(&mut ends, 0, usize::MAX);
        carry(&mut ends, 1, usize::MAX);
    }
    let is_damaged = ends.iter().any(|end| end.is_damaged);
    for (end, other) in [(0, 1), (1, 0)].map(|(end, other)| (&ends[end], &ends[other])) {
        assert!(is_known || end.session.established().is_none(), "a session without the key");
        if !is_damaged {
            assert_eq!(end.session.established().is_some(), is_known);
            assert_eq!(end.received.len(), other.written.len(), "bytes are missing");
        }
    }
    // The end of a connection is accepted at any time.
    for end in &mut ends {
        end.session.on_input_end();
        end.read(&[]);
    }
}

struct End {
    session: Session,
    /// On the way to the other end.
    wire: VecDeque<u8>,
    written: Vec<u8>,
    received: Vec<u8>,
    /// Bytes that it has sent were changed.
    is_damaged: bool,
    is_closed: bool,
}

impl End {
    fn new(session: Session) -> Self {
        Self {
            session,
            wire: VecDeque::new(),
            written: Vec::new(),
            received: Vec::new(),
            is_damaged: false,
            is_closed: false,
        }
    }

    /// Puts the session's output on the way.
    fn flush(&mut self) {
        let count = self.session.output().len();
        self.wire.extend(self.session.output());
        self.session.on_sent(count);
    }

    fn write(&mut self, length: usize) {
        let start = self.written.len();
        let data: Vec<u8> = (start..start + length).map(|at| (at % 251).to_le_bytes()[0]).collect();
        if self.session.write(&data).is_ok() {
            self.written.extend(data);
        }
        self.flush();
    }

    /// Takes plaintext until there is none, which must be what the other end has `written`.
    fn read(&mut self, written: &[u8]) {
        let mut into = [0; 3000];
        while let Ok(Read::Bytes(count)) = self.session.read(&mut into) {
            assert!(count > 0 && count <= into.len());
            let expected = written.get(self.received.len()..self.received.len() + count);
            assert_eq!(expected, Some(&into[..count]), "bytes that the other end has not written");
            self.received.extend_from_slice(&into[..count]);
        }
        self.flush();
    }
}

/// Up to `most` bytes arrive at the other end.
fn carry(ends: &mut [End; 2], from: usize, most: usize) {
    let [first, second] = ends;
    let (from, to) = if from == 0 { (first, second) } else { (second, first) };
    let count = most.min(from.wire.len());
    let bytes: Vec<u8> = from.wire.drain(..count).collect();
    let mut rest = &bytes[..];
    while !rest.is_empty() {
        let taken = to.session.receive(rest.len(), |room| {
            let count = room.len().min(rest.len());
            room[..count].copy_from_slice(&rest[..count]);
            (count, count)
        });
        to.read(&from.written);
        match taken {
            Some(count) => rest = &rest[count..],
            // A session that has failed takes no more.
            None => {
                assert!(to.session.failure().is_some() || to.is_closed || from.is_closed, "input is refused");
                return;
            }
        }
    }
}

fn key(hash: HashFunction, byte: u8) -> TlsKey {
    TlsKey::new(Some(hash), vec![byte; hash.digest_bytes()].into()).expect("a key")
}

/// The target's keys, one for each cipher suite.
static KEYRING: LazyLock<Arc<Keyring>> = LazyLock::new(|| {
    let keys = [HashFunction::Sha256, HashFunction::Sha384].map(|hash| key(hash, 1));
    let known = keys.into_iter().map(|key| KnownKey { subsystem: None, host: None, key });
    Arc::new(Keyring::new(known.collect()))
});

//! Streams over sockets that take and give little at a time.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::io::IoSliceMut;
use std::rc::Rc;

use memory::Segment;
use nvlane_security::hash::HashFunction;
use nvlane_security::tls::{ByteSocket, IdentityOffer, Session, Stream};
use proptest::prelude::*;
use reactor::{Received, Sent};

use crate::{host_keys, host_name, key, keyring, subsystem};

/// One direction of a connection.
#[derive(Default)]
struct Way {
    bytes: VecDeque<u8>,
    is_ended: bool,
}

/// An end of a connection in memory.
struct End {
    from: Rc<RefCell<Way>>,
    to: Rc<RefCell<Way>>,
    /// Bytes that are on the way at most.
    capacity: usize,
    /// Bytes of one receive at most.
    piece: usize,
}

impl ByteSocket for End {
    fn receive(&mut self, into: &mut [u8]) -> Received {
        let mut from = self.from.borrow_mut();
        let count = into.len().min(self.piece).min(from.bytes.len());
        if count == 0 {
            return if from.is_ended { Received::Ended } else { Received::Dry };
        }
        into.iter_mut().zip(from.bytes.drain(..count)).for_each(|(into, byte)| *into = byte);
        Received::Bytes(count)
    }

    fn send(&mut self, bytes: &[u8]) -> Sent {
        let mut to = self.to.borrow_mut();
        let count = bytes.len().min(self.capacity - to.bytes.len());
        if count == 0 {
            return Sent::Blocked;
        }
        to.bytes.extend(&bytes[..count]);
        Sent::Bytes(count)
    }
}

impl Drop for End {
    fn drop(&mut self) {
        self.to.borrow_mut().is_ended = true;
    }
}

/// A host's stream and a target's, each with its socket.
fn connected(capacity: usize, piece: usize) -> [(Stream, End); 2] {
    let ways = [Rc::<RefCell<Way>>::default(), Rc::default()];
    let end =
        |from: usize| End { from: Rc::clone(&ways[from]), to: Rc::clone(&ways[1 - from]), capacity, piece };
    let offer =
        host_keys(key(HashFunction::Sha256, 1)).offer(IdentityOffer::Both, &host_name(), &subsystem());
    let host = Stream::new(Session::host(&offer).expect("a session"));
    let target = Stream::allowing_clear(Session::target(keyring([key(HashFunction::Sha256, 1)])));
    let [mut host, mut target] = [(host, end(0)), (target, end(1))];
    for _ in 0..100_000 {
        let is_complete = host.0.handshake(&mut host.1).expect("a handshake");
        assert!(matches!(receive(&mut target, 100).0, Received::Dry));
        if is_complete && target.0.established().is_some() {
            assert!(!target.0.is_clear());
            return [host, target];
        }
    }
    panic!("no handshake");
}

fn receive((stream, socket): &mut (Stream, End), room: usize) -> (Received, Vec<u8>) {
    let (mut first, mut second) = (vec![0; room.div_ceil(2)], vec![0; room / 2]);
    let received = stream.receive(&mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)], socket);
    let mut bytes = [first, second].concat();
    bytes.truncate(if let Received::Bytes(count) = received { count } else { 0 });
    (received, bytes)
}

/// Sends all of it in segments, as a lane does, and has the other end receive meanwhile.
fn carry(
    from: &mut (Stream, End),
    to: &mut (Stream, End),
    data: &[u8],
    segment: usize,
    room: usize,
) -> Vec<u8> {
    let (mut sent, mut received) = (0, Vec::new());
    while sent < data.len() || received.len() < data.len() {
        let segments: Vec<_> = data[sent..].chunks(segment).map(Segment::new).collect();
        match from.0.send(&segments, &mut from.1) {
            Sent::Bytes(count) => sent += count,
            Sent::Blocked => {}
            Sent::Failed(error) => panic!("{error}"),
        }
        loop {
            let (outcome, bytes) = receive(to, room);
            received.extend(bytes);
            match outcome {
                Received::Bytes(count) => {
                    let asks_again = count == room || to.0.may_have_more() || to.0.has_input();
                    let is_emptied = to.1.from.borrow().bytes.is_empty() || to.1.piece < room;
                    assert!(asks_again || is_emptied, "{count} of {room} bytes, and the socket has more");
                }
                Received::Dry => break,
                other => panic!("{other:?}"),
            }
        }
        assert!(!to.0.has_input(), "nothing waits while the socket is silent");
    }
    received
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Whatever a socket takes and gives, data arrives as it was sent, once, in order.
    #[test]
    fn data_arrives_whatever_the_socket_takes(
        capacity in prop_oneof![1..300_usize, 300..100_000_usize],
        piece in prop_oneof![1..100_usize, 100..100_000_usize],
        lengths in prop::collection::vec(prop_oneof![1..200_usize, 200..150_000_usize], 1..4),
        segment in prop_oneof![1..100_usize, 100..70_000_usize],
        room in prop_oneof![1..100_usize, 100..300_000_usize],
    ) {
        // Small pieces of long data take long.
        let longest = [capacity, piece, segment, room].into_iter().min().unwrap_or(1) * 2000;
        let [mut host, mut target] = connected(capacity, piece);
        for (round, length) in lengths.into_iter().enumerate() {
            let data: Vec<u8> =
                (0..length.min(longest)).map(|at| u8::try_from((at + round) % 251).expect("a byte")).collect();
            prop_assert!(carry(&mut host, &mut target, &data, segment, room) == data);
            prop_assert!(carry(&mut target, &mut host, &data, segment, room) == data);
            host.0.update_key().expect("updated");
            target.0.shrink();
        }
    }
}

#[test]
fn a_connection_in_clear_is_told_by_its_first_byte() {
    let [_, (_, socket)] = connected(10_000, 10_000);
    socket.from.borrow_mut().bytes.extend([0, 0, 128, 0, 128]);
    let stream = Stream::allowing_clear(Session::target(keyring([key(HashFunction::Sha256, 1)])));
    let mut end = (stream, socket);
    let (received, bytes) = receive(&mut end, 100);
    assert!(matches!(received, Received::Bytes(5)));
    assert_eq!(bytes, [0, 0, 128, 0, 128]);
    assert!(end.0.is_clear());
}

/// How a connection ends behind data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ending {
    /// close_notify, and the connection stays open.
    CloseNotify,
    /// An alert that is not encrypted, as an attacker may send.
    ClearAlert,
    /// A record that does not decrypt.
    BadRecord,
    /// A part of a record, then the end of the connection.
    CutRecord,
    /// The end of the connection.
    End,
}

/// No event of the socket need come after the one with the data: the caller learns from `has_input` to ask again.
#[test]
fn an_end_behind_data_is_returned_without_another_event() {
    for room in [4, 100, 100_000] {
        for ending in
            [Ending::CloseNotify, Ending::ClearAlert, Ending::BadRecord, Ending::CutRecord, Ending::End]
        {
            let [mut host, mut target] = connected(100_000, 100_000);
            assert!(matches!(host.0.send(&[Segment::new(b"data")], &mut host.1), Sent::Bytes(4)));
            let add = |bytes: &[u8]| host.1.to.borrow_mut().bytes.extend(bytes);
            match ending {
                Ending::CloseNotify => host.0.close(&mut host.1),
                Ending::ClearAlert => add(&[21, 3, 3, 0, 2, 2, 40]),
                Ending::BadRecord => add(&[&[23, 3, 3, 0, 40][..], &[7; 40]].concat()),
                Ending::CutRecord => add(&[23, 3, 3, 0, 40, 1, 2]),
                Ending::End => {}
            }
            host.1.to.borrow_mut().is_ended = matches!(ending, Ending::CutRecord | Ending::End);
            let (received, bytes) = receive(&mut target, room);
            assert!(matches!(received, Received::Bytes(4)), "{ending:?}: {received:?}");
            assert_eq!(bytes, b"data");
            // A receive that was filled does not know yet, and its caller asks again in any case. With little room the
            // socket is read once: its end is still in it, and is an event of its own.
            let is_in_socket = room < 100_000 && matches!(ending, Ending::CutRecord | Ending::End);
            assert!(room == 4 || is_in_socket || target.0.has_input(), "{ending:?} with room for {room}");
            let (received, _) = receive(&mut target, room);
            let is_failure = matches!(ending, Ending::ClearAlert | Ending::BadRecord);
            assert!(
                if is_failure {
                    matches!(received, Received::Failed(_)) && target.0.failure().is_some()
                } else {
                    matches!(received, Received::Ended)
                },
                "{ending:?}: {received:?}"
            );
            assert!(!target.0.has_input(), "{ending:?} is said once");
        }
    }
}

#[test]
fn an_end_and_a_close_are_seen() {
    for is_polite in [true, false] {
        let [mut host, mut target] = connected(100_000, 100_000);
        let sent = host.0.send(&[Segment::new(b"last words")], &mut host.1);
        assert!(matches!(sent, Sent::Bytes(10)));
        if is_polite {
            host.0.close(&mut host.1);
        }
        drop(host);
        assert_eq!(receive(&mut target, 1000).1, b"last words");
        assert!(matches!(receive(&mut target, 1000).0, Received::Ended));
    }
}

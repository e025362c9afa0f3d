//! A host's commands beyond request and answer: iterated, sent without a copy, and removed after their connection has
//! closed.

#![allow(clippy::cast_possible_truncation)]

#[path = "harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

use std::cell::Cell;
use std::collections::BTreeSet;
use std::rc::Rc;

use nvlane_proto::host_queue::{HostEvent, Refused, Transfer};
use nvlane_proto::{HostQueue, Violation};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::ends::HostEnd;
use crate::pdus::{Dialect, LAST, READ, SUCCESS, TRANSPORT, WRITE, cqe, ic_resp, pattern};

/// A connected queue whose commands have data of this kind.
fn connected<B: nvlane_proto::host_queue::DataBuffer>() -> HostQueue<B> {
    let mut queue = HostQueue::new(nvlane_proto::handshake::HostOffer::default(), 16);
    assert!(queue.ring());
    let count = leaving(&queue).len();
    queue.on_sent(count);
    let mut answer = &ic_resp(0, 0, 4096)[..];
    assert!(matches!(queue.next_event(&mut answer), Ok(Some(HostEvent::Initialised(_)))));
    queue.set_in_capsule_bytes(8192);
    queue
}

/// The bytes in flight.
fn leaving<B: nvlane_proto::host_queue::DataBuffer>(queue: &HostQueue<B>) -> Vec<u8> {
    let mut bytes = Vec::new();
    queue.for_each_piece(|piece| {
        bytes.extend_from_slice(piece);
        true
    });
    bytes
}

fn write<B>(data: B) -> (Sqe, Transfer<B>) {
    (Sqe::new(WRITE, Nsid::new(1)), Transfer::ToController(data))
}

fn response(cid: u16) -> Vec<u8> {
    Dialect::PLAIN.response(cqe(cid, 0, 0))
}

#[test]
fn commands_that_have_not_ended_are_listed_as_they_were_sent() {
    let mut end = HostEnd::plain(Dialect::PLAIN);
    let room = end.queue.room();
    let cids = [end.flush(), end.read(512), end.write(pattern(512))];
    assert_eq!(end.queue.room(), room - 3);
    let listed: Vec<_> = end.queue.commands().map(|(sqe, user)| (sqe.opcode, sqe.cid.get(), user)).collect();
    assert_eq!(listed, [(0, cids[0], 7), (READ, cids[1], 7), (WRITE, cids[2], 7)]);
    end.queue.for_each_command(|sqe, user| *user = sqe.cid.get().into());
    assert_eq!(end.complete(&response(cids[1])).user, cids[1].into());
    assert_eq!(end.queue.completed_command().map(|sqe| sqe.cid.get()), Some(cids[1]));
    let users: Vec<u64> = end.queue.commands().map(|(_, user)| user).collect();
    assert_eq!(users, [cids[0], cids[2]].map(u64::from));
    let mut seen = 0;
    end.queue.for_each_command(|_, _| seen += 1);
    assert_eq!((seen, end.queue.room()), (2, room - 2));
}

#[test]
fn a_reserved_cid_is_given_to_no_further_command() {
    let mut end = HostEnd::plain(Dialect::PLAIN);
    let next = |end: &mut HostEnd| {
        let cid = end.flush();
        end.complete(&response(cid));
        cid
    };
    let cids: BTreeSet<u16> = (0..64).map(|_| next(&mut end)).collect();
    assert_eq!(cids.len(), 64, "each is used once before one is used again");
    let mut left = cids.clone();
    for cid in &cids {
        end.queue.reserve_cid(*cid);
        left.remove(cid);
        // The last to be reserved leaves none: those before it are used again.
        let expected = if left.is_empty() { &cids - &BTreeSet::from([*cid]) } else { left.clone() };
        let used: BTreeSet<u16> = (0..128).map(|_| next(&mut end)).collect();
        assert_eq!(used, expected);
    }
}

#[test]
fn there_is_no_room_before_the_handshake_nor_after_a_violation() {
    let mut end = HostEnd::new(Dialect::PLAIN, 1);
    assert_eq!(end.queue.room(), 0);
    assert!(end.queue.next_event(&mut &response(0)[..]).is_err());
    assert_eq!(end.queue.room(), 0);
}

#[test]
fn a_full_queue_gives_the_data_back() {
    let mut queue = connected();
    for room in (1..=16).rev() {
        assert_eq!(queue.room(), room);
        let (sqe, transfer) = write(pattern(512));
        queue.submit(sqe, transfer, 7).expect("there is room");
    }
    let (sqe, transfer) = write(pattern(8));
    let Err(Refused::Full(Transfer::ToController(data))) = queue.submit(sqe, transfer, 7) else {
        panic!("one too many")
    };
    assert_eq!((data, queue.room(), queue.outstanding()), (pattern(8), 0, 16));
}

/// A late answer does not end a later command.
#[test]
fn a_slot_has_64_ids_by_turns() {
    let mut end = HostEnd::plain(Dialect::PLAIN);
    let mut next = || {
        let cid = end.flush();
        end.complete(&response(cid));
        cid
    };
    let first = next();
    let mut cids = BTreeSet::from([first]);
    cids.extend((1..64).map(|_| next()));
    assert_eq!(cids.len(), 64);
    assert_eq!(next(), first);
}

#[test]
fn a_write_of_no_bytes_has_none_in_its_capsule() {
    let mut queue = connected();
    let (sqe, transfer) = write(Vec::new());
    queue.submit(sqe, transfer, 7).expect("there is room");
    assert!(queue.ring());
    let capsule = leaving(&queue);
    assert_eq!((capsule.len(), capsule[3], capsule[8 + 39]), (72, 0, TRANSPORT));
}

#[test]
fn the_rest_of_a_read_may_be_received_where_it_belongs() {
    let mut end = HostEnd::plain(Dialect::BOTH_DIGESTS);
    let cid = end.read(4096);
    assert!(end.queue.place().is_none() && !end.queue.is_within_pdu(), "nothing has come");
    let pdu = Dialect::BOTH_DIGESTS.c2h(cid, 0, &pattern(4096), LAST | SUCCESS);
    let (first, rest) = pdu.split_at(28 + 96);
    assert_eq!(end.feed(first), Ok(Vec::new()));
    assert!(end.queue.is_within_pdu());
    let (data, digest) = rest.split_at(4000);
    for part in [&data[..1000], &data[1000..]] {
        let place = end.queue.place().expect("data is next");
        place[..part.len()].copy_from_slice(part);
        end.queue.on_placed(part.len()).expect("data of this PDU");
    }
    assert!(end.queue.place().is_none(), "the digest is next");
    let completion = end.complete(digest);
    assert_eq!((completion.status, completion.buffer), (Status::SUCCESS, Some(pattern(4096))));
    assert!(!end.queue.is_within_pdu());
}

#[test]
fn data_that_leaves_without_a_copy_holds_its_command_until_the_last_notice() {
    let mut queue = connected();
    let (sqe, transfer) = write(pattern(4096));
    queue.submit(sqe, transfer, 7).expect("there is room");
    assert!(queue.ring() && queue.is_stable());
    let bytes = leaving(&queue);
    let cid = u16::from_le_bytes([bytes[10], bytes[11]]);
    queue.on_sent_zero_copy(100, true);
    queue.on_sent_zero_copy(bytes.len() - 100, true);
    assert_eq!((queue.awaited_count(), leaving(&queue)), (2, Vec::new()));
    // It is answered, but the kernel may still read its data.
    assert!(matches!(queue.next_event(&mut &response(cid)[..]), Ok(None)));
    queue.on_notice(1, 1);
    assert!(!queue.has_finished() && queue.awaited_count() == 1);
    queue.on_notice(0, 0);
    assert!(queue.has_finished() && queue.awaited_count() == 0);
    let Ok(Some(HostEvent::Completed(completion))) = queue.next_event(&mut &[][..]) else {
        panic!("it has ended")
    };
    assert_eq!((completion.status, completion.buffer), (Status::SUCCESS, Some(pattern(4096))));
    assert_eq!(queue.outstanding(), 0);
}

#[test]
fn a_window_is_over_with_its_last_byte_and_not_with_its_notice() {
    for is_zero_copy in [false, true] {
        let mut queue = connected();
        let (sqe, transfer) = write(pattern(16384));
        queue.submit(sqe, transfer, 7).expect("there is room");
        assert!(queue.ring());
        let capsule = leaving(&queue);
        let cid = u16::from_le_bytes([capsule[10], capsule[11]]);
        queue.on_sent(capsule.len());
        let r2t = |queue: &mut HostQueue<Vec<u8>>, offset| {
            queue.next_event(&mut &Dialect::PLAIN.r2t(cid, 1, offset, 8192)[..]).map(|event| event.is_none())
        };
        assert_eq!(r2t(&mut queue, 0), Ok(true));
        assert!(queue.ring());
        let length = leaving(&queue).len();
        assert_eq!(length, 8192 + 2 * 24);
        queue.on_sent_zero_copy(length - 1, is_zero_copy);
        if is_zero_copy {
            queue.on_sent_zero_copy(1, false);
            assert_eq!(r2t(&mut queue, 8192), Ok(true), "the notice is not awaited");
        } else {
            assert_eq!(r2t(&mut queue, 8192), Err(Violation::LimitExceeded), "a byte has not left");
        }
    }
}

#[test]
fn data_within_its_command_is_not_stable() {
    let mut queue = connected();
    for _ in 0..2 {
        let (sqe, transfer) = write([7u8; 512]);
        assert!(queue.submit(sqe, transfer, 7).is_ok());
    }
    assert!(queue.ring() && !queue.is_stable(), "its slot may move with the queue");
    queue.on_sent(100);
    assert!(!queue.is_stable(), "some of it is left");
    queue.on_sent(72 + 512);
    assert!(!queue.is_stable(), "nor does that of the next");
}

#[test]
fn what_has_not_ended_is_taken_out_with_what_is_known_of_it() {
    let mut end = HostEnd::plain(Dialect::PLAIN);
    let room = end.queue.room();
    let asked = end.read(512);
    let (sqe, transfer) = write(pattern(512));
    end.queue.submit(sqe, transfer, 8).expect("there is room");
    assert!(end.queue.ring());
    let bytes = leaving(&end.queue);
    let answered = u16::from_le_bytes([bytes[10], bytes[11]]);
    // The controller answers before the last of the data has been sent.
    end.queue.on_sent(bytes.len() - 1);
    assert_eq!(end.feed(&response(answered)), Ok(Vec::new()));
    end.queue.submit(Sqe::new(0, Nsid::new(1)), Transfer::None, 9).expect("there is room");
    let mut unfinished = Vec::new();
    while let Some(command) = end.queue.next_unfinished_command() {
        let length = match command.transfer {
            Transfer::None => None,
            Transfer::ToController(data) => Some((true, data.len())),
            Transfer::FromController { buffer, .. } => Some((false, buffer.len())),
        };
        unfinished.push((command.user, command.sqe.cid.get(), length, command.answer, command.is_unsent));
    }
    assert_eq!(
        unfinished[..2],
        [
            (7, asked, Some((false, 512)), None, false),
            (8, answered, Some((true, 512)), Some((Status::SUCCESS, 0)), false),
        ]
    );
    let [.., (9, _, None, None, true)] = unfinished[..] else { panic!("{unfinished:?}") };
    assert_eq!((unfinished.len(), end.queue.room()), (3, room));
}

/// Data that reports when it is freed.
struct Watched(Rc<Cell<bool>>, Vec<u8>);

impl AsRef<[u8]> for Watched {
    fn as_ref(&self) -> &[u8] {
        &self.1
    }
}

impl AsMut<[u8]> for Watched {
    fn as_mut(&mut self) -> &mut [u8] {
        &mut self.1
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.0.set(true);
    }
}

#[test]
fn a_queue_that_is_dropped_with_notices_outstanding_leaks_its_data() {
    for (is_zero_copy, is_noticed, is_freed) in
        [(true, false, false), (true, true, true), (false, false, true)]
    {
        let is_gone = Rc::new(Cell::new(false));
        let mut queue = connected();
        let (sqe, transfer) = write(Watched(Rc::clone(&is_gone), pattern(512)));
        assert!(queue.submit(sqe, transfer, 7).is_ok() && queue.ring());
        if is_zero_copy {
            queue.on_sent_zero_copy(100, true);
        } else {
            queue.on_sent(100);
        }
        if is_noticed {
            queue.on_notice(0, 0);
        }
        drop(queue);
        assert_eq!(is_gone.get(), is_freed, "zero-copy {is_zero_copy}, noticed {is_noticed}");
    }
}

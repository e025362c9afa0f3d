//! A host whose data lies in several pieces sends and receives the same bytes as with contiguous data.

#![allow(clippy::cast_possible_truncation)]

#[path = "harness/pdus.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod pdus;

use std::cell::Cell;
use std::ops::Range;

use nvlane_proto::HostQueue;
use nvlane_proto::handshake::HostOffer;
use nvlane_proto::host_queue::{DataBuffer, HostEvent, Refused, Transfer};
use pdus::{Dialect, LAST, SUCCESS, ic_resp, pattern, sqe};
use proptest::prelude::*;
use wire::id::Nsid;
use wire::pdu::Digests;
use wire::sqe::Sqe;

/// Non-empty pieces of memory, and how many of their bytes were sent or received, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Pieces(Vec<Vec<u8>>, usize);

impl Pieces {
    fn new(lengths: &[usize], data: &[u8]) -> Self {
        let mut rest = data;
        let mut pieces: Vec<Vec<u8>> = Vec::new();
        for length in lengths.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, others) = rest.split_at((*length).min(rest.len()));
            pieces.push(piece.to_vec());
            rest = others;
        }
        Self(pieces, 0)
    }

    fn find(&self, mut offset: usize) -> (usize, usize) {
        for (index, piece) in self.0.iter().enumerate() {
            if offset < piece.len() {
                return (index, offset);
            }
            offset -= piece.len();
        }
        panic!("past the end")
    }
}

impl DataBuffer for Pieces {
    const FOLLOWS_DATA: bool = true;

    fn on_sent(&mut self, range: Range<usize>) {
        assert_eq!(range.start, self.1);
        self.1 = range.end;
    }

    fn on_received(&mut self, range: Range<usize>) {
        self.on_sent(range);
    }

    fn length(&self) -> usize {
        self.0.iter().map(Vec::len).sum()
    }

    fn part(&self, offset: usize) -> &[u8] {
        let (index, at) = self.find(offset);
        &self.0[index][at..]
    }

    fn part_mut(&mut self, offset: usize) -> &mut [u8] {
        let (index, at) = self.find(offset);
        &mut self.0[index][at..]
    }
}

fn connected<B: DataBuffer>(dialect: Dialect) -> HostQueue<B> {
    let offer = HostOffer { digests: Digests::from_bits_retain(dialect.digests), ..HostOffer::default() };
    let mut queue = HostQueue::new(offer, 4);
    sent(&mut queue);
    let answer = ic_resp(dialect.alignment, dialect.digests, 4096);
    assert!(matches!(queue.next_event(&mut &answer[..]), Ok(Some(HostEvent::Initialised(_)))));
    queue
}

fn sent<B: DataBuffer>(queue: &mut HostQueue<B>) -> Vec<u8> {
    sent_in_steps(queue, usize::MAX)
}

/// What leaves, of which the socket takes at most `step` bytes at once.
fn sent_in_steps<B: DataBuffer>(queue: &mut HostQueue<B>, step: usize) -> Vec<u8> {
    let mut all = Vec::new();
    queue.ring();
    while queue.caravan().is_leaving() {
        let start = all.len();
        queue.for_each_piece(|piece| {
            assert!(!piece.is_empty());
            all.extend_from_slice(piece);
            true
        });
        all.truncate(start.saturating_add(step));
        queue.on_sent(all.len() - start);
    }
    all
}

proptest! {
    #[test]
    fn writes_leave_as_from_one_piece(
        digests in 0u8..4,
        lengths in prop::collection::vec(1usize..600, 1..8),
        dwords in 1usize..3000,
        step in 100usize..9000,
    ) {
        let dialect = Dialect { digests, alignment: 0 };
        let data = pattern(dwords * 4);
        for in_capsule in [0, 16_384] {
            let mut queue = connected(dialect);
            queue.set_in_capsule_bytes(in_capsule);
            let buffer = Pieces::new(&lengths, &data);
            queue.submit(Sqe::new(1, Nsid::new(1)), Transfer::ToController(buffer.clone()), 1).unwrap();
            let length = data.len() as u32;
            if in_capsule > 0 {
                prop_assert!(sent(&mut queue) == dialect.command(sqe(1, 0x0400, 0x01, length), &data));
                continue;
            }
            prop_assert!(sent(&mut queue) == dialect.command(sqe(1, 0x0400, 0x5A, length), &[]));
            queue.next_event(&mut &dialect.r2t(0x0400, 9, 0, length)[..]).unwrap();
            let expected: Vec<u8> = data
                .chunks(4096)
                .enumerate()
                .flat_map(|(index, chunk)| {
                    let start = index * 4096;
                    let more = if start + chunk.len() == data.len() { LAST } else { 0 };
                    dialect.h2c(0x0400, 9, start as u32, chunk, more)
                })
                .collect();
            prop_assert!(sent_in_steps(&mut queue, step) == expected);
            let unfinished = queue.next_unfinished(wire::status::Status::HOST_PATHING_ERROR).unwrap();
            // The buffer was told of each byte once, as far as it was sent.
            prop_assert_eq!(unfinished.buffer, Some(Pieces(buffer.0, data.len())));
        }
    }

    #[test]
    fn reads_arrive_as_in_one_piece(
        digests in 0u8..4,
        lengths in prop::collection::vec(1usize..600, 1..8),
        dwords in 1usize..3000,
        cuts in prop::collection::vec(1usize..900, 1..30),
        places: bool,
    ) {
        let dialect = Dialect { digests, alignment: 0 };
        let data = pattern(dwords * 4);
        let mut queue = connected(dialect);
        let buffer = Pieces::new(&lengths, &vec![0; data.len()]);
        let transfer = Transfer::FromController { buffer, is_exact: true };
        queue.submit(Sqe::new(2, Nsid::new(1)), transfer, 1).unwrap();
        sent(&mut queue);
        let answer = dialect.c2h(0x0400, 0, &data, LAST | SUCCESS);
        let (mut rest, mut completed) = (&answer[..], None);
        for cut in cuts.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (mut chunk, others) = rest.split_at((*cut).min(rest.len()));
            rest = others;
            if places && let Some(place) = queue.place() {
                // The contiguous part.
                let count = place.len().min(chunk.len());
                place[..count].copy_from_slice(&chunk[..count]);
                queue.on_placed(count).unwrap();
                chunk = &chunk[count..];
            }
            while let Some(event) = queue.next_event(&mut chunk).unwrap() {
                prop_assert!(completed.is_none());
                completed = Some(event);
            }
        }
        let Some(HostEvent::Completed(completion)) = completed else { panic!("{completed:?}") };
        prop_assert!(completion.status.is_success());
        // The buffer was told of each byte once.
        prop_assert_eq!(completion.buffer, Some(Pieces(Pieces::new(&lengths, &data).0, data.len())));
    }
}

#[test]
fn a_send_that_is_full_asks_for_no_further_pieces() {
    /// Bytes in pieces of one each, and how many were asked for.
    struct Counted(Vec<u8>, Cell<usize>);
    impl DataBuffer for Counted {
        fn length(&self) -> usize {
            self.0.len()
        }
        fn part(&self, offset: usize) -> &[u8] {
            self.1.set(self.1.get() + 1);
            &self.0[offset..=offset]
        }
        fn part_mut(&mut self, _: usize) -> &mut [u8] {
            unreachable!("nothing is received")
        }
    }
    let mut queue = connected(Dialect { digests: 0, alignment: 0 });
    queue.set_in_capsule_bytes(4096);
    let buffer = Counted(vec![7; 4096], Cell::new(0));
    assert!(queue.submit(Sqe::new(1, Nsid::new(1)), Transfer::ToController(buffer), 1).is_ok());
    queue.ring();
    let mut count = 0;
    queue.for_each_piece(|_| {
        count += 1;
        count < 11
    });
    let unfinished = queue.next_unfinished(wire::status::Status::HOST_PATHING_ERROR).unwrap();
    assert_eq!(unfinished.buffer.map(|buffer| buffer.1.get()), Some(10), "behind one header");
}

#[test]
fn data_longer_than_a_pdu_can_say_is_not_taken() {
    /// Data that claims this length.
    #[derive(Debug)]
    struct Claim(usize);
    impl DataBuffer for Claim {
        fn length(&self) -> usize {
            self.0
        }
        fn part(&self, _: usize) -> &[u8] {
            unreachable!("nothing is sent")
        }
        fn part_mut(&mut self, _: usize) -> &mut [u8] {
            unreachable!("nothing is received")
        }
    }
    let mut queue = connected(Dialect::BOTH_DIGESTS);
    for (length, is_taken) in [(u32::MAX as usize - 1024, false), (usize::MAX, false), (1 << 31, true)] {
        let sqe = Sqe::new(2, Nsid::new(1));
        let outcome =
            queue.submit(sqe, Transfer::FromController { buffer: Claim(length), is_exact: true }, 1);
        match outcome {
            Ok(()) => assert!(is_taken),
            Err(Refused::TooLong(Transfer::FromController { buffer, .. })) => assert_eq!(buffer.0, length),
            Err(other) => panic!("{other:?}"),
        }
    }
    assert_eq!(queue.outstanding(), 1);
}

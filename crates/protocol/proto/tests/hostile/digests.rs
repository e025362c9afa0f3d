//! Rows G: digests, at the controller. wire §3

use nvlane_proto::Violation;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::headers::asking;
use crate::pdus::{
    DDGST, Dialect, FLUSH, IN_CAPSULE, LAST, TRANSPORT, WRITE, cqe, ic_req, pattern, sqe, term_req,
};

fn with_header_digest() -> impl Iterator<Item = Dialect> {
    Dialect::all().filter(|dialect| dialect.digests & 1 != 0)
}

fn with_data_digest() -> impl Iterator<Item = Dialect> {
    Dialect::all().filter(|dialect| dialect.digests & DDGST != 0)
}

/// `pdu` with one bit of its last byte flipped: the data digest's.
fn corrupt(mut pdu: Vec<u8>) -> Vec<u8> {
    *pdu.last_mut().unwrap() ^= 1;
    pdu
}

#[test]
fn g1_a_wrong_header_digest_is_told_back_and_nothing_is_acted_on() {
    for dialect in with_header_digest() {
        // A bit in the entry, and a bit in the digest itself. The received digest is the TermReq's information.
        for at in (8..76).step_by(5) {
            let mut bytes = dialect.command(sqe(WRITE, 9, IN_CAPSULE, 64), &pattern(64));
            bytes[at] ^= 0x10;
            let received = u32::from_le_bytes(bytes[72..76].try_into().unwrap());
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..72, Violation::HeaderDigest { received });
        }
        for at in (8..28).step_by(3) {
            let (end, ttag) = asking(dialect);
            let mut bytes = dialect.h2c(7, ttag, 0, &pattern(8192), LAST);
            bytes[at] ^= 0x10;
            let received = u32::from_le_bytes(bytes[24..28].try_into().unwrap());
            end.assert_fatal(&bytes, 0..24, Violation::HeaderDigest { received });
        }
    }
}

#[test]
fn g2_a_wrong_data_digest_in_a_capsule_fails_the_command_only() {
    for dialect in with_data_digest() {
        let mut end = ControllerEnd::plain(dialect);
        let good = dialect.command(sqe(WRITE, 9, IN_CAPSULE, 512), &pattern(512));
        let status = Status::TRANSIENT_TRANSPORT_ERROR;
        let data_at = dialect.pdo(72);
        for at in [data_at, data_at + 511, data_at + 512, data_at + 515] {
            let mut bytes = good.clone();
            bytes[at] ^= 0x80;
            assert_eq!(end.feed(&bytes).unwrap(), [Seen::Refused { cid: 9, status }]);
            // Also in pieces.
            let seen: Vec<Seen> = bytes.chunks(100).flat_map(|chunk| end.feed(chunk).unwrap()).collect();
            assert_eq!(seen, [Seen::Refused { cid: 9, status }]);
            assert_eq!(end.queue.outstanding(), 0);
            end.sent();
        }
        // The lane stays open, and the cid is free.
        end.deliver(&good);
        // A command that is refused anyway is answered once, with its own status.
        assert_eq!(
            end.feed(&corrupt(good)).unwrap(),
            [Seen::Refused { cid: 9, status: Status::COMMAND_ID_CONFLICT.with_dnr() }]
        );
        assert_eq!(end.sent(), dialect.response(cqe(9, 10, 0x8006)));
    }
}

#[test]
fn g3_g4_a_wrong_data_digest_of_any_pdu_of_a_write_is_told_once_all_of_it_has_come() {
    for dialect in with_data_digest() {
        for bad in 0..3 {
            let (mut end, ttag) = asking(dialect);
            let data = pattern(8192);
            let mut seen = Vec::new();
            for (index, (range, flags)) in
                [(0..4096, 0), (4096..4100, 0), (4100..8192, LAST)].into_iter().enumerate()
            {
                let pdu = dialect.h2c(7, ttag, range.start as u32, &data[range], flags);
                let pdu = if index == bad { corrupt(pdu) } else { pdu };
                seen.extend(end.feed(&pdu).unwrap());
            }
            let [Seen::DataReceived { slot, is_intact: false }] = seen[..] else { panic!("{seen:?}") };
            end.complete(slot, Status::TRANSIENT_TRANSPORT_ERROR);
            assert_eq!(end.sent(), dialect.response(cqe(7, 1, 0x0044)));
            end.deliver(&dialect.command(sqe(FLUSH, 8, TRANSPORT, 0), &[]));
        }
    }
}

#[test]
fn g5_a_pdu_too_short_for_its_digests_is_refused_at_byte_4() {
    for dialect in with_header_digest() {
        for plen in 72..76_u32 {
            let bytes =
                dialect.with(dialect.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]), 4, &plen.to_le_bytes());
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, Violation::HeaderField { offset: 4 });
        }
    }
    for dialect in with_data_digest() {
        let data_at = dialect.pdo(72) as u32;
        for plen in data_at + 1..=data_at + 4 {
            let bytes = dialect.with(
                dialect.command(sqe(WRITE, 1, IN_CAPSULE, 512), &pattern(512)),
                4,
                &plen.to_le_bytes(),
            );
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, Violation::HeaderField { offset: 4 });
        }
        let data_at = dialect.pdo(24) as u32;
        for plen in data_at + 1..=data_at + 4 {
            let (end, ttag) = asking(dialect);
            let bytes = dialect.with(dialect.h2c(7, ttag, 0, &pattern(512), 0), 4, &plen.to_le_bytes());
            end.assert_fatal(&bytes, 0..8, Violation::HeaderField { offset: 4 });
        }
    }
}

#[test]
fn g6_neither_handshake_nor_termreq_carries_a_digest() {
    // The four bytes after an ICReq that requests digests begin the next PDU.
    let mut end = ControllerEnd::new(Default::default());
    let mut bytes = ic_req(0, 3, 0);
    bytes.extend_from_slice(&[0xAA, 0x36, 0x91, 0x8A, 0, 0, 0, 0]);
    let mut input = &bytes[..];
    assert!(matches!(end.next(&mut input), Ok(Some(Seen::Initialised(_)))));
    assert_eq!(end.sent().len(), 128);
    end.assert_fatal(input, 0..8, Violation::HeaderField { offset: 0 });
    // Ours has none either, whatever was negotiated: `assert_fatal` compares it to the byte.
    let bytes = Dialect::BOTH_DIGESTS.with(Dialect::BOTH_DIGESTS.command([0; 64], &[]), 2, &[71]);
    ControllerEnd::plain(Dialect::BOTH_DIGESTS).assert_fatal(
        &bytes,
        0..8,
        Violation::HeaderField { offset: 2 },
    );
    // The peer's is read without one.
    let ended = ControllerEnd::plain(Dialect::BOTH_DIGESTS).feed(&term_req(0x02, 3, 7, &[]));
    assert!(matches!(ended, Err(Violation::EndedByPeer { fei: 7, .. })));
}

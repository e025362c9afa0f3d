//! Rows H: a hostile controller, at the host. wire §4.2

use nvlane_proto::Violation;
use nvlane_proto::handshake::HostOffer;
use nvlane_proto::host_queue::{HostEvent, Transfer};
use wire::id::Nsid;
use wire::pdu::{Digests, FatalErrorStatus};
use wire::sqe::Sqe;
use wire::status::Status;

use crate::ends::HostEnd;
use crate::pdus::{DDGST, Dialect, LAST, SUCCESS, cqe, ic_resp, pattern, term_req};

const CID: Violation = Violation::HeaderField { offset: 8 };

const fn header_field(offset: u8) -> Violation {
    Violation::HeaderField { offset }
}

fn fresh() -> HostEnd {
    HostEnd::new(Dialect::BOTH_DIGESTS, 1)
}

#[test]
fn h1_an_impossible_icresp_fails_the_connect() {
    let good = ic_resp(0, 3, 8192);
    let with = |at: usize, bytes: &[u8]| Dialect::PLAIN.with(good.clone(), at, bytes);
    for kind in (0..=0xFF).filter(|kind| ![0x01, 0x03].contains(kind)) {
        fresh().assert_fatal(&with(0, &[kind]), 0..8, Violation::Sequence);
    }
    // Flags, PDO and reserved bits of DGST mean nothing there.
    for (at, bits) in [(1, 0xFF), (3, 72), (11, 0xFF)] {
        let (mut end, bytes) = (fresh(), with(at, &[bits]));
        let event = end.queue.next_event(&mut &bytes[..]);
        assert!(matches!(event, Ok(Some(HostEvent::Initialised(_)))), "byte {at}");
    }
    for hlen in (0..=0xFF).filter(|hlen| *hlen != 128) {
        fresh().assert_fatal(&with(2, &[hlen]), 0..8, header_field(2));
    }
    for plen in [0_u32, 7, 24, 127, 129, 256, u32::MAX] {
        fresh().assert_fatal(&with(4, &plen.to_le_bytes()), 0..8, header_field(4));
    }
    for pfv in [1_u16, 0x100, 0xFFFF] {
        let expected = Violation::UnsupportedParameter { offset: 8 };
        fresh().assert_fatal(&with(8, &pfv.to_le_bytes()), 0..128, expected);
    }
    for cpda in 32..=0xFF {
        fresh().assert_fatal(&with(10, &[cpda]), 0..128, header_field(10));
    }
    for digests in (0..=0xFF).filter(|digests| *digests & 3 != 3) {
        let expected = Violation::UnsupportedParameter { offset: 11 };
        fresh().assert_fatal(&with(11, &[digests]), 0..128, expected);
    }
    for limit in [0_u32, 4, 4092, 4095, 4097, 8190, u32::MAX] {
        fresh().assert_fatal(&with(12, &limit.to_le_bytes()), 0..128, header_field(12));
    }
    // Partial or missing: nothing is negotiated.
    for cut in 0..128 {
        let mut end = fresh();
        assert!(end.feed(&good[..cut]).unwrap().is_empty());
        assert!(!end.queue.has_room(), "no command before the handshake");
        assert!(end.queue.submit(Sqe::new(0, Nsid::new(1)), Transfer::None, 0).is_err());
        assert_eq!(end.sent(), []);
    }
}

#[test]
fn h1_a_second_icresp_is_out_of_sequence() {
    HostEnd::plain(Dialect::BOTH_DIGESTS).assert_fatal(&ic_resp(0, 3, 8192), 0..8, Violation::Sequence);
}

#[test]
fn h1_every_possible_alignment_is_honoured() {
    for cpda in 0..=31 {
        for digests in 0..4 {
            let offer = HostOffer { digests: Digests::from_bits_retain(digests), ..HostOffer::default() };
            let mut end = HostEnd { queue: nvlane_proto::HostQueue::new(offer, 4) };
            end.sent();
            let mut answer = &ic_resp(cpda, digests, 4096)[..];
            assert!(matches!(end.queue.next_event(&mut answer), Ok(Some(HostEvent::Initialised(_)))));
            end.queue.set_in_capsule_bytes(600);
            let dialect = Dialect { digests, alignment: cpda };
            end.queue.submit(Sqe::new(0x01, Nsid::new(1)), Transfer::ToController(pattern(600)), 0).unwrap();
            let sent = end.sent();
            let pdo = dialect.pdo(72);
            assert_eq!((usize::from(sent[3]), &sent[pdo..pdo + 600]), (pdo, &pattern(600)[..]));
            let cid = end.write(pattern(604));
            end.feed(&Dialect { digests, alignment: 0 }.r2t(cid, 0xABCD, 0, 604)).unwrap();
            assert_eq!(end.sent(), dialect.h2c(cid, 0xABCD, 0, &pattern(604), LAST));
        }
    }
}

#[test]
fn h2_a_header_length_that_is_not_the_type_s_is_refused_at_byte_2() {
    for dialect in Dialect::all() {
        for hlen in [0, 7, 8, 23, 25, 28, 72, 128, 255] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(512);
            let bytes = dialect.with(dialect.c2h(cid, 0, &pattern(512), LAST), 2, &[hlen]);
            end.assert_fatal(&bytes, 0..8, header_field(2));
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(512);
            let bytes = dialect.with(dialect.response(cqe(cid, 0, 0)), 2, &[hlen]);
            end.assert_fatal(&bytes, 0..8, header_field(2));
            let mut end = HostEnd::plain(dialect);
            let cid = end.write(pattern(9000));
            let bytes = dialect.with(dialect.r2t(cid, 1, 0, 9000), 2, &[hlen]);
            end.assert_fatal(&bytes, 0..8, header_field(2));
        }
    }
}

#[test]
fn h3_data_for_a_command_that_is_no_read_touches_no_buffer() {
    for dialect in Dialect::all() {
        let data = |cid| dialect.c2h(cid, 0, &pattern(512), LAST);
        for wrong in [0, 1, 0x400, 0x401, 0x03FF, 0xFFFF] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(512);
            if wrong != cid {
                end.assert_fatal(&data(wrong), 0..24, CID);
            }
        }
        let mut end = HostEnd::plain(dialect);
        let cid = end.write(pattern(512));
        let pdu = data(cid);
        assert_eq!(end.feed(&pdu).map(|_| ()), Err(CID));
        assert!(end.queue.place().is_none());
        let unfinished = end.queue.next_unfinished(Status::HOST_PATHING_ERROR).unwrap();
        assert_eq!(unfinished.buffer, Some(pattern(512)), "as it was");
        let mut end = HostEnd::plain(dialect);
        let cid = end.write(pattern(512));
        end.assert_fatal(&data(cid), 0..24, CID);
        let mut end = HostEnd::plain(dialect);
        let cid = end.flush();
        end.assert_fatal(&data(cid), 0..24, CID);
        // A read that has ended.
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(512);
        end.complete(&[data(cid), dialect.response(cqe(cid, 0, 0))].concat());
        end.assert_fatal(&data(cid), 0..24, CID);
    }
}

#[test]
fn h4_read_data_comes_in_order_and_within_its_buffer() {
    for dialect in Dialect::all() {
        for offset in [1, 4, 512, 1024, u32::MAX - 3, u32::MAX] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(1024);
            end.assert_fatal(&dialect.c2h(cid, offset, &pattern(512), 0), 0..24, Violation::OutOfRange);
        }
        for (offset, length) in [(0, 512), (508, 4), (516, 4), (512, 516), (512, 1024)] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(1024);
            assert!(end.feed(&dialect.c2h(cid, 0, &pattern(512), 0)).unwrap().is_empty());
            end.assert_fatal(&dialect.c2h(cid, offset, &pattern(length), LAST), 0..24, Violation::OutOfRange);
        }
        for length in [0_u32, 1, 508, 516, u32::MAX] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(1024);
            let bytes = dialect.with(dialect.c2h(cid, 0, &pattern(512), 0), 16, &length.to_le_bytes());
            end.assert_fatal(&bytes, 0..24, header_field(16));
        }
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(1024);
        end.assert_fatal(&dialect.c2h(cid, 0, &[], LAST), 0..24, header_field(16));
        // A PDU longer than any buffer, recognized by its header alone.
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(1024);
        let length = u32::MAX - (dialect.pdo(24) + dialect.trailer()) as u32;
        let bytes = dialect.with(dialect.c2h(cid, 0, &pattern(8), 0), 4, &u32::MAX.to_le_bytes());
        let bytes = dialect.with(bytes, 16, &length.to_le_bytes());
        end.assert_fatal(&bytes[..dialect.prefix(24)], 0..24, Violation::OutOfRange);
    }
}

#[test]
fn h5_a_read_that_came_short_never_succeeds() {
    for dialect in Dialect::all() {
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(1024);
        end.assert_fatal(&dialect.c2h(cid, 0, &pattern(1024), SUCCESS), 0..24, header_field(1));
        // SUCCESS too early; a response too early; no data at all.
        let short = [
            |dialect: Dialect, cid| dialect.c2h(cid, 0, &pattern(512), LAST | SUCCESS),
            |dialect: Dialect, cid| {
                [dialect.c2h(cid, 0, &pattern(512), LAST), dialect.response(cqe(cid, 0, 0))].concat()
            },
            |dialect: Dialect, cid| dialect.response(cqe(cid, 0, 0)),
        ];
        for (index, answer) in short.into_iter().enumerate() {
            let mut end = HostEnd::plain(dialect);
            let cid = end.read(1024);
            let completion = end.complete(&answer(dialect, cid));
            assert_eq!(completion.status, Status::DATA_TRANSFER_ERROR);
            assert_eq!(completion.received, [512, 512, 0][index]);
        }
        // If any length is allowed, the received length is reported.
        let mut end = HostEnd::plain(dialect);
        let transfer = Transfer::FromController { buffer: vec![0; 1024], is_exact: false };
        let cid = end.submit(0x02, transfer);
        let completion = end.complete(&dialect.c2h(cid, 0, &pattern(512), LAST | SUCCESS));
        assert_eq!((completion.status, completion.received), (Status::SUCCESS, 512));
        // A failed read may have part of its data, and keeps its status.
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(1024);
        let answer = [dialect.c2h(cid, 0, &pattern(512), 0), dialect.response(cqe(cid, 0, 0x8100))].concat();
        assert_eq!(end.complete(&answer).status, Status::LBA_OUT_OF_RANGE.with_dnr());
    }
}

#[test]
fn h6_an_answer_that_cannot_be_is_out_of_sequence() {
    for dialect in Dialect::all() {
        for wrong in [0, 0x0400, 0x0401, 0x03FF, 0x7C00, 0xFFFF] {
            HostEnd::plain(dialect).assert_fatal(
                &dialect.response(cqe(wrong, 0, 0)),
                0..24,
                Violation::Sequence,
            );
        }
        // Twice.
        let mut end = HostEnd::plain(dialect);
        let cid = end.flush();
        let answer = dialect.response(cqe(cid, 0, 0));
        end.complete(&answer);
        end.assert_fatal(&answer, 0..24, Violation::Sequence);
        // Success of a write whose data was not requested, or only in part. A failure is allowed.
        for asked in [0, 4096] {
            let write = || {
                let mut end = HostEnd::plain(dialect);
                let cid = end.write(pattern(9000));
                if asked > 0 {
                    assert!(end.feed(&dialect.r2t(cid, 1, 0, asked)).unwrap().is_empty());
                    end.sent();
                }
                (end, cid)
            };
            let (end, cid) = write();
            end.assert_fatal(&dialect.response(cqe(cid, 0, 0)), 0..24, Violation::Sequence);
            let (mut end, cid) = write();
            let completion = end.complete(&dialect.response(cqe(cid, 0, 0x8100)));
            assert_eq!(completion.status, Status::LBA_OUT_OF_RANGE.with_dnr());
        }
    }
}

#[test]
fn h7_an_r2t_of_no_bytes_is_refused_at_byte_16() {
    for dialect in Dialect::all() {
        for offset in [0, 4, 9000] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.write(pattern(9000));
            end.assert_fatal(&dialect.r2t(cid, 1, offset, 0), 0..24, header_field(16));
        }
    }
}

#[test]
fn h8_an_r2t_for_a_command_that_is_no_write_sends_nothing() {
    for dialect in Dialect::all() {
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(9000);
        end.assert_fatal(&dialect.r2t(cid, 1, 0, 9000), 0..24, Violation::Sequence);
        let mut end = HostEnd::plain(dialect);
        let cid = end.flush();
        end.assert_fatal(&dialect.r2t(cid, 1, 0, 4), 0..24, Violation::Sequence);
        let mut end = HostEnd::plain(dialect);
        let cid = end.write(pattern(9000));
        end.assert_fatal(&dialect.r2t(cid ^ 0x400, 1, 0, 9000), 0..24, CID);
        // Data sent in the capsule cannot be requested again.
        let mut end = HostEnd::plain(dialect);
        let cid = end.write(pattern(512));
        end.assert_fatal(&dialect.r2t(cid, 1, 0, 512), 0..24, Violation::OutOfRange);
    }
}

#[test]
fn h9_an_r2t_outside_what_is_left_of_its_command_is_out_of_range() {
    for dialect in Dialect::all() {
        for (offset, length) in [
            (4, 4),
            (9000, 4),
            (0, 9004),
            (0, u32::MAX),
            (8996, 8),
            (u32::MAX, 1),
            (0x1000, 0xFFFF_F000),
            (u32::MAX - 3, 8),
        ] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.write(pattern(9000));
            end.assert_fatal(&dialect.r2t(cid, 1, offset, length), 0..24, Violation::OutOfRange);
        }
        // After the first R2T: overlapping it, leaving a gap, beyond the end.
        for (offset, length) in [(0, 4096), (4092, 8), (4100, 4), (4096, 4908), (4096, u32::MAX)] {
            let mut end = HostEnd::plain(dialect);
            let cid = end.write(pattern(9000));
            assert!(end.feed(&dialect.r2t(cid, 1, 0, 4096)).unwrap().is_empty());
            assert_eq!(end.sent(), dialect.h2c(cid, 1, 0, &pattern(9000)[..4096], LAST));
            end.assert_fatal(&dialect.r2t(cid, 2, offset, length), 0..24, Violation::OutOfRange);
        }
    }
}

#[test]
fn h10_more_r2ts_at_once_than_agreed_exceed_the_limit() {
    for dialect in Dialect::all() {
        for limit in 1..4_u32 {
            let serving = || {
                let mut end = HostEnd::connected(dialect, limit, 1 << 20);
                let cid = end.write(pattern(40_000));
                for index in 0..limit {
                    assert!(end.feed(&dialect.r2t(cid, 1, index * 4096, 4096)).unwrap().is_empty());
                }
                (end, cid)
            };
            // The same again, the next one, nonsense: any further R2T is one too many.
            for (offset, length) in [(0, 4096), (limit * 4096, 4096), (0, u32::MAX)] {
                let (end, cid) = serving();
                end.assert_fatal(&dialect.r2t(cid, 9, offset, length), 0..24, Violation::LimitExceeded);
            }
            // Once the data of one R2T is sent, the next may arrive.
            let (mut end, cid) = serving();
            end.sent();
            assert!(end.feed(&dialect.r2t(cid, 9, limit * 4096, 4096)).unwrap().is_empty());
        }
    }
}

#[test]
fn h11_a_termreq_is_never_answered() {
    for fes in [0, 1, 6, 7, 0xFFFF] {
        for copy in [&[][..], &[4; 128]] {
            let ended = Violation::EndedByPeer { fes: FatalErrorStatus::from_raw(fes), fei: 9 };
            let flood = term_req(0x03, fes, 9, copy).repeat(3);
            fresh().assert_dropped(&flood, ended);
            let mut end = HostEnd::plain(Dialect::BOTH_DIGESTS);
            end.read(512);
            end.assert_dropped(&flood, ended);
        }
    }
    for plen in [0_u32, 8, 23, 153, u32::MAX] {
        let bytes = Dialect::PLAIN.with(term_req(0x03, 1, 0, &[]), 4, &plen.to_le_bytes());
        HostEnd::plain(Dialect::PLAIN).assert_dropped(&bytes, Violation::MalformedTermReq);
    }
    let host_s_own = term_req(0x02, 1, 0, &[]);
    HostEnd::plain(Dialect::PLAIN).assert_fatal(&host_s_own, 0..8, header_field(0));
}

#[test]
fn h12_a_wrong_data_digest_fails_that_read_only() {
    for dialect in Dialect::all().filter(|dialect| dialect.digests & DDGST != 0) {
        for bad in 0..3 {
            let mut end = HostEnd::plain(dialect);
            let (cid, other) = (end.read(1024), end.read(512));
            let mut pdus = [
                dialect.c2h(cid, 0, &pattern(1024)[..512], 0),
                dialect.c2h(cid, 512, &pattern(1024)[512..], LAST),
                dialect.c2h(other, 0, &pattern(512), LAST | SUCCESS),
            ];
            *pdus[bad].last_mut().unwrap() ^= 1;
            let mut stream = pdus.concat();
            stream.extend(dialect.response(cqe(cid, 0, 0)));
            let completions = end.feed(&stream).unwrap();
            let corrupt = Status::TRANSIENT_TRANSPORT_ERROR;
            let expected = if bad == 2 { [corrupt, Status::SUCCESS] } else { [Status::SUCCESS, corrupt] };
            assert_eq!([completions[0].status, completions[1].status], expected);
            // The lane stays open.
            let cid = end.flush();
            assert!(end.complete(&dialect.response(cqe(cid, 0, 0))).status.is_success());
        }
        // A failure takes precedence over a digest error.
        let mut end = HostEnd::plain(dialect);
        let cid = end.read(512);
        let mut stream = dialect.c2h(cid, 0, &pattern(512), 0);
        *stream.last_mut().unwrap() ^= 1;
        stream.extend(dialect.response(cqe(cid, 0, 0x8100)));
        assert_eq!(end.complete(&stream).status, Status::LBA_OUT_OF_RANGE.with_dnr());
    }
}

#[test]
fn h13_an_answer_that_comes_late_finds_no_command() {
    // The next command in the same slot has another cid, 63 times in a row.
    let dialect = Dialect::PLAIN;
    let mut end = HostEnd::plain(dialect);
    let mut seen = Vec::new();
    for _ in 0..64 {
        let cid = end.read(512);
        assert!(!seen.contains(&cid));
        seen.push(cid);
        end.complete(&dialect.c2h(cid, 0, &pattern(512), LAST | SUCCESS));
    }
    let cid = end.read(512);
    for late in seen.into_iter().filter(|late| *late != cid) {
        let mut again = HostEnd::plain(dialect);
        let cid = again.read(512);
        if late != cid {
            again.assert_fatal(&dialect.response(cqe(late, 0, 0)), 0..24, Violation::Sequence);
        }
    }
    // A buffer is not returned while the caravan refers to it, whatever the controller sends.
    let mut end = HostEnd::plain(dialect);
    let cid = end.write(pattern(9000));
    assert!(end.feed(&dialect.r2t(cid, 1, 0, 9000)).unwrap().is_empty());
    assert!(end.feed(&dialect.response(cqe(cid, 0, 0))).unwrap().is_empty(), "held back");
    assert!(end.queue.ring() && !end.queue.has_finished());
    end.queue.on_sent(24 + 8999);
    assert!(end.feed(&[]).unwrap().is_empty());
    end.queue.on_sent(1);
    assert!(end.queue.has_finished());
    let completion = end.complete(&[]);
    assert_eq!((completion.status, completion.buffer), (Status::SUCCESS, Some(pattern(9000))));
}

#[test]
fn what_the_controller_does_not_send_is_refused_at_byte_0() {
    for kind in (0..=0xFF).filter(|kind| ![0x01, 0x03, 0x05, 0x07, 0x09].contains(kind)) {
        let mut end = HostEnd::plain(Dialect::PLAIN);
        let cid = end.read(512);
        let bytes = Dialect::PLAIN.with(Dialect::PLAIN.c2h(cid, 0, &pattern(512), LAST), 0, &[kind]);
        end.assert_fatal(&bytes, 0..8, header_field(0));
    }
}

#[test]
fn a_response_or_r2t_with_anything_behind_its_header_is_refused_at_byte_4() {
    for dialect in Dialect::all() {
        for more in [1, 4, 512] {
            for is_r2t in [false, true] {
                let mut end = HostEnd::plain(dialect);
                let cid = end.write(pattern(9000));
                let pdu =
                    if is_r2t { dialect.r2t(cid, 1, 0, 9000) } else { dialect.response(cqe(cid, 0, 0)) };
                let plen = pdu.len() as u32 + more;
                let bytes = dialect.with(pdu, 4, &plen.to_le_bytes());
                end.assert_fatal(&bytes, 0..8, header_field(4));
            }
        }
    }
}

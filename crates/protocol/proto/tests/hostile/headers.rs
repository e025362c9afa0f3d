//! Rows P: the common header, at the controller. wire §2.1

use nvlane_proto::Violation;
use nvlane_proto::controller_queue::{CAPSULE_BYTES_MIN, QueueSettings};
use wire::pdu::FatalErrorStatus;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::pdus::{
    DDGST, Dialect, FABRICS, FLUSH, HDGST, IN_CAPSULE, LAST, SUCCESS, TRANSPORT, WRITE, header_length,
    ic_req, pattern, sqe, term_req,
};

const fn header_field(offset: u8) -> Violation {
    Violation::HeaderField { offset }
}

fn write(length: u32) -> [u8; 64] {
    sqe(WRITE, 0x1234, IN_CAPSULE, length)
}

/// A controller that has requested 8192 bytes for command 7, and the transfer tag.
pub(crate) fn asking(dialect: Dialect) -> (ControllerEnd, u16) {
    let mut end = ControllerEnd::plain(dialect);
    let slot = end.deliver(&dialect.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]));
    end.queue.request_data(slot, vec![0; 8192], 8192);
    let r2t = end.sent();
    assert_eq!(r2t[0], 0x09);
    (end, u16::from_le_bytes([r2t[10], r2t[11]]))
}

#[test]
fn p1_first_bytes_that_are_no_icreq_are_out_of_sequence() {
    for kind in (1..=0xFF).filter(|kind| *kind != 0x02) {
        let mut bytes = ic_req(0, 0, 0);
        bytes[0] = kind;
        ControllerEnd::new(QueueSettings::default()).assert_fatal(&bytes, 0..8, Violation::Sequence);
    }
    for bytes in
        [&b"GET / HTTP/1.1\r\n"[..], b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"SSH-2.0-x\r\n"]
    {
        ControllerEnd::new(QueueSettings::default()).assert_fatal(bytes, 0..8, Violation::Sequence);
    }
}

#[test]
fn p2_types_that_hosts_do_not_send_are_refused_at_byte_0() {
    for kind in (1..=0xFF).filter(|kind| ![0x02, 0x04, 0x06].contains(kind)) {
        let bytes = Dialect::PLAIN.with(Dialect::PLAIN.command([0; 64], &[]), 0, &[kind]);
        ControllerEnd::plain(Dialect::PLAIN).assert_fatal(&bytes, 0..8, header_field(0));
    }
}

#[test]
fn p3_a_header_length_that_is_not_the_type_s_is_refused_at_byte_2() {
    for hlen in (0..=0xFF).filter(|hlen| *hlen != 128) {
        let bytes = Dialect::PLAIN.with(ic_req(0, 0, 0), 2, &[hlen]);
        ControllerEnd::new(QueueSettings::default()).assert_fatal(&bytes, 0..8, header_field(2));
    }
    for dialect in [Dialect::PLAIN, Dialect::HEADER_DIGEST] {
        for hlen in (0..=0xFF).filter(|hlen| *hlen != 72) {
            let bytes = dialect.with(dialect.command(write(512), &pattern(512)), 2, &[hlen]);
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, header_field(2));
        }
        for hlen in (0..=0xFF).filter(|hlen| *hlen != 24) {
            let (end, ttag) = asking(dialect);
            let bytes = dialect.with(dialect.h2c(7, ttag, 0, &pattern(8192), LAST), 2, &[hlen]);
            end.assert_fatal(&bytes, 0..8, header_field(2));
            let bytes = Dialect::PLAIN.with(term_req(0x02, 1, 0, &[4; 72]), 2, &[hlen]);
            ControllerEnd::plain(dialect).assert_dropped(&bytes, Violation::MalformedTermReq);
        }
    }
}

#[test]
fn p4_a_pdu_shorter_than_its_header_is_refused_at_byte_4() {
    for dialect in Dialect::all() {
        for plen in [0, 1, 7, 8, 23, 71, dialect.prefix(72) as u32 - 1] {
            let bytes = dialect.with(dialect.command(write(512), &pattern(512)), 4, &plen.to_le_bytes());
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, header_field(4));
        }
        for plen in [0, 7, dialect.prefix(24) as u32 - 1] {
            let (end, ttag) = asking(dialect);
            let bytes = dialect.with(dialect.h2c(7, ttag, 0, &pattern(512), 0), 4, &plen.to_le_bytes());
            end.assert_fatal(&bytes, 0..8, header_field(4));
        }
    }
    for plen in [0_u32, 7, 8, 127] {
        let bytes = Dialect::PLAIN.with(ic_req(0, 0, 0), 4, &plen.to_le_bytes());
        ControllerEnd::new(QueueSettings::default()).assert_fatal(&bytes, 0..8, header_field(4));
    }
}

#[test]
fn p5_a_capsule_past_its_limit_is_refused_on_its_first_8_bytes() {
    for dialect in Dialect::all() {
        let longest = (dialect.pdo(72) + CAPSULE_BYTES_MIN as usize + dialect.trailer()) as u32;
        for plen in [u32::MAX, u32::MAX - 3, 1 << 31, longest + 1] {
            let mut bytes = dialect.command(write(512), &pattern(512));
            bytes[4..8].copy_from_slice(&plen.to_le_bytes());
            ControllerEnd::plain(dialect).assert_fatal(&bytes[..8], 0..8, header_field(4));
        }
        // The longest allowed PDU is accepted.
        let data = pattern(CAPSULE_BYTES_MIN as usize);
        let seen =
            ControllerEnd::plain(dialect).feed(&dialect.command(write(CAPSULE_BYTES_MIN), &data)).unwrap();
        assert!(matches!(&seen[..], [Seen::Command { data: delivered, .. }] if *delivered == data));
    }
    // An I/O queue may accept more, never less.
    for (in_capsule_bytes, limit) in [(0, 8192), (16384, 16384)] {
        let settings = QueueSettings { in_capsule_bytes, ..QueueSettings::default() };
        let end = || ControllerEnd::connected(settings, Dialect::PLAIN, 1, 16);
        end().deliver(&Dialect::PLAIN.command(write(limit), &pattern(limit as usize)));
        let bytes = Dialect::PLAIN.command(write(limit + 4), &pattern(limit as usize + 4));
        end().assert_fatal(&bytes, 0..8, header_field(4));
    }
    // It may also accept more than other queues once its queue id is known.
    for (in_capsule_bytes, limit) in [(16384, 16384), (4096, 8192)] {
        for dialect in Dialect::all() {
            let end = || {
                let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, 16);
                end.queue.set_in_capsule_bytes(in_capsule_bytes);
                end
            };
            end().deliver(&dialect.command(write(limit), &pattern(limit as usize)));
            let bytes = dialect.command(write(limit + 4), &pattern(limit as usize + 4));
            end().assert_fatal(&bytes, 0..8, header_field(4));
        }
    }
}

#[test]
fn p6_a_length_that_is_not_the_sum_of_its_parts_is_refused_at_byte_4() {
    for dialect in Dialect::all() {
        let good = dialect.command(write(512), &pattern(512));
        let plen = good.len() as u32;
        for wrong in [plen - 4, plen - 1, plen + 1, plen + 4, plen + 4096] {
            let bytes = dialect.with(good.clone(), 4, &wrong.to_le_bytes());
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..72, header_field(4));
        }
        // Data that no data pointer describes.
        for length in [0, 512] {
            let bytes = dialect.command(sqe(WRITE, 1, TRANSPORT, length), &pattern(512));
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..72, header_field(4));
        }
    }
}

#[test]
fn p7_p8_data_anywhere_but_where_alignment_puts_it_is_refused_at_byte_3() {
    for dialect in Dialect::all() {
        for pdo in (0..=0xFF).filter(|pdo| usize::from(*pdo) != dialect.pdo(72)) {
            let bytes = dialect.with(dialect.command(write(512), &pattern(512)), 3, &[pdo]);
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, header_field(3));
        }
        for pdo in (0..=0xFF).filter(|pdo| usize::from(*pdo) != dialect.pdo(24)) {
            let (end, ttag) = asking(dialect);
            let bytes = dialect.with(dialect.h2c(7, ttag, 0, &pattern(512), 0), 3, &[pdo]);
            end.assert_fatal(&bytes, 0..8, header_field(3));
        }
    }
}

#[test]
fn p9_an_offset_without_data_is_not_judged() {
    for dialect in Dialect::all() {
        for pdo in 1..=0xFF {
            let bytes = dialect.with(dialect.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]), 3, &[pdo]);
            for cut in [3, bytes.len()] {
                let mut end = ControllerEnd::plain(dialect);
                let mut seen = end.feed(&bytes[..cut]).unwrap();
                seen.extend(end.feed(&bytes[cut..]).unwrap());
                assert!(matches!(&seen[..], [Seen::Command { data, .. }] if data.is_empty()), "{seen:?}");
                assert!(!end.queue.is_within_pdu());
            }
        }
    }
    for pdo in 1..=0xFF {
        let mut end = ControllerEnd::new(QueueSettings::default());
        end.feed(&Dialect::PLAIN.with(ic_req(0, 0, 0), 3, &[pdo])).unwrap();
    }
}

#[test]
fn p10_digest_flags_other_than_those_agreed_are_refused_at_byte_1_and_reserved_ones_are_not_judged() {
    const DIGESTS: u8 = HDGST | DDGST;
    for digests in 0..4 {
        let dialect = Dialect { digests, alignment: 0 };
        for flags in 0..=0xFF {
            let bytes = dialect.with(dialect.command(write(512), &pattern(512)), 1, &[flags]);
            if flags & DIGESTS == digests {
                ControllerEnd::plain(dialect).deliver(&bytes);
            } else {
                ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, header_field(1));
            }
        }
        for flags in (0..=0xFF).filter(|flags| *flags & DIGESTS != digests) {
            let (end, ttag) = asking(dialect);
            let bytes = dialect.with(dialect.h2c(7, ttag, 0, &pattern(8192), LAST), 1, &[flags]);
            end.assert_fatal(&bytes, 0..8, header_field(1));
        }
        // Peers differ in whether a PDU without data sets the data digest flag.
        for flags in 0..=0xFF {
            let bytes = dialect.with(dialect.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]), 1, &[flags]);
            if [digests, digests & HDGST].contains(&(flags & DIGESTS)) {
                ControllerEnd::plain(dialect).deliver(&bytes);
            } else {
                ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..8, header_field(1));
            }
        }
    }
    for flags in [HDGST, DDGST, LAST, SUCCESS, 0x10, 0x80, 0xFF] {
        let mut end = ControllerEnd::new(QueueSettings::default());
        end.feed(&Dialect::PLAIN.with(ic_req(0, 0, 0), 1, &[flags])).unwrap();
    }
}

#[test]
fn p11_every_split_of_a_header_is_taken() {
    for dialect in Dialect::all() {
        let bytes = dialect.command(write(64), &pattern(64));
        for cut in 0..=bytes.len() {
            let mut end = ControllerEnd::plain(dialect);
            let mut seen = end.feed(&bytes[..cut]).unwrap();
            assert_eq!(end.queue.is_within_pdu(), cut > 0 && cut < bytes.len());
            seen.extend(end.feed(&bytes[cut..]).unwrap());
            assert!(matches!(&seen[..], [Seen::Command { data, .. }] if *data == pattern(64)));
        }
        let mut end = ControllerEnd::plain(dialect);
        let seen: Vec<Seen> = bytes.chunks(1).flat_map(|byte| end.feed(byte).unwrap()).collect();
        assert!(matches!(&seen[..], [Seen::Command { data, .. }] if *data == pattern(64)));
    }
}

#[test]
fn p12_a_thousand_pdus_in_one_segment_and_one_pdu_in_a_thousand() {
    let dialect = Dialect::BOTH_DIGESTS;
    let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, 1024);
    let bytes: Vec<u8> =
        (0..1000).flat_map(|cid| dialect.command(sqe(WRITE, cid, IN_CAPSULE, 8), &pattern(8))).collect();
    assert_eq!(end.feed(&bytes).unwrap().len(), 1000);
    assert_eq!(end.queue.outstanding(), 1000);

    let mut end = ControllerEnd::plain(dialect);
    let bytes = dialect.command(write(8000), &pattern(8000));
    let seen: Vec<Seen> =
        bytes.chunks(bytes.len() / 1000).flat_map(|chunk| end.feed(chunk).unwrap()).collect();
    assert!(matches!(&seen[..], [Seen::Command { data, .. }] if *data == pattern(8000)));
}

#[test]
fn p13_a_termreq_is_never_answered() {
    for fes in [0, 1, 2, 3, 4, 5, 6, 7, 0x100, 0xFFFF] {
        let ended = Violation::EndedByPeer { fes: FatalErrorStatus::from_raw(fes), fei: 0x0403_0201 };
        for copy in [&[][..], &[4; 8], &[4; 128]] {
            let twice = term_req(0x02, fes, 0x0403_0201, copy).repeat(2);
            ControllerEnd::new(QueueSettings::default()).assert_dropped(&twice, ended);
            ControllerEnd::plain(Dialect::BOTH_DIGESTS).assert_dropped(&twice, ended);
            assert!(ended.to_string().contains("0x4030201"));
        }
    }
    for plen in [0_u32, 8, 23, 153, 1 << 20, u32::MAX] {
        let bytes = Dialect::PLAIN.with(term_req(0x02, 1, 0, &[]), 4, &plen.to_le_bytes());
        ControllerEnd::plain(Dialect::PLAIN).assert_dropped(&bytes[..8], Violation::MalformedTermReq);
    }
    // The other direction's TermReq is a PDU type like any other.
    let bytes = term_req(0x03, 1, 0, &[4; 72]);
    ControllerEnd::plain(Dialect::PLAIN).assert_fatal(&bytes, 0..8, header_field(0));
    ControllerEnd::new(QueueSettings::default()).assert_fatal(&bytes, 0..8, Violation::Sequence);
}

#[test]
fn p14_p15_a_connection_that_ends_anywhere_executes_nothing_that_is_incomplete() {
    let dialect = Dialect::BOTH_DIGESTS;
    let capsule = dialect.command(write(64), &pattern(64));
    for cut in 0..capsule.len() {
        let mut end = ControllerEnd::plain(dialect);
        assert_eq!(end.feed(&capsule[..cut]).unwrap(), []);
        let mut gone = Vec::new();
        end.queue.clear(|slot| gone.push(slot));
        assert_eq!(gone, [], "the driver has never had it");
        assert_eq!(end.queue.outstanding(), 0);
    }
    let (_, ttag) = asking(dialect);
    let data = dialect.h2c(7, ttag, 0, &pattern(8192), LAST);
    for cut in (0..data.len()).step_by(97) {
        let (mut end, _) = asking(dialect);
        assert_eq!(end.feed(&data[..cut]).unwrap(), []);
        let mut gone = Vec::new();
        end.queue.clear(|slot| gone.push(slot));
        assert_eq!(gone.len(), 1, "the driver waits for its data");
        assert_eq!(end.queue.outstanding(), 0);
    }
}

#[test]
fn a_violation_of_the_driver_s_own_stops_the_lane_too() {
    // An expired timer: row D15.
    let (mut end, ttag) = asking(Dialect::PLAIN);
    let data = Dialect::PLAIN.h2c(7, ttag, 0, &pattern(8192), LAST);
    end.feed(&data[..1000]).unwrap();
    assert!(end.queue.place().is_some());
    assert!(end.queue.fail(Violation::Sequence));
    assert!(end.queue.place().is_none());
    end.queue.on_placed(0).unwrap();
    assert_eq!(end.feed(&data[1000..]), Err(Violation::Sequence));
    let fabrics = Dialect::PLAIN.command(sqe(FABRICS, 1, TRANSPORT, 0), &[]);
    assert_eq!(end.feed(&fabrics), Err(Violation::Sequence));
    assert_eq!(end.sent(), term_req(0x03, 2, 0, &data[..header_length(0x06)]));
}

#[test]
fn nothing_a_driver_does_afterwards_follows_a_termreq() {
    let dialect = Dialect::PLAIN;
    let mut end = ControllerEnd::plain(dialect);
    let slots = [1, 2, 3].map(|cid| end.deliver(&dialect.command(sqe(WRITE, cid, TRANSPORT, 64), &[])));
    assert!(end.queue.fail(Violation::Sequence));
    assert_eq!(end.sent().len(), 24 + 72);
    end.complete(slots[0], Status::SUCCESS);
    end.answer(slots[1], pattern(64), 0);
    end.queue.request_data(slots[2], vec![0; 64], 64);
    assert_eq!(end.sent(), []);
    assert_eq!(end.queue.outstanding(), 1);
    end.complete(slots[2], Status::SUCCESS);
    assert_eq!((end.sent(), end.queue.outstanding()), (Vec::new(), 0));
}

#[test]
fn what_waits_gives_way_to_a_termreq_and_what_is_on_its_way_is_finished() {
    let mut end = ControllerEnd::plain(Dialect::PLAIN);
    let first = end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]));
    let second = end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, 2, TRANSPORT, 0), &[]));
    end.complete(first, Status::SUCCESS);
    end.queue.caravan().ring();
    end.queue.caravan().on_sent(5, drop);
    end.complete(second, Status::SUCCESS);
    let bytes = Dialect::PLAIN.with(Dialect::PLAIN.command([0; 64], &[]), 0, &[0x55]);
    assert_eq!(end.feed(&bytes), Err(header_field(0)));
    assert!(end.queue.fail(header_field(0)));
    let sent = end.sent();
    assert_eq!(sent.len(), 19 + 32, "the rest of one response, then the TermReq");
    assert_eq!(sent[19..], term_req(0x03, 1, 0, &bytes[..8]));
}

//! Rows I: the handshake, at the controller. wire §2.2

use nvlane_proto::Violation;
use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::handshake::ControllerOffer;
use wire::pdu::Digests;

use crate::ends::{ControllerEnd, Seen};
use crate::pdus::{Dialect, FLUSH, READ, TRANSPORT, ic_req, pattern, sqe};

fn fresh() -> ControllerEnd {
    ControllerEnd::new(QueueSettings::default())
}

#[test]
fn i1_i2_a_second_icreq_is_out_of_sequence_from_its_first_8_bytes() {
    for dialect in Dialect::all() {
        ControllerEnd::plain(dialect).assert_fatal(&ic_req(0, 0, 0), 0..8, Violation::Sequence);
        ControllerEnd::plain(dialect).assert_fatal(&ic_req(0, 0, 0)[..8], 0..8, Violation::Sequence);
    }
}

#[test]
fn i3_a_connection_may_end_at_every_byte_of_the_handshake() {
    let request = ic_req(0, 3, 0);
    for cut in 0..request.len() {
        let mut end = fresh();
        assert_eq!(end.feed(&request[..cut]).unwrap(), []);
        end.queue.clear(|_| panic!("there is no command"));
        assert_eq!(end.sent(), []);
    }
    // Its answer is half sent.
    let mut end = fresh();
    end.feed(&request).unwrap();
    end.queue.caravan().ring();
    end.queue.caravan().on_sent(60, drop);
    end.queue.clear(|_| panic!("there is no command"));
}

#[test]
fn i4_another_format_version_is_unsupported_at_byte_8() {
    for (at, byte) in [(8, 1), (8, 0xFF), (9, 1)] {
        let bytes = Dialect::PLAIN.with(ic_req(0, 0, 0), at, &[byte]);
        fresh().assert_fatal(&bytes, 0..128, Violation::UnsupportedParameter { offset: 8 });
    }
}

#[test]
fn i5_an_impossible_alignment_is_refused_and_every_possible_one_honoured() {
    for hpda in 32..=0xFF {
        fresh().assert_fatal(&ic_req(hpda, 0, 0), 0..128, Violation::HeaderField { offset: 10 });
    }
    for hpda in 0..=31 {
        for digests in 0..4 {
            let mut end = fresh();
            end.feed(&ic_req(hpda, digests, 0)).unwrap();
            end.sent();
            end.queue.establish(16, true);
            let ours = Dialect { digests, alignment: 0 };
            let slot = end.deliver(&ours.command(sqe(READ, 5, TRANSPORT, 600), &[]));
            end.answer(slot, pattern(600), 0);
            let theirs = Dialect { digests, alignment: hpda };
            assert_eq!(end.sent(), theirs.c2h(5, 0, &pattern(600), 0x0C));
        }
    }
}

#[test]
fn i6_reserved_digest_bits_are_ignored() {
    for digests in 0..=0xFF {
        let mut end = fresh();
        let seen = end.feed(&ic_req(0, digests, 0)).unwrap();
        let [Seen::Initialised(agreement)] = seen[..] else { panic!("{seen:?}") };
        assert_eq!(agreement.digests, Digests::from_bits_retain(digests & 3));
        assert_eq!(end.sent()[11], digests & 3);
    }
}

#[test]
fn i7_any_number_of_r2ts_is_accepted_and_capped() {
    for (maxr2t, ours, agreed) in
        [(0, 4, 1), (1, 4, 2), (3, 4, 4), (u32::MAX - 1, 4, 4), (u32::MAX, 2, 2), (9, 0, 1)]
    {
        let offer = ControllerOffer { r2t_limit: ours, ..ControllerOffer::default() };
        let mut end = ControllerEnd::new(QueueSettings { offer, ..QueueSettings::default() });
        let seen = end.feed(&ic_req(0, 0, maxr2t)).unwrap();
        assert!(
            matches!(seen[..], [Seen::Initialised(agreement)] if agreement.r2t_limit == agreed),
            "{seen:?}"
        );
    }
}

#[test]
fn i8_commands_before_the_handshake_and_data_before_any_command_are_out_of_sequence() {
    fresh().assert_fatal(
        &Dialect::PLAIN.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]),
        0..8,
        Violation::Sequence,
    );
    fresh().assert_fatal(&Dialect::PLAIN.h2c(0, 0, 0, &pattern(64), 4), 0..8, Violation::Sequence);
    for ttag in [0, 1, 0x1000, 0xFFFF] {
        let mut end = fresh();
        end.feed(&ic_req(0, 0, 0)).unwrap();
        end.sent();
        end.assert_fatal(&Dialect::PLAIN.h2c(0, ttag, 0, &pattern(64), 4), 0..24, Violation::Sequence);
    }
}

#[test]
fn i10_an_icreq_with_anything_behind_its_128_bytes_is_refused_at_byte_4() {
    for plen in [129_u32, 132, 256, 8192, u32::MAX] {
        let mut bytes = Dialect::PLAIN.with(ic_req(0, 0, 0), 4, &plen.to_le_bytes());
        bytes.resize(256, 0);
        fresh().assert_fatal(&bytes, 0..8, Violation::HeaderField { offset: 4 });
    }
}

#[test]
fn an_offer_that_no_host_would_take_is_never_made() {
    // wire §2.3: MAXH2CDATA is at least 4096 bytes and a multiple of 4.
    for (ours, offered) in
        [(0, 4096), (4095, 4096), (4099, 4096), (1 << 20, 1 << 20), (u32::MAX, u32::MAX - 3)]
    {
        let offer = ControllerOffer { h2c_data_bytes_max: ours, ..ControllerOffer::default() };
        let mut end = ControllerEnd::new(QueueSettings { offer, ..QueueSettings::default() });
        let seen = end.feed(&ic_req(0, 0, 0)).unwrap();
        let [Seen::Initialised(agreement)] = seen[..] else { panic!("{seen:?}") };
        assert_eq!(agreement.h2c_data_bytes_max, offered);
        assert_eq!(end.sent()[12..16], u32::to_le_bytes(offered));
    }
}

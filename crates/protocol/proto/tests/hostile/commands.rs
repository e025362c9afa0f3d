//! Rows C: command capsules and their data pointers, at the controller. wire §4.1, §5
//!
//! Only the driver knows a command's semantics (its blocks, its direction, its fused twin), so it must refuse C1, C2,
//! C3, C7, C9 and half of C8: it gets the entry unchanged, nothing is reserved before it asks, and its refusal contains
//! only zeroes otherwise.

use nvlane_proto::Violation;
use nvlane_proto::controller_queue::QueueSettings;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::pdus::{Dialect, EVENT_REQUEST, FLUSH, IN_CAPSULE, READ, TRANSPORT, WRITE, cqe, pattern, sqe};

/// Delivers `entry` with `data`, refuses it with `status`, and checks the answer to the byte.
#[track_caller]
fn refused_by_driver(entry: [u8; 64], data: &[u8], status: Status, word: u16) {
    for dialect in Dialect::all() {
        let mut end = ControllerEnd::plain(dialect);
        let seen = end.feed(&dialect.command(entry, data)).unwrap();
        let [Seen::Command { slot, sqe, data: delivered }] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!((sqe, &delivered[..]), (&entry, data), "as it came");
        assert_eq!(end.sent(), [], "nothing is asked for");
        end.complete(*slot, status);
        let cid = u16::from_le_bytes([entry[2], entry[3]]);
        assert_eq!(end.sent(), dialect.response(cqe(cid, 1, word)));
        // The lane stays open.
        end.deliver(&dialect.command(entry, data));
    }
}

/// Checks that the queue answers `entry` by itself and the lane stays open.
#[track_caller]
fn refused_by_queue(entry: [u8; 64], data: &[u8], status: Status, word: u16) {
    for dialect in Dialect::all() {
        let mut end = ControllerEnd::plain(dialect);
        let cid = u16::from_le_bytes([entry[2], entry[3]]);
        assert_eq!(end.feed(&dialect.command(entry, data)).unwrap(), [Seen::Refused { cid, status }]);
        assert_eq!(end.sent(), dialect.response(cqe(cid, 1, word)));
        assert_eq!(end.queue.outstanding(), 0);
        end.deliver(&dialect.command(sqe(FLUSH, cid, TRANSPORT, 0), &[]));
    }
}

#[test]
fn c1_a_length_of_0_is_handed_on_and_nothing_is_asked_for() {
    for pointer in [TRANSPORT, IN_CAPSULE] {
        let status = Status::DATA_SGL_LENGTH_INVALID.with_dnr();
        refused_by_driver(sqe(WRITE, 9, pointer, 0), &[], status, 0x801E);
        refused_by_driver(sqe(READ, 9, pointer, 0), &[], status, 0x801E);
    }
}

#[test]
fn c2_c3_a_length_beyond_the_command_reserves_nothing() {
    for length in [u32::MAX, u32::MAX - 3, 1 << 31, 513, 511, 1] {
        refused_by_driver(
            sqe(WRITE, 9, TRANSPORT, length),
            &[],
            Status::DATA_SGL_LENGTH_INVALID.with_dnr(),
            0x801E,
        );
    }
    // The driver requests the length that the command transfers, however much the host announced.
    let mut end = ControllerEnd::plain(Dialect::PLAIN);
    let slot = end.deliver(&Dialect::PLAIN.command(sqe(WRITE, 9, TRANSPORT, 8192), &[]));
    end.queue.request_data(slot, vec![0; 512], 512);
    let sent = end.sent();
    let ttag = u16::from_le_bytes([sent[10], sent[11]]);
    assert_eq!(sent, Dialect::PLAIN.r2t(9, ttag, 0, 512));
}

#[test]
fn c4_a_capsule_longer_than_may_be_is_refused_before_its_data() {
    let bytes = Dialect::PLAIN.command(sqe(WRITE, 9, IN_CAPSULE, 8196), &pattern(8196));
    ControllerEnd::plain(Dialect::PLAIN).assert_fatal(&bytes, 0..8, Violation::HeaderField { offset: 4 });
}

#[test]
fn c5_a_capsule_with_other_data_than_its_pointer_says_is_refused_at_byte_4() {
    for dialect in Dialect::all() {
        for length in [0, 1, 508, 511, 513, 516, 8192, 8193, u32::MAX] {
            let bytes = dialect.command(sqe(WRITE, 9, IN_CAPSULE, length), &pattern(512));
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..72, Violation::HeaderField { offset: 4 });
        }
        let bytes = dialect.command(sqe(WRITE, 9, IN_CAPSULE, 512), &[]);
        ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..72, Violation::HeaderField { offset: 4 });
    }
}

#[test]
fn c6_an_offset_into_the_capsule_is_refused_and_its_data_skipped() {
    for offset in [1_u64, 4, 512, u64::MAX, u64::MAX - 511] {
        for data in [&[][..], &pattern(512)] {
            let mut entry = sqe(WRITE, 9, IN_CAPSULE, data.len() as u32);
            entry[24..32].copy_from_slice(&offset.to_le_bytes());
            refused_by_queue(entry, data, Status::SGL_OFFSET_INVALID.with_dnr(), 0x802C);
        }
    }
}

#[test]
fn a_refused_command_s_data_is_skipped_in_whatever_pieces_it_comes() {
    for dialect in Dialect::all() {
        let mut entry = sqe(WRITE, 9, IN_CAPSULE, 512);
        entry[24] = 4;
        let status = Status::SGL_OFFSET_INVALID.with_dnr();
        let mut end = ControllerEnd::plain(dialect);
        let bytes = dialect.command(entry, &pattern(512));
        for cut in [1, 7, 100] {
            let seen: Vec<Seen> = bytes.chunks(cut).flat_map(|chunk| end.feed(chunk).unwrap()).collect();
            assert_eq!(seen, [Seen::Refused { cid: 9, status }]);
        }
    }
}

#[test]
fn c7_a_read_with_data_in_its_capsule_is_handed_on() {
    refused_by_driver(sqe(READ, 9, IN_CAPSULE, 512), &pattern(512), Status::INVALID_FIELD.with_dnr(), 0x8004);
}

#[test]
fn c8_other_pointers_are_handed_on_without_data_and_unsupported_with_it() {
    for pointer in (0..=0xFF).filter(|pointer| ![IN_CAPSULE, TRANSPORT].contains(pointer)) {
        // SPDK's host leaves the data pointer of a command without data zero: only the driver knows which commands
        // those are.
        let mut end = ControllerEnd::plain(Dialect::PLAIN);
        end.deliver(&Dialect::PLAIN.command(sqe(WRITE, 9, pointer, 512), &[]));
        for dialect in [Dialect::PLAIN, Dialect::BOTH_DIGESTS] {
            let bytes = dialect.command(sqe(WRITE, 9, pointer, 512), &pattern(512));
            let expected = Violation::UnsupportedParameter { offset: 64 };
            ControllerEnd::plain(dialect).assert_fatal(&bytes, 0..72, expected);
        }
    }
    refused_by_driver(sqe(WRITE, 9, 0x40, 512), &[], Status::SGL_TYPE_INVALID.with_dnr(), 0x8022);
}

/// SPDK's hosts leave it zero, others leave what the last command had there.
#[test]
fn c8_the_pointer_of_a_command_without_data_is_not_judged() {
    for dialect in Dialect::all() {
        for pointer in 0..=0xFF {
            for length in [0, 512, u32::MAX] {
                let mut entry = sqe(FLUSH, 9, pointer, length);
                entry[24..32].copy_from_slice(&u64::MAX.to_le_bytes());
                ControllerEnd::plain(dialect).deliver(&dialect.command(entry, &[]));
            }
        }
    }
}

#[test]
fn c9_pointer_kinds_fused_pairs_and_reserved_flags_are_handed_on() {
    for flags in [0x00, 0x80, 0xC0, 0x41, 0x42, 0x43, 0x44, 0x7C] {
        let mut entry = sqe(WRITE, 9, IN_CAPSULE, 512);
        entry[1] = flags;
        refused_by_driver(entry, &pattern(512), Status::INVALID_FIELD.with_dnr(), 0x8004);
    }
}

#[test]
fn c10_a_cid_in_use_is_a_conflict_for_the_second_command_only() {
    for dialect in Dialect::all() {
        let conflict = Status::COMMAND_ID_CONFLICT.with_dnr();
        // While the first one executes, and while it waits for its data.
        for asks in [false, true] {
            let mut end = ControllerEnd::plain(dialect);
            let slot = end.deliver(&dialect.command(sqe(WRITE, 9, TRANSPORT, 512), &[]));
            let mut ttag = 0;
            if asks {
                end.queue.request_data(slot, vec![0; 512], 512);
                let sent = end.sent();
                ttag = u16::from_le_bytes([sent[10], sent[11]]);
            }
            for (data, pointer) in [(&[][..], TRANSPORT), (&pattern(512), IN_CAPSULE)] {
                let twin = dialect.command(sqe(WRITE, 9, pointer, data.len() as u32), data);
                assert_eq!(end.feed(&twin).unwrap(), [Seen::Refused { cid: 9, status: conflict }]);
            }
            let answers = [2, 3].map(|head| dialect.response(cqe(9, head, 0x8006)));
            assert_eq!(end.sent(), answers.concat());
            assert_eq!(end.queue.find(9), Some(slot), "the first is unaffected");
            if asks {
                let data = dialect.h2c(9, ttag, 0, &pattern(512), 4);
                assert_eq!(end.feed(&data).unwrap(), [Seen::DataReceived { slot, is_intact: true }]);
                assert_eq!(end.queue.take_buffer(slot), pattern(512));
            }
            end.complete(slot, Status::SUCCESS);
            assert_eq!(end.sent(), dialect.response(cqe(9, 3, 0)));
            end.deliver(&dialect.command(sqe(WRITE, 9, TRANSPORT, 512), &[]));
        }
    }
}

/// A host that abandons its event requests reuses their cids, mostly for a shutdown. wire §13
#[test]
fn c10_a_command_with_the_cid_of_a_waiting_event_request_takes_its_place() {
    for dialect in Dialect::all() {
        for (data, pointer) in [(&[][..], TRANSPORT), (&pattern(512), IN_CAPSULE)] {
            let mut end = ControllerEnd::plain(dialect);
            let request = end.deliver(&dialect.command(sqe(EVENT_REQUEST, 9, TRANSPORT, 0), &[]));
            end.queue.await_event(request);
            let command = end.deliver(&dialect.command(sqe(WRITE, 9, pointer, data.len() as u32), data));
            assert_eq!((end.queue.next_superseded(), end.queue.next_superseded()), (Some(request), None));
            assert_eq!((end.queue.find(9), end.queue.outstanding()), (Some(command), 1));
            // If the event occurred now, the host would take its completion for that of the command.
            end.complete(request, Status::SUCCESS);
            assert_eq!(end.sent(), []);
            assert_eq!(end.queue.find(9), Some(command));
            end.complete(command, Status::SUCCESS);
            assert_eq!(end.sent(), dialect.response(cqe(9, 2, 0)));
            assert_eq!(end.queue.outstanding(), 0);
            assert_eq!(end.deliver(&dialect.command(sqe(FLUSH, 9, TRANSPORT, 0), &[])), command);
        }
    }
}

#[test]
fn c10_an_event_request_that_was_completed_gives_way_to_no_command() {
    let dialect = Dialect::PLAIN;
    let mut end = ControllerEnd::plain(dialect);
    let request = end.deliver(&dialect.command(sqe(EVENT_REQUEST, 9, TRANSPORT, 0), &[]));
    end.queue.await_event(request);
    end.complete(request, Status::SUCCESS);
    assert_eq!(end.sent(), dialect.response(cqe(9, 1, 0)));
    // The slot goes to a command that is no event request.
    assert_eq!(end.deliver(&dialect.command(sqe(FLUSH, 9, TRANSPORT, 0), &[])), request);
    let conflict = Status::COMMAND_ID_CONFLICT.with_dnr();
    let twin = dialect.command(sqe(FLUSH, 9, TRANSPORT, 0), &[]);
    assert_eq!(end.feed(&twin).unwrap(), [Seen::Refused { cid: 9, status: conflict }]);
    assert_eq!(end.queue.next_superseded(), None);
}

#[test]
fn c10_event_requests_of_one_cid_may_follow_one_another_without_end() {
    let dialect = Dialect::PLAIN;
    let mut end = ControllerEnd::plain(dialect);
    let pdu = dialect.command(sqe(EVENT_REQUEST, 9, TRANSPORT, 0), &[]);
    let mut superseded = Vec::new();
    // The driver is slow: as long as there are slots, each request gets its own.
    for _ in 0..nvlane_proto::SLOT_COUNT_MAX {
        let slot = end.deliver(&pdu);
        end.queue.await_event(slot);
        superseded.extend(end.queue.next_superseded());
        assert_eq!(end.queue.outstanding(), 1);
    }
    let status = Status::INTERNAL_ERROR;
    assert_eq!(end.feed(&pdu).unwrap(), [Seen::Refused { cid: 9, status }]);
    superseded.extend(end.queue.next_superseded());
    assert_eq!((superseded.len(), end.queue.outstanding()), (1024, 0));
    end.sent();
    for slot in superseded {
        end.complete(slot, Status::ABORT_REQUESTED);
    }
    assert_eq!(end.sent(), []);
    end.deliver(&pdu);
    end.queue.shrink();
}

#[test]
fn c11_more_commands_than_entries_are_out_of_sequence() {
    for dialect in Dialect::all() {
        for entries in [2, 3, 16] {
            let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, entries);
            for cid in 0..entries {
                end.deliver(&dialect.command(sqe(FLUSH, cid, TRANSPORT, 0), &[]));
            }
            let one_more = dialect.command(sqe(WRITE, 0x8000, IN_CAPSULE, 64), &pattern(64));
            end.assert_fatal(&one_more, 0..72, Violation::Sequence);
        }
    }
}

#[test]
fn c11_commands_whose_answers_wait_unsent_count() {
    // A host that never reads: each answer is queued, up to the number of queue entries.
    let dialect = Dialect::PLAIN;
    let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, 4);
    for cid in 0..4 {
        let slot = end.deliver(&dialect.command(sqe(FLUSH, cid, TRANSPORT, 0), &[]));
        end.complete(slot, Status::SUCCESS);
    }
    assert_eq!(end.queue.caravan().waiting_bytes(), 4 * 24);
    end.assert_fatal(&dialect.command(sqe(FLUSH, 9, TRANSPORT, 0), &[]), 0..72, Violation::Sequence);

    // Likewise with answers from the queue itself.
    let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, 4);
    let mut offset = sqe(WRITE, 9, IN_CAPSULE, 0);
    offset[24] = 4;
    for _ in 0..4 {
        assert!(matches!(end.feed(&dialect.command(offset, &[])).unwrap()[..], [Seen::Refused { .. }]));
    }
    end.assert_fatal(&dialect.command(offset, &[]), 0..72, Violation::Sequence);

    // Answers already sent do not count, nor do those in flight.
    let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, 4);
    for cid in 0..100 {
        let slot = end.deliver(&dialect.command(sqe(FLUSH, cid, TRANSPORT, 0), &[]));
        end.complete(slot, Status::SUCCESS);
        if cid % 4 == 3 {
            end.sent();
        }
    }
}

#[test]
fn c13_a_connection_has_8_commands_before_its_connect() {
    let mut end = ControllerEnd::new(QueueSettings::default());
    end.feed(&crate::pdus::ic_req(0, 0, 0)).unwrap();
    end.sent();
    for cid in 0..8 {
        end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, cid, TRANSPORT, 0), &[]));
    }
    end.assert_fatal(&Dialect::PLAIN.command(sqe(FLUSH, 8, TRANSPORT, 0), &[]), 0..72, Violation::Sequence);
}

#[test]
fn c16_a_failing_command_says_nothing_but_its_status() {
    let mut end = ControllerEnd::plain(Dialect::PLAIN);
    let slot = end.deliver(&Dialect::PLAIN.command(sqe(WRITE, 0xBEEF, IN_CAPSULE, 64), &[0xFF; 64]));
    end.complete(slot, Status::LBA_OUT_OF_RANGE.with_dnr());
    let mut expected = vec![0x05, 0, 24, 0, 24, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0];
    expected.extend_from_slice(&[0xEF, 0xBE, 0x00, 0x81]);
    assert_eq!(end.sent(), expected);
}

#[test]
fn the_head_goes_round_and_says_nothing_without_flow_control() {
    // wire §5.2
    let mut end = ControllerEnd::connected(QueueSettings::default(), Dialect::PLAIN, 1, 3);
    for head in [1, 2, 0, 1, 2, 0] {
        let slot = end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]));
        end.complete(slot, Status::SUCCESS);
        assert_eq!(end.sent(), Dialect::PLAIN.response(cqe(1, head, 0)));
    }
    end.queue.establish(3, true);
    let slot = end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]));
    end.complete(slot, Status::SUCCESS);
    assert_eq!(end.sent(), Dialect::PLAIN.response(cqe(1, 0xFFFF, 0)));

    // Commands before Connect have moved the head past the end of a smaller queue.
    let mut end = ControllerEnd::connected(QueueSettings::default(), Dialect::PLAIN, 1, 8);
    for _ in 0..6 {
        let slot = end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]));
        end.complete(slot, Status::SUCCESS);
        end.sent();
    }
    let slot = end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, 1, TRANSPORT, 0), &[]));
    end.queue.establish(4, false);
    end.complete(slot, Status::SUCCESS);
    assert_eq!(end.sent(), Dialect::PLAIN.response(cqe(1, 3, 0)));
}

//! Rows D: R2T and H2CData, at the controller. wire §4.1, §18

use nvlane_proto::Violation;
use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::handshake::ControllerOffer;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::headers::asking;
use crate::pdus::{Dialect, FLUSH, IN_CAPSULE, LAST, READ, TRANSPORT, WRITE, cqe, cut, pattern, sqe};

const TAG: Violation = Violation::HeaderField { offset: 10 };
const LENGTH: Violation = Violation::HeaderField { offset: 16 };
const FLAGS: Violation = Violation::HeaderField { offset: 1 };

/// The transfer tag of an R2T.
fn ttag(r2t: &[u8]) -> u16 {
    assert_eq!(r2t[0], 0x09);
    u16::from_le_bytes([r2t[10], r2t[11]])
}

/// An H2CData, modified at one place, for a command with an R2T of 8192 bytes.
#[track_caller]
fn refused(at: usize, bytes: &[u8], copied: usize, expected: Violation) {
    for dialect in Dialect::all() {
        let (end, ttag) = asking(dialect);
        let pdu = dialect.with(dialect.h2c(7, ttag, 0, &pattern(8192), LAST), at, bytes);
        end.assert_fatal(&pdu, 0..copied, expected);
    }
}

#[test]
fn d1_d2_a_tag_that_was_never_given_is_refused_at_byte_10() {
    let dialect = Dialect::PLAIN;
    let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 2, 64);
    // 20 commands, one with an R2T: its tag is the only valid one.
    let mut only = 0;
    for cid in 0..20 {
        let slot = end.deliver(&dialect.command(sqe(WRITE, cid, TRANSPORT, 8192), &[]));
        if cid == 11 {
            end.queue.request_data(slot, vec![0; 8192], 8192);
            only = ttag(&end.sent());
        }
    }
    // Tags of commands without an R2T are row D3.
    let (generation, slot) = (only >> 12, only & 0x3FF);
    let is_of_a_command = |tag: u16| tag >> 12 == generation && tag & 0x3FF < 20 && tag & 0x3FF != slot;
    for tag in (0..=0xFFFF).filter(|tag| *tag != only && !is_of_a_command(*tag)) {
        let (end, again) = asking(dialect);
        assert_eq!(again, 0x1000, "the first slot's first tag");
        if tag != again {
            let pdu = dialect.h2c(7, tag, 0, &[1; 4], 0);
            let mut input = &pdu[..];
            let mut end = end;
            assert_eq!(end.next(&mut input), Err(TAG), "{tag:#06x}");
        }
    }
    for tag in [0, 1, 2, 15, 16, 0x3FF, only | 1 << 10, only | 3 << 10, only ^ 0x8000, 0xFFFF] {
        refused(10, &tag.to_le_bytes(), 24, TAG);
    }
}

#[test]
fn d3_the_tag_of_a_command_that_waits_for_no_data_is_out_of_sequence() {
    for dialect in [Dialect::PLAIN, Dialect::BOTH_DIGESTS] {
        let data = |ttag| dialect.h2c(7, ttag, 0, &pattern(8192), LAST);
        // Executing: without an R2T, a read, a write with in-capsule data.
        for (opcode, pointer, length) in
            [(WRITE, TRANSPORT, 0), (READ, TRANSPORT, 0), (WRITE, IN_CAPSULE, 64)]
        {
            let mut end = ControllerEnd::plain(dialect);
            end.deliver(&dialect.command(sqe(opcode, 7, pointer, length), &pattern(length as usize)));
            end.assert_fatal(&data(0x1000), 0..24, Violation::Sequence);
        }
        // Received, and received and completed while another command is outstanding.
        for completes in [false, true] {
            let (mut end, ttag) = asking(dialect);
            let seen = end.feed(&data(ttag)).unwrap();
            let [Seen::DataReceived { slot, .. }] = seen[..] else { panic!("{seen:?}") };
            if completes {
                end.complete(slot, Status::SUCCESS);
                end.deliver(&dialect.command(sqe(FLUSH, 8, TRANSPORT, 0), &[]));
                end.sent();
                // The flush has taken the slot, so this tag is now invalid.
                end.assert_fatal(&data(ttag), 0..24, TAG);
            } else {
                end.assert_fatal(&data(ttag), 0..24, Violation::Sequence);
            }
        }
        let (mut end, ttag) = asking(dialect);
        let other = end.deliver(&dialect.command(sqe(FLUSH, 8, TRANSPORT, 0), &[]));
        let seen = end.feed(&data(ttag)).unwrap();
        let [Seen::DataReceived { slot, .. }] = seen[..] else { panic!("{seen:?}") };
        assert_ne!(slot, other);
        end.complete(slot, Status::SUCCESS);
        end.sent();
        end.assert_fatal(&data(ttag), 0..24, Violation::Sequence);
    }
}

#[test]
fn d4_data_without_any_command_is_out_of_sequence() {
    for dialect in Dialect::all() {
        for tag in [0, 0x1000, 0xFFFF] {
            let pdu = dialect.h2c(7, tag, 0, &pattern(64), LAST);
            ControllerEnd::plain(dialect).assert_fatal(&pdu, 0..24, Violation::Sequence);
        }
        // Also after the last command.
        let (mut end, ttag) = asking(dialect);
        let data = dialect.h2c(7, ttag, 0, &pattern(8192), LAST);
        let seen = end.feed(&data).unwrap();
        let [Seen::DataReceived { slot, .. }] = seen[..] else { panic!("{seen:?}") };
        end.complete(slot, Status::SUCCESS);
        end.sent();
        end.assert_fatal(&data, 0..24, Violation::Sequence);
    }
}

#[test]
fn d5_another_command_s_cid_is_refused_at_byte_8() {
    refused(8, &[8, 0], 24, Violation::HeaderField { offset: 8 });
    refused(8, &[7, 1], 24, Violation::HeaderField { offset: 8 });
}

#[test]
fn d6_an_offset_that_does_not_continue_is_out_of_range() {
    for offset in [1_u32, 4, 4096, 8192, 1 << 20, u32::MAX - 3, u32::MAX] {
        refused(12, &offset.to_le_bytes(), 24, Violation::OutOfRange);
    }
    for (dialect, offset) in
        Dialect::all().flat_map(|dialect| [0, 2048, 4092, 4100, 8192].map(|at| (dialect, at)))
    {
        let (mut end, ttag) = asking(dialect);
        assert_eq!(end.feed(&dialect.h2c(7, ttag, 0, &pattern(4096), 0)).unwrap(), []);
        let again = dialect.h2c(7, ttag, offset, &pattern(64), 0);
        end.assert_fatal(&again, 0..24, Violation::OutOfRange);
    }
}

#[test]
fn d7_d12_data_past_its_window_is_out_of_range() {
    for dialect in Dialect::all() {
        for flags in [0, LAST] {
            let (end, ttag) = asking(dialect);
            end.assert_fatal(&dialect.h2c(7, ttag, 0, &pattern(8196), flags), 0..24, Violation::OutOfRange);
        }
        // Beyond the requested range, within the command.
        let settings = QueueSettings { window_bytes: 4096, ..QueueSettings::default() };
        let mut end = ControllerEnd::connected(settings, dialect, 1, 16);
        let slot = end.deliver(&dialect.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]));
        end.queue.request_data(slot, vec![0; 8192], 8192);
        let ttag = ttag(&end.sent());
        end.assert_fatal(&dialect.h2c(7, ttag, 0, &pattern(4100), LAST), 0..24, Violation::OutOfRange);
    }
    // 32-bit overflow: 0x1000 + 0xFFFFF000 is 0. Such a PDU exceeds the length limit before it exceeds the range.
    let mut header = Dialect::PLAIN.h2c(7, 0x1000, 0x1000, &[0; 4], LAST);
    header[4..8].copy_from_slice(&0xFFFF_F018_u32.to_le_bytes());
    header[16..20].copy_from_slice(&0xFFFF_F000_u32.to_le_bytes());
    let (end, _) = asking(Dialect::PLAIN);
    end.assert_fatal(&header, 0..8, Violation::LimitExceeded);
    let offer = ControllerOffer { h2c_data_bytes_max: u32::MAX - 3, ..ControllerOffer::default() };
    let mut end =
        ControllerEnd::connected(QueueSettings { offer, ..QueueSettings::default() }, Dialect::PLAIN, 1, 16);
    let slot = end.deliver(&Dialect::PLAIN.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]));
    end.queue.request_data(slot, vec![0; 8192], 8192);
    end.sent();
    end.assert_fatal(&header, 0..24, Violation::OutOfRange);
}

#[test]
fn d8_a_data_pdu_without_data_is_refused_at_byte_16() {
    for dialect in Dialect::all() {
        // Without an offset, and with the offset in the place of data.
        let bare = dialect.h2c(7, 0x1000, 0, &[], 0);
        let mut pointed = dialect.with(bare.clone(), 3, &[dialect.pdo(24) as u8]);
        pointed.resize(dialect.pdo(24), 0);
        let pointed = dialect.with(pointed, 4, &(dialect.pdo(24) as u32).to_le_bytes());
        let pointed = dialect.with(pointed, 1, &[dialect.digests]);
        for pdu in [bare, pointed] {
            let (end, _) = asking(dialect);
            end.assert_fatal(&pdu, 0..24, LENGTH);
        }
    }
}

#[test]
fn d9_a_length_other_than_the_pdu_s_is_refused_at_byte_16() {
    for length in [0_u32, 1, 8188, 8191, 8193, 8196, 1 << 31, u32::MAX] {
        refused(16, &length.to_le_bytes(), 24, LENGTH);
    }
}

#[test]
fn d10_more_data_than_agreed_exceeds_the_limit_from_its_first_8_bytes() {
    let offer = ControllerOffer { h2c_data_bytes_max: 4096, ..ControllerOffer::default() };
    let settings = QueueSettings { offer, ..QueueSettings::default() };
    for dialect in Dialect::all() {
        let mut end = ControllerEnd::connected(settings, dialect, 1, 16);
        let slot = end.deliver(&dialect.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]));
        end.queue.request_data(slot, vec![0; 8192], 8192);
        let ttag = ttag(&end.sent());
        assert_eq!(end.feed(&dialect.h2c(7, ttag, 0, &pattern(4096), 0)).unwrap(), []);
        let bytes = dialect.h2c(7, ttag, 4096, &pattern(4100), LAST);
        end.assert_fatal(&bytes[..8], 0..8, Violation::LimitExceeded);
    }
    for plen in [u32::MAX, 1 << 31] {
        refused(4, &plen.to_le_bytes(), 8, Violation::LimitExceeded);
    }
}

#[test]
fn d11_last_belongs_on_the_last_pdu_of_a_window_and_nowhere_else() {
    for dialect in Dialect::all() {
        let (end, ttag) = asking(dialect);
        end.assert_fatal(&dialect.h2c(7, ttag, 0, &pattern(8192), 0), 0..24, FLAGS);
        let (end, ttag) = asking(dialect);
        end.assert_fatal(&dialect.h2c(7, ttag, 0, &pattern(4096), LAST), 0..24, FLAGS);
        let (mut end, ttag) = asking(dialect);
        assert_eq!(end.feed(&dialect.h2c(7, ttag, 0, &pattern(4096), 0)).unwrap(), []);
        end.assert_fatal(&dialect.h2c(7, ttag, 4096, &pattern(2048), LAST), 0..24, FLAGS);
    }
}

#[test]
fn d13_nothing_behind_an_error_is_looked_at() {
    // The command after it in the same bytes is not delivered, nor is partially received data.
    for dialect in Dialect::all() {
        let (end, ttag) = asking(dialect);
        let mut bytes = dialect.h2c(7, ttag ^ 1, 0, &pattern(8192), LAST);
        bytes.extend(dialect.command(sqe(WRITE, 8, IN_CAPSULE, 64), &pattern(64)));
        bytes.extend(dialect.h2c(7, ttag, 0, &pattern(8192), LAST));
        end.assert_fatal(&bytes, 0..24, TAG);

        let (mut end, ttag) = asking(dialect);
        let first = dialect.h2c(7, ttag, 0, &pattern(4096), 0);
        assert_eq!(end.feed(&first).unwrap(), []);
        let mut bytes = dialect.h2c(7, ttag, 0, &pattern(4096), 0);
        bytes.extend(dialect.h2c(7, ttag, 4096, &pattern(4096), LAST));
        end.assert_fatal(&bytes, 0..24, Violation::OutOfRange);
    }
}

#[test]
fn d14_windows_of_one_command_may_interleave() {
    for dialect in Dialect::all() {
        let settings = QueueSettings { window_bytes: 4096, ..QueueSettings::default() };
        let mut end = ControllerEnd::connected(settings, dialect, 2, 16);
        let slot = end.deliver(&dialect.command(sqe(WRITE, 7, TRANSPORT, 12288), &[]));
        end.queue.request_data(slot, vec![0; 12288], 12288);
        let sent = end.sent();
        let tags: Vec<u16> = cut(&sent).into_iter().map(ttag).collect();
        let expected: Vec<u8> =
            tags.iter().zip([0, 4096]).flat_map(|(&tag, at)| dialect.r2t(7, tag, at, 4096)).collect();
        assert_eq!(sent, expected, "two at once");
        let data = pattern(12288);
        for (window, at, flags) in [(1, 4096, 0), (0, 0, 0), (1, 6144, LAST), (0, 2048, LAST)] {
            let seen =
                end.feed(&dialect.h2c(7, tags[window], at, &data[at as usize..][..2048], flags)).unwrap();
            assert_eq!(seen, []);
        }
        // The third R2T was sent when the second was fulfilled.
        let sent = end.sent();
        let third = ttag(&sent);
        assert_eq!(sent, dialect.r2t(7, third, 8192, 4096));
        let seen = end.feed(&dialect.h2c(7, third, 8192, &data[8192..], LAST)).unwrap();
        assert_eq!(seen, [Seen::DataReceived { slot, is_intact: true }]);
        assert_eq!(end.queue.take_buffer(slot), data);
    }
}

#[test]
fn d14_the_part_behind_is_asked_for_meanwhile_and_may_come_first() {
    for dialect in Dialect::all() {
        for r2ts in [1, 2, 4] {
            let settings = QueueSettings { window_bytes: 4096, ..QueueSettings::default() };
            let mut end = ControllerEnd::connected(settings, dialect, r2ts, 16);
            let slot = end.deliver(&dialect.command(sqe(WRITE, 7, TRANSPORT, 15360), &[]));
            let data = pattern(15360);
            let mut left: Vec<(u32, u32)> =
                vec![(0, 4096), (4096, 2048), (6144, 4096), (10240, 2048), (12288, 3072)];
            let parts = [0..6144u32, 6144..12288, 12288..15360];
            end.queue.request_part(slot, vec![0; 6144], parts[0].clone());
            end.queue.request_part(slot, vec![0; 8192], parts[1].clone());
            let (mut open, mut taken) = (Vec::new(), Vec::new());
            while taken.len() < parts.len() {
                let sent = end.sent();
                for (pdu, (at, length)) in cut(&sent).into_iter().zip(left.clone()) {
                    assert_eq!(pdu, dialect.r2t(7, ttag(pdu), at, length));
                    open.push((ttag(pdu), left.remove(0)));
                }
                assert!(open.len() <= r2ts as usize && (!open.is_empty() || end.queue.has_data(slot)));
                // The last one first; in two PDUs, the first of which is also placed.
                let (ttag, (at, length)) = open.pop().unwrap();
                let (range, half) = (at as usize..(at + length) as usize, at + 1024);
                let first = dialect.h2c(7, ttag, at, &data[range.start..half as usize], 0);
                let is_first_part = |taken: &Vec<Vec<u8>>| at < parts[taken.len()].end;
                assert_eq!(end.feed(&first[..first.len() - 100]).unwrap(), []);
                assert!(end.queue.place().is_some_and(|place| place.len() >= 96), "a place in its buffer");
                assert_eq!(end.feed(&first[first.len() - 100..]).unwrap(), []);
                let second = dialect.h2c(7, ttag, half, &data[half as usize..range.end], LAST);
                let seen = end.feed(&second).unwrap();
                let is_received = seen == [Seen::DataReceived { slot, is_intact: true }];
                assert!(is_received || seen.is_empty(), "{seen:?}");
                assert!(!is_received || is_first_part(&taken), "the part in front ends with it");
                assert_eq!(end.queue.has_data(slot), is_received);
                while end.queue.has_data(slot) {
                    let part = parts[taken.len()].clone();
                    let buffer = end.queue.take_buffer(slot);
                    assert_eq!(buffer[..part.len()], data[part.start as usize..part.end as usize]);
                    taken.push(buffer);
                    if taken.len() == 1 {
                        end.queue.request_part(slot, vec![0; 3072], parts[2].clone());
                    }
                }
            }
            assert!(left.is_empty() && open.is_empty() && !end.queue.has_data(slot));
            end.complete(slot, Status::SUCCESS);
        }
    }
}

#[test]
fn d16_data_of_two_parts_of_a_command_that_was_aborted_is_swallowed_to_the_byte() {
    for dialect in Dialect::all() {
        // Aborted before, within and behind the PDU of the part behind, which comes first.
        for at in [0, 24, 1000, 4096 + 24] {
            let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 2, 16);
            let slot = end.deliver(&dialect.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]));
            end.queue.request_part(slot, vec![0; 4096], 0..4096);
            end.queue.request_part(slot, vec![0; 4096], 4096..8192);
            let sent = end.sent();
            let tags: Vec<u16> = cut(&sent).into_iter().map(ttag).collect();
            let mut both = dialect.h2c(7, tags[1], 4096, &pattern(4096), LAST);
            both.extend(dialect.h2c(7, tags[0], 0, &pattern(4096), LAST));
            assert_eq!(end.feed(&both[..at]).unwrap(), []);
            end.complete(slot, Status::ABORT_REQUESTED);
            assert!(end.queue.place().is_none(), "into no buffer");
            assert_eq!(end.sent(), dialect.response(cqe(7, 1, 0x000E)));
            assert_eq!(end.feed(&both[at..]).unwrap(), []);
            end.assert_fatal(&dialect.h2c(7, tags[0], 0, &pattern(4096), LAST), 0..24, Violation::Sequence);
        }
    }
}

#[test]
fn d15_new_commands_instead_of_data_are_taken_up_to_the_queue_s_size() {
    let dialect = Dialect::PLAIN;
    let (mut end, ttag) = asking(dialect);
    for cid in 100..115 {
        end.deliver(&dialect.command(sqe(WRITE, cid, TRANSPORT, 8192), &[]));
    }
    assert_eq!(end.sent(), [], "nothing more is asked for by itself");
    let one_more = dialect.command(sqe(WRITE, 115, TRANSPORT, 8192), &[]);
    let mut input = &one_more[..];
    assert_eq!(end.next(&mut input), Err(Violation::Sequence));
    drop(end);
    // The data may still arrive afterwards.
    let (mut end, _) = asking(dialect);
    end.deliver(&dialect.command(sqe(FLUSH, 100, TRANSPORT, 0), &[]));
    let seen = end.feed(&dialect.h2c(7, ttag, 0, &pattern(8192), LAST)).unwrap();
    assert!(matches!(seen[..], [Seen::DataReceived { is_intact: true, .. }]));
}

#[test]
fn d16_data_of_a_command_that_was_aborted_is_swallowed_to_the_byte() {
    for dialect in Dialect::all() {
        let data = |ttag, at: u32, length, flags| dialect.h2c(7, ttag, at, &pattern(length), flags);
        let aborted = Status::ABORT_REQUESTED;
        let answer = dialect.response(cqe(7, 1, 0x000E));
        let (_, ttag) = asking(dialect);
        let whole = data(ttag, 0, 8192, LAST);
        // Aborted at each point of the data's arrival; its cid may be reused at once, its tag may not.
        for at in (0..whole.len()).step_by(509).chain([1, 24, whole.len() - 1]) {
            let (mut end, _) = asking(dialect);
            let slot = end.queue.find(7).unwrap();
            assert!(end.queue.awaits_data(slot));
            assert_eq!(end.feed(&whole[..at]).unwrap(), []);
            end.complete(slot, aborted);
            assert_eq!(end.sent(), answer);
            assert_eq!((end.queue.find(7), end.queue.outstanding()), (None, 0));
            assert!(end.queue.place().is_none(), "into no buffer");
            let mut rest = whole[at..].to_vec();
            rest.extend(dialect.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]));
            let seen = end.feed(&rest).unwrap();
            let [Seen::Command { slot: again, .. }] = seen[..] else { panic!("{seen:?}") };
            end.queue.request_data(again, vec![0; 8192], 8192);
            let sent = end.sent();
            let other = self::ttag(&sent);
            assert_ne!(other, ttag, "not before all of its data has come");
            let seen = end.feed(&data(other, 0, 8192, LAST)).unwrap();
            assert_eq!(seen, [Seen::DataReceived { slot: again, is_intact: true }]);
            assert_eq!(end.queue.take_buffer(again), pattern(8192));
        }
        // In several PDUs, with another command between them, and corrupted.
        let (mut end, _) = asking(dialect);
        let slot = end.queue.find(7).unwrap();
        assert_eq!(end.feed(&data(ttag, 0, 4096, 0)).unwrap(), []);
        end.complete(slot, aborted);
        end.deliver(&dialect.command(sqe(FLUSH, 7, TRANSPORT, 0), &[]));
        let second = data(ttag, 4096, 2048, 0);
        let corrupt = dialect.with(second.clone(), second.len() - 8, &[1, 2, 3, 4]);
        assert_eq!(end.feed(&corrupt).unwrap(), []);
        assert_eq!(end.feed(&data(ttag, 6144, 2048, LAST)).unwrap(), []);
        end.assert_fatal(&data(ttag, 0, 4096, 0), 0..24, Violation::Sequence);
    }
}

#[test]
fn d16_the_rules_hold_for_data_that_is_swallowed() {
    for dialect in Dialect::all() {
        let aborted = || {
            let (mut end, ttag) = asking(dialect);
            let slot = end.queue.find(7).unwrap();
            end.complete(slot, Status::ABORT_REQUESTED);
            end.sent();
            (end, ttag)
        };
        let (end, ttag) = aborted();
        end.assert_fatal(&dialect.h2c(7, ttag, 4, &pattern(4), 0), 0..24, Violation::OutOfRange);
        let (end, ttag) = aborted();
        end.assert_fatal(&dialect.h2c(7, ttag, 0, &pattern(8196), LAST), 0..24, Violation::OutOfRange);
        let (end, ttag) = aborted();
        end.assert_fatal(
            &dialect.h2c(8, ttag, 0, &pattern(4), 0),
            0..24,
            Violation::HeaderField { offset: 8 },
        );
        let (end, ttag) = aborted();
        end.assert_fatal(&dialect.h2c(7, ttag, 0, &pattern(4), LAST), 0..24, FLAGS);
    }
}

#[test]
fn bytes_that_were_placed_count_even_if_their_command_is_aborted_before_that_is_known() {
    // The driver aborts while the kernel receives into the buffer: the stream must stay in step.
    for dialect in [Dialect::PLAIN, Dialect::BOTH_DIGESTS] {
        let (mut end, ttag) = asking(dialect);
        let slot = end.queue.find(7).unwrap();
        let whole = dialect.h2c(7, ttag, 0, &pattern(8192), LAST);
        let data_at = dialect.pdo(24);
        assert_eq!(end.feed(&whole[..data_at]).unwrap(), []);
        assert_eq!(end.queue.place().map(|place| place.len()), Some(8192));
        end.complete(slot, Status::ABORT_REQUESTED);
        end.queue.on_placed(5000).unwrap();
        let mut rest = whole[data_at + 5000..].to_vec();
        rest.extend(dialect.command(sqe(FLUSH, 8, TRANSPORT, 0), &[]));
        assert!(matches!(end.feed(&rest).unwrap()[..], [Seen::Command { .. }]));
    }
}

#[test]
fn a_buffer_is_kept_while_the_kernel_may_be_writing_to_it() {
    use std::rc::Rc;
    /// Data that reports whether it was dropped.
    struct Watched(Vec<u8>, #[allow(dead_code)] Rc<()>);
    impl AsRef<[u8]> for Watched {
        fn as_ref(&self) -> &[u8] {
            &self.0
        }
    }
    impl AsMut<[u8]> for Watched {
        fn as_mut(&mut self) -> &mut [u8] {
            &mut self.0
        }
    }
    let dialect = Dialect::PLAIN;
    let mut queue = nvlane_proto::ControllerQueue::<Watched, Vec<u8>>::new(QueueSettings::default());
    queue.next_event(&mut &crate::pdus::ic_req(0, 0, 0)[..]).unwrap();
    let command = dialect.command(sqe(WRITE, 7, TRANSPORT, 8192), &[]);
    queue.next_event(&mut &command[..]).unwrap();
    let (slot, alive) = (queue.find(7).unwrap(), Rc::new(()));
    queue.request_data(slot, Watched(vec![0; 8192], alive.clone()), 8192);
    let whole = dialect.h2c(7, 0x1000, 0, &pattern(8192), LAST);
    assert!(queue.next_event(&mut &whole[..1000]).unwrap().is_none());
    queue.complete(slot, Status::ABORT_REQUESTED, 0);
    assert_eq!(Rc::strong_count(&alive), 2, "its PDU is still coming in");
    assert!(queue.next_event(&mut &whole[1000..]).unwrap().is_none());
    assert_eq!(Rc::strong_count(&alive), 1);
}

#[test]
fn slots_that_only_drain_never_end_the_lane_of_a_host_that_keeps_its_depth() {
    // Every slot there can be: the maximum number of commands, aborted while their data is outstanding, and as many
    // again.
    let dialect = Dialect::PLAIN;
    let mut end = ControllerEnd::connected(QueueSettings::default(), dialect, 1, 1024);
    let mut tags = Vec::new();
    for cid in 0..1024 {
        let slot = end.deliver(&dialect.command(sqe(WRITE, cid, TRANSPORT, 64), &[]));
        end.queue.request_data(slot, vec![0; 64], 64);
        tags.push((cid, ttag(&end.sent())));
        end.complete(slot, Status::ABORT_REQUESTED);
        end.sent();
    }
    // No slot is left. That is temporary, so the answer allows a retry.
    let command = dialect.command(sqe(WRITE, 9, IN_CAPSULE, 64), &pattern(64));
    let status = Status::INTERNAL_ERROR;
    assert_eq!(end.feed(&command).unwrap(), [Seen::Refused { cid: 9, status }]);
    assert_eq!(end.sent(), dialect.response(cqe(9, 1, 0x000C)));
    for (cid, tag) in tags {
        assert_eq!(end.feed(&dialect.h2c(cid, tag, 0, &pattern(64), LAST)).unwrap(), []);
    }
    end.deliver(&command);
}

//! Streams from hosts.

use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::handshake::ControllerOffer;
use nvlane_proto::{Slot, Violation};
use proptest::prelude::*;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::pdus::{DDGST, Dialect, FLUSH, IN_CAPSULE, LAST, READ, TRANSPORT, WRITE, cut, pattern, sqe};
use crate::random::Choice;
use crate::{Damage, Driver, arbitrary_pdu, dialect, has_right_digests};

const ENTRIES: u16 = 64;
const H2C_BYTES: usize = 4096;

#[derive(Clone, Copy, Debug)]
struct Op {
    kind: u8,
    cid: u16,
    dwords: usize,
    /// The data digest is wrong, if there is one.
    is_corrupt: bool,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = (0u8..4, any::<u16>(), prop_oneof![1usize..20, 1usize..2000], prop::bool::weighted(0.1))
        .prop_map(|(kind, cid, dwords, is_corrupt)| Op { kind, cid, dwords, is_corrupt });
    prop::collection::vec(op, 1..24)
}

fn settings() -> QueueSettings {
    QueueSettings {
        offer: ControllerOffer { h2c_data_bytes_max: H2C_BYTES as u32, ..ControllerOffer::default() },
        window_bytes: 3000,
        c2h_data_bytes: 2000,
        ..QueueSettings::default()
    }
}

/// The events that a driver saw, and its actions.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    seen: Vec<Seen>,
    /// Write data received by R2T, if intact.
    written: Vec<Vec<u8>>,
    sent: Vec<u8>,
    failure: Option<Violation>,
}

/// A controller with a driver that answers everything at once.
struct Target {
    end: ControllerEnd,
    outcome: Outcome,
}

impl Target {
    fn new(dialect: Dialect, r2ts: u32) -> Self {
        let end = ControllerEnd::connected(settings(), dialect, r2ts, ENTRIES);
        Self { end, outcome: Outcome::default() }
    }

    fn act(&mut self, seen: &Seen) {
        match seen {
            Seen::Command { slot, sqe, .. } => {
                let length = u32::from_le_bytes(sqe[32..36].try_into().unwrap());
                match (sqe[0], sqe[39]) {
                    (WRITE, TRANSPORT) if (1..1 << 16).contains(&length) => {
                        self.end.queue.request_data(*slot, vec![0; length as usize], length);
                    }
                    (READ, _) if length < 1 << 16 => self.end.answer(*slot, pattern(length as usize), 0),
                    _ => self.end.complete(*slot, Status::SUCCESS),
                }
            }
            Seen::DataReceived { slot, is_intact } => {
                let data = self.end.queue.take_buffer(*slot);
                if *is_intact {
                    self.outcome.written.push(data);
                    self.end.complete(*slot, Status::SUCCESS);
                } else {
                    self.end.complete(*slot, Status::TRANSIENT_TRANSPORT_ERROR);
                }
            }
            Seen::Initialised(_) | Seen::Refused { .. } => {}
        }
    }
}

impl Driver for Target {
    fn feed(&mut self, mut input: &[u8]) {
        while self.outcome.failure.is_none() {
            match self.end.next(&mut input) {
                Ok(None) => break,
                Ok(Some(seen)) => {
                    self.act(&seen);
                    self.outcome.seen.push(seen);
                }
                Err(violation) => {
                    self.end.queue.fail(violation);
                    self.outcome.failure = Some(violation);
                }
            }
        }
        // Its memory is within the negotiated limits.
        assert!(self.end.queue.outstanding() <= ENTRIES);
    }

    fn place(&mut self) -> Option<&mut [u8]> {
        self.end.queue.place()
    }

    fn on_placed(&mut self, count: usize) {
        self.end.queue.on_placed(count).unwrap();
    }

    fn wanted_bytes(&self) -> usize {
        self.end.queue.wanted_bytes()
    }

    fn send(&mut self) -> Vec<u8> {
        let sent = self.end.sent();
        self.outcome.sent.extend_from_slice(&sent);
        sent
    }
}

/// An R2T that the host has received.
struct Window {
    cid: u16,
    ttag: u16,
    next: usize,
    end: usize,
    is_corrupt: bool,
}

/// A host's output for `ops`, in parts, each of which needs the answers to those before.
fn conversation(dialect: Dialect, r2ts: u32, ops: &[Op], choice: &mut Choice) -> Vec<Vec<u8>> {
    let mut target = Target::new(dialect, r2ts);
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let (mut windows, mut rest) = (Vec::<Window>::new(), ops);
    while !rest.is_empty() || !windows.is_empty() {
        let mut part = Vec::new();
        for _ in 0..=choice.below(6) {
            if !windows.is_empty() && (rest.is_empty() || choice.below(2) == 0) {
                let at = choice.below(windows.len());
                let window = &mut windows[at];
                let count = (1 + choice.below(H2C_BYTES / 4)) * 4;
                let end = window.end.min(window.next + count);
                let data = &pattern(window.end)[window.next..end];
                let more = if end == window.end { LAST } else { 0 };
                let mut pdu = dialect.h2c(window.cid, window.ttag, window.next as u32, data, more);
                if window.is_corrupt && dialect.digests & DDGST != 0 {
                    *pdu.last_mut().unwrap() ^= 1;
                }
                part.extend(pdu);
                window.next = end;
                if more != 0 {
                    windows.swap_remove(at);
                }
            } else if let Some((op, others)) = rest.split_first() {
                rest = others;
                let data = pattern(op.dwords * 4);
                let length = data.len() as u32;
                let mut pdu = match op.kind {
                    0 => dialect.command(sqe(FLUSH, op.cid, TRANSPORT, 0), &[]),
                    1 => dialect.command(sqe(READ, op.cid, TRANSPORT, length), &[]),
                    2 => dialect.command(sqe(WRITE, op.cid, IN_CAPSULE, length), &data),
                    _ => dialect.command(sqe(WRITE, op.cid, TRANSPORT, length), &[]),
                };
                if op.is_corrupt && op.kind == 2 && dialect.digests & DDGST != 0 {
                    *pdu.last_mut().unwrap() ^= 1;
                }
                part.extend(pdu);
            }
        }
        target.feed(&part);
        assert_eq!(target.outcome.failure, None, "the host keeps the rules");
        for pdu in cut(&target.send()).into_iter().filter(|pdu| pdu[0] == 0x09) {
            let word = |at| u16::from_le_bytes([pdu[at], pdu[at + 1]]);
            let long = |at: usize| u32::from_le_bytes(pdu[at..at + 4].try_into().unwrap()) as usize;
            let cid = word(8);
            let is_corrupt = ops.iter().any(|op| op.cid == cid && op.is_corrupt);
            let (next, end) = (long(12), long(12) + long(16));
            windows.push(Window { cid, ttag: word(10), next, end, is_corrupt });
        }
        parts.push(part);
    }
    assert_eq!(target.end.queue.outstanding(), 0, "all is answered");
    parts
}

/// Plays parts to a new controller: whole, or cut and partly placed.
fn play(dialect: Dialect, r2ts: u32, parts: &[Vec<u8>], cuts: Option<&mut Choice>) -> Outcome {
    let mut target = Target::new(dialect, r2ts);
    target.play(parts, cuts);
    target.outcome
}

proptest! {
    #[test]
    fn any_split_gives_the_same_events_and_answers(
        dialect in dialect(), r2ts in 1u32..5, ops in ops(), seed in 1u64..,
    ) {
        let mut choice = Choice::new(seed);
        let parts = conversation(dialect, r2ts, &ops, &mut choice);
        let whole = play(dialect, r2ts, &parts, None);
        prop_assert_eq!(whole.failure, None);
        for _ in 0..3 {
            prop_assert!(play(dialect, r2ts, &parts, Some(&mut choice)) == whole);
        }
        let bytes: Vec<Vec<u8>> = parts.concat().chunks(1).map(<[u8]>::to_vec).collect();
        prop_assert!(play(dialect, r2ts, &bytes, None) == whole);
    }

    #[test]
    fn what_is_wanted_ends_with_its_pdu(
        dialect in dialect(), r2ts in 1u32..5, ops in ops(), seed in 1u64..,
    ) {
        let parts = conversation(dialect, r2ts, &ops, &mut Choice::new(seed));
        let mut target = Target::new(dialect, r2ts);
        target.play_as_wanted(&parts);
        prop_assert!(target.outcome == play(dialect, r2ts, &parts, None));
    }

    #[test]
    fn damage_never_panics(
        dialect in dialect(),
        ops in ops(),
        seed in 1u64..,
        damage in prop::collection::vec(Damage::any(), 1..6),
    ) {
        let mut choice = Choice::new(seed);
        let parts = conversation(dialect, 2, &ops, &mut choice);
        let mut stream = parts.concat();
        for (damage, at) in damage {
            damage.apply(&mut stream, at);
        }
        play(dialect, 2, &[stream], Some(&mut choice));
    }

    /// With both digests no altered command or data is delivered: commands were sent, and so was their data, by that
    /// command or, if the damage moved it with its digest, by another PDU.
    #[test]
    fn what_was_damaged_is_never_acted_on(
        alignment in prop_oneof![Just(0u8), 1u8..32],
        ops in ops(),
        seed in 1u64..,
        damage in prop::collection::vec(Damage::any(), 1..4),
    ) {
        let dialect = Dialect { digests: 3, alignment };
        let mut choice = Choice::new(seed);
        let parts = conversation(dialect, 2, &ops, &mut choice);
        let sent = parts.concat();
        let whole = play(dialect, 2, &parts, None);
        let commands: Vec<([u8; 64], &Vec<u8>)> = whole
            .seen
            .iter()
            .filter_map(|seen| match seen {
                Seen::Command { sqe, data, .. } => Some((*sqe, data)),
                _ => None,
            })
            .collect();
        for (damage, at) in damage {
            // Parts keep their ends, so that answers are sent in time; one of them is damaged.
            let mut parts = parts.clone();
            let part = at.index(parts.len());
            damage.apply(&mut parts[part], at);
            let damaged = play(dialect, 2, &parts, Some(&mut choice));
            for seen in &damaged.seen {
                if let Seen::Command { sqe, data, .. } = seen {
                    prop_assert!(commands.contains(&(*sqe, data))
                        || commands.iter().any(|(sent, own)| sent == sqe && own.len() == data.len())
                            && has_right_digests(data, dialect, &sent));
                }
            }
            for data in &damaged.written {
                prop_assert!(*data == pattern(data.len()) || has_right_digests(data, dialect, &sent));
            }
            if let Some(violation) = damaged.failure
                && violation.term_req().is_some()
            {
                let last = cut(&damaged.sent).pop().map(|pdu| pdu[0]);
                prop_assert_eq!(last, Some(0x03), "a TermReq for {}", violation);
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        dialect in dialect(),
        is_connected: bool,
        asks: bool,
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        kind in prop::sample::select(vec![0x00u8, 0x02, 0x04, 0x06, 0x55]),
        keeps_header: bool,
        seed in 1u64..,
    ) {
        let mut target = Target::new(dialect, 2);
        if !is_connected {
            target.end = ControllerEnd::new(settings());
        } else if asks {
            target.feed(&dialect.command(sqe(WRITE, 7, TRANSPORT, 6000), &[]));
        }
        let bytes = arbitrary_pdu(dialect, kind, keeps_header, bytes);
        target.play(&[bytes], Some(&mut Choice::new(seed)));
    }
}

#[test]
fn slots_are_named_in_the_order_of_their_commands() {
    // The conversation is only repeatable because slots are.
    let mut target = Target::new(Dialect::PLAIN, 1);
    let mut slots: Vec<Slot> = Vec::new();
    for cid in 0..4 {
        slots.push(target.end.deliver(&Dialect::PLAIN.command(sqe(FLUSH, cid, TRANSPORT, 0), &[])));
    }
    assert!(slots.is_sorted());
}

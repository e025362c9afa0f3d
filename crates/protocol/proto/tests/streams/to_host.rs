//! Streams from controllers.

use nvlane_proto::Violation;
use nvlane_proto::host_queue::{Completion, HostEvent, Transfer};
use proptest::prelude::*;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::ends::HostEnd;
use crate::pdus::{DDGST, Dialect, LAST, SUCCESS, cqe, cut, pattern};
use crate::random::Choice;
use crate::{Damage, Driver, arbitrary_pdu, dialect, has_right_digests};

#[derive(Clone, Copy, Debug)]
struct Op {
    kind: u8,
    dwords: usize,
    /// The data digest is wrong, if there is one.
    is_corrupt: bool,
    /// The command fails.
    fails: bool,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op =
        (0u8..4, prop_oneof![1usize..20, 1usize..5000], prop::bool::weighted(0.1), prop::bool::weighted(0.1))
            .prop_map(|(kind, dwords, is_corrupt, fails)| Op { kind, dwords, is_corrupt, fails });
    prop::collection::vec(op, 1..16)
}

/// The driver's completions and output.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Outcome {
    /// By user: their order depends on earlier sends.
    completed: Vec<Completion<Vec<u8>>>,
    sent: Vec<u8>,
    failure: Option<Violation>,
}

struct Initiator {
    end: HostEnd,
    outcome: Outcome,
}

impl Initiator {
    /// Submits all commands; those by R2T are too long for a capsule.
    fn new(dialect: Dialect, r2ts: u32, ops: &[Op]) -> Self {
        let mut end = HostEnd::connected(dialect, r2ts, 4096);
        end.queue.set_in_capsule_bytes(512);
        for (user, op) in ops.iter().enumerate() {
            let data = pattern(op.dwords * 4);
            let transfer = match op.kind {
                0 => Transfer::None,
                1 => Transfer::FromController { buffer: vec![0; data.len()], is_exact: true },
                _ => Transfer::ToController(data),
            };
            assert!(end.queue.submit(Sqe::new(op.kind, Nsid::new(1)), transfer, user as u64).is_ok());
        }
        let mut host = Self { end, outcome: Outcome::default() };
        host.send();
        host
    }

    fn finish(mut self) -> Outcome {
        self.feed(&[]);
        let ended = self.outcome.completed.len();
        assert!(self.outcome.failure.is_some() || !self.end.queue.has_finished());
        // Every command ends exactly once, whatever arrived.
        let mut users: Vec<u64> = self.outcome.completed.iter().map(|completed| completed.user).collect();
        while let Some(completion) = self.end.queue.next_unfinished(Status::HOST_PATHING_ERROR) {
            users.push(completion.user);
        }
        let count = users.len();
        users.sort_unstable();
        users.dedup();
        assert_eq!(count, users.len());
        assert!(ended <= count);
        self.outcome.completed.sort_by_key(|completed| completed.user);
        self.outcome
    }
}

impl Driver for Initiator {
    fn feed(&mut self, mut input: &[u8]) {
        while self.outcome.failure.is_none() {
            match self.end.queue.next_event(&mut input) {
                Ok(None) => break,
                Ok(Some(HostEvent::Initialised(_))) => panic!("a second handshake"),
                Ok(Some(HostEvent::Completed(completion))) => self.outcome.completed.push(completion),
                Err(violation) => {
                    let _ = self.end.queue.fail(violation);
                    self.outcome.failure = Some(violation);
                }
            }
        }
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

/// The controller's remaining work on a command.
enum Rest {
    Read { next: usize, end: usize },
    Write { next: usize, end: usize, windows: Vec<usize> },
    Answer,
}

/// A controller's answers to `ops`, in parts, each of which needs the host's output for those before.
fn conversation(dialect: Dialect, r2ts: u32, ops: &[Op], choice: &mut Choice) -> Vec<Vec<u8>> {
    let mut host = Initiator::new(dialect, r2ts, ops);
    let mut commands: Vec<(u16, Op, Rest)> = cut(&host.outcome.sent)
        .into_iter()
        .zip(ops)
        .map(|(pdu, op)| {
            let length = op.dwords * 4;
            let rest = match op.kind {
                1 => Rest::Read { next: 0, end: length },
                2 | 3 if pdu[8 + 39] == 0x5A => Rest::Write { next: 0, end: length, windows: Vec::new() },
                _ => Rest::Answer,
            };
            (u16::from_le_bytes([pdu[10], pdu[11]]), *op, rest)
        })
        .collect();
    let mut parts = Vec::new();
    while !commands.is_empty() {
        let mut part = Vec::new();
        for _ in 0..=choice.below(8) {
            if commands.is_empty() {
                break;
            }
            let at = choice.below(commands.len());
            let (cid, op, rest) = &mut commands[at];
            let count = (1 + choice.below(1500)) * 4;
            let is_done = match rest {
                Rest::Read { next, end } if *next < *end => {
                    let stop = (*next + count).min(*end);
                    let success = stop == *end && !op.fails && choice.below(2) == 0;
                    let more = if success {
                        LAST | SUCCESS
                    } else if stop == *end {
                        LAST
                    } else {
                        0
                    };
                    let mut pdu = dialect.c2h(*cid, *next as u32, &pattern(*end)[*next..stop], more);
                    if op.is_corrupt && dialect.digests & DDGST != 0 {
                        *pdu.last_mut().unwrap() ^= 1;
                    }
                    part.extend(pdu);
                    *next = stop;
                    success
                }
                Rest::Write { next, end, windows } if *next < *end || !windows.is_empty() => {
                    // Data of earlier R2Ts has arrived before this part.
                    if *next < *end && windows.len() < r2ts as usize {
                        let stop = (*next + count).min(*end);
                        part.extend(dialect.r2t(*cid, at as u16, *next as u32, (stop - *next) as u32));
                        *next = stop;
                        windows.push(stop);
                    }
                    false
                }
                _ => {
                    let status = if op.fails { 0x8100 } else { 0 };
                    part.extend(dialect.response(cqe(*cid, 0, status)));
                    true
                }
            };
            if is_done {
                commands.swap_remove(at);
            }
        }
        host.feed(&part);
        assert_eq!(host.outcome.failure, None, "the controller keeps the rules");
        host.send();
        for (_, _, rest) in &mut commands {
            if let Rest::Write { windows, .. } = rest {
                windows.clear();
            }
        }
        parts.push(part);
    }
    parts
}

fn play(dialect: Dialect, r2ts: u32, ops: &[Op], parts: &[Vec<u8>], cuts: Option<&mut Choice>) -> Outcome {
    let mut host = Initiator::new(dialect, r2ts, ops);
    host.play(parts, cuts);
    host.finish()
}

proptest! {
    #[test]
    fn any_split_gives_the_same_completions_and_data(
        dialect in dialect(), r2ts in 1u32..5, ops in ops(), seed in 1u64..,
    ) {
        let mut choice = Choice::new(seed);
        let parts = conversation(dialect, r2ts, &ops, &mut choice);
        let whole = play(dialect, r2ts, &ops, &parts, None);
        prop_assert_eq!(whole.failure, None);
        prop_assert_eq!(whole.completed.len(), ops.len());
        for Completion { user, status, received, buffer, .. } in &whole.completed {
            let op = &ops[*user as usize];
            let is_corrupt = op.kind == 1 && op.is_corrupt && dialect.digests & DDGST != 0;
            let expected = match (op.fails, is_corrupt) {
                (true, _) => Status::LBA_OUT_OF_RANGE.with_dnr(),
                (false, true) => Status::TRANSIENT_TRANSPORT_ERROR,
                (false, false) => Status::SUCCESS,
            };
            prop_assert_eq!(*status, expected);
            if op.kind > 0 {
                prop_assert_eq!(buffer.as_ref(), Some(&pattern(op.dwords * 4)));
                prop_assert_eq!(*received as usize, if op.kind == 1 { op.dwords * 4 } else { 0 });
            }
        }
        for _ in 0..3 {
            prop_assert!(play(dialect, r2ts, &ops, &parts, Some(&mut choice)) == whole);
        }
        let bytes: Vec<Vec<u8>> = parts.concat().chunks(1).map(<[u8]>::to_vec).collect();
        prop_assert!(play(dialect, r2ts, &ops, &bytes, None) == whole);
    }

    #[test]
    fn what_is_wanted_ends_with_its_pdu(
        dialect in dialect(), r2ts in 1u32..5, ops in ops(), seed in 1u64..,
    ) {
        let parts = conversation(dialect, r2ts, &ops, &mut Choice::new(seed));
        let mut host = Initiator::new(dialect, r2ts, &ops);
        host.play_as_wanted(&parts);
        prop_assert!(host.finish() == play(dialect, r2ts, &ops, &parts, None));
    }

    #[test]
    fn damage_never_panics(
        dialect in dialect(),
        ops in ops(),
        seed in 1u64..,
        damage in prop::collection::vec(Damage::any(), 1..6),
    ) {
        let mut choice = Choice::new(seed);
        let mut parts = conversation(dialect, 2, &ops, &mut choice);
        for (damage, at) in damage {
            let part = at.index(parts.len());
            damage.apply(&mut parts[part], at);
        }
        play(dialect, 2, &ops, &parts, Some(&mut choice));
    }

    /// With both digests a successful read has the data that was sent (for it, or for another read of the same length if
    /// the damage moved that with its digest), and no command ends with a status that was not sent.
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
        for (damage, at) in damage {
            let mut parts = parts.clone();
            let part = at.index(parts.len());
            damage.apply(&mut parts[part], at);
            let outcome = play(dialect, 2, &ops, &parts, Some(&mut choice));
            for Completion { user, status, result, buffer, .. } in &outcome.completed {
                let op = &ops[*user as usize];
                prop_assert_eq!(*result, 0);
                if status.is_success() {
                    prop_assert!(!op.fails);
                    if op.kind > 0 {
                        let buffer = buffer.as_ref().expect("a buffer comes back");
                        prop_assert!(*buffer == pattern(op.dwords * 4)
                            || op.kind == 1 && buffer.len() == op.dwords * 4 && has_right_digests(buffer, dialect, &sent));
                    }
                } else {
                    prop_assert!(op.fails && *status == Status::LBA_OUT_OF_RANGE.with_dnr()
                        || *status == Status::TRANSIENT_TRANSPORT_ERROR
                        || *status == Status::DATA_TRANSFER_ERROR);
                }
            }
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        dialect in dialect(),
        is_initialised: bool,
        ops in ops(),
        bytes in prop::collection::vec(any::<u8>(), 0..600),
        kind in prop::sample::select(vec![0x01u8, 0x03, 0x05, 0x07, 0x09, 0x55]),
        keeps_header: bool,
        seed in 1u64..,
    ) {
        let mut host = Initiator::new(dialect, 2, &ops);
        let cid = host.outcome.sent[10..12].to_vec();
        if !is_initialised {
            host.end = HostEnd::new(dialect, 2);
        }
        let mut bytes = arbitrary_pdu(dialect, kind, keeps_header, bytes);
        if keeps_header && bytes.len() >= 76 {
            // For an outstanding command.
            bytes[8..10].copy_from_slice(&cid);
            bytes[20..22].copy_from_slice(&cid);
        }
        host.play(&[bytes], Some(&mut Choice::new(seed)));
        host.finish();
    }
}

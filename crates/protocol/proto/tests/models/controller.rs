//! The controller's end. The model is a list of commands and a list of R2Ts.

use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::{Slot, Violation};
use proptest::prelude::*;
use wire::status::Status;

use crate::ends::{ControllerEnd, Seen};
use crate::pdus::{
    Dialect, EVENT_REQUEST, FLUSH, IN_CAPSULE, LAST, READ, TRANSPORT, WRITE, cqe, cut, pattern, sqe,
};

const ENTRIES: u16 = 20;
const WINDOW: usize = 1000;

#[derive(Clone, Debug)]
enum Op {
    /// A flush, read, write with in-capsule data, write by R2T, or event request.
    Command { kind: u8, cid: u16, dwords: usize, keeps_depth: bool },
    /// The driver requests the data of a write.
    Ask(prop::sample::Index),
    /// The host sends part of the data of some R2T.
    Data { window: prop::sample::Index, dwords: usize },
    /// The driver completes a command in any state: data may still be outstanding.
    Complete { command: prop::sample::Index, fails: bool },
    /// The driver completes an event request whose cid another command has reused.
    CompleteSuperseded(prop::sample::Index),
    /// Pending bytes are sent.
    Send,
    /// The lane is idle for a while.
    Shrink,
}

fn op() -> impl Strategy<Value = Op> {
    let dwords = || prop_oneof![1usize..8, 1usize..1000];
    prop_oneof![
        6 => (0u8..5, 0u16..24, dwords(), prop::bool::weighted(0.97)).prop_map(|(kind, cid, dwords, keeps_depth)| {
            // Equal low bits, so that a lookup has to probe further.
            Op::Command { kind, cid: (cid & 7) | (cid >> 3) << 12, dwords, keeps_depth }
        }),
        4 => any::<prop::sample::Index>().prop_map(Op::Ask),
        8 => (any::<prop::sample::Index>(), dwords()).prop_map(|(window, dwords)| Op::Data { window, dwords }),
        3 => (any::<prop::sample::Index>(), any::<bool>())
            .prop_map(|(command, fails)| Op::Complete { command, fails }),
        1 => any::<prop::sample::Index>().prop_map(Op::CompleteSuperseded),
        3 => Just(Op::Send),
        1 => Just(Op::Shrink),
    ]
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Executing,
    /// The bytes requested, and how many of them have arrived.
    Receiving {
        asked: usize,
        here: usize,
    },
    Received,
}

#[derive(Debug)]
struct Command {
    cid: u16,
    slot: Slot,
    kind: u8,
    length: usize,
    stage: Stage,
}

/// An R2T whose data is not complete.
#[derive(Debug)]
struct Window {
    cid: u16,
    ttag: u16,
    next: usize,
    end: usize,
    /// Its command, unless that has completed.
    owner: Option<Slot>,
}

struct Model {
    end: ControllerEnd,
    dialect: Dialect,
    r2ts: usize,
    head: u16,
    commands: Vec<Command>,
    /// Event requests whose cids other commands have reused.
    superseded: Vec<Slot>,
    windows: Vec<Window>,
    /// Expected output, without the tags of R2Ts.
    expected: Vec<Vec<u8>>,
    unsent_answers: usize,
}

impl Model {
    fn new(dialect: Dialect, r2ts: u32) -> Self {
        let settings = QueueSettings { window_bytes: WINDOW as u32, ..QueueSettings::default() };
        let end = ControllerEnd::connected(settings, dialect, r2ts, ENTRIES);
        Self {
            end,
            dialect,
            r2ts: r2ts as usize,
            head: 0,
            commands: Vec::new(),
            superseded: Vec::new(),
            windows: Vec::new(),
            expected: Vec::new(),
            unsent_answers: 0,
        }
    }

    /// Applies one step to both sides. Returns whether the lane is open.
    fn step(&mut self, op: &Op) -> bool {
        match op {
            Op::Command { kind, cid, dwords, keeps_depth } => {
                return self.command(*kind, *cid, dwords * 4, *keeps_depth);
            }
            Op::Ask(index) => self.ask(*index),
            Op::Data { window, dwords } => self.data(*window, dwords * 4),
            Op::Complete { command, fails } => self.complete(*command, *fails),
            Op::CompleteSuperseded(index) => {
                if !self.superseded.is_empty() {
                    let slot = self.superseded.swap_remove(index.index(self.superseded.len()));
                    self.end.complete(slot, Status::SUCCESS);
                }
            }
            Op::Send => self.send(),
            Op::Shrink => self.end.queue.shrink(),
        }
        true
    }

    fn command(&mut self, kind: u8, cid: u16, length: usize, keeps_depth: bool) -> bool {
        let data = pattern(length);
        let pdu = match kind {
            0 => self.dialect.command(sqe(FLUSH, cid, TRANSPORT, 0), &[]),
            4 => self.dialect.command(sqe(EVENT_REQUEST, cid, TRANSPORT, 0), &[]),
            1 => self.dialect.command(sqe(READ, cid, TRANSPORT, length as u32), &[]),
            2 => self.dialect.command(sqe(WRITE, cid, IN_CAPSULE, length as u32), &data),
            _ => self.dialect.command(sqe(WRITE, cid, TRANSPORT, length as u32), &[]),
        };
        let is_full = |model: &Self| model.commands.len() + model.unsent_answers >= ENTRIES.into();
        if is_full(self) && keeps_depth {
            self.send();
            if is_full(self) {
                return true;
            }
        }
        if is_full(self) {
            assert_eq!(self.end.feed(&pdu), Err(Violation::Sequence));
            return false;
        }
        self.head = (self.head + 1) % ENTRIES;
        let seen = self.end.feed(&pdu).unwrap();
        let twin = self.commands.iter().position(|command| command.cid == cid);
        if let Some(at) = twin
            && self.commands[at].kind == 4
        {
            let slot = self.commands.swap_remove(at).slot;
            assert_eq!(self.end.queue.next_superseded(), Some(slot));
            self.superseded.push(slot);
        } else if twin.is_some() {
            let status = Status::COMMAND_ID_CONFLICT.with_dnr();
            assert_eq!(seen, [Seen::Refused { cid, status }]);
            self.answered(cid, 0x8006);
            return true;
        }
        assert_eq!(self.end.queue.next_superseded(), None);
        let [Seen::Command { slot, sqe, data: delivered }] = &seen[..] else { panic!("{seen:?}") };
        assert_eq!(sqe[..], pdu[8..72]);
        assert_eq!(delivered, &if kind == 2 { data } else { Vec::new() });
        assert!(self.commands.iter().all(|command| command.slot != *slot));
        assert!(self.windows.iter().all(|window| window.owner != Some(*slot)));
        assert!(!self.superseded.contains(slot));
        if kind == 4 {
            self.end.queue.await_event(*slot);
        }
        self.commands.push(Command { cid, slot: *slot, kind, length, stage: Stage::Executing });
        true
    }

    fn answered(&mut self, cid: u16, status: u16) {
        self.expected.push(self.dialect.response(cqe(cid, self.head, status)));
        self.unsent_answers += 1;
    }

    fn ask(&mut self, index: prop::sample::Index) {
        let mut writes: Vec<&mut Command> = self
            .commands
            .iter_mut()
            .filter(|command| command.kind == 3 && command.stage == Stage::Executing)
            .collect();
        if writes.is_empty() {
            return;
        }
        let at = index.index(writes.len());
        let command = &mut *writes[at];
        command.stage = Stage::Receiving { asked: 0, here: 0 };
        let (slot, length) = (command.slot, command.length);
        self.end.queue.request_data(slot, vec![0; length + 3], length as u32);
        self.grant(slot);
    }

    /// Sends the R2Ts that are allowed now. Their tags are known once the R2Ts are seen.
    fn grant(&mut self, slot: Slot) {
        let command = self.commands.iter_mut().find(|command| command.slot == slot).unwrap();
        let Stage::Receiving { asked, .. } = &mut command.stage else { return };
        let mut open = self.windows.iter().filter(|window| window.owner == Some(slot)).count();
        while open < self.r2ts && *asked < command.length {
            let end = (*asked + WINDOW).min(command.length);
            let r2t = self.dialect.r2t(command.cid, 0, *asked as u32, (end - *asked) as u32);
            self.expected.push(r2t);
            self.windows.push(Window { cid: command.cid, ttag: 0, next: *asked, end, owner: Some(slot) });
            *asked = end;
            open += 1;
        }
        self.send();
    }

    fn data(&mut self, window: prop::sample::Index, count: usize) {
        if self.windows.is_empty() {
            return;
        }
        let at = window.index(self.windows.len());
        let window = &mut self.windows[at];
        let end = window.end.min(window.next + count);
        let is_last = end == window.end;
        // All commands' data is the same pattern, so that its offset shows.
        let data = &pattern(window.end)[window.next..end];
        let more = if is_last { LAST } else { 0 };
        let pdu = self.dialect.h2c(window.cid, window.ttag, window.next as u32, data, more);
        let (owner, moved) = (window.owner, end - window.next);
        window.next = end;
        if is_last {
            self.windows.swap_remove(at);
        }
        let seen = self.end.feed(&pdu).unwrap();
        let Some(slot) = owner else {
            assert_eq!(seen, [], "data of a command that is completed is dropped");
            return;
        };
        let command = self.commands.iter_mut().find(|command| command.slot == slot).unwrap();
        let Stage::Receiving { here, .. } = &mut command.stage else { panic!("{command:?}") };
        *here += moved;
        if *here == command.length {
            command.stage = Stage::Received;
            assert_eq!(seen, [Seen::DataReceived { slot, is_intact: true }]);
        } else {
            assert_eq!(seen, []);
            self.grant(slot);
        }
    }

    fn complete(&mut self, index: prop::sample::Index, fails: bool) {
        if self.commands.is_empty() {
            return;
        }
        let command = self.commands.swap_remove(index.index(self.commands.len()));
        if command.stage == Stage::Received {
            let mut buffer = self.end.queue.take_buffer(command.slot);
            assert_eq!(buffer.split_off(command.length), [0; 3], "nothing past its end");
            assert_eq!(buffer, pattern(command.length));
        }
        for window in &mut self.windows {
            if window.owner == Some(command.slot) {
                window.owner = None;
            }
        }
        if command.kind == 1 && !fails {
            self.end.answer(command.slot, pattern(command.length), 0);
            self.expected.push(self.dialect.c2h(command.cid, 0, &pattern(command.length), LAST));
            self.answered(command.cid, 0);
        } else {
            let (status, word) = if fails { (Status::ABORT_REQUESTED, 0x000E) } else { (Status::SUCCESS, 0) };
            self.end.complete(command.slot, status);
            self.answered(command.cid, word);
        }
    }

    /// Sends everything and compares it with the expectation. Learns the R2Ts' tags, which must be unique.
    fn send(&mut self) {
        let sent = self.end.sent();
        let pdus = cut(&sent);
        assert_eq!(pdus.len(), self.expected.len());
        let mut fresh = self.windows.iter().position(|window| window.ttag == 0);
        for (pdu, expected) in pdus.into_iter().zip(self.expected.drain(..)) {
            if pdu[0] != 0x09 {
                assert_eq!(pdu, expected);
                continue;
            }
            assert_eq!(self.dialect.with(pdu.to_vec(), 10, &[0, 0]), expected);
            let ttag = u16::from_le_bytes([pdu[10], pdu[11]]);
            assert!(ttag != 0 && self.windows.iter().all(|window| window.ttag != ttag));
            let at = fresh.expect("a window for each R2T");
            self.windows[at].ttag = ttag;
            fresh = self.windows.iter().position(|window| window.ttag == 0);
        }
        self.unsent_answers = 0;
    }

    fn compare(&self) {
        assert_eq!(usize::from(self.end.queue.outstanding()), self.commands.len());
        for cid in (0..8).flat_map(|low| (0..3).map(move |high| high << 12 | low)) {
            let command = self.commands.iter().find(|command| command.cid == cid);
            assert_eq!(self.end.queue.find(cid), command.map(|command| command.slot));
            if let Some(command) = command {
                assert_eq!(self.end.queue.cid(command.slot), cid);
                let awaits = matches!(command.stage, Stage::Receiving { .. });
                assert_eq!(self.end.queue.awaits_data(command.slot), awaits);
            }
        }
    }
}

proptest! {
    #[test]
    fn a_controller_s_queue_does_what_its_model_does(
        digests in 0u8..4,
        r2ts in 1u32..6,
        ops in prop::collection::vec(op(), 1..150),
    ) {
        // The number of open R2Ts never exceeds the number of bits.
        let mut model = Model::new(Dialect { digests, alignment: 0 }, r2ts);
        model.r2ts = model.r2ts.min(nvlane_proto::WINDOW_COUNT_MAX);
        let mut lives = true;
        for op in &ops {
            lives = model.step(op);
            model.end.queue.invariants();
            if !lives {
                break;
            }
            model.compare();
        }
        if lives {
            model.send();
            let mut gone = Vec::new();
            model.end.queue.clear(|slot| gone.push(slot));
            let mut live: Vec<Slot> = model.commands.iter().map(|command| command.slot).collect();
            live.extend(&model.superseded);
            live.sort();
            gone.sort();
            prop_assert_eq!(gone, live);
            prop_assert_eq!(model.end.queue.outstanding(), 0);
        }
    }
}

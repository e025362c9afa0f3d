//! The host's end. The model is a list of commands and the bytes to send.

use std::collections::VecDeque;

use nvlane_proto::host_queue::{Completion, Refused, Transfer};
use proptest::prelude::*;
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::ends::HostEnd;
use crate::pdus::{DDGST, Dialect, LAST, SUCCESS, cqe, pattern, sqe};

const LIMIT: usize = 16;
const IN_CAPSULE_BYTES: usize = 512;
const H2C_BYTES: usize = 4096;

#[derive(Clone, Debug)]
enum Op {
    Submit {
        kind: u8,
        dwords: usize,
    },
    /// The controller requests more data of a write.
    R2t {
        command: prop::sample::Index,
        dwords: usize,
    },
    /// The controller sends more data of a read; with SUCCESS if that is allowed and the data is complete.
    Data {
        command: prop::sample::Index,
        dwords: usize,
        success: bool,
        is_corrupt: bool,
    },
    /// The controller completes the command.
    Respond {
        command: prop::sample::Index,
        fails: bool,
    },
    Ring,
    /// The kernel accepts this many bytes in flight.
    Send(usize),
}

fn op() -> impl Strategy<Value = Op> {
    let index = any::<prop::sample::Index>;
    let dwords = || prop_oneof![1usize..20, 1usize..3000];
    prop_oneof![
        6 => (0u8..3, dwords()).prop_map(|(kind, dwords)| Op::Submit { kind, dwords }),
        5 => (index(), dwords()).prop_map(|(command, dwords)| Op::R2t { command, dwords }),
        5 => (index(), dwords(), any::<bool>(), prop::bool::weighted(0.1)).prop_map(
            |(command, dwords, success, is_corrupt)| Op::Data { command, dwords, success, is_corrupt }
        ),
        4 => (index(), any::<bool>()).prop_map(|(command, fails)| Op::Respond { command, fails }),
        4 => Just(Op::Ring),
        4 => prop_oneof![1usize..40, 1usize..20_000].prop_map(Op::Send),
    ]
}

#[derive(Debug)]
struct Command {
    user: u64,
    cid: u16,
    kind: u8,
    length: usize,
    /// Bytes requested and queued, or received.
    moved: usize,
    is_corrupt: bool,
    /// The received status, while data of the command is still to be sent.
    answer: Option<Status>,
}

/// Bytes to send.
#[derive(Debug)]
struct Piece {
    bytes: VecDeque<u8>,
    /// The command they belong to.
    user: u64,
    kind: PieceKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PieceKind {
    /// Header or digest of a capsule.
    Capsule,
    /// In-capsule data, which lies in the command's buffer.
    CapsuleData,
    /// Header or digest of an H2CData.
    Header,
    /// Data of an H2CData, which lies in the command's buffer; whether it is the last for its R2T.
    Data { ends_window: bool },
}

struct Model {
    end: HostEnd,
    dialect: Dialect,
    r2ts: usize,
    next_user: u64,
    /// Generations of the slots, and the free slots, the next one last.
    generations: Vec<u16>,
    free: Vec<u16>,
    commands: Vec<Command>,
    filling: Vec<Piece>,
    leaving: Vec<Piece>,
}

impl Model {
    fn new(dialect: Dialect, r2ts: u32) -> Self {
        let mut end = HostEnd::connected(dialect, r2ts, H2C_BYTES as u32);
        end.queue.set_in_capsule_bytes(IN_CAPSULE_BYTES as u32);
        Self {
            end,
            dialect,
            r2ts: r2ts as usize,
            next_user: 100,
            generations: Vec::new(),
            free: Vec::new(),
            commands: Vec::new(),
            filling: Vec::new(),
            leaving: Vec::new(),
        }
    }

    /// Unsent data of a command.
    fn in_transit(&self, user: u64) -> usize {
        self.count(user, |kind| matches!(kind, PieceKind::CapsuleData | PieceKind::Data { .. }))
    }

    /// Unsent pieces of a command.
    fn count(&self, user: u64, wanted: impl Fn(PieceKind) -> bool) -> usize {
        let pieces = self.leaving.iter().chain(&self.filling);
        pieces.filter(|piece| piece.user == user && wanted(piece.kind)).count()
    }

    /// Whether the controller knows of a command: its capsule has been sent.
    fn is_known(&self, user: u64) -> bool {
        self.count(user, |kind| matches!(kind, PieceKind::Capsule | PieceKind::CapsuleData)) == 0
    }

    /// The cid of the next command: the slot released last, in its next generation.
    fn next_cid(&mut self) -> u16 {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.generations.push(0);
            self.generations.len() as u16 - 1
        });
        let generation = &mut self.generations[usize::from(slot)];
        *generation = (*generation + 1) % 64;
        *generation << 10 | slot
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Submit { kind, dwords } => self.submit(kind, dwords * 4),
            Op::R2t { command, dwords } => self.r2t(command, dwords * 4),
            Op::Data { command, dwords, success, is_corrupt } => {
                self.data(command, dwords * 4, success, is_corrupt);
            }
            Op::Respond { command, fails } => self.respond(command, fails),
            Op::Ring => {
                let can = self.leaving.is_empty() && !self.filling.is_empty();
                assert_eq!(self.end.queue.ring(), can);
                if can {
                    std::mem::swap(&mut self.filling, &mut self.leaving);
                }
            }
            Op::Send(count) => self.send(count),
        }
    }

    fn submit(&mut self, kind: u8, length: usize) {
        let transfer = match kind {
            0 => Transfer::None,
            1 => Transfer::ToController(pattern(length)),
            _ => Transfer::FromController { buffer: vec![0; length], is_exact: true },
        };
        let user = self.next_user;
        let outcome = self.end.queue.submit(Sqe::new(kind, Nsid::new(1)), transfer, user);
        if self.commands.len() == LIMIT {
            assert!(matches!(outcome, Err(Refused::Full(_))));
            return;
        }
        assert!(outcome.is_ok());
        self.next_user += 1;
        let cid = self.next_cid();
        assert!(self.commands.iter().all(|command| command.cid != cid));
        let in_capsule = kind == 1 && length <= IN_CAPSULE_BYTES;
        let (data, pointer) = if in_capsule { (pattern(length), 0x01) } else { (Vec::new(), 0x5A) };
        let (moved, is_corrupt) = (data.len(), false);
        self.commands.push(Command { user, cid, kind, length, moved, is_corrupt, answer: None });
        let length = if kind == 0 { 0 } else { length as u32 };
        let pdu = self.dialect.command(sqe(kind, cid, pointer, length), &data);
        self.push(&pdu, 72, data.len(), user, [PieceKind::Capsule, PieceKind::CapsuleData]);
    }

    /// Queues a PDU, split at the start and end of its data.
    fn push(&mut self, pdu: &[u8], hlen: u8, length: usize, user: u64, [bytes, data]: [PieceKind; 2]) {
        let at = if length > 0 { self.dialect.pdo(hlen) } else { pdu.len() };
        let piece = |bytes: &[u8], kind| Piece { bytes: bytes.to_vec().into(), user, kind };
        self.filling.push(piece(&pdu[..at], bytes));
        if length > 0 {
            self.filling.push(piece(&pdu[at..at + length], data));
        }
        if at + length < pdu.len() {
            self.filling.push(piece(&pdu[at + length..], bytes));
        }
    }

    fn pick(&self, index: prop::sample::Index, wanted: impl Fn(&Command) -> bool) -> Option<usize> {
        let fitting: Vec<usize> = (0..self.commands.len()).filter(|at| wanted(&self.commands[*at])).collect();
        (!fitting.is_empty()).then(|| fitting[index.index(fitting.len())])
    }

    fn r2t(&mut self, index: prop::sample::Index, count: usize) {
        let r2ts = self.r2ts;
        let Some(at) = self.pick(index, |command| {
            let windows = self.count(command.user, |kind| kind == PieceKind::Data { ends_window: true });
            let is_open = command.answer.is_none() && command.moved < command.length;
            command.kind == 1 && is_open && windows < r2ts && self.is_known(command.user)
        }) else {
            return;
        };
        let command = &mut self.commands[at];
        let (cid, user, start) = (command.cid, command.user, command.moved);
        let end = command.length.min(start + count);
        command.moved = end;
        let data = pattern(command.length);
        let r2t = self.dialect.r2t(cid, 0xFACE, start as u32, (end - start) as u32);
        let seen = self.feed(&r2t);
        assert!(seen.is_empty());
        let mut next = start;
        while next < end {
            let stop = end.min(next + H2C_BYTES);
            let more = if stop == end { LAST } else { 0 };
            let pdu = self.dialect.h2c(cid, 0xFACE, next as u32, &data[next..stop], more);
            let data = PieceKind::Data { ends_window: stop == end };
            self.push(&pdu, 24, stop - next, user, [PieceKind::Header, data]);
            next = stop;
        }
    }

    fn data(&mut self, index: prop::sample::Index, count: usize, success: bool, is_corrupt: bool) {
        let Some(at) = self.pick(index, |command| {
            let is_open = command.answer.is_none() && command.moved < command.length;
            command.kind == 2 && is_open && self.is_known(command.user)
        }) else {
            return;
        };
        let command = &mut self.commands[at];
        let end = command.length.min(command.moved + count);
        let success = success && end == command.length;
        let more = if success { LAST | SUCCESS } else { 0 };
        let data = &pattern(command.length)[command.moved..end];
        let mut pdu = self.dialect.c2h(command.cid, command.moved as u32, data, more);
        if is_corrupt && self.dialect.digests & DDGST != 0 {
            *pdu.last_mut().unwrap() ^= 1;
            command.is_corrupt = true;
        }
        command.moved = end;
        let seen = self.feed(&pdu);
        if success {
            self.ended(at, Status::SUCCESS, seen);
        } else {
            assert!(seen.is_empty());
        }
    }

    fn respond(&mut self, index: prop::sample::Index, fails: bool) {
        let Some(at) = self.pick(index, |command| {
            // A write cannot succeed before all of its data was requested.
            let can = fails || command.kind != 1 || command.moved == command.length;
            command.answer.is_none() && can && self.is_known(command.user)
        }) else {
            return;
        };
        let word = if fails { 0x8100 } else { 0 };
        let response = self.dialect.response(cqe(self.commands[at].cid, 0, word));
        let seen = self.feed(&response);
        let status = if fails { Status::LBA_OUT_OF_RANGE.with_dnr() } else { Status::SUCCESS };
        self.ended(at, status, seen);
    }

    /// The controller has completed a command: it ends now, or once its data has been sent.
    fn ended(&mut self, at: usize, status: Status, seen: Vec<Completion<Vec<u8>>>) {
        let command = &mut self.commands[at];
        let status = match status.is_success() {
            true if command.is_corrupt => Status::TRANSIENT_TRANSPORT_ERROR,
            true if command.kind == 2 && command.moved < command.length => Status::DATA_TRANSFER_ERROR,
            _ => status,
        };
        command.answer = Some(status);
        let user = command.user;
        if self.in_transit(user) > 0 {
            assert!(seen.is_empty(), "held back while its data is in the caravan");
            return;
        }
        let [completion] = <[_; 1]>::try_from(seen).expect("it ends now");
        assert_eq!(completion.user, user);
        self.retire(completion);
    }

    /// A command has ended.
    fn retire(&mut self, completion: Completion<Vec<u8>>) {
        let at = self.commands.iter().position(|command| command.user == completion.user);
        let command = self.commands.swap_remove(at.expect("a command ends once"));
        self.free.push(command.cid & 0x3FF);
        let status = command.answer.expect("it was answered");
        assert_eq!((completion.status, completion.result), (status, 0));
        let received = if command.kind == 2 { command.moved } else { 0 };
        assert_eq!(completion.received as usize, received);
        let data = pattern(command.length);
        match (command.kind, completion.buffer) {
            (0, None) => {}
            (1, Some(buffer)) => assert_eq!(buffer, data),
            (2, Some(buffer)) => {
                assert_eq!(buffer[..command.moved], data[..command.moved]);
                assert!(buffer[command.moved..].iter().all(|byte| *byte == 0), "nothing past what came");
            }
            other => panic!("{other:?}"),
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> Vec<Completion<Vec<u8>>> {
        self.end.feed(bytes).unwrap()
    }

    fn send(&mut self, count: usize) {
        let total: usize = self.leaving.iter().map(|piece| piece.bytes.len()).sum();
        let mut left = count.min(total);
        let mut expected = Vec::new();
        while left > 0 {
            let piece = &mut self.leaving[0];
            let taken = left.min(piece.bytes.len());
            expected.extend(piece.bytes.drain(..taken));
            left -= taken;
            if piece.bytes.is_empty() {
                self.leaving.remove(0);
            }
        }
        let mut actual = Vec::new();
        self.end.queue.for_each_piece(|piece| {
            actual.extend_from_slice(piece);
            actual.len() < expected.len()
        });
        actual.truncate(expected.len());
        assert!(actual == expected);
        self.end.queue.on_sent(expected.len());
        // Completions that were held back for data that has now been sent.
        let is_done = |command: &&Command| command.answer.is_some() && self.in_transit(command.user) == 0;
        let done_count = self.commands.iter().filter(is_done).count();
        assert_eq!(self.end.queue.has_finished(), done_count > 0);
        let seen = self.feed(&[]);
        assert_eq!(seen.len(), done_count);
        for completion in seen {
            self.retire(completion);
        }
    }

    fn compare(&self) {
        assert_eq!(usize::from(self.end.queue.outstanding()), self.commands.len());
        assert_eq!(self.end.queue.has_room(), self.commands.len() < LIMIT);
        let waiting: usize = self.filling.iter().map(|piece| piece.bytes.len()).sum();
        assert_eq!(self.end.queue.caravan().waiting_bytes(), waiting);
    }

    /// The connection is lost: received statuses are kept.
    fn lose(mut self) {
        let lost = Status::HOST_PATHING_ERROR;
        for command in &mut self.commands {
            command.answer.get_or_insert(lost);
        }
        while let Some(completion) = self.end.queue.next_unfinished(lost) {
            self.retire(completion);
        }
        assert!(self.commands.is_empty(), "every command ends");
        assert!(self.end.queue.caravan().is_empty());
        assert_eq!(self.end.queue.outstanding(), 0);
    }
}

proptest! {
    #[test]
    fn a_host_s_queue_does_what_its_model_does(
        digests in 0u8..4,
        alignment in 0u8..3,
        r2ts in 1u32..4,
        ops in prop::collection::vec(op(), 1..200),
    ) {
        let mut model = Model::new(Dialect { digests, alignment }, r2ts);
        for op in &ops {
            model.step(op);
            model.end.queue.invariants();
            model.compare();
        }
        model.lose();
    }
}

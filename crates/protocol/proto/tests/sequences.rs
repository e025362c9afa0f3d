//! Every sequence of up to five PDUs, at both ends of a queue pair: the reaction to each PDU depends on the state that
//! it meets and on nothing else, and is in a table.
//!
//! The alphabet of each end has PDUs that are right in some state, PDUs that are wrong in every state, and those of the
//! other direction: 20 for a controller without digests and 23 with them, 21 for a host. A controller's sequences run
//! twice, with commands that end at once and with commands that stay. That is 2 × (3,368,420 + 6,728,903) sequences for
//! the controller and 4,288,305 for the host. A sequence is not run beyond the end of its connection: there it is shown
//! once that no further input is accepted.
//!
//! In every sequence: no panic; a violation causes a TermReq with the right status and offset and a copy of the header,
//! or none where none is due; each command ends once; a read succeeds with all its data or not at all; the data sent of
//! a write is the data that was asked for; and no more is held or sent than the outstanding commands account for.

#![allow(clippy::cast_possible_truncation)]

#[path = "harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

use std::collections::BTreeMap;
use std::fmt::Write;

use ends::{ControllerEnd, HostEnd, Seen, codes};
use nvlane_proto::Violation;
use nvlane_proto::controller_queue::QueueSettings;
use nvlane_proto::host_queue::{HostEvent, Transfer};
use pdus::{
    Dialect, FLUSH, IN_CAPSULE, LAST, READ, SUCCESS, TRANSPORT, WRITE, cqe, cut, ic_req, ic_resp, pattern,
    sqe, term_req,
};
use wire::id::Nsid;
use wire::sqe::Sqe;
use wire::status::Status;

/// PDUs of a sequence.
const LENGTH_MAX: u32 = 5;

/// Bytes that every command moves.
const BYTES: usize = 64;
const HALF: usize = BYTES / 2;

/// The reactions to each PDU in each state.
#[derive(Default)]
struct Table {
    reactions: BTreeMap<(String, &'static str), String>,
    /// Number of sequences run, including those that continue after an end.
    sequences: u64,
    letters: u64,
}

impl Table {
    fn new(letters: usize) -> Self {
        Self { letters: letters as u64, ..Self::default() }
    }

    /// Records a reaction, which must be the same each time for a state. `length` PDUs were run; after the end of a
    /// connection all longer sequences count as run.
    fn note(&mut self, state: String, letter: &'static str, reaction: &str, length: u32, is_over: bool) {
        let behind: u64 =
            if is_over { (1..=LENGTH_MAX - length).map(|more| self.letters.pow(more)).sum() } else { 0 };
        self.sequences += 1 + behind;
        let before = self.reactions.entry((state, letter)).or_insert_with(|| reaction.to_owned());
        assert_eq!(*before, reaction, "in one state, one reaction to {letter}");
    }

    fn assert_complete(&self) {
        let all: u64 = (1..=LENGTH_MAX).map(|length| self.letters.pow(length)).sum();
        assert_eq!(self.sequences, all, "every sequence is run or settled");
    }

    /// A line for each state and reaction, with the PDUs that cause it.
    fn text(&self) -> String {
        let mut lines = BTreeMap::<(&str, &str), Vec<&str>>::new();
        for ((state, letter), reaction) in &self.reactions {
            lines.entry((state, reaction)).or_default().push(letter);
        }
        let mut text = String::new();
        for ((state, reaction), letters) in lines {
            writeln!(text, "{state}: {reaction}: {}", letters.join(", ")).unwrap();
        }
        text
    }
}

fn violation(violation: Violation) -> String {
    match violation {
        Violation::HeaderField { offset } => format!("field {offset}"),
        Violation::UnsupportedParameter { offset } => format!("unsupported {offset}"),
        other => other.name().replace('_', " "),
    }
}

/// The TermReq for this violation: the right status and offset, and a copy of the front of `offending`.
fn assert_term(sent: &[u8], kind: u8, why: Violation, offending: &[u8]) {
    let (fes, fei) = codes(why);
    let copied = sent.len() - 24;
    assert!((8..=128).contains(&copied) && copied <= offending.len(), "{copied} bytes are quoted");
    assert_eq!(sent, term_req(kind, fes, fei, &offending[..copied]));
}

/// An end on its way through one sequence.
trait Run {
    fn state(&self) -> String;
    /// Takes in a letter: the reaction, and whether the sequence is over.
    fn step(&mut self, letter: &'static str) -> (String, bool);
}

/// Notes every sequence that begins with `prefix`, each letter of it on a run of its own.
fn explore<R: Run>(
    table: &mut Table,
    letters: &[&'static str],
    prefix: &mut Vec<&'static str>,
    new_run: &dyn Fn() -> R,
) {
    for letter in letters {
        let mut run = new_run();
        for before in prefix.iter() {
            run.step(before);
        }
        let state = run.state();
        let (reaction, is_over) = run.step(letter);
        let length = prefix.len() as u32 + 1;
        table.note(state, letter, &reaction, length, is_over);
        if !is_over && length < LENGTH_MAX {
            prefix.push(letter);
            explore(table, letters, prefix, new_run);
            prefix.pop();
        }
    }
}

// ---- The controller's end.

const A: u16 = 0x0102;
const B: u16 = 0x0304;

/// PDUs for a controller; those after `wrong header digest` only with digests.
const TO_CONTROLLER: [&str; 23] = [
    "ICReq",
    "H2CTermReq",
    "flush A",
    "read A",
    "write A in its capsule",
    "write A to be asked for",
    "flush B",
    "write B to be asked for",
    "all data of A",
    "first half of A",
    "second half of A",
    "data of A with a tag of nobody",
    "data of A with B's id",
    "data of A beyond its end",
    "ICResp",
    "C2HTermReq",
    "CapsuleResp",
    "C2HData",
    "R2T",
    "a PDU of no type",
    "wrong header digest",
    "write A in its capsule, wrong data digest",
    "all data of A, wrong data digest",
];

/// An outstanding command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Open {
    Held,
    /// Its R2T was sent, with this tag, and this many bytes have arrived.
    Asked {
        ttag: u16,
        next: usize,
    },
}

/// The state of a controller's end as seen from outside.
struct ControllerRun {
    end: ControllerEnd,
    dialect: Dialect,
    /// Whether commands end at once, or never.
    completes: bool,
    is_shaken: bool,
    open: BTreeMap<u16, (Open, nvlane_proto::Slot)>,
    /// The latest tag of A.
    ttag: u16,
}

impl ControllerRun {
    fn new(dialect: Dialect, completes: bool) -> Self {
        let end = ControllerEnd::new(QueueSettings::default());
        Self { end, dialect, completes, is_shaken: false, open: BTreeMap::new(), ttag: 0x1000 }
    }

    fn is_asked(&self) -> bool {
        matches!(self.open.get(&A), Some((Open::Asked { .. }, _)))
    }

    fn pdu(&self, letter: &str) -> Vec<u8> {
        let (dialect, data) = (self.dialect, pattern(BYTES));
        let spoilt = |mut pdu: Vec<u8>, at: usize| {
            pdu[at] ^= 0x40;
            pdu
        };
        let write = |cid| dialect.command(sqe(WRITE, cid, TRANSPORT, BYTES as u32), &[]);
        let in_capsule = || dialect.command(sqe(WRITE, A, IN_CAPSULE, BYTES as u32), &data);
        let all = || dialect.h2c(A, self.ttag, 0, &data, LAST);
        match letter {
            "ICReq" => ic_req(0, dialect.digests, 0),
            "H2CTermReq" => term_req(0x02, 1, 0, &[0; 24]),
            "flush A" => dialect.command(sqe(FLUSH, A, TRANSPORT, 0), &[]),
            "read A" => dialect.command(sqe(READ, A, TRANSPORT, BYTES as u32), &[]),
            "write A in its capsule" => in_capsule(),
            "write A to be asked for" => write(A),
            "flush B" => dialect.command(sqe(FLUSH, B, TRANSPORT, 0), &[]),
            "write B to be asked for" => write(B),
            "all data of A" => all(),
            "first half of A" => dialect.h2c(A, self.ttag, 0, &data[..HALF], 0),
            "second half of A" => dialect.h2c(A, self.ttag, HALF as u32, &data[HALF..], LAST),
            "data of A with a tag of nobody" => dialect.h2c(A, 0xFFF0, 0, &data, LAST),
            // A's latest tag may be B's by now, which would make this PDU valid.
            "data of A with B's id" if !self.is_asked() => dialect.h2c(B, 0xFFF0, 0, &data, LAST),
            "data of A with B's id" => dialect.h2c(B, self.ttag, 0, &data, LAST),
            "data of A beyond its end" => dialect.h2c(A, self.ttag, BYTES as u32, &data, LAST),
            "ICResp" => ic_resp(0, dialect.digests, 8192),
            "C2HTermReq" => term_req(0x03, 1, 0, &[0; 24]),
            "CapsuleResp" => dialect.response(cqe(A, 0, 0)),
            "C2HData" => dialect.c2h(A, 0, &data, LAST),
            "R2T" => dialect.r2t(A, self.ttag, 0, BYTES as u32),
            "a PDU of no type" => dialect.pdu(0x0A, 0, &[0; 16], &[]),
            "wrong header digest" => spoilt(dialect.command(sqe(FLUSH, A, TRANSPORT, 0), &[]), 72),
            "write A in its capsule, wrong data digest" => {
                let pdu = in_capsule();
                let last = pdu.len() - 1;
                spoilt(pdu, last)
            }
            "all data of A, wrong data digest" => {
                let pdu = all();
                let last = pdu.len() - 1;
                spoilt(pdu, last)
            }
            other => unreachable!("{other}"),
        }
    }

    fn begin(&mut self, cid: u16, opcode: u8, pointer: u8, slot: nvlane_proto::Slot) {
        if opcode == WRITE && pointer == TRANSPORT {
            self.end.queue.request_data(slot, vec![0; BYTES], BYTES as u32);
            self.open.insert(cid, (Open::Asked { ttag: 0, next: 0 }, slot));
        } else if !self.completes {
            self.open.insert(cid, (Open::Held, slot));
        } else if opcode == READ {
            self.end.answer(slot, pattern(BYTES), 0);
        } else {
            self.end.complete(slot, Status::SUCCESS);
        }
    }

    /// Checks that the output is valid and at most one answer long.
    fn look_at_sent(&mut self) {
        let sent = self.end.sent();
        assert!(sent.len() <= 2 * 128 + BYTES, "{} bytes in answer to one PDU", sent.len());
        for pdu in cut(&sent) {
            match pdu[0] {
                0x05 | 0x07 => {}
                0x09 => {
                    let (cid, tag) =
                        (u16::from_le_bytes([pdu[8], pdu[9]]), u16::from_le_bytes([pdu[10], pdu[11]]));
                    assert_eq!(pdu, self.dialect.r2t(cid, tag, 0, BYTES as u32));
                    if let Some((Open::Asked { ttag, .. }, _)) = self.open.get_mut(&cid) {
                        *ttag = tag;
                    }
                    if cid == A {
                        self.ttag = tag;
                    }
                }
                other => panic!("a PDU of type {other:#04x}"),
            }
        }
    }

    /// Checks that the connection has ended with the right TermReq.
    fn ends(&mut self, why: Violation, pdu: &[u8]) -> String {
        let is_told = self.end.queue.fail(why);
        let sent = self.end.sent();
        match why {
            Violation::EndedByPeer { .. } | Violation::MalformedTermReq => {
                assert!(!is_told && sent.is_empty());
            }
            _ => {
                assert!(is_told);
                assert_term(&sent, 0x03, why, pdu);
            }
        }
        self.end.assert_dead(why);
        if pdu[0] == 0x06 && self.is_shaken && !self.is_asked() {
            // A's latest tag may be free, or belong to a command without data, or to another one: that is more than the
            // state considered here contains.
            let rights = [
                Violation::Sequence,
                Violation::HeaderField { offset: 10 },
                Violation::HeaderField { offset: 8 },
            ];
            assert!(rights.contains(&why), "{why}");
            return "wants no data".into();
        }
        violation(why)
    }
}

impl Run for ControllerRun {
    fn state(&self) -> String {
        if !self.is_shaken {
            return "before the handshake".into();
        }
        let one = |name: &str, cid: u16| match self.open.get(&cid) {
            None => format!("no {name}"),
            Some((Open::Held, _)) => format!("{name} runs"),
            Some((Open::Asked { next, .. }, _)) => format!("{name} has {next} bytes"),
        };
        format!("{}, {}", one("A", A), one("B", B))
    }

    /// Feeds one PDU. Returns the reaction, and whether that was the end.
    fn step(&mut self, letter: &'static str) -> (String, bool) {
        let pdu = self.pdu(letter);
        let seen = match self.end.feed(&pdu) {
            Ok(seen) => seen,
            Err(why) => return (self.ends(why, &pdu), true),
        };
        assert!(!self.end.queue.is_within_pdu(), "a whole PDU was taken in");
        let reaction = match &seen[..] {
            [] => {
                if let Some((Open::Asked { next, .. }, _)) = self.open.get_mut(&A) {
                    *next += HALF;
                }
                "taken".into()
            }
            [Seen::Initialised(_)] => {
                self.is_shaken = true;
                self.end.queue.establish(16, false);
                assert_eq!(
                    self.end.sent(),
                    ic_resp(0, self.dialect.digests, QueueSettings::default().offer.h2c_data_bytes_max)
                );
                "initialised".into()
            }
            [Seen::Command { slot, sqe, data }] => {
                let cid = u16::from_le_bytes([sqe[2], sqe[3]]);
                assert!(!self.open.contains_key(&cid), "an id that is in use");
                assert_eq!(data[..], pattern(if sqe[39] == IN_CAPSULE { BYTES } else { 0 }));
                self.begin(cid, sqe[0], sqe[39], *slot);
                "command".into()
            }
            [Seen::DataReceived { slot, is_intact }] => {
                let (_, owner) = self.open.remove(&A).expect("A was asked");
                assert_eq!(*slot, owner);
                assert!(self.end.queue.take_buffer(*slot) == pattern(BYTES) || !is_intact);
                if self.completes {
                    self.end.complete(*slot, Status::SUCCESS);
                } else {
                    self.open.insert(A, (Open::Held, *slot));
                }
                if *is_intact { "data" } else { "spoilt data" }.into()
            }
            [Seen::Refused { cid, status }] => {
                assert_eq!(*cid, if letter.contains('B') { B } else { A });
                format!("refused {:#05x}", status.code())
            }
            other => panic!("{other:?}"),
        };
        self.look_at_sent();
        assert_eq!(
            usize::from(self.end.queue.outstanding()),
            self.open.len(),
            "open is what was not answered"
        );
        (reaction, false)
    }
}

#[test]
fn a_controller_reacts_to_every_sequence_as_the_table_says() {
    let mut text = String::new();
    for (dialect, letters) in
        [(Dialect::PLAIN, &TO_CONTROLLER[..20]), (Dialect::BOTH_DIGESTS, &TO_CONTROLLER[..])]
    {
        for completes in [true, false] {
            let mut table = Table::new(letters.len());
            explore(&mut table, letters, &mut Vec::new(), &|| ControllerRun::new(dialect, completes));
            table.assert_complete();
            let how = if completes { "end at once" } else { "stay" };
            let digests = if dialect == Dialect::PLAIN { "no digests" } else { "both digests" };
            writeln!(text, "--- {digests}, commands {how}: {} sequences", table.sequences).unwrap();
            text.push_str(&table.text());
        }
    }
    insta::assert_snapshot!("controller", text);
}

// ---- The host's end.

/// PDUs for a host with one read and one write outstanding.
const TO_HOST: [&str; 21] = [
    "ICResp",
    "C2HTermReq",
    "read succeeds",
    "read fails",
    "write succeeds",
    "completion for nobody",
    "first half of the read",
    "second half of the read",
    "all of the read and success",
    "success without the last",
    "data for the write",
    "data for nobody",
    "R2T for all of the write",
    "R2T for its first half",
    "R2T for its second half",
    "R2T for nothing",
    "R2T for the read",
    "ICReq",
    "H2CTermReq",
    "CapsuleCmd",
    "a PDU of no type",
];

/// The state of a host's end as seen from outside.
struct HostRun {
    end: HostEnd,
    is_shaken: bool,
    /// Ids of the read and the write.
    cids: [u16; 2],
    /// Bytes received for the read, if it is outstanding; bytes sent of the write.
    progress: [Option<usize>; 2],
}

impl HostRun {
    fn new() -> Self {
        let end = HostEnd::new(Dialect::BOTH_DIGESTS, 1);
        Self { end, is_shaken: false, cids: [0, 1], progress: [None, None] }
    }

    fn pdu(&self, letter: &str) -> Vec<u8> {
        const OK: u16 = 0;
        /// LBA out of range with DNR, as on the wire.
        const FAILED: u16 = (0x4000 | 0x80) << 1;
        let (dialect, data, [read, write]) = (Dialect::BOTH_DIGESTS, pattern(BYTES), self.cids);
        let nobody = 0x5A5A;
        match letter {
            "ICResp" => ic_resp(0, dialect.digests, 8192),
            "C2HTermReq" => term_req(0x03, 1, 0, &[0; 24]),
            "read succeeds" => dialect.response(cqe(read, 0, OK)),
            "read fails" => dialect.response(cqe(read, 0, FAILED)),
            "write succeeds" => dialect.response(cqe(write, 0, OK)),
            "completion for nobody" => dialect.response(cqe(nobody, 0, OK)),
            "first half of the read" => dialect.c2h(read, 0, &data[..HALF], 0),
            "second half of the read" => dialect.c2h(read, HALF as u32, &data[HALF..], LAST),
            "all of the read and success" => dialect.c2h(read, 0, &data, LAST | SUCCESS),
            "success without the last" => dialect.c2h(read, 0, &data, SUCCESS),
            "data for the write" => dialect.c2h(write, 0, &data, LAST),
            "data for nobody" => dialect.c2h(nobody, 0, &data, LAST),
            "R2T for all of the write" => dialect.r2t(write, 9, 0, BYTES as u32),
            "R2T for its first half" => dialect.r2t(write, 9, 0, HALF as u32),
            "R2T for its second half" => dialect.r2t(write, 9, HALF as u32, HALF as u32),
            "R2T for nothing" => dialect.r2t(write, 9, 0, 0),
            "R2T for the read" => dialect.r2t(read, 9, 0, BYTES as u32),
            "ICReq" => ic_req(0, dialect.digests, 0),
            "H2CTermReq" => term_req(0x02, 1, 0, &[0; 24]),
            "CapsuleCmd" => dialect.command(sqe(FLUSH, read, TRANSPORT, 0), &[]),
            "a PDU of no type" => dialect.pdu(0x0A, 0, &[0; 16], &[]),
            other => unreachable!("{other}"),
        }
    }

    fn submit(&mut self, which: usize, opcode: u8, transfer: Transfer<Vec<u8>>) {
        self.end.queue.submit(Sqe::new(opcode, Nsid::new(1)), transfer, which as u64).expect("there is room");
        let sent = self.end.sent();
        self.cids[which] = u16::from_le_bytes([sent[10], sent[11]]);
        self.progress[which] = Some(0);
    }

    fn ends(&mut self, why: Violation, pdu: &[u8]) -> String {
        match (why, self.end.queue.fail(why)) {
            (Violation::EndedByPeer { .. } | Violation::MalformedTermReq, told) => assert!(told.is_none()),
            (_, told) => assert_term(&told.expect("a TermReq is due"), 0x02, why, pdu),
        }
        self.end.assert_dead(why);
        violation(why)
    }
}

impl Run for HostRun {
    fn state(&self) -> String {
        if !self.is_shaken {
            return "before the handshake".into();
        }
        let one = |name: &str, done: &str, progress: Option<usize>| match progress {
            None => format!("{name} is over"),
            Some(bytes) => format!("{name} has {done} {bytes} bytes"),
        };
        format!("{}, {}", one("read", "got", self.progress[0]), one("write", "sent", self.progress[1]))
    }

    fn step(&mut self, letter: &'static str) -> (String, bool) {
        let pdu = self.pdu(letter);
        let mut input = &pdu[..];
        let event = match self.end.queue.next_event(&mut input) {
            Ok(event) => event,
            Err(why) => return (self.ends(why, &pdu), true),
        };
        let reaction = match event {
            Some(HostEvent::Initialised(_)) => {
                self.is_shaken = true;
                self.end.queue.set_in_capsule_bytes(0);
                let read = Transfer::FromController { buffer: vec![0xEE; BYTES], is_exact: true };
                self.submit(0, READ, read);
                self.submit(1, WRITE, Transfer::ToController(pattern(BYTES)));
                "initialised".into()
            }
            Some(HostEvent::Completed(completion)) => {
                let which = completion.user as usize;
                let done = self.progress[which].take().expect("a command ends once");
                let is_whole = done == BYTES || letter == "all of the read and success";
                if completion.status.is_success() {
                    assert!(is_whole, "success after {done} bytes");
                    assert!(completion.buffer.expect("its own") == pattern(BYTES), "not its data");
                    "success".into()
                } else {
                    format!("failure {:#05x}", completion.status.code())
                }
            }
            None => "taken".into(),
        };
        assert!(input.is_empty() && !self.end.queue.is_within_pdu(), "a whole PDU was taken in");
        if letter.ends_with("half of the read") {
            self.progress[0] = self.progress[0].map(|bytes| bytes + HALF);
        }
        let sent = self.end.sent();
        let served = cut(&sent).len();
        assert!(served <= 1, "one H2CData for one R2T");
        if served == 1 {
            let (start, length) = match letter {
                "R2T for all of the write" => (0, BYTES),
                "R2T for its first half" => (0, HALF),
                "R2T for its second half" => (HALF, HALF),
                other => panic!("data is sent for {other}"),
            };
            let part = &pattern(BYTES)[start..start + length];
            assert_eq!(sent, Dialect::BOTH_DIGESTS.h2c(self.cids[1], 9, start as u32, part, LAST));
            self.progress[1] = self.progress[1].map(|bytes| bytes + length);
        }
        let open = self.progress.iter().flatten().count();
        assert_eq!(usize::from(self.end.queue.outstanding()), open, "open is what has not ended");
        (if served == 1 { format!("{reaction}, served") } else { reaction }, false)
    }
}

#[test]
fn a_host_reacts_to_every_sequence_as_the_table_says() {
    let mut table = Table::new(TO_HOST.len());
    explore(&mut table, &TO_HOST, &mut Vec::new(), &HostRun::new);
    table.assert_complete();
    insta::assert_snapshot!("host", format!("--- {} sequences\n{}", table.sequences, table.text()));
}

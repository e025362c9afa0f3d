//! Instructions that codec, queue and caravan of one side spend on a command of 4 KiB, counted by valgrind.
//!
//! Each case is [`BATCH`] commands that come in one receive and leave in one caravan. `cargo xtask instructions`
//! installs what this needs, runs each case in valgrind, and compares the instructions per command with
//! `instructions.json`. Without an argument the program lists its cases.

#![allow(missing_docs, clippy::cast_possible_truncation)]

use std::hint::black_box;

use nvlane_proto::controller_queue::{Event, QueueSettings};
use nvlane_proto::handshake::{ControllerOffer, HostOffer};
use nvlane_proto::host_queue::{End, Transfer};
use nvlane_proto::{Caravan, ControllerQueue, HostQueue, Piece, Slot};
use wire::U16;
use wire::cqe::Cqe;
use wire::digest::{data_digest, header_digest};
use wire::id::Nsid;
use wire::pdu::{
    CapsuleCmd, CapsuleResp, DataAlignment, DataPdu, Digests, PduFlags, PduLayout, PduType, R2t,
};
use wire::sgl::Sgl;
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::{FromBytes, IntoBytes};

/// Commands at once.
const BATCH: u16 = 32;
const BLOCK: u32 = 4096;
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;

/// Stands for a controller's buffer of a pool: a place in registered memory.
#[derive(Clone, Copy, Debug)]
struct Payload {
    address: usize,
}

/// The pieces of a send.
type Pieces = Vec<(usize, usize)>;

/// A PDU as it travels.
fn pdu(bytes: &mut Vec<u8>, digests: Digests, layout: &PduLayout, header: &[u8], data: &[u8]) {
    let start = bytes.len();
    bytes.extend_from_slice(header);
    if layout.header_digest_at().is_some() {
        bytes.extend_from_slice(&header_digest(header).to_le_bytes());
    }
    bytes.resize(start + usize::from(layout.prefix_length()), 0);
    bytes.extend_from_slice(data);
    if digests.contains(Digests::DATA) && !data.is_empty() {
        bytes.extend_from_slice(&data_digest(data).to_le_bytes());
    }
}

/// A batch of commands as a host sends it.
fn commands(digests: Digests, opcode: u8, in_capsule: bool) -> Vec<u8> {
    let mut bytes = Vec::new();
    let data = vec![0x5A; if in_capsule { BLOCK as usize } else { 0 }];
    for index in 0..BATCH {
        let kind = PduType::CapsuleCmd;
        let layout = PduLayout::new(kind, digests, DataAlignment::NONE, data.len() as u32).expect("fits");
        let dptr = if in_capsule { Sgl::in_capsule(BLOCK) } else { Sgl::transport(BLOCK) };
        // Linux has a generation in the upper bits.
        let sqe = Sqe::new(opcode, Nsid::new(1)).with_cid(0xA000 | index).with_data(dptr);
        pdu(&mut bytes, digests, &layout, CapsuleCmd::new(&layout, sqe).as_bytes(), &data);
    }
    bytes
}

/// A controller's lane without its socket.
struct Target {
    queue: ControllerQueue<Box<[u8]>, Payload>,
    input: Vec<u8>,
    pieces: Pieces,
    buffers: Vec<Box<[u8]>>,
}

impl Target {
    fn new(digests: Digests, input: Vec<u8>) -> Self {
        let mut queue = ControllerQueue::new(QueueSettings::default());
        let request = HostOffer { digests, ..HostOffer::default() }.ic_req();
        queue.next_event(&mut request.as_bytes()).expect("a good request");
        queue.establish(2 * BATCH, true);
        let buffers = (0..BATCH).map(|_| vec![0; BLOCK as usize].into()).collect();
        let mut target = Self { queue, input, pieces: vec![(0, 0); 4 * usize::from(BATCH)], buffers };
        target.send();
        target
    }

    #[inline]
    fn send(&mut self) {
        let caravan = self.queue.caravan();
        caravan.ring();
        let mut total = 0;
        for (segment, piece) in self.pieces.iter_mut().zip(caravan.pieces()) {
            *segment = match piece {
                Piece::Bytes(bytes) => (bytes.as_ptr().addr(), bytes.len()),
                Piece::Payload(payload, range) => (payload.address + range.start, range.len()),
            };
            total += segment.1;
        }
        caravan.on_sent(total, |payload| {
            black_box(payload);
        });
        black_box(&self.pieces);
    }

    #[inline]
    fn serve_reads(&mut self) {
        let mut input = &self.input[..];
        while let Some(event) = self.queue.next_event(&mut input).expect("well-formed") {
            let Event::Command { slot, sqe, .. } = event else { continue };
            let payload = Payload { address: usize::from(sqe.cid.get()) };
            let length = sqe.dptr.length.get();
            self.queue.complete_with_data(slot, payload, length, 0, |_, _| 0);
        }
        self.send();
    }

    #[inline]
    fn serve_writes(&mut self) {
        let mut input = &self.input[..];
        while let Some(event) = self.queue.next_event(&mut input).expect("well-formed") {
            let Event::Command { slot, data, .. } = event else { continue };
            black_box(data);
            self.queue.complete(slot, Status::SUCCESS, 0);
        }
        self.send();
    }

    /// Asks for the data of each command.
    #[inline]
    fn ask(&mut self) {
        let mut input = &self.input[..];
        while let Some(event) = self.queue.next_event(&mut input).expect("well-formed") {
            let Event::Command { slot, sqe, .. } = event else { continue };
            let buffer = self.buffers.pop().expect("as many as commands");
            self.queue.request_data(slot, buffer, sqe.dptr.length.get());
        }
        self.send();
    }

    /// Takes the data that was asked for, by copy.
    #[inline]
    fn receive(&mut self, input: &[u8]) {
        let mut input = input;
        while let Some(event) = self.queue.next_event(&mut input).expect("well-formed") {
            let Event::DataReceived { slot, .. } = event else { continue };
            self.finish(slot);
        }
        self.send();
    }

    #[inline]
    fn finish(&mut self, slot: Slot) {
        self.buffers.push(self.queue.take_buffer(slot));
        self.queue.complete(slot, Status::SUCCESS, 0);
    }

    /// The data that answers the R2Ts of [`ask`](Self::ask).
    fn asked(&mut self, digests: Digests) -> Vec<u8> {
        let mut input = &self.input[..];
        while let Some(Event::Command { slot, .. }) = self.queue.next_event(&mut input).expect("well-formed")
        {
            let buffer = self.buffers.pop().expect("as many as commands");
            self.queue.request_data(slot, buffer, BLOCK);
        }
        let caravan = self.queue.caravan();
        caravan.ring();
        let mut sent = Vec::new();
        for piece in caravan.pieces() {
            let Piece::Bytes(bytes) = piece else { unreachable!("an R2T has no data") };
            sent.extend_from_slice(bytes);
        }
        caravan.on_sent(sent.len(), drop);
        let length = PduLayout::without_data(PduType::R2t, digests).plen() as usize;
        let mut answer = Vec::new();
        for bytes in sent.chunks(length) {
            let (r2t, _) = R2t::read_from_prefix(bytes).expect("an R2T");
            let layout = PduLayout::new(PduType::H2cData, digests, DataAlignment::NONE, r2t.length.get());
            let layout = layout.expect("fits");
            let header = DataPdu::h2c(&layout, r2t.cid, r2t.ttag, r2t.offset.get(), true);
            pdu(&mut answer, digests, &layout, header.as_bytes(), &vec![0xA5; BLOCK as usize]);
        }
        answer
    }
}

fn reads(digests: Digests) -> Target {
    let mut target = Target::new(digests, commands(digests, READ, false));
    (0..4).for_each(|_| target.serve_reads());
    target
}

fn in_capsule_writes(digests: Digests) -> Target {
    let mut target = Target::new(digests, commands(digests, WRITE, true));
    (0..4).for_each(|_| target.serve_writes());
    target
}

fn writes(digests: Digests) -> Target {
    let mut target = Target::new(digests, commands(digests, WRITE, false));
    for _ in 0..4 {
        let answer = target.asked(digests);
        target.receive(&answer);
    }
    target
}

fn asked_writes(digests: Digests) -> (Target, Vec<u8>) {
    let mut target = writes(digests);
    let answer = target.asked(digests);
    (target, answer)
}

/// A host's lane without its socket.
struct Host {
    queue: HostQueue<Vec<u8>>,
    pieces: Pieces,
    buffers: Vec<Vec<u8>>,
}

impl Host {
    fn new(digests: Digests, in_capsule_bytes: u32) -> Self {
        let offer = HostOffer { digests, ..HostOffer::default() };
        let mut queue = HostQueue::new(offer, 2 * BATCH);
        queue.set_in_capsule_bytes(in_capsule_bytes);
        let (response, _) = ControllerOffer::default().on_ic_req(&offer.ic_req()).expect("a good request");
        let buffers = vec![vec![0; BLOCK as usize]; BATCH.into()];
        let pieces = vec![(0, 0); 4 * usize::from(BATCH)];
        let mut host = Self { queue, pieces, buffers };
        host.send();
        host.queue.next_event(&mut response.as_bytes()).expect("a good answer");
        host
    }

    #[inline]
    fn send(&mut self) {
        self.queue.ring();
        let (mut pieces, mut total) = (self.pieces.iter_mut(), 0);
        self.queue.for_each_piece(|piece| {
            let Some(segment) = pieces.next() else { return false };
            *segment = (piece.as_ptr().addr(), piece.len());
            total += piece.len();
            true
        });
        self.queue.on_sent(total);
        black_box(&self.pieces);
    }

    #[inline]
    fn submit(&mut self, opcode: u8) {
        self.push(opcode);
        self.send();
    }

    #[inline]
    fn push(&mut self, opcode: u8) {
        for user in 0..BATCH {
            let buffer = self.buffers.pop().expect("as many as commands");
            let transfer = if opcode == READ {
                Transfer::FromController { buffer, is_exact: true }
            } else {
                Transfer::ToController(buffer)
            };
            let sqe = Sqe::new(opcode, Nsid::new(1));
            self.queue.submit(sqe, transfer, user.into()).expect("there is room");
        }
    }

    /// Submits, and gives the ids of the commands.
    fn submitted(&mut self, digests: Digests, opcode: u8) -> Vec<U16> {
        self.push(opcode);
        self.queue.ring();
        let mut sent = Vec::new();
        self.queue.for_each_piece(|piece| {
            sent.extend_from_slice(piece);
            true
        });
        self.queue.on_sent(sent.len());
        let mut cids = Vec::new();
        let mut rest = &sent[..];
        while !rest.is_empty() {
            let (command, _) = CapsuleCmd::read_from_prefix(rest).expect("a capsule");
            cids.push(command.sqe.cid);
            rest = &rest[command.common.plen.get() as usize..];
        }
        black_box(digests);
        cids
    }

    #[inline]
    fn receive(&mut self, input: &[u8]) {
        let mut input = input;
        while let Some(end) = self.queue.next_end(&mut input).expect("well-formed") {
            let End::Command(ended) = end else { continue };
            let completion = self.queue.take(ended);
            black_box(completion.status);
            self.buffers.push(completion.buffer.expect("with its data"));
        }
    }

    /// Receives R2Ts, and sends the data that they ask for.
    #[inline]
    fn serve(&mut self, input: &[u8]) {
        self.receive(input);
        self.send();
    }
}

/// A controller's answers to reads.
fn read_answers(digests: Digests, cids: &[U16], success: bool) -> Vec<u8> {
    let (mut bytes, data) = (Vec::new(), vec![0x77; BLOCK as usize]);
    let layout = PduLayout::new(PduType::C2hData, digests, DataAlignment::NONE, BLOCK).expect("fits");
    for &cid in cids {
        let flags = if success { PduFlags::LAST | PduFlags::SUCCESS } else { PduFlags::LAST };
        pdu(&mut bytes, digests, &layout, DataPdu::c2h(&layout, cid, 0, flags).as_bytes(), &data);
        if !success {
            bytes.extend_from_slice(&responses(digests, &[cid]));
        }
    }
    bytes
}

fn responses(digests: Digests, cids: &[U16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let layout = PduLayout::without_data(PduType::CapsuleResp, digests);
    for &cid in cids {
        let header = CapsuleResp::new(digests, Cqe::new(cid, 0, Status::SUCCESS));
        pdu(&mut bytes, digests, &layout, header.as_bytes(), &[]);
    }
    bytes
}

fn r2ts(digests: Digests, cids: &[U16]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let layout = PduLayout::without_data(PduType::R2t, digests);
    for &cid in cids {
        pdu(&mut bytes, digests, &layout, R2t::new(digests, cid, cid, 0, BLOCK).as_bytes(), &[]);
    }
    bytes
}

/// A host whose caravan has reached its final size in both halves.
fn warm_host(digests: Digests, in_capsule_bytes: u32) -> Host {
    let mut host = Host::new(digests, in_capsule_bytes);
    for opcode in [READ, WRITE, WRITE, READ] {
        let cids = host.submitted(digests, opcode);
        if opcode == READ {
            host.receive(&read_answers(digests, &cids, false));
        } else {
            if in_capsule_bytes == 0 {
                host.serve(&r2ts(digests, &cids));
            }
            host.receive(&responses(digests, &cids));
        }
    }
    host
}

fn host_in_capsule(digests: Digests) -> Host {
    warm_host(digests, 8192)
}

fn host_of_read_answers(digests: Digests, success: bool) -> (Host, Vec<u8>) {
    let mut host = warm_host(digests, 8192);
    let cids = host.submitted(digests, READ);
    (host, read_answers(digests, &cids, success))
}

fn host_of_responses(digests: Digests) -> (Host, Vec<u8>) {
    let mut host = warm_host(digests, 8192);
    let cids = host.submitted(digests, WRITE);
    (host, responses(digests, &cids))
}

fn host_of_r2ts(digests: Digests) -> (Host, Vec<u8>) {
    let mut host = warm_host(digests, 0);
    let cids = host.submitted(digests, WRITE);
    (host, r2ts(digests, &cids))
}

fn warm_caravan() -> Caravan<Payload> {
    let mut caravan = Caravan::default();
    (0..4).for_each(|_| one_caravan(&mut caravan));
    caravan
}

/// The calls on a caravan for the data and responses of a batch of reads.
#[inline]
fn one_caravan(caravan: &mut Caravan<Payload>) {
    for index in 0..usize::from(BATCH) {
        caravan.push_payload(Payload { address: index });
        caravan.push_header(black_box(&[0; 24]), false, 0);
        caravan.push_range(0..BLOCK, true);
        caravan.push_header(black_box(&[1; 24]), false, 0);
    }
    caravan.ring();
    let mut total = 0;
    for piece in caravan.pieces() {
        total += match piece {
            Piece::Bytes(bytes) => bytes.len(),
            Piece::Payload(payload, range) => {
                black_box(payload.address);
                range.len()
            }
        };
    }
    caravan.on_sent(total, |payload| {
        black_box(payload.address);
    });
}

/// The cases by name: a batch of commands, and how its queue is set up.
const CASES: [(&str, fn()); 14] = [
    ("controller_serves_reads.plain", || run(reads(Digests::empty()), Target::serve_reads)),
    ("controller_serves_reads.header_digest", || run(reads(Digests::HEADER), Target::serve_reads)),
    ("controller_serves_in_capsule_writes.plain", || {
        run(in_capsule_writes(Digests::empty()), Target::serve_writes);
    }),
    ("controller_serves_in_capsule_writes.both_digests", || {
        run(in_capsule_writes(Digests::all()), Target::serve_writes);
    }),
    ("controller_asks_for_writes.plain", || run(writes(Digests::empty()), Target::ask)),
    ("controller_receives_writes.plain", || {
        run(asked_writes(Digests::empty()), |(target, input)| target.receive(input));
    }),
    ("host_submits_reads.plain", || run(host_in_capsule(Digests::empty()), |host| host.submit(READ))),
    ("host_submits_reads.header_digest", || run(host_in_capsule(Digests::HEADER), |host| host.submit(READ))),
    ("host_receives_reads.plain", || run(host_of_read_answers(Digests::empty(), false), receive)),
    ("host_receives_reads.success", || run(host_of_read_answers(Digests::empty(), true), receive)),
    ("host_submits_in_capsule_writes.plain", || {
        run(host_in_capsule(Digests::empty()), |host| host.submit(WRITE));
    }),
    ("host_receives_responses.plain", || run(host_of_responses(Digests::empty()), receive)),
    ("host_serves_r2ts.plain", || run(host_of_r2ts(Digests::empty()), |(host, input)| host.serve(input))),
    ("caravan_of_reads.plain", || run(warm_caravan(), one_caravan)),
];

fn receive((host, input): &mut (Host, Vec<u8>)) {
    host.receive(input);
}

fn run<Input>(mut input: Input, case: fn(&mut Input)) {
    counted(case, &mut input);
    black_box(&input);
}

/// Valgrind counts from the entry of this function to its return: not what sets up the input, nor what drops it.
#[inline(never)]
fn counted<Input>(case: fn(&mut Input), input: &mut Input) {
    case(input);
}

fn main() {
    // cargo's own options begin with dashes.
    match std::env::args().skip(1).find(|argument| !argument.starts_with('-')) {
        None => CASES.iter().for_each(|(name, _)| println!("{name}")),
        Some(wanted) => {
            let case = CASES.iter().find(|(name, _)| *name == wanted);
            let (_, run) = case.unwrap_or_else(|| panic!("no case is called {wanted}"));
            run();
        }
    }
}

//! Host and controller queue in one process, connected by streams that are cut at random places.

mod random;

use std::collections::HashMap;

use nvlane_proto::controller_queue::{Event, QueueSettings};
use nvlane_proto::handshake::HostOffer;
use nvlane_proto::host_queue::{HostEvent, Refused, Transfer};
use nvlane_proto::{ControllerQueue, HostQueue, Piece, Slot};
use wire::digest::data_digest;
use wire::id::Nsid;
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;

use random::Choice;

/// Negotiated parameters, and the behaviour of the controller.
#[derive(Clone, Debug)]
pub(crate) struct Shape {
    pub(crate) host: HostOffer,
    pub(crate) settings: QueueSettings,
    pub(crate) is_flow_control_disabled: bool,
    pub(crate) depth: u16,
}

/// Kinds of commands in these tests: the opcode only tells both sides which.
const WRITE: u8 = 0x01;
const READ: u8 = 0x02;
const FAILING_READ: u8 = 0x12;
const FLUSH: u8 = 0x00;

pub(crate) struct Link {
    host: HostQueue<Vec<u8>>,
    controller: ControllerQueue<Vec<u8>, Vec<u8>>,
    to_controller: Vec<u8>,
    to_host: Vec<u8>,
    choice: Choice,
    cut_max: usize,
    /// Outstanding commands: their kind and the data written.
    open: HashMap<u64, (u8, Vec<u8>)>,
    next_user: u64,
    /// Writes whose data was requested, with the expected data.
    receiving: HashMap<Slot, Sqe>,
}

impl Link {
    pub(crate) fn new(shape: &Shape, seed: u64) -> Self {
        let mut link = Self {
            host: HostQueue::new(shape.host, shape.depth),
            controller: ControllerQueue::new(shape.settings),
            to_controller: Vec::new(),
            to_host: Vec::new(),
            choice: Choice::new(seed),
            cut_max: usize::MAX,
            open: HashMap::new(),
            next_user: 0,
            receiving: HashMap::new(),
        };
        link.host.set_in_capsule_bytes(shape.settings.in_capsule_bytes);
        link.controller.establish(shape.depth, shape.is_flow_control_disabled);
        while link.host.agreement() == nvlane_proto::handshake::Agreement::NONE
            || link.controller.agreement() == nvlane_proto::handshake::Agreement::NONE
        {
            link.step();
            if shape.host == HostOffer::default() && link.to_host.is_empty() && link.to_controller.is_empty()
            {
                break;
            }
        }
        link
    }

    pub(crate) fn with_cut(mut self, cut_max: usize) -> Self {
        self.cut_max = cut_max;
        self
    }

    pub(crate) fn submit(&mut self, kind: u8, length: u32) {
        let user = self.next_user;
        let length = length as usize & !3;
        let data: Vec<u8> = (0..length).map(|at| (u64::try_from(at).unwrap() * 7 + user) as u8).collect();
        let (opcode, transfer) = match kind {
            0 if length > 0 => (WRITE, Transfer::ToController(data.clone())),
            1 if length > 0 => (READ, Transfer::FromController { buffer: vec![0; length], is_exact: true }),
            2 if length > 0 => {
                (FAILING_READ, Transfer::FromController { buffer: vec![0; length], is_exact: true })
            }
            _ => (FLUSH, Transfer::None),
        };
        // The digest of the written data lets the controller check it.
        let mut sqe = Sqe::new(opcode, Nsid::new(1));
        sqe.cdw10 = data_digest(&data).into();
        sqe.cdw11 = (user as u32).into();
        let mut transfer = transfer;
        for _ in 0..100_000 {
            match self.host.submit(sqe, transfer, user) {
                Ok(()) => {
                    self.open.insert(user, (opcode, data));
                    self.next_user += 1;
                    return;
                }
                Err(Refused::Full(back)) => {
                    transfer = back;
                    self.step();
                }
                Err(Refused::TooLong(_)) => panic!("short data"),
            }
        }
        panic!("the queue stays full");
    }

    /// Moves some bytes each way and lets both sides process them.
    pub(crate) fn step(&mut self) {
        self.host.ring();
        let mut bytes = Vec::new();
        self.host.for_each_piece(|piece| {
            bytes.extend_from_slice(piece);
            true
        });
        let count = self.choice.cut(self.cut_max).min(bytes.len());
        self.to_controller.extend_from_slice(&bytes[..count]);
        self.host.on_sent(count);

        self.controller.caravan().ring();
        let mut bytes = Vec::new();
        for piece in self.controller.caravan().pieces() {
            match piece {
                Piece::Bytes(piece) => bytes.extend_from_slice(piece),
                Piece::Payload(payload, range) => bytes.extend_from_slice(&payload[range]),
            }
        }
        let count = self.choice.cut(self.cut_max).min(bytes.len());
        self.to_host.extend_from_slice(&bytes[..count]);
        self.controller.caravan().on_sent(count, drop);

        self.controller_receives();
        self.host_receives();
    }

    fn controller_receives(&mut self) {
        let count = self.choice.cut(self.cut_max).min(self.to_controller.len());
        let input: Vec<u8> = self.to_controller.drain(..count).collect();
        let mut input = &input[..];
        // Sometimes straight into the command's buffer.
        if self.choice.below(3) == 0 {
            let placed = move_front(&mut input, self.controller.place());
            self.controller.on_placed(placed).unwrap();
        }
        loop {
            enum Then {
                Complete(Slot, Sqe, bool),
                Request(Slot, Sqe),
                Nothing,
            }
            let then = match self.controller.next_event(&mut input).expect("our host keeps the rules") {
                None => break,
                Some(Event::Initialised(_)) => Then::Nothing,
                Some(Event::Refused { cid, status }) => panic!("{cid} {status}"),
                Some(Event::Command { slot, sqe, data }) => match (sqe.opcode, sqe.dptr.classify()) {
                    (WRITE, DataPointer::Transport { .. }) => Then::Request(slot, sqe),
                    (WRITE, _) => {
                        assert_eq!(data_digest(data), sqe.cdw10.get());
                        Then::Complete(slot, sqe, true)
                    }
                    _ => Then::Complete(slot, sqe, true),
                },
                Some(Event::DataReceived { slot, is_intact }) => {
                    assert!(is_intact);
                    let sqe = self.receiving.remove(&slot).unwrap();
                    Then::Complete(slot, sqe, false)
                }
            };
            match then {
                Then::Nothing => {}
                Then::Request(slot, sqe) => {
                    let length = sqe.dptr.length.get();
                    self.receiving.insert(slot, sqe);
                    self.controller.request_data(slot, vec![0; length as usize], length);
                }
                Then::Complete(slot, sqe, has_no_buffer) => {
                    if !has_no_buffer {
                        let data = self.controller.take_buffer(slot);
                        assert_eq!(data_digest(&data), sqe.cdw10.get());
                    }
                    self.complete(slot, &sqe);
                }
            }
        }
    }

    fn complete(&mut self, slot: Slot, sqe: &Sqe) {
        let user = u64::from(sqe.cdw11.get());
        match sqe.opcode {
            READ => {
                let length = sqe.dptr.length.get();
                let data: Vec<u8> = (0..length).map(|at| (u64::from(at) * 7 + user) as u8).collect();
                let digest = |data: &Vec<u8>, range: std::ops::Range<usize>| data_digest(&data[range]);
                let result = if user.is_multiple_of(2) { 0 } else { user };
                self.controller.complete_with_data(slot, data, length, result, digest);
            }
            FAILING_READ => self.controller.complete(slot, Status::LBA_OUT_OF_RANGE.with_dnr(), 0),
            _ => self.controller.complete(slot, Status::SUCCESS, user),
        }
    }

    fn host_receives(&mut self) {
        let count = self.choice.cut(self.cut_max).min(self.to_host.len());
        let input: Vec<u8> = self.to_host.drain(..count).collect();
        let mut input = &input[..];
        if self.choice.below(3) == 0 {
            let placed = move_front(&mut input, self.host.place());
            self.host.on_placed(placed).unwrap();
        }
        while let Some(event) = self.host.next_event(&mut input).expect("our controller keeps the rules") {
            let HostEvent::Completed(completion) = event else { continue };
            let (opcode, data) = self.open.remove(&completion.user).expect("each command ends once");
            match opcode {
                FAILING_READ => assert_eq!(completion.status, Status::LBA_OUT_OF_RANGE.with_dnr()),
                _ => assert_eq!(completion.status, Status::SUCCESS),
            }
            match opcode {
                READ | WRITE => assert!(completion.buffer.unwrap() == data),
                _ => {}
            }
        }
    }

    /// Runs until all commands have ended.
    pub(crate) fn finish(&mut self) {
        for _ in 0..3_000_000 {
            if self.open.is_empty() && self.controller.outstanding() == 0 {
                assert_eq!(self.host.outstanding(), 0);
                return;
            }
            self.step();
        }
        panic!("stuck with {:?}", self.open.keys());
    }
}

/// Moves the front of `input` to its place, if it has one; returns the number of bytes.
fn move_front(input: &mut &[u8], place: Option<&mut [u8]>) -> usize {
    let Some(place) = place else { return 0 };
    let count = place.len().min(input.len());
    let (placed, rest) = input.split_at(count);
    place[..count].copy_from_slice(placed);
    *input = rest;
    count
}

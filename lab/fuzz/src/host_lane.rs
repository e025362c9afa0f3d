//! A host lane with outstanding commands, and a target that breaks any rule.
//!
//! Input: digests, then sections of a kind byte and its parameters ([`Step`]).

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use host::{Command, Completion, LinkError, ReplayPolicy};
use host_core::attachment::Attachment;
use host_core::lane_core::{LaneAction, LaneCore, LaneSettings};
use peer::session::Event;
use proto::handshake::HostOffer;
use proto::host_limits::Limits;
use security::tls::IdentityOffer;
use wire::digest::{data_digest, header_digest};
use wire::id::{Cntlid, Nsid, Qid};
use wire::identify::controller::IdentifyController;
use wire::pdu::{DataAlignment, Digests, PduLayout, PduType};
use wire::property::Cap;
use wire::sqe::Sqe;

use crate::input::Input;
use crate::raw_target::{Target, controller_settings};

const DEPTH: u16 = 8;
const SECOND: u64 = 1_000_000_000;
const IN_CAPSULE_BYTES: u32 = 4096;

/// The next step.
enum Step {
    /// Submits a read, write or flush of this many blocks of 512 bytes.
    Submit,
    /// Bytes of the input, received in one piece or placed where the lane wants them.
    Raw,
    /// A PDU with a valid common header for an outstanding command: its cid, then bytes of the input.
    Pdu(PduType),
    /// Time passes, 100 ms for each unit.
    Time,
    /// The caller cancels a command.
    Cancel,
    /// The connection is lost, and a new one is made.
    Lose,
}

impl Step {
    fn new(kind: u8) -> Self {
        match kind & 0x0f {
            0 | 9 => Self::Submit,
            1 => Self::Pdu(PduType::CapsuleResp),
            2 => Self::Pdu(PduType::C2hData),
            3 => Self::Pdu(PduType::R2t),
            4 => Self::Pdu(PduType::C2hTermReq),
            5 => Self::Time,
            6 => Self::Cancel,
            7 => Self::Lose,
            _ => Self::Raw,
        }
    }
}

/// The lane and the state of its caller.
struct Caller {
    core: LaneCore<Vec<u8>>,
    attachment: Attachment,
    digests: Digests,
    now_ns: u64,
    /// Length of the buffer of each outstanding command.
    outstanding: BTreeMap<u64, Option<usize>>,
    next_user: u64,
    /// Sent bytes that the target has not read.
    sent: Vec<u8>,
    /// Ids of commands seen on this connection.
    cids: BTreeSet<u16>,
    /// The correct target that serves the connection until the handshake and Connect are done.
    peer: Option<Target>,
}

/// Feeds a target's bytes to a lane: each command must end once and return its buffer, and a successful read must have
/// its data.
pub fn host_lane(data: &[u8]) {
    let mut input = Input::new(data);
    let mut caller = Caller::new(Digests::from_bits_retain(input.byte() & 3));
    caller.run();
    while !input.is_empty() {
        let kind = input.byte();
        match Step::new(kind) {
            Step::Submit => caller.submit(input.byte(), input.byte()),
            Step::Raw => {
                let length = usize::from(input.word());
                caller.receive(input.bytes(length), kind & 0x10 != 0);
            }
            Step::Pdu(pdu) => {
                let bytes = caller.pdu(pdu, &mut input);
                caller.receive(&bytes, kind & 0x10 != 0);
            }
            Step::Time => caller.pass(u64::from(input.byte()) * SECOND / 10),
            Step::Cancel => {
                let user = u64::from(input.byte()) % caller.next_user.max(1);
                caller.core.cancel(user);
            }
            Step::Lose => caller.lose(LinkError::Association),
        }
        caller.run();
        caller.core.invariants();
    }
    caller.end();
}

impl Caller {
    fn new(digests: Digests) -> Self {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(IN_CAPSULE_BYTES);
        let cap = Cap::from_bits(0).with_queue_entries_max(128);
        let attachment = Attachment {
            credentials: None,
            generated: None,
            identities: IdentityOffer::Both,
            generation: 1,
            cntlid: Cntlid::new(1),
            peer: ([192, 0, 2, 1], 4420).into(),
            settings: controller_settings(),
            limits: Limits::new(cap, &identify).expect("a controller in order"),
            queue_pairs: 1,
            partition_count: 0,
            has_long_values: false,
            inaccessible: Arc::new([]),
        };
        let settings = LaneSettings {
            qid: Qid::new(1),
            depth: DEPTH,
            offer: HostOffer { digests, r2t_limit: 2, ..HostOffer::default() },
            in_capsule_bytes_max: IN_CAPSULE_BYTES,
            connect_timeout_ns: 10 * SECOND,
            command_timeout_ns: 5 * SECOND,
            retry_limit: 5,
            path_timeout_ns: 3 * SECOND,
            fast_fail_ns: None,
            replay: ReplayPolicy::Idempotent,
            reauthenticate: None,
            partition_queues: None,
        };
        let mut core = LaneCore::new(settings);
        core.attach(&Arc::new(attachment.clone()), 0);
        Self {
            core,
            attachment,
            digests,
            now_ns: 0,
            outstanding: BTreeMap::new(),
            next_user: 0,
            sent: Vec::new(),
            cids: BTreeSet::new(),
            peer: None,
        }
    }

    fn submit(&mut self, verb: u8, blocks: u8) {
        let blocks = u32::from(blocks % 64) + 1;
        let length = blocks as usize * 512;
        let nsid = Nsid::new(1);
        let (command, buffer) = match verb % 4 {
            0 => (Command::raw(Sqe::flush(nsid)), None),
            1 => {
                let command = Command::raw_to_controller(Sqe::write(nsid, 0, blocks), blocks * 512);
                (command.idempotent(), Some(vec![1; length]))
            }
            2 => {
                let command = Command::raw_to_controller(Sqe::compare(nsid, 0, blocks), blocks * 512);
                (command.read_only(), Some(vec![2; length]))
            }
            _ => {
                let command = Command::raw_from_controller(Sqe::read(nsid, 0, blocks), blocks * 512);
                (command.read_only(), Some(vec![0; length]))
            }
        };
        let capacity = buffer.as_ref().map(Vec::len);
        if self.core.submit(command, buffer, self.next_user).is_ok() {
            self.outstanding.insert(self.next_user, capacity);
            self.next_user += 1;
        }
    }

    /// A PDU for an outstanding command, if there is one.
    fn pdu(&mut self, kind: PduType, input: &mut Input<'_>) -> Vec<u8> {
        let pick = usize::from(input.byte());
        let cid = self.cids.iter().nth(pick % self.cids.len().max(1)).copied().unwrap_or(0);
        let flags = input.byte();
        let length = if kind.may_carry_data() { input.word() } else { 0 };
        let Ok(layout) = PduLayout::new(kind, self.digests, DataAlignment::NONE, length.into()) else {
            return Vec::new();
        };
        let mut header = [0; 24];
        let (common, rest) = header.split_at_mut(8);
        let digest_flags = if kind.may_carry_header_digest() { self.digests.bits() } else { 0 };
        common.copy_from_slice(&[kind as u8, flags, 24, layout.pdo(), 0, 0, 0, 0]);
        common[1] = flags & 0x0c | digest_flags & layout_flags(length, self.digests);
        common[4..].copy_from_slice(&layout.plen().to_le_bytes());
        input.damage(rest);
        match kind {
            // A completion has the cid at a higher offset. wire §5.2
            PduType::CapsuleResp => rest[12..14].copy_from_slice(&cid.to_le_bytes()),
            PduType::C2hData | PduType::R2t => rest[..2].copy_from_slice(&cid.to_le_bytes()),
            _ => {}
        }
        if kind == PduType::C2hData && flags & 0x80 == 0 {
            rest[8..12].copy_from_slice(&u32::from(length).to_le_bytes());
        }
        let mut pdu = header.to_vec();
        if self.digests.contains(Digests::HEADER) && kind.may_carry_header_digest() {
            pdu.extend(header_digest(&header).to_le_bytes());
        }
        if length > 0 {
            let data = vec![flags; length.into()];
            pdu.extend_from_slice(&data);
            if self.digests.contains(Digests::DATA) {
                pdu.extend((data_digest(&data) ^ u32::from(flags >> 6 & 1)).to_le_bytes());
            }
        }
        pdu
    }

    /// Feeds bytes to the lane, the first of them in place if `is_placed`.
    fn receive(&mut self, bytes: &[u8], is_placed: bool) {
        let mut input = bytes;
        if is_placed && let Some(place) = self.core.place() {
            let count = place.len().min(input.len());
            place[..count].copy_from_slice(&input[..count]);
            if let Err(violation) = self.core.on_placed(count) {
                return self.lose(violation.into());
            }
            input = &input[count..];
        }
        let mut ended = Vec::new();
        if let Err(cause) =
            self.core.on_bytes(&mut input, self.now_ns, &mut |completion| ended.push(completion))
        {
            self.lose(cause);
        }
        self.take(ended);
    }

    fn take(&mut self, ended: Vec<Completion<Vec<u8>>>) {
        for completion in ended {
            let capacity = self.outstanding.remove(&completion.user).expect("a command ends once");
            assert_eq!(completion.buffer.as_ref().map(Vec::len), capacity, "the buffer comes back");
            assert!(completion.received as usize <= capacity.unwrap_or(0), "more than there is room for");
        }
    }

    fn drain(&mut self) {
        let mut ended = Vec::new();
        self.core.drain(&mut |completion| ended.push(completion));
        self.take(ended);
        assert_eq!(usize::from(self.core.outstanding()), self.outstanding.len());
    }

    fn lose(&mut self, cause: LinkError) {
        self.core.on_lost(cause);
        self.peer = None;
        self.attachment.generation += 1;
        self.core.attach(&Arc::new(self.attachment.clone()), self.now_ns);
    }

    fn pass(&mut self, ns: u64) {
        let until_ns = self.now_ns + ns;
        while let Some(deadline_ns) = self.core.next_deadline().filter(|deadline_ns| *deadline_ns <= until_ns)
        {
            // A thread wakes up a little late.
            self.now_ns = self.now_ns.max(deadline_ns) + 1;
            self.run();
        }
        self.now_ns = self.now_ns.max(until_ns);
    }

    /// Performs the lane's actions until there are none.
    fn run(&mut self) {
        for _ in 0..1000 {
            if let Err(cause) = self.core.on_time(self.now_ns) {
                self.lose(cause);
            }
            let mut is_quiet = true;
            while let Some(action) = self.core.next_action() {
                is_quiet = false;
                if let LaneAction::Open(_) = action {
                    self.sent.clear();
                    self.cids.clear();
                    self.peer = Some(Target::new());
                    self.core.on_connected(self.now_ns);
                }
            }
            while self.core.ring() {
                is_quiet = false;
                let start = self.sent.len();
                let sent = &mut self.sent;
                self.core.for_each_piece(|piece| {
                    sent.extend_from_slice(piece);
                    true
                });
                self.core.on_sent(self.sent.len() - start);
            }
            let answer = self.answer();
            is_quiet &= answer.is_empty();
            if !answer.is_empty() {
                self.receive(&answer, false);
            }
            self.drain();
            if is_quiet {
                return;
            }
        }
        panic!("it never comes to rest");
    }

    /// A correct target's answers, up to Connect. After that its output is only recorded.
    fn answer(&mut self) -> Vec<u8> {
        let sent = std::mem::take(&mut self.sent);
        let Some(peer) = &mut self.peer else {
            self.note(&sent);
            return Vec::new();
        };
        peer.end.on_bytes(&sent);
        let mut is_connected = false;
        while !is_connected && let Some(event) = peer.next_event() {
            peer.serve(&event);
            is_connected = matches!(event, Event::Command { .. });
        }
        let bytes = peer.end.take_sent();
        if is_connected {
            self.peer = None;
        }
        bytes
    }

    /// Records the command ids in a stream of complete PDUs.
    fn note(&mut self, mut sent: &[u8]) {
        while let Some(header) = sent.first_chunk::<12>() {
            if header[0] == PduType::CapsuleCmd as u8 {
                self.cids.insert(u16::from_le_bytes([header[10], header[11]]));
            }
            let plen = u32::from_le_bytes([header[4], header[5], header[6], header[7]]);
            sent = sent.get(plen as usize..).unwrap_or_default();
        }
    }

    /// The caller closes: every command must end.
    fn end(mut self) {
        self.core.end();
        self.drain();
        assert!(self.outstanding.is_empty(), "commands without an end");
        assert!(self.core.is_ended() && self.core.next_deadline().is_none());
    }
}

/// Digest flags of a PDU with or without data.
fn layout_flags(length: u16, digests: Digests) -> u8 {
    let data = if length > 0 { digests.bits() & Digests::DATA.bits() } else { 0 };
    digests.bits() & Digests::HEADER.bits() | data
}

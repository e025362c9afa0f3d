//! One end of a queue pair that a test feeds with bytes, with the events it delivers and the bytes it sends.

use nvlane_proto::controller_queue::{Event, QueueSettings};
use nvlane_proto::handshake::{Agreement, HostOffer};
use nvlane_proto::host_queue::{Completion, HostEvent, Transfer};
use nvlane_proto::{ControllerQueue, HostQueue, Piece, Slot, Violation};
use wire::digest::data_digest;
use wire::id::Nsid;
use wire::pdu::{DataAlignment, Digests};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::zerocopy::IntoBytes;

use crate::pdus::{Dialect, ic_req, ic_resp, term_req};

/// An event of a controller's queue, with its data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    Initialised(Agreement),
    Command { slot: Slot, sqe: [u8; 64], data: Vec<u8> },
    DataReceived { slot: Slot, is_intact: bool },
    Refused { cid: u16, status: Status },
}

/// A controller's end.
pub(crate) struct ControllerEnd {
    pub(crate) queue: ControllerQueue<Vec<u8>, Vec<u8>>,
    /// Delivered commands that are not completed.
    live: Vec<Slot>,
}

impl ControllerEnd {
    /// A queue before its handshake.
    pub(crate) fn new(settings: QueueSettings) -> Self {
        Self { queue: ControllerQueue::new(settings), live: Vec::new() }
    }

    /// A queue after handshake and Connect: this dialect both ways, this many R2Ts at once, this many entries, SQ flow
    /// control on.
    pub(crate) fn connected(settings: QueueSettings, dialect: Dialect, r2ts: u32, entries: u16) -> Self {
        let mut settings = settings;
        settings.offer.alignment = DataAlignment::from_raw(dialect.alignment).unwrap();
        settings.offer.r2t_limit = r2ts;
        let mut end = Self::new(settings);
        let seen = end.feed(&ic_req(dialect.alignment, dialect.digests, r2ts - 1)).unwrap();
        assert!(matches!(seen[..], [Seen::Initialised(_)]));
        let answer = ic_resp(dialect.alignment, dialect.digests, settings.offer.h2c_data_bytes_max);
        assert_eq!(end.sent(), answer);
        end.queue.establish(entries, false);
        end
    }

    /// Connected with the default settings and 16 entries.
    pub(crate) fn plain(dialect: Dialect) -> Self {
        Self::connected(QueueSettings::default(), dialect, 1, 16)
    }

    pub(crate) fn next(&mut self, input: &mut &[u8]) -> Result<Option<Seen>, Violation> {
        let live = &mut self.live;
        Ok(self.queue.next_event(input)?.map(|event| match event {
            Event::Initialised(agreement) => Seen::Initialised(agreement),
            Event::Command { slot, sqe, data } => {
                live.push(slot);
                Seen::Command { slot, sqe: sqe.as_bytes().try_into().unwrap(), data: data.to_vec() }
            }
            Event::DataReceived { slot, is_intact } => Seen::DataReceived { slot, is_intact },
            Event::Refused { cid, status } => Seen::Refused { cid, status },
        }))
    }

    /// All events that `bytes` cause.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Seen>, Violation> {
        let (mut input, mut seen) = (bytes, Vec::new());
        while let Some(event) = self.next(&mut input)? {
            seen.push(event);
        }
        assert!(input.is_empty(), "all is taken in");
        self.queue.invariants();
        Ok(seen)
    }

    /// Feeds a command that must be delivered, and returns its slot.
    #[track_caller]
    pub(crate) fn deliver(&mut self, pdu: &[u8]) -> Slot {
        match self.feed(pdu).expect("a command in order")[..] {
            [Seen::Command { slot, .. }] => slot,
            ref other => panic!("{other:?}"),
        }
    }

    /// Takes all bytes that it has to send.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let caravan = self.queue.caravan();
        while caravan.is_leaving() || caravan.ring() {
            let start = bytes.len();
            for piece in caravan.pieces() {
                match piece {
                    Piece::Bytes(piece) => bytes.extend_from_slice(piece),
                    Piece::Payload(payload, range) => bytes.extend_from_slice(&payload[range]),
                }
            }
            caravan.on_sent(bytes.len() - start, drop);
        }
        bytes
    }

    /// Completes a command.
    pub(crate) fn complete(&mut self, slot: Slot, status: Status) {
        self.live.retain(|live| *live != slot);
        self.queue.complete(slot, status, 0);
    }

    /// Completes a read with this data.
    pub(crate) fn answer(&mut self, slot: Slot, data: Vec<u8>, result: u64) {
        self.live.retain(|live| *live != slot);
        let length = u32::try_from(data.len()).unwrap();
        let digest = |data: &Vec<u8>, range: std::ops::Range<usize>| data_digest(&data[range]);
        self.queue.complete_with_data(slot, data, length, result, digest);
    }

    /// Checks that `bytes` violate the protocol: nothing of them is delivered, the TermReq is exact, and nothing
    /// follows it. The TermReq copies `copied` of `bytes`, the offending header.
    #[track_caller]
    pub(crate) fn assert_fatal(mut self, bytes: &[u8], copied: std::ops::Range<usize>, expected: Violation) {
        let mut input = bytes;
        assert_eq!(self.next(&mut input), Err(expected));
        let (fes, fei) = codes(expected);
        assert!(self.queue.fail(expected), "a TermReq is due");
        assert_eq!(self.sent(), term_req(0x03, fes, fei, &bytes[copied]));
        self.assert_dead(expected);
    }

    /// Checks that `bytes` end the lane without a TermReq.
    #[track_caller]
    pub(crate) fn assert_dropped(mut self, bytes: &[u8], expected: Violation) {
        assert_eq!(self.feed(bytes), Err(expected));
        assert!(!self.queue.fail(expected), "no TermReq is due");
        assert_eq!(self.sent(), []);
        self.assert_dead(expected);
    }

    /// Checks that no input causes output or is placed any more.
    #[track_caller]
    pub(crate) fn assert_dead(&mut self, cause: Violation) {
        let command = Dialect::PLAIN.command([0; 64], &[]);
        for bytes in [&[][..], &[0], &command, &ic_req(0, 0, 0)] {
            let mut input = bytes;
            assert_eq!(self.next(&mut input), Err(cause), "parsing has stopped");
            assert_eq!(input, bytes, "nothing is taken in");
        }
        assert!(self.queue.place().is_none());
        for slot in std::mem::take(&mut self.live) {
            self.queue.complete(slot, Status::SUCCESS, 0);
        }
        assert!(!self.queue.fail(cause), "one TermReq is enough");
        assert_eq!(self.sent(), [], "nothing follows a TermReq");
    }
}

/// FES and FEI of a violation, from wire §2.4.
pub(crate) fn codes(violation: Violation) -> (u16, u32) {
    match violation {
        Violation::HeaderField { offset } => (1, offset.into()),
        Violation::Sequence => (2, 0),
        Violation::HeaderDigest { received } => (3, received),
        Violation::OutOfRange => (4, 0),
        Violation::LimitExceeded => (5, 0),
        Violation::UnsupportedParameter { offset } => (6, offset.into()),
        Violation::EndedByPeer { .. } | Violation::MalformedTermReq => panic!("never answered"),
    }
}

/// A host's end.
pub(crate) struct HostEnd {
    pub(crate) queue: HostQueue<Vec<u8>>,
}

impl HostEnd {
    /// A queue before its handshake; its ICReq has been sent.
    pub(crate) fn new(dialect: Dialect, r2ts: u32) -> Self {
        let offer = HostOffer {
            alignment: DataAlignment::from_raw(dialect.alignment).unwrap(),
            digests: Digests::from_bits_retain(dialect.digests),
            r2t_limit: r2ts,
        };
        let mut end = Self { queue: HostQueue::new(offer, 16) };
        assert_eq!(end.sent(), ic_req(dialect.alignment, dialect.digests, r2ts - 1));
        end
    }

    /// A queue after its handshake: this dialect both ways, in-capsule data up to 8192 bytes, H2CData up to
    /// `h2c_bytes`.
    pub(crate) fn connected(dialect: Dialect, r2ts: u32, h2c_bytes: u32) -> Self {
        let mut end = Self::new(dialect, r2ts);
        let mut answer = &ic_resp(dialect.alignment, dialect.digests, h2c_bytes)[..];
        assert!(matches!(end.queue.next_event(&mut answer), Ok(Some(HostEvent::Initialised(_)))));
        end.queue.set_in_capsule_bytes(8192);
        end
    }

    pub(crate) fn plain(dialect: Dialect) -> Self {
        Self::connected(dialect, 1, 1 << 20)
    }

    /// Submits a read of this many bytes and returns its cid, which is also its `user`.
    pub(crate) fn read(&mut self, length: usize) -> u16 {
        self.submit(0x02, Transfer::FromController { buffer: vec![0xEE; length], is_exact: true })
    }

    /// Submits a write.
    pub(crate) fn write(&mut self, data: Vec<u8>) -> u16 {
        self.submit(0x01, Transfer::ToController(data))
    }

    /// Submits a command without data.
    pub(crate) fn flush(&mut self) -> u16 {
        self.submit(0x00, Transfer::None)
    }

    /// Submits a command, sends its capsule, and returns its cid.
    pub(crate) fn submit(&mut self, opcode: u8, transfer: Transfer<Vec<u8>>) -> u16 {
        self.queue.submit(Sqe::new(opcode, Nsid::new(1)), transfer, 7).expect("there is room");
        let sent = self.sent();
        u16::from_le_bytes([sent[10], sent[11]])
    }

    /// All events that `bytes` cause.
    pub(crate) fn feed(&mut self, bytes: &[u8]) -> Result<Vec<Completion<Vec<u8>>>, Violation> {
        let (mut input, mut completions) = (bytes, Vec::new());
        while let Some(event) = self.queue.next_event(&mut input)? {
            match event {
                HostEvent::Completed(completion) => completions.push(completion),
                HostEvent::Initialised(_) => panic!("a second handshake"),
            }
        }
        assert!(input.is_empty(), "all is taken in");
        self.queue.invariants();
        Ok(completions)
    }

    /// Feeds bytes that must cause one completion.
    #[track_caller]
    pub(crate) fn complete(&mut self, bytes: &[u8]) -> Completion<Vec<u8>> {
        let mut completions = self.feed(bytes).expect("an answer in order");
        assert_eq!(completions.len(), 1);
        completions.remove(0)
    }

    /// Takes all bytes that it has to send.
    pub(crate) fn sent(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while self.queue.caravan().is_leaving() || self.queue.ring() {
            let start = bytes.len();
            self.queue.for_each_piece(|piece| {
                bytes.extend_from_slice(piece);
                true
            });
            self.queue.on_sent(bytes.len() - start);
        }
        bytes
    }

    /// Checks that `bytes` violate the protocol: nothing is completed, the TermReq is exact, and no more input is
    /// accepted.
    #[track_caller]
    pub(crate) fn assert_fatal(mut self, bytes: &[u8], copied: std::ops::Range<usize>, expected: Violation) {
        assert_eq!(self.feed(bytes).map(|_| ()), Err(expected));
        let (fes, fei) = codes(expected);
        let sent = self.queue.fail(expected).expect("a TermReq is due");
        assert_eq!(sent, term_req(0x02, fes, fei, &bytes[copied]));
        self.assert_dead(expected);
    }

    /// Checks that `bytes` end the lane without a TermReq.
    #[track_caller]
    pub(crate) fn assert_dropped(mut self, bytes: &[u8], expected: Violation) {
        assert_eq!(self.feed(bytes).map(|_| ()), Err(expected));
        assert!(self.queue.fail(expected).is_none(), "no TermReq is due");
        self.assert_dead(expected);
    }

    /// Checks that no input causes output any more and that every command ends once, with the given status.
    #[track_caller]
    pub(crate) fn assert_dead(&mut self, cause: Violation) {
        for bytes in [&[][..], &[5], &ic_resp(0, 0, 8192)] {
            let mut input = bytes;
            match self.queue.next_event(&mut input) {
                Err(again) => assert_eq!(again, cause),
                Ok(event) => panic!("parsing has not stopped: {event:?}"),
            }
            assert_eq!(input, bytes, "nothing is taken in");
        }
        assert!(self.queue.place().is_none());
        assert!(!self.queue.has_room());
        let refused = self.queue.submit(Sqe::new(0, Nsid::new(1)), Transfer::None, 0);
        assert!(refused.is_err(), "no further command");
        assert_eq!(self.sent(), [], "nothing follows a TermReq");
        let outstanding = self.queue.outstanding();
        for _ in 0..outstanding {
            let completion = self.queue.next_unfinished(Status::HOST_PATHING_ERROR).expect("one more");
            assert!(!completion.status.is_success());
        }
        assert!(self.queue.next_unfinished(Status::HOST_PATHING_ERROR).is_none());
    }
}

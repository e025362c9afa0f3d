//! Allocations: none per command once a queue is warm, none sized by a peer's numbers, none for an idle connection.

#![allow(clippy::cast_possible_truncation)]

#[path = "harness/ends.rs"]
#[allow(dead_code)] // Each test program uses its part.
mod ends;
#[path = "harness/pdus.rs"]
#[allow(dead_code)]
mod pdus;

use allocators::CountingAllocator;
use nvlane_proto::controller_queue::{CAPSULE_BYTES_MIN, Event, QueueSettings};
use nvlane_proto::handshake::HostOffer;
use nvlane_proto::host_queue::{HostEvent, Transfer};
use nvlane_proto::{ControllerQueue, HostQueue, Piece};
use pdus::{
    Dialect, FLUSH, IN_CAPSULE, LAST, READ, SUCCESS, TRANSPORT, WRITE, cqe, ic_req, ic_resp, pattern, sqe,
};
use wire::digest::data_digest;
use wire::id::Nsid;
use wire::pdu::Digests;
use wire::sqe::Sqe;
use wire::status::Status;

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

/// Number of allocations in `work`.
fn allocations(work: impl FnOnce()) -> u64 {
    CountingAllocator::measure(work).1.count
}

/// Peak of the bytes that `work` holds, and the bytes that it leaves allocated.
fn bytes<T>(work: impl FnOnce() -> T) -> (T, i64, i64) {
    let (value, allocations) = CountingAllocator::measure(work);
    (value, allocations.peak_bytes, allocations.held_bytes)
}

type Target = ControllerQueue<Box<[u8]>, usize>;

const PAYLOAD: [u8; 4096] = [0x5A; 4096];

fn target(dialect: Dialect) -> Target {
    let mut queue = Target::new(QueueSettings { window_bytes: 2048, ..QueueSettings::default() });
    queue.next_event(&mut &ic_req(0, dialect.digests, 0)[..]).unwrap();
    queue.establish(32, false);
    queue
}

/// Sends all pending bytes into `sent`, in two sends.
fn send(queue: &mut Target, sent: &mut Vec<u8>) {
    let caravan = queue.caravan();
    caravan.ring();
    let start = sent.len();
    for piece in caravan.pieces() {
        match piece {
            Piece::Bytes(bytes) => sent.extend_from_slice(bytes),
            Piece::Payload(_, range) => sent.extend_from_slice(&PAYLOAD[range]),
        }
    }
    let count = sent.len() - start;
    caravan.on_sent(count / 3, drop);
    caravan.on_sent(count - count / 3, drop);
}

/// Processes `input` in pieces of `cut` bytes and answers it.
fn serve(queue: &mut Target, input: &[u8], cut: usize, buffers: &mut Vec<Box<[u8]>>, sent: &mut Vec<u8>) {
    enum Then {
        Complete,
        Answer,
        Ask,
        Take,
    }
    for mut input in input.chunks(cut) {
        loop {
            let (slot, then) = match queue.next_event(&mut input).unwrap() {
                None => break,
                Some(Event::Command { slot, sqe, .. }) => match (sqe.opcode, sqe.dptr.identifier) {
                    (READ, _) => (slot, Then::Answer),
                    (WRITE, TRANSPORT) => (slot, Then::Ask),
                    _ => (slot, Then::Complete),
                },
                Some(Event::DataReceived { slot, .. }) => (slot, Then::Take),
                Some(_) => unreachable!("the host keeps the rules"),
            };
            match then {
                Then::Complete => queue.complete(slot, Status::SUCCESS, 0),
                Then::Answer => {
                    queue.complete_with_data(slot, 7, 4096, 0, |_, range| data_digest(&PAYLOAD[range]));
                }
                Then::Ask => queue.request_data(slot, buffers.pop().expect("enough"), 4096),
                Then::Take => {
                    buffers.push(queue.take_buffer(slot));
                    queue.complete(slot, Status::SUCCESS, 0);
                }
            }
        }
    }
    send(queue, sent);
}

#[test]
fn a_warm_controller_s_queue_allocates_nothing_per_command() {
    for digests in 0..4 {
        let dialect = Dialect { digests, alignment: 0 };
        let data = pattern(4096);
        let commands: Vec<u8> = (0..8u16)
            .flat_map(|cid| {
                let mut bytes = dialect.command(sqe(READ, 4 * cid, TRANSPORT, 4096), &[]);
                bytes.extend(dialect.command(sqe(WRITE, 4 * cid + 1, IN_CAPSULE, 4096), &data));
                bytes.extend(dialect.command(sqe(WRITE, 4 * cid + 2, TRANSPORT, 4096), &[]));
                bytes.extend(dialect.command(sqe(FLUSH, 4 * cid + 3, TRANSPORT, 0), &[]));
                bytes
            })
            .collect();
        for cut in [usize::MAX, 1000] {
            let mut queue = target(dialect);
            let mut buffers: Vec<Box<[u8]>> = (0..8).map(|_| vec![0; 4096].into()).collect();
            let (mut sent, mut answers) = (Vec::with_capacity(1 << 20), Vec::with_capacity(1 << 20));
            send(&mut queue, &mut sent);
            for round in 0..40 {
                let mut count = allocations(|| {
                    sent.clear();
                    serve(&mut queue, &commands, cut, &mut buffers, &mut sent);
                });
                // The host answers R2Ts, two for each write; this is not measured.
                while queue.outstanding() > 0 {
                    answers.clear();
                    for r2t in pdus::cut(&sent).into_iter().filter(|pdu| pdu[0] == 0x09) {
                        let word = |at| u16::from_le_bytes([r2t[at], r2t[at + 1]]);
                        let offset = u32::from_le_bytes(r2t[12..16].try_into().unwrap());
                        let window = &data[offset as usize..][..2048];
                        answers.extend(dialect.h2c(word(8), word(10), offset, window, LAST));
                    }
                    assert!(!answers.is_empty(), "writes wait for their data");
                    count += allocations(|| {
                        sent.clear();
                        serve(&mut queue, &answers, cut, &mut buffers, &mut sent);
                    });
                }
                assert!(round > 0 || count > 0, "they are counted");
                assert!(round < 5 || count == 0, "{count} allocations in round {round}, cut {cut}");
            }
        }
    }
}

struct Initiator {
    queue: HostQueue<Vec<u8>>,
    buffers: Vec<Vec<u8>>,
    sent: Vec<u8>,
}

impl Initiator {
    fn new(digests: u8) -> Self {
        let offer = HostOffer { digests: Digests::from_bits_retain(digests), ..HostOffer::default() };
        let mut queue = HostQueue::new(offer, 32);
        queue.set_in_capsule_bytes(4096);
        let buffers = (0..32).map(|index| vec![0; if index % 3 == 0 { 4096 } else { 8192 }]).collect();
        let mut host = Self { queue, buffers, sent: Vec::with_capacity(1 << 20) };
        host.send();
        host.queue.next_event(&mut &ic_resp(0, digests, 4096)[..]).unwrap();
        host
    }

    fn send(&mut self) {
        self.queue.ring();
        let (start, sent) = (self.sent.len(), &mut self.sent);
        self.queue.for_each_piece(|piece| {
            sent.extend_from_slice(piece);
            true
        });
        let count = self.sent.len() - start;
        self.queue.on_sent(count / 3);
        self.queue.on_sent(count - count / 3);
    }

    fn submit(&mut self) {
        self.sent.clear();
        // Their lengths decide: a third of the writes fits into its capsule.
        for user in 0..32 {
            let buffer = self.buffers.pop().expect("enough");
            let (opcode, transfer) = match user % 2 {
                0 => (READ, Transfer::FromController { buffer, is_exact: true }),
                _ => (WRITE, Transfer::ToController(buffer)),
            };
            assert!(self.queue.submit(Sqe::new(opcode, Nsid::new(1)), transfer, user).is_ok());
        }
        self.send();
    }

    fn receive(&mut self, input: &[u8], cut: usize) {
        self.sent.clear();
        for mut input in input.chunks(cut) {
            while let Some(event) = self.queue.next_event(&mut input).unwrap() {
                let HostEvent::Completed(completion) = event else { unreachable!("one handshake") };
                assert!(completion.status.is_success());
                self.buffers.push(completion.buffer.expect("with its data"));
            }
        }
        self.send();
    }
}

#[test]
fn a_warm_host_s_queue_allocates_nothing_per_command() {
    for digests in 0..4 {
        let dialect = Dialect { digests, alignment: 0 };
        let data = pattern(8192);
        for cut in [usize::MAX, 1000] {
            let mut host = Initiator::new(digests);
            let (mut answers, mut rest) = (Vec::with_capacity(1 << 20), Vec::with_capacity(1 << 20));
            for round in 0..40 {
                let mut count = allocations(|| host.submit());
                // The controller's answers are not measured.
                answers.clear();
                rest.clear();
                for pdu in pdus::cut(&host.sent) {
                    let cid = u16::from_le_bytes([pdu[10], pdu[11]]);
                    let length = u32::from_le_bytes(pdu[40..44].try_into().unwrap());
                    match (pdu[8], pdu[47]) {
                        (READ, _) => {
                            answers.extend(dialect.c2h(cid, 0, &data[..2048], 0));
                            let more = LAST | if round % 2 == 0 { SUCCESS } else { 0 };
                            answers.extend(dialect.c2h(cid, 2048, &data[2048..length as usize], more));
                            if round % 2 == 1 {
                                answers.extend(dialect.response(cqe(cid, 0, 0)));
                            }
                        }
                        (_, IN_CAPSULE) => answers.extend(dialect.response(cqe(cid, 0, 0))),
                        _ => {
                            answers.extend(dialect.r2t(cid, 9, 0, length));
                            rest.extend(dialect.response(cqe(cid, 0, 0)));
                        }
                    }
                }
                count += allocations(|| host.receive(&answers, cut));
                count += allocations(|| host.receive(&rest, cut));
                count += allocations(|| host.receive(&[], cut));
                assert_eq!(host.queue.outstanding(), 0);
                host.buffers.sort_by_key(Vec::len);
                assert!(round > 0 || count > 0, "they are counted");
                assert!(round < 5 || count == 0, "{count} allocations in round {round}, cut {cut}");
            }
        }
    }
}

#[test]
fn nothing_is_reserved_by_a_number_that_a_peer_sent() {
    // The longest PDU of each kind, announced by its first 8 bytes.
    for kind in [0x04, 0x06] {
        let mut queue = target(Dialect::PLAIN);
        let mut header = Dialect::PLAIN.pdu(kind, 0, &[0; 64][..if kind == 0x04 { 64 } else { 16 }], &[0; 4]);
        header[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
        let (result, peak, _) = bytes(|| queue.next_event(&mut &header[..8]).map(|_| ()));
        assert!(result.is_err());
        assert_eq!(peak, 0);
    }
    // A capsule that never arrives, and one that arrives slowly: at most twice the bytes received.
    let capsule = Dialect::PLAIN.command(sqe(WRITE, 1, IN_CAPSULE, CAPSULE_BYTES_MIN), &pattern(8192));
    for count in [72, 73, 1000, 8000] {
        let mut queue = target(Dialect::PLAIN);
        let (_, peak, _) = bytes(|| {
            for mut byte in capsule[..count].chunks(1) {
                assert!(queue.next_event(&mut byte).unwrap().is_none());
            }
        });
        assert!(peak <= 2 * (count as i64 - 72).max(8), "{peak} bytes for {count}");
    }
    // A write of 4 GiB: only a slot and an entry in the index.
    let mut queue = target(Dialect::PLAIN);
    let command = Dialect::PLAIN.command(sqe(WRITE, 1, TRANSPORT, u32::MAX), &[]);
    let (_, peak, _) = bytes(|| assert!(queue.next_event(&mut &command[..]).unwrap().is_some()));
    assert!(peak < 4096, "{peak} bytes");
    // The maximum number of commands: only their slots.
    let mut queue = Target::new(QueueSettings::default());
    queue.next_event(&mut &ic_req(0, 0, 0)[..]).unwrap();
    queue.establish(u16::MAX, false);
    let flood: Vec<u8> =
        (0..1024).flat_map(|cid| Dialect::PLAIN.command(sqe(WRITE, cid, TRANSPORT, u32::MAX), &[])).collect();
    let (_, peak, live) = bytes(|| {
        let mut input = &flood[..];
        while queue.next_event(&mut input).unwrap().is_some() {}
    });
    assert_eq!(queue.outstanding(), 1024);
    assert!(live < 160 * 1024 && peak < 320 * 1024, "{live} bytes live, {peak} at most");

    // Host: a C2HData of 4 GiB.
    let mut host = Initiator::new(0);
    host.submit();
    let cid = u16::from_le_bytes([host.sent[10], host.sent[11]]);
    let mut data = Dialect::PLAIN.c2h(cid, 0, &[0; 4], 0);
    data[4..8].copy_from_slice(&u32::MAX.to_le_bytes());
    data[16..20].copy_from_slice(&(u32::MAX - 24).to_le_bytes());
    let (result, peak, _) = bytes(|| host.queue.next_event(&mut &data[..24]).map(|_| ()));
    assert!(result.is_err());
    assert_eq!(peak, 0);
}

#[test]
fn an_idle_connection_holds_nothing_on_the_heap() {
    let dialect = Dialect::BOTH_DIGESTS;
    let (request, data) = (ic_req(0, 3, 0), pattern(8000));
    let capsule = dialect.command(sqe(WRITE, 1, IN_CAPSULE, 8000), &data);
    let mut sent = Vec::with_capacity(1 << 16);
    let (queue, _, live) = bytes(|| {
        let mut queue = Target::new(QueueSettings::default());
        queue.next_event(&mut &request[..]).unwrap();
        send(&mut queue, &mut sent);
        queue.establish(1024, true);
        for piece in capsule.chunks(500) {
            serve(&mut queue, piece, usize::MAX, &mut Vec::new(), &mut sent);
        }
        queue.shrink();
        queue
    });
    assert_eq!(live, 0);
    assert!(size_of_val(&queue) <= 1024, "{} bytes", size_of_val(&queue));
}

//! Bytes from hosts that break any rule, at any stage of an association that was set up correctly.
//!
//! Input: one byte of options, then sections of kind, length (16 bits) and bytes.
//!
//! | Options | |
//! |---|---|
//! | bits 1:0 | digests negotiated in the handshake |
//! | bits 3:2 | stage of the association: none, handshake, admin queue, I/O queue |
//! | bit 4 | the host reads slowly: 4 KiB at a time |
//!
//! The low half of a section's kind selects the [`Section`], the high half its connection.

use peer::pdu::{Draft, Form};
use proto::handshake::HostOffer;
use wire::pdu::{DataAlignment, Digests, PduType};
use wire::sqe::{SQE_BYTES, Sqe};
use zerocopy::FromBytes;

use crate::input::Input;
use crate::raw_host::{self, Queue};
use crate::reactor::MemoryReactor;

/// Bytes of one section.
const SECTION_BYTES_MAX: u16 = 16 * 1024;

/// Connections that one input may open.
const LINK_COUNT_MAX: usize = 8;

/// The kind of a section.
enum Section {
    /// Bytes, as they are.
    Raw,
    /// Bytes, received one at a time.
    Drip,
    /// A valid capsule with any command and in-capsule data.
    Capsule,
    /// Time passes, 10 ms for each unit of the length.
    Time,
    /// The host closes.
    HangUp,
    /// The host reads.
    Read,
}

impl Section {
    fn new(kind: u8) -> Self {
        match kind & 0x0f {
            1 => Self::Drip,
            2 => Self::Capsule,
            3 => Self::Time,
            4 => Self::HangUp,
            5 => Self::Read,
            _ => Self::Raw,
        }
    }
}

/// Feeds hosts' bytes to a target: it must not panic, loop forever or leak buffers, and its output must consist of
/// PDUs.
pub fn target_stream(data: &[u8]) {
    let mut input = Input::new(data);
    let options = input.byte();
    let digests = Digests::from_bits_retain(options & 3);
    let offer = HostOffer { digests, ..HostOffer::default() };
    let room = if options & 0x10 != 0 { 4096 } else { usize::MAX };
    let mut target = raw_host::target();
    let mut links = Vec::new();
    match options >> 2 & 3 {
        0 => {}
        1 => links.push(Queue::open(&mut target, offer, room).link),
        level => {
            let (admin, cntlid) = Queue::admin(&mut target, offer, room);
            links.push(admin.link);
            if level == 3 {
                links.insert(0, Queue::io(&mut target, offer, room, cntlid).link);
            }
        }
    }
    while !input.is_empty() {
        let (kind, length) = (input.byte(), input.word() % SECTION_BYTES_MAX);
        let at = usize::from(kind >> 4);
        let link = match links.get(at).or(links.last()) {
            Some(link) if at < links.len() || links.len() == LINK_COUNT_MAX => *link,
            _ => {
                let link = target.dial(room);
                links.push(link);
                link
            }
        };
        match Section::new(kind) {
            Section::Raw => target.send(link, input.bytes(length.into())),
            Section::Drip => {
                for byte in input.bytes(length.into()) {
                    target.send(link, &[*byte]);
                }
            }
            Section::Capsule => target.send(link, &capsule(digests, input.bytes(length.into()))),
            Section::Time => target.pass(u64::from(length) * 10_000_000),
            Section::HangUp => target.hang_up(link),
            Section::Read => assert_pdus(&mut target, link, room),
        }
    }
    for link in links {
        assert_pdus(&mut target, link, room);
    }
    target.end();
}

/// A command capsule: 64 bytes of command, then in-capsule data.
fn capsule(digests: Digests, bytes: &[u8]) -> Vec<u8> {
    let (entry, data) = bytes.split_at(bytes.len().min(SQE_BYTES));
    let mut raw = [0; SQE_BYTES];
    raw[..entry.len()].copy_from_slice(entry);
    let sqe = Sqe::read_from_bytes(&raw).expect("64 bytes");
    Draft::command(Form { digests, alignment: DataAlignment::NONE }, sqe, data).seal()
}

/// The target's output must be controller PDUs; the last may be cut if the connection is closed.
fn assert_pdus(target: &mut MemoryReactor, link: usize, room: usize) {
    let bytes = target.receive(link);
    let mut rest = &bytes[..];
    // With little room a PDU may be in flight for long.
    while room == usize::MAX && !rest.is_empty() {
        let header = rest.first_chunk::<8>().expect("a common header");
        let [kind, _, hlen, pdo, p0, p1, p2, p3] = *header;
        let plen = u32::from_le_bytes([p0, p1, p2, p3]) as usize;
        let kind = PduType::try_from(kind).expect("a PDU type");
        assert!(!kind.is_from_host() && hlen == kind.header_length() && plen >= hlen.into(), "{header:?}");
        assert!(pdo == 0 || usize::from(pdo) < plen, "{header:?}");
        let Some((_, after)) = rest.split_at_checked(plen) else {
            assert!(target.is_closed(link), "half a {kind:?} on a connection that is open");
            return;
        };
        rest = after;
    }
}

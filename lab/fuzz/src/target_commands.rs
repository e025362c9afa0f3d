//! Commands of every kind over a correct transport: from capsule to command to storage and back.
//!
//! Input: entries of one selector byte, opcode, flags, namespace, command dwords (2, 3, 10 to 15), transfer kind,
//! length (16 bits), and the data to send.
//!
//! | Selector byte | |
//! |---|---|
//! | bit 0 | on the admin queue |
//! | bit 1 | sent together with the next one |
//! | bit 2 | then 100 ms pass |

use proto::handshake::HostOffer;
use proto::host_queue::Transfer;
use wire::U32;
use wire::id::Nsid;
use wire::opcode::{AdminOpcode, DataDirection};
use wire::pdu::Digests;
use wire::sqe::{Sqe, SqeFlags};

use crate::input::Input;
use crate::raw_host::{self, BLOCKS, KEYS, Queue};

/// Commands that one input may submit.
const COMMAND_COUNT_MAX: usize = 64;

/// Sends any command with any fields: the target must follow the transport protocol, answer each command once, and
/// release every buffer.
pub fn target_commands(data: &[u8]) {
    let mut input = Input::new(data);
    let digests = Digests::from_bits_retain(input.byte() & 3);
    let offer = HostOffer { digests, ..HostOffer::default() };
    let mut target = raw_host::target();
    let (mut admin, cntlid) = Queue::admin(&mut target, offer, usize::MAX);
    let mut io = Queue::io(&mut target, offer, usize::MAX, cntlid);
    for _ in 0..COMMAND_COUNT_MAX {
        if input.is_empty() {
            break;
        }
        let select = input.byte();
        let queue = if select & 1 != 0 { &mut admin } else { &mut io };
        if queue.is_live(&target) {
            let (sqe, transfer) = command(&mut input);
            queue.submit(sqe, transfer);
            if select & 2 == 0 {
                queue.exchange(&mut target);
            }
        }
        if select & 4 != 0 {
            target.pass(100_000_000);
        }
    }
    for queue in [&mut io, &mut admin] {
        if queue.is_live(&target) {
            queue.exchange(&mut target);
        }
    }
    target.end();
}

/// A command and its data.
pub(crate) fn command(input: &mut Input<'_>) -> (Sqe, Transfer<Vec<u8>>) {
    let (opcode, flags) = (input.byte(), input.byte());
    let nsid = match input.byte() {
        0 => BLOCKS,
        1 => KEYS,
        2 => Nsid::NONE,
        3 => Nsid::new(u32::MAX),
        other => Nsid::new(other.into()),
    };
    let mut sqe = Sqe::new(opcode, nsid);
    // Zero selects the usual command.
    sqe.flags = SqeFlags::from_bits(flags ^ SqeFlags::SGL.bits());
    for dword in [
        &mut sqe.cdw2,
        &mut sqe.cdw3,
        &mut sqe.cdw10,
        &mut sqe.cdw11,
        &mut sqe.cdw12,
        &mut sqe.cdw13,
        &mut sqe.cdw14,
        &mut sqe.cdw15,
    ] {
        *dword = U32::new(input.dword());
    }
    let (kind, length) = (input.byte(), usize::from(input.word()));
    let is_fabrics = opcode == AdminOpcode::FABRICS.raw();
    let code = if is_fabrics { sqe.nsid.get().to_le_bytes()[0] } else { opcode };
    // The data direction follows from the opcode: with another one the host would report a protocol violation for an
    // R2T, or for a missing one. wire §5.1
    let transfer = match (kind & 3, DataDirection::of(code)) {
        (1 | 2, DataDirection::None) => 0,
        // No command that a target supports transfers data both ways; sending comes first.
        (1 | 2, DataDirection::HostToController | DataDirection::Both) => 1,
        (1 | 2, DataDirection::ControllerToHost) => 2,
        (kind, _) => kind,
    };
    let transfer = match transfer {
        1 => {
            let mut data = input.bytes(length).to_vec();
            data.resize(length, 0);
            Transfer::ToController(data)
        }
        2 => Transfer::FromController { buffer: vec![0; length], is_exact: false },
        _ => Transfer::None,
    };
    (sqe, transfer)
}

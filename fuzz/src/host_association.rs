//! The association state machine of a host, against a controller that follows the transport's rules but reports
//! anything about itself: properties, Identify data, features, lists and logs.
//!
//! Input: for each command from the host, one byte that selects its answer ([`Answer`]), and the answer's parameters.

use std::sync::Arc;

use host::LinkError;
use host::association_machine::{
    AdminRequest, AssociationAction, AssociationMachine, AssociationSettings, MachineEvent,
};
use host::reconnect::{Class, ReconnectSettings};
use proto::controller::Controller;
use proto::controller_queue::{Event, QueueSettings};
use proto::handshake::HostOffer;
use proto::host_controller::RequestData;
use proto::{ControllerQueue, Piece, Slot};
use wire::fabrics::{ConnectCommand, ConnectResult, PropertyGet, PropertySet};
use wire::id::{Cntlid, Nsid};
use wire::identify::controller::IdentifyController;
use wire::identify::namespace::{IdentifyNamespace, LbaFormat};
use wire::identify::{Cns, IdentifyCommand};
use wire::opcode::{AdminOpcode, FabricsType};
use wire::property::{Cap, Vs};
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::host_lane::controller_settings;
use crate::input::Input;

const SECOND: u64 = 1_000_000_000;

/// Commands that one input answers; later ones get no answer.
const COMMAND_COUNT_MAX: usize = 256;

/// How a command is answered.
#[derive(Clone, Copy)]
enum Answer {
    /// As a correct controller answers.
    Honest,
    /// With damaged data.
    Damaged,
    /// With this result and correct data.
    Result,
    /// With this status.
    Status,
    /// Not at all.
    Nothing,
    /// The connection is lost.
    Lost,
}

impl Answer {
    fn new(kind: u8) -> Self {
        match kind & 7 {
            1 | 6 => Self::Damaged,
            2 => Self::Result,
            3 => Self::Status,
            4 => Self::Nothing,
            5 => Self::Lost,
            _ => Self::Honest,
        }
    }
}

/// The target's end.
struct Peer {
    queue: ControllerQueue<Vec<u8>, Vec<u8>>,
    properties: Controller,
    events: Vec<Slot>,
    is_lost: bool,
}

/// Whatever a controller reports, the host must end cleanly and report for each association whether it is up.
pub fn host_association(data: &[u8]) {
    let mut input = Input::new(data);
    let settings = AssociationSettings {
        controller: controller_settings(),
        offer: HostOffer::default(),
        connect_timeout_ns: 10 * SECOND,
        admin_timeout_ns: 60 * SECOND,
        deadline_ns: None,
        reconnect: ReconnectSettings { give_up_ns: Some(60 * SECOND), ..ReconnectSettings::default() },
        seed: 7,
    };
    let mut machine = AssociationMachine::new(settings, 0);
    let request = AdminRequest {
        id: 1,
        sqe: Sqe::identify(Cns::CONTROLLER, Nsid::NONE),
        data: RequestData::FromController(4096),
        class: Class::ReadOnly,
    };
    machine.submit(request, 0);
    let (mut now_ns, mut peer, mut answered, mut is_up) = (0, None, 0, false);
    let mut commands = 0;
    for step in 0..2000 {
        let mut is_quiet = true;
        if let Err(cause) = machine.advance(now_ns) {
            machine.on_lost(cause, now_ns);
        }
        let mut sent = Vec::new();
        while machine.ring() {
            let start = sent.len();
            machine.for_each_piece(|piece| {
                sent.extend_from_slice(piece);
                true
            });
            machine.on_sent(sent.len() - start);
        }
        if let Some(end) = &mut peer {
            let answer = exchange(end, &sent, &mut input, &mut commands);
            is_quiet &= answer.is_empty();
            if let Err(cause) = machine.on_bytes(&mut &answer[..], now_ns) {
                machine.on_lost(cause, now_ns);
            } else if end.is_lost {
                machine.on_lost(LinkError::Association, now_ns);
            }
        }
        while let Some(action) = machine.next_action() {
            is_quiet = false;
            match action {
                AssociationAction::Open => {
                    peer = Some(Peer::new());
                    machine.on_connected(([192, 0, 2, 1], 4420).into(), now_ns);
                }
                AssociationAction::Close { .. } => peer = None,
                AssociationAction::Answer { id, .. } => {
                    assert_eq!(id, 1);
                    answered += 1;
                }
                AssociationAction::Publish(MachineEvent::Up { namespaces, .. }) => {
                    assert!(!is_up, "up twice");
                    is_up = true;
                    look_at(&namespaces);
                }
                AssociationAction::Publish(MachineEvent::Namespaces { namespaces, .. }) => {
                    look_at(&namespaces);
                }
                AssociationAction::Publish(MachineEvent::Down { .. } | MachineEvent::Over { .. }) => {
                    is_up = false;
                }
                AssociationAction::Publish(_) => {}
            }
        }
        if is_quiet {
            match machine.next_deadline() {
                Some(deadline_ns) => now_ns = deadline_ns.max(now_ns) + 1,
                None => break,
            }
        }
        if step == 1000 || input.is_empty() && commands >= COMMAND_COUNT_MAX {
            machine.close();
        }
    }
    machine.close();
    machine.on_lost(LinkError::Association, now_ns);
    while let Some(action) = machine.next_action() {
        answered += usize::from(matches!(action, AssociationAction::Answer { .. }));
    }
    assert!(machine.is_over(), "it is still {}", machine.doing());
    assert_eq!(answered, 1, "each command of a caller has one answer");
}

/// Checks that each namespace is consistent, if it is usable.
fn look_at(namespaces: &Arc<[proto::host_namespaces::NamespaceInfo]>) {
    for info in namespaces.iter() {
        if let Ok(geometry) = info.geometry {
            assert!(geometry.lba_bytes.is_power_of_two(), "{geometry:?}");
            assert!(geometry.block_count.checked_mul(geometry.lba_bytes.into()).is_some(), "{geometry:?}");
        }
    }
}

impl Peer {
    fn new() -> Self {
        let cap =
            Cap::from_bits(0).with_queue_entries_max(128).with_ready_timeout_ms(1000).with_css_nvm(true);
        Self {
            queue: ControllerQueue::new(QueueSettings::default()),
            properties: Controller::new(cap, Vs::V2_0),
            events: Vec::new(),
            is_lost: false,
        }
    }
}

/// Answers the commands in `bytes` as the input says, and returns the bytes that the target sends.
fn exchange(peer: &mut Peer, bytes: &[u8], input: &mut Input<'_>, commands: &mut usize) -> Vec<u8> {
    let mut rest = bytes;
    while let Some(event) = peer.queue.next_event(&mut rest).expect("a host that keeps the rules") {
        if let Event::Command { slot, sqe, .. } = event {
            *commands += 1;
            // Once the input has ended, the controller is correct.
            let kind = if *commands > COMMAND_COUNT_MAX { 4 } else { input.byte() };
            execute(peer, slot, &sqe, Answer::new(kind), input);
        }
    }
    let mut sent = Vec::new();
    while peer.queue.caravan().ring() {
        let start = sent.len();
        for piece in peer.queue.caravan().pieces() {
            match piece {
                Piece::Bytes(bytes) => sent.extend_from_slice(bytes),
                Piece::Payload(payload, range) => sent.extend_from_slice(&payload[range]),
            }
        }
        peer.queue.caravan().on_sent(sent.len() - start, drop);
    }
    peer.queue.invariants();
    sent
}

fn execute(peer: &mut Peer, slot: Slot, sqe: &Sqe, answer: Answer, input: &mut Input<'_>) {
    let opcode = AdminOpcode::from_raw(sqe.opcode);
    let mut result = 0;
    let mut page = None;
    match (opcode, sqe.fctype()) {
        (AdminOpcode::FABRICS, FabricsType::CONNECT) => {
            let entries = ConnectCommand::from_sqe(sqe).queue_entries;
            peer.queue.establish(u16::try_from(entries).expect("few"), true);
            result = u64::from(ConnectResult::from_bits(0).with_cntlid(1).bits());
        }
        (AdminOpcode::FABRICS, FabricsType::PROPERTY_GET) => {
            result = peer.properties.on_property_get(PropertyGet::from_sqe(sqe)).unwrap_or(0);
        }
        (AdminOpcode::FABRICS, _) => {
            let _ = peer.properties.on_property_set(PropertySet::from_sqe(sqe));
        }
        (AdminOpcode::ASYNC_EVENT_REQUEST, _) => {
            // Event requests are answered when the input requests an event.
            peer.events.push(slot);
            if let Answer::Result = answer
                && let Some(slot) = peer.events.pop()
            {
                peer.queue.complete(slot, Status::SUCCESS, u64::from(input.dword()));
            }
            return;
        }
        (AdminOpcode::IDENTIFY, _) => page = Some(identify(IdentifyCommand::from_sqe(sqe))),
        (AdminOpcode::GET_LOG_PAGE, _) => page = Some(vec![0; 4096]),
        _ => {}
    }
    let status = match answer {
        Answer::Honest => Status::SUCCESS,
        Answer::Damaged => {
            if let Some(page) = &mut page {
                input.damage(page);
            }
            Status::SUCCESS
        }
        Answer::Result => {
            result = u64::from(input.dword()) | u64::from(input.dword()) << 32;
            Status::SUCCESS
        }
        Answer::Status => Status::from_wire(input.word() << 1),
        Answer::Nothing => return,
        Answer::Lost => {
            peer.is_lost = true;
            return;
        }
    };
    match page {
        Some(mut page) if status.is_success() => {
            let DataPointer::Transport { length } = sqe.dptr.classify() else { return };
            page.resize(length as usize, 0);
            if length == 0 {
                return peer.queue.complete(slot, status, result);
            }
            peer.queue.complete_with_data(slot, page, length, result, |_, _| 0);
        }
        _ => peer.queue.complete(slot, status, result),
    }
}

/// An Identify page of a correct controller with two block namespaces.
fn identify(command: IdentifyCommand) -> Vec<u8> {
    let mut page = vec![0; 4096];
    match command.cns {
        Cns::CONTROLLER => {
            let mut identify = IdentifyController::fabrics();
            identify.set_cntlid(Cntlid::new(1));
            identify.set_in_capsule_bytes(8192);
            identify.nn.set(4);
            page.copy_from_slice(identify.as_bytes());
        }
        Cns::ACTIVE_NAMESPACES => {
            for (place, nsid) in page.as_chunks_mut().0.iter_mut().zip([1u32, 2]) {
                *place = nsid.to_le_bytes();
            }
        }
        Cns::NAMESPACE => {
            let mut identify = IdentifyNamespace::default();
            identify.nsze.set(1 << 20);
            identify.lbaf[0] = LbaFormat::new(512).expect("a power of two");
            page.copy_from_slice(identify.as_bytes());
        }
        _ => {}
    }
    page
}

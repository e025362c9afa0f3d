//! The association state machine of a host, against a controller that follows the transport's rules but reports
//! anything about itself: properties, Identify data, features, lists and logs.
//!
//! Input: for each command from the host, one byte that selects its answer ([`Answer`]), and the answer's parameters.

use std::sync::Arc;
use std::time::Duration;

use host::LinkError;
use host::reconnect::{Class, ReconnectSettings};
use host_core::association_machine::{
    AdminRequest, AssociationAction, AssociationMachine, AssociationSettings, MachineEvent,
};
use peer::session::Event;
use proto::handshake::HostOffer;
use proto::host_controller::RequestData;
use wire::id::Nsid;
use wire::identify::Cns;
use wire::opcode::AdminOpcode;
use wire::sqe::Sqe;
use wire::status::Status;

use crate::input::Input;
use crate::raw_target::Target;
use crate::raw_target::controller_settings;

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
    target: Target,
    events: Vec<Sqe>,
    is_lost: bool,
}

/// Whatever a controller reports, the host must end cleanly and report for each association whether it is up.
pub fn host_association(data: &[u8]) {
    let mut input = Input::new(data);
    let settings = AssociationSettings {
        credentials: None,
        concat: false,
        reauthenticate: None,
        controller: controller_settings(),
        offer: HostOffer::default(),
        connect_timeout_ns: 10 * SECOND,
        admin_timeout_ns: 60 * SECOND,
        deadline_ns: None,
        reconnect: ReconnectSettings::default().with_give_up_after(Some(Duration::from_secs(60))),
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
        Self { target: Target::new(), events: Vec::new(), is_lost: false }
    }
}

/// Answers the commands in `bytes` as the input says, and returns the bytes that the target sends.
fn exchange(peer: &mut Peer, bytes: &[u8], input: &mut Input<'_>, commands: &mut usize) -> Vec<u8> {
    peer.target.end.on_bytes(bytes);
    while let Some(event) = peer.target.next_event() {
        if let Event::Command { sqe, data } = &event {
            *commands += 1;
            // Once the input has ended, the controller is correct.
            let kind = if *commands > COMMAND_COUNT_MAX { 4 } else { input.byte() };
            execute(peer, sqe, data, Answer::new(kind), input);
        } else {
            peer.target.serve(&event);
        }
    }
    peer.target.end.take_sent()
}

fn execute(peer: &mut Peer, sqe: &Sqe, data: &[u8], answer: Answer, input: &mut Input<'_>) {
    if sqe.opcode == AdminOpcode::ASYNC_EVENT_REQUEST.raw() {
        // Event requests are answered when the input requests an event.
        peer.events.push(*sqe);
        if let Answer::Result = answer
            && let Some(request) = peer.events.pop()
        {
            peer.target.end.complete(&request, Status::SUCCESS, u64::from(input.dword()));
        }
        return;
    }
    for (sqe, mut reply) in peer.target.execute(sqe, data) {
        match answer {
            Answer::Honest => {}
            Answer::Damaged if reply.data.is_empty() => {}
            Answer::Damaged => input.damage(&mut reply.data),
            Answer::Result => {
                reply.result = u64::from(input.dword()) | u64::from(input.dword()) << 32;
            }
            Answer::Status => {
                reply.status = Status::from_wire(input.word() << 1);
                if !reply.status.is_success() {
                    reply.data.clear();
                }
            }
            Answer::Nothing => return,
            Answer::Lost => {
                peer.is_lost = true;
                return;
            }
        }
        peer.target.end.reply(&sqe, &reply);
    }
}

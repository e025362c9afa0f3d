//! The association state machine and the lane core in virtual time: no sockets, clocks or threads. Scenarios of minutes
//! run at once.
#![allow(clippy::cast_possible_truncation)]

mod tls;

use std::collections::{BTreeSet, VecDeque};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;

use nvlane_host_core::association_machine::{
    AssociationAction, AssociationMachine, AssociationSettings, MachineEvent,
};
use nvlane_host_core::attachment::{Attachment, Barrier, Inaccessible};
use nvlane_host_core::flush_epoch::FlushEpoch;
use nvlane_host_core::lane_core::{LaneAction, LaneCore, LaneSettings};
use nvlane_host_core::{
    Command, Completion, Credentials, Failure, LinkError, Namespace, ReconnectSettings, ReplayPolicy,
};
use peer::controller::Controller;
use peer::session::Event;
use peer::stage::{Setup, Stage};
use peer::target_end::{Limits, Reply, TargetEnd};
use proptest::prelude::*;
use proto::handshake::HostOffer;
use proto::host_controller::{ControllerError, ControllerSettings};
use proto::host_namespaces::{Ids, NamespaceInfo};
use security::host::HostFailure;
use security::message::Reason;
use security::secret::Secret;
use security::tls::{Alert, Failure as TlsFailure, IdentityOffer};
use wire::fabrics::ConnectResult;
use wire::id::{Cntlid, Nsid, Qid};
use wire::identify::capabilities::Vwc;
use wire::identify::controller::IdentifyController;
use wire::identify::namespace::IdentifyNamespace;
use wire::log::ana::AnaState;
use wire::opcode::{FabricsType, NvmOpcode};
use wire::property::Cap;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use zerocopy::FromBytes;

const SECOND: u64 = 1_000_000_000;
const ADDRESS: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1)), 4420);

fn controller_settings() -> ControllerSettings {
    ControllerSettings {
        host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().unwrap(),
        hostid: "11111111-2222-3333-4444-555555555555".parse().unwrap(),
        subsystem: "nqn.2016-06.io.nvlane:test".parse().unwrap(),
        is_discovery: false,
        keep_alive_ms: 10_000,
        queue_pairs: 1,
        is_flow_control_disabled: true,
    }
}

/// The reaction of a target to an I/O command.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Answer {
    Data,
    Status(Status),
    Nothing,
}

/// The target's end of one connection.
struct Peer {
    end: TargetEnd,
    controller: Controller,
    stage: Stage,
    answer: Answer,
    seen: usize,
    /// Of the last I/O command.
    cid: u16,
    /// Statuses of the next I/O commands in order; success once it is empty.
    statuses: VecDeque<Status>,
    /// The last I/O command was the first half of a fused pair.
    is_in_pair: bool,
    /// Asks for authentication, answers the host's offer with nonsense, and says nothing more.
    talks_nonsense: bool,
}

impl Peer {
    fn new() -> Self {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(8192);
        let setup = Setup {
            subsystem: controller_settings().subsystem,
            identify,
            namespaces: Vec::new(),
            queue_pairs: 1,
            ..Setup::default()
        };
        let stage = Stage::new(ADDRESS, setup);
        // That of lanes without an admin queue.
        stage.state().controllers.insert(1);
        Self {
            end: TargetEnd::new(Limits::default()),
            controller: Controller::default(),
            stage,
            answer: Answer::Data,
            seen: 0,
            cid: 0,
            statuses: VecDeque::new(),
            is_in_pair: false,
            talks_nonsense: false,
        }
    }

    fn talking_nonsense() -> Self {
        Self { talks_nonsense: true, ..Self::new() }
    }

    /// Receives bytes from the host and returns the target's answer.
    fn exchange(&mut self, bytes: &[u8]) -> Vec<u8> {
        self.end.on_bytes(bytes);
        while let Some(event) = self.end.next_event().expect("a host that keeps the rules") {
            match &event {
                Event::Command { sqe, .. } if self.talks_nonsense => self.talk_nonsense(sqe),
                Event::Command { sqe, .. } if self.controller.qid == Some(1) => self.execute(sqe),
                event => self.controller.serve(&self.stage, &mut self.end, event).expect("good commands"),
            }
        }
        self.end.take_sent()
    }

    fn talk_nonsense(&mut self, sqe: &Sqe) {
        let is_told = self.seen > 0;
        let reply = match sqe.fctype() {
            FabricsType::CONNECT => {
                let result = ConnectResult::default().with_cntlid(1).with_authentication_required(true);
                Reply::result(result.bits().into())
            }
            FabricsType::AUTHENTICATION_RECEIVE => Reply::data(vec![7; 64]),
            _ if is_told => return,
            _ => Reply::DONE,
        };
        self.seen += usize::from(sqe.fctype() == FabricsType::AUTHENTICATION_RECEIVE);
        self.end.reply(sqe, &reply);
    }

    fn execute(&mut self, sqe: &Sqe) {
        self.cid = sqe.cid.get();
        let fuse = sqe.flags.fuse();
        assert_eq!(self.is_in_pair, fuse == Fuse::SECOND, "half a pair: {sqe:?}");
        self.is_in_pair = fuse == Fuse::FIRST;
        let status = self.statuses.pop_front().unwrap_or(Status::SUCCESS);
        if !status.is_success() {
            return self.end.complete(sqe, status, 0);
        }
        let reply = match self.answer {
            Answer::Nothing if fuse != Fuse::NONE => return,
            _ if sqe.opcode != NvmOpcode::READ.raw() => Reply::DONE,
            Answer::Data => Reply::data(vec![7; 512]),
            Answer::Status(status) => Reply::status(status),
            Answer::Nothing => return self.seen += 1,
        };
        self.seen += usize::from(sqe.opcode == NvmOpcode::READ.raw());
        self.end.reply(sqe, &reply);
    }
}

/// A state machine, and a target that is present or not.
struct Kept {
    machine: AssociationMachine,
    /// The target's end of the next connection.
    new_peer: fn() -> Peer,
    peer: Option<Peer>,
    is_reachable: bool,
    /// Each attempt to connect fails by this.
    refusal: Option<LinkError>,
    answers: bool,
    now_ns: u64,
    events: Vec<(u64, MachineEvent)>,
}

impl Kept {
    fn new(reconnect: ReconnectSettings) -> Self {
        Self::with(reconnect, None)
    }

    fn with(reconnect: ReconnectSettings, credentials: Option<Credentials>) -> Self {
        let settings = AssociationSettings {
            controller: controller_settings(),
            credentials: credentials.map(Arc::new),
            concat: false,
            reauthenticate: None,
            offer: HostOffer::default(),
            connect_timeout_ns: 10 * SECOND,
            admin_timeout_ns: 60 * SECOND,
            deadline_ns: None,
            reconnect,
            seed: 7,
        };
        let machine = AssociationMachine::new(settings, 0);
        Self {
            machine,
            new_peer: Peer::new,
            peer: None,
            is_reachable: true,
            refusal: None,
            answers: true,
            now_ns: 0,
            events: Vec::new(),
        }
    }

    /// Processes everything due at this moment.
    fn step(&mut self) {
        loop {
            if let Err(cause) = self.machine.advance(self.now_ns) {
                self.machine.on_lost(cause, self.now_ns);
            }
            let mut sent = Vec::new();
            while self.machine.ring() {
                let start = sent.len();
                self.machine.for_each_piece(|piece| {
                    sent.extend_from_slice(piece);
                    true
                });
                self.machine.on_sent(sent.len() - start);
            }
            let mut is_quiet = sent.is_empty();
            if let Some(peer) = &mut self.peer
                && self.answers
            {
                let answer = peer.exchange(&sent);
                if let Err(cause) = self.machine.on_bytes(&mut &answer[..], self.now_ns) {
                    self.machine.on_lost(cause, self.now_ns);
                }
            }
            while let Some(action) = self.machine.next_action() {
                is_quiet = false;
                match action {
                    AssociationAction::Open if self.refusal.is_some() => {
                        self.machine.on_lost(self.refusal.clone().expect("a refusal"), self.now_ns);
                    }
                    AssociationAction::Open if self.is_reachable => {
                        self.peer = Some((self.new_peer)());
                        self.machine.on_connected(ADDRESS, self.now_ns);
                    }
                    AssociationAction::Open => {
                        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
                        self.machine.on_lost(refused.into(), self.now_ns);
                    }
                    AssociationAction::Close { .. } => self.peer = None,
                    AssociationAction::Answer { .. } => {}
                    AssociationAction::Publish(event) => self.events.push((self.now_ns, event)),
                }
            }
            if is_quiet {
                return;
            }
        }
    }

    fn run_until(&mut self, until_ns: u64) {
        self.step();
        let mut steps = 0;
        while let Some(deadline_ns) = self.machine.next_deadline()
            && deadline_ns <= until_ns
        {
            assert!(deadline_ns > self.now_ns || steps < 100_000, "no progress");
            (self.now_ns, steps) = (deadline_ns.max(self.now_ns), steps + 1);
            self.step();
        }
        self.now_ns = until_ns;
        self.step();
    }
}

#[test]
fn an_association_lives_for_hours_on_keep_alives() {
    let mut kept = Kept::new(ReconnectSettings::default());
    kept.run_until(4 * 3600 * SECOND);
    assert!(matches!(kept.events[..], [(_, MachineEvent::Up { .. })]), "{:?}", kept.events);
}

#[test]
fn a_target_that_falls_silent_is_noticed_by_its_missing_keep_alive() {
    let mut kept = Kept::new(ReconnectSettings::default());
    kept.run_until(100 * SECOND);
    kept.answers = false;
    kept.run_until(130 * SECOND);
    let (at_ns, MachineEvent::Down { cause, .. }) = &kept.events[1] else { panic!("{:?}", kept.events) };
    assert!(*at_ns <= 116 * SECOND && cause.to_string().contains("keep-alive"), "{at_ns} {cause}");
}

#[test]
fn a_target_is_waited_for_ten_minutes_and_not_longer() {
    let mut kept = Kept::new(ReconnectSettings::default());
    kept.run_until(50 * SECOND);
    kept.is_reachable = false;
    let reset = || std::io::Error::from(std::io::ErrorKind::ConnectionReset).into();
    kept.machine.on_lost(reset(), kept.now_ns);
    // No attempt starts after the deadline, so the last one may be early by one delay.
    kept.run_until(639 * SECOND);
    assert!(!kept.machine.is_over());
    kept.run_until(651 * SECOND);
    let (_, MachineEvent::Over { attempts: 60..160, cause: Some(_) }) = kept.events.last().unwrap() else {
        panic!("{:?}", kept.events.last())
    };
    assert!(kept.machine.is_over() && kept.machine.next_deadline().is_none());
}

#[test]
fn a_target_that_comes_back_has_a_new_generation() {
    let mut kept = Kept::new(ReconnectSettings::default().with_give_up_after(None));
    kept.run_until(SECOND);
    for round in 2..6 {
        kept.is_reachable = false;
        kept.machine.on_lost(LinkError::Association, kept.now_ns);
        kept.run_until(kept.now_ns + 3600 * SECOND);
        kept.is_reachable = true;
        kept.run_until(kept.now_ns + 11 * SECOND);
        let (_, MachineEvent::Up { attachment, .. }) = kept.events.last().unwrap() else {
            panic!("up again")
        };
        assert_eq!(attachment.generation, round);
    }
}

#[test]
fn the_same_seed_waits_the_same() {
    let run = || {
        let mut kept = Kept::new(ReconnectSettings::default());
        kept.run_until(SECOND);
        kept.is_reachable = false;
        kept.machine.on_lost(LinkError::Association, kept.now_ns);
        kept.run_until(700 * SECOND);
        kept.events.iter().map(|(at_ns, _)| *at_ns).collect::<Vec<_>>()
    };
    assert_eq!(run(), run());
}

/// How a host or a target can refuse the other's key or secret.
fn refusals_of_trust() -> Vec<LinkError> {
    vec![
        LinkError::Tls(TlsFailure::Alert(Alert::DECRYPT_ERROR)),
        LinkError::Tls(TlsFailure::Alert(Alert::UNKNOWN_PSK_IDENTITY)),
        LinkError::Tls(TlsFailure::NotTls),
        LinkError::Tls(TlsFailure::NoProof),
        LinkError::Tls(TlsFailure::Closed),
        LinkError::GeneratedKey(TlsFailure::Alert(Alert::DECRYPT_ERROR)),
        LinkError::Authentication(HostFailure::Refused(Reason::Failed)),
        LinkError::Authentication(HostFailure::Refuses(Reason::Failed)),
        LinkError::ClosedOnReply,
        LinkError::ControllerNotAuthenticated,
        LinkError::NoSecureChannel,
        ControllerError::AuthenticationRequired.into(),
        ControllerError::SecureChannelRequired.into(),
    ]
}

#[test]
fn a_refused_key_or_secret_ends_the_first_attempt_at_once() {
    for refusal in refusals_of_trust() {
        let mut kept = Kept::new(ReconnectSettings::default());
        kept.refusal = Some(refusal.clone());
        kept.step();
        let [(0, MachineEvent::Over { attempts: 0, cause: Some(cause) })] = &kept.events[..] else {
            panic!("{refusal}: {:?}", kept.events)
        };
        assert_eq!(cause.to_string(), refusal.to_string());
    }
}

#[test]
fn an_association_that_was_up_is_refused_until_the_key_is_back_or_its_time_is_over() {
    for refusal in refusals_of_trust() {
        for is_back in [true, false] {
            let mut kept = Kept::new(ReconnectSettings::default());
            kept.run_until(50 * SECOND);
            kept.refusal = Some(refusal.clone());
            kept.machine.on_lost(LinkError::Closed { during: "operation" }, kept.now_ns);
            kept.run_until(600 * SECOND);
            assert!(!kept.machine.is_over(), "{refusal}");
            let reported = kept.events.iter().filter_map(|(_, event)| match event {
                MachineEvent::Failed { cause, .. } => Some(cause.to_string()),
                _ => None,
            });
            assert!(
                reported.clone().count() > 50 && reported.clone().all(|text| text == refusal.to_string())
            );
            if is_back {
                kept.refusal = None;
            }
            kept.run_until(700 * SECOND);
            match (&kept.events.last().expect("events").1, is_back) {
                (MachineEvent::Up { attachment, .. }, true) => assert_eq!(attachment.generation, 2),
                (MachineEvent::Over { attempts: 60..160, cause: Some(cause) }, false) => {
                    assert_eq!(cause.to_string(), refusal.to_string());
                }
                (event, _) => panic!("{refusal}: {event:?}"),
            }
        }
    }
}

#[test]
fn a_lane_whose_key_or_secret_is_refused_costs_the_association_and_not_its_future() {
    for refusal in refusals_of_trust() {
        let mut kept = Kept::new(ReconnectSettings::default());
        kept.run_until(50 * SECOND);
        kept.machine.on_lane_lost(1, refusal.clone(), kept.now_ns);
        kept.run_until(51 * SECOND);
        let [_, (_, MachineEvent::Down { cause, .. }), (_, MachineEvent::Up { .. })] = &kept.events[..]
        else {
            panic!("{refusal}: {:?}", kept.events)
        };
        assert_eq!(cause.to_string(), refusal.to_string());
    }
}

/// A target that may not look at the second identity gets that alone, once per attempt, and what it accepts first from
/// then on. An alert about the key itself is final.
#[test]
fn other_identities_of_the_key_are_offered_once_per_attempt() {
    let alert = |alert| LinkError::Tls(TlsFailure::Alert(alert));
    let next = |kept: &mut Kept| {
        let action = std::iter::from_fn(|| kept.machine.next_action());
        action.filter(|action| matches!(action, AssociationAction::Open)).count()
    };
    for refusal in [Alert::UNKNOWN_PSK_IDENTITY, Alert::DECRYPT_ERROR] {
        let mut kept = Kept::new(ReconnectSettings::default());
        assert_eq!(next(&mut kept), 1);
        kept.machine.on_lost(alert(refusal), 0);
        assert!(kept.machine.is_over());
    }
    let mut kept = Kept::new(ReconnectSettings::default());
    assert_eq!((next(&mut kept), kept.machine.identities()), (1, IdentityOffer::Both));
    kept.machine.on_lost(alert(Alert::INTERNAL_ERROR), 0);
    assert_eq!(kept.machine.identities(), IdentityOffer::VersionZero);
    kept.run_until(SECOND);
    let [(0, MachineEvent::Up { attachment, .. })] = &kept.events[..] else { panic!("{:?}", kept.events) };
    assert_eq!(attachment.identities, IdentityOffer::VersionZero);
    // Another target, which knows version 1 only.
    kept.is_reachable = false;
    kept.machine.on_lost(LinkError::Association, SECOND);
    kept.run_until(2 * SECOND);
    assert_eq!(kept.machine.identities(), IdentityOffer::VersionZero);
    let mut first = Kept::new(ReconnectSettings::default());
    first.machine.on_lost(alert(Alert::INTERNAL_ERROR), 0);
    first.machine.on_lost(alert(Alert::INTERNAL_ERROR), 0);
    assert!(first.machine.is_over(), "both were offered");
}

/// The controller says itself that no attempt succeeds.
#[test]
fn a_connect_refused_with_do_not_retry_ends_an_association_that_was_up() {
    let status = Status::CONNECT_INVALID_HOST;
    for (status, is_over) in [(status.with_dnr(), true), (status, false)] {
        let refusal = ControllerError::ConnectRefused { qid: Qid::ADMIN, status, parameter: None };
        let mut kept = Kept::new(ReconnectSettings::default());
        kept.run_until(50 * SECOND);
        kept.refusal = Some(refusal.into());
        kept.machine.on_lost(LinkError::Association, kept.now_ns);
        kept.run_until(51 * SECOND);
        assert_eq!(kept.machine.is_over(), is_over);
    }
}

fn credentials() -> Credentials {
    Credentials::new(Secret::new(None, vec![1; 32].into()).expect("a secret"), None)
}

/// A controller that is refused need not hear why.
#[test]
fn the_cause_of_a_failed_authentication_outlives_the_connection_of_an_association() {
    let mut kept = Kept::with(ReconnectSettings::default(), Some(credentials()));
    kept.new_peer = Peer::talking_nonsense;
    kept.run_until(SECOND);
    assert_eq!(kept.peer.as_ref().map(|peer| peer.seen), Some(1));
    let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
    kept.machine.on_lost(reset.into(), kept.now_ns);
    kept.step();
    let Some((_, MachineEvent::Over { cause: Some(cause), .. })) = kept.events.last() else {
        panic!("{:?}", kept.events)
    };
    assert!(cause.to_string().contains("the host refuses the controller"), "{cause}");
}

/// A lane core and a target.
struct Laned {
    core: LaneCore<Vec<u8>>,
    peer: Peer,
    now_ns: u64,
    done: Vec<Completion<Vec<u8>>>,
    aborts: usize,
    losses: usize,
    ana_reads: usize,
    /// The socket takes no bytes.
    is_stalled: bool,
}

impl Laned {
    fn new() -> Self {
        Self::attached(1, None)
    }

    /// In the association of this generation, with a shared flush epoch.
    fn attached(generation: u64, flush_epoch: Option<&FlushEpoch>) -> Self {
        let lane = Self::connecting(generation, flush_epoch, None, Peer::new());
        assert!(lane.core.is_live());
        lane
    }

    fn connecting(
        generation: u64,
        flush_epoch: Option<&FlushEpoch>,
        credentials: Option<Credentials>,
        peer: Peer,
    ) -> Self {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(8192);
        identify.vwc = Vwc::from_bits(0).with_present(true);
        identify.set_retry_delays_ms([100, 5000, 60_000]);
        let cap = Cap::from_bits(0).with_queue_entries_max(128);
        let attachment = Attachment {
            generation,
            cntlid: Cntlid::new(1),
            peer: ADDRESS,
            settings: controller_settings(),
            credentials: credentials.map(Arc::new),
            generated: None,
            identities: IdentityOffer::Both,
            limits: proto::host_limits::Limits::new(cap, &identify).unwrap(),
            queue_pairs: 1,
            partition_count: 0,
            has_long_values: false,
            inaccessible: Arc::new([]),
        };
        let settings = LaneSettings {
            qid: Qid::new(1),
            depth: 32,
            offer: HostOffer::default(),
            in_capsule_bytes_max: u32::MAX,
            connect_timeout_ns: 10 * SECOND,
            command_timeout_ns: 30 * SECOND,
            retry_limit: 5,
            path_timeout_ns: 30 * SECOND,
            fast_fail_ns: None,
            replay: ReplayPolicy::default(),
            reauthenticate: None,
            partition_queues: None,
        };
        let mut core = LaneCore::new(settings);
        if let Some(flush_epoch) = flush_epoch {
            core.share_flush_epoch(flush_epoch.clone());
        }
        core.attach(&Arc::new(attachment), 0);
        let mut lane = Self {
            core,
            peer,
            now_ns: 0,
            done: Vec::new(),
            aborts: 0,
            losses: 0,
            ana_reads: 0,
            is_stalled: false,
        };
        lane.step();
        lane
    }

    fn step(&mut self) {
        loop {
            let mut is_quiet = true;
            if let Err(cause) = self.core.on_time(self.now_ns) {
                self.core.on_lost(cause);
            }
            while let Some(action) = self.core.next_action() {
                is_quiet = false;
                match action {
                    LaneAction::Open(_) => self.core.on_connected(self.now_ns),
                    LaneAction::Abort { .. } => self.aborts += 1,
                    LaneAction::Report { .. } => self.losses += 1,
                    LaneAction::ReadAna => self.ana_reads += 1,
                    LaneAction::Close => {}
                }
            }
            let mut sent = Vec::new();
            while !self.is_stalled && self.core.ring() {
                let start = sent.len();
                self.core.for_each_piece(|piece| {
                    sent.extend_from_slice(piece);
                    true
                });
                self.core.on_sent(sent.len() - start);
            }
            is_quiet &= sent.is_empty();
            let answer = self.peer.exchange(&sent);
            let done = &mut self.done;
            self.core
                .on_bytes(&mut &answer[..], self.now_ns, &mut |completion| done.push(completion))
                .unwrap();
            if is_quiet {
                return;
            }
        }
    }

    fn run_until(&mut self, until_ns: u64) {
        self.step();
        while let Some(deadline_ns) = self.core.next_deadline()
            && deadline_ns <= until_ns
        {
            self.now_ns = deadline_ns.max(self.now_ns);
            self.step();
        }
        self.now_ns = until_ns;
        self.step();
    }

    /// Loses the connection and gives the lane one of the next association.
    fn reconnect(&mut self) {
        self.core.on_lost(LinkError::Association);
        self.is_stalled = false;
        let before = Attachment::clone(self.core.attachment().unwrap());
        self.peer = Peer::new();
        self.core.attach(&Arc::new(Attachment { generation: before.generation + 1, ..before }), self.now_ns);
        self.step();
    }

    fn submit_flush(&mut self) {
        let mut bytes = vec![0; 4096];
        bytes[..8].copy_from_slice(&1000u64.to_le_bytes());
        bytes[8..16].copy_from_slice(&1000u64.to_le_bytes());
        bytes[130] = 12;
        let (identify, _) = IdentifyNamespace::ref_from_prefix(&bytes).unwrap();
        let info = NamespaceInfo::of_blocks(Nsid::new(1), &Ids::default(), identify).unwrap();
        let flush = Namespace::new(info, self.core.attachment().unwrap().limits).unwrap().flush();
        self.core.submit(flush, None, 9).unwrap();
    }

    fn flush(&mut self) -> Result<u64, Failure> {
        self.submit_flush();
        self.step();
        self.done.pop().expect("it has ended").result
    }

    fn submit_pair(&mut self, users: [u64; 2]) {
        let sqes = [Sqe::compare(Nsid::new(1), 0, 1), Sqe::write(Nsid::new(1), 0, 1)];
        let [compare, write] = sqes.map(|sqe| {
            let is_first = sqe.opcode == NvmOpcode::COMPARE.raw();
            Command::raw_to_controller(sqe.with_fuse(if is_first { Fuse::FIRST } else { Fuse::SECOND }), 512)
        });
        // The class of a half has no effect.
        self.core.submit_pair([compare.read_only(), write], [vec![0; 512], vec![1; 512]], users).unwrap();
    }

    fn read(&mut self) {
        let command = Command::raw_from_controller(Sqe::read(Nsid::new(1), 0, 1), 512).read_only();
        self.core.submit(command, Some(vec![0; 512]), 9).unwrap();
    }
}

#[test]
fn a_silent_command_is_aborted_after_its_time_and_then_costs_the_connection() {
    let mut lane = Laned::new();
    lane.peer.answer = Answer::Nothing;
    // After a long idle time the timeout counts from when the command is first seen, not from the previous clock
    // reading.
    lane.now_ns += 3600 * SECOND;
    lane.read();
    let start_ns = lane.now_ns;
    lane.run_until(start_ns + 29 * SECOND);
    assert_eq!((lane.aborts, lane.done.len()), (0, 0));
    lane.run_until(start_ns + 33 * SECOND);
    assert_eq!((lane.aborts, lane.done.len()), (1, 0), "the buffer is the controller's still");
    lane.run_until(start_ns + 50 * SECOND);
    assert_eq!((lane.aborts, lane.losses), (1, 1));
    assert_eq!(lane.done[0].result, Err(Failure::TimedOut));
}

#[test]
fn a_cancelled_command_whose_abort_was_refused_is_aborted_again_after_its_time() {
    let mut lane = Laned::new();
    lane.peer.answer = Answer::Nothing;
    lane.read();
    let start_ns = lane.now_ns;
    assert!(lane.core.cancel(9) && !lane.core.cancel(9));
    lane.run_until(start_ns + 29 * SECOND);
    assert_eq!((lane.aborts, lane.done.len()), (1, 0));
    lane.run_until(start_ns + 33 * SECOND);
    assert_eq!((lane.aborts, lane.done.len()), (2, 0));
}

/// The Abort waits in the admin queue while the lane goes on.
#[test]
fn an_abort_that_arrives_late_names_no_later_command() {
    let mut lane = Laned::new();
    lane.is_stalled = true;
    lane.read();
    assert!(lane.core.cancel(9));
    lane.step();
    lane.is_stalled = false;
    lane.step();
    assert_eq!((lane.aborts, lane.done.len()), (1, 1), "it has ended all the same");
    let aborted = lane.peer.cid;
    let later = (0..1000).map(|_| {
        lane.read();
        lane.step();
        lane.peer.cid
    });
    let later: BTreeSet<u16> = later.collect();
    assert!(later.len() >= 63 && !later.contains(&aborted), "{aborted:#x} in {later:x?}");
}

#[test]
fn the_cause_of_a_failed_authentication_outlives_the_connection_of_a_lane() {
    let mut lane = Laned::connecting(1, None, Some(credentials()), Peer::talking_nonsense());
    assert_eq!(lane.peer.seen, 1);
    lane.core.on_lost(std::io::Error::from(std::io::ErrorKind::ConnectionReset).into());
    let cause = std::iter::from_fn(|| lane.core.next_action()).find_map(|action| match action {
        LaneAction::Report { cause, .. } => Some(cause.to_string()),
        _ => None,
    });
    let cause = cause.expect("the loss is reported");
    assert!(cause.contains("the host refuses the controller"), "{cause}");
}

#[test]
fn retries_wait_as_long_as_the_controller_wants() {
    let mut lane = Laned::new();
    lane.peer.answer = Answer::Status(Status::NAMESPACE_NOT_READY.with_crd(2));
    lane.read();
    lane.run_until(4 * SECOND);
    assert_eq!(lane.peer.seen, 1);
    lane.run_until(6 * SECOND);
    assert_eq!(lane.peer.seen, 2);
    lane.peer.answer = Answer::Data;
    lane.run_until(11 * SECOND);
    assert_eq!((lane.done[0].result, lane.peer.seen), (Ok(0), 3));
    assert_eq!(lane.done[0].buffer.as_deref(), Some(&[7; 512][..]));
    lane.peer.answer = Answer::Status(Status::NAMESPACE_NOT_READY.with_crd(3));
    lane.read();
    lane.run_until(22 * SECOND);
    assert_eq!(lane.peer.seen, 5, "but no longer than makes sense");
    lane.peer.answer = Answer::Data;
    lane.run_until(33 * SECOND);
    lane.peer.answer = Answer::Status(Status::INTERNAL_ERROR.with_crd(2));
    lane.peer.seen = 0;
    lane.read();
    lane.run_until(36 * SECOND);
    assert_eq!(lane.peer.seen, 1, "also where the first retry would be immediate");
}

#[test]
fn what_was_in_flight_is_sent_again_in_its_order() {
    let mut lane = Laned::new();
    lane.peer.answer = Answer::Nothing;
    for user in 0..20 {
        let command = Command::raw_from_controller(Sqe::read(Nsid::new(1), user, 1), 512).read_only();
        lane.core.submit(command, Some(vec![0; 512]), user).unwrap();
    }
    lane.step();
    let write = Command::raw_to_controller(Sqe::write(Nsid::new(1), 0, 1), 512);
    lane.core.submit(write, Some(vec![1; 512]), 20).unwrap();
    lane.reconnect();
    let users: Vec<_> = lane.done.iter().map(|completion| (completion.user, completion.result)).collect();
    assert_eq!(users, (0..21).map(|user| (user, Ok(0))).collect::<Vec<_>>(), "the write had not left");
}

#[test]
fn a_pair_is_sent_again_as_a_whole_or_not_at_all() {
    for (cancelled, result) in
        [(None, Ok(0)), (Some(1), Err(Failure::Cancelled)), (Some(2), Err(Failure::Cancelled))]
    {
        let mut lane = Laned::new();
        lane.is_stalled = true;
        lane.submit_pair([1, 2]);
        lane.step();
        if let Some(user) = cancelled {
            assert!(lane.core.cancel(user));
            lane.step();
            assert_eq!(lane.done.len(), 0, "it is in the queue of a connection");
        }
        lane.reconnect();
        let ends: Vec<_> = lane.done.iter().map(|end| (end.user, end.result)).collect();
        assert_eq!(ends, [(1, result), (2, result)], "{cancelled:?}");
    }
    // One that was sent may have been executed.
    let mut lane = Laned::new();
    lane.peer.answer = Answer::Nothing;
    lane.submit_pair([1, 2]);
    lane.step();
    lane.core.cancel(1);
    lane.reconnect();
    let ends: Vec<_> = lane.done.iter().map(|end| end.result).collect();
    assert_eq!(ends, [Err(Failure::Interrupted); 2]);
}

#[test]
fn no_flush_succeeds_on_any_lane_until_one_has_told_of_the_loss() {
    let flush_epoch = FlushEpoch::default();
    let mut one = Laned::attached(1, Some(&flush_epoch));
    let mut two = Laned::attached(1, Some(&flush_epoch));
    assert_eq!((one.flush(), two.flush()), (Ok(0), Ok(0)));
    one.reconnect();
    two.reconnect();
    one.submit_flush();
    assert!(one.core.has_done(), "it has ended, which is not reported yet");
    assert_eq!(two.flush(), Err(Failure::Unflushed));
    one.step();
    assert_eq!(one.done.pop().unwrap().result, Err(Failure::Unflushed));
    assert_eq!((one.flush(), two.flush()), (Ok(0), Ok(0)));
}

#[test]
fn a_lane_whose_first_association_is_a_later_one_vouches_for_no_other() {
    let flush_epoch = FlushEpoch::default();
    let mut one = Laned::attached(1, Some(&flush_epoch));
    one.reconnect();
    let mut two = Laned::attached(2, Some(&flush_epoch));
    assert_eq!((one.flush(), two.flush()), (Err(Failure::Unflushed), Ok(0)));
}

#[test]
fn a_flush_that_was_in_flight_tells_a_lane_alone_and_not_its_neighbours() {
    let mut alone = Laned::new();
    alone.submit_flush();
    alone.reconnect();
    assert_eq!(alone.done.pop().unwrap().result, Err(Failure::Unflushed));
    assert_eq!(alone.flush(), Ok(0));
    let flush_epoch = FlushEpoch::default();
    let mut one = Laned::attached(1, Some(&flush_epoch));
    let mut two = Laned::attached(1, Some(&flush_epoch));
    one.submit_flush();
    one.reconnect();
    assert_eq!(one.done.pop().unwrap().result, Err(Failure::Unflushed));
    // The other lane had a write answered after that, and learned of the loss only afterwards.
    two.reconnect();
    assert_eq!((two.flush(), one.flush()), (Err(Failure::Unflushed), Ok(0)));
}

#[test]
fn a_write_whose_answer_was_held_back_is_not_reported_after_its_loss() {
    for (told, result) in [(false, Ok(0)), (true, Err(Failure::Interrupted))] {
        let flush_epoch = FlushEpoch::default();
        let mut one = Laned::attached(1, Some(&flush_epoch));
        let mut two = Laned::attached(1, Some(&flush_epoch));
        let write = Command::raw_to_controller(Sqe::write(Nsid::new(1), 0, 1), 512);
        one.core.submit(write, Some(vec![1; 512]), 9).unwrap();
        assert!(one.core.ring());
        let mut sent = Vec::new();
        one.core.for_each_piece(|piece| {
            sent.extend_from_slice(piece);
            true
        });
        // The kernel has not taken the last byte, as far as the lane knows.
        one.core.on_sent(sent.len() - 1);
        let answer = one.peer.exchange(&sent);
        one.core.on_bytes(&mut &answer[..], 0, &mut |_| panic!("its bytes are still referred to")).unwrap();
        if told {
            two.reconnect();
            assert_eq!(two.flush(), Err(Failure::Unflushed));
        }
        one.core.detach(1);
        one.core.drain(&mut |completion| assert_eq!(completion.result, result));
        assert_eq!(one.core.outstanding(), 0);
    }
}

#[test]
fn writes_whose_answers_were_held_back_end_in_the_order_of_their_submission() {
    let mut lane = Laned::attached(1, None);
    for user in 1..=3 {
        let write = Command::raw_to_controller(Sqe::write(Nsid::new(1), 0, 1), 512);
        lane.core.submit(write, Some(vec![1; 512]), user).unwrap();
    }
    assert!(lane.core.ring());
    let mut sent = Vec::new();
    lane.core.for_each_piece(|piece| {
        sent.extend_from_slice(piece);
        true
    });
    // The kernel has taken no data, as far as the lane knows.
    lane.core.on_sent(1);
    let answers = lane.peer.exchange(&sent);
    lane.core.on_bytes(&mut &answers[..], 0, &mut |_| panic!("their bytes are still referred to")).unwrap();
    lane.core.detach(1);
    let mut ended = Vec::new();
    lane.core.drain(&mut |completion| ended.push((completion.user, completion.result)));
    assert_eq!(ended, [(1, Ok(0)), (2, Ok(0)), (3, Ok(0))]);
}

/// An event for a lane whose namespaces are sometimes unreachable.
#[derive(Clone, Debug)]
enum Step {
    Read(u32),
    Write(u32),
    Flush,
    Pair,
    /// The next commands end with these statuses.
    Answer(Vec<u16>),
    /// The ANA log reports these states of namespaces 1 and 2.
    Ana(u8, u8),
    /// Time passes, ms.
    Wait(u32),
    Cancel(u64),
    /// The socket takes no bytes until the next connection.
    Stall,
    Reconnect,
}

fn step() -> impl Strategy<Value = Step> {
    let status = prop::sample::select(vec![
        0, 0, 0x300, 0x302, 0x303, 0x301, 0x082, 0x021, 0x022, 0x006, 0x009, 0x360,
    ]);
    let state = prop::sample::select(vec![1u8, 1, 2, 3, 3, 4, 15]);
    prop_oneof![
        4 => (1u32..3).prop_map(Step::Read),
        4 => (1u32..3).prop_map(Step::Write),
        1 => Just(Step::Flush),
        2 => Just(Step::Pair),
        3 => prop::collection::vec(status, 1..12).prop_map(Step::Answer),
        3 => (state.clone(), state).prop_map(|(one, two)| Step::Ana(one, two)),
        3 => (0u32..40_000).prop_map(Step::Wait),
        2 => (0u64..60).prop_map(Step::Cancel),
        1 => Just(Step::Stall),
        2 => Just(Step::Reconnect),
    ]
}

fn inaccessible(states: [u8; 2]) -> Inaccessible {
    let states = (1..).zip(states).map(|(nsid, state)| (Nsid::new(nsid), AnaState::from_raw(state)));
    let barred = states.filter(|(_, state)| state.raw() > 2);
    barred.map(|(nsid, state)| (nsid, Barrier::Ana(state))).collect()
}

proptest! {
    /// Whatever happens to a path, each command ends once, and none is held longer than allowed.
    #[test]
    fn commands_that_are_held_end_exactly_once(steps in prop::collection::vec(step(), 1..60)) {
        let mut lane = Laned::new();
        let (mut user, mut taken) = (0u64, Vec::new());
        let mut statuses = VecDeque::new();
        for step in steps {
            let mut submitted = 1;
            match step {
                Step::Read(nsid) if lane.core.has_room(1) => {
                    let read = Command::raw_from_controller(Sqe::read(Nsid::new(nsid), 0, 1), 512).read_only();
                    lane.core.submit(read, Some(vec![0; 512]), user).unwrap();
                }
                Step::Write(nsid) if lane.core.has_room(1) => {
                    let write = Command::raw_to_controller(Sqe::write(Nsid::new(nsid), 0, 1), 512).idempotent();
                    lane.core.submit(write, Some(vec![1; 512]), user).unwrap();
                }
                Step::Flush if lane.core.has_room(1) => {
                    lane.core.submit(Command::raw(Sqe::flush(Nsid::new(1))).read_only(), None, user).unwrap();
                }
                Step::Pair if lane.core.has_room(2) => {
                    lane.submit_pair([user, user + 1]);
                    submitted = 2;
                }
                other => {
                    submitted = 0;
                    match other {
                        Step::Answer(codes) => {
                            statuses = codes.into_iter().map(Status::from_code).collect();
                            lane.peer.statuses = statuses.clone();
                        }
                        Step::Ana(one, two) => lane.core.on_inaccessible(&inaccessible([one, two])),
                        Step::Wait(ms) => lane.run_until(lane.now_ns + u64::from(ms) * 1_000_000),
                        Step::Cancel(user) => drop(lane.core.cancel(user)),
                        Step::Stall => lane.is_stalled = true,
                        Step::Reconnect => {
                            lane.reconnect();
                            lane.peer.statuses = statuses.clone();
                        }
                        _ => {}
                    }
                }
            }
            taken.extend(user..user + submitted);
            user += submitted;
            lane.step();
        }
        // The path stays as it is: held commands end at their deadline at the latest.
        lane.is_stalled = false;
        lane.peer.statuses.clear();
        if !lane.core.is_live() {
            lane.reconnect();
        }
        lane.run_until(lane.now_ns + 31 * SECOND);
        prop_assert_eq!((lane.core.outstanding(), lane.core.next_deadline()), (0, None));
        let mut ended: Vec<u64> = lane.done.iter().map(|completion| completion.user).collect();
        ended.sort_unstable();
        prop_assert_eq!(ended, taken);
    }
}

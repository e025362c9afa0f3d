//! A target whose lanes and reactors are simulated by the test: only the control plane is real.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};

use linux::random::SplitMix64;
use linux::randomness::Randomness;
use nvlane_subsystem::access::HostRights;
use nvlane_subsystem::audit::Recorder;
use nvlane_subsystem::config::TlsPolicy;
use nvlane_subsystem::control::{Control, ControlSettings};
use nvlane_subsystem::lane_counters::LaneCounters;
use nvlane_subsystem::lane_end::LaneEnd;
use nvlane_subsystem::lane_id::{CommandId, LaneId};
use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::message::{
    Answer, Channel, Established, Joined, LaneMessage, Message, NewNamespace, Order, OrderAnswer, OrderKind,
    ReactorMessage, Request, RequestKind, Step, StepOutcome,
};
use nvlane_subsystem::rate_limit::RateLimits;
use nvlane_subsystem::state::{Detail, TargetState};
use nvlane_subsystem::subsystem::{Access, Subsystem};
use proto::Slot;
use security::tls::GeneratedKeys;
use store::{Backend, BlockStore, Geometry, Store};
use wire::fabrics::{ConnectCommand, ConnectData};
use wire::id::{Cntlid, Nsid, Qid};
use wire::nqn::{HostId, Nqn};
use wire::property::{Cc, CommandSetSelection, Property};
use wire::sqe::Sqe;
use wire::status::Status;
use wire::uuid::Uuid;
use wire::zerocopy::IntoBytes;

pub(crate) const SECOND_NS: u64 = 1_000_000_000;
pub(crate) const DISKS: &str = "nqn.2026-01.io.nvlane:disks";
pub(crate) const SERVICE: &str = "nqn.2026-01.io.nvlane:discovery";
pub(crate) const HOST: &str = "nqn.2026-01.io.nvlane:host-a";
pub(crate) const OTHER_HOST: &str = "nqn.2026-01.io.nvlane:host-b";

pub(crate) fn nqn(text: &str) -> Nqn {
    text.parse().unwrap()
}

/// Storage that is only a shape.
pub(crate) struct Shape(pub(crate) std::sync::Mutex<Geometry>);

impl Shape {
    pub(crate) fn blocks(block_bytes: u32, block_count: u64) -> Store {
        Self::of(Geometry {
            preferred_write_blocks: 8,
            preferred_deallocate_blocks: 4,
            ..Geometry::new(block_bytes, block_count)
        })
    }

    pub(crate) fn of(geometry: Geometry) -> Store {
        Store::Blocks(Arc::new(Self(std::sync::Mutex::new(geometry))))
    }
}

impl BlockStore for Shape {
    fn geometry(&self) -> Geometry {
        *self.0.lock().unwrap()
    }

    fn attach(&self) -> std::io::Result<Box<dyn Backend>> {
        Err(std::io::ErrorKind::Unsupported.into())
    }

    fn resize(&self, bytes: u64) -> std::io::Result<()> {
        let mut geometry = self.0.lock().unwrap();
        geometry.block_count = bytes / u64::from(geometry.block_bytes);
        Ok(())
    }

    fn reopen(&self) -> std::io::Result<()> {
        Ok(())
    }
}

/// Who connects.
#[derive(Clone)]
pub(crate) struct Host {
    pub(crate) nqn: Nqn,
    pub(crate) id: HostId,
}

pub(crate) fn host(name: &str) -> Host {
    let mut id = [0x11; 16];
    id[15] = name.bytes().fold(0, u8::wrapping_add);
    Host { nqn: nqn(name), id: HostId::from_bytes(id) }
}

/// A Connect as Linux sends it.
#[derive(Clone)]
pub(crate) struct ConnectSpec {
    pub(crate) command: ConnectCommand,
    pub(crate) host: Host,
    pub(crate) subnqn: String,
    pub(crate) cntlid: Cntlid,
}

impl ConnectSpec {
    pub(crate) fn admin(host: Host, subnqn: &str) -> Self {
        let command = ConnectCommand {
            recfmt: 0,
            qid: Qid::ADMIN,
            queue_entries: 32,
            attributes: wire::fabrics::ConnectAttributes::default(),
            kato_ms: 5000,
            near_partition: None,
        };
        Self { command, host, subnqn: subnqn.into(), cntlid: Cntlid::DYNAMIC }
    }

    pub(crate) fn io(host: Host, subnqn: &str, cntlid: Cntlid, qid: u16) -> Self {
        let mut spec = Self::admin(host, subnqn);
        spec.command.qid = Qid::new(qid);
        spec.command.queue_entries = 128;
        spec.command.kato_ms = 0;
        spec.cntlid = cntlid;
        spec
    }

    pub(crate) fn data(&self) -> Vec<u8> {
        ConnectData::new(self.host.id, self.cntlid, &nqn(&self.subnqn), &self.host.nqn).as_bytes().to_vec()
    }
}

/// What the lanes and reactors do by themselves.
#[derive(Clone, Copy)]
pub(crate) struct Habits {
    /// Lanes end as soon as they are ordered to.
    pub(crate) lanes_end: bool,
    /// Reactors serve a new table as soon as they get it.
    pub(crate) tables_are_taken: bool,
    /// Flushes are done at once.
    pub(crate) flushes_are_done: bool,
}

pub(crate) struct Target {
    pub(crate) control: Control,
    pub(crate) now_ns: u64,
    pub(crate) habits: Habits,
    /// Commands that were answered.
    pub(crate) answers: BTreeMap<CommandId, Answer>,
    /// Commands that were sent and are not answered.
    pub(crate) open: BTreeSet<CommandId>,
    /// Lanes that have ended.
    pub(crate) ended: BTreeSet<LaneId>,
    /// Messages that have not been acted upon.
    pub(crate) messages: Vec<(usize, Message)>,
    pub(crate) established: BTreeMap<LaneId, Established>,
    pub(crate) counters: BTreeMap<LaneId, Arc<LaneCounters>>,
    /// Where lanes come in.
    pub(crate) listener: u32,
    /// What protects the connections of Connects.
    pub(crate) channel: Channel,
    pub(crate) generated: Arc<GeneratedKeys>,
    pub(crate) local: Option<SocketAddr>,
    /// Where hosts come from.
    pub(crate) peer: SocketAddr,
    lane_count: u32,
    slots: BTreeMap<LaneId, u16>,
    reactor_count: u16,
    next_listener: u32,
}

impl Target {
    /// A target of two reactors with one subsystem, [`DISKS`], which has namespaces 1 and 3.
    pub(crate) fn new() -> Self {
        let mut target = Self::empty(Limits::default());
        target.apply(disks(Access::Any));
        target
    }

    pub(crate) fn empty(limits: Limits) -> Self {
        Self::named(limits, nqn(SERVICE))
    }

    /// A target with nothing in it, whose discovery service has this name.
    pub(crate) fn named(limits: Limits, discovery_nqn: Nqn) -> Self {
        let settings = ControlSettings {
            limits,
            reactor_count: 2,
            discovery_nqn,
            entropy: 42,
            randomness: Randomness::Simulated(SplitMix64::new(7)),
            now_ns: SECOND_NS,
            wall_ns: 1_000_000,
            audit: Recorder::default(),
        };
        let generated = Arc::<GeneratedKeys>::default();
        Self {
            control: Control::new(settings).with_generated_keys(Arc::clone(&generated)),
            now_ns: SECOND_NS,
            habits: Habits { lanes_end: true, tables_are_taken: true, flushes_are_done: true },
            answers: BTreeMap::new(),
            open: BTreeSet::new(),
            ended: BTreeSet::new(),
            messages: Vec::new(),
            established: BTreeMap::new(),
            counters: BTreeMap::new(),
            listener: 1,
            channel: Channel::Clear,
            generated,
            local: Some("192.0.2.5:4420".parse().unwrap()),
            peer: "192.0.2.77:40000".parse().unwrap(),
            lane_count: 0,
            slots: BTreeMap::new(),
            reactor_count: 2,
            next_listener: 1,
        }
    }

    /// A connection that has sent nothing yet.
    pub(crate) fn lane(&mut self) -> LaneId {
        self.lane_count += 1;
        let index = self.lane_count;
        let reactor = u16::try_from(index).unwrap() % self.reactor_count;
        LaneId { reactor, index, generation: 1 }
    }

    /// Sends a command and does not wait for its answer.
    pub(crate) fn send(&mut self, lane: LaneId, sqe: Sqe, data: &[u8]) -> CommandId {
        let slot = self.slots.entry(lane).or_default();
        *slot += 1;
        let command = CommandId { lane, slot: Slot::new(*slot) };
        self.open.insert(command);
        let counters = Arc::clone(self.counters.entry(lane).or_default());
        let kind = RequestKind::Command {
            slot: command.slot,
            channel: self.channel.clone(),
            sqe,
            data: data.into(),
            peer: Some(self.peer),
            listener: self.listener,
            local: self.local,
            tls: None,
            counters,
        };
        self.control.on_request(self.now_ns, Request { lane, kind });
        self.settle();
        command
    }

    /// The lane of an event request has a command of the same id by now.
    pub(crate) fn supersede(&mut self, request: CommandId) {
        let kind = RequestKind::Superseded { slot: request.slot };
        self.control.on_request(self.now_ns, Request { lane: request.lane, kind });
        self.settle();
    }

    /// The answer to a command, which must be there.
    pub(crate) fn answer(&mut self, command: CommandId) -> Answer {
        self.answers.remove(&command).unwrap_or_else(|| panic!("{command:?} has no answer"))
    }

    /// Sends a command that is answered at once.
    pub(crate) fn ask(&mut self, lane: LaneId, sqe: Sqe) -> Answer {
        self.ask_with(lane, sqe, &[])
    }

    pub(crate) fn ask_with(&mut self, lane: LaneId, sqe: Sqe, data: &[u8]) -> Answer {
        let command = self.send(lane, sqe, data);
        self.answer(command)
    }

    /// As [`ask`](Self::ask), for a command that must succeed.
    pub(crate) fn demand(&mut self, lane: LaneId, sqe: Sqe) -> Answer {
        let answer = self.ask(lane, sqe);
        assert_eq!(answer.status, Status::SUCCESS, "{sqe:?}");
        answer
    }

    /// The data of a command that must succeed.
    pub(crate) fn data(&mut self, lane: LaneId, sqe: Sqe) -> Vec<u8> {
        self.demand(lane, sqe).data.expect("data").into()
    }

    pub(crate) fn connect(&mut self, spec: &ConnectSpec) -> (LaneId, Answer) {
        let lane = self.lane();
        let answer = self.ask_with(lane, spec.command.to_sqe(), &spec.data());
        (lane, answer)
    }

    /// Connects the admin queue of `host`, which must succeed.
    pub(crate) fn associate(&mut self, host: Host, subnqn: &str) -> Association {
        let (admin, answer) = self.connect(&ConnectSpec::admin(host.clone(), subnqn));
        assert_eq!(answer.status, Status::SUCCESS);
        let cntlid = Cntlid::new(u16::try_from(answer.result).expect("nothing but the id"));
        Association { admin, cntlid, host, subnqn: subnqn.into(), io: Vec::new() }
    }

    /// An enabled association with this number of I/O queues.
    pub(crate) fn ready(&mut self, host: Host, subnqn: &str, queue_count: u16) -> Association {
        let mut association = self.associate(host, subnqn);
        self.enable(association.admin);
        for qid in 1..=queue_count {
            let spec = association.queue(qid);
            let (lane, answer) = self.connect(&spec);
            assert_eq!(answer.status, Status::SUCCESS);
            association.io.push(lane);
        }
        association
    }

    pub(crate) fn enable(&mut self, admin: LaneId) {
        let cc = Cc::new(CommandSetSelection::NVM);
        self.demand(admin, Sqe::property_set(Property::CC, cc.with_en(true).bits().into()));
    }

    pub(crate) fn property(&mut self, admin: LaneId, property: Property) -> u64 {
        self.demand(admin, Sqe::property_get(property)).result
    }

    /// The lane's connection is gone and nothing of it runs any more.
    pub(crate) fn end(&mut self, lane: LaneId) {
        self.open.retain(|command| command.lane != lane);
        self.ended.insert(lane);
        self.control.on_request(self.now_ns, Request { lane, kind: RequestKind::Ended(LaneEnd::Host) });
        self.settle();
    }

    /// The lane's reactor has closed it for a missed deadline. What it has begun may go on.
    pub(crate) fn expel(&mut self, lane: LaneId) {
        self.control.on_request(self.now_ns, Request { lane, kind: RequestKind::Expelled("reads nothing") });
        self.settle();
    }

    /// Reactor `reactor` serves the newest table it was sent.
    pub(crate) fn take_table(&mut self, reactor: u16) {
        let is_for_it = |(to, message): &(usize, Message)| match message {
            Message::Reactor(ReactorMessage::Table(table)) if *to == usize::from(reactor) => {
                Some(table.version)
            }
            _ => None,
        };
        let version = self.messages.iter().filter_map(is_for_it).max().expect("a table is on its way");
        self.messages.retain(|message| is_for_it(message).is_none());
        self.control.on_table_in_use(reactor, version);
        self.settle();
    }

    /// Lets time pass, as a driver would: to every deadline on the way.
    pub(crate) fn pass(&mut self, duration_ns: u64) {
        let end_ns = self.now_ns + duration_ns;
        while let Some(deadline_ns) = self.control.next_deadline_ns().filter(|at_ns| *at_ns <= end_ns) {
            self.now_ns = self.now_ns.max(deadline_ns);
            self.control.on_deadline(self.now_ns);
            self.settle();
        }
        self.now_ns = end_ns;
    }

    /// Carries out what comes out, as far as lanes and reactors do so by themselves.
    pub(crate) fn settle(&mut self) {
        while let Some((reactor, message)) = self.control.next_message() {
            match message {
                Message::Lane(LaneMessage::Answer(answer)) => {
                    assert_eq!(reactor, usize::from(answer.command.lane.reactor), "to the lane's reactor");
                    assert!(self.open.remove(&answer.command), "{answer:?} is one too many");
                    if let Some(established) = &answer.established {
                        self.established.insert(answer.command.lane, established.clone());
                    }
                    self.answers.insert(answer.command, *answer);
                }
                Message::Lane(LaneMessage::End(lane)) if self.habits.lanes_end => {
                    assert_eq!(reactor, usize::from(lane.reactor));
                    self.open.retain(|command| command.lane != lane);
                    self.ended.insert(lane);
                    let kind = RequestKind::Ended(LaneEnd::default());
                    self.control.on_request(self.now_ns, Request { lane, kind });
                }
                Message::Reactor(ReactorMessage::Table(table)) if self.habits.tables_are_taken => {
                    self.control.on_table_in_use(u16::try_from(reactor).unwrap(), table.version);
                }
                Message::Reactor(ReactorMessage::Flush { asked_by, .. }) if self.habits.flushes_are_done => {
                    self.control.on_flushed(asked_by);
                }
                message => {
                    if let Message::Lane(LaneMessage::Authenticated(lane, joined)) = &message
                        && let Some(established) = self.established.get_mut(lane)
                    {
                        established.joined = Some((**joined).clone());
                    }
                    self.messages.push((reactor, message));
                }
            }
        }
    }

    /// What the queue of a lane has of its controller.
    pub(crate) fn joined(&self, lane: LaneId) -> &Joined {
        self.established[&lane].joined.as_ref().expect("a queue of a controller")
    }

    /// Lanes that were ordered to end and have not yet.
    pub(crate) fn ending(&self) -> Vec<LaneId> {
        let lane = |(_, message): &(usize, Message)| match message {
            Message::Lane(LaneMessage::End(lane)) => Some(*lane),
            _ => None,
        };
        self.messages.iter().filter_map(lane).collect()
    }

    pub(crate) fn order(&mut self, kind: OrderKind) -> Receiver<OrderAnswer> {
        let (answers, receiver) = channel();
        self.control.on_order(self.now_ns, Order { kind, answers });
        self.settle();
        receiver
    }

    pub(crate) fn apply(&mut self, steps: Vec<Step>) -> Receiver<OrderAnswer> {
        let receiver = self.order(OrderKind::Apply(steps));
        let Ok(OrderAnswer::Applied(outcomes)) = receiver.try_recv() else { panic!("not applied") };
        assert!(outcomes.iter().all(StepOutcome::is_ok), "{outcomes:?}");
        receiver
    }

    pub(crate) fn state(&mut self) -> TargetState {
        let receiver = self.order(OrderKind::State(Detail::Lanes));
        let Ok(OrderAnswer::State(parts)) = receiver.try_recv() else { panic!("no state") };
        parts.complete(Vec::new()).0
    }

    /// Adds a listener on a free port of this machine, and returns its tag.
    pub(crate) fn listen(&mut self, subsystems: bool, discovery: bool) -> u32 {
        self.listen_with(subsystems, discovery, TlsPolicy::Off)
    }

    /// As [`listen`](Self::listen), with this policy of TLS.
    pub(crate) fn listen_with(&mut self, subsystems: bool, discovery: bool, tls: TlsPolicy) -> u32 {
        let socket = reactor::Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let entry = nvlane_subsystem::discovery::ListenerEntry {
            address: socket.address(),
            advertise: None,
            serves_subsystems: subsystems,
            serves_discovery: discovery,
            doorbell: None,
            tls,
        };
        let tag = self.next_listener;
        self.next_listener += 1;
        self.apply(vec![Step::AddListener { tag, entry, socket }]);
        tag
    }
}

/// An association as its host knows it.
#[derive(Clone)]
pub(crate) struct Association {
    pub(crate) admin: LaneId,
    pub(crate) cntlid: Cntlid,
    pub(crate) host: Host,
    pub(crate) subnqn: String,
    pub(crate) io: Vec<LaneId>,
}

impl Association {
    /// The Connect of one of its I/O queues.
    pub(crate) fn queue(&self, qid: u16) -> ConnectSpec {
        ConnectSpec::io(self.host.clone(), &self.subnqn, self.cntlid, qid)
    }
}

/// The subsystem every test knows.
pub(crate) fn disks(access: Access) -> Vec<Step> {
    vec![
        Step::AddSubsystem(subsystem(DISKS, access)),
        add_namespace(1, Shape::blocks(512, 1 << 21)),
        add_namespace(3, Shape::blocks(4096, 1 << 18)),
    ]
}

pub(crate) fn subsystem(name: &str, access: Access) -> Subsystem {
    Subsystem { serial: "SERIAL1".into(), ..Subsystem::new(nqn(name), access) }
}

pub(crate) fn namespace(nsid: u8, store: Store) -> NewNamespace {
    let id = [nsid; 16];
    NewNamespace {
        store,
        storage: format!("shape:{nsid}"),
        uuid: Uuid::from_bytes(id),
        nguid: id,
        rights: HostRights::ALL,
        limits: RateLimits::default(),
    }
}

pub(crate) fn add_namespace(nsid: u8, store: Store) -> Step {
    Step::AddNamespace {
        subsystem: nqn(DISKS),
        nsid: Nsid::new(nsid.into()),
        namespace: namespace(nsid, store),
    }
}

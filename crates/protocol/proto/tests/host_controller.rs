//! A host's controller state machine against a scripted controller: start-up, each of its failures, and operation.

use std::collections::VecDeque;
use std::time::Duration;

use nvlane_proto::controller::{Controller, PropertyEffect};
use nvlane_proto::host_controller::{
    Connected, ControllerError, ControllerSettings, Demand, HostController, Notice, QueueConnect, Request,
    RequestData, RequestId,
};
use nvlane_proto::host_namespaces::Geometry;
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::fabrics::{ConnectCommand, ConnectResult, InvalidParameter, PropertyGet, PropertySet};
use wire::feature::{Fid, SetFeatures};
use wire::id::{Cntlid, Nsid, Qid};
use wire::identify::capabilities::Cmic;
use wire::identify::command_set::NvmController;
use wire::identify::controller::IdentifyController;
use wire::identify::lists::write_nsid_list;
use wire::identify::{Cns, IdentifyCommand};
use wire::log::ana::{AnaLogWriter, AnaState};
use wire::opcode::{AdminOpcode, FabricsType};
use wire::property::{Cap, Vs};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

const SECOND: u64 = 1_000_000_000;

/// The request by which a host reads the limits of the NVM command set.
const READ_LIMITS: &str = "identify I/O command set specific controller";

fn settings() -> ControllerSettings {
    ControllerSettings {
        host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555".parse().unwrap(),
        hostid: "11111111-2222-3333-4444-555555555555".parse().unwrap(),
        subsystem: "nqn.2016-06.io.nvlane:test".parse().unwrap(),
        is_discovery: false,
        keep_alive_ms: 5000,
        queue_pairs: 4,
        is_flow_control_disabled: true,
    }
}

fn cap() -> Cap {
    Cap::from_bits(0).with_queue_entries_max(128).with_ready_timeout_ms(2000).with_css_nvm(true)
}

/// A controller with default answers that a test may replace.
struct Peer {
    properties: Controller,
    identify: IdentifyController,
    /// Sizes of namespaces 1, 2, …, blocks.
    namespaces: Vec<u64>,
    /// Property reads of CSTS until RDY is set.
    polls_until_ready: u32,
    host: HostController,
    now_ns: u64,
    sent: Vec<String>,
    open_events: u32,
    /// Outstanding event requests.
    events: AsyncEvents,
    notices: VecDeque<Notice>,
    /// Number of the command to refuse.
    refuse: Option<(usize, Status, u32)>,
    /// Answers to commands with these names.
    instead: Option<(&'static str, u64, Vec<u8>)>,
}

impl Peer {
    fn new(settings: ControllerSettings) -> Self {
        let mut identify = IdentifyController::fabrics();
        identify.set_cntlid(Cntlid::new(7));
        identify.set_in_capsule_bytes(8192);
        identify.maxcmd.set(128);
        identify.nn.set(16);
        identify.set_aer_limit(3);
        identify.set_oaes(AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY | AsyncEvents::ANA);
        Self {
            properties: Controller::new(cap(), Vs::V1_3),
            identify,
            namespaces: vec![1000, 2000],
            polls_until_ready: 0,
            host: HostController::new(settings),
            now_ns: SECOND,
            sent: Vec::new(),
            open_events: 0,
            events: AsyncEvents::empty(),
            notices: VecDeque::new(),
            refuse: None,
            instead: None,
        }
    }

    /// Answers requests until the host makes no more for now.
    fn run(&mut self) -> Result<(), ControllerError> {
        while let Some(request) = self.host.next_request(self.now_ns)? {
            let (name, answer) = self.answer(&request);
            self.sent.push(name);
            if let Some((number, status, dw0)) = self.refuse
                && number == self.sent.len()
            {
                self.host.on_completion(request.id, (status, dw0.into()), &[], self.now_ns)?;
                continue;
            }
            if let Some((name, result, data)) = &self.instead
                && self.sent.last().is_some_and(|sent| sent == name)
            {
                let answer = (Status::SUCCESS, *result);
                self.host.on_completion(request.id, answer, data, self.now_ns)?;
                continue;
            }
            if let Some((status, result, data)) = answer {
                self.host.on_completion(request.id, (status, result), &data, self.now_ns)?;
            }
        }
        self.notices.extend(std::iter::from_fn(|| self.host.next_notice()));
        Ok(())
    }

    /// Runs until the host has nothing to do before `until_ns`.
    fn run_until(&mut self, until_ns: u64) -> Result<(), ControllerError> {
        self.run()?;
        while let Some(deadline_ns) = self.host.next_deadline()
            && deadline_ns <= until_ns
        {
            self.now_ns = deadline_ns.max(self.now_ns);
            self.run()?;
        }
        self.now_ns = until_ns;
        self.run()
    }

    fn live(settings: ControllerSettings) -> Self {
        let mut peer = Self::new(settings);
        peer.run_until(2 * SECOND).unwrap();
        assert_eq!(peer.notices.pop_front(), Some(Notice::Live));
        peer
    }

    fn event(&mut self, event: AsyncEvent) -> Result<(), ControllerError> {
        self.open_events -= 1;
        let answer = (Status::SUCCESS, event.bits().into());
        self.host.on_completion(RequestId::Event, answer, &[], self.now_ns)
    }

    fn answer(&mut self, request: &Request) -> (String, Option<(Status, u64, Vec<u8>)>) {
        let sqe = &request.sqe;
        let data_length = if let RequestData::FromController(length) = request.data { length } else { 0 };
        let mut data = vec![0; data_length as usize];
        let done = |result: u64| Some((Status::SUCCESS, result, Vec::new()));
        match AdminOpcode::from_raw(sqe.opcode) {
            AdminOpcode::FABRICS => self.answer_fabrics(sqe),
            AdminOpcode::IDENTIFY => {
                let cns = IdentifyCommand::from_sqe(sqe).cns;
                match cns {
                    Cns::CONTROLLER => data.copy_from_slice(self.identify.as_bytes()),
                    Cns::ACTIVE_NAMESPACES => {
                        let nsids = (1..).map(Nsid::new).take(self.namespaces.len());
                        write_nsid_list(&mut data, sqe.nsid(), nsids);
                    }
                    Cns::NAMESPACE => {
                        let blocks = self.namespaces.get(sqe.nsid().get() as usize - 1).copied().unwrap_or(0);
                        data[..8].copy_from_slice(&blocks.to_le_bytes());
                        data[8..16].copy_from_slice(&blocks.to_le_bytes());
                        data[92] = 1;
                        data[130] = 12;
                    }
                    _ => return (format!("identify {cns}"), Some((Status::INVALID_FIELD, 0, Vec::new()))),
                }
                (format!("identify {cns}"), Some((Status::SUCCESS, 0, data)))
            }
            AdminOpcode::SET_FEATURES => {
                let set = SetFeatures::from_sqe(sqe);
                let dw0 = if set.fid == Fid::NUMBER_OF_QUEUES { 0x0002_0002 } else { 0 };
                if set.fid == Fid::ASYNC_EVENTS {
                    self.events = AsyncEvents::from_bits_retain(set.value);
                }
                (format!("set {}", set.fid), done(dw0))
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => {
                self.open_events += 1;
                ("event request".into(), None)
            }
            AdminOpcode::KEEP_ALIVE => ("keep alive".into(), done(0)),
            other => (other.to_string(), Some((Status::SUCCESS, 0, data))),
        }
    }

    fn answer_fabrics(&mut self, sqe: &Sqe) -> (String, Option<(Status, u64, Vec<u8>)>) {
        let answered = |name: String, result| (name, Some((Status::SUCCESS, result, Vec::new())));
        match sqe.fctype() {
            FabricsType::CONNECT => answered("connect".into(), ConnectResult::from_bits(7).bits().into()),
            FabricsType::PROPERTY_GET => {
                let get = PropertyGet::from_sqe(sqe);
                let name = format!("get {}", get.property);
                if name.contains("status") && self.polls_until_ready > 0 {
                    self.polls_until_ready -= 1;
                    return answered(name, 0);
                }
                let value = self.properties.on_property_get(get).unwrap();
                answered(name, value)
            }
            _ => {
                let set = PropertySet::from_sqe(sqe);
                if self.properties.on_property_set(set).unwrap() == PropertyEffect::ShutDown {
                    self.properties.shut_down_done();
                }
                answered(format!("set {}", set.property), 0)
            }
        }
    }
}

#[test]
fn the_way_up_is_the_one_that_every_target_knows() {
    let peer = Peer::live(settings());
    assert_eq!(
        peer.sent,
        [
            "connect",
            "get controller capabilities",
            "get version",
            "set controller configuration",
            "get controller status",
            "identify controller",
            "set number of queues",
            "set asynchronous event configuration",
            "event request",
            "event request",
            "event request",
            "identify active namespace list",
            "identify namespace identification descriptors",
            "identify namespace",
            "identify namespace identification descriptors",
            "identify namespace",
        ]
    );
    assert_eq!(peer.host.queue_pairs(), 3, "as many as granted");
    assert_eq!(peer.host.cntlid(), Cntlid::new(7));
    assert!(peer.host.is_live());
    assert_eq!((peer.host.cap(), peer.host.vs()), (cap(), Vs::V1_3));
    assert_eq!(peer.host.identify().map(|identify| identify.nn.get()), Some(16));
    assert_eq!(peer.host.limits().map(|limits| limits.in_capsule_bytes), Some(8192));
    let blocks: Vec<_> = peer.host.namespaces().iter().map(|info| info.geometry.unwrap()).collect();
    assert_eq!(blocks, [1000, 2000].map(|block_count| Geometry { lba_bytes: 4096, block_count }));
}

/// wire §19
#[test]
fn namespaces_are_inaccessible_as_the_ana_log_says() {
    let mut peer = Peer::new(settings());
    peer.identify.cmic = Cmic::ANA;
    peer.identify.nanagrpid.set(1);
    let mut log = vec![0; 4096];
    let mut writer = AnaLogWriter::new(&mut log, 1).unwrap();
    writer.group(1, AnaState::CHANGE, 1, []).unwrap();
    let _ = writer.finish();
    peer.instead = Some(("Get Log Page", 0, log));
    peer.run_until(2 * SECOND).unwrap();
    assert!(peer.host.is_live());
    let expected = [1, 2].map(|nsid| (Nsid::new(nsid), AnaState::CHANGE));
    assert_eq!(peer.host.inaccessible(), expected, "{:?}", peer.sent);
}

/// wire §6.1
#[test]
fn only_io_queues_go_without_flow_control() {
    for is_flow_control_disabled in [false, true] {
        let settings = ControllerSettings { is_flow_control_disabled, ..settings() };
        for qid in [0, 1] {
            let connect = QueueConnect {
                qid: Qid::new(qid),
                cntlid: Cntlid::new(7),
                entries: 128,
                near_partition: None,
            };
            let command = ConnectCommand::from_sqe(&connect.command(&settings).0);
            let is_disabled = command.attributes.disable_sq_flow_control();
            assert_eq!(is_disabled, is_flow_control_disabled && qid == 1);
        }
    }
}

#[test]
fn a_discovery_controller_has_no_queues_and_no_namespaces() {
    let peer = Peer::live(ControllerSettings { is_discovery: true, keep_alive_ms: 0, ..settings() });
    let (up, events) = peer.sent.split_at(7);
    assert_eq!(up[5..], ["identify controller", "set asynchronous event configuration"]);
    assert_eq!(events, ["event request"; 3]);
    assert_eq!(peer.host.next_deadline(), None, "no keep-alive was asked for");
}

#[test]
fn a_host_asks_for_the_events_that_it_acts_on_and_the_controller_has() {
    assert_eq!(Peer::live(settings()).events, AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::ANA);
    let discovery = ControllerSettings { is_discovery: true, ..settings() };
    assert_eq!(Peer::live(discovery).events, AsyncEvents::DISCOVERY);
    let mut peer = Peer::new(settings());
    peer.identify.set_oaes(AsyncEvents::DISCOVERY);
    peer.run_until(2 * SECOND).unwrap();
    assert!(peer.host.is_live());
    assert!(!peer.sent.iter().any(|sent| sent == "set asynchronous event configuration"));
}

/// hostile H22
#[test]
fn a_refusal_at_any_step_ends_the_attempt_or_does_without() {
    let steps = Peer::live(settings()).sent.len();
    for number in 1..=steps {
        let mut peer = Peer::new(settings());
        peer.refuse = Some((number, Status::INTERNAL_ERROR.with_dnr(), 0));
        match peer.run_until(2 * SECOND) {
            Ok(()) => assert_eq!(peer.notices.pop_front(), Some(Notice::Live), "step {number}"),
            Err(error) => {
                assert!(number <= 8, "step {number}: {error}");
                assert_eq!(error.is_permanent(), number == 1, "only Connect knows of retries");
            }
        }
    }
}

#[test]
fn a_refused_connect_says_what_was_wrong() {
    let mut peer = Peer::new(settings());
    let status = Status::CONNECT_INVALID_PARAMETERS.with_dnr();
    peer.refuse = Some((1, status, InvalidParameter::SUBNQN.bits()));
    let error = peer.run().unwrap_err();
    assert!(error.to_string().ends_with("do not retry, subsystem name"), "{error}");
    let connect =
        QueueConnect { qid: Qid::new(1), cntlid: Cntlid::new(7), entries: 128, near_partition: None };
    for (parameter, name) in [
        (InvalidParameter::HOSTID, "host identifier"),
        (InvalidParameter::CNTLID, "controller id"),
        (InvalidParameter::HOSTNQN, "host name"),
        (InvalidParameter::QID, "queue id"),
        (InvalidParameter::SQSIZE, "queue size"),
        (InvalidParameter::KATO, "keep-alive timeout"),
        (InvalidParameter::command(46), "byte 46 of the command"),
        (InvalidParameter::data(20), "byte 20 of the data"),
    ] {
        let error = connect.on_completion(status, parameter.bits().into()).unwrap_err();
        assert!(error.to_string().ends_with(name), "{error}");
        assert!(error.is_permanent());
    }
}

/// hostile H20
#[test]
fn another_controller_than_ours_is_refused() {
    let connect =
        QueueConnect { qid: Qid::new(1), cntlid: Cntlid::new(7), entries: 128, near_partition: None };
    let connected = |demand| Ok(Connected { cntlid: Cntlid::new(7), demand });
    for (bits, demand) in [
        (0, Demand::None),
        (1 << 17, Demand::Authentication),
        (1 << 18, Demand::SecureChannel),
        (3 << 17, Demand::SecureChannel),
    ] {
        assert_eq!(connect.on_completion(Status::SUCCESS, 7 | bits), connected(demand));
    }
    let other = ControllerError::OtherController { expected: Cntlid::new(7), got: Cntlid::new(8) };
    assert_eq!(connect.on_completion(Status::SUCCESS, 8), Err(other));
    // Some controllers repeat it on the admin queue only.
    let silent = Connected { cntlid: Cntlid::new(0), demand: Demand::None };
    assert_eq!(connect.on_completion(Status::SUCCESS, 0), Ok(silent));
    let admin = QueueConnect { cntlid: Cntlid::DYNAMIC, ..connect };
    assert!(admin.on_completion(Status::SUCCESS, 0xffff).is_err());
    let mut peer = Peer::new(settings());
    peer.identify.set_cntlid(Cntlid::new(8));
    assert_eq!(peer.run(), Err(other));
}

#[test]
fn a_controller_gets_its_own_time_to_become_ready() {
    let mut peer = Peer::new(settings());
    peer.polls_until_ready = 20;
    peer.run_until(4 * SECOND).unwrap();
    assert_eq!(peer.notices.pop_front(), Some(Notice::Live));

    let mut peer = Peer::new(settings());
    peer.polls_until_ready = u32::MAX;
    let error = peer.run_until(4 * SECOND).unwrap_err();
    assert!(
        matches!(error, ControllerError::NotReady { waited } if (2000..2200).contains(&waited.as_millis())),
        "{error}"
    );
    assert!(peer.sent.len() < 60, "asked less and less often");
}

#[test]
fn a_controller_that_has_failed_is_given_up() {
    // CSTS.CFS, and all ones, as reads of a removed device return.
    for csts in [0b10, u64::from(u32::MAX)] {
        let mut peer = Peer::new(settings());
        peer.instead = Some(("get controller status", csts, Vec::new()));
        assert_eq!(peer.run(), Err(ControllerError::Failed), "{csts:#x}");
        assert!(!peer.host.is_live() && peer.host.limits().is_none());
    }
}

#[test]
fn a_controller_that_says_too_little_of_itself_is_refused() {
    let mut peer = Peer::new(settings());
    peer.instead = Some(("identify controller", 0, vec![0; 4095]));
    let status = Status::DATA_TRANSFER_ERROR;
    let error = ControllerError::Refused { command: "Identify Controller", status };
    assert_eq!(peer.run(), Err(error));
    let mut peer = Peer::new(settings());
    peer.identify.set_in_capsule_bytes(8192);
    let mut page = peer.identify.as_bytes().to_vec();
    page[1800] = 1;
    peer.instead = Some(("identify controller", 0, page));
    assert!(peer.run().is_err_and(ControllerError::is_permanent), "data that does not follow its command");
}

/// wire §10.4
#[test]
fn where_there_are_command_sets_their_limits_are_asked_for() {
    let mut nvm = NvmController::default();
    nvm.dmrl = 8;
    nvm.dmrsl.set(1000);
    for (data, ranges, blocks) in
        [(nvm.as_bytes().to_vec(), 8, Some(1000)), (vec![0xFF; 100], wire::nvm::RANGES_MAX, None)]
    {
        let mut peer = Peer::new(settings());
        peer.properties = Controller::new(cap().with_css_csi(true), Vs::V1_3);
        peer.instead = Some((READ_LIMITS, 0, data));
        peer.run_until(2 * SECOND).unwrap();
        assert_eq!(peer.sent[5..7], ["identify controller", READ_LIMITS]);
        let limits = peer.host.limits().expect("it is live");
        assert_eq!((limits.deallocate_ranges_max, limits.deallocate_range_blocks_max), (ranges, blocks));
    }
}

#[test]
fn a_refused_keep_alive_ends_the_association() {
    let mut peer = Peer::live(settings());
    let status = Status::INVALID_OPCODE.with_dnr();
    peer.refuse = Some((peer.sent.len() + 1, status, 0));
    let error = peer.run_until(peer.now_ns + 3 * SECOND).unwrap_err();
    assert_eq!(error, ControllerError::Refused { command: "Keep Alive", status });
}

#[test]
fn keep_alives_go_out_at_half_their_time_and_must_be_answered() {
    let mut peer = Peer::live(settings());
    peer.sent.clear();
    peer.run_until(peer.now_ns + 26 * SECOND).unwrap();
    assert_eq!(peer.sent, vec!["keep alive"; 10]);

    let mut peer = Peer::live(settings());
    let mut now_ns = peer.host.next_deadline().unwrap();
    assert_eq!(peer.host.next_request(now_ns).unwrap().unwrap().id, RequestId::KeepAlive);
    now_ns += 5 * SECOND;
    assert_eq!(peer.host.next_deadline(), Some(now_ns));
    let error = peer.host.next_request(now_ns).unwrap_err();
    assert_eq!(error, ControllerError::KeepAliveUnanswered { waited: Duration::from_secs(5) });
    assert!(!error.is_permanent());
}

#[test]
fn a_changed_namespace_is_found_and_told() {
    let mut peer = Peer::live(settings());
    peer.namespaces = vec![1000, 3000, 500];
    peer.event(AsyncEvent::NAMESPACE_ATTRIBUTE).unwrap();
    peer.sent.clear();
    peer.run().unwrap();
    assert_eq!(peer.notices, [Notice::NamespacesChanged(vec![Nsid::new(2), Nsid::new(3)])]);
    assert_eq!(peer.host.namespaces().len(), 3);
    assert!(peer.sent.contains(&"event request".into()), "asks to be told again");
    peer.event(AsyncEvent::NAMESPACE_ATTRIBUTE).unwrap();
    peer.notices.clear();
    peer.run().unwrap();
    assert!(peer.notices.is_empty(), "nothing has changed");
}

#[test]
fn a_look_that_is_wanted_during_another_follows_it() {
    let mut peer = Peer::live(settings());
    peer.sent.clear();
    for _ in 0..3 {
        peer.host.rescan();
    }
    peer.run().unwrap();
    let lists = peer.sent.iter().filter(|name| *name == "identify active namespace list").count();
    assert_eq!(lists, 2, "one for the first, one for all others");
    let mut peer = Peer::live(ControllerSettings { is_discovery: true, ..settings() });
    peer.sent.clear();
    peer.host.rescan();
    peer.run().unwrap();
    assert!(peer.sent.is_empty(), "a discovery controller has no namespaces");
}

#[test]
fn a_changed_discovery_log_is_told_once() {
    let mut peer = Peer::live(ControllerSettings { is_discovery: true, ..settings() });
    for _ in 0..2 {
        peer.event(AsyncEvent::DISCOVERY_CHANGE).unwrap();
    }
    peer.run().unwrap();
    assert_eq!(peer.notices, [Notice::DiscoveryChanged]);
}

/// hostile H21
#[test]
fn a_flood_of_events_is_bounded_work() {
    let mut peer = Peer::live(settings());
    let start_ns = peer.now_ns;
    let mut count = 0;
    while peer.now_ns < start_ns + 10 * SECOND {
        while peer.open_events > 0 {
            peer.event(AsyncEvent::FIRMWARE).unwrap();
            count += 1;
        }
        peer.run().unwrap();
        assert!(peer.notices.len() <= count && count < 1000);
        if peer.open_events == 0 {
            let deadline_ns = peer.host.next_deadline().unwrap();
            peer.run_until(deadline_ns).unwrap();
        }
    }
    assert!(count < 250, "{count} events in ten seconds");
}

#[test]
fn refused_event_requests_are_not_repeated() {
    let mut peer = Peer::live(settings());
    assert_eq!(peer.open_events, 3);
    for _ in 0..3 {
        let answer = (Status::ABORTED_SQ_DELETED, 0);
        peer.host.on_completion(RequestId::Event, answer, &[], peer.now_ns).unwrap();
    }
    peer.run().unwrap();
    assert_eq!(peer.open_events, 3);
}

#[test]
fn a_persistent_internal_error_ends_the_association() {
    let mut peer = Peer::live(settings());
    assert_eq!(peer.event(AsyncEvent::PERSISTENT_INTERNAL_ERROR), Err(ControllerError::InternalError));
}

#[test]
fn a_shutdown_waits_for_the_controller_but_not_for_ever() {
    let mut peer = Peer::live(settings());
    peer.sent.clear();
    peer.host.shut_down();
    peer.run().unwrap();
    assert_eq!(peer.notices, [Notice::Down]);
    assert_eq!(peer.sent, ["set controller configuration", "get controller status"]);

    let mut peer = Peer::live(settings());
    peer.host.shut_down();
    peer.refuse = Some((peer.sent.len() + 1, Status::INTERNAL_ERROR, 0));
    peer.run().unwrap();
    peer.host.shut_down();
    peer.run().unwrap();
    assert_eq!(peer.notices, [Notice::Down], "refused, and down once");

    let mut peer = Peer::live(settings());
    peer.host.shut_down();
    peer.polls_until_ready = u32::MAX;
    peer.run().unwrap();
    peer.now_ns += SECOND;
    peer.run().unwrap();
    assert!(peer.notices.is_empty(), "it has all of its time");
    peer.run_until(peer.now_ns + SECOND).unwrap();
    assert_eq!(peer.notices, [Notice::Down]);

    let mut peer = Peer::new(settings());
    peer.host.shut_down();
    peer.run().unwrap();
    assert_eq!(peer.notices, [Notice::Down], "never enabled: nothing to do");
}

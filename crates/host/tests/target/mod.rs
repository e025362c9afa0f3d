//! A target in this process: one subsystem with namespaces in memory, scripted by the test.
#![allow(dead_code, unreachable_pub, clippy::cast_possible_truncation, clippy::needless_pass_by_value)]

use std::collections::{HashMap, HashSet};
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use nvlane_host::{Address, Association, HostIdentity, Options};
use proto::controller::{Controller, PropertyEffect};
use proto::controller_queue::{Event, QueueSettings};
use proto::{ControllerQueue, Piece, Slot, Violation};
use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::discovery::{DiscoveryEntry, DiscoveryHeader};
use wire::fabrics::{ConnectCommand, ConnectData, ConnectResult, InvalidParameter, PropertyGet, PropertySet};
use wire::feature::{Fid, GetFeatures, NumberOfQueues, SetFeatures};
use wire::id::{Cntlid, Nsid, Qid};
use wire::identify::capabilities::{Cmic, Fuses, Oncs};
use wire::identify::controller::IdentifyController;
use wire::identify::lists::write_nsid_list;
use wire::identify::{Cns, IdentifyCommand};
use wire::log::ana::{ANA_GROUPS_ONLY, AnaLogWriter, AnaState};
use wire::log::{GetLogPage, Lid};
use wire::nqn::Nqn;
use wire::nvm::{BlockCommand, CopyCommand, DatasetManagement};
use wire::opcode::{AdminOpcode, FabricsType, NvmOpcode};
use wire::pdu::IcResp;
use wire::property::{Cap, Vs};
use wire::sgl::DataPointer;
use wire::sqe::{Fuse, Sqe};
use wire::status::Status;
use zerocopy::{FromBytes, IntoBytes};

pub const NQN: &str = "nqn.2016-06.io.nvlane:test";

/// The reaction to a command that a test requests.
pub enum Reaction {
    /// Execute the command normally.
    Execute,
    /// Do not execute it, and send this status.
    Status(Status),
    /// Execute it, and send this status.
    ExecuteThen(Status),
    /// Do nothing until it is aborted or the connection ends.
    Hold,
    /// Execute it, and never answer.
    ExecuteSilently,
    /// Close the connection without an answer.
    Close,
    /// Execute it, and close the connection without an answer.
    ExecuteAndClose,
    /// Send these bytes in place of an answer.
    Raw(Vec<u8>),
}

/// A command as a test sees it.
pub struct Seen<'a> {
    pub qid: u16,
    pub cntlid: u16,
    pub sqe: &'a Sqe,
    pub data: &'a [u8],
}

type Script = Box<dyn FnMut(&Seen<'_>) -> Reaction + Send>;
type IcRespHook = Box<dyn Fn(IcResp) -> Vec<u8> + Send + Sync>;

/// Configuration of the target.
pub struct Config {
    pub settings: QueueSettings,
    pub cap: Cap,
    pub vs: Vs,
    pub identify: IdentifyController,
    pub lba_bytes: u32,
    /// Sizes of namespaces 1, 2, … in blocks; 0 for one that does not exist.
    pub namespaces: Vec<u64>,
    pub queue_pairs: u16,
    /// Maximum bytes of one send.
    pub chunk: usize,
    /// Sends this instead of an ICResp.
    pub ic_resp: Option<IcRespHook>,
    pub entries: Vec<DiscoveryEntry>,
    pub is_discovery: bool,
    pub abort_works: bool,
    /// Whether a test sees a write before its data was requested, rather than after.
    pub script_before_data: bool,
}

impl Config {
    /// Whether to report ANA: all namespaces are in group 1, whose state is [`State::ana_state`].
    pub fn with_ana() -> Self {
        let mut config = Self::default();
        config.identify.cmic = Cmic::ANA;
        config.identify.anagrpmax.set(1);
        config.identify.nanagrpid.set(1);
        let events = AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY | AsyncEvents::ANA;
        config.identify.set_oaes(events);
        config
    }
}

impl Default for Config {
    fn default() -> Self {
        let mut identify = IdentifyController::fabrics();
        identify.set_in_capsule_bytes(8192);
        identify.maxcmd.set(1024);
        identify.nn.set(16);
        identify.set_aer_limit(4);
        identify.set_abort_limit(4);
        identify.set_oaes(AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY);
        identify.set_oncs(
            Oncs::COMPARE | Oncs::WRITE_ZEROES | Oncs::DATASET_MANAGEMENT | Oncs::VERIFY | Oncs::COPY,
        );
        identify.set_fuses(Fuses::COMPARE_AND_WRITE);
        identify.vwc = identify.vwc.with_present(true);
        identify.set_serial("NVL0").unwrap();
        identify.set_model("nvlane test").unwrap();
        identify.set_firmware("1").unwrap();
        Self {
            settings: QueueSettings::default(),
            cap: Cap::from_bits(0)
                .with_queue_entries_max(1025)
                .with_ready_timeout_ms(1000)
                .with_css_nvm(true),
            vs: Vs::V1_4,
            identify,
            lba_bytes: 512,
            namespaces: vec![8192],
            queue_pairs: 8,
            chunk: usize::MAX,
            ic_resp: None,
            entries: Vec::new(),
            is_discovery: false,
            abort_works: true,
            script_before_data: false,
        }
    }
}

pub struct Target {
    pub address: SocketAddr,
    /// Status of I/O commands in the ANA group's state, 0 for success: for scripts.
    pub is_away: Arc<AtomicU32>,
    inner: Arc<Inner>,
}

pub struct Inner {
    config: Config,
    state: Mutex<State>,
    /// Signalled when a connection has ended.
    ended: Condvar,
    is_open: AtomicBool,
    next_connection: AtomicU32,
    /// PDUs, and further bytes, to send before every connection is closed.
    cut: Mutex<Option<(u32, usize)>>,
    /// PDUs, and further bytes, to send before falling silent with all connections open.
    stall: Mutex<Option<(u32, usize)>>,
}

#[derive(Default)]
pub struct State {
    pub memory: Vec<Vec<u8>>,
    pub namespaces: Vec<u64>,
    script: Option<Script>,
    connections: HashMap<u32, TcpStream>,
    next_cntlid: u16,
    /// Existing controllers: Connect of an I/O queue needs one.
    controllers: HashSet<u16>,
    /// Commands to abort: controller, queue, cid.
    aborts: HashSet<(u16, u16, u16)>,
    aborted: HashSet<(u16, u16, u16)>,
    events: Vec<AsyncEvent>,
    pub generation: u64,
    pub entries: Vec<DiscoveryEntry>,
    /// Admin commands seen, by opcode.
    pub admin_seen: Vec<u8>,
    pub connects: Vec<(u16, u16)>,
    /// TermReqs of the host: fatal error status and information.
    pub term_reqs: Vec<(u16, u32)>,
    pub refuse_connect: Option<(Status, u32)>,
    pub refuse_io_connect: bool,
    /// Commands in execution or held.
    pub open_count: u32,
    /// State of the ANA group that all namespaces are in, if ANA is configured.
    pub ana_state: AnaState,
    /// Number of reads of the ANA log.
    pub ana_reads: u32,
}

impl Target {
    pub fn new() -> Self {
        Self::with(Config::default())
    }

    pub fn with(config: Config) -> Self {
        Self::at("127.0.0.1:0".parse().unwrap(), config)
    }

    pub fn at(address: SocketAddr, config: Config) -> Self {
        let listener = TcpListener::bind(address).unwrap();
        let address = listener.local_addr().unwrap();
        let lba_bytes = u64::from(config.lba_bytes);
        let state = State {
            memory: config.namespaces.iter().map(|blocks| vec![0; (blocks * lba_bytes) as usize]).collect(),
            namespaces: config.namespaces.clone(),
            next_cntlid: 1,
            entries: config.entries.clone(),
            generation: 1,
            ana_state: AnaState::OPTIMIZED,
            ..State::default()
        };
        let inner = Arc::new(Inner {
            config,
            state: Mutex::new(state),
            ended: Condvar::new(),
            is_open: AtomicBool::new(true),
            next_connection: AtomicU32::new(0),
            cut: Mutex::new(None),
            stall: Mutex::new(None),
        });
        listener.set_nonblocking(true).unwrap();
        let accepting = Arc::clone(&inner);
        std::thread::spawn(move || {
            while Arc::strong_count(&accepting) > 1 || accepting.is_open.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((stream, _)) if accepting.is_open.load(Ordering::Relaxed) => {
                        let inner = Arc::clone(&accepting);
                        std::thread::spawn(move || Connection::serve(inner, stream));
                    }
                    Ok(_) => {}
                    Err(_) => std::thread::sleep(Duration::from_micros(500)),
                }
                if accepting.state().next_cntlid == u16::MAX {
                    return;
                }
            }
        });
        Self { address, is_away: Arc::new(AtomicU32::new(0)), inner }
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.inner.state()
    }

    pub fn address(&self) -> Address {
        Address::from(self.address).with_subsystem(NQN.parse().unwrap())
    }

    /// Sets the reaction to commands from now on.
    pub fn script(&self, script: impl FnMut(&Seen<'_>) -> Reaction + Send + 'static) {
        self.state().script = Some(Box::new(script));
    }

    pub fn obey(&self) {
        self.state().script = None;
    }

    /// Closes every connection, as if the target died.
    pub fn drop_connections(&self) {
        for stream in self.state().connections.values() {
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Accepts connections from now on, or refuses them.
    pub fn set_open(&self, is_open: bool) {
        self.inner.is_open.store(is_open, Ordering::Relaxed);
    }

    /// Ids of the open connections.
    pub fn connections(&self) -> Vec<u32> {
        self.state().connections.keys().copied().collect()
    }

    /// Waits until the target has processed all input of these connections and noticed their ends.
    pub fn wait_ended(&self, connections: &[u32]) {
        let is_open = |state: &mut State| connections.iter().any(|id| state.connections.contains_key(id));
        let limit = Duration::from_secs(30);
        let (state, waited) = self.inner.ended.wait_timeout_while(self.state(), limit, is_open).unwrap();
        drop(state);
        assert!(!waited.timed_out(), "a connection stays open");
    }

    /// Closes all connections after `pdus` PDUs and `bytes` bytes of the next one, once.
    pub fn cut_after(&self, pdus: u32, bytes: usize) {
        *self.inner.cut.lock().unwrap() = Some((pdus, bytes));
    }

    /// Falls silent after `pdus` PDUs and `bytes` bytes of the next one. All connections stay open.
    pub fn stall_after(&self, pdus: u32, bytes: usize) {
        *self.inner.stall.lock().unwrap() = Some((pdus, bytes));
    }

    /// Ends the silence.
    pub fn unstall(&self) {
        *self.inner.stall.lock().unwrap() = None;
    }

    /// Whether the target has fallen silent.
    pub fn is_stalled(&self) -> bool {
        matches!(*self.inner.stall.lock().unwrap(), Some((0, 0)))
    }

    pub fn raise(&self, event: AsyncEvent) {
        self.state().events.push(event);
    }

    /// Changes the state of the ANA group; hosts get the event if `is_told`.
    pub fn set_ana(&self, ana_state: AnaState, is_told: bool) {
        let code = match ana_state {
            AnaState::INACCESSIBLE => Status::ANA_INACCESSIBLE.code(),
            AnaState::PERSISTENT_LOSS => Status::ANA_PERSISTENT_LOSS.code(),
            AnaState::CHANGE => Status::ANA_TRANSITION.code(),
            _ => 0,
        };
        self.is_away.store(code.into(), Ordering::Relaxed);
        let mut state = self.state();
        state.ana_state = ana_state;
        if is_told {
            state.events.push(AsyncEvent::ANA_CHANGE);
        }
    }

    pub fn connect(&self, options: Options) -> Association {
        Association::connect(&self.address(), options).unwrap_or_else(|error| panic!("{error}"))
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        self.set_open(false);
        self.state().next_cntlid = u16::MAX;
        self.drop_connections();
    }
}

/// Options for tests: short timeouts, and the same host identity each time.
pub fn options() -> Options {
    let identity = HostIdentity::from_uuid("11111111-2222-3333-4444-555555555555".parse().unwrap());
    let mut options =
        Options { identity: Some(identity), ..Options::default() }.tuned(|tuning| tuning.seed = Some(1));
    options.reconnect.delay_ns_first = 2_000_000;
    options.reconnect.delay_ns_max = 20_000_000;
    options.connect_timeout = Duration::from_millis(500);
    options
}

impl Inner {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

struct Connection {
    inner: Arc<Inner>,
    stream: TcpStream,
    queue: ControllerQueue<Vec<u8>, Vec<u8>>,
    properties: Controller,
    qid: u16,
    cntlid: u16,
    event_slots: Vec<Slot>,
    held: Vec<(Slot, u16)>,
    writes: HashMap<Slot, Sqe>,
    /// A Compare that waits for its fused Write.
    fused: Option<(Slot, Sqe, Vec<u8>)>,
    is_over: bool,
}

impl Connection {
    fn serve(inner: Arc<Inner>, stream: TcpStream) {
        stream.set_nodelay(true).unwrap();
        stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        let id = inner.next_connection.fetch_add(1, Ordering::Relaxed);
        inner.state().connections.insert(id, stream.try_clone().unwrap());
        let mut connection = Self {
            queue: ControllerQueue::new(inner.config.settings),
            properties: Controller::new(inner.config.cap, inner.config.vs),
            inner: Arc::clone(&inner),
            stream,
            qid: 0,
            cntlid: 0,
            event_slots: Vec::new(),
            held: Vec::new(),
            writes: HashMap::new(),
            fused: None,
            is_over: false,
        };
        connection.run();
        let _ = connection.stream.shutdown(Shutdown::Both);
        let mut state = inner.state();
        state.connections.remove(&id);
        inner.ended.notify_all();
        if connection.qid == 0 {
            state.controllers.remove(&connection.cntlid);
        }
    }

    fn run(&mut self) {
        let mut bytes = vec![0; 128 << 10];
        while !self.is_over {
            match self.stream.read(&mut bytes) {
                Ok(0) => return,
                Ok(count) => self.on_bytes(&bytes[..count]),
                Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {}
                Err(_) => return,
            }
            self.look();
            self.send();
        }
    }

    fn on_bytes(&mut self, bytes: &[u8]) {
        let mut input = bytes;
        loop {
            let event = match self.queue.next_event(&mut input) {
                Ok(Some(event)) => event,
                Ok(None) => return,
                Err(violation) => {
                    if let Violation::EndedByPeer { fes, fei } = violation {
                        self.inner.state().term_reqs.push((fes.raw(), fei));
                    }
                    self.is_over = true;
                    return;
                }
            };
            match event {
                Event::Initialised(_) => self.on_initialised(),
                Event::Command { slot, sqe, data } => {
                    let data = data.to_vec();
                    self.on_command(slot, sqe, data);
                }
                Event::DataReceived { slot, is_intact } => {
                    let sqe = self.writes.remove(&slot).expect("asked for");
                    let data = self.queue.take_buffer(slot);
                    if is_intact {
                        self.on_data(slot, sqe, data);
                    } else {
                        self.queue.complete(slot, Status::TRANSIENT_TRANSPORT_ERROR, 0);
                    }
                }
                Event::Refused { .. } => {}
            }
            if self.is_over {
                return;
            }
        }
    }

    fn on_initialised(&mut self) {
        if let Some(hook) = &self.inner.config.ic_resp {
            let mut bytes = Vec::new();
            self.queue.caravan().ring();
            for piece in self.queue.caravan().pieces() {
                let Piece::Bytes(piece) = piece else { panic!("a header") };
                bytes.extend_from_slice(piece);
            }
            let count = bytes.len();
            self.queue.caravan().on_sent(count, drop);
            let answer = hook(IcResp::read_from_bytes(&bytes[..128]).unwrap());
            self.is_over = answer.is_empty();
            let _ = self.stream.write_all(&answer);
        }
    }

    /// Events to send and commands to abort.
    fn look(&mut self) {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.state();
        if self.qid == 0 {
            while !self.event_slots.is_empty() && !state.events.is_empty() {
                let (slot, event) = (self.event_slots.remove(0), state.events.remove(0));
                self.queue.complete(slot, Status::SUCCESS, event.bits().into());
            }
        }
        let (cntlid, qid) = (self.cntlid, self.qid);
        let mut index = 0;
        while index < self.held.len() {
            let (slot, cid) = self.held[index];
            if state.aborts.remove(&(cntlid, qid, cid)) {
                self.held.swap_remove(index);
                self.queue.complete(slot, Status::ABORT_REQUESTED, 0);
            } else {
                index += 1;
            }
        }
    }

    fn send(&mut self) {
        let mut bytes = Vec::new();
        while self.queue.caravan().ring() {
            let start = bytes.len();
            for piece in self.queue.caravan().pieces() {
                match piece {
                    Piece::Bytes(piece) => bytes.extend_from_slice(piece),
                    Piece::Payload(payload, range) => bytes.extend_from_slice(&payload[range]),
                }
            }
            let count = bytes.len() - start;
            self.queue.caravan().on_sent(count, drop);
        }
        let mut rest = &bytes[..];
        while !rest.is_empty() && !self.is_over {
            let plen = u32::from_le_bytes(rest[4..8].try_into().unwrap()) as usize;
            let (pdu, after) = rest.split_at(plen);
            rest = after;
            self.send_pdu(pdu);
        }
    }

    fn send_pdu(&mut self, pdu: &[u8]) {
        let mut cut = self.inner.cut.lock().unwrap();
        let mut length = pdu.len();
        match &mut *cut {
            Some((0, bytes)) => {
                length = length.min(*bytes);
                *cut = None;
                self.is_over = true;
            }
            Some((pdus, _)) => *pdus -= 1,
            None => {}
        }
        drop(cut);
        match &mut *self.inner.stall.lock().unwrap() {
            Some((0, bytes)) => length = length.min(std::mem::take(bytes)),
            Some((pdus, _)) => *pdus -= 1,
            None => {}
        }
        for chunk in pdu[..length].chunks(self.inner.config.chunk) {
            if self.stream.write_all(chunk).is_err() {
                self.is_over = true;
                return;
            }
        }
        if self.is_over {
            for stream in self.inner.state().connections.values() {
                let _ = stream.shutdown(Shutdown::Both);
            }
        }
    }

    fn on_command(&mut self, slot: Slot, sqe: Sqe, data: Vec<u8>) {
        // Write data is requested first, so that a test sees it.
        let DataPointer::Transport { length } = sqe.dptr.classify() else {
            return self.on_data(slot, sqe, data);
        };
        let is_write = sqe.opcode & 3 == 1 && sqe.opcode != AdminOpcode::FABRICS.raw();
        if is_write && length > 0 {
            if self.inner.config.script_before_data
                && let Reaction::Raw(bytes) = self.ask(&sqe, &data)
            {
                self.send();
                let _ = self.stream.write_all(&bytes);
                return;
            }
            self.writes.insert(slot, sqe);
            self.queue.request_data(slot, vec![0; length as usize], length);
        } else {
            self.on_data(slot, sqe, data);
        }
    }

    fn on_data(&mut self, slot: Slot, sqe: Sqe, data: Vec<u8>) {
        match self.ask(&sqe, &data) {
            Reaction::Execute => self.execute(slot, &sqe, data, None),
            Reaction::Status(status) => self.queue.complete(slot, status, 0),
            Reaction::ExecuteThen(status) => self.execute(slot, &sqe, data, Some(status)),
            Reaction::Hold => self.held.push((slot, sqe.cid.get())),
            Reaction::ExecuteSilently => {
                self.execute_io(&sqe, &data);
                self.held.push((slot, sqe.cid.get()));
            }
            Reaction::Close => self.is_over = true,
            Reaction::ExecuteAndClose => {
                self.execute_io(&sqe, &data);
                self.is_over = true;
            }
            Reaction::Raw(bytes) => {
                self.send();
                let _ = self.stream.write_all(&bytes);
            }
        }
    }

    /// The reaction that the test requests.
    fn ask(&mut self, sqe: &Sqe, data: &[u8]) -> Reaction {
        let is_fabrics = sqe.opcode == AdminOpcode::FABRICS.raw();
        let inner = Arc::clone(&self.inner);
        let mut state = inner.state();
        if self.qid == 0 && !is_fabrics {
            state.admin_seen.push(sqe.opcode);
        }
        match &mut state.script {
            Some(script) if !is_fabrics => script(&Seen { qid: self.qid, cntlid: self.cntlid, sqe, data }),
            _ => Reaction::Execute,
        }
    }

    fn execute(&mut self, slot: Slot, sqe: &Sqe, data: Vec<u8>, status: Option<Status>) {
        if sqe.opcode == AdminOpcode::FABRICS.raw() {
            return self.execute_fabrics(slot, sqe, &data);
        }
        if self.qid == 0 {
            return self.execute_admin(slot, sqe);
        }
        match sqe.flags.fuse() {
            Fuse::FIRST => {
                self.fused = Some((slot, *sqe, data));
                return;
            }
            Fuse::SECOND => {
                let (first, compare, expected) = self.fused.take().expect("a first one");
                let (outcome, _) = self.execute_io(&compare, &expected);
                self.queue.complete(first, outcome, 0);
                if !outcome.is_success() {
                    return self.queue.complete(slot, Status::ABORTED_FAILED_FUSED, 0);
                }
            }
            _ => {}
        }
        let (outcome, read) = self.execute_io(sqe, &data);
        let outcome = status.unwrap_or(outcome);
        if outcome.is_success() && !read.is_empty() {
            let length = read.len() as u32;
            let digest =
                |payload: &Vec<u8>, range: std::ops::Range<usize>| wire::digest::data_digest(&payload[range]);
            self.queue.complete_with_data(slot, read, length, 0, digest);
        } else {
            self.queue.complete(slot, outcome, 0);
        }
    }

    /// A block command.
    fn execute_io(&mut self, sqe: &Sqe, data: &[u8]) -> (Status, Vec<u8>) {
        let lba_bytes = self.inner.config.lba_bytes as usize;
        let mut state = self.inner.state();
        let Some(memory) =
            (sqe.nsid().get() as usize).checked_sub(1).and_then(|index| state.memory.get_mut(index))
        else {
            return (Status::INVALID_NAMESPACE.with_dnr(), Vec::new());
        };
        let block = BlockCommand::from_sqe(sqe);
        let start = block.slba as usize * lba_bytes;
        let range = start..start.saturating_add(block.blocks as usize * lba_bytes);
        let has_range = !matches!(
            NvmOpcode::from_raw(sqe.opcode),
            NvmOpcode::FLUSH | NvmOpcode::DATASET_MANAGEMENT | NvmOpcode::COPY
        );
        if has_range && range.end > memory.len() {
            return (Status::LBA_OUT_OF_RANGE.with_dnr(), Vec::new());
        }
        let done = (Status::SUCCESS, Vec::new());
        match NvmOpcode::from_raw(sqe.opcode) {
            NvmOpcode::READ => (Status::SUCCESS, memory[range].to_vec()),
            NvmOpcode::WRITE if data.len() == range.len() => {
                memory[range].copy_from_slice(data);
                done
            }
            NvmOpcode::COMPARE if memory[range.clone()] == *data => done,
            NvmOpcode::COMPARE => (Status::COMPARE_FAILURE, Vec::new()),
            NvmOpcode::WRITE_ZEROES => {
                memory[range].fill(0);
                done
            }
            NvmOpcode::DATASET_MANAGEMENT => {
                for range in DatasetManagement::from_sqe(sqe).ranges(data).unwrap() {
                    let start = range.slba.get() as usize * lba_bytes;
                    memory[start..start + range.blocks.get() as usize * lba_bytes].fill(0);
                }
                done
            }
            NvmOpcode::COPY => {
                let copy = CopyCommand::from_sqe(sqe);
                let mut to = copy.destination as usize * lba_bytes;
                for source in copy.sources(data).unwrap() {
                    let start = source.slba.get() as usize * lba_bytes;
                    let length = source.blocks() as usize * lba_bytes;
                    memory.copy_within(start..start + length, to);
                    to += length;
                }
                done
            }
            NvmOpcode::FLUSH | NvmOpcode::VERIFY => done,
            _ => (Status::INVALID_OPCODE.with_dnr(), Vec::new()),
        }
    }

    fn execute_fabrics(&mut self, slot: Slot, sqe: &Sqe, data: &[u8]) {
        match sqe.fctype() {
            FabricsType::CONNECT => self.execute_connect(slot, sqe, data),
            FabricsType::PROPERTY_GET => match self.properties.on_property_get(PropertyGet::from_sqe(sqe)) {
                Ok(value) => self.queue.complete(slot, Status::SUCCESS, value),
                Err(status) => self.queue.complete(slot, status, 0),
            },
            _ => {
                let effect = self.properties.on_property_set(PropertySet::from_sqe(sqe));
                if effect == Ok(PropertyEffect::ShutDown) {
                    self.properties.shut_down_done();
                }
                self.queue.complete(slot, effect.err().unwrap_or(Status::SUCCESS), 0);
            }
        }
    }

    fn execute_connect(&mut self, slot: Slot, sqe: &Sqe, data: &[u8]) {
        let connect = ConnectCommand::from_sqe(sqe);
        let data = ConnectData::read_from_bytes(data).unwrap();
        let inner = Arc::clone(&self.inner);
        let mut state = inner.state();
        let invalid = |parameter: InvalidParameter| {
            (Status::CONNECT_INVALID_PARAMETERS.with_dnr(), u64::from(parameter.bits()))
        };
        let subsystem = if self.inner.config.is_discovery { Nqn::discovery() } else { NQN.parse().unwrap() };
        let refused = if let Some((status, dw0)) = state.refuse_connect {
            Some((status, dw0.into()))
        } else if data.subsystem().unwrap() != subsystem {
            Some(invalid(InvalidParameter::SUBNQN))
        } else if !connect.qid.is_admin() && state.refuse_io_connect {
            Some(invalid(InvalidParameter::QID))
        } else if !connect.qid.is_admin() && !state.controllers.contains(&data.cntlid().get()) {
            Some(invalid(InvalidParameter::CNTLID))
        } else {
            None
        };
        if let Some((status, result)) = refused {
            return self.queue.complete(slot, status, result);
        }
        self.qid = connect.qid.get();
        if connect.qid.is_admin() {
            self.cntlid = state.next_cntlid;
            state.next_cntlid += 1;
            state.controllers.insert(self.cntlid);
        } else {
            self.cntlid = data.cntlid().get();
        }
        state.connects.push((self.qid, self.cntlid));
        drop(state);
        let entries = u16::try_from(connect.queue_entries).unwrap();
        self.queue.establish(entries, connect.attributes.disable_sq_flow_control());
        let result = ConnectResult::from_bits(0).with_cntlid(self.cntlid);
        self.queue.complete(slot, Status::SUCCESS, result.bits().into());
    }

    fn execute_admin(&mut self, slot: Slot, sqe: &Sqe) {
        let inner = Arc::clone(&self.inner);
        let mut state = inner.state();
        match AdminOpcode::from_raw(sqe.opcode) {
            AdminOpcode::IDENTIFY => {
                let mut page = vec![0; 4096];
                let status = match IdentifyCommand::from_sqe(sqe).cns {
                    Cns::CONTROLLER => {
                        let mut identify = inner.config.identify;
                        // Keep an id that the test has set.
                        if identify.cntlid() == Cntlid::new(0) {
                            identify.set_cntlid(Cntlid::new(self.cntlid));
                        }
                        page.copy_from_slice(identify.as_bytes());
                        Status::SUCCESS
                    }
                    Cns::ACTIVE_NAMESPACES => {
                        let there = (1..).zip(&state.namespaces).filter(|(_, blocks)| **blocks > 0);
                        write_nsid_list(&mut page, sqe.nsid(), there.map(|(nsid, _)| Nsid::new(nsid)));
                        Status::SUCCESS
                    }
                    Cns::NAMESPACE => {
                        let index = (sqe.nsid().get() as usize).wrapping_sub(1);
                        let blocks = state.namespaces.get(index).copied().unwrap_or(0);
                        page[..8].copy_from_slice(&blocks.to_le_bytes());
                        page[8..16].copy_from_slice(&blocks.to_le_bytes());
                        page[74..76].copy_from_slice(&128u16.to_le_bytes());
                        page[76..80].copy_from_slice(&256u32.to_le_bytes());
                        page[80] = 7;
                        page[92] = 1;
                        page[130] = inner.config.lba_bytes.trailing_zeros() as u8;
                        Status::SUCCESS
                    }
                    _ => Status::INVALID_FIELD.with_dnr(),
                };
                drop(state);
                self.answer(slot, status, page);
            }
            AdminOpcode::SET_FEATURES => {
                let set = SetFeatures::from_sqe(sqe);
                let granted = NumberOfQueues::pairs(inner.config.queue_pairs.into()).bits();
                let result = if set.fid == Fid::NUMBER_OF_QUEUES { granted } else { 0 };
                self.queue.complete(slot, Status::SUCCESS, result.into());
            }
            AdminOpcode::GET_FEATURES => {
                let get = GetFeatures::from_sqe(sqe);
                self.queue.complete(slot, Status::SUCCESS, u64::from(get.fid.raw()) << 8);
            }
            AdminOpcode::GET_LOG_PAGE => {
                let get = GetLogPage::from_sqe(sqe);
                if get.lid == Lid::ANA {
                    assert_eq!((get.lsp, get.rae), (ANA_GROUPS_ONLY, false));
                    state.ana_reads += 1;
                }
                let page = self.log(&state, get.lid);
                drop(state);
                let mut part = get.part_of(&page).to_vec();
                part.resize(get.length_bytes as usize, 0);
                self.answer(slot, Status::SUCCESS, part);
            }
            AdminOpcode::ASYNC_EVENT_REQUEST => self.event_slots.push(slot),
            AdminOpcode::ABORT => {
                let (sqid, cid) = (sqe.cdw10.get() as u16, (sqe.cdw10.get() >> 16) as u16);
                if inner.config.abort_works {
                    state.aborts.insert((self.cntlid, sqid, cid));
                }
                state.aborted.insert((self.cntlid, sqid, cid));
                self.queue.complete(slot, Status::SUCCESS, u64::from(!inner.config.abort_works));
            }
            AdminOpcode::KEEP_ALIVE => self.queue.complete(slot, Status::SUCCESS, 0),
            _ => self.queue.complete(slot, Status::INVALID_OPCODE.with_dnr(), 0),
        }
    }

    fn log(&self, state: &State, lid: Lid) -> Vec<u8> {
        match lid {
            Lid::DISCOVERY => {
                let header = DiscoveryHeader::new(state.generation, state.entries.len() as u64);
                let mut log = header.as_bytes().to_vec();
                state.entries.iter().for_each(|entry| log.extend_from_slice(entry.as_bytes()));
                log
            }
            Lid::ANA => {
                let mut page = vec![0; 4096];
                let mut writer = AnaLogWriter::new(&mut page, 1).unwrap();
                writer.group(1, state.ana_state, 1, []).unwrap();
                let _ = writer.finish();
                page
            }
            Lid::SMART => {
                let mut page = vec![0; 512];
                page[1..3].copy_from_slice(&300u16.to_le_bytes());
                page
            }
            _ => vec![0; 4096],
        }
    }

    fn answer(&mut self, slot: Slot, status: Status, data: Vec<u8>) {
        if status.is_success() {
            let length = data.len() as u32;
            let digest =
                |payload: &Vec<u8>, range: std::ops::Range<usize>| wire::digest::data_digest(&payload[range]);
            self.queue.complete_with_data(slot, data, length, 0, digest);
        } else {
            self.queue.complete(slot, status, 0);
        }
    }
}

pub fn qid(number: u16) -> Qid {
    Qid::new(number)
}

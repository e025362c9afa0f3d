//! State that all connections of a fake target share.

use std::collections::{HashMap, HashSet};
use std::io::Write;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use wire::async_event::{AsyncEvent, AsyncEvents};
use wire::discovery::{DiscoveryEntry, DiscoveryHeader};
use wire::id::Nsid;
use wire::identify::capabilities::{Lpa, Vwc};
use wire::identify::controller::IdentifyController;
use wire::identify::namespace::{IdentifyNamespace, LbaFormat};
use wire::log::ana::{ANA_GROUPS_ONLY, AnaLogWriter, AnaState};
use wire::log::{GetLogPage, Lid};
use wire::nqn::Nqn;
use wire::property::{Cap, Vs};
use wire::sqe::Sqe;
use wire::status::Status;
use zerocopy::IntoBytes;

use crate::pdu::Form;
use crate::target_end::{IN_CAPSULE_BYTES, Limits, completion};

/// Block size of the default namespace, bytes.
pub const BLOCK_BYTES: u32 = 4096;

/// Size of the default namespace, blocks.
pub const BLOCK_COUNT: u64 = 4096;

/// What a fake target reports about itself.
#[derive(Clone, Debug)]
pub struct Setup {
    /// Its subsystem; the discovery subsystem is there as well.
    pub subsystem: Nqn,
    /// CAP.
    pub cap: Cap,
    /// VS.
    pub vs: Vs,
    /// Identify Controller; with controller identifier 0, each controller reports its own.
    pub identify: IdentifyController,
    /// Block size of all namespaces, bytes.
    pub lba_bytes: u32,
    /// Sizes of namespaces 1, 2, … in blocks; 0 for one that does not exist.
    pub namespaces: Vec<u64>,
    /// Queue pairs granted.
    pub queue_pairs: u32,
    /// Transfer limits.
    pub limits: Limits,
    /// Most bytes of one write to a socket.
    pub chunk_bytes: usize,
    /// Entries of the discovery log; empty for one entry, the subsystem.
    pub entries: Vec<DiscoveryEntry>,
    /// Whether Abort ends a command that is held.
    pub abort_works: bool,
}

impl Default for Setup {
    fn default() -> Self {
        let mut identify = IdentifyController::fabrics();
        let _ = identify.set_serial("FAKE");
        let _ = identify.set_model("fake target");
        let _ = identify.set_firmware("1");
        identify.set_version(Vs::V1_4);
        identify.set_in_capsule_bytes(IN_CAPSULE_BYTES);
        identify.set_keep_alive_granularity_ms(100);
        identify.set_transfer_limit_bytes(Some(1 << 20), 4096);
        identify.maxcmd.set(128);
        identify.nn.set(1);
        identify.mnan.set(1);
        identify.lpa = Lpa::EXTENDED_DATA;
        identify.vwc = Vwc::default().with_present(true);
        identify.set_oaes(AsyncEvents::NAMESPACE_ATTRIBUTE);
        let subsystem = "nqn.2026-01.io.nvlane:fake".parse().expect("well formed");
        identify.set_subsystem(&subsystem);
        Self {
            subsystem,
            cap: Cap::default().with_queue_entries_max(128).with_ready_timeout_ms(5000).with_css_nvm(true),
            vs: Vs::V1_4,
            identify,
            lba_bytes: BLOCK_BYTES,
            namespaces: vec![BLOCK_COUNT],
            queue_pairs: 4,
            limits: Limits::default(),
            chunk_bytes: usize::MAX,
            entries: Vec::new(),
            abort_works: false,
        }
    }
}

/// The sending side of a connection; other connections' sessions may use it too.
#[derive(Debug)]
pub(crate) struct Outlet {
    pub(crate) id: u32,
    pub(crate) stream: TcpStream,
    writing: Mutex<()>,
}

/// A command that another connection's event may complete.
#[derive(Clone, Debug)]
pub(crate) struct Waiting {
    pub(crate) outlet: Arc<Outlet>,
    pub(crate) form: Form,
    pub(crate) sqe: Sqe,
}

/// A command of a queue: controller, queue, command identifier.
type CommandId = (u16, u16, u16);

/// The part of the state that changes.
#[derive(Debug, Default)]
pub struct StageState {
    /// Content of the namespaces.
    pub memory: Vec<Vec<u8>>,
    /// Sizes of namespaces 1, 2, … in blocks; 0 for one that does not exist.
    pub namespaces: Vec<u64>,
    /// Block size, bytes.
    pub lba_bytes: u64,
    /// Existing controllers.
    pub controllers: HashSet<u16>,
    last_cntlid: u16,
    /// Features that were set, by identifier.
    pub features: HashMap<u8, u32>,
    /// Generation counter of the discovery log.
    pub generation: u64,
    /// Entries of the discovery log.
    pub entries: Vec<DiscoveryEntry>,
    /// Admin commands seen, by opcode.
    pub admin_seen: Vec<u8>,
    /// Successful Connects: queue and controller.
    pub connects: Vec<(u16, u16)>,
    /// TermReqs of hosts: fatal error status and information.
    pub term_reqs: Vec<(u16, u32)>,
    /// Every Connect ends with this status and result.
    pub refuse_connect: Option<(Status, u32)>,
    /// Connects of I/O queues are refused.
    pub refuse_io_connect: bool,
    /// The ANA group that all namespaces are in, 0 for none.
    pub ana_group: u32,
    /// State of that group.
    pub ana_state: AnaState,
    /// Number of reads of the ANA log.
    pub ana_reads: u32,
    connections: HashMap<u32, Arc<Outlet>>,
    last_connection: u32,
    /// Events that no request waits for yet.
    events: Vec<AsyncEvent>,
    /// Asynchronous Event Requests.
    requests: Vec<Waiting>,
    held: HashMap<CommandId, Waiting>,
    /// Commands to abort that are not held yet.
    aborts: HashSet<CommandId>,
}

impl StageState {
    /// Adds a controller and returns its identifier.
    pub(crate) fn add_controller(&mut self) -> u16 {
        self.last_cntlid += 1;
        self.controllers.insert(self.last_cntlid);
        self.last_cntlid
    }

    /// Size of a namespace in blocks, 0 if it does not exist.
    pub(crate) fn blocks(&self, nsid: Nsid) -> u64 {
        index(nsid).and_then(|index| self.namespaces.get(index)).copied().unwrap_or(0)
    }

    /// Content of a namespace.
    pub(crate) fn memory_of(&mut self, nsid: Nsid) -> Option<&mut Vec<u8>> {
        index(nsid).and_then(|index| self.memory.get_mut(index))
    }

    /// Identify Namespace of a namespace that exists.
    ///
    /// # Panics
    /// If blocks are longer than 4 GiB.
    pub fn identify_namespace(&self, nsid: Nsid) -> IdentifyNamespace {
        let mut namespace = IdentifyNamespace::default();
        for field in [&mut namespace.nsze, &mut namespace.ncap, &mut namespace.nuse] {
            field.set(self.blocks(nsid));
        }
        namespace.set_format_count(1);
        let lba_bytes = u32::try_from(self.lba_bytes).expect("small blocks");
        // A test may want a block size that there is no format for.
        if let Some(format) = LbaFormat::new(lba_bytes) {
            namespace.lbaf[0] = format;
        }
        namespace.anagrpid.set(self.ana_group);
        namespace.mssrl.set(128);
        namespace.mcl.set(256);
        namespace.set_copy_ranges(8);
        namespace
    }

    /// The discovery log.
    pub fn discovery_log(&self) -> Vec<u8> {
        let header = DiscoveryHeader::new(self.generation, self.entries.len() as u64);
        let entries = self.entries.iter().map(IntoBytes::as_bytes);
        std::iter::once(header.as_bytes()).chain(entries).flatten().copied().collect()
    }

    /// A whole log page.
    pub(crate) fn log(&mut self, get: &GetLogPage) -> Vec<u8> {
        match get.lid {
            Lid::DISCOVERY => self.discovery_log(),
            Lid::ANA => {
                assert_eq!((get.lsp, get.rae), (ANA_GROUPS_ONLY, false));
                self.ana_reads += 1;
                let mut page = vec![0; 4096];
                let mut writer = AnaLogWriter::new(&mut page, 1).expect("room");
                writer.group(self.ana_group, self.ana_state, 1, []).expect("room");
                let _ = writer.finish();
                page
            }
            Lid::SMART => {
                let mut page = vec![0; 512];
                // A composite temperature of 300 K.
                page[1..3].copy_from_slice(&300u16.to_le_bytes());
                page
            }
            _ => vec![0; 8192],
        }
    }
}

fn index(nsid: Nsid) -> Option<usize> {
    usize::try_from(nsid.get()).ok().and_then(|nsid| nsid.checked_sub(1))
}

/// A failure to inject after a number of PDUs and further bytes.
type Trigger = Option<(u32, usize)>;

/// Shared state of a fake target.
#[derive(Debug)]
pub struct Stage {
    /// Where the target listens.
    pub address: SocketAddr,
    /// Its subsystem.
    pub subsystem: Nqn,
    /// What it reports about itself.
    pub setup: Setup,
    is_injected: AtomicBool,
    is_over: AtomicBool,
    is_closed: AtomicBool,
    pdu_count: AtomicU64,
    state: Mutex<StageState>,
    /// Signalled when a connection has ended.
    ended: Condvar,
    cut: Mutex<Trigger>,
    stall: Mutex<Trigger>,
}

impl Stage {
    /// The state of a target that has just started: its namespaces are zeroed.
    pub fn new(address: SocketAddr, setup: Setup) -> Self {
        let bytes = |blocks: &u64| usize::try_from(*blocks).expect("small") * setup.lba_bytes as usize;
        let mut entries = setup.entries.clone();
        if entries.is_empty() {
            entries.push(DiscoveryEntry::tcp(address.ip(), address.port(), &setup.subsystem));
        }
        let state = StageState {
            memory: setup.namespaces.iter().map(|blocks| vec![0; bytes(blocks)]).collect(),
            namespaces: setup.namespaces.clone(),
            lba_bytes: setup.lba_bytes.into(),
            generation: 1,
            entries,
            ana_group: setup.identify.anagrpmax.get(),
            ana_state: AnaState::OPTIMIZED,
            ..StageState::default()
        };
        Self {
            address,
            subsystem: setup.subsystem.clone(),
            setup,
            is_injected: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            is_closed: AtomicBool::new(false),
            pdu_count: AtomicU64::new(0),
            state: Mutex::new(state),
            ended: Condvar::new(),
            cut: Mutex::new(None),
            stall: Mutex::new(None),
        }
    }

    /// The part of the state that changes.
    pub fn state(&self) -> MutexGuard<'_, StageState> {
        lock(&self.state)
    }

    /// Marks the fault as injected. A fault that waits for the host's reaction calls this before it waits.
    pub fn mark(&self) {
        self.is_injected.store(true, Ordering::SeqCst);
    }

    /// Whether the fault was injected.
    pub fn is_injected(&self) -> bool {
        self.is_injected.load(Ordering::SeqCst)
    }

    /// Ends all sessions.
    pub fn end(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        self.drop_connections();
    }

    /// Whether the target ends.
    pub fn is_over(&self) -> bool {
        self.is_over.load(Ordering::SeqCst)
    }

    /// Accepts connections from now on, or closes each at once.
    pub fn set_open(&self, is_open: bool) {
        self.is_closed.store(!is_open, Ordering::SeqCst);
    }

    /// Whether connections are accepted.
    pub fn is_open(&self) -> bool {
        !self.is_closed.load(Ordering::SeqCst)
    }

    /// Counts a PDU from a host.
    pub fn count_pdu(&self) {
        self.pdu_count.fetch_add(1, Ordering::SeqCst);
    }

    /// Number of PDUs received from hosts, without those that carry data which was asked for.
    pub fn pdu_count(&self) -> u64 {
        self.pdu_count.load(Ordering::SeqCst)
    }

    /// Closes all connections after `pdus` PDUs and `bytes` bytes of the next one, once.
    pub fn cut_after(&self, pdus: u32, bytes: usize) {
        *lock(&self.cut) = Some((pdus, bytes));
    }

    /// Sends nothing after `pdus` PDUs and `bytes` bytes of the next one. All connections stay open.
    pub fn stall_after(&self, pdus: u32, bytes: usize) {
        *lock(&self.stall) = Some((pdus, bytes));
    }

    /// Closes all connections.
    pub fn drop_connections(&self) {
        for outlet in self.state().connections.values() {
            let _ = outlet.stream.shutdown(Shutdown::Both);
        }
    }

    /// Identifiers of the open connections.
    pub fn connections(&self) -> Vec<u32> {
        self.state().connections.keys().copied().collect()
    }

    /// Waits until the target has processed all input of these connections and noticed their ends. Returns whether
    /// that happened within `limit`.
    pub fn wait_ended(&self, connections: &[u32], limit: Duration) -> bool {
        let is_open =
            |state: &mut StageState| connections.iter().any(|id| state.connections.contains_key(id));
        let waited = self.ended.wait_timeout_while(self.state(), limit, is_open);
        !waited.unwrap_or_else(PoisonError::into_inner).1.timed_out()
    }

    pub(crate) fn begin(&self, stream: TcpStream) -> Arc<Outlet> {
        let mut state = self.state();
        state.last_connection += 1;
        let outlet = Arc::new(Outlet { id: state.last_connection, stream, writing: Mutex::new(()) });
        state.connections.insert(outlet.id, Arc::clone(&outlet));
        drop(state);
        if self.is_over() {
            self.drop_connections();
        }
        outlet
    }

    /// The session of `outlet` has ended; its controller ends with its admin queue.
    pub(crate) fn on_end(&self, outlet: &Outlet, controller: Option<u16>) {
        let mut state = self.state();
        state.connections.remove(&outlet.id);
        state.requests.retain(|waiting| waiting.outlet.id != outlet.id);
        state.held.retain(|_, waiting| waiting.outlet.id != outlet.id);
        if let Some(cntlid) = controller {
            state.controllers.remove(&cntlid);
        }
        self.ended.notify_all();
    }

    /// Sends a PDU. Returns whether the connections stay open.
    pub(crate) fn send(&self, outlet: &Outlet, pdu: &[u8]) -> bool {
        let mut length = pdu.len();
        let mut is_cut = false;
        {
            let mut cut = lock(&self.cut);
            match &mut *cut {
                Some((0, bytes)) => {
                    length = length.min(*bytes);
                    is_cut = true;
                    *cut = None;
                }
                Some((pdus, _)) => *pdus -= 1,
                None => {}
            }
        }
        match &mut *lock(&self.stall) {
            Some((0, bytes)) => length = length.min(std::mem::take(bytes)),
            Some((pdus, _)) => *pdus -= 1,
            None => {}
        }
        self.write(outlet, &pdu[..length]);
        if is_cut {
            self.drop_connections();
        }
        !is_cut
    }

    /// Sends bytes. That the host has closed shows with the next event.
    pub(crate) fn write(&self, outlet: &Outlet, bytes: &[u8]) {
        let _guard = lock(&outlet.writing);
        for chunk in bytes.chunks(self.setup.chunk_bytes) {
            let _ = (&outlet.stream).write_all(chunk);
        }
    }

    fn complete(&self, waiting: &Waiting, status: Status, result: u64) {
        self.send(&waiting.outlet, &completion(waiting.form, &waiting.sqe, status, result));
    }

    /// Reports an event to one host, now or with its next Asynchronous Event Request.
    pub fn raise(&self, event: AsyncEvent) {
        self.state().events.push(event);
        self.deliver();
    }

    /// Answers an Asynchronous Event Request, now or with the next event.
    pub(crate) fn await_event(&self, request: Waiting) {
        self.state().requests.push(request);
        self.deliver();
    }

    fn deliver(&self) {
        let mut state = self.state();
        if !state.events.is_empty() && !state.requests.is_empty() {
            let (event, request) = (state.events.remove(0), state.requests.remove(0));
            drop(state);
            self.complete(&request, Status::SUCCESS, event.bits().into());
        }
    }

    /// Does not answer a command until it is aborted.
    pub(crate) fn hold(&self, id: CommandId, waiting: Waiting) {
        self.state().held.insert(id, waiting);
        self.end_aborted(id);
    }

    /// Aborts a command that is held, or as soon as it is.
    pub(crate) fn abort(&self, id: CommandId) {
        self.state().aborts.insert(id);
        self.end_aborted(id);
    }

    fn end_aborted(&self, id: CommandId) {
        let mut state = self.state();
        if state.held.contains_key(&id) && state.aborts.remove(&id) {
            let held = state.held.remove(&id);
            drop(state);
            held.iter().for_each(|waiting| self.complete(waiting, Status::ABORT_REQUESTED, 0));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

//! A target in memory, and a correct host that connects to it up to a stage chosen by the input.

use std::sync::Arc;

use linux::random::SplitMix64;
use linux::randomness::Randomness;
use proto::handshake::HostOffer;
use proto::host_controller::{ControllerSettings, QueueConnect};
use proto::host_queue::{Completion, HostEvent, Transfer};
use proto::zero_copy::Policy as ZeroCopy;
use proto::{HostQueue, Violation};
use store::{KeyValueSettings, KeyValueStore, MemorySettings, MemoryStore, Store};
use subsystem::access::HostRights;
use subsystem::audit::Recorder;
use subsystem::config::{TimeoutConfig, TlsPolicy};
use subsystem::control::ControlSettings;
use subsystem::limits::Limits;
use subsystem::listener_gate::ListenerGate;
use subsystem::message::{NewNamespace, Step};
use subsystem::rate_limit::RateLimits;
use subsystem::subsystem::{Access, Subsystem};
use wire::fabrics::ConnectResult;
use wire::id::{Cntlid, Nsid, Qid};
use wire::pdu::{CapsuleResp, PduType, TermReq};
use wire::property::{Cc, CommandSetSelection, Property};
use wire::sgl::DataPointer;
use wire::sqe::Sqe;
use wire::uuid::Uuid;
use zerocopy::{FromBytes, IntoBytes};

use crate::reactor::{LISTENER, MemoryReactor};

/// The block namespace.
pub(crate) const BLOCKS: Nsid = Nsid::new(1);
/// The key-value namespace.
pub(crate) const KEYS: Nsid = Nsid::new(2);

const SUBSYSTEM: &str = "nqn.2026-01.io.nvlane:fuzz";
const BLOCK_BYTES: u32 = 512;
/// Size of a namespace: small, so that it is overwritten often and its end is near.
pub(crate) const NAMESPACE_BYTES: u64 = 128 * 1024;
/// Memory for each block size, so that nothing is evicted.
const KEY_MEMORY_BYTES: u64 = 4 << 20;

/// Queue entries.
const ENTRIES: u16 = 32;

/// A target with a block namespace and a key-value namespace.
pub(crate) fn target() -> MemoryReactor {
    let settings = ControlSettings {
        limits: Limits::default(),
        reactor_count: 1,
        discovery_nqn: "nqn.2026-01.io.nvlane:discovery".parse().expect("a name"),
        entropy: 1,
        randomness: Randomness::Simulated(SplitMix64::new(1)),
        now_ns: 1,
        wall_ns: 1,
        audit: Recorder::default(),
    };
    let subsystem = Subsystem {
        serial: "FUZZ".into(),
        ..Subsystem::new(SUBSYSTEM.parse().expect("a name"), Access::Any)
    };
    let blocks = MemorySettings {
        bytes: NAMESPACE_BYTES,
        block_bytes: BLOCK_BYTES,
        is_read_only: false,
        is_shared: false,
        huge_pages: false,
        page_bytes: memory::page_bytes(),
    };
    let keys = KeyValueSettings {
        bytes: KEY_MEMORY_BYTES,
        evicts: true,
        item_bytes: 1 << 20,
        allows_flush: true,
        prefaults: false,
    };
    let stores: [(Nsid, Store); 2] = [
        (BLOCKS, Store::Blocks(Arc::new(MemoryStore::new(&blocks).expect("a little memory")))),
        (KEYS, Store::Keys(Arc::new(KeyValueStore::in_memory(keys)))),
    ];
    let nqn = subsystem.nqn.clone();
    let mut steps = vec![Step::AddSubsystem(subsystem)];
    for (nsid, store) in stores {
        let id = [u8::try_from(nsid.get()).expect("small"); 16];
        let (storage, uuid, rights) = ("memory".into(), Uuid::from_bytes(id), HostRights::ALL);
        let namespace =
            NewNamespace { store, storage, uuid, nguid: id, rights, limits: RateLimits::default() };
        steps.push(Step::AddNamespace { subsystem: nqn.clone(), nsid, namespace });
    }
    let (timeouts, c2h_data_bytes) = (TimeoutConfig::default(), settings.limits.transfer_bytes_max);
    let tls = Arc::<ListenerGate>::default();
    tls.set_policy(LISTENER, TlsPolicy::Off);
    let mut applications =
        subsystem::server::applications(settings, &timeouts, ZeroCopy::Off, c2h_data_bytes, &tls, steps);
    MemoryReactor::new(applications.remove(0))
}

/// The host's end of one queue, which follows the protocol.
pub(crate) struct Queue {
    pub(crate) link: usize,
    host: HostQueue<Vec<u8>>,
    next_user: u64,
}

impl Queue {
    /// Connects and completes the handshake.
    pub(crate) fn open(target: &mut MemoryReactor, offer: HostOffer, room: usize) -> Self {
        let link = target.dial(room);
        let mut queue = Self { link, host: HostQueue::new(offer, ENTRIES - 1), next_user: 0 };
        assert!(queue.exchange(target).is_empty() && queue.host.has_room(), "the handshake is done");
        queue
    }

    /// Opens an admin queue and enables its controller.
    pub(crate) fn admin(target: &mut MemoryReactor, offer: HostOffer, room: usize) -> (Self, Cntlid) {
        let mut queue = Self::open(target, offer, room);
        let cntlid = queue.connect(target, Qid::ADMIN, Cntlid::DYNAMIC);
        let cc = Cc::new(CommandSetSelection::ALL).with_en(true);
        queue.call(target, Sqe::property_set(Property::CC, u64::from(cc.bits())), Transfer::None);
        queue.host.set_in_capsule_bytes(Limits::default().in_capsule_bytes);
        (queue, cntlid)
    }

    /// Opens an I/O queue of that controller.
    pub(crate) fn io(target: &mut MemoryReactor, offer: HostOffer, room: usize, cntlid: Cntlid) -> Self {
        let mut queue = Self::open(target, offer, room);
        queue.connect(target, Qid::new(1), cntlid);
        queue.host.set_in_capsule_bytes(Limits::default().in_capsule_bytes);
        queue
    }

    fn connect(&mut self, target: &mut MemoryReactor, qid: Qid, cntlid: Cntlid) -> Cntlid {
        let settings = ControllerSettings {
            host: "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-3333-4444-555555555555"
                .parse()
                .expect("a name"),
            hostid: "11111111-2222-3333-4444-555555555555".parse().expect("an id"),
            subsystem: SUBSYSTEM.parse().expect("a name"),
            is_discovery: false,
            keep_alive_ms: 0,
            queue_pairs: 1,
            is_flow_control_disabled: false,
        };
        let (sqe, data) =
            QueueConnect { qid, cntlid, entries: ENTRIES.into(), near_partition: None }.command(&settings);
        let completion = self.call(target, sqe, Transfer::ToController(data.as_bytes().to_vec()));
        let dw0 = u32::try_from(completion.result & 0xffff_ffff).expect("masked");
        Cntlid::new(ConnectResult::from_bits(dw0).cntlid())
    }

    /// Runs a command that must succeed at once.
    fn call(
        &mut self,
        target: &mut MemoryReactor,
        sqe: Sqe,
        transfer: Transfer<Vec<u8>>,
    ) -> Completion<Vec<u8>> {
        self.submit(sqe, transfer);
        let mut ended = self.exchange(target);
        let completion = ended.pop().filter(|completion| completion.status.is_success());
        completion.expect("one command, one answer")
    }

    /// Submits a command if there is room; it is sent by the next [`exchange`](Self::exchange).
    pub(crate) fn submit(&mut self, sqe: Sqe, transfer: Transfer<Vec<u8>>) {
        if self.host.has_room() && self.host.submit(sqe, transfer, self.next_user).is_ok() {
            self.next_user += 1;
        }
    }

    /// Sends pending bytes and reads nothing. Returns whether there were any.
    pub(crate) fn push(&mut self, target: &mut MemoryReactor) -> bool {
        let mut sent = Vec::new();
        while self.host.ring() {
            let start = sent.len();
            self.host.for_each_piece(|piece| {
                sent.extend_from_slice(piece);
                true
            });
            self.host.on_sent(sent.len() - start);
        }
        target.send(self.link, &sent);
        !sent.is_empty()
    }

    /// Whether the target keeps the connection open.
    pub(crate) fn is_live(&self, target: &MemoryReactor) -> bool {
        !target.is_closed(self.link)
    }

    /// Exchanges bytes until both sides are idle. The target must follow the protocol, except that it may request less
    /// data than a command has, on which the host closes the connection.
    pub(crate) fn exchange(&mut self, target: &mut MemoryReactor) -> Vec<Completion<Vec<u8>>> {
        let mut ended = Vec::new();
        loop {
            let is_quiet = !self.push(target);
            let received = target.receive(self.link);
            let mut input = &received[..];
            loop {
                match self.host.next_event(&mut input) {
                    Ok(Some(HostEvent::Completed(completion))) => ended.push(completion),
                    Ok(Some(HostEvent::Initialised(_))) => {}
                    Ok(None) => break,
                    Err(violation) => {
                        let term_req = self.host.fail(violation).expect("something that can be said");
                        assert!(
                            violation == Violation::Sequence && self.asked_for_less(&term_req),
                            "the target breaks the rules: {violation}"
                        );
                        target.send(self.link, &term_req);
                        assert!(target.is_closed(self.link), "a host that closes must be disconnected");
                        return ended;
                    }
                }
            }
            if is_quiet && received.is_empty() {
                return ended;
            }
        }
    }

    /// Whether the host's error is a successful completion of a command whose data was not all requested.
    fn asked_for_less(&self, term_req: &[u8]) -> bool {
        let copy = term_req.get(size_of::<TermReq>()..).unwrap_or_default();
        let Ok((response, _)) = CapsuleResp::read_from_prefix(copy) else { return false };
        let is_response = response.common.kind == PduType::CapsuleResp as u8;
        let has_data = |sqe: &Sqe| matches!(sqe.dptr.classify(), DataPointer::Transport { length: 1.. });
        let mut commands = self.host.commands();
        let held_data = commands.any(|(sqe, _)| sqe.cid == response.cqe.cid && has_data(sqe));
        is_response && response.cqe.status().is_success() && held_data
    }
}

//! A trace of a running target: what is asked of each reactor, and the events that it returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::Sender;

use serde::ser::{Serialize, SerializeMap, Serializer};
use wire::id::{Nsid, Qid};
use wire::nqn::{HostName, Nqn};
use wire::opcode::{KvOpcode, NvmOpcode};
use wire::status::Status;

use crate::objects::association::Association;

/// Events that a reactor keeps until they are read, unless the caller asks for another number.
pub const KEPT_COUNT_DEFAULT: usize = 16_384;

/// Limit of events that a reactor keeps.
pub const KEPT_COUNT_MAX: usize = 262_144;

/// Longest trace, ns.
pub const TRACE_NS_MAX: u64 = 3_600_000_000_000;

/// A trace that was not read for this long ends, ns: its caller is gone.
pub const UNREAD_NS_MAX: u64 = 30_000_000_000;

/// What a trace has.
#[derive(Debug)]
pub struct TraceSettings {
    /// Only what this host does.
    pub host: Option<HostName>,
    /// Only what is done in this subsystem.
    pub subsystem: Option<Nqn>,
    /// Only commands on this namespace.
    pub nsid: Option<Nsid>,
    /// How long it lasts, ns.
    pub for_ns: u64,
    /// Events that each reactor keeps until they are read.
    pub kept_count_max: usize,
    /// Events that are left until the trace ends, on all reactors.
    left: AtomicU64,
}

impl TraceSettings {
    /// A trace of everything for `for_ns`, or `event_count` events.
    #[must_use]
    pub fn new(for_ns: u64, event_count: u64, kept_count_max: usize) -> Self {
        Self {
            host: None,
            subsystem: None,
            nsid: None,
            for_ns: for_ns.min(TRACE_NS_MAX),
            kept_count_max: kept_count_max.clamp(1, KEPT_COUNT_MAX),
            left: AtomicU64::new(event_count),
        }
    }

    /// Whether it has what lanes of this association do.
    #[must_use]
    pub(crate) fn includes(&self, association: &Association) -> bool {
        self.host.as_ref().is_none_or(|host| host == association.host())
            && self.subsystem.as_ref().is_none_or(|nqn| Some(nqn) == association.subsystem())
    }

    /// Takes one of the events that are left; `false` if there is none.
    pub(crate) fn take_one(&self) -> bool {
        self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
    }

    /// Whether no event is left.
    #[must_use]
    pub fn is_spent(&self) -> bool {
        self.left.load(Ordering::Relaxed) == 0
    }
}

/// What a reactor is to do about a trace.
#[derive(Debug)]
pub enum TraceOrder {
    /// Begins one, in place of another.
    Start(Arc<TraceSettings>),
    /// Returns the oldest events, at most this number, and ends the trace if it is to.
    Take {
        /// Most events.
        count_max: usize,
        /// Whether it ends: no event is added any more. Those that are kept stay until they are taken.
        ends: bool,
        /// Where they go.
        to: Sender<TracePart>,
    },
}

/// Events of one reactor.
#[derive(Debug)]
pub struct TracePart {
    /// The oldest events, in order of time.
    pub events: Vec<TraceEvent>,
    /// Events that were dropped since the last part, because those before them had not been read.
    pub lost_count: u64,
    /// Whether more are kept.
    pub has_more: bool,
    /// Whether the trace goes on.
    pub is_on: bool,
    /// The time of the reactor, ns.
    pub now_ns: u64,
}

/// An event.
#[derive(Clone, Debug)]
pub struct TraceEvent {
    /// When it happened, or a command had arrived; ns of the reactors' clock.
    pub at_ns: u64,
    /// The reactor.
    pub reactor: u16,
    /// The lane, by its place in the reactor.
    pub lane: u32,
    /// Queue id.
    pub qid: Qid,
    /// The controller's host and subsystem; `None` before a Connect.
    pub association: Option<Arc<Association>>,
    /// What happened.
    pub kind: TraceKind,
}

/// What happened.
#[derive(Clone, Debug)]
pub enum TraceKind {
    /// The socket has taken the response to a command.
    Command(TracedCommand),
    /// Responses left together.
    Doorbell {
        /// Number of PDUs.
        pdus: u32,
        /// Why they left.
        reason: &'static str,
    },
    /// A queue has connected.
    Connected,
    /// A lane has ended.
    Ended {
        /// Why.
        reason: &'static str,
    },
    /// A peer broke the transport protocol.
    Error {
        /// How.
        reason: &'static str,
    },
}

/// A command, and the times of its phases in order, ns.
#[derive(Clone, Copy, Debug)]
pub struct TracedCommand {
    /// Namespace id.
    pub nsid: u32,
    /// Command id.
    pub cid: u16,
    /// Opcode.
    pub opcode: u8,
    /// Whether it is one of the key-value command set.
    pub is_key_value: bool,
    /// First logical block, if it has one.
    pub slba: u64,
    /// Logical blocks.
    pub blocks: u32,
    /// Bytes of its data.
    pub bytes: u32,
    /// Status.
    pub status: Status,
    /// From the turn in which it was received until it began.
    pub socket_ns: u64,
    /// Waiting for rate limits.
    pub limit_ns: u64,
    /// Waiting for its data.
    pub data_ns: u64,
    /// In the namespace.
    pub storage_ns: u64,
    /// From its end until its caravan left.
    pub doorbell_ns: u64,
    /// Until the socket had taken the caravan.
    pub send_ns: u64,
}

/// The name of an I/O command's opcode in the specification.
#[must_use]
pub fn opcode_name(opcode: u8, is_key_value: bool) -> Option<&'static str> {
    match is_key_value {
        true => KvOpcode::from_raw(opcode).name(),
        false => NvmOpcode::from_raw(opcode).name(),
    }
}

/// Whether a command of the NVM command set names logical blocks in the usual place.
#[must_use]
pub fn has_blocks(opcode: u8, is_key_value: bool) -> bool {
    let with_blocks = [
        NvmOpcode::READ,
        NvmOpcode::WRITE,
        NvmOpcode::COMPARE,
        NvmOpcode::WRITE_ZEROES,
        NvmOpcode::WRITE_UNCORRECTABLE,
        NvmOpcode::VERIFY,
    ];
    !is_key_value && with_blocks.contains(&NvmOpcode::from_raw(opcode))
}

impl Serialize for TraceEvent {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut map = serializer.serialize_map(None)?;
        map.serialize_entry("at_ns", &self.at_ns)?;
        map.serialize_entry("event", self.kind.name())?;
        map.serialize_entry("reactor", &self.reactor)?;
        map.serialize_entry("lane", &self.lane)?;
        map.serialize_entry("qid", &self.qid.get())?;
        if let Some(association) = &self.association {
            map.serialize_entry("host", association.host().as_str())?;
            if let Some(nqn) = association.subsystem() {
                map.serialize_entry("subsystem", nqn.as_str())?;
            }
        }
        match &self.kind {
            TraceKind::Command(command) => command.serialize_into(&mut map)?,
            TraceKind::Doorbell { pdus, reason } => {
                map.serialize_entry("pdus", pdus)?;
                map.serialize_entry("reason", reason)?;
            }
            TraceKind::Connected => {}
            TraceKind::Ended { reason } | TraceKind::Error { reason } => {
                map.serialize_entry("reason", reason)?;
            }
        }
        map.end()
    }
}

impl TraceKind {
    /// Its name.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Command(_) => "command",
            Self::Doorbell { .. } => "doorbell",
            Self::Connected => "connected",
            Self::Ended { .. } => "ended",
            Self::Error { .. } => "error",
        }
    }
}

impl TracedCommand {
    fn serialize_into<M: SerializeMap>(&self, map: &mut M) -> Result<(), M::Error> {
        map.serialize_entry("nsid", &self.nsid)?;
        map.serialize_entry("cid", &self.cid)?;
        match opcode_name(self.opcode, self.is_key_value) {
            Some(name) => map.serialize_entry("opcode", name)?,
            None => map.serialize_entry("opcode", &format!("{:#04x}", self.opcode))?,
        }
        if has_blocks(self.opcode, self.is_key_value) {
            map.serialize_entry("lba", &self.slba)?;
            map.serialize_entry("blocks", &self.blocks)?;
        }
        map.serialize_entry("bytes", &self.bytes)?;
        if !self.status.is_success() {
            map.serialize_entry("status", &self.status.to_string())?;
        }
        for (name, ns) in [
            ("socket_ns", self.socket_ns),
            ("limit_ns", self.limit_ns),
            ("data_ns", self.data_ns),
            ("storage_ns", self.storage_ns),
            ("doorbell_ns", self.doorbell_ns),
            ("send_ns", self.send_ns),
        ] {
            map.serialize_entry(name, &ns)?;
        }
        Ok(())
    }
}

//! Imports of every section.

pub(super) use std::time::{Duration, Instant};

pub(super) use peer::finding::{About, Check, Finding, differs, holds, skipped};
pub(super) use peer::link::{Got, Link, Term, term, term_at};
pub(super) use peer::pdu::{Draft, Form, in_capsule};
pub(super) use peer::queue::{Answer, Move, Queue, Step, expect_status};
pub(super) use peer::raw_host::{Association, ENTRIES, enable, enabled, identify, set_queues, wait_ready};
pub(super) use wire::discovery::DiscoveryEntry;
pub(super) use wire::fabrics::{ConnectData, ConnectResult, Disconnect, PropertyGet};
pub(super) use wire::feature::Fid;
pub(super) use wire::id::{Cntlid, Nsid, Qid};
pub(super) use wire::identify::capabilities::Oncs;
pub(super) use wire::identify::{Cns, IDENTIFY_BYTES, IdentifyCommand};
pub(super) use wire::log::{GetLogPage, Lid};
pub(super) use wire::nqn::{HostId, Nqn};
pub(super) use wire::opcode::{AdminOpcode, NvmOpcode};
pub(super) use wire::pdu::{DataAlignment, Digests, FatalErrorStatus, IcReq, PduType, TermReq};
pub(super) use wire::property::{Property, PropertySize};
pub(super) use wire::sgl::Sgl;
pub(super) use wire::sqe::Sqe;
pub(super) use wire::status::Status;
pub(super) use wire::uuid::Uuid;
pub(super) use zerocopy::{FromBytes, IntoBytes};

pub(super) use crate::row::{row, slow_row};
pub(super) use crate::rows::TargetRow;
pub(super) use crate::target::{Disk, Target};

//! A Connect as a lane has sent it on.

use std::net::SocketAddr;
use std::sync::Arc;

use reactor::ListenerTag;
use wire::sqe::Sqe;

use crate::audit::TlsInUse;
use crate::messages::message::Channel;
use crate::names::lane_counters::LaneCounters;
use crate::names::lane_id::CommandId;

/// A Connect as received.
pub(super) struct PendingConnect {
    pub(super) command: CommandId,
    pub(super) sqe: Sqe,
    pub(super) data: Box<[u8]>,
    pub(super) peer: Option<SocketAddr>,
    pub(super) listener: ListenerTag,
    pub(super) channel: Channel,
    pub(super) local: Option<SocketAddr>,
    pub(super) tls: Option<TlsInUse>,
    pub(super) counters: Arc<LaneCounters>,
}

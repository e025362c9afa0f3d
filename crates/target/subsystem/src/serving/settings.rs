//! Settings for serving the lanes of a target.

use proto::ReceivePlan;
use proto::controller_queue::QueueSettings;
use proto::doorbell::Policy;
use proto::zero_copy::Policy as ZeroCopy;

use crate::io_path::io_command::IoLimits;
use crate::io_path::lane::LaneTimeouts;

/// Settings of a reactor that serves lanes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServingSettings {
    pub(crate) queue: QueueSettings,
    pub(crate) limits: IoLimits,
    pub(crate) timeouts: LaneTimeouts,
    pub(crate) doorbell: Policy,
    pub(crate) receive: ReceivePlan,
    /// Which answers are sent without a copy.
    pub(crate) zero_copy: ZeroCopy,
    /// Connections without a queue, on all reactors.
    pub(crate) unconnected_count_max: u32,
    /// For memcached clients without a command; `None` for ever.
    pub(crate) memcached_idle_ns: Option<u64>,
    pub(crate) reactor_count: u16,
}

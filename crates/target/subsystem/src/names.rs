//! Names, numbers and limits, which know nothing of the rest.

pub mod allow_list;
pub(crate) mod allowance;
pub mod identity;
pub mod lane_counters;
pub mod lane_end;
pub mod lane_id;
pub mod limits;
pub mod listener_gate;
pub mod machine;
pub mod memcached_trust;
pub(crate) mod named_uuid;
pub mod placement_policy;
pub mod slow_threshold;
pub mod socket_priority;
pub(crate) mod unconnected;

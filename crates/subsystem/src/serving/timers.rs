//! Timers of a reactor of the target, by token. Every other token is a lane's generation and place, or a ticket with
//! `TICKET_TIMER` set.

use reactor::Token;

/// The control plane's.
pub(super) const CONTROL_TIMER: Token = 1 << 62;

/// Releases memory of idle lanes.
pub(super) const SWEEP_TIMER: Token = CONTROL_TIMER | 1;

/// Memcached connections'.
pub(super) const MEMCACHED_TIMER: Token = CONTROL_TIMER | 2;

/// Looks for notices of what was sent without a copy.
pub(super) const NOTICE_TIMER: Token = CONTROL_TIMER | 3;

/// Looks for peers that withhold buffers.
pub(super) const PRESSURE_TIMER: Token = CONTROL_TIMER | 4;

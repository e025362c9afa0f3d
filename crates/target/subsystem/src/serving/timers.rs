//! Timers of a reactor of the target, by token. Every other token is a lane's generation and place, or a ticket with
//! `TICKET_TIMER` set.

use reactor::Token;

/// Deadlines of the control plane.
pub(super) const CONTROL_TIMER: Token = 1 << 62;

/// Releases memory of idle lanes.
pub(super) const SWEEP_TIMER: Token = CONTROL_TIMER | 1;

/// Deadlines of memcached connections.
pub(super) const MEMCACHED_TIMER: Token = CONTROL_TIMER | 2;

/// Poll for zero-copy notifications.
pub(super) const NOTICE_TIMER: Token = CONTROL_TIMER | 3;

/// Check for peers that withhold buffers.
pub(super) const PRESSURE_TIMER: Token = CONTROL_TIMER | 4;

/// Continues resizes of the memory of keys and values that waited.
pub(super) const RESIZE_TIMER: Token = CONTROL_TIMER | 5;

/// Tries values that wait for memory again.
pub(super) const VALUES_TIMER: Token = CONTROL_TIMER | 8;

/// The first command that waits for a rate limit may go on.
pub(super) const THROTTLE_TIMER: Token = CONTROL_TIMER | 7;

/// The end of a window in which one lane is served strictly first.
pub(super) const WINDOW_TIMER: Token = CONTROL_TIMER | 6;

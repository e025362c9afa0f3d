//! A connection that is given up while the kernel still reads what was sent on it without a copy.
//!
//! Buffers go back to their owners when nobody reads them any more. So the connection is broken first, which has the kernel forget what
//! it has not sent, and what becomes of the lane's commands is decided when it has given notice of the rest: at once, but for
//! packets that a device still has.

use std::sync::Arc;
use std::time::Duration;

use reactor::{Socket, abort_and_await};

use crate::error::{Error, LinkError};
use crate::lane::LaneMessage;

/// How often notices are looked for, ns.
pub(crate) const LOOK_NS: u64 = 1_000_000;

/// How long a lane that is dropped waits for notices.
const PATIENCE: Duration = Duration::from_millis(500);

/// What happens to the lane once the kernel is done.
#[derive(Debug)]
pub(crate) enum Then {
    /// It has lost its connection.
    Lose(LinkError),
    /// The association of this generation is lost.
    Detach(u64),
    /// There will be no further association.
    End(Arc<Error>),
}

/// A connection on its way out.
#[derive(Debug)]
pub(crate) struct Parting {
    pub(crate) socket: Socket,
    pub(crate) then: Then,
    /// What the association says meanwhile.
    pub(crate) messages: Vec<LaneMessage>,
}

impl Parting {
    pub(crate) fn new(socket: Socket, then: Then) -> Self {
        socket.abort();
        Self { socket, then, messages: Vec::new() }
    }
}

/// Breaks the connection of a lane that is dropped. Says whether the kernel is done with so many sends.
pub(crate) fn part_at_once(socket: &Socket, awaited_count: u32) -> bool {
    abort_and_await(socket, awaited_count, PATIENCE)
}

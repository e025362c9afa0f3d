//! Zero-copy sends of a lane, and the close of its connection while the kernel may still read their buffers.
//!
//! A buffer goes back to its owner when the kernel has given notice of every send that refers to it. So the connection is reset first, which
//! empties its send queue, and the lane's commands end when the notices of the remaining sends have come: at once, except for
//! packets that a device still has.

use std::sync::Arc;
use std::time::Duration;

use proto::host_queue::DataBuffer;
use proto::zero_copy::{Policy as ZeroCopy, Threshold};
use reactor::{Socket, abort_and_await, stays_on_this_machine};

use super::{Lane, LaneCounters, LaneMessage, Link};
use crate::connect::Progress;
use crate::error::{Error, LinkError};

/// How often notices are looked for, ns.
pub(super) const LOOK_NS: u64 = 1_000_000;

/// How long a lane that is dropped waits for notices.
const PATIENCE: Duration = Duration::from_millis(500);

/// What happens to the lane once the kernel is done.
#[derive(Debug)]
pub(super) enum Then {
    /// It has lost its connection.
    Lose(LinkError),
    /// The association of this generation is lost.
    Detach(u64),
    /// There will be no further association.
    End(Arc<Error>),
}

/// A connection on its way out.
#[derive(Debug)]
pub(super) struct LingeringClose {
    pub(super) socket: Socket,
    pub(super) then: Then,
    /// What the association says meanwhile.
    pub(super) messages: Vec<LaneMessage>,
}

impl LingeringClose {
    pub(super) fn new(socket: Socket, then: Then) -> Self {
        socket.abort();
        Self { socket, then, messages: Vec::new() }
    }
}

impl<B: DataBuffer> Lane<B> {
    /// Lets go of what the kernel does not read any more.
    #[cold]
    pub(super) fn take_notices(&mut self) {
        let socket = match &self.link {
            Link::Connected(socket) => socket,
            Link::Lingering(lingering) => &lingering.socket,
            Link::None | Link::Dialling(_) => return,
        };
        while self.core.awaited_count() > 0
            && let Some(notice) = socket.next_notice()
        {
            self.core.on_notice(notice.first, notice.last);
            if notice.is_copied {
                self.counters.zero_copy_copied += u64::from(notice.send_count());
            }
            if self.zero_copy.on_notice(notice.send_count(), notice.is_copied) {
                tracing::debug!(
                    lane = self.core.qid().get(),
                    "the kernel copies what is sent without a copy: no more of it"
                );
            }
        }
    }

    /// Gives the connection up, now or when the kernel is done with what was sent on it.
    pub(super) fn give_up(&mut self, then: Then) {
        if self.core.awaited_count() == 0 {
            return self.leave(then);
        }
        match std::mem::replace(&mut self.link, Link::None) {
            Link::Connected(socket) => {
                self.link = Link::Lingering(Box::new(LingeringClose::new(socket, then)));
                self.linger();
            }
            _ => unreachable!("only what is connected sends"),
        }
    }

    /// Looks whether the kernel is done.
    #[cold]
    pub(super) fn linger(&mut self) {
        self.take_notices();
        if self.core.awaited_count() > 0 {
            return;
        }
        if let Link::Lingering(lingering) = std::mem::replace(&mut self.link, Link::None) {
            let LingeringClose { socket, then, messages } = *lingering;
            drop(socket);
            self.leave(then);
            messages.into_iter().for_each(|message| self.on_message(message));
        }
    }

    /// Has decided what becomes of the lane's commands.
    pub(super) fn leave(&mut self, then: Then) {
        match then {
            Then::Lose(cause) => self.core.on_lost(cause),
            Then::Detach(generation) => {
                self.core.detach(generation);
                if !self.core.is_live() {
                    self.last_loss.get_or_insert(LinkError::Association);
                }
            }
            Then::End(error) => {
                self.core.end();
                self.over = Some(error);
            }
        }
        self.act();
    }
}

/// Which sends of a new connection leave their bytes where they lie.
pub(super) fn zero_copy_on(socket: &Socket, policy: ZeroCopy) -> Threshold {
    let is_local = stays_on_this_machine(socket.local().ok(), socket.peer().ok());
    let threshold = Threshold::new(policy, is_local);
    if threshold.is_on() && socket.allow_zero_copy() { threshold } else { Threshold::NEVER }
}

impl LaneCounters {
    pub(super) fn count_zero_copy(&mut self, progress: Progress) {
        if progress.is_zero_copy {
            self.zero_copy_sends += 1;
            self.zero_copy_bytes += progress.sent_bytes as u64;
        }
    }
}

impl<B> Drop for Lane<B> {
    /// Waits until the kernel has given notice of every send, for half a second at most: then the queue leaks the buffers.
    fn drop(&mut self) {
        let socket = match &self.link {
            Link::Connected(socket) => socket,
            Link::Lingering(lingering) => &lingering.socket,
            Link::None | Link::Dialling(_) => return,
        };
        let core = &mut self.core;
        if core.awaited_count() == 0 {
            return;
        }
        abort_and_await(socket, PATIENCE, |notice| {
            core.on_notice(notice.first, notice.last);
            core.awaited_count() > 0
        });
        let sends = core.awaited_count();
        if sends > 0 {
            tracing::warn!(sends, "a device still reads the buffers of a dropped lane: they are leaked");
        }
    }
}

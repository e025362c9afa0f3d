//! Sends of a lane that leave their bytes where they lie, and its connection given up while the kernel still reads what was sent on it without a copy.
//!
//! Buffers go back to their owners when nobody reads them any more. So the connection is broken first, which has the kernel forget what
//! it has not sent, and what becomes of the lane's commands is decided when it has given notice of the rest: at once, but for
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
pub(super) struct Parting {
    pub(super) socket: Socket,
    pub(super) then: Then,
    /// What the association says meanwhile.
    pub(super) messages: Vec<LaneMessage>,
}

impl Parting {
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
            Link::Parting(parting) => &parting.socket,
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
                self.link = Link::Parting(Box::new(Parting::new(socket, then)));
                self.part();
            }
            _ => unreachable!("only what is connected sends"),
        }
    }

    /// Looks whether the kernel is done.
    #[cold]
    pub(super) fn part(&mut self) {
        self.take_notices();
        if self.core.awaited_count() > 0 {
            return;
        }
        if let Link::Parting(parting) = std::mem::replace(&mut self.link, Link::None) {
            let Parting { socket, then, messages } = *parting;
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
    /// Its buffers go with it: the kernel is to be done with them.
    fn drop(&mut self) {
        let awaited_count = self.core.awaited_count();
        let socket = match &self.link {
            Link::Connected(socket) => socket,
            Link::Parting(parting) => &parting.socket,
            Link::None | Link::Dialling(_) => return,
        };
        if awaited_count > 0 && !abort_and_await(socket, awaited_count, PATIENCE) {
            tracing::warn!("buffers that a device still reads are given up with their lane");
            self.core.leak();
        }
    }
}

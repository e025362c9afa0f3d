//! The reactor, as backends see it.

use std::collections::VecDeque;

use linux::Moment;
use memory::{Buffer, Pool};
use reactor::{Io, Operation};
use store::{Reply, StoreIo, Ticket};

use crate::io_path::attached::AttachedIndex;
use crate::io_path::reserve::Reserve;
use crate::messages::message::Message;

/// Set in a timer's token if it belongs to a ticket.
pub(crate) const TICKET_TIMER: u64 = 1 << 63;

/// Operations and replies of backends that are still to be passed on.
#[derive(Default)]
pub(crate) struct StoreQueues {
    /// Operations that the engine had no room for.
    overflow: VecDeque<(Ticket, Operation)>,
    pub(crate) replies: VecDeque<(Ticket, Reply)>,
}

impl StoreQueues {
    /// Starts operations that the engine had no room for, as far as it has now.
    pub(crate) fn start_waiting<I: Io<Message>>(&mut self, io: &mut I) {
        while let Some((ticket, operation)) = self.overflow.pop_front() {
            if let Err(operation) = io.start(ticket.0, operation) {
                self.overflow.push_front((ticket, operation));
                break;
            }
        }
    }
}

/// The reactor, as the backend of one namespace sees it.
pub(crate) struct StoreAccess<'a, I> {
    pub(crate) io: &'a mut I,
    pub(crate) queues: &'a mut StoreQueues,
    pub(crate) reserve: &'a mut Reserve,
    /// The namespace of the backend.
    pub(crate) at: AttachedIndex,
}

impl<I: Io<Message>> StoreIo for StoreAccess<'_, I> {
    fn now_ns(&self) -> u64 {
        self.io.now_ns()
    }

    fn clock_ns(&self) -> u64 {
        self.io.clock_ns()
    }

    fn moment(&self) -> Moment {
        self.io.moment()
    }

    fn pool(&self) -> &Pool {
        self.io.pool()
    }

    fn take_critical(&mut self, length: usize) -> Option<Buffer> {
        self.io.pool().take(length).or_else(|| self.reserve.take(length))
    }

    fn give_back(&mut self, buffer: Option<Buffer>) {
        self.reserve.release(buffer);
    }

    fn start(&mut self, ticket: Ticket, operation: Operation) {
        // Behind operations that wait: those of a namespace keep their order.
        if !self.queues.overflow.is_empty() {
            self.queues.overflow.push_back((ticket, operation));
        } else if let Err(operation) = self.io.start(ticket.0, operation) {
            self.queues.overflow.push_back((ticket, operation));
        }
    }

    fn set_timer(&mut self, deadline_ns: u64, ticket: Ticket) {
        self.io.set_timer(deadline_ns, ticket.0 | TICKET_TIMER);
    }

    fn reply(&mut self, ticket: Ticket, reply: Reply) {
        self.queues.replies.push_back((ticket, reply));
    }

    fn own(&self, number: u32) -> Ticket {
        self.at.own_ticket(number)
    }
}

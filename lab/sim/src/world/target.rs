//! The target's process: its reactors, their messages, and the machine that it runs on.

use subsystem::message::Message;

use super::machines::Machine;
use crate::reactor_io::{MESSAGE_NS_MAX, SimReactor};
use crate::shared::Shared;

#[derive(Default)]
pub(crate) struct Target {
    /// None while it is down.
    pub(super) reactors: Vec<SimReactor>,
    /// The machine that has the target's address.
    pub(super) machine: Machine,
    /// Messages of reactors to each other that are not posted yet.
    pub(super) outbox: Vec<(usize, Message)>,
    pub(super) start_count: u64,
    pub(super) is_stopping: bool,
    /// When it stops.
    pub(super) stop_ns: Option<u64>,
}

impl Target {
    pub(super) fn is_up(&self) -> bool {
        !self.reactors.is_empty()
    }

    /// Posts the messages that reactors have sent each other.
    pub(super) fn dispatch(&mut self, shared: &mut Shared) {
        for (to, message) in std::mem::take(&mut self.outbox) {
            self.post(shared, to, message);
        }
    }

    /// Posts a message to a reactor.
    pub(super) fn post(&mut self, shared: &mut Shared, to: usize, message: Message) {
        let at_ns = shared.now_ns + shared.random.between(1, MESSAGE_NS_MAX);
        if let Some(reactor) = self.reactors.get_mut(to) {
            let at_ns = reactor.deliver(at_ns, message);
            shared.wake_at(to, at_ns);
        }
    }
}

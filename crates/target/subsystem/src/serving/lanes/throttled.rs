//! Continues the commands that wait for rate limits.

use reactor::Io;
use store::Ticket;

use super::{LaneServer, caller_of};
use crate::io_path::commands::Commands;
use crate::io_path::executor::IoExecutor;
use crate::io_path::io_command::{Begun, Hold};
use crate::io_path::running::Owner;
use crate::io_path::throttle::Released;
use crate::messages::message::Message;
use crate::serving::timers::THROTTLE_TIMER;

impl LaneServer {
    /// Begins the commands that have passed their rate limits. Returns whether there were any.
    #[cold]
    #[inline(never)]
    pub(super) fn release_throttled(&mut self, io: &mut impl Io<Message>, commands: &mut Commands) -> bool {
        commands.throttle.set_in_flight(commands.running.flows.rest);
        let released = commands.throttle.release(io.now_ns());
        let worked = !released.is_empty();
        for Released { ticket, is_paid } in released {
            self.begin_throttled(io, commands, ticket, is_paid);
        }
        if let Some(at_ns) = commands.throttle.next_timer() {
            io.set_timer(at_ns, THROTTLE_TIMER);
        }
        worked
    }

    fn begin_throttled(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        ticket: Ticket,
        is_paid: bool,
    ) {
        // Its lane may have been closed after another command of it.
        let Some((owner, sqe, data, since_ns)) = commands.take_throttled(ticket) else { return };
        let (Owner::Lane { index, slot, .. }, Some(caller)) = (owner, caller_of(&self.lanes, owner)) else {
            commands.running.remove(ticket);
            return;
        };
        let waited_ns = io.now_ns().saturating_sub(since_ns);
        if let Some(lane) = self.lanes.get_mut(index) {
            lane.counters.throttled_count.add(1);
            lane.counters.throttled_ns.add(waited_ns);
            lane.queue.set_context(slot, None);
        }
        if let Some(traffic) = commands.namespaces.traffic_of(Some(caller.view), sqe.nsid()) {
            traffic.on_throttled(waited_ns);
        }
        let mut executor = IoExecutor { commands, io: &mut *io };
        let mut begun = executor.begin_throttled(&caller, &sqe, &data, ticket, is_paid);
        match &mut begun {
            // Its lane is held already.
            Begun::Started { hold, .. } if self.lanes.get(index).is_some_and(|lane| lane.held.is_some()) => {
                *hold = Hold::None;
            }
            Begun::Started { .. } => {}
            _ => drop(commands.running.remove(ticket)),
        }
        let mut dispatcher = self.dispatcher(io, commands);
        dispatcher.follow_released(index, slot, &sqe, &begun);
        let after = dispatcher.on_begun(index, slot, &sqe, begun);
        self.follow_up(io, commands, index, after);
        if let Some((lane, lists)) = self.lanes.entry(index) {
            lists.mark_dirty(lane);
        }
    }
}

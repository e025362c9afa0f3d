//! Lanes on their way to their reactor: asked about when they connect, handed over, taken over. docs/design/placement.md

use std::num::NonZeroU32;
use std::sync::Arc;

use proto::ControllerQueue;
use reactor::Io;

use super::Serving;
use crate::lane::LaneState;
use crate::message::{
    ConnectionMessage, ControlMessage, Message, Moving, PlacementMessage, Placing, Request, RequestKind,
};
use crate::placement::{Connecting, Left};
use crate::state::{BusyPollState, ReactorState};

impl Serving {
    /// A lane asks for a controller or a queue. An I/O lane is first given its reactor.
    pub(super) fn post_connect(&mut self, io: &mut impl Io<Message>, index: u32, request: Request) {
        let reactor = usize::from(self.reactor);
        let Some(lane) = self.lanes.get_mut(index) else { return };
        let qid = lane.state.qid();
        if lane.is_placed || qid.is_admin() {
            return io.post(0, Message::Control(ControlMessage::Request(request)));
        }
        lane.is_placed = true;
        let arrival = lane.socket().map(|socket| io.arrival(socket)).unwrap_or_default();
        let peer = lane.peer;
        let counted_napi = std::mem::replace(&mut lane.napi, arrival.napi_id);
        lane.counters.napi_id.set(arrival.napi_id.map_or(0, |id| id.get().into()));
        let connecting = Connecting { reactor, qid, counted_napi, arrival };
        if arrival.napi_id.is_none()
            && io.busy_polling().wanted.is_on()
            && !std::mem::replace(&mut self.has_told_unpolled, true)
        {
            tracing::info!(
                ?peer,
                "busy polling: packets of this host come through no device that can be polled"
            );
        }
        io.post(
            0,
            Message::Placement(PlacementMessage::Place(Box::new(Placing { connecting, connect: request }))),
        );
    }

    /// Decides where a lane goes on; on the first reactor.
    pub(super) fn place(&mut self, io: &mut impl Io<Message>, placing: Placing) {
        let Some(home) = &mut self.home else { return };
        let Placing { connecting, connect } = placing;
        let to = home.placement.on_connect(connecting);
        if to == connecting.reactor {
            self.on_control(io, ControlMessage::Request(connect));
        } else {
            io.post(
                connecting.reactor,
                Message::Connection(ConnectionMessage::HandOver { to, connect: Box::new(connect) }),
            );
        }
    }

    /// Gives a lane away, unless more has come than its Connect: then it stays.
    pub(super) fn hand_over(&mut self, io: &mut impl Io<Message>, to: usize, connect: Request) {
        let (id, from) = (connect.lane, usize::from(self.reactor));
        let not_moved = |is_gone| Message::Placement(PlacementMessage::NotMoved { from, to, is_gone });
        let RequestKind::Command { slot, .. } = connect.kind else { return };
        let connecting = self.lanes.by_id(id).and_then(|lane| match lane.state {
            LaneState::Connecting { qid } => Some((lane, qid)),
            _ => None,
        });
        let Some((lane, qid)) = connecting else {
            // It has ended, or will at once.
            return io.post(0, not_moved(true));
        };
        let parted = lane.queue.part(slot).filter(|_| lane.held.is_none());
        let taken = parted.zip(lane.socket().and_then(|socket| io.release(socket)));
        let Some((queue, connection)) = taken else {
            io.post(0, not_moved(false));
            return io.post(0, Message::Control(ControlMessage::Request(connect)));
        };
        let (listener, napi, counters) = (lane.listener, lane.napi, Arc::clone(&lane.counters));
        tracing::debug!(peer = ?lane.peer, %qid, to, "lane handed over");
        self.commands.shares.forget(id.index);
        self.lanes.remove(id.index);
        let moving = Moving { connection, listener, queue, qid, napi, counters, connect };
        io.post(to, Message::Connection(ConnectionMessage::TakeOver(Box::new(moving))));
    }

    /// Goes on with a lane that another reactor has begun.
    pub(super) fn take_over(&mut self, io: &mut impl Io<Message>, moving: Moving) {
        let Moving { connection, listener, queue, qid, napi, counters, mut connect } = moving;
        let Some(index) = self.begin_lane(io, connection, listener, napi, true) else { return };
        let (queue, resumed) = ControllerQueue::resume(self.settings.queue, queue);
        let now_ns = io.now_ns();
        let Some(lane) = self.lanes.get_mut(index) else { return };
        (lane.queue, lane.counters) = (queue, counters);
        lane.enter(LaneState::Connecting { qid }, now_ns);
        connect.lane = lane.id;
        if let RequestKind::Command { slot, .. } = &mut connect.kind {
            *slot = resumed;
        }
        io.post(0, Message::Control(ControlMessage::Request(connect)));
    }

    /// What is known of a lane to be placed is no longer true.
    pub(super) fn post_left(&self, io: &mut impl Io<Message>, napi: Option<NonZeroU32>, is_io: bool) {
        let left = Left { reactor: self.reactor.into(), napi, is_io };
        io.post(0, Message::Placement(PlacementMessage::Left(left)));
    }

    /// How this reactor is.
    pub(super) fn describe(&self, io: &impl Io<Message>) -> ReactorState {
        let polling = io.busy_polling();
        let lanes = self.lanes.iter();
        ReactorState {
            reactor: self.reactor,
            lanes: lanes.clone().count(),
            io_lanes: lanes.filter(|lane| lane.state.io_queue().is_some()).count(),
            io_lanes_ever: self.io_lanes_ever,
            napi_ids: self.lanes.napi_ids(),
            busy_poll: BusyPollState {
                wait_us: polling.wanted.wait_us,
                engine: polling.engine.text(),
                sockets: polling.socket.poll.text(),
                prefer: polling.socket.prefer.text(),
                budget: polling.socket.budget.text(),
                socket_count: polling.socket_count,
                refused_count: polling.refused_count,
                spins: polling.spin_count,
                spin_hits: polling.spin_hit_count,
                polled_sleeps: polling.sleep_count,
                polled_hits: polling.sleep_hit_count,
            },
            buffers: self.commands.shares.state(io.pool()),
            // Its turns are counted where it runs.
            ..ReactorState::default()
        }
    }
}

//! The reactor of a lane: asks the placement for it when the lane connects, and hands the lane over if it is on another
//! reactor.

use std::num::NonZeroU32;
use std::sync::Arc;

use proto::ControllerQueue;
use reactor::{Io, SocketId};
use wire::fabrics::ConnectCommand;

use super::LaneServer;
use crate::control_plane::admission::reason;
use crate::io_path::commands::Commands;
use crate::io_path::lane::LaneState;
use crate::io_path::maybe_tls_socket::MaybeTlsSocket;
use crate::messages::message::{
    Channel, Connecting, ConnectionMessage, ControlMessage, Left, Message, Moving, PlacementMessage, Placing,
    Request, RequestKind,
};

impl LaneServer {
    /// Passes on the Connect of a lane: of an I/O lane first to the placement, which assigns a reactor to the lane.
    pub(super) fn post_connect(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        index: u32,
        mut request: Request,
    ) {
        let reactor = usize::from(self.reactor);
        let Some(lane) = self.lanes.get_mut(index) else { return };
        if !lane.transport.is_tls() && !self.tls.permits_clear(lane.listener) {
            // Accepted before a reload that requires TLS.
            lane.complain(io, reason::IN_CLEAR, None);
            return self.close(io, commands, index);
        }
        if let RequestKind::Command { channel: channel @ Channel::Clear, .. } = &mut request.kind
            && self.tls.demands_key(lane.listener)
        {
            *channel = Channel::ClearForKey;
        }
        let qid = lane.state.qid();
        if lane.is_placed || qid.is_admin() {
            return io.post(0, Message::Control(ControlMessage::Request(request)));
        }
        lane.is_placed = true;
        let arrival = lane.socket().map(|socket| io.arrival(socket)).unwrap_or_default();
        let peer = lane.peer;
        let counted_napi = std::mem::replace(&mut lane.napi, arrival.napi_id);
        lane.counters.napi_id.set(arrival.napi_id.map_or(0, |id| id.get().into()));
        let near_partition = match &request.kind {
            RequestKind::Command { sqe, .. } => ConnectCommand::from_sqe(sqe).near_partition,
            _ => None,
        };
        let connecting = Connecting { reactor, qid, counted_napi, arrival, near_partition };
        if arrival.napi_id.is_none()
            && io.busy_polling().wanted.is_on()
            && !std::mem::replace(&mut self.has_told_unpolled, true)
        {
            tracing::info!(
                peer = peer.map(tracing::field::display),
                "busy polling: packets of this host come through no device that can be polled"
            );
        }
        io.post(
            0,
            Message::Placement(PlacementMessage::Place(Box::new(Placing { connecting, connect: request }))),
        );
    }

    /// Hands a lane over to another reactor, unless more has arrived than its Connect: then it stays.
    pub(in crate::serving) fn hand_over(
        &mut self,
        io: &mut impl Io<Message>,
        commands: &mut Commands,
        to: usize,
        connect: Request,
    ) {
        let (id, from) = (connect.lane, usize::from(self.reactor));
        let not_moved = |is_gone| Message::Placement(PlacementMessage::NotMoved { from, to, is_gone });
        let RequestKind::Command { slot, .. } = connect.kind else { return };
        let connecting = self.lanes.by_id(id).and_then(|lane| match lane.state {
            LaneState::Connecting { qid } => Some((lane, qid)),
            _ => None,
        });
        let Some((lane, qid)) = connecting else {
            // It has ended, or is about to.
            return io.post(0, not_moved(true));
        };
        let parted = lane.queue.part(slot).filter(|_| lane.held.is_none());
        let taken = parted.zip(lane.socket().and_then(|socket| io.release(socket)));
        let Some((queue, mut connection)) = taken else {
            io.post(0, not_moved(false));
            return io.post(0, Message::Control(ControlMessage::Request(connect)));
        };
        // A socket that its peer has reset since no longer knows the address that it counts under.
        (connection.peer, connection.local) = (lane.peer, lane.local);
        let (listener, napi, counters) = (lane.listener, lane.napi, Arc::clone(&lane.counters));
        let tls = lane.transport.take_stream();
        tracing::debug!(peer = ?lane.peer, %qid, to, "lane handed over");
        commands.quota.forget(id.index);
        self.lanes.remove(id.index);
        let moving = Moving { connection, listener, queue, tls, qid, napi, counters, connect };
        io.post(to, Message::Connection(ConnectionMessage::TakeOver(Box::new(moving))));
    }

    /// Continues a lane that another reactor has handed over. Returns its socket and its place.
    pub(in crate::serving) fn take_over(
        &mut self,
        io: &mut impl Io<Message>,
        moving: Moving,
    ) -> Option<(SocketId, u32)> {
        let Moving { connection, listener, queue, tls, qid, napi, counters, mut connect } = moving;
        let (socket, index) = self.begin_lane(io, connection, listener, napi, true)?;
        let (queue, resumed) = ControllerQueue::resume(self.settings.queue, queue);
        let now_ns = io.now_ns();
        let lane = self.lanes.get_mut(index)?;
        (lane.queue, lane.counters) = (queue, counters);
        lane.transport = MaybeTlsSocket::taken_over(socket, tls);
        lane.enter(LaneState::Connecting { qid }, now_ns);
        connect.lane = lane.id;
        if let RequestKind::Command { slot, .. } = &mut connect.kind {
            *slot = resumed;
        }
        io.post(0, Message::Control(ControlMessage::Request(connect)));
        Some((socket, index))
    }

    /// Reports to the placement that a lane has left this reactor.
    pub(super) fn post_left(&self, io: &mut impl Io<Message>, napi: Option<NonZeroU32>, is_io: bool) {
        let left = Left { reactor: self.reactor.into(), napi, is_io };
        io.post(0, Message::Placement(PlacementMessage::Left(left)));
    }
}

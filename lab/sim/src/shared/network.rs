//! A network of TCP connections: bytes arrive late, in pieces, wrong or never, but never out of order.

use std::collections::VecDeque;
use std::io::Read;
use std::net::SocketAddr;
use std::rc::Rc;

use reactor::ListenerTag;
use subsystem::config::TlsPolicy;
use wire::pdu::Digests;

use super::tls_view::TlsView;
use super::{Actor, Event, Shared, Side};
use crate::coverage::{Requests, Waiting, Watch};
use crate::random::Random;
use crate::scenario::US;
use crate::sent_bytes::SentBytes;
use crate::timeline::About;
use crate::tls_right::{Channel, Right};

/// Bytes of a stream that nothing protects: the handshake, before digests are agreed on.
const UNPROTECTED_BYTES: u64 = 256;

/// The listener of hosts.
pub(crate) const NVME: ListenerTag = 1;

/// The end of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    /// In good order.
    Finished,
    /// With an error.
    Reset,
}

/// Result of a receive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    Bytes(usize),
    Dry,
    Ended,
    Reset,
}

/// The outcome of a send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Took {
    Bytes(usize),
    Blocked,
    Reset,
}

/// Bytes on the way.
#[derive(Debug)]
struct Piece {
    /// When it arrives.
    at_ns: u64,
    length: usize,
    /// If it was sent without a copy: where it is read when it arrives, as if the first transmission had been lost.
    source: Option<(Rc<SentBytes>, usize)>,
}

impl Piece {
    /// Whether it is read at this place of a send.
    fn follows(&self, sent: &Rc<SentBytes>, end: usize) -> bool {
        self.source.as_ref().is_some_and(|(of, offset)| Rc::ptr_eq(of, sent) && *offset == end)
    }
}

/// One direction of a connection.
#[derive(Debug, Default)]
struct Stream {
    /// The bytes that have arrived, and behind them those on the way.
    bytes: VecDeque<u8>,
    arrived_bytes: usize,
    /// The pieces on the way, in order.
    on_the_way: VecDeque<Piece>,
    /// When the last piece arrives.
    last_ns: u64,
    /// The end that is on its way, and when it arrives.
    end: Option<(u64, End)>,
    /// The end that has arrived.
    ended: Option<End>,
    sent_bytes: u64,
    received_bytes: u64,
    /// A part of its bytes was dropped on the way: the bytes behind it do not arrive either.
    is_broken: bool,
    /// The sender waits for room.
    is_awaited: bool,
}

/// Length of the header of a C2HData, bytes. wire §2
const DATA_HEADER_BYTES: u64 = 24;

/// In place of the time from which on the target sends nothing, if earlier answers may wait for room.
const UNSENT_NS: u64 = u64::MAX - 1;

/// Length of an ICResp, bytes. wire §2
const IC_BYTES: u64 = 128;

/// Phase of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Dialling,
    Open,
    Refused,
}

#[derive(Debug)]
pub(crate) struct Connection {
    pub(crate) phase: Phase,
    /// The actor that waits for it on each end.
    pub(crate) owners: [Option<Actor>; 2],
    /// Which ends are closed.
    pub(crate) closed: [bool; 2],
    /// By receiving end.
    streams: [Stream; 2],
    latency_ns: u64,
    /// Draws its events.
    random: Random,
    /// Silent: nothing passes, and neither end learns of it.
    pub(crate) is_cut: bool,
    /// Its host has given it up, and the target does not learn of it.
    is_abandoned: bool,
    /// Its host's address.
    pub(crate) peer: SocketAddr,
    /// When the target has accepted it, ns.
    pub(crate) accepted_ns: Option<u64>,
    /// When its host has closed or reset it after it had gone silent, ns.
    given_up_ns: Option<u64>,
    /// When the target has closed it, ns.
    pub(crate) closed_by_target_ns: Option<u64>,
    /// The target has accepted it and not served it.
    pub(crate) is_turned_away: bool,
    /// A middlebox has reset it.
    pub(crate) is_broken: bool,
    /// The target is down: a sender learns of it when the target is up again.
    is_orphan: bool,
    /// The host's thread that has dialled it.
    pub(crate) dialler: Actor,
    pub(crate) listener: ListenerTag,
    /// When bytes last arrived at the target, or it answered Connect, which it may hold: from there on it expects signs
    /// of life.
    pub(crate) heard_ns: u64,
    /// The time, ns, of the clock of the thread that last received from it.
    taken_in_ns: u64,
    /// The target sends nothing after this time, ns.
    pub(crate) silent_from_ns: u64,
    /// When a bit of it was last wrong, ns.
    pub(crate) damaged_ns: Option<u64>,
    pub(crate) watch: Watch,
    pub(crate) tls: TlsView,
}

impl Connection {
    /// Whether the target has answered more than the handshake: the host's Connect.
    pub(crate) fn has_answered_connect(&self) -> bool {
        let is_secured = self.tls.is_secured();
        let clear_bytes = self.streams[Side::Host as usize].sent_bytes;
        (if is_secured { self.watch.passed_from_target_bytes() } else { clear_bytes }) > IC_BYTES
    }

    /// Whether the target serves it as a queue of an association.
    pub(crate) fn is_served(&self) -> bool {
        self.owners[1].is_some() && !self.closed[1] && self.is_connected()
    }

    /// Whether it is a queue whose host may have to authenticate, if hosts have to.
    pub(crate) fn may_owe_authentication(&self) -> bool {
        self.is_connected() && !self.watch.is_in_use
    }

    /// Whether the target may count it among the queues that owe authentication: it does from the moment at which it
    /// decides to accept a Connect, whose answer the reactor of the queue sends later.
    pub(crate) fn may_count_as_owing(&self) -> bool {
        self.may_owe_authentication() || self.watch.has_open_connect(self.received_by_target_bytes())
    }

    /// Whether the target may have answered a message of authentication without its host learning the status: a queue
    /// that ends sends its answers once, and drops what the socket does not take.
    pub(crate) fn may_withhold_verdict(&self) -> bool {
        self.streams[Side::Host as usize].is_awaited && self.watch.owes_verdict()
    }

    /// Its association has ended: the target sends nothing after this time, except for bytes that it had no room for.
    pub(crate) fn silence(&mut self, from_ns: u64) {
        let has_room = !self.streams[Side::Host as usize].is_awaited;
        self.silent_from_ns = if has_room { from_ns } else { UNSENT_NS };
    }

    /// Whether the target has learned that the host has closed it.
    pub(crate) fn is_ended_by_host(&self) -> bool {
        self.streams[Side::Target as usize].ended.is_some()
    }

    /// Whether at this time or later nothing passed any more, and its host had not given it up.
    pub(crate) fn was_silent_since(&self, since_ns: u64) -> bool {
        self.is_cut && self.given_up_ns.is_none_or(|at_ns| at_ns >= since_ns)
    }

    /// Whether the target served it at this time or later, and could hear nothing of its host.
    pub(crate) fn was_served_in_vain(&self, since_ns: u64) -> bool {
        let is_open = self.phase == Phase::Open && !self.closed[Side::Target as usize];
        let was_open = is_open || self.closed_by_target_ns.is_some_and(|at_ns| at_ns >= since_ns);
        (self.is_cut || self.is_abandoned) && was_open
    }

    /// Whether the target has accepted it and has not closed it.
    pub(crate) fn is_open_at_target(&self) -> bool {
        self.accepted_ns.is_some() && !self.closed[Side::Target as usize]
    }

    /// Requests to the second namespace that its commands have come to.
    pub(crate) fn requests(&self) -> &Requests {
        &self.watch.requests
    }

    /// Requests of commands that are not answered.
    pub(crate) fn open_requests(&self) -> Requests {
        self.watch.open_requests()
    }

    /// Whether it has been a queue of an association.
    pub(crate) fn is_connected(&self) -> bool {
        self.watch.is_connected
    }

    /// The fault of an unencrypted queue, if it is one.
    fn clear_queue(&self, policy: TlsPolicy) -> Option<&'static str> {
        if self.tls.is_secured() || !self.watch.is_connected {
            return None;
        }
        match policy {
            TlsPolicy::Off | TlsPolicy::Allowed => None,
            TlsPolicy::Concatenated if self.watch.is_admin() => None,
            TlsPolicy::Concatenated => {
                Some("an I/O queue is connected in cleartext where a key must be generated")
            }
            TlsPolicy::Required => Some("a queue is connected in cleartext where TLS is required"),
        }
    }

    /// Bytes of PDUs that the target has received.
    fn received_by_target_bytes(&self) -> u64 {
        let clear_bytes = self.streams[Side::Target as usize].received_bytes;
        if self.tls.is_secured() { self.tls.decrypted_bytes(Side::Target) } else { clear_bytes }
    }

    /// The wait of each of its commands that the target has and has not answered.
    pub(crate) fn waiting(&self) -> impl Iterator<Item = Waiting> {
        self.watch.waiting(self.received_by_target_bytes())
    }
}

/// All connections.
#[derive(Debug, Default)]
pub(crate) struct Network {
    pub(crate) connections: Vec<Connection>,
    /// Those that the target has closed since this was last looked at.
    pub(crate) closed_by_target: Vec<usize>,
    /// Of these, those that it has turned away at once.
    pub(crate) turned_away: Vec<usize>,
    /// Those on which it has refused a Connect since it has too many controllers.
    pub(crate) busy: Vec<usize>,
    /// Those that it has accepted, or made a queue of, since this was last looked at.
    pub(crate) entered: Vec<usize>,
    /// Nothing arrives before.
    pub(crate) partition_until_ns: u64,
    /// When the target's machine answers again; `u64::MAX` while that is open.
    pub(crate) is_target_up: bool,
    /// The target has opened its first listener: a connection before that is refused.
    pub(crate) is_listening: bool,
}

impl Stream {
    /// Loses all segments in transit except the first `count`.
    fn lose(&mut self, kept: usize) {
        let lost: usize = self.on_the_way.drain(kept..).map(|piece| piece.length).sum();
        self.bytes.truncate(self.bytes.len() - lost);
    }

    /// Reads bytes on the way that were sent without a copy, from their memory as it is now.
    fn read_sources(&mut self, is_read: impl Fn(&Piece) -> bool) -> Result<(), String> {
        let mut start = self.arrived_bytes;
        let mut pieces = self.on_the_way.iter_mut().take_while(|piece| is_read(piece)).peekable();
        while let Some(piece) = pieces.next() {
            let mut length = piece.length;
            if let Some((sent, offset)) = piece.source.take() {
                // Pieces that follow each other in a send are read at once.
                while let Some(next) = pieces.next_if(|next| next.follows(&sent, offset + length)) {
                    next.source = None;
                    length += next.length;
                }
                let bytes = sent.read(offset, length)?;
                overwrite(&mut self.bytes, start, &bytes);
            }
            start += length;
        }
        Ok(())
    }
}

/// Overwrites bytes from a place on: by slices, which is quicker than byte by byte.
fn overwrite(bytes: &mut VecDeque<u8>, start: usize, content: &[u8]) {
    let (front, back) = bytes.as_mut_slices();
    let (first, second) = content.split_at(front.len().saturating_sub(start).min(content.len()));
    if let Some(place) = front.get_mut(start..start + first.len()) {
        place.copy_from_slice(first);
    }
    let start = (start + first.len()).saturating_sub(front.len());
    back[start..start + second.len()].copy_from_slice(second);
}

fn index(side: Side) -> usize {
    match side {
        Side::Host => 0,
        Side::Target => 1,
    }
}

impl Shared {
    /// A host's thread connects, to this listener.
    pub(crate) fn dial(&mut self, owner: Actor, listener: ListenerTag) -> usize {
        let network = &self.scenario.network;
        let dial_count = self.network.connections.iter().filter(|of| of.dialler == owner).count();
        let mut random = Random::of(self.scenario.chance, 21, &[owner as u64, dial_count as u64]);
        let latency_ns = network.latency_ns + random.below(network.latency_ns);
        let id = self.network.connections.len();
        self.network.connections.push(Connection {
            phase: Phase::Dialling,
            owners: [Some(owner), None],
            closed: [false; 2],
            streams: Default::default(),
            latency_ns,
            random,
            is_cut: false,
            is_abandoned: false,
            given_up_ns: None,
            closed_by_target_ns: None,
            peer: self.scenario.address(owner),
            accepted_ns: None,
            is_broken: false,
            is_turned_away: false,
            is_orphan: false,
            dialler: owner,
            listener,
            heard_ns: self.now_ns,
            taken_in_ns: 0,
            silent_from_ns: u64::MAX,
            watch: Watch::new(self.scenario.wire_limits()),
            tls: TlsView::default(),
            damaged_ns: None,
        });
        let at_ns = self.arrival_ns(id);
        self.at(at_ns, Event::Accept(id));
        self.say(|| format!("connection {id}: dialled"));
        id
    }

    /// The arrival of bytes that are sent now.
    fn arrival_ns(&mut self, id: usize) -> u64 {
        let network = self.scenario.network;
        let connection = &mut self.network.connections[id];
        let random = &mut connection.random;
        let mut at_ns = self.now_ns + connection.latency_ns;
        at_ns += random.below(network.jitter_ns);
        if self.is_hostile && random.happens(network.late) {
            let late_ns = random.below(network.late_ns);
            at_ns += late_ns;
            let dialler = self.network.connections[id].dialler;
            self.slow_actor_until("late segment", dialler, late_ns, at_ns);
        }
        at_ns.max(self.network.partition_until_ns)
    }

    /// The dial has reached the target: returns whether it is accepted.
    pub(crate) fn on_accept(&mut self, id: usize) -> bool {
        let is_up = self.network.is_listening;
        let connection = &mut self.network.connections[id];
        if connection.closed[0] {
            return false;
        }
        connection.phase = if is_up { Phase::Open } else { Phase::Refused };
        if is_up && connection.listener == NVME {
            connection.watch.on_open(&mut self.coverage);
        }
        if !is_up {
            self.note_end(id, "refused");
        }
        let at_ns = self.arrival_ns(id);
        self.at(at_ns, Event::Dialled(id));
        is_up
    }

    /// The target accepts a connection. Returns its listener and the address of its host.
    pub(crate) fn on_accepted(&mut self, id: usize) -> (ListenerTag, SocketAddr) {
        let connection = &mut self.network.connections[id];
        connection.accepted_ns = Some(self.now_ns);
        let (listener, peer) = (connection.listener, connection.peer);
        if listener == NVME {
            self.network.entered.push(id);
        }
        (listener, peer)
    }

    /// A reactor serves a connection: its valid keys are settled when the first one does.
    pub(crate) fn on_served(&mut self, id: usize, actor: Actor) {
        let connection = &mut self.network.connections[id];
        connection.owners[1] = Some(actor);
        let right = self.tls_keys.right(self.scenario.security.tls, connection.tls.channel);
        connection.tls.settle_right(right);
        self.say(|| format!("connection {id}: served by reactor {actor}"));
    }

    /// The target refuses a connection that it has accepted.
    pub(crate) fn on_turned_away(&mut self, id: usize) {
        self.say(|| format!("connection {id}: is turned away"));
        self.network.connections[id].is_turned_away = true;
        self.close(id, Side::Target);
        if self.network.connections[id].listener == NVME {
            self.network.turned_away.push(id);
        }
    }

    /// A connection ends, or goes silent: see [`Watch::on_end`].
    fn note_end(&mut self, id: usize, how: &'static str) {
        let connection = &mut self.network.connections[id];
        if connection.listener == NVME {
            connection.watch.on_end(how, &mut self.coverage);
        }
    }

    /// Nothing passes any more, and neither end learns of it.
    pub(crate) fn cut(&mut self, id: usize) {
        self.network.connections[id].is_cut = true;
        self.lose_connection("silent connection", id);
        self.note_end(id, "silent");
    }

    /// A connection is lost now, or noticed to be.
    fn lose_connection(&mut self, what: &'static str, id: usize) {
        let dialler = self.network.connections[id].dialler;
        self.lose(what, dialler);
    }

    /// A host closes a connection, which may have gone silent.
    fn give_up(&mut self, id: usize) {
        if self.network.connections[id].is_cut {
            self.network.connections[id].given_up_ns = Some(self.now_ns);
            self.lose_connection("silent connection", id);
        }
    }

    pub(crate) fn connection(&mut self, id: usize) -> &mut Connection {
        &mut self.network.connections[id]
    }

    /// A thread of the target has received something when its clock showed this time.
    pub(crate) fn on_taken_in(&mut self, id: usize, clock_ns: u64) {
        let connection = self.connection(id);
        connection.taken_in_ns = clock_ns;
        let dialler = connection.dialler;
        if clock_ns == self.now_ns {
            return;
        }
        let is_newer = |other: &Connection| {
            other.taken_in_ns > clock_ns
                && !other.closed.contains(&true)
                && self.host_of(other.dialler) == self.host_of(dialler)
        };
        if self.network.connections.iter().any(is_newer) {
            self.reach_event("command of a host taken in by an older clock than the one before");
        }
    }

    /// Whether the target has closed a connection of a host on which it heard something at this time or later.
    pub(crate) fn has_ended_since(&self, host: usize, since_ns: u64) -> bool {
        let has_ended = |connection: &Connection| {
            connection.closed[index(Side::Target)]
                && connection.heard_ns >= since_ns
                && self.host_of(connection.dialler) == host
        };
        self.network.connections.iter().any(has_ended)
    }

    /// The host, by its place, of an actor that dials.
    fn host_of(&self, dialler: Actor) -> usize {
        let first = usize::from(self.scenario.target.reactor_count);
        (dialler - first) / (1 + usize::from(self.scenario.hosts.lane_count))
    }

    /// Whether a receive would bring anything.
    pub(crate) fn is_readable(&self, id: usize, side: Side) -> bool {
        let stream = &self.network.connections[id].streams[index(side)];
        stream.arrived_bytes > 0 || stream.ended.is_some()
    }

    pub(crate) fn is_writable(&self, id: usize, side: Side) -> bool {
        let connection = &self.network.connections[id];
        let stream = &connection.streams[index(side.other())];
        connection.streams[index(side)].ended == Some(End::Reset)
            || !stream.is_awaited && stream.bytes.len() < self.scenario.network.capacity
    }

    /// Room for the bytes that an end wants to send.
    pub(crate) fn begin_send(&mut self, id: usize, side: Side, length: usize) -> Took {
        let capacity = self.scenario.network.capacity;
        let connection = &mut self.network.connections[id];
        if connection.streams[index(side)].ended == Some(End::Reset) {
            return Took::Reset;
        }
        let stream = &mut connection.streams[index(side.other())];
        let room = capacity.saturating_sub(stream.bytes.len());
        let mut count = room.min(length);
        // A send that takes a part: the rest must follow. wire §28.23
        if count > 1
            && self.is_hostile
            && self.network.connections[id].random.happens(self.scenario.network.short)
        {
            let random = &mut self.network.connections[id].random;
            // Or nothing, even if the last send was taken as a whole.
            count = if random.one_in(8) { 0 } else { random.between(1, count as u64) as usize };
        }
        if count < length {
            let connection = &mut self.network.connections[id];
            connection.streams[index(side.other())].is_awaited = true;
            if side == Side::Target && connection.silent_from_ns < u64::MAX {
                connection.silent_from_ns = UNSENT_NS;
            }
            // The rest that did not fit although there was room is asked for again.
            if count < room {
                let at_ns = self.now_ns + self.network.connections[id].random.between(1, 50 * US);
                self.at(at_ns, Event::Room(id, side));
            }
        }
        if count == 0 { Took::Blocked } else { Took::Bytes(count) }
    }

    /// Sends the bytes that there is room for, and removes them. `false` if the connection was reset.
    pub(crate) fn send_from(&mut self, id: usize, side: Side, bytes: &mut Vec<u8>) -> bool {
        while !bytes.is_empty() {
            match self.begin_send(id, side, bytes.len()) {
                Took::Bytes(count) => {
                    self.send(id, side, &bytes[..count], None);
                    bytes.drain(..count);
                }
                Took::Blocked => break,
                Took::Reset => return false,
            }
        }
        true
    }

    /// Length of a short send; sometimes ends inside a header.
    pub(crate) fn stop_in_header(&mut self, id: usize, bytes: &[u8]) -> usize {
        let Connection { watch, random, tls, .. } = &mut self.network.connections[id];
        if !self.is_hostile || !random.one_in(4) || tls.is_secured() {
            return bytes.len();
        }
        let stop = watch.last_header(bytes).map(|start| start + random.below(DATA_HEADER_BYTES) as usize);
        stop.map_or(bytes.len(), |stop| stop.clamp(1, bytes.len()))
    }

    /// An end sends these bytes, unencrypted or encrypted: PDUs.
    fn watch_sent(&mut self, id: usize, side: Side, bytes: &[u8]) {
        let connection = &mut self.network.connections[id];
        let (trace, now_ns, dialler) = (&mut self.trace, self.now_ns, connection.dialler);
        let was_connected = connection.watch.is_connected;
        connection.watch.on_sent(side == Side::Target, bytes, &mut self.coverage, |header| {
            if let Some((timeline, view)) = trace.kept() {
                view.on_header(timeline, now_ns, (id, dialler), header);
            }
        });
        if std::mem::take(&mut connection.watch.is_refused_as_busy) {
            self.network.busy.push(id);
        }
        if connection.watch.is_connected && !was_connected {
            self.network.entered.push(id);
        }
        let silent_from_ns = connection.silent_from_ns;
        if let (Some((fes, fei)), None) = (connection.watch.term_req, connection.damaged_ns) {
            self.find(format!(
                "connection {id}: {side:?} ends it by a TermReq (FES {fes}, FEI {fei:#x}), and no bit on it was wrong"
            ));
        } else if connection.watch.has_exceeded {
            self.find(format!("connection {id}: more commands or Aborts are out than a queue may have"));
        } else if let Some(finding) = connection.clear_queue(self.scenario.security.tls) {
            self.find(format!("connection {id}: {finding}"));
        }
        if side == Side::Target && now_ns > silent_from_ns {
            self.find(format!(
                "connection {id}: the target sends, though the association ended by {silent_from_ns} ns"
            ));
        }
    }

    /// An end encrypts this, and will send it.
    pub(crate) fn on_encrypted(&mut self, id: usize, side: Side, plaintext: &[u8]) {
        let connection = &mut self.network.connections[id];
        let had_answered = connection.has_answered_connect();
        connection.tls.on_encrypted(side, plaintext);
        self.watch_sent(id, side, plaintext);
        let connection = &mut self.network.connections[id];
        if !had_answered && connection.has_answered_connect() {
            connection.heard_ns = self.now_ns;
        }
    }

    /// An end has decrypted this.
    pub(crate) fn on_decrypted(&mut self, id: usize, side: Side, plaintext: &[u8]) {
        if let Err(finding) = self.network.connections[id].tls.on_decrypted(side, plaintext) {
            self.find(format!("connection {id}: {finding}"));
        }
    }

    /// Whether a host changes its key of a connection before it sends.
    pub(crate) fn updates_key(&mut self, id: usize) -> bool {
        let is_it = self.network.connections[id].random.happens(self.scenario.security.key_updates);
        if is_it {
            self.reach_event("TLS: host changes its key");
        }
        is_it
    }

    /// A host is connected, with or without TLS.
    pub(crate) fn on_secured(&mut self, id: usize) {
        let tls = &self.network.connections[id].tls;
        match tls.channel {
            Channel::Clear => return,
            Channel::Configured(_) => self.reach_event("TLS: established with a configured key"),
            Channel::Generated => self.reach_event("TLS: established with a generated key"),
        }
        if self.network.connections[id].tls.right() == Right::Refuse {
            self.find(format!(
                "connection {id}: TLS is established with a key that the target does not have"
            ));
        }
    }

    /// Sends bytes for which [`begin_send`](Self::begin_send) found room. With `source` they are read there when they
    /// arrive.
    pub(crate) fn send(&mut self, id: usize, side: Side, bytes: &[u8], source: Option<&Rc<SentBytes>>) {
        let to = side.other();
        let connection = &mut self.network.connections[id];
        let is_secured = connection.tls.is_secured();
        if connection.listener == NVME {
            let is_required = self.scenario.security.tls == TlsPolicy::Required;
            let must_be_tls = match side {
                Side::Host => is_secured,
                // Where a connection may be unencrypted, a wrong bit in its first byte makes it so.
                Side::Target => is_required || is_secured && connection.damaged_ns.is_none(),
            };
            let checked = if must_be_tls { connection.tls.on_sent(side, bytes) } else { Ok(()) };
            if let Err(finding) = checked {
                self.find(format!("connection {id}: {finding}"));
            } else if !is_secured {
                self.watch_sent(id, side, bytes);
            }
        }
        let (now_ns, count) = (self.now_ns, bytes.len());
        self.trace.note(now_ns, count as u64);
        self.tell(About::Detail, || format!("connection {id}: {side:?} sends {count} bytes"));
        let network = self.scenario.network;
        if self.network.connections[id].streams[index(to)].is_broken {
            return;
        }
        let is_closed = {
            let connection = &self.network.connections[id];
            connection.closed[index(to)] || connection.is_orphan
        };
        if is_closed {
            let connection = &mut self.network.connections[id];
            if side == Side::Target && !connection.has_answered_connect() {
                connection.heard_ns = now_ns;
            }
            return self.answer_with_reset(id, side);
        }
        let had_answered = self.network.connections[id].has_answered_connect();
        let has_digests = self.scenario.security.digests == Digests::all();
        let is_protected = is_secured || has_digests && self.network.connections[id].listener == NVME;
        let mut rest = bytes;
        let mut damaged = false;
        while !rest.is_empty() {
            // A long send is not cut into more pieces than it pays to simulate.
            let piece_max = network.piece_max.max(count / 16);
            let piece_bytes = self.network.connections[id].random.scaled(1, piece_max as u64) as usize;
            let (piece, after) = rest.split_at(piece_bytes.min(rest.len()));
            rest = after;
            let at_ns = self.arrival_ns(id);
            let is_corrupt = self.is_hostile && self.network.connections[id].random.happens(network.corrupt);
            let is_corrupt = is_corrupt && is_protected;
            let bit = self.network.connections[id].random.below(piece.len() as u64 * 8) as usize;
            let stream = &mut self.network.connections[id].streams[index(to)];
            let start = stream.bytes.len();
            stream.bytes.extend(piece);
            // Damage on the way stays.
            let source = source.filter(|_| !is_corrupt);
            let source = source.map(|sent| (Rc::clone(sent), count - rest.len() - piece.len()));
            if is_corrupt && (is_secured || stream.sent_bytes >= UNPROTECTED_BYTES) {
                stream.bytes[start + bit / 8] ^= 1 << (bit % 8);
                damaged = true;
                let at = stream.sent_bytes + bit as u64 / 8;
                self.network.connections[id].tls.on_damaged(side, at);
                self.trace.tell(now_ns, About::World, || format!("connection {id}: a bit is wrong"));
            }
            let stream = &mut self.network.connections[id].streams[index(to)];
            let at_ns = at_ns.max(stream.last_ns);
            stream.last_ns = at_ns;
            stream.sent_bytes += piece.len() as u64;
            // Bytes that arrive together are one event.
            let is_new = stream.on_the_way.back().is_none_or(|last| last.at_ns != at_ns);
            stream.on_the_way.push_back(Piece { at_ns, length: piece.len(), source });
            if is_new {
                self.at(at_ns, Event::Arrival(id, to));
            }
        }
        let connection = &mut self.network.connections[id];
        if damaged {
            connection.damaged_ns = Some(now_ns);
            self.lose_connection("data damaged on the way", id);
        }
        let connection = &mut self.network.connections[id];
        if !had_answered && connection.has_answered_connect() {
            connection.heard_ns = now_ns;
        }
    }

    /// A send to a closed socket is answered by a reset.
    fn answer_with_reset(&mut self, id: usize, side: Side) {
        if self.network.connections[id].is_cut {
            return;
        }
        if side == Side::Host && self.network.connections[id].is_orphan && !self.network.is_target_up {
            // The peer is down and cannot answer: see `on_target_up`.
            self.network.connections[id].streams[1].is_awaited = true;
            return;
        }
        let at_ns = self.arrival_ns(id);
        self.end_stream(id, side, at_ns, End::Reset);
    }

    /// The machine is there again, and does not know the connections of before.
    pub(crate) fn on_target_up(&mut self) {
        self.network.is_target_up = true;
        for id in 0..self.network.connections.len() {
            let connection = &self.network.connections[id];
            if connection.is_orphan && !connection.closed[0] && !connection.is_cut {
                // Unacknowledged bytes are sent again, or the kernel asks whether the peer is still there.
                let at_ns = self.arrival_ns(id);
                self.end_stream(id, Side::Host, at_ns, End::Reset);
            }
        }
    }

    fn end_stream(&mut self, id: usize, to: Side, at_ns: u64, end: End) {
        let stream = &mut self.network.connections[id].streams[index(to)];
        if stream.end.is_some() && end == End::Finished || stream.ended == Some(End::Reset) {
            return;
        }
        let at_ns = at_ns.max(stream.last_ns);
        stream.end = Some((at_ns, end));
        self.at(at_ns, Event::Arrival(id, to));
    }

    /// Bytes that have arrived at an end can be received.
    pub(crate) fn on_arrival(&mut self, id: usize, side: Side) {
        let now_ns = self.now_ns;
        let connection = &mut self.network.connections[id];
        if connection.is_cut {
            return;
        }
        let stream = &mut connection.streams[index(side)];
        let mut has_news = false;
        let read = stream.read_sources(|piece| piece.at_ns <= now_ns);
        while stream.on_the_way.front().is_some_and(|piece| piece.at_ns <= now_ns)
            && let Some(piece) = stream.on_the_way.pop_front()
        {
            stream.arrived_bytes += piece.length;
            has_news = true;
        }
        if let Some((at_ns, end)) = stream.end
            && at_ns <= now_ns
            && stream.on_the_way.is_empty()
        {
            has_news |= stream.ended != Some(end);
            stream.ended = Some(end);
        }
        if !has_news {
            return;
        }
        let ended = stream.ended;
        if let Err(finding) = read {
            self.findings.push(finding);
        }
        if side == Side::Target {
            connection.heard_ns = now_ns;
        }
        if ended == Some(End::Reset) {
            // Wakes senders that wait for room.
            connection.streams[index(side.other())].is_awaited = false;
        }
        if let Some(owner) = connection.owners[index(side)].filter(|_| !connection.closed[index(side)]) {
            self.wake(owner);
        }
    }

    /// Room has come, or a moment has passed, for what this end sends.
    pub(crate) fn on_room(&mut self, id: usize, side: Side) {
        let capacity = self.scenario.network.capacity;
        let connection = &mut self.network.connections[id];
        let stream = &mut connection.streams[index(side.other())];
        if stream.bytes.len() >= capacity {
            // Room was used up meanwhile; the next receive makes more.
            return;
        }
        if std::mem::take(&mut stream.is_awaited)
            && let Some(owner) = connection.owners[index(side)].filter(|_| !connection.closed[index(side)])
        {
            self.wake(owner);
        }
    }

    /// Receives at most what `into` takes.
    pub(crate) fn receive(&mut self, id: usize, side: Side, into: &mut [&mut [u8]]) -> Got {
        let (latency_ns, now_ns) = (self.network.connections[id].latency_ns, self.now_ns);
        let stream = &mut self.network.connections[id].streams[index(side)];
        if stream.arrived_bytes == 0 {
            let (received_bytes, ended) = (stream.received_bytes, stream.ended);
            if ended.is_some() && self.network.connections[id].tls.has_part(side, received_bytes) {
                self.reach_event("TLS: connection ends within a record");
            }
            return match ended {
                Some(End::Finished) => Got::Ended,
                Some(End::Reset) => Got::Reset,
                None => Got::Dry,
            };
        }
        let mut total = 0;
        for place in into {
            let count = place.len().min(stream.arrived_bytes - total);
            stream.bytes.read_exact(&mut place[..count]).expect("these bytes have arrived");
            total += count;
        }
        stream.arrived_bytes -= total;
        stream.received_bytes += total as u64;
        let received_bytes = stream.received_bytes;
        if stream.is_awaited {
            self.at(now_ns + latency_ns, Event::Room(id, side.other()));
        }
        if self.network.connections[id].tls.takes_damaged(side, received_bytes) {
            self.at(now_ns, Event::Damaged(id, side));
        }
        Got::Bytes(total)
    }

    /// Sends the end of the stream.
    pub(crate) fn finish(&mut self, id: usize, side: Side) {
        let at_ns = self.arrival_ns(id);
        self.end_stream(id, side.other(), at_ns, End::Finished);
    }

    /// Closes an end: its bytes arrive, then the end does.
    pub(crate) fn close(&mut self, id: usize, side: Side) {
        self.say(|| format!("connection {id}: {side:?} closes"));
        self.note_end(id, if side == Side::Host { "closed by the host" } else { "closed by the target" });
        if side == Side::Target {
            self.network.closed_by_target.push(id);
            self.network.connections[id].closed_by_target_ns = Some(self.now_ns);
        } else {
            self.give_up(id);
        }
        let connection = &mut self.network.connections[id];
        connection.closed[index(side)] = true;
        connection.owners[index(side)] = None;
        let has_unread = connection.streams[index(side)].arrived_bytes > 0;
        let end = if has_unread { End::Reset } else { End::Finished };
        let at_ns = self.arrival_ns(id);
        self.end_stream(id, side.other(), at_ns, end);
    }

    /// Resets a connection from one end: bytes on their way may or may not arrive.
    pub(crate) fn reset(&mut self, id: usize, side: Side) {
        self.say(|| format!("connection {id}: {side:?} resets"));
        self.note_end(id, if side == Side::Host { "reset by the host" } else { "reset by the target" });
        if side == Side::Host {
            self.give_up(id);
        }
        let kept = {
            let connection = &mut self.network.connections[id];
            connection.closed[index(side)] = true;
            connection.owners[index(side)] = None;
            connection.streams[index(side.other())].on_the_way.len()
        };
        let kept = self.network.connections[id].random.below(kept as u64 + 1) as usize;
        let is_told =
            self.scenario.is_prompt || !self.is_hostile || !self.network.connections[id].random.one_in(4);
        let at_ns = self.arrival_ns(id);
        self.network.connections[id].streams[index(side.other())].lose(kept);
        if self.network.connections[id].phase == Phase::Dialling {
            return;
        }
        if is_told {
            self.end_stream(id, side.other(), at_ns, End::Reset);
        } else {
            self.say(|| format!("connection {id}: the reset gets lost"));
            self.network.connections[id].is_abandoned = true;
            self.lose_connection("silent connection", id);
        }
    }

    /// Reads all bytes on the way that were sent without a copy: their memory may go.
    pub(crate) fn read_all_sources(&mut self) {
        for connection in &mut self.network.connections {
            if let Err(finding) = connection.streams[index(Side::Host)].read_sources(|_| true) {
                self.findings.push(finding);
            }
        }
    }

    /// When everything that was sent to an end has arrived: `None` if it never does.
    pub(crate) fn arrived_ns(&self, id: usize, side: Side) -> Option<u64> {
        let connection = &self.network.connections[id];
        (!connection.is_cut).then_some(connection.streams[index(side)].last_ns)
    }

    /// A middlebox resets a connection.
    pub(crate) fn break_connection(&mut self, id: usize) {
        self.say(|| format!("connection {id}: is broken"));
        self.network.connections[id].is_broken = true;
        self.note_end(id, "reset on the way");
        self.lose_connection("connection reset", id);
        for side in [Side::Host, Side::Target] {
            let kept = self.network.connections[id].streams[index(side)].on_the_way.len() as u64;
            let kept = self.network.connections[id].random.below(kept + 1) as usize;
            let at_ns = self.arrival_ns(id);
            let stream = &mut self.network.connections[id].streams[index(side)];
            stream.is_broken = true;
            stream.lose(kept);
            self.end_stream(id, side, at_ns, End::Reset);
        }
    }

    /// The target's process is gone: its kernel ends the connections, unless that is gone too.
    pub(crate) fn orphan_all(&mut self, is_machine_gone: bool) {
        (self.network.is_target_up, self.network.is_listening) = (false, false);
        for id in 0..self.network.connections.len() {
            let connection = &mut self.network.connections[id];
            if connection.closed[1] || connection.phase != Phase::Open {
                continue;
            }
            connection.closed[1] = true;
            connection.owners[1] = None;
            if connection.listener == NVME {
                let how = if is_machine_gone { "without power" } else { "target killed" };
                connection.watch.on_end(how, &mut self.coverage);
            }
            if is_machine_gone {
                connection.is_orphan = true;
                // Bytes on their way from the machine may still arrive; to it none do.
                connection.streams[1].on_the_way.clear();
            } else {
                let at_ns = self.arrival_ns(id);
                self.end_stream(id, Side::Host, at_ns, End::Reset);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_overwritten_wherever_the_deque_wraps() {
        for front in 0..8 {
            let mut bytes: VecDeque<u8> = VecDeque::with_capacity(8);
            bytes.resize(8 - front, 0);
            bytes.drain(..8 - front);
            bytes.resize(8, 0);
            for (start, end) in (0..=8).flat_map(|end| (0..=end).map(move |start| (start, end))) {
                bytes.iter_mut().for_each(|byte| *byte = 0);
                overwrite(&mut bytes, start, &vec![1; end - start]);
                let expected = (0..8).map(|at| u8::from((start..end).contains(&at)));
                assert!(bytes.iter().copied().eq(expected), "{front} {start} {end}");
            }
        }
    }
}

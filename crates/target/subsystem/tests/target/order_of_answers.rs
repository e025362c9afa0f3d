//! The order in which a reactor reads lanes and sends their answers, on sockets that the test plays.

use std::collections::VecDeque;
use std::io::{self, IoSliceMut};
use std::sync::Arc;

use linux::Moment;
use linux::randomness::Randomness;
use memory::{Pool, Segment};
use nvlane_subsystem::Serving;
use nvlane_subsystem::audit::Recorder;
use nvlane_subsystem::config::TimeoutConfig;
use nvlane_subsystem::control::ControlSettings;
use nvlane_subsystem::limits::Limits;
use nvlane_subsystem::listener_gate::ListenerGate;
use nvlane_subsystem::message::Message;
use nvlane_subsystem::server::applications;
use proto::zero_copy::Policy;
use reactor::{
    Application, Arrival, BusyPolling, Connection, Io, Listener, ListenerTag, Operation, Received, Sent,
    SocketId, Token,
};

/// ICReq of a host without digests. wire §2.2
const IC_REQ: [u8; 128] = {
    let mut bytes = [0; 128];
    (bytes[2], bytes[4]) = (128, 128);
    bytes
};

/// What happened on the socket with a number.
#[derive(Debug, PartialEq, Eq)]
enum Event {
    Received(usize),
    Sent(usize),
}

use Event::{Received as Read, Sent as Answered};

/// The sockets of one reactor, in the order in which they were adopted.
struct Sockets {
    pool: Pool,
    /// What each receives next.
    inputs: Vec<Option<&'static [u8]>>,
    /// The one that takes no bytes.
    full: Option<usize>,
    events: Vec<Event>,
    messages: VecDeque<Message>,
}

impl Io<Message> for Sockets {
    fn now_ns(&self) -> u64 {
        1
    }

    fn moment(&self) -> Moment {
        Moment::default()
    }

    fn listen(&mut self, _: ListenerTag, _: Listener) -> io::Result<()> {
        Ok(())
    }

    fn unlisten(&mut self, _: ListenerTag) {}

    fn adopt(&mut self, _: Connection) -> io::Result<SocketId> {
        self.inputs.push(None);
        Ok(socket(self.inputs.len() - 1))
    }

    fn release(&mut self, _: SocketId) -> Option<Connection> {
        None
    }

    fn arrival(&self, _: SocketId) -> Arrival {
        Arrival::default()
    }

    fn arrived_ns(&self, _: SocketId) -> u64 {
        1
    }

    fn receive(&mut self, socket: SocketId, into: &mut [IoSliceMut<'_>]) -> Received {
        let Some(bytes) = self.inputs[socket.index()].take() else { return Received::Dry };
        into[0][..bytes.len()].copy_from_slice(bytes);
        self.events.push(Read(socket.index()));
        Received::Bytes(bytes.len())
    }

    fn send(&mut self, socket: SocketId, segments: &[Segment<'_>]) -> Sent {
        if self.full == Some(socket.index()) {
            return Sent::Blocked;
        }
        self.events.push(Answered(socket.index()));
        Sent::Bytes(segments.iter().map(Segment::len).sum())
    }

    fn await_writable(&mut self, _: SocketId) {}

    fn pause(&mut self, _: SocketId) {}

    fn resume(&mut self, _: SocketId) {}

    fn finish(&mut self, _: SocketId) {}

    fn close(&mut self, socket: SocketId) {
        panic!("{socket:?} is closed");
    }

    fn start(&mut self, _: Token, operation: Operation) -> Result<(), Operation> {
        Err(operation)
    }

    fn set_timer(&mut self, _: u64, _: Token) {}

    fn post(&mut self, _: usize, message: Message) {
        self.messages.push_back(message);
    }

    fn reactor(&self) -> usize {
        0
    }

    fn reactor_count(&self) -> usize {
        1
    }

    fn pool(&self) -> &Pool {
        &self.pool
    }

    fn busy_polling(&self) -> BusyPolling {
        BusyPolling::default()
    }

    fn stop(&mut self) {}
}

fn socket(number: usize) -> SocketId {
    SocketId::new(u32::try_from(number).expect("few"), 1)
}

/// A reactor and its sockets.
struct Rig {
    serving: Serving,
    sockets: Sockets,
}

impl Rig {
    /// A reactor with a connection to each of some hosts.
    fn new(host_count: u64) -> Self {
        let settings = ControlSettings {
            limits: Limits::default(),
            reactor_count: 1,
            discovery_nqn: "nqn.2026-01.io.nvlane:discovery".parse().expect("a name"),
            entropy: 1,
            randomness: Randomness::System,
            now_ns: 1,
            wall_ns: 1,
            audit: Recorder::default(),
        };
        let timeouts = TimeoutConfig::default();
        let gate = Arc::<ListenerGate>::default();
        gate.set_policy(0, security::tls::Policy::Off);
        let mut all = applications(settings, &timeouts, Policy::Off, 1 << 20, &gate, Vec::new());
        let sockets = Sockets {
            pool: Pool::new(1 << 20).expect("a little memory"),
            inputs: Vec::new(),
            full: None,
            events: Vec::new(),
            messages: VecDeque::new(),
        };
        let mut rig = Self { serving: all.pop().expect("one reactor"), sockets };
        rig.serving.on_start(&mut rig.sockets);
        for id in 0..host_count {
            let connection = Connection::simulated(id);
            rig.serving.on_accept(&mut rig.sockets, 0, connection);
        }
        while let Some(message) = rig.sockets.messages.pop_front() {
            rig.serving.on_message(&mut rig.sockets, message);
        }
        rig
    }

    /// A turn in which these sockets have room again, and in which the others have an ICReq to be read. Returns what happened.
    fn turn(&mut self, writable: Option<usize>, readable: &[usize]) -> Vec<Event> {
        if let Some(number) = writable {
            self.serving.on_writable(&mut self.sockets, socket(number));
        }
        for &number in readable {
            self.sockets.inputs[number] = Some(&IC_REQ);
            assert!(self.serving.on_readable(&mut self.sockets, socket(number)));
        }
        self.serving.on_turn_end(&mut self.sockets);
        std::mem::take(&mut self.sockets.events)
    }
}

#[test]
fn answers_leave_before_the_next_lane_is_read_if_several_lanes_were_read_before() {
    let mut rig = Rig::new(6);
    assert_eq!(rig.turn(None, &[0, 1]), [Read(0), Read(1), Answered(0), Answered(1)]);
    assert_eq!(rig.turn(None, &[2, 3]), [Read(2), Answered(2), Read(3), Answered(3)]);
    assert_eq!(rig.turn(None, &[4]), [Read(4), Answered(4)]);
    assert_eq!(rig.turn(None, &[5]), [Read(5), Answered(5)]);
}

#[test]
fn answers_leave_behind_those_of_a_lane_that_waits_to_send() {
    let mut rig = Rig::new(4);
    rig.sockets.full = Some(0);
    assert_eq!(rig.turn(None, &[0, 1]), [Read(0), Read(1), Answered(1)]);
    rig.sockets.full = None;
    assert_eq!(rig.turn(Some(0), &[2, 3]), [Read(2), Read(3), Answered(0), Answered(2), Answered(3)]);
}

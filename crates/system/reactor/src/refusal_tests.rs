//! System calls of the epoll engine that the kernel refuses for a while: every connection is served in the end, none is
//! lost, and the reactor does not spin meanwhile.

use std::io::{IoSliceMut, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use rustix::io::Errno;

use crate::engine::Engine;
use crate::event::EngineKind;
use crate::io::{Application, Connection, Io, ListenerTag, SocketId};
use crate::mailbox::{Address, Mailbox};
use crate::operation::{Completion, Token};
use crate::socket::{Listener, Received, Sent};
use crate::turn::{Reactor, Settings};
use memory::Segment;

/// Timeout of a client, much longer than the delay before a refused call is repeated.
const PATIENCE: Duration = Duration::from_secs(20);

/// Echoes received bytes until a message ends the reactor.
struct Echo(Option<Listener>);

impl Application for Echo {
    type Message = ();

    fn on_start(&mut self, io: &mut impl Io<()>) {
        io.listen(0, self.0.take().unwrap()).unwrap();
    }

    fn on_accept(&mut self, io: &mut impl Io<()>, _: ListenerTag, connection: Connection) {
        io.adopt(connection).unwrap();
    }

    fn on_readable(&mut self, io: &mut impl Io<()>, socket: SocketId) -> bool {
        let mut bytes = [0; 64];
        match io.receive(socket, &mut [IoSliceMut::new(&mut bytes)]) {
            Received::Bytes(count) => {
                assert!(matches!(io.send(socket, &[Segment::new(&bytes[..count])]), Sent::Bytes(_)));
                true
            }
            Received::Dry => false,
            Received::Ended | Received::Failed(_) => {
                io.close(socket);
                true
            }
        }
    }

    fn on_writable(&mut self, _: &mut impl Io<()>, _: SocketId) {}

    fn on_completion(&mut self, _: &mut impl Io<()>, _: Completion) {}

    fn on_timer(&mut self, _: &mut impl Io<()>, _: Token) {}

    fn on_message(&mut self, io: &mut impl Io<()>, (): ()) {
        io.stop();
    }

    fn on_turn_end(&mut self, _: &mut impl Io<()>) -> bool {
        false
    }

    fn on_end(&mut self, _: &mut impl Io<()>) {}
}

/// A reactor whose next system calls fail with given errors; its thread returns the number of errors that no call met.
struct Refused {
    address: SocketAddr,
    mailbox: Address<()>,
    thread: JoinHandle<usize>,
}

impl Refused {
    /// The first change of the set is that of the listener.
    fn start(changes: Vec<Option<Errno>>, waits: Vec<Option<Errno>>) -> Self {
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        let (sender, receiver): (Sender<Address<()>>, _) = channel();
        let thread = std::thread::spawn(move || {
            let mailbox = Mailbox::new().unwrap();
            sender.send(mailbox.address()).unwrap();
            let settings = Settings {
                engine: EngineKind::Epoll,
                pool_bytes: 1 << 20,
                spin_ns_max: 0,
                ..Settings::default()
            };
            let mut reactor = Reactor::new(&settings, mailbox, |_| Echo(Some(listener))).unwrap();
            let Engine::Epoll(engine) = &mut reactor.io.engine else { panic!("the wrong engine") };
            engine.refused_changes.extend(changes);
            engine.refused_waits.extend(waits);
            reactor.run().unwrap();
            let turns = reactor.counters();
            let turn_count = turns.sleep_count.get() + turns.busy_turn_count.get();
            let Engine::Epoll(engine) = &reactor.io.engine else { panic!("the wrong engine") };
            assert!(turn_count < 5000, "{turn_count} turns");
            engine.refused_changes.len() + engine.refused_waits.len()
        });
        let mailbox = receiver.recv_timeout(PATIENCE).unwrap();
        Self { address, mailbox, thread }
    }

    fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect_timeout(&self.address, PATIENCE).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream
    }

    /// Ends it, once every refusal was met.
    fn end(self) {
        assert!(self.mailbox.post(()));
        assert_eq!(self.thread.join().unwrap(), 0, "refusals that no call has met");
    }
}

fn assert_echoes(stream: &mut TcpStream, what: &[u8]) {
    stream.write_all(what).unwrap();
    let mut back = vec![0; what.len()];
    stream.read_exact(&mut back).unwrap_or_else(|error| panic!("no echo of {what:?}: {error}"));
    assert_eq!(back, what);
}

const NO_ROOM: Option<Errno> = Some(Errno::NOSPC);
const NO_MEMORY: Option<Errno> = Some(Errno::NOMEM);

#[test]
fn a_connection_that_cannot_be_watched_for_now_is_served_later() {
    // The listener; the connection, twice, and between them the listener again.
    let reactor = Refused::start(vec![None, NO_ROOM, None, NO_MEMORY, NO_ROOM], Vec::new());
    let mut first = reactor.connect();
    assert_echoes(&mut first, b"sent before the connection is watched");
    assert_echoes(&mut first, b"and behind it");
    let mut second = reactor.connect();
    assert_echoes(&mut second, b"another");
    drop(first);
    assert_echoes(&mut second, b"and again");
    reactor.end();
}

#[test]
fn many_connections_that_cannot_be_watched_for_now_are_served_later() {
    let changes = [None].into_iter().chain([NO_ROOM, NO_MEMORY, None].repeat(6)).collect();
    let reactor = Refused::start(changes, Vec::new());
    let mut streams: Vec<TcpStream> = (0..12).map(|_| reactor.connect()).collect();
    // Some have ended by the time that they can be watched.
    streams.truncate(8);
    for (number, stream) in (0..).zip(&mut streams) {
        assert_echoes(stream, &[number; 7]);
    }
    reactor.end();
}

#[test]
fn a_listener_that_cannot_be_watched_for_now_accepts_later() {
    for refused in [
        // When it begins to listen.
        vec![NO_ROOM, NO_MEMORY],
        // When it is watched again after its first connection.
        vec![None, None, NO_MEMORY, NO_ROOM],
    ] {
        let reactor = Refused::start(refused, Vec::new());
        for number in 0..3 {
            assert_echoes(&mut reactor.connect(), &[number; 9]);
        }
        reactor.end();
    }
}

#[test]
fn waits_that_signals_interrupt_are_made_again() {
    let reactor = Refused::start(Vec::new(), vec![Some(Errno::INTR); 100]);
    let mut stream = reactor.connect();
    for number in 0..100 {
        assert_echoes(&mut stream, &[number; 5]);
    }
    reactor.end();
}

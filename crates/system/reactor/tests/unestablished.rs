//! Many unestablished connections, and timers that expire together: an established connection is served between them.

use std::io::{IoSliceMut, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use nvlane_reactor::{
    Application, Completion, Connection, EngineKind, Io, Listener, ListenerTag, Mailbox, Reactor, Received,
    Settings, SocketId, Token,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];

/// Unestablished connections, and timers.
const OTHER_COUNT: usize = 20;

enum Message {
    Listen(Listener),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    Established,
    Unestablished,
    Timer,
}

/// An application whose first connection is established and always readable. Everything else takes it a millisecond.
struct SlowApplication {
    established: Option<SocketId>,
    adopted_count: usize,
    had: Vec<Had>,
    report: Sender<Vec<Had>>,
}

impl SlowApplication {
    fn count(&self, had: Had) -> usize {
        self.had.iter().filter(|other| **other == had).count()
    }
}

fn linger() {
    let start = Instant::now();
    while start.elapsed() < Duration::from_millis(1) {
        std::hint::spin_loop();
    }
}

impl Application for SlowApplication {
    type Message = Message;

    fn on_start(&mut self, _: &mut impl Io<Message>) {}

    fn on_accept(&mut self, io: &mut impl Io<Message>, _: ListenerTag, connection: Connection) {
        let socket = io.adopt(connection).unwrap();
        if self.established.is_none() {
            io.establish(socket);
            self.established = Some(socket);
        }
        self.adopted_count += 1;
        if self.adopted_count == OTHER_COUNT + 1 {
            let soon_ns = io.now_ns() + 1_000_000;
            (0..OTHER_COUNT as u64).for_each(|token| io.set_timer(soon_ns, token));
        }
    }

    fn on_readable(&mut self, io: &mut impl Io<Message>, socket: SocketId) -> bool {
        match io.receive(socket, &mut [IoSliceMut::new(&mut [0])]) {
            Received::Bytes(_) if self.established == Some(socket) => {
                self.had.push(Had::Established);
                true
            }
            Received::Bytes(_) => {
                self.had.push(Had::Unestablished);
                linger();
                true
            }
            _ => false,
        }
    }

    fn on_writable(&mut self, _: &mut impl Io<Message>, _: SocketId) {}

    fn on_completion(&mut self, _: &mut impl Io<Message>, _: Completion) {}

    fn on_timer(&mut self, _: &mut impl Io<Message>, _: Token) {
        self.had.push(Had::Timer);
        linger();
    }

    fn on_message(&mut self, io: &mut impl Io<Message>, message: Message) {
        let Message::Listen(listener) = message;
        io.listen(0, listener).unwrap();
    }

    fn on_turn_end(&mut self, io: &mut impl Io<Message>) -> bool {
        if self.count(Had::Unestablished) == OTHER_COUNT && self.count(Had::Timer) == OTHER_COUNT {
            self.report.send(std::mem::take(&mut self.had)).unwrap();
            io.stop();
        }
        false
    }
}

#[test]
fn an_established_socket_is_read_between_unestablished_ones_and_timers() {
    for engine in ENGINES {
        let mailbox = Mailbox::new().unwrap();
        let address = mailbox.address();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let place = listener.address();
        let (report, reported) = channel();
        let reactor = std::thread::spawn(move || {
            let settings = Settings { engine, pool_bytes: 1 << 20, ..Settings::default() };
            let application =
                SlowApplication { established: None, adopted_count: 0, had: Vec::new(), report };
            Reactor::new(&settings, mailbox, |_| application).unwrap().run().unwrap();
        });
        let mut peers: Vec<_> = (0..=OTHER_COUNT).map(|_| TcpStream::connect(place).unwrap()).collect();
        for (at, peer) in peers.iter_mut().enumerate() {
            peer.write_all(&vec![0; if at == 0 { 60_000 } else { 1 }]).unwrap();
        }
        address.post(Message::Listen(listener));
        let had = reported.recv_timeout(Duration::from_secs(60)).unwrap();
        reactor.join().unwrap();
        let first = had.iter().position(|had| *had == Had::Established).unwrap();
        let others = had[first..].split(|had| *had == Had::Established).filter(|others| !others.is_empty());
        for others in others {
            assert!(others.len() <= 2, "{engine:?}: {others:?} in one turn");
        }
    }
}

//! What comes of a crowd of fresh connections, and of timers that ring together: an established connection has its turn in between.

use std::io::{IoSliceMut, Write};
use std::net::TcpStream;
use std::sync::mpsc::{Sender, channel};
use std::time::{Duration, Instant};

use nvlane_reactor::{
    Application, Completion, Connection, EngineKind, Io, Listener, ListenerTag, Mailbox, Reactor, Received,
    Settings, SocketId, Token,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];

/// Fresh connections, and timers.
const CROWD_COUNT: usize = 20;

enum Message {
    Listen(Listener),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Had {
    Established,
    Fresh,
    Timer,
}

/// Its first connection is established, and there is always more of it to read. With everything else it takes its time.
struct Crowd {
    established: Option<SocketId>,
    adopted_count: usize,
    had: Vec<Had>,
    report: Sender<Vec<Had>>,
}

impl Crowd {
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

impl Application for Crowd {
    type Message = Message;

    fn on_start(&mut self, _: &mut impl Io<Message>) {}

    fn on_accept(&mut self, io: &mut impl Io<Message>, _: ListenerTag, connection: Connection) {
        let socket = io.adopt(connection).unwrap();
        if self.established.is_none() {
            io.establish(socket);
            self.established = Some(socket);
        }
        self.adopted_count += 1;
        if self.adopted_count == CROWD_COUNT + 1 {
            let soon_ns = io.now_ns() + 1_000_000;
            (0..CROWD_COUNT as u64).for_each(|token| io.set_timer(soon_ns, token));
        }
    }

    fn on_readable(&mut self, io: &mut impl Io<Message>, socket: SocketId) -> bool {
        match io.receive(socket, &mut [IoSliceMut::new(&mut [0])]) {
            Received::Bytes(_) if self.established == Some(socket) => {
                self.had.push(Had::Established);
                true
            }
            Received::Bytes(_) => {
                self.had.push(Had::Fresh);
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
        if self.count(Had::Fresh) == CROWD_COUNT && self.count(Had::Timer) == CROWD_COUNT {
            self.report.send(std::mem::take(&mut self.had)).unwrap();
            io.stop();
        }
        false
    }
}

#[test]
fn fresh_sockets_and_timers_let_an_established_one_have_its_turn() {
    for engine in ENGINES {
        let mailbox = Mailbox::new().unwrap();
        let address = mailbox.address();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let place = listener.address();
        let (report, reported) = channel();
        let reactor = std::thread::spawn(move || {
            let settings = Settings { engine, pool_bytes: 1 << 20, ..Settings::default() };
            let crowd = Crowd { established: None, adopted_count: 0, had: Vec::new(), report };
            Reactor::new(&settings, mailbox, |_| crowd).unwrap().run().unwrap();
        });
        let mut peers: Vec<_> = (0..=CROWD_COUNT).map(|_| TcpStream::connect(place).unwrap()).collect();
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

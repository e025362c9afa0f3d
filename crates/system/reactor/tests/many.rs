//! Many established connections that have input at once: none is forgotten, and none starves the others.

use std::collections::HashMap;
use std::io::{ErrorKind, IoSliceMut, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use memory::Segment;
use nvlane_reactor::{
    Address, Application, Completion, Connection, EngineKind, Io, Listener, ListenerTag, Mailbox, Reactor,
    Received, Sent, Settings, SocketId, Token,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];

/// More than are polled in each turn.
const COUNT: usize = 20;

/// Longer than anything takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(20);

enum Message {
    Listen(Listener),
    /// Say that input waits, until the sender is dropped: whatever arrives meanwhile is found in one turn.
    Await(Sender<()>, Receiver<()>),
    Pause,
    Resume,
    /// Report the connections that were read since the last report.
    Report(Sender<Vec<usize>>),
    Stop,
}

/// Sends back what it receives, a byte in each turn. Connections are numbered as they are accepted.
#[derive(Default)]
struct Echo {
    numbers: HashMap<SocketId, usize>,
    read: Vec<usize>,
}

impl Application for Echo {
    type Message = Message;

    fn on_start(&mut self, _: &mut impl Io<Message>) {}

    fn on_accept(&mut self, io: &mut impl Io<Message>, _: ListenerTag, connection: Connection) {
        let socket = io.adopt(connection).unwrap();
        io.establish(socket);
        self.numbers.insert(socket, self.numbers.len());
    }

    fn on_readable(&mut self, io: &mut impl Io<Message>, socket: SocketId) -> bool {
        let mut byte = [0; 2];
        let [byte, rest] = &mut byte;
        // The room is larger than what is taken, so that a receive tells when it has taken all.
        let (byte, rest) = (std::slice::from_mut(byte), std::slice::from_mut(rest));
        let count = match io.receive(socket, &mut [IoSliceMut::new(byte), IoSliceMut::new(rest)]) {
            Received::Bytes(count) => count,
            Received::Dry => return false,
            Received::Ended | Received::Failed(_) => {
                io.close(socket);
                return true;
            }
        };
        self.read.push(self.numbers[&socket]);
        let segments = [Segment::new(byte), Segment::new(rest)];
        assert!(matches!(io.send(socket, &segments[..count]), Sent::Bytes(_)));
        true
    }

    fn on_writable(&mut self, _: &mut impl Io<Message>, _: SocketId) {}

    fn on_completion(&mut self, _: &mut impl Io<Message>, _: Completion) {}

    fn on_timer(&mut self, _: &mut impl Io<Message>, _: Token) {}

    fn on_message(&mut self, io: &mut impl Io<Message>, message: Message) {
        match message {
            Message::Listen(listener) => io.listen(0, listener).unwrap(),
            Message::Await(begun, end) => {
                begun.send(()).unwrap();
                assert!(end.recv().is_err());
            }
            Message::Pause => self.numbers.keys().for_each(|socket| io.pause(*socket)),
            Message::Resume => self.numbers.keys().for_each(|socket| io.resume(*socket)),
            Message::Report(to) => to.send(std::mem::take(&mut self.read)).unwrap(),
            Message::Stop => io.stop(),
        }
    }

    fn on_turn_end(&mut self, _: &mut impl Io<Message>) -> bool {
        false
    }
}

struct Rig {
    reactor: Address<Message>,
    thread: Option<JoinHandle<()>>,
    peers: Vec<TcpStream>,
}

impl Rig {
    /// A reactor with connections that have all had input in one turn.
    fn new(engine: EngineKind) -> Self {
        Self::with_spin(engine, Settings::default().spin_ns_max)
    }

    /// The same for a reactor that spins this long before it sleeps.
    fn with_spin(engine: EngineKind, spin_ns_max: u64) -> Self {
        let mailbox = Mailbox::new().unwrap();
        let reactor = mailbox.address();
        let thread = std::thread::spawn(move || {
            let settings = Settings { engine, pool_bytes: 1 << 20, spin_ns_max, ..Settings::default() };
            Reactor::new(&settings, mailbox, |_| Echo::default()).unwrap().run().unwrap();
        });
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        reactor.post(Message::Listen(listener));
        let connect = |_| {
            let mut peer = TcpStream::connect(address).unwrap();
            peer.set_read_timeout(Some(PATIENCE)).unwrap();
            // Accepted in this order.
            peer.write_all(&[9]).unwrap();
            peer.read_exact(&mut [0]).unwrap();
            peer
        };
        let peers = (0..COUNT).map(connect).collect();
        let mut rig = Self { reactor, thread: Some(thread), peers };
        for round in 0..3 {
            rig.together(|peer| peer.write_all(&[round]).unwrap());
            rig.answers(round);
        }
        rig
    }

    /// Has each peer do this before the reactor's next turn.
    fn together(&mut self, each: impl Fn(&mut TcpStream)) {
        let end = self.hold();
        self.peers.iter_mut().for_each(each);
        drop(end);
    }

    /// Has the reactor wait, which it does when this returns, until the returned sender is dropped.
    fn hold(&self) -> Sender<()> {
        let ((begun, begins), (end, ended)) = (channel(), channel());
        self.reactor.post(Message::Await(begun, ended));
        begins.recv_timeout(PATIENCE).expect("the reactor waits");
        end
    }

    #[track_caller]
    fn answers(&mut self, byte: u8) {
        for peer in &mut self.peers {
            let mut answer = [0];
            peer.read_exact(&mut answer).expect("it is answered");
            assert_eq!(answer, [byte]);
        }
    }

    #[track_caller]
    fn ends(&mut self) {
        for peer in &mut self.peers {
            match peer.read(&mut [0]) {
                Ok(0) => {}
                Err(error) if error.kind() == ErrorKind::ConnectionReset => {}
                other => panic!("not closed: {other:?}"),
            }
        }
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        self.reactor.post(Message::Stop);
        let ended = self.thread.take().expect("it runs").join();
        assert!(std::thread::panicking() || ended.is_ok());
    }
}

/// The receive of the last bytes does not tell of the end.
#[test]
fn ends_that_come_with_the_last_bytes_are_met() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        rig.together(|peer| {
            peer.write_all(&[7]).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
        });
        rig.answers(7);
        rig.ends();
    }
}

#[test]
fn ends_that_come_after_the_last_bytes_are_met() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        rig.together(|peer| peer.write_all(&[7]).unwrap());
        rig.answers(7);
        rig.together(|peer| peer.shutdown(Shutdown::Write).unwrap());
        rig.ends();
    }
}

#[test]
fn input_and_ends_that_come_during_a_pause_are_met_after_it() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        rig.reactor.post(Message::Pause);
        rig.together(|peer| {
            peer.write_all(&[7]).unwrap();
            peer.shutdown(Shutdown::Write).unwrap();
        });
        std::thread::sleep(Duration::from_millis(20));
        rig.reactor.post(Message::Resume);
        rig.answers(7);
        rig.ends();
    }
}

#[test]
fn a_reactor_that_sleeps_wakes_up_for_each_of_them() {
    for (engine, spin_ns_max) in ENGINES.into_iter().flat_map(|engine| [(engine, 0), (engine, 5_000_000)]) {
        let mut rig = Rig::with_spin(engine, spin_ns_max);
        for round in 0..3 {
            std::thread::sleep(Duration::from_millis(30));
            for peer in &mut rig.peers {
                peer.write_all(&[round]).unwrap();
                peer.read_exact(&mut [0]).expect("it is answered");
            }
            std::thread::sleep(Duration::from_millis(30));
            rig.together(|peer| peer.write_all(&[round]).unwrap());
            rig.answers(round);
        }
    }
}

#[test]
fn few_of_them_are_served_for_long_and_then_all() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        let few = 2;
        for _ in 0..200 {
            for peer in &mut rig.peers[..few] {
                peer.write_all(&[1]).unwrap();
                peer.read_exact(&mut [0]).expect("it is answered");
            }
        }
        rig.together(|peer| peer.write_all(&[2]).unwrap());
        rig.answers(2);
    }
}

#[test]
fn one_that_always_has_input_does_not_starve_the_others() {
    for engine in ENGINES {
        let mut rig = Rig::new(engine);
        // On a busy machine the kernel delivers input of the others after some turns, at times.
        let is_fair = (0..20).any(|_| reads_of_one_before_the_last_of_others(&mut rig) <= 6);
        assert!(is_fair, "{engine:?}: always more than 6 times before others with 4 receives each");
    }
}

fn reads_of_one_before_the_last_of_others(rig: &mut Rig) -> usize {
    let report = |rig: &Rig| {
        let (to, report) = channel();
        rig.reactor.post(Message::Report(to));
        report.recv_timeout(PATIENCE).unwrap()
    };
    report(rig);
    let end = rig.hold();
    let length_of = |number| if number == 3 { 2000 } else { 8 };
    for (number, peer) in rig.peers.iter_mut().enumerate() {
        peer.write_all(&vec![5; length_of(number)]).unwrap();
    }
    drop(end);
    for (number, peer) in rig.peers.iter_mut().enumerate() {
        peer.read_exact(&mut vec![0; length_of(number)]).expect("it is answered");
    }
    let read = report(rig);
    let last = read.iter().rposition(|&number| number != 3).expect("the others are read");
    read[..last].iter().filter(|&&number| number == 3).count()
}

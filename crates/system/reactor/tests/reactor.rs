//! A reactor on real sockets and files, with both engines: an application that echoes, stores, waits and passes
//! messages on.

use std::collections::HashMap;
use std::io::{IoSliceMut, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use memory::Segment;
use nvlane_reactor::{
    Address, Allocation, Application, Completion, Connection, EngineKind, File, Io, Listener, ListenerTag,
    Mailbox, Operation, Reactor, Received, Sent, Settings, SocketId, Token,
};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];

enum Message {
    Listen(Listener),
    /// A connection that another reactor accepted.
    Adopt(Connection),
    /// Carry out the storage operation that `make` returns for a buffer of this length, bytes.
    Store(usize, Box<dyn FnOnce(memory::Buffer) -> Operation + Send>),
    Timer(Duration),
    /// Hand connections on to the next reactor when something comes, without reading it.
    HandOn,
    Report(std::sync::mpsc::Sender<Vec<Outcome>>),
    Stop,
}

#[derive(Debug, PartialEq)]
enum Outcome {
    Stored(Result<usize, std::io::ErrorKind>, Option<Vec<u8>>),
    Rang(u64),
}

/// Sends back what it receives; with several reactors, the next one serves the connection.
#[derive(Default)]
struct Echo {
    unsent: HashMap<SocketId, Vec<u8>>,
    outcomes: Vec<Outcome>,
    hands_on: bool,
}

impl Echo {
    fn flush<I: Io<Message>>(&mut self, io: &mut I, socket: SocketId) {
        let Some(unsent) = self.unsent.get_mut(&socket) else { return };
        while !unsent.is_empty() {
            match io.send(socket, &[Segment::new(unsent)]) {
                Sent::Bytes(count) => drop(unsent.drain(..count)),
                Sent::Blocked => {
                    io.pause(socket);
                    return io.await_writable(socket);
                }
                Sent::Failed(_) => {
                    io.close(socket);
                    self.unsent.remove(&socket);
                    return;
                }
            }
        }
        io.resume(socket);
    }
}

impl Application for Echo {
    type Message = Message;

    fn on_start(&mut self, _: &mut impl Io<Message>) {}

    fn on_accept(&mut self, io: &mut impl Io<Message>, tag: ListenerTag, connection: Connection) {
        assert_eq!(tag, 7);
        let next = (io.reactor() + 1) % io.reactor_count();
        io.post(next, Message::Adopt(connection));
    }

    fn on_readable(&mut self, io: &mut impl Io<Message>, socket: SocketId) -> bool {
        if self.hands_on {
            let connection = io.release(socket).expect("an adopted socket");
            assert!(io.release(socket).is_none(), "it is given up once");
            self.unsent.remove(&socket);
            io.post((io.reactor() + 1) % io.reactor_count(), Message::Adopt(connection));
            return true;
        }
        let (mut first, mut second) = ([0; 3], [0; 65536]);
        match io.receive(socket, &mut [IoSliceMut::new(&mut first), IoSliceMut::new(&mut second)]) {
            Received::Bytes(count) => {
                let unsent = self.unsent.get_mut(&socket).expect("an adopted socket");
                unsent.extend_from_slice(&first[..count.min(3)]);
                unsent.extend_from_slice(&second[..count.saturating_sub(3)]);
                self.flush(io, socket);
                true
            }
            Received::Dry => false,
            Received::Ended | Received::Failed(_) => {
                io.close(socket);
                self.unsent.remove(&socket);
                true
            }
        }
    }

    fn on_writable(&mut self, io: &mut impl Io<Message>, socket: SocketId) {
        self.flush(io, socket);
    }

    fn on_completion(&mut self, _: &mut impl Io<Message>, completion: Completion) {
        let result = completion.result.map_err(|error| error.kind());
        self.outcomes.push(Outcome::Stored(result, completion.buffer.map(|buffer| buffer.to_vec())));
    }

    fn on_timer(&mut self, io: &mut impl Io<Message>, token: Token) {
        assert!(io.now_ns() >= token, "a timer rang early");
        self.outcomes.push(Outcome::Rang(token));
    }

    fn on_message(&mut self, io: &mut impl Io<Message>, message: Message) {
        match message {
            Message::Listen(listener) => io.listen(7, listener).unwrap(),
            Message::Adopt(connection) => {
                assert!(connection.peer.is_some() && connection.local.is_some());
                let socket = io.adopt(connection).unwrap();
                self.unsent.insert(socket, Vec::new());
            }
            Message::Store(length, make) => {
                let operation = make(io.pool().take(length).unwrap());
                io.start(1, operation).unwrap();
            }
            Message::Timer(after) => {
                let deadline_ns = io.now_ns() + u64::try_from(after.as_nanos()).unwrap();
                io.set_timer(deadline_ns, deadline_ns);
            }
            Message::HandOn => self.hands_on = true,
            Message::Report(to) => to.send(std::mem::take(&mut self.outcomes)).unwrap(),
            Message::Stop => io.stop(),
        }
    }

    fn on_turn_end(&mut self, _: &mut impl Io<Message>) -> bool {
        false
    }
}

struct Rig {
    addresses: Vec<Address<Message>>,
    threads: Vec<JoinHandle<()>>,
    listener: SocketAddr,
}

impl Rig {
    fn new(engine: EngineKind, count: usize) -> Self {
        let mailboxes: Vec<_> = (0..count).map(|_| Mailbox::new().unwrap()).collect();
        let addresses: Vec<_> = mailboxes.iter().map(Mailbox::address).collect();
        let start = Instant::now();
        let threads = mailboxes.into_iter().enumerate().map(|(index, mailbox)| {
            let addresses = addresses.clone();
            std::thread::spawn(move || {
                let settings = Settings { engine, pool_bytes: 16 << 20, ..Settings::default() };
                let reactor = Reactor::new(&settings, mailbox, |_| Echo::default()).unwrap();
                reactor.with_peers(index, addresses, start).run().unwrap();
            })
        });
        let threads = threads.collect();
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        addresses[0].post(Message::Listen(listener));
        Self { addresses, threads, listener: address }
    }

    fn outcomes(&self, count: usize) -> Vec<Outcome> {
        let mut all = Vec::new();
        let deadline = Instant::now() + Duration::from_secs(10);
        while all.len() < count {
            assert!(Instant::now() < deadline, "only {all:?}");
            let (to, from) = std::sync::mpsc::channel();
            self.addresses[0].post(Message::Report(to));
            all.extend(from.recv().unwrap());
            std::thread::sleep(Duration::from_millis(1));
        }
        all
    }

    fn store(
        &self,
        length: usize,
        make: impl FnOnce(memory::Buffer) -> Operation + Send + 'static,
    ) -> Outcome {
        self.addresses[0].post(Message::Store(length, Box::new(make)));
        self.outcomes(1).pop().unwrap()
    }
}

impl Drop for Rig {
    fn drop(&mut self) {
        for address in &self.addresses {
            address.post(Message::Stop);
        }
        for thread in self.threads.drain(..) {
            thread.join().unwrap();
        }
    }
}

/// More than one turn accepts: they must not wait for another one to come.
#[test]
fn connections_that_wait_together_are_all_accepted() {
    for engine in ENGINES {
        let rig = Rig::new(engine, 1);
        let listener = Listener::bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let address = listener.address();
        let mut clients: Vec<_> = (0..300).map(|_| TcpStream::connect(address).unwrap()).collect();
        rig.addresses[0].post(Message::Listen(listener));
        for client in &mut clients {
            client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
            client.write_all(&[7]).unwrap();
            client.read_exact(&mut [0]).expect("it is accepted and answered");
        }
    }
}

/// The kernel may hold on to a descriptor for a while after the ring that watched it is gone.
#[test]
fn a_port_is_free_as_soon_as_its_reactor_has_ended() {
    for engine in ENGINES {
        for round in 0..50 {
            let rig = Rig::new(engine, 1);
            let address = rig.listener;
            TcpStream::connect(address).unwrap().write_all(&[7]).unwrap();
            drop(rig);
            Listener::bind(address).unwrap_or_else(|error| panic!("{engine:?}, round {round}: {error}"));
        }
    }
}

/// What came before a connection changed hands is not lost, and what comes after reaches the new one.
#[test]
fn a_connection_that_is_handed_on_loses_nothing() {
    for engine in ENGINES {
        let rig = Rig::new(engine, 3);
        // The first accepts, the second gets it and hands it on to the third.
        rig.addresses[1].post(Message::HandOn);
        let mut clients: Vec<_> = (0..20).map(|_| TcpStream::connect(rig.listener).unwrap()).collect();
        for round in 0..3u8 {
            for client in &mut clients {
                client.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
                client.write_all(&[round, 1, 2, 3, 4, 5]).unwrap();
            }
            for client in &mut clients {
                let mut back = [0; 6];
                client.read_exact(&mut back).expect("it is answered");
                assert_eq!(back, [round, 1, 2, 3, 4, 5]);
            }
        }
    }
}

#[test]
fn what_is_sent_comes_back_whatever_the_engine() {
    for engine in ENGINES {
        for reactor_count in [1, 2] {
            let rig = Rig::new(engine, reactor_count);
            let clients: Vec<_> = (0..20u8)
                .map(|seed| {
                    let address = rig.listener;
                    std::thread::spawn(move || {
                        let stream = TcpStream::connect(address).unwrap();
                        let mut reader = stream.try_clone().unwrap();
                        let sent: Vec<u8> = (0..2_000_000u32).map(|n| (n % 253) as u8 ^ seed).collect();
                        let expected = sent.clone();
                        let writer = std::thread::spawn(move || {
                            let mut stream = stream;
                            stream.write_all(&sent).unwrap();
                            stream
                        });
                        // Slow at first: the reactor meets a full socket, pauses and resumes.
                        std::thread::sleep(Duration::from_millis(u64::from(seed % 4) * 20));
                        let mut received = vec![0; expected.len()];
                        reader.read_exact(&mut received).unwrap();
                        assert!(received == expected, "bytes differ");
                        let stream = writer.join().unwrap();
                        stream.shutdown(Shutdown::Write).unwrap();
                        assert_eq!(reader.read(&mut received).unwrap(), 0);
                    })
                })
                .collect();
            for client in clients {
                client.join().unwrap();
            }
        }
    }
}

#[test]
fn storage_operations_end_with_their_result_and_buffer() {
    for engine in ENGINES {
        let rig = Rig::new(engine, 1);
        let path = tempfile::NamedTempFile::new().unwrap();
        path.as_file().set_len(1 << 20).unwrap();
        let file = File::new(OwnedFd::from(path.reopen().unwrap()));
        let (write, read, sync, punch, zero) =
            (file.clone(), file.clone(), file.clone(), file.clone(), file.clone());
        let stored = rig.store(8192, move |mut buffer| {
            buffer.fill(0xa5);
            Operation::Write { file: write, offset: 4096, buffer, skip: 4096, durable: true }
        });
        assert_eq!(stored, Outcome::Stored(Ok(4096), Some(vec![0xa5; 8192])));
        assert_eq!(rig.store(1, move |_| Operation::Sync { file: sync }), Outcome::Stored(Ok(0), None));
        let stored =
            rig.store(4096, move |buffer| Operation::Read { file: read, offset: 4096, buffer, skip: 0 });
        assert_eq!(stored, Outcome::Stored(Ok(4096), Some(vec![0xa5; 4096])));
        let change = |file, change| move |_| Operation::Allocate { file, offset: 4096, length: 2048, change };
        assert_eq!(rig.store(1, change(punch, Allocation::Punch)), Outcome::Stored(Ok(0), None));
        assert_eq!(rig.store(1, change(zero, Allocation::Zero)), Outcome::Stored(Ok(0), None));
        let read = file.clone();
        let stored =
            rig.store(4096, move |buffer| Operation::Read { file: read, offset: 4096, buffer, skip: 0 });
        let mut expected = vec![0xa5; 4096];
        expected[..2048].fill(0);
        assert_eq!(stored, Outcome::Stored(Ok(4096), Some(expected)));
        let closed = File::new(OwnedFd::from(std::fs::File::open(path.path()).unwrap()));
        let refused = rig.store(4096, move |buffer| Operation::Write {
            file: closed,
            offset: 0,
            buffer,
            skip: 0,
            durable: false,
        });
        assert!(matches!(refused, Outcome::Stored(Err(_), Some(_))), "{refused:?}");
    }
}

#[test]
fn a_descriptor_is_awaited_once_for_each_operation_and_never_holds_up_the_end() {
    for engine in ENGINES {
        let rig = Rig::new(engine, 1);
        let bell = rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap();
        let file = File::new(bell.try_clone().unwrap());
        let ring = || {
            rustix::io::write(&bell, &1_u64.to_ne_bytes()).unwrap();
        };
        for _ in 0..3 {
            // Readable before it is awaited, and after.
            ring();
            let (before, after) = (file.clone(), file.clone());
            let awaited = rig.store(1, move |_| Operation::Await { file: before });
            assert_eq!(awaited, Outcome::Stored(Ok(0), None));
            rustix::io::read(&bell, &mut [0; 8]).unwrap();
            rig.addresses[0].post(Message::Store(1, Box::new(move |_| Operation::Await { file: after })));
            std::thread::sleep(Duration::from_millis(5));
            ring();
            assert_eq!(rig.outcomes(1), [Outcome::Stored(Ok(0), None)]);
            rustix::io::read(&bell, &mut [0; 8]).unwrap();
        }
        // More than there may be storage operations, where one descriptor may be awaited often; the reactor ends all the
        // same.
        let silent = File::new(rustix::event::eventfd(0, rustix::event::EventfdFlags::NONBLOCK).unwrap());
        for _ in 0..if engine == EngineKind::Uring { 1100 } else { 1 } {
            let silent = silent.clone();
            rig.addresses[0].post(Message::Store(1, Box::new(move |_| Operation::Await { file: silent })));
        }
        let last = file.clone();
        ring();
        assert_eq!(rig.store(1, move |_| Operation::Await { file: last }), Outcome::Stored(Ok(0), None));
    }
}

#[test]
fn timers_ring_in_order_and_an_idle_reactor_sleeps() {
    for engine in ENGINES {
        let rig = Rig::new(engine, 1);
        for after in [80, 20, 50] {
            rig.addresses[0].post(Message::Timer(Duration::from_millis(after)));
        }
        let rang = rig.outcomes(3);
        let deadlines: Vec<u64> = rang
            .iter()
            .map(|outcome| match outcome {
                Outcome::Rang(deadline_ns) => *deadline_ns,
                other => panic!("{other:?}"),
            })
            .collect();
        assert!(deadlines.is_sorted());
    }
}

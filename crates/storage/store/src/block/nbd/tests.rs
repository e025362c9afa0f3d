//! Namespaces on exports of a double of a server, driven by reactors.

use std::io::{self, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use nbd_wire::negotiation::{FIXED_NEWSTYLE, GREETING_MAGIC, REPLY_MAGIC, info, option, reply};
use nbd_wire::{CommandFlags, ExportFlags, ReplyForm, Request, chunk, command};
use proptest::collection::vec;
use proptest::prelude::*;
use reactor::EngineKind;
use tempfile::TempDir;

use super::place::NBD_DEADLINE_S_DEFAULT;
use super::{NbdPlace, NbdServer, NbdSettings, NbdStore};
use crate::namespace::{BlockStore, StoreError};
use crate::testing::{Bench, Rig, Step, check_against_model, model_steps};

const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];
const BLOCK: u64 = 512;
const BLOCKS: u64 = 64;

/// How the server behaves.
#[derive(Clone)]
struct Manner {
    flags: ExportFlags,
    is_simple: bool,
    /// Data of reads comes in pieces, the last one first.
    is_scattered: bool,
    /// Longest data.
    payload_bytes_max: u32,
    flush_fails: bool,
    /// What replaces the replies to reads.
    garbage: Option<Vec<u8>>,
}

struct Disk {
    /// As read, and as it is after a loss of power.
    current: Vec<u8>,
    stable: Vec<u8>,
    manner: Manner,
    is_down: bool,
    /// Requests are received, and not answered.
    is_held: bool,
    clients: Vec<UnixStream>,
    connection_count: u32,
}

struct Server {
    _directory: TempDir,
    path: PathBuf,
    disk: Arc<(Mutex<Disk>, Condvar)>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

fn full() -> ExportFlags {
    ExportFlags::BASE.with(ExportFlags::WRITE_ZEROES).with(ExportFlags::TRIM)
}

impl Default for Manner {
    fn default() -> Self {
        Self {
            flags: full(),
            is_simple: false,
            is_scattered: false,
            payload_bytes_max: 64 << 10,
            flush_fails: false,
            garbage: None,
        }
    }
}

impl Server {
    fn new(manner: Manner) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let bytes = vec![0; (BLOCKS * BLOCK) as usize];
        let disk = Disk {
            current: bytes.clone(),
            stable: bytes,
            manner,
            is_down: false,
            is_held: false,
            clients: Vec::new(),
            connection_count: 0,
        };
        let disk = Arc::new((Mutex::new(disk), Condvar::new()));
        let is_ending = Arc::new(AtomicBool::new(false));
        let (of_thread, ends) = (Arc::clone(&disk), Arc::clone(&is_ending));
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let client = client.unwrap();
                let mut disk = of_thread.0.lock().unwrap();
                if disk.is_down {
                    continue;
                }
                disk.connection_count += 1;
                disk.clients.push(client.try_clone().unwrap());
                drop(disk);
                let shared = Arc::clone(&of_thread);
                std::thread::spawn(move || drop(serve(client, &shared)));
            }
        });
        Self { _directory: directory, path, disk, is_ending, thread: Some(thread) }
    }

    fn with<T>(&self, change: impl FnOnce(&mut Disk) -> T) -> T {
        let changed = change(&mut self.disk.0.lock().unwrap());
        self.disk.1.notify_all();
        changed
    }

    /// Ends all connections, and accepts no others.
    fn go_down(&self) {
        self.with(|disk| {
            disk.is_down = true;
            for client in disk.clients.drain(..) {
                let _ = client.shutdown(std::net::Shutdown::Both);
            }
        });
    }

    fn come_back(&self) {
        self.with(|disk| disk.is_down = false);
    }

    fn hold(&self, is_held: bool) {
        self.with(|disk| disk.is_held = is_held);
    }

    fn settings(&self) -> NbdSettings {
        let place = NbdPlace {
            server: NbdServer::Unix(self.path.clone()),
            export: "disk".into(),
            connection_limit: 64,
            deadline_s: NBD_DEADLINE_S_DEFAULT,
        };
        NbdSettings { place, block_bytes: Some(512), is_read_only: false }
    }

    fn open(&self) -> Arc<dyn BlockStore> {
        Arc::new(NbdStore::open(&self.settings()).unwrap())
    }

    fn refusal(&self, change: impl FnOnce(&mut NbdSettings)) -> String {
        let mut settings = self.settings();
        change(&mut settings);
        let refused = NbdStore::open(&settings).err().expect("it is refused").to_string();
        refused.replace(&*self.path.to_string_lossy(), "PATH")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.hold(false);
        self.go_down();
        self.is_ending.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(&self.path);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn take<const N: usize>(client: &mut UnixStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn answer(client: &mut UnixStream, option: u32, kind: u32, data: &[u8]) -> io::Result<()> {
    let length = (data.len() as u32).to_be_bytes();
    let head = [&REPLY_MAGIC.to_be_bytes()[..], &option.to_be_bytes(), &kind.to_be_bytes(), &length];
    client.write_all(&[&head.concat()[..], data].concat())
}

/// Serves a client until it or the server ends.
fn serve(mut client: UnixStream, shared: &(Mutex<Disk>, Condvar)) -> io::Result<()> {
    client.write_all(&[&GREETING_MAGIC[..], &[0, FIXED_NEWSTYLE as u8]].concat())?;
    take::<4>(&mut client)?;
    let manner = || shared.0.lock().unwrap().manner.clone();
    let mut is_structured = false;
    loop {
        let head = take::<16>(&mut client)?;
        let [option, length] = [8, 12].map(|at| u32::from_be_bytes(head[at..at + 4].try_into().unwrap()));
        let mut data = vec![0; length as usize];
        client.read_exact(&mut data)?;
        match option {
            option::STRUCTURED_REPLY if !manner().is_simple => {
                is_structured = true;
                answer(&mut client, option, reply::ACK, &[])?;
            }
            option::GO if data[4..8] == *b"disk" => {
                let size = shared.0.lock().unwrap().current.len() as u64;
                let flags = manner().flags.bits().to_be_bytes();
                let info = [&info::EXPORT.to_be_bytes()[..], &size.to_be_bytes(), &flags].concat();
                answer(&mut client, option, reply::INFO, &info)?;
                let [least, most] = [512, manner().payload_bytes_max].map(u32::to_be_bytes);
                let sizes = [&info::BLOCK_SIZE.to_be_bytes()[..], &least, &least, &most].concat();
                answer(&mut client, option, reply::INFO, &sizes)?;
                answer(&mut client, option, reply::ACK, &[])?;
                break;
            }
            option::GO => answer(&mut client, option, reply::ERR_UNKNOWN, b"no such disk")?,
            _ => answer(&mut client, option, reply::ERR_UNSUP, &[])?,
        }
    }
    loop {
        let head = take::<28>(&mut client)?;
        let request = Request::from_bytes(ReplyForm::Structured, &head).unwrap().unwrap();
        let mut data = vec![0; if request.command == command::WRITE { request.length as usize } else { 0 }];
        client.read_exact(&mut data)?;
        if request.command == command::DISCONNECT {
            return Ok(());
        }
        let disk = shared.0.lock().unwrap();
        let mut disk = shared.1.wait_while(disk, |disk| disk.is_held && !disk.is_down).unwrap();
        if disk.is_down {
            return Ok(());
        }
        let (errno, read) = carry_out(&mut disk, request, &data);
        let manner = disk.manner.clone();
        drop(disk);
        if let (command::READ, Some(garbage)) = (request.command, &manner.garbage) {
            client.write_all(garbage)?;
            continue;
        }
        let cookie = request.cookie.to_be_bytes();
        if !is_structured {
            let head = [&chunk::SIMPLE_MAGIC.to_be_bytes()[..], &errno.to_be_bytes(), &cookie].concat();
            client.write_all(&[head, read].concat())?;
            continue;
        }
        let send = |client: &mut UnixStream, kind: u16, is_last: bool, payload: &[u8]| {
            let length = (payload.len() as u32).to_be_bytes();
            let flags = u16::from(is_last).to_be_bytes();
            let head = [&chunk::CHUNK_MAGIC.to_be_bytes()[..], &flags, &kind.to_be_bytes(), &cookie, &length];
            client.write_all(&[&head.concat()[..], payload].concat())
        };
        if errno != 0 {
            let text = b"it fails";
            let payload = [&errno.to_be_bytes()[..], &(text.len() as u16).to_be_bytes(), text].concat();
            send(&mut client, chunk::ERROR, true, &payload)?;
        } else if manner.is_scattered {
            for (at, block) in read.chunks(512).enumerate().rev() {
                let offset = (request.offset + at as u64 * 512).to_be_bytes();
                if block.iter().all(|byte| *byte == 0) {
                    let hole = [&offset[..], &(block.len() as u32).to_be_bytes()].concat();
                    send(&mut client, chunk::OFFSET_HOLE, false, &hole)?;
                } else {
                    send(&mut client, chunk::OFFSET_DATA, false, &[&offset[..], block].concat())?;
                }
            }
            send(&mut client, chunk::NONE, true, &[])?;
        } else if request.command == command::READ {
            let payload = [&request.offset.to_be_bytes()[..], &read].concat();
            send(&mut client, chunk::OFFSET_DATA, true, &payload)?;
        } else {
            send(&mut client, chunk::NONE, true, &[])?;
        }
    }
}

/// The error of a request, and the data of a read.
fn carry_out(disk: &mut Disk, request: Request, data: &[u8]) -> (u32, Vec<u8>) {
    let range = request.offset as usize..(request.offset + request.length) as usize;
    let is_durable = request.flags.has(CommandFlags::FUA);
    assert!(!is_durable || disk.manner.flags.has(ExportFlags::FUA), "a flag that is not offered");
    if range.end > disk.current.len() || data.len() > disk.manner.payload_bytes_max as usize {
        return (22, Vec::new());
    }
    match request.command {
        command::READ => return (0, disk.current[range].to_vec()),
        command::WRITE => disk.current[range.clone()].copy_from_slice(data),
        command::WRITE_ZEROES => {
            assert!(disk.manner.flags.has(ExportFlags::WRITE_ZEROES), "a command that is not offered");
            disk.current[range.clone()].fill(0);
        }
        command::FLUSH if disk.manner.flush_fails => return (5, Vec::new()),
        command::FLUSH => {
            disk.stable = disk.current.clone();
            return (0, Vec::new());
        }
        other => panic!("command {other} is not expected"),
    }
    if is_durable {
        disk.stable[range.clone()].copy_from_slice(&disk.current[range]);
    }
    (0, Vec::new())
}

fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Servers with different abilities.
fn manners() -> [Manner; 4] {
    let bare = ExportFlags::HAS_FLAGS.with(ExportFlags::FLUSH);
    [
        Manner::default(),
        Manner { is_simple: true, flags: bare, ..Manner::default() },
        Manner { is_scattered: true, ..Manner::default() },
        Manner { is_scattered: true, flags: full().without(ExportFlags::FUA), ..Manner::default() },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(8))]
    #[test]
    fn an_export_is_a_vector_of_bytes(steps in model_steps(BLOCKS, false)) {
        for (number, manner) in manners().into_iter().enumerate() {
            let server = Server::new(manner);
            let store = server.open();
            let Some(mut rig) = Rig::attach(&store, ENGINES[number % 2]) else { continue };
            check_against_model(&*store, &mut rig, steps.clone())?;
        }
    }

    /// What was flushed or written durably survives a loss of power at the server, whether it has FUA or not.
    #[test]
    fn what_is_promised_survives_a_loss_of_power(
        steps in vec((0u64..8, 1u8.., any::<bool>(), prop::bool::weighted(0.2)), 1..40),
        has_fua: bool,
    ) {
        let flags = if has_fua { full() } else { full().without(ExportFlags::FUA) };
        let server = Server::new(Manner { flags, ..Manner::default() });
        let store = server.open();
        let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return Ok(()) };
        // By block: the promised content, and those that came after it.
        let mut blocks = vec![vec![0u8]; 8];
        for (block, value, is_durable, is_flush) in steps {
            if is_flush {
                prop_assert!(rig.flush().is_ok());
                blocks.iter_mut().for_each(|contents| drop(contents.drain(..contents.len() - 1)));
                continue;
            }
            let step = Step::Write { offset: block * BLOCK, data: vec![value; 512], is_durable };
            prop_assert!(rig.run(step).is_ok());
            let contents = &mut blocks[block as usize];
            contents.push(value);
            if is_durable {
                contents.drain(..contents.len() - 1);
            }
        }
        let bytes = server.with(|disk| disk.stable.clone());
        for (contents, block) in blocks.iter().zip(bytes.chunks(512)) {
            prop_assert!(contents.contains(&block[0]), "{} is none of {contents:?}", block[0]);
        }
    }

    /// Bytes that are no replies end the connection and nothing else.
    #[test]
    fn garbage_ends_the_connection(garbage in vec(any::<u8>(), 1..80), magic in 0usize..3) {
        let server = Server::new(Manner::default());
        let store = server.open();
        let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return Ok(()) };
        prop_assert!(rig.write(0, &[7; 512]).is_ok());
        let begin = [vec![], chunk::CHUNK_MAGIC.to_be_bytes().into(), chunk::SIMPLE_MAGIC.to_be_bytes().into()];
        // Longer than any head, so that the reply is judged.
        let garbage = [&begin[magic][..], &garbage, &[0xff; 40]].concat();
        server.with(|disk| disk.manner.garbage = Some(garbage));
        let reading = std::thread::spawn(move || (rig.read(0, 512), rig));
        let before = server.with(|disk| disk.connection_count);
        eventually("no other connection", || server.with(|disk| disk.connection_count) > before);
        server.with(|disk| disk.manner.garbage = None);
        let (read, _rig) = reading.join().unwrap();
        prop_assert_eq!(read, Ok(vec![7; 512]));
    }
}

#[test]
fn a_server_that_takes_one_client_serves_all_reactors() {
    for flags in [full(), full().without(ExportFlags::MULTI_CONN)] {
        let server = Server::new(Manner { flags, ..Manner::default() });
        let store = server.open();
        let rigs: Vec<_> =
            ENGINES.into_iter().cycle().take(4).filter_map(|engine| Rig::attach(&store, engine)).collect();
        let count = rigs.len() as u64;
        let run = |(number, mut rig): (u64, Rig)| {
            std::thread::spawn(move || {
                for round in 0..50u8 {
                    let places = || (0..BLOCKS / 4).map(|at| (at * 4 + number) * BLOCK);
                    let write = |offset| Step::Write { offset, data: vec![round; 512], is_durable: false };
                    assert!(rig.run_all(places().map(write).collect()).iter().all(Result::is_ok));
                    let read = |offset| Step::Read { offset, length: 512 };
                    let results = rig.run_all(places().map(read).collect());
                    assert!(results.iter().all(|read| *read == Ok(vec![round; 512])), "{results:?}");
                    assert_eq!(rig.flush(), Ok(vec![]));
                }
                rig
            })
        };
        let threads: Vec<_> = (0..).zip(rigs).map(run).collect();
        let rigs: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        let expected = if flags.has(ExportFlags::MULTI_CONN) { count } else { 1 };
        assert_eq!(u64::from(server.with(|disk| disk.connection_count)), expected);
        // Whoever had the connection leaves: another reactor makes one.
        for mut rig in rigs {
            eventually("a reactor was left alone", || rig.read(0, 512).is_ok());
        }
    }
}

#[test]
fn commands_wait_for_a_server_that_comes_back() {
    for engine in ENGINES {
        let server = Server::new(Manner::default());
        let store = server.open();
        let Some(mut rig) = Rig::attach(&store, engine) else { continue };
        assert!(rig.write(0, &[1; 512]).is_ok());
        assert!(rig.flush().is_ok());
        let generation = store.generation();
        server.hold(true);
        let working = std::thread::spawn(move || {
            let steps = (0..BLOCKS).map(|at| Step::Write {
                offset: at * BLOCK,
                data: vec![2; 512],
                is_durable: true,
            });
            (rig.run_all(steps.collect()), rig)
        });
        server.go_down();
        server.hold(false);
        server.come_back();
        let (results, mut rig) = working.join().unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(rig.read(0, BLOCKS as usize * 512), Ok(vec![2; BLOCKS as usize * 512]));
        // Nothing that was answered could be lost.
        assert_eq!((rig.flush(), store.generation()), (Ok(vec![]), generation));
    }
}

#[test]
fn hosts_learn_that_unflushed_writes_may_be_lost() {
    let server = Server::new(Manner::default());
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.write(0, &[1; 512]).is_ok());
    assert!(store.generation().is_first());
    server.go_down();
    eventually("the loss is not noticed", || !store.generation().is_first());
    assert!(!store.generation().is_closed(), "it goes on");
    assert_eq!(store.generation().closing_count(), 1);
    server.come_back();
    eventually("no connection", || rig.read(0, 512).is_ok());
    assert_eq!(rig.flush(), Ok(vec![]), "hosts have been told by the generation");
}

#[test]
fn a_flush_under_way_does_not_cover_what_was_lost() {
    let server = Server::new(Manner::default());
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.write(0, &[1; 512]).is_ok());
    server.hold(true);
    let flushing = std::thread::spawn(move || rig.flush());
    // The server drops its connection with the flush in it, whether it arrived or not.
    std::thread::yield_now();
    server.go_down();
    server.hold(false);
    server.come_back();
    let flushed = flushing.join().unwrap();
    let is_told = flushed == Err(StoreError::WriteFailed(5)) || store.generation().closing_count() == 1;
    assert!(is_told, "{flushed:?}");
}

#[test]
fn commands_end_within_the_deadline() {
    let server = Server::new(Manner::default());
    let mut settings = server.settings();
    settings.place.deadline_s = 1;
    let store: Arc<dyn BlockStore> = Arc::new(NbdStore::open(&settings).unwrap());
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.read(0, 512).is_ok());
    // A server that hangs.
    server.hold(true);
    assert_eq!(rig.write(0, &[1; 512]), Err(StoreError::Unreachable));
    assert_eq!(rig.read(0, 512), Err(StoreError::Unreachable));
    server.hold(false);
    eventually("it does not go on", || rig.read(0, 512).is_ok());
    // A server that is away.
    server.go_down();
    eventually("it is not noticed", || rig.read(0, 512) == Err(StoreError::Unreachable));
    server.come_back();
    eventually("it does not come back", || rig.read(0, 512).is_ok());
}

#[test]
fn a_failed_flush_closes_the_namespace() {
    let server = Server::new(Manner { flush_fails: true, ..Manner::default() });
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.write(0, &[1; 512]).is_ok());
    assert_eq!(rig.flush(), Err(StoreError::WriteFailed(5)));
    assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
    assert!(store.closed_because().unwrap().contains("a flush has failed"));
    server.with(|disk| disk.manner.flush_fails = false);
    store.reopen().unwrap();
    assert_eq!(rig.flush(), Ok(vec![]));
}

#[test]
fn an_export_may_grow_and_not_shrink() {
    let server = Server::new(Manner::default());
    let store = server.open();
    let Some(mut rig) = Rig::attach(&store, EngineKind::Epoll) else { return };
    assert!(rig.read(0, 512).is_ok());
    let resize = |blocks: u64| {
        server.go_down();
        server.with(|disk| {
            disk.current.resize((blocks * BLOCK) as usize, 0);
            disk.stable.resize((blocks * BLOCK) as usize, 0);
        });
        server.come_back();
    };
    resize(2 * BLOCKS);
    eventually("growth is not seen", || {
        store.revalidate().is_some_and(|grown| grown.after == 2 * BLOCKS * BLOCK)
    });
    assert!(rig.read((2 * BLOCKS - 1) * BLOCK, 512).is_ok());
    resize(BLOCKS);
    eventually("it is not closed", || store.closed_because().is_some());
    assert_eq!(store.closed_because().unwrap(), "the export has 32768 bytes, 65536 before");
    store.reopen().unwrap();
    assert_eq!(store.geometry().block_count, BLOCKS);
    eventually("it is not open", || rig.read(0, 512).is_ok());
}

#[test]
fn what_cannot_be_served_is_refused_with_its_remedy() {
    let server = Server::new(Manner::default());
    let no_flush = Server::new(Manner { flags: ExportFlags::HAS_FLAGS, ..Manner::default() });
    let memcached = tempfile::tempdir().unwrap();
    let stranger = UnixListener::bind(memcached.path().join("socket")).unwrap();
    let talks = std::thread::spawn(move || {
        stranger.accept().unwrap().0.write_all(b"220 mail.example ESMTP ready\r\n")
    });
    let refusals = [
        server.refusal(|settings| settings.place.export = "other".into()),
        server.refusal(|settings| settings.place.server = NbdServer::Unix("/nowhere".into())),
        server
            .refusal(|settings| {
                settings.place.server = NbdServer::Unix(memcached.path().join("socket"));
            })
            .replace(&*memcached.path().to_string_lossy(), "DIR"),
        server.refusal(|settings| settings.block_bytes = Some(1000)),
        server.refusal(|settings| settings.block_bytes = Some(65536)),
        no_flush.refusal(|_| {}),
    ];
    talks.join().unwrap().unwrap();
    insta::assert_snapshot!(refusals.join("\n"), @r"
    nbd+unix:///other?socket=PATH: the server has no export of this name: `nbdinfo --list` shows what it has (it says: no such disk)
    nbd+unix:///disk?socket=/nowhere: cannot connect: No such file or directory (os error 2)
    nbd+unix:///disk?socket=DIR/socket: this is no NBD server
    a logical block cannot have 1000 bytes: take a power of two from 512 to 65536
    nbd+unix:///disk?socket=PATH is empty: make it larger where its server is
    nbd+unix:///disk?socket=PATH: its server has no flush, so nothing would ever be known to be durable: give readonly to serve it for reading
    ");
    let read_only = NbdStore::open(&NbdSettings { is_read_only: true, ..no_flush.settings() }).unwrap();
    assert!(read_only.geometry().is_read_only);
    assert!(Path::new(&no_flush.path).exists());
}

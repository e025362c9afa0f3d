//! Namespaces on doubles of servers, over whichever protocol: what a server has, and what holds for all of them.

use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::TestCaseResult;
use reactor::EngineKind;
use tempfile::TempDir;

use super::{Remote, RemoteSettings, RemoteStore};
use crate::namespace::{BlockStore, StoreError};
use crate::testing::{Bench, ModelStep, PromiseStep, Rig, Step, check_against_model, check_promises};

pub(crate) const ENGINES: [EngineKind; 2] = [EngineKind::Uring, EngineKind::Epoll];
pub(crate) const BLOCK: u64 = 512;
pub(crate) const BLOCKS: u64 = 64;

/// How a server behaves, and which protocol it speaks.
pub(crate) trait Manner: Clone + Default + Send + 'static {
    /// How it is reached.
    type Place: Remote;

    /// Whether it serves one client at a time.
    const IS_ALONE: bool;

    fn place(socket: &Path) -> Self::Place;
    fn set_deadline(place: &mut Self::Place, seconds: u32);
    fn set_flush_fails(&mut self, fails: bool);

    /// Serves a client until it or the server ends.
    fn serve(client: UnixStream, disk: &Arc<SharedDisk<Self>>);
}

pub(crate) struct Disk<M> {
    /// As read, and as it is after a loss of power.
    pub(crate) current: Vec<u8>,
    pub(crate) stable: Vec<u8>,
    pub(crate) manner: M,
    pub(crate) is_down: bool,
    /// Requests are received, and not answered.
    is_held: bool,
    clients: Vec<UnixStream>,
    pub(crate) connection_count: u32,
}

/// What the threads of a server share.
pub(crate) struct SharedDisk<M> {
    disk: Mutex<Disk<M>>,
    changed: Condvar,
}

impl<M: Manner> SharedDisk<M> {
    pub(crate) fn lock(&self) -> MutexGuard<'_, Disk<M>> {
        self.disk.lock().unwrap()
    }

    pub(crate) fn wake(&self) {
        self.changed.notify_all();
    }

    /// The disk, once it answers; `None` if the connection is over by then.
    pub(crate) fn answering(&self, is_over: impl Fn() -> bool) -> Option<MutexGuard<'_, Disk<M>>> {
        let goes_on = |disk: &mut Disk<M>| disk.is_held && !disk.is_down && !is_over();
        let disk = self.changed.wait_while(self.lock(), goes_on).unwrap();
        (!disk.is_down && !is_over()).then_some(disk)
    }
}

pub(crate) struct Server<M: Manner> {
    _directory: TempDir,
    pub(crate) path: PathBuf,
    disk: Arc<SharedDisk<M>>,
    is_ending: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Manner> Server<M> {
    pub(crate) fn new(manner: M) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
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
        let disk = Arc::new(SharedDisk { disk: Mutex::new(disk), changed: Condvar::new() });
        let is_ending = Arc::new(AtomicBool::new(false));
        let (of_thread, ends) = (Arc::clone(&disk), Arc::clone(&is_ending));
        let thread = std::thread::spawn(move || {
            for client in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let client = client.unwrap();
                let mut disk = of_thread.lock();
                if disk.is_down {
                    continue;
                }
                disk.connection_count += 1;
                disk.clients.push(client.try_clone().unwrap());
                drop(disk);
                let shared = Arc::clone(&of_thread);
                if M::IS_ALONE {
                    M::serve(client, &shared);
                } else {
                    std::thread::spawn(move || M::serve(client, &shared));
                }
            }
        });
        Self { _directory: directory, path, disk, is_ending, thread: Some(thread) }
    }

    pub(crate) fn with<T>(&self, change: impl FnOnce(&mut Disk<M>) -> T) -> T {
        let changed = change(&mut self.disk.lock());
        self.disk.wake();
        changed
    }

    /// Ends all connections, and accepts no others.
    pub(crate) fn go_down(&self) {
        self.with(|disk| {
            disk.is_down = true;
            for client in disk.clients.drain(..) {
                let _ = client.shutdown(std::net::Shutdown::Both);
            }
        });
    }

    pub(crate) fn come_back(&self) {
        self.with(|disk| disk.is_down = false);
    }

    pub(crate) fn hold(&self, is_held: bool) {
        self.with(|disk| disk.is_held = is_held);
    }

    pub(crate) fn resize(&self, blocks: u64) {
        self.with(|disk| {
            disk.current.resize((blocks * BLOCK) as usize, 0);
            disk.stable.resize((blocks * BLOCK) as usize, 0);
        });
    }

    pub(crate) fn settings(&self) -> RemoteSettings<M::Place> {
        RemoteSettings { place: M::place(&self.path), block_bytes: Some(512), is_read_only: false }
    }

    pub(crate) fn open(&self) -> Arc<dyn BlockStore> {
        Arc::new(RemoteStore::open(self.settings()).unwrap())
    }

    pub(crate) fn refusal(&self, change: impl FnOnce(&mut RemoteSettings<M::Place>)) -> String {
        let mut settings = self.settings();
        change(&mut settings);
        let refused = RemoteStore::open(settings).err().expect("it is refused").to_string();
        refused.replace(&*self.path.to_string_lossy(), "PATH")
    }
}

impl<M: Manner> Drop for Server<M> {
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

pub(crate) fn eventually(what: &str, mut is: impl FnMut() -> bool) {
    let until = Instant::now() + Duration::from_secs(30);
    while !is() {
        assert!(Instant::now() < until, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A server, the namespace on it, and a reactor; `None` if this machine has no engine of this kind.
fn rig_of<M: Manner>(manner: M, engine: EngineKind) -> Option<(Server<M>, Arc<dyn BlockStore>, Rig)> {
    let server = Server::new(manner);
    let store = server.open();
    let rig = Rig::attach(&store, engine)?;
    Some((server, store, rig))
}

/// It is a vector of bytes, however the server behaves.
pub(crate) fn equals_the_model<M: Manner>(
    manners: impl IntoIterator<Item = M>,
    steps: &[ModelStep],
) -> TestCaseResult {
    for (number, manner) in manners.into_iter().enumerate() {
        let Some((_server, store, mut rig)) = rig_of(manner, ENGINES[number % 2]) else { continue };
        check_against_model(&*store, &mut rig, steps.to_vec())?;
    }
    Ok(())
}

/// What was flushed or written durably survives a loss of power at the server.
pub(crate) fn promises_survive<M: Manner>(manner: M, steps: Vec<PromiseStep>) -> TestCaseResult {
    let Some((server, _store, mut rig)) = rig_of(manner, EngineKind::Epoll) else { return Ok(()) };
    check_promises(&mut rig, steps, false, || server.with(|disk| disk.stable.clone()))
}

/// What a server says against the rules of its protocol ends the connection and nothing else.
pub(crate) fn a_breach_ends_the_connection<M: Manner>(breaks: impl FnOnce(&mut M)) -> TestCaseResult {
    let Some((server, _store, mut rig)) = rig_of(M::default(), EngineKind::Epoll) else { return Ok(()) };
    prop_assert!(rig.write(0, &[7; 512]).is_ok());
    let before = server.with(|disk| {
        breaks(&mut disk.manner);
        disk.connection_count
    });
    let reading = std::thread::spawn(move || (rig.read(0, 512), rig));
    eventually("no other connection", || server.with(|disk| disk.connection_count) > before);
    server.with(|disk| disk.manner = M::default());
    let (read, _rig) = reading.join().unwrap();
    prop_assert_eq!(read, Ok(vec![7; 512]));
    Ok(())
}

/// Four reactors write and read at the same time. Returns them, and their number.
pub(crate) fn reactors_at_work(store: &Arc<dyn BlockStore>) -> (Vec<Rig>, usize) {
    let rigs: Vec<_> =
        ENGINES.into_iter().cycle().take(4).filter_map(|engine| Rig::attach(store, engine)).collect();
    let count = rigs.len();
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
    (threads.into_iter().map(|thread| thread.join().unwrap()).collect(), count)
}

/// They leave one after the other: those that are left go on, whoever had the connection.
pub(crate) fn reactors_leave(rigs: Vec<Rig>) {
    for mut rig in rigs {
        eventually("a reactor was left alone", || rig.read(0, 512).is_ok());
    }
}

pub(crate) fn commands_wait_for_a_server_that_comes_back<M: Manner>() {
    for engine in ENGINES {
        let Some((server, store, mut rig)) = rig_of(M::default(), engine) else { continue };
        assert!(rig.write(0, &[1; 512]).is_ok());
        assert!(rig.flush().is_ok());
        let generation = store.generation();
        server.hold(true);
        let working = std::thread::spawn(move || {
            let write = |at| Step::Write { offset: at * BLOCK, data: vec![2; 512], is_durable: true };
            (rig.run_all((0..BLOCKS).map(write).collect()), rig)
        });
        server.go_down();
        server.hold(false);
        server.come_back();
        let (results, mut rig) = working.join().unwrap();
        assert!(results.iter().all(Result::is_ok), "{results:?}");
        assert_eq!(rig.read(0, BLOCKS as usize * 512), Ok(vec![2; BLOCKS as usize * 512]));
        assert!(rig.flush().is_ok());
        // Nothing that was answered could be lost; where a durable write has a flush of its own, it may have been done
        // and its flush not, and then hosts are told.
        let is_told = store.generation().closing_count() == 1;
        assert!(store.generation() == generation || is_told && M::IS_ALONE);
    }
}

pub(crate) fn hosts_learn_that_unflushed_writes_may_be_lost<M: Manner>() {
    let Some((server, store, mut rig)) = rig_of(M::default(), EngineKind::Epoll) else { return };
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

pub(crate) fn commands_end_within_the_deadline<M: Manner>() {
    let server = Server::new(M::default());
    let mut settings = server.settings();
    M::set_deadline(&mut settings.place, 1);
    let store: Arc<dyn BlockStore> = Arc::new(RemoteStore::open(settings).unwrap());
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

pub(crate) fn a_failed_flush_closes_the_namespace<M: Manner>() {
    let mut manner = M::default();
    manner.set_flush_fails(true);
    let Some((server, store, mut rig)) = rig_of(manner, EngineKind::Epoll) else { return };
    assert!(rig.write(0, &[1; 512]).is_ok());
    assert_eq!(rig.flush(), Err(StoreError::WriteFailed(5)));
    assert_eq!(rig.read(0, 512), Err(StoreError::Closed));
    assert!(store.closed_because().unwrap().contains("a flush has failed"));
    server.with(|disk| disk.manner.set_flush_fails(false));
    store.reopen().unwrap();
    assert_eq!(rig.flush(), Ok(vec![]));
}

/// It came back with fewer blocks than hosts know: it is closed, until it is reopened.
pub(crate) fn a_smaller_one_is_closed(store: &Arc<dyn BlockStore>, rig: &mut Rig) {
    eventually("it is not closed", || store.closed_because().is_some());
    assert_eq!(store.closed_because().unwrap(), "the storage has 32768 bytes, 65536 before");
    store.reopen().unwrap();
    assert_eq!(store.geometry().block_count, BLOCKS);
    eventually("it is not open", || rig.read(0, 512).is_ok());
}

/// It has twice as many blocks, and hosts can use them.
pub(crate) fn growth_is_seen(store: &Arc<dyn BlockStore>, rig: &mut Rig) {
    eventually("growth is not seen", || {
        store.revalidate().is_some_and(|grown| grown.after == 2 * BLOCKS * BLOCK)
    });
    assert!(rig.read((2 * BLOCKS - 1) * BLOCK, 512).is_ok());
}

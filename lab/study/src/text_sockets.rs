//! A server that only receives and sends: the cost of sockets alone for `get` in the memcached protocol. Each line is a
//! request for one key; the server answers all of them with one value.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::{fs, thread};

use load::account::{Account, Reading};
use load::cpu::CpuTime;
use load::disturbance::parse_schedstat;
use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};

use crate::error::Error;
use crate::text_load::value_answer;

/// Connections that are served between two waits.
const READY_COUNT_MAX: usize = 512;

/// Most requests that are answered with one send.
const REQUEST_COUNT_MAX: usize = 1024;

/// Event of the listener, not of a client.
const LISTENER: u64 = u64::MAX;

/// Longest wait, after which the server checks whether it is to end.
const WAIT: Timespec = Timespec { tv_sec: 0, tv_nsec: 10_000_000 };

/// A thread that answers. It ends with this value.
#[derive(Debug)]
pub(crate) struct TextSockets {
    pub(crate) place: SocketAddr,
    account: Arc<ThreadAccount>,
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl TextSockets {
    /// Starts the server on this core.
    pub(crate) fn start(core: Option<usize>) -> Result<Self, Error> {
        let failed = |error| Error::system("a server of plain sockets", error);
        let listener = TcpListener::bind("127.0.0.1:0").map_err(failed)?;
        let place = listener.local_addr().map_err(failed)?;
        let ends = Arc::new(AtomicBool::new(false));
        let (tells_id, id) = mpsc::channel();
        let serve = {
            let ends = Arc::clone(&ends);
            move || {
                if let Some(core) = core {
                    linux::pin(core)?;
                }
                let _ = tells_id.send(rustix::thread::gettid());
                serve(&listener, &ends)
            }
        };
        let thread = thread::Builder::new().name("sockets".into()).spawn(serve).map_err(failed)?;
        let Ok(id) = id.recv() else {
            let ended = thread.join().expect("the server does not panic");
            return Err(failed(ended.err().unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into())));
        };
        let account = Arc::new(ThreadAccount(id.as_raw_nonzero().get().unsigned_abs()));
        Ok(Self { place, account, ends, thread: Some(thread) })
    }

    /// The account of its thread.
    pub(crate) fn account(&self) -> Arc<dyn Account> {
        Arc::clone(&self.account) as Arc<dyn Account>
    }
}

impl Drop for TextSockets {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        // It ends within a wait. Its error, if it has one, is also that of the load.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// A thread of this process.
#[derive(Debug)]
struct ThreadAccount(u32);

impl Account for ThreadAccount {
    fn read(&self) -> Option<Reading> {
        let text = fs::read_to_string(format!("/proc/self/task/{}/schedstat", self.0)).ok()?;
        let (user_ns, ..) = parse_schedstat(&text)?;
        let time = CpuTime { user_ns, ..CpuTime::default() };
        Some(Reading { time: Some(time), threads: None, machine_busy_ns: None })
    }
}

/// Accepts connections and answers requests, until it is to end.
fn serve(listener: &TcpListener, ends: &AtomicBool) -> io::Result<()> {
    listener.set_nonblocking(true)?;
    let answers = value_answer().repeat(REQUEST_COUNT_MAX);
    let answer_bytes = answers.len() / REQUEST_COUNT_MAX;
    let set = epoll::create(epoll::CreateFlags::CLOEXEC)?;
    epoll::add(&set, listener, epoll::EventData::new_u64(LISTENER), epoll::EventFlags::IN)?;
    // Places are not used again: a load connects once.
    let mut clients: Vec<Option<TcpStream>> = Vec::new();
    let mut events: Vec<epoll::Event> = Vec::with_capacity(READY_COUNT_MAX);
    let mut buffer = vec![0; 1 << 16];
    while !ends.load(Ordering::Relaxed) {
        events.clear();
        match epoll::wait(&set, spare_capacity(&mut events), Some(&WAIT)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        for event in &events {
            let data = event.data.u64();
            if data == LISTENER {
                accept(listener, &set, &mut clients)?;
                continue;
            }
            let client = &mut clients[usize::try_from(data).expect("an index")];
            let Some(stream) = client else { continue };
            let count = match stream.read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                Err(_) | Ok(0) => 0,
                Ok(count) => buffer[..count].iter().filter(|&&byte| byte == b'\n').count(),
            };
            // A send that the socket does not take ends the connection, and so the load.
            let is_open = (1..=REQUEST_COUNT_MAX).contains(&count)
                && stream.write_all(&answers[..count * answer_bytes]).is_ok();
            if !is_open {
                *client = None;
            }
        }
    }
    Ok(())
}

/// Accepts every connection that waits.
fn accept(listener: &TcpListener, set: &OwnedFd, clients: &mut Vec<Option<TcpStream>>) -> io::Result<()> {
    loop {
        let (stream, place) = match listener.accept() {
            Ok(accepted) => accepted,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) => return Err(error),
        };
        stream.set_nonblocking(true)?;
        stream.set_nodelay(true)?;
        reactor::suit_loopback(&stream, Some(place));
        epoll::add(set, &stream, epoll::EventData::new_u64(clients.len() as u64), epoll::EventFlags::IN)?;
        clients.push(Some(stream));
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::text_load::{self, Kind, Protocol, TextLoad};

    #[test]
    fn each_request_is_answered_and_its_time_is_counted() {
        let server = TextSockets::start(None).unwrap();
        let load = TextLoad {
            kind: Kind::Get,
            batch: 3,
            connections: 5,
            keys: 10,
            seed: 1,
            rate_per_s: None,
            warm_up: Duration::from_millis(1),
            measure: Duration::from_millis(100),
        };
        let account = server.account();
        let before = account.read().unwrap().run_ns();
        let result =
            text_load::run(server.place, Protocol::Memcached, &load, None, || Ok(()), &|| false).unwrap();
        assert!(result.operations > 0);
        assert!(account.read().unwrap().run_ns() > before);
    }
}

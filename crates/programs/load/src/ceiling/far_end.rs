//! A ceiling between two machines: its far end listens on one, its near end connects from the other.
//!
//! ```text
//! near                         far
//! connect, key, handshake ──▶  accept, check the key     each connection
//!                         ◀──  ready                     its memory is allocated
//! operations              ◀─▶
//!                         ──▶  end                       both keep their connections until then
//! ```
//!
//! *Ready* and *end* travel on a way of the caller's own. The key keeps connections of others out.

use std::io::{self, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use reactor::{Listener, Received, Socket};

use super::channel::Channel;
use super::{CeilingResult, CeilingSpec, answer, ask};
use crate::cpu::CpuTime;
use crate::disturbance::{Loss, Side};

/// Length of a key, bytes.
pub const KEY_BYTES: usize = 16;

/// The bytes with which each connection begins.
pub type Key = [u8; KEY_BYTES];

/// Time for the connections of a ceiling to arrive.
const CONNECT_TIME: Duration = Duration::from_secs(30);

/// Time for one connection.
const ONE_TIME: Duration = Duration::from_secs(5);

/// Connections without a complete key, beside those that are expected.
const STRANGER_COUNT_MAX: usize = 16;

/// Pause of a far end that waits for connections.
const PAUSE: Duration = Duration::from_micros(200);

/// Processor time of a far end while it was measured, and the time that it lost to other load.
pub type FarAccount = (CpuTime, Option<Loss>);

/// A far end in a thread of its own. It ends with this value.
#[derive(Debug)]
pub struct FarEnd {
    address: SocketAddr,
    ends: Arc<AtomicBool>,
    is_ready: mpsc::Receiver<()>,
    thread: Option<JoinHandle<io::Result<FarAccount>>>,
}

impl FarEnd {
    /// Listens, and accepts as many connections with this key as `spec` says. Of its cores only the far one counts.
    ///
    /// # Errors
    /// The address cannot be listened on, or there is no thread.
    pub fn start(spec: &CeilingSpec, listen: SocketAddr, key: Key) -> io::Result<Self> {
        let listener = Listener::bind(listen)?;
        let address = listener.address();
        let ends = Arc::new(AtomicBool::new(false));
        let (tells_ready, is_ready) = mpsc::channel();
        let (spec, is_over) = (spec.clone(), Arc::clone(&ends));
        let work = move || {
            let mut channels = accept(&listener, &spec, &key, &is_over)?;
            drop(listener);
            answer(&mut channels, &spec, &tells_ready, &is_over)
        };
        let thread = std::thread::Builder::new().name("ceiling-far".into()).spawn(work)?;
        Ok(Self { address, ends, is_ready, thread: Some(thread) })
    }

    /// Where it listens.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits until all connections are there and its memory is allocated.
    ///
    /// # Errors
    /// It has failed, or is not ready in time. It has ended then.
    pub fn await_ready(&mut self, time: Duration) -> io::Result<()> {
        match self.is_ready.recv_timeout(time) {
            Ok(()) => Ok(()),
            Err(mpsc::RecvTimeoutError::Timeout) => {
                self.ends.store(true, Ordering::Relaxed);
                Err(io::ErrorKind::TimedOut.into())
            }
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                let failed = self.join().err();
                Err(failed.unwrap_or_else(|| io::ErrorKind::UnexpectedEof.into()))
            }
        }
    }

    /// Ends it.
    ///
    /// # Errors
    /// Why it failed before.
    pub fn end(mut self) -> io::Result<FarAccount> {
        self.join()
    }

    fn join(&mut self) -> io::Result<FarAccount> {
        self.ends.store(true, Ordering::Relaxed);
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(outcome)) => outcome,
            Some(Err(_)) => Err(io::Error::other("the far end panicked")),
            None => Err(io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

impl Drop for FarEnd {
    fn drop(&mut self) {
        let _ = self.join();
    }
}

/// A far end elsewhere, as its near end asks for it.
pub trait RemoteFarEnd {
    /// Returns once the far end is ready.
    ///
    /// # Errors
    /// It has failed, or cannot be reached.
    fn await_ready(&mut self) -> io::Result<()>;

    /// Ends the far end.
    ///
    /// # Errors
    /// As [`await_ready`](Self::await_ready).
    fn end(&mut self) -> io::Result<FarAccount>;
}

/// Moves the bytes for as long as `spec` says, to a far end that was started with the same `spec` and key.
///
/// # Errors
/// As [`measure`](super::measure), and those of the far end.
pub fn measure_at(
    (address, key): (SocketAddr, Key),
    spec: &CeilingSpec,
    far: &mut dyn RemoteFarEnd,
) -> io::Result<CeilingResult> {
    let mut channels = Vec::new();
    for _ in 0..spec.connections.max(1) {
        let mut stream = TcpStream::connect_timeout(&address, ONE_TIME)?;
        stream.set_nodelay(true)?;
        stream.write_all(&key)?;
        let socket = Socket::new(stream.into())?;
        channels.push(Channel::near(socket, spec.tls, Instant::now() + ONE_TIME)?);
    }
    let result = ask(&mut channels, spec, &mut || far.await_ready());
    // A far end that has failed knows why the near end did.
    let far = far.end();
    drop(channels);
    let (far, mut result) = match (far, result) {
        (Ok((far, loss)), Ok(mut result)) => {
            result.disturbance.add(Side::Ceiling, loss);
            (far, result)
        }
        (Err(error), _) | (_, Err(error)) => return Err(error),
    };
    result.far = far;
    Ok(result)
}

/// A connection whose key has not arrived as a whole.
struct Candidate {
    socket: Socket,
    received: Vec<u8>,
}

impl Candidate {
    /// Whether its key is the expected one; `None` if it is not complete.
    fn look(&mut self, key: &Key) -> Option<bool> {
        let mut rest = [0; KEY_BYTES];
        match self.socket.receive(&mut rest[self.received.len()..]) {
            Received::Dry => None,
            Received::Bytes(count) => {
                let from = self.received.len();
                self.received.extend_from_slice(&rest[from..from + count]);
                (self.received.len() == KEY_BYTES).then(|| self.received == key)
            }
            Received::Ended | Received::Failed(_) => Some(false),
        }
    }
}

/// Accepts the connections of a near end that has the key.
fn accept(listener: &Listener, spec: &CeilingSpec, key: &Key, ends: &AtomicBool) -> io::Result<Vec<Channel>> {
    let count = spec.connections.max(1) as usize;
    let until = Instant::now() + CONNECT_TIME;
    let mut channels = Vec::new();
    let mut candidates: Vec<Candidate> = Vec::new();
    while channels.len() < count {
        if ends.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::Interrupted.into());
        }
        if Instant::now() >= until {
            let came = channels.len();
            return Err(io::Error::new(
                io::ErrorKind::TimedOut,
                format!("{came} of {count} connections came within {} s", CONNECT_TIME.as_secs()),
            ));
        }
        let mut worked = false;
        while let Some(fd) = listener.accept()? {
            worked = true;
            // One that died already leaves no trace.
            let Ok(socket) = Socket::new(fd) else { continue };
            if candidates.len() >= count + STRANGER_COUNT_MAX {
                candidates.remove(0);
            }
            candidates.push(Candidate { socket, received: Vec::new() });
        }
        let mut at = 0;
        while at < candidates.len() {
            match candidates[at].look(key) {
                None => at += 1,
                Some(false) => drop(candidates.remove(at)),
                Some(true) => {
                    let socket = candidates.remove(at).socket;
                    if channels.len() < count {
                        channels.push(Channel::far(socket, spec.tls, Instant::now() + ONE_TIME)?);
                    }
                    worked = true;
                }
            }
        }
        if !worked {
            std::thread::sleep(PAUSE);
        }
    }
    Ok(channels)
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use security::psk::Cipher;

    use super::super::tests;
    use super::*;

    const KEY: Key = [7; KEY_BYTES];

    fn spec(depth: u32, connections: u32, io_bytes: u32, read_percent: u8) -> CeilingSpec {
        let spec = tests::spec(depth, connections, io_bytes, read_percent);
        CeilingSpec { duration: Duration::from_millis(100), ..spec }
    }

    fn start(spec: &CeilingSpec) -> FarEnd {
        FarEnd::start(spec, (Ipv4Addr::LOCALHOST, 0).into(), KEY).unwrap()
    }

    /// A far end of this process, asked as one elsewhere is.
    struct Here(Option<FarEnd>);

    impl RemoteFarEnd for Here {
        fn await_ready(&mut self) -> io::Result<()> {
            self.0.as_mut().unwrap().await_ready(Duration::from_secs(20))
        }

        fn end(&mut self) -> io::Result<FarAccount> {
            self.0.take().unwrap().end()
        }
    }

    #[test]
    fn operations_go_round_between_two_ends_that_find_each_other() {
        let tls = CeilingSpec { tls: Some(Cipher::Aes128GcmSha256), ..spec(12, 3, 65_536, 70) };
        let memory = CeilingSpec { far_memory_bytes: 1 << 20, ..spec(32, 1, 4096, 50) };
        let sleepy = CeilingSpec { far_sleeps: true, memory_bytes: 700_000, ..spec(20, 10, 300_000, 50) };
        for spec in [spec(1, 1, 4096, 100), spec(32, 12, 4096, 0), tls, memory, sleepy] {
            let measured = |spec: CeilingSpec| {
                let far = start(&spec);
                let address = far.address();
                measure_at((address, KEY), &spec, &mut Here(Some(far))).unwrap()
            };
            let is_whole = |result: CeilingResult| {
                let has_times = result.near.total_ns() > 0 && result.far.total_ns() > 0;
                result.operations > 0 && result.iops() > 0.0 && has_times
            };
            assert!(tests::longer(&spec).map(measured).any(is_whole), "{spec:?}");
        }
    }

    #[test]
    fn connections_without_the_key_are_none() {
        let spec = spec(2, 1, 4096, 100);
        let far = start(&spec);
        let address = far.address();
        let mut strangers: Vec<TcpStream> =
            (0..STRANGER_COUNT_MAX + 4).map(|_| TcpStream::connect(address).unwrap()).collect();
        strangers[0].write_all(&[1; KEY_BYTES]).unwrap();
        strangers[1].write_all(&[7; KEY_BYTES - 1]).unwrap();
        measure_at((address, KEY), &spec, &mut Here(Some(far))).unwrap();
    }

    /// The error of a far end at a near end that sends these bytes after its key.
    fn said_to(spec: &CeilingSpec, bytes: &[u8]) -> io::Error {
        let mut far = start(spec);
        let mut near = TcpStream::connect(far.address()).unwrap();
        near.write_all(&KEY).unwrap();
        far.await_ready(Duration::from_secs(20)).unwrap();
        let _ = near.write_all(bytes);
        let thread = far.thread.take().unwrap();
        thread.join().unwrap().unwrap_err()
    }

    #[test]
    fn a_hostile_near_end_ends_the_far_end_with_an_error() {
        let memory = CeilingSpec { far_memory_bytes: 1 << 16, ..spec(2, 1, 4096, 0) };
        for byte in [0, 5, 6, 7, 8, 255] {
            let error = said_to(&memory, &[byte; 4096]);
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{byte}: {error}");
        }
        // More reads than the announced depth; this end receives none of the data.
        let mut reads = [0; 72 * 2000];
        reads.iter_mut().step_by(72).for_each(|byte| *byte = 1);
        let error = said_to(&spec(4, 1, 65_536, 100), &reads);
        assert!(error.to_string().contains("more operations are in flight"), "{error}");
    }

    #[test]
    fn a_far_end_without_a_near_end_ends_when_it_is_told() {
        let mut far = start(&spec(1, 2, 4096, 100));
        assert_eq!(far.await_ready(Duration::from_millis(20)).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert_eq!(far.end().unwrap_err().kind(), io::ErrorKind::Interrupted);
        drop(start(&spec(1, 1, 4096, 100)));
    }

    #[test]
    fn answers_to_nothing_end_the_near_end_with_an_error() {
        struct AlwaysReady;
        impl RemoteFarEnd for AlwaysReady {
            fn await_ready(&mut self) -> io::Result<()> {
                Ok(())
            }

            fn end(&mut self) -> io::Result<FarAccount> {
                Ok((CpuTime::default(), None))
            }
        }
        for byte in [0, 1, 5, 6, 7] {
            let listener = std::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
            let address = listener.local_addr().unwrap();
            let far = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut message = vec![0; if byte == 5 { 48 + 4096 } else { 24 }];
                message[0] = byte;
                let _ = stream.write_all(&message.repeat(50));
                stream
            });
            let spec = CeilingSpec { duration: Duration::from_secs(20), ..spec(1, 1, 4096, 100) };
            let error = measure_at((address, KEY), &spec, &mut AlwaysReady).unwrap_err();
            assert_eq!(error.kind(), io::ErrorKind::InvalidData, "{byte}: {error}");
            drop(far.join().unwrap());
        }
    }
}

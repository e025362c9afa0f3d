//! A relay between host and target that cuts the byte stream at chosen places.

use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use linux::random::SplitMix64;

/// More bytes than both ends exchange before the first command.
const HANDSHAKE_BYTES: usize = 32 << 10;

/// How a stream is cut.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Cut {
    /// One byte per segment.
    Bytes,
    /// Segments of random length up to this.
    Below(usize),
    /// Unchanged in length, but about one bit in this many bytes is flipped, once the connection is set up.
    Flip(usize),
}

/// A relay for any number of connections, until it is dropped.
pub(crate) struct Relay {
    address: SocketAddr,
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Relay {
    pub(crate) fn new(to: SocketAddr, cut: Cut) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("a bound socket");
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let thread = std::thread::spawn(move || {
            let mut seed = 0;
            while let Ok((host, _)) = listener.accept() {
                if over.load(Ordering::Acquire) {
                    break;
                }
                let target = TcpStream::connect(to).expect("the target listens");
                let again = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
                for (from, to) in [(again(&host), again(&target)), (target, host)] {
                    seed += 1;
                    std::thread::spawn(move || forward(from, to, cut, seed));
                }
            }
        });
        Self { address, is_over, thread: Some(thread) }
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        // Wakes the thread that accepts.
        let _ = TcpStream::connect(self.address);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, cut: Cut, seed: u64) {
    let mut random = SplitMix64::new(seed);
    to.set_nodelay(true).expect("an option of TCP");
    let mut buffer = vec![0; 256 << 10];
    let mut seen = 0;
    loop {
        let count = match from.read(&mut buffer) {
            Ok(0) => break,
            Ok(count) => count,
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => break,
        };
        seen += count;
        if let Cut::Flip(bytes) = cut
            && seen > HANDSHAKE_BYTES + count
        {
            let at = usize::try_from(random.below(bytes as u64)).expect("an index");
            if at < count {
                buffer[at] ^= 1 << random.below(8);
            }
        }
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let length = match cut {
                Cut::Bytes => 1,
                Cut::Flip(_) => count,
                Cut::Below(most) => {
                    if random.below(64) == 0 {
                        std::thread::sleep(Duration::from_micros(100));
                    }
                    1 + usize::try_from(random.below(most as u64)).expect("a length")
                }
            };
            let (now, later) = rest.split_at(length.min(rest.len()));
            if to.write_all(now).is_err() {
                let _ = from.shutdown(Shutdown::Both);
                return;
            }
            rest = later;
        }
    }
    let _ = to.shutdown(Shutdown::Write);
}

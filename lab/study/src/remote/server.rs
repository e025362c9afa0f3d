//! The study server: accepts studies from another machine, one at a time.

use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::occupancy::Occupancy;
pub use super::settings::{Event, ServerSettings};
use super::unproven::Unproven;
use super::{device, session};
use crate::error::{Doing, Error};

/// Threads of connections at a time. More connections wait to be accepted: threads that end make room.
const THREAD_COUNT_MAX: usize = 256;

/// Time between two reports of connections that were closed for newer ones.
const REPORT_TIME: Duration = Duration::from_secs(10);

/// Time that the server waits for a connection until it checks whether it is to end.
const LOOK: Timespec = Timespec { tv_sec: 0, tv_nsec: 500_000_000 };

/// A server that listens.
#[derive(Debug)]
pub struct StudyServer {
    listener: TcpListener,
    settings: ServerSettings,
    occupancy: Occupancy,
    unproven: Unproven,
}

impl StudyServer {
    /// Listens.
    ///
    /// # Errors
    /// The address cannot be listened on; [`Error::Lacking`]: studies cannot have the interface that the settings name.
    pub fn bind(settings: ServerSettings) -> Result<Self, Error> {
        device::check(&settings)?;
        let bind = || -> std::io::Result<TcpListener> {
            let listener = TcpListener::bind(settings.listen)?;
            listener.set_nonblocking(true)?;
            Ok(listener)
        };
        let listener = bind().doing("cannot listen for studies")?;
        Ok(Self { listener, settings, occupancy: Occupancy::default(), unproven: Unproven::default() })
    }

    /// Its address.
    pub fn address(&self) -> Result<SocketAddr, Error> {
        self.listener.local_addr().doing("the address of the server")
    }

    /// Its settings.
    pub fn settings(&self) -> &ServerSettings {
        &self.settings
    }

    /// Serves studies until `stops` is set; their targets have ended then.
    pub fn run(&self, stops: &AtomicBool, on_event: &(dyn Fn(Event) + Sync)) -> Result<(), Error> {
        let count = AtomicUsize::new(0);
        let mut next_report = Instant::now();
        std::thread::scope(|scope| {
            while !stops.load(Ordering::Relaxed) {
                if Instant::now() >= next_report {
                    next_report = Instant::now() + REPORT_TIME;
                    let closed_count = self.unproven.take_closed_count();
                    if closed_count > 0 {
                        on_event(Event::Crowded(closed_count));
                    }
                }
                if count.load(Ordering::Relaxed) >= THREAD_COUNT_MAX {
                    std::thread::sleep(Duration::from_millis(10));
                    continue;
                }
                let (stream, peer) = match self.accept() {
                    Ok(Some(accepted)) => accepted,
                    Ok(None) => continue,
                    Err(error) => {
                        stops.store(true, Ordering::Relaxed);
                        return Err(Error::system("accept a study", error));
                    }
                };
                count.fetch_add(1, Ordering::Relaxed);
                let count = &count;
                let work = move || {
                    let Self { settings, occupancy, unproven, .. } = self;
                    session::serve(settings, occupancy, unproven, stream, peer, stops, on_event);
                    count.fetch_sub(1, Ordering::Relaxed);
                };
                let builder = std::thread::Builder::new().name("nvlane-study".into());
                if let Err(error) = builder.spawn_scoped(scope, work) {
                    count.fetch_sub(1, Ordering::Relaxed);
                    on_event(Event::Refused(peer, format!("cannot start a thread: {error}")));
                }
            }
            Ok(())
        })
    }

    /// The next connection, if one comes within half a second.
    fn accept(&self) -> std::io::Result<Option<(TcpStream, SocketAddr)>> {
        let mut ready = [PollFd::new(&self.listener, PollFlags::IN)];
        match poll(&mut ready, Some(&LOOK)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(None),
            Ok(_) => {}
            Err(errno) => return Err(errno.into()),
        }
        match self.listener.accept() {
            Ok((stream, peer)) => {
                stream.set_nonblocking(false)?;
                Ok(Some((stream, peer)))
            }
            // The peer has left already, or there is no descriptor for it now.
            Err(error) => {
                if !matches!(error.kind(), std::io::ErrorKind::WouldBlock) {
                    std::thread::sleep(Duration::from_millis(100));
                }
                Ok(None)
            }
        }
    }
}

//! The control socket: who may use it, and a thread for each connection, with bounded numbers of both.

use std::fs;
use std::io::{self, Read, Write};
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde_json::Value;
use subsystem::audit::Caller;

use crate::error::CallError;
use crate::rpc::{Call, Splitter, answer, refused, unusable};

/// Connections at one time.
pub const CONNECTION_COUNT_MAX: usize = 32;

/// Time for a caller to take a piece of a response.
const SEND_TIME: Duration = Duration::from_secs(5);

/// Interval at which a connection is checked that sends nothing.
const LOOK_TIME: Duration = Duration::from_secs(1);

/// Stack of a connection's thread: JSON of the greatest depth fits.
const STACK_BYTES: usize = 1 << 20;

/// An open control socket. Its file is removed with it.
#[derive(Debug)]
pub struct ControlSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

/// What connections call.
pub trait Service: Send + Sync + 'static {
    /// Carries out a call.
    ///
    /// # Errors
    /// Why it is refused.
    fn perform(&self, call: Call, caller: Caller) -> Result<Value, CallError>;

    /// Notes a process that may not call.
    fn refuse(&self, caller: Caller);
}

impl ControlSocket {
    /// Opens the socket for this user and root only. Replaces the file of a target that is gone.
    ///
    /// # Errors
    /// Why it cannot be there.
    pub fn open(path: &Path) -> Result<Self, String> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.is_absolute() => (parent, name),
            _ => return Err("write an absolute path of a file".into()),
        };
        let directory = safe_directory(parent)?;
        // By the open directory: its name may lead elsewhere by now.
        let inside = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        let system = |error: io::Error| error.to_string();
        let listener = match Self::bind(&inside) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => {
                remove_stale(&inside)?;
                Self::bind(&inside)
            }
            bound => bound,
        };
        let listener = listener.map_err(system)?;
        let metadata = fs::symlink_metadata(&inside).map_err(system)?;
        Ok(Self { listener, path: path.to_owned(), file: (metadata.dev(), metadata.ino()) })
    }

    fn bind(path: &Path) -> io::Result<UnixListener> {
        let flags = SocketFlags::CLOEXEC;
        let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
        // Linux gives the file the mode of the socket: nobody else can connect, not for a moment.
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, 16)?;
        Ok(UnixListener::from(socket))
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Serves connections on threads of their own, until the process ends.
    ///
    /// # Errors
    /// There is no thread.
    pub fn serve(&self, service: Arc<impl Service>) -> io::Result<()> {
        let listener = self.listener.try_clone()?;
        let count = Arc::new(AtomicUsize::new(0));
        let accept = move || {
            for connection in listener.incoming() {
                match connection {
                    Ok(connection) => start(connection, &service, &count),
                    // No descriptor is left, say.
                    Err(error) => {
                        tracing::warn!(%error, "control socket: a connection could not be accepted");
                        std::thread::sleep(LOOK_TIME);
                    }
                }
            }
        };
        std::thread::Builder::new().name("control".into()).stack_size(STACK_BYTES).spawn(accept)?;
        Ok(())
    }
}

impl Drop for ControlSocket {
    fn drop(&mut self) {
        let is_ours = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

/// Opens a directory in which nobody but this user and root can put or replace files.
fn safe_directory(path: &Path) -> Result<OwnedFd, String> {
    let user = rustix::process::geteuid().as_raw();
    let is_trusted = |owner: u32| owner == user || owner == 0;
    let shown = path.display();
    let system = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => format!("there is no directory {shown}: create it first"),
        _ => format!("{shown}: {error}"),
    };
    // Links of others may lead anywhere.
    for part in path.ancestors() {
        let metadata = fs::symlink_metadata(part).map_err(system)?;
        if metadata.is_symlink() && !is_trusted(metadata.uid()) {
            return Err(format!(
                "{} is a link of user {}: take a directory of your own",
                part.display(),
                metadata.uid()
            ));
        }
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path, flags, Mode::empty()).map_err(|error| system(error.into()))?;
    let found = rustix::fs::fstat(&directory).map_err(|error| system(error.into()))?;
    let mode = Mode::from_raw_mode(found.st_mode);
    if !is_trusted(found.st_uid) {
        return Err(format!(
            "{shown} belongs to user {}, and the target runs as user {user}: take a directory of its own",
            found.st_uid
        ));
    }
    if mode.intersects(Mode::WGRP | Mode::WOTH) && !mode.contains(Mode::SVTX) {
        return Err(format!(
            "others may write to {shown}: take a directory of your own, or chmod go-w {shown}"
        ));
    }
    Ok(directory)
}

/// Removes the socket of a target that is gone.
fn remove_stale(path: &Path) -> Result<(), String> {
    let metadata = fs::symlink_metadata(path).map_err(|error| error.to_string())?;
    if !metadata.file_type().is_socket() {
        return Err(
            "there is a file of this name, and it is no socket: take another name, or remove it".into()
        );
    }
    let user = rustix::process::geteuid().as_raw();
    if metadata.uid() != user && user != 0 {
        return Err(format!("there is a socket of user {} of this name: take another one", metadata.uid()));
    }
    match UnixStream::connect(path) {
        Ok(other) => {
            let owner = rustix::net::sockopt::socket_peercred(&other).map(|peer| peer.pid.as_raw_nonzero());
            let process = owner.map_or_else(|_| String::new(), |pid| format!(" (process {pid})"));
            Err(format!("another target{process} serves it: end that one, or take another name"))
        }
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => {
            fs::remove_file(path).map_err(|error| error.to_string())
        }
        Err(error) => Err(error.to_string()),
    }
}

/// The process at the other end.
fn caller_of(connection: &UnixStream) -> io::Result<Caller> {
    let peer = rustix::net::sockopt::socket_peercred(connection)?;
    Ok(Caller {
        pid: peer.pid.as_raw_nonzero().get().unsigned_abs(),
        uid: peer.uid.as_raw(),
        gid: peer.gid.as_raw(),
    })
}

fn start(connection: UnixStream, service: &Arc<impl Service>, count: &Arc<AtomicUsize>) {
    let Ok(caller) = caller_of(&connection) else { return };
    let _ = connection.set_write_timeout(Some(SEND_TIME));
    let user = rustix::process::geteuid().as_raw();
    if caller.uid != user && caller.uid != 0 {
        tracing::warn!(
            uid = caller.uid,
            pid = caller.pid,
            "control socket: a process of another user was refused"
        );
        service.refuse(caller);
        return say(&connection, &refused("only the target's user and root may use this socket"));
    }
    if count.fetch_add(1, Ordering::Relaxed) >= CONNECTION_COUNT_MAX {
        count.fetch_sub(1, Ordering::Relaxed);
        return say(&connection, &refused("too many connections: close one, and try again"));
    }
    let (service, counted) = (Arc::clone(service), Arc::clone(count));
    let thread = std::thread::Builder::new().name("control".into()).stack_size(STACK_BYTES);
    let served = thread.spawn(move || {
        converse(&connection, caller, &*service);
        counted.fetch_sub(1, Ordering::Relaxed);
    });
    if let Err(error) = served {
        tracing::warn!(%error, "control socket: there is no thread for a connection");
        count.fetch_sub(1, Ordering::Relaxed);
    }
}

/// A caller that reads nothing loses its connection.
fn say(mut connection: &UnixStream, bytes: &[u8]) {
    let _ = connection.write_all(bytes).and_then(|()| connection.write_all(b"\n"));
}

/// Serves a connection until its end.
fn converse(mut connection: &UnixStream, caller: Caller, service: &impl Service) {
    let _ = connection.set_read_timeout(Some(LOOK_TIME));
    let mut splitter = Splitter::default();
    let mut buffer = vec![0; 16 << 10];
    loop {
        loop {
            match splitter.next_value() {
                Ok(Some(bytes)) => {
                    let response = answer(&bytes, |call| service.perform(call, caller));
                    let Some(mut response) = response else { continue };
                    response.push(b'\n');
                    if connection.write_all(&response).is_err() {
                        return;
                    }
                }
                Ok(None) => break,
                Err(why) => return say(connection, &unusable(&why)),
            }
        }
        if splitter.is_late(Instant::now()) {
            return say(connection, &refused("the rest of the request did not come in time"));
        }
        match connection.read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => splitter.add(&buffer[..count]),
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted
                ) => {}
            Err(_) => return,
        }
    }
}

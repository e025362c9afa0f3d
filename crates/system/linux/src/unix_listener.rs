//! Listening Unix sockets. A socket has its name only once it listens: a client that waits for the file is not refused.

use std::ffi::{OsStr, OsString};
use std::fs::{self, Permissions};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};

use crate::randomness::Randomness;
use crate::socket_option;

/// Bytes of the socket's name that its first name begins with: `ss` shows that one.
const SHOWN_BYTES: usize = 32;

/// Time to wait for others that replace sockets in the same directory.
const LOCK_LIMIT: Duration = Duration::from_secs(1);

/// Why there is no listening socket.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// The name is that of another file.
    #[error("there is a file of this name, and it is no socket")]
    NoSocket,
    /// A process listens there.
    #[error("a process listens there")]
    InUse {
        /// Which, if the system tells.
        process: Option<u32>,
    },
    /// The system says no.
    #[error(transparent)]
    System(#[from] io::Error),
}

impl From<Errno> for ListenError {
    fn from(errno: Errno) -> Self {
        Self::System(errno.into())
    }
}

impl From<ListenError> for io::Error {
    fn from(error: ListenError) -> Self {
        match error {
            ListenError::NoSocket => Self::new(io::ErrorKind::AlreadyExists, error.to_string()),
            ListenError::InUse { .. } => Self::new(io::ErrorKind::AddrInUse, error.to_string()),
            ListenError::System(error) => error,
        }
    }
}

/// Listens on a Unix socket whose file has these permissions, for this many waiting connections. The socket of a process
/// that is gone is replaced.
///
/// # Errors
/// [`ListenError`]; the path is too long for the address of a socket: 108 bytes.
pub fn listen(path: &Path, mode: u32, flags: SocketFlags, backlog: i32) -> Result<OwnedFd, ListenError> {
    SocketAddrUnix::new(path)?;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    let early = EarlyName::bind(&socket, path)?;
    fs::set_permissions(&early.path, Permissions::from_mode(mode))?;
    rustix::net::listen(&socket, backlog)?;
    // Of several that find the same stale socket, one replaces it, and the others see who did.
    early.lock_directory();
    match renameat_with(CWD, &early.path, CWD, path, RenameFlags::NOREPLACE) {
        Ok(()) => return Ok(socket),
        // NFS does not know the flag.
        Err(Errno::EXIST | Errno::INVAL) => {}
        Err(errno) => return Err(errno.into()),
    }
    check_stale(path)?;
    fs::rename(&early.path, path)?;
    Ok(socket)
}

/// Checks that the file is a socket on which nobody listens.
fn check_stale(path: &Path) -> Result<(), ListenError> {
    match fs::symlink_metadata(path) {
        Ok(metadata) if !metadata.file_type().is_socket() => return Err(ListenError::NoSocket),
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
        _ => {}
    }
    match connect(path) {
        Ok(probe) => {
            let process = socket_option::peer(&probe).ok().and_then(|peer| peer.pid);
            Err(ListenError::InUse { process })
        }
        // It accepts nothing.
        Err(Errno::AGAIN) => Err(ListenError::InUse { process: None }),
        Err(Errno::CONNREFUSED | Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Connects at once or not at all.
fn connect(path: &Path) -> Result<OwnedFd, Errno> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&socket, &SocketAddrUnix::new(path)?)?;
    Ok(socket)
}

/// The name that a socket has until it listens, in the directory of its later one. It is removed at the end.
#[derive(Debug)]
struct EarlyName {
    /// By the open directory, so that it is short enough wherever that is.
    path: PathBuf,
    directory: OwnedFd,
}

impl EarlyName {
    fn bind(socket: &OwnedFd, later: &Path) -> io::Result<Self> {
        let parent = later.parent().filter(|parent| !parent.as_os_str().is_empty());
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC;
        let open = |how| rustix::fs::open(parent.unwrap_or(Path::new(".")), flags | how, Mode::empty());
        // One that may not be read is not locked.
        let directory = open(OFlags::RDONLY).or_else(|_| open(OFlags::PATH))?;
        let later = later.file_name().unwrap_or_default().as_bytes();
        let mut random = [0; 8];
        Randomness::System.fill(&mut random)?;
        let mut name = OsString::from(".");
        name.push(OsStr::from_bytes(&later[..later.len().min(SHOWN_BYTES)]));
        name.push(format!(".{:016x}", u64::from_ne_bytes(random)));
        let path = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        rustix::net::bind(socket, &SocketAddrUnix::new(&path)?)?;
        Ok(Self { path, directory })
    }

    /// Locks the directory until the name is dropped. Waits for a limited time: any user who may read it can lock it as well.
    fn lock_directory(&self) {
        let until = Instant::now() + LOCK_LIMIT;
        while flock(&self.directory, FlockOperation::NonBlockingLockExclusive) == Err(Errno::AGAIN)
            && Instant::now() < until
        {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

impl Drop for EarlyName {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::{UnixListener, UnixStream};
    use std::sync::Barrier;

    fn open(path: &Path) -> Result<OwnedFd, ListenError> {
        listen(path, 0o600, SocketFlags::CLOEXEC, 16)
    }

    fn stale(path: &Path) {
        drop(UnixListener::bind(path).expect("bound"));
    }

    fn names(directory: &Path) -> Vec<OsString> {
        fs::read_dir(directory)
            .expect("a directory")
            .map(|entry| entry.expect("a name").file_name())
            .collect()
    }

    #[test]
    fn whoever_waits_for_the_file_can_connect() {
        let directory = tempfile::tempdir().expect("a directory");
        for round in 0..2000 {
            let path = directory.path().join(format!("{round}.sock"));
            let start = Barrier::new(2);
            std::thread::scope(|scope| {
                let client = scope.spawn(|| {
                    start.wait();
                    loop {
                        match UnixStream::connect(&path) {
                            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                            connected => return connected.map(drop),
                        }
                    }
                });
                start.wait();
                let _socket = open(&path).expect("it listens");
                client.join().expect("no panic").expect("the first who sees the file connects");
            });
        }
    }

    #[test]
    fn of_those_who_replace_a_stale_socket_at_once_one_listens() {
        let directory = tempfile::tempdir().expect("a directory");
        for round in 0..100 {
            let path = directory.path().join(format!("{round}.sock"));
            stale(&path);
            let start = Barrier::new(4);
            let opened: Vec<_> = std::thread::scope(|scope| {
                let open = || {
                    start.wait();
                    open(&path)
                };
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(open)).collect();
                threads.into_iter().map(|thread| thread.join().expect("no panic")).collect()
            });
            assert_eq!(opened.iter().filter(|opened| opened.is_ok()).count(), 1, "{opened:?}");
            UnixStream::connect(&path).expect("that one has the name");
        }
        assert_eq!(names(directory.path()).len(), 100, "no other name is left");
    }

    #[test]
    fn nothing_but_a_stale_socket_is_replaced() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("a.sock");
        stale(&path);
        let first = open(&path).expect("a stale one is replaced");
        assert_eq!(fs::metadata(&path).expect("there").permissions().mode() & 0o7777, 0o600);
        let process = std::process::id();
        assert!(matches!(open(&path), Err(ListenError::InUse { process: Some(other) }) if other == process));
        // Also if it accepts nothing any more.
        let waiting: Vec<_> = (0..20).map_while(|_| connect(&path).ok()).collect();
        assert!(waiting.len() < 20, "as many wait as may");
        assert!(matches!(open(&path), Err(ListenError::InUse { process: None })));
        drop(waiting);
        drop(first);
        fs::write(directory.path().join("file"), "text").expect("written");
        assert!(matches!(open(&directory.path().join("file")), Err(ListenError::NoSocket)));
        let mut left = names(directory.path());
        left.sort();
        assert_eq!(left, ["a.sock", "file"]);
    }

    #[test]
    fn a_path_may_be_as_long_as_one_to_connect_to() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = |bytes: usize| {
            let name = "n".repeat(bytes - directory.path().as_os_str().len() - 1);
            directory.path().join(name)
        };
        let _socket = open(&path(107)).expect("it listens");
        UnixStream::connect(path(107)).expect("connected");
        assert!(matches!(open(&path(109)), Err(ListenError::System(_))));
    }
}

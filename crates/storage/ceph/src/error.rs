//! Failures of the libraries and of the cluster, each with the call and its remedy.

use std::ffi::c_int;

use rustix::io::Errno;

/// The reason why a call of Ceph's libraries failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A library cannot be loaded.
    #[error(
        "{library} cannot be loaded: install the package {package} (Debian, Ubuntu: apt install {package}). {why}"
    )]
    NoLibrary {
        /// The file.
        library: &'static str,
        /// The package that has it.
        package: &'static str,
        /// The message of the loader.
        why: String,
    },
    /// A library is older than what is needed.
    #[error("{library} has no function {function}: Ceph 16 or later is needed")]
    OldLibrary {
        /// The file.
        library: &'static str,
        /// The function.
        function: String,
    },
    /// A name that C cannot have.
    #[error("{what} has a zero byte")]
    ZeroByte {
        /// The name.
        what: &'static str,
    },
    /// A call failed.
    #[error("cannot {action}: {}{}", std::io::Error::from_raw_os_error(*errno), advice(action, *errno))]
    Call {
        /// The operation, with the names of what it is on.
        action: String,
        /// The system's number of the error.
        errno: i32,
    },
    /// The client was blocklisted.
    #[error(
        "the cluster has blocklisted this client: another client took its lock, or an administrator did it"
    )]
    Blocklisted,
}

/// The number by which the cluster refuses a client that it has blocklisted.
pub(crate) const BLOCKLISTED: i32 = Errno::SHUTDOWN.raw_os_error();

impl Error {
    /// The error number of a failed call.
    #[must_use]
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Call { errno, .. } => Some(*errno),
            Self::Blocklisted => Some(BLOCKLISTED),
            _ => None,
        }
    }
}

/// The result of a call that returns a negative error number.
pub(crate) fn check(result: c_int, action: impl FnOnce() -> String) -> Result<c_int, Error> {
    if result >= 0 {
        return Ok(result);
    }
    match -result {
        BLOCKLISTED => Err(Error::Blocklisted),
        errno => Err(Error::Call { action: action(), errno }),
    }
}

/// What to do about an error, where it is known.
fn advice(action: &str, errno: i32) -> &'static str {
    let is_connecting = action.starts_with("connect");
    match Errno::from_raw_os_error(errno) {
        Errno::NOENT if action.starts_with("read") => {
            ": give conf=/etc/ceph/ceph.conf or the path of your own"
        }
        Errno::TIMEDOUT if is_connecting => ": no monitor answers at the addresses of mon_host",
        Errno::ACCESS | Errno::PERM | Errno::NOENT if is_connecting => {
            ": no keyring has a key of this user that the cluster takes, see id= and conf="
        }
        Errno::ACCESS | Errno::PERM if action.contains("the object") => {
            ": the user's caps do not allow it (mon 'profile rbd', osd 'allow rwx pool=…')"
        }
        Errno::ACCESS | Errno::PERM if action.starts_with("have the cluster refuse") => {
            ": the user's caps do not allow it (mon 'profile rbd', which has the command osd blocklist)"
        }
        Errno::ACCESS | Errno::PERM => {
            ": the user's caps do not allow it (mon 'profile rbd', osd 'profile rbd pool=…')"
        }
        _ => "",
    }
}

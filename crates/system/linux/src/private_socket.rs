//! A Unix socket that only this user and root can connect to.

use std::fs;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::net::SocketFlags;

use crate::unix_listener::{self, ListenError};

/// Longest path that all clients can connect to, bytes.
const PATH_BYTES_MAX: usize = 107;

/// Connections that wait to be accepted, at most.
const BACKLOG: i32 = 128;

/// A listening socket. Its file is removed with it.
#[derive(Debug)]
pub struct PrivateSocket {
    listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file.
    file: (u64, u64),
}

impl PrivateSocket {
    /// Opens the socket for this user and root only. Replaces the file of a process that is gone. `program` names this
    /// program in errors, such as "target".
    ///
    /// # Errors
    /// Why it cannot be there.
    pub fn open(path: &Path, program: &str) -> Result<Self, String> {
        let (parent, name) = match (path.parent(), path.file_name()) {
            (Some(parent), Some(name)) if path.is_absolute() => (parent, name),
            _ => return Err("write an absolute path of a file".into()),
        };
        let bytes = path.as_os_str().len();
        if bytes > PATH_BYTES_MAX {
            return Err(format!(
                "it has {bytes} bytes, and a path that can be connected to has {PATH_BYTES_MAX} at most: take a shorter one"
            ));
        }
        let directory = safe_directory(parent, program)?;
        // By the open directory: its name may lead elsewhere by now.
        let inside = PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd())).join(name);
        check_owner(&inside)?;
        let listening = unix_listener::listen(&inside, 0o600, SocketFlags::CLOEXEC, BACKLOG);
        let socket = listening.map_err(|error| explain(&error, program))?;
        let metadata = fs::symlink_metadata(&inside).map_err(|error| error.to_string())?;
        let file = (metadata.dev(), metadata.ino());
        Ok(Self { listener: UnixListener::from(socket), path: path.to_owned(), file })
    }

    /// Its file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket.
    #[must_use]
    pub fn listener(&self) -> &UnixListener {
        &self.listener
    }

    /// Removes its file, if it is still there: nobody connects from now on.
    pub fn remove(&self) {
        let is_ours = |metadata: fs::Metadata| (metadata.dev(), metadata.ino()) == self.file;
        if fs::symlink_metadata(&self.path).is_ok_and(is_ours) {
            let _ = fs::remove_file(&self.path);
        }
    }
}

impl Drop for PrivateSocket {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Opens a directory in which nobody but this user and root can put or replace files.
fn safe_directory(path: &Path, program: &str) -> Result<OwnedFd, String> {
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
            "{shown} belongs to user {}, and the {program} runs as user {user}: take a directory of its own",
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

/// Refuses the socket of another user, except to root.
fn check_owner(path: &Path) -> Result<(), String> {
    let user = rustix::process::geteuid().as_raw();
    match fs::symlink_metadata(path) {
        Ok(found) if found.file_type().is_socket() && found.uid() != user && user != 0 => {
            Err(format!("there is a socket of user {} of this name: take another one", found.uid()))
        }
        _ => Ok(()),
    }
}

fn explain(error: &ListenError, program: &str) -> String {
    match error {
        ListenError::NoSocket => format!("{error}: take another name, or remove it"),
        ListenError::InUse { process } => {
            let process = process.map_or_else(String::new, |pid| format!(" (process {pid})"));
            format!("another {program}{process} serves it: end that one, or take another name")
        }
        ListenError::System(error) => error.to_string(),
    }
}

//! Locks on ranges of files that belong to an open file description, and a check for other writers of a file.

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd};

use rustix::io::Errno;

/// Sets the signal that a broken lease sends (fcntl(2)); the library lacks it.
const F_SETSIG: i32 = 10;

fn lock(kind: i32, start: u64, length: u64) -> libc::flock {
    libc::flock {
        l_type: i16::try_from(kind).expect("a small number"),
        l_whence: i16::try_from(libc::SEEK_SET).expect("a small number"),
        l_start: i64::try_from(start).unwrap_or(i64::MAX),
        l_len: i64::try_from(length).unwrap_or(0),
        l_pid: 0,
    }
}

/// Locks a range of a file for this description, shared with others. Closing the description releases it.
///
/// # Errors
/// The file system has no such locks, or the range is locked exclusively.
pub fn lock_range_shared(file: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<()> {
    let wanted = lock(libc::F_RDLCK, start, length);
    set(file, &wanted)
}

/// Releases all ranges that this description has locked, although it may stay open: a ring or a process that is being
/// started may have it as well.
///
/// # Errors
/// The file system has no such locks.
pub fn unlock_ranges(file: BorrowedFd<'_>) -> io::Result<()> {
    // A length of 0 reaches to the end of the file, wherever that is.
    set(file, &lock(libc::F_UNLCK, 0, 0))
}

fn set(file: BorrowedFd<'_>, wanted: &libc::flock) -> io::Result<()> {
    // SAFETY: the kernel reads the structure, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, std::ptr::from_ref(wanted)) };
    if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// Whether another description has locked a part of this range, shared or not.
///
/// # Errors
/// The file system has no such locks.
pub fn is_range_locked(file: BorrowedFd<'_>, start: u64, length: u64) -> io::Result<bool> {
    let mut wanted = lock(libc::F_WRLCK, start, length);
    // SAFETY: the kernel reads and writes the structure, which lives through the call.
    let result = unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_GETLK, &raw mut wanted) };
    if result == 0 { Ok(i32::from(wanted.l_type) != libc::F_UNLCK) } else { Err(io::Error::last_os_error()) }
}

/// Whether anybody has a file open for writing: a process, or the kernel (loop devices). `file` is open for reading
/// only. `None` if the system does not report it: for files of other users, and on file systems without leases. Network
/// file systems may report it for files that no program has open.
#[must_use]
pub fn is_open_for_writing(file: BorrowedFd<'_>) -> Option<bool> {
    let set = |command: i32, value: i32| {
        // SAFETY: these commands take a number.
        match unsafe { libc::fcntl(file.as_raw_fd(), command, value) } {
            -1 => Err(io::Error::last_os_error()),
            _ => Ok(()),
        }
    };
    // A process that opens the file for writing now waits until the lease is gone, and the kernel signals us: by a
    // signal that does nothing, in place of SIGIO, which would end the process.
    set(F_SETSIG, libc::SIGURG).ok()?;
    match set(libc::F_SETLEASE, libc::F_RDLCK) {
        Ok(()) => {
            set(libc::F_SETLEASE, libc::F_UNLCK).ok()?;
            Some(false)
        }
        Err(error) if Errno::from_io_error(&error) == Some(Errno::AGAIN) => Some(true),
        Err(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd;

    use super::*;

    #[test]
    fn locks_are_seen_by_other_descriptions_until_they_are_closed() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let other = File::open(file.path()).unwrap();
        lock_range_shared(file.as_file().as_fd(), 201, 1).unwrap();
        assert!(is_range_locked(other.as_fd(), 200, 4).unwrap());
        assert!(!is_range_locked(other.as_fd(), 202, 2).unwrap());
        assert!(!is_range_locked(file.as_file().as_fd(), 200, 4).unwrap(), "its own");
        unlock_ranges(file.as_file().as_fd()).unwrap();
        assert!(!is_range_locked(other.as_fd(), 200, 4).unwrap(), "released while it is open");
        lock_range_shared(other.as_fd(), 201, 1).unwrap();
        drop(file);
        let file = tempfile::NamedTempFile::new().unwrap();
        assert!(!is_range_locked(file.as_file().as_fd(), 0, 1000).unwrap());
    }

    #[test]
    fn a_writer_is_seen_while_it_has_the_file_open() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let reading = File::open(file.path()).unwrap();
        let Some(is_open) = is_open_for_writing(reading.as_fd()) else {
            eprintln!("skipped: the directory for temporary files has no leases");
            return;
        };
        assert!(is_open);
        let path = file.into_temp_path();
        assert_eq!(is_open_for_writing(reading.as_fd()), Some(false));
        let writing = File::options().append(true).open(&path).unwrap();
        assert_eq!(is_open_for_writing(reading.as_fd()), Some(true));
        drop(writing);
        assert_eq!(is_open_for_writing(reading.as_fd()), Some(false));
    }
}

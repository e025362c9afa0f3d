//! Reads small files whose names others may have given: within a limited time and number of bytes, whatever the name
//! refers to.

use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;

/// Time that a pipe, such as that of a shell's `<(command)`, may take to deliver.
const PIPE_TIME: Duration = Duration::from_secs(5);

/// An open file, or a pipe whose reads fail once its time is over.
#[derive(Debug)]
pub struct SmallFile {
    file: File,
    metadata: Metadata,
    /// For a pipe.
    until: Option<Instant>,
}

impl SmallFile {
    /// Opens a regular file, or a pipe.
    ///
    /// # Errors
    /// The system's error; or the name refers to something else.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_with(path, OFlags::empty())
    }

    /// Opens a regular file that is no symbolic link.
    ///
    /// # Errors
    /// As [`open`](Self::open).
    pub fn open_regular(path: &Path) -> io::Result<Self> {
        let opened = Self::open_with(path, OFlags::NOFOLLOW).map_err(|error| {
            match error.raw_os_error() == Some(rustix::io::Errno::LOOP.raw_os_error()) {
                true => io::Error::new(io::ErrorKind::InvalidInput, "it is a symbolic link"),
                false => error,
            }
        })?;
        if opened.until.is_some() {
            return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is a pipe, and no regular file"));
        }
        Ok(opened)
    }

    fn open_with(path: &Path, flags: OFlags) -> io::Result<Self> {
        // A pipe without a writer is not waited for, and a terminal does not become that of this process.
        let flags = (flags | OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
        let file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
        let metadata = file.metadata()?;
        let kind = metadata.file_type();
        let until = kind.is_fifo().then(|| Instant::now() + PIPE_TIME);
        if !kind.is_file() && until.is_none() {
            let what = if kind.is_dir() { "it is a directory" } else { "it is a device" };
            return Err(io::Error::new(io::ErrorKind::InvalidInput, format!("{what}, and no regular file")));
        }
        Ok(Self { file, metadata, until })
    }

    /// Its metadata.
    #[must_use]
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// Its text, if it has at most `bytes_max` bytes.
    ///
    /// # Errors
    /// The system's error; it has more bytes, or is not text.
    pub fn read_text(self, bytes_max: usize) -> io::Result<String> {
        let mut text = String::new();
        self.take(bytes_max as u64 + 1).read_to_string(&mut text)?;
        match text.len() > bytes_max {
            true => Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("more than {bytes_max} bytes"))),
            false => Ok(text),
        }
    }
}

impl Read for SmallFile {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if let Some(until) = self.until {
            let left = until.saturating_duration_since(Instant::now());
            let timeout = Timespec::try_from(left).map_err(io::Error::other)?;
            let mut polled = [PollFd::new(&self.file, PollFlags::IN)];
            // An interruption is reported to the reader, which tries again.
            if poll(&mut polled, Some(&timeout))? == 0 {
                let message = format!("it is a pipe that delivers nothing within {} s", PIPE_TIME.as_secs());
                return Err(io::Error::new(io::ErrorKind::TimedOut, message));
            }
        }
        self.file.read(into)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;

    use super::*;

    fn text(path: &Path) -> io::Result<String> {
        SmallFile::open(path)?.read_text(4)
    }

    #[test]
    fn only_small_files_and_pipes_that_deliver_are_read() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "four").unwrap();
        assert_eq!(text(&path).unwrap(), "four");
        std::fs::write(&path, "fives").unwrap();
        assert!(text(&path).unwrap_err().to_string().contains("more than 4 bytes"));
        for device in ["/dev/zero", "/dev/null"] {
            assert!(text(Path::new(device)).unwrap_err().to_string().contains("device"), "{device}");
        }
        assert!(text(directory.path()).unwrap_err().to_string().contains("directory"));
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"pipe").unwrap();
        drop(writer);
        assert_eq!(text(Path::new(&format!("/proc/self/fd/{}", reader.as_raw_fd()))).unwrap(), "pipe");
    }

    #[test]
    fn a_pipe_that_delivers_nothing_is_not_waited_for_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().unwrap();
        assert!(made.success());
        let began = Instant::now();
        assert_eq!(text(&path).unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(began.elapsed() >= PIPE_TIME);
        assert!(SmallFile::open_regular(&path).unwrap_err().to_string().contains("pipe"));
    }

    #[test]
    fn a_link_is_not_followed_where_only_a_regular_file_will_do() {
        let directory = tempfile::tempdir().unwrap();
        let (path, link) = (directory.path().join("file"), directory.path().join("link"));
        std::fs::write(&path, "text").unwrap();
        std::os::unix::fs::symlink(&path, &link).unwrap();
        assert_eq!(text(&link).unwrap(), "text");
        assert!(SmallFile::open_regular(&link).unwrap_err().to_string().contains("symbolic link"));
        assert_eq!(SmallFile::open_regular(&path).unwrap().read_text(4).unwrap(), "text");
    }
}

//! A file that gets its name once it is whole. One that is never finished leaves nothing, or a file that the next one
//! replaces.

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, RenameFlags};

/// An unfinished file.
#[derive(Debug)]
pub struct Unfinished {
    file: File,
    /// Its final path.
    path: PathBuf,
    /// Its temporary path.
    beside: PathBuf,
    /// Whether it has a name already: the file system has no files without one.
    has_name: bool,
}

impl Unfinished {
    /// Begins an empty file, in the directory of its path.
    ///
    /// # Errors
    /// If it cannot be created, or another process is making the same.
    pub fn new(path: &Path) -> io::Result<Self> {
        let mut name = path.file_name().map_or_else(OsString::new, OsString::from);
        name.push(".unfinished");
        let (beside, mut options) = (path.with_file_name(name), OpenOptions::new());
        // Other users must not read the data that a peer stored.
        options.read(true).write(true).mode(0o600);
        let nameless =
            options.clone().custom_flags(OFlags::TMPFILE.bits().cast_signed()).open(directory(path));
        let is_reachable = |file: &File| Path::new(&of_process(file)).exists();
        let (file, has_name) = match nameless {
            Ok(file) if is_reachable(&file) => (file, false),
            _ => (options.create(true).open(&beside)?, true),
        };
        if has_name {
            rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
            file.set_len(0)?;
        }
        Ok(Self { file, path: path.to_owned(), beside, has_name })
    }

    /// Its content.
    #[must_use]
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Gives it its name, durably. No file may have that name.
    ///
    /// # Errors
    /// If there is such a file, or the name cannot be given.
    pub fn finish(self) -> io::Result<()> {
        self.file.sync_all()?;
        if self.has_name {
            rustix::fs::renameat_with(CWD, &self.beside, CWD, &self.path, RenameFlags::NOREPLACE)?;
        } else {
            self.link(&self.path)?;
        }
        self.settle()
    }

    /// Gives it its name, durably, in place of another file.
    ///
    /// # Errors
    /// If the name cannot be given.
    pub fn replace(self) -> io::Result<()> {
        self.file.sync_all()?;
        if !self.has_name {
            match std::fs::remove_file(&self.beside) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => self.link(&self.beside)?,
            }
        }
        std::fs::rename(&self.beside, &self.path)?;
        self.settle()
    }

    /// Removes it.
    pub fn abandon(self) {
        if self.has_name {
            // If even this fails, the next one replaces it.
            let _ = std::fs::remove_file(&self.beside);
        }
    }

    fn link(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::linkat(CWD, of_process(&self.file), CWD, path, AtFlags::SYMLINK_FOLLOW)?)
    }

    /// Makes the name durable.
    fn settle(self) -> io::Result<()> {
        File::open(directory(&self.path))?.sync_all()
    }
}

/// A name of an open file, where there is /proc.
fn of_process(file: &File) -> String {
    format!("/proc/self/fd/{}", file.as_raw_fd())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;

    #[test]
    fn a_file_gets_its_name_once_it_is_finished() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("file");
        let names = || {
            let entries = std::fs::read_dir(place.path()).unwrap();
            let mut names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        let begin = |text: &str| {
            let unfinished = Unfinished::new(&path).unwrap();
            unfinished.file().write_all(text.as_bytes()).unwrap();
            unfinished
        };
        let has_name = begin("first").has_name;
        assert!(has_name || names().is_empty(), "nothing is left of it");
        begin("second").finish().unwrap();
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "second");
        assert_eq!(begin("third").finish().unwrap_err().kind(), io::ErrorKind::AlreadyExists);
        std::fs::write(path.with_file_name("file.unfinished"), "of one that was killed").unwrap();
        begin("fourth").replace().unwrap();
        assert_eq!(
            (std::fs::read_to_string(&path).unwrap(), names()),
            ("fourth".into(), vec!["file".into()])
        );
    }
}

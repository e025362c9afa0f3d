//! Atomic writes of small files: after a crash or power cut a file has its old or its new content, or does not exist.
//!
//! Content is made durable under another name before it gets its own: a power cut may keep a name and lose its
//! content. Not for reactors: these calls block.

use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use crate::randomness::Randomness;

/// The calls that put a file in its place. Tests implement them too, and cut the power between any two.
pub trait FileCalls {
    /// Writes a new file. Nothing of it is durable.
    ///
    /// # Errors
    /// The system's error; a part may have been written.
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()>;

    /// Makes a file's content durable, or the names in a directory.
    ///
    /// # Errors
    /// The system's error; nothing may be durable.
    fn sync(&mut self, path: &Path) -> io::Result<()>;

    /// Gives a file a second name, unless that is taken.
    ///
    /// # Errors
    /// The system's error, such as `AlreadyExists`.
    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Renames a file, replacing an existing one of that name.
    ///
    /// # Errors
    /// The system's error.
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a name.
    ///
    /// # Errors
    /// The system's error.
    fn remove(&mut self, path: &Path) -> io::Result<()>;
}

/// The files of this machine.
#[derive(Clone, Copy, Debug, Default)]
pub struct SystemFiles;

impl FileCalls for SystemFiles {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        // Never through a link that another user has put there.
        std::fs::File::create_new(path)?.write_all(bytes)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        std::fs::File::open(path)?.sync_all()
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::hard_link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }
}

/// As [`SystemFiles`], but other users can neither read nor write the new files.
#[derive(Clone, Copy, Debug, Default)]
pub struct PrivateFiles;

impl FileCalls for PrivateFiles {
    fn write(&mut self, path: &Path, bytes: &[u8]) -> io::Result<()> {
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true).mode(0o600).open(path)?.write_all(bytes)
    }

    fn sync(&mut self, path: &Path) -> io::Result<()> {
        SystemFiles.sync(path)
    }

    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.link(from, to)
    }

    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        SystemFiles.rename(from, to)
    }

    fn remove(&mut self, path: &Path) -> io::Result<()> {
        SystemFiles.remove(path)
    }
}

/// Creates a file unless it exists. Afterwards the file, new or old, survives a power cut. Returns whether it is the
/// new one.
///
/// # Errors
/// The system's error; the file then exists completely or not at all.
pub fn place_new(calls: &mut impl FileCalls, path: &Path, bytes: &[u8]) -> io::Result<bool> {
    let beside = beside(path)?;
    let placed = match written(calls, &beside, bytes).and_then(|()| calls.link(&beside, path)) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    };
    // A temporary file that stays does no harm.
    let _ = calls.remove(&beside);
    let is_placed = placed?;
    calls.sync(directory(path))?;
    Ok(is_placed)
}

/// Creates a file or replaces it. A reader, also after a power cut, finds the old or the new content, and the new one
/// once this has returned.
///
/// # Errors
/// The system's error; the file then has its old or new content.
pub fn replace(calls: &mut (impl FileCalls + ?Sized), path: &Path, bytes: &[u8]) -> io::Result<()> {
    stage(calls, path, bytes)?.rename(calls)?;
    sync_name(calls, path)
}

/// New content of a file, durable under another name.
#[derive(Debug)]
#[must_use = "content that stays beside its file is of no use"]
pub struct Staged {
    beside: PathBuf,
    path: PathBuf,
}

/// Writes new content of a file beside it, and makes that durable: most of what may fail is done then.
///
/// # Errors
/// The system's error; nothing is left.
pub fn stage(calls: &mut (impl FileCalls + ?Sized), path: &Path, bytes: &[u8]) -> io::Result<Staged> {
    let beside = beside(path)?;
    if let Err(error) = written(calls, &beside, bytes) {
        let _ = calls.remove(&beside);
        return Err(error);
    }
    Ok(Staged { beside, path: path.to_owned() })
}

impl Staged {
    /// Gives the content its name. A power cut may take that back until [`sync_name`] has returned.
    ///
    /// # Errors
    /// The system's error; the file has its old content then, and the new one is gone.
    pub fn rename(self, calls: &mut (impl FileCalls + ?Sized)) -> io::Result<()> {
        let renamed = calls.rename(&self.beside, &self.path);
        if renamed.is_err() {
            self.discard(calls);
        }
        renamed
    }

    /// Removes the content. If that fails it stays beside the file, and does no harm.
    pub fn discard(self, calls: &mut (impl FileCalls + ?Sized)) {
        let _ = calls.remove(&self.beside);
    }
}

/// Makes the name of a file durable.
///
/// # Errors
/// The system's error.
pub fn sync_name(calls: &mut (impl FileCalls + ?Sized), path: &Path) -> io::Result<()> {
    calls.sync(directory(path))
}

/// Removes content that a killed process has left beside a file.
pub fn remove_left(path: &Path) {
    let Some(name) = path.file_name().and_then(|name| name.to_str()) else { return };
    let Ok(entries) = std::fs::read_dir(directory(path)) else { return };
    for entry in entries.flatten() {
        let left = entry.file_name();
        let random =
            left.to_str().and_then(|left| left.strip_prefix(name)?.strip_prefix('.')?.strip_suffix(".new"));
        if random
            .is_some_and(|random| random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit()))
        {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Checks that [`replace`] can put a file there, without giving it its name: readers would find it empty.
///
/// # Errors
/// The system's error, or [`InvalidInput`](io::ErrorKind::InvalidInput) if something other than a file has the name.
pub fn check_place(path: &Path) -> io::Result<()> {
    if std::fs::metadata(path).is_ok_and(|metadata| !metadata.is_file()) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"));
    }
    let beside = beside(path)?;
    SystemFiles.write(&beside, b"")?;
    std::fs::remove_file(&beside)
}

fn written(calls: &mut (impl FileCalls + ?Sized), path: &Path, bytes: &[u8]) -> io::Result<()> {
    calls.write(path, bytes)?;
    calls.sync(path)
}

/// A temporary name of a file, unpredictable to others.
fn beside(path: &Path) -> io::Result<PathBuf> {
    let mut random = [0; 8];
    Randomness::System.fill(&mut random)?;
    let mut name = OsString::from(path);
    name.push(format!(".{:016x}.new", u64::from_ne_bytes(random)));
    Ok(name.into())
}

fn directory(path: &Path) -> &Path {
    path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::MetadataExt;

    use super::*;

    #[test]
    fn a_file_is_placed_once_and_replaced_any_number_of_times() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        assert!(place_new(&mut SystemFiles, &path, b"first").unwrap());
        assert!(!place_new(&mut SystemFiles, &path, b"second").unwrap());
        assert_eq!(std::fs::read(&path).unwrap(), b"first");
        for content in [&b"third"[..], b""] {
            replace(&mut SystemFiles, &path, content).unwrap();
            assert_eq!(std::fs::read(&path).unwrap(), content);
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside it");
    }

    #[test]
    fn content_waits_beside_its_file_until_it_gets_its_name() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        replace(&mut PrivateFiles, &path, b"old").unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        stage(&mut PrivateFiles, &path, b"discarded").unwrap().discard(&mut PrivateFiles);
        let staged = stage(&mut PrivateFiles, &path, b"new").unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"old");
        staged.rename(&mut PrivateFiles).unwrap();
        sync_name(&mut PrivateFiles, &path).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"new");
        // As a killed process leaves it, beside files that are not ours.
        let others = ["a.new", "a.0123456789abcdef.old", "b.0123456789abcdef.new"];
        for name in others {
            std::fs::write(directory.path().join(name), b"x").unwrap();
        }
        let _left = stage(&mut PrivateFiles, &path, b"left").unwrap();
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 5);
        remove_left(&path);
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 4);
    }

    #[test]
    fn a_check_leaves_everything_as_it_is() {
        let directory = tempfile::tempdir().unwrap();
        let (new, old) = (directory.path().join("new"), directory.path().join("old"));
        std::fs::write(&old, b"content").unwrap();
        check_place(&new).unwrap();
        check_place(&old).unwrap();
        assert_eq!((new.exists(), std::fs::read(&old).unwrap()), (false, b"content".to_vec()));
        for bad in [directory.path(), &directory.path().join("missing/a"), Path::new("/dev/null")] {
            assert!(check_place(bad).is_err(), "{}", bad.display());
        }
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left beside them");
    }

    #[test]
    fn temporary_names_are_unforeseeable_and_never_followed() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a");
        assert_ne!(beside(&path).unwrap(), beside(&path).unwrap());
        let (link, other) = (directory.path().join("link"), directory.path().join("other"));
        std::os::unix::fs::symlink(&other, &link).unwrap();
        assert!(SystemFiles.write(&link, b"x").is_err() && !other.exists());
    }

    #[test]
    fn what_cannot_be_placed_leaves_nothing() {
        let directory = tempfile::tempdir().unwrap();
        assert!(place_new(&mut SystemFiles, &directory.path().join("missing/a"), b"x").is_err());
        std::fs::create_dir(directory.path().join("taken")).unwrap();
        assert!(replace(&mut SystemFiles, &directory.path().join("taken"), b"x").is_err());
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1);
    }
}

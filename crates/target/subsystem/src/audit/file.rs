//! The file of the audit log.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

/// Opens the file to append to it, and creates it for its user only.
pub(super) fn open(path: &Path) -> io::Result<File> {
    // A pipe without a reader is an error at once.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = OpenOptions::new().append(true).create(true).mode(0o600).custom_flags(flags).open(path)?;
    if file.metadata()?.file_type().is_fifo() {
        // Its reader may take its time: only the writer's thread waits.
        fcntl_setfl(&file, fcntl_getfl(&file)? - OFlags::NONBLOCK)?;
    }
    Ok(file)
}

/// Whether the storage of the file is full or fails for the moment: not an error of the configured path.
pub(super) fn is_passing(error: &io::Error) -> bool {
    use io::ErrorKind::{QuotaExceeded, ReadOnlyFilesystem, StorageFull};
    let is_full = matches!(error.kind(), StorageFull | QuotaExceeded | ReadOnlyFilesystem);
    is_full || error.raw_os_error() == Some(rustix::io::Errno::IO.raw_os_error())
}

/// Why there can be no audit log of this name, as far as that can be found without creating it.
pub(crate) fn inspect(path: &Path) -> Result<(), String> {
    let shown = path.display();
    if path.as_os_str().is_empty() || path.as_os_str() == "-" {
        return Err(format!("the audit log is a file that is appended to: name one, not \"{shown}\""));
    }
    match path.metadata() {
        Ok(known) if known.is_dir() => {
            Err(format!("the audit log {shown} is a directory: name a file in it"))
        }
        Ok(_) => Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            let directory = path.parent().filter(|directory| !directory.as_os_str().is_empty());
            match directory {
                Some(directory) if !directory.is_dir() => Err(format!(
                    "the audit log {shown} has no directory: make {} first, with mkdir -p",
                    directory.display()
                )),
                _ => Ok(()),
            }
        }
        Err(error) => Err(format!("cannot open the audit log {shown}: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_new_file_is_for_its_user_and_an_old_one_is_appended_to() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("audit");
        for line in ["one\n", "two\n"] {
            inspect(&path).expect("a name");
            open(&path).and_then(|mut file| file.write_all(line.as_bytes())).expect("written");
        }
        assert_eq!(std::fs::read_to_string(&path).expect("a file"), "one\ntwo\n");
        assert_eq!(path.metadata().expect("a file").permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_pipe_without_a_reader_is_an_error_and_not_a_wait() {
        let directory = tempfile::tempdir().expect("a directory");
        let path = directory.path().join("pipe");
        let made = std::process::Command::new("mkfifo").arg(&path).status().expect("mkfifo");
        assert!(made.success());
        assert!(open(&path).is_err());
    }

    #[test]
    fn names_that_can_be_none_are_explained() {
        let directory = tempfile::tempdir().expect("a directory");
        let missing = directory.path().join("missing/audit");
        for (path, part) in [
            (Path::new(""), "name one"),
            (Path::new("-"), "name one"),
            (directory.path(), "is a directory"),
            (missing.as_path(), "mkdir -p"),
        ] {
            let error = inspect(path).expect_err("no file");
            assert!(error.contains(part), "{error}");
        }
        assert_eq!(inspect(Path::new("audit.jsonl")), Ok(()));
    }
}

//! The identity of a namespace in a file, kept with the file as an extended attribute.
//!
//! The attribute holds one line: `UUID MACHINE INODE PATH`. The UUID is the identity. The other three name the file
//! that received it: an attribute moves with its file, and also with a copy that preserves attributes; the two are
//! distinguished by checking the place where the identity was given.
//!
//! ```text
//! no attribute                                 ─▶ a new random UUID
//! same inode                                   ─▶ the same file, perhaps renamed
//! another inode, the original is still there   ─▶ a copy: a new random UUID
//! another inode, the original is gone          ─▶ moved or restored: the UUID stays
//! ```

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use linux::randomness::Randomness;
use rustix::fs::XattrFlags;
use wire::uuid::Uuid;

/// The attribute.
pub const ATTRIBUTE: &str = "user.nvlane.identity";

/// The attribute with the block size that a file of blocks is served with, bytes, in digits.
pub const BLOCK_SIZE_ATTRIBUTE: &str = "user.nvlane.block_size";

/// The largest attribute that is read, and the longest path that is written, bytes: file systems limit all attributes
/// of a file to 4 KiB.
const ATTRIBUTE_BYTES_MAX: usize = 2048;
const PATH_BYTES_MAX: usize = 1024;

/// A file as the kernel identifies it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    /// The file that `path` leads to now.
    ///
    /// # Errors
    /// If there is no such file, or it cannot be examined.
    pub fn of(path: &Path) -> io::Result<Self> {
        Ok(Self::from(&std::fs::metadata(path)?))
    }
}

impl From<&std::fs::Metadata> for FileId {
    fn from(metadata: &std::fs::Metadata) -> Self {
        Self { device: metadata.dev(), inode: metadata.ino() }
    }
}

/// The origin of a file's identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// The file already had it.
    Kept,
    /// The file had none: it is new.
    New,
    /// Another file had it that is no longer in its place: this one was moved here or restored, or is a copy from
    /// elsewhere.
    Moved,
    /// The file is a copy of this one, and received an identity of its own.
    CopyOf(PathBuf),
}

/// The content of an attribute.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Record {
    uuid: Uuid,
    machine: Uuid,
    inode: u64,
    /// Where the file was; `None` if the path is too long to keep.
    path: Option<PathBuf>,
}

impl Record {
    fn to_bytes(&self) -> Vec<u8> {
        let mut bytes = format!("{} {} {} ", self.uuid, self.machine, self.inode).into_bytes();
        bytes.extend(self.path.iter().flat_map(|path| path.as_os_str().as_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut words = bytes.splitn(4, |byte| *byte == b' ');
        let mut text = || std::str::from_utf8(words.next()?).ok();
        let uuid = text()?.parse().ok().filter(|uuid: &Uuid| !uuid.is_nil())?;
        let (machine, inode) = (text()?.parse().ok()?, text()?.parse().ok()?);
        let path = words.next().filter(|path| !path.is_empty());
        let path = path.map(|path| PathBuf::from(std::ffi::OsString::from_vec(path.to_vec())));
        Some(Self { uuid, machine, inode, path })
    }

    fn of(file: impl AsFd) -> io::Result<Option<Self>> {
        let mut value = [0; ATTRIBUTE_BYTES_MAX];
        match rustix::fs::fgetxattr(file, ATTRIBUTE, &mut value[..]) {
            Ok(length) => Ok(value.get(..length).and_then(Self::from_bytes)),
            Err(rustix::io::Errno::NODATA) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    fn set(&self, file: &File) -> io::Result<()> {
        Ok(rustix::fs::fsetxattr(file, ATTRIBUTE, &self.to_bytes(), XattrFlags::empty())?)
    }
}

/// Gives a file that is to take another one's place its identity, where both file systems keep attributes. While the
/// other one is in its place, this one counts as a copy.
pub(crate) fn carry_over(from: &File, to: &File) {
    if let Ok(Some(record)) = Record::of(from) {
        let _ = record.set(to);
    }
}

/// The identity of a file; `None` if it has none, or its file system keeps no attributes.
#[must_use]
pub fn read(path: &Path) -> Option<Uuid> {
    Some(Record::of(&open(path).ok()?).ok()??.uuid)
}

/// As [`read`], for an open file, whose name may be gone.
#[must_use]
pub fn of_open(file: impl AsFd) -> Option<Uuid> {
    Some(Record::of(file).ok()??.uuid)
}

/// The identity of a file: the existing one, or a new one that is stored with the file. `machine` identifies this
/// machine, and `former` did so before.
///
/// # Errors
/// If the file cannot be opened, or its file system keeps no attributes.
pub fn claim(path: &Path, machine: Uuid, former: Uuid) -> io::Result<(Uuid, Origin)> {
    let file = open(path)?;
    let metadata = file.metadata()?;
    let place =
        path.canonicalize().or_else(|_| std::path::absolute(path)).unwrap_or_else(|_| path.to_owned());
    let (uuid, origin) = match Record::of(&file)? {
        None => (random()?, Origin::New),
        Some(known) => match original(&known, [machine, former], FileId::from(&metadata)) {
            Some(original) => (random()?, Origin::CopyOf(original)),
            None if [machine, former].contains(&known.machine) && known.inode == metadata.ino() => {
                (known.uuid, Origin::Kept)
            }
            None => (known.uuid, Origin::Moved),
        },
    };
    let place = Some(place).filter(|place| place.as_os_str().len() <= PATH_BYTES_MAX);
    let record = Record { uuid, machine, inode: metadata.ino(), path: place };
    match record.set(&file) {
        // The attribute already has this identity, and at most its place is out of date: a file that may only be read.
        Err(_) if matches!(origin, Origin::Kept | Origin::Moved) => {}
        result => result?,
    }
    // Hosts know it from now on: a power cut must not make it another one.
    if matches!(origin, Origin::New | Origin::CopyOf(_)) {
        file.sync_all()?;
    }
    Ok((uuid, origin))
}

/// The block size that a file was served with, bytes; `None` if it was not served, or its file system keeps no
/// attributes.
#[must_use]
pub fn kept_block_bytes(path: &Path) -> Option<u32> {
    let mut value = [0; 10];
    let length = rustix::fs::fgetxattr(&open(path).ok()?, BLOCK_SIZE_ATTRIBUTE, &mut value[..]).ok()?;
    std::str::from_utf8(value.get(..length)?).ok()?.trim().parse().ok()
}

/// Keeps the block size that a file is served with from now on.
///
/// # Errors
/// If the file cannot be opened, or its file system keeps no attributes.
pub fn keep_block_bytes(path: &Path, block_bytes: u32) -> io::Result<()> {
    if kept_block_bytes(path) == Some(block_bytes) {
        return Ok(());
    }
    let (file, value) = (open(path)?, block_bytes.to_string());
    rustix::fs::fsetxattr(&file, BLOCK_SIZE_ATTRIBUTE, value.as_bytes(), XattrFlags::empty())?;
    file.sync_all()
}

/// The file that an identity was given to, if it is still there and is another one than `this`.
fn original(known: &Record, machines: [Uuid; 2], this: FileId) -> Option<PathBuf> {
    let path =
        known.path.as_ref().filter(|_| machines.contains(&known.machine) && known.inode != this.inode)?;
    let other = open(path).ok()?;
    let is_other = FileId::from(&other.metadata().ok()?) != this;
    let is_same_identity = Record::of(&other).ok()??.uuid == known.uuid;
    (is_other && is_same_identity).then(|| path.clone())
}

/// Opens a regular file, and waits for nothing else.
fn open(path: &Path) -> io::Result<File> {
    let nonblock = rustix::fs::OFlags::NONBLOCK.bits().cast_signed();
    let file = File::options().read(true).custom_flags(nonblock).open(path)?;
    if file.metadata()?.is_file() { Ok(file) } else { Err(io::Error::other("not a regular file")) }
}

/// A UUID of version 4.
///
/// # Errors
/// If the kernel gives no random bytes.
pub fn random() -> io::Result<Uuid> {
    let mut bytes = [0; 16];
    Randomness::System.fill(&mut bytes)?;
    bytes[6] = bytes[6] & 0x0F | 0x40;
    bytes[8] = bytes[8] & 0x3F | 0x80;
    Ok(Uuid::from_bytes(bytes))
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn machine(number: u8) -> Uuid {
        Uuid::from_bytes([number; 16])
    }

    /// A directory on a file system with attributes; `None` if no such file system is available.
    fn directory() -> Option<tempfile::TempDir> {
        let directory = tempfile::tempdir().unwrap();
        let probe = directory.path().join("probe");
        std::fs::write(&probe, "").unwrap();
        match claim(&probe, machine(1), machine(1)) {
            Ok(_) => Some(directory),
            Err(error) => {
                eprintln!("skipped: the directory for temporary files keeps no attributes: {error}");
                None
            }
        }
    }

    fn copy(from: &Path, to: &Path, attributes: bool) {
        let mut command = Command::new("cp");
        command.args(if attributes { &["--preserve=all"][..] } else { &[] });
        assert!(command.arg(from).arg(to).status().unwrap().success());
    }

    /// RFC 9562, section 5.4
    #[test]
    fn a_random_uuid_says_so_and_is_new_each_time() {
        let all: Vec<Vec<u8>> = (0..50).map(|_| random().unwrap().to_string().into_bytes()).collect();
        for at in 0..all[0].len() {
            let mut digits: Vec<u8> = all.iter().map(|text| text[at]).collect();
            digits.sort_unstable();
            digits.dedup();
            match at {
                8 | 13 | 18 | 23 => assert_eq!(digits, b"-"),
                14 => assert_eq!(digits, b"4"),
                19 => assert!(digits.iter().all(|digit| b"89ab".contains(digit)) && digits.len() > 1),
                _ => assert!(digits.len() > 8, "digit {at} is one of {}", digits.escape_ascii()),
            }
        }
    }

    #[test]
    fn a_record_reads_as_it_was_written() {
        for path in [None, Some("/srv/a disk.img".into())] {
            let record = Record { uuid: machine(3), machine: machine(1), inode: 42, path };
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
        for bytes in ["", "x", "00000000-0000-0000-0000-000000000000 1 2 /x", "\u{e9} \u{e9}"] {
            assert_eq!(Record::from_bytes(bytes.as_bytes()), None, "{bytes}");
        }
    }

    #[test]
    fn a_file_keeps_its_identity_when_it_is_renamed_or_moved() {
        let Some(directory) = directory() else { return };
        let [a, b] = ["a", "b"].map(|name| directory.path().join(name));
        std::fs::write(&a, "data").unwrap();
        assert_eq!(read(&a), None);
        let (uuid, origin) = claim(&a, machine(1), machine(1)).unwrap();
        assert_eq!((origin, read(&a)), (Origin::New, Some(uuid)));
        std::fs::rename(&a, &b).unwrap();
        assert_eq!(claim(&b, machine(1), machine(1)).unwrap(), (uuid, Origin::Kept));
        // To another machine, and within this one to another file system: a new inode, and the old file is gone.
        copy(&b, &a, true);
        std::fs::remove_file(&b).unwrap();
        assert_eq!(claim(&a, machine(2), machine(2)).unwrap(), (uuid, Origin::Moved));
        assert_eq!(claim(&a, machine(2), machine(2)).unwrap(), (uuid, Origin::Kept), "said once");
        copy(&a, &b, true);
        std::fs::remove_file(&a).unwrap();
        assert_eq!(claim(&b, machine(2), machine(2)).unwrap(), (uuid, Origin::Moved));
    }

    #[test]
    fn a_copy_gets_an_identity_of_its_own() {
        let Some(directory) = directory() else { return };
        let [original, plain, full] = ["original", "plain", "full"].map(|name| directory.path().join(name));
        std::fs::write(&original, "data").unwrap();
        let (uuid, _) = claim(&original, machine(1), machine(1)).unwrap();
        copy(&original, &plain, false);
        copy(&original, &full, true);
        assert_eq!(read(&full), Some(uuid), "cp has copied the attribute");
        let (plain_uuid, origin) = claim(&plain, machine(1), machine(1)).unwrap();
        assert_eq!(origin, Origin::New);
        let (full_uuid, origin) = claim(&full, machine(1), machine(1)).unwrap();
        assert_eq!(origin, Origin::CopyOf(original.canonicalize().unwrap()));
        assert!(uuid != plain_uuid && uuid != full_uuid && plain_uuid != full_uuid);
        assert_eq!(claim(&original, machine(1), machine(1)).unwrap(), (uuid, Origin::Kept));
        assert_eq!(claim(&full, machine(1), machine(1)).unwrap(), (full_uuid, Origin::Kept));
    }

    #[test]
    fn a_moved_file_is_no_copy_of_the_one_that_has_its_path_now() {
        let Some(directory) = directory() else { return };
        let [old, moved] = ["old", "moved"].map(|name| directory.path().join(name));
        std::fs::write(&old, "data").unwrap();
        let (uuid, _) = claim(&old, machine(1), machine(1)).unwrap();
        copy(&old, &moved, true);
        std::fs::remove_file(&old).unwrap();
        std::fs::write(&old, "other data").unwrap();
        let (other, _) = claim(&old, machine(1), machine(1)).unwrap();
        assert_eq!(claim(&moved, machine(1), machine(1)).unwrap(), (uuid, Origin::Moved));
        assert_ne!(uuid, other);
    }

    #[test]
    fn a_file_keeps_its_identity_when_that_of_its_machine_changes() {
        let Some(directory) = directory() else { return };
        let [original, full] = ["original", "full"].map(|name| directory.path().join(name));
        std::fs::write(&original, "data").unwrap();
        let (uuid, _) = claim(&original, machine(1), machine(1)).unwrap();
        copy(&original, &full, true);
        let copied = claim(&full, machine(2), machine(1)).unwrap().1;
        assert_eq!(copied, Origin::CopyOf(original.canonicalize().unwrap()), "which is still seen");
        assert_eq!(claim(&original, machine(2), machine(1)).unwrap(), (uuid, Origin::Kept));
        assert_eq!(claim(&original, machine(2), machine(2)).unwrap(), (uuid, Origin::Kept));
    }

    #[test]
    fn a_block_size_is_kept_with_a_file() {
        let Some(directory) = directory() else { return };
        let path = directory.path().join("a");
        std::fs::write(&path, "data").unwrap();
        assert_eq!(kept_block_bytes(&path), None);
        keep_block_bytes(&path, 512).unwrap();
        assert_eq!(kept_block_bytes(&path), Some(512));
        assert_eq!(kept_block_bytes(&directory.path().join("missing")), None);
    }

    #[test]
    fn only_regular_files_have_one() {
        let directory = tempfile::tempdir().unwrap();
        assert!(claim(directory.path(), machine(1), machine(1)).is_err());
        assert!(claim(&directory.path().join("missing"), machine(1), machine(1)).is_err());
        assert!(claim(Path::new("/dev/null"), machine(1), machine(1)).is_err());
        assert_eq!(read(&directory.path().join("missing")), None);
    }
}

//! Examining a key-value file offline, and writing its certain pairs to a new one, which may take its place.

use std::collections::BTreeSet;
use std::fs::{File, Metadata};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use kv::log::{Certainty, Damage, Examined, LogSettings, Sync, rebuild};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::mark;
use super::random::Random;
use super::sectors::read_around;
use super::superblock::Superblock;
use super::unfinished::Unfinished;
use crate::identity;
use crate::open_error::OpenError;
use crate::space;

/// Bytes of a unit in which the system counts the space of a file.
const UNIT_BYTES: u64 = 512;

/// A key-value file that was examined, and is locked against targets.
#[derive(Debug)]
pub struct ExaminedFile {
    file: File,
    path: PathBuf,
    superblock: Superblock,
    /// Size, bytes.
    pub bytes: u64,
    /// The size in its superblock, bytes.
    pub bytes_wanted: u64,
    /// The first byte of a superblock of the file that is damaged; the other copy suffices.
    pub damaged_superblock: Option<u64>,
    /// The first bytes of sectors of 4,096 bytes that the disk cannot read (EIO): their content is lost.
    pub unreadable: BTreeSet<u64>,
    partitions: Vec<Examined>,
}

/// The content of one partition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PartitionReport {
    /// The oldest and the newest generation, unless there is none.
    pub generations: Option<(u64, u64)>,
    /// Keys that repair keeps.
    pub key_count: u64,
    /// The bytes of their records.
    pub bytes: u64,
    /// Keys of which a damaged range may hold a newer version.
    pub uncertain_count: u64,
    /// Keys whose values are damaged.
    pub lost_count: u64,
    /// Keys of which nothing is known but that a damaged range has records of them.
    pub unknown_count: u64,
    /// Whether damaged ranges may hold an unknown number of keys that were written nowhere else.
    pub may_have_lost_more: bool,
    /// The damage.
    pub damages: Vec<Damage>,
    /// The first byte in the file of a last write that is not whole, and that a start drops.
    pub dropped_from: Option<u64>,
}

impl ExaminedFile {
    /// Reads a file. `on_progress` is called with the bytes read so far and those of the whole file.
    ///
    /// # Errors
    /// If it cannot be read, is no key-value file, or is in use.
    pub fn open(path: &Path, mut on_progress: impl FnMut(u64, u64)) -> Result<Self, OpenError> {
        let system = |action| move |source| OpenError::System { action, path: path.to_owned(), source };
        let file = File::open(path).map_err(system("open"))?;
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared) {
            Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked { path: path.to_owned() }),
            Err(errno) => return Err(system("lock")(errno.into())),
        }
        let bytes = file.metadata().map_err(system("look at"))?.len();
        let mut unreadable = BTreeSet::new();
        let found = Superblock::read_damaged(&file, path, bytes, &mut unreadable)?;
        let mut examined = Self {
            file,
            path: path.to_owned(),
            superblock: found.superblock,
            bytes,
            bytes_wanted: found.superblock.end(),
            damaged_superblock: found.damaged,
            unreadable,
            partitions: Vec::new(),
        };
        let mut read_bytes = 0;
        for partition in 0..found.superblock.partition_count {
            let settings = examined.log(partition);
            let mut read = |offset: u64, into: &mut [u8]| {
                read_bytes += into.len() as u64;
                on_progress(read_bytes.min(bytes), bytes);
                read_around(&examined.file, offset, into, &mut examined.unreadable)
            };
            let partition = Examined::read(&settings, bytes, &mut read).map_err(system("read"))?;
            examined.partitions.push(partition);
        }
        Ok(examined)
    }

    fn log(&self, partition: u64) -> LogSettings {
        self.superblock.log(partition, Sync::Always, 0)
    }

    /// The content of each partition.
    #[must_use]
    pub fn reports(&self) -> Vec<PartitionReport> {
        self.partitions.iter().map(report).collect()
    }

    /// Whether nothing is damaged or missing, and no key has lost its value.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged_superblock.is_none()
            && self.unreadable.is_empty()
            && self.bytes >= self.bytes_wanted
            && self.partitions.iter().all(Examined::is_whole)
    }

    /// Calls `each` with every key that is not certain, and with the name (CRC32C) of every key of which nothing else
    /// is known.
    pub fn doubtful(&self, mut each: impl FnMut(Result<(&[u8], Certainty), u32>)) {
        for partition in &self.partitions {
            let keys = partition.keys().into_iter();
            keys.filter(|key| key.certainty != Certainty::Certain)
                .for_each(|key| each(Ok((key.key, key.certainty))));
            partition.unknown_names().into_iter().for_each(|name| each(Err(name)));
        }
    }

    /// Writes a new file with the pairs that are certain, or with `keeps_uncertain` those too of which a damaged range
    /// may hold a newer version. It gets its name once it is whole.
    ///
    /// # Errors
    /// If the new file exists, or one of them cannot be read or written.
    pub fn repair(&self, out: &Path, keeps_uncertain: bool) -> Result<(), OpenError> {
        let system = |action| move |source| OpenError::System { action, path: out.to_owned(), source };
        if out.symlink_metadata().is_ok() {
            return Err(system("create")(io::ErrorKind::AlreadyExists.into()));
        }
        let unfinished = Unfinished::new(out).map_err(system("create"))?;
        if let Err(error) = self.write(unfinished.file(), keeps_uncertain) {
            unfinished.abandon();
            return Err(system("write")(error));
        }
        unfinished.finish().map_err(system("create"))
    }

    /// As [`repair`](Self::repair), and replaces the file by the new one, which belongs to the same user.
    ///
    /// # Errors
    /// If it is no regular file, has other names, is in use, or the new one cannot be written beside it. Nothing has
    /// changed then.
    pub fn repair_in_place(&self, keeps_uncertain: bool) -> Result<(), OpenError> {
        let path = std::fs::canonicalize(&self.path);
        let system = |action| move |source| OpenError::System { action, path: self.path.clone(), source };
        let path = path.map_err(system("find"))?;
        let refuse = |is, remedy| Err(OpenError::WrongKind { path: self.path.clone(), is, remedy });
        let before = self.file.metadata().map_err(system("look at"))?;
        if !before.is_file() {
            return refuse("no regular file", "write to another one with --out");
        }
        if before.nlink() != 1 {
            return refuse("a file with several names", "write to another one with --out");
        }
        let unfinished = Unfinished::new(&path).map_err(system("create a file beside"))?;
        match self.replace(&path, &before, &unfinished, keeps_uncertain) {
            Ok(()) => unfinished.replace().map_err(system("replace")),
            Err(error) => {
                unfinished.abandon();
                Err(error)
            }
        }
    }

    /// Writes the replacement of the file, and makes sure that it can take the file's place.
    fn replace(
        &self,
        path: &Path,
        before: &Metadata,
        unfinished: &Unfinished,
        keeps_uncertain: bool,
    ) -> Result<(), OpenError> {
        let system = |action| move |source| OpenError::System { action, path: self.path.clone(), source };
        let file = unfinished.file();
        self.write(file, keeps_uncertain).map_err(system("write a file beside"))?;
        let own = file.metadata().map_err(system("look at a file beside"))?;
        if (own.uid(), own.gid()) != (before.uid(), before.gid()) {
            std::os::unix::fs::fchown(file, Some(before.uid()), Some(before.gid()))
                .map_err(system("give its owner to a file beside"))?;
        }
        file.set_permissions(before.permissions()).map_err(system("give its rights to a file beside"))?;
        file.sync_all().map_err(system("write a file beside"))?;
        // From now on no target opens it.
        match rustix::fs::flock(&self.file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) | Err(Errno::NOSYS | Errno::OPNOTSUPP | Errno::NOLCK) => {}
            Err(Errno::WOULDBLOCK) => return Err(OpenError::Locked { path: self.path.clone() }),
            Err(errno) => return Err(system("lock")(errno.into())),
        }
        let now = path.symlink_metadata().map_err(system("look at"))?;
        if (now.dev(), now.ino()) != (before.dev(), before.ino()) {
            return Err(OpenError::Replaced { path: self.path.clone() });
        }
        Ok(())
    }

    fn write(&self, file: &File, keeps_uncertain: bool) -> io::Result<()> {
        let random = Random::System;
        let superblock = Superblock { identity: random.draw(), ..self.superblock };
        let bytes = superblock.end().max(self.bytes);
        file.set_len(bytes)?;
        // A sparse file may be larger than the available space.
        if self.file.metadata()?.blocks().saturating_mul(UNIT_BYTES) >= self.bytes {
            space::allocate(file, bytes)?;
        }
        for (partition, number) in self.partitions.iter().zip(0..) {
            let settings = superblock.log(number, Sync::Always, random.draw());
            let mut kept = partition.keys();
            kept.retain(|key| keeps(key.certainty, keeps_uncertain));
            let mut read = |offset: u64, into: &mut [u8]| read_there(&self.file, offset, into);
            let mut write = |offset: u64, bytes: &[u8]| file.write_all_at(bytes, offset);
            rebuild(&settings, partition, &kept, &mut read, &mut write)?;
        }
        file.sync_all()?;
        // Only now it is a key-value file.
        superblock.write_copies(file)?;
        mark::set(file);
        identity::carry_over(&self.file, file);
        Ok(())
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

fn keeps(certainty: Certainty, keeps_uncertain: bool) -> bool {
    match certainty {
        Certainty::Certain => true,
        Certainty::Uncertain => keeps_uncertain,
        Certainty::Lost => false,
    }
}

fn report(partition: &Examined) -> PartitionReport {
    let keys = partition.keys();
    let count = |certainty| keys.iter().filter(|key| key.certainty == certainty).count() as u64;
    let certain = keys.iter().filter(|key| key.certainty == Certainty::Certain);
    PartitionReport {
        generations: partition.generations,
        key_count: count(Certainty::Certain),
        bytes: certain.map(|key| key.record_bytes).sum(),
        uncertain_count: count(Certainty::Uncertain),
        lost_count: count(Certainty::Lost),
        unknown_count: partition.unknown_names().len() as u64,
        may_have_lost_more: partition.has_holes(),
        damages: partition.damages.clone(),
        dropped_from: partition.dropped_from,
    }
}

/// As [`read_around`], but a sector that the disk cannot read is an error.
fn read_there(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut unreadable = BTreeSet::new();
    read_around(file, offset, into, &mut unreadable)?;
    if unreadable.is_empty() { Ok(()) } else { Err(Errno::IO.into()) }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, symlink};

    use wire::uuid::Uuid;

    use super::super::superblock::bytes_min;
    use super::*;

    fn new_file(path: &Path) -> File {
        let file = File::options().read(true).write(true).create_new(true).open(path).unwrap();
        file.set_len(bytes_min(1)).unwrap();
        Superblock::open(path, bytes_min(1), 1, &Random::System).unwrap();
        file
    }

    fn examine(path: &Path) -> ExaminedFile {
        ExaminedFile::open(path, |_, _| ()).unwrap()
    }

    #[test]
    fn a_file_repaired_in_place_is_another_one_with_its_name_its_rights_and_its_identity() {
        let place = tempfile::tempdir().unwrap();
        let [path, link] = ["pairs", "link"].map(|name| place.path().join(name));
        let file = new_file(&path);
        file.set_permissions(PermissionsExt::from_mode(0o640)).unwrap();
        let machine = Uuid::from_bytes([1; 16]);
        let identity = identity::claim(&path, machine, machine).ok().map(|(uuid, _)| uuid);
        symlink(&path, &link).unwrap();
        examine(&link).repair_in_place(false).unwrap();
        assert!(link.symlink_metadata().unwrap().is_symlink());
        let (before, now) = (file.metadata().unwrap(), path.metadata().unwrap());
        assert!(before.ino() != now.ino() && examine(&path).is_whole());
        assert_eq!((now.mode(), now.uid(), now.len()), (before.mode(), before.uid(), before.len()));
        assert_eq!(identity::read(&path), identity);
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "nothing else is left");
    }

    #[test]
    fn a_file_is_not_repaired_in_place_that_is_in_use_was_replaced_or_has_other_names() {
        let place = tempfile::tempdir().unwrap();
        let [path, other, moved] = ["pairs", "other", "moved"].map(|name| place.path().join(name));
        let file = new_file(&path);
        let refusal = |examined: &ExaminedFile| examined.repair_in_place(false).unwrap_err().to_string();
        let examined = examine(&path);
        std::fs::hard_link(&path, &other).unwrap();
        assert!(refusal(&examined).contains("several names"));
        std::fs::remove_file(&other).unwrap();
        let reader = File::open(&path).unwrap();
        rustix::fs::flock(&reader, FlockOperation::NonBlockingLockShared).unwrap();
        assert!(refusal(&examined).contains("in use"), "{}", refusal(&examined));
        drop(reader);
        std::fs::rename(&path, &moved).unwrap();
        new_file(&path);
        assert!(refusal(&examined).contains("replaced by another file"));
        assert_eq!(file.metadata().unwrap().ino(), moved.metadata().unwrap().ino());
        assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 2, "nothing else is left");
    }
}

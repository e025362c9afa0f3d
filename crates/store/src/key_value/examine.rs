//! Examining a key-value file offline, and writing what is certain in it to a new one.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use kv::log::{Certainty, Damage, Examined, LogSettings, Sync, rebuild};
use rustix::fs::FlockOperation;
use rustix::io::Errno;

use super::mark;
use super::random::Random;
use super::superblock::Superblock;
use crate::open_error::OpenError;
use crate::space;

/// A key-value file that was examined, and is locked against targets.
#[derive(Debug)]
pub struct ExaminedFile {
    file: File,
    path: PathBuf,
    superblock: Superblock,
    /// Size, bytes.
    pub bytes: u64,
    /// The size that its superblock says, bytes.
    pub bytes_wanted: u64,
    /// The first byte of a superblock of the file that is damaged; the other copy suffices.
    pub damaged_superblock: Option<u64>,
    partitions: Vec<Examined>,
}

/// What one partition holds.
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
    /// Whether damaged ranges may hold keys of which nothing else is known.
    pub may_have_lost_more: bool,
    /// What is damaged.
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
        let found = Superblock::read_damaged(&file, path)?;
        let mut examined = Self {
            file,
            path: path.to_owned(),
            superblock: found.superblock,
            bytes,
            bytes_wanted: found.superblock.end(),
            damaged_superblock: found.damaged,
            partitions: Vec::new(),
        };
        let mut read_bytes = 0;
        for partition in 0..found.superblock.partition_count {
            let settings = examined.log(partition);
            let mut read = |offset: u64, into: &mut [u8]| {
                read_bytes += into.len() as u64;
                on_progress(read_bytes.min(bytes), bytes);
                read_there(&examined.file, offset, into)
            };
            let partition = Examined::read(&settings, bytes, &mut read).map_err(system("read"))?;
            examined.partitions.push(partition);
        }
        Ok(examined)
    }

    fn log(&self, partition: u64) -> LogSettings {
        self.superblock.log(partition, Sync::Always, 0)
    }

    /// What each partition holds.
    #[must_use]
    pub fn reports(&self) -> Vec<PartitionReport> {
        self.partitions.iter().map(report).collect()
    }

    /// Whether nothing is damaged or missing.
    #[must_use]
    pub fn is_whole(&self) -> bool {
        self.damaged_superblock.is_none()
            && self.bytes >= self.bytes_wanted
            && self.partitions.iter().all(|partition| partition.damages.is_empty())
    }

    /// Calls `each` with every key that [`repair`](Self::repair) leaves out.
    pub fn left_out(&self, keeps_uncertain: bool, mut each: impl FnMut(&[u8])) {
        for partition in &self.partitions {
            let keys = partition.keys().into_iter();
            keys.filter(|key| !keeps(key.certainty, keeps_uncertain)).for_each(|key| each(key.key));
        }
    }

    /// Writes a new file with the pairs that are certain, or with `keeps_uncertain` those too of which a damaged range
    /// may hold a newer version.
    ///
    /// # Errors
    /// If the new file exists, or one of them cannot be read or written.
    pub fn repair(&self, out: &Path, keeps_uncertain: bool) -> Result<(), OpenError> {
        let system = |action| move |source| OpenError::System { action, path: out.to_owned(), source };
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).create_new(true).mode(0o600).open(out);
        let file = file.map_err(system("create"))?;
        let written = self.write(&file, out, keeps_uncertain);
        if written.is_err() {
            // Leave nothing half done. If even this fails, report the first error.
            let _ = std::fs::remove_file(out);
        }
        written.map_err(system("write"))
    }

    fn write(&self, file: &File, out: &Path, keeps_uncertain: bool) -> io::Result<()> {
        let random = Random::System;
        let superblock = Superblock { identity: random.draw(), ..self.superblock };
        let bytes = superblock.end().max(self.bytes);
        file.set_len(bytes)?;
        space::allocate(file, bytes)?;
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
        let directory = out.parent().filter(|parent| !parent.as_os_str().is_empty());
        File::open(directory.unwrap_or(Path::new(".")))?.sync_all()
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
        may_have_lost_more: partition.has_holes(),
        damages: partition.damages.clone(),
        dropped_from: partition.dropped_from,
    }
}

/// Reads what the file has there, and zeros behind its end.
fn read_there(file: &File, offset: u64, into: &mut [u8]) -> io::Result<()> {
    let mut at = 0;
    while at < into.len() {
        match file.read_at(&mut into[at..], offset + at as u64) {
            Ok(0) => {
                into[at..].fill(0);
                break;
            }
            Ok(count) => at += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

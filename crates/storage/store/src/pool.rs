//! Pools of volumes: a directory in which each volume and each snapshot is one file.
//!
//! A file's size and blocks are those of its volume, and its record is an attribute of the file: there is no other metadata, so
//! nothing can disagree after a crash. Each change of a pool is a single step of the file system: a complete and durable file
//! gets its name, takes the place of another one, becomes longer, or is removed. docs/design/volumes.md

mod calls;
mod record;
#[cfg(test)]
mod tests;

use std::fmt;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::SystemTime;

use linux::whole_file::{place_new, replace};
use rustix::io::Errno;

pub use calls::{Lacks, NewData, PoolCalls, PoolEntry};
pub use record::{ATTRIBUTE, NAME_BYTES_MAX, Record, VolumeKind, VolumeSource, check_name};

use self::calls::{Placing, VolumeFiles};
use crate::namespace::BLOCK_BYTES;
use crate::size::Size;

/// A volume or snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Its record.
    pub record: Record,
    /// Its size, bytes.
    pub bytes: u64,
    /// Blocks that it has of the file system, bytes. Those it shares with others count.
    pub allocated_bytes: u64,
}

/// What a pool holds, and the space of its file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PoolUsage {
    /// Size of the file system, or the quota if that is less, bytes.
    pub total_bytes: u64,
    /// Free space of the file system, bytes.
    pub free_bytes: u64,
    /// Blocks of all files, bytes. Shared ones count in each.
    pub allocated_bytes: u64,
    /// What its volumes may come to: their sizes, and the blocks of the snapshots, bytes.
    pub committed_bytes: u64,
    /// The most that may be committed, bytes.
    pub quota_bytes: Option<u64>,
    /// Number of volumes.
    pub volume_count: u64,
    /// Number of snapshots.
    pub snapshot_count: u64,
}

impl PoolUsage {
    /// Space that writes can still take: of the file system, and of the quota, bytes.
    #[must_use]
    pub fn left_bytes(&self) -> u64 {
        let of_quota = self.quota_bytes.map(|quota| quota.saturating_sub(self.allocated_bytes));
        self.free_bytes.min(of_quota.unwrap_or(u64::MAX))
    }

    /// The size that a new volume may have, bytes. Without a quota it may also have more.
    #[must_use]
    pub fn available_bytes(&self) -> u64 {
        self.quota_bytes.map_or(self.free_bytes, |quota| quota.saturating_sub(self.committed_bytes))
    }
}

/// Free space below which a pool is low.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SpaceLow {
    /// Of the pool's total.
    Percent(u8),
    /// Bytes.
    Bytes(u64),
}

impl SpaceLow {
    /// In bytes, for a pool of this size.
    #[must_use]
    pub fn bytes(self, total_bytes: u64) -> u64 {
        match self {
            Self::Percent(percent) => {
                let bytes = u128::from(total_bytes) * u128::from(percent) / 100;
                u64::try_from(bytes).unwrap_or(u64::MAX)
            }
            Self::Bytes(bytes) => bytes,
        }
    }
}

impl Default for SpaceLow {
    fn default() -> Self {
        Self::Percent(crate::health::SPARE_PERCENT_MIN)
    }
}

impl FromStr for SpaceLow {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.strip_suffix('%') {
            Some(digits) => match digits.parse() {
                Ok(percent @ 0..=99) => Ok(Self::Percent(percent)),
                _ => Err(format!("{text} is no share of the space: write 0% to 99%")),
            },
            None => Size::parse(text)
                .map(|Size(bytes)| Self::Bytes(bytes))
                .map_err(|(_, why)| format!("{why}, or a share such as 10%")),
        }
    }
}

impl fmt::Display for SpaceLow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => Size(*bytes).fmt(f),
        }
    }
}

/// Why a pool does not do what was asked. Nothing was changed then, except by the system's errors of the last step.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PoolError {
    /// A parameter is wrong.
    #[error("{message}")]
    Parameter {
        /// The parameter.
        field: &'static str,
        /// What would be right.
        message: String,
    },
    /// There is no volume or snapshot of this name.
    #[error("no {what} {name}")]
    Missing {
        /// What was looked for.
        what: &'static str,
        /// Its name.
        name: String,
    },
    /// There is a volume or snapshot of this name.
    #[error("{} {} is there already", volume.record.kind.name(), volume.record.name)]
    Exists {
        /// It.
        volume: Box<Volume>,
        /// Whether it is what was asked for.
        is_same: bool,
    },
    /// There is a file of this name that is no volume.
    #[error("{} is no volume: {why}", path.display())]
    Foreign {
        /// Its path.
        path: PathBuf,
        /// Why not.
        why: String,
    },
    /// A target has it open.
    #[error("{name} is in use: a namespace is on it")]
    InUse {
        /// Its name.
        name: String,
    },
    /// The quota does not allow it.
    #[error(
        "{} more would take the pool past its quota: {} of {} are committed", Size(*needed_bytes), Size(*committed_bytes), Size(*quota_bytes)
    )]
    Quota {
        /// The quota.
        quota_bytes: u64,
        /// What is committed now.
        committed_bytes: u64,
        /// What would come to it.
        needed_bytes: u64,
    },
    /// The file system has no space.
    #[error("the file system of {} has no space left", directory.display())]
    NoSpace {
        /// The directory of the pool.
        directory: PathBuf,
    },
    /// The file system cannot do it.
    #[error("{message}")]
    Unsupported {
        /// Why, and what would be right.
        message: String,
    },
    /// The system's error.
    #[error("cannot {action} {}: {source}", path.display())]
    System {
        /// What was to be done.
        action: &'static str,
        /// With what.
        path: PathBuf,
        /// The error.
        source: io::Error,
    },
}

/// A pool.
pub struct Pool {
    directory: PathBuf,
    quota_bytes: Option<u64>,
    calls: Box<dyn PoolCalls + Send>,
}

/// What is in a pool.
#[derive(Debug, Default)]
struct Content {
    volumes: Vec<Volume>,
    /// Files with a record that cannot be used, and why.
    unusable: Vec<(String, String)>,
    /// Files that a killed process has left half made.
    left: Vec<String>,
}

/// A change under way: the content, which nobody else changes meanwhile.
struct Change {
    content: Content,
    _lock: Option<File>,
}

impl Content {
    fn find(&self, name: &str) -> Option<&Volume> {
        self.volumes.iter().find(|volume| volume.record.name == name)
    }

    fn of_kind(&self, name: &str, kind: VolumeKind) -> Result<&Volume, PoolError> {
        self.find(name)
            .filter(|volume| volume.record.kind == kind)
            .ok_or_else(|| PoolError::Missing { what: kind.name(), name: name.to_owned() })
    }

    fn committed_bytes(&self) -> u64 {
        self.volumes.iter().map(Volume::committed_bytes).fold(0, u64::saturating_add)
    }
}

impl Volume {
    /// Blocks that it may come to, bytes: a snapshot gets no further ones.
    fn committed_bytes(&self) -> u64 {
        match self.record.kind {
            VolumeKind::Volume => self.bytes,
            VolumeKind::Snapshot => self.allocated_bytes,
        }
    }
}

impl Pool {
    /// The pool in a directory.
    #[must_use]
    pub fn new(directory: &Path, quota_bytes: Option<u64>) -> Self {
        Self::with_calls(directory, quota_bytes, Box::new(VolumeFiles))
    }

    /// As [`new`](Self::new), with other system calls: those of a test.
    #[must_use]
    pub fn with_calls(directory: &Path, quota_bytes: Option<u64>, calls: Box<dyn PoolCalls + Send>) -> Self {
        Self { directory: directory.to_owned(), quota_bytes, calls }
    }

    /// Its volumes and snapshots, by name.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn list(&mut self) -> Result<Vec<Volume>, PoolError> {
        Ok(self.content()?.volumes)
    }

    /// The volume of this name.
    ///
    /// # Errors
    /// There is none.
    pub fn find(&mut self, name: &str, kind: VolumeKind) -> Result<Volume, PoolError> {
        self.content()?.of_kind(name, kind).cloned()
    }

    /// What it holds, and the space of its file system. Logs files whose record cannot be used.
    ///
    /// # Errors
    /// The directory cannot be read.
    pub fn usage(&mut self) -> Result<PoolUsage, PoolError> {
        let content = self.content()?;
        let system = rustix::fs::statvfs(&self.directory)
            .map_err(|errno| self.failed("read the space of", &self.directory, errno.into()))?;
        for (name, why) in &content.unusable {
            tracing::debug!(file = %self.directory.join(name).display(), "pool: the file is no volume: {why}");
        }
        let size = system.f_blocks.saturating_mul(system.f_frsize);
        let count = |kind| content.volumes.iter().filter(|volume| volume.record.kind == kind).count() as u64;
        Ok(PoolUsage {
            total_bytes: size.min(self.quota_bytes.unwrap_or(u64::MAX)),
            free_bytes: system.f_bavail.saturating_mul(system.f_frsize),
            allocated_bytes: content.volumes.iter().map(|volume| volume.allocated_bytes).sum(),
            committed_bytes: content.committed_bytes(),
            quota_bytes: self.quota_bytes,
            volume_count: count(VolumeKind::Volume),
            snapshot_count: count(VolumeKind::Snapshot),
        })
    }

    /// Whether its file system can share blocks, which clones and snapshots need. Tries it with files without names.
    #[must_use]
    pub fn can_share(&self) -> bool {
        calls::can_share(&self.directory)
    }

    /// Creates a volume without content.
    ///
    /// # Errors
    /// Why there is none.
    pub fn create(&mut self, name: &str, bytes: u64, block_bytes: u32) -> Result<Volume, PoolError> {
        check_new(name)?;
        if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
            let message = format!(
                "a logical block cannot have {block_bytes} bytes: take a power of two from 512 to 65536"
            );
            return Err(PoolError::Parameter { field: "block_bytes", message });
        }
        check_bytes(bytes, block_bytes)?;
        let change = self.begin()?;
        let is_same = |found: &Volume| {
            let record = &found.record;
            (record.kind, &record.source, record.block_bytes, found.bytes)
                == (VolumeKind::Volume, &None, block_bytes, bytes)
        };
        check_free(&change, name, is_same)?;
        self.reserve(&change, bytes)?;
        self.place(name, VolumeKind::Volume, block_bytes, None, NewData::Zeroes { bytes })
    }

    /// Creates a volume with the content that another volume or a snapshot has now, and shares its blocks.
    ///
    /// # Errors
    /// Why there is none.
    pub fn clone_volume(
        &mut self,
        name: &str,
        source: &str,
        bytes: Option<u64>,
    ) -> Result<Volume, PoolError> {
        check_new(name)?;
        let change = self.begin()?;
        let known = change.content.find(source).cloned();
        let is_same = |found: &Volume| {
            found.record.kind == VolumeKind::Volume
                && is_from(found, source, known.as_ref())
                && bytes.is_none_or(|bytes| bytes == found.bytes)
        };
        check_free(&change, name, is_same)?;
        let source = known.ok_or_else(|| PoolError::Missing { what: "source", name: source.to_owned() })?;
        let (block_bytes, source_bytes) = (source.record.block_bytes, source.bytes);
        let bytes = bytes.unwrap_or(source_bytes);
        check_bytes(bytes, block_bytes)?;
        if bytes < source_bytes {
            let (less, least) = (Size(bytes), Size(source_bytes));
            let message = format!("{less} is less than its source has: take {least} or more");
            return Err(PoolError::Parameter { field: "size", message });
        }
        self.reserve(&change, bytes)?;
        let data = self.shared_with(&source, bytes, false);
        self.place(name, VolumeKind::Volume, block_bytes, Some(source.record.into()), data)
    }

    /// Keeps the content that a volume has now, under a name.
    ///
    /// # Errors
    /// Why there is no snapshot.
    pub fn snapshot(&mut self, name: &str, volume: &str) -> Result<Volume, PoolError> {
        check_new(name)?;
        let change = self.begin()?;
        let known = change.content.of_kind(volume, VolumeKind::Volume).cloned();
        let is_same = |found: &Volume| {
            found.record.kind == VolumeKind::Snapshot && is_from(found, volume, known.as_ref().ok())
        };
        check_free(&change, name, is_same)?;
        let volume = known?;
        self.reserve(&change, volume.allocated_bytes)?;
        let data = self.shared_with(&volume, volume.bytes, true);
        let block_bytes = volume.record.block_bytes;
        self.place(name, VolumeKind::Snapshot, block_bytes, Some(volume.record.into()), data)
    }

    /// Gives the volume of a snapshot the content and the size that the snapshot has. No target may have it open: its hosts
    /// would not know. Returns the volume.
    ///
    /// # Errors
    /// Why the volume is as it was.
    pub fn roll_back(&mut self, snapshot: &str) -> Result<Volume, PoolError> {
        let change = self.begin()?;
        let snapshot = change.content.of_kind(snapshot, VolumeKind::Snapshot)?;
        let source = snapshot.record.source.as_ref();
        let volume = source.and_then(|source| {
            let volume = change.content.find(&source.name)?;
            (volume.record.uuid == source.uuid).then_some(volume)
        });
        let gone = || {
            let name = source.map_or_else(String::new, |source| source.name.clone());
            PoolError::Missing { what: "volume of the snapshot: clone the snapshot, its volume was", name }
        };
        let volume = volume.ok_or_else(gone)?;
        let path = self.directory.join(&volume.record.name);
        self.check_unused(&volume.record.name)?;
        self.reserve(&change, snapshot.bytes.saturating_sub(volume.bytes))?;
        let data = self.shared_with(snapshot, snapshot.bytes, false);
        let mut placing = Placing { calls: &mut *self.calls, data };
        let replaced = replace(&mut placing, &path, volume.record.to_text().as_bytes());
        replaced.map_err(|error| self.failed("roll back", &path, error))?;
        self.found(&volume.record.name)
    }

    /// Makes a volume larger. A target that has it open follows.
    ///
    /// # Errors
    /// Why it has its old size.
    pub fn resize(&mut self, name: &str, bytes: u64) -> Result<Volume, PoolError> {
        let change = self.begin()?;
        let volume = change.content.of_kind(name, VolumeKind::Volume)?;
        check_bytes(bytes, volume.record.block_bytes)?;
        if bytes == volume.bytes {
            return Ok(volume.clone());
        }
        if bytes < volume.bytes {
            let has = Size(volume.bytes);
            let message = format!(
                "{name} has {has}, and what lies behind {} would be lost: volumes only grow",
                Size(bytes)
            );
            return Err(PoolError::Parameter { field: "size", message });
        }
        self.reserve(&change, bytes - volume.bytes)?;
        let path = self.directory.join(name);
        self.calls.grow(&path, bytes).map_err(|error| self.failed("resize", &path, error))?;
        self.found(name)
    }

    /// Removes a volume or snapshot. Others that share its blocks keep them.
    ///
    /// # Errors
    /// Why it is still there.
    pub fn delete(&mut self, name: &str, kind: VolumeKind) -> Result<(), PoolError> {
        let change = self.begin()?;
        change.content.of_kind(name, kind)?;
        self.check_unused(name)?;
        let path = self.directory.join(name);
        let removed = self.calls.remove(&path).and_then(|()| self.calls.sync(&self.directory));
        removed.map_err(|error| self.failed("remove", &path, error))
    }

    fn content(&mut self) -> Result<Content, PoolError> {
        let listed = self.calls.list(&self.directory);
        let entries = listed.map_err(|error| self.failed("read the pool", &self.directory, error))?;
        let mut content = Content::default();
        for entry in entries {
            match entry.record {
                _ if is_left(&entry.name) => content.left.push(entry.name),
                None => {}
                Some(record) => match Record::read(&record, &entry.name) {
                    Ok(record) => {
                        let PoolEntry { bytes, allocated_bytes, .. } = entry;
                        content.volumes.push(Volume { record, bytes, allocated_bytes });
                    }
                    Err(why) => content.unusable.push((entry.name, why)),
                },
            }
        }
        content.volumes.sort_by(|one, other| one.record.name.cmp(&other.record.name));
        Ok(content)
    }

    fn begin(&mut self) -> Result<Change, PoolError> {
        let lock = self.calls.lock(&self.directory);
        let lock = lock.map_err(|error| self.failed("lock the pool", &self.directory, error))?;
        let content = self.content()?;
        for name in &content.left {
            // It takes space, and does no other harm.
            let _ = self.calls.remove(&self.directory.join(name));
        }
        Ok(Change { content, _lock: lock })
    }

    fn reserve(&self, change: &Change, needed_bytes: u64) -> Result<(), PoolError> {
        let committed_bytes = change.content.committed_bytes();
        match self.quota_bytes {
            Some(quota_bytes)
                if needed_bytes > 0 && committed_bytes.saturating_add(needed_bytes) > quota_bytes =>
            {
                Err(PoolError::Quota { quota_bytes, committed_bytes, needed_bytes })
            }
            _ => Ok(()),
        }
    }

    fn shared_with(&self, source: &Volume, bytes: u64, is_read_only: bool) -> NewData {
        NewData::Shared { with: self.directory.join(&source.record.name), bytes, is_read_only }
    }

    fn place(
        &mut self,
        name: &str,
        kind: VolumeKind,
        block_bytes: u32,
        source: Option<VolumeSource>,
        data: NewData,
    ) -> Result<Volume, PoolError> {
        let path = self.directory.join(name);
        let uuid = crate::identity::random().map_err(|error| self.failed("create", &path, error))?;
        let created_s =
            SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let record = Record { kind, name: name.to_owned(), uuid, block_bytes, created_s, source };
        let mut placing = Placing { calls: &mut *self.calls, data };
        match place_new(&mut placing, &path, record.to_text().as_bytes()) {
            Ok(true) => self.found(name),
            Ok(false) => {
                let why = volume_at(&path).err().unwrap_or_else(|| "it was made just now".to_owned());
                Err(PoolError::Foreign { path, why })
            }
            Err(error) => Err(self.failed("create", &path, error)),
        }
    }

    /// The volume that was just made or changed.
    fn found(&mut self, name: &str) -> Result<Volume, PoolError> {
        let missing = || PoolError::Missing { what: "volume", name: name.to_owned() };
        self.content()?.find(name).cloned().ok_or_else(missing)
    }

    fn check_unused(&mut self, name: &str) -> Result<(), PoolError> {
        let path = self.directory.join(name);
        match self.calls.is_in_use(&path) {
            Ok(false) => Ok(()),
            Ok(true) => Err(PoolError::InUse { name: name.to_owned() }),
            Err(error) => Err(self.failed("look at", &path, error)),
        }
    }

    fn failed(&self, action: &'static str, path: &Path, source: io::Error) -> PoolError {
        let directory = self.directory.display();
        match (Lacks::of(&source), Errno::from_io_error(&source)) {
            (Some(Lacks::Reflink), _) => PoolError::Unsupported {
                message: format!(
                    "the file system of {directory} shares no blocks between files, and a copy is never made in its place: keep pools with \
                     clones and snapshots on XFS (mkfs.xfs -m reflink=1) or btrfs"
                ),
            },
            (Some(Lacks::Attributes), _) => PoolError::Unsupported {
                message: format!(
                    "the file system of {directory} keeps no extended attributes, which have the records of volumes: take XFS, btrfs or ext4"
                ),
            },
            (None, Some(Errno::NOSPC | Errno::DQUOT)) => {
                PoolError::NoSpace { directory: self.directory.clone() }
            }
            _ => PoolError::System { action, path: path.to_owned(), source },
        }
    }
}

/// The volume or snapshot at a path.
///
/// # Errors
/// Why there is none.
pub fn volume_at(path: &Path) -> Result<Volume, String> {
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let entry = calls::entry_at(path, name.to_owned()).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => "nvlane ctl volume create makes one".to_owned(),
        _ => error.to_string(),
    })?;
    let other = match path.is_dir() {
        true => "it is a directory: name a volume in it, as in pool:DIR/VOLUME",
        false => "it is a file that no pool has made: file:PATH serves any file",
    };
    let record = entry.record.ok_or(other)?;
    let record = Record::read(&record, name)?;
    Ok(Volume { record, bytes: entry.bytes, allocated_bytes: entry.allocated_bytes })
}

impl From<Record> for VolumeSource {
    fn from(record: Record) -> Self {
        Self { name: record.name, uuid: record.uuid }
    }
}

/// Whether a volume has the content of this source. If the source is gone, its name suffices.
fn is_from(volume: &Volume, name: &str, source: Option<&Volume>) -> bool {
    volume.record.source.as_ref().is_some_and(|known| {
        known.name == name && source.is_none_or(|source| source.record.uuid == known.uuid)
    })
}

fn check_free(change: &Change, name: &str, is_same: impl FnOnce(&Volume) -> bool) -> Result<(), PoolError> {
    match change.content.find(name) {
        Some(found) => Err(PoolError::Exists { volume: Box::new(found.clone()), is_same: is_same(found) }),
        None => Ok(()),
    }
}

fn check_new(name: &str) -> Result<(), PoolError> {
    check_name(name).map_err(|message| PoolError::Parameter { field: "name", message })
}

fn check_bytes(bytes: u64, block_bytes: u32) -> Result<(), PoolError> {
    let block_bytes = u64::from(block_bytes);
    let message = match bytes {
        0 => "a volume of no bytes".to_owned(),
        _ if bytes > i64::MAX.cast_unsigned() => "more than any volume can have".to_owned(),
        _ if !bytes.is_multiple_of(block_bytes) => {
            let next = bytes.next_multiple_of(block_bytes);
            format!("{bytes} bytes are not whole blocks of {block_bytes}: take {next}")
        }
        _ => return Ok(()),
    };
    Err(PoolError::Parameter { field: "size", message })
}

/// Whether a file is one that [`place_new`] or [`replace`] would have named, had its process lived.
fn is_left(name: &str) -> bool {
    let random = name.strip_suffix(".new").and_then(|name| name.rsplit_once('.'));
    random.is_some_and(|(name, random)| {
        check_name(name).is_ok() && random.len() == 16 && random.bytes().all(|byte| byte.is_ascii_hexdigit())
    })
}

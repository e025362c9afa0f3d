//! The superblock of a key-value file: its division into partitions, and settings that must not change between starts.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kv::log::{LogSettings, SEGMENT_COUNT_MIN, Sync};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::random::Random;
use crate::open_error::OpenError;

/// Size of the superblock, and unit of the logs' reads and writes, bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// As above, as a buffer length.
const BLOCK_LENGTH: usize = 4096;

const MAGIC: [u8; 8] = *b"nvlanekv";
const VERSION: u64 = 1;

/// Segments of a partition's log, unless their size reaches a limit.
const SEGMENT_COUNT: u64 = 64;
const SEGMENT_BYTES: std::ops::RangeInclusive<u64> = 64 << 10..=1 << 30;

/// The content of a superblock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Superblock {
    /// Identifies this file's segments among older data.
    pub(super) identity: u64,
    /// Hash seed of the keys.
    pub(super) seed: u64,
    /// Number of partitions, each with a log of its own.
    pub(super) partition_count: u64,
    pub(super) segment_bytes: u64,
    /// Of each partition.
    pub(super) segment_count: u64,
}

impl Superblock {
    /// Creates the superblock of a new file of this many bytes; `None` if that is too small.
    fn new(bytes: u64, partition_count: u64, random: &Random) -> Option<Self> {
        let share = bytes.saturating_sub(BLOCK_BYTES) / partition_count.max(1);
        let segment_bytes = share / SEGMENT_COUNT / BLOCK_BYTES * BLOCK_BYTES;
        let segment_bytes = segment_bytes.clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end());
        let segment_count = share / segment_bytes;
        let (identity, seed) = (random.draw(), random.draw());
        (segment_count >= SEGMENT_COUNT_MIN).then_some(Self {
            identity,
            seed,
            partition_count,
            segment_bytes,
            segment_count,
        })
    }

    /// The log of a partition, whose next segments belong to this run.
    pub(super) fn log(&self, partition: u64, sync: Sync, run: u64) -> LogSettings {
        LogSettings {
            identity: self.identity.wrapping_add(partition),
            run,
            start: BLOCK_BYTES + partition * self.segment_count * self.segment_bytes,
            segment_bytes: self.segment_bytes,
            segment_count: self.segment_count,
            block_bytes: BLOCK_BYTES,
            sync,
        }
    }

    fn numbers(&self) -> [u64; 6] {
        let Self { identity, seed, partition_count, segment_bytes, segment_count } = *self;
        [VERSION, identity, seed, partition_count, segment_bytes, segment_count]
    }

    fn encode(&self) -> Vec<u8> {
        let mut bytes = vec![0; BLOCK_LENGTH];
        bytes[..8].copy_from_slice(&MAGIC);
        for (number, at) in self.numbers().into_iter().zip((8..).step_by(8)) {
            bytes[at..at + 8].copy_from_slice(&number.to_le_bytes());
        }
        let checksum = kv::log::checksum(&bytes[..56]);
        bytes[56..60].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"));
        let is_genuine =
            bytes[..8] == MAGIC && bytes[56..60] == kv::log::checksum(&bytes[..56]).to_le_bytes();
        (is_genuine && number(8) == VERSION).then(|| Self {
            identity: number(16),
            seed: number(24),
            partition_count: number(32),
            segment_bytes: number(40),
            segment_count: number(48),
        })
    }

    /// Reads the superblock of an open file that holds one, or writes one to an empty file.
    pub(super) fn open(
        path: &Path,
        bytes: u64,
        partition_count: u64,
        random: &Random,
    ) -> Result<Self, OpenError> {
        let system = |action| move |source| OpenError::System { action, path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(system("open"))?;
        let mut first = vec![0; BLOCK_LENGTH];
        file.read_exact_at(&mut first, 0).map_err(system("read"))?;
        let (superblock, is_new) = Self::read_or_new(&mut first, path, bytes, partition_count, random)?;
        if is_new {
            write(&file, &first).map_err(system("write"))?;
        }
        Ok(superblock)
    }

    /// The superblock in the first block of a file, or a new one in a block of zeros. Returns whether it is new, and
    /// must be written.
    pub(super) fn read_or_new(
        first: &mut [u8],
        path: &Path,
        bytes: u64,
        partition_count: u64,
        random: &Random,
    ) -> Result<(Self, bool), OpenError> {
        if first.iter().all(|&byte| byte == 0) {
            check_size(path, bytes, partition_count)?;
            let superblock = Self::new(bytes, partition_count, random).expect("it has that size");
            first.copy_from_slice(&superblock.encode());
            return Ok((superblock, true));
        }
        let found = Self::decode(first).ok_or_else(|| OpenError::WrongKind {
            path: path.to_owned(),
            is: "no key-value file, and not empty",
            remedy: "name another one",
        })?;
        let end = BLOCK_BYTES + found.partition_count * found.segment_count * found.segment_bytes;
        if end > bytes {
            return Err(OpenError::TooSmall { path: path.to_owned(), bytes, bytes_min: end });
        }
        if found.partition_count != partition_count {
            return Err(OpenError::OtherPartitions {
                path: path.to_owned(),
                has: found.partition_count,
                wanted: partition_count,
            });
        }
        Ok((found, false))
    }
}

/// Minimum file size for this many partitions, bytes.
pub(crate) const fn bytes_min(partition_count: u64) -> u64 {
    let each = SEGMENT_COUNT_MIN * *SEGMENT_BYTES.start();
    BLOCK_BYTES.saturating_add(partition_count.saturating_mul(each))
}

/// Checks that a file of this many bytes suffices for this many partitions.
pub(crate) fn check_size(path: &Path, bytes: u64, partition_count: u64) -> Result<(), OpenError> {
    let bytes_min = bytes_min(partition_count);
    if bytes < bytes_min {
        return Err(OpenError::TooSmall { path: path.to_owned(), bytes, bytes_min });
    }
    Ok(())
}

/// Whether a file begins like a superblock of any version, damaged or not.
pub(crate) fn is_in(file: &File) -> io::Result<bool> {
    let mut first = [0; MAGIC.len()];
    match file.read_exact_at(&mut first, 0) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        result => result.map(|()| first == MAGIC),
    }
}

/// Whether a file holds zeroes only. Holes are skipped where the file system reports them.
pub(crate) fn is_zero(file: &File) -> io::Result<bool> {
    let mut bytes = vec![0; 1 << 20];
    let mut at = 0;
    loop {
        at = match rustix::fs::seek(file, SeekFrom::Data(at)) {
            Ok(at) => at,
            Err(Errno::NXIO) => return Ok(true),
            Err(Errno::INVAL) => at,
            Err(errno) => return Err(errno.into()),
        };
        let count = file.read_at(&mut bytes, at)?;
        if count == 0 {
            return Ok(true);
        }
        if bytes[..count].iter().any(|&byte| byte != 0) {
            return Ok(false);
        }
        at += count as u64;
    }
}

/// The file's name is durable already, if the target has created it.
fn write(file: &File, first: &[u8]) -> io::Result<()> {
    file.write_all_at(first, 0)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_divided_once_and_what_is_no_such_file_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pairs");
        let file = File::create(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let open = |path, bytes, count| Superblock::open(path, bytes, count, &Random::System);
        let made = open(&path, 64 << 20, 2).unwrap();
        assert_eq!((made.segment_bytes, made.segment_count), (520_192, 64));
        assert_eq!(open(&path, 64 << 20, 2).unwrap(), made);
        let refusal = |bytes, count| open(&path, bytes, count).unwrap_err().to_string();
        assert!(refusal(64 << 20, 3).contains("2 threads"), "{}", refusal(64 << 20, 3));
        assert!(refusal(32 << 20, 2).contains("63.5M") || refusal(32 << 20, 2).contains("at least"));
        file.write_all_at(&[1], 100).unwrap();
        file.write_all_at(&[0; 8], 0).unwrap();
        assert!(refusal(64 << 20, 2).contains("not empty"));
        let second = place.path().join("small");
        File::create(&second).unwrap().set_len(1 << 20).unwrap();
        assert!(open(&second, 1 << 20, 4).is_err());
        for count in 1..100 {
            assert!(Superblock::new(bytes_min(count), count, &Random::System).is_some());
            assert!(Superblock::new(bytes_min(count) - 1, count, &Random::System).is_none());
        }
    }
}

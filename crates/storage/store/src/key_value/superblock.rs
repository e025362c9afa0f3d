//! The superblock of a key-value file: its division into partitions, and settings that must not change between starts.
//!
//! ```text
//! superblock │ superblock │ of each log: superblock │ superblock │ segments of log 0 │ segments of log 1 │ …
//! ```
//!
//! The two copies of it are equal. A new file gets them first; they say that it is divided once its logs' superblocks
//! are durable, so that those are never missing but by damage.

use std::collections::BTreeSet;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use kv::log::{LogSettings, SEGMENT_COUNT_MIN, SUPERBLOCK_COUNT, Sync};
use rustix::fs::SeekFrom;
use rustix::io::Errno;

use super::random::Random;
use super::sectors::{SECTOR_BYTES, read_around};
use crate::open_error::OpenError;

/// Size of a superblock, and unit of the logs' reads and writes, bytes.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// As above, as a buffer length.
const BLOCK_LENGTH: usize = 4096;

const MAGIC: [u8; 8] = *b"nvlanekv";
/// Since version 3 writes list the names of the keys written before, since version 4 values may take two segments.
/// Earlier files are converted when they are opened.
const VERSION: u64 = 4;
const VERSIONS_BEFORE: std::ops::Range<u64> = 2..VERSION;

/// Offsets of the copies, and the length of both together.
const COPIES: [u64; 2] = [0, BLOCK_BYTES];
const COPIES_LENGTH: usize = 2 * BLOCK_LENGTH;

/// Length of the superblocks of a log.
const LOG_LENGTH: usize = SUPERBLOCK_COUNT * BLOCK_LENGTH;

/// Segments of a partition's log, unless their size reaches a limit: the more there are, the less is kept free for
/// cleaning, but each has a header.
const SEGMENT_COUNT: u64 = 128;
/// Half as many before they are shorter than this, bytes.
const SEGMENT_COUNT_SMALL: u64 = SEGMENT_COUNT / 2;
const SEGMENT_BYTES_SMALL: u64 = 256 << 10;
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
        let (share, segment_bytes) = divided(bytes, partition_count);
        let segment_count = share / segment_bytes;
        let (identity, seed) = (random.draw(), random.hash_seed());
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
            superblock_start: head_bytes(partition),
            start: self.start() + partition * self.segment_count * self.segment_bytes,
            segment_bytes: self.segment_bytes,
            segment_count: self.segment_count,
            block_bytes: BLOCK_BYTES,
            sync,
        }
    }

    /// The first byte of the first segment.
    fn start(&self) -> u64 {
        head_bytes(self.partition_count)
    }

    /// One past the last segment.
    pub(super) fn end(&self) -> u64 {
        self.start() + self.partition_count * self.segment_count * self.segment_bytes
    }

    /// Encodes both copies, which say whether the file is divided.
    fn encode(&self, is_divided: bool, into: &mut [u8]) {
        let Self { identity, seed, partition_count, segment_bytes, segment_count } = *self;
        let numbers =
            [VERSION, identity, seed, partition_count, segment_bytes, segment_count, is_divided.into()];
        into.fill(0);
        into.chunks_mut(BLOCK_LENGTH).for_each(|copy| kv::log::encode_numbers(MAGIC, &numbers, copy));
    }

    /// Encodes the superblocks of all logs.
    fn encode_logs(&self, into: &mut [u8]) {
        for (log, identity) in into.chunks_mut(LOG_LENGTH).zip(self.identity..) {
            kv::log::create(identity, log);
        }
    }

    /// Decodes one copy.
    fn decode(bytes: &[u8]) -> Option<Decoded> {
        let [version, identity, seed, partition_count, segment_bytes, segment_count, is_divided] =
            kv::log::decode_numbers(MAGIC, bytes)?;
        let superblock = Self { identity, seed, partition_count, segment_bytes, segment_count };
        let (is_divided, is_current) = (is_divided == 1, version == VERSION);
        let is_known = is_current || VERSIONS_BEFORE.contains(&version);
        is_known.then_some(Decoded { superblock, is_divided, is_current })
    }

    /// Whether a copy is of a later version.
    fn is_later(bytes: &[u8]) -> bool {
        let numbers: Option<[u64; 7]> = kv::log::decode_numbers(MAGIC, bytes);
        numbers.is_some_and(|[version, ..]| version > VERSION)
    }

    /// Reads the superblock of an open file that holds one, or divides an empty file.
    pub(super) fn open(
        path: &Path,
        bytes: u64,
        partition_count: u64,
        random: &Random,
    ) -> Result<Self, OpenError> {
        let system = |action| move |source| OpenError::System { action, path: path.to_owned(), source };
        let file = OpenOptions::new().read(true).write(true).open(path).map_err(system("open"))?;
        let mut copies = vec![0; COPIES_LENGTH];
        file.read_exact_at(&mut copies, 0).map_err(system("read"))?;
        let found = Self::read(&copies, path)?;
        let superblock = match found {
            Some(Copies { superblock, .. }) => superblock,
            None => Self::divide(path, bytes, partition_count, random)?,
        };
        superblock.check(path, bytes, partition_count)?;
        if let Some(Copies { damaged: Some(offset), .. }) = found {
            tracing::warn!(
                path = %path.display(), offset,
                "one of the two superblocks of a key-value file is damaged, and is written again"
            );
        }
        if found.is_some_and(|found| !found.is_current) {
            tracing::info!(
                path = %path.display(),
                "a key-value file of an earlier version is written on: earlier versions of nvlane open it no more"
            );
        }
        let is_divided = found.is_some_and(|found| found.is_divided);
        if !is_divided {
            let mut logs = vec![0; head_length(partition_count) - COPIES_LENGTH];
            superblock.encode_logs(&mut logs);
            superblock.encode(false, &mut copies);
            write(&file, &copies, 0).map_err(system("write"))?;
            write(&file, &logs, COPIES_LENGTH as u64).map_err(system("write"))?;
        }
        if !is_divided || found.is_some_and(|found| found.damaged.is_some() || !found.is_current) {
            superblock.write_copies(&file).map_err(system("write"))?;
        }
        Ok(superblock)
    }

    /// The superblock of a file of this many bytes that need not be whole. Sectors that the disk cannot read are added
    /// to `unreadable`.
    pub(super) fn read_damaged(
        file: &File,
        path: &Path,
        bytes: u64,
        unreadable: &mut BTreeSet<u64>,
    ) -> Result<Copies, OpenError> {
        let system = |action| move |source| OpenError::System { action, path: path.to_owned(), source };
        let mut copies = vec![0; COPIES_LENGTH];
        read_around(file, 0, &mut copies, unreadable).map_err(system("read"))?;
        if unreadable.len() * SECTOR_BYTES >= COPIES_LENGTH {
            return Err(system("read")(Errno::IO.into()));
        }
        let count = usize::try_from(bytes).unwrap_or(COPIES_LENGTH).min(COPIES_LENGTH);
        if count == 0 {
            return Err(OpenError::Empty {
                name: path.display().to_string(),
                remedy: "nothing is left of it",
            });
        }
        check_begun(&copies[..count], path)?;
        Self::read(&copies, path)?.ok_or_else(|| OpenError::WrongKind {
            path: path.to_owned(),
            is: "all zeros where its superblock should be",
            remedy: "it was never used, or its beginning is lost",
        })
    }

    /// Writes both copies to a file whose logs are durable.
    pub(super) fn write_copies(&self, file: &File) -> io::Result<()> {
        let mut copies = vec![0; COPIES_LENGTH];
        self.encode(true, &mut copies);
        write(file, &copies, 0)
    }

    /// As [`open`](Self::open), on a simulated disk: `head` is everything before the first segment.
    pub(super) fn open_simulated(
        head: &mut [u8],
        path: &Path,
        bytes: u64,
        partition_count: u64,
        random: &Random,
    ) -> Result<Self, OpenError> {
        let (copies, logs) = head.split_at_mut(COPIES_LENGTH);
        let superblock = match Self::read(copies, path)? {
            Some(found) => {
                found.superblock.encode(true, copies);
                found.superblock
            }
            None => {
                let superblock = Self::divide(path, bytes, partition_count, random)?;
                superblock.encode(true, copies);
                superblock.encode_logs(logs);
                superblock
            }
        };
        superblock.check(path, bytes, partition_count)?;
        Ok(superblock)
    }

    /// The superblock of a file that begins with these copies; `None` if it is empty.
    fn read(copies: &[u8], path: &Path) -> Result<Option<Copies>, OpenError> {
        if copies.iter().all(|&byte| byte == 0) {
            return Ok(None);
        }
        let refuse = |is, remedy| Err(OpenError::WrongKind { path: path.to_owned(), is, remedy });
        let (first, second) = copies.split_at(BLOCK_LENGTH);
        if Self::is_later(first) || Self::is_later(second) {
            return refuse("a key-value file of a later version of nvlane", "use that version");
        }
        let (found, damaged) = match (Self::decode(first), Self::decode(second)) {
            (Some(first), Some(second)) => {
                let is_divided = first.is_divided || second.is_divided;
                let is_current = first.is_current && second.is_current;
                (Some(Decoded { is_divided, is_current, ..first }), None)
            }
            (Some(found), None) => (Some(found), Some(BLOCK_BYTES)),
            (None, second) => (second, Some(0)),
        };
        match found {
            Some(Decoded { superblock, is_divided, is_current }) => {
                Ok(Some(Copies { superblock, is_divided, is_current, damaged }))
            }
            None if first[..8] == MAGIC && first[8..16] == 1_u64.to_le_bytes() => {
                refuse("a key-value file of an earlier version of nvlane", "copy the pairs with that version")
            }
            None if first[..8] == MAGIC || second[..8] == MAGIC => {
                refuse("damaged: both copies of its superblock", "bring back a copy of the file")
            }
            None => refuse("no key-value file, and not empty", "name another one"),
        }
    }

    /// A new superblock, if the file has room for that many partitions.
    fn divide(path: &Path, bytes: u64, partition_count: u64, random: &Random) -> Result<Self, OpenError> {
        check_size(path, bytes, partition_count)?;
        Ok(Self::new(bytes, partition_count, random).expect("it has that size"))
    }

    fn check(&self, path: &Path, bytes: u64, partition_count: u64) -> Result<(), OpenError> {
        let path = path.to_owned();
        if self.end() > bytes {
            return Err(OpenError::PairsCut { path, bytes, bytes_min: self.end() });
        }
        if self.partition_count != partition_count {
            let (has, wanted) = (self.partition_count, partition_count);
            return Err(OpenError::OtherPartitions { path, has, wanted });
        }
        Ok(())
    }
}

/// A copy of a superblock.
#[derive(Clone, Copy)]
struct Decoded {
    superblock: Superblock,
    is_divided: bool,
    is_current: bool,
}

/// The copies of a superblock.
#[derive(Clone, Copy)]
pub(super) struct Copies {
    pub(super) superblock: Superblock,
    is_divided: bool,
    /// Whether both are of the present version.
    is_current: bool,
    /// The first byte of the one that is damaged.
    pub(super) damaged: Option<u64>,
}

/// The share of each partition of a file of this many bytes, and the bytes of a segment.
fn divided(bytes: u64, partition_count: u64) -> (u64, u64) {
    let share = bytes.saturating_sub(head_bytes(partition_count)) / partition_count.max(1);
    let small = (share / SEGMENT_COUNT_SMALL).min(SEGMENT_BYTES_SMALL);
    let segment_bytes = (share / SEGMENT_COUNT).max(small) / BLOCK_BYTES * BLOCK_BYTES;
    (share, segment_bytes.clamp(*SEGMENT_BYTES.start(), *SEGMENT_BYTES.end()))
}

/// The longest value of a file of this many bytes.
pub(super) fn value_bytes_max(bytes: u64, partition_count: u64) -> usize {
    let (share, segment_bytes) = divided(bytes, partition_count);
    kv::log::value_bytes_max(segment_bytes, share / segment_bytes)
}

/// Bytes before the first segment of a file of this many partitions, and before the superblocks of the log of this
/// number.
const fn head_bytes(partition_count: u64) -> u64 {
    partition_count.saturating_mul(LOG_LENGTH as u64).saturating_add(COPIES_LENGTH as u64)
}

/// As above, as a buffer length.
pub(super) fn head_length(partition_count: u64) -> usize {
    usize::try_from(head_bytes(partition_count)).expect("few blocks for each")
}

/// The size that a file is divided for, if it has a superblock.
///
/// # Errors
/// If it is shorter, or was cut within its first superblock.
pub(crate) fn divided_bytes(path: &Path, file: &File, bytes: u64) -> Result<Option<u64>, OpenError> {
    let system = |source| OpenError::System { action: "read", path: path.to_owned(), source };
    let mut copies = vec![0; usize::try_from(bytes).unwrap_or(COPIES_LENGTH).min(COPIES_LENGTH)];
    file.read_exact_at(&mut copies, 0).map_err(system)?;
    check_begun(&copies, path)?;
    let found = copies.chunks(BLOCK_LENGTH).find_map(Superblock::decode);
    match found.map(|found| found.superblock.end()) {
        Some(end) if end > bytes => Err(OpenError::PairsCut { path: path.to_owned(), bytes, bytes_min: end }),
        end => Ok(end),
    }
}

/// Checks that a file that begins with these bytes, and has no more of them than its superblocks, is not the rest of a
/// key-value file that was cut within its first superblock.
fn check_begun(copies: &[u8], path: &Path) -> Result<(), OpenError> {
    let is_begun = copies.starts_with(&MAGIC) && copies.len() < COPIES_LENGTH;
    if is_begun && copies.chunks(BLOCK_LENGTH).all(|copy| Superblock::decode(copy).is_none()) {
        return Err(OpenError::WrongKind {
            path: path.to_owned(),
            is: "a key-value file that was cut: nothing but a part of its superblock is left",
            remedy: "bring back a copy of the file",
        });
    }
    Ok(())
}

/// Minimum file size for this many partitions, bytes.
pub(crate) const fn bytes_min(partition_count: u64) -> u64 {
    let each = SEGMENT_COUNT_MIN * *SEGMENT_BYTES.start();
    head_bytes(partition_count).saturating_add(partition_count.saturating_mul(each))
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
    for offset in COPIES {
        match file.read_exact_at(&mut first, offset) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            result => result?,
        }
        if first == MAGIC {
            return Ok(true);
        }
    }
    Ok(false)
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
fn write(file: &File, bytes: &[u8], offset: u64) -> io::Result<()> {
    file.write_all_at(bytes, offset)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The longest value is some 512th of a partition's share, and segments are many, but not short.
    #[test]
    fn files_of_all_sizes_are_divided_into_segments_that_hold_four_of_the_longest_values() {
        for (bytes, partition_count) in [
            (1 << 20, 1),
            (8 << 20, 1),
            (16 << 20, 1),
            (64 << 20, 1),
            (64 << 20, 2),
            (1 << 30, 3),
            (1 << 40, 1),
        ] {
            let made = Superblock::new(bytes, partition_count, &Random::System).unwrap();
            let Superblock { segment_bytes, segment_count, .. } = made;
            assert!(made.end() <= bytes && made.end() > bytes / 10 * 9, "{bytes}");
            let longest = value_bytes_max(bytes, partition_count) as u64;
            assert_eq!(longest, made.log(0, Sync::Always, 0).value_bytes_max() as u64);
            assert!(longest <= segment_bytes / 4 && longest >= segment_bytes / 8, "{made:?}");
            let share = segment_bytes * segment_count;
            assert!(longest >= (share / 513).min(128 << 20), "{made:?}: {longest}");
        }
    }

    #[test]
    fn a_file_that_was_cut_anywhere_is_refused() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pairs");
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path).unwrap();
        let bytes = bytes_min(1);
        file.set_len(bytes).unwrap();
        let made = Superblock::open(&path, bytes, 1, &Random::System).unwrap();
        divided_bytes(&path, &file, bytes).unwrap();
        for length in (8..700).chain([4095, 4096, 4097, 8191, 8192, bytes - 1]).rev() {
            file.set_len(length).unwrap();
            let refusal = divided_bytes(&path, &file, length).unwrap_err().to_string();
            assert!(refusal.contains("was cut"), "{length}: {refusal}");
            match Superblock::read_damaged(&file, &path, length, &mut BTreeSet::new()) {
                Ok(found) => assert_eq!(found.superblock, made, "{length}"),
                Err(refusal) => assert!(length < 68 && refusal.to_string().contains("was cut"), "{refusal}"),
            }
        }
    }

    #[test]
    fn a_file_is_divided_once_and_what_is_no_such_file_is_left_alone() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("pairs");
        let file = File::create_new(&path).unwrap();
        file.set_len(64 << 20).unwrap();
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let open = |path, bytes, count| Superblock::open(path, bytes, count, &Random::System);
        let made = open(&path, 64 << 20, 2).unwrap();
        assert_eq!((made.segment_bytes, made.segment_count), (262_144, 127));
        assert_eq!(open(&path, 64 << 20, 2).unwrap(), made);
        let refusal = |bytes, count| open(&path, bytes, count).unwrap_err().to_string();
        assert!(refusal(64 << 20, 3).contains("2 threads"), "{}", refusal(64 << 20, 3));
        assert!(
            refusal(32 << 20, 2).contains("has 33554432 bytes, and its superblock says"),
            "{}",
            refusal(32 << 20, 2)
        );
        let mut head = vec![0; head_length(2)];
        file.read_exact_at(&mut head, 0).unwrap();
        for copy in COPIES {
            file.write_all_at(&[1], copy + 20).unwrap();
            assert_eq!(open(&path, 64 << 20, 2).unwrap(), made, "the other copy suffices");
            let mut healed = vec![0; head.len()];
            file.read_exact_at(&mut healed, 0).unwrap();
            assert!(healed == head, "the damaged copy is written again");
        }
        // A file of the version before is opened, and is of this version then.
        let mut old = vec![0; COPIES_LENGTH];
        made.encode(true, &mut old);
        let set_version = |copy: &mut [u8], version| {
            let mut numbers = kv::log::decode_numbers::<7>(MAGIC, copy).unwrap();
            numbers[0] = version;
            kv::log::encode_numbers(MAGIC, &numbers, copy);
        };
        old.chunks_mut(BLOCK_LENGTH).for_each(|copy| set_version(copy, VERSIONS_BEFORE.start));
        file.write_all_at(&old, 0).unwrap();
        assert_eq!(open(&path, 64 << 20, 2).unwrap(), made);
        let mut renewed = vec![0; head.len()];
        file.read_exact_at(&mut renewed, 0).unwrap();
        assert!(renewed == head);
        // One copy of a later version is enough to refuse it: that version has begun to write the file.
        for copy in COPIES {
            let mut later = head[..COPIES_LENGTH].to_vec();
            set_version(&mut later[copy as usize..][..BLOCK_LENGTH], VERSION + 1);
            file.write_all_at(&later, 0).unwrap();
            assert!(refusal(64 << 20, 2).contains("later version"));
        }
        file.write_all_at(&head, 0).unwrap();
        // The power failed while the file was divided.
        let mut half = vec![0; COPIES_LENGTH];
        made.encode(false, &mut half);
        file.write_all_at(&half, 0).unwrap();
        file.write_all_at(&vec![0; head.len() - half.len()], half.len() as u64).unwrap();
        assert_eq!(open(&path, 64 << 20, 2).unwrap(), made);
        file.read_exact_at(&mut half, 0).unwrap();
        assert!(half == head[..half.len()]);
        for copy in COPIES {
            file.write_all_at(&[1], copy + 20).unwrap();
        }
        assert!(refusal(64 << 20, 2).contains("both copies"));
        file.write_all_at(&MAGIC, 0).unwrap();
        file.write_all_at(&1_u64.to_le_bytes(), 8).unwrap();
        assert!(refusal(64 << 20, 2).contains("earlier version"));
        for copy in COPIES {
            file.write_all_at(&[0; 8], copy).unwrap();
        }
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

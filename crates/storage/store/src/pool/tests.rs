//! Pools in directories of this machine. Without a file system that shares blocks, a plant copies in its place; the real calls
//! are tested in the directory of `NVLANE_REFLINK_DIR`, on XFS or btrfs, where there is one.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, Ordering};

use linux::whole_file::FileCalls;
use tempfile::TempDir;

use super::*;
use crate::Spec;
use crate::testing::open_in_time;

/// A file system whose files can, or cannot, share blocks.
struct Sharing(bool);

impl FileCalls for Sharing {
    fn write(&mut self, path: &Path, record: &[u8]) -> io::Result<()> {
        VolumeFiles.write(path, record)
    }
    fn sync(&mut self, path: &Path) -> io::Result<()> {
        VolumeFiles.sync(path)
    }
    fn link(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        VolumeFiles.link(from, to)
    }
    fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        VolumeFiles.rename(from, to)
    }
    fn remove(&mut self, path: &Path) -> io::Result<()> {
        VolumeFiles.remove(path)
    }
}

impl PoolCalls for Sharing {
    fn fill(&mut self, path: &Path, data: &NewData) -> io::Result<()> {
        match data {
            NewData::Zeroes { .. } => VolumeFiles.fill(path, data),
            NewData::Shared { .. } if !self.0 => Err(io::Error::other(Lacks::Reflink)),
            NewData::Shared { with, bytes, .. } => {
                let file = File::options().write(true).open(path)?;
                file.write_all_at(&std::fs::read(with)?, 0)?;
                file.set_len(*bytes)
            }
        }
    }
    fn grow(&mut self, path: &Path, bytes: u64) -> io::Result<()> {
        VolumeFiles.grow(path, bytes)
    }
    fn list(&mut self, directory: &Path) -> io::Result<Vec<PoolEntry>> {
        VolumeFiles.list(directory)
    }
    fn lock(&mut self, directory: &Path) -> io::Result<Option<File>> {
        VolumeFiles.lock(directory)
    }
    fn is_in_use(&mut self, path: &Path) -> io::Result<bool> {
        VolumeFiles.is_in_use(path)
    }
}

/// A directory whose file system has extended attributes: that of this program.
fn directory() -> TempDir {
    let beside = std::env::current_exe().unwrap();
    tempfile::tempdir_in(beside.parent().unwrap()).unwrap()
}

fn pool(directory: &TempDir) -> Pool {
    Pool::with_calls(directory.path(), None, Box::new(Sharing(true)))
}

/// A directory on a file system that shares blocks, if the caller of the tests has one.
fn sharing_directory() -> Option<TempDir> {
    let place = std::env::var_os("NVLANE_REFLINK_DIR");
    if place.is_none() {
        eprintln!("skipped: NVLANE_REFLINK_DIR names no directory on XFS or btrfs");
    }
    Some(tempfile::tempdir_in(place?).unwrap())
}

fn write(directory: &TempDir, name: &str, byte: u8) {
    let file = File::options().write(true).open(directory.path().join(name)).unwrap();
    file.write_all_at(&[byte; 4096], 0).unwrap();
}

fn first(directory: &TempDir, name: &str) -> u8 {
    std::fs::read(directory.path().join(name)).unwrap()[0]
}

fn names(pool: &mut Pool) -> Vec<String> {
    pool.list().unwrap().into_iter().map(|volume| volume.record.name).collect()
}

#[test]
fn a_full_file_system_shares_blocks_if_its_kind_does() {
    let (xfs, ext4) = (|| Some(0x5846_5342), || Some(0xef53));
    let ended = |errno: Errno| io::Result::<()>::Err(errno.into());
    assert!(calls::shares(&Ok(()), ext4));
    assert!(calls::shares(&ended(Errno::NOSPC), xfs) && calls::shares(&ended(Errno::DQUOT), xfs));
    assert!(!calls::shares(&ended(Errno::NOSPC), ext4) && !calls::shares(&ended(Errno::NOSPC), || None));
    assert!(!calls::shares(&ended(Errno::OPNOTSUPP), xfs), "XFS without reflink");
}

#[test]
fn a_volume_is_made_grown_and_removed() {
    let directory = directory();
    let mut pool = pool(&directory);
    let made = pool.create("db", 1 << 20, 512).unwrap();
    // Some file systems have a block for the record.
    let of_record = made.allocated_bytes;
    assert!(of_record <= 4096);
    assert_eq!((made.bytes, made.record.block_bytes), (1 << 20, 512));
    assert!(made.record.created_s > 1_700_000_000 && made.record.source.is_none());
    assert_eq!(std::fs::metadata(directory.path().join("db")).unwrap().mode() & 0o777, 0o600);
    assert_eq!(pool.find("db", VolumeKind::Volume).unwrap(), made);
    write(&directory, "db", 7);
    let grown = pool.resize("db", 2 << 20).unwrap();
    assert_eq!((grown.bytes, grown.allocated_bytes), (2 << 20, of_record + 4096));
    assert_eq!(grown.record, made.record);
    assert_eq!(pool.resize("db", 2 << 20).unwrap(), grown, "the same size");
    let usage = pool.usage().unwrap();
    assert_eq!(
        (usage.committed_bytes, usage.allocated_bytes, usage.volume_count),
        (2 << 20, of_record + 4096, 1)
    );
    assert!(usage.free_bytes > 0 && usage.total_bytes > usage.free_bytes);
    pool.delete("db", VolumeKind::Volume).unwrap();
    assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 0);
}

#[test]
fn clones_and_snapshots_keep_the_content_of_their_moment() {
    let directory = directory();
    let mut pool = pool(&directory);
    let volume = pool.create("db", 8192, 4096).unwrap();
    write(&directory, "db", 1);
    let snapshot = pool.snapshot("monday", "db").unwrap();
    write(&directory, "db", 2);
    let clone = pool.clone_volume("clone", "db", Some(16384)).unwrap();
    let other = pool.clone_volume("other", "monday", None).unwrap();
    assert_eq!((clone.bytes, other.bytes, snapshot.bytes), (16384, 8192, 8192));
    let from = |of: &Volume| of.record.source.as_ref().map(|source| (source.name.clone(), source.uuid));
    assert_eq!(from(&clone), Some(("db".into(), volume.record.uuid)));
    assert_eq!(from(&snapshot), from(&clone));
    assert_eq!(from(&other), Some(("monday".into(), snapshot.record.uuid)));
    let content = |name| first(&directory, name);
    assert_eq!(["db", "monday", "clone", "other"].map(content), [2, 1, 2, 1]);
    pool.resize("db", 16384).unwrap();
    let rolled_back = pool.roll_back("monday").unwrap();
    assert_eq!((rolled_back.bytes, content("db")), (8192, 1));
    assert_eq!(rolled_back.record, volume.record, "it is the same volume");
    pool.delete("db", VolumeKind::Volume).unwrap();
    assert_eq!(names(&mut pool), ["clone", "monday", "other"]);
    // Another volume of that name is not the one that the snapshot was made of.
    pool.create("db", 4096, 4096).unwrap();
    assert!(matches!(pool.roll_back("monday"), Err(PoolError::Missing { .. })));
    assert!(matches!(pool.delete("monday", VolumeKind::Volume), Err(PoolError::Missing { .. })));
    pool.delete("monday", VolumeKind::Snapshot).unwrap();
    assert_eq!(content("other"), 1);
}

#[test]
fn what_is_there_already_is_told_with_whether_it_is_the_same() {
    let directory = directory();
    let mut pool = pool(&directory);
    pool.create("db", 8192, 4096).unwrap();
    pool.snapshot("monday", "db").unwrap();
    pool.clone_volume("clone", "monday", Some(16384)).unwrap();
    let is_same = |result: Result<Volume, PoolError>| match result {
        Err(PoolError::Exists { is_same, .. }) => is_same,
        other => panic!("{other:?}"),
    };
    assert!(is_same(pool.create("db", 8192, 4096)));
    assert!(!is_same(pool.create("db", 4096, 4096)));
    assert!(!is_same(pool.create("db", 8192, 512)));
    assert!(!is_same(pool.create("monday", 8192, 4096)));
    assert!(is_same(pool.snapshot("monday", "db")));
    assert!(!is_same(pool.snapshot("monday", "clone")));
    assert!(!is_same(pool.snapshot("db", "clone")));
    assert!(is_same(pool.clone_volume("clone", "monday", Some(16384))));
    assert!(is_same(pool.clone_volume("clone", "monday", None)));
    assert!(!is_same(pool.clone_volume("clone", "monday", Some(8192))));
    assert!(!is_same(pool.clone_volume("clone", "db", None)));
    pool.delete("monday", VolumeKind::Snapshot).unwrap();
    assert!(is_same(pool.clone_volume("clone", "monday", None)), "also when its source is gone");
    pool.snapshot("monday", "db").unwrap();
    assert!(!is_same(pool.clone_volume("clone", "monday", None)), "another one of that name");
}

#[test]
fn a_refusal_says_what_would_be_right_and_leaves_nothing() {
    let directory = directory();
    let place = directory.path().to_str().unwrap().to_owned();
    let mut pool = Pool::with_calls(directory.path(), Some(1 << 20), Box::new(Sharing(false)));
    pool.create("db", 1 << 19, 4096).unwrap();
    std::fs::write(directory.path().join("notes"), "mine").unwrap();
    std::fs::write(directory.path().join("old.0123456789abcdef.new"), "left").unwrap();
    let mut refusals = Vec::new();
    let mut refuse = |result: Result<Volume, PoolError>| {
        refusals.push(result.unwrap_err().to_string().replace(&place, "/pool"));
    };
    refuse(pool.create("a/b", 4096, 4096));
    refuse(pool.create("a", 0, 4096));
    refuse(pool.create("a", 5000, 4096));
    refuse(pool.create("a", 4096, 1000));
    refuse(pool.create("a", (1 << 19) + 4096, 4096));
    refuse(pool.create("notes", 4096, 4096));
    refuse(pool.resize("db", 4096));
    refuse(pool.resize("none", 4096));
    refuse(pool.resize("db", 2 << 20));
    refuse(pool.clone_volume("a", "none", None));
    refuse(pool.clone_volume("a", "db", Some(4096)));
    refuse(pool.clone_volume("a", "db", None));
    refuse(pool.snapshot("a", "db"));
    refuse(pool.snapshot("a", "none"));
    refuse(pool.roll_back("db"));
    refuse(Pool::new(Path::new("/no/such/pool"), None).create("a", 4096, 4096));
    insta::assert_snapshot!(refusals.join("\n"), @r#"
    "a/b" is no name of a volume: write up to 128 letters, digits, dots, hyphens and underscores, the first a letter or digit, without .new at the end
    a volume of no bytes
    5000 bytes are not whole blocks of 4096: take 8192
    a logical block cannot have 1000 bytes: take a power of two from 512 to 65536
    516K more would take the pool past its quota: 512K of 1M are committed
    /pool/notes is no volume: it is a file that no pool has made: file:PATH serves any file
    db has 512K, and what lies behind 4K would be lost: volumes only grow
    no volume none
    1536K more would take the pool past its quota: 512K of 1M are committed
    no source none
    4K is less than its source has: take 512K or more
    the file system of /pool shares no blocks between files, and a copy is never made in its place: keep pools with clones and snapshots on XFS (mkfs.xfs -m reflink=1) or btrfs
    the file system of /pool shares no blocks between files, and a copy is never made in its place: keep pools with clones and snapshots on XFS (mkfs.xfs -m reflink=1) or btrfs
    no volume none
    no snapshot db
    cannot lock the pool /no/such/pool: No such file or directory (os error 2)
    "#);
    assert_eq!(names(&mut pool), ["db"]);
    assert_eq!(
        std::fs::read_dir(directory.path()).unwrap().count(),
        2,
        "what was left is gone, and notes are not"
    );
}

#[test]
fn the_real_calls_never_copy() {
    let directory = directory();
    let mut pool = Pool::new(directory.path(), None);
    pool.create("db", 1 << 20, 4096).unwrap();
    write(&directory, "db", 1);
    let cloned = pool.clone_volume("clone", "db", None);
    assert_eq!(cloned.is_ok(), pool.can_share());
    if let Err(error) = cloned {
        assert!(
            matches!(&error, PoolError::Unsupported { message } if message.contains("reflink=1")),
            "{error}"
        );
        assert_eq!(std::fs::read_dir(directory.path()).unwrap().count(), 1, "nothing is left");
    }
}

#[test]
fn only_a_file_that_a_pool_has_made_is_a_volume() {
    let directory = directory();
    let mut pool = pool(&directory);
    pool.create("db", 8192, 4096).unwrap();
    let path = |name: &str| directory.path().join(name);
    assert!(volume_at(&path("db")).is_ok());
    std::fs::write(path("plain"), "x").unwrap();
    assert!(volume_at(&path("plain")).unwrap_err().contains("file:PATH"));
    assert!(volume_at(&path("none")).unwrap_err().contains("volume create"));
    assert!(volume_at(directory.path()).is_err());
    std::fs::rename(path("db"), path("renamed")).unwrap();
    assert!(volume_at(&path("renamed")).unwrap_err().contains("renamed"));
    std::os::unix::fs::symlink(path("renamed"), path("db")).unwrap();
    assert!(volume_at(&path("db")).is_err(), "a link is none");
    assert_eq!(names(&mut pool), [""; 0]);
}

#[test]
fn a_volume_that_is_served_stays_and_a_snapshot_is_served_for_reading() {
    let directory = directory();
    let mut pool = pool(&directory);
    pool.create("db", 8192, 512).unwrap();
    pool.snapshot("monday", "db").unwrap();
    let open = |name: &str| {
        let text = format!("pool:{}/{name}", directory.path().display());
        open_in_time(|| text.parse::<Spec>().unwrap().open(false))
    };
    let (store, reading) = (open("db").unwrap(), open("monday").unwrap());
    assert_eq!((store.block_bytes(), store.bytes(), store.is_read_only()), (512, 8192, false));
    assert!(reading.is_read_only());
    assert!(matches!(pool.delete("db", VolumeKind::Volume), Err(PoolError::InUse { .. })));
    assert!(matches!(pool.delete("monday", VolumeKind::Snapshot), Err(PoolError::InUse { .. })));
    assert!(matches!(pool.roll_back("monday"), Err(PoolError::InUse { .. })));
    pool.resize("db", 16384).unwrap();
    store.revalidate();
    assert_eq!(store.bytes(), 16384, "an open volume follows");
    drop((store, reading));
    pool.roll_back("monday").unwrap();
    pool.delete("monday", VolumeKind::Snapshot).unwrap();
    assert!(open("monday").is_err());
}

#[test]
fn a_quota_limits_what_a_pool_may_come_to() {
    let directory = directory();
    let with = |quota| Pool::with_calls(directory.path(), Some(quota), Box::new(Sharing(true)));
    let mut pool = with(160 << 10);
    pool.create("db", 64 << 10, 4096).unwrap();
    write(&directory, "db", 1);
    let kept = pool.snapshot("monday", "db").unwrap().allocated_bytes;
    let written = pool.find("db", VolumeKind::Volume).unwrap().allocated_bytes;
    let usage = pool.usage().unwrap();
    assert_eq!((usage.committed_bytes, usage.total_bytes), ((64 << 10) + kept, 160 << 10));
    let left = (160 << 10) - kept - written;
    assert_eq!((usage.available_bytes(), usage.left_bytes()), ((96 << 10) - kept, left));
    assert!(matches!(pool.create("a", 64 << 10, 4096), Err(PoolError::Quota { .. })));
    assert!(matches!(pool.clone_volume("a", "db", None), Err(PoolError::Quota { .. })));
    pool.create("a", usage.available_bytes(), 4096).unwrap();
    assert!(matches!(pool.snapshot("tuesday", "db"), Err(PoolError::Quota { .. })));
    // A quota below what is there allows no more, and takes nothing away.
    let mut pool = with(4096);
    assert!(matches!(pool.resize("db", 68 << 10), Err(PoolError::Quota { .. })));
    assert_eq!(pool.usage().unwrap().available_bytes(), 0);
    pool.roll_back("monday").unwrap();
}

#[test]
fn two_processes_in_one_pool_wait_for_each_other() {
    let directory = directory();
    std::thread::scope(|scope| {
        for of in 0..4 {
            let directory = &directory;
            scope.spawn(move || {
                for number in 0..8 {
                    pool(directory).create(&format!("v{of}-{number}"), 4096, 4096).unwrap();
                }
                assert!(matches!(
                    pool(directory).create("shared", 4096, 4096),
                    Ok(_) | Err(PoolError::Exists { .. })
                ));
            });
        }
    });
    assert_eq!(names(&mut pool(&directory)).len(), 33);
}

#[test]
fn thresholds_are_shares_or_sizes() {
    for (text, bytes) in [("10%", 100), ("0%", 0), ("99%", 990), ("512", 512), ("1K", 1024)] {
        let threshold: SpaceLow = text.parse().unwrap();
        assert_eq!((threshold.bytes(1000), threshold.to_string()), (bytes, text.to_owned()));
    }
    for text in ["100%", "-1%", "%", "x", "1.5%", ""] {
        assert!(text.parse::<SpaceLow>().is_err(), "{text}");
    }
}

/// Direct writes in flight are in a snapshot as a whole or not at all, and with each one all that ended before it began.
#[test]
fn a_snapshot_of_a_volume_that_is_written_is_of_one_moment() {
    const WRITERS: u64 = 3;
    const PLACES: u64 = 16;
    const LENGTH: u64 = 64 << 10;
    let Some(directory) = sharing_directory() else { return };
    let mut pool = Pool::new(directory.path(), None);
    pool.create("db", WRITERS * PLACES * LENGTH, 4096).unwrap();
    let (is_over, direct) = (AtomicBool::new(false), rustix::fs::OFlags::DIRECT.bits().cast_signed());
    std::thread::scope(|scope| {
        for writer in 0..WRITERS {
            let (directory, is_over) = (&directory, &is_over);
            scope.spawn(move || {
                let file = File::options().write(true).custom_flags(direct).open(directory.path().join("db"));
                let file = file.unwrap();
                let mut memory = vec![0_u8; 2 * LENGTH as usize];
                let start = memory.as_ptr().align_offset(4096);
                for count in 1_u64.. {
                    if is_over.load(Ordering::Relaxed) {
                        return;
                    }
                    let data = &mut memory[start..start + LENGTH as usize];
                    data.chunks_mut(8).for_each(|word| word.copy_from_slice(&count.to_le_bytes()));
                    file.write_all_at(data, (writer * PLACES + count % PLACES) * LENGTH).unwrap();
                }
            });
        }
        let mut changed = 0;
        let mut before = 0;
        for round in 0..40 {
            let name = format!("s{round}");
            let snapshot = pool.snapshot(&name, "db").unwrap();
            let content = std::fs::read(directory.path().join(&name)).unwrap();
            let mut sum = 0;
            for writer in 0..WRITERS {
                let at = (writer * PLACES * LENGTH) as usize;
                let places = content[at..at + (PLACES * LENGTH) as usize].chunks(LENGTH as usize);
                let mut counts: Vec<u64> = Vec::new();
                for place in places {
                    let count = u64::from_le_bytes(place[..8].try_into().unwrap());
                    assert!(place.chunks(8).all(|word| word == count.to_le_bytes()), "a write is torn");
                    counts.push(count);
                }
                let newest = *counts.iter().max().unwrap();
                for (at, count) in (0..PLACES).zip(&counts) {
                    let expected =
                        (0..PLACES).map(|back| newest.saturating_sub(back)).find(|n| n % PLACES == at);
                    let expected = if newest < PLACES && at > newest { Some(0) } else { expected };
                    assert_eq!(Some(*count), expected, "an earlier write is missing: {counts:?}");
                }
                sum += newest;
            }
            changed += u32::from(sum > before);
            before = sum;
            assert!(snapshot.record.source.is_some());
            pool.delete(&name, VolumeKind::Snapshot).unwrap();
        }
        is_over.store(true, Ordering::Relaxed);
        assert!(changed > 20, "the writers went on");
    });
}

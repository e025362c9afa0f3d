//! Data at addresses of more than 32 bits: every block has its own content, whatever is written a power of two away.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use host::{BlockRange, BlockingNamespace};
use reactor::EngineKind;
use wire::status::Status;

use crate::edges::status;
use crate::setup::{Rig, engines, options};

/// The first boundary: everything below is reached by other tests.
const FIRST_BIT: u32 = 29;

/// A namespace, and what was written to it.
struct Disk {
    host: BlockingNamespace,
    /// What the namespace is on, if that is a file.
    file: Option<File>,
    block_bytes: u64,
    block_count: u64,
    /// The content of each block that is not zero.
    written: BTreeMap<u64, Vec<u8>>,
}

impl Disk {
    fn new(rig: &Rig, path: &Path) -> Self {
        let host = rig.open(options());
        let (block_bytes, block_count) = {
            let namespace = host.namespace();
            (u64::from(namespace.lba_bytes()), namespace.block_count())
        };
        let file = File::open(path).ok();
        Self { host, file, block_bytes, block_count, written: BTreeMap::new() }
    }

    /// The first block behind each power of two of bytes and of blocks, and the end of the namespace.
    fn boundaries(&self) -> Vec<u64> {
        let of_bytes = (FIRST_BIT..u64::BITS).map(|bit| (1 << bit) / self.block_bytes);
        let of_blocks = (FIRST_BIT..u64::BITS).map(|bit| 1 << bit);
        let mut boundaries: Vec<u64> =
            of_bytes.chain(of_blocks).filter(|&at| at < self.block_count).collect();
        boundaries.push(self.block_count);
        boundaries.sort_unstable();
        boundaries.dedup();
        boundaries
    }

    /// A content that no other block has.
    fn content(&self, block: u64, round: u64) -> Vec<u8> {
        let words = (0..self.block_bytes / 8).map(|word| (block << 16 | round << 8 | word) + 1);
        words.flat_map(u64::to_le_bytes).collect()
    }

    fn write(&mut self, first: u64, count: u64, round: u64) {
        let blocks: Vec<Vec<u8>> = (first..first + count).map(|block| self.content(block, round)).collect();
        self.host.write_at(&blocks.concat(), first * self.block_bytes).expect("written");
        self.written.extend((first..).zip(blocks));
    }

    fn clear(&mut self, first: u64, count: u64) {
        self.written.retain(|block, _| !(first..first + count).contains(block));
    }

    /// Deallocates blocks. A device that stops to support that, as a loop device over tmpfs does, keeps them.
    fn deallocate(&mut self, first: u64, count: u64, may_keep: bool) {
        self.host.deallocate(first * self.block_bytes, count * self.block_bytes).expect("deallocated");
        let mut bytes = vec![0; self.block_bytes as usize];
        for block in first..first + count {
            self.host.read_at(&mut bytes, block * self.block_bytes).expect("read");
            if !may_keep || self.written.get(&block) != Some(&bytes) {
                self.clear(block, 1);
            }
        }
    }

    /// Checks every block that was written or cleared, and those that are a power of two away from one.
    fn check(&mut self, what: &str) {
        let near = self.boundaries().into_iter().flat_map(|at| at.saturating_sub(4)..at + 4);
        let mut blocks: Vec<u64> = near.clone().collect();
        for block in near {
            blocks.extend((20..u64::BITS).flat_map(|bit| [block % (1 << bit), block ^ (1 << bit)]));
        }
        blocks.retain(|block| *block < self.block_count);
        blocks.sort_unstable();
        blocks.dedup();
        let mut bytes = vec![0; self.block_bytes as usize];
        let nothing = bytes.clone();
        for block in blocks {
            let wanted = self.written.get(&block).unwrap_or(&nothing);
            self.host.read_at(&mut bytes, block * self.block_bytes).expect("read");
            assert!(bytes == *wanted, "{what}: block {block:#x} as the host reads it");
            if let Some(file) = &self.file {
                file.read_exact_at(&mut bytes, block * self.block_bytes).expect("read");
                assert!(bytes == *wanted, "{what}: block {block:#x} as it is in the file");
            }
        }
    }

    /// Every command that names blocks, across each boundary.
    fn exercise(&mut self, may_keep: bool) {
        for at in self.boundaries() {
            self.write(at - 3, 3, 0);
            if at < self.block_count {
                self.write(at, 3, 0);
            }
        }
        self.check("written");
        let boundaries = self.boundaries();
        for (index, &at) in (0..).zip(&boundaries) {
            let behind = u64::from(at < self.block_count);
            let bytes = self.block_bytes;
            let (from, length) = ((at - 1) * bytes, (1 + behind) * bytes);
            match index % 4 {
                0 => self.host.write_zeroes(from, length, index % 8 == 0).expect("zeroed"),
                1 => {
                    self.deallocate(at - 1, 1 + behind, may_keep);
                    continue;
                }
                2 => {
                    // From here to the boundary before, and from that one to here.
                    let before = boundaries[index - 1] - 3;
                    for (source, to) in [(at - 2, before), (before, at - 3)] {
                        let range = BlockRange { lba: source, blocks: 1 };
                        let copy = self.host.namespace().copy(to, &[range]).expect("a copy");
                        assert_eq!(status(&mut self.host, copy, None), Status::SUCCESS);
                        let content = self.written[&source].clone();
                        self.written.insert(to, content);
                    }
                    continue;
                }
                _ => {
                    let (old, new) = (self.written[&(at - 1)].clone(), self.content(at - 1, 1));
                    assert!(self.host.compare_at(&old, from).expect("compared"));
                    assert!(self.host.compare_and_write_at(&old, &new, from).expect("compared"));
                    assert!(!self.host.compare_and_write_at(&old, &new, from).expect("compared"));
                    self.written.insert(at - 1, new);
                    continue;
                }
            }
            self.clear(at - 1, 1 + behind);
        }
        for at in boundaries {
            let behind = u64::from(at < self.block_count);
            self.host.verify((at - 2) * self.block_bytes, (2 + behind) * self.block_bytes).expect("verified");
        }
        self.host.flush().expect("flushed");
        self.check("changed");
    }
}

/// Exercises a namespace of zeroes. With `restarts` its content outlives the target, and is checked again.
fn exercise_with(
    engine: EngineKind,
    storage: &str,
    path: Option<&Path>,
    restarts: bool,
) -> (Rig, BlockingNamespace) {
    let mut rig = Rig::new(engine, &[storage]);
    let path = path.map_or_else(|| rig.file(0), Path::to_owned);
    let mut disk = Disk::new(&rig, &path);
    disk.exercise(storage.starts_with("device:"));
    let Disk { mut host, written, .. } = disk;
    if restarts {
        drop(host);
        rig.stop();
        rig.start();
        disk = Disk { written, ..Disk::new(&rig, &path) };
        disk.check("after a restart");
        host = disk.host;
    }
    (rig, host)
}

/// The same with each engine.
fn exercise(storage: &str, path: Option<&Path>, restarts: bool) {
    for engine in engines() {
        let (_rig, mut host) = exercise_with(engine, storage, path, restarts);
        // The next engine begins with zeroes.
        let bytes = host.namespace().block_count() * u64::from(host.namespace().lba_bytes());
        host.deallocate(0, bytes).expect("deallocated");
    }
}

#[test]
fn blocks_of_a_file_of_six_gibibytes_are_apart() {
    exercise("file:6G?lba=4096", None, true);
    exercise("file:6G?lba=512", None, true);
}

/// On tmpfs: some file systems, such as ext4, limit a file to 16 TiB.
#[test]
fn blocks_of_a_file_of_seventeen_tebibytes_are_apart() {
    for block_bytes in [512, 4096] {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in memory");
        file.as_file().set_len(17 << 40).expect("its size");
        exercise(&format!("file:{}?lba={block_bytes}", file.path().display()), Some(file.path()), true);
    }
}

#[test]
fn blocks_of_six_gibibytes_of_memory_are_apart() {
    exercise("ram:6G?lba=512", None, false);
}

/// A block device over a file.
struct LoopDevice(PathBuf);

impl LoopDevice {
    /// Attaches one; `None` if this process must not, or the machine has none.
    fn attach(file: &Path) -> Option<Self> {
        let attached = Command::new("losetup").args(["--find", "--show"]).arg(file).output().ok()?;
        let path = String::from_utf8(attached.stdout).ok()?;
        attached.status.success().then(|| Self(path.trim().into()))
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let status = Command::new("losetup").arg("--detach").arg(&self.0).status();
        assert!(status.is_ok_and(|status| status.success()), "{} is detached", self.0.display());
    }
}

/// Its file shows where the target has written: 17 TiB are more sectors than 32 bits count.
#[test]
fn blocks_of_a_device_of_seventeen_tebibytes_are_apart() {
    for (engine, block_bytes) in engines().into_iter().zip([512, 4096]) {
        let file = tempfile::NamedTempFile::new_in("/dev/shm").expect("a file in memory");
        file.as_file().set_len(17 << 40).expect("its size");
        let Some(device) = LoopDevice::attach(file.path()) else {
            return eprintln!("skipped: this process cannot attach a loop device");
        };
        let storage = format!("device:{}?lba={block_bytes}", device.0.display());
        exercise_with(engine, &storage, Some(file.path()), true);
    }
}

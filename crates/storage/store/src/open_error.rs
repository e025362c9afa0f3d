//! Errors of opening a namespace's storage, each with its remedy.

use std::io;
use std::path::{Path, PathBuf};

use rustix::io::Errno;

use crate::namespace::BLOCK_BYTES;
use crate::size::Size;

/// The reason why a namespace's storage cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The block size is not supported.
    #[error("a logical block cannot have {0} bytes: take a power of two from 512 to 65536")]
    BlockSize(u32),
    /// The size is not a multiple of the block size.
    #[error("{name} has {bytes} bytes, not a multiple of its block size {block_bytes}: {}", remedy(*bytes, *block_bytes))]
    SizeNotBlocks {
        /// The storage.
        name: String,
        /// The size.
        bytes: u64,
        /// The block size.
        block_bytes: u32,
    },
    /// The size is not a multiple of a unit that is fixed.
    #[error("{name} has {bytes} bytes, not a multiple of {unit_bytes}: make it {}", bytes.next_multiple_of((*unit_bytes).into()))]
    SizeNotWhole {
        /// The storage.
        name: String,
        /// The size.
        bytes: u64,
        /// The unit.
        unit_bytes: u32,
    },
    /// The storage is empty.
    #[error("{name} is empty: {remedy}")]
    Empty {
        /// The storage.
        name: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// The system does not provide that much memory.
    #[error("cannot have {} of memory: {source}", Size(*bytes))]
    Memory {
        /// Bytes requested.
        bytes: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file does not exist.
    #[error("{} does not exist: {remedy}", path.display())]
    Missing {
        /// Its path.
        path: PathBuf,
        /// The remedy.
        remedy: &'static str,
    },
    /// There is no volume at the path.
    #[error("{} is no volume: {why}", path.display())]
    NoVolume {
        /// Its path.
        path: PathBuf,
        /// The reason, and what would be right.
        why: String,
    },
    /// The file is of another kind than specified.
    #[error("{} is {is}: {remedy}", path.display())]
    WrongKind {
        /// Its path.
        path: PathBuf,
        /// Its kind.
        is: &'static str,
        /// The remedy.
        remedy: &'static str,
    },
    /// Another process, or another namespace of this one, uses it.
    #[error("{} is in use by another namespace or target process: two would destroy each other's data", path.display())]
    Locked {
        /// Its path.
        path: PathBuf,
    },
    /// Another program, or the kernel, has the file open for writing.
    #[error("{} is open for writing by {by}: both would destroy each other's data", path.display())]
    Held {
        /// Its path.
        path: PathBuf,
        /// The holder of the file.
        by: String,
    },
    /// The file system does not allocate space ahead of writes.
    #[error("the file system of {} cannot allocate space ahead: `sparse` has each write allocate its own", path.display())]
    CannotAllocate {
        /// Its path.
        path: PathBuf,
    },
    /// The kernel uses the device.
    #[error("{} is in use: it is mounted, swap, or a part of another device", path.display())]
    Busy {
        /// Its path.
        path: PathBuf,
    },
    /// The file is larger than specified.
    #[error("{} has {} and size={} is less: leave size out to use all of it", path.display(), Size(*bytes), Size(*wanted))]
    TooLarge {
        /// Its path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size requested.
        wanted: u64,
    },
    /// The file was cut, and is not reopened with less than its specified size.
    #[error(
        "{} has {} and size={} is more: it was cut. Bring back what lay behind and reload; or, to give that up, remove the \
         namespace from the configuration, reload, and add it again with size={}",
        path.display(), Size(*bytes), Size(*wanted), Size(*bytes)
    )]
    Cut {
        /// Its path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size specified.
        wanted: u64,
    },
    /// The file is smaller than specified, and must not be changed.
    #[error("{} has {} and cannot grow to size={}: it is opened read-only", path.display(), Size(*bytes), Size(*wanted))]
    CannotGrow {
        /// Its path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size requested.
        wanted: u64,
    },
    /// The file is too small for its use.
    #[error("{} has {}: it needs at least {}", path.display(), Size(*bytes), Size(*bytes_min))]
    TooSmall {
        /// Its path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The minimum size.
        bytes_min: u64,
    },
    /// A key-value file was divided for its size.
    #[error(
        "{} has {} and size={} is more: a key-value file keeps its size. Leave size out, or copy its pairs to a new \
         file with `nvlane kv dump` and `nvlane kv load`",
        path.display(), Size(*bytes), Size(*wanted)
    )]
    PairsKeepSize {
        /// Its path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size requested.
        wanted: u64,
    },
    /// A key-value file was cut.
    #[error(
        "{} has {} bytes, and its superblock says {}: it was cut. Bring back what lay behind, or see what is left with \
         `nvlane kv check` and save it with `nvlane kv repair`",
        path.display(), bytes, bytes_min
    )]
    PairsCut {
        /// Its path.
        path: PathBuf,
        /// Its size.
        bytes: u64,
        /// The size of its parts together.
        bytes_min: u64,
    },
    /// The memory is too small for its use.
    #[error(
        "{} of memory, divided among {partition_count} threads, is too little for keys and values: take {} or more",
        Size(*bytes), Size(*bytes_min)
    )]
    MemoryTooSmall {
        /// The memory.
        bytes: u64,
        /// Reactors that share it.
        partition_count: u64,
        /// The minimum size.
        bytes_min: u64,
    },
    /// The memory is more than the partitions can have.
    #[error("{} of memory is too much for keys and values: take {} or less, or more reactors", Size(*bytes), Size(*bytes_max))]
    MemoryTooLarge {
        /// The memory.
        bytes: u64,
        /// The maximum size.
        bytes_max: u64,
    },
    /// Pairs that may not be evicted need more memory.
    #[error("its pairs need {needed_bytes} bytes and may not be evicted, {bytes} are too few")]
    MemoryInUse {
        /// The memory.
        bytes: u64,
        /// The least for the present pairs.
        needed_bytes: u64,
    },
    /// The keys in the file are partitioned for another number of reactors.
    #[error(
        "{} is divided among {has} threads, and the target runs {wanted}: start it with {has}, or copy the pairs to \
         a new file",
        path.display()
    )]
    OtherPartitions {
        /// Its path.
        path: PathBuf,
        /// Number of reactors that it was created for.
        has: u64,
        /// Number of reactors of this target.
        wanted: u64,
    },
    /// The storage below cannot write blocks this small.
    #[error("{} cannot be written in blocks of {block_bytes} bytes: use lba={block_bytes_min} or more", path.display())]
    BlockTooSmall {
        /// Its path.
        path: PathBuf,
        /// The block size requested.
        block_bytes: u32,
        /// The smallest block size possible.
        block_bytes_min: u32,
    },
    /// The kernel holds the device read-only.
    #[error(
        "{} is read-only, hosts could not write to it: add ?readonly to serve it for reading, or make it writable \
         (blockdev --setrw)",
        path.display()
    )]
    WriteProtected {
        /// Its path.
        path: PathBuf,
    },
    /// The file was served with another block size.
    #[error(
        "{} was served with blocks of {kept} bytes, and would be with {block_bytes}: hosts keep partition tables and file \
         systems by block number, and would not find theirs. Write lba={kept} as before; or, to give up what hosts have \
         written there, setfattr -x {} {}",
        path.display(), crate::identity::BLOCK_SIZE_ATTRIBUTE, path.display()
    )]
    OtherBlockSize {
        /// Its path.
        path: PathBuf,
        /// The block size requested.
        block_bytes: u32,
        /// The block size that it was served with.
        kept: u32,
    },
    /// The path now leads to another file.
    #[error("{} was replaced by another file", path.display())]
    Replaced {
        /// Its path.
        path: PathBuf,
    },
    /// The path leads to a file with another identity, which hosts would take for the one served before.
    #[error(
        "{} is another file than the one that was served, and hosts would take the two for one disk: bring the served file back, \
         or a copy that has its attribute {} (cp --preserve=xattr); to serve this one, remove the namespace, reload, and add it under another \
         nsid, or restart the target",
        path.display(),
        crate::identity::ATTRIBUTE
    )]
    OtherIdentity {
        /// Its path.
        path: PathBuf,
    },
    /// A server in another process, or its storage.
    #[error("{name}: {why}")]
    Remote {
        /// The storage.
        name: String,
        /// The problem, and the remedy.
        why: String,
    },
    /// The libraries of Ceph, its cluster or an image.
    #[error("image {name}: {why}")]
    Ceph {
        /// The image.
        name: String,
        /// The problem, and the remedy.
        why: String,
    },
    /// A system call failed.
    #[error("cannot {action} {}: {source}{}", path.display(), advice(source))]
    System {
        /// The operation.
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
}

impl OpenError {
    /// The path of storage that others use at present.
    #[must_use]
    pub fn path_in_use(&self) -> Option<&Path> {
        match self {
            Self::Locked { path } | Self::Busy { path } | Self::Held { path, .. } => Some(path),
            _ => None,
        }
    }
}

/// The remedy for a system error, where one is known.
fn advice(error: &io::Error) -> String {
    let text = match Errno::from_io_error(error) {
        Some(Errno::FBIG) => {
            let limit = rustix::process::getrlimit(rustix::process::Resource::Fsize).current;
            let limit = limit.map_or_else(|| "no limit".to_owned(), |bytes| Size(bytes).to_string());
            return format!(
                ": the process may make files of {limit} (ulimit -f, LimitFSIZE=), or the file system of less"
            );
        }
        Some(Errno::NOSPC) => ": the file system is full, free some space",
        Some(Errno::DQUOT) => ": the user's quota is used up",
        Some(Errno::ROFS) => ": the file system is read-only, add ?readonly to serve the file for reading",
        Some(Errno::ACCESS | Errno::PERM) => {
            ": the target's user may not, see the owner and mode of the file and its directory"
        }
        Some(Errno::MFILE) => {
            ": the process has too many files open, raise its limit (ulimit -n, LimitNOFILE=)"
        }
        Some(Errno::NFILE) => ": the machine has too many files open, raise fs.file-max",
        _ => "",
    };
    text.to_owned()
}

/// A size or block size that would be valid (a larger size, so that no data is lost).
fn remedy(bytes: u64, block_bytes: u32) -> String {
    let larger = bytes.next_multiple_of(block_bytes.into());
    let fitting = 1_u64 << bytes.trailing_zeros().min(u32::BITS);
    if fitting >= u64::from(*BLOCK_BYTES.start()) {
        format!("use lba={fitting}, or make it {larger}")
    } else {
        format!("make it {larger}")
    }
}

/// Checks a block size and a size.
pub(super) fn check_size(name: &str, bytes: u64, block_bytes: u32) -> Result<(), OpenError> {
    if !BLOCK_BYTES.contains(&block_bytes) || !block_bytes.is_power_of_two() {
        return Err(OpenError::BlockSize(block_bytes));
    }
    let name = || name.to_owned();
    if bytes == 0 {
        return Err(OpenError::Empty { name: name(), remedy: "give it a size" });
    }
    if !bytes.is_multiple_of(block_bytes.into()) {
        return Err(OpenError::SizeNotBlocks { name: name(), bytes, block_bytes });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_of_the_system_comes_with_its_remedy() {
        for (errno, remedy) in [
            (Errno::FBIG, "LimitFSIZE"),
            (Errno::NOSPC, "free some space"),
            (Errno::DQUOT, "quota"),
            (Errno::ROFS, "?readonly"),
            (Errno::ACCESS, "owner and mode"),
            (Errno::PERM, "owner and mode"),
            (Errno::MFILE, "LimitNOFILE"),
            (Errno::NFILE, "fs.file-max"),
        ] {
            let advice = advice(&errno.into());
            assert!(advice.starts_with(": ") && advice.contains(remedy), "{errno:?}: {advice}");
        }
        assert_eq!(advice(&Errno::IO.into()), "");
    }
}

//! The directory: a file for each namespace. It answers what needs no command, and says what commands are for the rest.
// What is read from the device must not cause a panic: see docs/testing.md.
#![cfg_attr(
    not(test),
    deny(
        clippy::arithmetic_side_effects,
        clippy::expect_used,
        clippy::indexing_slicing,
        clippy::unwrap_used
    )
)]

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use rustix::io::Errno;

use super::reply::{Listing, Reply};
use super::request::{KEEP_SIZE, Operation, PUNCH_HOLE, Request, ZERO_RANGE};
use super::wire::{AttrOut, Attributes, EntryOut, OpenOut, StatfsOut, open_flag};

/// The node of the directory.
pub const ROOT: u64 = 1;

/// Seconds for which the kernel keeps names and attributes. The bridge notifies it of changes.
const VALID: Duration = Duration::from_secs(3600);

/// Unit of `st_blocks`.
const SECTOR_BYTES: u64 = 512;

/// Unit of the file system's sizes.
const STATFS_BYTES: u32 = 1 << STATFS_SHIFT;
const STATFS_SHIFT: u32 = 12;

/// Longest name.
const NAME_BYTES_MAX: u32 = 255;

const DIRECTORY: u32 = 0o040_000;
const REGULAR: u32 = 0o100_000;

/// Owner and permissions of the files.
#[derive(Clone, Copy, Debug)]
pub struct FileSettings {
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Permission bits of a file; a read-only one has those to read only.
    pub mode: u32,
}

/// A file: a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FileInfo {
    /// Its node.
    pub node: u64,
    /// Its name.
    pub name: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Bytes of a block: a power of two.
    pub block_bytes: u32,
    /// Nothing may change its data.
    pub is_read_only: bool,
    /// Write Zeroes is there.
    pub can_zero: bool,
    /// The namespace is there. One that is gone keeps its place.
    pub is_present: bool,
}

/// What is to be done with a file, by its index. Ranges lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Task {
    /// Make a handle.
    Open {
        /// Index of the file.
        file: usize,
        /// The file is open with `O_DIRECT`.
        is_direct: bool,
    },
    /// Drop a handle.
    Release {
        /// The handle.
        handle: u64,
    },
    /// Read.
    Read {
        /// Index of the file.
        file: usize,
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u32,
    },
    /// Write the first bytes of the payload.
    Write {
        /// Index of the file.
        file: usize,
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u32,
    },
    /// Make blocks read as zeroes, whole ones.
    Zero {
        /// Index of the file.
        file: usize,
        /// First byte.
        offset: u64,
        /// Bytes, not 0.
        length: u64,
        /// The blocks may be deallocated.
        may_deallocate: bool,
    },
    /// Flush.
    Flush {
        /// Index of the file.
        file: usize,
        /// The handle.
        handle: u64,
    },
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    /// The reply.
    Reply(Reply),
    /// The listing is the reply's data.
    Listing,
    /// Nothing.
    Nothing,
    /// Something is to be done, and then there is a reply.
    Task(Task),
}

/// The directory and its files.
#[derive(Debug)]
pub struct Directory {
    settings: FileSettings,
    /// Time of all files, since the epoch.
    time: Duration,
    files: Vec<FileInfo>,
}

impl Directory {
    /// A directory.
    #[must_use]
    pub fn new(settings: FileSettings, files: Vec<FileInfo>) -> Self {
        let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { settings, time, files }
    }

    /// Other files. Indices are those of the list.
    pub fn set_files(&mut self, files: Vec<FileInfo>) {
        self.files = files;
    }

    /// The files that are there.
    fn present(&self) -> impl Iterator<Item = &FileInfo> {
        self.files.iter().filter(|file| file.is_present)
    }

    /// What becomes of a request. `listing` takes the entries of [`Turn::Listing`].
    #[inline]
    pub fn judge(&self, request: &Request<'_>, listing: &mut Listing) -> Turn {
        let unique = request.unique;
        match self.try_judge(request, listing) {
            Ok(turn) => turn,
            Err(errno) => Turn::Reply(Reply::failed(unique, errno)),
        }
    }

    #[inline]
    fn try_judge(&self, request: &Request<'_>, listing: &mut Listing) -> Result<Turn, Errno> {
        let Request { unique, node, operation } = *request;
        let reply = |reply| Ok(Turn::Reply(reply));
        match operation {
            Operation::Read { offset, length, is_direct } => {
                let (file, info) = self.file(node)?;
                let left = info.size_bytes.saturating_sub(offset);
                let length = u32::try_from(left).unwrap_or(u32::MAX).min(length);
                if length == 0 {
                    return reply(Reply::data(unique, 0));
                }
                // Programs that find out the block size by trying, such as qemu, are told.
                if is_direct && !info.is_aligned(offset, length.into()) {
                    return Err(Errno::INVAL);
                }
                Ok(Turn::Task(Task::Read { file, offset, length }))
            }
            Operation::Write { offset, length, is_direct } => {
                let (file, info) = self.writable(node)?;
                if length == 0 {
                    return reply(Reply::written(unique, 0));
                }
                let left = info.size_bytes.saturating_sub(offset);
                let length = u32::try_from(left).unwrap_or(u32::MAX).min(length);
                if length == 0 {
                    return Err(Errno::NOSPC);
                }
                if is_direct && !info.is_aligned(offset, length.into()) {
                    return Err(Errno::INVAL);
                }
                Ok(Turn::Task(Task::Write { file, offset, length }))
            }
            Operation::Sync { handle } => Ok(Turn::Task(Task::Flush { file: self.file(node)?.0, handle })),
            Operation::Allocate { offset, length, mode } => self.allocate(node, offset, length, mode),
            Operation::Open { is_for_writing, is_direct } => {
                let file = if is_for_writing { self.writable(node)?.0 } else { self.file(node)?.0 };
                Ok(Turn::Task(Task::Open { file, is_direct }))
            }
            Operation::Release { handle } => Ok(Turn::Task(Task::Release { handle })),
            Operation::Lookup { name } => {
                if node != ROOT {
                    return Err(Errno::NOTDIR);
                }
                let info = self.present().find(|file| file.name.as_bytes() == name).ok_or(Errno::NOENT)?;
                reply(Reply::of(
                    unique,
                    &EntryOut {
                        nodeid: info.node,
                        generation: 0,
                        entry_valid: VALID.as_secs(),
                        attr_valid: VALID.as_secs(),
                        entry_valid_nsec: 0,
                        attr_valid_nsec: 0,
                        attr: self.file_attributes(info),
                    },
                ))
            }
            Operation::GetAttributes => reply(self.attributes_reply(unique, node)?),
            Operation::SetAttributes { size, has_owner_or_mode } => {
                let is_other_size = match size {
                    Some(size) => size != self.file(node)?.1.size_bytes,
                    None => false,
                };
                if is_other_size || has_owner_or_mode {
                    return Err(Errno::PERM);
                }
                // Times are accepted, and stay as they are.
                reply(self.attributes_reply(unique, node)?)
            }
            Operation::Statfs => {
                let bytes = self.present().fold(0u64, |sum, file| sum.saturating_add(file.size_bytes));
                let statfs = StatfsOut {
                    blocks: bytes >> STATFS_SHIFT,
                    files: u64::try_from(self.present().count()).unwrap_or(u64::MAX),
                    bsize: STATFS_BYTES,
                    frsize: STATFS_BYTES,
                    namelen: NAME_BYTES_MAX,
                    ..StatfsOut::default()
                };
                reply(Reply::of(unique, &statfs))
            }
            Operation::OpenDirectory if node == ROOT => reply(Self::opened(unique, 0, false)),
            Operation::OpenDirectory => Err(Errno::NOTDIR),
            Operation::ReadDirectory { offset, length } => {
                self.list(offset, length, listing);
                Ok(Turn::Listing)
            }
            Operation::ReleaseDirectory | Operation::Destroy => reply(Reply::done(unique)),
            Operation::Forget => Ok(Turn::Nothing),
            Operation::ChangeNames => Err(Errno::PERM),
            // The kernel asks no more for what is not implemented. A command under way is not interrupted.
            Operation::Init { .. } | Operation::Interrupt | Operation::Unknown { .. } => Err(Errno::NOSYS),
        }
    }

    /// The reply to OPEN.
    pub(crate) fn opened(unique: u64, handle: u64, is_direct: bool) -> Reply {
        let open_flags = if is_direct { open_flag::DIRECT_IO | open_flag::PARALLEL_DIRECT_WRITES } else { 0 };
        Reply::of(unique, &OpenOut { fh: handle, open_flags, padding: 0 })
    }

    fn allocate(&self, node: u64, offset: u64, length: u64, mode: u32) -> Result<Turn, Errno> {
        let (file, info) = self.writable(node)?;
        let may_deallocate = match mode {
            _ if !info.can_zero => return Err(Errno::OPNOTSUPP),
            mode if mode == PUNCH_HOLE | KEEP_SIZE => true,
            mode if mode & !KEEP_SIZE == ZERO_RANGE => false,
            _ => return Err(Errno::OPNOTSUPP),
        };
        let end = offset.checked_add(length).ok_or(Errno::FBIG)?;
        if length == 0 {
            return Err(Errno::INVAL);
        }
        if end > info.size_bytes && mode & KEEP_SIZE == 0 {
            return Err(Errno::NOSPC);
        }
        let length = end.min(info.size_bytes).saturating_sub(offset);
        if length == 0 {
            return Err(Errno::NOSPC);
        }
        if !info.is_aligned(offset, length) {
            return Err(Errno::INVAL);
        }
        Ok(Turn::Task(Task::Zero { file, offset, length, may_deallocate }))
    }

    /// A file, with its index.
    #[inline]
    fn file(&self, node: u64) -> Result<(usize, &FileInfo), Errno> {
        if node == ROOT {
            return Err(Errno::ISDIR);
        }
        let is_it = |file: &FileInfo| file.node == node && file.is_present;
        self.files.iter().enumerate().find(|(_, file)| is_it(file)).ok_or(Errno::STALE)
    }

    #[inline]
    fn writable(&self, node: u64) -> Result<(usize, &FileInfo), Errno> {
        let (index, file) = self.file(node)?;
        if file.is_read_only { Err(Errno::ROFS) } else { Ok((index, file)) }
    }

    fn attributes_reply(&self, unique: u64, node: u64) -> Result<Reply, Errno> {
        let attr = if node == ROOT {
            Attributes {
                ino: ROOT,
                // Who may read a file may see it.
                mode: DIRECTORY | self.settings.mode & 0o444 | (self.settings.mode & 0o444) >> 2,
                nlink: 2,
                ..self.owned(STATFS_BYTES)
            }
        } else {
            self.file_attributes(self.file(node)?.1)
        };
        Ok(Reply::of(unique, &AttrOut { attr_valid: VALID.as_secs(), attr_valid_nsec: 0, dummy: 0, attr }))
    }

    fn file_attributes(&self, file: &FileInfo) -> Attributes {
        let mode = self.settings.mode & if file.is_read_only { 0o444 } else { 0o777 };
        Attributes {
            ino: file.node,
            size: file.size_bytes,
            blocks: file.size_bytes / SECTOR_BYTES,
            mode: REGULAR | mode,
            nlink: 1,
            ..self.owned(file.block_bytes.max(STATFS_BYTES))
        }
    }

    fn owned(&self, blksize: u32) -> Attributes {
        let (seconds, ns) = (self.time.as_secs(), self.time.subsec_nanos());
        Attributes {
            atime: seconds,
            mtime: seconds,
            ctime: seconds,
            times_ns: [ns; 3],
            uid: self.settings.uid,
            gid: self.settings.gid,
            blksize,
            ..Attributes::default()
        }
    }

    fn list(&self, offset: u64, length: u32, listing: &mut Listing) {
        listing.clear();
        let length_max = usize::try_from(length).unwrap_or(usize::MAX);
        let own = [(ROOT, &b"."[..], DIRECTORY), (ROOT, b"..", DIRECTORY)];
        let files = self.present().map(|file| (file.node, file.name.as_bytes(), REGULAR));
        let skipped = usize::try_from(offset).unwrap_or(usize::MAX);
        for (number, (node, name, mode)) in (1..).zip(own.into_iter().chain(files)).skip(skipped) {
            if !listing.push(node, number, mode >> 12, name, length_max) {
                return;
            }
        }
    }
}

impl FileInfo {
    #[inline]
    fn is_aligned(&self, offset: u64, length: u64) -> bool {
        let block_bytes = u64::from(self.block_bytes);
        offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::wire::{InHeader, opcode};
    use zerocopy::{FromBytes, IntoBytes};

    /// 1 MiB of 4096-byte blocks, the same with 512 bytes to read only, and one that is gone.
    fn directory() -> Directory {
        let file = |node, name: &str, block_bytes, is_read_only, is_present| FileInfo {
            node,
            name: name.into(),
            size_bytes: 1 << 20,
            block_bytes,
            is_read_only,
            can_zero: true,
            is_present,
        };
        let files = vec![
            file(2, "ns1", 4096, false, true),
            file(3, "ns2", 512, true, true),
            file(4, "ns3", 512, false, false),
        ];
        Directory::new(FileSettings { uid: 5, gid: 6, mode: 0o660 }, files)
    }

    fn judge(node: u64, operation: Operation<'_>) -> Turn {
        directory().judge(&Request { unique: 9, node, operation }, &mut Listing::default())
    }

    fn refused(errno: Errno) -> Turn {
        Turn::Reply(Reply::failed(9, errno))
    }

    fn read(offset: u64, length: u32, is_direct: bool) -> Operation<'static> {
        Operation::Read { offset, length, is_direct }
    }

    fn write(offset: u64, length: u32, is_direct: bool) -> Operation<'static> {
        Operation::Write { offset, length, is_direct }
    }

    #[test]
    fn a_range_ends_with_its_file() {
        let task = |file, offset, length| Turn::Task(Task::Read { file, offset, length });
        assert_eq!(judge(2, read(4096, 8192, true)), task(0, 4096, 8192));
        assert_eq!(judge(2, read(5, 7, false)), task(0, 5, 7));
        assert_eq!(judge(3, read((1 << 20) - 512, 4096, true)), task(1, (1 << 20) - 512, 512));
        for offset in [1 << 20, u64::MAX] {
            assert_eq!(judge(2, read(offset, 4096, false)), Turn::Reply(Reply::data(9, 0)));
            assert_eq!(judge(2, write(offset, 4096, false)), refused(Errno::NOSPC));
        }
        let task = |offset, length| Turn::Task(Task::Write { file: 0, offset, length });
        assert_eq!(judge(2, write(3, 5, false)), task(3, 5));
        assert_eq!(judge(2, write((1 << 20) - 1, 5, false)), task((1 << 20) - 1, 1));
    }

    #[test]
    fn what_cannot_be_done_gets_its_error() {
        let open = |is_for_writing| Operation::Open { is_for_writing, is_direct: false };
        let allocate = |offset, length, mode| Operation::Allocate { offset, length, mode };
        let set = |size, has_owner_or_mode| Operation::SetAttributes { size, has_owner_or_mode };
        for (node, operation, errno) in [
            (2, read(512, 4096, true), Errno::INVAL),
            (2, write(0, 512, true), Errno::INVAL),
            (1, read(0, 512, false), Errno::ISDIR),
            (4, read(0, 512, false), Errno::STALE),
            (9, Operation::GetAttributes, Errno::STALE),
            (3, write(0, 512, false), Errno::ROFS),
            (3, open(true), Errno::ROFS),
            (3, allocate(0, 512, PUNCH_HOLE | KEEP_SIZE), Errno::ROFS),
            (2, allocate(0, 4096, 0), Errno::OPNOTSUPP),
            (2, allocate(0, 4096, PUNCH_HOLE), Errno::OPNOTSUPP),
            (2, allocate(512, 4096, ZERO_RANGE), Errno::INVAL),
            (2, allocate(0, 2 << 20, ZERO_RANGE), Errno::NOSPC),
            (2, allocate(2 << 20, 4096, ZERO_RANGE | KEEP_SIZE), Errno::NOSPC),
            (2, allocate(u64::MAX, 2, ZERO_RANGE), Errno::FBIG),
            (2, set(Some(0), false), Errno::PERM),
            (2, set(None, true), Errno::PERM),
            (1, Operation::Lookup { name: b"ns3" }, Errno::NOENT),
            (1, Operation::ChangeNames, Errno::PERM),
            (2, Operation::OpenDirectory, Errno::NOTDIR),
            (1, Operation::Interrupt, Errno::NOSYS),
            (1, Operation::Unknown { opcode: 25 }, Errno::NOSYS),
        ] {
            assert_eq!(judge(node, operation), refused(errno), "{operation:?} of {node}");
        }
        assert_eq!(judge(3, open(false)), Turn::Task(Task::Open { file: 1, is_direct: false }));
        let hole = Task::Zero { file: 0, offset: 4096, length: 8192, may_deallocate: true };
        assert_eq!(judge(2, allocate(4096, 8192, PUNCH_HOLE | KEEP_SIZE)), Turn::Task(hole));
        assert!(
            matches!(judge(2, set(Some(1 << 20), false)), Turn::Reply(reply) if reply.as_bytes().len() == 120)
        );
    }

    #[test]
    fn attributes_are_those_of_the_namespace() {
        let attributes = |node| {
            let Turn::Reply(reply) = judge(node, Operation::GetAttributes) else { panic!("no reply") };
            Attributes::read_from_suffix(reply.as_bytes()).expect("attributes").1
        };
        let file = attributes(2);
        assert_eq!((file.ino, file.size, file.blocks, file.mode), (2, 1 << 20, 2048, 0o100_660));
        assert_eq!((file.uid, file.gid, file.blksize, file.nlink), (5, 6, 4096, 1));
        assert_eq!((attributes(3).mode, attributes(1).mode), (0o100_440, 0o040_550));
    }

    #[test]
    fn entries_go_on_where_a_listing_was_full() {
        let directory = directory();
        let mut names = Vec::new();
        for _ in 0..5 {
            let mut listing = Listing::default();
            let operation = Operation::ReadDirectory { offset: names.len() as u64, length: 60 };
            assert_eq!(
                directory.judge(&Request { unique: 9, node: 1, operation }, &mut listing),
                Turn::Listing
            );
            let mut rest = listing.as_bytes();
            assert!(rest.len() <= 60);
            while let Some((head, behind)) = rest.split_first_chunk::<24>() {
                let length = usize::from(head[16]);
                names.push(String::from_utf8(behind[..length].to_vec()).expect("text"));
                assert_eq!(usize::from(head[8]), names.len());
                rest = &behind[length.next_multiple_of(8)..];
            }
        }
        assert_eq!(names, [".", "..", "ns1", "ns2"]);
    }

    #[test]
    fn a_request_says_its_own_length() {
        let bytes = |opcode, body: &[u8], len: u32| {
            let header = InHeader {
                len,
                opcode,
                unique: 9,
                nodeid: 1,
                uid: 0,
                gid: 0,
                pid: 0,
                total_extlen: 0,
                padding: 0,
            };
            [header.as_bytes(), body].concat()
        };
        let lookup = bytes(opcode::LOOKUP, b"ns1\0", 44);
        let request = Request::from_bytes(&lookup, 44).expect("a request");
        assert_eq!((request.unique, request.operation), (9, Operation::Lookup { name: b"ns1" }));
        assert!(Request::from_bytes(&lookup, 45).is_err() && Request::from_bytes(&lookup[..30], 30).is_err());
        assert!(Request::from_bytes(&bytes(opcode::LOOKUP, b"ns1", 43), 43).is_err());
        let mut body = [0; 40];
        body[16] = 5;
        let write = bytes(opcode::WRITE, &body, 85);
        assert_eq!(
            Request::from_bytes(&write, 85).map(|request| request.operation),
            Ok(Operation::Write { offset: 0, length: 5, is_direct: false })
        );
        assert!(Request::from_bytes(&bytes(opcode::WRITE, &body, 86), 86).is_err());
    }
}
